"""Planning: closed forms of the binormal population, what a plan says, and when it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from benchmarks.paper.pools import read_samples
from calibrate.evaluation.planning import Plan, _crossing, labels_needed, plan
from calibrate.evaluation.populations import Population, error_probabilities, gap
from calibrate.fitting import fit
from calibrate.report.assessment import verdict_text
from calibrate.scoring.metrics import auroc
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.describe import promises
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible
from guardrail.testing import ScriptedChat, make_artifact

QWEN = Population.binormal(0.714, 0.762)


def test_a_population_has_the_accuracy_and_auroc_it_was_asked_for() -> None:
    u, e = QWEN.draw(np.random.default_rng(1), 200_000)
    area = auroc(u, e)
    assert area is not None
    assert e.mean() == pytest.approx(0.286, abs=0.005)  # sd .001
    assert area == pytest.approx(0.762, abs=0.006)  # sd .0012
    accepted = u <= 0.3
    assert e[accepted].mean() == pytest.approx(QWEN.scer(0.3), abs=0.005)
    assert accepted.mean() == pytest.approx(QWEN.acceptance(0.3), abs=0.005)


def test_auroc_in_closed_form() -> None:
    # P(N(gap, 1) > N(0, 1)) = Phi(gap/sqrt 2), here by integration.
    distance = gap(0.762)
    value, _ = integrate.quad(lambda x: stats.norm.pdf(x) * stats.norm.sf(x - distance), -9, 9)
    assert value == pytest.approx(0.762, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.15, 0.25])
def test_the_ceiling_is_where_the_error_rate_meets_alpha(alpha: float) -> None:
    grid = np.linspace(-8, 5, 13_001)
    wrong, right = 0.286 * stats.norm.cdf(grid - gap(0.762)), 0.714 * stats.norm.cdf(grid)
    assert QWEN.ceiling(alpha) == pytest.approx((wrong + right)[wrong <= alpha * (wrong + right)].max(), abs=5e-4)


def test_ceilings_at_the_edges() -> None:
    assert QWEN.ceiling(0.2861) == 1.0
    assert Population.binormal(0.7, 0.5).ceiling(0.2) == 0.0  # a flat risk of .3
    assert Population.binormal(0.7, 0.4).ceiling(0.2) == 0.0  # the score points the wrong way
    assert Population.binormal(0.7, 0.4).ceiling(0.35) == 1.0


@pytest.fixture(scope="module")
def small() -> Plan:
    rules = ["acrc", "certified"]
    return plan(0.15, accuracy=0.714, auroc=0.762, rules=rules, sizes=[1000, 100, 300], repetitions=100, seed=3)


def test_a_plan_lists_every_rule_at_every_size_in_order(small: Plan) -> None:
    assert [(row.rule, row.n) for row in small.rows[:4]] == [
        ("acrc", 100),
        ("acrc", 300),
        ("acrc", 1000),
        ("certified", 100),
    ]
    for row in small.rows:
        assert row.acceptance.value <= 1 - row.infeasible_rate.value
        assert row.violation_rate.se is not None
    for rule in ("acrc", "certified"):
        accepted = [row.acceptance.value for row in small.rows if row.rule == rule]
        assert accepted == sorted(accepted)


def test_certificates_need_more_labels_and_violate_less(small: Plan) -> None:
    acrc, certified = small.needed["acrc"], small.needed["certified"]
    assert small.target_acceptance == pytest.approx(0.579 / 2, abs=5e-4)
    assert acrc is not None
    assert certified is not None
    assert 100 < acrc < certified < 1000
    rounded = -(-certified // 10) * 10  # two leading digits, upwards
    assert f"certified needs about {rounded} labelled questions" in small.words[2]
    last = {row.rule: row.violation_rate.value for row in small.rows if row.n == 1000}
    assert last["acrc"] > 0.25 > last["certified"]


def test_same_seed_same_plan(small: Plan) -> None:
    settings: dict[str, Any] = {"accuracy": 0.714, "auroc": 0.762, "sizes": [100], "repetitions": 20, "rules": ["acrc"]}
    assert plan(0.15, **settings) == plan(0.15, **settings)
    assert plan(0.15, **settings) != plan(0.15, seed=1, **settings)
    assert Plan.model_validate_json(small.model_dump_json()) == small


def test_a_pilot_as_a_population_by_hand() -> None:
    # .1 right, .1 wrong, .2 right, .5 wrong. Isotonic: 1/3 over the first three, then 1, kept off 0 and 1 by 1/8.
    pilot = Population(np.array([0.1, 0.1, 0.2, 0.5]), np.array([1 / 3, 1 / 3, 1 / 3, 7 / 8]), 0.5, 0.625)
    assert [pilot.acceptance(t) for t in (0.0, 0.1, 0.3, 0.5)] == [0.0, 0.5, 0.75, 1.0]
    assert [pilot.scer(t) for t in (0.0, 0.2, 0.5)] == pytest.approx([1 / 3, 1 / 3, (1 + 7 / 8) / 4])
    assert [pilot.ceiling(alpha) for alpha in (0.3, 0.34, 0.5)] == [0.0, 0.75, 1.0]
    scores = np.random.default_rng(0).permutation(np.repeat([0.1, 0.2, 0.5], 20))
    population = Population.of_pilot(scores, (scores > 0.3).astype(np.int64))
    assert population.accuracy == pytest.approx(2 / 3)
    assert population.auroc == 1.0
    u, e = population.draw(np.random.default_rng(1), 3000)
    assert set(u.tolist()) == {0.1, 0.2, 0.5}  # ties as they are
    assert e[u < 0.3].mean() < 0.02 < 0.98 < e[u > 0.3].mean()


def test_tied_scores_of_a_pilot_share_one_error_rate_in_any_order() -> None:
    # 4 of 40 wrong at score 0 and 9 of 10 at score .5; wrong answers last in the file, then first.
    scores = np.array([0.0] * 40 + [0.5] * 10)
    errors = np.array([0] * 36 + [1] * 4 + [0] * 1 + [1] * 9)
    assert error_probabilities(np.array([0.0, 0.2, 0.5]), scores, errors) == pytest.approx([0.1, 0.1, 0.9])
    assert error_probabilities(scores, scores[::-1], errors[::-1]) == pytest.approx([0.1] * 40 + [0.9] * 10)
    assert Population.of_pilot(scores, errors).ceiling(0.1) == pytest.approx(0.8)
    # A rate that falls with the score is pooled with its neighbour, each with its weight: 13 of 50.
    assert error_probabilities(np.array([0.0]), scores, 1 - errors) == pytest.approx([37 / 50])


def test_a_pilot_predicts_what_votes_with_ties_certify() -> None:
    # TriviaQA, vote of 20 (20 distinct values), 250 labels, alpha .15: about 65 % are realised, and a pilot of 100
    # labels predicts 63 % on average, one pilot 13 points more or less. Version 1 of the rule realised 27 %.
    file = Path(__file__).parents[3] / "examples" / "recorded" / "triviaqa-500.jsonl"
    pool = read_samples(file, "TriviaQA", "20 samples", "token_f1")
    u, e = np.asarray(pool.uncertainty["vote"]), np.asarray(pool.error).astype(np.int64)
    rng, realised, predicted = np.random.default_rng(0), [], []
    for _ in range(20):
        chosen = rng.permutation(500)
        outcome = fit(u[chosen[:250]], e[chosen[:250]], alpha=0.15, rule="certified")
        realised.append(float((u <= outcome.threshold).mean()) if isinstance(outcome, Feasible) else 0.0)
        pilot = Population.of_pilot(u[chosen[-100:]], e[chosen[-100:]])
        row = plan(0.15, pilot=pilot, rules=["certified"], sizes=[250], repetitions=10).rows[0]
        predicted.append(row.acceptance.value)
    assert np.mean(realised) > 0.5
    assert np.mean(predicted) == pytest.approx(np.mean(realised), abs=0.12)


def test_interpolation_by_hand() -> None:
    # From .5 at 100 to .9 at 400, .8 is three quarters of the way in ln n: 100 * 4^.75 = 282.8.
    assert _crossing([100, 400], np.array([0.5, 0.9])) == 283
    assert _crossing([100, 400], np.array([0.8, 0.9])) == 100
    assert _crossing([100, 400], np.array([0.1, 0.79])) is None


def test_words_where_nothing_helps() -> None:
    settings: dict[str, Any] = {"sizes": [100], "repetitions": 10, "rules": ["acrc"]}
    assert "No threshold has an error rate of 0.2" in plan(0.2, accuracy=0.7, auroc=0.5, **settings).words[0]
    above = plan(0.15, accuracy=0.714, auroc=0.762, target_acceptance=0.9, **settings)
    assert "no rule can accept more than 58% of such questions. The target of 90% is above that" in above.words[0]
    assert above.needed == {"acrc": None}
    easy = plan(0.4, accuracy=0.9, auroc=0.8, target_acceptance=0.5, **settings)
    assert easy.needed == {"acrc": 100}
    assert "acrc needs at most 100 labelled questions" in easy.words[1]


def test_a_pilot_that_says_nothing_is_refused() -> None:
    for errors in (np.zeros(50, np.int64), np.ones(50, np.int64), np.array([0, 1])):
        with pytest.raises(UsageError, match=r"a pilot of \d+ questions with \d+ wrong answers cannot stand"):
            Population.of_pilot(np.arange(errors.size, dtype=np.float64), errors)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accuracy": 71}, "accuracy must be in"),
        ({"auroc": 1.0}, "auroc must be in"),
        ({"target_acceptance": 40}, r"target acceptance must be in \(0, 1\], got 40"),
        ({"rules": []}, "at least one each"),
        ({"rules": ["acr"]}, "Did you mean 'acrc'"),
        ({"sizes": [0]}, "sizes must be at least 1"),
        ({"delta": 10}, "delta must be in"),
        ({"accuracy": None}, "a plan needs accuracy and auroc"),
        ({"pilot": QWEN}, "or a pilot, not both"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**{"alpha": 0.15, "accuracy": 0.7, "auroc": 0.7, "repetitions": 2, "sizes": [50], **settings})


def infeasible(accuracy: float, n: int = 300, seed: int = 0) -> CalibrationArtifact:
    u, e = Population.binormal(accuracy, 0.75).draw(np.random.default_rng(seed), n)
    return without_threshold(u, e)


def without_threshold(u: Any, e: Any, alpha: float = 0.1) -> CalibrationArtifact:
    """An artifact of rule certified that found nothing on these items."""
    none = fit(u, e, alpha=alpha, rule="certified")
    assert isinstance(none, Infeasible)
    scores = CalibrationScores(uncertainty=tuple(u.tolist()), error=tuple(e.tolist()))
    return make_artifact(ScriptedChat()).model_copy(update={"outcome": none, "calibration": scores})


@pytest.mark.usefixtures("whole_forecasts")
def test_an_artifact_without_a_certificate_says_how_many_labels_would_do() -> None:
    artifact = infeasible(0.8, n=100)
    scores = artifact.calibration
    pilot = Population.of_pilot(np.array(scores.uncertainty), np.array(scores.error, dtype=np.int64))
    sizes = [100, 150, 200, 300, 500, 800, 1300]
    needed = plan(0.1, pilot=pilot, rules=["certified"], sizes=sizes, repetitions=60).needed["certified"]
    assert needed is not None
    step = 10 ** (len(str(needed)) - 2)
    named = -(-needed // step) * step  # two leading digits, upwards
    assert labels_needed(artifact) == f"About {named:,} labels would do in 4 of 5 cases."


def test_who_failed_with_so_many_labels_does_not_read_that_as_many_would_do() -> None:
    """Nobody can act on "About 100 labels would do" after a fit on 100 labels that found nothing."""
    u, e = Population.binormal(0.85, 0.8).draw(np.random.default_rng(7), 100)
    said = labels_needed(without_threshold(u, e))
    assert said == "100 labels do in 4 of 5 cases, these did not: some more may."


@pytest.mark.slow
@pytest.mark.usefixtures("whole_forecasts")
def test_no_number_of_labels_is_named_where_none_would_do_or_none_is_needed() -> None:
    hopeless = infeasible(0.2)
    reversed_scores = CalibrationScores(
        uncertainty=tuple(-(u or 0.0) for u in hopeless.calibration.uncertainty), error=hopeless.calibration.error
    )
    said = labels_needed(hopeless.model_copy(update={"calibration": reversed_scores}))
    assert said == "More labels would hardly help: use a better score or model, or a larger alpha."
    assert labels_needed(infeasible(0.5, seed=1)) == "More than 3,900 labels would be needed."
    assert labels_needed(make_artifact(ScriptedChat())) is None
    tiny = CalibrationScores(uncertainty=(0.1,) * 5, error=(0, 1, 0, 0, 0))
    assert labels_needed(infeasible(0.6).model_copy(update={"calibration": tiny})) is None  # five make no population


def test_too_few_labels_are_not_also_said_to_be_useless() -> None:
    """Twenty labels cannot certify 10 % even without an error: they are no pilot that shows what more would do."""
    artifact = without_threshold(np.arange(20) / 20, np.array([1, 1, 1, 0] * 5))
    assert labels_needed(artifact) is None
    shown = " ".join([*verdict_text(artifact).lines, *verdict_text(artifact).warnings, *promises(artifact)])
    assert "are too few" in shown
    assert "the labels are too few to show whether discrete_semantic_entropy ranks this model's errors" in shown
    assert "another score" not in shown
