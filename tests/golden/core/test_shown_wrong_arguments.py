"""Wrong arguments and files with the messages that they give, artifacts in words, and tables of settings and errors."""

from __future__ import annotations

import copy
import json
import os
import pickle
import pkgutil
import socket
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import BaseModel

import guardrail
from guardrail import AbstainedError, Guardrail, SafetySwitch, UnmeasuredError, make_judge
from guardrail.artifact import (
    CalibrationArtifact,
    CalibrationScores,
    CascadeArtifact,
    CascadeOutcome,
    DataFingerprint,
    EstimatorChoice,
    Looks,
    Reach,
    Segments,
    Selection,
    StageShare,
)
from guardrail.bindings import binding_settings, bindings_for, json_format, native_settings, read_bindings
from guardrail.call_settings import (
    TABLE,
    SettingRole,
    carried,
    check_settings,
    register_settings,
    setting_names,
    takes_temperature,
)
from guardrail.errors import (
    ArtifactMismatchError,
    UnreadableReplyError,
    UsageError,
    describe_error,
    did_you_mean,
    load_entry_point,
    refuse_unknown,
    reply_facts,
    require,
)
from guardrail.files import Persisted, check_version
from guardrail.gate import accepts, risk_coverage
from guardrail.guard.comparability import unlike_plan, unlike_served
from guardrail.guard.record_lines import RecordLines
from guardrail.models import import_named, resolve_model
from guardrail.monitor import Alarm
from guardrail.outcome import (
    Diagnostics,
    Feasible,
    Infeasible,
    InfeasibleReason,
    LabelsNeeded,
    Price,
    Terms,
    nothing_stopped,
    promise_lines,
    stated,
    target_text,
)
from guardrail.plain_json import canonical_json, json_fault, pack, spelled, text_fault, too_deep, unpack, visible
from guardrail.prompting import PromptWrapping, conversation_text, normal_form, prompt_content, role_of, turns_of
from guardrail.sampling.draws import Draws
from guardrail.specs import CorrectnessSpec, EstimatorSpec, JudgeSpec, ModelIdentity, identify
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import (
    Cost,
    OptionScores,
    Sample,
    SampleSet,
    SamplingPlan,
    ToolCall,
    Uncertainty,
    Unmeasured,
    canonical_calls,
    plain_json,
)
from guardrail.uncertainty import make_estimator
from tests.golden.core.rendering import error_of, json_lines, listed
from tests.golden.core.test_shown_verdicts import clean
from tests.golden.shown import same

MODEL = ScriptedChat(script={"sure?": ["Paris"]})
ARTIFACT = make_artifact(MODEL, threshold=0.5, n=4)


def refusals(name: str, calls: dict[str, Callable[[], object]], *replaced: tuple[str, str]) -> None:
    text = listed((title, error_of(call)) for title, call in calls.items())
    for before, after in replaced:
        text = text.replace(before, after)
    same(name, clean(text))


class Named(BaseChatModel):
    """A chat model with a field for its name, which may be empty."""

    model_name: str = ""

    @property
    def _llm_type(self) -> str:
        return "named"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("x"))])

    def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
        return {}


class Identified(Named):
    def guardrail_identity(self) -> Any:
        return "gpt"


def guarded(**settings: Any) -> Guardrail:
    return Guardrail(**{"model": MODEL, "artifact": ARTIFACT, **settings})


def test_wrong_settings_of_a_guard(tmp_path: Path) -> None:
    def changed(name: str, value: Any) -> object:
        guard = guarded()
        setattr(guard, name, value)
        return "changed"

    other = ScriptedChat(name_of_model="other")
    scored = ARTIFACT.model_copy(update={"calibration": CalibrationScores(uncertainty=(0.0, 1.0), error=(0, 1))})
    switch, ten = SafetySwitch("stricter", threshold=0.7), make_artifact(MODEL, threshold=0.5)
    refusals(
        "core/wrong_settings.txt",
        {
            "a misspelt setting": lambda: guarded(on_abstein="raise"),
            "an unknown setting": lambda: guarded(temperature=1),
            "another model": lambda: guarded(model=other),
            "no model": lambda: Guardrail(artifact=ARTIFACT),  # type: ignore[call-arg]
            "a model that names no provider": lambda: guarded(model="gpt"),
            "a model that is not there": lambda: guarded(model="python:tests.golden.shown:chat"),
            "a number as model": lambda: guarded(model=5),
            "no artifact": lambda: guarded(artifact=tmp_path / "missing.json"),
            "a dict as artifact": lambda: error_of(lambda: guarded(artifact={"model": 5})).partition(":")[0],
            "on_abstain misspelt": lambda: guarded(on_abstain="mesage"),
            "on_abstain of a number": lambda: guarded(on_abstain=5),
            "on_abstain of a text": lambda: guarded(on_abstain="sorry"),
            "on_abstain of a model that is not there": lambda: guarded(on_abstain="python:tests.golden.shown:chat"),
            "abstain_message of a number": lambda: error_of(lambda: guarded(abstain_message=5)).partition(":")[0],
            "early_stopping": lambda: guarded(early_stopping="yes"),
            "probe": lambda: guarded(probe="on"),
            "turns": lambda: guarded(turns="allow"),
            "mode": lambda: guarded(mode="watch"),
            "remember below 0": lambda: guarded(remember=-1),
            "remember for ever": lambda: guarded(remember=float("inf")),
            "remember of True": lambda: guarded(remember=True),
            "remember of a text": lambda: guarded(remember="1h"),
            "max_concurrency of 0": lambda: guarded(max_concurrency=0),
            "observe_rate above 1": lambda: guarded(observe_rate=1.5),
            "streaming": lambda: guarded(disable_streaming=False),
            "a cache": lambda: guarded(cache=True),
            "segment of an async function": lambda: error_of(lambda: guarded(segment=later)).partition("<")[0],
            "another judge": lambda: guarded(judge=make_judge("exact")),
            "a similarity": lambda: guarded(similarity=make_judge("exact")),
            "changed later": lambda: changed("on_abstain", "raise"),
            "cache changed later": lambda: changed("cache", False),
            "tags changed later": lambda: changed("tags", ["x"]),
            "a copy": lambda: guarded().model_copy(update={"on_abstain": "raise"}).on_abstain,
            "the same copy": lambda: guarded().model_copy(update={"on_abstain": "message"}).on_abstain,
            "a wrong copy": lambda: guarded().model_copy(update={"turns": "allow"}),
            "a switch": lambda: guarded(artifact=scored, switch=switch)._llm_type,
            "a vote with follow-ups": lambda: SamplingPlan(primary="majority", follow_ups=("p_true",)),
            "candidates with early stopping": lambda: guarded(artifact=ten, on_abstain=Candidates()),
            "scores with early stopping": lambda: guarded(artifact=ten, on_verdict=Comparing()),
            "scores in full": lambda: guarded(artifact=ten, on_verdict=Comparing(), early_stopping="off")._llm_type,
        },
        (str(tmp_path), "FOLDER"),
    )


async def later(messages: Any) -> str:
    return "x"


class Candidates:
    class candidates:  # noqa: N801
        needs_samples = True

    def __call__(self, verdict: Any) -> str:
        return "x"


class Comparing:
    needs_scores = True

    def __call__(self, verdict: Any, messages: Any) -> None: ...

    def admit(self, artifact: Any) -> None: ...


