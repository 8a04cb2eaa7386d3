"""`guardrail doctor` finds what a guard would refuse or abstain on, says how to fix it, and sets the exit code."""

from __future__ import annotations

import copy
import itertools
import json
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import pytest
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field
from typer.testing import CliRunner

from calibrate.cli import app as calibrate_app
from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from calibrate.data.records import read_records
from guardrail import Guardrail, scorer
from guardrail.__main__ import main
from guardrail.artifact import CalibrationArtifact, CascadeArtifact, CascadeOutcome, Made, StageShare
from guardrail.describe import promises
from guardrail.doctor import Finding, examine
from guardrail.errors import GuardrailError, MissingDependencyError, UsageError
from guardrail.foreign_errors import log
from guardrail.outcome import InfeasibleReason
from guardrail.sampling.models import resolve_model
from guardrail.sampling.probe import PROMPT
from guardrail.sampling.prober import probe
from guardrail.specs import EstimatorSpec
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import SamplingPlan
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

MODEL = ScriptedChat(script={"What is the capital of France?": ["Paris", "Paris", "Lyon"]})
ROOT = Path(__file__).parents[2]
SCRIPTED = "python:tests.guardrail.test_doctor:MODEL"


def saved(tmp_path: Path, model: Any = MODEL, **changed: Any) -> str:
    settings = {name: changed.pop(name) for name in ("threshold", "estimator") if name in changed}
    fresh = {"made": Made(at=datetime.now(UTC).isoformat(), packages={}), **changed}
    return str(make_artifact(model, **settings).model_copy(update=fresh).save(tmp_path / "artifact.json"))


