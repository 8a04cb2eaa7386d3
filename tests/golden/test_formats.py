"""Every persisted format has a file that this version must read correctly, and write again byte by byte."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from benchmarks.estimators.page import Page
from calibrate.agent_steps import read_steps
from calibrate.cli.run import load_config
from calibrate.correctness import ChatLabelJudge
from calibrate.data import column_build
from calibrate.data.labels import apply_labels, open_store, read_labels
from calibrate.data.part_columns import PartColumns
from calibrate.data.questions import Question, read_questions
from calibrate.data.records import open_writer, read_records
from calibrate.evaluation.evaluate import Evaluation
from calibrate.evaluation.planning import Plan
from calibrate.scoring.ensemble import ScoreFile, load_ensemble, read_ensemble
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact, CascadeArtifact
from guardrail.bindings import read_bindings
from guardrail.errors import AbstainedError, ArtifactMismatchError, ArtifactTamperedError, UsageError
from guardrail.guard.assess import Remembered
from guardrail.judges import EntailmentScores, make_judge
from guardrail.judges.cache import PairCache, cached
from guardrail.monitor import CanaryMonitor, DriftMonitor, RiskMonitor
from guardrail.monitor.canary import BASELINE
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason
from guardrail.review import Candidate, CandidateRule, Content, Decision, Monitors, ReviewStore
from guardrail.review.web.accounts import Accounts
from guardrail.sampling.draws import Draw, Draws
from guardrail.sampling.effects import run
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, ToolCall, Unmeasured
from guardrail.uncertainty.two_stage import TwoStageParams
from guardrail.verdict import Reason, Verdict
from integrations._agents.held import from_json, to_json, unpack
from integrations._agents.state import NoteChannel
from integrations._agents.verdicts import VerdictStore
from integrations.langgraph_review import GuardedState, ReviewBridge, guarded_nodes

from .make_formats import (
    BY_HAND,
    FOLDER,
    FORMATS,
    NOW,
    PAIRS,
    QUESTION,
    READ_ONLY,
    STORED,
    TRANSFER,
    VERSION_1,
    ToyEntailment,
    ToyJudge,
    ToySimilarity,
    artifact,
    majority_artifact,
    model,
    part_records,
    parts_artifact,
    parts_review,
    sql_of,
    write_part_columns,
)


def restored(name: str, folder: Path) -> Path:
    """Restore the database of a golden SQL file."""
    path = folder / "restored.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((FOLDER / name).read_text(encoding="utf-8"))
    return path


UNVERSIONED = FOLDER / "unversioned"
"""Files of formats that had no version at first; a missing version means version 1."""
BOTH = pytest.mark.parametrize("folder", [FOLDER, UNVERSIONED], ids=["versioned", "unversioned"])
VERSIONS = pytest.mark.parametrize("folder", [FOLDER, VERSION_1], ids=["version 2", "version 1"])
"""Artifacts and their guards, of the version that is written today and of the older version that is still read."""


def plain(name: str, folder: Path = FOLDER) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.fixture(params=["reviews.sql", "version1/reviews.sql", "unversioned/reviews.sql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReviewStore]:
    with ReviewStore(f"sqlite:///{restored(request.param, tmp_path)}", clock=lambda: NOW + 30) as opened:
        yield opened


def test_a_draw_of_another_process_is_continued_and_its_verdict_stands() -> None:
    stored = plain("draw.json")
    draws = Draws()
    draws.add("key:piece", json.dumps(stored["piece"]))
    piece = run(Draw(draws, "key").piece("piece"))
    assert piece is not None
    assert piece.primary == Sample(text="Paris", tokens=("Par", "is"), logprobs=(-0.1, -0.2), finish_reason="stop")
    assert ([sample.text for sample in piece.samples], piece.problem) == (["Paris", "Rome"], None)
    again = Remembered.from_stored(stored["verdict"]).again("q")
    assert again.verdict is not None
    assert (again.accepted, again.drawn.primary, again.verdict.cost.calls) == (True, piece.primary, 0)


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_todays_code_writes_the_same_bytes(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_every_file_is_listed_once() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_file()) == sorted([*FORMATS, *READ_ONLY, *BY_HAND])
    assert {path.name for folder in (UNVERSIONED, VERSION_1) for path in folder.iterdir()} <= set(FORMATS)


@pytest.mark.parametrize("name", [name for name in FORMATS if name.endswith(".sql")])
def test_a_database_restored_from_its_sql_is_the_same_database(name: str, tmp_path: Path) -> None:
    assert sql_of(restored(name, tmp_path)) == (FOLDER / name).read_text(encoding="utf-8")


# -- artifacts ---------------------------------------------------------------------------------------------------------


def test_the_artifact_has_every_field() -> None:
    assert CalibrationArtifact.load(FOLDER / "artifact.json") == artifact()
    older = CalibrationArtifact.load(VERSION_1 / "artifact.json")  # lacks the questions that it was fitted on
    assert (older.data.questions, older.data.n_questions) == (None, 6)


def test_an_artifact_of_votes_states_its_promises_and_gives_out_the_vote() -> None:
    stored = CalibrationArtifact.load(FOLDER / "artifact-majority.json")
    assert stored == majority_artifact()
    assert "on average over calibrations, not a certificate" in stored.promises[0]
    assert stored.promises[1] == (
        "Certificate: --rule certified finds no threshold on 4 labels; about 230 labels would do in 4 of 5 cases."
    )
    guard = Guardrail(model=model("Schiller", "Goethe"), artifact=stored)  # greedy, then every sample
    assert guard.assess(QUESTION).candidate == Sample(
        text="Goethe", tokens=("Goethe",), logprobs=(math.log(0.5),), finish_reason="stop"
    )


@pytest.mark.parametrize("name", ["artifact.json", "version1/artifact.json"])
def test_an_artifact_without_these_fields_states_what_it_knows(name: str) -> None:
    stored = CalibrationArtifact.load(FOLDER / name)
    assert (stored.price, stored.outcome.certifies, stored.plan.primary) == (None, None, "greedy")
    assert stored.promises == (
        "In use: rule acrc, on average over calibrations, not a certificate: about 40 % of such gates end above 10 % "
        "wrong. It answers 75 % of questions; at calibration 0 % of these answers were wrong (95 % interval 0 % to "
        "70.8 %).",
        "Certificate: --rule certified finds no threshold on 4 labels; `calibrate plan` says how many labels would do.",
    )


@VERSIONS
def test_the_artifact_guards_the_model_it_was_calibrated_with(folder: Path) -> None:
    stored = CalibrationArtifact.load(folder / "artifact.json")
    assert stored.digest == plain("artifact.json", folder)["digest"]
    assert isinstance(stored.outcome, Feasible)
    assert (stored.threshold, stored.alpha, stored.outcome.n_accepted, stored.outcome.interval) == (
        *(0.75, 0.1, 3),
        (0.0, 0.7075),
    )
    assert isinstance(stored.certificate, Infeasible)
    assert stored.certificate.reason is InfeasibleReason.TOO_FEW_ITEMS
    assert (stored.data.name, stored.calibration.error, stored.lineage) == (
        "fragen-ü.jsonl",
        (0, 0, 0, 1),
        ("sha256:" + "cd" * 32,),
    )
    guard = Guardrail(model=model("Goethe"), artifact=folder / "artifact.json")
    verdict = guard.assess(QUESTION)
    assert (verdict.accepted, round(verdict.uncertainty.value or 0, 3)) == (True, 0.693)  # ln 2, below 0.75
    assert guard.invoke(QUESTION).content == "Goethe"


def test_an_artifact_of_parts_has_version_3_and_all_that_its_threshold_was_fitted_on() -> None:
    content = json.loads((FOLDER / "artifact-parts.json").read_text())
    assert content["schema_version"] == 3
    stored = CalibrationArtifact.load(FOLDER / "artifact-parts.json")
    assert stored == parts_artifact()
    assert stored.parts is not None
    assert stored.parts.scores.answers == [((0.0, 0.25, None), (0, 1, 1)), ((0.5, 0.0), (0, 0))]
    assert stored.promises[1] == (
        "At calibration 2 of 2 answers show something (100 %); 1 of these keep a wrong part (50 %)."
    )


def test_a_guard_judges_by_a_stored_artifact_of_parts() -> None:
    """Splitter, support, judge, optional field, key field and cap are those of the file."""
    items = [{"sku": "x", "price": 2}, {"sku": "y", "price": 3}]
    answer = {"total": 10.5, "items": items, "note": "n"}
    others = [
        {**answer, "items": items[::-1]},
        {**answer, "items": items[::-1]},
        {**answer, "note": "m"},
        {**answer, "note": "m", "items": [items[0], {"sku": "y", "price": 4}]},
    ]
    chat = model(json.dumps(answer).replace("10.5", "1.05e1"), *map(json.dumps, others))
    with pytest.raises(ArtifactMismatchError, match=r"judge of the field /total differs: .* version=5"):
        Guardrail(model=chat, artifact=FOLDER / "artifact-parts.json")
    # With the present version of that judge, all else as it was stored.
    written = json.loads((FOLDER / "artifact-parts.json").read_text())
    for spec in (written["estimator"]["params"], written["parts"]["spec"]):
        spec["support"]["params"]["judges"]["/total"] = make_judge("numeric").spec.model_dump()
    guard = Guardrail(model=chat, artifact=CalibrationArtifact.from_stored(written))
    verdict = guard.assess(QUESTION)
    assert {part.path: (part.uncertainty, part.kept) for part in verdict.parts} == {
        "/total": (0.0, True),
        "/items/0/sku": (0.0, True),
        "/items/0/price": (0.0, True),
        "/items/1/sku": (0.0, False),  # beyond the cap of 3
        "/items/1/price": (0.25, False),
        "/note": (0.5, False),
        "/due": (0.0, False),
    }
    assert json.loads(guard.invoke(QUESTION).text) == {"total": 10.5, "items": [{"sku": "x", "price": 2}]}


def test_records_of_parts_read_back() -> None:
    file = read_records(FOLDER / "records-parts.jsonl")
    assert (file.header, list(file.records)) == part_records()
    assert read_records(FOLDER / "records.jsonl").records[0].parts == {}


def test_columns_of_parts_change_with_their_layout_only(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("msgspec")
    stored = parquet.read_table(FOLDER / "records-parts.parquet")
    write_part_columns(tmp_path / "now.parquet")
    now = parquet.read_table(tmp_path / "now.parquet")
    # Columns of another layout are built again, so other columns under the same layout would be read wrongly.
    assert stored.schema.metadata[b"layout"] == now.schema.metadata[b"layout"] == column_build._LAYOUT.encode()
    assert stored.schema.equals(now.schema)
    assert repr(stored.to_pydict()) == repr(now.to_pydict())  # as text, in which NaN is NaN
    columns = PartColumns.of_parquet(parquet.ParquetFile(FOLDER / "records-parts.parquet"), "parts_json")
    assert columns.size.tolist() == [2, -1]
    assert [columns.paths[i] for i in columns.path] == ["/total", "/note"]
    assert columns.uncertainty.tolist() == [1.0, 0.0]
    assert columns.absent.tolist() == [False, True]
    assert (columns.right.tolist(), columns.labels.tolist()) == ([1, 0], [2, -1])
    assert columns.reference.tolist() == [2, -1]


def test_a_decision_part_by_part_is_read_with_what_it_is_about() -> None:
    content = json.loads((FOLDER / "review-parts.json").read_text())
    verdict, item, decision = parts_review()
    assert Verdict.from_stored(content["verdict"]) == verdict
    assert Content.from_stored(content["content"]) == item
    stored = Decision.from_stored(content["decision"])
    assert stored == decision
    assert stored.candidate == Candidate(text='{"number": "A-1", "total": 13.75}')
    assert stored.follows_from(item)


@VERSIONS
def test_an_infeasible_artifact_binds_its_tools_and_accepts_nothing(folder: Path) -> None:
    stored = CalibrationArtifact.load(folder / "artifact-tools.json")
    assert stored.threshold is None
    assert stored.plan.bindings is not None
    assert (stored.plan.bindings.tools, stored.plan.bindings.tool_choice) == ((TRANSFER,), "transfer")
    assert Guardrail(model=model("Goethe"), artifact=stored).assess(QUESTION).reason is Reason.INFEASIBLE


@VERSIONS
def test_the_cascade_has_both_stages_with_their_thresholds(folder: Path) -> None:
    cascade = CascadeArtifact.load(folder / "cascade.json")
    assert [(stage.model.model, stage.threshold) for stage in cascade.stages] == [("small", 0.5), ("large", 0.75)]
    assert (cascade.outcome.rule, cascade.outcome.n_accepted, cascade.outcome.feasible) == ("lec_joint", 3, True)
    assert (cascade.certificate.reason, cascade.certificate.interval) == (InfeasibleReason.TOO_FEW_ITEMS, None)
    second = cascade.stages[1]
    assert (second.plan.n, second.plan.stop) == (4, ("\n",))
    assert second.estimator.judge is not None
    assert (second.estimator.judge.name, second.estimator.clustering) == ("exact", "components")
    assert second.calibration.group == ("a", "b", "c", "d")


def test_the_candidate_rule_selects_what_it_was_fitted_to_show(store: ReviewStore) -> None:
    rule = CandidateRule.load(FOLDER / "candidates.json")
    assert (rule.artifact, rule.quantile, rule.population) == (STORED.digest, 0.5, "held_back")
    shown = store.items()[0].content.parsed_verdict()
    assert shown is not None
    candidates = rule.select(shown)
    assert candidates is not None
    assert (candidates.answers, candidates.attained, candidates.epsilon) == ((("Goethe", 0.75),), True, 0.25)


# -- calibration files -------------------------------------------------------------------------------------------------


@VERSIONS
def test_records_keep_what_was_drawn_scored_and_labelled(folder: Path, tmp_path: Path) -> None:
    file = read_records(folder / "records.jsonl")
    header, (first, second, third, fourth) = file.header, file.records
    assert (header.model.revision, header.plan.follow_ups, header.prompt.system) == (
        "2024-01-01",
        ("p_true",),
        "Be brief.",
    )
    assert header.probe is not None
    assert (header.probe.distinct, header.probe.seed) == (3, False)
    assert header.estimators["semantic_entropy:exact"].params == {"a": 1}
    assert first.drawn is not None
    assert first.drawn.primary is not None
    assert (first.answer, first.drawn.primary.logprobs) == ("Goethe", (-0.25, -0.5))
    assert first.drawn.samples[0].token_bytes == ("47", "c3", "b6", "")
    assert first.drawn.samples[1].refusal is True
    (follow_up,) = first.drawn.follow_ups["p_true"]
    assert follow_up.options is not None
    assert follow_up.options.best == "A"
    assert second.drawn is not None
    assert second.drawn.samples[1].tool_calls == (ToolCall(name="transfer", arguments={"to": "bob", "amount": 5}),)
    assert (third.failed, third.options, third.label_detail) == (True, {"A": "3", "B": "4"}, "no answer")
    assert third.scores["semantic_entropy:exact"].reason is Unmeasured.MODEL_FAILED
    assert fourth.drawn is None
    assert [record.correct for record in file.records] == [True, False, None, True]
    copy = tmp_path / "records.jsonl"
    copy.write_bytes((folder / "records.jsonl").read_bytes())
    with open_writer(copy, header) as (_, there):  # the same collection can be resumed
        assert there.records == file.records


def test_prompts_have_slots_and_turns_and_plans_say_what_is_cut_off(tmp_path: Path) -> None:
    file = read_records(FOLDER / "records.jsonl")
    prompt, first = file.header.prompt, file.records[0]
    assert (prompt.slots, first.slots, first.turns) == (("context",), {"context": "Faust is by Goethe ü."}, "human")
    assert prompt.messages(QUESTION, slots=first.slots)[1].content == f"Faust is by Goethe ü.\nQ: {QUESTION}\nA:"
    assert (file.header.plan.cut_off, artifact().plan.cut_off) == ("measure", "abstain")
    assert CalibrationArtifact.load(FOLDER / "artifact.json").turns == ("human", "human,ai,human")
    old = read_records(VERSION_1 / "records.jsonl")
    assert (old.header.plan.cut_off, old.header.prompt.slots, old.records[0].turns) == (None, (), None)
    resumed = old.header.model_copy(update={"plan": old.header.plan.model_copy(update={"cut_off": "abstain"})})
    copy = tmp_path / "records.jsonl"
    copy.write_bytes((VERSION_1 / "records.jsonl").read_bytes())
    with open_writer(copy, resumed) as (_, there):  # a current plan resumes it
        assert there.header == old.header


def test_labels_apply_to_the_answers_that_were_judged(tmp_path: Path) -> None:
    labels = read_labels(FOLDER / "labels.jsonl")
    assert (labels.correct, labels.skipped) == ({"q1": True, "q2": False}, frozenset({"q3"}))
    assert labels.answers == {"q1": "Goethe", "q2": "Schiller ü", "q3": ""}
    first = read_records(FOLDER / "records.jsonl").records[0].model_copy(update={"correct": None})
    others = [first.model_copy(update={"id": name, "drawn": None}) for name in ("q2", "q3")]
    with pytest.raises(UsageError, match="Schiller"):
        apply_labels([first, *others], labels)
    copy = tmp_path / "labels.jsonl"
    copy.write_bytes((FOLDER / "labels.jsonl").read_bytes())
    with open_store(copy) as store:  # a session continues
        assert store.labels == {"q1": True, "q2": False, "q3": None}
        assert store.pop() == "q3"


def test_the_judge_that_labels_is_not_asked_again(tmp_path: Path) -> None:
    copy = tmp_path / "replies.jsonl"
    copy.write_bytes((FOLDER / "judge-replies.jsonl").read_bytes())
    broken = ScriptedChat(default=(RuntimeError("asked"),), name_of_model="judge")
    question = Question(id="q1", question=QUESTION, references=("Goethe",))
    assert ChatLabelJudge(broken, cache=copy).label("Göthe", question).correct is True


def test_the_ensemble_becomes_an_estimator_with_its_members() -> None:
    file = read_ensemble(FOLDER / "ensemble.json")
    assert (file.fit.best_single, file.fit.dropped, file.fit.cross_validated["0.1"]) == (
        "perplexity",
        ("max_softmax",),
        0.625,
    )
    estimator = load_ensemble(FOLDER / "ensemble.json")
    assert [member.name for member in estimator.members] == ["perplexity", "sequence_nll"]
    assert estimator.spec == file.spec


def test_the_two_stage_score_has_its_scale_and_its_stages() -> None:
    spec = ScoreFile.from_stored((FOLDER / "two-stage.json").read_bytes()).spec
    assert (spec.name, spec.version, spec.unit) == ("two_stage", 1, "probability")
    params = TwoStageParams.from_stored(spec.params)
    assert (params.cheap.name, params.second.name) == ("sequence_nll", "primary_disagreement")
    # the scale is 0, 1/8, ..., 299/8: 9 of its 300 values are at most 1
    assert (params.order(1.0, 0.0), params.order(1.0, 1.0)) == (9 / 300, 9 / 300 + 0.25)


def test_steps_are_the_decisions_of_a_conversation() -> None:
    first, second, third = read_steps(FOLDER / "steps.jsonl")
    assert first.references == ('[{"arguments":{"amount":5,"to":"bob"},"name":"transfer"}]',)
    assert [message.type for message in second.to_messages("Be brief.")] == ["system", "human", "ai", "tool"]
    assert (second.references, second.group) == (("Done.", "Sent."), "conversation 1")
    assert (third.to_question().question, third.group) == ("Grüß dich", None)


@pytest.mark.parametrize("name", ["questions.jsonl", "questions.csv"])
def test_questions_are_read(name: str) -> None:
    first, second = read_questions(FOLDER / name)
    assert (first.id, first.references, first.group) == ("q1", ("Goethe", "J. W. v. Goethe"), "books")
    assert (second.options, second.references) == ({"A": "3", "B": "4"}, ("B",))


def test_the_settings_of_a_run_are_read() -> None:
    settings = load_config(FOLDER / "run.yaml", {"alpha": 0.2})
    assert (settings.model, settings.rule, settings.delta, settings.alpha) == ("openai:gpt", "certified", 0.1, 0.2)
    assert (settings.stop, settings.cluster_by_group, settings.template) == (("\n", "Q:"), True, "Q: {question}")
    assert (settings.temperature, settings.splits) == (0.7, 0)


def test_tools_are_read() -> None:
    bindings = read_bindings(FOLDER / "tools.json")
    assert (bindings.tools, bindings.tool_choice) == ((TRANSFER,), "any")


@BOTH
def test_results_for_programs_are_read(folder: Path) -> None:
    plan = Plan.model_validate_json((folder / "plan.json").read_text(encoding="utf-8"))
    assert (plan.needed[0].n, plan.rows[0].acceptance.se) == (120, 0.125)
    evaluation = Evaluation.model_validate_json((folder / "evaluation.json").read_text(encoding="utf-8"))
    assert (evaluation.auroc, evaluation.table()[0]["options"]) == (0.75, "min_accept=1")
    table = Page.model_validate_json((folder / "estimator-table.json").read_text(encoding="utf-8"))
    assert (table.resamples, table.files) == (1000, ())


def test_the_published_table_of_estimators_is_read() -> None:
    docs = Path(__file__).parents[2] / "docs" / "estimators.json"
    page = Page.model_validate_json(docs.read_text(encoding="utf-8"))
    assert {"triviaqa"} <= {file.name for file in page.files}
    assert all(0 <= figures.error_rate <= 1 for file in page.files for figures in file.rows.values())


# -- guards ------------------------------------------------------------------------------------------------------------


@VERSIONS
def test_the_configuration_makes_the_same_guard_again(folder: Path) -> None:
    config = plain("guard.json", folder)
    guard = Guardrail.from_config(config, model=model("Goethe or perhaps Schiller"))
    assert (guard.on_abstain, guard.max_concurrency) == ("raise", 3)
    assert guard.artifact == CalibrationArtifact.load(folder / "artifact.json")
    assert (guard.to_config() == config) == (folder is FOLDER)  # version 1 lacks a newer setting
    assert guard.turns == ("mark" if folder is FOLDER else "refuse")
    assert guard.invoke(QUESTION).content == "Goethe or perhaps Schiller"
    config["artifact"]["content"]["outcome"]["threshold"] = 0.5
    with pytest.raises(ArtifactTamperedError):
        Guardrail.from_config(config, model=model("Goethe"))


def test_the_guard_of_a_configuration_abstains_as_it_did() -> None:
    unsure = ScriptedChat(script={QUESTION: ["Schiller"]}, probability=0.25, name_of_model="small")
    guard = Guardrail.from_config(plain("guard.json"), model=unsure)
    with pytest.raises(AbstainedError):
        guard.invoke(QUESTION)


@VERSIONS
def test_a_configuration_may_name_the_artifact_and_what_has_to_be_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    config = plain("guard-by-path.json", folder)
    with pytest.raises(UsageError, match="on_verdict"):
        Guardrail.from_config(config, model=model("Goethe"))
    verdicts: list[Any] = []
    guard = Guardrail.from_config(
        config, model=model("Goethe"), on_verdict=lambda verdict, *_: verdicts.append(verdict)
    )
    assert guard.invoke(QUESTION).content == "Goethe"
    assert [verdict.artifact for verdict in verdicts] == [config["artifact"]["digest"]]


@pytest.mark.parametrize("name", ["verdicts.sql", "version1/verdicts.sql", "unversioned/verdicts.sql"])
def test_verdicts_are_found_by_call_and_subject(name: str, tmp_path: Path) -> None:
    store = VerdictStore(restored(name, tmp_path))
    held_back, passed = store.get("call_1", '{"to":"bob"}'), store.get("chosen:call_2")
    assert held_back is not None
    assert held_back.candidate is not None
    assert passed is not None
    assert (held_back.reason, held_back.uncertainty.value, held_back.artifact) == (
        Reason.ABOVE_THRESHOLD,
        1.5,
        STORED.digest,
    )
    assert held_back.candidate.tool_calls == (ToolCall(name="transfer", arguments={"to": "bob", "amount": 5}),)
    assert (held_back.meanings[0].size, held_back.cost.calls) == (3, 5)
    assert store.get("call_1", '{"to":"eve"}') is None
    assert passed.accepted is True
    store.close()


def test_cached_verdicts_are_found_by_judge_question_and_pair(tmp_path: Path) -> None:
    cache = PairCache(restored("pairs.sql", tmp_path))
    assert cached(ToyJudge("toy"), cache).equivalent(QUESTION, PAIRS) == [True, False]
    assert cached(ToyJudge("toy"), cache).equivalent(QUESTION, [(b, a) for a, b in PAIRS]) == [True, False]
    assert cached(ToySimilarity("toy"), cache).similarity(QUESTION, PAIRS) == [0.75, 0.25]
    items = [(QUESTION, *pair) for pair in PAIRS]
    assert cached(ToyEntailment("toy"), cache).entailment_batch(items) == [
        EntailmentScores(0.5, 0.25, 0.25),
        EntailmentScores(0.125, None, 0.875),
    ]
    with pytest.raises(AssertionError, match="does not hold"):
        cached(ToyJudge("other"), cache).equivalent(QUESTION, PAIRS)


# -- notes in checkpoints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["note.json", "note.packed"])
def test_a_held_note_keeps_what_is_to_be_approved(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8").strip()
    channel = NoteChannel(str, "guardrail").from_checkpoint(json.loads(text) if name.endswith(".json") else text)
    note = unpack(channel.get())
    assert note is not None
    assert note.held is not None
    assert (note.phase, note.placeholder, note.asked) == ("held", "guardrail-held-1", "h1")
    message = note.held.message.to_message()
    assert [call["name"] for call in message.tool_calls] == ["balance", "transfer"]
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == 72
    (judged,) = note.held.judged
    assert (judged.call_id, judged.args) == ("c2", {"to": "bob", "amount": 5})
    assert (judged.verdict.reason, judged.verdict.artifact) == (Reason.ABOVE_THRESHOLD, STORED.digest)
    assert channel.checkpoint() == to_json(note) == plain("note.json")


def test_a_released_note_keeps_the_orders() -> None:
    note = from_json(plain("note-released.json"))
    assert note is not None
    assert note.message is not None
    assert (note.phase, note.held, note.message.text) == ("released", None, "I will send it.")
    assert {name: order.decision for name, order in note.orders.items()} == {"c1": "reject", "c2": "edit"}
    assert note.orders["c2"].args == {"to": "bob", "amount": 4}


def test_an_answer_held_in_a_checkpoint_can_be_approved() -> None:
    """End to end: a paused graph, with the golden note in its checkpoint, releases the golden answer."""
    unsure = ScriptedChat(script={QUESTION: ["Schiller"]}, probability=0.25, name_of_model="small")
    builder = StateGraph(GuardedState)
    entry, leave = guarded_nodes(Guardrail(model=unsure, artifact=STORED)).add_to(builder)
    builder.add_edge(START, entry)
    builder.add_edge(leave, END)
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke({"messages": [HumanMessage(QUESTION)]}, config)
    checkpoint = saver.get_tuple(config)
    assert checkpoint is not None
    version = checkpoint.checkpoint["channel_versions"]["guardrail"]
    saver.blobs["1", "", "guardrail", version] = saver.serde.dumps_typed(plain("note-answer.json"))
    result = graph.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
    assert result["messages"][-1].content == "Goethe"
    assert result["messages"][-1].response_metadata["guardrail"]["artifact"] == STORED.digest


@BOTH
def test_an_open_interrupt_becomes_an_item_that_shows_what_is_held(folder: Path, store: ReviewStore) -> None:
    interrupt = SimpleNamespace(
        id="interrupt 1", value=json.loads((folder / "interrupt.json").read_text(encoding="utf-8"))
    )
    paused = SimpleNamespace(interrupts=(interrupt,), tasks=(), metadata={})
    graph = SimpleNamespace(get_state=lambda _: paused, get_state_history=lambda *_, **__: [paused])
    (item,) = ReviewBridge(store).enqueue(graph, {"configurable": {"thread_id": "t"}})
    assert item.content.candidate == Candidate(
        text="I will send it.",
        tool_calls=(
            ToolCall(name="balance", arguments={}),
            ToolCall(name="transfer", arguments={"to": "bob", "amount": 5}),
        ),
    )
    assert (item.content.kind, item.content.fixed, item.content.edits) == ("tool_call", (0,), "arguments")
    assert item.content.metadata == {"thread_id": "t", "interrupt": "interrupt 1"}
    shown = item.content.parsed_verdict()
    assert shown is not None
    assert (shown.uncertainty.value, shown.artifact) == (1.5, STORED.digest)


# -- monitors ----------------------------------------------------------------------------------------------------------


@BOTH
def test_the_risk_monitor_goes_on_where_it_stopped(folder: Path) -> None:
    monitor = RiskMonitor.load(folder / "risk-monitor.json", artifact=STORED.digest)
    assert (monitor.state.n, monitor.state.alpha, monitor.state.delta) == (2, 0.25, 0.25)
    assert monitor.state.tallies == ((0.5, 1, 1), (1.0, 1, 0))
    again = RiskMonitor(0.25, delta=0.25, min_audit_rate=0.5)
    again.update(False, audit_rate=1.0)
    again.update(True)
    assert monitor.update(True).log_wealth == pytest.approx(again.update(True).log_wealth)
    with pytest.raises(UsageError, match="audits artifact"):
        RiskMonitor.load(folder / "risk-monitor.json", artifact="sha256:other")


@pytest.mark.parametrize("folder", [FOLDER, VERSION_1, UNVERSIONED], ids=["version 2", "version 1", "unversioned"])
def test_the_drift_monitor_goes_on_where_it_stopped(folder: Path) -> None:
    monitor = DriftMonitor.load(folder / "drift-monitor.json", STORED)
    again = DriftMonitor(STORED, delta=0.25, seed=3)
    for score in (0.5, 1.75):
        again.update(score)
    assert (monitor.state.n, monitor.state.seed, monitor.state.counts) == (2, 3, again.state.counts)
    assert monitor.update(2.0).counts == again.update(2.0).counts
    with pytest.raises(UsageError, match="compares with artifact"):
        DriftMonitor.load(folder / "drift-monitor.json", artifact("large"))


def test_the_canary_goes_on_where_it_stopped() -> None:
    monitor = CanaryMonitor.load(FOLDER / "canary-monitor.json")
    again = CanaryMonitor(2, delta=0.25, seed=3)
    for number in range(BASELINE + 1):
        again.update([0.5, float(number % 2)])
    assert monitor.state.baseline == again.state.baseline
    assert monitor.update([2.0, 0.0]).counts == again.update([2.0, 0.0]).counts


# -- the review database -----------------------------------------------------------------------------------------------


def test_a_database_of_the_first_layout_becomes_todays_and_keeps_every_row(tmp_path: Path) -> None:
    path = restored("version1/reviews.sql", tmp_path)
    todays = _without_states((FOLDER / "reviews.sql").read_text(encoding="utf-8"))
    for _ in range(2):  # the second migration has nothing to do
        with ReviewStore(f"sqlite:///{path}") as store:
            # A drift monitor gets its counts when a process opens it with the artifact.
            assert Monitors(store).drift("drift", STORED, delta=0.25, seed=3).state.n == 2
        assert _without_states(sql_of(path)) == todays


def _without_states(dump: str) -> str:
    """Return a dump without the states of monitors and steps: bets differ from the first layout's, or in rounding."""
    bets = ('INSERT INTO "review_monitors"', 'INSERT INTO "review_monitor_steps"')
    lines = dump.splitlines()
    return "\n".join(",".join(line.split(",")[:2]) if line.startswith(bets) else line for line in lines)


