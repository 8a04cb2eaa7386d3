"""Rules that compare an answer with the references: strings, numbers, options, JSON values, tool calls."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from guardrail.errors import GuardrailError, UsageError
from guardrail.judges import JsonJudge, ToolCallJudge, normalise
from guardrail.judges.json_value import canonical_value, read_json
from guardrail.judges.numbers import Number, labels_agree, parse_number
from guardrail.judges.tool_call import read_calls
from guardrail.judges.words import CHANGING, NEGATIONS, asked_words, has_digit, own_words, read, word_set, written
from guardrail.plain_json import sha256_hex
from guardrail.sampling.models import import_named
from guardrail.specs import CorrectnessSpec
from guardrail.types import Bindings

from ..data.questions import Question, reference_label
from .base import CorrectnessRule, Label


@dataclass(frozen=True, slots=True)
class Exact(CorrectnessRule):
    """Right iff the normalised answer equals a normalised reference (in prose, case and punctuation do not count).

    Formulas and code are compared as written: "C++" is not "C#" and "$50" not "50"; see `guardrail.judges.words`.
    """

    compares_words = True

    spec = CorrectnessSpec(name="exact", version=6, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Equality with any reference."""
        return _matched(answer, question, lambda text, reference: normalise(text) == normalise(reference))


@dataclass(frozen=True, slots=True)
class TokenF1(CorrectnessRule):
    """Right iff token-F1 with a reference is at least ``threshold`` and nothing tells the two apart.

    F1 over all words is the paper's rule for open answers (0.5). It counts words and is blind to which: to it "not in
    Paris" is "in Paris", and "C++" is "C#". So F1 over the words that are not in the question must reach the threshold
    too, and the two must have the same signs that are not prose, the same words that change others ("not"), and no
    different numbers. A number in one of them only is a further detail. Where numbers decide use `Numeric`, where short
    names decide use `Exact` with aliases.

    Attributes:
        threshold: Smallest F1 that counts as right, in (0, 1].
    """

    compares_words = True

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold must be in (0, 1], got {self.threshold}. The default is 0.5.")

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="token_f1", version=8, params={"threshold": self.threshold})

    def label(self, answer: str, question: Question) -> Label:
        """Overlap with the best matching reference that does not contradict the answer."""
        return _matched(answer, question, partial(self._same, question.question))

    def _same(self, question: str, answer: str, reference: str) -> bool:
        ours, theirs = read(answer), read(reference)
        if ours.normal == theirs.normal:
            return True
        if ours.marks != theirs.marks or CHANGING & {*ours.words} != CHANGING & {*theirs.words}:
            return False
        numbers = [sorted(filter(has_digit, reading.words)) for reading in (ours, theirs)]
        if all(numbers) and numbers[0] != numbers[1]:
            return False
        overlap = _f1(ours.words, theirs.words)
        new_in_answer = own_words(question, answer)
        new_in_reference = own_words(question, reference)
        if new_in_answer and new_in_reference:
            overlap = min(overlap, _f1(new_in_answer, new_in_reference))
        return overlap >= self.threshold


def _f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Token-F1: 2 |common| / (|A| + |B|), with multiplicity. Source: SQuAD evaluation (Rajpurkar et al. 2016)."""
    return 2 * (Counter(ours) & Counter(theirs)).total() / (len(ours) + len(theirs)) if ours and theirs else 0.0


@dataclass(frozen=True, slots=True)
class Contains(CorrectnessRule):
    """Right iff a sentence of the answer contains a reference: its normalised words, whole and in order.

    For answers in sentences to references of a few words: "You can return it within 30 days." contains "30 days". A
    negation before the words makes them wrong ("You cannot return it within 30 days"), which errs on the safe side:
    "No, 30 days" is wrong, too. An answer that names several things is right if one of them is the reference. Words as
    in `normalise`: "$50" does not contain "50", nor "5 million" a "5", nor "C++" a "C".
    """

    compares_words = True

    spec = CorrectnessSpec(name="contains", version=4, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Containment of any reference."""
        return Label(any(_says(answer, reference) for reference in question.references))


