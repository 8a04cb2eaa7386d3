"""Compute the scores of record files: what the plan drew is measured, and scorers are asked about answers on file."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from langchain_core.messages import BaseMessage, HumanMessage

from guardrail.errors import UsageError
from guardrail.judges.cache import PairCache, cached
from guardrail.prompting import turns_of
from guardrail.sampling import follow_ups
from guardrail.sampling.effects import run
from guardrail.types import SampleSet, SamplingPlan, Uncertainty, Unmeasured
from guardrail.uncertainty import (
    Estimator,
    EstimatorSpec,
    Scorer,
    list_estimators,
    make_estimator,
    measure_stream,
    unmet_needs,
)
from guardrail.uncertainty.combine import Ranks, needs_ranks, with_ranks
from guardrail.uncertainty.plan import check_arguments

from ..data.progress import Progress, silent
from ..data.records import Record, RecordFile, RecordHeader, RecordReader, stream_records
from .apart import ranks_from
from .names import estimator_key

__all__ = ["Score", "ScoreSummary", "ScoringEngine", "lacking", "score_file", "score_records", "supported"]
__all__ += ["uses_models", "with_cache"]

AT_ONCE = 64
"""Records whose answers a scorer rates at once."""


def supported(plan: SamplingPlan) -> list[Estimator]:
    """Every estimator that can be computed from what the plan draws, with the plan's default judge."""
    estimators = (make_estimator(name, bindings=plan.bindings) for name in list_estimators())
    return [estimator for estimator in estimators if lacking(estimator, plan) is None]


def lacking(estimator: Estimator, plan: SamplingPlan) -> str | None:
    """The first of `unmet_needs`, in words; None if the plan draws all that the estimator reads."""
    unmet = unmet_needs(estimator, plan)
    return ": ".join(unmet[0]) if unmet else None


def uses_models(estimators: Iterable[Estimator]) -> bool:
    """Return whether any of them asks a judge that takes longer than looking a verdict up."""
    return any(estimator.is_slow for estimator in estimators)


def with_cache(estimator: Estimator, cache: PairCache) -> Estimator:
    """The estimator with its models' verdicts kept in a cache; its spec stays the same."""
    members = tuple(with_cache(member, cache) for member in estimator.members)
    models = {role: cached(model, cache) for role, model in estimator.slow_models.items()}
    return replace(estimator, members=members, **models)


class ScoreSummary:
    """Each estimator's scores and the reasons for missing ones, gathered while records go by: 8 bytes a score.

    Attributes:
        n_records: Records so far.
    """

    def __init__(self) -> None:
        self.n_records = 0
        self._values: dict[str, array[float]] = {}
        self._reasons: dict[str, Counter[str]] = {}

    def add(self, scores: Mapping[str, Uncertainty]) -> None:
        """Take a record's scores by estimator key into account."""
        self.n_records += 1
        for key, score in scores.items():
            if score.value is not None:
                self._values.setdefault(key, array("d")).append(score.value)
            elif score.reason is not None:
                self._reasons.setdefault(key, Counter())[score.reason.value] += 1

    def of(self, key: str) -> tuple[list[float], Counter[str]]:
        """Measured scores of an estimator, ascending, and how often each reason for a missing one occurred."""
        return sorted(self._values.get(key, ())), self._reasons.get(key, Counter())


def score_records(
    file: RecordFile,
    estimators: Sequence[Estimator],
    *,
    ranks: RecordFile | str | Path | None = None,
    progress: Progress = silent,
) -> RecordFile:
    """Measure every record with every estimator; what cannot be measured says why. Older scores are kept.

    All records share their judging passes (`guardrail.uncertainty.measure_stream`). For a file that need not fit in
    memory see `score_file`.

    Args:
        file: The records.
        estimators: What to compute.
        ranks: Records whose scores `then` and `rank_mean` rank others by; default: some of the file's own questions.
        progress: Reports records done.

    Returns:
        The file with scores, in memory.

    Raises:
        UsageError: No estimator.
    """
    header, score = _scoring(file.header, estimators, _ranks(estimators, file if ranks is None else ranks))
    scored = []
    for record in score(file.records):
        scored.append(record)
        progress(len(scored), len(file.records))
    return RecordFile(file.path, header, tuple(scored))


