"""What a model call carries: tools and answer formats, and the table of what each call setting does.

A threshold that was calibrated without tools says nothing about answers with tools, and vice versa. So tools and
formats are part of the plan (`guardrail.types.Bindings`). Every call carries the plan's; those that a caller binds are
only compared with them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import ValidationError

from .errors import ArtifactMismatchError, UsageError
from .types import Bindings, SamplingPlan

__all__ = [
    "LONGEST_ANSWER",
    "STOP_STRINGS",
    "TABLE",
    "CallSetting",
    "ProviderSettings",
    "SettingRole",
    "bindings_for",
    "call_settings",
    "carried",
    "check_bindings",
    "check_settings",
    "json_format",
    "names",
    "native_settings",
    "read_bindings",
    "takes_temperature",
]

HOW = (
    "Collect the calibration answers with them: `calibrate collect ... --tools tools.json`, where "
    "guardrail.bindings.bindings_for(tools).model_dump_json() makes the file, then fit again."
)


def bindings_for(
    tools: Sequence[Any] = (),
    *,
    tool_choice: str | bool | Mapping[str, Any] | None = None,
    response_format: Any = None,
    strict: bool | None = None,
) -> Bindings:
    """Bindings from the arguments of ``bind_tools`` and ``with_structured_output``.

    Args:
        tools: Functions, classes, LangChain tools or schemas.
        tool_choice: None or "auto" (the model decides), "any", "required" or True (some call), the name of a tool, or
            OpenAI's dict. Calibrate a model that cannot be forced with None.
        response_format: OpenAI's dict, or a Pydantic class, TypedDict or JSON schema (see `json_format`).
        strict: Whether the server must enforce the schema of tool arguments.

    Raises:
        UsageError: A tool cannot be described, or the choice is not one of the tools.
    """
    try:
        described = tuple(convert_to_openai_tool(tool, strict=strict) for tool in tools)
        plain = json.loads(json.dumps(described))  # no enum, tuple or subclass that JSON would change
        wanted = response_format if response_format is None else _format(response_format)
        return Bindings(tools=tuple(plain), tool_choice=_choice(tool_choice), response_format=wanted)
    except ValidationError as error:
        raise UsageError(f"these tools cannot be bound: {error.errors()[0]['msg']}") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"these tools or this format cannot be described as JSON: {error}") from error


def json_format(schema: Any) -> dict[str, Any]:
    """OpenAI's ``response_format`` for a Pydantic class, TypedDict or JSON schema with a title."""
    described = convert_to_json_schema(schema)
    name = str(described.get("title", "answer"))
    return {"type": "json_schema", "json_schema": {"name": name, "schema": json.loads(json.dumps(described))}}


