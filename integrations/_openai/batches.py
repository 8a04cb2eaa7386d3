"""The batch service of an OpenAI-compatible endpoint: requests in a file, replies within hours at a lower price."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from guardrail.errors import require
from guardrail.sampling.batches import BatchReply, BatchState
from guardrail.sampling.native import NativeChat

from .endpoint import NO_KEY, Attempted, Endpoint, EndpointError

T = TypeVar("T")
RECENT = 100
"""Most batches that are looked through for a label."""


class BatchService(NativeChat):
    """A chat model with the batch service of its endpoint."""

    @abstractmethod
    def _endpoint(self) -> Endpoint: ...

    def submit_batch(self, path: Path, label: str, *, again: bool) -> str:
        """Submit a request file to the endpoint's batch service; returns the batch's id.

        Args:
            path: The file, in OpenAI's form.
            label: Stored with the batch.
            again: Whether an earlier submission may have succeeded: a batch with this label is then used.

        Raises:
            EndpointError: The endpoint has no batch service, or the service refused the file.
        """

        def submitted(client: Any) -> str:
            for there in client.batches.list(limit=RECENT).data if again else ():
                if (there.metadata or {}).get("guardrail") == label and there.status not in {"failed", "cancelled"}:
                    return str(there.id)
            uploaded = client.files.create(file=path, purpose="batch")
            begun = client.batches.create(
                input_file_id=uploaded.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"guardrail": label},
            )
            return str(begun.id)

        return _with_sdk(self._endpoint(), submitted)

    def batch_state(self, batch: str) -> BatchState:
        """The progress of a batch.

        Raises:
            EndpointError: The service does not know it, or cannot be reached.
        """
        retrieved = _with_sdk(self._endpoint(), lambda client: client.batches.retrieve(batch))
        counts = retrieved.request_counts
        errors = None if retrieved.errors is None else retrieved.errors.data
        return BatchState(
            status=retrieved.status,
            done=retrieved.status in {"completed", "failed", "expired", "cancelled"},
            answered=0 if counts is None else counts.completed + counts.failed,
            total=0 if counts is None else counts.total,
            files=tuple(file for file in (retrieved.output_file_id, retrieved.error_file_id) if file),
            error="; ".join(str(error.message) for error in (errors or [])[:3]),
        )

    def batch_file(self, file: str) -> bytes:
        """The content of a file with replies.

        Raises:
            EndpointError: The service does not have it, or cannot be reached.
        """
        return _with_sdk(self._endpoint(), lambda client: bytes(client.files.content(file).content))


def _with_sdk(endpoint: Endpoint, work: Callable[[Any], T]) -> T:
    """Talk to the service with the SDK's client, its retries, and ten minutes for each request."""
    openai, failed = require("openai", extra="openai"), None
    try:
        with openai.OpenAI(
            api_key=endpoint.key or NO_KEY,
            base_url=endpoint.url,
            default_headers=endpoint.headers,
            max_retries=endpoint.retries,
            timeout=600.0,
            http_client=openai.DefaultHttpxClient(follow_redirects=False),  # as in `Endpoint`
        ) as client:
            return work(client)
    except Exception as error:
        failed = endpoint.failure(error)
    raise failed  # outside the handler: otherwise its context would be the error that may hold keys


def attempted_of(reply: BatchReply) -> Attempted:
    """A batch's reply in the form of a live request's result."""
    if reply.status == 200:
        return Attempted(reply.content, None, 1)
    return Attempted(None, EndpointError(reply.error, reply.status or None), 1)
