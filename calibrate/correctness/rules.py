"""Rules that compare strings and numbers: exact, token-F1, numeric, option."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from guardrail.artifact import CorrectnessSpec
from guardrail.errors import UsageError
from guardrail.judges import normalise, token_f1

from ..datasets import Question, reference_label
from .base import Label
from .numbers import Number, parse_number

__all__ = ["Exact", "Numeric", "Option", "TokenF1"]


@dataclass(frozen=True, slots=True)
class Exact:
    """Right iff the normalised answer equals a normalised reference (case, punctuation and articles do not count)."""

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="exact", version=1, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Equality with any reference."""
        return Label(normalise(answer) in {normalise(reference) for reference in question.references})


@dataclass(frozen=True, slots=True)
class TokenF1:
    """Right iff token-F1 with the best matching reference is at least ``threshold``.

    The paper's rule for open answers (0.5). It counts words and is blind to which: "not in Paris" scores .8 against
    "in Paris". Where numbers decide use `Numeric`, where short names decide use `Exact` with aliases.

    Attributes:
        threshold: Smallest F1 that counts as right, in (0, 1].
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold must be in (0, 1], got {self.threshold}. The default is 0.5.")

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="token_f1", version=1, params={"threshold": self.threshold})

    def label(self, answer: str, question: Question) -> Label:
        """Best F1 over the references, compared with the threshold."""
        best = max(token_f1(answer, reference) for reference in question.references)
        return Label(best >= self.threshold)


@dataclass(frozen=True, slots=True)
class Numeric:
    """Right iff the last number in the answer equals a reference number, up to a relative tolerance.

    Understands signs, thousands separators, decimals, exponents, "%", fractions ("3/4") and mixed numbers ("1 1/2").
    "50%" is 0.5, and it also equals a reference "50": people write percentages both ways. An answer without a number is
    wrong; a reference without a number cannot be compared, so the answer stays unlabelled.

    Attributes:
        tolerance: Largest accepted |answer - reference| / |reference| (absolute when the reference is 0).
    """

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"tolerance must be in [0, 1), got {self.tolerance}. Write 0.01 for 1 %.")

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="numeric", version=1, params={"tolerance": self.tolerance})

    def label(self, answer: str, question: Question) -> Label:
        """Equality of numbers with any reference."""
        wanted = [number for number in map(parse_number, question.references) if number is not None]
        if not wanted:
            return Label(None, f"no reference is a number: {list(question.references)}")
        got = parse_number(answer)
        if got is None:
            return Label(False)
        return Label(any(self._equal(got, number) for number in wanted))

    def _equal(self, got: Number, wanted: Number) -> bool:
        same = [(got.value, wanted.value)]
        if got.percent != wanted.percent:
            same.append((got.value * (100 if got.percent else 1), wanted.value * (100 if wanted.percent else 1)))
        return any(math.isclose(a, b, rel_tol=self.tolerance, abs_tol=0.0 if b else self.tolerance) for a, b in same)


@dataclass(frozen=True, slots=True)
class Option:
    """Right iff the answer names the right option, by its label or its text.

    As label count "B", "b", "(B)", "B) 12 km" and "the answer is B". An answer that names no option, or several, is
    wrong.
    """

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="option", version=1, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Equality of the option named and the reference option."""
        if not question.options:
            return Label(None, "the question has no options")
        wanted = reference_label(question)
        if wanted is None:
            return Label(None, f"no reference names exactly one option: {list(question.references)}")
        return Label(_named_option(answer, question.options) == wanted)


def _named_option(answer: str, options: dict[str, str]) -> str | None:
    text = answer.strip()
    by_text = [label for label, option in options.items() if normalise(option) == normalise(text)]
    if text in options:
        return text
    if len(by_text) == 1:
        return by_text[0]
    labels = "|".join(re.escape(label) for label in sorted(options, key=len, reverse=True))
    label_of = {label.casefold(): label for label in options}
    # "(B)", "B.", "B) 12 km", "B: 12 km": the label first, closed by punctuation or the end.
    first = re.match(rf"[(\[]?({labels})(?:[)\].:]|\s*$)", text, flags=re.IGNORECASE)
    if first:
        return label_of[first[1].casefold()]
    stated = re.findall(
        rf"\b(?:answer|option|choice)(?:\s+is)?\s*:?\s*[(\[]?({labels})(?!\w)", text, flags=re.IGNORECASE
    )
    named = {label_of[label.casefold()] for label in stated}
    return named.pop() if len(named) == 1 else None
