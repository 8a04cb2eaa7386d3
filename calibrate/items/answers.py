"""Records with items: how answers are split, measured and labelled, and what the rules read of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from guardrail.errors import RecordError, UsageError
from guardrail.items.item import Item
from guardrail.items.json_fields import (
    ABSENT,
    OtherDocument,
    document_of,
    field_judges,
    json_spec,
    leaves,
    reference_document,
)
from guardrail.items.measure import ItemsMeasure, call_of, items_estimator, items_measure, measured_items
from guardrail.items.paths import leaf_fields, schema_of
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.judges.base import Judge
from guardrail.specs import CorrectnessSpec
from guardrail.types import Bindings, Missing, Sample, SamplingPlan
from guardrail.uncertainty import Estimator, unmet_needs

from ..data.progress import Progress, silent
from ..data.record import ItemLabels
from ..data.records import GIVEN, Record, RecordFile
from ..data.rows import read_rows
from ..rules.items import check_cap

REFERENCE = "item_reference"
"""Name of the label rule that compares JSON fields with a reference, each by its judge."""
MOST_PATHS = 30
"""Most paths of fields that an error lists."""
MANY = 300
"""Answers from which on the cap is the 90th percentile of their numbers of items; below, it is the median."""


# -- How answers are split ---------------------------------------------------------------------------------------------


def stored_spec(file: RecordFile) -> ItemsSpec:
    """The specification that the items of a file were measured with.

    Raises:
        UsageError: The file has no items.
    """
    if ITEMS not in file.header.estimators:
        raise UsageError(f"{file.path} has no items. Run: calibrate score {file.typed} --items")
    return ItemsSpec.model_validate(file.header.estimators[ITEMS].params)


def cap_of_counts(counts: Sequence[int]) -> int:
    """The cap of answers without a schema: the 90th percentile of their numbers of items, the median of fewer than 300.

    No label plays a part. A larger cap needs more answers for a certificate; items beyond it are held back.

    Raises:
        UsageError: The answer is missing.
    """
    if not counts:
        raise UsageError("no answer could be split, so the cap is unknown. Give it with --cap.")
    return max(1, int(np.quantile(counts, 0.9 if len(counts) >= MANY else 0.5, method="higher")))


def spec_of_answers(
    records: Sequence[Record],
    bindings: Bindings | None,
    *,
    cap: int | None = None,
    schema: Mapping[str, Any] | None = None,
    **options: Any,
) -> ItemsSpec:
    """The specification of the items of these answers.

    Args:
        records: Answers, whose labels play no part.
        bindings: The plan's tools and answer format.
        cap: Most items that are ever kept; default: that of the schema, or `cap_of_counts` of these answers where it
            has none.
        schema: The JSON schema of the answers; default: that of the bindings.
        **options: ``judges``, ``keys`` and ``optional`` of `guardrail.items.json_fields.json_spec`.

    Raises:
        UsageError: A path of a judge, a key field or an optional field is that of no field, or the cap is below 1.
    """
    schema = schema or schema_of(bindings)
    make = partial(json_spec, schema=schema, **options)
    if cap is not None:
        check_cap(cap)
        spec = make(cap=cap)
    elif schema is not None and leaf_fields(schema, options.get("keys")).most is not None:
        spec = make()
    else:
        measure = items_measure(make(cap=1))
        split = [measure.items(record.drawn) for record in records if record.drawn is not None]
        spec = make(cap=cap_of_counts([len(items) for items in split if not isinstance(items, Missing)]))
    _refuse_unknown_paths(spec, records, schema)
    return spec


def _refuse_unknown_paths(spec: ItemsSpec, records: Sequence[Record], schema: Mapping[str, Any] | None) -> None:
    """Refuse paths that no field has, in the schema, an answer, a sample or a reference.

    A judge there would never be asked, and an optional field there would be a right item of every answer.
    """
    known = set() if schema is None else set(leaf_fields(schema, spec.keys).paths)
    waiting = dict.fromkeys(spec.keys, "a key field") | dict.fromkeys(spec.optional, "an optional field")
    waiting |= dict.fromkeys(spec.judges, "a judge")

    def is_known(path: str) -> bool:
        # Key fields and optional fields may be objects or lists, which are known by the fields inside.
        inside = path not in spec.judges and any(each.startswith(f"{path}/") for each in known)
        return path in known or inside

    for record in (None, *records):
        if record is not None:
            known |= _field_paths(record, spec)
        waiting = {path: what for path, what in waiting.items() if not is_known(path)}
        if not waiting:
            return
    path, what = next(iter(waiting.items()))
    fields = ", ".join(sorted(known)[:MOST_PATHS]) + (", ..." if len(known) > MOST_PATHS else "")
    raise UsageError(
        f"{what} is named for {path!r}, and no answer, sample or reference has that field. Fields: "
        f"{fields or 'none'}. Write the path as it is listed: '*' stands for any entry of a list, and a list of "
        "objects is one field unless a key field is named for it."
    )


def _field_paths(record: Record, spec: ItemsSpec) -> set[str]:
    """Paths of the fields in the answer, the samples and the references of a record, where these can be read."""
    drawn = record.drawn
    if drawn is None or drawn.primary is None:
        return set()
    call = call_of(drawn.primary)
    paths = set[str]()
    read = [
        *(partial(document_of, answer, call) for answer in (drawn.primary, *drawn.samples)),
        *(partial(_gold, reference, call) for reference in record.references),
    ]
    for document in read:
        try:
            paths |= {leaf.pattern for leaf in leaves(document(), spec, {}) if leaf.value is not ABSENT}
        except ValueError:
            continue
    return paths


def _gold(reference: str, call: str | None) -> Any:
    return reference_document(reference, call)[0]


# -- Measuring ---------------------------------------------------------------------------------------------------------


def measure_records(file: RecordFile, measure: ItemsMeasure, *, progress: Progress = silent) -> RecordFile:
    """The file with its items; labels of the same items stay.

    Raises:
        UsageError: The file lacks what the support reads.
    """
    header, estimator = file.header, items_estimator(measure)
    if unmet := unmet_needs(estimator, header.plan):
        raise UsageError(f"items cannot be measured from these records: {': '.join(unmet[0])}.")
    # Labels belong to items: of another split they may label another item.
    labels = header.item_correctness if header.estimators.get(ITEMS) == estimator.spec else None
    records = []
    for done, record in enumerate(file.records, start=1):
        records.append(_measured(record, estimator, header.plan, labelled=labels is not None))
        progress(done, len(file.records))
    update = {"estimators": {**header.estimators, ITEMS: estimator.spec}, "item_correctness": labels}
    return RecordFile(file.path, header.model_copy(update=update), tuple(records))


def _measured(record: Record, estimator: Estimator, plan: SamplingPlan, *, labelled: bool) -> Record:
    if record.drawn is None:
        return record
    score, items = measured_items(record.drawn, estimator, plan)
    same = labelled and _places(items) == _places(record.items or ())
    return record.model_copy(
        update={
            "scores": {**record.scores, ITEMS: score},
            "items": items or None,
            "item_labels": record.item_labels if same else None,
        }
    )


def _places(items: Sequence[Item]) -> list[tuple[str, str]]:
    return [(item.path, item.text) for item in items]


# -- Labels ------------------------------------------------------------------------------------------------------------


def label_items(file: RecordFile) -> RecordFile:
    """Compare the fields of every answer with its reference, each by its judge.

    Of several references that with which the most fields agree counts. A record without a reference keeps no label.

    Raises:
        UsageError: The file has no items, no record has a reference, or a reference is not JSON; the record is named.
    """
    spec = stored_spec(file)
    if not any(record.references for record in file.records):
        raise UsageError(f"no record of {file.path} has a reference. Label by hand: --items --labels FILE")
    records = [record.model_copy(update={"item_labels": _compared(record, spec)}) for record in file.records]
    return _labelled(file, records, REFERENCE, {"judges": spec.model_dump(mode="json")["judges"]})


def _compared(record: Record, spec: ItemsSpec) -> ItemLabels | None:
    if record.items is None or not record.references:
        return None
    assert record.drawn is not None, "only answers have items"
    assert record.drawn.primary is not None, "only answers have items"
    best: ItemLabels | None = None
    for reference in record.references:
        try:
            labels = compare_with_gold(record.drawn.primary, reference, spec)
        except UsageError as error:
            raise UsageError(f"record {record.id!r}: {error}") from error
        if best is None or labels.right.count(True) > best.right.count(True):
            best = labels
    return best


def compare_with_gold(
    answer: Sample, reference: str, spec: ItemsSpec, *, judges: Mapping[str, Judge] | None = None
) -> ItemLabels:
    """Compare the fields of an answer with a reference, each by its judge.

    A value is right if the reference has the same one at its path, the j-th of equal entries of a list if the reference
    has at least j of them, an absent field if the reference lacks it.

    Args:
        answer: The primary answer, which has items.
        reference: JSON of the right document. For a tool call the arguments, or the call with its name; the call of
            another tool makes every item wrong.
        spec: The items.
        judges: As in `items_measure`.

    Raises:
        UsageError: The reference is not JSON, or has more than `MOST_ITEMS` values.
        ValueError: The answer has no items.
    """
    by_path = field_judges(spec, judges)
    call = call_of(answer)
    document = document_of(answer, call)
    answer_leaves = leaves(document, spec, by_path)
    try:
        gold, tool = reference_document(reference, call)
    except ValueError as error:
        raise UsageError(f"the reference is not a JSON document ({error}): {reference[:80]!r}") from error
    if tool is not None and tool != call:
        return ItemLabels(right=(False,) * len(answer_leaves), n_reference=0)
    theirs = [leaf for leaf in leaves(gold, spec, by_path) if leaf.value is not ABSENT]
    expected = OtherDocument(gold, by_path)
    return ItemLabels(right=tuple(expected.supports(leaf) for leaf in answer_leaves), n_reference=len(theirs))


def _labelled(file: RecordFile, records: Sequence[Record], name: str, params: Mapping[str, Any]) -> RecordFile:
    spec = CorrectnessSpec(name=name, version=1, params=dict(params))
    header = file.header.model_copy(update={"item_correctness": spec})
    return RecordFile(file.path, header, tuple(records))


def labels_of_file(file: RecordFile, path: Path) -> RecordFile:
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
    return labels_by_hand(file, rows, path.name, digest)


def labels_by_hand(file: RecordFile, rows: Iterable[Mapping[str, Any]], name: str, sha256: str) -> RecordFile:
    """Labels that people gave to items, as rows ``{"id": ..., "items": {"/total": true, ...}}``.

    A key is the path of a field. null means that nobody decided, which counts as wrong. An answer without a row is not
    labelled; a row labels every item. ``judged`` is the answer that was judged: a row of another answer is not read.

    Args:
        file: The records.
        rows: The labels.
        name: Name of their file.
        sha256: Hash of its content.

    Raises:
        UsageError: The file has no items, or a label of a record or item that does not exist, or an item without a
            label; both are named.
    """
    stored_spec(file)
    answers = {record.id: record.answer or "" for record in file.records}
    labels_of: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        ident, items = str(row.get("id", "")), row.get("items")
        if ident not in answers:
            raise UsageError(f"{name} labels the record {ident!r}, which is not in {file.path}.")
        if not isinstance(items, Mapping):
            raise UsageError(f'{name}: the labels of {ident!r} must be an object, such as {{"/total": true}}.')
        if row.get("judged") in (None, answers[ident]):  # of another answer, the labels say nothing about this one
            labels_of[ident] = {**labels_of.get(ident, {}), **items}
    records = [
        record.model_copy(update={"item_labels": _by_hand(record, labels_of.get(record.id), name)})
        for record in file.records
    ]
    return _labelled(file, records, GIVEN, {"file": name, "sha256": sha256})


def _by_hand(record: Record, labels: Mapping[str, Any] | None, name: str) -> ItemLabels | None:
    if record.items is None or labels is None:
        return None
    paths = [item.path for item in record.items]
    for path, label in labels.items():
        if path not in paths:
            raise UsageError(
                f"{name} labels the item {path!r} of {record.id!r}, which has the items {', '.join(paths)}."
            )
        if label is not None and not isinstance(label, bool):
            raise UsageError(
                f"{name}: the label of {path!r} of {record.id!r} must be true, false or null, got {json.dumps(label)}."
            )
    if missing := [path for path in paths if path not in labels]:
        # Leaving the answer out would select: those with a label for every item are the ones that were easy to judge.
        raise UsageError(
            f"{name} labels some items of {record.id!r} and not {', '.join(missing)}. Label every item of an answer; "
            "null stands for one that nobody decided, and counts as wrong."
        )
    return ItemLabels(right=tuple(labels[path] for path in paths))
