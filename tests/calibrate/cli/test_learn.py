"""`calibrate learn`: a new artifact from decided reviews, what it shows of the queue, and what it refuses."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from calibrate.data.records import read_records
from calibrate.data.table import table_of
from calibrate.judging import GateCounts
from calibrate.reviews import learn, read_reviews
from guardrail.artifact import CalibrationArtifact
from guardrail.judges import ToolCallJudge
from guardrail.outcome import Feasible
from guardrail.review import Decision, ReviewStore
from guardrail.review.monitors import Monitors
from guardrail.uncertainty import make_estimator
from tests.calibrate.commands import Command, run
from tests.calibrate.reviewing import ARTIFACT, RATE, THRESHOLD, artifact_of, audit, decide, fill


@pytest.fixture
def store(tmp_path: Path) -> ReviewStore:
    return ReviewStore(tmp_path / "reviews.db")


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 decided questions; the artifact in force lies beside the store."""
    path = tmp_path_factory.mktemp("reviews") / "reviews.db"
    with ReviewStore(path) as store:
        fill(store, 300)
    ARTIFACT.save(path.with_name("artifact.json"))
    return path


@pytest.fixture(scope="module")
def learning(reviewed: Path) -> Command:
    """The words of a refit on these questions."""
    return ("learn", reviewed, "--artifact", reviewed.with_name("artifact.json"))


@pytest.fixture(scope="module")
def refit(reviewed: Path, learning: Command) -> tuple[str, CalibrationArtifact]:
    """The output of the refit, and the new artifact, which lies beside the store."""
    new = reviewed.with_name("new.json")
    return run(*learning, "--out", new), CalibrationArtifact.load(new)


def test_a_refit_changes_the_threshold_and_not_the_procedure(refit: tuple[str, CalibrationArtifact]) -> None:
    """Otherwise the new threshold would be used on scores of another kind."""
    shown, new = refit
    for part in ("model", "plan", "prompt", "estimator"):
        assert getattr(new, part) == getattr(ARTIFACT, part)
    assert new.correctness.params == {"source": "reviews", "missing": "wait", "rate": RATE}
    assert (new.outcome.rule, new.alpha) == ("empirical", 0.15)
    assert isinstance(new.outcome, Feasible)
    assert new.outcome.threshold > THRESHOLD  # SCER(.5) = .15, and the old one stopped at .3
    assert "every question is in it with probability 40 %" in shown
    assert re.search(r"in force \S* ?0\.3\b", shown)
    assert "fits have used" not in shown


def test_a_second_refit_finds_the_same(
    reviewed: Path, learning: Command, refit: tuple[str, CalibrationArtifact], tmp_path: Path
) -> None:
    """The first one left the artifact in force alone, and the records of its fit beside the new one."""
    run(*learning, "--out", tmp_path / "again.json")
    assert CalibrationArtifact.load(tmp_path / "again.json").outcome == refit[1].outcome
    before = ARTIFACT.save(tmp_path / "before.json").read_bytes()
    assert reviewed.with_name("artifact.json").read_bytes() == before
    assert len(read_records(reviewed.with_name("new.records.jsonl")).records) == refit[1].data.n_used


def test_learn_feeds_a_monitor_every_audit_once(reviewed: Path, learning: Command) -> None:
    shown = run(*learning, "--monitor", "risk")
    with ReviewStore(reviewed) as store:
        audits = [one.correct for one in read_reviews(store, [ARTIFACT]).items if one.audited]
        tallies = Monitors(store).risk("risk", ARTIFACT, min_audit_rate=RATE).state.tallies
    wrong = audits.count(False)
    assert tallies == ((RATE, len(audits), wrong),)
    assert f"({wrong} of {len(audits)} audited wrong" in shown
    assert f"Monitor risk: {len(audits)} new audits" in shown
    assert "Monitor risk: 0 new audits" in run(*learning, "--monitor", "risk")


