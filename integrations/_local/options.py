"""The tokens of answer options after a prompt.

They come from the tokenizer *in context*: those of encode(prompt + label) after encode(prompt). So the template and the
tokenizer together decide whether the model writes "A" or " A" after its assistant header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["UnreadableOptionError", "option_ids"]


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
