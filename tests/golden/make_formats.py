"""Write one small file of every persisted format: ``python -m tests.golden.make_formats``.

The files under ``formats/`` were written by the version that introduced the formats, and every later version must read
them. They change only with the version of a format. Clock and random ids are fixed here; databases are stored as SQL,
so that a change shows as a difference of lines.

Scores, thresholds and intervals are literals: the files are about formats, and a new version of numpy or scipy must
not change a byte of them.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from langchain_core.messages import BaseMessage, HumanMessage

from benchmarks.estimators.page import Page
from calibrate.agent_steps import Step, write_steps
from calibrate.correctness import ChatLabelJudge
from calibrate.data.column_build import current_parts, read_header
from calibrate.data.labels import open_store
from calibrate.data.progress import silent
from calibrate.data.questions import Question
from calibrate.data.record import PartLabels
from calibrate.data.records import Record, RecordHeader, write_records
from calibrate.evaluation.evaluate import Estimate, Evaluation, EvaluationRow
from calibrate.evaluation.planning import Needed, Plan, PlanRow
from calibrate.scoring.ensemble import EnsembleFile, FitReport, ScoreFile
from guardrail.artifact import (
    CalibrationArtifact,
    CalibrationScores,
    CascadeArtifact,
    CascadeOutcome,
    DataFingerprint,
    EstimatorChoice,
    StageShare,
)
from guardrail.guard.assess import Remembered
from guardrail.guard.chat_model import Guardrail
from guardrail.judges import EntailmentScores, JudgeSpec
from guardrail.judges.cache import PairCache, cached
from guardrail.monitor import CanaryMonitor, DriftMonitor, RiskMonitor
from guardrail.monitor.canary import BASELINE
from guardrail.outcome import Diagnostics, Feasible, Infeasible, InfeasibleReason, LabelsNeeded, Price
from guardrail.parts.part import Part, PartVerdict
from guardrail.parts.spec import PartScores, PartsGate, PartsSpec, Procedure
from guardrail.prompting import PromptWrapping
from guardrail.review import (
    Candidate,
    CandidateRule,
    Content,
    Decision,
    Monitors,
    PartDecision,
    ReviewStore,
    audit_sample,
    by_parts,
)
from guardrail.review.hooks import content_of
from guardrail.review.web.accounts import add_token
from guardrail.sampling.draws import Draw, Draws
from guardrail.sampling.effects import run
from guardrail.sampling.probe import ProbeReport
from guardrail.specs import CorrectnessSpec, ModelIdentity
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import (
    Bindings,
    Cost,
    OptionScores,
    Sample,
    SampleSet,
    SamplingPlan,
    ToolCall,
    Uncertainty,
    Unmeasured,
)
from guardrail.uncertainty import EstimatorSpec
from guardrail.uncertainty.ensemble import EnsembleParams, Member, Training
from guardrail.uncertainty.two_stage import TwoStageParams
from guardrail.verdict import Meaning, Reason, Verdict
from integrations._agents.held import FrozenMessage, GuardState, HeldMessage, ReviewTarget, ToolCallOrder, pack, to_json
from integrations._agents.verdicts import VerdictStore
from integrations.langgraph_review import review_request

FOLDER = Path(__file__).parent / "formats"
VERSION_1 = FOLDER / "version1"
"""Artifacts of the first version, guards made of them, and records of that time."""
STORED = CalibrationArtifact.load(VERSION_1 / "artifact.json")
"""The artifact whose digest files of other formats contain; those files never change, so neither may this one."""
NOW = 1_700_000_000.0
CREATED = "2023-11-14T22:13:20+00:00"
QUESTION = "Who wrote Faust?"
TRANSFER = {
    "type": "function",
    "function": {
        "name": "transfer",
        "description": "Send money.",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}}},
    },
}


# -- values ------------------------------------------------------------------------------------------------------------


def model(*answers: str, name: str = "small") -> ScriptedChat:
    """Return the model of the artifacts; its words have log-probability ln .5, so its perplexity score is ln 2."""
    return ScriptedChat(script={QUESTION: answers}, probability=0.5, name_of_model=name)


def artifact(
    name: str = "small", *, threshold: float | None = 0.75, bindings: Bindings | None = None
) -> CalibrationArtifact:
    """Return an artifact of an estimator without a judge, so that only the estimator's version ties it to a library."""
    common: dict[str, Any] = {
        "rule": "acrc",
        "alpha": 0.1,
        "delta": None,
        "options": {"min_accept": 29, "envelope": False, "diagnose": "full"},
        "n": 4,
        "guarantee": "Asymptotic and on average over calibrations.",
        "diagnostics": Diagnostics(
            base_error=0.25, auroc=1.0, zero_error_floor=None, max_acceptance=0.875, smallest_feasible_alpha=0.05
        ),
    }
    if threshold is None:
        outcome: Feasible | Infeasible = no_certificate().model_copy(update={"rule": "acrc"})
    else:
        outcome = Feasible(threshold=threshold, n_accepted=3, n_errors=0, interval=(0.0, 0.7075), tie_block=1, **common)
    return CalibrationArtifact(
        created=CREATED,
        model=ModelIdentity(provider="scripted", model=name),
        plan=SamplingPlan(
            n=0, temperature=0.5, top_p=1.0, max_tokens=32, logprobs=True, bindings=bindings, cut_off="abstain", seed=7
        ),
        prompt=PromptWrapping(system=None, template="{question}", option_template="{label}: {text}"),
        estimator=EstimatorSpec(name="perplexity", version=1, unit="nats"),
        correctness=CorrectnessSpec(name="token_f1", version=1, params={"threshold": 0.5}),
        data=DataFingerprint(
            name="fragen-ü.jsonl",
            sha256="ab" * 32,
            n_questions=6,
            n_used=4,
            n_unmeasured=1,
            n_unlabelled=1,
            n_cut_off=1,
            questions=tuple(f"{i}{i}" * 8 for i in range(3, 9)),
        ),
        outcome=outcome,
        certificate=no_certificate(),
        calibration=CalibrationScores(uncertainty=(0.25, 0.5, 0.75, 1.5), error=(0, 0, 0, 1)),
        packages={"acrc-guardrail": "0.1.0"},
        turns=("human", "human,ai,human"),
        lineage=("sha256:" + "cd" * 32,),
        choice=EstimatorChoice(
            candidates=("perplexity", "sequence_nll"), auroc=0.75, n=3, questions=("00" * 8, "11" * 8, "22" * 8)
        ),
    )


