"""Sentences and tables of commands and reports about a gate of items."""

from __future__ import annotations

from collections.abc import Sequence

from guardrail.artifact import CalibrationArtifact
from guardrail.items.spec import ItemsThreshold, Procedure
from guardrail.notebook import percent

from ..data.item_columns import ItemColumns
from ..rules.certificate import interval
from .figures import length_bands, path_rows
from .rules import AnswerItems

__all__ = [
    "bands_table",
    "caveats",
    "facts",
    "path_warnings",
    "paths_table",
    "share_of",
]


def share_of(k: int, n: int) -> str:
    """A share with its count: "5 % (3)"."""
    return f"{percent(k / n)} ({k})" if n else "-"


def paths_table(items: AnswerItems, limits: Sequence[float | None], columns: ItemColumns) -> list[tuple[str, ...]]:
    """Rows of path, items, wrong, kept and wrong among kept; with a cut, nobody knows how many of all are wrong."""
    return [
        (
            row.path,
            str(row.items),
            share_of(row.wrong, row.items) if items.cut is None else "-",
            share_of(row.kept, row.items),
            share_of(row.kept_wrong, row.kept),
        )
        for row in path_rows(items, limits, columns)
    ]


def bands_table(items: AnswerItems, limits: Sequence[float | None], allowed: int) -> list[tuple[str, ...]]:
    """Rows of the number of items, answers, shown, complete and broken among shown."""
    return [
        (
            name,
            str(f.answers),
            share_of(f.shown, f.answers),
            share_of(f.complete, f.answers),
            share_of(f.broken, f.shown),
        )
        for name, f in length_bands(items, limits, allowed=allowed)
    ]


def path_warnings(
    gate: ItemsThreshold, items: AnswerItems, limits: Sequence[float | None], columns: ItemColumns
) -> list[str]:
    """Sentences about fields that err more than the target: the promise is about all fields together."""
    if gate.rule not in ("wrong_share", "both"):
        return []
    lines = []
    for row in path_rows(items, limits, columns):
        if row.kept and interval(row.kept_wrong, row.kept)[0] > gate.alpha:
            share = percent(row.kept_wrong / row.kept)
            lines.append(
                f"Of the kept values of {row.path}, {share} are wrong: the promise is about all items together. If "
                "this field decides alone, calibrate it alone."
            )
    return lines


def facts(artifact: CalibrationArtifact) -> list[tuple[str, str]]:
    """Facts that a gate of items is bound to, as name and value."""
    gate = artifact.items
    assert gate is not None, "an artifact of items"
    rows = [
        ("model", f"{artifact.model.provider}, {artifact.model.model}"),
        ("questions", f"{artifact.data.n_used} of {artifact.data.n_questions} in {artifact.data.name}"),
        ("items", f"{gate.spec.kind}, at most {gate.spec.cap} kept of an answer"),
        ("split by", _procedure(gate.spec.splitter)),
        ("support by", _procedure(gate.spec.support)),
        ("rule", f"{gate.rule}, per {gate.per}, {gate.allowed} wrong items allowed, {gate.options}"),
        ("threshold", "none" if gate.threshold is None else f"{gate.threshold:.6g}"),
        ("labels", artifact.correctness.name),
        (
            "not measured",
            f"{gate.n_unmeasured_answers} answers (left out), {gate.n_unmeasured_items} items (held back)",
        ),
        ("undecided labels", f"{gate.n_undecided}, counted as wrong"),
    ]
    if artifact.spent is not None and artifact.spent.fits > 1:
        rows.append(("fits on these labels", str(artifact.spent.fits)))
    if gate.bands:
        limits = ", ".join("none" if limit is None else f"{limit:.6g}" for limit in gate.band_thresholds)
        rows.append(("bands of the number of items", f"up to {', '.join(map(str, gate.bands))}, and more: {limits}"))
    return rows


def _procedure(procedure: Procedure) -> str:
    params = f" {procedure.params}" if procedure.params else ""
    return f"{procedure.name}, version {procedure.version}{params}"


def caveats(gate: ItemsThreshold) -> list[str]:
    """Sentences about the limits of the promise."""
    lines = [
        "It is about answers like the calibration answers, from the same source. A drift of the questions or of the "
        "model is not noticed.",
        "It is about what is kept. Recall, the share of the right content that is passed on, is an estimate.",
    ]
    if gate.rule == "wrong_share":
        if gate.spec.kind == "json":
            lines.append("It is about all items together, not about each field: a rare field may err far more often.")
        lines.append(
            "It says nothing certain about the share of answers with a wrong item; that figure is an estimate."
        )
    if gate.rule in ("clean_answers", "both"):
        lines.append("An answer of which nothing is kept counts as clean: read the share of answers shown beside it.")
    if gate.delta is not None:
        lines.append(f"It fails with probability {gate.delta:g} over calibrations at most.")
    lines.append("Draw once. Drawing again until more is kept breaks the promise.")
    return lines
