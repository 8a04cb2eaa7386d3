"""The generic sampler samples honestly: no cache, no shortfall hidden, nobody's model changed, no blocking."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from pydantic import Field, PrivateAttr

from guardrail.errors import PromptTooLongError, UsageError
from guardrail.sampling.calls import quiet_copy, side_by_side
from guardrail.sampling.native import request_seed
from guardrail.sampling.replies.read import read_reply
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured

QUESTION = [HumanMessage("q")]
PLAN = SamplingPlan(n=4, max_tokens=5, stop=("\n",))
MODEL = ScriptedChat(script={"q": ["p", "s0", "s1", "s2", "s3"]})


class Recording(ScriptedChat):
    """Remembers the arguments of every call."""

    _calls: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self._calls.append({"stop": stop, **kwargs})
        return super()._generate(messages, stop, run_manager, **kwargs)


def test_primary_and_samples_are_told_apart() -> None:
    (drawn,) = Sampler(MODEL, PLAN).draw([QUESTION])
    assert drawn.primary is not None
    assert drawn.primary.text == "p"
    assert [sample.text for sample in drawn.samples] == ["s0", "s1", "s2", "s3"]
    assert drawn.cost.calls == 5
    assert drawn.cost.output_tokens == 5


def test_primary_is_greedy_and_samples_are_not() -> None:
    model = Recording(script=MODEL.script)
    Sampler(model, PLAN, max_concurrency=1).draw([QUESTION])
    common = {"stop": ["\n"], "max_tokens": 5}
    assert model._calls[0] == {**common, "temperature": 0.0}
    assert model._calls[1:] == [{**common, "temperature": 0.7, "top_p": 0.9}] * 4


@pytest.fixture
def global_cache() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("global_cache")
def test_a_global_response_cache_is_bypassed() -> None:
    model = Recording(script=MODEL.script)
    Sampler(model, PLAN).draw([QUESTION])
    Sampler(model, PLAN).draw([QUESTION])
    assert len(model._calls) == 10
    assert len({sample.text for sample in Sampler(model, PLAN).draw([QUESTION])[0].samples}) == 4


def test_the_callers_model_is_not_changed() -> None:
    model = ScriptedChat(script=MODEL.script, cache=True, disable_streaming=False)
    before = model.model_dump()
    Sampler(ScriptedChat(script=MODEL.script), PLAN).draw([QUESTION])
    Sampler(model, PLAN).draw([QUESTION])
    assert model.model_dump() == before


def test_a_failing_call_is_reported_not_raised_and_not_padded() -> None:
    model = ScriptedChat(script={"q": ["p", "a", ConnectionError("reset by peer")]})
    (drawn,) = Sampler(model, PLAN).draw([QUESTION])
    assert drawn.problem is Unmeasured.MODEL_FAILED
    assert drawn.problem_detail == "2 of 5 calls failed, the first with ConnectionError: reset by peer"
    assert len(drawn.samples) == 2


def test_one_failing_prompt_leaves_the_others_alone() -> None:
    model = ScriptedChat(script={"q": ["p"], "bad": [TimeoutError("slow")]})
    good, bad = Sampler(model, PLAN).draw([QUESTION, [HumanMessage("bad")]])
    assert good.problem is None
    assert (bad.primary, bad.problem) == (None, Unmeasured.MODEL_FAILED)


def test_stop_token_ids_are_refused_by_models_that_would_not_take_them() -> None:
    plan = PLAN.model_copy(update={"stop_token_ids": (5,)})
    with pytest.raises(UsageError, match=r"ScriptedChat does not take stop_token_ids, got \(5,\)"):
        Sampler(MODEL, plan).draw([QUESTION])
    with pytest.raises(UsageError, match="stop_token_ids"):
        asyncio.run(Sampler(MODEL, plan).adraw([QUESTION]))


def test_options_need_a_native_sampler() -> None:
    with pytest.raises(UsageError, match="ScriptedChat cannot read the likelihood of answer options"):
        Sampler(MODEL, SamplingPlan(n=0, options=("A", "B"))).draw([QUESTION])


def test_request_seed_depends_on_question_and_plan_only() -> None:
    other = [HumanMessage("r")]
    assert request_seed(PLAN, QUESTION) == request_seed(PLAN, [HumanMessage("q")])
    assert request_seed(PLAN, QUESTION) != request_seed(PLAN, other)
    assert request_seed(PLAN, QUESTION) != request_seed(SamplingPlan(seed=1), QUESTION)
    assert request_seed(SamplingPlan(seed=None), QUESTION) is None


# -- native samplers


class Native(ScriptedChat):
    """Draws whole sets; refuses prompts called "long"."""

    def draw_samples(self, prompts: Any, plan: SamplingPlan, *, seeds: Any) -> list[SampleSet]:
        texts = [str(messages[-1].content) for messages in prompts]
        if "long" in texts:
            raise PromptTooLongError("9000 tokens")
        pairs = zip(texts, seeds, strict=True)
        return [
            SampleSet(question=text, primary=Sample(text=text + str(seed), finish_reason="stop"))
            for text, seed in pairs
        ]

    async def adraw_samples(self, prompts: Any, plan: SamplingPlan, *, seeds: Any) -> list[SampleSet]:
        return self.draw_samples(prompts, plan, seeds=seeds)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_native_sampler_is_used_and_one_bad_prompt_is_isolated(asynchronous: bool) -> None:
    prompts: list[list[BaseMessage]] = [[HumanMessage("a")], [HumanMessage("long")], [HumanMessage("b")]]
    sets = (
        asyncio.run(Sampler(Native(), PLAN).adraw(prompts)) if asynchronous else Sampler(Native(), PLAN).draw(prompts)
    )
    assert sets[0].primary is not None
    assert sets[0].primary.text == f"a{request_seed(PLAN, prompts[0])}"
    assert (sets[1].problem, sets[1].problem_detail) == (Unmeasured.REJECTED, "PromptTooLongError: 9000 tokens")
    assert sets[2].problem is None


# -- reading replies


def reply(**metadata: Any) -> Sample:
    return read_reply(AIMessage(content=" x ", response_metadata=metadata))


def test_reply_is_read() -> None:
    content = [{"token": " x", "logprob": -0.5}, {"token": " ", "logprob": 1e-9}]
    sample = reply(finish_reason="stop", logprobs={"content": content})
    assert (sample.text, sample.tokens, sample.logprobs) == ("x", (" x", " "), (-0.5, 0.0))


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 0.5, None, "?", -9999.0, -1e30, -746.0])
def test_a_bad_log_probability_makes_all_of_them_unmeasured(bad: Any) -> None:
    """With -9999.0 (vLLM, OpenAI: "not computed") as a number, an entropy of 1.3 becomes 0 and is accepted."""
    content = [{"token": "x", "logprob": -1.0}, {"token": "y", "logprob": bad}]
    assert reply(logprobs={"content": content}).logprobs is None


@pytest.mark.parametrize("logprobs", [None, {}, {"content": None}, {"content": [{"token": "x"}]}])
def test_missing_log_probabilities_are_unmeasured(logprobs: Any) -> None:
    assert reply(logprobs=logprobs).logprobs is None


def test_a_very_unlikely_token_is_measured() -> None:
    """A floor that is too high would leave honest answers unmeasured."""
    assert reply(logprobs={"content": [{"token": "x", "logprob": -200.0}]}).logprobs == (-200.0,)


def test_refusals_of_the_server_are_seen() -> None:
    assert reply(finish_reason="content_filter").refusal
    assert read_reply(AIMessage(content="", additional_kwargs={"refusal": "no"})).refusal
    blocks: list[Any] = [{"type": "text", "text": "I"}, {"type": "refusal", "refusal": "cannot"}]
    assert read_reply(AIMessage(content=blocks)).refusal
    assert not reply(finish_reason="stop").refusal


@pytest.mark.parametrize(
    "metadata",
    [
        {"finish_reason": "content_filter"},  # OpenAI
        {"incomplete_details": {"reason": "content_filter"}},  # OpenAI's Responses API
        {"stop_reason": "refusal"},  # Anthropic
        {"finish_reason": "SAFETY"},  # Gemini, and what follows
        {"finish_reason": "RECITATION"},
        {"finish_reason": "BLOCKLIST"},
        {"finish_reason": "PROHIBITED_CONTENT"},
        {"finish_reason": "SPII"},
        {"finish_reason": "FinishReason.SAFETY"},
        {"stopReason": "guardrail_intervened"},  # Bedrock Converse
        {"stopReason": "content_filtered"},
        {"stop_reason": "content_filtered"},  # Bedrock
        {"finish_reason": "stop", "stop_reason": "refusal"},
    ],
)
def test_an_answer_that_was_refused_or_blocked_is_a_refusal(metadata: dict[str, Any]) -> None:
    assert reply(**metadata).refusal
    (drawn,) = Sampler(ScriptedChat(default=["p", AIMessage("x", response_metadata=metadata)]), PLAN).draw([QUESTION])
    assert (drawn.problem, drawn.problem_detail) == (
        Unmeasured.REFUSED,
        "4 of 4 samples are refusals or were filtered",
    )


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        (AIMessage("x", response_metadata={"finish_reason": "SAFETY"}), Unmeasured.REFUSED),
        (AIMessage(" "), Unmeasured.EMPTY_ANSWER),
        (AIMessage("\ud83d"), Unmeasured.UNREADABLE),
        (AIMessage("x"), Unmeasured.MODEL_FAILED),
    ],
)
@pytest.mark.parametrize("primary", [True, False])
def test_a_call_that_failed_does_not_hide_a_cause_that_depends_on_the_question(
    beside: AIMessage, reason: Unmeasured, primary: bool
) -> None:
    slow = TimeoutError("slow")
    answers = [beside, "a", slow] if primary else ["p", slow, beside]
    (drawn,) = Sampler(ScriptedChat(default=answers), PLAN).draw([QUESTION])
    assert drawn.problem is reason
    assert "the first with" in drawn.problem_detail
    assert reason.depends_on_question == (reason is not Unmeasured.MODEL_FAILED)


def test_scripted_chat_outside_a_guard_gives_its_first_answer() -> None:
    assert MODEL.invoke("q").content == "p"
    assert ChatGeneration(message=MODEL.invoke("?")).text == "I don't know"


# -- side by side ------------------------------------------------------------------------------------------------------

PLACE: ContextVar[str] = ContextVar("place", default="nowhere")


def test_calls_side_by_side_see_the_caller_s_context_and_answer_in_order() -> None:
    met = threading.Barrier(3)

    def call(number: int) -> tuple[int, str]:
        met.wait(30)  # all three are under way at once
        PLACE.set(f"call {number}")  # seen by this call alone
        return number, PLACE.get()

    token = PLACE.set("the caller")
    try:
        assert side_by_side(call, [2, 0, 1], 3) == [(2, "call 2"), (0, "call 0"), (1, "call 1")]
        assert side_by_side(lambda _: PLACE.get(), [0, 1], 2) == ["the caller", "the caller"]
        assert PLACE.get() == "the caller"
    finally:
        PLACE.reset(token)


def test_what_ends_one_call_ends_all_at_once_and_begins_no_other() -> None:
    release, begun, before = threading.Event(), [], set(threading.enumerate())

    def call(number: int) -> None:
        begun.append(number)
        if number != 1:
            release.wait(30)
            return
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            side_by_side(call, range(20), 2)
        assert not release.is_set()  # the first call is still under way
    finally:
        release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    assert set(begun) <= {0, 1, 2}  # the thread of call 1 may have taken another before the end was known


def test_calls_within_calls_do_not_wait_for_each_other_s_threads() -> None:
    def outer(_: int) -> list[int]:
        return side_by_side(lambda number: number, range(3), 3)

    assert side_by_side(outer, range(4), 2) == [[0, 1, 2]] * 4


def test_seeds_of_requests_and_of_their_parts_stay_what_they_were() -> None:
    """Recorded with the first release: another seed draws other samples for the same question."""
    plan = SamplingPlan(n=5, seed=7)
    seeds = [request_seed(plan, [HumanMessage("q")], part) for part in range(3)]
    assert seeds == [6012974611894258217, 94795034596607799, 5023562544274138077]


# -- caches of models inside models


class Counting(ScriptedChat):
    """Says another number at every call that reaches it."""

    made: Any = Field(default_factory=lambda: itertools.count(1))

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ScriptedChat(default=[str(next(self.made))])._generate(messages, stop, run_manager, **kwargs)


class Delegating(ScriptedChat):
    """Asks another model without the call's settings, so that all its calls are equal ones for that model's cache."""

    inner: Any = None
    several: Any = None
    _hidden: Any = PrivateAttr(default=None)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        delegate = self.inner or self._hidden or next(iter(self.several))
        if isinstance(delegate, str):
            delegate = self.several[delegate]
        return ChatResult(generations=[ChatGeneration(message=delegate.invoke(messages))])


def hiding(model: Any) -> Delegating:
    outer = Delegating()
    outer._hidden = model
    return outer


WITHIN: dict[str, Callable[[Any], Delegating]] = {
    "field": lambda model: Delegating(inner=model),
    "bound": lambda model: Delegating(inner=model.bind(user="x")),
    "chain": lambda model: Delegating(inner=RunnableLambda(lambda asked: asked) | model),
    "fallbacks": lambda model: Delegating(inner=model.with_fallbacks([model])),
    "list": lambda model: Delegating(several=[model]),
    "dict": lambda model: Delegating(several={"a": model}),
    "private": hiding,
    "twice": lambda model: Delegating(inner=Delegating(inner=model)),
}


@pytest.mark.parametrize("own", [True, False], ids=["own cache", "global cache"])
@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_caches_of_models_inside_a_model_are_bypassed(within: str, own: bool, asynchronous: bool) -> None:
    inner = Counting(cache=InMemoryCache() if own else None)
    model = WITHIN[within](inner)
    set_llm_cache(None if own else InMemoryCache())
    try:
        model.invoke([*QUESTION])
        repeated = model.invoke([*QUESTION])
        drawn = (
            asyncio.run(Sampler(model, PLAN).adraw([QUESTION]))
            if asynchronous
            else Sampler(model, PLAN).draw([QUESTION])
        )
        after = model.invoke([*QUESTION])
    finally:
        set_llm_cache(None)
    assert after.content == repeated.content == "1"  # the caller's model still has its cache
    assert len({sample.text for sample in drawn[0].samples}) == PLAN.n
    assert inner.cache is None or own


def test_a_model_that_holds_itself_is_copied_once() -> None:
    model = Delegating()
    model._hidden = model
    quiet: Any = quiet_copy(model)
    assert quiet is not model
    assert quiet.cache is False
    plain = Delegating(several={"numbers": [1, 2]})
    quiet = quiet_copy(plain)
    assert quiet.several is plain.several  # what holds no model stays the same object
