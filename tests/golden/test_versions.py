"""Files of another version: readers ignore unknown fields, and refuse unknown versions with a way out."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from pydantic import ValidationError

from benchmarks.estimators.page import Page
from calibrate.agent_steps import read_steps
from calibrate.correctness import ChatLabelJudge
from calibrate.data.labels import open_store, read_labels
from calibrate.data.questions import Question
from calibrate.data.records import read_records
from calibrate.evaluation.evaluate import Evaluation
from calibrate.evaluation.planning import Plan
from calibrate.fits import Fits
from calibrate.scoring.ensemble import read_ensemble
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact, CascadeArtifact
from guardrail.errors import ArtifactFormatError, ArtifactTamperedError, GuardrailError, RecordError, UsageError
from guardrail.files import _digest
from guardrail.judges.cache import PairCache, cached
from guardrail.monitor import CanaryMonitor, DriftMonitor, RiskMonitor
from guardrail.review import CandidateRule, Decision, Monitors, ReviewError, ReviewStore
from guardrail.review.web.accounts import Accounts, add_token
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SamplingPlan, Uncertainty
from guardrail.verdict import Verdict
from integrations._agents.held import from_json, pack, to_json, unpack
from integrations._agents.state import NoteChannel
from integrations._agents.verdicts import VerdictStore
from integrations.langgraph_review import GuardedState, ReviewBridge, guarded_nodes

from .make_formats import (
    FOLDER,
    NOW,
    PAIRS,
    QUESTION,
    STORED,
    VERSION_1,
    ToyJudge,
    artifact,
    held_answer,
    model,
    verdict,
)
from .test_formats import plain, restored

NEW = {"field_of_tomorrow": {"text": "ü", "numbers": [1, 1.5, 1e-7, None]}}
"""A field that a newer version might add to any object."""
FREE = {
    "params",
    "options",
    "metadata",
    "packages",
    "orders",
    "args",
    "arguments",
    "scores",
    "estimators",
    "follow_ups",
    "slots",
}
"""Objects whose names are data."""
FREE |= {
    "content",
    "settings",
    "verdict",
    "tools",
    "messages",
    "actions",
    "cross_validated",
    "single_auroc",
    "usage",
    "accounts",
}


def grown(value: Any, *, free: frozenset[str] = frozenset(FREE)) -> Any:
    """Return JSON as a newer version might write it: one more field in every object."""
    if isinstance(value, list):
        return [grown(item, free=free) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: field if name in free else grown(field, free=free) for name, field in value.items()} | NEW


def saved(path: Path, content: dict[str, Any]) -> Path:
    """Save an artifact as a newer version would, with the digest of its whole content."""
    content = {name: field for name, field in content.items() if name != "digest"}
    path.write_text(json.dumps({"digest": _digest(content), **content}), encoding="utf-8")
    return path


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The golden artifact with one more field in every object."""
    return saved(tmp_path / "newer.json", grown(plain("artifact.json")))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return restored("reviews.sql", tmp_path)


def opened(database: Path) -> ReviewStore:
    return ReviewStore(f"sqlite:///{database}", clock=lambda: NOW + 30)


