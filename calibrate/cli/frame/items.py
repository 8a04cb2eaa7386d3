"""Commands on items of answers (`--items`): each command branches here once, before anything else."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.json_fields import DateJudge
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.judges import Judge, make_judge
from guardrail.notebook import percent

from ...data.progress import bar
from ...data.records import Record, RecordFile, read_records, write_records
from ...data.split import Groups, split
from ...evaluation.evaluate import csv_text
from ...fitting import DEFAULT_DELTA
from ...items.answers import (
    label_items,
    labelled_items,
    labels_of_file,
    measure_file,
    needs_label,
    spec_of_answers,
    stored_spec,
)
from ...items.audit import ItemsAudit, audit_items, check_on
from ...items.evaluate import SIZES, ItemsRow, evaluate_items, pilot_items, plan_items
from ...items.figures import path_rows
from ...items.fit import fit_items_artifact
from ...items.rules import RULES, rule_named
from ...items.words import figures_lines, path_warnings, paths_table
from ...ledger import Ledger, counted
from ...pipeline import part_header
from ...report.items import write_items_report
from ...report.sentences import verdict_text
from ...spec_syntax import assignment, parse_name
from .files import changed_file, keep_inputs, open_files, open_pool, pool_of, warn_unlike
from .next_commands import listed
from .terminal import console, finish, print_line, table
from .verdicts import print_verdict

__all__ = ["ScoreItems", "audit_by_items", "evaluate_by_items", "fit_by_items", "label_by_items"]
__all__ += ["plan_by_items", "refuse_with_items", "refuse_without_items", "report_by_items"]
__all__ += ["score_by_items"]


# -- Options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScoreItems:
    """Splitting answers into items, and comparing the items."""

    cap: int | None = None
    field_judge: Sequence[str] = ()
    key_field: Sequence[str] = ()
    optional_field: Sequence[str] = ()

    def spec_of(self, file: RecordFile) -> ItemsSpec:
        """The specification for the answers of a file.

        Raises:
            UsageError: As `calibrate.items.answers.spec_of_answers`.
        """
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
    return DateJudge(**params) if name == "date" else make_judge(name, **params)


def refuse_with_items(**options: object) -> None:
    """Refuse options of whole answers together with --items.

    Raises:
        UsageError: Naming the first of them.
    """
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise UsageError(f"--{given.replace('_', '-')} is about whole answers: leave it out with --items.")


def refuse_without_items(**options: object) -> None:
    """Refuse options of items where whole answers are meant.

    Raises:
        UsageError: Naming the first of them.
    """
    given = next((name for name, value in options.items() if value is not None and value != []), None)
    if given is not None:
        raise UsageError(f"--{given.replace('_', '-')} is about items: add --items, or leave it out.")


# -- score, label ------------------------------------------------------------------------------------------------------


def score_by_items(source: Path, target: Path, options: ScoreItems, spec: ItemsSpec | None = None) -> ItemsSpec:
    """Split every answer and measure its items, by this specification or that of the options; returns it."""
    spec = spec or options.spec_of(read_records(source))
    with bar(console, "measuring items", "records") as progress:
        measure_file(source, target, items_measure(spec), progress=progress)
    file = read_records(target)
    sizes = [len(record.items) for record in file.records if record.items is not None]
    scores = [item.uncertainty for record in file.records for item in record.items or ()]
    missing = [record.scores.get(ITEMS) for record in file.records if record.items is None]
    reasons = sorted({str(score.reason) for score in missing if score is not None})
    rows = [
        ("answers measured", str(len(sizes))),
        ("answers not measured (they abstain)", f"{len(missing)} {', '.join(reasons)}".strip()),
        ("items", f"{sum(sizes)}" + (f", {min(sizes)} to {max(sizes)} an answer" if sizes else "")),
        ("items not measured (held back)", str(scores.count(None))),
        (f"items beyond the cap of {spec.cap} (held back)", str(sum(max(0, size - spec.cap) for size in sizes))),
        ("items that every sample supports", percent(scores.count(0) / len(scores) if scores else None)),
    ]
    console.print(table("Items", ("", ""), rows))
    return spec


def label_by_items(source: Path, target: Path, labels: Path | None, cut: float | None = None) -> None:
    """Label the items of every answer: by its reference, or as people did, who saw no item above the cut."""

    def change(file: RecordFile) -> RecordFile:
        return label_items(file) if labels is None else labels_of_file(file, labels)

    file = changed_file(source, target, change)
    labelled = [(record.items, record.item_labels) for record in file.records if record.items and record.item_labels]
    pairs = [zip(items, labels.right, strict=True) for items, labels in labelled]
    asked = [[label for item, label in some if needs_label(item, cut)] for some in pairs]
    right = [label for some in asked for label in some]
    up_to = "" if cut is None else f" up to the cut of {cut:g}"
    wrong, undecided = len(right) - right.count(True), right.count(None)
    print_line(
        f"{len(asked)} of {len(file.records)} answers have labelled items: {wrong} of {len(right)} items{up_to} are "
        f"wrong ({percent(wrong / len(right) if right else None)})"
        + (f", {undecided} of them undecided, which count as wrong." if undecided else ".")
    )
    broken = sum(any(label is not True for label in some) for some in asked)
    share = percent(broken / len(asked) if asked else None)
    print_line(f"{broken} of {len(asked)} answers have a wrong item{up_to} ({share}).")


# -- fit, report -------------------------------------------------------------------------------------------------------


def fit_by_items(
    records: Sequence[Path],
    out: Path,
    *,
    alpha: float,
    delta: float | None,
    rule: str | None,
    cap: int | None = None,
    groups: Groups,
    test_fraction: float,
    test: Sequence[Path],
    seed: int,
    without_failed: bool = False,
    report: Path | None = None,
) -> None:
    """Fit a gate of items, test it on what was kept out, and print the verdict; write its report if a path is given.

    Raises:
        typer.Exit: With code 1 where the test split refutes the promise.
    """
    beside = out.with_suffix(".test.jsonl")
    keep_inputs([*records, *test], [out, *([beside] if test_fraction else [])])
    if test and test_fraction:
        raise UsageError("--test and --test-fraction exclude each other: give a test file, or a share to keep out")
    files = open_files(records)
    file = pool_of(files)
    stored_spec(file)
    warn_unlike(files, ITEMS)
    fitted: Sequence[Record] = file.records
    rest: Sequence[Record] | None = None
    if test_fraction:
        fitted, rest = split(file.records, test_fraction=test_fraction, seed=seed, groups=groups)
    artifact = fit_items_artifact(
        file,
        alpha=alpha,
        rule=rule,
        delta=DEFAULT_DELTA if delta is None else delta,
        part=fitted,
        groups=groups,
        cap=cap,
        without_failed=without_failed,
    )
    held_out = open_pool(test) if test else None if rest is None else RecordFile(beside, file.header, rest)
    result = None if held_out is None else check_on(artifact, held_out)  # a test file that is refused counts no fit
    ledger = Ledger(records)
    artifact = counted(artifact, ledger)
    out.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(out)
    written = [out]
    if rest is not None:
        write_records(beside, part_header(file.header, rest), rest)
        written.append(beside)
    print_verdict(verdict_text(artifact))
    data = labelled_items(file, fitted, cap=cap)
    _print_paths(artifact, path_rows(data.items, artifact.threshold, data.columns))
    if result is not None:
        _print_tested(artifact, result)
    tests = test or ([beside] if rest is not None else [])
    if report is None:
        tail = "".join(f" --test {shlex.quote(str(path))}" for path in tests)
        finish(written, f"calibrate report {listed(records)} --artifact {listed([out])}{tail}")
    else:
        pages, _ = _written_report(records, out, artifact, report, tests)
        finish([*written, *pages], f"open {report} in a browser; calibrate report {listed([out])}")
    if result is not None and result.verdict == "refuted":
        raise typer.Exit(1)


def _print_paths(artifact: CalibrationArtifact, rows: Sequence[Any]) -> None:
    if len(rows) > 1:
        heads = ("path", "items", "wrong", "kept", "wrong among kept")
        console.print(table("Items by path", heads, paths_table(rows)))
    for line in path_warnings(artifact, rows):
        print_line(line, "yellow")


def _print_tested(artifact: CalibrationArtifact, result: ItemsAudit) -> None:
    print_line(f"On {result.figures.answers} answers that it was not fitted on:", "bold")
    for line in figures_lines(artifact, result.figures):
        print_line(line)
    print_line(result.sentence, {"refuted": "red", "supported": "green", "undecided": "yellow"}[result.verdict])


def report_by_items(
    records: Sequence[Path], artifact: Path, loaded: CalibrationArtifact, out: Path, test: Sequence[Path]
) -> None:
    """Write the report of a gate of items.

    Raises:
        typer.Exit: With code 1 where the test split refutes the promise.
    """
    written, result = _written_report(records, artifact, loaded, out, test)
    print_verdict(verdict_text(loaded))
    if result is not None:
        print_line(result.sentence)
    finish(written, f"open {out} in a browser")
    if result is not None and result.verdict == "refuted":
        raise typer.Exit(1)


def _written_report(
    records: Sequence[Path], artifact: Path, loaded: CalibrationArtifact, out: Path, test: Sequence[Path]
) -> tuple[list[Path], ItemsAudit | None]:
    outcome, file = loaded.outcome, open_pool(records)
    cap = ItemsSpec.of(loaded.estimator).cap
    files, name = listed(records), listed([artifact])
    tail = "".join(f" --test {shlex.quote(str(path))}" for path in test)
    flags = f"--items --alpha {outcome.alpha:g} --rule {outcome.rule}"
    flags += "" if outcome.delta == DEFAULT_DELTA else f" --delta {outcome.delta:g}"
    flags += "" if loaded.calibration.group is None else " --cluster-by-group"
    flags += "" if cap == stored_spec(file).cap else f" --cap {cap}"
    commands = (
        f"calibrate fit {files} {flags} --out {name}",
        f"calibrate report {files} --artifact {name}{tail} --out {listed([out])}",
    )
    return write_items_report(out, loaded, file, test=open_pool(test) if test else None, commands=commands)


# -- audit, evaluate, plan ---------------------------------------------------------------------------------------------


def audit_by_items(
    loaded: CalibrationArtifact, file: RecordFile, *, level: float, target: float | None, as_json: bool
) -> bool:
    """Test the promise of a gate of items on new labelled answers; whether they refute it."""
    result = audit_items(loaded, file, level=level, target=target)
    if as_json:
        said = {name: getattr(result, name) for name in ("verdict", "sentence", "p_refuted", "p_supported")}
        typer.echo(json.dumps({**said, "figures": result.figures.model_dump(mode="json")}, indent=1))
    else:
        _print_tested(loaded, result)
        _print_paths(loaded, path_rows(result.data.items, loaded.threshold, result.data.columns))
    return result.verdict == "refuted"


def evaluate_by_items(
    records: Sequence[Path],
    *,
    alphas: Sequence[float],
    rules: Sequence[str],
    delta: float,
    n_calibration: int | None,
    splits: int,
    seed: int,
    csv_path: Path | None,
    json_path: Path | None,
) -> None:
    """Compare rules for items over random splits."""
    items = pilot_items(open_pool(records))
    with bar(console, "comparing rules", "rows") as progress:
        rows = evaluate_items(
            items,
            rules=[rule_named(rule) for rule in rules] or RULES,
            alphas=alphas,
            delta=delta,
            n_calibration=n_calibration,
            splits=splits,
            seed=seed,
            progress=progress,
        )
    _print_rows(rows, f"Items, {items.n} answers, {splits} splits", "VR: splits above alpha on their test split")
    written = _tables(rows, csv_path, json_path)
    finish(written, f"calibrate fit {listed(records)} --items --alpha {alphas[0]:g}")


def plan_by_items(
    pilot: Sequence[Path],
    *,
    alpha: float,
    rules: Sequence[str],
    delta: float,
    sizes: Sequence[int] | None,
    repetitions: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """Simulate calibrations of several sizes on a pilot with labelled items."""
    items = pilot_items(open_pool(pilot))
    with bar(console, "simulating", "sizes") as progress:
        rows = plan_items(
            items,
            rules=[rule_named(rule) for rule in rules] or RULES[:1],
            alpha=alpha,
            sizes=sizes or SIZES,
            delta=delta,
            repetitions=repetitions,
            seed=seed,
            progress=progress,
        )
    title = f"{repetitions} calibrations on answers like the {items.n} of the pilot"
    _print_rows(rows, title, "VR: calibrations above alpha")
    finish(_tables(rows, None, json_path), f"calibrate fit RECORDS --items --alpha {alpha:g}")


def _tables(rows: Sequence[ItemsRow], csv_path: Path | None, json_path: Path | None) -> list[Path]:
    content = [asdict(row) for row in rows]
    texts = {csv_path: csv_text(content), json_path: json.dumps(content, indent=1) + "\n"}
    written = [path for path in texts if path is not None]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8", newline="")
    return written


def _print_rows(rows: Sequence[ItemsRow], title: str, violated: str) -> None:
    names = ("right_kept", "kept", "wrong", "shown", "complete", "broken", "violated", "infeasible")
    cells = [
        (
            row.rule,
            f"{row.alpha:g}",
            str(row.n),
            *("-" if getattr(row, name) is None else f"{100 * getattr(row, name):.1f}" for name in names),
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