def test_wrong_values() -> None:
    refusals(
        "core/wrong_values.txt",
        {
            "n below 0": lambda: SamplingPlan(n=-1),
            "a temperature below 0": lambda: SamplingPlan(temperature=-1),
            "an infinite temperature": lambda: SamplingPlan(temperature=float("inf")),
            "samples at temperature 0": lambda: SamplingPlan(temperature=0),
            "no samples at temperature 0": lambda: SamplingPlan(n=0, temperature=0).temperature,
            "a sampled answer at temperature 0": lambda: SamplingPlan(n=0, temperature=0, primary="sampled"),
            "top_p of 0": lambda: SamplingPlan(top_p=0),
            "top_p above 1": lambda: SamplingPlan(top_p=1.1),
            "no tokens": lambda: SamplingPlan(max_tokens=0),
            "an empty stop string": lambda: SamplingPlan(stop=("",)),
            "a token below 0": lambda: SamplingPlan(stop_token_ids=(-1,)),
            "one option": lambda: SamplingPlan(options=("A",)),
            "equal options": lambda: SamplingPlan(options=("A", "A")),
            "unanimous at 1": lambda: SamplingPlan(unanimous_at=1),
            "unanimous at n": lambda: SamplingPlan(n=3, unanimous_at=3),
            "a vote of one": lambda: SamplingPlan(n=1, primary="majority"),
            "an adaptive vote": lambda: SamplingPlan(primary="majority", unanimous_at=3),
            "an unknown setting": lambda: SamplingPlan(temprature=1),  # type: ignore[call-arg]
            "the primary answer only": lambda: [
                SamplingPlan(follow_ups=("a",)).primary_only(),
                SamplingPlan(n=3, primary="majority").primary_only().n,
            ],
            "stored": lambda: SamplingPlan(primary="sampled", stop_token_ids=(1,)).model_dump(),
            "the default": lambda: SamplingPlan().model_dump(),
            "tokens alone": lambda: Sample(text="x", tokens=("x",)),
            "two tokens, one number": lambda: Sample(text="x", tokens=("x", "y"), logprobs=(0.0,)),
            "bytes of two": lambda: Sample(text="x", tokens=("x",), logprobs=(0.0,), token_bytes=("00", "01")),
            "a positive log-probability": lambda: Sample(text="x", tokens=("x",), logprobs=(0.1,)),
            "rounded": lambda: Sample(text="x", tokens=("x",), logprobs=(1e-7,)).logprobs,
            "not a number": lambda: Sample(text="x", tokens=("x",), logprobs=(float("nan"),)),
            "judged part": lambda: (
                Sample(
                    text="so", tokens=("so",), logprobs=(0.0,), tool_calls=(ToolCall(name="a", arguments={}),)
                ).judged_part
            ),
            "one option score": lambda: OptionScores(labels=("A",), loglikelihoods=(0.0,)),
            "two labels, one score": lambda: OptionScores(labels=("A", "B"), loglikelihoods=(0.0,)),
            "an infinite score": lambda: OptionScores(labels=("A", "B"), loglikelihoods=(0.0, float("-inf"))),
            "options": lambda: [
                (own := OptionScores(labels=("A", "B", "C"), loglikelihoods=(-1, -0.5, -0.5))).best,
                [round(each, 6) for each in own.probabilities],
                own.shares()[0][0],
            ],
            "neither value nor reason": lambda: Uncertainty(value=None, unit="nats", estimator="x"),
            "value and reason": lambda: Uncertainty(value=1, unit="nats", estimator="x", reason=Unmeasured.REFUSED),
            "an infinite uncertainty": lambda: Uncertainty(value=float("inf"), unit="nats", estimator="x"),
            "an unknown unit": lambda: Uncertainty(value=1, unit="bits", estimator="x"),
            "a bound of before": lambda: Uncertainty.from_stored(
                {"value": 1, "unit": "nats", "estimator": "x", "detail": "settled by 3", "later": 1}
            ),
            "no bound": lambda: Uncertainty.from_stored({"value": 1, "unit": "nats", "estimator": "x"}).model_dump(),
            "a bound": lambda: Uncertainty(value=1, unit="nats", estimator="x", is_bound=True, first=2).model_dump(),
            "measured": lambda: Uncertainty(value=1, unit="nats", estimator="x").measured,
            "costs": lambda: (
                Cost(calls=1, input_tokens=2, output_tokens=3, seconds=0.5, saved=4) + Cost(calls=10, saved=1)
            ),
            "a changed value": lambda: setattr(Cost(), "calls", 5),
            "depends on the question": lambda: [
                reason.value for reason in Unmeasured if not reason.depends_on_question
            ],
            "visible": lambda: [
                Sample(text=text).comparable
                for text in (
                    " a ",
                    "\u200b",
                    "\u3164",
                    "\u2800x",
                    "\ufdd0",
                    "\U000e0001",
                    "\u0301",
                    "\U0001f5fc",
                    "\ufffe",
                    "~",
                )
            ],
            "canonical": lambda: canonical_calls(
                [ToolCall(name="a", arguments={"b": 1.0, "a": (1.5, {2: None}), "s": "1"})]
            ),
            "plain": lambda: plain_json({1: (2.0, [3.5, True])}),
            "stored sets": lambda: SampleSet(question="q", primary=None).model_dump(),
            "a choice without tools": lambda: guardrail.Bindings(tool_choice="x"),
            "a deterministic judge": lambda: [
                JudgeSpec(name="a", version=1, params={}) == 5,
                JudgeSpec(name="a", version=1, params={"revision": "sha256:1", "model": "b"})
                == JudgeSpec(name="a", version=1, params={"revision": "sha256:1", "model": "c"}),
                JudgeSpec(name="a", version=1, params={"model": "b"})
                == JudgeSpec(name="a", version=1, params={"model": "c"}),
            ],
            "an unhashable spec": lambda: hash(JudgeSpec(name="a", version=1, params={})),
            "the scale": lambda: [
                EstimatorSpec(name=name, version=1, unit="nats", params={"scale": [1, 2]}).scale
                for name in ("two_stage", "other")
            ],
            "an unknown attribute": lambda: guardrail.nothing,
            "public names": lambda: [
                name
                for name in dir(guardrail)
                if name[0] != "_" and name not in guardrail.__all__ and name in ("errors", "types", "guard")
            ],
            "a part of the package": lambda: guardrail.errors.__name__,
            "correctness": lambda: CorrectnessSpec(name="a", version=1),
        },
    )


# -- Artifacts ---------------------------------------------------------------------------------------------------------


