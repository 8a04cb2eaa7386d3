"""Reports of small artifacts as HTML without their pictures, and the content of every figure as numbers and styles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the calibrate extra is not installed")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from calibrate.correctness import Exact, label_records
from calibrate.data.collect import collect_records
from calibrate.data.questions import read_questions
from calibrate.data.records import GIVEN, Record, RecordFile, read_records
from calibrate.evaluation.audit import Audit, audit
from calibrate.evaluation.evaluate import evaluate
from calibrate.evaluation.grid import Source
from calibrate.evaluation.planning import plan as labels_needed
from calibrate.evaluation.planning import with_labels_needed
from calibrate.parts.answers import label_parts, measure_records
from calibrate.parts.fit import fit_parts_artifact
from calibrate.parts.page import write_parts_report
from calibrate.pipeline import fit_artifact, split
from calibrate.report import compare_rules, sentences, write_report
from calibrate.report import page as report_page
from calibrate.report.comparison import FORMS, paper_view
from calibrate.report.figures import Figure as Drawn
from calibrate.report.figures import Items, _for_page, risk_coverage, score_histogram
from calibrate.report.panels import across_alpha, violations
from calibrate.scoring.scores import score_records
from calibrate.segments import BySegment
from calibrate.thresholds import fit
from guardrail import notebook
from guardrail.artifact import CalibrationArtifact, CalibrationScores, EstimatorChoice, Looks, Reach, Selection
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason
from guardrail.parts.json_fields import json_spec
from guardrail.parts.measure import parts_measure
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.plan import plan_for
from tests.calibrate import fakes
from tests.calibrate.parts.cards import invoices, record_file
from tests.golden.shown import same

KEY = "discrete_semantic_entropy"
CREATED = "2026-01-02T03:04:05+00:00"


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    """Labelled records of a scripted model with a few scores that tie or differ clearly."""
    folder = tmp_path_factory.mktemp("population")
    estimators = [make_estimator(name) for name in (KEY, "num_sets", "self_consistency", "perplexity")]
    questions = read_questions(fakes.write_questions(folder / "questions.jsonl"))
    drawn = plan_for([make_estimator("semantic_entropy")]).model_copy(update={"n": 6})
    collect_records(questions, fakes.model(), drawn, folder / "records.jsonl", name="questions.jsonl")
    file = score_records(read_records(folder / "records.jsonl"), estimators)
    header = file.header.model_copy(update={"correctness": Exact().spec})
    in_order = sorted(label_records(file.records, Exact()), key=lambda record: int(record.id[1:]))
    return RecordFile(Path("records.jsonl"), header, tuple(in_order))  # collected in the order of the answers


# -- figures as text -----------------------------------------------------------------------------------------------


def number(value: Any) -> str:
    """Four digits."""
    return f"{round(float(value), 9) + 0.0:.4g}"


def numbers(values: Any) -> str:
    """A list of numbers; of a long one its ends and its mean."""
    each = [float(value) for value in np.ravel(np.asarray(values, dtype=float))]
    if len(each) <= 24:
        return "[" + " ".join(map(number, each)) + "]"
    first, last = " ".join(map(number, each[:6])), " ".join(map(number, each[-3:]))
    return f"[{first} ... {last}] n {len(each)} mean {number(np.mean(each))}"


def colour(value: Any) -> str:
    """A colour in hex, with its opacity."""
    return "none" if isinstance(value, str) and value == "none" else to_hex(value, keep_alpha=True)


def named(shape: Any) -> str:
    """The label of a line or an area; matplotlib makes one up that begins with an underscore."""
    label = str(shape.get_label())
    return repr("" if label.startswith("_") else label)


def line_style(line: Any) -> str:
    """Dashes of a line, in points of its width."""
    offset, dashes = getattr(line, "_unscaled_dash_pattern", (0, None))
    return line.get_linestyle() if dashes is None else f"({number(offset)}, {numbers(dashes)})"


def described(text: Any) -> str:
    """A text with its place and style."""
    box = text.get_bbox_patch()
    parts = [
        repr(text.get_text()),
        f"at {' '.join(number(value) for value in text.get_position())}",
        f"{text.get_ha()} {text.get_va()} {colour(text.get_color())} size {number(text.get_fontsize())}",
        f"weight {text.get_weight()} z {text.get_zorder()}",
    ]
    if hasattr(text, "xy"):
        parts.append(f"of {' '.join(number(value) for value in text.xy)} {text.xycoords} {text.anncoords}")
    if getattr(text, "arrow_patch", None) is not None:
        arrow = text.arrowprops
        parts.append("arrow " + " ".join(f"{name} {arrow[name]}" for name in sorted(arrow)))
    if box is not None:
        parts.append(f"box {colour(box.get_facecolor())} {colour(box.get_edgecolor())} {box.get_alpha()}")
    return ", ".join(parts)


def axes_lines(axes: Any) -> Iterator[str]:
    """Everything that axes show."""
    for side in ("left", "center", "right"):
        if axes.get_title(loc=side):
            title = {"left": axes._left_title, "center": axes.title, "right": axes._right_title}[side]
            yield f"title {side}: {described(title)}"
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        low, high = axis.get_view_interval()
        yield f"{name}: {axis.get_label().get_text()!r} {colour(axis.get_label().get_color())} {axis.get_scale()}"
        yield f"  from {number(low)} to {number(high)}"
        inside = [tick for tick in axis.get_ticklocs() if min(low, high) - 1e-9 <= tick <= max(low, high) + 1e-9]
        shown = axis.get_major_formatter().format_ticks(axis.get_ticklocs())
        texts = [text for tick, text in zip(axis.get_ticklocs(), shown, strict=True) if tick in inside]
        yield f"  ticks {numbers(inside)} {texts}"
        tick = axis.get_major_ticks()[0]
        length = number(tick.tick1line.get_markersize())
        yield f"  tick {colour(tick.label1.get_color())} length {length} pad {tick.get_pad()}"
        grid = tick.gridline
        if grid.get_visible():
            yield f"  grid {colour(grid.get_color())} width {number(grid.get_linewidth())}"
    spines = {side: spine for side, spine in axes.spines.items() if spine.get_visible()}
    yield "spines " + ", ".join(f"{side} {colour(spine.get_edgecolor())}" for side, spine in spines.items())
    yield f"face {colour(axes.get_facecolor())}, axis below {axes.get_axisbelow()}"
    for line in axes.lines:
        yield f"line {named(line)}: x {numbers(line.get_xdata())} y {numbers(line.get_ydata())}"
        style = ""
        if line.get_linestyle() != "None":
            style = f"{colour(line.get_color())} width {number(line.get_linewidth())} {line_style(line)} "
        ends = f"caps {line.get_solid_capstyle()} clip {line.get_clip_on()}"
        yield f"  {style}alpha {line.get_alpha()} z {line.get_zorder()} {ends}"
        if line.get_marker() not in ("", "None", None):
            face, edge = colour(line.get_markerfacecolor()), colour(line.get_markeredgecolor())
            yield (
                f"  marker {line.get_marker()} size {number(line.get_markersize())} {face} edge {edge}"
                f" {number(line.get_markeredgewidth())}"
            )
    if axes.patches:
        bars = axes.patches
        yield f"bars: n {len(bars)}, x {numbers([bar.get_x() for bar in bars])}"
        heights, widths = [bar.get_height() for bar in bars], [bar.get_width() for bar in bars]
        yield f"  height {numbers(heights)} width {numbers(widths)}"
        styles = dict.fromkeys(
            f"{colour(bar.get_facecolor())} edge {colour(bar.get_edgecolor())} {number(bar.get_linewidth())}"
            f" hatch {bar.get_hatch()}"
            for bar in bars
        )
        yield f"  {'; '.join(styles)}"
    for shape in axes.collections:
        points = np.unique(np.round(np.concatenate([path.vertices for path in shape.get_paths()]), 6), axis=0)
        yield f"area {named(shape)}: x {numbers(points[:, 0])} y {numbers(points[:, 1])}"
        yield f"  {colour(shape.get_facecolor()[0])} alpha {shape.get_alpha()} width {numbers(shape.get_linewidth())}"
    for text in axes.texts:
        yield f"text {described(text)}"
    if axes.get_legend() is not None:
        yield from legend_lines(axes.get_legend())


def legend_lines(legend: Any) -> Iterator[str]:
    """A legend with its place and style."""
    texts = [f"{text.get_text()!r} {colour(text.get_color())}" for text in legend.get_texts()]
    yield f"legend: {', '.join(texts)}"
    yield (
        f"  loc {legend._loc} columns {legend._ncols} frame {legend.get_frame_on()}"
        f" handle {number(legend.handlelength)} pad {number(legend.handletextpad)}"
        f" columns apart {number(legend.columnspacing)}"
    )


def figure_lines(figure: Any) -> list[str]:
    """Everything that a figure shows."""
    width, height = figure.get_size_inches()
    lines = [f"{number(width)} x {number(height)} inches, {figure.get_dpi():g} dpi, {colour(figure.get_facecolor())}"]
    for place, axes in enumerate(figure.axes, 1):
        lines += [f"axes {place}:", *(f"  {line}" for line in axes_lines(axes))]
    for legend in figure.legends:
        lines += [*legend_lines(legend), f"  outside {legend._outside_loc}"]
    return lines


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures in the order in which they are saved, each once, with how they were saved; nothing is rendered."""
    figures: list[Any] = []

    def save(figure: Figure, stream: IO[bytes], *, format: str, **how: Any) -> None:
        if figure not in (seen for seen, _ in figures):
            figures.append((figure, []))
        next(saved for seen, saved in figures if seen is figure).append(f"{format} {how}")
        stream.write(b'<svg width="1pt"></svg>' if format == "svg" else b"PNG")

    monkeypatch.setattr(Figure, "savefig", save)
    return figures


