"""A pin on the model behind an endpoint: its replies must name the model, or the configuration, that was calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import model_validator

from guardrail.types import Frozen

MOST_VALUES = 20
"""Different values of a model that are reported as new; a server may send another one with every reply."""
LONGEST_VALUE = 100


class ModelChangedError(ValueError):
    """A reply comes from another model than the pinned one."""


class Change(NamedTuple):
    """A difference between a reply and a pin."""

    field: str
    """Field of the reply."""
    seen: str
    """Its value, in quotes."""
    text: str
    """The difference in words."""


class Pin(Frozen):
    """Values that every reply must have. A reply without a pinned field counts as changed."""

    model: str | None = None
    """Model that replies name, e.g. ``gpt-4.1-2025-04-14`` for the alias ``gpt-4.1``; None for any."""
    system_fingerprint: str | None = None
    """The server's name for its configuration; None for any."""
    on_change: Literal["warn", "abstain"] = "abstain"
    """"abstain": an answer for which a reply differs is unmeasured (``model_changed``). "warn": it is judged as usual.
    Both report the value."""

    @model_validator(mode="after")
    def _pins_something(self) -> Self:
        if self.model is None and self.system_fingerprint is None:
            raise ValueError(
                "a pin needs model, system_fingerprint or both, as replies name them (curl shows them in any reply)"
            )
        return self

    def changes(self, reply: Mapping[str, Any]) -> list[Change]:
        """The differences of a reply, by its fields ``model`` and ``system_fingerprint``."""
        changes = []
        for name in ("model", "system_fingerprint"):
            pinned = getattr(self, name)
            seen = reply.get(name)
            if pinned is not None and seen != pinned:
                shown = repr(seen)[:LONGEST_VALUE]
                changes.append(Change(name, shown, f"{name} is {shown}, but {pinned!r} is pinned"))
        return changes
