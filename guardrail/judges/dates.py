"""Points in time: texts in given formats, and the judge that compares texts by what they mean in these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..errors import UsageError
from ..specs import JudgeSpec
from .base import EqualityJudge
from .words import unspaced

__all__ = ["DateJudge", "point_in_time"]


def point_in_time(text: str, forms: Sequence[str]) -> str | None:
    """The point in time a text means, in ISO 8601 (UTC if it names an offset); None if that is ambiguous."""
    moments = set()
    for form in forms:
        try:
            moment = datetime.strptime(text, form)  # noqa: DTZ007 - an offset is read where the format has one
            moments.add((moment.astimezone(UTC) if moment.tzinfo is not None else moment).isoformat())
        except (ValueError, OverflowError):  # no such date, or in UTC before the year 1 or after 9999
            continue
    # Formats that agree are no ambiguity; different moments are, and none is guessed.
    return moments.pop() if len(moments) == 1 else None


@dataclass(frozen=True, slots=True)
class DateJudge(EqualityJudge):
    """Two texts are the same iff they name one point in time in the given formats of ``strptime``.

    A text that fits several formats with different meanings, or none, is compared as a text.

    Attributes:
        formats: E.g. ("%Y-%m-%d", "%d.%m.%Y").
    """

    formats: Sequence[str] = ("%Y-%m-%d",)

    is_slow = False

    def __post_init__(self) -> None:
        if isinstance(self.formats, str) or not all("%" in form for form in self.formats):
            raise UsageError(f"formats is a list of strptime formats, such as ['%d.%m.%Y'], got {self.formats!r}")

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="date", version=1, params={"formats": list(self.formats)})

    def identity(self, text: str) -> str:
        """The point in time, or the text; the first word says which."""
        return point_in_time(text.strip(), self.formats) or f"text {unspaced(text)}"
