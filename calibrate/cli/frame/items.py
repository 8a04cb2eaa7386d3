"""Commands on items of answers (`--items`): each command branches here once, before anything else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.json_fields import DateJudge, json_spec, schema_of
from guardrail.items.measure import items_measure
from guardrail.items.sentences import sentence_spec
from guardrail.items.spec import ItemsSpec
from guardrail.judges import Entailment, Judge, make_judge
from guardrail.notebook import percent
from guardrail.types import SamplingPlan

from ...data.progress import bar
from ...data.records import Record, RecordFile, read_records, write_records
from ...data.split import Groups, split
from ...evaluation.evaluate import csv_text
from ...items.answers import (
    MeasuredItems,
    key_of_items,
    label_items,
    labels_of_file,
    measure_file,
    needs_label,
    packed_answers,
    spec_of_answers,
    spec_of_key,
)
from ...items.audit import ItemsAudit, Tested, audit_items, check_on
from ...items.evaluate import (
    ItemsRow,
    answers_needed,
    chosen_rules,
    compared_rules,
    evaluate_items,
    pilot_items,
    plan_items,
)
from ...items.fit import ItemsRule, fit_items_artifact, thresholds_of
from ...items.page import write_items_report
from ...items.promises import figures_lines, promise_line
from ...items.wording import bands_table, caveats, facts, path_warnings, paths_table
from ...ledger import Ledger, counted
from ...pipeline import CERTIFICATE_DELTA, part_header
from ...report.sentences import slots_argument
from ...scoring.names import named_entailment
from ...spec_syntax import assignment, parse_name
from .files import changed_file, keep_inputs, open_files, open_pool, pool_of, warn_unlike
from .next_commands import listed
from .options import CutOption, ItemsOption
from .terminal import console, finish, print_line, table
from .verdicts import print_facts, print_fits

__all__ = [
    "FitItems",
    "ScoreItems",
    "audit_by_items",
    "check_rule",
    "cut_flag",
    "evaluate_by_items",
    "fit_by_items",
    "label_by_items",
    "plan_by_items",
    "print_items",
    "refuse_with_items",
    "refuse_without_items",
    "report_by_items",
    "say_items",
    "score_by_items",
]


@dataclass(frozen=True, slots=True)
class ScoreItems:
    """Splitting answers into items, and comparing the items."""

    items: ItemsOption = None
    cap: Annotated[
        int | None,
        typer.Option(
            help="With --items: most items of an answer that are ever kept. Default: the leaf fields of the schema; "
            "without one the 90th percentile of the numbers of items (the median below 300 answers)."
        ),
    ] = None
    field_judge: Annotated[
        list[str] | None,
        typer.Option(
            help="With --items json: PATH=JUDGE for a field that is not compared by value: /total=numeric, "
            "/items/*/name=exact, \"/due=date(formats=['%d.%m.%Y'])\". May be repeated."
        ),
    ] = None
    key_field: Annotated[
        list[str] | None,
        typer.Option(
            help="With --items json: PATH=FIELD, the field by which the objects of a list are matched: /items=sku. "
            "Without it a list of objects is one item. May be repeated."
        ),
    ] = None
    optional_field: Annotated[
        list[str] | None,
        typer.Option(
            help="With --items json: path of a field that an answer may leave out; leaving it out is an item as well. "
            "Default: those that the schema does not require. May be repeated."
        ),
    ] = None
    schema: Annotated[
        Path | None, typer.Option(help="With --items json: JSON schema of the answers. Default: that of the plan.")
    ] = None
    least: Annotated[
        float,
        typer.Option(help="With --items sentences and --entailment: probability from which a sample supports one."),
    ] = 0.5

    def spec_of(self, file: RecordFile, entailment: Entailment | None) -> ItemsSpec:
        """The specification for the answers of a file.

        Raises:
            UsageError: As `calibrate.items.answers.spec_of_answers`.
        """
        plan = file.header.plan
        schema = schema_of(plan.bindings) if self.schema is None else _schema(self.schema)

        def make(cap: int | None) -> ItemsSpec:
            return self._spec(plan, schema, cap, entailment)

        return spec_of_answers(make, file.records, cap=self.cap, schema=schema, entailment=entailment)

    def _spec(
        self, plan: SamplingPlan, schema: Mapping[str, Any] | None, cap: int | None, entailment: Entailment | None
    ) -> ItemsSpec:
        """The specification for records of a plan.

        Raises:
            UsageError: The cap is None, and nothing else says how many items an answer has.
        """
        if self.items == "sentences":
            if cap is None:
                raise UsageError("sentences need a cap: --cap.")
            return sentence_spec(cap, entailment=entailment, least=self.least)
        return json_spec(
            plan.bindings,
            schema=schema,
            judges={
                path: _field_judge(text) for path, text in _assignments("--field-judge", "JUDGE", self.field_judge)
            },
            keys=dict(_assignments("--key-field", "FIELD", self.key_field)),
            optional=self.optional_field,
            cap=cap,
        )


def _schema(path: Path) -> Mapping[str, Any]:
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not a JSON schema: {error}") from error
    if not isinstance(schema, dict):
        raise UsageError(f"{path} is not a JSON schema: it is a {type(schema).__name__}, not an object.")
    return schema


def _assignments(flag: str, value: str, texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for text in texts or ():
        path, assigned = assignment(text)
        if not (path and assigned):
            raise UsageError(f"{flag} must be PATH={value}, got {text!r}.")
        yield path, assigned


def _field_judge(text: str) -> Judge:
    name, params = parse_name(text)
    return DateJudge(**params) if name == "date" else make_judge(name, **params)


def score_by_items(
    source: Path, target: Path, options: ScoreItems, entailment: str | None, spec: ItemsSpec | None = None
) -> ItemsSpec:
    """Split every answer and measure its items, by this specification or that of the options; returns it."""
    model = None if entailment is None else named_entailment(entailment)
    spec = spec or options.spec_of(read_records(source), model)
    with bar(console, "measuring items", "records") as progress:
        _, key = measure_file(source, target, items_measure(spec, entailment=model), progress=progress)
    _print_measured(read_records(target), key, spec)
    return spec


def _print_measured(file: RecordFile, key: str, spec: ItemsSpec) -> None:
    sizes, unmeasured, scores = [], 0, []
    reasons: dict[str, int] = {}
    for record in file.records:
        items = record.items.get(key)
        if items is None:
            reason = record.scores[key].reason if key in record.scores else None
            name = "no answer" if reason is None else reason.value
            reasons[name] = reasons.get(name, 0) + 1
            continue
        sizes.append(len(items))
        scores += [part.uncertainty for part in items if part.uncertainty is not None]
        unmeasured += sum(part.uncertainty is None for part in items)
    listed_reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "0"
    beyond = sum(max(0, size - spec.cap) for size in sizes)
    rows = [
        ("answers measured", str(len(sizes))),
        ("answers not measured (they abstain)", listed_reasons),
        ("items", f"{sum(sizes)}" + (f", {min(sizes)} to {max(sizes)} an answer" if sizes else "")),
        ("items not measured (held back)", str(unmeasured)),
        (f"items beyond the cap of {spec.cap} (held back)", str(beyond)),
        (
            "items that every sample supports",
            f"{percent(sum(s == 0 for s in scores) / len(scores)) if scores else '-'}",
        ),
    ]
    console.print(table(f"Items: {spec.kind}", ("", ""), rows))


def label_by_items(source: Path, target: Path, kind: str, labels: Path | None, cut: float | None = None) -> None:
    """Label the items of every answer: by its reference, or as people did, who saw no part above the cut."""

    def change(file: RecordFile) -> RecordFile:
        key = key_of_items(file, kind)
        return label_items(file, key) if labels is None else labels_of_file(file, key, labels, cut)

    file = changed_file(source, target, change)
    key = key_of_items(file, kind)
    labelled = [
        [
            label
            for label, part in zip(record.item_labels[key].right, record.items[key], strict=True)
            if needs_label(part, cut)
        ]
        for record in file.records
        if key in record.item_labels and key in record.items
    ]
    right = [label for some in labelled for label in some]
    up_to = "" if cut is None else f" up to the cut of {cut:g}"
    undecided = right.count(None)
    wrong = len(right) - right.count(True)
    print_line(
        f"{len(labelled)} of {len(file.records)} answers have labelled items: {wrong} of {len(right)} items{up_to} are "
        f"wrong ({percent(wrong / len(right) if right else None)})"
        + (f", {undecided} of them undecided, which count as wrong." if undecided else ".")
    )
    broken = sum(any(label is not True for label in some) for some in labelled)
    share = percent(broken / len(labelled) if labelled else None)
    print_line(f"{broken} of {len(labelled)} answers have a wrong item{up_to} ({share}).")


@dataclass(frozen=True, slots=True)
class FitItems:
    """The gate of items."""

    items: ItemsOption = None
    cap: Annotated[
        int | None,
        typer.Option(help="With --items: another cap than that of the items. Fix it before looking at labels."),
    ] = None
    cut: CutOption = None
    planned: Annotated[
        int | None,
        typer.Option(
            help="With --items: answers that you will have labelled at your last look. You may then fit as often as "
            "you like while labels come in, in the order of `label --interactive`, and stop at any fit.",
            min=1,
        ),
    ] = None
    by_length: Annotated[
        str | None,
        typer.Option(
            help="With --items: a threshold for each band of the number of items: 2,4 makes 1-2, 3-4 and 5 or more. "
            "--segment-delta says how they share delta."
        ),
    ] = None


def cut_flag(cut: float | None) -> str:
    """The cut as the next command takes it."""
    return "" if cut is None else f" --cut {cut:g}"


def refuse_with_items(**options: object) -> None:
    """Refuse options of whole answers together with --items.

    Raises:
        UsageError: Naming the first one that was given.
    """
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise UsageError(f"--{given.replace('_', '-')} is about whole answers: leave it out with --items.")


def refuse_without_items(**options: object) -> None:
    """Refuse options of items where whole answers are meant.

    Raises:
        UsageError: Naming the first one that was given.
    """
    given = next((name for name, value in options.items() if value is not None and value != []), None)
    if given is not None:
        flag = given.replace("_", "-")
        raise UsageError(f"--{flag} is about items: add --items json or sentences, or leave it out.")


def _bands(text: str | None) -> tuple[int, ...]:
    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"bands are whole numbers with commas between them, got {text!r}. Write 2,4.") from None


def fit_by_items(
    records: Sequence[Path],
    out: Path,
    options: FitItems,
    *,
    alpha: float,
    delta: float | None,
    rule: str | None,
    band_delta: Literal["together", "each"],
    groups: Groups,
    test_fraction: float,
    test: Sequence[Path],
    seed: int,
    without_failed: bool = False,
    report: Path | None = None,
) -> None:
    """Fit a gate of items, test it on what was kept out, and print the verdict; write its report if a path is given.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise.
    """
    beside = out.with_suffix(".test.jsonl")
    keep_inputs([*records, *test], [out, *([beside] if test_fraction else [])])
    if test and test_fraction:
        raise UsageError("--test and --test-fraction exclude each other: give a test file, or a share to keep out")
    files = open_files(records)
    file = pool_of(files)
    warn_unlike(files, key_of_items(file, options.items))
    chosen = replace(
        ItemsRule.read(rule), bands=_bands(options.by_length), band_delta=band_delta, planned=options.planned
    )
    part: Sequence[Record] = file.records
    rest: Sequence[Record] | None = None
    if test_fraction:
        part, rest = split(file.records, test_fraction=test_fraction, seed=seed, groups=groups)
    artifact = fit_items_artifact(
        file,
        alpha=alpha,
        kind=options.items,
        rule=chosen,
        delta=CERTIFICATE_DELTA if delta is None else delta,
        part=part,
        groups=groups,
        cap=options.cap,
        cut=options.cut,
        without_failed=without_failed,
    )
    held_out = open_pool(test) if test else None if rest is None else RecordFile(beside, file.header, rest)
    result = None if held_out is None else check_on(artifact, held_out)  # a test file that is refused counts no fit
    ledger = Ledger(records)
    artifact = counted(artifact, ledger, key_of_items(file, options.items))
    out.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(out)
    print_fits(artifact, ledger)
    written = [out]
    if rest is not None:
        write_records(beside, part_header(file.header, rest), rest)
        written.append(beside)
    print_items(artifact)
    print_paths(artifact, packed_answers(file, key_of_items(file, options.items), part=part, cap=options.cap))
    if result is not None:
        print_tested(artifact, result)
    tests = test or ([beside] if rest is not None else [])
    tail = "".join(f" --test {shlex.quote(str(path))}" for path in tests)
    if report is None:
        finish(written, f"calibrate report {listed(records)} --artifact {listed([out])}{tail}")
    else:
        pages, _ = _written_report(records, out, artifact, report, tests)
        finish([*written, *pages], f"open {report} in a browser; calibrate report {listed([out])}")
    if result is not None and result.verdict == "refuted":
        raise typer.Exit(1)


def check_rule(text: str | None) -> None:
    """Refuse a ``--rule`` that items do not have."""
    ItemsRule.read(text)


# -- What every command prints about a gate of items -------------------------------------------------------------------


def print_items(artifact: CalibrationArtifact) -> None:
    """Print the promise and the figures of a gate of items."""
    gate = artifact.items
    assert gate is not None, "an artifact of items"
    print_line(promise_line(gate), "bold" if gate.threshold is not None else "bold red")
    if gate.threshold is None:
        print_line(getattr(artifact.outcome, "detail", ""), "red")
        return
    if gate.figures is not None:
        for line in figures_lines(gate, gate.figures, gate.cut):
            print_line(line)


def print_paths(artifact: CalibrationArtifact, data: MeasuredItems) -> None:
    """Print a table of field paths and one of bands of the number of items."""
    gate = artifact.items
    assert gate is not None, "an artifact of items"
    limits = thresholds_of(gate, data.items)
    rows = paths_table(data.items, limits, data.columns)
    if len(rows) > 1:
        console.print(table("Items by path", ("path", "items", "wrong", "kept", "wrong among kept"), rows))
    bands = bands_table(data.items, limits, gate.allowed)
    if len(bands) > 1:
        heads = ("items an answer", "answers", "shown", "complete", "broken among shown")
        console.print(table("By the number of items", heads, bands))
    for line in path_warnings(gate, data.items, limits, data.columns):
        print_line(line, "yellow")


def print_tested(artifact: CalibrationArtifact, result: ItemsAudit) -> None:
    """Print the gate's figures on answers that it was not fitted on, and the test of its promise."""
    gate = artifact.items
    assert gate is not None, "an artifact of items"
    print_line(f"On {result.figures.answers} answers that it was not fitted on:", "bold")
    for line in figures_lines(gate, result.figures, result.data.items.cut):
        print_line(line)
    print_line(result.sentence, {"refuted": "red", "supported": "green", "undecided": "yellow"}[result.verdict])


