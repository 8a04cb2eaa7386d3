"""Shapes of the requests of an observing alias, and the configuration under which most of them could be measured."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from guardrail.types import SamplingPlan

__all__ = ["Shape", "Shapes"]

DISTINCT = 1000
"""Different shapes that are counted."""
SHORTEST = 64
"""The smallest token limit that is proposed."""


class Shape(NamedTuple):
    """The parts of a request that decide whether its answer can be compared; no text of the prompt."""

    system: tuple[int, str] | None
    """Length and digest of the system prompt; None without one."""
    history: bool
    """Whether there is more than one message besides the system prompt."""
    tools: tuple[int, str] | None
    """Number and digest of the tools; None without tools."""
    json: tuple[str, str] | None
    """Type and digest of the answer format; None for text."""
    temperature: float | None
    """As sent; None if it is left out, which is OpenAI's default of 1."""
    top_p: float | None
    max_tokens: int | None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Shape:
        """The shape of a chat completion's request."""
        listed = [each for each in body.get("messages") or () if isinstance(each, Mapping)]
        first = [each.get("content") for each in listed if each.get("role") in ("system", "developer")]
        tools, form = body.get("tools"), body.get("response_format")
        kind = form.get("type") if isinstance(form, Mapping) else None
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        return cls(
            (len(str(first[0])), _digest(first)) if first else None,
            len(listed) - len(first) > 1,
            (len(tools), _digest(tools)) if isinstance(tools, Sequence) and tools else None,
            (str(kind)[:20], _digest(form)) if kind in ("json_object", "json_schema") else None,
            _number(body.get("temperature")),
            _number(body.get("top_p")),
            _number(limit),
        )


class Shapes:
    """Counts of the shapes of requests; shared by threads."""

    def __init__(self) -> None:
        self._lock, self._counts, self._longest = threading.Lock(), Counter[Shape](), 0

    def add(self, shape: Shape, tokens: int | None) -> None:
        """Count a request with the length of its answer, if that is known."""
        with self._lock:
            self._longest = max(self._longest, tokens or 0)
            if shape in self._counts or len(self._counts) < DISTINCT:
                self._counts[shape] += 1

    def summary(self, plan: SamplingPlan) -> dict[str, Any]:
        """The share of each property, and the configuration, with the plan's n, that matches most requests."""
        with self._lock:
            counts, longest = self._counts.copy(), self._longest
        total = counts.total()
        if not total:
            return {"requests": 0}

        def share(of: Any) -> float:
            return round(sum(number for shape, number in counts.items() if of(shape)) / total, 4)

        def values(name: str) -> dict[str, float]:
            found = {getattr(shape, name) for shape in counts}
            shares = {_spelled(value): share(lambda shape, v=value: getattr(shape, name) == v) for value in found}
            return dict(sorted(shares.items(), key=lambda each: -each[1])[:10])

        shown: dict[str, Any] = {
            "requests": total,
            "system_prompt": share(lambda shape: shape.system is not None),
            "history": share(lambda shape: shape.history),
            "json": share(lambda shape: shape.json is not None),
            "tools": share(lambda shape: shape.tools is not None),
            **{name: values(name) for name in ("temperature", "top_p", "max_tokens")},
        }
        single = Counter({shape: number for shape, number in counts.items() if not shape.history})
        if single:
            ((shape, number),) = single.most_common(1)
            shown["matching"] = {"share": round(number / total, 4), "yaml": _yaml(shape, plan, longest)}
        return shown


def _yaml(shape: Shape, plan: SamplingPlan, longest: int) -> str:
    """The configuration for requests of this shape; what the client's texts must fill in is a comment."""
    temperature, top_p = 1.0 if shape.temperature is None else shape.temperature, shape.top_p or 1.0
    limit = shape.max_tokens or max(SHORTEST, 1 << longest.bit_length())  # unsent: no answer seen was longer
    settings: dict[str, Any] = {
        "n": plan.n,
        "primary": "sampled" if temperature else "greedy",
        "temperature": temperature or plan.temperature,
        "top_p": top_p if temperature else plan.top_p,
        "max_tokens": limit,
    }
    notes = []
    if shape.json is not None and shape.json[0] == "json_object":
        settings["bindings"] = {"response_format": {"type": "json_object"}}
    elif shape.json is not None:
        notes.append("# plan.bindings.response_format: the request's response_format, as it is sent")
    if shape.tools is not None:
        notes.append(f"# plan.bindings.tools: the request's {shape.tools[0]} tools, as they are sent")
    if shape.system is not None:
        length, digest = shape.system
        notes.append(f"# prompt: {{system: the system prompt of {length} characters, SHA-256 {digest}}}")
    return "\n".join(["observe:", f"  plan: {json.dumps(settings)}", *(f"  {line}" for line in notes)]) + "\n"


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else None


def _spelled(value: Any) -> str:
    return "absent" if value is None else f"{value:g}"


def _digest(value: Any) -> str:
    text = value[0] if isinstance(value, list) and value and isinstance(value[0], str) else json.dumps(value)
    return hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).hexdigest()[:12]
