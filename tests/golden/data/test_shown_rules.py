"""Thresholds: the whole outcome of every rule on small sets of scores, with its diagnosis, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calibrate.evaluation.choice import rank_scores
from calibrate.evaluation.evaluate import HEADS, cells, evaluate
from calibrate.evaluation.label_checks import auroc_interval
from calibrate.evaluation.planning import Binormal, Pilot, error_probabilities, plan, plan_reach
from calibrate.evaluation.tables import RecordPool, rule_of, tables
from calibrate.prediction_powered import fit_prediction_powered, rate_bound
from calibrate.scoring.metrics import aurc, auroc, ks_two_sample
from calibrate.thresholds import conformal_selection, fit
from calibrate.thresholds.bounds import (
    binomial_tail,
    clopper_pearson_interval,
    clopper_pearson_upper,
    hoeffding_upper,
    zero_error_floor,
)
from calibrate.thresholds.fit import check_items
from calibrate.thresholds.registry import RULES, compared_rules, planned_rules, rule_named, swept_rules
from calibrate.thresholds.rule import RuleRequest, prefixes
from calibrate.thresholds.stages import fit_stages
from guardrail.outcome import Feasible, Infeasible

from .story import Story, drawn, six_digits, spelled

Reals = NDArray[np.float64]


def spread(n: int, factor: float) -> Reals:
    """Numbers in [0, 1) that are spread evenly and follow no order: the same on every machine."""
    numbers: Reals = np.floor((np.arange(1, n + 1) * factor % 1.0) * 10_000) / 10_000
    return numbers


def items(n: int, power: float = 2.0, share: float = 1.0) -> tuple[Reals, NDArray[np.int64]]:
    """Scores, and errors that are the likelier the higher the score and the larger the power."""
    u = spread(n, 0.6180339887)
    return u, (spread(n, 0.4142135623) < share * u**power).astype(np.int64)


CASES: dict[str, tuple[Reals, NDArray[np.int64]]] = {
    "a good score": items(240, 4.0),
    "ties": (np.round(items(240, 4.0)[0] * 5) / 5, items(240, 4.0)[1]),
    "a score that says nothing": (items(240)[0], (spread(240, 0.4142135623) < 0.3).astype(np.int64)),
    "a score upside down": (1 - items(240, 1.0)[0], items(240, 1.0)[1]),
    "no error": (items(60)[0], np.zeros(60, dtype=np.int64)),
    "all wrong": (items(60)[0], np.ones(60, dtype=np.int64)),
    "eight items": items(8),
    "the most certain are wrong": (
        np.arange(240) / 240,
        np.r_[np.ones(4), np.zeros(196), np.ones(40)].astype(np.int64),
    ),
}


def told(outcome: Feasible | Infeasible) -> str:
    """An outcome without its guarantee, which is the same for all outcomes of a rule."""
    return spelled(outcome.model_copy(update={"guarantee": ""}))


@pytest.mark.parametrize("name", RULES)
def test_outcomes(name: str) -> None:
    story = Story(f"rule_{name}.txt")
    rule = RULES[name]
    for field in ("promise", "certifies", "uses_delta", "uses_alpha", "grouping", "population", "defaults"):
        story.show(field, getattr(rule, field))
    for title, (u, error) in CASES.items():
        story.head(title)
        for alpha in (0.05, 0.2):
            outcome = fit(u, error, alpha=alpha, rule=name)
            story.show(f"alpha {alpha:g}", told(outcome))
    story.head("another delta, and no search")
    u, error = CASES["a good score"]
    delta = 0.02 if rule.uses_delta else None
    outcome = fit(u, error, alpha=0.15, rule=name, delta=delta, diagnose="fast")
    story.show("outcome", told(outcome))
    story.show("guarantee", outcome.guarantee)
    story.head("options")
    for options in OPTIONS.get(name, ()):
        story.show(spelled(options), told(fit(u, error, alpha=0.15, rule=name, **options)))
        story.show("guarantee", fit(u, error, alpha=0.15, rule=name, **options).guarantee)
    story.head("groups")
    groups = [f"g{i // 3 if i < 120 else i}" for i in range(240)]
    if rule.grouping == "none":
        story.refused("items of one group", lambda: fit(u, error, alpha=0.2, rule=name, groups=groups))
        story.show("ignored", told(fit(u, error, alpha=0.2, rule=name, groups="ignore")))
    else:
        for alpha in (0.05, 0.2):
            outcome = fit(u, error, alpha=alpha, rule=name, groups=groups, **GROUPED.get(name, {}))
            story.show(f"alpha {alpha:g}", told(outcome))
        few = [f"g{i % 12}" for i in range(240)]
        outcome = fit(u, error, alpha=0.3, rule=name, groups=few, **GROUPED.get(name, {}))
        story.show("few groups", told(outcome))
        story.show("guarantee", outcome.guarantee)
    if name == "group_total":
        story.refused("no largest group", lambda: fit(u, error, alpha=0.2, rule=name, groups=groups))
        story.refused("a larger group", lambda: fit(u, error, alpha=0.2, rule=name, groups=groups, largest_group=2))
    story.show("one item each", told(fit(u, error, alpha=0.2, rule=name, groups=list(range(240)))))
    story.head("refused")
    for option, value in BAD_OPTIONS.get(name, ()):
        story.refused(f"{option}={value!r}", lambda: fit(u, error, alpha=0.2, rule=name, **{option: value}))  # noqa: B023
    story.refused("another option", lambda: fit(u, error, alpha=0.2, rule=name, min_acept=3))
    if not rule.uses_delta:
        story.refused("a delta", lambda: fit(u, error, alpha=0.2, rule=name, delta=0.1))
    story.compare()


OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "acrc": (
        {"min_accept": 1},
        {"min_accept": 10, "monotone": False},
        {"correction": False},
        {"envelope": True},
        {"min_accept": 1, "monotone": False, "correction": False},
    ),
    "fixed_quantile": ({"quantile": 0.25}, {"quantile": 1}, {"quantile": 0.001}),
    "certified": ({"min_accept": 40}, {"expect": 0.4}, {"min_accept": 200}),
    "anchored": ({"min_accept": 40}, {"expect": 0.4}),
    "one_per_group": ({"min_accept": 40}, {"expect": 0.4}, {"seed": 3}),
    "cp_simultaneous": ({"min_accept": 40}, {"min_accept": 1}),
    "fixed_sequence": ({"start": 30}, {"start": 0.25}, {"start": 2}, {"start": 500}),
    "bonferroni": ({"points": 3}, {"points": 3, "holm": True}, {"points": 1}, {"points": 100}),
    "group_mean": ({"seed": 3},),
    "group_total": ({"seed": 3, "largest_group": 3}, {"largest_group": 2}),
}
GROUPED: dict[str, dict[str, Any]] = {"group_total": {"largest_group": 20}}
BAD_OPTIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "acrc": (("min_accept", 0), ("min_accept", 2.5), ("monotone", 1), ("correction", None), ("envelope", "yes")),
    "fixed_quantile": (("quantile", 50), ("quantile", 0), ("quantile", True), ("quantile", "half")),
    "certified": (("min_accept", "10"), ("expect", 2), ("expect", 0), ("expect", True)),
    "anchored": (("min_accept", -3), ("expect", 1.5)),
    "one_per_group": (("min_accept", True), ("seed", 1.5), ("seed", True)),
    "cp_simultaneous": (("min_accept", True),),
    "fixed_sequence": (("start", 0), ("start", 1.5), ("start", True), ("start", "x")),
    "bonferroni": (("points", 0), ("points", True), ("points", 1.5), ("holm", "yes")),
    "group_mean": (("seed", True), ("seed", "x")),
    "group_total": (("seed", None), ("largest_group", 0), ("largest_group", True), ("largest_group", 1.5)),
}


def test_bounds_rules_and_what_is_refused() -> None:
    story = Story("rules.txt")
    story.head("rules")
    for name, listed in {"compared": compared_rules(), "swept": swept_rules(), "planned": planned_rules()}.items():
        story.show(name, listed)
    for name, rule in RULES.items():
        request = RuleRequest(0.1, 0.05 if rule.uses_delta else None, dict(rule.defaults))
        story.show(name, {"promise": rule.promise, "resolved": rule.resolve(1000, request)})
        story.show("  guarantee", rule.guarantee(request))
    story.head("bounds, by errors and items")
    for errors, n in ((0, 1), (0, 20), (1, 20), (7, 20), (20, 20), (3, 1000)):
        story.show(
            f"{errors} of {n}",
            {
                "tail at .1": binomial_tail(errors, n, 0.1),
                "upper at .05": clopper_pearson_upper(errors, n, 0.05),
                "interval": clopper_pearson_interval(errors, n),
                "interval of 80 %": clopper_pearson_interval(errors, n, 0.8),
                "Hoeffding at .05": hoeffding_upper(errors, n, 0.05),
            },
        )
    story.show("tails", binomial_tail([-1, 0, 5, 6], [5, 5, 5, 5], 0.3))
    floors = {f"{alpha:g}": [zero_error_floor(alpha, delta) for delta in (0.1, 0.05)] for alpha in (0.01, 0.05, 0.5)}
    story.show("zero-error floors at delta .1 and .05", floors)
    story.head("refused")
    u, e = [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]
    refusals: dict[str, Callable[[], object]] = {
        "more errors than items": lambda: clopper_pearson_upper(3, 2, 0.1),
        "negative errors": lambda: hoeffding_upper(-1, 2, 0.1),
        "no items": lambda: clopper_pearson_interval(0, 0),
        "delta of 0": lambda: clopper_pearson_upper(0, 2, 0),
        "a confidence of 95": lambda: clopper_pearson_interval(0, 2, 95),
        "alpha of 1": lambda: zero_error_floor(1, 0.1),
        "a percentage": lambda: fit(u, e, alpha=15),
        "a share of 1": lambda: fit(u, e, alpha=1),
        "a negative share": lambda: fit(u, e, alpha=-0.5),
        "alpha that is not a number": lambda: fit(u, e, alpha="0.1"),  # type: ignore[arg-type]
        "alpha that is true": lambda: fit(u, e, alpha=True),
        "alpha that is infinite": lambda: fit(u, e, alpha=float("inf")),
        "delta of 5 %": lambda: fit(u, e, alpha=0.1, rule="sgr", delta=5),
        "an infinite score": lambda: fit([0.1, float("inf")], [0, 1], alpha=0.1),
        "a label of 2": lambda: fit(u, [0, 2, 0, 0], alpha=0.1),
        "a label of a half": lambda: fit(u, [0, 0.5, 0, 0], alpha=0.1),
        "other lengths": lambda: fit(u, [0, 1], alpha=0.1),
        "nothing": lambda: fit([], [], alpha=0.1),
        "a table": lambda: fit([u], e, alpha=0.1),
        "labels in a table": lambda: check_items(u, np.array([e])),
        "an unknown rule": lambda: fit(u, e, alpha=0.1, rule="anchord"),
        "a rule that is far from all": lambda: fit(u, e, alpha=0.1, rule="zzz"),
        "another diagnosis": lambda: fit(u, e, alpha=0.1, diagnose="slow"),  # type: ignore[arg-type]
        "one group as a word": lambda: fit(u, e, alpha=0.1, groups="user"),
        "too few groups": lambda: fit(u, e, alpha=0.1, groups=["a", "b"]),
        "a rule with another's name": lambda: rule_named(type("Mine", (type(RULES["lec"]),), {"name": "acrc"})()),
        "a batch in a table": lambda: conformal_selection(u, e, [u], 0.1),
        "an infinite score in a batch": lambda: conformal_selection(u, e, [0.1, float("nan")], 0.1),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.head("selection from a batch")
    u, error = CASES["a good score"]  # type: ignore[assignment]
    for alpha in (0.02, 0.1, 0.3):
        selection = conformal_selection(u, error, [0.05, 0.3, 0.3, 0.9, 0.999], alpha)
        story.show(
            f"alpha {alpha:g}", {"accepted": selection.accepted, "p": selection.p_value, "n": selection.n_accepted}
        )
        story.show("guarantee", selection.guarantee)
    story.show("an empty batch", conformal_selection(u, error, [], 0.1).n_accepted)
    story.compare()


def test_people_and_a_judge() -> None:
    story = Story("prediction_powered.txt")
    u, judge = items(600, 3.0)
    wrong = np.where(spread(600, 0.7320508) < 0.05, 1 - judge, judge)
    for title, every, alphas in (
        ("people labelled every second", 2, (0.02, 0.1, 0.2)),
        ("people labelled every fifth", 5, (0.1, 0.2)),
        ("people labelled every fiftieth", 50, (0.2,)),
    ):
        story.head(title)
        people = [int(label) if i % every == 0 else None for i, label in enumerate(wrong)]
        for alpha in alphas:
            outcome = fit_prediction_powered(u, judge, people, alpha=alpha)
            story.show(f"alpha {alpha:g}", told(outcome))
            story.show("guarantee", outcome.guarantee)
    story.show("delta .02", told(fit_prediction_powered(u, judge, people, alpha=0.2, delta=0.02)))
    everybody = [int(label) for label in wrong]
    story.show("all by people", told(fit_prediction_powered(u, judge, everybody, alpha=0.2)))
    upside = fit_prediction_powered(-u, judge, everybody, alpha=0.1)
    story.show("upside down", told(upside))
    story.head("bounds")
    for title, people_, judge_, rest in (
        ("a judge that agrees", wrong[:50], wrong[:50], judge[50:]),
        ("a judge that errs", wrong[:50], 1 - wrong[:50], judge[50:]),
        ("a judge that says nothing", wrong[:50], np.zeros(50), judge[50:]),
        ("no other answers", wrong[:50], judge[:50], []),
        ("no error", np.zeros(50), np.zeros(50), np.zeros(50)),
    ):
        story.show(title, rate_bound(people_, judge_, rest, 0.1))
    story.head("refused")
    refusals: dict[str, Callable[[], object]] = {
        "other lengths": lambda: fit_prediction_powered(u, judge, [None], alpha=0.1),
        "one label": lambda: fit_prediction_powered(u, judge, [1] + [None] * 599, alpha=0.1),
        "alpha of 10": lambda: fit_prediction_powered(u, judge, everybody, alpha=10),
        "delta of 0": lambda: fit_prediction_powered(u, judge, everybody, alpha=0.1, delta=0),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_stages() -> None:
    story = Story("stages.txt")
    first, error = items(300, 3.0)
    second = spread(300, 0.7320508)
    wrong = (spread(300, 0.2360679) < 0.5 * second**3).astype(np.int64)
    u, e = np.stack([first, second], axis=1), np.stack([error, wrong], axis=1)
    u[5, 0] = np.inf
    for rule in ("certified", "lec_joint"):
        for alpha in (0.02, 0.1, 0.3):
            for price in (0.0, 0.2):
                delta = None if rule == "lec_joint" else 0.1
                story.head(f"{rule} at {alpha:g}, price {price:g}")
                outcome = fit_stages(u, e, alpha=alpha, rule=rule, delta=delta, price=price)
                story.show("outcome", outcome)
    story.head("refused")
    refused: dict[str, dict[str, Any]] = {
        "an unknown rule": {"rule": "acrc"},
        "a negative price": {"rule": "certified", "price": -1.0},
        "a delta for a rule without one": {"rule": "lec_joint", "delta": 0.1},
        "alpha of 2": {"rule": "certified", "alpha": 2.0},
    }
    for title, settings in refused.items():
        chosen: dict[str, Any] = {"alpha": 0.1} | settings
        story.refused(title, lambda: fit_stages(u, e, **chosen))  # noqa: B023
    story.refused("one stage", lambda: fit_stages(u[:, 0], e[:, 0], alpha=0.1))
    story.refused("not a number", lambda: fit_stages(np.where(u > 0.99, np.nan, u), e, alpha=0.1))
    story.refused("a label of 2", lambda: fit_stages(u, 2 * e, alpha=0.1))
    story.compare()


def test_evaluations() -> None:
    story = Story("evaluations.txt")
    u, error = items(160, 3.0)
    result = evaluate(
        u,
        error,
        rules=["acrc", ("acrc", {"min_accept": 1}), "certified", ("sgr", {"delta": 0.3}), "lec"],
        alphas=[0.1, 0.25],
        n_calibration=80,
        splits=12,
        delta=0.2,
    )
    story.show("repr", repr(result))
    story.say("", str(result), "", result._repr_html_(), "", six_digits(result.to_csv()))
    story.show("columns", HEADS)
    story.say(*(spelled(cells(row)) for row in result.rows))
    story.show("ranking", result.model_copy(update={"rows": ()}))
    story.head("groups, two splits and one class")
    groups = [f"g{i % 23}" for i in range(160)]
    grouped = evaluate(
        u, error, rules=["group_mean", "certified", "lec"], alphas=[0.25], n_calibration=80, splits=2, groups=groups
    )
    story.say(str(grouped), spelled(grouped))
    right = evaluate(
        u, np.zeros(160, dtype=int), rules=["empirical", "certified"], alphas=[0.25], n_calibration=150, splits=1
    )
    story.say(str(right), spelled(right))
    wrong = evaluate(u, np.ones(160, dtype=int), rules=["empirical"], alphas=[0.25], n_calibration=150, splits=2)
    story.say(str(wrong), spelled(wrong))
    story.head("the paper's tables")
    pools = [
        RecordPool("trivia", model, error_, {"a": u_, "b": np.round(u_, 1)})
        for model, (u_, error_) in {"small": items(120, 2.0), "large": items(140, 4.0)}.items()
    ]
    made = tables([*pools, pools[0]], alphas=[0.1, 0.3], sizes=[30, 100, 110], n_calibration=60, splits=3)
    for name in ("main", "risk_levels", "estimators", "calibration_sizes", "ablation"):
        story.say(name, *(spelled(row) for row in getattr(made, name)))
    names = ("Fixed-50", "Empirical", "UCB-HFD", "A-CRC-QA", "certified", "Without correction", "Full A-CRC-QA", "lec")
    story.show("rules", [rule_of(label) for label in names])
    story.head("refused")
    common: dict[str, Any] = {"rules": ["lec"], "alphas": [0.1], "n_calibration": 80}
    refused: dict[str, dict[str, Any]] = {
        "no rule": {"rules": []},
        "no alpha": {"alphas": []},
        "a rule as a word": {"rules": "lec"},
        "no split": {"splits": 0},
        "nothing to test on": {"n_calibration": 160},
        "nothing to calibrate on": {"n_calibration": 0},
        "too few groups": {"groups": ["a"]},
        "groups that are too large": {"groups": ["a"] * 160},
        "an unknown option": {"rules": [("lec", {"start": 1})]},
    }
    for title, changes in refused.items():
        story.refused(title, lambda: evaluate(u, error, **(common | changes)))  # noqa: B023
    story.refused("no pool", lambda: tables([]))
    story.refused("a pool without a score", lambda: tables(RecordPool("x", "y", error, {})))
    story.head("figures of scores")
    for title, (scores, labels) in CASES.items():
        story.show(
            title,
            {"auroc": auroc(scores, labels), "aurc": aurc(scores, labels), "interval": auroc_interval(scores, labels)},
        )
        interval = auroc_interval(scores, labels, 0.8)
        story.show("  80 %", interval)
        story.show("  verdict", None if interval is None else interval.verdict)
    story.show("perfect", auroc_interval([1, 2, 3, 4, 5], [0, 0, 0, 1, 1]))
    story.show("one error", auroc_interval([1, 2, 3, 4, 5], [0, 0, 0, 1, 0]))
    story.show("reversed", auroc_interval([5, 4, 3, 2, 1], [0, 0, 0, 1, 1]))
    story.show("two samples", ks_two_sample(u[:50], u[50:] ** 2))
    story.show("ranked", rank_scores({"up": u, "down": -u, "also": 2 * u}, error))
    story.compare()


def test_plans() -> None:
    story = Story("plans.txt")
    for title, settings in {
        "guesses": {"accuracy": 0.8, "auroc": 0.8, "sizes": (60, 200, 600)},
        "a target": {"accuracy": 0.8, "auroc": 0.8, "sizes": (600, 60), "target_acceptance": 0.3, "rules": ["acrc"]},
        "a target above the ceiling": {"accuracy": 0.6, "auroc": 0.6, "sizes": (60,), "target_acceptance": 0.9},
        "a score that says nothing": {"accuracy": 0.6, "auroc": 0.5, "sizes": (60,), "rules": ["certified"]},
        "an accuracy above the target": {"accuracy": 0.95, "auroc": 0.4, "sizes": (60, 90), "rules": ["certified"]},
        "a pilot": {"pilot": Pilot.of(*items(100, 3.0)), "sizes": (100, 400), "rules": ["certified", "lec"]},
    }.items():
        made = plan(0.1, repetitions=20, **settings)  # type: ignore[arg-type]
        story.head(title)
        story.show("repr", repr(made))
        story.show("sentence", made.sentence)
        story.show("plan", made.model_copy(update={"rows": (), "needed": ()}))
        story.say(*(spelled(row) for row in made.rows), *(spelled(need) for need in made.needed))
        story.say(made._repr_html_())
    story.head("populations")
    for accuracy, area in ((0.8, 0.8), (0.8, 0.5), (0.3, 0.9), (0.8, 0.3)):
        population = Binormal(accuracy, area)
        figures = {
            "gap": population.gap,
            "acceptance": [population.acceptance(t) for t in (-40.0, -1.0, 0.5)],
            "error": [population.scer(t) for t in (-60.0, -1.0, 0.5)],
            "ceiling": [population.ceiling(alpha) for alpha in (0.01, 0.1, 0.25)],
            "at scores": population.error_probabilities(np.array([3.0, 1.0, 1.0, 2.0])),
        }
        story.show(f"accuracy {accuracy:g}, AUROC {area:g}", figures)
    pilot = Pilot.of(*items(100, 3.0))
    story.show(
        "pilot",
        {
            "accuracy": pilot.accuracy,
            "auroc": pilot.auroc,
            "error": [pilot.scer(t) for t in (-1, 0.5)],
            "acceptance": pilot.acceptance(0.5),
            "ceiling": pilot.ceiling(0.1),
        },
    )
    story.show("probabilities", error_probabilities(np.array([0.0, 0.5, 0.9]), *items(100, 3.0)))
    story.head("reaches")
    scores, errors = items(300, 3.0)
    for row in plan_reach(scores, scores**3, alpha=0.1, labels=[40, 80], repetitions=15, reaches=(1.0, 0.5, 0.2)):
        story.say(spelled(row))
    tied = np.round(scores)
    story.say(*(spelled(row) for row in plan_reach(tied, tied, alpha=0.1, labels=[40], repetitions=3, rule="lec")))
    story.head("refused")
    guesses: dict[str, dict[str, Any]] = {
        "no guess of AUROC": {"accuracy": 0.8},
        "guesses and a pilot": {"accuracy": 0.8, "pilot": pilot},
        "an accuracy of 80": {"accuracy": 80, "auroc": 0.8},
        "an AUROC of 1": {"accuracy": 0.8, "auroc": 1},
        "a rule as a word": {"accuracy": 0.8, "auroc": 0.8, "rules": "acrc"},
        "no sizes": {"accuracy": 0.8, "auroc": 0.8, "sizes": ()},
        "a size of 0": {"accuracy": 0.8, "auroc": 0.8, "sizes": (0, 10)},
        "one repetition": {"accuracy": 0.8, "auroc": 0.8, "repetitions": 1},
        "another population": {"accuracy": 0.8, "auroc": 0.8, "populations": "beta"},
        "a target of 40": {"accuracy": 0.8, "auroc": 0.8, "target_acceptance": 40},
        "a delta of 5": {"accuracy": 0.8, "auroc": 0.8, "delta": 5},
    }
    for title, guess in guesses.items():
        story.refused(title, lambda: plan(0.1, **guess))  # noqa: B023
    story.refused("a small pilot", lambda: Pilot.of(scores[:19], errors[:19]))
    story.refused("a pilot without an error", lambda: Pilot.of(scores, 0 * errors))
    story.compare()


def test_rare_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story("rules_rare.txt")
    story.head("a set that counts as large")
    with monkeypatch.context() as patch:
        patch.setattr("calibrate.thresholds.simultaneous.EXACT_LIMIT", 100)
        patch.setattr("calibrate.thresholds.anchored.EXACT_LIMIT", 100)
        for name in ("certified", "cp_simultaneous"):
            for alpha in (0.02, 0.1):
                outcome = fit(*items(450, 4.0), alpha=alpha, rule=name, diagnose="fast")
                story.show(f"{name} at {alpha:g}", told(outcome))
    story.head("a large set")
    u, error = items(30_000, 4.0)
    for name in ("clopper_pearson", "fixed_sequence", "empirical"):
        options: dict[str, Any] = {"start": 300} if name == "fixed_sequence" else {}
        story.show(name, told(fit(u, error, alpha=0.1, rule=name, diagnose="fast", **options)))
    story.show("the default search", fit(u, error, alpha=0.1, rule="lec").options)
    story.head("diagnoses")
    half = np.where(np.arange(200) < 100, 0.0, np.arange(200) / 200)
    late = np.r_[np.zeros(160), np.ones(40)].astype(np.int64)
    early = (np.arange(200) % 9 == 0).astype(np.int64)
    for title, scores, labels, settings in (
        ("a block of ties", np.arange(200) // 100, late, {"rule": "acrc", "alpha": 0.1, "min_accept": 120}),
        ("errors in every block", np.arange(200) // 20, early, {"rule": "empirical", "alpha": 0.05}),
        (
            "a block of ties for a certificate",
            np.where(np.arange(200) < 190, 0.0, 1.0),
            late,
            {"rule": "certified", "alpha": 0.15},
        ),
        ("a larger alpha", *items(200, 1.2), {"rule": "certified", "alpha": 0.02}),
        ("a larger alpha of a plain rule", half, early, {"rule": "lec", "alpha": 0.02}),
        ("one item", np.array([0.5]), np.array([0]), {"rule": "sgr", "alpha": 0.4}),
        ("a start past the end", np.arange(20.0), np.zeros(20), {"rule": "fixed_sequence", "start": 30, "alpha": 0.3}),
        ("too few for a group", np.arange(20.0), np.zeros(20), {"rule": "group_mean", "alpha": 0.05}),
        ("too few for a grid", np.arange(20.0), np.zeros(20), {"rule": "bonferroni", "alpha": 0.05}),
        ("too few for all", np.arange(20.0), np.zeros(20), {"rule": "cp_simultaneous", "alpha": 0.05}),
    ):
        story.show(title, told(fit(scores, labels, **settings)))  # type: ignore[arg-type]
    story.show("a rule as an object", fit([0.1, 0.2], [0, 1], alpha=0.5, rule=RULES["empirical"]).rule)
    story.show("a rule of one's own", [rule_named(RULES["lec"]).name, RULES["acrc"].explain(*explained())])
    story.refused("words for scores", lambda: fit(["low"], [0], alpha=0.1))
    story.refused("expect and min_accept", lambda: fit(u, error, alpha=0.1, rule="certified", expect=0.2, min_accept=3))
    story.refused(
        "groups of another number",
        lambda: evaluate(u, error, rules=["lec"], alphas=[0.1], n_calibration=9, groups=["a"]),
    )
    story.head("stages that are infeasible")
    wrong = np.ones((200, 2), dtype=np.int64)
    scores_of = np.stack([spread(200, 0.618), spread(200, 0.732)], axis=1)
    for title, u_, e_ in (
        ("all wrong", scores_of, wrong),
        ("few", scores_of[:12], 0 * wrong[:12]),
        ("one stage never measured", np.where(np.arange(2) == 0, np.inf, scores_of), 0 * wrong),
    ):
        story.show(title, fit_stages(u_, e_, alpha=0.05, rule="certified"))
    story.head("figures")
    result = evaluate(
        *items(80), rules=["lec", "certified", "empirical"], alphas=[0.1, 0.2], n_calibration=40, splits=3
    )
    story.show("rates", drawn(result.plot()))
    made = plan(0.1, accuracy=0.8, auroc=0.9, sizes=(60, 200), rules=["acrc", "certified"], repetitions=3)
    story.show("plan", drawn(made.plot()))
    story.compare()


def explained() -> tuple[Any, RuleRequest]:
    prefix = prefixes(np.arange(10.0), np.zeros(10, dtype=np.int8))
    return prefix, RuleRequest(0.1, None, dict(RULES["acrc"].defaults) | {"monotone": False})
