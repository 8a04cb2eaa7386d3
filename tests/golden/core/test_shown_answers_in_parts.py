"""Answers in parts (JSON fields, sentences, claims) and structured output: parts, verdicts, messages and refusals."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field

from guardrail import AbstainedError, Guardrail, Partial, Verdict, make_judge, scorer
from guardrail.bindings import bindings_for
from guardrail.errors import ArtifactMismatchError
from guardrail.judges import EntailmentScores, JudgeSpec
from guardrail.judges.base import Item
from guardrail.judges.json_value import read_json
from guardrail.parts.claims import CLAIMS, SUPPORTED_CLAIMS, claim_spec
from guardrail.parts.claims import question as claims_question
from guardrail.parts.decide import released_call, undivided
from guardrail.parts.gate import kept, mean_uncertainty, measured
from guardrail.parts.json_fields import (
    ABSENT,
    DateJudge,
    field_judges,
    json_spec,
    json_text,
    kept_value,
    leaf_fields,
    placed,
    schema_of,
)
from guardrail.parts.measure import (
    compare_with_gold,
    estimator_of,
    follow_up_of,
    parts_estimator,
    parts_measure,
    split_and_measure,
)
from guardrail.parts.part import Part, PartVerdict
from guardrail.parts.partial import is_partial, partial_of
from guardrail.parts.release import release
from guardrail.parts.sentences import SUPPORTED, question, sentence_spec, spans, support_question
from guardrail.parts.spec import PartScores, PartsGate, PartsSpec, Procedure, too_many
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings, Missing, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from tests.golden.core.rendering import error_of, json_lines, listed
from tests.golden.core.test_shown_verdicts import clean, message_of, outcome
from tests.golden.shown import same


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 1.0)


class Line(BaseModel):
    sku: str
    price: float


class Invoice(BaseModel):
    """An invoice."""

    number: str
    total: float
    due: str | None = None
    tags: list[str] = Field(default=[], max_length=3)
    lines: list[Line] = Field(default=[], max_length=2)


ASKED = "Invoice?"
FORMAT = bindings_for(response_format=Invoice)
CALL = bindings_for([Invoice], tool_choice="Invoice")
FULL = {
    "number": "A-1",
    "total": 12.50,
    "due": "2020-01-02",
    "tags": ["x", "y", "x"],
    "lines": [{"sku": "a", "price": 1}, {"sku": "b", "price": 2.0}],
}
SPEC = json_spec(FORMAT, cap=12, keys={"/lines": "sku"}, judges={"/due": DateJudge(["%Y-%m-%d", "%d.%m.%Y"])})


def texts(*changes: Mapping[str, Any] | str) -> list[str]:
    return [change if isinstance(change, str) else json.dumps({**FULL, **change}) for change in changes]


def drawn(primary: str, samples: Sequence[str], **more: Any) -> SampleSet:
    return SampleSet(
        question=ASKED, primary=Sample(text=primary), samples=tuple(Sample(text=text) for text in samples), **more
    )


def parts_of(found: tuple[Part, ...] | Missing) -> str:
    if isinstance(found, Missing):
        return f"  {found.reason.value}: {found.detail}"
    return "\n".join(
        f"  {part.place or '(all)'} {part.text!r} {part.uncertainty}{' absent' * part.absent} {part.detail}".rstrip()
        for part in found
    )


class Odd:
    """A judge that gives no verdict, a wrong one, or fails."""

    spec = JudgeSpec(name="odd", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        if any("boom" in a + b for a, b in pairs):
            raise RuntimeError("boom")
        return [None if "?" in a + b else "yes" if "!" in a + b else False for a, b in pairs]


SAMPLES = texts(
    {},
    {"total": 13, "due": "02.01.2020", "tags": ["y", "x"]},
    {"number": "A-2", "lines": [{"sku": "b", "price": 2}, {"sku": "a", "price": 9}]},
    "not JSON",
)


def test_fields_of_json() -> None:
    plain = json_spec(FORMAT, cap=12)
    odd = json_spec(cap=9, judges={"/a": Odd(), "/b/*": Odd()}, optional=[])
    other: dict[str, tuple[PartsSpec, str, Sequence[str], Mapping[str, Any]]] = {
        "keys and a judge": (SPEC, texts({})[0], SAMPLES, {}),
        "by value": (plain, texts({})[0], SAMPLES, {}),
        "fields left out": (plain, '{"number": "A-1", "total": 1e1}', ['{"number": "A-1", "total": 10}'] * 2, {}),
        "lists": (json_spec(cap=9), '[1, 1.0, "1", null, [], {}]', ["[1, 2]", "[]", "[[], 1]"], {}),
        "scalars in a list": (json_spec(cap=9), '{"a": [1, 1.0, true], "b": []}', ['{"a": [1, true], "b": []}'], {}),
        "a scalar": (json_spec(cap=9), '"x"', ['"x"', '"y"'], {}),
        "twins of a key": (SPEC, texts({"lines": [{"sku": "a", "price": 1}] * 2})[0], SAMPLES, {}),
        "escaped names": (json_spec(cap=9), '{"a/b": 1, "c~d": 2}', ['{"a/b": 1, "c~d": 3}'], {}),
        "no verdict": (odd, '{"a": "x", "b": ["y", "z"]}', ['{"a": "?", "b": ["y", "?"]}', '{"b": ["y"]}'], {}),
        "a wrong verdict": (odd, '{"a": "x", "b": []}', ['{"a": "!", "b": []}'], {}),
        "a judge that fails": (odd, '{"a": "x", "b": []}', ['{"a": "boom", "b": []}'], {}),
        "a judge that fails on items": (odd, '{"a": "x", "b": ["boom", "y"]}', ['{"a": "x"}'], {}),
        "too many items": (odd, json.dumps({"a": "x", "b": list(map(str, range(101)))}), ['{"a": "x", "b": []}'], {}),
        "too many in a sample": (odd, '{"a": "x", "b": ["1"]}', [json.dumps({"b": list(map(str, range(101)))})], {}),
        "not JSON": (plain, "An invoice.", SAMPLES, {}),
        "a field twice": (plain, '{"a": 1, "a": 2}', SAMPLES, {}),
        "broken text": (plain, '{"a": "\\ud83d"}', SAMPLES, {}),
        "no samples": (plain, texts({})[0], [], {}),
        "a failure": (plain, texts({})[0], SAMPLES, {"problem": Unmeasured.MODEL_FAILED, "problem_detail": "down"}),
    }  # fmt: skip
    blocks = []
    for name, (spec, primary, samples, more) in other.items():
        judges = {path: Odd() for path in spec.judges if spec is odd}
        blocks.append(
            f"{name}\n{parts_of(split_and_measure(drawn(primary, samples, **more), spec, judges=judges))}"[:4000]
        )
    calls = SampleSet(
        question=ASKED,
        primary=Sample(text="so", tool_calls=(ToolCall(name="Invoice", arguments=dict(FULL)),)),
        samples=(
            Sample(text="", tool_calls=(ToolCall(name="Invoice", arguments={**FULL, "total": 3}),)),
            Sample(text="", tool_calls=(ToolCall(name="Other", arguments=dict(FULL)),)),
        ),
    )
    blocks.append(f"a call\n{parts_of(split_and_measure(calls, SPEC))}")
    plan = SamplingPlan(n=5, cut_off="abstain")
    blocks.append(f"too few samples\n{parts_of(split_and_measure(calls, SPEC, plan))}")
    cut = calls.model_copy(update={"primary": Sample(text="{", finish_reason="length")})
    blocks.append(f"cut off\n{parts_of(split_and_measure(cut, SPEC, plan))}")
    same("core/json_fields.txt", "\n\n".join(blocks))


SPECS: dict[str, Callable[[], object]] = {
    "of a format": lambda: json_spec(FORMAT, cap=12),
    "of a call": lambda: json_spec(CALL),
    "with judges": lambda: json_spec(FORMAT, judges={"/tags/*": "exact", "/due": "date", "/total": "numeric"}, cap=3),
    "a schema": lambda: json_spec(schema={"properties": {"a": {}, "b": {"type": "array", "items": {}, "maxItems": 4}}}),
    "optional by name": lambda: json_spec(cap=3, optional=["/b", "/a"], keys={"/x": "id"}),
    "no schema": lambda: json_spec(),
    "lists without an end": lambda: json_spec(schema={"properties": {"a": {"type": "array", "items": {}}}}),
    "an unknown judge": lambda: json_spec(cap=3, judges={"/a": "exactly"}),
    "a text for formats": lambda: DateJudge("%Y"),
    "no format": lambda: DateJudge(["day"]),
    "judges of other fields": lambda: field_judges(SPEC, {"/total": make_judge("exact")}),
    "another judge": lambda: field_judges(SPEC, {"/due": make_judge("exact")}),
    "a judge without a name": lambda: field_judges(json_spec(cap=3, judges={"/a": Odd()})),
    "a judge that is given": lambda: sorted(field_judges(json_spec(cap=3, judges={"/a": Odd()}), {"/a": Odd()})),
    "sentences": lambda: sentence_spec(5),
    "sentences by a model": lambda: sentence_spec(5, entailment=Entails(), least=0.9),
    "least of 0": lambda: sentence_spec(5, entailment=Entails(), least=0),
    "claims": lambda: claim_spec(4),
    "claims by a model": lambda: claim_spec(4, entailment=Entails()),
    "a cap of 0": lambda: sentence_spec(0),
}


class Entails:
    """An entailment model by words in common."""

    spec = JudgeSpec(name="words", version=1, params={})

    def entailment_batch(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        if any("boom" in premise for _, premise, _ in items):
            raise RuntimeError("boom")
        return [
            None
            if "?" in premise
            else EntailmentScores(len(set(premise.split()) & set(piece.split())) / len(piece.split()))
            for _, premise, piece in items
        ]


def test_specifications_of_parts() -> None:
    rows = []
    for name, make in SPECS.items():
        try:
            made = make()
        except Exception:
            rows.append((name, error_of(make)))
        else:
            rows.append((name, json_lines(made) if isinstance(made, PartsSpec) else repr(made)))
    schema: dict[str, Any] = {
        "properties": {
            "a": {"$ref": "#/$defs/A"},
            "b": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]},
            "c": {"type": "array", "maxItems": 3, "items": {"properties": {"k": {}, "v/w": {}}, "type": "object"}},
            "d": {"oneOf": [{"type": "string"}, {"type": "number"}]},
            "e": {"type": "array"}, "f": {"$ref": "#/missing"},
        },
        "required": ["a"],
        "$defs": {"A": {"properties": {"again": {"$ref": "#/$defs/A"}, "x": True}}},
    }  # fmt: skip
    fields = [repr(leaf_fields(schema)), repr(leaf_fields(schema, {"/c": "k"})), repr(leaf_fields({"type": "string"}))]
    two = Bindings(tools=tuple({"type": "function", "function": {"name": n, "parameters": {}}} for n in "ab"))
    fields += [repr(schema_of(each) is None) for each in (None, two, FORMAT, CALL, Bindings())]
    measures: dict[str, Callable[[], object]] = {
        "another version": lambda: parts_measure(
            SPEC.model_copy(update={"splitter": Procedure(name="json_fields", version=9)})
        ),
        "an unknown support": lambda: parts_measure(
            SPEC.model_copy(update={"support": Procedure(name="x", version=1)})
        ),
        "an entailment model that is not asked": lambda: parts_measure(sentence_spec(3), entailment=Entails()),
        "an entailment model without a name": lambda: parts_measure(sentence_spec(3, entailment=Entails())),
        "another entailment model": lambda: parts_measure(
            sentence_spec(3, entailment=Entails(), least=0.5), entailment=Renamed()
        ),
        "another judge": lambda: parts_measure(SPEC, judges={"/due": make_judge("exact")}),
    }
    rows += [(name, error_of(make)) for name, make in measures.items()]
    for spec, own in (
        (SPEC, None),
        (sentence_spec(3), None),
        (claim_spec(3), None),
        (claim_spec(3, entailment=Entails()), Entails()),
    ):
        asked = follow_up_of(spec)
        measure = parts_measure(spec, entailment=own)
        estimator = parts_estimator(measure)
        facts = f"{asked and (asked.name, asked.max_tokens, asked.reads)} slow {measure.is_slow}, {estimator.name}"
        rows.append((spec.kind, f"{facts}, {estimator.unit}, version {estimator.version}, {estimator.needs}"))
    text = "\n".join([listed(rows), *fields])
    same("core/parts_specs.txt", text.replace("<function _ask_support at ", "<").replace("<function _ask at ", "<")
         if " at 0x" not in text else _without_addresses(text))  # fmt: skip


def _without_addresses(text: str) -> str:
    import re

    return re.sub(r" at 0x[0-9a-f]+", "", text)


class Renamed(Entails):
    spec = JudgeSpec(name="other", version=1, params={})


LONG = "Goethe wrote Faust. He lived in Weimar. It has two parts."
TELLING = ["Goethe wrote Faust.", "He lived in Weimar. It has two parts.", "Schiller did.", ""]


def asked_replies(kind: str, words: Sequence[str]) -> dict[str, tuple[SampleSet, ...]]:
    pieces = ["Goethe wrote Faust.", "He lived in Weimar.", "It has two parts."]
    name, noun = (SUPPORTED.name, "sentence") if kind == "sentences" else (SUPPORTED_CLAIMS.name, "claim")
    if kind == "claims":
        pieces = ["Goethe wrote Faust.", "Faust has two parts."]
    distinct = [text for text in dict.fromkeys(TELLING) if text]
    replies = tuple(
        SampleSet(question=support_question(ASKED, pieces, text, noun), primary=Sample(text=reply))
        for text, reply in zip(distinct, words, strict=False)
    )
    return {name: replies}


CLAIM_LIST = json.dumps(
    [{"claim": "Faust has two  parts.", "sentence": 3}, {"claim": "Goethe wrote Faust.", "sentence": 1}]
)


def listing(reply: str) -> dict[str, tuple[SampleSet, ...]]:
    return {CLAIMS.name: (SampleSet(question="", primary=Sample(text=reply)),)}


def told(replies: dict[str, tuple[SampleSet, ...]], spec: PartsSpec = sentence_spec(9), **more: Any) -> str:  # noqa: B008
    return parts_of(split_and_measure(drawn(LONG, TELLING, follow_ups=replies), spec, **more))


def test_sentences_and_claims() -> None:
    odd = {
        "read": ["1. Yes\n2. no\n3. No.", "1: no\n\n2) YES\n3 - yes", "1. No\n2. No\n3. No"],
        "a line twice": ["1. Yes\n1. No\n2. No"] * 3,
        "a line missing": ["1. Yes\n3. No", "1. Yes\n2. Yes\n3. Yes", "no"],
        "a reply missing": ["1. Yes\n2. Yes\n3. Yes"],
    }
    blocks = [f"sentences, {name}\n{told(asked_replies('sentences', own))}"
              for name, own in odd.items()]  # fmt: skip
    failed = {SUPPORTED.name: tuple(
        reply.model_copy(update={"problem": Unmeasured.MODEL_FAILED})
        for reply in asked_replies("sentences", odd["read"])[SUPPORTED.name]
    )}  # fmt: skip
    blocks.append(
        f"sentences, failed\n{parts_of(split_and_measure(drawn(LONG, TELLING, follow_ups=failed), sentence_spec(9)))}"
    )
    by_model = sentence_spec(9, entailment=Entails(), least=0.6)
    for name, samples in {"by a model": TELLING, "no score": [*TELLING, "?"], "a failure": [*TELLING, "boom"]}.items():
        blocks.append(
            f"sentences {name}\n{parts_of(split_and_measure(drawn(LONG, samples), by_model, entailment=Entails()))}"
        )
    call = SampleSet(
        question="",
        primary=Sample(text="", tool_calls=(ToolCall(name="a", arguments={}),)),
        samples=(Sample(text="x"),),
    )
    for spec in (sentence_spec(9), claim_spec(9)):
        blocks.append(f"{spec.kind} of a call\n{parts_of(split_and_measure(call, spec))}")
    supported = asked_replies("claims", ["1. Yes\n2. No", "1. No\n2. Yes", "1. No\n2. No"])
    blocks.append(f"claims\n{told({**listing(CLAIM_LIST), **supported}, claim_spec(9))}")
    own_claims = claim_spec(9, entailment=Entails())
    blocks.append(f"claims by a model\n{told(listing(CLAIM_LIST), own_claims, entailment=Entails())}")
    for reply in (
        "", "none", "[]", "{}", "[1]", '[{"claim": "x"}]', '[{"claim": "", "sentence": 1}]',
        '[{"claim": 1, "sentence": 1}]', '[{"claim": "x", "sentence": 0}]', '[{"claim": "x", "sentence": 4}]',
        '[{"claim": "x", "sentence": "1"}]', '[{"claim": "x", "sentence": 1}, {"claim": " x ", "sentence": 2}]',
        '[{"claim": "x", "sentence": 1, "why": ""}]',
    ):  # fmt: skip
        found = split_and_measure(drawn(LONG, TELLING, follow_ups=listing(reply)), claim_spec(9))
        blocks.append(f"claims {reply!r}\n{parts_of(found)}")
    blocks.append(f"claims, not asked\n{parts_of(split_and_measure(drawn(LONG, TELLING), claim_spec(9)))}")
    prompts = [question(ASKED, ["One.", "Two."], "A sample."), claims_question(ASKED, ["One.", "Two."])]
    prompts.append(support_question(ASKED, ["a claim"], "A sample.", "claim"))
    asked = [
        len(each.ask([], drawn(LONG, TELLING, follow_ups=listing(CLAIM_LIST))))
        for each in (SUPPORTED, CLAIMS, SUPPORTED_CLAIMS)
    ]
    same("core/sentences_and_claims.txt", "\n\n".join([*blocks, *prompts, f"{asked} {spans('a b a', ['a', 'a'])}"]))


# -- The gate, and what is left ----------------------------------------------------------------------------------------


def test_what_is_kept() -> None:
    values: list[float | None] = [0.2, None, 0.1, 0.2, float("nan"), 0.9, float("inf")]
    rows = [f"{cap}: {measured(values, cap).tolist()}" for cap in (1, 2, 3, 9)]
    rows += [
        f"at {limit}, {cap}: {kept(values, limit, cap).tolist()}" for limit in (None, 0.1, 0.2, 2) for cap in (1, 2, 9)
    ]
    rows += [f"mean: {mean_uncertainty(own)}" for own in ([], [None], [0.5, None], [0.25, 0.5])]
    rows += [error_of(lambda: measured(values, 0)), *(too_many(n) for n in (0, 1, 2))]
    document = read_json(json.dumps(FULL))
    flags = {"/number": True, "/total": False, "/due": True, "/tags/0": True, "/tags/1": False, "/lines/0/sku": False}
    rows += [
        json_text(kept_value(document, flags)),
        repr(kept_value(document, {})),
        repr(kept_value(document, {"": True}) == document),
    ]
    places = ("", "/number", "/new", "/tags/1", "/lines/0/price", "/tags/9", "/number/x", "/missing/x", "/a~1b")
    rows += [f"{path}: {error_of(lambda: json_text(placed(document, path, 'NEW')))}" for path in places]  # noqa: B023
    rows.append(repr(ABSENT))

    def part(kept: bool, **fields: Any) -> PartVerdict:
        return PartVerdict(**{"text": "t", "uncertainty": 0.1, "kept": kept, **fields})

    text = Sample(text="One. Two.  Three. Four.", tokens=("x",), logprobs=(-1.0,))
    spans_of = [(0, 4), (5, 9), (11, 17), (18, 23)]
    for flags_of in ((1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 1, 0), (0, 0, 0, 0)):
        own = [part(bool(flag), span=span) for flag, span in zip(flags_of, spans_of, strict=True)]
        rows.append(f"{flags_of}: {release(text, own)!r}")
    rows.append(f"edited: {release(text, own, {'5-9': 'New.'}).text!r}")
    claims = [part(True, span=(0, 4), claim=1), part(False, span=(5, 9), claim=2, text="held")]
    rows += [f"claims: {release(text, claims).text!r} {release(text, claims, {'5-9#2': 'edited'}).text!r}"]
    fields = [part(True, path="/a", text="1"), part(False, path="/b", text="2")]
    answer = Sample(text='{"a": 1.50, "b": 2}')
    fenced = Sample(text='So: ```json\n{"a": 1.50, "b": 2}\n```')
    both = [part(True, path="/a"), part(True, path="/b")]
    none = [part(False, path="/a"), part(False, path="/b")]
    tool = Sample(text="so", tool_calls=(ToolCall(name="f", arguments={"a": 1, "b": 2}),))
    releases: dict[str, Callable[[], object]] = {
        "a field held": lambda: release(answer, fields).text,
        "all kept": lambda: release(answer, both).text,
        "all kept, fenced": lambda: release(fenced, both).text,
        "none kept": lambda: release(answer, none).text,
        "an edit": lambda: release(answer, fields, {"/b": "[3.10]"}).text,
        "an edit that is not JSON": lambda: release(answer, fields, {"/b": "x"}).text,
        "an edit of broken text": lambda: release(answer, fields, {"/b": '"\\ud83d"'}).text,
        "an edit nowhere": lambda: release(answer, fields, {"/c/d": "1"}).text,
        "a call": lambda: release(tool, fields).tool_calls,
        "a call, all kept": lambda: release(tool, both),
        "a call, none kept": lambda: release(tool, none).tool_calls,
        "a call, edited": lambda: release(tool, fields, {"/b": "5"}).tool_calls,
        "a call, edited to infinity": lambda: error_of(lambda: release(tool, fields, {"/b": "1e999"})).partition(": ")[
            0
        ],
    }
    rows += [f"{name}: {error_of(make)}" for name, make in releases.items()]
    wrong: dict[str, Callable[[], object]] = {
        "a path and a span": lambda: part(True, path="/a", span=(0, 1)),
        "neither": lambda: part(True),
        "a claim without a span": lambda: part(True, path="/a", claim=1),
        "an uncertainty above 1": lambda: part(True, path="/a", uncertainty=1.5),
        "places": lambda: [
            part(True, path="").place,
            part(True, span=(1, 2)).place,
            part(True, span=(1, 2), claim=3).place,
        ],
        "shown": lambda: [part(True, path="/a").shown(text=False), part(True, path="/a", absent=True).shown(text=True)],
        "held": lambda: part(True, path="/a").held().kept,
    }
    rows += [f"{name}: {error_of(make)}" for name, make in wrong.items()]
    same("core/kept_parts.txt", "\n".join(rows))


def test_comparisons_with_a_reference() -> None:
    answer = Sample(text=texts({"total": 13, "tags": ["x", "x", "z"]})[0])
    call = Sample(text="", tool_calls=(ToolCall(name="Invoice", arguments=dict(FULL)),))
    references = {
        "equal": texts({})[0], "other": texts({"due": "02.01.2020", "number": "B"})[0], "less": '{"number": "A-1"}',
        "text": "x",
        "a call": json.dumps({"name": "Invoice", "arguments": FULL}),
        "another tool": '{"name": "Other", "arguments": {}}',
        "two calls": json.dumps([{"name": "a", "arguments": {}}] * 2),
    }  # fmt: skip
    rows = [
        (f"{kind} against {name}", error_of(lambda: compare_with_gold(own, reference, SPEC)))  # noqa: B023
        for kind, own in (("text", answer), ("call", call))
        for name, reference in references.items()
    ]
    rows += [
        ("sentences", error_of(lambda: compare_with_gold(answer, "x", sentence_spec(3)))),
        ("no fields", error_of(lambda: compare_with_gold(Sample(text="x"), "{}", SPEC))),
    ]
    same("core/compared_fields.txt", listed(rows))


def gate(**changes: Any) -> PartsGate:
    scores = PartScores(sizes=(2, 1), uncertainty=(0.1, None, 0.5), wrong=(0, 1, 0))
    fields: dict[str, Any] = {
        "spec": SPEC, "rule": "wrong_share", "promise": "At most 10 % of the kept parts are wrong.", "alpha": 0.1,
        "delta": 0.1,
        "threshold": 0.2, "per": "part", "scores": scores,
    }  # fmt: skip
    return PartsGate(**{**fields, **changes})


def test_gates_of_parts() -> None:
    bands = gate(bands=(2, 5), band_thresholds=(0.3, 0.2, None), threshold=0.3)
    rows: dict[str, Callable[[], object]] = {
        "one threshold": lambda: gate().threshold_for(7),
        "bands": lambda: [bands.threshold_for(n) for n in (1, 2, 3, 5, 6)],
        "answers": lambda: gate().scores.answers,
        "stored": lambda: json_lines(gate().scores.model_dump(mode="json")),
        "read": lambda: PartScores.from_stored(gate().scores.model_dump_json()) == gate().scores,
        "packed": lambda: PartScores(
            sizes=(1,) * 3, uncertainty=array("d", [0.1, float("nan"), 1.0]), wrong=(0, 1, 0)
        ).uncertainty,
        "bands that fall": lambda: gate(bands=(5, 2), band_thresholds=(0.1, 0.2, 0.3)),
        "a band of none": lambda: gate(bands=(0, 2), band_thresholds=(0.1, 0.2, 0.3)),
        "too few thresholds": lambda: gate(bands=(2, 5), band_thresholds=(0.1, 0.2)),
        "above the cut": lambda: gate(cut=0.1),
        "labels missing": lambda: PartScores(sizes=(2,), uncertainty=(0.1, 0.2), wrong=(0,)),
        "an answer without parts": lambda: PartScores(sizes=(0, 1), uncertainty=(0.1,), wrong=(0,)),
        "ids of other answers": lambda: PartScores(sizes=(1,), uncertainty=(0.1,), wrong=(0,), ids=("a", "b")),
    }  # fmt: skip
    same("core/gates_of_parts.txt", listed((name, error_of(make)) for name, make in rows.items()))


# -- Guards of parts, and structured output ----------------------------------------------------------------------------


def as_calls(answers: Sequence[str]) -> list[AIMessage]:
    calls = [{"name": "Invoice", "args": json.loads(text), "id": "1", "type": "tool_call"} for text in answers]
    return [AIMessage(content="", tool_calls=[call]) for call in calls]


def guard_of(
    script: Sequence[Any], spec: PartsSpec = SPEC, bindings: Bindings | None = FORMAT, **more: Any
) -> Guardrail:
    model = ScriptedChat(script={ASKED: script})
    own = {name: more.pop(name) for name in ("threshold", "n") if name in more}
    measure = parts_measure(spec, entailment=more.get("entailment"))
    artifact = make_artifact(model, parts=measure, bindings=bindings, **{"threshold": 0.2, "n": 3, **own})
    return Guardrail(model=model, artifact=artifact, **more)


OTHER = {"number": "B", "total": 1, "due": "x", "tags": [], "lines": []}
DOUBTS = texts({}, {"total": 13}, {"total": 14, "tags": ["x", "y"]}, {})


def test_guards_of_parts() -> None:
    guards = {
        "all kept": guard_of(texts({}, {}, {}, {})),
        "in part": guard_of(DOUBTS),
        "at the cap": guard_of(texts({}, {}, {}, {}), SPEC.model_copy(update={"cap": 2})),
        "none kept": guard_of(texts({}, *[OTHER] * 3), threshold=0.1),
        "infeasible": guard_of(DOUBTS, threshold=None),
        "not JSON": guard_of(["An invoice."]),
        "a call in part": guard_of(as_calls(DOUBTS), bindings=CALL),
        "a call, raised": guard_of(as_calls(DOUBTS), bindings=CALL, on_abstain="raise"),
        "sentences": guard_of(["One is so. Two is so.", "One is so."], sentence_spec(5, entailment=Entails()), None,
                              entailment=Entails(), n=2),
    }  # fmt: skip
    blocks = []
    for name, guard in guards.items():
        verdict = guard.assess(ASKED)
        blocks.append(f"== {name}\n{verdict.explain()}\n{outcome(lambda: guard.invoke(ASKED))}")  # noqa: B023
    held = guards["in part"].assess(ASKED)
    call = guards["a call in part"].assess(ASKED)
    blocks += [f"undivided: {undivided(held).detail} {undivided(held).accepted} {undivided(call).accepted}",
               f"released call: {released_call(call).detail} {released_call(call).candidate} "
               f"{released_call(held) is held}",
               f"metadata\n{json_lines(held.to_metadata())}\n{json_lines(call.to_metadata())}",
               f"result {held.is_result} {call.is_result} {[part.place for part in held.held_back]}"]  # fmt: skip
    banded = guards["in part"].artifact
    assert banded.parts is not None
    parts = banded.parts.model_copy(update={"bands": (3,), "band_thresholds": (0.2, 0.0)})
    for name, own in {
        "another band": parts,
        "no threshold there": parts.model_copy(update={"band_thresholds": (0.2, None)}),
    }.items():
        model = ScriptedChat(script={ASKED: texts({}, OTHER, {}, {})})
        guard = Guardrail(model=model, artifact=banded.model_copy(update={"parts": own}))
        blocks.append(f"{name}: {guard.assess(ASKED).detail}")
    same("core/guards_of_parts.txt", clean("\n\n".join(blocks)))


def partial_text(result: Any) -> str:
    if not isinstance(result, Partial):
        return repr(result)
    shown = {"kept": result.kept, "held_back": result.held_back, "model": repr(result.model), "ticket": result.ticket,
             "parts": [part.shown(text=True) for part in result.parts],
             "accepted": result.verdict["accepted"]}  # fmt: skip
    looks = [
        error_of(lambda: result["total"]),
        error_of(lambda: result["nothing"]),
        "number" in result,
        result.get("total", 0),
    ]
    return f"{json_lines(shown)}\n{looks}\n{result!r}"


def read_part(message: AIMessage, content: str) -> str:
    return error_of(lambda: partial_of(message.model_copy(update={"content": content}), Invoice)).splitlines()[0]


def test_structured_output() -> None:
    plain_model = ScriptedChat(script={ASKED: texts({}, {}, {})})
    rows: list[tuple[str, str]] = []

    def ask(name: str, guard: Guardrail, schema: Any = Invoice, **settings: Any) -> None:
        def call() -> object:
            return guard.with_structured_output(schema, **settings).invoke(ASKED)

        try:
            result = call()
        except AbstainedError as error:
            rows.append((name, f"{type(error).__name__}: {error}"))
            return
        except Exception as error:
            own = not str(error).startswith("Failed to parse")  # LangChain's words, which differ between versions
            rows.append((name, f"{type(error).__name__}: {str(error).splitlines()[0] if own else '...'}"))
            return
        if isinstance(result, dict) and "raw" in result:
            parsed, fault = result["parsed"], result["parsing_error"]
            rows.append(
                (
                    name,
                    f"{result['raw'].content!r} {partial_text(parsed)} {type(fault).__name__}: "
                    f"{str(fault).splitlines()[:1]}",
                )
            )
        else:
            rows.append((name, partial_text(result)))

    def whole(script: Sequence[Any], bindings: Bindings | None = FORMAT, **more: Any) -> Guardrail:
        model = ScriptedChat(script={ASKED: script})
        return Guardrail(model=model, artifact=make_artifact(model, threshold=0.5, n=2, bindings=bindings), **more)

    mode = Bindings(response_format={"type": "json_object"})
    ask("a format", whole(texts({}, {}, {})))
    ask("a schema", whole(texts({}, {}, {})), Invoice.model_json_schema())
    ask("a call", whole(as_calls(texts({}, {}, {})), CALL))
    ask("a call as a dict", whole(as_calls(texts({}, {}, {})), CALL), Invoice.model_json_schema())
    ask("JSON mode", whole(texts({}, {}, {}), mode), Invoice, method="json_mode")
    ask("with the raw message", whole(texts({}, {}, {})), include_raw=True)
    ask("held back", whole(texts({}, {"total": 1}, {"total": 2})))
    ask("held back, raw", whole(texts({}, {"total": 1}, {"total": 2})), include_raw=True)
    ask("not whole", whole(['{"number": "A'] * 3))
    ask("not whole, raw", whole(['{"number": "A'] * 3), include_raw=True)
    ask("of another schema", whole(['{"number": 5}'] * 3))
    cut = AIMessage(content="{}", response_metadata={"finish_reason": "length"})
    ask("a handler's cut answer", whole(texts({}, {"total": 1}, {}), on_abstain=lambda verdict: cut))
    ask("a handler's text", whole(as_calls(texts({}, {"total": 1}, {})), CALL, on_abstain=lambda verdict: "sorry"))
    ask("a handler's nothing", whole(as_calls(texts({}, {"total": 1}, {})), CALL, on_abstain=lambda verdict: None))
    ask("another schema", whole(texts({}, {}, {})), Line)
    ask("another method", whole(texts({}, {}, {})), method="function_calling")
    ask("an unknown method", whole(texts({}, {}, {})), method="yaml")
    ask("without a format", Guardrail(model=plain_model, artifact=make_artifact(plain_model, n=2)))
    ask("parts, all kept", guard_of(texts({}, {}, {}, {})))
    ask("parts", guard_of(DOUBTS))
    ask("parts of a call", guard_of(as_calls(DOUBTS), bindings=CALL))
    ask("parts with a needed field", guard_of(texts({}, {"due": "x"}, {}, {})))
    ask("parts, raw", guard_of(DOUBTS), include_raw=True)
    ask("parts, none kept", guard_of(["x"]))
    later = whole(texts({}, {"total": 1}, {"total": 2})).with_structured_output(Invoice, include_raw=True)
    raw = asyncio.run(later.ainvoke(ASKED))
    rows.append(("held back, later", f"{raw['raw'].content!r} {raw['parsed']} {raw['parsing_error']}"))
    once = asyncio.run(guard_of(DOUBTS).with_structured_output(Invoice).ainvoke(ASKED))
    rows.append(("parts, later", f"{once.kept} {once.held_back}"))
    message = guard_of(DOUBTS).invoke(ASKED)
    decided = message.model_copy(
        update={
            "response_metadata": {
                **message.response_metadata,
                "review": {"action": "edit", "held_back": ["/tags"], "ticket": "T"},
            }
        }
    )
    rows += [
        ("is partial", f"{is_partial(message)} {is_partial(AIMessage('x'))} {is_partial(decided)}"),
        ("after a review", partial_text(partial_of(decided, dict))),
        *((content, read_part(message, content)) for content in ("[1]", '{"a": 1e999}')),
    ]  # fmt: skip
    same("core/structured_output.txt", clean(listed(rows)))


def pay(to: str, amount: float) -> str:
    """Pay somebody."""
    return "paid"


def ask_bob(what: str) -> str:
    """Ask Bob."""
    return "asked"


def test_bound_tools(tmp_path: Any) -> None:
    call = AIMessage(
        content="I pay.",
        tool_calls=[{"name": "pay", "args": {"to": "bob", "amount": 5}, "id": "1", "type": "tool_call"}],
    )
    model = ScriptedChat(script={"pay?": [call], "unsure?": [call, "no", call], "talk?": ["hello"]})
    bindings = bindings_for([pay, ask_bob])
    guard = Guardrail(
        model=model, artifact=make_artifact(model, threshold=0.5, n=2, bindings=bindings), max_concurrency=1
    )
    forced = make_artifact(model, threshold=0.5, n=2, bindings=bindings_for([pay], tool_choice="any"))
    forcing = Guardrail(model=model, artifact=forced)
    bound = guard.bind_tools([ask_bob, pay])
    blocks = [f"== {asked}\n{outcome(partial(bound.invoke, asked))}" for asked in ("pay?", "unsure?", "talk?")]
    blocks.append(f"== forced\n{outcome(lambda: forcing.bind_tools([pay], tool_choice='pay').invoke('unsure?'))}")
    wrong: dict[str, Callable[[], object]] = {
        "other tools": lambda: guard.bind_tools([pay]),
        "other schemas": lambda: guard.bind_tools(
            [{**tool, "function": {**tool["function"], "description": "x"}} for tool in bindings.tools]
        ),
        "a choice": lambda: guard.bind_tools([pay, ask_bob], tool_choice="pay"),
        "a format": lambda: guard.bind(response_format={"type": "json_object"}),
        "no tools calibrated": lambda: Guardrail(model=model, artifact=make_artifact(model, n=2)).bind_tools([pay]),
        "a temperature": lambda: guard.bind(temperature=1),
        "stop strings": lambda: guard.bind(stop=["x"]),
        "a user": lambda: guard.bind(user="bob").kwargs,
        "not a tool": lambda: error_of(lambda: guard.bind_tools([5])).rpartition(":")[0],  # LangChain's words follow
        "a choice of nobody": lambda: bindings_for([pay], tool_choice="sell"),
        "twice": lambda: bindings_for([pay, pay]),
        "choices": lambda: [bindings_for([pay], tool_choice=choice).tool_choice for choice in
                            (None, False, True, "auto", "any", "required", "pay", {"function": {"name": "pay"}})],
        "a format with a name": lambda: bindings_for(response_format={"type": "json_schema", "json_schema": "x"}),
        "a tool without a name": lambda: Bindings(tools=({"type": "function"},)),
        "names": lambda: [bindings.tool_names, Bindings(tools=({"function": {"name": "a"}},)).digest],
    }  # fmt: skip
    blocks.append(listed((name, _without_addresses(error_of(make)).splitlines()[0]) for name, make in wrong.items()))
    same("core/bound_tools.txt", clean("\n\n".join(blocks)))


def test_estimators_of_artifacts() -> None:
    model = ScriptedChat()
    of_parts, plain = make_artifact(model, parts=SPEC), make_artifact(model)

    @scorer(version=1, higher="certain")
    def rating(answer: str) -> float:
        return 0.5

    rows: dict[str, Callable[[], object]] = {
        "parts": lambda: estimator_of(of_parts).name,
        "judges by path": lambda: estimator_of(plain, judge={"/a": make_judge("exact")}),
        "one judge for parts": lambda: estimator_of(of_parts, judge=make_judge("exact")),
        "a scorer for parts": lambda: estimator_of(of_parts, scorer=rating),
        "another specification": lambda: estimator_of(
            of_parts.model_copy(update={"estimator": of_parts.estimator.model_copy(update={"version": 7})})
        ),
    }
    text = listed((name, error_of(make)) for name, make in rows.items())
    assert issubclass(ArtifactMismatchError, Exception)
    assert isinstance(guard_of(DOUBTS).assess(ASKED), Verdict)
    same("core/estimators_of_artifacts.txt", text)


def test_a_message_in_part() -> None:
    same("core/message_in_part.txt", clean(message_of(guard_of(DOUBTS).invoke(ASKED))))


def in_band(guard: Guardrail) -> list[str]:
    verdict = guard.assess(ASKED)
    return [verdict.reason.value, verdict.detail]


def test_artifacts_of_parts_in_words() -> None:
    plain = guard_of(DOUBTS).artifact
    none = guard_of(DOUBTS, threshold=None).artifact
    scores = PartScores(sizes=(2, 1, 1), uncertainty=(0.1, None, 0.5, None), wrong=(0, 1, 0, 0))
    assert plain.parts is not None
    assert plain.outcome.status == "feasible"
    shown = plain.model_copy(
        update={
            "parts": plain.parts.model_copy(update={"scores": scores, "allowed": 1}),
            "outcome": plain.outcome.model_copy(update={"n_accepted": 3, "n_errors": 1, "n": 4}),
        }
    )
    content = json.loads(plain.model_dump_json())

    def changed(**fields: Any) -> object:
        return type(plain).model_validate({**content, **fields})

    rows: dict[str, Callable[[], object]] = {
        "a threshold": lambda: str(plain).split("\n"),
        "no threshold": lambda: none.answer_if,
        "promises": lambda: shown.promises,
        "no promise": lambda: none.promises,
        "scores": lambda: [shown.answer_scores, shown.n_items],
        "version": lambda: [plain.schema_version, changed(schema_version=3) == plain],
        "an older version": lambda: changed(schema_version=2),
        "without a version": lambda: (
            type(plain)
            .model_validate({name: value for name, value in content.items() if name != "schema_version"})
            .schema_version
        ),
        "another threshold": lambda: changed(parts={**content["parts"], "threshold": 0.1}),
        "an adaptive plan": lambda: changed(plan={**content["plan"], "unanimous_at": 2}),
        "segments of none": lambda: plain.refuse_segments("The gateway") is plain,
    }
    doubtful = texts({}, {"number": "B"}, {"number": "C"}, {})
    wide = [{**{name: f"{name}{place}" for name in ("number", "due")}, "total": place} for place in range(3)]
    model = ScriptedChat(
        script={ASKED: [json.dumps({**FULL, "tags": [], "lines": []}), *map(json.dumps, [*wide[:2], FULL])]}
    )
    for name, limits in {"a stricter band": (0.9, 0.1), "a band without a threshold": (0.9, None)}.items():
        base = make_artifact(model, parts=SPEC, bindings=FORMAT, threshold=0.9, n=3)
        assert base.parts is not None
        parts = base.parts.model_copy(update={"bands": (1,), "band_thresholds": limits})
        banded = Guardrail(model=model, artifact=base.model_copy(update={"parts": parts}))
        rows[name] = partial(in_band, banded)
    twenty = {"properties": {f"f{place}": {"type": "string"} for place in range(20)}}
    long = ScriptedChat(script={ASKED: [json.dumps({f"f{place}": "x" for place in range(20)}), '{"f0": "x"}']})
    listing_all = Guardrail(
        model=long, artifact=make_artifact(long, parts=json_spec(schema=twenty), threshold=0.2, n=2)
    )
    rows["many held back"] = lambda: listing_all.assess(ASKED).detail
    rows["doubtful"] = lambda: guard_of(doubtful).assess(ASKED).detail
    rows["no sentence"] = lambda: parts_of(split_and_measure(drawn("...", ["x"]), sentence_spec(3)))
    rows["many scores"] = lambda: sorted(
        PartScores(sizes=(1,) * 50_000, uncertainty=(0.5,) * 50_000, wrong=(0,) * 50_000).model_dump(mode="json")[
            "wrong"
        ]
    )
    same("core/artifacts_of_parts.txt", clean(listed((name, error_of(call)) for name, call in rows.items())))
