"""The rule `stated`: right, wrong or undecided, for references of a few words and answers in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from guardrail.judges.numbers import CARDINALS
from guardrail.judges.words import FUNCTION_WORDS, NEGATIONS, SCALES, fold, is_refusal, word_set, written
from guardrail.specs import CorrectnessSpec

from ..data.questions import Question
from .base import CorrectnessRule, Label


@dataclass(frozen=True, slots=True)
class Stated(CorrectnessRule):
    """Right iff a sentence states a reference and nothing beside it takes it back; in doubt undecided.

    A sentence states a reference with its words in order (of a description, in any order and close together), the same
    date, or the first and last word of a name. A negation, "or", a misconception, a comparison, or another number or
    name beside the words takes it back. An answer is wrong if it refuses, or if every reference is a name, a number or
    a date of which it has no word, or another number. Every other answer is undecided: a person or a model has to
    label it, and until then it counts as wrong.

    Current limitations: the rule compares words and reads no relations. "Anything but oxygen" states oxygen, and "It
    replaced Paris" states Paris.
    """

    compares_words = True

    spec = CorrectnessSpec(name="stated", version=3, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Compare the answer with each reference: right if one is stated, wrong if none can be, else undecided."""
        asked = frozenset(word.text for word in _words(question.question))
        references = [_Reference.of(text, asked) for text in question.references]
        sentences = [words for text in _SENTENCE_END.split(_NOTE.sub("", written(answer))) if (words := _words(text))]
        if not sentences or is_refusal(answer):
            return Label(False)
        doubts = [_doubt(sentences, reference, asked) for reference in references]
        if None in doubts:
            n_asked = max(CARDINALS.get(word, 1) for word in ("", *question.question.casefold().split()))
            lacks = len(references) > 1 and doubts.count(None) < n_asked
            return Label(None, f"the question may ask for {n_asked} answers") if lacks else Label(True)
        if all(_is_ruled_out(sentences, reference, asked) for reference in references):
            return Label(False)
        return Label(None, next(filter(None, doubts), "no sentence states a reference"))


# -- Words: one form for the spellings of a word -----------------------------------------------------------------------


class _Word(NamedTuple):
    text: str
    """Without case, diacritics, and a possessive or plural "s"; numbers in digits."""
    gap: str
    """The characters between the word before and this one."""
    capital: bool
    """True if it begins with a capital or a digit."""

    @property
    def is_number(self) -> bool:
        return self.text[0].isdecimal()

    @property
    def is_name(self) -> bool:
        return self.capital and not self.is_number and self.text not in FUNCTION_WORDS


_NOTHING = _Word("-", "", False)
_WORD = re.compile(r"[^\W_]+(?:[.,:'&-](?=[^\W_])[^\W_]+)*[+#%]*")
_ORDINAL_END = re.compile(r"(?<=\d)(?:st|nd|rd|th)$")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_SENTENCE_END = re.compile(
    r"(?<=[^\W\d_]{2}[.!?])[\"')\]]*\s+(?=\W*[A-Z0-9])|(?<=\d[.!?])\s+(?=\W*[A-Z])|\n+"
)  # not after an initial: "J. F. Kennedy"
_NOTE = re.compile(r"\[\d+\]|\^\d+\^|(?<=[^\W\d_]{4})\d{1,2}\b")  # search engines glue the marks of notes to a word


def _words(text: str) -> tuple[_Word, ...]:
    """The words of a sentence, without articles."""
    words: list[_Word] = []
    end = 0
    for match in _WORD.finditer(text):
        raw = match[0]
        if raw.casefold() in ("a", "an", "the") and (raw != "A" or not words):  # "vitamin A" keeps its letter
            continue
        words.append(_Word(_folded(raw), text[end : match.start()], raw[0].isupper() or raw[0].isdecimal()))
        end = match.end()
    return tuple(words)


def _folded(raw: str) -> str:
    word = fold(raw).removesuffix("'s")
    if word[:1].isdecimal():
        return _ORDINAL_END.sub("", word.replace(",", ""))
    if (number := CARDINALS.get(word.replace("-", " "))) is not None:
        return str(number)
    word = word.replace(".", "")
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _numbers(words: Iterable[_Word]) -> set[str]:
    return {number for word in words for number in _DIGITS.findall(word.text)}


# -- References --------------------------------------------------------------------------------------------------------

_Kind = Literal["date", "number", "name", "description"]
_YES_NO = {"yes", "no"}
_MONTH_NAMES = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_MONTHS = {form: i for i, name in enumerate(_MONTH_NAMES, start=1) for form in (name, name[:3])} | {"sept": 9}


class _Reference(NamedTuple):
    words: tuple[_Word, ...]
    kind: _Kind
    is_asked: bool
    """True if the question has its words already: then only an answer that is equal states it."""

    @classmethod
    def of(cls, text: str, asked: frozenset[str]) -> _Reference:
        words = _words(written(text)) or (_Word(text or "-", "", False),)
        numbers, others = ([word for word in words if word.is_number is is_number] for is_number in (True, False))
        kind: _Kind = "description"
        if numbers and any(word.text in _MONTHS for word in others):
            kind = "date"
        elif all(word.text in SCALES | {"and"} for word in others) or (numbers and not any(w.capital for w in others)):
            kind = "number"
        elif words[0].text not in _YES_NO and all(word.capital or word.text in FUNCTION_WORDS for word in words):
            kind = "name"
        telling = numbers if numbers and kind in ("date", "number") else words
        return cls(words, kind, all(word.text in asked for word in telling))


# -- Right: a sentence states a reference ------------------------------------------------------------------------------


