"""Refusals: answers that give no answer."""

from __future__ import annotations

from functools import lru_cache

from .text import NEGATIONS, read, word_set

__all__ = ["is_refusal"]

_REFUSES = word_set(
    "sorry unknown unsure uncertain unable apologize apologise apologies unfortunately regrettably afraid"
)
_ACTS = word_set("""answer say tell help assist comply comment provide share discuss determine find confirm verify know
give respond understand recall remember sure certain certainty aware information idea opinion""")
_BESIDE = word_set("""i we you am are be is a the this that these it any my do have will would can could to with on
about regarding for of here at now but so very really just as an ai language model assistant more enough further
specific sufficient able question request details data topic matter d m re prefer rather refuse decline time moment""")


@lru_cache(maxsize=4096)
def is_refusal(text: str) -> bool:
    """Whether an answer only refuses to answer: all of its words stand on a closed list.

    A refusal that is missed is one more meaning; an answer taken for a refusal would be lost.
    """
    said = frozenset(read(text).words)
    refuses = said & _REFUSES or (said & _ACTS and said & (NEGATIONS | {"refuse", "decline"}))
    by_someone = len(said) <= 3 or not said.isdisjoint(("i", "we"))
    return bool(refuses) and by_someone and said <= _REFUSES | _ACTS | _BESIDE | NEGATIONS
