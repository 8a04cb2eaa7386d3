"""Golden stories of guarded agents: what people are asked, what their decisions do, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from guardrail import Guardrail
from guardrail.bindings import bindings_for
from guardrail.errors import AbstainedError, GuardrailError
from guardrail.judges import ToolCallJudge
from guardrail.monitor import SafetySwitch
from guardrail.parts.json_fields import json_spec
from guardrail.prompting import PromptWrapping
from guardrail.review import Candidate, ReviewStore
from guardrail.review import Decision as ReviewDecision
from guardrail.testing import make_artifact
from guardrail.types import MAX_TOKENS, SamplingPlan, ToolCall
from guardrail.verdict import Verdict
from integrations._agents.call_reviews import CallReviews
from integrations._agents.calls import arguments_of, call_digest, call_subject
from integrations._agents.decisions import answer_schema, check_decision_types, checked
from integrations._agents.held import GuardState, from_json, pack, to_json, unpack
from integrations._agents.state import NoteChannel
from integrations._agents.verdicts import VerdictStore
from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import GuardedState, ReviewBridge, guarded_nodes
from tests.golden.serving.conversation import Words
from tests.golden.shown import pretty, rounded, same
from tests.integrations.agents.agent_fakes import (
    SYSTEM,
    TOOLS,
    AgentChat,
    artifact_of,
    balance,
    calls,
    close,
    sending,
    transfer,
)

CONFIG: Any = {"configurable": {"thread_id": "1"}}
SECONDS = re.compile(r'("seconds": )[\d.e-]+')
NAMES = re.compile(r"(guardrail-(?:held-)?|step-)(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12})")
APART = ["Rome", "Oslo", "Bern", "Riga", "Lima"]
PAYING = {("pay bob", 0): [sending(5), *(sending(k) for k in range(4))], ("pay bob", 1): ["Done."]}
BOTH = calls(("transfer", {"to": "bob", "amount": 5}), ("close", {"account": "a"}), text="Both.")
OTHER = [
    calls(("transfer", {"to": "bob", "amount": k}), ("close", {"account": "a"}), text="Both.") for k in range(6, 10)
]


class Story:
    """A text of what agents do."""

    def __init__(self) -> None:
        self.words, self._told = Words({}), list[str]()

    def tell(self, *lines: str) -> None:
        self._told += [SECONDS.sub(r"\g<1>0", self.words.replace(NAMES.sub(r"\1NAME", line))) for line in lines]

    def title(self, text: str) -> None:
        self.tell("", f"## {text}", "")

    def json(self, value: Any) -> None:
        self.tell(pretty(rounded(json.loads(json.dumps(value, default=repr)))))

    def messages(self, result: Mapping[str, Any]) -> None:
        """The conversation, with what the guard wrote into the metadata."""
        for message in result["messages"]:
            self.tell(*spoken(message))

    def failure(self, what: str, work: Callable[[], object]) -> None:
        """Tell the error of some work, or that there was none."""
        try:
            work()
        except ValidationError as error:
            listed = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
            said = "ValidationError: " + "; ".join(listed)
        except (GuardrailError, InvalidUpdateError, ValueError) as error:
            said = f"{type(error).__name__}: {error}".partition("\nFor troubleshooting")[0]
        else:
            said = "works"
        self.tell(f"{what}\n  {said}")

    def ends_as(self, name: str) -> None:
        same(f"agents/{name}.txt", "\n".join(self._told))


def spoken(message: BaseMessage) -> list[str]:
    """A message in lines."""
    status = f" ({message.name}, {message.status})" if isinstance(message, ToolMessage) else ""
    lines = [f"{message.type}{status}: {message.text}"]
    if isinstance(message, AIMessage):
        lines += [f"  calls {call['name']} {json.dumps(call['args'])} ({call['id']})" for call in message.tool_calls]
        own = {name: value for name, value in message.response_metadata.items() if name.startswith("guardrail")}
        shown = rounded(json.loads(json.dumps(own, default=repr)))
        for name, value in shown.items():
            lines += [f"  {name}: {line}" if not n else f"  {line}" for n, line in enumerate(pretty(value).split("\n"))]
        if message.usage_metadata:
            tokens = message.usage_metadata
            lines.append(f"  {tokens['input_tokens']} and {tokens['output_tokens']} tokens")
    return lines


def agent_of(model: AgentChat, middleware: Any, tools: Any = TOOLS, **more: Any) -> Any:
    listed = middleware if isinstance(middleware, list) else [middleware]
    settings = {"system_prompt": SYSTEM, "checkpointer": InMemorySaver(), **more}
    return create_agent(model, tools=tools, middleware=listed, **settings)


def gate(model: AgentChat, **more: Any) -> GuardrailMiddleware:
    artifact = artifact_of(model)
    return GuardrailMiddleware(**{"artifact": artifact, "tools": {"*": artifact}, "exempt": ["balance"], **more})


def deciding(*decisions: Any) -> Any:
    return Command(resume={"decisions": list(decisions)})


def edit(name: str, args: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": name, "args": args}, **more}


APPROVE = {"type": "approve"}
NOTED = ("phase", "placeholder", "asked", "message", "orders")


def note_of(agent: Any) -> Any:
    note = unpack(agent.get_state(CONFIG).values.get("guardrail"))
    return None if note is None else to_json(note)


# -- held messages and decisions ---------------------------------------------------------------------------------------


def test_a_held_call() -> None:
    """A held call: the interrupt, the note in the state, the conversation meanwhile, and what each decision does."""
    story = Story()
    model = AgentChat(steps=PAYING)
    agent = agent_of(model, gate(model))
    result = agent.invoke({"messages": "pay bob"}, CONFIG)
    story.title("The interrupt")
    story.json(result["__interrupt__"][0].value)
    story.title("The note in the checkpoint")
    story.json(note_of(agent))
    story.title("The conversation meanwhile")
    story.messages(agent.get_state(CONFIG).values)
    decisions: list[dict[str, Any]] = [
        APPROVE, edit("transfer", {"to": "bob", "amount": 7}), edit("transfer", {"to": "bob", "amount": 5}, text="Ok."),
        {"type": "reject"}, {"type": "reject", "message": "wrong bob"}, {"type": "respond", "message": "by hand"},
        {"type": "lapse", "message": "Nobody decided in time."},
    ]  # fmt: skip
    for decision in decisions:
        story.title(json.dumps(decision))
        agent = agent_of(model, gate(model))
        agent.invoke({"messages": "pay bob"}, CONFIG)
        result = agent.invoke(deciding(decision), CONFIG)
        for message in result["messages"]:
            lines = spoken(message)
            review = getattr(message, "response_metadata", {}).get("guardrail", {}).get("review")
            story.tell(lines[0], *(line for line in lines if line.startswith("  calls")))
            story.tell(*([f"  review: {json.dumps(review)}"] if review else []))
        story.tell(f"note: {json.dumps(note_of(agent)['orders'])}")
    story.ends_as("held-call")


def test_a_held_answer() -> None:
    """A held answer, and what each decision does."""
    story = Story()
    model = AgentChat(steps={("q", 0): APART, ("nothing", 0): [RuntimeError("down")]})
    agent = agent_of(model, gate(model))
    story.json(agent.invoke({"messages": "q"}, CONFIG)["__interrupt__"][0].value)
    decisions: list[dict[str, Any]] = [
        APPROVE, edit("answer", {"text": "Paris"}), {"type": "reject"}, {"type": "reject", "message": "no"},
        {"type": "respond", "message": "mine"}, {"type": "lapse", "message": "late"},
    ]  # fmt: skip
    for decision in decisions:
        story.title(json.dumps(decision))
        agent = agent_of(model, gate(model))
        agent.invoke({"messages": "q"}, CONFIG)
        last = agent.invoke(deciding(decision), CONFIG)["messages"][-1]
        story.tell(f"{last.text}  {json.dumps(last.response_metadata['guardrail']['review'])}")
    story.title("A model that failed has nothing to approve")
    agent = agent_of(model, gate(model))
    story.json(agent.invoke({"messages": "nothing"}, CONFIG)["__interrupt__"][0].value)
    story.ends_as("held-answer")


def test_two_held_calls() -> None:
    """Parallel calls: one decision for each, the text beside them, and decisions that cannot be carried out."""
    story = Story()
    steps = {("pay bob", 0): [BOTH, *OTHER], ("pay bob", 2): ["Done."]}
    paying, closing = edit("transfer", {"to": "bob", "amount": 7}), edit("close", {"account": "b"})
    rows: list[list[dict[str, Any]]] = [
        [APPROVE, APPROVE], [APPROVE, {"type": "reject"}], [paying, closing], [{**paying, "text": "Mine."}, APPROVE],
        [closing, paying], [APPROVE], [APPROVE] * 3, [{"type": "shrug"}, APPROVE], [{}, APPROVE],
        [{**paying, "text": "a"}, {**closing, "text": "b"}], [edit("transfer", {"amount": float("nan")}), APPROVE],
        [edit("transfer", {"to": "\ud83d"}), APPROVE], [{"type": "respond", "message": " "}, APPROVE],
        [{"type": "reject", "message": "\ud83d"}, APPROVE], [edit("pay", {}), APPROVE],
    ]  # fmt: skip
    for decisions in rows:
        model = AgentChat(steps=steps)
        agent = agent_of(model, gate(model))
        agent.invoke({"messages": "pay bob"}, CONFIG)
        done = list[Any]()
        story.failure(
            json.dumps(decisions),
            lambda: done.append(agent.invoke(deciding(*decisions), CONFIG)),  # noqa: B023
        )
        for message in done[0]["messages"][1:] if done else ():
            story.tell(*(f"    {line}" for line in spoken(message)[:1]))
    story.title("Beside a call that passes without a gate")
    mixed = calls(("balance", {"account": "a"}), ("transfer", {"to": "bob", "amount": 5}))
    apart = [calls(("balance", {"account": "a"}), ("transfer", {"to": "bob", "amount": k})) for k in range(4)]
    model = AgentChat(steps={("pay bob", 0): [mixed, *apart], ("pay bob", 2): ["Done."]})
    agent = agent_of(model, gate(model, allowed_decisions=["edit", "reject"]))
    value = agent.invoke({"messages": "pay bob"}, CONFIG)["__interrupt__"][0].value
    story.json({name: value[name] for name in ("candidate", "action_requests", "review_configs")})
    story.messages(agent.invoke(deciding({"type": "reject"}), CONFIG))
    story.json(note_of(agent)["orders"])
    story.ends_as("two-calls")


class City(BaseModel):
    name: str


def test_a_structured_answer() -> None:
    """A structured answer that is held: shown as an answer, decided as one."""
    story = Story()
    answers = [calls(("City", {"name": name})) for name in ("Rome", "Oslo", "Bern", "Riga", "Lima")]
    decisions: list[dict[str, Any]] = [
        APPROVE, edit("answer", {"text": '{"name": "Paris"}'}), edit("answer", {"text": '{"nom": "Paris"}'}),
        edit("answer", {"text": "Paris"}), {"type": "reject"}, {"type": "respond", "message": "mine"},
    ]  # fmt: skip
    format_ = ToolStrategy(City)
    bound = bindings_for([*TOOLS, City], tool_choice="any")
    for number, decision in enumerate(decisions):
        model = AgentChat(steps={("q", 0): answers})
        artifact = make_artifact(model, threshold=0.5, prompt=PromptWrapping(system=SYSTEM), n=4, bindings=bound)
        guard = GuardrailMiddleware(artifact=artifact, tools={"*": artifact}, exempt=["balance"])
        agent = agent_of(model, guard, response_format=format_)
        value = agent.invoke({"messages": "q"}, CONFIG)["__interrupt__"][0].value
        if not number:
            story.json({name: value[name] for name in ("kind", "candidate", "action_requests", "review_configs")})
        result = agent.invoke(deciding(decision), CONFIG)
        story.title(json.dumps(decision))
        for message in result["messages"][1:]:
            if message.type == "ai":
                story.tell(*[line for line in spoken(message) if line.startswith(("ai", "  calls"))])
        story.tell(f"structured response: {result.get('structured_response')!r}")
    story.ends_as("structured-answer")


# -- other paths -------------------------------------------------------------------------------------------------------


def test_without_a_person() -> None:
    """Accepted and exempt messages; a text, an error, another model or a handler in place of a held message."""
    story = Story()
    steps: Any = {
        **PAYING, ("sure", 0): [sending(5)], ("sure", 1): ["Done."], ("q", 0): APART,
        ("how much?", 0): [calls(("balance", {"account": "a"}))], ("how much?", 1): ["100"],
    }  # fmt: skip
    other = AgentChat(steps={("q", 0): ["from another model"], ("pay bob", 0): [sending(9)], ("pay bob", 1): ["Done."]})
    paths: list[tuple[str, str, Any]] = [
        ("accepted", "sure", "review"), ("exempt", "how much?", "review"), ("message", "q", "message"),
        ("message, a call", "pay bob", "message"), ("raise", "q", "raise"), ("another model", "q", other),
        ("another model's call", "pay bob", other), ("a text of a handler", "q", lambda verdict: "Ask us."),
        ("a handler without an answer", "q", lambda verdict: None),
        ("a message of a handler", "q", lambda verdict: AIMessage("mine")),
    ]  # fmt: skip
    for name, question, path in paths:
        story.title(name)
        model = AgentChat(steps=steps)
        agent = agent_of(model, gate(model, on_abstain=path, abstain_message="Not sure."))
        try:
            result = agent.invoke({"messages": question}, CONFIG)
        except AbstainedError as error:
            story.tell(f"AbstainedError: {error}")
            continue
        for message in result["messages"]:
            lines = spoken(message)
            own = message.response_metadata.get("guardrail") or {}
            story.tell(
                *(line for line in lines if not line.startswith("  ") or line.startswith(("  calls", "  guardrail_")))
            )
            kept = {key: own.get(key) for key in ("accepted", "reason", "detail", "cost") if key in own}
            story.tell(*([f"  {json.dumps(rounded(kept))}"] if kept else []), *lines[-1:] * ("tokens" in lines[-1]))
        story.tell(f"{model.made} calls of the model; orders: {json.dumps(note_of(agent)['orders'])}")
    story.ends_as("without-a-person")


class Changing(AgentMiddleware[Any, Any, Any]):
    """Middleware that changes calls before the guard's tool node sees them."""

    def __init__(self, change: Mapping[str, Any], how: Literal["request", "state"]) -> None:
        super().__init__()
        self._change, self._how = change, how
        self.tools = []

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        changed = {**request.tool_call, **self._change}
        return handler(request.override(tool_call=changed)) if self._how == "request" else handler(request)

    def after_model(self, state: Any, runtime: Any) -> Any:
        last = state["messages"][-1]
        if self._how == "request" or not getattr(last, "tool_calls", None):
            return None
        return {"messages": [last.model_copy(update={"tool_calls": [{**last.tool_calls[0], **self._change}]})]}


