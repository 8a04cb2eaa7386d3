"""People label answers, or items of answers: key by key in this terminal, or on the review page."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from guardrail.errors import UsageError, require
from guardrail.items.item import Item, ItemVerdict
from guardrail.plain_json import canonical_json, sha256_hex, visible
from guardrail.prompting import question_text
from guardrail.types import Frozen

from ...correctness import available_rules
from ...data.labels import LabelSession, open_session
from ...data.records import Record, RecordFile, RecordHeader
from ...items.answers import stored_spec
from .flags import flag
from .next_commands import listed
from .options import BY_PEOPLE, BY_RULE
from .terminal import console, finish, print_line

if TYPE_CHECKING:
    from guardrail.review import Content


class Labelling(Frozen):
    """Settings that say who decides which answers are right. Every field is a flag of `label`."""

    items: bool = flag("", "Label each item (field of JSON).", False)
    rule: str | None = flag(BY_RULE, f"{', '.join(available_rules())}, python:MODULE:NAME. Default: by the questions.")
    judge_model: str | None = flag(BY_RULE, "Model that judges, as `collect --model`.", metavar="MODEL")
    undecided: bool = flag(BY_RULE, "Label what a rule left undecided.", False)
    labels: Path | None = flag(BY_PEOPLE, ".jsonl or .csv with id and correct.")
    interactive: bool = flag(BY_PEOPLE, "Judge key by key; saved in --labels.", False, "-i")
    review_store: str | None = flag(BY_PEOPLE, "Judge on the review page of this store.")
    limit: int | None = flag(BY_PEOPLE, "Judge this many and stop.", ge=1)

    @property
    def asks(self) -> bool:
        """Whether people are asked, and not only read from a file."""
        return self.interactive or self.review_store is not None

    def labels_for(self, records: Path) -> Path | None:
        """The file of people's labels; where they are asked and none is named, one beside the records."""
        if self.labels is None and self.asks:
            return records.with_name(f"{records.stem}.labels.jsonl")
        return self.labels


def ask_people(file: RecordFile, queue: Sequence[Record], labelling: Labelling, labels: Path) -> bool:
    """Have people label these records of a file, or all their items, in order; return whether all have their labels."""
    if labelling.items:
        stored_spec(file)
    else:
        _refuse_unmeasured(file)
    with open_session(labels, queue, by_items=labelling.items) as session:
        if session.outdated:
            print_line(
                f"{session.outdated} of {session.total} answers are new since these labels; {session.done} keep theirs."
            )
        if labelling.review_store is None:
            label_by_hand(session, console, sys.stdin)
        else:
            _label_on_page(session, file.header, labelling.review_store)
        done, total = session.done, session.total
    if done < total:
        _print_rest(file, labelling, labels, done, total)
    return done == total


def _print_rest(file: RecordFile, labelling: Labelling, labels: Path, done: int, total: int) -> None:
    """Print how to go on where some records have no label yet."""
    if labelling.review_store is not None:
        print_line(f"{total - done} of {total} answers wait for a person on the review page.")
        finish([labels], f"guardrail review --db {labelling.review_store}, and then the same command again")
        return
    print_line(f"{done} of {total} are labelled or skipped; all of them are in {labels}.")
    flags = " --items" if labelling.items else " --undecided" if labelling.undecided else ""
    command, named = f"calibrate label {file.typed}{flags}", f" --labels {listed([labels])}"
    on = f"{command} --interactive{named if labelling.labels else ''}"
    finish([], f"{on} goes on; {command}{named} stops here")


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


# -- On the review page ------------------------------------------------------------------------------------------------


def _label_on_page(session: LabelSession, header: RecordHeader, url: str) -> None:
    """Send what is left to a review store, once each, and take the labels of what is decided."""
    require("sqlalchemy", extra="review")
    from guardrail.review import ReviewStore

    kind = ["items"] if session.by_items else []  # the same record may be asked about twice
    with ReviewStore(url) as store:
        for record in session.left:
            key = f"label:{sha256_hex(canonical_json([*kind, record.id, record.question, record.answer or '']))}"
            item = store.find(key) or store.enqueue(_page(record, header, by_items=session.by_items), key=key)
            if item.decision is None:
                continue
            if session.by_items:
                session.give_items(record, _labels_on_page(item))
            else:
                session.give(record, item.decision.action == "approve")


def _page(record: Record, header: RecordHeader, *, by_items: bool = False) -> Content:
    """A record for the review page, without scores and other answers, which would sway a label.

    Items are held back, so that each of them is decided.
    """
    from guardrail.review import Candidate, Content

    assert record.drawn is not None, "only records with an answer are queued"
    assert record.drawn.primary is not None, "only records with an answer are queued"
    messages = record.messages_in(header.prompt)
    return Content(
        question=question_text(messages),
        messages=tuple({"role": message.type, "content": str(message.text)} for message in messages),
        kind="audit",
        candidate=Candidate.of(record.drawn.primary),
        items=tuple(
            ItemVerdict(**{**item.model_dump(), "uncertainty": None}, kept=False) for item in record.items or ()
        )
        if by_items
        else (),
        allowed=("approve", "edit", "reject"),
        metadata={"record": record.id, "references": list(record.references)},
    )


def _labels_on_page(item: Any) -> dict[str, bool | None]:
    """Labels by path. Only what the page showed was decided: it may be older than the items on file."""
    decided = {item_decision.path: item_decision.action == "approve" for item_decision in item.decision.items}
    # Of an answer that was decided as a whole, only an approval says something about each item.
    whole = True if item.decision.action == "approve" else None
    return {item_decision.path: decided.get(item_decision.path, whole) for item_decision in item.content.items}


# -- In this terminal: a card, then a key ------------------------------------------------------------------------------

LABELS = {"y": ("right", True), "n": ("wrong", False), "s": ("skip", None)}
"""Keys that label, with what they are called on the card; upper case counts as lower case."""
KEYS = {key: name for key, (name, _) in LABELS.items()} | {"u": "undo", "q": "quit"}


def label_by_hand(session: LabelSession, console: Console, stream: TextIO) -> None:
    """Show cards and read keys until all are labelled, the person quits, or the input ends."""
    pressed = keys(stream)
    while left := session.left:
        if console.is_terminal:
            console.clear()
        console.print(card(left[0], done=session.done, total=session.total, item=session.item))
        key = next(pressed, "q").lower()
        if key == "q":
            return
        if key == "u":
            response = "taken back" if session.undo() else "there is nothing to take back"
        elif key in LABELS:
            response, label = LABELS[key]
            session.give(left[0], label)
        else:
            response = "no such key"
        console.print(f"[dim]{escape(key)}: {response}[/dim]")


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
