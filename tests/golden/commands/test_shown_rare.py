"""Rare states of `calibrate`: refuted promises, torn and undecided records, repeated questions, small judges."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.questions import Question
from calibrate.data.records import Record, write_records
from calibrate.report import sentences
from guardrail.artifact import CalibrationArtifact
from guardrail.specs import ModelIdentity
from guardrail.testing import ScriptedChat
from guardrail.types import OptionScores, Sample, SampleSet, SamplingPlan
from tests.calibrate.parts.cards import invoices, record_file
from tests.golden.commands import plants
from tests.golden.commands.terminal import Terminal
from tests.golden.shown import same

ANSWERS = {
    record.question: [record.drawn.primary.text, *(sample.text for sample in record.drawn.samples)]
    for record in invoices(70)
    if record.drawn is not None and record.drawn.primary is not None
}
INVOICES = ScriptedChat(script=ANSWERS, name_of_model="invoices")
YES = ScriptedChat(default=["yes"])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder."""
    return Terminal(monkeypatch, tmp_path)


def labelled(name: str, n: int, wrong: int, *, of: str = "r.jsonl") -> None:
    """Write a file of labels: every so many answers are wrong."""
    ids = [json.loads(line)["id"] for line in Path(of).read_text(encoding="utf-8").splitlines()[1 : n + 1]]
    rows = [json.dumps({"id": each, "correct": i % wrong > 0}) + "\n" for i, each in enumerate(ids)]
    Path(name).write_text("".join(rows), encoding="utf-8")


def test_refuted_promises(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 150)
    plants.labelled("bad.jsonl", 60, "b", hard=1)
    plants.labelled("fresh.jsonl", 60, "f")
    fit = "fit r.jsonl -e semantic_entropy -a 0.1 --out a.json"
    terminal.run(f"{fit} --test bad.jsonl")
    terminal.run("report r.jsonl --artifact a.json --test bad.jsonl --splits 0")
    terminal.run(f"{fit} --test fresh.jsonl")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.1 --test-fraction 0.4 --seed 3 --out b.json")
    terminal.run("report r.jsonl --artifact b.json --splits 0")
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.3 --rule certified --out c.json")
    terminal.run("audit --records fresh.jsonl --artifact c.json")
    plants.unscored("own.jsonl", 60, "n")
    terminal.run("audit --records own.jsonl --artifact a.json --at-most 0.02")
    Path("r.jsonl").rename("elsewhere.jsonl")
    terminal.run("audit --records bad.jsonl --artifact a.json")
    terminal.run("audit --records bad.jsonl --artifact c.json --at-most 0.2 --anytime")
    terminal.run("fit elsewhere.jsonl -e semantic_entropy -a 0.25 --by group --min-labels 40 --out by.json")
    terminal.run("audit --records bad.jsonl --artifact by.json")
    plants.labelled("good.jsonl", 150, "g", hard=0.1)
    terminal.run("audit --records good.jsonl --artifact by.json")
    labels = [f"{record.id},{int(i % 3 > 0)}\n" for i, record in enumerate(plants.population(60, "f").records)]
    Path("others.csv").write_text("id,correct\n" + "".join(labels), encoding="utf-8")
    terminal.run("label fresh.jsonl --labels others.csv --out others.jsonl")
    terminal.run("audit --records others.jsonl --artifact a.json")
    same("commands/refuted.txt", terminal.text)


