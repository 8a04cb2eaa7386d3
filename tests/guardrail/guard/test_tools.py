"""Tools and structured output: only what was calibrated, and an abstention never looks like an answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolCall
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from pydantic import BaseModel

from guardrail import (
    AbstainedError,
    ArtifactMismatchError,
    Bindings,
    Guardrail,
    SamplingPlan,
    UnmeasuredError,
    UsageError,
)
from guardrail.bindings import (
    arguments_fault,
    binding_settings,
    bindings_for,
    json_format,
    native_settings,
    read_bindings,
    schemas_of,
)
from guardrail.guard.abstention import ABSTENTION
from guardrail.prompting import PromptWrapping
from guardrail.sampling.effects import run
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, Unmeasured
from guardrail.types import ToolCall as JudgedCall
from guardrail.verdict import Reason


@tool
def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city} is a city"


@tool
def weather(city: str, days: int = 1) -> str:
    """Weather of a city."""
    return "rain"


class Person(BaseModel):
    """A person."""

    name: str
    born: int


def call(name: str, /, **args: Any) -> AIMessage:
    return AIMessage(content="", tool_calls=[ToolCall(name=name, args=args, id="x", type="tool_call")])


SURE, UNSURE, DOWN = "same", "other", "down"
TOOLS = bindings_for([look_up, weather])
CALLER = ScriptedChat(
    script={
        SURE: [call("look_up", city="Rome")],
        UNSURE: [call("look_up", city=city) for city in ("Rome", "Oslo", "Bern", "Riga")],
        DOWN: [call("look_up", city="Rome"), TimeoutError("5 s")],
    }
)
GOETHE = '{"name": "Goethe", "born": 1749}'
JSON = bindings_for(response_format=Person)
WRITER = ScriptedChat(
    script={SURE: [GOETHE], UNSURE: [GOETHE, '{"name": "Kleist", "born": 1777}', '{"name": "Heine", "born": 1797}']}
)
PERSON_CALL = bindings_for([Person], tool_choice="Person")
PERSON = ScriptedChat(
    script={
        SURE: [call("Person", name="Goethe", born=1749)],
        UNSURE: [call("Person", name="Goethe", born=year) for year in (1749, 1750, 1751, 1752)],
    }
)


def guarded(model: BaseChatModel, bindings: Bindings | None, **kwargs: Any) -> Guardrail:
    return Guardrail(model=model, artifact=make_artifact(model, threshold=0.5, bindings=bindings), **kwargs)


def measuring_parts(guard: Guardrail) -> Guardrail:
    """A guard that was calibrated to give out answers that were cut off."""
    plan = guard.artifact.plan.model_copy(update={"cut_off": "measure"})
    return guard.model_copy(update={"artifact": guard.artifact.model_copy(update={"plan": plan})})


# -- what is bound


def test_every_call_carries_the_calibrated_tools_bound_or_not() -> None:
    calls: list[dict[str, Any]] = []

    class Recorder(ScriptedChat):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            calls.append(kwargs)
            return super()._generate(messages, stop, run_manager, **kwargs)

    guard = guarded(Recorder(script=CALLER.script), TOOLS, remember=0)
    message = guard.bind_tools([weather, look_up]).invoke(SURE)  # the order does not matter
    assert [(tool["name"], tool["args"]) for tool in message.tool_calls] == [("look_up", {"city": "Rome"})]
    guard.assess(SURE)
    assert len(calls) == 2 * 11 - message.response_metadata["guardrail"]["cost"]["saved"] * 2
    assert all([tool["function"]["name"] for tool in kwargs["tools"]] == ["look_up", "weather"] for kwargs in calls)


def test_a_guard_calibrated_without_tools_refuses_them_with_the_way_out() -> None:
    guard = guarded(CALLER, None)
    with pytest.raises(
        ArtifactMismatchError, match=r"calibrated without tools; other tools \(look_up\).*--tools"
    ) as told:
        guard.bind_tools([look_up])
    assert 'tools={"NAME": "collect"}' in str(told.value), "an agent collects decisions about its own calls"
    assert guard.bind_tools([])  # nothing to bind is what it was calibrated with


@pytest.mark.parametrize("bindings", [None, bindings_for([weather])])
def test_a_call_of_a_tool_that_was_not_offered_is_unmeasured(bindings: Bindings | None) -> None:
    """All samples agree on it, so its uncertainty would be 0. A person gets no such call to approve, either."""
    guard = guarded(CALLER, bindings)
    verdict = guard.assess(SURE)
    assert (verdict.accepted, verdict.reason, verdict.candidate) == (False, Reason.UNMEASURED, None)
    assert verdict.uncertainty.reason is Unmeasured.UNREADABLE
    assert "calls a tool that was not offered" in verdict.detail
    assert ("no tool was bound" if bindings is None else "the tools are weather") in verdict.detail
    assert guard.invoke(SURE).tool_calls == []
    served = Sample(text="", tool_calls=(JudgedCall(name="look_up", arguments={"city": "Rome"}),))
    assert not run(guard.served_steps([HumanMessage(SURE)], served)).accepted
    (drawn,) = Sampler(CALLER, guard.artifact.plan).draw([[HumanMessage(SURE)]])  # collecting records it likewise
    assert drawn.problem is Unmeasured.UNREADABLE
    assert guarded(CALLER, TOOLS).assess(SURE).accepted


def test_other_tools_or_schemas_are_refused_naming_both_sides() -> None:
    guard = guarded(CALLER, TOOLS)
    with pytest.raises(ArtifactMismatchError, match=r"the tools look_up, weather; other tools \(look_up\)"):
        guard.bind_tools([look_up])

    def changed(city: str) -> str:
        """Look up a city, or something else."""
        return city

    changed.__name__ = "look_up"
    with pytest.raises(ArtifactMismatchError, match="same names, other schemas"):
        guard.bind_tools([changed, weather])
    with pytest.raises(ArtifactMismatchError, match="tool_choice differs: calibrated with 'auto', asked for 'any'"):
        guard.bind_tools([look_up, weather], tool_choice="any")
    with pytest.raises(ArtifactMismatchError, match="calibrated without tools"):
        guarded(CALLER, None).invoke(SURE, tools=[look_up])


@pytest.mark.parametrize("kwargs", [{"n": 4}, {"temperature": 0.0}, {"logprobs": False}, {"parallel_tool_calls": True}])
def test_sampling_settings_are_refused_when_they_are_bound(kwargs: dict[str, Any]) -> None:
    guard = guarded(CALLER, TOOLS)
    with pytest.raises(ArtifactMismatchError, match=f"'{next(iter(kwargs))}'"):
        guard.bind(**kwargs)
    with pytest.raises(ArtifactMismatchError, match=f"'{next(iter(kwargs))}'"):
        guard.bind_tools([look_up, weather], **kwargs)
    with pytest.raises(ArtifactMismatchError, match=f"'{next(iter(kwargs))}'"):
        guard.with_config(tags=["x"]).bind(**kwargs).invoke(SURE)
    assert guard.bind(n=None, stop=None).invoke(SURE).tool_calls  # "not given" is not another setting


# -- abstaining


def test_an_abstention_makes_no_call_and_forced_calls_raise() -> None:
    message = guarded(CALLER, TOOLS).bind_tools([look_up, weather]).invoke(UNSURE)
    assert message.tool_calls == []
    assert ABSTENTION in str(message.content)
    forced = guarded(PERSON, PERSON_CALL).bind_tools([Person], tool_choice="any")
    assert forced.invoke(SURE).tool_calls[0]["args"] == {"name": "Goethe", "born": 1749}
    with pytest.raises(AbstainedError) as caught:
        forced.invoke(UNSURE)
    assert caught.value.message.startswith(ABSTENTION)
    assert not isinstance(caught.value, UnmeasuredError)


CASES = [(PERSON, PERSON_CALL, "function_calling"), (WRITER, JSON, "json_schema")]
MORE_CASES = [*CASES, (WRITER, bindings_for(response_format={"type": "json_object"}), "json_mode")]


@pytest.mark.parametrize(("model", "bindings", "method"), MORE_CASES)
def test_structured_output(model: BaseChatModel, bindings: Bindings, method: Any) -> None:
    guard = guarded(model, bindings)
    for chain in (guard.with_structured_output(Person), guard.with_structured_output(Person, method=method)):
        assert chain.invoke(SURE) == Person(name="Goethe", born=1749)
        assert list(chain.stream(SURE)) == [Person(name="Goethe", born=1749)]
        with pytest.raises(AbstainedError):
            chain.invoke(UNSURE)
        with pytest.raises(AbstainedError):
            asyncio.run(chain.ainvoke(UNSURE))


@pytest.mark.parametrize(("model", "bindings", "method"), CASES)
def test_structured_output_with_a_plain_schema(model: BaseChatModel, bindings: Bindings, method: Any) -> None:
    response_format = bindings.response_format
    schema = dict(bindings.tools[0]) if response_format is None else response_format["json_schema"]["schema"]
    chain = guarded(model, bindings).with_structured_output(schema, method=method)
    assert chain.invoke(SURE) == {"name": "Goethe", "born": 1749}


@pytest.mark.parametrize(("model", "bindings", "method"), MORE_CASES)
def test_structured_output_with_raw(model: BaseChatModel, bindings: Bindings, method: Any) -> None:
    chain = guarded(model, bindings).with_structured_output(Person, method=method, include_raw=True)
    for answered in (chain.invoke(SURE), asyncio.run(chain.ainvoke(SURE))):
        assert (answered["parsed"], answered["parsing_error"]) == (Person(name="Goethe", born=1749), None)
        assert answered["raw"].response_metadata["guardrail"]["accepted"] is True
    for abstained in (chain.invoke(UNSURE), asyncio.run(chain.ainvoke(UNSURE))):
        assert abstained["parsed"] is None
        assert isinstance(abstained["parsing_error"], AbstainedError)
        assert abstained["raw"].response_metadata["guardrail"]["accepted"] is False
        assert not any(secret in str(abstained["raw"]) for secret in ("Kleist", "Heine", "Goethe", "born"))
    with pytest.raises(
        ArtifactMismatchError, match="seed"
    ):  # settings of a call reach the guard, which refuses this one
        chain.invoke(SURE, seed=1)


def test_an_object_cannot_say_that_its_turns_were_not_calibrated() -> None:
    marking = make_artifact(WRITER, threshold=0.5, bindings=JSON, prompt=PromptWrapping(other_turns="mark"))
    guard = Guardrail(model=WRITER, artifact=marking)
    with pytest.raises(UsageError, match="include_raw=True"):
        guard.with_structured_output(Person)
    second_turn = [HumanMessage("Hello"), AIMessage("Hi"), HumanMessage(SURE)]
    marked = guard.with_structured_output(Person, include_raw=True).invoke(second_turn)
    assert marked["parsed"] == Person(name="Goethe", born=1749)
    assert marked["raw"].response_metadata["guardrail"]["accepted"] is False


def test_an_accepted_answer_that_is_no_json_is_a_parsing_error_not_an_abstention() -> None:
    guard = guarded(ScriptedChat(script={SURE: ["Goethe"]}), JSON)
    assert isinstance(
        guard.with_structured_output(Person, include_raw=True).invoke(SURE)["parsing_error"], OutputParserException
    )
    with pytest.raises(OutputParserException):
        guard.with_structured_output(Person).invoke(SURE)


def cut(text: str, /, **metadata: Any) -> AIMessage:
    return AIMessage(content=text, response_metadata=metadata)


CUT = [
    cut('{"name": "Goethe", "born": 17', finish_reason="length"),  # 1749 did not fit
    cut('{"name": "Goethe", "born": 17'),
    cut('```json\n{"name": "Goethe", "born": 17'),
    cut('{"born": 1749, "name": "Goe'),
    cut(GOETHE + " or", stop_reason="max_tokens"),
    cut(GOETHE, finish_reason="MAX_TOKENS"),
    cut(GOETHE, stopReason="max_tokens"),
    cut(GOETHE, done_reason="length"),
    cut(GOETHE, incomplete_details={"reason": "max_output_tokens"}),
]


@pytest.mark.parametrize("schema", [Person, Person.model_json_schema()])
@pytest.mark.parametrize("answer", CUT)
def test_an_answer_that_was_cut_off_makes_no_object(answer: AIMessage, schema: Any) -> None:
    bindings = bindings_for(response_format=schema)
    own = measuring_parts(guarded(ScriptedChat(default=[answer]), bindings))
    taken_over = guarded(WRITER, bindings, on_abstain=lambda verdict: answer)
    for guard in (own, taken_over):
        chain = guard.with_structured_output(schema)
        with pytest.raises(OutputParserException, match=r"cut off|not whole JSON"):
            chain.invoke(UNSURE)
        with pytest.raises(OutputParserException, match=r"cut off|not whole JSON"):
            asyncio.run(chain.ainvoke(UNSURE))
        raw = guard.with_structured_output(schema, include_raw=True).invoke(UNSURE)
        assert (raw["parsed"], type(raw["parsing_error"])) == (None, OutputParserException)
        assert raw["raw"].text == answer.text


def test_a_call_that_was_cut_off_makes_no_object() -> None:
    whole = call("Person", name="Goethe", born=17)  # clients close the arguments of a call that was streamed
    answer = whole.model_copy(update={"response_metadata": {"stop_reason": "max_tokens"}})
    guard = guarded(ScriptedChat(default=[answer]), PERSON_CALL)
    chain = measuring_parts(guard).with_structured_output(Person, include_raw=True)
    assert isinstance(chain.invoke(SURE)["parsing_error"], OutputParserException)
    assert isinstance(
        guard.with_structured_output(Person, include_raw=True).invoke(SURE)["parsing_error"], AbstainedError
    )


@pytest.mark.parametrize("text", [GOETHE, f"```json\n{GOETHE}\n```", f"```\n{GOETHE}", f" {GOETHE}\n"])
def test_a_whole_answer_may_stand_in_a_fence(text: str) -> None:
    answer = cut(text, finish_reason="stop")
    chain = guarded(ScriptedChat(default=[answer]), JSON).with_structured_output(Person)
    assert chain.invoke(SURE) == Person(name="Goethe", born=1749)


def test_another_schema_is_refused() -> None:
    class Other(BaseModel):
        """Another."""

        x: int

    for model, bindings, _ in CASES:
        with pytest.raises(ArtifactMismatchError):
            guarded(model, bindings).with_structured_output(Other)
    with pytest.raises(ArtifactMismatchError, match="calibrated without tools"):
        guarded(WRITER, None).with_structured_output(Person)
    with pytest.raises(UsageError, match="method 'yaml' is unknown"):
        guarded(WRITER, JSON).with_structured_output(Person, method="yaml")  # type: ignore[arg-type]


def described(**properties: Any) -> dict[str, Any]:
    return {"title": "Person", "description": "A person.", "type": "object", "properties": properties}


TEXT, FLAG = {"type": "string"}, {"type": "boolean", "default": False}
TABLE = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("calibrated", "asked"),
    [
        (described(tags=TABLE), described(tags={**TABLE, "additionalProperties": TEXT})),
        (described(tags=TABLE), described(tags={"type": "object"})),
        (described(tags=TABLE), described(tags={**TABLE, "additionalProperties": False})),
        (described(name=TEXT), described(name=TEXT, strict=FLAG)),
        (described(name=TEXT), described(name=TEXT, additionalProperties=FLAG)),
        (described(name=TEXT), {**described(name=TEXT), "additionalProperties": True}),
        (described(a={**TEXT, "default": {}}), described(a={**TEXT, "default": {"additionalProperties": False}})),
        (described(a={"$ref": "#/$defs/strict"}), {**described(a={"$ref": "#/$defs/strict"}), "$defs": {"strict": {}}}),
    ],
)
def test_no_schema_passes_for_another(calibrated: dict[str, Any], asked: dict[str, Any]) -> None:
    for bound, requested in ((calibrated, asked), (asked, calibrated)):
        guard = guarded(WRITER, bindings_for(response_format=bound))
        guard.with_structured_output(bound)
        with pytest.raises(ArtifactMismatchError, match="same name, another schema"):
            guard.with_structured_output(requested)


def test_what_servers_add_to_a_schema_is_no_difference() -> None:
    inner = {"type": "object", "properties": {"name": TEXT}}
    closed = {**inner, "additionalProperties": False}
    plain, added = (
        described(one=inner, many={"type": "array", "items": inner}),
        described(one=closed, many={"type": "array", "items": closed}),
    )
    added |= {"additionalProperties": False, "strict": True}
    sent = {"type": "json_schema", "json_schema": {"name": "Person", "strict": True, "schema": added}}
    for calibrated, requested in ((sent, plain), (plain, added)):
        chain = guarded(WRITER, bindings_for(response_format=calibrated)).with_structured_output(requested)
        assert isinstance(chain, Runnable)


def test_another_model_or_a_person_may_give_a_valid_answer() -> None:
    bigger = ScriptedChat(script={UNSURE: [call("Person", name="Goethe", born=1749)]})
    for path in (bigger, lambda verdict: call("Person", name="Goethe", born=1749)):
        chain = guarded(PERSON, PERSON_CALL, on_abstain=path).with_structured_output(Person)
        assert chain.invoke(UNSURE) == Person(name="Goethe", born=1749)
        assert asyncio.run(chain.ainvoke(UNSURE)) == Person(name="Goethe", born=1749)
    text: Any = guarded(PERSON, PERSON_CALL, on_abstain=lambda verdict: "no idea").with_structured_output(Person)
    with pytest.raises(UsageError, match="can only read a tool call"):
        text.invoke(UNSURE)
    nothing: Any = guarded(PERSON, PERSON_CALL, on_abstain=lambda verdict: None).with_structured_output(Person)
    with pytest.raises(AbstainedError):
        nothing.invoke(UNSURE)
    written: Any = guarded(WRITER, JSON, on_abstain=lambda verdict: GOETHE).with_structured_output(Person)
    assert written.invoke(UNSURE).born == 1749


def test_a_model_that_takes_over_gets_the_tools() -> None:
    tool_names: list[Any] = []

    class Bigger(ScriptedChat):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            tool_names.append([tool["function"]["name"] for tool in kwargs["tools"]])
            return super()._generate(messages, stop, run_manager, **kwargs)

    guarded(CALLER, TOOLS, on_abstain=Bigger()).bind_tools([look_up, weather]).invoke(UNSURE)
    assert tool_names == [["look_up", "weather"]]


def test_structured_output_with_fallbacks() -> None:
    other: RunnableLambda[Any, Person] = RunnableLambda(lambda _: Person(name="nobody", born=0))
    chain = guarded(WRITER, JSON).with_structured_output(Person).with_fallbacks([other])
    assert [person.name for person in chain.batch([SURE, UNSURE])] == ["Goethe", "nobody"]


# -- the pieces


def test_digest_does_not_depend_on_order_but_on_everything_else() -> None:
    turned = bindings_for([weather, look_up])
    assert turned.digest == TOOLS.digest
    others = [
        bindings_for([look_up]),
        bindings_for([look_up, weather], tool_choice="any"),
        bindings_for([look_up, weather], strict=True),
        bindings_for([look_up, weather], response_format=Person),
    ]
    assert len({TOOLS.digest, *(bindings.digest for bindings in others)}) == 5


@pytest.mark.parametrize(
    ("given", "found"),
    [(None, None), ("auto", None), (True, "any"), ("required", "any"), ("look_up", "look_up"),
     ({"type": "function", "function": {"name": "look_up"}}, "look_up")],
)  # fmt: skip
def test_tool_choice_has_one_form(given: Any, found: str | None) -> None:
    assert bindings_for([look_up], tool_choice=given).tool_choice == found


def test_tools_that_cannot_be_bound() -> None:
    with pytest.raises(UsageError, match="'fly' must be None, 'any' or one of the tools"):
        bindings_for([look_up], tool_choice="fly")
    with pytest.raises(UsageError, match="distinct"):
        bindings_for([look_up, look_up])


def test_tools_file(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS.model_dump(mode="json")["tools"]))
    assert read_bindings(path) == TOOLS
    path.write_text(PERSON_CALL.model_dump_json())
    assert read_bindings(path) == PERSON_CALL
    for text, message in (("[", "cannot be read as JSON"), ("[]", "neither a tool"), ('[{"name": "x"}]', "function"),
                          ('{"tool": []}', "tool")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_bindings(path)


def test_models_that_take_no_tools() -> None:
    class Plain(ScriptedChat):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(UsageError, match="Plain does not support tools"):
        Sampler(Plain(), SamplingPlan(n=2, bindings=TOOLS)).draw([[HumanMessage("x")]])


def test_native_samplers_get_what_they_can_take() -> None:
    def tools_only(prompts: Any, plan: Any, *, seeds: Any, tools: Any = None) -> None: ...

    def everything(prompts: Any, plan: Any, *, seeds: Any, **settings: Any) -> None: ...

    assert native_settings(CALLER, tools_only, TOOLS) == {"tools": list(TOOLS.tools)}
    assert native_settings(CALLER, everything, PERSON_CALL)["tool_choice"] == "Person"
    assert native_settings(CALLER, tools_only, None) == {}
    with pytest.raises(UsageError, match="tool_choice: it cannot be enforced"):
        native_settings(CALLER, tools_only, PERSON_CALL)
    assert binding_settings(CALLER, JSON) == {"response_format": json_format(Person)}


ORDER = {"type": "string", "pattern": r"^[A-Z]\d+$"}


@pytest.mark.parametrize(
    ("schema", "arguments", "fault"),
    [
        ({"properties": {"a": {}}}, {"a": 1, "x": 1}, "the tool has no argument x"),
        ({"properties": {}}, {"x": 1}, "the tool has no argument x"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"x": 1}, "the tool has no argument x"),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"x": 1}, None),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, {"x": "b"}, None),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, {"x": 1}, None),
        ({"properties": {"a": {}}, "allOf": [{"properties": {"x": {}}}]}, {"x": 1}, None),
        ({"type": "object"}, {"x": 1}, None),
        ({"properties": {"order": ORDER}}, {"order": "17"}, r"order: 17 must look like the pattern ^[A-Z]\d+$"),
        ({"properties": {"order": {**ORDER, "examples": ["A17"]}}}, {"order": "17"}, r"\d+$, such as A17"),
    ],
)
def test_arguments_that_a_tool_does_not_take(
    schema: dict[str, Any], arguments: dict[str, Any], fault: str | None
) -> None:
    """LangChain drops an argument that the tool does not declare, while the agent is told that the tool ran with it."""
    found = arguments_fault(schema, arguments)
    assert found is None if fault is None else found is not None and fault in found, found


def test_the_schema_of_a_tool_says_what_the_tool_does() -> None:
    assert schemas_of(bindings_for([look_up]))["look_up"]["description"] == "Look a city up."
