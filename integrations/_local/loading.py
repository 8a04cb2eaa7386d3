"""Loading a causal language model and its tokenizer from a folder or the hub, and the hash that pins them.

Only this module imports torch and transformers. If they are missing, the error names the extra that installs them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from guardrail.errors import UsageError, require
from guardrail.plain_json import canonical_json, sha256_hex

torch: Any = require("torch", extra="local")
transformers: Any = require("transformers", extra="local")

Tensor: TypeAlias = Any
"""A ``torch.Tensor``; torch is optional and therefore untyped here."""
log = logging.getLogger("guardrail")

NO_LIMIT = 1_000_000_000
"""Tokenizers without a limit state 1e30."""


@dataclass(frozen=True)
class LocalModel:
    """A model, its tokenizer, and the facts about them that decoding needs."""

    model: Any
    tokenizer: Any
    name: str
    """Base name of the folder or GGUF file, or hub id."""
    files: Path | None
    """Folder of its files, or its GGUF file, if it is known."""
    commit: str | None
    """Hub commit, for a hub id."""
    end_ids: frozenset[int]
    """Tokens that end an answer."""
    hidden_ids: frozenset[int]
    """Tokens that are not part of an answer's text: special and end tokens, and those that the tokenizer lacks."""
    context: int | None
    """Context window in tokens."""
    chat_template: str | None = None
    """Replaces the tokenizer's own chat template."""


def load(name: str, *, revision: str | None, device: str, dtype: str, chat_template: str | None) -> LocalModel:
    """Load a model for inference; see the fields of `TransformersChat`. GGUF weights are unpacked to ``dtype``.

    Raises:
        UsageError: The folder or model does not exist, or files are missing; the message names them.
    """
    files = on_disk(name)
    source = str(files or name)
    options = {"revision": revision or "main"}
    if files is not None and files.is_file():
        source = str(files.parent)
        options["gguf_file"] = files.name
    on_device = device_of(device)
    tokenizer, model = pretrained("AutoModelForCausalLM", name, source, dtype=_dtype(dtype, on_device), **options)
    commit = None if files else getattr(model.config, "_commit_hash", None)
    label = files.name if files else name
    return wrap(model.to(on_device), tokenizer, name=label, files=files, commit=commit, chat_template=chat_template)


def wrap(
    model: Any,
    tokenizer: Any,
    *,
    name: str,
    files: Path | None = None,
    commit: str | None = None,
    chat_template: str | None = None,
) -> LocalModel:
    """Describe a model in memory and put it in evaluation mode.

    Raises:
        UsageError: The model has no chat template.
    """
    if not (chat_template or getattr(tokenizer, "chat_template", None)):
        raise UsageError(
            f"model {name!r} has no chat template, so messages cannot be turned into its prompt. "
            "Use an instruction-tuned model, or pass chat_template=."
        )
    model = getattr(model, "_orig_mod", model)  # of torch.compile, which would compile again for each batch shape
    ignored = _ignored_settings(model)
    if ignored:
        log.warning("model %r: its generation_config sets %s, which is not applied.", name, ignored)
    end_ids = _end_ids(model, tokenizer)
    return LocalModel(
        model=model.eval(),
        tokenizer=tokenizer,
        name=name,
        files=files,
        commit=commit,
        end_ids=end_ids,
        hidden_ids=end_ids | special_ids(tokenizer) | _spare_ids(model, tokenizer),
        context=_context(model.config, tokenizer),
        chat_template=chat_template,
    )


def on_disk(name: str) -> Path | None:
    """Folder or GGUF file of a model; None for a hub id.

    Raises:
        UsageError: The name is a path, and nothing is there.
    """
    where = Path(name).expanduser()
    if where.exists():
        return where.resolve()
    if where.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or where.suffix.lower() == ".gguf":
        raise UsageError(f"model {name!r} does not exist: it must be a folder, a GGUF file or a hub id")
    return None


def pretrained(auto_class: str, name: str, source: str, *, dtype: Any, **options: Any) -> tuple[Any, Any]:
    """Tokenizer and model of a folder or hub id, which the user wrote as ``name``. Remote code is never run.

    Raises:
        UsageError: transformers cannot read it; the message has its reason.
    """
    options["trust_remote_code"] = False
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
        return tokenizer, getattr(transformers, auto_class).from_pretrained(source, dtype=dtype, **options)
    except (OSError, ValueError, KeyError, ImportError, struct.error) as error:  # the last of a GGUF file cut short
        raise UsageError(f"cannot load model {name!r}: {error}") from error