def majority_artifact() -> CalibrationArtifact:
    """Return an artifact whose primary answer is the vote, with the fields of the two promises."""
    older = artifact()
    plan = SamplingPlan(n=4, temperature=0.5, top_p=1.0, max_tokens=32, logprobs=True, seed=7, primary="majority")
    return older.model_copy(
        update={
            "plan": plan,
            "outcome": older.outcome.model_copy(update={"certifies": False}),
            "certificate": older.certificate.model_copy(update={"certifies": True}),
            "price": Price(average=0.75, labels=LabelsNeeded(n=230, verdict="enough")),
        }
    )


def parts_artifact() -> CalibrationArtifact:
    """Return an artifact that gates JSON fields: two answers, of which one keeps a wrong field."""
    older = artifact()
    spec = PartsSpec(
        kind="json",
        splitter=Procedure(name="json_fields", version=1, params={"keys": {"/items": "sku"}, "optional": ["/due"]}),
        support=Procedure(
            name="samples",
            version=1,
            params={"judges": {"/total": {"name": "numeric", "version": 5, "params": {}}}},
        ),
        cap=3,
    )
    assert isinstance(older.outcome, Feasible)
    outcome = older.outcome.model_copy(
        update={"rule": "wrong_share", "threshold": 0.25, "n": 2, "n_accepted": 2, "n_errors": 1, "delta": 0.1}
    )
    gate = PartsGate(
        spec=spec,
        rule="wrong_share",
        promise="With probability at least 0.9 over calibrations, at most 0.1 of the parts kept are wrong.",
        alpha=0.1,
        delta=0.1,
        threshold=0.25,
        per="part",
        options={"grid": [0.0, 0.25], "start": 0.0, "seed": 0},
        n_unmeasured_answers=1,
        n_unmeasured_parts=1,
        n_undecided=1,
        scores=PartScores(sizes=(3, 2), uncertainty=(0.0, 0.25, None, 0.5, 0.0), wrong=(0, 1, 1, 0, 0), ids=("a", "b")),
    )
    update = {
        "plan": SamplingPlan(n=4, temperature=0.5, top_p=1.0, max_tokens=32, seed=7),
        "estimator": EstimatorSpec(
            name="parts_json", version=1, unit="probability", params=spec.model_dump(mode="json")
        ),
        "outcome": outcome,
        "certificate": outcome,
        "calibration": CalibrationScores(uncertainty=(), error=()),
        "choice": None,
        "parts": gate,
    }
    return older.model_copy(update=update)


def parts_review() -> tuple[Verdict, Content, Decision]:
    """Return the verdict on an answer of which a field is held back, its review item, and the decision about it."""
    whole = Sample(text='{"number": "A-1", "total": 12.50}', finish_reason="stop")
    parts = (
        PartVerdict(path="/number", text='"A-1"', uncertainty=0.0, kept=True),
        PartVerdict(path="/total", text="12.50", uncertainty=0.5, kept=False),
        PartVerdict(path="/due", text="", uncertainty=None, absent=True, detail="no verdict", kept=False),
    )
    verdict = Verdict(
        accepted=True,
        reason=Reason.PARTLY_HELD_BACK,
        detail="Accepted in part.",
        uncertainty=Uncertainty(value=0.0, unit="probability", estimator="parts_json"),
        threshold=0.25,
        alpha=0.1,
        guarantee="None.",
        artifact="sha256:" + "ef" * 32,
        candidate=whole.model_copy(update={"text": '{"number": "A-1"}'}),
        samples=('{"number": "A-1", "total": 12.50}', '{"number": "A-1", "total": 13}'),
        parts=parts,
        whole=whole,
    )
    content = content_of(verdict, [HumanMessage("Invoice?")])
    decisions = (
        PartDecision(place="/total", action="edit", text="13.75"),
        PartDecision(place="/due", action="reject"),
    )
    return verdict, content, by_parts(content, decisions, "read on paper")


