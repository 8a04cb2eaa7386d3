"""Results of a threshold rule: ``Feasible`` with a threshold, or ``Infeasible`` with a reason. Never a sentinel.

They live here, not in ``calibrate``, because the artifact stores them and run time reads them without scipy. The
words about them are in `guardrail.describe`. Here are also the one comparison that calibration, evaluation and run time
share (`accepts`), and the questions that a promise is about (`Scope`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, overload

from pydantic import Field, model_validator

from .types import Frozen

if TYPE_CHECKING:
    import numpy as np  # slow to import, and a guard compares floats
    from numpy.typing import NDArray


@overload
def accepts(uncertainty: float, threshold: float) -> bool: ...
@overload
def accepts(uncertainty: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]: ...
def accepts(uncertainty: float | NDArray[np.float64], threshold: float) -> bool | NDArray[np.bool_]:
    """Accept iff ``uncertainty <= threshold``. Ties with the threshold are accepted, all of them.

    Args:
        uncertainty: A score or an array of scores; higher is less certain. NaN is never accepted.
        threshold: The largest accepted uncertainty, in the same unit.

    Returns:
        A bool for a float, a boolean array of the same shape for an array.
    """
    accepted = uncertainty <= threshold
    return bool(accepted) if isinstance(uncertainty, float | int) else accepted


class Scope(Frozen):
    """The questions of a promise, and how those to label were drawn among them; without values: all questions.

    The error rate behind a threshold t <= cut does not depend on what lies above the cut, so a rule that is fitted on
    labels from below a cut that was fixed without labels keeps its promise. Nothing above the cut is answered.
    """

    score: str = ""
    """Key of the score that the cut is on."""
    share: float = 1.0
    """Share of the measured questions to draw from, in (0, 1]."""
    cut: float | None = None
    """Largest score of the scope; None for all questions."""
    n_asked: int = 0
    """Questions of the scored file, none of them labelled."""
    n_failed: int = 0
    """Questions among them without a score because a server, a rate limit or a time-out failed."""
    n_pool: int = 0
    """Questions among them with a score."""
    n_within: int = 0
    """Questions among them with a score of at most the cut."""
    n: int = 0
    """Questions drawn from them to be labelled, uniformly and without replacement."""
    seed: int = 0
    """Seed of the draw."""
    drawn_sha256: str = ""
    """Digest of the drawn questions' ids and scores, in the order of the draw."""

    @property
    def is_drawn(self) -> bool:
        """Whether the labelled questions were drawn by a score."""
        return self.cut is not None

    @property
    def leaves_out(self) -> bool:
        """Whether some of the measured questions lie above the cut."""
        return self.n_within < self.n_pool

    def covers(self, scores: Any) -> Any:
        """Whether scores lie in the scope.

        Args:
            scores: A number, or an array of any shape.

        Returns:
            A boolean, or an array of booleans of the same shape.
        """
        return accepts(scores, math.inf if self.cut is None else self.cut)

    def of_measured(self, share: float) -> float:
        """A share of the questions within the scope as a share of the measured questions."""
        return share * self.n_within / self.n_pool if self.is_drawn else share

    @property
    def measured(self) -> float:
        """Share of the questions asked that had a score when the draw was made."""
        return self.n_pool / self.n_asked if self.n_asked else 1.0

    @property
    def failed(self) -> float:
        """Share of the questions asked that failed (server, rate limit, time-out) when the draw was made."""
        return self.n_failed / self.n_asked if self.n_asked else 0.0


EVERY_QUESTION: Final = Scope()
"""The scope of a promise about all questions."""


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
    def interval(self) -> None:
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
