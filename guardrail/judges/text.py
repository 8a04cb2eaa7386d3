"""Rules by which light judges and correctness rules read texts: which two say the same, and which are refusals.

A merge needs evidence: answers merged wrongly hide that the model is unsure, while answers split wrongly cost an answer
at most. So only plain prose is folded (case, punctuation, articles). A text with anything beyond it (operators,
brackets, primes, code) is compared unchanged. Every step takes time linear in the length of a text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from ..plain_json import BLANK, INVISIBLE_CLASS

__all__ = [
    "AMOUNTS",
    "CARDINALS",
    "FUNCTION_WORDS",
    "NEGATIONS",
    "QUANTITIES",
    "SCALES",
    "apart",
    "contradicts",
    "distinct_answers",
    "guards_hold",
    "is_echo",
    "is_hedged",
    "is_name",
    "is_refusal",
    "normalise",
    "orders_agree",
    "overlap",
    "shared",
    "token_f1",
    "unspaced",
    "word_set",
    "word_tuple",
    "words",
    "written",
]


def word_set(text: str) -> frozenset[str]:
    """The words of a list, written as one text."""
    return frozenset(text.split())


# -- Spelling of a text: one way for each sign, white space and emphasis
# ------------------------------------------------

_ONE_WAY = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),  # hyphens, figure dash, en dash, minus
        **dict.fromkeys("\u2018\u2019\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
        **dict.fromkeys("\u00d7\u2217\u22c5", "*"),
        **dict.fromkeys("\u00f7\u2044\u2215", "/"),
        **dict.fromkeys("\u00a9\u00ae\u2122", ""),  # of no meaning
        **{"\u2260": "!=", "\u2264": "<=", "\u2265": ">=", "\u2192": "->", "\u21d2": "=>"},
    }
)
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u207a\u207b]+")  # NFKC makes 105 of 10 to the 5th
_FRACTION = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e])")  # ... and 51 / 2 of 5 1/2
_LOWERED = re.compile("(?<=\\d)(?=[\u2080-\u2089])")
_UNSEEN = INVISIBLE_CLASS
_INVISIBLE = re.compile(rf"(?<![\d{_UNSEEN}])(?<!\d[.,])[{_UNSEEN}]++|[{_UNSEEN}]++(?![.,]?\d)")
"""Signs that nobody sees, except inside a number: which one is meant, 5 and 0 or 50, is not known."""
_QUOTED = re.compile("\u2018([^\u2018\u2019]*)\u2019(?!\\w)")
_EMPHASIS = re.compile(r'(?<![^\s("])([*`]{1,3})(?=[^\s*`])([^*`\n]+)(?<=\S)([*`]{1,3})(?=[\s.,;:!?)"]|$)')


def unspaced(text: str) -> str:
    """A text with one space for each run of white space, and none at its ends."""
    return " ".join(text.split())


@lru_cache(maxsize=1024)
def written(text: str) -> str:
    """NFKC text with one way to write each sign ("-" for a hyphen or minus, "^5" for a raised 5), without emphasis."""
    text = BLANK.sub(" ", _INVISIBLE.sub("", text))
    if not text.isascii():
        text = _RAISED.sub(lambda match: f"^{match[0]}", text)
        text = _LOWERED.sub("_", _FRACTION.sub(" ", text))
        text = _QUOTED.sub(r'"\1"', text.replace("\u2122", ""))
        text = unicodedata.normalize("NFKC", text).translate(_ONE_WAY)
    if "*" in text or "`" in text:
        text = _EMPHASIS.sub(lambda match: match[2] if match[1] == match[3] else match[0], text)
    return unspaced(text)


# -- Plain prose -------------------------------------------------------------------------------------------------------


class _Shapes(dict[int, str]):
    """The kind of a character as one ASCII character: "a" letter or its mark, "0" digit, itself, or "~" for others."""

    def __missing__(self, code: int) -> str:
        kind = unicodedata.category(chr(code))
        shape = "a" if kind[0] in "LM" else "0" if kind == "Nd" else chr(code) if code < 128 else "~"
        return self.setdefault(code, shape)


_SHAPES = _Shapes()
_BODY = r"([a0]+(?:[-'.,:/][a0]+)*)"
_CHUNK = re.compile(
    rf'(?!.*\."?\.)(?:(?=.*aa)"?{_BODY}(?:(?<=aa)((?<=aaa)\')?[.,:!?]?"?[.,:!?]?|[.,:]?"?[.,:]?)'
    rf"|(?!a[.:]?,){_BODY}[.,:]{{0,2}})"
)
"""The shape of prose between two spaces: a word, or a number or letter, which has no quotes. "a," is part of a list."""
_SPLIT = re.compile(r"(?<=aa)-|-(?=aa)|(?<=\ba)\.(?=a)|(?<=aa),(?=a)|,(?=aa)")
_JOINT = re.compile(rf"{_SPLIT.pattern}|(?<=0)[-.,:/](?=0)|(?<=[a0])'(?=a)|\.")
"""Marks between runs of letters and digits in prose; `_SPLIT` becomes a space. "x-1" and "a/b" are not prose."""
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CONTRACTED = {"can't": "cannot", "won't": "will not", "shan't": "shall not"}
_NAMED = word_set("flat level major minor negative plus positive sharp team")  # make a name of the letter before them
_ARTICLES = word_set("a an the")
_UNIT = re.compile(r"\d+(?:[.,]\d+)*([^\W\d_]{1,3})")
"""A number and the unit written to it, in which case counts: "5mW" is not "5MW"."""
_CASELESS = word_set("st nd rd th am pm")


@lru_cache(maxsize=1024)
def normalise(text: str) -> str:
    """One form for all ways to write an answer; equal forms are the same answer. Empty for a text of white space only.

    Plain prose (words, numbers, sentence punctuation, double quotes around words, hyphens and apostrophes inside them)
    is folded: lower case, no punctuation, articles or marks of thousands. "A" that is not an article stays a capital.
    Any other text stays as written (`written`), case included, without a full stop at its end. White space beside
    operators and brackets does not count in a formula: a text without words of two letters and without quotes.
    """
    plain = written(text)
    folded = _prose(plain)
    return _as_written(plain) if folded is None else " ".join(folded)


def distinct_answers(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Distinct texts by their normal form with their counts, most frequent first; each in its first wording."""
    forms = [normalise(text) for text in texts]
    # Reversed, because the last entry of a dict wins: the first wording is to stay.
    first_wording = dict(zip(reversed(forms), reversed(texts), strict=True))
    return [(first_wording[form], count) for form, count in Counter(forms).most_common()]


