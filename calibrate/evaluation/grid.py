"""Many evaluations at once: of every score and calibration size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS

from ..data.progress import Progress, silent
from ..data.records import RecordFile
from ..data.split import one_per_question
from ..rules import Rule
from ..scoring.apart import refuse_overlap, without_ranked
from ..scoring.names import stored_key
from ..scoring.scores import Units, units_of
from ..spec_syntax import estimator_flags
from .evaluate import evaluate
from .results import Cell, EvaluationGrid


def evaluate_grid(
    file: RecordFile,
    keys: Sequence[str],
    *,
    rules: Sequence[str | Rule],
    alphas: Sequence[float],
    sizes: Sequence[int] | None = None,
    splits: int = 100,
    delta: float | None = None,
    cluster_by_group: bool = False,
    shown: Callable[[str], AbstractContextManager[Progress]] = lambda title: nullcontext(silent),
) -> EvaluationGrid:
    """Evaluate every score of a file at every calibration size.

    Args:
        file: Scored and labelled records.
        keys: Keys of the scores.
        rules: As for `evaluate`.
        alphas: As for `evaluate`.
        sizes: Calibration sizes; None for half of the questions.
        splits: Random splits of each.
        delta: For rules that use one and do not bring their own.
        cluster_by_group: Keep groups whole.
        shown: From a title to a progress bar.

    Raises:
        UsageError: Missing groups, or as `evaluate`.
    """
    cells = []
    for key in keys:
        pool = _pool(file, key, cluster_by_group)
        for size in sizes or [pool.n // 2]:
            with shown(key if sizes is None or len(sizes) < 2 else f"{key}, {size}") as progress:
                evaluation = evaluate(
                    pool.u,
                    pool.wrong,
                    rules=rules,
                    alphas=alphas,
                    n_calibration=size,
                    splits=splits,
                    delta=delta,
                    groups=pool.group,
                    cap=pool.cap,
                    progress=progress,
                )
            model = file.header.model.model
            cells.append(Cell(dataset=_dataset(file), model=model, estimator=key, evaluation=evaluation))
    return EvaluationGrid(cells=tuple(cells))


def _pool(file: RecordFile, key: str, cluster_by_group: bool) -> Units:
    spec = file.header.estimators[key]
    # A trained score looks too good on the questions that it was trained on.
    records = without_ranked(spec, file.records)
    refuse_overlap(spec, records)
    if spec.name == ITEMS:  # their answers are split at random, and a question must not be on both sides
        records = one_per_question(records)
    pool = units_of(records, key, groups=cluster_by_group, spec=spec)
    if cluster_by_group and pool.group is None:
        raise UsageError("--cluster-by-group needs a group for every question. Add groups, or leave it out.")
    return pool


def keys_of(file: RecordFile, names: Sequence[str] | None = None) -> list[str]:
    """Keys of the named scores in a file, or of all of whole answers.

    Raises:
        UsageError: The file lacks them.
    """
    specs = file.header.estimators
    keys = [stored_key(specs, name, file.header.plan.bindings) for name in names or ()]
    keys = keys or file.header.whole_answer_keys
    if not keys:
        raise UsageError(f"{file.path} has no scores. Run: calibrate score {file.typed}")
    unknown = [key for key in keys if key not in specs]
    if unknown:
        raise UsageError(
            f"{file.path} has no {unknown[0]!r} scores (it has {', '.join(sorted(specs)) or 'none'}). Run: "
            f"calibrate score {file.typed} {estimator_flags(unknown[0])}"
        )
    return keys


def _dataset(file: RecordFile) -> str:
    """The name of the questions, of several files all of them."""
    names = file.header.questions_name.split(" + ")
    return " + ".join(filter(None, (Path(name).stem for name in names))) or file.path.stem
