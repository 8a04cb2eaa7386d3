"""`python -m examples.extraction`: invoices into fields, with at most 5 % of the fields that are given out wrong.

1. 300 labelled invoices: each field of the model's answer is compared with the right one, and a threshold is certified.
2. New invoices through the guard: fields that are certain enough are given out, the others wait for a person.
3. The person decides field by field on the review page (here a script does, which knows the right fields).
4. More labels, given field by field on the same page, and another fit.

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

from pydantic import SecretStr
from rich.table import Table

from calibrate import Question, RecordFile, collect_records, read_records, write_records
from calibrate import fit as fit_answers
from calibrate.parts.answers import label_parts, labels_by_hand, measure_records, packed_answers
from calibrate.parts.fit import fit_parts_artifact, held_out_parts
from examples.demo.screen import CONSOLE, title
from examples.extraction.invoices import Invoice, invoices
from examples.extraction.reader import MODEL, serving
from guardrail import CalibrationArtifact, Guardrail, Partial, PromptWrapping, plan_for
from guardrail.bindings import bindings_for
from guardrail.gate import accepts
from guardrail.parts.json_fields import json_spec
from guardrail.parts.measure import PartsMeasure, compare_with_gold, parts_estimator, parts_measure
from guardrail.parts.part import PartVerdict
from guardrail.review import Candidate, Content, PartDecision, ReviewStore, by_parts, ticket
from guardrail.types import Sample
from integrations.openai_chat import OpenAICompatibleChat

__all__ = ["ALPHA", "Result", "extract", "main", "run", "show"]

ALPHA, DELTA = 0.05, 0.1
KEY = "parts_json"
FORMAT = bindings_for(response_format=Invoice)
PROMPT = PromptWrapping(system="Give the fields of the invoice as JSON.")
REVIEWER = "ann"
REVIEWED = 40
"""New invoices whose other fields a person decides."""


@dataclass(frozen=True)
class Result:
    """Counts of the example.

    Attributes:
        artifact: The gate of fields.
        refitted: The gate after more labels.
        n: New invoices.
        fields: Fields that the model gave for them.
        right: Right ones among these.
        kept: Fields that were given out.
        kept_wrong: Wrong ones among these.
        whole_right: Right fields that a gate of whole answers gives out, certified at the same alpha and delta.
        decided: Fields that the person decided.
        corrected: Wrong ones among these.
    """

    artifact: CalibrationArtifact
    refitted: CalibrationArtifact
    n: int
    fields: int
    right: int
    kept: int
    kept_wrong: int
    whole_right: int
    decided: int
    corrected: int


def measured(
    chat: OpenAICompatibleChat, measure: PartsMeasure, path: Path, questions: Sequence[Question]
) -> RecordFile:
    """Draw answers to invoices, and measure their fields."""
    plan = plan_for([parts_estimator(measure)], n=10, bindings=FORMAT)
    collect_records(questions, chat, plan, path, prompt=PROMPT, name=path.name)
    return measure_records(read_records(path), measure)


def run(folder: Path, *, n: int = 300, new: int = 200, audits: int = 60) -> Result:
    """Run all steps in a folder, anew."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("records.jsonl", "new.jsonl", "more.jsonl", "labelled.jsonl", "reviews.db", "artifact.json"):
        (folder / name).unlink(missing_ok=True)
    measure = parts_measure(json_spec(FORMAT, judges={"/buyer": "exact"}))
    with serving() as url, ReviewStore(folder / "reviews.db") as store:
        chat = OpenAICompatibleChat(model=MODEL, base_url=url, api_key=SecretStr("none"))
        labelled = measured(chat, measure, folder / "records.jsonl", invoices(n, seed=1, prefix="labelled"))
        file = label_parts(labelled, KEY)
        write_records(folder / "labelled.jsonl", file.header, file.records)
        artifact = fit_parts_artifact(file, alpha=ALPHA, delta=DELTA)
        artifact.save(folder / "artifact.json")

        questions = invoices(new, seed=2, prefix="new")
        test = label_parts(measured(chat, measure, folder / "new.jsonl", questions), KEY)
        figures, _ = held_out_parts(artifact, test)
        decided, corrected = decide_fields(chat, artifact, store, questions, measure)

        more = measured(chat, measure, folder / "more.jsonl", invoices(audits, seed=3, prefix="more"))
        by_hand = labels_by_hand(more, KEY, label_on_page(store, more, measure), "reviews.db", "")
        joined = RecordFile(file.path, by_hand.header, (*file.records, *by_hand.records))
        refitted = fit_parts_artifact(joined, alpha=ALPHA, delta=DELTA)
    return Result(
        artifact=artifact,
        refitted=refitted,
        n=figures.answers,
        fields=figures.parts,
        right=figures.parts - figures.wrong,
        kept=figures.kept,
        kept_wrong=figures.kept_wrong,
        whole_right=right_of_whole_answers(file, test),
        decided=decided,
        corrected=corrected,
    )