def test_records_that_are_not_whole(terminal: Terminal) -> None:
    plants.unscored("own.jsonl", 90)
    terminal.run("score own.jsonl -e semantic_entropy -e sequence_nll")
    terminal.run("label own.jsonl")
    terminal.run("fit own.jsonl -e sequence_nll -a 0.2 --out a.json")
    terminal.run("inspect a.json")
    terminal.run("evaluate own.jsonl -e sequence_nll --rule acrc -a 0.2 --splits 2")
    file = plants.population(90)
    repeated = [record.model_copy(update={"id": f"again {record.id}"}) for record in file.records[:30]]
    plants.write("again.jsonl", repeated, file.header)
    plants.labelled("r.jsonl", 90)
    terminal.run("fit r.jsonl again.jsonl -e semantic_entropy -a 0.2 --out b.json")
    terminal.run("fit r.jsonl again.jsonl -e semantic_entropy -a 0.2 --count-repeats --out c.json")
    terminal.run("evaluate r.jsonl again.jsonl -e semantic_entropy --rule acrc -a 0.2 --splits 2")
    terminal.run("select r.jsonl again.jsonl -a 0.1 -e semantic_entropy")
    terminal.run("score r.jsonl again.jsonl -e lexical_similarity --out both.jsonl")
    waiting = [
        record.model_copy(update={"correct": None, "label_detail": ""}) if i % 3 == 0 else record
        for i, record in enumerate(file.records)
    ]
    plants.write("waiting.jsonl", waiting, file.header)
    terminal.run("fit waiting.jsonl -e semantic_entropy -a 0.2 --out d.json")
    terminal.run("inspect d.json")
    terminal.run("select waiting.jsonl again.jsonl -a 0.1 -e semantic_entropy")
    write_records(Path("half.jsonl"), file.header.model_copy(update={"n_questions": 200}), file.records)
    terminal.run("fit half.jsonl -e semantic_entropy -a 0.2 --out e.json")
    same("commands/not_whole.txt", terminal.text)


