"""``guardrail doctor``: everything a guard relies on, checked once, with a fix beside each finding."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distributions, version
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Literal

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from .artifact import Artifact, CalibrationArtifact, CascadeArtifact, CascadeOutcome, RouterArtifact, load_artifact
from .describe import answer_if, asked, nouns_of, promises, target_text, warning, why_infeasible
from .errors import GuardrailError, UsageError
from .foreign_errors import server_words
from .items.gate import gate_of
from .judges import with_majority
from .judges.base import Comparer
from .notebook import percent
from .outcome import Infeasible
from .plain_json import visible
from .sampling import call_settings
from .sampling.call_settings import LONGEST_ANSWER, STOP_STRINGS, check_settings
from .sampling.calls import SAMPLE_INDEX
from .sampling.follow_ups import SCORE, Scoring, scorer_of
from .sampling.models import resolve_model
from .sampling.native import is_native
from .sampling.probe import PROMPT, ProbeReport, inconsistent, unlike, wants_probe
from .sampling.prober import needs_probe, probe
from .sampling.sampler import Sampler
from .specs import identify
from .types import Fingerprint, SampleSet, SamplingPlan, Unmeasured
from .uncertainty import Estimator, Scorer, measure, unmet_needs
from .uncertainty.scorer import load_scorer

__all__ = ["Finding", "add_arguments", "examine", "run"]

Status = Literal["ok", "warn", "fail"]
Model = str | BaseChatModel
QUESTION = "What is the capital of France?"
OLD = 180.0
"""Days after which a calibration is worth a look."""
LONGEST = 16
"""Longest answer of the test whether a model keeps to it, in tokens; sixteen words need more."""
PROBES = 3
"""Probes of an endpoint that must give log-probabilities: in 18 replies, the provider of every fourth request goes
unnoticed once in 177 times."""
MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
RED, PLAIN = "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Name of the check.
        status: "ok", "warn" (works, but look at it) or "fail" (a guard would refuse or abstain).
        detail: The result in words.
        fix: The next step; empty for "ok".
    """

    check: str
    status: Status
    detail: str
    fix: str = ""


# -- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "artifact",
        nargs="?",
        help="calibration artifact (JSON), of a guard or of a cascade; without it only --model is probed",
    )
    parser.add_argument(
        "--model",
        "-m",
        action="append",
        help="openai-compatible:MODEL@BASE_URL, transformers:PATH_OR_ID, python:MODULE:NAME, or a LangChain name such "
        "as openai:gpt-4o-mini; without it the model is not checked. For a cascade once a stage, in order",
    )
    parser.add_argument("--scorer", help="MODULE:NAME of the scorer, for an artifact that was calibrated with one")


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and return 1 when anything failed."""
    failed = False
    if any(not name.startswith("transformers:") for name in arguments.model or ()):
        print("probing the endpoint, which takes about ten calls ...", flush=True)  # noqa: T201
    for finding in examine(arguments.artifact, arguments.model, scorer=arguments.scorer):
        failed = failed or finding.status == "fail"
        line = _shown(f"{MARKS[finding.status]}  {finding.check}: {finding.detail}")
        print(f"{RED}{line}{PLAIN}" if finding.status != "ok" and sys.stdout.isatty() else line)  # noqa: T201
        if finding.fix:
            print(_shown(f"      -> {finding.fix}"))  # noqa: T201
    return int(failed)


def _shown(text: str) -> str:
    """A line; a terminal breaks it between words, below where it begins."""
    if not sys.stdout.isatty():
        return visible(text)
    width = get_terminal_size().columns
    return fill(visible(text), width, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)


def examine(
    path: str | None,
    model: Model | Sequence[Model] | None = None,
    *,
    scorer: Scorer | str | None = None,
) -> Iterator[Finding]:
    """Check an artifact and, if a model is given, everything that needs it. Yields each finding at once.

    Args:
        path: The artifact's file, of a guard or of a cascade; None probes the models alone.
        model: A chat model, or a text that names one; for a cascade one for each stage, in order.
        scorer: The scorer, or a text that names it, for artifacts that were calibrated with one.

    Raises:
        UsageError: Neither an artifact nor a model is named.
    """
    models: list[str | BaseChatModel] = []
    if model is not None:
        models = [model] if isinstance(model, str | BaseChatModel) else list(model)
    if path is None:
        if not models:
            raise UsageError("name an artifact, a model to probe (--model), or both.")
        for alone in models:
            yield from _alone(alone)
        return
    try:
        artifact = load_artifact(path)
    except GuardrailError as error:
        yield Finding("artifact", "fail", str(error), "make one with `calibrate fit`, or copy it again")
        return
    yield from _stated(artifact)
    if isinstance(artifact, RouterArtifact):
        artifact = artifact.gates[0]  # the groups share model, plan and score
    stages = artifact.gates
    yield from _asked(artifact)
    yield _age(stages[0])
    yield from _packages(stages[0])
    if models and len(models) != len(stages):
        named = ", ".join(stage.model.model for stage in stages)
        yield Finding("model", "fail", f"{len(models)} given, the artifact is for {len(stages)}", f"name them: {named}")
        models = []
        if not isinstance(artifact, CascadeArtifact):
            return
    for number, stage in enumerate(stages, start=1):
        prefix = f"stage {number}: " if isinstance(artifact, CascadeArtifact) else ""
        for finding in _guard(stage, models[number - 1] if models else None, scorer):
            yield replace(finding, check=prefix + finding.check)


# -- the artifact -----------------------------------------------------------------------------------------------------


def _stated(artifact: Artifact) -> Iterator[Finding]:
    """The artifact's kind, its thresholds, and their promises."""
    parts = ""
    if isinstance(artifact, CascadeArtifact):
        parts = f"a cascade of {len(artifact.stages)} stages, "
    elif isinstance(artifact, RouterArtifact):
        parts = f"a router of {len(artifact.artifacts)} groups, "
    yield Finding("artifact", "ok", f"loads, {parts}digest {artifact.digest[:19]}")
    if isinstance(artifact, RouterArtifact):
        for name, part in artifact.artifacts.items():
            yield replace(_threshold(part), check=f"threshold of {name}")
            yield from (Finding(f"promise of {name}", "ok", promise) for promise in promises(part))
        return
    yield _threshold(artifact)
    if (useless := warning(artifact)) is not None:
        yield Finding("gate", "warn", useless, "calibrate with a smaller alpha, or use no gate")
    yield from (Finding("promise", "ok", promise) for promise in promises(artifact))


