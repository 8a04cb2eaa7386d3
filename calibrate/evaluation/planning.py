"""Planning: how many questions to label, from a guess of accuracy and AUROC or from a labelled pilot."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import special

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.notebook import Table, as_html, axis, percent
from guardrail.outcome import CERTIFIED, InfeasibleReason
from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..fitting import DEFAULT_DELTA, Target, rule_for, rule_named
from ..rules import PLANNED, Infeasible, Rule, Unit
from ..rules.counts import check_share, counts
from ..rules.items import AnswerItems
from ..scope import POOL_FACTOR, cut_at
from ..scoring.metrics import auroc
from ..spec_syntax import parse_rule
from .results import Estimate

__all__ = [
    "DEFAULT_SIZES",
    "RELIABLY",
    "SCOPES",
    "Binormal",
    "ItemPilot",
    "Needed",
    "Pilot",
    "Plan",
    "PlanRow",
    "ScopeRow",
    "error_probabilities",
    "labels_needed",
    "plan",
    "plan_scope",
]

DEFAULT_SIZES = (100, 200, 300, 500, 1000, 1500, 3000)
SCOPES = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Shares of the scores that `plan_scope` compares."""
FEWEST_IN_PILOT = 20
"""Labelled questions below which a pilot is refused."""
RELIABLY = 0.8
"""Share of calibrations that have to reach the target acceptance."""


class PlanRow(Frozen):
    """One rule at one number of labelled questions. Estimates are means over simulated calibrations."""

    rule: str
    """Name of the rule."""
    n: int
    """Labelled questions."""
    acceptance: Estimate
    """Share of new questions the gate accepts; 0 where the rule was infeasible."""
    infeasible_rate: Estimate
    """Share of calibrations in which nothing can be accepted."""
    violation_rate: Estimate
    """Share of calibrations whose threshold has a true error rate above alpha."""
    reached_rate: Estimate
    """Share of calibrations whose gate accepts the target or more."""


class Needed(Frozen):
    """The fewest labelled questions with which a rule reaches the target acceptance in 80 % of calibrations."""

    rule: str
    """Name of the rule."""
    n: int | None
    """That number, interpolated in ln n between the simulated sizes; None if the largest size is not enough."""
    low: int | None
    """Lower end of its 95 % Monte-Carlo interval; None if even that end lies beyond the largest size."""
    high: int | None
    """Upper end; None if it lies beyond the largest size."""
    at_most: bool
    """Whether the smallest simulated size already is enough, so that n is only an upper bound."""