class Falling(AgentMiddleware[Any, Any, Any]):
    """Middleware that asks another model."""

    def __init__(self, other: AgentChat) -> None:
        super().__init__()
        self._other = other
        self.tools = []

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(model=self._other))


def test_changed_calls_and_other_models() -> None:
    """Calls that other middleware changed, and messages of another model than the guarded one."""
    story = Story()
    sure: Any = {("pay", 0): [sending(5)], ("pay", 1): ["Done."], ("q", 0): ["Paris"]}
    for how in ("request", "state"):
        for change in ({"args": {"to": "eve", "amount": 5}}, {"name": "close", "args": {"account": "a"}}):
            model = AgentChat(steps=sure)
            listed = [Changing(change, how), gate(model)] if how == "request" else [gate(model), Changing(change, how)]
            result = agent_of(model, listed).invoke({"messages": "pay"}, CONFIG)
            story.title(f"{change} in the {how}")
            story.tell(*(spoken(message)[0] for message in result["messages"]))
    for unjudged in ("hold", "pass"):
        for path in ("review", "message"):
            for question in ("pay", "q"):
                model, other = AgentChat(steps=sure), AgentChat(steps=sure, name_of_model="other")
                guard = gate(model, unjudged=unjudged, on_abstain=path)
                agent = agent_of(model, [guard, Falling(other)])
                story.title(f"another model answers, {unjudged!r}, {path!r}, {question!r}")
                result = agent.invoke({"messages": question}, CONFIG)
                for interrupted in result.get("__interrupt__", ()):
                    verdict = interrupted.value["verdict"]
                    story.json({name: verdict[name] for name in ("accepted", "reason", "detail", "uncertainty")})
                    story.json(interrupted.value["action_requests"])
                story.tell(*(spoken(message)[0] for message in result["messages"]))
                note = note_of(agent)
                story.tell(f"{note['phase']}: {json.dumps(note['orders'])}")
    story.ends_as("changed-calls")


