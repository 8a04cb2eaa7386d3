"""The command that accepts part of a batch, with the false discovery rate under control: select."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from guardrail.errors import UsageError
from guardrail.files import atomic_write
from guardrail.notebook import percent

from ..data.record import Record
from ..data.records import RecordFile, pooled, read_records
from ..scoring.ensemble import refuse_overlap
from ..scoring.scores import arrays
from ..thresholds import conformal_selection
from .frame.app import app
from .frame.files import keep_inputs, warn_incomplete, warn_undecided
from .frame.options import EstimatorOption, chosen_estimator
from .frame.terminal import finish, print_line

__all__ = ["select"]


@app.command()
def select(
    calibration: Annotated[Path, typer.Argument(help="Scored, labelled records: a random part of the same questions.")],
    batch: Annotated[Path, typer.Argument(help="Scored records of the whole batch, without labels.")],
    alpha: Annotated[
        float, typer.Option("--alpha", "-a", help="Share of wrong answers you accept among the selected.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="One JSON line a question of the batch.")] = Path(
        "selection.jsonl"
    ),
    estimator: EstimatorOption = None,
) -> None:
    """Select the answers of a finished batch that may be used without a person.

    The expected share of wrong answers among the selected is at most alpha, over calibrations and batches: exact for
    any model and score, if calibration and batch are drawn alike. One batch may have more. The cut depends on the whole
    batch, so this is not a gate: for answers that come one by one use calibrate fit.

    Example: calibrate select labelled.jsonl batch.jsonl --alpha 0.1 --out selection.jsonl
    """
    keep_inputs([calibration, batch, *([] if estimator is None else [estimator])], [out])
    labelled, asked = read_records(calibration), read_records(batch)
    # Labels of the batch play no part, so a batch without them is no other collection.
    header = asked.header.model_copy(update={"correctness": labelled.header.correctness})
    pool = pooled([labelled, RecordFile(asked.path, header, asked.records)])
    if pool.repeated:
        here, there = pool.repeated[0]
        raise UsageError(
            f"{len(pool.repeated)} questions are in both files, e.g. {here!r} and {there!r}. Leave them out of one: a "
            "batch that calibration has seen is not drawn like it."
        )
    key = chosen_estimator(pool, estimator)
    items = arrays(labelled.records, key)
    refuse_overlap(pool.header.estimators[key], pool.records)
    for file in (labelled, asked):
        warn_incomplete(file)
    warn_undecided(labelled)
    if items.n_unlabelled:
        raise UsageError(
            f"{items.n_unlabelled} scored records of {calibration} have no label, and the labelled ones may be "
            "the easy ones. Label them, or leave out a part that you choose at random."
        )
    measured = [(record, score.value) for record in asked.records if (score := record.scores.get(key)) is not None]
    scored = {record.id: value for record, value in measured if value is not None}
    chosen = conformal_selection(items.uncertainty, items.error, np.array(list(scored.values())), alpha)
    p_value = dict(zip(scored, chosen.p_value.tolist(), strict=True))
    accepted = {name for name, inside in zip(scored, chosen.accepted, strict=True) if inside}
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "id": record.id,
            "question": record.question,
            "answer": _answer(record),
            "selected": record.id in accepted,
            "uncertainty": scored.get(record.id),
            "p_value": p_value.get(record.id),
        }
        for record in asked.records
    ]
    atomic_write(out, (json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines), private=True)
    n = len(asked.records)
    print_line(
        f"{chosen.n_accepted} of {n} answers selected ({percent(chosen.n_accepted / n)}), by {len(items.ids)} labelled "
        f"questions; {n - len(scored)} without a score are never selected."
    )
    print_line(chosen.guarantee)
    finish([out], "use the selected answers, and hand the others to people.")


def _answer(record: Record) -> str | None:
    primary = None if record.drawn is None else record.drawn.primary
    return None if primary is None else primary.comparable
