"""The `--model` flag: from a text to a chat model, by `guardrail.models`."""

from __future__ import annotations

from guardrail.models import resolve_model

__all__ = ["MODEL_HELP", "resolve_model"]

MODEL_HELP = (
    "[bold]transformers:PATH_OR_ID[/bold] (local weights), [bold]openai-compatible:MODEL@BASE_URL[/bold] (an "
    "endpoint), [bold]python:MODULE:NAME[/bold] (a chat model, or a function that makes one, importable from here), "
    "or a LangChain name such as [bold]openai:gpt-4o-mini[/bold]."
)
