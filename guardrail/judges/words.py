"""Words: how judges, label rules and scores read a text.

Prose is folded: case, accents, punctuation and articles do not count. Everything else (operators, brackets, code) is
compared as written, so a chunk between spaces is prose only if it matches one pattern.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from ..plain_json import BLANK, INVISIBLE_CLASS

__all__ = ["CHANGING", "FUNCTION_WORDS", "NEGATIONS", "SCALES", "agree", "asked_words", "fold", "has_digit"]
__all__ += ["is_refusal", "normalise", "own_words", "read", "unspaced", "word_set", "written"]


def word_set(text: str) -> frozenset[str]:
    """The words of a list, written as one text."""
    return frozenset(text.split())


FUNCTION_WORDS = word_set("""
a an the this that these those it its he him his she her they them their we us our you your i me my who whom whose
which what when where why how there here of in on at to from by with for as into onto about between among during
through since upon and but nor so if then than because while although though however therefore thus hence is are was
were be been being do does did doing done has have had having will would shall should can could might must s t d m ll
re ve equal equals also just even still too very quite rather really actually usually generally mostly often sometimes
always probably likely perhaps maybe approximately roughly exactly currently now some any each same other answer answers
unable sorry unfortunately best guess say hard afraid apologize sure certain unsure verify know think believe help""")
NEGATIONS = word_set("not no never none neither nor without cannot false nobody nothing nowhere")
SCALES = word_set("hundred thousand million billion trillion quadrillion dozen lakh crore")
CHANGING = (
    NEGATIONS
    | SCALES
    | word_set("""
except excepting excluding exclude excludes excluded barring lacking lacks unlike or either only both all every more
less least most than under over below above before after until early late bc ad am pm per minus negative half third
thirds twice double squared cubed factorial""")
)
"""Words that change what the words beside them say: an answer with one is another answer than the same without it."""

_HIDDEN = re.compile(rf"(?<![\d.,{INVISIBLE_CLASS}])[{INVISIBLE_CLASS}]++|[{INVISIBLE_CLASS}]++(?![\d.,])")
"""Not inside a number, where it is unknown whether 5 and 0 or 50 is meant."""
_DASHES, _QUOTES = "\u2010\u2011\u2012\u2013\u2212", "\u2018\u2019\u02bc\u201c\u201d\u201e\u00ab\u00bb"
_ONE_WAY = str.maketrans(f"{_DASHES}{_QUOTES}\u00d7", '-----\'\'\'"""""*', "\u00ae\u2122")
_EMPHASIS = re.compile(r"(?<![^\s(])(\*{1,3}|`)(?=\S)([^*`\n]+)(?<=\S)\1(?=[.,:;!)]*(?:\s|$))")
_ARTICLES = re.compile(r'(?<![^\s("])(?:[Tt]he|THE|[Aa]n|AN|a) (?=["($]*(?:\d|[^\W\d_][^\s.,:]))')
"""Before a number or a word of two letters. A capital "A" may be an answer or a name."""
_FIRST_ARTICLE = re.compile(r"^A (?!and |or )(?=[^\W\d_][^\s.,:])")
_PART = r"(?:a[a0]*|\$?(?:0+(?:[.,:/]0+)*|\.0+)(?:%|a*)|a(?:\.a)+)"
_CORE = rf"((?:-(?=[$0.]))?{_PART}(?:(?:(?<=aa)-|-(?=aa)|(?<=a)'(?=a)){_PART})*)"
_PROSE = re.compile(rf'(?=.*aa)["(]*{_CORE}[.,:!)"]*|\(?{_CORE}\)?[.,:]?\)?')
"""A chunk of prose, in its shape. Quotes and "!" stand beside words of two letters only: "5!" and 6" are not prose."""
_QUOTED = re.compile(r"^'((?:[^\W\d_]+[ -])+[^\W\d_]+)'$")
"""Several words in single quotes: a title. One word in quotes may be a literal of code."""
_ELLIPSIS = re.compile(r"^\.{2,}(?=[^\W\d_]{2})")
_ATTRIBUTE = re.compile(r"[a-z](?:\.[a-z])+")
"""Code, where capitals would be initials."""
_AND = re.compile(r"\b([A-Z][^\W\d_]+) & (?=[A-Z][^\W\d_])")
"""Between two words that begin with capitals, as in a name; elsewhere "&" may be an operator."""
_JOINT = re.compile(r"(?<=.)[-']|(?<=^[^\W\d_])\.|(?<=\.[^\W\d_])\.")


class Reading(NamedTuple):
    """The parts of a text that are compared.

    Attributes:
        words: Its words, folded, without articles; a chunk that is not prose is one word, as written.
        marks: The chunks that are not prose.
        normal: One form for all spellings of an answer: the words, or with marks the text as written.
    """

    words: tuple[str, ...]
    marks: tuple[str, ...]
    normal: str


def unspaced(text: str) -> str:
    """A text with one space for each run of white space, and none at its ends."""
    return " ".join(text.split())


def written(text: str) -> str:
    """A text with one way to write each dash, quote and space, without emphasis and invisible characters."""
    plain = unicodedata.normalize("NFC", BLANK.sub(" ", _HIDDEN.sub("", text))).translate(_ONE_WAY)
    return _EMPHASIS.sub(r"\2", unspaced(plain)).replace(" %", "%")


