"""The command line, end to end on a fake model."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from calibrate.cli.frame.terminal import VisibleConsole, console, table
from calibrate.cli.frame.verdicts import print_more, print_verdict
from calibrate.correctness import make_rule
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.data.split import split
from calibrate.evaluation.grid import evaluate_grid
from calibrate.evaluation.paper import METHODS
from calibrate.evaluation.planning import plan
from calibrate.evaluation.results import EvaluationGrid
from calibrate.ledger import ledger_of
from calibrate.pipeline import fit_artifact, part_header
from calibrate.report.assessment import verdict_text
from calibrate.scoring.apart import training_of
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import stops_nothing, summary, warning
from tests.calibrate import fakes
from tests.calibrate.commands import run

MODEL = "python:tests.calibrate.fakes:model"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("TERMINAL_WIDTH", "240")
    monkeypatch.chdir(ROOT)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return fakes.write_questions(tmp_path / "q.jsonl")


def test_how_the_primary_answer_is_drawn_is_part_of_the_artifact(tmp_path: Path) -> None:
    questions = fakes.write_questions(tmp_path / "q.jsonl", size=100)
    records, artifact = tmp_path / "r.jsonl", tmp_path / "a.json"
    fixed = ("--temperature", "1", "--set", "top_p=1", "--primary", "sampled")
    run("collect", questions, "--model", MODEL, "--out", records, *fixed)
    assert read_records(records).header.plan.primary == "sampled"
    assert "primary" in run("collect", questions, "--model", MODEL, "--out", records, *fixed[:4], code=2)
    run("score", records)
    run("label", records, "--rule", "exact")
    run("fit", "--rule", "acrc", records, "--alpha", "0.15", "--out", artifact)
    plan = CalibrationArtifact.load(artifact).plan
    assert (plan.primary, plan.temperature, plan.top_p) == ("sampled", 1.0, 1.0)
    assert "1 sampled answer and 10 samples at temperature 1" in run("report", artifact)
    assert "cold" in run("collect", questions, "--model", MODEL, "--primary", "cold", code=2)


def test_step_by_step(questions: Path, tmp_path: Path) -> None:
    records, artifact, page = tmp_path / "r.jsonl", tmp_path / "a.json", tmp_path / "report.html"
    shown = run("collect", questions, "--model", MODEL, "--out", records)
    assert "240 of 240 questions are on file." in shown
    assert shown.endswith(f"Wrote {records} Next: calibrate score {records}")
    shown = run("score", records)
    assert "semantic_entropy" in shown
    assert shown.endswith(f"Next: calibrate label {records}")
    shown = run("label", records, "--rule", "exact")
    right = sum(bool(record.correct) for record in read_records(records).records)
    assert f"Rule exact: {right} of 240 answers are right" in shown
    shown = run("fit", "--rule", "acrc", records, "--alpha", "0.15", "--out", artifact, "--test-fraction", "0.3")
    loaded = CalibrationArtifact.load(artifact)
    assert loaded.data.n_questions == 168
    assert shown.startswith(" ".join(summary(loaded)))  # the threshold and the promise come first
    assert "on average over calibrations, not a certificate" in summary(loaded)[1]
    assert "On 72 questions kept out of the fit" in shown
    test = tmp_path / "a.test.jsonl"
    assert shown.endswith(f"calibrate report {records} --artifact {artifact} --test {test}")
    assert len(read_records(test).records) == 72
    # A name without a suffix gets one, because a browser would not show it as a page.
    shown = run(
        "report", records, "--artifact", artifact, "--test", test, "--out", page.with_suffix(""), "--splits", "3"
    )
    assert f"open {page} in a browser" in shown
    assert not page.with_suffix("").exists()
    html = page.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "kept out of the fit" in html
    assert all(f"{line[1:]}</p>" in html.replace("&lt;", "<") for line in summary(loaded))
    shown = run("report", artifact)
    assert shown.startswith(" ".join(summary(loaded)))
    assert loaded.digest[:40] in shown
    assert "Not covered: one answer by itself" in shown
    raw = json.loads(run("report", artifact, "--json"))
    assert raw["digest"] == loaded.digest


def test_a_gate_that_stops_nothing_says_so_everywhere(records_path: Path, tmp_path: Path) -> None:
    artifact, page = tmp_path / "a.json", tmp_path / "report.html"
    shown = run("fit", "--rule", "acrc", records_path, "--alpha", "0.9", "--out", artifact)
    loaded = CalibrationArtifact.load(artifact)
    assert stops_nothing(loaded)
    useless = warning(loaded)
    assert useless is not None
    for text in (shown, run("report", artifact)):
        assert f"Warning: {useless} Fit with a smaller --alpha, or use no gate." in text
        assert text.count("Warning:") <= 2 or text is not shown
        assert "\x1b" not in text
    run("report", records_path, "--artifact", artifact, "--out", page, "--splits", "0")
    html = page.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert '<section class="verdict red">\n<b>This gate stops nothing</b>' in html
    assert f"<p>{useless}</p>" in html


def test_the_warning_is_red_on_a_terminal(records_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = fit_artifact(records_path, score="semantic_entropy", alpha=0.9, rule="acrc")
    terminal = VisibleConsole(force_terminal=True, color_system="standard", file=io.StringIO(), width=100)
    monkeypatch.setattr("calibrate.cli.frame.terminal.console", terminal)
    print_verdict(verdict_text(artifact))
    assert isinstance(terminal.file, io.StringIO)
    assert "\x1b[31mWarning: This gate stops nothing: its threshold accepts each of the" in terminal.file.getvalue()


@pytest.mark.parametrize(
    ("warnings", "said"),
    [(2, ""), (3, "The report has 1 more warning.\n"), (5, "The report has 3 more warnings.\n")],
)
def test_warnings_that_only_the_report_has_are_counted(
    records_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: int, said: str
) -> None:
    """Two are printed; who is told of no others does not open the report."""
    text = verdict_text(fit_artifact(records_path, score="semantic_entropy", alpha=0.9, rule="acrc"))
    terminal = VisibleConsole(file=io.StringIO(), width=100)
    monkeypatch.setattr("calibrate.cli.frame.terminal.console", terminal)
    print_more(replace(text, warnings=tuple(f"warning {number}" for number in range(warnings))))
    assert isinstance(terminal.file, io.StringIO)
    assert terminal.file.getvalue() == said


def test_without_a_certificate_the_labels_that_would_do_are_named(records_path: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "a.json"
    shown = run("fit", records_path, "--alpha", "0.02", "--rule", "certified", "--out", artifact)
    assert shown.startswith(
        "answer nothing: no threshold was found 2 % wrong answers cannot be promised by rule certified on these 240"
    )
    # One answer in 50 is wrong even where the model is most certain.
    assert "more labels would hardly help: use a better score or model, or a larger alpha; --rule acrc needs" in shown


def test_run_does_everything_and_resumes(questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = ("--alpha", "0.15", "--rule", "acrc", "--set", "splits=2")
    arguments = ("run", "--questions", questions, "--model", MODEL, "--out", out, *settings)
    shown = run(*arguments, "--set", "price=0.0005")
    forecast = (
        "1. Asking: 240 questions (168 to calibrate, then 72 to test) x 11 calls = 2,640 calls, 1.32 at 0.0005 a call."
    )
    assert forecast in shown
    assert shown.index(forecast) < shown.index("questions are on file")
    assert "2. Scoring: seconds, no calls. Labels: seconds, no calls." in shown
    names = {path.name for path in out.iterdir()}
    assert names == {
        *("records.jsonl", "records.ledger.jsonl", "test-records.jsonl", "artifact.json"),
        *("report.html", "report-risk-coverage.png", "report-scores.png"),
        "report-alphas.png",
    }
    assert "On 72 questions kept out of the fit" in shown
    first = CalibrationArtifact.load(out / "artifact.json")
    assert " ".join(summary(first)) in shown
    assert first.estimator.name == "semantic_entropy"
    assert first.calibration.group is None  # groups are categories unless the user says otherwise
    page = (out / "report.html").read_text(encoding="utf-8")
    assert (
        f"calibrate run --questions {questions} --model {MODEL} --out {out} --alpha 0.15 --rule acrc --set splits=2"
        in page
    )
    shown = run(*arguments)
    assert "1. Asking: no calls; the answers to all 240 questions are on file." in shown
    assert "(168 were there already)" in shown
    again = CalibrationArtifact.load(out / "artifact.json")
    assert again.outcome == first.outcome
    assert again.spent is not None
    assert again.spent.fits == 1  # the same fit
    run(*("0.2" if each == "0.15" else each for each in arguments))
    other = CalibrationArtifact.load(out / "artifact.json").spent
    assert other is not None
    assert other.fits == 2


def test_run_from_yaml_with_a_test_file(tmp_path: Path, questions: Path) -> None:
    rows = questions.read_text(encoding="utf-8").splitlines(keepends=True)[:160]
    questions.write_text("".join(rows[:100]), encoding="utf-8")
    test = tmp_path / "test.jsonl"
    test.write_text("".join(rows[100:]), encoding="utf-8")
    settings = tmp_path / "s.yaml"
    settings.write_text(
        f"questions: {questions}\ntest_questions: {test}\nmodel: {MODEL}\nout: {tmp_path / 'out'}\nalpha: 0.9\n"
        "score: self_consistency:exact\ncorrectness: exact\nsplits: 0\n"
    )
    shown = run("run", "--rule", "acrc", settings, "--alpha", "0.15")
    assert "On 60 questions kept out of the fit" in shown
    artifact = CalibrationArtifact.load(tmp_path / "out" / "artifact.json")
    assert artifact.alpha == 0.15
    assert artifact.estimator.judge is not None
    assert artifact.estimator.judge.name == "exact"
    references = [json.loads(row) | {"references": ["another"]} for row in rows[100:]]
    test.write_text("".join(json.dumps(row) + "\n" for row in references), encoding="utf-8")
    shown = run("run", "--rule", "acrc", settings, "--alpha", "0.15", "--out", tmp_path / "wrong", code=1)
    assert "Refuted by the test questions" in shown
    assert "Compare the label rules and references" in shown
    assert "Refuted" in (tmp_path / "wrong" / "report.html").read_text(encoding="utf-8")
    test.write_text(rows[0] + rows[150], encoding="utf-8")
    shown = run("run", settings, "--out", tmp_path / "other", code=2)
    assert "1 questions are in both" in shown


@pytest.mark.slow
def test_run_uses_a_question_that_is_asked_several_times_once_unless_told(tmp_path: Path) -> None:
    questions = fakes.write_questions(tmp_path / "q.jsonl", size=40)
    rows = [json.loads(row) for row in questions.read_text(encoding="utf-8").splitlines()]
    again = [*rows, *({**row, "id": f"{row['id']}-again"} for row in rows[:10])]
    questions.write_text("".join(json.dumps(row) + "\n" for row in again), encoding="utf-8")
    for flags, used in (((), 40), (("--set", "count_repeats=true"), 50)):
        out = tmp_path / str(used)
        run(
            *("run", "--questions", questions, "--model", MODEL, "--out", out, "--alpha", "0.5", "--rule", "empirical"),
            *("--score", "num_sets", "--correctness", "exact", "--test-fraction", "0", "--set", "splits=0", *flags),
        )
        assert CalibrationArtifact.load(out / "artifact.json").data.n_used == used


def test_run_checks_labels_aloud_and_chooses_an_estimator(tmp_path: Path) -> None:
    questions, out = tmp_path / "q.jsonl", tmp_path / "out"
    questions.write_text("".join(json.dumps(row) + "\n" for row in fakes.faq_rows(110)), encoding="utf-8")
    common = (
        *("run", "--questions", questions, "--model", "python:tests.calibrate.fakes:faq", "--out", out),
        *("--rule", "acrc", "--alpha", "0.3", "--test-fraction", "0", "--set", "splits=0", "--n", "4"),
    )
    shown = run(*common, "--correctness", "exact")
    assert "11 primary answers were cut off at the plan's max_tokens" in shown
    records = read_records(out / "records.jsonl").records
    contained = sum(
        record.correct is False and bool(make_rule("contains").label(record.answer or "", record.to_question()).correct)
        for record in records
    )
    wrong = [record.correct for record in records].count(False)
    assert 20 < contained < wrong
    assert f"{contained} of the {wrong} wrong answers contain a reference" in shown
    assert f"use rule contains: `calibrate label {out / 'records.jsonl'} --rule contains`" in shown
    read = re.findall(r"(right|wrong) (?:'[^']*'|\S+) reference '\d+ days', f\d+", shown)
    assert read == ["right"] * 3 + ["wrong"] * 3
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "11 of 110 answers, at max_tokens" in page
    assert page.count("Allow longer answers: 11 of 110 were cut off at 256 tokens") == 1  # what to do next
    assert "Labelled wrong, although the answer contains the reference" in page
    assert "Which score ranks the errors best?" not in page  # one estimator only
    artifact = CalibrationArtifact.load(out / "artifact.json")
    assert (artifact.data.choice, artifact.plan.cut_off) == (None, "abstain")

    # The same records with the better rule, and the estimator that ranks best on questions that the fit does not use.
    shown = run(*common, "--correctness", "contains", "--score", "auto")
    assert "wrong answers contain a reference" not in shown
    assert "Scores on 22 questions that the fit does not use" in shown
    artifact = CalibrationArtifact.load(out / "artifact.json")
    assert artifact.data.choice is not None
    assert f"Chosen: {artifact.data.choice.candidates[0]}, on 20 % of the questions. The fit uses the other 88" in shown
    assert (artifact.data.n_questions, artifact.data.choice.n, len(artifact.data.choice.questions)) == (88, 22, 22)
    page = " ".join((out / "report.html").read_text(encoding="utf-8").split())
    assert "Which score ranks the errors best?" in page
    auroc_interval = r"<td>0\.\d{3}</td><td>0\.\d{3} to [01]\.\d{3}</td>"
    assert re.search(re.escape(f"{artifact.data.choice.candidates[0]} (in use)</td>") + auroc_interval, page)
    assert "The one in use was chosen on 22 other questions." in page
    assert f"{artifact.data.choice.candidates[0]}, of {len(artifact.data.choice.candidates)} the one" in run(
        "report", out / "artifact.json"
    )


def test_fit_chooses_an_estimator_on_questions_of_neither_fit_nor_test(records_path: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "a.json", tmp_path / "r.html"
    fit = ("fit", records_path, "--alpha", "0.15", "--score", "auto", "--out", out)
    shown = run(*fit, "--rule", "acrc", "--test-fraction", "0.3")
    artifact, tested = CalibrationArtifact.load(out), read_records(tmp_path / "a.test.jsonl").records
    assert artifact.data.choice is not None
    # 72 of 240 are kept out, and of the other 168 the choice takes a fifth.
    assert (len(tested), artifact.data.choice.n, artifact.data.n_questions) == (72, 34, 134)
    hashed = set(training_of(tested).ids) | set(artifact.data.choice.questions)
    assert len(hashed) == 72 + 34
    assert artifact.data.choice.candidates[0] in shown
    run("report", records_path, "--artifact", out, "--test", tmp_path / "a.test.jsonl", "--out", page, "--splits", "0")
    assert "The one in use was chosen on 34 other questions." in " ".join(page.read_text(encoding="utf-8").split())
    assert "auto chooses on a random part" in run(*fit, "--human-labels", tmp_path / "none.jsonl", code=2)


def test_a_rule_is_given_with_its_parameters_or_as_a_function(records_path: Path, tmp_path: Path) -> None:
    shown = run("label", records_path, "--rule", "token_f1(threshold=0.7)")
    assert "Rule token_f1 (threshold 0.7)" in shown
    assert "Read these: 'wrong' will mean wrong by this rule." in shown
    own = "tests.calibrate.correctness.test_correctness:starts_alike"
    assert f"Rule python (function {own}" in run("label", records_path, "--rule", f"python:{own}")
    run("fit", "--rule", "acrc", records_path, "--alpha", "0.3", "-s", "semantic_entropy", "-o", tmp_path / "a.json")
    assert CalibrationArtifact.load(tmp_path / "a.json").correctness.params["function"] == own


def test_run_refuses_bad_settings_before_the_model_is_loaded(questions: Path) -> None:
    common = ("run", "--questions", questions, "--model", "python:no.such:model")
    assert "Write 0.15 for 15 %" in run(*common, "--alpha", "15", code=2)
    assert "unknown rule 'acrcc'" in run(*common, "--rule", "acrcc", code=2)
    assert "no score named 'entropy'" in run(*common, "--score", "entropy", code=2)
    assert "no correctness rule named 'fuzzy'" in run(*common, "--correctness", "fuzzy", code=2)
    assert "no module 'no'" in run(*common, code=2)


def test_evaluate_writes_its_tables(records_path: Path, tmp_path: Path) -> None:
    table, whole = tmp_path / "t" / "e.csv", tmp_path / "t" / "e.json"
    shown = run(
        *("evaluate", records_path, "-a", "0.15", "-a", "0.2", "--rule", "acrc", "--rule", "certified"),
        *("-s", "semantic_entropy", "-s", "self_consistency", "--splits", "4", "--csv", table, "--json", whole),
    )
    assert "Rules: 4 splits, fitted on 120 of 240" in shown
    assert shown.endswith("--score auto --alpha 0.15")  # not the best of these, which would be picked on the same
    with table.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2 * 2
    assert {row["estimator"] for row in rows} == {"semantic_entropy", "self_consistency"}
    grid = EvaluationGrid.model_validate_json(whole.read_text(encoding="utf-8"))
    assert [(cell.estimator, cell.evaluation.splits) for cell in grid.cells] == [
        ("semantic_entropy", 4),
        ("self_consistency", 4),
    ]
    shown = run(
        *("evaluate", records_path, "-a", "0.15", "-s", "semantic_entropy", "--rule", "acrc:k_min=1"),
        *("--rule", "acrc", "--n-calibration", "60", "--n-calibration", "120", "--splits", "3"),
    )
    assert shown.count("acrc:k_min=1") == 2
    assert " n alpha wrong " in shown, "sizes are rows of one table"
    assert shown.endswith("--score semantic_entropy --alpha 0.15")


def test_evaluate_says_that_choosing_by_it_is_a_selection(records_path: Path) -> None:
    few = ("evaluate", records_path, "-a", "0.15", "--rule", "acrc", "--splits", "1", "-s", "semantic_entropy")
    assert "is a selection" not in run(*few)
    text = " ".join(run(*few, "-s", "discrete_semantic_entropy").split())
    assert "to fit the best score on the same questions is a selection" in text
    assert "--score auto" in text


def test_evaluate_in_the_form_of_the_paper(records_path: Path, tmp_path: Path) -> None:
    table, whole, figure = tmp_path / "p.csv", tmp_path / "p.json", tmp_path / "deep" / "p.png"
    shown = run(
        *("evaluate", records_path, "-s", "semantic_entropy", "--splits", "2", "--table", "main", "--table", "sizes"),
        *("--figure", figure, "--csv", table, "--json", whole),
    )
    assert "Main results: 2 splits, fitted on 120 of 240 questions, %" in shown
    assert "clopper_pearson (UCB-CLP) 0.15" in shown
    assert "A-CRC by calibration size" in shown
    assert "Ablation" not in shown
    with table.open(encoding="utf-8", newline="") as stream:
        assert [row["table"] for row in csv.DictReader(stream)] == ["main"] * 7 + ["sizes"] * 3 + ["figure"] * 35
    assert len(json.loads(whole.read_text(encoding="utf-8"))["main"]["cells"][0]["evaluation"]["rows"]) == 7
    assert figure.read_bytes().startswith(b"\x89PNG")
    shown = run("evaluate", records_path, "--table", "main", "--rule", "acrc", code=2)
    assert "leave out --rule" in shown


def test_plan() -> None:
    shown = run(
        *("plan", "--alpha", "0.1", "--accuracy", "0.8", "--auroc", "0.85", "--acceptance", "0.4", "--rule", "acrc"),
        *("--rule", "certified", "--n", "100", "--n", "400", "--repetitions", "20"),
    )
    rules = ["acrc", "certified"]
    same = plan(0.1, accuracy=0.8, auroc=0.85, target_acceptance=0.4, rules=rules, sizes=[100, 400], repetitions=20)
    assert all(f"- {line}" in shown for line in same.words[1:])
    assert f"acrc {100 * same.rows[0].acceptance.value:.0f}" in shown
    assert "Write 0.1 for 10 %" in run("plan", "--alpha", "10", "--accuracy", "0.8", "--auroc", "0.85", code=2)


def test_fit_asks_for_a_second_look_where_labels_cost_the_threshold(
    records_path: Path, labelled: RecordFile, tmp_path: Path
) -> None:
    fit = ("fit", records_path, "--rule", "acrc", "-a", "0.15", "-s", "semantic_entropy", "-o", tmp_path / "a.json")
    shown = run(*fit)
    assert "though the model was very" not in shown  # 3 of the 20 surest answers or fewer are no more than alpha
    scores = {record.id: record.scores["semantic_entropy"].value for record in labelled.records}
    surest = sorted((value, name) for name, value in scores.items() if value is not None)[:6]
    mislabelled = [
        r.model_copy(update={"correct": False}) if r.id in [name for _, name in surest] else r for r in labelled.records
    ]
    write_records(records_path, labelled.header, mislabelled)
    shown = run(*fit)
    assert "say wrong though the model was very certain" in shown
    assert "say right though" not in shown  # those lie above any threshold
    assert f"See them: calibrate report {records_path} --artifact {tmp_path / 'a.json'}" in shown


def test_cluster_by_group_uses_one_question_each(records_path: Path, tmp_path: Path) -> None:
    shown = run(
        "fit", "--rule", "acrc", records_path, "--alpha", "0.15", "--cluster-by-group", "--out", tmp_path / "a.json"
    )
    assert "one question of each of 3 groups is used" in shown
    assert shown.startswith("answer nothing: no threshold was found")


@pytest.mark.parametrize(
    ("arguments", "code", "fragment"),
    [
        (("fit", "RECORDS", "--alpha", "15"), 2, "Write 0.15 for 15 %"),
        (("fit", "missing.jsonl", "--alpha", "0.1"), 2, "no record file at missing.jsonl"),
        (("fit", "RECORDS", "--alpha", "0.1", "--test", "x", "--test-fraction", "0.5"), 2, "exclude each other"),
        (("fit", "RECORDS", "--alpha", "0.1", "-s", "max_softmax"), 2, "calibrate score RECORDS --score max_softmax"),
        (("score", "RECORDS", "-s", "nonsense"), 2, "no score named 'nonsense'"),
        (("label", "RECORDS", "--rule", "token_f1(threshold=5)"), 2, "threshold must be in (0, 1], got 5"),
        (("report", "missing.json"), 1, "missing.json: cannot be read"),
        (("collect", "RECORDS", "--model", MODEL), 1, ":1: field 'question'"),
        (("collect", "QUESTIONS", "--model", "gpt"), 2, "names no provider"),
        (("collect", "QUESTIONS", "--model", "python:tests"), 2, "names no attribute"),
        (("collect", "QUESTIONS", "--model", "python:tests.calibrate.fakes:nothing"), 2, "has no 'nothing'"),
        (("collect", "QUESTIONS", "--model", "python:tests.calibrate.fakes:SIZE"), 2, "is a int"),
        (("collect", "QUESTIONS", "--model", MODEL, "--temperature", "0"), 2, "temperature must be above 0"),
        (("collect", "QUESTIONS", "--model", MODEL, "--set", "template=x"), 2, "exactly once"),
        (("collect", "QUESTIONS", "--model", MODEL, "-s", "max_softmax"), 2, "no option labels"),
    ],
)
def test_errors_are_told_without_a_traceback(
    arguments: tuple[str, ...], code: int, fragment: str, records_path: Path, questions: Path, tmp_path: Path
) -> None:
    names = {"RECORDS": str(records_path), "QUESTIONS": str(questions)}
    before = records_path.read_bytes()
    shown = run(*(names.get(argument, argument) for argument in arguments), *_out(arguments, tmp_path), code=code)
    assert fragment.replace("RECORDS", str(records_path)) in shown or fragment in shown
    assert "Traceback" not in shown
    assert records_path.read_bytes() == before


def _out(arguments: tuple[str, ...], tmp_path: Path) -> tuple[str, ...]:
    return ("--out", str(tmp_path / "out.json")) if arguments[0] in ("fit", "collect") else ()


def test_a_langchain_name_needs_langchain(questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "langchain.chat_models", None)
    shown = run("collect", questions, "--model", "openai:gpt-4o-mini", "--out", tmp_path / "r.jsonl", code=1)
    assert "pip install langchain langchain-openai" in shown


def test_labels_that_people_gave(records_path: Path, tmp_path: Path) -> None:
    labels = tmp_path / "people.csv"
    labels.write_text("id,correct\n" + "".join(f"p{i},{'yes' if i % 4 else 'no'}\n" for i in range(200)))
    shown = run("label", records_path, "--labels", labels)
    assert "150 of 200 answers are right (75 %)" in shown
    assert "40 not labelled: no label in people.csv" in shown
    run("fit", "--rule", "acrc", records_path, "--alpha", "0.2", "--out", tmp_path / "a.json")
    artifact = CalibrationArtifact.load(tmp_path / "a.json")
    assert artifact.correctness.name == "given"
    assert artifact.data.n_unlabelled == 40
    assert "exclude each other" in run("label", records_path, "--labels", labels, "--rule", "exact", code=2)


def test_an_unfinished_collection_is_pointed_out(records_path: Path, tmp_path: Path) -> None:
    lines = records_path.read_bytes().splitlines(keepends=True)
    records_path.write_bytes(b"".join(lines[:150]))
    shown = run("fit", "--rule", "acrc", records_path, "--alpha", "0.15", "--out", tmp_path / "a.json")
    assert "Only 149 of 240 questions are in" in shown


def test_a_test_file_labelled_otherwise_is_refused(records_path: Path, tmp_path: Path) -> None:
    artifact, other, never = (tmp_path / name for name in ("a.json", "other.jsonl", "b.json"))
    fit = ("fit", "--rule", "acrc", records_path, "--alpha", "0.15", "--out")
    run("label", records_path, "--rule", "token_f1", "--out", other)
    assert "correctness rule" in run(*fit, never, "--test", other, code=2)
    assert not never.exists()
    unlabelled = tmp_path / "unlabelled.jsonl"
    file = read_records(records_path)
    write_records(unlabelled, file.header, [record.model_copy(update={"correct": None}) for record in file.records])
    assert "no fresh record has a label" in run(*fit, never, "--test", unlabelled, code=2)
    assert not ledger_of(records_path).exists()  # a fit that is refused does not count
    run(*fit, artifact)
    assert ledger_of(records_path).exists()
    run("report", records_path, "--artifact", artifact, "--test", other, "--out", tmp_path / "r.html", code=2)
    assert not (tmp_path / "r.html").exists()


def test_the_table_of_evaluate_fits_80_columns(labelled: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate_command = import_module("calibrate.cli.evaluate")
    for width, errors in ((80, False), (120, True)):
        out = io.StringIO()
        monkeypatch.setattr(evaluate_command, "console", VisibleConsole(file=out, width=width, force_terminal=True))
        grid = evaluate_grid(labelled, ["semantic_entropy"], rules=METHODS, alphas=[0.1], splits=30)
        evaluate_command._print_table(grid, "Rules", names=True, figures=None)
        lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
        rows = [line for line in lines if line.strip().startswith(tuple(f"{rule} " for rule in METHODS))]
        assert len(rows) == len(METHODS), "no row is broken over two lines"
        assert max(map(len, rows)) <= width
        assert ("\u00b1" in "".join(rows)) == errors


def test_a_test_part_that_refutes_ends_with_1(records_path: Path, labelled: RecordFile, tmp_path: Path) -> None:
    fresh, bad, artifact = tmp_path / "fresh.jsonl", tmp_path / "bad.jsonl", tmp_path / "a.json"
    calibration, rest = split(labelled.records, test_fraction=0.5, seed=3)
    write_records(records_path, part_header(labelled.header, calibration), calibration)
    write_records(fresh, part_header(labelled.header, rest), rest)
    wrong = [record.model_copy(update={"correct": not record.correct}) for record in rest]
    write_records(bad, part_header(labelled.header, wrong), wrong)
    flags = ("--rule", "acrc", "-a", "0.15", "-s", "semantic_entropy", "-o", artifact)
    shown = run("fit", records_path, *flags, "--test", fresh)
    assert shown.startswith("answer if semantic_entropy <= ")
    assert "That neither refutes nor proves" in shown or "The error rate is at most" in shown
    proves_nothing = run("fit", records_path, *flags[:-1], tmp_path / "no.json", "--test", records_path, code=2)
    assert "questions that the artifact was fitted on" in " ".join(proves_nothing.split())
    assert not (tmp_path / "no.json").exists()
    shown = run("fit", records_path, *flags, "--test", bad, code=1)
    assert "Refuted by the test questions" in shown
    command = f"calibrate fit {bad} --score semantic_entropy --alpha 0.15 --rule acrc"
    assert "".join(command.split()) in "".join(shown.replace("\u2502", "").split())  # the box breaks long paths
    assert "Guardrail(" not in shown
    assert re.search(r"Next: (Compare the labels|If run time asks such questions|Use rule certified)", shown)
    page = tmp_path / "r.html"
    report = ("report", records_path, "--artifact", artifact, "--out", page, "--splits", "0")
    run(*report, "--test", fresh)
    assert "May answer" in page.read_text(encoding="utf-8")
    shown = run(*report, "--test", bad, code=1)
    assert "Refuted by the test questions" in shown
    assert "in a browser" not in shown.split("Next: ")[1]
    assert "Refuted by the test questions" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("columns", "terminal"), [("80", "1"), ("80", "0"), ("30", "1")])
def test_tables_never_cut_a_number(monkeypatch: pytest.MonkeyPatch, columns: str, terminal: str) -> None:
    """A terminal of 80 columns, a pipe of the same (rich takes it for 80), and a terminal that is far too narrow."""
    numbers = [f"{n}.12345678\u00b10.987654{n}" for n in range(1, 8)]  # longer than what a text keeps
    shown = table("Rules", ("rule", *(f"column{i}" for i in range(7))), [["acrc:" + 90 * "x", *numbers]])
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TTY_COMPATIBLE", terminal)
    there = type(console)(file=io.StringIO(), no_color=True)
    there.print(shown)
    printed = there.file.getvalue()  # type: ignore[attr-defined]
    assert all(number in printed for number in numbers)
    assert printed.count("x") == 90
    assert (90 * "x" in printed) is (terminal == "0"), "no terminal, no lines to break"
