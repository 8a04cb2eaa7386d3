"""`python -m examples.extraction`: invoices into fields, with at most 5 % of the fields that are given out wrong.

1. 300 labelled invoices: each field of the model's answer is compared with the right one, and a threshold is certified.
2. New invoices through the guard: fields that are certain enough are given out, the others wait for a person. Half of
   the invoices are audited: there a person decides every field.
3. The person decides field by field on the review page (here a script does, which knows the right fields).
4. Another fit on these decisions, as `calibrate learn` does.

Everything but the model and the person is real: the endpoint, the guard, the queue, the page's decisions.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from langchain_core.messages import BaseMessage
from pydantic import SecretStr
from rich.table import Table

from calibrate import Question, RecordFile, collect_records, read_records, write_records
from calibrate import fit as fit_answers
from calibrate.items.answers import compare_with_gold, label_items, measure_records
from calibrate.judging import held_out
from calibrate.pipeline import fit_artifact
from calibrate.reviews.learning import Learned, learn
from calibrate.reviews.pool import read_reviews
from examples.demo.screen import CONSOLE, title
from examples.extraction.invoices import Invoice, invoices
from examples.extraction.reader import MODEL, serving
from guardrail import CalibrationArtifact, Guardrail, Partial, PromptWrapping, plan_for
from guardrail.bindings import bindings_for
from guardrail.describe import guarantee
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import ItemsMeasure, items_estimator, items_measure
from guardrail.items.spec import ITEMS
from guardrail.outcome import accepts
from guardrail.plain_json import sha256_hex
from guardrail.review import Content, ItemDecision, ReviewStore, by_items, ticket
from guardrail.review.hooks import audit_sample
from guardrail.types import Sample
from guardrail.verdict import Verdict
from integrations.openai_chat import OpenAICompatibleChat

__all__ = ["ALPHA", "Result", "extract", "main", "run", "show"]

ALPHA, DELTA = 0.05, 0.1
FORMAT = bindings_for(response_format=Invoice)
PROMPT = PromptWrapping(system="Give the fields of the invoice as JSON.")
REVIEWER = "ann"
AUDITED = 0.5
"""Share of the invoices of which a person decides every field. Decisions about held-back fields alone are no labels."""


@dataclass(frozen=True)
class Result:
    """Counts of the example.

    Attributes:
        artifact: The gate of fields.
        learned: The gate fitted on the decisions, with its figures on decisions kept out of the fit.
        n: New invoices.
        fields: Fields that the model gave for them.
        right: Right ones among these.
        kept: Fields that were given out.
        kept_wrong: Wrong ones among these.
        whole_right: Right fields that a gate of whole answers gives out, certified at the same alpha and delta.
        decided: Held-back fields that the person decided.
        corrected: Wrong ones among these.
    """

    artifact: CalibrationArtifact
    learned: Learned
    n: int
    fields: int
    right: int
    kept: int
    kept_wrong: int
    whole_right: int
    decided: int
    corrected: int


def measured(
    chat: OpenAICompatibleChat, measure: ItemsMeasure, path: Path, questions: Sequence[Question]
) -> RecordFile:
    """Draw answers to invoices, and measure their fields."""
    plan = plan_for([items_estimator(measure)], n=10, bindings=FORMAT)
    collect_records(questions, chat, plan, path, prompt=PROMPT, name=path.name)
    return measure_records(read_records(path), measure)


def run(folder: Path, *, n: int = 300, new: int = 400) -> Result:
    """Run all steps in a folder, anew."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("records.jsonl", "new.jsonl", "labelled.jsonl", "reviews.db", "artifact.json"):
        (folder / name).unlink(missing_ok=True)
    measure = items_measure(json_spec(FORMAT, judges={"/buyer": "exact"}))
    with serving() as url, ReviewStore(folder / "reviews.db") as store:
        chat = OpenAICompatibleChat(model=MODEL, base_url=url, api_key=SecretStr("none"))
        labelled = measured(chat, measure, folder / "records.jsonl", invoices(n, seed=1, prefix="labelled"))
        file = label_items(labelled)
        write_records(folder / "labelled.jsonl", file.header, file.records)
        artifact = fit_artifact(file, score=ITEMS, alpha=ALPHA, delta=DELTA)
        artifact.save(folder / "artifact.json")

        questions = invoices(new, seed=2, prefix="new")
        test = label_items(measured(chat, measure, folder / "new.jsonl", questions))
        figures = held_out(artifact, test.records, ITEMS).items
        assert figures is not None, "the figures of a gate of items"
        decided, corrected = decide_fields(chat, artifact, store, questions, measure)

        learned = learn(read_reviews(store, [artifact]), artifact, name="reviews.db")
    return Result(
        artifact=artifact,
        learned=learned,
        n=figures.answers,
        fields=figures.items,
        right=figures.items - figures.wrong,
        kept=figures.kept,
        kept_wrong=figures.kept_wrong,
        whole_right=right_of_whole_answers(file, test),
        decided=decided,
        corrected=corrected,
    )


# -- a person decides about the fields that were held back -------------------------------------------------------------


def extract(chat: OpenAICompatibleChat, artifact: CalibrationArtifact, store: ReviewStore) -> Any:
    """The guarded model: gives an `Invoice`, or a `Partial` whose other fields wait in the queue."""
    audits = audit_sample(store, rate=AUDITED, key=request)
    guard = Guardrail(model=chat, artifact=artifact, on_abstain=ticket(store, key=request), on_verdict=audits)
    return guard.prompt | guard.with_structured_output(Invoice)


