"""Child callbacks for samples: they appear in traces below the guard, and in no stream.

A chat-model run is a leaf for LangChain (its run manager has no ``get_child``), so the child manager is made by hand.
Streaming handlers (``stream``, ``astream_events``, a graph's message stream) are left out: they would show samples
before, or in spite of, the verdict.
"""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    CallbackManager,
    CallbackManagerForLLMRun,
)
from langchain_core.tracers._streaming import _StreamingCallbackHandler, _V2StreamingCallbackHandler

__all__ = ["child_callbacks"]


def child_callbacks(
    run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None,
) -> CallbackManager | AsyncCallbackManager | None:
    """Callbacks for calls made on behalf of a guarded call, without the handlers that stream."""
    if run_manager is None:
        return None
    kind: Any = AsyncCallbackManager if isinstance(run_manager, AsyncCallbackManagerForLLMRun) else CallbackManager
    manager = kind(handlers=[], parent_run_id=run_manager.run_id)
    manager.set_handlers([handler for handler in run_manager.inheritable_handlers if not _streams(handler)])
    manager.add_tags([*run_manager.inheritable_tags, "nostream"])
    manager.add_metadata(dict(run_manager.inheritable_metadata))
    return manager  # type: ignore[no-any-return]


def _streams(handler: BaseCallbackHandler) -> bool:
    return isinstance(handler, _StreamingCallbackHandler | _V2StreamingCallbackHandler)
