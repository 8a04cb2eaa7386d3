"""Advice about scores, and rules with their settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import calibrate.cli
from calibrate.cli.frame.verdicts import print_advice
from guardrail.artifact import CalibrationArtifact


def test_tables_say_which_score_nobody_should_choose(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "perplexity: use sequence_nll instead. It has the same needs, and more answers pass its certificate."
    print_advice(["sequence_nll", "semantic_entropy:exact"])
    assert capsys.readouterr().out == ""
    print_advice(["sequence_nll", "perplexity"])
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_a_rule_takes_options_and_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """150 conversations of two right answers: options reach the artifact."""
    monkeypatch.chdir(tmp_path)
    rows = [f"q{g}-{i}?,a{i},1,g{g},{0.9 - g / 1000}" for g in range(150) for i in range(2)]
    Path("log.csv").write_text("\n".join(["question,answer,correct,group,conf", *rows]) + "\n")

    def run(*arguments: str) -> str:
        return " ".join(CliRunner().invoke(calibrate.cli.app, list(arguments), env={"COLUMNS": "300"}).output.split())

    run("import", "log.csv", "--map", "confidence=conf:conf", "--out", "log.jsonl")
    fit = ("fit", "log.jsonl", "-s", "imported:conf", "--alpha", "0.1", "--cluster-by-group", "--trust-labels")
    run(*fit, "--rule", "certified_groups:most=2", "--out", "total.json")
    assert CalibrationArtifact.load("total.json").outcome.options["most"] == 2
    run(*fit, "--rule", "certified:share=0.4", "--out", "share.json")
    assert CalibrationArtifact.load("share.json").outcome.options["share"] == 0.4
    assert "as a mean over groups" in run(*fit, "--rule", "certified_groups", "--out", "mean.json")
