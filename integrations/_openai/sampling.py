"""Sample sets and probe replies of an OpenAI-compatible endpoint: which requests to make, how to read the replies."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from langchain_core.messages import BaseMessage

from guardrail.errors import BrokenOffReplyError, UnreadableReplyError
from guardrail.prompting import question_text
from guardrail.sampling.native import call_seed
from guardrail.sampling.probe import ProbeCall, ProbeReply
from guardrail.sampling.prober import reply_of
from guardrail.sampling.replies.failures import cause_of, failed_calls, refused_samples
from guardrail.sampling.replies.read import read_reply
from guardrail.types import Cost, OptionScores, Sample, SampleSet, SamplingPlan, Unmeasured, is_logprob

from .endpoint import RETRIED, Attempted, is_of_route, status_of
from .pins import ModelChangedError
from .replies import ForeignReplyError, choices_of, message_of, parsed, usage_of
from .requests import TOP_LOGPROBS

PRIMARY, SAMPLES, OPTIONS = "primary", "samples", "options"
CERTAIN = 1.01
"""Largest sum of probabilities of different tokens, with rounding (bfloat16: 0.4 %). Zeros for "not computed" exceed
it."""
N_REFUSED = frozenset({400, 422})
"""HTTP statuses with which servers refuse several answers in one call, or so many."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a sample set."""

    role: str
    """"primary", "samples" or "options"."""
    settings: Mapping[str, Any]
    alone: tuple[Ask, ...] = ()
    """The same answers one request each, for servers that refuse ``n``; empty if it asks for one."""

    @property
    def count(self) -> int:
        """Answers asked for."""
        return int(self.settings.get("n", 1))


@dataclass(frozen=True, slots=True)
class AskOutcome:
    """The result of an `Ask`."""

    cost: Cost
    """HTTP requests (retries included), tokens, and seconds."""
    started: float
    """Time when the request was sent (`time.perf_counter`)."""
    error: str = ""
    """Reason why an answer is missing, or ""."""
    cause: Unmeasured = Unmeasured.MODEL_FAILED
    """The error's reason, for a set that misses this answer."""
    status: int | None = None
    """HTTP status of an error reply."""
    reply: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[dict[str, Any], ...] = ()
    samples: tuple[Sample, ...] = ()
    """The choices that could be read."""


# -- requests ---------------------------------------------------------------------------------------------------------


def asks_for(
    plan: SamplingPlan, seed: int | None, settings: Mapping[str, Any], *, together: bool, primary: bool = True
) -> list[Ask]:
    """The requests that draw one sample set.

    The greedy answer is a separate request, since temperature holds for a whole request. The n samples are one request
    if the server is known to honour n, otherwise n requests. Every request has a seed, because a cache would answer
    equal requests with one reply. Options are read off one token at temperature 1, where tempered and raw distributions
    agree. ``together`` says that the server honours n; ``settings`` are those of all requests.
    """
    seed = secrets.randbits(63) if seed is None else seed
    common = {**settings, "max_tokens": plan.max_tokens}
    if plan.logprobs:
        # Some servers give log-probabilities only together with alternatives; the probe asks for these, too.
        common |= {"logprobs": True, "top_logprobs": 1}
    sampled = {**common, "temperature": plan.temperature, "top_p": plan.top_p}
    asks = []
    if primary and (plan.n or plan.options is None):
        drawn = sampled if plan.primary == "sampled" else {**common, "temperature": 0.0}
        asks.append(Ask(PRIMARY, {**drawn, "seed": call_seed(seed, 0)}))
    alone = [Ask(SAMPLES, {**sampled, "seed": call_seed(seed, 1 + i)}) for i in range(plan.n)]
    if plan.n and together:
        alone = [Ask(SAMPLES, {**sampled, "n": plan.n, "seed": call_seed(seed, 1)}, tuple(alone))]
    asks += alone
    if plan.options is not None:
        reading = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
        asks.append(Ask(OPTIONS, {**settings, **reading, "seed": call_seed(seed, 0)}))
    return asks


