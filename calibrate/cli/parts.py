"""What commands do with parts of answers (`--parts`): each command branches here once, before anything else."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import RecordError, UsageError
from guardrail.judges import Judge, make_judge
from guardrail.notebook import percent
from guardrail.parts.json_fields import DateJudge, json_spec, schema_of
from guardrail.parts.measure import parts_measure
from guardrail.parts.sentences import sentence_spec
from guardrail.parts.spec import PartFigures, PartsSpec
from guardrail.types import SamplingPlan

from ..data.progress import bar
from ..data.questions import read_rows
from ..data.records import Record, RecordFile, read_records, write_records
from ..data.split import Groups, split
from ..parts.answers import (
    cap_of_counts,
    key_of_parts,
    label_parts,
    labels_by_hand,
    measure_file,
    numbers_of_parts,
    packed_answers,
)
from ..parts.figures import length_bands, path_rows
from ..parts.fit import PartsRule, fit_parts_artifact, held_out_parts, thresholds_of
from ..parts.sentences import figures_lines, promise_line, refutes
from ..pipeline import CERTIFICATE_DELTA, part_header
from ..scoring.names import named_entailment
from ..spec_syntax import assignment, parse_name, parse_rule
from .frame.files import changed_file, keep_inputs, open_pool
from .frame.next_commands import listed
from .frame.terminal import console, finish, print_line, table

__all__ = [
    "FitParts",
    "PartsOption",
    "ScoreParts",
    "fit_by_parts",
    "inspect_parts",
    "label_by_parts",
    "print_parts",
    "score_by_parts",
]

PartsOption = Annotated[
    Literal["json", "sentences"] | None,
    typer.Option(
        help="Work on the parts of answers, each kept or held back on its own: the fields of JSON answers and of tools' "
        "arguments, or sentences (docs: Parts)."
    ),
]


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """How answers are split into parts and the parts compared."""

    parts: PartsOption = None
    cap: Annotated[
        int | None,
        typer.Option(
            help="With --parts: most parts of an answer that are ever kept. Default: the leaf fields of the schema; "
            "without one the 90th percentile of the numbers of parts (the median below 300 answers)."
        ),
    ] = None
    field_judge: Annotated[
        list[str] | None,
        typer.Option(
            help="With --parts json: PATH=JUDGE for a field that is not compared by value: /total=numeric, "
            "/items/*/name=exact, \"/due=date(formats=['%d.%m.%Y'])\". May be repeated."
        ),
    ] = None
    key_field: Annotated[
        list[str] | None,
        typer.Option(
            help="With --parts json: PATH=FIELD, the field by which the objects of a list are matched: /items=sku. "
            "Without it a list of objects is one part. May be repeated."
        ),
    ] = None
    optional_field: Annotated[
        list[str] | None,
        typer.Option(
            help="With --parts json: path of a field that an answer may leave out; leaving it out is a claim as well. "
            "Default: those that the schema does not require. May be repeated."
        ),
    ] = None
    schema: Annotated[
        Path | None, typer.Option(help="With --parts json: JSON schema of the answers. Default: that of the plan.")
    ] = None
    least: Annotated[
        float, typer.Option(help="With --parts sentences --entailment: probability from which a sample supports one.")
    ] = 0.5

    def spec(self, plan: SamplingPlan, counts: Sequence[int], entailment: Any) -> PartsSpec:
        """The specification for records of a plan, whose answers have these numbers of parts."""
        cap = self.cap
        if self.parts == "sentences":
            return sentence_spec(cap or cap_of_counts(counts), entailment=entailment, least=self.least)
        schema = schema_of(plan.bindings) if self.schema is None else _schema(self.schema)
        options: dict[str, Any] = {
            "schema": schema,
            "judges": {path: _field_judge(text) for path, text in map(assignment, self.field_judge or ())},
            "keys": dict(map(assignment, self.key_field or ())),
            "optional": self.optional_field,
        }
        try:
            return json_spec(plan.bindings, cap=cap, **options)
        except UsageError:
            if cap is not None:
                raise
        return json_spec(plan.bindings, cap=cap_of_counts(counts), **options)


def _schema(path: Path) -> Mapping[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a JSON schema: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"{path} is not a JSON schema: it is a {type(schema).__name__}, not an object.")
    return schema


def _field_judge(text: str) -> Judge:
    name, params = parse_name(text)
    return DateJudge(**params) if name == "date" else make_judge(name, **params)


def score_by_parts(source: Path, target: Path, options: ScoreParts, entailment: str | None) -> None:
    """Split every answer and measure its parts."""
    model = None if entailment is None else named_entailment(entailment)
    first = read_records(source)
    plan = first.header.plan
    spec = options.spec(plan, [], model) if options.cap is not None else None
    if spec is None:
        counting = parts_measure(replace(options, cap=1).spec(plan, [], model), entailment=model)
        spec = options.spec(plan, numbers_of_parts(first.records, counting), model)
    measure = parts_measure(spec, entailment=model)
    with bar(console, "measuring parts", "records") as progress:
        _, key = measure_file(source, target, measure, progress=progress)
    file = read_records(target)
    _print_measured(file, key, spec)
    finish([target], f"calibrate label {listed([target])} --parts {spec.kind}")


def _print_measured(file: RecordFile, key: str, spec: PartsSpec) -> None:
    sizes, unmeasured, scores = [], 0, []
    reasons: dict[str, int] = {}
    for record in file.records:
        parts = record.parts.get(key)
        if parts is None:
            reason = record.scores[key].reason if key in record.scores else None
            name = "no answer" if reason is None else reason.value
            reasons[name] = reasons.get(name, 0) + 1
            continue
        sizes.append(len(parts))
        scores += [part.uncertainty for part in parts if part.uncertainty is not None]
        unmeasured += sum(part.uncertainty is None for part in parts)
    listed_reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "0"
    beyond = sum(max(0, size - spec.cap) for size in sizes)
    rows = [
        ("answers measured", str(len(sizes))),
        ("answers not measured (they abstain)", listed_reasons),
        ("parts", f"{sum(sizes)}" + (f", {min(sizes)} to {max(sizes)} an answer" if sizes else "")),
        ("parts not measured (held back)", str(unmeasured)),
        (f"parts beyond the cap of {spec.cap} (held back)", str(beyond)),
        (
            "parts that every sample supports",
            f"{percent(sum(s == 0 for s in scores) / len(scores)) if scores else '-'}",
        ),
    ]
    console.print(table(f"Parts: {spec.kind}", ("", ""), rows))


def label_by_parts(source: Path, target: Path, kind: str, labels: Path | None) -> None:
    """Label the parts of every answer: by its reference, or as people did."""

    def change(file: RecordFile) -> RecordFile:
        key = key_of_parts(file, kind)
        if labels is None:
            return label_parts(file, key)
        try:
            rows = [row.values for row in read_rows(labels)]
            digest = hashlib.sha256(labels.read_bytes()).hexdigest()
        except OSError as error:
            raise RecordError(f"{labels} cannot be read: {error}") from error
        return labels_by_hand(file, key, rows, labels.name, digest)

    file = changed_file(source, target, change)
    key = key_of_parts(file, kind)
    labelled = [record.part_labels[key] for record in file.records if key in record.part_labels]
    right = [label for some in labelled for label in some.right]
    undecided = right.count(None)
    wrong = len(right) - right.count(True)
    print_line(
        f"{len(labelled)} of {len(file.records)} answers have labelled parts: {wrong} of {len(right)} parts are wrong "
        f"({percent(wrong / len(right) if right else None)})"
        + (f", {undecided} of them undecided, which count as wrong." if undecided else ".")
    )
    broken = sum(any(label is not True for label in some.right) for some in labelled)
    print_line(
        f"{broken} of {len(labelled)} answers have a wrong part ({percent(broken / len(labelled) if labelled else None)})."
    )
    finish([target], f"calibrate fit {listed([target])} --parts {kind} --alpha 0.1")


@dataclass(frozen=True, slots=True)
class FitParts:
    """The gate of parts."""

    parts: PartsOption = None
    cap: Annotated[
        int | None,
        typer.Option(help="With --parts: another cap than that of the parts. Fix it before looking at labels."),
    ] = None
    cut: Annotated[
        float | None,
        typer.Option(help="With --parts: parts above this uncertainty were not labelled and are never kept."),
    ] = None
    by_length: Annotated[
        str | None,
        typer.Option(
            help="With --parts: a threshold for each band of the number of parts: 2,4 makes 1-2, 3-4 and 5 or more. "
            "--segment-delta says how they share delta."
        ),
    ] = None


def _bands(text: str | None) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"bands are whole numbers with commas between them, got {text!r}. Write 2,4.") from None


def fit_by_parts(
    records: Sequence[Path],
    out: Path,
    options: FitParts,
    *,
    alpha: float,
    delta: float | None,
    rule: str | None,
    band_delta: Literal["together", "each"],
    groups: Groups,
    test_fraction: float,
    test: Sequence[Path],
    seed: int,
) -> None:
    """Fit a gate of parts, test it on what was kept out, and print the verdict.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise.
    """
    beside = out.with_suffix(".test.jsonl")
    keep_inputs([*records, *test], [out, *([beside] if test_fraction else [])])
    if test and test_fraction:
        raise UsageError("--test and --test-fraction exclude each other: give a test file, or a share to keep out")
    file = open_pool(records)
    chosen = replace(PartsRule.of(*_rule(rule)), bands=_bands(options.by_length), band_delta=band_delta)
    part: Sequence[Record] = file.records
    rest: Sequence[Record] | None = None
    if test_fraction:
        part, rest = split(file.records, test_fraction=test_fraction, seed=seed, groups=groups)
    artifact = fit_parts_artifact(
        file,
        alpha=alpha,
        kind=options.parts,
        rule=chosen,
        delta=CERTIFICATE_DELTA if delta is None else delta,
        part=part,
        groups=groups,
        cap=options.cap,
        cut=options.cut,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(out)
    written = [out]
    if rest is not None:
        write_records(beside, part_header(file.header, rest), rest)
        written.append(beside)
    key = key_of_parts(file, options.parts)
    print_parts(artifact)
    data = packed_answers(file, key, part=part, cap=options.cap)
    print_paths(artifact, data.records, data, key)
    refuted = False
    if test:
        refuted = print_tested(artifact, *held_out_parts(artifact, open_pool(test)))
    elif rest is not None:
        refuted = print_tested(artifact, *held_out_parts(artifact, RecordFile(beside, file.header, rest)))
    tests = test or ([beside] if rest is not None else [])
    tail = "".join(f" --test {shlex.quote(str(path))}" for path in tests)
    finish(written, f"calibrate report {listed(records)} --artifact {listed([out])}{tail}")
    if refuted:
        raise typer.Exit(1)


def _rule(text: str | None) -> tuple[str | None, dict[str, Any]]:
    if text is None:
        return None, {}
    parsed = parse_rule(text)
    return (parsed, {}) if isinstance(parsed, str) else (parsed[0], dict(parsed[1]))


# -- What every command prints about a gate of parts -------------------------------------------------------------------


def print_parts(artifact: CalibrationArtifact) -> None:
    """Print the promise and the figures of a gate of parts."""
    gate = artifact.parts
    assert gate is not None, "an artifact of parts"
    print_line(promise_line(gate), "bold" if gate.threshold is not None else "bold red")
    if gate.threshold is None:
        print_line(getattr(artifact.outcome, "detail", ""), "red")
        return
    if gate.figures is not None:
        for line in figures_lines(gate, gate.figures):
            print_line(line)


def print_paths(artifact: CalibrationArtifact, records: Sequence[Record], data: Any, key: str) -> None:
    """Print a table of field paths and one of bands of the number of parts."""
    gate = artifact.parts
    assert gate is not None, "an artifact of parts"
    limits = thresholds_of(gate, data.parts)
    rows = [
        (
            row.path,
            str(row.parts),
            _share(row.wrong, row.parts),
            _share(row.kept, row.parts),
            _share(row.kept_wrong, row.kept),
        )
        for row in path_rows(data.parts, limits, records, key)
    ]
    if len(rows) > 1:
        console.print(table("Parts by path", ("path", "parts", "wrong", "kept", "wrong among kept"), rows))
    bands = [
        (name, str(f.answers), _share(f.shown, f.answers), _share(f.complete, f.answers), _share(f.broken, f.shown))
        for name, f in length_bands(data.parts, limits, allowed=gate.allowed)
    ]
    if len(bands) > 1:
        heads = ("parts an answer", "answers", "shown", "complete", "broken among shown")
        console.print(table("By the number of parts", heads, bands))


def _share(k: int, n: int) -> str:
    return f"{percent(k / n)} ({k})" if n else "-"


def print_tested(artifact: CalibrationArtifact, figures: PartFigures, data: Any) -> bool:
    """Print the gate's figures on answers that it was not fitted on; whether they refute the promise."""
    gate = artifact.parts
    assert gate is not None, "an artifact of parts"
    print_line(f"On {figures.answers} answers that it was not fitted on:", "bold")
    for line in figures_lines(gate, figures):
        print_line(line)
    reason = refutes(gate, data.parts, thresholds_of(gate, data.parts))
    if reason is not None:
        print_line(reason, "red")
    return reason is not None


def inspect_parts(artifact: CalibrationArtifact) -> None:
    """Say what a gate of parts promises."""
    gate = artifact.parts
    assert gate is not None, "an artifact of parts"
    print_parts(artifact)
    print_line(f"Promise: {gate.promise}")
    rows = [
        ("parts", f"{gate.spec.kind}, at most {gate.spec.cap} kept of an answer"),
        ("split by", f"{gate.spec.splitter.name} {gate.spec.splitter.version} {gate.spec.splitter.params or ''}"),
        ("support by", f"{gate.spec.support.name} {gate.spec.support.version} {gate.spec.support.params or ''}"),
        ("threshold", "none" if gate.threshold is None else f"{gate.threshold:.6g}"),
        ("labels", f"{artifact.correctness.name}"),
        (
            "not measured",
            f"{gate.n_unmeasured_answers} answers (left out), {gate.n_unmeasured_parts} parts (held back)",
        ),
        ("undecided labels", f"{gate.n_undecided}, counted as wrong"),
    ]
    if gate.bands:
        rows.append(("bands", f"{gate.bands}: {gate.band_thresholds}"))
    console.print(table("", ("", ""), rows))