def score_file(
    source: str | Path,
    target: str | Path,
    estimators: Callable[[SamplingPlan], Sequence[Estimator]],
    *,
    engine: ScoringEngine | None = None,
    ranks: str | Path | None = None,
    progress: Progress = silent,
) -> tuple[RecordHeader, ScoreSummary]:
    """`score_records` from file to file, a few records at a time: memory does not grow with the records.

    The target (which may be the source) is replaced at the end, atomically.

    Args:
        source: Record file.
        target: Record file to write.
        estimators: From the file's plan to what to compute.
        engine: Scores in other processes, e.g. `calibrate.ray_engine.score_on_ray`.
        ranks: As for `score_records`.
        progress: Reports records done, of the questions of the file.

    Returns:
        The header written, and a summary of the scores.

    Raises:
        UsageError: No estimator, a missing file, or another process is writing the target.
        RecordError: A malformed line. The target stays unchanged.
    """
    summary = ScoreSummary()
    written: list[RecordHeader] = []

    def change(reader: RecordReader) -> tuple[RecordHeader, Iterator[Record]]:
        header, chosen = reader.header, estimators(reader.header.plan)
        own = _ranks(chosen, source if ranks is None else ranks)
        target_header, score = _scoring(header, chosen, own)
        written.append(target_header)

        def make() -> Score:  # another process makes its own models
            return _scoring(header, estimators(header.plan), own)[1]

        scored = engine(reader, make, uses_models(chosen)) if engine else score(reader)
        # A file may hold more records than its header counts, and progress past its total would mislead.
        return target_header, summarised(scored, header.n_questions)

    def summarised(records: Iterable[Record], total: int) -> Iterator[Record]:
        for record in records:
            summary.add(record.scores)
            if summary.n_records % 20 == 0:
                progress(summary.n_records, max(summary.n_records, total))
            yield record

    stream_records(source, target, change)
    progress(summary.n_records, summary.n_records)
    return written[0], summary


Score = Callable[[Iterable[Record]], Iterator[Record]]
"""Gives records their scores, in order."""
ScoringEngine = Callable[[RecordReader, Callable[[], Score], bool], Iterator[Record]]
"""Scores in other processes, which make the `Score` themselves: the records of a file with scores, in order. The last
argument is whether it asks models."""


def _scoring(
    header: RecordHeader, estimators: Sequence[Estimator], ranks: Mapping[str, Ranks]
) -> tuple[RecordHeader, Score]:
    """The header of the scored file, and what gives its records their scores; with the ranks of combinations by key."""
    ranked = [with_ranks(each, ranks[estimator_key(each)]) if needs_ranks(each) else each for each in estimators]
    scored = _scored_header(header, ranked)
    return scored, partial(_scored, estimators=ranked, header=scored)


def _ranks(estimators: Iterable[Estimator], source: RecordFile | str | Path) -> dict[str, Ranks]:
    """The ranks of the combinations that have none yet, by key."""
    keys = {estimator_key(estimator): estimator for estimator in estimators if needs_ranks(estimator)}
    return {key: ranks_from(source, estimator, key) for key, estimator in keys.items()}


def _scored_header(header: RecordHeader, estimators: Sequence[Estimator]) -> RecordHeader:
    if not estimators:
        raise UsageError(
            "nothing to score with: the file has one answer a question and no samples, so nothing can be "
            "compared. Draw samples (calibrate collect), import columns that hold more (calibrate import --map "
            "samples=COLUMN,COLUMN), or a confidence of your own, which is fitted without this step (--map "
            "confidence=NAME:COLUMN)."
        )
    check_arguments(estimators, header.plan.bindings)
    specs: dict[str, EstimatorSpec] = {}
    for estimator in estimators:
        key = estimator_key(estimator)
        if specs.setdefault(key, estimator.spec) != estimator.spec:
            raise UsageError(
                f"two scores have the key {key!r}: one would take the other's scores. Score them into two files."
            )
    drawn_by = header.scope.score
    # The cut was taken on the old scores: new ones by the same key could lie on either side of it.
    if drawn_by in specs and header.estimators.get(drawn_by) != specs[drawn_by]:
        raise UsageError(
            f"the questions of this file were drawn by their {drawn_by!r} scores, and other scores by that name would "
            "make its cut meaningless. Score the file they were drawn from, and draw again with `calibrate sample`."
        )
    asked = {scorer.follow_up for scorer in _scorers_of(estimators)}
    plan = header.plan.model_copy(update={"follow_ups": tuple(sorted(asked.union(header.plan.follow_ups)))})
    return header.model_copy(update={"plan": plan, "estimators": {**header.estimators, **specs}})