_EQUALS = " = "
"""Between spaces only: "==", ">=", "f(x=70)" and "/?q=70" are other signs, other code or an address."""
_FILLERS = word_set("answer are is so")
_SIDE = re.compile(r"(?:[\w+*/^()%$ -]|[.,](?=\d))+")
"""One side of an equation: no list, no second sentence, no comparison."""
_MULTIPLE = re.compile(r"-\s*[^\W\d_]\b|\d[^\W\d_]\b")
"""A sign or a number before a letter: "-x = 5" and "2x = 5" do not say that x is 5."""


def _matched(answer: str, question: Question, same: Callable[[str, str], bool]) -> Label:
    """Right iff a reading of the answer and a reference are the same."""
    readings = ((_readings(question, answer, reference), reference) for reference in question.references)
    return Label(any(same(text, reference) for texts, reference in readings for text in texts))


def _readings(question: Question, answer: str, reference: str) -> tuple[str, ...]:
    """The answer, and the right-hand side if it is an equation: "70" of "7 x 10 = 70.".

    Any other word could deny or limit the equation, so the left-hand side may have numbers, marks, single letters and
    words of the question only. A chain ("12 x 9 = 108 + 0 = 108") has no words at all.
    """
    *sides, right = written(answer).split(_EQUALS)
    words_before = {word for side in sides for word in read(side).words if len(word) > 1 and not has_digit(word)}
    allowed = (_FILLERS | asked_words(question.question)) - NEGATIONS - {"or"} if len(sides) == 1 else frozenset()
    equation = "=" not in reference and "\n" not in answer.strip() and all(map(_SIDE.fullmatch, sides))
    equation = equation and not any(map(_MULTIPLE.search, sides))
    return (answer, right) if sides and equation and words_before <= allowed else (answer,)


