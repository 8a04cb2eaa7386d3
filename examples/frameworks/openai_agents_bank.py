"""OpenAI Agents SDK: an agent that moves money, and a person who is asked if it is not certain.

Offline: the model is a script, so nothing is sent anywhere. With a real model, `inner` is
`OpenAIChatCompletionsModel(model=..., openai_client=...)` and the artifact comes from `calibrate run`.

    python -m examples.frameworks.openai_agents_bank
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from agents import Agent, Runner, RunState, Tool, function_tool, set_tracing_disabled
from langchain_core.messages import AIMessage

from guardrail import PromptWrapping
from guardrail.testing import ScriptedChat, make_artifact
from integrations.openai_agents_guard import GuardedModel, VerdictStore, agent_bindings

SYSTEM = "You move money."


def transfer(amount: int, to: str) -> str:
    """Transfer an amount in euros."""
    return f"{amount} euros sent to {to}"


def call(amount: int, to: str) -> AIMessage:
    """Return the scripted model's answer: one call of the tool."""
    args: dict[str, Any] = {"amount": amount, "to": to}
    return AIMessage("", tool_calls=[{"name": "transfer", "args": args, "id": "x", "type": "tool_call"}])


inner = ScriptedChat(
    script={
        "Send 50 euros to Ada.": [call(50, "Ada")],
        "Send her what I owe.": [call(50, "Ada"), call(500, "Ada"), call(5, "Eve"), call(50, "Eve"), call(5, "Ada")],
    }
)


def make_agent(model: Any, *tools: Tool) -> Agent[Any]:
    """Return the agent; its run ends with the transfer's result."""
    return Agent(
        name="bank",
        instructions=SYSTEM,
        model=model,
        tools=list(tools),
        tool_use_behavior={"stop_at_tool_names": ["transfer"]},
    )


async def main(folder: Path) -> list[str]:
    """Ask for a clear transfer and for a vague one; approve the vague one "days later", from the saved state."""
    bindings = await agent_bindings(make_agent("any", function_tool(transfer)))  # calibration needs the same tools
    artifact = make_artifact(inner, prompt=PromptWrapping(system=SYSTEM), bindings=bindings)
    guarded = GuardedModel(inner, artifact, verdicts=VerdictStore(folder / "verdicts.sqlite"))
    agent = make_agent(guarded, guarded.tool(transfer), guarded.answer_tool)
    lines = []

    result = await Runner.run(agent, "Send 50 euros to Ada.")
    lines.append(f"sure:     {result.final_output}")

    result = await Runner.run(agent, "Send her what I owe.")
    (waiting,) = result.interruptions
    (asked,) = await guarded.review_requests(result)
    lines.append(f"unsure:   {waiting.name}({waiting.arguments}) waits for a person")
    lines.append(f"          {asked['action_requests'][0]['description']}")
    written = result.to_state().to_string()  # a file or a database row

    state = await RunState.from_string(agent, written)
    state.approve(state.get_interruptions()[0])
    result = await Runner.run(agent, state)  # exactly the call that was shown; nothing is drawn again
    lines.append(f"approved: {result.final_output}")
    return lines


if __name__ == "__main__":
    set_tracing_disabled(True)
    with tempfile.TemporaryDirectory() as place:
        print("\n".join(asyncio.run(main(Path(place)))))
