"""From decoded tokens to sample sets, tool calls and LangChain's chat results."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, InvalidToolCall, UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from guardrail.foreign_errors import describe_error
from guardrail.prompting import question_text
from guardrail.sampling.native import llm_output
from guardrail.sampling.replies.failures import cause_of
from guardrail.types import Cost, OptionScores, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured

from .decoding import Continuation
from .engine import DecodingRequest, NotFiniteError, Response
from .prompts import CallSettings
from .tokens import Detokenizer

# -- tool calls in text: ``<tool_call>{...}</tool_call>`` (Qwen, Hermes) and bare JSON (Llama 3.1, Mistral) -----------

TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ParsedText:
    """Text of an answer and the tool calls found in it."""

    text: str
    """The text without the calls; the whole text if it has no calls."""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Name and arguments of each call, in order."""
    invalid: tuple[tuple[str, str], ...] = ()
    """Raw text of each unreadable call, and the reason. ``text`` still contains the raw text."""


def parse_tool_calls(text: str, tools: Collection[str]) -> ParsedText:
    """Find the tool calls in an answer; none without tools.

    Tagged calls may name any tool. Bare JSON is a call only if the whole text is one or more objects that name a known
    tool, since an answer may be JSON for other reasons.

    Args:
        text: The answer.
        tools: Names of the offered tools.
    """
    if not tools:
        return ParsedText(text)
    blocks = TAGGED.findall(text)
    if not blocks:
        bare = _bare(text.strip(), tools)
        return ParsedText("" if bare else text, tuple(bare))
    calls: list[tuple[str, dict[str, Any]]] = []
    invalid: list[tuple[str, str]] = []
    for block in blocks:
        try:
            calls.append(_call(json.loads(block)))
        except ValueError as error:
            invalid.append((block.strip(), str(error)))
    return ParsedText(text if invalid else TAGGED.sub("", text).strip(), tuple(calls), tuple(invalid))


def _bare(text: str, tools: Collection[str]) -> list[tuple[str, dict[str, Any]]]:
    """Calls if the text consists of calls only (a list, or objects separated by ";" or white space), else none."""
    decoder = json.JSONDecoder()
    values: list[Any] = []
    position = 0
    try:
        while position < len(text):
            value, position = decoder.raw_decode(text, position)
            values.extend(value if isinstance(value, list) else [value])
            while position < len(text) and text[position] in "; \t\r\n":
                position += 1
        calls = [_call(value) for value in values]
    except ValueError:
        return []
    return calls if all(name in tools for name, _ in calls) else []


