"""Commands that people's labels and decisions go through: label, from-reviews, steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from langchain_core.messages import HumanMessage

from calibrate.data.questions import Question
from calibrate.data.records import Record, RecordHeader
from guardrail.prompting import PromptWrapping
from guardrail.review import Candidate, Content, Decision, ReviewStore, audit_sample
from guardrail.review.monitors.store import Monitors
from guardrail.specs import ModelIdentity
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan, ToolCall
from tests.calibrate.test_reviews import ARTIFACT, artifact_of, decide, fill, verdict_of
from tests.golden.commands import plants
from tests.golden.commands.terminal import Terminal
from tests.golden.shown import same


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder."""
    return Terminal(monkeypatch, tmp_path)


@pytest.fixture
def store(terminal: Terminal, new_store: Path) -> Iterator[ReviewStore]:
    """The store reviews.db in the folder; its clock moves by a second with each call."""
    now = iter(range(1_800_000_000, 1_900_000_000))
    Path("reviews.db").write_bytes(new_store.read_bytes())
    with ReviewStore("reviews.db", clock=lambda: float(next(now))) as opened:
        yield opened


def test_labels_by_hand(terminal: Terminal) -> None:
    plants.unlabelled("r.jsonl", 6, references=False)
    terminal.run("label r.jsonl --rule exact")
    terminal.run("label r.jsonl --interactive", typed="y\nn\nq\n")
    terminal.run("label r.jsonl --interactive --limit 4", typed="u\nx\ns\ny\ny\n")
    terminal.run("label r.jsonl --interactive --order file", typed="")
    terminal.run("label r.jsonl --labels r.labels.jsonl")
    terminal.show_text("r.labels.jsonl")
    Path("people.csv").write_text("id,correct\np0,1\np1,no\np2,TRUE\np3,wrong\np4,0\n", encoding="utf-8")
    terminal.run("label r.jsonl --labels people.csv --out people.jsonl")
    terminal.run("fit people.jsonl -e semantic_entropy -a 0.2")
    same("commands/label_by_hand.txt", terminal.text)


def test_labels_of_undecided_answers(terminal: Terminal) -> None:
    plants.unlabelled("r.jsonl", 40)
    terminal.run("label r.jsonl")
    terminal.run("label r.jsonl --undecided --interactive", typed="n\ny\nq\n")
    terminal.run("label r.jsonl --undecided --labels r.labels.jsonl")
    terminal.run("label r.jsonl --undecided --interactive --order random --limit 1", typed="n\n")
    terminal.run("audit --records r.jsonl")
    terminal.run(
        "label r.jsonl --undecided --interactive --until certified --alpha 0.3 --acceptance 0.3 -e semantic_entropy",
        typed="y\n" * 9,
    )
    terminal.run("label r.jsonl --undecided --interactive", typed="n\n" * 9)
    terminal.run("label r.jsonl --undecided --interactive")
    same("commands/label_undecided.txt", terminal.text)


