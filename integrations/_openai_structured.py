"""Structured output of an OpenAI-compatible endpoint, by LangChain's conventions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from guardrail.errors import UsageError

if TYPE_CHECKING:
    from .openai_chat import OpenAICompatibleChat

__all__ = ["structured"]


def structured(
    chat: OpenAICompatibleChat,
    schema: dict[str, Any] | type,
    *,
    include_raw: bool,
    method: Literal["json_schema", "function_calling", "json_mode"],
    strict: bool | None,
    settings: Mapping[str, Any],
) -> Runnable[Any, Any]:
    """See `OpenAICompatibleChat.with_structured_output`."""
    is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
    tracing = {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": convert_to_json_schema(schema)}}
    parser: Any
    if method == "function_calling":
        name = convert_to_openai_tool(schema)["function"]["name"]
        asking = chat.bind_tools([schema], tool_choice=name, strict=strict, **tracing, **settings)
        parser = (
            PydanticToolsParser(tools=[schema], first_tool_only=True)
            if is_class
            else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        )
    elif method in ("json_schema", "json_mode"):
        response_format: dict[str, Any] = {"type": "json_object"}
        if method == "json_schema":
            described = convert_to_json_schema(schema)
            wanted = {"name": described.get("title", "answer"), "schema": described}
            response_format = {
                "type": "json_schema",
                "json_schema": wanted if strict is None else {**wanted, "strict": strict},
            }
        asking = chat.bind(response_format=response_format, **tracing, **settings)
        reading = PydanticOutputParser(pydantic_object=schema) if is_class else JsonOutputParser()
        parser = RunnableGenerator(_whole, _awhole) | reading
    else:
        raise UsageError(f"method {method!r} is unknown; choose json_schema, function_calling or json_mode.")
    if not include_raw:
        answering: Runnable[Any, Any] = asking | parser
        return answering
    parsing = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asking) | parsing.with_fallbacks([unparsed], exception_key="parsing_error")


def _check(message: AIMessage) -> AIMessage:
    """Refuse an answer that was cut off: LangChain's parsers would close its texts and lists, and take it as whole."""
    if message.response_metadata.get("finish_reason") == "length":
        raise OutputParserException(
            "the answer was cut off at the longest length allowed, so it is no whole object. Raise max_tokens.",
            llm_output=message.text,
        )
    return message


def _whole(messages: Iterator[AIMessage]) -> Iterator[AIMessage]:
    yield from map(_check, messages)


async def _awhole(messages: AsyncIterator[AIMessage]) -> AsyncIterator[AIMessage]:
    async for message in messages:
        yield _check(message)
