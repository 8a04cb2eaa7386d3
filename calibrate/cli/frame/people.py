"""People label answers, or items of answers: key by key in this terminal, or on the review page."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from guardrail.errors import UsageError, require
from guardrail.items.item import Item, ItemVerdict
from guardrail.judges import distinct_answers
from guardrail.plain_json import canonical_json, sha256_hex, visible
from guardrail.prompting import question_text

from ...data.labels import LabelSession, append_row, open_label_file, open_session, queue_of
from ...data.records import Record, RecordFile, RecordHeader
from ...data.rows import read_rows
from ...items.answers import needs_label, stored_spec
from .next_commands import listed
from .terminal import console, finish, print_line

if TYPE_CHECKING:
    from guardrail.review import Content

__all__ = ["People", "ask_about_answers", "ask_about_items", "card", "keys", "label_by_hand"]


@dataclass(frozen=True, slots=True)
class People:
    """Where people label.

    Attributes:
        labels: The file of their labels.
        store: The review store on whose page they decide; None for this terminal.
        flags: Flags of the command that uses the labels so far.
        goal: Further flags of the command that goes on asking.
    """

    labels: Path
    store: str | None
    flags: str = ""
    goal: str = ""

    def is_done(self, file: RecordFile, done: int, total: int) -> bool:
        """Whether all have a label; if not, print how to go on."""
        if done == total:
            return True
        if self.store is not None:
            print_line(f"{total - done} of {total} answers wait for a person on the review page.")
            finish([self.labels], f"guardrail review --db {self.store}, and then the same command again")
            return False
        print_line(f"{done} of {total} are labelled or skipped; all of them are in {self.labels}.")
        command, named = f"calibrate label {file.typed}{self.flags}", f" --labels {listed([self.labels])}"
        usual = self.labels == file.path.with_name(f"{file.path.stem}.labels.jsonl")
        on = f"{command}{self.goal} --interactive{'' if usual else named}"
        finish([], f"{on} goes on; {command}{named} stops here")
        return False


def ask_about_answers(
    file: RecordFile, queue: Sequence[Record], people: People, enough: Callable[[], bool] | None = None
) -> bool:
    """Have people label these records of a file, in order; whether all have a label, or it is enough.

    Raises:
        UsageError: The file has scores, and not one answer of it could be measured.
    """
    _refuse_unmeasured(file)
    with open_session(people.labels, queue) as session:
        if session.outdated:
            print_line(
                f"{session.outdated} of {session.total} answers are new since these labels; {session.done} keep theirs."
            )
        if people.store is None:
            stopped = label_by_hand(session, console, sys.stdin, enough)
        else:
            pages = [(record, _page(record, file.header)) for record in session.left]
            for record, item in _decided(pages, people.store):
                session.give(record, item.decision.action == "approve")
            stopped = bool(session.left) and enough is not None and enough()
        done, total = session.done, session.total
    return stopped or people.is_done(file, done, total)


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


def ask_about_items(file: RecordFile, people: People, cut: float | None) -> bool:
    """Have people label the items of answers up to a cut; whether all answers are labelled.

    Raises:
        UsageError: The file has no items.
    """
    stored_spec(file)
    queue = [record for record in queue_of(file.records) if record.items is not None]
    with _open_items(people.labels, queue, cut) as session:
        if people.store is None:
            label_by_hand(session, console, sys.stdin)
        else:
            pages = [(record, _page_of_items(record, file.header, session.asked(record))) for record in session.left]
            for record, item in _decided(pages, people.store, "items"):
                session.save(record, _labels_on_page(item))
        done, total = session.done, session.total
    return people.is_done(file, done, total)


class ItemSession:
    """Goes through answers item by item; a row of the file holds every item of an answer, null for one without a label.

    Args:
        queue: Records to label, in order; all have items.
        stream: The file, open for reading and writing.
        labelled: Ids of the records that have a row.
        cut: Items above this uncertainty are not asked about.
    """

    def __init__(self, queue: Sequence[Record], stream: IO[bytes], labelled: set[str], cut: float | None) -> None:
        self._stream, self._labelled, self._cut = stream, labelled, cut
        self._queue = queue
        self._given: list[bool | None] = []
        for record in self.left:
            if not self.asked(record):
                self.save(record, {})

    @property
    def total(self) -> int:
        """Answers to label."""
        return len(self._queue)

    @property
    def done(self) -> int:
        """Number of these answers that have a row."""
        return self.total - len(self.left)

    @property
    def left(self) -> list[Record]:
        """The answers without a row."""
        return [record for record in self._queue if record.id not in self._labelled]

    @property
    def item(self) -> Item:
        """The item of the first answer left that is asked about next."""
        return self.asked(self.left[0])[len(self._given)]

    def asked(self, record: Record) -> list[Item]:
        """The items of an answer that need a label."""
        return [item for item in record.items or () if needs_label(item, self._cut)]

    def give(self, record: Record, correct: bool | None) -> None:
        """Label the next item of the first answer left; the answer is saved with its last item."""
        self._given.append(correct)
        asked = self.asked(record)
        if len(self._given) == len(asked):
            self.save(record, {item.path: label for item, label in zip(asked, self._given, strict=True)})

    def undo(self) -> bool:
        """Take the last label of an answer back that is not saved yet; False if there is none."""
        if self._given:
            self._given.pop()
            return True
        return False

    def save(self, record: Record, right: Mapping[str, bool | None]) -> None:
        """Save the labels of an answer by path; they are on disk when this returns."""
        items = {item.path: right.get(item.path) for item in record.items or ()}
        append_row(self._stream, {"id": record.id, "items": items, "judged": record.answer or ""})
        self._labelled.add(record.id)
        self._given = []


@contextmanager
def _open_items(path: Path, queue: Sequence[Record], cut: float | None) -> Iterator[ItemSession]:
    """Open a file of item labels as `open_session` does one of labels of answers.

    Raises:
        UsageError: It holds labels of whole answers.
    """
    with open_label_file(path) as stream:
        rows = [row.values for row in read_rows(path)] if path.stat().st_size else []
        if any("items" not in row for row in rows):
            raise UsageError(
                f"{path} holds labels of whole answers. Name another file for those of items: --labels FILE."
            )
        answers = {record.id: record.answer or "" for record in queue}
        labelled = {str(row.get("id")) for row in rows if row.get("judged") in (None, answers.get(str(row.get("id"))))}
        yield ItemSession(queue, stream, labelled, cut)


# -- On the review page ------------------------------------------------------------------------------------------------


def _decided(pages: Sequence[tuple[Record, Content]], url: str, *kind: str) -> list[tuple[Record, Any]]:
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


def _page(record: Record, header: RecordHeader) -> Content:
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


def shares(record: Record) -> list[tuple[str, float]]:
    """Distinct samples (normalised; shown as first seen) with their share, most frequent first."""
    texts = [sample.comparable for sample in record.drawn.samples] if record.drawn is not None else []
    return [(text, count / len(texts)) for text, count in distinct_answers(texts)]


def _page_of_items(record: Record, header: RecordHeader, asked: Sequence[Item]) -> Content:
    """The items that need a label; held back, so that each is decided, and without uncertainties."""
    items = tuple(ItemVerdict(**{**item.model_dump(), "uncertainty": None}, kept=False) for item in asked)
    return _page(record, header).model_copy(update={"items": items, "alternatives": ()})


def _labels_on_page(item: Any) -> dict[str, bool | None]:
    """Labels by path. Only what the page showed was decided: it may be older than this cut or these uncertainties."""
    decided = {each.path: each.action == "approve" for each in item.decision.items}
    # Of an answer that was decided as a whole, only an approval says something about each item.
    whole = True if item.decision.action == "approve" else None
    return {each.path: decided.get(each.path, whole) for each in item.content.items}


# -- In this terminal: a card, then a key ------------------------------------------------------------------------------

LABELS = {"y": ("right", True), "n": ("wrong", False), "s": ("skip", None)}
"""Keys that label, with what they are called on the card; upper case counts as lower case."""
KEYS = {key: name for key, (name, _) in LABELS.items()} | {"u": "undo", "q": "quit"}


def label_by_hand(
    session: LabelSession | ItemSession, console: Console, stream: TextIO, enough: Callable[[], bool] | None = None
) -> bool:
    """Show cards and read keys until all are labelled, the person quits, the input ends, or it is enough.

    ``enough`` is asked after each right answer, because no other label moves a certificate; returns whether it was.
    """
    pressed = keys(stream)
    while left := session.left:
        if console.is_terminal:
            console.clear()
        item = session.item if isinstance(session, ItemSession) else None
        console.print(card(left[0], done=session.done, total=session.total, item=item))
        key = next(pressed, "q").lower()
        if key == "q":
            return False
        if key == "u":
            said = "taken back" if session.undo() else "there is nothing to take back"
        elif key in LABELS:
            said, label = LABELS[key]
            session.give(left[0], label)
        else:
            said = "no such key"
        console.print(f"[dim]{escape(key)}: {said}[/dim]")
        if key == "y" and enough is not None and enough():
            return True
    return False


def _text(text: str, style: str = "") -> Text:
    """Text of a model or a file with its control characters visible, before rich breaks its lines."""
    return Text(visible(text), style=style)


def card(record: Record, *, done: int, total: int, item: Item | None = None) -> Panel:
    """A record: question, options, answer, references and the item that is asked about.

    Other samples hint at the score, so none is shown.
    """
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("question", _text(record.in_words))
    for name, option in (record.options or {}).items():
        rows.add_row("", _text(option if name == option else f"{name}) {option}"))
    rows.add_row("answer", _text(record.shown_answer or "(empty)", style="bold cyan"))
    rows.add_row("accepted", _text(" | ".join(record.references) or "(none given)", style="green"))
    if item is not None:
        rows.add_row("item", _text(f"{item.path}: {item.text or '(left out)'}", style="bold"))
    asked = Text(f"Is the {'answer' if item is None else 'item'} right?")
    help_line = Text("   ".join(f"{key} {name}" for key, name in KEYS.items()), style="dim")
    return Panel(Group(rows, "", asked, help_line), title=f"{done} of {total} done", title_align="left")


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
