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
from ..data.labels import apply_labels, queue_of, read_labels
from ..data.progress import bar, silent
from ..data.records import GIVEN, Record, RecordFile, read_records, rewrite_records
from ..data.table import table_of
from ..report.facts import describe_spec
from ..scoring.names import key_of
from .frame.app import command
from .frame.files import keep_inputs, one_file
from .frame.flags import load_settings, with_flags
from .frame.items import label_by_items, refuse_with_items
from .frame.labels import print_label_checks, print_labels, print_structured, rule_from
from .frame.next_commands import listed, next_step
from .frame.options import RecordsArgument, RewriteOption
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
    how = load_settings(Labelling, None, given)
    _refuse_options(how)
    source, target = one_file(records, out)
    people = how.labels
    if how.asks and people is None:
        people = source.with_name(f"{source.stem}.labels.jsonl")
    keep_inputs([people], [target, source])
    if how.undecided and not _undecided(file := read_records(source)):
        print_line(f"Every answer of {file.path} has a label: nothing is undecided.")
        finish([], next_step(file.header, source))
        return
    if how.asks and people is not None:
        file = read_records(source)
        if not ask_people(file, _queue(file, how), how, people):
            return
    if how.items:
        label_by_items(source, target, people)
        finish([target], f"calibrate fit {listed([target])} --items --alpha 0.1")
        return
    _conclude(rewrite_records(source, target, partial(_labelled, people=people, how=how)), target, how)


def _refuse_options(how: Labelling) -> None:
    """Refuse options that exclude each other, or that miss one."""
    by_rule = how.rule is not None or how.judge_model is not None
    from_file = how.labels is not None
    if how.items:
        refuse_with_items(rule=how.rule, judge_model=how.judge_model, undecided=how.undecided, limit=how.limit)
    if (by_rule and (how.asks or from_file)) or (how.interactive and how.review_store is not None):
        raise UsageError(
            "--labels, --interactive, --review-store and a rule exclude each other: give labels, or how to make them"
        )
    if how.undecided and not (by_rule or how.asks or from_file):
        raise UsageError("--undecided needs who decides: --interactive, --review-store, --labels or --judge-model.")


def _queue(file: RecordFile, how: Labelling) -> list[Record]:
    """The records that people are asked about, in order."""
    if how.items:
        return [record for record in queue_of(file.records) if record.items is not None]
    if how.undecided:
        return _surest_first(_undecided(file), file)[: how.limit]
    if file.header.scope.is_drawn:  # in random order already
        return queue_of(file.records[: how.limit], shuffled=False)
    return queue_of(file.records, limit=how.limit)


def _labelled(file: RecordFile, *, people: Path | None, how: Labelling) -> RecordFile:
    """The file with labels of people, or by a rule; of all answers, or of those that a rule left undecided."""
    if people is None:
        asked = replace(file, records=table_of(_undecided(file))) if how.undecided else file
        decided = _by_rule(asked, how)
    else:
        decided = _by_people(file, people)
    if how.undecided:
        return _with_decided(file, decided)
    if people is not None:
        _print_agreement(file, decided.records)
    return decided


def _by_people(file: RecordFile, people: Path) -> RecordFile:
    human = read_labels(people)
    labelled = apply_labels(file.records, human)
    header = file.header.model_copy(update={"correctness": human.spec})
    return replace(file, header=header, records=table_of(labelled))


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


def _by_rule(file: RecordFile, how: Labelling) -> RecordFile:
    rule = rule_from(file, how.rule, how.judge_model)
    with bar(console, "judging", "answers") if how.judge_model is not None else nullcontext(silent) as progress:
        return label_file(file, rule, progress)


def _conclude(labelled: RecordFile, target: Path, how: Labelling) -> None:
    """Say how many labels there are, which look broken, and the next command."""
    following, by_rule = next_step(labelled.header, target), not (how.asks or how.labels)
    print_labels(labelled)
    print_structured(labelled)
    if by_rule:
        print_label_checks(labelled)
    if by_rule and not any(record.references for record in labelled.records):
        following = f"calibrate label {listed([target])} --interactive, as there are no references"
    elif (by_rule or how.undecided) and labelled.records.undecided().any():
        following = f"calibrate label {listed([target])} --undecided --interactive; or go on without: {following}"
    finish([target], following)


# -- What a rule left undecided ----------------------------------------------------------------------------------------


def _undecided(file: RecordFile) -> list[Record]:
    """The answers that a rule left without a label.

    Raises:
        UsageError: No rule has labelled the file.
    """
    spec = file.header.correctness
    if spec is None or spec.name == GIVEN:
        raise UsageError(f"{file.path} has no labels by a rule. Run first: calibrate label {file.typed} --rule stated")
    return [record for record in file.records if record.correct is None and record.answer is not None]


def _surest_first(records: Sequence[Record], file: RecordFile) -> list[Record]:
    """Records in the order of a score, in which a threshold accepts them; in random order if none is meant."""
    try:
        key = key_of(file)
    except UsageError:
        return queue_of(records)
    if key not in file.header.estimators:
        return queue_of(records)
    # NaN, the unmeasured ones, last: no threshold ever accepts them.
    return [records[place] for place in np.argsort(table_of(records).scores(key), kind="stable")]


def _with_decided(file: RecordFile, decided: RecordFile) -> RecordFile:
    """The file with the labels of the answers that were undecided; all others keep theirs.

    Until they are decided these answers count as wrong, and a label only takes errors away. The threshold of rule
    "certified" can then only grow, up to that of all labels. Its walk tests the same thresholds in the
    same order, so that the last certificate fails if any on the way did: stopping at any of them is the same fit.
    """
    spec, own = file.header.correctness, decided.header.correctness
    assert spec is not None, "a rule labelled the file"
    assert own is not None, "what labelled names itself"
    by = "people" if own.name == GIVEN else describe_spec(own.name, own.params)
    undecided = {record.id for record in _undecided(file)}
    # A skipped answer keeps no label, but from now on its detail says that a person looked at it.
    read = [record for record in decided.records if record.correct is not None or record.label_detail]
    labelled = {record.id: record for record in read if record.id in undecided}
    earlier = spec.params.get("undecided", f"by {by}")
    deciders = earlier if str(earlier).endswith(f"by {by}") else f"{earlier}, by {by}"
    correctness = spec.model_copy(update={"params": {**spec.params, "undecided": deciders}})
    header = file.header.model_copy(update={"correctness": correctness})
    return RecordFile(file.path, header, tuple(labelled.get(record.id, record) for record in file.records))
