"""``python -m benchmarks.report_pictures --out docs/images``: the reports in README.md and docs/calibrating.md.

Three reports on recorded outputs (examples/recorded): a gate that its test part supports, a gate that its test part
refutes because the questions are of another kind, and a rule that found no threshold. Needs Chromium (the extra `dev`
brings playwright).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from calibrate.data.records import Record, RecordFile
from calibrate.data.split import split
from calibrate.pipeline import fit_artifact
from calibrate.report import write_report
from examples.demo.recorded import DATASETS, load
from guardrail.errors import require

__all__ = ["HARD", "main", "pages"]

HARD = ("image_quality", "future_prediction", "spatial_relationship", "object_localization", "physical_relation")
"""Categories of MMBench that act as questions of another kind."""


def pages(folder: Path, *, splits: int = 100) -> Iterator[tuple[str, Path]]:
    """Write the three reports; yield the name and the HTML file of each."""
    mmbench, trivia = load(DATASETS[0]), load(DATASETS[2])
    calibration, test = split(mmbench.records, test_fraction=0.4, seed=1)
    yield "answers", _report(folder / "answers.html", mmbench, DATASETS[0].estimator, calibration, test, 0.1, splits)
    easy = [record for record in mmbench.records if record.group not in HARD]
    hard = [record for record in mmbench.records if record.group in HARD]
    yield "refuted", _report(folder / "refuted.html", mmbench, DATASETS[0].estimator, easy, hard, 0.06, splits)
    model = trivia.header.model.model_copy(update={"model": "TriviaQA model"})  # its publishers name none
    trivia = replace(trivia, header=trivia.header.model_copy(update={"model": model}))
    calibration, test = split(trivia.records, test_fraction=0.4, seed=1)
    yield "refused", _report(folder / "refused.html", trivia, DATASETS[2].estimator, calibration, test, 0.03, splits)


def _report(
    path: Path,
    file: RecordFile,
    estimator: str,
    calibration: Sequence[Record],
    test: Sequence[Record],
    alpha: float,
    splits: int,
) -> Path:
    artifact = fit_artifact(file, score=estimator, alpha=alpha, rule="certified", part=calibration)
    alone = f"calibrate fit new-records.jsonl --alpha {alpha:g} --rule certified"
    return write_report(path, artifact, calibration, estimator=estimator, test=test, splits=splits, alone=alone)[0]


def main(argv: Sequence[str] | None = None) -> None:
    """Write the reports, and take a picture of the top of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder for the pictures")
    arguments = parser.parse_args(argv)
    playwright = require("playwright.sync_api", extra="dev")
    with tempfile.TemporaryDirectory() as folder, playwright.sync_playwright() as started:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, path in pages(Path(folder)):
            for scheme in ("light", "dark") if name == "answers" else ("light",):
                page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme=scheme)
                page.goto(path.as_uri())
                end = page.locator("figure").first.evaluate("figure => figure.getBoundingClientRect().bottom")
                target = arguments.out / f"report-{scheme if name == 'answers' else name}.png"
                page.screenshot(path=target, full_page=True, clip={"x": 0, "y": 0, "width": 1000, "height": end + 24})
                print(f"wrote {target}")
        browser.close()


if __name__ == "__main__":
    main()
