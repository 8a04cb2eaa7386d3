"""What one step of an agent has abstained on, so that a retry gets the same verdict and not another draw.

An abstention above the threshold is a result. Middleware that takes its error for a failure asks again, and draws until
a wrong answer happens to look certain; the error rate among answers is then what the retries make of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.config import get_config

from guardrail.errors import AbstainedError

__all__ = ["Abstentions", "this_step"]

STEPS = 256
"""Steps that are remembered: those that run at once, and are tried again now."""


def this_step() -> str | None:
    """Name of the LangGraph task that runs here, the same for every retry within it; None outside a graph."""
    try:
        name = get_config().get("metadata", {}).get("langgraph_checkpoint_ns")
    except RuntimeError:
        return None
    return name if isinstance(name, str) and name else None


class Abstentions:
    """The last measured abstention of each step. Shared by threads and tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[list[BaseMessage], AbstainedError]] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, Any]) -> Abstentions:
        """A copy knows nothing yet: it is another middleware's."""
        return Abstentions()

    def check(self, step: str | None, messages: Sequence[BaseMessage]) -> None:
        """Let a question go on that this step has not abstained on.

        Raises:
            AbstainedError: The step has abstained on the very same messages before.
        """
        with self._lock:
            found = None if step is None else self._known.get(step)
        if found is not None and found[0] == list(messages):
            raise AbstainedError(found[1].verdict, found[1].message)

    def note(self, step: str | None, messages: Sequence[BaseMessage], error: AbstainedError) -> None:
        """Remember a measured abstention."""
        if step is None:
            return
        with self._lock:
            self._known[step] = (list(messages), error)
            self._known.move_to_end(step)
            while len(self._known) > STEPS:
                self._known.popitem(last=False)
