"""Shapes of the requests of an observing alias, and the configuration under which most of them could be measured."""

from __future__ import annotations

import hashlib
import json
import math
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

    system_prompt: tuple[int, str] | None
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
        self._lock, self._counts, self._longest = threading.Lock(), Counter[Shape](), dict[Shape, float]()
        self._comparable = 0

    def add(self, shape: Shape, tokens: int | None, *, comparable: bool) -> None:
        """Count a request.

        Args:
            shape: Its shape.
            tokens: Length of its answer; None if it is unknown, or the answer was cut off.
            comparable: Whether the present configuration can measure it.
        """
        with self._lock:
            if shape in self._counts or len(self._counts) < DISTINCT:
                self._counts[shape] += 1
                self._comparable += comparable
                self._longest[shape] = max(self._longest.get(shape, 0), math.inf if tokens is None else tokens)

    def summary(self, plan: SamplingPlan) -> dict[str, Any]:
        """The share of each property, and the configuration, with the plan's n, that matches most requests.

        It is the plan itself unless another one matches more.
        """
        with self._lock:
            counts, longest, comparable = self._counts.copy(), self._longest.copy(), self._comparable
        shown: dict[str, Any] = {"requests": (total := counts.total())}
        if not total:
            return shown
        for name in ("system_prompt", "history", "json", "tools"):
            having = sum(number for shape, number in counts.items() if getattr(shape, name))
            shown[name] = round(having / total, 4)
        for name in ("temperature", "top_p", "max_tokens"):
            values = Counter[str]()
            for shape, number in counts.items():
                values[_spelled(getattr(shape, name))] += number
            shown[name] = {value: round(number / total, 4) for value, number in values.most_common(10)}
        if matched := _matched(counts, longest):
            ((best, number),) = matched.most_common(1)
            present = f"# as it is now\nobserve:\n  plan: {plan.model_dump_json(exclude_defaults=True)}\n"
            text = _yaml(best, plan) if number > comparable else present
            shown["matching"] = {"share": round(max(number, comparable) / total, 4), "yaml": text}
        return shown


def _matched(counts: Counter[Shape], longest: Mapping[Shape, float]) -> Counter[Shape]:
    """Number of requests by the configuration, as a shape with all settings, that would measure them."""
    # A limit that requests have, or one that no answer has reached.
    sent = Counter({shape.max_tokens: number for shape, number in counts.items() if shape.max_tokens})
    most = max((int(tokens) for tokens in longest.values() if math.isfinite(tokens)), default=0)
    limits = dict.fromkeys([*(limit for limit, _ in sent.most_common(10)), max(SHORTEST, 1 << most.bit_length())])
    matched = Counter[Shape]()
    for shape, number in counts.items():
        sampled = shape._replace(temperature=_default(shape.temperature), top_p=_default(shape.top_p))
        for limit in () if shape.history else limits:
            # An answer that ended by itself is the same under any limit that it does not reach.
            matches = shape.max_tokens == limit or longest[shape] <= limit
            matched[sampled._replace(max_tokens=limit)] += number * matches
    return matched


def _default(value: float | None) -> float:
    """A temperature or ``top_p``: OpenAI's default is 1."""
    return 1.0 if value is None else value


def _yaml(shape: Shape, plan: SamplingPlan) -> str:
    """The configuration for requests of this shape; what the client's texts must fill in is a comment."""
    temperature, top_p = shape.temperature, shape.top_p
    settings: dict[str, Any] = {
        "n": plan.n,
        "primary": "sampled" if temperature else "greedy",
        "temperature": temperature or plan.temperature,
        "top_p": top_p if temperature else plan.top_p,
        "max_tokens": shape.max_tokens,
    }
    notes = []
    if shape.json is not None and shape.json[0] == "json_object":
        settings["bindings"] = {"response_format": {"type": "json_object"}}
    elif shape.json is not None:
        notes.append("# plan.bindings.response_format: the request's response_format, as it is sent")
    if shape.tools is not None:
        notes.append(f"# plan.bindings.tools: the request's {shape.tools[0]} tools, as they are sent")
    if shape.system_prompt is not None:
        length, digest = shape.system_prompt
        notes.append(f"# prompt: {{system: the system prompt of {length} characters, SHA-256 {digest}}}")
    return "\n".join(["observe:", f"  plan: {json.dumps(settings)}", *(f"  {line}" for line in notes)]) + "\n"


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else None


def _spelled(value: Any) -> str:
    return "absent" if value is None else f"{value:g}"


def _digest(value: Any) -> str:
    text = value[0] if isinstance(value, list) and value and isinstance(value[0], str) else json.dumps(value)
    return hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).hexdigest()[:12]
