"""Parts of answers: measured and labelled, every rule's fit on a small set, tests, tables and the report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from calibrate.data import column_store
from calibrate.data.column_store import ColumnRecords, open_records
from calibrate.data.formats import ImportSettings, parse_map
from calibrate.data.records import Record, RecordFile
from calibrate.dataframe import Records, from_frame
from calibrate.fits import selection_warning
from calibrate.parts.answers import (
    cap_of_counts,
    key_of_parts,
    label_parts,
    labels_by_hand,
    measure_file,
    packed_answers,
    spec_of_key,
)
from calibrate.parts.audit import audit_parts, check_on, check_promise
from calibrate.parts.documents import import_documents
from calibrate.parts.evaluate import answers_needed, compared_rules, evaluate_parts, simulate_parts
from calibrate.parts.figures import curve, length_bands, path_rows
from calibrate.parts.fit import PartsRule, fit_parts_artifact, held_out_parts, refit_parts, thresholds_of
from calibrate.parts.page import write_parts_report
from calibrate.parts.promises import figures_lines, promise_line
from calibrate.parts.rules import (
    AnswerParts,
    clean_answers,
    reading_order,
    start_shown,
    start_wrong_share,
    tolerated,
    wrong_share,
)
from calibrate.parts.wording import bands_table, caveats, facts, path_warnings, paths_table
from calibrate.pipeline import fit_artifact
from calibrate.thresholds import rules
from guardrail.artifact import CalibrationArtifact
from guardrail.judges import EntailmentScores, JudgeSpec
from guardrail.parts.measure import parts_measure
from guardrail.parts.spec import PartFigures
from tests.calibrate.parts import cards

from .story import Story, plain, spelled, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name files as a user types them, which is without the folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _outlined_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are put together, but not rendered."""

    def outline(_: object, stream: IO[bytes], *, format: str, **__: object) -> None:
        stream.write(b"<svg></svg>" if format == "svg" else b"\x89PNG\r\n\x1a\n")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", outline)


def invoices(n: int = 120, seed: int = 0, prefix: str = "invoice") -> Records:
    """Invoices whose fields are measured and labelled."""
    return Records(cards.record_file(Path(f"{prefix}.jsonl"), cards.invoices(n, seed, prefix=prefix)))


def measured(n: int = 120, seed: int = 0, prefix: str = "invoice") -> Records:
    records = invoices(n, seed, prefix)
    records.parts("json").score().label()
    return records


def told(artifact: CalibrationArtifact) -> str:
    """A gate of parts without its scores, and without when and with which packages it was made."""
    text = plain(artifact.model_copy(update={"created": "", "packages": {}, "lineage": ()}))
    for name in ("packages", "calibration", "certificate", "model", "plan", "prompt", "estimator"):
        text.pop(name, None)
    text["data"].pop("questions", None)
    text["parts"].pop("spec")
    text["parts"]["scores"] = {name: len(values) for name, values in text["parts"]["scores"].items() if values}
    return json.dumps(text, ensure_ascii=False)


