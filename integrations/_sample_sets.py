"""From decoded tokens to the library's values: `Sample` and `SampleSet`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from guardrail.prompting import question_text
from guardrail.types import Cost, OptionScores, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured

from ._decoding import Continuation
from ._engine import Request, Response
from ._tokens import Detokenizer
from ._tool_calls import parse_tool_calls

__all__ = ["SampleReader"]


@dataclass(frozen=True)
class SampleReader:
    """Reads responses as sample sets of one plan."""

    plan: SamplingPlan
    """What was asked for."""
    detokenizer: Detokenizer
    """Tokens to text."""
    tools: Collection[str]
    """Names of the tools the model was offered; empty for none."""

    def read(self, messages: Sequence[BaseMessage], request: Request, response: Response, seconds: float) -> SampleSet:
        """Sample set of one request; a failure of the model is its ``problem``."""
        cost = Cost(
            calls=1,
            input_tokens=len(request.prompt),
            output_tokens=sum(len(continuation.ids) for continuation in response.continuations),
            seconds=seconds,
        )
        failure = response.failure or _not_finite(response)
        if failure:
            return self.failed(messages, Unmeasured.MODEL_FAILED, failure, cost)
        labels = self.plan.options
        means = tuple(math.fsum(values) / len(values) for values in response.options)
        scores = None if labels is None else OptionScores(labels=labels, loglikelihoods=means)
        samples = tuple(self._sample(continuation) for continuation in response.continuations)
        if scores is not None and self.plan.n == 0:
            primary = self._chosen(scores, request, response)
        else:
            primary, samples = samples[0], samples[1:]
        return SampleSet(question=question_text(messages), primary=primary, samples=samples, options=scores, cost=cost)

    def failed(
        self, messages: Sequence[BaseMessage], problem: Unmeasured, detail: str, cost: Cost | None = None
    ) -> SampleSet:
        """Sample set of a request that came to nothing."""
        question = question_text(messages)
        return SampleSet(question=question, primary=None, cost=cost or Cost(), problem=problem, problem_detail=detail)

    def _sample(self, continuation: Continuation) -> Sample:
        answer = self.detokenizer.answer(
            continuation.ids,
            continuation.logprobs,
            ended=continuation.ended,
            stops=self.plan.stop,
            pieces=self.plan.logprobs,
        )
        parsed = parse_tool_calls(answer.text, self.tools) if self.tools else None
        calls = parsed.calls if parsed else ()
        return Sample(
            text=(parsed.text if parsed else answer.text).strip(),
            tool_calls=tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls),
            tokens=answer.tokens,
            logprobs=answer.logprobs,
            token_bytes=answer.token_bytes,
            finish_reason="tool_calls" if calls else answer.finish_reason,
        )

    def _chosen(self, scores: OptionScores, request: Request, response: Response) -> Sample:
        """The likeliest option as an answer."""
        if not self.plan.logprobs:
            return Sample(text=scores.best, finish_reason="stop")
        place = scores.labels.index(scores.best)
        pieces = tuple(self.detokenizer.pieces(request.options[place]))
        return Sample(text=scores.best, tokens=pieces, logprobs=response.options[place], finish_reason="stop")


def _not_finite(response: Response) -> str:
    """Why the numbers of a response cannot be used, or empty."""
    sequences = [*(continuation.logprobs for continuation in response.continuations), *response.options]
    if all(math.isfinite(value) for values in sequences for value in values):
        return ""
    return "the model's logits are not finite; a wider dtype (float32 or bfloat16 instead of float16) usually helps"
