"""Numbers with their labels: how they are read from answers, and when two of them are equal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd

from ..specs import JudgeSpec
from .base import BatchJudge
from .text import (
    AMOUNTS,
    CARDINALS,
    FUNCTION_WORDS,
    QUANTITIES,
    SCALES,
    is_name,
    is_refusal,
    normalise,
    word_set,
    word_tuple,
    written,
)

__all__ = ["Number", "NumericJudge", "labels_agree", "leads_agree", "leads_conflict", "parse_number"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number read from a text, exactly.

    Attributes:
        value: Its value: 0.5 for "50%", 5 for "5 million".
        label: What it counts: unit, currency, scale or noun, in one spelling; "" for a bare number.
        rest: What is said behind that ("in the morning"); "" for nothing.
        needs_label: Whether the label makes another number of it ("5 million", "5 squared"), which a bare one is not.
        lead: The words before it that say more than that a number follows: "profit" of "a profit of $5 million".
        spelling: Its digits, if they may be a version or a date ("1.10", "10/12"); "" for a plain number.
    """

    value: Fraction
    label: str = ""
    rest: str = ""
    needs_label: bool = False
    lead: tuple[str, ...] = ()
    spelling: str = ""

    @property
    def percent(self) -> bool:
        """Whether it was written as a percentage."""
        return self.label == "%"

    @property
    def rounded(self) -> Fraction:
        """The value; with decimals, to nine significant digits and at least three decimals, for rounding errors.

        Numbers are equal iff these are: an equivalence relation.
        """
        # Whole numbers exactly: ids and counts that differ in the last digit are different.
        if self.value.denominator == 1 or not self.value:
            return self.value
        size = len(str(int(abs(self.value)))) if abs(self.value) >= 1 else 1 - len(str(int(1 / abs(self.value))))
        return round(self.value, max(3, 9 - size))


def labels_agree(a: Number, b: Number) -> bool:
    """Whether labels and what follows them are equal, or one is bare where it may be. Not transitive (5 km, 5, 5 m)."""
    if (a.label, a.rest) == (b.label, b.rest):
        return True
    bare = not (a.label or a.rest) or not (b.label or b.rest) or (a.label == b.label and not (a.rest and b.rest))
    return bare and not (a.needs_label or b.needs_label)


def leads_agree(question: str, a: Number, b: Number) -> bool:
    """Whether the words before two numbers are equal, or the question has all that only one of them says."""
    ours, theirs = a.lead, b.lead
    if ours == theirs:
        return True
    short, long = sorted((ours, theirs), key=len)
    further = _without(long, short)
    return further is not None and frozenset(map(_stem, word_tuple(question))).issuperset(further)


def leads_conflict(a: Number, b: Number) -> bool:
    """Whether each of two numbers has words before it that the other lacks ("buy 5 shares", "sell 5 shares")."""
    return _without(a.lead, b.lead) is None and _without(b.lead, a.lead) is None


def _without(words: Sequence[str], fewer: Sequence[str]) -> list[str] | None:
    """The words less those of a part of them, in which the order is the same; None if it is no part of them."""
    left, rest = list(fewer), []
    for word in words:
        if left and word == left[0]:
            del left[0]
        else:
            rest.append(word)
    return None if left else rest


# -- Reading a number: exactly, with its label, or not at all ----------------------------------------------------------

