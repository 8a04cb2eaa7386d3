"""Decisions about items become labels and a new gate: which items may be used, and with what probability."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import read_records
from calibrate.reviews import accepted_error, given_items, learn, read_reviews, thinned
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.errors import UsageError
from guardrail.items.json_fields import json_spec
from guardrail.review import Content, Decision, ItemDecision, ReviewStore, by_items, ticket
from guardrail.review.hooks import audit_sample
from guardrail.testing import ScriptedChat, make_artifact

FORMAT = {
    "title": "Card",
    "type": "object",
    "properties": {name: {"type": "string"} for name in "abc"},
    "required": ["a", "b", "c"],
}
SPEC = json_spec(bindings_for(response_format=FORMAT), cap=3)
RIGHT = {"a": "1", "b": "2", "c": "3"}
N = 90


def script_of(n: int, seed: int = 0) -> dict[str, list[str]]:
    """Questions with a primary and four samples. A field that is wrong is seldom supported, a right one often."""
    dice = random.Random(seed)
    script = {}
    for i in range(n):
        own, samples = dict(RIGHT), [dict(RIGHT) for _ in range(4)]
        for field in RIGHT:
            kind = dice.random()
            if kind < 0.15:  # wrong, and the samples say other things
                own[field] = "9"
            elif kind < 0.25:  # wrong, and all samples agree
                own[field] = "9"
                for sample in samples:
                    sample[field] = "9"
            elif kind < 0.35:  # right, and the samples say other things
                for sample in samples[:3]:
                    sample[field] = "8"
        script[f"card {i}?"] = [json.dumps(own), *map(json.dumps, samples)]
    return script


def decide(content: Content) -> Decision:
    """The decision of a person who knows the right fields."""
    decisions = []
    for item in content.items:
        if not item.kept:
            right = json.loads(item.text) == RIGHT[(item.path or "")[1:]]
            action = "approve" if right else "edit"
            text = "" if right else json.dumps(RIGHT[(item.path or "")[1:]])
            decisions.append(ItemDecision(path=item.path, action=action, text=text))
    return by_items(content, decisions)


def decide_all(store: ReviewStore) -> None:
    while (lease := store.claim("ann")) is not None:
        store.decide(lease, decide(lease.item.content))


def asked(folder: Path, *, n: int, rate: float = 1.0, threshold: float = 0.25) -> tuple[CalibrationArtifact, str]:
    """A queue after n questions were asked through a guard of fields, with every item decided."""
    model = ScriptedChat(script=script_of(n))
    artifact = make_artifact(
        model, items=SPEC, threshold=threshold, n=4, alpha=0.25, bindings=bindings_for(response_format=FORMAT)
    )
    outcome = artifact.outcome.model_copy(update={"rule": "wrong_share", "delta": 0.1})
    artifact = artifact.model_copy(update={"outcome": outcome})
    artifact.save(folder / "artifact.json")
    url = str(folder / "reviews.db")
    with ReviewStore(url) as store:
        guard = Guardrail(
            model=model, artifact=artifact, on_abstain=ticket(store), on_verdict=audit_sample(store, rate=rate)
        )
        for question in model.script:
            guard.invoke([HumanMessage(question)])
        decide_all(store)
    return artifact, url


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decided")
    asked(folder, n=N)
    return folder


@pytest.fixture
def queue(decided: Path, tmp_path: Path) -> tuple[CalibrationArtifact, str]:
    """A copy of one queue of N answers, all audited and decided, and its artifact."""
    for path in decided.iterdir():
        shutil.copy(path, tmp_path / path.name)
    return CalibrationArtifact.load(tmp_path / "artifact.json"), str(tmp_path / "reviews.db")


def test_item_decisions_become_labels_and_a_gate_that_guards(
    queue: tuple[CalibrationArtifact, str], tmp_path: Path
) -> None:
    artifact, url = queue
    with ReviewStore(url) as store:
        pool = read_reviews(store, [artifact])
        kinds = [(item.content.kind, {each.kept for each in item.content.items}) for item in store.items(limit=500)]
    # Of partial answers there are two items: the audit, all items of which are decided, and the held-back items.
    assert pool.partial == sum(kept == {True, False} for _, kept in kinds) > 10
    assert all(kept == {False} for kind, kept in kinds if kind == "audit")
    assert len(pool.items) == N
    for item in pool.items:
        answer = json.loads(item.verdict.candidate.text if item.verdict.candidate else "")
        assert item.labels == tuple(answer[name] == RIGHT[name] for name in "abc")
        given = [right for each, right in zip(item.verdict.items, item.labels, strict=True) if each.kept]
        assert item.correct == all(given if item.verdict.accepted else item.labels)
    wrong = sum(not item.correct for item in pool.items if item.audited)
    error = accepted_error(pool)
    assert error is not None
    assert (error.wrong, error.audited) == (wrong, sum(item.audited for item in pool.items))
    given_out = [
        right
        for item in pool.items
        for each, right in zip(item.verdict.items, item.labels, strict=True)
        if each.kept and item.verdict.accepted
    ]
    assert given_items(pool) == (given_out.count(False), len(given_out), given_out.count(False) / len(given_out))

    out = tmp_path / "artifact-2.json"
    command = ["learn", url, "--artifact", str(tmp_path / "artifact.json"), "--out", str(out)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert f"{pool.partial} items about the held-back items" in " ".join(result.output.split())
    new = CalibrationArtifact.load(out)
    assert new.threshold is not None
    assert new.outcome.rule == "wrong_share"
    records = read_records(tmp_path / "artifact-2.records.jsonl").records
    assert len(records) == new.calibration.n
    again = learn(pool, artifact, name="again")
    assert again.artifact.threshold == new.threshold
    guard = Guardrail(model=ScriptedChat(script=script_of(3, seed=5)), artifact=new)
    assert "guardrail" in guard.invoke("card 0?").response_metadata


def test_only_a_known_share_of_the_answers_with_a_kept_item_is_in_the_sample(tmp_path: Path) -> None:
    artifact, url = asked(tmp_path, n=40, rate=0.5)
    with ReviewStore(url) as store:
        pool = read_reviews(store, [artifact])
    chances = {(any(each.kept for each in item.verdict.items), item.chance) for item in pool.items}
    assert (True, 0.5) in chances
    assert chances <= {(True, 0.5), (False, 1.0)}
    sample, rate = thinned(pool)
    assert rate == 0.5
    assert {item.id for item in pool.items if item.audited} <= {item.id for item in sample}
    assert 10 <= len(sample) <= 30


def test_held_back_items_alone_are_refused(tmp_path: Path) -> None:
    artifact, url = asked(tmp_path, n=8, rate=1e-9)
    with ReviewStore(url) as store, pytest.raises(UsageError, match=r"no accepted answer.* was audited"):
        learn(read_reviews(store, [artifact]), artifact, name="r")


def test_a_second_fit_on_the_same_item_labels_is_counted_and_paid_for(
    queue: tuple[CalibrationArtifact, str], tmp_path: Path
) -> None:
    _, url = queue
    first = tmp_path / "artifact-2.json"
    base = ["learn", url, "--artifact", str(tmp_path / "artifact.json")]
    assert CliRunner().invoke(app, [*base, "--out", str(first)]).exit_code == 0
    second = tmp_path / "artifact-3.json"
    result = CliRunner().invoke(app, [*base, "--rule", "clean_shown", "--out", str(second)])
    assert result.exit_code == 0, result.output
    artifact = CalibrationArtifact.load(second)
    spent = artifact.spent
    assert spent is not None
    assert spent.fits == 2
    assert spent.delta == pytest.approx(0.2)
    assert artifact.outcome.delta == 0.1
    assert "2 fits have used these labels" in " ".join(result.output.split())
    strict = CliRunner().invoke(app, [*base, "--rule", "clean_answers", "--strict", "--out", str(tmp_path / "x.json")])
    assert strict.exit_code == 2
    watch = CliRunner().invoke(app, [*base, "--monitor", "risk"])
    assert "a monitor tests the share of answers with a wrong item" in " ".join(watch.output.split())


def test_undecided_answers_count_as_wrong_in_every_item(queue: tuple[CalibrationArtifact, str]) -> None:
    artifact, url = queue
    with ReviewStore(url) as store:
        first = next(item.content for item in store.items() if item.content.kind == "audit")
        store.enqueue(first.model_copy(update={"question": "open?", "messages": ()}), key="open")
        pool = read_reviews(store, [artifact])
        learned = learn(pool, artifact, name="r", missing="wrong")
    open_ones = [record for record in (*learned.file.records, *learned.test) if record.question == "open?"]
    assert [record.item_labels and record.item_labels.right for record in open_ones] == [(None, None, None)]
