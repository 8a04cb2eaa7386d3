"""The command that decides which answers are right: label."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import numpy as np
import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from guardrail.errors import UsageError, require
from guardrail.judges import distinct_answers
from guardrail.notebook import percent
from guardrail.plain_json import canonical_json, sha256_hex, visible
from guardrail.prompting import question_text

from ..correctness import available_rules, label_file
from ..data.labels import LabelSession, apply_labels, open_session, queue_of, read_labels
from ..data.progress import bar, silent
from ..data.records import GIVEN, Record, RecordFile, RecordHeader, read_records
from ..data.rows import read_rows
from ..items.answers import needs_label, stored_spec
from ..pipeline import FitSettings, fit_artifact
from ..report.sentences import describe_spec
from ..scope import waits_for_label
from ..scoring.names import key_of
from ..scoring.scores import values_of
from .frame.app import command
from .frame.files import changed_file, keep_inputs, one_file
from .frame.items import label_by_items, refuse_with_items, refuse_without_items
from .frame.labels import print_label_checks, print_labels, print_structured, rule_from
from .frame.next_commands import listed, next_step
from .frame.options import EstimatorOption, ItemsOption, RecordsArgument, chosen_estimator
from .frame.terminal import console, finish, print_line

if TYPE_CHECKING:
    from guardrail.review import Content

__all__ = ["card", "keys", "label", "label_by_hand"]

RULE, PEOPLE, GOAL = "By a rule", "By people", "With --until"


@dataclass(frozen=True, slots=True)
class _Options:
    """The flags: who decides about which answers, and when it is enough."""

    rule: str | None
    judge_model: str | None
    labels: Path | None
    interactive: bool
    review_store: str | None
    undecided: bool
    limit: int | None
    until: Literal["certified"] | None
    alpha: float | None
    delta: float | None
    acceptance: float | None
    score: str | None

    def check(self) -> None:
        """Refuse flags that exclude each other."""
        by_rule, on_page = self.rule is not None or self.judge_model is not None, self.review_store is not None
        if sum((by_rule, self.interactive, on_page)) > 1 or (by_rule and self.labels is not None):
            raise UsageError(
                "--labels, --interactive, --review-store and a rule exclude each other: give labels, or how to make "
                "them"
            )
        if self.undecided and not (by_rule or self.interactive or on_page or self.labels is not None):
            raise UsageError("--undecided needs who decides: --interactive, --review-store, --labels or --judge-model.")
        if self.until is None and (self.alpha, self.delta, self.acceptance) != (None, None, None):
            raise UsageError("--alpha, --delta and --acceptance belong to --until certified, or to `fit`.")
        if self.until is None and self.score is not None and not self.undecided:
            raise UsageError("--score belongs to --until certified or --undecided, or to `fit`.")
        if self.until is not None and not self.undecided:
            raise UsageError(
                "--until certified goes with --undecided: to stop among labels that do not count as wrong yet selects "
                "them."
            )
        if self.until is not None and (self.alpha is None or by_rule):
            raise UsageError(
                "--undecided --until certified needs the target error rate (--alpha 0.1) and people's labels "
                "(--interactive, --review-store or --labels)."
            )

    @property
    def collects(self) -> bool:
        """Whether this command asks people, so that the file of their labels may not exist yet."""
        return self.interactive or self.review_store is not None

    def labels_of(self, records: Path) -> Path | None:
        """The file of people's labels; None if a rule labels."""
        if self.labels is None and self.collects:
            return records.with_name(f"{records.stem}.labels.jsonl")
        return self.labels

    @property
    def again(self) -> str:
        """The flags with which the next command goes on, or stops."""
        goal = {"alpha": self.alpha, "delta": self.delta, "acceptance": self.acceptance}
        flags = "".join(f" --{name} {value:g}" for name, value in goal.items() if value is not None)
        named = "" if self.score is None else f" --score {shlex.quote(self.score)}"
        return f" --undecided{'' if self.until is None else f' --until {self.until}{flags}{named}'}"

    def enough(self, acceptance: float | None) -> bool:
        """Whether a fit answers the share that was asked for; None: it found no threshold."""
        return acceptance is not None and acceptance >= (self.acceptance or 0.0)


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
    options = _Options(
        *(rule, judge_model, labels, interactive, review_store, undecided, limit),
        *(until, alpha, delta, acceptance, estimator),
    )
    source, target = one_file(records, out)
    if items:
        refuse_with_items(
            rule=(rule, judge_model) != (None, None), undecided=undecided, until=until, alpha=alpha, limit=limit
        )
        options.check()
        _label_by_items(source, target, options, cut)
        return
    refuse_without_items(cut=cut)
    options.check()
    people = options.labels_of(source)
    keep_inputs([people], [target, source])
    if options.undecided:
        _label_undecided(source, target, options, people)
        return
    if people is not None and options.collects and not _ask(read_records(source), people, options, None):
        return
    labelled = changed_file(source, target, lambda file: _all_labelled(file, options, people))
    following = next_step(labelled.header, target)
    _conclude(labelled, target, following, by_rule=people is None)


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
    """Label the undecided answers; nothing is written while some miss, unless it is enough.

    Until they are decided these answers count as wrong, and a label only takes errors away. The threshold of rule
    "certified" can then only grow, up to that of all labels. Its walk tests the same thresholds in the
    same order, so that the last certificate fails if any on the way did: stopping at any of them is the same fit.
    """
    file = read_records(source)
    if not _undecided(file):
        print_line(f"Every answer of {file.path} has a label: nothing is undecided.")
        finish([], next_step(file.header, source))
        return
    waiting = [record.id for record in file.records if waits_for_label(record)]
    if options.until is not None and waiting:
        raise UsageError(
            f"{len(waiting)} answers of {file.path} have no label and do not count as wrong, e.g. {waiting[0]!r}: to "
            "stop among them selects labels. Label them all first: `calibrate label --undecided --interactive`."
        )
    key = _key_of_order(file, options)

    def certified() -> float | None:
        """The share that a fit on the labels so far answers; None without a threshold."""
        assert key is not None, "a goal names its scores"
        assert options.alpha is not None, "a goal has a target"
        settings = FitSettings(without_failed=True)  # `fit` asks
        now = _decided(file, options, people)
        artifact = fit_artifact(now, score=key, alpha=options.alpha, delta=options.delta, settings=settings)
        return None if artifact.threshold is None else artifact.acceptance

    def enough() -> bool:
        return options.until is not None and options.enough(certified())

    if people is not None and options.collects and not enough() and not _ask(file, people, options, key, enough):
        return
    if options.until is not None:
        share = certified()
        reached = options.enough(share)
        print_line(
            f"{percent(share or 0.0)} of all questions certified. "
            + ("Enough: what is undecided goes on counting as wrong." if reached else "The labels are not enough."),
            "green" if reached else "yellow",
        )
    labelled = changed_file(source, target, lambda file: _decided(file, options, people))
    following = next_step(labelled.header, target)
    if options.until is not None:
        spent = "" if options.delta is None else f" --delta {options.delta:g}"
        flags = f"--score {shlex.quote(chosen_estimator(labelled, options.score))} --rule certified"
        following = f"calibrate fit {listed([target])} {flags} --alpha {options.alpha:g}{spent}"
    _conclude(labelled, target, following, by_rule=people is None, undecided=options.until is None)