def read_bindings(path: str | Path) -> Bindings:
    """Bindings of a JSON file: a list of OpenAI-style tools, or an object with ``tools``, ``tool_choice`` and so on.

    Raises:
        UsageError: The file cannot be read, is not JSON, or describes neither tools nor a format.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}).") from error
    try:
        found = Bindings.model_validate({"tools": content} if isinstance(content, list) else content)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}") from error
    if not found.tools and found.response_format is None:
        raise UsageError(f"{path}: has neither a tool nor a response_format. Leave it out, or list at least one tool.")
    return found


def check_bindings(calibrated: Bindings | None, asked: Bindings) -> None:
    """Refuse other tools or another format than the calibrated ones; only what is asked for is compared.

    Raises:
        ArtifactMismatchError: They differ; the message names both sides and the way out.
    """
    known = calibrated or Bindings()
    if asked.tools and known.model_copy(update={"tools": asked.tools}).digest != known.digest:
        had = f"with the tools {known.tool_names}" if known.tools else "without tools"
        other = " (same names, other schemas)" if sorted(known.tool_names) == sorted(asked.tool_names) else ""
        raise ArtifactMismatchError(
            f"this guard is calibrated {had}; binding {asked.tool_names}{other} would void its threshold. {HOW}"
        )
    if asked.tool_choice is not None and asked.tool_choice != known.tool_choice and not _only_one(known, asked):
        raise ArtifactMismatchError(
            f"tool_choice differs: calibrated with {known.tool_choice!r}, asked for {asked.tool_choice!r}. {HOW}"
        )
    if asked.response_format is not None and asked.response_format != known.response_format:
        other = " (same name, another schema)" if _named(known) == _named(asked) else ""
        raise ArtifactMismatchError(
            f"response_format differs: calibrated with {_named(known)}, asked for {_named(asked)}{other}. {HOW}"
        )


def call_settings(model: BaseChatModel, bindings: Bindings | None) -> dict[str, Any]:
    """Keywords with which a call of this model carries the bindings, in the form of its ``bind_tools``.

    Raises:
        UsageError: The model does not support tools.
    """
    if bindings is None:
        return {}
    settings: dict[str, Any] = {}
    if bindings.tools:
        chosen = {} if bindings.tool_choice is None else {"tool_choice": bindings.tool_choice}
        try:
            bound: Any = model.bind_tools(list(bindings.tools), **chosen)
        except NotImplementedError as error:
            raise UsageError(
                f"{type(model).__name__} does not support tools, so {bindings.tool_names} cannot be bound"
            ) from error
        if not isinstance(getattr(bound, "kwargs", None), dict):
            raise UsageError(
                f"{type(model).__name__}.bind_tools returns a {type(bound).__name__} without call arguments"
            )
        settings = {name: value for name, value in bound.kwargs.items() if value is not None}
    if bindings.response_format is not None:
        settings["response_format"] = bindings.response_format
    return settings


def native_settings(model: BaseChatModel, draw: Callable[..., Any], bindings: Bindings | None) -> dict[str, Any]:
    """`call_settings` for a native sampler's ``draw_samples``.

    Raises:
        UsageError: The sampler does not accept one of them.
    """
    settings = call_settings(model, bindings)
    taken = inspect.signature(draw).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return settings
    refused = sorted(settings.keys() - taken.keys())
    if refused:
        raise UsageError(
            f"{type(model).__name__} cannot draw samples with {', '.join(refused)}: it cannot be enforced there. "
            "Calibrate without it (with tools alone, the model chooses)."
        )
    return settings


def _only_one(known: Bindings, asked: Bindings) -> bool:
    """Whether "any" and the name of the only tool mean the same."""
    return len(known.tools) == 1 and {known.tool_choice, asked.tool_choice} == {"any", known.tool_names[0]}


def _choice(choice: Any) -> str | None:
    if choice is None or choice is False or choice == "auto":
        return None
    if choice is True or choice in ("any", "required"):
        return "any"
    if isinstance(choice, Mapping):
        return str(choice.get("function", choice).get("name"))
    return str(choice)


def _format(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping) and given.get("type") in ("json_schema", "json_object", "text"):
        if not isinstance(given.get("json_schema", {}), Mapping):
            raise ValueError("json_schema must be an object")
        found: dict[str, Any] = json.loads(json.dumps(given))
        return found
    return json_format(given)


def _named(bindings: Bindings) -> str:
    wanted = bindings.response_format
    if wanted is None:
        return "free text"
    name = wanted.get("json_schema", {}).get("name")
    return f"{wanted.get('type')} {name!r}" if name else str(wanted.get("type"))


# -- what each setting of a model call does ---------------------------------------------------------------------------
# The one table behind all lists of settings that pass or are refused. An artifact fixes how answers are drawn, so every
# wrapper of a model must know which settings the plan fixes, which change an answer in a way that no artifact records,
# and which only concern the transport of a request.


class SettingRole(Enum):
    """What a setting does."""

    PLAN = "fixed by the plan"
    """The plan says how answers are drawn (`guardrail.types.SamplingPlan`)."""
    BINDING = "fixed by the plan's bindings"
    """The plan says which tools and which answer format every call carries (`guardrail.types.Bindings`)."""
    SHAPING = "shapes the answer"
    """Changes the distribution of answers, and no artifact records it."""
    TRANSPORT = "transport"
    """How a request travels, is billed, stored, traced or repeated. It cannot change an answer."""
    INTERNAL = "not sent"
    """Keywords that LangChain passes along for tracing or for other classes; no server receives them."""


class CallSetting(NamedTuple):
    """One row of the table."""

    name: str
    effect: SettingRole
    allowed_in: frozenset[str]
    """Which calls may carry it.

    Calls that a plan makes: "openai" (chat completions), "frameworks" (a model of any agent framework).
    Requests that a guard receives: "langchain" (guards, agents), "openai-agents", "pydantic-ai", "litellm" (a proxy).
    """


LONGEST_ANSWER = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
"""Names of the longest answer in tokens; the first is the plan's."""
STOP_STRINGS = ("stop", "stop_sequences")
"""Names of the stop strings; the first is the plan's."""