class Greedy(AgentChat):
    """A model that answers as the plan's primary answer is drawn."""

    temperature: float = 0.0
    max_tokens: int = MAX_TOKENS


def test_observing() -> None:
    """An agent that is only observed: it acts, and verdicts are counted."""
    story = Story()
    verdicts = list[Verdict]()
    model = Greedy(steps={**PAYING, ("q", 0): ["Paris"]})
    guard = gate(model, mode="observe", on_verdict=lambda verdict, _: verdicts.append(verdict))
    agent = agent_of(model, guard)
    for question in ("pay bob", "q"):
        story.messages(agent.invoke({"messages": question}, {"configurable": {"thread_id": question}}))
        assert guard.drain(20)
    story.tell(str(guard.observed))
    story.tell(*(f"{verdict.reason}: {verdict.detail}" for verdict in verdicts))
    story.ends_as("observing")


# -- collecting --------------------------------------------------------------------------------------------------------


@tool
def refund(order_id: str, note: str, amount: int) -> str:
    """Refund."""
    return "refunded"


def test_collecting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tools without an artifact: the question about their arguments, the request, and the record."""
    story = Story()
    story.words.add(str(tmp_path), "FOLDER")
    asked = [calls(("refund", {"order_id": "o1", "note": note, "amount": 5})) for note in "abcde"]
    for judge in (None, ToolCallJudge(arguments={"refund": ["order_id", "amount"]})):
        records = tmp_path / f"records-{judge is None}.jsonl"
        model = AgentChat(steps={("refund", 0): asked, ("refund", 1): ["Done."]})
        guard = GuardrailMiddleware(tools={"refund": "collect"}, records=records, judge=judge, plan=SamplingPlan(n=4))
        agent = agent_of(model, guard, tools=[refund])
        caplog.clear()
        value = agent.invoke({"messages": "refund"}, CONFIG)["__interrupt__"][0].value
        story.title("All arguments are compared" if judge is None else "Some arguments are compared")
        story.tell(*(f"log: {record.levelname} {record.getMessage()}" for record in caplog.records))
        story.json(value)
        story.messages(agent.invoke(deciding(APPROVE), CONFIG))
        for line in records.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "header" in record:
                record["header"]["plan"]["bindings"] = "the tools in LangChain's words"
            story.json(record)
    story.ends_as("collecting")


# -- the review queue --------------------------------------------------------------------------------------------------


def test_the_bridge_to_the_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From interrupts to items of the review queue and back, with the trail of each."""
    story = Story()
    call = ToolCall(name="transfer", arguments={"to": "bob", "amount": 7})
    decisions: list[tuple[str, Any]] = [
        ("approve", ReviewDecision(action="approve")), ("reject", ReviewDecision(action="reject", note="wrong bob")),
        ("respond", ReviewDecision(action="respond", text="by hand")),
        ("edit", ReviewDecision(action="edit", candidate=Candidate(text="", tool_calls=(call,)))),
        ("expired", None), ("a new message", ReviewDecision(action="approve")),
        ("changed", ReviewDecision(action="approve")),
    ]  # fmt: skip
    clock = [1_000_000.0]
    with ReviewStore(str(tmp_path / "reviews.db"), clock=lambda: clock[0]) as store:
        bridge = ReviewBridge(store, expires_in=60, metadata={"team": "bank"}, callback="https://example.test/hook")
        for name, decision in decisions:
            story.title(name)
            caplog.clear()
            model = AgentChat(steps={**PAYING, ("never mind", 0): ["Fine."]})
            agent, config = agent_of(model, gate(model)), {"configurable": {"thread_id": name}}
            agent.invoke({"messages": "pay bob"}, config)
            (item,) = bridge.enqueue(agent, config)
            assert bridge.enqueue(agent, config)[0].id == item.id
            if name == "approve":
                story.json(item.content.model_dump(mode="json"))
            story.tell(f"not decided: {bridge.resume(agent, config)}")
            if decision is None:
                clock[0] += 61
                store.expire()
            else:
                lease = store.claim("Eve", item=item.id)
                assert lease is not None
                store.decide(lease, decision)
            if name == "a new message":
                story.messages(agent.invoke({"messages": "never mind"}, config))
            if name == "changed":
                packed = unpack(agent.get_state(config).values["guardrail"])
                assert packed is not None
                assert packed.held is not None
                other = packed.held.message.model_copy(update={"text": "changed"})
                held = packed.held.model_copy(update={"message": other})
                agent.update_state(config, {"guardrail": pack(packed.model_copy(update={"held": held}))})
            result = bridge.resume(agent, config)
            if result is not None:
                story.tell(*(spoken(message)[0] for message in result["messages"]))
            story.tell(f"again: {bridge.resume(agent, config)}")
            story.tell(*(f"dropped: {dropped.state}" for dropped in bridge.drop_stale(agent, config)))
            story.tell(*(f"trail: {event.what} {json.dumps(event.detail)}" for event in store.trail(item.id)))
            story.tell(*(f"log: {record.levelname} {record.getMessage()}" for record in caplog.records))
        story.title("A thread that the checkpointer does not have")
        caplog.clear()
        model = AgentChat(steps=PAYING)
        agent, config = agent_of(model, gate(model)), {"configurable": {"thread_id": "lost"}}
        agent.invoke({"messages": "pay bob"}, config)
        (item,) = bridge.enqueue(agent, config)
        lease = store.claim("Eve", item=item.id)
        assert lease is not None
        store.decide(lease, ReviewDecision(action="approve"))
        story.tell(f"{bridge.resume(agent_of(model, gate(model)), config)}")
        story.tell(*(f"log: {record.levelname} {record.getMessage()}" for record in caplog.records))
    story.ends_as("bridge")