def by_check(findings: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_a_healthy_guard_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", saved(tmp_path), "--model", SCRIPTED]) == 0
    printed = capsys.readouterr().out
    assert "FAIL" not in printed
    assert "received 10 samples, 2 different" in printed
    # one prompt of one token and one word for each of eleven answers
    assert "11 calls, 11 tokens read, 11 written" in printed


def test_many_cut_off_calibration_answers_are_reported(tmp_path: Path) -> None:
    data = make_artifact(MODEL).data.model_copy(update={"n_questions": 100, "n_cut_off": 3})
    finding = by_check(examine(saved(tmp_path, data=data)))["length of answers"]
    assert (finding.status, finding.detail) == ("warn", "3 of 100 calibration answers were cut off at max_tokens = 256")
    assert "--max-tokens" in finding.fix
    data = data.model_copy(update={"n_cut_off": 2})  # up to 2 %
    finding = by_check(examine(saved(tmp_path, data=data)))["length of answers"]
    assert (finding.status, finding.detail[:8]) == ("ok", "2 of 100")
    data = data.model_copy(update={"n_cut_off": None})  # not counted
    assert "length of answers" not in by_check(examine(saved(tmp_path, data=data)))


def test_a_score_from_a_file_needs_no_judge(tmp_path: Path) -> None:
    """The way out fits the fault: nothing can be installed that computes a column of somebody's file."""
    path, spec = saved(tmp_path), EstimatorSpec(name="imported:certainty", version=1, unit="probability")
    artifact = CalibrationArtifact.load(path).model_copy(update={"estimator": spec})
    finding = by_check(examine(str(artifact.save(tmp_path / "imported.json"))))["score"]
    assert (finding.status, "threshold yourself" in finding.fix) == ("fail", True)


def test_findings_cannot_command_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "a\x1b]0;owned\x07\x9b2J\u202eb"
    findings = [Finding("answer", "warn", hostile, f"Correct {hostile}.")]
    monkeypatch.setattr("guardrail.doctor.examine", lambda *_, **__: findings)
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert printed.count(r"\x9b2J\u202eb") == 2


def test_every_check_is_made(tmp_path: Path) -> None:
    findings = list(examine(saved(tmp_path), SCRIPTED))
    assert [finding.check for finding in findings] == [
        "artifact", "threshold", "gate", "promise", "age", "score", "plan for the score",
        "judge", "model", "endpoint", "requests", "sampling", "measuring", "cost of a question",
    ]  # fmt: skip
    # The gate of `make_artifact` accepts its one calibration question.
    assert [finding.check for finding in findings if finding.status != "ok"] == ["gate"]


def test_the_promise_is_printed_and_a_gate_that_stops_nothing_in_red(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    (promise,) = promises(CalibrationArtifact.load(path))
    assert main(["doctor", path]) == 0
    printed = capsys.readouterr().out
    assert f"ok    promise: {promise}\n" in printed
    assert "warn  gate: This gate stops nothing" in printed
    assert "\x1b" not in printed  # plain text where it is not a terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["doctor", path]) == 0
    assert "\x1b[31mwarn  gate: This gate stops nothing" in capsys.readouterr().out


def test_without_a_model_only_the_artifact_is_checked(tmp_path: Path) -> None:
    findings = by_check(examine(saved(tmp_path)))
    assert (findings["model"].status, findings["model"].fix) == ("warn", "name it with --model")
    assert "sampling" not in findings


def test_a_broken_artifact_is_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(saved(tmp_path))
    path.write_text(path.read_text().replace('"alpha": 0.1', '"alpha": 0.9'))
    assert main(["doctor", str(path)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("FAIL  artifact")
    assert "modified after it was written" in printed


def test_what_would_abstain_or_be_refused_fails(tmp_path: Path) -> None:
    assert by_check(examine(saved(tmp_path, threshold=None)))["threshold"].status == "fail"
    other = by_check(examine(saved(tmp_path), ScriptedChat(name_of_model="another")))["model"]
    assert (other.status, "another" in other.detail) == ("fail", True)
    broken = by_check(examine(saved(tmp_path), ScriptedChat(default=[TimeoutError("slow")])))["sampling"]
    assert (broken.status, "TimeoutError: slow" in broken.detail) == ("fail", True)
    silent = by_check(examine(saved(tmp_path), ScriptedChat(default=["answer", ""])))["measuring"]
    assert (silent.status, "empty_answer" in silent.detail) == ("fail", True)
    unread = by_check(examine(saved(tmp_path, estimator="semantic_entropy"), MODEL))["measuring"]
    assert (unread.status, "no_logprobs" in unread.detail) == ("fail", True)
    missing = by_check(examine(saved(tmp_path), "python:no.such:thing"))["model"]
    assert (missing.status, missing.fix) == ("fail", "correct the name, set the key, or install what is named")


def test_warnings_do_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, made=Made(at="2020-01-01T00:00:00+00:00", packages={"numpy": "1.0", "no-such-package": "1"}))
    assert main(["doctor", path, "--model", SCRIPTED]) == 0
    printed = capsys.readouterr().out
    assert "warn  age" in printed
    assert "1.0 calibrated" in printed
    for ahead, said in ((0.5, "ok    age: 0 days old"), (2.04, "warn  age: made 2.0 days from now")):
        created = (datetime.now(UTC) + timedelta(days=ahead)).isoformat()
        main(["doctor", saved(tmp_path, made=Made(at=created, packages={})), "--model", SCRIPTED])
        assert said in capsys.readouterr().out
    assert "no-such-package" not in printed


def test_a_plan_that_does_not_draw_what_is_read(tmp_path: Path) -> None:
    plan = make_artifact(MODEL).plan.primary_only()
    finding = by_check(examine(saved(tmp_path, plan=plan)))["plan for the score"]
    assert (finding.status, "needs samples" in finding.detail) == ("fail", True)


class Stubborn(ScriptedChat):
    """A model that sends its own settings, like a model that is configured in its constructor."""

    own: dict[str, Any] = Field(default_factory=dict)

    def _get_invocation_params(self, stop: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {**super()._get_invocation_params(stop, **kwargs), **self.own}


@pytest.mark.parametrize(
    ("own", "status", "told"),
    [
        ({}, "ok", "11 calls"),
        ({"temperature": 0.2}, "fail", "samples are asked with temperature 0.2, the plan says 0.7"),
        ({"top_p": 1.0}, "fail", "samples are asked with top_p 1.0, the plan says 0.9"),
        ({"max_completion_tokens": 5}, "fail", "the primary answer is asked with max_completion_tokens 5, the plan"),
        ({"stop": ["!"]}, "fail", "asked with stop ('!',), the plan says ()"),
        ({"tools": [{"type": "function", "function": {"name": "pay"}}]}, "fail", "tools ['pay'], the plan says []"),
        ({"tools": ["in no known form"]}, "ok", "11 calls"),
        ({"n": 1, "seed": None}, "ok", "11 calls"),
        ({"seed": 0, "frequency_penalty": 0.5}, "warn", "frequency_penalty=0.5, seed=0, which no artifact records"),
    ],
)
def test_what_a_model_is_asked_is_compared_with_the_plan(
    tmp_path: Path, own: dict[str, Any], status: str, told: str
) -> None:
    model = Stubborn(script=MODEL.script, own=own)
    finding = by_check(examine(saved(tmp_path, model), model))["requests"]
    assert (finding.status, told in finding.detail) == (status, True), finding


def leaves() -> Any:
    """A factory of a model that ends the process."""
    sys.exit("no key")


class Leaving(ScriptedChat):
    """A model that ends the process when it is asked."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        sys.exit("no key")


def test_code_that_would_end_the_process_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", saved(tmp_path), "--model", "python:tests.guardrail.test_doctor:leaves"]) == 1
    assert "FAIL  model: SystemExit: no key" in capsys.readouterr().out
    finding = by_check(examine(saved(tmp_path, Leaving()), Leaving()))["sampling"]
    assert (finding.status, finding.detail) == ("fail", "SystemExit: no key")


OTHER = ScriptedChat(name_of_model="large", script=MODEL.script)
LARGE = "python:tests.guardrail.test_doctor:OTHER"


def saved_cascade(tmp_path: Path, *thresholds: float | None) -> str:
    """A cascade of the two models above; infeasible where no stage has a threshold."""
    stages = tuple(make_artifact(model, threshold=at) for model, at in zip((MODEL, OTHER), thresholds, strict=True))
    shares = tuple(StageShare(threshold=at, n_accepted=0 if at is None else 50, n_errors=0) for at in thresholds)
    outcome = CascadeOutcome(
        rule="lec_joint", alpha=0.1, delta=None, n=200, stages=shares, interval=None,
        reason=None if any(at is not None for at in thresholds) else InfeasibleReason.TOO_FEW_ITEMS,
    )  # fmt: skip
    cascade = CascadeArtifact(stages=stages, outcome=outcome)
    return str(cascade.save(tmp_path / "cascade.json"))


def test_a_cascade_is_checked_stage_by_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved_cascade(tmp_path, 0.5, 1.0)
    assert main(["doctor", path, "--model", SCRIPTED, "--model", LARGE]) == 0
    printed = capsys.readouterr().out
    assert "a cascade of 2 stages" in printed
    assert "threshold: answer if discrete_semantic_entropy <= 0.5 nats, then" in printed
    assert "for 10% error on average of the whole system" in printed
    for stage in ("stage 1", "stage 2"):
        for check in ("model", "requests", "sampling", "measuring"):
            assert f"ok    {stage}: {check}" in printed
    swapped = by_check(examine(path, [OTHER, MODEL]))
    assert [swapped[f"stage {i}: model"].status for i in (1, 2)] == ["fail", "fail"]
    finding = by_check(examine(path, MODEL))["model"]
    assert (finding.status, "1 given, the artifact is for 2" in finding.detail) == ("fail", True)
    assert by_check(examine(path))["stage 2: model"].status == "warn"
    assert by_check(examine(saved_cascade(tmp_path, None, None)))["threshold"].status == "fail"


def test_several_models_for_one_guard_are_too_many(tmp_path: Path) -> None:
    findings = list(examine(saved(tmp_path), [MODEL, MODEL]))
    assert (findings[-1].check, findings[-1].status) == ("model", "fail")


class Stuck(ScriptedChat):
    """An endpoint that answers every probe alike."""

    guardrail_trusted = False

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if messages[-1].content == PROMPT:
            return ChatResult(generations=[ChatGeneration(message=self._message("same", kwargs))])
        return super()._generate(messages, stop, run_manager, **kwargs)


def test_an_endpoint_that_cannot_be_believed_fails(tmp_path: Path) -> None:
    model = Stuck(script=MODEL.script)
    finding = by_check(examine(saved(tmp_path, model), model))["endpoint"]
    assert (finding.status, "were equal" in finding.detail) == ("fail", True)
    sent = r"cannot be calibrated .*`guardrail doctor --model MODEL` shows"
    with pytest.raises(GuardrailError, match=sent):  # the command works: test_without_an_artifact_the_model_is_probed
        collect_records([Question(id="q", question="q?")], model, SamplingPlan(n=3), tmp_path / "r.jsonl")


STUCK = Stuck(script=MODEL.script)


def test_the_commands_collect_from_it_without_a_probe(tmp_path: Path) -> None:
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps({"question": question}) + "\n" for question in MODEL.script))
    collect = ["collect", str(questions), "--model", "python:tests.guardrail.test_doctor:STUCK"]
    collect += ["--out", str(tmp_path / "r.jsonl")]
    refused = CliRunner().invoke(calibrate_app, collect, env={"COLUMNS": "200"})
    assert (refused.exit_code, "--set probe=off" in refused.output) == (1, True), refused.output
    collected = CliRunner().invoke(calibrate_app, [*collect, "--set", "probe=off"])
    assert collected.exit_code == 0, collected.output
    assert read_records(tmp_path / "r.jsonl").header.probe is None


class Refusing(ScriptedChat):
    """An endpoint that refuses, drops or ignores a setting; its answers to a probe vary."""

    guardrail_trusted = False
    refuses: Callable[[dict[str, Any]], Exception | None] = lambda settings: None
    longest: int = 10**6

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if (error := self.refuses(kwargs)) is not None:
            raise error
        if messages[-1].content == PROMPT:
            words = [f"word{next(NUMBERS)}" for _ in range(min(self.longest, 40))]
            return ChatResult(generations=[ChatGeneration(message=self._message(" ".join(words), kwargs))])
        return super()._generate(messages, stop, run_manager, **kwargs)


NUMBERS = itertools.count()


class BadRequestError(Exception):
    """As the SDKs raise it."""


def at_zero(text: str) -> Callable[[dict[str, Any]], Exception | None]:
    return lambda settings: BadRequestError(text) if settings.get("temperature") == 0 else None


@pytest.mark.parametrize(
    "text",
    [
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.",
        "Unsupported parameter: 'temperature' is not supported with this model.",
        "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.",
        "`temperature` is deprecated for this model.",
    ],
)
def test_a_model_that_refuses_temperature_0_is_named_with_the_way_out(tmp_path: Path, text: str) -> None:
    model = Refusing(script=MODEL.script, refuses=at_zero(text))
    findings = by_check(examine(saved(tmp_path, model), model))
    for check in ("endpoint", "sampling"):
        assert (findings[check].status, text in findings[check].detail) == ("fail", True)
        assert findings[check].fix.startswith(
            "this model only takes temperature 1: calibrate collect --temperature 1 --set to"
        )

    fixed = {"temperature": 1.0, "top_p": 1.0, "primary": "sampled"}
    plan = make_artifact(model).plan.model_copy(update=fixed)
    assert {finding.status for finding in examine(saved(tmp_path, model, plan=plan), model)} == {"ok", "warn"}


def test_other_refusals_have_their_own_way_out(tmp_path: Path) -> None:
    both = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    refused: list[tuple[Exception, str]] = [
        (BadRequestError(both), "this model takes temperature or top_p, not both: calibrate collect --set top_p=1"),
        (TypeError("Client.chat() got an unexpected keyword argument 'max_tokens'"), "its client does not know it"),
    ]
    for error, way in refused:
        model = Refusing(script=MODEL.script, refuses=lambda settings, error=error: error)
        finding = by_check(examine(saved(tmp_path, model), model))["sampling"]
        assert (finding.status, str(error) in finding.detail, way in finding.fix) == ("fail", True, True), finding
    model = Refusing(script=MODEL.script, refuses=lambda settings: BadRequestError("the prompt is too long"))
    finding = by_check(examine(saved(tmp_path, model), model))["sampling"]
    assert finding.fix == "fix the cause; until then every question abstains"  # the control: no setting is named


def test_settings_that_a_class_drops_with_a_warning_are_a_finding(tmp_path: Path) -> None:
    text = "Model 'm' uses fixed sampling defaults; the sampling parameter(s) temperature will be ignored."

    def drop(settings: dict[str, Any]) -> None:
        warnings.warn(text, UserWarning, stacklevel=1)

    model = Refusing(script=MODEL.script, refuses=drop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the probe
        finding = by_check(examine(saved(tmp_path, model), model))["requests"]
    assert (finding.status, finding.detail) == ("warn", text)
    assert finding.fix.startswith("this model only takes temperature 1")


def test_a_model_that_ignores_the_longest_answer_is_a_finding(tmp_path: Path) -> None:
    for longest, status in ((40, "warn"), (16, "ok")):
        model = Refusing(script=MODEL.script, longest=longest)
        finding = by_check(examine(saved(tmp_path, model), model))["endpoint"]
        assert (finding.status, "40 tokens where 16 were asked for" in finding.detail) == (status, status == "warn")


def test_a_plan_that_the_model_cannot_follow_is_a_finding_before_any_call(tmp_path: Path) -> None:
    model = Refusing(script=MODEL.script, refuses=at_zero("no call is made"), profile={"temperature": False})
    (*_, finding) = examine(saved(tmp_path, model), model)
    assert (finding.check, finding.status) == ("requests", "fail")
    assert (
        'takes no temperature other than 1, got 0.7. Plan with temperature=1, top_p=1, primary="sam' in finding.detail
    )


def test_judges_that_cannot_judge_fail() -> None:
    from guardrail.doctor import _compares
    from guardrail.judges import Judge, JudgeSpec, list_judges, make_judge

    class Broken(Judge):
        spec = JudgeSpec(name="broken", version=1, params={})
        answers: Any = (True, True)

        def equivalent(self, question: str, pairs: Any) -> Any:
            if isinstance(self.answers, Exception):
                raise self.answers
            return list(self.answers)

    judge = Broken()
    for answers in ((True, True), (False, False), (None, None), RuntimeError("no weights")):
        judge.answers = answers
        assert _compares(judge).status == "fail"
    for name in {"exact", "numeric", "text", "tool_call"} & set(list_judges()):
        assert _compares(make_judge(name)).status == "ok", name


def test_a_server_that_does_not_run_is_one_finding(tmp_path: Path) -> None:
    """Each further check would wait for it through all its retries, and say the same in other words."""
    gone = OpenAICompatibleChat(model="m", base_url="http://127.0.0.1:9/v1", max_retries=0)
    findings = list(examine(saved(tmp_path, gone), gone))
    assert [(finding.check, finding.fix) for finding in findings if finding.status == "fail"] == [
        ("endpoint", "no server answers at this address: start it, or correct the address, and run doctor again")
    ]
    assert "No connection to http://127.0.0.1:9" in findings[-1].detail


def test_other_weights_behind_the_same_name_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The threshold was fitted on the scores of the calibrated weights; a swapped quantisation has others."""
    with serving(Endpoint()) as endpoint:
        model = OpenAICompatibleChat(model="m", base_url=endpoint.url)
        report, _ = probe(model, SamplingPlan(logprobs=True))
        assert report is not None
        assert report.greedy is not None
        assert len(report.greedy) == 3
        other = tuple(tuple((token, value - 0.2) for token, value in answer) for answer in report.greedy)

        def weights(kept: Any) -> Finding:
            path = saved(tmp_path, model, estimator="perplexity", fingerprint=kept)
            return by_check(examine(path, model))["weights"]

        assert weights(report.greedy).status == "ok"
        found = weights(other)
        assert (found.status, found.detail) == (
            "warn", "not as at calibration: log-probabilities of greedy answers differ by 0.20 on average",
        )  # fmt: skip
        assert weights(None).detail.startswith("not compared: the calibration gave no greedy answers")
        page, _, title = weights(None).fix.removeprefix("pin the model (").rstrip(")").partition("#")
        section = (ROOT / page).read_text(encoding="utf-8").partition(f"## {title.replace('-', ' ').capitalize()}")[2]
        assert "`pin` names" in section.partition("\n## ")[0]
        for kept, said in ((report.greedy, False), (other, True)):
            caplog.clear()
            fresh = OpenAICompatibleChat(model="m", base_url=endpoint.url)
            Guardrail(model=fresh, artifact=saved(tmp_path, model, estimator="perplexity", fingerprint=kept)).assess(
                "q"
            )
            assert (
                "may not have the calibrated weights: log-probabilities of greedy answers differ" in caplog.text
            ) == said


def declared_commands() -> list[EntryPoint]:
    """Entry points of `pyproject.toml`, installed or not."""
    group = "acrc_guardrail.commands"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [EntryPoint(name, value, group) for name, value in project["entry-points"][group].items()]


@pytest.mark.parametrize("words", [["-v", "doctor"], ["doctor", "-v"]])
def test_verbose_shows_what_a_server_said(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one useful fact about a refusal, and otherwise only in a log that nobody writes."""
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(log, name, copy.copy(getattr(log, name)))
    with serving(Endpoint(mode="400")) as endpoint:
        assert main([*words, "--model", f"openai-compatible:m@{endpoint.url}"]) == 1
    assert "bad request with Bearer" in capsys.readouterr().err


def test_command_line_is_light_and_lists_its_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = declared_commands()
    monkeypatch.setattr("guardrail.__main__.entry_points", lambda group: commands)
    assert main([]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    for text in (
        "usage: guardrail [-h]",
        "doctor check an artifact, its model, judge and endpoint before they serve",
        "monitor show the monitors of a review store; 1 while an alarm is open",
        "review serve the page on which people decide what was held back",
        "serve answer an OpenAI client behind a gate: it changes one URL",
    ):
        assert text in shown
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert "or from the configuration.\n" in capsys.readouterr().out  # lines as written
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    code = (
        "import sys; from guardrail.__main__ import main; main([]); "
        "print(*({'torch', 'openai', 'starlette', 'typer'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""


# -- models by text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gpt", "names no provider"),
        ("python:json", "names no attribute"),
        ("python:no_such_module:x", "no module 'no_such_module'"),
        ("python:json:nothing", "has no 'nothing'"),
        ("python:json:dumps.x", "has no"),
        ("python:json:loads", "cannot be made without arguments (loads() missing 1 required positional argument: 's')"),
        ("python:operator:itemgetter", "cannot be made without arguments"),
        ("python:math:pi", "is a float; it must be a LangChain chat model"),
        ("no-such-provider:x", "openai-compatible:MODEL@BASE_URL"),
    ],
)
def test_texts_that_name_no_model(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        resolve_model(text)


def test_a_text_may_name_a_model_or_a_function_that_makes_one() -> None:
    assert resolve_model(SCRIPTED) is MODEL
    assert isinstance(resolve_model("python:guardrail.testing:ScriptedChat"), ScriptedChat)


@pytest.mark.parametrize(
    ("text", "package"),
    [("openai:x", "openai"), ("azure_openai:x", "openai"), ("google_genai:x", "google-genai"), ("bedrock:x", "aws")],
)
def test_without_langchain_the_packages_are_named(monkeypatch: pytest.MonkeyPatch, text: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(MissingDependencyError, match=f"pip install langchain langchain-{package}\\."):
        resolve_model(text)


def test_a_provider_that_refuses_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("langchain.chat_models", reason="langchain is not installed")
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError) as caught:
        resolve_model("openai:gpt-4o-mini")
    for part in ("'openai:gpt-4o-mini'", "OpenAIError", "OPENAI_API_KEY for openai"):
        assert part in str(caught.value)
    finding = by_check(examine(saved(tmp_path), "openai:gpt-4o-mini"))["model"]
    assert (finding.status, "set the key" in finding.fix) == ("fail", True)


def test_without_an_artifact_the_model_is_probed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", SCRIPTED]) == 0
    shown = capsys.readouterr().out  # the identity that an import names
    assert "provider scripted, model scripted can be made; no artifact is named, so it is only probed" in shown
    assert shown.startswith("probing the endpoint")  # before the wait for it, which may take a minute
    findings = list(examine(None, Stuck()))
    assert [(finding.check, finding.status) for finding in findings][:2] == [("model", "ok"), ("endpoint", "fail")]
    assert "equal" in findings[1].detail
    bare = list(examine(None, Refusing()))  # no log-probabilities: another estimator will do
    assert {finding.status for finding in bare} == {"ok", "warn"}
    assert "--score graded_disagreement" in next(finding.fix for finding in bare if finding.status == "warn")
    assert any("samples that differ: " in finding.detail for finding in bare)
    assert main(["doctor"]) == 1
    assert "name an artifact, a model to probe (--model), or both" in capsys.readouterr().err
    assert main(["doctor", "--model", "python:no.such:model"]) == 1


def test_a_command_that_cannot_be_found_leaves_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests' own package stands for one of a user's that hides ours."""
    entry = EntryPoint("serve", "tests.no_commands:SERVE", "acrc_guardrail.commands")
    monkeypatch.setattr("guardrail.__main__.entry_points", lambda group: [entry])
    assert main([]) == 2
    assert "not available: 'serve' needs tests.no_commands" in " ".join(capsys.readouterr().err.split())
    assert main(["serve"]) == 1
    assert "another package named 'tests' first" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["import not_installed_here", "raise RuntimeError", "SERVE = 'a text'", "X = 1"])
def test_a_broken_command_of_another_package_leaves_the_others(
    content: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_commands.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_commands", raising=False)
    entry = EntryPoint("extra", "broken_commands:SERVE", "acrc_guardrail.commands")
    monkeypatch.setattr("guardrail.__main__.entry_points", lambda group: [entry])
    assert main([]) == 2
    assert "extra not available: " in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])


@pytest.mark.parametrize("command", ["guardrail", "calibrate"])
def test_the_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run: Any = main if command == "guardrail" else lambda arguments: calibrate_app(arguments)
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"acrc-guardrail {version('acrc-guardrail')}\n"


# -- Scorers -----------------------------------------------------------------------------------------------------------


@scorer(version=1, higher="certain")
def sure(answer: str) -> float:
    return 0.875


@scorer(version=2, higher="certain")
def failing(answer: str) -> float:
    raise ValueError


def test_the_scorer_is_asked_once_and_its_time_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, estimator=sure.estimator)
    assert main(["doctor", path, "--model", SCRIPTED, "--scorer", "tests.guardrail.test_doctor:sure"]) == 0
    assert re.search(r"measuring: score:sure@1 = 0\.125 \(the scorer took \d+\.\d\d s\)", capsys.readouterr().out)


def test_a_missing_or_failing_scorer_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path, estimator=sure.estimator)
    findings = by_check(examine(path, SCRIPTED))
    assert findings["score"].status == "fail"
    assert "--scorer MODULE:NAME" in findings["score"].fix
    assert findings["sampling"].status == "ok"
    assert by_check(examine(path, SCRIPTED, scorer=failing))["score"].status == "fail"
    other = saved(tmp_path, estimator=failing.estimator)
    assert "judge_failed" in by_check(examine(other, SCRIPTED, scorer=failing))["measuring"].detail


def test_another_distribution_with_one_of_our_names_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def findings() -> list[Finding]:
        return [finding for finding in examine(saved(tmp_path)) if "both write" in finding.detail]

    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    for name, file, content in [
        ("acrc_guardrail", "RECORD", "calibrate/__init__.py,,\nintegrations/__init__.py,,\n"),
        ("similar", "RECORD", "my/integrations/a.py,,\nintegrations_of_mine/a.py,,\n"),
    ]:
        install(tmp_path, name, file, content)
    assert findings() == []
    install(tmp_path, "other-kit", "RECORD", "other/a.py,,\nintegrations/a.py,,\n")
    install(tmp_path, "third-kit", "top_level.txt", "calibrate\n")
    first, second = findings()
    assert (first.status, second.status) == ("warn", "warn")
    assert "'calibrate' also belongs to third-kit" in first.detail
    assert "'integrations' also belongs to other-kit" in second.detail


def install(folder: Path, name: str, file: str, content: str) -> None:
    """A distribution on the path that says so in a file of its metadata."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1\n")
    (info / file).write_text(content)
