"""From a sample set to the items of its answer, each with the share of samples that do not support it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..artifact import CalibrationArtifact
from ..errors import ArtifactMismatchError, UsageError
from ..judges import Similarity
from ..judges.base import Entailment, Judge, is_slow
from ..plain_json import text_fault
from ..sampling.follow_ups import FollowUp
from ..types import Missing, Sample, SampleSet, SamplingPlan, Unmeasured
from ..uncertainty import Scorer, from_spec
from ..uncertainty.base import Estimator, Evidence, Needs
from ..uncertainty.measure import unusable
from ..uncertainty.selfcheck import sentences
from .item import Item
from .json_fields import (
    ABSENT,
    SPLITTER,
    SUPPORT,
    VERSION,
    Leaf,
    OtherDocument,
    document_of,
    field_judges,
    json_text,
    leaves,
    reference_document,
)
from .sentences import ASKED, SUPPORTED, asked_support, entailed_support, sentence_entailment, spans
from .sentences import VERSION as SENTENCES_VERSION
from .spec import ItemsSpec

__all__ = [
    "Comparison",
    "ItemsMeasure",
    "compare_with_gold",
    "estimator_of",
    "follow_up_of",
    "items_estimator",
    "items_measure",
    "measure_of",
    "split_and_measure",
]

VERSIONS = {
    SPLITTER: VERSION,
    SUPPORT: VERSION,
    "sentences": SENTENCES_VERSION,
    "entailment": SENTENCES_VERSION,
    "asked": SENTENCES_VERSION,
}
"""Splitters and supports of this version of the library."""


@dataclass(frozen=True)
class ItemsMeasure:
    """Splits answers and measures their items; as a formula, it gives the uncertainty of the most certain item.

    Some item is kept iff that one is at most the threshold.

    Attributes:
        spec: The items.
        judges: Judge of each field that has its own, by path.
        entailment: The entailment model, for sentences whose support it judges.
    """

    spec: ItemsSpec
    judges: Mapping[str, Judge] = field(default_factory=dict)
    entailment: Entailment | None = None

    @property
    def is_slow(self) -> bool:
        """Whether measuring may take noticeable time: it asks an entailment model, or a judge of unknown cost."""
        return self.entailment is not None or any(is_slow(judge) for judge in self.judges.values())

    def __call__(self, evidence: Evidence) -> float | Missing:
        """The smallest uncertainty of an item. Probability, in [0, 1]."""
        return smallest(self.items(evidence.drawn))

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
        return self._fields(drawn) if self.spec.kind == "json" else self._sentences(drawn)

    def _fields(self, drawn: SampleSet) -> tuple[Item, ...] | Missing:
        primary = drawn.primary
        assert primary is not None  # _unusable
        call = call_of(primary)
        try:
            document = document_of(primary, call)
        except ValueError as error:
            return Missing(Unmeasured.UNREADABLE, f"the answer has no fields: {error}")
        if (fault := text_fault(json_text(document))) is not None:
            return Missing(Unmeasured.UNREADABLE, f"the answer has no fields: it holds {fault}")
        try:
            own = leaves(document, self.spec, self.judges)
        except Exception as error:  # a judge may be the user's code, and says which items of a list are equal
            return Missing(Unmeasured.JUDGE_FAILED, f"a field's judge failed: {type(error).__name__}")
        others = [self._document_or_none(sample, call) for sample in drawn.samples]
        return tuple(self._field(leaf, others) for leaf in own)

    def _document_or_none(self, sample: Sample, call: str | None) -> OtherDocument | None:
        try:
            return OtherDocument(document_of(sample, call), self.judges, self.spec.most_items)
        except ValueError:
            return None

    def _field(self, leaf: Leaf, others: Sequence[OtherDocument | None]) -> Item:
        text = "" if leaf.value is ABSENT else json_text(leaf.value)
        described = {"path": leaf.path, "text": text, "absent": leaf.value is ABSENT}
        if leaf.unmeasured:
            return Item(**described, uncertainty=None, detail=leaf.unmeasured)
        try:
            verdicts = [other is not None and other.supports(leaf) for other in others]
        except Exception as error:  # a judge may be the user's code
            return Item(**described, uncertainty=None, detail=f"the field's judge failed: {type(error).__name__}")
        return Item(**described, **_share(verdicts, "the field's judge gave no verdict on some sample"))

    def _sentences(self, drawn: SampleSet) -> tuple[Item, ...] | Missing:
        assert drawn.primary is not None  # _unusable
        if drawn.primary.tool_calls:
            return Missing(Unmeasured.UNREADABLE, "a tool call has no sentences")
        text = drawn.primary.comparable
        pieces = sentences(text)
        if not pieces:
            return Missing(Unmeasured.EMPTY_ANSWER, "the answer has no sentence")
        if self.entailment is None:
            rows, why = asked_support(drawn, pieces), "the reply about it is missing or cannot be read"
        else:
            rows, why = self._entailed(pieces, drawn)
        items = zip(spans(text, pieces), pieces, rows, strict=True)
        return tuple(Item(span=span, text=piece, **_share(row, why)) for span, piece, row in items)

    def _entailed(self, pieces: Sequence[str], drawn: SampleSet) -> tuple[list[list[bool | None]], str]:
        assert self.entailment is not None
        least = float(self.spec.support.params["least"])
        try:
            texts = [sample.comparable for sample in drawn.samples]
            return entailed_support(pieces, texts, self.entailment, least), "the entailment model gave no score"
        except Exception as error:  # it may be the user's code
            return [[None]] * len(pieces), f"the entailment model failed: {type(error).__name__}"


def call_of(answer: Sample) -> str | None:
    """Name of the tool that an answer calls; None for a text."""
    return answer.tool_calls[0].name if answer.tool_calls else None


def _share(verdicts: Sequence[bool | None], why: str) -> dict[str, Any]:
    """The share of samples without support, or the reason why it is unknown."""
    if not verdicts or None in verdicts:
        return {"uncertainty": None, "detail": why}
    return {"uncertainty": verdicts.count(False) / len(verdicts)}


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


def items_measure(
    spec: ItemsSpec, *, judges: Mapping[str, Judge] | None = None, entailment: Entailment | None = None
) -> ItemsMeasure:
    """The measure of a specification.

    Args:
        spec: The items.
        judges: Judge objects by path, for those that cannot be made by name.
        entailment: The entailment model, if it cannot be made by name.

    Raises:
        ArtifactMismatchError: The splitter, the support, a judge or the model differs from the calibrated one.
    """
    for procedure in (spec.splitter, spec.support):
        if VERSIONS.get(procedure.name) != procedure.version:
            raise ArtifactMismatchError(
                f"calibrated with {procedure.name} {procedure.version}, this version has "
                f"{VERSIONS.get(procedure.name, 'none of that name')}: other items, or other uncertainties. Calibrate "
                "again, or install the version that made the artifact."
            )
    try:
        if spec.kind == "json":
            return ItemsMeasure(spec, field_judges(spec, judges))
        return ItemsMeasure(spec, entailment=sentence_entailment(spec, entailment))
    except UsageError as error:
        raise ArtifactMismatchError(str(error)) from error


def follow_up_of(spec: ItemsSpec) -> FollowUp | None:
    """The question that the model is asked about its answer, or None."""
    return SUPPORTED if spec.support.name == ASKED else None


def items_estimator(measure: ItemsMeasure) -> Estimator:
    """The estimator that plans, records and artifacts name for items: the uncertainty of the most certain item."""
    spec = measure.spec
    return Estimator(
        name=f"items_{spec.kind}",
        version=1,
        unit="probability",
        needs=Needs(samples=True, primary=True, follow_up=follow_up_of(spec)),
        formula=measure,
        params=spec.model_dump(mode="json"),
    )


def measure_of(estimator: Estimator) -> ItemsMeasure:
    """The measure behind an estimator of `items_estimator`."""
    assert isinstance(estimator.formula, ItemsMeasure), f"{estimator.name} has no items"
    return estimator.formula


def estimator_of(
    artifact: CalibrationArtifact,
    *,
    judge: Judge | Mapping[str, Judge] | None = None,
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
    scorer: Scorer | None = None,
) -> Estimator:
    """The estimator of an artifact, of whole answers or of items; see `guardrail.uncertainty.from_spec`.

    Args:
        artifact: The artifact.
        judge: The judge object; for JSON fields the judge objects by path.
        similarity: The similarity object.
        entailment: The entailment model object.
        scorer: The scorer.

    Raises:
        ArtifactMismatchError: The estimator, a judge or a model differs from the calibrated one.
    """
    if artifact.items is None:
        if isinstance(judge, Mapping):
            raise ArtifactMismatchError("judge by path is for artifacts with items; this one gates whole answers.")
        return from_spec(artifact.estimator, judge=judge, similarity=similarity, entailment=entailment, scorer=scorer)
    if similarity is not None or scorer is not None or not (judge is None or isinstance(judge, Mapping)):
        raise ArtifactMismatchError(
            "this artifact gates items of answers: it takes no similarity and no scorer, and judges by the path of a "
            "field, judge={'/total': ...}."
        )
    running = items_estimator(items_measure(artifact.items.spec, judges=judge, entailment=entailment))
    if running.spec != artifact.estimator:
        raise ArtifactMismatchError(
            f"estimator differs: calibrated with {artifact.estimator.model_dump()}, running "
            f"{running.spec.model_dump()}. Calibrate again, or install the version that made the artifact."
        )
    return running


def split_and_measure(
    drawn: SampleSet,
    spec: ItemsSpec,
    plan: SamplingPlan | None = None,
    *,
    judges: Mapping[str, Judge] | None = None,
    entailment: Entailment | None = None,
) -> tuple[Item, ...] | Missing:
    """`ItemsMeasure.items` for one set; for many, make the measure once with `items_measure`."""
    return items_measure(spec, judges=judges, entailment=entailment).items(drawn, plan)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The items of an answer against a reference.

    Attributes:
        right: For each item, whether the reference supports it; None if the field's judge gives no verdict.
        missed: Paths of the reference's fields that no part matches.
        n_reference: Fields of the reference; those that are matched are ``n_reference - len(missed)``.
    """

    right: tuple[bool | None, ...]
    missed: tuple[str, ...]
    n_reference: int


