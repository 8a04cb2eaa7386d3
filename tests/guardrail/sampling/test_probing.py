"""A probe concludes from replies alone; what is observed, what is not known, and what condemns an endpoint."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field, PrivateAttr

from guardrail import Guardrail, Reason, Unmeasured
from guardrail.guard.abstention import ABSTENTION
from guardrail.sampling import prober as _probe
from guardrail.sampling.draws import Draws
from guardrail.sampling.effects import arun, run
from guardrail.sampling.probe import (
    PROMPT,
    ProbeReply,
    ProbeReport,
    conclude,
    longer_calls,
    probe_calls,
    unlike,
    wants_probe,
)
from guardrail.sampling.prober import (
    UNFIT_FOR,
    fault_steps,
    known_report,
    listed_tokens,
    needs_probe,
    probe,
    probe_steps,
    reply_of,
)
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost, Sample, SamplingPlan

CALLS = probe_calls(SamplingPlan(logprobs=True))
PLAN, WITH_LOGPROBS = SamplingPlan(n=3), SamplingPlan(n=3, logprobs=True)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["content", "token", "logprob", "bytes", "top_logprobs"]), inner)
    ),
)


def reply(*texts: str, logprob: float = -1.5, argmax: bool | None = None, first: Any = None) -> ProbeReply:
    """An answer whose first token "g" has the log-probability, and whose other tokens are certain."""
    return ProbeReply(
        texts=texts,
        logprobs=(logprob, 0.0),
        tokens=("g", "!"),
        argmax=argmax,
        first=first or (("g", -1.5),),
    )


HONEST = [reply("a", "b"), reply("c"), reply("c"), reply("g", argmax=True)]


def concluded(**changed: ProbeReply) -> ProbeReport:
    names = ("pair", "other", "again", "greedy")
    return conclude(CALLS, [changed.get(name, honest) for name, honest in zip(names, HONEST, strict=True)])


def test_an_honest_endpoint() -> None:
    report = concluded()
    assert (report.n, report.temperature, report.seed, report.logprobs) == (True, True, True, True)
    assert (report.samples, report.distinct, report.basis) == (3, 3, "raw")
    assert report.cost.calls == 4
    assert report.problem(WITH_LOGPROBS) is None
    assert "temperature honoured: yes" in report.lines()
    assert report.lines()[-1] == "log-probabilities: yes, of the raw distribution"


def test_a_probe_has_few_calls() -> None:
    """Every guard of an endpoint makes them before its first question; two more give the fingerprint."""
    assert [call.temperature for call in CALLS] == [1, 1, 1, 0, 0, 0]
    assert [call.temperature for call in probe_calls(SamplingPlan())] == [1, 1, 1, 0]
    assert len({call.prompt for call in CALLS[3:]}) == 3


def test_equal_samples_condemn_whatever_else_is_right() -> None:
    report = concluded(pair=reply("a", "a"), other=reply("a"), again=reply("a"))
    assert report.degenerate
    problem = report.problem(PLAN)
    assert problem is not None
    assert problem[0] is Unmeasured.DEGENERATE_SAMPLES
    assert report.seed is None  # equal answers say nothing about seeds


def test_n_ignored_or_repeated_falls_back_to_single_calls() -> None:
    for pair in (reply("a"), reply("a", "a"), reply("a", "b", "c")):
        report = concluded(pair=pair)
        assert report.n is False
        assert report.problem(PLAN) is None


def test_a_failure_is_no_conclusion() -> None:
    for name in ("pair", "other", "again", "greedy"):
        report = concluded(**{name: ProbeReply(error="503")})
        assert report.failed == "1 of 4 calls failed: 503"
        assert not report.degenerate
        assert report.problem(PLAN) == (
            Unmeasured.MODEL_FAILED,
            "the endpoint could not be probed: 1 of 4 calls failed: 503",
        )


def test_seeds_that_are_ignored_give_a_fourth_independent_sample() -> None:
    report = concluded(again=reply("d"))
    assert (report.seed, report.samples, report.distinct) == (False, 4, 4)


def test_temperature_zero_must_take_the_likeliest_token() -> None:
    report = concluded(greedy=reply("g", argmax=False))
    assert report.temperature is False
    problem = report.problem(PLAN)
    assert problem is not None
    assert "at temperature 0 some tokens of the answer were not the likeliest" in problem[1]
    assert 'extra_body={"repeat_penalty": 1.0}' in problem[1]  # the way out for a penalty for repetition
    assert "greedy tokens are the likeliest: NO" in report.lines()
    assert not any(line.startswith("temperature honoured") for line in report.lines())
    assert concluded(greedy=reply("g")).temperature is None


@pytest.mark.parametrize(
    ("greedy", "sampled", "basis"),
    [(-1.5, -1.5, "raw"), (-1.52, -1.5, "raw"), (0.0, -1.5, "scaled"), (-0.3, -1.5, "scaled"), (0.0, 0.0, "unknown")],
)
def test_basis_compares_one_token_at_two_temperatures(greedy: float, sampled: float, basis: str) -> None:
    others = {name: reply(name, name + "2", first=(("g", sampled),)) for name in ("pair", "other", "again")}
    report = concluded(**others, greedy=reply("g", logprob=greedy))
    assert report.basis == basis
    problem = report.problem(WITH_LOGPROBS)
    assert (problem is not None) == (basis == "scaled")
    assert report.problem(PLAN) is None  # a plan without log-probabilities does not care


def test_basis_by_certainty_when_the_token_is_not_listed() -> None:
    others = {name: reply(name, name + "2", first=(("x", -1.0),)) for name in ("pair", "other", "again")}
    assert concluded(**others).basis == "unknown"
    certain = replace(reply("g"), logprobs=(0.0,) * 8, tokens=("g",) * 8)
    assert concluded(**others, greedy=certain).basis == "scaled"


def test_different_answers_that_are_all_certain_are_not_measured() -> None:
    """A server that writes 0 for "not computed" would make every answer certain."""
    zeros = {name: replace(reply(name, name + "2"), logprobs=(0.0, 0.0)) for name in ("pair", "other", "again")}
    assert concluded(**zeros).basis == "scaled"
    one = {**zeros, "other": replace(zeros["other"], logprobs=(0.0, -2.0)), "again": zeros["pair"]}
    assert concluded(**one).basis == "raw"


def test_other_weights_show_in_greedy_answers() -> None:
    """A provider that swaps a quantisation behind a name would otherwise keep the threshold of other scores."""
    kept = concluded().greedy
    assert kept == ((("g", -1.5), ("!", 0.0)),)
    assert unlike(kept, kept) == ""
    assert unlike(kept, ((("g", -1.55), ("!", -0.1)),)) == ""  # .075 on average, which noise may be
    assert unlike(kept, ((("g", -1.65), ("!", -0.1)),)).endswith("differ by 0.12 on average")
    # All answers count: .02, .02 and .25.
    three = ((("a", -1.0),), (("b", -1.0),), (("c", -1.0),))
    assert unlike(three, ((("a", -1.02),), (("b", -0.98),), (("c", -1.25),))).endswith("differ by 0.10 on average")
    assert unlike(kept, ((("g", -1.5),),)) == ""  # an answer that ends earlier, at a near tie perhaps


def test_another_token_shows_other_weights_unless_both_may_have_been_as_likely() -> None:
    """Servers compute in batches, and a near tie then gives another token: that is no other model."""
    tie = ((("a", -0.1), ("b", -1.1), ("c", -0.1)),)
    assert unlike(tie, ((("a", -0.1), ("d", -1.2), ("x", -3.0)),)) == ""  # (0 + .1) / 2
    # A token of probability .99 leaves .01 to all others, and one of them has .9 now: log(.9 / .01) = 4.5
    sure = ((("a", math.log(0.99)),),)
    assert unlike(sure, ((("b", math.log(0.9)),),)).endswith("differ by 4.50 on average")
    assert unlike(sure, ((("b", math.log(0.99)),),)).endswith("differ by 4.60 on average")
    assert unlike(((("a", 0.0),),), ((("b", 0.0),),)).endswith("differ by 20.72 on average")  # finite: at least 1e-9


def test_without_log_probabilities_there_is_no_fingerprint() -> None:
    assert concluded(greedy=replace(HONEST[3], logprobs=None)).greedy is None
    sampled = conclude([replace(call, temperature=1.0) for call in CALLS], HONEST)  # a model that takes no other
    assert sampled.greedy is None


def test_log_probabilities_in_one_reply_only_are_none() -> None:
    report = concluded(other=replace(HONEST[1], logprobs=None))
    assert (report.logprobs, report.basis) == (False, None)
    assert report.lines()[-1] == "log-probabilities: NO"
    problem = report.problem(WITH_LOGPROBS)
    assert problem is not None
    assert problem[0] is Unmeasured.NO_LOGPROBS


def test_a_model_that_spends_its_tokens_on_thought_is_told_apart_from_a_degenerate_one() -> None:
    silent = ProbeReply(texts=("",), unfinished=True)
    report = concluded(pair=silent, other=silent, again=silent, greedy=silent)
    assert (report.silent_at, report.degenerate, report.cost.calls) == (24, False, 4)
    problem = report.problem(PLAN)
    assert problem is not None
    assert problem[0] is Unmeasured.MODEL_FAILED
    assert "--max-tokens" in problem[1]
    assert report.lines() == ["no answer within 24 tokens, all spent on thought"]
    for plan, expected in ((SamplingPlan(n=3, max_tokens=512), [512] * 6), (SamplingPlan(n=3, max_tokens=24), [])):
        assert [call.max_tokens for call in longer_calls(CALLS, [silent, *HONEST[1:]], plan)] == expected
        assert longer_calls(CALLS, HONEST, plan) == []


@pytest.mark.parametrize("finish", ["length", "max_tokens", "MAX_TOKENS", "stop", None])
@pytest.mark.parametrize("text", ["", "a"])
def test_an_answer_is_unfinished_where_it_was_cut_off_before_it_began(text: str, finish: str | None) -> None:
    sample = Sample(text=text, finish_reason=finish)
    parsed = reply_of(CALLS[0], [Sample(text="a"), sample], None, fingerprint=None, cost=Cost())
    assert parsed.unfinished == (not text and finish not in ("stop", None))


@given(logprobs=ANYTHING, fingerprint=ANYTHING)
def test_whatever_a_server_gives_beside_its_answers_is_read_or_left_aside(logprobs: Any, fingerprint: Any) -> None:
    parsed = reply_of(CALLS[0], [Sample(text="a")], logprobs, fingerprint=fingerprint, cost=Cost())
    assert parsed.texts == ("a",)
    concluded(pair=parsed, greedy=parsed)


@given(st.lists(st.sampled_from("abc"), min_size=5, max_size=5))
def test_degenerate_if_and_only_if_all_samples_are_equal(texts: list[str]) -> None:
    calls = probe_calls(SamplingPlan())
    pairs = [tuple(texts[:2]), (texts[2],), (texts[3],), (texts[4],)]
    report = conclude(calls, [ProbeReply(texts=pair) for pair in pairs])
    assert report.degenerate == (len(set(texts[:4])) == 1)


def test_listed_tokens() -> None:
    def item(logprob: float, *others: float) -> dict[str, Any]:
        return {"token": "t", "logprob": logprob, "top_logprobs": [{"token": "t", "logprob": x} for x in others]}

    assert listed_tokens([]) == ((), None)
    assert listed_tokens([item(-1.0, -1.0, -2.0)]) == ((("t", -1.0), ("t", -2.0)), True)
    assert listed_tokens([item(-1.0, -1.0), item(-2.0, -1.0)])[1] is False
    assert listed_tokens([item(-1.0005, -1.0)])[1] is True  # a near tie
    assert listed_tokens([item(-1.0)])[1] is None
    assert listed_tokens([{"logprob": None}]) == ((), None)


def test_what_wants_a_probe() -> None:
    assert wants_probe(PLAN)
    assert wants_probe(SamplingPlan(n=0, logprobs=True))
    assert not wants_probe(SamplingPlan(n=0, options=("A", "B")))


# -- asking


class Remote(ScriptedChat):
    """A fake of somebody else's endpoint: it is probed. Answers its probe from a list, in the order of the calls."""

    guardrail_trusted = False
    replies: list[Any] = Field(default_factory=lambda: ["a", "b", "c", "g", "d"])
    _seen: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if messages[-1].content != PROMPT:
            return super()._generate(messages, stop, run_manager, **kwargs)
        with self._lock:
            self._seen.append(kwargs)
            answer = self.replies[(len(self._seen) - 1) % len(self.replies)]
        if isinstance(answer, Exception):
            raise answer
        return ChatResult(generations=[ChatGeneration(message=self._message(answer, kwargs))])


