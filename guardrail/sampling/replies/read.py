"""Read replies, and refuse those that cannot be judged, stored and given out unchanged.

JSON has no NaN and no infinity, UTF-8 no half of a surrogate pair, and every reader of nested values stops at some
depth. A reply with one of these would be judged in one form and shown, stored or run in another. The same holds for
the text of a reply whose tool calls cannot be read, and for a reply that does not end as whole answers do. Such a reply
counts as missing, so nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.messages import AIMessage

from ...errors import BrokenOffReplyError, UnreadableReplyError
from ...plain_json import json_fault, text_fault
from ...types import Bindings, Missing, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from .ends import end_fault, end_of, is_broken_off, is_cut, refused
from .spelling import token_fields

_THOUGHT = "<think>"


def read_reply(message: AIMessage) -> Sample:
    """A `Sample` from a chat model's message.

    Log-probabilities are read in OpenAI's form (``response_metadata["logprobs"]["content"]``, or for Ollama the list
    itself). A list that is incomplete, holds a placeholder (`guardrail.types.is_logprob`: NaN, -9999.0), or belongs to
    another text counts as not measured.
    Tokens after the text (end tokens, stop strings) are dropped. The tokens of tool calls are not compared with
    anything: the text that the model wrote for a call is not known.

    Raises:
        UnreadableReplyError: The reply cannot be judged and given out unchanged; see above. Or
            the stated reason of its end is not that of a whole answer (`is_whole`), nor that of a too long answer;
            `BrokenOffReplyError` if it says that the server failed.
    """
    # Content blocks hold thinking, too; `text` is what the user sees.
    text = without_thought(message.content if isinstance(message.content, str) else str(message.text))
    for bad in message.invalid_tool_calls:
        raise UnreadableReplyError(
            f"a tool call is not one of a function with a JSON object ({len(str(bad.get('args')))} characters)"
        )
    if message.additional_kwargs.get("function_call") and not message.tool_calls:
        raise UnreadableReplyError("a function call is in OpenAI's older form, which is not read")
    calls = tuple(ToolCall(name=call["name"], arguments=call["args"]) for call in message.tool_calls)
    end, refusal = end_of(message), refused(message)
    if (fault := _fault(text, calls, end, refusal=refusal)) is not None:
        raise (BrokenOffReplyError if is_broken_off(end) else UnreadableReplyError)(fault)
    # The tokens of a call spell the model's own notation, which no reply contains.
    fields = token_fields(message.response_metadata.get("logprobs"), None if calls else text)
    return Sample(text=text.strip(), tool_calls=calls, finish_reason=end, refusal=refusal, **fields)


def without_thought(text: str) -> str:
    """The answer after a thought that a server left in the text, as ``<think>...</think>`` before it.

    A thought that does not end leaves no answer.
    """
    if not text.lstrip().startswith(_THOUGHT):
        return text
    return text.partition("</think>")[2].lstrip()


# -- Sets without what cannot be judged -------------------------------------------------------------------------------


def only_readable(drawn: SampleSet) -> SampleSet:
    """The set without the replies that cannot be judged and given out unchanged; its ``problem`` says how many."""
    primary, samples = drawn.primary, drawn.samples
    replies = [(index, reply) for index, reply in enumerate((primary, *samples)) if reply is not None]
    faulty = {index: (reply, fault) for index, reply in replies if (fault := _fault_of(reply)) is not None}
    if not faulty:
        return drawn
    first = next(fault for _, fault in faulty.values())
    detail = f"{len(faulty)} of {len(replies)} replies are unreadable: {first}"
    of_the_server = all(is_broken_off(reply.finish_reason) for reply, _ in faulty.values())
    kept = tuple(sample for index, sample in enumerate(samples, start=1) if index not in faulty)
    problem = drawn.problem or Unmeasured.MODEL_FAILED if of_the_server else None
    return _unread(drawn, detail, problem, primary=None if 0 in faulty else primary, samples=kept)


def only_storable(drawn: SampleSet) -> SampleSet:
    """The set without a primary answer that a LangGraph state cannot hold; its ``problem`` says so.

    The samples stay unchanged: they are only measured, and shown as texts.
    """
    try:
        if drawn.primary is not None:
            refuse_unstorable(drawn.primary)
    except UnreadableReplyError as error:
        return _unread(drawn, str(error), primary=None)
    return drawn


def only_offered(drawn: SampleSet, bindings: Bindings | None) -> SampleSet:
    """The set without a primary answer that calls a tool which no call offered; its ``problem`` says so.

    The name of such a tool is the model's word, which no verdict may quote. A sample may call such a tool: it is only
    compared.
    """
    offered = () if bindings is None else bindings.tool_names
    calls = () if drawn.primary is None else drawn.primary.tool_calls
    if all(call.name in offered for call in calls):
        return drawn
    tools = f"the tools are {', '.join(offered)}" if offered else "no tool was bound"
    detail = f"the answer calls a tool that was not offered: {tools}"
    return _unread(drawn, detail, primary=None, not_offered=drawn.primary)


def _unread(drawn: SampleSet, detail: str, problem: Unmeasured | None = None, **changes: Any) -> SampleSet:
    """The set with a further fault; a failure of the transport in the same set does not hide an unreadable reply."""
    before = drawn.problem
    unreadable = before if before is not None and before.depends_on_question else Unmeasured.UNREADABLE
    whole = detail if before is None else f"{drawn.problem_detail}; {detail}"
    return drawn.model_copy(update={"problem": problem or unreadable, "problem_detail": whole, **changes})


def only_ended(drawn: SampleSet, plan: SamplingPlan) -> SampleSet:
    """The set; its ``problem`` says if no reply tells whether the answer is whole.

    An answer is whole if its server says so (`is_whole`): servers and proxies that lose the end of an answer lose the
    reason of the end as well. With ``cut_off="measure"`` a part is an answer, so nothing needs to be known. Of options
    the likeliest is the answer, and nothing was written.
    """
    written = drawn.samples if plan.primary == "majority" else (drawn.primary,)
    unknown = any(
        sample is not None and sample.comparable and not sample.refusal and sample.finish_reason is None
        for sample in written
    )
    if (
        not unknown
        or plan.cut_off == "measure"
        or drawn.problem is not None
        or (plan.options is not None and not plan.n)
    ):
        return drawn
    return drawn.model_copy(update={"problem": Unmeasured.UNREADABLE, "problem_detail": _NO_END})


_NO_END = (
    "the reply does not say why it ended (no finish_reason or the like), so it may be a part of an answer. If this "
    'model never says it, calibrate with --set cut_off=measure (cut_off="measure"), where a part is an answer, too'
)


def refuse_unstorable(sample: Sample) -> None:
    """Refuse a readable reply that a LangGraph state cannot hold.

    Raises:
        UnreadableReplyError: A call has an integer outside `PACKED`.
    """
    for call in sample.tool_calls:
        fault = json_fault(call.arguments, packed=True)
        if fault is not None:
            raise UnreadableReplyError(f"a tool call holds {fault}")


def _fault(text: str, calls: Iterable[ToolCall], end: str | None, *, refusal: bool) -> str | None:
    """The reason why an answer cannot be given out as judged, or may not be whole; it quotes no word of the model."""
    if (fault := text_fault(text)) is not None:
        return f"the answer holds {fault}"
    calls = tuple(calls)
    for call in calls:
        if (fault := json_fault([call.name, call.arguments])) is not None:
            return f"a tool call holds {fault}"
    return None if refusal else end_fault(end, bool(calls))


def _fault_of(sample: Sample) -> str | None:
    return _fault(sample.text, sample.tool_calls, sample.finish_reason, refusal=sample.refusal)


def part_of_an_answer(drawn: SampleSet, plan: SamplingPlan) -> Missing | None:
    """The reason not to measure a primary answer that was cut off; None if it is whole, or if a part is an answer."""
    if plan.cut_off == "measure" or drawn.primary is None or not is_cut(drawn.primary.finish_reason):
        return None
    return Missing(
        Unmeasured.CUT_OFF,
        f"the answer was cut off at max_tokens = {plan.max_tokens}; calibrate with a larger one, or with "
        'cut_off="measure" if a part is an answer, too',
    )
