"""Acceptance beside calls: the share of questions that each score would answer under a certificate.

The labels come from a part of the records that no fit uses, so a score may be chosen by the table: a fit on the other
questions keeps its promise. `calibrate evaluate` takes the part that ``--score auto`` chooses on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import GuardrailError, UsageError
from guardrail.judges import default_judge
from guardrail.notebook import percent, text_table
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, EstimatorSpec, from_spec, make_estimator, measure_stream
from guardrail.uncertainty.combine import FEWEST as FEWEST_RANKED
from guardrail.uncertainty.combine import primary_alone

from ..data.records import Record, RecordFile, RecordHeader
from ..data.split import Groups, one_per_cluster
from ..fitting import Target
from ..rules import Infeasible
from ..scoring.apart import drawn_by_hash, refuse_overlap
from ..scoring.scores import default_estimator, labels_of, taken, usual_estimators, values_of
from .choice import SHARE

__all__ = [
    "ADVISED",
    "CallsRow",
    "CallsTable",
    "Score",
    "calls_beside_fit",
    "calls_of_part",
    "certified_once",
    "contradiction",
    "ordered",
    "scores_of_draws",
]

Reals = NDArray[np.float64]
ADVISED = 1.645
"""Smallest `contradiction` at which two stages are advised: one-sided 5 % for samples that say nothing."""
FEWEST = 100
"""Fewest labelled questions of a table."""
MOST = 20_000
"""Most records of a table: a cut reads whole records, and a larger file is compared by its scores."""
FITS = 25
"""Fits behind a share."""
WEIGHT = 0.2
"""w of two stages, as `then` has it by default."""
VOTES = ("graded_disagreement", "primary_disagreement")
"""Estimators that compare samples with the answer, so that two samples are enough."""


@dataclass(frozen=True, slots=True)
class Score:
    """One score of every question of a pool.

    Attributes:
        name: Row of the table.
        calls: Calls a question; of two stages those of the first.
        values: The score, shape (n,); NaN where it is unmeasured. Of two stages the cheap score.
        tokens: Output tokens a question, of its calls; NaN where the data do not tell.
        second: Of two stages: the disagreement in [0, 1], shape (n,).
        weight: Of two stages: w.
        more: Of two stages: further calls where the first do not decide.
        more_tokens: Of two stages: output tokens of those, a question that draws them.
        seconds: Seconds a question, where they were measured.
    """

    name: str
    calls: float
    values: Reals
    tokens: float = float("nan")
    second: Reals | None = None
    weight: float = 0.0
    more: int = 0
    more_tokens: float = float("nan")
    seconds: float = float("nan")


@dataclass(frozen=True, slots=True)
class CallsRow:
    """One score: its calls a question, and the share that a certificate answers, by alpha."""

    score: str
    calls: float
    answered: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CallsTable:
    """Acceptance beside calls on labelled questions that no fit uses.

    Attributes:
        alphas: Target error rates.
        n: Labelled questions.
        n_fit: Labels of each fit.
        rows: Scores by calls, then by the share answered.
        contradiction: z of `contradiction` for two samples; None where they were not drawn.
    """

    alphas: tuple[float, ...]
    n: int
    n_fit: int
    rows: tuple[CallsRow, ...]
    contradiction: float | None

    def __str__(self) -> str:
        """The rows as a table of at most 80 columns."""
        heads = ("score", "calls", *(f"{alpha:g}" for alpha in self.alphas))
        lines = [
            (row.score, f"{row.calls:.1f}", *(percent(share, digits=1) for share in row.answered)) for row in self.rows
        ]
        return text_table(heads, lines)

    @property
    def title(self) -> str:
        """The measurement in words."""
        return (
            f"Answered at alpha under a certificate with {self.n_fit} labels, beside calls a question; measured on "
            f"{self.n} questions that the fit does not use"
        )

    @property
    def advice(self) -> str | None:
        """Whether two stages are worth their calls here; None where no two samples were drawn."""
        if self.contradiction is None:
            return None
        reason = f"z = {self.contradiction:.1f}, and {ADVISED} is asked for"
        if self.contradiction >= ADVISED:
            return (
                "Two stages (--calls 1.4) are advised: among answers that one call scores alike, those that two "
                f"samples contradict are wrong more often ({reason})."
            )
        return (
            "Two stages (--calls 1.4) are not advised: among answers that one call scores alike, those that two "
            f"samples contradict are not wrong more often ({reason})."
        )


# -- One fit, for tables and benchmarks --------------------------------------------------------------------------------


def ordered(score: Score, scale: Reals) -> tuple[Reals, Reals]:
    """The score that is certified, and the place of the first stage on a scale of other questions' cheap scores."""
    if score.second is None:
        return score.values, score.values
    ranked = np.sort(scale[~np.isnan(scale)])
    place = np.searchsorted(ranked, score.values, side="right") / ranked.size
    place[np.isnan(score.values)] = np.nan
    # A failed sample disagrees (see `guardrail.uncertainty.then`).
    return place + score.weight * np.nan_to_num(score.second, nan=1.0), place


