"""The report: says what it should, escapes what it must, and needs nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from calibrate.pipeline import fit_artifact, split
from calibrate.records import Record, RecordFile
from calibrate.report import compare_rules, write_report
from guardrail.errors import UsageError
from guardrail.types import SampleSet

KEY = "discrete_semantic_entropy"
MARKUP = "<script>alert('x')</script><img src=http://evil/>"


class Page(HTMLParser):
    """Tags, ids and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def poisoned(file: RecordFile) -> RecordFile:
    """The same records with markup in every text a model or a user writes."""

    def poison(record: Record) -> Record:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        primary = record.drawn.primary.model_copy(update={"text": f"{record.drawn.primary.text} {MARKUP}"})
        samples = tuple(s.model_copy(update={"text": f"{s.text} {MARKUP}"}) for s in record.drawn.samples)
        drawn: SampleSet = record.drawn.model_copy(update={"primary": primary, "samples": samples})
        changes = {
            "question": f"{record.question} {MARKUP}",
            "references": (MARKUP,),
            "group": f"{record.group} {MARKUP}",
            "options": {"A": MARKUP, "B": "{{ 7 * 7 }}"},
            "drawn": drawn,
        }
        return record.model_copy(update=changes)

    header = file.header.model_copy(update={"questions_name": MARKUP})
    return RecordFile(file.path, header, tuple(map(poison, file.records)))


def test_page_says_everything_and_loads_nothing(labelled: RecordFile, tmp_path: Path) -> None:
    kept, test = split(labelled.records, test_fraction=0.3)
    artifact = fit_artifact(labelled, estimator=KEY, alpha=0.15, part=kept)
    evaluation = compare_rules(artifact, labelled.records, KEY, splits=5)
    written = write_report(
        tmp_path / "deep" / "report.html",
        artifact,
        labelled.records,
        estimator=KEY,
        test=test,
        evaluation=evaluation,
        commands=["calibrate fit records.jsonl"],
    )
    assert [path.name for path in written] == ["report.html", "report-risk-coverage.png", "report-scores.png"]
    for png in written[1:]:
        assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    html = written[0].read_text(encoding="utf-8")
    page = Page(html)
    for words in (
        "May answer, within limits",
        "On 72 questions kept out of the fit",
        "target 15 %",
        "threshold in use",
        "Clopper-Pearson",
        "What is promised, and what is not",
        artifact.outcome.guarantee,
        "acrc (in use)",
        "cp_simultaneous",
        "By category",
        "Wrong, and would be answered",
        "Right, but held back",
        "What to do next",
        artifact.digest,
        "calibrate fit records.jsonl",
    ):
        assert words in page.text, words
    assert html.count('<svg role="img"') == 2
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "img", "object"}
    assert not re.findall(r'(?:src|href)="(?!#)', html.replace('xlink:href="#', ""))
    assert not re.findall(r"url\((?!#)|@import", html)
    assert "prefers-color-scheme: dark" in html
    assert "#0101" not in html  # no stand-in colour is left


def test_foreign_text_is_escaped(labelled: RecordFile, tmp_path: Path) -> None:
    bad = poisoned(labelled)
    artifact = fit_artifact(bad, estimator=KEY, alpha=0.15)
    (path, *_) = write_report(
        tmp_path / "r.html", artifact, bad.records, estimator=KEY, commands=[f"calibrate fit {MARKUP}"]
    )
    html = path.read_text(encoding="utf-8")
    assert "alert" in html
    assert "<script" not in html
    assert "<img" not in html
    assert "{{ 7 * 7 }}" in html
    assert "&lt;script&gt;" in html


def test_infeasible_page_explains(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, estimator=KEY, alpha=0.01)
    (path, *_) = write_report(tmp_path / "r.html", artifact, labelled.records, estimator=KEY)
    text = Page(path.read_text(encoding="utf-8")).text
    assert "Must not answer by itself" in text
    assert "Wrong, and the model was most certain" in text
    assert "Accept more errors" in text
    assert "threshold in use" not in text
    assert "Other rules" not in text


def test_records_of_another_fit_are_refused(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, estimator=KEY, alpha=0.15)
    with pytest.raises(UsageError, match="40 of the 240 scores in the artifact are not among these records"):
        write_report(tmp_path / "r.html", artifact, labelled.records[40:], estimator=KEY)
    assert not list(tmp_path.iterdir())


def test_the_same_artifact_gives_the_same_page(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, estimator="semantic_entropy", alpha=0.15)
    first, *_ = write_report(tmp_path / "a.html", artifact, labelled.records, estimator="semantic_entropy")
    second, *_ = write_report(tmp_path / "b.html", artifact, labelled.records, estimator="semantic_entropy")
    assert first.read_text(encoding="utf-8") == second.read_text(encoding="utf-8")
