"""From unlabelled questions to labels where they matter: collect, score, plan, sample, label and fit."""

from __future__ import annotations

import json
import math
import re
import shlex
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.questions import Question
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.fitting import fit as fit_arrays
from calibrate.pipeline import part_header
from calibrate.scoring.scores import arrays
from guardrail.artifact import CalibrationArtifact
from guardrail.judges.cache import PairCache
from guardrail.review import Decision, ReviewStore
from guardrail.testing import ScriptedChat
from guardrail.types import Uncertainty, Unmeasured
from tests.calibrate import fakes
from tests.calibrate.commands import run

KEY = "semantic_entropy"
MODEL = ScriptedChat(script={"a": ["x", "x", "y"]}, probability=0.5)


@pytest.fixture
def unlabelled(labelled: RecordFile, tmp_path: Path) -> Path:
    """The scored population without references and labels."""
    records = [record.model_copy(update={"correct": None, "references": ()}) for record in labelled.records]
    write_records(tmp_path / "scored.jsonl", labelled.header.model_copy(update={"correctness": None}), records)
    return tmp_path / "scored.jsonl"


def truth(labelled: RecordFile, names: list[str]) -> list[bool]:
    right = {record.id: bool(record.correct) for record in labelled.records}
    return [right[name] for name in names]


def drawn(unlabelled: Path, *options: object) -> Path:
    """A file of 60 questions drawn from the lower four fifths of the scores."""
    out = unlabelled.with_name("to-label.jsonl")
    run(
        *("sample", "--records", unlabelled, "--scope", 0.8, "--n", 60, "--out", out),
        *("--score", KEY, *options),
    )
    return out


def people(path: Path, labelled: RecordFile, first: int) -> Path:
    """A file with the right labels of the first so many questions."""
    names = [record.id for record in read_records(path).records[:first]]
    labels = path.with_name("people.jsonl")
    rows = zip(names, truth(labelled, names), strict=True)
    labels.write_text("".join(json.dumps({"id": name, "correct": right}) + "\n" for name, right in rows))
    return labels


def test_questions_without_references_are_asked_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    questions, records = tmp_path / "q.jsonl", tmp_path / "r.jsonl"
    questions.write_text("".join(json.dumps({"question": row["question"]}) + "\n" for row in fakes.rows(20)))
    shown = run("collect", questions, "--model", "python:tests.calibrate.fakes:model", "--out", records)
    assert "20 of 20 questions have no reference. People can label their answers" in shown
    assert KEY in run("score", records)
    assert "20 not labelled: there is no reference" in (shown := run("label", records, "--rule", "exact"))
    assert "0 of 0" not in shown
    assert "none of 20 answers got a label, so nothing can be fitted yet." in shown
    assert shown.endswith("--interactive, as there are no references")
    drawn_file = tmp_path / "d.jsonl"
    assert "labels on" not in run("sample", "--records", records, "--n", 10, "--out", drawn_file, "-s", KEY)


def test_the_review_page_labels_a_drawn_file(unlabelled: Path, labelled: RecordFile, tmp_path: Path) -> None:
    path, store = drawn(unlabelled), tmp_path / "reviews.db"
    names = [record.id for record in read_records(path).records]
    right = dict(zip(names, truth(labelled, names), strict=True))
    walk = ("label", path, "--review-store", store, "--limit", 20)
    assert "20 of 20 answers wait for a person on the review page" in run(*walk)
    run(*walk)  # sends nothing twice
    with ReviewStore(store) as opened:
        assert opened.stats().pending == 20
        while (lease := opened.claim("ann")) is not None:
            content = lease.item.content
            assert content.verdict is None  # the score does not influence the label
            action = "approve" if right[content.metadata["record"]] else "reject"
            opened.decide(lease, Decision(action=action))
    run(*walk)
    file = read_records(path)
    assert [record.correct for record in file.records[:20]] == [right[name] for name in names[:20]]
    assert file.header.scope.is_drawn
    assert "exclude each other" in run("label", path, "--review-store", store, "--interactive", code=2)


