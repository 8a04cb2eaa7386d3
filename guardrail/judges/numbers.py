"""Numbers with their labels: how they are read from answers, and when two of them are equal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ..specs import JudgeSpec
from .base import Judge
from .words import CHANGING, FUNCTION_WORDS, asked_words, has_digit, normalise, read, word_set, written

__all__ = ["CARDINALS", "Number", "NumericJudge", "labels_agree", "parse_number"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number read from a text, exactly.

    Attributes:
        value: Its value: 0.5 for "50%", 5 for "5 million".
        label: The words behind it: unit, currency, scale or counted noun, in one spelling; empty for a bare number.
        lead: The words before it that say more than that a number follows: "profit" of "a profit of $5 million".
        spelling: Its digits, if they may be a version or a date ("1.10", "10/12"); "" otherwise.
    """

    value: Fraction
    label: tuple[str, ...] = ()
    lead: tuple[str, ...] = ()
    spelling: str = ""

    @property
    def percent(self) -> bool:
        """True if it was written as a percentage."""
        return self.label[:1] == ("%",)

    @property
    def rounded(self) -> Fraction:
        """The value, if it has decimals to nine significant digits and at least three decimals, for rounding errors."""
        # Whole numbers exactly: ids and counts that differ in the last digit are different.
        if self.value.denominator == 1:
            return self.value
        whole = int(abs(self.value))
        size = len(str(whole)) if whole else 1 - len(str(int(1 / abs(self.value))))
        return round(self.value, max(3, 9 - size))


def labels_agree(a: Number, b: Number) -> bool:
    """Return whether one label begins with the other, and the rest makes no other number of it. Not transitive."""
    short, long = sorted((a.label, b.label), key=len)
    return long[: len(short)] == short and not any(map(_makes_another, long[len(short) :]))


# -- Reading a number: exactly, with its label, or not at all ----------------------------------------------------------

_LATEX = (
    (re.compile(r"\\[dt]?frac\s?\{(-?\d+)\}\s?\{(\d+)\}"), r" \1/\2 "),
    (re.compile(r"\\(?:boxed|text(?:bf|it|rm)?|math(?:bf|it|rm))\s?\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\{(,)\}|\\([%$])|\\[()\[\],;: ]|^#+ "), r"\1\2"),
    (re.compile(r"(?<![\w$])(\${1,2})([^$\n]+)\1(?![\w$])"), r" \2 "),
)
_LEFT_SIDE = re.compile(r"^(?:[-\d\s.,+*/()^%$=]+|[^\W\d_]+ ?)(?<![!<>])= ?")
"""A calculation or a name before "=": "2 + 3 = 5" and "x = 5" state 5, but "2x = 5" and "-x = 5" do not."""
_NUMBER = re.compile(
    r"(-?)([$\u20ac\u00a3\u00a5\u20b9]?)((?!0\d)\d{1,400}(?:\.\d{1,400})?(?:[eE][-+]?\d{1,3})?|\.\d{1,400}"
    r"|[1-9]\d{0,399}/[1-9]\d{0,399})(%|[^\W\d_]*)"
)
_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SPELT = [*_ONES, *_TEENS, *(f"{ten} {one}".strip() for ten in _TENS for one in ["", *_ONES[1:]])]
CARDINALS = {word: number for number, word in enumerate(_SPELT)}
"""Numbers in words up to ninety-nine, as `normalise` writes them."""
_UNITS = """$ usd dollar|\u20ac eur euro|\u00a3 gbp sterling|\u00a5 jpy yen|\u20b9 inr rupee|% percent pct|meter m metre
|kilometer km kilometre|centimeter cm centimetre|millimeter mm millimetre|mile mi|foot ft feet|inch in inche|gram g
|kilogram kg kgs|milligram mg|tonne t|pound lb lbs|ounce oz|liter l L litre|milliliter ml mL|second s sec|minute min
|hour h hr|day d|week wk|year yr|watt W|volt V|hertz Hz"""
"""Spellings of one unit; none is converted into another."""
_ALIASES = {word: row.split()[0] for row in _UNITS.split("|") for word in row.split()}
_SIGNS = {"$", "\u20ac", "\u00a3", "\u00a5", "\u20b9", "%"}
_INTRODUCING = FUNCTION_WORDS | word_set("""amount amounts total sum price cost costs value average result number count
year come comes came get gets give gives final correct estimate estimated around circa approx""")
"""Words before a number that say no more than that a number follows."""
_OTHER_NUMBER = (
    CHANGING | CARDINALS.keys() | word_set("within exceeding between square root log factor up times mil bn tn minimum")
)