def say_items(artifact: CalibrationArtifact) -> None:
    """Say what a gate of items promises."""
    gate = artifact.items
    assert gate is not None, "an artifact of items"
    print_items(artifact)
    print_line(f"Promise: {gate.promise}")
    print_facts(facts(artifact), caveats(gate))
    finish([], f"Guardrail(model=..., artifact=...{slots_argument(artifact)}) passes on the items that are kept")


# -- report, audit, evaluate, plan -------------------------------------------------------------------------------------


def report_by_items(
    records: Sequence[Path], artifact: Path, loaded: CalibrationArtifact, out: Path, test: Sequence[Path]
) -> None:
    """Write the report of a gate of items.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise.
    """
    written, result = _written_report(records, artifact, loaded, out, test)
    print_items(loaded)
    if result is not None:
        print_line(result.sentence)
    finish(written, f"open {out} in a browser")
    if result is not None and result.verdict == "refuted":
        raise typer.Exit(1)


def _written_report(
    records: Sequence[Path], artifact: Path, loaded: CalibrationArtifact, out: Path, test: Sequence[Path]
) -> tuple[list[Path], Tested | None]:
    gate = loaded.items
    assert gate is not None, "an artifact of items"
    file, rule = open_pool(records), ItemsRule.again(gate)
    files, name = listed(records), listed([artifact])
    tail = "".join(f" --test {shlex.quote(str(path))}" for path in test)
    flags = f"--items {gate.spec.kind} --alpha {gate.alpha:g} --rule {rule.text}{rule.flags}{cut_flag(gate.cut)}"
    if gate.delta not in (None, CERTIFICATE_DELTA):
        flags += f" --delta {gate.delta:g}"
    if gate.scores.group is not None:
        flags += " --cluster-by-group"
    if gate.spec.cap != spec_of_key(file.header, key_of_items(file, gate.spec.kind)).cap:
        flags += f" --cap {gate.spec.cap}"
    commands = (
        f"calibrate fit {files} {flags} --out {name}",
        f"calibrate report {files} --artifact {name}{tail} --out {listed([out])}",
    )
    return write_items_report(out, loaded, file, test=open_pool(test) if test else None, commands=commands)


