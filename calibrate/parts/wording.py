"""Sentences and tables of commands and reports about a gate of parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from guardrail.artifact import CalibrationArtifact
from guardrail.notebook import percent
from guardrail.parts.spec import PartsGate, Procedure

from ..data.part_columns import PartColumns
from ..thresholds.betting import betting_p
from ..thresholds.bounds import binomial_tail, clopper_pearson_interval
from .figures import kept_of, length_bands, path_rows
from .rules import AnswerParts, Reals, reading_order

__all__ = [
    "Tested",
    "bands_table",
    "caveats",
    "check_promise",
    "facts",
    "path_warnings",
    "paths_table",
    "share_of",
]


@dataclass(frozen=True, slots=True)
class Tested:
    """The test of a promise on labelled answers that the gate was not fitted on.

    Attributes:
        verdict: "refuted" or "supported" at the level of the test, else "undecided".
        sentence: The result in words.
        p_refuted: p-value of "the promise holds".
        p_supported: p-value of "the promise does not hold".
    """

    verdict: Literal["refuted", "supported", "undecided"]
    sentence: str
    p_refuted: float
    p_supported: float


def check_promise(
    gate: PartsGate,
    parts: AnswerParts,
    limits: Sequence[float | None],
    *,
    level: float = 0.05,
    target: float | None = None,
) -> Tested:
    """Test a gate's promise on answers that it was not fitted on.

    The share of wrong parts is tested by betting, in both directions; rules over answers by exact binomial tails. A
    gate whose risk is exactly its target is refuted with probability ``level`` at most.

    Args:
        gate: The gate.
        parts: Labelled answers.
        limits: The threshold of each answer.
        level: Level of each of the two tests.
        target: Share to test instead of the gate's.
    """
    kept = kept_of(parts, limits)
    K = np.bincount(parts.answer, weights=kept, minlength=parts.n).astype(np.float64)
    W = np.bincount(parts.answer, weights=kept & (parts.wrong == 1), minlength=parts.n).astype(np.float64)
    if not K.sum():
        return Tested("undecided", "Nothing is kept of these answers, so the promise cannot be tested.", 1.0, 1.0)
    alpha = gate.alpha if target is None else target
    results = []
    if gate.rule in ("wrong_share", "both"):
        results.append(_share_tested(gate, parts, K, W, alpha, level))
    if gate.rule != "wrong_share":
        limit = gate.options.get("clean_alpha", alpha) if target is None else target
        results.append(_broken_tested(gate, K, W, limit))
    p_refuted = min(1.0, len(results) * min(p for p, _, _ in results))
    p_supported = max(p for _, p, _ in results)
    facts_in_words = "; ".join(words for _, _, words in results)
    if p_refuted <= level:
        return Tested(
            "refuted", f"They refute the promise: {facts_in_words} (p = {p_refuted:.2g}).", p_refuted, p_supported
        )
    if p_supported <= level:
        words = f"They support the promise: {facts_in_words} (p = {p_supported:.2g})."
        return Tested("supported", words, p_refuted, p_supported)
    words = f"They neither refute nor support the promise: {facts_in_words}. More labelled answers would."
    return Tested("undecided", words, p_refuted, p_supported)


def _share_tested(
    gate: PartsGate, parts: AnswerParts, K: Reals, W: Reals, alpha: float, level: float
) -> tuple[float, float, str]:
    excess = W - alpha * K
    shown = K > 0
    most, least, share = (1 - alpha) * parts.cap, alpha * parts.cap, W.sum() / K.sum()
    if gate.per == "answer":
        excess = np.where(shown, excess / np.maximum(K, 1), 0.0)
        most, least, share = 1 - alpha, alpha, float((W[shown] / K[shown]).mean())
    read = excess[reading_order(parts.ids)][:, None]
    against = float(betting_p(-read, least, level)[0])
    supports = float(betting_p(read, most, level)[0])
    return against, supports, f"{percent(share)} of what is kept is wrong, and the target is {percent(alpha)}"


def _broken_tested(gate: PartsGate, K: Reals, W: Reals, alpha: float) -> tuple[float, float, str]:
    broken = int((gate.allowed < W).sum())
    n = int((K > 0).sum()) if gate.rule == "clean_shown" else K.size
    of = "answers that show something" if gate.rule == "clean_shown" else "answers"
    against = 1.0 if broken == 0 else float(1 - binomial_tail(broken - 1, n, alpha))
    words = f"{broken} of {n} {of} are broken ({percent(broken / n)}), and the target is {percent(alpha)}"
    return against, float(binomial_tail(broken, n, alpha)), words


# -- Tables and lists of reports ---------------------------------------------------------------------------------------


def share_of(k: int, n: int) -> str:
    """A share with its count: "5 % (3)"."""
    return f"{percent(k / n)} ({k})" if n else "-"


def paths_table(parts: AnswerParts, limits: Sequence[float | None], columns: PartColumns) -> list[tuple[str, ...]]:
    """Rows of path, parts, wrong, kept and wrong among kept; with a cut, nobody knows how many of all are wrong."""
    return [
        (
            row.path,
            str(row.parts),
            share_of(row.wrong, row.parts) if parts.cut is None else "-",
            share_of(row.kept, row.parts),
            share_of(row.kept_wrong, row.kept),
        )
        for row in path_rows(parts, limits, columns)
    ]


def bands_table(parts: AnswerParts, limits: Sequence[float | None], allowed: int) -> list[tuple[str, ...]]:
    """Rows of the number of parts, answers, shown, complete and broken among shown."""
    return [
        (
            name,
            str(f.answers),
            share_of(f.shown, f.answers),
            share_of(f.complete, f.answers),
            share_of(f.broken, f.shown),
        )
        for name, f in length_bands(parts, limits, allowed=allowed)
    ]


def path_warnings(
    gate: PartsGate, parts: AnswerParts, limits: Sequence[float | None], columns: PartColumns
) -> list[str]:
    """Sentences about fields that err more than the target: the promise is about all fields together."""
    if gate.rule not in ("wrong_share", "both"):
        return []
    lines = []
    for row in path_rows(parts, limits, columns):
        if row.kept and clopper_pearson_interval(row.kept_wrong, row.kept)[0] > gate.alpha:
            share = percent(row.kept_wrong / row.kept)
            lines.append(
                f"Of the kept values of {row.path}, {share} are wrong: the promise is about all parts together. If "
                "this field decides alone, calibrate it alone."
            )
    return lines


def facts(artifact: CalibrationArtifact) -> list[tuple[str, str]]:
    """Facts that a gate of parts is bound to, as name and value."""
    gate = artifact.parts
    assert gate is not None, "an artifact of parts"
    rows = [
        ("model", f"{artifact.model.provider}, {artifact.model.model}"),
        ("questions", f"{artifact.data.n_used} of {artifact.data.n_questions} in {artifact.data.name}"),
        ("parts", f"{gate.spec.kind}, at most {gate.spec.cap} kept of an answer"),
        ("split by", _procedure(gate.spec.splitter)),
        ("support by", _procedure(gate.spec.support)),
        ("rule", f"{gate.rule}, per {gate.per}, {gate.allowed} wrong parts allowed, {gate.options}"),
        ("threshold", "none" if gate.threshold is None else f"{gate.threshold:.6g}"),
        ("labels", artifact.correctness.name),
        (
            "not measured",
            f"{gate.n_unmeasured_answers} answers (left out), {gate.n_unmeasured_parts} parts (held back)",
        ),
        ("undecided labels", f"{gate.n_undecided}, counted as wrong"),
    ]
    if artifact.selection is not None and (text := artifact.selection.describe(gate.delta)):
        rows.append(("fits on these labels", text))
    if gate.bands:
        limits = ", ".join("none" if limit is None else f"{limit:.6g}" for limit in gate.band_thresholds)
        rows.append(("bands of the number of parts", f"up to {', '.join(map(str, gate.bands))}, and more: {limits}"))
    return rows


def _procedure(procedure: Procedure) -> str:
    params = f" {procedure.params}" if procedure.params else ""
    return f"{procedure.name}, version {procedure.version}{params}"


def caveats(gate: PartsGate) -> list[str]:
    """Sentences about the limits of the promise."""
    lines = [
        "It is about answers like the calibration answers, from the same source. A drift of the questions or of the "
        "model is not noticed.",
        "It is about what is kept. Recall, the share of the right content that is passed on, is an estimate.",
    ]
    if gate.rule == "wrong_share":
        lines.append("It is about all parts together, not about each field: a rare field may err far more often.")
        lines.append(
            "It says nothing certain about the share of answers with a wrong part; that figure is an estimate."
        )
    if gate.rule in ("clean_answers", "both"):
        lines.append("An answer of which nothing is kept counts as clean: read the share of answers shown beside it.")
    if gate.delta is not None:
        lines.append(f"It fails with probability {gate.delta:g} over calibrations at most.")
    lines.append("Draw once. Drawing again until more is kept breaks the promise.")
    return lines