def test_a_plan_with_a_sampled_primary_answer_is_not_probed_at_temperature_0() -> None:
    model = Remote()
    plan = SamplingPlan(n=3, temperature=1.0, top_p=1.0, max_tokens=500, logprobs=True, primary="sampled")
    report, _ = probe(model, plan)
    assert report is not None
    assert [(call["temperature"], call["max_tokens"]) for call in model._seen] == [(1.0, 500)] * len(model._seen)
    assert (report.temperature, report.problem(PLAN)) == (None, None)
    assert conclude([replace(call, temperature=1.0) for call in CALLS], HONEST).basis == "unknown"


SCRIPT: dict[str, list[Any]] = {"sure?": ["yes"], "unsure?": ["a", "b", "c", "d", "e"]}


def guard(model: Remote, **settings: Any) -> Guardrail:
    settings = {"remember": 0, **settings}  # each call is to draw
    return Guardrail(model=model, artifact=make_artifact(model), **settings)


def test_any_chat_model_is_probed_once_and_the_first_verdict_pays() -> None:
    model = Remote(script=SCRIPT)
    guarded = guard(model)
    assert guarded.assess("sure?").cost.calls == 16
    assert guarded.assess("sure?").cost.calls == 11
    assert guard(model).assess("sure?").cost.calls == 11  # another guard on the same object
    assert len(model._seen) == 5
    assert sorted(call["temperature"] for call in model._seen) == [0.0, 1.0, 1.0, 1.0, 1.0]
    report = known_report(model)
    assert report is not None
    assert (report.n, report.seed, report.distinct) == (None, None, report.samples)
    assert "_known" not in model.__dict__


