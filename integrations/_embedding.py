"""Sentence embeddings with plain transformers, from folders in the format of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import Item

from ._encoders import Encoder, Precision, load_encoder, with_question
from ._torch import Tensor, torch

__all__ = ["Embedding", "load_embedding", "pool"]

_MODES = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}


@dataclass(frozen=True, slots=True)
class Embedding:
    """A model of sentence embeddings and how it pools its tokens."""

    encoder: Encoder
    pooling: str
    """"mean", "cls" or "max"."""
    lower: bool
    """Whether texts are lower-cased first, as its settings say."""
    limit: int | None
    """Most tokens by its settings; the encoder may have a lower limit of its own."""

    def cosines(self, items: Sequence[Item], precision: Precision) -> list[float | None]:
        """Cosine of the embeddings of question + a and question + b; each distinct text is embedded once.

        None where a text is longer than the model reads, where words that it does not know hide how the texts differ,
        or an embedding is zero or not finite.
        """
        read = [tuple(text.lower() if self.lower else text for text in item) for item in items]
        inputs = [(with_question(question, text),) for question, *both in read for text in both]
        hidden = self.encoder.hides([(a, b) for _, a, b in read])
        found = self.encoder.run(
            inputs, lambda output, mask: pool(output[0], mask, self.pooling), precision, self.limit
        )
        cosines = [_cosine(a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        return [None if unread else cosine for unread, cosine in zip(hidden, cosines, strict=True)]


def pool(states: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Text vectors (rows, size) from token states (rows, tokens, size); padding (mask 0) plays no part."""
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
        UsageError: It cannot be loaded, is not in the format of sentence-transformers, or has a part besides encoder,
            pooling (mean, cls, max) and normalisation.
    """
    encoder = load_encoder("AutoModel", model, revision=revision, device=device, max_batch_tokens=max_batch_tokens)
    modules = encoder.read_json("modules.json", model)
    if modules is None:
        raise UsageError(f"model {model!r} has no modules.json, so it does not say how its tokens become one vector")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        raise UsageError(
            f"model {model!r} is made of {', '.join(kinds)}; only an encoder at the top of the folder with pooling and "
            "normalisation can be read"
        )
    settings = encoder.read_json("sentence_bert_config.json", model) or {}
    pooling = _pooling(encoder.read_json(f"{modules[1]['path']}/config.json", model) or {}, model)
    return Embedding(encoder, pooling, bool(settings.get("do_lower_case")), settings.get("max_seq_length"))


def _pooling(config: dict[str, Any], model: str) -> str:
    """The one pooling mode, as older ("pooling_mode_mean_tokens": true) and newer files ("pooling_mode") write it."""
    named = config.get("pooling_mode")
    modes = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if on is True and "pooling_mode_" in name
    ]
    found = [named] if isinstance(named, str) else [_MODES.get(mode, mode) for mode in modes]
    if len(found) != 1 or found[0] not in _MODES.values():
        raise UsageError(f"model {model!r} pools its tokens by {found}; one of 'mean', 'cls' and 'max' can be read")
    return found[0]
