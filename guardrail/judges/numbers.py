"""Numbers with their units: how they are read from answers, and when two of them are equal."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import prod

from ..specs import JudgeSpec
from .base import BatchJudge
from .text import normalise
from .units import (
    AMBIGUOUS_LETTERS,
    FUNCTION_WORDS,
    PERCENT,
    Unit,
    find_unit,
    in_formula,
    is_symbol,
    is_variable,
    looks_like_unit,
    ratios,
)

__all__ = [
    "ROUNDING",
    "Number",
    "NumericJudge",
    "commands",
    "figures",
    "may_join",
    "parse_number",
    "plain_words",
    "same_figures",
    "same_number",
]

ROUNDING = Fraction(1, 10**9)
"""Largest relative difference of two numbers that count as equal, at least one of which has decimals. Another value
raises the version of the judge."""
_LEAST = Fraction(1, 1000)
"""Largest absolute one: two prices that differ by a cent are never equal, however large."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number read from a text, exactly.

    Attributes:
        value: Its value as written, scale read: 0.5 for "50%", 5,000,000 for "5 million km". What it is compared by
            with a number that has no unit.
        dimension: What its unit measures, e.g. "length" or "USD"; None without a unit.
        size: Size of the unit in the dimension's base unit; 1 without one, and for percentages.
    """

    value: Fraction
    dimension: str | None = None
    size: Fraction = Fraction(1)

    @property
    def percent(self) -> bool:
        """Whether it was written as a percentage."""
        return self.dimension == PERCENT[0]

    @property
    def amount(self) -> Fraction:
        """Value in the base unit of its dimension: 5000 for "5 km"."""
        return self.value * self.size


def same_number(a: Number, b: Number, rounding: Fraction = ROUNDING) -> bool:
    """Whether two numbers are equal: symmetric, but through numbers without a unit not transitive (5 km, 5, 5 m).

    Both with a unit: same dimension and equal amounts. One without: its unit is implied by the question, so the values
    as written. Whole numbers are compared exactly; others up to ``rounding`` relative, and never more than 0.001.
    """
    if a.dimension is None or b.dimension is None:
        x, y = a.value, b.value
    elif a.dimension == b.dimension:
        x, y = a.amount, b.amount
    else:
        return False
    if x == y or a.value.denominator == b.value.denominator == 1:
        return x == y
    return abs(x - y) <= min(rounding * max(abs(x), abs(y)), _LEAST)


def may_join(a: Number, b: Number, further: int) -> bool:
    """Whether at most ``further`` other numbers could form a chain of `same_number` between two numbers.

    Apart from rounding there is one way: 5 = 5 km = 5000 m = 5000. It takes three steps and changes the value as
    written by a ratio of two units of one dimension; each end that has a unit saves a step. Never narrower than the
    truth: if two such changes fit, all numbers of one sign count as joinable.
    """
    if (a.value > 0, a.value < 0) != (b.value > 0, b.value < 0):
        return False
    if a.value == b.value:
        return True
    changes = (further + 1 + (a.dimension is not None) + (b.dimension is not None)) // 3
    if changes > 1:
        return True
    ratio, slack = a.value / b.value, 2 * ROUNDING * (further + 2)
    low, high = _float(ratio * (1 - slack)), _float(ratio * (1 + slack))
    if changes == 0:
        return low <= 1 <= high
    known = _ratios()
    at = bisect_left(known, low)
    return at < len(known) and known[at] <= high


def _float(ratio: Fraction) -> float:
    try:
        return float(ratio)
    except OverflowError:
        return float("inf")


@lru_cache(maxsize=1)
def _ratios() -> list[float]:
    """Ratios of units, sorted; their rounding is far below the slack."""
    return sorted(map(float, ratios()))


# -- Reading a number: exactly, with its unit, or not at all -----------------------------------------------------------

_GROUPS = r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?:'\d{3})+|(?:_\d{3})+)"
_MONEY = (
    r"(?:US|CA|AU|NZ|HK|MX|[CASR])?\$|[\u20ac\u00a3\u00a5\u20b9\u20a9\u20bd\u20ba\u20aa\u20bf]|Rs\.?|"
    r"USD|EUR|GBP|JPY|CHF|CNY|RMB|INR|CAD|AUD"
)
_WORD = re.compile(
    rf"(?P<sign>[-+]?)(?P<money>{_MONEY})?(?P<inner>-?)(?P<top>(?:{_GROUPS}|0|[1-9]\d*)(?:\.\d+)?|\.\d+)"
    r"(?:/(?P<bottom>[1-9]\d*)(?![\d./,^])|[eE](?P<exponent>[-+]?\d{1,3})(?!\w)|\^(?P<power>-?\d{1,3})(?![\d.,/^]))?"
    r"(?P<after>.*)"
)
_CURRENCY = re.compile(_MONEY)
_DIGIT = re.compile(r"\d")
_LONGEST = 400
"""Digits, and powers of ten, beyond which nothing is read."""
_PARTS_OF_A_SUM = 4
"""Quantities that make up one: days, hours, minutes, seconds."""
_OPENING, _CLOSING = "([\"'#", ".,;:!?)]\"'"
_LARGE = {"quadr": 15, "quint": 18, "sext": 21, "sept": 24, "oct": 27, "non": 30, "dec": 33}
_SCALES = {
    **dict.fromkeys(("hundred", "hundreds"), 100),
    **dict.fromkeys(("dozen", "dozens"), 12),
    **dict.fromkeys(("thousand", "thousands"), 10**3),
    **dict.fromkeys(("million", "millions", "mn", "mln", "mio"), 10**6),
    **dict.fromkeys(("billion", "billions", "bn", "bln"), 10**9),
    **dict.fromkeys(("trillion", "trillions", "tn", "trn"), 10**12),
    **{f"{name}illion{s}": 10**power for name, power in _LARGE.items() for s in ("", "s")},
    **dict.fromkeys(("lakh", "lakhs", "lac", "lacs"), 10**5),
    **dict.fromkeys(("crore", "crores"), 10**7),
    **dict.fromkeys(("milliard", "milliards", "mrd", "mld", "mlrd"), 10**9),
    **{"tsd": 10**3, "\u767e": 100, "\u5343": 10**3},
    **dict.fromkeys("\u4e07\u842c", 10**4),
    **dict.fromkeys("\u5104\u4ebf", 10**8),
}
_ATTACHED = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}
_ATTACHED_TO_MONEY = {"m": 10**6, "b": 10**9, "t": 10**12, "T": 10**12}
_UNCLEAR = {"k", "K", "M", "B", "T", "mil", "bil", "tril", "gross", "score", "grand", "\u5146"}
"""What may be a unit, a scale or neither if it stands apart from the number: "5 K" is 5000, or kelvin."""
_UNREAD_SCALE = re.compile(
    r"[mb]ill?i[ao](?:rd|n)|mill[io\u00f3]|mil[ih\u00e3]|tausend|duizend|tusen|mila\b|mille\b|[\u767e\u5343\u4e07\u842c\u5104\u4ebf\u5146]"
    r"|\u0442\u044b\u0441|\u043c\u0438\u043b\u043b|\u043c\u043b[\u043d\u0440]|\ub9cc|\uc5b5|\ucc9c|\u0932\u093e\u0916|\u0915\u0930\u094b"
    r"|\u0645\u0644\u064a|\u0623\u0644\u0641"
)
"""Beginnings of words for thousands, millions and more in some other languages."""
_EXTRA = {"more", "full", "whole", "extra", "additional", "total", "entire", "consecutive"}
"""Adjectives that change no unit: "5 more miles"."""
_OPERATORS = {"-", "+", "*", "\u00d7", "\u00b7", "\u00f7", "/", "^", "\u00b1", "x", "X"}
_BOUNDS = {"<", ">", "<=", ">=", "\u2264", "\u2265", "not", "than", "least", "most", "under", "over", "above", "below"}
_BOUNDS |= {"exceeding", "within", "per", "plus", "minus", "between", "version"}
_LINKS = {"to", "of", "in", "by", "through", "out", "for", "from", "vs", "times", "over", "at", "until", "till"}
_LINKS |= {"point", "as", "\u2014"}
"""Words that make one expression of the numbers on both sides: "5 to 6", "3 of 5", "1 in 10", "10 by 12"."""
_CLOCK = {"am", "pm", "a.m", "p.m", "o'clock", "oclock"}
_ERAS = {"AD", "CE", "BC", "BCE", "A.D", "B.C", "C.E", "B.C.E"}
_MONTHS = {"january", "february", "april", "june", "july", "august", "september", "october", "november", "december"}
_MONTHS |= {"jan", "feb", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"}
_MONTHS_IF_CAPITAL = {"March", "Mar", "May"}
_PARTS = {"half", "halves", "third", "thirds", "quarter", "quarters", "fourths", "fifths", "eighths", "tenths"}
_MORE = {"a", "one", "half", "two", "three"}
_ABBREVIATED = {"ft", "in", "lb", "lbs", "oz", "hr", "hrs", "min", "mins", "sec", "yd", "mi", "gal", "sq", "fl", "cu"}
_FAMILY = {"CAD", "AUD", "NZD", "HKD", "SGD", "MXN"}
"""Currencies whose sign may be a bare $."""


@lru_cache(maxsize=4096)
def parse_number(text: str) -> Number | None:
    """The number that a text ends with, or None if there is none or it cannot be read without guessing.

    The last word with a digit decides. Read: signs, thousands separators ("1,000", "1 000", "1'000"), decimals,
    fractions ("3/4", "1 1/2"), powers ("10^5", "3 x 10^5", "2e3"), percentages, scales ("5 million", "5k", "2 dozen"),
    currencies, units and sums of units ("5 ft 3 in"). An unknown word after it is a unit if it looks like one; other
    unknown words do not count. Not read: dates, times, ranges, bounds, negations, lists, ratios, sums and products,
    parts of formulas (`in_formula`), decimal commas, version numbers, hexadecimal, leading zeros, and digits inside a
    word; an earlier number does not replace such a word.
    """
    words = plain_words(text)
    last = next((place for place in reversed(range(len(words))) if _is_figure(words[place])), None)
    found = None if last is None else _Reader(words).quantity(last)
    return None if found is None else found[0]


def figures(text: str) -> tuple[str, ...]:
    """What must agree if no number could be read: the words with a digit and the signs, as they are written.

    Empty for a text without digits.
    """
    words = [word.strip("()[].,;:!?").casefold() for word in plain_words(text)]
    if not any(map(_DIGIT.search, words)):
        return ()
    return tuple(word for word in words if word and (_DIGIT.search(word) or not any(map(str.isalpha, word))))


def commands(text: str) -> tuple[str, ...]:
    """The words with a LaTeX command that is not markup, as written: signs and case count."""
    return tuple(word for word in plain_words(text) if "\\" in word) if "\\" in text else ()


def _is_figure(word: str) -> bool:
    """Whether a word has a digit that is not part of a unit such as m^2."""
    return _DIGIT.search(word) is not None and not (word[0].isalpha() and find_unit(word.rstrip(_CLOSING)) is not None)


def _bare(word: str) -> str:
    return word.lstrip(_OPENING).rstrip(_CLOSING)


def _closes(word: str) -> bool:
    """Whether nothing after a word belongs to it."""
    return word[-1:] in set(_CLOSING) and not (word.endswith(".") and word[:-1].casefold() in _ABBREVIATED)


class _Reader:
    """One reading of the words of a text."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def _at(self, place: int) -> str:
        return self._words[place] if 0 <= place < len(self._words) else ""

    def quantity(self, place: int, parts: int = _PARTS_OF_A_SUM) -> tuple[Number, int, int] | None:
        """The number at a word, and the words it takes up (first, one past the last); None if it is unclear."""
        read = self._alone(place)
        if read is None:
            return None
        number, first, end = read
        left = self._left(first)
        if left == "none":
            return number, first, end
        if left == "part":
            return self._sum(number, first, end, parts - 1)
        return None

    def _alone(self, place: int) -> tuple[Number, int, int] | None:
        """The number at a word, with its sign and unit, without a look at the words before them."""
        word = self._words[place]
        bare = _bare(word)
        found = _WORD.fullmatch(bare)
        if found is None or not _balanced(word, bare) or self._factorial(place, bare):
            return None
        value = _value(found)
        if value is None:
            return None
        first, money, negative = place, found["money"] or "", (found["sign"] or found["inner"]) == "-"
        if found["sign"] and found["inner"]:
            return None
        if found["power"] and negative:
            return None  # -2^2 is 4 or -4
        extended = self._mixed(found, value, place) or self._times_ten(found, value, place)
        if extended is not None:
            value, first, sign, money = extended
            negative = negative or sign
            if (found["sign"] or found["inner"] or found["money"]) and first != place:
                return None
        before = self._at(first - 1)
        if _CURRENCY.fullmatch(before):
            if money and not (money == "$" and (_dimension(before) in _FAMILY or _dimension(before) == "USD")):
                return None  # "CAD $5" are Canadian dollars, "EUR $5" is anything
            first, money = first - 1, before
        minus = self._at(first - 1) == "-" and self._at(first - 2) == "="
        if minus or self._at(first - 1).casefold() == "negative":
            first, negative = first - 1, not negative
        closed = _closes(word)
        measured = self._unit(value, money.rstrip("."), found["after"], place + 1, closed)
        if measured is None:
            return None
        number, end = measured
        closed = closed and end == place + 1
        if self._goes_on(first, end, closed) or in_formula(self._words, first, end, closed or self._ended(end)):
            return None
        return (replace(number, value=-number.value) if negative else number), first, end

    def _factorial(self, place: int, bare: str) -> bool:
        """Whether "!" makes a factorial of a number: if nothing, an operator or a relation stands beside it."""
        tail = self._words[place].partition(bare)[2]
        following = self._at(place + 1)
        apart = "!" in following and not following.strip("!.)]")
        if not bare.isdigit() or not ("!" in tail or apart):
            return False
        after = place + 2 if apart else place + 1
        beside = [word for word in (self._at(place - 1), self._at(after)) if word]
        alone = place == 0 and after == len(self._words)
        return alone or any(word in _OPERATORS or word == "=" or is_symbol(word) for word in beside)

    def _mixed(self, found: re.Match[str], value: Fraction, place: int) -> tuple[Fraction, int, bool, str] | None:
        """A whole number before a proper fraction, as in "1 1/2"."""
        whole = _WORD.fullmatch(self._at(place - 1).lstrip("(["))
        if not found["bottom"] or not 0 < value < 1 or whole is None or whole["after"] or "." in whole["top"]:
            return None
        if whole["bottom"] or whole["exponent"] or whole["power"]:
            return None
        top, negative = _value(whole), "-" in (whole["sign"] + whole["inner"])
        return None if top is None else (top + value, place - 1, negative, whole["money"] or "")

    def _times_ten(self, found: re.Match[str], value: Fraction, place: int) -> tuple[Fraction, int, bool, str] | None:
        """Scientific notation written out, as in "3 x 10^5"."""
        if found["top"] != "10" or not found["power"] or self._at(place - 1) not in ("\u00d7", "x", "*", "\u00b7"):
            return None
        top = _WORD.fullmatch(self._at(place - 2).lstrip("(["))
        if top is None or top["after"] or top["bottom"] or top["exponent"] or top["power"]:
            return None
        factor = _value(top)
        negative = "-" in (top["sign"] + top["inner"])
        return None if factor is None else (factor * value, place - 2, negative, top["money"] or "")

    def _unit(self, value: Fraction, money: str, after: str, at: int, closed: bool) -> tuple[Number, int] | None:
        """The number with the scale and the unit that follow it, and the place after them; None if unclear."""
        if after in ("st", "nd", "rd", "th"):
            return Number(value), at
        if after in AMBIGUOUS_LETTERS:
            return None  # "5y" is a product, "3d" a shape
        if after.startswith("-"):
            after = after[1:].partition("-")[0]
            if not after.isalpha():
                return None
            if after.casefold() in _SCALES:
                value, after = value * _SCALES[after.casefold()], ""
            elif find_unit(after) is None:  # "5-fold"
                return Number(value, _own_unit(after)[0] if looks_like_unit(after) else None), at
        scale, after = _attached(after, money)
        value *= scale
        if after == "s" and value.denominator == 1 and value % 10 == 0 and value >= 100:
            return None  # the 1960s
        if after and find_unit(after) is None and not (money and after.startswith("/") and after[1:].isalpha()):
            return None
        while not closed and not after and self._at(at).rstrip(_CLOSING).casefold() in _SCALES:
            value *= _SCALES[self._at(at).rstrip(_CLOSING).casefold()]
            closed, at = _closes(self._at(at)), at + 1
        return self._measured(value, money, after, at, closed)

    def _measured(self, value: Fraction, money: str, after: str, at: int, closed: bool) -> tuple[Number, int] | None:
        following = [] if closed else self._following(at)
        if following and not after and (following[0] in _UNCLEAR or _is_unread_scale(following[0])):
            return None
        if following and following[-1] == "in" and len(following) == 1 and not after and not money:
            following = ["inch"]
        glued = money + after if after.startswith("/") or not money else money
        given = [glued] if glued else []
        unit, taken = _longest(given, following)
        if given and unit is None:
            return None
        if money and not taken and following and looks_like_unit(following[0]) and find_unit(following[0]) is None:
            return None  # "$5 Mrd": a scale, perhaps
        if following and not money:
            unit, taken = _unlisted(following) if unit is None else _compound(unit, taken, following)
        if money and after and not after.startswith("/"):
            other = find_unit(after)
            if other is None or unit is None or other[0] not in (unit[0], *_FAMILY):
                return None
            unit = other
        elif money and taken == 0 and following and not after:
            unit, taken = _agreed(money, unit, _longest([], following))
            if unit is None:
                return None
        if unit is None:
            return Number(value), at
        if unit[0].startswith(PERCENT[0]):
            return Number(value * unit[1], unit[0]), at + taken
        return Number(value, unit[0], unit[1]), at + taken

    def _following(self, at: int) -> list[str]:
        """Up to four words that may spell a unit: none with a digit, none past the end of a clause."""
        found: list[str] = []
        for word in self._words[at : at + 4]:
            bare = word.rstrip(_CLOSING)
            bare = bare[1:] if bare[:1] in ("(", "[") and word[-1] in ")]" else bare
            if not bare or (_is_figure(bare) and find_unit(bare) is None):
                break
            found.append(bare)
            if _closes(word):
                break
        return found

    def _ended(self, end: int) -> bool:
        """Whether the last word of a number and its unit ends a clause."""
        return _closes(self._words[end - 1])

    def _goes_on(self, first: int, end: int, closed: bool) -> bool:
        """Whether a number is part of a date, a time of day, a year of an era, a calculation, or of "2 and a half"."""
        one, two = self._at(first - 1), self._at(first - 2)
        days = one.casefold() == "of" or _is_figure(one)  # "May 3, 2020", "May of 2020"
        around = [one, two if days else "", *([] if closed else [self._at(end)])]
        around += [self._at(end + 1)] if not closed and self._at(end) == "of" else []
        around = [word.strip(_CLOSING) for word in around]
        if any(word.casefold() in _MONTHS or word in _MONTHS_IF_CAPITAL for word in around):
            return True
        after = "" if closed else self._at(end).strip(_CLOSING)
        if after.casefold() in _PARTS or (after == "and" and self._at(end + 1) in _MORE):
            return True
        return after.casefold() in _CLOCK or after in _ERAS or one.strip(_CLOSING) in _ERAS or after in _OPERATORS

    def _left(self, first: int) -> str:
        """What stands before a number: "none" (unrelated), a "part" of the same quantity, or "unclear"."""
        before = self._at(first - 1)
        word = before.casefold()
        if before in _OPERATORS or word in _BOUNDS or (word and word[-1] in "<>\u2264\u2265~\u00b1^*/+$"):
            return "unclear"
        if len(before) == 3 and before.isupper() and find_unit(before) is not None:
            return "unclear"  # "THB 5"
        if word == "to" and self._at(first - 2).casefold() == "up":
            return "unclear"
        if word == "of" and self._at(first - 2).casefold() == "out":
            return "unclear"
        near = self._figure_before(first)
        if near is not None and near == first - 2 and before == ":":
            return "unclear"
        if near is None or any(_closes(self._words[p]) and self._words[p][-1] != "," for p in range(near, first)):
            return "none"
        if word in ("and", "or", "&"):
            read = self._alone(near)
            return "part" if read is not None and word == "and" and read[2] == first - 1 else "unclear"
        read = self._alone(near)
        end = near + 1 if read is None else max(near + 1, read[2])
        if end == first:
            return "part"
        return "unclear" if end == first - 1 and word in _LINKS else "none"

    def _figure_before(self, first: int) -> int | None:
        """The nearest word with a digit among the five before a place."""
        places = reversed(range(max(0, first - 5), first))
        return next((place for place in places if _is_figure(self._words[place])), None)

    def _sum(self, number: Number, first: int, end: int, parts: int) -> tuple[Number, int, int] | None:
        """Larger units before smaller ones of the same dimension ("5 ft 3 in"); anything else is a list."""
        place = self._figure_before(first)
        if place is None or number.dimension is None or parts == 0:
            return None
        read = self.quantity(place, parts)
        if read is None or read[0].dimension != number.dimension:
            return None
        larger = read[0]
        if larger.size <= number.size or not 0 <= number.amount < larger.size:
            return None
        part = number.amount / larger.size
        return replace(larger, value=larger.value + (part if larger.value >= 0 else -part)), read[1], end