def test_a_failed_probe_is_shared_once_and_then_repeated() -> None:
    model = Remote(script=SCRIPT, replies=[ConnectionError("down")])

    async def main() -> list[Any]:
        return await asyncio.gather(*(arun(probe_steps(model, PLAN, again=False)) for _ in range(50)))

    assert all(report is not None and report.failed for report, _ in asyncio.run(main()))
    assert len(model._seen) == 4  # without the later one, which has nothing to be compared with
    verdict = guard(model).assess("sure?")
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, Unmeasured.MODEL_FAILED)
    assert "could not be probed: ConnectionError: down" in verdict.detail
    model.replies[:] = ["a", "b", "c", "g", "d"]
    assert guard(model).assess("sure?").accepted


def test_a_cancelled_probe_is_taken_over() -> None:
    model = Remote(script=SCRIPT)

    async def main() -> Any:
        leader = asyncio.create_task(arun(probe_steps(model, PLAN, again=False)))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(arun(probe_steps(model, PLAN, again=False)))
        await asyncio.sleep(0)
        leader.cancel()
        return await waiting

    report, cost = asyncio.run(main())
    assert not report.failed
    assert cost.calls == 5


def test_the_samples_of_the_probe_are_equal_requests_where_no_seeds_can_be_sent() -> None:
    model = Remote(script=SCRIPT)
    probe(model, PLAN)  # so that a cache of equal requests shows, as it would answer the samples of a question
    sampled = [call for call in model._seen if call["temperature"] == 1]
    assert len(sampled) == 4
    assert sampled == [sampled[0]] * 4