def _threshold(artifact: CalibrationArtifact | CascadeArtifact) -> Finding:
    outcome, more = artifact.outcome, f"calibrate with a larger alpha, more {nouns_of(artifact).asked}, or"
    if isinstance(outcome, CascadeOutcome):
        if not outcome.feasible:
            none = f"none keep the error at {outcome.alpha:g} ({why_infeasible(outcome)}), so everything is held back"
            return Finding("threshold", "fail", none, f"{more} better models")
        target = f"{target_text(outcome.alpha, certifies=outcome.certifies)} of the whole system"
    elif isinstance(outcome, Infeasible):
        none = f"none keeps the error at {outcome.alpha:g} ({outcome.reason.value}), so everything is held back"
        return Finding("threshold", "fail", none, f"{more} a better model")
    else:
        target = target_text(outcome.alpha, certifies=outcome.certifies)
    return Finding(
        "threshold", "ok", f"{', then '.join(map(answer_if, artifact.gates))}, for {target} ({outcome.rule})"
    )


def _asked(artifact: CalibrationArtifact | CascadeArtifact) -> Iterator[Finding]:
    """The share of questions that could not be measured, and of those that failed at a server."""
    of, name = asked(artifact), nouns_of(artifact).asked
    if of.measured < 1:
        unmeasured = f"{percent(1 - of.measured)} of the {name} asked could not be measured and count as held back"
        yield Finding(name, "ok", unmeasured)
    if of.failed:
        failed = f"{percent(of.failed)} of the {name} asked failed at a server, a rate limit or a time-out"
        fix = "ask them again with the same `calibrate run` or `collect`, and fit again" if of.many_failed else ""
        yield Finding(f"failed {name}", "warn" if fix else "ok", failed, fix)


def _age(artifact: CalibrationArtifact) -> Finding:
    try:
        created = datetime.fromisoformat(artifact.made.at)
        days = (datetime.now(UTC) - created).total_seconds() / 86_400
    except (TypeError, ValueError):
        return Finding("age", "warn", f"creation time {artifact.made.at!r} cannot be read", "calibrate again")
    if days < -1:  # clocks and time zones differ by less
        return Finding("age", "warn", f"made {-days:.1f} days from now, by its creation time", "compare the clocks")
    fix = f"audit it on fresh {nouns_of(artifact).asked}: `calibrate audit`" if days > OLD else ""
    return Finding("age", "warn" if fix else "ok", f"{max(days, 0):.0f} days old", fix)