def device_of(device: str) -> Any:
    """The torch device of a setting; "auto" is a GPU if the machine has one."""
    if device != "auto":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _dtype(dtype: str, device: Any) -> Any:
    """The torch dtype of a setting. "auto" is float32 on a CPU, because half precision rounds."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    value = getattr(torch, dtype, None)
    if not isinstance(value, torch.dtype):
        raise UsageError(f"dtype must be 'auto' or the name of a torch dtype such as 'bfloat16', got {dtype!r}")
    return value


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """All end tokens of generation config, config and tokenizer: fine-tuned models often lack some of them."""
    ids: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            ids.update([value] if isinstance(value, int) else value)
    return frozenset(ids)


APPLIED = (
    {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "use_cache"}
    | {"do_sample", "temperature", "top_k", "top_p", "num_beams", "num_return_sequences"}
    | {"max_length", "max_new_tokens"}
    | {"return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states"}
)
"""Settings of a generation config that each call has anyway, or that say nothing about the distribution."""
NEUTRAL_AT_ONE = frozenset(
    {"repetition_penalty", "encoder_repetition_penalty", "typical_p", "guidance_scale"}
    | {"length_penalty", "num_beam_groups"}
)
"""Settings that change nothing at 1. Others do: ``no_repeat_ngram_size``, say, or a switch, whose ``True`` equals 1."""


def _ignored_settings(model: Any) -> str:
    """Names and values of all other settings that a model's generation config has switched on, or ""."""
    config = getattr(model, "generation_config", None)
    values = sorted(config.to_diff_dict().items()) if config is not None else []
    others = [(name, value) for name, value in values if name not in APPLIED and not name.startswith("_")]
    ignored = [(name, value) for name, value in others if value and not (value == 1 and name in NEUTRAL_AT_ONE)]
    return ", ".join(f"{name}={value!r}" for name, value in ignored)


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of all special tokens: ``all_special_ids`` of most tokenizers has only those with a role, such as padding."""
    try:
        added = tokenizer.added_tokens_decoder
    except NotImplementedError:  # MistralCommonBackend, whose all_special_ids is complete
        added = {}
    return frozenset(tokenizer.all_special_ids) | {number for number, token in added.items() if token.special}


def _spare_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that the model can write but the tokenizer does not know: many vocabularies are rounded up."""
    size = getattr(model.config.get_text_config(decoder=True), "vocab_size", None) or 0
    return frozenset(range(size)).difference(tokenizer.get_vocab().values())


def _context(config: Any, tokenizer: Any) -> int | None:
    """Context window of the model's config, or the tokenizer's if the config has none."""
    text = config.get_text_config(decoder=True)
    limits = (getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions", "max_seq_len"))
    limit = next(filter(None, limits), None) or getattr(tokenizer, "model_max_length", None)
    return int(limit) if limit and limit < NO_LIMIT else None


# -- the revision: a hash over everything that decides what a model answers --------------------------------------------

WEIGHTS = (".safetensors", ".bin")
OTHERS = frozenset(
    {"config.json", "generation_config.json", "chat_template.json", "chat_template.jinja"}
    | {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
    | {"vocab.json", "vocab.txt", "merges.txt"}
)
"""Names of the other files that decide what a model answers."""

INCIDENTAL = frozenset({"_name_or_path", "architectures", "dtype", "transformers_version"})
"""Entries of a config that saving or loading changes although the model stays the same."""

_hashes: dict[tuple[str, int, int], str] = {}


def revision_of(local: LocalModel) -> str:
    """The hub commit, or "sha256:..." of weights, configuration, tokenizer and chat template; and the dtype.

    A chat template that replaces the one of the commit follows with its hash. The hash of a folder or GGUF file covers
    its content, so renaming it changes nothing; that of a model in memory covers its tensors.
    """
    dtype = str(local.model.dtype).removeprefix("torch.")
    own = getattr(local.tokenizer, "chat_template", None)
    template = own if local.chat_template is None else local.chat_template
    template_hash = sha256_hex(json.dumps(template))
    if local.commit:
        changes = [] if dtype == "float32" else [dtype]
        changes += [] if template == own else [f"chat_template={template_hash}"]
        return " ".join([local.commit, *changes])
    parts = file_parts(local.files) if local.files else _memory_parts(local.model, local.tokenizer)
    # The same file rounded to another dtype gives other answers. Tensors in memory are hashed with theirs.
    if local.files and dtype != "float32":
        parts["dtype"] = dtype
    parts["chat template"] = template_hash
    return digest(parts)


def file_parts(files: Path, names: frozenset[str] = OTHERS) -> dict[str, str]:
    """Hashes of a GGUF file, or of the weights of a folder and its files of these names."""
    if files.is_file():
        return {"weights": _file_hash(files)}
    read = [path for path in files.rglob("*") if path.name in names or path.suffix in WEIGHTS]
    return {path.relative_to(files).as_posix(): _file_hash(path) for path in read}


def digest(parts: dict[str, str]) -> str:
    """The revision of a model whose parts have these hashes."""
    return "sha256:" + sha256_hex(canonical_json(parts, compact=False, ascii_only=True))


def _file_hash(path: Path) -> str:
    """Hash of a file, cached while its size and modification time stay the same."""
    status = path.stat()
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _hashes:
        with path.open("rb") as file:
            _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[key]


def _memory_parts(model: Any, tokenizer: Any) -> dict[str, str]:
    settings = {name: value for name, value in model.config.to_dict().items() if name not in INCIDENTAL}
    parts = {"config": sha256_hex(canonical_json(settings, compact=False, ascii_only=True, default=str))}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts["tokenizer"] = sha256_hex(backend.to_str())
    else:
        parts["tokenizer"] = sha256_hex(canonical_json(tokenizer.get_vocab(), compact=False, ascii_only=True))
    for name, tensor in model.state_dict().items():
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        parts[f"{name} {tuple(tensor.shape)} {tensor.dtype}"] = hashlib.sha256(raw).hexdigest()
    return parts
