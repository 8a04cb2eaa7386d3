"""Make the calls of a probe and remember its report, in a table and never on the model."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from ..errors import UsageError
from ..foreign_errors import describe_error, reply_facts, server_words
from ..types import Cost, Fingerprint, Missing, Sample, SampleSet, SamplingPlan, Unmeasured, is_logprob
from .call_settings import carried
from .calls import as_sample, at_once, cost_of, with_settings
from .effects import Effect, Steps, run
from .limits import Limit, take_slot
from .native import is_native
from .probe import (
    LATER_CALLS,
    Probeable,
    ProbeCall,
    ProbeReply,
    ProbeReport,
    conclude,
    later_call,
    longer_calls,
    probe_calls,
    repeats,
    unlike,
    wants_alone,
    wants_probe,
)
from .replies.ends import is_cut
from .replies.failures import cause_of
from .replies.read import read_reply

TRUSTED = "guardrail_trusted"
"""Class attribute of models that sample honestly by construction, and of fakes: they are not probed."""
SLOW_PROBE = 5.0
"""Seconds beyond which a probe stands in the log: the questions of its time waited for it."""
UNFIT_FOR = 60.0
"""Seconds after which an endpoint that a probe refused is probed again."""
LARGEST_SEED = 2**31 - 1
"""The largest seed of servers that store seeds in 32 bits."""
SEEDS_OF_A_PROBE = 1 + LATER_CALLS
"""The largest number that a probe adds to its first seed."""
TIE = 1e-3
"""Two log-probabilities this close are a tie."""


class _Known:
    """The latest report about one model, and the turns in which it is probed.

    There is a turn for the threads and one for the tasks of each event loop, so that a sync call inside a running loop
    cannot wait for a task that it keeps from running; and others in a forked process, which lacks the threads of its
    parent.
    """

    def __init__(self) -> None:
        self.report: ProbeReport | None = None
        self.asked = 0.0
        """Time of the report; one that refuses the endpoint holds for `UNFIT_FOR` seconds."""
        self.last: ProbeReport | None = None
        """The report of the last probe, which may have come to no conclusion: it holds for those who waited for it."""
        self.probes = 0
        self.refuses_seeds = False
        self.fault = ""
        """The fault that an operator was told last; "" since an answer was measured."""
        self.turns: dict[tuple[int, int | None], Limit] = {}


log = logging.getLogger("guardrail.probe")
_known: dict[int, _Known] = {}
"""The entry of each model by its id, since chat models are not hashable."""


def _of(model: BaseChatModel) -> _Known:
    """The entry of a model, made at its first use and dropped with it, before its id may belong to another one."""
    key = id(model)
    if key not in _known:
        weakref.finalize(model, _known.pop, key, None).atexit = False
    return _known.setdefault(key, _Known())


def needs_probe(model: BaseChatModel) -> bool:
    """Whether a model is an endpoint: neither a local sampler nor a fake of LangChain's or ours."""
    if getattr(type(model), TRUSTED, False) or type(model).__module__.startswith("langchain_core.language_models.fake"):
        return False
    return hasattr(model, "answer_probe") or not is_native(model)  # as `isinstance` with `Probeable`, which is slow


def known_report(model: BaseChatModel) -> ProbeReport | None:
    """The report of an earlier probe of this very object; None if it was not probed. Asks nothing."""
    entry = _known.get(id(model))
    return None if entry is None else entry.report


def _report_for(model: BaseChatModel, plan: SamplingPlan) -> ProbeReport | None:
    entry, report = _of(model), known_report(model)
    if report is None or not _serves(report, plan):
        return None
    return report if report.problem(plan) is None or monotonic() < entry.asked + UNFIT_FOR else None


def _serves(report: ProbeReport, plan: SamplingPlan) -> bool:
    """Whether a probe for this plan would show no more: log-probabilities, or an answer after a longer thought."""
    if report.silent_at is not None:
        return report.silent_at >= plan.max_tokens
    return bool(report.failed) or report.logprobs is not None or not plan.logprobs


def probe(model: BaseChatModel, plan: SamplingPlan, *, again: bool = False) -> tuple[ProbeReport | None, Cost]:
    """Probe a model unless it was probed before or needs no probe.

    Args:
        model: The chat model; it is not changed.
        plan: Decides whether log-probabilities are asked for.
        again: Forget what is known and ask again.

    Returns:
        The report (None for models that need none) and the cost of a probe made now.
    """
    return run(probe_steps(model, plan, again=again))


