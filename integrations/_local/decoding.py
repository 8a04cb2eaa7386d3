"""The decoding loop: prefill each prompt once, expand the cache to the rows of all its answers, sample step by step.

This module knows token ids only: no text, no messages, no threads. It replaces ``generate``, which repeats the prompt n
times before prefilling, takes no seed for each request, and returns scores *after* temperature and top-k.

Randomness is a matrix of uniforms drawn in advance on the CPU, one row for each sequence, turned into tokens by the
inverse CDF. A sequence therefore depends on its own uniforms and logits alone, not on its neighbours in the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import require

from .forward import forward, reads_by_token, rereads, rope_window
from .loading import Tensor, torch, transformers

_cache_utils: Any = require("transformers.cache_utils", extra="local")

__all__ = [
    "CachedPrefix",
    "Continuation",
    "Decoder",
    "Row",
    "choose_tokens",
    "prefill",
    "select_rows",
    "uniforms",
]

LARGE_VOCABULARY = 4096
"""Tokens from which sorting a distribution on a CPU takes longer than a histogram of it."""
BIN_SHIFT = 18
"""Trailing bits of a float32 that its bin ignores, which leaves 16 bins for each doubling."""


@dataclass(frozen=True)
class Row:
    """One sequence to decode."""

    max_tokens: int
    """Most new tokens."""
    temperature: float = 0.0
    """Temperature; 0 for greedy."""
    top_p: float = 1.0
    """Nucleus mass; 1 for no truncation."""
    uniforms: Tensor = None
    """float64 numbers in [0, 1), one for each new token; None when greedy."""


@dataclass
class Continuation:
    """The output of one row."""

    ids: list[int] = field(default_factory=list)
    """New tokens, including the end token if there is one."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each under the untempered model, in nats."""
    ended: bool = False
    """Whether it ended with an end token or a stop string rather than at ``max_tokens``."""
    closed: bool = False
    """Whether the row takes no further token."""


