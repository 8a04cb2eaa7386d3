"""The promise and the figures of a gate of items in words, the same wherever they are printed."""

from __future__ import annotations

from guardrail.items.spec import ItemFigures, ItemsThreshold, too_many
from guardrail.notebook import percent

__all__ = ["figures_lines", "promise_line"]


def promise_line(gate: ItemsThreshold) -> str:
    """The rule in use and its promise in one line."""
    sure = "on average over calibrations" if gate.delta is None else f"with {percent(1 - gate.delta)} confidence"
    at_most = f"{percent(gate.alpha)} or less" if gate.delta is None else f"at most {percent(gate.alpha)}"
    allowed = too_many(gate.allowed)
    of_answers = f"{at_most} of all answers keep {allowed}"
    per = (
        "of the items kept"
        if gate.per == "item"
        else "of the items that an answer keeps, on average over shown answers,"
    )
    what = {
        "wrong_share": f"{at_most} {per} are wrong",
        "clean_shown": f"{at_most} of the answers that show something keep {allowed}",
        "clean_answers": of_answers,
        "both": f"{at_most} {per} are wrong, and at most {percent(gate.options.get('clean_alpha', gate.alpha))} of all "
        f"answers keep {allowed}",
    }.get(gate.rule, gate.promise)
    if gate.threshold is None:
        return f"Rule {gate.rule} found no threshold for: {what}. Every item is held back."
    return f"In use: rule {gate.rule}. {what[0].upper()}{what[1:]}, {sure}."


def figures_lines(gate: ItemsThreshold, figures: ItemFigures, cut: float | None) -> list[str]:
    """The figures of a gate: items, answers and recall. A promise about all answers never stands without them.

    Args:
        gate: The gate.
        figures: Its counts.
        cut: The uncertainty up to which the items of these answers are labelled; None for all.
    """
    right, kept_right = figures.items - figures.wrong, figures.kept - figures.kept_wrong
    kept = f"Items: {_of(figures.kept, figures.items)} kept, {_of(figures.kept_wrong, figures.kept)} of them wrong"
    if cut is None:
        gateless = f"(without a gate {_of(figures.wrong, figures.items)})"
        lines = [f"{kept} {gateless}; {_of(kept_right, right)} of the right ones pass."]
    else:
        # Items above the cut need no label, so nobody knows how many of all items are wrong.
        lines = [f"{kept}. None above the cut of {cut:g} is kept, and their labels are not read."]
    low_high = figures.broken_interval
    interval = "" if low_high is None else f", 95 % interval {percent(low_high[0])} to {percent(low_high[1])}"
    broken = too_many(gate.allowed)
    certified = "" if gate.rule == "clean_shown" else "; an estimate, not certified"
    lines.append(
        f"Answers: {_of(figures.shown, figures.answers)} show something, {_of(figures.complete, figures.answers)} are "
        f"complete; of those shown {_of(figures.broken, figures.shown)} keep {broken}{interval}{certified}."
    )
    if gate.per == "answer" and figures.wrong_per_answer is not None:
        lines.append(f"A shown answer keeps {percent(figures.wrong_per_answer)} wrong items on average.")
    if figures.reference:
        ends = figures.recall_interval
        spread = "" if ends is None else f", 95 % interval {percent(ends[0])} to {percent(ends[1])}"
        lines.append(
            f"Recall: {_of(figures.recalled or 0, figures.reference)} of the fields of the references are passed on "
            f"rightly{spread}."
        )
    return lines


def _of(k: int, n: int) -> str:
    return f"{percent(k / n)} ({k} of {n})" if n else "none"
