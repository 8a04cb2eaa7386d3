"""The commands of `calibrate` from questions to an audit: all that they print, and what programs read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.thresholds.registry import rules
from tests.golden.commands import plants
from tests.golden.commands.terminal import Terminal
from tests.golden.shown import same


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder."""
    return Terminal(monkeypatch, tmp_path)


def test_from_questions_to_an_audit(terminal: Terminal) -> None:
    plants.write_questions("q.jsonl", 40)
    plants.unscored("own.jsonl", 40)
    collect = (
        "collect q.jsonl --model python:tests.golden.commands.plants:model --out r.jsonl --n 5 --max-concurrency 1"
    )
    terminal.run(collect)
    terminal.run(collect)
    terminal.run("score r.jsonl")
    terminal.run("score own.jsonl -e semantic_entropy -e lexical_similarity --ties-by sequence_nll")
    terminal.run("label own.jsonl")
    terminal.run("label own.jsonl --rule token_f1 --threshold 0.7 --out other.jsonl")
    terminal.run("label r.jsonl --rule exact")
    terminal.run("fit r.jsonl --alpha 0.2 --test-fraction 0.3 --out a.json")
    terminal.run("inspect a.json")
    terminal.run("inspect a.json --json")
    terminal.run("report r.jsonl --artifact a.json --test a.test.jsonl --out page --splits 2")
    terminal.files()
    same("commands/from_questions.txt", terminal.text)


def test_every_rule(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 130)
    fit = "fit r.jsonl --estimator semantic_entropy --alpha 0.15 --out a.json"
    for rule in rules():
        terminal.run(f"{fit} --rule {rule}")
        terminal.show("a.json", "outcome")
        terminal.forget()
    for rule in ("acrc:min_accept=5,envelope=true", "certified:min_accept=20", "group_total:largest_group=2"):
        terminal.run(f"{fit} --rule {rule} --delta 0.2")
        terminal.forget()
    same("commands/fit_rules.txt", terminal.text)


def test_what_no_rule_can_promise(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 150)
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.01 --rule certified --out a.json")
    terminal.run("inspect a.json")
    terminal.forget()
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.9 --out a.json")
    terminal.run("inspect a.json")
    terminal.forget()
    plants.labelled("few.jsonl", 12, "f")
    terminal.run("fit few.jsonl -e semantic_entropy -a 0.1 --rule certified --out a.json")
    terminal.forget()
    rows = [json.dumps({"id": f"p{i}", "correct": i % 4 > 0}) for i in range(150)]
    Path("chance.jsonl").write_text("\n".join(rows), encoding="utf-8")
    terminal.run("label r.jsonl --labels chance.jsonl --out chance-r.jsonl")
    terminal.run("fit chance-r.jsonl -e semantic_entropy -a 0.1 --out a.json")
    terminal.run("inspect a.json")
    terminal.forget()
    scores = [record.scores["semantic_entropy"].value for record in plants.population(150).records]
    rows = [json.dumps({"id": f"p{i}", "correct": (score or 0) > 0.6}) for i, score in enumerate(scores)]
    Path("reversed.jsonl").write_text("\n".join(rows), encoding="utf-8")
    terminal.run("label r.jsonl --labels reversed.jsonl --out reversed-r.jsonl")
    terminal.run("fit reversed-r.jsonl -e semantic_entropy -a 0.5 --out a.json")
    terminal.run("inspect a.json")
    same("commands/fit_none.txt", terminal.text)


def test_ways_to_fit(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 200)
    plants.labelled("more.jsonl", 120, "m")
    terminal.run("fit r.jsonl more.jsonl -e semantic_entropy -a 0.2 --rule certified --expect 0.7 --out a.json")
    terminal.forget()
    terminal.run("fit more.jsonl -e primary_disagreement -a 0.1 --test r.jsonl --out a.json")
    terminal.forget()
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.3 --cluster-by-group --out a.json")
    terminal.run("inspect a.json")
    terminal.forget()
    people = [f"p{i},{int(i % 12 > 0)}\n" for i in range(0, 200, 2)]
    Path("people.csv").write_text("id,correct\n" + "".join(people), encoding="utf-8")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.3 --human-labels people.csv --out a.json")
    terminal.run("inspect a.json")
    terminal.forget()
    Path("people.csv").write_text("id,correct\n" + "".join(people[:10]), encoding="utf-8")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.05 --human-labels people.csv --out a.json")
    terminal.files()
    same("commands/fit_ways.txt", terminal.text)


def test_a_threshold_for_each_segment(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 240)
    plants.labelled("more.jsonl", 120, "m")
    plants.labelled("bad.jsonl", 120, "b", hard=1)
    by = "fit r.jsonl -e semantic_entropy -a 0.2 --by group --min-labels 40"
    terminal.run(f"{by} --test-fraction 0.3 --out a.json")
    terminal.run("inspect a.json")
    terminal.show("a.json", "segments", "outcome")
    terminal.run("audit --records more.jsonl --artifact a.json")
    terminal.run("audit --records bad.jsonl --artifact a.json")
    terminal.run("audit --records bad.jsonl --artifact a.json --json")
    terminal.forget()
    terminal.run(f"{by} --segment-delta each --unknown-segment abstain --delta 0.2 --out a.json")
    terminal.run("inspect a.json")
    terminal.forget()
    terminal.run("fit more.jsonl -e semantic_entropy -a 0.1 --by group --out a.json")
    terminal.run("inspect a.json")
    same("commands/fit_segments.txt", terminal.text)