def pool(n: int = 300, low: float = 0.05, slope: float = 0.6, seed: int = 0, digits: int = 9) -> Items:
    """Scores, and errors that become frequent with them."""
    state = np.random.RandomState(seed)  # the same numbers in every version of numpy
    scores = np.round(state.random_sample(n), digits)
    return Items(scores, (state.random_sample(n) < low + slope * scores).astype(np.int8))


def figures_of(drawn: list[Any], draw: Callable[[], Any], name: str) -> list[str]:
    """Lines about the figures that ``draw`` saves."""
    before = len(drawn)
    lines = [f"== {name} ==", draw().svg]
    for figure, saved in drawn[before:]:
        lines += ["", f"-- saved: {'; '.join(saved)}", *figure_lines(figure)]
    return [*lines, ""]


def test_figures_of_a_report(drawn: list[Any]) -> None:
    few, many, other = pool(digits=1), pool(1200), pool(200, seed=1)
    outcome = fit(many.uncertainty, many.error, alpha=0.2, rule="acrc")
    certified = fit(many.uncertainty, many.error, alpha=0.2, rule="certified", delta=0.1)
    nothing = fit(few.uncertainty, few.error, alpha=0.01, rule="certified", delta=0.1)
    lines = [
        *figures_of(drawn, lambda: risk_coverage(many, outcome, certified, other), "risk and coverage, with a test"),
        *figures_of(drawn, lambda: risk_coverage(few, nothing, nothing), "risk and coverage, nothing accepted"),
        *figures_of(drawn, lambda: score_histogram(many, 0.35, "nats"), "scores"),
        *figures_of(drawn, lambda: score_histogram(few, 0.9, "probability"), "few scores, nearly all accepted"),
        *figures_of(drawn, lambda: score_histogram(few, None, "probability"), "scores without a threshold"),
    ]
    same("report/figures.txt", "\n".join(lines))