def _longest(given: list[str], following: list[str]) -> tuple[Unit | None, int]:
    """The longest unit spelled by some words, and how many of the following ones it takes."""
    for taken in range(len(following), -1, -1):
        words = " ".join((*given, *following[:taken]))
        if words and (unit := find_unit(words)) is not None:
            return unit, taken
    return None, 0


def _unlisted(words: list[str]) -> tuple[Unit | None, int]:
    """The unit of words that start with none from the table, and how many it takes.

    "apples per day" and "apples/day" are one rate; "IU", "troy ounces" and "man-hours" are units that convert into no
    other; "apples" are counted.
    """
    counted, slash, bottom = words[0].partition("/")
    if slash and counted.isalpha() and bottom.casefold() not in FUNCTION_WORDS:
        unit = find_unit(f"per {bottom}")
        if unit is not None:
            return unit, 1
    kind, hyphen, measure = words[0].partition("-")
    if hyphen and kind.isalpha() and measure.isalpha() and find_unit(measure) is not None:
        listed = find_unit(kind)
        unit, taken = _unlisted([kind, measure]) if listed is None else _compound(listed, 0, [measure])
        return unit, 1 if taken else 0
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first in FUNCTION_WORDS or _is_other(first):
        return None, 0
    if first in _EXTRA:
        unit, taken = _longest([], words[1:])
        return unit, taken + 1 if unit else 0
    if second in ("per", "a", "an", "each", "every") and len(words) > 2:
        unit = find_unit(f"per {words[2]}") if second == "per" or _is_time(words[2]) else None
        if unit is not None:
            return unit, 3
    if looks_like_unit(first):
        return _own_unit(first), 1
    for taken in range(1, len(words) if first.istitle() else 2):
        if words[taken - 1].casefold() in FUNCTION_WORDS or not words[taken - 1].isalpha():
            break
        name = words[taken] if taken < len(words) else ""
        unit = find_unit(name) if name.islower() and len(name) > 2 else None
        if unit is not None:
            return (" ".join((*words[:taken], str(unit[1]), unit[0])).casefold(), Fraction(1)), taken + 1
    return None, 0


