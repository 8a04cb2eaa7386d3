"""Golden stories of the guards in the OpenAI Agents SDK and in pydantic-ai, with the scripted models of their tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

agents = pytest.importorskip("agents", reason="openai-agents is not installed")
pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")

from agents import ModelSettings, WebSearchTool, set_tracing_disabled  # noqa: E402
from pydantic_ai import DeferredToolRequests, PromptedOutput  # noqa: E402
from pydantic_ai import messages as its  # noqa: E402
from pydantic_ai.models import ModelRequestParameters  # noqa: E402

from guardrail.bindings import bindings_for  # noqa: E402
from guardrail.errors import AbstainedError  # noqa: E402
from guardrail.review import Decision, ReviewStore  # noqa: E402
from guardrail.testing import ScriptedChat  # noqa: E402
from integrations._frameworks import openai_agents_items as items  # noqa: E402
from integrations._frameworks import pydantic_ai_messages as parts  # noqa: E402
from integrations._frameworks.chat import check_call, refuse_settings, settings_revision  # noqa: E402
from integrations.openai_agents_guard import AgentsModelChat, GuardedModel, ReviewBridge, agent_bindings  # noqa: E402
from integrations.pydantic_ai_guard import GuardCapability, PydanticAIChat  # noqa: E402
from integrations.pydantic_ai_guard import GuardedModel as PydanticGuardedModel  # noqa: E402
from integrations.pydantic_ai_guard import ReviewBridge as PydanticBridge  # noqa: E402
from integrations.pydantic_ai_guard import agent_bindings as pydantic_bindings  # noqa: E402
from tests.golden.serving.test_shown_agents import APPROVE, Story, edit  # noqa: E402
from tests.integrations.frameworks import test_openai_agents_guard as sdk  # noqa: E402
from tests.integrations.frameworks import test_pydantic_ai_guard as pyd  # noqa: E402

UNSURE: list[Any] = ["Rome", "Oslo", "Bern", "Riga", "Lima"]


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)


def plain(value: Any) -> Any:
    """A value of a framework as JSON."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


# -- the OpenAI Agents SDK ---------------------------------------------------------------------------------------------

KEPT = ("type", "role", "content", "name", "arguments", "call_id", "output", "text")
DECISIONS: list[dict[str, Any]] = [
    APPROVE, edit("pay", {"amount": 7}), {"type": "reject"}, {"type": "reject", "message": "too much"},
    {"type": "respond", "message": "by hand"},
]  # fmt: skip
ABOUT_ANSWERS: list[dict[str, Any]] = [
    APPROVE, edit("answer", {"text": "Paris"}), {"type": "reject"}, {"type": "respond", "message": "mine"},
]  # fmt: skip


def conversation_of(result: Any) -> list[Any]:
    """The items of a run in their essential fields."""
    listed = []
    for item in result.to_input_list():
        shown = {name: item[name] for name in KEPT if name in item}
        if isinstance(shown.get("content"), list):
            shown["content"] = [{name: part[name] for name in KEPT if name in part} for part in shown["content"]]
        listed.append(shown)
    return listed


def test_answers_in_the_agents_sdk() -> None:
    """Answers: accepted, abstained, raised, given by a handler; the span's data and what the output guardrail says."""
    story = Story()
    for name, answers, options in (
        ("accepted", ["Paris"], {}), ("abstained", UNSURE, {"abstain_message": "Not sure."}),
        ("a handler", UNSURE, {"on_abstain": lambda verdict: "Ask us."}),
    ):  # fmt: skip
        inner = sdk.Scripted(answers)
        model = sdk.guarded(inner, **options)
        agent = sdk.agent(model, output_guardrails=[model.output_guardrail])
        story.title(name)
        try:
            result = sdk.run(agent, "Capital?")
        except agents.OutputGuardrailTripwireTriggered as tripped:
            story.tell(f"tripped: {tripped.guardrail_result.guardrail.get_name()}")
            story.json(tripped.guardrail_result.output.output_info)
            continue
        usage = result.context_wrapper.usage
        story.json(conversation_of(result))
        story.json(result.output_guardrail_results[0].output.output_info)
        story.tell(f"{usage.requests} requests, {usage.input_tokens} and {usage.output_tokens} tokens")
        settings = sorted({(call["settings"].temperature, call["settings"].top_p or 0, call["settings"].max_tokens or 0)
                           for call in inner.calls})  # fmt: skip
        story.tell(f"temperature, top_p, max_tokens: {settings}")
    story.title("raise")
    try:
        sdk.run(sdk.agent(sdk.guarded(sdk.Scripted(UNSURE), on_abstain="raise")), "Capital?")
    except AbstainedError as error:
        story.tell(str(error))
    story.title("the events of a stream")
    message = AIMessage("Paris", tool_calls=[{"name": "pay", "args": {"amount": 5}, "id": "c1"}])
    for event in items.stream_events(items.to_response(message, 3), "m"):
        story.tell(json.dumps(plain(event)))
    story.ends_as("sdk-answers")


