"""The steps of `--items` that are its own: splitting answers into items and measuring these, and labels of items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from guardrail.errors import UsageError
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.judges import Judge, make_judge
from guardrail.notebook import percent

from ...data.progress import bar
from ...data.records import RecordFile, rewrite_records
from ...items.answers import label_items, labels_of_file, measure_records, spec_of_answers, stored_spec
from ...spec_syntax import assignment, parse_name
from .terminal import console, print_line, table

# -- Options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScoreItems:
    """Splitting answers into items, and comparing the items."""

    cap: int | None = None
    field_judge: Sequence[str] = ()
    key_field: Sequence[str] = ()
    optional_field: Sequence[str] = ()

    def spec_of(self, file: RecordFile) -> ItemsSpec:
        """The specification for the answers of a file."""
        judges = {path: _judge(text) for path, text in _assignments("--field-judge", "JUDGE", self.field_judge)}
        return spec_of_answers(
            file.records,
            file.header.plan.bindings,
            cap=self.cap,
            judges=judges,
            keys=dict(_assignments("--key-field", "FIELD", self.key_field)),
            optional=list(self.optional_field) or None,
        )


def _assignments(flag: str, value: str, texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for text in texts or ():
        path, assigned = assignment(text)
        if not (path and assigned):
            raise UsageError(f"{flag} must be PATH={value}, got {text!r}.")
        yield path, assigned


def _judge(text: str) -> Judge:
    name, params = parse_name(text)
    return make_judge(name, **params)


# -- score, label ------------------------------------------------------------------------------------------------------


def score_by_items(source: Path, target: Path, options: ScoreItems, spec: ItemsSpec | None = None) -> None:
    """Split every answer and measure its items, by this specification or that of the options."""

    def change(file: RecordFile) -> RecordFile:
        measure = items_measure(spec or options.spec_of(file))
        with bar(console, "measuring items", "records") as progress:
            return measure_records(file, measure, progress=progress)

    file = rewrite_records(source, target, change)
    cap = stored_spec(file).cap
    sizes = [len(record.items) for record in file.records if record.items is not None]
    scores = [item.uncertainty for record in file.records for item in record.items or ()]
    missing = [record.scores.get(ITEMS) for record in file.records if record.items is None]
    reasons = sorted({str(score.reason) for score in missing if score is not None})
    rows = [
        ("answers measured", str(len(sizes))),
        ("answers not measured (they abstain)", f"{len(missing)} {', '.join(reasons)}".strip()),
        ("items", f"{sum(sizes)}" + (f", {min(sizes)} to {max(sizes)} an answer" if sizes else "")),
        ("items not measured (held back)", str(scores.count(None))),
        (f"items beyond the cap of {cap} (held back)", str(sum(max(0, size - cap) for size in sizes))),
        ("items that every sample supports", percent(scores.count(0) / len(scores) if scores else None)),
    ]
    console.print(table("Items", ("", ""), rows))


def label_by_items(source: Path, target: Path, labels: Path | None) -> None:
    """Label the items of every answer: by its reference, or as people did."""

    def change(file: RecordFile) -> RecordFile:
        return label_items(file) if labels is None else labels_of_file(file, labels)

    file = rewrite_records(source, target, change)
    asked = [record.item_labels.right for record in file.records if record.items and record.item_labels]
    right = [label for some in asked for label in some]
    wrong, undecided = len(right) - right.count(True), right.count(None)
    print_line(
        f"{len(asked)} of {len(file.records)} answers have labelled items: {wrong} of {len(right)} items are wrong "
        f"({percent(wrong / len(right) if right else None)})"
        + (f", {undecided} of them undecided, which count as wrong." if undecided else ".")
    )
    broken = sum(any(label is not True for label in some) for some in asked)
    share = percent(broken / len(asked) if asked else None)
    print_line(f"{broken} of {len(asked)} answers have a wrong item ({share}).")
