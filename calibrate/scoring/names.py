"""Estimators and judges as a user writes them, and the keys that record files store scores by."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from guardrail.errors import UsageError
from guardrail.judges import (
    Entailment,
    Judge,
    JudgeSpec,
    Similarity,
    from_judge,
    list_judges,
    list_similarities,
    make_entailment,
    make_judge,
    make_similarity,
)
from guardrail.judges.registry import JUDGES, SIMILARITIES
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import Bindings
from guardrail.uncertainty import Estimator, EstimatorSpec, Scorer, list_estimators, make_estimator
from guardrail.uncertainty.combine import COMBINATIONS, Parts

from ..data.formats.field_map import IMPORTED
from ..spec_syntax import FROM_JUDGE, cut, parse_name, written

__all__ = ["estimator_key", "named_entailment", "named_similarity", "parse_estimator", "stored_key"]

Role = Literal["judge", "similarity", "entailment"]
_CLUSTERINGS = ("components", "greedy")
_EXPRESSION = re.compile(rf"\s*({'|'.join(COMBINATIONS)})\s*\((.*)\)\s*", flags=re.DOTALL)
_SETTING = re.compile(r"\s*([a-z]\w*)\s*=\s*([^\s=]+)\s*")
_FORMS = "Write then(CHEAP, DEAR, w=0.2, m=2), ties(FIRST, SECOND, r=0.001) or rank_mean(A, B, ...)"


def estimator_key(estimator: Estimator) -> str:
    """Key of an estimator in a record file: its name, and what it compares answers with where that is not the default.

    "semantic_entropy", "semantic_entropy:exact", "semantic_entropy:text(threshold=0.7):greedy",
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
    greedy, alike = own.clustering == "greedy", own.similarity != usual.similarity
    parts = [estimator.name]
    if own.judge is not None and (own.judge != usual.judge or greedy or alike):
        parts.append(written(own.judge))
    if own.similarity is not None and alike:
        parts.append(written(own.similarity))
    if own.entailment is not None:
        parts.append(written(own.entailment))
    return ":".join([*parts, "greedy"] if greedy else parts)


def parse_estimator(
    text: str,
    *,
    judge: Judge | None = None,
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
    scorers: Sequence[Scorer] = (),
) -> Estimator:
    """An estimator from how a user writes it.

    "name", "name:judge", "name:judge:greedy", "name:similarity", "name:judge:similarity" for estimators with both, or a
    combination of these: "then(CHEAP, DEAR, w=0.2, m=2)", "ties(FIRST, SECOND)", "rank_mean(A, B, ...)". An empty part
    is the default: "name::rouge_l". A judge or similarity may have parameters: "semantic_entropy:text(threshold=0.7)".
    A judge is a similarity as "degree:from_judge(exact)".

    Args:
        text: What the user wrote.
        judge: Judge of an estimator that clusters, where the text names none.
        similarity: The same for estimators that take a similarity.
        entailment: The same for estimators that look for contradictions.
        scorers: Scorers that the text may name as "score:NAME@VERSION".

    Raises:
        UsageError: Unknown estimator, judge, clustering or similarity.
    """
    if (expression := _expression(text)) is not None:
        parts = [
            parse_estimator(part, judge=judge, similarity=similarity, entailment=entailment, scorers=scorers)
            for part in expression.parts
        ]
        try:
            return COMBINATIONS[expression.name].make(*parts, **expression.settings)
        except TypeError as error:  # a wrong number of scores, or a setting that it does not have
            raise UsageError(f"cannot read {text!r}. {_FORMS}.") from error
    for each in scorers:
        if text.strip() == each.follow_up:
            return each.estimator
    spelled = _read(text)
    defaults: dict[Role, Any] = {"judge": judge, "similarity": similarity, "entailment": entailment}
    chosen: dict[str, Any] = {
        role: _MAKERS[role](part, spelled.name) if part else defaults[role] for role, part in spelled.parts.items()
    }
    return make_estimator(
        spelled.name, clustering="greedy" if spelled.clustering == "greedy" else "components", **chosen
    )


