"""The generic sampler: n + 1 concurrent calls to any chat model, and how its replies are read."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from ._callbacks import without_streams
from ._crew import side_by_side
from ._failures import told
from ._limits import bound_for_threads, current_bound
from ._readable import refuse_unreadable
from ._spelling import text_tokens
from .bindings import call_settings
from .prompting import question_text
from .types import Cost, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured

__all__ = ["SAMPLE_INDEX", "acall_concurrently", "call_concurrently", "cut_off", "read_reply"]

DEFAULT_CONCURRENCY = 16
"""Calls in flight at once, unless the caller says otherwise."""
SAMPLE_INDEX = "guardrail_sample"
"""Run metadata key that numbers a call: -1 for the primary answer, 0 ... n - 1 for the samples."""
_ENDED = ("finish_reason", "stop_reason", "stopReason", "done_reason")
"""Where LangChain's integrations say why an answer ended: OpenAI and Gemini, Anthropic, Bedrock Converse, Ollama."""
_REFUSED = frozenset({
    "content_filter", "refusal",  # OpenAI; Anthropic
    "blocklist", "model_armor", "prohibited_content", "recitation", "safety", "spii",  # Gemini
    "content_filtered", "guardrail_intervened",  # Bedrock
    "error_toxic",  # Cohere
})  # fmt: skip
"""Reasons that say the model or its server refused, or took what was said away."""
_CUT = frozenset({"length", "max_output_tokens", "max_tokens", "model_context_window_exceeded", "model_length"})
"""Reasons that say the answer is not whole."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: which prompt it belongs to and how it is made."""

    prompt: int
    index: int
    messages: list[BaseMessage]
    params: dict[str, Any]
    name: str = "primary"

    def settings(self, ambient: RunnableConfig) -> dict[str, Any]:
        """Arguments of `BaseChatModel.generate`: how the run is traced, and how the answer is drawn."""
        return {
            "run_name": f"guardrail_{self.name}" if self.index < 0 else f"guardrail_sample_{self.index}",
            "callbacks": ambient.get("callbacks"),
            "tags": ambient.get("tags"),
            "metadata": {**ambient.get("metadata", {}), SAMPLE_INDEX: self.index},
            **self.params,
        }


@dataclass(frozen=True, slots=True)
class _Reply:
    """What came back: a sample or an error, with what it used."""

    sample: Sample | None
    error: Exception | None
    usage: UsageMetadata | None
    started: float
    ended: float


def call_concurrently(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
    name: str = "primary",
    first: int = -1,
) -> list[SampleSet]:
    """Draw sample sets by separate calls in threads; a call that fails is reported in its set, never raised.

    ``first`` is the number of the first call: from 0 on there is no primary answer, only samples ``first`` to n - 1.
    """
    quiet, ambient = quiet_copy(model), _ambient(callbacks)
    calls = _calls(prompts, plan, name, first, call_settings(model, plan.bindings))
    bound = bound_for_threads()

    def run(call: _Call) -> _Reply:
        started = time.perf_counter()
        try:
            return _reply(quiet.generate([call.messages], **call.settings(ambient)), started)
        except Exception as error:  # whatever a model raises is a missing measurement, which abstains
            return _error(error, started)

    if bound is None:
        return _assemble(prompts, plan, calls, side_by_side(run, calls, max_concurrency or DEFAULT_CONCURRENCY))
    bound.draws()

    def run_in_slot(call: _Call) -> _Reply:
        with bound.in_flight():
            return run(call)

    workers = min(max_concurrency or bound.n, bound.n)
    return _assemble(prompts, plan, calls, side_by_side(run_in_slot, calls, workers))


async def acall_concurrently(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
    name: str = "primary",
    first: int = -1,
) -> list[SampleSet]:
    """`call_concurrently` on the event loop."""
    quiet, ambient = quiet_copy(model), _ambient(callbacks)
    calls = _calls(prompts, plan, name, first, call_settings(model, plan.bindings))
    bound = current_bound()
    default = DEFAULT_CONCURRENCY if bound is None else bound.n
    slots = asyncio.Semaphore(max_concurrency or default)

    async def run(call: _Call) -> _Reply:
        async with slots, nullcontext() if bound is None else bound.ain_flight():
            started = time.perf_counter()
            try:
                return _reply(await quiet.agenerate([call.messages], **call.settings(ambient)), started)
            except Exception as error:
                return _error(error, started)

    if bound is not None:
        bound.draws()
    return _assemble(prompts, plan, calls, await asyncio.gather(*(run(call) for call in calls)))


