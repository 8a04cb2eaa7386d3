"""The command that decides which answers are right: label."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import numpy as np
import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError, require
from guardrail.judges import distinct_answers
from guardrail.notebook import percent
from guardrail.plain_json import canonical_json, sha256_hex, visible
from guardrail.prompting import question_text

from ..correctness import available_rules
from ..data.labels import (
    KEYS,
    LabelSession,
    Order,
    Pressed,
    apply_labels,
    open_store,
    queue_of,
    read_labels,
)
from ..data.progress import bar, silent
from ..data.questions import read_rows
from ..data.records import GIVEN, Record, RecordFile, RecordHeader, read_records
from ..items.answers import needs_label, stored_spec
from ..pipeline import FitSettings, fit_artifact
from ..report.sentences import describe_spec
from ..scope import waits_for_label
from ..scoring.scores import key_of, values_of
from .frame.app import command
from .frame.files import changed_file, keep_inputs, one_file
from .frame.items import label_by_items, refuse_with_items, refuse_without_items
from .frame.labels import label_file, print_label_checks, print_labels, print_structured, rule_from
from .frame.next_commands import listed, next_step
from .frame.options import EstimatorOption, ItemsOption, RecordsArgument, chosen_estimator
from .frame.terminal import console, finish, print_line

if TYPE_CHECKING:
    from guardrail.review import Content

__all__ = ["card", "keys", "label", "label_by_hand"]

RULE, PEOPLE, GOAL = "By a rule", "By people", "With --until"


@dataclass(frozen=True, slots=True)
class _ByRule:
    """The rule that labels, or the model that judges; None and None for the default rule."""

    rule: str | None
    judge_model: str | None

    @property
    def is_default(self) -> bool:
        """Whether the user named no rule nor a judge."""
        return (self.rule, self.judge_model) == (None, None)

    def label(self, file: RecordFile, first: int | None) -> RecordFile:
        """Label all records, or the ``first`` ones."""
        rule = rule_from(
            file,
            self.rule,
            judge_model=self.judge_model,
            cache=file.path.with_name(f"{file.path.stem}.judge.jsonl"),
        )
        with bar(console, "judging", "answers") if self.judge_model is not None else nullcontext(silent) as progress:
            return label_file(file, rule, progress, first)


@dataclass(frozen=True, slots=True)
class _ByPeople:
    """Labels of people: a file, filled from this terminal or from the review page."""

    labels: Path | None
    interactive: bool
    review_store: str | None
    undecided: bool
    order: str | None

    def check(self, rule: _ByRule) -> None:
        """Refuse labels of people together with a rule."""
        by_rule, on_page = not rule.is_default, self.review_store is not None
        if sum((by_rule, self.interactive, on_page)) > 1 or (by_rule and self.labels is not None):
            raise UsageError(
                "--labels, --interactive, --review-store and a rule exclude each other: give labels, or how to make "
                "them"
            )
        if self.undecided and not (by_rule or self.interactive or on_page or self.labels is not None):
            raise UsageError("--undecided needs who decides: --interactive, --review-store, --labels or --judge-model.")
        if self.order not in (None, "random", "file", "certain"):
            raise UsageError(f"--order must be random, file or certain, got {self.order!r}")
        if self.order == "certain" and not self.undecided:
            raise UsageError(
                "--order certain is for --undecided: labels of the most certain answers alone fit nothing."
            )

    @property
    def makes_labels(self) -> bool:
        """Whether this command collects the labels, so that their file may not exist yet."""
        return self.interactive or self.review_store is not None

    def path(self, records: Path) -> Path | None:
        """The file of the labels; None if a rule labels."""
        if self.labels is None and self.makes_labels:
            return records.with_name(f"{records.stem}.labels.jsonl")
        return self.labels

    def have_labelled(self, records: Path, labels: Path, first: int | None, goal: str) -> bool:
        """Ask for labels of the ``first`` records (default: all); whether all of them have one."""
        file = read_records(records)
        if self.interactive:
            return _by_hand(file, labels, self.queue(file, first), goal=goal)
        return self.review_store is None or _on_page(file, labels, self.review_store, self.queue(file, first))

    def queue(self, file: RecordFile, first: int | None) -> list[Record]:
        """The records to label, in order. A drawn file is in random order already."""
        drawn = file.header.scope.is_drawn
        default: Order = "file" if drawn else "random"
        order: Order = default if self.order is None else "random" if self.order == "random" else "file"
        records: Sequence[Record] = file.records[:first] if drawn else file.records
        return queue_of(records, order=order, limit=first)

    def have_decided(
        self, file: RecordFile, labels: Path, key: str | None, first: int | None, enough: Callable[[], bool], goal: str
    ) -> bool:
        """Ask for labels of the ``first`` undecided answers (default: all); whether all have one, or it is enough."""
        queue = self._undecided_queue(file, key, first)
        if self.interactive:
            return _by_hand(file, labels, queue, " --undecided", enough, goal)
        return self.review_store is None or _on_page(file, labels, self.review_store, queue, enough)

    def _undecided_queue(self, file: RecordFile, key: str | None, first: int | None) -> list[Record]:
        """The undecided records: by the scores of ``key`` those first that a threshold accepts first."""
        records = _undecided(file)
        if key is None or self.order in ("random", "file"):
            order: Order = "file" if self.order == "file" else "random"
            return queue_of(records, order=order, limit=first)
        # NaN, the unmeasured ones, last: no threshold ever accepts them.
        return [records[place] for place in np.argsort(values_of(records, key), kind="stable")][:first]


@dataclass(frozen=True, slots=True)
class _Goal:
    """The goal at which labelling stops."""

    until: Literal["certified"] | None
    alpha: float | None
    delta: float | None
    acceptance: float | None
    estimator: str | None

    @property
    def flags(self) -> str:
        """The goal as the next command takes it; empty without one."""
        if self.until is None:
            return ""
        values = {"alpha": self.alpha, "delta": self.delta, "acceptance": self.acceptance}
        flags = "".join(f" --{name} {value:g}" for name, value in values.items() if value is not None)
        named = "" if self.estimator is None else f" --score {shlex.quote(self.estimator)}"
        return f" --until {self.until}{flags}{named}"


@dataclass(frozen=True, slots=True)
class _Labelling:
    """A record file, the file its labelled records are written to, the source of the labels, and the goal."""

    source: Path
    target: Path
    rule: _ByRule
    people: _ByPeople
    goal: _Goal

    @property
    def labels(self) -> Path | None:
        """The labels of people; None if a rule labels."""
        return self.people.path(self.source)

    def label(self, first: int | None) -> RecordFile | None:
        """Write the labelled file and return it; None, and nothing is written, while labels of people are missing."""
        if self.labels is not None and not self.people.have_labelled(self.source, self.labels, first, self.goal.flags):
            return None
        return changed_file(self.source, self.target, partial(self._with_labels, first=first))

    def _with_labels(self, file: RecordFile, first: int | None) -> RecordFile:
        """Label the file: with all labels of people, or the ``first`` records by the rule."""
        if self.labels is None:
            return self.rule.label(file, first)
        human = read_labels(self.labels)
        header = file.header.model_copy(update={"correctness": human.spec})
        return RecordFile(file.path, header, tuple(apply_labels(file.records, human)), file.torn)

    def with_undecided(self, file: RecordFile) -> RecordFile:
        """Label the undecided answers: with the labels of people there are, or by the rule."""
        undecided, spec = _undecided(file), file.header.correctness
        assert spec is not None, "a file with undecided answers was labelled by a rule"
        started = self.labels is not None and self.labels.is_file() and self.labels.stat().st_size > 0
        if self.people.makes_labels and not started:
            return file
        if self.labels is None:
            decided = self.rule.label(RecordFile(file.path, file.header, undecided), None)
            labelled = {record.id: record for record in decided.records}
            assert decided.header.correctness is not None, "a rule names itself"
            by = describe_spec(decided.header.correctness.name, decided.header.correctness.params)
        else:
            human, by = read_labels(self.labels), "people"
            # A skipped answer keeps no label, but from now on its detail says that a person looked at it.
            names = {record.id for record in undecided} & (human.correct.keys() | human.skipped)
            labelled = {record.id: record for record in apply_labels(file.records, human) if record.id in names}
        earlier = spec.params.get("undecided", f"by {by}")
        deciders = earlier if str(earlier).endswith(f"by {by}") else f"{earlier}, by {by}"
        params = {**spec.params, "undecided": deciders}
        header = file.header.model_copy(update={"correctness": spec.model_copy(update={"params": params})})
        records = tuple(labelled.get(record.id, record) for record in file.records)
        return RecordFile(file.path, header, records, file.torn)


def _undecided(file: RecordFile) -> list[Record]:
    """The answers that a rule left without a label.

    Raises:
        UsageError: No rule has labelled the file.
    """
    spec = file.header.correctness
    if spec is None or spec.name == GIVEN:
        raise UsageError(f"{file.path} has no labels by a rule. Run first: calibrate label {file.typed} --rule stated")
    return [record for record in file.records if record.correct is None and record.answer is not None]


@command("label", "calibrating.md#label")
def label(
    records: RecordsArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Default: the record file itself.", show_default=False)
    ] = None,
    items: ItemsOption = False,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(available_rules())}, python:MODULE:NAME. Default: by the questions.",
            rich_help_panel=RULE,
        ),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="Model that judges, as `collect --model`.", rich_help_panel=RULE, metavar="MODEL")
    ] = None,
    undecided: Annotated[
        bool, typer.Option("--undecided", help="Label what a rule left undecided.", rich_help_panel=RULE)
    ] = False,
    labels: Annotated[
        Path | None, typer.Option(help=".jsonl or .csv with id and correct.", rich_help_panel=PEOPLE)
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Judge key by key; saved in --labels.", rich_help_panel=PEOPLE)
    ] = False,
    review_store: Annotated[
        str | None, typer.Option(help="Judge on the review page of this store.", rich_help_panel=PEOPLE)
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="random, file or certain (most certain first).", rich_help_panel=PEOPLE, metavar="ORDER"),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Judge this many and stop.", min=1, rich_help_panel=PEOPLE)] = None,
    cut: Annotated[
        float | None, typer.Option(help="Items above this uncertainty need no label.", rich_help_panel=PEOPLE)
    ] = None,
    until: Annotated[
        Literal["certified"] | None,
        typer.Option(help="Stop when --acceptance is certified.", rich_help_panel=GOAL, metavar="certified"),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option("--alpha", "-a", help="Target error rate.", rich_help_panel=GOAL)
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Failure probability (0.1).", rich_help_panel=GOAL)] = None,
    acceptance: Annotated[
        float | None, typer.Option(help="Share of all questions to answer.", rich_help_panel=GOAL)
    ] = None,
    estimator: EstimatorOption = None,
) -> None:
    """Decide which primary answers are right, by a rule that is stored with the threshold.

    Example: calibrate label records.jsonl --rule "token_f1(threshold=0.5)"
    Example: calibrate label records.jsonl --undecided --interactive

    Read some of the labels: "at most 10 % wrong" will mean wrong by this rule.
    """
    by_rule = _ByRule(rule, judge_model)
    people = _ByPeople(labels, interactive, review_store, undecided, order)
    goal = _Goal(until, alpha, delta, acceptance, estimator)
    source, target = one_file(records, out)
    people.check(by_rule)
    if items:
        refuse_with_items(rule=not by_rule.is_default, undecided=undecided, until=until, alpha=alpha, limit=limit)
        _label_by_items(source, target, people, cut)
        return
    refuse_without_items(cut=cut)
    labelling = _Labelling(source, target, by_rule, people, goal)
    people_label = labelling.labels is not None
    keep_inputs([labelling.labels], [target, source])
    if goal.until is None and (goal.alpha, goal.delta, goal.acceptance) != (None, None, None):
        raise UsageError("--alpha, --delta and --acceptance belong to --until certified, or to `fit`.")
    if goal.until is not None and not people.undecided:
        raise UsageError(
            "--until certified goes with --undecided: to stop among labels that do not count as wrong yet selects them."
        )
    if goal.until is None and goal.estimator is not None and not people.undecided:
        raise UsageError("--score belongs to --until certified or --undecided, or to `fit`.")
    labelled = _decide(labelling, goal, limit) if people.undecided else labelling.label(limit if people_label else None)
    if labelled is not None:
        _conclude(labelled, target, goal, by_rule=not people_label, undecided=people.undecided)


def _conclude(labelled: RecordFile, target: Path, goal: _Goal, *, by_rule: bool, undecided: bool) -> None:
    """Say how many labels there are, which look broken, and the next command."""
    print_labels(labelled)
    print_structured(labelled)
    if by_rule:
        print_label_checks(labelled)
    if by_rule and not any(record.references for record in labelled.records):
        finish([target], f"calibrate label {listed([target])} --interactive, as there are no references")
        return
    following = next_step(labelled.header, target)
    if goal.until is not None:
        following = f"calibrate fit {listed([target])} {_fit_flags(goal, chosen_estimator(labelled, goal.estimator))}"
        finish([target], following)
        return
    if (by_rule or undecided) and labelled.records.undecided().any():
        following = f"calibrate label {listed([target])} --undecided --interactive; or go on without: {following}"
    finish([target], following)


def _fit_flags(goal: _Goal, key: str) -> str:
    spent = "" if goal.delta is None else f" --delta {goal.delta:g}"
    return f"--score {shlex.quote(key)} --rule certified --alpha {goal.alpha:g}{spent}"


def _decide(labelling: _Labelling, goal: _Goal, limit: int | None) -> RecordFile | None:
    """Write the file with labels of undecided answers and return it; None, and nothing is written, while some miss.

    Until they are decided these answers count as wrong, and a label only takes errors away. The threshold of rule
    "certified" can then only grow, up to the one that all labels would give. Its walk tests the same thresholds in the
    same order, so that the last certificate fails if any on the way did: stopping at any of them is the same fit.
    """
    file, target = read_records(labelling.source), labelling.target
    if goal.until is not None and (goal.alpha is None or labelling.labels is None):
        raise UsageError(
            "--undecided --until certified needs the target error rate (--alpha 0.1) and people's labels "
            "(--interactive, --review-store or --labels)."
        )
    if not _undecided(file):
        print_line(f"Every answer of {file.path} has a label: nothing is undecided.")
        finish([], next_step(file.header, labelling.source))
        return None
    waiting = [record.id for record in file.records if waits_for_label(record)]
    if goal.until is not None and waiting:
        raise UsageError(
            f"{len(waiting)} answers of {file.path} have no label and do not count as wrong, e.g. {waiting[0]!r}: to "
            "stop among them selects labels. Label them all first: `calibrate label --undecided --interactive`."
        )
    key = _key_of_order(file, goal)

    def fitted() -> CalibrationArtifact:
        assert key is not None, "a goal names its scores"
        assert goal.alpha is not None, "a goal has a target"
        now = labelling.with_undecided(file)
        settings = FitSettings(without_failed=True)  # `fit` asks
        return fit_artifact(now, score=key, alpha=goal.alpha, delta=goal.delta, settings=settings)

    def enough() -> bool:
        if goal.until is None:
            return False
        artifact = fitted()
        return artifact.threshold is not None and artifact.acceptance >= (goal.acceptance or 0.0)

    labels = labelling.labels
    if (
        labels is not None
        and not enough()
        and not labelling.people.have_decided(file, labels, key, limit, enough, goal.flags)
    ):
        return None
    if goal.until is not None:
        artifact = fitted()
        reached = artifact.threshold is not None and artifact.acceptance >= (goal.acceptance or 0.0)
        print_line(
            f"{percent(artifact.acceptance)} of all questions certified. "
            + ("Enough: what is undecided goes on counting as wrong." if reached else "The labels are not enough."),
            "green" if reached else "yellow",
        )
    return changed_file(labelling.source, target, labelling.with_undecided)


def _key_of_order(file: RecordFile, goal: _Goal) -> str | None:
    """The scores that order the undecided answers; None without scores, or of several where none is meant."""
    if goal.estimator is None and goal.until is None:
        try:
            key = key_of(file)
        except UsageError:
            return None
        return key if key in file.header.estimators else None
    return chosen_estimator(file, goal.estimator)


def _by_hand(
    file: RecordFile,
    labels: Path,
    queue: Sequence[Record],
    flag: str = "",
    enough: Callable[[], bool] | None = None,
    goal: str = "",
) -> bool:
    """Hold a labelling session in this terminal; whether the whole queue is labelled, or it is enough.

    ``flag`` and ``goal`` are what the next command needs to go on.
    """
    with open_store(labels) as store:
        session = LabelSession(queue, store)
        stopped = label_by_hand(session, console, sys.stdin, enough)
        done, total = session.done, session.total
    if stopped or done == total:
        return True
    print_line(f"{done} of {total} are labelled or skipped; all of them are in {labels}.")
    name, labels_name = file.typed, listed([labels])
    finish(
        [],
        f"calibrate label {name}{flag} --interactive{goal} goes on; "
        f"calibrate label {name}{flag} --labels {labels_name} stops here",
    )
    return False


def _on_page(
    file: RecordFile, labels: Path, url: str, queue: Sequence[Record], enough: Callable[[], bool] | None = None
) -> bool:
    """Send answers to a review store and fetch decisions; whether the whole queue is labelled, or it is enough."""
    require("sqlalchemy", extra="review")
    from guardrail.review import ReviewStore

    with ReviewStore(url) as store, open_store(labels) as label_store:
        session = LabelSession(queue, label_store)
        for record in queue:
            if record.id in label_store.labels:
                continue
            answer = record.answer or ""
            key = f"label:{sha256_hex(canonical_json([record.id, record.question, answer]))}"
            item = store.find(key) or store.enqueue(_shown(record, file.header), key=key)
            if item.decision is not None:
                label_store.append(record.id, item.decision.action == "approve", answer)
        waiting, total = session.total - session.done, session.total
    if not waiting or (enough is not None and enough()):
        return True
    print_line(f"{waiting} of {total} answers wait for a person on the review page.")
    finish([labels], f"guardrail review --db {url}, and then the same command again")
    return False


def _shown(record: Record, header: RecordHeader) -> Content:
    """A record for the review page, without a score, which would sway a label; it shows alternatives once decided."""
    from guardrail.review import Candidate, Content

    assert record.drawn is not None, "only records with an answer are queued"
    assert record.drawn.primary is not None, "only records with an answer are queued"
    messages = header.prompt.messages(record.question, record.options, record.slots)
    return Content(
        question=question_text(messages),
        messages=tuple({"role": message.type, "content": str(message.text)} for message in messages),
        kind="audit",
        candidate=Candidate.of(record.drawn.primary),
        alternatives=tuple(shares(record)),
        allowed=("approve", "edit", "reject"),
        metadata={"record": record.id, "references": list(record.references)},
    )


# -- A labelling session: one record as a card, then a key -------------------------------------------------------------


def label_by_hand(
    session: LabelSession, console: Console, stream: TextIO, enough: Callable[[], bool] | None = None
) -> bool:
    """Show records and read keys until all are labelled, the person quits, the input ends, or it is enough.

    ``enough`` is asked after each right answer, because no other label moves a certificate; returns whether it was.
    """
    pressed = keys(stream)
    while (record := session.current) is not None:
        if console.is_terminal:
            console.clear()
        console.print(card(record, done=session.done, total=session.total))
        key = next(pressed, None)
        if key is None:
            return False
        answer = session.press(key)
        if answer is Pressed.QUIT:
            return False
        console.print(f"[dim]{escape(key)}: {answer.value}[/dim]")
        if answer is Pressed.RIGHT and enough is not None and enough():
            return True
    return False


def _text(text: str, style: str = "") -> Text:
    """Text of a model or a file with its control characters visible, before rich breaks its lines."""
    return Text(visible(text), style=style)


def card(record: Record, *, done: int, total: int) -> Panel:
    """A record: question, options, answer and references. Other samples hint at the score, so none is shown."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("question", _text(record.question))
    for name, option in (record.options or {}).items():
        rows.add_row("", _text(option if name == option else f"{name}) {option}"))
    rows.add_row("answer", _text(record.shown_answer or "(empty)", style="bold cyan"))
    rows.add_row("accepted", _text(" | ".join(record.references) or "(none given)", style="green"))
    help_line = Text("   ".join(f"{key} {meaning}" for key, meaning in KEYS.items()), style="dim")
    return Panel(
        Group(rows, "", Text("Is the answer right?"), help_line), title=f"{done} of {total} done", title_align="left"
    )