def _key_of_order(file: RecordFile, options: _Options) -> str | None:
    """The scores that order the undecided answers; None without scores, or of several where none is meant."""
    if options.score is None and options.until is None:
        try:
            key = key_of(file)
        except UsageError:
            return None
        return key if key in file.header.estimators else None
    return chosen_estimator(file, options.score)


def _decided(file: RecordFile, options: _Options, people: Path | None) -> RecordFile:
    """The file with labels of the undecided answers: those that people gave so far, or by the rule."""
    undecided, spec = _undecided(file), file.header.correctness
    assert spec is not None, "a file with undecided answers was labelled by a rule"
    if people is None:
        decided = _by_rule(RecordFile(file.path, file.header, undecided), options)
        labelled = {record.id: record for record in decided.records}
        assert decided.header.correctness is not None, "a rule names itself"
        by = describe_spec(decided.header.correctness.name, decided.header.correctness.params)
    elif options.collects and not (people.is_file() and people.stat().st_size > 0):
        return file
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


# -- People are asked --------------------------------------------------------------------------------------------------


def _ask(
    file: RecordFile,
    labels: Path,
    options: _Options,
    key: str | None,
    enough: Callable[[], bool] | None = None,
) -> bool:
    """Have people label the answers in this terminal or on the page; whether all have a label, or it is enough.

    Raises:
        UsageError: The file has scores, and not one answer of it could be measured.
    """
    _refuse_unmeasured(file)
    queue = _queue(file, options, key)
    with open_session(labels, queue) as session:
        if session.outdated:
            print_line(
                f"{session.outdated} of {session.total} answers are new since these labels; {session.done} keep theirs."
            )
        if options.interactive:
            stopped = label_by_hand(session, console, sys.stdin, enough)
        else:
            assert options.review_store is not None, "people are asked here or on the page"
            waiting = _from_page(file, session, options.review_store)
            stopped = bool(waiting) and enough is not None and enough()
        done, total = session.done, session.total
    if stopped or done == total:
        return True
    if options.review_store is not None:
        _wait_for_page(total - done, total, labels, options.review_store)
        return False
    print_line(f"{done} of {total} are labelled or skipped; all of them are in {labels}.")
    command = f"calibrate label {file.typed}{' --undecided' if options.undecided else ''}"
    goes_on = f"calibrate label {file.typed}{options.again if options.undecided else ''} --interactive"
    finish([], f"{goes_on} goes on; {command} --labels {listed([labels])} stops here")
    return False


