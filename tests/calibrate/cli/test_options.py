"""Rules with their settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.ledger import ledger_of
from guardrail.artifact import CalibrationArtifact
from tests.calibrate import fakes
from tests.calibrate.commands import run


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


@pytest.mark.parametrize(
    "option",
    [
        ("--test-fraction", "0.3"),
        ("--test", "test.jsonl"),
        ("--by", "group"),
        ("--human-labels", "people.jsonl"),
        ("--count-repeats",),
        ("--map", "confidence=p"),
    ],
)
def test_a_cascade_refuses_options_that_it_would_ignore(option: tuple[str, ...]) -> None:
    """Whoever asks for a test must not deploy a cascade that nothing tested."""
    shown = run("fit", "small.jsonl", "large.jsonl", "--cascade", "--alpha", "0.1", *option, code=2)
    assert f"{option[0]} has no effect on a cascade. Leave it out." in shown
