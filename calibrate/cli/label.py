"""The command that decides which answers are right: label."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from guardrail.errors import UsageError
from guardrail.notebook import percent

from ..correctness import label_file
from ..correctness.undecided import undecided, with_decided
from ..data.labels import apply_labels, queue_of, read_labels
from ..data.progress import bar, silent
from ..data.records import GIVEN, Record, RecordFile, read_records, rewrite_records
from ..data.table import table_of
from ..report.facts import describe_spec
from ..scoring.names import key_of
from .frame.app import command
from .frame.files import keep_inputs, one_file
from .frame.flags import load_settings, with_flags
from .frame.items import label_by_items
from .frame.labels import print_label_checks, print_labels, print_structured, rule_from
from .frame.next_commands import listed, next_step
from .frame.options import RecordsArgument, RewriteOption, refuse_with_items
from .frame.people import Labelling, ask_people
from .frame.terminal import console, finish, print_line


@command("label", "calibrating.md#label")
@with_flags(Labelling)
def label(*, records: RecordsArgument, out: RewriteOption = None, given: dict[str, Any]) -> None:
    """Decide which primary answers are right, by a rule that is stored with the threshold.

    Example: calibrate label records.jsonl --rule "token_f1(threshold=0.5)"
    Example: calibrate label records.jsonl --undecided --interactive

    Read some of the labels: "at most 10 % wrong" will mean wrong by this rule.
    """
    labelling = load_settings(Labelling, None, given)
    _refuse_options(labelling)
    source, target = one_file(records, out)
    labels = labelling.labels_for(source)
    keep_inputs([labels], [target, source])
    if labelling.undecided:
        file = read_records(source)
        if not undecided(file):
            print_line(f"Every answer of {file.path} has a label: nothing is undecided.")
            finish([], next_step(file.header, source))
            return
    if labelling.asks and labels is not None:
        file = read_records(source)
        all_labelled = ask_people(file, _queue(file, labelling), labelling, labels)
        if not all_labelled:  # the labels so far are on file, and the way on is printed
            return
    if labelling.items:
        label_by_items(source, target, labels)
        finish([target], f"calibrate fit {listed([target])} --items --alpha 0.1")
    else:
        labelled = rewrite_records(source, target, partial(_labelled, labels=labels, labelling=labelling))
        _conclude(labelled, target, labelling)


def _refuse_options(labelling: Labelling) -> None:
    """Refuse options that exclude each other, or that miss one."""
    by_rule = labelling.rule is not None or labelling.judge_model is not None
    from_file = labelling.labels is not None
    if labelling.items:
        refuse_with_items(
            rule=labelling.rule, judge_model=labelling.judge_model, undecided=labelling.undecided, limit=labelling.limit
        )
    if (by_rule and (labelling.asks or from_file)) or (labelling.interactive and labelling.review_store is not None):
        raise UsageError(
            "--labels, --interactive, --review-store and a rule exclude each other: give labels, or how to make them"
        )
    if labelling.undecided and not (by_rule or labelling.asks or from_file):
        raise UsageError("--undecided needs who decides: --interactive, --review-store, --labels or --judge-model.")


def _queue(file: RecordFile, labelling: Labelling) -> list[Record]:
    """The records that people are asked about, in order."""
    if labelling.items:
        return [record for record in queue_of(file.records) if record.items is not None]
    if labelling.undecided:
        return _surest_first(undecided(file), file)[: labelling.limit]
    if file.header.scope.is_drawn:  # in random order already
        return queue_of(file.records[: labelling.limit], shuffled=False)
    return queue_of(file.records, limit=labelling.limit)


def _surest_first(records: Sequence[Record], file: RecordFile) -> list[Record]:
    """Records in the order of a score, in which a threshold accepts them; in random order without such scores."""
    try:
        key = key_of(file)
    except UsageError:
        return queue_of(records)
    if key not in file.header.estimators:
        return queue_of(records)
    # NaN, the unmeasured ones, last: no threshold ever accepts them.
    return [records[index] for index in np.argsort(table_of(records).scores(key), kind="stable")]


def _labelled(file: RecordFile, *, labels: Path | None, labelling: Labelling) -> RecordFile:
    """The file with labels of people, or by a rule; of all answers, or of those that a rule left undecided."""
    if not labelling.undecided:
        if labels is None:
            return _by_rule(file, labelling)
        by_people = _by_people(file, labels)
        _print_agreement(file, by_people.records)
        return by_people
    if labels is not None:
        return with_decided(file, _by_people(file, labels), "people")
    decided = _by_rule(replace(file, records=table_of(undecided(file))), labelling)
    rule = decided.header.correctness
    assert rule is not None, "a rule that labels names itself"
    return with_decided(file, decided, describe_spec(rule.name, rule.params))


def _by_people(file: RecordFile, path: Path) -> RecordFile:
    labels = read_labels(path)
    header = file.header.model_copy(update={"correctness": labels.spec})
    return replace(file, header=header, records=table_of(apply_labels(file.records, labels)))


def _print_agreement(file: RecordFile, labelled: Sequence[Record]) -> None:
    """Print how often people agree with the rule that labelled the file before, if one did."""
    spec = file.header.correctness
    pairs = [
        (before.correct, after.correct)
        for before, after in zip(file.records, labelled, strict=True)
        if before.correct is not None and after.correct is not None
    ]
    if spec is not None and spec.name != GIVEN and pairs:
        same = sum(before == after for before, after in pairs)
        print_line(
            f"People agree with rule {spec.name} on {same} of {len(pairs)} answers ({percent(same / len(pairs))})."
        )


def _by_rule(file: RecordFile, labelling: Labelling) -> RecordFile:
    rule = rule_from(file, labelling.rule, labelling.judge_model)
    with bar(console, "judging", "answers") if labelling.judge_model is not None else nullcontext(silent) as progress:
        return label_file(file, rule, progress)


def _conclude(labelled: RecordFile, target: Path, labelling: Labelling) -> None:
    """Say how many labels there are, which look broken, and the next command."""
    following = next_step(labelled.header, target)
    by_rule = not (labelling.asks or labelling.labels)
    print_labels(labelled)
    print_structured(labelled)
    if by_rule:
        print_label_checks(labelled)
    if by_rule and not any(record.references for record in labelled.records):
        following = f"calibrate label {listed([target])} --interactive, as there are no references"
    elif (by_rule or labelling.undecided) and labelled.records.undecided().any():
        following = f"calibrate label {listed([target])} --undecided --interactive; or go on without: {following}"
    finish([target], following)
