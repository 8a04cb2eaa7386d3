"""Answer normalisation, shared by judges and correctness rules.

Follows the SQuAD / CoQA convention (lower case, punctuation and articles dropped, white space folded) on NFKC text.
Difference: marks that change the answer are kept, because "3.5" and "35", "C++" and "C#", "x > 5" and "x < 5" are not
the same answer. Merging two answers hides that the model is unsure, while splitting one costs an answer at most: in
doubt, texts stay apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

__all__ = [
    "ends_in_mark",
    "folded",
    "guards_hold",
    "is_operator",
    "is_refusal",
    "marked",
    "marked_words",
    "may_have_marks",
    "normalise",
    "token_f1",
    "word_pattern",
    "word_tuple",
    "words",
]

_ARTICLES = frozenset({"a", "an", "the"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# A word: a number with an optional sign and decimals, or a run of letters and digits (apostrophes inside kept out).
_WORD = re.compile(r"(?<!\w)[-+]?\d+(?:\.\d+)?(?!\w)|\w+", flags=re.UNICODE)
_UNABLE = (
    r"(?:do not|don t|dont) (?:know|have|understand|recall|remember)\b.*"
    r"|(?:can not|cannot|can t|cant|could not|couldn t|(?:am|m|are|re|was|were) (?:un|not )able to)"
    r" (?:access|answer|assist|comply|determine|discuss|find|give|help|identify|provide|say|share|tell|verify)\b.*"
    r"|(?:am|m|are|re) (?:not (?:aware|certain|familiar|sure)|unsure|uncertain)\b.*"
    r"|have no (?:answer|data|idea|information|knowledge|record)\b.*"
)
_REFUSALS = re.compile(
    r"(?:i (?:do not|don t|dont) know|(?:i (?:m|am) )?not sure|i (?:m|am) unsure|unknown|no idea"
    r"|i (?:can not|cannot|can t|cant) (?:answer\b.*|help(?: you)?(?: (?:with|on|about|here|there)\b.*)?"
    r"|(?:say|tell)(?: you)?(?: (?:for|with) (?:sure|certain|certainty))?)"
    rf"|(?:(?:i|we) (?:m|am|re|are) )?(?:so |very |really )?sorry(?: (?:but )?(?:that )?(?:i|we) (?:{_UNABLE}))?)"
)
"""Texts that cannot be answers: "sorry" counts alone or before "I cannot ...", not in "Sorry by Justin Bieber".
A missed refusal only splits answers; an answer read as a refusal is merged with others."""


def words(text: str, *, keep_articles: bool = False) -> list[str]:
    """Words of a text: NFKC, case-folded, punctuation dropped, thousands separators removed, articles dropped.

    An answer that consists of articles only keeps them ("A" is an answer to a multiple-choice question). Numbers keep
    their sign and decimals, letters their combining marks; other marks are dropped (`marked_words` keeps them).
    """
    found = _words(_plain(text))
    return found if keep_articles else _without_articles(found)


def _words(plain: str) -> list[str]:
    pattern = _WORD if plain.isascii() else word_pattern(plain) or _WORD
    found: list[str] = pattern.findall(plain)
    return [word.lstrip("+") for word in found] if "+" in plain else found


def _without_articles(found: list[str]) -> list[str]:
    if _ARTICLES.isdisjoint(found):
        return found
    return [word for word in found if word not in _ARTICLES] or found


def _plain(text: str) -> str:
    """Folded text without thousands separators and contractions."""
    plain = text.lower() if text.isascii() else folded(text)
    if "," in plain:
        plain = _THOUSANDS.sub("", plain)
    plain = plain.replace("\u2019", "'")
    if "'" in plain:
        plain = plain.replace("can't", "cannot").replace("n't", " not").replace("'s ", " ")
    return plain


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words without and with marks, cached: every answer is compared with several others, by several judges."""
    plain = _plain(text)
    found = _words(plain)
    bare = tuple(_without_articles(found))
    if not may_have_marks(plain):
        return bare, bare
    kept = marked(plain)
    if _ARTICLES.isdisjoint(kept) or _ARTICLES.issuperset(found):
        return bare, tuple(kept)
    beside = [False, *map(is_operator, kept), False]
    return bare, tuple(word for i, word in enumerate(kept) if word not in _ARTICLES or beside[i] or beside[i + 2])


def word_tuple(text: str) -> tuple[str, ...]:
    """`words` of a text, cached."""
    return _read(text)[0]


def marked_words(text: str) -> tuple[str, ...]:
    """`words` of a text with the marks that change the answer (see `normalise`), cached.

    An article beside an operator may be a variable, and stays.
    """
    return _read(text)[1]


def normalise(text: str) -> str:
    """Normalised form of an answer; equal strings count as the same answer. Empty for an answer without words.

    It keeps the marks that change the answer: (1) suffixes, "C++", "C#", "O-", "18+"; (2) "=", "!=", "<", ">" and other
    mathematical signs; (3) "+ - * / ^ :" between numbers or variables, "+" and "*" between any words; (4) currencies
    and "%"; (5) signs, "-5" with any minus or dash, a leading decimal point, ".5", and exponents, "1e-5". Everything
    else is dropped: quotes, brackets, hyphens inside words, the "/" of "AC/DC", full stops, emphasis ("**Paris**"), the
    "+" of "+5". Normalising twice changes nothing more, and leaves `words` as they are.

    Text without any word or mark (e.g. an emoji or "[]") falls back to the folded text itself, so that two different
    symbols are not taken for the same (empty) answer.
    """
    _, found = _read(text)
    return " ".join(found) if found else " ".join(_plain(text).split())