def test_artifacts_that_cannot_be_read(tmp_path: Path) -> None:
    saved = ARTIFACT.save(tmp_path / "artifact.json")
    content = json.loads(saved.read_text())

    def read(
        change: Callable[[dict[str, Any]], Any] = lambda own: own, *, sign: bool = False, text: str | None = None
    ) -> object:
        own = json.loads(json.dumps(content))
        changed = change(own) or own
        if sign:
            from guardrail.files import _digest

            changed["digest"] = _digest({name: value for name, value in changed.items() if name != "digest"})
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(changed) if text is None else text)
        return CalibrationArtifact.load(path)

    def put(**fields: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda own: own.update(fields)

    whole = json.dumps(content)
    deep = '{"schema_version": 1, "x": ' + "[" * 200 + "]" * 200 + "}"
    older = {name: value for name, value in content.items() if name not in ("turns", "choice", "selection")}
    refusals(
        "core/artifact_files.txt",
        {
            "unchanged": lambda: read() == ARTIFACT,
            "missing": lambda: CalibrationArtifact.load(tmp_path / "missing.json"),
            "a folder": lambda: CalibrationArtifact.load(tmp_path),
            "empty": lambda: read(text=""),
            "truncated": lambda: read(text=whole[: len(whole) // 2]),
            "a list": lambda: read(text="[]"),
            "another object": lambda: read(text='{"a": 1}'),
            "bytes": lambda: [
                (tmp_path / "b.json").write_bytes(b"\xff\xfe"),
                CalibrationArtifact.load(tmp_path / "b.json"),
            ],
            "too deep": lambda: read(text=deep),
            "thousands of brackets": lambda: error_of(lambda: read(text="[" * 100_000)).partition(" (")[0],
            "not a number": lambda: read(text=whole.replace('"alpha": 0.1', '"alpha": NaN', 1)),
            "half a pair": lambda: read(text=whole.replace('"name": "none"', '"name": "\\ud83d"', 1)),
            "a version of tomorrow": lambda: read(put(schema_version=9)),
            "a version of no number": lambda: read(put(schema_version="2")),
            "version 0": lambda: read(put(schema_version=0)),
            "without a digest": lambda: read(lambda own: {k: v for k, v in own.items() if k != "digest"}),
            "another threshold": lambda: clean(
                error_of(lambda: read(lambda own: own["outcome"].update(threshold=0.9)))
            ),
            "another threshold, signed": lambda: read(lambda own: own["outcome"].update(threshold=0.9), sign=True),
            "a wrong field": lambda: read(put(outcome=5), sign=True),
            "a missing field": lambda: read(lambda own: own.pop("plan") and None, sign=True),
            "a later field": lambda: read(put(later=1), sign=True).content["later"],  # type: ignore[attr-defined]
            "an older file": lambda: read(lambda own: {**older, "schema_version": 1}, sign=True).turns,  # type: ignore[attr-defined]
            "parts without a version": lambda: read(put(schema_version=3), sign=True),
            "a cascade": lambda: CascadeArtifact.load(saved),
            "saved in a folder": lambda: ARTIFACT.save(tmp_path),
            "a version of a file": lambda: check_version(7, 1, "the file x", "do without it"),
            "of the same version": lambda: check_version(1, 1, "x", "y"),
            "of no version": lambda: check_version(None, 1, "x", "y"),
            "of a text": lambda: check_version("1", 1, "the file x", "do without it"),
            "persisted": lambda: Persisted().digest[:20],
        },
        (str(tmp_path), "FOLDER"),
    )


def outcome(**changes: Any) -> Feasible:
    figures = Diagnostics(
        base_error=0.3, auroc=0.8, zero_error_floor=22, max_acceptance=0.78, smallest_feasible_alpha=0.05
    )
    fields: dict[str, Any] = {
        "rule": "acrc",
        "alpha": 0.1,
        "delta": None,
        "n": 200,
        "guarantee": "At most 10 % of the answers are wrong, on average.",
        "diagnostics": figures,
        "certifies": False,
        "threshold": 0.4,
        "n_accepted": 100,
        "n_errors": 7,
        "interval": (0.029, 0.139),
        "tie_block": 3,
    }
    return Feasible(**{**fields, **changes})


def infeasible(**changes: Any) -> Infeasible:
    fields = outcome().model_dump(include={"rule", "alpha", "delta", "n", "guarantee", "certifies"})
    figures = Diagnostics(
        base_error=0.3, auroc=None, zero_error_floor=None, max_acceptance=0.78, smallest_feasible_alpha=None
    )
    reason = {"reason": InfeasibleReason.RISK_NEVER_LOW_ENOUGH, "detail": "no prefix is good."}
    return Infeasible(**{**fields, "diagnostics": figures, **reason, **changes})


CERTIFIED = outcome(rule="certified", delta=0.1, certifies=True, n_accepted=60, n_errors=1, threshold=0.2)
SCORES = CalibrationScores(uncertainty=tuple(place / 200 for place in range(200)), error=(0,) * 140 + (1,) * 60)


def fitted(**changes: Any) -> CalibrationArtifact:
    data = DataFingerprint(
        name="questions.jsonl", sha256="00", n_questions=210, n_used=200, n_unmeasured=6, n_unlabelled=4, n_cut_off=5
    )
    base = ARTIFACT.model_copy(
        update={"outcome": outcome(), "certificate": CERTIFIED, "calibration": SCORES, "data": data, **changes}
    )
    return CalibrationArtifact.model_validate(base.model_dump())


def imported(stored: str, column: str = "score") -> EstimatorSpec:
    return EstimatorSpec(
        name="imported:mine", version=1, unit="probability", params={"stored": stored, "column": column}
    )


def test_artifacts_in_words() -> None:
    reach = Reach(estimator="a", share=0.5, cut=0.5, n_pool=400, n_within=200, n=200, seed=1, fixed_beforehand=True)
    looks = Looks(schedule=(100, 200), look=2)
    selection = Selection(fits=3, others=0.05, fit="f", family="g")
    declared = Selection(fits=1, part=0.5, declared=("a", "b"), fit="f", family="g")
    scored = EstimatorSpec(name="score:rating@1", version=1, unit="probability", params={"higher": "certain"})
    made = {
        "on average": fitted(),
        "certified": fitted(outcome=CERTIFIED),
        "infeasible": fitted(outcome=infeasible(), certificate=infeasible(rule="certified", delta=0.1, certifies=True)),
        "stops nothing": fitted(outcome=outcome(n_accepted=200, n_errors=60, threshold=1.0)),
        "reversed": fitted(outcome=outcome(diagnostics=outcome().diagnostics.model_copy(update={"auroc": 0.2}))),
        "within reach": fitted(reach=reach),
        "a second look": fitted(outcome=CERTIFIED, looks=looks),
        "a third fit": fitted(outcome=CERTIFIED, selection=selection),
        "declared": fitted(
            outcome=CERTIFIED, selection=declared, looks=Looks(schedule=(50, 100), look=1, parts=(0.2, 0.8))
        ),
        "an older rule": fitted(outcome=outcome(rule="mine", certifies=None)),
        "an older certificate": fitted(outcome=CERTIFIED.model_copy(update={"certifies": None})),
        "priced": fitted(outcome=CERTIFIED, price=Price(average=0.7, labels=LabelsNeeded(n=900, verdict="enough"))),
        "imported": fitted(estimator=imported("value")),
        "imported confidence": fitted(estimator=imported("1 - value")),
        "imported, negated": fitted(estimator=imported("-value")),
        "a scorer": fitted(estimator=scored),
        "a scorer in nats": fitted(estimator=scored.model_copy(update={"unit": "nats"})),
        "a risk": fitted(estimator=scored.model_copy(update={"params": {"higher": "uncertain"}})),
    }
    blocks = []
    for name, artifact in made.items():
        facts = [
            artifact.certifies,
            artifact.stops_nothing,
            artifact.acceptance,
            artifact.n_accepted,
            artifact.n_errors,
            round(artifact.confidence(0.1), 6),
            artifact.n_items,
            len(artifact.answer_scores),
            artifact.threshold,
        ]
        blocks.append(f"== {name}\n{artifact}\n{facts}\n{artifact._repr_html_()}")
    segments = Segments(
        outcomes={"a": CERTIFIED, "b": infeasible()}, delta=0.1, share="each", unknown="others", min_labels=5
    )
    split = SCORES.model_copy(update={"segment": ("a",) * 100 + ("b",) * 50 + (None,) * 50})
    by_segment = fitted(segments=segments, calibration=split)
    blocks.append(
        f"== segments\n{by_segment}\n{by_segment.outcome_in('a').rule} {by_segment.outcome_in('x').rule} "
        f"{by_segment.certifies} {by_segment.in_segment('a').n_items} {by_segment.in_segment(None).lineage != ()}"
    )
    together = fitted(segments=segments.model_copy(update={"share": "together"}), calibration=split)
    blocks.append(f"== together\n{together.promises[0]}")
    blocks += [f"{each!r}\n{each._repr_html_()}" for each in (outcome(), CERTIFIED, infeasible())]
    blocks.append(
        repr(
            [
                outcome().tie_share,
                outcome().acceptance,
                outcome().error_rate,
                infeasible().threshold,
                infeasible().n_accepted,
                infeasible().n_errors,
                infeasible().acceptance,
                infeasible().error_rate,
                outcome().promise,
                CERTIFIED.promise,
                outcome().smallest_feasible_alpha,
            ]
        )
    )
    same("core/artifacts.txt", clean("\n\n".join(blocks)))


def test_wrong_artifacts() -> None:
    reach = Reach(estimator="a", share=0.5, cut=0.3, n_pool=400, n_within=200, n=200, seed=1, fixed_beforehand=True)
    choice = EstimatorChoice(candidates=("a", "b"), auroc=0.7, n=30, questions=("x",))
    hashes = DataFingerprint.stored(array("Q", [1, 255]))
    many = DataFingerprint.stored(array("Q", range(50_000)))
    data = fitted().data

    def selected(**fields: Any) -> Selection:
        return Selection(**{"fit": "f", "family": "g", "fits": 1, **fields})

    share = StageShare(threshold=0.5, n_accepted=1, n_errors=0)
    whole = CascadeOutcome(
        rule="certified",
        alpha=0.1,
        delta=0.1,
        n=4,
        guarantee="At most 10 % are wrong.",
        stages=(share, share),
        interval=None,
    )
    joint = whole.model_copy(update={"rule": "lec_joint", "delta": None, "interval": (0.01, 0.6)})
    nothing = StageShare(threshold=None, n_accepted=0, n_errors=0)
    lost = whole.model_copy(
        update={"stages": (nothing, nothing), "reason": InfeasibleReason.TOO_FEW_ITEMS, "detail": "too few."}
    )
    refusals(
        "core/wrong_artifacts.txt",
        {
            "above the cut": lambda: fitted(reach=reach),
            "version 3 without parts": lambda: fitted(schema_version=3),
            "segments without scores": lambda: fitted(calibration=SCORES.model_copy(update={"segment": ("a",) * 200})),
            "scores of other lengths": lambda: CalibrationScores(uncertainty=(0.1,), error=(0, 1)),
            "an error of 2": lambda: CalibrationScores(uncertainty=(0.1,), error=(2,)),
            "packed scores": lambda: (
                type(
                    CalibrationScores(
                        uncertainty=array("d", [0.5] * 50_000), error=array("b", [1] * 50_000)
                    ).uncertainty
                ).__name__
            ),
            "packed errors of 2": lambda: error_of(
                lambda: CalibrationScores(uncertainty=array("d", [0.5] * 50_000), error=array("b", [2] * 50_000))
            )[:60],
            "stored scores": lambda: CalibrationScores(uncertainty=(0.5,), error=(1,)).model_dump(mode="json"),
            "read scores": lambda: CalibrationScores.from_stored(
                {"uncertainty": pack(array("d", [0.5])), "error": pack(array("b", [1]))}
            ),
            "looks that fall": lambda: Looks(schedule=(200, 100), look=1),
            "a look of none": lambda: Looks(schedule=(0, 100), look=1),
            "a third look of two": lambda: Looks(schedule=(100, 200), look=3),
            "parts above 1": lambda: Looks(schedule=(100, 200), look=1, parts=(0.6, 0.6)),
            "a part of 0": lambda: Looks(schedule=(100, 200), look=1, parts=(0.0, 0.6)),
            "parts of one": lambda: Looks(schedule=(100, 200), look=1, parts=(0.5,)),
            "the part of a look": lambda: [
                Looks(schedule=(1, 2), look=2).part,
                Looks(schedule=(1, 2), look=2, parts=(0.1, 0.3)).part,
            ],
            "fits": lambda: [
                each.describe(delta)
                for each in (selected(), selected(fits=3, others=0.04), selected(declared=("a", "b"), part=0.5))
                for delta in (0.1, None)
            ],
            "spent": lambda: [selected(others=0.95).spent(0.1), selected(part=0.5, declared=("a",)).spent(0.1)],
            "hashes": lambda: [
                hashes,
                list(data.model_copy(update={"questions": hashes}).hashes),
                list(data.hashes),
                sorted(many),
            ],
            "packed hashes": lambda: len(data.model_copy(update={"questions": many}).hashes),
            "wrong hashes": lambda: DataFingerprint.model_validate({**data.model_dump(), "questions": {"d": "x"}}),
            "early stopping": lambda: [
                data.covers_early_stopping,
                data.model_copy(update={"n_unmeasured": 1}).covers_early_stopping,
            ],
            "cut off": lambda: [
                data.many_cut_off,
                data.model_copy(update={"n_cut_off": 4}).many_cut_off,
                data.model_copy(update={"n_cut_off": None}).many_cut_off,
            ],
            "reach": lambda: [
                reach.leaves_out,
                reach.of_all(0.5),
                reach.model_copy(update={"n_within": 400}).leaves_out,
            ],
            "another model": lambda: ARTIFACT.check_model(ModelIdentity(provider="openai", model="gpt")),
            "an imported model": lambda: ARTIFACT.model_copy(
                update={"model": ModelIdentity(provider="imported", model="answers.csv")}
            ).check_model(ModelIdentity(provider="openai", model="gpt")),
            "the same weights": lambda: ModelIdentity(provider="a", model="x", revision="r").differences(
                ModelIdentity(provider="a", model="y", revision="r")
            ),
            "other weights": lambda: ModelIdentity(provider="a", model="x", revision="r").differences(
                ModelIdentity(provider="a", model="x", revision="s")
            ),
            "a model without a name": lambda: identify(Named()),
            "a model of its own identity": lambda: identify(Identified()),
            "a named model": lambda: identify(Named(model_name="m")),
            "a cascade": lambda: [whole.promise, whole.feasible, whole.n_accepted, whole.n_errors, whole.acceptance],
            "one stage": lambda: error_of(
                lambda: CascadeArtifact(
                    created="1970", stages=(ARTIFACT,), outcome=whole, certificate=whole, packages={}
                )
            ),
            "stages of segments": lambda: error_of(
                lambda: CascadeArtifact(
                    created="1970", stages=(ARTIFACT, by_segment()), outcome=whole, certificate=whole, packages={}
                )
            ),
            "stops nothing": lambda: (
                CascadeArtifact(
                    created="1970",
                    stages=(ARTIFACT, ARTIFACT),
                    outcome=whole.model_copy(update={"n": 2}),
                    certificate=whole,
                    packages={},
                ).warning
            ),
            "promises of a cascade": lambda: [
                cascade_of(own, proven, fits).promises
                for own, proven in ((whole, whole), (joint, whole), (joint, lost))
                for fits in (None, selected(others=0.04))
            ],
            "chosen": lambda: (
                fitted(choice=choice).model_dump()["choice"]["share"] if "share" in choice.model_dump() else "left out"
            ),
            "without a choice": lambda: "choice" in fitted().model_dump(),
            "no segments": lambda: Segments(outcomes={}, delta=0.1, share="each", unknown="others", min_labels=1),
            "turns": lambda: [
                ARTIFACT.unknown_turns([HumanMessage("x")]),
                ARTIFACT.unknown_turns([HumanMessage("x"), AIMessage("y")]),
            ],
        },
    )


def cascade_of(outcome: CascadeOutcome, certificate: CascadeOutcome, selection: Selection | None) -> CascadeArtifact:
    stages = tuple(
        ARTIFACT if share.threshold is not None else make_artifact(MODEL, threshold=None) for share in outcome.stages
    )
    return CascadeArtifact(
        created="1970", stages=stages, outcome=outcome, certificate=certificate, packages={}, selection=selection
    )


def by_segment() -> CalibrationArtifact:
    segments = Segments(outcomes={"a": ARTIFACT.outcome}, delta=0.1, share="each", unknown="others", min_labels=5)
    scores = CalibrationScores(uncertainty=(0.5,), error=(0,), segment=("a",))
    return ARTIFACT.model_copy(update={"segments": segments, "calibration": scores})


def test_promises() -> None:
    average, exact = Terms("acrc", False, 1.0, 0.5, 100, 7, (0.03, 0.14)), Terms("certified", True, 0.9, 0.3, 60, 1)
    nothing, grouped = (
        Terms("certified", True, 0.9, 0.0),
        Terms("group_mean", True, 0.95, 0.4, 80, 2, None, " in each of 2 groups"),
    )
    pairs = {
        "average and certificate": (average, exact),
        "average and none": (average, nothing),
        "certified": (exact, exact),
        "certified and nothing": (nothing, nothing),
        "everything": (Terms("acrc", False, 1, 1.0, 200, 60), exact),
        "nothing on average": (Terms("acrc", False, 1, 0.0), nothing),
        "unknown": (Terms("old", None, 1, 0.5, 10, 1), exact),
        "another rule": (Terms("mine", False, 1, 0.5, 10, 1), exact),
        "by group": (grouped, exact),
        "as many": (Terms("acrc", False, 1, 0.3001, 60, 1), exact),
    }
    verdicts: tuple[Literal["enough", "too_few", "never"], ...] = ("enough", "too_few", "never")
    prices = [None, Price(average=0.7), Price(average=0.0), Price(average=1.0), Price(average=0.3)]
    prices += [Price(labels=LabelsNeeded(n=12_345, verdict=verdict)) for verdict in verdicts]
    rows = [f"{name}\n  " + "\n  ".join(promise_lines(0.1, 200, *pair)) for name, pair in pairs.items()]
    rows += [
        f"{price!r}\n  " + "\n  ".join(promise_lines(0.05, 200, own, nothing, price, average="lec_joint"))
        for price in prices
        for own in (exact, nothing)
    ]
    texts = ["At most 10 % are wrong.", "at most 5% and at most 0.5", "at most five", "nothing"]
    rows += [f"{text} | {stated(text, certifies=False)} | {stated(text, certifies=True)}" for text in texts]
    rows += [target_text(0.05, certifies=certain) for certain in (True, False)] + [nothing_stopped(200, 60)]
    rows += [
        repr(
            [
                accepts(0.5, 0.5),
                accepts(0.51, 0.5),
                accepts(float("nan"), 0.5),
                accepts(np.array([0.1, 0.9]), 0.5).tolist(),
            ]
        )
    ]
    curve = risk_coverage([0.1, 0.2, 0.2, 0.4], [0, 1, 0, 1])
    rows.append(
        repr([curve.threshold.tolist(), curve.coverage.tolist(), [round(each, 6) for each in curve.risk.tolist()]])
    )
    same("core/promises.txt", "\n".join(rows))


def test_figures_of_an_artifact() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    rows = []
    plotted: dict[str, Any] = {"feasible": outcome(), "infeasible": infeasible(), "artifact": fitted()}
    for name, own in plotted.items():
        axis = own.plot()
        lines = [
            f"{line.get_label()} {[round(float(x), 3) for x in line.get_xdata()][:4]} "
            f"{[round(float(y), 3) for y in line.get_ydata()][:4]} {line.get_marker()} {line.get_markersize():g}"
            for line in axis.get_lines()
            if "_" not in str(line.get_label())[:1]  # labels that matplotlib makes
        ]
        labels = [text.get_text() for text in (axis.xaxis.label, axis.yaxis.label, axis.title)]
        ticks = [text.get_text() for text in axis.get_yticklabels() if text.get_text()]
        ticks = [tick for tick in ticks if not tick.isdecimal()]
        legend = axis.get_legend()
        shown = [] if legend is None else [text.get_text() for text in legend.get_texts()]
        rows.append(
            "\n".join(
                [f"== {name}", *lines, repr(labels), repr(ticks), repr(shown), repr(legend and legend.get_frame_on())]
            )
        )
    same("core/figures.txt", "\n".join(rows))


def test_a_guard_as_json(tmp_path: Path) -> None:
    guard = guarded(on_abstain="raise", early_stopping="off", remember=5, max_concurrency=3)
    saved = ARTIFACT.save(tmp_path / "artifact.json")
    config = guard.to_config(artifact=saved)
    shown = json_lines(config).replace(str(tmp_path), "FOLDER")
    handler = guarded(on_abstain=lambda verdict: "x", switch=SafetySwitch(), abstain_message=lambda verdict: "x")
    inner = handler.to_config()
    with_content = {**guard.to_config()}
    back = Guardrail.from_config(with_content, model=MODEL)

    def made(change: dict[str, Any], **given: Any) -> object:
        return Guardrail.from_config({**config, **change}, model=MODEL, **given).on_abstain

    other = make_artifact(MODEL, threshold=0.9, n=4).save(tmp_path / "other.json")
    calls: dict[str, Callable[[], object]] = {
        "unchanged": lambda: made({}),
        "with another setting": lambda: made({}, on_abstain="message"),
        "another format": lambda: made({"format": "other"}),
        "a later format": lambda: made({"format": "acrc-guardrail/guard/2"}),
        "objects missing": lambda: Guardrail.from_config(inner, model=MODEL),
        "objects given": lambda: (
            Guardrail.from_config(
                inner, model=MODEL, on_abstain="raise", switch=None, abstain_message="x"
            ).abstain_message
        ),
        "an unknown setting": lambda: made({"settings": {"temperature": 1}}),
        "no artifact": lambda: made({"artifact": {}}),
        "another artifact": lambda: made({"artifact": {**config["artifact"], "path": str(other)}}),
        "a changed artifact": lambda: made(
            {"artifact": {"digest": "sha256:0", "content": with_content["artifact"]["content"]}}
        ),
        "as it was": lambda: [back.early_stopping, back.remember, back.max_concurrency],
        "what is needed": lambda: inner["needs"],
        "the default": lambda: guarded().to_config()["settings"],
    }
    text = listed((name, clean(error_of(call)).replace(str(tmp_path), "FOLDER")) for name, call in calls.items())
    same("core/config.txt", clean(f"{shown}\n{text}"))


# -- Settings, errors and texts ----------------------------------------------------------------------------------------


KNOWN = """temperature top_p n seed logprobs top_logprobs stop_token_ids max_tokens max_completion_tokens
max_output_tokens num_predict stop stop_sequences tools tool_choice response_format best_of extra_body
frequency_penalty logit_bias min_p mirostat model_kwargs parallel_tool_calls presence_penalty reasoning_effort
repeat_penalty repetition_penalty top_k typical_p ls_structured_output_format strict stream_usage cache_control
extra_headers extra_query headers metadata prompt_cache_key prompt_cache_retention request_timeout safety_identifier
service_tier store timeout user"""


def test_settings_of_calls() -> None:
    table = []
    for name in KNOWN.split():  # adapters add others when they are imported
        row = TABLE[name]
        table.append(f"{name}: {row.role.name} {'langchain' in row.allowed_in}")
    asked = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 9, "stop": ["x"], "seed": 5, "logprobs": True}

    def model_of(name: str, **fields: Any) -> Named:
        kind = type(name, (Named,), {"__annotations__": dict.fromkeys(fields, Any), **fields, "__module__": __name__})
        made: Named = kind(model_name="m")
        return made

    rows = []
    for name in (
        "AzureChatOpenAI",
        "BaseChatOpenAI",
        "ChatAnthropic",
        "ChatBedrock",
        "ChatBedrockConverse",
        "ChatCohere",
        "ChatGoogleGenerativeAI",
        "ChatGroq",
        "ChatMistralAI",
        "ChatOpenAI",
        "ChatOllama",
        "Mine",
    ):
        model = model_of(name)
        each = {key: error_of(lambda: tuple(carried(model, {key: value}))) for key, value in asked.items()}  # noqa: B023
        rows.append((name, "; ".join(f"{key} {text}" for key, text in each.items())))
    own_fields = model_of("Own", temperature=0.1, num_predict=4, stop=None, seed=None)
    named = model_of("Longest", max_output_tokens=4)
    thinking, profiled = (
        model_of("Thinks", thinking={"type": "enabled"}),
        model_of("Fixed", profile={"temperature": False}),
    )
    stopping, bedrock = (
        model_of("Stops", stop=["a"]),
        model_of("Bed", additional_model_request_fields={"thinking": {"type": "disabled"}}),
    )
    responses = model_of("ChatOpenAI")
    object.__setattr__(responses, "_use_responses_api", lambda payload: True)
    cases: dict[str, Callable[[], object]] = {
        "own fields": lambda: tuple(carried(own_fields, asked)),
        "the longest answer": lambda: tuple(carried(named, {"max_tokens": 5, "temperature": 1})),
        "stop of its own": lambda: tuple(carried(stopping, {"stop": ["x"]})),
        "no stop": lambda: tuple(carried(stopping, {})),
        "thinking": lambda: tuple(carried(thinking, {"temperature": 0.7})),
        "thinking at 1": lambda: tuple(carried(thinking, {"temperature": 1, "top_p": 1, "max_tokens": 5})),
        "fixed temperature": lambda: tuple(carried(profiled, {"top_p": 0.5})),
        "top_p of 1": lambda: tuple(carried(model_of("ChatAnthropic"), {"top_p": 1, "temperature": 0.5})),
        "responses": lambda: tuple(carried(responses, {"max_tokens": 5})),
        "responses with stop": lambda: tuple(carried(responses, {"stop": ["x"]})),
        "takes": lambda: [takes_temperature(each) for each in (thinking, profiled, bedrock, named)],
        "a plan of logprobs": lambda: check_settings(model_of("ChatMistralAI"), SamplingPlan(logprobs=True)),
        "a plan of thinking": lambda: check_settings(thinking, SamplingPlan()),
        "a greedy plan": lambda: check_settings(thinking, SamplingPlan(n=0)),
        "a sampled plan": lambda: check_settings(thinking, SamplingPlan(temperature=1, top_p=1, primary="sampled")),
        "stop strings": lambda: check_settings(responses, SamplingPlan(stop=("x",))),
        "another role": lambda: register_settings((SettingRole.SHAPING, "temperature")),
        "no adapter": lambda: setting_names(allowed_in="nowhere"),
    }
    rows += [(name, error_of(call)) for name, call in cases.items()]
    same("core/call_settings.txt", "\n".join([*table, listed(rows)]))


def test_calls_like_the_plan() -> None:
    plans = {
        "greedy": SamplingPlan(stop=("x",), max_tokens=9),
        "sampled": SamplingPlan(primary="sampled", temperature=1, top_p=1),
        "majority": SamplingPlan(primary="majority"),
    }
    calls: dict[str, dict[str, Any]] = {
        "nothing": {},
        "greedy": {"temperature": 0.0, "top_p": 1, "stop": "x", "max_tokens": 9},
        "sampled": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 256},
        "penalties": {"frequency_penalty": 1, "presence_penalty": 0},
        "others": {"n": 2, "logit_bias": {}, "parallel_tool_calls": False, "seed": 5, "made_up": None, "new": 1},
        "a longer answer": {"temperature": 0.0, "stop": ["x"], "max_completion_tokens": 10},
    }
    rows = []
    for title, plan in plans.items():
        for name, settings in calls.items():
            rows.append(f"{title}, {name}: {unlike_plan(settings, plan)}")
            for finish, tokens in (("stop", 5), ("stop", 500), ("length", 5), (None, None)):
                rows.append(f"  {finish} {tokens}: {unlike_served(settings, plan, finish=finish, tokens=tokens)}")
        rows.append(
            "  fixed: "
            + repr(unlike_served({"temperature": 0.0, "x": 1}, plan, finish="stop", tokens=1, fixed={"x": 1, "y": 2}))
        )
    same("core/like_the_plan.txt", "\n".join(rows))


class Reply:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def failing(kind: type[Exception], text: str, **fields: Any) -> Exception:
    error = kind(text)
    error.__dict__.update(fields)
    return error


def test_errors_in_words() -> None:
    errors = {
        "ours": UsageError("a long message " * 40),
        "unreadable": UnreadableReplyError("the answer holds \x1b[2J"),
        "timeout": TimeoutError("late"),
        "a number": OSError(28, "quoted"),
        "value": ValueError("quotes Paris"),
        "runtime": RuntimeError("x" * 400),
        "short": RuntimeError("no GPU"),
        "status": failing(RuntimeError, "quoted", status_code=429, body={"error": {"code": "rate", "type": "limit"}}),
        "flat body": failing(RuntimeError, "quoted", status_code=400, body={"code": "c", "type": "two words"}),
        "response": failing(RuntimeError, "quoted", response=Reply(status_code=503)),
        "response without status": failing(RuntimeError, "quoted", response=Reply()),
        "botocore": failing(
            RuntimeError,
            "quoted",
            response={"ResponseMetadata": {"HTTPStatusCode": 400}, "Error": {"Code": "Throttled"}},
        ),
        "own code": failing(RuntimeError, "quoted", code="E1", type="t"),
        "gaierror": socket.gaierror(-2, "Name or service not known"),
    }
    rows = [
        f"{name}: {describe_error(error)} | {describe_error(error, asking=True)} | {reply_facts(error)}"
        for name, error in errors.items()
    ]
    verdict = guarded().assess("sure?")
    failed = Guardrail(model=ScriptedChat(default=[TimeoutError("late")]), artifact=ARTIFACT).assess("sure?")
    kinds = [type(AbstainedError.of(each)).__name__ for each in (verdict, failed)]
    copied = pickle.loads(pickle.dumps(UnmeasuredError(failed, "text", "T-1")))
    rows.append(
        f"{kinds} {type(copied).__name__} {copied.message} {copied.ticket} "
        f"{AbstainedError(verdict).message == verdict.detail}"
    )
    entry = EntryPoint("mine", "tests_of_nobody.module:Name", "group")
    ours = EntryPoint("nli", "tests.nowhere:Name", "group")
    calls: dict[str, Callable[[], object]] = {
        "near": lambda: did_you_mean("temprature", ["temperature", "top_p"]),
        "none near": lambda: did_you_mean("x", ["temperature"]),
        "unknown": lambda: refuse_unknown("temprature", ["top_p", "temperature"], "settings", "a setting"),
        "unknown of none": lambda: refuse_unknown("a", [], "settings", "a setting"),
        "known": lambda: refuse_unknown("a", ["a"], "settings", "a setting"),
        "a package": lambda: require("no_such_package.inner", extra="local"),
        "present": lambda: require("json", extra="local").__name__,
        "an entry point": lambda: load_entry_point(entry),
        "an entry point of ours": lambda: error_of(lambda: load_entry_point(ours)).partition(", at ")[0],
        "a mismatch": lambda: [ArtifactMismatchError("fault.", "way out.").fault, str(ArtifactMismatchError("fault."))],
        "no name": lambda: import_named("json", "model 'json'"),
        "no module": lambda: error_of(lambda: import_named("nowhere_at_all:x", "model 'm'")).partition(" from ")[0],
        "no attribute": lambda: import_named("json:nothing", "model 'm'"),
        "not a model": lambda: resolve_model("python:json:__name__"),
        "no provider": lambda: resolve_model("gpt"),
        "a scripted model": lambda: resolve_model("python:guardrail.testing:ScriptedChat")._llm_type,
    }
    rows += [f"{name}: {error_of(call)}" for name, call in calls.items()]
    same("core/errors.txt", "\n".join(rows))


def test_texts_and_json() -> None:
    odd = [
        "plain",
        "caf\u00e9",
        "half \ud83d",
        "esc \x1b[2J",
        "line\nbreak\ttab\rreturn\r\nboth",
        "\u202ertl",
        "\u200bzero",
        "\x7f\x85",
        "\u2028",
    ]
    rows = [
        f"{text!a}: {visible(text)!a} {visible(text, one_line=True)!a} {spelled(text)!a} {text_fault(text)}"
        for text in odd
    ]
    nested: Any = 1
    for _ in range(101):
        nested = [nested]
    values: dict[str, Any] = {
        "plain": {"a": [1, 2.5, None, "x"]},
        "nan": [float("nan")],
        "half a pair": {"\ud83d": 1},
        "deep": nested,
        "just not": nested[0],
        "large": 2**70,
        "huge": 10**4400,
        "a key": {1: "x"},
        "an object": {"a": object()},
        "a tuple": (1, 2),
    }
    rows += [
        f"{name}: {json_fault(value)} | {json_fault(value, packed=True)} | {too_deep(value)}"
        for name, value in values.items()
    ]
    calls: dict[str, Callable[[], object]] = {
        "packed": lambda: list(pack(array("b", [1, 2]))),
        "unpacked": lambda: list(unpack(pack(array("d", [0.5, 1.5])), "bd")),
        "another kind": lambda: unpack(pack(array("d", [0.5])), "Q"),
        "two fields": lambda: unpack({"d": "", "b": ""}, "d"),
        "none": lambda: unpack({}, "d"),
        "torn": lambda: error_of(lambda: unpack({"d": "AAAA"}, "d"))[:50],
        "not base64": lambda: error_of(lambda: unpack({"d": "!"}, "d"))[:40],
        "canonical": lambda: canonical_json({"b": 1, "a": ["\u00e9"]}),
        "with space": lambda: canonical_json({"b": 1, "a": ["\u00e9"]}, compact=False, ascii_only=True),
        "not JSON": lambda: canonical_json(object),
        "by repr": lambda: canonical_json(int, default=repr),
    }
    rows += [f"{name}: {error_of(call)}" for name, call in calls.items()]
    same("core/texts_and_json.txt", "\n".join(rows))


def test_prompts_in_words(tmp_path: Path) -> None:
    called = AIMessage("so", tool_calls=[{"name": "pay", "args": {"to": "bob"}, "id": "1", "type": "tool_call"}])
    messages: Sequence[Any] = [
        SystemMessage("S"),
        HumanMessage("hi  there "),
        called,
        ToolMessage("paid", tool_call_id="1"),
        HumanMessage(
            [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": "u", "id": "7"}, "this"],
            name="bob",
        ),
    ]
    tools = bindings_for([pay])
    others: list[Any] = [ChatMessage(content="x", role=role) for role in (" Assistant", "judge")]
    others.append(FunctionMessage(content="x", name="f"))
    made = PromptWrapping(system="S {x}", template="{question} {y}").to_prompt().invoke({"question": "q"})
    rows = [
        f"roles: {[role_of(each) for each in (*messages, *others)]}",
        f"turns: {turns_of(messages)} | {turns_of(messages, tools)}",
        f"conversation: {conversation_text(messages)!r} | {conversation_text(messages[:1])!r}",
        f"content: {prompt_content(messages)}",
        f"content: {prompt_content(messages, 'question', hide_system=True)}",
        *(
            f"{text!a}: {normal_form(text)!a}"
            for text in ("a  b", " a \n  b  \n", "cafe\u0301", "a\u200bb", "\ta\t b ", "x" + " " * 50)
        ),
        f"rendered: {PromptWrapping(template='Q: {question}').render('x', {'A': 'y', 'B': '{label}'})!r}",
        f"prompt: {[(each.type, each.content) for each in made.to_messages()]}",
    ]
    (tmp_path / "tools.json").write_text(json.dumps(tools.model_dump()["tools"]))
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "none.json").write_text("{}")
    (tmp_path / "wrong.json").write_text('{"tools": [{"type": "function"}]}')

    class NoTools(ScriptedChat):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    class OddTools(ScriptedChat):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    def narrow(prompts: Any, plan: Any, *, seeds: Any) -> None: ...
    def wide(prompts: Any, plan: Any, *, seeds: Any, **more: Any) -> None: ...

    both = guardrail.Bindings(tools=tools.tools, tool_choice="pay", response_format={"type": "json_object"})
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: read_bindings(tmp_path / "tools.json").tool_names,
        "torn": lambda: read_bindings(tmp_path / "torn.json"),
        "missing": lambda: read_bindings(tmp_path / "missing.json"),
        "nothing bound": lambda: read_bindings(tmp_path / "none.json"),
        "wrong": lambda: read_bindings(tmp_path / "wrong.json"),
        "a model without tools": lambda: binding_settings(NoTools(), tools),
        "a model that binds nothing": lambda: binding_settings(OddTools(), tools),
        "no bindings": lambda: binding_settings(NoTools(), None),
        "settings": lambda: sorted(binding_settings(MODEL, both)),
        "the choice": lambda: binding_settings(MODEL, both)["tool_choice"],
        "a sampler that takes none": lambda: native_settings(MODEL, narrow, both),
        "a sampler that takes all": lambda: sorted(native_settings(MODEL, wide, both)),
        "a format": lambda: json_format(Shape)["json_schema"]["name"],
        "a format without a title": lambda: sorted(
            json_format({"title": "T", "type": "object", "properties": {}})["json_schema"]
        ),
        "records of a folder": lambda: records(tmp_path),
        "records of a text": lambda: records(tmp_path / "tools.json"),
        "records": lambda: records(tmp_path / "records.jsonl"),
        "records of another plan": lambda: records(tmp_path / "records.jsonl", plan=SamplingPlan(n=3)),
        "records of another model": lambda: records(
            tmp_path / "records.jsonl", model=ModelIdentity(provider="a", model="b")
        ),
        "what was written": lambda: (tmp_path / "records.jsonl").read_text().count("\n"),
    }
    text = "\n".join([*rows, listed((name, error_of(call)) for name, call in calls.items())])
    same("core/prompts.txt", text.replace(str(tmp_path), "FOLDER"))


