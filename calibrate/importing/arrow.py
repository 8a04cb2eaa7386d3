"""Parquet files, and folders of Hugging Face `datasets`, through pyarrow (the extra "data"); `datasets` is not needed.

A folder is either what ``Dataset.save_to_disk`` wrote (``state.json`` and Arrow stream files), what
``DatasetDict.save_to_disk`` wrote (``dataset_dict.json`` and one such folder a split), or a folder of Parquet files as
on the hub. Splits are never mixed: calibrating on training questions of the model is a mistake that must be asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from guardrail.errors import RecordError, UsageError, require

from ..datasets import Row

__all__ = ["folder_rows", "parquet_rows"]

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def parquet_rows(path: Path) -> Iterator[Row]:
    """Rows of one Parquet file.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        RecordError: The file is no Parquet file.
    """
    parquet = require("pyarrow.parquet", extra="data")
    lib = require("pyarrow.lib", extra="data")
    try:
        file = parquet.ParquetFile(path)
    except (lib.ArrowInvalid, OSError) as error:
        raise RecordError(
            f"{path}: not a Parquet file ({error}). Is it a Git LFS pointer? Download it again."
        ) from error
    return _rows(path, (batch.to_pylist() for batch in file.iter_batches()))


def folder_rows(path: Path) -> Iterator[Row]:
    """Rows of a dataset folder.

    Raises:
        UsageError: Several splits, or no dataset there.
        MissingDependencyError: pyarrow is not installed.
        RecordError: A file cannot be read.
    """
    if (path / "dataset_dict.json").is_file():
        splits = _json(path / "dataset_dict.json").get("splits") or []
        return folder_rows(path / _only(path, splits))
    if (path / "state.json").is_file():
        return _saved(path)
    shards = sorted(path.rglob("*.parquet"))
    if not shards:
        raise UsageError(
            f"{path} holds no dataset: no state.json, dataset_dict.json or *.parquet. Give the folder that "
            "`save_to_disk` wrote, or one with Parquet files."
        )
    names = sorted({_SHARD.sub("", shard.relative_to(path).with_suffix("").as_posix()) for shard in shards})
    if len(names) > 1:
        raise UsageError(f"{path} holds several splits ({', '.join(names)}). Give the Parquet file of one of them.")
    return (row for shard in shards for row in parquet_rows(shard))


def _only(path: Path, splits: Sequence[str]) -> str:
    if len(splits) != 1:
        raise UsageError(f"{path} holds splits {', '.join(splits) or 'none'}. Give the folder of one, e.g. {path}/test")
    return splits[0]


def _saved(path: Path) -> Iterator[Row]:
    """Rows of a folder that `save_to_disk` wrote, in the order its state file lists."""
    state = _json(path / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UsageError(f"{path} stores a selection of rows. Save it again after `dataset.flatten_indices()`.")
    names = [str(entry["filename"]) for entry in state.get("_data_files") or []]
    if not names:
        raise UsageError(f"{path}/state.json lists no data file. Save the dataset again with `save_to_disk`.")
    return (row for name in names for row in _stream(path / name))


def _stream(path: Path) -> Iterator[Row]:
    ipc = require("pyarrow.ipc", extra="data")
    lib = require("pyarrow.lib", extra="data")
    try:
        with path.open("rb") as stream, ipc.open_stream(stream) as reader:
            batches = [batch.to_pylist() for batch in reader]
    except (lib.ArrowInvalid, OSError) as error:
        raise RecordError(
            f"{path}: not an Arrow stream ({error}). Save the dataset again, or copy it again."
        ) from error
    return _rows(path, iter(batches))


def _rows(path: Path, batches: Iterator[list[dict[str, Any]]]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for values in batch:
            number += 1
            yield Row(f"{path}:{number}", values)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecordError(f"{path}: not JSON: {error}. Save the dataset again.") from error
    if not isinstance(found, dict):
        raise RecordError(f"{path}: got {type(found).__name__}; it must be a JSON object. Save the dataset again.")
    return found