_WORDLIKE = re.compile(r"[^\W\d_]{2}")
_SIGNS = frozenset({"minus", "negative", "x"})
_MULTIPLES = word_set(
    "hundred thousand million billion trillion dozen lakh crore percent per squared cubed factorial x"
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def _says(answer: str, reference: str) -> bool:
    words = _chunks(reference)
    if not words:
        return normalise(answer) == normalise(reference)
    whole = _SENTENCE_END.search(reference.strip()) is not None  # "St. Louis" is not a sentence either
    sentences = [answer] if whole else _SENTENCE_END.split(answer)
    return any(_in_sentence(_chunks(part), words) for sentence in sentences for part in _parts(sentence, reference))


def _parts(sentence: str, reference: str) -> tuple[str, ...]:
    """The sentence, and what follows its last "=" unless a negation stands before it."""
    left, equals, right = written(sentence).rpartition(_EQUALS)
    states = equals and "=" not in reference and NEGATIONS.isdisjoint(read(left).words)
    return (sentence, right) if states else (sentence,)


def _in_sentence(words: list[str], phrase: list[str]) -> bool:
    for start in range(len(words) - len(phrase) + 1):
        end = start + len(phrase)
        if words[start:end] == phrase and not _changed(words[start - 1 : start], phrase, words[end : end + 1]):
            return True
        if words[start] in NEGATIONS or words[start].endswith("n't"):
            return False
    return False


def _changed(before: list[str], phrase: list[str], after: list[str]) -> bool:
    """Return whether the text beside the words changes their meaning: an operator, or a word beside a number."""
    if not all(any(map(str.isalnum, word)) for word in (*before, *after)):
        return True
    return (phrase[0][0].isdecimal() and not _SIGNS.isdisjoint(before)) or (
        phrase[-1][-1].isdecimal() and any(word.removesuffix("s") in _MULTIPLES for word in after)
    )


def _chunks(text: str) -> list[str]:
    """The words between spaces in a normalised text, without case, articles and the punctuation around words.

    A capital of up to three letters behind a number may be a unit, and keeps its case as in `normalise`.
    """
    chunks = [_bare(chunk) for chunk in normalise(text).split(" ")]
    return [
        chunk if i and len(chunk) < 4 and chunks[i - 1][-1:].isdecimal() else chunk.casefold()
        for i, chunk in enumerate(chunks)
        if chunk and chunk not in ("a", "an", "the", "An", "The")
    ]


def _bare(chunk: str) -> str:
    """A chunk without punctuation; of marks beside a single letter or number only those that end a sentence go."""
    if chunk in ("-", "--", "\u2014"):
        return ""
    if _WORDLIKE.search(chunk):
        return chunk.lstrip("\"'([").rstrip("\"'.,:;!?)]")
    return chunk.rstrip(".,:;") or chunk


_ROUNDING = 1e-6
"""Tolerance up to which only rounding is meant."""
_LEAST = Fraction(1, 1000)
"""Two prices that differ by a cent are not equal, however large."""


@dataclass(frozen=True, slots=True)
class Numeric(CorrectnessRule):
    """Right iff the answer states a reference's number, read as the `numeric` judge does.

    Unlike to that judge, words before the number are further detail, and "1.10" is 1.1.

    Labels (units, currencies, words of scale, counted nouns) must be equal where answer and reference have one; nothing
    is converted, so "5 million" is not "5,000,000". "50%" is 0.5, and it also equals a reference "50": people write
    percentages both ways.

    An answer that does not state one number is wrong. A reference with digits that is not a number (a date, a range) is
    compared as a text. A reference without a number cannot be compared, so the answer stays unlabelled.

    Attributes:
        tolerance: Largest accepted |answer - reference| / |reference| (absolute when the reference is 0). Up to 1e-6,
            the default, it is for rounded decimals: whole numbers are compared exactly, and nothing differs by more
            than 0.001. A larger one is yours, and holds for all numbers.
    """

    tolerance: float = _ROUNDING

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise UsageError(f"tolerance must be in [0, 1), got {self.tolerance}. Write 0.01 for 1 %.")

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="numeric", version=9, params={"tolerance": self.tolerance})

    def label(self, answer: str, question: Question) -> Label:
        """Equality of numbers with any reference."""
        comparable = [
            reference
            for reference in question.references
            if parse_number(reference) or any(map(str.isdecimal, reference))
        ]
        if not comparable:
            return Label(None, f"no reference is a number: {list(question.references)}")
        return _matched(answer, question.model_copy(update={"references": comparable}), self._same)

    def _same(self, answer: str, reference: str) -> bool:
        number, expected = parse_number(answer), parse_number(reference)
        if number is None or expected is None:
            return number is expected and normalise(answer) == normalise(reference)
        if not labels_agree(number, expected):
            return False
        percents = number.percent != expected.percent
        return self._equal(number.value, expected.value) or (percents and self._equal(_shown(number), _shown(expected)))

    def _equal(self, number: Fraction, expected: Fraction) -> bool:
        tolerance = Fraction(str(self.tolerance))
        largest = tolerance * (abs(expected) or 1)
        if self.tolerance <= _ROUNDING and expected:
            largest = Fraction(0) if number.denominator == expected.denominator == 1 else min(largest, _LEAST)
        return abs(number - expected) <= largest


def _shown(number: Number) -> Fraction:
    """The value as written: 50 for "50%"."""
    return number.value * (100 if number.percent else 1)


