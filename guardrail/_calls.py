"""The generic sampler: n + 1 concurrent calls to any chat model, and how its replies are read."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor

from .prompting import question_text
from .types import Cost, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured

__all__ = ["SAMPLE_INDEX", "acall_concurrently", "call_concurrently", "read_reply"]

DEFAULT_CONCURRENCY = 16
"""Calls in flight at once, unless the caller says otherwise."""
SAMPLE_INDEX = "guardrail_sample"
"""Run metadata key that numbers a call: -1 for the primary answer, 0 ... n - 1 for the samples."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: which prompt it belongs to and how it is made."""

    prompt: int
    index: int
    messages: list[BaseMessage]
    params: dict[str, Any]

    def config(self, callbacks: Callbacks) -> RunnableConfig:
        name = "guardrail_primary" if self.index < 0 else f"guardrail_sample_{self.index}"
        config = RunnableConfig(run_name=name, metadata={SAMPLE_INDEX: self.index})
        if callbacks is not None:
            config["callbacks"] = callbacks
        return config


@dataclass(frozen=True, slots=True)
class _Reply:
    """What came back: a sample or an error, with its share of the cost."""

    sample: Sample | None
    error: Exception | None
    cost: Cost
    started: float


def call_concurrently(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
) -> list[SampleSet]:
    """Draw sample sets by separate calls in threads; a call that fails is reported in its set, never raised."""
    quiet, calls = _quiet(model), _calls(prompts, plan)

    def run(call: _Call) -> _Reply:
        started = time.perf_counter()
        try:
            message = quiet.invoke(call.messages, call.config(callbacks), **call.params)
            return _reply(message, started)
        except Exception as error:  # whatever a model raises is a missing measurement, which abstains
            return _error(error, started)

    with ContextThreadPoolExecutor(max_workers=max_concurrency or DEFAULT_CONCURRENCY) as pool:
        return _assemble(prompts, plan, calls, list(pool.map(run, calls)))


async def acall_concurrently(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks,
    max_concurrency: int | None,
) -> list[SampleSet]:
    """`call_concurrently` on the event loop."""
    quiet, calls = _quiet(model), _calls(prompts, plan)
    slots = asyncio.Semaphore(max_concurrency or DEFAULT_CONCURRENCY)

    async def run(call: _Call) -> _Reply:
        async with slots:
            started = time.perf_counter()
            try:
                message = await quiet.ainvoke(call.messages, call.config(callbacks), **call.params)
                return _reply(message, started)
            except Exception as error:
                return _error(error, started)

    return _assemble(prompts, plan, calls, await asyncio.gather(*(run(call) for call in calls)))


def _quiet(model: BaseChatModel) -> BaseChatModel:
    """A copy that neither reads a response cache (samples would be equal) nor streams (samples would leak)."""
    return model.model_copy(update={"cache": False, "disable_streaming": True})


def _calls(prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan) -> list[_Call]:
    common: dict[str, Any] = {"max_tokens": plan.max_tokens}
    if plan.stop:
        common["stop"] = list(plan.stop)
    if plan.logprobs:
        common["logprobs"] = True
    primary = {**common, "temperature": 0.0}
    sampled = {**common, "temperature": plan.temperature, "top_p": plan.top_p}
    return [
        _Call(i, index, list(messages), primary if index < 0 else sampled)
        for i, messages in enumerate(prompts)
        for index in range(-1, plan.n)
    ]


def _reply(message: AIMessage, started: float) -> _Reply:
    usage = message.usage_metadata
    cost = Cost(
        calls=1,
        input_tokens=usage["input_tokens"] if usage else 0,
        output_tokens=usage["output_tokens"] if usage else 0,
        seconds=time.perf_counter() - started,
    )
    return _Reply(read_reply(message), None, cost, started)


def _error(error: Exception, started: float) -> _Reply:
    return _Reply(None, error, Cost(calls=1, seconds=time.perf_counter() - started), started)


def read_reply(message: AIMessage) -> Sample:
    """A `Sample` from a chat model's message.

    Log-probabilities are read in OpenAI's form (``response_metadata["logprobs"]["content"]``). A list that is
    incomplete or holds a NaN or an infinity counts as not measured.
    """
    metadata = message.response_metadata
    finish = metadata.get("finish_reason") or metadata.get("stop_reason")
    tokens, logprobs = _token_logprobs(metadata.get("logprobs"))
    return Sample(
        text=str(message.text).strip(),
        tool_calls=tuple(ToolCall(name=call["name"], arguments=call["args"]) for call in message.tool_calls),
        tokens=tokens,
        logprobs=logprobs,
        finish_reason=None if finish is None else str(finish),
        refusal=bool(message.additional_kwargs.get("refusal")) or finish == "content_filter",
    )


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


def _assemble(
    prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, calls: list[_Call], replies: list[_Reply]
) -> list[SampleSet]:
    by_prompt: list[list[tuple[_Call, _Reply]]] = [[] for _ in prompts]
    for call, reply in zip(calls, replies, strict=True):
        by_prompt[call.prompt].append((call, reply))
    return [_sample_set(messages, plan, pairs) for messages, pairs in zip(prompts, by_prompt, strict=True)]


def _sample_set(messages: Sequence[BaseMessage], plan: SamplingPlan, pairs: list[tuple[_Call, _Reply]]) -> SampleSet:
    primary = next(reply.sample for call, reply in pairs if call.index < 0)
    samples = tuple(reply.sample for call, reply in pairs if call.index >= 0 and reply.sample is not None)
    errors = [reply.error for _, reply in pairs if reply.error is not None]
    problem, detail = None, ""
    if errors:
        problem = Unmeasured.MODEL_FAILED
        detail = f"{len(errors)} of {len(pairs)} calls failed, the first with {type(errors[0]).__name__}: {errors[0]}"
    elapsed = max(reply.started + reply.cost.seconds for _, reply in pairs) - min(reply.started for _, reply in pairs)
    total = sum((reply.cost for _, reply in pairs), start=Cost())
    return SampleSet(
        question=question_text(messages),
        primary=primary,
        samples=samples,
        cost=total.model_copy(update={"seconds": elapsed}),
        problem=problem,
        problem_detail=detail,
    )