class Endpoint(ScriptedChat):
    """Somebody else's endpoint that can be copied; it answers everything alike."""

    guardrail_trusted = False


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda guarded: guarded.model_copy(deep=True)])
def test_a_deep_copy_of_a_guard_probes_its_own_model(copied: Callable[[Guardrail], Guardrail]) -> None:
    model = Endpoint(default=["same"])
    artifact = make_artifact(model)
    for settings, problem in ({}, Unmeasured.DEGENERATE_SAMPLES), ({"probe": "off"}, None):
        guarded = Guardrail(model=model, artifact=artifact, **settings)
        first = guarded.assess("sure?")
        assert first.uncertainty.reason is problem
        other = copied(guarded)
        assert other.model is not model
        assert known_report(other.model) is None
        verdict = other.assess("sure?")
        assert verdict.uncertainty == first.uncertainty
        assert (known_report(other.model) is None) == (problem is None)


def test_threads_share_a_probe() -> None:
    model = Remote(script=SCRIPT)
    guarded = guard(model)
    messages = guarded.batch(["sure?"] * 20, {"max_concurrency": 10})
    assert len(model._seen) == 5
    assert sum(message.response_metadata["guardrail"]["cost"]["calls"] for message in messages) == 20 * 11 + 5


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_degenerate_endpoint_never_looks_certain(asynchronous: bool) -> None:
    model = Remote(script=SCRIPT, replies=["same"])
    guarded = guard(model)
    verdict = asyncio.run(guarded.aassess("sure?")) if asynchronous else guarded.assess("sure?")
    assert (verdict.accepted, verdict.reason) == (False, Reason.UNMEASURED)
    assert verdict.uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES
    assert verdict.candidate is not None  # for a person to see
    assert verdict.cost.calls == 5
    assert ABSTENTION in str(guarded.invoke("sure?").content)
    assert guard(model, probe="off").assess("sure?").accepted