def test_items_and_decisions_are_there(store: ReviewStore) -> None:
    decided, claimed, expired, audit, pending = store.items()
    assert [item.key for item in (decided, claimed, expired, audit, pending)] == [
        "decided",
        "claimed",
        "expired",
        "audit:request 1",
        "pending",
    ]
    assert [item.state for item in store.items()] == ["decided", "claimed", "expired", "decided", "pending"]
    assert decided.decision is not None
    assert (decided.decision.action, decided.decision.candidate, decided.decision.note, decided.decision.reviewer) == (
        "edit",
        Candidate(text="J. W. Goethe"),
        "full name",
        "ann",
    )
    assert decided.content.candidate_set is not None
    assert decided.content.candidate_set.answers == (("Goethe", 0.75),)
    assert decided.content.metadata == {"tenant": "ü", "group": "g1"}
    shown = decided.content.parsed_verdict()
    assert shown is not None
    assert (shown.uncertainty.value, shown.meanings[1].text) == (1.5, "Schiller ü")
    assert (claimed.holder, claimed.content.edits, claimed.content.fixed) == ("jörg", "arguments", (0,))
    assert claimed.content.candidate is not None
    assert claimed.content.candidate.tool_calls[0].arguments == {"to": "bob", "amount": 5}
    assert (expired.lease_until, expired.content.allowed) == (NOW + 607, ("reject", "respond"))
    assert audit.content.kind == "audit"
    assert audit.content.metadata == {"audit_rate": 1.0}
    assert pending.deadline == NOW + 11 + 10**6


