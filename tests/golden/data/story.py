"""Stories for golden files: what was asked for, in words, and below it what came of it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from guardrail.errors import GuardrailError
from tests.golden.shown import same


def plain(value: Any) -> Any:
    """A value as JSON has it, without defaults of models; numbers to six digits."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_defaults=True))
    if is_dataclass(value) and not isinstance(value, type):
        return plain({name: getattr(value, name) for name in public_fields(value)})
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") + 0.0 if value == value and abs(value) != float("inf") else str(value)
    if inspect.isfunction(value):
        return value.__name__
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def public_fields(value: Any) -> list[str]:
    """Names of the fields of a dataclass that are public."""
    return [name for name in value.__dataclass_fields__ if not name.startswith("_")]


def spelled(value: Any) -> str:
    """A value on one line."""
    return json.dumps(plain(value), ensure_ascii=False)


def without_versions(text: str) -> str:
    """A message without the words of libraries, which differ from version to version."""
    text = re.sub(r"\n *For further information visit https://errors\.pydantic\.dev/\S+", "", text)
    text = re.sub(r" \[type=\w+, input_value=.*\]", "", text)
    text = re.sub(r"not JSON compliant: [-\w]+", "not JSON compliant", text)
    return re.sub(r"(not (?:a Parquet file|an Arrow stream)) \(.*?\)\. (?=Is|Save)", r"\1 (...). ", text)


def six_digits(text: str) -> str:
    """A text whose long decimal numbers have six digits."""
    return re.sub(r"\d+\.\d{6,}(?:e[-+]?\d+)?", lambda match: f"{float(match[0]):.6g}", text)


class Story:
    """The text of one golden file while it grows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []

    def head(self, title: str) -> None:
        """Begin a section."""
        self.lines += ["", f"== {title}"]

    def say(self, *texts: str) -> None:
        """Add lines."""
        self.lines += texts

    def show(self, name: str, value: Any) -> None:
        """Add a value on one line."""
        self.lines.append(f"{name}: {value if isinstance(value, str) else spelled(value)}")

    def fields(self, value: Any, *names: str) -> None:
        """Add each field of a dataclass or of a model, or these attributes, on a line of its own."""
        names = names or tuple(plain(value) if isinstance(value, BaseModel) else public_fields(value))
        for name in names:
            self.show(f"  {name}", getattr(value, name))

    def refused(self, title: str, call: Callable[[], object]) -> None:
        """Add the error that a call raises, which must be one that is meant for people."""
        try:
            result = call()
        except (GuardrailError, ValueError, TypeError) as error:
            self.lines += [title, f"  {type(error).__name__}: {without_versions(str(error))}"]
        else:
            raise AssertionError(f"{title}: not refused, but {result!r}")

    def compare(self) -> None:
        """Compare with the golden file."""
        same(f"data/{self.name}", "\n".join(self.lines))


def write(path: str, content: object) -> Path:
    """Write a text, JSON lines of a list, or a JSON document, in the working folder."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        file.write_bytes(content)
        return file
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and file.suffix != ".json":
        text = "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in content)
    else:
        text = json.dumps(content, ensure_ascii=False)
    file.write_text(text, encoding="utf-8", newline="")
    return file


def drawn(axis: Any) -> dict[str, Any]:
    """The words and the points of a figure."""
    legend = axis.get_legend()
    return {
        "title": axis.get_title(),
        "labels": [axis.get_xlabel(), axis.get_ylabel()],
        "scales": [axis.get_xscale(), axis.get_yscale()],
        "ticks": [label.get_text() for label in axis.get_yticklabels() if label.get_text()] if axis.texts else [],
        "legend": [] if legend is None else [text.get_text() for text in legend.get_texts()],
        "texts": [text.get_text() for text in axis.texts],
        "lines": [[line.get_color(), line.get_linestyle(), plain(line.get_xydata())] for line in axis.lines],
        "bars": len(axis.patches),
    }
