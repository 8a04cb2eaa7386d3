"""The base paper beside our measurements: the printed numbers, the pools, the protocol, the page."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from benchmarks.paper import __main__ as command
from benchmarks.paper.markdown import across, beside, compact, form, with_blocks
from benchmarks.paper.pools import (
    PAIRS,
    Pool,
    pairs,
    read_confidences,
    read_options,
    read_samples,
    recorded_pools,
    simulated_pools,
)
from benchmarks.paper.printed import ABLATION, ESTIMATORS, MAIN, POPULATIONS, RISK_LEVELS, SIZES, Printed
from benchmarks.paper.protocol import Row, average, held
from calibrate.evaluation.populations import Population
from calibrate.evaluation.results import Estimate, EvaluationRow
from calibrate.rules import Feasible
from calibrate.rules.plug_in import acrc
from calibrate.scoring.metrics import auroc
from guardrail.errors import UsageError

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "examples" / "recorded"
PAGE = ROOT / "docs" / "paper.md"


def test_the_repaired_rule_meets_the_coqa_headline() -> None:
    # Published beside the method: SCER .144 and AR 46.2 %, mean of both models, n = 1,000, alpha .15. Error rate and
    # acceptance are the population's, so the only error is that of 600 calibrations a model: SCER's standard deviation
    # is about .023 and AR's about 13 points, so the means have standard errors of .0007 and .4 points.
    rng = np.random.default_rng(20260715)
    rates, shares = [], []
    for population in POPULATIONS[:2]:
        assert population.dataset == "CoQA"
        binormal = Population.binormal(population.accuracy, population.auroc["WSE"])
        outcomes = [acrc(*binormal.draw(rng, 1_000), 0.15) for _ in range(600)]
        thresholds = [outcome.threshold for outcome in outcomes if isinstance(outcome, Feasible)]
        rates.append(fmean(binormal.scer(threshold) for threshold in thresholds))
        shares.append(sum(binormal.acceptance(threshold) for threshold in thresholds) / 600)
    assert fmean(rates) == pytest.approx(0.144, abs=0.004)
    assert 100 * fmean(shares) == pytest.approx(46.2, abs=1.5)


def mean_of(dataset: str, label: str, name: str) -> float:
    return fmean(getattr(row, name) for row in MAIN if (row.dataset, row.label) == (dataset, label))


@pytest.mark.parametrize("dataset", ["CoQA", "MedMCQA"])
def test_the_printed_tables_agree_where_they_overlap(dataset: str) -> None:
    level = next(row for row in RISK_LEVELS if (row.dataset, row.label) == (dataset, "0.15"))
    size = next(row for row in SIZES if (row.dataset, row.label) == (dataset, "1,000"))
    full = next(row for row in ABLATION if (row.dataset, row.label) == (dataset, "Full A-CRC-QA"))
    assert level.scer == size.scer == full.scer == pytest.approx(mean_of(dataset, "A-CRC-QA", "scer"), abs=5.1e-4)
    assert level.acceptance == size.acceptance == full.acceptance
    assert level.acceptance == pytest.approx(mean_of(dataset, "A-CRC-QA", "acceptance"), abs=0.051)
    assert level.power == pytest.approx(mean_of(dataset, "A-CRC-QA", "power"), abs=0.051)
    assert level.violation_rate == size.violation_rate == full.violation_rate
    assert level.violation_rate == pytest.approx(mean_of(dataset, "A-CRC-QA", "violation_rate"), abs=0.51)
    best = {row.model: row for row in ESTIMATORS if row.dataset == dataset and row.label in ("WSE", "PE")}
    for row in MAIN:
        if (row.dataset, row.label) == (dataset, "A-CRC-QA"):
            other = best[row.model]
            assert (row.scer, row.acceptance, row.power) == (other.scer, other.acceptance, other.power)


def test_the_implied_accuracy_follows_from_every_printed_row() -> None:
    # accuracy = AR (1 - SCER) / Power; rounding of SCER (.0005), AR and Power (.05 points) moves it by at most .002.
    accuracy = {(p.dataset, p.model): p.accuracy for p in POPULATIONS}
    for row in MAIN:
        assert row.power is not None
        implied = row.acceptance * (1 - row.scer) / row.power
        assert implied == pytest.approx(accuracy[row.dataset, row.model or ""], abs=0.002)
    assert [len(rows) for rows in (MAIN, RISK_LEVELS, ESTIMATORS, SIZES, ABLATION)] == [24, 10, 8, 10, 8]


def test_why_some_numbers_cannot_be_met() -> None:
    """The page says which printed figures contradict each other, by figures that follow from the printed tables."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for row in MAIN:
        if (row.dataset, row.model, row.label) in {
            ("MedMCQA", "LLaMA-3.1-8B", "Fixed-50"),
            ("MedMCQA", "LLaMA-3.1-8B", "A-CRC-QA"),
            ("MedMCQA", "LLaMA-3.1-8B", "LEC-Direct"),
            ("MedMCQA", "Qwen2.5-7B", "Fixed-50"),
            ("MedMCQA", "Qwen2.5-7B", "UCB-CLP"),
            ("MedMCQA", "Qwen2.5-7B", "A-CRC-QA"),
            ("CoQA", "Qwen2.5-7B", "A-CRC-QA"),
            ("CoQA", "Qwen2.5-7B", "Fixed-50"),
        }:
            assert f"{row.scer * row.acceptance:.2f} %" in text
    (lec,) = (row for row in MAIN if (row.dataset, row.model, row.label) == ("MedMCQA", "LLaMA-3.1-8B", "LEC-Direct"))
    assert lec.power is not None
    false_positives = lec.scer * (lec.acceptance / 100) / (1 - 0.579)  # the accuracy of LLaMA on MedMCQA
    assert f"at least {(1 + lec.power / 100 - false_positives) / 2:.3f}" in text
    assert f"about {100 * stats.norm.sf(0.15, 0.143, 0.016):.0f} %" in text
    gains = [
        mean_of(dataset, "A-CRC-QA", "acceptance") - mean_of(dataset, "UCB-HFD", "acceptance")
        for dataset in ("CoQA", "MedMCQA")
    ]
    assert "the table gives {:.2f} and {:.1f}".format(*gains) in text
    ceilings = [100 * Population.binormal(p.accuracy, p.auroc["PE"]).ceiling(0.15) for p in POPULATIONS[2:]]
    assert "oracle accepts {:.1f} and {:.1f} %".format(*ceilings) in text


