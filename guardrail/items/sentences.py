"""Sentences as items: the split of a text, and which samples support a sentence.

Support comes from an entailment model, or from the model itself: one question for each distinct sample, with all
sentences numbered. The replies are follow-ups, so they are drawn once and kept with the draw.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from langchain_core.messages import BaseMessage, HumanMessage

from ..errors import UsageError
from ..judges.base import Entailment
from ..judges.registry import make_entailment
from ..plain_json import quoted
from ..sampling.follow_ups import FollowUp, register
from ..specs import JudgeSpec
from ..types import SampleSet
from ..uncertainty.selfcheck import AS_DATA, sentences
from .spec import ItemsSpec, Procedure

__all__ = [
    "ASKED",
    "SUPPORTED",
    "asked_support",
    "entailed_support",
    "question",
    "sentence_entailment",
    "sentence_spec",
    "spans",
]

SPLITTER, ENTAILED, ASKED = "sentences", "entailment", "asked"
VERSION = 1

_VERDICT = re.compile(r"^\W*(\d{1,3})\W+(yes|no)\b\W*$", re.IGNORECASE)


def spans(text: str, pieces: Sequence[str]) -> list[tuple[int, int]]:
    """First character of each piece in the text and the one after its last; the pieces are in order."""
    places, start = [], 0
    for piece in pieces:
        at = text.index(piece, start)
        start = at + len(piece)
        places.append((at, start))
    return places


# -- Support by an entailment model --------------------------------------------------------------------------------


def entailed_support(
    pieces: Sequence[str], samples: Sequence[str], model: Entailment, least: float
) -> list[list[bool | None]]:
    """For each piece and each sample, whether the sample entails the piece with at least this probability.

    None where the model gives no score.
    """
    pairs = list(dict.fromkeys((sample, piece) for piece in pieces for sample in samples))
    scores = model.entailment_batch([("", sample, piece) for sample, piece in pairs])
    entails = {
        pair: None if score is None else score.entailment >= least for pair, score in zip(pairs, scores, strict=True)
    }
    return [[entails[sample, piece] for sample in samples] for piece in pieces]


# -- Support by the model itself -----------------------------------------------------------------------------------


def question(asked: str, pieces: Sequence[str], sample: str) -> str:
    """The question which of the sentences a sample supports. Another wording is another follow-up version."""
    numbered = "\n".join(f"{i}. {quoted(piece)}" for i, piece in enumerate(pieces, start=1))
    return (
        f"{AS_DATA}\n\nQuestion: {quoted(asked)}\n\nContext (an answer to the question): {quoted(sample)}\n\n"
        f"Sentences:\n{numbered}\n\n"
        "Is each sentence supported by the context above? Reply with one line for each sentence: its number, "
        "a full stop, and Yes or No. Nothing else."
    )


def _ask(prompt: Sequence[BaseMessage], drawn: SampleSet) -> list[list[BaseMessage]]:
    """One question for each distinct sample with an answer."""
    assert drawn.primary is not None  # only sets with an answer are asked about
    pieces = sentences(drawn.primary.comparable)
    texts = dict.fromkeys(sample.comparable for sample in drawn.samples if sample.comparable)
    return [[HumanMessage(question(drawn.question, pieces, text))] for text in texts] if pieces else []


SUPPORTED = FollowUp("supported_sentences", _ask, max_tokens=400)
register(SUPPORTED)


def asked_support(drawn: SampleSet, pieces: Sequence[str]) -> list[list[bool | None]]:
    """For each piece and each sample, the model's own verdict; None where its reply is missing or cannot be read.

    A reply is read if it has one line for each piece: its number, then yes or no. A sample without text supports none.
    """
    replies = {reply.question: reply for reply in drawn.follow_ups.get(SUPPORTED.name, ())}
    columns: list[list[bool | None]] = []
    for sample in drawn.samples:
        if not sample.comparable:
            columns.append([False] * len(pieces))
            continue
        reply = replies.get(question(drawn.question, pieces, sample.comparable))
        answer = None if reply is None or reply.problem is not None else reply.primary
        columns.append(_read(answer.text, len(pieces)) if answer is not None else [None] * len(pieces))
    return [list(row) for row in zip(*columns, strict=True)]


def _read(reply: str, n: int) -> list[bool | None]:
    """The verdict on each of n sentences; None for all if a line is not a verdict, or one is missing or double."""
    verdicts: dict[int, bool] = {}
    for line in filter(str.strip, reply.splitlines()):
        match = _VERDICT.match(line)
        if match is None or int(match[1]) in verdicts:
            return [None] * n
        verdicts[int(match[1])] = match[2].lower() == "yes"
    return [verdicts[i] for i in range(1, n + 1)] if sorted(verdicts) == [*range(1, n + 1)] else [None] * n


# -- Specifications ------------------------------------------------------------------------------------------------


def sentence_spec(cap: int, *, entailment: Entailment | None = None, least: float = 0.5) -> ItemsSpec:
    """The specification of sentences as items.

    Args:
        cap: Most sentences that can be kept: the 90th percentile of their number from 300 answers on, the median below.
        entailment: The entailment model that judges support; None to ask the model itself.
        least: Probability of entailment from which on a sample supports a sentence, in (0, 1].
    """
    if entailment is None:
        support = Procedure(name=ASKED, version=VERSION)
    else:
        if not 0 < least <= 1:
            raise UsageError(f"least must be in (0, 1], got {least}. Leave it out for 0.5.")
        params = {"model": entailment.spec.model_dump(mode="json"), "least": least}
        support = Procedure(name=ENTAILED, version=VERSION, params=params)
    return ItemsSpec(kind="sentences", splitter=Procedure(name=SPLITTER, version=VERSION), support=support, cap=cap)


def sentence_entailment(spec: ItemsSpec, given: Entailment | None) -> Entailment | None:
    """The entailment model of a specification; None if the model itself is asked.

    Raises:
        UsageError: It cannot be made by name and was not given, or another one was given.
    """
    if spec.support.name != ENTAILED:
        if given is not None:
            raise UsageError("the model itself was asked for support at calibration; leave the entailment model out.")
        return None
    stored = JudgeSpec.model_validate(spec.support.params["model"])
    model = given or make_entailment(stored.name, **stored.params)
    if model.spec != stored:
        raise UsageError(f"the entailment model differs: calibrated with {stored!r}, running {model.spec!r}.")
    return model
