"""Units that numbers carry: their dimension, and their size within it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

__all__ = ["PERCENT", "Unit", "find_unit", "ratios"]

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


_LENGTHS: dict[str, Fraction | int | str] = {
    "nm nanometre nanometer": "1e-9",
    "\u03bcm micrometre micrometer micron": "1e-6",
    "mm millimetre millimeter": "0.001",
    "cm centimetre centimeter": "0.01",
    "dm decimetre decimeter": "0.1",
    "m metre meter": 1,
    "km kilometre kilometer": 1000,
    "inch inches": _INCH,
    "ft foot feet": 12 * _INCH,
    "yd yard": 36 * _INCH,
    "mi mile": 63360 * _INCH,
}
_SYMBOLS: dict[str, Unit] = {
    **_table(_METRE, _LENGTHS),
    **_table(_KILOGRAM, {"\u03bcg microgram": "1e-9", "mg milligram": "1e-6", "g gram gramme": "0.001"}),
    **_table(_KILOGRAM, {"kg kilogram kilo": 1, "t tonne": 1000, "lb lbs": _POUND, "oz ounce": _POUND / 16}),
    **_table(_SECOND, {"ns nanosecond": "1e-9", "\u03bcs microsecond": "1e-6", "ms millisecond": "0.001"}),
    **_table(_SECOND, {"s sec second": 1, "min minute": 60, "h hr hrs hour": 3600, "day": 86400, "week": 604800}),
    **_table("months", {"month": 1, "yr yrs year": 12, "decade": 120, "century centuries": 1200}),
    **_table("length^3", {"ml mL millilitre milliliter cc": "1e-6", "cl centilitre centiliter": "1e-5"}),
    **_table("length^3", {"dl decilitre deciliter": "1e-4", "l L litre liter": "0.001"}),
    **_table("length^2", {"hectare": 10_000, "acre": 43560 * (12 * _INCH) ** 2}),
    **_table("speed", {"m/s": 1, "km/h kmh km/hr kph kmph": 1000 / _HOUR, "mph mi/h": 63360 * _INCH / _HOUR}),
    **_table("energy", {"J joule": 1, "kJ kilojoule": 1000, "MJ megajoule": 10**6, "Wh": 3600, "kWh": 3_600_000}),
    **_table("heat", {"cal calorie": 1, "kcal kilocalorie": 1000}),
    **_table("power", {"mW milliwatt": "0.001", "W watt": 1, "kW kilowatt": 1000, "MW megawatt": 10**6, "GW": 10**9}),
    **_table("voltage", {"mV millivolt": "0.001", "V volt": 1, "kV kilovolt": 1000}),
    **_table("current", {"mA milliamp": "0.001", "A amp ampere": 1}),
    **_table("frequency", {"Hz hertz": 1, "kHz kilohertz": 1000, "MHz megahertz": 10**6, "GHz gigahertz": 10**9}),
    **_table("pressure", {"Pa pascal": 1, "hPa mbar": 100, "kPa kilopascal": 1000, "bar": 100_000}),
    **_table("force", {"N newton": 1, "kN": 1000}),
    # Gallons, tons and pounds differ between countries, or between mass and money: they are dimensions of their own.
    **_table("gallon", {"gal gallon": 16, "qt quart": 4, "pt pint": 2, "cup": 1}),
    **_table("spoon", {"tbsp tablespoon": 3, "tsp teaspoon": 1}),
    **_table("ton", {"ton": 1}),
    **_table("pound", {"pound": 1}),
    # 1 GB is 1000 or 1024 MB, and degrees of two scales are not multiples of each other: none of them converts.
    **_alone("bit", "byte", "kB KB kilobyte", "MB megabyte", "GB gigabyte", "TB terabyte", "KiB", "MiB", "GiB", "TiB"),
    **_alone("kbps", "Mbps", "Gbps", "\u00b0C celsius centigrade", "\u00b0F fahrenheit", "kelvin", "\u00b0 degree"),
    **_alone(
        "radian", "dB decibel", "mol mole", "\u03a9 ohm", "psi", "hp horsepower", "\u2030 permille", "bp bps", "pp"
    ),
    **dict.fromkeys(("%", "percent", "pct"), PERCENT),
    **_table("USD", {"$ USD US$ usd dollar buck": 1, "\u00a2 cent": "0.01"}),
    **_table("EUR", {"\u20ac EUR eur euro": 1}),
    **_table("GBP", {"\u00a3 GBP gbp sterling": 1, "p pence penny": "0.01"}),
    **_table("JPY", {"\u00a5 JPY jpy yen": 1}),
    **_alone("INR \u20b9 Rs rupee", "CNY RMB yuan", "CHF", "CAD C$ CA$", "AUD A$ AU$", "NZD NZ$", "HKD HK$", "SGD S$"),
    **_alone("MXN MX$", "BRL R$", "KRW \u20a9", "RUB \u20bd", "TRY \u20ba", "ILS \u20aa", "BTC \u20bf"),
    **_alone("SEK", "NOK", "DKK", "PLN", "ZAR"),
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
    "light years": ("light year", Fraction(1)),
    "metric ton": _SYMBOLS["tonne"],
    "metric tons": _SYMBOLS["tonne"],
    "degrees c": _SYMBOLS["celsius"],
    "degrees celsius": _SYMBOLS["celsius"],
    "\u00b0 c": _SYMBOLS["celsius"],
    "degrees f": _SYMBOLS["fahrenheit"],
    "degrees fahrenheit": _SYMBOLS["fahrenheit"],
    "\u00b0 f": _SYMBOLS["fahrenheit"],
}
_FOLDED = {name: unit for name, unit in (_SYMBOLS | _PLURALS).items() if len(name) > 2 and name.islower()} | {
    name: _SYMBOLS[name] for name in ("km", "cm", "kg", "ft", "lb", "oz", "yd", "hr")
}
_POWERS = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}


def find_unit(words: str) -> Unit | None:
    """The unit that some words spell, all of them: "km", "square feet", "m^2", "km per hour", "$ a day"; or None.

    What is not in the table is no unit. "per" and "/" make a unit of a unit and any one word, "a", "an", "every" and
    "each" of a unit and a time.
    """
    if words in _SYMBOLS or words.casefold() in _PHRASES:
        return _SYMBOLS.get(words) or _PHRASES[words.casefold()]
    for sign in ("per " if words.startswith("per ") else " per ", "/"):
        top, found, bottom = words.partition(sign)
        if found:
            fits = bottom.strip().isalpha() or _plain(bottom.strip())
            return _rate(find_unit(top.strip()) if top.strip() else _COUNT, bottom.strip()) if fits else None
    for sign in (" a ", " an ", " every ", " each "):
        top, found, bottom = words.partition(sign)
        if found:
            under = _plain(bottom)
            return _rate(find_unit(top), bottom) if under and under[0] in (_SECOND, "months") else None
    return _plain(words)


def _plain(words: str) -> Unit | None:
    folded = words.casefold()
    first, _, rest = folded.partition(" ")
    if first in _POWERS and rest:
        return _power(_plain(rest), _POWERS[first])
    rest, _, last = folded.rpartition(" ")
    if last in _POWERS and rest:
        return _power(_plain(rest), _POWERS[last])
    for power in (2, 3):
        if words.endswith(f"^{power}") or (words.endswith(str(power)) and words[:-1] in _SYMBOLS):
            return _power(_plain(words[:-1].removesuffix("^")), power)
    return _SYMBOLS.get(words) or _PHRASES.get(folded) or _PLURALS.get(words) or _FOLDED.get(folded)


def _power(unit: Unit | None, power: int) -> Unit | None:
    return (f"{_METRE}^{power}", unit[1] ** power) if unit is not None and unit[0] == _METRE else None


def _rate(top: Unit | None, bottom: str) -> Unit | None:
    """A unit per another one. Only speeds convert; for the rest the denominators have to be the same."""
    if top is None:
        return None
    under = _plain(bottom)
    if top[0] == _METRE and under is not None and under[0] == _SECOND:
        return ("speed", top[1] / under[1])
    return (f"{top[0]} per {bottom.casefold() if under is None else f'{under[1]} {under[0]}'}", top[1])


def ratios() -> frozenset[Fraction]:
    """Every factor by which a number can change when it is written in another unit of the same dimension."""
    sizes: dict[str, set[Fraction]] = {}
    for dimension, size in _SYMBOLS.values():
        sizes.setdefault(dimension, set()).add(size)
    for power in (2, 3):
        sizes.setdefault(f"{_METRE}^{power}", set()).update(size**power for size in sizes[_METRE])
    sizes["speed"] |= {a / b for a in sizes[_METRE] for b in sizes[_SECOND]}
    return frozenset(a / b for found in sizes.values() for a in found for b in found)
