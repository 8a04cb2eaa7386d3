"""Sample sets and probe replies of an OpenAI-compatible endpoint: which requests to make, how to read the replies."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import BaseMessage

from guardrail.errors import BrokenOffReplyError, UnreadableReplyError
from guardrail.prompting import question_text
from guardrail.sampling.native import call_seed
from guardrail.sampling.probe import ProbeCall, ProbeReply
from guardrail.sampling.prober import reply_of
from guardrail.sampling.replies import cause_of, failed_calls, read_reply, refused_samples
from guardrail.types import Cost, OptionScores, Sample, SampleSet, SamplingPlan, Unmeasured

from .endpoint import RETRIED, Attempted, is_of_route, status_of
from .pins import ModelChangedError
from .replies import ForeignReplyError, choices_of, message_of, option_scores, parsed, usage_of
from .requests import TOP_LOGPROBS

__all__ = [
    "N_REFUSED",
    "SAMPLES",
    "Ask",
    "AskOutcome",
    "Deadlines",
    "after",
    "asks_for",
    "named",
    "outcome_of",
    "probe_ask",
    "probe_reply",
    "sample_sets",
]

PRIMARY, SAMPLES, OPTIONS = "primary", "samples", "options"
N_REFUSED = frozenset({400, 422})
"""HTTP statuses with which servers refuse several answers in one call, or so many."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a sample set.

    Attributes:
        prompt: Index of its prompt.
        role: "primary", "samples" or "options".
        settings: Settings of the request.
        apart: Makes the same answers one request each, for servers that refuse ``n``; None if it asks for one.
    """

    prompt: int
    role: str
    settings: Mapping[str, Any]
    apart: Callable[[], list[Ask]] | None = None

    @property
    def count(self) -> int:
        """Answers asked for."""
        return int(self.settings.get("n", 1))


@dataclass(frozen=True, slots=True)
class AskOutcome:
    """The result of an `Ask`.

    Attributes:
        choices: The choices of the reply.
        samples: The choices as samples.
        error: Reason why the reply has no choices, or "".
        cost: HTTP requests (retries included), tokens, and seconds.
        started: Time when the request was sent.
        status: HTTP status of an error reply, or None.
        cause: The error's reason, for a set that misses this answer.
        reply: The whole reply.
    """

    choices: tuple[dict[str, Any], ...]
    samples: tuple[Sample, ...]
    error: str
    cost: Cost
    started: float
    status: int | None = None
    reply: Mapping[str, Any] = field(default_factory=dict)
    cause: Unmeasured = Unmeasured.MODEL_FAILED

    @property
    def rejected(self) -> bool:
        """Whether the server refused the request itself (4xx, except the statuses that are retried)."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in RETRIED


