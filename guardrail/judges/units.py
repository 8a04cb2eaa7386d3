"""Units that numbers carry: their dimension, and their size within it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from fractions import Fraction

__all__ = [
    "AMBIGUOUS_LETTERS",
    "FUNCTION_WORDS",
    "PERCENT",
    "Unit",
    "find_unit",
    "in_formula",
    "is_symbol",
    "is_variable",
    "looks_like_unit",
    "ratios",
]

Unit = tuple[str, Fraction]
"""Dimension, and size in the dimension's base unit. Units of one dimension convert into each other."""

PERCENT: Unit = ("percent", Fraction(1, 100))
_COUNT: Unit = ("count", Fraction(1))

_METRE, _KILOGRAM, _SECOND = "length", "mass", "time"
_INCH, _POUND, _HOUR = Fraction("0.0254"), Fraction("0.45359237"), Fraction(3600)


def _table(dimension: str, sizes: Mapping[str, Fraction | int | str]) -> dict[str, Unit]:
    return {name: (dimension, Fraction(size)) for names, size in sizes.items() for name in names.split()}


def _alone(*units: str) -> dict[str, Unit]:
    """Units, each of which is a dimension: their names, the first of which names it."""
    return {name: (names.split()[0], Fraction(1)) for names in units for name in names.split()}