class Plan(Frozen):
    """Result of :func:`plan`."""

    format: Literal[1] = 1
    """Version of this layout."""
    alpha: float
    """Target error rate among accepted answers."""
    delta: float
    """Failure probability of the rules that have one."""
    accuracy: float
    """Share of right answers, guessed or of the pilot."""
    auroc: float
    """AUROC of the score, guessed or of the pilot."""
    oracle_acceptance: float
    """The ceiling: the acceptance at alpha if the population were known."""
    target_acceptance: float
    """The acceptance to reach."""
    populations: Literal["binormal", "pilot"]
    """Kind of simulated population: normal scores, or the scores and error rates of a labelled pilot."""
    unit: Unit = Field(default="answer", exclude_if=lambda unit: unit == "answer")
    """What is accepted: answers, or items of answers. Acceptance, accuracy and AUROC are of these; n counts answers."""
    repetitions: int
    """Simulated calibrations at each size."""
    seed: int
    """Seed of the simulation."""
    rows: tuple[PlanRow, ...]
    """One row for each rule and size, rules outermost."""
    needed: tuple[Needed, ...]
    """One entry for each rule."""

    @property
    def words(self) -> tuple[str, ...]:
        """The answer: the ceiling, and a sentence for each rule where the target can be reached at all."""
        if self.oracle_acceptance == 0:
            return (
                f"No threshold has an error rate of {self.alpha:g} or less on such a population: a better score or "
                "model first.",
            )
        most = "accept more than {:.0%} of such questions"
        if self.unit == "item":
            most = "keep more than {:.0%} of the items of such answers"
        opening = f"At an error rate of {self.alpha:g} no rule can {most.format(self.oracle_acceptance)}."
        if self.target_acceptance > self.oracle_acceptance:
            return (
                f"{opening} The target of {self.target_acceptance:.0%} is above that: raise alpha, lower the target, "
                "or improve the score.",
            )
        return (opening, *map(self._in_words, self.needed))

    def _in_words(self, needed: Needed) -> str:
        largest = max(row.n for row in self.rows)
        verb, labelled = ("accept", "labelled questions") if self.unit == "answer" else ("keep", "labelled answers")
        goal = f"to {verb} {self.target_acceptance:.0%} or more in {RELIABLY:.0%} of calibrations"
        if needed.n is None:
            near = f" (within simulation error it may take only {needed.low})" if needed.low is not None else ""
            return f"{needed.rule} needs more than {largest} {labelled} {goal}{near}."
        if needed.at_most:
            return f"{needed.rule} needs at most {needed.n} {labelled} {goal}."
        upper = f"more than {largest}" if needed.high is None else f"{needed.high}"
        about = f"about {needed.n} {labelled} ({needed.low} to {upper} within simulation error)"
        return f"{needed.rule} needs {about} {goal}."

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form, without the rows."""
        for name in ("alpha", "target_acceptance"):
            yield name, getattr(self, name)
        yield "needed", {need.rule: need.n for need in self.needed}

    def _repr_html_(self) -> str:
        rows = [
            [row.rule, str(row.n), *(percent(e.value) for e in (row.acceptance, row.reached_rate, row.violation_rate))]
            for row in self.rows
        ]
        heads = ("rule", "labels", "answered", f"reaches {percent(self.target_acceptance)}", "above alpha")
        title = f"Labels needed to answer {percent(self.target_acceptance)} of questions at alpha = {self.alpha:g}"
        return as_html(title, [("", line) for line in self.words], Table(heads, rows))

    def plot(self, ax: Any = None) -> Any:
        """Share of questions answered against the number of labels, a line for each rule.

        Raises:
            MissingDependencyError: matplotlib is not installed (extra "calibrate").
        """
        ax = axis(ax)
        for rule, marker in zip(dict.fromkeys(row.rule for row in self.rows), "os^vDP*Xh<>dp" * 9, strict=False):
            own = [row for row in self.rows if row.rule == rule]
            ax.plot([row.n for row in own], [100 * row.acceptance.value for row in own], marker=marker, label=rule)
        ax.axhline(100 * self.target_acceptance, color="black", lw=1, ls=":", label="asked for")
        ax.set(xscale="log", ylim=(0, None), xlabel="labelled questions", ylabel="questions answered, %")
        ax.legend(frameon=False)
        return ax


def plan(
    alpha: float,
    delta: float = DEFAULT_DELTA,
    *,
    accuracy: float | None = None,
    auroc: float | None = None,
    pilot: Pilot | ItemPilot | None = None,
    target_acceptance: float | None = None,
    rules: Sequence[str] | None = None,
    sizes: Sequence[int] = DEFAULT_SIZES,
    repetitions: int = 300,
    seed: int = 0,
    progress: Progress = silent,
) -> Plan:
    """Simulate calibrations on a population with this accuracy and AUROC, and read off how many labels are needed.

    Every rule sees the same simulated calibrations, and smaller sizes are the beginnings of larger ones, so that
    differences between rules and sizes are sharper than single figures. Error rates and acceptance of a threshold are
    those of the population, not of a test sample. Real scores are not binormal: an answer of 600 means "hundreds, not
    thousands".

    Args:
        alpha: Target error rate among accepted answers, in (0, 1).
        delta: Failure probability of rules that have one.
        accuracy: Guessed share of right answers, in (0, 1).
        auroc: Guessed AUROC of the score, in (0, 1).
        pilot: A labelled pilot, instead of the two guesses.
        target_acceptance: Share of questions to be answered, in (0, 1]; None for half of the ceiling.
        rules: Rules, with settings or without ("certified:share=0.4"); None for those that planning simulates by
            default (`calibrate.rules.PLANNED`).
        sizes: Numbers of labelled questions to simulate.
        repetitions: Simulated calibrations at each size.
        seed: Same seed, same plan.
        progress: Called after each simulated calibration set.

    Returns:
        The plan.

    Raises:
        UsageError: A number outside its range, an unknown rule, or nothing to simulate.
    """
    population = _population(accuracy, auroc, pilot)
    rules = PLANNED[population.unit] if rules is None else rules
    sizes = _checked(sizes, rules, repetitions)
    targets = [_target(rule, alpha, delta, population) for rule in rules]
    ceiling = population.ceiling(alpha)
    target = ceiling / 2.0 if target_acceptance is None else target_acceptance
    if target_acceptance is not None and not 0 < target_acceptance <= 1:
        raise UsageError(f"target acceptance must be in (0, 1], got {target_acceptance}. Write 0.4 for 40 %.")
    acceptances, rate = _simulate(population, targets, sizes, repetitions, seed, progress)
    reached = (acceptances >= target) & (acceptances > 0)
    rows = tuple(
        _row(name, n, alpha, acceptances[r, s], rate[r, s], reached[r, s])
        for r, name in enumerate(rules)
        for s, n in enumerate(sizes)
    )
    needed = tuple(_needed(name, sizes, reached[r].mean(axis=1), repetitions) for r, name in enumerate(rules))
    return Plan(
        alpha=alpha,
        delta=delta,
        accuracy=population.accuracy,
        auroc=population.auroc,
        oracle_acceptance=ceiling,
        target_acceptance=target,
        populations="binormal" if pilot is None else "pilot",
        unit=population.unit,
        repetitions=repetitions,
        seed=seed,
        rows=rows,
        needed=needed,
    )


def _checked(sizes: Sequence[int], rules: Sequence[str], repetitions: int) -> tuple[int, ...]:
    if isinstance(rules, str) or not rules or not sizes:
        raise UsageError(f"a plan needs lists of rules and sizes, at least one each, got {rules!r} and {sizes!r}.")
    if min(sizes) < 1 or repetitions < 2:
        raise UsageError(f"sizes must be at least 1 and repetitions at least 2, got {min(sizes)} and {repetitions}.")
    return tuple(sorted(set(sizes)))


def _population(
    accuracy: float | None, auroc: float | None, pilot: Pilot | ItemPilot | None
) -> Binormal | Pilot | ItemPilot:
    guessed = accuracy is not None or auroc is not None
    if pilot is not None and not guessed:
        return pilot
    if pilot is not None or accuracy is None or auroc is None:
        raise UsageError("a plan needs accuracy and auroc (guesses; a small pilot shows both), or a pilot, not both.")
    return Binormal(accuracy, auroc)


def _target(rule: str, alpha: float, delta: float, population: Binormal | Pilot | ItemPilot | None = None) -> Target:
    check_share("delta", delta)
    name, options = parse_rule(rule)
    chosen = rule_named(name) if population is None else rule_for(population.unit, name)
    settings = {**({} if population is None else population.settings), **options}
    own = settings.pop("delta", delta if chosen.uses_delta else None)
    return Target.of(chosen, alpha=alpha, delta=own, settings=settings)


def _simulate(
    population: Binormal | Pilot | ItemPilot,
    targets: Sequence[Target],
    sizes: Sequence[int],
    repetitions: int,
    seed: int,
    progress: Progress,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Acceptance and error rate of every threshold, by rule, size and repetition; 0 acceptance where infeasible."""
    acceptances = np.zeros((len(targets), len(sizes), repetitions))
    rate = np.zeros_like(acceptances)
    for repetition, child in enumerate(np.random.SeedSequence(seed).spawn(repetitions)):
        # One draw for all sizes: smaller sets are the first of the largest, so sizes and rules differ by themselves
        # alone.
        u, e, question = population.rows(np.random.default_rng(child), sizes[-1])
        for s, n in enumerate(sizes):
            rows = np.flatnonzero(question < n)
            order = rows[np.argsort(u[rows])]  # once for all rules
            for r, target in enumerate(targets):
                result = target.choose(u[order], e[order], question[order].tolist())
                if not isinstance(result, Infeasible):
                    acceptances[r, s, repetition] = population.acceptance(result.threshold)
                    rate[r, s, repetition] = population.risk(target.rule, result.threshold)
        progress(repetition + 1, repetitions)
    return acceptances, rate


