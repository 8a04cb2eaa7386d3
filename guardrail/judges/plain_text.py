"""A text without markup, its digits and signs in ASCII: what numbers are read from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

__all__ = ["plain_words"]

_POWERS = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_SPECIAL = {
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013", "-"),
    **dict.fromkeys("\u2014\u2015", "\u2014"),
    **dict.fromkeys("\u2018\u2019\u02bc", "'"),
    **dict.fromkeys("\u201c\u201d\u00ab\u00bb", '"'),
    "\u2044": "/",
    "\u066a": "%",
    "\u2248": " \u2248 ",
    "\u220e": " . ",
}
_COLOURS = "(?:text|page)?color|colorbox|[hv]space"
_LAYOUT = (
    "(?:text|math)(?:bf|it|rm|sf|tt|normal)?|text(?:md|sc|sl|up)|mbox|boxed|fbox|operatorname|left|right|emph|underline|"
    "boldsymbol|bm|bf|it|rm|sc|sf|sl|tt|bfseries|itshape|ttfamily|displaystyle|textstyle|tiny|scriptsize|footnotesize|"
    "small|normalsize|large|Large|LARGE|huge|Huge|hfill|noindent"
)
_ENDS = "checkmark|blacksquare|square|Box|qed|qedsymbol|qedhere"
"""Commands for marks at the end of an answer or a proof."""
_LATEX: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}"), r" \1/\2 "),
    (re.compile(r"\\(?:text|mathrm)\s*\{([^{}^]*[A-Za-z])\s*\}\s*\^\s*\{?([23])\}?"), r" \1^\2 "),
    (re.compile(rf"\\(?:{_COLOURS})\*?\s*(?:\[[^][{{}}]*\]\s*)?\{{[^{{}}]*\}}"), " "),
    (re.compile(rf"\\(?:{_LAYOUT})(?![A-Za-z])\s*"), " "),
    (re.compile(rf"\\(?:{_ENDS})(?![A-Za-z])"), " . "),
    (re.compile(r"\\[,;:! ]|(?<=\d)\{,\}(?=\d)"), lambda found: "," if found[0] == "{,}" else " "),
    (re.compile(r"\\(?:times|cdot)(?![a-z])"), "\u00d7"),
    (re.compile(r"\\pm(?![a-z])"), "\u00b1"),
    (re.compile(r"\\l(?:eq?|t)(?![a-z])"), "<"),
    (re.compile(r"\\g(?:eq?|t)(?![a-z])"), ">"),
    (re.compile(r"\^\s*\{\s*(?:\\circ|\u00b0)\s*\}|\^\s*\\circ"), "\u00b0"),
    (re.compile(r"\^\s*\{([^{}]*)\}"), r"^\1"),
    (re.compile(r"\\([%$#&_])"), r"\1"),
    (re.compile(r"\\[()\[\]]"), " "),
]
_MATHS = re.compile(r"(?<![\\\w$])(\$\$?)(?!\$)((?:[^$\\\n]|\\.)+?)(?<!\\)\1(?![\w$])")
_SPACED_THOUSANDS = re.compile(r"(?<![\w.,'/^:-])([-+]?[^\w\s.,()]?)([1-9]\d{0,2}(?: \d{3})+)(?![\d,/^:'_-])")
_STEPS = [
    (re.compile(r"</?[A-Za-z][^<>]*>"), " "),  # tags
    (re.compile(r"(?<=\d)\*\*(?=-?\d)"), "^"),
    (re.compile(r"(?<=\d) ?[*x] ?(?=10\^)"), " \u00d7 "),
    (re.compile(r"(?<![\d\s*])\*+|(?<=\d)\*+(?=[\s.,;:!?)]|$)|(?<!\S)\*+(?=[^\s*])"), ""),  # **bold**, never 3 * 4
    (re.compile(r"(?<!\w)_+|_{1,3}(?!\w)|`+"), ""),
    (re.compile(r"[-=]{1,3}>|[\u2190-\u21ff]"), " \u2192 "),
    (re.compile(r"(?<![<>=!])=+(?!=)"), " = "),
    (re.compile(r"[|\u00d7\u00b7]"), r" \g<0> "),
    (re.compile(r"(?<=[A-Za-z]):(?=\S)"), ": "),
    (re.compile(r"\u2014(?!\d)"), " \u2014 "),
    (re.compile(r"(?<=[^\d\s(])\("), " ("),
    (re.compile(r"\)(?=[A-Za-z])"), ") "),
]


def plain_words(text: str) -> list[str]:
    """Words of a text: markup (LaTeX, Markdown, HTML) gone, NFKC, all digits ASCII, powers written "10^5".

    Thousands that are set apart by spaces become one word, "10_000".
    """
    if not text.isascii():
        text = _ascii(text)
    if "$" in text:
        text = _MATHS.sub(r" \2 ", text)
    if "\\" in text or "{" in text:
        for pattern, written in _LATEX:
            text = pattern.sub(written, text)
        text = text.replace("{", " ").replace("}", " ")
    for pattern, plain in _STEPS:
        text = pattern.sub(plain, text)
    text = _SPACED_THOUSANDS.sub(lambda found: found[1] + found[2].replace(" ", "_"), " ".join(text.split()))
    return text.split()


def _ascii(text: str) -> str:
    text = _POWERS.sub(lambda found: "^" + unicodedata.normalize("NFKC", found[0]).replace("\u2212", "-"), text)
    return unicodedata.normalize("NFKC", "".join(map(_character, text)))


def _character(one: str) -> str:
    if one.isascii():
        return one
    if one in _SPECIAL:
        return _SPECIAL[one]
    kind = unicodedata.category(one)
    if kind == "Cf":
        return ""  # zero width, soft hyphens
    if kind == "Nd":
        return str(unicodedata.decimal(one))
    if kind == "No" and "VULGAR FRACTION" in unicodedata.name(one, ""):
        return f" {unicodedata.normalize('NFKC', one).replace(chr(0x2044), '/')} "
    return one
