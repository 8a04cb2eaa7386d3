"""The calibration report on a phone and on a desk, in a real Chromium."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from playwright.sync_api import sync_playwright

from calibrate.data.records import RecordFile
from calibrate.data.split import split
from calibrate.pipeline import fit_artifact
from calibrate.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # playwright's own event loop lives until the end
]


@pytest.mark.slow
@pytest.mark.usefixtures("whole_figures")
def test_figures_and_the_key_table_fit_a_phone(labelled: RecordFile, tmp_path: Path) -> None:
    calibration, test = split(labelled.records, test_fraction=0.3)
    artifact = fit_artifact(labelled, score="semantic_entropy", alpha=0.15, rule="acrc", part=calibration)
    page_path = write_report(tmp_path / "r.html", artifact, labelled.records, estimator="semantic_entropy", test=test)[
        0
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (390, 1200):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto(page_path.as_uri())
            edges = page.evaluate(
                "() => [...document.querySelectorAll('svg.figure, table.parts')]"
                ".map(element => element.getBoundingClientRect().right)"
            )
            assert len(edges) >= 3
            assert max(edges) <= width
            letters = page.evaluate(
                "() => [...document.querySelectorAll('svg.figure text')].filter(element => element.checkVisibility())"
                ".map(element => { const matrix = element.getScreenCTM(); "
                "return parseFloat(getComputedStyle(element).fontSize) * Math.hypot(matrix.a, matrix.b) })"
            )
            assert len(letters) > 20
            assert min(letters) > 9, "letters of this height are legible"
            shown = page.evaluate(
                "() => [...document.querySelectorAll('svg.figure')].filter(element => element.checkVisibility())"
                ".map(element => element.classList[1])"
            )
            assert shown == 2 * ["narrow" if width == 390 else "wide"]
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        browser.close()
