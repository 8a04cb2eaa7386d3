"""Fit an ensemble: weights of several estimators, from a training part of the records and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from guardrail.errors import UsageError
from guardrail.files import check_version, problem_of
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import Frozen
from guardrail.uncertainty import Estimator, EstimatorSpec, from_spec, ties, two_stage
from guardrail.uncertainty.ensemble import NAME, EnsembleParams, Member, Training, hash_of, question_hash
from guardrail.uncertainty.scorer import TRAINING

from ..data.formats.field_map import IMPORTED
from ..data.records import Record, RecordFile
from ..data.split import Groups
from ..spec_syntax import estimator_flags
from .metrics import auroc

__all__ = [
    "PENALTIES",
    "EnsembleFile",
    "FitReport",
    "ScoreFile",
    "cut_for_training",
    "ensemble_key",
    "fit_ensemble",
    "fit_members",
    "load_ensemble",
    "read_ensemble",
    "refuse_overlap",
    "training_of",
]

PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""L2 penalties that cross-validation chooses from, per item and squared weight."""
FOLDS = 5
FEWEST = 50
"""Fewest labelled, measured training questions."""
SMALLEST_WEIGHT = 1e-3
"""A member that moves the log-odds less than this per standard deviation is left out: it only costs time."""


class FitReport(Frozen):
    """Figures of the training part; none of them is a promise about other questions."""

    n: int
    """Training questions with a label and every member measured."""
    n_left_out: int
    """Training questions without a label, or with an unmeasured member."""
    errors: int
    """Wrong answers among them."""
    penalty: float
    """L2 penalty that cross-validation chose."""
    cross_validated: dict[str, float]
    """Mean log-loss in nats at each penalty, by its decimal text."""
    ensemble_auroc: float
    """AUROC of the cross-validated ensemble scores on the training part."""
    single_auroc: dict[str, float]
    """AUROC of every member alone on the training part."""
    dropped: tuple[str, ...]
    """Members whose weight is zero: they need not be measured."""

    @property
    def best_single(self) -> str:
        """The member with the highest AUROC on the training part (the first by name on a tie)."""
        return max(sorted(self.single_auroc), key=lambda name: self.single_auroc[name])


class ScoreFile(Frozen):
    """The file that `calibrate two-stage` writes: an estimator that a name alone cannot make."""

    format: Literal[1] = 1
    """Version of this layout."""
    spec: EstimatorSpec
    """The estimator; an artifact stores the same."""


class EnsembleFile(ScoreFile):
    """The file that `calibrate ensemble` writes."""

    fit: FitReport
    """How it was found."""


Stored = TypeVar("Stored", bound=ScoreFile)


@dataclass(frozen=True, slots=True)
class _Data:
    """Standardised scores, shape (n, members), and errors, with the fold of each row."""

    z: NDArray[np.float64]
    error: NDArray[np.float64]
    fold: NDArray[np.int64]


