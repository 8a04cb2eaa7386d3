"""Callbacks for samples: they appear in traces below the guard, and in no stream.

A chat-model run is a leaf for LangChain (its run manager has no ``get_child``), so the child manager is made by hand.
Streaming handlers (``stream``, ``astream_events``, a graph's message stream) are left out: they would show samples
before, or in spite of, the verdict. No other handler receives a token either: many models stream within ``_generate``
regardless of ``disable_streaming``, and report each token to the handlers of the caller, the model and the process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackHandler,
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    CallbackManager,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from ..verdict import Verdict

__all__ = ["child_callbacks", "drop_streaming_handlers", "note_verdict", "streaming_disabled", "without_tokens"]

NO_STREAM = "nostream"
"""Tag of runs that a graph keeps out of its message stream."""
GRAPH_STREAM = "__pregel_stream"
"""Key of the stream in a LangGraph run's configuration; graphs that run inside write into it as well."""
GRAPH_RUNTIME = "__pregel_runtime"
"""Key of the object that has the writer of its custom stream."""


def child_callbacks(
    run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None,
) -> CallbackManager | AsyncCallbackManager | None:
    """Callbacks for calls made on behalf of a guarded call, without the handlers that stream."""
    if run_manager is None:
        return None
    kind: Any = AsyncCallbackManager if isinstance(run_manager, AsyncCallbackManagerForLLMRun) else CallbackManager
    manager = kind(handlers=[], parent_run_id=run_manager.run_id)
    manager.set_handlers([handler for handler in run_manager.inheritable_handlers if not _streams(handler)])
    manager.add_tags([*run_manager.inheritable_tags, NO_STREAM])
    manager.add_metadata(dict(run_manager.inheritable_metadata))
    return manager  # type: ignore[no-any-return]


def drop_streaming_handlers(callbacks: Callbacks) -> Callbacks:
    """The callbacks without the handlers that stream; the same object if no handler streams."""
    if not callbacks:
        return callbacks
    if isinstance(callbacks, list):
        return (
            [handler for handler in callbacks if not _streams(handler)] if any(map(_streams, callbacks)) else callbacks
        )
    if not any(map(_streams, (*callbacks.handlers, *callbacks.inheritable_handlers))):
        return callbacks
    quiet = callbacks.copy()
    quiet.handlers = [handler for handler in quiet.handlers if not _streams(handler)]
    quiet.inheritable_handlers = [handler for handler in quiet.inheritable_handlers if not _streams(handler)]
    quiet.add_tags([NO_STREAM])
    return quiet


@contextmanager
def streaming_disabled() -> Iterator[None]:
    """Hide calls made inside, also those of judges and observers, from the caller's streams and token handlers."""
    ambient = var_child_runnable_config.get()
    if ambient is None:
        yield
        return
    callbacks, own = drop_streaming_handlers(ambient.get("callbacks")), ambient.get("configurable") or {}
    quiet: Any = callbacks and _silenced(callbacks)
    configurable = {name: value for name, value in own.items() if name != GRAPH_STREAM}
    if hasattr(own.get(GRAPH_RUNTIME), "override"):
        configurable[GRAPH_RUNTIME] = own[GRAPH_RUNTIME].override(stream_writer=lambda _: None)
    token = var_child_runnable_config.set(
        RunnableConfig(**{**ambient, "callbacks": quiet, "configurable": configurable})
    )
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _streams(handler: BaseCallbackHandler) -> bool:
    """Whether a handler feeds a stream: only the streaming handlers of LangChain and LangGraph can tap outputs."""
    return hasattr(handler, "tap_output_iter") or hasattr(handler, "tap_output_aiter")


_TELLING = ("on_llm_new_token", "on_stream_event", "on_text", "on_custom_event")
"""Events in which a model can report an answer while it still writes it."""


def without_tokens(generate: Callable[..., Any]) -> Callable[..., Any]:
    """A model's ``_generate`` or ``_agenerate`` whose callbacks take no tokens (nor other events of `_TELLING`).

    That is the one place that the handlers of the caller, of the model and of the process all pass.
    """
    if "run_manager" not in signature(generate).parameters:
        return generate

    @wraps(generate)
    def quiet(messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return generate(messages, stop=stop, run_manager=run_manager and _silenced(run_manager), **kwargs)

    return quiet


def _silenced(manager: Any) -> Any:
    """A copy of handlers, or of a callback or run manager, that takes no tokens."""
    if isinstance(manager, list):
        return [_silent(handler) for handler in manager]
    quiet = copy.copy(manager)
    quiet.handlers = [_silent(handler) for handler in manager.handlers]
    quiet.inheritable_handlers = [_silent(handler) for handler in manager.inheritable_handlers]
    return quiet


def _silent(handler: BaseCallbackHandler) -> Any:
    """The handler without tokens; the same object if it takes none anyway."""
    ignores = all(
        getattr(getattr(handler, event, None), "__func__", None)
        in (None, getattr(BaseCallbackHandler, event, None), getattr(AsyncCallbackHandler, event, None))
        for event in _TELLING
    )
    return handler if ignores else _Silent(handler)


class _Silent:
    """A handler that takes every event except those of `_TELLING`.

    It has the handler's class and equals it: LangChain looks for tracers by class, and adds no handler twice.
    """

    def __init__(self, handler: BaseCallbackHandler) -> None:
        self._handler = handler

    def __getattribute__(self, name: str) -> Any:
        own = getattr(object.__getattribute__(self, "_handler"), name)
        if name not in _TELLING:
            return own
        return _ano_token if iscoroutinefunction(own) else _no_token

    def __eq__(self, other: object) -> bool:
        return bool(object.__getattribute__(self, "_handler") == other)

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "_handler"))


def _no_token(*args: Any, **kwargs: Any) -> None: ...


async def _ano_token(*args: Any, **kwargs: Any) -> None: ...


def note_verdict(
    run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None, verdict: Verdict
) -> None:
    """Write the verdict into the metadata of the guard's run, for every tracer that keeps runs.

    LangSmith shows it as run metadata, and exporters that read LangChain's runs (OpenTelemetry) as attributes; so it is
    flat and holds no text of an answer. It is there even when the abstention raises.
    """
    if run_manager is None:
        return
    metadata = {name: value for name, value in verdict.trace_fields().items() if value is not None}
    for handler in run_manager.handlers:
        run = getattr(handler, "run_map", {}).get(str(run_manager.run_id))
        if run is not None:
            run.add_metadata(metadata)
