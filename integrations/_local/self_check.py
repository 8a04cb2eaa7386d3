"""The check of a model at load: the path that serves requests against forward passes without a cache.

``transformers`` has almost two hundred types of causal language models. Some ignore the cache that they are given, read
padding as text, or look ahead, and none of them says so: their answers are fluent and belong to another prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from guardrail.errors import UsageError

from .decoding import Decoder, Row, plain
from .loading import Tensor, torch

TOLERANCES = {torch.float16: 0.1, torch.bfloat16: 0.2}
"""Differences that rounding can cause in half precision, in standard deviations of the log-probabilities."""
TOLERANCE = 1e-3
"""The same for other dtypes."""
IMPOSSIBLE = 100.0
"""Tokens so many nats below the likeliest do not count for the standard deviation."""


@dataclass(frozen=True)
class Support:
    """The rows that can share a batch of a model, so that its numbers stay exact."""

    batches: bool = True
    """Whether prompts of different lengths can."""
    answers: bool = True
    """Whether the answers to one prompt can, after it was read once."""
    reason: str = ""
    """Fault that rules out the others, or ""."""

    def __str__(self) -> str:
        if self.batches:
            return "exact"
        return f"one {'request' if self.answers else 'answer'} at a time: {self.reason}"


SUPPORTED = (Support(), Support(batches=False), Support(batches=False, answers=False))


def self_check(model: Any, ids: Sequence[int]) -> Support:
    """Compare log-probabilities of the path that serves requests with those of whole forward passes.

    Args:
        model: A causal language model in evaluation mode.
        ids: Tokens of a text, which are read.

    Raises:
        UsageError: The model is not causal, its numbers are not finite, or its cache does not lead to the same numbers.
    """
    text = list(itertools.islice(itertools.cycle(ids), 16))
    prompts, tail = [text[:4], text[4:12]], text[12:]
    try:
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        # Of two lengths, so that a row leaves the batch.
        tails = [tail, [(token + 1) % vocabulary for token in tail[1:]]]
        rows = [(prompt, ids) for prompt in prompts for ids in tails]
        # Read in one pass, padded on the right to equal lengths: later tokens do not matter to a causal model.
        whole = _whole(model, [(prompt + ids + text)[:12] for prompt, ids in rows])
    except Exception as error:  # a model can raise anything
        raise _refusal(model, f"its forward pass raises {type(error).__name__}: {error}") from error
    if not whole.isfinite().all():
        raise _refusal(model, "its log-probabilities are not finite")
    half = TOLERANCES.get(model.dtype, 0.0)
    likely = whole[0, 0]  # models that hide tokens give them -3e38, which would make the deviation huge
    spread = float(likely[likely > likely.max() - IMPOSSIBLE].std())
    # A model that looks ahead does so everywhere; the passes have one shape, so rounding moves few positions or none.
    moved = [(whole[row] - whole[row + 1])[: len(rows[row][0])].abs().amax(-1).min() for row in (0, 2)]
    if max(moved) > (half / 20 or TOLERANCE) * spread:
        raise _refusal(model, "it is not causal: a later token changes the probabilities of earlier ones")
    faults = []
    for support in SUPPORTED:
        size = len(rows) if support.batches else 2 if support.answers else 1
        try:
            apart = [
                # Rounding sends a token of a mixture of experts elsewhere now and then: a row's second largest counts.
                float(steps.sort().values[-2 if half else -1])
                for start in range(0, len(rows), size)
                for steps in _differences(model, rows[start : start + size], whole[start : start + size])
            ]
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")
        else:
            if all(value <= (half or TOLERANCE) * spread for value in apart):  # NaN is not
                return replace(support, reason=faults[0] if faults else "")
            faults.append(f"log-probabilities differ from those of whole forward passes (by {max(apart):.2g} nats)")
    raise _refusal(model, faults[-1])


def _whole(model: Any, texts: list[list[int]]) -> Tensor:
    """Log-probabilities (texts, tokens, vocabulary) after each token of texts of one length, without a cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor(texts, device=model.device), use_cache=False).logits
        return torch.log_softmax(logits[:, -len(texts[0]) :].float(), dim=-1)  # prompt tuning adds tokens in front


def _differences(model: Any, rows: Sequence[tuple[list[int], list[int]]], whole: Tensor) -> list[Tensor]:
    """Differences in nats between rows (prompt and tokens after it) in one batch and whole passes.

    For each row one number for each of its tokens: of the first, the largest over the vocabulary; of the others, of
    the log-probability of the token alone.
    """
    prompts = [list(prompt) for prompt, _ in itertools.groupby(prompt for prompt, _ in rows)]
    fixed_rows = [Row(len(ids), given=tuple(ids)) for _, ids in rows]
    decoder = Decoder(plain(model), prompts, fixed_rows, [prompts.index(prompt) for prompt, _ in rows])
    first = torch.log_softmax(decoder.logits, dim=-1)
    differences = []
    for (prompt, ids), result, start, expected in zip(rows, decoder.run(), first, whole, strict=True):
        after = expected[len(prompt) - 1 :]
        later = after[range(1, len(ids)), ids[1:]] - torch.tensor(result.logprobs[1:], device=after.device)
        differences.append(torch.cat([(after[0] - start).abs().amax()[None], later.abs()]))
    return differences


def _refusal(model: Any, reason: str) -> UsageError:
    return UsageError(
        f"models of type {model.config.model_type!r} ({type(model).__name__}) cannot be served here: {reason}. "
        "Serve the model with an inference server and use guardrail's endpoint models, or choose another model."
    )
