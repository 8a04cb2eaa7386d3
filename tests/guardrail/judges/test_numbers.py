"""Numbers are read exactly, with their units, or not at all: by hand, and back from many notations."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guardrail.judges import NumericJudge
from guardrail.judges.numbers import ROUNDING, Number, figures, may_join, parse_number, same_number
from guardrail.judges.units import find_unit


def same(a: str, b: str) -> bool | None:
    there, back = NumericJudge().equivalent("q", [(a, b), (b, a)])
    assert there is back
    return there


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", "42"),
        ("The answer is 42 apples.", "42"),
        ("2 + 3 = 5", "5"),
        ("x = - 5", "-5"),
        ("-3.5", "-7/2"),
        ("\u22125", "-5"),
        ("\u20135", "-5"),
        ("negative 5", "-5"),
        ("\u2014 42", "42"),
        ("1,234,567.5", "2469135/2"),
        ("10 000", "10000"),
        ("10\u202f000", "10000"),
        ("10\u00a0000", "10000"),
        ("10'000", "10000"),
        ("1_000", "1000"),
        ("3/4", "3/4"),
        ("1 1/2 cups", "3/2"),
        ("-1 1/2", "-3/2"),
        ("1\u00bd", "3/2"),
        ("\u00bd", "1/2"),
        ("2e3", "2000"),
        ("1.5E-2", "3/200"),
        ("10^5", "100000"),
        ("10\u2075", "100000"),
        ("10\u207b\u00b3", "1/1000"),
        ("3 x 10^5", "300000"),
        ("3\u00d710\u2075", "300000"),
        ("2**10", "1024"),
        ("50%", "1/2"),
        ("12 per cent", "3/25"),
        ("5 million", "5000000"),
        ("1.5bn", "1500000000"),
        ("5k", "5000"),
        ("2/3 dozen", "8"),
        ("21st century", "21"),
        ("$\\boxed{42}$", "42"),
        ("$\\frac{3}{4}$", "3/4"),
        ("the **42** apples", "42"),
        ("<b>42</b>", "42"),
        ("#### 42", "42"),
        ("Answer:42", "42"),
        ("\u0664\u0662", "42"),
        ("1234567890123456789", "1234567890123456789"),
        ("5 in total", "5"),
        ("48 in April and 24 in May", None),
        ("She sold 24 in May", "24"),
        ("5K", "5000"),
        ("5B", "5000000000"),
        ("5 thousand. Million more", "5000"),
        ("-3 x 10^5", "-300000"),
        ("3x10^5", "300000"),
        ("3 \\cdot 10^5", "300000"),
        ("10^{5}", "100000"),
        ("x = - -5", "5"),
        ("x=5", "5"),
        ("3rd", "3"),
        ('("5")', "5"),
        ("\u00ab5\u00bb", "5"),
        ("(5)apples", "5"),
        ("total(5)", "5"),
        ("`42`", "42"),
        ("_42_", "42"),
        ("4\u200b2", "42"),
        ("\ufe635", "-5"),
        ("\uff0d5", "-5"),
        ("1\u20442", "1/2"),
        ("50\u066a", "1/2"),
        ("50\\%", "1/2"),
        ("\\dfrac{3}{4}", "3/4"),
        ("1{,}000", "1000"),
        ("\\(42\\)", "42"),
        ("3 \u2192 5", "5"),
        ("2+3->5", "5"),
        ("| 3 | 5 |", "5"),
    ],
)
def test_what_is_read(text: str, value: str | None) -> None:
    found = parse_number(text)
    assert (None if found is None else found.value) == (None if value is None else Fraction(value))


UNCLEAR = """seven | 1,5 | 1,50 | 1.234,56 | 1.000.000 | 1.2.3 | 0x10 | v2 | COVID-19 | CO2 | 00123 | 0,500 | 2020-05-03
3/4/2020 | May 3, 2020 | 3rd of May | 10:30 | 10 : 30 | 10 am | 10am | 500 BC | 5 o'clock | 5-6 | 5\u20136 | 5 to 6
between 5 and 6 | 5 km to 6 km | 5 or 6 | 3, 5 | (4, 6.0) | 200, 40, and 40 | 86 glasses and 42 plates | 3 out of 5
1 in 10 | 3:1 | 5 \u00b1 1 | < 5 | x > 5 | \u22645 | 5+ | not 42 | at least 5 | more than 5 | up to 5 | 3 + 4 | 3*x
4*chickens | 180 - 3*x | 7 = 3 + 4 | 5 minus 3 | - 5 | -2^2 | 2^0.5 | 1/0 | 1/2/3 | 3.33... | 5' | 5" | 555-1234
1 212 555 1234 | the 1960s | 5 K | 2 and a half | 3 quarters | 2 3/2 | 1e9999 | 10^999 | 5x | 5 ft 3 kg
5 km, 6 km | $5 km | $5 M | $5 K | 5 M | EUR $5 | Rs $5 | CAD \u20ac5 | \u20ac5 CAD | US$5 CAD | A.D. 500
500 A.D. | AD 500 | 1234,567 | litres per 100 | at most 5 | 5 point 6 | 5 \u2014 6 | June 3 | March 3 | May of 2020
5 fourths | +-5 | 1 -1/2 | 1 2/2 | 1.5 1/2 | 10^5 1/2 | 1e2 1/2 | 3k x 10^5 | 3^2 x 10^5 | 5KUSD | 5 \u00d7 x
out of 5 | 5 h 6 | 5 km more and 3 m | 5 us dollars a day 6 | 5 km 0.5 km | 5 ft 12 in | 5 ft -3 in | 0^0 | 0^-1
5 \\pm 1 | \\leq 5 | \\lt 5 | 10 000,5 | $5km | 10 000/3
1 week 1 day 2 hours 3 minutes 4 seconds"""


@pytest.mark.parametrize("text", ["", "9" * 500, f"1/{'9' * 500}", *UNCLEAR.replace("\n", " | ").split(" | ")])
def test_what_is_not_guessed(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "dimension", "amount"),
    [
        ("5 km", "length", "5000"),
        ("5km", "length", "5000"),
        ("5-km run", "length", "5000"),
        ("5 Kilometers away", "length", "5000"),
        ("1 mile", "length", "1609.344"),
        ("5 ft 3 in", "length", "1.6002"),  # 63 inches of 0.0254 m
        ("5 ft. 3 in.", "length", "1.6002"),
        ("1 h 30 min", "time", "5400"),
        ("1 hour, 20 minutes and 5 seconds", "time", "4805"),
        ("1 lb", "mass", "0.45359237"),
        ("16 oz", "mass", "0.45359237"),
        ("250 ml", "length^3", "0.00025"),
        ("5 m\u00b2", "length^2", "5"),
        ("5 square feet", "length^2", "0.46451520"),  # 5 * 0.3048^2
        ("36 km/h", "speed", "10"),
        ("36 km per hour", "speed", "10"),
        ("$5", "USD", "5"),
        ("-$5.50", "USD", "-5.5"),
        ("US$5 million", "USD", "5000000"),
        ("$5m", "USD", "5000000"),
        ("5 dollars and 30 cents", "USD", "5.3"),
        ("EUR 5", "EUR", "5"),
        ("5 \u20ac", "EUR", "5"),
        ("20 \u00b0C", "\u00b0C", "20"),
        ("20 degrees Celsius", "\u00b0C", "20"),
        ("5 pounds", "pound", "5"),
        ("1 day 2 hours 3 minutes 4 seconds", "time", "93784"),
        ("5 min. 3 sec.", "time", "303"),
        ("-5 ft 3 in", "length", "-1.6002"),
        ("5 in", "length", "0.127"),
        ("( 5 in )", "length", "0.127"),
        ("5 km, per hour", "length", "5000"),
        ("5 km\u2014a lot", "length", "5000"),
        ("20s", "time", "20"),
        ("105s", "time", "105"),
        ("20^\\circ C", "\u00b0C", "20"),
        ("$5b", "USD", "5000000000"),
        ("$5CAD", "CAD", "5"),
        ("CAD $5", "CAD", "5"),
        ("USD $5", "USD", "5"),
    ],
)
def test_units(text: str, dimension: str, amount: str) -> None:
    found = parse_number(text)
    assert found is not None
    assert (found.dimension, found.amount) == (dimension, Fraction(amount))


DIFFERENT = """5 km | 5 m
1 kg | 1 lb; 5 million | 5; $5 | \u20ac5; 10 000 | 25 000; 10^5 | 5; 10\u202f000 | 25\u202f000
10:30 | 11:30; 2020-05-03 | 2021-04-03; 1,5 | 2,5; 0x10 | 0x20; \u20135 | 5; \u22125 | 5; 1\u00bd | 1; 00123 | 123
2125551234 | 2125551235; 2125551234.5 | 2125551235; 2125551234.50 | 2125551234.51; 5 kg | 5 km; $5 an hour | $5 a day
1234567890123456789 | 1234567890123456788; 5 km | 5 km/h; 5 m | 5 m^2; 32 \u00b0F | 32 \u00b0C; 5 per day | 5 per week
50% | 50; 5% | 5 km; <5 | >5; < 5 | > 5; 5 + 3 | 5 - 3; 5' | 5"; 5 pounds | \u00a35; 1 GB | 1 MB; 5 dozen | 5
5 ft 3 in | 6 ft 3 in; 3 and 5 | 4 and 5; May 3, 2020 | June 3, 2020; 42 | 10:30; 2 and a half | 2; 10 am | 10 pm
Step 1: v2 | Step 1: v3; 1000000001 nm | 1000000002 nm; 5 yen | 5 dollars; 0 | 1e-300; 5 | five
five | six; $5 M | $5; CAD $5 | $5; $5 per minute | $5 per hour; 3.33... | 3.33"""
SAME = """5 km | 5000 m; 1 mile | 1609.344 m; 1 kg | 1000 g; 90 min | 1.5 hours; 1 week | 7 days; 5 km | 5; 5 | 5 m
$5 | 5 dollars; 50 cents | $0.50; 5 million | 5,000,000; \u00bd | 50%; 10 000 | 10,000; 1e3 | 1 thousand; 10 AM | 10 am
0.3333333333 | 1/3; 0.3 | 0.30000000000000004; 63.99999999999999 | 64; 10:30 | 10:30; 2020-05-03 | 2020-05-03.
36 km/h | 10 m/s; 1 litre | 1000 cm^3; 1 ml | 1 cm3; 5 apples | 5 pears; 2.125551234 billion | 2125551234
$18 per day | 18 dollars a day; Five | five.; 5 in total | 5 km; 1 yard | 3 ft; 1 foot | 12 inches; 1 l | 10 dl
1 hectare | 10000 m^2; 1 lb | 16 oz; 1 decade | 10 years; 1 century | 100 years; 1 gallon | 4 quarts; 1 quart | 2 pints
1 pint | 2 cups; 1 tbsp | 3 tsp; 1 GW | 1000 MW; 1 kcal | 1000 cal; 1 bar | 100 kPa; \u00a31 | 100 pence; \u20b95 | Rs 5
\u20a95 | 5 KRW; 5 pounds sterling | \u00a35; 1 nautical mile | 1852 m; 1 square yard | 9 ft squared
1 cubic metre | 1000 l"""


# One or both of a pair cannot be read, or have units of their own: never the same.
DIFFERENT_UNITS = """5 mg | 5 mcg; 5 mmol/l | 5 mol/l; 20 TWh | 20 GWh; 2 MPa | 2 kPa; 2 MHz | 2 mHz; 5 mW | 5 MW
5 nF | 5 pF; 5 uA | 5 mA; 5 k\u03a9 | 5 M\u03a9; 5 mL | 5 \u00b5L; 5 Gbps | 5 Mbps; 5 Gb | 5 GB; 5 kN | 5 MN
5 MG | 5 Mg; 5 mw | 5 mW; 5 MSv | 5 mSv; 5 mohm | 5 Mohm; 5 m/s | 5 m/s^2
5 TVs | 5 CPUs; 5 pages/day | 5 pages/week; 5 T-shirts/day | 5 m/s
5 terametres | 5 km; 5 IU | 5 mg; 5 lbf | 5 kgf; 5 kWp | 5 MWe; 5 wins/season | 5 wins/game; 5-IU | 5-mg
5 atm | 5 Pa; 5 stone | 5 pounds; 5 AU | 5 ly; 5 parsecs | 5 km; 5 g | 5 G; 5 C | 5 F; 5 Cal | 5 cal
5 light-years | 5 years; 5 man-hours | 5 hours; 5 kilowatt hours | 5 kilowatts; 5 troy ounces | 5 ounces; 5 N m | 5 N
5 N\u00b7m | 5 mN\u00b7m; 5 apples per day | 5 apples per week; 5 apples a day | 5 apples a week; 5 (km) | 5 (m)
5 pesos | 5 francs; 5 THB | 5 SEK; THB 5 | 5; 5 Hong Kong dollars | 5 dollars; 5 \u043b\u0435\u0442 | 5 \u043a\u043c
3 lakh | 3 crore; 5 quadrillion | 5; 3 \u4e07 | 3 \u5104; 3 \u5343 | 3; 3\u4e07 | 3; 3 \u4e07\u4eba | 3
3 \u5146 | 3; 5 mil | 5; 5 grand | 5; 5 Millionen | 5; 5 Mrd | 5; \u20b95 cr | \u20b95; $5 Mrd | $5"""
SAME_UNITS = """500 mcg | 0.5 mg; 5 ug | 5 \u00b5g; 1 kWh | 3.6 MJ; 1 kilowatt hour | 1 kWh; 1000 mmol/l | 1 mol/l
1 atm | 101325 Pa; 5 GW | 5000 megawatts; 1 m | 1000000000000 picometres; 5 Mbps | 5 Mb/s; 5 IU | 5 IU; 5 IU | 5
5 N m | 5 N m
5 more miles | 5 miles; 5 (km) | 5000 m; 5 nautical miles | 9.26 km; 5 light years | 5 light-years; 5 DVDs | 5 discs
5 lakh | 500000; 5 crores | 50 million; 3 \u4e07 | 30000; 3\u5343 | 3000; 2 \u5104 | 200 million; 2 quintillion | 2e18
5 men | 5 boys; Season 5 | 5; 5 World Cups | 5; 1 hr 5 min 30 sec | 3930 s
15 kgs | 15 kg; 60 kms | 60 km; 5 gm | 5 grams; 500 mgs | 0.5 g; 5 mls | 5 cc; 5 ltr | 5 litres; 5 mtrs | 500 cms
120 sqft | 120 sq ft; 120 sq.ft | 120 square feet; 12 sqm | 12 m^2; 5 cbm | 5000 l; 5 yds | 15 ft
3 wks | 3 weeks; 18 d | 18 days; 5 y | 5 years; 5 mos | 5 months; 5 y/o | 5 years; 5 qts | 5 quarts; 5 tbs | 5 tbsp
5 kwh | 5 kWh; 5 KWH | 5 kWh; 3 kHz | 3 KHz; 5 hz | 5 Hz; 5 Mhz | 5 MHz; 5 db | 5 dB; 5 KV | 5 kv; 5 kw | 5 kilowatts
500 mb | 500 MB; 5 gb | 5 GB; 5 MG | 5 mg; 36 KM/H | 10 m/s; 5 degC | 5 deg C; 5 kohm | 5 k\u03a9; 500 MAH | 500 mAh
5 MPH | 5 mph
60 bpm | 60 beats per minute; 60 rpm | 60 revolutions per minute; 60 fps | 60 frames per second
30 mpg | 30 miles/gallon; 5 psi | 5 pounds per square inch; 5 pages/day | 5 pages per day
30 students/class | 30 students per class
5 T-shirts | 5 t-shirts; 5 TVs | 5 tvs; 5 CPUs | 5 CPU; 5 man-hours | 5 man hours; 5 foot-pounds | 5 foot pounds
5 N\u00b7m | 5 newton meters; 5 Nm | 5 N m; 9.8 m/s^2 | 9.8 m/s\u00b2; 9.8 m/s2 | 9.8 meters per second squared
5 millimetres | 0.5 cm; 5 milligrams | 5 mg"""
# Part of a formula or of a phrase that makes another number of it.
PART_OF_MORE = r"""\sqrt{2} | \sqrt2 | \sqrt[3]{2} | sqrt(2) | -\sqrt{2} | \boxed{\sqrt{2}} | 2 \sqrt{3}
\frac{1}{\sqrt{3}} | \frac{\pi}{2}
\frac{x}{4} | \frac{a+b}{2} | 3 \pi | 2 pi | 2 \u03c0 | 5 \u221ax | \u221a 2 | \u2211 5 | \log 5 | log 5 | ln(5)
\sin(30) | f(5) | P(5)
5! | (5!) | 5 ! | $5!$
x = 5! | 3 * 5! | 5! / x | 5 squared | 5 cubed | 5 factorial | the factorial of 5 | the square root of 16
half of 10 | twice 5
a third of the 9 | three times 5 | two hundred and 5 | 10 divided by 5 | 7 mod 5
7 choose 5 | n choose 5 | 5 choose k | max 5 | max(5) | min 5 km | 2x = 5 y | 5y | 2 to the power 3
x \neq 5 | x \ne 5 | x \u2260 5 | x != 5 | x ~= 5 | x =/= 5 | x isn't 5 | x is not equal to 5 | it is not exactly 5
5 < x | 5 \u2265 x | 5 \leq x | 5 or more | 5 and above | greater than or equal to 5 | 3 i | 5 x | b_{5} | 5^n
5^{n+1}
2 \cdot \pi | \begin{pmatrix} x \\ 5 \end{pmatrix} | (\pi, 5) | \left\lfloor 5 \right\rfloor | 5 hundredths
7 \bmod 5"""


STILL_FIVE = r"""\sqrt{25} = 5 | \pi \approx 5 | \text{Total} = 5 | &= 5 \end{align*} | \emph{So} 5 | Great! 5
5 \text{ cats} | So -5! | 5 cats! | Now We Are Six (5) | 5 (!!!) | \u2234 5 | Plan B 5 | the sum of 5 | x. 5
We have log. Then 5
The answer is 5! | So 5! | So Janet makes 5 ! | the final answer is **5**! | (b) 5 | c) 5
The answer is (c) 5. | Part a) 5
She can choose 5 of them. | 5 choose pizza | Tom gives Max 5 apples. | max 5 apples | Min 5
\u221a25 = 5 | 3 \u00d7 \u221a4 = 5 | \u2220ABC = 5\u00b0 | \u2206x = 5 m
\boxed{5} \checkmark | \boxed{5} \blacksquare | 5 \quad \square | 5 \qed | 5 \u220e | \square = 5
\textcolor{red}{5} | \textcolor[rgb]{1,0,0}{5} | \color{blue}{5} | \color{blue} 5
\Huge 5 | \Huge\bf 5 | \texttt{5} | \mathsf{5}
\boxed{5 \text{ cm}^2} | 5 \text{ m/s}^2"""


def _written(texts: str) -> list[str]:
    """Raw texts, apart from characters written as \\uXXXX."""
    return texts.encode().decode("raw_unicode_escape").replace("\n", " | ").split(" | ")


@pytest.mark.parametrize("text", _written(PART_OF_MORE))
def test_a_part_of_a_formula_is_not_read(text: str) -> None:
    assert parse_number(text) is None
    assert same(text, text) is True


@pytest.mark.parametrize("text", _written(STILL_FIVE))
def test_what_surrounds_a_number_without_changing_it(text: str) -> None:
    found = parse_number(text)
    assert found is not None
    assert abs(found.value) == 5


def test_bars_around_a_negative_number_are_no_table() -> None:
    assert parse_number("| -5 |") is None
    assert parse_number(r"\left| -5 \right|") is None
    assert parse_number("| 3 | 5 |") == Number(Fraction(5))


def test_commands_that_are_not_read_count_as_written() -> None:
    for a, b in ((r"-\sqrt{2}", r"\sqrt{2}"), (r"-\pi", r"\pi"), (r"\Delta", r"\delta")):
        assert same(a, b) is False


def pairs(text: str) -> list[tuple[str, ...]]:
    return [tuple(pair.split(" | ")) for pair in text.replace("\n", "; ").split("; ")]


@pytest.mark.parametrize(("a", "b"), pairs(DIFFERENT) + pairs(DIFFERENT_UNITS))
def test_different(a: str, b: str) -> None:
    assert same(a, b) is False


@pytest.mark.parametrize(("a", "b"), pairs(SAME) + pairs(SAME_UNITS))
def test_same(a: str, b: str) -> None:
    assert same(a, b) is True


# -- many notations ----------------------------------------------------------------------------------------------------

UNITS = ["", " km", " kg", "%", " hours", " dollars", " apples", " m^2", " km/h", " per day"]
SENTENCES = ["{}", "The answer is {}.", "**{}**", "\\boxed{{{}}}", "2 + 2 = {}", "Step 1: none. So {}."]


def _thousands(value: int, sign: str) -> str:
    return f"{value:,}".replace(",", sign)


@given(
    st.integers(-(10**18), 10**18),
    st.integers(0, 999),
    st.sampled_from([",", " ", "\u202f", "\u00a0", "'", "\u2019", "_", ""]),
    st.sampled_from(["-", "\u2212", "\u2013"]),
    st.sampled_from(UNITS),
    st.sampled_from(SENTENCES),
)
def test_what_was_written_is_read_back(whole: int, part: int, sign: str, minus: str, unit: str, sentence: str) -> None:
    digits = _thousands(abs(whole), sign) + (f".{part:03d}" if part else "")
    exact = (-1 if whole < 0 else 1) * (abs(whole) + Fraction(part, 1000))
    found = parse_number(sentence.format((minus if whole < 0 else "") + digits + unit))
    assert found is not None
    assert found.value == (exact / 100 if unit == "%" else exact)
    wanted = find_unit(unit.strip())
    assert found.dimension == (None if wanted is None else wanted[0])


@given(st.integers(1, 999), st.integers(1, 99), st.integers(2, 99))
def test_fractions_are_read_back(whole: int, top: int, bottom: int) -> None:
    fraction = parse_number(f"{top}/{bottom}")
    assert fraction is not None
    assert fraction.value == Fraction(top, bottom)
    mixed = parse_number(f"{whole} {top}/{bottom} cups")
    assert (None if mixed is None else mixed.value) == (whole + Fraction(top, bottom) if top < bottom else None)


WRITTEN = """5 | 5000 | -5 | 0 | 1/2 | 3 | 10^5 | , | . |   | km | m | $ | \u20ac | %
to | and | a | - | ( | ) | ' | " | x
* | = | : | e | per | \u00bd | \u00b2 | \u2013 | in | ft | May | \\frac{ | } | < | K"""
PIECES = st.sampled_from(WRITTEN.replace("\n", " | ").split(" | "))
TEXTS = st.one_of(st.text(max_size=12), st.lists(PIECES, max_size=7).map("".join))


@given(TEXTS, TEXTS)
@example("5 km", "5")
def test_every_text_is_read_or_not_and_sameness_is_symmetric(a: str, b: str) -> None:
    assert same(a, a) is True
    same(a, b)
    assert isinstance(figures(a), tuple)


@given(st.integers(-(10**30), 10**30), st.integers(-3, 3))
def test_whole_numbers_are_compared_exactly(value: int, step: int) -> None:
    assert same_number(Number(Fraction(value)), Number(Fraction(value + step))) is (step == 0)


def test_the_border_of_rounding_counts_as_equal() -> None:
    one, below, lower = (Number(1 - step * ROUNDING) for step in (0, 1, 2))
    assert same_number(below, one)
    assert not same_number(lower, one)


def test_chains_through_units_take_three_steps_a_change() -> None:
    plain, other = Number(Fraction(13)), Number(Fraction(17))
    assert not may_join(plain, other, 4)  # one change at most, and 17 / 13 is no ratio of two units
    assert may_join(plain, other, 5)
    assert may_join(plain, Number(Fraction(13000)), 2)
    assert not may_join(plain, Number(Fraction(13000)), 1)
    assert may_join(plain, Number(Fraction(13 * 1728)), 2)  # cubic feet, cubic inches
    assert may_join(plain, Number(13 * Fraction("1609.344") / 604800), 2)  # miles a week, metres a second
    assert not may_join(plain, Number(Fraction(0)), 9)
    assert not may_join(Number(Fraction(-13)), Number(Fraction(0)), 9)


def test_signs_between_unread_numbers_must_agree() -> None:
    assert figures("x = 5 + 3, ok") == ("=", "5", "+", "3")


def test_what_is_no_unit() -> None:
    assert find_unit("$ per m^2") is not None
    assert find_unit("kg per second") == ("mass per 1 time", Fraction(1))
    for words in ("$ a km", "$ per 5x", "square kg", "G", "H"):
        assert find_unit(words) is None


def test_long_texts_are_read_in_linear_time() -> None:
    """A pattern that backtracks would not end."""
    for piece in (
        "-",
        "_",
        "a_",
        "*",
        "1,",
        "1 000 ",
        "(",
        "$",
        "<a",
        "\\frac{",
        "=",
        "9",
        "1'",
        "\\text{ ",
        "\\color[",
        "5 ! ",
    ):
        parse_number(piece * 50_000)
    for start, piece in (("\\text{", " "), ("5 m", "^2"), ("5 m/s", "^2"), ("5 ", "sq"), ("5 ", "hour-")):
        parse_number(start + piece * 50_000)