def test_held_calls_in_the_agents_sdk() -> None:
    """A held call: the request, and what each decision does."""
    story = Story()
    for number, decision in enumerate(DECISIONS):
        bank = sdk.Bank(sdk.Scripted(sdk.UNSURE, ["Done"]), on_abstain="review")
        agent = sdk.reviewing(bank)
        result = sdk.run(agent, "Pay what I owe")
        (request,) = asyncio.run(bank.model.review_requests(result))
        if not number:
            story.json(request)
        story.title(json.dumps(decision))
        done = asyncio.run(bank.model.resume(agent, result, {request["call_id"]: decision}))
        story.json(conversation_of(done))
        story.tell(f"paid {bank.paid}")
    story.title("An answer")
    for number, decision in enumerate(ABOUT_ANSWERS):
        inner = sdk.Scripted(UNSURE)
        model = sdk.guarded(inner, on_abstain="review")
        agent = sdk.agent(model, tools=[model.answer_tool])
        result = sdk.run(agent, "Capital?")
        (request,) = asyncio.run(model.review_requests(result))
        if not number:
            story.json({name: request[name] for name in ("kind", "candidate", "action_requests", "review_configs")})
            story.json(conversation_of(result))
        done = asyncio.run(model.resume(agent, result, {request["call_id"]: decision}))
        story.tell(f"{json.dumps(decision)}: {done.final_output}")
    story.ends_as("sdk-held")


def test_refusals_in_the_agents_sdk(tmp_path: Path) -> None:
    """What the guard refuses."""
    story = Story()
    bank = sdk.Bank(sdk.Scripted(sdk.UNSURE, ["Done"]), on_abstain="review")
    sure = sdk.Scripted(["Paris"])
    model = sdk.guarded(sure)
    review = sdk.guarded(sure, on_abstain="review")
    seeded = ModelSettings(extra_args={"seed": 1})
    first = {"tool_use_behavior": "stop_on_first_tool"}

    def running(agent: Any, prompt: Any = "q", **options: Any) -> Any:
        return lambda: sdk.run(agent, prompt, **options)

    lost = [{"type": "function_call_output", "call_id": "c9", "output": "1"}]
    rows: list[tuple[str, Any]] = [
        ("a hosted tool", running(sdk.agent(model, tools=[WebSearchTool()]))),
        ("another tool", running(sdk.agent(model, tools=[bank._tool()]))),
        ("a temperature", running(sdk.agent(model, model_settings=ModelSettings(temperature=0.1)))),
        ("a response of the server", running(sdk.agent(model), previous_response_id="r")),
        ("a fragment", running(sdk.agent(model), lost)),
        ("an unknown item", running(sdk.agent(model), [{"type": "computer_call", "call_id": "c"}])),
        ("arguments that are no JSON", running(sdk.agent(model), [
            {"type": "function_call", "name": "pay", "arguments": "[1]", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "1"}])),
        ("another prompt", running(agents.Agent(name="one", instructions="Be rude.", model=model))),
        ("no answer tool", running(sdk.agent(review))),
        ("the answer tool of another model", running(sdk.agent(model, tools=[bank.model.answer_tool]))),
        ("a tool that cannot wait", running(bank.agent(needs_approval=False))),
        ("ends at the first tool", running(sdk.agent(bank.model, tools=[bank.model.tool(bank._tool()),
                                                                        bank.model.answer_tool], **first))),
        ("fewer tools", running(sdk.agent(bank.model, tools=[bank.model.answer_tool]))),
        ("its own tool is gated", lambda: GuardedModel(sure, tools={"guardrail_answer": "collect"})),
        ("collecting without a person", lambda: GuardedModel(sure, tools={"pay": "collect"}, on_abstain="message")),
        ("settings of a chat model", lambda: GuardedModel(ScriptedChat(), calibrated_settings=ModelSettings())),
        ("a seed", lambda: AgentsModelChat(model=sure, calibrated_settings=seeded).guardrail_identity()),
        ("an unknown argument", lambda: AgentsModelChat(model=sure, settings={})),  # type: ignore[call-arg]
        ("a format of another type", lambda: items.Format({"type": "json_object"})),
        ("a choice of a hosted tool", lambda: items.request_bindings([], [], None, {"type": "web"})),
        ("a tool that is only described", lambda: asyncio.run(
            items.as_tools([{"function": {"name": "pay"}}])[0].on_invoke_tool(None, ""))),  # type: ignore[arg-type, union-attr]
        ("an unknown setting", lambda: check_call({"temprature": 1, "top_p": None}, "the models")),
        ("a setting that changes answers", lambda: refuse_settings({}, {"top_p": 0.5, "a": None}, (), "settings")),
    ]  # fmt: skip
    for name, work in rows:
        story.failure(name, work)
    story.title("A decision about another call, and an edit of a tool that cannot run it")
    result = sdk.run(bank.agent(), "Pay 5")
    (request,) = asyncio.run(bank.model.review_requests(result))
    for call, decision in (("other", APPROVE), (request["call_id"], edit("pay", {"amount": 7}))):
        story.failure(json.dumps(decision), lambda: asyncio.run(bank.model.decide(result, {call: decision})))  # noqa: B023
    story.title("Identities")
    for chat in (
        AgentsModelChat(model=sure),
        AgentsModelChat(model=sure, calibrated_settings=ModelSettings(verbosity="low"), name_of_model="x"),
    ):
        story.json(chat.guardrail_identity().model_dump())
    story.tell(str(settings_revision("m", {})), str(settings_revision("m", {"a": 1})))
    story.json(plain(asyncio.run(agent_bindings(bank.agent()))))
    story.ends_as("sdk-refused")


