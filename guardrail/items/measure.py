"""From a sample set to the items of its answer, each with the share of samples that do not support it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import ArtifactMismatchError, UsageError
from ..judges.base import Judge
from ..plain_json import text_fault
from ..types import Missing, Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from ..uncertainty.base import Estimator, Evidence, Needs
from ..uncertainty.measure import unusable
from .item import Item
from .json_fields import ABSENT, Leaf, OtherDocument, document_of, field_judges, json_text, leaves
from .spec import ITEMS, VERSION, ItemsSpec


@dataclass(frozen=True)
class ItemsMeasure:
    """Splits answers and measures their items; as a formula, it gives the uncertainty of the most certain item.

    Some item is kept iff that one is at most the threshold.

    Attributes:
        spec: The items.
        judges: Judge of each field that has its own, by path.
    """

    spec: ItemsSpec
    judges: Mapping[str, Judge] = field(default_factory=dict)

    @property
    def is_slow(self) -> bool:
        """Whether measuring may take noticeable time: it asks a judge of unknown cost."""
        return any(judge.is_slow for judge in self.judges.values())

    def __call__(self, evidence: Evidence) -> float:
        """The smallest uncertainty of an item. Probability, in [0, 1]."""
        value = smallest(self.items(evidence.drawn))
        if isinstance(value, Missing):
            raise value
        return value

    def items(self, drawn: SampleSet, plan: SamplingPlan | None = None) -> tuple[Item, ...] | Missing:
        """The items of the primary answer, in the order of the text, or the reason why the answer is unmeasured.

        An answer that cannot be split is unmeasured, and so is one that was cut off or lacks samples. An item without a
        verdict on some sample has no uncertainty; the others keep theirs.

        Args:
            drawn: The sample set.
            plan: The plan that it was drawn by; None skips the checks that need it.
        """
        missing = _unusable(drawn, plan)
        if missing is not None:
            return missing
        assert drawn.primary is not None, "_unusable looks"
        call = call_of(drawn.primary)
        try:
            document = document_of(drawn.primary, call)
        except ValueError as error:
            return Missing(Unmeasured.UNREADABLE, f"the answer has no fields: {error}")
        if (fault := text_fault(json_text(document))) is not None:
            return Missing(Unmeasured.UNREADABLE, f"the answer has no fields: it holds {fault}")
        try:
            answer_leaves = leaves(document, self.spec, self.judges)
        except Exception as error:  # a judge may be the user's code, and says which entries of a list are equal
            return Missing(Unmeasured.JUDGE_FAILED, f"a field's judge failed: {type(error).__name__}")
        others = [self._document_or_none(sample, call) for sample in drawn.samples]
        return tuple(_item(leaf, others) for leaf in answer_leaves)

    def _document_or_none(self, sample: Sample, call: str | None) -> OtherDocument | None:
        try:
            return OtherDocument(document_of(sample, call), self.judges)
        except ValueError:
            return None


def _item(leaf: Leaf, others: Sequence[OtherDocument | None]) -> Item:
    """The leaf with the share of samples without support, or the reason why it is unknown."""
    text = "" if leaf.value is ABSENT else json_text(leaf.value)

    def item(uncertainty: float | None, detail: str = "") -> Item:
        return Item(path=leaf.path, text=text, uncertainty=uncertainty, absent=leaf.value is ABSENT, detail=detail)

    if leaf.unmeasured:
        return item(None, leaf.unmeasured)
    try:
        verdicts = [other is not None and other.supports(leaf) for other in others]
    except Exception as error:  # a judge may be the user's code
        return item(None, f"the field's judge failed: {type(error).__name__}")
    if not verdicts or None in verdicts:
        return item(None, "the field's judge gave no verdict on some sample")
    return item(verdicts.count(False) / len(verdicts))


def call_of(answer: Sample) -> str | None:
    """Name of the tool that an answer calls; None for a text."""
    return answer.tool_calls[0].name if answer.tool_calls else None


def _unusable(drawn: SampleSet, plan: SamplingPlan | None) -> Missing | None:
    missing = unusable(drawn, plan)
    if missing is not None:
        return missing
    wanted = 1 if plan is None else max(1, plan.n)
    if len(drawn.samples) < wanted:
        return Missing(Unmeasured.SAMPLING_SHORTFALL, f"asked for {wanted} samples, received {len(drawn.samples)}")
    return None


def smallest(items: tuple[Item, ...] | Missing) -> float | Missing:
    """The uncertainty of the most certain item, or the reason why it is unknown."""
    if isinstance(items, Missing):
        return items
    values = [item.uncertainty for item in items if item.uncertainty is not None]
    if not values:
        return Missing(Unmeasured.JUDGE_FAILED, f"none of {len(items)} items could be measured: {items[0].detail}")
    return min(values)


def items_measure(spec: ItemsSpec, *, judges: Mapping[str, Judge] | None = None) -> ItemsMeasure:
    """The measure of a specification.

    Args:
        spec: The items.
        judges: Judge objects by path, for those that cannot be made by name.

    Raises:
        ArtifactMismatchError: Splitting and support, or a judge, differ from the calibrated ones.
    """
    if spec.version != VERSION:
        raise ArtifactMismatchError(
            f"calibrated with version {spec.version} of items, this is version {VERSION}: other items, or other "
            "uncertainties. Calibrate again, or install the version that made the artifact."
        )
    try:
        return ItemsMeasure(spec, field_judges(spec, judges))
    except UsageError as error:
        raise ArtifactMismatchError(str(error)) from error


def items_estimator(measure: ItemsMeasure) -> Estimator:
    """The estimator that plans, records and artifacts name for items: the uncertainty of the most certain item."""
    return Estimator(
        name=ITEMS,
        version=1,
        unit="probability",
        needs=Needs(samples=True, primary=True),
        formula=measure,
        params=measure.spec.model_dump(mode="json"),
    )


def measure_of(estimator: Estimator) -> ItemsMeasure:
    """The measure behind an estimator of `items_estimator`."""
    assert isinstance(estimator.formula, ItemsMeasure), f"{estimator.name} has no items"
    return estimator.formula


def measured_items(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> tuple[Uncertainty, tuple[Item, ...]]:
    """The items of the answer, and the uncertainty of the most certain one; no items if the answer is unmeasured."""
    items = measure_of(estimator).items(drawn, plan)
    value = smallest(items)
    if isinstance(value, Missing) or isinstance(items, Missing):
        assert isinstance(value, Missing), "an unmeasured answer has no smallest uncertainty"
        return estimator.unmeasured(value.reason, value.detail), () if isinstance(items, Missing) else items
    return Uncertainty(value=value, unit=estimator.unit, estimator=estimator.name), items
