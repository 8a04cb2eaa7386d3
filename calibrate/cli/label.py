"""The command that decides which answers are right: label."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from guardrail.errors import UsageError
from guardrail.notebook import percent

from ..correctness import available_rules, label_file
from ..data.labels import apply_labels, queue_of, read_labels
from ..data.progress import bar, silent
from ..data.records import GIVEN, Record, RecordFile, read_records, rewrite_records
from ..data.table import table_of
from ..report.facts import describe_spec
from ..scoring.names import key_of
from .frame.app import command
from .frame.files import keep_inputs, one_file
from .frame.items import label_by_items, refuse_with_items
from .frame.labels import print_label_checks, print_labels, print_structured, rule_from
from .frame.next_commands import listed, next_step
from .frame.options import ItemsOption, RecordsArgument, RewriteOption, flags_under
from .frame.people import People, ask_people
from .frame.terminal import console, finish, print_line

rule_flag, people_flag = flags_under("By a rule"), flags_under("By people")


@dataclass(frozen=True, slots=True)
class _Options:
    """The flags that say who decides, and about which answers."""

    rule: str | None
    judge_model: str | None
    labels: Path | None
    interactive: bool
    review_store: str | None
    undecided: bool
    limit: int | None

    def check(self) -> None:
        """Refuse flags that exclude each other."""
        if sum((self.by_rule, self.interactive, self.review_store is not None)) > 1 or (
            self.by_rule and self.labels is not None
        ):
            raise UsageError(
                "--labels, --interactive, --review-store and a rule exclude each other: give labels, or how to make "
                "them"
            )
        if self.undecided and not (self.by_rule or self.collects or self.labels is not None):
            raise UsageError("--undecided needs who decides: --interactive, --review-store, --labels or --judge-model.")

    @property
    def by_rule(self) -> bool:
        """Whether a rule labels."""
        return self.rule is not None or self.judge_model is not None

    @property
    def collects(self) -> bool:
        """Whether this command asks people, so that the file of their labels may not exist yet."""
        return self.interactive or self.review_store is not None

    def labels_of(self, records: Path) -> Path | None:
        """The file of people's labels; None if a rule labels."""
        if self.labels is None and self.collects:
            return records.with_name(f"{records.stem}.labels.jsonl")
        return self.labels


@command("label", "calibrating.md#label")
def label(
    records: RecordsArgument,
    out: RewriteOption = None,
    items: ItemsOption = False,
    rule: Annotated[
        str | None, rule_flag(help=f"{', '.join(available_rules())}, python:MODULE:NAME. Default: by the questions.")
    ] = None,
    judge_model: Annotated[
        str | None, rule_flag(help="Model that judges, as `collect --model`.", metavar="MODEL")
    ] = None,
    undecided: Annotated[bool, rule_flag("--undecided", help="Label what a rule left undecided.")] = False,
    labels: Annotated[Path | None, people_flag(help=".jsonl or .csv with id and correct.")] = None,
    interactive: Annotated[
        bool, people_flag("--interactive", "-i", help="Judge key by key; saved in --labels.")
    ] = False,
    review_store: Annotated[str | None, people_flag(help="Judge on the review page of this store.")] = None,
    limit: Annotated[int | None, people_flag(help="Judge this many and stop.", min=1)] = None,
) -> None:
    """Decide which primary answers are right, by a rule that is stored with the threshold.

    Example: calibrate label records.jsonl --rule "token_f1(threshold=0.5)"
    Example: calibrate label records.jsonl --undecided --interactive

    Read some of the labels: "at most 10 % wrong" will mean wrong by this rule.
    """
    options = _Options(rule, judge_model, labels, interactive, review_store, undecided, limit)
    if items:
        refuse_with_items(rule=options.by_rule, undecided=undecided, limit=limit)
    options.check()
    source, target = one_file(records, out)
    people = options.labels_of(source)
    keep_inputs([people], [target, source])
    if items:
        _label_items(source, target, options, people)
    elif undecided:
        _label_undecided(source, target, options, people)
    else:
        _label_answers(source, target, options, people)


def _label_items(source: Path, target: Path, options: _Options, people: Path | None) -> None:
    """Label items by their references, or as people do."""
    if people is not None and options.collects:
        file = read_records(source)
        queue = [record for record in queue_of(file.records) if record.items is not None]
        if not ask_people(file, queue, People(people, options.review_store, " --items"), by_items=True):
            return
    label_by_items(source, target, people)
    finish([target], f"calibrate fit {listed([target])} --items --alpha 0.1")