def test_a_plain_graph() -> None:
    """The two nodes of a guarded answer in a graph."""
    story = Story()
    for question, decision in (("sure", None), ("q", {"type": "reject"}), ("q", edit("answer", {"text": "Paris"}))):
        model = AgentChat(steps={("q", 0): APART, ("sure", 0): ["Paris"]})
        nodes = guarded_nodes(
            Guardrail(model=model, artifact=make_artifact(model, threshold=0.5, n=4)), allowed=["edit", "reject"]
        )
        builder = StateGraph(GuardedState)
        entry, leave = nodes.add_to(builder, name="answer")
        builder.add_edge(START, entry)
        builder.add_edge(leave, END)
        graph = builder.compile(checkpointer=InMemorySaver())
        story.title(f"{question}: {entry}, {leave}")
        asked: Any = {"messages": [question]}
        result = graph.invoke(asked, CONFIG)
        for interrupted in result.get("__interrupt__", ()):
            story.json(interrupted.value)
            result = graph.invoke(deciding(decision), CONFIG)
        story.messages(result)
        story.tell(f"note: {result['guardrail']}")
    story.ends_as("plain-graph")


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_refused_middleware(tmp_path: Path) -> None:
    """What `GuardrailMiddleware` refuses when it is made, and what it refuses when the agent runs."""
    story = Story()
    story.words.add(str(tmp_path), "FOLDER")
    model = AgentChat(steps={("q", 0): ["Paris"]})
    mine, other = artifact_of(model), artifact_of(model, threshold=0.4, tools=[balance])
    voted = mine.model_copy(update={"plan": mine.plan.model_copy(update={"primary": "majority"})})
    switch = SafetySwitch("stricter", threshold=0.9)
    story.title("When it is made")
    wrong: list[dict[str, Any]] = [
        {}, {"tools": {}}, {"tools": ["refund"]}, {"tools": {1: mine}}, {"artifact": mine, "exempt": "balance"},
        {"artifact": mine, "exempt": [1]}, {"tools": {"a": mine}, "exempt": ["a"]}, {"tools": {"a": "colect"}},
        {"tools": {"a": str(tmp_path / "none.json")}}, {"artifact": mine, "tools": {"a": other}},
        {"artifact": mine, "tools": {"a": artifact_of(model, n=5)}},
        {"artifact": mine, "mode": "watch"}, {"artifact": mine, "mode": "observe", "observe_rate": 0.0},
        {"artifact": mine, "on_abstain": "shrug"}, {"artifact": mine, "allowed_decisions": []},
        {"artifact": mine, "allowed_decisions": ["approve", "shrug"]}, {"artifact": mine, "early_stopping": "maybe"},
        {"tools": {"a": "collect"}, "on_abstain": "message"}, {"tools": {"a": "collect"}, "mode": "observe"},
        {"artifact": mine, "switch": switch}, {"artifact": mine, "remember_slots": ("user",)},
        {"artifact": make_artifact(model, prompt=PromptWrapping(template="{question} {user}", slots=("user",)), n=4)},
        {"artifact": voted, "mode": "observe"},
        {"artifact": mine, "tools": {"a": make_artifact(model, n=4, bindings=bindings_for(TOOLS))}},
    ]  # fmt: skip
    for settings in wrong:
        shown = {name: "an artifact" if not isinstance(value, str | list | tuple | dict | float) else value
                 for name, value in settings.items()}  # fmt: skip
        listed = {name: {key: "an artifact" if not isinstance(each, str) else each for key, each in value.items()}
                  if isinstance(value, dict) else value for name, value in shown.items()}  # fmt: skip
        story.failure(str(listed), lambda: GuardrailMiddleware(**settings))  # noqa: B023
    story.title("When the agent runs")
    no_tools = artifact_of(model, tools=[])

    def guarded(*tools: str, **more: Any) -> GuardrailMiddleware:
        return GuardrailMiddleware(mine, tools=dict.fromkeys(tools, mine), **more)

    runs: list[tuple[str, Any]] = [
        ("no checkpointer", lambda: agent_of(model, gate(model), checkpointer=None)),
        ("a tool too many", lambda: agent_of(model, guarded("transfer", exempt=["close"]))),
        ("a misspelt tool", lambda: agent_of(model, guarded("transfr", "*"))),
        ("a misspelt exemption", lambda: agent_of(model, guarded("*", exempt=["balnce"]))),
        ("another model", lambda: agent_of(AgentChat(name_of_model="other"), gate(model))),
        ("another system prompt", lambda: agent_of(model, gate(model), system_prompt="Be rude.")),
        ("no system prompt", lambda: agent_of(model, gate(model), system_prompt=None)),
        ("no tools", lambda: agent_of(model, gate(model, exempt=[]), tools=[])),
        ("fewer tools", lambda: agent_of(model, gate(model), tools=[balance, close])),
        ("tools that were not calibrated", lambda: agent_of(
            model, GuardrailMiddleware(no_tools, tools={"*": no_tools}), tools=[transfer])),
        ("settings that are not sent", lambda: agent_of(model, gate(model, calibrated_settings={"effort": "low"}))),
        ("arguments that no tool has", lambda: agent_of(model, GuardrailMiddleware(
            tools={"*": "collect"}, judge=ToolCallJudge(arguments={"transfer": ["sum"]}), records=tmp_path / "r"))),
    ]  # fmt: skip
    for name, build in runs:
        story.failure(name, lambda: build().invoke({"messages": "q"}, CONFIG))  # noqa: B023
    story.ends_as("refused")