def test_messages_of_the_agents_sdk() -> None:
    """Items as messages, and messages as items."""
    story = Story()
    listed: list[Any] = [
        {"role": "user", "content": "a"}, {"role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_image", "image_url": "u"}]},
        {"type": "reasoning", "id": "r"}, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "name": "pay", "arguments": '{"a": 1}', "call_id": "c1"},
        {"type": "function_call", "name": "pay", "arguments": "", "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "function_call", "name": "guardrail_answer", "arguments": "{}", "call_id": "c3"},
        {"type": "function_call_output", "call_id": "c3", "output": "x"},
    ]  # fmt: skip
    for message in items.from_items("Be brief.", listed):
        calls = [dict(call) for call in getattr(message, "tool_calls", [])]
        story.tell(f"{message.type}: {message.text!r} {calls} {message.additional_kwargs}")
    story.tell(
        str(items.from_items(None, "one text")[0].content),
        str(items.decided_answer(listed)),
        str(items.decided_answer("x")),
    )
    call: Any = {"name": "pay", "args": {"a": "é"}, "id": "c1", "type": "tool_call"}
    messages = [SystemMessage("s"), HumanMessage("h"), AIMessage("a", tool_calls=[call])]
    more = [
        ToolMessage("t", tool_call_id="c1"),
        AIMessage("", tool_calls=[call]),
        AIMessage(""),
        SystemMessage("later"),
    ]
    story.json(items.to_items([*messages, *more]))
    story.ends_as("sdk-messages")


# -- pydantic-ai -------------------------------------------------------------------------------------------------------


FIELDS = ("content", "tool_name", "args")


def spoken_in(result: Any) -> list[Any]:
    """The messages of a run in their essential fields."""
    listed: list[Any] = []
    for message in result.all_messages():
        shown = [
            {"kind": part.part_kind, **{name: plain(getattr(part, name)) for name in FIELDS if hasattr(part, name)}}
            for part in message.parts
        ]
        metadata = plain(getattr(message, "metadata", None))
        listed.append({"kind": message.kind, "parts": shown, **({"metadata": metadata} if metadata else {})})
    return listed


def test_answers_in_pydantic_ai() -> None:
    """Answers: accepted, abstained, raised, given by a handler."""
    story = Story()
    for name, answers, options in (
        ("accepted", pyd.SURE_TEXT, {}), ("abstained", UNSURE, {"abstain_message": "Not sure."}),
        ("a handler", UNSURE, {"on_abstain": lambda verdict: "Ask us."}),
    ):  # fmt: skip
        inner = pyd.Scripted(answers)
        result = asyncio.run(pyd.agent(pyd.guarded(inner, **options)).run("Capital?"))
        story.title(name)
        story.json(spoken_in(result))
        story.tell(
            f"{result.usage.requests} requests, {result.usage.input_tokens} and {result.usage.output_tokens} tokens"
        )
        story.tell(json.dumps(sorted({json.dumps(call["settings"], sort_keys=True) for call in inner.calls})))
    story.title("raise")
    try:
        asyncio.run(pyd.agent(pyd.guarded(pyd.Scripted(UNSURE), on_abstain="raise")).run("Capital?"))
    except AbstainedError as error:
        story.tell(str(error))
    story.ends_as("pydantic-answers")