def part_records() -> tuple[RecordHeader, list[Record]]:
    """Return records with parts, their labels, and an answer that could not be split."""
    spec = parts_artifact().estimator
    header = RecordHeader(
        created=CREATED,
        model=ModelIdentity(provider="scripted", model="small"),
        plan=SamplingPlan(n=1, temperature=0.5, max_tokens=32, seed=7),
        prompt=PromptWrapping(),
        questions_name="invoices.jsonl",
        questions_sha256="ab" * 32,
        n_questions=2,
        estimators={"parts_json": spec},
        part_correctness={"parts_json": CorrectnessSpec(name="part_reference", version=1, params={})},
    )
    answers = [
        Record(
            id="invoice-1",
            question="Read the invoice.",
            references=('{"total": 5, "note": "ü"}',),
            drawn=SampleSet(
                question="Read the invoice.",
                primary=Sample(text='{"total": 5}', finish_reason="stop"),
                samples=(Sample(text='{"total": 4}', finish_reason="stop"),),
            ),
            scores={"parts_json": Uncertainty(value=0.0, unit="probability", estimator="parts_json")},
            parts={
                "parts_json": (
                    Part(path="/total", text="5", uncertainty=1.0),
                    Part(path="/note", text="", uncertainty=0.0, absent=True),
                )
            },
            part_labels={"parts_json": PartLabels(right=(True, False), missed=("/note",), n_reference=2)},
        ),
        Record(
            id="text-1",
            question="Tell me.",
            drawn=SampleSet(question="Tell me.", primary=Sample(text="One."), samples=(Sample(text="Two."),)),
            scores={
                "parts_json": Uncertainty(
                    value=None,
                    unit="probability",
                    estimator="parts_json",
                    reason=Unmeasured.UNREADABLE,
                    detail="no JSON",
                )
            },
            parts={
                "parts_sentences": (Part(span=(0, 4), text="One.", uncertainty=None, detail="no reply"),),
            },
            part_labels={"parts_sentences": PartLabels(right=(None,))},
        ),
    ]
    return header, answers


def no_certificate() -> Infeasible:
    return Infeasible(
        rule="certified",
        alpha=0.1,
        delta=0.1,
        options={"min_accept": None},
        n=4,
        guarantee="With probability at least 0.9 over calibrations.",
        diagnostics=Diagnostics(
            base_error=0.25, auroc=1.0, zero_error_floor=22, max_acceptance=0.875, smallest_feasible_alpha=None
        ),
        reason=InfeasibleReason.TOO_FEW_ITEMS,
        detail="4 items are too few: 22 error-free ones are needed.",
    )


def cascade() -> CascadeArtifact:
    first, second = artifact("small", threshold=0.5), artifact("large", threshold=0.75)
    judged = EstimatorSpec(
        name="discrete_semantic_entropy",
        version=1,
        unit="nats",
        judge=JudgeSpec(name="exact", version=1, params={}),
        clustering="components",
    )
    second = second.model_copy(
        update={
            "estimator": judged,
            "plan": SamplingPlan(n=4, stop=("\n",)),
            "calibration": CalibrationScores(
                uncertainty=(0.25, 0.5, 0.75, 1.5), error=(0, 0, 0, 1), group=("a", "b", "c", "d")
            ),
        }
    )
    common: dict[str, Any] = {"alpha": 0.1, "n": 4, "guarantee": "On average over calibrations."}
    outcome = CascadeOutcome(
        rule="lec_joint",
        delta=None,
        options={"price": 0.01},
        stages=(
            StageShare(threshold=0.5, n_accepted=2, n_errors=0),
            StageShare(threshold=0.75, n_accepted=1, n_errors=0),
        ),
        interval=(0.0, 0.7075),
        **common,
    )
    certificate = CascadeOutcome(
        rule="certified",
        delta=0.1,
        stages=(StageShare(threshold=None, n_accepted=0, n_errors=0),) * 2,
        interval=None,
        reason=InfeasibleReason.TOO_FEW_ITEMS,
        detail="4 items are too few.",
        **common,
    )
    return CascadeArtifact(
        created=CREATED,
        stages=(first, second),
        outcome=outcome,
        certificate=certificate,
        packages={"acrc-guardrail": "0.1.0"},
    )


