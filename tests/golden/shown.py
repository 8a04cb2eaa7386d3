"""Golden files of what people are shown: commands, pages, replies, messages, names and defaults.

A change of such a text is a change for somebody: it is read in the golden file's difference, and is never an accident.
``GOLDEN=write pytest tests/golden`` writes the files again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "shown"
WIDTH = 116


def same(name: str, text: str) -> None:
    """Assert that a text equals its golden file; trailing spaces of lines do not count."""
    found = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    path = FOLDER / name
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8", newline="\n")
    assert found == path.read_text(encoding="utf-8"), f"{name}: GOLDEN=write accepts the new text"


def rounded(value: Any) -> Any:
    """A JSON value whose numbers have at most 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


def pretty(value: Any, indent: int = 0, room: int = WIDTH) -> str:
    """A JSON value, of which each part that fits into a line takes one."""
    line, deeper = json.dumps(value, ensure_ascii=False), " " * (indent + 1)
    if len(line) <= room - indent or not isinstance(value, dict | list) or not value:
        return line
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(name)}: {pretty(part, indent + 1, room - len(name) - 5)}" for name, part in value.items()
        ]
    else:
        parts = [pretty(part, indent + 1, room) for part in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{' ' * indent}{end}"
