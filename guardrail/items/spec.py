"""How answers are split and measured, the one comparison of items, and what an artifact stores of a fit on items."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, field_serializer, field_validator, model_validator

from ..errors import UsageError
from ..plain_json import PACKED_FROM, pack, unpack
from ..specs import EstimatorSpec, JudgeSpec
from ..types import Frozen

ITEMS = "items"
"""Name of the estimator: the uncertainty of an answer's most certain item."""
VERSION = 1
"""Raised by any change of splitting or support that can move an item or an uncertainty."""
MOST_ITEMS = 1_000
"""Most items of a document that is measured. A longer answer abstains, and a longer sample supports nothing: comparing
200,000 values takes over a minute within a request, and no such list is decided field by field."""

ItemRule = Literal["wrong_share", "wrong_share_per_answer", "clean_shown", "clean_answers"]
"""A promise about items; `guardrail.describe` has each in words."""
Count = Annotated[int, Field(ge=0)]


def bounds_answers(rule: str) -> bool:
    """Whether a rule bounds the share of wrong answers among those given; of the rules for items one does."""
    return rule == "clean_shown" or rule not in get_args(ItemRule)


class ItemsSpec(Frozen):
    """The way an answer becomes items with uncertainties; the same at calibration and at run time."""

    version: int = VERSION
    """Version of splitting and support; another one at run time is a mismatch."""
    keys: dict[str, str] = Field(default_factory=dict)
    """Key field of lists of objects whose entries are matched, by path of the list; "*" stands for any entry."""
    optional: tuple[str, ...] = ()
    """Paths of fields that an answer may leave out."""
    judges: dict[str, JudgeSpec] = Field(default_factory=dict)
    """Identity of the judge of each field that has its own, by path; every other field is compared by value."""
    cap: int = Field(ge=1)
    """Most items of an answer that can be kept. Fixed without labels."""

    @classmethod
    def of(cls, estimator: EstimatorSpec) -> Self:
        """The specification that an estimator of items has as its parameters.

        Raises:
            UsageError: The estimator is that of whole answers.
        """
        if estimator.name != ITEMS:
            raise UsageError("this artifact gates whole answers, not their items: leave --items out.")
        return cls.model_validate(estimator.params)


# -- The one comparison that calibration, evaluation and run time share ------------------------------------------------


def measured(uncertainties: Iterable[float | None], cap: int) -> list[float]:
    """The uncertainties of one answer's items as the gate compares them; infinity is never kept.

    An item that could not be measured (None, NaN or an infinity) becomes infinity. Beyond the ``cap`` most certain ones
    all others do, too; of equal ones the first in the text are among the most certain. The certificate needs the cap:
    with more items than that, one answer could be wrong in more places than calibration allowed for.

    Args:
        uncertainties: One for each item, in the order of the text; higher is less certain.
        cap: Most items of an answer that can be kept, at least 1. Fixed without labels and stored with the threshold.

    Returns:
        One for each item, in the same order.
    """
    values = [math.inf if value is None or not math.isfinite(value) else float(value) for value in uncertainties]
    for index in sorted(range(len(values)), key=values.__getitem__)[cap:]:
        values[index] = math.inf
    return values


def kept(uncertainties: Sequence[float | None], threshold: float | None, cap: int) -> list[bool]:
    """Which items are kept: those with ``uncertainty <= threshold`` after `measured`; a threshold of None keeps none.

    Equal uncertainties are kept together, except at the cap.
    """
    return [threshold is not None and value <= threshold and value < math.inf for value in measured(uncertainties, cap)]


def mean_uncertainty(uncertainties: Sequence[float | None]) -> float | None:
    """The one number of an answer that a drift monitor compares: the mean over its items, an unmeasured item as 1.

    It moves with every item, while the most certain one is often at 0. Any fixed function of an answer's items keeps
    answers exchangeable, so the monitor's test stays exact. None if no item was measured.
    """
    if all(value is None for value in uncertainties):
        return None
    return sum(1.0 if value is None else value for value in uncertainties) / len(uncertainties)


