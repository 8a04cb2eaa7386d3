"""One item of an answer: a JSON field, a list item or a sentence."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from ..types import Frozen

__all__ = ["Item", "ItemVerdict"]


def _unset(value: Any) -> bool:
    return value is None or value is False or value == ""


class Item(Frozen):
    """An item of an answer with its uncertainty."""

    path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """JSON pointer (RFC 6901) of a field in the original answer; None for an item of a text."""
    span: tuple[int, int] | None = Field(default=None, exclude_if=_unset)
    """First character of an item of a text, and the one after its last; None for a JSON field."""
    text: str
    """The item as the answer has it: the field's value as JSON, or the words. Empty for a field that is absent."""
    uncertainty: float | None
    """Share of the samples that do not support it, in [0, 1]; None if it could not be measured."""
    absent: bool = Field(default=False, exclude_if=_unset)
    """Whether the item says that an optional field has no value: the answer leaves the field out."""
    detail: str = Field(default="", exclude_if=_unset)
    """The reason why it could not be measured, in words."""

    @model_validator(mode="after")
    def _in_one_place(self) -> Self:
        if (self.path is None) == (self.span is None):
            raise ValueError("an item has either a path or a span, never both or neither")
        if self.uncertainty is not None and not 0 <= self.uncertainty <= 1:
            raise ValueError(f"the uncertainty of an item is a share in [0, 1], got {self.uncertainty}")
        return self

    @property
    def place(self) -> str:
        """The path, or the span as "12-40"."""
        return (self.path or "") if self.span is None else f"{self.span[0]}-{self.span[1]}"


class ItemVerdict(Item):
    """An item and whether the gate keeps it."""

    kept: bool
    """Whether the item may be returned."""
    named: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """The path without the model's words (`guardrail.items.json_fields.named_path`), if it has some: a key may say what
    is held back."""

    @property
    def named_place(self) -> str:
        """`place` without words of the model: what may be shown where the item itself may not."""
        return self.place if self.named is None else self.named

    def shown(self, *, text: bool) -> dict[str, Any]:
        """Plain JSON; without the words of the model if ``text`` is False."""
        content = self.model_dump(mode="json")
        if text:
            return content
        return {**content, "text": "", **({} if self.named is None else {"path": self.named})}

    def held(self) -> ItemVerdict:
        """The same item, held back."""
        return self.model_copy(update={"kept": False})