def stored_key(known: Mapping[str, EstimatorSpec], text: str, bindings: Bindings | None = None) -> str:
    """The key of the scores that a user means, among those of a record file.

    A key itself, or what was written to make the scores: a model is not loaded to find out its revision, so what the
    text leaves open matches anything. If several fit, the one with only defaults there is meant.

    Args:
        known: Keys and specs of the file's header.
        text: What the user wrote; of an imported score also its name alone.
        bindings: The plan's tools and answer format, which decide the default judge.

    Returns:
        The key; the text itself when nothing fits (a caller that looks for its scores reports that they are missing).

    Raises:
        UsageError: Several fit; they are listed. Or a light judge does not take such parameters.
    """
    if text in known:
        return text
    if IMPORTED + text in known:
        return IMPORTED + text
    try:
        spelled = _expression(text) or _read(text)
    except UsageError:
        return text
    matches = {key: _match(spelled, spec, bindings) for key, spec in known.items()}
    fits = [key for key, usual in matches.items() if usual is not None]
    usual = [key for key in fits if matches[key]]
    if len(usual) == 1 or len(fits) == 1:
        return (usual if len(usual) == 1 else fits)[0]
    if not fits:
        return text
    raise UsageError(f"{text!r} may be any of: {'; '.join(sorted(fits))}. Write one of them in quotes.")


def named_similarity(text: str, estimator: str = "NAME") -> Similarity:
    """A similarity as a user writes it: "rouge_l", "nli(model=./weights)", "from_judge(text(threshold=0.7))".

    Raises:
        UsageError: An unknown similarity, or a judge in its place.
    """
    inner = FROM_JUDGE.fullmatch(text)
    if inner is not None:
        if parse_name(inner["judge"])[0] == "chat":
            raise UsageError(
                f"{text!r}: a chat model cannot be named here. In Python: make({estimator!r}, "
                "similarity=from_judge(ChatJudge(model)))."
            )
        return from_judge(_named_judge(inner["judge"], estimator))
    name, params = parse_name(text)
    if name in JUDGES or (name in list_judges() and name not in list_similarities()):
        raise UsageError(
            f"{name} is a judge, and {estimator} takes a similarity there. Write from_judge({text}), or name one of: "
            f"{', '.join(list_similarities())}."
        )
    return make_similarity(name, **params)


def named_entailment(text: str, estimator: str = "NAME") -> Entailment:
    """An entailment model as a user writes it: "nli(model=./weights)".

    Raises:
        UsageError: An unknown model.
    """
    name, params = parse_name(text)
    return make_entailment(name, **params)


def _named_judge(text: str, estimator: str) -> Judge:
    name, params = parse_name(text)
    if name == "chat":
        raise UsageError(
            f"the judge chat is a model, which is given apart: calibrate score RECORDS --score {estimator} --judge "
            "'chat(model=PROVIDER:MODEL)'"
        )
    if name not in JUDGES and name not in list_judges() and name in list_similarities():
        both = estimator in list_estimators() and make_estimator(estimator).similarity is not None
        raise UsageError(
            f"{name} is a similarity, and {estimator} takes a judge there: {', '.join(list_judges())}."
            + (f" Leave the judge empty for its default: {estimator}::{text}" if both else "")
        )
    return make_judge(name, **params)


_MAKERS: dict[Role, Callable[[str, str], Any]] = {
    "judge": _named_judge,
    "similarity": named_similarity,
    "entailment": named_entailment,
}


@dataclass(frozen=True, slots=True)
class _Written:
    """A text in its parts.

    Attributes:
        name: Of the estimator.
        parts: What it compares answers with, by role, for every role it has; "" where the text is silent.
        clustering: "" where the text is silent.
    """

    name: str
    parts: dict[Role, str]
    clustering: str


@dataclass(frozen=True, slots=True)
class _Expression:
    """A combination in its parts.

    Attributes:
        name: Of the combination.
        parts: Its scores, as written.
        settings: Its numbers, if written.
    """

    name: str
    parts: tuple[str, ...]
    settings: dict[str, float]