def probe_steps(model: BaseChatModel, plan: SamplingPlan, *, again: bool) -> Steps[tuple[ProbeReport | None, Cost]]:
    """`probe` as steps of a larger computation."""
    if not needs_probe(model) or not wants_probe(plan):
        return None, Cost()
    if not again and (report := _report_for(model, plan)) is not None:
        return report, Cost()
    entry = _of(model)
    with ExitStack() as slots:
        # The probe runs within one slot, taken first: a guard inside a call may wait for this probe and hold the last
        # slot.
        yield take_slot(slots)
        probes = entry.probes
        turn = entry.turns.setdefault((os.getpid(), (yield _LOOP)), Limit(1))
        yield from turn.acquire()
        slots.callback(turn.release)
        if entry.last is not None and entry.probes > probes and _serves(entry.last, plan):
            return entry.last, Cost()
        if not again and (report := _report_for(model, plan)) is not None:
            return report, Cost()
        report = yield from _asked(model, plan)
        entry.last, entry.probes = report, entry.probes + 1
        if not report.failed:  # a failure may pass; what is remembered holds for the life of the model
            entry.report, entry.asked = report, monotonic()
        return report, report.cost


def fault_steps(
    model: BaseChatModel, plan: SamplingPlan, fingerprint: Fingerprint | None = None
) -> Steps[tuple[Missing | None, Cost]]:
    """The reason why no sample of an endpoint can be measured, or None, and the cost of a probe made just now.

    A probe is made at the first use, and again where an earlier one refused the endpoint or failed. Samples are not
    watched: how often they agree depends on the questions.

    Args:
        model: The model.
        plan: The plan that it is asked by.
        fingerprint: That of the calibrated weights: if a probe finds other weights, the log says so.
    """
    began = monotonic()
    report, cost = yield from probe_steps(model, plan, again=False)
    seconds = monotonic() - began
    if cost.calls and seconds > SLOW_PROBE:
        log.warning("guardrail: the probe of the endpoint took %.0f s, and questions waited for it", seconds)
    now = report.greedy if report is not None and cost.calls else None
    if fingerprint and now and (difference := unlike(fingerprint, now)):
        log.warning(
            "guardrail: the endpoint may not have the calibrated weights: %s. Compare again with `guardrail doctor` "
            "while it is idle",
            difference,
        )
    problem = None if report is None else report.problem(plan)
    return None if problem is None else Missing(*problem), cost


def with_fault(drawn: SampleSet, fault: Missing | None) -> SampleSet:
    """The sample set with a fault of its endpoint, unless it already has a problem."""
    if fault is None or drawn.problem is not None:
        return drawn
    return drawn.model_copy(update={"problem": fault.reason, "problem_detail": fault.detail})


def is_news(model: BaseChatModel, fault: str) -> bool:
    """Whether a fault of a model's endpoint, "" for none, is another one than the last that was noted."""
    entry = _of(model)
    before, entry.fault = entry.fault, fault
    return bool(fault) and fault != before


async def _loop() -> int:
    return id(asyncio.get_running_loop())


_LOOP = Effect(lambda: None, _loop)
"""The id of the event loop that carries the steps out; None for a thread."""


def _asked(model: BaseChatModel, plan: SamplingPlan) -> Steps[ProbeReport]:
    """The calls of one probe, and the report that follows from them."""
    log.info("guardrail: probing the endpoint before the first question")
    # A fresh seed each time: a cache would answer a repeated one from an earlier probe.
    calls: Sequence[ProbeCall] = probe_calls(plan, secrets.randbelow(LARGEST_SEED - SEEDS_OF_A_PROBE))
    before = Cost()
    replies: list[ProbeReply] = yield _together(model, calls)
    if longer := longer_calls(calls, replies, plan):
        before = sum((reply.cost for reply in replies), start=before)
        calls, replies = longer, (yield _together(model, longer))
    later: list[ProbeReply] = []
    if (
        not any(reply.error or reply.unfinished for reply in replies)
        and len({reply.texts for reply in replies[:3]}) > 1
    ):
        later = yield _together(model, [later_call(calls)])
        while repeats(replies, later[0]) and later[-1].texts == later[0].texts and len(later) < LATER_CALLS:
            later += yield _together(model, [later_call(calls, len(later))])
    if isinstance(model, Probeable):
        report = conclude(calls, replies, later)
    else:
        alone = [replace(call, n=1) for call in calls]
        # Asked after the calls: the server may have refused seeds during them.
        report = conclude(alone, replies, later, seeded=takes_seeds(model))
    return report.model_copy(update={"cost": before + report.cost})


def _together(model: BaseChatModel, calls: Sequence[ProbeCall]) -> Effect:
    return at_once(partial(_ask, model), calls, len(calls))


def _ask(model: BaseChatModel, call: ProbeCall) -> Steps[ProbeReply]:
    try:
        with ExitStack() as slots:
            yield take_slot(slots)
            slots.enter_context(as_sample())
            asking = _natively(model, call) if isinstance(model, Probeable) else _by_langchain(model, call)
            return (yield from asking)
    # A mistake of the caller, not of the endpoint: it has to be seen, not reported as a failed probe.
    except UsageError:
        raise
    except Exception as error:  # any error of a model: the probe comes to no conclusion
        return ProbeReply(
            error=describe_error(error, asking=True), said=server_words(error) if reply_facts(error) else ""
        )