def test_several_fits_on_the_same_labels(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 200)
    terminal.run("fit r.jsonl -e auto -a 0.15 --rule certified --out auto.json")
    terminal.run("inspect auto.json")
    terminal.run("fit r.jsonl -e perplexity -a 0.15 --rule certified --strict --out strict.json")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.15 --rule certified --out second.json")
    terminal.run("inspect second.json")
    terminal.show_text("r.fits.jsonl")
    plants.labelled("two.jsonl", 200, "t")
    declared = "-a 0.15 --rule certified --declare semantic_entropy,graded_disagreement"
    terminal.run(f"fit two.jsonl -e graded_disagreement {declared} --out one.json")
    terminal.run(f"fit two.jsonl -e semantic_entropy {declared} --out two.json")
    terminal.run("inspect two.json")
    terminal.run("fit two.jsonl -e perplexity -a 0.15 --rule certified --out three.json")
    terminal.run(f"fit two.jsonl -e perplexity {declared} --out four.json")
    terminal.run("fit two.jsonl -e semantic_entropy -a 0.15 --declare semantic_entropy,sar --out five.json")
    same("commands/fit_again.txt", terminal.text)


def test_audits_and_drift(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 130)
    plants.labelled("fresh.jsonl", 100, "f")
    plants.labelled("few.jsonl", 30, "w")
    plants.labelled("bad.jsonl", 100, "b", hard=1)
    plants.unlabelled("open.jsonl", 60, "o")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.15 --out a.json")
    terminal.run("audit --records fresh.jsonl --artifact a.json --calibration r.jsonl")
    terminal.run("audit --records few.jsonl --artifact a.json --at-most 0.05 --level 0.1")
    terminal.run("audit --records bad.jsonl --artifact a.json")
    terminal.run("audit --records bad.jsonl --artifact a.json --anytime --json")
    terminal.run("audit --records fresh.jsonl --artifact a.json --anytime")
    terminal.run("audit --records fresh.jsonl --records few.jsonl --artifact a.json --json")
    terminal.run("audit --records open.jsonl --artifact a.json")
    terminal.run("audit --records r.jsonl --artifact a.json")
    terminal.run("audit --records fresh.jsonl --artifact a.json --calibration fresh.jsonl")
    terminal.run("drift fresh.jsonl --artifact a.json")
    terminal.run("drift bad.jsonl --artifact a.json")
    terminal.run("drift bad.jsonl --artifact a.json --delta 0.2 --json")
    terminal.run("drift few.jsonl --artifact a.json --json")
    plants.unscored("own.jsonl", 60, "u")
    terminal.run("audit --records own.jsonl --artifact a.json")
    terminal.run("drift own.jsonl --artifact a.json")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.001 --rule certified --out none.json")
    terminal.run("audit --records fresh.jsonl --artifact none.json")
    same("commands/audit.txt", terminal.text)


def test_comparisons_of_rules(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 100)
    plants.labelled("large.jsonl", 100, "l", name="large")
    terminal.run("evaluate r.jsonl -a 0.1 -a 0.2 -e semantic_entropy --splits 4 --csv t.csv --json t.json")
    terminal.show_text("t.csv")
    terminal.show("t.json") if Path("t.json").exists() else None
    terminal.run(
        "evaluate r.jsonl large.jsonl --apart -a 0.2 -e semantic_entropy -e perplexity --splits 3 --n-calibration 40 "
        "--n-calibration 60 --rule certified --rule acrc:min_accept=1 --delta 0.2 --seed 1"
    )
    terminal.run("evaluate r.jsonl -a 0.1 -e semantic_entropy --rule acrc --splits 2 --cluster-by-group")
    terminal.run("evaluate r.jsonl --table all --splits 2 -e semantic_entropy -a 0.2 --csv p.csv --json p.json")
    terminal.show_text("p.csv")
    terminal.show("p.json")
    terminal.run("evaluate r.jsonl large.jsonl --apart --table main --figure panels.png --splits 2 -a 0.1 -a 0.2")
    terminal.files()
    same("commands/evaluate.txt", terminal.text)


