"""``guardrail doctor``: everything a guard relies on, checked once, with the mend beside each finding."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from langchain_core.language_models import BaseChatModel

from ._probe import needs_probe, probe
from .artifact import CalibrationArtifact
from .errors import GuardrailError
from .identity import identify
from .judges import Judge
from .models import resolve_model
from .outcome import Infeasible
from .probing import wants_probe
from .sampling import draw
from .types import SamplingPlan
from .uncertainty import Estimator, from_spec, measure

__all__ = ["Finding", "add_arguments", "examine", "run"]

Status = Literal["ok", "warn", "fail"]
QUESTION = "What is the capital of France?"
MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing.

    Attributes:
        check: What was checked.
        status: "ok", "warn" (works, but look at it) or "fail" (a guard would refuse or abstain).
        detail: What was found.
        mend: What to do about it; empty for "ok".
    """

    check: str
    status: Status
    detail: str
    mend: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("artifact", help="calibration artifact (JSON)")
    parser.add_argument(
        "--model",
        "-m",
        help="transformers:PATH_OR_ID, openai-compatible:MODEL@BASE_URL, python:MODULE:NAME, or a LangChain name such "
        "as openai:gpt-4o-mini; without it the model is not checked",
    )
    parser.add_argument("--question", default=QUESTION, help="what to ask for the cost of a question")
    parser.add_argument("--max-age-days", type=float, default=180.0, help="warn about an older calibration")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check, print, and return 1 when anything failed."""
    findings = []
    for finding in examine(
        arguments.artifact, arguments.model, question=arguments.question, max_age_days=arguments.max_age_days
    ):
        findings.append(finding)
        if not arguments.json:
            print(f"{MARKS[finding.status]}  {finding.check}: {finding.detail}")  # noqa: T201
            if finding.mend:
                print(f"      -> {finding.mend}")  # noqa: T201
    failed = any(finding.status == "fail" for finding in findings)
    if arguments.json:
        print(json.dumps({"ok": not failed, "findings": [asdict(f) for f in findings]}, indent=1))  # noqa: T201
    return int(failed)


def examine(
    path: str, model: str | BaseChatModel | None = None, *, question: str = QUESTION, max_age_days: float = 180.0
) -> Iterator[Finding]:
    """Check an artifact and, where a model is given, everything that needs it. Yields findings as they are made.

    Args:
        path: The artifact's file.
        model: A chat model, or a text that names one.
        question: What is asked to measure the cost of a question.
        max_age_days: An older calibration is worth a warning.
    """
    try:
        artifact = CalibrationArtifact.load(path)
    except GuardrailError as error:
        yield Finding("artifact", "fail", str(error), "make one with `calibrate fit`, or copy it again")
        return
    yield Finding("artifact", "ok", f"loads, digest {artifact.digest[:19]}")
    yield _feasible(artifact)
    yield _age(artifact, max_age_days)
    yield from _packages(artifact)
    estimator = None
    try:
        estimator = from_spec(artifact.estimator)
    except GuardrailError as error:
        mend = "install what is named, or pass the judge as an object: Guardrail(judge=...)"
        yield Finding("estimator", "fail", str(error), mend)
    if estimator is not None:
        yield Finding("estimator", "ok", f"{estimator.name} version {estimator.version} can be made")
        yield _plan(artifact.plan, estimator)
        yield from _judge(estimator)
    if model is None:
        yield Finding("model", "warn", "not checked", "name it with --model")
        return
    found = _model(model, artifact)
    if isinstance(found, Finding):
        yield found
        return
    yield Finding("model", "ok", f"{artifact.model.model} is the calibrated one")
    yield from _endpoint(found, artifact.plan)
    yield from _question(found, artifact, estimator, question)


def _feasible(artifact: CalibrationArtifact) -> Finding:
    outcome = artifact.outcome
    if isinstance(outcome, Infeasible):
        return Finding(
            "threshold",
            "fail",
            f"none keeps the error at {outcome.alpha:g} ({outcome.reason.value}), so everything is held back",
            "calibrate with a larger alpha, more questions, or a better model",
        )
    return Finding("threshold", "ok", f"{outcome.threshold:.4g} for {outcome.alpha:.0%} error ({outcome.rule})")


def _age(artifact: CalibrationArtifact, limit: float) -> Finding:
    try:
        created = datetime.fromisoformat(artifact.created)
        days = (datetime.now(UTC) - created).total_seconds() / 86_400
    except (TypeError, ValueError):
        return Finding("age", "warn", f"creation time {artifact.created!r} cannot be read", "calibrate again")
    if days > limit:
        return Finding("age", "warn", f"{days:.0f} days old", "audit it on fresh questions: `calibrate audit`")
    return Finding("age", "ok", f"{days:.0f} days old")


def _packages(artifact: CalibrationArtifact) -> Iterator[Finding]:
    for name, calibrated in artifact.packages.items():
        try:
            running = version(name)
        except PackageNotFoundError:
            continue
        if running != calibrated:
            mend = "scores may move: audit on fresh questions, or install the calibrated version"
            yield Finding("packages", "warn", f"{name} {running} is running, {calibrated} calibrated", mend)


def _plan(plan: SamplingPlan, estimator: Estimator) -> Finding:
    """Whether the artifact's plan draws what its estimator reads."""
    needs = estimator.needs
    lacking = [
        name
        for name, needed, given in (
            ("samples", needs.samples, plan.n >= 2),
            ("log-probabilities", needs.logprobs, plan.logprobs),
            ("options", needs.options, plan.options is not None),
        )
        if needed and not given
    ]
    if lacking:
        detail = f"{estimator.name} needs {', '.join(lacking)}, which it does not draw"
        return Finding("plan", "fail", detail, "calibrate again")
    drawn = f"one greedy answer and {plan.n} samples at temperature {plan.temperature:g}" if plan.n else "one answer"
    return Finding("plan", "ok", f"draws what {estimator.name} needs: {drawn}")


