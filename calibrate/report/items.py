"""One self-contained HTML file about a gate of items, and its figure as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import confidence, guarantee
from guardrail.errors import UsageError, require
from guardrail.files import atomic_write
from guardrail.items.spec import ItemsSpec
from guardrail.notebook import percent

from ..binding import hashes_of_fit
from ..data.records import Record, RecordFile
from ..data.table import among
from ..items.answers import LabelledItems, labelled_items
from ..items.audit import ItemsAudit, check_on
from ..items.figures import curve, item_figures, path_rows
from ..items.fit import require_same_items
from ..items.words import caveats, figures_lines, path_warnings, paths_table, promise_line
from .figures import Figure, Palette, render
from .sentences import facts

__all__ = ["write_items_report"]

MOST_EXAMPLES = 12


def write_items_report(
    path: str | Path,
    artifact: CalibrationArtifact,
    file: RecordFile,
    *,
    test: RecordFile | None = None,
    commands: Sequence[str] = (),
) -> tuple[list[Path], ItemsAudit | None]:
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
    require_same_items(artifact, file)
    own = file.records.take(among(file.records.asked_hashes(), hashes_of_fit(artifact)))
    if not own:
        raise UsageError(f"none of the records of {file.path} is one that the artifact was fitted on.")
    data = labelled_items(file, own, cap=ItemsSpec.of(artifact.estimator).cap)
    result = None if test is None else check_on(artifact, test)
    sets = [("Calibration", data)]
    if result is not None:
        sets.insert(0, ("Answers kept out of the fit", result.data))
    figure = _figure(artifact, [each for _, each in sets[::-1]])
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_name(f"{path.stem}-items.png")
    picture.write_bytes(figure.png)
    refuted = result is not None and result.verdict == "refuted"
    context: dict[str, Any] = {
        "artifact": artifact,
        "colour": "red" if artifact.threshold is None or refuted else "green",
        "title": _title(artifact, refuted=refuted),
        "promise": promise_line(artifact),
        "guarantee": guarantee(artifact.outcome, 1 - confidence(artifact)),
        "tested": None if result is None else result.sentence,
        "threshold": artifact.threshold,
        "sections": [_section(name, artifact, each) for name, each in sets],
        "has_test": test is not None,
        "examples": _examples(artifact, sets[0][1]),
        "caveats": caveats(artifact),
        "facts": facts(artifact),
        "commands": commands,
    }
    atomic_write(path, _rendered(context, figure), private=True)  # it shows questions and answers
    return [path, picture], result


def _title(artifact: CalibrationArtifact, *, refuted: bool) -> str:
    if artifact.threshold is None:
        return "Holds every item back"
    if refuted:
        return "Refuted by the test answers"
    figures = artifact.items
    return "Keeps items" if figures is None else f"Keeps {percent(figures.kept / figures.items)} of the items"


def _section(name: str, artifact: CalibrationArtifact, data: LabelledItems) -> dict[str, Any]:
    figures = item_figures(data.items, artifact.threshold, data.columns)
    rows = path_rows(data.items, artifact.threshold, data.columns)
    return {
        "name": name,
        "count": data.items.n,
        "lines": figures_lines(artifact, figures),
        "warnings": path_warnings(artifact, rows),
        "paths": paths_table(rows),
    }


def _figure(artifact: CalibrationArtifact, sets: Sequence[LabelledItems]) -> Figure:
    def draw(axes: Any, colour: Palette) -> None:
        top = 1.0
        styles = [(colour.blue, "-", "calibration"), (colour.green, "--", "test")]
        for data, (ink, dashes, name) in zip(sets, styles, strict=False):
            kept, wrong = (100 * shares for shares in curve(data.items))
            axes.plot(kept, wrong, color=ink, lw=2, ls=dashes, label=name)
            top = max([top, *wrong.tolist()])
        if (own := artifact.items) is not None and own.kept:
            at = 100 * own.kept / own.items, 100 * own.kept_wrong / own.kept
            axes.plot(*at, "o", color=colour.blue, mec=colour.ink, ms=10, label="threshold in use", zorder=6)
        axes.axhline(
            100 * artifact.alpha, color=colour.red, lw=1.6, ls=(0, (2, 2)), label=f"target {100 * artifact.alpha:g} %"
        )
        axes.set(xlim=(0, 101), ylim=(0, min(102.0, max(1.3 * top, 180 * artifact.alpha))))
        axes.set(xlabel="items kept, %", ylabel="wrong among the kept, %")
        axes.legend(frameon=False, labelcolor=colour.ink, loc="upper left")

    return render(draw, "items", "Share of wrong items among those kept against the share of items kept")


def _examples(artifact: CalibrationArtifact, data: LabelledItems) -> list[dict[str, Any]]:
    limit = float("-inf") if artifact.threshold is None else artifact.threshold
    kept = (data.items.uncertainty <= limit).tolist()
    start = [0, *data.items.size.cumsum().tolist()]
    step = max(1, len(data.records) // MOST_EXAMPLES)
    return [
        {"question": data.records[i].question, "fields": _fields(data.records[i], kept[start[i] : start[i + 1]])}
        for i in range(0, len(data.records), step)[:MOST_EXAMPLES]
    ]


def _fields(record: Record, kept: Sequence[bool]) -> list[dict[str, Any]]:
    assert record.items is not None, "labelled answers have items"
    assert record.item_labels is not None, "and labels"
    return [
        {
            "name": item.path,
            "text": "(left out)" if item.absent else item.text,
            "kept": flag,
            "label": {True: "", False: "wrong", None: "undecided"}[label],
            "score": "not measured" if item.uncertainty is None else f"{item.uncertainty:.2g}",
        }
        for item, flag, label in zip(record.items, kept, record.item_labels.right, strict=True)
    ]


def _rendered(context: dict[str, Any], figure: Figure) -> str:
    jinja2 = require("jinja2", extra="calibrate")
    markup = require("markupsafe", extra="calibrate").Markup
    # Autoescape is on for everything, because questions and answers are foreign text. Only our own SVG is exempt.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text: str = environment.get_template("items.html.j2").render({**context, "figure": markup(figure.svg)})
    return text