def verdict(*, accepted: bool = False, candidate: Sample | None = None) -> Verdict:
    """Return a verdict with every field filled in."""
    value = 0.5 if accepted else 1.5
    return Verdict(
        accepted=accepted,
        reason=Reason.WITHIN_THRESHOLD if accepted else Reason.ABOVE_THRESHOLD,
        detail=f"uncertainty {value:g} against a threshold of 0.75.",
        uncertainty=Uncertainty(value=value, unit="nats", estimator="perplexity"),
        threshold=0.75,
        alpha=0.1,
        guarantee="Asymptotic and on average over calibrations.",
        artifact=STORED.digest,
        candidate=candidate or Sample(text="Goethe", finish_reason="stop"),
        alternatives=(("Goethe", 0.75), ("Schiller ü", 0.25)),
        meanings=(Meaning(text="Goethe", size=3, share=0.75), Meaning(text="Schiller ü", size=1, share=0.25)),
        samples=("Goethe", "Goethe", "Goethe", "Schiller ü"),
        cost=Cost(calls=5, input_tokens=60, output_tokens=12, seconds=0.5, saved=0),
    )


def calling() -> Sample:
    """Return a candidate that calls a tool."""
    return Sample(
        text="I will send it.",
        tool_calls=(ToolCall(name="transfer", arguments={"to": "bob", "amount": 5}),),
        finish_reason="tool_calls",
    )


def records() -> tuple[RecordHeader, list[Record]]:
    """Return records that use every field of a record and of its sample set."""
    header = RecordHeader(
        created=CREATED,
        model=ModelIdentity(provider="openai", model="gpt", revision="2024-01-01"),
        plan=SamplingPlan(
            n=2,
            logprobs=True,
            follow_ups=("p_true",),
            stop=("\n",),
            bindings=Bindings(tools=(TRANSFER,), tool_choice="any"),
            cut_off="measure",
        ),
        prompt=PromptWrapping(system="Be brief.", template="{context}\nQ: {question}\nA:", slots=("context",)),
        questions_name="fragen.jsonl",
        questions_sha256="ab" * 32,
        n_questions=4,
        correctness=CorrectnessSpec(name="token_f1", version=1, params={"threshold": 0.5}),
        estimators={
            "semantic_entropy:exact": EstimatorSpec(
                name="semantic_entropy",
                version=1,
                unit="nats",
                judge=JudgeSpec(name="exact", version=1, params={}),
                clustering="components",
                similarity=JudgeSpec(name="embedding", version=1, params={"model": "m", "revision": "sha256:00"}),
                entailment=JudgeSpec(name="nli", version=1, params={}),
                params={"a": 1},
            )
        },
        packages={"acrc-guardrail": "0.1.0"},
        probe=ProbeReport(
            samples=4,
            distinct=3,
            n=True,
            temperature=True,
            seed=False,
            logprobs=True,
            token_bytes=True,
            fingerprint="fp_1",
            cost=Cost(calls=3, input_tokens=30, output_tokens=9, seconds=0.25),
        ),
    )
    measured = Uncertainty(value=0.625, unit="nats", estimator="semantic_entropy")
    unmeasured = Uncertainty(
        value=None,
        unit="nats",
        estimator="semantic_entropy",
        reason=Unmeasured.MODEL_FAILED,
        detail="the model did not answer",
    )
    follow_up = SampleSet(
        question="Is this right?",
        primary=None,
        options=OptionScores(labels=("A", "B"), loglikelihoods=(-0.25, -1.5)),
    )
    drawn = SampleSet(
        question=QUESTION,
        primary=Sample(text="Goethe", tokens=("Goe", "the"), logprobs=(-0.25, -0.5), finish_reason="stop"),
        samples=(
            Sample(
                text="Göthe", tokens=("G", "�", "�", "the"), logprobs=(-1.0,) * 4, token_bytes=("47", "c3", "b6", "")
            ),
            Sample(text="", refusal=True, finish_reason="content_filter"),
        ),
        follow_ups={"p_true": (follow_up,)},
        cost=Cost(calls=4, input_tokens=40, output_tokens=8, seconds=0.5, saved=1),
    )
    return header, [
        Record(
            id="q1",
            question=QUESTION,
            references=("Goethe", "J. W. v. Goethe"),
            slots={"context": "Faust is by Goethe ü."},
            group="books",
            turns="human",
            drawn=drawn,
            scores={"semantic_entropy:exact": measured},
            correct=True,
        ),
        Record(
            id="q2",
            question="Send Bob 5.",
            references=('[{"arguments":{"amount":5,"to":"bob"},"name":"transfer"}]',),
            drawn=SampleSet(question="Send Bob 5.", primary=calling(), samples=(calling(), calling())),
            scores={"semantic_entropy:exact": measured.model_copy(update={"value": 0.0})},
            correct=False,
        ),
        Record(
            id="q3",
            question="2 + 2?",
            references=("B",),
            options={"A": "3", "B": "4"},
            drawn=SampleSet(
                question="2 + 2?",
                primary=None,
                problem=Unmeasured.MODEL_FAILED,
                problem_detail="the server is gone",
            ),
            scores={"semantic_entropy:exact": unmeasured},
            label_detail="no answer",
        ),
        Record(id="q4", question="imported?", scores={"semantic_entropy:exact": measured}, correct=True),
    ]


