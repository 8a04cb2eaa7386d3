"""Structured output through a guard: objects out of accepted answers, and never out of an abstention."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.json import parse_json_markdown
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import ValidationError

from ..bindings import bindings_for, check_bindings, json_format
from ..errors import ArtifactMismatchError, UsageError
from ..sampling.call_settings import TRANSPORT
from ..sampling.effects import Effect, Steps, arun, run
from ..sampling.replies.ends import end_of, is_whole
from ..types import Bindings, SamplingPlan
from ..verdict import AbstainedError
from .abstention import Form
from .messages import with_verdict

FORM = "guardrail_form"
"""Call argument of `Guardrail.with_structured_output` for the form of answer that the caller can read."""

Method = Literal["function_calling", "json_schema", "json_mode"]
METHODS: tuple[Method, ...] = ("function_calling", "json_schema", "json_mode")


def form_of(plan: SamplingPlan, stop: Sequence[str] | None, call: Mapping[str, Any]) -> Form:
    """The form of answer that the caller can read. Refuses all that would make run time differ from calibration.

    Settings of transport (``user``) are not part of the plan.

    Args:
        plan: The artifact's.
        stop: Stop strings of the call.
        call: Arguments of the call; None means "not given".

    Raises:
        ArtifactMismatchError: Sampling settings, or tools or a format other than the artifact's.
    """
    if stop is not None and tuple(stop) != plan.stop:
        raise ArtifactMismatchError(
            f"stop differs: calibrated with {plan.stop}, called with {tuple(stop)}. "
            "Calibrate with the stop strings you want."
        )
    arguments = {name: value for name, value in call.items() if value is not None and name not in TRANSPORT}
    if not arguments:
        return "text"
    form = cast(Form, arguments.pop(FORM, "text"))
    arguments.pop("ls_structured_output_format", None)
    requested = bindings_for(
        arguments.pop("tools", ()),
        tool_choice=arguments.pop("tool_choice", None),
        response_format=arguments.pop("response_format", None),
    )
    if arguments:
        raise ArtifactMismatchError(
            f"call arguments {sorted(arguments)} would change how answers are drawn; the artifact fixes that "
            f"({plan!r}). Leave them out, or calibrate with the settings you want."
        )
    check_bindings(plan.bindings, requested)
    if form != "text":
        return form
    if requested.response_format is not None:
        return "format"
    return "calls" if requested.tool_choice is not None else "text"


def method_of(calibrated: Bindings | None) -> Method:
    """The method an artifact was calibrated for."""
    kind = (calibrated.response_format or {}).get("type") if calibrated else None
    return "json_schema" if kind == "json_schema" else "json_mode" if kind == "json_object" else "function_calling"


def wanted_bindings(schema: Any, method: Method, calibrated: Bindings | None, strict: bool | None) -> Bindings:
    """The bindings that a structured call must have been calibrated with.

    A forced tool choice is not required: models that cannot be forced are calibrated without it.

    Raises:
        UsageError: An unknown method.
    """
    if method == "function_calling":
        return bindings_for([schema], strict=strict)
    if method == "json_mode":
        return bindings_for(response_format={"type": "json_object"})
    if method != "json_schema":
        raise UsageError(f"method {method!r} is unknown; choose one of {', '.join(METHODS)}.")
    expected = None if calibrated is None else calibrated.response_format
    described = json_format(schema)
    # Servers want variants of a schema (strict, additionalProperties). So the artifact's schema is compared without
    # these keywords, and sent with them.
    if expected is not None and _described(expected.get("json_schema", {}).get("schema")) == _described(
        described["json_schema"]["schema"]
    ):
        return Bindings(response_format=expected)
    return Bindings(response_format=described)


def _described(schema: Any) -> Any:
    """A schema without the ``strict`` that stands beside its keywords, and without what `_core` leaves out."""
    if isinstance(schema, dict) and isinstance(schema.get("strict"), bool):
        schema = {key: value for key, value in schema.items() if key != "strict"}
    return _core(schema)


_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names that the user chose, and whose values are schemas."""
_PLAIN = frozenset({"const", "default", "enum", "examples", "required", "dependentRequired"})
"""Keywords whose value is data, even if it looks like a schema."""