def _refuse_unmeasured(file: RecordFile) -> None:
    """Refuse to have people label answers of which none has a score: their labels could never make a threshold."""
    scores = [score for record in file.records for score in record.scores.values()]
    if not scores or any(score.measured for score in scores):
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(score.reason for score in scores).most_common())
    raise UsageError(
        f"none of the {len(file.records)} answers in {file.path} could be measured ({counts}), so no label of theirs "
        "could make a threshold, and nobody is asked. Remove the cause, collect and score again."
    )


def _queue(file: RecordFile, options: _Options, key: str | None) -> list[Record]:
    """The records to label, in order; of undecided ones those first that a threshold accepts first."""
    if options.undecided:
        records = _undecided(file)
        if key is None:
            return queue_of(records, limit=options.limit)
        # NaN, the unmeasured ones, last: no threshold ever accepts them.
        return [records[place] for place in np.argsort(values_of(records, key), kind="stable")][: options.limit]
    if file.header.scope.is_drawn:  # in random order already
        return queue_of(file.records[: options.limit], order="file")
    return queue_of(file.records, limit=options.limit)


def _from_page(file: RecordFile, session: LabelSession, url: str) -> int:
    """Send answers without a label to a review store and fetch decisions; how many wait."""
    pages = [(record, _shown(record, file.header)) for record in session.left]
    decided = _decided_on_page(pages, url)
    for record, item in decided:
        session.give(record, item.decision.action == "approve")
    return len(pages) - len(decided)


def _decided_on_page(pages: Sequence[tuple[Record, Content]], url: str, *kind: str) -> list[tuple[Record, Any]]:
    """Send records to a review store, once each; those that are decided, with their items.

    Args:
        pages: Records, and what the page shows of them.
        url: The store.
        *kind: What is asked, where the same record may be asked about twice.
    """
    require("sqlalchemy", extra="review")
    from guardrail.review import ReviewStore

    with ReviewStore(url) as store:
        keys = [
            f"label:{sha256_hex(canonical_json([*kind, record.id, record.question, record.answer or '']))}"
            for record, _ in pages
        ]
        items = [store.find(key) or store.enqueue(page, key=key) for key, (_, page) in zip(keys, pages, strict=True)]
    return [(record, item) for (record, _), item in zip(pages, items, strict=True) if item.decision is not None]


def _wait_for_page(waiting: int, total: int, labels: Path, url: str) -> None:
    print_line(f"{waiting} of {total} answers wait for a person on the review page.")
    finish([labels], f"guardrail review --db {url}, and then the same command again")


def _shown(record: Record, header: RecordHeader) -> Content:
    """A record for the review page, without a score, which would sway a label; it shows alternatives once decided."""
    from guardrail.review import Candidate, Content

    assert record.drawn is not None, "only records with an answer are queued"
    assert record.drawn.primary is not None, "only records with an answer are queued"
    messages = record.messages_in(header.prompt)
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


KEYS = {"y": "right", "n": "wrong", "s": "skip", "u": "undo", "q": "quit"}
"""What each key means; upper case counts as lower case."""
DECISIONS = {"y": True, "n": False, "s": None}
"""The labels that keys give."""


