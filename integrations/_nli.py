"""A cross-encoder for natural language inference, whatever the order of its labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import EntailmentScores, Item

from ._encoders import Encoder, Precision, load_encoder, with_question

__all__ = ["Nli", "entails", "label_order", "load_nli", "scores"]

THREE = ("entailment", "neutral", "contradiction")
TWO = ("entailment", "not_entailment")
_KINDS = (
    (re.compile("(not|non)entail"), "not_entailment"),
    (re.compile("entail"), "entailment"),
    (re.compile("neutral"), "neutral"),
    (re.compile("contradict"), "contradiction"),
)


@dataclass(frozen=True, slots=True)
class Nli:
    """An NLI model and the places of its labels."""

    encoder: Encoder
    order: tuple[int, ...]
    """Places of entailment, neutral and contradiction among the logits; or of entailment and its absence."""

    def logits(self, items: Sequence[Item], precision: Precision) -> list[NDArray[np.float64] | None]:
        """Logits of each (question, premise, hypothesis): entailment first, then as in ``order``.

        The question is prepended to both sides. None where the pair is longer than the model reads, where words that it
        does not know hide how the texts differ, or a logit is not finite.
        """
        pairs = [
            (with_question(question, premise), with_question(question, other)) for question, premise, other in items
        ]
        columns = list(self.order)
        hidden = self.encoder.hides([(premise, other) for _, premise, other in items])
        found = self.encoder.run(pairs, lambda output, _: output.logits[:, columns], precision)
        return [None if unread else logits for unread, logits in zip(hidden, found, strict=True)]


def load_nli(model: str, *, revision: str | None, device: str, max_batch_tokens: int | None = None) -> Nli:
    """Load an NLI cross-encoder; judges of the same model and revision share it.

    Raises:
        UsageError: It cannot be loaded, or its labels are not those of an NLI model.
    """
    encoder = load_encoder(
        "AutoModelForSequenceClassification",
        model,
        revision=revision,
        device=device,
        max_batch_tokens=max_batch_tokens,
    )
    return Nli(encoder, label_order(encoder.model.config.id2label, model))


def label_order(id2label: dict[int, str], model: str) -> tuple[int, ...]:
    """Places of the labels, entailment first.

    Args:
        id2label: The model's own names of its outputs. Case and punctuation play no part.
        model: The model, for the error.

    Raises:
        UsageError: They are neither the three labels of NLI nor entailment and its absence, once each.
    """
    places: dict[str, int] = {}
    for place, label in id2label.items():
        plain = re.sub("[^a-z]", "", label.lower())
        kind = next((kind for pattern, kind in _KINDS if pattern.match(plain)), None)
        if kind is not None:
            places.setdefault(kind, int(place))
    wanted = next((labels for labels in (THREE, TWO) if set(labels) == places.keys()), None)
    if wanted is None or len(id2label) != len(wanted):
        raise UsageError(
            f"model {model!r} calls its labels {', '.join(map(repr, id2label.values()))}; an NLI model has "
            "'entailment', 'neutral' and 'contradiction', or 'entailment' and 'not_entailment'. If it is one under "
            "other names, write these into id2label of its config.json."
        )
    return tuple(places[label] for label in wanted)


def entails(logits: NDArray[np.float64]) -> bool:
    """Whether entailment is strictly the most probable label; a tie is not entailment."""
    return bool(logits[0] > logits[1:].max())


def scores(logits: NDArray[np.float64], temperature: float = 1.0) -> EntailmentScores:
    """Softmax of the logits over ``temperature``; what a model of two labels cannot tell is None."""
    shifted = np.exp((logits - logits.max()) / temperature)
    shares = [float(share) for share in shifted / shifted.sum()]
    if len(shares) == len(TWO):
        return EntailmentScores(shares[0])
    return EntailmentScores(*shares)