def _packages(artifact: CalibrationArtifact) -> Iterator[Finding]:
    """Other versions than at calibration, and other distributions with our packages' names: files replace files."""
    for name, calibrated in artifact.made.packages.items():
        try:
            running = version(name)
        except PackageNotFoundError:
            continue
        if running != calibrated:
            fix = "scores may move: audit on fresh questions, or install the calibrated version"
            yield Finding("packages", "warn", f"{name} {running} is running, {calibrated} calibrated", fix)
    names = ("calibrate", "guardrail", "integrations")
    owners: dict[str, set[str]] = {name: set() for name in names}
    for distribution in distributions():
        # Searching the text takes a tenth of the time of `packages_distributions`, which makes a path of every file.
        files = f"\n{distribution.read_text('RECORD') or ''}"
        packages = (distribution.read_text("top_level.txt") or "").split()
        for name in names:
            if name in packages or f"\n{name}/" in files:
                owners[name].add(distribution.metadata["Name"])
    for name in names:
        if others := sorted(owner for owner in owners[name] if owner.lower() != "acrc-guardrail"):
            detail = f"{name!r} also belongs to {', '.join(others)}; both write into one folder"
            yield Finding("packages", "warn", detail, "use an environment without it, and install acrc-guardrail again")


# -- one guard --------------------------------------------------------------------------------------------------------


def _guard(artifact: CalibrationArtifact, model: Model | None, scorer: Scorer | str | None) -> Iterator[Finding]:
    """Checks of one guard, or of one stage of a cascade."""
    data, plan = artifact.data, artifact.plan
    if data.n_cut_off is not None:
        many, limit = nouns_of(artifact).many, f"max_tokens = {plan.max_tokens}"
        cut = f"{data.n_cut_off} of {data.n_questions} calibration {many} were cut off at {limit}"
        fix = "collect with a larger --max-tokens and fit again" if data.many_cut_off else ""
        yield Finding("length of answers", "warn" if fix else "ok", cut, fix)
    made = _estimator(artifact, scorer)
    estimator = None
    if isinstance(made, Finding):
        yield made
    else:
        estimator = made
        yield Finding("score", "ok", f"{estimator.name} version {estimator.version} can be made")
        yield _needs(plan, estimator)
        yield from map(_compares, filter(None, (estimator.judge, estimator.similarity)))
    if model is None:
        yield Finding("model", "warn", "not checked", "name it with --model")
        return
    chat = _made(model)
    if isinstance(chat, Finding):
        yield chat
        return
    try:
        artifact.check_model(identify(chat))
    except (Exception, SystemExit) as error:
        yield Finding("model", "fail", _describe(error), "load the calibrated model, or calibrate this one")
        return
    yield Finding("model", "ok", f"{artifact.model.model} is the calibrated one")
    yield from _support(chat)
    try:
        check_settings(chat, plan)
    except UsageError as error:
        yield Finding("requests", "fail", str(error), "calibrate again with what the model takes")
        return
    for finding in _endpoint(chat, plan, artifact):
        yield finding
        if finding.fix == NO_SERVER:  # every other check would wait for it, and say the same
            return
    yield from _longest(chat, plan)
    yield from _question(chat, artifact, estimator)


def _alone(model: Model) -> Iterator[Finding]:
    """Findings on a model without an artifact, before a calibration."""
    chat = _made(model)
    if isinstance(chat, Finding):
        yield chat
        return
    identity = identify(chat)
    named = f"provider {identity.provider}, model {identity.model}" + (
        f", revision {identity.revision}" if identity.revision else ""
    )
    yield Finding("model", "ok", f"{named} can be made; no artifact is named, so it is only probed")
    yield from _support(chat)
    plan = SamplingPlan(logprobs=True)
    yield from _endpoint(chat, plan, None)
    yield from _longest(chat, plan)


