"""What around a number makes it part of something larger, so that it must not be read as the number alone."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from .units import FUNCTION_WORDS, find_unit

__all__ = ["AMBIGUOUS_LETTERS", "in_formula", "is_symbol", "is_variable"]

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
        closed: Whether punctuation follows it, so that what comes then is none of its business.
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
