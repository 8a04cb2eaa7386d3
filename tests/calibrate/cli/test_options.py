"""Rules with their settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.ledger import ledger_of
from guardrail.artifact import CalibrationArtifact
from tests.calibrate import fakes
from tests.calibrate.commands import Command, run


def test_a_rule_takes_options_and_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """150 conversations of two right answers: options reach the artifact."""
    monkeypatch.chdir(tmp_path)
    rows = [f"q{g}-{i}?,a{i},1,g{g},{0.9 - g / 1000}" for g in range(150) for i in range(2)]
    Path("log.csv").write_text("\n".join(["question,answer,correct,group,conf", *rows]) + "\n")

    run("import", "log.csv", "--map", "confidence=conf:conf", "--out", "log.jsonl")
    fit = ("fit", "log.jsonl", "-s", "imported:conf", "--alpha", "0.1", "--cluster-by-group", "--trust-labels")
    run(*fit, "--rule", "certified_groups:most=2", "--out", "total.json")
    assert CalibrationArtifact.load("total.json").outcome.options["most"] == 2
    run(*fit, "--rule", "certified:share=0.4", "--out", "share.json")
    assert CalibrationArtifact.load("share.json").outcome.options["share"] == 0.4
    assert "as a mean over groups" in run(*fit, "--rule", "certified_groups", "--out", "mean.json")


def test_a_rule_is_written_with_its_settings_in_every_command(records_path: Path, tmp_path: Path) -> None:
    """`run` had a setting for the share, and `plan` no way to it: a fit with the share of a run was another command."""

    fit, out = ("fit", records_path, "--alpha", "0.3", "-s", "semantic_entropy", "-o"), tmp_path / "a.json"
    run(*fit, out, "--rule", "certified:share=0.4,delta=0.05")
    outcome = CalibrationArtifact.load(out).outcome
    assert (outcome.options["share"], outcome.delta) == (0.4, 0.05)
    by_group = run(*fit, tmp_path / "b.json", "--by", "group:min_labels=20", "--rule", "certified:share=0.4,delta=0.2")
    assert "Groups" in by_group
    guesses = ("plan", "-a", "0.1", "--accuracy", "0.8", "--auroc", "0.8", "--n", "100", "--repetitions", "5")
    assert "certified:share=0.9 " in run(*guesses, "--rule", "certified:share=0.9")
    assert "takes no option 'shore'" in run(*guesses, "--rule", "certified:shore=0.9", code=2)
    asked = ("run", "--questions", _questions(tmp_path), "--model", "python:no.such:model")
    assert "takes no option 'shore'" in run(*asked, "--rule", "certified:shore=0.4", code=2)
    assert "no module 'no'" in run(*asked, "--rule", "certified:share=0.4,delta=0.05", code=2)


def _questions(folder: Path) -> Path:
    return fakes.write_questions(folder / "q.jsonl", size=30)


def test_the_questions_kept_out_of_a_fit_remember_the_fits_on_their_labels(records_path: Path, tmp_path: Path) -> None:
    """A second certificate, on the test part alone, was given with the confidence of a first one."""
    fit = ("fit", "--alpha", "0.3", "-s", "semantic_entropy", "-o")
    for command in ((*fit, tmp_path / "a.json", records_path, "--test-fraction", "0.4"),
                    (*fit, tmp_path / "b.json", tmp_path / "a.test.jsonl")):  # fmt: skip
        shown = run(*command)
    assert ledger_of(tmp_path / "a.test.jsonl").is_file()
    assert "2 fits have used these labels" in shown


CASCADE = ("fit", "small.jsonl", "large.jsonl", "--cascade", "--alpha", "0.1")
CALLS = ("learn", "reviews.db", "--tool", "transfer")
ANSWERS = ("learn", "reviews.db", "--artifact", "artifact.json")
SCOPES = ("plan", "--records", "scored.jsonl", "--alpha", "0.1", "--accuracy", "0.7", "--auroc", "0.8")


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        (CASCADE, "--test-fraction", "0.3"),
        (CASCADE, "--test", "test.jsonl"),
        (CASCADE, "--by", "group"),
        (CASCADE, "--human-labels", "people.jsonl"),
        (CASCADE, "--count-repeats", None),
        (CASCADE, "--map", "confidence=p"),
        (CALLS, "--since", "2026-01-01"),
        (CALLS, "--test-fraction", "0.5"),
        (CALLS, "--monitor", "desk-1"),
        (CALLS, "--earlier", "old.json"),
        (ANSWERS, "--records", "agent.records.jsonl"),
        (ANSWERS, "--compare", "to,amount"),
        (ANSWERS, "--model", "openai:gpt-4o-mini"),
        (SCOPES, "--n", "500"),
        (SCOPES, "--acceptance", "0.4"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(command: Command, option: str, value: str | None) -> None:
    """Whoever asks for a test, or leaves days out, must not deploy a gate for which that was not done."""
    shown = run(*command, *filter(None, (option, value)), code=2)
    assert f"{option} has no effect " in shown
    assert "Leave it out." in shown