@lru_cache(maxsize=4096)
def parse_number(text: str) -> Number | None:
    r"""The number that a text states; None if it states none, or several, or if reading it would be a guess.

    Read: signs, thousands ("1,000"), decimals, fractions ("3/4"), exponents ("2e3"), percentages, LaTeX
    (``\boxed{5}``), and texts that are one number in words up to ninety-nine. A calculation or a name before "="
    does not count.
    """
    words, marks, normal = read(_LEFT_SIDE.sub("", written(_without_latex(text))))
    if normal in CARDINALS:
        return Number(Fraction(CARDINALS[normal]))
    places = [index for index, word in enumerate(words) if has_digit(word)]
    match = _NUMBER.fullmatch(words[places[0]]) if len(places) == 1 else None
    if match is None or not set(marks) <= {match[0]}:
        return None
    sign, money, digits, suffix = match.groups()
    lead = tuple(word for word in words[: places[0]] if word not in _INTRODUCING)
    if any(map(_makes_another, lead)) or not (suffix.isalpha() or suffix in ("", "%")):  # "1\u00bd" has no such letter
        return None
    label = _label(money, suffix, words[places[0] + 1 :])
    value = Fraction(digits) * (-1 if sign else 1) / (100 if "%" in label else 1)
    unclear = not label and (str(Fraction(digits)) != digits if "/" in digits else re.match(r"[1-9].*\..*0$", digits))
    return Number(value, label, lead, digits if unclear else "")


def _without_latex(text: str) -> str:
    for pattern, plain in _LATEX if not {"\\", "$", "#", "{"}.isdisjoint(text) else ():
        text = pattern.sub(plain, text)
    return text


def _label(money: str, suffix: str, behind: Sequence[str]) -> tuple[str, ...]:
    """The words behind a number, signs first: "5 million dollars" is "$5 million"."""
    words = [word for i, word in enumerate(behind) if word not in FUNCTION_WORDS or (not i and word in _ALIASES)]
    if suffix:  # "5k", "21st" and "$5m" are other numbers than 5, "5km" is not
        words.insert(0, suffix if suffix == "%" or (len(suffix) > 1 and suffix in _ALIASES) else f"-{suffix}")
    elif money and words and len(words[0]) == 1:
        words[0] = f"-{words[0]}"
    return tuple(sorted(map(_one_spelling, filter(None, (money, *words))), key=lambda word: word not in _SIGNS))


def _one_spelling(word: str) -> str:
    single = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
    known = _ALIASES.get(word) or _ALIASES.get(single)
    return known or (_ALIASES.get(word.casefold(), single) if len(word) > 2 else single)


def _makes_another(word: str) -> bool:
    """Return whether a word beside a number makes another number of it, or names it by a letter."""
    return word.casefold() in _OTHER_NUMBER or word[0] == "-" or (len(word) == 1 and word not in _SIGNS)


# -- The judge ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumericJudge(Judge):
    """Two answers are the same iff each states one number, and the numbers, their labels and what precedes them agree.

    Labels are units, currencies, words of scale and counted nouns. They agree if one begins with the other: "5 km" is
    "5", not "5 m". Nothing is converted: "5 km" is not "5000 m", and "5 million" is neither "5,000,000" nor "5". Only
    "%" is read: "50%" = "0.5". Whole numbers are compared exactly, others to nine significant digits and at least three
    decimals.

    Words before a number must be equal ("a profit of $5 million" is not "a loss of $5 million"), except those that only
    introduce it ("about") and those of the question that one of the answers leaves out. A bare number whose digits may
    be a version or a date ("1.10", "10/12") equals only the same digits. Everything else (dates, times, ranges, bounds,
    lists, formulas) is a text: two of them are the same iff their normal forms are, and none is the same as a number.
    """

    is_slow = False

    spec = JudgeSpec(name="numeric", version=8, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of the numbers that they state; words of the question before them do not count."""
        asked = asked_words(question)
        return [_same(asked, a, b) for a, b in pairs]


def _same(asked: frozenset[str], a: str, b: str) -> bool:
    ours, theirs = parse_number(a), parse_number(b)
    if ours is None or theirs is None:
        return ours is theirs and normalise(a) == normalise(b)
    fewer, more = sorted((set(ours.lead), set(theirs.lead)), key=len)
    leads_agree = ours.lead == theirs.lead or (fewer < more and more - fewer <= asked)
    equal = ours.rounded == theirs.rounded and ours.spelling == theirs.spelling
    return equal and leads_agree and labels_agree(ours, theirs)