def ensemble_file() -> EnsembleFile:
    spec = artifact().estimator
    params = EnsembleParams(
        intercept=-1.5,
        members=(
            Member(spec=spec, mean=0.5, scale=0.25, weight=1.25),
            Member(
                spec=spec.model_copy(update={"name": "sequence_nll"}),
                mean=2.0,
                scale=0.5,
                weight=0.5,
            ),
        ),
        training=Training(ids=("00aa", "00bb"), questions=("11aa", "11bb"), groups=("22aa",)),
    )
    return EnsembleFile(
        spec=EstimatorSpec(name="ensemble", version=1, unit="nats", params=params.model_dump(mode="json")),
        fit=FitReport(
            n=60,
            n_left_out=2,
            errors=20,
            penalty=0.01,
            cross_validated={"0.01": 0.5, "0.1": 0.625},
            ensemble_auroc=0.875,
            single_auroc={"perplexity": 0.75, "sequence_nll": 0.625, "max_softmax": 0.5},
            dropped=("max_softmax",),
        ),
    )


def held_note() -> GuardState:
    """Return the note of a held-back message with a gated call and an exempt one."""
    stored_verdict = verdict(candidate=calling()).model_copy(update={"samples": ()})
    calls = (
        {"name": "balance", "args": {}, "id": "c1", "type": "tool_call"},
        {"name": "transfer", "args": {"to": "bob", "amount": 5}, "id": "c2", "type": "tool_call"},
    )
    metadata = {"model_name": "small", "finish_reason": "tool_calls", "guardrail": stored_verdict.to_metadata()}
    message = FrozenMessage(
        text="I will send it.",
        tool_calls=calls,
        metadata=metadata,
        usage={"input_tokens": 60, "output_tokens": 12, "total_tokens": 72},
    )
    judged = ReviewTarget(name="transfer", call_id="c2", args={"to": "bob", "amount": 5}, verdict=stored_verdict)
    return GuardState(
        phase="held",
        placeholder="guardrail-held-1",
        asked="h1",
        held=HeldMessage(question="Send Bob 5.", message=message, judged=(judged,), verdict=stored_verdict),
    )


def held_answer() -> GuardState:
    """Return the note of a held-back answer of a plain graph."""
    stored_verdict = verdict().model_copy(update={"samples": ()})
    message = FrozenMessage(text="Goethe", metadata={"model_name": "small", "guardrail": stored_verdict.to_metadata()})
    judged = ReviewTarget(name="answer", call_id=None, args={"text": "Goethe"}, verdict=stored_verdict)
    return GuardState(
        phase="held", held=HeldMessage(question=QUESTION, message=message, judged=(judged,), verdict=stored_verdict)
    )


def released_note() -> GuardState:
    """Return the note of a decided message that the model node has not given out yet."""
    note = held_note()
    assert note.held is not None
    order = ToolCallOrder(digest="0123456789abcdef", decision="edit", args={"to": "bob", "amount": 4})
    refused = ToolCallOrder(digest="fedcba9876543210", decision="reject", message="A person rejected this call.")
    return GuardState(phase="released", asked="h1", message=note.held.message, orders={"c1": refused, "c2": order})


class Toy:
    """A judge, similarity and entailment model that returns scripted answers, and raises when it has none left."""

    def __init__(self, name: str, answers: Sequence[Any] = ()) -> None:
        self.spec = JudgeSpec(name=name, version=1, params={"revision": "sha256:00", "prompt": "ü"})
        self._answers = list(answers)

    def _next(self, number: int) -> list[Any]:
        if len(self._answers) < number:
            raise AssertionError("the cache does not hold the verdict")
        return [self._answers.pop(0) for _ in range(number)]


class ToyJudge(Toy):
    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return self._next(len(pairs))


class ToySimilarity(Toy):
    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        return self._next(len(pairs))


class ToyEntailment(Toy):
    def entailment_batch(self, items: Sequence[tuple[str, str, str]]) -> list[EntailmentScores | None]:
        return self._next(len(items))


PAIRS = [("Goethe", "J. W. Goethe"), ("Goethe", "Schiller ü")]


# -- writers -----------------------------------------------------------------------------------------------------------


def write_artifact(path: Path) -> None:
    artifact().save(path)


def write_majority_artifact(path: Path) -> None:
    majority_artifact().save(path)


def write_parts_artifact(path: Path) -> None:
    parts_artifact().save(path)


def write_parts_review(path: Path) -> None:
    names = ("verdict", "content", "decision")
    write_json(path, {n: value.model_dump(mode="json") for n, value in zip(names, parts_review(), strict=True)})


def write_tool_artifact(path: Path) -> None:
    artifact(threshold=None, bindings=Bindings(tools=(TRANSFER,), tool_choice="transfer")).save(path)


def write_cascade(path: Path) -> None:
    cascade().save(path)


def write_candidates(path: Path) -> None:
    CandidateRule(
        artifact=STORED.digest,
        epsilon=0.25,
        quantile=0.5,
        n=20,
        n_without=2,
        attainable=0.125,
        population="held_back",
        delta=0.1,
    ).save(path)