_POWERS_OF_TEN = {
    **{"f": -15, "p": -12, "n": -9, "\u03bc": -6, "u": -6, "mc": -6, "m": -3, "c": -2, "d": -1},
    **{"": 0, "h": 2, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15},
}
_NAMES_OF_PREFIXES = {
    **{"femto": -15, "pico": -12, "nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1},
    **{"": 0, "hecto": 2, "kilo": 3, "mega": 6, "giga": 9, "tera": 12, "peta": 15},
}
_PREFIXED: tuple[tuple[str, Fraction | int | str, str, str, str], ...] = (
    (_METRE, 1, "m", "* f n \u03bc u m c d k M G T", "metre meter"),
    (_KILOGRAM, "0.001", "g", "* f p n \u03bc u mc m c d h k M G T P", "gram gramme"),
    (_KILOGRAM, 1000, "t", "* M G", "tonne"),
    (_SECOND, 1, "s", "* f p n \u03bc u m", "second"),
    ("length^3", "0.001", "l", "* f p n \u03bc u mc m c d h k M G", "litre liter"),
    ("length^3", "0.001", "L", "* f p n \u03bc u mc m c d h k M G", ""),
    ("amount", 1, "mol", "* f p n \u03bc u mc m k", "mole"),
    ("concentration", 1, "M", "n \u03bc u mc m", "molar"),
    ("energy", 1, "J", "* f p n \u03bc u m k M G T P", "joule"),
    ("energy", 3600, "Wh", "* \u03bc u m k M G T P", "watt-hour watthour"),
    ("electronvolt", 1, "eV", "* \u03bc u m k M G T P", "electronvolt"),
    ("heat", 1, "cal", "* k M", "calorie"),
    ("power", 1, "W", "* f p n \u03bc u m k M G T P", "watt"),
    ("apparent power", 1, "VA", "* m k M G", ""),
    ("voltage", 1, "V", "* f p n \u03bc u m k M G", "volt"),
    ("current", 1, "A", "* f p n \u03bc u m k", "ampere amp"),
    ("charge", 1, "C", "f p n \u03bc u m", "coulomb"),
    ("battery", 1, "Ah", "* \u03bc u m k", "ampere-hour amp-hour"),
    ("resistance", 1, "\u03a9", "* n \u03bc u m k M G T", "ohm"),
    ("conductance", 1, "S", "n \u03bc u m", "siemens"),
    ("capacitance", 1, "F", "f p n \u03bc u m", "farad"),
    ("inductance", 1, "H", "n \u03bc u m", "henry"),
    ("magnetic flux", 1, "Wb", "* n \u03bc u m", "weber"),
    ("magnetic field", 1, "T", "f p n \u03bc u m", "tesla"),
    ("frequency", 1, "Hz", "* n \u03bc u m k M G T P", "hertz"),
    ("pressure", 1, "Pa", "* n \u03bc u m h k M G T P", "pascal"),
    ("pressure", 100_000, "bar", "* \u03bc u m k M G", "bar"),
    ("force", 1, "N", "* f p n \u03bc u m c d k M G", "newton"),
    ("luminous intensity", 1, "cd", "* m k", "candela"),
    ("luminous flux", 1, "lm", "* m k", "lumen"),
    ("illuminance", 1, "lx", "* m k", "lux"),
    ("activity", 1, "Bq", "* m k M G T P", "becquerel"),
    ("absorbed dose", 1, "Gy", "* n \u03bc u m c k", "gray"),
    ("equivalent dose", 1, "Sv", "* n \u03bc u m", "sievert"),
    ("catalysis", 1, "kat", "* p n \u03bc u m", "katal"),
    ("molecular mass", 1, "Da", "* k M", "dalton"),
    ("parsec", 1, "pc", "k M G", "parsec"),
    ("angle", 1, "rad", "* \u03bc u m", "radian"),
)
"""Units that take SI prefixes: dimension, size, symbol, the prefixes it takes ("*" for none), names, which take all.

Left out are symbols that mean something else at least as often: pm, pH, TV, kt, and C, F, H, K, S, T alone.
"""


def _symbols() -> dict[str, Unit]:
    """Symbols of SI units with their prefixes; case matters ("mW", "MW")."""
    return {
        prefix.strip("*") + symbol: (dimension, Fraction(size) * Fraction(10) ** _POWERS_OF_TEN[prefix.strip("*")])
        for dimension, size, symbol, prefixes, _ in _PREFIXED
        for prefix in prefixes.split()
    }


def _names() -> dict[str, Unit]:
    return {
        prefix + name: (dimension, Fraction(size) * Fraction(10) ** power)
        for dimension, size, _, _, names in _PREFIXED
        for name in names.split()
        for prefix, power in _NAMES_OF_PREFIXES.items()
    }


_SI_SYMBOLS, _SI_NAMES = _symbols(), _names()
_LENGTHS: dict[str, Fraction | int | str] = {
    "micron": "1e-6",
    "\u00c5 \u00e5ngstr\u00f6m angstrom": "1e-10",
    "inch inches": _INCH,
    "ft foot feet": 12 * _INCH,
    "yd yds yard": 36 * _INCH,
    "mtr mtrs mts": 1,
    "kms": 1000,
    "cms": "0.01",
    "mms": "0.001",
    "fathom": 72 * _INCH,
    "furlong": 7920 * _INCH,
    "mi mile": 63360 * _INCH,
    "nmi": 1852,
}
_BITS = {"k": "kilo", "M": "mega", "G": "giga", "T": "tera"}
_SYMBOLS: dict[str, Unit] = {
    **_SI_SYMBOLS,
    **_SI_NAMES,
    **_table(_METRE, _LENGTHS),
    **_table(
        _KILOGRAM,
        {
            "kilo kgs": 1,
            "gm gms": "0.001",
            "mgs": "1e-6",
            "lb lbs": _POUND,
            "oz ounce": _POUND / 16,
            "stone": 14 * _POUND,
        },
    ),
    **_table(_SECOND, {"sec": 1, "min minute": 60, "h hr hrs hour": 3600, "d day": 86400, "wk wks week": 604800}),
    **_table(_SECOND, {"fortnight": 1_209_600}),
    **_table("months", {"month mo mos mth": 1, "y yr yrs year y/o": 12, "decade": 120, "century centuries": 1200}),
    **_table("months", {"millennium millennia": 12_000}),
    **_table("length^3", {"cc mls": "1e-6", "ltr lts": "0.001", "cbm": 1, "cuft cft": (12 * _INCH) ** 3}),
    **_table("length^2", {"ha hectare": 10_000, "acre": 43560 * (12 * _INCH) ** 2}),
    **_table("speed", {"m/s": 1, "km/h kmh km/hr kph kmph": 1000 / _HOUR, "mph mi/h": 63360 * _INCH / _HOUR}),
    **_table("speed", {"knot kn": 1852 / _HOUR}),
    **_table("count per 60 time", {"rpm bpm wpm": 1}),
    **_table("count per 1 time", {"fps": 1}),
    **_table("length per 16 gallon", {"mpg": 63360 * _INCH}),
    **_table("1 force 1 length", {"Nm": 1}),  # as "N m" is read: a unit of two
    **_table("resistance", {"mohm": "0.001", "kohm kilohm": 1000, "Mohm MOhm megohm": 10**6}),
    **_table("pressure", {"atm atmosphere": 101_325}),
    # Gallons, tons and pounds differ between countries, or between mass and money: each is a separate dimension.
    **_table("gallon", {"gal gallon": 16, "qt qts quart": 4, "pt pint": 2, "cup": 1}),
    **_table("spoon", {"tbsp tbs tablespoon": 3, "tsp teaspoon": 1}),
    **_table("ton", {"ton": 1, "kiloton": 1000, "megaton": 10**6}),
    **_table("pound", {"pound": 1}),
    # 1 GB is 1000 or 1024 MB, and degrees of two scales are not multiples of each other: none of them converts.
    **_alone("bit", "byte", *(f"{short}B {name}byte" for short, name in _BITS.items()), "PB petabyte"),
    **_alone(*(f"{short}bit {short}b {name}bit" for short, name in _BITS.items()), "KiB", "MiB", "GiB", "TiB"),
    **{"KB": ("kB", Fraction(1)), **{f"{short}bps": (f"{short}bit per 1 time", Fraction(1)) for short in _BITS}},
    **_alone(
        "\u00b0C celsius centigrade degC",
        "\u00b0F fahrenheit degF",
        "kelvin",
        "\u00b0 degree deg",
        "Cal Calorie Calories",
    ),
    **_alone("dB decibel", "psi", "hp horsepower", "\u2030 permille", "bp bps", "pp", "mmHg", "torr", "erg", "dyne"),
    **_alone("light-year lightyear ly", "AU au", "arcminute", "arcsecond", "gauss", "curie", "carat", "karat", "grain"),
    **_alone("barrel bbl", "bushel", "pixel px", "dpi", "ppi", "rem", "baud", "IU", "BTU Btu BTUs"),
    **dict.fromkeys(("%", "percent", "pct"), PERCENT),
    **_table("USD", {"$ USD US$ usd dollar buck": 1, "\u00a2 cent": "0.01"}),
    **_table("EUR", {"\u20ac EUR eur euro": 1}),
    **_table("GBP", {"\u00a3 GBP gbp sterling": 1, "p pence penny": "0.01"}),
    **_table("JPY", {"\u00a5 JPY jpy yen \u5186": 1}),
    **_alone("INR \u20b9 Rs rupee", "CNY RMB yuan renminbi \u5143", "CHF", "CAD C$ CA$", "AUD A$ AU$", "NZD NZ$"),
    **_alone("HKD HK$", "SGD S$", "MXN MX$", "BRL R$", "KRW \u20a9", "RUB \u20bd ruble rouble", "TRY \u20ba"),
    **_alone("ILS \u20aa shekel", "BTC \u20bf bitcoin", "SEK", "NOK", "DKK", "PLN zloty", "ZAR rand", "CZK", "HUF"),
    **_alone("THB baht", "IDR rupiah", "MYR ringgit", "PHP", "VND", "AED", "SAR", "EGP", "NGN naira", "KES", "PKR"),
    **_alone("BDT", "LKR", "ARS", "CLP", "COP", "PEN", "UAH", "TWD", "ETH"),
    # Money of several countries: the name alone is not one of their currencies.
    **_alone("peso pesos", "franc", "krona kronor", "krone kroner", "dinar", "dirham", "rial", "riyal", "shilling"),
    **_alone("lira", "won"),
}
_PLURALS = {f"{name}s": unit for name, unit in _SYMBOLS.items() if name.isalpha() and name.islower() and len(name) > 2}
_PHRASES: dict[str, Unit] = {
    "per cent": PERCENT,
    "percentage point": _SYMBOLS["pp"],
    "percentage points": _SYMBOLS["pp"],
    "basis point": _SYMBOLS["bp"],
    "basis points": _SYMBOLS["bp"],
    "us dollars": _SYMBOLS["$"],
    "u.s. dollars": _SYMBOLS["$"],
    "american dollars": _SYMBOLS["$"],
    "canadian dollars": _SYMBOLS["CAD"],
    "australian dollars": _SYMBOLS["AUD"],
    "pounds sterling": _SYMBOLS["GBP"],
    "british pounds": _SYMBOLS["GBP"],
    "fluid ounce": ("fluid ounce", Fraction(1)),
    "fluid ounces": ("fluid ounce", Fraction(1)),
    "fl oz": ("fluid ounce", Fraction(1)),
    "fl. oz": ("fluid ounce", Fraction(1)),
    "nautical mile": (_METRE, Fraction(1852)),
    "nautical miles": (_METRE, Fraction(1852)),
    **dict.fromkeys(("light year", "light years", "light-years"), _SYMBOLS["light-year"]),
    "astronomical unit": _SYMBOLS["AU"],
    "astronomical units": _SYMBOLS["AU"],
    **{
        f"{prefix}{one}{sign}hour{s}": (dimension, Fraction(size) * Fraction(10) ** power)
        for one, dimension, size in (("watt", "energy", 3600), ("ampere", "battery", 1), ("amp", "battery", 1))
        for prefix, power in _NAMES_OF_PREFIXES.items()
        for sign in (" ", "-")
        for s in ("", "s")
    },
    "metric ton": _SYMBOLS["tonne"],
    "metric tons": _SYMBOLS["tonne"],
    **dict.fromkeys(("pound per square inch", "pounds per square inch"), _SYMBOLS["psi"]),
    "deg c": _SYMBOLS["celsius"],
    "deg f": _SYMBOLS["fahrenheit"],
    "degrees c": _SYMBOLS["celsius"],
    "degrees celsius": _SYMBOLS["celsius"],
    "\u00b0 c": _SYMBOLS["celsius"],
    "degrees f": _SYMBOLS["fahrenheit"],
    "degrees fahrenheit": _SYMBOLS["fahrenheit"],
    "\u00b0 f": _SYMBOLS["fahrenheit"],
}
_IN_OTHER_CASE = {"MG": "mg", "GM": "g", "mb": "MB", "gb": "GB", "tb": "TB", "mhz": "MHz", "Mhz": "MHz"}
"""Common spellings with a second, unlikely reading: megagrams, millihertz."""
_OTHER_WORDS = {"us", "cd", "ps"}
"""Symbols that are other words in another case: "US", "CD", "PS"."""


def _folded() -> dict[str, Unit]:
    """Units by their casefolded names, where case cannot tell two of them apart as in "mW" and "MW"."""
    readings: dict[str, set[Unit]] = {}
    for name, unit in (_SYMBOLS | _PLURALS).items():
        if len(name) > 1:
            readings.setdefault(name.casefold(), set()).add(unit)
    alone = {name: min(units) for name, units in readings.items() if len(units) == 1 and name not in _OTHER_WORDS}
    words = {
        name: unit
        for name, unit in (_SYMBOLS | _PLURALS).items()
        if len(name) > 2 and name.islower() and (name not in _SI_SYMBOLS or name in _SI_NAMES)
    }
    return alone | words | {"ft": _SYMBOLS["ft"]}


_FOLDED = _folded()
_SYMBOLS |= {name: _SYMBOLS[usual] for name, usual in _IN_OTHER_CASE.items()}
_ANY_CASE = frozenset(name.casefold() for name in _SYMBOLS if len(name) > 1)
_VOWELS = frozenset("aeiouy")
_LONGEST_SYMBOL = 5
FUNCTION_WORDS = {"a", "after", "all", "also", "an", "and", "are", "as", "at", "be", "because", "been"}
FUNCTION_WORDS |= {"before", "but", "by", "did", "do", "during", "each", "every", "for", "from", "had", "has"}
FUNCTION_WORDS |= {"have", "he", "her", "his", "i", "if", "in", "into", "is", "it", "its", "just", "left", "no"}
FUNCTION_WORDS |= {"not", "of", "off", "on", "or", "our", "out", "over", "she", "since", "so", "than", "that"}
FUNCTION_WORDS |= {"the", "their", "them", "then", "there", "they", "this", "to", "under", "until", "up"}
FUNCTION_WORDS |= {"was", "we", "were", "when", "where", "which", "while", "who", "will", "with", "would"}
FUNCTION_WORDS |= {"you", "your"}
"""Words after a number that neither are units nor belong to one."""
_POWERS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}


