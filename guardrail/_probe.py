"""Makes the calls of a probe and remembers what they showed, beside the model and never on it."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage

from ._calls import quiet_copy, read_reply
from .probing import Probeable, ProbeCall, ProbeReply, ProbeReport, conclude, probe_calls, wants_probe
from .sampling import is_native
from .types import Cost, SamplingPlan

__all__ = ["TRUSTED", "aprobe", "known_report", "needs_probe", "probe"]

TRUSTED = "guardrail_trusted"
"""Class attribute of models that sample honestly by construction, and of fakes: they are not probed."""
TIE = 1e-3
"""Two log-probabilities this close are a tie."""


class _Known:
    """What is known of one model: reports by whether log-probabilities were asked for, and who is asking right now.

    Threads wait for threads and tasks for tasks of their own loop only, so that a sync call inside a running loop
    cannot wait for a task that it keeps from running.
    """

    def __init__(self) -> None:
        self.reports: dict[bool, ProbeReport] = {}
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


def needs_probe(model: BaseChatModel) -> bool:
    """Whether a model is somebody else's endpoint: neither a local sampler nor a fake of LangChain's or ours."""
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
    known = _of(model)
    while True:
        with known.lock:
            found = None if again else known_report(model, logprobs=plan.logprobs)
            asking = known.threads.get(plan.logprobs)
            if found is None and asking is None:
                done = known.threads[plan.logprobs] = Future()
        if found is not None:
            return found, Cost()
        if asking is None:
            break
        if (report := asking.result()) is not None:
            return report, Cost()
    made = None
    try:
        calls = probe_calls(logprobs=plan.logprobs)
        with ThreadPoolExecutor(len(calls)) as pool:
            made = _conclude(model, calls, list(pool.map(lambda call: _ask(model, call), calls)))
        _remember(known, plan.logprobs, made)
        return made, made.cost
    finally:
        del known.threads[plan.logprobs]
        done.set_result(made)


async def aprobe(model: BaseChatModel, plan: SamplingPlan, *, again: bool = False) -> tuple[ProbeReport | None, Cost]:
    """`probe` on the event loop. Calls that arrive meanwhile share its result and pay nothing."""
    if not needs_probe(model) or not wants_probe(plan):
        return None, Cost()
    known, key = _of(model), (id(asyncio.get_running_loop()), plan.logprobs)
    while True:
        found = None if again else known_report(model, logprobs=plan.logprobs)
        if found is not None:
            return found, Cost()
        asking = known.tasks.get(key)
        if asking is None:
            break
        if (report := await asyncio.shield(asking)) is not None:
            return report, Cost()
    done: asyncio.Future[ProbeReport | None] = asyncio.get_running_loop().create_future()
    known.tasks[key] = done
    made = None
    try:
        calls = probe_calls(logprobs=plan.logprobs)
        made = _conclude(model, calls, await asyncio.gather(*(_aask(model, call) for call in calls)))
        _remember(known, plan.logprobs, made)
        return made, made.cost
    finally:  # also when cancelled: whoever waits then finds nothing and asks itself
        del known.tasks[key]
        done.set_result(made)


def _remember(known: _Known, logprobs: bool, report: ProbeReport) -> None:
    if not report.failed:
        known.reports[logprobs] = report


def _conclude(model: BaseChatModel, calls: Sequence[ProbeCall], replies: Sequence[ProbeReply]) -> ProbeReport:
    if isinstance(model, Probeable):
        return conclude(calls, replies)
    return conclude([replace(call, n=1) for call in calls], replies, seeded=False)


def _ask(model: BaseChatModel, call: ProbeCall) -> ProbeReply:
    if isinstance(model, Probeable):
        reply = model.answer_probe(call)
        return _both(reply, model.answer_probe(replace(call, n=1))) if reply.rejected and call.n > 1 else reply
    try:
        return _reply(quiet_copy(model).invoke([HumanMessage(call.prompt)], {"callbacks": []}, **_params(call)), call)
    except Exception as error:  # whatever a model raises: the probe comes to no conclusion
        return ProbeReply(error=f"{type(error).__name__}: {error}")


async def _aask(model: BaseChatModel, call: ProbeCall) -> ProbeReply:
    if isinstance(model, Probeable):
        reply = await model.aanswer_probe(call)
        return _both(reply, await model.aanswer_probe(replace(call, n=1))) if reply.rejected and call.n > 1 else reply
    try:
        message = await quiet_copy(model).ainvoke([HumanMessage(call.prompt)], {"callbacks": []}, **_params(call))
        return _reply(message, call)
    except Exception as error:
        return ProbeReply(error=f"{type(error).__name__}: {error}")


def _both(rejected: ProbeReply, alone: ProbeReply) -> ProbeReply:
    """The reply to a call without n, with the cost of the one with n that the server would not take."""
    return replace(alone, cost=rejected.cost + alone.cost)


def _params(call: ProbeCall) -> dict[str, Any]:
    params: dict[str, Any] = {"temperature": call.temperature, "max_tokens": call.max_tokens}
    return {**params, "logprobs": True} if call.logprobs else params


def _reply(message: AIMessage, call: ProbeCall) -> ProbeReply:
    sample = read_reply(message)
    usage = message.usage_metadata
    cost = Cost(
        calls=1,
        input_tokens=usage["input_tokens"] if usage else 0,
        output_tokens=usage["output_tokens"] if usage else 0,
    )
    items = (message.response_metadata.get("logprobs") or {}).get("content") or []
    first, argmax = listed_tokens(items)
    return ProbeReply(
        texts=(sample.text,),
        logprobs=sample.logprobs,
        with_bytes=bool(items) and all(item.get("bytes") is not None for item in items),
        first=first,
        token=sample.tokens[0] if sample.tokens else None,
        argmax=argmax if call.temperature == 0 else None,
        fingerprint=message.response_metadata.get("system_fingerprint"),
        cost=cost,
    )


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
        except (AttributeError, KeyError, TypeError, ValueError):
            return (), None
        if place == 0:
            first = listed
        if not listed or math.isnan(own):
            argmax = None
        elif argmax is not None and max(value for _, value in listed) > own + TIE:
            argmax = False
    return first, argmax
