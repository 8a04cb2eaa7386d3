"""Choose a score by how well it orders this model's errors, on labels that the fit does not use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import EstimatorChoice
from guardrail.errors import UsageError

from ..data.records import Record, RecordFile
from ..data.split import Groups, one_per_cluster
from ..data.table import table_of
from ..scoring.apart import drawn_by_hash, refuse_overlap, without_ranked
from ..scoring.metrics import AurocInterval, auroc_interval

AUTO = "auto"
"""The word that a user writes in place of a score's name."""
SHARE = 0.2
"""Share of the questions that a score is chosen on."""
FEWEST = 20
"""Fewest labelled questions to choose on."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A score on some labelled questions.

    Attributes:
        estimator: Its key.
        auroc: AUROC with its interval; questions without a score count as the least certain ones.
        n_unmeasured: Questions without a score.
    """

    estimator: str
    auroc: AurocInterval
    n_unmeasured: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen score, its competitors, and the questions that are left for a fit.

    Attributes:
        estimator: Its key.
        rest: Records that the choice did not use, in file order.
        ranking: All candidates on the part that was used, best first.
        choice: What the artifact stores.
    """

    estimator: str
    rest: tuple[Record, ...]
    ranking: tuple[Ranked, ...]
    choice: EstimatorChoice


def rank_estimators(
    records: Sequence[Record], keys: Sequence[str], *, groups: Groups = "category"
) -> tuple[Ranked, ...]:
    """Scores by AUROC on labelled records, the highest first; on ties by name.

    Picking one of them and fitting it on the same records breaks the promise of the fit; see `choose_score`.

    Args:
        records: Those with a label are used; of clusters one each.
        keys: Keys of scores; those without any score are left out.
        groups: What the records' groups are.
    """
    table = table_of(records)
    used = table.take(table.counted_labels() >= 0)
    used = one_per_cluster(used) if groups == "cluster" else used
    error = 1 - table_of(used).counted_labels().astype(np.int64)
    scores = {key: filled for key in keys if (filled := _filled(used, key)) is not None}
    # With one class only no AUROC exists.
    if not used or error.min() == error.max():
        return ()
    ranked = []
    for key, score in scores.items():
        interval = auroc_interval(score, error)
        assert interval is not None, "there are right and wrong answers"
        ranked.append(Ranked(key, interval, int(np.count_nonzero(np.isnan(table_of(used).scores(key))))))
    return tuple(sorted(ranked, key=lambda each: (-each.auroc.value, each.estimator)))


def choose_score(file: RecordFile, *, groups: Groups = "category", part: Sequence[Record] | None = None) -> Chosen:
    """Choose the score with the highest AUROC on a fifth of the questions, and leave the others for a fit.

    A certificate that is fitted on the others keeps its promise: given the fifth, the choice is one fixed score, and
    the others are independent questions. The fifth is drawn by a hash of the question, or with clusters of the group,
    so it is the same in every run. Scores that were trained on any of the questions are not candidates.

    Args:
        file: Scored and labelled records.
        groups: What the records' groups are.
        part: Cut these records (a calibration part); default: all of the file.

    Raises:
        UsageError: The file has no scores or was drawn by a score, or the fifth has too few labels or one class only.
    """
    records = file.records if part is None else tuple(part)
    if score := file.header.scope.score:
        raise UsageError(
            f"{file.path} was drawn by its {score!r} scores, so its labels compare no others. Write --score {score}."
        )
    specs = file.header.estimators
    for key in file.header.whole_answer_keys:
        records = without_ranked(specs[key], records, groups=groups)
    # Sorted, so that a tie of two scores is not decided by the order of the header.
    keys = [key for key in file.header.whole_answer_keys if not _trained_on(file, key, records)]
    if not keys:
        raise UsageError(f"{file.path} has no scores to choose from. Run: calibrate score {file.typed}")
    used, rest = drawn_by_hash(records, SHARE, groups=groups)
    labels = [label for label in table_of(used).counted_labels().tolist() if label >= 0]
    if len(labels) < FEWEST or len(set(labels)) < 2:
        raise UsageError(
            f"--score auto chooses on {SHARE:.0%} of the questions, of which {len(labels)} have a label "
            f"({labels.count(0)} of them wrong): it takes {FEWEST}, right and wrong ones. Label more, or name a "
            f"score: {', '.join(keys)}."
        )
    ranking = rank_estimators(used, keys, groups=groups)
    if not ranking:
        raise UsageError("no question that --score auto chooses on has a score. Name a score, or score again.")
    choice = EstimatorChoice(
        candidates=tuple(ranked.estimator for ranked in ranking),
        auroc=ranking[0].auroc.value,
        n=len(labels),
        questions=tuple(f"{number:016x}" for number in np.unique(table_of(used).asked_hashes())),
        share=SHARE,
    )
    return Chosen(ranking[0].estimator, tuple(rest), ranking, choice)


def _filled(records: Sequence[Record], key: str) -> NDArray[np.float64] | None:
    """Scores; a missing score becomes larger than all others, because such a question always abstains."""
    values = table_of(records).scores(key)
    missing = np.isnan(values)
    return None if missing.all() else np.where(missing, np.nanmax(values) + 1.0, values)


def _trained_on(file: RecordFile, key: str, records: Sequence[Record]) -> bool:
    try:
        refuse_overlap(file.header.estimators[key], records)
    except UsageError:
        return True
    return False
