"""Every stored format has a file that is read correctly and written again byte by byte; other versions are refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from benchmarks.estimators.page import Page
from calibrate.cli.frame.flags import load_settings
from calibrate.cli.frame.settings import RunSettings
from calibrate.data.formats.questions import read_questions
from calibrate.data.labels import apply_labels, open_session, read_labels
from calibrate.data.records import open_writer, read_records
from calibrate.evaluation.results import Evaluation
from calibrate.ledger import Ledger, Line
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact, CascadeArtifact, Spent
from guardrail.bindings import read_bindings
from guardrail.errors import GuardrailError
from guardrail.guard.assess import Remembered
from guardrail.items.spec import ItemScores, ItemsSpec
from guardrail.judges import EntailmentScores
from guardrail.judges.cache import PairCache, cached
from guardrail.outcome import Feasible
from guardrail.prompting import PromptWrapping
from guardrail.review import Candidate, CandidateRule, Monitors, ReviewStore
from guardrail.review.web.accounts import Accounts
from guardrail.sampling.draws import Draw, Draws
from guardrail.sampling.effects import run
from guardrail.specs import EstimatorSpec
from guardrail.types import Sample, ToolCall, Unmeasured
from guardrail.uncertainty.combine import Parts
from guardrail.verdict import Reason
from integrations._agents.decisions import released
from integrations._agents.held import MessageNote, unpack
from integrations._agents.verdicts import VerdictStore
from integrations.langgraph_review import ReviewBridge

from .make_formats import (
    FOLDER,
    NOW,
    PAIRS,
    QUESTION,
    READ_ONLY,
    REWRITE,
    ToyEntailment,
    ToyJudge,
    ToySimilarity,
    model,
    plain,
)

STORED = CalibrationArtifact.load(FOLDER / "artifact.json")
OTHER = "sha256:" + "ef" * 32
"""Digest of the artifact in files that are not about it."""


def restored(name: str, folder: Path, change: tuple[str, str] = ("", "")) -> Path:
    """A golden file, or the database of a golden dump, in another folder, with a text of it changed."""
    path = folder / name.replace(".sql", ".sqlite")
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert change[0] in text
    text = text.replace(*change) if change[0] else text
    if name.endswith(".sql"):
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(text)
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReviewStore]:
    with ReviewStore(restored("reviews.sql", tmp_path), clock=lambda: NOW + 30) as opened:
        yield opened


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REWRITE)
def test_todays_code_writes_the_same_bytes(name: str, tmp_path: Path) -> None:
    """A field that is renamed, left out or written otherwise would be lost for all files that users have."""
    REWRITE[name](FOLDER / name, tmp_path / name)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_every_file_is_listed_once() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted([*REWRITE, *READ_ONLY])


class Version(NamedTuple):
    """The version in a golden file, as text, and how the file is opened."""

    name: str
    text: str
    open: Callable[[Path], object]


VERSIONS = [
    Version("artifact.json", '"schema_version": 1', CalibrationArtifact.load),
    Version("artifact-items.json", '"schema_version": 1', CalibrationArtifact.load),
    Version("cascade.json", '"schema_version": 1', CascadeArtifact.load),
    Version("candidates.json", '"schema_version": 1', CandidateRule.load),
    Version("records.jsonl", '"format": 1', lambda path: read_records(path).records),
    Version("records.ledger.jsonl", '"format":1', lambda path: Ledger([path.with_name("records.jsonl")]).enter([])),
    Version("note.packed", "acrc-guardrail/1", lambda path: unpack(path.read_text(encoding="utf-8"))),
    Version("reviews.sql", "VALUES('layout','1')", ReviewStore),
    Version("verdicts.sql", "user_version=1", VerdictStore),
    Version("pairs.sql", "user_version=1", lambda path: len(PairCache(path))),
    Version("tokens.json", '"format": 1', lambda path: Accounts(path).all()),
]


def content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_file_of_another_version_is_refused_with_the_way_out(version: Version, tmp_path: Path) -> None:
    """Read as if it were of this version, it could release what its own version holds back."""
    path = restored(version.name, tmp_path, (version.text, version.text.replace("1", "2")))
    before = path.read_bytes()
    with pytest.raises(GuardrailError, match=r"2'.* reads .*1'\. Upgrade acrc-guardrail to the version that wrote"):
        version.open(path)
    assert path.read_bytes()[100:] == before[100:]  # SQLite counts openings in the first 100 bytes


# -- artifacts and guards ----------------------------------------------------------------------------------------------


def test_an_artifact_guards_the_model_it_was_calibrated_with() -> None:
    assert isinstance(STORED.outcome, Feasible)
    assert (STORED.threshold, STORED.alpha, STORED.outcome.n_accepted, STORED.outcome.interval) == (
        *(0.75, 0.1, 3),
        (0.0, 0.7075),
    )
    assert (STORED.data.name, STORED.calibration.error, STORED.data.turns) == (
        *("fragen-ü.jsonl", (0, 0, 0, 1)),
        ("human", "human,ai,human"),
    )
    assert STORED.data.hashes.tolist() == [int(digit * 16, 16) for digit in "345678"]
    verdict = Guardrail(model=model("Goethe"), artifact=FOLDER / "artifact.json").assess(QUESTION)
    assert (verdict.accepted, round(verdict.uncertainty.value or 0, 3)) == (True, 0.693)  # ln 2, below 0.75


def test_an_artifact_of_items_has_all_that_its_threshold_was_fitted_on() -> None:
    artifact = CalibrationArtifact.load(FOLDER / "artifact-items.json")
    spec, scores = ItemsSpec.of(artifact.estimator), artifact.calibration
    assert isinstance(scores, ItemScores)
    assert (spec.cap, artifact.threshold, artifact.outcome.rule) == (3, 0.25, "wrong_share")
    assert (spec.keys, spec.optional) == ({"/items": "sku"}, ("/due",))
    assert scores.answers == [((0.0, 0.25, None), (0, 1, 1)), ((0.5, 0.0), (0, 0))]


def test_a_cascade_has_both_stages_and_the_fits_that_its_labels_have_carried() -> None:
    cascade = CascadeArtifact.load(FOLDER / "cascade.json")
    assert [(stage.model.model, stage.threshold) for stage in cascade.stages] == [("small", 0.5), ("large", 0.75)]
    assert (cascade.outcome.rule, cascade.outcome.n_accepted, cascade.outcome.feasible) == ("lec_joint", 3, True)
    second = cascade.stages[1]
    assert (second.plan.n, second.plan.stop) == (4, ("\n",))
    assert second.calibration.group == ("a", "b", "c", "d")
    assert cascade.spent == Spent(fits=2, delta=0.15)


def test_the_candidate_rule_selects_what_it_was_fitted_to_show() -> None:
    rule = CandidateRule.load(FOLDER / "candidates.json")
    assert (rule.artifact, rule.quantile, rule.population) == (OTHER, 0.5, "held_back")
    note = MessageNote.from_stored(plain("note.json"))
    assert note.held is not None
    candidates = rule.select(note.held.verdict)
    assert candidates is not None
    assert (candidates.answers, candidates.attained, candidates.epsilon) == ((("Goethe", 0.75),), True, 0.25)


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


# -- calibration files -------------------------------------------------------------------------------------------------


def test_records_keep_what_was_drawn_scored_and_labelled(tmp_path: Path) -> None:
    file = read_records(FOLDER / "records.jsonl")
    header, (first, second, third, fourth, parted, unsplit) = file.header, file.records
    assert (header.model.revision, header.plan.follow_ups, header.plan.cut_off) == (
        "2024-01-01",
        ("p_true",),
        "measure",
    )
    assert header.probe is not None
    assert (header.probe.distinct, header.probe.seed) == (3, False)
    assert header.estimators["semantic_entropy:exact"].params == {"a": 1}
    assert header.prompt.messages(QUESTION, slots=first.slots)[1].content == (
        f"Faust is by Goethe ü.\nQ: {QUESTION}\nA:"
    )
    assert first.drawn is not None
    assert first.drawn.primary is not None
    assert (first.answer, first.drawn.primary.logprobs, first.turns) == ("Goethe", (-0.25, -0.5), "human")
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
    assert [record.correct for record in file.records] == [True, False, None, True, None, None]
    assert parted.items is not None
    assert [(item.path, item.absent) for item in parted.items] == [("/total", False), ("/note", True)]
    labels = parted.item_labels
    assert labels is not None
    assert (labels.right, labels.n_reference) == ((True, False), 2)
    assert (unsplit.items, unsplit.item_labels) == (None, None)
    copy = restored("records.jsonl", tmp_path)
    with open_writer(copy, header) as (_, there):  # the same collection can be resumed; the third is asked again
        assert there.records == [first, second, fourth, parted, unsplit]


def test_labels_apply_to_the_answers_that_were_judged(tmp_path: Path) -> None:
    labels = read_labels(FOLDER / "labels.jsonl")
    judged = {("q1", "Goethe"): True, ("q2", "Schiller ü"): False, ("q3", ""): None}
    assert labels.given == judged
    first = read_records(FOLDER / "records.jsonl").records[0].model_copy(update={"correct": None})
    others = [first.model_copy(update={"id": name, "drawn": None}) for name in ("q2", "q3")]
    assert [record.correct for record in apply_labels([first, *others], labels)] == [True, None, None]
    with open_session(restored("labels.jsonl", tmp_path)) as session:  # a session continues
        assert [session.undo() for _ in range(4)] == [True, True, True, False]


def test_the_fits_on_a_record_file_are_counted(tmp_path: Path) -> None:
    ledger = Ledger([restored("records.ledger.jsonl", tmp_path).with_name("records.jsonl")])
    new = Line(created="", procedure="another", labels="1", undecided=0, delta=0.25)
    # 0.1, not again after an answer was decided; 0.05 in a group; and 0.25
    spent = ledger.enter([new])
    assert (spent.fits, round(spent.delta, 9)) == (3, 0.4)


def test_a_combination_has_its_parts_and_ranks() -> None:
    spec = EstimatorSpec.from_stored((FOLDER / "then.json").read_bytes())
    assert (spec.name, spec.version, spec.unit) == ("then", 1, "probability")
    stored = Parts.from_stored(spec.params)
    assert [part.name for part in stored.parts] == ["sequence_nll", "primary_disagreement"]
    assert stored.settings == {"w": 0.25, "m": 2}
    # the ranks come from the scores 0, 1/8, ..., 299/8: 9 of these 300 are at most 1
    assert stored.ranks is not None
    assert stored.ranks.place(0, 1.0) == 9 / 300


def test_steps_are_the_decisions_of_a_conversation() -> None:
    first, second, third = read_questions(FOLDER / "steps.jsonl")
    assert first.references == ('[{"arguments":{"amount":5,"to":"bob"},"name":"transfer"}]',)
    assert [message.type for message in second.messages_in(PromptWrapping(system="Be brief."))] == [
        "system",
        "human",
        "ai",
        "tool",
    ]
    assert (second.references, second.group) == (("Done.", "Sent."), "conversation 1")
    assert (third.question, third.group) == ("Grüß dich", None)


@pytest.mark.parametrize("name", ["questions.jsonl", "questions.csv"])
def test_questions_are_read(name: str) -> None:
    first, second = read_questions(FOLDER / name)
    assert (first.id, first.references, first.group) == ("q1", ("Goethe", "J. W. v. Goethe"), "books")
    assert (second.options, second.references) == ({"A": "3", "B": "4"}, ("B",))


def test_settings_and_tools_are_read() -> None:
    settings = load_settings(RunSettings, FOLDER / "run.yaml", {"alpha": 0.2})
    assert (settings.model, settings.rule, settings.alpha) == ("openai:gpt", "certified:delta=0.05", 0.2)
    assert (settings.stop, settings.cluster_by_group, settings.template) == (("\n", "Q:"), True, "Q: {question}")
    bindings = read_bindings(FOLDER / "tools.json")
    assert (bindings.tool_names, bindings.tool_choice) == (("transfer",), "any")


def test_results_for_programs_are_read() -> None:
    evaluation = Evaluation.from_stored((FOLDER / "evaluation.json").read_bytes())
    assert (evaluation.auroc, evaluation.rows[0].name) == (0.75, "acrc:min_accept=1")
    page = Page.from_stored((Path(__file__).parents[2] / "docs" / "estimators.json").read_bytes())  # as published
    assert {"triviaqa"} <= {file.name for file in page.files}


# -- agents ------------------------------------------------------------------------------------------------------------


def test_a_held_note_keeps_what_is_to_be_approved() -> None:
    note = MessageNote.from_stored(plain("note.json"))
    assert unpack((FOLDER / "note.packed").read_text(encoding="utf-8").strip()) == note
    assert note.held is not None
    assert (note.decisions, note.placeholder) == ((), "guardrail-held-1")
    message = note.held.message.to_message()
    assert [call["name"] for call in message.tool_calls] == ["balance", "transfer"]
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == 72
    (judged,) = note.held.judged
    assert (judged.call_id, judged.args) == ("c2", {"to": "bob", "amount": 5})
    assert (note.held.verdict.reason, note.held.verdict.artifact) == (Reason.ABOVE_THRESHOLD, OTHER)


def test_a_decided_note_keeps_what_the_person_wrote() -> None:
    note = MessageNote.from_stored(plain("note-decided.json"))
    assert note.held is not None
    message, orders = released(note.held, cast("Any", note.decisions), lambda verdict: "")
    assert (message.text, note.asked) == ("I will send it.", "h1")
    assert {name: (order.decision, order.args) for name, order in orders.items()} == {
        "c1": ("exempt", None),
        "c2": ("edit", {"to": "bob", "amount": 4}),
    }


def test_an_open_interrupt_becomes_an_item_that_shows_what_is_held(store: ReviewStore) -> None:
    interrupt = SimpleNamespace(id="interrupt 1", value=plain("interrupt.json"))
    paused = SimpleNamespace(interrupts=(interrupt,), tasks=(), metadata={})
    graph = SimpleNamespace(get_state=lambda _: paused, get_state_history=lambda *_, **__: [paused])
    (item,) = ReviewBridge(store).enqueue(graph, {"configurable": {"thread_id": "t"}})
    calls = (ToolCall(name="balance", arguments={}), ToolCall(name="transfer", arguments={"to": "bob", "amount": 5}))
    assert item.content.candidate == Candidate(text="I will send it.", tool_calls=calls)
    assert (item.content.kind, item.content.fixed, item.content.agent) == ("tool_call", (0,), True)
    assert item.content.messages == ({"role": "human", "content": "Send Bob 5."},)
    assert item.content.metadata["conversation"] == "0123456789abcdef" * 2
    shown = item.content.verdict
    assert shown is not None
    assert (shown.uncertainty.value, shown.artifact) == (1.5, OTHER)


def test_notes_about_calls_are_found_by_id(tmp_path: Path) -> None:
    store = VerdictStore(restored("verdicts.sql", tmp_path))
    note, exempt = store.find("c2"), store.find("call_2")
    assert note is not None
    assert exempt is not None
    assert note.held == MessageNote.from_stored(plain("note.json")).held
    assert note.decisions == ({"type": "approve"},)
    assert (note.orders["c2"].decision, exempt.orders["call_2"].decision) == ("held", "exempt")


def test_cached_verdicts_are_found_by_judge_question_and_pair(tmp_path: Path) -> None:
    cache = PairCache(restored("pairs.sql", tmp_path))
    assert cached(ToyJudge("toy"), cache).equivalent(QUESTION, PAIRS) == [True, False]
    assert cached(ToySimilarity("toy"), cache).similarity(QUESTION, PAIRS) == [0.75, 0.25]
    items = [(QUESTION, *pair) for pair in PAIRS]
    assert cached(ToyEntailment("toy"), cache).compare(items) == [
        EntailmentScores(0.5, 0.25, 0.25),
        EntailmentScores(0.125, None, 0.875),
    ]
    with pytest.raises(AssertionError, match="does not hold"):
        cached(ToyJudge("other"), cache).equivalent(QUESTION, PAIRS)


# -- the review database -----------------------------------------------------------------------------------------------


def test_items_and_decisions_are_there_and_the_queue_goes_on(store: ReviewStore) -> None:
    decided, claimed, expired, pending = store.items()
    assert [item.state for item in store.items()] == ["decided", "claimed", "expired", "pending"]
    assert decided.decision is not None
    assert (decided.decision.action, decided.decision.candidate, decided.decision.reviewer) == (
        *("edit", Candidate(text='{"number": "A-1", "total": 13.75}')),
        "ann",
    )
    assert [(item.path, item.action) for item in decided.decision.items] == [("/total", "edit"), ("/due", "reject")]
    shown = decided.content.verdict
    assert shown is not None
    assert [item.kept for item in shown.items] == [True, False, False]
    assert (claimed.holder, claimed.content.agent, claimed.content.fixed) == ("jörg", True, (0,))
    assert expired.content.allowed == ("reject", "respond")
    assert (pending.content.metadata, pending.deadline) == ({"tenant": "ü"}, NOW + 9 + 10**6)
    assert pending.content.candidate_set is not None
    assert pending.content.candidate_set.answers == (("Goethe", 0.75),)
    assert [event.what for event in store.trail()] == [
        *("enqueued", "claimed", "decided", "enqueued", "claimed", "enqueued", "expired", "enqueued", "alarm")
    ]
    lease = store.claim("ann")
    assert lease is not None
    assert lease.item.key == "pending"
    assert store.enqueue(pending.content, key="new").number == 5
    with closing(sqlite3.connect(str(store.database.url.database))) as connection:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute("DELETE FROM review_events")
        ((body, state),) = connection.execute("SELECT body, state FROM review_outbox").fetchall()
    assert (json.loads(body)["type"], state) == ("review.decided", "waiting")


def test_shared_monitors_go_on_and_their_alarms_hold_answers_back(store: ReviewStore) -> None:
    monitors = Monitors(store)
    assert {view.name: (view.state.kind, view.state.n) for view in monitors.all()} == {
        "drift": ("drift", 2),
        "risk": ("risk", 3),
    }
    assert [step.value for step in monitors.history("risk")] == [0.0, 1.0, 1.0]
    drift = monitors.drift("drift", STORED, delta=0.25, seed=3)
    assert drift.update(9.0, key="question 1").n == 2  # already counted
    assert drift.update(1.0, key="question 3").n == 3
    risk = monitors.known_risk("risk", STORED)
    assert risk is not None
    assert risk.update(True, key="request 1").n == 3  # already counted
    switch = monitors.switch()
    assert "The error rate among accepted answers exceeds the promised 10 %" in str(switch.objection())


def test_people_sign_in_with_their_tokens() -> None:
    accounts = Accounts(FOLDER / "tokens.json")
    assert [(account.name, account.role) for account in accounts.all()] == [("ann", "reviewer"), ("jörg", "admin")]
    account = accounts.by_token(f"{2:064x}")
    assert account is not None
    assert account.name == "jörg"
    assert accounts.by_token(f"{3:064x}") is None
