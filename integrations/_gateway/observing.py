"""An alias that only observes: bytes pass unchanged, and served answers are measured afterwards."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, message_chunk_to_message

from guardrail import Guardrail
from guardrail.errors import GuardrailError, UsageError, require
from guardrail.guard.comparability import unlike_served
from guardrail.guard.endpoint_trust import EndpointTrust
from guardrail.guard.observe import ObserveQueue, chosen, fate_of
from guardrail.guard.record_lines import RecordLines
from guardrail.prompting import ONE_QUESTION, PromptWrapping, turns_of
from guardrail.sampling.effects import run
from guardrail.sampling.replies import read_reply
from guardrail.sampling.sampler import Sampler, refuse_majority
from guardrail.specs import identify
from guardrail.types import Sample, SampleSet, SamplingPlan

from .._openai.lru import LRU
from .._openai.replies import MalformedReplyError, choices_of, chunks_of, message_of, parsed, usage_of
from .aliases import CREDENTIALS, ServedAlias
from .protocol import ApiError, Dialect, bindings_of, drawing_fields, messages_of

httpx = require("httpx", extra="serve")
_responses = require("starlette.responses", extra="serve")

__all__ = ["CutError", "Observing"]

log = logging.getLogger("guardrail")

PASSED = (
    "accept", "anthropic-beta", "anthropic-version", "content-type", "idempotency-key", "openai-beta",
    "openai-organization", "openai-project", "traceparent", "tracestate",
)  # fmt: skip
"""Headers of a client that are sent upstream."""
KEPT_BACK = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"server", b"date", b"x-request-id",
    }
)  # fmt: skip
"""Headers of the upstream that concern its own connection, or that the gateway sends itself."""
LARGEST = 4 * 2**20
"""Bytes of an answer that is measured."""


class CutError(Exception):
    """Ends the client's reply, because the upstream's reply broke off."""


class Observing:
    """Passes requests of one alias through, and measures the answers that a hash chose.

    Args:
        alias: The alias.

    Raises:
        UsageError: The record file belongs to another collection.
    """

    def __init__(self, alias: ServedAlias) -> None:
        self.alias, self._settings = alias, alias.config.observe
        if alias.plan is not None:
            refuse_majority(alias.plan, f"observe the answers of models.{alias.name}")
        limits = self._settings
        self.queue = ObserveQueue(most=limits.queue, at_once=limits.max_concurrency, most_bytes=limits.queue_bytes)
        self._client: Any = None
        self._records: RecordLines | None = None
        self._collectors: LRU[tuple[Sampler, EndpointTrust]] = LRU(CREDENTIALS)
        if self._settings.records is not None:
            assert alias.plan is not None, "checked in the configuration"
            if self._prompt.slots:
                raise UsageError(
                    f"models.{alias.name}: records cannot be kept of a prompt with slots {self._prompt.slots}."
                )
            self._records = RecordLines(
                self._settings.records.path,
                name=f"observed: {alias.name}",
                model=identify(alias.chat(alias.upstream, None)),
                plan=alias.plan,
                prompt=self._prompt,
            )

    @property
    def _prompt(self) -> PromptWrapping:
        return self._settings.prompt if self.alias.single is None else self.alias.single.prompt

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    # -- passing through -----------------------------------------------------------------------------------------------

    async def respond(
        self,
        content: bytes,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        credential: str | None,
        number: str,
        dialect: Dialect,
    ) -> Any:
        """The upstream's reply, byte for byte.

        Args:
            content: The request's body.
            body: The parsed body.
            headers: The request's headers.
            credential: Key for the upstream; None for the key of the alias.
            number: Id of the request. Its hash, or that of an Idempotency-Key, decides whether it is measured.
            dialect: The protocol of request and reply.
        """
        upstream = self.alias.upstream
        own = upstream.key.get_secret_value() if upstream.key is not None else os.environ.get("OPENAI_API_KEY", "")
        sent = {name: headers[name].encode("latin-1") for name in PASSED if name in headers}
        sent["accept-encoding"] = b"identity"  # bytes pass unchanged, and the copy must be readable
        if used := credential or own:  # some servers need no key
            sent["authorization"] = f"Bearer {used}".encode()
            sent |= {"x-api-key": used.encode()} if "anthropic-version" in sent else {}
        if body["model"] != upstream.model:
            content = json.dumps({**body, "model": upstream.model}, ensure_ascii=False).encode()
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))
        request = self._client.build_request(
            "POST", f"{upstream.url.rstrip('/')}/{dialect.path}", content=content, headers=sent,
            timeout=upstream.timeout,
        )  # fmt: skip
        try:
            reply = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise ApiError(
                502, "The model behind the gateway cannot be reached.", "upstream_failed", kind="server_error"
            ) from error
        self.queue.count("served")
        key = headers.get("idempotency-key") or number
        is_chosen = self.alias.plan is not None and chosen(key, self._settings.rate, salt="observe")
        if is_chosen:
            self.queue.count("chosen")
        response = _responses.StreamingResponse(
            self._bytes(reply, body, credential, (key, number) if is_chosen else None, dialect), reply.status_code
        )
        lower = [(name.lower(), value) for name, value in reply.headers.raw]  # a name may come more than once
        response.raw_headers = [(name, value) for name, value in lower if name not in KEPT_BACK]
        return response

    async def _bytes(
        self, reply: Any, body: Mapping[str, Any], credential: str | None, key: tuple[str, str] | None, dialect: Dialect
    ) -> AsyncIterator[bytes]:
        """The bytes of a reply as they arrive; a chosen answer is also copied."""
        copy, whole = bytearray(), False
        try:
            async for part in reply.aiter_raw():
                if key is not None and len(copy) <= LARGEST:
                    copy += part
                yield part
            whole = True
        except httpx.HTTPError as error:
            log.warning("guardrail serve: a reply of %s broke off (%s)", self.alias.name, type(error).__name__)
            raise CutError from error
        finally:
            await reply.aclose()
            if key is not None and not whole:
                self.queue.drop("incomplete")
        if key is None:
            return
        if reply.status_code != 200:
            self.queue.drop("upstream_error")  # a guard could not have given an answer, either
            return
        try:
            several = body.get("n") not in (None, 1)  # `_unlike` then refuses it, whichever answer is read
            message = await _message(bytes(copy), streamed=body.get("stream") is True, several=several, dialect=dialect)
            answer = read_reply(message)
        except Exception:  # the client has its answer: a fault in reading the copy must not reach it
            self.queue.drop("unreadable")
            return
        size = len(copy) + int(reply.request.headers["content-length"])
        self.queue.offer(lambda: self._measure(body, message, answer, credential, key, dialect), size)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _measure(
        self,
        body: Mapping[str, Any],
        message: AIMessage,
        answer: Sample,
        credential: str | None,
        key: tuple[str, str],
        dialect: Dialect,
    ) -> str:
        """Measure one served answer; returns the field of `Observed` that it counts under."""
        alias, plan = self.alias, self.alias.plan
        assert plan is not None, "only aliases with a plan choose answers"
        try:
            body = dialect.read(body, plan)  # refuses what continues a stored response: the prompt is not known
            messages = messages_of(body)
            if self._unlike(body, message, plan):
                return "not_comparable"
            if alias.artifact is None:
                self._check(messages, plan)
                drawn = self._collected(messages, answer, credential, plan)
                fate = "collected" if drawn.problem is None else "unmeasured"
            else:
                guard = alias.guard(credential)
                assert isinstance(guard, Guardrail), "a cascade cannot observe"
                assessed = guard.assess_served(messages, answer)
                assert assessed.verdict is not None, "the one gate judges every candidate"
                drawn, fate = assessed.drawn, fate_of(assessed.verdict)
        except (ApiError, GuardrailError):  # tools, a prompt or turns other than the calibrated ones
            return "not_comparable"
        records = self._settings.records
        if self._records is not None and records is not None and chosen(key[0], records.rate, salt="label"):
            before, _, after = self._prompt.template.partition("{question}")
            question = drawn.question.removeprefix(before).removesuffix(after)
            self._records.append(key[1], question, drawn, {"turns": turns_of(messages)})
        return fate

    def _collected(
        self, messages: tuple[BaseMessage, ...], answer: Sample, credential: str | None, plan: SamplingPlan
    ) -> SampleSet:
        """Samples behind an answer, without an artifact; only the answer if a probe refuses the endpoint."""

        def collector() -> tuple[Sampler, EndpointTrust]:
            chat = self.alias.chat(self.alias.upstream, credential)
            return Sampler(chat, plan), EndpointTrust(chat, plan, rate=None, enabled=self.alias.config.probe == "auto")

        sampler, trust = self._collectors.get(credential, collector)
        problem = trust.check()
        if problem.reason is not None:
            sampler = replace(sampler, plan=plan.primary_only())
        return problem.apply_to(run(sampler.draw_behind_steps(messages, answer)))

    def _unlike(self, body: Mapping[str, Any], message: AIMessage, plan: SamplingPlan) -> bool:
        """Whether the settings of the answer differ from those of the plan's primary answer."""
        ignored = self.alias.config.ignore
        fields = {name: value for name, value in body.items() if value is not None and name not in ignored}
        bindings_of(fields, plan)
        usage = message.usage_metadata
        return bool(
            unlike_served(
                drawing_fields(fields),
                plan,
                finish=message.response_metadata.get("finish_reason"),
                tokens=None if usage is None else usage["output_tokens"] or None,
                fixed=self.alias.upstream.extra_body,
            )
        )

    def _check(self, messages: tuple[BaseMessage, ...], plan: SamplingPlan) -> None:
        self._prompt.check(messages, plan.options)
        if turns_of(messages, plan.bindings) != ONE_QUESTION:
            raise UsageError("records hold prompts of one question")


async def _message(content: bytes, *, streamed: bool, several: bool, dialect: Dialect) -> AIMessage:
    """The answer in a reply's bytes.

    Raises:
        MalformedReplyError: The reply has no complete answer, or several although the client wanted one.
    """
    lines = [line.removeprefix(b"data:").strip() for line in content.splitlines() if line.startswith(b"data:")]
    listed = [json.loads(line) for line in lines if line != b"[DONE]"] if streamed else [parsed(content)]
    if dialect.observed is not None or not streamed:
        reply = listed[0] if dialect.observed is None else dialect.observed(listed)
        (choice, *more) = choices_of(reply)
        if more and not several:
            raise MalformedReplyError("the reply has several answers")
        return message_of(choice, reply, usage_of(reply))

    async def events() -> AsyncIterator[Any]:
        for event in listed:
            yield event

    parts = [chunk.message async for chunk in chunks_of(events())]
    message: Any = message_chunk_to_message(reduce(add, parts))
    return AIMessage(**message.model_dump(exclude={"type"}))