def find_unit(words: str) -> Unit | None:
    """The unit that some words spell, all of them: "km", "square feet", "m^2", "km per hour", "$ a day"; or None.

    A word that is not in the table is not a unit. "per" and "/" make a unit of a unit and any one word, "a", "an",
    "every" and "each" of a unit and a time.
    """
    if words in _SYMBOLS or words.casefold() in _PHRASES:
        return _SYMBOLS.get(words) or _PHRASES[words.casefold()]
    if "/" in words and words.casefold() in _FOLDED:
        return _FOLDED[words.casefold()]  # "KM/H"
    for sign in ("per " if words.startswith("per ") else " per ", "/"):
        top, found, bottom = words.partition(sign)
        if found:
            fits = bottom.strip().isalpha() or _under(bottom.strip())
            return _rate(find_unit(top.strip()) if top.strip() else _COUNT, bottom.strip()) if fits else None
    for sign in (" a ", " an ", " every ", " each "):
        top, found, bottom = words.partition(sign)
        if found:
            under = _plain(bottom)
            return _rate(find_unit(top), bottom) if under and under[0] in (_SECOND, "months") else None
    return _plain(words)


def looks_like_unit(word: str) -> bool:
    """Whether an unknown word after a number is written as units are, rather than as things that are counted.

    A known unit in an unclear case ("MM", "mw"), a word with a slash or a letter beyond ASCII ("wins/season"), a
    compound with a unit ("man-hours"), a short word without vowels ("lbf"), or with capitals inside ("kWp", "BTU").
    """
    folded = word.casefold()
    if not any(map(str.isalpha, word)) or folded in FUNCTION_WORDS:
        return False
    if folded in _ANY_CASE or not word.isascii() or "/" in word:
        return True
    if "-" in word:
        return any(part and find_unit(part) is not None for part in folded.split("-"))
    short = word.isalpha() and len(word) <= _LONGEST_SYMBOL
    if word.istitle() and len(word) > 1:
        return False
    return short and (_VOWELS.isdisjoint(folded) or not (word.islower() or word.istitle()))


