"""Files from other tools: generations, scores and labels to records (`import_file`), data sets to questions."""

from __future__ import annotations

from ..rows import KINDS
from .exports import EXPORTS
from .field_map import IMPORTED, ColumnMap, ImportSettings, Primary, ScoreColumn, parse_map
from .graded import graded_file, is_table
from .questions import QUESTION_FORMATS, load_questions
from .read import Bad, Imported, import_file, import_rows, write_bad

__all__ = [
    "EXPORTS",
    "IMPORTED",
    "KINDS",
    "QUESTION_FORMATS",
    "Bad",
    "ColumnMap",
    "ImportSettings",
    "Imported",
    "Primary",
    "ScoreColumn",
    "graded_file",
    "import_file",
    "import_rows",
    "is_table",
    "load_questions",
    "parse_map",
    "write_bad",
]
