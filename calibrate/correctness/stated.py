"""The rule `stated`: right, wrong or undecided, for references of a few words and answers in sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

from guardrail.judges.text import CARDINALS, FUNCTION_WORDS, NEGATIONS, SCALES, is_refusal, word_set, written
from guardrail.specs import CorrectnessSpec

from ..data.questions import Question
from .base import Label

__all__ = ["Stated"]


@dataclass(frozen=True, slots=True)
class Stated:
    """Right iff a sentence states a reference and takes nothing of it back; in doubt undecided.

    A sentence states a reference with its words in their order, the same date, or the first and last word of a name.
    A negation, "or", a correction, a comparison, or another number or name beside the words takes it back. An answer
    is wrong if it refuses, or if every reference is a name, a number or a date and the answer has no word of it.
    Every other answer is undecided: a person or a model has to label it, and until then it counts as wrong.

    Current limitations: the rule compares words and reads no relations. "20 km from Berlin" and "anything but oxygen"
    state Berlin and oxygen.
    """

    compares_words: ClassVar[bool] = True

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="stated", version=1, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Compare the answer with each reference: right if one is stated, wrong if none can be, else undecided."""
        asked = frozenset(word.text for word in _words(question.question))
        references = [_Reference.of(text, asked) for text in question.references]
        sentences = [words for text in _SENTENCE_END.split(_plain(answer)) if (words := _words(text))]
        if not sentences or is_refusal(answer):
            return Label(False)
        neighbours = frozenset(word.text for reference in references for form in reference.forms for word in form)
        doubts = [_doubt(sentences, reference, asked, neighbours) for reference in references]
        stated = [reference for reference, doubt in zip(references, doubts, strict=True) if doubt is None]
        if stated:
            lacking = _lacking(stated, references, question.question, sentences)
            return Label(None, lacking) if lacking else Label(True)
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
    """Whether it begins with a capital or a digit."""


_WORD = re.compile(r"[^\W_]+(?:[.,:'&-](?=[^\W_])[^\W_]+)*[+#%]*")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_SENTENCE_END = re.compile(
    r"(?<=[^\W\d_]{2}[.!?])[\"')\]]*\s+(?=\W*[A-Z0-9])|(?<=\d[.!?])\s+(?=\W*[A-Z])|\n+"
)  # not after an initial: "J. F. Kennedy"
_NOTE = re.compile(r"\[\d+\]|\^\d+\^|(?<=[^\W\d_]{4})\d{1,2}\b")  # search engines glue the marks of notes to a word
_EQUALS = re.compile(r"(?<![=!<>:])=(?![=>])")
_PARENTHESES = re.compile(r"\s*\(([^()]*)\)")
_ARTICLES = word_set("a an the")


def _plain(text: str) -> str:
    return _EQUALS.sub(" is ", _NOTE.sub("", written(text)))


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[_Word, ...]:
    """The words of a sentence, without articles."""
    words, end = list[_Word](), 0
    for match in _WORD.finditer(text):
        raw = match[0]
        if raw.casefold() in _ARTICLES and (raw != "A" or not words):  # "vitamin A" keeps its letter
            continue
        words.append(_Word(_folded(raw), text[end : match.start()], raw[0].isupper() or raw[0].isdecimal()))
        end = match.end()
    return tuple(words)


def _folded(raw: str) -> str:
    bare = "".join(char for char in unicodedata.normalize("NFD", raw) if not unicodedata.combining(char))
    word = bare.casefold().removesuffix("'s").replace("'", "")
    if word[:1].isdecimal():
        ordinal = _ORDINAL.fullmatch(word)
        return ordinal[1] if ordinal else word.replace(",", "")
    if (spaced := word.replace("-", " ")) in CARDINALS:
        return str(CARDINALS[spaced])
    word = word.replace(".", "")
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _numbers(words: Iterable[_Word]) -> set[str]:
    return {number for word in words for number in _DIGITS.findall(word.text)}


# -- References: their kind, and the ways to write them ----------------------------------------------------------------