@lru_cache(maxsize=4096)
def is_refusal(text: str) -> bool:
    """Whether an answer says that there is no answer ("I don't know", "not sure", "I'm sorry, but I cannot ...")."""
    return _REFUSALS.fullmatch(" ".join(words(text.replace("'", " "), keep_articles=True))) is not None


# -- Marks that change the answer: which of them a normalised string keeps, and how they are written in it -------------

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

_MARKED_NUMBER = re.compile(r" ?-?\.?\d")
_MARKED_WORD = re.compile(r"\w")
_SUSPECT = re.compile(
    r"[-+#<>=$%*^/:.](?:(?<=[+#<>=$%*^])"
    r"|(?<=-)(?:(?<=\w-)(?!\w)|(?<=[\de]-)(?=\d)|(?<=[^\w ]-)|(?<= -)(?! [^\W\d])|(?<![\s\S]-))"
    r"|(?<=/)(?:(?<![^\W\d]{2}/)|(?! ?[^\W\d]{2}))"
    r"|(?<=\d:)(?=\d)|(?<=\d :)(?= \d)|(?<=\.)(?=\d)(?:(?<!\w\.)|(?=\d+[^\W\d])))"
)
"""Matches every text with an ASCII mark that is kept; a quick test, which skips hyphens inside words."""
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

    A regular expression does not count these marks as part of a word, and two words may differ in nothing else.
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
    """Whether a token stands between two others ("x > 5", "2 * 3") and is not a word."""
    return _MARKED_WORD.search(token) is None


def may_have_marks(text: str) -> bool:
    """Whether `marked` may find anything but the words of a folded text. For most answers this test is enough."""
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
        if tokens and unicodedata.category(tokens[-1][-1]) == "Sc" and _MARKED_NUMBER.match(found):
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
        return _MARKED_WORD.search(self._text, end) is not None

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
        if tokens and _MARKED_NUMBER.match(tokens[-1]) and not _MARKED_NUMBER.match(self._text, end):  # "50 $"
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


# -- Comparing words ---------------------------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"(?P<sign>(?<!\w)-)?(?:(?P<whole>\d+)(?:\.(?P<part>\d+))?|\.(?P<bare>\d+))(?:e(?P<power>[-+]?\d{1,9})(?!\w))?"
)
_BARE = re.compile(r"[\W_]+")
_NEGATIONS = frozenset(
    {"not", "no", "never", "none", "neither", "nor", "without", "cannot", "false", "nobody", "nothing", "nowhere"}
)


def token_f1(answer: str, reference: str) -> float:
    """Token-F1 of two answers: harmonic mean of precision and recall over normalised words, with multiplicity.

    F1 = 2 P R / (P + R), P = |common| / |answer|, R = |common| / |reference|; in [0, 1], symmetric. Two answers
    without words score 1 when equal, else 0. Source: SQuAD evaluation (Rajpurkar et al. 2016), whose CoQA variant
    differs only in the article list. Marks are not words: F1 of "C++" and "C#" is 1.
    """
    ours, theirs = word_tuple(answer), word_tuple(reference)
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def guards_hold(a: str, b: str) -> bool:
    """Whether two answers have the same numbers and marks (as multisets) and both or neither contain a negation.

    An equivalence relation, and the same for all answers that `normalise` makes one.
    """
    return _guarded(a) == _guarded(b)


@lru_cache(maxsize=4096)
def _guarded(text: str) -> tuple[tuple[str, ...], bool]:
    """Numbers and marked words of a text, sorted, and whether it holds a negation."""
    found = marked_words(text)
    signs: list[str] = []
    for i, word in enumerate(found):
        if word.isalpha():
            continue
        if is_operator(word):
            signs += [word + _exact(found[i + 1] if i + 1 < len(found) else "")] if word != "=" else []
        else:
            signs += _signs(word)
    return tuple(sorted(signs)), any(_BARE.sub("", word) in _NEGATIONS for word in found)


@lru_cache(maxsize=8192)
def _signs(word: str) -> tuple[str, ...]:
    """What must be the same of a word with digits or marks: its numbers, or all of it."""
    if (_NUMBER.match(word) or word[0].isalnum()) and not ends_in_mark(word):  # "5", "-5", "5km", "b12"
        return tuple(_exact(number[0]) for number in _NUMBER.finditer(word))
    return (_exact(word),)  # "c++", "$50", "50%", "-x"


def _exact(word: str) -> str:
    """A word with its numbers as sign, digits and power of ten: "1.0" and "1" become "1e0". No float: digits count."""
    return _NUMBER.sub(_canonical, word)


def _canonical(number: re.Match[str]) -> str:
    whole, part = _ascii(number["whole"] or ""), _ascii(number["part"] or number["bare"] or "")
    digits = (whole + part).lstrip("0")
    if not digits:
        return "0e0"
    power = int(number["power"] or 0) - len(part) + len(digits) - len(digits.rstrip("0"))
    return f"{number['sign'] or ''}{digits.rstrip('0')}e{power}"


def _ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join(str(int(digit)) for digit in digits)
