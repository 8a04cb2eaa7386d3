"""A person's decision holds, even if other middleware, a cache, a response format or a message comes between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents.middleware import AgentMiddleware, after_model, before_model, wrap_model_call
from langchain.agents.middleware.types import hook_config
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command
from pydantic import BaseModel

from guardrail.bindings import bindings_for
from guardrail.guard.abstention import ABSTENTION
from guardrail.verdict import AbstainedError
from integrations._agents.langchain_requests import name_of
from integrations.langchain_agents import GuardrailMiddleware
from tests.integrations.agents.agent_fakes import TOOLS, AgentChat, Counter, artifact_of, calls, sending
from tests.integrations.agents.guarded_agents import agent_of as guarded
from tests.integrations.agents.guarded_agents import deciding, gate, graph_of, interrupt_of, texts, thread

APPROVE = {"type": "approve"}
REJECT = {"type": "reject"}
LAPSE = {"type": "lapse", "message": "nobody decided"}


def respond(text: str) -> dict[str, Any]:
    return {"type": "respond", "message": text}


def edit(name: str, *, beside: str | None = None, **args: Any) -> dict[str, Any]:
    text = {} if beside is None else {"text": beside}
    return {"type": "edit", "edited_action": {"name": name, "args": args}, **text}


def agent_of(model: AgentChat, *others: Any, tools: Sequence[Any] = TOOLS, first: bool = False) -> Any:
    """An agent with a gate, listed last unless it shall be first."""
    own = gate(model)
    return guarded(model, [own, *others] if first else [*others, own], tools)


def structured_agent(model: AgentChat, strategy: Any, *, native: bool, **more: Any) -> Any:
    """An agent with a response format, calibrated with what LangChain asks the model for."""
    if native:
        bound = bindings_for(TOOLS, **ProviderStrategy(Weather).to_model_kwargs())
    else:
        bound = bindings_for([*TOOLS, Weather], tool_choice="any")
    artifact = artifact_of(model)
    artifact = artifact.model_copy(update={"plan": artifact.plan.model_copy(update={"bindings": bound})})
    own = GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"], **more)
    return guarded(model, own, response_format=strategy)


def decide(agent: Any, *decisions: dict[str, Any], config: Any = None) -> dict[str, Any]:
    result: dict[str, Any] = agent.invoke(deciding(*decisions), config or thread())
    return result


def unsure_transfer(text: str = "", *more: Any) -> AgentChat:
    """Five different transfers, with the same text beside them; then "Done."."""
    transfers = [calls(("transfer", {"to": "bob", "amount": 5 + k}), *more, text=text) for k in range(5)]
    return AgentChat(steps={("pay bob", 0): transfers, ("pay bob", 1): ["Done."]})


# -- a global cache ------------------------------------------------------------------------------------------------


@pytest.fixture
def cached() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("cached")
def test_a_cache_gives_nobody_the_decision_of_another_thread() -> None:
    """One customer's approved transfer would run for another."""
    agent = agent_of(AgentChat(steps={("what?", 0): [f"ans{k}" for k in range(5)]}))
    decisions = {"1": APPROVE, "2": respond("No."), "3": respond("It is 500.")}
    answers = {}
    for name, decision in decisions.items():
        agent.invoke({"messages": "what?"}, thread(name))
        answers[name] = texts(decide(agent, decision, config=thread(name)))[-1]
    assert answers == {"1": "ans0", "2": "No.", "3": "It is 500."}


# -- other middleware ----------------------------------------------------------------------------------------------


@before_model
def clock(state: Any, runtime: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage("(It is 12:00.)")]}


@before_model
def rebuilt(state: Any, runtime: Any) -> dict[str, Any]:
    """The conversation with new ids, as trimming may leave it."""
    again = [message.model_copy(update={"id": None}) for message in state["messages"][-3:]]
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *again]}


@after_model
def logbook(state: Any, runtime: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage("(noted)")]}


@pytest.mark.parametrize("other", [clock, rebuilt, logbook], ids=["clock", "rebuilt", "logbook"])
@pytest.mark.parametrize("first", [False, True])
def test_middleware_that_writes_messages_makes_no_approval_void(other: Any, first: bool) -> None:
    """The trap of point 1 again: approve "ans0", and be asked about "ans5"."""
    model = Counter()
    agent = agent_of(model, other, first=first)
    candidate = interrupt_of(agent.invoke({"messages": "what?"}, thread()))["candidate"]["text"]
    result = decide(agent, APPROVE)
    assert "__interrupt__" not in result
    assert candidate in texts(result)
    assert "A person is checking this before it goes out." not in texts(result)
    assert texts(result).count("what?") == 1
    assert model.made == 5


