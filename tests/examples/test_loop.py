"""The loop of docs/loop.md: from traffic without labels to a certified gate behind one URL, with real servers."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
ANSWERS = {"sure": ["right"], "wrong": ["else"], "unsure": ["right", "left", "up", "down", "in", "out"]}
KINDS = ["sure"] * 6 + ["unsure"] * 4
"""Kinds of ten questions in a row. The answer to every 55th question is wrong: too few for a draw to be refused."""


def questions(first: int, last: int) -> tuple[dict[str, str], list[Question]]:
    """Return the kind of each question by its text, and the questions."""
    kinds = {f"question {i}?": "wrong" if i % 55 == 5 else KINDS[i % 10] for i in range(first, last)}
    rows = [Question(id=f"q{i}", question=f"question {i}?", references=("right",)) for i in range(first, last)]
    return kinds, rows


@dataclass(frozen=True)
class Ran:
    """A run of the loop: 330 questions of traffic, and 40 later ones for the guard."""

    kinds: dict[str, str]
    """The kind of each question, by its text."""
    traffic: list[Question]
    later: list[Question]
    folder: Path
    outcome: loop.Loop


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    early, traffic = questions(0, 330)
    late, later = questions(330, 370)
    kinds = early | late
    folder = tmp_path_factory.mktemp("loop")
    answers = {text: ANSWERS[kind] for text, kind in kinds.items()}
    with serving(Endpoint(answers=answers, keep_requests=False)) as endpoint:
        outcome = loop.run(endpoint.url, traffic, later, folder, SIZES)
    return Ran(kinds, traffic, later, folder, outcome)


def test_while_the_gateway_observes_every_question_gets_its_answer(ran: Ran) -> None:
    """Users of the application must notice nothing before the certificate."""
    observed = ran.outcome.observed
    assert [exchange.question.id for exchange in observed] == [question.id for question in ran.traffic]
    assert {exchange.accepted for exchange in observed} == {None}
    assert all(exchange.text for exchange in observed)


def test_no_reply_fails_during_the_swap(ran: Ran) -> None:
    """The replies before the first guarded one are observed ones; none is missing."""
    *before, first = ran.outcome.swapped
    assert len(before) >= loop.BEFORE
    assert {exchange.accepted for exchange in before} == {None}
    assert first.accepted is not None


def test_people_label_the_drawn_questions_on_the_page(ran: Ran) -> None:
    """A label that came from elsewhere, or is wrong, would certify answers that nobody has seen."""
    drawn = read_records(ran.folder / "to-label.jsonl")
    assert drawn.header.scope.is_drawn
    assert len(drawn.records) == SIZES.labels
    certain = [record for record in drawn.records if ran.kinds[record.question] != "unsure"]
    assert [record.correct for record in certain] == [ran.kinds[record.question] == "sure" for record in certain]
    with ReviewStore(ran.folder / "reviews.db") as store:
        decisions = [item.decision for item in store.items(["decided"])]
    assert len(decisions) == SIZES.labels
    assert {decision.reviewer for decision in decisions if decision is not None} <= set(loop.REVIEWERS)


def test_the_certificate_covers_what_was_drawn(ran: Ran) -> None:
    """A threshold above the drawn scores would let answers through of which none was labelled."""
    artifact = ran.outcome.artifact
    assert artifact.outcome.rule == "certified"
    assert artifact.threshold is not None
    assert read_records(ran.folder / "to-label.jsonl").header.scope.covers(artifact.threshold)


def test_the_guard_gives_the_certain_answers_and_holds_the_others_back(ran: Ran) -> None:
    """Even the wrong ones: a model that is certain of a wrong answer is what alpha allows for."""
    texts = {kind: [q.question for q in ran.later if ran.kinds[q.question] == kind] for kind in ANSWERS}
    answered = {answer.question.question for answer in ran.outcome.answers}
    assert answered >= {*texts["sure"], *texts["wrong"]}
    assert all(exchange.accepted is not None for exchange in ran.outcome.guarded)
    held_back = [exchange for exchange in ran.outcome.guarded if not exchange.accepted]
    # The threshold admits two groups of answers. Four samples of six answers have no third one in 216 of 6**4 draws, so
    # more than 6 of the 16 unsure questions are answered with probability .01.
    assert len(texts["unsure"]) == 16
    assert len(held_back) >= 16 - 6
    assert {exchange.text for exchange in held_back} == {ABSTENTION}
    assert sum(not exchange.correct for exchange in ran.outcome.answers) == len(texts["wrong"]) > 0


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
    (add_token,) = re.findall(r"guardrail (review --db reviews\.db --add-token \w+)", page)
    assert main(["review", "--db", "reviews.db", "--port", "0"]) != 0  # no token yet
    assert main(add_token.split()) == 0
    assert (tmp_path / "review-tokens.json").exists()


@pytest.mark.slow
def test_the_embedded_model_keeps_the_promise_once_and_over_20_seeds(tmp_path: Path) -> None:
    """2,000 questions observed, 300 labels, 850 others guarded; then 20 draws of traffic and labels.

    Once: too many errors would refute the promise at 99.9 %. Over seeds: at delta .1, more than 5 of 20 break it with
    probability .011 at most (binomial tail). Where people skip every second wrong answer, the same bound refutes it.
    Shares of answers are measured ones, rounded down: a gate that answers nothing keeps every promise.
    """
    pytest.importorskip("torch")
    outcome = loop.demo(tmp_path)
    errors = sum(not exchange.correct for exchange in outcome.answers)
    assert tail(len(outcome.answers) - errors, len(outcome.answers), 1 - outcome.artifact.alpha) > 0.001
    assert len(outcome.answers) > 0.4 * len(outcome.guarded)  # measured: .48
    without_gate = sum(not exchange.correct for exchange in outcome.observed)
    assert without_gate > 0.25 * len(outcome.observed)  # measured: .31
    assert loop.picture(outcome, tmp_path / "loop.png").read_bytes().startswith(b"\x89PNG")

    sizes, observed = loop.Sizes(), [exchange.question for exchange in outcome.observed]
    rows = over_seeds(read_records(tmp_path / "scored.jsonl"), observed, range(20), sizes)
    broken = {case: sum(row.error[case] > sizes.alpha for row in rows) for case in CASES}
    assert broken["certified"] <= 5
    assert broken[SKIPPED] > 5  # measured: 12
    # The others keep it by answering less, as they must where their 300 labels happen to have many errors.
    assert sum(row.answered["certified"] > 0.3 for row in rows) >= 16  # measured: 17
    assert all(row.refused for row in rows)