def _row(
    rule: str,
    n: int,
    alpha: float,
    acceptances: NDArray[np.float64],
    rate: NDArray[np.float64],
    reached: NDArray[np.bool_],
) -> PlanRow:
    return PlanRow(
        rule=rule,
        n=n,
        acceptance=_mean(acceptances),
        infeasible_rate=_share(acceptances == 0),
        # An infeasible calibration accepts nothing, so it cannot exceed alpha.
        violation_rate=_share((acceptances > 0) & (rate > alpha)),
        reached_rate=_share(reached),
    )


def _mean(values: NDArray[np.float64]) -> Estimate:
    return Estimate(value=float(values.mean()), se=float(values.std(ddof=1)) / math.sqrt(values.size))


def _share(flags: NDArray[np.bool_]) -> Estimate:
    return _mean(flags.astype(np.float64))


def _needed(rule: str, sizes: Sequence[int], share: NDArray[np.float64], repetitions: int) -> Needed:
    """The sizes at which the share of calibrations that reach the target, and its 95 % band, pass 80 %."""
    low_band, high_band = _wilson(share, repetitions)
    # The upper band of the share crosses first, so it gives the lower end of n.
    n, low, high = (_crossing(sizes, curve) for curve in (share, high_band, low_band))
    return Needed(rule=rule, n=n, low=low, high=high, at_most=n is not None and n == sizes[0])


