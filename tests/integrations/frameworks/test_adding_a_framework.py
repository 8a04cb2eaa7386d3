"""The sketch of an adapter in CONTRIBUTING.md holds calls of a framework that this project has never seen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import Field

from guardrail.bindings import bindings_for
from guardrail.testing import ended, make_artifact
from guardrail.types import Bindings
from integrations._agents import framework_guard
from integrations._frameworks import chat

PAGE = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")


@dataclass
class LlmRequest:
    """A request of the toy framework."""

    messages: list[BaseMessage]
    tools: list[Any] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


class BaseLlm:
    """A model of the toy framework: sure of what it pays Ada, guesses otherwise."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.drawn = 0

    async def generate_content_async(self, request: LlmRequest) -> AsyncGenerator[AIMessage]:
        self.drawn += 1
        amount = 5 if "Ada" in request.messages[-1].text or not request.settings["temperature"] else self.drawn
        yield ended(AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": amount}, "id": f"m{self.drawn}"}]))


def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def last_of(answers: AsyncGenerator[Any]) -> Any:
    return [answer async for answer in answers][-1]


def sketch() -> dict[str, Any]:
    """The names that the page defines, with the translation that it leaves to its reader."""
    (code,) = re.findall(r"^```python\n(HARMLESS.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {
        **vars(chat),
        **vars(framework_guard),
        **{kind.__name__: kind for kind in (AsyncGenerator, BaseLlm, LlmRequest)},
        **{
            "BaseTool": Any,
            "ClassVar": ClassVar,
            "Field": Field,
            "LlmResponse": AIMessage,
            "ToolContext": Any,
            "last_of": last_of,
        },
        "from_request": lambda request: request.messages,
        "last_results": lambda request: ({}, ()),
        "read_response": lambda message: message,
        "request_bindings": lambda request: bindings_for(request.tools),
        "settings_of": lambda request: request.settings,
        "to_request": lambda messages, settings: LlmRequest(messages, settings=settings),
        "to_response": lambda message: message,
    }
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    return names


def test_the_sketch_of_an_adapter_runs_sure_calls_and_holds_others() -> None:
    names = sketch()
    inner = BaseLlm("toy")
    artifact = make_artifact(names["AdkChat"](model=inner), n=4, bindings=Bindings(tools=bindings_for([pay]).tools))
    guarded = names["GuardedLlm"](inner, artifact, probe="off")

    async def proposed(text: str) -> tuple[dict[str, Any], Any]:
        message = await last_of(guarded.generate_content_async(LlmRequest([HumanMessage(text)], [pay])))
        (call,) = message.tool_calls
        asked: list[str] = []
        context = SimpleNamespace(
            function_call_id=call["id"], tool_confirmation=None, request_confirmation=lambda hint: asked.append(hint)
        )
        return call, (context, asked)

    async def run() -> None:
        tool = SimpleNamespace(name="pay")
        call, (context, asked) = await proposed("Pay Ada")
        assert (await guarded.before_tool(tool, call["args"], context), asked) == (None, [])
        call, (context, asked) = await proposed("Pay Bob")
        assert await guarded.before_tool(tool, call["args"], context) == {"error": framework_guard.NOT_RUN}
        assert asked == ["A person decides about this call."]
        context.tool_confirmation = SimpleNamespace(confirmed=True)
        assert await guarded.before_tool(tool, call["args"], context) is None
        assert await guarded.before_tool(tool, {"amount": 99}, context) == {"error": framework_guard.NOT_RUN}

    asyncio.run(run())