PLAIN = {"probe": "off", "early_stopping": "off"}


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def banking(**options: Any) -> tuple[Any, GuardCapability]:
    inner = pyd.Scripted(pyd.UNSURE, ["Done"])
    blank = pyd.agent(inner, tools=[pay], output_type=[str, DeferredToolRequests])
    bound = asyncio.run(pydantic_bindings(blank))
    guard = GuardCapability(pyd.artifact_for(inner, bindings=bound), guard_options=dict(PLAIN), **options)
    return pyd.agent(inner, tools=[pay], output_type=[str, DeferredToolRequests], capabilities=[guard]), guard


def test_held_calls_in_pydantic_ai() -> None:
    """A held call: the request, and what each decision does."""
    story = Story()
    for number, decision in enumerate(DECISIONS):
        agent, guard = banking()
        result = asyncio.run(agent.run("Pay what I owe"))
        (request,) = asyncio.run(guard.review_requests(result))
        if not number:
            story.json(request)
            story.json(plain(result.output.metadata))
        story.title(json.dumps(decision))
        done = asyncio.run(guard.resume(agent, result, {request["call_id"]: decision}))
        story.json(
            [{name: value for name, value in message.items() if name != "metadata"} for message in spoken_in(done)]
        )
    story.title("Without a person, the model is told")
    agent, guard = banking(held="retry")
    result = asyncio.run(agent.run("Pay what I owe"))
    story.json([message["parts"] for message in spoken_in(result)])
    story.title("An answer")
    for number, decision in enumerate(ABOUT_ANSWERS):
        inner = pyd.Scripted(UNSURE)
        guard = GuardCapability(pyd.artifact_for(inner), guard_options=dict(PLAIN))
        agent = pyd.agent(inner, output_type=[str, DeferredToolRequests], capabilities=[guard])
        result = asyncio.run(agent.run("Capital?"))
        (request,) = asyncio.run(guard.review_requests(result))
        if not number:
            story.json({name: request[name] for name in ("kind", "candidate", "action_requests", "review_configs")})
        done = asyncio.run(guard.resume(agent, result, {request["call_id"]: decision}))
        story.tell(f"{json.dumps(decision)}: {done.output}")
    story.ends_as("pydantic-held")


def test_refusals_in_pydantic_ai() -> None:
    """What the guard refuses."""
    story = Story()
    sure = pyd.Scripted(pyd.SURE_TEXT)
    model, review = pyd.guarded(sure), cast(Any, "review")
    agent, guard = banking()
    result = asyncio.run(agent.run("Pay"))
    (request,) = asyncio.run(guard.review_requests(result))

    def running(agent: Any, prompt: Any = "q", **options: Any) -> Any:
        return lambda: asyncio.run(agent.run(prompt, **options))

    rows: list[tuple[str, Any]] = [
        ("review without a capability", lambda: PydanticGuardedModel(sure, on_abstain=review)),
        ("no deferred requests", lambda: pyd.agent(sure, capabilities=[GuardCapability(pyd.artifact_for(sure))])),
        ("collecting without a person", lambda: GuardCapability(tools={"pay": "collect"}, on_abstain="message")),
        ("another tool", running(pyd.agent(model, tools=[pay]))),
        ("a temperature", running(pyd.agent(model, model_settings={"temperature": 0.1}))),
        ("another prompt", running(pydantic_ai.Agent(model, instructions="Be rude."))),
        ("a prompted output", running(pyd.agent(model, output_type=PromptedOutput(int)))),
        ("a seed", lambda: PydanticAIChat(model=sure, calibrated_settings={"seed": 1}).guardrail_identity()),
        ("a tool of the guard's name", running(pyd.agent(
            sure, tools=[pydantic_ai.Tool(pay, name="guardrail_answer")], output_type=[str, DeferredToolRequests],
            capabilities=[GuardCapability(pyd.artifact_for(sure))]))),
        ("a decision about another call", lambda: asyncio.run(guard.decide(result, {"other": APPROVE}))),
        ("an edit of another tool", lambda: asyncio.run(guard.decide(result, {request["call_id"]: edit("close", {})}))),
        ("a format of another type", lambda: parts.as_parameters(
            bindings_for((), response_format={"type": "json_object"}), None)),
    ]  # fmt: skip
    for name, work in rows:
        story.failure(name, work)
    story.title("Identities")
    for chat in (PydanticAIChat(model=sure), PydanticAIChat(model=sure, calibrated_settings={"top_k": 3})):
        story.json(chat.guardrail_identity().model_dump())
    story.json(plain(asyncio.run(pydantic_bindings(pyd.agent(sure, tools=[pay])))))
    story.ends_as("pydantic-refused")