def test_figures_that_compare(drawn: list[Any]) -> None:
    items = pool(240)
    rules = ["acrc", "certified", "lec", "hoeffding", "sgr"]
    rows = evaluate(
        items.uncertainty, items.error, rules=rules, alphas=[0.1, 0.2, 0.3], n_calibration=120, splits=12
    ).rows
    promised = {row.rule: 0.1 for row in rows if row.rule in ("certified", "sgr")}
    at = [row for row in rows if row.alpha == 0.2]
    lines = [
        *figures_of(drawn, lambda: across_alpha(rows, 0.2, 0.35), "across alpha"),
        *figures_of(drawn, lambda: across_alpha(rows[:1], 0.2), "one rule at one alpha, without a base error"),
        *figures_of(drawn, lambda: violations(at, promised), "splits above the target"),
    ]
    same("report/figures-compared.txt", "\n".join(lines))


def test_the_papers_tables(drawn: list[Any], population: RecordFile) -> None:
    def source(dataset: str, model: str, first: int) -> Source:
        records = tuple(population.records[first : first + 80])
        return Source(dataset, model, RecordFile(population.path, population.header, records), records)

    pools = [source("trivia", "small", 0), source("trivia", "large", 80), source("maths", "small", 160)]
    keys = [KEY, "num_sets"]
    done: list[Any] = []
    view = paper_view(
        pools, keys, alphas=(0.2, 0.3), splits=3, figure=True, progress=lambda *counts: done.append(counts)
    )
    lines = [f"alpha {view.alpha}, delta {view.delta}, progress {done}"]
    for name in FORMS:
        lines += ["", f"{view.title(name)} ({view.texts(name)} columns of text)"]
        heads, rows = view.printed(name)
        lines += [" | ".join(row) for row in (heads, *rows)]
        lines.append(f"without errors: {' | '.join(view.printed(name, errors=False)[1][0])}")
        row = view.table(name)[0]
        lines.append(f"flat: {', '.join(f'{key} {shown(value)}' for key, value in row.items())}")
    lines += ["", f"rows of the figure: {len(view.rows('figure'))}"]
    small = paper_view(pools[:1], [KEY], alphas=(0.25,), sizes=(20, 40), splits=2)
    lines += ["", small.title("sizes"), *(" | ".join(row) for row in small.printed("sizes")[1])]
    lines.append(f"no figure: {small.rows('figure')}, other tables: {[small.title(name) for name in FORMS]}")
    only = paper_view(pools[:1], [KEY], splits=2, tables=False, figure=True, sizes=(40,), delta=0.2)
    lines.append(f"only the figure: {only.rows('main')} {len(only.rows('figure'))} {only.delta}")
    same("report/paper-tables.txt", "\n".join(lines))
    figures = [
        *figures_of(drawn, view.panels, "two data sets"),
        *figures_of(drawn, only.panels, "one data set"),
    ]
    same("report/paper-figure.txt", "\n".join(figures))


