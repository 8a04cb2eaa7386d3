"""Adding an estimator as CONTRIBUTING.md shows: a formula and one entry; everything else finds it by its name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from typer.testing import CliRunner

from benchmarks.scoring import header_of, made_records
from calibrate.cli import app
from calibrate.data.records import read_records, write_records
from calibrate.scoring.compute import supported
from calibrate.scoring.names import estimator_key, parse_estimator
from guardrail import Guardrail, make_estimator, make_judge, plan_for
from guardrail.doctor import examine
from guardrail.errors import UsageError
from guardrail.judges import ExactJudge
from guardrail.sampling.follow_ups import FOLLOW_UPS, FollowUp
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Missing, Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import Estimator, Evidence, Needs, from_spec, list_estimators, measure, unmet_needs
from guardrail.uncertainty.registry import ESTIMATORS

# -- What a contributor writes -----------------------------------------------------------------------------------------


def gini(evidence: Evidence) -> float:
    """Gini impurity: 1 - sum_C (|C| / n)^2. Probability, in [0, 1 - 1/n]."""
    n = len(evidence.clusters.assignment)
    return 1 - sum((size / n) ** 2 for size in evidence.clusters.sizes)


ENTRY = Estimator("gini", 1, "probability", Needs(samples=True, judge=True), gini)


def ask_doubt(prompt: Sequence[BaseMessage], drawn: SampleSet) -> list[list[BaseMessage]]:
    """The conversation with the answer, and one question about it."""
    assert drawn.primary is not None  # only sets with an answer are asked about
    return [[*prompt, AIMessage(drawn.primary.comparable), HumanMessage("Are you sure? Reply with yes or no only.")]]


DOUBT = FollowUp("doubt", ask_doubt)


def doubt(evidence: Evidence) -> float:
    """1 unless the model stands by its answer when asked. Probability, 0 or 1."""
    reply = DOUBT.reply(evidence.drawn)
    if reply.primary is None:
        raise Missing(Unmeasured.UNREADABLE, "the model gave no reply")
    return float(reply.primary.text.strip().casefold() != "yes")


ASKING = Estimator("doubt", 1, "probability", Needs(follow_up=DOUBT), doubt)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line in the registry, for one test; at import the registry registers the question as well."""
    monkeypatch.setitem(ESTIMATORS, ENTRY.name, ENTRY)
    monkeypatch.setitem(ESTIMATORS, ASKING.name, ASKING)
    monkeypatch.setitem(FOLLOW_UPS, DOUBT.name, DOUBT)


# -- What follows from it ----------------------------------------------------------------------------------------------

CONTRIBUTING = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SURE = "Are you sure? Reply with yes or no only."


def drawn(*texts: str) -> SampleSet:
    return SampleSet(question="q", primary=Sample(text="x"), samples=tuple(Sample(text=text) for text in texts))


def test_the_page_shows_this_estimator() -> None:
    assert inspect.getsource(gini) in CONTRIBUTING
    assert inspect.getsource(ask_doubt) in CONTRIBUTING
    assert inspect.getsource(doubt) in CONTRIBUTING
    for line in Path(__file__).read_text(encoding="utf-8").splitlines():
        if line.startswith(("ENTRY = ", "ASKING = ", "DOUBT = ")):
            assert line.removeprefix("ENTRY = ").removeprefix("ASKING = ") in CONTRIBUTING


def test_it_is_unknown_before() -> None:
    assert not {"gini", "doubt"} & set(list_estimators())
    with pytest.raises(UsageError, match="no score named 'gini'"):
        make_estimator("gini")


@pytest.mark.usefixtures("added")
def test_it_is_made_by_name_and_from_its_spec() -> None:
    estimator = make_estimator("gini", judge=make_judge("exact"))
    assert "gini" in list_estimators()
    assert estimator.spec.judge == ExactJudge().spec
    assert make_estimator("gini").spec.judge == make_judge("text").spec  # the default judge
    assert from_spec(estimator.spec).spec == estimator.spec
    assert not estimator.is_slow


@pytest.mark.usefixtures("added")
def test_its_plan_is_drawn_and_measured() -> None:
    estimator = make_estimator("gini", judge=ExactJudge())
    plan = plan_for([estimator], n=4)
    assert (plan.n, plan.logprobs, plan.options, plan.follow_ups) == (4, False, None, ())
    assert measure(drawn("a", "a", "b", "c"), estimator, plan).value == pytest.approx(0.625)  # 1 - (4 + 1 + 1) / 16
    assert measure(drawn("a", "a", "b"), estimator, plan).reason is Unmeasured.SAMPLING_SHORTFALL


@pytest.mark.usefixtures("added")
def test_calibrate_scores_it_by_name(tmp_path: Path) -> None:
    key = "gini:exact"
    assert estimator_key(parse_estimator(key)) == key
    assert "gini" in {estimator.name for estimator in supported(SamplingPlan(n=10))}
    path = tmp_path / "records.jsonl"
    write_records(path, header_of(4, 3), made_records(4, 3))
    result = CliRunner().invoke(app, ["score", str(path), "-s", "gini", "-s", key], env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    scored = read_records(path)
    assert set(scored.header.estimators) == {"gini", key}
    assert all(record.scores["gini"].measured for record in scored.records)


@pytest.mark.usefixtures("added")
def test_one_with_a_question_of_its_own_is_asked_measured_and_checked(tmp_path: Path) -> None:
    estimator = make_estimator("doubt")
    plan = plan_for([estimator, make_estimator("gini")], n=2)
    assert plan.follow_ups == ("doubt",)
    for reply, accepted in (("Yes", True), ("no", False)):
        model = ScriptedChat(script={"q": ["Rome"], SURE: [reply]})
        artifact = make_artifact(model, threshold=0.5, estimator="doubt")
        assert (artifact.plan.n, artifact.plan.follow_ups) == (0, ("doubt",))
        verdict = Guardrail(model=model, artifact=artifact).assess("q")
        assert (verdict.accepted, verdict.uncertainty.value) == (accepted, float(not accepted))
        assert verdict.cost.calls == 2
    assert unmet_needs(estimator, plan) == []
    bare = SamplingPlan(n=2)
    assert unmet_needs(estimator, bare) == [("a further question to the model", "collect with --score doubt")]
    assert "doubt" not in {each.name for each in supported(bare)}
    path = artifact.model_copy(update={"plan": bare}).save(tmp_path / "artifact.json")
    finding = next(each for each in examine(str(path)) if each.check == "plan for the score")
    assert (finding.status, finding.detail) == (
        "fail",
        "doubt needs a further question to the model, which the plan does not draw",
    )
