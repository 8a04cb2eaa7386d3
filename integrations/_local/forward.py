"""One forward pass of any model type of `transformers`: the arguments it takes and the states it keeps."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .loading import Tensor

__all__ = ["forward", "reads_by_token", "rereads", "rope_window", "takes_cache"]

RECURRENT = frozenset({"falcon_mamba", "mamba", "mamba2", "xlstm"})
"""Types without attention: their mask is for the prompt alone."""

BY_TOKEN = RECURRENT | {"jamba", "recurrent_gemma", "zamba"}
"""Types whose recurrent layers read several tokens as if no token came before them."""

CACHE = ("cache", "cache_params", "past_key_values")
"""Names of the parameter for the cache: the first from transformers 5.24, the others before it."""

MODULE_STATES = {"recurrent_gemma": ("conv1d_state", "recurrent_states")}
"""Types with recurrent states outside the cache: names of the attributes of their modules."""

REREADING = frozenset({"phi3", "phi4_multimodal", "phimoe"})
"""Types for which ``generate`` reads the sequence again when it grows beyond the rope window."""


def rope_window(model: Any) -> int | None:
    """Length beyond which longrope changes the positions of a whole batch; None for other kinds of rope."""
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]  # one, or one for each kind of layer
    return min((k["original_max_position_embeddings"] for k in kinds if k.get("rope_type") == "longrope"), default=None)


@functools.lru_cache
def _parameters(model_type: Any) -> frozenset[str] | None:
    """Parameter names of the forward pass; None for a wrapper that passes everything on."""
    names = frozenset(inspect.signature(model_type.forward).parameters)
    return names if "input_ids" in names else None


def _accepted(model: Any) -> frozenset[str] | None:
    """Parameters of the forward pass; of the model inside an adapter, because adapters pass on everything."""
    kind: Any = type(model.get_base_model() if hasattr(model, "get_base_model") else model)
    return _parameters(kind)


def reads_by_token(model: Any) -> bool:
    """Whether several tokens after a prompt have to be read one by one."""
    return model.config.model_type in BY_TOKEN


def rereads(model: Any) -> bool:
    """Whether the whole sequence is read again where it grows beyond the rope window, as ``generate`` does."""
    return bool(rope_window(model)) and model.config.model_type in REREADING


def takes_cache(model: Any) -> bool:
    """Whether the forward pass takes a cache; some forward passes swallow and ignore unknown arguments."""
    accepted = _accepted(model)
    return accepted is None or not accepted.isdisjoint(CACHE)


def forward(model: Any, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Any, *, last_only: bool) -> Tensor:
    """One forward pass; float32 logits (rows, length or 1, vocabulary)."""
    accepted = _accepted(model)
    optional = {"position_ids": positions, "logits_to_keep": 1 if last_only else 0}
    extra = {name: value for name, value in optional.items() if accepted is None or name in accepted}
    if model.config.model_type in RECURRENT:
        mask = mask if mask is not None and mask.shape == tokens.shape else None
    # A wrapper passes everything on, and each version renames the older names.
    extra[next((name for name in CACHE if name in (accepted or ())), CACHE[-1])] = cache
    names = MODULE_STATES.get(model.config.model_type, ())
    places = [(module, name) for name in names for module in model.modules() if hasattr(module, name)]
    for (module, name), states in zip(places, getattr(cache, "module_states", [None] * len(places)), strict=True):
        setattr(module, name, states)
    output = model(input_ids=tokens, attention_mask=mask, use_cache=True, **extra)
    if places:
        cache.module_states = [getattr(module, name) for module, name in places]
    logits = output.logits[:, -1:] if last_only else output.logits
    return logits.float()
