"""Label where it matters: draw what to label from the questions below a score cut.

A label on a question that no gate would accept is wasted. Scores need no labels. So: score a large unlabelled set, take
a *scope* (a share of the lowest scores), and label a uniform random part of what lies within it. Nothing above the cut
is ever accepted. The error rate behind a threshold t <= cut does not change when only scores <= cut are looked at, so
every rule and certificate holds as stated, with n the labelled questions; acceptance is counted over all questions.

The cut must not depend on labels of the fit. A share may be chosen after looking at the scores, so the pool below the
cut must be at least three times the labels: an adversary who sees all scores and has a pool no larger than the labels
reaches a failure probability of .153 at delta = .1 (.094 with twice, .070 with five times the pool).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.outcome import Scope
from guardrail.plain_json import canonical_json, sha256_hex

from .data.questions import fingerprint
from .data.records import Record, RecordFile
from .data.table import LOOKED_AT, table_of
from .scoring.metrics import ks_two_sample
from .scoring.scores import refuse_failed

POOL_FACTOR = 3
"""Questions within the scope per question to label, if the share was chosen after looking at the scores."""
SELECTED = 1e-3
"""p-value below which labelled questions are taken to be selected: one honest fit in a thousand is refused."""
FEWEST_COMPARED = 20
"""Labelled, and unlabelled, questions below which they are not compared."""

Reals = NDArray[np.float64]


def draw_to_label(
    file: RecordFile,
    estimator: str,
    *,
    share: float,
    n: int,
    seed: int = 0,
    without_failed: bool = False,
) -> RecordFile:
    """Draw what to label: n questions, uniformly, from the share of the lowest scores.

    The cut is the largest score up to which at most ``share`` of the measured questions lie; ties stay together.
    Records come in the order of the draw, so the first of them are a random part, too.

    Args:
        file: Scored records without labels.
        estimator: Key of the score.
        share: The scope, in (0, 1]; 1 draws from all measured questions. Below 1 the pool within the scope has to be at
            least three times n.
        n: Questions to draw.
        seed: Same seed, same draw.
        without_failed: As for `calibrate.fit_artifact`.

    Raises:
        UsageError: Records that have labels, more than 1 % that failed, no scores, a share or n outside its range, or a
            pool that is too small.
    """
    if not 0 < share <= 1:
        raise UsageError(f"the scope must be a share in (0, 1], got {share:g}. Write 0.5 for the lowest half.")
    if n < 1:
        raise UsageError(f"the number of questions to label must be at least 1, got {n}.")
    _refuse_labelled(file)
    n_failed = refuse_failed(file.records, estimator, allowed=without_failed)
    values = file.records.scores(estimator)
    pool = values[~np.isnan(values)]
    if not pool.size:
        raise UsageError(f"{file.path} has no {estimator!r} scores. Run: calibrate score {file.typed}")
    cut = cut_at(pool, share)
    # Sorted by id, so that the draw depends on the seed and not on the order of the file.
    within = sorted(file.records.take(values <= cut), key=lambda record: record.id)
    _refuse_few(len(within), pool.size, n, share)
    order = np.random.default_rng(seed).permutation(len(within))[:n]
    drawn = tuple(within[i] for i in order.tolist())
    scope = Scope(
        score=estimator,
        share=share,
        cut=cut,
        n_asked=len(file.records),
        n_failed=n_failed,
        n_pool=pool.size,
        n_within=len(within),
        n=n,
        seed=seed,
        drawn_sha256=draw_digest(drawn, estimator),
    )
    header = file.header.model_copy(
        update={
            "scope": scope,
            "n_questions": n,
            "questions_sha256": fingerprint(record.to_question() for record in drawn),
        }
    )
    return RecordFile(file.path, header, drawn)


def _refuse_labelled(file: RecordFile) -> None:
    labelled = int(np.count_nonzero(file.records.counted_labels() >= 0))
    if labelled:
        raise UsageError(
            f"{file.path} has labels on {labelled} of {len(file.records)} records, and what is drawn to be labelled "
            "must not depend on labels. Give the scored records without them (leave out the questions of a pilot)."
        )
    if file.header.scope.is_drawn:
        raise UsageError(f"{file.path} is itself a sample that was drawn to be labelled. Give the file it came from.")


def _refuse_few(within: int, pool: int, n: int, share: float) -> None:
    """Refuse a scope with too few questions for n labels."""
    if n > within:
        raise UsageError(f"only {within} questions are within scope {share:g}, fewer than n = {n}. Score more.")
    # At share 1 no cut is chosen, so nobody could have chosen it with an eye on the scores.
    needed = POOL_FACTOR * n
    if share < 1 and within < needed:
        raise UsageError(
            f"{within} questions are within scope {share:g}; a scope that may have been chosen after looking at the "
            f"scores needs at least {POOL_FACTOR} x {n} = {needed}. Draw {within // POOL_FACTOR} or fewer, or score "
            f"more questions (about {math.ceil(needed / share)} in all; there are {pool})."
        )


def refuse_scope_after_labels(file: RecordFile, share: float, labelled: Sequence[RecordFile]) -> None:
    """Refuse a scope that may have been chosen after labels of the same questions were seen.

    Args:
        file: Scored records without labels.
        share: The scope; 1 leaves nothing to choose.
        labelled: Earlier draws that have labels.

    Raises:
        UsageError: One of them has a label on a question of these records, and another scope.
    """
    pool = set(file.records.ids)
    for drawn in labelled:
        scope = drawn.header.scope
        seen = drawn.records.take(~waiting_of(drawn.records)).ids
        known = sum(name in pool for name in seen)
        if known and scope.is_drawn and share not in (1, scope.share):
            raise UsageError(
                f"{drawn.path} has labels on {known} of these questions, drawn within scope {scope.share:g}. A scope "
                f"of {share:g} that is chosen after they were seen may depend on them, and then no rule keeps its "
                f"promise. Draw with --scope {scope.share:g}; or leave those questions out of --records."
            )


def check_labelled_part(file: RecordFile, used: Sequence[Record], estimator: str) -> Scope:
    """Whether the labelled records are a fair part of what was scored; the scope that the labels are from.

    Raises:
        UsageError: The scope is one of another score, the questions, their order or their scores are not those that
            were drawn, or the labelled questions differ in their scores from those that wait for a label
            (Kolmogorov-Smirnov, p < .001).
    """
    scope = file.header.scope
    if scope.is_drawn:
        _refuse_changed_draw(file, scope, estimator)
    values = table_of(used).scores(estimator)
    waits = waiting_of(used)
    labelled, waiting = values[~np.isnan(values) & ~waits], values[~np.isnan(values) & waits]
    # Fewer would hardly ever be refused: the asymptotic p-value means little there.
    if min(labelled.size, waiting.size) < FEWEST_COMPARED:
        return scope
    _, p = ks_two_sample(labelled, waiting)
    if p < SELECTED:
        raise UsageError(
            f"the {labelled.size} labelled questions of {file.path} differ in {estimator} from the {waiting.size} "
            f"without a label (p = {p:.1g}): they are not a random part, so a threshold fitted on them would not hold "
            "for the others. Draw what to label with `calibrate sample`, or label the rest."
        )
    return scope


def _refuse_changed_draw(file: RecordFile, scope: Scope, estimator: str) -> None:
    """Refuse records that are not the draw that their scope describes."""
    if scope.score != estimator:
        raise UsageError(
            f"the questions of {file.path} were drawn by their {scope.score!r} scores, so {estimator!r} cannot be "
            f"fitted on them: use --score {scope.score}, or draw anew with `calibrate sample`."
        )
    fault = None
    if fingerprint(record.to_question() for record in file.records) != file.header.questions_sha256:
        number = f"the {len(file.records)} questions of {file.path} are not the {scope.n} that were drawn"
        fault = f"{number}: some were added, removed or changed"
    elif scope.drawn_sha256 != draw_digest(file.records, estimator):
        fault = f"the questions of {file.path} have another order or other {estimator!r} scores than when drawn"
    if fault is not None:
        raise UsageError(f"{fault}. Fit on the file that `calibrate sample` wrote, labelled.")


def draw_digest(records: Sequence[Record], estimator: str) -> str:
    """SHA-256 of ids and scores, in this order."""
    table = table_of(records)
    values = [None if score != score else score for score in table.scores(estimator).tolist()]
    return sha256_hex(canonical_json([*map(list, zip(table.ids, values, strict=True))]))


def waiting_of(records: Sequence[Record]) -> NDArray[np.bool_]:
    """Which answers neither a person nor a rule has looked at yet. One that could not be decided does not wait."""
    table = table_of(records)
    waiting: NDArray[np.bool_] = (table.labels() < 0) & ((table.flags() & LOOKED_AT) == 0)
    return waiting


def cut_at(values: Reals, share: float) -> float:
    """The largest score up to which at most this share of the questions lie."""
    score, count = np.unique(values, return_counts=True)
    upto = np.cumsum(count)
    # 1e-9, so that .3 of 10 questions is 3 although the product is 2.9999...
    allowed = np.flatnonzero(upto <= math.floor(share * values.size + 1e-9))
    if not allowed.size:
        raise UsageError(
            f"{upto[0] / values.size:.1%} of the questions share the lowest score, so no cut lies within the scope "
            # Rounded up to thousandths: the suggested share must include the whole block of ties.
            f"{share:g}. Take at least {math.ceil(1_000 * upto[0] / values.size) / 1_000:g}, or a finer score."
        )
    return float(score[allowed[-1]])
