"""Numbers with their labels: how they are read from answers, and when two of them are equal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ..specs import JudgeSpec
from .base import BatchJudge
from .text import FUNCTION_WORDS, MULTIPLES, is_refusal, normalise, prose, written

__all__ = ["Number", "NumericJudge", "labels_agree", "parse_number", "same_number", "same_numbers"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number read from a text, exactly.

    Attributes:
        value: Its value: 0.5 for "50%", 5,000,000 for "5 million".
        label: What it counts: unit, currency or noun, in one spelling; "" for a bare number.
        rest: What is said behind that ("in the morning"); "" for nothing.
        needs_label: Whether the label makes another number of it ("5 squared", "5 or more"), which a bare one is not.
    """

    value: Fraction
    label: str = ""
    rest: str = ""
    needs_label: bool = False

    @property
    def percent(self) -> bool:
        """Whether it was written as a percentage."""
        return self.label == "%"

    @property
    def rounded(self) -> Fraction:
        """The value; with decimals, to nine significant digits and at least three decimals, for rounding errors.

        Numbers are equal iff these are: an equivalence relation.
        """
        if self.value.denominator == 1 or not self.value:
            return self.value
        size = len(str(int(abs(self.value)))) if abs(self.value) >= 1 else 1 - len(str(int(1 / abs(self.value))))
        return round(self.value, max(3, 9 - size))


def same_number(a: Number, b: Number) -> bool:
    """Whether two numbers are equal and their labels agree: symmetric, but not transitive (5 km, 5, 5 m)."""
    return a.rounded == b.rounded and labels_agree(a, b)


def labels_agree(a: Number, b: Number) -> bool:
    """Whether two labels are equal, or one number is bare: the question then implies what it counts."""
    if a.label == b.label:
        return a.rest == b.rest or not ((a.rest and b.rest) or a.needs_label or b.needs_label)
    labelled = a if a.label else b
    return not (a.label and b.label) and not labelled.needs_label and not (a.rest and b.rest)


# -- Reading a number: exactly, with its label, or not at all ----------------------------------------------------------

