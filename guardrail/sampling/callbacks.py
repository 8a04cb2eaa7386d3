"""Callbacks for samples: they appear in traces below the guard, and in no stream.

A chat-model run is a leaf for LangChain (its run manager has no ``get_child``), so the child manager is made by hand.
Streaming handlers (``stream``, ``astream_events``, a graph's message stream) are left out: they would show samples
before, or in spite of, the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    CallbackManager,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler, _V2StreamingCallbackHandler

from ..verdict import Verdict

__all__ = ["child_callbacks", "drop_streaming_handlers", "note_verdict", "streaming_disabled"]

NO_STREAM = "nostream"
"""Tag of runs that a graph keeps out of its message stream."""
GRAPH_STREAM = "__pregel_stream"
"""Where a LangGraph run's configuration keeps its stream, into which graphs that are run inside write as well."""


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
    """The same callbacks without the handlers that stream; the very object where there are none."""
    if not callbacks:
        return callbacks
    if isinstance(callbacks, list):
        return [one for one in callbacks if not _streams(one)] if any(map(_streams, callbacks)) else callbacks
    if not any(map(_streams, (*callbacks.handlers, *callbacks.inheritable_handlers))):
        return callbacks
    quiet = callbacks.copy()
    quiet.handlers = [one for one in quiet.handlers if not _streams(one)]
    quiet.inheritable_handlers = [one for one in quiet.inheritable_handlers if not _streams(one)]
    quiet.add_tags([NO_STREAM])
    return quiet


@contextmanager
def streaming_disabled() -> Iterator[None]:
    """Hide calls made inside from the caller's streams: those of a judge or an observer, too."""
    ambient = var_child_runnable_config.get()
    callbacks, own = (ambient.get("callbacks"), ambient.get("configurable") or {}) if ambient else (None, {})
    quiet = drop_streaming_handlers(callbacks)
    if ambient is None or (quiet is callbacks and GRAPH_STREAM not in own):
        yield
        return
    configurable = {name: value for name, value in own.items() if name != GRAPH_STREAM}
    token = var_child_runnable_config.set(
        RunnableConfig(**{**ambient, "callbacks": quiet, "configurable": configurable})
    )
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _streams(handler: BaseCallbackHandler) -> bool:
    return isinstance(handler, _StreamingCallbackHandler | _V2StreamingCallbackHandler)


def note_verdict(
    run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None, verdict: Verdict
) -> None:
    """Write the verdict into the metadata of the guard's run, for every tracer that keeps runs.

    LangSmith shows it as run metadata, and exporters that read LangChain's runs (OpenTelemetry) as attributes; so it is
    flat and holds no text of an answer. It is there even when the abstention raises.
    """
    if run_manager is None:
        return
    found = {
        "guardrail_accepted": verdict.accepted,
        "guardrail_reason": verdict.reason.value,
        "guardrail_estimator": verdict.uncertainty.estimator,
        "guardrail_uncertainty": verdict.uncertainty.value,
        "guardrail_threshold": verdict.threshold,
        "guardrail_alpha": verdict.alpha,
        "guardrail_artifact": verdict.artifact,
        "guardrail_calls": verdict.cost.calls,
        "guardrail_stage": getattr(verdict, "stage", None),  # of a cascade
    }
    known = {name: value for name, value in found.items() if value is not None}
    for handler in run_manager.handlers:
        run = getattr(handler, "run_map", {}).get(str(run_manager.run_id))
        if run is not None:
            run.add_metadata(known)
