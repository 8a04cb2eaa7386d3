"""From messages to a `SampleSet`: native samplers, and concurrent calls for every other chat model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..uncertainty.plan import plan_for
    from .sampler import draw

__all__ = ["draw", "plan_for"]


def __getattr__(name: str) -> Any:
    # On demand: `draw` loads LangChain's chat models, and `plan_for` reads estimators, which build on this package.
    if name == "draw":
        from .sampler import draw

        return draw
    if name == "plan_for":
        from ..uncertainty.plan import plan_for

        return plan_for
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
