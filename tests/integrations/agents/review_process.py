"""A process that runs a guarded agent on a durable checkpointer, for `test_langgraph_review`.

`die` approves what waits in the queue and is killed by its own tool, `again` goes on once the lease has expired.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver

from guardrail.review import Decision, ReviewStore
from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import ReviewBridge
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, artifact_of, balance, close, sending, transfer
from tests.integrations.frameworks.cases import decide_in

CONFIG: Any = {"configurable": {"thread_id": "1"}}


@tool("transfer", description=transfer.description, args_schema=transfer.args_schema)
def deadly(to: str, amount: int) -> str:
    """`transfer`, in which the process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def main(step: str, path: str, out: str) -> None:
    steps = {("pay bob", 0): [sending(5), *(sending(k) for k in range(4))], ("pay bob", 1): ["Done."]}
    model = AgentChat(steps=steps)
    artifact = artifact_of(model)
    now = 1000.0
    with SqliteSaver.from_conn_string(path) as saver, ReviewStore(f"{path}.reviews", clock=lambda: now) as store:
        agent: Any = create_agent(
            model,
            tools=[balance, deadly if step == "die" else transfer, close],
            system_prompt=SYSTEM,
            middleware=[GuardrailMiddleware(artifact, tools={"*": artifact}, exempt=["balance"])],
            checkpointer=saver,
        )
        bridge = ReviewBridge(store, lease=60)
        if step == "die":
            decide_in(store, store.items()[0], Decision(action="approve"))
        at_once = bridge.resume(agent, CONFIG, durability="sync")  # the kill would otherwise race with the checkpoint
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
    main(*sys.argv[1:])