def test_messages_of_pydantic_ai() -> None:
    """Messages of pydantic-ai as LangChain's, and back."""
    story = Story()
    picture = its.BinaryContent(b"p", media_type="image/png")
    paying = its.ToolCallPart("pay", {"amount": 5}, tool_call_id="c1")
    history: list[Any] = [
        its.ModelRequest(parts=[its.SystemPromptPart("s"), its.UserPromptPart(["h", picture])]),
        its.ModelResponse(parts=[its.ThinkingPart("?"), its.TextPart("a"), paying]),
        its.ModelRequest(parts=[its.ToolReturnPart("pay", "paid", tool_call_id="c1")]),
        its.ModelRequest(parts=[its.UserPromptPart("again")]),
        its.ModelResponse(parts=[its.ToolCallPart("guardrail_answer", {}, tool_call_id="c2")]),
        its.ModelRequest(parts=[its.ToolReturnPart("guardrail_answer", "x", tool_call_id="c2")]),
    ]  # fmt: skip
    for message in parts.from_messages(history, ModelRequestParameters()):
        carried = [len(message.additional_kwargs[parts.MESSAGES]), repr(message.additional_kwargs[parts.MESSAGES])]
        story.tell(
            f"{message.type}: {message.text!r} {[dict(call) for call in getattr(message, 'tool_calls', [])]} {carried}"
        )
    decided = parts.decided_answer(history)
    story.tell(f"decided: {decided and decided[0]}")
    story.failure(
        "a prompt with an approval",
        lambda: parts.decided_answer(
            [
                *history[:-1],
                its.ModelRequest(
                    parts=[
                        its.ToolReturnPart("guardrail_answer", "A person let this answer go out.", tool_call_id="c2"),
                        its.UserPromptPart("p"),
                    ]
                ),
            ]
        ),
    )
    call: Any = {"name": "pay", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    instructions, back = parts.to_messages([SystemMessage("s"), HumanMessage("h"), AIMessage("a", tool_calls=[call]),
                                            ToolMessage("t", tool_call_id="c1"), SystemMessage("later")])  # fmt: skip
    story.tell(f"instructions: {instructions}")
    for given in back:
        shown = [(part.part_kind, *(getattr(part, name, None) for name in FIELDS)) for part in given.parts]
        story.tell(f"{given.kind}: {shown}")
    story.ends_as("pydantic-messages")


def test_the_queue(tmp_path: Path) -> None:
    """Held calls of both frameworks in the review queue, and the trail of each."""
    story, clock = Story(), [1_000_000.0]
    with ReviewStore(str(tmp_path / "reviews.db"), clock=lambda: clock[0]) as store:
        for framework in ("sdk", "pydantic-ai"):
            for action in ("approve", "reject", "expired"):
                story.title(f"{framework}, {action}")
                bridge: Any
                if framework == "sdk":
                    bank = sdk.Bank(sdk.Scripted(sdk.UNSURE, ["Done"]), on_abstain="review")
                    guard, agent, bridge = bank.model, sdk.reviewing(bank), ReviewBridge(store, expires_in=60)
                    result: Any = sdk.run(agent, "Pay")
                else:
                    agent, guard = banking()
                    bridge, result = PydanticBridge(store, expires_in=60), asyncio.run(agent.run("Pay"))
                (item,) = asyncio.run(bridge.enqueue(guard, result))
                story.tell(f"{item.content.kind}: {item.content.question}, {item.content.metadata}")
                if action == "expired":
                    clock[0] += 61
                    store.expire()
                else:
                    lease = store.claim("Eve", item=item.id)
                    assert lease is not None
                    store.decide(lease, Decision(action=cast(Any, action), note="n"))
                done = asyncio.run(bridge.resume(guard, agent, result))
                again = asyncio.run(bridge.resume(guard, agent, result))
                story.tell(f"{getattr(done, 'final_output', None) or done.output}; again: {again}")
                story.tell(*(f"trail: {event.what} {json.dumps(event.detail)}" for event in store.trail(item.id)))
    story.ends_as("frameworks-queue")
