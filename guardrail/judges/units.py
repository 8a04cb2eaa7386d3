"""Units that numbers carry: their dimension, and their size within it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

__all__ = ["FUNCTION_WORDS", "PERCENT", "Unit", "find_unit", "looks_like_unit", "ratios"]

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
    # Gallons, tons and pounds differ between countries, or between mass and money: they are dimensions of their own.
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
"""Common spellings with two readings, the other of which hardly anybody means: megagrams, millihertz."""
_OTHER_WORDS = {"us", "cd", "ps"}
"""Symbols that in another case are words of their own: "US", "CD", "PS"."""


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

    What is not in the table is no unit. "per" and "/" make a unit of a unit and any one word, "a", "an", "every" and
    "each" of a unit and a time.
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
    """A unit per another one. Only speeds convert; for the rest the denominators have to be the same."""
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