def fit_ensemble(
    records: Sequence[Record],
    specs: dict[str, EstimatorSpec],
    *,
    groups: Groups = "category",
    seed: int = 0,
) -> EnsembleFile:
    """Fit weights by logistic regression of the error on the members' standardised scores.

    Minimises ``mean log-loss + penalty * sum w_i^2`` over the intercept and weights w_i >= 0 (more uncertainty must
    never mean less risk; with correlated members unbounded weights fit noise). The penalty is chosen by 5-fold
    cross-validation with equal questions, and clusters, kept in one fold; on a tie the larger one. Deterministic.

    Args:
        records: The training part: scored and labelled. Nothing else may be looked at.
        specs: The members, by the key of their scores.
        groups: Whether the records' groups are clusters.
        seed: Of the folds.

    Raises:
        UsageError: Fewer than two members, too few usable records, one class only, a single cluster, or no member that
            tells right from wrong.
    """
    if len(specs) < 2:
        raise UsageError(f"an ensemble has at least two members, got {', '.join(specs) or 'none'}. Name more.")
    labelled = [record for record in records if record.correct is not None or record.is_undecided]
    usable = [record for record in labelled if _measured(record, specs)]
    error = np.array([0.0 if record.correct else 1.0 for record in usable])
    wrong = int(error.sum())
    if len(usable) < FEWEST or min(wrong, len(usable) - wrong) < FOLDS:
        raise UsageError(
            f"{len(usable)} of {len(records)} training records have a label and a score by every member, {wrong} of "
            f"them wrong; at least {FEWEST}, with {FOLDS} right and {FOLDS} wrong, are needed. Raise --train-fraction, "
            "or leave out the member that is unmeasured."
        )
    raw = np.array([[record.scores[key].value for key in specs] for record in usable], dtype=np.float64)
    mean, scale = raw.mean(axis=0), raw.std(axis=0)
    # Standardising divides by the spread, and one value for all says nothing about errors.
    flat = [key for key, spread in zip(specs, scale, strict=True) if spread < 1e-12]
    if flat:
        raise UsageError(f"{', '.join(flat)} has one value on all training records. Leave it out of --members.")
    folds = _folds(usable, groups, seed)
    if not folds.any():  # the first fold holds everything
        raise UsageError(
            "the training part is a single cluster, and cross-validation of the weights needs two or more: raise "
            "--train-fraction, or leave out --cluster-by-group if the groups are categories."
        )
    data = _Data((raw - mean) / scale, error, folds)
    loss, held_out = _cross_validated(data)
    # Rounded, because losses that differ in the last bits are ties, and on a tie the larger, safer penalty must win.
    penalty = min(PENALTIES, key=lambda value: (round(loss[value], 9), -value))
    intercept, weights = _minimise(data.z, data.error, penalty)
    used = [i for i, weight in enumerate(weights) if weight >= SMALLEST_WEIGHT]
    if not used:
        raise UsageError(
            f"no member ({', '.join(specs)}) tells right from wrong answers on the training part. Score with others."
        )
    keys = list(specs)
    members = [
        Member(spec=specs[keys[i]], mean=float(mean[i]), scale=float(scale[i]), weight=float(weights[i])) for i in used
    ]
    # The hashes cover all training records, also unusable ones: calibration must not meet any of them.
    params = EnsembleParams(intercept=intercept, members=tuple(members), training=training_of(records))
    report = FitReport(
        n=len(usable),
        n_left_out=len(records) - len(usable),
        errors=wrong,
        penalty=penalty,
        cross_validated={f"{value:g}": value_loss for value, value_loss in loss.items()},
        ensemble_auroc=auroc(held_out[penalty], error.astype(np.int64)) or 0.0,
        single_auroc={key: auroc(raw[:, i], error.astype(np.int64)) or 0.0 for i, key in enumerate(keys)},
        dropped=tuple(key for i, key in enumerate(keys) if i not in used),
    )
    spec = EstimatorSpec(name=NAME, version=1, unit="nats", params=params.model_dump(mode="json"))
    return EnsembleFile(spec=spec, fit=report)


def cut_for_training(
    records: Sequence[Record], *, train_fraction: float, groups: Groups = "category", seed: int = 0
) -> tuple[list[Record], list[Record]]:
    """Cut records in a training part and the rest, at random.

    Equal questions stay together, and so do clusters, so that no threshold fitted on the rest has met a training
    question. The order of the records does not matter.

    Raises:
        UsageError: A fraction outside (0, 1), missing groups, or a part that is empty.
    """
    if not 0 < train_fraction < 1:
        raise UsageError(f"--train-fraction must be in (0, 1), got {train_fraction}. Write 0.3 for 30 %.")
    unit = _units(records, groups)
    units = sorted(set(unit))
    n_train = round(train_fraction * len(units))
    if not 0 < n_train < len(units):
        raise UsageError(f"{len(units)} questions cannot be cut at {train_fraction}: one part is empty. Use more.")
    chosen = {units[i] for i in np.random.default_rng(seed).permutation(len(units))[:n_train]}
    train = [record for record, name in zip(records, unit, strict=True) if name in chosen]
    return train, [record for record, name in zip(records, unit, strict=True) if name not in chosen]


def training_of(records: Sequence[Record]) -> Training:
    """Hashes of ids, questions and groups of a training part, sorted and each once."""
    return Training(
        ids=tuple(sorted({hash_of(record.id) for record in records})),
        questions=tuple(sorted({_question_hash(record) for record in records})),
        groups=tuple(sorted({hash_of(record.group) for record in records if record.group is not None})),
    )


