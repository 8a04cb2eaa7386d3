"""Results of a threshold rule: ``Feasible`` with a threshold, or ``Infeasible`` with a reason. Never a sentinel.

They live here, not in ``calibrate``, because the artifact stores them and run time reads them without scipy. The
words about them are in `guardrail.describe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from .gate import EVERY_QUESTION, Scope
from .types import Frozen

__all__ = [
    "AVERAGE",
    "CERTIFIED",
    "Diagnostics",
    "Feasible",
    "Hint",
    "Infeasible",
    "InfeasibleReason",
    "Outcome",
    "TieBlock",
]


class InfeasibleReason(StrEnum):
    """The reason why no threshold keeps the rule's promise."""

    TOO_FEW_ITEMS = "too_few_items"
    """Even without a single error there are not enough items for this alpha (and delta)."""
    RISK_NEVER_LOW_ENOUGH = "risk_never_low_enough"
    """No prefix of the items has an error rate that satisfies the rule."""
    TIE_BLOCK_TOO_LARGE = "tie_block_too_large"
    """The only admissible cuts fall inside a block of equal scores, which must be accepted or rejected whole."""
    UNKNOWN_GROUP = "unknown_group"
    """The artifact is that of a router for the questions of no other group, and none was fitted for them."""
    STAGE_NOT_USED = "stage_not_used"
    """A stage of a cascade, which as a whole answers more if this stage does not."""
    NOT_CALIBRATED = "not_calibrated"
    """There is no artifact yet ("collect"): a person decides about each call, and its samples are recorded."""


class Diagnostics(Frozen):
    """Figures that every fit reports, feasible or not."""

    base_error: float
    """Share of wrong answers when everything is accepted (mu)."""
    auroc: float | None
    """P(a wrong answer is less certain than a correct one), ties counting half; None if there is only one class."""
    max_acceptance: float
    """The largest share any rule could accept at this alpha: min(1, (1 - mu) / (1 - alpha)) of the measured items, as
    a share of all."""


class Hint(Frozen):
    """Of an infeasible certificate: the first threshold that it tested, and the error rate that can be certified there.

    Used instead of the target (``--alpha smallest``), it is another fit.
    """

    threshold: float
    """The smallest score up to which the declared share of the items lies."""
    n_accepted: int
    """Items up to it."""
    n_errors: int
    """Wrong answers among them."""
    bound: float
    """Exact upper bound of their error rate at level delta."""


class TieBlock(Frozen):
    """Equal scores that are accepted or held back together, where only a cut among them would do."""

    score: float
    """The score that they share."""
    size: int
    """Items with that score."""
    distinct: int
    """Distinct scores of all items."""
    without: tuple[int, int]
    """Items below the block, and wrong answers among them."""
    within: tuple[int, int]
    """The same with the block."""


class _OutcomeBase(Frozen):
    rule: str
    """Name of the threshold rule."""
    alpha: float
    """Target error rate among accepted answers."""
    delta: float | None
    """Failure probability of the statement; None for rules that do not make one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options the rule was called with, resolved (e.g. the k_min that was used)."""
    n: int
    """Calibration items, those included that could not be measured."""
    diagnostics: Diagnostics
    """Figures that explain the outcome."""
    scope: Scope = Field(default=EVERY_QUESTION, exclude_if=lambda scope: not scope.is_drawn)
    """The questions that the promise is about; shares and counts of this outcome are of them."""
    certifies: bool = False
    """Whether the rule keeps the error rate among answers at alpha with probability 1 - delta, at finite n."""


class Feasible(_OutcomeBase):
    """A threshold that satisfies the rule: accept iff uncertainty <= threshold."""

    status: Literal["feasible"] = "feasible"
    threshold: float
    """The largest admissible uncertainty; one of the calibration scores."""
    n_accepted: int
    """Calibration items at or below the threshold (k)."""
    n_errors: int
    """Errors among them (e_k)."""
    interval: tuple[float, float]
    """95 % Clopper-Pearson interval of the error rate among the k accepted. Post-selection: k was chosen by looking at
    these very items, so this describes them and is not a certificate."""
    tie_block: int
    """Items with exactly the threshold's score."""

    @model_validator(mode="after")
    def _in_scope(self) -> Self:
        if not self.scope.covers(self.threshold):
            raise ValueError(
                f"the threshold {self.threshold:g} is above the cut {self.scope.cut:g} of the scope, and no question "
                "above the cut was labelled"
            )
        return self

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form; the fields have the rest."""
        for name in ("rule", "alpha", "delta", "threshold", "n_accepted", "n_errors", "n"):
            yield name, getattr(self, name)

    @property
    def tie_share(self) -> float:
        """Share of the calibration items with exactly the threshold's score: accepted or rejected together."""
        return self.tie_block / self.n

    @property
    def acceptance(self) -> float:
        """Share of the items accepted that it was fitted on, those included that could not be measured."""
        return self.n_accepted / self.n

    @property
    def error_rate(self) -> float:
        """Errors among the accepted calibration items."""
        return self.n_errors / self.n_accepted


class Infeasible(_OutcomeBase):
    """No threshold satisfies the rule. A result, not an error: it loads as a gate that abstains on everything."""

    status: Literal["infeasible"] = "infeasible"
    reason: InfeasibleReason
    """The reason; `guardrail.describe.why_infeasible` has it in words, with the numbers and the next step."""
    n_measured: int = 0
    """Items with a score."""
    needed: int | None = None
    """Of too few items: how many, accepted and without a single error, would do; None where it is not known."""
    closest: tuple[int, int] | None = None
    """Items accepted, and wrong answers among them, where the rule came closest; None where there is a hint."""
    ties: TieBlock | None = None
    """The block of equal scores that is too large; None for other reasons."""
    hint: Hint | None = None
    """What can be certified on these items; None for other rules than certified, and where nothing can."""

    @property
    def threshold(self) -> None:
        """None: no uncertainty is low enough."""

    @property
    def n_accepted(self) -> int:
        """Calibration items accepted: 0."""
        return 0

    @property
    def n_errors(self) -> int:
        """Errors among them: 0."""
        return 0

    @property
    def acceptance(self) -> float:
        """Share of calibration items accepted: 0."""
        return 0.0

    @property
    def error_rate(self) -> None:
        """None: nothing is accepted."""

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form; the fields have the rest."""
        for name in ("rule", "alpha", "delta", "n"):
            yield name, getattr(self, name)
        yield "reason", self.reason.value


Outcome = Annotated[Feasible | Infeasible, Field(discriminator="status")]
"""Result of a threshold rule."""


CERTIFIED, AVERAGE = "certified", "acrc"
"""Names of the default certificate and of the paper's rule, which holds on average."""
