"""Further questions asked about what was drawn: is it true, how sure are you, does this sample support it?

A follow-up has a name, its own plan and the messages it asks, built from the prompt and the drawn set. The plan's
``follow_ups`` names those to ask; `guardrail.sampling.draw` asks them after drawing and stores the replies in the set,
so that they are part of the calibration records and are asked alike at run time. A follow-up that fails leaves its
reason in its reply: only the estimator that reads it is unmeasured.

No I/O here: `guardrail.sampling.sampler` draws the replies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from ..errors import UsageError
from ..prompting import question_text
from ..types import Cost, Missing, SampleSet, SamplingPlan, Unmeasured
from .effects import Steps

__all__ = [
    "P_TRUE",
    "SELFCHECK_PROMPT",
    "TRUE_LABEL",
    "VERBALISED",
    "FollowUp",
    "Round",
    "ask_follow_ups",
    "available",
    "follow_up",
    "rounds",
    "sentences",
    "support_question",
    "support_questions",
]

P_TRUE = "p_true"
"""Name of the follow-up that reads off how likely the model takes its answer to be true."""
TRUE_LABEL = "A"
"""The option that stands for "true"."""
VERBALISED = "verbalised"
"""Name of the follow-up that asks the model for its confidence."""


SELFCHECK_PROMPT = "selfcheck_prompt"
"""Name of the follow-up that asks whether a sample supports a sentence."""
MAX_QUESTIONS = 200
"""Most such questions for one answer; a longer answer is unmeasured."""
Messages = Sequence[BaseMessage]
_REPLY_TOKENS = 16
"""Longest reply to a question that wants one word or number."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A further question.

    Attributes:
        name: What `SamplingPlan.follow_ups` lists. Another wording needs another name (``p_true@2``), so that replies
            to the old one in a record file are never taken for replies to the new one.
        ask: Messages to send, for a prompt and what was drawn for it; none when there is nothing to ask about.
        options: Labels whose likelihood is read, or None for a short greedy reply.
    """

    name: str
    ask: Callable[[Messages, SampleSet], list[list[BaseMessage]]]
    options: tuple[str, ...] | None = None

    def plan(self, plan: SamplingPlan) -> SamplingPlan:
        """How it is asked: once, like the primary answer, or by reading its options."""
        own: dict[str, Any] = {"n": 0, "max_tokens": _REPLY_TOKENS, "options": self.options, "seed": plan.seed}
        if plan.primary == "sampled":
            own |= {"primary": "sampled", "temperature": plan.temperature, "top_p": plan.top_p}
        return SamplingPlan(**own)


def _p_true(prompt: Messages, drawn: SampleSet) -> list[list[BaseMessage]]:
    """Everything before the last human message, and in its place the question with ideas and the proposed answer."""
    assert drawn.primary is not None
    lines = [f"Question: {drawn.question}"]
    if drawn.samples:
        lines += ["Here are some brainstormed ideas:", *(sample.comparable for sample in drawn.samples)]
    lines += [
        f"Possible answer: {drawn.primary.comparable}",
        "Is the possible answer:\n(A) True\n(B) False",
        "Reply with the letter only. The possible answer is:",
    ]
    return [[*_before(prompt), HumanMessage("\n".join(lines))]]


def _verbalised(prompt: Messages, drawn: SampleSet) -> list[list[BaseMessage]]:
    """The conversation goes on: the answer, and a question about it."""
    assert drawn.primary is not None
    asked = HumanMessage(
        "How likely is it that your answer above is correct? Reply with a number from 0 (certainly wrong) to 100 "
        "(certainly correct) and nothing else."
    )
    return [[*prompt, AIMessage(drawn.primary.comparable), asked]]


def _selfcheck(prompt: Messages, drawn: SampleSet) -> list[list[BaseMessage]]:
    """One question for each sentence and each distinct sample."""
    asked = support_questions(drawn)
    return [] if isinstance(asked, Missing) else [[HumanMessage(text)] for text in dict.fromkeys(asked)]


def _before(prompt: Messages) -> list[BaseMessage]:
    """What precedes the message that is the question."""
    last = max((i for i, message in enumerate(prompt) if isinstance(message, HumanMessage)), default=len(prompt) - 1)
    return list(prompt[:last])


_FOLLOW_UPS = {
    known.name: known
    for known in (
        FollowUp(P_TRUE, _p_true, options=(TRUE_LABEL, "B")),
        FollowUp(SELFCHECK_PROMPT, _selfcheck),
        FollowUp(VERBALISED, _verbalised),
    )
}


def available() -> tuple[str, ...]:
    """Names of the follow-ups, sorted."""
    return tuple(sorted(_FOLLOW_UPS))


def follow_up(name: str) -> FollowUp:
    """A follow-up by name.

    Raises:
        UsageError: Unknown name.
    """
    if name not in _FOLLOW_UPS:
        raise UsageError(f"no follow-up named {name!r}; choose one of {', '.join(available())}")
    return _FOLLOW_UPS[name]


@dataclass(frozen=True, slots=True)
class Round:
    """One follow-up put to many drawn sets at once.

    Attributes:
        name: The follow-up.
        plan: How to ask.
        places: For each prompt, which set it asks about.
        prompts: What to ask.
    """

    name: str
    plan: SamplingPlan
    places: tuple[int, ...]
    prompts: tuple[list[BaseMessage], ...]


def rounds(prompts: Sequence[Messages], drawn: Sequence[SampleSet], plan: SamplingPlan) -> list[Round]:
    """What to ask after drawing: one round for each follow-up of the plan, over all sets that can be asked about.

    A set with a problem, a refusal or without an answer is not asked about: it is unmeasured anyway.

    Raises:
        UsageError: The plan names an unknown follow-up.
    """
    found = []
    for name in plan.follow_ups:
        known = follow_up(name)
        asked = [
            (place, messages)
            for place, (prompt, one) in enumerate(zip(prompts, drawn, strict=True))
            if _has_answer(one)
            for messages in known.ask(prompt, one)
        ]
        places, texts = tuple(place for place, _ in asked), tuple(messages for _, messages in asked)
        found.append(Round(name, known.plan(plan), places, texts))
    return found


def _has_answer(drawn: SampleSet) -> bool:
    primary = drawn.primary
    if drawn.problem is not None or primary is None or primary.refusal:
        return False
    return bool(primary.comparable)


def ask_follow_ups(
    prompts: Sequence[Messages],
    drawn: list[SampleSet],
    plan: SamplingPlan,
    ask: Callable[[Round], Steps[list[SampleSet]]],
) -> Steps[list[SampleSet]]:
    """The sets with the replies to the plan's follow-ups, and their cost added.

    Args:
        prompts: What the sets were drawn for.
        drawn: The sets.
        plan: Names the follow-ups.
        ask: Draws the replies of one round; a `UsageError` says that this model cannot be asked.

    Raises:
        UsageError: The plan names an unknown follow-up.
    """
    for asked in rounds(prompts, drawn, plan):
        try:
            replies = yield from ask(asked)
        except UsageError as error:
            reason = Unmeasured.MODEL_FAILED if asked.plan.options is None else Unmeasured.NO_OPTIONS
            replies = [
                SampleSet(question=question_text(messages), primary=None, problem=reason, problem_detail=str(error))
                for messages in asked.prompts
            ]
        drawn = _attached(drawn, asked, replies)
    return drawn


def _attached(drawn: Iterable[SampleSet], asked: Round, replies: Sequence[SampleSet]) -> list[SampleSet]:
    """The sets with the replies to one follow-up, and their cost added."""
    by_place: dict[int, list[SampleSet]] = {}
    for place, reply in zip(asked.places, replies, strict=True):
        by_place.setdefault(place, []).append(reply)
    found = []
    for place, one in enumerate(drawn):
        own = by_place.get(place, [])
        if own:
            cost = sum((reply.cost for reply in own), start=one.cost)
            # Replies come side by side: the slowest counts, not the sum.
            cost = Cost(
                calls=cost.calls,
                input_tokens=cost.input_tokens,
                output_tokens=cost.output_tokens,
                seconds=one.cost.seconds + max(reply.cost.seconds for reply in own),
            )
            one = one.model_copy(update={"follow_ups": {**one.follow_ups, asked.name: tuple(own)}, "cost": cost})
        found.append(one)
    return found


def support_questions(drawn: SampleSet) -> list[str] | Missing:
    """What to ask for `selfcheck_prompt`: one text for each sentence of the primary answer and each sample.

    Texts of equal samples are equal; they are asked once.
    """
    if drawn.primary is None or not drawn.samples:
        return Missing(Unmeasured.SAMPLING_SHORTFALL, "there is no primary answer or no sample")
    parts = sentences(drawn.primary.comparable)
    if not parts:
        return Missing(Unmeasured.EMPTY_ANSWER, "the primary answer is empty")
    found = [support_question(drawn.question, part, sample.comparable) for part in parts for sample in drawn.samples]
    if len(set(found)) > MAX_QUESTIONS:
        return Missing(
            Unmeasured.JUDGE_FAILED,
            f"{len(parts)} sentences and {len(drawn.samples)} samples are more than {MAX_QUESTIONS} questions",
        )
    return found


def support_question(question: str, sentence: str, sample: str) -> str:
    """The question whether a sample supports a sentence. Another wording is another follow-up version."""
    return (
        f"Question: {question}\n\nContext (an answer to the question): {sample}\n\nSentence: {sentence}\n\n"
        "Is the sentence supported by the context above? Answer Yes or No and nothing else."
    )


# A mark, closing quotes or brackets, then white space; CJK marks need none.
_END = re.compile(r"(?:[.!?\u2026]+[\"'\u201d\u2019)\]]*(?=\s)|[\u3002\uff01\uff1f]+[\u300d\u300f\uff09\"]*)\s*|\n\s*")
_NO_END = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|cf|Fig|approx|ca|(?:[A-Za-z]\.)+[A-Za-z])\.$"
)


def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, in order; a text without an end mark is one sentence, an empty one none.

    Rules, no model: a sentence ends at . ! ? or an ellipsis followed by white space, at a CJK full stop, and at a line
    break. Initials ("J. Smith", "U.S.") and a few abbreviations end none. SelfCheckGPT uses spaCy instead.
    """
    found, start = [], 0
    for match in _END.finditer(text):
        if _NO_END.search(text[start : match.end()].rstrip(" \t")) and "\n" not in match[0]:
            continue
        found.append(text[start : match.end()])
        start = match.end()
    found.append(text[start:])
    return tuple(part.strip() for part in found if part.strip())