def refuse_overlap(
    spec: EstimatorSpec, records: Sequence[Record], *, groups: Groups = "category", what: str = "calibration"
) -> None:
    """Refuse to calibrate or test an ensemble, a two-stage score or a scorer on a question that it was made from.

    Scores there are too good. Questions are compared by id, and by their text with options; with clusters also by
    group. Other estimators pass.

    Raises:
        UsageError: Naming how many records, the first ids, and the way out.
    """
    for made_of, command, training in _trainings(spec):
        ids, questions, clusters = set(training.ids), set(training.questions), set(training.groups)
        shared = [
            record.id
            for record in records
            if hash_of(record.id) in ids
            or _question_hash(record) in questions
            or (groups == "cluster" and record.group is not None and hash_of(record.group) in clusters)
        ]
        if shared:
            more = ", ..." if len(shared) > 3 else ""
            rest = "" if command is None else f"the file of the rest that `calibrate {command}` wrote, or "
            raise UsageError(
                f"{len(shared)} of {len(records)} {what} records are among the {len(training.ids)} questions the "
                f"{made_of} (same id, same question, or same cluster): {', '.join(shared[:3])}{more}. Its scores there "
                f"look better than on new questions, so that a threshold would promise too much. Use {rest}other "
                "questions."
            )


def _trainings(spec: EstimatorSpec) -> list[tuple[str, str | None, Training]]:
    """The questions that an estimator and its members were made from, with its role and the command that made it."""
    if spec.name == NAME:
        ensemble = EnsembleParams.model_validate(spec.params)
        own = [("ensemble was trained on", "ensemble", ensemble.training)]
        return [*own, *chain(*(_trainings(member.spec) for member in ensemble.members))]
    if spec.name == two_stage.NAME:
        stages = two_stage.TwoStageParams.from_stored(spec.params)
        own = [("two-stage score has its scale from", "two-stage", stages.training)]
        return [*own, *_trainings(stages.cheap), *_trainings(stages.second)]
    if spec.name == ties.NAME:
        params = ties.TieBreakParams.from_stored(spec.params)
        return [*_trainings(params.first), *_trainings(params.second)]
    stored = spec.params.get(TRAINING) if spec.name.startswith(SCORE) else None
    return [] if stored is None else [(f"scorer {spec.name} was trained on", None, Training.model_validate(stored))]


def read_ensemble(path: str | Path) -> EnsembleFile:
    """Read what `calibrate ensemble` wrote.

    Raises:
        UsageError: The file is missing, not an ensemble, or an ensemble of another version.
    """
    return _parsed(EnsembleFile, path, _stored(path))


def _stored(path: str | Path) -> Any:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is not an ensemble file ({error}). Make one with `calibrate ensemble`.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}). Make one with `calibrate ensemble`.") from error
    if isinstance(content, dict):
        check_version(content.get("format"), 1, str(path), "make one with `calibrate ensemble`")
    return content


def _parsed(kind: type[Stored], path: str | Path, content: Any) -> Stored:
    try:
        return kind.from_stored(content)
    except ValidationError as error:
        raise UsageError(
            f"{path} is not an ensemble file ({problem_of(error)}). Make one with `calibrate ensemble`."
        ) from error


def load_ensemble(path: str | Path) -> Estimator:
    """The estimator in the file of an ensemble or of a two-stage score."""
    content = _stored(path)
    spec = content.get("spec") if isinstance(content, dict) else None
    staged = isinstance(spec, dict) and spec.get("name") == two_stage.NAME
    return from_spec(_parsed(ScoreFile if staged else EnsembleFile, path, content).spec)


def fit_members(file: RecordFile, keys: Sequence[str]) -> dict[str, EstimatorSpec]:
    """Specs of the named members from a record file's header.

    Raises:
        UsageError: A member that the file has no scores of, one named twice, an ensemble, or scores from a file.
    """
    specs_of = file.header.estimators
    imported = [key for key in keys if key.startswith(IMPORTED) or (key not in specs_of and IMPORTED + key in specs_of)]
    if imported:
        raise UsageError(
            f"{imported[0]} came with an imported file and cannot be computed, so an ensemble of it cannot score other "
            "questions. Combine the columns yourself, with weights from other questions, and import the result as one "
            "score (calibrate import --map score=NAME:COLUMN); or write the score as a scorer (docs/scores.md)."
        )
    missing = [key for key in keys if key not in specs_of]
    if missing:
        raise UsageError(
            f"{file.path} has no scores by {', '.join(missing)} (it has {', '.join(sorted(specs_of)) or 'none'}). Run: "
            f"calibrate score {file.typed} " + " ".join(estimator_flags(key) for key in missing)
        )
    if len(set(keys)) < len(keys):
        raise UsageError(f"--members names an estimator twice: {', '.join(keys)}. Name each once.")
    nested = [key for key in keys if specs_of[key].name == NAME]
    if nested:
        raise UsageError(f"{nested[0]} is an ensemble itself; name its members instead.")
    return {key: specs_of[key] for key in keys}