def audit_by_items(
    loaded: CalibrationArtifact, file: RecordFile, *, level: float, target: float | None, as_json: bool
) -> None:
    """Test the promise of a gate of items on new labelled answers.

    Raises:
        typer.Exit: With code 1 where they refute it.
    """
    result = audit_items(loaded, file, level=level, target=target)
    if as_json:
        said = {name: getattr(result, name) for name in ("verdict", "sentence", "p_refuted", "p_supported")}
        typer.echo(json.dumps({**said, "figures": result.figures.model_dump(mode="json")}, indent=1))
    else:
        print_tested(loaded, result)
        print_paths(loaded, result.data)
    if result.verdict == "refuted":
        raise typer.Exit(1)


def evaluate_by_items(
    records: Sequence[Path],
    kind: str,
    *,
    alphas: Sequence[float],
    rules: Sequence[str],
    delta: float,
    n_calibration: int | None,
    splits: int,
    seed: int,
    csv_path: Path | None,
    json_path: Path | None,
    cut: float | None,
) -> None:
    """Compare rules for items over random splits."""
    items = pilot_items(open_pool(records), kind, cut=cut)
    with bar(console, "comparing rules", "rows") as progress:
        rows = evaluate_items(
            items,
            rules=chosen_rules(kind, rules) or compared_rules(kind),
            alphas=alphas,
            delta=delta,
            n_calibration=n_calibration,
            splits=splits,
            seed=seed,
            progress=progress,
        )
    _print_rows(
        rows, f"Items ({kind}), {items.n} answers, {splits} splits", "VR: splits above alpha on their test part"
    )
    written = []
    for path in (csv_path, json_path):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = [asdict(row) for row in rows]
            text = csv_text(content) if path is csv_path else json.dumps(content, indent=1) + "\n"
            path.write_text(text, encoding="utf-8", newline="")
            written.append(path)
    finish(written, f"calibrate fit {listed(records)} --items {kind} --alpha {alphas[0]:g}{cut_flag(cut)}")