def shown(value: Any) -> str:
    """A cell of a flat table."""
    return number(value) if isinstance(value, float) else str(value)


def test_a_figure_in_a_page() -> None:
    """What becomes of matplotlib's SVG: the page's colours and fonts, ids of its own."""
    svg = """<?xml version="1.0"?>
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="648pt" height="309.6pt" viewBox="0 0 648 309.6" version="1.1">
 <metadata><rdf>today</rdf></metadata>
 <defs><style type="text/css">*{stroke-linejoin: round}</style></defs>
 <g id="figure_1"><path d="M 0 0" clip-path="url(#p1)" style="fill: #ffffff; stroke: #d55e00"/></g>
 <text style="font-family: 'DejaVu Sans'; fill: #1c2127">x</text>
 <use xlink:href="#m1" style="fill: #0072b2; stroke: #007a59"/>
 <path style="fill: #5b6570; stroke: #dfe3e8"/><path style="fill: #9a6700; stroke: #a8518a"/>
</svg>"""
    same("report/figure-in-a-page.html", _for_page(svg, "risk-wide", "figure wide", "Errors by coverage"))


# -- plots for notebooks -------------------------------------------------------------------------------------------


def test_plots(population: RecordFile, tmp_path: Path) -> None:
    some = RecordFile(Path("records.jsonl"), population.header, tuple(population.records[:60]))
    unlabelled = [record.model_copy(update={"correct": None}) for record in some.records[:10]]
    mixed = RecordFile(some.path, some.header, (*unlabelled, *some.records[10:]))
    artifact = fit_artifact(some, estimator=KEY, alpha=0.3)
    nothing = fit_artifact(some, estimator=KEY, alpha=0.01)
    items = pool(160)
    evaluation = evaluate(
        items.uncertainty, items.error, rules=["acrc", "certified"], alphas=[0.2], n_calibration=80, splits=3
    )
    needed = labels_needed(0.2, accuracy=0.8, auroc=0.8, sizes=(100, 400), repetitions=4, target_acceptance=0.5)
    lines = []
    for name, result in (
        ("artifact", artifact),
        ("artifact that accepts nothing", nothing),
        ("outcome", artifact.outcome),
        ("outcome that accepts nothing", nothing.outcome),
        ("records", mixed),
        ("evaluation", evaluation),
        ("labels needed", needed),
    ):
        axes = Figure(figsize=(7, 3.6)).subplots()
        assert result.plot(ax=axes) is axes
        lines += [f"== {name} ==", *figure_lines(axes.figure), ""]
    same("report/plots.txt", "\n".join(lines))
    figure = notebook.axis().figure
    assert figure_lines(figure)[0] == "7 x 3.6 inches, 100 dpi, #ffffffff"
    with pytest.raises(UsageError) as refused:
        some.plot("no such score")
    assert str(refused.value) == (
        "records.jsonl has no 'no such score' scores (it has "
        f"{', '.join(sorted(some.header.estimators))}). Score it first."
    )


def test_cards() -> None:
    facts, heads = (("rule", "acrc <b>"), ("answers", "5 of 10")), ("name", "number")
    rows = (("first", "1"), ("second & third", "22"))
    cards = [notebook.as_html("A title <i>", facts, heads, rows, good=good) for good in (True, False, None)]
    shares = [(0.153, 1), (0.12, 1), (1.0, 1), (0.0, 0), (0.12345, 3), (None, 1), (1e-9, 1)]
    lines = [
        *cards,
        notebook.as_html("Only a title"),
        notebook.text_table(heads, rows),
        ", ".join(notebook.percent(share, digits) for share, digits in shares),
        ", ".join(notebook.sure(delta) for delta in (0.1, 0.05, 0.0152, 0.001, 0.00001)),
    ]
    same("report/cards.html", "\n".join(lines))