class _Reference(NamedTuple):
    forms: tuple[tuple[_Word, ...], ...]
    kind: Literal["yes or no", "date", "number", "name", "description"]
    is_asked: bool
    """Whether the question has its words already: then only an answer that is equal states it."""
    has_sentences: bool
    """Whether it ends a sentence inside, as "Portugal. The Man" does."""

    @classmethod
    def of(cls, text: str, asked: frozenset[str]) -> _Reference:
        plain = _plain(text)
        forms = tuple(filter(None, map(_words, _forms(plain)))) or ((_Word(plain, "", False),),)
        words = forms[0]
        numbers = [word for word in words if word.text[0].isdecimal()]
        telling: Sequence[_Word] = words
        kind: Literal["yes or no", "date", "number", "name", "description"] = "description"
        if len(words) == 1 and words[0].text in _YES_NO:
            kind = "yes or no"
        elif numbers and any(word.text in _MONTHS for word in words):
            kind, telling = "date", numbers
        elif numbers and not any(word.capital for word in words if word not in numbers):
            kind, telling = "number", numbers
        elif all(word.text in SCALES | {"and"} for word in words if word not in numbers):
            kind = "number"  # "one hundred and seven"
        elif all(word.capital or word.text in FUNCTION_WORDS for word in words):
            kind = "name"
        is_asked = all(word.text in asked for word in telling)
        return cls(forms, kind, is_asked, _SENTENCE_END.search(plain) is not None)