def test_simulated_pools_have_the_printed_accuracy_and_auroc() -> None:
    pools = simulated_pools(2, items=20_000)
    assert [pool.model for pool in pools[:3]] == ["LLaMA-3.1-8B", "LLaMA-3.1-8B", "Qwen2.5-7B"]
    for pool, population in zip(pools[::2], POPULATIONS, strict=True):
        assert 1 - np.mean(pool.error) == pytest.approx(population.accuracy, abs=0.018)  # 5 sd
        areas = [auroc(scores, pool.error) for scores in pool.uncertainty.values()]
        assert areas == [pytest.approx(value, abs=0.018) for value in population.auroc.values()]
    assert not np.array_equal(pools[0].error, pools[1].error)


# -- Recorded outputs --------------------------------------------------------------------------------------------------


def test_unparseable_answers_are_unmeasured_and_not_right(tmp_path: Path) -> None:
    """Leaving them out would let a model that cannot be read look better than it is."""
    text = "dataset,model,question,grade,max_softmax\narc,m,0,Correct,0.75\narc,m,1,Wrong,0.5\narc,m,2,Unparseable,0\n"
    (tmp_path / PAIRS).write_bytes(gzip.compress(text.encode()))
    (pool,) = pairs(tmp_path)
    assert (pool.dataset, pool.model, pool.error.tolist()) == ("ARC", "m", [0, 1, 1])
    assert pool.uncertainty["MSP"].tolist() == [0.25, 0.5, np.inf]


