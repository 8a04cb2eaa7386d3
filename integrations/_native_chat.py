"""What the chat models that sample natively share: what they tell LangChain of themselves, and refuse alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import UsageMetadata

from guardrail.errors import UsageError

__all__ = ["NativeChat", "check_one_answer", "check_seeds", "llm_output"]


class NativeChat(BaseChatModel):
    """Names, settings and token counts in LangChain's form."""

    PROVIDER: ClassVar[str]
    """Who serves the model, in identities and traces."""
    SETTINGS: ClassVar[tuple[str, ...]]
    """Names of the fields that tell two models apart in traces and caches."""

    @abstractmethod
    def _name_of_model(self, call: Mapping[str, Any]) -> str:
        """Name of the model that answers a call with these keywords."""

    @property
    def _llm_type(self) -> str:
        return f"{self.PROVIDER}-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.SETTINGS}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = self.PROVIDER
        params["ls_model_name"] = self._name_of_model(kwargs)
        return params

    def _combine_llm_outputs(self, llm_outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
        usages = [output["token_usage"] for output in llm_outputs if output]
        totals = {name: sum(usage[name] for usage in usages) for name in (usages[0] if usages else ())}
        return {"token_usage": totals, "model_name": self._name_of_model({})}


def llm_output(usage: UsageMetadata, model: str) -> dict[str, Any]:
    """Token counts of a whole result, in the words that ``_combine_llm_outputs`` sums."""
    totals = {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
    }
    return {"token_usage": totals, "model_name": model}


def check_one_answer(n: int) -> None:
    """Refuse several answers in one stream.

    Raises:
        UsageError: n is above 1.
    """
    if n > 1:
        raise UsageError(f"a stream has one answer, got n = {n}; use generate() for several")


def check_seeds(prompts: Sequence[Any], seeds: Sequence[Any]) -> None:
    """Refuse prompts without seeds, and seeds without prompts.

    Raises:
        UsageError: There are not as many of one as of the other.
    """
    if len(prompts) != len(seeds):
        raise UsageError(f"each request needs a seed: {len(prompts)} prompts but {len(seeds)} seeds")