def test_parts_of_documents() -> None:
    story = Story("parts.txt")
    records = invoices()
    parts = records.parts("json").score()
    story.show("repr", repr(parts))
    story.show("spec", records.file.header.estimators["parts_json"])
    parts.label()
    story.show("labels by", records.file.header.part_correctness)
    for place in (0, 1, 39):
        record = records.file.records[place]
        story.head(record.id)
        story.show("score", record.scores["parts_json"])
        story.say(*(spelled(part) for part in record.parts.get("parts_json", ())))
        story.show("labels", record.part_labels.get("parts_json"))
    story.head("columns")
    columns = records.file.records.parts("parts_json").take(np.arange(3))
    for name in ("size", "labels", "reference", "uncertainty", "absent", "path", "right", "paths"):
        story.show(name, getattr(columns, name))
    story.head("sentences")
    texts = Records(cards.record_file(Path("texts.jsonl"), cards.sentences(30), schema=False))
    key = "parts_sentences"
    story.refused("no cap and no model", lambda: texts.parts("sentences").score(cap=3))
    story.refused("no parts", lambda: texts.parts("sentences").label())
    story.refused("other parts", lambda: texts.parts("words"))  # type: ignore[arg-type]
    story.head("labels by hand")
    file = records.file
    named = {"/number": True, "/total": False, "/buyer": None, "/due": True}
    by_hand = labels_by_hand(file, "parts_json", [{"id": "invoice-0", "parts": named}], "people.jsonl", "0" * 64, 0.5)
    story.show("spec", by_hand.header.part_correctness)
    story.show("labels", [record.part_labels for record in by_hand.records[:2]])
    some = packed_answers(by_hand, "parts_json")
    story.show("packed", [some.n_records, some.n_unmeasured, some.n_unlabelled, some.n_undecided, some.parts.cut])
    refusals: dict[str, Callable[[], object]] = {
        "an unknown record": lambda: labels_by_hand(file, "parts_json", [{"id": "x", "parts": {}}], "people.jsonl", ""),
        "labels that are a list": lambda: labels_by_hand(
            file, "parts_json", [{"id": "invoice-0", "parts": []}], "people.jsonl", ""
        ),
        "an unknown part": lambda: labels_by_hand(
            file, "parts_json", [{"id": "invoice-0", "parts": named | {"/x": True}}], "people.jsonl", ""
        ),
        "a label that is a word": lambda: labels_by_hand(
            file, "parts_json", [{"id": "invoice-0", "parts": named | {"/due": "yes"}}], "people.jsonl", ""
        ),
        "a part without a label": lambda: labels_by_hand(
            file, "parts_json", [{"id": "invoice-0", "parts": {"/due": True}}], "people.jsonl", ""
        ),
        "a cut of 2": lambda: labels_by_hand(file, "parts_json", [], "people.jsonl", "", 2),
        "a cut above that of the labels": lambda: packed_answers(by_hand, "parts_json", cut=0.9),
        "no labels of parts": lambda: packed_answers(invoices(3).parts("json").score()._file, "parts_json"),
        "no such parts": lambda: key_of_parts(file, "claims"),
        "no parts at all": lambda: key_of_parts(invoices(3).file),
        "no references": lambda: label_parts(bare(file), "parts_json"),
        "a reference that is not JSON": lambda: label_parts(bare(file, ("no JSON",)), "parts_json"),
        "a path that no field has": lambda: invoices(3).parts("json").score(judges={"/sum": "exact"}),
        "a file that is not there": lambda: records.parts("json").label("none.jsonl"),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.show("spec", spec_of_key(file.header, "parts_json").cap)
    story.show("key", [key_of_parts(file), key])
    story.compare()


def bare(file: RecordFile, references: tuple[str, ...] = ()) -> RecordFile:
    """The records with other references."""
    return RecordFile(file.path, file.header, [r.model_copy(update={"references": references}) for r in file.records])


RULES_OF_PARTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("wrong_share", {}),
    ("wrong_share:per=answer,seed=1,start_share=0.5", {}),
    ("clean_answers", {}),
    ("clean_answers:allowed=1", {"delta": None}),
    ("clean_shown", {"alpha": 0.3}),
    ("clean_shown:allowed=2", {}),
    ("both:clean_alpha=0.4", {}),
    ("both", {"alpha": 0.05}),
    ("wrong_share", {"alpha": 0.01}),
    ("wrong_share", {"cap": 2}),
    ("wrong_share", {"cut": 0.3}),
    ("wrong_share:largest_group=40", {"groups": "cluster"}),
    ("clean_answers", {"groups": "cluster", "alpha": 0.3}),
)


