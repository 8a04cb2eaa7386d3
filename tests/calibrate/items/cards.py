"""Made-up records for tests of items: invoices as JSON whose fields err with known rates, five samples each."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.data.questions import Question, fingerprint
from calibrate.data.records import Record, RecordFile, RecordHeader, write_records
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan

RISK = {"number": 0.02, "total": 0.1, "buyer": 0.2, "due": 0.35}
"""Mean rate at which a field is wrong; that of an answer varies around it."""
SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "total": {"type": "number"},
        "buyer": {"type": "string"},
        "due": {"type": "string"},
    },
    "required": ["number", "total", "buyer", "due"],
}
N_SAMPLES = 5


def card(dice: random.Random, truth: dict[str, Any], ease: float) -> str:
    """An answer: each field right or not by its rate and the ease of the document."""
    answer = dict(truth)
    for name, risk in RISK.items():
        if dice.random() < min(0.95, risk * ease):
            answer[name] = dice.randrange(3) if name in ("number", "total") else f"no {dice.randrange(2)}"
    return json.dumps(answer)


def invoices(n: int = 240, seed: int = 0, *, prefix: str = "invoice") -> list[Record]:
    """Records with references; every 40th answer is not JSON."""
    dice = random.Random(seed)
    records = []
    for i in range(n):
        truth = {"number": 1000 + i, "total": 10.5 + i, "buyer": f"Buyer {i % 7}", "due": f"2026-01-{i % 28 + 1:02}"}
        ease = dice.choice((0.1, 0.5, 1.0, 2.5))
        texts = [card(dice, truth, ease) for _ in range(N_SAMPLES + 1)]
        primary = "I cannot read it." if i % 40 == 39 else texts[0]
        question = Question(id=f"{prefix}-{i}", question=f"Document {prefix} {i}", references=(json.dumps(truth),))
        drawn = SampleSet(
            question=question.question,
            primary=Sample(text=primary, finish_reason="stop"),
            samples=tuple(Sample(text=text, finish_reason="stop") for text in texts[1:]),
        )
        records.append(Record.of(question, drawn, turns="human"))
    return records


def record_file(path: Path, records: Sequence[Record], *, schema: bool = True) -> RecordFile:
    """Write a record file."""
    response = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": SCHEMA}}
    header = RecordHeader(
        created="2026-01-01T00:00:00+00:00",
        model=ModelIdentity(provider="scripted", model="invoices"),
        plan=SamplingPlan(n=N_SAMPLES, bindings=Bindings(response_format=response) if schema else None),
        prompt=PromptWrapping(),
        questions_name="invoices.jsonl",
        questions_sha256=fingerprint(record.to_question() for record in records),
        n_questions=len(records),
    )
    write_records(path, header, records)
    return RecordFile(path, header, tuple(records))
