"""The agent's gated model: what its judges show, and how many calls it makes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents import create_agent
from langgraph.graph import END, START, MessagesState, StateGraph

from guardrail.judges import Judge, JudgeSpec
from guardrail.prompting import PromptWrapping
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import make_estimator as make
from guardrail.verdict import Verdict
from integrations.langchain_agents import GuardrailMiddleware
from tests.guardrail.sampling.test_limits import Busy, Seen, soon
from tests.guardrail.uncertainty.test_async_measuring import PATIENCE
from tests.integrations.agents.agent_fakes import SYSTEM

ASKED: Any = {"messages": "what?"}
SAME = ["Paris", "It is Paris", "Paris, France", "In Paris", "Paris it is"]
"""Other words for one thing; only a judge can say so."""
PROMPT = PromptWrapping(system=SYSTEM)


class Own(Judge):
    """Somebody's judge; counts the pairs that it compares."""

    n_compared = 0

    def __init__(self, same: Any, name: str = "own") -> None:
        self._name, self._same = name, same

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name=self._name, version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.n_compared += len(pairs)
        return [self._same(left, right) for left, right in pairs]


def middleware(model: ScriptedChat, *, judge: Any = None, n: int = 4, **more: Any) -> GuardrailMiddleware:
    artifact = make_artifact(model, threshold=0.5, prompt=PROMPT, n=n)
    if judge is not None:
        spec = make("discrete_semantic_entropy", judge=judge).spec
        artifact = artifact.model_copy(update={"estimator": spec})
        more["using"] = {"judge": judge}
    return GuardrailMiddleware(artifact, **{"on_abstain": "message", **more})


def agent_of(model: ScriptedChat, **more: Any) -> Any:
    return create_agent(model, system_prompt=SYSTEM, middleware=[middleware(model, **more)])


# -- what streams show ---------------------------------------------------------------------------------------------

MARK = "the judge's own words"


def asking() -> Own:
    """A judge that asks a chat model itself, knowing nothing of callbacks."""
    chat = ScriptedChat(default=[MARK])
    return Own(lambda left, right: chat.invoke("same?").text == MARK)


def asking_a_graph() -> Own:
    """A judge that asks a graph with a model in it."""
    chat = ScriptedChat(default=[MARK])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("judge", lambda state: {"messages": [chat.invoke(state["messages"])]})
    graph.add_edge(START, "judge")
    graph.add_edge("judge", END)
    compiled = graph.compile()
    return Own(lambda left, right: compiled.invoke({"messages": "same?"})["messages"][-1].text == MARK)


JUDGES = {"model": asking, "graph": asking_a_graph}


@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("judge", JUDGES)
async def test_no_stream_shows_what_a_judge_asks(judge: str, subgraphs: bool) -> None:
    """A judge's prompt holds the answers that are compared."""

    def watched(verdict: Verdict, messages: Any) -> None:  # an observer asks, too
        JUDGES[judge]().equivalent("", [("a", "b")])

    own = JUDGES[judge]()
    agent = agent_of(ScriptedChat(default=SAME), judge=own, on_verdict=watched)
    modes: Any = {"stream_mode": ["values", "updates", "messages", "custom"], "subgraphs": subgraphs}
    chunks = list(agent.stream(ASKED, **modes))
    assert len(chunks) >= 3
    assert MARK not in str(chunks)
    compared_before, own.n_compared = own.n_compared, 0
    agent = agent_of(ScriptedChat(default=SAME), judge=own, on_verdict=watched)  # it remembers nothing
    chunks = [chunk async for chunk in agent.astream(ASKED, **modes)]
    assert len(chunks) >= 3
    assert MARK not in str(chunks)
    assert own.n_compared == compared_before > 0


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("judge", JUDGES)
async def test_no_event_shows_what_a_judge_asks(judge: str, version: Any) -> None:
    """A judge's prompt holds the answers that are compared."""
    own = JUDGES[judge]()
    agent = agent_of(ScriptedChat(default=SAME), judge=own)
    events = agent.astream_events(ASKED, version=version)
    shown = [event async for event in (events if version == "v2" else await events)]
    assert own.n_compared
    assert "Paris" in str(shown)
    assert MARK not in str(shown)


# -- how many calls at once ----------------------------------------------------------------------------------------


def counted(n: int) -> Busy:
    return Busy(default=["a", "b", "c"], seen=Seen(), crowd=n + 1)


@pytest.mark.parametrize("exempt", [(), ("reads",)], ids=["all at once", "primary first"])
@pytest.mark.parametrize("n", [1, 2])
def test_the_limit_of_the_configuration_bounds_the_samples(n: int, exempt: Any) -> None:
    """A server with few slots would refuse the calls above its limit."""
    model = counted(n)
    agent = agent_of(model, n=10, exempt=exempt)
    soon(lambda: agent.invoke(ASKED, {"max_concurrency": n}))
    assert model.seen.calls == 11
    assert model.seen.peak <= n
    model = counted(n)
    agent = agent_of(model, n=10, exempt=exempt)
    asyncio.run(asyncio.wait_for(agent.ainvoke(ASKED, {"max_concurrency": n}), PATIENCE))
    assert model.seen.calls == 11
    assert model.seen.peak == n


def test_the_middleware_s_own_limit_holds_within_it() -> None:
    """The stricter of two limits has its reason."""
    for limit, own, peak in ((5, 2, 2), (2, 5, 2), (None, 3, 3)):
        model = counted(99)
        agent = agent_of(model, n=10, max_concurrency=own)
        asyncio.run(agent.ainvoke(ASKED, {} if limit is None else {"max_concurrency": limit}))
        assert model.seen.peak == peak
