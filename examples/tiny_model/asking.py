"""Ask the model in batches: greedy answers, samples, and probabilities of option letters. Plain transformers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.tiny_model.batches import render_prompt

LETTERS = "ABCD"
MAX_NEW_TOKENS = 12


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load a model folder in single precision, which is faster than half on a CPU."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(model, LlamaForCausalLM)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return model.eval(), tokenizer


def greedy(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], batch: int = 250
) -> list[str]:
    """Return the greedy answer to each question."""
    answers: list[str] = []
    for inputs, _ in _batches(tokenizer, questions, batch):
        out = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        answers += _decode(tokenizer, out[:, inputs["input_ids"].shape[1] :])
    return answers


def sample(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[str],
    count: int,
    temperature: float,
    top_p: float,
    seed: int,
    batch: int = 100,
) -> list[list[str]]:
    """Return `count` sampled answers to each question.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        questions: User messages.
        count: Samples per question.
        temperature: Sampling temperature.
        top_p: Nucleus kept at each token.
        seed: Seed of torch's global generator.
        batch: Questions per call.
    """
    torch.manual_seed(seed)
    answers: list[list[str]] = []
    for inputs, size in _batches(tokenizer, questions, batch):
        out = model.generate(
            **inputs,
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=0,  # transformers would cut to 50 tokens otherwise
            num_return_sequences=count,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        texts = _decode(tokenizer, out[:, inputs["input_ids"].shape[1] :])
        answers += [texts[index * count : (index + 1) * count] for index in range(size)]
    return answers


def letter_probabilities(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str], batch: int = 250
) -> torch.Tensor:
    """Return the probabilities of the first answer token being A, B, C or D, renormalised: prompts by letters."""
    ids = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in LETTERS]
    rows = []
    for inputs, _ in _batches(tokenizer, prompts, batch):
        with torch.no_grad():
            logits = model(**inputs, logits_to_keep=1).logits[:, -1, ids]
        rows.append(logits.softmax(dim=-1))
    return torch.cat(rows)


def _batches(
    tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], size: int
) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    for start in range(0, len(questions), size):
        prompts = [render_prompt(tokenizer, question) for question in questions[start : start + size]]
        encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        yield {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}, len(prompts)


def _decode(tokenizer: PreTrainedTokenizerFast, ids: torch.Tensor) -> list[str]:
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return [text.strip() for text in texts]