class Deadlines:
    """One deadline for each prompt, running from its first request; time that a request waits for its turn is free.

    Args:
        seconds: Time for each prompt.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: dict[int, float] = {}

    def of(self, prompt: int, asked: float) -> float:
        """End of a prompt's time (on `time.monotonic`) for a request that begins now; the first one starts the time.

        Args:
            prompt: Index of the prompt.
            asked: Time from which the request has waited for its turn.
        """
        now = time.monotonic()
        began = self._began.setdefault(prompt, now)
        return began + self._seconds + (now - max(asked, began))


def asks_for(
    prompt: int,
    plan: SamplingPlan,
    seed: int | None,
    *,
    together: bool,
    extra: Mapping[str, Any],
    primary: bool = True,
) -> list[Ask]:
    """The requests that draw one sample set.

    The greedy answer is a separate request, since temperature holds for a whole request. The n samples are one request
    if the server is known to honour n, otherwise n requests. Every request has a seed, because a cache would answer
    equal requests with one reply. Options are read off one token at temperature 1, where tempered and raw distributions
    agree.

    Args:
        prompt: Index of the prompt.
        plan: The plan of the samples.
        seed: Seed of the set; None for a fresh seed.
        together: Whether the server honours n.
        extra: Tools and other settings of all requests.
        primary: Whether to draw the greedy answer.
    """
    seed = secrets.randbits(63) if seed is None else seed
    common = {**extra, "max_tokens": plan.max_tokens}
    if plan.logprobs:
        # Some servers give log-probabilities only together with alternatives; the probe asks for these, too.
        common |= {"logprobs": True, "top_logprobs": 1}
    asks = []
    sampled = {**common, "temperature": plan.temperature, "top_p": plan.top_p}
    if primary and (plan.n or plan.options is None):
        drawn = sampled if plan.primary == "sampled" else {**common, "temperature": 0.0}
        asks.append(Ask(prompt, PRIMARY, {**drawn, "seed": call_seed(seed, 0)}))

    def apart() -> list[Ask]:
        return [Ask(prompt, SAMPLES, {**sampled, "seed": call_seed(seed, 1 + i)}) for i in range(plan.n)]

    if plan.n and together:
        asks.append(Ask(prompt, SAMPLES, {**sampled, "n": plan.n, "seed": call_seed(seed, 1)}, apart))
    else:
        asks += apart()
    if plan.options is not None:
        reading = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
        asks.append(Ask(prompt, OPTIONS, {**extra, **reading, "seed": call_seed(seed, 0)}))
    return asks


def named(asks: Sequence[Ask], prompts: int) -> list[dict[str, Ask]]:
    """The requests of each prompt by name: their role, or "sample-NUMBER" for a request of a single sample."""
    by_name: list[dict[str, Ask]] = [{} for _ in range(prompts)]
    for ask in asks:
        of_prompt = by_name[ask.prompt]
        alone = ask.role == SAMPLES and "n" not in ask.settings
        of_prompt[f"sample-{sum(name.startswith('sample-') for name in of_prompt)}" if alone else ask.role] = ask
    return by_name


def outcome_of(
    ask: Ask,
    attempted: Attempted,
    started: float,
    *,
    describe_error: Callable[[Exception | None], str],
    check: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> AskOutcome:
    """Read a reply. A faulty reply gives an outcome with an error that describes the fault.

    Args:
        ask: The request.
        attempted: The result of the request.
        started: Time when it was sent (`time.perf_counter`).
        describe_error: Describes an error without secrets.
        check: Raises a `ModelChangedError` for a reply of another model.
    """
    seconds = time.perf_counter() - started
    if attempted.content is None:
        cost = Cost(calls=attempted.attempts, seconds=seconds)
        error = attempted.error
        cause = Unmeasured.MODEL_FAILED if error is None or is_of_route(error) else cause_of(error)
        return AskOutcome((), (), describe_error(error), cost, started, status_of(error), cause=cause)
    prompt_tokens = completion_tokens = 0
    samples: tuple[Sample, ...] = ()
    choices: tuple[dict[str, Any], ...] = ()
    reply: dict[str, Any] = {}
    problem, cause = "", Unmeasured.MODEL_FAILED
    try:
        reply = parsed(attempted.content)
        usage = usage_of(reply)
        prompt_tokens, completion_tokens = usage["input_tokens"], usage["output_tokens"]
        choices = tuple(choices_of(reply, max_tokens=ask.settings["max_tokens"]))
        check(reply)
        for choice in choices:  # one that cannot be read must not hide the others, which other requests may hold
            try:
                samples = (*samples, read_reply(message_of(choice, reply, None)))
            except UnreadableReplyError as error:
                problem = describe_error(error)
                cause = Unmeasured.MODEL_FAILED if isinstance(error, BrokenOffReplyError) else Unmeasured.UNREADABLE
    except Exception as error:  # a reply of the wrong shape is a missing measurement
        problem, samples, choices = describe_error(error), (), ()
        cause = Unmeasured.MODEL_FAILED if isinstance(error, ForeignReplyError) else Unmeasured.UNREADABLE
        cause = Unmeasured.MODEL_CHANGED if isinstance(error, ModelChangedError) else cause
    cost = Cost(calls=attempted.attempts, input_tokens=prompt_tokens, output_tokens=completion_tokens, seconds=seconds)
    return AskOutcome(choices, samples, problem, cost, started, reply=reply, cause=cause)


def after(first: AskOutcome, second: AskOutcome) -> AskOutcome:
    """The outcome of a second request, with the cost of the first request, which it replaces."""
    return replace(second, cost=first.cost + second.cost, started=first.started)


def sample_sets(
    prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, pairs: Sequence[tuple[Ask, AskOutcome]]
) -> list[SampleSet]:
    """One sample set for each prompt, from all requests and their outcomes."""
    return [
        _sample_set(messages, plan, [pair for pair in pairs if pair[0].prompt == place])
        for place, messages in enumerate(prompts)
    ]


def _sample_set(
    messages: Sequence[BaseMessage], plan: SamplingPlan, pairs: Sequence[tuple[Ask, AskOutcome]]
) -> SampleSet:
    """Build a sample set. Failures and shortfalls become its ``problem``; nothing is padded."""
    outcomes = [outcome for _, outcome in pairs]
    cost = sum((outcome.cost for outcome in outcomes), start=Cost())
    ended = max(outcome.started + outcome.cost.seconds for outcome in outcomes)
    cost = cost.model_copy(update={"seconds": ended - min(outcome.started for outcome in outcomes)})
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
        cost=cost,
        problem=problem,
        problem_detail=detail,
    )


def _problem(pairs: Sequence[tuple[Ask, AskOutcome]], samples: Sequence[Sample]) -> tuple[Unmeasured | None, str]:
    failures = [(outcome.cause, outcome.error) for _, outcome in pairs if outcome.error]
    answers = (sample for _, outcome in pairs for sample in outcome.samples)
    wrong = next(((ask, outcome) for ask, outcome in pairs if len(outcome.choices) != ask.count), None)
    if wrong is not None and not failures:
        ask, outcome = wrong
        detail = f"asked for {ask.count} answers in a call, received {len(outcome.choices)}"
        return Unmeasured.SAMPLING_SHORTFALL, detail
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


def probe_ask(call: ProbeCall) -> Ask:
    """A probe's call as a request."""
    settings: dict[str, Any] = {"temperature": call.temperature, "max_tokens": call.max_tokens, "seed": call.seed}
    if call.n > 1:
        settings["n"] = call.n
    if call.logprobs:
        settings |= {"logprobs": True, "top_logprobs": 5}
    return Ask(0, SAMPLES, settings)


def probe_reply(call: ProbeCall, outcome: AskOutcome) -> ProbeReply:
    """The reply to a probe's call."""
    if outcome.error:
        return ProbeReply(error=outcome.error, rejected=outcome.rejected, cost=outcome.cost)
    return reply_of(
        call,
        outcome.samples,
        outcome.choices[0].get("logprobs"),
        fingerprint=outcome.reply.get("system_fingerprint"),
        cost=outcome.cost,
    )
