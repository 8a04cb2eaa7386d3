"""What the model says about its own answer when it is asked: P(True) and a stated confidence."""

from __future__ import annotations

import re

from ..sampling.follow_ups import P_TRUE, TRUE_LABEL, VERBALISED
from ..types import Missing, SampleSet, Unmeasured
from .base import Evidence

__all__ = ["p_true", "stated_confidence", "verbalised"]

_NUMBER = re.compile(
    r"(?:(?:my\s+)?(?:confidence|probability)(?:\s+is)?\s*[:=]?\s*)?"
    r"(?P<number>\d{1,3}(?:\.\d+)?|\.\d+)\s*(?P<scale>%|percent|/\s*100)?\s*\.?",
    re.IGNORECASE,
)


def p_true(evidence: Evidence) -> float | Missing:
    """1 - P(True): how likely the model itself takes its answer to be false. Probability, in [0, 1].

    The model sees the question, its n samples as ideas, the primary answer as the proposed one, and the two options
    "(A) True" and "(B) False". P(True) = p(A) / (p(A) + p(B)), from the log-likelihoods of the two letters.
    Source: Kadavath et al. 2022. Differences: no few-shot examples, so its level is not calibrated and only its order
    counts; both options are read and renormalised. (A widely copied line takes 1 - ln p for the probability of False.)
    """
    reply = _reply(evidence.drawn, P_TRUE)
    if isinstance(reply, Missing):
        return reply
    if reply.options is None or TRUE_LABEL not in reply.options.labels:
        return Missing(Unmeasured.NO_OPTIONS, f"{P_TRUE}: the options were not read")
    return 1 - reply.options.probabilities[reply.options.labels.index(TRUE_LABEL)]


def verbalised(evidence: Evidence) -> float | Missing:
    """1 - the confidence that the model states when asked for it. Probability, in [0, 1]; few values, many ties.

    The reply has to be one number: a percentage ("85", "85 %", "85/100") or, with a decimal point, a probability
    ("0.85"). Anything else is unmeasured, and so is a bare "1", which can mean either.
    Source: Tian et al., EMNLP 2023 (second of two turns). Difference: a percentage is asked for, not a probability.
    """
    reply = _reply(evidence.drawn, VERBALISED)
    if isinstance(reply, Missing):
        return reply
    if reply.primary is None:
        return Missing(Unmeasured.MODEL_FAILED, f"{VERBALISED}: there is no reply")
    stated = stated_confidence(reply.primary.text)
    if stated is None:
        return Missing(
            Unmeasured.JUDGE_FAILED,
            f"asked for a number from 0 to 100, the model said something else, of length {len(reply.primary.text)}",
        )
    return 1 - stated


def stated_confidence(text: str) -> float | None:
    """The confidence in a reply that is one number, in [0, 1]; None for any other reply."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    number, scaled = float(match["number"]), match["scale"] is not None
    if not scaled and number <= 1 and "." in match["number"]:
        return number
    if number > 100 or (number == 1 and not scaled):
        return None
    return number / 100


def _reply(drawn: SampleSet, name: str) -> SampleSet | Missing:
    """The one reply to a follow-up."""
    replies = drawn.follow_ups.get(name, ())
    if len(replies) != 1:
        return Missing(Unmeasured.SAMPLING_SHORTFALL, f"{name} was not asked, or has {len(replies)} replies")
    if replies[0].problem is not None:
        return Missing(replies[0].problem, f"{name}: {replies[0].problem_detail}")
    return replies[0]