_LATEX = (
    (re.compile(r"\\[dt]?frac\s?\{(-?\d+)\}\s?\{(\d+)\}"), r" \1/\2 "),
    (re.compile(r"\\(?:boxed|text(?:bf|it|rm)?|math(?:bf|it|rm))\s?\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"\{(,)\}|\\([%$])|\\[()\[\],;: ]"), r"\1\2"),
    (re.compile(r"(?<![\w$])(\${1,2})([^$\n]+)\1(?![\w$])"), r" \2 "),
)
_COMES_TO = re.compile(
    r"\b(?:comes?|came|amounts?|amounted|equals?|adds? up|added up|sums?|summed)(?: up)? to\b", re.IGNORECASE
)
_CALCULATED = re.compile(r"^[-\d\s.,+*/()^%$=]+=\s?")
_NUMBER = re.compile(
    r"(?:(?P<whole>\d{1,9}) )?(?P<top>\d{1,400})/(?P<bottom>\d{1,400})"
    r"|(?P<digits>(?:\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d,])|\d{1,400})(?:\.\d{1,400})?|\.\d{1,400})"
    r"(?:[eE](?P<exponent>[-+]?\d{1,3})(?!\w)|\s?[*x]\s?10\^(?P<tens>-?\d{1,3}))?"
)
_SIGNS = "$\u20ac\u00a3\u00a5\u20b9"
_BEFORE = re.compile(rf"(?P<sign>[-+]?)(?:(?P<money>\b[A-Za-z]{{1,3}}\$|[{_SIGNS}]|\b(?:USD|EUR|GBP|JPY|INR)) ?)?$")
_VARIABLE = re.compile(r"(?<!\S)[^\W\d_] ?[=:] ?$")
_VERSION = re.compile(r"[1-9]\d?\.[1-4]0")
_MONTH_FIRST = re.compile(
    r"\b(Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?) ((?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?)(?=$|,? \d{4}(?!\d)|[.,;:?!)](?:\s|$))"
)
"""A month before its day: the same date in either order. As a word for a month it has a capital ("it may 10")."""
_LEAD = re.compile(r"(?:#+ )?(?:[^\W\d_]+(?:['.-][^\W\d_]+)*[.,:;]* )*(?:[^\W\d_]+ ?[=:] ?)?\(?")
_LABEL = re.compile(
    rf"[^\W\d_]+(?:['.-][^\W\d_]+)*|[\u00b0%{_SIGNS}][^\W\d_]*"
    r"|[^\W\d_]{1,9}(?:\^-?\d|[23])?(?:[/\u00b7][^\W\d_]{1,12}(?:\^-?\d|[23])?)*"
)
_CLAUSE = re.compile(r"(?:\)[.,;:]?|[.,;:])(?=\s|$)|(?<=[^\W\d_]{3})[?!](?=\s|$)| [(\[]|\u2014")
"""Begin of an explanation that is not part of the label."""
_UNITS = """$ us$ usd dollar dollars|\u20ac eur euro euros|\u00a3 gbp sterling|\u00a5 jpy yen|\u20b9 inr rupee rupees
|% percent pct|meter m metre|kilometer km kms kilometre|centimeter cm centimetre|millimeter mm millimetre|mile mi
|foot ft feet|inch inche|yard yd|gram g|kilogram kg kgs|milligram mg|tonne t|pound lb lbs|ounce oz|liter l L litre
|milliliter ml mL|second s sec|minute min|hour h hr|day d|week wk|year yr|watt W|volt V|hertz Hz|ohm \u03a9"""
"""Spellings of one unit; none is converted into another."""
_ALIASES = {word: row.split()[0] for row in _UNITS.split("|") for word in row.split()[1:]}
_CURRENCIES = frozenset(_SIGNS)
_CHANGING = SCALES | word_set("""
january february march april may june july august september october november december jan feb mar apr jun jul
aug sep sept oct nov dec after before early late spring summer autumn winter
not no never neither nor without isn't than least most under over above below within exceeding between up down
out to or and plus minus negative more less fewer greater larger smaller half halves third thirds quarter quarters
twice thrice double triple times root squared cube cubed factorial power log ln exp sin cos tan sqrt max min mod
modulo choose divided multiplied by version point square through until till from vs ad bc ce bce am pm a.m p.m b.c
a.d o'clock score gross grand mil mn bn tn minimum maximum""")
"""Words that make another number, or a time, of the one beside them."""


@lru_cache(maxsize=1024)
def parse_number(text: str) -> Number | None:
    """The number that a text states; None if it states none, or several, or if reading it would be a guess.

    Read: signs, thousands ("1,000", "1 000"), decimals, fractions ("3/4", "1 1/2"), exponents ("2e3", "3 x 10^5"),
    percentages, and texts that are one number in words up to ninety-nine, each with the label before or behind it.
    A name or a calculation before "=" does not count.
    """
    if "\\" in text or "{" in text or "$" in text:
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    plain = _COMES_TO.sub("equals", _CALCULATED.sub("", _day_first(written(text))))
    match = _NUMBER.search(plain)
    if match is None:
        spelt = CARDINALS.get(normalise(plain))
        return None if spelt is None else Number(Fraction(spelt))
    prefix = _BEFORE.search(plain[: match.start()])
    assert prefix is not None, "every part of it is optional"
    value, lead, money = _value(match), plain[: prefix.start()], prefix["money"] or ""
    named = is_name("".join(lead.split()[-1:])) and not money
    if value is None or not _leads(lead) or (named and re.fullmatch(r".*\..*0", match["digits"] or "")):
        return None  # the last is a version: Python 3.10 is not 3.1
    number = _labelled(-value if prefix["sign"] == "-" else value, money.casefold(), plain[match.end() :])
    if number is None:
        return None
    amount = number.label or prefix["sign"] or not AMOUNTS.isdisjoint(lead.casefold().split())
    return replace(number, lead=_said_before(lead, number), spelling="" if amount else _unclear(match))


def _day_first(text: str) -> str:
    """A text with the day of a date before its month: "December 10, 1990" as "10 December, 1990"."""
    return _MONTH_FIRST.sub(r"\2 \1", text)


def _value(match: re.Match[str]) -> Fraction | None:
    """The value of a number without its sign; None if it cannot be read."""
    if match["top"]:
        whole, top, bottom = int(match["whole"] or 0), int(match["top"]), int(match["bottom"])
        return None if not bottom or (whole and top >= bottom) else whole + Fraction(top, bottom)
    digits = match["digits"].replace(",", "").replace(" ", "")
    if digits[0] == "0" and digits[1:2].isdecimal():
        return None  # 007
    return Fraction(digits) * Fraction(10) ** int(match["exponent"] or match["tens"] or 0)


def _leads(lead: str) -> bool:
    """Whether the text before a number does not change it: words, a name before "=", or a heading mark."""
    words_before = _LABEL.findall(lead.casefold())
    names = words_before[:-1] if lead.rstrip(" (")[-1:] == "=" else words_before
    return (
        _LEAD.fullmatch(lead) is not None
        and not any(word in _CHANGING or word in CARDINALS for word in words_before)
        and not any(len(word) == 1 and word not in "ai" for word in names)
    )


def _said_before(lead: str, number: Number) -> tuple[str, ...]:
    """The words before a number, without those that every number may have and the variable of "x = 5"."""
    lead = _VARIABLE.sub("", lead).rstrip(" (")
    words_before = lead.split()
    # "A" is an article if a noun follows and nothing stands before it ("A 5 km run"), else a name ("A 1", "Plan A 5").
    letter = words_before[-1:] == ["A"] and not (number.label and len(words_before) == 1)
    said = (_stem(word.casefold()) for word in _LABEL.findall(lead))
    return (*(word for word in said if word not in _INTRODUCING), *(("A",) if letter else ()))


def _unclear(match: re.Match[str]) -> str:
    """The digits of a number that may be a version or a date; "" for others.

    1.10 is a version after 1.9, and 10/12 a day: only as numbers they are 1.1 and 5/6. Versions with a second number of
    50 or more are rare, so 3.50 is 3.5.
    """
    if match["top"]:
        top, bottom = int(match["top"]), int(match["bottom"])
        day = not match["whole"] and min(top, bottom) <= 12 and max(top, bottom) <= 31
        return match[0] if day and gcd(top, bottom) > 1 else ""
    digits = match["digits"]
    return digits if _VERSION.fullmatch(digits) and not (match["exponent"] or match["tens"]) else ""


def _labelled(value: Fraction, money: str, after: str) -> Number | None:
    """A number with the label behind it; None if other text follows."""
    clause = _CLAUSE.search(after)
    named = after if clause is None else after[: clause.start()]
    rest = "" if clause is None else normalise(after[clause.start() :].strip(" .,;:?!()[]\u2014"))
    chunks = ["inch"] if named == " in" else named.replace("per cent", "%").split()
    if any(map(str.isdecimal, rest)) or not all(map(_LABEL.fullmatch, chunks)):
        return None
    singular = [_singular(chunk) for chunk in chunks]
    end = next((i for i, word in enumerate(singular) if word in FUNCTION_WORDS), len(singular))
    trailing = " ".join([*singular[end:], rest]).strip()
    attached = named[:1].isalpha() and (money or len(chunks[0]) == 1 or chunks[0] not in _ALIASES)  # $5m, 5k, 21st, 5s
    scaled = attached or (money and end and len(chunks[0]) < 3)
    variable = end == 1 and len(singular[0]) == 1 and singular[0].isalpha()
    changing = any(
        word in _CHANGING or word.endswith(("illion", "illiard")) for word in (*singular[:end], *trailing.split())
    )
    sign = _ALIASES.get(money, money)
    label = [sign, *singular[:end]] if sign and singular[:1] != [sign] else singular[:end]
    if not sign and label and label[-1] in _CURRENCIES:
        label = [label[-1], *label[:-1]]  # "5 million dollars" as "$5 million"
    if label[:1] == ["%"]:
        value /= 100
    return Number(value, " ".join(label), trailing, bool(scaled or variable or changing))


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


_INTRODUCING = frozenset(
    map(_stem, (FUNCTION_WORDS | QUANTITIES) - word_set("since by each every any some other during"))
)
"""Words before a number that do not change it."""


def _singular(word: str) -> str:
    """A word of a label in one spelling. Case counts in units: "mW" is not "MW"."""
    small = word.casefold()
    single = small[:-1] if len(small) > 3 and small.endswith("s") and not small.endswith("ss") else small
    if word in _ALIASES or (len(word) > 2 and single in _ALIASES):
        return _ALIASES.get(word) or _ALIASES[single]
    if small in _CHANGING or single in _CHANGING:
        return small if small in _CHANGING else single
    return single if len(word) > 3 and (word.islower() or word.istitle()) else word


# -- The judge ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumericJudge(BatchJudge):
    r"""Two answers are the same iff each states one number, the numbers are equal and their labels agree.

    Labels are units, currencies, words of scale and counted nouns. They agree if they are equal, or if one number is
    bare: "5 km" is "5", not "5 m". Nothing is converted: "5 km" is not "5000 m", and "5 million" is not "5,000,000"
    (nor "5"). Only "%" is read: "50%" = "0.5". Whole numbers are compared exactly, others to nine significant digits
    and at least three decimals. See `parse_number`.

    Words before a number must be equal ("a profit of $5 million" is not "a loss of $5 million", "Windows 7" is not
    "iPhone 7"). Words that only introduce a number ("the answer is", "about") do not count, nor do words of the
    question that one answer has and the other lacks. A bare number whose digits may be a version or a date ("1.10",
    "10/12") equals only the same digits.

    The day and the month of a date may be in either order ("10 December" = "December 10"). Other dates, times, ranges,
    bounds, lists, formulas ("\sqrt{2}", "5!") and texts with several numbers are texts: two of them are the same iff
    their normalised strings are, and none is the same as a number. So are refusals.
    """

    is_slow = False

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="numeric", version=7, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of the numbers that they state; words of the question before them do not count."""
        return [_same(question, a, b) for a, b in pairs]


def _same(question: str, a: str, b: str) -> bool:
    ours, theirs = parse_number(a), parse_number(b)
    if ours is None or theirs is None:
        # Only two texts without a number (None is None) may be the same as texts.
        equal = normalise(_day_first(a)) == normalise(_day_first(b))
        return ours is theirs and (equal or (is_refusal(a) and is_refusal(b)))
    equal = ours.rounded == theirs.rounded and labels_agree(ours, theirs)
    return equal and _spellings_agree(ours, theirs) and leads_agree(question, ours, theirs)


def _spellings_agree(a: Number, b: Number) -> bool:
    """Whether two numbers may be versions or dates only if both have the same digits."""
    return a.spelling == b.spelling or bool(a.label or b.label)