def _prose(plain: str) -> list[str] | None:
    """The folded words of a `written` text; None if it is not plain prose."""
    chunks, shapes = plain.split(" "), [*plain.translate(_SHAPES).split(" "), ""]
    begun = not plain[:1].islower()  # "?" ends a sentence, and those begin with a capital: "ab?" is a pattern
    folded: list[str] = []
    for i, (chunk, form) in enumerate(zip(chunks, shapes, strict=False)):
        word, after = chunk.removeprefix('"'), shapes[i + 1].removeprefix('"')
        if after and word.casefold() in _ARTICLES and _is_article(word, chunks[i + 1], after, first=not i):
            continue
        own = _words_of(chunk, form)
        if own is None or ("?" in form and not begun):
            return None
        behind_number = bool(i) and shapes[i - 1].endswith("0") and form[:1] == "a"
        if behind_number and len(own[0]) < 4 and own[0] != "i" and not chunk.islower():
            own = (chunk[: len(own[0])], *own[1:])  # a unit, perhaps: "5 mW" is not "5 MW"
        folded += own
    return folded


def _is_article(word: str, following: str, shape: str, *, first: bool) -> bool:
    """Whether "a", "an" or "the" before a word is an article: "A" only as the first, and not before what it names.

    "A, C", "A B", "A and B", "option A", "A minor" and "A positive" keep their letter.
    """
    if word == "A":
        return first and shape.startswith("aaa") and following.strip('"').casefold() not in FUNCTION_WORDS | _NAMED
    return word != "a" or shape.startswith("aa")