def quiet_copy(model: BaseChatModel) -> BaseChatModel:
    """A copy that neither reads a response cache (samples would be equal) nor streams (samples would leak)."""
    return model.model_copy(update={"cache": False, "disable_streaming": True})


def _calls(
    prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, name: str, first: int, bound: dict[str, Any]
) -> list[_Call]:
    common: dict[str, Any] = {**bound, "max_tokens": plan.max_tokens}
    if plan.stop:
        common["stop"] = list(plan.stop)
    if plan.logprobs:
        common["logprobs"] = True
    primary = {**common, "temperature": 0.0}
    sampled = {**common, "temperature": plan.temperature, "top_p": plan.top_p}
    return [
        _Call(i, index, list(messages), primary if index < 0 else sampled, name)
        for i, messages in enumerate(prompts)
        for index in range(first, plan.n)
    ]


def _ambient(callbacks: Callbacks) -> RunnableConfig:
    """The caller's run configuration, as `invoke` would find it: `generate` is the same without its detours.

    Handlers that stream are left out here, whoever draws: they would show samples that nobody has judged.
    """
    found = ensure_config(None if callbacks is None else RunnableConfig(callbacks=callbacks))
    found["callbacks"] = without_streams(found.get("callbacks"))
    return found


def _reply(result: LLMResult, started: float) -> _Reply:
    generation = result.generations[0][0]
    message = generation.message if isinstance(generation, ChatGeneration) else None
    if not isinstance(message, AIMessage):
        raise TypeError(f"the chat model gave a {type(message or generation).__name__} instead of an AIMessage")
    return _Reply(read_reply(message), None, message.usage_metadata, started, time.perf_counter())


def _error(error: Exception, started: float) -> _Reply:
    return _Reply(None, error, None, started, time.perf_counter())


def cut_off(message: AIMessage) -> bool:
    """Whether the answer ended because it became too long, so that it is not whole."""
    return not _CUT.isdisjoint(map(_folded, _ended(message.response_metadata)))


def _ended(metadata: Mapping[str, Any]) -> list[str]:
    """Why an answer ended, in the server's words; more than one where the metadata says it in several places."""
    partly = metadata.get("incomplete_details")  # OpenAI's Responses API
    found = [*(metadata.get(name) for name in _ENDED), partly.get("reason") if isinstance(partly, Mapping) else None]
    return [str(reason) for reason in found if reason]


def _folded(reason: str) -> str:
    """A reason in one spelling: "SAFETY", and "FinishReason.SAFETY" as Python writes a member of an enum, are equal."""
    return reason.rpartition(".")[2].casefold()


def _refused(message: AIMessage) -> bool:
    if message.additional_kwargs.get("refusal") or not _REFUSED.isdisjoint(
        map(_folded, _ended(message.response_metadata))
    ):
        return True
    blocks = message.content if isinstance(message.content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)


def read_reply(message: AIMessage) -> Sample:
    """A `Sample` from a chat model's message.

    Log-probabilities are read in OpenAI's form (``response_metadata["logprobs"]["content"]``). A list that is
    incomplete, holds a NaN or an infinity, or is that of another text counts as not measured. Tokens after the text
    (end tokens, stop strings) are left out. The tokens of tool calls are taken as they are: what a call was written
    like is not known.

    Raises:
        UnreadableReplyError: The reply cannot be judged and given out as it is; see `guardrail._readable`.
    """
    text = message.content if isinstance(message.content, str) else str(message.text)
    refuse_unreadable(message, text)
    metadata = message.response_metadata
    found: dict[str, Any] = {} if metadata.get("logprobs") is None else _measured(_without_end(metadata["logprobs"]))
    if not (message.tool_calls or message.additional_kwargs.get("function_call")):
        found = _of_text(text, found)
    if message.tool_calls:
        found["tool_calls"] = tuple(ToolCall(name=call["name"], arguments=call["args"]) for call in message.tool_calls)
    return Sample(
        text=text.strip(),
        finish_reason=next(iter(_ended(metadata)), None),
        refusal=_refused(message),
        **found,
    )


