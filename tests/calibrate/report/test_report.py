"""The report: says what it should, escapes what it must, and needs nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from calibrate.data.records import Record, RecordFile
from calibrate.data.split import split
from calibrate.evaluation.label_checks import Suspicious
from calibrate.pipeline import fit_artifact
from calibrate.report import Report, assessment, compare_rules, write_report
from calibrate.report.comparison import sweep
from calibrate.report.content import contradictions
from guardrail.describe import guarantee, summary, why_infeasible
from guardrail.errors import UsageError
from guardrail.outcome import Infeasible
from guardrail.types import Sample, SampleSet, ToolCall, canonical_calls

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


@pytest.mark.usefixtures("whole_figures")
def test_page_says_everything_and_loads_nothing(labelled: RecordFile, tmp_path: Path) -> None:
    calibration, test = split(labelled.records, test_fraction=0.3)
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc", part=calibration)
    written = write_report(
        tmp_path / "deep" / "report.html",
        artifact,
        labelled.records,
        estimator=KEY,
        test=test,
        splits=5,
        commands=["calibrate fit records.jsonl"],
    )
    names = ("risk-coverage", "scores", "alphas")
    assert [path.name for path in written] == ["report.html", *(f"report-{name}.png" for name in names)]
    for png in written[1:]:
        assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    html = written[0].read_text(encoding="utf-8")
    page = Page(html)
    for words in (
        "May answer, within limits",
        "of 72 questions",
        "target 15 %",
        summary(artifact)[2].capitalize(),
        "Clopper-Pearson",
        "What is promised, and what is not",
        guarantee(artifact.outcome),
        "acrc (in use)",
        "clopper_pearson",
        "By category",
        "With another rule, or none",
        "What another target would give",
        "95 % interval",
        "Wrong, and would be answered",
        "Labels worth a second look",
        "Right, but held back",
        "What to do next",
        artifact.digest,
        "calibrate fit records.jsonl",
    ):
        assert words in page.text, words
    assert html.count('<svg role="img"') == 6  # each figure, and its narrow form
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "img", "object"}
    assert not re.findall(r'(?:src|href)="(?!#)', html.replace('xlink:href="#', ""))
    assert not re.findall(r"url\((?!#)|@import", html)
    assert "prefers-color-scheme: dark" in html
    assert "#0101" not in html  # no stand-in colour is left


def test_foreign_text_is_escaped(labelled: RecordFile, tmp_path: Path) -> None:
    bad = poisoned(labelled)
    artifact = fit_artifact(bad, score=KEY, alpha=0.15, rule="acrc")
    (path, *_) = write_report(
        tmp_path / "r.html", artifact, bad.records, estimator=KEY, commands=[f"calibrate fit {MARKUP}"]
    )
    html = path.read_text(encoding="utf-8")
    assert "alert" in html
    assert "<script" not in html
    assert "<img" not in html
    assert "{{ 7 * 7 }}" in html
    assert "&lt;script&gt;" in html


def test_a_percent_sign_in_a_command_or_a_question_keeps_its_space(labelled: RecordFile, tmp_path: Path) -> None:
    """Whoever copies the command would ask another prompt, because a no-break space looks like a space."""
    asked = "Is 5 % of 40 two?"
    records = [record.model_copy(update={"question": asked}) for record in labelled.records]
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc")
    command = f"calibrate collect --prompt {asked}"
    (path, *_) = write_report(tmp_path / "r.html", artifact, records, estimator=KEY, commands=[command])
    page = path.read_text(encoding="utf-8")
    assert f"<pre>{command}</pre>" in page
    assert f'<div class="q">{asked}</div>' in page
    assert "95\u00a0% interval" in page  # our own sentences do not break there


def test_the_sweep_takes_the_splits_of_the_comparison(labelled: RecordFile) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.2, rule="lec")
    compared = compare_rules(artifact, labelled.records, KEY, splits=4)
    swept = sweep(artifact, labelled.records, KEY, splits=4)
    assert list(dict.fromkeys(row.rule for row in swept.rows)) == ["lec", "certified"]
    assert sorted({row.alpha for row in swept.rows}) == [0.1, 0.15, 0.2, 0.25, 0.3, 0.4]
    same = {row.rule: row for row in compared.rows}
    for row in swept.rows:
        if row.alpha == artifact.alpha:
            assert row == same[row.rule]


def test_a_score_without_signal_warns(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, score="perplexity", alpha=0.15, rule="acrc")
    (path, *_) = write_report(tmp_path / "r.html", artifact, labelled.records, estimator="perplexity")
    page = Page(path.read_text(encoding="utf-8"))
    assert "Nothing shows that perplexity tells right from wrong" in page.text
    assert ("p", {"class": "warn"}) in page.tags
    assert "Labels worth a second look" not in page.text  # a constant score contradicts no label


@pytest.mark.usefixtures("whole_figures")
def test_infeasible_page_explains(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.01, rule="acrc")
    (path, *_) = write_report(tmp_path / "r.html", artifact, labelled.records, estimator=KEY)
    text = Page(path.read_text(encoding="utf-8")).text
    assert "Must not answer by itself" in text
    assert "Wrong, and the model was most certain" in text
    assert isinstance(artifact.outcome, Infeasible)
    step = why_infeasible(artifact.outcome).rsplit(". ", 1)[-1]
    assert assessment.next_steps(artifact)[0] == step  # one next step, the same wherever it is shown
    assert step in text
    assert "threshold in use" not in text
    assert "With another rule" not in text
    assert "Promised" not in text
    assert "Nothing is promised" in text


def test_records_of_another_fit_are_refused(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc")
    with pytest.raises(UsageError, match="40 of the 240 scores in the artifact are not among these records"):
        write_report(tmp_path / "r.html", artifact, labelled.records[40:], estimator=KEY)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("whole_figures")
def test_the_same_artifact_gives_the_same_page(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, score="semantic_entropy", alpha=0.15, rule="acrc")
    first, *_ = write_report(tmp_path / "a.html", artifact, labelled.records, estimator="semantic_entropy")
    second, *_ = write_report(tmp_path / "b.html", artifact, labelled.records, estimator="semantic_entropy")
    assert first.read_text(encoding="utf-8") == second.read_text(encoding="utf-8")


def test_calibration_and_test_are_never_pooled(labelled: RecordFile, tmp_path: Path) -> None:
    calibration, test = split(labelled.records, test_fraction=0.3)
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc", part=calibration)
    (path, *_) = write_report(tmp_path / "r.html", artifact, labelled.records, estimator=KEY)
    unnamed = path.read_text(encoding="utf-8")
    (path, *_) = write_report(tmp_path / "r.html", artifact, labelled.records, estimator=KEY, test=test)
    html = path.read_text(encoding="utf-8")
    assert "were not fitted on" not in html
    sentence = "72 labelled questions of the record file were not fitted on. They are the test part here."
    assert unnamed.replace(f'<p class="warn">{sentence}</p>', "") == html  # the same two parts, found by the artifact
    for part in (calibration, test):
        accepted = [r for r in part if (r.scores[KEY].value or 0.0) <= (artifact.threshold or 0.0)]
        wrong, errors = sum(not r.correct for r in part), sum(not r.correct for r in accepted)
        for note in (
            f"{len(accepted)} of {len(part)} questions",
            f"{errors} of {len(accepted)} answers;",
            f"{wrong} of {len(part)} ",
        ):
            assert note in html, note
        for group in ("trees", "shrubs", "herbs"):
            rows = re.findall(f"<tr><td>{group}</td>.*</tr>", html)
            assert len(rows) == 2, "a table for each part"
            assert any(f"<td>{sum(r.group == group for r in part)}</td>" in row for row in rows)
    text = Page(html).text
    for heading in ("Wrong, and would be answered: the most certain first", "Right, but held back"):
        assert text.count(heading) == 2
    tested = {record.id for record in test}
    where = {name: place for place, name in re.findall(r"<tr><td>(calibration|test)</td>.*?<td>(p\d+)</td>", html)}
    assert where
    assert all((place == "test") == (name in tested) for name, place in where.items())


def test_parts_are_told_apart_by_what_the_artifact_knows(labelled: RecordFile) -> None:
    calibration, test = map(list, split(labelled.records, test_fraction=0.3))
    artifact = fit_artifact(labelled, score=KEY, alpha=0.15, rule="acrc", part=calibration)
    both_parts = Report.of(artifact, labelled.records, KEY)
    assert (list(both_parts.fitted), list(both_parts.test)) == (calibration, test)
    note = Report.of(artifact, labelled.records, KEY, test[:40]).note or ""
    assert note == "32 labelled questions of the record file were not fitted on. This report leaves them out."
    with pytest.raises(UsageError, match="168 of 240 test records are questions that the artifact was fitted on"):
        write_report(Path("never.html"), artifact, calibration, estimator=KEY, test=labelled.records)
    same_ids = [record.model_copy(update={"question": f"another {record.question}"}) for record in calibration]
    assert list(Report.of(artifact, calibration, KEY, same_ids).fitted) == calibration  # ids may be row numbers
    clusters = fit_artifact(
        by_pairs(labelled),
        score=KEY,
        alpha=0.15,
        rule="acrc",
        groups="cluster",
        part=by_pairs(labelled).records[:100],
    )
    parts = Report.of(clusters, by_pairs(labelled).records, KEY)
    assert (len(parts.fitted), len(parts.test)) == (100, 140)  # whole clusters, though one question of each is used


def by_pairs(file: RecordFile) -> RecordFile:
    """Two records each are a cluster."""
    records = [record.model_copy(update={"group": f"c{i // 2}"}) for i, record in enumerate(file.records)]
    return RecordFile(file.path, file.header, tuple(records))


def test_a_refuted_page_is_red_and_sends_nobody_to_the_model(labelled: RecordFile, tmp_path: Path) -> None:
    calibration, test = split(labelled.records, test_fraction=0.3)
    artifact = fit_artifact(labelled, score=KEY, alpha=0.3, part=calibration, rule="certified")
    wrong = [record.model_copy(update={"correct": False}) for record in test]
    (path, *_) = write_report(
        tmp_path / "r.html", artifact, calibration, estimator=KEY, test=wrong, alone="calibrate fit new"
    )
    html = path.read_text(encoding="utf-8")
    text = Page(html).text
    assert '<section class="verdict red">' in html
    for words in ("Refuted by the test questions", "Likely cause", "calibrate fit new", "Refuted."):
        assert words in text, words
    for words in ("May answer", "may answer by itself", "Promised.", "Guardrail("):
        assert words not in text, words


def test_the_rule_in_use_is_marked_among_all(labelled: RecordFile, tmp_path: Path) -> None:
    artifact = fit_artifact(labelled, score=KEY, alpha=0.3, rule="lec")
    (path, *_) = write_report(tmp_path / "r.html", artifact, labelled.records, estimator=KEY, splits=2)
    page = path.read_text(encoding="utf-8")
    table = page[page.index("With another rule, or none") : page.index("What another target would give")]
    names = re.findall(r"<tr[^>]*><td>([^<]+)</td>", table)
    assert names[0] == "none"
    assert {"lec (in use)", "certified", "clopper_pearson"} < set(names)
    for words in ("test part (reads high)", "all questions (reads low)", "mean over fewer than 10 splits"):
        assert words in table, words


def test_two_long_calls_that_differ_at_their_end_are_shown_where_they_differ() -> None:
    """A label cannot be checked against two strings that look the same."""
    note, calls = "x" * 200, []
    for amount in (40, 4000):
        calls.append(ToolCall(name="refund", arguments={"a_note": note, "amount": amount}))
    record = Record(
        id="1",
        question="?",
        references=(canonical_calls([calls[1]]),),
        drawn=SampleSet(question="?", primary=Sample(text="", tool_calls=(calls[0],), finish_reason="tool_calls")),
    )
    shown = contradictions({"calibration": Suspicious((record,), (), 1, 0)}, "any").rows[0]
    assert [("40}" in text, "4000}" in text) for text in shown[3:5]] == [(True, False), (False, True)]
