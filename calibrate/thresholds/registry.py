"""The threshold rules by name. A new rule is its class and one line here."""

from __future__ import annotations

from typing import Final

from guardrail.errors import UsageError, did_you_mean

from .acrc import Acrc
from .anchored import Anchored, Certified, OnePerGroup
from .betting import GroupMean, GroupTotal
from .empirical import CrcJoint, Empirical, FixedQuantile, Lec
from .multiple import Bonferroni, Sgr
from .pointwise import ClopperPearson, Hoeffding
from .rule import Rule
from .sequential import FixedSequence
from .simultaneous import CpSimultaneous

__all__ = ["RULES", "certifies", "compared_rules", "planned_rules", "rule_named", "rules", "swept_rules"]

RULES: Final[dict[str, Rule]] = {
    rule.name: rule
    for rule in (
        Acrc(),
        Empirical(),
        Lec(),
        ClopperPearson(),
        Hoeffding(),
        FixedQuantile(),
        Certified(),
        CpSimultaneous(),
        FixedSequence(),
        CrcJoint(),
        Sgr(),
        Anchored(),
        Bonferroni(),
        OnePerGroup(),
        GroupMean(),
        GroupTotal(),
    )
}
"""In the order in which tables show them: the paper's rule, the baselines, the certificates, the others."""


def rules() -> tuple[str, ...]:
    """Names of all threshold rules, sorted."""
    return tuple(sorted(RULES))


def rule_named(name: str | Rule) -> Rule:
    """The rule of that name; a rule object is returned unchanged.

    Raises:
        UsageError: An unknown name; the nearest names are suggested. Or a custom rule has the name of another:
            artifacts and tables know rules by their names.
    """
    if isinstance(name, Rule):
        if name.name in RULES and RULES[name.name] is not name and type(RULES[name.name]) is not type(name):
            raise UsageError(f"{type(name).__name__} has the name {name.name!r} of another rule. Give it its own name.")
        return name
    if name in RULES:
        return RULES[name]
    hint = did_you_mean(name, RULES)
    raise UsageError(
        f"unknown rule {name!r}. {hint}Rules: {', '.join(rules())}. Pass a rule of your own as an object: Mine()."
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
