"""Texts with slots: filled, and read back from a text that was made with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ArtifactMismatchError


@dataclass(frozen=True, slots=True)
class Template:
    """A text in which ``{name}`` stands for another text; other braces are literal.

    Attributes:
        text: The text.
        names: Names of its slots; it need not have all of them.
    """

    text: str
    names: Sequence[str]

    @property
    def _parts(self) -> list[str]:
        """Literal texts (even places) and names of slots (odd places)."""
        if not self.names:
            return [self.text]
        return re.split(r"\{(" + "|".join(map(re.escape, self.names)) + r")\}", self.text)

    @property
    def literals(self) -> list[str]:
        """The texts before, between and after the slots: one more than there are slots."""
        return self._parts[::2]

    def filled(self, texts: Mapping[str, str]) -> str:
        """The text with those of its slots, in one pass: a slot's text may look like a slot."""
        return "".join(texts[part] if index % 2 else part for index, part in enumerate(self._parts))

    def escaped(self) -> str:
        """The template for `str.format`: other braces are doubled."""
        parts = [part.replace("{", "{{").replace("}", "}}") for part in self._parts]
        return "".join(f"{{{part}}}" if index % 2 else part for index, part in enumerate(parts))

    def values(self, text: str) -> dict[str, str] | None:
        """The text of each slot in a text, found in linear time; None if the text does not fit.

        Raises:
            ArtifactMismatchError: The text fits in several ways, so that a slot's content could pose as another's.
        """
        (first, *between), slots = self.literals, self._parts[1::2]
        if not slots:
            return {} if text == first else None
        last = between.pop()
        inner = text[len(first) : len(text) - len(last)]
        if first + inner + last != text:
            return None
        leftmost, rest = [], inner
        for literal in between:
            before, there, rest = rest.partition(literal)
            if not there:
                return None
            leftmost.append(before)
        leftmost.append(rest)
        rightmost: list[str] = []
        rest = inner
        for literal in reversed(between):
            rest, _, after = rest.rpartition(literal)
            rightmost.insert(0, after)
        rightmost.insert(0, rest)
        for literal, from_left, from_right in zip(between, leftmost, rightmost, strict=False):
            if from_left != from_right:
                raise ArtifactMismatchError(
                    f"the text {literal!r}, which separates two slots of the calibrated template, also occurs within a "
                    f"slot, so it is not clear where one ends: received {text[:200]!r}.",
                    "Remove it there, or calibrate with separators that no document contains.",
                    public="The text that separates two slots of the prompt also occurs within a slot.",
                )
        return dict(zip(slots, leftmost, strict=True))