def named(asks: Sequence[Ask]) -> dict[str, Ask]:
    """The requests of a set by name: their role, or "sample-NUMBER" for a request of a single sample."""
    numbers = count()
    return {f"sample-{next(numbers)}" if ask.role == SAMPLES and not ask.alone else ask.role: ask for ask in asks}


def probe_ask(call: ProbeCall) -> Ask:
    """A probe's call as a request."""
    settings: dict[str, Any] = {"temperature": call.temperature, "max_tokens": call.max_tokens, "seed": call.seed}
    if call.n > 1:
        settings["n"] = call.n
    if call.logprobs:
        settings |= {"logprobs": True, "top_logprobs": 5}
    return Ask(SAMPLES, settings)


# -- replies ----------------------------------------------------------------------------------------------------------


def outcome_of(
    ask: Ask,
    attempted: Attempted,
    started: float,
    *,
    describe_error: Callable[[Exception | None], str],
    check: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> AskOutcome:
    """Read a reply. A faulty reply gives an outcome with an error that describes the fault, without secrets.

    ``check`` raises a `ModelChangedError` for a reply of another model.
    """
    cost = Cost(calls=attempted.attempts, seconds=time.perf_counter() - started)
    if attempted.content is None:
        error = attempted.error
        cause = Unmeasured.MODEL_FAILED if error is None or is_of_route(error) else cause_of(error)
        return AskOutcome(cost, started, describe_error(error), cause, status_of(error))
    samples, problem, cause = list[Sample](), "", Unmeasured.MODEL_FAILED
    try:
        reply = parsed(attempted.content)
        usage = usage_of(reply)
        tokens = {"input_tokens": usage["input_tokens"], "output_tokens": usage["output_tokens"]}
        cost = cost.model_copy(update=tokens)
        choices = tuple(choices_of(reply, max_tokens=ask.settings["max_tokens"]))
        check(reply)
        for choice in choices:  # one that cannot be read must not hide the others, which other requests may hold
            try:
                samples.append(read_reply(message_of(choice, reply, None)))
            except UnreadableReplyError as error:
                problem = describe_error(error)
                cause = Unmeasured.MODEL_FAILED if isinstance(error, BrokenOffReplyError) else Unmeasured.UNREADABLE
    except Exception as error:  # a reply of the wrong shape is a missing measurement
        return AskOutcome(cost, started, describe_error(error), _CAUSES.get(type(error), Unmeasured.UNREADABLE))
    return AskOutcome(cost, started, problem, cause, None, reply, choices, tuple(samples))


_CAUSES: dict[type[Exception], Unmeasured] = {
    ForeignReplyError: Unmeasured.MODEL_FAILED,
    ModelChangedError: Unmeasured.MODEL_CHANGED,
}


def probe_reply(call: ProbeCall, outcome: AskOutcome) -> ProbeReply:
    """The reply to a probe's call."""
    if outcome.error:
        refused = outcome.status is not None and 400 <= outcome.status < 500 and outcome.status not in RETRIED
        return ProbeReply(error=outcome.error, rejected=refused, cost=outcome.cost)
    fingerprint, listed = outcome.reply.get("system_fingerprint"), outcome.choices[0].get("logprobs")
    return reply_of(call, outcome.samples, listed, fingerprint=fingerprint, cost=outcome.cost)


def sample_set(
    messages: Sequence[BaseMessage], plan: SamplingPlan, pairs: Sequence[tuple[Ask, AskOutcome]]
) -> SampleSet:
    """The sample set of a prompt, from all its requests and their outcomes.

    Failures and shortfalls become its ``problem``; nothing is padded.
    """
    outcomes = [outcome for _, outcome in pairs]
    ended = max(outcome.started + outcome.cost.seconds for outcome in outcomes)
    seconds = ended - min(outcome.started for outcome in outcomes)
    primary = next((o.samples[0] for a, o in pairs if a.role == PRIMARY and o.samples), None)
    samples = tuple(sample for a, o in pairs if a.role == SAMPLES for sample in o.samples)
    problem, detail = _problem(pairs, samples)
    options: OptionScores | None = None
    if plan.options is not None:
        options, primary, unread = _options(plan, pairs, primary)
        problem, detail = (problem, detail) if problem or not unread else (Unmeasured.NO_OPTIONS, unread)
    return SampleSet(
        question=question_text(messages),
        primary=primary,
        samples=samples,
        options=options,
        cost=sum((outcome.cost for outcome in outcomes), start=Cost()).model_copy(update={"seconds": seconds}),
        problem=problem,
        problem_detail=detail,
    )


def _problem(pairs: Sequence[tuple[Ask, AskOutcome]], samples: Sequence[Sample]) -> tuple[Unmeasured | None, str]:
    failures = [(outcome.cause, outcome.error) for _, outcome in pairs if outcome.error]
    wrong = next(((ask, outcome) for ask, outcome in pairs if len(outcome.choices) != ask.count), None)
    if wrong is not None and not failures:
        ask, outcome = wrong
        detail = f"asked for {ask.count} answers in a call, received {len(outcome.choices)}"
        return Unmeasured.SAMPLING_SHORTFALL, detail
    answers = (sample for _, outcome in pairs for sample in outcome.samples)
    return failed_calls(failures, len(pairs), answers) or refused_samples(samples) or (None, "")


def _options(
    plan: SamplingPlan, pairs: Sequence[tuple[Ask, AskOutcome]], primary: Sample | None
) -> tuple[OptionScores | None, Sample | None, str]:
    """Option scores, the primary answer (the likeliest option if no answer was drawn), and the fault or ""."""
    assert plan.options is not None
    outcome = next(outcome for ask, outcome in pairs if ask.role == OPTIONS)
    if not outcome.choices:
        return None, primary, "the call that reads the options failed"
    scores = option_scores(outcome.choices[0], plan.options)
    if isinstance(scores, str):
        return None, primary, scores
    if plan.n:
        return scores, primary, ""
    best = scores.loglikelihoods[scores.labels.index(scores.best)]
    tokens, logprobs = ((scores.best,), (min(best, 0.0),)) if plan.logprobs else (None, None)
    return scores, Sample(text=scores.best, tokens=tokens, logprobs=logprobs, finish_reason="stop"), ""


def option_scores(choice: Mapping[str, Any], labels: Sequence[str]) -> OptionScores | str:
    """Log-likelihood of each option label as the first token of the answer, or the reason why it cannot be read.

    A label's probability is the sum over the listed first tokens that equal the label after leading white space is
    removed: "A" and " A" are two tokens and one option. Scores are read only if *every* label is listed. A missing
    label is not taken as improbable: endpoints list 20 tokens at most, and never a label of several tokens. Neither is
    a token that is listed with a placeholder (`guardrail.types.is_logprob`).

    Args:
        choice: A choice drawn with ``top_logprobs`` at temperature 1 and top_p 1, where servers that report the
            tempered distribution and servers that report the raw distribution agree.
        labels: The option labels.
    """
    clash = next(((a, b) for a in labels for b in labels if a != b and b.startswith(a)), None)
    if clash is not None:
        return f"option {clash[0]!r} begins option {clash[1]!r}, so a first token does not distinguish them"
    try:
        listed = choice["logprobs"]["content"][0]["top_logprobs"]
        entries = {(str(item["token"]), float(item["logprob"])) for item in listed}
        booleans = any(isinstance(item["logprob"], bool) for item in listed)  # which count as 0 or 1
    except (KeyError, IndexError, TypeError, ValueError):
        return "the endpoint gave no top_logprobs for the first token"
    numbers = not booleans and all(value <= 1e-6 for _, value in entries)  # NaN is no number
    if not numbers or math.fsum(math.exp(value) for _, value in entries) > CERTAIN:
        return "the endpoint's top_logprobs are not log-probabilities"
    values = []
    for label in labels:
        values_of_label = [value for token, value in entries if token.lstrip() == label and is_logprob(value)]
        if not values_of_label:
            return f"option {label!r} is not among the {len(entries)} first tokens that the endpoint lists"
        values.append(float(np.logaddexp.reduce(values_of_label)))
    return OptionScores(labels=tuple(labels), loglikelihoods=tuple(values))
