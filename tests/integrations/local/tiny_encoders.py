"""Tiny encoders with random weights, saved to folders as real ones are."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

LINES = (
    "When did the war end? It ended in 1945, not in 1944.",
    "Which city is the capital of France? Paris is the capital of France and Rome that of Italy.",
    "The quick brown fox jumps over the lazy dog; nobody knows why.",
)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LIMIT = 48
LEAN = {"Bert": 3.0, "DebertaV2": 6.0, "Roberta": 4.0}
"""Added to the last output, "entailment" by default, so that it is the largest for a part of the pairs only."""
LABELS = ("contradiction", "neutral", "entailment")


@functools.cache
def tokenizer() -> Any:
    """A WordPiece tokenizer of the words and characters of a few lines, with BERT's encoding of pairs.

    Not trained: the trainer breaks ties by chance, and other ids mean other verdicts of the same random weights.
    """
    split = pre_tokenizers.BertPreTokenizer()
    words = {word for line in LINES for word, _ in split.pre_tokenize_str(line)}
    letters = sorted({letter for word in words for letter in word})
    pieces = dict.fromkeys([*SPECIALS, *sorted(words), *letters, *(f"##{letter}" for letter in letters)])
    built = Tokenizer(models.WordPiece(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    built.pre_tokenizer = split
    built.decoder = decoders.WordPiece()
    ends = [(token, SPECIALS.index(token)) for token in ("[CLS]", "[SEP]")]
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIALS, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=built, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **names
    )


def save_nli(
    folder: Path,
    labels: Sequence[str] = LABELS,
    family: str = "Bert",
    rows: Sequence[int] | None = None,
    seed: int = 0,
) -> Path:
    """Save a random cross-encoder.

    Args:
        folder: Where to.
        labels: Names of its outputs.
        family: Prefix of its classes in transformers.
        rows: Order of the rows of its head, to make the same model with its labels in another order.
        seed: Of its weights.
    """
    extra: dict[str, Any] = {}
    if family == "DebertaV2":
        extra = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    torch.manual_seed(seed + (family == "Bert"))  # BERT of seed 0 says the same of nearly all pairs
    # The spread of the weights is large, so that verdicts differ from pair to pair.
    config = getattr(transformers, f"{family}Config")(
        **_sizes(), initializer_range=0.6, num_labels=len(labels), **extra
    )
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: place for place, label in enumerate(labels)}
    model = getattr(transformers, f"{family}ForSequenceClassification")(config)
    head = model.classifier.out_proj if family == "Roberta" else model.classifier
    head.bias.data[-1] += LEAN[family]
    if rows is not None:
        for tensor in (head.weight, head.bias):
            tensor.data = tensor.data[list(rows)]
    return _save(model, folder)


def save_embedding(folder: Path, pooling: str = "mean_tokens", seed: int = 0, **settings: Any) -> Path:
    """Save a random sentence encoder in the format of sentence-transformers."""
    torch.manual_seed(seed)
    _save(transformers.BertModel(transformers.BertConfig(**_sizes(), initializer_range=0.6)), folder)
    kinds = ["Transformer", "Pooling", "Normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    (folder / "1_Pooling").mkdir()
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": None, "do_lower_case": False} | settings)
    _write(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 32} | {f"pooling_mode_{mode}": mode == pooling for mode in modes},
    )
    return folder


def _sizes() -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer()),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": LIMIT,
        "pad_token_id": 0,
    }


def _save(model: Any, folder: Path) -> Path:
    model.eval().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
