"""Records to scores, and scores to the arrays that threshold rules take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import make as make_judge
from guardrail.judges import make_similarity
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator, available, make, measure_all

from .progress import Progress, silent
from .records import Record, RecordFile

__all__ = ["Scored", "arrays", "default_estimator", "estimator_key", "parse_estimator", "score_records", "supported"]


@dataclass(frozen=True, slots=True)
class Scored:
    """The items a threshold rule can use, and how many it cannot.

    Attributes:
        ids: Record ids, shape (n,).
        uncertainty: Scores, shape (n,); higher is less certain.
        error: 1 where the answer is wrong, shape (n,).
        group: The question file's group of each item, or None when any item has none.
        n_records: Records looked at.
        n_unmeasured: Records without a score. They always abstain.
        n_unlabelled: Records with a score but without a label.
    """

    ids: tuple[str, ...]
    uncertainty: NDArray[np.float64]
    error: NDArray[np.int64]
    group: tuple[str, ...] | None
    n_records: int
    n_unmeasured: int
    n_unlabelled: int


def estimator_key(estimator: Estimator) -> str:
    """Key of an estimator in a record file: its name, and what it compares answers with where that is not the default.

    "semantic_entropy", "semantic_entropy:exact", "semantic_entropy:token_f1(threshold=0.7):greedy",
    "eigenvalue:jaccard".
    """
    own, usual = estimator.spec, make(estimator.name).spec
    spec, default = (own.judge, usual.judge) if own.judge is not None else (own.similarity, usual.similarity)
    if spec is None:
        return estimator.name
    parts = [estimator.name]
    if spec != default or estimator.clustering != "components":
        params = ", ".join(f"{name}={value}" for name, value in sorted(spec.params.items()))
        parts.append(f"{spec.name}({params})" if params else spec.name)
    if estimator.clustering != "components":
        parts.append(estimator.clustering)
    return ":".join(parts)


def parse_estimator(text: str) -> Estimator:
    """An estimator from how a user writes it: "name", "name:judge", "name:judge:greedy" or "name:similarity".

    Raises:
        UsageError: Unknown estimator, judge, clustering or similarity.
    """
    name, _, rest = text.partition(":")
    judge, _, clustering = rest.partition(":")
    if clustering not in ("", "components", "greedy"):
        raise UsageError(f"no clustering named {clustering!r}; choose components (default) or greedy")
    if judge and not clustering and make(name).needs.similarity:
        return make(name, similarity=make_similarity(judge))
    made = make(name, judge=make_judge(judge) if judge else None)
    return make(name, judge=made.judge, clustering="greedy") if clustering == "greedy" else made


def default_estimator(*, options: bool) -> str:
    """The estimator used when none is named: predictive entropy over options, semantic entropy for open answers."""
    return "predictive_entropy" if options else "semantic_entropy"


def supported(plan: SamplingPlan) -> list[Estimator]:
    """Every estimator that can be computed from what the plan draws, with its default judge."""
    found = []
    for estimator in map(make, available()):
        needs = estimator.needs
        if needs.options and plan.options is None:
            continue
        if (needs.samples and plan.n < 2) or (needs.logprobs and not plan.logprobs):
            continue
        if plan.options is not None and plan.n == 0 and not needs.options:
            continue  # nothing is generated: the primary answer is a label
        found.append(estimator)
    return found


def score_records(file: RecordFile, estimators: Sequence[Estimator], *, progress: Progress = silent) -> RecordFile:
    """Measure every record with every estimator; what cannot be measured says why. Older scores are kept.

    Returns:
        The file with scores, in memory.

    Raises:
        UsageError: No estimator.
    """
    if not estimators:
        raise UsageError("no estimator to score with: the plan of this file supports none. Collect with another plan.")
    keys = [estimator_key(estimator) for estimator in estimators]
    scored = []
    for done, record in enumerate(file.records, start=1):
        if record.drawn is not None:
            values = measure_all(record.drawn, estimators, file.header.plan)
            merged = {**record.scores, **dict(zip(keys, values, strict=True))}
            record = record.model_copy(update={"scores": merged})
        scored.append(record)
        if done % 20 == 0 or done == len(file.records):
            progress(done, len(file.records))
    specs = {key: estimator.spec for key, estimator in zip(keys, estimators, strict=True)}
    header = file.header.model_copy(update={"estimators": {**file.header.estimators, **specs}})
    return RecordFile(file.path, header, tuple(scored), file.torn)


def arrays(records: Sequence[Record], key: str) -> Scored:
    """The items that have both a score by ``key`` and a label.

    Raises:
        UsageError: No record is usable; the message says which step is missing.
    """
    usable = []
    unmeasured: Counter[str] = Counter()
    unlabelled = unscored = 0
    for record in records:
        score = record.scores.get(key)
        if score is None and record.drawn is not None and record.drawn.problem is None:
            unscored += 1
        if score is None or score.value is None:
            unmeasured[_why(record, key)] += 1
        elif record.correct is None:
            unlabelled += 1
        else:
            usable.append((record, score.value))
    if unscored:
        known = sorted({name for record in records for name in record.scores})
        raise UsageError(
            f"{unscored} of {len(records)} records have no {key!r} score (scores present: "
            f"{', '.join(known) or 'none'}). Run: calibrate score RECORDS --estimator {key}"
        )
    if not usable:
        raise UsageError(_nothing_usable(len(records), unmeasured, unlabelled))
    groups = [record.group for record, _ in usable]
    return Scored(
        ids=tuple(record.id for record, _ in usable),
        uncertainty=np.array([value for _, value in usable], dtype=np.float64),
        error=np.array([0 if record.correct else 1 for record, _ in usable], dtype=np.int64),
        group=tuple(str(group) for group in groups) if all(group is not None for group in groups) else None,
        n_records=len(records),
        n_unmeasured=sum(unmeasured.values()),
        n_unlabelled=unlabelled,
    )


def _why(record: Record, key: str) -> str:
    score = record.scores.get(key)
    if score is not None and score.reason is not None:
        return f"{score.reason.value}: {score.detail}"
    if record.drawn is not None and record.drawn.problem is not None:
        return f"{record.drawn.problem.value}: {record.drawn.problem_detail}"
    return "no score"


def _nothing_usable(n: int, unmeasured: Counter[str], unlabelled: int) -> str:
    if not n:
        return "the record file holds no record. Collect some first."
    if unlabelled:
        return (
            f"none of {n} records has a label ({unlabelled} have a score only). Run: calibrate label RECORDS; if you "
            "did, the questions have no references, or none the rule can compare."
        )
    reason, count = unmeasured.most_common(1)[0]
    return f"none of {n} records could be measured; {count} of them: {reason}. Collect with a plan that draws it."
