"""Public fakes for tests and examples: a scripted chat model, and artifacts with a threshold you name.

The script is keyed by call, so threads cannot reorder the answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from .artifact import CalibrationArtifact, CalibrationScores, uncalibrated
from .items.measure import ItemsMeasure, items_estimator, items_measure
from .items.spec import ItemScores, ItemsSpec
from .outcome import Diagnostics, Feasible, Infeasible, InfeasibleReason
from .prompting import ONE_QUESTION, PromptWrapping, question_text
from .sampling.calls import SAMPLE_INDEX
from .sampling.replies.ends import end_of
from .specs import identify
from .types import Bindings
from .uncertainty import Estimator, make_estimator, plan_for

__all__ = ["ScriptedChat", "ended", "make_artifact"]


class ScriptedChat(BaseChatModel):
    """A chat model that answers from a script.

    The primary call (and any call outside a guard) gets the first answer of the script, sample ``i`` gets answer
    ``1 + i``, starting over at the second when the script is shorter. An entry that is an exception is raised; a
    message (with tool calls, say) is returned unchanged, with a ``finish_reason`` if it has none. After a
    tool's result the answers are those of the result's text, if the script has it; otherwise an answer with tool calls
    would repeat them, so the model says the result.

    Example:
        >>> model = ScriptedChat(script={"2 + 2?": ["4", "4", "5"]})
        >>> model.invoke("2 + 2?").content
        '4'
    """

    # LangChain takes the repr of a model for every question that a guard asks, which a long script makes slow.
    script: Mapping[str, Sequence[str | Exception | AIMessage]] = Field(default_factory=dict, repr=False)
    """Answers by question (text of the last human message): the primary answer first, then the samples."""
    default: Sequence[str | Exception | AIMessage] = ("I don't know",)
    """Answers to questions that are not in the script."""
    probability: float | None = None
    """If set, every word of an answer is reported as a token of this probability."""
    name_of_model: str = "scripted"
    """Model name the fake claims to have."""
    guardrail_trusted: ClassVar[bool] = True
    """A scripted model is not an endpoint, so a guard does not probe it."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {
            "ls_provider": "scripted",
            "ls_model_name": kwargs.get("model", self.name_of_model),
            "ls_model_type": "chat",
        }

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        index = (run_manager.metadata if run_manager else {}).get(SAMPLE_INDEX, -1)
        result = str(messages[-1].text) if messages and isinstance(messages[-1], ToolMessage) else None
        scripted = result is not None and result in self.script
        question = result if result is not None and scripted else question_text(messages)
        answers = self.script.get(question, self.default)
        rest = answers[1:] or answers
        answer = answers[0] if index < 0 else rest[index % len(rest)]
        if isinstance(answer, Exception):
            raise answer
        if result is not None and not scripted and isinstance(answer, AIMessage) and answer.tool_calls:
            answer = result  # the question's own call again would never end an agent's loop
        message = answer if isinstance(answer, AIMessage) else self._message(answer, kwargs)
        return ChatResult(generations=[ChatGeneration(message=ended(message))])

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Tools are passed along like any model does; the script decides what is called."""
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **chosen, **kwargs)

    def _message(self, answer: str, kwargs: dict[str, Any]) -> AIMessage:
        words = answer.split()
        metadata: dict[str, Any] = {"finish_reason": "stop"}
        if kwargs.get("logprobs") and self.probability is not None:
            logprob = math.log(self.probability)
            metadata["logprobs"] = {"content": [{"token": word, "logprob": logprob} for word in words]}
        usage = {"input_tokens": 1, "output_tokens": len(words), "total_tokens": 1 + len(words)}
        return AIMessage(content=answer, response_metadata=metadata, usage_metadata=usage)


def ended(message: AIMessage) -> AIMessage:
    """A message as chat models of providers give it: with the reason why it ended, without which a guard holds it back.

    Args:
        message: The message; a reason that it has stays.
    """
    end = {} if end_of(message) else {"finish_reason": "tool_calls" if message.tool_calls else "stop"}
    return message.model_copy(update={"response_metadata": {**end, **message.response_metadata}})


def make_artifact(
    model: BaseChatModel,
    *,
    threshold: float | None = 0.5,
    estimator: str | Estimator = "discrete_semantic_entropy",
    alpha: float = 0.1,
    prompt: PromptWrapping | None = None,
    options: Sequence[str] | None = None,
    n: int = 10,
    bindings: Bindings | None = None,
    turns: Sequence[str] = (ONE_QUESTION,),
    items: ItemsSpec | ItemsMeasure | None = None,
) -> CalibrationArtifact:
    """An artifact with a threshold that you name instead of a fitted threshold, for tests of code around a guard.

    It promises nothing, and says so.

    Args:
        model: The model it should load with.
        threshold: Accept iff uncertainty <= threshold; None makes an infeasible artifact.
        estimator: Name of the estimator, or the estimator of a scorer.
        alpha: Target error rate to state.
        prompt: Prompt wrapping; default: the bare question.
        options: Option labels, for closed-ended estimators.
        n: Number of samples.
        bindings: Tools and answer format it should load with.
        turns: Turns of the prompts it should answer; see `guardrail.prompting.turns_of`.
        items: For a gate of items: how answers are split, or the measure. The threshold is then that of the items.
    """
    measure = items_measure(items) if isinstance(items, ItemsSpec) else items
    if measure is not None:
        estimator = items_estimator(measure)
    own_estimator = make_estimator(estimator, bindings=bindings) if isinstance(estimator, str) else estimator
    common: dict[str, Any] = {
        "rule": "none",
        "alpha": alpha,
        "delta": None,
        "n": 1,
        "certifies": False,
        "diagnostics": Diagnostics(base_error=0.0, auroc=None, max_acceptance=1.0),
    }
    outcome: Feasible | Infeasible
    if threshold is None:
        outcome = Infeasible(reason=InfeasibleReason.TOO_FEW_ITEMS, **common)
    else:
        outcome = Feasible(threshold=threshold, n_accepted=1, n_errors=0, interval=(0.0, 0.975), tie_block=1, **common)
    scores: CalibrationScores | ItemScores = CalibrationScores(uncertainty=(threshold or 0.0,), error=(0,))
    if measure is not None:
        scores = ItemScores(sizes=(1,), uncertainty=(threshold or 0.0,), error=(0,))
    return uncalibrated(
        identify(model),
        plan_for([own_estimator], options=options, n=n, bindings=bindings),
        prompt or PromptWrapping(),
        own_estimator.spec,
        outcome,
        scores=scores,
        turns=tuple(turns),
    )