def test_draws_that_are_labelled_out_of_order(terminal: Terminal) -> None:
    plants.unlabelled("scored.jsonl", 200)
    terminal.run("sample --records scored.jsonl -e perplexity --reach 0.6 --n 30 --out draw.jsonl")
    labelled("labels.jsonl", 30, 9, of="draw.jsonl")
    rows = Path("labels.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("labels.jsonl").write_text("".join(rows[:4] + rows[9:]), encoding="utf-8")
    terminal.run("label draw.jsonl --labels labels.jsonl --out gap.jsonl")
    terminal.run("fit gap.jsonl -e perplexity -a 0.4 --rule certified --out a.json")
    Path("labels.jsonl").write_text("".join(rows[:25]), encoding="utf-8")
    terminal.run("label draw.jsonl --labels labels.jsonl --out first.jsonl")
    terminal.run("fit first.jsonl -e perplexity -a 0.4 --rule certified --out b.json")
    terminal.run("fit first.jsonl -e perplexity -a 0.4 --rule certified --test-fraction 0.3 --out c.json")
    file = plants.population(200)
    lines = Path("first.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("short.jsonl").write_text("".join(lines[:-3]), encoding="utf-8")
    terminal.run("fit short.jsonl -e perplexity -a 0.4 --rule certified --out d.json")
    Path("swapped.jsonl").write_text("".join([lines[0], lines[2], lines[1], *lines[3:]]), encoding="utf-8")
    terminal.run("fit swapped.jsonl -e perplexity -a 0.4 --rule certified --out d.json")
    measured = [record for record in file.records if (record.scores["perplexity"].value or 0) < 0.3]
    some = [
        record.model_copy(update={} if record in measured else {"correct": None, "label_detail": ""})
        for record in file.records
    ]
    plants.write("some.jsonl", some, file.header)
    terminal.run("fit some.jsonl -e perplexity -a 0.2 --out e.json")
    same("commands/draws.txt", terminal.text)


def options(i: int) -> Record:
    """A question with options, whose answer is option A or B with a likelihood."""
    right = "AB"[i % 2]
    sure = 0.5 + (i % 10) / 21
    answer = right if i % 7 else "BA"[i % 2]
    shares = (sure, 1 - sure) if answer == "A" else (1 - sure, sure)
    question = Question(id=f"o{i}", question=f"Which is {i}?", references=(right,), options={"A": "even", "B": "odd"})
    sample = Sample(text=answer, tokens=(answer,), logprobs=(-0.1,), finish_reason="stop")
    likelihoods = OptionScores(labels=("A", "B"), loglikelihoods=tuple(map(math.log, shares)))
    drawn = SampleSet(question=question.question, primary=sample, samples=(), options=likelihoods)
    return Record.of(question, drawn, turns="human")


def test_questions_with_options(terminal: Terminal) -> None:
    records = [options(i) for i in range(80)]
    plan = SamplingPlan(n=0, options=("A", "B"), cut_off="abstain")
    header = plants.population(6).header.model_copy(update={"plan": plan, "estimators": {}, "correctness": None})
    plants.write("r.jsonl", records, header)
    terminal.run("score r.jsonl")
    terminal.run("label r.jsonl --interactive --limit 2", typed="y\n")
    terminal.run("label r.jsonl")
    terminal.run("fit r.jsonl -a 0.2 --out a.json")
    terminal.run("inspect a.json")
    terminal.run("evaluate r.jsonl -a 0.2 --rule acrc --splits 2")
    same("commands/options.txt", terminal.text)


def test_calls_beside_acceptance(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 340)
    terminal.run("evaluate r.jsonl -a 0.2 --rule acrc -e semantic_entropy --splits 2 --rest rest.jsonl")
    same("commands/calls.txt", terminal.text)


def test_judges_that_are_models(terminal: Terminal) -> None:
    plants.unlabelled("r.jsonl", 6)
    yes = "python:tests.golden.commands.test_shown_rare:YES"
    terminal.run(f"score r.jsonl -e discrete_semantic_entropy --judge chat(model={yes})")
    terminal.run(f"score r.jsonl -e discrete_semantic_entropy --judge chat(model={yes}) --pair-cache pairs.sqlite")
    terminal.run(f"label r.jsonl --judge-model {yes}")
    terminal.run(f"label r.jsonl --rule chat_judge(model={yes})")
    terminal.run("fit r.jsonl -e discrete_semantic_entropy -a 0.3 --out a.json")
    plants.labelled("fresh.jsonl", 12, "f")
    terminal.run(f"label fresh.jsonl --judge-model {yes} --out judged.jsonl")
    terminal.run(f"candidates judged.jsonl --artifact a.json --population all --judge-model {yes} --epsilon 0.4")
    terminal.files()
    same("commands/model_judges.txt", terminal.text)


def test_a_run_by_parts(terminal: Terminal) -> None:
    rows = [{"id": each.id, "question": each.question, "references": list(each.references)} for each in invoices(70)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = f"run --questions q.jsonl --model python:{__name__}:INVOICES --n 5 --parts json --cap 4"
    terminal.run(f"{run} --max-concurrency 1 --alpha 0.3 --out one")
    terminal.run(f"{run} --max-concurrency 1 --alpha 0.001 --delta 0.2 --rule clean_shown --out one")
    record_file(Path("r.jsonl"), invoices(90))
    terminal.run("score r.jsonl --parts json")
    terminal.run("label r.jsonl --parts json")
    terminal.run("fit r.jsonl --parts json -a 0.3 --cap 2 --delta 0.2 --by-length 1,3 --out a.json")
    terminal.run("report r.jsonl --artifact a.json --out page.html")
    record_file(Path("bad.jsonl"), [spoiled(record) for record in invoices(60, seed=2, prefix="bad")])
    terminal.run("score bad.jsonl --parts json")
    terminal.run("label bad.jsonl --parts json")
    terminal.run("fit r.jsonl --parts json -a 0.3 --test bad.jsonl --out b.json")
    terminal.run("report r.jsonl --artifact b.json --test bad.jsonl --out page.html")
    terminal.run("audit --records bad.jsonl --artifact b.json --json")
    same("commands/run_by_parts.txt", terminal.text)


def spoiled(record: Record) -> Record:
    """A record whose reference differs from its answer in every field."""
    return record.model_copy(update={"references": ('{"number": 1, "total": 2.5, "buyer": "x", "due": "y"}',)})


def test_files_that_cannot_be_written(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    plants.labelled("r.jsonl", 60)
    Path("folder").mkdir()
    for line in (
        "fit r.jsonl -e semantic_entropy -a 0.2 --out folder",
        "fit r.jsonl -e semantic_entropy -a 0.2 --out r.jsonl/a.json",
        "sample --records r.jsonl --n 5 --out none/drawn.jsonl",
        "evaluate r.jsonl -e perplexity --rule acrc -a 0.2 --splits 2 --csv r.jsonl/t.csv",
        "report r.jsonl --artifact folder",
    ):
        terminal.refused(line)

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrate.cli.plan.simulate", stop)
    terminal.refused("plan -a 0.1 --accuracy 0.7 --auroc 0.8")
    Path("r.fits.jsonl").write_text('{"broken": 1}\n', encoding="utf-8")
    terminal.refused("fit r.jsonl -e semantic_entropy -a 0.2")
    Path("r.fits.jsonl").write_text("not JSON\n", encoding="utf-8")
    terminal.refused("fit r.jsonl -e semantic_entropy -a 0.2")
    same("commands/unwritable.txt", terminal.text)


def test_sentences_about_changed_artifacts(terminal: Terminal) -> None:
    plants.labelled("r.jsonl", 90)
    terminal.run("fit r.jsonl -e semantic_entropy -a 0.1 --out a.json")
    terminal.lines.clear()
    made = CalibrationArtifact.load("a.json")
    data, outcome = made.data, made.outcome
    diagnostics = outcome.diagnostics
    changes: dict[str, dict[str, Any]] = {
        "undecided, given": {
            "data": data.model_copy(update={"n_undecided": 4}),
            "correctness": made.correctness.model_copy(update={"name": "given"}),
        },
        "undecided": {"data": data.model_copy(update={"n_undecided": 4})},
        "all undecided": {"data": data.model_copy(update={"n_undecided": data.n_used})},
        "unmeasured": {"data": data.model_copy(update={"n_unmeasured": 12, "n_unlabelled": 3})},
        "cut off": {"data": data.model_copy(update={"n_cut_off": 9, "n_questions": 90})},
        "cut off, measured": {
            "data": data.model_copy(update={"n_cut_off": 9, "n_questions": 90}),
            "plan": made.plan.model_copy(update={"cut_off": "measure"}),
        },
        "imported": {"model": ModelIdentity(provider="imported", model="m")},
        "revision": {"model": ModelIdentity(provider="local", model="m", revision="0123456789abcdef0123456789")},
        "poor": {
            "outcome": outcome.model_copy(
                update={"diagnostics": diagnostics.model_copy(update={"base_error": 0.6, "auroc": 0.55})}
            )
        },
        "tied": {"outcome": outcome.model_copy(update={"tie_block": 40})},
        "majority": {"plan": made.plan.model_copy(update={"primary": "majority"})},
        "unanimous": {"plan": made.plan.model_copy(update={"unanimous_at": 3})},
        "no samples": {"plan": made.plan.model_copy(update={"n": 0})},
        "system": {"prompt": made.prompt.model_copy(update={"system": "Be brief."})},
    }
    for name, update in changes.items():
        changed = made.model_copy(update=update)
        text = sentences.verdict_text(changed)
        terminal.say(f"# {name}\n" + "\n".join([text.verdict.title, *text.paragraphs, *text.promises, *text.steps]))
        before = dict(sentences.facts(made))
        facts = [f"{key}: {value}" for key, value in sentences.facts(changed) if before.get(key) != value]
        terminal.say("\n".join([*facts, ""]))
    for n_left, n_shown in ((0, 0), (3, 0), (0, 4), (3, 4)):
        terminal.say(f"not fitted on {n_left}, shown {n_shown}: {sentences.not_fitted_on(n_left, n_shown)}")
    same("commands/sentences.txt", terminal.text)
