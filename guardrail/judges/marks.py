"""The marks that make another answer: which of them a normalised string keeps, and how they are written in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

__all__ = ["ends_in_mark", "folded", "is_operator", "marked", "may_have_marks", "word_pattern"]

_ONE_WAY = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),  # hyphens, figure dash, en dash, minus
        **dict.fromkeys("\u00d7\u2217\u22c5", "*"),
        **dict.fromkeys("\u00f7\u2044\u2215", "/"),
        **{"\u2236": ":", "\u266f": "#", "\u2190": "<-", "\u2192": "->", "\u2194": "<->", "\u21d2": "=>"},
        **{"\u2260": "!=", "\u2264": "<=", "\u2265": ">="},
    }
)
_RAISED = re.compile(r"(?<=\d)[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
"""A power: NFKC alone would make the number 105 of 10 to the 5th."""
_LOWERED = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e\u2080-\u2089])")
"""Before a fraction or an index in one character: NFKC alone would make 51 / 2 of 5 1/2."""
_SIGNS = frozenset({*map(chr, _ONE_WAY), *"\u2014\u2015\u00b7"})
_LONG_DASH = re.compile(r"(?<!\w)[\u2014\u2015](?=\.?\d)")
_DOT_TIMES = re.compile(r"(?<=\d) ?\u00b7 ?(?=\d)")

_TAG = re.compile(r"</?([a-z][\w-]*) ?/?>")
_BULLET = re.compile(r"(?m)^[ \t]*[-*+][ \t]+")
_MATH = re.compile(r"(?<![\w$])\$\$?(?=\S)([^$\n]{0,200}[^\s$])\$\$?(?![\w$])")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])(.{0,200}?[^\s*])\1(?![\w*])")

_NUMBER = re.compile(r" ?-?\.?\d")
_WORD = re.compile(r"\w")
_SUSPECT = re.compile(
    r"[-+#<>=$%*^/:.](?:(?<=[+#<>=$%*^])"
    r"|(?<=-)(?:(?<=\w-)(?!\w)|(?<=[\de]-)(?=\d)|(?<=[^\w ]-)|(?<= -)(?! [^\W\d])|(?<![\s\S]-))"
    r"|(?<=/)(?:(?<![^\W\d]{2}/)|(?! ?[^\W\d]{2}))"
    r"|(?<=\d:)(?=\d)|(?<=\d :)(?= \d)|(?<=\.)(?=\d)(?:(?<!\w\.)|(?=\d+[^\W\d])))"
)
"""What a text must hold for an ASCII mark to be kept: hyphens inside words, say, are passed over quickly."""
_SUFFIXES = "#\u266d\u266e\u2660-\u2667"  # sharp, flat, natural; suits of cards
_SUFFIXED = re.compile(rf"[-+*%\u2030{_SUFFIXES}]$")
_COMPARISONS = {"==": "=", "===": "=", "!==": "!=", "<>": "!=", "=<": "<="}


class _Patterns(NamedTuple):
    token: re.Pattern[str]
    amount: re.Pattern[str]
    """What makes a dash before it a minus or a range."""
    letter: re.Pattern[str]
    """A word of one letter: a variable, perhaps."""
    inside: re.Pattern[str]
    """A character of a word."""
    touching: re.Pattern[str]
    """What stands right behind a mark that relates two words ("a+b", "2*(3"), not behind a suffix ("C++.")."""


@cache
def _patterns(ascii_only: bool) -> _Patterns:
    """Patterns for texts whose marks are ASCII, which are quicker, or for all text."""
    money, signs, joined = ("", "", "") if ascii_only else _special()
    money = "$" + money
    rest = rf"\w*(?:[{joined}]+\w*)*" if joined else r"\w*"
    number = r"(?:(?<!\w)-)?(?:\d+(?:\.\d+)?|(?<![\w.])\.\d+(?!\d|\.\d))(?:e[-+]?\d+(?!\w|\.\d))?"
    relation = r"<?-+>|<-+(?![\d.])|!?[<>=]+" + (f"|[{signs}]" if signs else "")
    return _Patterns(
        token=re.compile(
            rf"(?P<word>{number}{rest}|[^\W\d]{rest})|(?P<relation>{relation})|(?P<money>[{money}])"
            rf"|(?P<dash>-+(?=-\.?\d)|-+)|(?P<plus>\++)|(?P<star>\*+)|(?P<slash>/)|(?P<power>\^)"
            rf"|(?P<colon>(?<=\d):(?=\d)|(?<=\d ):(?= [{money}]?\d))"
            rf"|(?P<suffix>[{_SUFFIXES}]+)|(?P<percent>[%\u2030])"
        ),
        amount=re.compile(rf" ?[(\[]?[{money}]? ?-? ?(?:\.?\d|\u221e)"),
        letter=re.compile(rf" ?[^\W\d_](?![\w{joined}])"),
        inside=re.compile(rf"[\w{joined}]"),
        touching=re.compile(rf"[\w{money}(\[{{]|-[\w.]|\.\d"),
    )


@cache
def _special() -> tuple[str, str, str]:
    """Currencies, mathematical signs, and combining marks beyond ASCII, from Unicode's tables."""
    classes = {"Sc": "", "Sm": "", "Mn": "", "Mc": ""}
    for code in range(0x80, 0x12000):
        kind = unicodedata.category(char := chr(code))
        if kind in classes and not 0xFE00 <= code <= 0xFE0F:  # variation selectors say how a character looks
            classes[kind] += char
    return classes["Sc"], classes["Sm"], classes["Mn"] + classes["Mc"]


