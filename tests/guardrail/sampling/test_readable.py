"""A sample that neither JSON nor UTF-8 can carry is a missing measurement, with any sampler."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from guardrail import Guardrail
from guardrail.errors import UnreadableReplyError
from guardrail.plain_json import DEEPEST, json_fault, spelled, text_fault
from guardrail.sampling.replies.failures import cause_of
from guardrail.sampling.replies.read import only_ended, only_readable, only_storable, read_reply
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from guardrail.verdict import Reason, Verdict

HALF = "\ud83d"
"""The first half of a surrogate pair, which a cut-off JSON escape leaves behind."""


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def calling(args: dict[str, Any], name: str = "pay") -> AIMessage:
    return AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": "1", "type": "tool_call"}])


def invalid(text: str) -> AIMessage:
    bad: Any = {"name": "pay", "args": "{bad", "id": "1", "error": "x", "type": "invalid_tool_call"}
    return AIMessage(content=text, invalid_tool_calls=[bad])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (AIMessage(content=f"x{HALF}"), "surrogate"),
        (calling({"to": HALF}), "surrogate"),
        (calling({HALF: 1}), "surrogate"),
        (calling({}, name=HALF), "surrogate"),
        (calling({"amount": math.nan}), "the number nan"),
        (calling({"list": [{"amount": -math.inf}]}), "the number -inf"),
        (calling({"to": nested(3000)}), "nested"),
        (calling({"to": {1, 2}}), "a set"),
        (invalid("I sent it"), "with a JSON object .4 characters"),
        (invalid(""), "with a JSON object"),
    ],
)
def test_an_unreadable_reply_is_no_sample(message: AIMessage, says: str) -> None:
    with pytest.raises(UnreadableReplyError, match=says) as caught:
        read_reply(message)
    str(caught.value).encode()  # can be logged


def test_the_depth_is_the_stated_one() -> None:
    assert json_fault(nested(DEEPEST)) is None
    assert json_fault(nested(DEEPEST + 1)) is not None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_what_passes_is_read_back_as_it_was_written(value: Any) -> None:
    """Oracle: JSON itself, strict about NaN, in UTF-8."""
    try:
        back = json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except ValueError:
        assert json_fault(value) is not None
    else:
        assert (json_fault(value), back) == (None, value)


def test_a_broken_character_is_spelled_out_and_the_rest_stays() -> None:
    assert spelled(f"a{HALF}é") == "a\\ud83dé"
    assert text_fault("😀 é") is None


@pytest.mark.parametrize("replies", [[AIMessage(content=f"x{HALF}"), "b"], ["a", AIMessage(content=HALF)]])
async def test_a_guard_abstains_with_the_reason(replies: list[Any]) -> None:
    model = ScriptedChat(script={"q": replies})
    guard = Guardrail(model=model, artifact=make_artifact(model, threshold=0.5, n=2), probe="off")
    for verdict in (guard.assess("q"), await guard.aassess("q")):
        assert (verdict.reason, verdict.uncertainty.reason) == (Reason.UNMEASURED, Unmeasured.UNREADABLE)
        assert "half of a surrogate pair" in verdict.uncertainty.detail
        verdict.model_dump_json()  # can be stored


def test_a_native_samplers_set_keeps_what_is_readable_and_says_so() -> None:
    bad = Sample(text="", tool_calls=(ToolCall(name="pay", arguments={"amount": math.nan}),))
    good = Sample(text="a")
    drawn = SampleSet(question="q", primary=bad, samples=(good, bad, good))
    readable = only_readable(drawn)
    assert (readable.primary, readable.samples, readable.problem) == (None, (good, good), Unmeasured.UNREADABLE)
    assert readable.problem_detail.startswith("2 of 4 replies are unreadable: a tool call holds the number nan")
    clean = SampleSet(question="q", primary=good, samples=(good, good))
    assert only_readable(clean) is clean
    failed = drawn.model_copy(update={"problem": Unmeasured.SAMPLING_SHORTFALL, "problem_detail": "too few"})
    assert only_readable(failed).problem is Unmeasured.SAMPLING_SHORTFALL
    assert only_readable(failed).problem_detail.startswith("too few; 2 of 4")


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**64, 25 * 10**18, 10**400])
def test_an_integer_that_a_graphs_state_cannot_hold_is_json_nevertheless(number: int) -> None:
    assert json_fault({"list": [{"amount": number}]}) is None
    fault = json_fault({"list": [{"amount": number}]}, packed=True)
    assert fault is not None
    assert f"an integer of {number.bit_length()} bits" in fault


@pytest.mark.parametrize("number", [-(2**63), 2**64 - 1, 0, True, 1e30])
def test_a_number_that_a_graphs_state_holds_is_no_fault(number: float) -> None:
    assert json_fault([number], packed=True) is None


def test_only_the_candidate_has_to_fit_into_a_graphs_state() -> None:
    """The samples are measured, not stored: they count as they did in calibration."""
    big = Sample(text="", tool_calls=(ToolCall(name="pay", arguments={"amount": 2**64}),))
    small = Sample(text="a")
    drawn = SampleSet(question="q", primary=big, samples=(big, small))
    storable = only_storable(drawn)
    assert (storable.primary, storable.samples, storable.problem) == (None, (big, small), Unmeasured.UNREADABLE)
    assert storable.problem_detail.startswith("a tool call holds an integer of 65 bits")
    fits = drawn.model_copy(update={"primary": small})
    assert only_storable(fits) is fits
    failed = drawn.model_copy(update={"problem": Unmeasured.SAMPLING_SHORTFALL, "problem_detail": "too few"})
    assert only_storable(failed).problem is Unmeasured.SAMPLING_SHORTFALL
    assert only_storable(failed).problem_detail.startswith("too few; a tool call")


@pytest.mark.parametrize("name", ["LengthFinishReasonError", "ModelBehaviorError", "UnexpectedModelBehavior"])
def test_errors_of_frameworks_about_a_reply_are_known_without_their_adapter(name: str) -> None:
    """An application may wrap a framework's model itself; a question that fails so must not be drawn again."""
    error = type(name, (Exception,), {})("no output")
    assert cause_of(error) is Unmeasured.UNREADABLE
    assert cause_of(RuntimeError("no output")) is Unmeasured.MODEL_FAILED