def records(path: Path, **changes: Any) -> str:
    fields = {"name": "set", "model": identify(MODEL), "plan": SamplingPlan(), "prompt": PromptWrapping(), **changes}
    lines = RecordLines(path, **fields)
    lines.append("q1", "why?", SampleSet(question="why?", primary=None), {"group": "g"})
    return "written"


class Shape(BaseModel):
    side: int


def pay(to: str) -> str:
    """Pay somebody."""
    return "paid"


def test_the_scripted_model() -> None:
    called = AIMessage("", tool_calls=[{"name": "pay", "args": {"to": "bob"}, "id": "1", "type": "tool_call"}])
    model = ScriptedChat(
        script={"q": ["a", "b"], "call": [called], "paid": ["thanks"], "bad": [ValueError("no")]}, probability=0.5
    )
    result = [HumanMessage("call"), called, ToolMessage("paid", tool_call_id="1")]
    other = [HumanMessage("call"), called, ToolMessage("declined", tool_call_id="1")]
    reply = model.invoke("q", logprobs=True)
    calls: dict[str, Callable[[], object]] = {
        "answer": lambda: [reply.content, reply.response_metadata["finish_reason"], reply.usage_metadata],
        "tokens": lambda: [
            (each["token"], round(each["logprob"], 6)) for each in reply.response_metadata["logprobs"]["content"]
        ],
        "without": lambda: "logprobs" in model.invoke("q").response_metadata,
        "unknown": lambda: model.invoke("other").content,
        "an error": lambda: model.invoke("bad"),
        "a call": lambda: model.invoke("call").tool_calls[0]["name"],
        "after a result": lambda: model.invoke(result).content,
        "after another result": lambda: model.invoke(other).content,
        "tools": lambda: sorted(model.bind_tools([pay], tool_choice="any").kwargs),  # type: ignore[attr-defined]
        "types": lambda: [
            model._llm_type,
            model._get_ls_params(model="m"),
            identify(model),
            repr(model).count("script"),
        ],
        "an artifact": lambda: json_lines(
            {
                k: v
                for k, v in make_artifact(model, threshold=None, alpha=0.2).model_dump(mode="json").items()
                if k != "plan"
            }
        ),
        "with a threshold": lambda: json_lines(make_artifact(model, estimator=make_estimator("degree")).outcome),
        "an alarm": lambda: Alarm(monitor="risk", at=1, wealth=20.0, delta=0.05, detail="x").monitor,
    }
    same("core/scripted_model.txt", clean(listed((name, error_of(call)) for name, call in calls.items())))


