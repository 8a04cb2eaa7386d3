"""Reviewers' lists on recorded answers of real models: misses, length, and what epsilon can be promised.

    python -m benchmarks.candidate_sets ../shared/data

A third of the questions fits the threshold (alpha = 0.1); the rest is split 200 times at random into a half that fits
the list and a half that checks it. Everything is seeded.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.published import import_published
from calibrate.candidate_sets import Judged, fit_candidates, judge_candidates
from calibrate.correctness import label_records, make_rule
from calibrate.data.records import RecordFile
from calibrate.pipeline import fit_artifact
from calibrate.scoring.compute import score_records
from guardrail.errors import UsageError
from guardrail.review.candidates import CandidateRule, Population, ranked, shown_answers
from guardrail.uncertainty import make_estimator as make

FILES = (("triviaqa-20samples.jsonl", "token_f1"), ("gsm8k-13variants.jsonl", "numeric"))
ESTIMATOR = "discrete_semantic_entropy"
SPLITS, ALPHA = 200, 0.1
POPULATIONS: tuple[Population, ...] = ("held_back", "all")


def measure(path: Path, correctness: str) -> None:
    """Print the rows of one file."""
    imported = import_published(path)
    rule = make_rule(correctness)
    estimator = make(ESTIMATOR)
    scored = score_records(imported.file, [estimator])
    header = scored.header.model_copy(update={"correctness": rule.spec})
    records = label_records(scored.records, rule)
    shuffled = list(records)
    random.Random(0).shuffle(shuffled)
    third = len(shuffled) // 3
    file = RecordFile(path, header, tuple(shuffled))
    artifact = fit_artifact(file, score=ESTIMATOR, alpha=ALPHA, part=shuffled[:third])
    judged, left_out = judge_candidates(RecordFile(path, header, tuple(shuffled[third:])), artifact, rule)
    held_back = [candidate for candidate in judged if not candidate.accepted]
    print(f"\n{path.name}: {len(judged)} questions judged, {len(held_back)} held back, {left_out} left out")
    print("population  epsilon  promised  attainable  missed where promised  all answers miss  mean length  of answers")
    for population in POPULATIONS:
        pool = held_back if population == "held_back" else judged
        for epsilon in (0.1, 0.2):
            rng, rows, missed, attainable = random.Random(1), [], [], []
            without = fmean(candidate.score == math.inf for candidate in pool)
            for _ in range(SPLITS):
                rng.shuffle(pool)
                half = len(pool) // 2
                fitted = fit_candidates(pool[:half], artifact, epsilon=epsilon, population=population)
                attainable.append(fitted.attainable)
                rows.append(evaluate_candidates(pool[half:], fitted))
                if fitted.quantile is not None:
                    missed.append(1 - rows[-1].covered)
            print(
                f"{population:10}  {epsilon:7.1f}  {len(missed) / SPLITS:8.0%}  {fmean(attainable):10.3f}  "
                f"{fmean(missed) if missed else math.nan:21.3f}  {without:16.3f}  "
                f"{fmean(r.mean_size for r in rows):11.2f}  {fmean(r.mean_all for r in rows):10.2f}"
            )


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage and size of a rule's sets on some questions.

    Attributes:
        n: Questions.
        covered: Share whose set holds an acceptable answer.
        mean_size: Answers in the set, on average.
        mean_all: Answers there were to show, on average.
    """

    n: int
    covered: float
    mean_size: float
    mean_all: float


def evaluate_candidates(judged: Sequence[Judged], rule: CandidateRule) -> Coverage:
    """Coverage and size on other questions than the rule was fitted on.

    Raises:
        UsageError: No question of the rule's population.
    """
    chosen = [question for question in judged if rule.population == "all" or not question.accepted]
    if not chosen:
        raise UsageError(f"no question of the rule's population ({rule.population}) among {len(judged)}.")
    limit = math.inf if rule.quantile is None else rule.quantile
    sizes = [
        sum(s <= limit for s in ranked([share for _, share in shown_answers(question.verdict)])) for question in chosen
    ]
    every = sum(len(question.acceptable) for question in chosen)
    # Everything is shown where the quantile is infinite; a question without an acceptable answer is missed even then.
    covered = sum(not math.isinf(question.score) and question.score <= limit for question in chosen)
    return Coverage(len(chosen), covered / len(chosen), sum(sizes) / len(chosen), every / len(chosen))


def main() -> None:
    """Measure every file that the folder has."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data")
    for name, correctness in FILES:
        if (folder / name).is_file():
            measure(folder / name, correctness)
        else:
            print(f"{folder / name} is not there; skipped")


if __name__ == "__main__":
    main()