# -- the end of an answer: only known good ends pass ------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        {"finish_reason": "stop"},  # OpenAI
        {"finish_reason": "FinishReason.STOP"},  # Gemini, as a member of an enum
        {"stop_reason": "end_turn", "stop_sequence": None},  # Anthropic
        {"stopReason": "stop_sequence"},  # Bedrock
        {"done": True, "done_reason": "stop"},  # Ollama
        {"finish_reason": "COMPLETE"},  # Cohere
        {"finish_reason": "eos_token"},  # Text Generation Inference
        {"status": "completed", "incomplete_details": None},  # the Responses API
        {"finish_reason": "stop", "status": 200},
    ],
)
def test_known_good_ends_of_each_provider_pass(metadata: dict[str, Any]) -> None:
    """Otherwise a guard on this provider would hold every answer back."""
    assert guarded_with(metadata).accepted


@pytest.mark.parametrize(
    ("metadata", "quoted"),
    [
        ({"finish_reason": "error.stop"}, "'error.stop'"),
        ({"finish_reason": "ErrorReason.stop"}, "'ErrorReason.stop'"),
        ({"finish_reason": "no_reason.stop"}, "'no_reason.stop'"),
        ({"finish_reason": "\u017ftop"}, "'\u017ftop'"),  # casefold makes "stop" of it
        ({"finish_reason": ["stop"]}, "\"['stop']\""),
        ({"finish_reason": "stop!"}, "'stop!'"),
        ({"stop_reason": "pause_turn"}, "'pause_turn'"),  # Anthropic
        ({"finish_reason": "MALFORMED_FUNCTION_CALL"}, "'MALFORMED_FUNCTION_CALL'"),  # Gemini
        ({"status": "failed"}, "'failed'"),  # the Responses API
        ({"finish_reason": 0}, "'0'"),
        ({"finish_reason": "tool_calls"}, "'tool_calls', and has no tool call"),
        ({"finish_reason": "x" * 100}, f"'{'x' * 60}',"),
        ({"finish_reason": None}, "does not say why it ended"),
        ({"finish_reason": " "}, "does not say why it ended"),
    ],
)
def test_any_other_end_is_unmeasured_and_quoted(metadata: dict[str, Any], quoted: str) -> None:
    """Half an answer ("Lim") would be given out as a whole one."""
    verdict = guarded_with(metadata)
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, Unmeasured.UNREADABLE)
    assert quoted in verdict.uncertainty.detail


@pytest.mark.parametrize(
    "reason",
    ["error", "ERROR", "FinishReason.ERROR", "abort", "insufficient_system_resource"],  # OpenRouter, vLLM, DeepSeek
)
def test_an_end_that_says_the_server_failed_is_a_failed_call(reason: str) -> None:
    """A certificate from what an overload left would otherwise count these questions as the model's own abstentions."""
    verdict = guarded_with({"finish_reason": reason})
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, Unmeasured.MODEL_FAILED)
    assert reason in verdict.uncertainty.detail


