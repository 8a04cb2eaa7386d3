"""Who the model is: the part of a fingerprint that an artifact binds to."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

from .types import Frozen

__all__ = ["ModelIdentity", "identify"]


class ModelIdentity(Frozen):
    """Names a model well enough to notice that it is another one."""

    provider: str
    """Who serves it, e.g. "transformers", "openai", or the chat model's class name."""
    model: str
    """Model id as the provider knows it; for a local folder its base name."""
    revision: str | None = None
    """What pins the weights: "sha256:..." of the weight files, or a hub commit; None where it cannot be known."""

    def differences(self, running: ModelIdentity) -> list[str]:
        """Human-readable differences between this (calibrated) identity and the running one; empty when equal.

        A local folder that was renamed is the same model when its weights hash is the same.
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

    A model may say itself who it is (``guardrail_identity()``, as ``TransformersChat`` does with the hash of its
    weights); otherwise LangChain's tracing parameters are read (provider and model name, no revision: a provider that
    changes a model behind its name cannot be noticed here).
    """
    own = getattr(model, "guardrail_identity", None)
    if callable(own):
        identity = own()
        if not isinstance(identity, ModelIdentity):
            raise TypeError(f"guardrail_identity() must return a ModelIdentity, got {type(identity).__name__}")
        return identity
    params: dict[str, Any] = dict(model._get_ls_params())
    provider = str(params.get("ls_provider") or type(model).__name__)
    name = params.get("ls_model_name") or getattr(model, "model_name", None) or getattr(model, "model", None)
    return ModelIdentity(provider=provider, model=str(name or type(model).__name__))
