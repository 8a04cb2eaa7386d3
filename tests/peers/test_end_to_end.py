"""Calibrating and gating through llama-server agrees with the local backend, within sampling noise.

The same 400 + 400 questions go through both: collected, scored, labelled, fitted separately, and gated. The
statistic is a difference of two gates, thresholds included. If both backends sample the same distribution, the two
drawings of a question are exchangeable; swapping them at random, for every question of either part, and fitting anew
gives the distribution of that difference without further assumptions (a paired permutation test of exact level).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from langchain_core.language_models import BaseChatModel

from calibrate import (
    Question,
    RecordFile,
    collect_records,
    fit,
    fit_artifact,
    label_records,
    make_rule,
    read_records,
    score_records,
)
from guardrail import CalibrationArtifact, Feasible, Guardrail
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.plan import plan_for
from tests.peers.conftest import questions
from tests.peers.servers import Peer

Array = npt.NDArray[np.float64]
Swaps = npt.NDArray[np.bool_]

N = 400
ALPHA = 0.1
SWAPS = 999
LEVEL = 0.01
"""Chance of a false alarm per comparison, for seeds other than those tried here."""


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one backend; infinity marks a question that could not be measured.

    Attributes:
        artifact: The fitted artifact.
        scores: Uncertainty of each calibration question.
        errors: 1 if the answer to a calibration question is wrong.
        gated: Uncertainty of each test question.
        accepted: Whether the guard accepted each test question.
    """

    artifact: CalibrationArtifact
    scores: Array
    errors: Array
    gated: Array
    accepted: Swaps


def _collected(
    model: BaseChatModel, rows: Sequence[Question], plan: SamplingPlan, path: Path, *, estimator: str, rule: str
) -> RecordFile:
    collected = collect_records(rows, model, plan, path)
    assert collected.n_drawn == len(rows)
    marking = make_rule(rule)
    file = score_records(read_records(path), [make(estimator)])
    header = file.header.model_copy(update={"correctness": marking.spec})
    return RecordFile(path, header, tuple(label_records(file.records, marking)))


def _values(file: RecordFile, estimator: str) -> Array:
    return np.array([_or_infinite(record.scores[estimator].value) for record in _in_order(file)])


def _in_order(file: RecordFile) -> list[Any]:
    return sorted(file.records, key=lambda record: record.id)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _run(model: BaseChatModel, name: str, path: Path, *, estimator: str, rule: str, plan: SamplingPlan) -> Run:
    rows = questions(name)
    calibration, test = rows[:N], rows[N : 2 * N]
    file = _collected(model, calibration, plan, path, estimator=estimator, rule=rule)
    artifact = fit_artifact(file, score=estimator, alpha=ALPHA, rule="acrc")
    guard = Guardrail(model=model, artifact=artifact)
    prompts = [artifact.prompt.messages(question.question, question.options) for question in test]
    with ThreadPoolExecutor(16) as pool:
        verdicts = list(pool.map(guard.assess, prompts))
    return Run(
        artifact,
        _values(file, estimator),
        np.array([float(not record.correct) for record in _in_order(file)]),
        np.array([_or_infinite(verdict.uncertainty.value) for verdict in verdicts]),
        np.array([verdict.accepted for verdict in verdicts]),
    )