def test_a_refit_without_a_threshold_says_what_to_do(learning: Command, tmp_path: Path) -> None:
    """The option that it names, `--alpha smallest`, then promises what the decisions can certify."""
    out, command = tmp_path / "smallest.json", (*learning, "--rule", "certified", "--out")
    shown = run(*command, tmp_path / "strict.json", "--alpha", "0.001")
    assert f"Next: keep {learning[-1]}, decide about more answers" in shown
    assert "--alpha smallest" in shown
    run(*command, out, "--alpha", "smallest")
    outcome = CalibrationArtifact.load(out).outcome
    assert isinstance(outcome, Feasible)
    assert (outcome.options["alpha"], 0.001 < outcome.alpha < 0.5) == ("smallest", True)


def test_the_table_shows_both_on_the_same_questions(reviewed: Path) -> None:
    with ReviewStore(reviewed) as store:
        pool = read_reviews(store, [ARTIFACT])
    learned = learn(pool, ARTIFACT, name="reviews")
    assert isinstance(learned.old, GateCounts)
    assert isinstance(learned.new, GateCounts)
    assert learned.old.n == learned.new.n == len(learned.test)
    assert {record.id for record in learned.test}.isdisjoint({record.id for record in learned.file.records})
    scores = [(record.scores[ARTIFACT.estimator.name].value or 0.0, record.correct) for record in learned.test]
    accepted = [correct for score, correct in scores if score <= THRESHOLD]
    assert learned.old.n_accepted == len(accepted)
    assert learned.old.n_errors == accepted.count(False)
    assert len(learned.sample) == len(learned.test) + len(learned.file.records)


def test_of_a_gate_on_calls_it_speaks_of_calls(store: ReviewStore, tmp_path: Path) -> None:
    """Nobody knows what "questions answered" counts where an agent's transfers are let through."""
    spec = make_estimator("primary_disagreement", judge=ToolCallJudge()).spec
    own = ARTIFACT.model_copy(update={"estimator": spec})
    fill(store, 60, artifact=own)
    shown = run("learn", tmp_path / "reviews.db", "--artifact", own.save(tmp_path / "own.json"))
    assert "Error among calls let through: " in shown
    assert "of the measured calls were let through." in shown


