"""`Router`: a guard for each group of questions (intent, tenant, language), chosen by the application."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Self

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config
from pydantic import Field, field_validator

from ..artifact import ALL_OTHERS, CalibrationArtifact, RouterArtifact
from ..errors import ArtifactMismatchError, UsageError
from ..foreign_errors import describe_error
from ..prompting import copies_of
from ..sampling.draws import REMEMBERED, Draws
from ..sampling.effects import Steps
from ..verdict import Verdict
from .base import GuardedChatModel
from .chat_model import Guardrail
from .structured import asked, runnable

CONFIG_KEY = "guardrail_route"
"""Name of the route in a call's ``config["configurable"]``, for a router without a key function."""

_named: ContextVar[Any] = ContextVar(CONFIG_KEY, default=None)
"""The route that the configuration of the surrounding call names."""


class Router(GuardedChatModel):
    """A drop-in chat model that has each question answered by the guard of its group.

    Example:
        >>> router = Router({"billing": strict, "shipping": lax}, key=intent)             # doctest: +SKIP
        >>> router = Router.of(chat, "router.json", key=intent)                           # doctest: +SKIP
        >>> (router.prompt | router).invoke({"question": "When is invoice 7 due?"})       # doctest: +SKIP

    Each guard keeps its own promise about the questions of its group, for any mix of groups. Find the group as at
    calibration, and never let a client name it: it chooses the threshold.

    The key is a function of the prompt's messages. Without one, the configuration of each call names the route:
    ``config={"configurable": {"guardrail_route": "billing"}}``. A key without a guard (None, too) goes to the guard
    "all others"; without such a guard the call is refused. ``response_metadata["guardrail"]["route"]`` names the route.
    """

    guards: dict[str, GuardedChatModel] = Field(min_length=1)
    """A guard (or `Cascade`, or `Router`) by the name of its group."""
    key: Any = Field(default=None, repr=False)
    """A function of the prompt's messages that names the group of the question, or None for "all others"; None if the
    configuration of each call names it."""

    def __init__(self, guards: Mapping[str, GuardedChatModel] | None = None, /, **fields: Any) -> None:
        """The fields by name; or the guards first."""
        if guards is not None:
            if "guards" in fields:
                raise UsageError("guards was given twice. Give it once.")
            fields["guards"] = dict(guards)
        super().__init__(**fields)

    @classmethod
    def of(
        cls,
        model: Any,
        artifact: RouterArtifact | str | Path,
        *,
        key: Callable[[Any], str | None] | None = None,
        settings: Callable[[CalibrationArtifact], Mapping[str, Any]] = lambda artifact: {},
        **common: Any,
    ) -> Self:
        """One guard of a model for each artifact of a router's file (`calibrate fit --by group`).

        Args:
            model: The chat model, or its name.
            artifact: The file, or what it holds.
            key: As `key`.
            settings: Further settings of a guard that depend on its artifact, such as a monitor.
            **common: Settings of all guards, as for `Guardrail`.
        """
        loaded = artifact if isinstance(artifact, RouterArtifact) else RouterArtifact.load(artifact)
        remember = common.pop("remember", REMEMBERED)
        # One memory: a question that comes back in another group is not drawn again.
        draws = remember if isinstance(remember, Draws) else Draws(remember)
        guards = {
            name: Guardrail(model=model, artifact=part, remember=draws, **{**common, **settings(part)})
            for name, part in loaded.artifacts.items()
        }
        return cls(guards, key=key)

    @field_validator("key")
    @classmethod
    def _function_of_messages(cls, value: Any) -> Any:
        return None if value is None else check_key(value)

    # -- the choice --------------------------------------------------------------------------------------------------

    def route(self, messages: Sequence[BaseMessage]) -> str:
        """The name of the guard that a prompt goes to.

        Args:
            messages: The prompt.

        Raises:
            ArtifactMismatchError: Neither the key nor "all others" has a guard; or nothing names a key.
            UsageError: The key function failed, or a key is not a string.
        """
        if self.key is not None:
            return route_by(self.key, messages, self.guards)
        name = _named.get()
        if name is None:
            raise ArtifactMismatchError(
                "this router has a guard for each group, and the call names none. Give "
                f'config={{"configurable": {{"{CONFIG_KEY}": NAME}}}}, or make the router with '
                "key=function_of_messages."
            )
        return _route(name, self.guards, f'config["configurable"][{CONFIG_KEY!r}]')

    @contextmanager
    def _calling(self, config: RunnableConfig | None) -> Iterator[None]:
        with super()._calling(config), _route_of(config):
            yield

    def _answer(
        self,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        run_manager: Any,
        arguments: Mapping[str, Any],
    ) -> Steps[ChatResult]:
        route = self.route(messages)
        result = yield from self.guards[route]._answer(messages, stop, run_manager, arguments)
        for generation in result.generations:
            generation.message = on_route(generation.message, route)
        return result

    def _verdict(
        self, messages: Sequence[BaseMessage], callbacks: Callbacks, arguments: Mapping[str, Any] | None = None
    ) -> Steps[Verdict]:
        return (yield from self.guards[self.route(messages)]._verdict(messages, callbacks, arguments))

    # -- tools and structured output -----------------------------------------------------------------------------------

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The router for callers that bind tools; each guard checks them, see `Guardrail.bind_tools`."""
        bound: list[Any] = [guard.bind_tools(tools, **kwargs) for guard in self.guards.values()]
        return self.bind(**bound[0].kwargs)

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[LanguageModelInput, Any]:
        """A runnable that returns objects of a schema; each guard checks it, see `Guardrail.with_structured_output`."""
        runnables = {name: guard.with_structured_output(schema, **kwargs) for name, guard in self.guards.items()}

        def ask(prompt: Any, config: RunnableConfig) -> Steps[Any]:
            with _route_of(config):
                route = self.route(self._convert_input(prompt).to_messages())
                return (yield asked(runnables[route], prompt, config))

        return runnable(ask, "guardrail_router")

    # -- LangChain plumbing ------------------------------------------------------------------------------------------

    def _paths(self) -> tuple[Any, ...]:
        return tuple(path for guard in self.guards.values() for path in guard._paths())

    def _artifacts(self) -> tuple[CalibrationArtifact, ...]:
        return tuple(artifact for guard in self.guards.values() for artifact in guard._artifacts())

    def _memory(self) -> dict[str, Any]:
        return {"guards": self.guards}

    @property
    def _remembers(self) -> bool:
        return all(guard._remembers for guard in self.guards.values())

    @property
    def _llm_type(self) -> str:
        return "guardrail_router"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"guards": {name: guard._identifying_params for name, guard in self.guards.items()}}


def on_route(message: BaseMessage, route: str) -> BaseMessage:
    """The message with the name of its route beside its verdict; the innermost of nested routers has named its own."""
    metadata = message.response_metadata
    if not metadata.get("guardrail"):
        return message
    named = {"route": route, **metadata["guardrail"]}
    return message.model_copy(update={"response_metadata": {**metadata, "guardrail": named}})


def check_key(key: Any) -> Any:
    """A function that names the group of a prompt.

    Raises:
        ValueError: It is not a function, or it is async.
    """
    if callable(key) and not iscoroutinefunction(key):
        return key
    raise ValueError(f"key must be a function of messages that is not async, got {key!r}")


def route_by(key: Callable[[Any], str | None], messages: Sequence[BaseMessage], names: Collection[str]) -> str:
    """The group that a key function names for a prompt, as `Router.route`.

    Args:
        key: The function of the prompt's messages.
        messages: The prompt.
        names: The groups that have a guard.

    Raises:
        ArtifactMismatchError: Neither the group nor "all others" has a guard.
        UsageError: The function failed, or returned something else than a string or None.
    """
    try:
        name = key(copies_of(messages))
    except Exception as error:  # the user's code
        raise UsageError(
            f"key(messages) failed: {describe_error(error)}. Nothing was drawn; fix the function."
        ) from error
    return _route(name, names, "key(messages)")


def _route(name: Any, names: Collection[str], source: str) -> str:
    if name is not None and not isinstance(name, str):
        raise UsageError(f"{source} must be the name of a group or None, got {type(name).__name__}: {name!r}.")
    route = name if isinstance(name, str) and name in names else ALL_OTHERS
    if route not in names:
        raise ArtifactMismatchError(
            f"{source} is {name!r}, and this router has guards for {', '.join(map(repr, names))} only. "
            f'Calibrate this group, or add a guard "{ALL_OTHERS}".'
        )
    return route


@contextmanager
def _route_of(config: RunnableConfig | None) -> Iterator[None]:
    """Have the routers inside take the route that a call's configuration names.

    A router on the abstention path of another guard inherits the name, unless its own configuration has one.
    """
    named = ensure_config(config).get("configurable", {}).get(CONFIG_KEY)
    token = _named.set(_named.get() if named is None else named)
    try:
        yield
    finally:
        _named.reset(token)
