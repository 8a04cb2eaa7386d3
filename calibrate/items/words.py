"""The promise and the figures of a gate of items in words, the same wherever they are printed."""

from __future__ import annotations

from collections.abc import Sequence

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import promised_of_items
from guardrail.items.spec import ItemFigures, ItemsThreshold
from guardrail.notebook import percent

from ..rules.certificate import interval
from .figures import PathRow
from .fit import gate_of

__all__ = ["caveats", "facts", "figures_lines", "path_warnings", "paths_table", "promise_line", "share_of"]


def promise_line(artifact: CalibrationArtifact) -> str:
    """The promise in one line, or why nothing is promised."""
    gate = gate_of(artifact)
    promised = promised_of_items(gate.rule, gate.alpha)
    if gate.threshold is None:
        return f"No threshold was found for: {promised}. Every item is held back. {artifact.outcome.detail}"  # type: ignore[union-attr]
    return f"{promised[0].upper()}{promised[1:]}, with {percent(1 - gate.delta)} confidence."


def share_of(k: int, n: int) -> str:
    """A share with its counts: "5 % (3 of 60)"."""
    return f"{percent(k / n)} ({k} of {n})" if n else "none"


def figures_lines(gate: ItemsThreshold, figures: ItemFigures) -> list[str]:
    """Items, answers and recall in sentences. A promise about all answers never stands without them."""
    right, kept_right = figures.items - figures.wrong, figures.kept - figures.kept_wrong
    certified = "" if gate.rule == "clean_shown" else "; an estimate, not certified"
    lines = [
        f"Items: {share_of(figures.kept, figures.items)} kept, {share_of(figures.kept_wrong, figures.kept)} of them "
        f"wrong (without a gate {share_of(figures.wrong, figures.items)}); {share_of(kept_right, right)} of the right "
        "ones pass.",
        f"Answers: {share_of(figures.shown, figures.answers)} show something, "
        f"{share_of(figures.complete, figures.answers)} are complete; of those shown "
        f"{share_of(figures.broken, figures.shown)} keep a wrong item{_between(figures.broken_interval)}{certified}.",
    ]
    if gate.rule == "wrong_share_per_answer" and figures.wrong_per_answer is not None:
        lines.append(f"A shown answer keeps {percent(figures.wrong_per_answer)} wrong items on average.")
    if figures.reference:
        lines.append(
            f"Recall: {share_of(figures.recalled or 0, figures.reference)} of the fields of the references are passed "
            f"on rightly{_between(figures.recall_interval)}."
        )
    return lines


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f", 95 % interval {percent(ends[0])} to {percent(ends[1])}"


def path_warnings(gate: ItemsThreshold, rows: Sequence[PathRow]) -> list[str]:
    """Sentences about fields that err more than the target, where the promise is about all fields together."""
    if not gate.rule.startswith("wrong_share"):
        return []
    return [
        f"Of the kept values of {row.path}, {percent(row.kept_wrong / row.kept)} are wrong: the promise is about all "
        "items together. If this field decides alone, calibrate it alone."
        for row in rows
        if row.kept and interval(row.kept_wrong, row.kept)[0] > gate.alpha
    ]


def paths_table(rows: Sequence[PathRow]) -> list[tuple[str, ...]]:
    """Rows of path, items, wrong, kept and wrong among kept, as texts."""
    return [
        (
            row.path,
            str(row.items),
            *(share_of(k, n) for k, n in ((row.wrong, row.items), (row.kept, row.items), (row.kept_wrong, row.kept))),
        )
        for row in rows
    ]


def facts(artifact: CalibrationArtifact) -> list[tuple[str, str]]:
    """Facts that a gate of items is bound to, as name and value."""
    gate = gate_of(artifact)
    spec = gate.spec
    named = {"judges": [*spec.judges], "key fields": [*spec.keys], "optional fields": [*spec.optional]}
    rows = [
        ("model", f"{artifact.model.provider}, {artifact.model.model}"),
        ("questions", f"{artifact.data.n_used} of {artifact.data.n_questions} in {artifact.data.name}"),
        ("items", f"at most {spec.cap} kept of an answer; version {spec.version} of splitting and support"),
        *((name, ", ".join(values)) for name, values in named.items() if values),
        ("rule", f"{gate.rule} at alpha = {gate.alpha:g}, delta = {gate.delta:g}"),
        ("threshold", "none" if gate.threshold is None else f"{gate.threshold:.6g}"),
        ("labels", artifact.correctness.name),
        ("answers not measured", f"{gate.n_unmeasured_answers}, held back"),
        ("items not measured", f"{gate.n_unmeasured_items}, held back"),
        ("undecided labels", f"{gate.n_undecided}, counted as wrong"),
    ]
    if artifact.spent is not None and artifact.spent.fits > 1:
        rows.append(("fits on these labels", str(artifact.spent.fits)))
    return rows


def caveats(gate: ItemsThreshold) -> list[str]:
    """Sentences about the limits of the promise."""
    lines = [
        "It is about answers like the calibration answers, from the same source. A drift of the questions or of the "
        "model is not noticed.",
        "It is about what is kept. Recall, the share of the right content that is passed on, is an estimate.",
    ]
    if gate.rule.startswith("wrong_share"):
        lines.append("It is about all items together, not about each field: a rare field may err far more often.")
        lines.append(
            "It says nothing certain about the share of answers with a wrong item; that figure is an estimate."
        )
    if gate.rule == "clean_answers":
        lines.append("An answer of which nothing is kept counts as clean: read the share of answers shown beside it.")
    lines.append(f"It fails with probability {gate.delta:g} over calibrations at most.")
    lines.append("Draw once. Drawing again until more is kept breaks the promise.")
    return lines
