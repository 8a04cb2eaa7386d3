"""Decoding on transformers' own ``generate``: a prompt is read once, and every row takes its tokens from its own seed.

``generate`` runs the model and owns its cache. This module knows token ids only and adds three things: the cache of a
prompt is repeated for all rows that continue it, a logits processor chooses each row's token and notes its raw
log-probability, and rows that have ended leave the batch.

Randomness is a matrix of uniforms drawn in advance on the CPU, one row for each sequence, turned into tokens by the
inverse CDF. A sequence therefore depends on its own uniforms and logits alone, not on its neighbours in the batch.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .loading import Tensor, torch, transformers

LIKELIEST = 256
"""Tokens among which the nucleus is looked for first: finding them is several times as fast as sorting all."""
CACHE = ("cache", "cache_params", "past_key_values")
"""Names of the parameter for the cache: the first from transformers 5.24, the others before it."""
WORTH_LEAVING = 0.75
"""Share of open rows at which the others leave the batch: copying the cache costs about one step."""


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
    given: tuple[int, ...] = ()
    """Tokens that the row takes whatever their probability, ``max_tokens`` of them; empty for a row that chooses."""


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


def choose_tokens(logits: Tensor, temperature: Tensor, top_p: Tensor, draws: Tensor) -> Tensor:
    """Tokens at the given quantiles of the tempered, nucleus-truncated distributions.

    p = softmax(logits / T); with ``top_p`` only the smallest set of likeliest tokens with mass >= top_p is kept (at
    least one token; of equally likely ones at its edge, the first in the vocabulary) and renormalised. The token is the
    first one, in vocabulary order, whose cumulative probability exceeds the uniform number.

    Args:
        logits: (rows, vocabulary).
        temperature: (rows,), all above 0.
        top_p: (rows,), above 0; 1 or more for no truncation.
        draws: (rows,) uniforms in [0, 1).

    Returns:
        (rows,) token ids.
    """
    weights = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    truncated = top_p < 1
    if truncated.any():
        weights[truncated] *= _nucleus(weights[truncated], top_p[truncated])
    cumulative = weights.to(draws.dtype).cumsum(dim=-1)
    total = cumulative[:, -1]
    # A product rounded up to the total would select past the last token with any weight.
    target = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return index.clamp(max=weights.shape[-1] - 1)


def _nucleus(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """Whether each token belongs to the nucleus of its row."""
    # In float64 where the device has it: a float32 sum over a large vocabulary drifts past the edge.
    ranked = probabilities.topk(min(LIKELIEST, probabilities.shape[-1]), dim=-1).values.to(top_p.dtype)
    reached = ranked.cumsum(dim=-1)
    if (reached[:, -1] < top_p).any():
        ranked = probabilities.sort(dim=-1, descending=True).values.to(top_p.dtype)
        reached = ranked.cumsum(dim=-1)
    kept = reached - ranked < top_p[:, None]
    edge = ranked.masked_fill(~kept, torch.inf).amin(dim=-1, keepdim=True)
    # By value and then by place: the order of equal tokens in a sort differs between devices.
    tied = probabilities == edge
    room = (kept & (ranked == edge)).sum(dim=-1, keepdim=True)
    return (probabilities > edge) | (tied & (tied.cumsum(dim=-1) <= room))


def rope_window(model: Any) -> int | None:
    """Length beyond which longrope changes the positions of a whole batch; None for other kinds of rope."""
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]  # one, or one for each kind of layer
    return min((k["original_max_position_embeddings"] for k in kinds if k.get("rope_type") == "longrope"), default=None)


def plain(model: Any) -> Any:
    """The model behind an adapter, without the settings by which ``generate`` would change its distribution.

    The copy shares all weights; only its generation config (penalties, top-k, forced tokens) is new.
    """
    base = copy.copy(model.get_base_model() if hasattr(model, "get_base_model") else model)
    base.generation_config = transformers.GenerationConfig()
    return base


class Decoder:
    """Reads prompts, and decodes rows that continue them.

    Args:
        model: A model as `plain` returns it.
        prompts: Token ids of each prompt, at least one. They are read at once, padded on the left.
        rows: The rows to decode.
        prompt_of: For each row, the index of its prompt.
        end_ids: Tokens that end an answer.
        stopped: Whether a row (its number, its ids so far) takes no further token; None if only ``end_ids`` end rows.

    Raises:
        ValueError: The model takes no cache.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        rows: Sequence[Row],
        prompt_of: Sequence[int],
        *,
        end_ids: frozenset[int] = frozenset(),
        stopped: Callable[[int, list[int]], bool] | None = None,
    ) -> None:
        self.rows = tuple(rows)
        self.results = [Continuation() for _ in rows]
        self._model = model
        self._end_ids = end_ids
        self._stopped = stopped
        self._step = 0
        self._cache: Any = None
        parameters = inspect.signature(type(model).forward).parameters
        names = [name for name in CACHE if name in parameters]
        if not names:
            raise ValueError("its forward pass takes no cache")
        self._cache_name = names[0]
        longest = max(map(len, prompts))
        # On the left, so that the last column holds the last token of every prompt. Any id serves: the mask hides it.
        self._ids = self._tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        self._mask = self._tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            output = self._generate(1, output_logits=True)
        # Every row chooses its own first token: that of `generate` goes.
        self._ids, self._mask = self._ids[:, :-1], self._mask[:, :-1]
        self.logits = output.logits[0][self._tensor(prompt_of)]
        """Of the first token of each row, (rows, vocabulary), until it is chosen."""
        self._prompt_of = prompt_of
        self._go_on_with(range(len(rows)))

    @property
    def running(self) -> bool:
        """Whether some row takes another token."""
        return bool(self._open())

    def run(self, steps: int | None = None) -> list[Continuation]:
        """Add at most ``steps`` tokens to each row; None decodes all rows to their end."""
        end = self._step + steps if steps else max(row.max_tokens for row in self.rows)
        with torch.inference_mode():
            if not self._step and self.running:
                self._begin()
            while self.running and self._step < end:
                if self._worth_leaving():
                    places = self._open()
                    self._select(places)
                    self._go_on_with([self._active[place] for place in places])
                longest = max(self.rows[row].max_tokens for row in self._active)
                self._generate(
                    min(end, longest) - self._step,
                    logits_processor=transformers.LogitsProcessorList([self._choose]),
                    stopping_criteria=transformers.StoppingCriteriaList([self._interrupt]),
                )
        return self.results

    def _begin(self) -> None:
        """Choose all first tokens, and repeat the prompts for the rows that take another."""
        tokens = self._choose(self._ids, self.logits).argmax(dim=-1, keepdim=True)
        del self.logits  # of all rows and the whole vocabulary
        rows = self._open()
        if rows:
            self._select([self._prompt_of[row] for row in rows])
            self._append(tokens[self._tensor(rows)])
            self._go_on_with(rows)

    def _generate(self, steps: int, **settings: Any) -> Any:
        """Let ``generate`` read what it has not read yet and add at most ``steps`` tokens to every active row."""
        ids, mask = self._ids, self._mask
        # A recurrent state has read the padding, too, and cannot tell how long the prompt was.
        if self._cache is not None and all(getattr(self._cache, "is_linear", [False])):
            ids, mask = ids[:, -1:], None
        output = self._model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=steps,
            do_sample=False,
            return_dict_in_generate=True,
            **{self._cache_name: self._cache},
            **settings,
        )
        self._cache = getattr(output, "cache", None) or output.past_key_values
        self._append(output.sequences[:, ids.shape[1] :])
        return output

    def _append(self, tokens: Tensor) -> None:
        self._ids = torch.cat([self._ids, tokens], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(tokens)], dim=1)

    def _tensor(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(list(values), device=self._model.device)

    # --- the rows of the batch ----------------------------------------------------------------------------------------

    def _open(self) -> list[int]:
        """Places of the rows that take another token."""
        return [place for place, row in enumerate(self._active) if not self.results[row].closed]

    def _worth_leaving(self) -> bool:
        """Whether so many rows have ended that going on without them pays; or all."""
        return len(self._open()) <= WORTH_LEAVING * len(self._active)

    def _interrupt(self, ids: Tensor, _: Tensor) -> Tensor:
        """A stopping criterion: the whole batch stops, so that the rows that have ended can leave it."""
        return torch.full((len(ids),), self._worth_leaving(), device=ids.device)

    def _select(self, places: Sequence[int]) -> None:
        """Keep the sequences at ``places``, repeated as often as they occur there."""
        if list(places) == list(range(len(self._ids))):
            return
        index = self._tensor(places)
        self._cache.reorder_cache(index)
        self._ids, self._mask = self._ids[index], self._mask[index]

    def _go_on_with(self, rows: Sequence[int]) -> None:
        """Make ``rows`` the rows of the batch, and copy their settings to the device."""
        self._active = list(rows)
        device = self._model.device
        # MPS has no float64.
        real = torch.float32 if device.type == "mps" else torch.float64
        sampled = [place for place, row in enumerate(self._active) if self.rows[row].temperature > 0]
        settings = [self.rows[self._active[place]] for place in sampled]
        self._sampled = torch.tensor(sampled, device=device)
        self._temperature = torch.tensor([row.temperature for row in settings], device=device)
        self._top_p = torch.tensor([row.top_p for row in settings], device=device, dtype=real)
        # Padded to a rectangle (steps, rows); a row is closed before it reaches the zeros.
        draws = [row.uniforms for row in settings]
        self._draws = torch.nn.utils.rnn.pad_sequence(draws).to(device, real) if draws else None

    # --- the tokens of a step -----------------------------------------------------------------------------------------

    def _choose(self, _: Tensor, logits: Tensor) -> Tensor:
        """A logits processor: every row's token is the only one with a score; its log-probability is noted."""
        tokens = logits.argmax(dim=-1)
        if self._draws is not None:
            # A row that has ended decodes on until it leaves the batch: its tokens are dropped, so any draw will do.
            draws = self._draws[min(self._step, len(self._draws) - 1)]
            tokens[self._sampled] = choose_tokens(logits[self._sampled], self._temperature, self._top_p, draws)
        for place, row in enumerate(self._active):
            given = self.rows[row].given
            if self._step < len(given):
                tokens[place] = given[self._step]
        chosen = logits.gather(-1, tokens[:, None])
        # From the raw logits: log-probabilities are those of the untempered model. Rounding can exceed 0.
        logprobs = (chosen[:, 0] - torch.logsumexp(logits, dim=-1)).clamp(max=0)
        self._note(tokens.tolist(), logprobs.tolist())
        return torch.zeros_like(logits).scatter_(-1, tokens[:, None], 1.0)

    def _note(self, tokens: list[int], logprobs: list[float]) -> None:
        """Add the tokens of a step to the results, and close the rows that end with it."""
        self._step += 1
        for row, token, logprob in zip(self._active, tokens, logprobs, strict=True):
            result, given = self.results[row], self.rows[row].given
            if result.closed:
                continue
            result.ids.append(token)
            result.logprobs.append(logprob)
            ends = token in self._end_ids and not given
            result.ended = ends or (self._stopped is not None and self._stopped(row, result.ids))
            result.closed = result.ended or len(result.ids) >= self.rows[row].max_tokens
