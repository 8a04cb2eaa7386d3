"""Tools and answer formats that a model call carries.

A threshold that was calibrated without tools says nothing about answers with tools, and vice versa. So tools and
formats are part of the plan (`guardrail.types.Bindings`). Every call carries the plan's; those that a caller binds are
only compared with them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import ValidationError

from .errors import ArtifactMismatchError, UsageError, require
from .types import Bindings

__all__ = [
    "arguments_fault",
    "binding_settings",
    "bindings_for",
    "check_bindings",
    "json_format",
    "native_settings",
    "read_bindings",
    "schemas_of",
]

_LONGEST_FAULT = 300
HOW = (
    'Bind those of the calibration, or calibrate with these. Of an agent: tools={"NAME": "collect"} in place of the '
    "artifact, people's decisions, `calibrate learn`. Of questions: `calibrate collect ... --tools tools.json`, where "
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
        response_format: OpenAI's dict, or a Pydantic class, TypedDict or JSON schema (see `json_format`). Not the
            ``response_format`` of an agent, for which LangChain binds a tool where the provider has no such format: see
            `integrations.langchain_agents.agent_bindings`.
        strict: Whether the server must enforce the schema of tool arguments.

    Raises:
        UsageError: A tool cannot be described, or the choice is not one of the tools.
    """
    if hasattr(response_format, "schema_specs") or hasattr(response_format, "schema_spec"):
        raise UsageError(
            f"{type(response_format).__name__} is for an agent, where the model decides what it becomes. Use "
            "integrations.langchain_agents.agent_bindings(model, tools, response_format=...)."
        )
    try:
        described = tuple(convert_to_openai_tool(tool, strict=strict) for tool in tools)
        plain = json.loads(json.dumps(described))  # no enum, tuple or subclass that JSON would change
        described_format = response_format if response_format is None else _format(response_format)
        return Bindings(tools=tuple(plain), tool_choice=_choice(tool_choice), response_format=described_format)
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
        bindings = Bindings.model_validate({"tools": content} if isinstance(content, list) else content)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}") from error
    if not bindings.tools and bindings.response_format is None:
        raise UsageError(f"{path}: has neither a tool nor a response_format. Leave it out, or list at least one tool.")
    return bindings


def schemas_of(bindings: Bindings | None) -> dict[str, dict[str, Any]]:
    """The JSON schema of the arguments of each tool, by its name; its description is the tool's."""
    schemas = {}
    for tool in () if bindings is None else (tool["function"] for tool in bindings.tools):
        if tool.get("parameters"):
            described = {"description": tool["description"]} if tool.get("description") else {}
            schemas[tool["name"]] = {**tool["parameters"], **described}
    return schemas