def test_people_are_not_asked_where_no_answer_could_be_measured(labelled: RecordFile, tmp_path: Path) -> None:
    """Sixty decisions of theirs were worth nothing, which the fit said afterwards."""
    missing = Uncertainty(value=None, unit="nats", estimator=KEY, reason=Unmeasured.NO_LOGPROBS)
    records = [record.model_copy(update={"correct": None, "scores": {KEY: missing}}) for record in labelled.records[:9]]
    path = tmp_path / "scored.jsonl"
    write_records(path, labelled.header.model_copy(update={"correctness": None}), records)
    for way in (["--interactive"], ["--review-store", f"sqlite:///{tmp_path}/reviews.db"]):
        shown = run("label", path, *way, code=2)
        assert "none of the 9 answers in" in shown
        assert "could be measured (9 no_logprobs)" in shown
    assert not (tmp_path / "reviews.db").exists()


def test_a_scope_that_is_chosen_after_labels_is_refused(unlabelled: Path, labelled: RecordFile, tmp_path: Path) -> None:
    first, second = unlabelled.with_name("first.jsonl"), tmp_path / "second.jsonl"
    sample = ("sample", "--records", unlabelled, "-s", KEY, "--out")
    run(*sample, first, "--scope", 0.8, "--n", 60)
    run(*sample, second, "--scope", 0.5, "--n", 30)  # nothing was labelled
    run("label", first, "--labels", people(first, labelled, 10))
    shown = run(*sample, second, "--scope", 0.5, "--n", 30, code=2)
    assert "first.jsonl has labels on 10 of these questions, drawn within scope 0.8" in shown
    assert "Draw with --scope 0.8" in shown
    run(*sample, second, "--scope", 0.8, "--n", 60)
    run(*sample, second, "--n", 60)  # no cut to choose


def test_after_labels_of_a_draw_the_next_command_certifies(
    unlabelled: Path, labelled: RecordFile, tmp_path: Path
) -> None:
    path = tmp_path / "d.jsonl"
    run("sample", "--records", unlabelled, "--scope", 0.8, "--n", 60, "--out", path, "-s", KEY)
    shown = run("label", path, "--labels", people(path, labelled, 60))
    command = f"calibrate fit {path} --score {KEY} --alpha 0.1"
    assert shown.endswith(f"Next: {command}")
    run(*shlex.split(command)[1:], "--out", tmp_path / "a.json")
    assert CalibrationArtifact.load(tmp_path / "a.json").outcome.rule == "certified"


def test_sample_says_beforehand_how_many_questions_a_scope_needs(tmp_path: Path) -> None:
    assert "300 labels at a scope of 0.5 need 3 x 300 / 0.5 = 1800 scored questions" in run("sample", "--help")
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "a"}\n')
    shown = run("collect", questions, "--model", f"python:{__name__}:MODEL", "--out", tmp_path / "r.jsonl", "--n", 2)
    assert "To label 300 from the lower half of the scores takes 1800 questions." in shown