def _own_unit(word: str) -> Unit:
    """The unit that an unknown word names. Case and number do not count: "TVs" and "tv" are one."""
    name = word.casefold()
    name = name[:-1] if len(name) > 2 and name.endswith("s") and not name.endswith("ss") else name
    return f'"{name}"', Fraction(1)


def _is_unread_scale(word: str) -> bool:
    """Whether a word may be one for millions: "Millionen", but not "millimetres"."""
    return _UNREAD_SCALE.match(word.casefold()) is not None and find_unit(word) is None


def _is_other(word: str) -> bool:
    """Whether a word after a number makes it a time, a year or part of a calculation."""
    return word.casefold() in _CLOCK or word in _ERAS or word in _OPERATORS or is_variable(word) or is_symbol(word)


def _is_time(word: str) -> bool:
    unit = find_unit(word)
    return unit is not None and unit[0] in ("time", "months")


def _compound(unit: Unit, taken: int, following: list[str]) -> tuple[Unit, int]:
    """A unit, or the compound of it and the unit that follows: "N m", "kg m/s", "N \u00b7 m"."""
    after = following[taken:]
    further = 2 if len(after) > 1 and after[0] == "\u00b7" and after[1].isalpha() else 1
    other = find_unit(after[further - 1]) if len(after) >= further else None
    if other is None or unit == PERCENT:
        return unit, taken
    return (f"{unit[1]} {unit[0]} {other[1]} {other[0]}", Fraction(1)), taken + further


