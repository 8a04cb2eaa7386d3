"""Follow-ups: questions to the model about what was drawn, which an estimator declares in its needs.

A follow-up has a name, its own plan and the messages it asks, built from the prompt and the drawn set. The plan's
``follow_ups`` lists the names to ask; `Sampler.draw` asks them after drawing and stores the replies in the
set, so calibration records hold them, and run time asks in the same way. A follow-up that fails leaves its reason in
its reply: only the estimator that reads it is unmeasured.

Names that begin with ``score:`` are scorers (`guardrail.uncertainty.scorer`), which rate the answer in the model's
place.

No I/O here: `guardrail.sampling.sampler` draws the replies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from langchain_core.messages import BaseMessage

from ..errors import UsageError
from ..plain_json import sha256_hex
from ..prompting import PromptWrapping, question_text
from ..types import Missing, Sample, SampleSet, SamplingPlan, Unmeasured
from .draws import NOTHING, Draw
from .effects import Steps
from .limits import DEFAULT_CONCURRENCY

Messages = Sequence[BaseMessage]
_REPLY_TOKENS = 16
"""Longest reply to a question that wants one word or number."""
SCORE = "score:"
"""Prefix of the names that stand for scorers."""


def scorer_of(plan: SamplingPlan) -> str | None:
    """The name of the scorer that a plan asks, which a guard must be given; None if it asks none."""
    return next((name for name in plan.follow_ups if name.startswith(SCORE)), None)


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A further question.

    Attributes:
        name: The name in `SamplingPlan.follow_ups`. Another wording needs another name (``p_true@2``), so that replies
            to the old one in a record file are never taken for replies to the new one.
        ask: Messages to send, for a prompt and the set drawn for it; empty if the set gives no question.
        options: Labels whose likelihood is read, or None for a short greedy reply.
    """

    name: str
    ask: Callable[[Messages, SampleSet], list[list[BaseMessage]]]
    options: tuple[str, ...] | None = None

    def plan(self, plan: SamplingPlan) -> SamplingPlan:
        """The plan of asking it: one short reply, drawn like the primary answer, or the likelihood of its options."""
        settings: dict[str, Any] = {"n": 0, "max_tokens": _REPLY_TOKENS, "options": self.options, "seed": plan.seed}
        settings["cut_off"] = "measure"  # a short reply that says more than was asked is cut
        if plan.primary == "sampled":
            settings |= {"primary": "sampled", "temperature": plan.temperature, "top_p": plan.top_p}
        return SamplingPlan(**settings)

    def reply(self, drawn: SampleSet) -> SampleSet:
        """The reply in a drawn set, for a follow-up that asks one question.

        Raises:
            Missing: No follow-up was stored.
        """
        replies = drawn.follow_ups.get(self.name, ())
        if len(replies) != 1:
            raise Missing(Unmeasured.SAMPLING_SHORTFALL, f"{self.name} was not asked, or has {len(replies)} replies")
        if replies[0].problem is not None:
            raise Missing(replies[0].problem, f"{self.name}: {replies[0].problem_detail}")
        return replies[0]


FOLLOW_UPS: dict[str, FollowUp] = {}
"""Every follow-up by name: those that estimators declare, which `uncertainty.registry` adds."""


def _has_answer(drawn: SampleSet) -> bool:
    primary = drawn.primary
    if drawn.problem is not None or primary is None or primary.refusal:
        return False
    return bool(primary.comparable)


def ask_follow_ups(
    prompts: Sequence[Messages],
    drawn: list[SampleSet],
    plan: SamplingPlan,
    ask: Callable[[str, SamplingPlan, Sequence[Messages]], Steps[list[SampleSet]]],
) -> Steps[list[SampleSet]]:
    """The sets with the replies to the plan's follow-ups, and their cost added.

    A set with a problem, a refusal or without an answer is skipped: it is unmeasured anyway.

    Args:
        prompts: The prompts that the sets were drawn for.
        drawn: The sets.
        plan: The plan, which names the follow-ups.
        ask: Draws the replies to the prompts of one follow-up, by its name and plan; a `UsageError` says that this
            model cannot be asked.

    Raises:
        UsageError: The plan names an unknown follow-up.
    """
    for name in plan.follow_ups:
        if name.startswith(SCORE):
            continue  # scorers are asked elsewhere
        if name not in FOLLOW_UPS:
            raise UsageError(f"no follow-up named {name!r}; choose one of {', '.join(sorted(FOLLOW_UPS))}")
        asking, plan_of_replies = FOLLOW_UPS[name], FOLLOW_UPS[name].plan(plan)
        sets = enumerate(zip(prompts, drawn, strict=True))
        asked = [(index, each) for index, of in sets if _has_answer(of[1]) for each in asking.ask(*of)]
        try:
            replies = yield from ask(name, plan_of_replies, [messages for _, messages in asked])
        except UsageError as error:
            reason = Unmeasured.MODEL_FAILED if plan_of_replies.options is None else Unmeasured.NO_OPTIONS
            replies = [
                SampleSet(question=question_text(messages), primary=None, problem=reason, problem_detail=str(error))
                for _, messages in asked
            ]
        drawn = _attached(drawn, name, [index for index, _ in asked], replies)
    return drawn


