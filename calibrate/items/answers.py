"""Records to lists of (uncertainty, wrong) per answer: measuring the items of answers, labelling them, packing them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from guardrail.errors import RecordError, UsageError
from guardrail.items.item import Item
from guardrail.items.json_fields import ABSENT, document_of, leaf_fields, leaves, reference_document
from guardrail.items.measure import ItemsMeasure, call_of, compare_with_gold, items_estimator, items_measure, smallest
from guardrail.items.spec import ItemsSpec
from guardrail.judges import Entailment, Judge
from guardrail.specs import CorrectnessSpec
from guardrail.types import Missing, Uncertainty
from guardrail.uncertainty import unmet_needs
from guardrail.uncertainty.selfcheck import sentences

from ..data.item_columns import ItemColumns, lists_of
from ..data.progress import Progress, silent
from ..data.questions import read_rows
from ..data.record import ItemLabels
from ..data.records import GIVEN, Record, RecordFile, RecordHeader, RecordReader, stream_records
from ..data.table import RecordTable, table_of
from .rules import AnswerItems, check_cap, check_cut

__all__ = [
    "MeasuredItems",
    "Measuring",
    "cap_of_counts",
    "item_names",
    "key_of_items",
    "label_items",
    "labelled_to",
    "labels_by_hand",
    "labels_of_file",
    "measure_file",
    "measure_records",
    "needs_label",
    "numbers_of_items",
    "packed_answers",
    "refuse_unlabelled",
    "spec_of_answers",
    "spec_of_key",
    "without_labels",
]

CUT = "cut"
"""Parameter of labels by hand: people were asked about no part above it."""
REFERENCE = "item_reference"
"""Name of the label rule that compares JSON fields with a reference, each by its judge."""
JUDGE = "a judge"
MOST_PATHS = 30
"""Most paths of fields that an error lists."""
MANY = 300
"""Answers from which on the cap is the 90th percentile of their numbers of items; below, it is the median."""


# -- Which items a file has --------------------------------------------------------------------------------------------


def key_of_items(file: RecordFile, kind: str | None = None) -> str:
    """Key of the items that are meant: those of the kind, or the only ones.

    Raises:
        UsageError: The file has none, or several and no kind is named.
    """
    keys = file.header.item_keys
    if kind is not None and f"items_{kind}" in keys:
        return f"items_{kind}"
    if kind is None and len(keys) == 1:
        return keys[0]
    if keys and kind is None:
        raise UsageError(f"{file.path} has the items {', '.join(keys)}; name one with --items.")
    wanted = kind or "json"
    raise UsageError(f"{file.path} has no {wanted} items. Run: calibrate score {file.typed} --items {wanted}")


def spec_of_key(header: RecordHeader, key: str) -> ItemsSpec:
    """The specification that the items of a file were measured with."""
    return ItemsSpec.model_validate(header.estimators[key].params)


def cap_of_counts(counts: Sequence[int]) -> int:
    """The cap of answers without a schema: the 90th percentile of their numbers of items, the median of fewer than 300.

    No label plays an item. A larger cap needs more answers for a certificate; items beyond it are held back.

    Raises:
        UsageError: There is no answer.
    """
    if not counts:
        raise UsageError("no answer could be split, so the cap is unknown. Give it with --cap.")
    return max(1, int(np.quantile(counts, 0.9 if len(counts) >= MANY else 0.5, method="higher")))


def numbers_of_items(records: Iterable[Record], measure: ItemsMeasure) -> list[int]:
    """Numbers of items of the answers that can be split. Sentences are only counted, without support."""
    counts = []
    for record in records:
        if record.drawn is None or record.drawn.primary is None:
            continue
        if measure.spec.kind == "sentences":
            counts.append(len(sentences(record.drawn.primary.comparable)))
        else:
            items = measure.items(record.drawn)
            counts.append(0 if isinstance(items, Missing) else len(items))
    return [count for count in counts if count]


def spec_of_answers(
    make: Callable[[int | None], ItemsSpec],
    records: Sequence[Record],
    *,
    cap: int | None = None,
    schema: Mapping[str, Any] | None = None,
    entailment: Entailment | None = None,
) -> ItemsSpec:
    """The specification of the items of these answers.

    Args:
        make: From a cap to the specification; refuses None where the schema gives no cap.
        records: Answers, whose labels play no part.
        cap: Most items that are ever kept; default: that of the schema, or `cap_of_counts` of these answers where it
            has none.
        schema: The JSON schema of the answers.
        entailment: The entailment model of sentences.

    Raises:
        UsageError: A path of a judge, a key field or an optional field is that of no field, or the cap is below 1.
    """
    if cap is not None:
        check_cap(cap)
    try:
        spec = make(cap)
    except UsageError:
        if cap is not None:
            raise
        counts = numbers_of_items(records, items_measure(make(1), entailment=entailment))
        spec = make(cap_of_counts(counts))
    _refuse_unknown_paths(spec, records, schema)
    return spec


def _refuse_unknown_paths(spec: ItemsSpec, records: Sequence[Record], schema: Mapping[str, Any] | None) -> None:
    """Refuse paths that no field has, in the schema, an answer, a sample or a reference.

    A judge there would never be asked, and an optional field there would be a right item of every answer.
    """
    known = set() if schema is None else set(leaf_fields(schema, spec.keys).paths)
    waiting = dict.fromkeys(spec.keys, "a key field") | dict.fromkeys(spec.optional, "an optional field")
    waiting |= dict.fromkeys(spec.judges, JUDGE)
    for record in (None, *records):
        if record is not None:
            known |= _field_paths(record, spec)
        waiting = {path: what for path, what in waiting.items() if not _is_path(path, known, whole=what == JUDGE)}
        if not waiting:
            return
    path, what = next(iter(waiting.items()))
    fields = ", ".join(sorted(known)[:MOST_PATHS]) + (", ..." if len(known) > MOST_PATHS else "")
    raise UsageError(
        f"{what} is named for {path!r}, and no answer, sample or reference has that field. Fields: "
        f"{fields or 'none'}. Write the path as it is listed: '*' stands for any item of a list, and a list of objects "
        "is one field unless a key field is named for it."
    )


def _is_path(path: str, known: Set[str], *, whole: bool) -> bool:
    """Whether a path is that of a field, or for other purposes than judging, of an object or list that holds some."""
    return path in known or (not whole and any(each.startswith(f"{path}/") for each in known))


def _field_paths(record: Record, spec: ItemsSpec) -> set[str]:
    """Paths of the fields in the answer, the samples and the references of a record, where these can be read."""
    drawn = record.drawn
    if drawn is None or drawn.primary is None:
        return set()
    call, paths = call_of(drawn.primary), set[str]()
    read = [
        *(partial(document_of, answer, call) for answer in (drawn.primary, *drawn.samples)),
        *(partial(reference_document, reference, call) for reference in record.references),
    ]
    for document in read:
        try:
            value = document()
        except ValueError:
            continue
        value = value[0] if isinstance(value, tuple) else value
        paths |= {leaf.pattern for leaf in leaves(value, spec, {}) if leaf.value is not ABSENT}
    return paths


# -- Measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measuring:
    """The measurement of items for a record file.

    Attributes:
        measure: Splits and measures.
        header: Header of the measured file.
        key: Key of the items.
    """

    measure: ItemsMeasure
    header: RecordHeader
    key: str

    @classmethod
    def of(cls, header: RecordHeader, measure: ItemsMeasure) -> Measuring:
        """From the header of the file to measure.

        Raises:
            UsageError: The file lacks what the support reads.
        """
        estimator = items_estimator(measure)
        unmet = unmet_needs(estimator, header.plan)
        if unmet:
            raise UsageError(
                f"{measure.spec.kind} items cannot be measured from these records: {': '.join(unmet[0])}. Collect "
                f"again with: calibrate collect --items {measure.spec.kind}"
            )
        key = estimator.name
        update: dict[str, Any] = {"estimators": {**header.estimators, key: estimator.spec}}
        if (old := header.estimators.get(key)) is not None and old != estimator.spec:
            # Labels belong to items: of another split they may label another item.
            update["item_correctness"] = {k: v for k, v in header.item_correctness.items() if k != key}
        return cls(measure, header.model_copy(update=update), key)

    def measured(self, record: Record) -> Record:
        """The record with its items; labels of the same items stay."""
        if record.drawn is None:
            return record
        items = self.measure.items(record.drawn, self.header.plan)
        scores = {**record.scores, self.key: self._score(items)}
        others = {key: value for key, value in record.items.items() if key != self.key}
        own = {} if isinstance(items, Missing) else {self.key: items}
        labels = dict(record.item_labels)
        if self.key not in self.header.item_correctness or _places(own.get(self.key)) != _places(
            record.items.get(self.key)
        ):
            labels.pop(self.key, None)
        return record.model_copy(update={"scores": scores, "items": {**others, **own}, "item_labels": labels})

    def _score(self, items: tuple[Item, ...] | Missing) -> Uncertainty:
        value = smallest(items)
        missing: dict[str, Any] = {"reason": value.reason, "detail": value.detail} if isinstance(value, Missing) else {}
        number = None if isinstance(value, Missing) else value
        return Uncertainty(value=number, unit="probability", estimator=self.key, **missing)


def _places(items: Sequence[Item] | None) -> list[tuple[str, str]] | None:
    return None if items is None else [(part.place, part.text) for part in items]


def measure_records(file: RecordFile, measure: ItemsMeasure) -> RecordFile:
    """The file with its items, in memory."""
    measuring = Measuring.of(file.header, measure)
    return RecordFile(file.path, measuring.header, tuple(map(measuring.measured, file.records)), file.torn)


def measure_file(
    source: Path, target: Path, measure: ItemsMeasure, *, progress: Progress = silent
) -> tuple[RecordHeader, str]:
    """`measure_records` from file to file, record by record. Returns the header written and the key of the items."""
    written: list[Measuring] = []

    def change(reader: RecordReader) -> tuple[RecordHeader, Iterable[Record]]:
        measuring = Measuring.of(reader.header, measure)
        written.append(measuring)
        return measuring.header, _reported(map(measuring.measured, reader), reader.header.n_questions, progress)

    stream_records(source, target, change)
    return written[0].header, written[0].key


def _reported(records: Iterable[Record], total: int, progress: Progress) -> Iterator[Record]:
    done = 0
    for done, record in enumerate(records, start=1):
        yield record
        if done % 20 == 0:
            progress(done, max(done, total))
    progress(done, done)


# -- Labels ------------------------------------------------------------------------------------------------------------


def label_items(file: RecordFile, key: str, *, judges: Mapping[str, Judge] | None = None) -> RecordFile:
    """Compare the fields of every answer with its reference, each by its judge.

    Of several references that with which the most fields agree counts. A record without a reference keeps no label.

    Raises:
        UsageError: The items are not JSON fields, no record has a reference, or a reference is not JSON; the record is
            named.
    """
    spec = spec_of_key(file.header, key)
    if spec.kind != "json":
        raise UsageError(
            f"items of kind {spec.kind!r} have no reference to compare with; label them by hand: calibrate label "
            f"{file.typed} --items {spec.kind} --labels FILE"
        )
    if not any(record.references for record in file.records):
        raise UsageError(f"no record of {file.path} has a reference. Label by hand: --items json --labels FILE")
    records = tuple(_with_labels(record, key, _compared(record, key, spec, judges)) for record in file.records)
    correctness = CorrectnessSpec(name=REFERENCE, version=1, params=dict(spec.support.params))
    return _labelled(file, key, records, correctness)


def _compared(record: Record, key: str, spec: ItemsSpec, judges: Mapping[str, Judge] | None) -> ItemLabels | None:
    if key not in record.items or not record.references:
        return None
    assert record.drawn is not None, "only answers have items"
    assert record.drawn.primary is not None, "only answers have items"
    best: ItemLabels | None = None
    for reference in record.references:
        try:
            comparison = compare_with_gold(record.drawn.primary, reference, spec, judges=judges)
        except UsageError as error:
            raise UsageError(f"record {record.id!r}: {error}") from error
        labels = ItemLabels(right=comparison.right, missed=comparison.missed, n_reference=comparison.n_reference)
        if best is None or labels.right.count(True) > best.right.count(True):
            best = labels
    return best


def _with_labels(record: Record, key: str, labels: ItemLabels | None) -> Record:
    others = {name: value for name, value in record.item_labels.items() if name != key}
    return record.model_copy(update={"item_labels": others if labels is None else {**others, key: labels}})


def _labelled(file: RecordFile, key: str, records: tuple[Record, ...], spec: CorrectnessSpec) -> RecordFile:
    header = file.header.model_copy(update={"item_correctness": {**file.header.item_correctness, key: spec}})
    return RecordFile(file.path, header, records, file.torn)


def labels_of_file(file: RecordFile, key: str, path: Path, cut: float | None = None) -> RecordFile:
    """`labels_by_hand` from the rows of a file.

    Raises:
        RecordError: The file cannot be read.
        UsageError: As `labels_by_hand`.
    """
    try:
        rows = [row.values for row in read_rows(path)]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    return labels_by_hand(file, key, rows, path.name, digest, cut)


def labels_by_hand(
    file: RecordFile,
    key: str,
    rows: Iterable[Mapping[str, Any]],
    name: str,
    sha256: str,
    cut: float | None = None,
) -> RecordFile:
    """Labels that people gave to items, as rows ``{"id": ..., "items": {"/total": true, ...}}``.

    A key is the path of a field, or the number of a sentence from 1. null means that a person could not decide, which
    counts as wrong. An answer without a row is not labelled; a row
    labels every item.

    Args:
        file: The records.
        key: Key of the items.
        rows: The labels.
        name: Name of their file.
        sha256: Hash of its content.
        cut: The largest uncertainty of an item that people were asked about, fixed before labelling; the file remembers
            it. None: they were asked about all.

    Raises:
        UsageError: A label of a record or part that does not exist, or an item without a label; both are named.
    """
    ids = {record.id for record in file.records}
    labels_of: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        ident, items = str(row.get("id", "")), row.get("items")
        if ident not in ids:
            raise UsageError(f"{name} labels the record {ident!r}, which is not in {file.path}.")
        if not isinstance(items, Mapping):
            raise UsageError(f'{name}: the labels of {ident!r} must be an object, such as {{"/total": true}}.')
        labels_of[ident] = {**labels_of.get(ident, {}), **items}
    records = tuple(
        _with_labels(record, key, _by_hand(record, key, labels_of.get(record.id), name)) for record in file.records
    )
    check_cut(cut)
    reach = {} if cut is None else {CUT: cut}
    spec = CorrectnessSpec(name=GIVEN, version=1, params={"file": name, "sha256": sha256, **reach})
    return _labelled(file, key, records, spec)


def _by_hand(record: Record, key: str, given: Mapping[str, Any] | None, name: str) -> ItemLabels | None:
    items = record.items.get(key)
    if items is None or given is None:
        return None
    names = item_names(items)
    for place, label in given.items():
        if place not in names:
            raise UsageError(
                f"{name} labels the item {place!r} of {record.id!r}, which has the items {', '.join(names)}."
            )
        if label is not None and not isinstance(label, bool):
            raise UsageError(
                f"{name}: the label of {place!r} of {record.id!r} must be true, false or null, got {json.dumps(label)}."
            )
    if missing := [place for place in names if place not in given]:
        # Leaving the answer out would select: those with a label for every item are the ones that were easy to judge.
        raise UsageError(
            f"{name} labels some items of {record.id!r} and not {', '.join(missing)}. Label every item of an answer; "
            "null stands for one that could not be decided, or lies above the cut."
        )
    return ItemLabels(right=tuple(given[place] for place in names))


def needs_label(part: Item, cut: float | None) -> bool:
    """Whether a person has to judge an item: never one above a cut, or unmeasured, because no threshold keeps it."""
    return cut is None or (part.uncertainty is not None and part.uncertainty <= cut)


def item_names(items: Sequence[Item]) -> list[str]:
    """Names of the items of an answer for people: the path of a field, the number of a sentence from 1."""
    return [part.path if part.path is not None else str(number) for number, part in enumerate(items, start=1)]


# -- Packing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredItems:
    """The labelled answers of a file, as the rules read them.

    Attributes:
        records: The labelled and measured answers, in order.
        columns: Their items as they are stored, with paths and references.
        items: Their items as the gate compares them.
        unlabelled: Measured answers without labels, with all labels right; None if every answer has labels.
        spec: The way they were measured.
        correctness: The rule of the labels.
        n_records: Records looked at.
        n_unmeasured: Answers that could not be measured. They abstain and are left out.
        n_unlabelled: Measured answers without labels.
        n_unmeasured_items: Items of the labelled answers that could not be measured.
        n_undecided: Labels of items that could not be decided; those above the cut need none.
    """

    records: RecordTable
    columns: ItemColumns
    items: AnswerItems
    unlabelled: AnswerItems | None
    spec: ItemsSpec
    correctness: CorrectnessSpec
    n_records: int
    n_unmeasured: int
    n_unlabelled: int
    n_unmeasured_items: int
    n_undecided: int


def packed_answers(
    file: RecordFile,
    key: str,
    *,
    part: Sequence[Record] | None = None,
    cap: int | None = None,
    cut: float | None = None,
) -> MeasuredItems:
    """The labelled answers of a file with their items.

    Args:
        file: Records with items and labels.
        key: Key of the items.
        part: These records only; default: all.
        cap: Another cap than that of the items.
        cut: Items above it are never kept and need no label; default: that of the labels, if people were asked up to
            one.

    Raises:
        UsageError: The file has no labels of items, no answer has both items and labels, or the labels end below the
            cut.
    """
    header = file.header
    if key not in header.item_correctness:
        kind = key.removeprefix("items_")
        raise UsageError(f"the items of {file.path} have no labels. Run: calibrate label {file.typed} --items {kind}")
    cut = labelled_to(file, key) if cut is None else cut
    refuse_unlabelled(file, key, cut)
    spec = spec_of_key(header, key)
    spec = spec if cap is None else spec.model_copy(update={"cap": cap})
    used = table_of(file.records if part is None else part)
    everything = used.items(key)
    labelled = everything.labelled
    if not labelled.any():
        raise UsageError(f"no record of {file.path} has both items and their labels.")
    records, columns = used.take(labelled), everything.take(labelled)
    waiting = used.take(everything.measured & ~labelled)
    # 1 is a right item, and all else, also an undecided one, is wrong.
    wrong = lists_of(columns.labels, columns.right != 1)
    return MeasuredItems(
        records=records,
        columns=columns,
        items=AnswerItems.of(
            lists_of(columns.size, columns.uncertainty), wrong, cap=spec.cap, ids=list(records.ids), cut=cut
        ),
        unlabelled=without_labels(waiting, key, spec.cap, cut) if waiting else None,
        spec=spec,
        correctness=header.item_correctness[key],
        n_records=len(used),
        n_unmeasured=int((~everything.measured).sum()),
        n_unlabelled=len(waiting),
        n_unmeasured_items=int(np.isnan(columns.uncertainty).sum()),
        n_undecided=int(((columns.right < 0) & (columns.uncertainty <= (np.inf if cut is None else cut))).sum()),
    )


def labelled_to(file: RecordFile, key: str) -> float | None:
    """The cut up to which people were asked about the items of a file; None if its labels have none."""
    spec = file.header.item_correctness.get(key)
    return None if spec is None else spec.params.get(CUT)


def refuse_unlabelled(file: RecordFile, key: str, limit: float | None) -> None:
    """Refuse a cut or a threshold above that up to which people were asked: items between would count as wrong.

    Raises:
        UsageError: Both are named.
    """
    end = labelled_to(file, key)
    if end is not None and limit is not None and limit > end:
        raise UsageError(
            f"the items of {file.path} are labelled up to the cut of {end:g}, and items up to {limit:g} are "
            "used here. Label those between as well."
        )


def without_labels(records: Sequence[Record], key: str, cap: int, cut: float | None) -> AnswerItems:
    """The measured answers as if every item were right: for what does not read labels."""
    table = table_of(records)
    columns = table.items(key)
    ids = list(table.take(columns.measured).ids)
    uncertainties = lists_of(columns.size[columns.measured], columns.uncertainty)
    return AnswerItems.of(uncertainties, [some < 0 for some in uncertainties], cap=cap, ids=ids, cut=cut)