@lru_cache(maxsize=4096)
def _words_of(chunk: str, shape: str) -> tuple[str, ...] | None:
    """The folded words of a chunk without spaces, given its shape; None if it is not prose."""
    if shape.isalnum():
        return _folded(chunk)
    match = _CHUNK.fullmatch(shape)
    if match is None:
        return None
    kind = 1 if match[1] else 3
    form, body = match[kind], chunk[slice(*match.span(kind))]
    if (match[2] and not body.endswith("s")) or not _JOINT.sub("", form).isalnum():
        return None  # a prime, not the plural's apostrophe; or an operator
    # The shape has one letter for each of the text, so places found in it cut the text.
    cuts = [0, *(edge for joint in _SPLIT.finditer(form) for edge in joint.span()), len(body)]
    pieces = (body[start:end] for start, end in zip(cuts[::2], cuts[1::2], strict=True))
    return tuple(word for piece in pieces for word in _folded(piece))


def _folded(word: str) -> tuple[str, ...]:
    if word in ("a", "A"):
        return ("A",)  # not an article: a capital, so that folding again does not take it for one
    unit = _UNIT.fullmatch(word)
    word = word if unit and unit[1].casefold() not in _CASELESS else word.casefold()
    if not word.isascii():
        return (unicodedata.normalize("NFKC", word),)
    if "," in word and _THOUSANDS.fullmatch(word):
        return (word.replace(",", ""),)
    if word.endswith("n't") and word[:-3].isalpha() and word[:-3] not in _ARTICLES:
        return tuple(_CONTRACTED.get(word, f"{word[:-3]} not").split())
    return (word,)


_BESIDE = re.compile(r" ([-=+*/<>^|&!]+) |(?<=[(\[{,$\u20ac\u00a3\u00a5]) | (?=[)\]}%,])|(?<=^[-+]) ")


def _as_written(plain: str) -> str:
    shape = plain.translate(_SHAPES)
    if not ("aa" in shape or '"' in shape or "'" in shape):
        plain = _BESIDE.sub(lambda match: match[1] or "", plain)
    return plain[:-1] if plain[-1:] == "." and (plain[-2:-1].isalnum() or plain[-2:-1] in ("%", ")")) else plain


# -- Refusals: answers that give no answer -----------------------------------------------------------------------------

_OF = "exact|specific|correct|definite|definitive|reliable|further|more|enough|sufficient"
_NOUN = "(?:answer|question|request|detail)s?|information|data|topic|subject|matter|idea|clue|knowledge|opinion|comment"
_THING = rf"(?:it|this|that|these|you|so|anything|(?:(?:the|an?|any|your|this|that|{_OF}) )?(?:(?:{_OF}) )?(?:{_NOUN}))"
_ACTS = "answer say tell help assist comply comment provide share discuss determine find confirm verify give do respond"
_ACT = f"(?:{'|'.join(_ACTS.split())}|know|identify)"
_REST = (
    rf"(?: (?:(?:(?:to|with|on|about|regarding|for|of) )?{_THING}|to {_ACT}|for (?:sure|certain)"
    r"|with (?:any |absolute )?certainty|at (?:this|the) (?:time|moment|present)|right now|here)){0,4}"
)
_I = r"(?:i|we) (?:(?:am|are|must|really|just|simply|honestly|actually|currently) )?"
_UNABLE = "(?:(?:can ?|could |will |would rather )not|(?:would )?prefer not to|(?:not able|unable|decline|refuse) to)"
_CLAUSE = (
    rf"(?:{_I}{_UNABLE} {_ACT}{_REST}|{_I}do not (?:know|understand|recall|remember){_REST}"
    rf"|{_I}(?:do not have|have no)(?: (?:the|an?|any|this|that|{_OF})){{0,2}} (?:{_NOUN}){_REST}"
    rf"|(?:{_I})?(?:not (?:sure|certain|aware)|unsure|uncertain){_REST}"
    r"|no (?:idea|clue|comment|answer|opinion|information)|unknown|rather not say)"
)
_SORRY = (
    r"(?:(?:(?:i|we) (?:am|are) )?(?:(?:so|very|really|truly) )?sorry|(?:i|we) (?:am|are) afraid"
    r"|(?:i|we) apologi[sz]e|(?:my )?apologies|unfortunately|regrettably)"
)
_BUT = f"(?:{_SORRY} )?(?:(?:but|that) )?(?:as an ai(?: language)?(?: model| assistant)? )?"
_HEDGED = re.compile(rf"{_SORRY} (?:(?:but|that) )?{_CLAUSE}")
_REFUSAL = re.compile(rf"{_SORRY}|{_BUT}{_CLAUSE}(?: (?:{_CLAUSE}|{_SORRY}))?")
_SPELT_OUT = {"i'm": "i am", "we're": "we are", "i'd": "i would", "we'd": "we would"}