# -- What was fitted ---------------------------------------------------------------------------------------------------


class ItemScores(Frozen):
    """Uncertainties and labels of the items of every calibration answer; of whole answers `CalibrationScores`."""

    kind: ClassVar[Literal["items"]] = "items"
    """Kind of an artifact with such scores."""
    sizes: Sequence[int]
    """Number of items of each answer."""
    uncertainty: Sequence[float | None]
    """Uncertainty of every item, answer after answer, in the order of the text; None (NaN in an array) where it could
    not be measured."""
    error: Sequence[Literal[0, 1]]
    """1 where the item is wrong; a label that could not be decided counts as wrong."""
    group: tuple[str, ...] | None = None
    """Cluster of each answer, of which it is the only one; None when answers are independent."""

    @field_validator("sizes", "uncertainty", "error", mode="before")
    @classmethod
    def _compact(cls, values: Any, info: Any) -> Any:
        kind = {"sizes": "i", "uncertainty": "d", "error": "b"}[info.field_name]
        return tuple(unpack(values, kind)) if isinstance(values, dict) else tuple(values)

    @field_validator("sizes", "uncertainty", "error")
    @classmethod
    def _without_nan(cls, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if value is None or value != value else value for value in values)

    @field_serializer("sizes", "uncertainty", "error", when_used="json")
    def _packed(self, values: Sequence[Any], info: Any) -> Any:
        if len(self.error) < PACKED_FROM:
            return list(values)
        kind = {"sizes": "i", "uncertainty": "d", "error": "b"}[info.field_name]
        return pack(array(kind, (float("nan") if value is None else value for value in values)))

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        n_items = sum(self.sizes)
        if n_items != len(self.uncertainty) or n_items != len(self.error) or min(self.sizes, default=1) < 1:
            raise ValueError(
                f"sizes must be positive and add up to the items: {n_items}, {len(self.uncertainty)} uncertainties and "
                f"{len(self.error)} labels"
            )
        if self.group is not None and len(self.group) != len(self.sizes):
            raise ValueError("group has one entry for each answer")
        return self

    @property
    def n(self) -> int:
        """Number of answers."""
        return len(self.sizes)

    @property
    def n_wrong(self) -> int:
        """Number of answers with a wrong item."""
        return sum(any(error) for _, error in self.answers)

    @property
    def answers(self) -> list[tuple[tuple[float | None, ...], tuple[int, ...]]]:
        """(uncertainty, error) of the items of each answer."""
        ends = [0, *accumulate(self.sizes)]
        return [(tuple(self.uncertainty[a:b]), tuple(self.error[a:b])) for a, b in pairwise(ends)]

    @property
    def of_answers(self) -> Sequence[float]:
        """`mean_uncertainty` of each answer of which some item could be measured."""
        means = (mean_uncertainty(uncertainty) for uncertainty, _ in self.answers)
        return tuple(mean for mean in means if mean is not None)


class ItemFigures(Frozen):
    """Counts of a gate of items on labelled answers. An answer is shown iff some item of it is kept."""

    answers: Count
    """Answers whose items were measured."""
    shown: Count
    """Answers of which some item is kept."""
    complete: Count
    """Answers of which every item is kept."""
    broken: Count
    """Shown answers that keep a wrong item."""
    items: Count
    """Items."""
    wrong: Count
    """Wrong ones among them."""
    kept: Count
    """Items that are kept."""
    kept_wrong: Count
    """Wrong ones among them."""
    wrong_per_answer: float | None
    """Mean over the shown answers of the share of wrong items among those kept; None if none is shown."""
    broken_interval: tuple[float, float] | None
    """95 % Clopper-Pearson interval of the share of shown answers that are broken. On calibration answers it is
    post-selection: it describes them and certifies nothing. None if none is shown."""
    reference: Count | None = None
    """Fields of the references; None where there are none (labels by hand)."""
    recalled: Count | None = None
    """Fields of the references that kept items match."""
    recall_interval: tuple[float, float] | None = None
    """95 % interval of the share that is recalled, normal approximation over answers."""
