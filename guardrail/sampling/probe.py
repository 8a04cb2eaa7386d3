"""Probe before trust: a few calls that show whether an endpoint honours n, temperature, seed and logprobs.

A server that ignores the temperature, or answers from a cache, makes every question look certain. So an endpoint is
asked once, before its samples are believed, a question whose answers must vary. This file is pure: it makes the
questions (`probe_calls`, `later_call`) and the report on the replies (`conclude`). `guardrail.sampling.prober` asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from ..types import Cost, Fingerprint, Frozen, SamplingPlan, Unmeasured

PROMPT = (
    "Write sixteen random English words, separated by commas, in no order and without any connection. "
    "Choose them truly at random. Write nothing else."
)
"""A question with very many equally good answers: honest samples at temperature 1 do not repeat word by word."""
MAX_TOKENS = 24
CERTAIN = -1e-4
"""Log-probability above which a token tells nothing about the temperature: it is certain at any temperature."""
TOLERANCE = 0.05
"""Difference in nats between two reports of one token's log-probability that counts as rounding."""
OTHER_PROMPTS = ("Why is the sky blue? Answer in one sentence.", "Name the days of the week in order.")
"""Further questions whose greedy answers show the weights."""
NOISE = 0.08
"""Mean difference in nats of log-probabilities up to which greedy answers may be of the same weights, see `unlike`."""
LATER_CALLS = 4
"""Equal answers in a row that show a cache. A small model that gives four answers of its own to the question above is
refused once in 3,000 probes (the embedded one; with two, once in 100)."""
ONE_CALL = Cost(calls=1)

Basis = Literal["raw", "scaled", "unknown"]
"""The distribution that log-probabilities describe: the model's own, or that after temperature. "unknown" if the
replies do not tell."""


@dataclass(frozen=True, slots=True)
class ProbeCall:
    """One call of the probe.

    Attributes:
        temperature: 1 for samples, 0 for a greedy answer.
        n: Answers asked for at once.
        seed: Seed to send.
        logprobs: Whether to ask for log-probabilities.
        max_tokens: Longest answer.
        prompt: The question.
    """

    temperature: float
    n: int
    seed: int
    logprobs: bool
    max_tokens: int = MAX_TOKENS
    prompt: str = PROMPT


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """The reply to one call.

    Attributes:
        texts: One text an answer.
        unfinished: Whether an answer is empty because the model spent the longest answer on thought.
        logprobs: Log-probabilities of the first answer's tokens, or None.
        first: Alternatives of its first token, token to log-probability.
        tokens: Its tokens, if they have log-probabilities.
        argmax: Whether each of its tokens is the likeliest listed; None if no alternatives are listed.
        fingerprint: The server's name for its configuration.
        cost: The cost of the call.
        error: The reason why the answer is missing, or empty.
        rejected: Whether the server refused the request itself (4xx), rather than failed.
        said: What the server said instead of an answer.
    """

    texts: tuple[str, ...] = ()
    unfinished: bool = False
    logprobs: tuple[float, ...] | None = None
    first: tuple[tuple[str, float], ...] = ()
    tokens: tuple[str, ...] = ()
    argmax: bool | None = None
    fingerprint: str | None = None
    cost: Cost = ONE_CALL
    error: str = ""
    rejected: bool = False
    said: str = ""


@runtime_checkable
class Probeable(Protocol):
    """A sampler that makes the probe's calls itself, because it can ask for more than LangChain's interface can."""

    def answer_probe(self, call: ProbeCall) -> ProbeReply:
        """Make one call of the probe. Never raises: a failure is in the reply."""
        ...

    async def aanswer_probe(self, call: ProbeCall) -> ProbeReply:
        """`answer_probe` on the event loop."""
        ...


