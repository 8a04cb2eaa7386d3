"""The test of a promise on fresh labels: its verdict and numbers, and the sentences that `print` shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import Field, computed_field
from scipy import special

from guardrail.artifact import StageShare
from guardrail.describe import NOUNS, Judges, Nouns, figures_lines
from guardrail.monitor.risk import log_wealth
from guardrail.notebook import as_html, percent
from guardrail.outcome import AVERAGE
from guardrail.types import Frozen

from ..judging import GateCounts
from ..rules import certifies
from ..rules.certificate import tail, upper_bound

LEVEL = 0.05
"""Default probability of refuting a gate whose error rate is exactly the target."""
DIFFERENT = 0.01
"""Fresh questions are of another kind than the calibration questions where a p-value lies below this."""
MOST_NEEDED = 10_000_000
"""Larger numbers of labels are not reported."""
ALONE = "calibrate fit NEW_RECORDS --alpha ALPHA"
"""The command that calibrates on new questions alone, where the names of the files are unknown."""


# -- The test of counts ------------------------------------------------------------------------------------------------


class RateTest(Frozen):
    """A rate against a target."""

    target: float
    """The error rate that was tested: the artifact's alpha."""
    level: float
    """Probability of refuting a gate whose error rate is exactly the target; and of supporting it."""
    n: int
    """Units the rate is over: labelled accepted answers, all labelled questions, or items kept."""
    n_errors: int
    """Accepted answers, or items, among them that are wrong."""
    rate: float | None
    """The rate on these units; None without any."""
    p_refute: float
    """p-value of "the rate is at most the target": P(Bin(n, target) >= n_errors), of a share of items by betting."""
    p_support: float
    """p-value of "the rate is at least the target": P(Bin(n, target) <= n_errors), of a share of items by betting."""
    upper: float | None = None
    """Exact upper confidence bound of the rate at ``1 - level``; None without any unit, and of a share of items."""
    needed: int | None = None
    """More labels that would decide it if the rate stayed as seen; None when decided, when none would, or unknown."""
    anytime: bool = Field(default=False, exclude_if=lambda anytime: not anytime)
    """Whether the verdicts, p-values and the bound are by betting: they hold however often the audit is repeated."""

    @classmethod
    def of(cls, errors: int, n: int, target: float, level: float, *, anytime: bool = False) -> RateTest:
        """The test of so many errors among n units; ``anytime`` by betting, else by the binomial, for one look."""
        p_refute, p_support = _p_values(errors, n, target, anytime)
        upper = needed = None
        if n:
            upper = _anytime_upper(errors, n, level) if anytime else float(upper_bound(errors, n, level))
        if min(p_refute, p_support) > level:
            needed = labelled_needed(errors, n, target, level, anytime=anytime)
        return RateTest(
            target=target,
            level=level,
            n=n,
            n_errors=errors,
            rate=errors / n if n else None,
            p_refute=p_refute,
            p_support=p_support,
            upper=upper,
            needed=needed,
            anytime=anytime,
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Literal["refuted", "supported", "undecided"]:
        """What the errors say: so many, or so few, have probability at most ``level`` at ``target``; or neither."""
        if self.n and self.p_refute <= self.level:
            return "refuted"
        return "supported" if self.n and self.p_support <= self.level else "undecided"


def labelled_needed(errors: int, n: int, target: float, level: float, *, anytime: bool = False) -> int | None:
    """The number of further items that decide at this error rate; None without items, or if the rate is the target.

    Errors are counted to the unfavourable side of a half item (up for supporting, down for refuting), so the number is
    a good guess, not a promise.
    """
    if n == 0:
        return None
    rate = errors / n
    if rate == target:
        return None

    def decided(size: int) -> bool:
        if rate < target:
            return _p_values(int(np.ceil(rate * size - 1e-9)), size, target, anytime)[1] <= level
        return _p_values(int(np.floor(rate * size + 1e-9)), size, target, anytime)[0] <= level

    size = _first(decided, n)
    return None if size is None else size - n


def _p_values(errors: int, n: int, target: float, anytime: bool) -> tuple[float, float]:
    """p-values of "at most the target is wrong" and of "at least the target is wrong"."""
    if not anytime:
        # P(Bin(n, target) >= errors) = I_target(errors, n - errors + 1), without the rounding of a complement.
        at_least = float(special.betainc(errors, n - errors + 1.0, target)) if errors else 1.0
        return at_least, float(tail(errors, n, target))
    # 1 / wealth: by Ville's inequality it is ever at most the level with a probability of at most the level. A rate of
    # right answers above 1 - target is bet on alike.
    against = (log_wealth([(1.0, n, errors)], target), log_wealth([(1.0, n, n - errors)], 1 - target))
    refute, support = (min(1.0, float(np.exp(-logs))) for logs in against)
    return refute, support


def _anytime_upper(errors: int, n: int, level: float) -> float:
    """Smallest error rate that betting shows not to be exceeded, to 1e-4; 1 if none."""
    low, high = errors / n, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if _p_values(errors, n, middle, True)[1] <= level else (middle, high)
    return high


def _first(decided: Callable[[int], bool], after: int) -> int | None:
    """The first size past ``after`` that decides, by doubling and bisection (exact up to the steps of the binomial)."""
    # Doubling first, since the answer may be tens or hundreds of thousands.
    step, low = 1, after
    while not decided(low + step):
        low, step = low + step, 2 * step
        if low > MOST_NEEDED:
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high


# -- Results -----------------------------------------------------------------------------------------------------------


class Shift(Frozen):
    """Fresh questions against the calibration questions. Information only: it refutes nothing by itself."""

    calibration: float | None
    """Share accepted at calibration; None when the artifact accepts nothing."""
    fresh: float
    """Share accepted among the fresh records with a score (within the artifact's scope, as at calibration)."""
    acceptance_p: float | None
    """Fisher's exact p-value of "the same share"; approximate, because the threshold was chosen on one of the two."""
    ks: float
    """Largest distance between the two distributions of uncertainty (Kolmogorov-Smirnov)."""
    ks_p: float
    """Its asymptotic p-value; too large when scores have ties."""
    within: float | None = None
    """Share of the fresh scores within the artifact's scope, the only ones compared; None if all are."""

    @property
    def scores_differ(self) -> bool:
        """Whether the scores show that the fresh questions are of another kind (at the level `DIFFERENT`)."""
        return min(self.ks_p, 1.0 if self.acceptance_p is None else self.acceptance_p) < DIFFERENT

    def lines(self, asked: str) -> list[str]:
        """The comparison in words; ``asked`` is what is compared, such as "questions"."""
        lines = []
        if self.calibration is not None and self.acceptance_p is not None:
            scope = "" if self.within is None else f"the {asked} within the scope ({percent(self.within)} of these)"
            lines.append(
                f"Accepted: {percent(self.fresh)} of {scope or f'these {asked}'}, {percent(self.calibration)} at "
                f"calibration (p = {self.acceptance_p:.2g})."
            )
        lines.append(f"Uncertainty against calibration: largest distance {self.ks:.3f} (p = {self.ks_p:.2g}).")
        if self.scores_differ:
            lines.append(f"These {asked} look different from the calibration {asked}: the promise may not carry over.")
        return lines


class PromiseTest(RateTest):
    """A promise against fresh labels; ``print`` shows it in words."""

    artifact: str
    """Digest of the artifact."""
    population: Literal["accepted", "all", "items"]
    """What the rate is a share of, by the rule: accepted answers, all questions, or items kept."""
    judges: Judges = Field(default="answers", exclude_if=lambda judges: judges == "answers")
    """What the gate judges: answers, calls of a tool, or items of answers."""

    @property
    def nouns(self) -> Nouns:
        """The words for what the gate judges."""
        return NOUNS[self.judges]

    @property
    def findings(self) -> tuple[str, ...]:
        """The verdict with its numbers, a sentence or two a paragraph."""
        target, sure = percent(self.target), percent(1 - self.level)
        if self.rate is None:
            return (f"No accepted {self.nouns.one} has a label, so nothing can be said about a rate of {target}.",)
        seen = f"{self._counted} ({percent(self.rate)}; target {target})."
        if self.verdict == "refuted":
            return (f"{seen} {self._unlikely} The promise does not hold on these {self.nouns.asked}.",)
        if self.verdict == "supported":
            bound = percent(self.target if self.upper is None else self.upper)
            return (f"{seen} The error rate is at most {bound} with {sure} confidence (target {target}).",)
        more = "More labels would decide it."
        if self.rate == self.target:
            more = "No number of further labels would decide it: the rate lies on the target."
        elif self.needed is not None:
            more = f"At the present rate, about {self.needed:,} more labels would decide it."
        return (f"{seen} That neither refutes nor proves an error rate of {target} at {sure} confidence. {more}",)

    @property
    def _counted(self) -> str:
        kind = f"accepted {self.nouns.many}" if self.population == "accepted" else self.nouns.asked
        return f"{self.n_errors} of {self.n} labelled {kind} were wrong"

    @property
    def _unlikely(self) -> str:
        if_kept = f"If the error rate were {percent(self.target)} or less, so"
        most = f"a probability of at most {self.p_refute:.2g}"
        if self.anytime:
            return f"{if_kept} much evidence would ever appear with {most}, however often one looks."
        return f"{if_kept} many errors would have {most}."

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else was found, a line each."""
        return ()

    def __str__(self) -> str:
        """Verdict, numbers and remarks, as ``calibrate audit`` prints them."""
        return "\n".join((f"{self.verdict.capitalize()}: {self.findings[0]}", *self.findings[1:], *self.remarks))

    def _repr_html_(self) -> str:
        good = {"refuted": False, "supported": True}.get(self.verdict)
        return as_html(self.verdict.capitalize(), [("", line) for line in (*self.findings, *self.remarks)], good=good)


_COUNTED = {
    "wrong_share": "{e} of {n} labelled items that are kept were wrong",
    "wrong_share_per_answer": "Of the {n} labelled items that are kept {e} were wrong; the mean over answers counts",
    "clean_shown": "{e} of {n} labelled answers that show something keep a wrong item",
    "clean_answers": "{e} of {n} labelled answers keep a wrong item",
}
"""What a promise about items counts, by its rule."""


class Audit(PromiseTest):
    """The promise of a gate of whole answers, calls or items against fresh labels."""

    rule: str
    """Its rule."""
    n_unlabelled: int
    """Accepted answers without a label; they count neither way."""
    held_out: GateCounts
    """Counts and 95 % intervals on all labelled fresh records."""
    at_calibration: GateCounts
    """The same on the calibration items. Post-selection: the threshold was chosen on them."""
    base_error_p: float
    """Fisher's exact p-value of "the same share of all answers is wrong as at calibration"."""
    error_p: float | None
    """Fisher's exact p-value of "accepted answers are wrong as often as at calibration"; None without any."""
    shift: Shift
    """Acceptance and uncertainty against calibration."""
    n_repeated: int = Field(default=0, exclude_if=lambda n: not n)
    """Records that were not read, because another one asks the same question or is of the same cluster."""

    @property
    def cause(self) -> Literal["questions", "labels", "chance"]:
        """The most likely cause of a refutation.

        "questions": their scores differ from those at calibration. "labels": the scores do not differ, but the share
        of wrong answers does. "chance": neither differs; the calibration ended above its target.
        """
        if self.shift.scores_differ:
            return "questions"
        return "labels" if self.base_error_p < DIFFERENT else "chance"

    @property
    def contradicts_calibration(self) -> bool:
        """Whether a refuted gate breaks its promise; its rule may let some gates end above the target.

        A rule that certifies promises each gate. Others promise an average over gates, of which many end somewhat above
        alpha: theirs is broken where accepted answers are wrong more often than they were at calibration.
        """
        if self.verdict != "refuted":
            return False
        return certifies(self.rule) or self.cause != "chance" or (self.error_p is not None and self.error_p <= LEVEL)

    @property
    def findings(self) -> tuple[str, ...]:
        """As of every test; a refutation with its likely cause."""
        return (*super().findings, *([self._cause] if self.verdict == "refuted" else []))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Differences of the fresh questions from those of the calibration, and what was not read or has no label."""
        lines = self.shift.lines(self.nouns.asked)
        if self.n_repeated:
            other = "another one asks the same question, or is of the same cluster"
            lines.append(f"{self.n_repeated} records are not read: {other}.")
        if self.n_unlabelled:
            lines.append(
                f"{self.n_unlabelled} accepted {self.nouns.many} have no label. That is sound only if those labelled "
                "were picked at random."
            )
        return (*lines, *figures_lines(self.held_out.items, self.rule))

    def remedies(self, alone: str = ALONE) -> list[str]:
        """Remedies after a refutation, most useful first; never a rule that would not have helped here.

        Args:
            alone: The command that calibrates on the fresh questions alone.
        """
        steps = [f"If run time asks such questions, fit on these alone, then test on others: {alone}"]
        if self.cause == "labels":
            steps.insert(0, "Compare the labels of the two files first: the same rule, references of the same form.")
        if self.cause == "chance" and self.rule == AVERAGE:
            certified = "Use rule certified (--rule certified), which accepts less and fails with probability delta."
            steps.insert(0, certified)
        return steps

    @property
    def _counted(self) -> str:
        seen = _COUNTED.get(self.rule)
        return super()._counted if seen is None else seen.format(e=self.n_errors, n=self.n)

    @property
    def _cause(self) -> str:
        nouns, asked = self.nouns, self.nouns.asked
        here, there = (percent(1 - each.n_correct / each.n) for each in (self.held_out, self.at_calibration))
        base = f"{here} of all {nouns.many} {nouns.wrong}, {there} at calibration"
        if self.cause == "questions":
            what, p = "uncertainty", self.shift.ks_p
            if p >= DIFFERENT and self.shift.acceptance_p is not None:
                what, p = "share accepted", self.shift.acceptance_p
            return (
                f"Likely cause: these {asked} look different from the calibration {asked} ({what}: p = {p:.2g}; "
                f"{base}). A promise holds for {asked} like the calibration {asked} only, under every rule."
            )
        sentence = f"Nothing shows that {asked} or labels differ from those at calibration."
        if self.cause == "labels":
            sentence = (
                f"Likely cause: the labels, or harder {asked}. Uncertainty is as it was, and yet {base} (p = "
                f"{self.base_error_p:.2g}). Compare the label rules and references of the two files. If the labels are "
                f"right, these {asked} are harder in a way that the score does not show."
            )
        if certifies(self.rule):
            return f"{sentence} A certificate fails for a share delta of calibrations by itself."
        return f"{sentence} Rule {self.rule} certifies nothing: about half of its gates lie somewhat above alpha."


class CascadeAudit(PromiseTest):
    """A cascade's promise against fresh labels: the test is of the answers of the whole system."""

    n_questions: int
    """Fresh questions with scores and labels of every stage that would answer them."""
    stages: tuple[StageShare, ...]
    """What each stage answers of them, and how many of these answers are wrong."""
