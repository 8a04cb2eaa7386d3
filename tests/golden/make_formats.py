"""Writes each stored format again from its golden file: ``python -m tests.golden.make_formats``.

The files change only with the version of a format. To change one: edit its JSON (a digest in it is made again) or its
writer here, and run this. Clock and random ids are fixed; databases are stored as SQL, so that a change shows as a
difference of lines.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks.estimators.page import Page
from calibrate.data.labels import open_session
from calibrate.data.records import read_records, write_records
from calibrate.evaluation.results import Evaluation
from calibrate.ledger import Ledger
from guardrail.artifact import CalibrationArtifact, CascadeArtifact, RouterArtifact
from guardrail.files import Persisted
from guardrail.guard.assess import Remembered
from guardrail.judges import Entailment, EntailmentScores, Judge, JudgeSpec, Similarity
from guardrail.judges.cache import PairCache, cached
from guardrail.review import Candidate, CandidateRule, Content, Decision, Monitors, ReviewStore
from guardrail.review.candidates import CandidateSet
from guardrail.review.web.accounts import add_token
from guardrail.specs import EstimatorSpec
from guardrail.testing import ScriptedChat
from guardrail.types import Frozen, SampleSet, ToolCall
from guardrail.verdict import Verdict
from integrations._agents.decisions import review_request
from integrations._agents.held import MessageNote, ToolCallOrder, pack
from integrations._agents.verdicts import VerdictStore

FOLDER = Path(__file__).parent / "formats"
NOW = 1_700_000_000.0
QUESTION = "Who wrote Faust?"
PAIRS = [("Goethe", "J. W. Goethe"), ("Goethe", "Schiller ü")]
Write = Callable[[Path, Path], object]
"""Writes a target from the golden file."""


def plain(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def model(*answers: str) -> ScriptedChat:
    """The model of the artifact; its words have log-probability ln .5, so its perplexity score is ln 2."""
    return ScriptedChat(script={QUESTION: answers}, probability=0.5, name_of_model="small")


# -- JSON --------------------------------------------------------------------------------------------------------------


def artifact(kind: type[Persisted]) -> Write:
    def write(source: Path, target: Path) -> None:
        content = json.loads(source.read_text(encoding="utf-8"))
        content.pop("digest", None)
        kind.from_stored(json.dumps(content)).save(target)

    return write


def values(kinds: dict[str, type[Frozen]]) -> Write:
    """Each field is a value of its kind."""

    def write(source: Path, target: Path) -> None:
        stored = json.loads(source.read_text(encoding="utf-8"))
        _write(target, {name: kind.from_stored(stored[name]).model_dump(mode="json") for name, kind in kinds.items()})

    return write


def printed(kind: type[Frozen]) -> Write:
    """A file as `--json` of a command writes it."""

    def write(source: Path, target: Path) -> None:
        text = kind.from_stored(source.read_text(encoding="utf-8")).model_dump_json(indent=1)
        target.write_text(text + "\n", encoding="utf-8")

    return write


def write_interrupt(_: Path, target: Path) -> None:
    note = MessageNote.from_stored(plain("note.json"))
    assert note.held is not None
    _write(target, review_request(note.held))


def write_note(source: Path, target: Path) -> None:
    _write(target, MessageNote.from_stored(json.loads(source.read_text(encoding="utf-8"))).model_dump(mode="json"))


def write_tokens(_: Path, target: Path) -> None:
    with fixed_ids():
        add_token(target, "ann", "reviewer")
        add_token(target, "jörg", "admin")


def _write(target: Path, content: Any) -> None:
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# -- lines -------------------------------------------------------------------------------------------------------------


def write_file_of_records(source: Path, target: Path) -> None:
    file = read_records(source)
    write_records(target, file.header, file.records)


def write_labels(source: Path, target: Path) -> None:
    answered = read_records(FOLDER / "records.jsonl").records[0]
    assert answered.drawn is not None
    assert answered.drawn.primary is not None
    with open_session(target) as session:
        for line in source.read_text(encoding="utf-8").splitlines():
            label = json.loads(line)
            primary = answered.drawn.primary.model_copy(update={"text": label["judged"]})
            drawn = answered.drawn.model_copy(update={"primary": primary})
            session.give(answered.model_copy(update={"id": label["id"], "drawn": drawn}), label["correct"])


def write_ledger(_: Path, target: Path) -> None:
    Ledger([FOLDER / "records.jsonl"]).copy_to(target.with_name("records.jsonl"))


class Toy:
    """A judge, similarity or entailment model that returns scripted answers, and raises when it has none left."""

    def __init__(self, name: str, answers: Sequence[Any] = ()) -> None:
        self._name = name
        self._answers = list(answers)

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name=self._name, version=1, params={"revision": "sha256:00", "prompt": "ü"})

    def _next(self, number: int) -> list[Any]:
        if len(self._answers) < number:
            raise AssertionError("the cache does not hold the verdict")
        return [self._answers.pop(0) for _ in range(number)]


class ToyJudge(Toy, Judge):
    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return self._next(len(pairs))


class ToySimilarity(Toy, Similarity):
    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        return self._next(len(pairs))


class ToyEntailment(Toy, Entailment):
    def compare(self, items: Sequence[tuple[str, str, str]]) -> list[EntailmentScores | None]:
        return self._next(len(items))


def write_pairs(_: Path, target: Path) -> None:
    with database(target) as file:
        cache = PairCache(file)
        cached(ToyJudge("toy", [True, False]), cache).equivalent(QUESTION, PAIRS)
        cached(ToySimilarity("toy", [0.75, 0.25]), cache).similarity(QUESTION, PAIRS)
        scores = [EntailmentScores(0.5, 0.25, 0.25), EntailmentScores(0.125, None, 0.875)]
        cached(ToyEntailment("toy", scores), cache).compare([(QUESTION, *pair) for pair in PAIRS])


def write_verdicts(_: Path, target: Path) -> None:
    with database(target) as file, patch("time.time", lambda: 1000.0), closing(VerdictStore(file)) as store:
        held = MessageNote.from_stored(plain("note.json"))
        store.put(
            "c2", held.model_copy(update={"orders": {"c2": ToolCallOrder(digest="0f:transfer", decision="held")}})
        )
        store.decide("c2", {"type": "approve"})
        store.put("call_2", MessageNote(orders={"call_2": ToolCallOrder(digest="0f:balance", decision="exempt")}))


def write_reviews(_: Path, target: Path) -> None:
    """A queue with an item in each state, a callback, and monitors with an alarm."""
    with database(target) as file, fixed_ids():
        clock = itertools.count(NOW, 1.0)
        with ReviewStore(f"sqlite:///{file}", clock=lambda: next(clock)) as store:
            _fill_queue(store)
            monitors = Monitors(store)
            judged = CalibrationArtifact.load(FOLDER / "artifact.json")
            risk = monitors.risk("risk", judged, delta=0.5)
            risk.update(False, key="request 1")
            risk.update(True)
            risk.update(True)
            drift = monitors.drift("drift", judged, delta=0.25, seed=3)
            drift.update(0.5, key="question 1")
            drift.update(1.75)


def _fill_queue(store: ReviewStore) -> None:
    stored = plain("review-items.json")
    store.enqueue(Content.from_stored(stored["content"]), key="decided", callback="https://example.org/hook")
    lease = store.claim("ann")
    assert lease is not None
    store.decide(lease, Decision.from_stored(stored["decision"]))
    calls = (ToolCall(name="balance", arguments={}), ToolCall(name="transfer", arguments={"to": "bob", "amount": 5}))
    sent = Candidate(text="I send it.", tool_calls=calls)
    call = Content(question="Send Bob 5.", kind="tool_call", candidate=sent, agent=True, fixed=(0,))
    store.enqueue(call, key="claimed")
    store.claim("jörg", seconds=3600)
    late = store.enqueue(Content(question="too late?", allowed=("reject", "respond")), key="expired", expires_in=1.0)
    store.cancel(late.id)
    shown = CandidateSet(answers=(("Goethe", 0.75),), epsilon=0.25, attained=True, attainable=0.125, delta=0.1)
    goethe, metadata = Candidate(text="Goethe"), {"tenant": "ü"}
    pending = Content(question=QUESTION, candidate=goethe, candidate_set=shown, metadata=metadata)
    store.enqueue(pending, key="pending", expires_in=10**6)


REWRITE: dict[str, Write] = {
    "artifact.json": artifact(CalibrationArtifact),
    "artifact-items.json": artifact(CalibrationArtifact),
    "cascade.json": artifact(CascadeArtifact),
    "router.json": artifact(RouterArtifact),
    "candidates.json": artifact(CandidateRule),
    "records.jsonl": write_file_of_records,
    "labels.jsonl": write_labels,
    "records.ledger.jsonl": write_ledger,
    "then.json": printed(EstimatorSpec),
    "evaluation.json": lambda source, target: Evaluation.from_stored(source.read_bytes()).to_json(target),
    "estimator-table.json": printed(Page),
    "draw.json": values({"piece": SampleSet, "verdict": Remembered}),
    "review-items.json": values({"verdict": Verdict, "content": Content, "decision": Decision}),
    "note.json": write_note,
    "note-decided.json": write_note,
    "interrupt.json": write_interrupt,
    "tokens.json": write_tokens,
    "verdicts.sql": write_verdicts,
    "pairs.sql": write_pairs,
    "reviews.sql": write_reviews,
}
"""Writers of the files whose bytes are always the same, by file name. Later ones may read earlier ones."""
READ_ONLY = ("note.packed", "questions.csv", "questions.jsonl", "run.yaml", "steps.jsonl", "tools.json")
"""Files that tests only read: another zlib packs a note as other bytes, and users write the others."""


@contextmanager
def fixed_ids() -> Iterator[None]:
    """Replace random ids by counted ones, without the time."""
    numbers = itertools.count(1)

    def token(size: int) -> str:
        return f"{next(numbers):0{2 * size}x}"

    with patch("secrets.token_hex", token), patch("secrets.token_urlsafe", token), patch("time.time_ns", lambda: 0):
        yield


@contextmanager
def database(target: Path) -> Iterator[Path]:
    """Yield a file for a database; afterwards write its SQL."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "golden.sqlite"
        yield file
        target.write_text(sql_of(file), encoding="utf-8")