_YES_NO = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_MONTHS = {
    name: month
    for month, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
            "september sept sep", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip


def _forms(text: str) -> Iterator[str]:
    """A reference itself, without parentheses, the acronym in them, and each part of "X or Y"."""
    yield text
    if _PARENTHESES.search(text):
        yield _PARENTHESES.sub("", text)
        yield from (inside for inside in _PARENTHESES.findall(text) if inside.isupper())
    if " or " in text:
        yield from text.split(" or ")


# -- Right: a sentence states a reference ------------------------------------------------------------------------------


def _doubt(
    sentences: Sequence[Sequence[_Word]], reference: _Reference, asked: frozenset[str], neighbours: frozenset[str]
) -> str | None:
    """None if a sentence states the reference; else why it does not, or "" if nothing comes near."""
    if reference.kind == "yes or no":
        return _yes_or_no(sentences, reference)
    if reference.has_sentences:
        sentences = [[word for words in sentences for word in words]]
    doubts = list[str]()
    for place, words in enumerate(sentences):
        for form in reference.forms:
            if len(sentences) == 1 and [word.text for word in words] == [word.text for word in form]:
                return (
                    None
                    if words[0].gap[-1:] == "-" == form[0].gap[-1:] or "-" not in words[0].gap[-1:] + form[0].gap[-1:]
                    else "a sign differs"
                )
            if reference.is_asked:
                doubts.append("the question itself has the words of the reference")
                continue
            for start, end in _spans(words, form, reference, asked):
                doubt = (
                    _beside(words, start, end, form, reference, asked, neighbours)
                    or _corrected(sentences[place : place + 2], words[:start])
                    or (place and _opens_with_another(sentences[0], form, asked) and "another name comes first")
                )
                if not doubt:
                    return None
                doubts.append(doubt)
    return doubts[0] if doubts else ""


def _yes_or_no(sentences: Sequence[Sequence[_Word]], reference: _Reference) -> str | None:
    if {"but", "or", "opposite"} & {word.text for words in sentences for word in words}:
        return "a correction follows"
    first = _YES_NO.get(sentences[0][0].text)
    return None if first == _YES_NO[reference.forms[0][0].text] else "" if first else "the first word does not decide"


def _spans(
    words: Sequence[_Word], form: Sequence[_Word], reference: _Reference, asked: frozenset[str]
) -> Iterator[tuple[int, int]]:
    """Where a sentence has a form: the place of its first word, and the place behind its last."""
    texts, wanted = [word.text for word in words], [word.text for word in form]
    if reference.kind == "date":
        for _, _, fields in _dates(form):
            yield from ((start, end) for start, end, stated in _dates(words) if fields.items() <= stated.items())
        return
    for start in range(len(words) - len(form) + 1):
        end = start + len(form)
        if texts[start:end] == wanted and all(map(_is_joined, words[start + 1 : end], form[1:])):
            yield start, end
    if reference.kind == "name" and len(form) > 1:
        for start, word in enumerate(words):
            first = word.capital and (
                word.text == wanted[0] or (len(word.text) == 1 and wanted[0].startswith(word.text))
            )
            for end in range(start + 2, min(start + 5, len(words) + 1)):
                rest = words[start + 1 : end]
                if first and rest[-1].text == wanted[-1] and all(w.capital and "," not in w.gap for w in rest):
                    yield start, end
    new = set(wanted) - asked - FUNCTION_WORDS
    if reference.kind == "description" and new and not _numbers(form):
        for start, text in enumerate(texts):
            window = texts[start : start + len(form) + 3]
            if text in new and new <= set(window):
                yield start, start + max(map(window.index, new)) + 1


def _is_joined(word: _Word, wanted: _Word) -> bool:
    """Whether no comma or bracket stands before a word, except where the reference has one."""
    return set(",;:(").isdisjoint(word.gap) or not set(",;:(").isdisjoint(wanted.gap)


def _dates(words: Sequence[_Word]) -> Iterator[tuple[int, int, dict[str, int]]]:
    """Dates with the name of a month: where they begin and end, with the day, month and year that they give."""

    def number(place: int) -> int:
        return int(words[place].text) if 0 <= place < len(words) and words[place].text.isdecimal() else 0

    for place, word in enumerate(words):
        if word.text not in _MONTHS or (word.text == "may" and not word.capital):
            continue
        fields, start, end = {"month": _MONTHS[word.text]}, place, place + 1
        if 0 < number(place - 1) <= 31:
            fields["day"], start = number(place - 1), place - 1
        elif 0 < number(place + 1) <= 31:
            fields["day"], end = number(place + 1), place + 2
        if number(end) >= 1000:
            fields["year"], end = number(end), end + 1
        yield start, end, fields


# -- What takes it back ------------------------------------------------------------------------------------------------

_TAKE_BACK = word_set(
    "misconception myth rumor rumour mistakenly mistaken incorrectly wrongly falsely except excluding rather unlike "
    "fictional opposite either or confused"
)
_COMPARE = word_set("near nearby like similar while than unlike from versus")
_BELIEVED = word_set("thought believed said claimed supposed originally initially once formerly previously")
_CORRECT = word_set("but however although though actually")
_BEFORE_NUMBERS = word_set(
    "over under above below nearly almost least most more less than before after until since between minus negative "
    "past early late mid"
)
_AFTER_NUMBERS = SCALES | word_set("percent bc bce squared cubed per half to")
_NEGATED = re.compile(r"(?:is|are|was|were|do|does|did|ca|could|ha|have|had|wo|would|should)nt")
_REACH = 6
"""Words behind a reference in which a negation or "or" is looked for."""


def _beside(
    words: Sequence[_Word],
    start: int,
    end: int,
    form: Sequence[_Word],
    reference: _Reference,
    asked: frozenset[str],
    neighbours: frozenset[str],
) -> str:
    """What in a sentence takes a reference back, in words; "" if nothing does."""
    texts = [word.text for word in words]
    beside = {*texts[:start], *texts[end : end + _REACH]} - asked - {word.text for word in form}
    before, after = "".join(texts[start - 1 : start]), "".join(texts[end : end + 1])
    gap_before, gap_after = words[start].gap, words[end].gap if end < len(words) else ""
    if any(text in NEGATIONS or _NEGATED.fullmatch(text) for text in beside):
        return "a negation stands beside it"
    if hits := _TAKE_BACK & beside:
        return f"{min(hits)!r} stands beside it"
    if before in _COMPARE:
        return f"{before!r} stands before it"
    if texts[start][0].isdecimal():
        signs = set("$€£#") & set(gap_before) - set(form[0].gap)
        if before in _BEFORE_NUMBERS or signs or gap_before.endswith(("-", ".", "/")):
            return "a sign or a bound stands before the number"
    if texts[end - 1][0].isdecimal() and (after in _AFTER_NUMBERS or gap_after.startswith(("-", "/", "%"))):
        return "the number goes on"
    if reference.kind == "name":
        # "South Africa" is not Africa, but "Alexander Fleming" answers who Fleming is
        if len(form) == 1 and gap_before == " " and _is_name(words, start - 1) and asked.isdisjoint(("who", "whose")):
            return "a name stands before it"
        if gap_after == " " and _is_name(words, end):
            return "a name stands after it"
        ahead, behind = (start - 2 if before == "and" else -1), (end + 1 if after == "and" and gap_after == " " else -1)
        if any(_is_name(words, place) and texts[place] not in neighbours for place in (ahead, behind)):
            return "it is one of several"
    return ""


def _is_name(words: Sequence[_Word], place: int) -> bool:
    """Whether the word at a place may be part of a name."""
    if not 0 <= place < len(words):
        return False
    word = words[place]
    return word.capital and not word.text[0].isdecimal() and word.text not in FUNCTION_WORDS


def _corrected(sentences: Sequence[Sequence[_Word]], before: Sequence[_Word]) -> str:
    """Whether a sentence reports a belief that it, or the next one, corrects."""
    reported = not _BELIEVED.isdisjoint(word.text for word in before)
    corrected = any(word.text in _CORRECT for words in sentences for word in words)
    return "a belief is reported and corrected" if reported and corrected else ""


def _opens_with_another(words: Sequence[_Word], form: Sequence[_Word], asked: frozenset[str]) -> bool:
    """Whether the first sentence is nothing but a name, and not that of the reference."""
    texts = {word.text for word in words}
    is_name = len(words) <= 4 and all(word.capital or word.text in FUNCTION_WORDS for word in words)
    return is_name and texts.isdisjoint(word.text for word in form) and not texts <= asked


def _lacking(
    stated: Sequence[_Reference], references: Sequence[_Reference], question: str, sentences: Sequence[Sequence[_Word]]
) -> str:
    """What the question asks for beside the stated references, in words; "" for nothing."""
    kinds, wanted = (
        {"time" if r.kind in ("number", "date") else r.kind for r in some} for some in (stated, references)
    )
    if " and " in question and {"time", "name"} <= wanted and not {"time", "name"} <= kinds:
        return "the question asks for a name and a number, and the answer states one of them"
    count = next((CARDINALS[word] for word in question.casefold().split() if 1 < CARDINALS.get(word, 0) < 10), 1)
    if len(references) > 1 and len(stated) < count:
        return f"the question may ask for {count}, and the answer states {len(stated)}"
    exact = any(reference.kind == "date" for reference in references)
    if exact and not any(reference.kind == "date" for reference in stated) and any(map(list, map(_dates, sentences))):
        return "the answer has the year of a reference and another day or month"
    return ""


# -- Wrong: nothing in the answer can be the reference -----------------------------------------------------------------


def _is_ruled_out(sentences: Sequence[Sequence[_Word]], reference: _Reference, asked: frozenset[str]) -> bool:
    """Whether no reading of the answer can be the reference."""
    texts = {word.text for words in sentences for word in words}
    if reference.is_asked or reference.kind == "description":
        return False
    if reference.kind == "yes or no":
        return _yes_or_no(sentences, reference) == ""
    if reference.kind == "name":
        return not _is_near(texts, reference, asked)
    wanted = _numbers(word for form in reference.forms for word in form)
    stated = _numbers(word for words in sentences for word in words)
    if any(a.startswith(b) or b.startswith(a) for a in wanted for b in stated):
        return False  # "1997" may be in "19971", where the mark of a note is glued to the year
    units = {word.text for word in reference.forms[0] if word.text.isalpha()} - FUNCTION_WORDS - SCALES - set(_MONTHS)
    return units <= texts if stated - asked else not _is_near(texts, reference, asked)


def _is_near(texts: Iterable[str], reference: _Reference, asked: frozenset[str]) -> bool:
    """Whether an answer has a new word of the reference, or one that begins alike."""
    own = {word.text for form in reference.forms for word in form}
    new = own - FUNCTION_WORDS - asked or own
    return any(a == b or (min(len(a), len(b)) > 3 and a[:4] == b[:4]) for a in texts for b in new)