def _call(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of one call; the ValueError describes what is wrong."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError('a tool call is an object with a "name"')
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('a tool call has its "arguments" (or "parameters") as an object')
    return value["name"], arguments


# -- answers, as samples and as chat results ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """Reads what was decoded as sample sets of a plan, or as the result of a plain call."""

    settings: SamplingPlan | CallSettings
    """The plan, or the settings of the call."""
    detokenizer: Detokenizer
    """Tokens to text."""
    tools: Collection[str]
    """Names of the offered tools; empty for none."""

    def answer(self, result: Continuation) -> tuple[Sample, ParsedText]:
        """One answer, and the tool calls in its text."""
        settings = self.settings
        decoded = self.detokenizer.answer(
            result, stops=settings.stop, stop_ids=settings.stop_token_ids, pieces=settings.logprobs
        )
        parsed = parse_tool_calls(decoded.text, self.tools)
        fields: dict[str, Any] = {"text": parsed.text.strip()}
        if parsed.calls:
            calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in parsed.calls)
            fields["tool_calls"] = calls
            # An answer that was cut off stays one: more calls, or words about this one, may be missing.
            if result.ended:
                fields["finish_reason"] = "tool_calls"
        return decoded.model_copy(update=fields), parsed

    def sample_set(
        self,
        messages: Sequence[BaseMessage],
        request: DecodingRequest,
        response: Response,
        seconds: float,
        labels: tuple[str, ...] | None,
    ) -> SampleSet:
        """Sample set of one request and its options; a failure of the model is its ``problem``."""
        pairs = list(zip(request.rows, response.continuations, strict=False))  # a failure has no continuations
        answers = [result for row, result in pairs if not row.given]
        options = [result for row, result in pairs if row.given]
        tokens = sum(len(answer.ids) for answer in answers)
        cost = Cost(calls=1, input_tokens=len(request.prompt), output_tokens=tokens, seconds=seconds)
        if error := response.failure:
            cause = Unmeasured.NOT_FINITE if isinstance(error, NotFiniteError) else cause_of(error)
            return failed(messages, cause, describe_error(error, asking=True), cost)
        means = tuple(math.fsum(option.logprobs) / len(option.logprobs) for option in options)
        scores = None if labels is None else OptionScores(labels=labels, loglikelihoods=means)
        samples = [self.answer(result)[0] for result in answers]
        if scores is not None and not samples:
            samples = [self._chosen(scores, options)]
        return SampleSet(
            question=question_text(messages), primary=samples[0], samples=samples[1:], options=scores, cost=cost
        )

    def _chosen(self, scores: OptionScores, options: Sequence[Continuation]) -> Sample:
        """The likeliest option as an answer."""
        if not self.settings.logprobs:
            return Sample(text=scores.best, finish_reason="stop")
        chosen = options[scores.labels.index(scores.best)]
        pieces = tuple(self.detokenizer.pieces(chosen.ids))
        return Sample(text=scores.best, tokens=pieces, logprobs=tuple(chosen.logprobs), finish_reason="stop")

    def chat_result(self, results: Sequence[Continuation], *, prompt: int, model: str) -> ChatResult:
        """One generation for each answer.

        Args:
            results: Finished sequences.
            prompt: Tokens of the prompt, which was read once: only the first message counts them.
            model: Name of the model.
        """
        counts = [len(result.ids) for result in results]
        generations = [
            self._generation(result, usage(0 if number else prompt, counts[number]), model)
            for number, result in enumerate(results)
        ]
        return ChatResult(generations=generations, llm_output=llm_output(usage(prompt, sum(counts)), model))

    def _generation(self, result: Continuation, tokens: UsageMetadata, model: str) -> ChatGeneration:
        sample, parsed = self.answer(result)
        info: dict[str, Any] = {"finish_reason": sample.finish_reason}
        logprobs = openai_logprobs(sample)
        if logprobs is not None:
            info["logprobs"] = logprobs
        message = AIMessage(
            content=sample.text,
            tool_calls=[tool_call(name=name, args=args, id=_call_id()) for name, args in parsed.calls],
            invalid_tool_calls=[
                InvalidToolCall(name=None, args=raw, id=_call_id(), error=error, type="invalid_tool_call")
                for raw, error in parsed.invalid
            ],
            usage_metadata=tokens,
            response_metadata={**info, "model_name": model, "model_provider": "transformers"},
        )
        return ChatGeneration(message=message, generation_info=info)


def failed(messages: Sequence[BaseMessage], problem: Unmeasured, detail: str, cost: Cost | None = None) -> SampleSet:
    """Sample set of a request without a result."""
    question = question_text(messages)
    return SampleSet(question=question, primary=None, cost=cost or Cost(), problem=problem, problem_detail=detail)


def openai_logprobs(answer: Sample) -> dict[str, Any] | None:
    """``{"content": [{"token", "bytes", "logprob", "top_logprobs"}, ...]}``, or None if they were not requested."""
    if answer.tokens is None or answer.logprobs is None:
        return None
    return {
        "content": [
            {"token": token, "bytes": list(token.encode()), "logprob": logprob, "top_logprobs": []}
            for token, logprob in zip(answer.tokens, answer.logprobs, strict=True)
        ]
    }


def usage(prompt: int, generated: int) -> UsageMetadata:
    """Token counts of one message."""
    return UsageMetadata(input_tokens=prompt, output_tokens=generated, total_tokens=prompt + generated)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex}"


def as_chunk(generation: ChatGeneration, content: str | None = None) -> ChatGenerationChunk:
    """A whole answer as a single chunk; with ``content``, the last chunk of a stream that ends with this text."""
    fields = generation.message.model_dump(exclude={"type"})
    if content is not None:
        fields["content"] = content
    return ChatGenerationChunk(
        message=AIMessageChunk(**fields, chunk_position="last"), generation_info=generation.generation_info
    )
