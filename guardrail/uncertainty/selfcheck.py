"""SelfCheckGPT: do the samples bear out what the primary answer says, sentence by sentence?

Source: Manakul, Liusie & Gales, EMNLP 2023. Its scores are given for each sentence; here an answer scores the mean over
its sentences, as in their passage-level scores.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from ..judges import normalise
from ..judges import words as words_of
from ..sampling.follow_ups import SELFCHECK_PROMPT, sentences, support_questions
from ..types import Missing, Unmeasured, answer_text
from .base import Evidence

__all__ = ["selfcheck_ngram", "selfcheck_nli", "selfcheck_prompt", "sentences"]

_YES_OR_NO = re.compile(r"[\s\"'*(]*(yes|no)\b[\s\"'*)]*(?:$|[.,;:!\n\u2013\u2014])", re.IGNORECASE)


def selfcheck_nli(evidence: Evidence) -> float | Missing:
    """Mean contradiction of the primary answer's sentences by the samples. Probability, in [0, 1].

    For sentence i and sample m: c = p(contradiction) / (p(contradiction) + p(entailment)), the softmax over these two
    labels alone; score = mean over i and m. A pair without a verdict makes it unmeasured.
    Source: SelfCheckNLI. Differences: the sample is the premise and the sentence the hypothesis (their code hands over
    the sentence first), sentences are found by rule, and the entailment model is the caller's (theirs is
    potsawee/deberta-v3-large-mnli).
    """
    found = evidence.contradiction
    if found is None:
        return Missing(Unmeasured.JUDGE_FAILED, "no entailment model was given to look for contradictions")
    if not found.size:
        return Missing(Unmeasured.SAMPLING_SHORTFALL, "there is no sentence or no sample to compare")
    return math.fsum(found.flat) / found.size


def selfcheck_ngram(evidence: Evidence) -> float | Missing:
    """How rare the rarest word of each sentence is among all answers: mean_i max_w -ln p(w). Nats, in [0, ln(T + V)].

    p(w) = (c(w) + 1) / (T + V): c counts w in the primary answer and all samples, T is the sum of counts, V the number
    of distinct words. It is not 0 for an answer of several words that all samples repeat: k equally frequent words
    score ln k. So it compares answers of like length, and short ones best.
    Source: SelfCheckNgram, n = 1, "max". Differences: add-one smoothing (theirs is off by default: infinite for a word
    that was not counted), words as in `normalise` (articles dropped) instead of spaCy tokens, sentences by rule.
    """
    drawn = evidence.drawn
    if drawn.primary is None or not drawn.samples:
        return Missing(Unmeasured.SAMPLING_SHORTFALL, "there is no primary answer or no sample")
    primary = answer_text(drawn.primary)
    counts = Counter(word for text in (primary, *map(answer_text, drawn.samples)) for word in _words(text))
    total = counts.total() + len(counts)
    rarest = [min((counts[word] + 1 for word in _words(part)), default=None) for part in sentences(primary)]
    if not rarest or None in rarest:
        return Missing(Unmeasured.EMPTY_ANSWER, "the primary answer has no words")
    return math.fsum(math.log(total / count) for count in rarest if count is not None) / len(rarest)


def selfcheck_prompt(evidence: Evidence) -> float | Missing:
    """Share of (sentence, sample) pairs where the model itself says the sample does not support the sentence.

    Yes = 0, No = 1, mean over sentences and samples. Probability, in [0, 1], in steps of 1 / (sentences x samples).
    Anything but a plain yes or no makes it unmeasured. Equal pairs are asked once and count as often as they occur.
    Source: SelfCheckGPT-Prompt. Differences: another reply than yes or no counts 0.5 there ("not sure" begins with "no"
    and counts 1); the question stands above the two texts, because a short answer says little without it; the model
    that answered is asked.
    """
    drawn = evidence.drawn
    asked = support_questions(drawn)
    if isinstance(asked, Missing):
        return asked
    replies = {reply.question: reply for reply in drawn.follow_ups.get(SELFCHECK_PROMPT, ())}
    against: dict[str, int] = {}
    for text in dict.fromkeys(asked):
        reply = replies.get(text)
        if reply is None:
            return Missing(Unmeasured.SAMPLING_SHORTFALL, "not every sentence was put to the model with every sample")
        if reply.problem is not None or reply.primary is None:
            return Missing(reply.problem or Unmeasured.MODEL_FAILED, f"{SELFCHECK_PROMPT}: {reply.problem_detail}")
        said = _YES_OR_NO.match(reply.primary.text)
        if said is None:
            length = len(reply.primary.text)
            return Missing(
                Unmeasured.JUDGE_FAILED, f"asked for yes or no, the model said something else, of length {length}"
            )
        against[text] = int(said[1].lower() == "no")
    return sum(against[text] for text in asked) / len(asked)


def _words(text: str) -> list[str]:
    """Normalised words; a text without word characters (an emoji) is one word."""
    return words_of(text) or [word for word in [normalise(text)] if word]