@lru_cache(maxsize=1024)
def is_refusal(text: str) -> bool:
    """Whether an answer only refuses to answer: every word is part of a phrase of a closed list.

    A refusal that is missed is one more meaning; an answer taken for a refusal would be lost.
    """
    return len(text) <= 200 and _REFUSAL.fullmatch(_spelt_out(text)) is not None


@lru_cache(maxsize=1024)
def is_hedged(text: str) -> bool:
    """Whether an answer begins with an apology for not answering: its words are mostly the question's."""
    return _HEDGED.match(_spelt_out(text[:200])) is not None


def _spelt_out(text: str) -> str:
    """The words of a text in lower case, without sentence marks and contractions."""
    spelled = [word.strip(".,;!") for word in written(text).casefold().split(" ")]
    return " ".join(_SPELT_OUT.get(word) or " ".join(_folded(word)) for word in spelled).casefold()


# -- Words -------------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"(?<![a0_])[-+]?0+(?:\.0+)?(?![a0_])|[a0_]+")
"""A number with its sign and decimals, or a run of letters and digits, in the shape of a text."""
_THOUSAND = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def words(text: str) -> list[str]:
    """Words of any text: NFKC, lower case, without punctuation, marks of thousands and articles.

    An answer that consists of articles only keeps them. Numbers keep their sign and decimals.
    """
    plain = written(text).casefold()
    if "," in plain:
        plain = _THOUSAND.sub("", plain)
    if "'" in plain:
        plain = plain.replace("can't", "cannot").replace("n't", " not").replace("'s ", " ")
    # The pattern reads the shape and the words come from the text: both have the same length.
    all_words = [plain[slice(*match.span())].lstrip("+") for match in _WORD.finditer(plain.translate(_SHAPES))]
    return [word for word in all_words if word not in _ARTICLES] or all_words


@lru_cache(maxsize=1024)
def word_tuple(text: str) -> tuple[str, ...]:
    """`words` of a text, cached: every answer is compared with several others, by several judges."""
    return tuple(words(text))


def token_f1(answer: str, reference: str) -> float:
    """Token-F1 of two answers: harmonic mean of precision and recall over all words, with multiplicity.

    F1 = 2 P R / (P + R), P = |common| / |answer|, R = |common| / |reference|; in [0, 1], symmetric. Answers without
    words score 1 when equal, else 0. Source: SQuAD evaluation (Rajpurkar et al. 2016). Marks are not words: F1 of "C++"
    and "C#" is 1. `overlap` is what judges use.
    """
    ours, theirs = word_tuple(answer), word_tuple(reference)
    if not ours or not theirs:
        return float(normalise(answer) == normalise(reference))
    return _f1(ours, theirs)


def _f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    return 2 * (Counter(ours) & Counter(theirs)).total() / (len(ours) + len(theirs))


FUNCTION_WORDS = word_set("""
a an the this that these those it its he him his she her they them their we us our you your i me my who whom
whose which what when where why how there here of in on at to from by with for as into onto about over under
between among during through since until upon and or but nor so if then than because while although though
however therefore thus hence is are was were be been being do does did doing done has have had having will would
shall should can could might must not no s t also only just even still too very quite rather really actually
usually generally mostly often sometimes always probably likely perhaps maybe approximately roughly exactly
currently now some any all both each every such same other answer answers cannot unable sorry unfortunately
afraid apologize sure certain unsure verify know think believe help""")
_HEDGES = word_set("""
able access accurate advice ai am apologies assume available based best candidate certainty clear confident
confirm d data definite definitive determine difficult enough exact expert find give guess hard honest honestly i idea
impossible incorrect information judgment knowledge language last ll m may mistaken model moment opinion possible
possibly presumably provide re reliable recall recollection remember say specific speculate suggest tell though
uncertain unclear unknown unlikely likely update ve want wrong yet""")
"""Words of phrases such as "my best guess" and "hard to say": two answers that share one do not agree for it."""