def test_parts_are_all_or_nothing_in_a_format() -> None:
    """Answers in parts of an agent: those that are kept."""
    story = Story()
    whole = {"city": "Rome", "zip": "00100"}
    model = AgentChat(steps={("q", 0): [json.dumps(whole), *(json.dumps({**whole, "zip": str(k)}) for k in range(4))]})
    artifact = make_artifact(model, threshold=0.1, n=4, parts=json_spec(cap=4), prompt=PromptWrapping(system=SYSTEM),
                             bindings=bindings_for(TOOLS))  # fmt: skip
    agent = agent_of(model, GuardrailMiddleware(artifact=artifact, exempt=["balance", "transfer", "close"]))
    story.messages(agent.invoke({"messages": "q"}, CONFIG))
    story.ends_as("parts")


# -- notes, digests, stores --------------------------------------------------------------------------------------------


def test_notes_that_cannot_be_read() -> None:
    """Notes in a state: those of another version, damaged ones, and data that is none."""
    story = Story()
    note = GuardState(phase="done")
    story.json(to_json(note))
    story.tell(
        pack(note).partition(":")[0], f"read back: {unpack(pack(note)) == note and from_json(to_json(note)) == note}"
    )
    for value in (
        "acrc-guardrail/2:x", "acrc-guardrail/1:x", "acrc-guardrail/1:eJw=", f"{pack(note)[:-4]}", "other", 5,
        {"layout": "acrc-guardrail/2"}, {"layout": "acrc-guardrail/1"}, {"layout": "acrc-guardrail/1", "phase": "x"},
        {"layout": 5}, {},
    ):  # fmt: skip
        shown = str(value) if not isinstance(value, str) else value[:18]
        story.failure(f"read {shown}", lambda: (unpack(value), from_json(value)))  # noqa: B023
        story.failure(f"write {shown}", lambda: NoteChannel(str, "guardrail").update([value]))  # type: ignore[list-item] # noqa: B023
    story.failure("write two", lambda: NoteChannel(str, "guardrail").update([pack(note), None]))
    story.tell(f"write none: {NoteChannel(str, 'guardrail').update([])} {NoteChannel(str, 'guardrail').update([None])}")
    story.ends_as("notes")


