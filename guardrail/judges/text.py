"""Texts as light judges and correctness rules read them: when two say the same, and which say that there is no answer.

A merge needs evidence: answers merged wrongly hide that the model is unsure, while answers split wrongly cost an answer
at most. So only plain prose is folded (case, punctuation, articles). A text with anything beyond it (operators,
brackets, primes, code) is compared as it is written. Every step takes time linear in the length of a text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

__all__ = [
    "FUNCTION_WORDS",
    "MULTIPLES",
    "apart",
    "contradicts",
    "guards_hold",
    "is_hedged",
    "is_refusal",
    "normalise",
    "overlap",
    "prose",
    "shared",
    "token_f1",
    "unspaced",
    "word_tuple",
    "words",
    "written",
]

# -- How a text is written: one way for each sign, white space and emphasis --------------------------------------------

_ONE_WAY = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),  # hyphens, figure dash, en dash, minus
        **dict.fromkeys("\u2018\u2019\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
        **dict.fromkeys("\u00d7\u2217\u22c5", "*"),
        **dict.fromkeys("\u00f7\u2044\u2215", "/"),
        **dict.fromkeys("\u00a9\u00ad\u00ae\u200b\u200e\u200f\u2060\u2122\ufeff", ""),  # of no meaning
        **{"\u2260": "!=", "\u2264": "<=", "\u2265": ">=", "\u2192": "->", "\u21d2": "=>"},
    }
)
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u207a\u207b]+")
"""NFKC alone would make the number 105 of 10 to the 5th."""
_FRACTION = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e])")
"""Where NFKC would make 51 / 2 of 5 1/2."""
_LOWERED = re.compile("(?<=\\d)(?=[\u2080-\u2089])")
_QUOTED = re.compile("\u2018([^\u2018\u2019]*)\u2019(?!\\w)")
_EMPHASIS = re.compile(r'(?<![^\s("])([*`]{1,3})(?=[^\s*`])([^*`\n]+)(?<=\S)([*`]{1,3})(?=[\s.,;:!?)"]|$)')


def unspaced(text: str) -> str:
    """A text with one space for each run of white space, and none at its ends."""
    return " ".join(text.split())


@lru_cache(maxsize=1024)
def written(text: str) -> str:
    """NFKC text with one way to write each sign ("-" for a hyphen or minus, "^5" for a raised 5), without emphasis."""
    if not text.isascii():
        text = _RAISED.sub(lambda found: f"^{found[0]}", text)
        text = _LOWERED.sub("_", _FRACTION.sub(" ", text))
        text = _QUOTED.sub(r'"\1"', text.replace("\u2122", ""))
        text = unicodedata.normalize("NFKC", text).translate(_ONE_WAY)
    if "*" in text or "`" in text:
        text = _EMPHASIS.sub(lambda found: found[2] if found[1] == found[3] else found[0], text)
    return unspaced(text)


# -- Plain prose -------------------------------------------------------------------------------------------------------


class _Shapes(dict[int, str]):
    """The kind of a character as one ASCII character: "a" letter or its mark, "0" digit, itself, or "~" for others."""

    def __missing__(self, code: int) -> str:
        kind = unicodedata.category(chr(code))
        shape = "a" if kind[0] in "LM" else "0" if kind == "Nd" else chr(code) if code < 128 else "~"
        return self.setdefault(code, shape)


_SHAPES = _Shapes()
_CHUNK = re.compile(r'"?([a0]+(?:[-\'.,:/][a0]+)*)((?:(?<=aaa)\')?[.,:!?]?"?[.,:!?]?)')
"""The shape of words of prose, between two spaces."""
_LOOSE = re.compile(r'["\'(]*(?:\.\.\.?)?([a0]+(?:[-\'.,:;/][a0]+)*)((?:(?<=aaa)-)?[)"\'.,:;!?]*)')
_JOINT = re.compile(
    r"(?P<split>(?<=aa)-|-(?=aa)|(?<=\ba)\.(?=a)|(?<=aa),(?=a)|,(?=aa))|(?P<kept>(?<=0)[-.,:/](?=0)|(?<=[a0])'(?=a)|\.)|."
)
"""What stands between two runs of letters and digits: becomes a space, stays, or is not prose ("x-1", "a/b")."""
_BETWEEN_WORDS = re.compile(r"(?<=aaa)[/;](?=aaa)")
_SEPARATORS = re.compile("[-'.,:;/]")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CONTRACTED = {"can't": "cannot", "won't": "will not", "shan't": "shall not"}
_NAMED = frozenset({"flat", "level", "major", "minor", "negative", "plus", "positive", "sharp", "team"})
"""Words that make a name of the letter before them."""
_ARTICLES = frozenset({"a", "an", "the"})


@lru_cache(maxsize=1024)
def normalise(text: str) -> str:
    """One form for all ways to write an answer; equal forms are the same answer. Empty for a text of white space only.

    Plain prose (words, numbers, sentence punctuation, double quotes around words, hyphens and apostrophes inside them)
    is folded: lower case, no punctuation, no articles. "The", "an" and a lower-case "a" before a word are articles;
    "A" elsewhere is an answer, and stays a capital. Numbers keep their marks (3.5, 10:30, 1/2), not those of thousands.

    Any other text stays as written (`written`), case included, without a full stop at its end. White space beside
    operators and brackets does not count in a formula: a text without words of two letters and without quotes.
    """
    plain = written(text)
    found = prose(plain)
    return _as_written(plain) if found is None else " ".join(found)


def prose(plain: str) -> list[str] | None:
    """The folded words of a `written` text; None if it is not plain prose."""
    shape = plain.translate(_SHAPES)
    chunks, shapes = plain.split(" "), shape.split(" ")
    begun = not plain[:1].islower()  # "?" ends a sentence, and those begin with a capital: "ab?" is a pattern
    found: list[str] = []
    for i, (chunk, form) in enumerate(zip(chunks, shapes, strict=True)):
        after = shapes[i + 1].removeprefix('"') if i + 1 < len(shapes) else ""
        word = chunk.removeprefix('"')
        if after and (word.casefold() in ("an", "the") or _is_article(word, after, i, chunks)):
            continue
        own = _words_of(chunk, form)
        if own and i and shapes[i - 1].endswith("0") and "aa" in form and len(own[0]) < 4 and not chunk.islower():
            own[0] = chunk[: len(own[0])]  # a unit, perhaps: "5 mW" is not "5 MW"
        if own is None or ("?" in form and not begun):
            return None
        found += own
    return found


def _is_article(word: str, after: str, place: int, chunks: Sequence[str]) -> bool:
    """Whether "a" is an article: before a word; the capital only as the first word, and not before what names it.

    "A, C", "A B", "A and B", "option A", "A minor" and "A positive" keep their letter.
    """
    following = chunks[place + 1].strip('"').casefold() if word in ("a", "A") and after.startswith("aa") else ""
    if word == "a" or not following:
        return bool(following)
    return not place and after.startswith("aaa") and following not in FUNCTION_WORDS and following not in _NAMED


def _words_of(chunk: str, shape: str, *, loose: bool = False) -> list[str] | None:
    """The folded words of a chunk without spaces; None if it is not prose.

    Args:
        chunk: The text.
        shape: Its shape.
        loose: Whether brackets, single quotes and slashes beside words count as prose, for texts compared in parts.
    """
    found = (_LOOSE if loose else _CHUNK).fullmatch(shape)
    if found is None:
        return None
    form, after = found[1], found[2]
    is_word = "aa" in form
    if (("!" in after or "?" in after) and not form.endswith("aa")) or (after.count(".") > 1):
        return None
    if not is_word and form != shape.rstrip(".,:;") and not (loose and form == "0000"):
        return None  # quotes and brackets of a number or a variable
    if form == "a" and "," in after and not loose:
        return None  # a list of letters
    body = chunk[found.start(1) : found.end(1)]
    if "'" in after and not (body.endswith("s") if not loose else len(body) > 2 or chunk[0] == "'"):
        return None  # a prime, not the plural's apostrophe
    if loose:
        form = _BETWEEN_WORDS.sub(",", form)
    pieces, start = [], 0
    for joint in _SEPARATORS.finditer(form):
        kind = _JOINT.match(form, joint.start())
        assert kind is not None, "the last alternative matches any character"
        if kind.lastgroup is None:
            return None
        if kind.lastgroup == "split":
            pieces.append(body[start : joint.start()])
            start = joint.end()
    return [word for piece in (*pieces, body[start:]) for word in _folded(piece)]


def _folded(word: str) -> tuple[str, ...]:
    if word in ("a", "A"):
        return ("A",)  # not an article: a capital, so that folding again does not take it for one
    word = word.casefold()
    if word.isascii():
        if "," in word and _THOUSANDS.fullmatch(word):
            return (word.replace(",", ""),)
        if word.endswith("n't") and word[:-3].isalpha() and word[:-3] not in _ARTICLES:
            return tuple(_CONTRACTED.get(word, f"{word[:-3]} not").split())
        return (word,)
    return (unicodedata.normalize("NFKC", word),)


_BESIDE = re.compile(r" ([-=+*/<>^|&!]+) |(?<=[(\[{,$\u20ac\u00a3\u00a5]) | (?=[)\]}%,])|(?<=^[-+]) ")


def _as_written(plain: str) -> str:
    shape = plain.translate(_SHAPES)
    if not ("aa" in shape or '"' in shape or "'" in shape):
        plain = _BESIDE.sub(lambda found: found[1] or "", plain)
    return plain[:-1] if plain[-1:] == "." and (plain[-2:-1].isalnum() or plain[-2:-1] in ("%", ")")) else plain


# -- Answers that say there is none ------------------------------------------------------------------------------------

_OF = "exact|specific|correct|definite|definitive|reliable|further|more|enough|sufficient"
_NOUN = (
    "answers?|questions?|requests?|information|details?|data|topic|subject|matter|idea|clue|knowledge|opinion|comment"
)
_THING = rf"(?:it|this|that|these|you|so|anything|(?:(?:the|an?|any|your|this|that|{_OF}) )?(?:(?:{_OF}) )?(?:{_NOUN}))"
_ACT = (
    "(?:answer|say|tell|help|assist|comply|comment|provide|share|discuss|determine|find|confirm|verify|give|do|respond"
    "|know|identify)"
)
_REST = (
    rf"(?: (?:(?:(?:to|with|on|about|regarding|for|of) )?{_THING}|to {_ACT}|for (?:sure|certain)"
    r"|with (?:any |absolute )?certainty|at (?:this|the) (?:time|moment|present)|right now|here)){0,4}"
)
_I = r"(?:i|we) (?:(?:am|are|really|just|simply|honestly|actually|currently) )?"
_UNABLE = (
    "(?:cannot|can not|could not|will not|would rather not|would prefer not to|prefer not to|not able to|unable to)"
)
_CLAUSE = (
    rf"(?:{_I}(?:{_UNABLE}|decline to|must decline to|refuse to) {_ACT}{_REST}"
    rf"|{_I}do not (?:know|understand|recall|remember){_REST}"
    rf"|{_I}(?:do not have|have no)(?: (?:the|an?|any|this|that|{_OF})){{0,2}} (?:{_NOUN}){_REST}"
    rf"|(?:{_I})?(?:not (?:sure|certain|aware)|unsure|uncertain){_REST}"
    r"|no (?:idea|clue|comment|answer|opinion|information)|unknown|rather not say)"
)
_SORRY = (
    r"(?:(?:(?:i|we) (?:am|are) )?(?:(?:so|very|really|truly) )?sorry|(?:i|we) (?:am|are) afraid"
    r"|(?:i|we) apologi[sz]e|(?:my )?apologies|unfortunately|regrettably)"
)
_REFUSAL = re.compile(
    rf"{_SORRY}|(?:{_SORRY} )?(?:(?:but|that) )?(?:as an ai(?: language)?(?: model| assistant)? )?"
    rf"{_CLAUSE}(?: (?:{_CLAUSE}|{_SORRY}))?"
)
_HEDGED = re.compile(rf"{_SORRY} (?:(?:but|that) )?{_CLAUSE}")
_SPELT_OUT = {"i'm": "i am", "we're": "we are", "i'd": "i would", "we'd": "we would"}
_LONGEST_REFUSAL = 200
"""Characters."""


@lru_cache(maxsize=1024)
def is_refusal(text: str) -> bool:
    """Whether an answer says that there is none, and nothing else ("I don't know.", "I'm sorry, but I cannot help.").

    Every word must be part of a phrase of a closed vocabulary: a text with a number, a name or any other word is an
    answer. A refusal that is missed is one more meaning; an answer taken for a refusal would hide what it says.
    """
    return len(text) <= _LONGEST_REFUSAL and _REFUSAL.fullmatch(_spelt_out(text)) is not None


@lru_cache(maxsize=1024)
def is_hedged(text: str) -> bool:
    """Whether an answer begins with an apology for having none, whatever follows ("I'm sorry, but I cannot find ...").

    No two answers are merged for it. Its words are mostly the question's, so word similarities do not count them.
    """
    return _HEDGED.match(_spelt_out(text[:_LONGEST_REFUSAL])) is not None


def _spelt_out(text: str) -> str:
    """The words of a text in lower case, without sentence marks and contractions."""
    found = [word.strip(".,;!") for word in written(text).casefold().split(" ")]
    said = [word for one in found for word in (_SPELT_OUT.get(one) or " ".join(_folded(one))).split(" ")]
    return " ".join(said).casefold()


# -- Words -------------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"(?<![a0_])[-+]?0+(?:\.0+)?(?![a0_])|[a0_]+")
"""A number with its sign and decimals, or a run of letters and digits, in the shape of a text."""
_THOUSAND = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def words(text: str, *, keep_articles: bool = False) -> list[str]:
    """Words of any text: NFKC, lower case, without punctuation, marks of thousands and articles.

    An answer that consists of articles only keeps them. Numbers keep their sign and decimals.
    """
    plain = written(text).casefold()
    if "," in plain:
        plain = _THOUSAND.sub("", plain)
    if "'" in plain:
        plain = plain.replace("can't", "cannot").replace("n't", " not").replace("'s ", " ")
    spans = [found.span() for found in _WORD.finditer(plain.translate(_SHAPES))]
    found = [plain[start:end].lstrip("+") for start, end in spans]
    return found if keep_articles else [word for word in found if word not in _ARTICLES] or found


@lru_cache(maxsize=1024)
def word_tuple(text: str) -> tuple[str, ...]:
    """`words` of a text, cached: every answer is compared with several others, by several judges."""
    return tuple(words(text))


def token_f1(answer: str, reference: str) -> float:
    """Token-F1 of two answers: harmonic mean of precision and recall over all words, with multiplicity.

    F1 = 2 P R / (P + R), P = |common| / |answer|, R = |common| / |reference|; in [0, 1], symmetric. Two answers
    without words score 1 when equal, else 0. Source: SQuAD evaluation (Rajpurkar et al. 2016), whose CoQA variant
    differs only in the article list. Marks are not words: F1 of "C++" and "C#" is 1. `overlap` is what judges use.
    """
    ours, theirs = word_tuple(answer), word_tuple(reference)
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    return _f1(ours, theirs)


def _f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    return 2 * (Counter(ours) & Counter(theirs)).total() / (len(ours) + len(theirs))


_COMMON_WORDS = """
a an the this that these those it its he him his she her they them their we us our you your i me my who whom
whose which what when where why how there here of in on at to from by with for as into onto about over under
between among during through since until upon and or but nor so if then than because while although though
however therefore thus hence is are was were be been being do does did doing done has have had having will would
shall should can could might must not no s t also only just even still too very quite rather really actually
usually generally mostly often sometimes always probably likely perhaps maybe approximately roughly exactly
currently now some any all both each every such same other answer answers cannot unable sorry unfortunately
afraid apologize sure certain unsure verify know think believe help
"""
FUNCTION_WORDS = frozenset(_COMMON_WORDS.split())
_HEDGE_WORDS = """
able access accurate advice ai am apologies assume available based best candidate certainty clear confident confirm
d data definite definitive determine difficult enough exact expert give guess hard honest honestly i idea impossible
incorrect information judgment knowledge language last ll m may mistaken model moment opinion possible possibly
presumably provide re reliable recall recollection remember say specific speculate suggest tell though uncertain unclear
unknown unlikely likely update ve want wrong yet
"""
_HEDGES = frozenset(_HEDGE_WORDS.split())
"""Words of phrases such as "my best guess" and "hard to say": two answers that share one do not agree for it."""


@lru_cache(maxsize=1024)
def _content(text: str) -> tuple[str, ...]:
    return tuple(word for word in word_tuple(text) if word not in FUNCTION_WORDS)


def overlap(question: str, a: str, b: str) -> float:
    """Token-F1 of what two answers say: of their content words, less those of the question. In [0, 1], symmetric.

    Where one of them has no such word, of their content words; where one has none of these either, of all words.
    Numbers do not count beside other words: the guards compare them, and "5 km" shares its number with "5 miles".
    """
    ours, theirs = _said(question, a, b)
    named = [[word for word in own if not word[-1].isdecimal()] for own in (ours, theirs)]
    if all(named):
        return _f1(*named)
    return _f1(ours, theirs) if ours and theirs else token_f1(a, b)


def shared(question: str, a: str, b: str) -> float:
    """Jaccard similarity of the sets of words that `overlap` compares, numbers included. In [0, 1], symmetric."""
    ours, theirs = map(set, _said(question, a, b))
    return len(ours & theirs) / len(ours | theirs) if ours and theirs else float(normalise(a) == normalise(b))


def _said(question: str, a: str, b: str) -> tuple[Sequence[str], Sequence[str]]:
    asked = frozenset(word_tuple(question))
    ours, theirs = _content(a), _content(b)
    hedges = _HEDGES.intersection(ours, theirs)
    new = [[word for word in own if word not in asked and word not in hedges] for own in (ours, theirs)]
    if all(new):
        return new[0], new[1]
    return (ours, theirs) if ours and theirs else (word_tuple(a), word_tuple(b))


_SPELT_WORDS = """
zero|one first i|two second ii|three third thirds iii|four fourth fourths iv|five fifth fifths v|six sixth sixths vi
|seven seventh sevenths vii|eight eighth eighths viii|nine ninth ninths ix|ten tenth tenths x|eleven eleventh xi
|twelve twelfth xii|thirteen thirteenth xiii|fourteen fourteenth xiv|fifteen fifteenth xv|sixteen sixteenth xvi
|seventeen seventeenth xvii|eighteen eighteenth xviii|nineteen nineteenth xix|twenty twentieth xx|xxi|xxii|xxiii|xxiv
"""
_SPELT = {word: str(value) for value, row in enumerate(_SPELT_WORDS.split("|")) for word in row.split()}
_SPELT |= {
    f"{ten}t{end}": ten for ten in ("thir", "for", "fif", "six", "seven", "eigh", "nine") for end in ("y", "ieth")
}
_SPELT |= {"half": "half", "hundred": "100", "thousand": "1000", "million": "10^6", "billion": "10^9", "dozen": "12"}
"""Numbers in words, the same for cardinals, ordinals and Roman numerals."""


def apart(a: str, b: str) -> bool:
    """Whether each of two answers has a number in words that the other lacks ("Henry VIII" and "Henry VII").

    Not an equivalence relation: a number in only one of them may be a further detail.
    """
    ours, theirs = _spelt_numbers(a), _spelt_numbers(b)
    return bool(ours - theirs and theirs - ours)


@lru_cache(maxsize=1024)
def _spelt_numbers(text: str) -> frozenset[str]:
    """Runs of number words: "twenty-one" is one number, and so is "two thirds"."""
    found, run = set(), ""
    own = word_tuple(text)
    for i, word in enumerate((*own, "")):
        is_number = word in _SPELT and (word not in ("i", "v", "x") or own[i + 1 : i + 2] in ((), ("of",)))
        if run and not is_number:
            found.add(run)
        run = f"{run} {_SPELT[word]}" if is_number else ""
    return frozenset(found)


# -- What common words do not outweigh ---------------------------------------------------------------------------------

MULTIPLES = {
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
    "lakh": 10**5,
    "crore": 10**7,
}
"""Words that multiply the number before them."""
_COUNTED = frozenset({*MULTIPLES, "squared", "cubed", "factorial", "half", "twice", "double", "minus", "negative"})
_BOUNDS = frozenset({"least", "most", "than", "under", "over", "below", "above", "log", "ln", "sqrt"})
"""Words that make another number of the one behind them."""
_NEGATIONS = frozenset(
    {"not", "no", "never", "none", "neither", "nor", "without", "cannot", "false", "nobody", "nothing", "nowhere"}
)
_NUMBER = re.compile(r"(\d+)(?:\.(\d+))?")
_EQUALS = re.compile(r"(?<![=!<>:])=(?![=>])")
_JOINING = frozenset({"-", "--", "\u2013", "\u2014", "&"})


def guards_hold(a: str, b: str) -> bool:
    """Whether two answers have the same numbers, letters that stand alone, marks, and both or neither a negation.

    Marks are the parts that are not prose, with the neighbours of an operator; only "=" does not count, because
    "x = 5" says the same as "5". Numbers are compared digit by digit ("1.0" = "1"). An equivalence relation, and the
    same for all answers that `normalise` makes one.
    """
    return _guarded(normalise(a)) == _guarded(normalise(b))


def contradicts(a: str, b: str) -> bool:
    """Whether two answers differ in what `guards_hold` compares; a number in only one of them is a further detail."""
    ours, theirs = _guarded(normalise(a)), _guarded(normalise(b))
    return ours[::2] != theirs[::2] or bool(ours[1] and theirs[1] and ours[1] != theirs[1])


@lru_cache(maxsize=1024)
def _guarded(normal: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    chunks = unspaced(_EQUALS.sub(" ", normal)).split(" ")
    shapes = [chunk.translate(_SHAPES) for chunk in chunks]
    marks, counted, letters, negated = [], [], [], False
    following = ""  # the next word of more than one letter
    for i in reversed(range(len(chunks))):
        own = _words_of(chunks[i], shapes[i], loose=True)
        if own is None or ("?" in chunks[i] and normal[0].islower()):
            before, after = "".join(shapes[max(0, i - 1) : i]), "".join(shapes[i + 1 : i + 2])
            if any(map(str.isalnum, chunks[i])):
                marks.append(chunks[i].rstrip(".,:;"))
            elif chunks[i] not in _JOINING or "aa" not in before or "aa" not in after:
                marks.append(" ".join(chunks[max(0, i - 1) : i + 2]))
            following = chunks[i]
            continue
        for word in reversed(own):
            negated |= word in _NEGATIONS
            if word[0].isdecimal():
                counted.append(_NUMBER.sub(_digits, word) if _NUMBER.fullmatch(word) or word[-1].isalpha() else word)
            elif (
                any(map(str.isdecimal, word))
                or not _COUNTED.isdisjoint((word, word.removesuffix("s")))
                or (word in _BOUNDS and (following[:1].isdecimal() or following in _SPELT))
            ):
                counted.append(word)
            elif i and shapes[i - 1].endswith("0") and chunks[i] != word == chunks[i].casefold():
                counted.append(chunks[i])  # "MW" of "5 MW", which `normalise` does not fold
            elif len(word) == 1 and word.isascii():
                if word != "i" and (not following or following in FUNCTION_WORDS or following in _NAMED):
                    letters.append(
                        f"{word} {following}" if following in _NAMED else word
                    )  # no initial, and not "x = 5"
                continue
            following = word
            if following == "or" and letters:
                letters.append(word)
    return tuple(sorted(marks)), (*sorted(counted), *letters), negated


def _digits(number: re.Match[str]) -> str:
    """A number without the zeros that do not count. No float: all digits do."""
    whole, part = number[1].lstrip("0"), (number[2] or "").rstrip("0")
    return f"{whole or '0'}.{part}" if part else whole or "0"