def test_labels_until_enough_is_certified(terminal: Terminal) -> None:
    plants.unlabelled("scored.jsonl", 200)
    terminal.run("sample --records scored.jsonl -e perplexity --reach 0.8 --looks 20,40 --out draw.jsonl")
    until = "label draw.jsonl -e perplexity --until certified"
    terminal.run(f"{until} --interactive --alpha 0.3 --acceptance 0.1 --delta 0.2", typed="y\ny\n")
    terminal.run("label draw.jsonl --labels draw.labels.jsonl --until certified --alpha 0.2")
    Path("draw.labels.jsonl").unlink()
    ids = [json.loads(line)["id"] for line in Path("draw.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    rows = [json.dumps({"id": name, "correct": i % 2 == 0}) + "\n" for i, name in enumerate(ids)]
    Path("some.jsonl").write_text("".join(rows[:30]), encoding="utf-8")
    terminal.run(f"{until} --labels some.jsonl --alpha 0.2 --acceptance 0.5")
    Path("all.jsonl").write_text("".join(rows), encoding="utf-8")
    terminal.run(f"{until} --labels all.jsonl --alpha 0.2 --acceptance 0.5")
    good = [json.dumps({"id": name, "correct": i % 19 > 0}) + "\n" for i, name in enumerate(ids)]
    Path("good.jsonl").write_text("".join(good), encoding="utf-8")
    terminal.run(f"{until} --labels good.jsonl --alpha 0.4 --acceptance 0.1")
    same("commands/label_until.txt", terminal.text)


def test_labels_on_the_review_page(terminal: Terminal, store: ReviewStore) -> None:
    plants.unlabelled("r.jsonl", 5)
    terminal.run("label r.jsonl --review-store reviews.db")
    first = store.items()[0].content.model_dump(mode="json")
    terminal.say(json.dumps({name: value for name, value in first.items() if name != "verdict"}, indent=1) + "\n")
    for action in ("approve", "edit", "reject", "approve"):
        lease = store.claim("ada")
        assert lease is not None
        store.decide(
            lease, Decision(action=action, candidate=lease.item.content.candidate if action == "edit" else None)
        )
    terminal.run("label r.jsonl --review-store reviews.db")
    decide(store, lambda content: "reject")
    terminal.run("label r.jsonl --review-store reviews.db")
    terminal.show_text("r.labels.jsonl")
    same("commands/label_on_page.txt", terminal.text)


def test_what_reviews_teach(terminal: Terminal, store: ReviewStore) -> None:
    fill(store, 100)
    ARTIFACT.save("a.json")
    command = "from-reviews reviews.db --artifact a.json"
    terminal.run(f"{command} --monitor risk")
    terminal.run(f"{command} --monitor risk --out b.json --records r.jsonl")
    terminal.run("inspect b.json")
    terminal.show("b.json", "correctness", "lineage", "selection", "outcome")
    terminal.run(f"{command} --out c.json --alpha 0.2 --rule certified --delta 0.2 --test-fraction 0.2 --seed 1")
    terminal.run(f"{command} --out d.json --alpha 0.25 --strict")
    terminal.run(f"{command} --out e.json --looks 20,40 --look 1 --rule certified")
    fill(store, 25, seed=1, artifact=artifact_of(threshold=0.2))
    terminal.run(command)
    artifact_of(threshold=0.2).save("earlier.json")
    terminal.run(f"{command} --earlier earlier.json")
    terminal.run(f"{command} --ignore-others --since 2030-01-01")
    same("commands/from_reviews.txt", terminal.text)


def test_reviews_that_wait(terminal: Terminal, store: ReviewStore) -> None:
    ARTIFACT.save("a.json")
    command = "from-reviews reviews.db --artifact a.json"
    terminal.run(f"{command} --monitor risk")
    sample = audit_sample(store, 1.0)
    for i in range(12):
        sample(verdict_of(f"{i}", 0.1), [HumanMessage(f"{i}?")])
    terminal.run(command)
    hard = store.claim("ada")
    assert hard is not None
    decide(store, lambda content: "reject")
    terminal.run(f"{command} --monitor risk")
    terminal.run(f"{command} --missing wrong")
    terminal.run(f"{command} --missing leave-out")
    terminal.run(f"{command} --out b.json")
    terminal.run(f"{command} --monitor risk --missing wrong")
    store.decide(hard, Decision(action="approve"))
    terminal.run(f"{command} --monitor risk --min-audit-rate 0.5")
    Monitors(store).acknowledge("risk", who="ada")
    sample(verdict_of("late", 0.1), [HumanMessage("late?")])
    decide(store, lambda content: "respond" if "respond" in content.allowed else "edit")
    terminal.run(f"{command} --monitor risk --respond leave-out")
    Monitors(store).risk("other", 0.3, min_audit_rate=0.5)
    terminal.run(f"{command} --monitor other")
    same("commands/reviews_waiting.txt", terminal.text)


CALLS = (("bob", 40), ("eve", 7), ("ann", 12), ("joe", 5), ("kim", 90), ("lee", 3))


PARAMETERS = {"type": "object", "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}}}


def call(to: str, amount: int) -> ToolCall:
    """A transfer."""
    return ToolCall(name="transfer", arguments={"to": to, "amount": amount})


def agents_records() -> list[Record]:
    """What a collecting agent records: the conversation, the call, and five samples of it."""
    records = []
    for i, (to, amount) in enumerate(CALLS):
        samples = [Sample(text="", tool_calls=(call(to, amount + i % 2 * (j % 2)),)) for j in range(5)]
        text = f"send {amount} to {to}"
        drawn = SampleSet(
            question=text, primary=Sample(text="", tool_calls=(call(to, amount),)), samples=tuple(samples)
        )
        record = Record.of(Question(id=f"m{i}", question=text, group=f"thread {i // 2}"), drawn, turns="human")
        records.append(record.model_copy(update={"messages": ({"role": "user", "content": text},)}))
    return records


def test_steps_of_decisions(terminal: Terminal, store: ReviewStore) -> None:
    tool = {"type": "function", "function": {"name": "transfer", "parameters": PARAMETERS}}
    header = RecordHeader(
        created="2026-01-01T00:00:00+00:00",
        model=ModelIdentity(provider="scripted", model="bank"),
        plan=SamplingPlan(n=5, bindings=Bindings(tools=(tool,)), cut_off="abstain"),
        prompt=PromptWrapping(system="You are the bank's assistant."),
        questions_name="agent",
        questions_sha256="0" * 64,
        n_questions=0,
    )
    records = agents_records()
    plants.write("agent.jsonl", records, header)
    command = "steps reviews.db --records agent.jsonl"
    terminal.run(command)
    for record in records[:5]:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        store.enqueue(
            Content(
                question=record.question,
                kind="tool_call",
                candidate=Candidate.of(record.drawn.primary),
                allowed=("approve", "edit", "reject", "respond"),
                verdict={"record": record.id},
            ),
            key=record.id,
        )
    store.enqueue(Content(question="another", kind="answer", allowed=("reject",)), key="another")
    terminal.run(command)
    for action in ("approve", "edit", "reject", "respond"):
        lease = store.claim("ada")
        assert lease is not None
        candidate = Candidate(text="", tool_calls=(call("eve", 8),)) if action == "edit" else None
        text = "Paid in cash." if action == "respond" else None
        store.decide(lease, Decision(action=action, candidate=candidate, text=text))
    terminal.run(command)
    terminal.show_text("steps.jsonl")
    terminal.run(f"{command} --missing wrong --compare transfer=to --out to.jsonl")
    terminal.run(f"{command} --respond leave-out --missing leave-out --rule tool_call(numbers=true) --out left.jsonl")
    terminal.show_text("left.jsonl")
    terminal.run(f"{command} --compare transfer")
    terminal.run("steps reviews.db")
    terminal.run("steps none.db --records agent.jsonl")
    terminal.run(f"{command} --model python:tests.golden.commands.plants:model")
    terminal.run("steps reviews.db --model python:tests.golden.commands.plants:model")
    terminal.files()
    same("commands/steps.txt", terminal.text)
