"""The models of an agent of pydantic-ai: the one that calibration and the guard call, and the guarded one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import Field
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from guardrail.bindings import bindings_for
from guardrail.errors import UsageError
from guardrail.types import Bindings
from guardrail.verdict import AbstainedError

from .._agents.calls import ANSWER_TOOL
from .._agents.framework_guard import Answer, FrameworkGuard
from .chat import FrameworkChat, refuse_settings, shared_chat
from .pydantic_ai_messages import (
    as_parameters,
    from_messages,
    last_results,
    read_response,
    request_bindings,
    to_messages,
    to_response,
)

PASSED_ON = frozenset({
    "cache", "extra_headers", "first_event_timeout", "max_retries", "request_timeout", "service_tier",
    "timeout",
})  # fmt: skip
"""Settings of a request that cannot change an answer: each sample's call carries them, too."""
HARMLESS = PASSED_ON | {"openai_logprobs", "openai_top_logprobs", "tool_choice"}
"""Settings that need no comparison here: the guard compares the tool choice, and the plan sets log-probabilities."""


_passed_on: ContextVar[Mapping[str, Any]] = ContextVar("guardrail_pydantic_ai_settings")
"""The settings of the agent's request that each sample's call carries, too."""


class PydanticAIChat(FrameworkChat):
    """A model of pydantic-ai (``OpenAIChatModel("gpt-4o-mini")``) as a LangChain chat model, for calibration."""

    framework: ClassVar[str] = "pydantic-ai"
    harmless: ClassVar[frozenset[str]] = HARMLESS
    calibrated_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every call in addition to the artifact's plan and to the model's own ``settings``."""

    @property
    def model_label(self) -> str:
        """Name of the model."""
        return str(self.model.model_name)

    @property
    def model_kind(self) -> str:
        """Its class, and its provider."""
        return f"{super().model_kind}:{self.model.system}"

    def kept(self) -> dict[str, Any]:
        """The settings of every call that are given, including the model's own."""
        settings = {**(self.model.settings or {}), **self.calibrated_settings}
        if settings.get("seed") is not None:
            raise UsageError(f"seed={settings['seed']} would make all samples equal; leave it out.")
        return {name: value for name, value in settings.items() if value is not None}

    async def _answer(self, messages: list[BaseMessage], stop: list[str] | None, call: Mapping[str, Any]) -> AIMessage:
        instructions, history = to_messages(messages)
        bindings = bindings_for(
            call.get("tools") or (),
            tool_choice=call.get("tool_choice"),
            response_format=call.get("response_format"),
        )
        settings: Any = {**self.kept(), **_passed_on.get({})}
        settings |= {name: call[name] for name in ("temperature", "top_p", "max_tokens") if name in call}
        if call.get("logprobs"):
            settings["openai_logprobs"] = True
        if stop:
            settings["stop_sequences"] = list(stop)
        choice = bindings.tool_choice
        if choice is not None:
            settings["tool_choice"] = "required" if choice == "any" else [choice]
        return read_response(await self.model.request(history, settings, as_parameters(bindings, instructions)))


class GuardedModel(WrapperModel):
    """An agent's model that returns an answer, or tool calls, only if the gate accepts; `GuardCapability` wraps it so.

    Each request draws the artifact's samples with exactly the history, tools and output type that the agent sent, and
    is judged once. Output tools are judged as tool calls. A stream begins after the verdict.

    A run that abstained in words draws no second time: if an output validator raises ``ModelRetry`` on the abstention,
    the run ends with `AbstainedError`. Drawing again until the gate accepts would void the artifact's promise.

    Args:
        model: The model.
        gate: The guard of the agent.
        calibrated_settings: Settings of every call at calibration in addition to the plan.
    """

    def __init__(self, model: Model | str, gate: FrameworkGuard, *, calibrated_settings: Mapping[str, Any]) -> None:
        super().__init__(model)
        self._gate = gate
        self._chat = shared_chat(PydanticAIChat, self.wrapped, dict(calibrated_settings))

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Draw, judge, and return the accepted candidate or the result of the abstention path."""
        await self._refuse_asking_again(messages)
        settings = dict(model_settings or {})
        refuse_settings(self._chat.kept(), settings, HARMLESS, "model_settings")
        tools = [tool for tool in model_request_parameters.function_tools if tool.name != ANSWER_TOOL]
        answer_can_wait = len(tools) < len(model_request_parameters.function_tools)
        if self._gate.asks and self._gate.artifacts.answer is not None and not answer_can_wait:
            raise UsageError(
                f"another capability or toolset removed or renamed the guard's tool {ANSWER_TOOL!r}, whose call waits "
                'for a person in place of a held-back answer. Leave it as it is, or give on_abstain="message".'
            )
        parameters = replace(model_request_parameters, function_tools=tools)
        bindings = request_bindings(parameters, model_settings, self.wrapped.profile)
        conversation = from_messages(messages, parameters)
        token = _passed_on.set({name: value for name, value in settings.items() if name in PASSED_ON})
        try:
            decided = await self._decided(messages, parameters, bindings)
            answer = decided or await self._gate.ask(
                conversation,
                bindings,
                # Calls of external tools come out in `DeferredToolRequests.calls`, which the application runs.
                holdable={tool.name for tool in tools if tool.kind != "external"},
                answers={tool.name for tool in parameters.output_tools},
                parsed=_is_parsed(bindings),
                waits=answer_can_wait,
                model=self._chat,
            )
        finally:
            _passed_on.reset(token)
        response = to_response(answer.message)
        if decided is not None or not response.tool_calls:
            await self._gate.note_answer(conversation, _content(response), answer)
        return response

    async def _decided(
        self, messages: list[ModelMessage], parameters: ModelRequestParameters, bindings: Bindings
    ) -> Answer | None:
        """The answer of a person's decision, if a request comes after one; see `FrameworkGuard.released`."""
        results, earlier, prompted = last_results(messages)
        return await self._gate.released(
            results,
            from_messages(earlier, parameters) if results else (),
            prompted=prompted,
            parsed=_is_parsed(bindings),
            # A text of a format is pydantic-ai's to check; that it asks again is refused.
            fits=lambda text: bindings.tool_choice is None,
        )

    async def _refuse_asking_again(self, messages: list[ModelMessage]) -> None:
        """Refuse the retry of a run that has abstained in words, or given out a decided answer."""
        if len(messages) < 2:
            return
        *earlier, response, request = messages
        if not isinstance(response, ModelResponse) or response.run_id is None or response.run_id != request.run_id:
            return
        conversation = from_messages(earlier, ModelRequestParameters())
        _, verdict = await asyncio.to_thread(self._gate.given_out, conversation, _content(response))
        if verdict is not None and verdict.is_result:
            raise AbstainedError(verdict, response.text)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """The events of `request`, after the verdict."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)


def _is_parsed(bindings: Bindings) -> bool:
    """True if pydantic-ai makes an object of the answer, so that an abstention in words would be misread."""
    return bindings.response_format is not None or bindings.tool_choice is not None


def _content(response: ModelResponse) -> Any:
    """Content of a response: its text, or its calls."""
    calls = [[call.tool_name, call.args_as_dict()] for call in response.tool_calls]
    return calls or response.text or ""


class RecordingModel(WrapperModel):
    """Answers with an empty text, and records what each request offers the model."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.recorded: list[Bindings] = []

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Record the bindings of a request."""
        self.recorded.append(request_bindings(model_request_parameters, model_settings, self.wrapped.profile))
        return ModelResponse(parts=[TextPart("")])
