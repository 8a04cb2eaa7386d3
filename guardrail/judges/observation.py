"""Tool calls compared by their results: two ways to ask for the same thing are the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import UsageError
from ..plain_json import canonical_json
from ..specs import JudgeSpec
from ..types import ToolCall, canonical_calls, plain_json
from .base import Item, Judge
from .similarity import Jaccard, Similarity, jaccard
from .tool_call import read_calls
from .words import normalise

__all__ = ["ObservationJudge", "ObservationSimilarity"]


class ObservationJudge(Judge):
    """Two tool calls are the same iff running them gives the same observation.

    Only calls of tools that are declared safe are run: tools that read and change nothing, because calls are run
    several times and for answers that are never given. A pair with any other call is unmeasured, and so is a pair whose
    tool raises, unless errors are declared to be observations. Calls with the same canonical JSON are the same without
    being run. The observation of several calls is the list of their observations. A call and a text differ; two texts
    are the same iff their normalised strings are.

    Offline, recorded observations replace running: a call with a recorded observation is not run.

    Args:
        run: Runs one call and returns its observation: JSON values, tuples count as lists. None: nothing is run.
        tools: Names of the tools that are safe to run.
        version: Version of the tools and of the data behind them. Part of the spec.
        observations: Recorded observations by canonical calls (`canonical_calls` of the whole answer, or of one call).
        errors: Whether an exception that a tool raises is an observation (its type and message).

    Raises:
        UsageError: Neither ``run`` nor ``observations``, or nothing that may be run.

    Example:
        >>> from guardrail.types import ToolCall
        >>> judge = ObservationJudge(lambda call: sorted(call.arguments["of"]), tools={"sort"}, version="1")
        >>> a, b = (canonical_calls([ToolCall(name="sort", arguments={"of": of})]) for of in ([1, 2], [2, 1]))
        >>> judge.equivalent("", [(a, b)])
        [True]
    """

    judges_tool_calls = True

    def __init__(
        self,
        run: Callable[[ToolCall], Any] | None = None,
        *,
        tools: Collection[str] = (),
        version: str,
        observations: Mapping[str, Any] | None = None,
        errors: bool = False,
    ) -> None:
        if isinstance(tools, str):
            raise UsageError(f"tools is a collection of names, got {tools!r}. Write tools={{{tools!r}}}.")
        if run is None and observations is None:
            raise UsageError("pass run=... to run calls, or observations=... with recorded results")
        if run is not None and not tools:
            raise UsageError("no tool is declared safe to run: name those that only read, e.g. tools={'search'}")
        self._run = run
        self._tools = frozenset(tools)
        self._version = version
        self._observations = dict(observations or {})
        self._errors = errors

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters. Recorded and live observations of one ``version`` are the same judge."""
        params = {"tools": sorted(self._tools), "version": self._version, "errors": self._errors}
        return JudgeSpec(name="observation", version=5, params=params)

    def identity(self, text: str) -> str:
        """Canonical JSON of the calls, or the normalised text."""
        calls = read_calls(text)
        return normalise(text) if calls is None else canonical_calls(calls)

    def compare(self, items: Sequence[Item]) -> list[bool | None]:
        """Equality of observations; questions play no part. Each call is run once for all items."""
        known: dict[str, str | None] = {}
        return [self.identity(a) == self.identity(b) or _same(self._both(a, b, known)) for _, a, b in items]

    def observed(self, items: Sequence[Item]) -> list[tuple[str | None, str | None] | None]:
        """Canonical JSON of the observations of both answers of each item; each call is run once for all items.

        Returns:
            One pair for each item, with None for a missing observation; None instead of a pair if one of the two
            answers is a text.
        """
        known: dict[str, str | None] = {}
        return [self._both(a, b, known) for _, a, b in items]

    def _both(self, a: str, b: str, known: dict[str, str | None]) -> tuple[str | None, str | None] | None:
        ours, theirs = read_calls(a), read_calls(b)
        if ours is None or theirs is None:
            return None
        return self._observed(ours, known), self._observed(theirs, known)

    def _observed(self, calls: Sequence[ToolCall], known: dict[str, str | None]) -> str | None:
        """The observations of calls, as one text; None if a call has no comparable observation."""
        key = canonical_calls(calls)
        if key in self._observations:
            return self._text(self._observations[key])
        if len(calls) > 1:
            observed = [self._observed([call], known) for call in calls]
            return None if None in observed else json.dumps(observed)
        if key not in known:
            known[key] = self._live(calls[0])
        return known[key]

    def _live(self, call: ToolCall) -> str | None:
        if self._run is None or call.name not in self._tools:
            return None
        try:
            observation = self._run(call)
        except Exception as error:  # a tool is the caller's code and may raise anything
            return canonical_json(f"error {type(error).__name__}: {error}") if self._errors else None
        return self._text(observation)

    def _text(self, observation: Any) -> str | None:
        """Canonical JSON of an observation; None if it is not JSON (equal objects may differ in their `repr`)."""
        try:
            plain = observation.strip() if isinstance(observation, str) else plain_json(observation)
            return canonical_json(plain, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return None


def _same(both: tuple[str | None, str | None] | None) -> bool | None:
    """Equality of two observations; None if one is missing, and False where one of the answers is a text."""
    if both is None:
        return False
    return None if None in both else both[0] == both[1]


class ObservationSimilarity(Similarity):
    """Similarity of two tool calls: that of their observations. It refines votes by `ObservationJudge`.

    Observations are compared by the words that they share (`Jaccard`): strings unchanged, other JSON values as their
    keys and values in order. A call and a text have similarity 0; two texts that of their words. A pair without an
    observation is unmeasured. In one estimator with the judge, each distinct call is run twice, once for each of them.

    Args:
        judge: Runs the calls, or knows their observations.

    Example:
        >>> from guardrail.types import ToolCall
        >>> judge = ObservationJudge(lambda call: call.arguments["of"], tools={"give"}, version="1")
        >>> a, b = (canonical_calls([ToolCall(name="give", arguments={"of": of})]) for of in (["x", "y"], ["y", "z"]))
        >>> ObservationSimilarity(judge).similarity("", [(a, b)])
        [0.3333333333333333]
    """

    judges_tool_calls = True

    def __init__(self, judge: ObservationJudge) -> None:
        self._judge = judge

    @property
    def spec(self) -> JudgeSpec:
        """Name, version and parameters: the specs of both parts."""
        params = {"judge": self._judge.spec.model_dump(), "similarity": Jaccard.spec.model_dump()}
        return JudgeSpec(name="observation", version=1, params=params)

    def identity(self, text: str) -> str:
        """The identity of the judge."""
        return self._judge.identity(text)

    def compare(self, items: Sequence[Item]) -> list[float | None]:
        """Similarities of the observations. Each call is run once for all items."""
        return [_rated(a, b, both) for (_, a, b), both in zip(items, self._judge.observed(items), strict=True)]


def _rated(a: str, b: str, both: tuple[str | None, str | None] | None) -> float | None:
    if both is None:
        mixed = read_calls(a) is not None or read_calls(b) is not None
        return 0.0 if mixed else jaccard(a, b)
    ours, theirs = both
    if ours is None or theirs is None:
        return None
    return 1.0 if ours == theirs else jaccard(_plain(json.loads(ours)), _plain(json.loads(theirs)))


def _plain(observation: Any) -> str:
    """An observation as words: keys and values in order."""
    if isinstance(observation, dict):
        return " ".join(f"{key} {_plain(value)}" for key, value in observation.items())
    if isinstance(observation, list):
        return " ".join(map(_plain, observation))
    return observation if isinstance(observation, str) else json.dumps(observation)