class Broken(Remote):
    """Breaks the promise of a `Probeable`."""

    def answer_probe(self, call: Any) -> ProbeReply:
        raise KeyError("logprobs")

    async def aanswer_probe(self, call: Any) -> ProbeReply:
        raise KeyError("logprobs")


def test_a_probeable_that_raises_is_held_back() -> None:
    guarded = guard(Broken(script=SCRIPT))
    for verdict in (guarded.assess("sure?"), asyncio.run(guarded.aassess("sure?"))):
        assert verdict.uncertainty.reason is Unmeasured.MODEL_FAILED
        assert "could not be probed: KeyError" in verdict.detail


def test_fakes_and_local_samplers_are_not_probed() -> None:
    assert not needs_probe(ScriptedChat())
    assert not needs_probe(FakeListChatModel(responses=["x"]))
    assert needs_probe(Remote())
    assert probe(ScriptedChat(), PLAN) == (None, Cost())


def test_what_is_known_goes_with_the_model() -> None:
    model = Remote(script=SCRIPT)
    probe(model, PLAN)
    key = id(model)
    assert key in _probe._known
    assert known_report(model.model_copy()) is None  # a copy may point elsewhere
    del model
    gc.collect()
    assert key not in _probe._known


def test_log_probabilities_are_another_probe() -> None:
    model = Remote(script=SCRIPT, probability=0.5)
    probe(model, PLAN)
    report, cost = probe(model, WITH_LOGPROBS)
    assert report is not None
    assert (report.logprobs, cost) == (True, report.cost)
    assert probe(model, PLAN) == (report, Cost())  # it serves both