@cache
def _special_chars() -> frozenset[str]:
    return frozenset("".join(_special()) + "\u2030\u266d\u266e" + "".join(map(chr, range(0x2660, 0x2668))))


def folded(text: str) -> str:
    """NFKC text in lower case with one way to write each sign: a minus or en dash becomes "-", a times sign "*"."""
    if text.isascii():
        return text.lower()
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", _LOWERED.sub(" ", _RAISED.sub(r"^\g<0>", text)))
    text = text.casefold()
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", text)
    if _SIGNS.isdisjoint(text):
        return text
    return _DOT_TIMES.sub("*", _LONG_DASH.sub("-", text.translate(_ONE_WAY)))


def word_pattern(text: str) -> re.Pattern[str] | None:
    """What finds the words of a text whose letters have combining marks (Hindi, Thai, ...); None for other texts.

    They are no part of a word to a regular expression, and two words may differ in nothing else.
    """
    return None if _joined_chars().isdisjoint(text) else _joined_words()


@cache
def _joined_chars() -> frozenset[str]:
    return frozenset(_special()[2])


@cache
def _joined_words() -> re.Pattern[str]:
    joined = _special()[2]
    return re.compile(rf"(?<!\w)[-+]?\d+(?:\.\d+)?(?![\w{joined}])|\w+(?:[{joined}]+\w*)*")


def ends_in_mark(token: str) -> bool:
    """Whether a mark is written behind a word: "c++", "50%"."""
    return _SUFFIXED.search(token) is not None


def is_operator(token: str) -> bool:
    """Whether a token stands between two others ("x > 5", "2 * 3") and is no word itself."""
    return _WORD.search(token) is None


def may_have_marks(text: str) -> bool:
    """Whether `marked` may find anything but the words of a folded text. Most answers are plain, and done with this."""
    return _SUSPECT.search(text) is not None or not (text.isascii() or _special_chars().isdisjoint(text))


def marked(text: str) -> list[str]:
    """Words of a folded text with their marks.

    Signs, currencies, "%" and suffixes are written on their word ("-5", "$50", "50%", "c++", "o-"); what relates two
    words is a word between them ("x > 5", "2 * 3", "5 - 3", "1 / 2", "10 ^ 5"). Without the marks the words are those
    of `words`.
    """
    plain = text.isascii() or _special_chars().isdisjoint(text)
    return _Reader(_undressed(text), _patterns(plain)).read()


