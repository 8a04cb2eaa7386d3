"""Commands with `--parts`: fields of invoices and sentences, from records to an audit; all that they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guardrail.review import Decision, PartDecision, ReviewStore, by_parts
from tests.calibrate.parts.cards import invoices, record_file, sentences
from tests.golden.commands.terminal import Terminal
from tests.golden.shown import same


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder."""
    return Terminal(monkeypatch, tmp_path)


def test_fields_of_invoices(terminal: Terminal) -> None:
    record_file(Path("r.jsonl"), invoices(160))
    record_file(Path("fresh.jsonl"), invoices(60, seed=1, prefix="new"))
    terminal.run("score r.jsonl --parts json --field-judge /total=numeric --optional-field /due")
    terminal.run("label r.jsonl --parts json")
    terminal.run("fit r.jsonl --parts json -a 0.15 --test-fraction 0.3 --out a.json")
    terminal.run("inspect a.json")
    terminal.show("a.json", "estimator", "correctness", "outcome")
    terminal.run("report r.jsonl --artifact a.json --test a.test.jsonl --out page.html")
    terminal.run("score fresh.jsonl --parts json --field-judge /total=numeric --optional-field /due")
    terminal.run("label fresh.jsonl --parts json --out labelled.jsonl")
    terminal.run("audit --records labelled.jsonl --artifact a.json")
    terminal.run("audit --records labelled.jsonl --artifact a.json --at-most 0.01 --level 0.1")
    terminal.run("audit --records labelled.jsonl --artifact a.json --json")
    terminal.run("drift fresh.jsonl --artifact a.json")
    terminal.files()
    same("commands/parts_json.txt", terminal.text)


def test_rules_for_parts(terminal: Terminal) -> None:
    record_file(Path("r.jsonl"), invoices(120))
    terminal.run("score r.jsonl --parts json --cap 4")
    terminal.run("label r.jsonl --parts json")
    fit = "fit r.jsonl --parts json -a 0.2 --out a.json"
    for options in (
        "--rule clean_shown --delta 0.2",
        "--rule clean_answers:allowed=1",
        "--rule both:clean_alpha=0.4",
        "--rule wrong_share:per=answer",
        "--by-length 2,3 --segment-delta each",
        "--cap 2 --planned 200",
    ):
        terminal.run(f"{fit} {options}")
        terminal.run("inspect a.json")
        terminal.forget()
    terminal.run("fit r.jsonl --parts json -a 0.001 --out a.json")
    terminal.run("inspect a.json")
    terminal.forget()
    terminal.run("fit r.jsonl --parts json -a 0.1 --out a.json")
    terminal.run("fit r.jsonl --parts json -a 0.1 --rule clean_shown --out b.json")
    terminal.run("fit r.jsonl --parts json -a 0.1 --rule clean_answers --strict --out c.json")
    same("commands/parts_rules.txt", terminal.text)


def test_comparisons_and_plans_for_parts(terminal: Terminal) -> None:
    record_file(Path("r.jsonl"), invoices(100))
    terminal.run("score r.jsonl --parts json")
    terminal.run("label r.jsonl --parts json")
    terminal.run("evaluate r.jsonl --parts json -a 0.1 -a 0.2 --splits 3 --csv t.csv --json t.json")
    terminal.show_text("t.csv", 4)
    terminal.run("evaluate r.jsonl --parts json -a 0.2 --splits 2 --rule clean_shown --n-calibration 60 --cut 0.3")
    terminal.run("plan -a 0.2 --pilot r.jsonl --parts json --n 60 --repetitions 3 --json plan.json")
    terminal.show("plan.json")
    terminal.run("plan -a 0.2 --pilot r.jsonl --parts json --n 60 --repetitions 2 --rule both --delta 0.2 --cut 0.5")
    same("commands/parts_plan.txt", terminal.text)


def test_sentences_that_people_judge(terminal: Terminal, new_store: Path) -> None:
    record_file(Path("r.jsonl"), sentences(4), schema=False)
    terminal.run("score r.jsonl --parts sentences --cap 4")
    record_file(Path("i.jsonl"), invoices(3))
    terminal.run("score i.jsonl --parts json")
    terminal.run("label i.jsonl --parts json --interactive", typed="y\nn\nu\nx\ns\ny\ny\ny\nn\nq\n")
    terminal.run("label i.jsonl --parts json --interactive --cut 0.5", typed="y\n" * 12)
    terminal.show_text("i.labels.jsonl")
    terminal.run("label i.jsonl --parts json --labels i.labels.jsonl --out done.jsonl")
    Path("i.labels.jsonl").unlink()
    Path("reviews.db").write_bytes(new_store.read_bytes())
    terminal.run("label i.jsonl --parts json --review-store reviews.db --cut 0.5")
    with ReviewStore("reviews.db", clock=lambda: 1_800_000_000.0) as store:
        for action in ("approve", "reject"):
            lease = store.claim("ada")
            assert lease is not None
            content = lease.item.content
            parts = [
                PartDecision(place=part.place, action="approve" if i % 2 else "reject")
                for i, part in enumerate(content.parts)
            ]
            store.decide(lease, Decision(action="reject") if action == "reject" else by_parts(content, parts))
    terminal.run("label i.jsonl --parts json --review-store reviews.db --cut 0.5")
    terminal.show_text("i.labels.jsonl")
    terminal.run("label i.jsonl --parts json --cut 0.5")
    same("commands/parts_by_people.txt", terminal.text)


def test_documents_in_tables(terminal: Terminal) -> None:
    rows = []
    for record in invoices(12):
        assert record.drawn is not None
        assert record.drawn.primary is not None
        texts = {f"s{j}": sample.text for j, sample in enumerate(record.drawn.samples)}
        rows.append({"ask": record.question, "gold": record.references[0], "out": record.drawn.primary.text, **texts})
    Path("cards.json").write_text(json.dumps(rows), encoding="utf-8")
    samples = ",".join(f"s{j}" for j in range(5))
    columns = f"--map question=ask --map references=gold --map samples={samples} --primary out"
    terminal.run(f"import cards.json --parts json {columns}")
    terminal.run("score records.jsonl --parts json")
    terminal.run("label records.jsonl --parts json")
    same("commands/parts_import.txt", terminal.text)