class ProbeReport(Frozen):
    """The findings of a probe. True and False are observed; None means that the replies do not tell."""

    failed: str = ""
    """The reason why the probe came to no conclusion, or empty. A failed probe is repeated at the next call."""
    said: str = ""
    """The server's words instead of an answer, for a person who calibrates or examines; no verdict quotes it."""
    silent_at: int | None = None
    """Longest answer (tokens) which the model spent on thought, so that it said nothing; None if it answered."""
    samples: int = 0
    """Answers at temperature 1 that were compared."""
    distinct: int = 0
    """Different answers among them."""
    cached: bool | None = None
    """Whether calls after the others were answered with one of their answers, as a cache does. None: not tried."""
    n: bool | None = None
    """Whether n answers in one call are n, and differ. None where n was not tried."""
    temperature: bool | None = None
    """Whether temperature 1 varies and temperature 0 takes the likeliest token."""
    seed: bool | None = None
    """Whether the same seed gave the same answer twice. Needed for nothing but repeating a run."""
    logprobs: bool | None = None
    """Whether finite log-probabilities came back with every answer. None where they were not asked for."""
    lacking: tuple[int, int] | None = Field(default=None, exclude_if=lambda lacking: lacking is None)
    """Replies without log-probabilities, and all replies, where some had them and some had not."""
    basis: Basis | None = None
    """The distribution that log-probabilities describe. None if they were not asked for."""
    fingerprint: str | None = None
    """The server's name for its configuration (``system_fingerprint``)."""
    greedy: Fingerprint | None = Field(default=None, exclude_if=lambda greedy: greedy is None)
    """Greedy answers with their log-probabilities, by which other weights are noticed; None without them."""
    cost: Cost = Cost()
    """The cost of the probe."""

    @property
    def degenerate(self) -> bool:
        """Whether samples that had to differ were equal."""
        return not self.failed and self.samples >= 2 and self.distinct == 1

    def problem(self, plan: SamplingPlan) -> tuple[Unmeasured, str] | None:
        """The reason why a plan cannot be measured on this endpoint, or None if it can."""
        if self.failed:
            return Unmeasured.MODEL_FAILED, f"the endpoint could not be probed: {self.failed}"
        if self.silent_at is not None:
            return Unmeasured.MODEL_FAILED, (
                f"the model spent all {self.silent_at} tokens of an answer on thought and said nothing. Give it more "
                "(max_tokens of the plan; calibrate with --max-tokens), or switch its thinking off at the server or "
                "with extra_body"
            )
        if plan.n and self.cached:
            return Unmeasured.DEGENERATE_SAMPLES, (
                "calls at temperature 1 that came after others were answered with one of their answers, four times "
                "in a row: a cache or gateway answers equal requests alike. Every question would look certain. Remove "
                "the cache for this model"
            )
        if plan.n and self.degenerate:
            return Unmeasured.DEGENERATE_SAMPLES, (
                f"{self.samples} samples at temperature 1 of a question with countless answers were equal: the "
                "endpoint ignores the temperature, or a cache answers. Every question would look certain. Fix the "
                "server's sampling settings or remove the cache"
            )
        if plan.logprobs and self.lacking:
            return Unmeasured.NO_LOGPROBS, inconsistent(*self.lacking)
        if plan.logprobs and self.logprobs is False:
            return (
                Unmeasured.NO_LOGPROBS,
                "the endpoint returns no token log-probabilities, or placeholders such as -9999.0",
            )
        if plan.logprobs and self.basis == "scaled":
            return Unmeasured.NO_LOGPROBS, (
                "the endpoint reports log-probabilities after temperature, or 0 for each token, so that tokens always "
                "look certain. Switch the server to raw ones (vLLM: --logprobs-mode raw_logprobs), or use a score "
                "without them"
            )
        if self.temperature is False:
            return Unmeasured.DEGENERATE_SAMPLES, (
                "at temperature 0 some tokens of the answer were not the likeliest that the endpoint lists. Either "
                "it changes the likelihoods before it chooses, with a penalty for repetition, say, or it ignores the "
                'temperature. Switch penalties off in each request: extra_body={"repeat_penalty": 1.0} for '
                'llama-cpp-python (its server has 1.1 otherwise), {"repetition_penalty": 1.0} for others'
            )
        return None

    def lines(self) -> list[str]:
        """The findings in words, one a line."""
        if self.failed:
            return [f"no conclusion: {self.failed}"]
        if self.silent_at is not None:
            return [f"no answer within {self.silent_at} tokens, all spent on thought"]

        def word(observed: bool | None) -> str:
            return {True: "yes", False: "NO", None: "not known"}[observed]

        lines = [
            f"samples that differ: {self.distinct} of {self.samples}",
            *([] if self.cached is None else [f"later calls get earlier answers: {'YES' if self.cached else 'no'}"]),
            # Samples differ if only the greedy answer fails, as with a penalty for repetition.
            f"greedy tokens are the likeliest: {word(False)}"
            if self.temperature is False and self.distinct > 1
            else f"temperature honoured: {word(self.temperature)}",
            f"n honoured: {word(self.n)}" + (" (one call a sample instead)" if self.n is False else ""),
            f"seed honoured: {word(self.seed)}",
        ]
        if self.logprobs is not None:
            basis = f", of the {self.basis} distribution" if self.basis else ""
            lines.append(f"log-probabilities: {word(self.logprobs)}{basis}")
        return lines


