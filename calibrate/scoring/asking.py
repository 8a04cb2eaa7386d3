"""Ask scorers about answers on file, exactly as a guard asks them about fresh ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from langchain_core.messages import BaseMessage, HumanMessage

from guardrail.errors import UsageError
from guardrail.prompting import turns_of
from guardrail.sampling.effects import run
from guardrail.sampling.follow_ups import Scoring
from guardrail.types import SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import Estimator, Scorer
from guardrail.uncertainty.combine import expanded

from ..data.records import Record, RecordHeader

__all__ = ["ask_scorers", "plan_with", "scorers_of"]

AT_ONCE = 64
"""Records whose answers are rated at once."""


def scorers_of(estimators: Sequence[Estimator]) -> list[Scorer]:
    """The scorers of estimators and of parts of combinations, each once."""
    scorers = [each.scorer for each in expanded(estimators)]
    return list({each.follow_up: each for each in scorers if isinstance(each, Scorer)}.values())


def plan_with(plan: SamplingPlan, scorers: Sequence[Scorer]) -> SamplingPlan:
    """The plan that names the scorers, too."""
    names = {*plan.follow_ups, *(each.follow_up for each in scorers)}
    return plan.model_copy(update={"follow_ups": tuple(sorted(names))})


def ask_scorers(records: Iterable[Record], scorers: Sequence[Scorer], header: RecordHeader) -> Iterator[Record]:
    """The records with each scorer's reply, in order; a scorer rates an answer once.

    A reply on file stays, unless the transport failed then, or another scorer of the same name and version gave it.

    Args:
        records: The records, with their answers.
        scorers: Rate the answers.
        header: Header of the record file: its prompt makes the messages again.
    """
    rest = iter(records)
    while batch := list(islice(rest, AT_ONCE)):
        for scorer in scorers:
            places = [place for place, record in enumerate(batch) if _unrated(record, scorer)]
            rated = _rated([batch[place] for place in places], scorer, header)
            for place, drawn in zip(places, rated, strict=True):
                batch[place] = batch[place].model_copy(update={"drawn": drawn})
        yield from batch


def _unrated(record: Record, scorer: Scorer) -> bool:
    if record.drawn is None:
        return False
    replies = record.drawn.follow_ups.get(scorer.follow_up, ())
    return not any(
        reply.question == scorer.digest and (reply.problem is None or reply.problem.depends_on_question)
        for reply in replies
    )


def _rated(records: Sequence[Record], scorer: Scorer, header: RecordHeader) -> list[SampleSet]:
    """The sample sets with the replies of one scorer."""
    prompts = [_messages(record, header) for record in records]
    drawn = [record.drawn for record in records if record.drawn is not None]
    plan = plan_with(SamplingPlan(n=0), [scorer])
    if {"messages", "slots"} & set(scorer.reads):
        lost = [place for place, prompt in enumerate(prompts) if prompt is None]
        reply = SampleSet(
            question=scorer.digest,
            primary=None,
            problem=Unmeasured.NOT_RECORDED,
            problem_detail="the record does not have the messages that were sent",
        )
        for place in lost:
            own = {**drawn[place].follow_ups, scorer.follow_up: (reply,)}
            drawn[place] = drawn[place].model_copy(update={"follow_ups": own})
    else:
        lost = []
    ratable = [place for place in range(len(drawn)) if place not in set(lost)]
    scoring = Scoring.of([scorer], header.prompt)
    asked = [prompts[place] or [HumanMessage(drawn[place].question)] for place in ratable]
    for place, rated in zip(ratable, run(scoring.ask(asked, [drawn[i] for i in ratable], plan, None)), strict=True):
        drawn[place] = rated
    return drawn


def _messages(record: Record, header: RecordHeader) -> list[BaseMessage] | None:
    """The prompt of a record; None if it cannot be made again."""
    try:
        messages = record.messages_in(header.prompt)
    except UsageError:  # a record without the texts of the slots
        return None
    same = record.turns is None or turns_of(messages, header.plan.bindings) == record.turns
    return messages if same else None
