"""A cache with room: new tokens are written in place, where transformers' own copies the whole cache for each token."""

from __future__ import annotations

import copy
from typing import Any

from guardrail.errors import require

from ._torch import Tensor, torch

__all__ = ["fork", "select_rows"]

_cache_utils: Any = require("transformers.cache_utils", extra="local")


class RoomyLayer(_cache_utils.DynamicLayer):  # type: ignore[misc]
    """Keys and values of one full-attention layer at the front of larger buffers.

    Args:
        layer: An initialised layer to take the states from.
        index: Its rows to take, repeated as often as they occur.
        room: Number of positions to keep free after the present ones.
    """

    def __init__(self, layer: Any, index: Tensor, room: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.dtype, layer.device, True
        self._take(layer.keys, layer.values, index, layer.keys.shape[-2] + room)

    def _take(self, keys: Tensor, values: Tensor, index: Tensor, capacity: int) -> None:
        self._buffers = [_roomy(keys, index, capacity), _roomy(values, index, capacity)]
        self._show(keys.shape[-2])

    def _show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new states behind the present ones; more room is made when it runs out."""
        start = self.keys.shape[-2]
        end, capacity = start + key_states.shape[-2], self._buffers[0].shape[-2]
        if end > capacity:
            everything = torch.arange(key_states.shape[0], device=key_states.device)
            self._take(self.keys, self.values, everything, max(end, capacity + capacity // 2))
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self._show(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows at ``beam_idx``, in new buffers of the same room."""
        self._take(self.keys, self.values, beam_idx.to(self.keys.device), self._buffers[0].shape[-2])


def _roomy(states: Tensor, index: Tensor, capacity: int) -> Tensor:
    """The rows of ``states`` at ``index``, followed by free positions."""
    _, heads, length, size = states.shape
    buffer = states.new_empty((index.shape[0], heads, capacity, size))
    buffer[:, :, :length] = states[index]
    return buffer


def select_rows(cache: Any, index: Tensor, room: int) -> None:
    """Make ``cache`` hold the rows at ``index``; with ``room`` > 0, full-attention layers become roomy ones.

    Sliding-window and recurrent layers keep their own kind: their size does not grow with the answer.
    """
    for place, layer in enumerate(cache.layers):
        if room and type(layer) is _cache_utils.DynamicLayer and layer.is_initialized:
            cache.layers[place] = RoomyLayer(layer, index, room)
        else:
            layer.reorder_cache(index)


def fork(cache: Any) -> Any:
    """A cache whose layers can be given other tensors without touching the original's."""
    forked = copy.copy(cache)
    forked.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in forked.layers:
        vars(layer).update({name: copy.copy(value) for name, value in vars(layer).items() if isinstance(value, list)})
    return forked