def _label_answers(source: Path, target: Path, options: _Options, people: Path | None) -> None:
    """Label every answer, by a rule or as people do."""
    if people is not None and options.collects:
        file = read_records(source)
        drawn = file.header.scope.is_drawn  # in random order already
        queue = queue_of(file.records[: options.limit] if drawn else file.records, shuffled=not drawn)
        if not ask_people(file, queue[: options.limit], People(people, options.review_store)):
            return
    labelled = rewrite_records(source, target, lambda file: _all_labelled(file, options, people))
    _conclude(labelled, target, next_step(labelled.header, target), by_rule=people is None)


def _all_labelled(file: RecordFile, options: _Options, people: Path | None) -> RecordFile:
    """The file with a label of people, or of the rule, for every answer that has one."""
    if people is None:
        return _by_rule(file, options)
    human = read_labels(people)
    labelled = apply_labels(file.records, human)
    _print_agreement(file, labelled)
    header = file.header.model_copy(update={"correctness": human.spec})
    return RecordFile(file.path, header, tuple(labelled), file.torn)


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


def _by_rule(file: RecordFile, options: _Options) -> RecordFile:
    cache = file.path.with_name(f"{file.path.stem}.judge.sqlite")
    rule = rule_from(file, options.rule, judge_model=options.judge_model, cache=cache)
    judged = options.judge_model is not None
    with bar(console, "judging", "answers") if judged else nullcontext(silent) as progress:
        return label_file(file, rule, progress)


def _conclude(labelled: RecordFile, target: Path, following: str, *, by_rule: bool, undecided: bool = False) -> None:
    """Say how many labels there are, which look broken, and the next command."""
    print_labels(labelled)
    print_structured(labelled)
    if by_rule:
        print_label_checks(labelled)
    if by_rule and not any(record.references for record in labelled.records):
        following = f"calibrate label {listed([target])} --interactive, as there are no references"
    elif (by_rule or undecided) and labelled.records.undecided().any():
        following = f"calibrate label {listed([target])} --undecided --interactive; or go on without: {following}"
    finish([target], following)


# -- What a rule left undecided ----------------------------------------------------------------------------------------


def _label_undecided(source: Path, target: Path, options: _Options, people: Path | None) -> None:
    """Label the undecided answers, the most certain first; nothing is written while some miss.

    Until they are decided these answers count as wrong, and a label only takes errors away. The threshold of rule
    "certified" can then only grow, up to that of all labels. Its walk tests the same thresholds in the
    same order, so that the last certificate fails if any on the way did: stopping at any of them is the same fit.
    """
    file = read_records(source)
    undecided = _undecided(file)
    if not undecided:
        print_line(f"Every answer of {file.path} has a label: nothing is undecided.")
        finish([], next_step(file.header, source))
        return
    if people is not None and options.collects:
        queue = _surest_first(undecided, file)[: options.limit]
        if not ask_people(file, queue, People(people, options.review_store, " --undecided")):
            return
    labelled = rewrite_records(source, target, lambda file: _decided(file, options, people))
    _conclude(labelled, target, next_step(labelled.header, target), by_rule=people is None, undecided=True)


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


def _decided(file: RecordFile, options: _Options, people: Path | None) -> RecordFile:
    """The file with labels of the undecided answers: those that people gave so far, or by the rule."""
    undecided, spec = _undecided(file), file.header.correctness
    assert spec is not None, "a file with undecided answers was labelled by a rule"
    if people is None:
        decided = _by_rule(RecordFile(file.path, file.header, undecided), options)
        labelled = {record.id: record for record in decided.records}
        assert decided.header.correctness is not None, "a rule names itself"
        by = describe_spec(decided.header.correctness.name, decided.header.correctness.params)
    else:
        human, by = read_labels(people), "people"
        # A skipped answer keeps no label, but from now on its detail says that a person looked at it.
        names = {record.id for record in undecided if human.key(record) is not None}
        labelled = {record.id: record for record in apply_labels(file.records, human) if record.id in names}
    earlier = spec.params.get("undecided", f"by {by}")
    deciders = earlier if str(earlier).endswith(f"by {by}") else f"{earlier}, by {by}"
    correctness = spec.model_copy(update={"params": {**spec.params, "undecided": deciders}})
    header = file.header.model_copy(update={"correctness": correctness})
    return RecordFile(file.path, header, tuple(labelled.get(record.id, record) for record in file.records), file.torn)
