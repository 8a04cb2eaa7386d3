"""Identities of the parts of an artifact: model, estimator, judge and correctness rule. Run time must have the same."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from .errors import UsageError
from .types import Frozen, Unit

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel  # slow to import, and commands on records do not need it

log = logging.getLogger("guardrail")
IMPORTED = "imported"
"""Provider of answers that were imported without naming the model that gave them."""
_NAME_FIELDS = ("model", "model_name", "model_id", "deployment_name")
"""Fields in which LangChain's classes keep the name of a model."""


class ModelIdentity(Frozen):
    """Identifies a model, so that an artifact is refused for another one."""

    provider: str
    """Provider, e.g. "transformers", "openai", or the chat model's class name."""
    model: str
    """Model id as the provider knows it; for a local folder its base name."""
    revision: str | None = None
    """The identity of the weights: "sha256:..." of the weight files, or a hub commit; None if unknown."""

    @property
    def is_known(self) -> bool:
        """True if it names a model that can run; answers of an unknown one gate none."""
        return self.provider != IMPORTED

    def differences(self, running: ModelIdentity) -> list[str]:
        """Human-readable differences between this (calibrated) identity and the running one; empty when equal.

        A renamed local folder is the same model if the hash of its weights is the same.
        """
        if self.revision is not None and self.revision == running.revision and self.provider == running.provider:
            return []
        fields = ("provider", "model", "revision")
        return [
            f"model {name}: calibrated {getattr(self, name)!r}, running {getattr(running, name)!r}"
            for name in fields
            if getattr(self, name) != getattr(running, name)
        ]


def identify(model: BaseChatModel) -> ModelIdentity:
    """Identity of any chat model.

    A model with a method ``guardrail_identity()`` identifies itself, as ``TransformersChat`` does with the hash of its
    weights. Otherwise LangChain's tracing parameters give provider and model name (Azure: the model if it is named,
    else the deployment; Bedrock: the base model if it is named, else the model id), without a revision: a model that
    the provider changes under the same name is not noticed. A class that names no model in any of these places is
    identified by its own name, with a warning in the log.

    Raises:
        UsageError: The model's class has a field for its name, and it is empty.
    """
    identify_itself = getattr(model, "guardrail_identity", None)
    if callable(identify_itself):
        identity = identify_itself()
        if not isinstance(identity, ModelIdentity):
            raise TypeError(f"guardrail_identity() must return a ModelIdentity, got {type(identity).__name__}")
        return identity
    params: dict[str, Any] = dict(model._get_ls_params())
    provider = str(params.get("ls_provider") or type(model).__name__)
    names = (params.get("ls_model_name"), *(getattr(model, field, None) for field in _NAME_FIELDS))
    name = next(filter(None, names), None)
    fields = [field for field in _NAME_FIELDS if field in type(model).model_fields]
    if not name and fields:
        raise UsageError(
            f"this {type(model).__name__} names no model ({', '.join(fields)} are empty), so no artifact can be bound "
            f"to it. Make it with {fields[0]}=..."
        )
    if not name:
        _warn_unnamed(type(model).__name__)
    return ModelIdentity(provider=provider, model=str(name or type(model).__name__))


@lru_cache(maxsize=64)  # once for each class
def _warn_unnamed(kind: str) -> None:
    log.warning(
        "guardrail: a %s names no model, so an artifact is bound to the class alone and fits any model behind it. Give "
        "the class a field (%s), a _get_ls_params() with ls_model_name, or a method guardrail_identity().",
        kind, ", ".join(_NAME_FIELDS),
    )  # fmt: skip


class JudgeSpec(Frozen):
    """The identity of a judge in an artifact; another spec at run time is a mismatch."""

    name: str
    """Name of the judge."""
    version: int
    """Raised by any change that can move a verdict."""
    params: dict[str, Any]
    """Parameters, e.g. thresholds, model and revision."""

    def __eq__(self, other: object) -> bool:
        """Equal name, version and parameters; models with the same revision hash may have different paths."""
        if not isinstance(other, JudgeSpec):
            return NotImplemented
        return (self.name, self.version, self._decisive()) == (other.name, other.version, other._decisive())

    __hash__ = None  # type: ignore[assignment]  # parameters are a dict

    def _decisive(self) -> dict[str, Any]:
        pinned = str(self.params.get("revision") or "").startswith("sha256:")
        return {key: value for key, value in self.params.items() if not (pinned and key == "model")}


class EstimatorSpec(Frozen):
    """The identity of an estimator in an artifact; another spec at run time is a mismatch."""

    name: str
    """Name of the estimator."""
    version: int
    """Raised by any change that can move a score (see "Recalibrate" in the changelog)."""
    unit: Unit
    """Unit of the score."""
    judge: JudgeSpec | None = None
    """The equivalence judge, for estimators that cluster."""
    similarity: JudgeSpec | None = None
    """The graded similarity, for estimators over a graph of samples or over pieces of an answer."""
    entailment: JudgeSpec | None = None
    """The entailment model, for estimators that look for contradictions."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the formula."""


class CorrectnessSpec(Frozen):
    """The rule that decided which calibration answers were correct. Fixed before calibration."""

    name: str
    """Name of the rule, e.g. "token_f1"."""
    version: int
    """Raised by any change that can move a label."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters, e.g. the F1 threshold."""