def test_fits_of_parts() -> None:
    story = Story("parts_fits.txt")
    records = measured()
    grouped = [r.model_copy(update={"group": f"g{i // 5}"}) for i, r in enumerate(records.file.records)]
    file = RecordFile(records.file.path, records.file.header, grouped)
    other = measured(60, 5, "other").file
    for text, settings in RULES_OF_PARTS:
        artifact = fit_parts_artifact(file, rule=text, **{"alpha": 0.15, **settings})
        gate = artifact.parts
        assert gate is not None
        assert gate.figures is not None
        story.head(f"{text} {spelled(settings)}")
        story.say(told(artifact), promise_line(gate), *figures_lines(gate, gate.figures, gate.cut))
        story.show("again", PartsRule.again(gate).text)
        if gate.cut is None and gate.spec.cap > 2:
            figures, data = held_out_parts(artifact, other)
            tested = check_promise(gate, data.parts, thresholds_of(gate, data.parts))
            story.show("on others", figures)
            story.show("tested", [tested.verdict, tested.sentence, tested.p_refuted, tested.p_supported])
    story.head("bands")
    for together in ("together", "each"):
        rule = PartsRule("wrong_share", bands=(2, 3), band_delta=together)
        artifact = fit_parts_artifact(file, alpha=0.15, rule=rule)
        story.say(told(artifact), rule.flags)
    story.head("looks")
    planned = PartsRule("wrong_share", planned=200)
    artifact = fit_parts_artifact(records.file, alpha=0.15, rule=planned)
    story.say(told(artifact), planned.flags)
    story.head("another alpha, delta or rule")
    artifact = fit_parts_artifact(file, alpha=0.15)
    for changes in ({"alpha": 0.3}, {"delta": 0.3}, {"rule": "clean_answers"}):
        again = refit_parts(artifact, **changes)
        assert again.parts is not None
        story.show(spelled(changes), [again.parts.threshold, again.parts.options, again.parts.figures, again.outcome])
    story.head("refused")
    looks = fit_parts_artifact(records.file, alpha=0.15, rule=planned)
    whole = CalibrationArtifact.model_construct(**(dict(artifact) | {"parts": None}))
    gaps = [r if i else r.model_copy(update={"part_labels": {}}) for i, r in enumerate(in_reading_order(records.file))]
    refusals: dict[str, Callable[[], object]] = {
        "an unknown rule": lambda: PartsRule.read("acrc"),
        "an unknown option": lambda: PartsRule.read("clean_answers:seed=1"),
        "an option of one rule": lambda: PartsRule.read("clean_shown:per=answer"),
        "a start of 1": lambda: PartsRule.read("wrong_share:start_share=1"),
        "no delta": lambda: fit_parts_artifact(file, alpha=0.1, delta=None),
        "alpha of 10": lambda: fit_parts_artifact(file, alpha=10),
        "allowed of -1": lambda: fit_parts_artifact(file, alpha=0.1, rule="clean_shown:allowed=-1"),
        "another unit": lambda: fit_parts_artifact(file, alpha=0.1, rule="wrong_share:per=group"),
        "a largest group without groups": lambda: fit_parts_artifact(
            file, alpha=0.1, rule="wrong_share:largest_group=9"
        ),
        "a small largest group": lambda: fit_parts_artifact(
            file, alpha=0.1, rule="wrong_share:largest_group=3", groups="cluster"
        ),
        "a rule of independent answers": lambda: fit_parts_artifact(
            file, alpha=0.1, rule=PartsRule("both", largest_group=9), groups="cluster"
        ),
        "bands that fall": lambda: fit_parts_artifact(file, alpha=0.1, rule=PartsRule(bands=(3, 2))),
        "bands of groups": lambda: fit_parts_artifact(
            file, alpha=0.1, rule=PartsRule(bands=(2,), largest_group=40), groups="cluster"
        ),
        "a cap of 0": lambda: fit_parts_artifact(file, alpha=0.1, cap=0),
        "few planned answers": lambda: fit_parts_artifact(file, alpha=0.1, rule=PartsRule(planned=10)),
        "looks of another rule": lambda: fit_parts_artifact(file, alpha=0.1, rule=PartsRule("both", planned=200)),
        "a gap in the looks": lambda: fit_parts_artifact(
            RecordFile(file.path, file.header, gaps), alpha=0.1, rule=planned
        ),
        "one of several looks again": lambda: refit_parts(looks, alpha=0.2),
        "a rule of whole answers": lambda: refit_parts(artifact, rule="acrc"),
        "an object": lambda: refit_parts(artifact, rule=3),  # type: ignore[arg-type]
        "a test on the fit": lambda: held_out_parts(artifact, file),
        "a test of another plan": lambda: held_out_parts(artifact, planless(other)),
        "a gate of whole answers": lambda: held_out_parts(whole, other),
        "parts as a score": lambda: fit_artifact(labelled(file), estimator="parts_json", alpha=0.1),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.show("rules of whole answers", len(rules()))
    story.compare()


def in_reading_order(file: RecordFile) -> list[Record]:
    return [file.records[int(place)] for place in reading_order([record.id for record in file.records])]


def planless(file: RecordFile) -> RecordFile:
    plan = file.header.plan.model_copy(update={"temperature": 0.1})
    return RecordFile(file.path, file.header.model_copy(update={"plan": plan}), file.records)


def labelled(file: RecordFile) -> RecordFile:
    """The records with labels of whole answers, too."""
    header = file.header.model_copy(update={"correctness": file.header.part_correctness["parts_json"]})
    records = [record.model_copy(update={"correct": True}) for record in file.records]
    return RecordFile(file.path, header, records)


def test_tables_tests_and_the_report_of_parts() -> None:
    story = Story("parts_report.txt")
    records, other, worse = measured(), measured(60, 5, "other"), measured(60, 9, "worse")
    artifact = records.parts("json").fit(alpha=0.15).model_copy(update={"created": "2026-01-01T00:00:00+00:00"})
    story.show("selection", artifact.selection)
    again = records.parts("json").fit(alpha=0.15, rule="clean_answers")
    story.show("again", [again.selection, selection_warning(again)])
    story.refused("a third fit", lambda: records.parts("json").fit(alpha=0.15, rule="clean_shown", strict=True))
    gate = artifact.parts
    assert gate is not None
    data = packed_answers(records.file, "parts_json")
    limits = thresholds_of(gate, data.parts)
    story.head("tables")
    shown: dict[str, Sequence[Any]] = {
        "paths": paths_table(data.parts, limits, data.columns),
        "bands": bands_table(data.parts, limits, 0),
        "facts": facts(artifact),
        "facts again": facts(again),
        "caveats": caveats(gate),
        "warnings": path_warnings(gate, data.parts, [1.0] * data.parts.n, data.columns),
    }
    for title, rows in shown.items():
        story.say(title, *(f"  {row if isinstance(row, str) else spelled(row)}" for row in rows))
    story.say(*(spelled(row) for row in path_rows(data.parts, limits, data.columns)))
    story.say(*(f"{name}: {spelled(figures)}" for name, figures in length_bands(data.parts, limits)))
    story.say(*(spelled(point) for point in curve(data.parts, 4)))
    empty = PartFigures(
        answers=3,
        shown=0,
        complete=0,
        broken=0,
        parts=0,
        wrong=0,
        kept=0,
        kept_wrong=0,
        wrong_per_answer=None,
        broken_interval=None,
    )
    story.say(*figures_lines(gate, empty, None), *figures_lines(gate, empty, 0.5))
    story.say(promise_line(gate.model_copy(update={"threshold": None})))
    story.head("over splits and simulated")
    for row in records.parts("json").evaluate(alphas=[0.15, 0.3], splits=4, rules=["wrong_share", "clean_shown"]):
        story.say(spelled(row))
    for row in records.parts("json").plan(alpha=0.15, sizes=(40, 120), repetitions=4):
        story.say(spelled(row))
    story.say(*(rule.text for kind in ("json", "sentences") for rule in compared_rules(kind)))
    story.show("answers needed", [answers_needed(0.1, 0.1, share) for share in (1.0, 0.5)])
    story.head("audits")
    for title, records_ in (("alike", other), ("others", worse)):
        for settings in ({}, {"target": 0.02}, {"target": 0.6, "level": 0.2}):
            result = audit_parts(artifact, records_.file, **settings)
            story.show(
                f"{title} {spelled(settings)}",
                [result.verdict, result.sentence, result.p_refuted, result.p_supported, result.figures],
            )
    twice = RecordFile(
        other.file.path,
        other.file.header,
        [*other.file.records, *(r.model_copy(update={"id": f"{r.id}b"}) for r in other.file.records[:9])],
    )
    story.show("equal questions", check_on(artifact, twice).sentence)
    nothing = check_promise(gate, data.parts, [None] * data.parts.n)
    story.show("nothing kept", [nothing.verdict, nothing.sentence])
    story.head("the report")
    commands = ["calibrate fit invoice.jsonl --parts json"]
    for title, tested in (("fit", None), ("test", other.file)):
        files, _ = write_parts_report(f"{title}.html", artifact, records.file, test=tested, commands=commands)
        story.show("files", [str(file) for file in files])
        story.say(page_text(Path(f"{title}.html").read_text(encoding="utf-8")))
    story.head("refused")
    refusals: dict[str, Callable[[], object]] = {
        "other records": lambda: write_parts_report("x.html", artifact, other.file),
        "whole answers": lambda: write_parts_report(
            "x.html", CalibrationArtifact.model_construct(**(dict(artifact) | {"parts": None})), other.file
        ),
        "an audit of whole answers": lambda: audit_parts(
            CalibrationArtifact.model_construct(**(dict(artifact) | {"parts": None})), other.file
        ),
        "all to fit on": lambda: evaluate_parts(
            data.parts, rules=compared_rules("json"), alphas=[0.1], n_calibration=data.parts.n
        ),
        "no split": lambda: evaluate_parts(data.parts, rules=compared_rules("json"), alphas=[0.1], splits=0),
        "no answers": lambda: simulate_parts(data.parts, rules=compared_rules("json"), alphas=[0.1], n=0),
        "no calibration": lambda: simulate_parts(
            data.parts, rules=compared_rules("json"), alphas=[0.1], n=5, calibrations=0
        ),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def page_text(html: str) -> str:
    """The words of a page, a block a line."""
    body = re.sub(r"(?s)<(style|script|svg)\b.*?</\1>", "", html)
    body = re.sub(r"(?i)</(p|h\d|li|tr|dt|dd|summary|table|div|caption|title)>", "\n", body)
    text = unescape(re.sub(r"<[^>]+>", " ", body))
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def test_rules_of_parts_on_lists() -> None:
    story = Story("parts_rules.txt")
    parts = AnswerParts.of(
        [[0.1, 0.2], [0.05], [], [None, 0.3, 0.9], [0.2, 0.2, 0.2], [0.6]],
        [[0, 1], [0], [], [1, 0, None], [0, 0, 0], [1]],
        cap=2,
        ids=list("abcdef"),
    )
    for name in ("size", "uncertainty", "wrong", "scores", "answer"):
        story.show(name, getattr(parts, name))
    story.show("first kept", parts.first_kept())
    story.show("first broken", [parts.first_broken(), parts.first_broken(1)])
    story.show("counts", parts.counts(np.array([0.1, 0.2, 0.6])))
    story.show("taken", parts.take(np.array([3, 0])))
    story.show("tolerated", [[tolerated(n, 0.1, delta) for n in (5, 22, 100)] for delta in (0.1, None)])
    story.show("order", [reading_order(parts.ids, seed) for seed in (0, 1)])
    starts = {
        "shown": [start_shown(parts, n, alpha=0.5, delta=0.3, other=other) for n in (3, 6) for other in (False, True)],
        "share": [
            start_wrong_share(parts, n, alpha=0.5, delta=0.3, per=per) for n in (3, 6, 60) for per in ("part", "answer")
        ],
    }
    story.show("starts", starts)
    for allowed in (0, 1):
        story.show(f"clean answers, {allowed} allowed", clean_answers(parts, alpha=0.5, delta=0.5, allowed=allowed))
    story.show("a score that is upside down", clean_answers(upside_down(), alpha=0.05, delta=0.5))
    story.head("refused")
    lists: tuple[list[Any], list[Any]] = ([[0.1]], [[0]])
    refusals: dict[str, Callable[[], object]] = {
        "no answers": lambda: AnswerParts.of([], [], cap=1),
        "other lengths": lambda: AnswerParts.of([[0.1]], [[0], [1]], cap=1),
        "other numbers of parts": lambda: AnswerParts.of([[0.1]], [[0, 1]], cap=1),
        "an id twice": lambda: AnswerParts.of([[0.1]] * 2, [[0]] * 2, cap=1, ids=["a", "a"]),
        "a cap that is true": lambda: AnswerParts.of(*lists, cap=True),
        "a cap of 0": lambda: AnswerParts.of(*lists, cap=0),
        "a cut of 2": lambda: AnswerParts.of(*lists, cap=1, cut=2),
        "groups of another number": lambda: wrong_share(
            parts, alpha=0.1, delta=0.1, per="part", start=0.1, groups=["a"]
        ),
        "groups without a size": lambda: wrong_share(
            parts, alpha=0.1, delta=0.1, per="part", start=0.1, groups=list("aabbcc")
        ),
        "answers of groups without a size": lambda: wrong_share(
            parts, alpha=0.1, delta=0.1, per="answer", start=0.1, groups=list("aabbcc")
        ),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def upside_down() -> AnswerParts:
    return AnswerParts.of([[0.1]] * 40, [[1]] * 40, cap=1)


def test_documents_of_other_tools() -> None:
    story = Story("documents.txt")
    whole = [
        {
            "id": "a",
            "question": "q?",
            "references": {"x": 1, "y": [1, 2]},
            "samples": [{"x": 1}, '{"x": 2}', "", None],
            "answer": {"x": 1},
        },
        {"id": "b", "question": "r?", "references": '{"x": null}', "samples": ["no JSON", {}], "answer": "sorry"},
    ]
    fields = [
        {"id": "a", "field": "/buyer/name", "gold": "Ann", "s1": "Ann", "s2": "Bob", "answer": "Ann"},
        {"id": "a", "field": "/tags/0", "gold": "x", "s1": "x", "s2": None, "answer": "x"},
        {"id": "a", "field": "/tags/1", "gold": "y", "s1": "y", "s2": "y", "answer": None},
        {"id": "b", "field": "total", "gold": 5, "s1": 5.5, "s2": 5, "answer": 5},
        {"id": "b", "field": "/a~1b", "gold": True, "s1": True, "s2": False, "answer": True},
    ]
    maps = parse_map(["references=gold", "samples=s1,s2"])
    cells = "id,field,gold,s1,s2,answer\na,/n,1,1,2,1\na,/name,Ann,Ann,,Infinity\n"
    for title, path, settings, field in (
        ("documents", write("whole.jsonl", whole), ImportSettings(), None),
        ("one row a field", write("fields.jsonl", fields), ImportSettings(columns=maps), "field"),
        ("one row a field, CSV", write("fields.csv", cells), ImportSettings(columns=maps), "field"),
    ):
        result = import_documents(path, settings, field)
        story.head(title)
        story.show("model", result.file.header.model)
        story.say(*(spelled(record) for record in result.file.records), *(f"note: {note}" for note in result.notes))
    story.head("a frame")
    frame = from_frame(
        [{"id": 1, "question": "q?", "references": {"x": 1}, "samples": [{"x": 1}, {"x": 2}], "answer": {"x": 1}}],
        parts="json",
    )
    story.show("record", frame.file.records[0])
    story.head("refused")
    row = {"id": "a", "question": "q?", "references": {"x": 1}, "samples": [{"x": 1}, {"x": 2}], "answer": {"x": 1}}
    one = {"id": "a", "field": "/x", "gold": 1, "s1": 1, "s2": 2}
    for title, rows, settings, field in (
        ("a reference that is not JSON", [row | {"references": "x"}], ImportSettings(), None),
        ("an infinity", [row | {"answer": {"x": float("inf")}}], ImportSettings(), None),
        ("samples that are no list", [row | {"samples": "[{"}], ImportSettings(), None),
        ("a torn line", ["{"], ImportSettings(), None),
        ("a field without an id", [one | {"id": None}], ImportSettings(columns=maps), "field"),
        ("a field without a name", [one | {"field": ""}], ImportSettings(columns=maps), "field"),
        ("a field twice", [one, one], ImportSettings(columns=maps), "field"),
        ("a field within a value", [one, one | {"field": "/x/y"}], ImportSettings(columns=maps), "field"),
        ("a value over fields", [one | {"field": "/x/y"}, one], ImportSettings(columns=maps), "field"),
    ):
        path = write("rows.jsonl", rows)
        story.refused(title, lambda: import_documents(path, settings, field))  # noqa: B023
    story.compare()


class Toy:
    """An entailment model that finds a sentence entailed if the premise has it, and contradicted by its opposite."""

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="toy", version=1, params={})

    def entailment_batch(self, items: Sequence[tuple[str, str, str]]) -> list[EntailmentScores | None]:
        return [
            EntailmentScores(0.9, 0.05, 0.05) if said in premise else EntailmentScores(0.1, 0.2, 0.7)
            for _, premise, said in items
        ]


def test_parts_of_texts_and_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story("parts_more.txt")
    story.head("sentences, by an entailment model")
    texts = Records(cards.record_file(Path("texts.jsonl"), cards.sentences(40), schema=False))
    parts = texts.parts("sentences").score(entailment=Toy())
    story.show("spec", texts.file.header.estimators["parts_sentences"])
    story.say(*(spelled(part) for part in texts.file.records[0].parts["parts_sentences"]))
    rows = [
        {
            "id": record.id,
            "parts": {str(k): "true" in part.text for k, part in enumerate(record.parts["parts_sentences"], start=1)},
        }
        for record in texts.file.records
    ]
    labels = write("labels.jsonl", rows)
    parts.label(labels)
    story.show("labels", texts.file.header.part_correctness)
    again = Records(cards.record_file(Path("texts.jsonl"), cards.sentences(40), schema=False))
    again.parts("sentences").score(entailment=Toy(), cap=2).label(rows)
    story.show("labels in memory", again.file.header.part_correctness)
    artifact = parts.fit(alpha=0.4)
    assert artifact.parts is not None
    story.say(promise_line(artifact.parts), *caveats(artifact.parts), *(spelled(fact) for fact in facts(artifact)))
    data = packed_answers(texts.file, "parts_sentences")
    limits = thresholds_of(artifact.parts, data.parts)
    story.say(*(spelled(row) for row in path_rows(data.parts, limits, data.columns)))
    whole = texts.parts("sentences")
    story.refused("parts where whole answers are asked for", lambda: texts.fit(alpha=0.1))
    story.refused("a reference for sentences", lambda: label_parts(texts.file, "parts_sentences"))
    story.refused("two kinds", lambda: key_of_parts(two_kinds(texts.file)))
    story.show("repr", repr(whole))
    story.head("counts of parts")
    for counts in ([1, 2, 3, 9], list(range(1, 401))):
        story.show(f"{len(counts)} answers", cap_of_counts(counts))
    story.refused("no answers", lambda: cap_of_counts([]))
    free = Records(cards.record_file(Path("free.jsonl"), cards.invoices(12), schema=False))
    free.parts("json").score()
    story.show("cap without a schema", free.file.header.estimators["parts_json"].params["cap"])
    story.head("from file to file")
    records = invoices(45)
    spec = spec_of_key(measured(3, prefix="other").file.header, "parts_json")
    seen: list[tuple[int, int]] = []
    header, key = measure_file(
        records.file.path,
        Path("scored.jsonl"),
        parts_measure(spec),
        progress=lambda done, total, note="": seen.append((done, total)),
    )
    story.show("measured", [key, header.estimators[key].params, seen])
    story.head("columns")
    labelled_file = measured(45)
    labelled_file.write("columns.jsonl")
    monkeypatch.setattr(column_store, "LARGE", 0)
    columns = open_records("columns.jsonl").records
    assert isinstance(columns, ColumnRecords)
    for name in ("parts_json", "parts_other"):
        ours, theirs = columns.parts(name), labelled_file.file.records.parts(name)
        for field in ("size", "labels", "reference", "uncertainty", "absent", "right"):
            assert spelled(getattr(ours, field)) == spelled(getattr(theirs, field)), field
        story.show(name, [ours.size[:3], ours.reference[:3], ours.right[:9], ours.paths, ours.path[:9]])
    story.show("scores", [columns.scores("parts_json")[:3], columns.scored("parts_json")[:3], columns.score_keys()])
    story.show("some", columns.take(np.array([2, 5])).parts("parts_json").uncertainty)
    story.head("gates that hold everything back, and tests that refute")
    strict = labelled_file.parts("json").fit(alpha=0.01)
    assert strict.parts is not None
    write_parts_report("strict.html", strict, labelled_file.file)
    story.say(*page_text(Path("strict.html").read_text(encoding="utf-8")).splitlines()[2:5])
    loose = measured(120).parts("json").fit(alpha=0.15)
    wrong = measured(80, 3, "wrong").file
    wrong = RecordFile(
        wrong.path,
        wrong.header,
        [
            r.model_copy(
                update={
                    "part_labels": {
                        k: v.model_copy(update={"right": (False,) * len(v.right)}) for k, v in r.part_labels.items()
                    }
                }
            )
            for r in wrong.records
        ],
    )
    fitted = measured(120)
    write_parts_report("loose.html", loose, fitted.file, test=wrong)
    story.say(*page_text(Path("loose.html").read_text(encoding="utf-8")).splitlines()[2:6])
    audited = audit_parts(loose, wrong)
    story.show("audit", [audited.verdict, audited.sentence])
    story.head("rules that find nothing")
    few = AnswerParts.of([[0.1]] * 5, [[0]] * 5, cap=1)
    story.show("too few", clean_answers(few, alpha=0.05, delta=0.1))
    story.show("too few on average", clean_answers(few, alpha=0.05, delta=None))
    banded = PartsRule("clean_answers", bands=(2,))
    artifact = fit_parts_artifact(fitted.file, alpha=0.01, rule=banded)
    story.show("bands", [artifact.outcome.reason, artifact.outcome.detail])  # type: ignore[union-attr]
    story.say(
        *(
            spelled(fact)
            for fact in facts(fit_parts_artifact(fitted.file, alpha=0.3, rule=PartsRule("both", bands=(2,))))
        )
    )
    for text in ("both:clean_alpha=0.01", "both"):
        found = fit_parts_artifact(fitted.file, alpha=0.01, rule=text).outcome
        story.show(text, getattr(found, "detail", ""))
    none = RecordFile(
        fitted.file.path, fitted.file.header, [r.model_copy(update={"part_labels": {}}) for r in fitted.file.records]
    )
    story.refused("no labels", lambda: packed_answers(none, "parts_json"))
    rows_ = simulate_parts(
        packed_answers(fitted.file, "parts_json").parts,
        rules=[PartsRule("clean_shown", "part")],
        alphas=[0.01],
        n=20,
        calibrations=3,
    )
    story.show("nothing found", rows_)
    story.compare()


def two_kinds(file: RecordFile) -> RecordFile:
    specs = {
        **file.header.estimators,
        "parts_json": file.header.estimators["parts_sentences"].model_copy(update={"name": "parts_json"}),
    }
    return RecordFile(file.path, file.header.model_copy(update={"estimators": specs}), file.records)
