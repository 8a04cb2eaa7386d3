"""Identities of the parts of an artifact: model, estimator, judge and correctness rule. Run time must have the same."""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from .errors import UsageError
from .types import Frozen, Unit

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel  # slow to import, and commands on records do not need it

IMPORTED = "imported"
"""Provider of answers that were imported without naming the model that gave them."""


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


log = logging.getLogger("guardrail")
_NAMES = ("model", "model_name", "model_id", "deployment_name")
"""Fields in which LangChain's classes keep the name of a model."""


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
    own = getattr(model, "guardrail_identity", None)
    if callable(own):
        identity = own()
        if not isinstance(identity, ModelIdentity):
            raise TypeError(f"guardrail_identity() must return a ModelIdentity, got {type(identity).__name__}")
        return identity
    params: dict[str, Any] = dict(model._get_ls_params())
    provider = str(params.get("ls_provider") or type(model).__name__)
    name = params.get("ls_model_name") or next((value for at in _NAMES if (value := getattr(model, at, None))), None)
    fields = [at for at in _NAMES if at in type(model).model_fields]
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
        kind, ", ".join(_NAMES),
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

    def condition(self, threshold: float) -> str:
        """The gate at a threshold, by the user's own score in its unit and direction: "confidence >= 0.8906"."""
        return f"{self.params.get('column', self.name)} {self.limit(threshold)}"

    def limit(self, threshold: float) -> str:
        """`condition` without the name of the score."""
        if self.name.startswith("imported:"):
            return self._limit_of_column(threshold)
        unit = "" if self.unit == "probability" else f" {self.unit}"
        if self.name.startswith("score:") and self.params.get("higher") == "certain":
            return f">= {1 - threshold if self.unit == 'probability' else -threshold:.6g}{unit}"
        return f"<= {threshold:.6g}{unit}"

    def _limit_of_column(self, threshold: float) -> str:
        """The limit of an imported score, in as many digits as it takes to accept the same rows of the user's table."""
        stored = self.params.get("stored", "value")
        if stored == "value":
            return f"<= {threshold!r}"
        if stored != "1 - value":
            return f">= {0.0 - threshold!r}"
        # 1 - value was rounded. Of the values that give the threshold the least is meant, or the one with few digits,
        # which a person wrote.
        middle = (Fraction(threshold) + Fraction(math.nextafter(threshold, math.inf))) / 2
        least = max(float(1 - middle), 0.0)
        if 1 - least > threshold:
            least = math.nextafter(least, math.inf)
        written = float(f"{least:.12g}")
        return f">= {written if 1 - written == threshold else least!r}"

    @property
    def samples(self) -> int | None:
        """Number of samples that `then` reads; None for other scores, which read all."""
        return int(self.params["settings"]["m"]) if self.name == "then" else None

    @property
    def scale(self) -> tuple[float, ...] | None:
        """First scores, for `then`, of other questions, ascending; None for other scores."""
        return tuple(self.params["ranks"]["scores"][0]) if self.name == "then" else None


class CorrectnessSpec(Frozen):
    """The rule that decided which calibration answers were correct. Fixed before calibration."""

    name: str
    """Name of the rule, e.g. "token_f1"."""
    version: int
    """Raised by any change that can move a label."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters, e.g. the F1 threshold."""
