"""`calibrate.fit` on arrays: outcomes and their reasons; misuse is refused with the value, the rule and the way out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.fitting import fit
from calibrate.rules import RULES
from guardrail.describe import why_infeasible
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible

U, E = [0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]

WHOLE = sorted(name for name, rule in RULES.items() if rule.unit == "answer")
"""Rules for whole answers."""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"alpha": 15}, "alpha must be in (0, 1), got 15. Write 0.15 for 15 %."),
        ({"rule": "certified", "delta": 5}, "delta must be in (0, 1), got 5. Write 0.05 for 5 %."),
        *(({"alpha": x}, f"alpha must be in (0, 1), got {x}.") for x in (0, 1, -0.2, float("nan"), float("inf"))),
        *(({"alpha": x}, f"alpha must be a number in (0, 1), got {x!r}.") for x in (True, "0.1", None)),
        ({"rule": "certifed"}, "unknown rule 'certifed'. Did you mean 'certified'? Rules: acrc, certified, "),
        ({"rule": "acrc", "k_mn": 3}, "rule 'acrc' takes no option 'k_mn'. Did you mean 'k_min'?"),
        ({"rule": "lec", "start": 1}, "rule 'lec' takes no option 'start'. It takes no options."),
        *(
            ({"rule": rule, "delta": 0.1}, f"rule {rule!r} makes no statement with a delta, got delta = 0.1.")
            for rule in ("acrc", "lec", "crc_joint", "empirical")
        ),
        ({"rule": "acrc", "k_min": 0}, "k_min must be a number of accepted units, at least 1, got 0."),
        ({"rule": "certified", "share": 50}, "share must be in (0, 1), got 50. Write 0.5 for 50 %."),
        ({"rule": "fixed_quantile", "quantile": 50}, "quantile must be in (0, 1], got 50."),
        ({"groups": ["a", "b"]}, "groups must be one id an item, got ['a', 'b'] for 4 items"),
        ({"groups": "user"}, "groups must be one id an item, got 'user'"),
    ],
)
def test_misuse_is_refused_with_the_value_the_rule_and_the_way_out(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        fit(U, E, **{"alpha": 0.3, **settings})
    assert str(caught.value).startswith(says)


def test_an_unmeasured_item_counts_among_all_and_is_never_accepted() -> None:
    """Of 100 questions 40 could not be measured. Dropped, they would move the start of the walk from 38 to 22."""
    outcome = fit([*range(60), *[np.inf] * 40], [0] * 37 + [1] + [0] * 62, alpha=0.1)
    assert isinstance(outcome, Feasible)
    assert (outcome.n, outcome.n_accepted, outcome.acceptance) == (100, 60, 0.6)
    assert outcome.diagnostics.max_acceptance == 0.6
    assert outcome.diagnostics.base_error == pytest.approx(1 / 60)
    few = fit([*range(30), *[np.inf] * 70], [0] * 100, alpha=0.1)
    assert isinstance(few, Infeasible)
    assert "Even without a single error 30 items are too few" in why_infeasible(few)
    assert "one threshold alone takes 38" in why_infeasible(few)
    assert isinstance(fit(range(30), [0] * 30, alpha=0.1), Feasible)


def test_booleans_and_arrays_are_fine() -> None:
    assert fit(np.array(U), np.array(E, dtype=bool), alpha=0.3, rule="empirical").n == 4


def test_delta_defaults_to_a_tenth() -> None:
    assert fit(U, E, alpha=0.3, rule="clopper_pearson").delta == 0.1
    assert fit(U, E, alpha=0.3, rule="acrc").delta is None


def test_an_infeasible_outcome_has_the_attributes_of_a_feasible_one() -> None:
    outcome = fit([0.1, 0.2, 0.3, 0.4] * 25, [1, 1, 0, 1] * 25, alpha=0.1)
    assert isinstance(outcome, Infeasible)
    accepted = (outcome.threshold, outcome.n_accepted, outcome.n_errors, outcome.acceptance)
    assert accepted == (None, 0, 0, 0.0)
    assert outcome.reason.value


@pytest.mark.parametrize("rule", ["acrc", "certified"])
def test_a_confidence_passed_as_an_uncertainty_is_named(rule: str) -> None:
    confidence = np.linspace(0, 1, 200)
    wrong = (confidence < 0.4).astype(int)
    outcome = fit(confidence, wrong, alpha=0.1, rule=rule)
    assert isinstance(outcome, Infeasible)
    assert "wrong answers have the lower scores" in why_infeasible(outcome)
    assert "Pass a confidence as 1 - confidence" in why_infeasible(outcome)
    noise = fit(np.arange(200) % 10, np.arange(200) % 2, alpha=0.1, rule=rule)
    assert isinstance(noise, Infeasible)
    assert "confidence as" not in why_infeasible(noise)


def test_an_infeasible_certificate_says_what_can_be_certified_and_smallest_takes_it() -> None:
    """20 of 100 answers are wrong, 2 of them among the 25 surest: .05 is out of reach, and a bound of .20 is not."""
    wrong = np.zeros(100, dtype=int)
    wrong[[3, 9, *range(60, 78)]] = 1
    outcome = fit(np.arange(100.0), wrong, alpha=0.05)
    assert isinstance(outcome, Infeasible)
    assert outcome.hint is not None
    assert (outcome.hint.n_accepted, outcome.hint.n_errors, outcome.hint.threshold) == (25, 2, 24.0)
    assert stats.binom.cdf(2, 25, outcome.hint.bound) == pytest.approx(0.1)  # Clopper and Pearson at delta .1
    taken = fit(np.arange(100.0), wrong, alpha="smallest")
    assert isinstance(taken, Feasible)
    assert (taken.threshold, taken.certifies) == (24.0, True)
    assert outcome.hint.bound <= taken.alpha == round(taken.alpha, 3) < outcome.hint.bound + 0.001
    assert taken.options["alpha"] == "smallest"
    with pytest.raises(UsageError, match="is of rule 'certified'"):
        fit(U, E, alpha="smallest", rule="acrc")


@pytest.mark.parametrize("rule", WHOLE)
def test_where_nothing_could_be_measured_there_are_too_few_items(rule: str) -> None:
    outcome = fit([np.inf] * 100, [0] * 100, alpha=0.2, rule=rule)
    assert isinstance(outcome, Infeasible)
    assert (outcome.reason, outcome.n, outcome.diagnostics.auroc) == ("too_few_items", 100, None)


@pytest.mark.parametrize(
    ("u", "wrong", "rule", "says"),
    [
        (range(10), [0] * 10, "certified", "takes 22 error-free accepted items. Label more questions."),  # .9^22 = .098
        # Of 38 answers one may be wrong, and 37 lie below the block.
        (
            [0] * 37 + [1] * 63,
            [0] * 87 + [1] * 13,
            "certified",
            "63 of 100 items (63%) share the score 1 and must be accepted or rejected together: 0 wrong of 37 accepted "
            "(0.0%), then 13 wrong of 100 accepted (13.0%). A cut inside the block would do. Use a finer",
        ),
        # Every other answer is wrong; from 29 on (.9^29 < .05) the rate is first at its lowest at 30.
        (
            range(100),
            [1, 0] * 50,
            "acrc",
            "overall 50 of 100 answers are wrong (50.0%). Accepting the 30 most certain",
        ),
    ],
)
def test_an_outcome_stores_numbers_and_its_sentence_is_made_of_them(u: Any, wrong: Any, rule: str, says: str) -> None:
    """An artifact is read by other programs and later versions: prose in it would be a format, too."""
    outcome = fit(u, wrong, alpha=0.1, rule=rule)
    assert isinstance(outcome, Infeasible)
    assert says in why_infeasible(Infeasible.from_stored(outcome.model_dump_json()))
    texts = [value for value in outcome.model_dump().values() if isinstance(value, str)]
    assert not any(" " in text for text in texts), texts
