"""Rank estimators by how well they order this model's errors, and choose one without breaking the promise of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardrail.artifact import EstimatorChoice
from guardrail.errors import UsageError

from ..data.records import Record, RecordFile
from ..data.split import Groups, one_per_cluster
from ..scoring.ensemble import cut_for_training, refuse_overlap, training_of
from ..scoring.metrics import auroc
from ..scoring.scores import arrays, labels_of, taken, values_of
from ..thresholds.fitting import fit
from ..thresholds.registry import RULES
from .label_checks import AurocInterval, auroc_interval

__all__ = [
    "AUTO",
    "FEWEST",
    "SHARE",
    "Chosen",
    "Ranked",
    "choose_estimator",
    "rank_estimators",
    "rank_scores",
]

AUTO = "auto"
"""The word that a user writes in place of an estimator's name."""
SHARE = 0.2
"""Share of the questions that an estimator is chosen on."""
FEWEST = 20
"""Fewest labelled questions to choose on."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """An estimator on some labelled questions.

    Attributes:
        estimator: Key of its scores.
        auroc: AUROC with its interval; questions without a score count as the least certain ones.
        acceptance: Share of the questions that the rule accepts, fitted and counted on them; None without a rule.
        n_unmeasured: Questions without a score.
    """

    estimator: str
    auroc: AurocInterval
    acceptance: float | None
    n_unmeasured: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen estimator, its competitors, and the questions that are left for a fit.

    Attributes:
        estimator: Key of its scores.
        rest: Records that the choice did not use, in file order.
        ranking: All candidates on the part that was used, best first.
        choice: What the artifact stores.
    """

    estimator: str
    rest: tuple[Record, ...]
    ranking: tuple[Ranked, ...]
    choice: EstimatorChoice


def rank_scores(uncertainty: Mapping[str, ArrayLike], error: ArrayLike) -> tuple[str, ...]:
    """Names of scores by AUROC, the highest first; on ties by name.

    Args:
        uncertainty: Scores by name, each of shape (n,), finite; higher is less certain.
        error: 0 or 1, shape (n,), with both values.

    Raises:
        UsageError: As `calibrate.fit`.
    """
    return tuple(sorted(uncertainty, key=lambda name: (-(auroc(uncertainty[name], error) or 0.0), name)))


def rank_estimators(
    records: Sequence[Record],
    keys: Sequence[str],
    *,
    alpha: float,
    rule: str = "certified",
    delta: float | None = None,
    groups: Groups = "category",
) -> tuple[Ranked, ...]:
    """Estimators by AUROC on labelled records, the highest first, with the share that a rule would accept.

    Picking one of them and fitting it on the same records breaks the promise of the fit; see `choose_estimator`.

    Args:
        records: Those with a label are used; of clusters one each.
        keys: Keys of scores; those without any score are left out.
        alpha: Target error rate.
        rule: Threshold rule.
        delta: Failure probability, for rules that have one.
        groups: What the records' groups are.
    """
    used = taken(records, labels_of(records) >= 0)
    used = one_per_cluster(used) if groups == "cluster" else used
    error = 1 - labels_of(used).astype(np.int64)
    scores = {key: filled for key in keys if (filled := _filled(used, key)) is not None}
    # With one class only no AUROC exists.
    if not used or error.min() == error.max():
        return ()
    ranked = []
    for key in rank_scores(scores, error):
        measured = int(np.count_nonzero(~np.isnan(values_of(used, key))))
        interval = auroc_interval(scores[key], error)
        assert interval is not None, "there are right and wrong answers"
        accepted = _accepted(used, key, alpha, rule, delta) if rule in RULES else None
        share = None if accepted is None else accepted / len(used)
        ranked.append(Ranked(key, interval, share, len(used) - measured))
    return tuple(ranked)


