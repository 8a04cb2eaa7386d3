"""The loop of docs/loop.md: from traffic without labels to a certified gate behind one URL, with real servers."""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the serve extra is not installed")
pytest.importorskip("openai")

from benchmarks.loop import CASES, SKIPPED, over_seeds
from calibrate.data.questions import Question
from calibrate.data.records import read_records
from calibrate.rules.certificate import tail
from calibrate.scope import POOL_FACTOR
from examples.demo import loop
from guardrail.__main__ import main
from guardrail.guard.abstention import ABSTENTION
from guardrail.review import ReviewStore
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SIZES = loop.Sizes(labels=50, scope=0.7, alpha=0.3, n=4, at_once=8)
SAID = {"sure": ["right"], "wrong": ["else"], "unsure": ["right", "left", "up", "down", "in", "out"]}
KINDS = ["sure"] * 6 + ["unsure"] * 4
"""Kinds of ten questions in a row. The answer to every 55th question is wrong: too few for a draw to be refused."""


def questions(first: int, last: int) -> tuple[dict[str, str], list[Question]]:
    """Return the kind of each question by its text, and the questions."""
    kinds = {f"question {i}?": "wrong" if i % 55 == 5 else KINDS[i % 10] for i in range(first, last)}
    rows = [Question(id=f"q{i}", question=f"question {i}?", references=("right",)) for i in range(first, last)]
    return kinds, rows


def test_traffic_labels_certificate_and_a_guard_behind_the_same_url(tmp_path: Path) -> None:
    early, traffic = questions(0, 330)
    later, fresh = questions(330, 370)
    kinds = early | later
    with serving(Endpoint(answers={text: SAID[kind] for text, kind in kinds.items()}, keep_requests=False)) as endpoint:
        outcome = loop.run(endpoint.url, traffic, fresh, tmp_path, SIZES)
    # No answer was held back while the gateway observed, and no reply failed during the swap.
    assert [(exchange.question.id, exchange.accepted) for exchange in outcome.observed] == [
        (question.id, None) for question in traffic
    ]
    assert all(exchange.text for exchange in outcome.observed)
    assert len(outcome.swapped) > loop.BEFORE
    assert [exchange.accepted for exchange in outcome.swapped[:-1]] == [None] * (len(outcome.swapped) - 1)
    # People labelled the drawn questions on the page, and their labels are true.
    drawn = read_records(tmp_path / "to-label.jsonl")
    assert drawn.header.scope.is_drawn
    assert len(drawn.records) == SIZES.labels
    assert all(
        record.correct == (kinds[record.question] == "sure")
        for record in drawn.records
        if kinds[record.question] != "unsure"
    )
    with ReviewStore(tmp_path / "reviews.db") as store:
        decided = [item.decision for item in store.items(["decided"])]
    assert len(decided) == SIZES.labels
    assert {decision.reviewer for decision in decided if decision is not None} <= set(loop.REVIEWERS)
    # The guard at the same URL gives the certain answers, even the wrong ones, and holds the others back.
    assert outcome.artifact.outcome.rule == "certified"
    assert outcome.artifact.threshold is not None
    assert drawn.header.scope.covers(outcome.artifact.threshold)
    assert {answer.question.question for answer in outcome.answers} >= {
        text for text, kind in later.items() if kind != "unsure"
    }
    assert all(exchange.accepted is not None for exchange in outcome.guarded)
    held_back = [exchange for exchange in outcome.guarded if not exchange.accepted]
    assert len(held_back) >= 10
    assert all(exchange.text == ABSTENTION for exchange in held_back)
    assert (
        sum(not exchange.correct for exchange in outcome.answers) == sum(kind == "wrong" for kind in later.values()) > 0
    )


def test_the_page_shows_what_the_demo_runs() -> None:
    page = (ROOT / "docs" / "loop.md").read_text(encoding="utf-8")
    lines = [
        line.partition("  #")[0].rstrip()
        for block in re.findall(r"```sh\n(.*?)```", page.partition("## 5. Audit")[0], re.DOTALL)
        for line in block.splitlines()
    ]
    shown = [line for line in lines if line.startswith("calibrate ")]
    assert shown == loop.commands(loop.Sizes())
    assert "guardrail serve --config guardrail.yaml" in lines
    url = "http://localhost:8000/v1"
    for config in (loop.OBSERVING.format(url=url, n=10), loop.GUARDING.format(url=url)):
        assert f"```yaml\n{config}```" in page


def test_the_page_names_what_its_commands_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many questions the draw takes, and the token without which nobody can sign in on the review page."""
    page = " ".join((ROOT / "docs" / "loop.md").read_text(encoding="utf-8").split())
    sizes = loop.Sizes()
    needed = ceil(POOL_FACTOR * sizes.labels / sizes.scope)
    assert f"{needed:,} scored questions" in page
    monkeypatch.chdir(tmp_path)
    (line,) = re.findall(r"guardrail (review --db reviews\.db --add-token \w+)", page)
    assert main(["review", "--db", "reviews.db", "--port", "0"]) != 0  # no token yet
    assert main(line.split()) == 0
    assert (tmp_path / "review-tokens.json").exists()


@pytest.mark.slow
def test_the_embedded_model_keeps_the_promise_once_and_over_20_seeds(tmp_path: Path) -> None:
    """2,000 questions observed, 300 labels, 850 others guarded; then 20 draws of traffic and labels.

    Once: too many errors would refute the promise at 99.9 %. Over seeds: at delta .1, more than 5 of 20 break it with
    probability .011 at most (binomial tail). Where people skip every second wrong answer, more do.
    """
    pytest.importorskip("torch")
    outcome = loop.demo(tmp_path)
    errors = sum(not exchange.correct for exchange in outcome.answers)
    assert tail(len(outcome.answers) - errors, len(outcome.answers), 1 - outcome.artifact.alpha) > 0.001
    assert len(outcome.answers) > 0.4 * len(outcome.guarded)
    assert sum(not exchange.correct for exchange in outcome.observed) > 0.25 * len(outcome.observed)  # without the gate
    assert loop.picture(outcome, tmp_path / "loop.png").read_bytes().startswith(b"\x89PNG")

    sizes, observed = loop.Sizes(), [exchange.question for exchange in outcome.observed]
    rows = over_seeds(read_records(tmp_path / "scored.jsonl"), observed, range(20), sizes)
    broken = {case: sum(row.error[case] > sizes.alpha for row in rows) for case in CASES}
    assert broken["certified"] <= 5
    # Hardly a seed keeps it by answering nothing, as it must where its 300 labels happen to have many errors.
    assert sum(row.answered["certified"] > 0.3 for row in rows) >= 16
    assert broken[SKIPPED] > broken["certified"] + 2
    assert all(row.refused for row in rows)
