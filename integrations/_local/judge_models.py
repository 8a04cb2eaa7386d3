"""The models behind the judges: sentence embeddings and cross-encoders for natural language inference (NLI)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import EntailmentScores, Item

from .encoders import Encoder, Precision, load_encoder, with_question
from .loading import Tensor, torch

__all__ = ["Embedding", "Nli", "entails", "label_order", "load_embedding", "load_nli", "pool", "scores"]


# -- sentence embeddings, from folders in the format of sentence-transformers ------------------------------------------

_MODES = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model of sentence embeddings and how it pools its tokens."""

    encoder: Encoder
    pooling: str
    """"mean", "cls" or "max"."""
    lower: bool
    """Whether the model's settings lower-case texts first."""
    limit: int | None
    """Most tokens by the model's settings; the encoder may have a lower limit."""

    def cosines(self, items: Sequence[Item], precision: Precision) -> list[float | None]:
        """Cosine of the embeddings of question + a and question + b; each distinct text is embedded once.

        None if a text is longer than the model's limit, if unknown tokens hide how the texts differ, or if an embedding
        is zero or not finite.
        """
        read = [tuple(text.lower() if self.lower else text for text in item) for item in items]
        inputs = [(with_question(question, text),) for question, *both in read for text in both]
        lost = self.encoder.lost_to_unknown_tokens([(a, b) for _, a, b in read])
        vectors = self.encoder.run(
            inputs, lambda output, mask: pool(output[0], mask, self.pooling), precision, self.limit
        )
        cosines = [_cosine(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        return [None if unread else cosine for unread, cosine in zip(lost, cosines, strict=True)]


def pool(states: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Text vectors (rows, size) from token states (rows, tokens, size); padding (mask 0) is ignored."""
    states = states.float()
    if mode == "cls":
        return states[:, 0]
    there = mask.unsqueeze(-1).bool()
    if mode == "max":
        return states.masked_fill(~there, -torch.inf).amax(1)
    return (states * there).sum(1) / there.sum(1).clamp(min=1)


def _cosine(a: NDArray[np.float64] | None, b: NDArray[np.float64] | None) -> float | None:
    if a is None or b is None:
        return None
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.clip(a @ b / size, -1.0, 1.0)) if size > 0 else None


def load_embedding(model: str, *, revision: str | None, device: str, max_batch_tokens: int | None = None) -> Embedding:
    """Load a model of sentence embeddings; judges of the same model and revision share it.

    Raises:
        UsageError: The model cannot be loaded, is not in the format of sentence-transformers, or has parts other than
            encoder, pooling (mean, cls, max) and normalisation.
    """
    encoder = load_encoder("AutoModel", model, revision=revision, device=device, max_batch_tokens=max_batch_tokens)
    modules = encoder.read_json("modules.json", model)
    if modules is None:
        raise UsageError(f"model {model!r} has no modules.json, which says how its tokens become one vector")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        raise UsageError(
            f"model {model!r} consists of {', '.join(kinds)}; supported is an encoder at the top of the folder, with "
            "pooling and normalisation"
        )
    settings = encoder.read_json("sentence_bert_config.json", model) or {}
    pooling = _pooling(encoder.read_json(f"{modules[1]['path']}/config.json", model) or {}, model)
    return Embedding(encoder, pooling, bool(settings.get("do_lower_case")), settings.get("max_seq_length"))


def _pooling(config: dict[str, Any], model: str) -> str:
    """The only pooling mode, written as "pooling_mode_mean_tokens": true in older files, "pooling_mode" in newer."""
    named = config.get("pooling_mode")
    modes = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if on is True and "pooling_mode_" in name
    ]
    pooling = [named] if isinstance(named, str) else [_MODES.get(mode, mode) for mode in modes]
    if len(pooling) != 1 or pooling[0] not in _MODES.values():
        raise UsageError(f"model {model!r} pools its tokens by {pooling}; supported are 'mean', 'cls' and 'max'")
    return pooling[0]


# -- natural language inference, in any order of the labels ------------------------------------------------------------

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
    """An NLI model and the positions of its labels."""

    encoder: Encoder
    order: tuple[int, ...]
    """Positions of entailment, neutral and contradiction among the logits; or of entailment and its absence."""

    def logits(self, items: Sequence[Item], precision: Precision) -> list[NDArray[np.float64] | None]:
        """Logits of each (question, premise, hypothesis), entailment first, in the sequence of ``order``.

        The question is prepended to both sides. None if the pair is longer than the model's limit, if unknown tokens
        hide how the texts differ, or if a logit is not finite.
        """
        pairs = [
            (with_question(question, premise), with_question(question, other)) for question, premise, other in items
        ]
        columns = list(self.order)
        lost = self.encoder.lost_to_unknown_tokens([(premise, other) for _, premise, other in items])
        outputs = self.encoder.run(pairs, lambda output, _: output.logits[:, columns], precision)
        return [None if unread else logits for unread, logits in zip(lost, outputs, strict=True)]


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
    """Positions of the labels, entailment first.

    Args:
        id2label: Names of the model's outputs. Case and punctuation are ignored.
        model: The model, for the error.

    Raises:
        UsageError: The labels are neither the three labels of NLI nor entailment and its absence, each once.
    """
    places: dict[str, int] = {}
    for place, label in id2label.items():
        plain = re.sub("[^a-z]", "", label.lower())
        kind = next((kind for pattern, kind in _KINDS if pattern.match(plain)), None)
        if kind is not None:
            places.setdefault(kind, int(place))
    labels = next((labels for labels in (THREE, TWO) if set(labels) == places.keys()), None)
    if labels is None or len(id2label) != len(labels):
        raise UsageError(
            f"model {model!r} calls its labels {', '.join(map(repr, id2label.values()))}; an NLI model has "
            "'entailment', 'neutral' and 'contradiction', or 'entailment' and 'not_entailment'. If the labels mean the "
            "same, write these names into id2label of its config.json."
        )
    return tuple(places[label] for label in labels)


def entails(logits: NDArray[np.float64]) -> bool:
    """Whether entailment is strictly the most probable label; a tie is not entailment."""
    return bool(logits[0] > logits[1:].max())


def scores(logits: NDArray[np.float64], temperature: float = 1.0) -> EntailmentScores:
    """Softmax of the logits over ``temperature``; neutral and contradiction are None for a model of two labels."""
    shifted = np.exp((logits - logits.max()) / temperature)
    shares = [float(share) for share in shifted / shifted.sum()]
    if len(shares) == len(TWO):
        return EntailmentScores(shares[0])
    return EntailmentScores(*shares)
