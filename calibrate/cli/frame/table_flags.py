"""The options about the columns of a table, which commands read like records."""

from __future__ import annotations

import shlex

from guardrail.types import Frozen

from ...data.formats.field_map import ImportSettings, parse_map
from .flags import Texts, flag
from .options import COLUMNS


class TableFlags(Frozen):
    """Which column holds what, and which labels say right. Every field is a flag of the commands that read tables."""

    map: Texts = flag(COLUMNS, "FIELD=COLUMN or FIELD=PATH.", (), metavar="FIELD=COLUMN")
    right: Texts = flag(COLUMNS, "A label that says right (yes, pass, 1).", (), metavar="WORD")
    cut: float | None = flag(COLUMNS, "Labels are grades, right from here on.")

    @property
    def columns(self) -> ImportSettings:
        """The options as a reader of tables takes them."""
        return ImportSettings(columns=parse_map(self.map), right=self.right, cut=self.cut)

    @property
    def typed(self) -> str:
        """The options for a command that is shown, beginning with a space; empty without them."""
        flags = [*(("--map", entry) for entry in self.map), *(("--right", word) for word in self.right)]
        if self.cut is not None:
            flags.append(("--cut", f"{self.cut:g}"))
        return "".join(f" {name} {shlex.quote(value)}" for name, value in flags)
