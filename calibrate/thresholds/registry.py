"""The threshold rules by name: the functions of `calibrate.rules` as `Rule` objects, with what each of them states."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np

from guardrail.errors import UsageError, did_you_mean
from guardrail.notebook import sure

from .. import rules as functions
from ..rules.counts import Infeasible as NoThreshold
from ..rules.counts import Result
from .rule import Prefix, Rule, RuleRequest, k_min_of

__all__ = ["RULES", "certifies", "compared_rules", "planned_rules", "rule_named", "rule_names", "swept_rules"]

_WITH_DELTA = frozenset({"certified", "certified_groups", "hoeffding", "clopper_pearson"})
_IN_REPORT = frozenset(
    {"acrc", "certified", "empirical", "lec", "clopper_pearson", "hoeffding", "fixed_quantile", "crc_joint"}
)
_INDEPENDENT = "in finite samples, if {units} are independent draws from the same source"
_SCAN = "None as a scan: the bound holds at one threshold that is fixed beforehand, and the luckiest is taken."
_GUARANTEES: Final[dict[str, str]] = {
    "certified": (
        "With probability at least {sure} over calibrations the error rate among accepted answers is at most "
        "{alpha:g}, " + _INDEPENDENT.format(units="questions") + "."
    ),
    "certified_groups": (
        "With probability at least {sure} over calibrations the error rate among accepted answers is at most {alpha:g}"
        "{counted}, " + _INDEPENDENT.format(units="groups") + ". Questions within a group may depend on each other."
    ),
    "acrc": (
        "Asymptotic and on average over calibrations: for independent items the error rate among accepted answers "
        "tends to alpha or less as n grows. Not a certificate: about 40 % of calibrations end slightly above alpha."
    ),
    "empirical": (
        "None: the observed error rate is alpha or less on these items, chosen by looking at them; expect about half "
        "of all calibrations to exceed alpha on new questions."
    ),
    "lec": (
        "Stated by its authors as P(wrong | accepted) <= alpha; no rule can promise that without assumptions in finite "
        "samples, and the measured rate is a little above alpha. About half of all calibrations exceed it."
    ),
    "fixed_quantile": "None: it accepts a fixed share of the items and looks at no label, whatever the target.",
    "crc_joint": (
        "P(accepted and wrong) <= {alpha:g} per question{certain}, exact in finite samples for exchangeable items. "
        "This is a share of all questions, not of the accepted ones."
    ),
    "hoeffding": _SCAN,
    "clopper_pearson": _SCAN,
}


class Listed(Rule):
    """A function of `calibrate.rules` as a rule.

    Args:
        name: As the user writes it.
        rule: The function and what it states.
    """

    def __init__(self, name: str, rule: functions.Rule) -> None:
        keywords = [
            each for each in inspect.signature(rule.choose).parameters.values() if each.kind is each.KEYWORD_ONLY
        ]
        self._rule = rule
        self.name = name
        self.uses_delta = name in _WITH_DELTA
        self.uses_alpha = name != "fixed_quantile"
        self.certifies = rule.certified
        self.promise = rule.promise
        self.population = "all" if name == "crc_joint" else "accepted"
        grouping: Mapping[str, Literal["one_each", "all"]] = {"certified": "one_each", "certified_groups": "all"}
        self.grouping = grouping.get(name, "none")
        self.defaults = {each.name: each.default for each in keywords if each.name != "group"}
        self.in_report = name in _IN_REPORT
        self.in_sweep = name == "certified"
        self.in_plan = name in ("acrc", "certified")

    def choose(self, prefix: Prefix, request: RuleRequest) -> Result:
        """The result of the function on these items."""
        options = {name: value for name, value in request.options.items() if name in self.defaults}
        if self.name == "certified_groups":
            grouped = prefix.grouped
            options["group"] = list(range(prefix.n)) if grouped is None else grouped.code.tolist()
        return self._rule.choose(*prefix.items(), request.alpha, request.delta or 0.1, **options)

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Index of the chosen block end, or None when no block end satisfies the rule."""
        result = self.choose(prefix, request)
        return None if isinstance(result, NoThreshold) else int(np.searchsorted(prefix.score, result.threshold))

    def check(self, request: RuleRequest) -> None:
        """Refuse option values that the function refuses.

        Raises:
            UsageError: Naming the option, the value and the way out.
        """
        self.choose(Prefix(1, np.zeros(1), np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)), request)

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """Options with their defaults for n items, for the record."""
        return {**request.options, **({"k_min": k_min_of(n, request)} if "k_min" in request.options else {})}

    def guarantee(self, request: RuleRequest) -> str:
        """The promise of the rule, in one sentence, with its assumptions."""
        most, items = request.options.get("most"), request.options.get("items")
        text = _GUARANTEES[self.name].format(
            alpha=request.alpha,
            sure=sure(request.delta or 0.1),
            counted="" if most else " as a mean over groups (every group with an accepted answer counts once)",
            certain=" on average over calibrations" if request.options.get("average", True) else "",
        )
        if self.name != "certified" or items is None:
            return text
        return (
            f"{text} Of {items} questions in {request.options['groups']} groups one of each group was used, picked "
            "without looking at scores or labels: the error rate is that of a random question of a random group."
        )


RULES: Final[dict[str, Rule]] = {
    name: Listed(name, rule) for name, rule in functions.RULES.items() if name != "prediction_powered"
}
"""In the order in which tables show them."""


def rule_names() -> tuple[str, ...]:
    """Names of all threshold rules, sorted."""
    return tuple(sorted(RULES))


def rule_named(name: str | Rule) -> Rule:
    """The rule of that name; a rule object is returned unchanged.

    Raises:
        UsageError: An unknown name; the nearest names are suggested. Or a custom rule has the name of another:
            artifacts and tables know rules by their names.
    """
    if isinstance(name, Rule):
        if name.name in RULES and RULES[name.name] is not name:
            raise UsageError(f"{type(name).__name__} has the name {name.name!r} of another rule. Give it its own name.")
        return name
    if name in RULES:
        return RULES[name]
    hint = did_you_mean(name, RULES)
    raise UsageError(
        f"unknown rule {name!r}. {hint}Rules: {', '.join(rule_names())}. Pass a rule of your own as an object: Mine()."
    )


def certifies(name: str) -> bool:
    """Whether a rule of that name is registered and certifies; other procedures (``prediction_powered``) do not."""
    return name in RULES and RULES[name].certifies


def compared_rules() -> tuple[str, ...]:
    """Rules that reports and ``calibrate evaluate`` compare when none are named."""
    return tuple(name for name, rule in RULES.items() if rule.in_report)


def swept_rules() -> tuple[str, ...]:
    """Rules that the report's figure over several alphas shows beside the artifact's."""
    return tuple(name for name, rule in RULES.items() if rule.in_sweep)


def planned_rules() -> tuple[str, ...]:
    """Rules that ``calibrate plan`` simulates when none are named."""
    return tuple(name for name, rule in RULES.items() if rule.in_plan)