def _doubt(sentences: Sequence[Sequence[_Word]], reference: _Reference, asked: frozenset[str]) -> str | None:
    """None if a sentence states the reference; else why it does not, or "" if nothing comes near."""
    first = sentences[0]
    form = reference.words
    is_equal = len(sentences) == 1 and [word.text for word in first] == [word.text for word in form]
    if is_equal and ("-" in first[0].gap) == ("-" in form[0].gap):
        return None
    if reference.is_asked:
        return "the question itself has the words of the reference"
    doubts = [
        _beside(words, start, end, reference, asked)
        for words in sentences
        for start, end in _spans(words, reference, asked)
    ]
    if "" in doubts:
        return None
    return doubts[0] if doubts else ""


def _spans(words: Sequence[_Word], reference: _Reference, asked: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Places of a reference in a sentence: that of its first word, and the one behind its last."""
    texts = [word.text for word in words]
    wanted = [word.text for word in reference.words]
    n = len(wanted)
    if reference.kind == "date":
        for _, _, fields in _dates(reference.words):
            yield from ((start, end) for start, end, stated in _dates(words) if fields.items() <= stated.items())
        return
    new = set(wanted) - asked - FUNCTION_WORDS
    in_any_order = reference.kind == "description" and new and not _numbers(reference.words)
    for start, text in enumerate(texts):
        if texts[start : start + n] == wanted:
            yield start, start + n
        elif reference.kind == "name" and n > 1 and words[start].capital and text == wanted[0]:
            for end in range(start + 2, min(start + 5, len(words) + 1)):  # up to two names between first and last
                rest = words[start + 1 : end]
                if rest[-1].text == wanted[-1] and all(word.capital and "," not in word.gap for word in rest):
                    yield start, end
        elif in_any_order and text in new and new <= set(window := texts[start : start + n + 3]):
            yield start, start + max(map(window.index, new)) + 1


def _dates(words: Sequence[_Word]) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Dates with the name of a month: where they begin and end, with the day, month and year that they give."""

    def number(index: int) -> int:
        return int(words[index].text) if 0 <= index < len(words) and words[index].text.isdecimal() else 0

    for index, word in enumerate(words):
        if word.text not in _MONTHS or (word.text == "may" and not word.capital):
            continue
        fields = {"month": _MONTHS[word.text]}
        start, end = index, index + 1
        if 0 < number(index - 1) <= 31:
            fields["day"] = number(index - 1)
            start = index - 1
        elif 0 < number(index + 1) <= 31:
            fields["day"] = number(index + 1)
            end = index + 2
        if number(end) >= 1000:
            fields["year"] = number(end)
            end += 1
        yield start, end, fields


_TAKE_BACK = word_set(
    "or either except rather unlike opposite misconception myth rumor rumour mistakenly incorrectly wrongly falsely "
    "thought believed confused"
)
_BEFORE = word_set("near nearby like similar while than versus from")
_BEFORE_NUMBERS = _BEFORE | word_set(
    "over under above below nearly almost least most more less before after until since between minus negative"
)
_AFTER_NUMBERS = SCALES | word_set("percent bc bce squared cubed per half to")
_REACH = 6
"""Words behind a reference in which a negation or "or" is looked for."""


def _beside(words: Sequence[_Word], start: int, end: int, reference: _Reference, asked: frozenset[str]) -> str:
    """Return the reason why a sentence takes a reference back; "" if it does not."""
    texts = [word.text for word in words]
    beside = {*texts[:start], *texts[end : end + _REACH]} - asked - {word.text for word in reference.words}
    before = words[start - 1] if start else _NOTHING
    after = words[end] if end < len(words) else _NOTHING
    gap = words[start].gap
    taken_back = {text for text in beside if text in NEGATIONS | _TAKE_BACK or text.endswith("n't")}
    if taken_back:
        return f"{min(taken_back)!r} stands beside the reference"
    if before.text in (_BEFORE_NUMBERS if words[start].is_number else _BEFORE):
        return f"{before.text!r} stands before the reference"
    signs = set("$€£#") & set(gap) - set(reference.words[0].gap)
    if words[start].is_number and (signs or gap.endswith(("-", ".", "/"))):
        return "a sign stands before the number"
    if words[end - 1].is_number and (after.text in _AFTER_NUMBERS or after.gap.startswith(("-", "/", "%"))):
        return "the number goes on"
    # "South Africa" is not Africa, but "Alexander Fleming" answers who Fleming is
    is_surname = len(reference.words) > 1 or not asked.isdisjoint(("who", "whose"))
    is_longer = (before.is_name and gap == " " and not is_surname) or (after.is_name and after.gap == " ")
    if reference.kind == "name" and is_longer:
        return "the reference is part of a longer name (as Africa of South Africa)"
    return ""


# -- Wrong: nothing in the answer can be the reference -----------------------------------------------------------------


def _is_ruled_out(sentences: Sequence[Sequence[_Word]], reference: _Reference, asked: frozenset[str]) -> bool:
    """Return whether no reading of the answer can be the reference."""
    answered = [word for words in sentences for word in words]
    if {reference.words[0].text, answered[0].text} == _YES_NO:
        return True
    if reference.is_asked or reference.kind == "description":
        return False
    if reference.kind != "name" and (others := _numbers(answered)):
        # "1997" may be in "19971", where the mark of a note is glued to the year
        if any(a.startswith(b) or b.startswith(a) for a in _numbers(reference.words) for b in others):
            return False
        if others - asked:
            return True
    reference_words = {word.text for word in reference.words}
    new = reference_words - FUNCTION_WORDS - asked or reference_words
    # Words that begin alike may be forms of one word, as "Spain" and "Spanish".
    near = {word[:4] if len(word) > 3 else word for word in new}
    return near.isdisjoint(word.text[:4] if len(word.text) > 3 else word.text for word in answered)
