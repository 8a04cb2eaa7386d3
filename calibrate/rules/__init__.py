"""The statistics of a selective gate, as pure functions of scores and labels.

A **unit** (a question; a conversation; an answer with items) has a **score** u, shape (n,), higher = less certain, +inf
= not measured, and a label **wrong**, shape (n,), 1 = wrong or undecided, else 0. The gate accepts iff u <= threshold:
ties go together, and no threshold is infinite. The unmeasured are among the n of every count and share. Units are
independent draws from the source that is served later.

A rule is a function ``(u, wrong, alpha, delta, **settings) -> Feasible | Infeasible``; `RULES` has them by name with
what they state, and a new one is its function and its row there. **alpha** in (0, 1) is the target, **delta** in (0, 1)
the failure probability. Settings are keyword-only and declared before labels are seen. Scores that are NaN or -inf,
labels that are not 0 or 1, and probabilities outside (0, 1) raise `guardrail.errors.UsageError` everywhere.

    counts.py       Feasible, Infeasible, and counts(u, wrong): k accepted and e wrong at the thresholds that occur
    certificate.py  certified, smallest, and their parts: tail, start, walk; Clopper and Pearson's bounds
    plug_in.py      the base paper's acrc, its baselines fixed_quantile, empirical, lec, hoeffding, clopper_pearson
    capital.py      certified_groups: groups of items, and everything else that is not one right or wrong answer
    items.py        wrong_share, wrong_share_per_answer, clean_shown, clean_answers: items of answers, a row each
    count.py        crc_joint, and other losses that only grow with the threshold

Policies of several models are in `calibrate.cascade`, labels by people and a judge in `calibrate.prediction_powered`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from .capital import certified_groups
from .certificate import certified, smallest
from .count import crc_joint
from .counts import Feasible, Infeasible, Ints, Result
from .items import by_rows, clean_answers, clean_shown, wrong_share, wrong_share_per_answer
from .plug_in import acrc, clopper_pearson, empirical, fixed_quantile, hoeffding, lec

__all__ = ["PLANNED", "RULES", "Feasible", "Infeasible", "Result", "Rule", "certified", "certifies", "compared_rules"]
__all__ += ["Unit", "smallest"]

Unit: TypeAlias = Literal["answer", "item"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A threshold rule: its function, and what plans, reports and artifacts state about it.

    Attributes:
        name: As users write it.
        choose: The function ``(u, wrong, alpha, delta, **settings) -> Feasible | Infeasible``. Settings are its
            keyword-only parameters. The parameter ``group`` gets the group of each unit; a rule without it takes
            units to be independent, and gets one unit of each group.
        promise: The promise in a few words, for tables; the sentence is that of `guardrail.describe.guarantee`.
        certifies: Whether the error rate among accepted answers is at most alpha with probability 1 - delta, at
            finite n.
        uses_delta: Whether delta plays a part.
        population: What alpha is a share of: accepted answers, all questions, or items that are kept.
        unit: What is accepted by itself: an answer, or an item of one, whose ``group`` is its answer.
        risk: What alpha bounds, from K accepted and W wrong among them of each answer, shape (n,) with a positive K
            somewhere; None: the sum of W over the sum of K.
    """

    name: str
    choose: Callable[..., Result]
    promise: str = "see its documentation"
    certifies: bool = False
    uses_delta: bool = False
    population: Literal["accepted", "all", "items"] = "accepted"
    unit: Unit = "answer"
    risk: Callable[[Ints, Ints], float] | None = None

    def risk_of(self, accepted: Ints, wrong: Ints) -> float | None:
        """The risk that alpha bounds, on answers with so many accepted and wrong ones; None if nothing is accepted."""
        if not accepted.any():
            return None
        return float(wrong.sum() / accepted.sum()) if self.risk is None else float(self.risk(accepted, wrong))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that a user may give, with their defaults."""
        return {name: each.default for name, each in self._keywords.items() if name != "group"}

    @property
    def reads_groups(self) -> bool:
        """Whether the rule reads units of one group as dependent."""
        return "group" in self._keywords

    @property
    def _keywords(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.choose).parameters
        return {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}


_OF_ITEMS: Final[dict[str, Any]] = {"unit": "item", "certifies": True, "uses_delta": True}
_RULES = (
    Rule("certified", certified, "certificate", certifies=True, uses_delta=True),
    Rule("acrc", acrc, "in the limit, on average"),
    Rule("fixed_quantile", fixed_quantile, "none"),
    Rule("empirical", empirical, "none"),
    Rule("hoeffding", hoeffding, "none as a scan", uses_delta=True),
    Rule("clopper_pearson", clopper_pearson, "none as a scan", uses_delta=True),
    Rule("lec", lec, "none in finite samples"),
    Rule("crc_joint", crc_joint, "of all questions, on average", population="all"),
    Rule("certified_groups", certified_groups, "certificate, of groups", certifies=True, uses_delta=True),
    Rule("wrong_share", by_rows(wrong_share), "certificate, of items", population="items", **_OF_ITEMS),
    Rule(
        "wrong_share_per_answer",
        by_rows(wrong_share_per_answer),
        "certificate, of the items of an answer",
        population="items",
        risk=lambda K, W: float((W[K > 0] / K[K > 0]).mean()),
        **_OF_ITEMS,
    ),
    Rule(
        "clean_shown",
        by_rows(clean_shown),
        "certificate, of answers that show an item",
        risk=lambda K, W: float((W[K > 0] > 0).mean()),
        **_OF_ITEMS,
    ),
    Rule(
        "clean_answers",
        by_rows(clean_answers),
        "certificate, of all answers",
        population="all",
        risk=lambda K, W: float((W > 0).mean()),
        **_OF_ITEMS,
    ),
)

RULES: Final[dict[str, Rule]] = {rule.name: rule for rule in _RULES}
"""Every rule by the name that users write, in the order of tables: the certificate, the base paper's rule and its
baselines, the others. `prediction_powered` needs labels by two and is called by itself."""
PLANNED: Final[dict[Unit, tuple[str, ...]]] = {"answer": ("certified", "acrc"), "item": ("wrong_share",)}
"""Rules that ``calibrate plan`` simulates when none are named; the first is the default of a fit."""


def certifies(name: str) -> bool:
    """Whether a rule of that name is in the table and certifies; other procedures (prediction_powered) do not."""
    return name in RULES and RULES[name].certifies


def compared_rules(unit: Unit = "answer") -> tuple[str, ...]:
    """Rules that reports and ``calibrate evaluate`` compare when none are named: those of independent questions."""
    return tuple(name for name, rule in RULES.items() if rule.unit == unit and rule.reads_groups == (unit == "item"))
