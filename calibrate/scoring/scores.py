"""Records to scores, and scores to the arrays that threshold rules take."""

from __future__ import annotations

import shlex
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import MOST_FAILED, CalibrationScores
from guardrail.errors import UsageError
from guardrail.explain import WAY_OUT
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.judges import default_judge
from guardrail.judges.cache import PairCache, cached
from guardrail.notebook import percent
from guardrail.types import Bindings, SampleSet, SamplingPlan, Uncertainty
from guardrail.uncertainty import Estimator, EstimatorSpec, list_estimators, make_estimator, measure_stream, unmet_needs
from guardrail.uncertainty.combine import Ranks, needs_ranks, with_ranks
from guardrail.uncertainty.plan import TWO_STAGES, check_arguments, samples_of

from ..data.formats.field_map import IMPORTED
from ..data.progress import Progress, silent
from ..data.records import Record, RecordFile, RecordHeader, RecordReader, stream_records
from ..data.split import one_per_cluster
from ..data.table import RecordTable, table_of
from ..rules import Unit
from ..spec_syntax import estimator_flags
from .apart import ranks_from
from .asking import ask_scorers, plan_with, scorers_of
from .items import ScoredItems
from .names import estimator_key, parse_estimator, stored_key

__all__ = ["ScoreSummary", "Scored", "Scoring", "Units", "arrays", "default_estimator", "estimator_key", "key_of"]
__all__ += ["labels_of", "lacking", "parse_estimator", "refuse_failed", "score_file", "score_records", "scored_by"]
__all__ += ["supported", "taken", "units_of", "unmeasured_among", "uses_models", "usual_estimators", "usual_key"]
__all__ += ["values_of", "with_cache"]


