"""The command that decides which answers are right: label."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from guardrail.errors import UsageError
from guardrail.judges import normalise

from ..correctness import ChatJudge, CorrectnessRule, available_rules, default_rule, label_records, make_rule
from ..correctness.registry import structured_advice
from ..data.labels import (
    KEYS,
    Pressed,
    Session,
    apply_labels,
    contradictions,
    open_store,
    queue_of,
    read_labels,
)
from ..data.progress import Progress, bar, silent
from ..data.records import Record, RecordFile, read_records
from ..report.sentences import describe_spec, percent
from .collect import RecordsArgument, changed_file
from .frame import app, console, finish, keep_inputs, print_line, resolve_model

__all__ = [
    "card",
    "keys",
    "label",
    "label_by_hand",
    "label_file",
    "print_labels",
    "print_structured",
    "refuse_mixed",
    "rule_from",
    "shares",
]


@app.command()
def label(
    records: RecordsArgument,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(available_rules())}. Default: option if the questions have options, json if answers have "
            "a format, tool_call if tools are offered and a reference is a call, else token_f1."
        ),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="token_f1: smallest F1 that counts as right (0.5).")] = None,
    tolerance: Annotated[float | None, typer.Option(help="numeric: relative tolerance (1e-6).")] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="chat_judge: the model that judges, written as for `collect --model`.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels people gave, instead of a rule: .jsonl or .csv with id and correct."),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Judge the answers yourself, key by key; saved in --labels.")
    ] = False,
    order: Annotated[str, typer.Option(help="Interactive: random or file.")] = "random",
    seed: Annotated[int, typer.Option(help="Interactive: seed of the random order.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Interactive: judge this many and stop.", min=1)] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: the record file itself.")] = None,
) -> None:
    """Decide which primary answers are right, by a rule that is stored with the threshold.

    Read some of the labels: "at most 10 % wrong" will mean wrong [italic]by this rule[/italic].

    Example: [cyan]calibrate label records.jsonl --rule token_f1 --threshold 0.5[/cyan]

    Example: [cyan]calibrate label records.jsonl --interactive[/cyan]
    """
    target = out or records
    by_rule = (rule, threshold, tolerance, judge_model) != (None, None, None, None)
    if by_rule and (labels is not None or interactive):
        raise UsageError("--labels, --interactive and a rule exclude each other: give labels, or how to make them")
    if interactive:
        labels = labels or records.with_name(f"{records.stem}.labels.jsonl")
    keep_inputs([labels], [target, records])
    if interactive and labels is not None and not _by_hand(records, labels, order, seed, limit):
        return
    if labels is not None:
        given = read_labels(labels)

        def with_given(file: RecordFile) -> RecordFile:
            header = file.header.model_copy(update={"correctness": given.spec})
            return RecordFile(file.path, header, tuple(apply_labels(file.records, given)), file.torn)

        labelled = changed_file(records, target, with_given)
    else:
        cache = records.with_name(f"{records.stem}.judge.jsonl")
        shown = bar(console, "judging", "answers") if judge_model is not None else nullcontext(silent)
        with shown as progress:
            labelled = changed_file(
                records,
                target,
                lambda file: label_file(
                    file,
                    rule_from(
                        file, rule, threshold=threshold, tolerance=tolerance, judge_model=judge_model, cache=cache
                    ),
                    progress,
                ),
            )
    print_labels(labelled)
    print_structured(labelled)
    finish([target], f"calibrate fit {target} --alpha 0.1")


def _by_hand(records: Path, labels: Path, order: str, seed: int, limit: int | None) -> bool:
    """A labelling session; whether all that was asked for is labelled."""
    if order not in ("random", "file"):
        raise UsageError(f"--order must be random or file, got {order!r}")
    file = read_records(records)
    queue = queue_of(file.records, order="file" if order == "file" else "random", seed=seed, limit=limit)
    with open_store(labels) as store:
        session = Session(queue, store)
        label_by_hand(session, console, sys.stdin)
        done, total = session.done, session.total
    if done == total:
        return True
    print_line(f"{done} of {total} are labelled or skipped; all of them are in {labels}.")
    finish(
        [], f"calibrate label {records} --interactive goes on; calibrate label {records} --labels {labels} stops here"
    )
    return False


def rule_from(
    file: RecordFile,
    name: str | None,
    *,
    threshold: float | None = None,
    tolerance: float | None = None,
    judge_model: str | None = None,
    cache: Path | None = None,
) -> CorrectnessRule:
    """The correctness rule a user named, or the default for these questions and answers.

    Args:
        file: The records.
        name: Name of the rule.
        threshold: Of token_f1.
        tolerance: Of numeric.
        judge_model: The model of chat_judge, as a user writes it.
        cache: Where chat_judge keeps its verdicts.

    Raises:
        UsageError: An unknown rule, a parameter it does not have, or a judge without a model.
    """
    if judge_model is not None:
        refuse_mixed(name, threshold=threshold, tolerance=tolerance)
        return ChatJudge(resolve_model(judge_model), cache)
    params = {key: value for key, value in (("threshold", threshold), ("tolerance", tolerance)) if value is not None}
    return make_rule(name or default_rule(file.records, file.header.plan.bindings).spec.name, **params)


def refuse_mixed(name: str | None, *, threshold: float | None, tolerance: float | None) -> None:
    """Refuse a judge model together with another rule, or with another rule's parameters.

    Raises:
        UsageError: They were given together.
    """
    if name not in (None, "chat_judge") or (threshold, tolerance) != (None, None):
        raise UsageError(
            f"a judge model is for rule chat_judge alone, which has no other parameter; got rule {name}, threshold "
            f"{threshold}, tolerance {tolerance}. Leave one of them out."
        )


def label_file(file: RecordFile, rule: CorrectnessRule, progress: Progress = silent) -> RecordFile:
    """The file with labels, in memory."""
    header = file.header.model_copy(update={"correctness": rule.spec})
    return RecordFile(file.path, header, tuple(label_records(file.records, rule, progress)), file.torn)


def print_labels(file: RecordFile) -> None:
    """Share of right answers, and what could not be labelled."""
    spec = file.header.correctness
    assert spec is not None
    labels = [record.correct for record in file.records]
    right, known = labels.count(True), len(labels) - labels.count(None)
    share = percent(right / known if known else 0.0)
    print_line(f"Rule {describe_spec(spec.name, spec.params)}: {right} of {known} answers are right ({share}).")
    reasons = Counter(record.label_detail for record in file.records if record.correct is None)
    for reason, count in reasons.most_common(5):
        print_line(f"  {count} not labelled: {reason}", "yellow")
    twice = contradictions(file.records)
    if twice:
        first, second = twice[0]
        print_line(
            f"  {len(twice)} questions are labelled both ways, e.g. {first.id!r} and {second.id!r}: `fit` will stop.",
            "yellow",
        )


def print_structured(file: RecordFile, estimator: str | None = None) -> None:
    """Warn where answers are JSON or tool calls, and the rule (or the estimator's judge) compares words."""
    spec = file.header.correctness
    scores = file.header.estimators.get(estimator or "")
    judge = None if scores is None or scores.judge is None else scores.judge.name
    for sentence in structured_advice(file.records, "" if spec is None else spec.name, judge):
        print_line(sentence, "yellow")


# -- What a person sees: one record as a card, and the loop of card and key --------------------------------------------

_SHOWN = 8
"""Distinct samples on a card."""


def label_by_hand(session: Session, console: Console, stream: TextIO) -> None:
    """Show records and read keys until all are done, or the person quits, or the input ends."""
    pressed = keys(stream)
    while (record := session.current) is not None:
        if console.is_terminal:
            console.clear()
        console.print(card(record, done=session.done, total=session.total))
        key = next(pressed, None)
        if key is None:
            return
        answer = session.press(key)
        if answer is Pressed.QUIT:
            return
        console.print(f"[dim]{escape(key)}: {answer.value}[/dim]")


def card(record: Record, *, done: int, total: int) -> Panel:
    """A record: question, options, answer, references, and the distinct samples with their shares."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("question", Text(record.question))
    for name, option in (record.options or {}).items():
        rows.add_row("", Text(option if name == option else f"{name}) {option}"))
    rows.add_row("answer", Text(record.answer or "(empty)", style="bold cyan"))
    rows.add_row("accepted", Text(" | ".join(record.references) or "(none given)", style="green"))
    for text, share in shares(record)[:_SHOWN]:
        rows.add_row(f"{share:.0%}", Text(text or "(empty)", style="dim"))
    help_line = Text("   ".join(f"{key} {meaning}" for key, meaning in KEYS.items()), style="dim")
    return Panel(
        Group(rows, "", Text("Is the answer right?"), help_line), title=f"{done} of {total} done", title_align="left"
    )


def shares(record: Record) -> list[tuple[str, float]]:
    """Distinct samples (normalised; shown as first seen) with their share, most frequent first."""
    samples = [sample.text for sample in record.drawn.samples] if record.drawn is not None else []
    spelling: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for text in samples:
        key = normalise(text)
        spelling.setdefault(key, text)
        counts[key] += 1
    return [(spelling[key], count / len(samples)) for key, count in counts.most_common()]


# -- Single keys from a terminal; first letters of lines from a pipe ---------------------------------------------------

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O.|.)?|[\x00\xe0].|[\r\n]", flags=re.DOTALL)
"""What arrow and function keys send (on Windows after NUL or \xe0), and Return: not keys here."""


def keys(stream: TextIO) -> Iterator[str]:
    """Keys as they are pressed, without Return; of piped input the first letter of each line.

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
