"""The base paper's experiments beside our own measurements: ``python -m calibrate.paper --data DIR --out docs``.

`tables` produces the paper's five tables in form from any scores and errors; `printed` holds what the paper prints.
"""

from .tables import PaperTables, Pool, TableRow, tables

__all__ = ["PaperTables", "Pool", "TableRow", "tables"]
