"""Everything that an artifact is bound to, as labelled rows: what was asked, measured, labelled and fitted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import guarantee, nouns_of, scope_in_words
from guardrail.items.spec import ItemScores, ItemsSpec
from guardrail.notebook import percent
from guardrail.outcome import Feasible
from guardrail.sampling.follow_ups import SCORE, scorer_of

from ..scoring.metrics import AurocInterval, auroc_interval

_HIDDEN = ("diagnose", "support", "version")


def facts(artifact: CalibrationArtifact) -> list[tuple[str, str]]:
    """The facts that the artifact binds, as labelled rows."""
    rows = (*_made_of(artifact), *_fitted(artifact), *_of_items(artifact))
    return [(name, value) for name, value in rows if value is not None]


def _made_of(artifact: CalibrationArtifact) -> Iterator[tuple[str, str | None]]:
    """The questions, the measurement and the labels; a value of None is left out."""
    model, score, data, nouns = artifact.model, artifact.estimator, artifact.data, nouns_of(artifact)
    choice, system = data.choice, artifact.prompt.system
    yield "model", f"{model.model} ({model.provider}, {model.revision[:19] if model.revision else 'revision unknown'})"
    yield "asked", _plan(artifact)
    yield "prompt", f"{'' if system is None else f'system {system!r}; '}template {artifact.prompt.template!r}"
    yield "uncertainty" if scorer_of(artifact.plan) is None else "score", _score(artifact)
    for name, spec in ((f"same {nouns.one} if", score.judge), ("alike as by", score.similarity)):
        yield name, None if spec is None else describe_spec(spec.name, spec.params)
    yield f"right {nouns.one} if", describe_spec(artifact.correctness.name, artifact.correctness.params)
    yield nouns.asked, f"{data.n_used} used of {data.n_questions} in {data.name} (sha256 {data.sha256[:12]})"
    yield "left out", left_out(artifact) if data.n_unmeasured or data.n_unlabelled else None
    if choice is not None:
        yield (
            "score chosen",
            f"{choice.candidates[0]}, of {len(choice.candidates)} the one with the highest AUROC ({choice.auroc:.3f}) "
            f"on {choice.n} labelled questions that the fit did not use ({percent(choice.share)} of all)",
        )
    yield "cut off", f"{data.n_cut_off} of {data.n_questions} answers, at max_tokens" if data.n_cut_off else None


def _fitted(artifact: CalibrationArtifact) -> Iterator[tuple[str, str | None]]:
    """The fit and its promise; a value of None is left out."""
    outcome, nouns, scope = artifact.outcome, nouns_of(artifact), artifact.outcome.scope
    yield "scope", scope_in_words(scope, artifact.estimator)
    delta = "" if outcome.delta is None else f", delta {outcome.delta:g}"
    yield "rule", describe_spec(f"{outcome.rule} at alpha {outcome.alpha:g}{delta}", outcome.options)
    if isinstance(outcome, Feasible):
        low, high = map(percent, outcome.interval)
        rate = f"{outcome.n_errors} of {outcome.n_accepted}; 95 % interval {low} to {high}, chosen after looking"
        yield f"wrong among {nouns.accepted}", rate
        yield "equal to threshold", f"{outcome.tie_block} (ties are accepted together)"
        yield "promise", guarantee(outcome, artifact.spent, nouns)
    else:
        yield "promise", f"nothing, so nothing is {nouns.accepted}"
    yield "AUROC", _auroc(artifact)
    yield "most any rule accepts", percent(scope.of_measured(outcome.diagnostics.max_acceptance) * scope.measured)
    packages = ", ".join(f"{name} {version}" for name, version in artifact.made.packages.items())
    yield "made", f"{artifact.made.at} with {packages}"
    yield "digest", artifact.digest


def _of_items(artifact: CalibrationArtifact) -> Iterator[tuple[str, str | None]]:
    """What a gate of items is bound to; nothing for a gate of whole answers."""
    if not isinstance(artifact.calibration, ItemScores):
        return
    spec = ItemsSpec.of(artifact.estimator)
    scores = artifact.calibration.uncertainty
    yield "items", f"at most {spec.cap} kept of an answer; version {spec.version} of splitting and support"
    for name, paths in (("judges", spec.judges), ("key fields", spec.keys), ("optional fields", spec.optional)):
        yield name, ", ".join(paths) or None
    yield "items not measured", f"{sum(score is None for score in scores)} of {len(scores)}, held back"
    yield "undecided labels", f"{artifact.data.n_undecided}, counted as wrong"


def _plan(artifact: CalibrationArtifact) -> str:
    plan = artifact.plan
    if plan.options is not None and plan.n == 0:
        return f"likelihood of the options {', '.join(plan.options)}"
    samples = f"{plan.n} samples at temperature {plan.temperature:g}, top_p {plan.top_p:g}" if plan.n else "no samples"
    answer = f"1 {plan.primary} answer and {samples}"
    if plan.primary == "majority":
        answer = f"{samples}, of which the most frequent is the answer"
    logprobs = ", log-probabilities" if plan.logprobs else ""
    rated = "".join(f", rated by the scorer {name}" for name in plan.follow_ups if name.startswith(SCORE))
    return f"{answer}, up to {plan.max_tokens} tokens{logprobs}{rated}"


def _score(artifact: CalibrationArtifact) -> str:
    """The score with its unit, and of a scorer the direction: thresholds and tables are in terms of uncertainty."""
    score = artifact.estimator
    text = f"{score.name} v{score.version}, in {score.unit}"
    if score.params.get("higher") != "certain":
        return text
    return f"{text}; lower is more certain: {'1 ' if score.unit == 'probability' else ''}- the scorer's number"


def left_out(artifact: CalibrationArtifact) -> str:
    """The numbers of questions that were not measured and not labelled."""
    data = artifact.data
    failed = f" ({data.n_failed} because a server, rate limit or time-out failed)" if data.n_failed else ""
    return f"{data.n_unmeasured} not measured{failed}, {data.n_unlabelled} not labelled, of {data.n_questions}"


def auroc_of(artifact: CalibrationArtifact) -> AurocInterval | None:
    """AUROC of the calibration scores with its interval; None with one class only, and of items."""
    scores = artifact.calibration
    if artifact.outcome.diagnostics.auroc is None:
        return None
    return auroc_interval(np.array(scores.uncertainty), scores.error)


def _auroc(artifact: CalibrationArtifact) -> str:
    """The AUROC with its interval."""
    interval = auroc_of(artifact)
    if interval is None:
        return "of whole answers only" if artifact.items is not None else "only one class"
    return f"{interval.value:.3f} (95 % interval {interval.low:.3f} to {interval.high:.3f})"


def describe_spec(name: str, params: dict[str, object]) -> str:
    """A name and its parameters: "token_f1 (threshold 0.5)"."""
    shown = [f"{key} {value}" for key, value in params.items() if key not in _HIDDEN and value != {}]
    return f"{name} ({', '.join(shown)})" if shown else name