def _plain(words: str) -> Unit | None:
    folded = words.casefold()
    first, _, rest = folded.partition(" ")
    if first in _POWERS and rest:
        return _power(_plain(rest), _POWERS[first])
    rest, _, last = folded.rpartition(" ")
    if last in _POWERS and rest:
        return _power(_plain(rest), _POWERS[last])
    if folded.startswith("sq") and (one := _SYMBOLS.get(folded[2:].removeprefix("."))) is not None:
        return _power(one, 2)  # "sqft", "sq.m"
    for power in (2, 3):
        base = words.removesuffix(f"^{power}")
        if base != words and "^" not in base:
            return _power(_plain(base), power)
        if words.endswith(str(power)) and words[:-1] in _SYMBOLS:
            return _power(_SYMBOLS[words[:-1]], power)
    mega = words.startswith("M") and not (words.isupper() or words.istitle())  # "MSv" is not "mSv"
    return _SYMBOLS.get(words) or _PHRASES.get(folded) or _PLURALS.get(words) or (None if mega else _FOLDED.get(folded))


def _power(unit: Unit | None, power: int) -> Unit | None:
    return (f"{_METRE}^{power}", unit[1] ** power) if unit is not None and unit[0] == _METRE else None


def _under(bottom: str) -> Unit | None:
    """The unit below a fraction line: any, and the powers of any ("s^2", "second squared")."""
    unit = _plain(bottom)
    for ending, power in (("^2", 2), ("2", 2), (" squared", 2), ("^3", 3), ("3", 3), (" cubed", 3)):
        if unit is None and bottom.endswith(ending) and (one := _plain(bottom.removesuffix(ending))) is not None:
            unit = (f"{one[0]}^{power}", one[1] ** power)
    return unit