@pytest.mark.parametrize("decision", [APPROVE, respond("mine")])
def test_middleware_that_asks_another_model_cannot_replace_what_was_decided(decision: dict[str, Any]) -> None:
    """The person approved another answer."""
    other = AgentChat(steps={("what?", 0): ["other"]}, name_of_model="other")

    @wrap_model_call
    def swap(request: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(request.override(model=other))

    agent = agent_of(AgentChat(), swap, first=True)
    assert interrupt_of(agent.invoke({"messages": "what?"}, thread()))["candidate"]["text"] == "other"
    other.steps = {("what?", 0): ["quite another"]}
    assert texts(decide(agent, decision)) == ["what?", decision.get("message", "other")]


class StopsOnce(AgentMiddleware):
    """Ends the turn right after a decision."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        self.seen += 1
        return {"jump_to": "end"} if self.seen == 2 else None


def test_a_decision_that_did_not_go_out_is_not_given_out_in_the_next_turn() -> None:
    """It would answer another question."""
    model = Counter()
    agent = agent_of(model, StopsOnce())
    agent.invoke({"messages": "what?"}, thread())
    assert texts(decide(agent, APPROVE)) == ["what?"]
    again = interrupt_of(agent.invoke({"messages": "and this?"}, thread()))
    assert (again["question"], again["candidate"]["text"]) == ("and this?", "ans5")


def test_what_an_application_adds_while_a_person_decides_stays() -> None:
    """A note of the application would be lost with the placeholder."""
    agent = agent_of(Counter())
    agent.invoke({"messages": "what?"}, thread())
    agent.update_state(thread(), {"messages": [HumanMessage("else?")]})
    assert interrupt_of(agent.invoke(None, thread()))["candidate"]["text"] == "ans0"
    assert texts(decide(agent, APPROVE)) == ["what?", "else?", "ans0"]


def test_what_comes_with_the_decision_stays() -> None:
    """A message that is sent with the decision would be lost."""
    agent = agent_of(Counter())
    agent.invoke({"messages": "what?"}, thread())
    both: Any = Command(resume={"decisions": [APPROVE]}, update={"messages": [HumanMessage("else?")]})
    assert texts(agent.invoke(both, thread())) == ["what?", "else?", "ans0"]


def test_an_application_may_remove_the_line_that_says_it_is_held() -> None:
    """The resumed run would fail on a message that is gone."""
    agent = agent_of(Counter())
    line = agent.invoke({"messages": "what?"}, thread())["messages"][-1]
    agent.update_state(thread(), {"messages": [RemoveMessage(id=line.id)]})
    agent.invoke(None, thread())
    assert texts(decide(agent, APPROVE)) == ["what?", "ans0"]


# -- text beside calls ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", [REJECT, respond("not now"), LAPSE])
def test_text_beside_a_call_that_does_not_run_does_not_go_out(decision: dict[str, Any]) -> None:
    """The user would read that the transfer is done."""
    agent = agent_of(unsure_transfer("I have sent it."))
    agent.invoke({"messages": "pay bob"}, thread())
    modes: Any = ["messages", "values"]
    chunks = list(agent.stream(Command(resume={"decisions": [decision]}), thread(), stream_mode=modes))
    assert "I have sent it." not in str([chunk for mode, chunk in chunks if mode == "messages"])
    assert texts(chunks[-1][1])[1] == ""
    assert texts(chunks[-1][1])[-1] == "Done."


@pytest.mark.parametrize(
    ("decisions", "text"),
    [
        ((APPROVE, APPROVE), "Both are on their way."),
        ((APPROVE, edit("transfer", to="eve", amount=2)), "Both are on their way."),
        ((APPROVE, REJECT), ""),
        ((edit("transfer", beside="One is.", to="bob", amount=5), REJECT), "One is."),
    ],
)
def test_text_beside_several_calls_goes_out_if_all_of_them_may_run(decisions: Any, text: str) -> None:
    """It speaks of all of them."""
    agent = agent_of(unsure_transfer("Both are on their way.", ("transfer", {"to": "eve", "amount": 1})))
    agent.invoke({"messages": "pay bob"}, thread())
    assert texts(decide(agent, *decisions))[1] == text


# -- structured output ---------------------------------------------------------------------------------------------


class Weather(BaseModel):
    """The weather."""

    degrees: int


def structured_and_call() -> AgentChat:
    both = [calls(("Weather", {"degrees": k}), ("transfer", {"to": "bob", "amount": k})) for k in range(5)]
    return AgentChat(steps={("pay bob", 0): both, ("pay bob", 1): ["Done."]})


@pytest.mark.parametrize(
    ("decisions", "structured", "ran"),
    [
        ((REJECT, REJECT), None, "rejected"),
        ((respond("no"), APPROVE), None, "sent 0 to bob"),
        ((LAPSE, LAPSE), None, "was not run"),
        ((APPROVE, APPROVE), 0, "sent 0 to bob"),
        ((edit("Weather", degrees=7), REJECT), 7, "rejected"),
    ],
)
def test_a_structured_answer_beside_a_call_is_decided_about(decisions: Any, structured: int | None, ran: str) -> None:
    """It would go out with the decision about the call alone."""
    agent = structured_agent(structured_and_call(), ToolStrategy(Weather), native=False)
    value = interrupt_of(agent.invoke({"messages": "pay bob"}, thread()))
    assert [action["name"] for action in value["action_requests"]] == ["Weather", "transfer"]
    result = decide(agent, *decisions)
    response = result.get("structured_response")
    assert (None if response is None else response.degrees) == structured
    assert [
        message for message in result["messages"] if isinstance(message, ToolMessage) and ran in str(message.content)
    ]
    given_out = [call["name"] for message in result["messages"] for call in getattr(message, "tool_calls", [])]
    assert ("Weather" in given_out) == (structured is not None)


def test_a_second_turn_has_nothing_of_the_first_ones_structured_answer() -> None:
    """A program that reads ``structured_response`` would take yesterday's answer for today's."""
    forecasts = [calls(("Weather", {"degrees": k})) for k in range(5)]
    model = AgentChat(steps={("warm?", 0): forecasts[3:4], ("cold?", 0): forecasts})
    agent = structured_agent(model, ToolStrategy(Weather), native=False)
    assert agent.invoke({"messages": "warm?"}, thread())["structured_response"] == Weather(degrees=3)
    for decision in (REJECT, respond("mild")):
        assert agent.invoke({"messages": "cold?"}, thread()).get("structured_response") is None
        assert decide(agent, decision).get("structured_response") is None


def test_a_call_that_is_repeated_after_an_edit_or_a_resume_is_not_run_on_the_earlier_decision() -> None:
    """An approval is of one call: the model's next one waits again, and the same answer twice runs it once."""
    model = unsure_transfer()
    model.steps = {**model.steps, ("pay bob", 1): model.steps["pay bob", 0], ("pay bob", 2): ["Done."]}
    agent = agent_of(model)
    agent.invoke({"messages": "pay bob"}, thread())
    held = decide(agent, edit("transfer", to="bob", amount=7))
    assert interrupt_of(held)["action_requests"][0]["args"] == {"to": "bob", "amount": 5}
    sent = [text for text in texts(decide(agent, APPROVE)) if "sent" in text]
    assert [text.rpartition("\n")[2] for text in sent] == ["sent 7 to bob", "sent 5 to bob"]
    drawn = model.made
    assert [text for text in texts(decide(agent, APPROVE)) if "sent" in text] == sent
    assert model.made == drawn


@pytest.mark.parametrize("name", ["", "qwen2.5-7b", "gpt-4o-mini", "unnamed"])
def test_a_schema_as_response_format_is_asked_for_as_without_a_gate(name: str) -> None:
    """The guard must not change how the model is asked, or calibration would be about another request."""

    class Named(AgentChat):
        model_name: str = name

    model = Named(steps={("cold?", 0): [calls(("Weather", {"degrees": 3}))]})
    native = name == "gpt-4o-mini"
    if native:
        model.steps = {("cold?", 0): [json.dumps({"degrees": 3})]}
    agent = structured_agent(model, Weather, native=native)
    assert agent.invoke({"messages": "cold?"}, thread())["structured_response"] == Weather(degrees=3)


def test_the_name_is_that_of_the_innermost_text() -> None:
    """LangChain chooses by the name how structured output is asked for."""

    class Wrapped(AgentChat):
        model: Any = None

    assert name_of(Wrapped(model=AgentChat())) == "unnamed"
    assert name_of(Wrapped(model="m")) == "m"


@pytest.mark.parametrize("strategy", [Weather, ProviderStrategy(Weather)], ids=["schema", "provider"])
@pytest.mark.parametrize(
    ("decision", "text", "degrees"),
    [
        (APPROVE, '{"degrees": 0}', 0),
        (edit("answer", text='{"degrees": 7}'), '{"degrees": 7}', 7),
        (edit("answer", text="mild"), "mild", None),
        (respond("mild"), "mild", None),
        ({**REJECT, "message": "Ask Bob."}, ABSTENTION, None),
    ],
)
def test_native_structured_output_is_released_or_replaced_and_never_stuck(
    strategy: Any, decision: dict[str, Any], text: str, degrees: int | None
) -> None:
    """LangChain would ask the model again for an object, after the decision."""
    model = native_weather()
    agent = structured_agent(model, strategy, native=True)
    agent.invoke({"messages": "cold?"}, thread())
    drawn_before = model.made
    result = decide(agent, decision)
    response = result.get("structured_response")
    assert (texts(result)[-1], None if response is None else response.degrees) == (text, degrees)
    assert model.made == drawn_before
    assert texts(agent.invoke({"messages": "thanks"}, thread()))[-1]  # the thread goes on


def test_native_structured_output_that_abstains_raises() -> None:
    """A text in place of the object would be parsed."""
    agent = structured_agent(native_weather(), ProviderStrategy(Weather), native=True, on_abstain="message")
    with pytest.raises(AbstainedError):
        agent.invoke({"messages": "cold?"}, thread())


def native_weather() -> AgentChat:
    different = [json.dumps({"degrees": k}) for k in range(5)]
    return AgentChat(
        steps={("cold?", 0): different, ("thanks", 0): ['{"degrees": 1}']}, profile={"structured_output": True}
    )


# -- at the tools --------------------------------------------------------------------------------------------------


def command_of(form: str, call_id: str) -> Any:
    messages = [ToolMessage("sent", tool_call_id=call_id), HumanMessage("aside")]
    update: Any = {"messages": messages} if form == "mapping" else [("messages", messages)]
    return Command(update=update)


@pytest.mark.parametrize("form", ["text", "blocks", "mapping", "pairs"])
def test_the_model_is_told_of_an_edit_whatever_the_tool_returns(form: str) -> None:
    """The model would repeat the call that the person changed."""

    class Returns(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            call_id = request.tool_call["id"]
            if form in ("text", "blocks"):
                content: Any = "sent" if form == "text" else [{"type": "text", "text": "sent"}]
                return ToolMessage(content, tool_call_id=call_id)
            return command_of(form, call_id)

    agent = agent_of(unsure_transfer(), Returns(), first=True)
    agent.invoke({"messages": "pay bob"}, thread())
    result = decide(agent, edit("transfer", to="bob", amount=7))
    (answered,) = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    assert answered.text.startswith("Note: a person changed this call before it ran; it ran with to='bob', amount=7.")
    assert answered.text.endswith("sent")
    assert [message.text for message in result["messages"]].count("aside") == (form in ("mapping", "pairs"))


def test_calls_that_share_an_id_are_decided_about_one_by_one() -> None:
    """Some models give all calls one id, and the approval of one would run the other."""
    ran: list[tuple[str, int]] = []

    @tool
    def transfer(to: str, amount: int) -> str:
        """Send money."""
        ran.append((to, amount))
        return "sent"

    twins: Any = [
        {"name": "transfer", "args": {"to": "bob", "amount": k}, "id": "x", "type": "tool_call"} for k in (1, 1)
    ]
    other = AgentChat(
        steps={("pay bob", 0): [AIMessage("", tool_calls=twins)], ("pay bob", 2): ["Done."]}, name_of_model="other"
    )

    @wrap_model_call
    def swap(request: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(request.override(model=other))

    agent = agent_of(
        AgentChat(steps={("pay bob", 0): [sending(5)]}), swap, first=True, tools=[TOOLS[0], transfer, TOOLS[2]]
    )
    agent.invoke({"messages": "pay bob"}, thread())
    decide(agent, REJECT, APPROVE)
    assert ran == [("bob", 1)]


# -- what a state cannot hold --------------------------------------------------------------------------------------

WEI = 25 * 10**18


@pytest.mark.parametrize("sure", [False, True])
def test_a_call_that_a_state_cannot_hold_is_held_with_the_reason(sure: bool) -> None:
    """The checkpointer would fail, and the thread be lost."""
    transfers = [calls(("transfer", {"to": "bob", "amount": WEI + (0 if sure else k)})) for k in range(5)]
    agent = agent_of(AgentChat(steps={("pay bob", 0): transfers, ("pay bob", 1): ["Done."]}))
    value = interrupt_of(agent.invoke({"messages": "pay bob"}, thread()))
    assert value["verdict"]["reason"] == "unmeasured"
    assert "a tool call holds an integer of 65 bits" in value["verdict"]["detail"]
    assert value["review_configs"][0]["allowed_decisions"] == ["reject", "respond"]
    assert texts(decide(agent, respond("Too much."))) == ["pay bob", "Too much."]


def test_so_is_one_in_a_plain_graph() -> None:
    """The checkpointer would fail, and the thread be lost."""
    model = AgentChat(steps={("pay bob", 0): [calls(("transfer", {"to": "bob", "amount": WEI}))]})
    graph = graph_of(model)
    value = interrupt_of(graph.invoke({"messages": ["pay bob"]}, thread()))
    assert value["verdict"]["reason"] == "unmeasured"
    assert "an integer of 65 bits" in value["verdict"]["detail"]
    assert texts(decide(graph, respond("mine")))[-1] == "mine"


# -- what a second look found ---------------------------------------------------------------------------------------


class Jumps(AgentMiddleware):
    """Goes straight to the model, past the ``before_agent`` of all others."""

    @hook_config(can_jump_to=["model"])
    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return {"jump_to": "model"}


class FailsOnce(AgentMiddleware):
    """Its second ``before_model`` fails."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        self.seen += 1
        if self.seen == 2:
            raise ConnectionError("redis down")
        return None


def test_an_approved_answer_goes_out_after_an_error_but_not_to_another_question() -> None:
    """A model that was down after the decision would lose it, or answer the next question with it."""
    model = Counter()
    agent = agent_of(model, Jumps(), FailsOnce())
    agent.invoke({"messages": "what?"}, thread())
    with pytest.raises(ConnectionError):
        decide(agent, APPROVE)
    again = interrupt_of(agent.invoke({"messages": "and this?"}, thread()))
    assert (again["question"], again["candidate"]["text"], model.made) == ("and this?", "ans5", 10)


def test_it_goes_out_when_the_same_run_goes_on() -> None:
    """A run that is retried would lose the decision."""
    model = Counter()
    agent = agent_of(model, Jumps(), FailsOnce())
    agent.invoke({"messages": "what?"}, thread())
    with pytest.raises(ConnectionError):
        decide(agent, APPROVE)
    assert texts(agent.invoke(None, thread())) == ["what?", "ans0"]
    assert model.made == 5


def lone_weather() -> AgentChat:
    return AgentChat(steps={("cold?", 0): [calls(("Weather", {"degrees": k})) for k in range(5)]})


@pytest.mark.parametrize(
    ("decision", "text", "degrees"),
    [
        (APPROVE, "", 0),
        (edit("answer", text='{"degrees": 7}'), "", 7),
        (edit("answer", text='{"degrees": "about three"}'), '{"degrees": "about three"}', None),
        (edit("answer", text="[7]"), "[7]", None),
        (edit("answer", text="mild"), "mild", None),
        (respond("mild"), "mild", None),
    ],
)
def test_a_structured_answer_alone_is_shown_and_edited_as_json(
    decision: dict[str, Any], text: str, degrees: int | None
) -> None:
    """A person can only correct what is shown."""
    model = lone_weather()
    agent = structured_agent(model, ToolStrategy(Weather, handle_errors=False), native=False)
    value = interrupt_of(agent.invoke({"messages": "cold?"}, thread()))
    assert value["action_requests"][0]["args"] == {"text": '{"degrees": 0}'}
    result = decide(agent, decision)
    response = result.get("structured_response")
    assert (texts(result)[1], None if response is None else response.degrees) == (text, degrees)
    assert model.made == 5


def test_an_edited_structured_answer_that_fits_no_schema_goes_out_as_text() -> None:
    """The person's words would be lost, or the model asked again."""
    agent = structured_agent(structured_and_call(), ToolStrategy(Weather, handle_errors=False), native=False)
    agent.invoke({"messages": "pay bob"}, thread())
    result = decide(agent, edit("Weather", degrees="about three"), APPROVE)
    assert texts(result)[1:] == ['{"degrees": "about three"}', "sent 0 to bob", "Done."]
    assert result.get("structured_response") is None
