"""Rows into tensors: right-padded ids, and the positions whose next token is part of the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from examples.tiny_model.training_rows import Row


@dataclass(frozen=True, slots=True)
class Batch:
    """A padded batch.

    Attributes:
        ids: Token ids, rows by positions. Padding is on the right and needs no mask: attention is causal.
        scored: True where the next token belongs to an answer or ends it, rows by positions.
        targets: The next token at the scored positions, flat.
        choice: True where the target belongs to a multiple-choice row, flat.
    """

    ids: torch.Tensor
    scored: torch.Tensor
    targets: torch.Tensor
    choice: torch.Tensor


def make_batches(tokenizer: PreTrainedTokenizerFast, rows: Sequence[Row], parts: int) -> list[Batch]:
    """Render rows with the chat template and tokenize them.

    Args:
        tokenizer: The tokenizer.
        rows: The rows of one step.
        parts: Batches to make; rows of similar length go together, so that little is padded.
    """
    prompts = tokenizer([render_prompt(tokenizer, row.question, row.system) for row in rows]).input_ids
    answers = tokenizer([row.answer for row in rows]).input_ids
    items = [(p, a, row.choice) for p, a, row in zip(prompts, answers, rows, strict=True)]
    items.sort(key=lambda item: len(item[0]) + len(item[1]))
    size = -(-len(items) // parts)
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    return [_batch(items[start : start + size], end) for start in range(0, len(items), size)]


def _batch(items: Sequence[tuple[list[int], list[int], bool]], end: int) -> Batch:
    width = max(len(prompt) + len(answer) for prompt, answer, _ in items) + 1
    ids = torch.full((len(items), width), end)
    scored = torch.zeros((len(items), width), dtype=torch.bool)
    for index, (prompt, answer, _) in enumerate(items):
        sequence = [*prompt, *answer, end]
        ids[index, : len(sequence)] = torch.tensor(sequence)
        scored[index, len(prompt) - 1 : len(sequence) - 1] = True
    choice = torch.tensor([choice for _, _, choice in items])[:, None].expand_as(ids)
    return Batch(ids, scored, ids.roll(-1, dims=1)[scored], choice[scored])


def render_prompt(tokenizer: PreTrainedTokenizerFast, question: str, system: str | None = None) -> str:
    """Return the text up to the point where the assistant starts to answer."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text