def test_fields_that_are_not_shown() -> None:
    """Fields that a `repr` leaves out, or that are written only where they differ from their default."""
    lines = []
    for module in sorted(each.name for each in pkgutil.walk_packages(guardrail.__path__, "guardrail.")):
        if module.endswith("__main__") or "review" in module or "monitor" in module:
            continue
        for name, kind in sorted(vars(import_module(module)).items()):
            if not (isinstance(kind, type) and kind.__module__ == module):
                continue
            if issubclass(kind, BaseModel):
                own = {name: field for name, field in kind.model_fields.items() if name in kind.__annotations__}
                hidden = [name for name, field in own.items() if not field.repr]
                written = [name for name, field in own.items() if getattr(field, "exclude_if", None) is not None]
            elif is_dataclass(kind):
                hidden, written = [each.name for each in fields(kind) if not each.repr], []
            else:
                continue
            if hidden or written:
                lines.append(f"{module}.{name}: hidden {hidden}, written if set {written}")
    same("core/hidden_fields.txt", "\n".join(lines))


def test_public_names() -> None:
    from guardrail import sampling

    lines = [f"{name}: {getattr(getattr(guardrail, name), '__module__', 'a value')}" for name in guardrail.__all__]
    vars(guardrail).pop("accepts", None)  # loaded when it is first used, again
    lines.append(f"{guardrail.accepts(0.1, 0.2)} {sorted(set(guardrail._MODULES) ^ set(guardrail.__all__))}")
    lines += [f"{part}: {guardrail.__getattr__(part).__name__}" for part in sorted(guardrail._PARTS)]
    lines += [f"{sampling.plan_for.__module__}", error_of(lambda: sampling.nothing)]
    lines.append(repr(set(guardrail.__all__) <= set(dir(guardrail))))
    same("core/public_names.txt", "\n".join(lines))


