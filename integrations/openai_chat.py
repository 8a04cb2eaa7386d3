"""`OpenAICompatibleChat`: OpenAI and every endpoint with its chat-completions protocol, sampled natively.

One call for the greedy answer and one for all samples if a probe has shown that the server honours n, otherwise n
calls; log-probabilities with bytes; answer options read off the first token; a deadline that holds. See
``docs/endpoints.md``.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from guardrail.errors import UsageError
from guardrail.foreign_errors import log
from guardrail.guard.structured import Method, parser_of, structured, tracing_of, wanted_bindings
from guardrail.sampling.batches import BatchReply
from guardrail.sampling.limits import adopt_limits, ain_flight, limits_for_threads
from guardrail.sampling.native import check_one_answer, check_seeds
from guardrail.sampling.probe import ProbeCall, ProbeReply
from guardrail.sampling.prober import known_report
from guardrail.specs import ModelIdentity
from guardrail.types import SampleSet, SamplingPlan

from ._openai.batches import BatchService, attempted_of
from ._openai.clients import EndpointState, endpoint_loop
from ._openai.endpoint import Attempted, DeadlineError, Endpoint, EndpointError
from ._openai.pins import MOST_VALUES, Change, ModelChangedError, Pin
from ._openai.replies import chat_result
from ._openai.requests import BOUND, PLANNED, body_of, normal_tool_choice, one_limit, openai_tools
from ._openai.sampling import (
    N_REFUSED,
    SAMPLES,
    Ask,
    AskOutcome,
    asks_for,
    named,
    outcome_of,
    probe_ask,
    probe_reply,
    sample_set,
)

__all__ = ["DeadlineError", "EndpointError", "OpenAICompatibleChat", "Pin", "from_text"]

T = TypeVar("T")
Request = tuple[Ask, dict[str, Any]]
"""A request of a sample set, and its body."""
MOST_OF_A_DRAW = 64
"""Requests of one ``draw_samples`` call in flight at once."""
SET_ELSEWHERE = {"model", "messages", "stream", "stream_options"} | PLANNED | BOUND
"""Fields of a request that a plan, a field of the class or a call sets; ``extra_body`` must not set them."""


class OpenAICompatibleChat(BatchService):
    """A model behind an OpenAI-compatible endpoint.

    ```python
    OpenAICompatibleChat(model="gpt-4o-mini")                                    # OpenAI; key from OPENAI_API_KEY
    OpenAICompatibleChat(model="qwen", base_url="http://localhost:8000/v1")      # vLLM, llama-server, ...
    ```

    Nothing is sent when the object is created. Keys are never in its representation, in errors, artifacts or traces.

    Raises:
        MissingDependencyError: The package ``aiohttp`` is not installed (on import of this module).
        UsageError: There is neither a key nor an endpoint of your own, its address holds credentials, or ``extra_body``
            names a field that a plan or a field of this class sets.
    """

    PROVIDER = "openai-compatible"
    SETTINGS = ("model", "temperature", "top_p", "max_tokens", "stop", "seed", "logprobs", "token_limit")

    model: str
    """Name of the model at the endpoint."""
    base_url: str | None = Field(default=None, repr=False)
    """Root of the API, e.g. ``http://localhost:8000/v1``; else ``OPENAI_BASE_URL``, else OpenAI."""
    api_key: SecretStr | None = None
    """Key; else ``OPENAI_API_KEY``. Optional for an endpoint of your own without keys."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Temperature of plain calls; None leaves it to the server."""
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Nucleus mass of plain calls."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer of plain calls."""
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    """Strings that end an answer of plain calls."""
    seed: int | None = None
    """Seed of plain calls."""
    send_seed: bool = True
    """Whether requests carry seeds. False for servers that refuse the field. A cache in front of such a server may then
    make samples equal, which the probe finds."""
    logprobs: bool | None = None
    """Whether plain calls return log-probabilities in ``response_metadata["logprobs"]``."""
    timeout: float = Field(default=120.0, gt=0.0)
    """Seconds until a call is given up, including all its attempts and waits. The limit covers a whole sample set, and
    a whole stream (without the time that its reader takes)."""
    max_retries: int = Field(default=2, ge=0)
    """Further attempts after connection errors, 408, 409, 429 and 5xx; Retry-After is respected within the timeout. No
    further attempt follows the first chunk of a stream."""
    max_reply: int = Field(default=64 * 2**20, ge=1)
    """Bytes of one reply, unpacked. A longer reply is a failure without a retry: the answer is unmeasured."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Requests in flight at once, of all questions, threads and event loops together (streams aside: their reader
    decides how long they last); None for no limit beside that of the caller. One ``draw_samples`` call has at most
    64."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name under which the longest answer is sent. Some servers ignore the newer name; reasoning models need it."""
    several_per_call: bool | None = None
    """Whether to draw all samples in one call with ``n``. None does so if a probe has shown that it works. If the
    server refuses that many, this set and all later ones are drawn with one call for each sample."""
    system_fingerprint: str | None = None
    """If set, answers from replies with another ``system_fingerprint`` are unmeasured, and the artifact binds it."""
    pin: Pin | None = None
    """Model and fingerprint that replies must name, outside of the artifact: a silent change is reported, and its
    answers are held back unless ``on_change`` is "warn"."""
    report_change: Callable[[Change, bool], None] | None = Field(default=None, exclude=True, repr=False)
    """Called for each difference of a sampling reply from the pin, and whether its value is new; None for one line in
    the log for each new value."""
    stream_usage: bool = True
    """Whether to ask for token counts when streaming."""
    extra_body: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Additional fields of every request, for a particular server. Fields that an artifact's plan, this class or a call
    sets (temperature, seed, max_tokens, ...) are refused, since they would silently replace these."""
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    """Additional HTTP headers of every request. They may hold secrets, so they are shown nowhere."""

    _state: EndpointState = PrivateAttr(default_factory=EndpointState)
    _changes: set[Change] = PrivateAttr(default_factory=set)

    model_config = ConfigDict(populate_by_name=True)

    def __init__(self, **settings: Any) -> None:
        # Not in a validator: pydantic would wrap the error, which is a ValueError, in a validation error.
        super().__init__(**settings)
        self._endpoint().check()
        _check_extra(self.extra_body)

    def _endpoint(self) -> Endpoint:
        key = os.environ.get("OPENAI_API_KEY") or None
        return Endpoint(
            model=self.model,
            key=key if self.api_key is None else self.api_key.get_secret_value(),
            url=self.base_url or os.environ.get("OPENAI_BASE_URL") or None,
            headers=self.default_headers,
            timeout=self.timeout,
            retries=self.max_retries,
            largest=self.max_reply,
            state=self._state,
        )

    # --- sampling -----------------------------------------------------------------------------------------------------

    def draw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        primary: bool = True,
        **settings: Any,
    ) -> list[SampleSet]:
        """Draw one sample set for each prompt.

        Args:
            prompts: One message list for each request.
            plan: The plan of the samples.
            seeds: One seed for each sample set, from which the seeds of its requests derive; None for a fresh seed.
            primary: Whether to draw the greedy answer; False for further samples of a set that has it.
            **settings: Further settings of the requests: ``tools`` in any form that ``bind_tools`` takes,
                ``tool_choice``, ``response_format`` and others.

        Returns:
            One `SampleSet` for each prompt. Failures, shortfalls and unreadable options are its ``problem``.
            ``cost.calls`` counts HTTP requests, retries included.

        Raises:
            UsageError: A setting is unknown, or the numbers of seeds and prompts differ.
        """
        requests, limits = self._requests(prompts, plan, seeds, settings, primary), limits_for_threads()

        async def drawn() -> list[SampleSet]:
            adopt_limits(limits)
            return await self._draw(prompts, plan, requests)

        return endpoint_loop.run(drawn())

    async def adraw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        primary: bool = True,
        **settings: Any,
    ) -> list[SampleSet]:
        """`draw_samples` on the event loop. Cancellation closes the connections of all requests in flight."""
        return await self._draw(prompts, plan, self._requests(prompts, plan, seeds, settings, primary))

    def _requests(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        seeds: Sequence[int | None],
        settings: Mapping[str, Any],
        primary: bool,
    ) -> list[list[Request]]:
        """The requests of each prompt, before the first is sent: wrong settings raise here."""
        check_seeds(prompts, seeds)
        return [
            [(ask, self._body(messages, ask.settings, plan.stop)) for ask in self._asks(plan, seed, settings, primary)]
            for messages, seed in zip(prompts, seeds, strict=True)
        ]

    async def _draw(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, requests: Sequence[Sequence[Request]]
    ) -> list[SampleSet]:
        slots = asyncio.Semaphore(MOST_OF_A_DRAW)
        questions = zip(prompts, requests, strict=True)
        return await _all(self._drawn(messages, asked, plan, slots) for messages, asked in questions)

    async def _drawn(
        self,
        messages: Sequence[BaseMessage],
        requests: Sequence[Request],
        plan: SamplingPlan,
        slots: asyncio.Semaphore,
    ) -> SampleSet:
        endpoint = self._endpoint()
        began: list[float] = []

        async def send(ask: Ask, body: dict[str, Any]) -> AskOutcome:
            asked = time.monotonic()
            async with slots, ain_flight(), self._slot():
                now = time.monotonic()
                started = time.perf_counter()
                began.append(now)
                # The time of a set begins with its first request. A request's wait for its turn is not part of it.
                deadline = began[0] + self.timeout + (now - max(asked, began[0]))
                return self._outcome(ask, await endpoint.asend(body, deadline), started)

        async def answered(ask: Ask, body: dict[str, Any]) -> list[tuple[Ask, AskOutcome]]:
            outcome = await send(ask, body)
            if not ask.alone or outcome.status not in N_REFUSED:
                return [(ask, outcome)]
            alone = [(single, self._body(messages, single.settings, plan.stop)) for single in ask.alone]
            tried = await send(*alone[0])
            tried = replace(tried, cost=outcome.cost + tried.cost, started=outcome.started)
            if tried.error:  # the server refused the request for another reason than n
                return [(ask, replace(outcome, cost=tried.cost))]
            self._state.refused_n = min(self._state.refused_n, ask.count)
            outcomes = [tried, *await _all(send(single, body) for single, body in alone[1:])]
            return [(single, outcome) for (single, _), outcome in zip(alone, outcomes, strict=True)]

        pairs = await _all(answered(ask, body) for ask, body in requests)
        return sample_set(messages, plan, list(chain.from_iterable(pairs)))

    def batch_requests(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        **settings: Any,
    ) -> list[dict[str, dict[str, Any]]]:
        """The bodies of the requests that ``draw_samples`` would send, for each prompt by name."""
        check_seeds(prompts, seeds)
        return [
            {
                name: self._body(messages, ask.settings, plan.stop)
                for name, ask in named(self._asks(plan, seed, settings)).items()
            }
            for messages, seed in zip(prompts, seeds, strict=True)
        ]

    def batch_sample_sets(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        replies: Sequence[Mapping[str, BatchReply]],
        **settings: Any,
    ) -> list[SampleSet]:
        """One `SampleSet` for each prompt out of the replies to its requests. Failures are its ``problem``."""
        drawn = []
        for messages, seed, by_name in zip(prompts, seeds, replies, strict=True):
            asks = named(self._asks(plan, seed, settings, together=SAMPLES in by_name))
            started = time.perf_counter()
            pairs = [(ask, self._outcome(ask, attempted_of(by_name[name]), started)) for name, ask in asks.items()]
            drawn.append(sample_set(messages, plan, pairs))
        return drawn

    # --- the endpoint -------------------------------------------------------------------------------------------------

    def answer_probe(self, call: ProbeCall) -> ProbeReply:
        """Make one call of a probe."""
        return endpoint_loop.run(self.aanswer_probe(call))

    async def aanswer_probe(self, call: ProbeCall) -> ProbeReply:
        """Make one call of a probe on the event loop."""
        ask = probe_ask(call)
        started = time.perf_counter()
        body = self._body([HumanMessage(call.prompt)], ask.settings)
        attempted = await self._sent(body)
        endpoint = self._endpoint()
        # A pin is checked where answers are measured: a failed probe would hide the reason.
        outcome = outcome_of(ask, attempted, started, describe_error=endpoint.describe_error)
        try:
            return replace(probe_reply(call, outcome), said=endpoint.said(attempted.error))
        except Exception as error:  # a reply of the wrong shape
            return ProbeReply(error=endpoint.describe_error(error), cost=outcome.cost)

    def guardrail_identity(self) -> ModelIdentity:
        """Model name and, if it is pinned, the server's fingerprint. The address is left out: the server may move."""
        return ModelIdentity(provider=self.PROVIDER, model=self.model, revision=self.system_fingerprint)

    def _asks(
        self,
        plan: SamplingPlan,
        seed: int | None,
        settings: Mapping[str, Any],
        primary: bool = True,
        *,
        together: bool | None = None,
    ) -> list[Ask]:
        if together is None:
            report = known_report(self)
            honoured = report is not None and report.n is True
            several = honoured if self.several_per_call is None else self.several_per_call
            together = several and plan.n < self._state.refused_n
        return asks_for(plan, seed, settings, together=together, primary=primary)

    def _body(self, messages: Any, settings: Any, stop: Sequence[str] | None = None) -> dict[str, Any]:
        _check_extra(self.extra_body)  # again: a copy is not validated, and the dict may have been changed
        named = {"model": self.model, **settings}
        if not self.send_seed:
            named.pop("seed", None)
        return body_of(messages, named, stop, limit_name=self.token_limit, extra=self.extra_body)

    def _outcome(self, ask: Ask, attempted: Attempted, started: float) -> AskOutcome:
        def describe_error(error: Exception | None) -> str:
            return self._endpoint().describe_error(error)

        return outcome_of(ask, attempted, started, describe_error=describe_error, check=self.check_model)

    def check_model(self, reply: Mapping[str, Any]) -> None:
        """Report a reply of another model than the pinned one.

        Raises:
            ModelChangedError: Its answers must be held back.
        """
        bound = None if self.system_fingerprint is None else Pin(system_fingerprint=self.system_fingerprint)
        held = []
        for pin in filter(None, (bound, self.pin)):
            for change in pin.changes(reply):
                new = change not in self._changes and len(self._changes) < MOST_VALUES
                if new:
                    self._changes.add(change)
                if self.report_change is not None:
                    self.report_change(change, new)
                elif new:
                    log.warning("guardrail: model %r: the reply's %s", self.model, change.text)
                if pin.on_change == "abstain":
                    held.append(change.text)
        if held:
            raise ModelChangedError("; ".join(held))

    # --- a plain chat model -------------------------------------------------------------------------------------------

    def _chat_body(self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]) -> dict[str, Any]:
        names = ("temperature", "top_p", "max_tokens", "seed", "logprobs")
        sent = one_limit({name: value for name, value in call.items() if value is not None})
        settings = {**{name: getattr(self, name) for name in names}, **sent}
        stop = stop if stop is not None else settings.pop("stop", None) or self.stop
        return self._body(messages, settings, stop)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(endpoint_loop.run(self._sent(self._chat_body(messages, stop, kwargs))))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(await self._sent(self._chat_body(messages, stop, kwargs)))

    async def _sent(self, body: dict[str, Any]) -> Attempted:
        async with self._slot():
            return await self._endpoint().asend(body)

    def _slot(self) -> AbstractAsyncContextManager[Any]:
        """A place among the requests in flight."""
        return nullcontext() if self.max_concurrency is None else self._state.slot(self.max_concurrency)

    def _result(self, attempted: Attempted) -> ChatResult:
        error = attempted.error
        if attempted.content is not None:
            try:
                return chat_result(attempted.content, self.model)
            except Exception as malformed:
                error = malformed
        raise self._endpoint().failure(error)  # outside the handler: its context would be an error that may hold keys

    def _stream_body(self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]) -> dict[str, Any]:
        check_one_answer(int(call.get("n") or 1))
        options = {"stream_options": {"include_usage": True}} if self.stream_usage else {}
        return {**self._chat_body(messages, stop, call), "stream": True, **options}

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        return endpoint_loop.iterate(self._endpoint().chunks(self._stream_body(messages, stop, kwargs)))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        async with aclosing(self._endpoint().chunks(self._stream_body(messages, stop, kwargs))) as chunks:
            async for chunk in chunks:
                yield chunk

    # --- tools and structured output ----------------------------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools to the model.

        Args:
            tools: Functions, classes, LangChain tools or schemas.
            tool_choice: "auto", "none", "any" or "required" or True (some tool), the name of a tool, or OpenAI's dict.
            strict: Whether the server must enforce the schema of the arguments.
            **kwargs: Settings of the calls, e.g. ``parallel_tool_calls``.
        """
        offered = openai_tools(tools, strict=strict)
        chosen = normal_tool_choice(tool_choice, [tool["function"]["name"] for tool in offered])
        return self.bind(tools=offered, **({"tool_choice": chosen} if chosen is not None else {}), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Method = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """A runnable that returns objects of a schema.

        Args:
            schema: Pydantic class, TypedDict, JSON schema or OpenAI tool.
            include_raw: Return a dict of "raw", "parsed" and "parsing_error" instead of raising on a parsing error.
            method: "json_schema": the server enforces the schema; "function_calling" offers the schema as a tool;
                "json_mode" asks for any JSON object.
            strict: Whether the server must follow the schema exactly; default: the server's choice.
            **kwargs: Settings of the calls.
        """
        parser, tracing = parser_of(schema, method), tracing_of(schema, method)
        if method == "function_calling":
            asking = self.bind_tools([schema], tool_choice="any", strict=strict, **tracing, **kwargs)
            return structured(asking, parser, include_raw=include_raw)
        response_format: Any = wanted_bindings(schema, method, None, None).response_format
        if strict is not None and method == "json_schema":
            response_format["json_schema"]["strict"] = strict
        asking = self.bind(response_format=response_format, **tracing, **kwargs)
        return structured(asking, parser, include_raw=include_raw)

    # --- LangChain plumbing -------------------------------------------------------------------------------------------

    def _name_of_model(self, call: Mapping[str, Any]) -> str:
        return str(call.get("model") or self.model)


def _check_extra(extra: Mapping[str, Any]) -> None:
    """Refuse an ``extra_body`` that would replace settings of a plan or a call.

    Raises:
        UsageError: It would; the message names the fields.
    """
    clashing = sorted(SET_ELSEWHERE & extra.keys())
    if clashing:
        raise UsageError(
            f"extra_body names {', '.join(clashing)}, which would silently replace what an artifact's plan or a call "
            "asks for. Leave it out: a guard takes it from the plan (calibrate with another plan), a plain call from "
            "fields such as OpenAICompatibleChat(temperature=..., token_limit=...) or from its own arguments."
        )


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await calls concurrently; a cancelled wait cancels the calls."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]


def from_text(text: str) -> OpenAICompatibleChat:
    """The model that ``openai-compatible:MODEL@BASE_URL`` names; without ``@BASE_URL``, at ``OPENAI_BASE_URL``.

    Raises:
        UsageError: The text names no model.
    """
    match = re.fullmatch(r"(?P<model>.+?)(?:@(?P<url>https?://.+))?", text)
    if match is None:
        raise UsageError("the text names no model. Write openai-compatible:MODEL@http://HOST:PORT/v1.")
    return OpenAICompatibleChat(model=match["model"], base_url=match["url"])
