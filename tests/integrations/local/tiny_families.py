"""A tiny random model of every type in transformers' causal-LM mapping, and the table of docs/local-models.md.

    python -m tests.integrations.local.tiny_families

writes the table. It takes some minutes.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from guardrail.errors import UsageError
from integrations._local.self_check import self_check

TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY = 271
CONTEXT = 512
MOST_WEIGHTS = 20_000_000
LAYERS = 4
"""Most layers: one of each kind, so that hybrids keep all their kinds."""

_SIZES: dict[int, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    CONTEXT: "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length max_target_positions "
    "original_max_position_embeddings max_length",
    64: "hidden_size n_embd d_model emb_dim embedding_size word_embed_proj_dim lru_width input_embedding_dim",
    96: "intermediate_size ffn_dim n_inner d_inner dff dim_ff d_ff ffn_hidden_size encoder_ffn_dim decoder_ffn_dim "
    "feed_forward_size expert_ffn_hidden_size moe_intermediate_size shared_expert_intermediate_size "
    "shared_intermediate_size moe_shared_expert_intermediate_size intermediate_size_mlp dense_intermediate_size",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers "
    "num_decoder_layers num_key_value_heads num_kv_heads multi_query_group_num num_experts_per_tok moe_topk moe_k "
    "top_k_experts moe_top_k mamba_n_groups n_groups linear_num_key_heads num_experts_per_token",
    4: "num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads decoder_attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads num_experts num_local_experts n_routed_experts "
    "linear_num_value_heads linear_num_heads mamba_num_heads n_mamba_heads moe_num_experts state_size",
    16: "head_dim d_kv dim_head attention_head_size q_lora_rank kv_lora_rank v_head_dim qk_nope_head_dim "
    "qk_rope_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_state ssm_state_size "
    "global_head_dim kv_channels dim_model sliding_window attention_chunk_size attention_window_size local_window_size "
    "window_size chunk_size mamba_chunk_size adapter_rank o_lora_rank local_attention index_head_dim",
    8: "num_mamba_heads rotary_dim",
    0: "pad_token_id",
    1: "n_group topk_group num_expert_group bos_token_id decoder_start_token_id forced_eos_token_id eos_token_id",
}
SIZES = {name: size for size, names in _SIZES.items() for name in names.split()}

_INDEXER = {"n_heads": 2, "kv_heads": 1, "head_dim": 16, "budget": 8, "compress_ratio": 2}
_BOTH = ["linear_attention", "full_attention"]
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "granitemoehybrid": {"layer_types": _BOTH},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": {"indexer_" + name: value for name, value in _INDEXER.items()},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "moshi": {"sliding_window": CONTEXT},  # beyond it, passes with and without a cache differ in transformers itself
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "roc_bert": {"enable_pronunciation": False, "enable_shape": False},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""Additional settings of a type."""


def tiny_config(kind: Any, **settings: Any) -> Any:
    """The default configuration of a class with small sizes and one layer of each kind."""
    default = kind()
    values = {**default.to_dict(), **vars(default)}
    small: dict[str, Any] = {name: size for name, size in SIZES.items() if values.get(name) is not None}
    small |= {name: value for name, value in _layer_lists(default).items() if name in values}
    small |= {name: tiny_config(type(value)) for name, value in values.items() if isinstance(value, PreTrainedConfig)}
    small |= {"head_dim": 16} if "head_dim" in values else {}
    if values.get("num_key_value_heads") == values.get("num_attention_heads"):
        small["num_key_value_heads"] = small.get("num_attention_heads")
    return kind(**{**small, **SPECIAL.get(kind.model_type, {}), **settings})


def _layer_lists(default: Any) -> dict[str, Any]:
    """Number of layers and lists that name each layer's kind, cut to one layer of each kind."""
    count = getattr(default, "num_hidden_layers", None)
    lists = {
        name: list(value)
        for name, value in vars(default).items()
        if isinstance(value, (list, tuple)) and count and len(value) == count and count > 2
    }
    rows = list(zip(*lists.values(), strict=True))
    first = sorted({row: place for place, row in reversed(list(enumerate(rows)))}.values())[:LAYERS]
    if len(first) < 2:
        return {}
    layers: dict[str, Any] = dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), len(first))
    return layers | {name: [value[place] for place in first] for name, value in lists.items()}


def tiny_family(model_type: str, **settings: Any) -> Any:
    """A random model of a type in evaluation mode.

    Raises:
        ValueError: The type does not become small.
    """
    config = tiny_config(CONFIG_MAPPING[model_type], **settings)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(copy.deepcopy(config)).parameters())
    if size > MOST_WEIGHTS:
        raise ValueError(f"{size / 1e6:.0f}M weights")
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig()  # some types force their first or last token
    return model.eval()


# -- the table ---------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "local-models.md"
MARKS = "<!-- families: python -m tests.integrations.local.tiny_families -->\n", "<!-- end of families -->\n"
IDS = [(37 * place) % (VOCABULARY - 20) + 10 for place in range(16)]
"""Tokens for the check."""
OUTCOMES = {
    "exact": "exact",
    "one request at a time": "one request at a time",
    "one answer at a time": "one answer at a time",
    "no cache": "refused: the forward pass takes no cache",
    "not causal": "refused: a later token changes the probabilities of earlier ones",
    "differ": "refused: the cache leads to other log-probabilities",
    "raises": "refused: the first call raises an error",
    "large": "not measured: no small model",
}
"""First part of a row of the table, by a part of the check's message."""


def outcome(model_type: str) -> str:
    """Result of the check at load for a tiny model of this type: a key of `OUTCOMES`."""
    try:
        model = tiny_family(model_type)
    except Exception:  # configurations are refused in many ways
        return "large"
    try:
        message = str(self_check(model, IDS)).split(":")[0]
    except UsageError as error:
        message = re.sub(".*cannot be served here", "", str(error))
    return next((key for key in OUTCOMES if key in message), "raises")


def table(outcomes: dict[str, str]) -> str:
    """The table: a row for each outcome, with the types that have it. The exact types are counted, not listed."""
    rows = defaultdict(list)
    for model_type, key in outcomes.items():
        rows[key].append(f"`{model_type}`")
    names = {key: ", ".join(types) for key, types in rows.items()} | {"exact": "all others"}
    lines = [f"|{text}|{len(rows[key])}|{names[key]}|" for key, text in OUTCOMES.items() if rows[key]]
    return "\n".join(["|outcome|types| |", "|-|-|-|", *lines, ""])


def documented() -> dict[str, str]:
    """The outcome of each type in the page's table."""
    rows = [line.split("|") for line in PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0].splitlines()[2:]]
    keys = {text: key for key, text in OUTCOMES.items()}
    listed = {name: keys[row[1]] for row in rows for name in re.findall("`(.+?)`", row[3])}
    return dict.fromkeys((name for name in TYPES if name not in listed), "exact") | listed


if __name__ == "__main__":
    rows = table({name: outcome(name) for name in TYPES})
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(before + MARKS[0] + rows + MARKS[1] + rest.partition(MARKS[1])[2])
