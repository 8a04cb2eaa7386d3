"""Record files and labels: what is stored, what a rule or a judge calls right, and which files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from calibrate.correctness import ChatLabelJudge, default_rule, label_records, make_rule
from calibrate.correctness.chat_judge import judge_messages, read_verdict
from calibrate.correctness.registry import available_rules, labelled_by, structured_advice
from calibrate.data.formats import ImportSettings, import_file, parse_map
from calibrate.data.labels import (
    KEYS,
    LabelSession,
    apply_labels,
    contradictions,
    open_store,
    queue_of,
    read_labels,
    refuse_contradictions,
)
from calibrate.data.questions import Question
from calibrate.data.records import (
    RecordFile,
    RecordHeader,
    exclusive,
    line_number,
    open_writer,
    read_records,
    read_spans,
    rewrite_records,
    stream_records,
    with_other_ids,
    write_records,
)
from calibrate.data.split import one_per_cluster, one_per_question, split
from calibrate.data.table import table_of
from calibrate.evaluation.label_checks import broken_labels, labelled_answers, merged_pairs, missed, suspicious
from guardrail.artifact import Reach
from guardrail.judges import make_judge
from guardrail.prompting import PromptWrapping
from guardrail.specs import CorrectnessSpec
from guardrail.testing import ScriptedChat
from guardrail.types import Bindings, SamplingPlan, Unmeasured

from .story import Story, drawn, spelled, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name files as a user types them, which is without the folder of the test."""
    monkeypatch.chdir(tmp_path)


ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "Capital of France?", "references": ["Paris"], "samples": ["Paris", "paris", "Lyon"]},
    {"id": "b", "question": "Capital of Italy?", "references": ["Rome"], "samples": ["Milan", "Rome", "Milan"]},
    {"id": "c", "question": "Capital of Norway?", "references": [], "samples": ["Oslo", "Oslo", "Oslo"]},
    {
        "id": "d",
        "question": "Capital of Spain?",
        "references": ["Madrid"],
        "samples": ["Madrid", "Seville", "No"],
        "group": "g",
    },
]
SCORED = [
    {"id": f"s{i}", "question": f"q{i}?", "u": i / 8, "correct": i % 3 > 0, "group": "ab"[i % 2]} for i in range(8)
]


def file_of(name: str, rows: list[Any], *maps: str, **settings: Any) -> RecordFile:
    """A record file of rows of another tool, always begun at the same time and by the same packages."""
    result = import_file(
        write(f"{name}-rows.jsonl", rows), ImportSettings(columns=parse_map(maps), model="m", **settings)
    )
    header = result.file.header.model_copy(update={"created": "2026-01-01T00:00:00+00:00", "packages": {}})
    write_records(f"{name}.jsonl", header, result.file.records)
    return read_records(f"{name}.jsonl")


