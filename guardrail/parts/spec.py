"""The parts of an artifact: the way answers are split and parts measured, and the threshold with its certificate."""

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

__all__ = ["Kind", "PartFigures", "PartScores", "PartsGate", "PartsSpec", "Procedure", "too_many"]

Kind = Literal["json", "sentences"]
"""Kinds of parts: the fields of a JSON object or of a tool call's arguments; the sentences of a text."""

Count = Annotated[int, Field(ge=0)]


def too_many(allowed: int) -> str:
    """More wrong parts than an answer may keep, in words."""
    return f"more than {allowed} wrong part{'s' * (allowed > 1)}" if allowed else "a wrong part"


class Procedure(Frozen):
    """The identity of a splitter or a support; another one at run time is a mismatch."""

    name: str
    """Name, e.g. "json_fields"."""
    version: int
    """Raised by any change that can move a part or an uncertainty."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters."""


class PartsSpec(Frozen):
    """The way an answer becomes parts with uncertainties; the same at calibration and at run time."""

    kind: Kind
    """Kind of the parts."""
    splitter: Procedure
    """Makes parts of an answer. Parameters of "json_fields": ``keys``, the key field of lists of objects by the path
    of the list; ``optional``, paths of fields that an answer may leave out. "*" stands for any item of a list."""
    support: Procedure
    """Finds out which samples support a part. Parameters of "samples" (JSON): ``judges``, name, version and parameters
    of a judge by path; every other field is compared by value. Of "entailment": ``model``, its identity, and ``least``,
    the probability from which on a sample supports a sentence. Of "asked": none."""
    cap: int = Field(ge=1)
    """Most parts of an answer that can be kept. Fixed without labels."""

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


class PartScores(Frozen):
    """Uncertainties and labels of the parts of every calibration answer, for a fit without the model."""

    sizes: Sequence[int]
    """Number of parts of each answer."""
    uncertainty: Sequence[float | None]
    """Uncertainty of every part, answer after answer, in the order of the text; None (NaN in an array) where it could
    not be measured."""
    wrong: Sequence[Literal[0, 1]]
    """1 where the part is wrong; a label that could not be decided counts as wrong."""
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
                f"sizes must be positive and add up to the parts: {n_parts}, {len(self.uncertainty)} uncertainties and "
                f"{len(self.wrong)} labels"
            )
        aligned = [part for part in (self.ids or None, self.group, self.segment) if part is not None]
        if any(len(part) != len(self.sizes) for part in aligned):
            raise ValueError("ids, group and segment have one entry for each answer")
        return self

    @property
    def answers(self) -> list[tuple[tuple[float | None, ...], tuple[int, ...]]]:
        """(uncertainty, wrong) of the parts of each answer."""
        ends = [0, *accumulate(self.sizes)]
        return [(tuple(self.uncertainty[a:b]), tuple(self.wrong[a:b])) for a, b in pairwise(ends)]


class PartFigures(Frozen):
    """Counts of a gate of parts on labelled answers. An answer is shown iff some part of it is kept."""

    answers: Count
    """Answers whose parts were measured."""
    shown: Count
    """Answers of which some part is kept."""
    complete: Count
    """Answers of which every part is kept."""
    broken: Count
    """Shown answers that keep more wrong parts than the promise allows."""
    parts: Count
    """Parts."""
    wrong: Count
    """Wrong ones among them."""
    kept: Count
    """Parts that are kept."""
    kept_wrong: Count
    """Wrong ones among them."""
    wrong_per_answer: float | None
    """Mean over the shown answers of the share of wrong parts among those kept; None if none is shown."""
    broken_interval: tuple[float, float] | None
    """95 % Clopper-Pearson interval of the share of shown answers that are broken. On calibration answers it is
    post-selection: it describes them and certifies nothing. None if none is shown."""
    reference: Count | None = None
    """Fields of the references; None where there are none (sentences, labels by hand)."""
    recalled: Count | None = None
    """Fields of the references that kept parts match."""
    recall_interval: tuple[float, float] | None = None
    """95 % interval of the share that is recalled, normal approximation over answers."""


class PartsGate(Frozen):
    """The section ``parts`` of an artifact: a threshold for parts, and everything it is valid for."""

    spec: PartsSpec
    """The way answers become parts with uncertainties."""
    rule: str
    """Name of the rule, e.g. "wrong_share"."""
    promise: str
    """The promise in one sentence."""
    alpha: float
    """Target: largest share of wrong parts, or of answers with a wrong part, as the promise says."""
    delta: float | None
    """Failure probability of the promise; None for a promise on average."""
    threshold: float | None
    """A part is kept iff its uncertainty is at most this; None keeps nothing."""
    per: Literal["part", "answer"]
    """Unit of the share: all parts kept, or the mean over answers that show something."""
    allowed: Count = 0
    """Wrong parts that an answer may keep without counting as broken."""
    cut: float | None = Field(default=None, ge=0, le=1)
    """Largest uncertainty of a part that was labelled, if only parts below a cut were; None: all were."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the rule as they were used: the grid of thresholds and how it was fixed, the start, the seed."""
    n_unmeasured_answers: Count = 0
    """Answers that could not be split or had no samples. They abstain and are left out of the fit."""
    n_unmeasured_parts: Count = 0
    """Parts of the other answers that could not be measured. They are held back and stay in the fit."""
    n_undecided: Count = 0
    """Parts whose label could not be decided; they count as wrong."""
    bands: tuple[int, ...] = ()
    """Largest numbers of parts of the bands that have their own thresholds, ascending; the last band is open. Empty for
    one threshold."""
    band_thresholds: tuple[float | None, ...] = ()
    """Threshold of each band, one more than ``bands``. `threshold` is then the largest of them."""
    figures: PartFigures | None = None
    """Counts on the calibration answers."""
    scores: PartScores = Field(repr=False)
    """The scores and labels themselves."""

    def threshold_for(self, n_parts: int) -> float | None:
        """The threshold for the parts of an answer that has so many: its band's, or the only one."""
        return self.band_thresholds[bisect_left(self.bands, n_parts)] if self.bands else self.threshold

    @model_validator(mode="after")
    def _a_threshold_each(self) -> Self:
        if self.bands and (list(self.bands) != sorted(set(self.bands)) or self.bands[0] < 1):
            raise ValueError(f"bands are increasing numbers of parts, got {self.bands}")
        if self.bands and len(self.band_thresholds) != len(self.bands) + 1:
            raise ValueError(f"{len(self.bands)} bands and an open one need as many thresholds: {self.band_thresholds}")
        return self

    @model_validator(mode="after")
    def _below_the_cut(self) -> Self:
        if self.cut is not None and self.threshold is not None and self.threshold > self.cut:
            raise ValueError(
                f"the threshold {self.threshold:g} is above the cut {self.cut:g}: no such part was labelled"
            )
        return self