def shares(record: Record) -> list[tuple[str, float]]:
    """Distinct samples (normalised; shown as first seen) with their share, most frequent first."""
    texts = [sample.comparable for sample in record.drawn.samples] if record.drawn is not None else []
    return [(text, count / len(texts)) for text, count in distinct_answers(texts)]


def _label_by_items(source: Path, target: Path, people: _ByPeople, cut: float | None) -> None:
    """Label items by their references, or as people do."""
    if cut is not None and not 0 <= cut <= 1:
        raise UsageError(f"--cut is an uncertainty of items, in [0, 1], got {cut}. Leave it out to label every item.")
    labels = people.path(source)
    keep_inputs([labels], [target, source])
    if people.review_store is not None and labels is not None:
        if not label_items_on_page(source, labels, people.review_store, cut):
            return
    elif people.interactive and labels is not None:
        if not label_items_by_hand(source, labels, cut):
            return
    elif cut is not None and labels is None:
        raise UsageError("--cut is for people: it goes with --interactive, --review-store or --labels.")
    label_by_items(source, target, labels, cut)
    finish([target], f"calibrate fit {listed([target])} --items --alpha 0.1")


def label_items_by_hand(source: Path, labels: Path, cut: float | None = None) -> bool:
    """Ask about each item of the answers without labels; whether all are labelled. Whole answers are saved."""
    file = read_records(source)
    stored_spec(file)
    done = {str(row.values.get("id")) for row in read_rows(labels)} if labels.is_file() else set()
    queue = [record for record in queue_of(file.records) if record.items is not None]
    pressed = keys(sys.stdin)
    for record in queue:
        if record.id in done:
            continue
        given = _judged_items(record, len(done), len(queue), pressed, cut)
        if given is None:
            break
        with labels.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"id": record.id, "items": given}, ensure_ascii=False) + "\n")
        done.add(record.id)
    if len(done) >= len(queue):
        return True
    print_line(f"{len(done)} of {len(queue)} answers are labelled; all of them are in {labels}.")
    name, labels_name = file.typed, listed([labels])
    flag = "" if cut is None else f" --cut {cut:g}"
    finish(
        [],
        f"calibrate label {name} --items --interactive{flag} goes on; calibrate label {name} --items --labels "
        f"{labels_name}{flag} stops here",
    )
    return False


