"""The promise and the figures of a gate of items in words, the same wherever they are printed."""

from __future__ import annotations

from collections.abc import Sequence

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import answer_if, promised_of_items, why_infeasible
from guardrail.items.spec import ItemFigures, ItemsSpec
from guardrail.notebook import percent
from guardrail.outcome import Infeasible

from ..rules.certificate import interval
from .figures import PathRow

__all__ = ["caveats", "figures_lines", "item_facts", "items_summary", "path_warnings", "paths_table"]
__all__ += ["promise_line", "share_of"]


def promise_line(artifact: CalibrationArtifact) -> str:
    """The promise in one line, or why nothing is promised."""
    outcome = artifact.outcome
    promised = promised_of_items(outcome.rule, outcome.alpha)
    if isinstance(outcome, Infeasible):
        return f"No threshold was found for: {promised}. Every item is held back. {why_infeasible(outcome)}"
    return f"{promised[0].upper()}{promised[1:]}, with {percent(1 - (outcome.delta or 0.0))} confidence."


def items_summary(artifact: CalibrationArtifact) -> tuple[str, ...]:
    """The lines that a fit leads with: the promise, or why there is none, and what is kept."""
    figures = [] if artifact.items is None or artifact.threshold is None else figures_lines(artifact)
    return (answer_if(artifact), promise_line(artifact), *figures)


def share_of(k: int, n: int) -> str:
    """A share with its counts: "5 % (3 of 60)"."""
    return f"{percent(k / n)} ({k} of {n})" if n else "none"


def figures_lines(artifact: CalibrationArtifact, figures: ItemFigures | None = None) -> list[str]:
    """Items, answers and recall in sentences. A promise about all answers never stands without them.

    Args:
        artifact: An artifact of items.
        figures: Its counts on other answers; default: those on its calibration answers.
    """
    rule, figures = artifact.outcome.rule, figures or artifact.items
    assert figures is not None, "a fit on items"
    right, kept_right = figures.items - figures.wrong, figures.kept - figures.kept_wrong
    certified = "" if rule == "clean_shown" else "; an estimate, not certified"
    lines = [
        f"Items: {share_of(figures.kept, figures.items)} kept, {share_of(figures.kept_wrong, figures.kept)} of them "
        f"wrong (without a gate {share_of(figures.wrong, figures.items)}); {share_of(kept_right, right)} of the right "
        "ones pass.",
        f"Answers: {share_of(figures.shown, figures.answers)} show something, "
        f"{share_of(figures.complete, figures.answers)} are complete; of those shown "
        f"{share_of(figures.broken, figures.shown)} keep a wrong item{_between(figures.broken_interval)}{certified}.",
    ]
    if rule == "wrong_share_per_answer" and figures.wrong_per_answer is not None:
        lines.append(f"A shown answer keeps {percent(figures.wrong_per_answer)} wrong items on average.")
    if figures.reference:
        lines.append(
            f"Recall: {share_of(figures.recalled or 0, figures.reference)} of the fields of the references are passed "
            f"on rightly{_between(figures.recall_interval)}."
        )
    return lines


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f", 95 % interval {percent(ends[0])} to {percent(ends[1])}"


def path_warnings(artifact: CalibrationArtifact, rows: Sequence[PathRow]) -> list[str]:
    """Sentences about fields that err more than the target, where the promise is about all fields together."""
    if not artifact.outcome.rule.startswith("wrong_share"):
        return []
    return [
        f"Of the kept values of {row.path}, {percent(row.kept_wrong / row.kept)} are wrong: the promise is about all "
        "items together. If this field decides alone, calibrate it alone."
        for row in rows
        if row.kept and interval(row.kept_wrong, row.kept)[0] > artifact.alpha
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


def item_facts(artifact: CalibrationArtifact) -> list[tuple[str, str]]:
    """Facts about the items that a gate is bound to, as name and value; none for a gate of whole answers."""
    if artifact.kind != "items":
        return []
    spec, values = ItemsSpec.of(artifact.estimator), artifact.calibration.uncertainty
    named = {"judges": [*spec.judges], "key fields": [*spec.keys], "optional fields": [*spec.optional]}
    return [
        ("items", f"at most {spec.cap} kept of an answer; version {spec.version} of splitting and support"),
        *((name, ", ".join(paths)) for name, paths in named.items() if paths),
        ("items not measured", f"{sum(value is None for value in values)} of {len(values)}, held back"),
        ("undecided labels", f"{artifact.data.n_undecided}, counted as wrong"),
    ]


def caveats(artifact: CalibrationArtifact) -> list[str]:
    """Sentences about the limits of a promise about items; none for a gate of whole answers."""
    if artifact.kind != "items":
        return []
    rule = artifact.outcome.rule
    lines = [
        "It is about answers like the calibration answers, from the same source. A drift of the questions or of the "
        "model is not noticed.",
        "It is about what is kept. Recall, the share of the right content that is passed on, is an estimate.",
    ]
    if rule.startswith("wrong_share"):
        lines.append("It is about all items together, not about each field: a rare field may err far more often.")
        lines.append(
            "It says nothing certain about the share of answers with a wrong item; that figure is an estimate."
        )
    if rule == "clean_answers":
        lines.append("An answer of which nothing is kept counts as clean: read the share of answers shown beside it.")
    lines.append(f"It fails with probability {artifact.outcome.delta or 0:g} over calibrations at most.")
    lines.append("Draw once. Drawing again until more is kept breaks the promise.")
    return lines
