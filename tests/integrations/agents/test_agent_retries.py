"""A retry gets the verdict again, not another draw: otherwise a wrong answer would look certain sooner or later."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, wrap_model_call
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver

from guardrail.guard.abstention import ABSTENTION
from guardrail.verdict import AbstainedError, Reason, UnmeasuredError
from integrations.langchain_agents import GuardrailMiddleware
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, Counter, artifact_of
from tests.integrations.agents.guarded_agents import CONFIG
from tests.integrations.agents.test_langchain_agents import Alarmed


def retry() -> ModelRetryMiddleware:
    return ModelRetryMiddleware(max_retries=3, initial_delay=0, jitter=False, on_failure="error")


def agent_of(model: AgentChat, *others: Any, first: bool = False, **more: Any) -> Any:
    artifact = artifact_of(model)
    own = GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"], on_abstain="raise", **more)
    middleware = [own, *others] if first else [*others, own]
    saver = InMemorySaver()
    return create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=middleware, checkpointer=saver)


def raised(agent: Any, question: Any = "what?", config: Any = CONFIG) -> AbstainedError:
    with pytest.raises(AbstainedError) as caught:
        agent.invoke(question if question is None else {"messages": question}, config)
    return caught.value


@pytest.mark.parametrize("first", [False, True])
async def test_a_retry_draws_nothing_and_gets_the_same_verdict(first: bool) -> None:
    """Drawing until the gate accepts would void the artifact's promise."""
    model = Counter()
    error = raised(agent_of(model, retry(), first=first))
    assert (error.verdict.reason, model.made) == (Reason.ABOVE_THRESHOLD, 5)
    assert error.verdict.candidate is not None
    assert error.verdict.candidate.text == "ans0"
    with pytest.raises(AbstainedError):
        await agent_of(model, retry(), first=first).ainvoke({"messages": "what else?"}, CONFIG)
    assert model.made == 10


def test_running_the_same_step_again_is_a_retry_too() -> None:
    """A program that goes back to a checkpoint would draw until the gate accepts."""
    model = Counter()
    agent = agent_of(model)
    raised(agent)
    assert raised(agent, None).verdict.candidate is not None
    assert model.made == 5


def test_another_turn_is_asked_anew_and_the_same_prompt_in_another_thread_is_not() -> None:
    """Who asks again in a new thread would draw until the gate accepts."""
    model = Counter()
    agent = agent_of(model)
    raised(agent)
    raised(agent, "what?")
    assert model.made == 10
    raised(agent, "what?", {"configurable": {"thread_id": "2"}})  # a run that is begun again is a retry, too
    assert model.made == 10


def test_other_messages_in_the_same_step_are_another_question() -> None:
    """The answer to the old messages would be given for the new ones."""
    model = Counter()

    @wrap_model_call
    def rephrased(request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except AbstainedError:
            return handler(request.override(messages=[HumanMessage("what exactly?")]))

    raised(agent_of(model, rephrased))
    assert model.made == 10


def test_what_could_not_be_measured_is_tried_again() -> None:
    """An outage of a second would hold the question back for as long as it is remembered."""
    model = AgentChat(steps={("what?", 0): [ConnectionError("down")]})
    error = raised(agent_of(model, retry()))
    assert isinstance(error, UnmeasuredError)
    assert model.made == 4  # of each attempt the first answer, which failed


def test_what_an_alarm_held_back_is_judged_again_and_not_drawn_again() -> None:
    """Once the alarm is over, good answers must go out without a second draw."""
    model, switch = AgentChat(steps={("what?", 0): ["Paris"]}), Alarmed()
    looks = []
    switch.objection = lambda: looks.append(1) or "The error rate has risen."  # type: ignore[method-assign,func-returns-value]
    error = raised(agent_of(model, retry(), on_verdict=switch))
    assert (error.verdict.reason, model.made, len(looks)) == (Reason.SUSPENDED, 5, 4)


def down(verdict: Any) -> Any:
    raise TimeoutError("nobody at the desk")


@pytest.mark.parametrize("path", [down, RunnableLambda(down)], ids=["handler", "runnable"])
@pytest.mark.parametrize("first", [False, True])
def test_a_failing_way_out_of_an_abstention_is_no_reason_to_draw_again(path: Any, first: bool) -> None:
    """The verdict stands, so a second draw would only select."""
    model = Counter()
    artifact = artifact_of(model)
    own = GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"], on_abstain=path)
    middleware: list[Any] = [own, retry()] if first else [retry(), own]
    agent: Any = create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=middleware)
    with pytest.raises(TimeoutError):
        agent.invoke({"messages": "what?"})
    assert model.made == 5  # the retry took the way out again, with the same verdict


@wrap_model_call
def swallowing(request: Any, handler: Any) -> Any:
    """Takes the hold for a failure."""
    with suppress(Exception):
        return handler(request)
    return handler(request)


@wrap_model_call
def twice(request: Any, handler: Any) -> Any:
    handler(request)
    return handler(request)


@pytest.mark.parametrize("other", [swallowing, twice], ids=["swallowing", "twice"])
@pytest.mark.parametrize("first", [True, False])
def test_middleware_that_asks_again_about_a_held_message_draws_it_once(other: Any, first: bool) -> None:
    """Middleware that takes the hold for a failure would draw until the gate accepts."""
    model = Counter()
    artifact = artifact_of(model)
    own = GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"])
    listed: list[Any] = [own, other] if first else [other, own]
    agent: Any = create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=listed, checkpointer=InMemorySaver())
    (interrupt,) = agent.invoke({"messages": "what?"}, CONFIG)["__interrupt__"]
    assert (interrupt.value["candidate"]["text"], model.made) == ("ans0", 5)


def test_middleware_that_asks_again_about_a_message_in_place_of_an_answer_gets_it_again() -> None:
    """Middleware that is not content with an abstention would draw until the gate accepts."""
    model = Counter()
    artifact = artifact_of(model)
    own = GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"], on_abstain="message")
    agent: Any = create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=[twice, own])
    assert (agent.invoke({"messages": "what?"})["messages"][-1].text, model.made) == (ABSTENTION, 5)