@runtime_checkable
class AnswerScorer(Protocol):
    """Rates answers; see `guardrail.uncertainty.scorer`."""

    @property
    def follow_up(self) -> str:
        """Name in plans."""
        ...

    def reply_steps(
        self, messages: Sequence[BaseMessage], drawn: SampleSet, prompt: PromptWrapping | None
    ) -> Steps[SampleSet]:
        """The reply about a set with an answer: a number as text, or the reason why it is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scorers of a plan, and how they are asked.

    Attributes:
        scorers: Scorers by their name in plans.
        prompt: The wrapping of the prompts, which says what their question and slots are.
        concerns: Names of the scorers that may be asked about an answer; None for all.
    """

    scorers: Mapping[str, AnswerScorer]
    prompt: PromptWrapping | None = None
    concerns: Callable[[Sample], Collection[str]] | None = None

    @classmethod
    def of(cls, scorers: Iterable[AnswerScorer | None], prompt: PromptWrapping | None) -> Scoring:
        """Scoring with the scorers that are not None."""
        return cls({each.follow_up: each for each in scorers if each is not None}, prompt)

    def check(self, plan: SamplingPlan) -> list[str]:
        """The names of the plan's scorers.

        Raises:
            UsageError: The plan names a scorer that was not given.
        """
        names = [name for name in plan.follow_ups if name.startswith(SCORE)]
        missing = [name for name in names if name not in self.scorers]
        if missing:
            raise UsageError(f"the plan asks the scorer {missing[0]}, which was not given. Pass it as scorer=.")
        return names

    def ask(
        self,
        prompts: Sequence[Messages],
        drawn: list[SampleSet],
        plan: SamplingPlan,
        most: int | None,
        memory: Draw = NOTHING,
    ) -> Steps[list[SampleSet]]:
        """The sets with the replies of the plan's scorers, and their cost added; ``most`` answers are rated at once.

        A reply that ``memory`` holds is not asked for again.

        Raises:
            UsageError: The plan names a scorer that was not given.
        """
        for name in self.check(plan):
            scorer = self.scorers[name]
            places = [index for index, each in enumerate(drawn) if self._asks(name, each)]

            def rate(index: int, scorer: AnswerScorer = scorer, drawn: list[SampleSet] = drawn) -> Steps[SampleSet]:
                answer = drawn[index].primary
                assert answer is not None, "only sets with an answer are rated"
                piece = f"{scorer.follow_up}:{sha256_hex(answer.comparable.encode(), 16)}"
                remembered = yield from memory.piece(piece)
                if remembered is not None:
                    return remembered
                reply = yield from scorer.reply_steps(prompts[index], drawn[index], self.prompt)
                return (yield from memory.note(piece, reply))

            from .calls import at_once  # slow to import, and estimators only name follow-ups

            replies = yield at_once(rate, places, most or DEFAULT_CONCURRENCY)
            drawn = _attached(drawn, name, places, replies)
        return drawn

    def _asks(self, name: str, drawn: SampleSet) -> bool:
        if not _has_answer(drawn) or drawn.primary is None:
            return False
        return self.concerns is None or name in self.concerns(drawn.primary)


NO_SCORERS = Scoring({})


def _attached(
    drawn: Iterable[SampleSet], name: str, places: Sequence[int], replies: Sequence[SampleSet]
) -> list[SampleSet]:
    """The sets with the replies to one follow-up about the sets at ``places``, and their cost added."""
    by_place: dict[int, list[SampleSet]] = {}
    for index, reply in zip(places, replies, strict=True):
        by_place.setdefault(index, []).append(reply)
    attached = []
    for index, sample_set in enumerate(drawn):
        own_replies = by_place.get(index, [])
        if own_replies:
            cost = sum((reply.cost for reply in own_replies), start=sample_set.cost)
            # Replies are drawn at the same time: the slowest counts, not the sum.
            seconds = sample_set.cost.seconds + max(reply.cost.seconds for reply in own_replies)
            cost = cost.model_copy(update={"seconds": seconds})
            replied = {**sample_set.follow_ups, name: tuple(own_replies)}
            sample_set = sample_set.model_copy(update={"follow_ups": replied, "cost": cost})
        attached.append(sample_set)
    return attached