def _core(schema: Any) -> Any:
    """A schema without the ``additionalProperties: false`` that servers want beside its keywords.

    Any other value of that keyword describes further values of an object, and stays.
    """
    if isinstance(schema, list):
        return [_core(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    core = {}
    for key, value in schema.items():
        if key == "additionalProperties" and value is False:
            continue
        if key in _NAMED and isinstance(value, dict):
            core[key] = {name: _core(inner) for name, inner in value.items()}
        else:
            core[key] = value if key in _PLAIN else _core(value)
    return core


def parser_of(schema: Any, method: Method) -> Runnable[Any, Any]:
    """The parser from whole messages to objects of the schema, by LangChain's conventions."""
    # Here, because they are slow to import, and few guards parse.
    from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
    from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser

    is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
    parser: Runnable[Any, Any]
    if method != "function_calling":
        parser = PydanticOutputParser(pydantic_object=schema) if is_class else JsonOutputParser()
        return RunnableLambda(_whole_text) | parser
    if is_class:
        parser = PydanticToolsParser(tools=[schema], first_tool_only=True)
    else:
        name = convert_to_openai_tool(schema)["function"]["name"]
        parser = JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
    return RunnableLambda(_whole) | parser


def _whole(message: AIMessage) -> AIMessage:
    """Refuse an answer that was cut off: its last value may be incomplete, and its calls may have been closed.

    A message that states no end passes: handlers make them.
    """
    end = end_of(message)
    if end is not None and not is_whole(end, calls=bool(message.tool_calls)):
        raise OutputParserException(
            f"the answer was cut off (finish_reason {end!r}), so the object is incomplete. Calibrate with a "
            "larger max_tokens, or raise that of the model that took over.",
            llm_output=message.text,
        )
    return message


def _whole_text(message: AIMessage) -> AIMessage:
    """Refuse also a text that is not whole JSON: LangChain's parsers would close its texts and lists."""
    text = _whole(message).text
    try:
        parse_json_markdown(text.strip(), parser=_loads)
    except (ValueError, RecursionError) as error:
        raise OutputParserException(
            f"the answer is not whole JSON ({len(text)} characters, the last ones may be missing). The model or "
            "handler must give an object of the schema and nothing else.",
            llm_output=text,
        ) from error
    return message


def _loads(text: str) -> Any:
    """JSON with line breaks in its texts, as LangChain's parsers allow, and with nothing added."""
    return json.loads(text, strict=False)


def structured(
    asking: Runnable[LanguageModelInput, AIMessage], parser: Runnable[Any, Any], *, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """The runnable that asks and parses.

    Args:
        asking: The guard, bound so that an abstention raises.
        parser: Makes the object.
        include_raw: Return "raw", "parsed" and "parsing_error"; an abstention is the ``parsing_error``, and "raw" the
            abstention message with its verdict.
    """
    if not include_raw:
        return asking | parser

    def ask(prompt: Any, config: RunnableConfig, **settings: Any) -> Steps[dict[str, Any]]:
        try:
            raw = yield asked(asking, prompt, config, **settings)
        except AbstainedError as error:
            raw = with_verdict(AIMessage(content=error.message), error.verdict)
            return {"raw": raw, "parsed": None, "parsing_error": error}
        try:
            return {"raw": raw, "parsed": parser.invoke(raw, config), "parsing_error": None}
        except (OutputParserException, ValidationError) as error:
            return {"raw": raw, "parsed": None, "parsing_error": error}

    return runnable(ask, "guardrail_structured")


def asked(model: Runnable[Any, Any], prompt: Any, config: RunnableConfig, **settings: Any) -> Effect:
    """A call of a Runnable."""
    return Effect(partial(model.invoke, prompt, config, **settings), partial(model.ainvoke, prompt, config, **settings))


def runnable(steps: Callable[..., Steps[Any]], name: str) -> Runnable[Any, Any]:
    """The Runnable that takes steps from an input, its configuration and further settings to a result."""

    def call(prompt: Any, config: RunnableConfig, **settings: Any) -> Any:
        return run(steps(prompt, config, **settings))

    async def acall(prompt: Any, config: RunnableConfig, **settings: Any) -> Any:
        return await arun(steps(prompt, config, **settings))

    return RunnableLambda(call, afunc=acall, name=name)


def tracing_of(schema: Any, method: Method) -> dict[str, Any]:
    """The call argument from which LangSmith shows structured output."""
    return {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": convert_to_json_schema(schema)}}