def certified_once(
    score: Score,
    orders: tuple[Reals, Reals],
    error: NDArray[np.int64],
    labelled: NDArray[np.int64],
    target: Target,
) -> tuple[NDArray[np.bool_], float]:
    """Fit on the labelled questions; which of the pool are accepted, and the calls a question.

    Args:
        score: The score.
        orders: Its `ordered`.
        error: 0 or 1, of the pool.
        labelled: Places of the labelled questions in the pool; one may occur several times.
        target: Rule and error rate.
    """
    u, place = orders
    result = target.choose(np.nan_to_num(u[labelled], nan=np.inf), error[labelled])
    if isinstance(result, Infeasible):
        return np.zeros(u.size, dtype=np.bool_), score.calls
    undecided = (place <= result.threshold) & ~(place + score.weight <= result.threshold)
    return u <= result.threshold, score.calls + score.more * float(undecided.mean())


def contradiction(place: Reals, second: Reals, error: NDArray[np.int64], weight: float = WEIGHT) -> float:
    """Association between disagreement and error among questions with like places on the scale, as a z score.

    Questions are compared within strata of the width ``weight``, since the samples can move a question no further.
    Large where two samples say more than the first call; near 0 where the judge splits right answers as often as wrong
    ones, and two stages lose acceptance.
    """
    total = variance = 0.0
    stratum = np.floor(place / weight)
    for number in np.unique(stratum[~np.isnan(stratum)]):
        inside = stratum == number
        size = int(inside.sum())
        if size < 2:
            continue
        d, e = (values[inside] - values[inside].mean() for values in (np.nan_to_num(second, nan=1.0), error))
        total += float(d @ e)
        variance += float(d @ d) * float(e @ e) / (size - 1)  # of the sum under random pairing in the stratum
    return total / variance**0.5 if variance else 0.0


# -- Scores of recorded draws ------------------------------------------------------------------------------------------


def score_of(sets: Sequence[SampleSet], estimator: Estimator, n: int, plan: SamplingPlan, name: str = "") -> Score:
    """An estimator on the first n samples of each draw, with the calls and tokens that it pays for."""
    alone = n == 0 and plan.primary != "majority"
    cut = [primary_alone(drawn) if alone else drawn.model_copy(update={"samples": drawn.samples[:n]}) for drawn in sets]
    measured = list(measure_stream(cut, [estimator], plan.model_copy(update={"n": n})))
    values = np.array([np.nan if score.value is None else score.value for (score,) in measured])
    tokens = _tokens([drawn.primary for drawn in sets]) + (n * _sample_tokens(sets) if n else 0.0)
    return Score(name or estimator.name, n + 1, values, tokens)


def staged_on(cheap: Score, sets: Sequence[SampleSet], votes: Estimator, plan: SamplingPlan) -> Score:
    """Two stages: a score of one call, and two samples where it does not decide."""
    second = make_estimator("primary_disagreement", judge=votes.judge)
    return replace(
        cheap,
        name=f"two stages, {cheap.name}",
        second=score_of(sets, second, 2, plan).values,
        weight=WEIGHT,
        more=2,
        more_tokens=2 * _sample_tokens(sets),
    )


def scores_of_draws(sets: Sequence[SampleSet], plan: SamplingPlan, votes: Estimator) -> list[Score]:
    """The scores that these draws support, by the calls that each needs.

    Args:
        sets: The draws.
        plan: The plan they were drawn by.
        votes: The disagreement of samples with the answer: graded, or primary for answers that are numbers.
    """
    scores = []
    # A majority is the answer of all samples, so fewer of them have another answer.
    apart = plan.primary != "majority"
    if plan.logprobs and apart:
        names = usual_estimators(1, options=False, bindings=plan.bindings)
        scores = [score_of(sets, make_estimator(name), 0, plan) for name in dict.fromkeys([*names, "sequence_nll"])]
        scores += [staged_on(scores[0], sets, votes, plan)] if plan.n >= 2 else []
    if plan.n >= 2:
        entropy = default_estimator(options=False) if plan.logprobs else "discrete_semantic_entropy"
        scores.append(score_of(sets, make_estimator(entropy, bindings=plan.bindings), plan.n, plan))
    if plan.n >= 2 and apart:
        scores += [score_of(sets, votes, n, plan, f"{votes.name}, n = {n}") for n in sorted({2, plan.n})]
    return scores


def _sample_tokens(sets: Sequence[SampleSet]) -> float:
    return _tokens([sample for drawn in sets for sample in drawn.samples])


def _tokens(samples: Sequence[Sample | None]) -> float:
    counts = [np.nan if each.tokens is None else len(each.tokens) for each in samples if each is not None]
    return float(np.mean(counts)) if counts else float("nan")


# -- The table ---------------------------------------------------------------------------------------------------------