_WRAPPED = re.compile(r"\\(?:boxed|fbox|text(?:bf|it|rm)?|math(?:bf|it|rm))\s?\{([^{}]*)\}")
_LATEX = (
    (re.compile(r"\\[dt]?frac\s?\{(-?\d+)\}\s?\{(\d+)\}"), r" \1/\2 "),
    (re.compile(r"\^\{(-?\d+)\}"), r"^\1"),
    (re.compile(r"\{(,)\}"), r"\1"),
    (_WRAPPED, r" \1 "),
    (_WRAPPED, r" \1 "),  # one in another
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "*"),
    (re.compile(r"\^\s?\\circ(?![a-z])"), "\u00b0"),
    (re.compile(r"\\[,;: ]"), " "),
    (re.compile(r"\\([%$])|\\[()\[\]]"), r"\1"),
)
_MATHS = re.compile(r"(?<![\w$])(\${1,2})([^$\n]+)\1(?![\w$])")
_NUMBER = re.compile(
    r"(?:(?P<whole>\d{1,9}) )?(?P<top>\d{1,400})/(?P<bottom>\d{1,400})"
    r"|(?P<digits>(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d{1,3}(?:[ '_]\d{3})+(?!\d)|\d{1,400})(?:\.\d{1,400})?|\.\d{1,400})"
    r"(?:[eE](?P<exponent>[-+]?\d{1,3})(?!\w)|\s?[*x]\s?10(?:\^|\*\*)(?P<tens>-?\d{1,3})"
    r"|(?:\^|\*\*)(?P<power>-?\d{1,3}))?"
)
_SIGNS = "$\u20ac\u00a3\u00a5\u20b9\u20a9"
_BEFORE = re.compile(
    r"(?:(?P<sign>[-+])(?P<gap> ?))?"
    rf"(?:(?P<money>\b[A-Za-z]{{1,3}}\$|[{_SIGNS}]|\b(?:USD|EUR|GBP|JPY|INR|Rs\.?)) ?)?(?P<inner>-?)$"
)
_WORD = re.compile(r"[^\W\d_]+(?:['.-][^\W\d_]+)*")
_UNIT = re.compile(
    rf"[\u00b0%{_SIGNS}][^\W\d_]*|[^\W\d_]{{1,9}}(?:\^-?\d|[23])?(?:[/\u00b7][^\W\d_]{{1,12}}(?:\^-?\d|[23])?)*"
)
_CLAUSE = re.compile(r"(?<![.,;:)])[.,;:)]++(?=\s|$)|(?<=[^\W\d_]{3})[?!]+(?=\s|$)| [(\[]|\u2014")
"""Where an explanation begins that is not part of the label."""
_POWER = re.compile(r"(?<=[^\W\d_])\^?-?[1-3](?!\w)")
_RANK = re.compile(r"#\d")
"""A place in a list: "#1" is not "1"."""
_SUM = re.compile(r"[-\d\s.,+*/()^%$]+")
_SPELLINGS = {
    "$": "us$ usd dollar dollars",
    "\u20ac": "eur euro euros",
    "\u00a3": "gbp sterling",
    "\u00a5": "jpy yen",
    "\u20b9": "inr rs rs. rupee rupees",
    "%": "percent pct",
}
_UNITS = """meter m metre|kilometer km kms kilometre|centimeter cm centimetre|millimeter mm millimetre|mile mi
|foot ft feet|inch inche|yard yd|gram g|kilogram kg kgs kilo|milligram mg|tonne t|pound lb lbs|ounce oz|liter l L litre
|milliliter ml mL|second s sec|minute min|hour h hr|day d|week wk|year yr|watt W|volt V|ampere A amp|joule J|newton N
|hertz Hz|ohm \u03a9"""
"""Spellings of one unit; none is converted into another."""
_ALIASES = {word: sign for sign, words in _SPELLINGS.items() for word in words.split()}
_ALIASES |= {word: row.split()[0] for row in _UNITS.split("|") for word in row.split()[1:]}
_ATTACHED = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "mn": 10**6, "bn": 10**9}
_ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SPELT = {word: value for value, word in enumerate(_ONES.split())}
_SPELT |= {word: 10 * ten for ten, word in enumerate(_TENS.split(), start=2)}
_MONTHS_WORDS = """
january february march april may june july august september october november december jan feb mar apr jun jul
aug sep sept oct nov dec
"""
_MONTHS = frozenset(_MONTHS_WORDS.split())
_CHANGING_WORDS = """
not no never neither nor without isn't than least most under over above below within exceeding between up down
out to or and plus minus more less fewer greater larger smaller half halves third thirds quarter quarters twice
thrice double triple times root square squared cube cubed factorial power log ln exp sin cos tan sqrt max min
mod modulo choose divided multiplied by version point through until till from vs ad bc ce bce am pm a.m p.m b.c
a.d o'clock score gross grand mil minimum maximum
"""
_CHANGING = frozenset(_CHANGING_WORDS.split())
"""Words that make another number of the one beside them."""
_LEADING = frozenset({"after", "before", "early", "late", "spring", "summer", "autumn", "winter"})
"""Words that make another number, or a time, of the one behind them."""
_PHRASES_WORDS = """
in on at of for with is are was were as left that which who when where if because since after before during
while it he she they we i you the a an this these so but
"""
_PHRASES = frozenset(_PHRASES_WORDS.split())
"""Words that end a label."""


@lru_cache(maxsize=1024)
def parse_number(text: str) -> Number | None:
    """The number that a text states; None if it states none, several, or one that cannot be read without guessing.

    Read: signs, thousands ("1,000", "1 000"), decimals, fractions ("3/4", "1 1/2"), exponents ("2e3", "3 x 10^5",
    "10^5"), percentages, words that multiply ("5 million", "5k", "2 dozen") and numbers in words ("twenty-one"), each
    with the label before or behind it. What stands before "=" does not count if it is a name or a calculation.
    """
    plain = _plain(text)
    spelt = _spelt(plain)
    if spelt is not None:
        return Number(Fraction(spelt))
    left, _, right = plain.rpartition("=")
    if any(map(str.isdecimal, left)):
        if not _SUM.fullmatch(left):
            return None
        plain = right.strip()
    found = _NUMBER.search(plain)
    if found is None:
        return None
    value, before, after = _value(found), plain[: found.start()], plain[found.end() :]
    prefix = _BEFORE.search(before)
    assert prefix is not None, "every part of it is optional"
    sign = (prefix["sign"] or "") + prefix["inner"]
    lead = before[: prefix.start()] if sign or prefix["money"] else before
    if value is None or len(sign) > 1 or not _leads(lead, apart=bool(sign and prefix["gap"])):
        return None
    lead_words = lead.split()
    named = bool(lead_words) and lead_words[-1].isalpha() and lead_words[-1].casefold() not in FUNCTION_WORDS
    if named and not prefix["money"] and "." in (found["digits"] or "") and found["digits"].endswith("0"):
        return None  # a version: Python 3.10 is not 3.1
    if lead_words and lead_words[-1].casefold() in ("minus", "negative"):
        sign = "" if sign == "-" else "-"
    return _labelled(-value if sign == "-" else value, prefix["money"] or "", after)