# -- caches that fill up


def later(*texts: str) -> ProbeReport:
    return conclude(CALLS, HONEST, [reply(text) for text in texts])


def test_later_calls_that_all_get_one_earlier_answer_show_a_cache() -> None:
    for text in "abc":
        report = later(text, text, text, text)
        assert report.cached is True
        problem = report.problem(PLAN)
        assert problem is not None
        assert problem[0] is Unmeasured.DEGENERATE_SAMPLES
        assert "later calls get earlier answers: YES" in report.lines()
    for honest in (
        later("d"),
        later("a", "d"),
        later("a", "a", "a", "d"),
        later("a", "b"),
        later("g"),
    ):  # "g" is the greedy answer
        assert honest.cached is False
        assert honest.problem(PLAN) is None
    assert later().cached is None
    assert later("d").cost.calls == 5
    failed = conclude(CALLS, HONEST, [ProbeReply(error="503")])
    assert (failed.failed, failed.cached) == ("1 of 5 calls failed: 503", None)


class Gateway(ScriptedChat):
    """An endpoint behind a cache that passes on equal requests until the first of them were answered."""

    guardrail_trusted = False
    passes: int = 3
    """Requests of a kind that are in flight before the first is answered."""
    _known: dict[str, list[str]] = PrivateAttr(default_factory=dict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        with self._lock:
            replies = self._known.setdefault(f"{messages[-1].content}{sorted(kwargs.items())}", [])
            replies.append(f"{len(replies)} at {kwargs.get('temperature')}")
            text = replies[-1] if len(replies) <= self.passes else replies[0]
        return ChatResult(generations=[ChatGeneration(message=self._message(text, kwargs))])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_cache_that_fills_after_the_first_answers_is_found(asynchronous: bool) -> None:
    def verdict(model: Gateway) -> Any:
        guarded = Guardrail(model=model, artifact=make_artifact(model), remember=0)
        return asyncio.run(guarded.aassess("q")) if asynchronous else guarded.assess("q")

    result = verdict(Gateway())
    assert result.uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES
    assert "a cache or gateway answers equal requests alike" in result.detail
    assert result.cost.calls == 4 + 4 + 1  # later calls until one differs, at most four
    assert verdict(Gateway(passes=99)).uncertainty.measured


# -- an endpoint that was unfit, or failed its second probe


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(_probe, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_unfit_endpoint_is_probed_again_after_a_while_and_recovers(asynchronous: bool, now: list[float]) -> None:
    model = Remote(script=SCRIPT, replies=["same"])

    def check() -> Unmeasured | None:
        steps = fault_steps(model, PLAN)
        fault, _ = asyncio.run(arun(steps)) if asynchronous else run(steps)
        return None if fault is None else fault.reason

    assert check() is Unmeasured.DEGENERATE_SAMPLES
    calls_before = len(model._seen)
    now[0] = UNFIT_FOR - 0.1
    assert check() is Unmeasured.DEGENERATE_SAMPLES
    assert len(model._seen) == calls_before
    now[0] = UNFIT_FOR
    assert check() is Unmeasured.DEGENERATE_SAMPLES  # still
    assert len(model._seen) == 2 * calls_before
    assert check() is Unmeasured.DEGENERATE_SAMPLES
    assert len(model._seen) == 2 * calls_before
    model.replies[:] = ["a", "b", "c", "g", "d"]
    now[0] = 2 * UNFIT_FOR
    assert [check(), check()] == [None, None]
    now[0] = 9 * UNFIT_FOR
    check()
    assert len(model._seen) == 2 * calls_before + 5  # nothing more: it is fit


def test_what_an_unfit_endpoint_gave_is_not_remembered(now: list[float]) -> None:
    """Otherwise a question would be held back for minutes after its server was mended."""
    model = Remote(script=SCRIPT)
    artifact = make_artifact(model, estimator="perplexity", n=0, threshold=9.0)
    guarded = Guardrail(model=model, artifact=artifact, remember=300)
    assert guarded.assess("sure?").uncertainty.reason is Unmeasured.NO_LOGPROBS
    model.probability, now[0] = 0.5, UNFIT_FOR
    assert guarded.assess("sure?").accepted


def test_an_acceptance_that_a_probe_would_have_refused_is_not_given_again() -> None:
    """A cache in front of the model makes every question look certain; a guard without a probe believes it."""
    model, draws = Remote(script=SCRIPT, replies=["g"]), Draws()
    unprobed = guard(model, remember=draws, probe="off")
    assert unprobed.assess("sure?").accepted
    verdict = guard(model, remember=draws).assess("sure?")
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, Unmeasured.DEGENERATE_SAMPLES)
    assert unprobed.assess("sure?").cost.calls == 0, "what was held back for the endpoint's fault is not remembered"


def test_a_slow_probe_stands_in_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question waits for it: without a line an operator looks for the fault elsewhere."""
    caplog.set_level(logging.INFO, "guardrail")
    for slow, expected in ((99.0, []), (0.0, ["guardrail: the probe of the endpoint took 0 s, and questions waited"])):
        caplog.clear()
        monkeypatch.setattr(_probe, "SLOW_PROBE", slow)
        model = Remote(script=SCRIPT, replies=["a", "b", "c", "g", "d"])
        run(fault_steps(model, PLAN))
        first, *others = [record.getMessage() for record in caplog.records]
        assert first == "guardrail: probing the endpoint before the first question"
        assert [line.partition(" for it")[0] for line in others] == expected
        assert run(fault_steps(model, PLAN)) == (None, Cost())
        assert len(caplog.records) == 1 + len(expected)  # nothing is asked again


def fault_of(model: Remote) -> Unmeasured | None:
    fault, _ = run(fault_steps(model, PLAN))
    return None if fault is None else fault.reason


def test_a_second_probe_that_fails_or_is_cancelled_is_made_again_by_the_next_question(now: list[float]) -> None:
    """Otherwise an endpoint that works again would be refused for another minute."""
    model = Remote(script=SCRIPT, replies=["same"])
    assert fault_of(model) is Unmeasured.DEGENERATE_SAMPLES

    async def cancelled() -> None:
        task = asyncio.create_task(arun(fault_steps(model, PLAN)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    now[0] = UNFIT_FOR
    model.replies[:] = [ConnectionError("down")]
    assert fault_of(model) is Unmeasured.MODEL_FAILED
    asyncio.run(cancelled())
    model.replies[:] = ["a", "b", "c", "g", "d"]
    assert fault_of(model) is None


# -- forks


FORKED = """
import os
import threading

from guardrail import Guardrail
from guardrail.testing import ScriptedChat, make_artifact

parent, begun, end = os.getpid(), threading.Event(), threading.Event()


class Slow(ScriptedChat):
    guardrail_trusted = False

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        if os.getpid() == parent:
            begun.set()
            end.wait(60)
        with count:
            numbers.append(0)
            text = str(len(numbers))
        return ScriptedChat(default=[text])._generate(messages)


count, numbers = threading.Lock(), []
model = Slow()
guard = Guardrail(model=model, artifact=make_artifact(model))
asking = threading.Thread(target=guard.assess, args=("q",))
asking.start()
begun.wait(60)
held = [guard._assessor.draws._own._lock]
for lock in held:
    lock.acquire()  # as another thread would at this moment
child = os.fork()
if child == 0:
    os._exit(0 if guard.assess("q").uncertainty.measured else 1)
for lock in held:
    lock.release()
end.set()
asking.join()
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_process_forked_while_another_thread_probes_makes_a_probe_of_its_own() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.stdout, ran.stderr) == ("child 0\n", "")