def write_records_file(path: Path) -> None:
    header, listed = records()
    write_records(path, header, listed)


def write_part_records(path: Path) -> None:
    write_records(path, *part_records())


def write_labels(path: Path) -> None:
    with open_store(path) as store:
        store.append("q1", True, "Goethe")
        store.append("q2", False, "Schiller ü")
        store.append("q3", None, "")


def write_judge_replies(path: Path) -> None:
    """Write the cached replies of the labelling judge."""
    judge = ChatLabelJudge(ScriptedChat(default=("yes",), name_of_model="judge"), cache=path)
    judge.label("Göthe", Question(id="q1", question=QUESTION, references=("Goethe",)))


def two_stage_file() -> ScoreFile:
    params = TwoStageParams(
        weight=0.25,
        scale=tuple(i / 8 for i in range(300)),
        cheap=EstimatorSpec(name="sequence_nll", version=1, unit="nats"),
        second=EstimatorSpec(
            name="primary_disagreement",
            version=1,
            unit="probability",
            judge=JudgeSpec(name="exact", version=1, params={}),
            clustering="components",
        ),
        training=Training(ids=("00aa",), questions=("11aa",), groups=("22aa",)),
    )
    stored = params.model_dump(mode="json")
    return ScoreFile(spec=EstimatorSpec(name="two_stage", version=1, unit="probability", params=stored))


def write_two_stage(path: Path) -> None:
    path.write_text(two_stage_file().model_dump_json(indent=1) + "\n", encoding="utf-8")  # like `calibrate two-stage`


def write_ensemble(path: Path) -> None:
    path.write_text(ensemble_file().model_dump_json(indent=1) + "\n", encoding="utf-8")  # like `calibrate ensemble`


def write_steps_file(path: Path) -> None:
    request = {"role": "user", "content": "Send Bob 5."}
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "transfer", "arguments": '{"to": "bob", "amount": 5}'},
    }
    proposal = {"role": "assistant", "content": "", "tool_calls": [call]}
    done = {"role": "tool", "tool_call_id": "c1", "content": "sent"}
    reference = '[{"arguments":{"amount":5,"to":"bob"},"name":"transfer"}]'
    steps = [
        Step(id="step-1", messages=(request,), references=(reference,), group="conversation 1"),
        Step(id="step-2", messages=(request, proposal, done), references=("Done.", "Sent."), group="conversation 1"),
        Step(id="step-3", messages=({"role": "user", "content": "Grüß dich"},), references=("Hello.",)),
    ]
    write_steps(path, steps)


def write_guard(path: Path) -> None:
    guard = Guardrail(
        model=model("Goethe"),
        artifact=artifact(),
        on_abstain="raise",
        abstain_message="Ask again.",
        turns="mark",
        max_concurrency=3,
    )
    write_json(path, guard.to_config())


def write_guard_by_path(path: Path) -> None:
    guard = Guardrail(
        model=model("Goethe"), artifact=artifact(), abstain_message="Ask again.", on_verdict=lambda *_: None
    )
    write_json(path, guard.to_config(artifact="artifact.json"))


def write_note(path: Path) -> None:
    write_json(path, to_json(held_note()))


def write_answer_note(path: Path) -> None:
    write_json(path, to_json(held_answer()))


def write_released_note(path: Path) -> None:
    write_json(path, to_json(released_note()))


def write_interrupt(path: Path) -> None:
    """Write the question to the person, as the checkpoint of a paused graph keeps it."""
    held_message = held_note().held
    assert held_message is not None
    write_json(path, review_request(held_message))


def write_packed_note(path: Path) -> None:
    path.write_text(pack(held_note()) + "\n", encoding="utf-8")