def calls_of_part(
    part: Sequence[Record],
    others: Sequence[Record],
    header: RecordHeader,
    *,
    alphas: Sequence[float],
    n_fit: int,
    delta: float | None = None,
    seed: int = 0,
) -> CallsTable:
    """Every score that the records support, by calls and by the share that a certificate would answer.

    A share is the mean over `FITS` fits of rule ``certified``, each on ``n_fit`` labels drawn from the part with
    replacement, counted on the part. Stored scores are read, those of the drawn answers computed with light judges.

    Args:
        part: Labelled records that no fit uses.
        others: Other records; the first stage of two is ranked among their scores, and no label of theirs is read.
        header: Header of the records.
        alphas: Target error rates.
        n_fit: Labels that a fit would have.
        delta: Failure probability (0.1).
        seed: Of the drawn labels.

    Raises:
        UsageError: Fewer than `FEWEST` of the part have a label.
    """
    labelled = list(taken(part, labels_of(part) >= 0))
    if len(labelled) < FEWEST:
        raise UsageError(
            f"a table of calls and acceptance takes {FEWEST} labelled questions that the fit does not use, got "
            f"{len(labelled)}. Label more."
        )
    error = 1 - labels_of(labelled).astype(np.int64)
    scores = dict(_stored(labelled, header))
    z, scale = None, np.empty(0)
    sets = [record.drawn for record in labelled if record.drawn is not None]
    if len(sets) == len(labelled) and header.plan.options is None:
        for score in scores_of_draws(sets, header.plan, _votes(header)):
            if score.second is None:
                scores.setdefault(score.name, score)
                continue
            scale = _scale(others, score.name.removeprefix("two stages, "), header.plan)
            if scale.size >= FEWEST_RANKED:
                scores[score.name] = score
                z = contradiction(ordered(score, scale)[1], score.second, error)
    targets = [Target.of("certified", alpha=alpha, delta=delta) for alpha in alphas]
    rows = [_row(score, scale, error, targets, n_fit, seed) for score in scores.values()]
    rows.sort(key=lambda row: (round(row.calls, 1), [-share for share in row.answered]))
    return CallsTable(tuple(alphas), len(labelled), n_fit, tuple(rows), z)


def calls_beside_fit(
    file: RecordFile, *, alphas: Sequence[float], delta: float | None = None, groups: Groups = "category"
) -> tuple[CallsTable, Sequence[Record]] | None:
    """The table of a record file on the part that ``--score auto`` chooses on, and the records outside it.

    Returns:
        None where the table cannot be measured: few labels, many records, or a sample that one score drew.
    """
    if len(file.records) > MOST or file.header.scope.is_drawn:
        return None
    try:
        part, rest = drawn_by_hash(file.records, SHARE, groups=groups)
        part = list(one_per_cluster(part)) if groups == "cluster" else part
        n_fit = int((labels_of(rest) >= 0).sum())
        return calls_of_part(part, rest, file.header, alphas=alphas, n_fit=n_fit, delta=delta), rest
    except UsageError:
        return None


def _row(
    score: Score,
    scale: Reals,
    error: NDArray[np.int64],
    targets: Sequence[Target],
    n_fit: int,
    seed: int,
) -> CallsRow:
    orders = ordered(score, scale)
    rng = np.random.default_rng(seed)  # the same labels for every score
    shares, calls = np.zeros((FITS, len(targets))), []
    for number in range(FITS):
        drawn = rng.integers(0, error.size, n_fit)
        for column, target in enumerate(targets):
            accepted, spent = certified_once(score, orders, error, drawn, target)
            shares[number, column] = accepted.mean()
            calls += [spent] if accepted.any() else []
    mean_calls = float(np.mean(calls)) if calls else score.calls + score.weight * score.more
    return CallsRow(score.name, mean_calls, tuple(shares.mean(axis=0).tolist()))


def _stored(records: Sequence[Record], header: RecordHeader) -> Iterator[tuple[str, Score]]:
    """The scores on file, except those that were made from these questions."""
    for key, spec in sorted(header.estimators.items()):
        try:
            refuse_overlap(spec, records)
        except UsageError:
            continue
        values = values_of(records, key)
        if spec.name != "then" and not np.isnan(values).all():
            yield key, Score(key, _calls(spec, header.plan), values)


def _calls(spec: EstimatorSpec, plan: SamplingPlan) -> float:
    """Calls of one question, a scorer's own and a further question to the model included."""
    if spec.name.startswith(SCORE):
        return 2
    try:
        estimator = from_spec(spec)
    except GuardrailError:  # a judge or model that no name makes: as by the plan
        return plan.n + 1
    answers = 0 if plan.primary == "majority" else 1
    samples = plan.n if estimator.needs.samples or plan.primary == "majority" else 0
    return answers + samples + (estimator.needs.follow_up is not None)


def _votes(header: RecordHeader) -> Estimator:
    """The disagreement with the judge that the user's own scores have, or the default one."""
    judge = default_judge(header.plan.bindings)
    for spec in header.estimators.values():
        if spec.name in VOTES and not (estimator := from_spec(spec)).is_slow:
            return estimator
    return make_estimator(VOTES[0], judge=judge)


def _scale(others: Sequence[Record], cheap: str, plan: SamplingPlan) -> Reals:
    """Cheap scores of at most a thousand other questions."""
    sets = [record.drawn for record in others[:1_000] if record.drawn is not None]
    values = score_of(sets, make_estimator(cheap), 0, plan).values if sets else np.empty(0)
    return values[~np.isnan(values)]