def label_by_hand(
    session: LabelSession, console: Console, stream: TextIO, enough: Callable[[], bool] | None = None
) -> bool:
    """Show records and read keys until all are labelled, the person quits, the input ends, or it is enough.

    ``enough`` is asked after each right answer, because no other label moves a certificate; returns whether it was.
    """
    pressed = keys(stream)
    while left := session.left:
        if console.is_terminal:
            console.clear()
        console.print(card(left[0], done=session.done, total=session.total))
        key = next(pressed, "q").lower()
        if key == "q":
            return False
        if key == "u":
            said = "taken back" if session.undo() else "there is nothing to take back"
        elif key in DECISIONS:
            session.give(left[0], DECISIONS[key])
            said = KEYS[key]
        else:
            said = "no such key"
        console.print(f"[dim]{escape(key)}: {said}[/dim]")
        if key == "y" and enough is not None and enough():
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
    rows.add_row("question", _text(record.in_words))
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


def _label_by_items(source: Path, target: Path, options: _Options, cut: float | None) -> None:
    """Label items by their references, or as people do."""
    if cut is not None and not 0 <= cut <= 1:
        raise UsageError(f"--cut is an uncertainty of items, in [0, 1], got {cut}. Leave it out to label every item.")
    labels = options.labels_of(source)
    keep_inputs([labels], [target, source])
    if cut is not None and labels is None:
        raise UsageError("--cut is for people: it goes with --interactive, --review-store or --labels.")
    if options.collects and labels is not None and not _ask_about_items(source, labels, options, cut):
        return
    label_by_items(source, target, labels, cut)
    finish([target], f"calibrate fit {listed([target])} --items --alpha 0.1")


def _ask_about_items(source: Path, labels: Path, options: _Options, cut: float | None) -> bool:
    """Have people label the items of answers, in this terminal or on the page; whether all answers are labelled.

    Labels of whole answers are saved.
    """
    file = read_records(source)
    stored_spec(file)
    done = {str(row.values.get("id")) for row in read_rows(labels)} if labels.is_file() else set()
    queue = [record for record in queue_of(file.records) if record.items is not None]
    left = [record for record in queue if record.id not in done]
    with labels.open("a", encoding="utf-8") as stream:

        def save(record: Record, right: Mapping[str, bool | None]) -> None:
            row = {"id": record.id, "items": {item.path: right.get(item.path) for item in record.items or ()}}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            stream.flush()
            done.add(record.id)

        if options.review_store is not None:
            shown = [(record, _shown_items(record, file.header, cut)) for record in left]
            for record in [record for record, page in shown if page is None]:  # nobody needs to be asked
                save(record, {})
            pages = [(record, page) for record, page in shown if page is not None]
            decided = _decided_on_page(pages, options.review_store, "items")
            for record, item in decided:
                save(record, _decided_items(item))
            if waiting := len(pages) - len(decided):
                _wait_for_page(waiting, len(queue), labels, options.review_store)
            return not waiting
        pressed = keys(sys.stdin)
        for record in left:
            given = _judged_items(record, len(done), len(queue), pressed, cut)
            if given is None:
                break
            save(record, given)
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


def _shown_items(record: Record, header: RecordHeader, cut: float | None) -> Content | None:
    """The items that need a label, for the review page; None if none does."""
    from guardrail.items.item import ItemVerdict

    # Held back, so that each is decided; without uncertainties, which would sway a label.
    items = tuple(
        ItemVerdict(**{**item.model_dump(), "uncertainty": None}, kept=False)
        for item in record.items or ()
        if needs_label(item, cut)
    )
    return _shown(record, header).model_copy(update={"items": items, "alternatives": ()}) if items else None


def _decided_items(item: Any) -> dict[str, bool | None]:
    """Labels by path. Only what the page showed was decided: it may be older than this cut or these uncertainties."""
    decided = {each.path: each.action == "approve" for each in item.decision.items}
    # Of an answer that was decided as a whole, only an approval says something about each item.
    whole = True if item.decision.action == "approve" else None
    return {each.path: decided.get(each.path, whole) for each in item.content.items}


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
        key = next(pressed, "q").lower()
        if key == "q":
            return None
        if key == "u" and given:
            given.pop()
        elif key in DECISIONS:
            given.append(DECISIONS[key])
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