def plan_by_items(
    pilot: Sequence[Path],
    kind: str,
    *,
    alpha: float,
    rules: Sequence[str],
    delta: float,
    sizes: Sequence[int],
    repetitions: int,
    seed: int,
    json_path: Path | None,
    cut: float | None,
) -> None:
    """Simulate calibrations of several sizes on a pilot with labelled items."""
    items = pilot_items(open_pool(pilot), kind, cut=cut)
    with bar(console, "simulating", "sizes") as progress:
        rows = plan_items(
            items,
            rules=chosen_rules(kind, rules or ["wrong_share"]),
            alpha=alpha,
            sizes=sizes,
            delta=delta,
            calibrations=repetitions,
            seed=seed,
            progress=progress,
        )
    title = f"{repetitions} calibrations on answers like the {items.n} of the pilot"
    _print_rows(rows, title, "VR: calibrations above alpha")
    kept = float(np.isfinite(items.uncertainty).sum() / items.n)
    which = "every item" if cut is None else f"every item up to the cut of {cut:g}"
    if kept:
        print_line(
            f"Without a single wrong item {answers_needed(alpha, delta, kept / items.cap)} answers would do, if "
            f"{which} were kept: an answer has {kept:.1f} of at most {items.cap} such items on average."
        )
    written = []
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
        written.append(json_path)
    finish(written, f"calibrate fit RECORDS --items {kind} --alpha {alpha:g}{cut_flag(cut)}")


def _print_rows(rows: Sequence[ItemsRow], title: str, violated: str) -> None:
    cells = [
        (
            row.rule,
            f"{row.alpha:g}",
            str(row.n),
            *(
                "-" if value is None else f"{100 * value:.1f}"
                for value in (row.right_kept, row.kept, row.wrong, row.shown, row.complete, row.broken)
            ),
            f"{100 * row.violated:.1f}",
            f"{100 * row.infeasible:.1f}",
        )
        for row in rows
    ]
    heads = ("rule", "alpha", "n", "right kept", "kept", "wrong", "shown", "complete", "broken", "VR", "IF")
    console.print(table(f"{title}, %", heads, cells))
    print_line(
        "right kept: share of the right items; wrong: of the items kept; shown, complete: of answers; broken: of shown "
        f"answers; {violated}; IF: those that keep nothing.",
        "dim",
    )
