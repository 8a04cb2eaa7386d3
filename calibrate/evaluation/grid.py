"""Many evaluations at once: of every data set, estimator and calibration size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS

from ..data.progress import Progress, silent
from ..data.records import Record, RecordFile, pooled
from ..data.split import one_per_question
from ..scoring.apart import refuse_overlap, without_ranked
from ..scoring.names import stored_key
from ..scoring.scores import Scored, Units, units_of
from ..spec_syntax import estimator_flags
from .evaluate import RuleSpec, evaluate
from .results import Cell, EvaluationGrid

__all__ = ["Source", "evaluate_grid", "keys_of", "need_groups", "sources"]


@dataclass(frozen=True, slots=True)
class Source:
    """The records of one pool.

    Attributes:
        dataset: Name of the questions.
        model: Name of the model.
        file: All files as one.
        records: All records.
    """

    dataset: str
    model: str
    file: RecordFile
    records: Sequence[Record]


def sources(files: Sequence[RecordFile], *, apart: bool) -> list[Source]:
    """Record files as one pool, or each as its own pool.

    Raises:
        UsageError: Files that cannot be one pool; see `calibrate.data.records.pooled`.
    """
    if apart:
        return [Source(_dataset(file), file.header.model.model, file, file.records) for file in files]
    file = pooled(files)
    return [Source(_dataset(files[0]), file.header.model.model, file, file.records)]


def evaluate_grid(
    pools: Sequence[Source],
    estimators: Sequence[str] | None,
    *,
    rules: Sequence[RuleSpec],
    alphas: Sequence[float],
    sizes: Sequence[int] | None = None,
    splits: int = 100,
    seed: int = 0,
    delta: float | None = None,
    cluster_by_group: bool = False,
    shown: Callable[[str], AbstractContextManager[Progress]] = lambda title: nullcontext(silent),
) -> EvaluationGrid:
    """Evaluate every pool with every estimator at every calibration size.

    Args:
        pools: See :func:`sources`.
        estimators: Keys of scores; None for all that a pool has.
        rules: As for `evaluate`.
        alphas: As for `evaluate`.
        sizes: Calibration sizes; None for half of each pool.
        splits: Random splits of each.
        seed: Seed of the splits.
        delta: For rules that use one and do not bring their own.
        cluster_by_group: Keep groups whole.
        shown: From a title to a progress bar.

    Raises:
        UsageError: No scores, missing groups, or as `evaluate`.
    """
    cells = []
    for source, key, pool in _pools(pools, estimators, cluster_by_group):
        for size in sizes or [pool.n // 2]:
            with shown(key if sizes is None or len(sizes) < 2 else f"{key}, {size}") as progress:
                evaluation = evaluate(
                    pool.u,
                    pool.wrong,
                    rules=rules,
                    alphas=alphas,
                    n_calibration=size,
                    splits=splits,
                    seed=seed,
                    delta=delta,
                    groups=pool.group,
                    cap=pool.cap,
                    progress=progress,
                )
            cells.append(Cell(dataset=source.dataset, model=source.model, estimator=key, evaluation=evaluation))
    return EvaluationGrid(cells=tuple(cells))


def _pools(
    pools: Sequence[Source], estimators: Sequence[str] | None, cluster_by_group: bool
) -> Iterator[tuple[Source, str, Units]]:
    for source in pools:
        for key in keys_of(source, estimators):
            spec = source.file.header.estimators[key]
            # A trained score looks too good on the questions that it was trained on.
            records = without_ranked(spec, source.records)
            refuse_overlap(spec, records)
            if spec.name == ITEMS:  # their answers are split at random, and a question must not be on both sides
                records = one_per_question(records)
            pool = units_of(records, key, groups=cluster_by_group, spec=spec)
            need_groups(pool, cluster_by_group)
            yield source, key, pool


def keys_of(source: Source, estimators: Sequence[str] | None) -> list[str]:
    """Keys of the named scores in a pool's files, or of all of whole answers.

    Raises:
        UsageError: The file lacks them.
    """
    specs = source.file.header.estimators
    bindings = source.file.header.plan.bindings
    keys = [stored_key(specs, name, bindings) for name in estimators or ()] or source.file.header.whole_answer_keys
    if not keys:
        raise UsageError(f"{source.file.path} has no scores. Run: calibrate score {source.file.typed}")
    unknown = [key for key in keys if key not in specs]
    if unknown:
        raise UsageError(
            f"{source.file.path} has no {unknown[0]!r} scores (it has {', '.join(sorted(specs)) or 'none'}). Run: "
            f"calibrate score {source.file.typed} {estimator_flags(unknown[0])}"
        )
    return keys


def need_groups(scored: Scored | Units, cluster_by_group: bool) -> None:
    """Refuse questions without groups where clusters are to stay whole."""
    if cluster_by_group and scored.group is None:
        raise UsageError("--cluster-by-group needs a group for every question. Add groups, or leave it out.")


def _dataset(file: RecordFile) -> str:
    return Path(file.header.questions_name).stem or file.path.stem
