"""The `--model` flag: from a text to a chat model. The only place of `calibrate` that imports `integrations`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from guardrail.errors import MissingDependencyError, UsageError

__all__ = ["MODEL_HELP", "resolve_model"]

MODEL_HELP = (
    "[bold]transformers:PATH_OR_ID[/bold] (local weights), [bold]python:MODULE:NAME[/bold] (a chat model, or a "
    "function that makes one, importable from here), or a LangChain name such as [bold]openai:gpt-4o-mini[/bold]."
)


def resolve_model(spec: str) -> BaseChatModel:
    """Make the chat model a user named.

    Raises:
        UsageError: The text is of none of the known forms, or nothing is found there.
        MissingDependencyError: The package that serves it is not installed.
    """
    kind, _, rest = spec.partition(":")
    if not rest:
        raise UsageError(
            f"model {spec!r} names no provider. Write transformers:PATH_OR_ID, python:MODULE:NAME, or a LangChain "
            "name such as openai:gpt-4o-mini."
        )
    if kind == "transformers":
        return _transformers(rest)
    return _from_python(spec, rest) if kind == "python" else _from_langchain(spec)


def _transformers(path: str) -> BaseChatModel:
    module = import_module("integrations.transformers_chat")
    model: BaseChatModel = module.TransformersChat(model=path)
    return model


def _from_python(spec: str, target: str) -> BaseChatModel:
    module_name, _, name = target.partition(":")
    if not name:
        raise UsageError(
            f"model {spec!r} names no attribute. Write python:MODULE:NAME, e.g. python:my_app.models:chat."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = getattr(import_module(module_name), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UsageError(f"model {spec!r}: no module {error.name!r} importable from {here}. Check the name.") from error
    except AttributeError as error:
        raise UsageError(f"model {spec!r}: module {module_name!r} has no {name!r}. Check the name.") from error
    model = found() if callable(found) and not isinstance(found, BaseChatModel) else found
    if not isinstance(model, BaseChatModel):
        raise UsageError(f"model {spec!r} is a {type(model).__name__}; it must be a LangChain chat model or make one")
    return model


def _from_langchain(spec: str) -> BaseChatModel:
    try:
        chat_models = import_module("langchain.chat_models")
    except ImportError as error:
        provider = spec.partition(":")[0]
        raise MissingDependencyError(
            f"model {spec!r} is resolved by LangChain, which is not installed: pip install langchain "
            f"langchain-{provider}. Or use python:MODULE:NAME with a chat model of your own."
        ) from error
    try:
        model: BaseChatModel = chat_models.init_chat_model(spec)
    except ValueError as error:
        raise UsageError(f"model {spec!r}: {error}") from error
    return model