# -- reports -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _outlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecasts of few repetitions: this is about what is said of them."""
    monkeypatch.setitem(with_labels_needed.__kwdefaults__ or {}, "repetitions", 3)


def page_of(path: Path, artifact: CalibrationArtifact) -> str:
    """A report without its styles, and without what differs from fit to fit."""
    html = path.read_text(encoding="utf-8")
    html = re.sub(r"<td>made</td>.*", "<td>made</td><td>(created, with versions)</td></tr>", html)
    html = re.sub(r"<style>.*?</style>", "<style>(style)</style>", html, flags=re.DOTALL)
    for long, word in ((artifact.digest, "(digest)"), (artifact.created, "(created)")):
        html = html.replace(long, word).replace(long.removeprefix("sha256:")[:12], word)
    return "\n".join(line.rstrip() for line in html.splitlines() if line.strip())


def dated(artifact: CalibrationArtifact) -> CalibrationArtifact:
    """The artifact as if it was made at a fixed time."""
    return artifact.model_copy(update={"created": CREATED})


def poisoned(records: Sequence[Record]) -> list[Record]:
    """Records with markup, long texts, answers that contain the reference, and answers that differ a little."""
    changed = []
    for place, record in enumerate(records):
        assert record.drawn is not None
        assert record.drawn.primary is not None
        question = f"<b>{record.question}</b> {'long ' * 40}" if place % 7 == 0 else record.question
        primary, samples = record.drawn.primary, list(record.drawn.samples)
        if place % 11 == 5 and not record.correct:  # as if a strict rule had labelled it
            primary = primary.model_copy(update={"text": f"It may be {record.references[0]}, or not."})
        if place % 13 == 0:
            samples[0] = samples[0].model_copy(update={"text": f"the plant is {samples[0].text}"})
        drawn = record.drawn.model_copy(update={"primary": primary, "samples": tuple(samples)})
        changed.append(record.model_copy(update={"question": question, "drawn": drawn}))
    return changed