def test_models_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that LangChain, a package or a module makes; the failures of each."""
    made: dict[str, Any] = {
        "openai:good": MODEL,
        "openai:text": "a text",
        "openai:package": ImportError("Unable to import langchain_openai."),
        "openai:wrong": ValueError("Unable to infer the provider."),
        "openai:key": RuntimeError("The key is not set."),
    }

    def init_chat_model(spec: str) -> Any:
        if isinstance(made[spec], Exception):
            raise made[spec]
        return made[spec]

    def offered(group: str, name: str) -> list[EntryPoint]:
        targets = {"own": "guardrail.testing:ScriptedChat", "odd": "json:dumps"}
        return [EntryPoint(name, targets[name], group)] if name in targets else []

    monkeypatch.setattr("guardrail.models.entry_points", offered)
    module = SimpleNamespace(init_chat_model=init_chat_model)
    monkeypatch.setattr("guardrail.models.import_module", lambda name: module)
    calls: dict[str, Callable[[], object]] = {spec: partial(kind_of, spec) for spec in [*made, "odd:text"]}
    rows = [(name, error_of(call)) for name, call in calls.items()]

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("guardrail.models.import_module", missing)
    rows += [
        (spec, error_of(partial(kind_of, spec))) for spec in ("openai:x", "bedrock:x", "azure_openai:x", "mistral_ai:x")
    ]
    same("core/models_by_name.txt", listed(rows))


def kind_of(spec: str) -> str:
    return type(resolve_model(spec)).__name__


class Keys:
    """Keys that other processes share, which may fail or have been taken before."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.fails = False

    def get(self, name: str) -> str | None:
        if self.fails:
            raise UsageError("the database is down")
        return self.values.get(name)

    def add(self, name: str, value: str, seconds: float) -> str | None:
        if self.fails:
            raise UsageError("the database is down")
        return self.values.setdefault(name, value)


