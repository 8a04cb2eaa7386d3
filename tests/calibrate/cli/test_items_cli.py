"""`--items`: from records to a report and an audit on the command line."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from calibrate import from_frame
from calibrate.cli import app
from calibrate.data.labels import open_session
from calibrate.data.records import Record, read_records, write_records
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import RecordError, UsageError
from guardrail.testing import ScriptedChat
from tests.calibrate.items.cards import invoices, record_file


def labels_of(record: Record) -> tuple[bool | None, ...]:
    assert record.item_labels is not None
    return record.item_labels.right


def answering(records: Sequence[Record]) -> ScriptedChat:
    """The model that gave these answers."""
    script = {}
    for record in records:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        script[record.question] = [record.drawn.primary.text, *(sample.text for sample in record.drawn.samples)]
    return ScriptedChat(script=script)


def called(*arguments: str | Path, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)


def printed(result: Result, code: int = 0) -> str:
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    path = folder / "records.jsonl"
    record_file(path, invoices(280))
    printed(called("score", path, "--items"))
    printed(called("label", path, "--items"))
    return path


@pytest.fixture
def folder(labelled: Path, tmp_path: Path) -> Path:
    (tmp_path / "records.jsonl").write_bytes(labelled.read_bytes())
    return tmp_path


def test_from_records_to_a_report(folder: Path) -> None:
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    text = printed(called("fit", records, "--items", "-a", "0.1", "--test-fraction", "0.3", "--out", artifact))
    assert "at most 10 % of the items kept are wrong, with 90 % confidence" in text
    assert "/due" in text
    assert re.search(r"Of the kept values of /due, [\d.]+ % are wrong", text)
    assert CalibrationArtifact.load(artifact).outcome.options == {"cap": 4}
    assert "What this does not promise" in printed(called("report", artifact))
    report = folder / "report.html"
    test = folder / "artifact.test.jsonl"
    printed(called("report", records, "--artifact", artifact, "--test", test, "--out", report))
    assert "Items, test" in report.read_text()


def test_fits_of_items_count_on_their_labels(folder: Path) -> None:
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    arguments = ("fit", records, "--items", "--out", artifact)
    assert "fitted" in printed(called(*arguments, "-a", "0.1", "--rule", "clean_answers", "--test", records), 2)
    assert "have used" not in printed(called(*arguments, "-a", "0.1"))  # a fit that is refused does not count
    text = " ".join(printed(called(*arguments, "-a", "0.1", "--rule", "clean_shown")).split())
    assert "2 fits have used these labels; whichever of them you use, its promise holds with 80 % confidence." in text


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--rule wrong_share_per_answer:cap=3",
        "--rule clean_answers:delta=0.2",
        "--cluster-by-group --rule clean_shown",
    ],
)
def test_the_command_in_the_report_makes_the_same_gate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    monkeypatch.chdir(folder)
    file = read_records("records.jsonl")
    measured = [record for record in file.records if record.items is not None]
    grouped = [record.model_copy(update={"group": f"buyer {i // 2}"}) for i, record in enumerate(measured)]
    write_records("records.jsonl", file.header, grouped)
    printed(called("fit", "records.jsonl", "--items", "-a", "0.2", *flags.split(), "--out", "artifact.json"))
    printed(called("report", "records.jsonl", "--artifact", "artifact.json", "--out", "report.html"))
    page = html.unescape(Path("report.html").read_text())
    (command,) = re.findall("calibrate (fit .*) --out artifact.json", page)
    printed(called(*shlex.split(command), "--out", "again.json"))
    first, again = (CalibrationArtifact.load(name).items for name in ("artifact.json", "again.json"))
    assert first == again


def test_a_promise_that_new_answers_refute(folder: Path) -> None:
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    printed(called("fit", records, "--items", "-a", "0.1", "--out", artifact))
    fresh = record_file(folder / "fresh.jsonl", invoices(250, seed=3, prefix="fresh"))
    text = printed(called("audit", "--records", fresh.path, "--artifact", artifact))
    assert "labelled items that are kept were wrong" in text
    assert "Answers: " in text
    # The gold of another document: every value that is kept is wrong.
    golds = [record.references for record in fresh.records]
    shifted = [r.model_copy(update={"references": golds[i - 1]}) for i, r in enumerate(fresh.records)]
    record_file(folder / "shifted.jsonl", shifted)
    result = called("audit", "--records", folder / "shifted.jsonl", "--artifact", artifact, "--json")
    assert json.loads(printed(result, 1))["verdict"] == "refuted"


def test_evaluate_and_plan(folder: Path) -> None:
    records = folder / "records.jsonl"
    table = folder / "rules.csv"
    text = printed(called("evaluate", records, "--items", "-a", "0.15", "--splits", "4", "--csv", table))
    assert "clean_answers" in text
    assert len(table.read_text().splitlines()) == 5
    arguments = ("plan", "--items", "--pilot", records, "-a", "0.15", "--n", "12", "--n", "150")
    text = printed(called(*arguments, "--repetitions", "5"))
    assert "0 (100)" in text  # with 12 answers nothing is kept
    assert "calibrate fit RECORDS --items --alpha 0.15" in " ".join(text.split())


@pytest.mark.parametrize(
    "command",
    [
        "score {} --field-judge /total=numeric",
        "score {} --cap 3",
    ],
)
def test_options_of_items_without_items_are_refused(folder: Path, command: str) -> None:
    flag = next(word for word in reversed(command.split()) if word.startswith("--"))
    text = printed(called(*command.format(folder / "records.jsonl").split()), 2)
    assert f"{flag} is about items: add --items" in " ".join(text.replace("│", "").split())


def test_a_judge_of_a_field_that_is_not_there_is_refused_before_anything_is_written(folder: Path) -> None:
    before = (folder / "records.jsonl").read_bytes()
    arguments = ("score", folder / "records.jsonl", "--items")
    text = printed(called(*arguments, "--field-judge", "/totl=numeric"), 2)
    assert "'/totl'" in text
    assert "/buyer, /due, /number, /total" in " ".join(text.replace("│", "").split())
    assert (folder / "records.jsonl").read_bytes() == before


def test_labels_by_hand_item_by_item(tmp_path: Path) -> None:
    path = record_file(tmp_path / "records.jsonl", invoices(2)).path
    printed(called("score", path, "--items", "--cap", "4"))
    stopped = printed(called("label", path, "--items", "--interactive", typed="y\nn\ny\nu\ns\ny\ny\nq\n"))
    assert "1 of 2 are labelled or skipped" in stopped
    back = printed(called("label", path, "--items", "--interactive", typed="u\nn\nq\n"))
    assert "0 of 2 are labelled or skipped" in back, "the answer that an earlier session labelled is asked again"
    printed(called("label", path, "--items", "--interactive", typed="y\nn\ns\ny\n" + "y\n" * 4))
    labels = {record.id: labels_of(record) for record in read_records(path).records}
    assert sorted(labels.values(), key=str) == sorted([(True, False, None, True), (True,) * 4], key=str)


def test_labels_of_whole_answers_are_refused_before_anybody_labels_items(tmp_path: Path) -> None:
    path, labels = record_file(tmp_path / "records.jsonl", invoices(2)).path, tmp_path / "records.labels.jsonl"
    printed(called("score", path, "--items", "--cap", "4"))
    labels.write_text('{"id": "invoice-0", "correct": true}\n')
    refused = printed(called("label", path, "--items", "--interactive", typed="y\n"), 2)
    assert "holds labels of whole answers" in " ".join(refused.replace("│", "").split())


def test_in_python(tmp_path: Path) -> None:
    """Every step has the name and the result of its command."""
    rows = [
        {
            "id": record.id,
            "question": record.question,
            "references": json.loads(record.references[0]),
            "answer": record.drawn.primary.text,
            "samples": [sample.text for sample in record.drawn.samples],
        }
        for record in invoices(280)
        if record.drawn is not None and record.drawn.primary is not None
    ]
    records = from_frame(rows, items=True).score_items(cap=4).label_items()
    records.write(tmp_path / "records.jsonl")
    out = tmp_path / "evaluate.json"
    printed(called("evaluate", tmp_path / "records.jsonl", "--items", "-a", "0.15", "--splits", "3", "--json", out))
    (cell,) = json.loads(out.read_text())["cells"]
    assert records.evaluate(alphas=[0.15], splits=3).model_dump(mode="json") == cell["evaluation"]

    train, test = records.split(0.3)
    artifact = train.fit(alpha=0.15, rule="wrong_share_per_answer")
    assert train.artifact == artifact
    assert artifact.outcome.rule == "wrong_share_per_answer"
    artifact.save(tmp_path / "artifact.json")
    result = test.audit(artifact)
    test.write(tmp_path / "test.jsonl")
    audit = called("audit", "--records", tmp_path / "test.jsonl", "--artifact", tmp_path / "artifact.json", "--json")
    assert result.model_dump(mode="json") == json.loads(printed(audit))
    with pytest.raises(UsageError, match="fitted on"):
        train.audit(artifact)
    assert train.report(tmp_path / "report.html", test=test)[0].is_file()


def test_in_python_people_label_and_new_items_forget_the_artifact() -> None:
    frame = [{"question": f"q{i}", "answer": {"a": i}, "samples": [{"a": i}] * 3} for i in range(30)]
    records = from_frame(frame, items=True).score_items()
    with pytest.raises(UsageError, match=r"Call label_items\(\) first"):
        records.fit(alpha=0.2)
    with pytest.raises(UsageError, match=r"no record of .* has a reference"):
        records.label_items()
    records.label_items([{"id": record.id, "items": {"/a": True}} for record in records.file.records])
    assert records.fit(alpha=0.2, few=True).items is not None
    assert records.score_items(cap=2).artifact is None
    with pytest.raises(UsageError, match="cap must be a whole number of items, at least 1, got 0"):
        records.score_items(cap=0)


def test_labels_from_the_review_page_item_by_item(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from guardrail.review import ItemDecision, ReviewStore, by_items

    path = record_file(tmp_path / "records.jsonl", invoices(2)).path
    printed(called("score", path, "--items"))
    arguments = ("label", path, "--items", "--review-store", tmp_path / "reviews.db")
    assert "2 of 2 answers wait for a person" in printed(called(*arguments))
    with ReviewStore(tmp_path / "reviews.db") as store:
        while (lease := store.claim("ann")) is not None:
            content = lease.item.content
            assert [item.uncertainty for item in content.items] == [None] * 4  # a score would sway the label
            decisions = [
                ItemDecision(path=item.path, action="reject" if item.path == "/due" else "approve")
                for item in content.items
            ]
            store.decide(lease, by_items(content, decisions))
    printed(called(*arguments))
    labels = [labels_of(record) for record in read_records(path).records]
    assert labels == [(True, True, True, False)] * 2


def test_an_answer_that_was_decided_as_a_whole_is_not_left_out(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from guardrail.review import Decision, ReviewStore

    path = record_file(tmp_path / "records.jsonl", invoices(2)).path
    printed(called("score", path, "--items"))
    arguments = ("label", path, "--items", "--review-store", tmp_path / "reviews.db")
    printed(called(*arguments))
    with ReviewStore(tmp_path / "reviews.db") as store:
        for action in ("approve", "reject"):
            lease = store.claim("ann")
            assert lease is not None
            store.decide(lease, Decision(action=action))
    printed(called(*arguments))
    labels = [labels_of(record) for record in read_records(path).records]
    assert sorted(labels, key=str) == [(None,) * 4, (True,) * 4]


def test_run_by_items_goes_from_questions_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrate.cli.run.resolve_model", lambda name: answering(invoices(220)))
    monkeypatch.chdir(tmp_path)
    rows = [{"id": each.id, "question": each.question, "references": each.references} for each in invoices(220)]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run = ("run", "--questions", "q.jsonl", "--model", "python:a:b", "--items", "--n", "5", "--out", "out")
    refused = printed(called(*run, "--correctness", "exact"), 2)
    assert "--correctness is about whole answers" in " ".join(refused.split())
    printed(called(*run, "--rule", "acrc"), 2)
    assert not Path("out").exists(), "refused before the model is asked"
    more = ("--set", "field_judge=/total=numeric", "--alpha", "0.15")
    text = printed(called(*run, *more))
    assert "at most 15 % of the items kept are wrong, with 90 % confidence" in text
    gate = CalibrationArtifact.load("out/artifact.json")
    assert gate.outcome.options == {"cap": 4}
    assert {file.name for file in Path("out").iterdir()} >= {"records.jsonl", "test-records.jsonl", "report.html"}
    assert "Items, test" in Path("out/report.html").read_text(encoding="utf-8")
    again = printed(called(*run, *more))  # everything is on file
    assert CalibrationArtifact.load("out/artifact.json").calibration == gate.calibration, again


@pytest.mark.parametrize(
    "command", ["evaluate {} --alpha 0.3 --splits 2", "plan --pilot {} --alpha 0.3 --n 40 --repetitions 3"]
)
def test_a_question_asked_twice_is_never_on_both_sides_of_a_split(labelled: Path, tmp_path: Path, command: str) -> None:
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    file = read_records(labelled)
    again = [record.model_copy(update={"id": f"{record.id} again"}) for record in file.records]
    write_records(once, file.header, file.records)
    write_records(twice, file.header, [*file.records, *again])
    said = []
    for path in (once, twice):
        text = " ".join(printed(called(*command.format(path).split(), "--items")).split())
        said.append(re.findall(r"fitted on \d+ of \d+|accuracy [\d.]+ and AUROC [\d.]+", text))
    assert said[0] == said[1] != []


@pytest.mark.parametrize(
    "content",
    [
        '{"id":"0","items":{"/total":true}}\n{"id":"1","items":{"/total":false}}',
        '{"id": "0", "correct": true}',
        '{"question": "only", "references": ["a"]}',
        '{"question": "torn',
    ],
)
def test_a_file_that_is_named_for_item_labels_loses_no_line(tmp_path: Path, content: str) -> None:
    """People type files without an end of the last line, and name the wrong file; none of that is a torn row."""
    path = tmp_path / "labels.jsonl"
    path.write_text(content)
    with suppress(RecordError, UsageError), open_session(path):
        pass
    assert path.read_text() == content


def test_a_row_goes_behind_a_last_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"id":"0","items":{},"judged":""}')
    with open_session(path, by_items=True) as session:
        session.give_items(Record(id="1", question="?"), {})
        session.give_items(Record(id="2", question="?"), {})
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["0", "1", "2"]


def test_item_labels_belong_to_an_answer(tmp_path: Path) -> None:
    """After a new collection the label of the old answer would stand for the new one, right or wrong."""
    first = record_file(tmp_path / "records.jsonl", invoices(2)).records
    path = tmp_path / "records.jsonl"
    printed(called("score", path, "--items", "--cap", "4"))
    arguments = ("label", path, "--items", "--interactive")
    printed(called(*arguments, typed="y\n" * 8))
    drawn = first[0].drawn
    assert drawn is not None
    assert drawn.primary is not None
    changed = json.dumps({**json.loads(drawn.primary.text), "total": 1.5})
    other = drawn.model_copy(update={"primary": drawn.primary.model_copy(update={"text": changed})})
    file = read_records(path)
    write_records(path, file.header, [first[0].model_copy(update={"drawn": other}), *file.records[1:]])
    printed(called("score", path, "--items", "--cap", "4"))
    printed(called(*arguments, typed="n\n" * 4))
    assert [labels_of(record) for record in read_records(path).records] == [(False,) * 4, (True,) * 4]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("score", "--score"),
        ("score", "--pair-cache"),
        ("score", "--ranks-from"),
        ("label", "--judge-model"),
    ],
)
def test_options_of_whole_answers_are_refused_by_the_name_that_was_typed(command: str, option: str) -> None:
    """A user looks for the option in the command that failed; one without effect must not pass for used."""
    shown = printed(called(command, "records.jsonl", "--items", option, "any"), 2)
    assert f"{option} is about whole answers: leave it out with --items." in " ".join(shown.split())


def test_collect_without_references_names_a_command_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no references copies the command that is shown, and must not end at "no such option"."""
    records = invoices(20)
    monkeypatch.setattr("calibrate.cli.collect.resolve_model", lambda name: answering(records))
    monkeypatch.chdir(tmp_path)
    rows = [{"id": record.id, "question": record.question} for record in records]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    shown = printed(called("collect", "q.jsonl", "--model", "python:a:b", "--items", "--n", "5"))
    command = re.search(r"then `calibrate (label [^`]*)`", " ".join(shown.split()))
    assert command is not None
    printed(called("score", "records.jsonl", "--items"))
    name, *flags = shlex.split(command[1])
    assert "0 of 20 are labelled or skipped" in printed(called(name, "records.jsonl", *flags))  # no key is pressed