def arguments_fault(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Why the arguments of a call do not fit the JSON schema of its tool, in words; None if they fit.

    A tool that lists its arguments has no others, unless its schema allows them by ``additionalProperties``: LangChain
    drops them before the tool runs. References out of the schema are not followed: an MCP server could name any
    address.
    """
    jsonschema = require("jsonschema", extra="review")
    registry = require("referencing", extra="review").Registry()
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        complete = {"unevaluatedProperties": False, **schema} if "properties" in schema else schema
        faults = jsonschema.Draft202012Validator(complete, registry=registry).iter_errors(dict(arguments))
        fault = jsonschema.exceptions.best_match(faults)
    except Exception as error:  # its own errors, and those of what a schema refers to
        return f"the schema of the tool cannot be used ({type(error).__name__})"
    if fault is None:
        return None
    return ": ".join(filter(None, (".".join(map(str, fault.absolute_path)), _fault_in_words(fault)[:_LONGEST_FAULT])))


def _fault_in_words(fault: Any) -> str:
    if fault.validator == "pattern":
        example = next(iter(fault.schema.get("examples", ())), None)
        such_as = f", such as {example}" if isinstance(example, str) else ""
        return f"{fault.instance} must look like the pattern {fault.validator_value}{such_as}"
    if fault.validator in ("additionalProperties", "unevaluatedProperties") and not fault.absolute_path:
        undeclared = [name for name in fault.instance if name not in fault.schema.get("properties", {})]
        return f"the tool has no argument {', '.join(undeclared)}"
    return str(fault.message)


def check_bindings(calibrated: Bindings | None, requested: Bindings) -> None:
    """Refuse other tools or another format than the calibrated ones; a setting that is not requested is not compared.

    Raises:
        ArtifactMismatchError: They differ; the message names both sides and the way out.
    """
    if (fault := _difference(calibrated or Bindings(), requested)) is not None:
        raise ArtifactMismatchError(fault, HOW)


def _difference(bound: Bindings, requested: Bindings) -> str | None:
    if requested.tools and bound.model_copy(update={"tools": requested.tools}).digest != bound.digest:
        had = f"with the tools {', '.join(bound.tool_names)}" if bound.tools else "without tools"
        other = " (same names, other schemas)" if sorted(bound.tool_names) == sorted(requested.tool_names) else ""
        missing = [name for name in bound.tool_names if name not in requested.tool_names]
        lacking = f" Missing: {', '.join(missing)}." if missing else ""
        others = ", ".join(requested.tool_names)
        return f"calibrated {had}; other tools ({others}){other} would void the threshold.{lacking}"
    choice = requested.tool_choice
    if choice is not None and choice != bound.tool_choice and not _only_one(bound, requested):
        return f"tool_choice differs: calibrated with {bound.tool_choice or 'auto'!r}, asked for {choice!r}."
    if requested.response_format is not None and requested.response_format != bound.response_format:
        other = " (same name, another schema)" if _named(bound) == _named(requested) else ""
        return f"response_format differs: calibrated with {_named(bound)}, asked for {_named(requested)}{other}."
    return None


def binding_settings(model: BaseChatModel, bindings: Bindings | None) -> dict[str, Any]:
    """Keywords by which a call of this model carries the bindings, in the form of its ``bind_tools``.

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


@lru_cache(maxsize=64)
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def native_settings(model: BaseChatModel, draw: Callable[..., Any], bindings: Bindings | None) -> dict[str, Any]:
    """`binding_settings` for a native sampler's ``draw_samples``.

    Raises:
        UsageError: The sampler does not accept one of them.
    """
    settings = binding_settings(model, bindings)
    parameters = _parameters(getattr(draw, "__func__", draw))
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return settings
    refused = sorted(settings.keys() - parameters.keys())
    if refused:
        raise UsageError(
            f"{type(model).__name__} cannot draw samples with {', '.join(refused)}: it cannot be enforced there. "
            "Calibrate without it (with tools alone, the model chooses)."
        )
    return settings


def _only_one(calibrated: Bindings, requested: Bindings) -> bool:
    """Whether "any" and the name of the only tool mean the same."""
    choices = {calibrated.tool_choice, requested.tool_choice}
    return len(calibrated.tools) == 1 and choices == {"any", calibrated.tool_names[0]}


def _choice(choice: Any) -> str | None:
    if choice is None or choice is False or choice == "auto":
        return None
    if choice is True or choice in ("any", "required"):
        return "any"
    if isinstance(choice, Mapping):
        return str(choice.get("function", choice).get("name"))
    return str(choice)


def _format(response_format: Any) -> dict[str, Any]:
    if isinstance(response_format, Mapping) and response_format.get("type") in ("json_schema", "json_object", "text"):
        if not isinstance(response_format.get("json_schema", {}), Mapping):
            raise ValueError("json_schema must be an object")
        described: dict[str, Any] = json.loads(json.dumps(response_format))
        return described
    return json_format(response_format)


def _named(bindings: Bindings) -> str:
    response_format = bindings.response_format
    if response_format is None:
        return "free text"
    name = response_format.get("json_schema", {}).get("name")
    return f"{response_format.get('type')} {name!r}" if name else str(response_format.get("type"))