def _estimator(artifact: CalibrationArtifact, scorer: Scorer | str | None) -> Estimator | Finding:
    """The score of an artifact, or why it cannot be made."""
    scored = scorer_of(artifact.plan) is not None
    try:
        loaded = load_scorer(scorer) if scored and isinstance(scorer, str) else scorer
        return gate_of(artifact, scorer=loaded if scored and isinstance(loaded, Scorer) else None).estimator
    except Exception as error:  # loading a judge's weights or a user's module can raise anything
        fix = "install what is named, or pass the judge as an object: Guardrail(using={'judge': ...})"
        if scored:
            fix = "name the scorer: guardrail doctor ARTIFACT --scorer MODULE:NAME"
        elif artifact.estimator.name.startswith("imported:"):
            fix = "compare new scores with the threshold yourself, or fit on a score that a guard computes"
        return Finding("score", "fail", _describe(error), fix)


def _needs(plan: SamplingPlan, estimator: Estimator) -> Finding:
    """Whether the plan draws all that the estimator reads; `_requests` checks the actual calls."""
    if unmet := unmet_needs(estimator, plan):
        detail = f"{estimator.name} needs {', '.join(need for need, _ in unmet)}, which the plan does not draw"
        return Finding("plan for the score", "fail", detail, "calibrate again")
    samples = f"{plan.n} samples at temperature {plan.temperature:g}"
    drawn = f"one {plan.primary} answer and {samples}" if plan.n else "one answer"
    if plan.primary == "majority":
        drawn = f"{samples}, of which the most frequent is the answer"
    return Finding("plan for the score", "ok", f"draws what {estimator.name} needs: {drawn}")


CALL_A, CALL_B = (f'[{{"arguments":{{}},"name":"{name}"}}]' for name in ("open", "close"))
PAIRS = (
    (("Paris", "Paris"), ("Paris", "Rome")),
    (("42", "42"), ("42", "7")),
    ((CALL_A, CALL_A), (CALL_A, CALL_B)),
)
"""An equal and a different pair, as texts, numbers and tool calls: a judge needs to know only one of the kinds."""


def _compares(comparer: Comparer) -> Finding:
    """Whether a judge or a similarity tells equal from different answers."""
    role, name, start = comparer.role, comparer.spec.name, time.perf_counter()
    try:
        answers = [comparer.compare([(QUESTION, *pair) for pair in pairs]) for pairs in PAIRS]
        similarities = [tuple(math.nan if each is None else comparer.read(each) for each in both) for both in answers]
        tells = any(same > other for same, other in similarities)
    except Exception as error:  # user code may raise anything
        detail = f"{name}: {type(error).__name__}: {error}"
        return Finding(role, "fail", detail, "fix it; until then every question abstains")
    if tells:
        seconds = time.perf_counter() - start
        return Finding(role, "ok", f"{name} tells equal from different answers ({seconds:.2f} s)")
    detail = f"{name} does not tell equal from different answers: {similarities}"
    return Finding(role, "fail", detail, "check its model and revision")


# -- the model --------------------------------------------------------------------------------------------------------


def _made(model: Model) -> BaseChatModel | Finding:
    try:
        return resolve_model(model) if isinstance(model, str) else model
    except (Exception, SystemExit) as error:  # loading weights or a user's module can raise anything, sys.exit() too
        detail = f"{type(error).__name__}: {error}"
        return Finding("model", "fail", detail, "correct the name, set the key, or install what is named")


def _support(model: BaseChatModel) -> Iterator[Finding]:
    """The limits of a local model that its self-check found on loading."""
    support = getattr(model, "support", None)
    if isinstance(reason := getattr(support, "reason", None), str):
        fix = "nothing needs to be done; see docs/local-models.md for the types without limits" if reason else ""
        yield Finding("local model", "warn" if reason else "ok", str(support), fix)


