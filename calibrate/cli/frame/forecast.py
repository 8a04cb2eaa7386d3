"""The forecast of a run before it starts: which part takes how many calls, how long, and at what price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from guardrail.judges.cache import PairCache
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator, Scorer

from ...data.collect import BATCH_SIZE, CONCURRENCY
from ...data.questions import Question
from ...data.records import Record, read_records
from ...scoring.scores import estimator_key, uses_models
from .settings import CollectSettings

__all__ = ["SECONDS", "asking", "judging"]

SECONDS = 1.0
"""Seconds a call, where no answer on file was timed: an assumption, and the forecast says so."""
VARIABLE = {"selfcheck_prompt"}
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
    """Lines about the model's and the scorers' calls.

    Args:
        parts: Questions with the record file of their answers; those whose server failed are asked again.
        plan: The sampling plan.
        scorers: The scorers that the plan names.
        settings: Calls at once.
        local: Whether the model draws in batches by itself, instead of one call at a time.
        price: Price of one call of the model.
    """
    on_file: list[Record] = []
    n_left = 0
    for questions, path in parts:
        there = [
            record for record in (read_records(path).records if path.is_file() else ()) if not record.may_be_drawn_again
        ]
        n_left += len({question.id for question in questions} - {record.id for record in there})
        on_file += there
    n = sum(len(questions) for questions, _ in parts)
    named = [name for name in plan.follow_ups if not name.startswith(SCORE)]
    each = 1 + plan.n + len(named)
    kept = "" if n_left == n else f" ({n - n_left:,} of {n:,} are on file)"
    if not n_left:
        lines = [f"1. Asking: no calls; the answers to all {n:,} questions are on file."]
    else:
        at_once = (settings.batch_size or BATCH_SIZE) if local else (settings.max_concurrency or CONCURRENCY)
        seconds = [
            cost.seconds for cost in (record.drawn.cost for record in on_file if record.drawn) if cost.seconds > 0
        ]
        if seconds:
            # A question keeps as many calls busy as it has answers; a local model answers its whole batch at once.
            beside = at_once if local else max(1, at_once // (1 + plan.n))
            minutes = n_left * sum(seconds) / len(seconds) / beside / 60
            basis = f"by the time of the {len(seconds):,} on file"
        else:
            minutes = n_left * each * SECONDS / (1 if local else at_once) / 60
            unit = "an answer" if local else "a call"
            basis = f"if {unit} takes {SECONDS:g} s, which is assumed: nothing is timed yet"
        money = "" if price is None else f", {n_left * each * price:,.2f} at {price:g} a call"
        least = "at least " if VARIABLE.intersection(named) else ""
        asked = f", {len(named)} of them a question about the answers" if named else ""
        every = f"{least}{each} call{'s' * (each > 1)}{asked}"
        lines = [
            f"1. Asking: {n_left:,} questions{kept} x {every} = {least}{n_left * each:,} calls{money}; "
            f"about {max(1, math.ceil(minutes)):,} min {basis}. Stop it at any time: the same command goes on."
        ]
    for scorer in scorers:
        if scorer.calls and n_left:
            priced = "" if price is None else ", which the price leaves out"
            lines.append(
                f"   Scorer {scorer.name}: one score a question, {scorer.calls} calls each by its own account = "
                f"{n_left * scorer.calls:,} calls{priced}."
            )
        else:
            lines.append(f"   Scorer {scorer.name}: {f'{n_left:,} scores' if n_left else 'no scores'}, no model calls.")
    return lines


def judging(n: int, plan: SamplingPlan, estimators: Sequence[Estimator], replies: Sequence[Path] | None) -> str:
    """The line about scores, labels and the fit.

    Args:
        n: Questions in all.
        plan: The sampling plan.
        estimators: The scores.
        replies: Files with the replies of the model that labels, so far; None where no model labels.
    """
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
