"""Correctness rules: whether the primary answer is right, given the accepted answers.

A rule is fixed before calibration and stored with its parameters: "at most 10 % wrong" means wrong *by this rule*.
String rules err (on open questions they agree with people on 80-92 % of answers); read some labels before you trust a
threshold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from guardrail.artifact import CorrectnessSpec
from guardrail.errors import UsageError
from guardrail.judges import normalise, token_f1

from .datasets import Question, reference_label
from .records import Record

__all__ = [
    "CorrectnessRule",
    "Exact",
    "Label",
    "Numeric",
    "Option",
    "TokenF1",
    "available_rules",
    "default_rule",
    "label_records",
    "make_rule",
    "parse_number",
]


@dataclass(frozen=True, slots=True)
class Label:
    """Whether an answer is right, or why that cannot be told.

    Attributes:
        correct: True, False, or None when it cannot be told.
        detail: Why not, in words.
    """

    correct: bool | None
    detail: str = ""


class CorrectnessRule(Protocol):
    """Decides whether an answer is right."""

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters: what the artifact stores."""
        ...

    def label(self, answer: str, question: Question) -> Label:
        """Label one answer. ``question`` has at least one reference."""
        ...


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

    def _equal(self, got: _Number, wanted: _Number) -> bool:
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


_RULES: dict[str, Callable[..., CorrectnessRule]] = {
    "exact": Exact,
    "numeric": Numeric,
    "option": Option,
    "token_f1": TokenF1,
}


def available_rules() -> tuple[str, ...]:
    """Names of the correctness rules, sorted."""
    return tuple(sorted(_RULES))


def make_rule(name: str, **params: Any) -> CorrectnessRule:
    """Make a rule by name, e.g. ``make_rule("token_f1", threshold=0.6)``.

    Raises:
        UsageError: Unknown name, or a parameter the rule does not have.
    """
    if name not in _RULES:
        raise UsageError(f"no correctness rule named {name!r}; choose one of {', '.join(available_rules())}")
    try:
        return _RULES[name](**params)
    except TypeError as error:
        raise UsageError(f"correctness rule {name} does not take {sorted(params)}: {error}") from error


def default_rule(records: Sequence[Record]) -> CorrectnessRule:
    """`Option` when every question has options, else `TokenF1`. By the questions alone, never by the answers."""
    return Option() if records and all(record.options for record in records) else TokenF1()


def label_records(records: Sequence[Record], rule: CorrectnessRule) -> list[Record]:
    """Label every record that has an answer and a reference; the others get ``correct=None`` and say why.

    Raises:
        UsageError: Records were imported without answers: labels they came with are not this rule's.
    """
    imported = sum(record.drawn is None for record in records)
    if imported:
        raise UsageError(
            f"{imported} of {len(records)} records were imported without an answer, so {rule.spec.name} has nothing to "
            "label. Keep the labels they came with, or give labels by id (calibrate label --labels FILE)."
        )
    return [_labelled(record, rule) for record in records]


def _labelled(record: Record, rule: CorrectnessRule) -> Record:
    if record.answer is None:
        found = Label(None, "there is no answer to label")
    elif not record.references:
        found = Label(None, "there is no reference")
    else:
        found = rule.label(record.answer, record.to_question())
    return record.model_copy(update={"correct": found.correct, "label_detail": found.detail})


@dataclass(frozen=True, slots=True)
class _Number:
    value: float
    percent: bool = False


_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(
    rf"(?<![\w.])(?P<sign>[-+\u2212])?\s?[$€£]?(?:(?P<whole>\d+)\s+)?(?P<top>{_DIGITS})"
    rf"(?:\s?/\s?(?P<bottom>{_DIGITS})|(?P<exponent>[eE][-+]?\d+)(?!\w))?\s?(?P<percent>%|percent\b)?"
)


def parse_number(text: str) -> _Number | None:
    """The last number in a text, or None. "3/4" is 0.75, "1 1/2" is 1.5, "50%" is 0.5 and flagged as a percentage."""
    found = None
    for match in _NUMBER.finditer(text):
        found = _read_number(match) or found
    return found


def _read_number(match: re.Match[str]) -> _Number | None:
    value = float(match["top"].replace(",", "") + (match["exponent"] or ""))
    if match["bottom"]:
        bottom = float(match["bottom"].replace(",", ""))
        if bottom == 0:
            return None
        value = float(match["whole"] or 0) + value / bottom
    if match["sign"] in ("-", "\u2212"):
        value = -value
    if not math.isfinite(value):
        return None
    percent = match["percent"] is not None
    return _Number(value / 100 if percent else value, percent)


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