def label_items_on_page(source: Path, labels: Path, url: str, cut: float | None = None) -> bool:
    """Send the answers to a review store to be decided item by item, and fetch decisions; whether all are decided."""
    require("sqlalchemy", extra="review")
    from guardrail.items.item import ItemVerdict
    from guardrail.review import ReviewStore

    file = read_records(source)
    stored_spec(file)
    done = {str(row.values.get("id")) for row in read_rows(labels)} if labels.is_file() else set()
    queue = [record for record in queue_of(file.records) if record.items is not None]
    with ReviewStore(url) as store, labels.open("a", encoding="utf-8") as stream:

        def write(record: Record, right: Mapping[str, bool | None]) -> None:
            row = {"id": record.id, "items": {each.path: right.get(each.path) for each in record.items or ()}}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            done.add(record.id)

        for record in queue:
            if record.id in done:
                continue
            # Held back, so that each is decided; without uncertainties, which would sway a label.
            items = tuple(
                ItemVerdict(**{**item.model_dump(), "uncertainty": None}, kept=False)
                for item in record.items or ()
                if needs_label(item, cut)
            )
            if not items:
                write(record, {})
                continue
            name = f"label:{sha256_hex(canonical_json(['items', record.id, record.question, record.answer]))}"
            content = _shown(record, file.header).model_copy(update={"items": items, "alternatives": ()})
            item = store.find(name) or store.enqueue(content, key=name)
            if item.decision is None:
                continue
            decided = {each.path: each.action == "approve" for each in item.decision.items}
            # Of an answer that was decided as a whole, only an approval says something about each item.
            whole = True if item.decision.action == "approve" else None
            # Only what the item shows was decided: it may be older than this cut or these uncertainties.
            write(record, {each.path: decided.get(each.path, whole) for each in item.content.items})
    waiting = len(queue) - sum(record.id in done for record in queue)
    if not waiting:
        return True
    print_line(f"{waiting} of {len(queue)} answers wait for a person on the review page.")
    finish([labels], f"guardrail review --db {url}, and then the same command again")
    return False