def overlap(question: str, a: str, b: str) -> float:
    """Token-F1 of two answers over their content words, without those of the question. In [0, 1], symmetric.

    If an answer has only words of the question, all content words are compared; if an answer has no content word, all
    words are. Numbers do not count beside other words: the guards compare them, and "5 km" shares its number with
    "5 miles".
    """
    ours, theirs = _said(question, a, b)
    named = [[word for word in own if not word[-1].isdecimal()] for own in (ours, theirs)]
    return _f1(*(named if all(named) else (ours, theirs))) if ours and theirs else token_f1(a, b)


AMOUNTS = word_set("amount total sum price cost costs value average")
"""Words of a number that is an amount, so that its decimals may be rounded: "The price is 3.10"."""
QUANTITIES = AMOUNTS | word_set("""
result number count figure quantity year date equal equals come comes came amounts totals gives get gets final correct
best guess estimate estimated presumably possibly approx around circa""")
"""Words that say no more than that a number follows, beside function words."""


def is_name(word: str) -> bool:
    """Whether a word before a number is not one that only introduces it: "Python" of "Python 3.10"."""
    return len(word) > 1 and word.isalpha() and word.casefold() not in FUNCTION_WORDS | QUANTITIES


def is_echo(question: str, answer: str) -> bool:
    """Whether an answer only repeats the question: it has content words, and all of them stand in the question."""
    said = [word for word in word_tuple(answer) if word not in FUNCTION_WORDS]
    return bool(said) and frozenset(word_tuple(question)).issuperset(said)


def shared(question: str, a: str, b: str) -> float:
    """Jaccard similarity of the sets of words that `overlap` compares, numbers included. In [0, 1], symmetric."""
    ours, theirs = map(frozenset, _said(question, a, b))
    return len(ours & theirs) / len(ours | theirs) if ours and theirs else float(normalise(a) == normalise(b))


def _said(question: str, a: str, b: str) -> tuple[Sequence[str], Sequence[str]]:
    in_question = frozenset(word_tuple(question))
    ours, theirs = ([word for word in word_tuple(text) if word not in FUNCTION_WORDS] for text in (a, b))
    hedges = _HEDGES.intersection(ours, theirs)
    new = [[word for word in own if word not in in_question and word not in hedges] for own in (ours, theirs)]
    return (new[0], new[1]) if all(new) else (ours, theirs) if ours and theirs else (word_tuple(a), word_tuple(b))


_SPELLINGS = """0 zero|1 one first i|2 two second ii|3 three third thirds iii|4 four fourth fourths iv
|5 five fifth fifths v|6 six sixth sixths vi|7 seven seventh sevenths vii|8 eight eighth eighths viii
|9 nine ninth ninths ix|10 ten tenth tenths x|11 eleven eleventh xi|12 twelve twelfth xii dozen
|13 thirteen thirteenth xiii|14 fourteen fourteenth xiv|15 fifteen fifteenth xv|16 sixteen sixteenth xvi
|17 seventeen seventeenth xvii|18 eighteen eighteenth xviii|19 nineteen nineteenth xix|20 twenty twentieth xx
|30 thirty thirtieth xxx|40 forty fortieth|50 fifty fiftieth|60 sixty sixtieth|70 seventy seventieth
|80 eighty eightieth|90 ninety ninetieth|21 xxi|22 xxii|23 xxiii|24 xxiv|half half|100 hundred|1000 thousand
|10^6 million|10^9 billion"""
_ROWS = [row.split() for row in _SPELLINGS.split("|")]
_SPELT = {word: row[0] for row in _ROWS for word in row[1:]}
"""Numbers in words, the same for cardinals, ordinals and Roman numerals."""
CARDINALS = {row[1]: int(row[0]) for row in _ROWS[:28]}
CARDINALS |= {f"{row[1]} {unit[1]}": int(row[0]) + int(unit[0]) for row in _ROWS[20:28] for unit in _ROWS[1:10]}
"""Numbers in words up to ninety-nine, as `normalise` writes them."""


