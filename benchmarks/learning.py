"""Gain from refitting on reviews, on recorded scores of real models: `python -m benchmarks.learning FOLDER`.

A threshold is fitted on 300 questions of some topics and then meets questions of all topics. 2,000 of them are asked:
people decide about every held-back answer and about a sample of the accepted ones. The threshold is fitted again on the
thinned sample, and, for contrast, on all decisions without thinning. All three are tested on the other questions.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.monitoring import REASONING, STEM, Data, mmbench, mmlu_pro
from calibrate.fitting import fit
from calibrate.reviews import ReviewedItem, ReviewPool, thinned
from guardrail.outcome import Feasible, accepts
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Sample, Uncertainty
from guardrail.verdict import Reason, Verdict

OLD, ASKED = 300, 2_000
RATES = (0.1, 0.3, 1.0)
ARTIFACT = make_artifact(ScriptedChat())
SYSTEMS = ("old", "refit, thinned", "refit, all decisions")


def template(accepted: bool) -> ReviewedItem:
    """Return an item to copy: validating thousands of verdicts would take minutes."""
    verdict = Verdict(
        accepted=accepted,
        reason=Reason.WITHIN_THRESHOLD if accepted else Reason.ABOVE_THRESHOLD,
        uncertainty=Uncertainty(value=0.0, unit="probability", estimator="recorded"),
        threshold=0.5,
        alpha=0.1,
        outcome=ARTIFACT.outcome,
        basis=Basis.SAMPLES,
        artifact=ARTIFACT.digest,
        candidate=Sample(text="a"),
    )
    return ReviewedItem(
        id="",
        name="",
        key="",
        question="",
        group=None,
        messages=None,
        verdict=verdict,
        chance=1.0,
        correct=True,
        open=False,
        action=None,
        arrived=0.0,
    )


TEMPLATES = {accepted: template(accepted) for accepted in (True, False)}


def pool_of(
    u: NDArray[np.float64], error: NDArray[np.int64], threshold: float, rate: float, rng: np.random.Generator
) -> ReviewPool:
    """Return the review queue after these questions."""
    items = []
    for score, wrong in zip(u.tolist(), error.tolist(), strict=True):
        accepted = bool(accepts(score, threshold))
        if accepted and rng.random() >= rate:
            continue
        item, name = TEMPLATES[accepted], f"{rng.integers(2**62)}"
        scored = item.verdict.uncertainty.model_copy(update={"value": score})
        verdict = item.verdict.model_copy(update={"uncertainty": scored})
        chance = rate if accepted else 1.0
        items.append(replace(item, id=name, key=name, verdict=verdict, chance=chance, correct=not wrong))
    return ReviewPool(tuple(items))


def threshold_of(u: NDArray[np.float64], error: NDArray[np.int64], alpha: float) -> float:
    """Return the threshold of the default rule; -inf if infeasible."""
    outcome = fit(u, error, alpha=alpha, rule="acrc")
    return outcome.threshold if isinstance(outcome, Feasible) else -np.inf


def arrays(items: list[ReviewedItem]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the scores and the errors of items."""
    scores = np.array([item.verdict.uncertainty.value for item in items], dtype=np.float64)
    return scores, np.array([not item.correct for item in items], dtype=np.int64)


def compare(data: Data, after: set[str], alpha: float, rate: float, splits: int) -> None:
    """Print one line of the table for each system."""
    rows: dict[str, list[tuple[int, int, int]]] = {system: [] for system in SYSTEMS}
    sizes: dict[str, list[int]] = {system: [OLD] if system == "old" else [] for system in SYSTEMS}
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        calibration = rng.permutation(np.flatnonzero(~np.isin(data.topic, sorted(after))))[:OLD]
        rest = rng.permutation(np.setdiff1d(np.arange(data.u.size), calibration))
        reviewed, test = rest[:ASKED], rest[ASKED:]
        old = threshold_of(data.u[calibration], data.error[calibration], alpha)
        if old == -np.inf:
            continue
        pool = pool_of(data.u[reviewed], data.error[reviewed], old, rate, rng)
        sample, _ = thinned(pool)
        thresholds = {"old": old}
        for system, items in (("refit, thinned", sample), ("refit, all decisions", list(pool.items))):
            thresholds[system] = threshold_of(*arrays(items), alpha)
            sizes[system].append(len(items))
        for system, threshold in thresholds.items():
            accepted = accepts(data.u[test], threshold)
            rows[system].append((test.size, int(accepted.sum()), int(data.error[test][accepted].sum())))
    for system, counts in rows.items():
        n, k, e = np.array(counts).sum(axis=0)
        broken = np.mean([wrong > alpha * n_accepted for _, n_accepted, wrong in counts])
        print(
            f"| {data.name}, alpha {alpha:g} | {rate:g} | {system} | {np.mean(sizes[system]):.0f} "
            f"| {100 * k / n:.1f} | {100 * e / max(1, k):.1f} | {broken:.2f} |",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the recorded scores")
    parser.add_argument("--splits", type=int, default=40)
    arguments = parser.parse_args()
    print("| data | audits | threshold | labels used | answered, % | wrong among them, % | above alpha |")
    print("|---|---|---|---|---|---|---|")
    for data, after, alpha in (
        (mmbench(arguments.folder, "v1.6-34b"), REASONING, 0.1),
        (mmlu_pro(arguments.folder, "gpt-4.1"), STEM, 0.15),
    ):
        for rate in RATES:
            compare(data, after, alpha, rate, arguments.splits)


if __name__ == "__main__":
    main()