# -- a person decides about the fields that were held back -------------------------------------------------------------


def extract(chat: OpenAICompatibleChat, artifact: CalibrationArtifact, store: ReviewStore) -> Any:
    """The guarded model: gives an `Invoice`, or a `Partial` whose other fields wait in the queue."""
    guard = Guardrail(model=chat, artifact=artifact, on_abstain=ticket(store))
    return guard.prompt | guard.with_structured_output(Invoice)


def decide_fields(
    chat: OpenAICompatibleChat,
    artifact: CalibrationArtifact,
    store: ReviewStore,
    questions: Sequence[Question],
    measure: PartsMeasure,
) -> tuple[int, int]:
    """Send invoices through the guard and decide about what it held back; counts of fields."""
    extracting = extract(chat, artifact, store)
    results = extracting.batch([{"question": each.question} for each in questions[:REVIEWED]], return_exceptions=True)
    reference = {each.question: each.references[0] for each in questions}
    decided = corrected = 0
    assert any(isinstance(result, Partial) for result in results), "some fields are held back"
    while (lease := store.claim(REVIEWER)) is not None:
        content = lease.item.content
        decisions = decisions_by(content, reference[content.question], measure)
        decision = by_parts(content, decisions)
        store.decide(lease, decision)
        decided += len(decisions)
        corrected += sum(each.action != "approve" for each in decisions)
    return decided, corrected


def decisions_by(content: Content, reference: str, measure: PartsMeasure) -> list[PartDecision]:
    """The decisions of a person who knows the right fields, as the keys a, e and r of the page make them."""
    assert content.candidate is not None
    fields = json.loads(reference)
    compared = compare_with_gold(Sample(text=content.candidate.text), reference, measure.spec)
    decisions = []
    for part, right in zip(content.parts, compared.right, strict=True):
        value = fields.get((part.path or "").removeprefix("/"))
        if part.kept:
            continue
        if right:
            decisions.append(PartDecision(place=part.place, action="approve"))
        elif value is None:
            decisions.append(PartDecision(place=part.place, action="reject"))
        else:
            decisions.append(PartDecision(place=part.place, action="edit", text=json.dumps(value)))
    return decisions


def label_on_page(store: ReviewStore, file: RecordFile, measure: PartsMeasure) -> list[dict[str, Any]]:
    """Labels for every field of more answers, given field by field in the review queue."""
    by_question = {record.question: record for record in file.records}
    for record in file.records:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        parts = tuple(PartVerdict(**part.model_dump(), kept=False) for part in record.parts[KEY])
        candidate = Candidate.of(record.drawn.primary)
        store.enqueue(Content(question=record.question, kind="audit", candidate=candidate, parts=parts))
    rows = []
    while (lease := store.claim(REVIEWER, kinds=("audit",))) is not None:
        content = lease.item.content
        record = by_question[content.question]
        decision = by_parts(content, decisions_by(content, record.references[0], measure))
        store.decide(lease, decision)
        labels = {part.place: part.action == "approve" for part in decision.parts}
        rows.append({"id": record.id, "parts": labels})
    return rows


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
    for record in packed_answers(file, KEY).records:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        own = json.loads(record.drawn.primary.text)
        samples = [json.loads(sample.text) for sample in record.drawn.samples]
        labels = record.part_labels[KEY].right
        uncertainty.append(sum(sample != own for sample in samples) / len(samples))
        error.append(int(not all(labels)))
        right.append(labels.count(True))
    return uncertainty, error, right


def show(result: Result) -> None:
    """Print the results as a table."""
    gate, again = result.artifact.parts, result.refitted.parts
    assert gate is not None
    assert again is not None
    CONSOLE.print(f"{gate.promise} Threshold {gate.threshold:.4g}.")
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
    table.add_row(f"decided by the person, in {REVIEWED} invoices", str(result.decided), after)
    CONSOLE.print(table)
    CONSOLE.print(
        f"Fitted again with {len(again.scores.sizes) - len(gate.scores.sizes)} more labelled invoices: threshold "
        f"{again.threshold:.4g}."
        if again.threshold is not None
        else "Fitted again: nothing can be kept."
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
