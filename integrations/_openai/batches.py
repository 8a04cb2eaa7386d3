"""OpenAI's batch service: request files are uploaded, run within 24 hours, and their replies downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guardrail.sampling.batches import BatchReply, BatchState

from .endpoint import Attempted, EndpointError
from .sampling import SAMPLES, Ask

__all__ = ["attempted", "content_of", "named", "state_of", "submit"]

DONE = frozenset({"completed", "failed", "expired", "cancelled"})
LABEL = "guardrail"
"""Key of the label in a batch's metadata."""
RECENT = 100
"""Most batches that are looked through for a label."""


def named(asks: Sequence[Ask], prompts: int) -> list[dict[str, Ask]]:
    """The requests of each prompt by name: their role, or "sample-NUMBER" for a request of a single sample."""
    by_name: list[dict[str, Ask]] = [{} for _ in range(prompts)]
    for ask in asks:
        of_prompt = by_name[ask.prompt]
        alone = ask.role == SAMPLES and "n" not in ask.settings
        of_prompt[f"sample-{sum(map(_is_sample, of_prompt))}" if alone else ask.role] = ask
    return by_name


def _is_sample(name: str) -> bool:
    return name.startswith("sample-")


def attempted(reply: BatchReply) -> Attempted:
    """A batch's reply in the form of a live request's result."""
    if reply.status == 200:
        return Attempted(reply.content, None, 1)
    return Attempted(None, EndpointError(reply.error, reply.status or None), 1)


async def submit(client: Any, path: Path, label: str, again: bool) -> str:
    """Upload a request file and start its batch; with ``again``, return a batch that has the label already."""
    if again:
        recent = await client.batches.list(limit=RECENT)
        for batch in recent.data:
            if (batch.metadata or {}).get(LABEL) == label and batch.status not in {"failed", "cancelled"}:
                return str(batch.id)
    uploaded = await client.files.create(file=path, purpose="batch")
    batch = await client.batches.create(
        input_file_id=uploaded.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={LABEL: label},
    )
    return str(batch.id)


async def state_of(client: Any, batch: str) -> BatchState:
    """The progress of a batch."""
    retrieved = await client.batches.retrieve(batch)
    counts = retrieved.request_counts
    listed = (retrieved.errors.data or []) if retrieved.errors is not None else []
    return BatchState(
        status=retrieved.status,
        done=retrieved.status in DONE,
        answered=0 if counts is None else counts.completed + counts.failed,
        total=0 if counts is None else counts.total,
        files=tuple(file for file in (retrieved.output_file_id, retrieved.error_file_id) if file),
        error="; ".join(str(error.message) for error in listed[:3]),
    )


async def content_of(client: Any, file: str) -> bytes:
    """A file's content."""
    return bytes((await client.files.content(file)).content)