def _natively(model: Probeable, call: ProbeCall) -> Steps[ProbeReply]:
    """The reply of a sampler that makes the call itself; one answer, if it gave no others to a call for several."""
    reply: ProbeReply = yield Effect(partial(model.answer_probe, call), partial(model.aanswer_probe, call))
    if not wants_alone(call, reply):
        return reply
    single = replace(call, n=1)
    alone: ProbeReply = yield Effect(partial(model.answer_probe, single), partial(model.aanswer_probe, single))
    return replace(alone, texts=alone.texts[:1], cost=reply.cost + alone.cost)


def _by_langchain(model: BaseChatModel, call: ProbeCall) -> Steps[ProbeReply]:
    """The reply of any other chat model, without a seed if its server refuses one in this call or in an earlier one."""
    settings: dict[str, Any] = {"temperature": call.temperature, "max_tokens": call.max_tokens}
    if call.logprobs:
        settings["logprobs"] = True
    seed = {"seed": call.seed} if call.temperature and takes_seeds(model) else {}
    began = perf_counter()
    try:
        message: AIMessage = yield _invocation(model, call, {**settings, **seed})
    except Exception as error:
        if not seed or cause_of(error) is not Unmeasured.REJECTED:
            raise
        _of(model).refuses_seeds = True
        message = yield _invocation(model, call, settings)
    metadata = message.response_metadata
    return reply_of(
        call,
        [read_reply(message)],
        metadata.get("logprobs"),
        fingerprint=metadata.get("system_fingerprint"),
        cost=cost_of(message).model_copy(update={"seconds": perf_counter() - began}),
    )


def _invocation(model: BaseChatModel, call: ProbeCall, params: Mapping[str, Any]) -> Effect:
    ((quiet, settings),) = with_settings(model, [params])
    bound = quiet.bind(**settings)
    prompt = [HumanMessage(call.prompt)]
    config = RunnableConfig(callbacks=[])
    return Effect(partial(bound.invoke, prompt, config), partial(bound.ainvoke, prompt, config))


def takes_seeds(model: BaseChatModel) -> bool:
    """Whether a LangChain model takes a seed (`call_settings.carried`) and its server has not refused one."""
    settings = carried(model, {"seed": 0})
    return bool(settings.fields or settings.call) and not _of(model).refuses_seeds


def seeded(model: BaseChatModel) -> bool:
    """Whether samples of a model are sent seeds: it takes them, and so did its server in a probe."""
    return takes_seeds(model) and known_report(model) is not None


def reply_of(call: ProbeCall, samples: Sequence[Sample], logprobs: Any, *, fingerprint: Any, cost: Cost) -> ProbeReply:
    """The reply of one call, read from its answers. A part in an unexpected form counts as missing.

    Args:
        call: The call.
        samples: The answers.
        logprobs: Log-probabilities of the first answer, in the server's form.
        fingerprint: The server's name for its configuration.
        cost: The cost of the call.
    """
    items = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
        items = []
    first, argmax = listed_tokens(items)
    sample = samples[0]
    return ProbeReply(
        texts=tuple(sample.text for sample in samples),
        unfinished=any(_unfinished(sample) for sample in samples),
        logprobs=sample.logprobs,
        first=first,
        tokens=sample.tokens or (),
        argmax=argmax if call.temperature == 0 else None,
        fingerprint=fingerprint if isinstance(fingerprint, str) and fingerprint.isprintable() else None,
        cost=cost,
    )


def _unfinished(sample: Sample) -> bool:
    """Whether a model that thinks first spent all its tokens before the answer began."""
    return not (sample.text or sample.tool_calls) and is_cut(sample.finish_reason)


def listed_tokens(items: Sequence[Any]) -> tuple[tuple[tuple[str, float], ...], bool | None]:
    """Alternatives of the first token, and whether every chosen token is the likeliest listed at its place.

    The second is None if a place lists no alternative. A near tie counts as likeliest.
    """
    first: tuple[tuple[str, float], ...] = ()
    argmax: bool | None = True if items else None
    for index, item in enumerate(items):
        try:
            alternatives = [(str(other["token"]), float(other["logprob"])) for other in item.get("top_logprobs") or ()]
            logprob = float(item["logprob"])
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            # One malformed place makes the whole list untrustworthy.
            return (), None
        listed = tuple((token, value) for token, value in alternatives if is_logprob(value))
        if index == 0:
            first = listed
        if not listed or not is_logprob(logprob):
            argmax = None
        # None stays None: one place without alternatives leaves the question open.
        elif argmax is not None and max(value for _, value in listed) > logprob + TIE:
            argmax = False
    return first, argmax