def sql_of(file: Path) -> str:
    """Return a database as SQL: tables with their rows, then indexes and triggers; ``iterdump`` differs by Python."""
    with closing(sqlite3.connect(file)) as connection:
        (layout,) = connection.execute("PRAGMA user_version").fetchone()
        parts = connection.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
            "ORDER BY type != 'table', name"
        ).fetchall()
        lines = [f"PRAGMA user_version={layout}"]
        for kind, name, sql in parts:
            lines.append(" ".join(sql.split()))  # line breaks depend on the version of SQLAlchemy
            if kind == "table":
                # The added 0 is for tables of one column: ORDER BY needs two.
                rows = connection.execute(f'SELECT *, 0 FROM "{name}" ORDER BY 1, 2').fetchall()
                lines += [f'INSERT INTO "{name}" VALUES({",".join(map(_literal, row[:-1]))})' for row in rows]
    return "".join(f"{line};\n" for line in lines)


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def main() -> None:
    """Write all files."""
    with TemporaryDirectory() as folder:
        for name, write in REWRITE.items():
            write(FOLDER / name, Path(folder) / name)
            (FOLDER / name).write_bytes((Path(folder) / name).read_bytes())
    note = MessageNote.from_stored(plain("note.json"))
    (FOLDER / "note.packed").write_text(pack(note) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