def _plain(text: str) -> str:
    """A `written` text without LaTeX around numbers and the mark of a heading."""
    if "\\" in text or "{" in text:
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    if "$" in text:
        text = _MATHS.sub(r" \2 ", text)
    plain = written(text)
    return plain if _RANK.match(plain) else plain.lstrip("# ")


def _spelt(plain: str) -> int | None:
    """The number of a text that consists of words for one, e.g. "one hundred and five"."""
    found = prose(plain) if plain[:1].isalpha() and len(plain) < 100 else None
    if not found or found[0] == "and" or found[-1] == "and":
        return None
    total, part, limit = 0, 0, 10**12
    for i, word in enumerate(found):
        if word == "and" and i:
            continue
        if word in _SPELT and (part % 100 == 0 or (part % 10 == 0 and part % 100 > 10 and 0 < _SPELT[word] < 10)):
            part += _SPELT[word]
        elif word == "hundred" and part < 10:
            part = 100 * (part or 1)
        elif word in ("thousand", "million", "billion") and MULTIPLES[word] < limit:
            total, part, limit = total + (part or 1) * MULTIPLES[word], 0, MULTIPLES[word]
        else:
            return None
    return total + part


def _value(found: re.Match[str]) -> Fraction | None:
    """The value of a number without its sign; None if it cannot be read, or is too long."""
    if found["top"]:
        whole, top, bottom = int(found["whole"] or 0), int(found["top"]), int(found["bottom"])
        return None if not bottom or (whole and top >= bottom) else whole + Fraction(top, bottom)
    digits = found["digits"].translate({ord(mark): None for mark in ",' _"})
    if digits[0] == "0" and digits[1:2].isdecimal():
        return None  # 007
    value = Fraction(digits)
    if found["power"]:
        power = int(found["power"])
        return value**power if abs(power) * len(digits) <= 400 and (value or power > 0) else None
    return value * Fraction(10) ** int(found["exponent"] or found["tens"] or 0)


def _leads(lead: str, *, apart: bool) -> bool:
    """Whether words before a number leave it as it is.

    Args:
        lead: The text before the number, its sign and its currency.
        apart: Whether a space stands between a sign and the number: a minus only if nothing stands before it.
    """
    chunks = lead.split(" ")
    if lead[-1:] not in ("", " ", "(", ":", "=") or (apart and lead.rstrip()[-1:] not in ("", ":", "=")):
        return False
    chunks = [chunk for chunk in chunks if chunk not in ("", "(")]
    for i, chunk in enumerate(chunks):
        word = chunk.rstrip(".,:;=").casefold()
        if not (_WORD.fullmatch(word) or chunk in ("=", ":")) or word in _CHANGING - {"minus"} or word in _SPELT:
            return False
        if word == "minus" and i + 1 < len(chunks):
            return False
        names = len(word) == 1 and word not in "ia"
        if word in MULTIPLES or (names and not (chunk[-1] == "=" or chunks[i + 1 : i + 2] == ["="])):
            return False
    return not chunks or chunks[-1].rstrip(".,").casefold() not in _MONTHS | _LEADING