def test_option_files() -> None:
    pool = read_options(BUNDLED / "mmbench-llava-34b-2000.jsonl", "MMBench", "LLaVA")
    logits = {"A": 7.7734, "B": 5.7852, "C": 11.3906, "D": 7.0664, "E": 7.3906, "F": 6.6602}  # the first line
    p = [math.exp(value) / sum(map(math.exp, logits.values())) for value in logits.values()]
    assert pool.uncertainty["PE"][0] == pytest.approx(-sum(x * math.log(x) for x in p))
    assert pool.uncertainty["MSP"][0] == pytest.approx(1 - max(p))
    error = pool.error
    assert (error.size, error[0]) == (2000, 0)
    assert 0.1 < error.mean() < 0.2


def test_options_as_probabilities_with_a_label(tmp_path: Path) -> None:
    rows = [
        {"options": {"A": 0.5, "B": 0.5}, "option_scale": "probability", "answer": "A", "correct": False},
        {"options": {"A": 1.0, "B": 0.0}, "option_scale": "probability", "answer": "A", "correct": True},
    ]
    path = tmp_path / "options.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    pool = read_options(path, "d", "m")
    assert pool.uncertainty["PE"].tolist() == [pytest.approx(math.log(2)), 0.0]
    assert pool.error.tolist() == [1, 0]


def test_sample_files(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "references": ["18"], "samples": ["18", {"text": "18.0"}, "7", "18"]},  # 18 and 18.0 are one number
        {"id": "2", "references": ["no number"], "samples": ["1", "1"]},  # cannot be graded
        {"id": "3", "references": ["4"], "samples": ["5", "5"]},
    ]
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    pool = read_samples(path, "d", "m", "numeric")
    assert pool.error.tolist() == [0, 1]
    assert pool.uncertainty["vote"].tolist() == [0.25, 0.0]
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert pool.uncertainty["entropy"].tolist() == [pytest.approx(expected), 0.0]


def test_bundled_sample_files() -> None:
    trivia = read_samples(BUNDLED / "triviaqa-500.jsonl", "TriviaQA", "20 samples", "token_f1")
    assert trivia.error.size == 500
    assert 0.2 < np.mean(trivia.error) < 0.35


def test_confidence_files(tmp_path: Path) -> None:
    path = tmp_path / "confidence.csv"
    path.write_text(
        "id,group,m/error,m/stated_confidence,m/logit_confidence\n0,x,0,0.9,0.75\n1,x,1,,0.5\n2,x,1,0.5,0.25\n",
        encoding="utf-8",
    )
    (pool,) = read_confidences(path, "d")
    assert (pool.model, pool.error.tolist()) == ("m", [0, 1])
    assert pool.uncertainty["logit"].tolist() == [0.25, 0.75]
    assert pool.uncertainty["stated"].tolist() == [pytest.approx(0.1), 0.5]


def test_missing_files(tmp_path: Path) -> None:
    for read, name in ((pairs, "options-7models-5tasks"), (recorded_pools, "mmbench-llava-v1.6-34b-options")):
        with pytest.raises(UsageError, match=f"no file {name}"):
            read(tmp_path)


# -- Certificates ------------------------------------------------------------------------------------------------------


def test_calibrations_with_replacement_know_the_truth() -> None:
    """A score that says nothing at a rate just above alpha: certified in at most delta, and then false every time."""
    rng = np.random.default_rng(1)
    pool = Pool("toy", "a", np.array([1] * 210 + [0] * 1_790), {"score": rng.random(2_000)})
    cell = held(pool, 100, 0.1, 0.1, 200)
    assert 0 < cell.false < 0.19
    assert held(pool, 100, 0.3, 0.1, 20).false == 0.0


# -- The page ----------------------------------------------------------------------------------------------------------


def row(model: str, scer: float | None, ar: float, accepting: float = 1.0) -> Row:
    """100 splits."""

    def rate(value: float) -> Estimate:
        return Estimate(value=value, se=None)

    own = None if scer is None else rate(scer)
    rates = {"acceptance": rate(ar), "power": rate(0.4), "violation_rate": rate(0.07), "pool_violation_rate": rate(0)}
    figures = EvaluationRow(
        rule="acrc",
        alpha=0.15,
        delta=None,
        splits=100,
        scer=own,
        scer_sd=None if scer is None else 0.02,
        pooled=own,
        infeasible_rate=rate(1 - accepting),
        **rates,
    )
    return Row("d", model, "m", 10, 0.7, 0.8, figures)


