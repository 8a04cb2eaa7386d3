"""Makes the calls of a probe and remembers what they showed, beside the model and never on it."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage

from ..call_settings import carried
from ..errors import UsageError, describe_error
from ..types import Cost, Sample, SamplingPlan, Unmeasured
from .calls import as_sample, side_by_side, with_settings
from .effects import Effect, Steps, arun, run
from .limits import ain_flight, in_flight
from .native import is_native
from .probe import (
    Probeable,
    ProbeCall,
    ProbeReply,
    ProbeReport,
    conclude,
    later_call,
    longer_calls,
    probe_calls,
    repeats,
    wants_alone,
    wants_probe,
)
from .replies import cause_of, read_reply

__all__ = [
    "TRUSTED",
    "aprobe",
    "known_report",
    "needs_probe",
    "note_refused_n",
    "probe",
    "refuses_n",
    "reply_of",
    "seeded",
    "takes_seeds",
]

TRUSTED = "guardrail_trusted"
"""Class attribute of models that sample honestly by construction, and of fakes: they are not probed."""
LARGEST_SEED = 2**31 - 1
"""What servers that keep seeds in 32 bits take."""
SEEDS_OF_A_PROBE = 4
"""Most that a probe adds to its first seed."""
TIE = 1e-3
"""Two log-probabilities this close are a tie."""


class _Known:
    """What is known of one model, and who is asking right now.

    Reports go by whether log-probabilities were asked for; ``refused_n`` is the fewest answers at once it refused.

    Threads wait for threads and tasks for tasks of the same loop only, so that a sync call inside a running loop
    cannot wait for a task that it keeps from running.
    """

    def __init__(self) -> None:
        self.reports: dict[bool, ProbeReport] = {}
        self.refused_n: int | None = None
        self.refuses_seeds = False
        self.lock = threading.Lock()
        self.threads: dict[bool, Future[ProbeReport | None]] = {}
        self.tasks: dict[tuple[int, bool], asyncio.Future[ProbeReport | None]] = {}


_known: dict[int, tuple[weakref.ref[BaseChatModel], _Known]] = {}
_table = threading.Lock()


def _of(model: BaseChatModel) -> _Known:
    """The entry of a model, made at its first use and dropped with it. Chat models are not hashable, hence the id."""
    key = id(model)
    with _table:
        found = _known.get(key)
        if found is not None and found[0]() is model:
            return found[1]
        fresh = _Known()
        _known[key] = (weakref.ref(model, lambda gone: _forget(key, gone)), fresh)
        return fresh


def _forget(key: int, gone: weakref.ref[BaseChatModel]) -> None:
    found = _known.get(key)  # no lock: this runs wherever garbage is collected
    if found is not None and found[0] is gone:
        _known.pop(key, None)


def _after_fork() -> None:
    """Forget, in a forked process, who is asking and who holds a lock: those threads are not there."""
    global _table
    _table = threading.Lock()
    for _, known in list(_known.values()):
        known.lock = threading.Lock()
        known.threads.clear()
        known.tasks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def needs_probe(model: BaseChatModel) -> bool:
    """Whether a model is an endpoint: neither a local sampler nor a fake of LangChain's or ours."""
    if getattr(type(model), TRUSTED, False) or type(model).__module__.startswith("langchain_core.language_models.fake"):
        return False
    return isinstance(model, Probeable) or not is_native(model)


def known_report(model: BaseChatModel, *, logprobs: bool | None = None) -> ProbeReport | None:
    """What a probe of this very object has shown, without asking; None when it was not probed."""
    with _table:
        found = _known.get(id(model))
    if found is None or found[0]() is not model:
        return None
    reports = found[1].reports
    if logprobs is None:
        return reports.get(True) or reports.get(False)
    return reports.get(True) or (None if logprobs else reports.get(False))


def refuses_n(model: BaseChatModel, n: int) -> bool:
    """Whether a model's server has refused so many answers at once, or fewer."""
    with _table:
        found = _known.get(id(model))
    if found is None or found[0]() is not model:
        return False
    refused = found[1].refused_n
    return refused is not None and n >= refused


def note_refused_n(model: BaseChatModel, n: int) -> None:
    """Remember that a model's server refused so many answers at once, and gave one."""
    known = _of(model)
    with known.lock:
        known.refused_n = n if known.refused_n is None else min(n, known.refused_n)


def probe(model: BaseChatModel, plan: SamplingPlan, *, again: bool = False) -> tuple[ProbeReport | None, Cost]:
    """Probe a model unless it was probed before or needs no probe.

    Args:
        model: The chat model; it is not changed.
        plan: Decides whether log-probabilities are asked for.
        again: Forget what is known and ask again.

    Returns:
        The report (None for models that need none) and what was spent on it now.
    """
    if not needs_probe(model) or not wants_probe(plan):
        return None, Cost()
    if not again and (found := _settled(known_report(model, logprobs=plan.logprobs), plan)) is not None:
        return found, Cost()
    # The probe runs within one slot, taken first: a guard inside a call may wait for this probe and hold the last slot.
    with in_flight():
        return _probe(model, plan, again=again)