_ROWS = (
    (SettingRole.PLAN, "temperature", "openai frameworks"),
    (SettingRole.PLAN, "top_p", "openai frameworks"),
    (SettingRole.PLAN, "max_tokens", "openai frameworks"),
    (SettingRole.PLAN, "max_completion_tokens", "openai"),
    (SettingRole.PLAN, "max_output_tokens", ""),
    (SettingRole.PLAN, "num_predict", ""),
    (SettingRole.PLAN, "stop", "openai"),
    (SettingRole.PLAN, "stop_sequences", ""),
    (SettingRole.PLAN, "stop_token_ids", ""),
    (SettingRole.PLAN, "seed", "openai"),
    (SettingRole.PLAN, "n", "openai"),
    (SettingRole.PLAN, "logprobs", "openai frameworks"),
    (SettingRole.PLAN, "top_logprobs", "openai openai-agents"),
    (SettingRole.PLAN, "openai_logprobs", "pydantic-ai"),
    (SettingRole.PLAN, "openai_top_logprobs", "pydantic-ai"),
    (SettingRole.BINDING, "tools", "openai frameworks litellm"),
    (SettingRole.BINDING, "tool_choice", "openai frameworks openai-agents pydantic-ai litellm"),
    (SettingRole.BINDING, "response_format", "openai frameworks litellm"),
    (SettingRole.SHAPING, "best_of", ""),
    (SettingRole.SHAPING, "extra_body", ""),
    (SettingRole.SHAPING, "frequency_penalty", "openai"),
    (SettingRole.SHAPING, "logit_bias", "openai"),
    (SettingRole.SHAPING, "min_p", ""),
    (SettingRole.SHAPING, "mirostat", ""),
    (SettingRole.SHAPING, "model_kwargs", ""),
    (SettingRole.SHAPING, "parallel_tool_calls", "openai"),
    (SettingRole.SHAPING, "presence_penalty", "openai"),
    (SettingRole.SHAPING, "reasoning_effort", "openai"),
    (SettingRole.SHAPING, "repeat_penalty", ""),
    (SettingRole.SHAPING, "repetition_penalty", ""),
    (SettingRole.SHAPING, "top_k", ""),
    (SettingRole.SHAPING, "typical_p", ""),
    (SettingRole.TRANSPORT, "cache", "pydantic-ai"),
    (SettingRole.TRANSPORT, "cache_control", "langchain"),
    (SettingRole.TRANSPORT, "extra_headers", "langchain openai-agents pydantic-ai"),
    (SettingRole.TRANSPORT, "extra_query", "langchain"),
    (SettingRole.TRANSPORT, "first_event_timeout", "pydantic-ai"),
    (SettingRole.TRANSPORT, "guardrails", "litellm"),
    (SettingRole.TRANSPORT, "headers", "langchain"),
    (SettingRole.TRANSPORT, "include_usage", "openai-agents"),
    (SettingRole.TRANSPORT, "litellm_metadata", "litellm"),
    (SettingRole.TRANSPORT, "max_retries", "pydantic-ai"),
    (SettingRole.TRANSPORT, "metadata", "langchain openai openai-agents litellm"),
    (SettingRole.TRANSPORT, "preserve_raw_usage", "openai-agents"),
    (SettingRole.TRANSPORT, "prompt_cache_key", "langchain openai litellm"),
    (SettingRole.TRANSPORT, "prompt_cache_options", "openai-agents"),
    (SettingRole.TRANSPORT, "prompt_cache_retention", "langchain openai openai-agents"),
    (SettingRole.TRANSPORT, "request_timeout", "langchain pydantic-ai"),
    (SettingRole.TRANSPORT, "response_include", "openai-agents"),
    (SettingRole.TRANSPORT, "retry", "openai-agents"),
    (SettingRole.TRANSPORT, "safety_identifier", "langchain openai litellm"),
    (SettingRole.TRANSPORT, "service_tier", "langchain openai pydantic-ai litellm"),
    (SettingRole.TRANSPORT, "store", "langchain openai openai-agents litellm"),
    (SettingRole.TRANSPORT, "stream", "openai litellm"),
    (SettingRole.TRANSPORT, "stream_options", "openai litellm"),
    (SettingRole.TRANSPORT, "tags", "litellm"),
    (SettingRole.TRANSPORT, "timeout", "langchain openai-agents pydantic-ai litellm"),
    (SettingRole.TRANSPORT, "user", "langchain openai litellm"),
    (SettingRole.INTERNAL, "ls_structured_output_format", ""),
    (SettingRole.INTERNAL, "strict", ""),
    (SettingRole.INTERNAL, "stream_usage", ""),
)

