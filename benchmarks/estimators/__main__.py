"""``python -m benchmarks.estimators --data DIR --out docs/estimators.md``: every estimator, one page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.estimators.figures import Draws, Figures, Interval, draw, measure_figures, paired
from benchmarks.estimators.page import BaselineRow, Measured, Page, markdown
from benchmarks.estimators.scores import Scores, lacking, score, variants
from benchmarks.estimators.sources import FILES, Source, recorded, sources
from calibrate.data.progress import Progress, bar, silent
from guardrail.errors import require

__all__ = ["main", "measure_source"]

Watch = Callable[[str, str], AbstractContextManager[Progress]]
"""Shows the progress of one part of the work, given its title and unit."""
CACHE = Path("demo-output/estimator-table")
COMMAND = "python -m benchmarks.estimators --data DIR --records RECORDS --out docs/estimators.md"


def _quietly(title: str, unit: str) -> AbstractContextManager[Progress]:
    return nullcontext(silent)


def measure_source(
    source: Source,
    cache: Path | None,
    *,
    resamples: int,
    fresh: bool = False,
    watch: Watch = _quietly,
) -> Measured:
    """Measure one file: scores, figures and missing inputs."""
    rows, left_out = variants(source)
    with watch(f"{source.name}: scoring", "records") as progress:
        scores = score(source, rows, cache, fresh=fresh, progress=progress)
    groups = [str(record.group) for record in source.records] if source.clustered else None
    draws = draw(len(source.records), groups, resamples=resamples, seed=0)
    figures, notes = {}, [*source.notes, *left_out]
    nothing: dict[str, list[str]] = {}
    partly: dict[tuple[int, str], list[str]] = {}
    with watch(f"{source.name}: resampling", "rows") as progress:
        for done, each in enumerate(scores, start=1):
            row_figures = _figures(source, each.values, draws)
            if row_figures is None:
                nothing.setdefault(_reason(each), []).append(each.label)
            else:
                figures[each.label] = row_figures
                if row_figures.n_unmeasured:
                    partly.setdefault((row_figures.n_unmeasured, _reason(each)), []).append(each.label)
            progress(done, len(scores))
    for (count, why), names in partly.items():
        others = [name for name in figures if name not in names]
        which = "all rows" if not others else f"all rows but {_named(others)}" if len(others) < 4 else _named(names)
        notes.append(f"{count} of {len(source.records)} questions are not measured ({why}) by {which}.")
    notes += [f"Not measured: {_named(names)} ({why})." for why, names in nothing.items()]
    for want, names in lacking(source.plan).items():
        notes.append(f"Not on file: {want}, and so no {_named(names)}.")
    return Measured(
        name=source.name,
        title=source.title,
        clustered=source.clustered,
        rows=figures,
        baseline=_baseline(source, draws),
        against=_against(source, [each for each in scores if each.label in figures], draws),
        notes=tuple(dict.fromkeys(notes)),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and write; a few minutes on the first run, less when the cache has scores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimators", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the recorded outputs")
    parser.add_argument("--out", type=Path, default=Path("docs/estimators.md"), help="page; its JSON lies next to it")
    parser.add_argument("--files", help=f"some of {', '.join(FILES)}, separated by commas")
    parser.add_argument("--records", type=Path, action="append", default=[], help="a labelled record file; repeatable")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for scores, to go on from")
    parser.add_argument("--fresh", action="store_true", help="score again and ignore the cache")
    parser.add_argument("--resamples", type=int, default=1_000, help="bootstrap resamples")
    arguments = parser.parse_args(argv)
    names = (
        [name.strip() for name in arguments.files.split(",") if name.strip()] if arguments.files is not None else None
    )
    read = sources(arguments.data, names) if names != [] else []
    console = require("rich.console", extra="calibrate").Console(stderr=True)
    measured_files = []
    for open_source in [*read, *((lambda path=path: recorded(path)) for path in arguments.records)]:
        source = open_source()
        measured = measure_source(
            source, arguments.cache, resamples=arguments.resamples, fresh=arguments.fresh, watch=partial(bar, console)
        )
        measured_files.append(measured)
    page = Page(resamples=arguments.resamples, files=tuple(measured_files))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(markdown(page, COMMAND), encoding="utf-8")
    beside = arguments.out.with_suffix(".json")
    beside.write_text(page.model_dump_json(indent=1) + "\n", encoding="utf-8")
    console.print(f"wrote {arguments.out} and {beside}")


def _figures(source: Source, values: Sequence[float | None], draws: Draws) -> Figures | None:
    """Return the figures of the labelled records with a score; None without both a right and a wrong answer."""
    labelled = np.array([record.correct is not None for record in source.records])
    measured = np.array([value is not None for value in values])
    usable = labelled & measured
    error = np.array([0 if record.correct else 1 for record in source.records], dtype=np.int64)[usable]
    if usable.sum() < 2 or error.min() == error.max():
        return None
    score = np.array([np.nan if value is None else value for value in values], dtype=np.float64)[usable]
    own = replace(draws, unit=draws.unit[usable])
    return measure_figures(score, error, own, n_unmeasured=int((labelled & ~measured).sum()))


def _baseline(source: Source, draws: Draws) -> BaselineRow | None:
    base = source.baseline
    if base is None:
        return None
    figures = _figures(source, base.values, draws)
    return None if figures is None else BaselineRow(name=base.name, published=base.published, figures=figures)


def _against(source: Source, scores: Sequence[Scores], draws: Draws) -> dict[str, Interval]:
    """Return the AUROC of each score minus that of the baseline, on the records that have both."""
    base = source.baseline
    if base is None:
        return {}
    differences = {}
    for each in scores:
        usable = np.array(
            [
                record.correct is not None and ours is not None and theirs is not None
                for record, ours, theirs in zip(source.records, each.values, base.values, strict=True)
            ]
        )
        error = np.array([0 if record.correct else 1 for record in source.records], dtype=np.int64)[usable]
        ours, theirs = (
            np.array([np.nan if value is None else value for value in values], dtype=np.float64)[usable]
            for values in (each.values, base.values)
        )
        own = replace(draws, unit=draws.unit[usable])
        differences[each.label] = paired(ours, theirs, error, own, alphas=())["auroc"]
    return differences


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _reason(scores: Scores) -> str:
    return next(iter(scores.reasons), "no score")


if __name__ == "__main__":
    main()