def test_averages_by_hand() -> None:
    """One lucky split of a hopeless model must not weigh as much as all splits of another."""
    rows = [row("x", 0.1, 0.2), row("y", None, 0.5, accepting=0.0), row("x", 0.5, 0.4, accepting=0.25)]
    x, y = average(rows, lambda each: (each.model,))
    assert x.model == "x"
    assert x.figures.scer is not None
    assert [x.figures.scer.value, x.figures.acceptance.value] == pytest.approx([0.18, 0.3])  # (.1 + .25 * .5) / 1.25
    assert (y.model, y.figures.scer, y.figures.acceptance.value) == ("y", None, 0.5)
    (both,) = average(rows, lambda each: (each.dataset,))
    assert both.model is None
    assert both.figures.scer is not None  # y accepts nothing and has no error rate
    assert [both.figures.scer.value, both.figures.acceptance.value] == pytest.approx([0.18, 1.1 / 3])


def test_markdown_by_hand() -> None:
    rows = [row("x", 0.1234, 0.25), row("y", None, 0.0)]
    printed = [Printed("d", "m", 0.2, 30.0, model="x", violation_rate=7)]
    assert beside(rows, printed, ["SCER", "AR", "VR"], "method").splitlines() == [
        "|data|model|method|SCER|AR|VR|",
        "|:--|:--|:--|--:|--:|--:|",
        "|d|x|m|0.200/0.123|30.0/25.0|7/7|",
        "|d|y|m|–/–|–/0.0|–/7|",
    ]
    assert form(rows[:1], ["SCER ± sd", "IF"], "method").splitlines()[2:] == ["|d|x|m|0.123±0.020|0|"]
    assert across(rows[:1], ["SCER", "AR", "VR"]).splitlines() == ["|data|m|", "|:--|--:|", "|d|0.123/25.0/7|"]
    assert compact(rows).splitlines()[2:] == ["|d|x|10|0.700|0.800|25.0/0.123/7|", "|d|y|10|0.700|0.800|nothing|"]


def test_blocks_of_a_page() -> None:
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
    assert with_blocks(page, {"x": "new"}) == "a\n<!-- begin x -->\n\nnew\n\n<!-- end x -->\nb\n"
    with pytest.raises(UsageError, match="begin y"):
        with_blocks(page, {"y": "new"})


@pytest.mark.parametrize("with_data", [True, False])
def test_the_command_writes_tables_and_figures(
    with_data: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command writes the whole page; without the recorded outputs it says so, and leaves their tables alone."""
    rng = np.random.default_rng(2)
    toy = [
        Pool("toy", model, (rng.random(400) < 0.1).astype(int), {"one": rng.random(400), "two": rng.random(400)})
        for model in "ab"
    ]
    monkeypatch.setattr(command, "simulated_pools", lambda pools, *, seed: toy)
    if with_data:
        monkeypatch.setattr(command, "pairs", lambda folder: toy)
        monkeypatch.setattr(command, "recorded_pools", lambda folder: toy)
    monkeypatch.setattr(command, "HELD_RUNS", 2)
    (tmp_path / "images").mkdir()
    committed = PAGE.read_text(encoding="utf-8")
    (tmp_path / "paper.md").write_text(committed, encoding="utf-8")
    command.main(["--data", str(tmp_path), "--docs", str(tmp_path), "--splits", "2"])
    text = (tmp_path / "paper.md").read_text(encoding="utf-8")
    assert "|toy|a|A-CRC-QA|–/" in text
    assert ("|toy|A-CRC-QA|" in text) is with_data
    assert ("no file options-7models-5tasks.csv.gz" in capsys.readouterr().out) is not with_data
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == [
        *(["paper-recorded.png"] if with_data else []),
        "paper-simulated.png",
    ]


def test_the_committed_page_has_its_tables_and_figures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for printed in MAIN:
        assert f"|{printed.dataset}|{printed.model}|{printed.label}|{printed.scer:.3f}/" in text
    assert text.count("|gpt-4-turbo|") == 5
    assert all((ROOT / "docs" / "images" / f"paper-{name}.png").is_file() for name in ("recorded", "simulated"))
