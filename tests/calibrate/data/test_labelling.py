"""Labels given by hand: the session, its file, the keys, the whole command through a terminal and a pipe."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from calibrate.cli.frame import terminal as terminal_frame
from calibrate.cli.frame.people import _page, card, keys, label_by_hand
from calibrate.correctness.chat_judge import judge_messages
from calibrate.data.labels import (
    LabelSession,
    apply_labels,
    open_session,
    queue_of,
    read_labels,
    refuse_contradictions,
)
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.pipeline import fit_artifact
from guardrail.__main__ import main
from guardrail.errors import RecordError, UsageError
from guardrail.plain_json import visible
from guardrail.types import Sample, SampleSet, ToolCall
from tests.calibrate.commands import run

ROOT = Path(__file__).parents[3]


def record(name: str, answer: str | None = "x", *, question: str | None = None, correct: bool | None = None) -> Record:
    primary = Sample(text=answer) if answer is not None else None
    drawn = SampleSet(question="?", primary=primary, samples=tuple(Sample(text=t) for t in ("Paris", "paris.", "Nice")))
    return Record(
        id=name, question=question or f"question {name}?", references=("Paris",), drawn=drawn, correct=correct
    )


def records(n: int) -> list[Record]:
    return [record(f"r{i}", f"answer {i}") for i in range(n)]


def stored(path: Path) -> list[tuple[str, bool | None]]:
    return [(row["id"], row["correct"]) for row in map(json.loads, path.read_text().splitlines())]


def press(path: Path, queue: Sequence[Record], typed: str) -> tuple[str, LabelSession]:
    """What a session prints for these keys."""
    shown = io.StringIO()
    with open_session(path, queue) as session:
        label_by_hand(session, Console(file=shown), io.StringIO("\n".join(typed)))
    return shown.getvalue(), session


def test_every_label_is_on_disk_when_it_is_given(tmp_path: Path) -> None:
    path, seen = tmp_path / "l.jsonl", list[int]()
    with open_session(path, records(4)) as session:
        for each, correct in zip(records(3), (True, False, None), strict=True):
            session.give(each, correct)
            seen.append(len(stored(path)))
        assert (session.done, session.total, session.left) == (3, 4, records(4)[3:])
    assert seen == [1, 2, 3]
    assert stored(path) == [("r0", True), ("r1", False), ("r2", None)]
    assert "x: no such key" in press(path, records(4), "xQ")[0]
    assert len(stored(path)) == 3


def test_undo_goes_back_one_by_one_even_into_an_earlier_session(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    shown, session = press(path, records(3), "yyu")
    assert "u: taken back" in shown
    assert session.left == records(3)[1:]
    assert stored(path) == [("r0", True)]
    press(path, records(3), "n")
    with open_session(path, list(reversed(records(3)))) as again:
        assert again.undo()
        assert [each.id for each in again.left] == ["r1", "r2"]  # the one that was taken back, not the first
        assert again.undo()
        assert not again.undo()
        assert path.read_bytes() == b""
    assert "u: there is nothing to take back" in press(path, records(3), "u")[0]


def test_a_torn_last_line_is_cut_and_its_question_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text('{"id": "r0", "correct": true, "judged": "answer 0"}\n{"id": "r1", "corr')
    with open_session(path, records(2)) as session:
        assert session.left == records(2)[1:]
        session.give(session.left[0], False)
    assert stored(path) == [("r0", True), ("r1", False)]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text('{"id": "r0", "correct": true}\n')
    with pytest.raises(RecordError, match=r"l\.jsonl: .*which answer was judged"), open_session(path):
        pass
    path.write_text('{"id": "r0", "correct": "perhaps", "judged": "x"}\n')
    with pytest.raises(RecordError, match=r"l\.jsonl:1: field 'correct': got 'perhaps'"), open_session(path):
        pass
    path.write_text("")
    with open_session(path), pytest.raises(UsageError, match="another process"), open_session(path):
        pass
    # It would be read as a table once hundreds of labels were given.
    with pytest.raises(UsageError, match=r"--labels l\.jsonl"), open_session(tmp_path / "l.csv"):
        pass


def test_labels_apply_only_to_the_answers_they_are_for(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    press(path, records(2), "ys")
    labels = read_labels(path)
    assert labels.given == {("r0", "answer 0"): True, ("r1", "answer 1"): None}
    labelled = apply_labels(records(3), labels)
    assert [each.correct for each in labelled] == [True, None, None]
    assert [each.label_detail for each in labelled] == ["", "skipped in l.jsonl", ""]  # the third waits for its label
    others = [record("r0", "other"), record("r1", "another")]
    with pytest.raises(UsageError, match="That of 'r0' is for 'answer 0', but the record's answer is 'other'"):
        apply_labels(others, labels)


def test_after_a_new_collection_people_are_asked_about_new_answers_only(tmp_path: Path) -> None:
    """A changed prompt costs the labels of the answers that it changed, and no others."""
    path = tmp_path / "l.jsonl"
    press(path, records(3), "yny")
    again = [*records(2), record("r2", "a new answer")]
    with open_session(path, again) as session:
        assert (session.done, session.outdated, session.total) == (2, 1, 3)
        assert session.left == again[2:]
        session.give(again[2], False)
    assert [each.correct for each in apply_labels(again, read_labels(path))] == [True, False, False]
    assert [each.correct for each in apply_labels(records(3), read_labels(path))] == [True, False, True]


def test_the_order_is_random_and_stable() -> None:
    some = records(50)
    first = [each.id for each in queue_of(some)]
    assert sorted(first) == sorted(each.id for each in some)
    assert first != [each.id for each in some]
    assert first == [each.id for each in queue_of(list(reversed(some)))]
    assert [each.id for each in queue_of(some, shuffled=False, limit=2)] == ["r0", "r1"]
    assert [each.id for each in queue_of([record("a", None), record("b")])] == ["b"]
    with pytest.raises(UsageError, match="none of 1 records has an answer"):
        queue_of([record("a", None)])


def test_the_card_shows_what_is_needed_to_judge() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    shown = record("a", "[bold]Paris[/bold]").model_copy(update={"options": {"A": "Paris", "B": "Nice"}})
    console.print(card(shown, done=37, total=200))
    text = console.export_text()
    for part in ("37 of 200 done", "question a?", "[bold]Paris[/bold]", "A) Paris", "y right", "u undo"):
        assert part in text
    for hint in ("67%", "33%", "paris."):  # the shares and wordings of the samples are the score
        assert hint not in text


def test_what_was_said_before_is_shown_to_who_labels(labelled: RecordFile) -> None:
    """Nobody can judge an answer to "And there?"."""
    said = [("system", "Be brief."), ("user", "Sights of Oslo?"), ("assistant", "Many."), ("user", "And there?")]
    messages = tuple({"role": role, "content": text} for role, text in said)
    shown = record("a", "Rain.").model_copy(update={"question": "And there?", "messages": messages})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(card(shown, done=0, total=1))
    lines = [line.strip(" │") for line in console.export_text().splitlines()]
    at = lines.index("question  user: Sights of Oslo?")
    assert lines[at + 1 : at + 3] == ["assistant: Many.", "user: And there?"]
    asked = judge_messages("Rain.", shown.to_question())[-1].text
    assert r'Question: "user: Sights of Oslo?\nassistant: Many.\nuser: And there?"' in asked
    page = _page(shown, labelled.header)
    assert [turn["content"] for turn in page.messages] == [text for _, text in said]
    assert (page.verdict, page.alternatives) == (None, ()), "scores and other answers would sway the label"


HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b]8;;http\x07Paris\x9b1m\u202esiraP\r\nright\rwrong\ud83d \U0001f469\u200d\U0001f52c"
)
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x1b]8;;http\x07Paris\x9b1m\u202esiraP"


def test_a_control_character_is_shown_and_not_obeyed() -> None:
    assert visible(HOSTILE) == SHOWN + "\r\nright\\rwrong\\ud83d \U0001f469\u200d\U0001f52c"
    assert visible(HOSTILE, one_line=True).startswith(SHOWN + r"\r\nright\rwrong")
    for unseen in "\xad\u034f\u180e\u2062\u3164\ufff9\U000e0041":
        assert visible(f"a{unseen}b") == f"a{unseen.encode('unicode_escape').decode()}b"
    assert visible("plain\ttext, ä, 中\n") == "plain\ttext, ä, 中\n"


def test_no_control_character_of_an_answer_reaches_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = {"question": HOSTILE, "options": {"A": HOSTILE}, "references": ("r", HOSTILE)}
    shown = record("a", HOSTILE).model_copy(update=hostile)
    out = io.StringIO()
    for console in (
        terminal_frame.VisibleConsole(file=out, width=200, force_terminal=True),
        Console(file=out, width=200),
    ):
        console.print(card(shown, done=1, total=2))
    monkeypatch.setattr(terminal_frame, "console", terminal_frame.VisibleConsole(file=out, width=200))
    terminal_frame.print_line(HOSTILE, "yellow")
    terminal_frame.console.print(terminal_frame.table(HOSTILE, [HOSTILE], [[HOSTILE]]))
    terminal_frame.console.print(Text(HOSTILE), Panel(Text(HOSTILE)), f"[bold]{escape(HOSTILE)}[/bold]")
    styled = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # rich's own colours
    assert not set(styled) & set("\x1b\x07\x9b\u202e\ud83d")
    assert styled.count(r"\x1b]0;owned\x07") >= 10
    # The control: a console of rich's obeys.
    Console(file=(obeyed := io.StringIO())).print(Text(HOSTILE))
    assert "\x1b]0;owned" in obeyed.getvalue()
    assert main(["doctor", "\x1b[2Jnowhere.json"]) == 1
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert r"\x1b[2Jnowhere" in printed.out + printed.err


def test_piped_lines_are_keys(tmp_path: Path) -> None:
    assert list(keys(io.StringIO("yes\n\n N \n"))) == ["y", "N"]
    path = tmp_path / "l.jsonl"
    press(path, records(3), "yN")  # the input ends before the queue
    assert stored(path) == [("r0", True), ("r1", False)]


@pytest.fixture
def labelled_path(labelled: RecordFile, tmp_path: Path) -> Path:
    """Six records without labels."""
    path = tmp_path / "r.jsonl"
    header = labelled.header.model_copy(update={"correctness": None})
    write_records(path, header, [each.model_copy(update={"correct": None}) for each in labelled.records[:6]])
    return path


def test_the_command_resumes_and_labels_when_all_is_judged(labelled_path: Path, tmp_path: Path) -> None:
    labels = tmp_path / "r.labels.jsonl"
    shown = run("label", labelled_path, "--interactive", keys="y\nn\nq\n")
    assert f"2 of 6 are labelled or skipped; all of them are in {labels}" in shown
    assert read_records(labelled_path).header.correctness is None
    first = stored(labels)
    shown = run("label", labelled_path, "--interactive", keys="u\ny\ns\ny\ny\nn\n")
    assert "2 of 6 done" in shown
    assert len(stored(labels)) == 6
    assert stored(labels)[0] == first[0]
    assert stored(labels)[1] == (first[1][0], True)
    assert "4 of 5 answers are right" in shown
    file = read_records(labelled_path)
    assert file.header.correctness is not None
    assert file.header.correctness.name == "given"
    assert [each.label_detail for each in file.records].count("skipped in r.labels.jsonl") == 1
    assert "exclude each other" in run("label", labelled_path, "--interactive", "--rule", "exact", code=2)


def test_people_who_check_a_rule_are_told_how_often_it_agrees(labelled_path: Path) -> None:
    run("label", labelled_path, "--rule", "exact")
    right = [bool(record.correct) for record in read_records(labelled_path).records]
    first, *rest = read_records(labelled_path).records
    labels = labelled_path.with_name("mine.csv")
    rows = [(first.id, not right[0]), *((record.id, label) for record, label in zip(rest, right[1:], strict=True))]
    labels.write_text("id,correct\n" + "".join(f"{name},{label}\n" for name, label in rows))
    shown = run("label", labelled_path, "--labels", labels)
    assert "People agree with rule exact on 5 of 6 answers (83.3 %)." in shown


def test_a_limit_labels_a_random_part(labelled_path: Path) -> None:
    shown = run("label", labelled_path, "--interactive", "--limit", "2", keys="y\nn\n")
    assert "1 of 2 answers are right" in shown
    assert "4 not labelled: no label in" in shown


def wait_for(descriptor: int, text: str, seen: list[bytes]) -> None:
    """Read a terminal until it shows a text; fails after 30 seconds."""
    end = time.monotonic() + 30
    while text.encode() not in b"".join(seen):
        assert time.monotonic() < end, b"".join(seen)
        if select.select([descriptor], [], [], 0.5)[0]:
            seen.append(os.read(descriptor, 65536))


class Terminal:
    """The labelling command on a pseudo-terminal."""

    def __init__(self, records: Path) -> None:
        self.ours, self.theirs = pty.openpty()
        self.seen: list[bytes] = []
        self.before = termios.tcgetattr(self.theirs)
        command = [sys.executable, "-m", "calibrate", "label", str(records), "--interactive"]
        self.process = subprocess.Popen(
            command, stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, cwd=ROOT, start_new_session=True
        )

    def shows(self, text: str) -> None:
        wait_for(self.ours, text, self.seen)

    def press(self, data: bytes) -> None:
        """Send keys once the command reads single keys: what is typed before the card is shown does not count."""
        end = time.monotonic() + 30
        while termios.tcgetattr(self.theirs)[3] & termios.ICANON:
            assert time.monotonic() < end, "the command never waited for a key"
            select.select([], [], [], 0.01)
        os.write(self.ours, data)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal(labelled_path: Path) -> Iterator[Terminal]:
    opened = Terminal(labelled_path)
    yield opened
    opened.close()


def test_single_keys_through_a_terminal_survive_a_kill(terminal: Terminal, tmp_path: Path) -> None:
    """No Return is pressed; the process is killed after two keys, and both labels are there."""
    terminal.shows("0 of 6 done")
    terminal.press(b"\x1b[Ay")  # an arrow key is not a key
    terminal.shows("1 of 6 done")
    terminal.press(b"n")
    terminal.shows("2 of 6 done")
    terminal.process.kill()
    terminal.process.wait()
    assert [correct for _, correct in stored(tmp_path / "r.labels.jsonl")] == [True, False]


@pytest.mark.parametrize(
    ("key", "code", "said"), [(b"\x03", 130, "Stopped."), (b"\x04", 0, "1 of 6 are labelled or skipped")]
)
def test_ctrl_c_and_ctrl_d_stop_and_set_the_terminal_back(
    terminal: Terminal, tmp_path: Path, key: bytes, code: int, said: str
) -> None:
    terminal.shows("0 of 6 done")
    terminal.press(b"y")
    terminal.shows("1 of 6 done")
    terminal.press(key)
    terminal.shows(said)
    assert terminal.process.wait(timeout=30) == code
    assert [correct for _, correct in stored(tmp_path / "r.labels.jsonl")] == [True]
    assert termios.tcgetattr(terminal.theirs) == terminal.before


@pytest.mark.parametrize(
    ("second", "is_refused"),
    [
        ({"correct": False}, True),
        ({"correct": True}, False),
        ({"correct": None}, False),
        ({"correct": False, "answer": "Lyon"}, False),
        ({"correct": False, "question": "another?"}, False),
    ],
)
def test_one_answer_to_one_question_cannot_be_right_and_wrong(second: dict[str, object], is_refused: bool) -> None:
    both = [
        record("a", "Paris", question="capital?", correct=True),
        record("b", **{"answer": " Paris ", "question": "capital? ", **second}),  # type: ignore[arg-type]
    ]
    for given in (both, both[::-1]):
        with pytest.raises(UsageError, match="records 'a' and 'b'") if is_refused else nullcontext():
            refuse_contradictions(given)


def test_options_and_tool_calls_tell_questions_and_answers_apart() -> None:
    a, b = record("a", "A", question="q?", correct=True), record("b", "A", question="q?", correct=False)
    options = [{"A": "x", "B": "y"}, {"A": "y", "B": "x"}]
    refuse_contradictions([a.model_copy(update={"options": options[0]}), b.model_copy(update={"options": options[1]})])
    calls = [
        SampleSet(question="q?", primary=Sample(text="A", tool_calls=(ToolCall(name="f", arguments={"x": x}),)))
        for x in (1, 2)
    ]
    refuse_contradictions([a.model_copy(update={"drawn": calls[0]}), b.model_copy(update={"drawn": calls[1]})])
    with pytest.raises(UsageError, match="the same question 'q"):
        refuse_contradictions([a.model_copy(update={"drawn": None}), b.model_copy(update={"drawn": None})])


def test_contradictions_stop_the_fit(labelled: RecordFile) -> None:
    twins: Sequence[Record] = [
        labelled.records[0].model_copy(update={"id": "twin", "correct": not labelled.records[0].correct})
    ]
    file = RecordFile(labelled.path, labelled.header, (*labelled.records, *twins))
    with pytest.raises(UsageError, match=r"'p0'.*'twin'|'twin'.*'p0'"):
        fit_artifact(file, score="semantic_entropy", alpha=0.15, rule="acrc")
    refuse_contradictions(labelled.records)