NO_SERVER = "no server answers at this address: start it, or correct the address, and run doctor again"
UNLISTED = "calibrate collect --score graded_disagreement"
ROUTING = (
    "not every provider behind this address gives log-probabilities: have the router use those that do (OpenRouter: "
    "extra_body={'provider': {'require_parameters': True}}), or one alone ({'provider': {'order': ['NAME'], "
    f"'allow_fallbacks': False}}}}), or use a score without them: {UNLISTED}"
)
SAMPLED = "calibrate collect --temperature 1 --set top_p=1 --primary sampled"
_WAYS_OUT = (
    (r"No connection to|Connection ?(error|refused)|Cannot connect|ConnectError", NO_SERVER),
    (r"log_?prob", ROUTING),
    (r"temperature\W+and\W+top_p", "this model takes temperature or top_p, not both: calibrate collect --set top_p=1"),
    (
        r"temperature.*(support|only|default|deprecat|ignor|invalid)|(support|invalid|reject).*temperature",
        f"this model only takes temperature 1: {SAMPLED}; if it refuses the parameter itself, also make the model with "
        "profile={'temperature': False}",
    ),
    (
        r"keyword argument '\w+'|Extra inputs are not permitted",
        "the model's class passes this setting on and its client does not know it: guard a class that takes it "
        "(docs/langchain.md), or a subclass that does",
    ),
)
"""Patterns of the messages with which providers and their clients refuse a setting, and the way out of each."""


def _way_out(refusal: object) -> str:
    """The way out of a refusal; empty if the text is not a known refusal."""
    text = " ".join(str(refusal).split())
    return next((way for pattern, way in _WAYS_OUT if re.search(pattern, text, re.IGNORECASE)), "")


def _endpoint(model: BaseChatModel, plan: SamplingPlan, artifact: CalibrationArtifact | None) -> Iterator[Finding]:
    """The findings of a probe. Missing log-probabilities only warn if no artifact binds the plan to them."""
    if not needs_probe(model) or not wants_probe(plan):
        yield Finding("endpoint", "ok", "none: the model samples here, or the plan draws nothing that needs a probe")
        return
    report, probes = _probed(model, plan)
    if (problem := report.problem(plan)) is not None:
        reason, fault = problem
        unneeded = reason is Unmeasured.NO_LOGPROBS and artifact is None
        fix = f"use a score without them: {UNLISTED}" if unneeded else _way_out(f"{report.said} {report.failed}")
        if report.lacking:
            lacking, replies = report.lacking
            fault, fix = inconsistent(lacking, probes * replies), ROUTING
        server_said = f". The server says: {report.said}" if report.said else ""
        fix = fix or "fix the server; until then every answer is held back"
        yield Finding("endpoint", "warn" if unneeded else "fail", f"{fault}{server_said}", fix)
        if not unneeded:
            return
    yield Finding("endpoint", "ok", "; ".join(report.lines()))
    if report.n is False and plan.n:
        fix = "nothing needs to be done; a server that honours n would read the prompt once"
        yield Finding("endpoint", "warn", f"n is ignored, so a question costs {plan.n + 1} calls", fix)
    if plan.logprobs and report.basis == "unknown":
        fix = "see the server's documentation; scores of calibration and run time agree in any case"
        yield Finding("endpoint", "warn", "whether log-probabilities are before or after temperature is not known", fix)
    if artifact is not None:
        yield _weights(artifact.fingerprint, report.greedy)


def _probed(model: BaseChatModel, plan: SamplingPlan) -> tuple[ProbeReport, int]:
    """The report of the last probe, and the number of probes: a router may send few requests to a provider."""
    probes = 0
    while True:
        report, _ = probe(model, plan, again=True)
        probes += 1
        assert report is not None, "needs a probe"
        if probes == PROBES or not plan.logprobs or report.problem(plan) is not None:
            return report, probes


def _weights(calibrated: Fingerprint | None, now: Fingerprint | None) -> Finding:
    """Whether the endpoint still has the calibrated weights, as far as greedy answers show."""
    if calibrated is None or now is None:
        whose = "the calibration" if calibrated is None else "this endpoint"
        unseen = f"not compared: {whose} gave no greedy answers with log-probabilities. Other weights go unnoticed here"
        pin = "pin the model (docs/gateway.md#a-model-that-changes-behind-its-name)"
        return Finding("weights", "ok" if calibrated is None else "warn", unseen, pin)
    if difference := unlike(calibrated, now):
        fix = (
            "ask again while the server is idle; if it stays, the model, its quantisation or its template was changed: "
            "audit on fresh questions (`calibrate audit`), or calibrate again"
        )
        return Finding("weights", "warn", f"not as at calibration: {difference}", fix)
    return Finding("weights", "ok", f"{len(now)} greedy answers are as at calibration, within the noise of a server")


