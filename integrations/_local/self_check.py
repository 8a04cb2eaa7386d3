"""The check of a model at load: this package's own path against forward passes without a cache.

``transformers`` has almost two hundred types of causal language models. Some ignore the cache that they are given, read
padding as text, or look ahead, and none of them says so: their answers are fluent and belong to another prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from guardrail.errors import UsageError

from .decoding import prefill
from .loading import Tensor, torch
from .options import score_options

__all__ = ["Support", "self_check"]

TOLERANCES = {torch.float16: 0.1, torch.bfloat16: 0.2}
"""Differences that rounding can cause, as shares of the standard deviation of the log-probabilities; 0.001 for others."""


@dataclass(frozen=True)
class Support:
    """What a model does exactly."""

    batches: bool = True
    """Whether prompts of different lengths can share a batch."""
    options: bool = True
    """Whether options of several tokens can be scored."""
    reason: str = ""
    """What goes wrong otherwise, or ""."""

    def __str__(self) -> str:
        lacks = [] if self.batches else ["one request at a time"]
        lacks += [] if self.options else ["no options of several tokens"]
        return f"{', '.join(lacks)}: {self.reason}" if lacks else "exact"


def self_check(model: Any, ids: Sequence[int]) -> Support:
    """Compare log-probabilities over the cache, with padding and after options, with those of whole forward passes.

    Args:
        model: A causal language model in evaluation mode.
        ids: Tokens of a text, which are read.

    Raises:
        UsageError: The model is not causal, its numbers are not finite, or its cache does not lead to the same numbers.
    """
    text = list(itertools.islice(itertools.cycle(ids), 15))
    prompts, tail = [text[:4], text[4:12]], text[12:]
    try:
        whole = [[_whole(model, prompt + tail)] for prompt in prompts]
        other = [(token + 1) % whole[0][0].shape[-1] for token in tail]
        for prompt, values in zip(prompts, whole, strict=True):
            values.append(_whole(model, prompt + other))
    except Exception as error:  # a model can raise anything
        raise _refusal(model, f"its forward pass raises {type(error).__name__}: {error}") from error
    if not all(values.isfinite().all() for pair in whole for values in pair):
        raise _refusal(model, "its log-probabilities are not finite")
    limit = TOLERANCES.get(model.dtype, 1e-3) * float(whole[0][0].std())
    if any(
        _apart(*(values[: len(prompt)] for values in pair)) > limit for prompt, pair in zip(prompts, whole, strict=True)
    ):
        raise _refusal(model, "it is not causal: a later token changes the probabilities of earlier ones")
    tails, faults = [tail, other], []
    for options, batches in itertools.product((True, False), repeat=2):
        try:
            apart = [
                _apart(*pair)
                for rows in ([slice(2)] if batches else [slice(1), slice(1, 2)])
                for pair in _pairs(model, prompts[rows], tails, whole[rows], options)
            ]
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")
        else:
            if all(value <= limit for value in apart):  # NaN is not
                return Support(batches, options, faults[0] if faults else "")
            faults.append(f"log-probabilities differ from those of whole forward passes (by {max(apart):.2g} nats)")
    raise _refusal(model, faults[-1])


def _whole(model: Any, ids: list[int]) -> Tensor:
    """Log-probabilities (tokens, vocabulary) after each token, without a cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
        return torch.log_softmax(logits[0, -len(ids) :].float(), dim=-1)  # prompt tuning adds tokens in front


def _pairs(
    model: Any, prompts: list[list[int]], tails: list[list[int]], whole: list[list[Tensor]], options: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Log-probabilities after the prompts in one batch, and the expected ones."""
    after = [[values[len(prompt) - 1 :] for values in pair] for prompt, pair in zip(prompts, whole, strict=True)]
    prefix = prefill(model, prompts)
    if options:
        labels = [tuple(tails[0]), tuple(tails[1][:-1])]  # of two lengths: padding on the right
        for values, scores in zip(
            after, score_options(prefix, [(row, labels) for row in range(len(prompts))]), strict=True
        ):
            for ids, score, expected in zip(labels, scores, values, strict=True):
                yield torch.tensor(score), expected[range(len(ids)), list(ids)].cpu()
    branch = prefix.expand([row for row in range(len(prompts)) for _ in tails], room=len(tails[0]))
    read = torch.tensor(tails * len(prompts), device=branch.logits.device)
    steps = [branch.logits, *(branch.advance(column[:, None]) for column in read.T)]
    yield torch.log_softmax(torch.stack(steps, dim=1), dim=-1), torch.stack([one for pair in after for one in pair])


def _apart(found: Tensor, expected: Tensor) -> float:
    """Largest difference in nats."""
    return float((found - expected).abs().max())


def _refusal(model: Any, reason: str) -> UsageError:
    return UsageError(
        f"models of type {model.config.model_type!r} ({type(model).__name__}) cannot be served here: {reason}. "
        "Serve the model with an inference server and use guardrail's endpoint models, or choose another model."
    )
