"""Settings of a model call: what each one does, and how each class of LangChain's takes the plan's.

An artifact fixes how answers are drawn. So every wrapper of a model must know which settings the plan fixes, which
change an answer in a way that no artifact records, and which only concern the transport of a request. An adapter lists
those of its framework that cannot change an answer; a setting in no list is refused or compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel

from ..errors import UsageError
from ..types import SamplingPlan

LONGEST_ANSWER = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
"""Names of the longest answer in tokens; the first is the plan's."""
STOP_STRINGS = ("stop", "stop_sequences")
"""Names of the stop strings; the first is the plan's."""
PLANNED = frozenset(
    {"temperature", "top_p", "n", "seed", "logprobs", "top_logprobs", "stop_token_ids", *LONGEST_ANSWER, *STOP_STRINGS}
)
"""Settings that a plan fixes (`guardrail.types.SamplingPlan`)."""
SHAPING = frozenset({
    "best_of", "extra_body", "frequency_penalty", "logit_bias", "min_p", "mirostat", "model_kwargs",
    "parallel_tool_calls", "presence_penalty", "reasoning_effort", "repeat_penalty", "repetition_penalty",
    "top_k", "typical_p",
})  # fmt: skip
"""Settings that change the distribution of answers, and that no artifact records."""
TRANSPORT = frozenset({
    "cache_control", "extra_headers", "extra_query", "headers", "metadata", "prompt_cache_key",
    "prompt_cache_retention", "request_timeout", "safety_identifier", "service_tier", "store", "timeout",
    "user",
})  # fmt: skip
"""Settings that say how a request travels, is billed, stored, traced or repeated. They cannot change an answer."""
INTERNAL = frozenset({"ls_structured_output_format", "strict", "stream_usage"})
"""Keywords that LangChain passes along for tracing or for other classes; no server receives them."""


# -- how each class of LangChain's takes the settings -----------------------------------------------------------------
# LangChain has no common names for settings: a call's keywords go to the provider's client unchanged, and each package
# has different words. A word of the plan that is not listed is a keyword of the call under the same name.

_WORDS: dict[str, dict[str, str | None]] = {
    "AzureChatOpenAI": {"max_tokens": "max_completion_tokens", "seed": "seed"},
    "BaseChatOpenAI": {"seed": "seed"},
    "ChatAnthropic": {"logprobs": None},
    "ChatBedrock": {"max_tokens": ".max_tokens", "temperature": ".temperature", "logprobs": None},
    "ChatBedrockConverse": {"logprobs": None},
    "ChatCohere": {"temperature": ".temperature", "top_p": "p", "seed": "seed", "logprobs": None},
    "ChatGoogleGenerativeAI": {
        "max_tokens": ".max_output_tokens", "temperature": ".temperature", "top_p": ".top_p", "seed": ".seed",
        "logprobs": None,
    },
    "ChatGroq": {"seed": "seed"},
    "ChatMistralAI": {"seed": "random_seed", "logprobs": None},
    "ChatOpenAI": {"max_tokens": "max_completion_tokens", "seed": "seed"},
    "ChatOllama": {"max_tokens": ".num_predict", "temperature": ".temperature", "top_p": ".top_p", "seed": ".seed"},
}  # fmt: skip
"""The words of a class, found by its name or that of a base, so that no provider's package is imported.

".name" is a field of the model, for classes whose calls refuse or ignore the setting; "+name" is both; None is a
setting that the class does not take. Versions tested: docs/langchain.md.
"""
_RESPONSES: dict[str, str | None] = {"max_tokens": "max_completion_tokens", "logprobs": None, "stop": None}
"""OpenAI's Responses API, to which `ChatOpenAI` sends some calls: LangChain drops stop strings there without a word."""
_ONE_OF_TWO = frozenset({"ChatAnthropic", "ChatBedrock", "ChatBedrockConverse"})
"""Classes whose newer models refuse temperature and top_p together, so a top_p of 1 (no truncation) is not sent."""


class ProviderSettings(NamedTuple):
    """Settings in the words of a model's class."""

    fields: dict[str, Any]
    """Fields for a copy of the model."""
    call: dict[str, Any]
    """Keywords of a call."""


