"""`--items`: from records to a report and an audit on the command line."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from calibrate import Records, from_frame
from calibrate.cli import app
from calibrate.data.record import ItemLabels
from calibrate.data.records import Record, read_records, write_records
from calibrate.items.answers import needs_label
from calibrate.items.rules import reading_order
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import RecordError, UsageError
from guardrail.testing import ScriptedChat
from tests.calibrate.items.cards import invoices, record_file

KEY = "items_json"


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
    printed(called("score", path, "--items", "json"))
    printed(called("label", path, "--items", "json"))
    return path


@pytest.fixture
def folder(labelled: Path, tmp_path: Path) -> Path:
    (tmp_path / "records.jsonl").write_bytes(labelled.read_bytes())
    return tmp_path


def test_from_records_to_a_report(folder: Path) -> None:
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    text = printed(called("fit", records, "--items", "json", "-a", "0.1", "--test-fraction", "0.3", "--out", artifact))
    assert "At most 10 % of the items kept are wrong, with 90 % confidence." in text
    assert "/due" in text
    assert re.search(r"Of the kept values of /due, [\d.]+ % are wrong", text)
    gate = CalibrationArtifact.load(artifact).items
    assert gate is not None
    assert gate.spec.cap == 4
    assert "What this does not promise" in printed(called("report", artifact))
    report = folder / "report.html"
    test = folder / "artifact.test.jsonl"
    printed(called("report", records, "--artifact", artifact, "--test", test, "--out", report))
    assert "Answers kept out of the fit" in report.read_text()


def test_rules_by_name_and_bands(folder: Path) -> None:
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    arguments = ("fit", records, "--items", "json", "-a", "0.15", "--out", artifact)
    for rule in ("clean_shown", "clean_answers:allowed=1", "both:clean_alpha=0.3", "wrong_share:per=answer"):
        printed(called(*arguments, "--rule", rule))
        gate = CalibrationArtifact.load(artifact).items
        assert gate is not None
        assert gate.rule == rule.partition(":")[0]
        assert gate.threshold is not None
    printed(called(*arguments, "--by-length", "2,4", "--segment-delta", "each"))
    gate = CalibrationArtifact.load(artifact).items
    assert gate is not None
    assert gate.bands == (2, 4)
    assert gate.threshold_for(1) is None
    assert gate.threshold_for(4) == gate.threshold
    printed(called(*arguments, "--rule", "wrong_share", "--by-length", "two"), 2)
    printed(called(*arguments, "--rule", "certified"), 2)


def test_fits_of_items_count_on_their_labels(folder: Path) -> None:
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    arguments = ("fit", records, "--items", "json", "--out", artifact)
    assert "fitted" in printed(called(*arguments, "-a", "0.1", "--rule", "clean_answers", "--test", records), 2)
    assert "have used" not in printed(called(*arguments, "-a", "0.1"))  # a fit that is refused does not count
    text = " ".join(printed(called(*arguments, "-a", "0.1", "--rule", "clean_shown")).split())
    assert "2 fits have used these labels; whichever of them you use, its promise holds with 80 % confidence." in text


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--rule wrong_share:per=answer,start_share=0.5,seed=3 --cap 3",
        "--rule clean_answers:allowed=1 --delta 0.2",
        "--rule both:clean_alpha=0.3",
        "--by-length 2,4 --segment-delta each",
        "--cut 0.4 --planned 280",
        "--cluster-by-group --rule wrong_share:largest_group=8",
    ],
)
def test_the_command_in_the_report_makes_the_same_gate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    monkeypatch.chdir(folder)
    file = read_records("records.jsonl")
    grouped = [record.model_copy(update={"group": f"buyer {i // 2}"}) for i, record in enumerate(file.records)]
    write_records("records.jsonl", file.header, grouped)
    printed(called("fit", "records.jsonl", "--items", "json", "-a", "0.2", *flags.split(), "--out", "artifact.json"))
    printed(called("report", "records.jsonl", "--artifact", "artifact.json", "--out", "report.html"))
    page = html.unescape(Path("report.html").read_text())
    (command,) = re.findall("calibrate (fit .*) --out artifact.json", page)
    printed(called(*shlex.split(command), "--out", "again.json"))
    first, again = (CalibrationArtifact.load(name).items for name in ("artifact.json", "again.json"))
    assert first == again


def test_a_report_says_wrong_of_items_that_people_judged_only(folder: Path) -> None:
    """Above the cut nobody was asked: such an item is neither wrong nor undecided."""
    path = folder / "records.jsonl"
    file = read_records(path)

    def labelled(record: Record) -> Record:
        if KEY not in record.item_labels:
            return record
        right = tuple(True if needs_label(item, 0.0) else None for item in record.items[KEY])
        return record.model_copy(update={"item_labels": {KEY: ItemLabels(right=right)}})

    write_records(path, file.header, list(map(labelled, file.records)))
    arguments = ("fit", path, "--items", "json", "-a", "0.2", "--out", folder / "artifact.json")
    for cut, said in (("0", 0), ("1", 1)):
        printed(called(*arguments, "--cut", cut))
        gate = CalibrationArtifact.load(folder / "artifact.json").items
        assert gate is not None
        assert (gate.n_undecided > 0) == said
        printed(called("report", path, "--artifact", folder / "artifact.json", "--out", folder / "report.html"))
        page = (folder / "report.html").read_text()
        assert 'class="wrong">wrong<' not in page
        assert ('class="wrong">undecided<' in page) == said


def test_an_audit_needs_labels_up_to_the_threshold(folder: Path) -> None:
    printed(called("fit", folder / "records.jsonl", "--items", "json", "-a", "0.1", "--out", folder / "artifact.json"))
    gate = CalibrationArtifact.load(folder / "artifact.json").items
    assert gate is not None
    assert gate.threshold is not None
    assert 0 < gate.threshold < 1
    fresh = record_file(folder / "fresh.jsonl", invoices(150, seed=3, prefix="fresh"))
    gold = {record.id: json.loads(record.references[0]) for record in fresh.records}
    said = {}
    for cut in (None, gate.threshold, gate.threshold - 0.1):
        flag = () if cut is None else ("--cut", str(cut))
        printed(called("score", fresh.path, "--items", "json"))
        rows = [
            {
                "id": record.id,
                "items": {
                    str(item.path): json.loads(item.text) == gold[record.id][str(item.path)[1:]]
                    if needs_label(item, cut)
                    else None
                    for item in record.items[KEY]
                },
            }
            for record in read_records(fresh.path).records
            if KEY in record.items
        ]
        (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        printed(called("label", fresh.path, "--items", "json", "--labels", folder / "labels.jsonl", *flag))
        said[cut] = called("audit", "--records", fresh.path, "--artifact", folder / "artifact.json")
    whole, to_threshold, below = said.values()
    assert printed(whole).splitlines()[-1] == printed(to_threshold).splitlines()[-1]
    (promise,) = [line for line in printed(whole).splitlines() if "target is 10 %" in line]
    assert promise in printed(to_threshold)
    assert "without a gate" in printed(whole)
    assert "without a gate" not in printed(to_threshold)
    assert "are labelled up to the cut of" in " ".join(printed(below, 2).replace("│", "").split())


def test_a_promise_that_new_answers_refute(folder: Path) -> None:
    records, artifact = folder / "records.jsonl", folder / "artifact.json"
    printed(called("fit", records, "--items", "json", "-a", "0.1", "--out", artifact))
    fresh = record_file(folder / "fresh.jsonl", invoices(250, seed=3, prefix="fresh"))
    text = printed(called("audit", "--records", fresh.path, "--artifact", artifact))
    assert "On 244 answers" in text
    # The gold of another document: every value that is kept is wrong.
    golds = [record.references for record in fresh.records]
    shifted = [r.model_copy(update={"references": golds[i - 1]}) for i, r in enumerate(fresh.records)]
    record_file(folder / "shifted.jsonl", shifted)
    result = called("audit", "--records", folder / "shifted.jsonl", "--artifact", artifact, "--json")
    assert json.loads(printed(result, 1))["verdict"] == "refuted"


def test_evaluate_and_plan(folder: Path) -> None:
    records = folder / "records.jsonl"
    table = folder / "rules.csv"
    text = printed(called("evaluate", records, "--items", "json", "-a", "0.15", "--splits", "4", "--csv", table))
    assert "clean_answers" in text
    assert len(table.read_text().splitlines()) == 6
    arguments = ("plan", "--items", "json", "--pilot", records, "-a", "0.15", "--n", "12", "--n", "150")
    text = printed(called(*arguments, "--repetitions", "5"))
    assert "100.0" in text  # with 12 answers nothing is kept
    # ln 10 / ln(1 + .9 * .15/.85) = 15.7
    assert "Without a single wrong item 16 answers would do" in text


@pytest.mark.parametrize(
    "command", ["evaluate {} -a 0.15 --splits 4", "plan --pilot {} -a 0.15 --n 150 --repetitions 5"]
)
def test_items_above_a_cut_need_no_label_and_are_never_kept(folder: Path, command: str) -> None:
    """The same figures with the labels above the cut as without them, and nobody says how many right items pass."""
    file = read_records(folder / "records.jsonl")

    def without(record: Record) -> Record:
        if KEY not in record.item_labels:
            return record
        labels, items = record.item_labels[KEY], record.items[KEY]
        right = tuple(
            label if needs_label(item, 0.2) else None for label, item in zip(labels.right, items, strict=True)
        )
        return record.model_copy(update={"item_labels": {KEY: labels.model_copy(update={"right": right})}})

    write_records(folder / "cut.jsonl", file.header, list(map(without, file.records)))
    tables = {}
    for name in ("records", "cut"):
        arguments = command.format(folder / f"{name}.jsonl").split()
        table = folder / f"{name}.json"
        text = printed(called(*arguments, "--items", "json", "--json", table, "--cut", "0.2"))
        assert "--cut 0.2" in text.splitlines()[-1]
        tables[name] = json.loads(table.read_text())
    assert tables["records"] == tables["cut"]
    assert all(row["right_kept"] is None and row["kept"] > 0 for row in tables["cut"] if row["rule"][:5] == "wrong")
    unlimited = called(*command.format(folder / "records.jsonl").split(), "--items", "json", "--json", table)
    printed(unlimited)
    kept = [sum(row["kept"] for row in rows) for rows in (tables["cut"], json.loads(table.read_text()))]
    assert kept[0] < kept[1]
    assert "in [0, 1], got 1.5" in printed(
        called(*command.format(folder / "records.jsonl").split(), "--items", "json", "--cut", "1.5"), 2
    )


@pytest.mark.parametrize(
    "command",
    [
        "fit {} -a 0.1 --cut 0",
        "fit {} -a 0.1 --cap 3",
        "fit {} -a 0.1 --planned 300",
        "evaluate {} -a 0.1 --cut 0.2",
        "plan --pilot {} -a 0.1 --cut 0.2",
        "label {} --cut 0.2",
        "score {} --field-judge /total=numeric",
        "score {} --cap 3",
    ],
)
def test_options_of_parts_without_items_are_refused(folder: Path, command: str) -> None:
    flag = next(word for word in reversed(command.split()) if word.startswith("--"))
    text = printed(called(*command.format(folder / "records.jsonl").split()), 2)
    assert f"{flag} is about items: add --items" in " ".join(text.replace("│", "").split())


def test_a_judge_of_a_field_that_is_not_there_is_refused_before_anything_is_written(folder: Path) -> None:
    before = (folder / "records.jsonl").read_bytes()
    arguments = ("score", folder / "records.jsonl", "--items", "json")
    text = printed(called(*arguments, "--field-judge", "/totl=numeric"), 2)
    assert "'/totl'" in text
    assert "/buyer, /due, /number, /total" in " ".join(text.replace("│", "").split())
    assert (folder / "records.jsonl").read_bytes() == before


def test_labels_by_hand_part_by_part(tmp_path: Path) -> None:
    path = record_file(tmp_path / "records.jsonl", invoices(2)).path
    printed(called("score", path, "--items", "json", "--cap", "4"))
    stopped = printed(called("label", path, "--items", "json", "--interactive", typed="y\nn\ny\nu\ns\ny\ny\nq\n"))
    assert "1 of 2 answers are labelled" in stopped
    printed(called("label", path, "--items", "json", "--interactive", typed="y\n" * 4))
    labels = {record.id: record.item_labels[KEY].right for record in read_records(path).records}
    assert sorted(labels.values(), key=str) == sorted([(True, False, None, True), (True,) * 4], key=str)


def test_labels_by_hand_up_to_a_cut_keep_it_in_the_next_command_and_count_no_part_above_it(tmp_path: Path) -> None:
    path = record_file(tmp_path / "records.jsonl", invoices(12)).path
    printed(called("score", path, "--items", "json"))
    sure = [sum(needs_label(item, 0.0) for item in record.items[KEY]) for record in read_records(path).records]
    arguments = ("label", path, "--items", "json", "--cut", "0")
    text = "".join(printed(called(*arguments, "--interactive", typed="y\n" * 5 + "q\n")).split())
    assert "--interactive--cut0goeson" in text
    assert "records.labels.jsonl--cut0stopshere" in text
    text = printed(called(*arguments, "--interactive", typed="y\n" * sum(sure)))
    assert f"0 of {sum(sure)} items up to the cut of 0 are wrong (0 %)." in text
    assert "undecided" not in text
    again = printed(called(*arguments, "--labels", tmp_path / "records.labels.jsonl"))
    assert again.splitlines()[-1].endswith("--alpha 0.1 --cut 0")
    # The records remember it, under a name that stored files have.
    assert read_records(path).header.item_correctness[KEY].params["cut"] == 0
    fit = ("fit", path, "--items", "json", "-a", "0.4", "--out", tmp_path / "artifact.json")
    printed(called(*fit))
    gate = CalibrationArtifact.load(tmp_path / "artifact.json").items
    assert gate is not None
    assert (gate.cut, gate.n_undecided) == (0.0, 0)
    for command in (
        fit,
        ("evaluate", path, "--items", "json"),
        ("plan", "--pilot", path, "--items", "json", "-a", "0.4"),
    ):
        refused = " ".join(printed(called(*command, "--cut", "0.4"), 2).replace("│", "").split())
        assert "are labelled up to the cut of 0, and items up to 0.4 are used here" in refused
    assert "it goes with --interactive, --review-store or --labels" in " ".join(
        printed(called(*arguments), 2).replace("│", "").split()
    )


CARDS = """id,prompt,gold,s1,s2,s3
1,one,"{""a"": 1, ""b"": ""x|y""}","{""a"": 1, ""b"": ""x|y""}","{""a"": 1, ""b"": ""z""}","{""a"": 1, ""b"": ""x|y""}"
2,two,"{""a"": 5, ""b"": ""q""}","{""a"": 5, ""b"": ""q""}",oops,"{""a"": 5, ""b"": ""q""}"
"""
FIELDS = """doc,name,value,s1,s2,s3
1,a,1,1,1,1
1,b,x|y,x|y,z,x|y
2,a,5,5,,5
2,b,q,q,,q
"""


def test_one_row_an_answer_and_one_row_a_field_are_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "cards.csv").write_text(CARDS)
    (tmp_path / "fields.csv").write_text(FIELDS)
    samples = ("--map", "samples=s1,s2,s3")
    printed(
        called(
            *("import", tmp_path / "cards.csv", "--items", "json", "--map", "question=prompt"),
            *("--map", "references=gold", *samples, "--out", tmp_path / "cards.jsonl"),
        )
    )
    printed(
        called(
            *("import", tmp_path / "fields.csv", "--items", "json", "--field", "name", "--map", "id=doc"),
            *("--map", "references=value", *samples, "--out", tmp_path / "fields.jsonl"),
        )
    )
    for name in ("cards", "fields"):
        path = tmp_path / f"{name}.jsonl"
        printed(called("score", path, "--items", "json", "--cap", "2"))
        printed(called("label", path, "--items", "json"))
        shares = {
            record.id: {item.path: item.uncertainty for item in record.items[KEY]}
            for record in read_records(path).records
        }
        assert shares == {"1": {"/a": 0.0, "/b": 1 / 3}, "2": {"/a": 1 / 3, "/b": 1 / 3}}
        assert all(all(record.item_labels[KEY].right) for record in read_records(path).records)


@pytest.mark.parametrize(
    ("names", "both", "first"),
    [
        (("/tags/0", "/tags/1"), {"tags": [5, 6]}, {"tags": [5]}),
        (("/rows/1/n", "/rows/0/n"), {"rows": [{"n": 6}, {"n": 5}]}, {"rows": [{"n": 5}]}),
        (("/0", "/1"), [5, 6], [5]),
        (("0", "1"), {"0": 5, "1": 6}, {"0": 5}),
        (("/sales/2024", "/sales/2025"), {"sales": {"2024": 5, "2025": 6}}, {"sales": {"2024": 5}}),
        (("/a/0", "/a/01"), {"a": {"0": 5, "01": 6}}, {"a": {"0": 5}}),
    ],
)
def test_numbers_from_0_in_paths_are_items_of_a_list(
    tmp_path: Path, names: tuple[str, str], both: object, first: object
) -> None:
    """The second item has no value in the sample: an item is left out there, and no field "1" of an object is."""
    (tmp_path / "fields.csv").write_text(f"id,name,value,s1,s2\n1,{names[0]},5,5,5\n1,{names[1]},6,6,\n")
    printed(
        called(
            *("import", tmp_path / "fields.csv", "--items", "json", "--field", "name", "--map", "references=value"),
            *("--map", "samples=s1,s2", "--out", tmp_path / "records.jsonl"),
        )
    )
    (record,) = read_records(tmp_path / "records.jsonl").records
    assert json.loads(record.references[0]) == both
    assert record.drawn is not None
    assert [json.loads(sample.text) for sample in record.drawn.samples] == [both, first]


@pytest.mark.parametrize(
    ("names", "why"), [(("a", "a"), "twice"), (("/a/b", "a"), "fields of its own"), (("/a", "/a/b"), "lies within")]
)
def test_a_field_has_one_value_for_an_answer(tmp_path: Path, names: tuple[str, str], why: str) -> None:
    (tmp_path / "fields.csv").write_text("id,name,value,s1\n" + "".join(f"1,{name},5,5\n" for name in names))
    result = called(
        *("import", tmp_path / "fields.csv", "--items", "json", "--field", "name", "--map", "references=value"),
        *("--map", "samples=s1", "--out", tmp_path / "r.jsonl"),
    )
    assert result.exit_code != 0
    assert why in " ".join(result.output.split())


def test_a_reference_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "cards.jsonl").write_text('{"question": "q", "references": "{", "samples": ["{}"]}\n')
    result = called("import", tmp_path / "cards.jsonl", "--items", "json", "--out", tmp_path / "r.jsonl")
    assert result.exit_code != 0
    assert "a reference must be a JSON document" in result.output


@pytest.mark.parametrize("column", ["references", "answer", "samples"])
@pytest.mark.parametrize("field", [None, "field"])
def test_a_value_that_json_cannot_hold_is_named(column: str, field: str | None) -> None:
    day = date(2024, 1, 2)
    whole = {"question": "q", "references": {"a": 1}, "answer": {"a": 1}, "samples": [{"a": 1}] * 2}
    single = {"id": "1", "field": "a", "references": 1, "answer": 1, "samples": [1, 1]}
    value: Any = day if field else {"a": day}
    frame = [{**(single if field else whole), column: [value, value] if column == "samples" else value}]
    with pytest.raises(RecordError, match=r"^frame:1: .*2024.*JSON cannot hold it.*Write it as the model does"):
        from_frame(frame, items="json", field=field)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("column", ["references", "answer", "samples"])
def test_a_document_with_nan_is_refused_not_read_as_null(tmp_path: Path, column: str, number: str) -> None:
    plain = {"question": "q", "references": {"a": [1]}, "answer": {"a": [1]}, "samples": [{"a": [1]}] * 2}
    bad = {**plain, column: [{"a": [float(number)]}, {"a": [1]}] if column == "samples" else {"a": [float(number)]}}
    way_out = "JSON cannot hold it .* and null where there is no value"
    with pytest.raises(RecordError, match=rf"^frame:2: field '{column}': .*{way_out}"):
        from_frame([plain, bad], items="json")
    path = tmp_path / "log.jsonl"
    # json.dumps writes the number that 1e999 is read as.
    path.write_text("".join(json.dumps(row).replace(json.dumps(float(number)), number) + "\n" for row in (plain, bad)))
    result = called("import", path, "--items", "json", "--out", tmp_path / "r.jsonl")
    shown = " ".join(result.output.replace("│", " ").split())
    assert result.exit_code != 0
    assert f"{column}" in shown
    assert "and null where there is no value" in shown
    assert "log.jsonl:2" in shown.replace(" ", "")
    assert not (tmp_path / "r.jsonl").exists()


def test_a_reference_written_with_nan_is_refused_and_a_sample_stays_what_the_model_wrote(tmp_path: Path) -> None:
    path = tmp_path / "cards.jsonl"
    text = '{"a": NaN}'
    path.write_text(json.dumps({"question": "q", "references": text, "answer": "{}", "samples": ["{}"]}))
    refused = called("import", path, "--items", "json", "--out", tmp_path / "r.jsonl")
    assert refused.exit_code != 0
    rule = "a reference must be a JSON document, null where there is no value (NaN is not JSON)"
    assert rule in " ".join(refused.output.replace("│", " ").split())
    path.write_text(json.dumps({"question": "q", "references": "{}", "answer": "{}", "samples": [text, "{}"]}))
    printed(called("import", path, "--items", "json", "--out", tmp_path / "r.jsonl"))
    (record,) = read_records(tmp_path / "r.jsonl").records
    assert record.drawn is not None
    assert [sample.text for sample in record.drawn.samples] == [text, "{}"]


@pytest.mark.parametrize("word", ["Infinity", "-Infinity", "[NaN]"])
def test_a_cell_of_a_field_that_only_python_reads_as_json_is_a_text(tmp_path: Path, word: str) -> None:
    (tmp_path / "fields.csv").write_text(f"id,name,value,s1,s2\n1,maker,{word},{word},{word}\n")
    printed(
        called(
            *("import", tmp_path / "fields.csv", "--items", "json", "--field", "name", "--map", "references=value"),
            *("--map", "samples=s1,s2", "--out", tmp_path / "r.jsonl"),
        )
    )
    (record,) = read_records(tmp_path / "r.jsonl").records
    assert json.loads(record.references[0]) == {"maker": word}


@pytest.mark.parametrize("nothing", ["", None, float("nan")])
def test_empty_samples_are_counted(tmp_path: Path, nothing: object) -> None:
    others: list[list[object]] = [[nothing, nothing], [nothing, {"a": 1}], [{"a": 1}, {"a": 2}], [{}, {}]]
    frame = [
        {"question": f"q{n}", "references": {"a": 1}, "answer": {"a": 1}, "samples": [{"a": 1}, *drawn]}
        for n, drawn in enumerate(others)
    ]
    said = "Empty samples were left out: 3 (in 2 of 4 rows). Where the model answered nothing, write {}, which supports"
    records = from_frame(frame, items="json")
    assert [note for note in records.notes if note.startswith(said)]
    assert [len(record.drawn.samples) for record in records.file.records if record.drawn] == [1, 2, 3, 3]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in frame))
    assert said in printed(called("import", path, "--items", "json", "--out", tmp_path / "r.jsonl"))
    path.write_text("".join(json.dumps(row) + "\n" for row in frame[2:]))
    told = printed(called("import", path, "--items", "json", "--out", tmp_path / "r.jsonl", "--replace"))
    assert "Empty samples" not in told


def test_a_value_that_a_data_frame_marks_as_missing_leaves_its_field_out() -> None:
    rows = [
        {"id": "1", "field": "a", "references": 1, "samples": [1, float("nan")]},
        {"id": "1", "field": "b", "references": float("nan"), "samples": [2, 2]},
    ]
    (record,) = from_frame(rows, items="json", field="field").file.records
    assert json.loads(record.references[0]) == {"a": 1}
    assert record.drawn is not None
    assert [json.loads(sample.text) for sample in record.drawn.samples] == [{"a": 1, "b": 2}, {"b": 2}]


def test_a_bad_first_row_is_named_and_no_column_is_missed(tmp_path: Path) -> None:
    (tmp_path / "fields.csv").write_text("id,name,gold,s1,s2\n1,a,5,5,5\n")
    result = called(
        *("import", tmp_path / "fields.csv", "--items", "json", "--field", "label", "--map", "references=gold"),
        *("--map", "samples=s1,s2", "--out", tmp_path / "r.jsonl"),
    )
    assert result.exit_code != 0
    assert "field 'label': got nothing; a row of one field needs the field's name or path" in " ".join(
        result.output.replace("│", " ").split()
    )


def test_an_answer_that_is_a_list_is_one_document() -> None:
    listed = [{"a": 1}, {"a": 2}]
    frame = [{"question": "q", "references": [listed], "answer": listed, "samples": [listed, [{"a": 1}]]}]
    records = from_frame(frame, items="json")
    records.items().score(cap=3).label()
    (record,) = records.file.records
    assert record.drawn is not None
    assert record.drawn.primary is not None
    assert json.loads(record.drawn.primary.text) == listed
    assert [item.uncertainty for item in record.items[KEY]] == [0.5]
    assert record.item_labels[KEY].right == (True,)


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
    records = from_frame(rows, items="json")
    items = records.items("json").score(cap=4).label()
    records.write(tmp_path / "records.jsonl")

    def by_command(name: str, *options: str | Path) -> Any:
        (out, path) = tmp_path / f"{name}.json", tmp_path / "records.jsonl"
        pilot = ("--pilot", path) if name == "plan" else (path,)
        printed(called(name, *pilot, "--items", "json", "-a", "0.15", *options, "--json", out))
        return json.loads(out.read_text())

    table = items.evaluate(alphas=[0.15], splits=3, cut=0.6)
    assert [asdict(row) for row in table] == by_command("evaluate", "--splits", "3", "--cut", "0.6")
    table = items.plan(alpha=0.15, sizes=[150], repetitions=3, cut=0.6)
    assert [asdict(row) for row in table] == by_command("plan", "--n", "150", "--repetitions", "3", "--cut", "0.6")

    train, test = records.split(0.3)
    artifact = train.items().fit(alpha=0.15, rule="wrong_share:per=answer")
    assert train.artifact is artifact
    assert artifact.items is not None
    assert artifact.items.per == "answer"
    artifact.save(tmp_path / "artifact.json")
    result = test.items().audit(artifact)
    test.write(tmp_path / "test.jsonl")
    audit = called("audit", "--records", tmp_path / "test.jsonl", "--artifact", tmp_path / "artifact.json", "--json")
    said = json.loads(printed(audit))
    assert (result.verdict, result.p_refuted, result.figures.kept) == (
        said["verdict"],
        said["p_refuted"],
        said["figures"]["kept"],
    )
    with pytest.raises(UsageError, match="fitted on"):
        train.items().audit(artifact)
    assert train.report(tmp_path / "report.html", test=test)[0].is_file()


def test_in_python_people_label_and_new_items_forget_the_artifact() -> None:
    frame = [{"question": f"q{i}", "answer": {"a": i}, "samples": [{"a": i}] * 3} for i in range(30)]
    records = from_frame(frame, items="json")
    items = records.items().score()
    with pytest.raises(UsageError, match=r"no record of .* has a reference"):
        items.label()
    items.label([{"id": record.id, "items": {"/a": True}} for record in records.file.records])
    assert items.fit(alpha=0.2).items is not None
    assert records.artifact is not None
    items.score(cap=2)
    assert records.artifact is None


SURE = [{"question": f"q{i}", "references": {"a": i}, "answer": {"a": i}, "samples": [{"a": i}] * 3} for i in range(9)]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda records: records.items("fields"), "'fields'.*json or sentences"),
        (lambda records: from_frame(SURE, items=cast(Any, "fields")), "items is \"json\" .* got 'fields'"),
        (lambda records: records.items().score(cap=0), "cap must be a whole number of items, at least 1, got 0"),
        (lambda records: records.items().evaluate(alphas=[0.1], splits=0), "splits must be at least 1, got 0"),
        (lambda records: records.items().plan(alpha=0.1, sizes=[0]), "at least 1 answer, got 0"),
        (lambda records: records.items().plan(alpha=0.1, sizes=[5], repetitions=0), "must be at least 1, got 0"),
    ],
)
def test_in_python_what_cannot_be_done_is_refused_in_words(step: Callable[[Records], object], message: str) -> None:
    records = from_frame(SURE, items="json")
    records.items().score().label()
    with pytest.raises(UsageError, match=message):
        step(records)


ANSWERS = ["One is right. Two is not.", "One is right. Two is so.", "One is right. Two is not."]
MODEL = ScriptedChat(script={f"q{i}": list[str | Exception](ANSWERS) for i in range(4)})


def test_in_python_a_fit_of_whole_answers_names_that_of_items() -> None:
    records = from_frame(
        [{"question": "q", "references": {"a": 1}, "answer": {"a": 1}, "samples": [{"a": 1}] * 2}], items="json"
    )
    records.items("json").score().label()
    with pytest.raises(UsageError, match=r"scored by the items of answers.*items\(\)\.fit\(alpha=\.\.\.\)"):
        records.fit(alpha=0.1, rule="acrc")


def test_collect_asks_the_model_about_sentences(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"id": str(i), "question": f"q{i}"}) + "\n" for i in range(4)))
    path = tmp_path / "records.jsonl"
    model = "python:tests.calibrate.cli.test_items_cli:MODEL"
    text = printed(called("collect", questions, "--model", model, "--items", "sentences", "--n", "2", "--out", path))
    assert f"calibrate score {path} --items sentences" in text.replace("\n", "")
    record = read_records(path).records[0]
    assert record.drawn is not None
    assert "supported_sentences" in record.drawn.follow_ups


def test_labels_from_the_review_page_part_by_part(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from guardrail.review import ItemDecision, ReviewStore, by_items

    path = record_file(tmp_path / "records.jsonl", invoices(2)).path
    printed(called("score", path, "--items", "json"))
    arguments = ("label", path, "--items", "json", "--review-store", tmp_path / "reviews.db")
    assert "2 of 2 answers wait for a person" in printed(called(*arguments))
    with ReviewStore(tmp_path / "reviews.db") as store:
        while (lease := store.claim("ann")) is not None:
            content = lease.item.content
            assert [item.uncertainty for item in content.items] == [None] * 4  # a score would sway the label
            decisions = [
                ItemDecision(place=item.place, action="reject" if item.place == "/due" else "approve")
                for item in content.items
            ]
            store.decide(lease, by_items(content, decisions))
    printed(called(*arguments))
    labels = [record.item_labels[KEY].right for record in read_records(path).records]
    assert labels == [(True, True, True, False)] * 2


def test_an_answer_that_was_decided_as_a_whole_is_not_left_out(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from guardrail.review import Decision, ReviewStore

    path = record_file(tmp_path / "records.jsonl", invoices(2)).path
    printed(called("score", path, "--items", "json"))
    arguments = ("label", path, "--items", "json", "--review-store", tmp_path / "reviews.db")
    printed(called(*arguments))
    with ReviewStore(tmp_path / "reviews.db") as store:
        for action in ("approve", "reject"):
            lease = store.claim("ann")
            assert lease is not None
            store.decide(lease, Decision(action=action))
    printed(called(*arguments))
    labels = [record.item_labels[KEY].right for record in read_records(path).records]
    assert sorted(labels, key=str) == [(None,) * 4, (True,) * 4]


def test_an_empty_queue_of_a_gate_of_items_makes_no_artifact(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from guardrail.items.json_fields import json_spec
    from guardrail.review import ReviewStore
    from guardrail.testing import make_artifact

    ReviewStore(tmp_path / "reviews.db").close()
    artifact = make_artifact(MODEL, items=json_spec(cap=2)).save(tmp_path / "artifact.json")
    result = called("learn", tmp_path / "reviews.db", "--artifact", artifact, "--out", tmp_path / "new.json")
    assert result.exit_code != 0
    assert "no reviewed item can be used" in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "new.json").exists()


def test_run_by_items_goes_from_questions_to_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibrate.cli.run.resolve_model", lambda name: answering(invoices(220)))
    monkeypatch.chdir(tmp_path)
    rows = [{"id": each.id, "question": each.question, "references": each.references} for each in invoices(220)]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    run = ("run", "--questions", "q.jsonl", "--model", "python:a:b", "--items", "json", "--n", "5", "--out", "out")
    refused = printed(called(*run, "--correctness", "exact"), 2)
    assert "--correctness is about whole answers" in " ".join(refused.split())
    assert "--splits is about whole answers" in " ".join(printed(called(*run, "--splits", "100"), 2).split())
    printed(called(*run, "--rule", "acrc"), 2)
    assert not Path("out").exists(), "refused before the model is asked"
    more = ("--field-judge", "/total=numeric", "--alpha", "0.15")
    text = printed(called(*run, *more))
    assert "At most 15 % of the items kept are wrong, with 90 % confidence." in text
    gate = CalibrationArtifact.load("out/artifact.json").items
    assert gate is not None
    assert gate.spec.cap == 4
    assert {file.name for file in Path("out").iterdir()} >= {"records.jsonl", "test-records.jsonl", "report.html"}
    assert "Answers kept out of the fit" in Path("out/report.html").read_text(encoding="utf-8")
    again = printed(called(*run, *more))  # everything is on file
    assert CalibrationArtifact.load("out/artifact.json").items == gate, again


def test_run_by_sentences_waits_for_the_labels_of_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedChat(script={f"q{i}?": ["It is red. It is big."] * 8 for i in range(4)})
    monkeypatch.setattr("calibrate.cli.run.resolve_model", lambda name: model)
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text("\n".join(json.dumps({"question": f"q{i}?"}) for i in range(4)), encoding="utf-8")
    run = ("run", "--questions", "q.jsonl", "--model", "python:a:b", "--items", "sentences", "--n", "2", "--out", "out")
    text = printed(called(*run, "--test-fraction", "0", "--allow-identical-samples"))
    assert "calibrate label out/records.jsonl --items sentences --interactive" in " ".join(text.split())
    assert not Path("out/artifact.json").exists()


@pytest.mark.parametrize(
    "command", ["evaluate {} --alpha 0.3 --splits 2", "plan --pilot {} --alpha 0.3 --n 40 --repetitions 3"]
)
def test_a_question_asked_twice_is_never_on_both_sides_of_a_split(labelled: Path, tmp_path: Path, command: str) -> None:
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    file = read_records(labelled)
    again = [record.model_copy(update={"id": f"{record.id} again"}) for record in file.records]
    write_records(once, file.header, file.records)
    write_records(twice, file.header, [*file.records, *again])
    n = sum("items_json" in record.item_labels for record in file.records)
    printed_of = [printed(called(*command.format(path).split(), "--items", "json")) for path in (once, twice)]
    assert all(f"{n} answers" in text or f"the {n} of the pilot" in text for text in printed_of)


def test_reach_items_above_a_cut_cost_no_label_and_their_answers_count(tmp_path: Path) -> None:
    records = invoices(60)
    unsure = records[5].drawn
    assert unsure is not None
    other = [sample.model_copy(update={"text": "?"}) for sample in unsure.samples]
    records[5] = records[5].model_copy(update={"drawn": unsure.model_copy(update={"samples": tuple(other)})})
    path = record_file(tmp_path / "records.jsonl", records).path
    printed(called("score", path, "--items", "json"))
    by_id = {record.id: record for record in read_records(path).records if KEY in record.items}
    below = {
        name: [item.uncertainty is not None and item.uncertainty <= 0.2 for item in record.items[KEY]]
        for name, record in by_id.items()
    }
    assert not any(below[records[5].id])
    needed = sum(map(sum, below.values()))
    stopped = called("label", path, "--items", "json", "--interactive", "--cut", "0.2", typed="y\n" * (needed - 1))
    assert "are labelled; all of them are in" in printed(stopped)
    last = printed(called("label", path, "--items", "json", "--interactive", "--cut", "0.2", typed="y\n" * 4))
    assert "--cut 0.2" in last
    labels = {record.id: record.item_labels[KEY].right for record in read_records(path).records if record.id in by_id}
    assert labels == {name: tuple(True if asked else None for asked in some) for name, some in below.items()}
    out = tmp_path / "artifact.json"
    text = printed(called("fit", path, "--items", "json", "--alpha", "0.2", "--cut", "0.2", "--out", out))
    assert "None above the cut of 0.2 is kept" in text
    gate = CalibrationArtifact.load(out).items
    assert gate is not None
    assert gate.threshold is not None
    assert gate.threshold <= 0.2
    assert len(gate.scores.sizes) == len(by_id)  # answers without an item below the cut count
    shown = gate.figures
    assert shown is not None
    assert shown.shown == sum(map(any, below.values())) < shown.answers
    refused = called("label", path, "--items", "json", "--cut", "0.2")
    assert "goes with --interactive" in printed(refused, 2)


def test_reach_on_the_review_page(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from guardrail.review import ItemDecision, ReviewStore, by_items

    path = record_file(tmp_path / "records.jsonl", invoices(30)).path
    printed(called("score", path, "--items", "json"))
    arguments = ("label", path, "--items", "json", "--review-store", tmp_path / "reviews.db", "--cut", "0.2")
    assert "wait for a person" in printed(called(*arguments))
    with ReviewStore(tmp_path / "reviews.db") as store:
        while (lease := store.claim("ann")) is not None:
            items = lease.item.content.items
            store.decide(
                lease,
                by_items(lease.item.content, [ItemDecision(place=item.place, action="approve") for item in items]),
            )
    printed(called(*arguments))
    for record in read_records(path).records:
        if KEY in record.items:
            asked = [item.uncertainty is not None and item.uncertainty <= 0.2 for item in record.items[KEY]]
            assert record.item_labels[KEY].right == tuple(True if each else None for each in asked)


def test_looks_from_the_command_line_follow_the_reading_order(folder: Path) -> None:
    file = read_records(folder / "records.jsonl")
    names = [record.id for record in file.records if KEY in record.items]
    first = {names[i] for i in reading_order(names)[:120]}

    def look(name: str, labelled: set[str]) -> Result:
        some = [
            record if record.id in labelled else record.model_copy(update={"item_labels": {}})
            for record in file.records
        ]
        write_records(folder / f"{name}.jsonl", file.header, some)
        arguments = ("--items", "json", "-a", "0.2", "--planned", str(len(names)), "--out", folder / f"{name}.json")
        return called("fit", folder / f"{name}.jsonl", *arguments)

    printed(look("early", first))
    printed(look("late", set(names)))
    early, late = (CalibrationArtifact.load(folder / f"{name}.json").items for name in ("early", "late"))
    assert early is not None
    assert late is not None
    assert early.options["start"] == late.options["start"]
    assert len(early.scores.sizes) == 120
    gap = printed(look("gap", set(names[60:])), 2)
    assert "follow the reading order" in " ".join(gap.split())


def test_groups_from_the_command_line(folder: Path) -> None:
    path = folder / "records.jsonl"
    file = read_records(path)
    grouped = [record.model_copy(update={"group": f"buyer {i // 2}"}) for i, record in enumerate(file.records)]
    write_records(path, file.header, grouped)
    fit = ("fit", path, "--items", "json", "-a", "0.2", "--out", folder / "artifact.json", "--cluster-by-group")
    printed(called(*fit))
    gate = CalibrationArtifact.load(folder / "artifact.json").items
    assert gate is not None
    assert gate.scores.group is not None
    assert len(set(gate.scores.group)) == len(gate.scores.group) <= 140
    printed(called(*fit, "--rule", "wrong_share:largest_group=8"))
    gate = CalibrationArtifact.load(folder / "artifact.json").items
    assert gate is not None
    assert gate.scores.group is not None
    assert len(gate.scores.group) > 140
    refused = printed(called(*fit, "--rule", "wrong_share:largest_group=7"), 2)
    assert "a group has 8 items, more than largest_group = 7" in " ".join(refused.replace("│", "").split())


def test_an_item_of_a_smaller_cut_labels_only_the_items_that_it_shows(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from guardrail.review import ItemDecision, ReviewStore, by_items

    path = record_file(tmp_path / "records.jsonl", invoices(30)).path
    printed(called("score", path, "--items", "json"))
    arguments = ("label", path, "--items", "json", "--review-store", tmp_path / "reviews.db", "--cut")
    printed(called(*arguments, "0"))
    seen: dict[str, set[str]] = {}
    with ReviewStore(tmp_path / "reviews.db") as store:
        while (lease := store.claim("ann")) is not None:
            content = lease.item.content
            places = [item.place for item in content.items]
            seen[content.question] = set(places)
            decisions = [ItemDecision(place=place, action="approve") for place in places]
            store.decide(lease, by_items(content, decisions))
    printed(called(*arguments, "0.9"))
    wider = 0
    for record in read_records(path).records:
        if record.question in seen and KEY in record.item_labels:
            items, right = record.items[KEY], record.item_labels[KEY].right
            shown = [item.place in seen[record.question] for item in items]
            assert right == tuple(True if each else None for each in shown)
            wider += shown.count(False)
    assert wider