def fold(word: str) -> str:
    """A word without case and accents. The vowel signs of other scripts stay."""
    if word.isascii():
        return word.casefold()
    bare = (char for char in unicodedata.normalize("NFKD", word) if not "\u0300" <= char <= "\u036f")
    return unicodedata.normalize("NFC", "".join(bare)).casefold()


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """The words of a text: the one definition of a word."""
    plain = _ELLIPSIS.sub("", _QUOTED.sub(r"\1", written(text)))
    plain = _AND.sub(r"\1 and ", plain)
    is_formula = not any(sign in _shape(plain) for sign in ("aa", '"', "'"))
    if not is_formula:
        plain = _ARTICLES.sub("", _FIRST_ARTICLE.sub("", plain.replace(" = ", " equals ")))
    words: list[str] = []
    marks: list[str] = []
    for chunk in plain.split():
        match = _PROSE.fullmatch(_shape(chunk))
        if match is None or _ATTRIBUTE.fullmatch(chunk):
            words.append(chunk)
            marks.append(chunk)
        else:  # a shape has one letter for each of its text, so that places found in it cut the text
            words += _folded(chunk[slice(*match.span(match.lastindex or 0))], words[-1:])
    if not marks:
        return Reading(tuple(words), (), " ".join(words))
    # "x=5" is "x = 5", but "rm a*b" is not "rm a * b".
    plain = re.sub(r" ?([^\w\s]) ?", r"\1", plain) if is_formula else plain
    return Reading(tuple(words), tuple(marks), re.sub(r"(?<=[\w%)])\.$", "", plain))


def _shape(text: str) -> str:
    return "".join(map(_kind, text))


@lru_cache(maxsize=4096)
def _kind(char: str) -> str:
    """The kind of a character: "a" letter or its mark, "0" digit, "$" currency; other ASCII stays, the rest is "~"."""
    kind = unicodedata.category(char)
    return "a" if kind[0] in "LM" else {"Nd": "0", "Sc": "$"}.get(kind, char if char < "\x80" else "~")


def _folded(core: str, before: list[str]) -> list[str]:
    """The words of a chunk of prose. Letters behind a number may be a unit, in which case counts: 5 mW is not 5 MW."""
    if core.casefold().endswith("n't"):
        return {"can't": ["cannot"], "won't": ["will", "not"]}.get(core.casefold(), [fold(core[:-3]), "not"])
    folded = []
    for word in _JOINT.split(core):
        if word in ("a", "A"):
            folded.append("A")  # not an article
        elif word[0].isalpha() and (len(word) > 3 or not before or not before[0][-1].isdecimal()):
            folded.append(fold(word))
        else:
            folded.append(re.sub(r"^(\D?\d+)\.0+$", r"\1", re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", word)))
    return folded


def normalise(text: str) -> str:
    """One form for all ways to write an answer; equal forms are the same answer. Empty for white space only."""
    return read(text).normal


def has_digit(word: str) -> bool:
    """Return whether a word has a digit."""
    return any(map(str.isdecimal, word))


@lru_cache(maxsize=256)
def asked_words(question: str) -> frozenset[str]:
    """The words of a question. A "?" is punctuation here; in an answer it may be code."""
    return frozenset(read(question.replace("?", " ")).words)


def own_words(question: str, text: str) -> list[str]:
    """The words of an answer that are neither function words nor in the question, in order."""
    asked = asked_words(question)
    return [word for word in read(text).words if word not in FUNCTION_WORDS and word not in asked]


def agree(a: str, b: str) -> bool:
    """Return whether two texts share their non-prose chunks, numbers and words that change what others say."""
    ours, theirs = read(a), read(b)
    same_numbers = [*filter(has_digit, ours.words)] == [*filter(has_digit, theirs.words)]
    return same_numbers and ours.marks == theirs.marks and CHANGING & {*ours.words} == CHANGING & {*theirs.words}


# -- Refusals: answers that give no answer ---------------------------------------------------------------------------

_REFUSES = word_set(
    "sorry unknown unsure uncertain unable apologize apologise apologies unfortunately regrettably afraid"
)
_ACTS = word_set("""answer say tell help assist comply comment provide share discuss determine find confirm verify know
give respond understand recall remember sure certain certainty aware information idea opinion""")
_DENIES = word_set("not cannot no refuse decline")  # "never" and "nothing" stand in titles: Never Say Never
_BESIDE = word_set("""i we you am are be is a the this that these it any my do have will would can could to with on
about regarding for of here at now but so very really just as an ai language model assistant more enough further
specific sufficient able question request details data topic matter d m re prefer rather refuse decline time moment""")


@lru_cache(maxsize=4096)
def is_refusal(text: str) -> bool:
    """Return whether an answer only refuses to answer: all of its words stand on a closed list.

    A refusal that is missed is one more meaning; an answer taken for a refusal would be lost.
    """
    words = frozenset(read(text).words)
    refuses = words & _REFUSES or (words & _ACTS and words & _DENIES)
    by_someone = len(words) <= 3 or not words.isdisjoint(("i", "we"))
    return bool(refuses) and by_someone and words <= _REFUSES | _ACTS | _BESIDE | NEGATIONS
