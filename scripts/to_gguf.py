"""Write the embedded model as a GGUF file, the format that llama.cpp reads. Standard library only.

Weights become 32-bit floats, so that no precision is lost. The tokenizer puts a space before every stretch of text,
which llama.cpp does not; therefore the chat template of the GGUF file adds it. ``tests/peers`` compares token
ids and answers with those of transformers.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["write_gguf"]

MAGIC, VERSION, ALIGNMENT, F32 = b"GGUF", 3, 32, 0
UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens in llama.cpp."""
DIGITS_APART = "starcoder"
"""llama.cpp's name for GPT-2's byte-level splitting with every digit a piece."""
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
SPACED = (
    "{%- macro spaced(text) -%}{%- if text and text[0] != ' ' -%}{{ ' ' }}{%- endif -%}{{ text }}{%- endmacro -%}\n"
)


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    values: array[float]


def write_gguf(folder: Path, path: Path) -> None:
    """Convert a Llama checkpoint with a byte-level BPE tokenizer whose digits stand apart.

    Args:
        folder: config.json, model.safetensors (16-bit floats), tokenizer.json and chat_template.jinja.
        path: The GGUF file; written under another name first, so that it never exists half-written.

    Raises:
        ValueError: The checkpoint is of another kind.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    if config["model_type"] != "llama":
        raise ValueError(f"{folder} holds a {config['model_type']} model; only llama models are converted here")
    fields = {**_architecture(config), **_vocabulary(config, tokenizer)}
    fields["tokenizer.chat_template"] = _text(_template((folder / "chat_template.jinja").read_text("utf-8")))
    tensors = list(_tensors(folder / "model.safetensors", config))
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(fields)))
        file.write(b"".join(_string(key) + value for key, value in fields.items()))
        offset = 0
        for tensor in tensors:
            turned = tensor.shape[::-1]  # GGUF names the fastest dimension first
            file.write(_string(tensor.name) + struct.pack(f"<I{len(turned)}Q", len(turned), *turned))
            file.write(struct.pack("<IQ", F32, offset))
            offset += _padded(4 * len(tensor.values))
        file.write(bytes(_padded(file.tell()) - file.tell()))
        for tensor in tensors:
            file.write(tensor.values.tobytes())
            file.write(bytes(_padded(file.tell()) - file.tell()))
    part.replace(path)


def _architecture(config: dict[str, Any]) -> dict[str, bytes]:
    heads, head = config["num_attention_heads"], config["head_dim"]
    return {
        "general.architecture": _text("llama"),
        "general.name": _text("orrin-1.5m"),
        "general.file_type": _number(F32),
        "llama.context_length": _number(config["max_position_embeddings"]),
        "llama.embedding_length": _number(config["hidden_size"]),
        "llama.block_count": _number(config["num_hidden_layers"]),
        "llama.feed_forward_length": _number(config["intermediate_size"]),
        "llama.attention.head_count": _number(heads),
        "llama.attention.head_count_kv": _number(config["num_key_value_heads"]),
        "llama.attention.key_length": _number(head),
        "llama.attention.value_length": _number(head),
        "llama.rope.dimension_count": _number(head),
        "llama.vocab_size": _number(config["vocab_size"]),
        "llama.rope.freq_base": struct.pack("<If", FLOAT32, config["rope_parameters"]["rope_theta"]),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", FLOAT32, config["rms_norm_eps"]),
    }


def _vocabulary(config: dict[str, Any], tokenizer: dict[str, Any]) -> dict[str, bytes]:
    size = config["vocab_size"]
    tokens = [f"[unused {place}]" for place in range(size)]
    kinds = [UNUSED] * size
    for token, place in tokenizer["model"]["vocab"].items():
        tokens[place], kinds[place] = token, NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {
        "tokenizer.ggml.model": _text("gpt2"),
        "tokenizer.ggml.pre": _text(DIGITS_APART),
        "tokenizer.ggml.tokens": _array(STRING, [_string(token) for token in tokens]),
        "tokenizer.ggml.token_type": _array(INT32, [struct.pack("<i", kind) for kind in kinds]),
        "tokenizer.ggml.merges": _array(STRING, [_string(merge) for merge in merges]),
        "tokenizer.ggml.eos_token_id": _number(config["eos_token_id"]),
        "tokenizer.ggml.padding_token_id": _number(config["pad_token_id"]),
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", BOOL, False),
        "tokenizer.ggml.add_eos_token": struct.pack("<I?", BOOL, False),
    }


def _template(template: str) -> str:
    """Return the chat template with the space that the tokenizer itself would add."""
    text_call = "{{ text(message.content) }}"
    if template.count(text_call) != 1:
        raise ValueError(
            f"the chat template does not write its text once as {text_call}, so no space can be added before it"
        )
    return SPACED + template.replace(text_call, "{{ spaced(text(message.content)) }}")


def _tensors(path: Path, config: dict[str, Any]) -> Iterator[_Tensor]:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F16":
            raise ValueError(f"tensor {name} is {entry['dtype']}; only F16 is converted here")
        start, end = entry["data_offsets"]
        raw = content[8 + length + start : 8 + length + end]
        values = array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = _rotary_order(values, heads, entry["shape"])
        yield _Tensor(_renamed(name), tuple(entry["shape"]), values)


def _renamed(name: str) -> str:
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, _, layer, *middle, last = name.split(".")
    return f"blk.{layer}.{INSIDE['.'.join(middle)]}.{last}"


def _rotary_order(values: array[float], heads: int, shape: list[int]) -> array[float]:
    """Reorder the rows of each head: transformers rotates row i with i + half, llama.cpp row 2 i with 2 i + 1."""
    rows, width = shape
    half = rows // heads // 2
    turned: array[float] = array("f")
    for head in range(heads):
        for pair in range(half):
            for part in (0, 1):
                row = (head * 2 + part) * half + pair
                turned += values[row * width : (row + 1) * width]
    return turned


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text(text: str) -> bytes:
    return struct.pack("<I", STRING) + _string(text)


def _number(value: int) -> bytes:
    return struct.pack("<II", UINT32, value)


def _array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)
