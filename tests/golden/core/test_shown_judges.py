"""Decisions of every judge and similarity on the same pairs, the prompts that models get, and odd replies."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableLambda

from guardrail import UsageError, make_judge
from guardrail.judges import (
    BatchJudge,
    EntailmentScores,
    JudgeSpec,
    default_judge,
    from_judge,
    is_canonical_call,
    is_refusal,
    list_entailments,
    list_judges,
    list_similarities,
    make_entailment,
    make_similarity,
    normalise,
    token_f1,
    words,
)
from guardrail.judges.base import Item, judge_batch, left_out_by, merging_of
from guardrail.judges.cache import PairCache, _refusal, cached
from guardrail.judges.chat import _SCHEMA, ChatJudge, judge_messages, read_verdict
from guardrail.judges.json_value import canonical_value, is_structured, read_json
from guardrail.judges.numbers import NumericJudge, parse_number
from guardrail.judges.observation import ObservationJudge, ObservationSimilarity
from guardrail.judges.registry import Registry
from guardrail.judges.text import (
    apart,
    contradicts,
    distinct_answers,
    guards_hold,
    is_echo,
    is_hedged,
    orders_agree,
    overlap,
    shared,
)
from guardrail.judges.tool_call import ToolCallJudge, point_in_time, read_calls
from guardrail.judges.vote import majority
from guardrail.testing import ScriptedChat
from guardrail.types import Bindings, Sample, ToolCall, canonical_calls
from tests.golden.core.rendering import error_of, json_lines, listed, number
from tests.golden.shown import same

QUESTION = "Who wrote Faust in Weimar?"
PAIRS = """Paris | paris.
Paris | The Paris
Goethe | It was Goethe.
Goethe | Johann Wolfgang von Goethe
Goethe wrote it | Schiller wrote it
Faust | Weimar
It is Faust in Weimar | Goethe wrote Faust in Weimar
yes | no
It is true | It is not true
except Tom | Tom
I don't know | I cannot answer that.
I don't know | Paris
Sorry, I do not know who wrote Faust | Goethe wrote Faust
42 | 42.0
42 | forty-two
1,000 | 1000
1000 km | 1000 m
5 km | 5
5 | 5 miles
50% | 0.5
3/4 | 0.75
$5 million | 5 million dollars
buy 5 shares | sell 5 shares
5 apples, 3 pears | 3 pears, 5 apples
1, 2 | 2, 1
Henry VIII | Henry VII
Louis 14 | Louis XIV
C++ | C#
C | C++
x = 5 | 5
x + 5 | x - 5
10 December 1990 | December 10, 1990
Python 3.10 | Python 3.1
1.10 | 1.1
10/12 | 5/6
5 mW | 5 MW
a 5 km run | 5 km run
"quoted" | quoted
Rock-and-roll | rock and roll
can't | cannot
won't go | will not go
option A | option B
A, B | A and B
{"a": 1} | {"a": 1.0}
{"a": [1, 2]} | {"a": [2, 1]}
```json {"a": 1} ``` | {"a": 1}
{"a": 1, "a": 2} | {"a": 2}
[1] | [1, null]
 |
