"""Numbers are read exactly, with their labels, or not at all: by hand, and back from many notations."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guardrail.judges import NumericJudge
from guardrail.judges.numbers import Number, parse_number


def same(a: str, b: str) -> bool | None:
    there, back = NumericJudge().equivalent("q", [(a, b), (b, a)])
    assert there is back
    return there


def table(text: str) -> list[tuple[str, ...]]:
    return [tuple(pair.strip().split(" | ")) for pair in text.replace("\n", " ;; ").split(" ;; ")]


READ = r"""42 | 42 ;; The answer is 42. | 42 ;; 2 + 3 = 5 | 5 ;; 4 + 1 = 2 + 3 = 5 | 5 ;; x = -5 | -5 ;; -3.5 | -7/2
−5 | -5 ;; –5 | -5 ;; 1,234,567.5 | 2469135/2 ;; 3/4 | 3/4
2e3 | 2000 ;; 1.5E-2 | 3/200 ;; 50% | 1/2 ;; 50\% | 1/2
5 million | 5 ;; 5k | 5 ;; 1.5bn | 3/2 ;; 2/3 dozen | 2/3 ;; $5m | 5 ;; $\boxed{42}$ | 42 ;; $\frac{3}{4}$ | 3/4
\dfrac{3}{4} | 3/4 ;; 1{,}000 | 1000 ;; \(42\) | 42 ;; 5 \text{ cats} | 5 ;; the **42** apples | 42 ;; #### 42 | 42
Answer: 42 | 42 ;; Answer=42 | 42 ;; 3rd | 3 ;; 21st century | 21 ;; (5) | 5 ;; (5 apples) | 5 ;; -$10,000 | -10000
.5 | 1/2 ;; twenty-one | 21 ;; zero | 0 ;; Ninety-nine. | 99 ;; 1215 (the barons!) | 1215
1234567890123456789 | 1234567890123456789"""
TEXTS_THAT_ARE_NO_NUMBERS = r"""1,5 | 1.234,56 | 1.000.000 | 1.2.3 | 0x10 | v2 | CO2 | 007
2020-05-03 | 3/4/2020 | May 3, 2020 | 10:30 | 5-6 | 5 to 6 | between 5 and 6 | 5 or 6 | 3, 5 | (4, 6.0)
{1} | [5] | 1 in 10 | 3:1 | 5 ± 1 | < 5 | x > 5 | ≤5 | 5+ | not 42 | at least 5 | more than 5 | up to 5 | 3 + 4
3*x | 7 = 3 + 4 | 2x = 4 | 5 minus 3 | -2^0.5 | 1/0 | 1/2/3 | 3.33... | 5' | 5" | "5" | 555-1234 | 5! | 5 !
\sqrt{2} | \frac{\pi}{2} | \log 5 | half of 10 | the square root of 16 | twice 5 | 10^999 | 0^0 | 5 ft 3 in
2 3/2 | x ≠ 5 | seven of nine | one two | hundred and | +-5 | f 5 | five apples | 10^5 | 2**10 | 10'000 | minus 5
negative 5 | five million | one hundred and five | the square of 5 | million 5 | 10 000 | 1 1/2 | 1½ | 3 x 10^5"""


@pytest.mark.parametrize(("text", "value"), table(READ))
def test_what_is_read(text: str, value: str) -> None:
    number = parse_number(text)
    assert number is not None
    assert number.value == Fraction(value)


@pytest.mark.parametrize("text", ["", "9" * 500, *TEXTS_THAT_ARE_NO_NUMBERS.replace("\n", " | ").split(" | ")])
def test_what_is_not_guessed(text: str) -> None:
    assert parse_number(text) is None
    assert same(text, text)
    assert not same(text, "5")


DIFFERENT = """5 km | 5 m ;; 5 km | 5000 m ;; 90 min | 1.5 hours ;; 1 kg | 1 lb ;; $5 | €5 ;; $5 | 5 euros
5,000,000 | 5 million ;; 5k | 5000 ;; 5k | 5 ;; $5m | $5 ;; $5m | 5 ;; $5m | $5k ;; $5 m | 5 ;; 5 MILLIONS | 5
5bn | 5 ;; 5 billions | 5 million ;; five hundred | 500 ;; 5 square | 5
5 mg | 5 mcg ;; 5 mW | 5 MW ;; 5 apples | 5 pears ;; 5 m | 5 m^2 ;; 5 km | 5 km/h ;; $5 per hour | $5 per day
72 °F | 72 °C ;; 50% | 50 ;; 5% | 5 km ;; 3 lakh | 3 crore ;; 5 million | 5 ;; 2 dozen | 2 ;; 5 squared | 5
5 or more | 5 ;; 5 and a half | 5 ;; 5 x | 5 ;; 10 am | 10 ;; 500 BC | 500 AD ;; 500 BC | 500
10 in the morning | 10 in the evening ;; 5 quadrillion | 5 ;; 2nd | 2 seconds
1234567890123456789 | 1234567890123456788 ;; 0 | 1e-300 ;; 2125551234.50 | 2125551234.51 ;; 1,234 | 1.234
-5 | 5 ;; 1/3 | 1/4 ;; 5 | none ;; twenty | twelve ;; 1e3 | 1e-3 ;; 5 grams of salt | 5 grams of sugar
iPhone 5 | iPhone 5s ;; 1990s | 1990 ;; 21st | 21 ;; 1st | 1 ;; #1 | 1 ;; Article 5a | Article 5 ;; 5 ft | 5 in
Python 3.10 | Python 3.1 ;; before 1990 | after 1990 ;; early 1990 | late 1990 ;; Summer 1990 | Winter 1990
minimum of 5 | maximum of 5"""
SAME = """5 km | 5 ;; 5 | 5 m ;; 18 apples | 18 ;; $3.50 | 3.50 dollars ;; €5 | 5 EUR
5 km | 5 kilometers ;; 5 Miles | 5 mile ;; 50% | 0.5 ;; 50 percent | 1/2 ;; 5 million | 5 millions ;; 1e3 | 1000
0.3333333333 | 1/3 ;; 63.99999999999999 | 64 ;; 15000.0 | 15000 ;; 18 apples in the basket | 18 apples
five | 5 ;; 2020-05-03 | 2020-05-03.
none | None. ;; #### 5 | 5
5 in | 5 inches"""


@pytest.mark.parametrize(("a", "b"), table(DIFFERENT))
def test_different(a: str, b: str) -> None:
    assert same(a, b) is False


@pytest.mark.parametrize(("a", "b"), table(SAME))
def test_same(a: str, b: str) -> None:
    assert same(a, b) is True


UNITS = ["", " km", " kg", "%", " hours", " dollars", " apples", " per day"]
SENTENCES = ["{}", "The answer is {}.", "**{}**", "\\boxed{{{}}}", "2 + 2 = {}", "So it is {}."]


@given(
    st.integers(-(10**18), 10**18),
    st.integers(0, 999),
    st.sampled_from([",", ""]),
    st.sampled_from(["-", "\u2212", "\u2013"]),
    st.sampled_from(UNITS),
    st.sampled_from(SENTENCES),
)
def test_what_was_written_is_read_back(whole: int, part: int, sign: str, minus: str, unit: str, sentence: str) -> None:
    digits = f"{abs(whole):,}".replace(",", sign) + (f".{part:03d}" if part else "")
    exact = (-1 if whole < 0 else 1) * (abs(whole) + Fraction(part, 1000))
    number = parse_number(sentence.format((minus if whole < 0 else "") + digits + unit))
    assert number is not None
    assert number.value == (exact / 100 if unit == "%" else exact)
    assert bool(number.label) is bool(unit)


MIXED = "5|5000|-5|0|1/2|3|,|.| | km| m|$|%| to |(|)|'|x|=|e|½|²|K"
PIECES = st.sampled_from(MIXED.split("|"))


@given(
    st.one_of(st.text(max_size=12), st.lists(PIECES, max_size=7).map("".join)),
    st.lists(PIECES, max_size=7).map("".join),
)
@example("5 km", "5")
def test_sameness_is_symmetric_and_every_text_is_itself(a: str, b: str) -> None:
    assert same(a, a) is True
    assert same(a, b) is same(b, a)


@given(st.integers(-(10**30), 10**30), st.integers(-3, 3))
def test_whole_numbers_are_compared_exactly(value: int, step: int) -> None:
    assert (Number(Fraction(value)).rounded == Number(Fraction(value + step)).rounded) is (step == 0)


@pytest.mark.parametrize(
    ("question", "a", "b", "same"),
    [
        ("How much profit did it make?", "a profit of $5 million", "$5 million", True),  # the question's own word
        ("How much profit did it make?", "a profit of $5 million", "a loss of $5 million", False),
        ("Is it Windows 7 or iPhone 7?", "Windows 7", "iPhone 7", False),  # both stand in the question
        ("By how much did one of Ann and Bob beat the other?", "Ann beat Bob by 5", "Bob beat Ann by 5", False),
        ("What does it cost?", "The book costs 12", "It costs 12", False),  # another thing, perhaps
        ("What does the book cost?", "The book costs 12", "It costs 12", True),
        ("", "1.10", "1.1", False),  # perhaps a version
        ("", "1.10 euros", "1.1 euros", True),
        ("", "10/12", "5/6", False),  # perhaps a day
        ("", "10/12 cups", "5/6 cups", True),
        ("", "5/6", "0.8333333333", True),
        ("", "Plan A 5", "Plan 5", False),
        ("", "A 1", "1", False),
        ("", "$5 m", "$5", False),
    ],
)
def test_words_before_a_number_and_unclear_digits(question: str, a: str, b: str, same: bool) -> None:
    assert NumericJudge().equivalent(question, [(a, b), (b, a)]) == [same, same]