def write_part_columns(path: Path) -> None:
    """Write the columns of `write_part_records`."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "records.jsonl"
        write_part_records(log)
        header, first = read_header(log)
        (columns,), _ = current_parts(log, first, header, lambda title: nullcontext(silent), workers=1)
        path.write_bytes(next(log.with_name("records.jsonl.cols").glob("*.parquet")).read_bytes())
        columns.close()


def write_verdicts(path: Path) -> None:
    with database(path) as file:
        store = VerdictStore(file, clock=lambda: 1000.0)
        store.put("call_1", '{"to":"bob"}', verdict(candidate=calling()), QUESTION)
        store.put("chosen:call_2", "", verdict(accepted=True))
        store.close()


def write_pairs(path: Path) -> None:
    with database(path) as file:
        cache = PairCache(file)
        cached(ToyJudge("toy", [True, False]), cache).equivalent(QUESTION, PAIRS)
        cached(ToySimilarity("toy", [0.75, 0.25]), cache).similarity(QUESTION, PAIRS)
        scores = [EntailmentScores(0.5, 0.25, 0.25), EntailmentScores(0.125, None, 0.875)]
        cached(ToyEntailment("toy", scores), cache).entailment_batch([(QUESTION, *pair) for pair in PAIRS])


def write_risk_monitor(path: Path) -> None:
    monitor = RiskMonitor(0.25, delta=0.25, min_audit_rate=0.5, artifact=STORED.digest)
    monitor.update(False, audit_rate=1.0)
    monitor.update(True)
    monitor.save(path)


def write_drift_monitor(path: Path) -> None:
    monitor = DriftMonitor(STORED, delta=0.25, seed=3)
    monitor.update(0.5)
    monitor.update(1.75)
    monitor.save(path)


def write_canary(path: Path) -> None:
    monitor = CanaryMonitor(2, delta=0.25, seed=3)
    for number in range(BASELINE + 1):
        monitor.update([0.5, float(number % 2)])
    monitor.save(path)


def write_tokens(path: Path) -> None:
    with fixed_ids():
        add_token(path, "ann", "reviewer")
        add_token(path, "jörg", "admin")


def write_reviews(path: Path) -> None:
    """Write a queue with an item in every state, callbacks, an audit, and both kinds of monitors, with alarms."""
    with database(path) as file, fixed_ids():
        clock = itertools.count(NOW, 1.0)
        # The wording of an alarm is not part of the format, so it is fixed here.
        words = patch.object(RiskMonitor, "_detail", lambda _: "The error rate exceeds 12.5 %.")
        with words, ReviewStore(f"sqlite:///{file}", clock=lambda: next(clock)) as store:
            _fill_queue(store)
            _fill_monitors(Monitors(store))


def _fill_queue(store: ReviewStore) -> None:
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]
    rule = CandidateRule(
        artifact=STORED.digest,
        epsilon=0.25,
        quantile=0.0,
        n=20,
        n_without=2,
        attainable=0.125,
        population="held_back",
        delta=0.1,
    )
    content = content_of(verdict(), messages, candidates=rule, metadata={"tenant": "ü", "group": "g1"})
    store.enqueue(content, key="decided", callback="https://example.org/hook")
    lease = store.claim("ann", item=store.items()[0].id)
    assert lease is not None
    store.decide(lease, Decision(action="edit", candidate=Candidate(text="J. W. Goethe"), note="full name"))

    call = content_of(verdict(candidate=calling()), [HumanMessage("Send Bob 5.")])
    waiting = store.enqueue(call.model_copy(update={"edits": "arguments", "fixed": (0,)}), key="claimed")
    store.claim("jörg", item=waiting.id, seconds=3600)

    late = store.enqueue(
        Content(question="too late?", allowed=("reject", "respond")),
        key="expired",
        expires_in=1.0,
        callback="https://example.org/hook",
    )
    store.give_up(late.id)
    store.lease([late.id])

    audit_sample(store, 1.0, key=lambda *_: "request 1")(verdict(accepted=True), messages)
    (audit,) = store.items(["pending"])
    checked = store.claim("ann", item=audit.id)
    assert checked is not None
    store.decide(checked, Decision(action="approve"))
    store.enqueue(Content(question=QUESTION, candidate=Candidate(text="Goethe")), key="pending", expires_in=10**6)


def _fill_monitors(monitors: Monitors) -> None:
    risk = monitors.risk("risk", 0.125, delta=0.5, artifact=STORED.digest)
    risk.update(False, key="request 1")
    for _ in range(2):
        risk.update(True)
    monitors.acknowledge("risk", who="ann")
    fresh = monitors.risk("risk 2", 0.125, delta=0.5, artifact=STORED.digest)
    for _ in range(2):
        fresh.update(True)
    drift = monitors.drift("drift", STORED, delta=0.25, seed=3)
    drift.update(0.5, key="question 1")
    drift.update(1.75)


def write_draw(path: Path) -> None:
    """Write a piece of a draw and a verdict, as processes on one store share them."""
    draw = Draw(Draws(), "key")
    sample = Sample(text="Paris", tokens=("Par", "is"), logprobs=(-0.1, -0.2), finish_reason="stop")
    more = (Sample(text="Paris"), Sample(text="Rome"))
    run(draw.note("piece", SampleSet(question="q", primary=sample, samples=more, cost=Cost(calls=3, seconds=0.5))))
    chat = ScriptedChat(default=["Paris"])
    verdict = Guardrail(model=chat, artifact=make_artifact(chat, n=2)).assess("q")
    verdict = verdict.model_copy(update={"cost": Cost(calls=3), "artifact": "0" * 64})
    remembered = Remembered(primary=sample, verdict=verdict, by_name={"answer": verdict})
    content = {"piece": json.loads(run(draw.get("piece")) or ""), "verdict": remembered.model_dump(mode="json")}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_plan(path: Path) -> None:
    """Write the output of `calibrate plan --json`."""
    none, some = Estimate(value=0.0, se=None), Estimate(value=0.5, se=0.125)
    row = PlanRow(rule="acrc", n=100, acceptance=some, infeasible_rate=none, violation_rate=some, reached_rate=none)
    needed = Needed(rule="acrc", n=120, low=100, high=None, at_most=False, sentence="About 120.")
    plan = Plan(
        alpha=0.1,
        delta=0.1,
        accuracy=0.75,
        auroc=0.8,
        oracle_acceptance=0.5,
        target_acceptance=0.25,
        populations="binormal",
        repetitions=100,
        seed=0,
        rows=(row,),
        needed=(needed,),
        sentence="Label about 120 questions.",
    )
    path.write_text(plan.model_dump_json(indent=1) + "\n", encoding="utf-8")


def write_evaluation(path: Path) -> None:
    some = Estimate(value=0.5, se=0.125)
    row = EvaluationRow(
        rule="acrc",
        options={"min_accept": 1},
        alpha=0.1,
        delta=None,
        splits=10,
        scer=some,
        scer_sd=0.25,
        pooled=None,
        acceptance=some,
        power=some,
        violation_rate=some,
        infeasible_rate=Estimate(value=0.0, se=None),
    )
    Evaluation(
        n=100,
        n_calibration=70,
        splits=10,
        seed=0,
        grouped=True,
        base_error=0.25,
        auroc=0.75,
        aurc=0.125,
        excess_aurc=0.0625,
        test_auroc=some,
        test_aurc=some,
        test_excess_aurc=some,
        rows=(row,),
    ).to_json(path)


def write_estimator_table(path: Path) -> None:
    """Write an empty docs/estimators.json."""
    path.write_text(Page(resamples=1000, files=()).model_dump_json(indent=1) + "\n", encoding="utf-8")


FORMATS: dict[str, Callable[[Path], None]] = {
    "artifact.json": write_artifact,
    "artifact-majority.json": write_majority_artifact,
    "artifact-parts.json": write_parts_artifact,
    "artifact-tools.json": write_tool_artifact,
    "review-parts.json": write_parts_review,
    "cascade.json": write_cascade,
    "candidates.json": write_candidates,
    "records.jsonl": write_records_file,
    "records-parts.jsonl": write_part_records,
    "labels.jsonl": write_labels,
    "judge-replies.jsonl": write_judge_replies,
    "ensemble.json": write_ensemble,
    "two-stage.json": write_two_stage,
    "steps.jsonl": write_steps_file,
    "guard.json": write_guard,
    "guard-by-path.json": write_guard_by_path,
    "note.json": write_note,
    "note-answer.json": write_answer_note,
    "note-released.json": write_released_note,
    "interrupt.json": write_interrupt,
    "verdicts.sql": write_verdicts,
    "pairs.sql": write_pairs,
    "risk-monitor.json": write_risk_monitor,
    "drift-monitor.json": write_drift_monitor,
    "canary-monitor.json": write_canary,
    "draw.json": write_draw,
    "tokens.json": write_tokens,
    "reviews.sql": write_reviews,
    "plan.json": write_plan,
    "evaluation.json": write_evaluation,
    "estimator-table.json": write_estimator_table,
}
"""Writers of the files whose bytes are always the same, by file name."""
READ_ONLY: dict[str, Callable[[Path], None]] = {
    "note.packed": write_packed_note,
    "records-parts.parquet": write_part_columns,
}
"""Files that tests only read, because another zlib or pyarrow writes the same content as other bytes."""
BY_HAND = ("questions.csv", "questions.jsonl", "run.yaml", "tools.json")
"""Files that users write; this script does not write them."""


# -- help --------------------------------------------------------------------------------------------------------------


@contextmanager
def fixed_ids() -> Iterator[None]:
    """Replace random ids by counted ones, without the time."""
    numbers = itertools.count(1)

    def token(size: int) -> str:
        return f"{next(numbers):0{2 * size}x}"

    with patch("secrets.token_hex", token), patch("secrets.token_urlsafe", token), patch("time.time_ns", lambda: 0):
        yield


@contextmanager
def database(path: Path) -> Iterator[Path]:
    """Yield a file for a database; afterwards write its SQL to ``path``."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "golden.sqlite"
        yield file
        path.write_text(sql_of(file), encoding="utf-8")


def sql_of(file: Path) -> str:
    """Return a database as SQL: tables with their rows, then indexes and triggers; ``iterdump`` differs by Python."""
    with closing(sqlite3.connect(file)) as connection:
        (layout,) = connection.execute("PRAGMA user_version").fetchone()
        parts = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
            "ORDER BY type != 'table', name"
        ).fetchall()
        lines = [f"PRAGMA user_version={layout}"]
        for kind, name, sql in parts:
            lines.append(" ".join(sql.split()))  # line breaks depend on the version of SQLAlchemy
            if kind == "table":
                # The added 0 is for tables of one column: ORDER BY needs two.
                rows = connection.execute(f'SELECT *, 0 FROM "{name}" ORDER BY 1, 2').fetchall()
                lines += [f'INSERT INTO "{name}" VALUES({",".join(map(_literal, row[:-1]))})' for row in rows]
    return "".join(f"{line};\n" for line in lines)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(folder: Path = FOLDER) -> None:
    """Write all files."""
    for name, write in {**FORMATS, **READ_ONLY}.items():
        (folder / name).unlink(missing_ok=True)
        write(folder / name)


if __name__ == "__main__":
    main()