@pytest.fixture(scope="module")
def second_turn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Answers of two gates: `--artifact a1 --earlier a0`, where a1 was fitted on reviews of a0. Output and folder."""
    folder = tmp_path_factory.mktemp("turns")
    store, a0, a1, a2 = (folder / name for name in ("reviews.db", "a0.json", "a1.json", "a2.json"))
    ARTIFACT.save(a0)
    with ReviewStore(store) as opened:
        fill(opened, 150)
        run("learn", store, "--artifact", a0, "--out", a1)
        fill(opened, 200, seed=1, artifact=CalibrationArtifact.load(a1))
    return run("learn", store, "--artifact", a1, "--earlier", a0, "--out", a2), folder


def test_the_second_turn_is_a_second_fit_and_shows_the_error_of_each_gate(second_turn: tuple[str, Path]) -> None:
    shown, folder = second_turn
    assert "Error among answers given by a1.json: " in shown
    assert "Error among answers given by a0.json: " in shown
    new = CalibrationArtifact.load(folder / "a2.json")
    assert new.spent is not None
    assert (new.outcome.rule, new.spent.fits, new.spent.delta) == ("empirical", 2, 0.0)
    assert "fits have used" not in shown  # rule empirical certifies nothing, so that no confidence is lost


def test_the_second_turn_tests_on_what_the_gate_in_force_has_not_met(second_turn: tuple[str, Path]) -> None:
    """On its own calibration questions the gate in force would look better than it is."""
    _, folder = second_turn
    old, new = (CalibrationArtifact.load(folder / name) for name in ("a1.json", "a2.json"))
    with ReviewStore(folder / "reviews.db") as store:
        learned = learn(read_reviews(store, [old, ARTIFACT]), old, name="reviews")
    tested = set(table_of(learned.test).asked_hashes().tolist())
    assert tested.isdisjoint(old.data.hashes)
    assert tested.isdisjoint(new.data.hashes)
    assert len(tested) > 20


@pytest.fixture
def on_audits(store: ReviewStore, tmp_path: Path) -> Command:
    """The words of a refit on the queue of `store`."""
    return ("learn", tmp_path / "reviews.db", "--artifact", ARTIFACT.save(tmp_path / "artifact.json"))


def test_one_open_audit_is_named_with_what_waits_behind_it(store: ReviewStore, on_audits: Command) -> None:
    audit(store, range(20))
    assert "No audit can be used yet" in run(*on_audits)
    hard = store.claim("ada")
    assert hard is not None
    decide(store, lambda _: "approve")
    shown = run(*on_audits, "--monitor", "risk")
    assert f"19 decided audits wait behind item {hard.item.id} (/items/{hard.item.id} on the review page" in shown
    assert "No audit can be used yet, so nothing is known about the error rate of answers given." in shown
    assert "0 new audits, 0 in all; wealth" in shown
    store.decide(hard, Decision(action="approve"))
    shown = run(*on_audits, "--monitor", "risk")
    assert "20 new audits, 20 in all; wealth" in shown
    assert "wait behind" not in shown


def test_the_line_of_the_sample_says_what_waits(store: ReviewStore, on_audits: Command, tmp_path: Path) -> None:
    """40 audits, of which the 31st stays open: 30 are used, and that one as wrong; 9 wait."""
    audit(store, range(30))
    decide(store, lambda _: "approve")
    audit(store, range(30, 40))
    hard = store.claim("ada")
    assert hard is not None
    decide(store, lambda _: "approve")
    shown = run(*on_audits, "--out", tmp_path / "new.json")
    assert "Sample: 30 decisions, and 1 undecided, counted as wrong, so that" in shown
    assert "Error among answers given: 3.2 % (1 of 31 audited wrong, 1 of them undecided; 95 % interval 0 %" in shown
    assert f"9 more decisions of the sample wait behind item {hard.item.id}" in shown


def test_an_acknowledged_monitor_that_is_fed_says_that_it_never_alarms_again(
    store: ReviewStore, on_audits: Command
) -> None:
    audit(store, range(20))
    decide(store, lambda _: "reject")
    assert "never alarms again" not in run(*on_audits, "--monitor", "risk")
    Monitors(store).acknowledge("risk", who="ada")
    audit(store, [0])
    assert "was acknowledged: it never alarms again" in run(*on_audits, "--monitor", "risk")


def test_what_another_artifact_judged_is_left_out_and_counted_unless_it_is_named(
    reviewed: Path, tmp_path: Path
) -> None:
    """Scores of another procedure say nothing about this threshold."""
    command = ("learn", reviewed, "--artifact", artifact_of(alpha=0.2).save(tmp_path / "other.json"))
    with ReviewStore(reviewed) as store:
        n = len(read_reviews(store, [ARTIFACT]).items)
    assert f"{n} items were judged by other artifacts, or by none, and are left out." in run(*command)
    assert "none of the 0 reviews" in run(*command, "--out", tmp_path / "new.json", code=2)
    assert "left out" not in run(*command, "--earlier", reviewed.with_name("artifact.json"))


def test_an_existing_artifact_and_a_missing_store_are_refused(learning: Command, tmp_path: Path) -> None:
    old = learning[-1]
    assert "exists" in run(*learning, "--out", old, code=2)
    assert "no review store" in run("learn", tmp_path / "no.db", "--artifact", old, code=2)
    assert not (tmp_path / "no.db").exists()


def test_a_crash_leaves_no_artifact_without_its_records(
    learning: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stops just before the records get their name; `test_artifact.py` has the save of an artifact."""
    replace_file = os.replace

    def crash(source: Path, target: Path) -> None:
        if Path(target).name == "new.records.jsonl":
            raise OSError("killed")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", crash)
    run(*learning, "--out", tmp_path / "new.json", code=1)
    assert not (tmp_path / "new.json").exists()