def test_digests_of_calls() -> None:
    """Digests by which stored notes and verdicts know a call again."""
    story = Story()
    for call in (
        {"name": "pay", "args": {"to": "bob", "amount": 5}}, {"name": "pay", "args": {"amount": 5, "to": "bob"}},
        {"name": "pay", "args": {}}, {"name": "pay", "args": {"amount": float("nan")}},
    ):  # fmt: skip
        story.tell(f"{call}: {call_digest(call)!r}, {call_subject('pay', {'a': 1})}")
    for text in ("[1]", "{", "", None, {"a": 1}, '{"a": 1}'):
        story.failure(repr(text), lambda: story.tell(f"arguments: {arguments_of(text)}"))  # noqa: B023
    story.ends_as("digests")


def verdict_of(question: str) -> Verdict:
    model = AgentChat(steps={("q", 0): APART, ("sure", 0): ["Paris"], ("pay bob", 0): PAYING["pay bob", 0]})
    return Guardrail(model=model, artifact=make_artifact(model, threshold=0.5, n=4)).assess(question)


def test_a_store_of_verdicts(tmp_path: Path) -> None:
    """A store of verdicts: what it keeps, how long, and files that it refuses."""
    story = Story()
    story.words.add(str(tmp_path), "FOLDER")
    clock, verdict = [1000.0], verdict_of("q")
    for path, expires in ((None, None), (tmp_path / "verdicts.db", 60.0)):
        store = VerdictStore(path, expires_in=expires, clock=lambda: clock[0])
        store.put("c1", "subject", verdict, "q")
        store.put("c2", "subject", None)
        story.tell(f"{path}: complete {store.is_complete}")
        for key, subject in (("c1", None), ("c1", "subject"), ("c1", "other"), ("c2", None), ("c3", None)):
            found = store.get(key, subject)
            story.tell(
                f"  get {key} {subject}: {None if found is None else found.reason}, question {store.question(key)!r}"
            )
        row = store.find("c2")
        story.tell(f"  find c2: {row}")
        clock[0] += 61
        story.tell(f"  a minute later: {store.find('c1') is not None}")
        story.tell(f"  delete: {store.delete('c1')} {store.delete('c1')}, purge: {store.purge(3600)} {store.purge(60)}")
        store.close()
    other = tmp_path / "other.db"
    other.write_text("no database", encoding="utf-8")
    story.failure("not a database", lambda: VerdictStore(other))
    story.failure("a folder", lambda: VerdictStore(tmp_path))
    story.failure("no time", lambda: VerdictStore(expires_in=0))
    story.ends_as("verdict-store")