def carried(model: BaseChatModel, settings: Mapping[str, Any]) -> ProviderSettings:
    """The settings of a call (temperature, top_p, max_tokens, stop, seed, logprobs) in the words of a model's class.

    A class that is not listed takes them under the plan's names, as keywords of a call and as fields if it has them. If
    its field for the longest answer has another name (``num_predict``), the settings that it has fields for are set by
    the fields alone. A seed is omitted unless the class is known to take one, because samples
    may differ without it.

    Args:
        model: The chat model; it is not changed.
        settings: By the plan's names; others, such as tools, become keywords of the call unchanged.

    Raises:
        UsageError: The model does not take one of them, or takes only temperature 1 and is asked for another.
    """
    words, fields, call = _words(model), dict[str, Any](), dict[str, Any]()
    omitted = _omitted(model, settings)
    if "stop" in settings and "stop" in type(model).model_fields and getattr(model, "stop", None):
        fields["stop"] = None  # ChatOllama refuses a call's where it has its own; elsewhere the call's are used anyway
    for name, value in settings.items():
        word = words.get(name, None if name == "seed" else name)
        if name in omitted:
            if getattr(model, name, None) is not None:
                fields[name] = None  # the model's own value would be sent instead
        elif word is None and name != "seed":
            raise UsageError(
                f"{type(model).__name__} does not take {name}, which the plan asks for. "
                "Use a score that does not need it, or another model."
            )
        elif word is not None:
            if word[0] in ".+":
                fields[word[1:]] = value
            if word[0] != ".":
                call[word.removeprefix("+")] = value
    return ProviderSettings(fields, call)


def check_settings(model: BaseChatModel, plan: SamplingPlan) -> None:
    """Refuse a plan whose settings a model does not take, as far as that is known without asking it.

    Raises:
        UsageError: See `carried`.
    """
    settings: dict[str, Any] = {"logprobs": True} if plan.logprobs else {}
    settings |= {"stop": list(plan.stop)} if plan.stop else {}
    if plan.n or plan.primary == "sampled":
        carried(model, {**settings, "temperature": plan.temperature, "top_p": plan.top_p})
    if plan.primary == "greedy":
        carried(model, {**settings, "temperature": 0.0})


def takes_temperature(model: BaseChatModel) -> bool:
    """Whether a model takes other temperatures than 1, as far as its profile and its thinking say."""
    profile = getattr(model, "profile", None)
    fields = getattr(model, "additional_model_request_fields", None)  # Bedrock's
    thinking = getattr(model, "thinking", None) or (fields.get("thinking") if isinstance(fields, Mapping) else None)
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    return not (isinstance(profile, Mapping) and profile.get("temperature") is False) and kind in (None, "disabled")


def _omitted(model: BaseChatModel, settings: Mapping[str, Any]) -> frozenset[str]:
    """Settings that are not sent, because the provider refuses them even at its own value."""
    if not takes_temperature(model):
        wrong = next((name for name in ("temperature", "top_p") if settings.get(name, 1) != 1), None)
        if wrong is not None:
            raise UsageError(
                f"this {type(model).__name__} takes no {wrong} other than 1, got {settings[wrong]:g}. Plan with "
                'temperature=1, top_p=1, primary="sampled" (calibrate collect --temperature 1 --set top_p=1 '
                "--primary sampled)."
            )
        return frozenset({"temperature", "top_p"})
    one_of_two = not _ONE_OF_TWO.isdisjoint(base.__name__ for base in type(model).__mro__)
    return frozenset({"top_p"}) if one_of_two and settings.get("top_p") == 1 else frozenset()


def _words(model: BaseChatModel) -> Mapping[str, str | None]:
    own = next((_WORDS[base.__name__] for base in type(model).__mro__ if base.__name__ in _WORDS), None)
    if own is not None:
        responses = getattr(model, "_use_responses_api", None)
        return _RESPONSES if callable(responses) and responses({}) else own
    fields = type(model).model_fields
    longest = next((name for name in LONGEST_ANSWER if name in fields), None)
    where = "+" if longest in (None, "max_tokens", "max_completion_tokens") else "."
    words: dict[str, str] = {name: name for name in ("temperature", "top_p", "seed") if name in fields}
    words |= {} if longest is None else {"max_tokens": longest}
    return {name: where + field for name, field in words.items()}