def _longest(model: BaseChatModel, plan: SamplingPlan) -> Iterator[Finding]:
    """Whether the model keeps to the longest answer of a call."""
    if not needs_probe(model) or is_native(model) or not wants_probe(plan):
        return
    primary: Literal["greedy", "sampled"] = "greedy" if plan.primary == "greedy" else "sampled"
    short = SamplingPlan(
        n=0, max_tokens=LONGEST, primary=primary, temperature=plan.temperature, top_p=plan.top_p, cut_off="measure"
    )
    drawn = Sampler(model, short, callbacks=[]).draw([[HumanMessage(PROMPT)]])[0]
    if drawn.problem is None and drawn.cost.output_tokens > LONGEST:
        excess = f"{drawn.cost.output_tokens} tokens where {LONGEST} were asked for: the model ignores max_tokens"
        fix = "set the longest answer in the model itself, or bound its cost otherwise"
        yield Finding("endpoint", "warn", excess, fix)


# -- one question -----------------------------------------------------------------------------------------------------


def _question(model: BaseChatModel, artifact: CalibrationArtifact, estimator: Estimator | None) -> Iterator[Finding]:
    """Ask one question by the plan: is the reply complete, can it be measured, what does it cost?"""
    plan, prompt, recorder = artifact.plan, artifact.prompt, CallRecorder()
    options = {label: f"option {label}" for label in plan.options} if plan.options is not None else None
    messages = prompt.messages(QUESTION, options, {name: f"({name})" for name in prompt.slots})
    scoring = Scoring.of([] if estimator is None else estimator.scorers, prompt)
    # A scorer that could not be loaded is a finding already; the rest of the plan is checked without it.
    follow_ups = tuple(name for name in plan.follow_ups if estimator or not name.startswith(SCORE))
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            sampler = Sampler(model, plan.model_copy(update={"follow_ups": follow_ups}), [recorder], scoring=scoring)
            drawn = sampler.draw([messages])[0]
            drawn = with_majority(drawn) if plan.primary == "majority" else drawn
    except (Exception, SystemExit) as error:
        yield Finding("sampling", "fail", _describe(error), "use a model that can do what the plan asks for")
        return
    yield from _requests(model, plan, recorder)
    dropped = {str(warning.message): fix for warning in warned if (fix := _way_out(warning.message))}
    for text, fix in dropped.items():  # Gemini's and Bedrock's classes warn and leave the setting out
        yield Finding("requests", "warn", text, fix)
    if drawn.problem is not None:
        server_said = server_words(recorder.error)
        fix = _way_out(recorder.error) or "fix the cause; until then every question abstains"
        quoted = f". The server says: {server_said}" if server_said else ""
        yield Finding("sampling", "fail", f"{drawn.problem.value}: {drawn.problem_detail}{quoted}", fix)
    else:
        distinct = len({(sample.text, str(sample.tool_calls)) for sample in drawn.samples})
        samples = f"{len(drawn.samples)} samples, {distinct} different" if plan.n else "the primary answer"
        yield Finding("sampling", "ok", f"received {samples}")
        if estimator is not None:
            yield _measured(drawn, estimator, plan)
    if (cost := drawn.cost).calls:  # otherwise no call was answered
        tokens = f"{cost.input_tokens} tokens read, {cost.output_tokens} written"
        detail = f"{cost.calls} calls, {tokens}, {cost.seconds:.2f} s (measured on one question)"
        yield Finding("cost of a question", "ok", detail)


