"""Log-likelihood of answer options after a prompt, over the cache of the prompt.

The tokens of an option come from the tokenizer *in context*: those of encode(prompt + label) after encode(prompt).
So the template and the tokenizer together decide whether the model writes "A" or " A" after its assistant header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .decoding import CachedPrefix
from .loading import torch

__all__ = ["UnreadableOptionError", "option_ids", "score_options"]

CHUNK_FLOATS = 64_000_000
"""Most logits of multi-token options held at once."""


class UnreadableOptionError(ValueError):
    """An option that the tokenizer cannot express after this prompt."""


def option_ids(
    prompt: str,
    labels: Sequence[str],
    *,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
    unknown: int | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Token ids of each label as the tokenizer continues the prompt with it.

    If the label merges with the end of the prompt, the label is encoded alone, plain and with a leading space. The
    result is the first variant that adds exactly the label (ignoring white space) to the decoded prompt.

    Args:
        prompt: The rendered prompt.
        labels: Option labels.
        encode: Text to ids, no special tokens added.
        decode: Ids to text, special tokens kept.
        unknown: Id of the unknown token, or None.

    Raises:
        UnreadableOptionError: A label has no tokens, or two labels have the same tokens.
    """
    before = encode(prompt)
    label_of: dict[tuple[int, ...], str] = {}
    for label in labels:
        ids = _in_context(prompt, before, label, encode, decode)
        if ids is None or unknown in ids:
            raise UnreadableOptionError(f"option {label!r} cannot be expressed in this model's tokens after the prompt")
        if ids in label_of:
            raise UnreadableOptionError(f"options {label_of[ids]!r} and {label!r} have the same tokens {list(ids)}")
        label_of[ids] = label
    return tuple(label_of)


def _in_context(
    prompt: str,
    before: list[int],
    label: str,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
) -> tuple[int, ...] | None:
    """Ids that continue the prompt with the label, or None if no variant adds exactly the label."""
    together = encode(prompt + label)
    variants = [together[len(before) :]] if together[: len(before)] == before else []
    variants += [encode(label), encode(" " + label)]
    start = decode(before)
    for ids in variants:
        text = decode(before + ids)
        if ids and text.startswith(start) and text[len(start) :].strip() == label.strip():
            return tuple(ids)
    return None


def score_options(
    prefix: CachedPrefix, options: Sequence[tuple[int, Sequence[tuple[int, ...]]]]
) -> list[tuple[tuple[float, ...], ...]]:
    """Log-probability of every token of every option.

    First tokens are read off the prompt's last logits; the others in one batched pass over the expanded cache.

    Args:
        prefix: The prompts, one row each; unchanged.
        options: For each request, its row in ``prefix`` and the ids of its options.

    Returns:
        For each request and option, one value in nats for each token.
    """
    flat = [(row, ids) for row, labels in options for ids in labels]
    if not flat:
        return [() for _ in options]
    with torch.inference_mode():
        first = torch.log_softmax(prefix.logits, dim=-1)
        rows = torch.tensor([row for row, _ in flat], device=first.device)
        heads = torch.tensor([ids[0] for _, ids in flat], device=first.device)
        values = [(value,) for value in first[rows, heads].tolist()]
        for places in _chunks(flat, first.shape[-1]):
            rest = _continue(prefix, [flat[place] for place in places])
            for place, more in zip(places, rest, strict=True):
                values[place] += more
    read = iter(values)
    return [tuple(next(read) for _ in labels) for _, labels in options]


def _chunks(flat: Sequence[tuple[int, tuple[int, ...]]], vocabulary: int) -> list[list[int]]:
    """Places of the options with several tokens, in groups whose logits fit."""
    places = [place for place, (_, ids) in enumerate(flat) if len(ids) > 1]
    longest = max((len(flat[place][1]) for place in places), default=1)
    size = max(1, CHUNK_FLOATS // (longest * vocabulary))
    return [places[start : start + size] for start in range(0, len(places), size)]


def _continue(prefix: CachedPrefix, options: Sequence[tuple[int, tuple[int, ...]]]) -> list[tuple[float, ...]]:
    """Log-probabilities of each option's tokens after its first."""
    branch = prefix.expand([row for row, _ in options], keep=True)
    longest = max(len(ids) for _, ids in options)
    # Padding on the right: causal attention excludes it from every position that is read.
    padded = torch.tensor([list(ids) + [0] * (longest - len(ids)) for _, ids in options], device=prefix.logits.device)
    logprobs = torch.log_softmax(branch.advance(padded[:, :-1], last_only=False), dim=-1)
    values = logprobs.gather(-1, padded[:, 1:, None])[..., 0].tolist()
    return [tuple(values[: len(ids) - 1]) for values, (_, ids) in zip(values, options, strict=True)]
