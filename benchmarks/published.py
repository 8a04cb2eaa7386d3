"""How the published files of recorded outputs are read: the columns of each, as --map takes them."""

from __future__ import annotations

from pathlib import Path

from calibrate.data.formats.field_map import ColumnMap, ImportSettings, parse_map
from calibrate.data.formats.read import Imported, import_file

__all__ = ["import_published", "settings_of"]

_OPTIONS = ("option_scores=options", "options=-")
_MAPS = {
    "medqa-": _OPTIONS,
    "mmbench-": (*_OPTIONS, "references=reference"),
    "intercode-": ("answer=primary",),
}
"""Columns by the begin of the file's name; others have the names of their fields."""
_NQ_SYSTEMS = ("fid", "gpt35", "chatgpt", "gpt4", "newbing")


def settings_of(path: Path, system: str | None = None) -> ImportSettings:
    """The settings for a file by its name; ``system`` is one of those whose answers it holds."""
    if path.name.startswith("nq-"):
        others = ",".join(f"answers.{name}.text || ''" for name in _NQ_SYSTEMS if name != system)
        maps: tuple[str, ...] = (
            f"answer=answers.{system}.text || ''",
            f"samples={others}",
            f"correct=answers.{system}.correct",
        )
    elif path.name.startswith("mmlu-pro-"):
        confidences = [f"confidence={name}:{system}/{name}" for name in ("stated_confidence", "logit_confidence")]
        maps = (f"error={system}/error", *confidences)
    else:
        maps = next((maps for begin, maps in _MAPS.items() if path.name.startswith(begin)), ())
    columns = parse_map(maps) if maps else ColumnMap()
    return ImportSettings(columns=columns, model=system, temperature=0.2 if path.name.startswith("cruxeval") else None)


def import_published(path: Path, system: str | None = None) -> Imported:
    """Read a published file."""
    return import_file(path, settings_of(path, system))
