"""The channel of a graph's note: plain JSON in checkpoints, one packed string wherever LangGraph shows the state.

LangGraph shows the result of a channel's ``get`` to nodes, in the streams ``values``, ``tasks``, ``debug`` and
``checkpoints``, and in ``get_state``; the stream ``updates`` has the value that a node wrote. Checkpointers store the
result of ``checkpoint`` instead. So a held-back candidate is stored as JSON that any tool can read, and no stream shows
its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from guardrail.errors import UsageError, require

from .held import from_json, pack, to_json, unpack

__all__ = ["NoteChannel"]

if TYPE_CHECKING:
    from langgraph.channels.base import BaseChannel
    from langgraph.errors import EmptyChannelError, InvalidUpdateError
else:
    BaseChannel = require("langgraph.channels.base", extra="agents").BaseChannel
    from langgraph.errors import EmptyChannelError, InvalidUpdateError


class NoteChannel(BaseChannel[str | None, str | Mapping[str, Any] | None, dict[str, Any] | None]):
    """Keeps the last note. Takes it packed or as plain JSON, gives it packed, stores it as plain JSON."""

    __slots__ = ("_filled", "_packed")

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, key)
        self._filled = False
        self._packed: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoteChannel)  # as LangGraph compares channels: by their kind

    def __hash__(self) -> int:
        return hash(NoteChannel)

    @property
    def ValueType(self) -> Any:  # noqa: N802 - LangGraph's name
        """Type of the value that nodes read."""
        return self.typ

    @property
    def UpdateType(self) -> Any:  # noqa: N802 - LangGraph's name
        """Type of the value that nodes write."""
        return self.typ

    def copy(self) -> Self:
        """The same note in another channel."""
        return self._with(self._packed) if self._filled else type(self)(self.typ, self.key)

    def checkpoint(self) -> dict[str, Any] | Any:
        """The note as plain JSON; None after its message went out."""
        note = unpack(self._packed)
        return super().checkpoint() if note is None else to_json(note)

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Read a stored note: plain JSON, or packed as version 0.1 stored it.

        Any other value counts as no note, so that nothing is released and no call is run.

        Raises:
            UsageError: A note of another layout, or a damaged one. The checkpoint is not changed.
        """
        if checkpoint is not None and not isinstance(checkpoint, str | Mapping):
            return type(self)(self.typ, self.key)  # LangGraph's mark for nothing
        note = from_json(checkpoint) or unpack(checkpoint)
        return self._with(None if note is None else pack(note))

    def get(self) -> str | None:
        """The packed note."""
        if not self._filled:
            raise EmptyChannelError
        return self._packed

    def is_available(self) -> bool:
        """Whether there ever was a note."""
        return self._filled

    def update(self, values: Sequence[str | Mapping[str, Any] | None]) -> bool:
        """Take a new note.

        Raises:
            InvalidUpdateError: It is not a note, or there are several in one step.
        """
        if not values:
            return False
        if len(values) > 1:
            raise InvalidUpdateError(
                f"{len(values)} nodes wrote the key {self.key!r} in one step; guarded nodes that run side by side need "
                "a graph each (call them as sub-graphs)"
            )
        (value,) = values
        try:
            note = from_json(value) or unpack(value)
        except UsageError as error:
            raise InvalidUpdateError(
                f"the key {self.key!r} was given a note that cannot be read: {error} Give your own data another key; "
                "None removes the note"
            ) from error
        if value is not None and note is None:
            raise InvalidUpdateError(
                f"the key {self.key!r} holds what the guardrail froze, and {type(value).__name__} "
                f"{str(value)[:40]!r} is not such a note. Give your own data another key; None removes the note"
            )
        self._filled, self._packed = True, None if note is None else pack(note)
        return True

    def _with(self, packed: str | None) -> Self:
        channel = type(self)(self.typ, self.key)
        channel._filled, channel._packed = True, packed
        return channel