def _match(spelled: _Written | _Expression, spec: EstimatorSpec, bindings: Bindings | None) -> bool | None:
    """Whether a spec is what a text means, and has the default wherever the text is silent.

    Returns:
        None if something in the text is not true of the spec; otherwise whether the rest of the spec is the default.
    """
    if isinstance(spelled, _Expression):
        return _match_expression(spelled, spec, bindings)
    named = {role: part for role, part in spelled.parts.items() if part}
    if spec.name != spelled.name or spelled.clustering not in ("", spec.clustering):
        return None
    if not all(_is(role, part, getattr(spec, role)) for role, part in named.items()):
        return None
    default = make_estimator(spelled.name, bindings=bindings).spec
    same = all(getattr(spec, role) == getattr(default, role) for role in spelled.parts.keys() - named.keys())
    return same and (spelled.clustering != "" or spec.clustering == default.clustering)


def _match_expression(spelled: _Expression, spec: EstimatorSpec, bindings: Bindings | None) -> bool | None:
    stored = Parts.from_stored(spec.params) if spec.name == spelled.name else None
    if stored is None or len(stored.parts) != len(spelled.parts):
        return None
    parts = [_match_part(text, part, bindings) for text, part in zip(spelled.parts, stored.parts, strict=True)]
    if None in parts or any(stored.settings.get(name) != value for name, value in spelled.settings.items()):
        return None
    usual = parse_estimator(f"{spelled.name}(sequence_nll, primary_disagreement)").params["settings"]
    return all(parts) and {**usual, **spelled.settings} == stored.settings


def _match_part(text: str, spec: EstimatorSpec, bindings: Bindings | None) -> bool | None:
    if text.strip().startswith(SCORE):
        return text.strip() == spec.name or None
    return _match(_read(text), spec, bindings)


def _expression(text: str) -> _Expression | None:
    """A text as a combination; None for a plain score.

    Raises:
        UsageError: It begins like a combination and cannot be read.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        return None
    parts, settings = list[str](), dict[str, float]()
    for piece in cut(match[2], ","):
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
    return _Expression(match[1], tuple(parts), settings)


def _read(text: str) -> _Written:
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
    clustering = rest.pop() if rest and rest[-1] in _CLUSTERINGS else ""
    if clustering and not has["judge"]:
        raise UsageError(f"{name} groups no answers and knows no clustering; leave {clustering!r} out")
    if len(rest) > len(roles):
        form = ":".join([name, *(role.upper() for role in roles)])
        also = ", with :greedy behind it where you want that clustering" if has["judge"] else ""
        raise UsageError(f"cannot read {text!r}. Write {form}{also}.")
    rest += [""] * (len(roles) - len(rest))
    return _Written(name, dict(zip(roles, rest, strict=True)), clustering)


def _is(role: Role, text: str, spec: JudgeSpec | None) -> bool:
    """Whether a text names what a spec describes. A model is not loaded: the text must be true of the spec."""
    if spec is None:
        return False
    inner = FROM_JUDGE.fullmatch(text) if role == "similarity" else None
    if inner is not None:
        judge = spec.params.get("judge") if spec.name == "from_judge" else None
        return judge is not None and _is("judge", inner["judge"], JudgeSpec.model_validate(judge))
    name, params = parse_name(text)
    if name != spec.name:
        return False
    if name == "chat":
        return _is_chat(str(params.pop("model", "")), spec) and _all_true(params, spec)
    if role == "judge" and name in JUDGES:
        return make_judge(name, **params).spec == spec
    if role == "similarity" and name != "from_judge" and name in SIMILARITIES:
        return make_similarity(name, **params).spec == spec
    return _all_true(params, spec)


def _all_true(params: Mapping[str, Any], spec: JudgeSpec) -> bool:
    """Whether each parameter that a spec stores has the spec's value.

    "auto" and a revision that moves match any value, because loading replaces them.
    """
    return all(
        spec.params[name] == value
        for name, value in params.items()
        if name in spec.params and value != "auto" and not (name == "revision" and _moves(value))
    )


def _moves(revision: Any) -> bool:
    """Whether a revision is a branch or tag: the spec then has the commit that it led to."""
    text = str(revision)
    return not text.startswith("sha256:") and not (len(text) == 40 and set(text) <= set("0123456789abcdef"))


def _is_chat(model: str, spec: JudgeSpec) -> bool:
    """Whether a model as `--judge` takes it, "openai:gpt-4o", has the identity that a spec stores."""
    own = spec.params.get("model")
    return model in ("", own) or model.partition(":")[2].partition("@")[0] == own
