"""One item of an answer: a field of its JSON, or an entry of a list there; or the whole answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..types import Frozen


class Item(Frozen):
    """An item of an answer with its uncertainty."""

    path: str
    """JSON pointer (RFC 6901) in the original answer; empty for the whole answer."""
    text: str
    """The value as JSON; empty for a field that is absent, and for a whole answer, which the verdict has."""
    uncertainty: float | None = Field(ge=0, le=1)
    """Share of the samples that do not support it, in [0, 1]; None if it could not be measured."""
    absent: bool = Field(default=False, exclude_if=lambda absent: not absent)
    """Whether the item says that an optional field has no value: the answer leaves the field out."""
    detail: str = Field(default="", exclude_if=lambda detail: not detail)
    """The reason why it could not be measured, in words."""


class ItemVerdict(Item):
    """An item and whether the gate keeps it."""

    uncertainty: float | None
    """As of the item; of a whole answer its score."""
    kept: bool
    """Whether the item may be returned."""
    named: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """The path without the model's words (`guardrail.items.paths.named_path`), if it has some: a key may say what is
    held back."""

    @property
    def shown_path(self) -> str:
        """The path without words of the model: what may be shown where the item itself may not."""
        return self.path if self.named is None else self.named

    def shown(self, *, text: bool) -> dict[str, Any]:
        """Plain JSON; without the words of the model if ``text`` is False."""
        content = self.model_dump(mode="json")
        if text:
            return content
        return {**content, "text": "", **({} if self.named is None else {"path": self.named})}

    def held(self) -> ItemVerdict:
        """The same item, held back."""
        return self.model_copy(update={"kept": False})
