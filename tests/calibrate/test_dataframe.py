"""Calibration from a data frame: what is read, that each step is the function of its name, and what notebooks show."""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import pytest

import calibrate
from calibrate.correctness import Exact
from calibrate.data.formats.field_map import ImportSettings
from calibrate.data.records import read_records
from calibrate.dataframe import Records, from_frame
from calibrate.pipeline import fit_artifact
from calibrate.scoring.names import parse_estimator
from guardrail import CalibrationArtifact, Guardrail, scorer
from guardrail.describe import answer_if, describe, promises, ranks_backwards, unguardable
from guardrail.errors import ArtifactMismatchError, MissingDependencyError, RecordError, UsageError
from guardrail.testing import ScriptedChat
from guardrail.types import Bindings
from guardrail.uncertainty.registry import from_spec

mpl.use("agg")  # no window may open
KEY, USUAL = "discrete_semantic_entropy", "graded_disagreement"


def rows(n: int = 60) -> list[dict[str, Any]]:
    """Every fourth answer is wrong; wrong ones waver, and every tenth right one does, too."""
    entries = []
    for i in range(n):
        wrong = i % 4 == 0
        spread = [f"{i}-{k}" for k in range(3)] if wrong or i % 10 == 1 else [f"{i}"] * 3
        answer = f"{i}-no" if wrong else f"{i}"
        entries.append({"q": f"question {i}", "gold": [f"{i}"], "out": [answer, *spread], "said": answer})
    return entries


def columns(frame: Any, **more: Any) -> Records:
    return from_frame(frame, question="q", references="gold", samples="out", answer="said", **more)


