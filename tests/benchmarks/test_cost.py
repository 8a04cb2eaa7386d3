"""The table of calls and acceptance: splits, two stages and their calls, the threshold tool, and the pages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import cost
from benchmarks.calls import Score, certified_once, ordered
from calibrate.fitting import Target
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.combine import then_order
from tests.combinations import ranks_of

FIGURES = cost.ROOT / "docs" / "calls.json"


def test_a_score_that_knows_is_certified_and_one_that_does_not_is_not() -> None:
    rng = np.random.default_rng(0)
    error = (np.arange(1_000) >= 600).astype(np.int64)  # 40 % wrong
    scores = [Score("knows", 1, np.arange(1_000.0)), Score("guesses", 11, rng.random(1_000), tokens=22.0)]
    knows, guesses = cost.certified(cost.Pool("p", error, scores, (0.1,)), 300, splits=10)
    # At most 10 % wrong among the accepted: 600 / .9 = 666 of 1,000; the certificate stays below that.
    assert 0.58 < knows.cells[0].accepted < 0.667
    assert (knows.cells[0].infeasible, knows.cells[0].violated, knows.calls, knows.tokens) == (0, 0, 1, None)
    assert guesses.cells[0].accepted < 0.02
    assert guesses.cells[0].infeasible > 0.8
    assert (guesses.calls, guesses.tokens) == (11, 22)


def test_calls_of_two_stages_count_the_questions_that_the_first_leaves_open() -> None:
    error = np.zeros(1_000, dtype=np.int64)
    error[900:] = 1
    # Nobody disagrees, so u = F0(c), and the certificate accepts the right 900 and some more.
    score = Score(
        "staged", 1, np.arange(1_000.0), tokens=3.0, second=np.zeros(1_000), weight=0.2, more=2, more_tokens=6.0
    )
    (line,) = cost.certified(cost.Pool("p", error, [score], (0.05,)), 300, splits=5)
    assert 0.85 < line.cells[0].accepted < 0.95
    assert line.calls == pytest.approx(1 + 2 * 0.2, abs=0.05)  # w = .2 of the questions draw two samples
    assert line.tokens == pytest.approx(3 + 6 * (line.calls - 1) / 2)


def test_eight_samples_after_two_are_others() -> None:
    def answer(text: str) -> Sample:
        return Sample(text=text, tokens=(text,), logprobs=(-0.5,))

    # The first two agree with the answer, the other eight contradict it.
    samples = tuple(answer(text) for text in ["Oslo"] * 2 + ["Rome"] * 8)
    drawn = SampleSet(question="Where?", primary=answer("Oslo"), samples=samples)
    score = cost._three_then_eight([drawn], make_estimator("graded_disagreement"), SamplingPlan(logprobs=True))
    assert score.values.tolist() == [0]
    assert score.second is not None
    assert score.second.tolist() == [1]
    assert (score.calls, score.more, score.tokens, score.more_tokens) == (3, 8, 3, 8)


def test_the_threshold_tool_by_hand() -> None:
    u, error = np.arange(400.0), np.zeros(400, dtype=np.int64)
    error[200:] = 1
    # A half that picks too much fails on the other one; here one that does not.
    seed = next(
        each
        for each in range(20)
        if cost.tool_threshold(u, error, 0.1, np.random.default_rng(each), conservative=False) is not None
    )
    held = np.random.default_rng(seed).random(400) < 0.5
    picked = cost.tool_threshold(u, error, 0.1, np.random.default_rng(seed), conservative=False)
    assert picked is not None
    right = int((~held[:200]).sum())
    # The last one with at most a tenth wrong: right / k >= .9 on the half that picks.
    assert picked == np.flatnonzero(~held)[int(right / 0.9) - 1]
    careful = cost.tool_threshold(u, error, 0.1, np.random.default_rng(seed), conservative=True)
    assert careful is not None
    assert careful < picked
    k = int((~held[: int(careful) + 1]).sum())
    assert cost._wilson_lower(np.array([min(1.0, right / k)]), np.array([k]))[0] >= 0.9
    # All right where it picks and all wrong where it checks: the check fails.
    held = np.random.default_rng(0).random(400) < 0.5
    assert cost.tool_threshold(u, held.astype(np.int64), 0.1, np.random.default_rng(0), conservative=False) is None
    # Below 30 accepted nothing is picked; a block of ties is accepted whole.
    assert cost.tool_threshold(u[:40], error[:40], 0.1, np.random.default_rng(0), conservative=False) is None
    assert cost.tool_threshold(0 * u, error, 0.1, np.random.default_rng(0), conservative=False) is None


def test_wilson_by_its_quadratic() -> None:
    # The lower bound b solves (p - b)^2 = z^2 b (1 - b) / k.
    low = float(cost._wilson_lower(np.array([0.95]), np.array([60]))[0])
    assert (0.95 - low) ** 2 == pytest.approx(1.645**2 * low * (1 - low) / 60)
    assert low < 0.95


def test_the_pages_show_the_figures_on_file() -> None:
    figures = cost.Figures.model_validate_json(FIGURES.read_text(encoding="utf-8"))
    assert {table.name.split(",")[0] for table in figures.tables} >= {
        "Embedded model", "SmolLM2-135M-Instruct", "TriviaQA", "GSM8K", "MMLU-Pro", "MMBench"
    }  # fmt: skip
    for path, tables in cost.pages(figures).items():
        text = path.read_text(encoding="utf-8")
        assert cost.filled(text, tables) == text
    # A certificate may be false in a tenth of the draws: beyond 1 in 10,000 by chance, of 80, is more than 19.
    assert max(cell.violated for table in figures.tables for line in table.lines for cell in line.cells) <= 19 / 80


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(AssertionError, match="calls"):
        cost.filled("no marks", {"calls": "|a|"})
    assert cost.filled("a\n<!-- table: calls -->\nold\n<!-- end -->\nb", {"calls": "|a|"}) == (
        "a\n<!-- table: calls -->\n\n|a|\n\n<!-- end -->\nb"
    )


def test_two_stages_are_ordered_as_by_the_estimator_and_a_failed_sample_disagrees() -> None:
    rng = np.random.default_rng(1)
    cheap, second = rng.random(700), rng.choice([0.0, 0.5, 1.0, np.nan], size=700)
    cheap[5] = np.nan
    score = Score("staged", 1, cheap, second=second, weight=0.2, more=2)
    scale = cheap[400:]
    u, place = ordered(score, scale)
    ranks = ranks_of(scale)
    for i in range(400):
        if i == 5:
            assert math.isnan(u[i])
            continue
        assert place[i] == ranks.place(0, cheap[i])
        assert u[i] == then_order(ranks, 0.2, cheap[i], 1.0 if math.isnan(second[i]) else second[i])


def test_one_fit_reads_its_labels_alone() -> None:
    error = np.r_[np.zeros(200), np.ones(200)].astype(np.int64)
    score = Score("s", 3, np.arange(400.0))
    target = Target.of("certified", alpha=0.1, delta=0.1)
    fitted = np.arange(0, 400, 2)
    accepted, spent = certified_once(score, ordered(score, np.empty(0)), error, fitted, target)
    assert 0.4 < accepted.mean() < 0.6
    assert spent == 3
    turned = np.where(np.isin(np.arange(400), fitted), error, 1 - error)  # other labels outside the fit
    again, _ = certified_once(score, ordered(score, np.empty(0)), turned, fitted, target)
    assert (again == accepted).all()
    nothing, spent = certified_once(score, ordered(score, np.empty(0)), np.ones_like(error), fitted, target)
    assert not nothing.any()
    assert spent == 3
