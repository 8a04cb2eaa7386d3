"""pydantic-ai: an agent that moves money, and a person who is asked if it is not certain.

Offline: the model is a function, so nothing is sent anywhere. With a real model, `inner` is
`OpenAIChatModel(...)` or any other model, and the artifact comes from `calibrate run`.

    python -m examples.frameworks.pydantic_ai_bank
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from guardrail import PromptWrapping
from guardrail.testing import make_artifact
from integrations.pydantic_ai_guard import GuardCapability, PydanticAIChat, agent_bindings

SYSTEM = "You move money."
amounts = itertools.cycle([500, 5, 55, 505])


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool; a sampled answer to a vague request has another amount each time."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(str(last.content))], finish_reason="stop")
    vague = "what I owe" in str(getattr(last, "content", ""))
    sampled = bool((info.model_settings or {}).get("temperature"))
    amount = next(amounts) if vague and sampled else 50
    call = ToolCallPart("transfer", {"amount": amount, "to": "Ada"})
    return ModelResponse(parts=[call], finish_reason="tool_call")


inner = FunctionModel(scripted, model_name="scripted")


def transfer(amount: int, to: str) -> str:
    """Transfer an amount in euros."""
    return f"{amount} euros sent to {to}"


def make_agent(*guards: GuardCapability) -> Agent[Any, Any]:
    """Return the agent, with or without a guard."""
    return Agent(
        inner,
        instructions=SYSTEM,
        tools=[transfer],
        output_type=[str, DeferredToolRequests],
        capabilities=guards,
    )


async def main() -> list[str]:
    """Ask for a clear transfer and for a vague one; approve the vague one "days later", from the saved messages."""
    bindings = await agent_bindings(make_agent())  # calibration needs the same tools
    chat = PydanticAIChat(model=inner)
    artifact = make_artifact(chat, prompt=PromptWrapping(system=SYSTEM), bindings=bindings)
    guard = GuardCapability(artifact, on_abstain="review", probe="off")
    agent = make_agent(guard)
    lines = []

    result = await agent.run("Send 50 euros to Ada.")
    lines.append(f"sure:     {result.output}")

    result = await agent.run("Send her what I owe.")
    assert isinstance(result.output, DeferredToolRequests)
    (waiting,) = result.output.approvals
    (asked,) = await guard.review_requests(result)
    lines.append(f"unsure:   {waiting.tool_name}({waiting.args_as_json_str()}) waits for a person")
    lines.append(f"          {asked['action_requests'][0]['description']}")
    written = result.all_messages_json()  # a file or a database row

    result = await agent.run(
        message_history=ModelMessagesTypeAdapter.validate_json(written),
        deferred_tool_results=DeferredToolResults(approvals={waiting.tool_call_id: True}),
    )  # exactly the call that was shown; nothing is drawn again
    lines.append(f"approved: {result.output}")
    return lines


if __name__ == "__main__":
    print("\n".join(asyncio.run(main())))