def _wilson(share: NDArray[np.float64], size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's 95 % interval of each share; unlike plus or minus two standard errors it is sound at 0 and 1."""
    z = float(special.ndtri(0.975))
    centre = (share + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * np.sqrt(share * (1 - share) / size + z**2 / (4 * size**2))
    return centre - half, centre + half


def _crossing(sizes: Sequence[int], share: NDArray[np.float64]) -> int | None:
    """The first n at which the share reaches 80 %, linear in ln n between sizes; None if it never does."""
    reached = np.flatnonzero(share >= RELIABLY)
    if not reached.size:
        return None
    i = int(reached[0])
    if i == 0:
        return sizes[0]
    part = float(RELIABLY - share[i - 1]) / float(share[i] - share[i - 1])
    return math.ceil(sizes[i - 1] * math.exp(part * math.log(sizes[i] / sizes[i - 1])) - 1e-9)


MOST_SIMULATED = 20_000
"""Largest calibration set for which `labels_needed` simulates: larger ones take minutes."""


def labels_needed(artifact: CalibrationArtifact, *, repetitions: int = 60, seed: int = 0) -> str | None:
    """How many labels rule certified would need where it found no threshold, in one sentence; None where it found one.

    The calibration questions are the pilot, and the target is that of `plan`: half of the ceiling, in 80 % of
    calibrations. Up to 13 times the labels are simulated. Where the labels are too few even without an error, they are
    too few for a pilot as well, and nothing is simulated.

    Args:
        artifact: A fitted artifact.
        repetitions: Simulated calibrations at each size.
        seed: Same seed, same number.
    """
    outcome, scores = artifact.outcome, artifact.calibration
    n = len(scores.error)
    if outcome.status == "feasible" or outcome.rule != CERTIFIED or outcome.delta is None:
        return None
    if n > MOST_SIMULATED or outcome.reason is InfeasibleReason.TOO_FEW_ITEMS:
        return None
    try:
        pilot = Pilot.of(np.asarray(scores.uncertainty), np.asarray(scores.error, dtype=np.int64))
    except UsageError:  # too few questions, or none is wrong: no population can be made of them
        return None
    sizes = [math.ceil(n * factor) for factor in (1, 1.5, 2, 3, 5, 8, 13)]
    simulated = plan(
        outcome.alpha,
        outcome.delta,
        pilot=pilot,
        rules=[CERTIFIED],
        sizes=sizes,
        repetitions=repetitions,
        seed=seed,
    )
    (needed,) = simulated.needed
    if simulated.oracle_acceptance == 0:
        return "More labels would hardly help: use a better score or model, or a larger alpha."
    if needed.n is None:
        return f"More than {_rounded(sizes[-1]):,} labels would be needed."
    return f"About {_rounded(needed.n):,} labels would do in 4 of 5 cases."


def _rounded(n: int) -> int:
    """Two leading digits, upwards: the simulation knows no more."""
    step: int = 10 ** max(0, len(str(n)) - 2)
    return math.ceil(n / step) * step


# -- A population in closed form: the scores of right and of wrong answers are normal with equal spread ----------------
# Used for planning and for simulations. Given its accuracy and AUROC nothing else is free: right answers score N(0, 1),
# wrong ones N(gap, 1) with ``gap = sqrt(2) Phi^-1(AUROC)``. With AUROC above .5 the error rate grows with acceptance.


class _WholeAnswers(ABC):
    """A population of whole answers; `ItemPilot` is one of answers with items."""

    unit: ClassVar[Unit] = "answer"
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that its rules need."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Independent items: uncertainties and errors."""

    def rows(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.int64]]:
        """Uncertainty and error of each row, and the number of its question below n."""
        return *self.draw(rng, n), np.arange(n)

    @abstractmethod
    def scer(self, threshold: float) -> float:
        """P(wrong | u <= threshold)."""

    def risk(self, rule: Rule, threshold: float) -> float:
        """What a rule bounds, at a threshold."""
        return self.scer(threshold)


@dataclass(frozen=True, slots=True)
class Binormal(_WholeAnswers):
    """A binormal population.

    Attributes:
        accuracy: Share of right answers, in (0, 1).
        auroc: P(a wrong answer is less certain than a right one), in (0, 1).
    """

    accuracy: float
    auroc: float

    def __post_init__(self) -> None:
        for name, value in (("accuracy", self.accuracy), ("auroc", self.auroc)):
            if not 0 < value < 1:
                raise UsageError(f"{name} must be in (0, 1), got {value}. Write 0.7 for 70 %.")

    @property
    def gap(self) -> float:
        """Difference of the mean scores of wrong and right answers, in standard deviations."""
        return math.sqrt(2.0) * float(special.ndtri(self.auroc))

    def draw(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Independent items: uncertainties and errors."""
        error = (rng.random(n) >= self.accuracy).astype(np.int8)
        return rng.normal(size=n) + self.gap * error, error

    def acceptance(self, threshold: float) -> float:
        """P(u <= threshold)."""
        wrong, right = self._accepted(threshold)
        return wrong + right

    def scer(self, threshold: float) -> float:
        """P(wrong | u <= threshold); the limit where nothing is accepted in double precision."""
        wrong, right = self._accepted(threshold)
        if wrong + right > 0.0:
            return wrong / (wrong + right)
        # Far to the left the density of the group with the lower mean outweighs the other without bound.
        return 1.0 - self.accuracy if self.gap == 0 else float(self.gap < 0)

    def ceiling(self, alpha: float) -> float:
        """The largest acceptance with an error rate of at most alpha, as an oracle reaches it.

        0 if nothing can be accepted. With AUROC at or below .5 the error rate is lowest when everything is accepted.
        """
        if 1.0 - self.accuracy <= alpha:
            return 1.0
        # The error rate does not rise with acceptance, so it is lowest at full acceptance, which was too high just
        # above.
        if self.gap <= 0:
            return 0.0
        from scipy.optimize import brentq  # slow to import

        # Normal tails beyond 37 standard deviations are 0 or 1 in double precision.
        low, high = -37.0, 37.0 + self.gap
        if self.scer(low) >= alpha:
            return self.acceptance(low)
        return self.acceptance(float(brentq(lambda t: self.scer(t) - alpha, low, high)))

    def error_probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """P(wrong) at each score, if these scores rank questions as this population's do: by their quantiles."""
        from scipy.optimize import brentq

        _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        # Ties share the middle of their block, so no score lies at 0 or 1, where no quantile exists.
        quantiles = (np.cumsum(count) - count / 2) / scores.size
        at = np.array([brentq(lambda t, q=q: self.acceptance(t) - q, -40.0, 40.0 + abs(self.gap)) for q in quantiles])
        odds = (1.0 - self.accuracy) / self.accuracy * np.exp(self.gap * at - self.gap**2 / 2)
        probabilities: NDArray[np.float64] = (odds / (1.0 + odds))[place]
        return probabilities

    def _accepted(self, threshold: float) -> tuple[float, float]:
        wrong = (1.0 - self.accuracy) * float(special.ndtr(threshold - self.gap))
        return wrong, self.accuracy * float(special.ndtr(threshold))


# -- A population made of a pilot: its scores, and the error rate at each ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Pilot(_WholeAnswers):
    """Labelled questions as a population: their scores, ties included, and errors by `error_probabilities`.

    Attributes:
        scores: Uncertainties, in increasing order.
        errors: 1 where the answer is wrong.
        probability: P(wrong) at each score.
    """

    scores: NDArray[np.float64]
    errors: NDArray[np.int64]
    probability: NDArray[np.float64]

    @classmethod
    def of(cls, scores: NDArray[np.float64], errors: NDArray[np.int64]) -> Pilot:
        """Make a population of scores and errors of labelled questions.

        Raises:
            UsageError: Fewer than 20 questions, or all right, or all wrong.
        """
        if scores.size < FEWEST_IN_PILOT or not 0 < errors.sum() < errors.size:
            raise UsageError(
                f"a pilot of {scores.size} questions with {int(errors.sum())} wrong answers cannot stand for the "
                f"others. Label at least {FEWEST_IN_PILOT}, some right and some wrong; a hundred say something."
            )
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], errors[order], error_probabilities(scores[order], scores, errors))

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return 1.0 - float(self.errors.mean())

    @property
    def auroc(self) -> float:
        """P(a wrong answer is less certain than a right one), ties counting half."""
        return auroc(self.scores, self.errors) or 0.0

    def draw(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Independent items: uncertainties and errors."""
        chosen = rng.integers(self.scores.size, size=n)
        return self.scores[chosen], (rng.random(n) < self.probability[chosen]).astype(np.int8)

    def acceptance(self, threshold: float) -> float:
        """P(u <= threshold)."""
        return float(np.searchsorted(self.scores, threshold, side="right")) / self.scores.size

    def scer(self, threshold: float) -> float:
        """P(wrong | u <= threshold); where nothing is accepted, that of the lowest score."""
        below = max(1, int(np.searchsorted(self.scores, threshold, side="right")))
        return float(self.probability[:below].mean())

    def ceiling(self, alpha: float) -> float:
        """The largest acceptance with an error rate of at most alpha; 0 if nothing can be accepted."""
        return max((self.acceptance(t) for t in np.unique(self.scores) if self.scer(t) <= alpha), default=0.0)


@dataclass(frozen=True, slots=True)
class ItemPilot:
    """Labelled answers with items as a population: new answers are drawn from them with all their items.

    Attributes:
        items: Their items.
    """

    unit: ClassVar[Unit] = "item"
    items: AnswerItems

    @property
    def settings(self) -> dict[str, Any]:
        """The cap of the items."""
        return {"cap": self.items.cap}

    @property
    def accuracy(self) -> float:
        """Share of right items."""
        return 1.0 - float(self.items.wrong.mean())

    @property
    def auroc(self) -> float:
        """P(a wrong item is less certain than a right one) of the measured items, ties counting half."""
        return counts(self.items.uncertainty, self.items.wrong).auroc or 0.0

    def rows(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.int64]]:
        """As of whole answers, with a row an item."""
        some = self.items.take(rng.integers(0, self.items.n, n))
        return some.uncertainty, some.wrong.astype(np.int8), some.answer

    def acceptance(self, threshold: float) -> float:
        """Share of items kept."""
        return float(self.items.kept(threshold).mean())

    def risk(self, rule: Rule, threshold: float) -> float:
        """What the rule bounds on the pilot."""
        return rule.risk_of(*self.items.counts(threshold)) or 0.0

    def ceiling(self, alpha: float) -> float:
        """The largest share of items kept of which at most alpha are wrong; 0 if nothing can be kept."""
        at = counts(self.items.uncertainty, self.items.wrong)
        good = at.k[at.e <= alpha * at.k]
        return float(good.max(initial=0)) / at.n


# -- Which part of the scores to label ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """Acceptance of a scope at one budget of labels. Estimates are means over simulated calibrations.

    Attributes:
        share: The scope.
        labels: Labelled questions.
        acceptance: Share of all questions accepted; 0 where the rule is infeasible.
        infeasible: Share of calibrations in which nothing is accepted.
    """

    share: float
    labels: int
    acceptance: Estimate
    infeasible: Estimate


def plan_scope(
    scores: NDArray[np.float64],
    probability: NDArray[np.float64],
    *,
    alpha: float,
    labels: Sequence[int],
    delta: float = DEFAULT_DELTA,
    rule: str = "certified",
    scopes: Sequence[float] = SCOPES,
    repetitions: int = 300,
    seed: int = 0,
    progress: Progress = silent,
) -> list[ScopeRow]:
    """Simulate labelling with several scopes and budgets, and the acceptance each gives.

    Each simulated calibration draws the questions from the scores within the scope, as `draw_to_label` would, and a
    label for each by its error probability.

    Args:
        scores: Scores of the unlabelled questions, shape (n,).
        probability: P(wrong) of each, shape (n,); see `error_probabilities`.
        alpha: Target error rate.
        labels: Budgets.
        delta: Failure probability, for rules that have one.
        rule: Threshold rule.
        scopes: Shares to compare. Those whose pool is too small for a budget are left out.
        repetitions: Simulated calibrations each.
        seed: Same seed, same result.
        progress: Called before each scope and budget.
    """
    target = _target(rule, alpha, delta)
    ranked = np.sort(scores)
    rng = np.random.default_rng(seed)
    jobs = [(share, n) for n in labels for share in scopes]
    rows = []
    for done, (share, n) in enumerate(jobs, start=1):
        progress(done, len(jobs))
        try:
            within = np.flatnonzero(scores <= cut_at(scores, share))
        except UsageError:
            continue  # ties: no cut at so small a share
        # The same bound as `draw_to_label`: a plan must not promise a draw that it would refuse.
        if within.size < (POOL_FACTOR * n if share < 1 else n):
            continue
        acceptances = np.zeros(repetitions)
        for i in range(repetitions):
            drawn = rng.choice(within, n, replace=False)
            wrong = (rng.random(n) < probability[drawn]).astype(np.int8)
            result = target.choose(scores[drawn], wrong)
            if not isinstance(result, Infeasible):
                acceptances[i] = np.searchsorted(ranked, result.threshold, side="right") / ranked.size
        rows.append(ScopeRow(share, n, _mean(acceptances), _share(acceptances == 0)))
    return rows


def error_probabilities(
    scores: NDArray[np.float64], pilot_scores: NDArray[np.float64], pilot_errors: NDArray[np.int64]
) -> NDArray[np.float64]:
    """P(wrong) at each score, from a labelled pilot: the isotonic regression of its errors on its scores.

    Tied scores are one point, weighted by their number: their order in the file plays no part. A pilot of a hundred
    questions is enough to compare scopes; its labels must not be used for the fit again.
    """
    from scipy.optimize import isotonic_regression

    values, place, count = np.unique(pilot_scores, return_inverse=True, return_counts=True)
    fitted = isotonic_regression(np.bincount(place, weights=pilot_errors) / count, weights=count).x
    at = np.clip(np.searchsorted(values, scores, side="right") - 1, 0, values.size - 1)
    # No score is surely right or wrong on the word of a pilot: half an error in it stays possible.
    n = pilot_scores.size
    probabilities: NDArray[np.float64] = np.clip(fitted[at], 0.5 / n, 1 - 0.5 / n)
    return probabilities