_MOST_REASONS = 10_000
"""Records of a large file that are asked why they have no score, where none has one."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The items a threshold rule can use, and how many it cannot.

    Attributes:
        records: The records of these items, in order.
        ids: Their ids, shape (n,).
        uncertainty: Scores, shape (n,); higher is less certain.
        error: 1 where the answer is wrong or undecided, shape (n,).
        group: The question file's group of each item, or None when any item has none.
        n_records: Records looked at.
        n_unmeasured: Records without a score. They always abstain.
        n_unlabelled: Records with a score but without a label.
        n_undecided: Items that are undecided (`Record.is_undecided`).
    """

    records: RecordTable
    ids: Sequence[str]
    uncertainty: NDArray[np.float64]
    error: NDArray[np.int8]
    group: Sequence[str] | None
    n_records: int
    n_unmeasured: int
    n_unlabelled: int
    n_undecided: int

    def stored(self, *, clusters: bool) -> CalibrationScores:
        """What an artifact keeps of them; with the cluster of each answer if these are its units."""
        return CalibrationScores(
            uncertainty=array("d", self.uncertainty.tobytes()),
            error=array("b", self.error.tobytes()),
            group=tuple(self.group) if clusters and self.group is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Units:
    """The questions of a fit as a rule reads them: those that could not be measured are among them.

    With items a row is an item, its group is its answer, and a question that could not be measured is a row.

    Attributes:
        u: Scores, shape (n,); +inf where the question could not be measured, which no threshold accepts.
        wrong: 1 where the answer is wrong or undecided, shape (n,); 0 where it was not measured.
        group: Group of each question, where asked for; of an item its answer.
        cap: Most items of an answer that are ever kept; None for whole answers.
    """

    u: NDArray[np.float64]
    wrong: NDArray[np.int8]
    group: Sequence[str] | None
    cap: int | None = None

    @property
    def n(self) -> int:
        """Number of questions."""
        return self.u.size if self.cap is None or self.group is None else len(set(self.group))

    @property
    def unit(self) -> Unit:
        """What a row is."""
        return "answer" if self.cap is None else "item"


def unmeasured_among(n_used: int, n_unlabelled: int, n_unmeasured: int) -> int:
    """The part of the unmeasured questions that belongs to the labelled ones.

    All of them, where every measured question has a label; of a random part that was labelled, the same share. Nobody
    labels a question without a score, so labels do not tell.
    """
    return round(n_unmeasured * n_used / (n_used + n_unlabelled))


def default_estimator(*, options: bool) -> str:
    """The estimator used when none is named: predictive entropy over options, semantic entropy for open answers."""
    return "predictive_entropy" if options else "semantic_entropy"


def usual_estimators(calls: float | None, *, options: bool, bindings: Bindings | None = None) -> list[str]:
    """The estimators used when none is named: `default_estimator`, or the best for so many calls a question.

    Raises:
        UsageError: Calls for questions with options, or a number that no plan has.
    """
    if calls is None:
        return [default_estimator(options=options)]
    samples_of(calls)
    if options:
        raise UsageError("--calls is for open answers: the likelihoods of options take one call. Leave it out.")
    # JSON and tool calls have no words of their own: the whole answer counts there.
    cheap = "answer_word_nll" if bindings is None else "sequence_nll"
    by_calls = {
        1.0: [cheap],
        TWO_STAGES: [f"then({cheap}, primary_disagreement)"],
        3.0: ["graded_disagreement"],
    }
    return by_calls.get(calls, ["semantic_entropy"])


def usual_key(plan: SamplingPlan) -> str:
    """Key of the estimator that is meant where none is named: `default_estimator`, which needs log-probabilities.

    Without them, discrete semantic entropy if the answer is the vote of the samples, and otherwise graded
    disagreement, which compares the samples with the answer that is given out (docs/estimators.md).
    """
    name = default_estimator(options=plan.options is not None)
    if plan.options is None and not plan.logprobs:
        name = "discrete_semantic_entropy" if plan.primary == "majority" else "graded_disagreement"
    return estimator_key(parse_estimator(name, judge=default_judge(plan.bindings)))


def key_of(file: RecordFile, name: str | None = None) -> str:
    """Key of the scores that are meant: those named; by default those of `usual_key`, the only ones, or the items.

    Raises:
        UsageError: None is named, the file has several, and the default is not among them.
    """
    keys = file.header.whole_answer_keys
    if name is not None:
        return stored_key(file.header.estimators, name, file.header.plan.bindings)
    if not keys and ITEMS in file.header.estimators:
        return ITEMS
    key = usual_key(file.header.plan)
    if key in keys or not keys:
        return key
    if len(keys) == 1:
        return keys[0]
    if all(name.startswith(IMPORTED) for name in keys):
        names = [shlex.quote(name.removeprefix(IMPORTED)) for name in keys]
        raise UsageError(f"{file.path} has {len(names)} scores. Choose one: --score {' or --score '.join(names)}.")
    raise UsageError(f"{file.path} has no {key!r} scores; choose one with --score: {', '.join(keys)}")


def supported(plan: SamplingPlan) -> list[Estimator]:
    """Every estimator that can be computed from what the plan draws, with the plan's default judge."""
    estimators = (make_estimator(name, bindings=plan.bindings) for name in list_estimators())
    return [estimator for estimator in estimators if lacking(estimator, plan) is None]


def lacking(estimator: Estimator, plan: SamplingPlan) -> str | None:
    """The first of `unmet_needs`, in words; None if the plan draws all that the estimator reads."""
    unmet = unmet_needs(estimator, plan)
    return ": ".join(unmet[0]) if unmet else None


def uses_models(estimators: Sequence[Estimator]) -> bool:
    """Whether any of them asks a judge that takes longer than looking a verdict up."""
    return any(estimator is not with_cache(estimator, None) for estimator in estimators)


def with_cache(estimator: Estimator, cache: PairCache | None) -> Estimator:
    """The estimator with its models' verdicts kept in a cache; itself when it has none but light judges.

    Its spec stays the same.
    """
    if estimator.members:
        members = tuple(with_cache(member, cache) for member in estimator.members)
        # The same object comes back when nothing changed: `uses_models` asks for identity.
        same = all(new is old for new, old in zip(members, estimator.members, strict=True))
        return estimator if same else replace(estimator, members=members)
    slow: dict[str, Any] = {}
    if estimator.judge is not None and estimator.judge.is_slow:
        slow["judge"] = estimator.judge
    if estimator.similarity is not None and estimator.similarity.is_slow:
        slow["similarity"] = estimator.similarity
    if estimator.entailment is not None:
        slow["entailment"] = estimator.entailment
    if not slow:
        return estimator
    return replace(
        estimator, **{role: model if cache is None else cached(model, cache) for role, model in slow.items()}
    )


@dataclass(slots=True)
class _Scores:
    """Scores of one estimator in a summary, and the reasons for missing ones."""

    values: array[float] = field(default_factory=lambda: array("d"))
    reasons: Counter[str] = field(default_factory=Counter)


class ScoreSummary:
    """Each estimator's scores and the reasons for missing ones, gathered while records go by: 8 bytes a score.

    Attributes:
        n_records: Records so far.
        fragments: Torn lines that were left out.
    """

    def __init__(self) -> None:
        self.n_records = self.fragments = 0
        self._scores: dict[str, _Scores] = {}

    def add(self, scores: Mapping[str, tuple[float | None, str | None]]) -> None:
        """Take a record's scores into account: the value, or the reason for a missing one, by estimator key."""
        self.n_records += 1
        for key, (value, reason) in scores.items():
            summary = self._scores.setdefault(key, _Scores())
            if value is not None:
                summary.values.append(value)
            elif reason is not None:
                summary.reasons[reason] += 1

    def of(self, key: str) -> tuple[list[float], Counter[str]]:
        """Measured scores of an estimator, ascending, and how often each reason for a missing one occurred."""
        summary = self._scores.get(key, _Scores())
        return sorted(summary.values), summary.reasons


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
    scoring = Scoring.of(file.header, lambda _: estimators, _ranks(estimators, file if ranks is None else ranks))
    total = len(file.records)
    scored = []
    for record in scoring.of_records(file.records):
        scored.append(record)
        progress(len(scored), total)
    return RecordFile(file.path, scoring.header, tuple(scored), file.torn)


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
    readers: list[RecordReader] = []

    def change(reader: RecordReader) -> tuple[RecordHeader, Iterator[Record]]:
        readers.append(reader)
        chosen = estimators(reader.header.plan)
        own = _ranks(chosen, source if ranks is None else ranks)
        make = partial(Scoring.of, reader.header, estimators, own)
        scoring = Scoring.of(reader.header, lambda _: chosen, own)
        written.append(scoring.header)
        # A file may hold more records than its header counts, and progress past its total would mislead.
        total = scoring.header.n_questions
        return scoring.header, summarised(engine(reader, make) if engine else scoring.of_records(reader), total)

    def summarised(records: Iterable[Record], total: int) -> Iterator[Record]:
        for record in records:
            summary.add(
                {key: (score.value, score.reason and score.reason.value) for key, score in record.scores.items()}
            )
            if summary.n_records % 20 == 0:
                progress(summary.n_records, max(summary.n_records, total))
            yield record
        summary.fragments = readers[0].fragments

    stream_records(source, target, change)
    progress(summary.n_records, summary.n_records)
    return written[0], summary


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores to compute for a record file.

    Attributes:
        header: Header of the scored file.
        estimators: The estimators to compute.
    """

    header: RecordHeader
    estimators: Sequence[Estimator]

    @classmethod
    def of(
        cls,
        header: RecordHeader,
        estimators: Callable[[SamplingPlan], Sequence[Estimator]],
        ranks: Mapping[str, Ranks],
    ) -> Scoring:
        """From the header of the file to score and the ranks of combinations by key; see `score_file`."""
        chosen = estimators(header.plan)
        ranked = [with_ranks(each, ranks[estimator_key(each)]) if needs_ranks(each) else each for each in chosen]
        return cls(_scored_header(header, ranked), ranked)

    def of_records(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records with scores, in order."""
        return _scored(records, self.estimators, self.header)


ScoringEngine = Callable[[RecordReader, Callable[[], Scoring]], Iterator[Record]]
"""Scores in other processes: the records of a file with scores, in order. They make the `Scoring` themselves."""


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
    plan = plan_with(header.plan, scorers_of(estimators))
    return header.model_copy(update={"plan": plan, "estimators": {**header.estimators, **specs}})


def _scored(records: Iterable[Record], estimators: Sequence[Estimator], header: RecordHeader) -> Iterator[Record]:
    """The records with scores, in order. Reads ahead as far as one judging pass does."""
    keys = [estimator_key(estimator) for estimator in estimators]
    if scorers := scorers_of(estimators):
        records = ask_scorers(records, scorers, header)
    ahead: deque[Record] = deque()

    def drawn() -> Iterator[SampleSet]:
        for record in records:
            ahead.append(record)
            if record.drawn is not None:
                yield record.drawn

    for values in measure_stream(drawn(), estimators, header.plan):
        while ahead[0].drawn is None:  # imported with scores only
            yield ahead.popleft()
        yield _with(ahead.popleft(), keys, values)
    yield from ahead


def _with(record: Record, keys: Sequence[str], values: Sequence[Uncertainty]) -> Record:
    scores: Mapping[str, Uncertainty] = {**record.scores, **dict(zip(keys, values, strict=True))}
    return record.model_copy(update={"scores": scores})


def values_of(records: Sequence[Record], key: str) -> NDArray[np.float64]:
    """Scores of the records, shape (n,); NaN for a record without one."""
    return table_of(records).scores(key)


def labels_of(records: Sequence[Record]) -> NDArray[np.int8]:
    """Labels of the records as a fit counts them, shape (n,): 1 right, 0 wrong or undecided, -1 none."""
    return table_of(records).counted_labels()


def taken(records: Sequence[Record], mask: NDArray[np.bool_]) -> RecordTable:
    """The records that a mask selects, in order."""
    return table_of(records).take(mask)


def arrays(records: Sequence[Record], key: str) -> Scored:
    """The items that have both a score by ``key`` and a label; undecided answers count as wrong.

    Raises:
        UsageError: No record is usable; the message says which step is missing.
    """
    table = table_of(records)
    values, label, n = table.scores(key), table.counted_labels(), len(table)
    present = table.score_keys()
    # Records without samples have nothing to score, but of several imported scores one may be named wrongly.
    if unscored := n if present and key not in present else table.unscored(key):
        raise _unscored_error(unscored, n, present, key)
    measured = ~np.isnan(values)
    usable = measured & (label >= 0)
    selected, n_unlabelled = table.take(usable), int(np.count_nonzero(measured & (label < 0)))
    if not len(selected):
        # Reasons need whole records, which is slow in a large file, and the most common one shows early.
        reasons = Counter(_why(record, key) for record in table[:_MOST_REASONS])
        raise UsageError(_nothing_usable(n, reasons, n_unlabelled))
    return Scored(
        records=selected,
        ids=selected.ids,
        uncertainty=values[usable],
        # Labels are 1 for right; unlabelled records (-1) are masked out, so this is 0 or 1.
        error=1 - label[usable],
        group=None if None in selected.coded("group")[1] else cast(Sequence[str], selected.groups),
        n_records=n,
        n_unmeasured=n - int(np.count_nonzero(measured)),
        n_unlabelled=n_unlabelled,
        n_undecided=int(np.count_nonzero(selected.undecided())),
    )


def scored_by(records: Sequence[Record], key: str, spec: EstimatorSpec | None) -> Scored | ScoredItems:
    """The labelled answers with a score: whole, or with their items where that is what the score is of.

    Raises:
        UsageError: As `arrays` and `ScoredItems.of`.
    """
    if spec is not None and spec.name == ITEMS:
        return ScoredItems.of(table_of(records), ItemsSpec.of(spec))
    return arrays(records, key)


def units_of(records: Sequence[Record], key: str, *, groups: bool = False, spec: EstimatorSpec | None = None) -> Units:
    """The labelled records, and those without a score that belong to them.

    Where only a part of the records is labelled, the first unmeasured ones stand for those of that part.

    Args:
        records: The records.
        key: Key of the score.
        groups: Whether groups are clusters: of whole answers they are kept, of answers with items one of each is.
        spec: The score; by its items if it is that of items.

    Raises:
        UsageError: As `scored_by`.
    """
    if groups and spec is not None and spec.name == ITEMS:
        records = one_per_cluster(records)  # the group of an item is its answer
    scored = scored_by(records, key, spec)
    n = unmeasured_among(len(scored.ids), scored.n_unlabelled, scored.n_unmeasured)
    infinite, right = np.full(n, np.inf), np.zeros(n, dtype=np.int8)
    if isinstance(scored, ScoredItems):
        items = scored.items
        names = [*items.group, *(f"unmeasured {i}" for i in range(n))]
        u, wrong = np.append(items.uncertainty, infinite), np.append(items.wrong.astype(np.int8), right)
        return Units(u, wrong, names, items.cap)
    u, wrong = np.append(scored.uncertainty, infinite), np.append(scored.error, right)
    if not groups or scored.group is None:
        return Units(u, wrong, None)
    table = table_of(records)
    unmeasured = table.take(np.isnan(table.scores(key)))
    return Units(u, wrong, [*scored.group, *(str(group) for group in unmeasured.groups[:n])])


def refuse_failed(records: Sequence[Record], key: str | None = None, *, allowed: bool = False) -> int:
    """Refuse records of which too many have no score because a server, a rate limit or a time-out failed.

    Such answers are neither right nor wrong. Long and hard questions fail more often, so the others are easier than
    what is asked at run time, and a threshold that is fitted on them alone promises too much.

    Args:
        records: The records of a fit or a test.
        key: Key of the score; None where none is computed yet.
        allowed: Whether any number may be left out.

    Returns:
        The number of such records, at most `MOST_FAILED` of all unless ``allowed``.

    Raises:
        UsageError: There are more.
    """
    table = table_of(records)
    failed = table.failed(key) if key is None else table.failed(key) & np.isnan(table.scores(key))
    n, total = int(np.count_nonzero(failed)), len(table)
    if allowed or n <= MOST_FAILED * total:
        return n
    first = table[int(np.argmax(failed))]
    what = "answer" if key is None else f"{key} score"
    raise UsageError(
        f"{n} of {total} questions ({percent(n / total)}) have no {what} because a server, a rate limit or a "
        f"time-out failed, e.g. {first.id!r}: {_why(first, key)}. They are neither right nor wrong, and long and hard "
        "questions fail more often, so a threshold for the others promises too much. Ask only these again: the same "
        "`calibrate run` or `collect` does that, and `score` for a scorer; imported rows need an answer. Or leave them "
        "out: --without-failed (in Python FitSettings(without_failed=True)), and the promise states their share."
    )


def _unscored_error(unscored: int, n: int, known: Iterable[str], key: str) -> UsageError:
    present = ", ".join(sorted(known)) or "none"
    return UsageError(
        f"{unscored} of {n} records have no {key!r} score (scores present: {present}). Run: calibrate score RECORDS "
        f"{estimator_flags(key)}"
    )


def _why(record: Record, key: str | None) -> str:
    score = None if key is None else record.scores.get(key)
    if score is not None and score.reason is not None:
        return f"{score.reason.value}: {score.detail}"
    if record.drawn is not None and record.drawn.problem is not None:
        return f"{record.drawn.problem.value}: {record.drawn.problem_detail}"
    return "no score"


def _nothing_usable(n: int, unmeasured: Counter[str], unlabelled: int) -> str:
    if not n:
        return "the record file holds no record. Collect some first."
    if unlabelled:
        return (
            f"none of {n} records has a label ({unlabelled} have a score only). Run: calibrate label RECORDS; if you "
            "did, the questions have no references, or none the rule can compare."
        )
    reason, count = unmeasured.most_common(1)[0]
    ways_out = (text for cause, text in WAY_OUT.items() if reason.startswith(cause))
    way_out = next(ways_out, "Collect with a plan that draws it.")
    return f"none of {n} records could be measured; {count} of them: {reason}. {way_out}"