async def test_rulings() -> None:
    """Whether a call runs, for frameworks that keep no state of their own."""
    story = Story()
    for complete in (False, True):
        store = VerdictStore(None, expires_in=1000 if complete else None)
        reviews = CallReviews(store, ("approve", "edit", "reject", "respond"))
        args = {"amount": 5}
        held, accepted = verdict_of("q"), verdict_of("sure")
        for key, verdict, prefix in (
            ("held", held, ""),
            ("ok", accepted, ""),
            ("chosen", held, "chosen:"),
            ("free", None, ""),
        ):
            store.put(key, prefix + call_subject("pay", args), verdict, "q")
        story.title(f"a store that is {'' if complete else 'not '}complete")
        for call_id in ("held", "ok", "chosen", "free", "unknown", None):
            for name, arguments in (("pay", args), (None, args), ("close", args), ("pay", {"amount": 6})):
                now = await reviews.ruling(call_id, name, arguments)
                approved = await reviews.ruling(call_id, name, arguments, approved=True, proposed=args)
                story.tell(f"{call_id}, {name} {arguments}: {now}; approved: {approved}")
        request = await reviews.review_request("held", "pay", args)
        if not complete:
            story.json(request)
        story.tell(f"accepted: {await reviews.review_request('ok', 'pay', args)}")
        waiting = {"held": request, "ok": None}
        for decision in (
            {"type": "approve"},
            edit("pay", {"amount": 6}),
            {"type": "reject"},
            {"type": "respond", "message": "m"},
        ):
            orders = reviews.orders(waiting, {"held": decision})
            story.tell(f"{json.dumps(decision)}: {orders['held'].model_dump(mode='json')}")
        story.failure("an unknown call", lambda: reviews.orders(waiting, {"other": APPROVE}))  # noqa: B023
        story.failure("an unknown decision", lambda: reviews.orders(waiting, {"held": {"type": "shrug"}}))  # noqa: B023
        await reviews.note("held", {"amount": 6})
        story.tell(f"noted: {await reviews.noted('held')}")
        await reviews.note("held", None)
        story.tell(f"noted: {await reviews.noted('held')}")
    story.ends_as("rulings")


def test_shapes_of_decisions() -> None:
    """Decisions that a graph takes or refuses."""
    story = Story()
    for allowed, tools in (
        (("approve", "edit", "reject", "respond"), []), (("approve", "edit"), ["pay"]), (("reject",), ["pay", "pay"]),
    ):  # fmt: skip
        story.title(f"{allowed} about {tools or 'an answer'}")
        for decisions in (
            [APPROVE], [edit("answer", {"text": "a"})], [edit("answer", {"text": " "})], [edit("answer", {"t": "a"})],
            [edit("pay", {"a": 1})], [edit("pay", {"a": 1}, text="t")], [{"type": "reject", "message": 5}],
            [{"type": "respond", "message": ""}], [{"type": "lapse", "message": "m"}], [{"type": "reject"}] * 2, [],
        ):  # fmt: skip
            story.failure(json.dumps(decisions), lambda: checked({"decisions": decisions}, allowed, tools))  # type: ignore[arg-type] # noqa: B023
    story.tell(answer_schema(("approve",), []).__name__)
    for wrong in ([], ["aprove"]):
        story.failure(str(wrong), lambda: check_decision_types(wrong))  # type: ignore[arg-type] # noqa: B023
    story.ends_as("decisions")