def test_plans_and_draws(terminal: Terminal) -> None:
    plants.labelled("pilot.jsonl", 120)
    plants.unlabelled("scored.jsonl", 300, "s")
    guess = "plan -a 0.1 --accuracy 0.75 --auroc 0.8 --repetitions 6"
    terminal.run(f"{guess} --n 100 --n 300 --json plan.json")
    terminal.show("plan.json")
    terminal.run(f"{guess} --acceptance 0.3 --rule certified --rule acrc --n 200 --seed 3 --delta 0.05")
    terminal.run("plan -a 0.02 --accuracy 0.6 --auroc 0.6 --repetitions 4 --n 50")
    terminal.run("plan -a 0.15 --pilot pilot.jsonl -e semantic_entropy --repetitions 5 --n 80")
    terminal.run(
        "plan -a 0.15 --pilot pilot.jsonl --records scored.jsonl -e semantic_entropy --repetitions 4 --labels 40"
    )
    terminal.run(
        "plan -a 0.2 --accuracy 0.8 --auroc 0.8 --records scored.jsonl -e semantic_entropy --repetitions 3 --labels 30 "
        "--labels 60 --rule acrc"
    )
    terminal.run("sample --records scored.jsonl -e semantic_entropy --n 50 --out all.jsonl")
    terminal.run("sample --records scored.jsonl -e semantic_entropy --reach 0.5 --looks 20,40")
    draw = "sample --records scored.jsonl -e perplexity --reach 0.5"
    terminal.run(f"{draw} --looks 20,40 --out low.jsonl --seed 2")
    terminal.run(f"{draw} --n 100 --fixed-beforehand")
    terminal.run("fit low.jsonl -e perplexity -a 0.1 --rule certified")
    terminal.run("label low.jsonl --rule exact")
    terminal.run("fit low.jsonl -e perplexity -a 0.3 --rule certified --look 1 --out look.json")
    terminal.run("fit low.jsonl -e perplexity -a 0.3 --rule certified --look 2 --out look.json")
    terminal.run("inspect look.json")
    terminal.run("report low.jsonl --artifact look.json --splits 0")
    terminal.run("sample --records scored.jsonl -e perplexity --reach 0.4 --n 20 --out again.jsonl")
    plants.labelled("fresh.jsonl", 150, "f")
    terminal.run("audit --records fresh.jsonl --artifact look.json")
    same("commands/plan.txt", terminal.text)


def test_scores_of_several(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 240)
    terminal.run("ensemble r.jsonl -m semantic_entropy,perplexity,primary_disagreement --out e.json")
    terminal.show("e.json", "fit")
    terminal.run("score e.rest.jsonl --estimator e.json")
    terminal.run("fit e.rest.jsonl --estimator e.json --alpha 0.15 --rule certified --out a.json")
    terminal.run("inspect a.json")
    terminal.run("fit r.jsonl --estimator e.json --alpha 0.15 --out b.json")
    terminal.run("ensemble r.jsonl -m semantic_entropy,graded_disagreement --train-fraction 0.4 --cluster-by-group")
    terminal.run("ensemble r.jsonl -m semantic_entropy,graded_disagreement --train-fraction 0.7 --cluster-by-group")
    terminal.run("two-stage r.jsonl --out t.json --weight 0.5")
    plants.unlabelled("many.jsonl", 420, "y")
    terminal.run("two-stage many.jsonl --out t.json --weight 0.5")
    terminal.run("score t.rest.jsonl --estimator t.json")
    terminal.files()
    same("commands/combine.txt", terminal.text)


def test_a_cascade(terminal: Terminal) -> None:
    plants.labelled("small.jsonl", 200)
    plants.labelled("large.jsonl", 200, hard=0.1, name="large")
    terminal.run("fit-cascade small.jsonl large.jsonl -a 0.1 -e semantic_entropy")
    terminal.show("cascade.json", "outcome", "stages")
    terminal.run(
        "fit-cascade small.jsonl large.jsonl -a 0.2 -e perplexity -e semantic_entropy --rule certified --out b.json"
    )
    terminal.run("fit-cascade small.jsonl large.jsonl -a 0.2 -e perplexity --rule certified --strict --out b.json")
    terminal.run("fit-cascade small.jsonl large.jsonl -a 0.001 -e semantic_entropy --rule certified --out c.json")
    terminal.run("fit-cascade small.jsonl large.jsonl -a 0.9 -e semantic_entropy --price 0.5 --out d.json")
    terminal.run("fit-cascade small.jsonl large.jsonl -a 0.3 -e semantic_entropy --cluster-by-group --out e.json")
    same("commands/cascade.txt", terminal.text)


def test_lists_for_reviewers_and_batches(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 150)
    plants.labelled("fresh.jsonl", 150, "f")
    plants.unlabelled("batch.jsonl", 40, "b")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.1 --out a.json")
    for options in (
        "--population all",
        "--population all --epsilon 0.001",
        "--epsilon 0.45 --calibration r.jsonl",
        "--epsilon 0.05",
        "--population all --epsilon 0.05 --delta 0.4",
    ):
        terminal.run(f"candidates fresh.jsonl --artifact a.json {options}")
    terminal.show("candidates.json")
    terminal.run("select r.jsonl batch.jsonl -a 0.1 -e semantic_entropy --out chosen.jsonl")
    terminal.show_text("chosen.jsonl", 5)
    terminal.run("select r.jsonl batch.jsonl -a 0.001 -e semantic_entropy")
    same("commands/candidates.txt", terminal.text)