def _probe(model: BaseChatModel, plan: SamplingPlan, *, again: bool) -> tuple[ProbeReport | None, Cost]:
    known = _of(model)
    while True:
        with known.lock:
            found = None if again else _settled(known_report(model, logprobs=plan.logprobs), plan)
            asking = known.threads.get(plan.logprobs)
            if found is None and asking is None:
                done = known.threads[plan.logprobs] = Future()
        if found is not None:
            return found, Cost()
        if asking is None:
            break
        if (report := _settled(asking.result(), plan)) is not None:
            return report, Cost()
    made = None
    try:
        made = run(_asked(model, plan))
        _remember(known, plan.logprobs, made)
        return made, made.cost
    finally:
        known.threads.pop(plan.logprobs, None)  # a process forked meanwhile has none
        done.set_result(made)


async def aprobe(model: BaseChatModel, plan: SamplingPlan, *, again: bool = False) -> tuple[ProbeReport | None, Cost]:
    """`probe` on the event loop. Calls that arrive meanwhile share its result and pay nothing."""
    if not needs_probe(model) or not wants_probe(plan):
        return None, Cost()
    if not again and (found := _settled(known_report(model, logprobs=plan.logprobs), plan)) is not None:
        return found, Cost()
    async with ain_flight():  # as in `probe`
        return await _aprobe(model, plan, again=again)


async def _aprobe(model: BaseChatModel, plan: SamplingPlan, *, again: bool) -> tuple[ProbeReport | None, Cost]:
    known, key = _of(model), (id(asyncio.get_running_loop()), plan.logprobs)
    while True:
        found = None if again else _settled(known_report(model, logprobs=plan.logprobs), plan)
        if found is not None:
            return found, Cost()
        asking = known.tasks.get(key)
        if asking is None:
            break
        if (report := _settled(await asyncio.shield(asking), plan)) is not None:
            return report, Cost()
    done: asyncio.Future[ProbeReport | None] = asyncio.get_running_loop().create_future()
    known.tasks[key] = done
    made = None
    try:
        made = await arun(_asked(model, plan))
        _remember(known, plan.logprobs, made)
        return made, made.cost
    finally:  # also when cancelled: callers that wait then find nothing and ask themselves
        known.tasks.pop(key, None)
        done.set_result(made)


def _asked(model: BaseChatModel, plan: SamplingPlan) -> Steps[ProbeReport]:
    """The calls of one probe, and what follows from them."""
    calls: Sequence[ProbeCall] = _calls(plan)
    before = Cost()
    replies: list[ProbeReply] = yield _together(model, calls)
    if longer := longer_calls(calls, replies, plan):
        before = sum((reply.cost for reply in replies), start=before)
        calls, replies = longer, (yield _together(model, longer))
    later: list[ProbeReply] = []
    if not any(one.error or one.unfinished for one in replies) and len({one.texts for one in replies[:3]}) > 1:
        later = yield _together(model, [later_call(calls)])
        if repeats(replies, later[0]):
            later += yield _together(model, [later_call(calls, 1)])
    if isinstance(model, Probeable):
        report = conclude(calls, replies, later)
    else:
        alone = [replace(call, n=1) for call in calls]
        report = conclude(alone, replies, later, seeded=takes_seeds(model))
    return report.model_copy(update={"cost": before + report.cost})


def _together(model: BaseChatModel, calls: Sequence[ProbeCall]) -> Effect:
    async def gathered() -> list[ProbeReply]:
        return await asyncio.gather(*(_aask(model, call) for call in calls))

    return Effect(lambda: side_by_side(partial(_ask, model), calls, len(calls)), gathered)


def _calls(plan: SamplingPlan) -> tuple[ProbeCall, ...]:
    calls = probe_calls(logprobs=plan.logprobs, seed=secrets.randbelow(LARGEST_SEED - SEEDS_OF_A_PROBE))
    if plan.primary == "greedy":
        return calls
    # A model that takes no other temperature than 1 is not asked at 0, and needs room for its thoughts.
    longest = max(plan.max_tokens, calls[0].max_tokens)
    return tuple(replace(call, temperature=1.0, max_tokens=longest) for call in calls)


def _settled(report: ProbeReport | None, plan: SamplingPlan) -> ProbeReport | None:
    """A report that holds for a plan: one of a model that said nothing holds for answers as short only."""
    if report is not None and report.silent_at is not None and report.silent_at < plan.max_tokens:
        return None
    return report


def _remember(known: _Known, logprobs: bool, report: ProbeReport) -> None:
    if not report.failed:
        known.reports[logprobs] = report


def _ask(model: BaseChatModel, call: ProbeCall) -> ProbeReply:
    try:
        if isinstance(model, Probeable):
            reply = model.answer_probe(call)
            return _both(reply, model.answer_probe(replace(call, n=1))) if wants_alone(call, reply) else reply
        asked, params = [HumanMessage(call.prompt)], _params(model, call)
        with in_flight(), as_sample():
            try:
                message = _made(model, params).invoke(asked, {"callbacks": []})
            except Exception as error:
                if not _refuses_seed(model, params, error):
                    raise
                message = _made(model, params).invoke(asked, {"callbacks": []})
        return _reply(message, call)
    except UsageError:
        raise
    except Exception as error:  # any error of a model: the probe comes to no conclusion
        return ProbeReply(error=describe_error(error, asking=True))


