"""`OpenAICompatibleChat`: OpenAI and every endpoint that speaks its chat-completions protocol, sampled natively.

One call for the greedy answer and one for all samples where a probe has shown that the server honours n, else n calls;
log-probabilities with bytes; answer options read off the first token; a deadline that holds. See ``docs/endpoints.md``.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import ContextThreadPoolExecutor
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from guardrail._probe import known_report
from guardrail.errors import GuardrailError, UsageError, require
from guardrail.identity import ModelIdentity
from guardrail.probing import ProbeCall, ProbeReply
from guardrail.types import SampleSet, SamplingPlan

from ._openai_replies import choices_of, message_of, parsed, usage_of
from ._openai_requests import body_of, normal_tool_choice, openai_tools
from ._openai_sampling import Ask, Outcome, asks_for, outcome_of, probe_ask, probe_reply, sample_set
from ._openai_streaming import chunk_of
from ._openai_structured import structured
from ._openai_transport import Attempted, DeadlineError, apost, post

__all__ = ["OpenAICompatibleChat", "from_text"]

openai = require("openai", extra="openai")

PROVIDER = "openai-compatible"
NO_KEY = "no-key-needed"


class OpenAICompatibleChat(BaseChatModel):
    """A model behind an OpenAI-compatible endpoint.

    ```python
    OpenAICompatibleChat(model="gpt-4o-mini")                                    # OpenAI; key from OPENAI_API_KEY
    OpenAICompatibleChat(model="qwen", base_url="http://localhost:8000/v1")      # vLLM, llama-server, ...
    ```

    Nothing is sent when the object is made. Keys are never in its representation, in errors, artifacts or traces.

    Raises:
        MissingDependencyError: The package ``openai`` is not installed (on import of this module).
        UsageError: Neither a key nor an endpoint of your own is known, or its address holds credentials.
    """

    model: str
    """Name of the model at the endpoint."""
    base_url: str | None = Field(default=None, repr=False)
    """Root of the API, e.g. ``http://localhost:8000/v1``; else ``OPENAI_BASE_URL``, else OpenAI."""
    api_key: SecretStr | None = None
    """Key; else ``OPENAI_API_KEY``. May be left out for endpoints of your own that want none."""
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
    logprobs: bool | None = None
    """Whether plain calls return log-probabilities in ``response_metadata["logprobs"]``."""
    timeout: float = Field(default=120.0, gt=0.0)
    """Seconds until a call is given up, all its attempts and waits included. It holds for a whole sample set, too."""
    max_retries: int = Field(default=2, ge=0)
    """Further attempts after connection errors, 408, 409, 429 and 5xx; Retry-After is heeded within the timeout."""
    max_concurrency: int = Field(default=64, ge=1)
    """Requests of one ``draw_samples`` call in flight at once."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name under which the longest answer is sent. Some servers ignore the newer name; reasoning models need it."""
    several_per_call: bool | None = None
    """Whether to draw all samples in one call with ``n``. None does so where a probe has shown that it works."""
    system_fingerprint: str | None = None
    """If set, replies with another ``system_fingerprint`` are failures, and the artifact binds it."""
    stream_usage: bool = True
    """Whether to ask for token counts when streaming."""
    extra_body: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Further fields of every request, for what a particular server understands."""
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False, exclude=True)
    """Further HTTP headers of every request. They may hold secrets, so they are shown nowhere."""

    _sync: list[Any] = PrivateAttr(default_factory=list)
    _async: Any = PrivateAttr(default_factory=weakref.WeakKeyDictionary)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    model_config = ConfigDict(populate_by_name=True)

    def __init__(self, **settings: Any) -> None:
        # Not in a validator: pydantic would wrap the error, which is a ValueError, in its own.
        super().__init__(**settings)
        if self._key() is None and self._url() is None:
            raise UsageError(
                "no API key: pass api_key=..., set OPENAI_API_KEY, or name an endpoint of your own with base_url=..."
            )
        if "@" in urlsplit(self._url() or "").netloc:
            raise UsageError(
                "the endpoint's address holds a user name or password, which HTTP libraries write to their logs. Pass "
                "the address alone, and credentials as api_key=... or default_headers={'Authorization': ...}."
            )

    # --- clients ------------------------------------------------------------------------------------------------------

    def _key(self) -> str | None:
        return self.api_key.get_secret_value() if self.api_key is not None else os.environ.get("OPENAI_API_KEY") or None

    def _url(self) -> str | None:
        return self.base_url or os.environ.get("OPENAI_BASE_URL") or None

    def _client_settings(self) -> dict[str, Any]:
        return {
            "api_key": self._key() or NO_KEY,
            "base_url": self._url(),
            "max_retries": 0,  # see _openai_transport
            "timeout": self.timeout,
            "default_headers": self.default_headers,
        }

    def _client(self) -> Any:
        with self._lock:
            if not self._sync:
                self._sync.append(openai.OpenAI(**self._client_settings()))
            return self._sync[0]

    async def _aclient(self) -> Any:
        """The client of the running event loop; connections cannot move between loops."""
        loop = asyncio.get_running_loop()
        if loop not in self._async:
            client = self._async[loop] = openai.AsyncOpenAI(**self._client_settings())
            await _kept_by(loop).add(self._async, client)
        return self._async[loop]

    def _hide(self, text: str) -> str:
        """A text without key, headers and address: servers may echo what they were sent."""
        for secret in (self._key(), self._url(), *self.default_headers.values()):
            if secret and len(secret) >= 4:
                text = text.replace(secret, "***")
        return text

    # --- sampling -----------------------------------------------------------------------------------------------------

    def draw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        tools: Sequence[Any] | None = None,
        **settings: Any,
    ) -> list[SampleSet]:
        """Draw one sample set for each prompt.

        Args:
            prompts: One message list for each request.
            plan: What to draw.
            seeds: One seed for each request; None for the server's own randomness.
            tools: Tools the model may call, in any form ``bind_tools`` takes.
            **settings: Further settings of the requests, e.g. ``tool_choice`` or ``response_format``.

        Returns:
            One `SampleSet` for each prompt. Failures, shortfalls and options that cannot be read are its ``problem``.
            ``cost.calls`` counts HTTP requests, retries included.

        Raises:
            UsageError: A setting is unknown, or there are not as many seeds as prompts.
        """
        asks = self._asks(prompts, plan, seeds, {**settings, "tools": tools})
        bodies = [self._body(prompts[ask.prompt], ask.settings, plan.stop) for ask in asks]
        clock = _Clock(self.timeout)

        def run(place: int) -> Outcome:
            ask = asks[place]
            started = time.perf_counter()
            deadline = clock.deadline(ask.prompt)
            attempted = post(self._client(), bodies[place], deadline=deadline, retries=self.max_retries)
            return self._outcome(ask, attempted, started)

        with ContextThreadPoolExecutor(max_workers=min(self.max_concurrency, max(len(asks), 1))) as pool:
            outcomes = list(pool.map(run, range(len(asks))))
        return _sets(prompts, plan, asks, outcomes)

    async def adraw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        tools: Sequence[Any] | None = None,
        **settings: Any,
    ) -> list[SampleSet]:
        """`draw_samples` on the event loop. Cancelling it closes the connections of what is in flight."""
        asks = self._asks(prompts, plan, seeds, {**settings, "tools": tools})
        bodies = [self._body(prompts[ask.prompt], ask.settings, plan.stop) for ask in asks]
        slots, clock, client = asyncio.Semaphore(self.max_concurrency), _Clock(self.timeout), await self._aclient()

        async def run(ask: Ask, body: dict[str, Any]) -> Outcome:
            async with slots:
                started = time.perf_counter()
                attempted = await apost(client, body, deadline=clock.deadline(ask.prompt), retries=self.max_retries)
                return self._outcome(ask, attempted, started)

        async with asyncio.TaskGroup() as group:  # cancels its tasks when it is cancelled
            tasks = [group.create_task(run(ask, body)) for ask, body in zip(asks, bodies, strict=True)]
        return _sets(prompts, plan, asks, [task.result() for task in tasks])

    def answer_probe(self, call: ProbeCall) -> ProbeReply:
        """Make one call of a probe."""
        ask, started = probe_ask(call), time.perf_counter()
        deadline = time.monotonic() + self.timeout
        try:
            body = self._body([HumanMessage(call.prompt)], ask.settings)
            attempted = post(self._client(), body, deadline=deadline, retries=self.max_retries)
        except Exception as error:
            return ProbeReply(error=self._hide(f"{type(error).__name__}: {error}"))
        return probe_reply(call, self._outcome(ask, attempted, started))

    async def aanswer_probe(self, call: ProbeCall) -> ProbeReply:
        """Make one call of a probe on the event loop."""
        ask, started = probe_ask(call), time.perf_counter()
        deadline = time.monotonic() + self.timeout
        try:
            body = self._body([HumanMessage(call.prompt)], ask.settings)
            attempted = await apost(await self._aclient(), body, deadline=deadline, retries=self.max_retries)
        except Exception as error:
            return ProbeReply(error=self._hide(f"{type(error).__name__}: {error}"))
        return probe_reply(call, self._outcome(ask, attempted, started))

    def guardrail_identity(self) -> ModelIdentity:
        """Model name and, if it is pinned, the server's fingerprint. The address is left out: it may be moved."""
        return ModelIdentity(provider=PROVIDER, model=self.model, revision=self.system_fingerprint)

    def _asks(
        self, prompts: Sequence[Any], plan: SamplingPlan, seeds: Sequence[int | None], extra: dict[str, Any]
    ) -> list[Ask]:
        if len(prompts) != len(seeds):
            raise UsageError(f"each request needs a seed: {len(prompts)} prompts but {len(seeds)} seeds")
        together = self.several_per_call
        if together is None:
            report = known_report(self)
            together = report is not None and report.n is True
        return [
            ask
            for place, seed in enumerate(seeds)
            for ask in asks_for(place, plan, seed, together=together, extra=extra)
        ]

    def _body(self, messages: Any, settings: Any, stop: Sequence[str] | None = None) -> dict[str, Any]:
        named = {"model": self.model, **settings}
        return body_of(messages, named, stop, limit_name=self.token_limit, extra=self.extra_body)

    def _outcome(self, ask: Ask, attempted: Attempted, started: float) -> Outcome:
        return outcome_of(ask, attempted, started, hide=self._hide, pinned=self.system_fingerprint)

    # --- a plain chat model -------------------------------------------------------------------------------------------

    def _chat_body(self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]) -> dict[str, Any]:
        names = ("temperature", "top_p", "max_tokens", "seed", "logprobs")
        given = {name: value for name, value in call.items() if value is not None}
        if "max_completion_tokens" in given:
            given["max_tokens"] = given.pop("max_completion_tokens")
        settings = {**{name: getattr(self, name) for name in names}, **given}
        stop = stop if stop is not None else settings.pop("stop", None) or self.stop
        return self._body(messages, settings, stop)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body = self._chat_body(messages, stop, kwargs)
        deadline = time.monotonic() + self.timeout
        return self._result(post(self._client(), body, deadline=deadline, retries=self.max_retries))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        body = self._chat_body(messages, stop, kwargs)
        deadline = time.monotonic() + self.timeout
        return self._result(await apost(await self._aclient(), body, deadline=deadline, retries=self.max_retries))

    def _result(self, attempted: Attempted) -> ChatResult:
        if attempted.content is None:
            assert attempted.error is not None
            if isinstance(attempted.error, DeadlineError):
                raise attempted.error
            text = self._hide(f"{type(attempted.error).__name__}: {attempted.error}")
            raise GuardrailError(f"model {self.model!r}: {text}") from attempted.error
        reply = parsed(attempted.content)
        usage = usage_of(reply)
        # The usage of a reply is that of all its choices: it stands on the first, so that a sum counts it once.
        messages = [message_of(c, reply, usage if i == 0 else None) for i, c in enumerate(choices_of(reply))]
        generations = [
            ChatGeneration(message=message, generation_info=dict(message.response_metadata)) for message in messages
        ]
        totals = {
            "prompt_tokens": usage["input_tokens"],
            "completion_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
        }
        return ChatResult(generations=generations, llm_output={"token_usage": totals, "model_name": self.model})

    def _stream_body(self, messages: list[BaseMessage], stop: list[str] | None, call: dict[str, Any]) -> dict[str, Any]:
        if int(call.get("n") or 1) > 1:
            raise UsageError(f"a stream has one answer, got n = {call['n']}; use generate() for several")
        options = {"stream_options": {"include_usage": True}} if self.stream_usage else {}
        return {**self._chat_body(messages, stop, call), "stream": True, **options}

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        body = self._stream_body(messages, stop, kwargs)
        with self._client().chat.completions.create(**body) as stream:
            for event in stream:
                chunk = chunk_of(event.to_dict(mode="json"))
                if chunk is None:
                    continue
                if run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        body = self._stream_body(messages, stop, kwargs)
        client = await self._aclient()
        async with await client.chat.completions.create(**body) as stream:
            async for event in stream:
                chunk = chunk_of(event.to_dict(mode="json"))
                if chunk is None:
                    continue
                if run_manager is not None:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
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
            strict: Whether the server shall hold the arguments to the schema.
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
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """A runnable that returns objects of a schema.

        Args:
            schema: Pydantic class, TypedDict, JSON schema or OpenAI tool.
            include_raw: Return a dict of "raw", "parsed" and "parsing_error" instead of raising on a parsing error.
            method: "json_schema" has the server hold the answer to the schema; "function_calling" offers the schema as
                a tool; "json_mode" asks for any JSON object.
            strict: Whether the server shall hold to the schema exactly; default: the server's.
            **kwargs: Settings of the calls.
        """
        return structured(self, schema, include_raw=include_raw, method=method, strict=strict, settings=kwargs)

    # --- LangChain plumbing -------------------------------------------------------------------------------------------

    def _combine_llm_outputs(self, llm_outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
        usages = [output["token_usage"] for output in llm_outputs if output]
        totals = {name: sum(usage[name] for usage in usages) for name in (usages[0] if usages else ())}
        return {"token_usage": totals, "model_name": self.model}

    @property
    def _llm_type(self) -> str:
        return "openai-compatible-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        names = ("model", "temperature", "top_p", "max_tokens", "stop", "seed", "logprobs", "token_limit")
        return {name: getattr(self, name) for name in names}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = PROVIDER
        params["ls_model_name"] = str(kwargs.get("model") or self.model)
        return params

    @property
    def lc_secrets(self) -> dict[str, str]:
        """What LangChain must not serialise."""
        return {"api_key": "OPENAI_API_KEY"}


class _Clock:
    """One deadline for each prompt, running from its first request."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[int, float] = {}

    def deadline(self, prompt: int) -> float:
        return self._ends.setdefault(prompt, time.monotonic() + self._seconds)


class _Kept:
    """The clients of one event loop: closed when it shuts down, and earlier once their model is gone.

    A client cannot close itself where its model is collected: that happens anywhere, and a task made there is lost
    when the loop ends right after. So the next client that is made closes it.
    """

    def __init__(self) -> None:
        self.clients: set[Any] = set()
        self.orphans: deque[Any] = deque()
        self.keeper = self._close_with_loop()

    async def add(self, owner: Any, client: Any) -> None:
        """Keep a client until its owner is collected."""
        await anext(self.keeper, None)  # from now on the loop knows it
        self.clients.add(client)
        weakref.finalize(owner, self.orphans.append, client).atexit = False
        while self.orphans:
            await self._close(self.orphans.popleft())

    async def _close(self, client: Any) -> None:
        self.clients.discard(client)
        await client.close()

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """``asyncio.run`` closes the asynchronous generators that are left."""
        try:
            while True:
                yield
        finally:
            while self.clients:
                await self._close(next(iter(self.clients)))


_kept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = weakref.WeakKeyDictionary()
_keeping = threading.Lock()


def _kept_by(loop: asyncio.AbstractEventLoop) -> _Kept:
    with _keeping:
        for ended in [other for other in _kept if other.is_closed()]:  # closed without shutting its generators down
            del _kept[ended]
        return _kept.setdefault(loop, _Kept())


def _sets(
    prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, asks: Sequence[Ask], outcomes: Sequence[Outcome]
) -> list[SampleSet]:
    sets = []
    for place, messages in enumerate(prompts):
        own = [i for i, ask in enumerate(asks) if ask.prompt == place]
        sets.append(sample_set(messages, plan, [asks[i] for i in own], [outcomes[i] for i in own]))
    return sets


def from_text(text: str) -> OpenAICompatibleChat:
    """The model that ``openai-compatible:MODEL@BASE_URL`` names; without ``@BASE_URL``, at ``OPENAI_BASE_URL``.

    Raises:
        UsageError: No model is named.
    """
    found = re.fullmatch(r"(?P<model>.+?)(?:@(?P<url>https?://.+))?", text)
    if found is None:
        raise UsageError("no model is named. Write openai-compatible:MODEL@http://HOST:PORT/v1.")
    return OpenAICompatibleChat(model=found["model"], base_url=found["url"])