def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures in name only: what they show is compared above, and to lay them out takes longer than all else."""

    def figure(name: str, *known: Any, **more: Any) -> Drawn:
        return Drawn(f"({name} of {', '.join(map(summary, (*known, *more.values())))})", b"PNG")

    for name in ("risk_coverage", "score_histogram", "violations", "across_alpha"):
        monkeypatch.setattr(report_page, name, partial(figure, name))


def summary(value: Any) -> str:
    """An argument of a figure, in a word or two."""
    if isinstance(value, Items):
        return f"{value.error.size} questions with {int(value.error.sum())} errors"
    if isinstance(value, Feasible | Infeasible):
        return f"{value.rule} at {value.alpha:g} {value.status}"
    if isinstance(value, tuple | list):
        return f"{len(value)} rows"
    return number(value) if isinstance(value, float) else str(value)


def test_reports(population: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(monkeypatch)

    def report(name: str, artifact: CalibrationArtifact, records: Sequence[Record], **how: Any) -> None:
        artifact = dated(artifact)
        how.setdefault("estimator", KEY)
        files = write_report(tmp_path / f"{name}.html", artifact, records, **how)
        listed = "\n".join(f"<!-- {file.name} -->" for file in files)
        same(f"report/{name}.html", f"{page_of(files[0], artifact)}\n{listed}")

    some = RecordFile(population.path, population.header, tuple(poisoned(population.records[:120])))
    artifact = fit_artifact(some, estimator=KEY, alpha=0.3, rule="certified", delta=0.2)
    evaluation = compare_rules(artifact, some.records, KEY, splits=3)
    report("whole", artifact, some.records, evaluation=evaluation, commands=["calibrate fit records.jsonl", "<b>"])
    report("infeasible", fit_artifact(some, estimator=KEY, alpha=0.01), some.records)
    report("no-signal", fit_artifact(some, estimator="perplexity", alpha=0.3), some.records, estimator="perplexity")
    calibration, test = split(population.records, test_fraction=0.3)
    certified = fit_artifact(population, estimator=KEY, alpha=0.3, part=calibration, rule="certified")
    report("with-a-test", certified, population.records)
    wrong = [record.model_copy(update={"correct": False}) for record in test]
    report("refuted", certified, calibration, test=wrong, merged="calibrate fit old new")
    segments = fit_artifact(population, estimator=KEY, alpha=0.3, part=calibration, rule="certified", by=BySegment())
    report("segments", segments, calibration, test=test)


# -- sentences -----------------------------------------------------------------------------------------------------


def spoken(artifact: CalibrationArtifact, test: Audit | None = None, *, facts: bool = False) -> list[str]:
    """All that is said of an artifact."""
    said = sentences.verdict_text(artifact, test, merged="calibrate fit OLD NEW", records="'my file.jsonl'")
    lines = [f"{said.verdict.status}, {said.verdict.colour}, speaks against: {said.speaks_against}", said.verdict.title]
    for name in ("opening", "in_use", "early_stopping"):
        if getattr(said, name) is not None:
            lines.append(f"{name}: {getattr(said, name)}")
    for name in ("paragraphs", "promises", "steps", "segments", "tested_segments"):
        lines += [f"{name}: {each if isinstance(each, str) else ' | '.join(each)}" for each in getattr(said, name)]
    lines += [f"part {name}: {counts.n_accepted} of {counts.n}" for name, counts in said.parts]
    lines.append(f"certificate: {sentences.certificate(artifact)}")
    if test is not None:
        lines += [f"shifted: {line}" for line in sentences.shifted(test)]
    if facts:
        lines += [f"{name}: {value}" for name, value in sentences.facts(artifact) if name not in ("made", "digest")]
    return lines


def test_sentences(population: RecordFile) -> None:
    records = population.records
    calibration, test = split(records, test_fraction=0.4)

    def fitted(**how: Any) -> CalibrationArtifact:
        settings = {"estimator": KEY, "alpha": 0.3, "part": calibration, **how}
        return fit_artifact(population, **settings)

    def changed(artifact: CalibrationArtifact, **fields: Any) -> CalibrationArtifact:
        return artifact.model_copy(update=fields)

    plain, certified = fitted(alpha=0.2), fitted(rule="certified")
    data, plan = plain.data, plain.plan
    choice = EstimatorChoice(candidates=(KEY, "num_sets"), auroc=0.81, n=40, questions=("00" * 8,), share=0.3)
    reach = Reach(estimator=KEY, share=0.5, cut=1.2, n_pool=400, n_within=200, n=100, seed=7, fixed_beforehand=False)
    spent = Selection(fits=3, others=0.02, part=0.5, fit="a" * 64, family="b" * 64)
    declared = Selection(fits=2, part=0.5, declared=(KEY, "num_sets"), fit="a" * 64, family="b" * 64)
    imported = plain.estimator.model_copy(update={"name": "imported:confidence", "judge": None})
    tied = plain.outcome.model_copy(update={"tie_block": 60})
    poor = plain.outcome.diagnostics.model_copy(update={"base_error": 0.6, "auroc": 0.55})
    scorer = plain.estimator.model_copy(update={"params": {"higher": "certain"}, "unit": "probability", "judge": None})
    reversed_scores = CalibrationScores(
        uncertainty=plain.calibration.uncertainty, error=tuple(1 - error for error in plain.calibration.error)
    )
    few = fitted(part=calibration[:8], rule="certified")
    too_few = few.certificate.model_copy(update={"reason": InfeasibleReason.TOO_FEW_ITEMS})
    options = plan.model_copy(update={"n": 0, "options": ("A", "B")})
    stories: dict[str, list[str]] = {
        "a rule that aims at the target": spoken(plain, facts=True),
        "a certificate": spoken(certified),
        "nothing found": spoken(fitted(alpha=0.01), facts=True),
        "no signal": spoken(fitted(estimator="perplexity")),
        "few labels": spoken(fitted(part=calibration[:12], rule="certified")),
        "chosen, within reach, one of several looks": spoken(
            changed(certified, choice=choice, reach=reach, looks=Looks(schedule=(100, 144), look=2, parts=(0.4, 0.6))),
            facts=True,
        ),
        "fixed beforehand": spoken(changed(certified, reach=reach.model_copy(update={"fixed_beforehand": True}))),
        "the third fit": spoken(changed(certified, selection=spent), facts=True)[-30:],
        "declared fits": spoken(changed(certified, selection=declared), facts=True)[-30:],
        "several fits, nothing found": spoken(changed(fitted(alpha=0.01), selection=spent)),
        "an imported score": spoken(changed(plain, estimator=imported), facts=True)[-6:],
        "an unknown model": spoken(changed(plain, model=ModelIdentity(provider="imported", model="unknown"))),
        "undecided answers": spoken(changed(plain, data=data.model_copy(update={"n_undecided": 9}))),
        "undecided answers of an import": spoken(
            changed(
                plain,
                data=data.model_copy(update={"n_undecided": data.n_used}),
                correctness=plain.correctness.model_copy(update={"name": GIVEN}),
            )
        ),
        "cut off answers": spoken(changed(plain, data=data.model_copy(update={"n_cut_off": 40})), facts=True),
        "cut off answers, measured": spoken(
            changed(
                plain,
                data=data.model_copy(update={"n_cut_off": 40}),
                plan=plan.model_copy(update={"cut_off": "measure"}),
            )
        ),
        "unmeasured questions": spoken(
            changed(plain, data=data.model_copy(update={"n_unmeasured": 30, "n_unlabelled": 2})), facts=True
        ),
        "equal scores and a poor model": spoken(changed(plain, outcome=tied.model_copy(update={"diagnostics": poor}))),
        "equal scores without samples": spoken(
            changed(plain, outcome=tied, plan=plan.model_copy(update={"n": 0, "logprobs": True})), facts=True
        ),
        "a score upside down": spoken(changed(plain, calibration=reversed_scores)),
        "a prompt with a system message": spoken(
            changed(plain, prompt=PromptWrapping(system="Be brief.", template="Q: {question}")), facts=True
        )[-22:],
        "a vote": spoken(changed(plain, plan=plan.model_copy(update={"primary": "majority"})), facts=True)[-24:-20],
        "a scorer": [*sentences.facts(changed(plain, estimator=scorer))[3]],
        "an imported score, with a threshold": spoken(changed(plain, estimator=imported))[:6],
        "an imported score by segment": spoken(
            changed(fitted(rule="certified", by=BySegment(min_labels=40)), estimator=imported)
        )[:6],
        "a prompt with slots": spoken(
            changed(plain, prompt=PromptWrapping(template="{question} at {now}", slots=("now",)))
        )[-3:],
        "options": [str(sentences.facts(changed(plain, plan=options))[1])],
        "a scorer asked for": spoken(
            changed(plain, plan=plan.model_copy(update={"follow_ups": ("score:rating",)}), estimator=scorer), facts=True
        ),
        "only right answers": spoken(
            changed(plain, calibration=CalibrationScores(uncertainty=(0.0, 1.0), error=(0, 0))), facts=True
        )[-6:],
        "too few labels to rank": spoken(changed(plain, certificate=too_few, calibration=few.calibration)),
        "clusters": spoken(fitted(groups="cluster", part=paired(calibration)))[:4],
    }
    tested: dict[str, list[str]] = {}
    for name, artifact in (("a certificate", certified), ("a rule that aims at the target", plain)):
        shifts = {
            "on its test": test,
            "all wrong": [record.model_copy(update={"correct": False}) for record in test],
            "some wrong": [r.model_copy(update={"correct": bool(r.correct and i % 3)}) for i, r in enumerate(test)],
            "all right": [record.model_copy(update={"correct": True}) for record in test],
            "few": test[:8],
        }
        for kind, fresh in shifts.items():
            tested[f"{name}, {kind}"] = spoken(artifact, audit(artifact, fresh, KEY))
    segments = fitted(rule="certified", by=BySegment(min_labels=40))
    stories["segments"] = spoken(segments, facts=True)
    stories["segments by themselves"] = spoken(fitted(rule="certified", by=BySegment(share="each", min_labels=40)))
    stories["segments, nothing found"] = spoken(fitted(rule="certified", alpha=0.02, by=BySegment(min_labels=40)))
    wrong = [record.model_copy(update={"correct": record.group != "herbs"}) for record in test]
    for kind, fresh in (("on its test", test), ("one wrong", wrong)):
        tested[f"segments, {kind}"] = spoken(segments, audit(segments, fresh, KEY))
    lines = [line for name, story in stories.items() for line in (f"== {name} ==", *story, "")]
    lines += [f"unread: {sentences.unread(KEY, counts)}" for counts in (None, (0, 100), (1, 101), (2, 100))]
    lines += [f"not fitted on: {sentences.not_fitted_on(*counts)}" for counts in ((0, 0), (3, 4), (0, 4))]
    same("report/sentences.txt", "\n".join(lines))
    lines = [line for name, story in tested.items() for line in (f"== {name} ==", *story, "")]
    same("report/sentences-tested.txt", "\n".join(lines))


def test_sentences_of_audits(population: RecordFile) -> None:
    calibration, test = split(population.records, test_fraction=0.4)
    lines = []
    for rule in ("certified", "acrc"):
        artifact = fit_artifact(population, estimator=KEY, alpha=0.2, part=calibration, rule=rule)
        wrong = [record.model_copy(update={"correct": bool(record.correct and i % 4)}) for i, record in enumerate(test)]
        seen = audit(artifact, wrong, KEY)
        shift = seen.shift
        near = {"base_error_p": 0.5, "error_p": 0.5, "verdict": "refuted"}
        counts = seen.held_out
        changes: dict[str, dict[str, Any]] = {
            "as it is": {},
            "nothing labelled": {"n": 0},
            "of all questions": {"population": "all"},
            "at any time": {"anytime": True, "verdict": "refuted"},
            "other questions": {"verdict": "refuted", "shift": shift.model_copy(update={"ks_p": 0.001})},
            "other labels": {"verdict": "refuted", "base_error_p": 0.001},
            "by chance": near,
            "by chance, certified": {**near, "certified": "supported"},
            "undecided": {"verdict": "undecided", "needed": 1234},
            "never decided": {"verdict": "undecided", "needed": None},
            "supported": {"verdict": "supported", "upper": 0.15},
            "nothing answered": {"held_out": counts.model_copy(update={"error_rate": None, "power": None})},
            "nothing at calibration": {"at_calibration": counts.model_copy(update={"error_rate": None}), **near},
            "further warnings": {
                "n_repeated": 3, "n_unlabelled": 4, "seen_before": 5,
                "shift": shift.model_copy(update={"within": 0.5, "acceptance_p": 0.001}),
            },
            "nothing accepted at calibration": {"shift": shift.model_copy(update={"calibration": None})},
        }  # fmt: skip
        for name, fields in changes.items():
            changed = seen.model_copy(update=fields)
            lines += [f"== {rule}, {name} ==", *(f"audited: {text}" for text in sentences.audited(changed))]
            verdict = sentences.standing(artifact, changed)
            lines += [f"{verdict.status}, {verdict.title}, {verdict.colour}: {sentences.headline(artifact, changed)}"]
            lines += [f"advice: {text}" for text in sentences.advice(changed)]
            lines += [f"shifted: {text}" for text in sentences.shifted(changed)]
            lines += [sentences.held_out(artifact, changed.held_out), ""]
    same("report/sentences-of-audits.txt", "\n".join(lines))


def test_refusals_of_reports(population: RecordFile, tmp_path: Path) -> None:
    calibration, test = split(population.records, test_fraction=0.3)
    artifact = fit_artifact(population, estimator=KEY, alpha=0.3, part=calibration)
    made = record_file(tmp_path / "records.jsonl", invoices(60))
    file = label_parts(measure_records(made, parts_measure(json_spec(made.header.plan.bindings))), "parts_json")
    parts = fit_parts_artifact(file, alpha=0.15, rule="wrong_share")
    others = RecordFile(file.path, file.header, tuple(record_of(record) for record in file.records))
    pooled = compare_rules(artifact, population.records, KEY, splits=2)
    lines = []
    refusals: dict[str, Callable[[], object]] = {
        "records of another fit": lambda: write_report(tmp_path / "x.html", artifact, test, estimator=KEY),
        "another estimator": lambda: write_report(tmp_path / "x.html", artifact, calibration, estimator="num_sets"),
        "an evaluation of other questions": lambda: write_report(
            tmp_path / "x.html", artifact, calibration, estimator=KEY, evaluation=pooled
        ),
        "an artifact of whole answers": lambda: write_parts_report(tmp_path / "x.html", artifact, file),
        "other records of parts": lambda: write_parts_report(tmp_path / "x.html", parts, others),
    }
    for name, call in refusals.items():
        with pytest.raises(UsageError) as refused:
            call()
        lines.append(f"{name}\n  {str(refused.value).replace(str(tmp_path), '(folder)')}")
    assert not (tmp_path / "x.html").exists()
    same("report/refusals.txt", "\n".join(lines))


def record_of(record: Record) -> Record:
    """Another question with the same answer."""
    return record.model_copy(update={"question": f"another {record.question}"})


def paired(records: Sequence[Record]) -> list[Record]:
    """Records of which two each are a cluster."""
    return [record.model_copy(update={"group": f"c{place // 2}"}) for place, record in enumerate(records)]


@pytest.mark.usefixtures("drawn")
def test_reports_of_parts(tmp_path: Path) -> None:
    made = record_file(tmp_path / "records.jsonl", invoices(90))
    file = label_parts(measure_records(made, parts_measure(json_spec(made.header.plan.bindings))), "parts_json")
    other = record_file(tmp_path / "fresh.jsonl", invoices(60, seed=4, prefix="fresh"))
    fresh = label_parts(measure_records(other, parts_measure(json_spec(other.header.plan.bindings))), "parts_json")
    for name, rule, alpha, test in (
        ("parts", "wrong_share", 0.15, fresh),
        ("parts-clean", "clean_shown", 0.3, None),
        ("parts-infeasible", "wrong_share", 0.001, None),
    ):
        artifact = dated(fit_parts_artifact(file, alpha=alpha, rule=rule))
        files, tested = write_parts_report(tmp_path / f"{name}.html", artifact, file, test=test, commands=("fit",))
        text = page_of(files[0], artifact).replace(str(tmp_path), "(folder)")
        same(f"report/{name}.html", f"{text}\n<!-- {[file.name for file in files]} {tested and tested.verdict} -->")
