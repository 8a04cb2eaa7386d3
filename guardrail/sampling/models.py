"""Chat models by name, for command lines and configuration files.

| name | model |
|---|---|
| ``transformers:PATH_OR_ID`` | local weights |
| ``openai-compatible:MODEL@BASE_URL`` | an endpoint that speaks OpenAI's chat-completions protocol |
| ``python:MODULE:NAME`` | a chat model, or a function that makes one, importable from the working folder |
| anything else, e.g. ``openai:gpt-4o-mini`` | LangChain's ``init_chat_model`` |

A package may add forms by an entry point of the group ``acrc_guardrail.models``: its name is the part before the first
colon, its target a function that takes the rest and returns the model.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MissingDependencyError, UsageError, load_entry_point

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel  # slow to import, and `import_named` does not need it

GROUP = "acrc_guardrail.models"
"""Entry-point group of model forms."""
FORMS = (
    "Write transformers:PATH_OR_ID, openai-compatible:MODEL@BASE_URL, python:MODULE:NAME, or a LangChain name such as "
    "openai:gpt-4o-mini."
)

_PACKAGES = {"azure_openai": "openai", "bedrock": "aws", "bedrock_converse": "aws"}
"""LangChain's names of providers that are not in the name of their package."""


def resolve_model(spec: str) -> BaseChatModel:
    """Make the chat model that a name stands for. ``python:`` runs code: never pass names from untrusted input.

    Raises:
        UsageError: The form is unknown, nothing is found there, or the provider refuses (e.g. no key).
        MissingDependencyError: The package that serves it is not installed.
    """
    kind, _, rest = spec.partition(":")
    if not rest:
        raise UsageError(f"model {spec!r} names no provider. {FORMS}")
    if kind == "python":
        return _from_python(spec, rest)
    entry = _form(kind)
    return _from_langchain(spec) if entry is None else _checked(load_entry_point(entry)(rest), spec)


def _form(kind: str) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=kind)), None)


def _from_python(spec: str, target: str) -> BaseChatModel:
    from langchain_core.language_models import BaseChatModel

    named = import_named(target, f"model {spec!r}")
    if not callable(named) or isinstance(named, BaseChatModel):
        return _checked(named, spec)
    try:
        made = named()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # from inside the function
            raise
        raise UsageError(
            f"model {spec!r} cannot be made without arguments ({error}). Name a chat model, or a function without "
            "arguments that makes one."
        ) from error
    return _checked(made, spec)


def import_named(target: str, what: str) -> Any:
    """The object that "MODULE:NAME" names, also in the working folder. It runs code: never pass untrusted names.

    Args:
        target: Module and attribute.
        what: The purpose of the object, for errors.

    Raises:
        UsageError: No attribute is named, or the module or attribute does not exist.
    """
    module_name, _, name = target.partition(":")
    if not name:
        raise UsageError(f"{what} names no attribute. Write python:MODULE:NAME, e.g. python:my_app.models:chat.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(import_module(module_name), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UsageError(f"{what}: no module {error.name!r} importable from {here}. Check the name.") from error
    except AttributeError as error:
        raise UsageError(f"{what}: module {module_name!r} has no {name!r}. Check the name.") from error


def _checked(model: Any, spec: str) -> BaseChatModel:
    from langchain_core.language_models import BaseChatModel

    if not isinstance(model, BaseChatModel):
        raise UsageError(f"model {spec!r} is a {type(model).__name__}; it must be a LangChain chat model or make one")
    return model


def _from_langchain(spec: str) -> BaseChatModel:
    try:
        chat_models = import_module("langchain.chat_models")
    except ImportError as error:
        provider = spec.partition(":")[0]
        package = _PACKAGES.get(provider, provider.replace("_", "-"))
        raise MissingDependencyError(
            f"model {spec!r} is resolved by LangChain, which is not installed: pip install langchain "
            f"langchain-{package}. Or use python:MODULE:NAME with your own chat model."
        ) from error
    try:
        made = chat_models.init_chat_model(spec)
    except ImportError as error:
        raise MissingDependencyError(f"model {spec!r}: {error}") from error
    except ValueError as error:
        raise UsageError(f"model {spec!r}: {error} {FORMS}") from error
    except Exception as error:  # a provider's class may raise anything, most often because the key is missing
        raise UsageError(
            f"model {spec!r} cannot be made: {type(error).__name__}: {error} If the provider's key is missing, "
            "set it in the environment (OPENAI_API_KEY for openai). Or make the chat model yourself and name it as "
            "python:MODULE:NAME."
        ) from error
    return _checked(made, spec)