def _agreed(money: str, unit: Unit | None, named: tuple[Unit | None, int]) -> tuple[Unit | None, int]:
    """The unit of "$5 dollars" or "$5 CAD"; None if sign and word contradict each other."""
    other, taken = named
    if other is None or unit is None:
        return unit, 0
    if other == unit or (money == "$" and other[0] in _FAMILY):
        return other, taken
    return (None, 0)


def _dimension(currency: str) -> str | None:
    unit = find_unit(currency.rstrip("."))
    return None if unit is None else unit[0]


def _balanced(word: str, bare: str) -> bool:
    """Whether what surrounds a number is punctuation: 5' and 5" are feet and inches, 3.3... goes on."""
    tail = word[word.index(bare) + len(bare) :] if bare in word else ""
    for quote in "\"'":
        if tail.startswith(quote) and not word.startswith(quote) and f"({quote}" not in word:
            return False
    return not (tail.startswith("..") and "." in bare)


def _attached(after: str, money: str) -> tuple[int, str]:
    """The scale written on a number ("5k", "5bn"), and what stands behind it."""
    if not after:
        return 1, after
    for letter, scale in {**_ATTACHED, **(_ATTACHED_TO_MONEY if money else {})}.items():
        rest = after.removeprefix(letter)
        if rest != after and not rest[:1].isalnum() and (money or find_unit(after) is None):
            return scale, rest
    if after.casefold() in ("bn", "mn", "mln", "mio", "tn"):
        return _SCALES[after.casefold()], ""
    if not after.isascii() and _SCALES.keys() >= set(after):  # characters for 100, 1000, 10,000 ...
        return prod(_SCALES[char] for char in after), ""
    return 1, after


