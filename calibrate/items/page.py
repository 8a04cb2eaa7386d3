"""One self-contained HTML file about a gate of items, and its figure as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError, require
from guardrail.files import atomic_write
from guardrail.notebook import percent

from ..data.records import Record, RecordFile
from ..data.table import among
from ..pipeline import hashes_of_fit
from ..report import page as whole_answers
from ..report.figures import Figure, Palette, render
from .answers import MeasuredItems, item_names, key_of_items, needs_label, packed_answers
from .audit import Tested, check_on
from .figures import curve, item_figures, kept_of
from .fit import require_same_items, thresholds_of
from .promises import figures_lines, promise_line
from .wording import bands_table, caveats, facts, path_warnings, paths_table

__all__ = ["write_items_report"]

MOST_EXAMPLES = 12


@dataclass(frozen=True, slots=True)
class _Section:
    """Figures of one set of answers."""

    name: str
    count: int
    lines: Sequence[str]
    warnings: Sequence[str]
    paths: Sequence[Sequence[str]]
    bands: Sequence[Sequence[str]]


def write_items_report(
    path: str | Path,
    artifact: CalibrationArtifact,
    file: RecordFile,
    *,
    test: RecordFile | None = None,
    commands: Sequence[str] = (),
) -> tuple[list[Path], Tested | None]:
    """Write the report of a gate of items.

    Args:
        path: The HTML file; its figure goes next to it as PNG.
        artifact: An artifact with items.
        file: The records it was fitted on; others among them are left out.
        test: Labelled records that it was not fitted on.
        commands: Commands that reproduce the artifact.

    Returns:
        The files written, and the test of the promise; None without test records.

    Raises:
        UsageError: The artifact gates whole answers, or the records are not those of the fit.
    """
    gate = artifact.items
    if gate is None:
        raise UsageError("this artifact gates whole answers; its report is that of `calibrate.report.write_report`.")
    key = key_of_items(file, gate.spec.kind)
    require_same_items(artifact, file, key)
    own = file.records.take(among(file.records.question_hashes(), hashes_of_fit(artifact)))
    if not own:
        raise UsageError(f"none of the records of {file.path} is one that the artifact was fitted on.")
    data = packed_answers(file, key, part=own, cap=gate.spec.cap, cut=gate.cut)
    sections = [_section("Calibration", artifact, data)]
    held_out, result = None, None
    if test is not None:
        result = check_on(artifact, test)
        held_out = result.data
        sections.insert(0, _section("Answers kept out of the fit", artifact, held_out))
    figure = _figure(artifact, data, held_out)
    shown = held_out or data
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_name(f"{path.stem}-items.png")
    picture.write_bytes(figure.png)
    context: dict[str, Any] = {
        "artifact": artifact,
        "colour": "red" if gate.threshold is None or (result and result.verdict == "refuted") else "green",
        "title": _title(artifact, result),
        "promise": promise_line(gate),
        "detail": getattr(artifact.outcome, "detail", "") if gate.threshold is None else "",
        "tested": None if result is None else result.sentence,
        "threshold": gate.threshold,
        "sections": sections,
        "figure": figure.svg,
        "has_test": held_out is not None,
        "examples": _examples(artifact, shown, key),
        "examples_from": "test" if held_out is not None else "calibration",
        "caveats": caveats(gate),
        "facts": facts(artifact),
        "commands": commands,
    }
    atomic_write(path, _rendered(context), private=True)  # it shows questions and answers
    return [path, picture], result


def _title(artifact: CalibrationArtifact, result: Tested | None) -> str:
    if artifact.items is None or artifact.items.threshold is None:
        return "Holds every item back"
    if result is not None and result.verdict == "refuted":
        return "Refuted by the test answers"
    figures = artifact.items.figures
    return "Keeps items" if figures is None else f"Keeps {percent(figures.kept / figures.items)} of the items"


def _section(name: str, artifact: CalibrationArtifact, data: MeasuredItems) -> _Section:
    gate = artifact.items
    assert gate is not None, "an artifact of items"
    limits = thresholds_of(gate, data.items)
    figures = item_figures(data.items, limits, allowed=gate.allowed, columns=data.columns)
    return _Section(
        name,
        data.items.n,
        figures_lines(gate, figures, data.items.cut),
        path_warnings(gate, data.items, limits, data.columns),
        paths_table(data.items, limits, data.columns) if gate.spec.kind == "json" else (),
        bands_table(data.items, limits, gate.allowed),
    )


def _figure(artifact: CalibrationArtifact, data: MeasuredItems, test: MeasuredItems | None) -> Figure:
    gate = artifact.items
    assert gate is not None, "an artifact of items"

    def draw(axes: Any, colour: Palette) -> None:
        points = curve(data.items)
        x, y = [100 * point.kept for point in points], [100 * point.wrong for point in points]
        axes.plot(x, y, color=colour.blue, lw=2.2, marker="o" if len(x) <= 60 else "", ms=4.5, label="calibration")
        top = max(y, default=1.0)
        if test is not None:
            other = curve(test.items)
            axes.plot(
                [100 * point.kept for point in other],
                [100 * point.wrong for point in other],
                color=colour.green,
                lw=1.8,
                ls=(0, (5, 2)),
                label="test",
            )
        if gate.threshold is not None and gate.figures is not None and gate.figures.kept:
            at = 100 * gate.figures.kept / gate.figures.items, 100 * gate.figures.kept_wrong / gate.figures.kept
            axes.plot(*at, "o", color=colour.blue, mec=colour.ink, ms=10, label="threshold in use", zorder=6)
        axes.axhline(100 * gate.alpha, color=colour.red, lw=1.6, ls=(0, (2, 2)), label=f"target {100 * gate.alpha:g} %")
        axes.set(xlim=(0, 101), ylim=(0, min(102.0, max(1.3 * top, 180 * gate.alpha))))
        axes.set(xlabel="items kept, %", ylabel="wrong among the kept, %")
        axes.legend(frameon=False, labelcolor=colour.ink, loc="upper left")

    return render(draw, "items", "Share of wrong items among those kept against the share of items kept")


def _examples(artifact: CalibrationArtifact, data: MeasuredItems, key: str) -> list[dict[str, Any]]:
    gate = artifact.items
    assert gate is not None, "an artifact of items"
    kept = kept_of(data.items, thresholds_of(gate, data.items)).tolist()
    start = [0, *data.items.size.cumsum().tolist()]
    step = max(1, len(data.records) // MOST_EXAMPLES)
    return [
        {
            "question": record.question,
            "fields": _example_parts(record, key, kept[start[i] : start[i + 1]], data.items.cut),
        }
        for i in range(0, len(data.records), step)[:MOST_EXAMPLES]
        for record in [data.records[i]]
    ]


def _example_parts(record: Record, key: str, kept: Sequence[bool], cut: float | None) -> list[dict[str, Any]]:
    items, right = record.items[key], record.item_labels[key].right
    return [
        {
            "name": name,
            "text": "(left out)" if item.absent else item.text,
            "kept": flag,
            # Nobody judged an item above the cut.
            "label": {True: "", False: "wrong", None: "undecided" if needs_label(item, cut) else ""}[label],
            "score": "not measured" if item.uncertainty is None else f"{item.uncertainty:.2g}",
        }
        for name, item, flag, label in zip(item_names(items), items, kept, right, strict=True)
    ]


def _rendered(context: dict[str, Any]) -> str:
    jinja2 = require("jinja2", extra="calibrate")
    markup = require("markupsafe", extra="calibrate").Markup
    # Autoescape is on for everything, because questions and answers are foreign text. Only our own SVG is exempt.
    folders = [Path(__file__).parent, Path(whole_answers.__file__).parent]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text: str = environment.get_template("report.html.j2").render({**context, "figure": markup(context["figure"])})
    return text