CALL_A, CALL_B = (f'[{{"arguments":{{}},"name":"{name}"}}]' for name in ("open", "close"))
PAIRS = (
    (("Paris", "Paris"), ("Paris", "Rome")),
    (("42", "42"), ("42", "7")),
    ((CALL_A, CALL_A), (CALL_A, CALL_B)),
)
"""An equal and a different pair, as texts, numbers and tool calls: a judge needs to know one kind."""


def _judge(estimator: Estimator) -> Iterator[Finding]:
    """Whether the judge tells equal from different answers, and the similarity rates them in that order."""
    if estimator.judge is not None:
        yield _verdicts(estimator.judge)
    if estimator.similarity is not None:
        name = estimator.similarity.spec.name
        try:
            same, other = estimator.similarity.similarity(QUESTION, list(PAIRS[0]))
        except Exception as error:  # somebody else's code
            yield Finding("similarity", "fail", f"{name}: {type(error).__name__}: {error}", "mend it")
            return
        if same is not None and other is not None and same > other:
            yield Finding("similarity", "ok", f"{name} rates equal answers {same:.2f} and different ones {other:.2f}")
        else:
            detail = f"{name} rates equal answers {same} and different ones {other}"
            yield Finding("similarity", "fail", detail, "check its model and revision")


def _verdicts(judge: Judge) -> Finding:
    name, start = judge.spec.name, time.perf_counter()
    found = []
    for pairs in PAIRS:
        try:
            found.append(tuple(judge.equivalent(QUESTION, list(pairs))))
        except Exception as error:  # somebody else's code
            detail = f"{name}: {type(error).__name__}: {error}"
            return Finding("judge", "fail", detail, "mend it; until then all abstain")
    seconds = time.perf_counter() - start
    if (True, False) in found:
        return Finding("judge", "ok", f"{name} tells equal from different answers ({seconds:.2f} s)")
    detail = f"{name} does not tell equal from different answers: {found}"
    return Finding("judge", "fail", detail, "check its model and revision")


def _model(model: str | BaseChatModel, artifact: CalibrationArtifact) -> BaseChatModel | Finding:
    try:
        made = resolve_model(model) if isinstance(model, str) else model
    except Exception as error:  # loading weights or a user's module can raise anything
        return Finding("model", "fail", f"{type(error).__name__}: {error}", "mend the name, or install what is named")
    try:
        artifact.check_model(identify(made))
    except GuardrailError as error:
        return Finding("model", "fail", str(error), "load the calibrated model, or calibrate this one")
    return made


def _endpoint(model: BaseChatModel, plan: SamplingPlan) -> Iterator[Finding]:
    if not needs_probe(model) or not wants_probe(plan):
        yield Finding("endpoint", "ok", "none: the model samples here, or the plan draws nothing that needs a probe")
        return
    report, _ = probe(model, plan, again=True)
    assert report is not None
    problem = report.problem(plan)
    if problem is not None:
        yield Finding("endpoint", "fail", problem[1], "mend the server; until then every answer is held back")
        return
    yield Finding("endpoint", "ok", "; ".join(report.lines()))
    if report.n is False and plan.n:
        mend = "nothing needs to be done; a server that honours n would read the prompt once"
        yield Finding("endpoint", "warn", f"n is ignored, so a question costs {plan.n + 1} calls", mend)
    if plan.logprobs and report.basis == "unknown":
        mend = "see the server's documentation; scores of calibration and run time agree in any case"
        yield Finding(
            "endpoint", "warn", "whether log-probabilities are before or after temperature is not known", mend
        )


def _question(
    model: BaseChatModel, artifact: CalibrationArtifact, estimator: Estimator | None, question: str
) -> Iterator[Finding]:
    """Ask one question by the plan: does it come back whole, can it be measured, what does it cost?"""
    plan = artifact.plan
    options = {label: f"option {label}" for label in plan.options} if plan.options is not None else None
    messages = artifact.prompt.messages(question, options)
    try:
        drawn = draw(model, [messages], plan)[0]
    except GuardrailError as error:
        yield Finding("sampling", "fail", str(error), "use a model that can do what the plan asks for")
        return
    if drawn.problem is not None:
        yield Finding(
            "sampling",
            "fail",
            f"{drawn.problem.value}: {drawn.problem_detail}",
            "mend the cause; until then all abstain",
        )
    else:
        distinct = len({(sample.text, str(sample.tool_calls)) for sample in drawn.samples})
        samples = f"{len(drawn.samples)} samples, {distinct} different" if plan.n else "the primary answer"
        yield Finding("sampling", "ok", f"received {samples}")
        if estimator is not None:
            found = measure(drawn, estimator, plan)
            if found.value is None:
                detail = f"{found.reason}: {found.detail}"
                yield Finding("measuring", "fail", detail, "mend the cause; until then all abstain")
            else:
                yield Finding("measuring", "ok", f"{estimator.name} = {found.value:.4g}")
    cost = drawn.cost
    yield Finding(
        "cost of a question",
        "ok",
        f"{cost.calls} calls, {cost.input_tokens} tokens read, {cost.output_tokens} written, {cost.seconds:.2f} s "
        "(measured on one question)",
    )
