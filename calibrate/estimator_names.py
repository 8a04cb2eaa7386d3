"""Estimators and judges as a user writes them, and the keys that record files store scores by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from guardrail.errors import UsageError
from guardrail.judges import Entailment, Judge, Similarity, make_entailment, make_similarity
from guardrail.judges import make as make_judge
from guardrail.uncertainty import Estimator, make

from .ensemble import ensemble_key, load_ensemble

__all__ = ["estimator_key", "parse_estimator", "parse_name"]

Made = TypeVar("Made")
_NAMED = re.compile(r"(?P<name>\w+)(?:\((?P<params>.*)\))?", flags=re.DOTALL)


def estimator_key(estimator: Estimator) -> str:
    """Key of an estimator in a record file: its name, and what it compares answers with where that is not the default.

    "semantic_entropy", "semantic_entropy:exact", "semantic_entropy:token_f1(threshold=0.7):greedy",
    "eigenvalue:jaccard".
    """
    if estimator.members:
        return ensemble_key(estimator.spec)
    own, usual = estimator.spec, make(estimator.name).spec
    spec, default = own.judge or own.similarity or own.entailment, usual.judge or usual.similarity
    if spec is None:
        return estimator.name
    parts = [estimator.name]
    if spec != default or estimator.clustering != "components":
        params = ", ".join(f"{name}={value}" for name, value in sorted(spec.params.items()))
        parts.append(f"{spec.name}({params})" if params else spec.name)
    if estimator.clustering != "components":
        parts.append(estimator.clustering)
    return ":".join(parts)


def parse_estimator(
    text: str,
    *,
    judge: Judge | None = None,
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
) -> Estimator:
    """An estimator from how a user writes it.

    "name", "name:judge", "name:judge:greedy", "name:similarity", or the path of an ensemble file, which ends in
    ".json". A judge or similarity may have parameters: "semantic_entropy:token_f1(threshold=0.7)".

    Args:
        text: What the user wrote.
        judge: Judge of an estimator that clusters, where the text names none.
        similarity: The same for estimators that rate pairs.
        entailment: The same for estimators that look for contradictions.

    Raises:
        UsageError: Unknown estimator, judge, clustering or similarity.
    """
    if text.endswith(".json"):
        return load_ensemble(text)
    name, *rest = _parts(text)
    named, clustering = (*rest, "", "")[:2]
    if len(rest) > 2 or clustering not in ("", "components", "greedy"):
        raise UsageError(f"no clustering named {':'.join(rest[1:])!r}; choose components (default) or greedy")
    needs = make(name).needs
    if needs.similarity and not clustering:
        return make(name, similarity=_named(named, make_similarity) or similarity)
    if needs.entailment and not clustering:
        return make(name, entailment=_named(named, make_entailment) or entailment)
    chosen = _named(named, make_judge) or (judge if needs.judge else None)
    if clustering and not needs.judge:
        raise UsageError(f"{name} groups no answers and knows no clustering; leave {clustering!r} out")
    return make(name, judge=chosen, clustering="greedy" if clustering == "greedy" else "components")


def parse_name(text: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a judge as a user writes it: "exact", "nli(model=./weights, revision=main)".

    Values are read as JSON where they are (numbers, true, "quoted"), else as texts.

    Raises:
        UsageError: The text has another form.
    """
    found = _NAMED.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"cannot read {text!r}. Write a name, or a name with parameters: token_f1(threshold=0.6).")
    params: dict[str, Any] = {}
    for part in (found["params"] or "").split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise UsageError(f"cannot read the parameter {part.strip()!r} of {text!r}. Write name=value.")
        try:
            params[key] = json.loads(value)
        except ValueError:
            params[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return found["name"], params


def _named(text: str, maker: Callable[..., Made]) -> Made | None:
    if not text:
        return None
    name, params = parse_name(text)
    return maker(name, **params)


def _parts(text: str) -> list[str]:
    """Parts of a text between colons; a colon inside brackets separates nothing."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