def uniforms(seed: int | None, n: int, length: int) -> Tensor:
    """An (n, length) matrix of float64 uniforms in [0, 1), reproducible on every device; None for fresh randomness."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    # Drawn on the CPU: the generators of devices give other numbers for the same seed.
    return torch.rand((n, length), dtype=torch.float64, generator=generator)


# -- a preallocated cache: new tokens are written in place, where transformers copies the whole cache for each token ---


class PreallocatedLayer(_cache_utils.DynamicLayer):  # type: ignore[misc]
    """Keys and values of one full-attention layer at the front of larger buffers.

    Args:
        layer: An initialised layer to take the states from.
        index: Its rows to take, repeated as often as they occur.
        room: Number of positions to keep free after the present ones.
    """

    def __init__(self, layer: Any, index: Tensor, room: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.keys.dtype, layer.keys.device, True
        self._take(layer.keys, layer.values, index, layer.keys.shape[-2] + room)

    def _take(self, keys: Tensor, values: Tensor, index: Tensor, capacity: int) -> None:
        self._buffers = [_preallocated(keys, index, capacity), _preallocated(values, index, capacity)]
        self._show(keys.shape[-2])

    def _show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new states behind the present ones; the buffers grow if necessary."""
        start = self.keys.shape[-2]
        end, capacity = start + key_states.shape[-2], self._buffers[0].shape[-2]
        if end > capacity:
            everything = torch.arange(key_states.shape[0], device=key_states.device)
            # Half as much again, so that an unknown length costs a few copies and not one for each token.
            self._take(self.keys, self.values, everything, max(end, capacity + capacity // 2))
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self._show(end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows at ``beam_idx``, in new buffers of the same size."""
        self._take(self.keys, self.values, beam_idx.to(self.keys.device), self._buffers[0].shape[-2])


def _preallocated(states: Tensor, index: Tensor, capacity: int) -> Tensor:
    """The rows of ``states`` at ``index``, followed by free positions."""
    _, heads, length, size = states.shape
    buffer = states.new_empty((index.shape[0], heads, capacity, size))
    buffer[:, :, :length] = states if len(states) == 1 else states[index]  # one prompt: no copy in between
    return buffer


def select_rows(cache: Any, index: Tensor, room: int) -> None:
    """Make ``cache`` hold the rows at ``index``; with ``room`` > 0, full-attention layers become `PreallocatedLayer`.

    Sliding-window and recurrent layers keep their class: their size does not grow with the answer.
    """
    for place, layer in enumerate(cache.layers):
        # The exact type: subclasses (sliding windows) keep their states in another shape.
        if room and type(layer) is _cache_utils.DynamicLayer and layer.is_initialized:
            cache.layers[place] = PreallocatedLayer(layer, index, room)
        else:
            layer.reorder_cache(index)
    # States that a model keeps beside its layers must follow the rows, or answers continue from another prompt.
    if hasattr(cache, "module_states"):
        cache.module_states = [states[index] for states in cache.module_states]


# -- the prompts, read once -------------------------------------------------------------------------------------------


@dataclass
class CachedPrefix:
    """A batch of sequences that the model has read: their cache and the logits of the next token."""

    model: Any
    cache: Any
    logits: Tensor
    """(rows, vocabulary), of the next token."""
    mask: Tensor
    """(rows, length) boolean, or None without padding."""
    positions: Tensor
    """(rows,) position of the next token."""
    ids: Tensor = None
    """(rows, length) tokens so far, for models that read them again at the end of their rope window; otherwise None."""

    def expand(self, indices: Sequence[int], *, room: int = 0, keep: bool = False) -> CachedPrefix:
        """The rows at ``indices``, repeated as often as they occur there.

        Args:
            indices: Rows of this prefix.
            room: Number of tokens that will follow, if it is known: they are then written in place.
            keep: Whether this prefix is still needed; otherwise its cache is reused.
        """
        with torch.inference_mode():
            index = torch.tensor(list(indices), device=self.logits.device)
            # A deep copy, because layers keep their states in all kinds of containers and change some of them in place.
            cache = copy.deepcopy(self.cache) if keep else self.cache
            select_rows(cache, index, room)
            mask = None if self.mask is None else self.mask[index]
            ids = None if self.ids is None else self.ids[index]
            return CachedPrefix(self.model, cache, self.logits[index], mask, self.positions[index], ids)

    def advance(self, tokens: Tensor, *, last_only: bool = True) -> Tensor:
        """Read ``tokens`` (rows, length) and return the logits after the last of them, or after each.

        Returns:
            float32 (rows, vocabulary), or (rows, length, vocabulary) if not ``last_only``.
        """
        # Such a model is exact one token at a time only, so a longer reading is split up.
        if not last_only and reads_by_token(self.model):
            return torch.stack([self.advance(column[:, None]) for column in tokens.T], dim=1)
        with torch.inference_mode():
            length = tokens.shape[1]
            positions = self.positions[:, None] + torch.arange(length, device=tokens.device)
            if self.mask is not None:
                self.mask = torch.cat([self.mask, self.mask.new_ones(tokens.shape)], dim=1)
            self.positions = self.positions + length
            if self.ids is not None:
                start, self.ids = self.ids.shape[1], torch.cat([self.ids, tokens], dim=1)
                # Crossing the window changes the rotation of all positions, so cached keys are stale and everything is
                # read again.
                if start <= rope_window(self.model) < self.ids.shape[1]:
                    tokens, self.cache = self.ids, transformers.DynamicCache(config=self.model.config)
                    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            logits = forward(self.model, tokens, positions, self.mask, self.cache, last_only=last_only)
            self.logits = logits[:, -1]
            return self.logits if last_only else logits


def prefill(model: Any, prompts: Sequence[Sequence[int]]) -> CachedPrefix:
    """Read several prompts in one pass, padded on the left.

    Args:
        model: A transformers causal language model in evaluation mode.
        prompts: Token ids, at least one for each prompt.
    """
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    with torch.inference_mode():
        # On the left, so that the last column holds the last token of every prompt. Any id serves: the mask hides it.
        padded = [[0] * pad + list(ids) for pad, ids in zip(pads, prompts, strict=True)]
        tokens = torch.tensor(padded, device=model.device)
        pad = torch.tensor(pads, device=model.device)[:, None]
        steps = torch.arange(longest, device=model.device)
        # Without padding no mask is passed: the causal flag is faster and needs no synchronisation with the device.
        mask = (steps >= pad).long() if any(pads) else None
        cache = transformers.DynamicCache(config=model.config)
        # Padding would have negative positions, which are no index of an embedding.
        logits = forward(model, tokens, (steps - pad).clamp(min=0), mask, cache, last_only=True)[:, -1]
        ids = tokens if rereads(model) else None
        return CachedPrefix(model, cache, logits, mask, longest - pad[:, 0], ids)


# -- the answers -------------------------------------------------------------------------------------------------------


def choose_tokens(logits: Tensor, temperature: Tensor, top_p: Tensor, draws: Tensor) -> Tensor:
    """Tokens at the given quantiles of the tempered, nucleus-truncated distributions.

    p = softmax(logits / T); with ``top_p`` only the smallest set of likeliest tokens with mass >= top_p is kept (at
    least one token; of equally likely ones at its edge, the first in the vocabulary) and renormalised. The token is the
    first one, in vocabulary order, whose cumulative probability exceeds the uniform number.

    Args:
        logits: (rows, vocabulary).
        temperature: (rows,), all above 0.
        top_p: (rows,), in (0, 1); None for no truncation.
        draws: (rows,) uniforms in [0, 1).

    Returns:
        (rows,) token ids.
    """
    weights = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    return _quantile(weights if top_p is None else _nucleus(weights, top_p), draws)


def _nucleus(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """The probabilities, with 0 outside the nucleus; a large vocabulary on a CPU is changed in place."""
    if probabilities.device.type == "cpu" and probabilities.shape[-1] >= LARGE_VOCABULARY:
        for row, mass in zip(probabilities.numpy(), top_p.tolist(), strict=True):
            _truncate(row, mass)
        return probabilities
    # Stable: of equally likely tokens at the edge the first in the vocabulary stays, on every device.
    ranked, order = probabilities.sort(dim=-1, descending=True, stable=True)
    # In float64 where the device has it: a float32 sum over a large vocabulary drifts past the edge.
    wide = ranked.to(top_p.dtype)
    nucleus = ranked * (wide.cumsum(dim=-1) - wide < top_p[:, None])
    return nucleus.scatter(-1, order, nucleus)


def _truncate(probabilities: NDArray[np.float32], top_p: float) -> None:
    """Truncate one row in place without sorting all of it, which is about three times as fast.

    The leading bits of a positive float order it, so they are the bins of a histogram. Only the bin in which the mass
    reaches ``top_p`` is sorted.
    """
    bins = probabilities.view(np.uint32) >> BIN_SHIFT
    reached = np.bincount(bins, probabilities)[::-1].cumsum()
    above = int(np.searchsorted(reached, top_p))  # bins that are kept whole
    edge = len(reached) - 1 - above
    places = np.flatnonzero(bins == edge)
    places = places[np.argsort(-probabilities[places], kind="stable")]
    wide = probabilities[places].astype(np.float64)
    before = wide.cumsum() - wide + (reached[above - 1] if above else 0.0)
    # Below the edge bin nothing belongs to the nucleus; inside it only what begins before the mass is reached.
    probabilities *= bins >= edge
    probabilities[places[before >= top_p]] = 0.0


def _quantile(weights: Tensor, draws: Tensor) -> Tensor:
    """First index at which the cumulative weight exceeds ``draws`` of the total; its weight is never 0."""
    cumulative = weights.to(draws.dtype).cumsum(dim=-1)
    total = cumulative[:, -1]
    # A product rounded up to the total would select past the last token with any weight.
    target = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return index.clamp(max=weights.shape[-1] - 1)


class Decoder:
    """Decodes rows over an expanded prefix, a step at a time.

    Args:
        prefix: One row for each row to decode, in the same order; it is consumed.
        rows: The rows to decode.
        end_ids: Tokens that end an answer.
        stopped: Whether a row (its number, its ids so far) has reached a stop string; None without stop strings.
        sync_every: Steps between transfers of the tokens to the host. More steps mean less waiting for an accelerator,
            and at most that many superfluous tokens.
    """

    def __init__(
        self,
        prefix: CachedPrefix,
        rows: Sequence[Row],
        *,
        end_ids: frozenset[int],
        stopped: Callable[[int, list[int]], bool] | None = None,
        sync_every: int = 1,
    ) -> None:
        self.rows = tuple(rows)
        self.results = [Continuation() for _ in rows]
        self._prefix = prefix
        self._end_ids = end_ids
        self._stopped = stopped
        self._sync_every = sync_every
        self._active = list(range(len(rows)))
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._step = 0
        self._groups: list[tuple[Tensor | slice, Tensor, Tensor, Tensor]] = []
        self._load_settings()

    def _load_settings(self) -> None:
        """Copy the settings of the sampled rows to the device: one group with and one without a nucleus."""
        device = self._prefix.logits.device
        # MPS has no float64.
        real = torch.float32 if device.type == "mps" else torch.float64
        self._groups = []
        for nucleus in (False, True):
            places = [p for p, row in enumerate(self._active) if self._sampled(row) and self._truncated(row) is nucleus]
            if not places:
                continue
            rows = [self.rows[self._active[place]] for place in places]
            # Padded to a rectangle; a row is closed before it reaches the zeros.
            draws = torch.zeros((len(rows), max(row.max_tokens for row in rows)), dtype=torch.float64)
            for place, row in enumerate(rows):
                draws[place, : row.max_tokens] = row.uniforms[: row.max_tokens]
            temperature = torch.tensor([row.temperature for row in rows], dtype=torch.float32, device=device)
            top_p = torch.tensor([row.top_p for row in rows], dtype=real, device=device) if nucleus else None
            self._groups.append(
                (
                    # A slice is a view; an index would copy all logits at every step.
                    slice(None) if len(places) == len(self._active) else torch.tensor(places, device=device),
                    temperature,
                    top_p,
                    draws.to(device=device, dtype=real),
                )
            )

    def _sampled(self, row: int) -> bool:
        return self.rows[row].temperature > 0

    def _truncated(self, row: int) -> bool:
        return self.rows[row].top_p < 1

    @property
    def running(self) -> bool:
        """Whether some row takes another token."""
        return bool(self._active)

    def step(self) -> None:
        """Add one token to each active row."""
        with torch.inference_mode():
            tokens, logprobs = self._pick()
            self._pending.append((tokens, logprobs))
            self._step += 1
            # At the limit every row is finished, so it is no use to wait for the next transfer.
            limit = max(self.rows[row].max_tokens for row in self._active)
            if len(self._pending) >= self._sync_every or self._step >= limit:
                tokens = self._collect(tokens)
            if self._active:
                self._prefix.advance(tokens[:, None])

    def run(self) -> list[Continuation]:
        """Decode every row to its end."""
        while self.running:
            self.step()
        return self.results

    def _pick(self) -> tuple[Tensor, Tensor]:
        """The next token of each active row and its log-probability."""
        logits = self._prefix.logits
        # For the greedy rows; the sampled ones are overwritten below.
        tokens = logits.argmax(dim=-1)
        for places, temperature, top_p, draws in self._groups:
            # A finished row may decode on with the batch: its tokens are dropped, so any column will do.
            column = draws[:, min(self._step, draws.shape[1] - 1)]
            tokens[places] = choose_tokens(logits[places], temperature, top_p, column)
        chosen = logits.gather(-1, tokens[:, None])[:, 0]
        # From the raw logits: log-probabilities are those of the untempered model.
        return tokens, (chosen - torch.logsumexp(logits, dim=-1)).clamp(max=0)  # rounding can exceed 0

    def _collect(self, tokens: Tensor) -> Tensor:
        """Bring pending tokens to the host and close finished rows; drop them from the batch if there are enough."""
        ids = torch.stack([pending[0] for pending in self._pending], dim=1).tolist()
        logprobs = torch.stack([pending[1] for pending in self._pending], dim=1).tolist()
        self._pending.clear()
        for place, row in enumerate(self._active):
            self._extend(row, ids[place], logprobs[place])
        left = [place for place, row in enumerate(self._active) if not self.results[row].closed]
        if not left:
            self._active = []
            return tokens
        # Attention over a finished row costs as much as over a live one; copying the cache costs about one step.
        if len(left) <= 0.75 * len(self._active):
            self._prefix = self._prefix.expand(left)
            self._active = [self._active[place] for place in left]
            self._load_settings()
            tokens = tokens[torch.tensor(left, device=tokens.device)]
        return tokens

    def _extend(self, row: int, ids: list[int], logprobs: list[float]) -> None:
        """Append new tokens to a row until it is closed."""
        result, limit = self.results[row], self.rows[row].max_tokens
        for token, logprob in zip(ids, logprobs, strict=True):
            if result.closed:
                return
            result.ids.append(token)
            result.logprobs.append(logprob)
            result.ended = token in self._end_ids or (self._stopped is not None and self._stopped(row, result.ids))
            result.closed = result.ended or len(result.ids) >= limit
