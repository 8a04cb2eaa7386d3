"""The items of an artifact: the way answers are split and items measured, and the threshold with its certificate."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from ..plain_json import PACKED_FROM, pack, unpack
from ..specs import JudgeSpec
from ..types import Frozen

__all__ = ["ItemFigures", "ItemScores", "ItemsSpec", "ItemsThreshold", "Kind", "Procedure", "too_many"]

Kind = Literal["json", "sentences"]
"""Kinds of items: the fields of a JSON object or of a tool call's arguments; the sentences of a text."""

Count = Annotated[int, Field(ge=0)]


def too_many(allowed: int) -> str:
    """More wrong items than an answer may keep, in words."""
    return f"more than {allowed} wrong item{'s' * (allowed > 1)}" if allowed else "a wrong item"


class Procedure(Frozen):
    """The identity of a splitter or a support; another one at run time is a mismatch."""

    name: str
    """Name, e.g. "json_fields"."""
    version: int
    """Raised by any change that can move an item or an uncertainty."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters."""


class ItemsSpec(Frozen):
    """The way an answer becomes items with uncertainties; the same at calibration and at run time."""

    kind: Kind
    """Kind of the items."""
    splitter: Procedure
    """Makes items of an answer. Parameters of "json_fields": ``keys``, the key field of lists of objects by the path
    of the list; ``optional``, paths of fields that an answer may leave out. "*" stands for any item of a list."""
    support: Procedure
    """Finds out which samples support an item. Parameters of "samples" (JSON): ``judges``, name, version and parameters
    of a judge by path; every other field is compared by value. Of "entailment": ``model``, its identity, and ``least``,
    the probability from which on a sample supports a sentence. Of "asked": none."""
    cap: int = Field(ge=1)
    """Most items of an answer that can be kept. Fixed without labels."""

    @property
    def keys(self) -> dict[str, str]:
        """Key field of each list of objects whose items are matched, by path."""
        return dict(self.splitter.params.get("keys", {}))

    @property
    def optional(self) -> tuple[str, ...]:
        """Paths of fields that an answer may leave out."""
        return tuple(self.splitter.params.get("optional", ()))

    @property
    def most_items(self) -> int | None:
        """Most different items of a list that their judge compares; None for any number (artifacts without it)."""
        most: int | None = self.support.params.get("most_items")
        return most

    @property
    def judges(self) -> dict[str, JudgeSpec]:
        """Identity of the judge of each field that has its own, by path."""
        return {path: JudgeSpec.model_validate(spec) for path, spec in self.support.params.get("judges", {}).items()}


class ItemScores(Frozen):
    """Uncertainties and labels of the items of every calibration answer, for a fit without the model."""

    sizes: Sequence[int]
    """Number of items of each answer."""
    uncertainty: Sequence[float | None]
    """Uncertainty of every item, answer after answer, in the order of the text; None (NaN in an array) where it could
    not be measured."""
    wrong: Sequence[Literal[0, 1]]
    """1 where the item is wrong; a label that could not be decided counts as wrong."""
    ids: tuple[str, ...] = ()
    """Id of each answer's question, by which the order of the bets is fixed; empty for rules that need none."""
    group: tuple[str, ...] | None = None
    """Cluster of each answer, or None when answers are independent."""
    segment: tuple[str | None, ...] | None = None
    """Segment of each answer, None for "all others"; or None if there is one threshold for all."""

    @field_validator("sizes", "uncertainty", "wrong", mode="before")
    @classmethod
    def _compact(cls, values: Any, info: Any) -> Any:
        kind = {"sizes": "i", "uncertainty": "d", "wrong": "b"}[info.field_name]
        return tuple(unpack(values, kind)) if isinstance(values, dict) else tuple(values)

    @field_validator("sizes", "uncertainty", "wrong")
    @classmethod
    def _without_nan(cls, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if value is None or value != value else value for value in values)

    @field_serializer("sizes", "uncertainty", "wrong", when_used="json")
    def _packed(self, values: Sequence[Any], info: Any) -> Any:
        if len(self.wrong) < PACKED_FROM:
            return list(values)
        kind = {"sizes": "i", "uncertainty": "d", "wrong": "b"}[info.field_name]
        return pack(array(kind, (float("nan") if value is None else value for value in values)))

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        n_parts = sum(self.sizes)
        if n_parts != len(self.uncertainty) or n_parts != len(self.wrong) or min(self.sizes, default=1) < 1:
            raise ValueError(
                f"sizes must be positive and add up to the items: {n_parts}, {len(self.uncertainty)} uncertainties and "
                f"{len(self.wrong)} labels"
            )
        aligned = [item for item in (self.ids or None, self.group, self.segment) if item is not None]
        if any(len(item) != len(self.sizes) for item in aligned):
            raise ValueError("ids, group and segment have one entry for each answer")
        return self

    @property
    def answers(self) -> list[tuple[tuple[float | None, ...], tuple[int, ...]]]:
        """(uncertainty, wrong) of the items of each answer."""
        ends = [0, *accumulate(self.sizes)]
        return [(tuple(self.uncertainty[a:b]), tuple(self.wrong[a:b])) for a, b in pairwise(ends)]