def _rate(top: Unit | None, bottom: str) -> Unit | None:
    """A unit per another one. Only speeds convert; for other rates the denominators must be the same."""
    if top is None:
        return None
    under = _under(bottom)
    if top[0] == _METRE and under is not None and under[0] == _SECOND:
        return ("speed", top[1] / under[1])
    return (f"{top[0]} per {bottom.casefold() if under is None else f'{under[1]} {under[0]}'}", top[1])


def ratios() -> frozenset[Fraction]:
    """Every factor by which a number can change when it is written in another unit of the same dimension."""
    sizes: dict[str, set[Fraction]] = {}
    for dimension, size in (*_SYMBOLS.values(), *_PHRASES.values()):
        sizes.setdefault(dimension, set()).add(size)
    for power in (2, 3):
        sizes.setdefault(f"{_METRE}^{power}", set()).update(size**power for size in sizes[_METRE])
    found = {dimension: {a / b for a in known for b in known} for dimension, known in sizes.items()}
    speeds = {a * b for a in found[_METRE] for b in found[_SECOND]}
    return frozenset(speeds.union(*found.values()))


# -- Formulas: whether a number is part of something larger, so that it must not be read alone -------------------------

_RELATIONS = {"=", "==", "\u2192", "\u2248", "\u27f9", "\\approx", "\\implies", "\\therefore", "\\Rightarrow"}
_RELATIONS |= {"\\rightarrow"}
"""What a new value may follow: "sqrt(9) = 3" is 3."""
_LAYOUT = _RELATIONS | {"\\quad", "\\qquad"}
_LINE_ENDS = {"\\\\", "\\end"}
"""Between the lines of a derivation, but also between the entries of a vector."""
_SIGNS = set("\\<>~^*/+$!%")
_HARMLESS = _RELATIONS | {"\u2234"}
"""The last is the sign for "therefore"."""
_FUNCTIONS = {"sqrt", "cbrt", "root", "log", "ln", "lg", "exp", "sin", "cos", "tan", "cot", "csc", "arcsin"}
_FUNCTIONS |= {"arccos", "arctan", "sinh", "cosh", "tanh", "abs", "floor", "ceil", "ceiling", "mod", "modulo", "gcd"}
_FUNCTIONS |= {"lcm", "square", "cube", "factorial", "half", "twice", "thrice", "double", "triple"}
_FUNCTIONS |= {"quadruple", "power", "maximum", "minimum", "except", "without", "nor", "neither"}
_FUNCTIONS |= {"never", "pi"}
_FRACTIONS = {"halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifth", "fifths", "sixth"}
_FRACTIONS |= {"sixths", "seventh", "sevenths", "eighth", "eighths", "ninth", "ninths", "tenth", "tenths"}
_FRACTIONS |= {"hundredth", "hundredths", "thousandth", "thousandths"}
_PARTS = _FRACTIONS | {"percent", "cent", "fraction", "multiple", "multiples", "factor", "factors", "divisor"}
_PARTS |= {"divisors", "logarithm", "sine", "cosine", "tangent", "reciprocal", "inverse", "opposite"}
_PARTS |= {"negative", "most", "none"}
"""Of a number they make another one."""
_SPELLED = {"two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "twenty"}
_SPELLED |= {"thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "thousand", "million"}
_JOINING = {"and", "or", "to", "of", "by", "times", "plus", "minus", "x"}
_FILLERS = {"equal", "equals", "to", "or", "exactly", "precisely", "about", "around", "approximately", "roughly"}
_FILLERS |= {"nearly", "almost", "be", "the", "really", "actually"}
_AFTER = _FRACTIONS | {"squared", "cubed", "factorial", "factorials", "mod", "modulo", "power", "root"}
_AFTER |= {"pi", "divided", "multiplied", "negative"}
AMBIGUOUS_LETTERS = {"d", "y"}
"""Days and years apart from a number, but variables after a relation."""
_COMPARATIVES = {"more", "less", "fewer", "greater", "higher", "lower", "above", "below", "over", "under", "up"}
_COMPARATIVES |= {"older", "younger", "larger", "smaller", "longer", "shorter", "better", "worse", "beyond"}
_STOPS = ".;:!?"
_VARIABLE = re.compile(r"[b-z\u03b1-\u03c9]")
_LABEL = re.compile(r"\(?[A-Za-z]\)")
"""Of a part of a question or one of its options."""
_GREEK = re.compile(r"[\u0391-\u03c9\u03d1\u03d5]{1,2}")
"""One or two letters are variables, more are a word."""


def in_formula(words: list[str], first: int, end: int, closed: bool) -> bool:
    r"""Whether the number at words ``first`` to ``end`` is only part of what is written there.

    Arguments of functions, roots and LaTeX commands ("\sqrt 2", "half of 10"), factors ("2 \pi", "3 i"), powers and
    factorials ("5 squared", "5 factorial"), negations ("x != 5", "is not equal to 5") and bounds ("5 or more").

    Args:
        words: Of the text.
        first: Where the number starts, with its sign and currency.
        end: One past its last word, unit included.
        closed: Whether punctuation follows it, so that the words after it do not matter.
    """
    after = words[end] if not closed and end < len(words) else ""
    before = first > 0 and (_command(reversed(words[:first]), _STOPS) or _applied(words, first, after))
    if first > 0 and words[first - 1] in _RELATIONS and _inner(words[end - 1]) in AMBIGUOUS_LETTERS:
        return True  # "2x = 5 y"
    return before or (after != "" and _continued(words, first, end))


def is_variable(word: str) -> bool:
    """Whether a word is a letter of a formula: "x", "i", "\u03c0"; never "a"."""
    return _VARIABLE.fullmatch(word) is not None or _GREEK.fullmatch(word) is not None


def _command(words: Iterable[str], stops: str) -> bool:
    """Whether a LaTeX command that is not understood is the next one, up to a relation or the end of the sentence."""
    for word in words:
        if word in _RELATIONS or (word[-1] in stops and word[0] != "\\"):
            return False
        if "\\" in word and word not in _LAYOUT:
            return True
    return False


def is_symbol(word: str) -> bool:
    """Whether a word is or holds a mathematical sign that is not understood: "<", "\u2260", "\u221ax"."""
    if word in _HARMLESS or word[0] == "(" or not word.strip("!"):
        return False
    if not word.isascii() and any(unicodedata.category(char) == "Sm" for char in word):
        return True
    return not any(map(str.isalnum, word)) and not _SIGNS.isdisjoint(word)


def _name(word: str) -> str:
    return _inner(word).casefold()


def _inner(word: str) -> str:
    return word.strip(".,;:!?()[]{}\"'")


def _applied(words: list[str], first: int, after: str) -> bool:
    """Whether what stands before a number makes another one of it."""
    one, two = words[first - 1], words[first - 2] if first > 1 else ""
    signs = two != "" and not any(map(str.isalnum, two))  # "x ~ = 5", but "\u221a25 = 5" is 5
    if is_symbol(one) or (one == "=" and signs and (is_symbol(two) or two == "-")):
        return True
    if one[-1] in _STOPS:
        return False
    name = _name(one)
    measured = any(map(str.isdigit, two)) and find_unit(one) is not None  # "1 h 30 min"
    enclosed = words[first][0] == "("
    labelled = _LABEL.fullmatch(one) is not None and not enclosed  # "(b) 5"
    variable = _VARIABLE.fullmatch(_inner(one)) is not None and not labelled
    if not measured and (name in _FUNCTIONS or variable or (name in _SPELLED and not enclosed)):
        return True
    if name == "choose" and _chosen_from(two):
        return True
    counted = _inner(after).isalpha() and _name(after) not in FUNCTION_WORDS
    if _inner(one) in ("max", "min") and not measured and not counted:
        return True  # "max 5", but neither Max nor "max 5 apples"
    if enclosed and len(one) == 1 and one.isalpha():
        return True  # P(5)
    at = first - 1
    if name == "the" and at > 0:
        at, name = at - 1, _name(words[at - 1])
    other = _name(words[at - 1]) if at > 0 else ""
    if name == "of" and other in _FUNCTIONS | _PARTS | _SPELLED | {"one"}:
        return True
    if (name in _JOINING and other in _SPELLED) or (name in ("by", "with") and other in ("divided", "multiplied")):
        return True
    return _denied(words, first)


def _chosen_from(word: str) -> bool:
    """Whether a word next to "choose" makes a binomial coefficient of it: "7 choose 5", "n choose 5"."""
    name = _name(word)
    return any(map(str.isdigit, name)) or name in _SPELLED or (_VARIABLE.fullmatch(name) is not None and name != "i")


def _denied(words: list[str], first: int) -> bool:
    """Whether a negation or a comparison stands before a number, with nothing but fillers between."""
    for word in reversed(words[max(0, first - 5) : first]):
        name = word.casefold()
        if name not in _FILLERS:
            return name in ("not", "never", "than", "cannot", "neither", "nor") or name.endswith("n't")
    return False


def _continued(words: list[str], first: int, end: int) -> bool:
    """Whether what stands after a number makes another one of it."""
    one, two = words[end], words[end + 1] if end + 1 < len(words) else ""
    before = words[first - 1] if first else ""
    if one in _LINE_ENDS and before in _RELATIONS:
        return False
    if is_symbol(one) or _command(words[end:], "," + _STOPS):
        return True
    if before == one == "|" and words[first].startswith("-"):
        return True  # |-5|
    if _name(one) in _AFTER or is_variable(_inner(one)) or (_name(one) == "choose" and _chosen_from(two)):
        return True
    return one.casefold() in ("and", "or") and _name(two) in _COMPARATIVES
