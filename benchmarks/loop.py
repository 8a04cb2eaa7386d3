"""Share of seeds with which the loop of docs/loop.md breaks its promise, and the labelling faults that break it.

`make demo-serve` leaves the questions that its gateway observed, scored. For each seed: a random part of them is the
traffic, `calibrate sample` draws what to label, people label it, and `calibrate fit` chooses a threshold. The error
rate among the answers that this threshold gives is known for all of them; above alpha, the promise is broken. (The
samples of a question are drawn by the plan's seed, so that a question has the same score whenever it is asked.)

Controls. Where people skip every second wrong answer, the promise must be broken more often. Where they label only what
the model is certain of, `fit` must refuse the labels. Rule `empirical`, which certifies nothing, is shown beside.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrate.correctness import label_records, make_rule
from calibrate.data.formats.questions import read_questions
from calibrate.data.questions import Question
from calibrate.data.records import Record, RecordFile, read_records
from calibrate.pipeline import fit_artifact
from calibrate.scope import draw_to_label
from examples.demo import loop
from guardrail.errors import UsageError
from guardrail.outcome import accepts

__all__ = ["CASES", "SKIPPED", "SeedResult", "over_seeds"]

TRAFFIC = 0.7
"""Share of the questions that a seed's traffic has."""
SKIPPED = "certified, every second wrong answer unlabelled"
CASES = ("certified", "empirical", SKIPPED)


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed.

    Attributes:
        error: Error rate among the answers given to all questions, by case; 0 if no answer is given.
        answered: Share of all questions that are answered, by case.
        refused: Whether `fit` refused labels on the most certain answers only.
    """

    error: dict[str, float]
    answered: dict[str, float]
    refused: bool


def over_seeds(
    file: RecordFile, questions: Iterable[Question], seeds: Iterable[int], sizes: loop.Sizes
) -> list[SeedResult]:
    """Run the steps after the traffic, seed by seed.

    Args:
        file: All questions, scored.
        questions: The same, with references.
        seeds: Each chooses its traffic, and what to label of it.
        sizes: The number of labels, the scope and alpha.
    """
    references, rule = {question.question: question.references for question in questions}, make_rule("token_f1")
    records = [record.model_copy(update={"references": references[record.question]}) for record in file.records]
    everything = label_records(records, rule)
    u = np.array([record.scores[loop.ESTIMATOR].value for record in everything], dtype=float)
    wrong = np.array([not record.correct for record in everything])
    header = file.header.model_copy(update={"correctness": rule.spec})
    truth = {record.id: record for record in everything}

    def fitted(drawn: RecordFile, labelled: Iterable[Record], kind: str) -> float | None:
        """Return the threshold: below every score if no threshold is feasible, None if the labels are refused."""
        file = RecordFile(drawn.path, drawn.header, tuple(labelled))
        try:
            threshold = fit_artifact(file, score=loop.ESTIMATOR, alpha=sizes.alpha, rule=kind).threshold
        except UsageError:
            return None
        return -np.inf if threshold is None else threshold

    rows = []
    for seed in seeds:
        chosen = np.random.default_rng(seed).permutation(len(everything))[: round(TRAFFIC * len(everything))]
        traffic = RecordFile(file.path, header, tuple(records[i] for i in chosen.tolist()))
        drawn = draw_to_label(traffic, loop.ESTIMATOR, share=sizes.scope, n=sizes.labels, seed=seed)
        labelled = [truth[record.id] for record in drawn.records]
        some = np.random.default_rng([seed, 1]).random(len(labelled)) < 0.5
        skipping = [
            bare if skip and not record.correct else record
            for record, bare, skip in zip(labelled, drawn.records, some.tolist(), strict=True)
        ]
        thresholds = [
            fitted(drawn, labelled, "certified"),
            fitted(drawn, labelled, "empirical"),
            fitted(drawn, skipping, "certified"),
        ]
        gates = {
            case: accepts(u, -np.inf if threshold is None else threshold)
            for case, threshold in zip(CASES, thresholds, strict=True)
        }
        least = float(np.quantile([record.scores[loop.ESTIMATOR].value or 0.0 for record in labelled], 0.5))
        certain = [
            record if (record.scores[loop.ESTIMATOR].value or 0.0) <= least else bare
            for record, bare in zip(labelled, drawn.records, strict=True)
        ]
        refused = fitted(drawn, certain, "certified") is None
        rows.append(
            SeedResult(
                {case: float(wrong[passed].mean()) if passed.any() else 0.0 for case, passed in gates.items()},
                {case: float(passed.mean()) for case, passed in gates.items()},
                refused,
            )
        )
    return rows


def main() -> None:
    """Print the table."""
    from examples.demo.embedded import TASKS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    default = Path("demo-output") / "loop" / "scored.jsonl"
    parser.add_argument("--records", type=Path, default=default, help="what `make demo-serve` observed and scored")
    arguments = parser.parse_args()
    sizes, questions, file = loop.Sizes(), read_questions(TASKS[0].questions), read_records(arguments.records)
    rows = over_seeds(file, questions, range(arguments.seeds), sizes)
    print(f"{len(file.records):,} questions, {sizes.labels} labels, scope {sizes.scope:g}, alpha {sizes.alpha:g}\n")
    print("| labels and rule | seeds | broken | error among answers given, mean (largest) | answered, mean (least) |")
    print("|---|---|---|---|---|")
    for case in CASES:
        error = np.array([row.error[case] for row in rows])
        answered = np.array([row.answered[case] for row in rows])
        print(
            f"| {case} | {len(rows)} | {int((error > sizes.alpha).sum())} | {error.mean():.1%} ({error.max():.1%}) "
            f"| {answered.mean():.1%} ({answered.min():.1%}) |"
        )
    print(f"\nLabels on the more certain half of the draw only: refused for {sum(row.refused for row in rows)} seeds.")


if __name__ == "__main__":
    main()