def request(verdict: Verdict, messages: Sequence[BaseMessage]) -> str:
    """The name of a request: each invoice is asked about once. By it audits and test items are chosen."""
    return sha256_hex(messages[-1].text)


def decide_fields(
    chat: OpenAICompatibleChat,
    artifact: CalibrationArtifact,
    store: ReviewStore,
    questions: Sequence[Question],
    measure: ItemsMeasure,
) -> tuple[int, int]:
    """Send invoices through the guard and decide every item of the queue; counts of the fields that it held back."""
    extracting = extract(chat, artifact, store)
    results = extracting.batch([{"question": each.question} for each in questions], return_exceptions=True)
    reference = {each.question: each.references[0] for each in questions}
    decided = corrected = 0
    assert any(isinstance(result, Partial) for result in results), "some fields are held back"
    while (lease := store.claim(REVIEWER)) is not None:
        content = lease.item.content
        decisions = decisions_by(content, reference[content.question], measure)
        decision = by_items(content, decisions)
        store.decide(lease, decision)
        if content.kind != "audit":
            decided += len(decisions)
            corrected += sum(each.action != "approve" for each in decisions)
    return decided, corrected


def decisions_by(content: Content, reference: str, measure: ItemsMeasure) -> list[ItemDecision]:
    """The decisions of a person who knows the right fields, as the keys a, e and r of the page make them."""
    assert content.candidate is not None
    fields = json.loads(reference)
    compared = compare_with_gold(Sample(text=content.candidate.text), reference, measure.spec)
    decisions = []
    for item, right in zip(content.items, compared.right, strict=True):
        value = fields.get(item.path.removeprefix("/"))
        if item.kept:
            continue
        if right:
            decisions.append(ItemDecision(path=item.path, action="approve"))
        elif value is None:
            decisions.append(ItemDecision(path=item.path, action="reject"))
        else:
            decisions.append(ItemDecision(path=item.path, action="edit", text=json.dumps(value)))
    return decisions


# -- a gate of whole answers on the same records -----------------------------------------------------------------------


def right_of_whole_answers(calibration: RecordFile, test: RecordFile) -> int:
    """Right fields that pass where an answer is given whole or not at all, certified at the same alpha and delta.

    The uncertainty of an answer is the share of samples that differ from it in any field; it is wrong if any field is.
    """
    gate = fit_answers(*_answers(calibration)[:2], alpha=ALPHA, rule="certified", delta=DELTA)
    uncertainty, _, right = _answers(test)
    if gate.threshold is None:
        return 0
    limit = gate.threshold
    return sum(n for value, n in zip(uncertainty, right, strict=True) if accepts(value, limit))


def _answers(file: RecordFile) -> tuple[list[float], list[int], list[int]]:
    """(uncertainty, error, right fields) of the labelled answers."""
    uncertainty, error, right = [], [], []
    for record in file.records:
        if record.items is None or record.item_labels is None:
            continue
        assert record.drawn is not None
        assert record.drawn.primary is not None
        own = json.loads(record.drawn.primary.text)
        samples = [json.loads(sample.text) for sample in record.drawn.samples]
        labels = record.item_labels.right
        uncertainty.append(sum(sample != own for sample in samples) / len(samples))
        error.append(int(not all(labels)))
        right.append(labels.count(True))
    return uncertainty, error, right


def show(result: Result) -> None:
    """Print the results as a table."""
    learned = result.learned
    CONSOLE.print(f"{guarantee(result.artifact.outcome)} Threshold {result.artifact.threshold:.4g}.")
    table = Table(box=None, pad_edge=False)
    for column in (f"{result.n} new invoices, {result.fields} fields", "fields", ""):
        table.add_column(column, justify="right" if column == "fields" else "left")
    wrong = result.fields - result.right
    table.add_row("without a gate", str(result.fields), f"{wrong} wrong ({wrong / result.fields:.1%})")
    share = result.kept_wrong / max(result.kept, 1)
    table.add_row("given out, field by field", str(result.kept), f"{result.kept_wrong} wrong ({share:.1%})")
    right = result.kept - result.kept_wrong
    table.add_row("  right ones among these", str(right), f"of {result.right}")
    table.add_row("whole answers only: right ones", str(result.whole_right), "certified at the same alpha and delta")
    after = f"{result.corrected} of them corrected or left out"
    table.add_row("held back, decided by the person", str(result.decided), after)
    CONSOLE.print(table)
    again, other = learned.artifact, learned.new.items
    assert other is not None, "the figures of a gate of items"
    CONSOLE.print(
        f"Fitted again on {again.outcome.n} decided invoices (learn): "
        + (f"threshold {again.threshold:.4g}." if again.threshold is not None else "nothing can be kept.")
        + f" On {other.answers} others it gives out {other.kept} of {other.items} fields, {other.kept_wrong} wrong."
    )


def main() -> None:
    """Run the example and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("extraction-output"), help="output folder")
    folder: Path = parser.parse_args().out
    started = time.monotonic()
    title("Extract fields", "300 labelled invoices, each field kept or held back by itself")
    show(run(folder))
    CONSOLE.print(
        f"[dim]{time.monotonic() - started:.0f} s. The decisions: guardrail review --db {folder}/reviews.db[/]"
    )


if __name__ == "__main__":
    main()
