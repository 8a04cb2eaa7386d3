"""Batches: the requests of many sample sets in a file, answered within hours at a lower price."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage

from ..bindings import native_settings
from ..errors import UsageError
from ..types import SampleSet, SamplingPlan
from .native import request_seed
from .replies.read import only_ended, only_offered, only_readable

TRANSIENT = frozenset({408, 409, 429})


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The reply to one request of a batch.

    Attributes:
        status: HTTP status; 0 if the request was never answered.
        content: The reply's body as JSON.
        error: The reason why the reply is missing, or "".
    """

    status: int
    content: bytes = b""
    error: str = ""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> BatchReply:
        """The reply in a line in OpenAI's form: ``response`` with ``status_code`` and ``body``, or ``error``."""
        response, error = line.get("response"), line.get("error")
        status = response.get("status_code", 200) if isinstance(response, dict) else None
        if not isinstance(response, dict) or not isinstance(status, int):
            text = error.get("message") or error.get("code") if isinstance(error, dict) else error
            return cls(0, error=str(text or "the service gave no reply"))
        body = response.get("body")
        if status == 200:
            return cls(200, json.dumps(body).encode())
        reason = body.get("error") if isinstance(body, dict) else body
        return cls(status, error=f"HTTP {status}: {json.dumps(reason)[:300]}")

    @property
    def may_pass(self) -> bool:
        """Whether the failure has nothing to do with the question: the request is worth sending again."""
        return self.status == 0 or self.status in TRANSIENT or self.status >= 500


@dataclass(frozen=True, slots=True)
class BatchState:
    """The progress of a submitted batch.

    Attributes:
        status: The service's word.
        done: Whether it is final.
        answered: Requests that have an answer or an error.
        total: All its requests.
        files: Ids of the files with replies, as soon as they exist.
        error: The reason why the service did not run it, or "".
    """

    status: str
    done: bool
    answered: int
    total: int
    files: tuple[str, ...] = ()
    error: str = ""


def takes_batches(model: object) -> bool:
    """Whether a chat model's sample sets can be drawn by a batch service, as those of `OpenAICompatibleChat` can."""
    return hasattr(model, "batch_requests") and hasattr(model, "batch_sample_sets")


def batch_requests(
    model: Any, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan
) -> list[dict[str, dict[str, Any]]]:
    """For each prompt the bodies of its requests, by a name that is unique within the prompt.

    They have the seeds and settings of live sampling.

    Raises:
        UsageError: The plan has no seed, or follow-up questions, which need the answers first.
    """
    if plan.follow_ups:
        raise UsageError(
            f"a batch cannot ask the follow-up questions {', '.join(plan.follow_ups)}: they are about answers that it "
            "has not given yet. Choose scores that need none, or collect live."
        )
    if plan.seed is None:
        raise UsageError("a batch needs a seed, so that its requests can be made again. Give the plan one: seed=0.")
    bodies: list[dict[str, dict[str, Any]]] = model.batch_requests(
        prompts, plan, **_common(model, model.batch_requests, prompts, plan)
    )
    return bodies


def batch_sample_sets(
    model: Any,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    replies: Sequence[Mapping[str, BatchReply]],
) -> list[SampleSet]:
    """The sample set of each prompt from the replies to its requests, by the names of `batch_requests`."""
    common = _common(model, model.batch_sample_sets, prompts, plan)
    sets = model.batch_sample_sets(prompts, plan, replies=replies, **common)
    return [only_offered(only_ended(only_readable(drawn), plan), plan.bindings) for drawn in sets]


def _common(model: Any, method: Any, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan) -> dict[str, Any]:
    seeds = [request_seed(plan, messages) for messages in prompts]
    return {"seeds": seeds, **native_settings(model, method, plan.bindings)}
