"""Chat models that sample natively: their base class, the arguments that all of them refuse, and request seeds."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import BaseMessage, UsageMetadata

from ..errors import UsageError
from ..types import SampleSet, SamplingPlan

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class NativeChat(BaseChatModel):
    """Names, settings and token counts in LangChain's form."""

    PROVIDER: ClassVar[str]
    """Provider of the model, in identities and traces."""
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
        UsageError: The numbers of prompts and of seeds differ.
    """
    if len(prompts) != len(seeds):
        raise UsageError(f"each request needs a seed: {len(prompts)} prompts but {len(seeds)} seeds")


@runtime_checkable
class NativeSampler(Protocol):
    """A chat model that draws whole sample sets itself, such as ``integrations.transformers_chat``.

    If its two methods also take the keyword ``primary``, they get ``primary=False`` when samples are drawn for a set
    that has its primary answer: the model then omits that answer and saves its cost. A plan with stop token ids needs a
    model with a field ``stop_token_ids``.
    """

    def draw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        """Draw one sample set for each prompt.

        Args:
            prompts: One message list for each request.
            plan: The plan. ``plan.n == 0`` draws the primary answer alone; with ``plan.options`` the option
                log-likelihoods are read and, when n is 0, the primary answer is the likeliest option.
            seeds: One seed for each request; None for fresh randomness. The result of a request depends on its own
                seed and messages, not on what else is in the batch (up to floating-point rounding).

        Returns:
            One `SampleSet` for each prompt, in order. A failure to draw is reported in ``problem``.

        Raises:
            PromptTooLongError: A prompt plus ``plan.max_tokens`` does not fit the context window.
        """
        ...

    async def adraw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        """`draw_samples` without blocking the event loop."""
        ...


def is_native(model: object) -> TypeIs[NativeSampler]:
    """Whether a chat model draws whole sample sets itself."""
    # `isinstance` with the protocol gives the same result, ten times slower.
    return hasattr(model, "draw_samples") and hasattr(model, "adraw_samples")


def request_seed(plan: SamplingPlan, messages: Iterable[BaseMessage], part: int = 0) -> int | None:
    """Seed of one request: a 63-bit hash of the plan's seed and the messages; None when the plan has no seed.

    The same question therefore draws the same samples again (a resumed run, a reviewed answer), while different
    questions draw independently, and so do the later parts of one draw.
    """
    if plan.seed is None:
        return None
    read = tuple(messages)
    seed = _seed(plan.seed, read)
    if not part:
        return seed
    seed_of_part = int.from_bytes(hashlib.sha256(f"{seed}/wave {part}".encode()).digest()[:8], "big") >> 1
    return _seed(seed_of_part, read)


def call_seed(seed: int, number: int) -> int:
    """A 31-bit seed for one call of a request: many servers refuse larger ones."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big") >> 1


def _seed(base: int, messages: Iterable[BaseMessage]) -> int:
    digest = hashlib.sha256(str(base).encode())
    for message in messages:
        digest.update(f"\x00{message.type}\x00{message.text}".encode())
    return int.from_bytes(digest.digest()[:8], "big") >> 1