def _scored(records: Iterable[Record], estimators: Sequence[Estimator], header: RecordHeader) -> Iterator[Record]:
    """The records with scores, in order. Reads ahead as far as one judging pass does."""
    keys = [estimator_key(estimator) for estimator in estimators]
    if scorers := _scorers_of(estimators):
        records = _ask_scorers(records, scorers, header)
    ahead: deque[Record] = deque()

    def drawn() -> Iterator[SampleSet]:
        for record in records:
            ahead.append(record)
            if record.drawn is not None:
                yield record.drawn

    for values in measure_stream(drawn(), estimators, header.plan):
        while ahead[0].drawn is None:  # imported with scores only
            yield ahead.popleft()
        record = ahead.popleft()
        scores: Mapping[str, Uncertainty] = {**record.scores, **dict(zip(keys, values, strict=True))}
        yield record.model_copy(update={"scores": scores})
    yield from ahead


# -- Scorers: asked about answers on file exactly as a guard asks them about fresh ones --------------------------------


def _scorers_of(estimators: Sequence[Estimator]) -> list[Scorer]:
    """The scorers of estimators and of parts of combinations, each once."""
    scorers = {each.follow_up: each for estimator in estimators for each in estimator.scorers}
    return [each for each in scorers.values() if isinstance(each, Scorer)]


def _ask_scorers(records: Iterable[Record], scorers: Sequence[Scorer], header: RecordHeader) -> Iterator[Record]:
    """The records with each scorer's reply, in order; a scorer rates an answer once."""
    rest = iter(records)
    while batch := list(islice(rest, AT_ONCE)):
        for scorer in scorers:
            batch = _rated(batch, scorer, header)
        yield from batch


def _rated(batch: Sequence[Record], scorer: Scorer, header: RecordHeader) -> list[Record]:
    """Records with the reply of one scorer.

    A reply on file stays, unless the transport failed then, or another scorer of the same name and version gave it.
    """
    sets = {place: record.drawn for place, record in enumerate(batch) if record.drawn is not None}
    prompts: dict[int, list[BaseMessage]] = {}
    for place, drawn in sets.items():
        if _has_reply(drawn, scorer):
            continue
        messages = _messages(batch[place], header)
        if messages is None and {"messages", "slots"} & set(scorer.reads):
            sets[place] = drawn.model_copy(
                update={"follow_ups": {**drawn.follow_ups, scorer.follow_up: (_not_recorded(scorer),)}}
            )
        else:
            prompts[place] = messages or [HumanMessage(drawn.question)]
    plan = SamplingPlan(n=0, follow_ups=(scorer.follow_up,))
    scoring = follow_ups.Scoring.of([scorer], header.prompt)
    replied = run(scoring.ask(list(prompts.values()), [sets[place] for place in prompts], plan, None))
    sets.update(zip(prompts, replied, strict=True))
    return [record.model_copy(update={"drawn": sets.get(place)}) for place, record in enumerate(batch)]


def _has_reply(drawn: SampleSet, scorer: Scorer) -> bool:
    return any(
        reply.question == scorer.digest and (reply.problem is None or reply.problem.depends_on_question)
        for reply in drawn.follow_ups.get(scorer.follow_up, ())
    )


def _not_recorded(scorer: Scorer) -> SampleSet:
    return SampleSet(
        question=scorer.digest,
        primary=None,
        problem=Unmeasured.NOT_RECORDED,
        problem_detail="the record does not have the messages that were sent",
    )


def _messages(record: Record, header: RecordHeader) -> list[BaseMessage] | None:
    """The prompt of a record; None if it cannot be made again."""
    try:
        messages = record.messages_in(header.prompt)
    except UsageError:  # a record without the texts of the slots
        return None
    same = record.turns is None or turns_of(messages, header.plan.bindings) == record.turns
    return messages if same else None
