"""Which calls of tools run in an agent of pydantic-ai: those that the gate accepted or a person approved, unchanged."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pydantic_ai import ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset, ToolsetTool, WrapperToolset
from pydantic_core import to_jsonable_python

from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json
from guardrail.sampling.effects import arun

from .._agents.calls import ANSWER_TOOL, arguments_of
from .._agents.decisions import edit_note
from .._agents.framework_guard import NOT_RUN, FrameworkGuard
from .._agents.unsure import CallCheck
from .pydantic_ai_messages import from_messages, read_response

running_call: ContextVar[ToolCallPart] = ContextVar("guardrail_pydantic_ai_call")
"""The call that runs now, as the model proposed it or a person edited it."""


@dataclass
class JudgedToolset(WrapperToolset[Any]):
    """Tools that run a call only if no hook and no other toolset changed it after the verdict."""

    gate: FrameworkGuard

    def __post_init__(self) -> None:
        self._answer_tool = FunctionToolset([Tool(self._give, name=ANSWER_TOOL)] if self.gate.asks else [])

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The agent's tools, and the one whose call stands for a held-back answer; no model is offered it."""
        tools = await super().get_tools(ctx)
        if self.gate.asks and ANSWER_TOOL in tools:
            raise UsageError(f"the agent's tool {ANSWER_TOOL!r} has the name of the guard's own. Rename it.")
        return {**tools, **await self._answer_tool.get_tools(ctx)}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Compare the tool and its arguments with the call that may run, then run it."""
        call = running_call.get(None)
        if call is None or not name == tool.tool_def.name == call.tool_name:
            raise _not_run()
        edit = await check_call(self.gate, ctx, call, tool.tool_def)
        expected = tool.args_validator.validate_python(_arguments(call), context=ctx.validation_context)
        if not same_json(expected, tool_args):
            raise _not_run()
        if name == ANSWER_TOOL:
            return await self._answer_tool.call_tool(name, tool_args, ctx, tool)
        result = await super().call_tool(name, tool_args, ctx, tool)
        if edit is None:
            return result
        note = edit_note(edit)
        return f"{note}\n{result}" if isinstance(result, str) else {"note": note, "result": result}

    async def _give(self, ctx: RunContext[Any], conversation: str) -> str:
        """Give out the answer that waits for a person."""
        if not ctx.tool_call_approved:
            raise _not_run()
        return await self.gate.give(str(ctx.tool_call_id), {"conversation": conversation})


async def check_call(
    gate: FrameworkGuard, ctx: RunContext[Any], call: ToolCallPart, tool_def: ToolDefinition
) -> dict[str, Any] | None:
    """Let a call go on that was judged, accepted and not changed since, or that a person approved.

    Returns:
        Its arguments, if a person edited it.

    Raises:
        ApprovalRequired: A person has to decide about it.
        ModelRetry: It does not run; the model reads why.
    """
    if tool_def.kind == "output" or call.tool_name in gate.artifacts.exempt:
        return None
    arguments = _arguments(call)
    approved = ctx.tool_call_approved
    proposed = _proposed(ctx, call) if approved else None
    ruling = await gate.ruling(call.tool_call_id, call.tool_name, arguments, approved=approved, proposed=proposed)
    if ruling == "run":
        return None
    if ruling == "run_edited":
        return arguments
    if ruling == "ask" and gate.asks:
        raise ApprovalRequired
    raise _not_run()


def _proposed(ctx: RunContext[Any], call: ToolCallPart) -> dict[str, Any] | None:
    """Arguments of a call as the model proposed it: the history keeps them when a person edits the call."""
    parts = (part for message in reversed(ctx.messages) if isinstance(message, ModelResponse) for part in message.parts)
    proposed = next(
        (part for part in parts if isinstance(part, ToolCallPart) and part.tool_call_id == call.tool_call_id), None
    )
    return None if proposed is None or proposed.tool_name != call.tool_name else _arguments(proposed)


def _arguments(call: ToolCallPart) -> dict[str, Any]:
    """The arguments of a call; one whose arguments cannot be read in one way does not run."""
    try:
        return arguments_of(call.args)
    except ValueError:
        raise _not_run() from None


def same_json(expected: Any, actual: Any) -> bool:
    """True if two validated arguments are the same JSON. To Python, 1, 1.0 and True are equal, at any depth."""
    left, right = (to_jsonable_python(value, bytes_mode="base64", fallback=repr) for value in (expected, actual))
    return canonical_json(left) == canonical_json(right)


def _not_run() -> ModelRetry:
    return ModelRetry(NOT_RUN)


@dataclass
class UnsureToolset(WrapperToolset[Any]):
    """Tools of an unguarded agent, whose calls need an approval unless the gate accepts them."""

    check: CallCheck

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        if not ctx.tool_call_approved and await self._asks(name, tool_args, ctx, tool):
            raise ApprovalRequired
        return await super().call_tool(name, tool_args, ctx, tool)

    async def _asks(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> bool:
        messages: list[Any] = list(ctx.messages)
        while messages and not isinstance(messages[-1], ModelResponse):
            messages.pop()
        try:
            *earlier, response = messages
            message = read_response(response)
            before = from_messages(earlier, ModelRequestParameters())
            (call,) = (call for call in message.tool_calls if call["id"] == ctx.tool_call_id)
        except (UsageError, ValueError):  # no message with this call, or one that could not be judged
            return True
        expected = tool.args_validator.validate_python(call["args"], context=ctx.validation_context)
        return not same_json(expected, tool_args) or await arun(
            self.check.steps([*before, message], {**call, "name": name})
        )