def apart(a: str, b: str) -> bool:
    """Whether each of two answers has a number in words that the other lacks ("Henry VIII" and "Henry VII")."""
    ours, theirs = _spelt_numbers(a), _spelt_numbers(b)
    return bool(ours - theirs and theirs - ours)


@lru_cache(maxsize=1024)
def _spelt_numbers(text: str) -> frozenset[str]:
    """Runs of number words: "twenty-one" is one number, and so is "two thirds"."""
    own = word_tuple(text)
    spelt = (
        _SPELT[word] if word in _SPELT and (word not in ("i", "v", "x") or own[i + 1 : i + 2] in ((), ("of",))) else "|"
        for i, word in enumerate(own)
    )
    return frozenset(run.strip() for run in " ".join(spelt).split("|")) - {""}


def orders_agree(a: str, b: str) -> bool:
    """Whether two answers with the same numbers have them in one order, or beside the same words, each its own.

    "5 apples, 3 pears" is "3 pears, 5 apples", but "1, 2" is not "2, 1", nor "2 km to 5 km" the way back.
    """
    ours, theirs = _labelled_numbers(normalise(a)), _labelled_numbers(normalise(b))
    if [number for number, _ in ours] == [number for number, _ in theirs]:
        return True
    labels = {label for _, label in ours}
    return len(labels) == len(ours) and "" not in labels and sorted(ours) == sorted(theirs)


@lru_cache(maxsize=1024)
def _labelled_numbers(normal: str) -> tuple[tuple[str, str], ...]:
    """The numbers of a text, each with the word behind it, else with the one before."""
    chunks = _unequated(normal)
    bare = [chunk.strip("()\"'.,:;!?") for chunk in chunks]
    numbers = []
    for i, word in enumerate(bare):
        if any(map(str.isdecimal, word)):
            closed = chunks[i] != word or not is_name("".join(bare[i + 1 : i + 2]))
            label = "".join(bare[i - 1 : i] if closed and i else [] if closed else bare[i + 1 : i + 2])
            numbers.append((_digits(word), label if is_name(label) else ""))
    return tuple(numbers)


# -- Differences that common words do not outweigh
# ----------------------------------------------------------------------

SCALES = word_set("hundred thousand million billion trillion dozen lakh crore")  # make another number of that before
_COUNTED = SCALES | word_set("squared cubed factorial half twice double minus negative")
_BOUNDS = word_set("least most than under over below above log ln sqrt")  # ... of that behind
NEGATIONS = word_set("not no never none neither nor without cannot false nobody nothing nowhere")
_DENIALS = NEGATIONS | word_set("except excepting excluding exclude excludes excluded barring lacking lacks")
_NUMBER = re.compile(r"(\d+)(?:\.(\d+))?([^\W\d_]*)")
_OPENING = re.compile(r"""["'(]*(?:\.\.\.?(?!\.))?""")
_EITHER = re.compile(r"(?<=[^\W\d_]{3})[/;](?=[^\W\d_]{3})")
_EQUALS = re.compile(r"(?<![=!<>:])=(?![=>])")
_VARIABLE = re.compile(r"(?<!\S)[^\W\d_] ?= ?(?=[-+]?\d)")
"""The begin of "x = 5"."""
_VERSION = re.compile(r"\d+\.\d*[1-9]0+")


def guards_hold(a: str, b: str) -> bool:
    """Whether two answers have the same numbers, letters that stand alone, marks, and both or neither a negation.

    Marks are the parts that are not prose, with the neighbours of an operator; "=" does not count ("x = 5" is "5").
    Numbers are compared digit by digit ("1.0" = "1"). An equivalence relation on what `normalise` returns.
    """
    return _guarded(normalise(a)) == _guarded(normalise(b))


def contradicts(a: str, b: str) -> bool:
    """Whether two answers differ in what `guards_hold` compares; a number in only one of them is a further detail."""
    ours, theirs = _guarded(normalise(a)), _guarded(normalise(b))
    return ours[::2] != theirs[::2] or bool(ours[1] and theirs[1] and ours[1] != theirs[1])


