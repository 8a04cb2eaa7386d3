"""A process that runs a guarded agent on a durable checkpointer.

`ask` pauses and hangs, `resume` goes on. `die` has the queue's approval carried out and is killed by its own tool,
`again` repeats that. Run by tests/integrations/agents/test_langgraph_review.py, which kills the first one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.types import Command

from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import ReviewBridge
from tests.integrations.agents.agent_fakes import (
    SYSTEM,
    TOOLS,
    AgentChat,
    artifact_of,
    balance,
    close,
    sending,
    transfer,
)

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def saver_of(url: str) -> AbstractContextManager[Any]:
    """A checkpointer on SQLite (a path) or PostgreSQL (an address)."""
    if url.startswith("postgresql://"):
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver.from_conn_string(url)
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(url)


def main(step: str, url: str, out: str) -> None:
    steps = {("pay bob", 0): [sending(5), *(sending(k) for k in range(4))], ("pay bob", 1): ["Done."]}
    model = AgentChat(steps=steps)
    artifact = artifact_of(model)
    with saver_of(url) as saver:
        saver.setup()
        middleware = GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"])
        agent: Any = create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=[middleware], checkpointer=saver)
        if step == "ask":
            result = agent.invoke({"messages": "pay bob"}, CONFIG)
            (interrupt,) = result["__interrupt__"]
            found_now = {"value": interrupt.value, "made": model.made}
            Path(out).write_text(json.dumps(found_now), encoding="utf-8")
            time.sleep(600)  # killed here
        result = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
        shown = [message.text for message in result["messages"]]
        calls = [call["args"] for message in result["messages"] for call in getattr(message, "tool_calls", [])]
        Path(out).write_text(json.dumps({"texts": shown, "calls": calls, "made": model.made}), encoding="utf-8")


@tool("transfer", description=transfer.description, args_schema=transfer.args_schema)
def deadly(to: str, amount: int) -> str:
    """`transfer`, in which the process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def carry_out(step: str, url: str, out: str) -> None:
    """Resume through the queue: first with a tool that kills; after the lease has expired, with a working tool."""
    from guardrail.review import Decision, ReviewStore

    steps = {("pay bob", 0): [sending(5), *(sending(k) for k in range(4))], ("pay bob", 1): ["Done."]}
    model = AgentChat(steps=steps)
    artifact = artifact_of(model)
    now = 1000.0
    with saver_of(url) as saver, ReviewStore(f"{url}.reviews", clock=lambda: now) as store:
        saver.setup()
        agent: Any = create_agent(
            model,
            tools=[balance, deadly if step == "die" else transfer, close],
            system_prompt=SYSTEM,
            middleware=[GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"])],
            checkpointer=saver,
        )
        bridge = ReviewBridge(store, lease=60)
        if step == "die":
            agent.invoke({"messages": "pay bob"}, CONFIG)
            (item,) = bridge.enqueue(agent, CONFIG)
            lease = store.claim("ann", item=item.id)
            assert lease is not None
            store.decide(lease, Decision(action="approve"))
            bridge.resume(agent, CONFIG)
        at_once = bridge.resume(agent, CONFIG)
        now = 1060.0
        result = bridge.resume(agent, CONFIG)
        report = {
            "at_once": at_once,
            "texts": None if result is None else [message.text for message in result["messages"]],
            "made": model.made,
            "afterwards": bridge.resume(agent, CONFIG),
            "trail": [event.what for event in store.trail()],
        }
        Path(out).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    (carry_out if sys.argv[1] in ("die", "again") else main)(*sys.argv[1:])