def _value(found: re.Match[str]) -> Fraction | None:
    """Value of a matched word without its sign and unit; None if it is too long to read."""
    digits = re.sub("[,'_]", "", found["top"])
    if len(digits) > _LONGEST or len(found["bottom"] or "") > _LONGEST:
        return None
    value = Fraction(digits)
    if found["bottom"]:
        return value / int(found["bottom"])
    if found["exponent"]:
        return value * Fraction(10) ** int(found["exponent"])
    if found["power"]:
        power = int(found["power"])
        if abs(power) * len(digits) > _LONGEST or (value == 0 and power <= 0):
            return None
        return value**power
    return value


# -- Plain words: text without markup, digits and signs in ASCII -------------------------------------------------------

_POWERS = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_SPECIAL = {
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013", "-"),
    **dict.fromkeys("\u2014\u2015", "\u2014"),
    **dict.fromkeys("\u2018\u2019\u02bc", "'"),
    **dict.fromkeys("\u201c\u201d\u00ab\u00bb", '"'),
    "\u2044": "/",
    "\u066a": "%",
    "\u2248": " \u2248 ",
    "\u220e": " . ",
}
_COLOURS = "(?:text|page)?color|colorbox|[hv]space"
_LAYOUT = (
    "(?:text|math)(?:bf|it|rm|sf|tt|normal)?|text(?:md|sc|sl|up)|mbox|boxed|fbox|operatorname|left|right|emph|underline|"
    "boldsymbol|bm|bf|it|rm|sc|sf|sl|tt|bfseries|itshape|ttfamily|displaystyle|textstyle|tiny|scriptsize|footnotesize|"
    "small|normalsize|large|Large|LARGE|huge|Huge|hfill|noindent"
)
_ENDS = "checkmark|blacksquare|square|Box|qed|qedsymbol|qedhere"
"""Commands for marks at the end of an answer or a proof."""
_LATEX: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}"), r" \1/\2 "),
    (re.compile(r"\\(?:text|mathrm)\s*\{([^{}^]*[A-Za-z])\s*\}\s*\^\s*\{?([23])\}?"), r" \1^\2 "),
    (re.compile(rf"\\(?:{_COLOURS})\*?\s*(?:\[[^][{{}}]*\]\s*)?\{{[^{{}}]*\}}"), " "),
    (re.compile(rf"\\(?:{_LAYOUT})(?![A-Za-z])\s*"), " "),
    (re.compile(rf"\\(?:{_ENDS})(?![A-Za-z])"), " . "),
    (re.compile(r"\\[,;:! ]|(?<=\d)\{,\}(?=\d)"), lambda found: "," if found[0] == "{,}" else " "),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "\u00d7"),
    (re.compile(r"\\pm(?![a-z])"), "\u00b1"),
    (re.compile(r"\\l(?:eq?|t)(?![a-z])"), "<"),
    (re.compile(r"\\g(?:eq?|t)(?![a-z])"), ">"),
    (re.compile(r"\^\s*\{\s*(?:\\circ|\u00b0)\s*\}|\^\s*\\circ"), "\u00b0"),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"^\1"),
    (re.compile(r"\\([%$#&_])"), r"\1"),
    (re.compile(r"\\[()\[\]]"), " "),
]
_MATHS = re.compile(r"(?<![\\\w$])(\$\$?)(?!\$)((?:[^$\\\n]|\\.)+?)(?<!\\)\1(?![\w$])")
_SPACED_THOUSANDS = re.compile(r"(?<![\w.,'/^:-])([-+]?[^\w\s.,()]?)([1-9]\d{0,2}(?: \d{3})+)(?![\d,/^:'_-])")
_STEPS = [
    (re.compile(r"</?[A-Za-z][^<>]*>"), " "),  # tags
    (re.compile(r"(?<=\d)\*\*(?=-?\d)"), "^"),
    (re.compile(r"(?<=\d) ?[*x] ?(?=10\^)"), " \u00d7 "),
    (re.compile(r"(?<![\d\s*])\*+|(?<=\d)\*+(?=[\s.,;:!?)]|$)|(?<!\S)\*+(?=[^\s*])"), ""),  # **bold**, never 3 * 4
    (re.compile(r"(?<!\w)_+|_{1,3}(?!\w)|`+"), ""),
    (re.compile(r"[-=]{1,3}>|[\u2190-\u21ff]"), " \u2192 "),
    (re.compile(r"(?<![<>=!])=+(?!=)"), " = "),
    (re.compile(r"[|\u00d7\u00b7]"), r" \g<0> "),
    (re.compile(r"(?<=[A-Za-z]):(?=\S)"), ": "),
    (re.compile(r"\u2014(?!\d)"), " \u2014 "),
    (re.compile(r"(?<=[^\d\s(])\("), " ("),
    (re.compile(r"\)(?=[A-Za-z])"), ") "),
]