def inconsistent(lacking: int, replies: int) -> str:
    """The fault of an endpoint of which some replies had no log-probabilities."""
    return (
        f"inconsistent: {lacking} of {replies} answers came without log-probabilities; a router may have several "
        "providers at this address"
    )


def wants_probe(plan: SamplingPlan) -> bool:
    """Whether a plan relies on anything that a probe can show."""
    return plan.n > 0 or plan.logprobs


def probe_calls(plan: SamplingPlan, seed: int = 1) -> tuple[ProbeCall, ...]:
    """The first calls: two answers at once, another seed, that seed again, and greedy, also to `OTHER_PROMPTS`.

    Args:
        plan: Says whether log-probabilities are asked for, which the answers to other questions are for. A model whose
            primary answer is sampled may take no other temperature than 1, so it is not asked at 0, and it gets room
            for its thoughts.
        seed: The first seed; the other is the next. A fresh one at each probe, or a cache would answer the later ones.
    """
    sampled = plan.primary == "sampled"
    call = ProbeCall(1.0, 1, seed + 1, plan.logprobs, max(MAX_TOKENS, plan.max_tokens) if sampled else MAX_TOKENS)
    greedy = replace(call, seed=seed, temperature=1.0 if sampled else 0.0)
    others = OTHER_PROMPTS if plan.logprobs and not sampled else ()
    return (replace(call, n=2, seed=seed), call, call, greedy, *(replace(greedy, prompt=each) for each in others))


def later_call(calls: Sequence[ProbeCall], number: int = 0) -> ProbeCall:
    """A call to make after the others were answered, when a cache that lets simultaneous requests pass has an entry.

    It is the same request as that of the samples before it, for one answer, with a seed that none of them had.

    Args:
        calls: The calls before it.
        number: 0, and then 1 to 3 for the calls that confirm it.
    """
    return replace(calls[1], seed=max(call.seed for call in calls) + 1 + number)


def repeats(replies: Sequence[ProbeReply], later: ProbeReply) -> bool:
    """Whether a later call repeats the answer of a sample before it, so that other calls must confirm it."""
    # The first three are at temperature 1; the greedy answer may recur honestly.
    return bool(later.texts) and any(later.texts[0] in reply.texts for reply in replies[:3])


def wants_alone(call: ProbeCall, reply: ProbeReply) -> bool:
    """Whether to repeat a call for several answers with n = 1, because the server refused or ignored n.

    Samples of such a server are drawn one by one, so the probe must see that answers to such calls differ. Otherwise a
    cache that tells requests apart by n but not by seed would go unnoticed.
    """
    useless = not (reply.error or reply.unfinished or _honours_n(reply, call.n))
    return call.n > 1 and (reply.rejected or useless)


def longer_calls(calls: Sequence[ProbeCall], replies: Sequence[ProbeReply], plan: SamplingPlan) -> list[ProbeCall]:
    """The calls with the plan's longest answer, if a model spent all its tokens on thought; otherwise none."""
    if not any(reply.unfinished for reply in replies) or plan.max_tokens <= calls[0].max_tokens:
        return []
    return [replace(call, max_tokens=plan.max_tokens) for call in calls]


def conclude(
    calls: Sequence[ProbeCall], replies: Sequence[ProbeReply], later: Sequence[ProbeReply] = (), *, seeded: bool = True
) -> ProbeReport:
    """The report that follows from the replies.

    Samples count as independent where their seeds differ, or where seeds turn out to be ignored. Equal samples are
    degenerate; the chance that honest ones are equal on this question is negligible. A model that cannot follow the
    question may still repeat itself honestly; it is then refused, which errs on the safe side (see ``probe="off"``).

    Args:
        calls: The calls of `probe_calls`.
        replies: One reply a call. A server that does not honour n is asked for one answer instead (`wants_alone`), so
            that it gives one here.
        later: Replies to `later_call`: one, and if it `repeats` a sample, others until one differs, at most
            `LATER_CALLS` in all. An honest model may give one answer again by chance; a cache always does.
        seeded: Whether seeds were sent.
    """
    cost = sum((reply.cost for reply in (*replies, *later)), start=Cost())
    pair, other, again, greedy, *_ = replies
    every = (*replies, *later)
    # A missing reply could have shown a cache, so nothing is concluded from the others.
    if failures := [reply for reply in every if reply.error]:
        some = f"{len(failures)} of {len(every)} calls failed: " if len(failures) < len(every) else ""
        return ProbeReport(failed=f"{some}{failures[0].error}", said=failures[0].said, cost=cost)
    if any(reply.unfinished for reply in every):
        return ProbeReport(silent_at=calls[0].max_tokens, cost=cost)
    seed = other.texts == again.texts if seeded else None
    # A server that honours seeds repeats the second answer on purpose: it is no further sample.
    drawn = [*pair.texts, *other.texts, *(again.texts if not seed else ())]
    distinct = len(set(drawn))
    lacking = sum(reply.logprobs is None for reply in replies) if calls[0].logprobs else 0
    logprobs = not lacking if calls[0].logprobs else None
    return ProbeReport(
        samples=len(drawn),
        distinct=distinct,
        cached=_cached(replies, later) if later else None,
        n=_honours_n(pair, calls[0].n) if calls[0].n > 1 else None,
        temperature=_honours_temperature(distinct, greedy),
        # Where all answers are equal, equal ones for one seed show nothing.
        seed=None if distinct == 1 else seed,
        logprobs=logprobs,
        lacking=(lacking, len(replies)) if 0 < lacking < len(replies) else None,
        basis=(_basis(greedy, [pair, other, again]) if calls[3].temperature == 0 else "unknown") if logprobs else None,
        fingerprint=next((reply.fingerprint for reply in replies if reply.fingerprint), None),
        greedy=tuple(tuple(zip(each.tokens, each.logprobs or (), strict=True)) for each in replies[3:])
        if logprobs and calls[3].temperature == 0 and greedy.tokens
        else None,
        cost=cost,
    )