def _measured(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> Finding:
    uncertainty = measure(drawn, estimator, plan)
    if uncertainty.value is None:
        detail = f"{uncertainty.reason}: {uncertainty.detail}"
        return Finding("measuring", "fail", detail, "fix the cause; until then every question abstains")
    reply = drawn.follow_ups.get(scorer_of(plan) or "", ())
    taken = f" (the scorer took {reply[0].cost.seconds:.2f} s)" if reply else ""
    return Finding("measuring", "ok", f"{estimator.name} = {uncertainty.value:.4g}{taken}")


def _describe(error: BaseException) -> str:
    """An error as text; errors of other libraries begin with the name of their type."""
    return str(error) if isinstance(error, GuardrailError) else f"{type(error).__name__}: {error}"


# -- the settings of the actual calls ---------------------------------------------------------------------------------
# LangChain passes a callback the settings of each call after the model has merged its own into them. How the server
# responds to them is checked by the probe (`guardrail.sampling.probe`).

SHAPING = (call_settings.SHAPING - {"parallel_tool_calls"}) | {"n", "seed"}
"""Settings of a model that change how answers are drawn and that no artifact records.

The plan fixes ``n`` and ``seed``, but a model with its own values would spoil the samples. ``parallel_tool_calls``
comes with the tools, which are compared.
"""


class CallRecorder(BaseCallbackHandler):
    """Records the settings of each answer's call, by the number of the sample (-1: the primary answer)."""

    def __init__(self) -> None:
        self.calls: dict[int, dict[str, Any]] = {}
        self.error: BaseException | str = ""

    def on_chat_model_start(self, serialized: Any, messages: Any, **details: Any) -> None:
        """Record one call; follow-up questions are ignored."""
        index = (details.get("metadata") or {}).get(SAMPLE_INDEX)
        if index is None or (index < 0 and details.get("name") != "guardrail_primary"):
            return
        self.calls[index] = dict(details.get("invocation_params") or {})

    def on_llm_error(self, error: BaseException, **details: Any) -> None:
        """Keep the first error."""
        self.error = self.error or error


def _requests(model: BaseChatModel, plan: SamplingPlan, recorder: CallRecorder) -> Iterator[Finding]:
    """Whether the calls had the plan's settings."""
    # Several samples differ in the same way.
    wrong = dict.fromkeys(text for each in sorted(recorder.calls.items()) for text in _differences(*each, plan))
    if wrong:
        yield Finding("requests", "fail", "; ".join(wrong), "use a model that takes the settings of each call")
    elif recorder.calls:
        yield Finding("requests", "ok", f"{len(recorder.calls)} calls, with the plan's settings wherever they name one")
    elif is_native(model):
        yield Finding("requests", "ok", f"{type(model).__name__} draws whole sample sets and is handed the plan itself")
    if settings := _own_settings(model, recorder, plan):
        listed = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        fix = "give the model what it had when the calibration answers were collected"
        yield Finding("requests", "warn", f"the model brings {listed}, which no artifact records", fix)


def _differences(index: int, sent: dict[str, Any], plan: SamplingPlan) -> Iterator[str]:
    """Differences between a call and the plan, as text. Settings that the call does not name are not compared."""
    subject = "samples are" if index >= 0 else "the primary answer is"
    sampled = index >= 0 or plan.primary == "sampled"
    planned: dict[str, Any] = (
        {"temperature": plan.temperature, "top_p": plan.top_p} if sampled else {"temperature": 0.0}
    )
    planned |= dict.fromkeys(LONGEST_ANSWER, plan.max_tokens)
    for name, value in planned.items():
        if sent.get(name) is not None and sent[name] != value:
            yield f"{subject} asked with {name} {sent[name]!r}, the plan says {value!r}"
    if (stop := tuple(sent.get("stop") or ())) != plan.stop:
        yield f"{subject} asked with stop {stop!r}, the plan says {plan.stop!r}"
    bound = [_tool_name(tool) for tool in sent.get("tools") or ()]
    planned_tools = list(plan.bindings.tool_names) if plan.bindings else []
    if None not in bound and sorted(map(str, bound)) != sorted(planned_tools):
        yield f"{subject} asked with the tools {bound}, the plan says {planned_tools}"


def _own_settings(model: BaseChatModel, recorder: CallRecorder, plan: SamplingPlan) -> dict[str, Any]:
    """Settings of the model itself, beyond the plan's, that change how answers are drawn."""
    settings = {name: getattr(model, name, None) for name in SHAPING}
    # Seeds that differ are those that the guard sent, one for each sample; a seed of the model's own is always the
    # same.
    drawn = {"seed"} if len({call.get("seed") for call in recorder.calls.values()}) > 1 else set()
    settings |= {n: value for call in recorder.calls.values() for n, value in call.items() if n in SHAPING - drawn}
    if not plan.stop:
        settings |= {name: getattr(model, name, None) for name in STOP_STRINGS}
    if settings["n"] == 1:
        del settings["n"]
    return {
        name: settings[name]
        for name in sorted(settings)
        if (settings[name] or settings[name] == 0) and not callable(settings[name])
    }


def _tool_name(tool: Any) -> str | None:
    """Name of a tool in one of the usual forms; None in any other."""
    described = tool.get("function", tool) if isinstance(tool, dict) else {}
    name = described.get("name") if isinstance(described, dict) else None
    return name if isinstance(name, str) else None
