"""A question is measured once: simulated calibrations, guards with every kind of retry, and exact error rates.

Questions are of kinds whose shares, error rates and chances of an empty answer are known, so the error rate among
answers follows exactly from what a guard does with each kind. Real guards on scripted models show what a guard does.
The negative controls draw again, and break the same promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from langchain_core.runnables.retry import RunnableRetry
from pydantic import Field
from scipy import stats

from calibrate.fitting import fit
from guardrail import AbstainedError, Guardrail
from guardrail.outcome import Feasible
from guardrail.sampling.calls import SAMPLE_INDEX
from guardrail.testing import ScriptedChat, make_artifact

ALPHA, DELTA, RUNS, ATTEMPTS = 0.1, 0.1, 200, 6
FALSE_ALARM = 1e-4
"""Chance that a test here fails although the promise holds exactly at its limit."""


@dataclass(frozen=True)
class Kind:
    """Questions of one kind.

    Attributes:
        share: Share of all questions.
        wrong: Error rate of its answers.
        samples: The samples of a draw without an empty answer.
        score: Discrete semantic entropy of the samples.
        empty: Chance that a draw has an empty answer (at the first draws).
    """

    share: float
    wrong: float
    samples: tuple[str, ...]
    score: float
    empty: float = 0.0


class Rounds(ScriptedChat):
    """A model of one question, whose answers depend on the number of earlier draws."""

    rounds: Any
    calls: Any = Field(default_factory=Counter, repr=False)  # LangChain writes the fields out at every call

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        index = (run_manager.metadata if run_manager else {}).get(SAMPLE_INDEX, -1)
        answers = self.rounds[min(self.calls[index], len(self.rounds) - 1)]
        self.calls[index] += 1
        return ScriptedChat(default=answers)._generate(messages, stop, run_manager, **kwargs)


def error_rate(kinds: tuple[Kind, ...], answered: Callable[[Kind, int], bool]) -> float:
    """Return P(wrong | answered); ``answered(kind, k)`` tells whether a question is answered after k empty draws."""
    answered_share = wrong = 0.0
    for kind in kinds:
        for empty in range(ATTEMPTS + 1):
            chance = kind.empty**empty * ((1 - kind.empty) if empty < ATTEMPTS else 1)
            answered_share += kind.share * chance * answered(kind, empty)
            wrong += kind.share * chance * answered(kind, empty) * kind.wrong
    return wrong / answered_share if answered_share else 0.0


@cache
def thresholds(kinds: tuple[Kind, ...], n: int) -> list[tuple[float | None, float]]:
    """Return the certified thresholds of simulated calibration sets, and their shares of unmeasured questions."""
    rng = np.random.default_rng(20261122)
    fits = []
    for _ in range(RUNS):
        drawn = [kinds[i] for i in rng.choice(len(kinds), size=n, p=[kind.share for kind in kinds])]
        measured = [kind for kind in drawn if rng.random() >= kind.empty]
        scores = np.array([kind.score for kind in measured])
        errors = np.array([rng.random() < kind.wrong for kind in measured]).astype(np.int64)
        out = fit(scores, errors, alpha=ALPHA, delta=DELTA, rule="certified")
        fits.append((out.threshold if isinstance(out, Feasible) else None, 1 - len(measured) / n))
    return fits


def violations(kinds: tuple[Kind, ...], n: int, answers: Callable[[float], Callable[[Kind, int], bool]]) -> int:
    """Count the calibrations in which the guard's exact error rate is above alpha."""
    fits = thresholds(kinds, n)
    rates = {t: error_rate(kinds, answers(t)) for t in {t for t, _ in fits if t is not None}}
    assert len([t for t, _ in fits if t is not None]) > RUNS / 2  # else nothing is tested
    return sum(t is not None and rates[t] > ALPHA for t, _ in fits)


MOST = int(stats.binom.ppf(1 - FALSE_ALARM, RUNS, DELTA))
"""More violations than this refute the promise."""


# -- retries


LEVELS = {0.0: "aaaa", 0.562335: "aaab", 0.693147: "aabb", 1.039721: "aabc", 1.386294: "abcd"}
SHARES, RIGHT, RISKY = (0.4, 0.2, 0.15, 0.15, 0.1), (0.01, 0.02, 0.04, 0.08, 0.2), (0.15, 0.25, 0.35, 0.5, 0.7)
RETRIED = tuple(
    Kind(share * part, wrong, tuple(says), score, empty)
    for share, right, risky, (score, says) in zip(SHARES, RIGHT, RISKY, LEVELS.items(), strict=True)
    for part, wrong, empty in ((0.6, right, 0.0), (0.4, risky, 0.7))
)
"""Kinds of questions; hard ones often get an empty answer, and their other answers are more often wrong."""


def loop(guard: Guardrail) -> Any:
    for _ in range(ATTEMPTS - 1):
        try:
            return guard.invoke("q")
        except AbstainedError:
            continue
    return guard.invoke("q")


AT_ONCE: dict[str, Any] = {"wait_exponential_jitter": False}
POLICIES: dict[str, Callable[[Guardrail], Any]] = {
    "once": lambda guard: guard.invoke("q"),
    "with_retry": lambda guard: guard.with_retry(wait_exponential_jitter=False, stop_after_attempt=ATTEMPTS).invoke(
        "q"
    ),
    "LangChain's retry": lambda guard: RunnableRetry[Any, Any](
        bound=guard, retry_exception_types=(Exception,), max_attempt_number=ATTEMPTS, **AT_ONCE
    ).invoke("q"),
    "loop": loop,
}


@cache
def policy(name: str, remember: float, threshold: float, samples: tuple[str, ...], empty: int) -> bool:
    """Return whether a question with ``empty`` empty draws first is answered."""
    model = Rounds(rounds=[[""]] * empty + ([[samples[0], *samples]] if empty < ATTEMPTS else []))
    artifact = make_artifact(model, threshold=threshold + 1e-6, n=4)
    guard = Guardrail(model=model, artifact=artifact, on_abstain="raise", remember=remember)
    try:
        return bool(POLICIES[name](guard).content)
    except AbstainedError:
        return False


def answering(name: str, remember: float) -> Callable[[float], Callable[[Kind, int], bool]]:
    return lambda threshold: lambda kind, empty: policy(name, remember, threshold, kind.samples, empty)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "with_retry" else name for name in POLICIES]
)
def test_no_retry_breaks_a_certificate(name: str) -> None:
    assert violations(RETRIED, 600, answering(name, 300)) <= MOST


@pytest.mark.parametrize("name", ["LangChain's retry", pytest.param("loop", marks=pytest.mark.slow)])
def test_negative_control_drawing_again_does(name: str) -> None:
    assert violations(RETRIED, 600, answering(name, 0)) > 2 * MOST
    once, again = (error_rate(RETRIED, answering(name, remember)(1.039721)) for remember in (300, 0))
    assert once < ALPHA < again