def guarded_with(metadata: dict[str, Any], cut_off: str = "abstain") -> Verdict:
    """The verdict on an answer that every call gives, with this metadata."""
    model = Unchanged(default=[AIMessage("Lim", response_metadata=metadata)])
    artifact = make_artifact(model, n=2)
    plan = artifact.plan.model_copy(update={"cut_off": cut_off})
    return Guardrail(model=model, artifact=artifact.model_copy(update={"plan": plan})).assess("Capital of Peru?")


class Unchanged(ScriptedChat):
    """Like a class whose messages state no end, or another key for it than ``finish_reason``."""

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        message: Any = self.default[0]
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_a_model_that_never_says_why_it_ended_is_answered_where_a_part_counts_as_an_answer() -> None:
    """Otherwise no answer of a class without finish reasons could ever be given out; the reason names this way out."""
    assert guarded_with({}, cut_off="measure").accepted
    assert "--set cut_off=measure" in guarded_with({}).uncertainty.detail
    assert not guarded_with({"finish_reason": "error"}, cut_off="measure").accepted


@pytest.mark.parametrize("finish", ["tool_calls", "tool_use", "function_call", "stop"])
def test_an_end_for_tool_calls_is_good_with_a_call(finish: str) -> None:
    """Otherwise agents could make no guarded call."""
    message = calling({"to": "bob"}).model_copy(update={"response_metadata": {"finish_reason": finish}})
    assert read_reply(message).tool_calls


def test_a_sample_that_broke_off_is_missing_also_from_a_native_sampler() -> None:
    """Half a sample would agree or disagree with whole answers as chance wants it."""
    good, broken = Sample(text="Lima", finish_reason="stop"), Sample(text="Lim", finish_reason="error")
    readable = only_readable(SampleSet(question="q", primary=good, samples=(good, broken)))
    assert (readable.samples, readable.problem) == ((good,), Unmeasured.MODEL_FAILED)
    odd = Sample(text="Lim", finish_reason="pause_turn")
    assert only_readable(SampleSet(question="q", primary=odd, samples=(broken,))).problem is Unmeasured.UNREADABLE


def test_the_vote_of_samples_without_an_end_is_not_given_out() -> None:
    """The most frequent sample is the answer there, so each of them must be whole."""
    plan = SamplingPlan(n=2, primary="majority")
    whole, unknown = Sample(text="Lima", finish_reason="stop"), Sample(text="Lima")
    assert only_ended(SampleSet(question="q", primary=None, samples=(whole, whole)), plan).problem is None
    drawn = only_ended(SampleSet(question="q", primary=None, samples=(whole, unknown)), plan)
    assert drawn.problem is Unmeasured.UNREADABLE


def test_zeros_for_log_probabilities_are_held_back_without_a_probe() -> None:
    model = ScriptedChat(script={"q": ["Paris", "Rome", "Paris"]}, probability=1.0)
    artifact = make_artifact(model, estimator="semantic_entropy", n=2)
    verdict = Guardrail(model=model, artifact=artifact, probe="off").assess("q")
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, Unmeasured.NO_LOGPROBS)


@pytest.mark.parametrize(
    ("answer", "probability", "response_format", "held"),
    [
        ("It is the city Paris", 1.0, None, True),
        ("It is the city Paris", 1 - 1e-7, None, False),  # surely said, and measured
        ("It is Paris.", 1.0, None, False),  # a few tokens may round to 1
        ('{"city": "Paris", "of": "France", "n": 1}', 1.0, {"type": "json_object"}, False),  # most of it is dictated
    ],
)
def test_a_long_answer_of_zeros_alone_is_held_back_without_a_probe(
    answer: str, probability: float, response_format: dict[str, Any] | None, held: bool
) -> None:
    """A server that writes 0 for "not computed" would make each answer a certain one, which no other answer refutes."""
    model = ScriptedChat(default=[answer], probability=probability)
    bindings = None if response_format is None else Bindings(response_format=response_format)
    artifact = make_artifact(model, estimator="perplexity", n=0, bindings=bindings)
    verdict = Guardrail(model=model, artifact=artifact, probe="off").assess("q")
    assert verdict.accepted is not held
    assert verdict.uncertainty.reason is (Unmeasured.NO_LOGPROBS if held else None)