def _judged_items(
    record: Record, done: int, total: int, pressed: Iterator[str], cut: float | None
) -> dict[str, bool | None] | None:
    """The labels of an answer's items, or None if the person stopped. "u" goes back one item."""
    items, given = record.items or (), list[bool | None]()
    asked = [at for at, item in enumerate(items) if needs_label(item, cut)]
    while len(given) < len(asked):
        at = asked[len(given)]
        if console.is_terminal:
            console.clear()
        console.print(card(record, done=done, total=total))
        print_line(f"item {at + 1} of {len(items)}, {items[at].path}: {items[at].text or '(left out)'}", "bold")
        letter = next(pressed, None)
        if letter is None or letter.lower() == "q":
            return None
        if letter.lower() == "u" and given:
            given.pop()
        elif letter.lower() in ("y", "n", "s"):
            given.append({"y": True, "n": False, "s": None}[letter.lower()])
    right = dict(zip(asked, given, strict=True))
    return {item.path: right.get(at) for at, item in enumerate(items)}


# -- Single keys from a terminal; first letters of lines from a pipe ---------------------------------------------------

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O.|.)?|[\x00\xe0].|[\r\n]", flags=re.DOTALL)
"""What arrow and function keys send (on Windows after NUL or \xe0), and Return: not keys here."""


def keys(stream: TextIO) -> Iterator[str]:
    """Yield each key on its press, without Return; of piped input the first letter of each line.

    A key pressed before its card is shown does not count. Ctrl-D or a closed terminal ends the input.
    """
    if not stream.isatty():
        yield from (line.strip()[0] for line in stream if line.strip())
        return
    while True:
        try:
            pressed = typer.getchar()
        except (EOFError, OSError):
            return
        if not pressed:
            return
        for key in _ESCAPE.sub("", pressed):  # keys that arrive together, for example pasted text
            if key == "\x04":
                return
            if key == "\x03":
                raise KeyboardInterrupt
            yield key