def _of_text(text: str, found: dict[str, Any]) -> dict[str, Any]:
    """What was measured of the tokens that spell the text; nothing where they spell another one."""
    kept = text_tokens(text, found["tokens"], found["token_bytes"]) if found else None
    if kept is None:
        return {}
    tokens, token_bytes = kept
    if token_bytes == tuple(token.encode().hex() for token in tokens):  # those that needed their bytes were left out
        token_bytes = None
    return {"tokens": tokens, "logprobs": found["logprobs"][: len(tokens)], "token_bytes": token_bytes}


def _measured(found: Any) -> dict[str, Any]:
    """Tokens, log-probabilities and bytes as fields of a `Sample`; none where they were not measured."""
    tokens, logprobs = _token_logprobs(found)
    if tokens is None:
        return {}
    return {"tokens": tokens, "logprobs": logprobs, "token_bytes": _token_bytes(found["content"], tokens)}


def _without_end(found: Any) -> Any:
    """Log-probabilities without the end of the answer, which llama-server lists as a last token of no bytes."""
    try:
        *rest, last = found["content"]
        return {"content": rest} if last["token"] == "" and not last.get("bytes") else found
    except (AttributeError, KeyError, TypeError, ValueError):
        return found


def _token_logprobs(found: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    try:
        content = found["content"]
        tokens = tuple(str(item["token"]) for item in content)
        # Servers round, so a certain token may come back as 1e-9; anything larger is not a log-probability.
        logprobs = tuple(min(float(item["logprob"]), 0.0) for item in content if float(item["logprob"]) <= 1e-6)
    except (KeyError, TypeError, ValueError):
        return None, None
    if len(logprobs) != len(tokens) or not all(math.isfinite(value) for value in logprobs):
        return None, None
    return tokens, logprobs


def _token_bytes(content: Sequence[Any], tokens: Sequence[str]) -> tuple[str, ...] | None:
    """Bytes of the tokens in hex, from OpenAI's ``bytes``; None where the tokens themselves say it all."""
    try:
        given = [item.get("bytes") for item in content]
        if not any(given):  # not told; some SDKs make empty lists of that
            return None
        raw = [token.encode() if one is None else bytes(list(one)) for one, token in zip(given, tokens, strict=True)]
        if all(one == token.encode() for one, token in zip(raw, tokens, strict=True)):
            return None
    except (AttributeError, TypeError, ValueError):  # no list of bytes: the tokens have to do
        return None
    return tuple(one.hex() for one in raw)


def _assemble(
    prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, calls: list[_Call], replies: list[_Reply]
) -> list[SampleSet]:
    by_prompt: list[list[tuple[_Call, _Reply]]] = [[] for _ in prompts]
    for call, reply in zip(calls, replies, strict=True):
        by_prompt[call.prompt].append((call, reply))
    return [_sample_set(messages, plan, pairs) for messages, pairs in zip(prompts, by_prompt, strict=True)]


def _sample_set(messages: Sequence[BaseMessage], plan: SamplingPlan, pairs: list[tuple[_Call, _Reply]]) -> SampleSet:
    primary = next((reply.sample for call, reply in pairs if call.index < 0), None)
    samples = tuple(reply.sample for call, reply in pairs if call.index >= 0 and reply.sample is not None)
    problem, detail = _problem(pairs, samples)
    used = [reply.usage for _, reply in pairs if reply.usage is not None]
    return SampleSet(
        question=question_text(messages),
        primary=primary,
        samples=samples,
        cost=Cost(
            calls=len(pairs),
            input_tokens=sum(usage["input_tokens"] for usage in used),
            output_tokens=sum(usage["output_tokens"] for usage in used),
            seconds=max(reply.ended for _, reply in pairs) - min(reply.started for _, reply in pairs),
        ),
        problem=problem,
        problem_detail=detail,
    )


def _problem(pairs: list[tuple[_Call, _Reply]], samples: Sequence[Sample]) -> tuple[Unmeasured | None, str]:
    errors = [reply.error for _, reply in pairs if reply.error is not None]
    if errors:
        first = told(errors[0], asking=True)
        return Unmeasured.MODEL_FAILED, f"{len(errors)} of {len(pairs)} calls failed, the first with {first}"
    refused = sum(sample.refusal for sample in samples)
    if refused:
        return Unmeasured.REFUSED, f"{refused} of {len(samples)} samples are refusals or were filtered"
    return None, ""