\u03a9 | ohm
\u0130stanbul | istanbul
\uff21\uff22 | AB
x\u00b2 | x^2
5\u00bd | 5.5
my best guess is Rome | my best guess is Lyon
hard to say, Rome | Rome
between 5 and 6 | 5 to 6
about 100 people | 100 persons
-5 | 5
2e3 | 2000
3 x 10^5 | 300000
half | 1/2
Jan 5 | 5 January
the first | the second
12 dozen | 12
5 or 6 | 6 or 5
A minor | a minor
A or B | B or A
A or B | A or C
Cat; dog | dog; Cat
cat; dog | cat; rm
SELECT a; DROP b | select a; drop b
the profit was $5 | $5 profit
profit of the group 5 | profit of 5
in 1990 in May | May in 1990
3.14159265358979 | 3.14159265358980
1990s | 1990
(Paris) | Paris
Paris [1] | Paris
a^2 + b^2 | b^2 + a^2
up to 5 | 5
not only Paris | Paris
"""
COMPARED = [(a.strip(), b.strip()) for a, _, b in (line.partition("|") for line in PAIRS.splitlines())]


def verdict(value: object) -> str:
    return {True: "yes", False: "no", None: "-"}[value]  # type: ignore[index]


def test_decisions_on_pairs() -> None:
    judges = {
        "exact": make_judge("exact"),
        "f1": make_judge("token_f1"),
        ".8": make_judge("token_f1", threshold=0.8),
        "number": make_judge("numeric"),
        "json": make_judge("json"),
    }
    graded = {name: make_similarity(name) for name in ("jaccard", "guarded_jaccard", "rouge_l")}
    lines = ["pair | " + " ".join(f"{name:>6}" for name in [*judges, "F1", *graded])]
    for a, b in COMPARED:
        given = [judge.equivalent(QUESTION, [(a, b)])[0] for judge in judges.values()]
        again = [judge.equivalent(QUESTION, [(b, a)])[0] for judge in judges.values()]
        assert given == again, (a, b)
        rates = [token_f1(a, b), *(rater.similarity(QUESTION, [(a, b)])[0] or 0.0 for rater in graded.values())]
        cells = [f"{verdict(each):>6}" for each in given] + [f"{rate:>6.3g}" for rate in rates]
        lines.append(f"{a!a} | {b!a} | {' '.join(cells)}")
    specs = [f"{name} {json_lines(judge.spec)}" for name, judge in judges.items()]
    specs += [f"{name} {json_lines(similarity.spec)}" for name, similarity in graded.items()]
    names = [list_judges(), list_similarities(), list_entailments()]
    same("core/judged_pairs.txt", "\n".join([*lines, "", *specs, *map(repr, names)]))


def test_what_further_answers_could_join() -> None:
    judges = [make_judge(name) for name in ("exact", "json", "numeric", "token_f1", "tool_call")]
    lines = []
    for a, b in COMPARED:
        can = [verdict(merging(a, b, 3)) for judge in judges if (merging := merging_of(judge)) is not None]
        facts = {
            "guards": guards_hold(a, b), "contradicts": contradicts(a, b), "apart": apart(a, b),
            "orders": orders_agree(a, b), "echo": is_echo(QUESTION, a),
        }  # fmt: skip
        rates = f"{number(overlap(QUESTION, a, b))} {number(shared(QUESTION, a, b))}"
        own = " ".join(name for name, holds in facts.items() if holds)
        lines.append(f"{a!a} | {b!a} | {' '.join(can)} | {rates} | {own}")
    same("core/joined_pairs.txt", "\n".join(lines))


TEXTS = [
    "", " ", "Paris", "The capital, Paris.", "the", "A", "a cat", "A cat", "A and B", "An  old\nman", "Rock'n'roll",
    "dogs' tails", "it's 5 o'clock", "don't", "shan't", "5,000.50", "1,2,3", "e.g. this", "U.S.A.", "x-1", "a/b",
    "twenty-one", '"Yes," he said.', "**bold** and `code`", "*x* is *y", "\u201cquoted\u201d", "\u2018so\u2019",
    "a\u2212b", "x \u2265 5", "5\u00d710\u2075", "H\u2082O", "caf\u00e9", "cafe\u0301", "\u00bd", "3\u00bc cups",
    "soft\u00adhyphen", "5\u200b0", "zero\u200bwidth", "\u4e2d\u6587", "tele\u2122", "f(x) = 2 * x", "a == b",
    "( 5 + 3 ) * 2", "5 mW", "5MW", "21st", "7pm", "Is it?", "ab?", "Really?!", "cat; dog", "Cat; dog", "C#", "100%",
    "$ 5", "a,b", "ab,cd", "#tag", "i", "I", "3.10.0",
]  # fmt: skip
REFUSALS = [
    "I don't know.", "i do not know", "Sorry", "I'm sorry, but I can't help with that.",
    "I am unable to answer this question.", "No idea", "Unknown",
    "As an AI language model, I cannot provide an opinion.", "I'm not sure", "We don't have enough information.",
    "Unfortunately I do not have access to that information", "I don't know, maybe Paris", "not Paris", "No.",
    "I apologise", "Sorry, I don't know who wrote Faust", "I'd rather not say", "I cannot answer this at the moment.",
    "x" * 201, "I do not know" + " " * 187, "I do not know" + " " * 188,
    "I am afraid I do not understand the question", "Rather not say", "I prefer not to comment on this topic here",
]  # fmt: skip


def test_forms_of_texts() -> None:
    forms = [f"{text!a}: {normalise(text)!a} {words(text)!a}" for text in TEXTS]
    refusals = [f"{text[:70]!a}: refusal {is_refusal(text)}, hedged {is_hedged(text)}" for text in REFUSALS]
    distinct = distinct_answers(["Paris", "Lyon", "paris.", "PARIS", "Rome", "lyon", "the Lyon"])
    same("core/texts.txt", "\n".join([*forms, "", *refusals, "", repr(distinct)]))


NUMBERS = [
    "5", "-5", "+5", "5.0", "0.5", ".5", "007", "1,000", "1,00", "1 000", "12,345,678.9", "1e3", "2E-3", "3 x 10^5",
    "1/2", "1 1/2", "3/0", "5/3", "2 5/3", "50%", "50 percent", "five", "twenty-one", "one hundred", "ninety-nine",
    "a dozen", "$5", "US$5", "5 $", "$5m", "$5 million", "5 million dollars", "5 million", "EUR 5", "5 euros", "5 km",
    "5km", "5 kilometers", "5 in", "5s", "5 m/s", "5 kg of rice", "5 apples and 3 pears", "5 (or so)", "5, I think",
    "x = 5", "the answer is 5", "total: 5", "It comes to 5", "2 + 3 = 5", "5!", "5 squared", "sqrt 5", "Windows 7",
    "Python 3.10", "version 1.10", "1.10", "The price is 3.10", "10/12", "31/12", "Jan 5", "December 10, 1990",
    "10 December", "in the year 1990", "about 5", "at least 5", "5 to 6", "5-6", "5:30", "5 pm", "21st", "A 5",
    "A 5 km run", "plan A 5", "\\frac{1}{2}", "\\boxed{42}", "$42$", "\\$5", "5\u00b0C", "5\u20ac", "\u20ac5",
    "minus 5", "half", "\u00bd", "5 dozen", "5 mW", "5 MW", "5 minutes ago", "5 in the morning", "five apples", "",
    "none", "5 5", "profit of $5", "1234567890.123456789", "0.000123456789", "5 % of it", "100 degrees", "5'",
    "5 yrs", "5 lbs", "5 Feet", "5 per cent", "#5", "(5)",
]  # fmt: skip


def test_numbers() -> None:
    rows = []
    for text in NUMBERS:
        read = parse_number(text)
        if read is None:
            rows.append(f"{text!a}: none")
            continue
        facts = {"label": read.label, "rest": read.rest, "needs_label": read.needs_label, "lead": read.lead,
                 "spelling": read.spelling, "percent": read.percent}  # fmt: skip
        own = ", ".join(f"{name} {value!a}" for name, value in facts.items() if value)
        rounded = "" if read.rounded == read.value else f" (compared as {read.rounded})"
        rows.append(f"{text!a}: {read.value}{rounded}{f'; {own}' if own else ''}")
    same("core/numbers.txt", "\n".join(rows))


# -- JSON and tool calls -----------------------------------------------------------------------------------------------


def test_json_values() -> None:
    texts = [
        '{"b": 1.50, "a": [true, null, "x"]}', "1e400", "-0.0", "0.1", "10", "100e-1", '"text"', "[]", "{}", "NaN",
        "[1, Infinity]", '{"a": 1, "a": 1}', "", "{", "[" * 200 + "]" * 200, "```json\n[1]\n```", "So: ``` [1] ```",
        "```\n[1]\n``` done", "``` a ``` ``` [1] ```", "1e999999999999999999999",
    ]  # fmt: skip
    rows = [(f"{text[:40]!a}", error_of(lambda text=text: canonical_value(read_json(text)))) for text in texts]  # type: ignore[misc]
    formats = [None, Bindings(), *(Bindings(response_format={"type": kind}) for kind in ("text", "json_object"))]
    structured = [(repr(each), f"{is_structured(each)}, judged by {default_judge(each).spec.name}") for each in formats]
    same("core/json_values.txt", f"{listed(rows)}\n\n{listed(structured)}")


def one_call(**arguments: Any) -> str:
    return canonical_calls([ToolCall(name="pay", arguments=arguments)])


CALLS = [
    (one_call(to="bob", amount=5), one_call(to="bob", amount=5.0)),
    (one_call(to="bob", amount=5), one_call(to="bob", amount="5.00")),
    (one_call(to="bob", amount="1,000"), one_call(to="bob", amount=1000)),
    (one_call(to="bob", amount="007"), one_call(to="bob", amount="7")),
    (one_call(to="bob", amount=0.1234), one_call(to="bob", amount=0.1229)),
    (one_call(to="bob", on="2024-12-01"), one_call(to="bob", on="01.12.2024")),
    (one_call(to="bob", on="03/04/2024"), one_call(to="bob", on="04/03/2024")),
    (one_call(to="bob", memo="The rent."), one_call(to="bob", memo="the  rent")),
    (one_call(to="bob", memo='say "x"'), one_call(to="bob", memo="say 'x';")),
    (one_call(to="bob", tags=["a", "b"]), one_call(to="bob", tags=["b", "a"])),
    (one_call(to="bob", deep={"tags": [1, [2]]}), one_call(to="bob", deep={"tags": [[2], 1]})),
    (one_call(to="bob", memo="x"), one_call(to="bob", memo="y")),
    (one_call(to="bob"), one_call(to="eve")),
    ('{"name": "pay", "arguments": {"to": "bob"}, "id": "7", "type": "x"}', one_call(to="bob")),
    ('{"name": "pay", "arguments": {"to": "bob"}, "why": 1}', one_call(to="bob")),
    ('{"name": "pay", "arguments": {"to": "bob", "to": "eve"}}', one_call(to="eve")),
    (one_call(to="bob"), "Paid bob"),
    ("Paid bob", "paid Bob."),
    (
        canonical_calls([ToolCall(name="a", arguments={}), ToolCall(name="b", arguments={})]),
        canonical_calls([ToolCall(name="b", arguments={}), ToolCall(name="a", arguments={})]),
    ),
]


def test_tool_calls() -> None:
    judges = {
        "plain": ToolCallJudge(),
        "numbers": ToolCallJudge(numbers=True),
        "decimals": ToolCallJudge(decimals=2),
        "dates": ToolCallJudge(dates=["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y"]),
        "text": ToolCallJudge(text=True),
        "unordered": ToolCallJudge(unordered=["tags"]),
        "of pay": ToolCallJudge(arguments={"pay": ["to"]}),
        "of all": ToolCallJudge(arguments=["to", "amount"]),
        "of others": ToolCallJudge(arguments={"*": ["to"], "b": []}),
        "any order": ToolCallJudge(any_order=True),
    }
    lines = [" ".join(f"{verdict(judge.equivalent('', [pair])[0]):>3}" for judge in judges.values())
             + f"  {pair[0]} | {pair[1]}" for pair in CALLS]  # fmt: skip
    rows = [
        (name, f"{json_lines(judge.spec)} {judge.judges_tool_calls} {judge.identity(CALLS[8][0])}")
        for name, judge in judges.items()
    ]
    left = [(name, repr(left_out_by(judge, one_call(to="bob", memo="x", tags=[])))) for name, judge in judges.items()]
    tools = Bindings(tools=tuple(
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in {
            "pay": {"properties": {"to": {}, "amount": {}}},
            "ask": {"properties": {"whom": {}}},
            "any": {"properties": {}, "additionalProperties": True},
        }.items()
    ))  # fmt: skip
    checks: dict[str, Callable[[], object]] = {
        "a text for dates": lambda: ToolCallJudge(dates="%Y"),
        "a text for unordered": lambda: ToolCallJudge(unordered="tags"),
        "a text for arguments": lambda: ToolCallJudge(arguments="to"),
        "13 decimals": lambda: ToolCallJudge(decimals=13),
        "-1 decimals": lambda: ToolCallJudge(decimals=-1),
        "a date without format": lambda: ToolCallJudge(dates=["day"]),
        "known arguments": lambda: ToolCallJudge(arguments={"pay": ["to"]}).check(tools),
        "without bindings": lambda: ToolCallJudge(arguments={"buy": ["to"]}).check(None),
        "without tools": lambda: ToolCallJudge(arguments={"buy": ["to"]}).check(Bindings()),
        "all arguments": lambda: ToolCallJudge().check(tools),
        "an unknown tool": lambda: ToolCallJudge(arguments={"buy": ["to"]}).check(tools),
        "an unknown argument": lambda: ToolCallJudge(arguments={"pay": ["amont"]}).check(tools),
        "of other tools": lambda: ToolCallJudge(arguments={"pay": ["to"], "any": [], "*": ["who"]}).check(tools),
        "of any tool": lambda: ToolCallJudge(arguments={"any": ["x"]}).check(tools),
        "of all tools": lambda: ToolCallJudge(arguments=["whom", "to"]).check(tools),
    }
    read = [
        f"{text[:60]!a}: {read_calls(text)} canonical {is_canonical_call(text)}"
        for text in (CALLS[0][0], "[]", "[1]", '{"name": 1, "arguments": {}}', '[{"arguments":{},"name":"a"}] ', "x",
                     '[{"arguments":{"a":' + "[" * 120 + "]" * 120 + '},"name":"a"}]')
    ]  # fmt: skip
    moments = [f"{text}: {point_in_time(text, ['%Y-%m-%d', '%d.%m.%Y', '%Y-%m-%dT%H:%M%z'])}" for text in (
        "2024-02-29", "2023-02-29", "29.2.2024", "2024-01-01T00:30+01:00", "0001-01-01T00:30+01:00")]  # fmt: skip
    same(
        "core/tool_calls.txt",
        "\n".join([" ".join(judges), *lines, "", listed(rows), "", listed(left), "",
                   listed((name, error_of(check)) for name, check in checks.items()), "", *read, "", *moments]),
    )  # fmt: skip


def test_observations() -> None:
    def run(call: ToolCall) -> Any:
        if call.name == "fail":
            raise LookupError(f"no {call.arguments['of']}")
        odd = object() if call.arguments.get("odd") else "x "
        return {"sorted": sorted(call.arguments["of"]), "n": 1.0, "odd": odd}

    def of(name: str, *values: int, **more: Any) -> str:
        return canonical_calls([ToolCall(name=name, arguments={"of": list(values), **more})])

    two = canonical_calls([ToolCall(name="sort", arguments={"of": [1]}), ToolCall(name="sort", arguments={"of": [2]})])
    live = ObservationJudge(run, tools={"sort", "fail"}, version="1")
    judges = {
        "live": live,
        "errors": ObservationJudge(run, tools=["sort", "fail"], version="2", errors=True),
        "recorded": ObservationJudge(
            observations={of("sort", 1, 2): " a ", of("buy", 1): "a", two: [1, 2]}, version="3"
        ),
        "both": ObservationJudge(run, tools={"sort"}, observations={of("buy", 1): {"n": 1}}, version="4"),
        "canonical": ObservationJudge(run, tools={"sort"}, version="5", canonical=lambda seen: seen["n"]),
    }
    pairs = [
        (of("sort", 1, 2), of("sort", 2, 1)), (of("sort", 1), of("sort", 2)), (of("sort", 1), of("buy", 1)),
        (of("sort", 1, 2), of("buy", 1)), (of("fail", 1), of("fail", 1)), (of("fail", 1), of("fail", 2)),
        (two, of("sort", 1)), (two, two), (of("sort", 1, odd=True), of("sort", 1)), (of("sort", 1), "a text"),
        ("A text.", "a text"), ("a", "b"),
    ]  # fmt: skip
    rows = []
    for a, b in pairs:
        own = [verdict(judge.equivalent("", [(a, b)])[0]) for judge in judges.values()]
        alike = ObservationSimilarity(live).similarity("", [(a, b)])[0]
        rows.append(f"{' '.join(f'{each:>3}' for each in own)} {'-' if alike is None else number(alike):>8}  {a} | {b}")
    specs = [json_lines(judge.spec) for judge in judges.values()] + [json_lines(ObservationSimilarity(live).spec)]
    identities = [judges["live"].identity(text) for text in (of("sort", 2, 1), "The  text.")]
    wrong: dict[str, Callable[[], object]] = {
        "a text for tools": lambda: ObservationJudge(run, tools="sort", version="1"),
        "nothing to observe": lambda: ObservationJudge(version="1"),
        "no safe tool": lambda: ObservationJudge(run, version="1"),
    }
    refusals = listed((name, error_of(make)) for name, make in wrong.items())
    same("core/observations.txt", "\n".join([" ".join(judges), *rows, *specs, *identities, refusals]))


# -- Judges that ask a model -------------------------------------------------------------------------------------------


class Structured(ScriptedChat):
    """A scripted model with structured output: its answers become values, "!" an error."""

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        values: dict[str, Any] = {"yes": {"same": True}, "no": {"same": False}, "odd": {"same": "yes"}, "none": None}

        def parsed(message: AIMessage) -> Any:
            if message.text == "!":
                raise ValueError(f"cannot read {message.text}")
            return values.get(message.text, message.text)

        self.__dict__["schemas"] = [*self.__dict__.get("schemas", []), schema]
        return self | RunnableLambda(parsed)


class Bare(ScriptedChat):
    """A scripted model without structured output."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def said(messages: Sequence[BaseMessage]) -> str:
    return "\n".join(f"[{message.type}]\n{message.text}" for message in messages)


