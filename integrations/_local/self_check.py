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
from .forward import takes_cache
from .loading import Tensor, torch
from .options import score_options

__all__ = ["Support", "self_check"]

TOLERANCES = {torch.float16: 0.1, torch.bfloat16: 0.2}
"""Differences that rounding can cause in half precision, in standard deviations of the log-probabilities."""
TOLERANCE = 1e-3
"""The same for other dtypes."""
IMPOSSIBLE = 100.0
"""Tokens so many nats below the likeliest do not count for the standard deviation."""


@dataclass(frozen=True)
class Support:
    """The operations that a model does exactly."""

    batches: bool = True
    """Whether prompts of different lengths can share a batch."""
    options: bool = True
    """Whether options of several tokens can be scored."""
    reason: str = ""
    """Fault that rules out the others, or ""."""

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
    if not takes_cache(model):
        raise _refusal(model, "its forward pass takes no cache")
    text = list(itertools.islice(itertools.cycle(ids), 15))
    prompts, tail = [text[:4], text[4:12]], text[12:]
    try:
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        tails = [tail, [(token + 1) % vocabulary for token in tail]]
        # Read in one pass, padded on the right to equal lengths: later tokens do not matter to a causal model.
        values = _whole(model, [prompt + tail + text[len(prompt) + 3 : 11] for prompt in prompts for tail in tails])
        whole = [values[:2, :7], values[2:]]
    except Exception as error:  # a model can raise anything
        raise _refusal(model, f"its forward pass raises {type(error).__name__}: {error}") from error
    if not values.isfinite().all():
        raise _refusal(model, "its log-probabilities are not finite")
    half = TOLERANCES.get(model.dtype, 0.0)
    likely = whole[0][0]  # models that hide tokens give them -3e38, which would make the deviation huge
    spread = float(likely[likely > likely.max() - IMPOSSIBLE].std())
    # A model that looks ahead does so everywhere; the passes have one shape, so rounding moves few positions or none.
    moved = [
        (first - second)[: len(prompt)].abs().amax(-1).min()
        for prompt, (first, second) in zip(prompts, whole, strict=True)
    ]
    if max(moved) > (half / 20 or TOLERANCE) * spread:
        raise _refusal(model, "it is not causal: a later token changes the probabilities of earlier ones")
    faults = []
    for options, batches in itertools.product((True, False), repeat=2):
        try:
            apart = [
                # Rounding sends a token of a mixture of experts elsewhere now and then: a row's second largest counts.
                float(steps.sort(dim=-1).values[:, -2 if half else -1].max())
                for rows in ([slice(2)] if batches else [slice(1), slice(1, 2)])
                for steps in _differences(model, prompts[rows], tails, whole[rows], options)
            ]
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")
        else:
            if all(value <= (half or TOLERANCE) * spread for value in apart):  # NaN is not
                return Support(batches, options, faults[0] if faults else "")
            faults.append(f"log-probabilities differ from those of whole forward passes (by {max(apart):.2g} nats)")
    raise _refusal(model, faults[-1])


def _whole(model: Any, texts: list[list[int]]) -> Tensor:
    """Log-probabilities (texts, tokens, vocabulary) after each token of texts of one length, without a cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor(texts, device=model.device), use_cache=False).logits
        return torch.log_softmax(logits[:, -len(texts[0]) :].float(), dim=-1)  # prompt tuning adds tokens in front


def _differences(
    model: Any, prompts: list[list[int]], tails: list[list[int]], whole: list[Tensor], options: bool
) -> Iterator[Tensor]:
    """Differences (rows, steps) in nats of log-probabilities after the prompts in one batch from the expected ones."""
    after = [values[len(prompt) - 1 :] for prompt, pair in zip(prompts, whole, strict=True) for values in pair]
    prefix = prefill(model, prompts)
    if options:
        labels = [tuple(tails[0]), tuple(tails[1][:-1])]  # of two lengths: padding on the right
        scores = score_options(prefix, [(row, labels) for row in range(len(prompts))])
        for score, ids, values in zip(itertools.chain(*scores), labels * len(prompts), after, strict=True):
            yield (torch.tensor([score]) - values[range(len(ids)), list(ids)].cpu()).abs()
    branch = prefix.expand([row for row in range(len(prompts)) for _ in tails], room=len(tails[0]))
    read = torch.tensor(tails * len(prompts), device=branch.logits.device)
    steps = torch.stack([branch.logits, *(branch.advance(column[:, None]) for column in read.T[:2])], dim=1)
    yield (torch.log_softmax(steps, dim=-1) - torch.stack(after)[:, :3]).abs().amax(-1)


def _refusal(model: Any, reason: str) -> UsageError:
    return UsageError(
        f"models of type {model.config.model_type!r} ({type(model).__name__}) cannot be served here: {reason}. "
        "Serve the model with an inference server and use guardrail's endpoint models, or choose another model."
    )