class ItemFigures(Frozen):
    """Counts of a gate of items on labelled answers. An answer is shown iff some item of it is kept."""

    answers: Count
    """Answers whose items were measured."""
    shown: Count
    """Answers of which some item is kept."""
    complete: Count
    """Answers of which every item is kept."""
    broken: Count
    """Shown answers that keep more wrong items than the promise allows."""
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
    """Fields of the references; None where there are none (sentences, labels by hand)."""
    recalled: Count | None = None
    """Fields of the references that kept items match."""
    recall_interval: tuple[float, float] | None = None
    """95 % interval of the share that is recalled, normal approximation over answers."""


class ItemsThreshold(Frozen):
    """The section ``items`` of an artifact: a threshold for items, and everything it is valid for."""

    spec: ItemsSpec
    """The way answers become items with uncertainties."""
    rule: str
    """Name of the rule, e.g. "wrong_share"."""
    promise: str
    """The promise in one sentence."""
    alpha: float
    """Target: largest share of wrong items, or of answers with a wrong item, as the promise says."""
    delta: float | None
    """Failure probability of the promise; None for a promise on average."""
    threshold: float | None
    """An item is kept iff its uncertainty is at most this; None keeps nothing."""
    per: Literal["item", "answer"]
    """Unit of the share: all items kept, or the mean over answers that show something."""
    allowed: Count = 0
    """Wrong items that an answer may keep without counting as broken."""
    cut: float | None = Field(default=None, ge=0, le=1)
    """Largest uncertainty of an item that was labelled, if only items below a cut were; None: all were."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the rule as they were used: the grid of thresholds and how it was fixed, the start, the seed."""
    n_unmeasured_answers: Count = 0
    """Answers that could not be split or had no samples. They abstain and are left out of the fit."""
    n_unmeasured_items: Count = 0
    """Items of the other answers that could not be measured. They are held back and stay in the fit."""
    n_undecided: Count = 0
    """Items whose label could not be decided; they count as wrong."""
    bands: tuple[int, ...] = ()
    """Largest numbers of items of the bands that have their own thresholds, ascending; the last band is open. Empty for
    one threshold."""
    band_thresholds: tuple[float | None, ...] = ()
    """Threshold of each band, one more than ``bands``. `threshold` is then the largest of them."""
    figures: ItemFigures | None = None
    """Counts on the calibration answers."""
    scores: ItemScores = Field(repr=False)
    """The scores and labels themselves."""

    def threshold_for(self, n_parts: int) -> float | None:
        """The threshold for the items of an answer that has so many: its band's, or the only one."""
        return self.band_thresholds[bisect_left(self.bands, n_parts)] if self.bands else self.threshold

    @model_validator(mode="after")
    def _a_threshold_each(self) -> Self:
        if self.bands and (list(self.bands) != sorted(set(self.bands)) or self.bands[0] < 1):
            raise ValueError(f"bands are increasing numbers of items, got {self.bands}")
        if self.bands and len(self.band_thresholds) != len(self.bands) + 1:
            raise ValueError(f"{len(self.bands)} bands and an open one need as many thresholds: {self.band_thresholds}")
        return self

    @model_validator(mode="after")
    def _below_the_cut(self) -> Self:
        if self.cut is not None and self.threshold is not None and self.threshold > self.cut:
            raise ValueError(
                f"the threshold {self.threshold:g} is above the cut {self.cut:g}: no such item was labelled"
            )
        return self