def ensemble_key(spec: EstimatorSpec) -> str:
    """Key of a score that is made of others in a record file: its name and eight hex digits of a hash of its spec."""
    canonical = canonical_json(spec.model_dump(mode="json"), compact=False, ascii_only=True)
    return f"{spec.name}:{sha256_hex(canonical, 8)}"


def _measured(record: Record, specs: dict[str, EstimatorSpec]) -> bool:
    return all(key in record.scores and record.scores[key].value is not None for key in specs)


def _cross_validated(data: _Data) -> tuple[dict[float, float], dict[float, NDArray[np.float64]]]:
    """Mean held-out log-loss and held-out log-odds at each penalty."""
    losses, scores = {}, {}
    for penalty in PENALTIES:
        logits = np.empty_like(data.error)
        for fold in np.unique(data.fold):
            inside = data.fold != fold
            intercept, weights = _minimise(data.z[inside], data.error[inside], penalty)
            logits[~inside] = intercept + data.z[~inside] @ weights
        # logaddexp is the log-loss without overflow at large log-odds.
        losses[penalty] = float(np.mean(np.logaddexp(0.0, logits) - data.error * logits))
        scores[penalty] = logits
    return losses, scores


def _minimise(z: NDArray[np.float64], error: NDArray[np.float64], penalty: float) -> tuple[float, NDArray[np.float64]]:
    """Intercept and non-negative weights of the penalised logistic regression."""
    from scipy import optimize, special  # slow to import, and needed nowhere else on the command line

    def objective(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = parameters[0] + z @ parameters[1:]
        value = np.mean(np.logaddexp(0.0, logits) - error * logits) + penalty * parameters[1:] @ parameters[1:]
        residual = (special.expit(logits) - error) / error.size
        slope = z.T @ residual + 2 * penalty * parameters[1:]
        return float(value), np.concatenate([[residual.sum()], slope])

    start = np.zeros(z.shape[1] + 1)
    # Clipped, since the logit of an error rate of 0 or 1 is infinite.
    start[0] = special.logit(np.clip(error.mean(), 1e-3, 1 - 1e-3))
    # The intercept is free, but no weight is negative: more uncertainty must never mean less risk.
    bounds: list[tuple[float | None, float | None]] = [(None, None), *[(0.0, None)] * z.shape[1]]
    optimum = optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 1_000, "ftol": 1e-12, "gtol": 1e-9},
    )
    return float(optimum.x[0]), np.asarray(optimum.x[1:], dtype=np.float64)


def _folds(records: Sequence[Record], groups: Groups, seed: int) -> NDArray[np.int64]:
    unit = _units(records, groups)
    units = sorted(set(unit))
    # A stream apart from that of `cut_for_training`, so that the folds do not repeat the order of the cut.
    order = np.random.default_rng([seed, 1]).permutation(len(units))
    fold_of = {units[i]: place % FOLDS for place, i in enumerate(order)}
    return np.array([fold_of[name] for name in unit], dtype=np.int64)


def _units(records: Sequence[Record], groups: Groups) -> list[str]:
    """Each record's unit, which folds keep whole: records linked by an equal question or, with clusters, by a group."""
    if groups == "cluster" and any(record.group is None for record in records):
        raise UsageError("cluster by group was asked for, but some records have no group. Leave the flag out.")
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    def join(a: str, b: str) -> None:  # the smaller name leads, so that the order of records plays no part
        low, high = sorted((root(a), root(b)))
        parent[high] = low

    for record in records:
        # The prefix keeps ids, questions and groups apart: an id may have the text of a group.
        join("i" + hash_of(record.id), "q" + _question_hash(record))
        if groups == "cluster":
            join("q" + _question_hash(record), "g" + hash_of(str(record.group)))
    return [root("i" + hash_of(record.id)) for record in records]


def _question_hash(record: Record) -> str:
    return question_hash(record.question, record.options)