def plain_words(text: str) -> list[str]:
    """Words of a text: markup (LaTeX, Markdown, HTML) gone, NFKC, all digits ASCII, powers written "10^5".

    Thousands that are set apart by spaces become one word, "10_000".
    """
    if not text.isascii():
        text = _ascii(text)
    if "$" in text:
        text = _MATHS.sub(r" \2 ", text)
    if "\\" in text or "{" in text:
        for pattern, written in _LATEX:
            text = pattern.sub(written, text)
        text = text.replace("{", " ").replace("}", " ")
    for pattern, plain in _STEPS:
        text = pattern.sub(plain, text)
    text = _SPACED_THOUSANDS.sub(lambda found: found[1] + found[2].replace(" ", "_"), " ".join(text.split()))
    return text.split()


def _ascii(text: str) -> str:
    text = _POWERS.sub(lambda found: "^" + unicodedata.normalize("NFKC", found[0]).replace("\u2212", "-"), text)
    return unicodedata.normalize("NFKC", "".join(map(_character, text)))


def _character(one: str) -> str:
    if one.isascii():
        return one
    if one in _SPECIAL:
        return _SPECIAL[one]
    kind = unicodedata.category(one)
    if kind == "Cf":
        return ""  # zero width, soft hyphens
    if kind == "Nd":
        return str(unicodedata.decimal(one))
    if kind == "No" and "VULGAR FRACTION" in unicodedata.name(one, ""):
        return f" {unicodedata.normalize('NFKC', one).replace(chr(0x2044), '/')} "
    return one