def unlike(before: Fingerprint, now: Fingerprint) -> str:
    """The difference of two fingerprints that noise does not explain, in words; "" without one.

    Compared are the log-probabilities of the tokens up to the first that differs, since later ones follow another text:
    the mean over all answers of how far the two lie apart, in nats. Of the token that differs this is the least
    difference that explains it: where one of two tokens had the probability p, the other one had at most 1 - p.

    Measured on SmolLM2-135M: the same weights in bfloat16, alone and in batches of 2 to 16, or in float32, differ by at
    most .03, and in every batch a near tie gave another token. Weights rounded to 8 bits differ by .03 to .05, which
    cannot be told from that; to 6 bits by .06, to 5 by .17, to 4 by .27, to 3 by 1.0.
    """
    apart = [difference for old, new in zip(before, now, strict=False) for difference in _apart(old, new)]
    mean = sum(apart) / max(1, len(apart))
    return f"log-probabilities of greedy answers differ by {mean:.2f} on average" if mean > NOISE else ""


def _apart(before: Sequence[tuple[str, float]], now: Sequence[tuple[str, float]]) -> Iterator[float]:
    """The differences of two greedy answers to one question, see `unlike`."""
    for (old, was), (new, value) in zip(before, now, strict=False):
        if old != new:
            yield max(abs(value - was), value - _rest(was), was - _rest(value))
            return
        yield abs(value - was)


def _rest(value: float) -> float:
    """The log-probability of all other tokens together."""
    return math.log(max(-math.expm1(value), 1e-9))


def _cached(replies: Sequence[ProbeReply], later: Sequence[ProbeReply]) -> bool:
    return len(later) == LATER_CALLS and repeats(replies, later[0]) and len({reply.texts for reply in later}) == 1


def _honours_n(pair: ProbeReply, n: int) -> bool:
    return len(pair.texts) == n and len(set(pair.texts)) == n


def _honours_temperature(distinct: int, greedy: ProbeReply) -> bool | None:
    if distinct == 1 or greedy.argmax is False:
        return False
    return True if greedy.argmax else None


def _basis(greedy: ProbeReply, sampled: Sequence[ProbeReply]) -> Basis:
    """Compare the greedy first token's log-probability with what the calls at temperature 1 say of the same token."""
    assert greedy.logprobs is not None
    if not greedy.logprobs or not greedy.tokens:
        return "unknown"
    # Two different answers cannot both be certain: the server scales first, or writes 0 for "not computed".
    if len({reply.texts[0] for reply in sampled if reply.logprobs and min(reply.logprobs) > CERTAIN}) > 1:
        return "scaled"
    reported = greedy.logprobs[0]
    for reply in sampled:
        values = [value for token, value in reply.first if token == greedy.tokens[0]]
        # A certain token has the same log-probability before and after temperature, and tells nothing.
        if len(values) == 1 and values[0] < CERTAIN:
            return "raw" if abs(values[0] - reported) <= TOLERANCE else "scaled"
    # Greedy tokens that are all certain on a question with countless answers: only after a temperature of 0.
    if len(greedy.logprobs) >= 8 and min(greedy.logprobs) > CERTAIN:
        return "scaled"
    return "unknown"
