"""Callbacks for samples: they appear in traces below the guard, and in no stream of messages or tokens.

A chat-model run is a leaf for LangChain (its run manager has no ``get_child``), so the child manager is made by hand.
Streaming handlers (``stream``, ``astream_events``, message streams of graphs) are left out: they would show samples
before, or in spite of, the verdict. Many models stream within ``_generate`` regardless of ``disable_streaming``, so
they get a run manager without handlers.

LangChain and LangGraph have no public way to take these from code that runs inside a call, so they are not held: the
writer of a graph's custom stream, and handlers of the whole process in a call that a model makes of another model. Nor
have they one to keep a graph that runs inside, such as a judge, out of the caller's stream; see `GRAPH_STREAM`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
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
from langchain_core.tracers import BaseTracer

NO_STREAM = "nostream"
"""Tag of runs that a graph keeps out of its message stream."""
GRAPH_STREAM = "__pregel_stream"
"""Key of the caller's stream in a LangGraph run's configuration, the one private name that is used here: without it a
graph that runs inside does not show its state, with the candidate, to ``subgraphs=True``."""
_TELLING = ("on_llm_new_token", "on_stream_event", "on_text", "on_custom_event")
"""Events in which a model can report an answer while it still writes it."""


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
    return _without(callbacks, _streams)


@contextmanager
def streaming_disabled() -> Iterator[None]:
    """Hide calls made inside, also those of judges and observers, from the caller's streams and token handlers."""
    ambient = var_child_runnable_config.get()
    if ambient is None:
        yield
        return
    configurable = {name: value for name, value in (ambient.get("configurable") or {}).items() if name != GRAPH_STREAM}
    quiet: Any = {"callbacks": _without(ambient.get("callbacks"), _tells), "configurable": configurable}
    token = var_child_runnable_config.set(RunnableConfig(**{**ambient, **quiet}))
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _without(callbacks: Callbacks, left_out: Callable[[BaseCallbackHandler], bool]) -> Callbacks:
    """The callbacks without some handlers; the same object if it has none of them."""

    def kept(handlers: Iterable[BaseCallbackHandler]) -> list[BaseCallbackHandler]:
        return [handler for handler in handlers if not left_out(handler)]

    if not callbacks:
        return callbacks
    if isinstance(callbacks, list):
        return kept(callbacks) if any(map(left_out, callbacks)) else callbacks
    if not any(map(left_out, (*callbacks.handlers, *callbacks.inheritable_handlers))):
        return callbacks
    quiet = callbacks.copy()
    quiet.handlers, quiet.inheritable_handlers = kept(quiet.handlers), kept(quiet.inheritable_handlers)
    quiet.add_tags([NO_STREAM])
    return quiet


def _streams(handler: BaseCallbackHandler) -> bool:
    """Whether a handler feeds a stream: only the streaming handlers of LangChain and LangGraph can tap outputs."""
    return hasattr(handler, "tap_output_iter") or hasattr(handler, "tap_output_aiter")


def _tells(handler: BaseCallbackHandler) -> bool:
    """Whether a handler may pass on what a model writes before it has ended; a tracer only keeps it."""
    nothing = [getattr(base, event) for event in _TELLING for base in (BaseCallbackHandler, AsyncCallbackHandler)]
    listens = any(getattr(type(handler), event, None) not in (None, *nothing) for event in _TELLING)
    return _streams(handler) or (listens and not isinstance(handler, BaseTracer))


def without_tokens(generate: Callable[..., Any]) -> Callable[..., Any]:
    """A model's ``_generate`` or ``_agenerate`` with a run manager that has no handlers.

    That is the one place that the handlers of the caller, of the model and of the process all pass.
    """
    if "run_manager" not in signature(generate).parameters:
        return generate

    @wraps(generate)
    def quiet(messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if run_manager is not None:
            run_manager = type(run_manager)(
                run_id=run_manager.run_id,
                handlers=[],
                inheritable_handlers=[],
                parent_run_id=run_manager.parent_run_id,
                tags=run_manager.tags,
                metadata=run_manager.metadata,
            )
        return generate(messages, stop=stop, run_manager=run_manager, **kwargs)

    return quiet


def note_verdict(
    run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None, fields: Mapping[str, Any]
) -> None:
    """Write ``Verdict.trace_fields()`` into the metadata of the guard's run, for every tracer that keeps runs.

    LangSmith shows it as run metadata, and exporters that read LangChain's runs (OpenTelemetry) as attributes; so it is
    flat and holds no text of an answer. It is there even when the abstention raises.
    """
    if run_manager is None:
        return
    metadata = {name: value for name, value in fields.items() if value is not None}
    for handler in run_manager.handlers:
        run = getattr(handler, "run_map", {}).get(str(run_manager.run_id))
        if run is not None:
            run.add_metadata(metadata)
