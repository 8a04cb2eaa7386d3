"""What pins a local model: a hash over everything that decides what it answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ._loading import LocalModel
from ._torch import torch

__all__ = ["revision_of"]

WEIGHTS = (".safetensors", ".bin")
OTHERS = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
    }
)

INCIDENTAL = frozenset({"_name_or_path", "architectures", "dtype", "transformers_version"})
"""Entries of a config that saving or loading changes, but not the model."""

_hashes: dict[tuple[str, int, int], str] = {}


def revision_of(local: LocalModel) -> str:
    """The hub commit, or "sha256:..." of weights, configuration, tokenizer and chat template.

    A folder is hashed by its files, so renaming it changes nothing; a model that exists in memory only, by its tensors.
    """
    if local.commit:
        return local.commit
    parts = _folder_parts(local.folder) if local.folder else _memory_parts(local.model, local.tokenizer)
    parts["chat template"] = hashlib.sha256(
        json.dumps(local.chat_template or local.tokenizer.chat_template).encode()
    ).hexdigest()
    return "sha256:" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _folder_parts(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.name in OTHERS or path.suffix in WEIGHTS]
    return {path.relative_to(folder).as_posix(): _file_hash(path) for path in files}


def _file_hash(path: Path) -> str:
    """Hash of a file, remembered while its size and modification time stay the same."""
    status = path.stat()
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _hashes:
        with path.open("rb") as file:
            _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[key]


def _memory_parts(model: Any, tokenizer: Any) -> dict[str, str]:
    settings = {name: value for name, value in model.config.to_dict().items() if name not in INCIDENTAL}
    parts = {"config": hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    parts["tokenizer"] = hashlib.sha256(text.encode()).hexdigest()
    for name, tensor in model.state_dict().items():
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        parts[f"{name} {tuple(tensor.shape)} {tensor.dtype}"] = hashlib.sha256(raw).hexdigest()
    return parts