async def _aask(model: BaseChatModel, call: ProbeCall) -> ProbeReply:
    try:
        if isinstance(model, Probeable):
            reply = await model.aanswer_probe(call)
            return _both(reply, await model.aanswer_probe(replace(call, n=1))) if wants_alone(call, reply) else reply
        asked, params = [HumanMessage(call.prompt)], _params(model, call)
        async with ain_flight():
            with as_sample():
                try:
                    message = await _made(model, params).ainvoke(asked, {"callbacks": []})
                except Exception as error:
                    if not _refuses_seed(model, params, error):
                        raise
                    message = await _made(model, params).ainvoke(asked, {"callbacks": []})
        return _reply(message, call)
    except UsageError:
        raise
    except Exception as error:
        return ProbeReply(error=describe_error(error, asking=True))


def _both(together: ProbeReply, alone: ProbeReply) -> ProbeReply:
    """The one answer to a call without n, with the cost of the call with n that was of no use."""
    return replace(alone, texts=alone.texts[:1], cost=together.cost + alone.cost)


def _made(model: BaseChatModel, params: Mapping[str, Any]) -> Any:
    asked, settings = with_settings(model, params)
    return asked.bind(**settings)


def _params(model: BaseChatModel, call: ProbeCall) -> dict[str, Any]:
    params: dict[str, Any] = {"temperature": call.temperature, "max_tokens": call.max_tokens}
    if call.logprobs:
        params["logprobs"] = True
    if call.temperature and takes_seeds(model):
        params["seed"] = call.seed
    return params


def takes_seeds(model: BaseChatModel) -> bool:
    """Whether each call of a LangChain model can be sent a seed (`guardrail.bindings.carried`); not if refused once."""
    found = carried(model, {"seed": 0})
    return bool(found.fields or found.call) and not _of(model).refuses_seeds


def seeded(model: BaseChatModel) -> bool:
    """Whether samples of a model are sent seeds: it takes them, and its server did so in a probe."""
    return takes_seeds(model) and known_report(model) is not None


def _refuses_seed(model: BaseChatModel, params: dict[str, Any], error: Exception) -> bool:
    """Whether the server refused a call as such that had a seed; the seed is then taken out, also of later calls."""
    if "seed" not in params or cause_of(error) is not Unmeasured.REJECTED:
        return False
    del params["seed"]
    _of(model).refuses_seeds = True
    return True


def _reply(message: AIMessage, call: ProbeCall) -> ProbeReply:
    usage = message.usage_metadata
    cost = Cost(
        calls=1,
        input_tokens=usage.get("input_tokens", 0) if usage else 0,
        output_tokens=usage.get("output_tokens", 0) if usage else 0,
    )
    metadata = message.response_metadata
    return reply_of(
        call,
        [read_reply(message)],
        metadata.get("logprobs"),
        fingerprint=metadata.get("system_fingerprint"),
        cost=cost,
    )


def reply_of(call: ProbeCall, samples: Sequence[Sample], logprobs: Any, *, fingerprint: Any, cost: Cost) -> ProbeReply:
    """What a probe reads in answers. A part of another form than expected counts as missing.

    Args:
        call: What was asked.
        samples: The answers.
        logprobs: Log-probabilities of the first, as the server gave them.
        fingerprint: What the server calls its configuration.
        cost: What the call cost.
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
        with_bytes=bool(items) and all(item.get("bytes") is not None for item in items),
        first=first,
        token=sample.tokens[0] if sample.tokens else None,
        argmax=argmax if call.temperature == 0 else None,
        fingerprint=fingerprint if isinstance(fingerprint, str) and fingerprint.isprintable() else None,
        cost=cost,
    )


def _unfinished(sample: Sample) -> bool:
    """Whether the longest answer was spent before the answer began, as models do that think first."""
    return not (sample.text or sample.tool_calls) and str(sample.finish_reason).lower() in ("length", "max_tokens")


def listed_tokens(items: Sequence[Any]) -> tuple[tuple[tuple[str, float], ...], bool | None]:
    """Alternatives of the first token, and whether every token taken is the likeliest listed at its place.

    The second is None when a place lists no alternative. A near tie counts as likeliest.
    """
    first: tuple[tuple[str, float], ...] = ()
    argmax: bool | None = True if items else None
    for place, item in enumerate(items):
        try:
            listed = tuple((str(other["token"]), float(other["logprob"])) for other in item.get("top_logprobs") or ())
            own = float(item["logprob"])
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            return (), None
        if place == 0:
            first = listed
        if not listed or math.isnan(own):
            argmax = None
        elif argmax is not None and max(value for _, value in listed) > own + TIE:
            argmax = False
    return first, argmax