def test_a_gap_in_the_labels_of_a_draw_warns(unlabelled: Path, labelled: RecordFile, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    run("sample", "--records", unlabelled, "--scope", 0.8, "--n", 60, "--out", path, "-s", KEY)
    labels = people(path, labelled, 40)
    fit = ("fit", path, "--rule", "certified", "--alpha", 0.3, "--score", KEY, "--out", tmp_path / "a.json", "--few")
    run("label", path, "--labels", labels)
    shown = run(*fit, "--test-fraction", 0.3)
    assert "not the last of the draw" not in shown  # the first 40
    assert "Those questions lie within the scope, which" in shown  # their acceptance is not a share of all
    gap = [line for line in labels.read_text().splitlines() if json.loads(line)["correct"]]
    labels.write_text("\n".join(gap) + "\n")
    run("label", path, "--labels", labels)
    assert f"{60 - len(gap)} of the 60 questions that were drawn have no label, and they are not the last" in run(*fit)


def test_a_plan_from_a_pilot(labelled: RecordFile) -> None:
    shown = run("plan", "--alpha", 0.2, "--pilot", labelled.path, "--n", 100, "--repetitions", 20, "-s", KEY)
    assert "calibrations of the pilot's scores" in shown
    assert "--labels needs --records" in run("plan", "--alpha", 0.2, "--labels", 100, code=2)
    assert "labelled records as --pilot" in run("plan", "--alpha", 0.2, code=2)


# -- Undecided answers -------------------------------------------------------------------------------------------------


@cache
def scored_bytes() -> bytes:
    """The scored records of 120 questions, collected once."""
    with TemporaryDirectory() as folder:
        questions, records = Path(folder, "q.jsonl"), Path(folder, "r.jsonl")
        questions.write_text("".join(json.dumps(row) + "\n" for row in fakes.rows(120)))
        run("collect", questions, "--model", "python:tests.calibrate.fakes:model", "--out", records)
        run("score", records)
        return records.read_bytes()


def scored_population(tmp_path: Path) -> Path:
    """Scored records without labels."""
    records = tmp_path / "r.jsonl"
    records.write_bytes(scored_bytes())
    return records


def every_third_undecided(answer: str, question: Question) -> bool | None:
    """An own rule for `test_undecided_answers_count_as_wrong_until_somebody_decides`."""
    return None if int(sha256(question.id.encode()).hexdigest(), 16) % 3 == 0 else answer in question.references


def test_undecided_answers_count_as_wrong_until_somebody_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    records = scored_population(tmp_path)
    shown = run("label", records, "--rule", f"python:{__name__}:every_third_undecided")
    file = read_records(records)
    n = int(file.records.undecided().sum())
    assert 20 < n < 60
    assert f"{n} of 120 answers are undecided and count as wrong until a person or a judge labels them" in shown
    assert f"Next: calibrate label {records} --undecided --interactive; or go on without: calibrate fit" in shown
    shown = run("fit", "--rule", "acrc", records, "--alpha", 0.3, "--out", tmp_path / "a.json")
    assert f"{n} of 120 answers are undecided and count as wrong" in shown
    artifact = CalibrationArtifact.load(tmp_path / "a.json")
    decided = [record for record in file.records if record.correct is not None]
    assert (artifact.data.n_used, artifact.data.n_undecided, artifact.data.n_unlabelled) == (120, n, 0)
    assert sum(artifact.calibration.error) == n + sum(not record.correct for record in decided)

    flags = ("label", records, "--undecided", "--interactive")
    labels = tmp_path / "r.labels.jsonl"
    shown = run(*flags, keys="y\nn\ny\n")
    assert f"3 of {n} are labelled or skipped" in shown
    assert f"calibrate label {records} --undecided --labels {labels} stops here" in shown
    shown = run("label", records, "--undecided", "--labels", labels)
    assert "undecided by people)" in shown
    assert f"{n - 3} of 120 answers are undecided" in shown
    shown = run(*flags, keys="y\n" * (n - 4) + "s\n")
    assert "1 of 120 answers are undecided" in shown  # the one that was skipped
    now = read_records(records)
    assert [now.records[i].correct for i, record in enumerate(file.records) if record.correct is not None] == [
        record.correct for record in decided
    ]
    run("label", records, "--rule", "exact")
    shown = run(*flags)
    assert f"Every answer of {records} has a label: nothing is undecided." in shown
    assert f"Next: calibrate fit {records}" in shown
    assert "needs who decides" in run("label", records, "--undecided", code=2)


def test_undecided_answers_of_two_files_are_labelled_by_the_commands_that_a_fit_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command for both files is refused, because `label` would write them as one."""
    monkeypatch.chdir(Path(__file__).parents[3])
    records = scored_population(tmp_path)
    run("label", records, "--rule", f"python:{__name__}:every_third_undecided")
    file = read_records(records)
    header = file.header.model_copy(update={"n_questions": 60})
    halves = [tmp_path / "half one.jsonl", tmp_path / "two.jsonl"]
    for half, first in zip(halves, (0, 60), strict=True):
        write_records(half, header, file.records[first : first + 60])
    shown = run("fit", "--rule", "acrc", *halves, "--alpha", 0.3, "--out", tmp_path / "a.json")
    commands = re.findall(r"`calibrate (label [^`]*)`", shown)
    assert len(commands) == 2
    for command, half in zip(commands, halves, strict=True):
        assert read_records(half).records.undecided().any()
        run(*shlex.split(command), keys="y\n" * 60)
        assert not read_records(half).records.undecided().any()


WAYS = {
    "all": "fit R --alpha 0.4",
    "certified": "fit R --alpha 0.5 --rule certified",
    "a test part": "fit R --alpha 0.4 --test-fraction 0.3",
    "a score chosen by AUROC": "fit R --alpha 0.4 --score auto",
    "a threshold for each group": "fit R --alpha 0.5 --by group",
    "one of each cluster": "fit R --alpha 0.4 --cluster-by-group",
    "two files as one": "fit first second --alpha 0.4",
    "people on a sample": "fit R --alpha 0.5 --human-labels people.jsonl",
    "a cascade": "fit R R --cascade --alpha 0.4 -s semantic_entropy -s discrete_semantic_entropy",
    "splits": "evaluate R --alpha 0.4 --splits 5 -s semantic_entropy --json OUT",
}
DOUBTS: dict[str, dict[str, object]] = {
    "wrong": {"correct": False},
    "a rule was in doubt": {"correct": None, "label_detail": "in doubt"},
    "a person skipped it": {"correct": None, "label_detail": "skipped in l.jsonl", "references": ()},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_use_labels_counts_an_undecided_answer_as_wrong(
    way: str, labelled: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result(changes: dict[str, object], name: str) -> dict[str, object]:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        size = 2 if "cluster" in way else len(labelled.records) // 2
        records = [
            record.model_copy(update={"group": f"g{i // size}", **(changes if i % 3 == 0 else {})})
            for i, record in enumerate(labelled.records)
        ]
        for file, part in (("R", records), ("first", records[:90]), ("second", records[90:])):
            if file in WAYS[way].split():
                write_records(Path(file), part_header(labelled.header, part), part)
        people = [{"id": record.id, "correct": bool(record.correct)} for record in labelled.records[1::2]]
        Path("people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in people))
        command = shlex.split(WAYS[way].replace("OUT", "out.json"))
        run(*command, *([] if "out.json" in command else ["--out", "out.json"]))
        content = json.loads(Path("out.json").read_text())
        content = {**content, **content.get("artifacts", {}).get("g0", {})}
        names = ("outcome", "certificate", "calibration", "choice", "spec", "cells")
        return {part: content[part] for part in names if part in content}

    wrong, *others = (result(changes, name) for name, changes in DOUBTS.items())
    assert wrong
    assert others == [wrong, wrong]


def test_a_skipped_answer_without_a_reference_counts_as_wrong_and_an_unread_one_waits(
    unlabelled: Path, labelled: RecordFile
) -> None:
    run("label", unlabelled, "--rule", "exact")  # no answer has a reference, so the rule reads none
    file = read_records(unlabelled)
    assert not file.records.undecided().any()
    run("label", unlabelled, "--undecided", "--interactive", keys="y\nn\ns\n")
    labels = unlabelled.with_name("scored.labels.jsonl")
    shown = run("label", unlabelled, "--undecided", "--labels", labels)
    assert "1 undecided: skipped in scored.labels.jsonl" in shown
    scored = arrays(read_records(unlabelled).records, KEY)
    assert (len(scored.error), scored.error.sum(), scored.n_undecided) == (3, 2, 1)


def test_a_fit_stops_on_labels_that_look_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    rows = [
        {
            "question": f"q{i}",
            "references": [f"w{i}"],
            "answer": f"It is w{i}, as all know.",
            "samples": ["a", f"b{i % 3}"],
        }
        for i in range(60)
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    records, out = tmp_path / "r.jsonl", tmp_path / "a.json"
    run("import", tmp_path / "own.jsonl", "--out", records)
    run("score", records, "--score", "discrete_semantic_entropy")
    run("label", records, "--rule", "exact")
    shown = run("fit", "--rule", "acrc", records, "--alpha", 0.3, "--out", out, code=2)
    assert "look broken: rule exact calls nearly no answer right, and 60 of the 60 wrong answers contain" in shown
    assert f"`calibrate label {records} --rule contains`" in shown
    assert not out.exists()
    run("fit", "--rule", "acrc", records, "--alpha", 0.3, "--out", out, "--trust-labels")
    run("label", records)
    assert "look broken" not in run("fit", "--rule", "acrc", records, "--alpha", 0.3, "--out", out)


def test_a_run_stops_on_labels_that_look_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    questions, out = tmp_path / "q.jsonl", tmp_path / "out"
    # The right answer has six words too many for rule exact: its reference is one of them.
    rows = [{**row, "references": [str(row["references"][0]).split()[0]]} for row in fakes.faq_rows(80)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = ("--model", "python:tests.calibrate.fakes:faq", "--n", 4)
    command = ("run", "--questions", questions, *model, "--out", out, "--set", "splits=0", "--correctness", "exact")
    assert "look broken" in run(*command, code=2)
    assert not (out / "artifact.json").exists()
    assert not (out / "test-records.jsonl").exists()
    run(*command, "--trust-labels")
    assert (out / "artifact.json").is_file()


def test_undecided_answers_are_asked_about_the_most_certain_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A threshold reaches these first, so that whoever stops early has labelled what counts."""
    monkeypatch.chdir(Path(__file__).parents[3])
    records = scored_population(tmp_path)
    run("label", records, "--rule", f"python:{__name__}:every_third_undecided")
    undecided = [each for each in read_records(records).records if each.is_undecided]
    first = min(undecided, key=lambda each: each.scores[KEY].value or 0)  # ties are in the order of the file
    assert first.question in run("label", records, "--undecided", "--interactive", "--limit", 1, keys="")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_deciding_an_undecided_answer_never_lowers_the_threshold(data: st.DataObject) -> None:
    """So each threshold on a walk is at most the one that all labels give, and stopping at any keeps its promise."""
    n = data.draw(st.integers(15, 120))
    score = data.draw(st.lists(st.integers(0, 30), min_size=n, max_size=n))
    wrong = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    mended = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    alpha = data.draw(st.sampled_from([0.1, 0.3, 0.6]))
    outcomes = [
        fit_arrays(score, [each and not right for each, right in zip(wrong, rights, strict=True)], **RULE, alpha=alpha)
        for rights in ([False] * n, mended)
    ]
    before, after = (-math.inf if outcome.threshold is None else outcome.threshold for outcome in outcomes)
    assert after >= before


RULE: dict[str, Any] = {"rule": "certified", "delta": 0.1}


class YesJudge(BaseChatModel):
    """A judge that says yes."""

    asked: list[str] = Field(default_factory=list)
    """Prompts so far; the copies of a model share the list."""

    @property
    def _llm_type(self) -> str:
        return "yes-judge"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.asked.append(str(messages[-1].text))
        return ChatResult(generations=[ChatGeneration(message=AIMessage("yes"))])


JUDGE = YesJudge()


def test_a_judge_of_undecided_answers_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verdicts on disk are not asked for again, and until it is done the records keep every byte."""
    monkeypatch.chdir(Path(__file__).parents[3])
    records = scored_population(tmp_path)
    run("label", records, "--rule", f"python:{__name__}:every_third_undecided")
    undecided, before = [each for each in read_records(records).records if each.is_undecided], records.read_bytes()
    n = len({(each.question, each.references, each.answer) for each in undecided})
    command = ("label", str(records), "--undecided", "--judge-model", f"python:{__name__}:JUDGE")
    store, batches = PairCache.store, 0

    def killed(cache: Any, values: Any) -> None:
        nonlocal batches
        if batches == 1:
            raise KeyboardInterrupt
        store(cache, values)
        batches += 1

    with monkeypatch.context() as patch:
        patch.setattr(PairCache, "store", killed)
        assert CliRunner().invoke(app, command).exit_code != 0
    assert records.read_bytes() == before
    assert (kept := len(PairCache(tmp_path / "r.judge.sqlite"))) == 16 < n
    first = len(JUDGE.asked)
    run(*command)
    assert len(JUDGE.asked) - first == n - kept, "verdicts on file are not asked for again"
    file = read_records(records)
    assert (len(file.records), int(file.records.undecided().sum())) == (120, 0)
    assert "nothing is undecided" in run(*command)
