"""Adding an estimator as CONTRIBUTING.md shows: a formula and one entry; everything else finds it by its name."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.scoring import header_of, made_records
from calibrate.cli import app
from calibrate.data.records import read_records, write_records
from calibrate.scoring.names import estimator_key, parse_estimator
from calibrate.scoring.scores import supported
from guardrail import Guardrail, make_estimator, make_judge, plan_for
from guardrail.errors import UsageError
from guardrail.guard.early_stopping import range_of
from guardrail.judges import ExactJudge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Missing, Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import Estimator, Evidence, Needs, from_spec, list_estimators, measure
from guardrail.uncertainty.early_bounds import by_partition, has_useful_bounds
from guardrail.uncertainty.registry import ESTIMATORS

# -- What a contributor writes -----------------------------------------------------------------------------------------


def gini(evidence: Evidence) -> float | Missing:
    """Gini impurity: 1 - sum_C (|C| / n)^2. Probability, in [0, 1 - 1/n]."""
    if evidence.clusters is None:
        return Missing(Unmeasured.SAMPLING_SHORTFALL, "there are no samples to cluster")
    n = len(evidence.clusters.assignment)
    return 1 - sum((size / n) ** 2 for size in evidence.clusters.sizes)


ENTRY = Estimator("gini", 1, "probability", Needs(samples=True, judge=True), gini, bounds=by_partition)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line in the registry, for one test."""
    monkeypatch.setitem(ESTIMATORS, ENTRY.name, ENTRY)


# -- What follows from it ----------------------------------------------------------------------------------------------

CONTRIBUTING = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
MODEL = ScriptedChat(script={"spread?": ["x", "a", "b", "c", "d"], "equal?": ["x", "same"]})


def drawn(*texts: str) -> SampleSet:
    return SampleSet(question="q", primary=Sample(text="x"), samples=tuple(Sample(text=text) for text in texts))


def test_the_page_shows_this_estimator() -> None:
    assert inspect.getsource(gini) in CONTRIBUTING
    entry = next(line for line in Path(__file__).read_text(encoding="utf-8").splitlines() if line.startswith("ENTRY"))
    assert entry.removeprefix("ENTRY = ") in CONTRIBUTING


def test_it_is_unknown_before() -> None:
    assert "gini" not in list_estimators()
    with pytest.raises(UsageError, match="no estimator named 'gini'"):
        make_estimator("gini")


@pytest.mark.usefixtures("added")
def test_it_is_made_by_name_and_from_its_spec() -> None:
    made = make_estimator("gini", judge=make_judge("exact"), clustering="greedy")
    assert "gini" in list_estimators()
    assert made.spec.judge == ExactJudge().spec
    assert make_estimator("gini").spec.judge == make_judge("token_f1").spec  # the default judge
    assert from_spec(made.spec).spec == made.spec
    assert not made.is_slow


@pytest.mark.usefixtures("added")
def test_its_plan_is_drawn_and_measured() -> None:
    estimator = make_estimator("gini", judge=ExactJudge())
    plan = plan_for([estimator], n=4)
    assert (plan.n, plan.logprobs, plan.options, plan.follow_ups) == (4, False, None, ())
    assert measure(drawn("a", "a", "b", "c"), estimator, plan).value == pytest.approx(0.625)  # 1 - (4 + 1 + 1) / 16
    assert measure(drawn("a", "a", "b"), estimator, plan).reason is Unmeasured.SAMPLING_SHORTFALL


@pytest.mark.usefixtures("added")
def test_calibrate_scores_it_by_name(tmp_path: Path) -> None:
    key = "gini:exact:greedy"
    assert estimator_key(parse_estimator(key)) == key
    assert "gini" in {estimator.name for estimator in supported(SamplingPlan(n=10))}
    path = tmp_path / "records.jsonl"
    write_records(path, header_of(4, 3), made_records(4, 3))
    result = CliRunner().invoke(app, ["score", str(path), "-e", "gini", "-e", key], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    scored = read_records(path)
    assert set(scored.header.estimators) == {"gini", key}
    assert all(record.scores["gini"].measured for record in scored.records)


@pytest.mark.usefixtures("added")
def test_its_bounds_stop_early() -> None:
    estimator = make_estimator("gini", judge=ExactJudge())
    assert has_useful_bounds(estimator)
    # Three meanings of 3: {8, 1, 1} of 10 at best, 1 - 66 / 100; ten meanings at worst, 1 - 10 / 100.
    assert range_of(drawn("a", "b", "c"), estimator, 10) == pytest.approx((0.34, 0.9))
    artifact = make_artifact(MODEL, threshold=0.3).model_copy(update={"estimator": estimator.spec})
    for question, saved in (("spread?", 7), ("equal?", 0)):
        early = Guardrail(model=MODEL, artifact=artifact).assess(question)
        full = Guardrail(model=MODEL, artifact=artifact, early_stopping="off").assess(question)
        assert (early.accepted, early.reason) == (full.accepted, full.reason)
        assert (early.cost.saved >= saved, full.cost.saved) == (True, 0)