@lru_cache(maxsize=1024)
def _guarded(normal: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    chunks = _unequated(normal)
    shapes = [chunk.translate(_SHAPES) for chunk in chunks]
    marks, counted, letters, negated = [], [], [], False
    following = ""  # the next word of more than one letter
    # Backwards: whether a letter or a bound counts depends on the word behind it.
    for i in reversed(range(len(chunks))):
        chunk, own = chunks[i], _bracketed(chunks[i], shapes[i])
        if own is None or ("?" in chunk and normal[0].islower()) or (";" in chunk and not _begins_sentence(chunks[0])):
            beside = shapes[max(0, i - 1) : i] + shapes[i + 1 : i + 2]
            if any(map(str.isalnum, chunk)):
                marks.append(chunk.rstrip(".,:") if chunk[-1:] == ";" else chunk.rstrip(".,:;"))
            elif chunk not in ("-", "--", "\u2014", "&") or not all("aa" in shape for shape in beside):
                marks.append(" ".join(chunks[max(0, i - 1) : i + 2]))
            following = chunk
            continue
        for word in reversed(own):
            negated |= word in _DENIALS
            if any(map(str.isdecimal, word)):
                # Behind a name it is a version, and "Python 3.10" is not "Python 3.1".
                counted.append(word if i and is_name(chunks[i - 1]) and _VERSION.fullmatch(word) else _digits(word))
            elif _COUNTED & {word, word.removesuffix("s")} or (
                word in _BOUNDS and (following[:1].isdecimal() or following in _SPELT)
            ):
                counted.append(word)
            elif i and shapes[i - 1].endswith("0") and chunk != word == chunk.casefold():
                counted.append(chunk)  # "MW" of "5 MW", which `normalise` does not fold
            elif len(word) == 1 and word.isascii():
                counts = following[:1].isdecimal() and not (word == "A" and _is_counted(chunks[i + 2 : i + 3]))
                alone = not following or following in FUNCTION_WORDS or counts
                if word != "i" and (alone or following in _NAMED):
                    letters.append(f"{word} {following}" if following in _NAMED else word)  # no initial
                continue
            following = word
            if following == "or" and letters:
                letters.append(word)
    return tuple(sorted(marks)), (*sorted(counted), *letters), negated


def _is_counted(behind: Sequence[str]) -> bool:
    """Whether a noun or unit stands behind a number: then "a" before it is an article ("a 5 km run")."""
    return any(chunk[:2].isalpha() and len(chunk) > 1 and chunk not in FUNCTION_WORDS for chunk in behind)


def _unequated(normal: str) -> list[str]:
    """The chunks of a text between spaces, without "=" and the variable before it."""
    return unspaced(_EQUALS.sub(" ", _VARIABLE.sub("", normal))).split(" ")


def _begins_sentence(first: str) -> bool:
    """Whether a text with this first chunk is prose: "Cat; dog", but neither "cat; rm" nor "SELECT a; DROP b"."""
    return first[:1].isupper() and (len(first) == 1 or not first.isupper())


def _bracketed(chunk: str, shape: str) -> tuple[str, ...] | None:
    """`_words_of` a chunk, with brackets and quotes around words and years counted as prose."""
    if shape.isalnum():
        return _words_of(chunk, shape)
    if "aa" in shape:
        chunk = _OPENING.sub("", chunk, count=1)
        if ".." not in chunk:
            chunk = chunk.rstrip(")\".,:;!?'").removesuffix("-") if "aaa" in shape else chunk.rstrip(')".,:;!?')
    else:
        chunk = chunk.strip("()\".,:;!?'") if shape.strip("()\".,:;!?'") == "0000" else chunk.rstrip(".,:;")
    chunk = chunk if "." in chunk else _EITHER.sub(",", chunk)
    return _words_of(chunk, chunk.translate(_SHAPES))


def _digits(word: str) -> str:
    """A number without the zeros that do not count. No float: all digits do. Others stay: "1.10.0" is not "1.1.0"."""
    number = _NUMBER.fullmatch(word)
    if number is None:
        return word
    whole, part = number[1].lstrip("0") or "0", (number[2] or "").rstrip("0")
    return (f"{whole}.{part}" if part else whole) + number[3]