def _undressed(text: str) -> str:
    """A text without tags, bullets, TeX dollars and emphasis: spaces in their place."""
    if "<" in text:
        text = _TAG.sub(r" \1 ", text)
    if "\n" in text.strip():
        text = _BULLET.sub(" ", text)
    if text.count("$") > 1:
        text = _MATH.sub(r" \1 ", text)
    if text.count("*") > 1:
        text = _EMPHASIS.sub(r" \2 ", text)
    return " ".join(text.split())


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str, patterns: _Patterns) -> None:
        self._text = text
        self._patterns = patterns
        self._tokens: list[str] = []
        self._prefix = ""
        self._end = -1
        """Where the last word ends."""

    def read(self) -> list[str]:
        """The marked words."""
        tokens = self._tokens
        for match in self._patterns.token.finditer(self._text):
            kind = match.lastgroup
            if kind != "word":
                assert kind is not None, "every alternative is a group"
                _READERS[kind](self, match[0], match.start(), match.end())
                continue
            if self._prefix or (tokens and not tokens[-1][-1].isalnum()):
                self._word(match[0])
            else:
                tokens.append(match[0])
            self._end = match.end()
        if len(tokens) > 1 and tokens[-1][0] == "+" and not is_operator(tokens[-2]):  # "O +"
            self._glue(tokens.pop())
        return tokens

    def _word(self, found: str) -> None:
        tokens = self._tokens
        if tokens and unicodedata.category(tokens[-1][-1]) == "Sc" and _NUMBER.match(found):
            tokens[-1] += found
        else:
            tokens.append(self._prefix + found)
        self._prefix = ""

    def _glue(self, mark: str, start: int = 0, end: int = 0) -> None:
        if self._tokens and not is_operator(self._tokens[-1]):
            self._tokens[-1] += mark

    def _relate(self, sign: str, start: int, end: int) -> None:
        self._tokens.append(sign)

    def _touches(self, start: int, end: int) -> tuple[bool, bool]:
        """Whether a mark touches what stands before and after it."""
        before = self._text[start - 1 : start] if start else " "
        marked = bool(self._tokens) and self._tokens[-1][-1] == before and ends_in_mark(before)
        left = marked or start == self._end or before in ")]}"
        return left, self._patterns.touching.match(self._text, end) is not None

    def _word_follows(self, end: int) -> bool:
        return _WORD.search(self._text, end) is not None

    def _after_operand(self, *, letters: bool = True) -> bool:
        """Whether the last word is a number, or a variable if ``letters``."""
        last = self._tokens[-1]
        return last[-1].isdecimal() or last[-1] == "%" or (letters and self._variable_last())

    def _variable_last(self) -> bool:
        return bool(self._tokens) and len(self._tokens[-1]) == 1 and self._tokens[-1].isalpha()

    def _short_last(self) -> bool:
        return bool(self._tokens) and self._tokens[-1].isalpha() and len(self._tokens[-1]) < 3

    def _relation(self, found: str, start: int, end: int) -> None:
        sign = re.sub("-+", "-", found)
        sign = _COMPARISONS.get(sign, sign)
        if self._tokens or sign not in ("=", "->", "=>"):
            self._tokens.append(sign)

    def _money(self, found: str, start: int, end: int) -> None:
        tokens = self._tokens
        if tokens and _NUMBER.match(tokens[-1]) and not _NUMBER.match(self._text, end):  # "50 $"
            tokens[-1] = found + tokens[-1]
        else:
            tokens.append(found)

    def _dash(self, found: str, start: int, end: int) -> None:
        left, right = self._touches(start, end)
        before = self._text[start - 1 : start] if start else " "
        in_word = start == self._end and not before.isdecimal()
        if len(found) > 2:
            return
        if left and not right:  # "O-", "i--"; but one dash only in "O-)--", for "O---" would be a rule when read again
            if self._tokens and not self._tokens[-1].endswith("-"):
                self._glue(found)
        elif found == "-" and self._patterns.amount.match(self._text, end):  # "5-3", "- 5"; not "Covid-19"
            if not in_word:
                self._tokens.append(found)
        elif found == "-" and right and not left and self._patterns.letter.match(self._text, end):  # "-x"
            self._prefix = found
        elif not left and not right and self._short_last() and not self._word_follows(end):  # "O -"
            self._glue(found)

    def _plus(self, found: str, start: int, end: int) -> None:
        left, right = self._touches(start, end)
        if left and not right:  # "C++", "18+"
            self._glue(found)
        elif self._tokens and (left or not right or self._after_operand()):  # not the sign of "is +5"
            self._tokens.append(found)

    def _star(self, found: str, start: int, end: int) -> None:
        """Kept beside a number, and on one letter ("A*"); not in "M*A*S*H" nor as a footnote ("1993*")."""
        left, right = self._touches(start, end)
        if len(found) > 2:
            return
        if left and not right and self._text.count("*") == 1 and self._variable_last():
            self._glue(found)
        elif left == right and self._tokens and self._word_follows(end):
            number = self._after_operand(letters=False) or self._patterns.amount.match(self._text, end)
            self._tokens.extend(["^" if found == "**" else "*"] if number else [])

    def _slash(self, found: str, start: int, end: int) -> None:
        """Kept beside a number or a variable: "1/2", "x/y", "km/h"; not in "AC/DC"."""
        operand = self._patterns.amount.match(self._text, end) or self._patterns.letter.match(self._text, end)
        if self._tokens and self._word_follows(end) and (operand or self._after_operand()):
            self._tokens.append(found)

    def _power(self, found: str, start: int, end: int) -> None:
        left, right = self._touches(start, end)
        if left == right and self._tokens and self._word_follows(end):
            self._tokens.append(found)

    def _suffix(self, found: str, start: int, end: int) -> None:
        left, _ = self._touches(start, end)
        if left and not self._patterns.inside.match(self._text, end):
            self._glue(found)


_READERS: dict[str, Callable[[_Reader, str, int, int], None]] = {
    "colon": _Reader._relate,
    "dash": _Reader._dash,
    "money": _Reader._money,
    "percent": _Reader._glue,
    "plus": _Reader._plus,
    "power": _Reader._power,
    "relation": _Reader._relation,
    "slash": _Reader._slash,
    "star": _Reader._star,
    "suffix": _Reader._suffix,
}
