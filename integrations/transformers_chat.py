"""`TransformersChat`: any local causal language model as a LangChain chat model that samples natively.

For n samples the prompt is read once and its cache expanded; log-probabilities are exact; answer options are scored
over the cached prompt; requests of several threads share batches. See ``docs/local-models.md``.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field, PrivateAttr

from guardrail.errors import GuardrailError, UsageError
from guardrail.foreign_errors import describe_error
from guardrail.sampling.native import NativeChat, check_one_answer, check_seeds
from guardrail.specs import ModelIdentity
from guardrail.types import SampleSet, SamplingPlan, Unmeasured

from ._local.decoding import Continuation, Row, uniforms
from ._local.engine import CANCELLED, DecodingRequest, Engine
from ._local.loading import LocalModel, load, revision_of, wrap
from ._local.outputs import Reader, as_chunk, failed
from ._local.prompts import (
    CallSettings,
    UnreadableOptionError,
    check_length,
    openai_tools,
    option_ids,
    render,
    tool_names,
)
from ._local.self_check import Support, self_check
from ._local.tokens import Detokenizer, TextStream

__all__ = ["TransformersChat", "from_text"]

T = TypeVar("T")
logger = logging.getLogger(__name__)

TEXT = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve."
"""Text that a model reads in its self-check."""


class TransformersChat(NativeChat):
    """A local causal language model.

    ```python
    model = TransformersChat(model="path/to/folder")  # or a hub id
    model.invoke("What is the capital of France?")
    ```

    The model is loaded when the object is created. Remote code is never run. Sampling settings come from here, from the
    call or from the plan; the top-k, penalties and temperature of the model's ``generation_config`` are not applied.

    Raises:
        MissingDependencyError: torch or transformers is not installed (on import of this module).
        UsageError: The model cannot be loaded, has no chat template, or cannot be served exactly; the message says why.
    """

    PROVIDER = "transformers"
    CALL: ClassVar = ("temperature", "top_p", "max_tokens", "stop", "stop_token_ids", "seed", "logprobs")
    """Names of the fields that a call may override."""
    SETTINGS = ("model", "revision", "chat_template", *CALL)

    model: str
    """Folder with config, weights and tokenizer, a GGUF file, or a hub id."""
    revision: str | None = None
    """Hub branch, tag or commit; None for the main branch."""
    device: str = "auto"
    """Torch device; "auto" takes a GPU if the machine has one."""
    dtype: str = "auto"
    """Torch dtype by name, e.g. "bfloat16"; "auto" is the checkpoint's dtype on a GPU and float32 on a CPU."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Temperature of plain calls; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus mass of plain calls; 1 for no truncation."""
    max_tokens: int = Field(default=256, ge=1)
    """Most new tokens of plain calls."""
    stop: list[str] | None = None
    """Strings that end an answer of plain calls; the answer does not contain them."""
    stop_token_ids: list[int] | None = None
    """Ids of tokens that end an answer of plain calls, in addition to the model's; the answer does not contain them."""
    logprobs: bool = False
    """Whether plain calls return token log-probabilities in ``response_metadata["logprobs"]``."""
    seed: int | None = None
    """Seed of plain calls; None draws fresh randomness."""
    max_batch_tokens: int | None = Field(default=None, ge=1)
    """Most cache positions in a batch (prompt and answer, over all sequences); None chooses by memory."""
    chat_template: str | None = None
    """Jinja template that replaces the tokenizer's template."""
    loaded: Any = Field(default=None, exclude=True, repr=False)
    """A model in memory; set by `from_model`."""

    _local: LocalModel = PrivateAttr()
    _engine: Engine = PrivateAttr()

    def __init__(self, **settings: Any) -> None:
        # Not in a validator: pydantic would wrap the loading errors, which are ValueErrors, in validation errors.
        super().__init__(**settings)
        self._local = self.loaded or load(
            self.model,
            revision=self.revision,
            device=self.device,
            dtype=self.dtype,
            chat_template=self.chat_template,
        )
        detokenizer = Detokenizer(self._local.tokenizer, self._local.hidden_ids)
        local = self._local
        support = self_check(local.model, self._ids(TEXT))
        if support.reason:
            logger.warning("model %r is served with limits: %s", local.name, support)
        self._engine = Engine(local.model, detokenizer, local.end_ids, self.max_batch_tokens, local.context, support)

    @classmethod
    def from_model(cls, model: Any, tokenizer: Any, *, name: str = "in-memory", **settings: Any) -> TransformersChat:
        """Wrap a model in memory; it is put in evaluation mode and stays on its device.

        Args:
            model: A transformers causal language model.
            tokenizer: Its tokenizer.
            name: Its name in identities and messages.
            **settings: Fields of this class.
        """
        local = wrap(model, tokenizer, name=name, chat_template=settings.get("chat_template"))
        return cls(model=name, loaded=local, **settings)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> TransformersChat:
        """A copy with other settings; it shares the weights, which no call changes, and the batches."""
        copied = self.__copy__()
        settings = {name: value for name, value in self.__dict__.items() if name in self.SETTINGS}
        copied.__dict__.update(copy.deepcopy(settings, memo))
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: the settings, with which another process loads the model again.

        Raises:
            UsageError: The model is in memory only.
        """
        if self.loaded is not None:
            raise UsageError(
                f"model {self.model!r} is in memory only, so it cannot be pickled. Save model and tokenizer with "
                "save_pretrained(FOLDER), and pickle TransformersChat(model=FOLDER)."
            )
        return _loaded_again, (type(self), {name: getattr(self, name) for name in sorted(self.model_fields_set)})

    @property
    def support(self) -> Support:
        """What may share a batch so that the model's numbers are exact, as checked at loading."""
        return self._engine.support

    # --- sampling -----------------------------------------------------------------------------------------------------

    def draw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        tools: Sequence[Any] | None = None,
    ) -> list[SampleSet]:
        """Draw one sample set for each prompt: the greedy answer and n samples in one batch, one prefill each.

        Args:
            prompts: One message list for each request.
            plan: The plan of the samples.
            seeds: One seed for each request; None for fresh randomness.
            tools: Tools the model may call, in any form ``bind_tools`` takes.

        Returns:
            One `SampleSet` for each prompt. If a request fails in the model (out of memory for a single answer, logits
            that are not finite, a ValueError or IndexError) or its options cannot be expressed, ``problem`` says so.

        Raises:
            PromptTooLongError: A prompt and its answer do not fit the context window.
            UsageError: The messages cannot be turned into a prompt, or the numbers of seeds and prompts differ.
        """
        check_seeds(prompts, seeds)
        offered = openai_tools(tools)
        prepared = [
            self._plan_request(messages, plan, seed, offered) for messages, seed in zip(prompts, seeds, strict=True)
        ]
        start = time.perf_counter()
        requests = [request for request in prepared if isinstance(request, DecodingRequest)]
        responses = iter(self._engine.submit(requests))
        seconds = time.perf_counter() - start
        reader = Reader(plan, self._engine.detokenizer, tool_names(offered))
        return [
            reader.sample_set(messages, request, next(responses), seconds, plan.options)
            if isinstance(request, DecodingRequest)
            else failed(messages, Unmeasured.NO_OPTIONS, str(request))
            for messages, request in zip(prompts, prepared, strict=True)
        ]

    async def adraw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        tools: Sequence[Any] | None = None,
    ) -> list[SampleSet]:
        """`draw_samples` in a worker thread; concurrent calls share batches. A cancelled call leaves its batch."""
        return await self._in_thread(self.draw_samples, prompts, plan, seeds=seeds, tools=tools)

    def guardrail_identity(self) -> ModelIdentity:
        """Folder name or hub id, and the hub commit or a hash over weights, configuration, tokenizer and template."""
        return ModelIdentity(provider=self.PROVIDER, model=self._local.name, revision=revision_of(self._local))

    def _plan_request(
        self, messages: Sequence[BaseMessage], plan: SamplingPlan, seed: int | None, tools: Sequence[dict[str, Any]]
    ) -> DecodingRequest | UnreadableOptionError:
        """The plan's request for this prompt, or the reason why its options cannot be read."""
        text, ids = self._encode(messages, tools)
        options: tuple[tuple[int, ...], ...] = ()
        if plan.options is not None:
            try:
                options = option_ids(text, plan.options, encode=self._ids, decode=self._decode, unknown=self._unknown)
            except UnreadableOptionError as error:
                return error
        rows: tuple[Row, ...] = ()
        if plan.n or plan.options is None:
            # The primary answer takes the last row, so that the samples of a seed do not depend on how it is drawn.
            draws = uniforms(seed, plan.n + 1, plan.max_tokens)
            *sampled, drawn = (Row(plan.max_tokens, plan.temperature, plan.top_p, draw) for draw in draws)
            rows = (drawn if plan.primary == "sampled" else Row(plan.max_tokens), *sampled)
        rows += tuple(Row(len(option), given=option) for option in options)
        request = DecodingRequest(ids, rows, plan.stop, frozenset(plan.stop_token_ids))
        check_length(len(ids), request.longest, self._local.context)
        return request

    def _encode(self, messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]]) -> tuple[str, tuple[int, ...]]:
        """Text and ids of a prompt."""
        if not messages:
            raise UsageError("a prompt needs at least one message, got none")
        template = self._local.chat_template
        text = render(self._local.tokenizer, messages, tools=tools, chat_template=template)
        return text, tuple(self._ids(text))

    def _ids(self, text: str) -> list[int]:
        return list(self._local.tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._local.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    @property
    def _unknown(self) -> int | None:
        unknown: int | None = self._local.tokenizer.unk_token_id
        return unknown

    # --- a plain chat model -------------------------------------------------------------------------------------------

    def _settings(self, stop: list[str] | None, call: dict[str, Any]) -> CallSettings:
        return CallSettings.resolve({name: getattr(self, name) for name in self.CALL}, stop, call)

    def _chat_request(self, messages: Sequence[BaseMessage], settings: CallSettings) -> DecodingRequest:
        _, ids = self._encode(messages, settings.tools)
        check_length(len(ids), settings.max_tokens, self._local.context)
        draws = uniforms(settings.seed, settings.n, settings.max_tokens)
        rows = (Row(settings.max_tokens, settings.temperature, settings.top_p, draw) for draw in draws)
        return DecodingRequest(ids, tuple(rows), stops=settings.stop, stop_ids=frozenset(settings.stop_token_ids))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        settings = self._settings(stop, kwargs)
        request = self._chat_request(messages, settings)
        response = self._engine.submit([request])[0]
        if response.failure:
            detail = describe_error(response.failure)
            raise GuardrailError(f"model {self._local.name!r}: {detail}") from response.failure
        return self._result(request, response.continuations, settings)

    def _result(self, request: DecodingRequest, results: Sequence[Continuation], settings: CallSettings) -> ChatResult:
        reader = Reader(settings, self._engine.detokenizer, tool_names(settings.tools))
        return reader.chat_result(results, prompt=len(request.prompt), model=self._local.name)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await self._in_thread(self._generate, messages, stop, None, **kwargs)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        """Stream token by token.

        In one piece with tools, since an incomplete call must not be shown as text, and where the model cannot leave an
        answer for another.
        """
        settings = self._settings(stop, kwargs)
        check_one_answer(settings.n)
        if settings.tools or not self.support.answers:
            yield from map(as_chunk, self._generate(messages, stop, **kwargs).generations)
        else:
            yield from self._chunks(self._chat_request(messages, settings), settings)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        chunks = await self._in_thread(self._stream, messages, stop, **kwargs)
        while (chunk := await self._in_thread(next, chunks, None)) is not None:
            yield chunk

    def _chunks(self, request: DecodingRequest, settings: CallSettings) -> Iterator[ChatGenerationChunk]:
        """Text while it is decoded; other calls run between two tokens, so that a slow reader does not block them."""
        result, text = Continuation(), TextStream(self._engine.detokenizer, settings.stop)
        for result in self._engine.steps(request):
            shown = "" if result.ids[-1] in request.stop_ids else text.push(result.ids[-1])
            if shown:
                yield ChatGenerationChunk(message=AIMessageChunk(content=shown))
        if not result.closed:  # cancelled
            return
        whole = self._result(request, [result], settings)
        yield as_chunk(whole.generations[0], text.close())

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools to the model through its chat template.

        Args:
            tools: Functions, classes, LangChain tools or schemas.
            tool_choice: "none" hides them. Nothing else can be enforced on a local model, so the model decides.
            **kwargs: Settings of the calls.
        """
        return self.bind(tools=list(openai_tools(tools)), tool_choice=tool_choice, **kwargs)

    async def _in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a blocking function in a thread, with the caller's context variables.

        A thread cannot be cancelled: its requests leave the model at the next step instead.
        """
        context, cancelled = contextvars.copy_context(), threading.Event()
        context.run(CANCELLED.set, cancelled)
        call = functools.partial(context.run, function, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._engine.threads, call)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def _name_of_model(self, call: Mapping[str, Any]) -> str:
        return self._local.name


def _loaded_again(cls: type[TransformersChat], settings: dict[str, Any]) -> TransformersChat:
    return cls(**settings)


def from_text(text: str) -> TransformersChat:
    """The model that ``transformers:PATH_OR_ID`` names."""
    return TransformersChat(model=text)