def test_record_files() -> None:
    story = Story("records.txt")
    answers = file_of("answers", ROWS)
    scored = file_of("scored", SCORED, "score=u")
    story.head("as they are stored")
    for file in (answers, scored):
        story.say(*file.path.read_text(encoding="utf-8").splitlines()[:3])
    story.head("in a notebook")
    labelled = RecordFile(Path("answers.jsonl"), labelled_by(answers.header, make_rule("exact")),
                          label_records(answers.records, make_rule("stated")))  # fmt: skip
    for file in (answers, labelled, scored):
        story.say(repr(file), file.typed, file._repr_html_())
    story.show("a path with a space", RecordFile(write("a b.jsonl", ""), answers.header, ()).typed)
    story.head("facts of a record")
    failed = answers.records[0].model_copy(update={"drawn": answers.records[0].drawn.model_copy(  # type: ignore[union-attr]
        update={"primary": None, "problem": Unmeasured.MODEL_FAILED})})  # fmt: skip
    for record in (*labelled.records, scored.records[0], failed):
        names = ("answer", "shown_answer", "failed", "cut_off", "may_be_drawn_again", "is_undecided")
        story.show(record.id, {name: getattr(record, name) for name in names})
    story.head("as a table")
    for file in (labelled, scored):
        table = table_of(file.records)
        story.show("ids", table.ids)
        story.show("groups", table.groups)
        for name in ("label", "flags", "kind", "id_hash", "question", "asked", "key"):
            story.show(name, table.numbers(name))
        for name in ("labels", "undecided", "counted_labels", "score_keys", "kinds", "fingerprint", "questions_sha256"):
            story.show(name, getattr(table, name)())
        story.show("scores", table.scores("imported:u"))
        story.show("usable", table.usable("imported:u"))
        story.show("unscored", table.unscored("imported:u"))
        story.show("units", [table.units("id"), table.units("group"), table.first_of_groups(), table.repeated()])
        story.show("both ways", table.both_ways())
    story.head("two files as one")
    others = [row | {"id": f"{row['id']}2", "question": f"{row['question']} (2)"} for row in ROWS]
    other = file_of("others", [ROWS[0] | {"id": "z"}, *others])
    pool = read_records("answers.jsonl", "others.jsonl")
    story.show("repr", repr(pool))
    story.show("header", pool.header)
    story.show("repeated", pool.repeated)
    story.show("ids", pool.records.ids)
    story.show("renamed", with_other_ids(Path("my answers.jsonl")))
    people = CorrectnessSpec(name="given", version=1, params={"file": "x.csv", "sha256": "1"})
    two = CorrectnessSpec(name="given", version=1, params={"file": "y.csv", "sha256": "2"})
    for path, file, spec in (("one.jsonl", answers, people), ("two.jsonl", other, two)):
        write_records(path, file.header.model_copy(update={"correctness": spec}), file.records)
    story.show("labels of people", read_records("one.jsonl", "two.jsonl").header.correctness)
    story.head("cut in two")
    for fraction, groups in ((0.25, "category"), (0.5, "cluster")):
        parts = split(scored.records, test_fraction=fraction, groups=groups)  # type: ignore[arg-type]
        story.show(f"{fraction:g} by {groups}", [[record.id for record in part] for part in parts])
    story.show("one of each cluster", one_per_cluster(scored.records).ids)
    story.show("one of each question", one_per_question([*scored.records, *scored.records]).ids)
    story.head("refused")
    refusals: dict[str, Callable[[], object]] = {
        "scores that are not there": lambda: scored.plot("x"),
        "no scores": lambda: answers.plot(),
        "a test part of 2": lambda: split(scored.records, test_fraction=2),
        "an empty test part": lambda: split(scored.records, test_fraction=0.01),
        "an empty cluster part": lambda: split(scored.records, test_fraction=0.01, groups="cluster"),
        "no groups": lambda: split(answers.records, test_fraction=0.5, groups="cluster"),
        "no groups for one of each": lambda: one_per_cluster(answers.records),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def changed(file: RecordFile, name: str, **update: Any) -> str:
    """A copy of a record file with another header."""
    write_records(name, file.header.model_copy(update=update), file.records)
    return name


def test_record_files_that_are_refused() -> None:
    story = Story("records_refused.txt")
    answers = file_of("answers", ROWS)
    scored = file_of("scored", SCORED, "score=u")
    others = [row | {"id": f"{row['id']}2", "question": f"{row['question']} (2)"} for row in ROWS]
    other = file_of("others", others)
    header, *lines = answers.path.read_text(encoding="utf-8").splitlines()
    story.head("pools")
    rule = CorrectnessSpec(name="exact", version=5)
    spec = scored.header.estimators["imported:u"]
    pools = {
        "an id twice": ("answers.jsonl", "answers.jsonl"),
        "another model": (
            "answers.jsonl",
            changed(other, "m.jsonl", model=header_of(other).model.model_copy(update={"model": "x"})),
        ),
        "another plan": ("answers.jsonl", changed(other, "p.jsonl", plan=SamplingPlan(n=5))),
        "another prompt": ("answers.jsonl", changed(other, "q.jsonl", prompt=PromptWrapping(system="Be brief."))),
        "no labels in the other": (changed(answers, "l.jsonl", correctness=rule), "others.jsonl"),
        "no labels in the first": ("answers.jsonl", changed(other, "l2.jsonl", correctness=rule)),
        "no scores in common": (
            changed(answers, "s.jsonl", estimators={"a": spec}),
            changed(other, "s2.jsonl", estimators={"b": spec}),
        ),
        "no file": ("answers.jsonl", "none.jsonl"),
    }
    for title, paths in pools.items():
        story.refused(title, lambda: read_records(*paths))  # noqa: B023
    story.head("lines")
    files = {
        "empty": "",
        "no header": lines[0] + "\n",
        "a question file": '{"question": "q?", "references": ["x"]}\n',
        "a header that is a text": '{"header": "x"}\n',
        "a header of a later version": header.replace('"format": 1', '"format": 2') + "\n",
        "a header without a model": header.replace('"model": {', '"mode1": {') + "\n",
        "a header that is no JSON": "{\n",
        "a header that is a list": "[]\n",
        "a torn line in the middle": f"{header}\n{lines[0][:40]}\n{lines[1]}\n",
        "a line that is a number": f"{header}\n7\n{lines[1]}\n",
        "a record without a question": f"{header}\n" + '{"id": "x"}\n' + lines[1] + "\n",
        "a label that is a word": f"{header}\n{lines[0]}\n"
        + lines[1].replace('"correct":null', '"correct":"maybe"')
        + "\n",
        "an id twice": f"{header}\n{lines[0]}\n{lines[1]}\n{lines[0]}\n",
        "labels of other parts": f"{header}\n"
        + lines[0].replace('"correct":', '"parts":{"k":[]},"part_labels":{"k":{"right":[true]}},"correct":')
        + "\n"
        + lines[1]
        + "\n",
    }
    for title, content in files.items():
        write("x.jsonl", content)
        story.refused(title, lambda: read_records("x.jsonl"))
    for name in ("table.csv", "table.parquet", "table.xlsx"):
        write(name, "id,answer\na,x\n")
        story.refused(name, lambda: read_records(name))  # noqa: B023
    story.refused("a workbook", lambda: read_records(write("book.xlsx", b"PK\x03\x04")))
    story.refused(
        "no file to change", lambda: stream_records("none.jsonl", "y.jsonl", lambda reader: (reader.header, reader))
    )
    story.refused("no file to rewrite", lambda: rewrite_records("none.jsonl", lambda file: file))
    alone = lines[0].replace('"correct":', '"part_labels":{"k":{"right":[true]}},"correct":')
    write("x.jsonl", f"{header}\n{alone}\n")
    story.show("labels of parts that the record does not have", read_records("x.jsonl").records[0].part_labels)
    write("x.jsonl", f"{header}\n{lines[0]}\n\n{lines[1][:50]}")
    torn = read_records("x.jsonl")
    story.show("a torn last line", {"ids": torn.records.ids, "torn": torn.torn})
    with open_writer("x.jsonl", answers.header) as (writer, there):
        story.show("resumed", {"ids": there.records.ids})
        writer.append([answers.records[1]])
    story.show("written", read_records("x.jsonl").records.ids)
    story.head("other collections")
    changes: dict[str, dict[str, Any]] = {
        "another plan": {"plan": SamplingPlan(n=5, temperature=1.5)},
        "another prompt": {"prompt": PromptWrapping(system="Be brief.")},
        "other questions": {"questions_sha256": "0" * 64, "questions_name": "new.jsonl", "n_questions": 9},
        "another model": {"model": answers.header.model.model_copy(update={"model": "x"})},
    }
    for title, update in changes.items():
        story.refused(title, lambda: opened(answers.header.model_copy(update=update)))  # noqa: B023
    story.compare()


def header_of(file: RecordFile) -> RecordHeader:
    return file.header


def opened(header: RecordHeader) -> None:
    with open_writer("answers.jsonl", header):
        pass


LABEL_FILES: dict[str, tuple[str, Any]] = {
    "JSON lines": ("l.jsonl", [{"id": "a", "correct": True}, {"id": "b", "correct": "no"}, {"id": 3, "correct": 1}]),
    "a table": ("l.csv", "id,correct,note\na,Right,x\nb,WRONG,\n"),
    "of a session": (
        "l.jsonl",
        [
            {"id": "a", "correct": None, "judged": "Paris"},
            {"id": "b", "correct": False, "judged": "Milan", "format": 1},
        ],
    ),
    "a format of another kind": ("l.jsonl", [{"id": "a", "correct": 0, "format": "x"}]),
}
BAD_LABELS: dict[str, tuple[str, Any]] = {
    "no id": ("l.jsonl", [{"correct": True}]),
    "an empty id": ("l.jsonl", [{"id": " ", "correct": True}]),
    "an id twice": ("l.jsonl", [{"id": "a", "correct": True}, {"id": "a", "correct": True}]),
    "skipped and labelled": (
        "l.jsonl",
        [{"id": "a", "correct": None, "judged": "x"}, {"id": "a", "correct": True}],
    ),
    "a word": ("l.jsonl", [{"id": "a", "correct": "maybe"}]),
    "nothing": ("l.jsonl", [{"id": "a", "correct": None}]),
    "no label": ("l.jsonl", []),
    "a later format": ("l.jsonl", [{"id": "a", "correct": True, "format": 2}]),
}


def test_labels_of_people() -> None:
    story = Story("labels.txt")
    story.head("files")
    for title, (name, content) in LABEL_FILES.items():
        labels = read_labels(write(name, content))
        story.show(title, {"correct": labels.correct, "skipped": labels.skipped, "answers": labels.answers})
        story.show("  spec", labels.spec)
    story.head("files that are refused")
    for title, (name, content) in BAD_LABELS.items():
        path = write(name, content)
        story.refused(title, lambda: read_labels(path))  # noqa: B023
    story.refused("no file", lambda: read_labels("none.jsonl"))
    story.head("applied")
    records = file_of("answers", ROWS).records
    given = read_labels(
        write(
            "l.jsonl",
            [
                {"id": "a", "correct": True, "judged": "Paris"},
                {"id": "b", "correct": None, "judged": "Milan"},
                {"id": "d", "correct": False},
            ],
        )
    )
    story.say(
        *(spelled({"id": r.id, "correct": r.correct, "detail": r.label_detail}) for r in apply_labels(records, given))
    )
    story.refused("other records", lambda: apply_labels(records[1:], given))
    other = read_labels(write("l.jsonl", [{"id": "a", "correct": True, "judged": "Lyon"}]))
    story.refused("another answer", lambda: apply_labels(records, other))
    story.head("a session")
    story.show("keys", KEYS)
    for order, seed, limit in (("random", 0, None), ("random", 1, 2), ("file", 0, 3)):
        queue = queue_of(records, order=order, seed=seed, limit=limit)  # type: ignore[arg-type]
        story.show(f"{order}, seed {seed}, limit {limit}", [record.id for record in queue])
    with open_store(Path("session.jsonl")) as store:
        session = LabelSession(queue_of(records, order="file"), store)
        for key in "uyNxsuqnyyz":
            now = session.current
            pressed = session.press(key)
            story.show(
                f"{key} at {None if now is None else now.id}", f"{pressed.value}, {session.done} of {session.total}"
            )
    story.say(Path("session.jsonl").read_text(encoding="utf-8"))
    write("session.jsonl", Path("session.jsonl").read_text(encoding="utf-8") + '{"id": "z", "cor')
    with open_store(Path("session.jsonl")) as store:
        story.show("again", {"labels": store.labels, "answers": store.answers})
        story.refused(
            "other answers", lambda: LabelSession([records[0].model_copy(update={"drawn": records[1].drawn})], store)
        )
    for title, line in {
        "no judged answer": '{"id": "a", "correct": true}',
        "a list": "[]",
        "no JSON": "x",
        "a label that is a word": '{"id": "a", "correct": "yes", "judged": "x"}',
        "an id that is a number": '{"id": 1, "correct": true, "judged": "x"}',
        "a later format": '{"id": "a", "correct": true, "judged": "x", "format": 2}',
    }.items():
        path = write("broken.jsonl", f"{line}\n")
        story.refused(title, lambda: entered(path))  # noqa: B023
    story.refused("no answers", lambda: queue_of(file_of("scored", SCORED, "score=u").records))
    story.head("contradictions")
    twice = [ROWS[0] | {"id": str(i), "correct": i != 2, "references": []} for i in range(4)]
    both = file_of("both", [row | {"answer": "Paris"} for row in twice]).records
    story.show("pairs", [[a.id, b.id] for a, b in contradictions(both)])
    story.refused("records", lambda: refuse_contradictions(both))
    bare = file_of("bare", [SCORED[0] | {"id": "x"}, SCORED[0] | {"id": "y", "correct": True}], "score=u").records
    story.refused("records without answers", lambda: refuse_contradictions(bare))
    refuse_contradictions(records)
    story.compare()


def entered(path: Path) -> None:
    with open_store(path):
        pass


ANSWERS: list[tuple[str, tuple[str, ...], str]] = [
    ("Capital of France?", ("Paris",), "Paris"),
    ("Capital of France?", ("Paris",), "paris."),
    ("Capital of France?", ("Paris",), "It is Paris."),
    ("Capital of France?", ("Paris",), "It is not Paris."),
    ("Capital of France?", ("Paris",), "Paris or Lyon"),
    ("Capital of France?", ("Paris",), "Lyon"),
    ("Capital of France?", ("Paris",), "I do not know."),
    ("Capital of France?", ("Paris",), ""),
    ("Who discovered penicillin?", ("Alexander Fleming", "Fleming"), "Sir Alexander Fleming did."),
    ("Name two rivers.", ("Rhine", "Elbe"), "The Rhine."),
    ("What is 7 x 10?", ("70",), "7 x 10 = 70."),
    ("What is 7 x 10?", ("70",), "-70"),
    ("How long may I return it?", ("30 days",), "You can return it within 30 days."),
    ("How long may I return it?", ("30 days",), "You cannot return it within 30 days."),
    ("How many?", ("5 million",), "5,000,000"),
    ("How many?", ("about a dozen",), "12"),
    ("Which share?", ("50%",), "0.5"),
    ("Which share?", ("50",), "50 %"),
    ("When?", ("5 May 1821",), "On May 5, 1821 he died."),
    ("When?", ("1821",), "In 1822."),
    ("When?", ("1821",), "before 1821"),
    ("Which language?", ("C++",), "C#"),
    ("The whole?", ("a white kitten in a barn",), "a kitten, white, in a barn"),
    ("Is it?", ("yes",), "No, it is not."),
    ("As JSON?", ('{"capital": "Rome"}',), '{"capital":"Rome"}'),
    ("As JSON?", ("Rome",), '{"capital": "Rome"}'),
    ("As JSON?", ("42",), '{"n": 42.0}'),
    ("As JSON?", ('{"capital": "Rome"}',), "Rome"),
    ("A call?", ('{"name": "f", "arguments": {"x": 1}}',), '[{"name": "f", "arguments": {"x": 1}}]'),
    ("A call?", ('{"name": "f", "arguments": {"x": 1}}',), '[{"name": "f", "arguments": {"x": 2}}]'),
    ("A call?", ("no call",), '[{"name": "f", "arguments": {"x": 2}}]'),
    ("Which unit?", ("5 mg",), "5 mcg"),
]
OPTIONS = {"A": "red", "B": "blue", "C": "dark blue"}


def own_rule(answer: str, question: Question) -> object:
    """Right iff the answer is as long as the first reference."""
    if answer == "crash":
        raise ValueError("no")
    return {"maybe": None, "word": "yes"}.get(answer, len(answer) == len(question.references[0]))


def test_label_rules() -> None:
    story = Story("label_rules.txt")
    story.show("rules", available_rules())
    made = [make_rule(name) for name in ("exact", "token_f1", "contains", "numeric", "stated", "json", "tool_call")]
    for rule in (*made, make_rule("option"), make_rule("token_f1(threshold=0.9)"), make_rule("numeric", tolerance=0.1)):
        story.show("spec", rule.spec)
    words = {True: "right", False: "wrong", None: "?"}
    for text, references, answer in ANSWERS:
        question = Question(id="q", question=text, references=references)
        labels = {rule.spec.name: rule.label(answer, question) for rule in made}
        story.head(f"{text} {' / '.join(references)} | {answer}")
        story.say(", ".join(f"{name} {words[label.correct]}" for name, label in labels.items()))
        story.say(*(f"  {name}: {label.detail}" for name, label in labels.items() if label.detail))
    story.head("options")
    for references in (("B",), ("blue",), ("green",), ("red", "blue")):
        question = Question(id="q", question="Which?", references=references, options=OPTIONS)
        for answer in (
            "B",
            "(b)",
            "B) blue",
            "blue",
            "Dark Blue",
            "the answer is B",
            "option A or choice B",
            "B or C",
            "x",
        ):
            label = make_rule("option").label(answer, question)
            story.show(f"{'/'.join(references)} | {answer}", f"{words[label.correct]} {label.detail}")
    bare = Question(id="q", question="Which?", references=("B",))
    story.show("no options", make_rule("option").label("B", bare))
    story.head("records")
    answers = file_of("answers", ROWS)
    rejected = answers.records[2].model_copy(update={"rejected": ("Oslo",)})
    kept = answers.records[2].model_copy(update={"rejected": ("Bergen",)})
    drawn_ = answers.records[0].drawn
    assert drawn_ is not None
    gone = answers.records[0].model_copy(update={"drawn": drawn_.model_copy(update={"primary": None})})
    for record in label_records([*answers.records, rejected, kept, gone], make_rule("exact")):
        story.say(spelled({"id": record.id, "correct": record.correct, "detail": record.label_detail}))
    story.head("the rule when none is named")
    tools = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    with_options = [record.model_copy(update={"options": OPTIONS}) for record in answers.records]
    with_calls = [r.model_copy(update={"references": (ANSWERS[-3][1][0],), "tools": (tools,)}) for r in answers.records]
    for title, records, bindings in (
        ("texts", answers.records, None),
        ("options", with_options, None),
        ("tools of records", with_calls, None),
        ("tools and references that are texts", answers.records, Bindings(tools=(tools,))),
        ("nothing", [], None),
    ):
        story.show(title, default_rule(records, bindings).spec.name)
    story.head("advice about answers that are JSON or calls")
    objects = [
        row | {"samples": [spelled({"a": text}) for text in row["samples"]], "references": ['{"a": 1}']} for row in ROWS
    ]
    calls = [
        row | {"samples": [{"tool_calls": [{"name": "f", "args": {"x": text}}]} for text in row["samples"]]}
        for row in ROWS
    ]
    for title, rows in {"texts": ROWS, "objects": objects, "calls": calls}.items():
        records = label_records(file_of("x", rows).records, make_rule("exact"))
        for rule_name, judge in (
            ("exact", None),
            ("stated", "token_f1"),
            ("json", "json"),
            ("tool_call", "exact"),
            ("given", None),
        ):
            story.show(f"{title}, {rule_name}, {judge}", structured_advice(records, rule_name, judge))
    story.show("nothing", structured_advice([], "exact"))
    story.head("a function of one's own")
    name = f"python:{__name__}:own_rule"
    own = make_rule(name)
    story.show("labels", [own.label(answer, bare) for answer in ("B", "BB", "maybe")])
    story.refused("an error", lambda: own.label("crash", bare))
    story.refused("a word", lambda: own.label("word", bare))
    story.head("refused")
    refusals: dict[str, Callable[[], object]] = {
        "an unknown rule": lambda: make_rule("exacct"),
        "a parameter twice": lambda: make_rule("token_f1(threshold=0.6)", threshold=0.5),
        "a parameter that is not one": lambda: make_rule("exact", threshold=0.5),
        "no function": lambda: make_rule("python"),
        "no judge": lambda: make_rule("chat_judge"),
        "a threshold of 0": lambda: make_rule("token_f1(threshold=0)"),
        "a tolerance of 1": lambda: make_rule("numeric(tolerance=1)"),
        "something that is no function": lambda: make_rule(f"python:{__name__}:OPTIONS"),
        "a function that is not there": lambda: make_rule(f"python:{__name__}:nothing"),
        "another source": lambda: make_rule(name, sha256="0" * 16),
        "a text that is no name": lambda: make_rule("token_f1("),
        "a parameter without a value": lambda: make_rule("token_f1(threshold)"),
        "records without answers": lambda: label_records(file_of("s", SCORED, "score=u").records, make_rule("exact")),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_a_chat_judge() -> None:
    story = Story("chat_judge.txt")
    question = Question(id="q", question="Which?", references=("B", "blue"), options=OPTIONS)
    story.head("prompt")
    for message in judge_messages("It is <b>.", question):
        story.show(message.type, str(message.content))
    story.head("replies")
    for reply in ("yes", "No.", " YES!\n", "no", "yes, it is", "maybe", "", "yes.."):
        story.show(repr(reply), read_verdict(reply))
    story.head("labels")
    model = ScriptedChat(default=("yes",), script={})
    judge = ChatLabelJudge(model, Path("verdicts.jsonl"))
    story.show("spec", {"name": judge.spec.name, "version": judge.spec.version, "params": sorted(judge.spec.params)})
    records = file_of("answers", ROWS).records
    seen: list[str] = []
    for record in label_records(records, judge, lambda done, total, note="": seen.append(f"{done} of {total}")):
        story.say(spelled({"id": record.id, "correct": record.correct, "detail": record.label_detail}))
    story.show("progress", seen)
    story.show("verdicts", sorted({line.split(", ")[1] for line in Path("verdicts.jsonl").read_text().splitlines()}))
    odd = ChatLabelJudge(ScriptedChat(default=("It depends. " * 20,)))
    story.show("a long reply", odd.label("x", question))
    half = ChatLabelJudge(ScriptedChat(default=(AIMessage("no"),)))
    story.show("no", half.label("x", question))
    story.refused(
        "a judge that fails",
        lambda: ChatLabelJudge(ScriptedChat(default=(ConnectionError("down"),))).label("x", question),
    )
    for title, line in {
        "no key": '{"reply": "yes"}',
        "no JSON": "x",
        "a later format": '{"key": "k", "reply": "yes", "format": 2}',
    }.items():
        path = write("broken.jsonl", f"{line}\n")
        story.refused(title, lambda: ChatLabelJudge(model, path).label("x", question))  # noqa: B023
    story.compare()


def test_labels_to_look_at() -> None:
    story = Story("label_checks.txt")
    rows = [
        {
            "id": f"r{i:02}",
            "question": f"q{i}?",
            "references": ["30 days"],
            "u": i / 40,
            "c": i % 7 > 1,
            "samples": [f"within {30 + i % 3} days", "30 days" if i % 2 else "31 days", "30"],
        }
        for i in range(40)
    ]
    rows[3]["u"] = None
    file = file_of("checks", rows, "score=u", "correct=c", primary="first")
    for k in (2, 10):
        found = suspicious(file.records, "imported:u", k)
        story.show(
            f"at most {k}",
            {
                "wrong": [r.id for r in found.wrong],
                "right": [r.id for r in found.right],
                "n": [found.n_wrong, found.n_right],
            },
        )
    same = file_of("same", [row | {"u": 1} for row in rows], "score=u", "correct=c")
    story.show("one value", suspicious(same.records, "imported:u"))
    story.show("answers to read", [record.id for record in labelled_answers(file.records)])
    story.show("three", [record.id for record in labelled_answers(file.records, 3)])
    story.show("all right", [r.id for r in labelled_answers([r for r in file.records if r.correct], 4)])
    for rule in ("exact", "numeric", "token_f1", "contains"):
        labelled = label_records(file.records, make_rule(rule))
        for check in (missed, broken_labels):
            result = check(labelled, rule)
            shown = None if result is None else {"n": len(result.records), "wrong": result.n_wrong, "rule": result.rule}
            story.show(f"{check.__name__} by {rule}", shown)
    for judge in ("exact", "token_f1", "numeric"):
        merged = merged_pairs(file.records, make_judge(judge), k=3)
        story.show(f"merged by {judge}", merged)
    story.compare()


def test_more_of_records_and_judges(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    story = Story("records_more.txt")
    answers = file_of("answers", ROWS)
    scored = file_of("scored", SCORED, "score=u", "correct=correct")
    story.head("figures")
    story.show("right and wrong", drawn(scored.plot()))
    bare = RecordFile(scored.path, scored.header, [r.model_copy(update={"correct": None}) for r in scored.records])
    story.show("not labelled", drawn(bare.plot("imported:u")))
    doubtful = [r.model_copy(update={"correct": None, "label_detail": "in doubt"}) for r in answers.records]
    story.show(
        "undecided", "undecided answers count" in RecordFile(answers.path, answers.header, doubtful)._repr_html_()
    )
    story.head("torn lines of a gateway")
    header, *lines = answers.path.read_text(encoding="utf-8").splitlines()
    observed = header.replace('"questions_name": "', '"questions_name": "observed: ')
    write("observed.jsonl", "\n".join([observed, lines[0], '{"id": "b", "que', lines[2], ""]))
    story.show("read", read_records("observed.jsonl").records.ids)
    story.say(*(f"logged: {record.getMessage()}" for record in caplog.records))
    write("other.jsonl", "\n".join([observed, lines[0], '{"id": 5}', lines[2], ""]))
    story.refused("a line of another kind", lambda: read_records("other.jsonl"))
    story.refused(
        "a line that is no record", lambda: read_records(write("other.jsonl", f"{observed}\n{{x\n{lines[1]}\n"))
    )
    story.head("parts of a file")
    content = answers.path.read_bytes()
    at = [place for place, byte in enumerate(content, start=1) if byte == 10]
    for spans in ([(at[0], at[2])], [(at[2], at[3]), (at[0], at[1])]):
        story.show(str(len(spans)), [record.id for record in read_spans(answers.path, spans)])
    story.show("line", [line_number(answers.path, place) for place in (0, at[0], at[2])])
    write("spoilt.jsonl", content + b'{"id": "x"}\n')
    story.refused("a bad line", lambda: list(read_spans("spoilt.jsonl", [(len(content), len(content) + 12)])))
    story.head("writers")
    changed_file = rewrite_records("answers.jsonl", lambda file: RecordFile(file.path, file.header, file.records[:2]))
    story.show("rewritten", [changed_file.records.ids, read_records("answers.jsonl").records.ids])
    stream_records("scored.jsonl", "copy.jsonl", lambda reader: (reader.header, (r for r in reader if r.id != "s0")))
    story.show("streamed", read_records("copy.jsonl").records.ids)
    story.refused("a file that is being written", written_twice)
    write("whole.jsonl", content[:-1])
    with open_writer("whole.jsonl", answers.header) as (writer, there):
        writer.append([there.records[0].model_copy(update={"id": "new"})])
    story.show("a last line without an end", read_records("whole.jsonl").records.ids)
    reach = Reach(estimator="imported:u", share=0.5, cut=0.5, n_pool=8, n_within=5, n=8, seed=0, fixed_beforehand=False)
    write_records("sample.jsonl", scored.header.model_copy(update={"reach": reach}), scored.records)
    story.refused("a sample in a pool", lambda: read_records("sample.jsonl", "copy.jsonl"))
    story.head("questions that are there twice")
    twice = [*scored.records, *(r.model_copy(update={"id": f"{r.id}b", "group": "c"}) for r in scored.records[:1])]
    for groups in ("category", "cluster"):
        parts = split(twice, test_fraction=0.4, groups=groups, seed=2)
        story.show(groups, [[record.id for record in part] for part in parts])
    story.head("judges that fail now and then")
    judge = ChatLabelJudge(ScriptedChat(script={}, default=("yes",)), Path("torn.jsonl"))
    write("torn.jsonl", '{"key": "a", "reply": "yes"}\n{"key": "b", "rep')
    question = Question(id="q", question="Which?", references=("x",))
    story.show("after a torn line", judge.label("x", question))
    story.show("verdicts", len(Path("torn.jsonl").read_text(encoding="utf-8").splitlines()))
    replies = iter([ConnectionError("down"), AIMessage("no")] + [AIMessage("yes")] * 40)
    story.show("one failure", [label_of(judge, replies, text, question) for text in ("a", "b")])
    monkeypatch.setattr("calibrate.correctness.registry.resolve_model", lambda name: ScriptedChat(default=(name,)))
    story.show("a judge by its name", make_rule("chat_judge", model="no").label("x", question))
    story.head("the rule for answers in a format")
    response = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
    story.show("format", default_rule(scored.records, Bindings(response_format=response)).spec)
    mixed = [row | {"samples": ['{"a": 1}'] * 3 if i % 2 else ["x"] * 3} for i, row in enumerate(ROWS[:3])]
    story.show("a mixture", structured_advice(file_of("mixed", mixed).records, "exact"))
    story.head("sentences and what they state")
    for text, references, answer in STATED:
        asked = Question(id="q", question=text, references=references)
        for name in ("stated", "contains"):
            label = make_rule(name).label(answer, asked)
            story.show(f"{text} {'/'.join(references)} | {answer} | {name}", f"{label.correct} {label.detail}")
    story.compare()


def written_twice() -> None:
    with exclusive(Path("answers.jsonl")):
        write_records("answers.jsonl", read_records("answers.jsonl").header, [])


def label_of(judge: ChatLabelJudge, replies: Any, text: str, question: Question) -> Any:
    """The label where the model gives the next reply; a judge that has answered before goes on after a failure."""
    return ChatLabelJudge(ScriptedChat(default=(next(replies),)), Path("torn.jsonl")).label(text, question)


STATED: list[tuple[str, tuple[str, ...], str]] = [
    ("Is it Paris or Rome?", ("Paris",), "I think Paris is nice."),
    ("Who wrote it?", ("John Fitzgerald Kennedy",), "John Kennedy wrote it."),
    ("Who wrote it?", ("John Kennedy",), "John Fitzgerald Kennedy wrote it."),
    ("How long?", ("5",), "5 million years"),
    ("How long?", ("5",), "It takes 5-6 days."),
    ("How much?", ("5",), "It costs $5."),
    ("Where?", ("Africa",), "In South Africa."),
    ("Where?", ("Paris",), "Near Paris."),
    ("When?", ("May 1821",), "on 5 May 1821"),
    ("When?", ("5 May 1821",), "in May"),
    ("Which vitamin?", ("vitamin A",), "Vitamin A it is."),
    ("Which?", ("the old mill by the river",), "It is the river mill, which is old."),
    ("Which?", ("+",), "+"),
    ("Which?", ("",), "x"),
    ("Which note?", ("Paris",), "Paris[3] was the capital12."),
    ("Which?", ("Spain",), "The Spanish coast"),
    ("How many?", ("twenty-one",), "21"),
    ("Is it not so?", ("yes",), "Not at all, yes."),
]
