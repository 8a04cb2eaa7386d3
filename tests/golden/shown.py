"""Golden files of what people are shown: commands, pages, replies, messages, names and defaults.

A change of such a text is a change for somebody: it is read in the golden file's difference, and is never an accident.
``GOLDEN=write pytest tests/golden`` writes the files again.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "shown"


def same(name: str, text: str) -> None:
    """Assert that a text equals its golden file; trailing spaces of lines do not count."""
    found = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    path = FOLDER / name
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8", newline="\n")
    assert found == path.read_text(encoding="utf-8"), f"{name}: GOLDEN=write accepts the new text"
