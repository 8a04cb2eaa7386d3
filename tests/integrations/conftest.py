"""Tiny random-weight models of several families and a byte-level tokenizer, all built here."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from integrations.transformers_chat import TransformersChat

torch.set_num_threads(1)  # tiny matrices: a second thread only waits

TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


@functools.cache
def byte_tokenizer() -> Any:
    """256 bytes, a few merges, and six special tokens: 271 ids. An emoji takes four tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(alphabet)}
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "A"),
        ("Ġ", "B"),
        ("y", "e"),
        ("ye", "s"),
        ("n", "o"),
        ("a", "n"),
        ("an", "d"),
    ]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", additional_special_tokens=SPECIALS[2:]
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3Text", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
}


def tiny_model(family: str = "llama") -> Any:
    """A random model of a family, built once."""
    return _build(family)


@functools.cache
def _build(family: str) -> Any:
    prefix, extra = FAMILIES[family]
    config_class = getattr(transformers, "Gemma3TextConfig" if family == "gemma3" else f"{prefix}Config")
    model_class = getattr(transformers, "Gemma3ForCausalLM" if family == "gemma3" else f"{prefix}ForCausalLM")
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    # The spread of the weights is large, so that answers differ from each other.
    config = config_class(vocab_size=len(tokenizer), initializer_range=0.25, **{**COMMON, **extra, **ids})
    return model_class(config).eval()


def tiny_chat(family: str = "llama", **settings: Any) -> TransformersChat:
    """A chat model around a tiny random model with a context window of 256 tokens."""
    settings.setdefault("max_tokens", 16)
    return TransformersChat.from_model(tiny_model(family), byte_tokenizer(), name=f"tiny-{family}", **settings)


@pytest.fixture
def chat() -> TransformersChat:
    """The default tiny chat model."""
    return tiny_chat()