@dataclass(frozen=True, slots=True)
class Option(CorrectnessRule):
    """Right iff the answer names the right option, by its label or its text.

    As label count "B", "b", "(B)", "B) 12 km" and "the answer is B". An answer that names no option, or several, is
    wrong.
    """

    spec = CorrectnessSpec(name="option", version=5, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Equality of the option named and the reference option."""
        if not question.options:
            return Label(None, "the question has no options")
        expected = reference_label(question)
        if expected is None:
            return Label(None, f"no reference names exactly one option: {list(question.references)}")
        return Label(_named_option(answer, question.options) == expected)


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


@dataclass(frozen=True, slots=True)
class JsonValues(CorrectnessRule):
    """Right iff the answer and a reference are equal as JSON values, as `JsonJudge` compares them.

    A reference that is neither an object nor a list ("Rome", "42") is also compared with the value of an answer that is
    an object with one field, {"capital": "Rome"}: texts by `normalise`, numbers exactly. All fields count, and an
    answer that is not JSON is wrong unless the reference is not either and their normalised texts are equal. Tool calls
    are read as the JSON of a list of calls.
    """

    reads_tool_calls = True

    spec = CorrectnessSpec(name="json", version=4, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Equality with any reference."""
        identity = JsonJudge().identity(answer)
        same = (
            identity == JsonJudge().identity(reference) or _only_field_is(answer, reference)
            for reference in question.references
        )
        return Label(any(same))


def _only_field_is(answer: str, reference: str) -> bool:
    """Return whether the answer is an object whose only field has the value that a plain reference names."""
    try:
        value = read_json(answer)
    except ValueError:
        return False
    if not isinstance(value, dict) or len(value) != 1:
        return False
    only = next(iter(value.values()))
    try:
        expected = read_json(reference)
    except ValueError:
        expected = reference
    if isinstance(only, str) and not isinstance(expected, dict | list):
        return normalise(only) == normalise(expected if isinstance(expected, str) else reference)
    return not isinstance(expected, dict | list | str) and canonical_value(only) == canonical_value(expected)


class ToolCalls(CorrectnessRule):
    """Right iff the tool calls are those of a reference, as `ToolCallJudge` with the same options compares them.

    A reference is a text, or calls as JSON: ``{"name": ..., "arguments": {...}}`` or a list of such. An answer without
    calls is right iff a reference has none either and the normalised texts are equal; a call where a text was right is
    wrong, and the other way round.

    Args:
        **options: Options of `ToolCallJudge`.

    Raises:
        UsageError: An option that cannot be read.
    """

    reads_tool_calls = True

    def __init__(self, **options: Any) -> None:
        self._judge = ToolCallJudge(**options)

    def check(self, bindings: Bindings | None) -> None:
        """Refuse arguments that the tools do not have; see `ToolCallJudge.check`."""
        self._judge.check(bindings)

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        judged = self._judge.spec
        return CorrectnessSpec(name="tool_call", version=judged.version, params=dict(judged.params))

    def label(self, answer: str, question: Question) -> Label:
        """Equality with any reference."""
        return Label(any(self._same(answer, reference) for reference in question.references))

    def _same(self, answer: str, reference: str) -> bool:
        ours, theirs = read_calls(answer), read_calls(reference)
        if ours is None or theirs is None:
            return ours is None and theirs is None and normalise(answer) == normalise(reference)
        return self._judge.identity(answer) == self._judge.identity(reference)


class OwnRule(CorrectnessRule):
    """A custom rule: "python:MODULE:NAME" names a function of an answer and its `Question`.

    It returns True, False, or None where it cannot decide; the question has ``question``, ``references``, ``options``
    and ``group``. The answer is its text, or the JSON of its tool calls where there are any. The spec has a digest of
    the function's source, so a changed function is another rule; what the function calls is not part of it.

    Args:
        function: "MODULE:NAME", importable from the working folder. Code is run.
        sha256: Digest that the source must have, as a stored spec has it.

    Raises:
        UsageError: Nothing callable is found there, or its source is another.
    """

    reads_tool_calls = True

    def __init__(self, function: str, sha256: str | None = None) -> None:
        self._name = function
        self._function: Callable[[str, Question], bool | None] = import_named(function, f"rule 'python:{function}'")
        if not callable(self._function):
            raise UsageError(
                f"rule 'python:{function}' is a {type(self._function).__name__}; it must be a function of an answer "
                "and its question that returns True, False or None."
            )
        self._sha256 = _source_digest(self._function)
        if sha256 not in (None, self._sha256):
            raise UsageError(
                f"rule 'python:{function}' has changed: its source has sha256 {self._sha256}, and the labels are by "
                f"{sha256}. Restore the function, or label and fit again."
            )

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="python", version=1, params={"function": self._name, "sha256": self._sha256})

    def label(self, answer: str, question: Question) -> Label:
        """Ask the function.

        Raises:
            GuardrailError: It raises, or returns anything else.
        """
        try:
            verdict = self._function(answer, question)
        except Exception as error:
            raise GuardrailError(
                f"rule 'python:{self._name}' raised {type(error).__name__} on question {question.id!r}: {error}"
            ) from error
        if verdict not in (True, False, None):
            raise GuardrailError(
                f"rule 'python:{self._name}' returned {verdict!r} on question {question.id!r}; it must return True, "
                "False or None."
            )
        return Label(None, "the rule returned None") if verdict is None else Label(bool(verdict))


def _source_digest(function: object) -> str:
    """Digest of the function's source; "" if the source cannot be read, as for a built-in function."""
    try:
        return sha256_hex(inspect.getsource(function if inspect.isroutine(function) else type(function)), 16)
    except (OSError, TypeError):
        return ""
