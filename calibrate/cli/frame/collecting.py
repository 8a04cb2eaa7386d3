"""A collection: its calls, time and price before it starts, a progress bar, and its printed result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from langchain_core.language_models import BaseChatModel

from guardrail.judges.cache import PairCache
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator, Scorer

from ...data.batches import Batches
from ...data.collect import BATCH_SIZE, CONCURRENCY, Collected, DrawingEngine, collect_records
from ...data.progress import bar
from ...data.questions import Question
from ...data.records import Record, read_records
from ...scoring.compute import uses_models
from ...scoring.names import estimator_key
from .settings import CollectSettings
from .terminal import console, print_line

SECONDS = 1.0
"""Seconds an answer of local weights, where none on file was timed: an assumption, and the forecast says so."""
_VARIABLE = {"selfcheck_prompt"}
"""Follow-ups whose number of questions depends on what was drawn; they ask at least one."""


def asking(
    parts: Sequence[tuple[Sequence[Question], Path]],
    plan: SamplingPlan,
    scorers: Sequence[Scorer],
    settings: CollectSettings,
    *,
    local: bool,
    price: float | None,
) -> list[str]:
    """Lines about the model's and the scorers' calls, for questions with the record file of their answers.

    A model is ``local`` if it draws in batches by itself, instead of one call at a time.
    """
    files = [read_records(path).records for _, path in parts if path.is_file()]
    on_file = [record for records in files for record in records if not record.may_be_drawn_again]
    known = {record.id for record in on_file}
    n = sum(len(questions) for questions, _ in parts)
    n_left = sum(question.id not in known for questions, _ in parts for question in questions)
    if not n_left:
        lines = [f"1. Asking: no calls; the answers to all {n:,} questions are on file."]
    else:
        named = [name for name in plan.follow_ups if not name.startswith(SCORE)]
        calls_each = 1 + plan.n + len(named)
        calls = "call" if calls_each == 1 else "calls"
        asked = f", {len(named)} of them a question about the answers" if named else ""
        least = "at least " if _VARIABLE.intersection(named) else ""
        kept = "" if n_left == n else f" ({n - n_left:,} of {n:,} are on file)"
        sizes = [len(questions) for questions, _ in parts if questions]
        purposes = f" ({sizes[0]:,} to calibrate, then {sizes[1]:,} to test)" if len(sizes) == 2 else ""
        money = "" if price is None else f", {n_left * calls_each * price:,.2f} at {price:g} a call"
        time = _time(on_file, n_left, plan, settings, calls_each, local=local)
        lines = [
            f"1. Asking: {n_left:,} questions{kept}{purposes} x {least}{calls_each} {calls}{asked} = {least}"
            f"{n_left * calls_each:,} calls{money}{time}. Stop it at any time: the same command goes on."
        ]
    for scorer in scorers:
        text = f"{n_left:,} scores, no model calls" if n_left else "no scores, no model calls"
        if scorer.calls and n_left:
            priced = "" if price is None else ", which the price leaves out"
            calls = f"{scorer.calls} calls each by its own account = {n_left * scorer.calls:,} calls"
            text = f"one score a question, {calls}{priced}"
        lines.append(f"   Scorer {scorer.name}: {text}.")
    return lines


def _time(
    on_file: Sequence[Record],
    n_left: int,
    plan: SamplingPlan,
    settings: CollectSettings,
    calls_each: int,
    *,
    local: bool,
) -> str:
    """The time of the answers that are left, by that of the answers on file.

    The probe of an endpoint times its calls, and `collect_records` says how long all of them take.
    """
    seconds = [record.drawn.cost.seconds for record in on_file if record.drawn and record.drawn.cost.seconds > 0]
    if seconds:
        at_once = (settings.batch_size or BATCH_SIZE) if local else (settings.max_concurrency or CONCURRENCY)
        # A question keeps as many calls busy as it has answers; a local model answers its whole batch at once.
        beside = at_once if local else max(1, at_once // (1 + plan.n))
        minutes = max(1, math.ceil(n_left * sum(seconds) / len(seconds) / beside / 60))
        return f"; about {minutes:,} min by the time of the {len(seconds):,} on file"
    if local:
        minutes = max(1, math.ceil(n_left * calls_each * SECONDS / 60))
        return f"; about {minutes:,} min if an answer takes {SECONDS:g} s, which is assumed: nothing is timed yet"
    return ""


def judging(n: int, plan: SamplingPlan, estimators: Sequence[Estimator], replies: Sequence[Path] | None) -> str:
    """The line about scores, labels and the fit; ``replies`` are files of a model that labels, None without one."""
    scoring = "seconds, no calls"
    if slow := [estimator_key(estimator) for estimator in estimators if uses_models([estimator])]:
        answers = plan.n + 1
        scoring = (
            f"{', '.join(slow)} asks a model about up to {answers * (answers - 1) // 2} pairs of answers a question, "
            "except pairs it was asked about before"
        )
    labels = "seconds, no calls"
    if replies is not None:
        known = sum(len(PairCache(path)) for path in replies if path.is_file())
        labels = f"up to {max(0, n - known):,} calls of the model that judges, which the price leaves out"
    return f"2. Scoring: {scoring}. Labels: {labels}. Fit and report: about a minute."


def ask(
    questions: Sequence[Question],
    model: BaseChatModel,
    out: Path,
    settings: CollectSettings,
    *,
    name: str,
    title: str = "asking",
    batches: Batches | None = None,
    engine: DrawingEngine | None = None,
) -> Collected:
    """Ask every question that is not in the record file yet, with a progress bar, and print the result."""
    with bar(console, title) as progress:
        collected = collect_records(
            questions,
            model,
            settings.plan(questions),
            out,
            prompt=settings.prompt(questions),
            name=name,
            batch_size=settings.batch_size,
            max_concurrency=settings.max_concurrency,
            allow_identical_samples=settings.allow_identical_samples,
            probe=settings.probe,
            batches=batches,
            engine=engine,
            scorer=settings.scorers(),
            progress=progress,
            notice=print_line,
        )
    _print_collected(collected)
    return collected


def _print_collected(collected: Collected) -> None:
    """Print how many questions are on file, and what failed or was cut off."""
    resumed = f" ({collected.n_resumed} were there already)" if collected.n_resumed else ""
    on_file = collected.n_resumed + collected.n_drawn - collected.n_failed
    print_line(f"{on_file} of {collected.n_questions} questions are on file{resumed}.")
    if collected.n_failed:
        print_line(
            f"{collected.n_failed} failed at the server, a rate limit or a time-out. The same command asks only these "
            "again.",
            "yellow",
        )
    if (held := sum(collected.problems.values()) - collected.n_failed) > 0:
        print_line(f"{held} have no whole answer (a refusal, an empty or rejected one) and will abstain.", "yellow")
    if collected.problems:
        for problem, count in sorted(collected.problems.items(), key=lambda item: -item[1])[:5]:
            print_line(f"  {count} x {problem}", "yellow")
    if collected.n_cut_off:
        print_line(
            f"{collected.n_cut_off} primary answers were cut off at the plan's max_tokens. A guard holds such answers "
            "back, unless you collect with --set cut_off=measure. Collect into a new file with a larger --max-tokens.",
            "yellow",
        )
