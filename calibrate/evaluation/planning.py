"""Planning: how many questions to label, from a guess of accuracy and AUROC or from a labelled pilot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.notebook import Table, as_html, axis
from guardrail.outcome import CERTIFIED, InfeasibleReason
from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..fitting import DEFAULT_DELTA, Target, target_of
from ..rules import PLANNED, Infeasible, Unit
from ..rules.counts import Floats, check_share
from ..scope import POOL_FACTOR
from .populations import Population
from .results import Estimate

DEFAULT_SIZES = (100, 200, 300, 500, 1000, 1500, 3000)
SCOPES = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Shares of the scores that `plan_scope` compares."""
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


class Plan(Frozen):
    """Result of :func:`plan`."""

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
    needed: dict[str, int | None]
    """By rule the fewest labelled questions with which it reaches the target acceptance in 80 % of calibrations:
    interpolated in ln n between the simulated sizes, or the smallest size where that is enough already; None if the
    largest is not."""

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
        return (opening, *(self._in_words(rule, n) for rule, n in self.needed.items()))

    def _in_words(self, rule: str, n: int | None) -> str:
        smallest, largest = self.rows[0].n, self.rows[-1].n
        verb, labelled = ("accept", "labelled questions") if self.unit == "answer" else ("keep", "labelled answers")
        goal = f"to {verb} {self.target_acceptance:.0%} or more in {RELIABLY:.0%} of calibrations"
        number = f"more than {largest:,}"
        if n is not None:
            number = f"at most {n:,}" if n == smallest else f"about {_rounded(n):,}"
        return f"{rule} needs {number} {labelled} {goal}."

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form, without the rows."""
        for name in ("alpha", "target_acceptance"):
            yield name, getattr(self, name)
        yield "needed", self.needed

    def table(self) -> Table:
        """A row a rule and a column a number of labels: what is answered, and how often nothing is, in %."""
        cells: dict[str, list[str]] = {}
        for row in self.rows:
            nothing = row.infeasible_rate.value
            shown = f"{100 * row.acceptance.value:.0f}" + (f" ({100 * nothing:.0f})" if nothing >= 0.005 else "")
            cells.setdefault(row.rule, []).append(shown)
        sizes = sorted({str(row.n) for row in self.rows}, key=int)
        return Table(("rule", *sizes), [(rule, *shown) for rule, shown in cells.items()])

    @property
    def title(self) -> str:
        """The meaning of the table's cells."""
        if self.unit == "item":
            return "Items kept, % (calibrations that keep nothing, %), by number of labelled answers"
        return "Answered, % (calibrations that answer nothing, %), by number of labelled questions"

    def _repr_html_(self) -> str:
        return as_html(self.title, [("", line) for line in self.words], self.table())

    def plot(self, ax: Any = None) -> Any:
        """Share of questions answered against the number of labels, a line for each rule.

        Raises:
            MissingDependencyError: matplotlib is not installed (extra "calibrate").
        """
        ax = axis(ax)
        for rule, marker in zip(dict.fromkeys(row.rule for row in self.rows), "os^vDP*Xh<>dp" * 9, strict=False):
            rows = [row for row in self.rows if row.rule == rule]
            ax.plot([row.n for row in rows], [100 * row.acceptance.value for row in rows], marker=marker, label=rule)
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
    pilot: Population | None = None,
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
    if pilot is not None and accuracy is None and auroc is None:
        population = pilot
    elif pilot is None and accuracy is not None and auroc is not None:
        population = Population.binormal(accuracy, auroc)
    else:
        raise UsageError("a plan needs accuracy and auroc (guesses; a small pilot shows both), or a pilot, not both.")
    rules = PLANNED[population.unit] if rules is None else rules
    if isinstance(rules, str) or not rules or not sizes:
        raise UsageError(f"a plan needs lists of rules and sizes, at least one each, got {rules!r} and {sizes!r}.")
    if min(sizes) < 1 or repetitions < 2:
        raise UsageError(f"sizes must be at least 1 and repetitions at least 2, got {min(sizes)} and {repetitions}.")
    if target_acceptance is not None and not 0 < target_acceptance <= 1:
        raise UsageError(f"target acceptance must be in (0, 1], got {target_acceptance}. Write 0.4 for 40 %.")
    targets = [_target(rule, alpha, delta, population) for rule in rules]
    sizes = sorted(set(sizes))
    ceiling = population.ceiling(alpha)
    goal = ceiling / 2.0 if target_acceptance is None else target_acceptance
    accepted, rate = _simulate(population, targets, sizes, repetitions, seed, progress)
    reached = (accepted >= goal) & (accepted > 0)
    return Plan(
        alpha=alpha,
        delta=delta,
        accuracy=population.accuracy,
        auroc=population.auroc,
        oracle_acceptance=ceiling,
        target_acceptance=goal,
        populations="binormal" if pilot is None else "pilot",
        unit=population.unit,
        repetitions=repetitions,
        seed=seed,
        rows=tuple(
            PlanRow(
                rule=rule,
                n=n,
                acceptance=Estimate.mean(accepted[r, s]),
                infeasible_rate=Estimate.mean(accepted[r, s] == 0),
                # An infeasible calibration accepts nothing, so it cannot exceed alpha.
                violation_rate=Estimate.mean((accepted[r, s] > 0) & (rate[r, s] > alpha)),
            )
            for r, rule in enumerate(rules)
            for s, n in enumerate(sizes)
        ),
        needed={rule: _crossing(sizes, reached[r].mean(axis=1)) for r, rule in enumerate(rules)},
    )