def of_pandas(given: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(given)


def of_polars(given: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(given)


def of_arrow(given: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(given)


@pytest.mark.parametrize("made", [of_pandas, of_polars, of_arrow])
def test_every_kind_of_frame_gives_the_records_of_a_list(made: Callable[[list[dict[str, Any]]], Any]) -> None:
    entries = [
        *({**row, "lp": [[-0.5, -0.25]] * 4, "right": True, "who": "a user"} for row in rows(3)),
        {**rows(4)[3], "lp": [[-0.5]] * 4, "right": None, "who": None},
    ]
    expected = columns(entries, logprobs="lp", correct="right", group="who").file
    imported = columns(made(entries), logprobs="lp", correct="right", group="who").file
    assert imported.records == expected.records
    assert imported.header.plan == expected.header.plan
    first, last = imported.records[0], imported.records[-1]
    assert first.drawn is not None
    assert (first.drawn.samples[0].logprobs, first.answer, first.references) == ((-0.5, -0.25), "0-no", ("0",))
    assert (first.correct, first.group, last.correct, last.group) == (True, "a user", None, None)
    assert imported.header.plan.logprobs


def test_arrays_in_cells_and_what_pandas_marks_as_missing() -> None:
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    frame = pandas.DataFrame(
        {
            **{"question": ["a", "b"], "references": [["x", numpy.nan], numpy.array(["y"])]},
            **{"samples": [numpy.array(["x", "z"]), numpy.array(["y", "y"])], "correct": [numpy.nan, 1.0]},
            "group": pandas.array(["u", pandas.NA], dtype="string"),
        }
    )
    records = from_frame(frame).file.records
    assert [(record.references, record.correct, record.group) for record in records] == [
        (("x",), None, "u"),
        (("y",), True, None),
    ]
    frame["samples"] = [["x", numpy.nan], ["y", "y"]]
    with_null = from_frame(frame)
    drawn = with_null.file.records[0].drawn
    assert drawn is not None
    assert [sample.text for sample in drawn.samples] == ["x", ""]  # and not an answer "nan"
    assert "1 samples are null; they are empty answers, as at run time." in with_null.notes


def test_lists_that_went_through_a_csv_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    log = [{**row, "m": "gpt"} for row in rows(2)]
    pandas.DataFrame(log).to_csv(tmp_path / "log.csv", index=False)
    imported = columns(pandas.read_csv(tmp_path / "log.csv"), model="m").file
    assert imported.records == columns(log, model="m").file.records
    assert imported.header.model.model == "gpt"
    assert [len(record.drawn.samples) for record in imported.records if record.drawn is not None] == [4, 4]
    assert imported.records[0].references == ("0",)


def test_each_step_is_the_function_of_its_name(tmp_path: Path) -> None:
    records = columns(rows())
    assert records.score(USUAL, "num_sets").label("exact") is records
    by_hand = calibrate.score_records(columns(rows()).file, [parse_estimator(USUAL)])
    again = calibrate.label_records(by_hand.records, Exact())
    assert [r.correct for r in records.file.records] == [r.correct for r in again]
    assert [r.scores[USUAL] for r in records.file.records] == [r.scores[USUAL] for r in again]
    artifact = records.fit(alpha=0.1, rule="acrc")
    assert artifact.outcome == fit_artifact(records.file, score=USUAL, alpha=0.1, rule="acrc").outcome
    assert artifact.estimator.name == USUAL  # no log-probabilities were logged
    assert artifact.outcome.n == 60
    evaluation = records.evaluate(splits=3)
    assert {row.alpha for row in evaluation.rows} == {0.1}
    assert evaluation.n_calibration == 30
    compared = records.compare(alpha=0.1, splits=3)
    assert {cell.estimator for cell in compared.cells} == {USUAL, "num_sets"}
    areas = [cell.evaluation.auroc or 0 for cell in compared.ranked]
    assert areas == sorted(areas, reverse=True)
    fitted, test = records.split(0.5)
    fitted.fit(alpha=0.1, rule="acrc", few=True)
    written = fitted.report(tmp_path / "report.html", test=test, splits=0)
    page = written[0].read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "of 30 questions" in page
    records.write(tmp_path / "records.jsonl")
    assert Records.read(tmp_path / "records.jsonl").file.records == records.file.records
    assert read_records(tmp_path / "records.jsonl").header == records.file.header


def test_an_estimator_is_chosen_on_records_that_the_fit_does_not_use(tmp_path: Path) -> None:
    records = columns(rows(120)).score(KEY, "num_sets").label("exact")
    artifact = records.fit(alpha=0.1, rule="acrc", score="auto")
    assert artifact.data.choice is not None
    assert artifact.outcome.n == 96
    assert records.evaluate(splits=2).n == 96  # as in the report: of the records that are fitted
    assert records.report(tmp_path / "report.html", splits=0)[0].is_file()
    named = records.fit(alpha=0.1, rule="acrc", score="num_sets")
    assert records.evaluate(splits=2) == records.evaluate(splits=2, score="num_sets")
    assert (named.data.choice, named.outcome.n) == (None, 120)


def test_new_scores_or_labels_void_the_fit() -> None:
    records = columns(rows()).score(KEY).label("exact")
    records.fit(alpha=0.1, rule="acrc")
    assert records.label("token_f1", threshold=0.9).artifact is None
    records.fit(alpha=0.1, rule="acrc")
    assert records.score("num_sets").artifact is None
    with pytest.raises(UsageError, match=r"nothing is fitted.*fit\(alpha=\.\.\.\) first"):
        records.report("report.html")
    with pytest.raises(UsageError, match=r"evaluate\(alphas=\[0\.1\]\)"):
        records.evaluate()


def test_a_guard_with_the_logged_model_loads_the_artifact() -> None:
    log = rows()
    model = ScriptedChat(script={row["q"]: [row["said"], *row["out"]] for row in log})
    artifact = columns(log, model=model).score(KEY).label("exact").fit(alpha=0.1, rule="acrc")
    guard = Guardrail(model=model, artifact=artifact)
    assert guard.invoke("question 3").content == "3"
    assert not guard.assess("question 4").accepted
    other = columns([{**row, "m": "gpt"} for row in log], model="m").file
    assert (other.header.model.provider, other.header.model.model) == ("imported", "gpt")


def test_a_named_score_compares_answers_in_a_format_as_commands_do() -> None:
    """Words of an answer are mostly names of its fields: opposite answers would count as one meaning."""
    file = columns(rows(3)).file
    plan = file.header.plan.model_copy(update={"bindings": Bindings(response_format={"type": "json_object"})})
    file = dataclasses.replace(file, header=file.header.model_copy(update={"plan": plan}))
    assert set(Records(file).score(KEY).file.header.estimators) == {f"{KEY}:json"}


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        (3, {}, "got int; give a pandas or Polars data frame"),
        ([["a"]], {}, "one dict a question, got list"),
        (rows(2), {"samples": "outt"}, "outt"),
        (
            [{**row, "m": str(i)} for i, row in enumerate(rows(2))],
            {"model": "m"},
            r"several models: 0 \(1 rows\), 1 \(1 rows\)",
        ),
        (rows(2), {"model": "gpt-4o"}, "no row has a column 'gpt-4o'.*model=ChatOpenAI"),
        (
            [{**row, "lp": [-0.1] * 3} for row in rows(2)],
            {"logprobs": "lp"},
            "frame:1: field 'lp'.*each of the 4 samples",
        ),
        ([{**row, "lp": [[0.5]] * 4} for row in rows(2)], {"logprobs": "lp"}, "frame:1: field 'out'.*at most 0"),
        ([*rows(2), rows(1)[0]], {}, "frame:3: field 'q'.*this question is already at frame:1"),
    ],
)
def test_what_is_refused_names_the_row_and_the_way_out(given: Any, more: dict[str, Any], message: str) -> None:
    mapping = {"question": "q", "references": "gold", "samples": "out", **more}
    with pytest.raises((UsageError, RecordError), match=message):
        from_frame(given, **mapping)


def test_a_lazy_frame_is_refused_with_the_way_out() -> None:
    lazy = pytest.importorskip("polars").DataFrame(rows(2)).lazy()
    with pytest.raises(UsageError, match=r"got LazyFrame.*call collect\(\) first"):
        from_frame(lazy)


def test_malformed_rows_are_counted_where_that_is_asked_for() -> None:
    imported = columns([*rows(2), {"q": "no samples"}], settings=ImportSettings(skip_bad=True))
    assert len(imported) == 2
    assert "1 malformed rows are left out: frame:3" in imported.notes[-1]


def test_what_notebooks_show() -> None:
    log = [*rows(), {"q": "<b>bold</b>", "gold": ["x"], "out": ["x", "x"], "said": "x"}]
    log.insert(0, log.pop())
    records = columns(log).score(KEY).label("exact")
    artifact = records.fit(alpha=0.1, rule="acrc")
    planned = calibrate.plan(0.2, accuracy=0.7, auroc=0.8, sizes=[50, 100], repetitions=2)
    evaluation, compared = records.evaluate(splits=2), records.compare(alpha=0.1, splits=2)
    shown: list[Any] = [records, records.file, evaluation, compared, planned]
    for output in shown:
        html = output._repr_html_()
        assert html.startswith("<div"), output
        assert html.count("<div") == html.count("</div>"), output
        assert "<script" not in html
        assert len(repr(output)) < 400, output
    assert "&lt;b&gt;bold&lt;/b&gt;" in records._repr_html_()
    assert "<b>" not in records._repr_html_()
    assert f"{100 * artifact.acceptance:.3g} %" in describe(artifact)
    assert "threshold=0.0" in repr(artifact)
    assert "*</td>" in evaluation._repr_html_()  # a mean over two splits is marked
    assert "fewer than 10 splits" in evaluation._repr_html_()


def test_plots_show_the_numbers_on_the_axis_that_is_given() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    records = columns(rows()).score(KEY).label("exact")
    axes = list(figures.Figure().subplots(2, 4).flat)
    steady = sum(i % 4 != 0 and i % 10 != 1 for i in range(60))  # of 45 right ones those that do not waver: score 0
    records.plot(ax=axes[2])
    tops = [max(bar.get_y() + bar.get_height() for bar in part) for part in axes[2].containers]
    assert len(tops) == 2
    assert tops[0] == steady  # the bar of score 0 holds right answers only
    _, names = axes[2].get_legend_handles_labels()
    assert names == ["right", "wrong"]
    others: list[Any] = [
        records.evaluate(alphas=[0.2], splits=2),
        records.compare(alpha=0.2, splits=2),
        calibrate.plan(0.2, accuracy=0.7, auroc=0.8, sizes=[50, 100], repetitions=2),
    ]
    for ax, plotted in zip(axes[3:], others, strict=False):
        assert plotted.plot(ax) is ax
        assert ax.lines
    with pytest.raises(UsageError, match="has no 'perplexity' scores"):
        records.file.plot("perplexity")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("narwhals", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"narwhals is not installed.*acrc-guardrail\[calibrate\]"):
        from_frame(object())
    with pytest.raises(MissingDependencyError, match=r"matplotlib\.pyplot is not.*acrc-guardrail\[calibrate\]"):
        calibrate.plan(0.2, accuracy=0.7, auroc=0.8, sizes=[50], repetitions=2).plot()


def test_the_threshold_is_said_in_the_unit_of_the_column() -> None:
    sure = [0.5 + i % 10 / 20 for i in range(200)]
    frame = [{"q": f"{i}", "right": i % 10 != 0, "sure": c, "doubt": 1 - c} for i, c in enumerate(sure)]

    def fitted(**score: Any) -> CalibrationArtifact:
        return from_frame(frame, question="q", correct="right", **score).fit(alpha=0.1, rule="acrc")

    of_confidence, of_doubt, of_certainty = fitted(confidence="sure"), fitted(score="doubt"), fitted(certainty="sure")
    lowest = min(c for c in sure if 1 - c <= (of_confidence.threshold or 0))
    assert answer_if(of_confidence) == answer_if(of_certainty) == f"answer if sure >= {lowest:g}"
    assert answer_if(of_doubt) == f"answer if doubt <= {of_doubt.threshold!r}"
    assert {f"Threshold in use: {answer_if(of_doubt)}.", *promises(of_doubt)} <= set(describe(of_doubt).splitlines())
    own = columns(rows()).score(KEY).label("exact").fit(alpha=0.1, rule="acrc")
    assert answer_if(own) == f"answer if {KEY} <= {own.threshold:.6g} nats"
    nothing = columns(rows()).score(KEY).label("exact").fit(alpha=0.001, rule="acrc")
    assert answer_if(nothing).startswith("answer nothing")


def test_a_comparison_and_an_evaluation_print_as_tables() -> None:
    records = columns(rows()).score(KEY, "num_sets").label("exact")
    compared = records.compare(alpha=0.1, splits=3)
    head, *lines = str(compared).splitlines()
    assert head.split() == ["score", "rule", "AUROC", "alpha", "wrong", "given", "right"]
    assert [line.split()[0] for line in lines] == [cell.estimator for cell in compared.ranked for _ in range(2)]
    assert {len(line) for line in (head, *lines)} == {len(head)}
    assert len(head) <= 80
    evaluation = compared.cells[0].evaluation
    assert str(evaluation).splitlines()[0].split() == ["rule", "alpha", "wrong", "given", "right", "above", "none"]
    assert f"{100 * evaluation.rows[0].acceptance.value:.1f}" in str(evaluation).splitlines()[1]


def test_fit_stops_on_labels_that_look_broken() -> None:
    sentences = [{**row, "said": f"It is {row['gold'][0]}, as all know."} for row in rows()]
    records = columns(sentences).score(KEY).label("exact")
    with pytest.raises(UsageError, match=r"rule exact calls nearly no answer right.*label\(.contains.\)"):
        records.fit(alpha=0.1, rule="acrc")
    assert records.artifact is None
    assert records.fit(alpha=0.1, rule="acrc", trust_labels=True).threshold is None
    short = [{**row, "said": f"It is {row['gold'][0]}."} for row in rows()]
    assert columns(short).score(KEY).label("numeric").fit(alpha=0.1, rule="acrc").outcome.n_accepted > 0


def test_records_that_cannot_be_fitted_yet_name_the_python_call() -> None:
    graded = [{"q": f"q{i}", "said": "x", "ok": i % 3 > 0, "reference": "x", "confidence": i / 60} for i in range(60)]
    ungraded = [{name: value for name, value in row.items() if name != "ok"} for row in graded]
    unscored = from_frame(ungraded, question="q", answer="said")
    with pytest.raises(UsageError, match=r"no scores yet. Call score\(\) first") as caught:
        unscored.fit(alpha=0.1, rule="acrc")
    message = str(caught.value)
    assert "calibrate score" not in message
    assert 'confidence="confidence"' in message, "the column that was not read"
    assert 'references="reference"' in message
    unlabelled = from_frame(graded, question="q", answer="said", score="confidence")
    with pytest.raises(UsageError, match=r"no labels yet. Call label\(\) first.*correct=\"COLUMN\"") as caught:
        unlabelled.fit(alpha=0.1, rule="acrc")
    assert "calibrate label" not in str(caught.value)


def test_a_confidence_taken_for_an_uncertainty_is_named() -> None:
    graded = [{"id": f"r{i}", "confidence": i / 200, "correct": (i * 7) % 200 < i} for i in range(200)]
    upside_down = from_frame(graded, score="confidence").fit(alpha=0.3, rule="acrc")
    assert ranks_backwards(upside_down.outcome)
    shown = describe(upside_down)
    assert "Check the score: wrong answers have the lower scores (AUROC 0." in shown
    assert 'from_frame(..., confidence="COLUMN")' in shown
    upright = from_frame(graded, confidence="confidence").fit(alpha=0.3, rule="acrc")
    assert not ranks_backwards(upright.outcome)
    assert "Check the score" not in describe(upright)


def test_labels_in_other_words_are_read_as_the_error_says() -> None:
    graded = [{"question": f"{i}", "sicher": 3.0 * i, "correct": "ja" if i % 3 else "nein"} for i in range(60)]
    with pytest.raises(UsageError) as caught:
        from_frame(graded, certainty="sicher")
    (first, *_) = re.findall(r"settings=(calibrate\.ImportSettings\(right=\"ja\"\))", str(caught.value))
    settings = eval(first, {"calibrate": calibrate})
    records = from_frame(graded, certainty="sicher", settings=settings).file.records
    assert [record.correct for record in records] == [i % 3 > 0 for i in range(60)]
    assert records[7].scores["imported:sicher"].value == -21.0  # higher is more certain, so the negative is stored
    with pytest.raises(RecordError, match='certainty="sicher"'):
        from_frame(graded, confidence="sicher", settings=settings)


def test_a_file_read_with_the_wrong_separator_is_named() -> None:
    one = [{"question;answer;correct": "Who?;X;1"}]
    with pytest.raises(UsageError, match=r"separated by ';'.*pandas.read_csv\(path, sep=';'\)"):
        from_frame(one)


@pytest.mark.parametrize("unit", ["probability", "nats"])
def test_the_cut_off_of_a_scorer_is_in_its_own_direction(unit: Literal["probability", "nats"]) -> None:
    graded = [{"question": f"{i}", "answer": f"{i}", "correct": (i * 7) % 200 < i} for i in range(200)]

    @scorer(version=1, higher="certain", unit=unit)
    def sure(question: str, answer: str) -> float:
        return int(answer) / 200

    artifact = from_frame(graded).score(sure).fit(alpha=0.3, rule="acrc")
    assert artifact.threshold is not None
    limit = 1 - artifact.threshold if unit == "probability" else -artifact.threshold
    shown = answer_if(artifact).removeprefix("answer if score:sure@1 >= ")
    assert float(shown.removesuffix(" nats")) == pytest.approx(limit, abs=1e-5)
    assert from_frame(graded).score(sure).file.records[150].scores["score:sure@1"].value == pytest.approx(
        0.25 if unit == "probability" else -0.75
    )


def test_a_score_of_a_column_names_the_way_to_a_guard() -> None:
    graded = [{"question": f"{i}", "confidence": i / 200, "correct": (i * 7) % 200 < i} for i in range(200)]
    artifact = from_frame(graded, confidence="confidence").fit(alpha=0.3, rule="acrc")
    with pytest.raises(ArtifactMismatchError, match=r"@scorer and fit on it \(docs/scores.md\)"):
        from_spec(artifact.estimator)
    assert "Write the score as a @scorer (docs/scores.md)" in str(unguardable(artifact))


def test_python_says_what_the_command_line_warns_of(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> str:
        messages = "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
        caplog.clear()
        return messages

    records = columns([row | {"said": "elm"} if row["said"].endswith("no") else row for row in rows()])
    records.score(USUAL, KEY).label("exact")
    assert logged() == ""
    records.fit(alpha=0.5, rule="acrc")
    assert "calibrate: This gate stops nothing: its threshold accepts each of the 60" in logged()
    records.fit(alpha=0.02, rule="certified")
    shown = logged()
    assert "calibrate: answer nothing: no threshold was found" in shown
    assert "calibrate: Even without a single error 60 items are too few" in shown
    records.fit(alpha=0.2, rule="certified", score=KEY)
    shown = logged()
    assert "fits have used these labels" in shown
    assert "calibrate: 15 of 60 answers (25 %) agree with none of their samples, and discrete_semantic_entropy" in shown
    columns([row | {"said": "no idea of it"} for row in rows(20)]).score(USUAL).label("stated")
    assert "calibrate: 20 of 20 answers are undecided by rule stated and count as wrong until" in logged()
