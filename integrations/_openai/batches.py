"""The batch service of an OpenAI-compatible endpoint: requests in a file, replies within hours at a lower price."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from guardrail.errors import require
from guardrail.sampling.batches import BatchReply, BatchState
from guardrail.sampling.native import NativeChat, check_seeds
from guardrail.types import SampleSet, SamplingPlan

from .endpoint import NO_KEY, Attempted, Endpoint, EndpointError
from .sampling import SAMPLES, Ask, AskOutcome, named, sample_set

T = TypeVar("T")
RECENT = 100
"""Most batches that are looked through for a label."""


class BatchChat(NativeChat):
    """A chat model whose requests its endpoint's batch service takes, too."""

    @abstractmethod
    def _endpoint(self) -> Endpoint: ...

    @abstractmethod
    def _asks(
        self, plan: SamplingPlan, seed: int | None, settings: Mapping[str, Any], *, together: bool | None = None
    ) -> list[Ask]: ...

    @abstractmethod
    def _body(self, messages: Any, settings: Any, stop: Sequence[str] | None = None) -> dict[str, Any]: ...

    @abstractmethod
    def _outcome(self, ask: Ask, attempted: Attempted, started: float) -> AskOutcome: ...

    def batch_requests(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        **settings: Any,
    ) -> list[dict[str, dict[str, Any]]]:
        """The bodies of the requests that ``draw_samples`` would send, for each prompt by name."""
        check_seeds(prompts, seeds)
        return [
            {
                name: self._body(messages, ask.settings, plan.stop)
                for name, ask in named(self._asks(plan, seed, settings)).items()
            }
            for messages, seed in zip(prompts, seeds, strict=True)
        ]

    def batch_sample_sets(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        replies: Sequence[Mapping[str, BatchReply]],
        **settings: Any,
    ) -> list[SampleSet]:
        """One `SampleSet` for each prompt out of the replies to its requests. Failures are its ``problem``."""
        drawn = []
        for messages, seed, by_name in zip(prompts, seeds, replies, strict=True):
            asks = named(self._asks(plan, seed, settings, together=SAMPLES in by_name))
            started = time.perf_counter()
            pairs = [(ask, self._outcome(ask, _attempted(by_name[name]), started)) for name, ask in asks.items()]
            drawn.append(sample_set(messages, plan, pairs))
        return drawn

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
        found = _with_sdk(self._endpoint(), lambda client: client.batches.retrieve(batch))
        counts, errors = found.request_counts, found.errors.data if found.errors is not None else None
        return BatchState(
            status=found.status,
            done=found.status in {"completed", "failed", "expired", "cancelled"},
            answered=0 if counts is None else counts.completed + counts.failed,
            total=0 if counts is None else counts.total,
            files=tuple(file for file in (found.output_file_id, found.error_file_id) if file),
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


def _attempted(reply: BatchReply) -> Attempted:
    """A batch's reply in the form of a live request's result."""
    if reply.status == 200:
        return Attempted(reply.content, None, 1)
    return Attempted(None, EndpointError(reply.error, reply.status or None), 1)
