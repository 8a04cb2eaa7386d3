"""Gates, agents and graphs of `agent_fakes`, and what they show a person."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from guardrail import Guardrail
from guardrail.prompting import PromptWrapping
from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import GuardedNodes, GuardedState
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of

CONFIG: Any = {"configurable": {"thread_id": "1"}}
APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


def gate(model: AgentChat, **more: Any) -> GuardrailMiddleware:
    """A gate on answers and on all calls but of `balance`."""
    artifact = artifact_of(model)
    return GuardrailMiddleware(**{"artifact": artifact, "tools": {"*": artifact}, "exempt": ["balance"], **more})


def agent_of(model: AgentChat, middleware: GuardrailMiddleware | Sequence[Any], tools: Any = TOOLS, **more: Any) -> Any:
    """An agent that keeps its checkpoints in memory."""
    listed = [middleware] if isinstance(middleware, GuardrailMiddleware) else list(middleware)
    options: dict[str, Any] = {"checkpointer": InMemorySaver(), **more}
    return create_agent(model, tools=tools, system_prompt=SYSTEM, middleware=listed, **options)


def graph_of(model: AgentChat, saver: Any = None) -> Any:
    """A plain graph with guarded nodes; its artifact has no system prompt."""
    artifact = artifact_of(model)
    artifact = artifact.model_copy(update={"prompt": PromptWrapping()})
    builder = StateGraph(GuardedState)
    entry, leave = GuardedNodes(Guardrail(model=model, artifact=artifact)).add_to(builder)
    builder.add_edge(START, entry)
    builder.add_edge(leave, END)
    return builder.compile(checkpointer=saver or InMemorySaver())


def thread(name: str = "1") -> Any:
    """The configuration of a thread."""
    return {"configurable": {"thread_id": name}}


def deciding(*decisions: Any) -> Any:
    """A resume with these decisions."""
    return Command(resume={"decisions": list(decisions)})


def interrupt_of(result: dict[str, Any]) -> dict[str, Any]:
    """What a person is asked, which is plain JSON."""
    (interrupted,) = result["__interrupt__"]
    json.dumps(interrupted.value)
    value: dict[str, Any] = interrupted.value
    return value


def texts(result: Any) -> list[str]:
    """The texts of the conversation."""
    return [str(message.text) for message in result["messages"]]