def test_the_queue_goes_on(store: ReviewStore) -> None:
    stats = store.stats()
    assert (stats.pending, stats.claimed, stats.decided, stats.expired, stats.undelivered) == (1, 1, 2, 1, 2)
    lease = store.claim("ann")
    assert lease is not None
    assert (lease.item.key, lease.item.number) == ("pending", 5)
    new = store.enqueue(lease.item.content, key="new")
    assert new.number == 6
    assert store.enqueue(lease.item.content, key="decided").number == 1  # already queued


def test_the_trail_is_there_and_cannot_be_changed(store: ReviewStore) -> None:
    whats = [event.what for event in store.trail()]
    assert whats == [
        *("enqueued", "claimed", "decided", "enqueued", "claimed", "enqueued", "expired", "taken_up"),
        *("enqueued", "claimed", "decided", "enqueued", "alarm", "alarm_acknowledged", "alarm"),
    ]
    assert store.trail()[2].detail == {"action": "edit"}
    with (
        closing(sqlite3.connect(str(store.database.url.database))) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute("DELETE FROM review_events")


def test_callbacks_wait_in_the_outbox(store: ReviewStore) -> None:
    with closing(sqlite3.connect(str(store.database.url.database))) as connection:
        rows = connection.execute("SELECT body, state, attempts FROM review_outbox ORDER BY created").fetchall()
    decided, expired = (json.loads(body) for body, _, _ in rows)
    assert [row[1:] for row in rows] == [("waiting", 0)] * 2
    assert (decided["type"], decided["outcome"]["text"], decided["metadata"]["tenant"]) == (
        "review.decided",
        "J. W. Goethe",
        "ü",
    )
    assert (expired["type"], expired["decision"], expired["key"]) == ("review.expired", None, "expired")


def test_shared_monitors_go_on_and_their_alarms_hold_answers_back(store: ReviewStore) -> None:
    monitors = Monitors(store)
    views = {view.name: view for view in monitors.all()}
    assert {name: (view.kind, view.n, view.acknowledged) for name, view in views.items()} == {
        "drift": ("drift", 2, False),
        "risk": ("risk", 3, True),
        "risk 2": ("risk", 2, False),
    }
    assert views["risk"].alarm is not None
    assert (views["risk"].alarm.at, views["risk"].alpha) == (3, 0.125)
    assert [step.value for step in monitors.history("risk")] == [0.0, 1.0, 1.0]
    drift = monitors.drift("drift", STORED, delta=0.25, seed=3)
    assert drift.state.n == sum(drift.state.counts) == 2
    assert drift.update(9.0, key="question 1").n == 2  # already counted
    assert drift.update(1.0, key="question 3").n == 3
    risk = monitors.known_risk("risk", artifact=STORED.digest)
    assert risk is not None
    assert risk.update(True, key="request 1").n == 3  # already counted
    assert monitors.switch(names="risk").allows(0.0)  # acknowledged
    switch = monitors.switch()
    assert not switch.allows(0.0)
    assert [alarm.monitor for alarm in switch.alarms] == ["risk"]


@BOTH
def test_people_sign_in_with_their_tokens(folder: Path) -> None:
    accounts = Accounts(folder / "tokens.json")
    assert [(account.name, account.role) for account in accounts.all()] == [("ann", "reviewer"), ("jörg", "admin")]
    account = accounts.by_token(f"{2:064x}")
    assert account is not None
    assert account.name == "jörg"
    assert accounts.by_token(f"{3:064x}") is None