def compare_with_gold(
    answer: Sample, reference: str, spec: ItemsSpec, *, judges: Mapping[str, Judge] | None = None
) -> Comparison:
    """Compare the fields of an answer with a reference, each by its judge.

    A value is right if the reference has the same one at its path, the j-th of equal items of a list if the reference
    has at least j of them, an absent field if the reference lacks it.

    Args:
        answer: The primary answer, which has items.
        reference: JSON of the right document. For a tool call the arguments, or the call with its name; the call of
            another tool makes every item wrong.
        spec: The items, of kind "json".
        judges: As in `items_measure`.

    Raises:
        UsageError: The kind is not "json", or the reference is not JSON.
        ValueError: The answer has no items.
    """
    if spec.kind != "json":
        raise UsageError("only JSON fields can be compared with a reference; label sentences by hand.")
    by_path = field_judges(spec, judges)
    call = call_of(answer)
    document = document_of(answer, call)
    own = leaves(document, spec, by_path)
    try:
        gold, tool = reference_document(reference, call)
    except ValueError as error:
        raise UsageError(f"the reference is not a JSON document ({error}): {reference[:80]!r}") from error
    if tool is not None and tool != call:
        return Comparison((False,) * len(own), (), 0)
    theirs = [leaf for leaf in leaves(gold, spec, by_path) if leaf.value is not ABSENT]
    answered, expected = (OtherDocument(each, by_path, spec.most_items) for each in (document, gold))
    missed = [leaf.path for leaf in theirs if answered.supports(leaf) is not True]
    return Comparison(tuple(expected.supports(leaf) for leaf in own), tuple(missed), len(theirs))