# -- The judge ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumericJudge(BatchJudge):
    r"""Two answers are the same iff they end with the same number; see `parse_number` and `same_number`.

    Exact: whole numbers are equal or not; others may differ by 1e-9 relative (and at most 0.001), for rounding. Scale
    is read: "50%" = "0.5" = "1/2", "1,000" = "1000", "1 1/2" = "1.5", "2e3" = "2000" = "2 thousand". So are units and
    currencies: "5 km" = "5000 m", but not "5 m", and "$5" is not "5 euros". A number without a unit has the one the
    question implies: "5" = "5 km". Words are not read ("five", "about"). An unknown word after a number is a separate
    unit if it is written like one ("5 IU" is not "5 mg"); counted nouns are ignored ("5 apples" = "5 pears").

    What cannot be read without guessing (dates, times, ranges, bounds, lists, sums, decimal commas, leading zeros, a
    number inside a formula: "\sqrt{2}", "5 squared", "half of 10") is not a number. An answer with a number never
    equals one without; two answers without one are the same iff their normalised strings, their words with digits and
    their LaTeX commands are equal.
    """

    is_slow = False

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="numeric", version=3, params={})

    def can_merge(self, a: str, b: str, further: int) -> bool:
        """Numbers may be joined by rounding, or through one without a unit (5 km, 5, 5 m); nothing else may."""
        ours, theirs = parse_number(a), parse_number(b)
        return ours is not None and theirs is not None and may_join(ours, theirs, further)

    def identity(self, text: str) -> str:
        """The text itself: normalising would drop the "%" of "50%" and the "/" of "1/2"."""
        return text.strip()

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of the numbers they end with; the question plays no part."""
        return [self._same(a, b) for a, b in pairs]

    def _same(self, a: str, b: str) -> bool:
        ours, theirs = parse_number(a), parse_number(b)
        if ours is None or theirs is None:
            return ours is None and theirs is None and same_figures(a, b)
        return same_number(ours, theirs)


def same_figures(a: str, b: str) -> bool:
    """Whether two texts without a readable number are the same: normalised strings, words with digits, commands."""
    return normalise(a) == normalise(b) and figures(a) == figures(b) and commands(a) == commands(b)