def test_a_chat_model_as_judge(caplog: Any) -> None:
    pairs = [("Paris", "Lyon"), ("Lyon", "Paris"), ("b", "a"), ("c", "d"), ("e", "f"), ("g", "h")]

    def human(a: str, b: str) -> str:
        return judge_messages("Capital?", min(a, b), max(a, b), text=True)[1].text

    replies = dict(zip((human(a, b) for a, b in pairs[1:]), ("Yes.", "NO", "maybe", "yes, they do", ""), strict=True))
    script: dict[str, Any] = {question: [reply] for question, reply in replies.items()}
    text = ChatJudge(ScriptedChat(script=script), reply="text")
    plain = ChatJudge(Bare(default=["Yes"]))
    failing = ChatJudge(ScriptedChat(script={**script, human("c", "d"): [RuntimeError("no GPU left")]}), reply="text")
    objects = ["yes", "no", "odd", "none", "!"]
    values = {question: [reply] for question, reply in zip(replies, objects, strict=True)}
    structured = ChatJudge(Structured(script=values))
    quiet = ChatJudge(Structured(script=script), reply="text", max_concurrency=1)
    rows = [
        ("text", f"{text.equivalent('Capital?', pairs)} {json_lines(text.spec)}"),
        ("failing", f"{failing.equivalent('Capital?', pairs)} {json_lines(failing.spec)}"),
        ("structured", f"{structured.equivalent('Capital?', pairs)} {json_lines(structured.spec)}"),
        ("text by choice", f"{quiet.equivalent('Capital?', pairs)} {json_lines(quiet.spec)}"),
        ("a model without structured output", f"{plain.equivalent('', pairs[:1])} {json_lines(plain.spec)}"),
        ("no calls at once", error_of(lambda: ChatJudge(ScriptedChat(), max_concurrency=0))),
        ("no structured output", error_of(lambda: ChatJudge(Bare(), reply="structured"))),
    ]
    odd: list[Any] = ["yes", " No! ", "yes?", "no...", "", None, 1]
    odd += [{"same": True}, {"same": None}, {"same": 1}, {"other": True}]
    read = [f"{reply!r}: {read_verdict(reply)}" for reply in odd]
    schema = Structured()
    ChatJudge(schema)
    prompts = [said(judge_messages('Say "x"\n\u4e2d', "a", 'b"', text=text)) for text in (True, False)]
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("guardrail.judges")]
    same("core/chat_judge.txt", "\n\n".join([*prompts, listed(rows), "\n".join(read), "\n".join(logged)]))