def choose_estimator(
    file: RecordFile,
    *,
    alpha: float,
    rule: str = "certified",
    delta: float | None = None,
    groups: Groups = "category",
    part: Sequence[Record] | None = None,
    seed: int = 0,
    share: float = SHARE,
) -> Chosen:
    """Choose the estimator with the highest AUROC on a random part of the questions, and leave the others for a fit.

    A certificate that is fitted on the others keeps its promise: given the part that was used here, the choice is one
    fixed estimator, and the others are independent questions. Equal questions, and clusters, stay together. Ensembles
    that were trained on any of the questions are not candidates.

    Args:
        file: Scored and labelled records.
        alpha: Target error rate, for the table of candidates; the choice does not depend on it.
        rule: Threshold rule, for the table.
        delta: Failure probability of the rule, for the table.
        groups: What the records' groups are.
        part: Cut these records (a calibration part); default: all of the file.
        seed: Of the cut.
        share: Share of the questions that the choice takes, in (0, 1). At 500 labels and more .2 leaves the fit more,
            and chooses nearly as well.

    Raises:
        UsageError: The file has no scores or was drawn by a score, or the part has too few labels or one class only.
    """
    records = file.records if part is None else tuple(part)
    if score := file.header.scope.score:
        raise UsageError(
            f"{file.path} was drawn by its {score!r} scores, so its labels compare no others. "
            f"Write --estimator {score}."
        )
    if not 0 < share < 1:
        raise UsageError(f"--share must be in (0, 1), got {share:g}. Write 0.2 for 20 %.")
    # Sorted, so that a tie of two estimators is not decided by the order of the header.
    keys = [key for key in file.header.whole_answer_keys if not _trained_on(file, key, records)]
    if not keys:
        raise UsageError(f"{file.path} has no scores to choose from. Run: calibrate score {file.typed}")
    used, rest = cut_for_training(records, train_fraction=share, groups=groups, seed=seed)
    labels = [label for label in labels_of(used).tolist() if label >= 0]
    if len(labels) < FEWEST or len(set(labels)) < 2:
        raise UsageError(
            f"--estimator auto chooses on {share:.0%} of the questions, of which {len(labels)} have a label "
            f"({labels.count(0)} of them wrong): it takes {FEWEST}, right and wrong ones. Label more, or name an "
            f"estimator: {', '.join(keys)}."
        )
    ranking = rank_estimators(used, keys, alpha=alpha, rule=rule, delta=delta, groups=groups)
    if not ranking:
        raise UsageError("no question that --estimator auto chooses on has a score. Name an estimator, or score again.")
    # By AUROC alone, so that the choice depends on neither alpha nor the rule of the table.
    best = ranking[0]
    choice = EstimatorChoice(
        candidates=tuple(ranked.estimator for ranked in ranking),
        auroc=best.auroc.value,
        n=len(labels),
        questions=training_of(used).ids,
        share=share,
    )
    return Chosen(best.estimator, tuple(rest), ranking, choice)


def _filled(records: Sequence[Record], key: str) -> NDArray[np.float64] | None:
    """Scores; a missing score becomes larger than all others, because such a question always abstains."""
    values = values_of(records, key)
    missing = np.isnan(values)
    return None if missing.all() else np.where(missing, np.nanmax(values) + 1.0, values)


def _accepted(records: Sequence[Record], key: str, alpha: float, rule: str, delta: float | None) -> int:
    scored = arrays(taken(records, ~np.isnan(values_of(records, key))), key)
    # Of clusters one record each is left, so every item is a separate group.
    clusters = list(range(len(scored.ids))) if RULES[rule].grouping == "all" else None
    outcome = fit(scored.uncertainty, scored.error, alpha=alpha, rule=rule, delta=delta, groups=clusters)
    return outcome.n_accepted


def _trained_on(file: RecordFile, key: str, records: Sequence[Record]) -> bool:
    try:
        refuse_overlap(file.header.estimators[key], records)
    except UsageError:
        return True
    return False