def test_shared_memory_of_draws() -> None:
    keys, reports, now = Keys(), list[str](), [0.0]
    memories = [
        Draws(10.0, shared=keys, report=lambda error: reports.append(str(error)), clock=lambda: now[0])
        for _ in range(2)
    ]
    first, second = memories
    rows = [f"{first.add('a', 'x')} {second.add('a', 'y')} {second.get('a')} {first.get('b')} {first.is_slow}"]
    rows.append(f"{sorted(name[:6] for name in keys.values)} {reports}")
    keys.fails = True
    rows.append(f"{error_of(lambda: first.add('c', 'x'))} {error_of(lambda: first.get('c'))} {first.get('a')}")
    keys.fails = False
    rows.append(f"{first.get('c')} {second.get('c')} {second.scoped('s').get('c')} {reports}")
    now[0] = 9.99
    rows.append(f"{first.get('a')}")
    now[0] = 10.0
    rows.append(
        f"{first._own.get(first._key('a'), 10.0)} {first.get('a')} {copy.deepcopy(first).seconds} "
        f"{copy.deepcopy(first).get('a')}"
    )
    small = Draws(10.0, most_bytes=400, clock=lambda: 0.0)
    small.add("a", "x" * 60)
    small.add("b", "y" * 60)
    rows.append(f"{small._own._bytes} {small.evicted}")
    small.add("c", "z" * 200)
    rows.append(f"{small._own._bytes} {small.evicted} {[small.get(name) is None for name in 'abc']}")
    same("core/shared_memory.txt", "\n".join(rows))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    records(path)
    size, write = path.stat().st_size, os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:7]))
    rows = [error_of(lambda: records(path)), f"unchanged {path.stat().st_size == size}"]
    rows.append(error_of(lambda: records(tmp_path / "new.jsonl")).replace(str(tmp_path), "FOLDER"))
    monkeypatch.undo()
    path.write_text(path.read_text() + '{"torn": ')
    records(path)
    rows.append(f"torn {'torn' in path.read_text()} {path.read_text().count(chr(10))}")
    rows.append(f"{oct(path.stat().st_mode & 0o777)} {sorted(each.name for each in tmp_path.iterdir())}")
    same("core/full_disk.txt", "\n".join(rows))