@pytest.fixture(scope="module")
def open_runs(llama: Peer, local: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Open questions, semantic entropy of ten samples: here, and through the server."""
    folder = tmp_path_factory.mktemp("open")
    plan = plan_for([make("semantic_entropy")], max_tokens=16)
    here, there = (
        _run(model, "open", folder / name, estimator="semantic_entropy", rule="token_f1", plan=plan)
        for name, model in (("local.jsonl", local), ("llama.jsonl", llama.chat()))
    )
    return here, there


def _acceptance(scores: Array, errors: Array, gated: Array) -> float:
    """Return the share of test questions that a gate fitted on the scores accepts."""
    used = np.isfinite(scores)
    outcome = fit(scores[used], errors[used], alpha=ALPHA, rule="acrc")
    return float(np.mean(gated <= outcome.threshold)) if isinstance(outcome, Feasible) else 0.0


def _p_value(statistic: Callable[[Swaps, Swaps], float], sizes: tuple[int, int]) -> tuple[float, float]:
    """Return the observed statistic, and the share of random swaps (the observed one included) that is as large."""
    rng = np.random.default_rng(0)
    observed = statistic(np.zeros(sizes[0], bool), np.zeros(sizes[1], bool))
    drawn = [statistic(rng.random(sizes[0]) < 0.5, rng.random(sizes[1]) < 0.5) for _ in range(SWAPS)]
    as_large = sum(abs(value) >= abs(observed) - 1e-12 for value in drawn)
    return observed, (1 + as_large) / (1 + SWAPS)


def _swapped(a: Array, b: Array, swap: Swaps) -> tuple[Array, Array]:
    return np.where(swap, b, a), np.where(swap, a, b)


def test_acceptance_agrees_within_noise(open_runs: tuple[Run, Run]) -> None:
    here, there = open_runs
    assert np.mean(here.errors == there.errors) >= 0.99  # the greedy answers are the same

    def difference(calibration: Swaps, test: Swaps) -> float:
        scores = _swapped(here.scores, there.scores, calibration)
        errors = _swapped(here.errors, there.errors, calibration)
        gated = _swapped(here.gated, there.gated, test)
        a, b = (_acceptance(scores[i], errors[i], gated[i]) for i in (0, 1))
        return a - b

    observed, p = _p_value(difference, (N, N))
    # The recomputed gates are those of the guards.
    assert observed == pytest.approx(here.accepted.mean() - there.accepted.mean())
    assert 0.2 < there.accepted.mean() < 0.95  # a gate that accepts nothing or everything would agree as well
    assert p > LEVEL, f"acceptance differs by {observed:.3f}, p = {p}"


def _mean_difference(a: Array, b: Array) -> tuple[float, float]:
    both = np.isfinite(a) & np.isfinite(b)
    gaps = a[both] - b[both]
    return _p_value(lambda swap, _: float(np.where(swap, -gaps, gaps).mean()), (len(gaps), 0))


def test_mean_uncertainty_agrees_within_noise(open_runs: tuple[Run, Run]) -> None:
    """Sharper than acceptance, because a separate fit compensates for most defects of a distribution."""
    here, there = open_runs
    observed, p = _mean_difference(np.r_[here.scores, here.gated], np.r_[there.scores, there.gated])
    assert p > LEVEL, f"mean uncertainty differs by {observed:.4f} nats, p = {p}"


def test_the_comparison_notices_another_distribution(llama: Peer, open_runs: tuple[Run, Run], tmp_path: Path) -> None:
    """Negative control: the same server at another temperature fails this comparison."""
    plan = plan_for([make("semantic_entropy")], max_tokens=16).model_copy(update={"temperature": 1.0, "top_p": 1.0})
    hotter = _collected(
        llama.chat(),
        questions("open")[:N],
        plan,
        tmp_path / "hot.jsonl",
        estimator="semantic_entropy",
        rule="token_f1",
    )
    _, p = _mean_difference(open_runs[0].scores, _values(hotter, "semantic_entropy"))
    assert p <= LEVEL


def test_choices_are_gated_alike_question_by_question(llama: Peer, local: Any, tmp_path: Path) -> None:
    """Options are read, not sampled: the only noise is rounding."""
    plan = plan_for([make("predictive_entropy")], options=("A", "B", "C", "D"), max_tokens=4)
    here, there = (
        _run(model, "choice", tmp_path / name, estimator="predictive_entropy", rule="option", plan=plan)
        for name, model in (("local.jsonl", local), ("llama.jsonl", llama.chat()))
    )
    assert there.scores == pytest.approx(here.scores, abs=1e-3)
    assert there.gated == pytest.approx(here.gated, abs=1e-3)
    assert there.artifact.threshold == pytest.approx(here.artifact.threshold, abs=1e-3)
    assert np.mean(here.accepted == there.accepted) >= 0.995
    assert 0.2 < there.accepted.mean() < 0.99
