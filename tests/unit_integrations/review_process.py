"""A process that runs a guarded agent on a durable checkpointer: `ask` pauses and hangs, `resume` goes on.

Run by tests/unit_integrations/test_langgraph_review.py, which kills the first one.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langgraph.types import Command

from integrations.langchain_agents import GuardrailMiddleware

from .agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of, sending

CONFIG: Any = {"configurable": {"thread_id": "1"}}


def saver_of(url: str) -> AbstractContextManager[Any]:
    """A checkpointer on SQLite (a path) or PostgreSQL (an address)."""
    if url.startswith("postgresql://"):
        from langgraph.checkpoint.postgres import PostgresSaver

        return PostgresSaver.from_conn_string(url)
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(url)


def main(what: str, url: str, out: str) -> None:
    steps = {("pay bob", 0): [sending(5), *(sending(k) for k in range(4))], ("pay bob", 1): ["Done."]}
    model = AgentChat(steps=steps)
    made = artifact_of(model)
    with saver_of(url) as saver:
        saver.setup()
        middleware = GuardrailMiddleware(made, tools={"*": made}, exempt=["balance"])
        agent: Any = create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=[middleware], checkpointer=saver)
        if what == "ask":
            result = agent.invoke({"messages": "pay bob"}, CONFIG)
            (found,) = result["__interrupt__"]
            frozen = saver.get_tuple(CONFIG).checkpoint["channel_values"]["guardrail"]
            found_now = {"value": found.value, "made": model.made, "frozen": frozen}
            Path(out).write_text(json.dumps(found_now), encoding="utf-8")
            time.sleep(600)  # killed here
        result = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
        shown = [message.text for message in result["messages"]]
        calls = [call["args"] for message in result["messages"] for call in getattr(message, "tool_calls", [])]
        Path(out).write_text(json.dumps({"texts": shown, "calls": calls, "made": model.made}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
