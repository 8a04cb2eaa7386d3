"""`calibrate run`, `import` and `identify`: all that they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guardrail import scorer
from guardrail.testing import ScriptedChat
from tests.golden.commands import plants
from tests.golden.commands.terminal import Terminal
from tests.golden.shown import same

MODEL = "python:tests.golden.commands.plants:model"
PEOPLE = ScriptedChat(
    script={question.question: [f"It is {question.references[0]}."] for question in plants.questions(40)}
)
"""A model that answers in sentences, and says the same in each sample."""


@scorer(version=1, higher="certain", calls=2)
def length(answer: str) -> float:
    """A score of the answer's length."""
    return 1 / (1 + len(answer))


def known() -> ScriptedChat:
    """A model that knows two sets of questions."""
    scripts = [plants.model(45).script, plants.model(30, "q").script]
    return ScriptedChat(script={**scripts[0], **scripts[1]}, probability=0.5)


def judge() -> ScriptedChat:
    """A model that calls every answer right."""
    return ScriptedChat(default=["yes"])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder."""
    return Terminal(monkeypatch, tmp_path)


def test_everything_at_once(terminal: Terminal) -> None:
    plants.write_questions("q.jsonl", 40)
    run = f"run --questions q.jsonl --model {MODEL} --max-concurrency 1 --n 2 --correctness exact"
    terminal.run(f"{run} --alpha 0.2 --splits 2 --price 0.001 --out one")
    terminal.run(f"{run} --alpha 0.2 --splits 0 --out one")
    terminal.run(f"{run} --alpha 0.001 --rule certified --splits 0 --out one --delta 0.2 --strict")
    Path("settings.yaml").write_text(
        f"questions: q.jsonl\nmodel: {MODEL}\nout: two\nestimator: lexical_similarity\ncalls: 3\nmax_concurrency: 1\n"
        "test_fraction: 0\nsplits: 0\n",
        encoding="utf-8",
    )
    terminal.run("run settings.yaml --alpha 0.3 --threshold 0.5 --cluster-by-group")
    terminal.files()
    for folder in ("one", "two"):
        page = Path(f"{folder}/report.html").read_text(encoding="utf-8")
        terminal.say(page[page.index("<h2>How to reproduce") : page.index("</main>")])
    same("commands/run.txt", terminal.text)


def test_a_run_with_a_judge_a_scorer_or_parts(terminal: Terminal) -> None:
    plants.write_questions("q.jsonl", 45)
    plants.write_questions("t.jsonl", 20, "q")
    here = "python:tests.golden.commands.test_shown_run"
    run = "run --questions q.jsonl --max-concurrency 1 --splits 0 --alpha 0.3"
    terminal.run(
        f"{run} --model {here}:known --n 2 --out a --test-questions t.jsonl --judge-model {here}:judge --price 0.5"
    )
    terminal.run(f"{run} --model {MODEL} --out b --scorer {__name__}:length --correctness exact")
    terminal.run(
        f"{run} --model {MODEL} --out c --n 2 --estimator auto --share 0.7 --test-fraction 0 --correctness exact"
    )
    terminal.run(f"{run} --model {here}:PEOPLE --out d --n 2 --correctness exact")
    terminal.run(f"{run} --model {here}:PEOPLE --out e --n 2 --allow-identical-samples --correctness exact")
    terminal.run(
        f"{run} --model {here}:PEOPLE --out e --n 2 --allow-identical-samples --correctness contains "
        "--estimator graded_disagreement"
    )
    run = "run --questions q.jsonl --max-concurrency 1 --alpha 0.3"
    terminal.run(f"{run} --model {MODEL} --out f --n 2 --parts sentences --cap 2 --test-fraction 0.2")
    terminal.files()
    same("commands/run_ways.txt", terminal.text)


def test_imported_answers(terminal: Terminal) -> None:
    rows = []
    for i, record in enumerate(plants.population(60).records):
        assert record.drawn is not None
        assert record.drawn.primary is not None
        rows.append(
            {
                "prompt": record.question,
                "gold": record.references[0],
                "sure": round(1 - (record.scores["graded_disagreement"].value or 0) / 2, 3),
                "doubt": round(1 - (record.scores["graded_disagreement"].value or 0) / 2, 3),
                "ok": "yes" if record.correct else "unparseable" if i % 9 == 0 else "no",
                **{f"s{j}": sample.text for j, sample in enumerate(record.drawn.samples)},
            }
        )
    Path("graded.json").write_text(json.dumps(rows), encoding="utf-8")
    samples = ",".join(f"s{j}" for j in range(5))
    base = "import graded.json --map question=prompt"
    terminal.run(f"{base} --map references=gold --map samples={samples} --out samples.jsonl")
    terminal.run(f"identify samples.jsonl --model {MODEL}")
    terminal.run("score samples.jsonl -e semantic_entropy -e graded_disagreement")
    terminal.run("score samples.jsonl -e discrete_semantic_entropy -e graded_disagreement")
    terminal.run("label samples.jsonl --rule exact")
    terminal.run("fit samples.jsonl --alpha 0.2")
    scores = "--map confidence=stated:sure --map score=s:doubt --unit probability --map correct=ok"
    terminal.run(f"{base} {scores} --other-labels wrong --out graded.jsonl --model m --provider openai")
    terminal.run("fit graded.jsonl --estimator stated --alpha 0.2 --out a.json")
    terminal.run("inspect a.json")
    terminal.run("report graded.jsonl --artifact a.json --splits 0")
    rows[3]["prompt"], rows[7]["ok"] = "", "maybe not"
    Path("graded.json").write_text(json.dumps(rows), encoding="utf-8")
    terminal.run(f"{base} --map confidence=stated:sure --map correct=ok --other-labels wrong --out bad.jsonl")
    terminal.run(
        f"{base} --map confidence=stated:sure --map correct=ok --other-labels wrong --out bad.jsonl --skip-bad"
    )
    terminal.show_text("bad.skipped.jsonl")
    terminal.run(
        f"{base} --map confidence=stated:sure --map correct=ok --other-labels wrong --out bad.jsonl --replace "
        "--skip-bad --max-bad 0.01"
    )
    same("commands/import.txt", terminal.text)