def _labelled(value: Fraction, money: str, after: str) -> Number | None:
    """A number with the label behind it; None if what stands there is not a label."""
    after = re.sub("^ in$", " inch", after)
    is_named = re.match(r"(?:st|nd|rd|th|s)\b", after) is not None  # the 21st, an iPhone 5s, the 1990s
    attached = re.match(r"(?:st|nd|rd|th)\b|-(?=[^\W\d_]{2})", after)
    if attached and (attached[0] == "-" or value.denominator == 1):
        after = f" {'' if attached[0] == '-' else 'th '}{after[attached.end() :]}"
    scale = re.match(r"[A-Za-z]{1,2}\b", after)
    if scale and scale[0] in _ATTACHED | ({"m": 10**6, "b": 10**9} if money else {}):
        value, after = value * {"m": 10**6, "b": 10**9, **_ATTACHED}[scale[0]], after[scale.end() :]
    if any(map(str.isdecimal, _POWER.sub("", after))) or re.match(r"\.\.|[ai]\b", after):
        return None  # a second number, or one that goes on, or "5a"
    named, rest = after, ""
    clause = _CLAUSE.search(after)
    if clause is not None:
        named, rest = after[: clause.start()], normalise(after[clause.start() :].strip(" .,;:?!()[]\u2014"))
    found: list[str] = []
    for chunk in named.split(" "):
        if chunk and not (_WORD.fullmatch(chunk) or _UNIT.fullmatch(chunk)):
            return None
        found += [_singular(chunk)] if chunk else []
    while found and found[0] in MULTIPLES:
        value *= MULTIPLES[found.pop(0)]
    if found[:2] == ["per", "cent"]:
        found[:2] = ["%"]
    if found and found[0].casefold() in _MONTHS:
        return None  # a date
    end = next((i for i, word in enumerate(found) if word in _PHRASES), len(found))
    sign = _ALIASES.get(money.casefold(), money)
    label = found[:end] if found[:1] == [sign] else [sign, *found[:end]] if sign else found[:end]
    said = " ".join([*found[end:], rest]).strip()
    changing = [
        word for word in (*found[:end], *said.split()) if word in _CHANGING or word.endswith(("illion", "illiard"))
    ]
    if found[:1] == ["square"] and end > 1:
        changing.remove("square")
    is_variable = end == 1 and len(found[0]) == 1 and found[0].isalpha()
    if label[:1] == ["%"]:
        value /= 100
    return Number(value, " ".join(label), said, bool(changing) or is_variable or is_named)


def _singular(word: str) -> str:
    """One spelling for a word of a label: that of its unit or currency, else without a capital and a plural s."""
    small = word.casefold()
    if word in _ALIASES or (len(word) > 2 and small in _ALIASES):
        return _ALIASES.get(word) or _ALIASES[small]
    if small in _CHANGING or len(word) < 4 or not (word.islower() or word.istitle()):
        return small if small in _CHANGING else word
    single = small[:-1] if small.endswith("s") and not small.endswith("ss") else small
    return _ALIASES.get(single, single)


# -- The judge ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumericJudge(BatchJudge):
    r"""Two answers are the same iff each states one number, the numbers are equal and their labels agree.

    Labels are units, currencies and counted nouns. They agree if they are equal, or if one number is bare: "5 km" is
    "5", not "5 m", and nothing is converted, "5 km" is not "5000 m" either. Words that multiply are read ("5 million" =
    "5,000,000"), and so is "%": "50%" = "0.5". Whole numbers are compared exactly, others to nine significant digits
    and at least three decimals. See `parse_number` and `same_number`.

    Dates, times, ranges, bounds, lists, formulas ("\sqrt{2}", "5!") and texts with several numbers are texts: two of
    them are the same iff their normalised strings are, and none is the same as a number. So are refusals.
    """

    is_slow = False

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters."""
        return JudgeSpec(name="numeric", version=4, params={})

    def can_merge(self, a: str, b: str, further: int) -> bool:
        """Equal numbers with different labels may be joined through a bare one (5 km, 5, 5 m); nothing else may."""
        ours, theirs = parse_number(a), parse_number(b)
        return ours is not None and theirs is not None and ours.rounded == theirs.rounded

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Equality of the numbers that they state; the question plays no part."""
        return [same_numbers(a, b) for a, b in pairs]


def same_numbers(a: str, b: str) -> bool:
    """Whether two texts state the same number, or state none and are the same text."""
    ours, theirs = parse_number(a), parse_number(b)
    if ours is None or theirs is None:
        return ours is theirs and (normalise(a) == normalise(b) or (is_refusal(a) and is_refusal(b)))
    return same_number(ours, theirs)
