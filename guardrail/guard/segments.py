"""The segment (intent, topic) of a question, for artifacts that have one threshold for each segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from ..artifact import CalibrationArtifact
from ..errors import ArtifactMismatchError, UsageError, describe_error
from ..prompting import copies_of

__all__ = ["CONFIG_KEY", "in_segment_of", "segment_of"]

CONFIG_KEY = "guardrail_segment"
"""Key of the segment in a call's ``config["configurable"]``."""

_named: ContextVar[Any] = ContextVar("guardrail_segment", default=None)
"""The segment that the configuration of the surrounding call names."""


@contextmanager
def in_segment_of(config: RunnableConfig | None) -> Iterator[None]:
    """Put the calls inside into the segment that a call's configuration names.

    A guard on the abstention path of another guard inherits its segment, unless its own configuration names one.
    """
    named = ensure_config(config).get("configurable", {}).get(CONFIG_KEY)
    token = _named.set(_named.get() if named is None else named)
    try:
        yield
    finally:
        _named.reset(token)


def segment_of(
    artifact: CalibrationArtifact, messages: Sequence[BaseMessage], function: Callable[[Any], Any] | None
) -> str | None:
    """The segment of a prompt that the artifact has a threshold for; None for all other questions.

    Args:
        artifact: The artifact; if it has one threshold, the prompt has no segment.
        messages: The prompt.
        function: Names the segment if the call's configuration does not.

    Raises:
        ArtifactMismatchError: Neither the configuration nor a function names one: a threshold fitted on other
            questions promises nothing about this one.
        UsageError: The function failed, or a name is not a string.
    """
    if artifact.segments is None:
        return None
    name, source = _named.get(), f'config["configurable"][{CONFIG_KEY!r}]'
    if name is None:
        if function is None:
            raise ArtifactMismatchError(
                "this artifact has a threshold for each segment, and the call names none. Give "
                f'config={{"configurable": {{"{CONFIG_KEY}": NAME}}}}, or make the guard with '
                "segment=function_of_messages."
            )
        source = "segment(messages)"
        try:
            name = function(copies_of(messages))
        except Exception as error:  # the user's code
            raise UsageError(
                f"{source} failed: {describe_error(error)}. Nothing was drawn; fix the function."
            ) from error
    if name is not None and not isinstance(name, str):
        raise UsageError(f"{source} must be the name of a segment or None, got {type(name).__name__}: {name!r}.")
    return name if name in artifact.segments.outcomes else None