def _target(rule: str, alpha: float, delta: float, population: Population) -> Target:
    check_share("delta", delta)
    cap = None if population.answers is None else population.answers.cap
    return target_of(population.unit, rule, alpha=alpha, delta=delta, cap=cap)[0]


def _simulate(
    population: Population,
    targets: Sequence[Target],
    sizes: Sequence[int],
    repetitions: int,
    seed: int,
    progress: Progress,
) -> tuple[Floats, Floats]:
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


def _crossing(sizes: Sequence[int], share: Floats) -> int | None:
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
        pilot = Population.of_pilot(np.asarray(scores.uncertainty), np.asarray(scores.error, dtype=np.int64))
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
    needed = simulated.needed[CERTIFIED]
    if simulated.oracle_acceptance == 0:
        return "More labels would hardly help: use a better score or model, or a larger alpha."
    if needed is None:
        return f"More than {_rounded(sizes[-1]):,} labels would be needed."
    if needed == n:
        return f"{n:,} labels do in 4 of 5 cases, these did not: some more may."
    return f"About {_rounded(needed):,} labels would do in 4 of 5 cases."


def _rounded(n: int) -> int:
    """Two leading digits, upwards: the simulation knows no more."""
    step: int = 10 ** max(0, len(str(n)) - 2)
    return math.ceil(n / step) * step


# -- Which part of the scores to label ---------------------------------------------------------------------------------


def plan_scope(
    population: Population,
    *,
    alpha: float,
    labels: Sequence[int],
    delta: float = DEFAULT_DELTA,
    rule: str = CERTIFIED,
    scopes: Sequence[float] = SCOPES,
    repetitions: int = 300,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[tuple[float, int], tuple[float, float]]:
    """Simulate labelling with several scopes and budgets.

    Args:
        population: The scores of the unlabelled questions, and how often they err.
        alpha: Target error rate.
        labels: Budgets.
        delta: Failure probability, for rules that have one.
        rule: Threshold rule.
        scopes: Shares to compare. Those whose pool is too small for a budget are left out.
        repetitions: Simulated calibrations each.
        seed: Same seed, same result.
        progress: Called before each scope.

    Returns:
        By scope and budget the mean share of all questions that is accepted, and the share of calibrations in which
        nothing is.
    """
    target = _target(rule, alpha, delta, population)
    shares: dict[tuple[float, int], tuple[float, float]] = {}
    for done, share in enumerate(scopes, start=1):
        progress(done, len(scopes))
        try:
            within = population.lowest(share)
        except UsageError:
            continue  # ties: no cut at so small a share
        pool = within.scores.size
        # The same bound as `draw_to_label`: a plan must not promise a draw that it would refuse.
        sizes = [n for n in sorted(set(labels)) if pool >= (POOL_FACTOR * n if share < 1 else n)]
        if sizes:
            (accepted,), _ = _simulate(within, [target], sizes, repetitions, seed, silent)
            of_all = accepted * pool / population.scores.size
            shares |= {(share, n): (each.mean(), (each == 0).mean()) for n, each in zip(sizes, of_all, strict=True)}
    return shares
