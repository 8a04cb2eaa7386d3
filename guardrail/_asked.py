"""What a chat model was really asked, next to what a plan says: for ``guardrail doctor``.

LangChain tells a callback the settings of each call after a model has merged its own into them. What a server does with
them is the probe's business (`guardrail.probing`).
"""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel

from ._calls import SAMPLE_INDEX
from .types import SamplingPlan

__all__ = ["Asked", "differences", "own_settings"]

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict")
"""Names under which models send the longest answer."""
SHAPING = frozenset(
    {
        *("best_of", "frequency_penalty", "logit_bias", "min_p", "mirostat", "n", "presence_penalty"),
        *("reasoning_effort", "repeat_penalty", "repetition_penalty", "seed", "top_k", "typical_p"),
        *("extra_body", "model_kwargs"),
    }
)
"""Settings beside the plan's that change how answers are drawn; an artifact does not record them."""


class Asked(BaseCallbackHandler):
    """Remembers the settings of each answer's call, by the number of the sample (-1: the primary answer)."""

    def __init__(self) -> None:
        self.calls: dict[int, dict[str, Any]] = {}

    def on_chat_model_start(self, serialized: Any, messages: Any, **told: Any) -> None:
        """Take down one call; those of further questions follow a plan of their own and are passed over."""
        index = (told.get("metadata") or {}).get(SAMPLE_INDEX)
        if index is None or (index < 0 and told.get("name") != "guardrail_primary"):
            return
        self.calls[index] = dict(told.get("invocation_params") or {})


def differences(asked: Asked, plan: SamplingPlan) -> list[str]:
    """Where the calls differ from the plan, in words; what a call does not name is not compared."""
    found: dict[str, None] = {}  # each once, in order
    for index, sent in sorted(asked.calls.items()):
        sampled = index >= 0
        wanted: dict[str, Any] = {"temperature": plan.temperature if sampled else 0.0}
        wanted |= {"top_p": plan.top_p} if sampled else {}
        wanted |= {name: plan.max_tokens for name in LIMITS}
        what = "samples are" if sampled else "the primary answer is"
        for name, value in wanted.items():
            if sent.get(name) is not None and sent[name] != value:
                found[f"{what} asked with {name} {sent[name]!r}, the plan says {value!r}"] = None
        if (stop := tuple(sent.get("stop") or ())) != plan.stop:
            found[f"{what} asked with stop {stop!r}, the plan says {plan.stop!r}"] = None
        bound = [_name(tool) for tool in sent.get("tools") or ()]
        known = list(plan.bindings.tool_names) if plan.bindings else []
        if None not in bound and sorted(map(str, bound)) != sorted(known):
            found[f"{what} asked with the tools {bound}, the plan says {known}"] = None
    return list(found)


def own_settings(model: BaseChatModel, asked: Asked, plan: SamplingPlan) -> dict[str, Any]:
    """Settings beside the plan's that the model itself brings and that change how answers are drawn."""
    own = {name: getattr(model, name, None) for name in SHAPING}
    own |= {name: value for call in asked.calls.values() for name, value in call.items() if name in SHAPING}
    if not plan.stop:
        own |= {name: getattr(model, name, None) for name in ("stop", "stop_sequences")}
    if own["n"] == 1:
        del own["n"]
    return {name: own[name] for name in sorted(own) if (own[name] or own[name] == 0) and not callable(own[name])}


def _name(tool: Any) -> str | None:
    """Name of a tool in one of the usual forms; None in any other."""
    described = tool.get("function", tool) if isinstance(tool, dict) else {}
    name = described.get("name") if isinstance(described, dict) else None
    return name if isinstance(name, str) else None