class Letters:
    """An entailment model by shares of letters."""

    spec = JudgeSpec(name="letters", version=1, params={})

    def entailment_batch(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        shares = [len(set(a) & set(b)) / len(set(a) | set(b) or {""}) for _, a, b in items]
        return [None if share == 0 else EntailmentScores(share, 1 - share) for share in shares]


class Counting(BatchJudge):
    """A judge of equal first letters that counts the pairs it was asked about."""

    spec = JudgeSpec(name="first", version=1, params={})

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.asked += pairs
        return [None if "?" in a + b else a[:1] == b[:1] for a, b in pairs]


class Rates:
    """A similarity with odd ratings."""

    spec = JudgeSpec(name="rates", version=1, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        return [{"half": 0.5, "two": 2, "text": "x", "none": None}[a] for a, _ in pairs]


def test_a_cache_of_pairs(tmp_path: Path) -> None:
    cache, judge = PairCache(tmp_path / "sub" / "pairs.sqlite"), Counting()
    stored = cached(judge, cache)
    pairs = [("Paris", "Pisa"), ("Pisa", "Paris"), ("Rome", "Lyon"), ("?", "x"), ("Paris", "Pisa")]
    first, asked = stored.equivalent("q", pairs), len(judge.asked)
    rows = [
        ("first", f"{first}, asked {asked}, stored {len(cache)}"),
        ("again", f"{stored.equivalent('q', pairs)}, asked {len(judge.asked)}, stored {len(cache)}"),
        ("another question", f"{stored.equivalent('q2', pairs[:1])}, asked {len(judge.asked)}, stored {len(cache)}"),
        ("facts", f"{stored.spec == judge.spec} {stored.is_slow} {stored.judges_tool_calls} {stored.can_merge} "
                  f"{stored.identity(' a  b ')}"),
        ("of exact answers", f"{(exact := cached(make_judge('exact'), cache)).equivalent('', [('A b', 'a  b')])} "
                             f"{exact.is_slow} {exact.can_merge is None} {exact.identity('The Cat')}"),
    ]  # fmt: skip
    rates = cached(Rates(), cache)
    odd = [("half", "b"), ("two", "b"), ("text", "b"), ("none", "b")]
    rows += [
        ("similarity", f"{rates.similarity('q', odd)}, stored {len(cache)}, stable {rates.is_stable}"),
        ("of a similarity", f"{(alike := cached(make_similarity('jaccard'), cache)).similarity('', [('a b', 'a c')])} "
                            f"{alike.is_stable}"),
    ]  # fmt: skip
    model = cached(Letters(), cache)
    scores = model.entailment_batch([("", "ab", "abc"), ("", "abc", "ab"), ("", "ab", "xy")])
    rows += [("entailment", f"{scores}, stored {len(cache)}")]
    with sqlite3.connect(cache.path) as connection:
        stored_rows = connection.execute("SELECT key, value FROM verdicts")
        digests = sorted((key.hex()[:12], value) for key, value in stored_rows)
        connection.execute("UPDATE verdicts SET value = 'torn'")
    connection.close()
    (tmp_path / "text").write_text("not a database, but a text that is long enough to be read as one " * 20)
    other, later = tmp_path / "other.sqlite", tmp_path / "later.sqlite"
    for path, statement in ((other, "CREATE TABLE t (x)"), (later, "PRAGMA user_version=7")):
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.close()
    wrong: dict[str, Callable[[], object]] = {
        "a torn verdict": lambda: stored.equivalent("q", pairs),
        "a text": lambda: PairCache(tmp_path / "text"),
        "a folder": lambda: PairCache(tmp_path),
        "another database": lambda: PairCache(other),
        "a later version": lambda: PairCache(later),
        "below a file": lambda: PairCache(tmp_path / "text" / "pairs.sqlite"),
        "none of the three": lambda: cached(object(), cache),  # type: ignore[call-overload]
    }
    refusals = listed((name, error_of(make).replace(str(tmp_path), "FOLDER")) for name, make in wrong.items())
    same("core/pair_cache.txt", "\n\n".join([listed(rows), "\n".join(map(repr, digests)), refusals]))


def test_judges_by_name() -> None:
    class Two(BatchJudge):
        spec = JudgeSpec(name="two", version=1, params={})

        def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
            return [question == a for question, a, _ in items]

    similar = from_judge(make_judge("exact"))
    two, exact = Two(), similar.similarity("", [("A", "a"), ("A", "b")])
    own = [two.is_slow, two.can_merge, two.judges_tool_calls, two.left_out("x"), two.identity(" a  b")]
    likewise = [similar.is_slow, similar.is_stable, similar.judges_tool_calls, similar.identity("The a")]
    facts = [
        ("a judge with defaults", f"{own} {two.equivalent('a', [('a', 'b'), ('b', 'a')])}"),
        ("several questions", f"{judge_batch(Counting(), [('q', 'a', 'b'), ('r', 'a', 'a'), ('q', 'c', 'c')])}"),
        ("a judge as similarity", f"{exact} {json_lines(similar.spec)} {likewise}"),
        ("by its spec", repr(make_similarity("from_judge", **similar.spec.params).spec == similar.spec)),
        ("without an answer", repr(from_judge(Counting()).similarity("", [("?", "b"), ("a", "a")]))),
    ]
    wrong: dict[str, Callable[[], object]] = {
        "unknown": lambda: make_judge("exactly"),
        "unknown similarity": lambda: make_similarity("cosine"),
        "unknown entailment model": lambda: make_entailment("mnli"),
        "an unknown parameter": lambda: make_judge("exact", threshold=0.5),
        "a threshold of 0": lambda: make_judge("token_f1", threshold=0),
        "a threshold above 1": lambda: make_judge("token_f1", threshold=1.5),
        "too few answers": lambda: judge_batch(Short(), [("q", "a", "b"), ("q", "a", "c")]),
    }
    votes = [
        ("none", majority([])),
        ("the most frequent", majority(texts("Lyon", "Paris", "paris", "Lyon.", "The Paris"))),
        ("a tie", majority(texts("b", "a", "a", "b"))),
        ("numbers", majority(texts("7", "18", "18.0", "+18", "18.00", "007"))),
        ("calls", majority([Sample(text="x", tool_calls=(calling(n),)) for n in (1, 2, 2.0)])),
    ]
    same(
        "core/judges_by_name.txt",
        "\n\n".join([
            listed(facts),
            listed((name, error_of(make)) for name, make in wrong.items()),
            listed((name, repr(place)) for name, place in votes),
        ]),
    )  # fmt: skip
    assert issubclass(UsageError, ValueError)


def texts(*answers: str) -> list[Sample]:
    return [Sample(text=answer) for answer in answers]


def calling(n: float) -> ToolCall:
    return ToolCall(name="a", arguments={"n": n})


class Short(Counting):
    """A judge that leaves one answer out."""

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return super().equivalent(question, pairs)[1:]


def test_packages_that_offer_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("mine", "guardrail.judges.lexical:ExactJudge", "g"),
        EntryPoint("gone", "guardrail.judges.lexical:NoSuchJudge", "g"),
        EntryPoint("lacking", "tests.golden.no_such_module:Judge", "g"),
        EntryPoint("needing", "no_such_package_at_all:Judge [local]", "g"),
    ]
    monkeypatch.setattr("guardrail.judges.registry.entry_points", lambda group: entries)
    registry: Registry[Any] = Registry("judge", "g", {"own": NumericJudge})
    rows = [("names", repr(registry.names()))]
    for name in registry.names():
        rows.append((name, error_of(lambda name=name: registry.make(name).spec.name).partition(", at ")[0]))  # type: ignore[misc]
    monkeypatch.setattr("guardrail.judges.registry.entry_points", lambda group: [])
    rows.append(("none", error_of(lambda: Registry("judge", "g", {}).make("x"))))
    same("core/offered_judges.txt", listed(rows))


def test_faults_of_a_pair_cache(tmp_path: Path) -> None:
    path = tmp_path / "pairs.sqlite"
    rows = []
    names = "NOTADB BUSY LOCKED_SHAREDCACHE CANTOPEN READONLY_DIRECTORY FULL IOERR_READ CORRUPT"
    for kind in (*(f"SQLITE_{name}" for name in names.split()), None):
        error = sqlite3.DatabaseError("what SQLite says")
        if kind is not None:
            error.sqlite_errorname = kind
        rows.append((str(kind), str(_refusal(path, error)).replace(str(tmp_path), "FOLDER")))
    asked: list[int] = []

    class Sized(Counting):
        def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
            asked.append(len(items))
            return [True] * len(items)

    many = [("", str(place), "x") for place in range(1030)]
    stored = cached(Sized(), PairCache(path))
    rows.append(
        ("slices", f"{len(stored.equivalent_batch(many))} {asked} {len(stored.equivalent_batch(many))} {asked}")
    )
    same("core/pair_cache_faults.txt", listed(rows))


def test_prompts_of_a_structured_judge() -> None:
    seen: list[str] = []

    class Seeing(Structured):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            own = {name: value for name, value in sorted(kwargs.items()) if name in ("temperature", "max_tokens")}
            seen.append(f"{said(messages)}\n{own}")
            return super()._generate(messages, stop, run_manager, **kwargs)

    structured = ChatJudge(Seeing(default=["yes"]))
    text = ChatJudge(Seeing(default=["yes"]), reply="text")
    rows = [f"{judge.equivalent('Capital?', [('b', 'a'), ('a', 'b')])}" for judge in (structured, text)]
    schema = structured._model.model_copy()
    assert not schema.__dict__.get("schemas"), "the model that was given is not changed"
    same("core/chat_judge_prompts.txt", "\n\n".join([*seen, *rows, json_lines(_SCHEMA)]))
