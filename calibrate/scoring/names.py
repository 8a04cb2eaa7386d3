"""Scores and judges as a user writes them, and the keys that record files store scores by."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS
from guardrail.judges.base import Role
from guardrail.judges.registry import JUDGES, make_judge, make_named
from guardrail.sampling.follow_ups import SCORE
from guardrail.specs import EstimatorSpec, JudgeSpec
from guardrail.types import Bindings, SamplingPlan
from guardrail.uncertainty import Estimator, Scorer, make_estimator
from guardrail.uncertainty.combine import COMBINATIONS, Parts
from guardrail.uncertainty.plan import TWO_STAGES, samples_of

from ..data.formats.field_map import SCORE_PREFIX as IMPORTED
from ..data.records import RecordFile
from ..spec_syntax import cut, parse_name, written

__all__ = ["estimator_key", "key_of", "parse_estimator", "stored_key", "usual_estimator", "usual_key"]

_COMBINATION = re.compile(rf"\s*({'|'.join(COMBINATIONS)})\s*\((.*)\)\s*", flags=re.DOTALL)
_SETTING = re.compile(r"\s*([a-z]\w*)\s*=\s*([^\s=]+)\s*")
_FORMS = "Write then(CHEAP, DEAR, w=0.2, m=2), ties(FIRST, SECOND, r=0.001) or rank_mean(A, B, ...)"


def estimator_key(estimator: Estimator) -> str:
    """Key of an estimator in a record file: its name, and what it compares answers with where that is not the default.

    "semantic_entropy", "semantic_entropy:exact", "semantic_entropy:text(threshold=0.7)",
    "eigenvalue:jaccard", "degree:from_judge(exact)", "graded_disagreement:exact:rouge_l", and for combinations
    "then(answer_word_nll, primary_disagreement, w=0.2, m=2)". Other specs have other keys,
    versions aside, and `parse_estimator` makes the same estimator of it, where its judge can be made by name.
    """
    if estimator.members:
        settings = [f"{name}={value:g}" for name, value in estimator.params["settings"].items()]
        return f"{estimator.name}({', '.join([*map(estimator_key, estimator.members), *settings])})"
    if estimator.scorer is not None:
        return estimator.name
    own, usual = estimator.spec, make_estimator(estimator.name).spec
    alike = own.similarity != usual.similarity
    parts = [estimator.name]
    if own.judge is not None and (own.judge != usual.judge or alike):
        parts.append(written(own.judge))
    if own.similarity is not None and alike:
        parts.append(written(own.similarity))
    if own.entailment is not None:
        parts.append(written(own.entailment))
    return ":".join(parts)


def parse_estimator(text: str, *, scorers: Sequence[Scorer] = (), bindings: Bindings | None = None) -> Estimator:
    """An estimator from how a user writes it.

    "name", "name:judge", "name:similarity", "name:judge:similarity" for estimators with both, or a
    combination of these: "then(CHEAP, DEAR, w=0.2, m=2)", "ties(FIRST, SECOND)", "rank_mean(A, B, ...)". An empty part
    is the default: "name::rouge_l". A judge or similarity may have parameters: "semantic_entropy:text(threshold=0.7)".
    A judge is a similarity as "degree:from_judge(exact)", and a chat model is one as "chat(model=PROVIDER:MODEL)".

    Args:
        text: What the user wrote.
        scorers: Scorers that the text may name as "score:NAME@VERSION".
        bindings: The plan's tools and answer format, which decide the default judge.

    Raises:
        UsageError: Unknown estimator, judge or similarity.
    """
    for each in scorers:
        if text.strip() == each.follow_up:
            return each.estimator
    spelled = _read(text)
    if not spelled.parts:
        chosen: dict[str, Any] = {role: _made(role, own) for role, own in spelled.roles.items() if own}
        return make_estimator(spelled.name, bindings=bindings, **chosen)
    parts = [parse_estimator(part, scorers=scorers, bindings=bindings) for part in spelled.parts]
    try:
        return COMBINATIONS[spelled.name](*parts, **spelled.settings)
    except TypeError as error:  # a wrong number of scores, or a setting that it does not have
        raise UsageError(f"cannot read {text!r}. {_FORMS}.") from error


def _made(role: Role, text: str) -> Any:
    """The judge, similarity or entailment model that a user names."""
    name, params = parse_name(text)
    if (role, name) != ("judge", "chat") or params.keys() != {"model"}:
        return make_named(role, name, params)
    from guardrail.judges.chat import ChatJudge  # slow to import, and most scores ask no model
    from guardrail.sampling.models import resolve_model

    return ChatJudge(resolve_model(str(params["model"])))


def stored_key(known: Mapping[str, EstimatorSpec], text: str, bindings: Bindings | None = None) -> str:
    """The key of the scores that a user means, among those of a record file.

    A key itself, or what was written to make the scores: what the text leaves open matches anything. If several fit,
    the one with the most defaults there is meant. No model is loaded.

    Args:
        known: Specs of the file's header by key.
        text: What the user wrote; of an imported score also its name alone.
        bindings: The plan's tools and answer format, which decide the default judge.

    Returns:
        The key; the text itself when nothing fits (a caller that looks for its scores reports that they are missing).

    Raises:
        UsageError: Several fit; they are listed.
    """
    for key in (text, IMPORTED + text):
        if key in known:
            return key
    try:
        matches = {key: _distance(text, spec, bindings) for key, spec in known.items()}
    except UsageError:  # another command knows the text, or it is a mistake
        return text
    fits = {key: distance for key, distance in matches.items() if distance is not None}
    nearest = [key for key, distance in fits.items() if distance == min(fits.values())]
    if len(nearest) > 1:
        raise UsageError(f"{text!r} may be any of: {'; '.join(sorted(fits))}. Write one of them in quotes.")
    return nearest[0] if nearest else text


@dataclass(frozen=True, slots=True)
class _Spelling:
    """A text in its parts.

    Attributes:
        name: Of the score.
        roles: What it compares answers with, for every role it has; "" where the text is silent.
        parts: Of a combination, its scores as written; empty for a plain score.
        settings: Of a combination, its numbers, if written.
    """

    name: str
    roles: dict[Role, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    settings: dict[str, float] = field(default_factory=dict)


def _read(text: str) -> _Spelling:
    """A text in its parts.

    Raises:
        UsageError: It cannot be read, or names an unknown score.
    """
    combination = _COMBINATION.fullmatch(text)
    if combination is not None:
        return _read_combination(text, *combination.groups())
    name, *rest = (part.strip() for part in cut(text.strip(), ":"))
    if name == "imported":
        raise UsageError(f"{text!r} came with an imported file and cannot be computed. Name another score.")
    estimator = make_estimator(name)
    has: dict[Role, bool] = {
        "judge": estimator.needs.judge,
        "similarity": estimator.similarity is not None,
        "entailment": estimator.needs.entailment,
    }
    roles = [role for role, there in has.items() if there]
    if len(rest) > len(roles):
        form = ":".join([name, *(role.upper() for role in roles)])
        raise UsageError(f"cannot read {text!r}. Write {form}.")
    rest += [""] * (len(roles) - len(rest))
    return _Spelling(name, dict(zip(roles, rest, strict=True)))


def _read_combination(text: str, name: str, inner: str) -> _Spelling:
    parts, settings = list[str](), dict[str, float]()
    for piece in cut(inner, ","):
        setting = _SETTING.fullmatch(piece)
        try:
            if setting is None:
                parts.append(piece.strip())
            else:
                settings[setting[1]] = float(setting[2])
        except ValueError:
            raise UsageError(f"cannot read {piece.strip()!r} in {text!r}: it is not a number. {_FORMS}.") from None
    if not all(parts):
        raise UsageError(f"cannot read {text!r}: a score is missing. {_FORMS}.")
    return _Spelling(name, parts=tuple(parts), settings=settings)


def _distance(text: str, spec: EstimatorSpec, bindings: Bindings | None) -> int | None:
    """The number of things that a text leaves open and that are not the default in a stored score.

    None if something that the text says is not true of the score.
    """
    if text.strip().startswith(SCORE) or spec.name.startswith((SCORE, IMPORTED)) or spec.name == ITEMS:
        return 0 if text.strip() == spec.name else None
    spelled = _read(text)
    if spelled.name != spec.name:
        return None
    if spelled.parts:
        stored = Parts.from_stored(spec.params)
        if not spelled.settings.items() <= stored.settings.items() or len(spelled.parts) != len(stored.parts):
            return None
        parts = [_distance(part, own, bindings) for part, own in zip(spelled.parts, stored.parts, strict=True)]
        usual = {name: each.default for name, each in signature(COMBINATIONS[spec.name]).parameters.items()}
        other = [name for name in stored.settings.keys() - spelled.settings if stored.settings[name] != usual[name]]
        return None if None in parts else sum(filter(None, parts)) + len(other)
    given = {role: own for role, own in spelled.roles.items() if own}
    if not all(_is_named(*parse_name(own), getattr(spec, role)) for role, own in given.items()):
        return None
    default = make_estimator(spec.name, bindings=bindings).spec
    return len([role for role in spelled.roles.keys() - given if getattr(spec, role) != getattr(default, role)])


def _is_named(name: str, params: Mapping[str, Any], stored: JudgeSpec) -> bool:
    """Return whether what is written of a judge is true of a stored one. Those that ask no model are made to see it."""
    if name != stored.name:
        return False
    if name == "from_judge":
        inner, known = params.get("judge"), JudgeSpec.model_validate(stored.params["judge"])
        return isinstance(inner, dict) and _is_named(inner.get("name", ""), inner.get("params", {}), known)
    if name in JUDGES:
        return make_judge(name, **params).spec.params == stored.params
    return all(_is_value(key, value, stored.params[key]) for key, value in params.items() if key in stored.params)


def _is_value(name: str, value: Any, stored: Any) -> bool:
    """Return whether a parameter may have had the value that is stored after loading.

    Loading replaces "auto" and a branch or tag, and the name of a chat model is stored without its provider; that of a
    model in a module is not known before.
    """
    pinned = str(value).startswith("sha256:") or (len(str(value)) == 40 and set(str(value)) <= set("0123456789abcdef"))
    moves = value == "auto" or (name == "revision" and not pinned) or str(value).startswith("python:")
    bare = str(value).partition(":")[2].partition("@")[0] if name == "model" else value
    return moves or stored in (value, bare)


# -- The scores that are meant where none are named -------------------------------------------------------------------


def usual_estimator(calls: float | None, *, options: bool, bindings: Bindings | None = None) -> str:
    """The score used when none is named, or the best for so many calls a question.

    Predictive entropy over options, semantic entropy for open answers.

    Raises:
        UsageError: Calls for questions with options, or a number that no plan has.
    """
    if calls is None:
        return "predictive_entropy" if options else "semantic_entropy"
    samples_of(calls)
    if options:
        raise UsageError("--calls is for open answers: the likelihoods of options take one call. Leave it out.")
    # JSON and tool calls have no words of their own: the whole answer counts there.
    cheap = "answer_word_nll" if bindings is None else "sequence_nll"
    by_calls = {1.0: cheap, TWO_STAGES: f"then({cheap}, primary_disagreement)", 3.0: "graded_disagreement"}
    return by_calls.get(calls, "semantic_entropy")


def usual_key(plan: SamplingPlan) -> str:
    """Key of the estimator that is meant where none is named: `usual_estimator`, which needs log-probabilities.

    Without them, discrete semantic entropy if the answer is the vote of the samples, and otherwise graded
    disagreement, which compares the samples with the answer that is given out (docs/estimators.md).
    """
    name = usual_estimator(None, options=plan.options is not None)
    if plan.options is None and not plan.logprobs:
        name = "discrete_semantic_entropy" if plan.primary == "majority" else "graded_disagreement"
    return estimator_key(parse_estimator(name, bindings=plan.bindings))


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
