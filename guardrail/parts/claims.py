"""Claims as parts: the model lists the claims of its own answer, and which samples support them.

One call lists the claims of the primary answer, each with the number of the sentence that makes it. Support is found as
for sentences. The list and the verdicts are follow-ups, so they are drawn once and kept with the draw. Claims are given
out as a list: no call rewrites them as a text, because nothing would judge that text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from langchain_core.messages import BaseMessage, HumanMessage

from ..judges.base import Entailment
from ..judges.json_value import read_json
from ..sampling.follow_ups import FollowUp, register
from ..types import Missing, SampleSet, Unmeasured
from ..uncertainty.selfcheck import sentences
from .sentences import sentence_spec, support_question
from .spec import PartsSpec, Procedure

__all__ = ["CLAIMS", "SUPPORTED_CLAIMS", "TEXT_SPECS", "Claim", "claim_spec", "claims_of", "question"]

SPLITTER = "asked_claims"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of an answer.

    Attributes:
        text: The statement in the words of the split.
        sentence: Position of the sentence that makes it, from 0.
    """

    text: str
    sentence: int


def question(asked: str, pieces: Sequence[str]) -> str:
    """The question for the claims of an answer with these sentences. Another wording is another follow-up version."""
    numbered = "\n".join(f"{i}. {piece}" for i, piece in enumerate(pieces, start=1))
    return (
        f"Question: {asked}\n\nAnswer, sentence by sentence:\n{numbered}\n\n"
        "List every claim that the answer makes, in its order. A claim states one fact and can be understood without "
        "the answer: write names in place of pronouns. Add nothing that the answer does not say. Reply with a JSON "
        'list of objects with the fields "claim" (text) and "sentence" (the number of the sentence). Nothing else.'
    )


def _ask_split(prompt: Sequence[BaseMessage], drawn: SampleSet) -> list[list[BaseMessage]]:
    assert drawn.primary is not None  # only sets with an answer are asked about
    pieces = () if drawn.primary.tool_calls else sentences(drawn.primary.comparable)
    return [[HumanMessage(question(drawn.question, pieces))]] if pieces else []


CLAIMS = FollowUp("claims", _ask_split, max_tokens=1600)
register(CLAIMS)


def claims_of(drawn: SampleSet) -> tuple[Claim, ...] | Missing:
    """The claims of a drawn answer in the order of its sentences, or the reason why there are none.

    A reply is read if it is a JSON list of at least one object with both fields and no other, no claim is empty or
    listed twice, and each number is that of a sentence.
    """
    if drawn.primary is None or drawn.primary.tool_calls:
        return Missing(Unmeasured.UNREADABLE, "a tool call has no claims")
    reply = CLAIMS.reply(drawn)
    if isinstance(reply, Missing):
        return reply
    text = "" if reply.primary is None else reply.primary.comparable
    try:
        claims = _read(text, len(sentences(drawn.primary.comparable)))
    except ValueError as error:
        return Missing(Unmeasured.UNREADABLE, f"the list of claims cannot be read: {error}")
    return tuple(sorted(claims, key=lambda claim: claim.sentence))


def _read(reply: str, n_sentences: int) -> list[Claim]:
    listed = read_json(reply)
    if not isinstance(listed, list) or not listed:
        raise ValueError("it is not a JSON list with at least one claim")
    claims = []
    for number, item in enumerate(listed, start=1):
        if not isinstance(item, dict) or set(item) != {"claim", "sentence"}:
            raise ValueError(f'item {number} is not an object with the fields "claim" and "sentence"')
        text, sentence = item["claim"], item["sentence"]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"item {number} has no text")
        if not isinstance(sentence, Decimal) or sentence not in range(1, n_sentences + 1):
            raise ValueError(f"item {number} is of the sentence {sentence!s}, and the answer has {n_sentences}")
        # On one line: claims are shown and numbered line by line.
        claims.append(Claim(" ".join(text.split()), int(sentence) - 1))
    if len({claim.text for claim in claims}) < len(claims):
        raise ValueError("it lists a claim twice")
    return claims


def _ask_support(prompt: Sequence[BaseMessage], drawn: SampleSet) -> list[list[BaseMessage]]:
    """One question for each distinct sample with an answer; none if the claims cannot be read."""
    claims = claims_of(drawn)
    if isinstance(claims, Missing):
        return []
    texts = dict.fromkeys(sample.comparable for sample in drawn.samples if sample.comparable)
    pieces = [claim.text for claim in claims]
    return [[HumanMessage(support_question(drawn.question, pieces, text, "claim"))] for text in texts]


SUPPORTED_CLAIMS = FollowUp("supported_claims", _ask_support, max_tokens=800, reads=CLAIMS.name)
register(SUPPORTED_CLAIMS)


def claim_spec(cap: int, *, entailment: Entailment | None = None, least: float = 0.5) -> PartsSpec:
    """The specification of claims as parts.

    Args:
        cap: Most claims that can be kept: the 90th percentile of their number from 300 answers on, the median below.
        entailment: The entailment model that judges support; None to ask the model itself.
        least: Probability of entailment from which on a sample supports a claim, in (0, 1].
    """
    supported = sentence_spec(cap, entailment=entailment, least=least)
    splitter = Procedure(name=SPLITTER, version=VERSION)
    return PartsSpec(kind="claims", splitter=splitter, support=supported.support, cap=cap)


TEXT_SPECS = {"sentences": sentence_spec, "claims": claim_spec}
"""Makers of specifications for parts of a text, by kind."""