TABLE = {name: CallSetting(name, effect, frozenset(calls.split())) for effect, name, calls in _ROWS}
"""Every known setting by name."""


def names(*effects: SettingRole, allowed_in: str | None = None) -> frozenset[str]:
    """Names of the settings with one of these effects.

    Args:
        *effects: The effects; none for all.
        allowed_in: Only settings that these calls may carry, e.g. "openai"; None for all.
    """
    return frozenset(
        row.name
        for row in TABLE.values()
        if (not effects or row.effect in effects) and (allowed_in is None or allowed_in in row.allowed_in)
    )


# -- how each class of LangChain's takes the settings -----------------------------------------------------------------
# LangChain names no setting: a call's keywords go to the provider's client as they are, and each package has words of
# its own. A plan's word that is not listed is a keyword of the call under the same name.

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

".name" is a field of the model, for classes whose calls do not take the setting or take it in vain; "+name" is both;
None is a setting the class does not take. Versions tested: docs/langchain.md.
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
    """The settings of a call (temperature, top_p, max_tokens, stop, seed, logprobs) as a model's class takes them.

    A class that is not listed takes them under the plan's names as keywords of a call and as fields where it has them.
    If its field for the longest answer has another name (``num_predict``), it takes all that it has fields for by these
    alone. A seed is left out where nothing says that it is taken, because samples may differ without.

    Args:
        model: The chat model; it is not changed.
        settings: By the plan's names; others, such as tools, are keywords of the call as they are.

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
                "Use an estimator that does not need it, or another model."
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
    """Settings that are at the provider's own value and not sent, because naming them is refused."""
    if not takes_temperature(model):
        wrong = next((name for name in ("temperature", "top_p") if settings.get(name, 1) != 1), None)
        if wrong is not None:
            raise UsageError(
                f"this {type(model).__name__} takes no {wrong} other than 1, got {settings[wrong]:g}. Plan with "
                'temperature=1, top_p=1, primary="sampled" (calibrate collect --temperature 1 --top-p 1 '
                "--primary sampled)."
            )
        return frozenset({"temperature", "top_p"})
    one_of_two = not _ONE_OF_TWO.isdisjoint(base.__name__ for base in type(model).__mro__)
    return frozenset({"top_p"}) if one_of_two and settings.get("top_p") == 1 else frozenset()


def _words(model: BaseChatModel) -> Mapping[str, str | None]:
    known = next((_WORDS[base.__name__] for base in type(model).__mro__ if base.__name__ in _WORDS), None)
    if known is not None:
        responses = getattr(model, "_use_responses_api", None)
        return _RESPONSES if callable(responses) and responses({}) else known
    fields = type(model).model_fields
    longest = next((name for name in LONGEST_ANSWER if name in fields), None)
    where = "+" if longest in (None, "max_tokens", "max_completion_tokens") else "."
    taken: dict[str, str] = {name: name for name in ("temperature", "top_p", "seed") if name in fields}
    taken |= {} if longest is None else {"max_tokens": longest}
    return {name: where + field for name, field in taken.items()}
