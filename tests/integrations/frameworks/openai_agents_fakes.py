"""A scripted model of the OpenAI Agents SDK, and guarded agents around it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, RunState, Usage, function_tool
from agents.testing import assistant_message, function_call
from pydantic import BaseModel

from guardrail import Bindings, PromptWrapping
from guardrail.artifact import CalibrationArtifact
from guardrail.testing import make_artifact
from integrations._frameworks.openai_agents_items import request_bindings
from integrations.openai_agents_guard import AgentsModelChat, GuardedModel
from tests.integrations.frameworks.cases import Reply

N = 4
"""Samples of the artifact's plan."""
DRAWN = 1 + N
"""Model calls of a judged request: the primary answer and the samples."""
PROMPT = PromptWrapping(system="Be brief.")
TURNS = ("human", "human,ai,human", "human,ai,human,ai,human")
_numbers = count()


class Scripted(Model):
    """Answers turn by turn: greedy calls the first of a turn's answers, sampled calls the others in order."""

    model = "scripted"
    guardrail_trusted = True

    def __init__(self, *turns: Sequence[Reply]) -> None:
        self.turns = turns
        self.calls: list[dict[str, Any]] = []
        self._drawn: dict[int, int] = {}

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *rest: Any, **named: Any
    ) -> ModelResponse:
        turn = sum(isinstance(item, dict) and item.get("type") == "function_call_output" for item in input)
        answers = self.turns[min(turn, len(self.turns) - 1)]
        settings = copy.deepcopy(model_settings)
        self.calls.append({"system": system_instructions, "input": input, "settings": settings, "tools": tools})
        if model_settings.temperature == 0:
            reply = answers[0]
        else:
            samples = answers[1:] or answers
            drawn = self._drawn.get(turn, 0)
            self._drawn[turn] = drawn + 1
            reply = samples[drawn % len(samples)]
        usage = Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12)
        return ModelResponse(output=[_item(reply)], usage=usage, response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise AssertionError("a guard never streams from the inner model")


def _item(reply: Reply) -> Any:
    return assistant_message(reply) if isinstance(reply, str) else function_call(*reply, call_id=new_id("inner"))


def new_id(prefix: str) -> str:
    """An id that no other call has."""
    return f"{prefix}{next(_numbers)}"


class Twice(Scripted):
    """Proposes two payments in one message."""

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        response = await super().get_response(*args, **named)
        if getattr(response.output[0], "name", "") == "pay":
            second = {"amount": 1000 + len(self.calls)}  # another amount in each message, so that none is sure
            response.output.append(function_call("pay", second, call_id=new_id("second")))
        return response


# -- runs --------------------------------------------------------------------------------------------------------------

RunAgent = Callable[..., Awaitable[tuple[Any, str]]]


async def run_whole(guarded_agent: Agent[Any], prompt: Any, **options: Any) -> tuple[Any, str]:
    """The result of a run, which shows no events."""
    return await Runner.run(guarded_agent, prompt, **options), ""


async def run_streamed(guarded_agent: Agent[Any], prompt: Any, **options: Any) -> tuple[Any, str]:
    """The result of a streamed run, and everything that its events showed."""
    result = Runner.run_streamed(guarded_agent, prompt, **options)
    return result, "".join([repr(event) async for event in result.stream_events()])


def run(starting_agent: Agent[Any], prompt: Any, **options: Any) -> Any:
    """`Runner.run_sync`, which leaves its event loop open, without that."""
    return asyncio.run(Runner.run(starting_agent, prompt, **options))


async def reloaded(guarded_agent: Agent[Any], result: Any) -> RunState[Any]:
    """The state of a run, written and read again as in another process."""
    return await RunState.from_string(guarded_agent, result.to_state().to_string())


def tool_outputs(items: Any) -> list[str]:
    """The results of calls among the items that a model reads."""
    return [str(item["output"]) for item in items if item.get("type") == "function_call_output"]


# -- guarded agents ----------------------------------------------------------------------------------------------------


def artifact(inner: Model, **options: Any) -> CalibrationArtifact:
    return make_artifact(AgentsModelChat(model=inner), n=N, **{"turns": TURNS, "prompt": PROMPT, **options})


def guarded(inner: Model, *, bindings: Bindings | None = None, **options: Any) -> Any:
    """A guarded model with an artifact for answers and calls; without another option it abstains in words."""
    fitted = {name: options.pop(name) for name in ("estimator", "threshold", "turns") if name in options}
    calibrated = artifact(inner, bindings=bindings, **fitted)
    return GuardedModel(inner, calibrated, probe="off", **{"on_abstain": "message", **options})


def agent(model: Model, **options: Any) -> Agent[Any]:
    return Agent(name="one", instructions=PROMPT.system, model=model, **options)


def answering(*turns: Sequence[Reply], **options: Any) -> tuple[Scripted, Any, Agent[Any]]:
    """A scripted model, a guarded model around it whose held-back answers wait for a person, and its agent."""
    inner = Scripted(*turns)
    model = guarded(inner, **{"on_abstain": "review", "abstain_message": "Not sure.", **options})
    return inner, model, agent(model, tools=[model.answer_tool])


class Bank:
    """An agent with one tool that cannot be undone."""

    def __init__(self, inner: Scripted, **options: Any) -> None:
        self.inner = inner
        self.paid: list[int] = []
        self.bindings = request_bindings([self.pay_tool()], [], None, None)
        self.model = guarded(inner, bindings=self.bindings, **options)

    def pay_tool(self) -> Any:
        """The tool, unguarded."""

        def pay(amount: int) -> str:
            """Pay an amount."""
            self.paid.append(amount)
            return f"paid {amount}"

        return function_tool(pay)

    def agent(self, **options: Any) -> Agent[Any]:
        return agent(self.model, tools=[self.model.tool(self.pay_tool()), self.model.answer_tool], **options)


class City(BaseModel):
    """A structured answer."""

    name: str
    country: str = "unknown"