def run(database: Path, *statements: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def changed(database: Path, table: str, column: str, where: str, change: Callable[[Any], Any]) -> None:
    """Change the JSON in one cell of a table."""
    with closing(sqlite3.connect(database)) as connection, connection:
        (text,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
        new = json.dumps(change(json.loads(text)))
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (new,))


# -- artifacts: the digest of a file stays the digest of that file -----------------------------------------------------


def test_a_newer_artifact_is_the_same_artifact_under_the_digest_in_its_file(newer: Path, tmp_path: Path) -> None:
    written = json.loads(newer.read_text(encoding="utf-8"))
    loaded = CalibrationArtifact.load(newer)
    assert loaded == artifact()
    assert loaded.digest == written["digest"] != artifact().digest
    again = loaded.save(tmp_path / "again.json")  # saving loses nothing
    assert json.loads(again.read_text(encoding="utf-8")) == written
    assert CalibrationArtifact.load(again).digest == loaded.digest
    assert loaded.model_copy().digest == loaded.digest


def test_a_changed_copy_has_its_own_digest(newer: Path) -> None:
    loaded = CalibrationArtifact.load(newer)
    copied = loaded.model_copy(update={"created": "2030-01-01T00:00:00+00:00"})
    expected = artifact().model_copy(update={"created": "2030-01-01T00:00:00+00:00"})
    assert copied.digest == expected.digest
    assert "field_of_tomorrow" not in copied.content


def test_tampering_with_a_newer_artifact_is_refused(newer: Path) -> None:
    for place in ("field_of_tomorrow", "alpha"):
        content = json.loads(newer.read_text(encoding="utf-8"))
        if place == "alpha":
            content["outcome"]["alpha"] = 0.5
        else:
            content[place]["text"] = "u"
        newer.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(ArtifactTamperedError, match="the file says"):
            CalibrationArtifact.load(newer)


def test_an_artifact_of_another_version_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json", plain("artifact.json") | {"schema_version": 4})
    with pytest.raises(ArtifactFormatError, match=r"version 4.*reads version 3 and older.*Upgrade acrc-guardrail"):
        CalibrationArtifact.load(path)
    path = saved(tmp_path / "a.json", plain("candidates.json") | {"schema_version": 2})  # rules have a separate version
    with pytest.raises(ArtifactFormatError, match=r"version 2; this library reads version 1\. Upgrade"):
        CandidateRule.load(path)


def test_an_artifact_of_version_1_keeps_its_digest_until_it_is_changed(tmp_path: Path) -> None:
    """A changed copy may hold a field that narrows the promise, which a reader of version 1 would ignore."""
    written = (VERSION_1 / "artifact.json").read_bytes()
    loaded = CalibrationArtifact.load(VERSION_1 / "artifact.json")
    assert loaded.save(tmp_path / "again.json").read_bytes() == written
    assert loaded.model_copy().digest == loaded.digest
    changed = loaded.model_copy(update={"created": "2030-01-01T00:00:00+00:00"})
    assert (loaded.schema_version, changed.schema_version) == (1, 2)
    assert CalibrationArtifact.load(changed.save(tmp_path / "changed.json")).digest == changed.digest


@pytest.mark.parametrize("by_path", [True, False])
def test_a_configuration_with_a_newer_artifact_makes_the_same_guard(newer: Path, by_path: bool) -> None:
    guard = Guardrail(model=model("Goethe"), artifact=newer)
    config = json.loads(json.dumps(guard.to_config(artifact=newer if by_path else None)))
    again = Guardrail.from_config(config | NEW, model=model("Goethe"))
    assert again.artifact.digest == guard.artifact.digest
    assert again.invoke(QUESTION).content == "Goethe"
    if not by_path:
        config["artifact"]["content"]["field_of_tomorrow"]["text"] = "u"
        with pytest.raises(ArtifactTamperedError):
            Guardrail.from_config(config, model=model("Goethe"))


def test_monitors_and_candidate_rules_know_a_newer_artifact_again(newer: Path, tmp_path: Path) -> None:
    loaded = CalibrationArtifact.load(newer)
    drift = DriftMonitor(loaded, seed=3)
    drift.update(0.5)
    risk = RiskMonitor(0.25, artifact=loaded.digest)
    again = CalibrationArtifact.load(newer)
    assert DriftMonitor.load(drift.save(tmp_path / "drift.json"), again).state.n == 1
    assert RiskMonitor.load(risk.save(tmp_path / "risk.json"), artifact=again.digest).state == risk.state
    rule = CandidateRule.load(
        saved(tmp_path / "rule.json", grown(plain("candidates.json")) | {"artifact": loaded.digest})
    )
    shown = verdict().model_copy(update={"artifact": again.digest})
    assert rule.select(shown) is not None
    assert rule.select(verdict()) is None  # a verdict of the artifact without the fields
    assert rule.digest == _digest(rule.content)


def test_the_stages_of_a_newer_cascade_keep_their_digests(tmp_path: Path) -> None:
    content = grown(plain("cascade.json"))
    cascade = CascadeArtifact.load(saved(tmp_path / "cascade.json", content))
    assert cascade == CascadeArtifact.load(FOLDER / "cascade.json")
    assert [stage.digest for stage in cascade.stages] == [_digest(stage) for stage in content["stages"]]
    assert cascade.stages[0].digest != CascadeArtifact.load(FOLDER / "cascade.json").stages[0].digest
    stages = [
        CalibrationArtifact.load(saved(tmp_path / f"{i}.json", stage_content))
        for i, stage_content in enumerate(content["stages"])
    ]
    assert [stage.digest for stage in stages] == [stage.digest for stage in cascade.stages]


def test_a_misspelt_argument_is_still_refused() -> None:
    misspelt: dict[str, Any] = {"tempreature": 0.5}
    with pytest.raises(ValidationError, match="tempreature"):
        SamplingPlan(**misspelt)
    with pytest.raises(ValidationError, match="Extra"):
        Sample(text="a", **misspelt)
    assert SamplingPlan.from_stored({"n": 4, "tempreature": 0.5}) == SamplingPlan(n=4)


def test_settings_in_a_configuration_stay_strict_and_its_format_is_checked() -> None:
    config = plain("guard.json")
    with pytest.raises(UsageError, match="unknown settings"):
        Guardrail.from_config(config | {"settings": {"early_stoping": "off"}}, model=model("Goethe"))
    with pytest.raises(UsageError, match=r"guard/2'.*reads 'acrc-guardrail/guard/1'.*to_config"):
        Guardrail.from_config(config | {"format": "acrc-guardrail/guard/2"}, model=model("Goethe"))


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_bound_says_so_in_a_field_that_scores_do_not_store() -> None:
    score = Uncertainty(value=0.5, unit="nats", estimator="e", detail="of 10 samples")
    assert "is_bound" not in score.model_dump()
    assert "is_bound" not in score.model_dump_json()
    bound = score.model_copy(update={"is_bound": True})
    assert bound.model_dump(mode="json")["is_bound"] is True
    assert Uncertainty.from_stored(bound.model_dump_json()) == bound


def test_a_bound_that_was_stored_in_words_only_is_known() -> None:
    stored = {"value": 0.5, "unit": "nats", "estimator": "e", "detail": "settled by 3 of 10 samples: between 0 and 1"}
    assert Uncertainty.from_stored(stored).is_bound
    assert not Uncertainty.from_stored(stored | {"detail": "not settled by"}).is_bound
    assert not Uncertainty.from_stored(stored | {"value": None, "reason": "refused"}).is_bound


# -- verdicts in a graph, and beside one -------------------------------------------------------------------------------


def paused(change: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return a graph that waits for a person, with a changed note in its checkpoint, and its configuration."""
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
    saver.blobs["1", "", "guardrail", version] = saver.serde.dumps_typed(change(plain("note-answer.json")))
    return graph, config


APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


def test_a_held_message_of_a_newer_version_can_be_approved() -> None:
    """Earlier it did not count as a note, so the approval silently released nothing."""
    graph, config = paused(lambda note: grown(note, free=frozenset({"metadata", "args", "usage", "orders"})))
    result = graph.invoke(APPROVE, config)
    assert result["messages"][-1].content == "Goethe"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda note: note | {"layout": "acrc-guardrail/2"}, r"'acrc-guardrail/2'.*reads 'acrc-guardrail/1'.*Upgrade"),
        (lambda _: "acrc-guardrail/2:abc", r"'acrc-guardrail/2'.*reads 'acrc-guardrail/1'.*new thread"),
        (lambda _: "acrc-guardrail/1:abc", "damaged"),
        (lambda note: note | {"phase": "tomorrow"}, "damaged .*phase.*new thread"),
    ],
)
def test_a_note_that_cannot_be_read_is_refused_and_releases_nothing(change: Any, message: str) -> None:
    graph, config = paused(change)
    with pytest.raises(UsageError, match=message) as raised:
        graph.invoke(APPROVE, config)
    assert "Goethe" not in str(raised.value)
    with pytest.raises(UsageError, match=message):  # the note is still there
        graph.invoke({"messages": [HumanMessage(QUESTION)]}, config)


def test_a_note_of_another_layout_cannot_be_written() -> None:
    note = to_json(held_answer())
    channel = NoteChannel(str, "guardrail")
    with pytest.raises(InvalidUpdateError, match="acrc-guardrail/2"):
        channel.update([note | {"layout": "acrc-guardrail/2"}])
    assert unpack(pack(held_answer())) == from_json(note) == held_answer()
    assert unpack("junk") is None
    assert from_json({"a": 1}) is None


def test_an_interrupt_of_another_version_is_refused_and_new_fields_are_not(database: Path) -> None:
    def graph(value: Any) -> Any:
        now = SimpleNamespace(interrupts=(SimpleNamespace(id="i", value=value),), tasks=(), metadata={})
        return SimpleNamespace(get_state=lambda _: now, get_state_history=lambda *_, **__: [now])

    config = {"configurable": {"thread_id": "t"}}
    value = plain("interrupt.json")
    with opened(database) as store:
        with pytest.raises(UsageError, match=r"interrupt i has format version '2'.*reads '1'"):
            ReviewBridge(store).enqueue(graph(value | {"format": 2}), config)
        assert store.find("i") is None
        value["verdict"] = grown(value["verdict"])
        (item,) = ReviewBridge(store).enqueue(graph(value | NEW), config)
        shown = item.content.parsed_verdict()
        assert shown is not None
        assert shown.uncertainty.value == 1.5


def test_verdicts_of_a_newer_version_are_read_and_unreadable_ones_refused(tmp_path: Path) -> None:
    file = restored("verdicts.sql", tmp_path)
    run(file, "ALTER TABLE verdict ADD COLUMN extra TEXT")
    changed(file, "verdict", "verdict", "id = 'call_1'", lambda stored: grown(stored, free=frozenset({"arguments"})))
    changed(file, "verdict", "verdict", "id = 'chosen:call_2'", lambda stored: stored | {"reason": "tomorrow"})
    store = VerdictStore(file)
    held_back = store.get("call_1")
    assert held_back is not None
    assert held_back.uncertainty.value == 1.5
    store.put("call_3", "", verdict())
    assert store.get("call_3") == verdict()
    with pytest.raises(UsageError, match=r"'chosen:call_2'.*'reason'.*Upgrade") as raised:
        store.get("chosen:call_2")
    assert "Goethe" not in str(raised.value)
    store.close()


def test_a_verdict_store_of_another_version_is_refused(tmp_path: Path) -> None:
    file = restored("verdicts.sql", tmp_path)
    run(file, "PRAGMA user_version=2")
    with pytest.raises(UsageError, match=r"format version '2'.*reads '1'.*name another file"):
        VerdictStore(file)
    (tmp_path / "text.db").write_text("no database, despite the name" * 99)
    with pytest.raises(UsageError, match="cannot be used as a verdict store"):
        VerdictStore(tmp_path / "text.db")


def test_a_verdict_store_leaves_the_version_of_a_shared_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "application.db"
    run(file, "CREATE TABLE customers (name TEXT)", "PRAGMA user_version=7")
    store = VerdictStore(file)
    store.put("call", "", verdict())
    store.close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (7,)


def test_a_pair_cache_with_a_new_column_is_used_and_another_layout_refused(tmp_path: Path) -> None:
    file = restored("pairs.sql", tmp_path)
    run(file, "ALTER TABLE verdicts ADD COLUMN extra TEXT")
    cache = PairCache(file)
    assert cached(ToyJudge("toy"), cache).equivalent(QUESTION, PAIRS) == [True, False]
    assert cached(ToyJudge("new", [True, True]), cache).equivalent(QUESTION, PAIRS) == [True, True]
    assert cached(ToyJudge("new"), cache).equivalent(QUESTION, PAIRS) == [True, True]
    run(file, "UPDATE verdicts SET value = 'yes'")
    with pytest.raises(UsageError, match=r"cannot be read.*Delete"):
        cached(ToyJudge("toy"), cache).equivalent(QUESTION, PAIRS)
    run(file, "PRAGMA user_version=2")
    with pytest.raises(UsageError, match=r"format version '2'.*reads '1'.*another file"):
        PairCache(file)


# -- the review database -----------------------------------------------------------------------------------------------


def test_items_with_new_fields_are_the_same_items(database: Path) -> None:
    with opened(database) as store:
        before = store.items()
    free = frozenset({"verdict", "metadata", "arguments", "messages"})
    for number in range(1, 6):
        changed(database, "review_items", "content", f"number = {number}", lambda stored: grown(stored, free=free))
    changed(database, "review_items", "decision", "number = 1", lambda stored: grown(stored, free=free))
    run(database, "ALTER TABLE review_items ADD COLUMN extra TEXT")
    with opened(database) as store:
        assert store.items() == before
        assert store.enqueue(before[0].content, key="new").number == 6


def test_an_unreadable_item_says_so_and_can_only_be_rejected(database: Path) -> None:
    changed(database, "review_items", "content", "key = 'pending'", lambda stored: stored | {"candidate": "Goethe"})
    with opened(database) as store:
        (item,) = store.items(["pending"])
        assert len(store.items()) == 5
        assert item.id in item.content.question
        assert "'candidate'" in item.content.question
        assert "Upgrade" in item.content.question
        assert (item.content.candidate, item.content.allowed) == (None, ("reject",))
        lease = store.claim("ann")
        assert lease is not None
        with pytest.raises(UsageError, match="does not allow"):
            store.decide(lease, Decision(action="approve"))
        assert store.decide(lease, Decision(action="reject")).state == "decided"


def test_an_unreadable_decision_counts_as_none(database: Path) -> None:
    changed(database, "review_items", "decision", "key = 'decided'", lambda stored: stored | {"action": "tomorrow"})
    with opened(database) as store:
        item = store.find("decided")
        assert item is not None
        assert (item.state, item.decision) == ("decided", None)
        assert "'action'" in item.content.question
        assert store.wait(item.id, 0) is None


def test_an_unreadable_verdict_of_an_item_is_an_error_of_this_library(database: Path) -> None:
    changed(
        database, "review_items", "content", "key = 'decided'", lambda stored: stored | {"verdict": {"accepted": 1}}
    )
    with opened(database) as store, pytest.raises(ReviewError, match=r"cannot be read.*Upgrade"):
        store.items()[0].content.parsed_verdict()


def test_a_line_of_the_trail_that_cannot_be_read_does_not_hide_the_others(database: Path) -> None:
    with opened(database) as store:
        before = len(store.trail())
    run(database, "DROP TRIGGER review_events_no_UPDATE", "UPDATE review_events SET detail = '{' WHERE number = 1")
    with opened(database) as store:
        trail = store.trail()
        assert (len(trail), trail[0].detail) == (before, {"unreadable": "{"})


def test_shared_monitors_of_a_newer_version(database: Path) -> None:
    run(database, "ALTER TABLE review_monitors ADD COLUMN extra TEXT")
    for name in ("drift", "risk"):
        changed(database, "review_monitors", "state", f"name = '{name}'", grown)
    changed(database, "review_monitors", "alarm", "name = 'risk 2'", grown)
    with opened(database) as store:
        monitors = Monitors(store)
        assert monitors.drift("drift", STORED, delta=0.25, seed=3).update(1.0).n == 3
        assert len(monitors.all()) == 3
        assert len(monitors.switch().alarms) == 1


def test_a_shared_monitor_of_another_version_is_refused_by_name(database: Path) -> None:
    changed(database, "review_monitors", "state", "name = 'risk'", lambda stored: stored | {"format": 2})
    with opened(database) as store:
        with pytest.raises(UsageError, match=r"monitor 'risk'.*format version '2'.*reads '1'"):
            Monitors(store).known_risk("risk")
        with pytest.raises(UsageError, match="monitor 'risk'"):
            Monitors(store).all()


def test_a_shared_monitor_of_an_unknown_kind_names_itself(database: Path) -> None:
    run(database, "UPDATE review_monitors SET kind = 'cost' WHERE name = 'risk'")
    with opened(database) as store, pytest.raises(UsageError, match=r"monitor 'risk'.*kind 'cost'.*Upgrade"):
        Monitors(store).all()


def test_an_alarm_that_cannot_be_read_holds_answers_back(database: Path) -> None:
    changed(database, "review_monitors", "alarm", "name = 'risk 2'", lambda stored: stored | {"monitor": "cost"})
    with opened(database) as store:
        switch = Monitors(store).switch()
        assert not switch.allows(0.0)
        assert "'risk 2'" in switch.reason()


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["risk-monitor.json", "drift-monitor.json", "canary-monitor.json"])
def test_a_saved_monitor_ignores_new_fields_and_refuses_another_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / name

    def load() -> Any:
        if name.startswith("drift"):
            return DriftMonitor.load(path, STORED)
        return (RiskMonitor if name.startswith("risk") else CanaryMonitor).load(path)

    path.write_text(json.dumps(grown(plain(name))), encoding="utf-8")
    assert load().state.n == 2
    newer = plain(name)["format"] + 1
    path.write_text(json.dumps(plain(name) | {"format": newer}), encoding="utf-8")
    with pytest.raises(UsageError, match=rf"format version '{newer}'.*reads '{newer - 1}'.*start a new monitor"):
        load()
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be read as a monitor state"):
        load()


def test_tokens_keep_new_fields_and_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    content = plain("tokens.json")
    content["accounts"]["ann"] |= NEW
    path.write_text(json.dumps(content), encoding="utf-8")
    add_token(path, "eve", "reviewer")
    assert [account.name for account in Accounts(path).all()] == ["ann", "jörg", "eve"]
    assert json.loads(path.read_text(encoding="utf-8"))["accounts"]["ann"] == content["accounts"]["ann"]
    path.write_text(json.dumps(content | {"format": 2}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"format version '2'.*reads '1'.*--add-token"):
        Accounts(path)


def test_records_ignore_new_fields_and_refuse_another_format(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    header, *lines = map(json.loads, (FOLDER / "records.jsonl").read_text(encoding="utf-8").splitlines())
    newer = [{"header": grown(header["header"])} | NEW, *(grown(line) for line in lines)]
    path.write_text("".join(json.dumps(line) + "\n" for line in newer), encoding="utf-8")
    expected = read_records(FOLDER / "records.jsonl")
    assert (read_records(path).header, read_records(path).records) == (expected.header, expected.records)
    header["header"]["format"] = 2
    path.write_text(json.dumps(header) + "\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"records.jsonl:1.*format version '2'.*reads '1'"):
        read_records(path)


def test_an_ensemble_ignores_new_fields_and_refuses_another_format(tmp_path: Path) -> None:
    path = tmp_path / "ensemble.json"
    path.write_text(json.dumps(grown(plain("ensemble.json"))), encoding="utf-8")
    assert read_ensemble(path) == read_ensemble(FOLDER / "ensemble.json")
    path.write_text(json.dumps(plain("ensemble.json") | {"format": 2}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"format version '2'.*reads '1'.*calibrate ensemble"):
        read_ensemble(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match="not an ensemble file"):
        read_ensemble(path)


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Return a writer of golden JSONL files with more fields in every line."""

    def write(name: str, **more: Any) -> Path:
        path = tmp_path / name
        rows = [json.loads(line) | more for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in rows), encoding="utf-8")
        return path

    return write


def test_labels_ignore_new_fields_and_refuse_another_format(lines: Callable[..., Path]) -> None:
    path = lines("labels.jsonl", format=1, **NEW)
    assert read_labels(path).correct == {"q1": True, "q2": False}
    with open_store(path) as store:
        assert store.labels == {"q1": True, "q2": False, "q3": None}
    path = lines("labels.jsonl", format=2)
    with pytest.raises(RecordError, match=r"format version '2'.*reads '1'"):
        read_labels(path)
    with pytest.raises(RecordError, match=r"labels.jsonl:1.*format version '2'.*--labels"), open_store(path):
        pass


def test_replies_of_the_judge_ignore_new_fields_and_refuse_another_format(lines: Callable[..., Path]) -> None:
    question = Question(id="q1", question=QUESTION, references=("Goethe",))
    broken = ScriptedChat(default=(RuntimeError("asked"),), name_of_model="judge")
    assert ChatLabelJudge(broken, cache=lines("judge-replies.jsonl", **NEW)).label("Göthe", question).correct is True
    with pytest.raises(RecordError, match=r"format version '2'.*reads '1'"):
        ChatLabelJudge(broken, cache=lines("judge-replies.jsonl", format=2)).label("Göthe", question)


def test_fits_ignore_new_fields_and_refuse_another_format(lines: Callable[..., Path]) -> None:
    assert Fits([lines("records.fits.jsonl", **NEW)]).read() == Fits([FOLDER / "records.fits.jsonl"]).read()
    with pytest.raises(UsageError, match=r"line 1 has format version '2'.*forgets the fits"):
        Fits([lines("records.fits.jsonl", format=2)]).read()


def test_steps_ignore_new_fields_and_refuse_another_format(lines: Callable[..., Path]) -> None:
    assert read_steps(lines("steps.jsonl", **NEW)) == read_steps(FOLDER / "steps.jsonl")
    with pytest.raises(RecordError, match=r"line 1 has format version '2'.*reads '1'"):
        read_steps(lines("steps.jsonl", format=2))


@pytest.mark.parametrize(
    ("name", "kind"), [("plan.json", Plan), ("evaluation.json", Evaluation), ("estimator-table.json", Page)]
)
def test_results_ignore_new_fields_and_refuse_another_format(name: str, kind: Any) -> None:
    assert kind.from_stored(json.dumps(grown(plain(name)))) == kind.from_stored(plain(name))
    with pytest.raises(ValidationError, match="format"):
        kind.from_stored(plain(name) | {"format": 2})


def test_every_refusal_is_an_error_of_this_library() -> None:
    assert issubclass(UsageError, GuardrailError)
    assert issubclass(RecordError, GuardrailError)
    assert issubclass(ReviewError, GuardrailError)
    assert Verdict.from_stored(verdict().model_dump_json()) == verdict()
