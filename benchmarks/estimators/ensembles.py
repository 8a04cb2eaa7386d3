"""Comparison of an ensemble with the best of its members: fitted on one part, compared on the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.estimators.figures import Interval, draw, paired
from benchmarks.estimators.scores import Scores, Variant
from benchmarks.estimators.sources import Source
from calibrate.data.records import Record
from calibrate.data.split import Groups
from calibrate.scoring.ensemble import EnsembleFile, cut_for_training, fit_ensemble
from calibrate.scoring.metrics import auroc
from guardrail.errors import UsageError
from guardrail.types import Frozen, Uncertainty
from guardrail.uncertainty import EstimatorSpec
from guardrail.uncertainty.ensemble import EnsembleParams

__all__ = ["Comparison", "compare"]

TRAIN = 0.3
CUTS = 20
"""Further random cuts; they show how much the first depends on luck."""
MEASURED = 0.9
"""Members are the estimators measured on at least this share of the questions."""
FEWEST = 100
"""Fewest questions left to compare on."""


class Comparison(Frozen):
    """An ensemble against the member that was best on the training part, both judged on the rest."""

    members: tuple[str, ...]
    """Estimators offered to the fit."""
    weights: dict[str, float]
    """Weights of the members that the fit used."""
    n_train: int
    """Training questions."""
    n_rest: int
    """Questions compared on."""
    best_single: str
    """The member with the highest AUROC on the training part."""
    ensemble_auroc: float
    """AUROC of the ensemble on the rest."""
    single_auroc: float
    """AUROC of the best single member on the rest."""
    difference: dict[str, Interval]
    """Ensemble minus single, paired bootstrap: "auroc", and acceptance by alpha."""
    mean_difference: float
    """Mean difference in AUROC over further random cuts, each with a new fit and a new choice of the single member."""
    share_better: float
    """Share of those cuts in which the ensemble ranked better."""


def compare(source: Source, rows: Sequence[Variant], scores: Sequence[Scores], *, resamples: int) -> Comparison | None:
    """Fit on 30 %, compare on the rest; None if a file has fewer than two members with scores."""
    values = {each.label: each.values for each in scores}
    enough = MEASURED * len(source.records)
    members = {
        row.label: row.estimator.spec for row in rows if sum(value is not None for value in values[row.label]) >= enough
    }
    usable = [
        i
        for i, record in enumerate(source.records)
        if record.correct is not None and all(values[name][i] is not None for name in members)
    ]
    members = {name: spec for name, spec in members.items() if len({values[name][i] for i in usable}) > 1}
    if len(members) < 2 or len(usable) < FEWEST:
        return None
    records = [_scored(source.records[i], {name: values[name][i] for name in members}, members) for i in usable]
    groups: Groups = "cluster" if source.clustered else "category"
    try:
        return _compared(records, members, groups, resamples)
    except UsageError:
        return None


def _compared(
    records: Sequence[Record], members: dict[str, EstimatorSpec], groups: Groups, resamples: int
) -> Comparison:
    train, rest = cut_for_training(records, train_fraction=TRAIN, groups=groups)
    fitted = fit_ensemble(train, members, groups=groups)
    together, single, error = _on(rest, fitted, members)
    ids = [str(record.group) for record in rest] if groups == "cluster" else None
    draws = draw(len(rest), ids, resamples=resamples, seed=1)
    differences = []
    for seed in range(1, CUTS + 1):
        some, others = cut_for_training(records, train_fraction=TRAIN, groups=groups, seed=seed)
        ours, theirs, wrong = _on(others, fit_ensemble(some, members, groups=groups, seed=seed), members)
        differences.append((auroc(ours, wrong) or 0.0) - (auroc(theirs, wrong) or 0.0))
    params = EnsembleParams.model_validate(fitted.spec.params)
    used_members = [name for name in members if name not in fitted.fit.dropped]
    return Comparison(
        members=tuple(members),
        weights={name: member.weight for name, member in zip(used_members, params.members, strict=True)},
        n_train=len(train),
        n_rest=len(rest),
        best_single=fitted.fit.best_single,
        ensemble_auroc=auroc(together, error) or 0.0,
        single_auroc=auroc(single, error) or 0.0,
        difference=paired(together, single, error, draws),
        mean_difference=float(np.mean(differences)),
        share_better=float(np.mean([each > 0 for each in differences])),
    )


def _on(
    records: Sequence[Record], fitted: EnsembleFile, members: dict[str, EstimatorSpec]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the scores of the ensemble and of the best single member, and the errors."""
    params = EnsembleParams.model_validate(fitted.spec.params)
    used_members = [name for name in members if name not in fitted.fit.dropped]
    raw = np.array([[record.scores[name].value for name in used_members] for record in records], dtype=np.float64)
    mean, scale, weight = (
        np.array([getattr(member, part) for member in params.members]) for part in ("mean", "scale", "weight")
    )
    single = np.array([record.scores[fitted.fit.best_single].value for record in records], dtype=np.float64)
    error = np.array([0 if record.correct else 1 for record in records], dtype=np.int64)
    return params.intercept + ((raw - mean) / scale) @ weight, single, error


def _scored(record: Record, values: dict[str, float | None], specs: dict[str, EstimatorSpec]) -> Record:
    scores = {
        name: Uncertainty(value=value, unit=specs[name].unit, estimator=specs[name].name)
        for name, value in values.items()
    }
    return record.model_copy(update={"scores": scores})
