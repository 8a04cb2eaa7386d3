"""An alias that only observes: bytes pass unchanged, and served answers are measured afterwards."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, message_chunk_to_message

from guardrail import Guardrail
from guardrail.errors import GuardrailError, UsageError
from guardrail.guard.comparability import unlike_served
from guardrail.guard.endpoint_trust import EndpointTrust
from guardrail.guard.observers import chosen
from guardrail.guard.record_lines import RecordLines
from guardrail.prompting import ONE_QUESTION, turns_of
from guardrail.sampling.effects import run
from guardrail.sampling.replies import end_of, is_whole, read_reply
from guardrail.sampling.sampler import Sampler, refuse_majority
from guardrail.specs import identify
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured

from .._openai.lru import LRU
from .._openai.replies import MalformedReplyError, choices_of, chunks_of, message_of, parsed, usage_of
from ..watcher import ObserveQueue, fate_of
from .aliases import CREDENTIALS, ServedAlias
from .dialects import Dialect
from .health import Health
from .protocol import DRAWING, ApiError, bindings_of, drawing_fields, messages_of

__all__ = ["Observing"]

PASSED = (
    "accept", "anthropic-beta", "anthropic-version", "content-type", "idempotency-key", "openai-beta",
    "openai-organization", "openai-project", "traceparent", "tracestate",
)  # fmt: skip
"""Headers of a client that are sent upstream."""
LARGEST = 4 * 2**20
"""Bytes of an answer that is measured."""
REASONS = DRAWING | {*Unmeasured, "history", "messages", "n", "prompt", "response_format", "suspended", "tools"}
"""Names that may stand for a reason why an answer is not measured."""
MOST_REASONS = 100
"""Different reasons that are counted."""
MOST_SHAPES = 1000
"""Different shapes of requests that are counted."""
SHORTEST = 64
"""The smallest token limit that is proposed."""


class Passed(NamedTuple):
    """A request that passes through."""

    body: Mapping[str, Any]
    size: int
    """Bytes of the body."""
    credential: str | None
    name: str
    """The Idempotency-Key or the id, whose hash decides whether the answer is measured."""
    number: str
    """The request's id."""
    dialect: Dialect


class Observing:
    """Passes requests of one alias through, and measures the answers that a hash chose.

    Raises:
        UsageError: The record file belongs to another collection.
    """

    def __init__(self, alias: ServedAlias, health: Health) -> None:
        self.alias, self._health, self._lock = alias, health, threading.Lock()
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._shapes = Shapes()
        if alias.plan is not None:
            refuse_majority(alias.plan, f"observe the answers of models.{alias.name}")
        limits = self._settings = alias.config.observe
        self._prompt = limits.prompt if alias.single is None else alias.single.prompt
        self.queue = ObserveQueue(most=limits.queue, at_once=limits.max_concurrency, most_bytes=limits.queue_bytes)
        self._records: RecordLines | None = None
        self._collectors: LRU[tuple[Sampler, EndpointTrust]] = LRU(CREDENTIALS)
        if limits.records is not None:
            assert alias.plan is not None, "checked in the configuration"
            if slots := self._prompt.slots:
                raise UsageError(f"models.{alias.name}: records cannot be kept of a prompt with slots {slots}.")
            name, model = f"observed: {alias.name}", identify(alias.chat(alias.upstream, None))
            self._records = RecordLines(
                limits.records.path, name=name, model=model, plan=alias.plan, prompt=self._prompt
            )

    @property
    def reasons(self) -> dict[tuple[str, str], int]:
        """Number of answers without a measurement, by the field of `Observed` and the reason."""
        with self._lock:
            return dict(self._reasons)

    def summary(self) -> dict[str, Any]:
        """Counts of this alias, the reasons of what was not measured, and the shapes of its requests."""
        row, plan, fates = self.queue.observed, self.alias.plan, dict[str, dict[str, int]]()
        for (fate, reason), number in self.reasons.items():
            fates.setdefault(fate, {})[reason] = number
        shapes = {} if plan is None else self._shapes.summary(plan)
        more = {"reasons": fates, "shapes": shapes, "warnings": self._health.lines(self.alias.name)}
        return {**asdict(row), "acceptance": row.acceptance, **more}

    # -- passing through -----------------------------------------------------------------------------------------------

    async def respond(
        self, request: Any, content: bytes, body: Mapping[str, Any], credential: str | None, dialect: Dialect
    ) -> Any:
        """The upstream's reply to a request, whose body comes as bytes and parsed; see `Forwarding.respond`."""
        headers, number = request.headers, request.gateway.id
        if body["model"] != self.alias.upstream.model:
            content = self.alias.forwarding.renamed(body)
        passed = Passed(body, len(content), credential, headers.get("idempotency-key") or number, number, dialect)
        sent = {name: headers[name] for name in PASSED if name in headers}
        watched = partial(self._watched, passed)
        return await self.alias.forwarding.respond("POST", dialect.path, content, sent, credential, watched)

    def _watched(self, passed: Passed, status: int, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Count a reply, and decide whether it is measured, before anything of it is known."""
        measured = self.alias.plan is not None and chosen(passed.name, self._settings.rate, salt="observe")
        self.queue.count("served", *["chosen"] * measured)
        return self._copied(passed, status, parts) if measured else parts

    async def _copied(self, passed: Passed, status: int, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The parts of a reply, which are copied within the bytes of the queue, and measured when all have passed."""
        copy, room, whole = bytearray(), True, False
        try:
            async for part in parts:
                if room and len(copy) <= LARGEST:
                    if room := self.queue.hold(len(part)):
                        copy += part
                    else:
                        self.queue.free(len(copy))
                        copy.clear()
                yield part
            whole = True
        finally:
            self.queue.free(len(copy))
            if not room:
                self.queue.drop("queue_full")
            elif not whole or status != 200:  # after an error a guard could not have given an answer, either
                self.queue.drop("upstream_error" if whole else "incomplete")
            else:
                await self._offer(passed, bytes(copy))

    async def _offer(self, passed: Passed, content: bytes) -> None:
        """Have an answer measured later."""
        try:
            masked = self.alias.mask(passed.credential).masked(content)
            message = await _message(masked, passed.body, passed.dialect)
            answer = read_reply(message)
        except Exception:  # the client has its answer: a fault in reading the copy must not reach it
            self.queue.drop("unreadable")
            return
        self.queue.offer(partial(self.measure, passed, message, answer), len(content) + passed.size)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def measure(self, passed: Passed, message: AIMessage, answer: Sample) -> str:
        """Measure one served answer; returns the field of `Observed` that it counts under, "" if it is lost."""
        alias, plan, usage = self.alias, self.alias.plan, message.usage_metadata
        assert plan is not None, "only aliases with a plan choose answers"
        shape, changes, fate, drawn = Shape.of(passed.body), alias.changes, "not_comparable", None
        try:
            body = passed.dialect.read(passed.body, plan)  # refuses what continues a stored response
            shape = Shape.of(body)
            messages = messages_of(body)
            causes: Sequence[str] = self._unlike(body, message, plan)
            if not causes:
                fate, causes, drawn = self._measured(passed, messages, message, answer, plan)
        except ApiError as error:  # tools or a format other than the calibrated ones
            causes = [error.param or error.code or ""]
        except GuardrailError:  # a prompt or turns other than the calibrated ones
            causes = ["history" if shape.history else "prompt"]
        if causes:
            self._missed(fate, causes)
        ended = usage is not None and is_whole(answer.finish_reason, calls=bool(answer.tool_calls))
        tokens = usage["output_tokens"] if usage and ended else None
        self._shapes.add(shape, tokens, comparable=fate != "not_comparable")
        records = self._settings.records
        if drawn is not None and self._records and records and chosen(passed.name, records.rate, salt="label"):
            before, _, after = self._prompt.template.partition("{question}")
            question = drawn.question.removeprefix(before).removesuffix(after)
            mark = {"model_changed": alias.last_change} if alias.changes > changes else {}
            try:
                self._records.append(passed.number, question, drawn, {"turns": turns_of(messages), **mark})
            except OSError as error:
                text = f"records cannot be written to {records.path} ({error.strerror}), so answers are lost for it"
                self._health.warn(alias.name, "unwritten", text)
                self.queue.drop("unwritten")
                return ""
        return fate

    def _measured(
        self, passed: Passed, messages: tuple[BaseMessage, ...], message: AIMessage, answer: Sample, plan: SamplingPlan
    ) -> tuple[str, Sequence[str], SampleSet | None]:
        """The fate of an answer that can be compared, the causes if it is not measured, and the samples behind it."""
        alias, served = self.alias, message.response_metadata
        reply = {"model": served.get("model_name"), "system_fingerprint": served.get("system_fingerprint")}
        if passed.dialect.observed is None and alias.check_served(reply):  # other protocols name no fingerprint
            return "unmeasured", [Unmeasured.MODEL_CHANGED], None
        if alias.artifact is None:
            self._prompt.check(messages, plan.options)
            if turns_of(messages, plan.bindings) != ONE_QUESTION:
                raise UsageError("records hold prompts of one question")
            drawn = self._collected(messages, answer, passed.credential, plan)
            return ("collected", [], drawn) if drawn.problem is None else ("unmeasured", [drawn.problem], drawn)
        guard = alias.guard(passed.credential)
        assert isinstance(guard, Guardrail), "a cascade cannot observe"
        assessed = guard.assess_served(messages, answer)
        assert assessed.verdict is not None, "the one gate judges every candidate"
        fate, cause = fate_of(assessed.verdict), assessed.verdict.uncertainty.reason or "suspended"
        return fate, [cause] if fate == "unmeasured" else [], assessed.drawn

    def _collected(
        self, messages: tuple[BaseMessage, ...], answer: Sample, credential: str | None, plan: SamplingPlan
    ) -> SampleSet:
        """Samples behind an answer, without an artifact; only the answer if a probe refuses the endpoint."""

        def collector() -> tuple[Sampler, EndpointTrust]:
            chat = self.alias.chat(self.alias.upstream, credential)
            return Sampler(chat, plan), EndpointTrust(chat, plan, enabled=self.alias.config.probe == "auto")

        sampler, trust = self._collectors.get(credential, collector)
        problem = trust.check()
        if problem.reason is not None:
            sampler = replace(sampler, plan=plan.primary_only())
        return problem.apply_to(run(sampler.draw_behind_steps(messages, answer)))

    def _missed(self, fate: str, causes: Sequence[str]) -> None:
        """Count and report an answer that is not measured."""
        # Names of fields come from clients: only known ones become labels.
        reason = "+".join(sorted({each if each in REASONS else "other_field" for each in causes}))
        with self._lock:
            reason = reason if (fate, reason) in self._reasons or len(self._reasons) < MOST_REASONS else "other"
            self._reasons[fate, reason] += 1
        if fate == "unmeasured":
            text = f"answers could not be measured ({reason}), so nothing is learned from them"
        else:
            text = f"answers are not measured, because their requests differ from the plan in {reason}"
        more = "GET /guardrail/v1/observed shows the requests and a configuration that matches"
        self._health.warn(self.alias.name, f"{fate}:{reason}", f"{text}. {more}")

    def _unlike(self, body: Mapping[str, Any], message: AIMessage, plan: SamplingPlan) -> list[str]:
        """The settings in which the answer differs from the plan's primary answer."""
        ignored = self.alias.config.ignore
        fields = {name: value for name, value in body.items() if value is not None and name not in ignored}
        bindings_of(fields, plan)
        usage = message.usage_metadata
        return unlike_served(
            drawing_fields(fields),
            plan,
            finish=end_of(message),
            tokens=None if usage is None else usage["output_tokens"] or None,
            fixed=self.alias.upstream.extra_body,
        )


async def _message(content: bytes, request: Mapping[str, Any], dialect: Dialect) -> AIMessage:
    """The answer in the bytes of a reply; an error if it has no complete one, or several although one was wanted."""
    streamed = request.get("stream") is True
    lines = [line.removeprefix(b"data:").strip() for line in content.splitlines() if line.startswith(b"data:")]
    listed = [json.loads(line) for line in lines if line != b"[DONE]"] if streamed else [parsed(content)]
    if dialect.observed is not None or not streamed:
        reply = listed[0] if dialect.observed is None else dialect.observed(listed)
        (choice, *more) = choices_of(reply)
        if more and request.get("n") in (None, 1):  # of several `_unlike` refuses whichever is read
            raise MalformedReplyError("the reply has several answers")
        return message_of(choice, reply, usage_of(reply))

    async def events() -> AsyncIterator[Any]:
        for event in listed:
            yield event

    parts = [chunk.message async for chunk in chunks_of(events())]
    message: Any = message_chunk_to_message(reduce(add, parts))
    assert isinstance(message, AIMessage)
    return message


# -- shapes of requests, and the configuration under which most of them could be measured ----------------------------


class Shape(NamedTuple):
    """The parts of a request that decide whether its answer can be compared; no text of the prompt."""

    system_prompt: tuple[int, str] | None
    """Length and digest of the system prompt; None without one."""
    history: bool
    """Whether there is more than one message besides the system prompt."""
    tools: tuple[int, str] | None
    """Number and digest of the tools; None without tools."""
    json: tuple[str, str] | None
    """Type and digest of the answer format; None for text."""
    temperature: float | None
    """As sent; None if it is left out, which is OpenAI's default of 1."""
    top_p: float | None
    max_tokens: int | None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Shape:
        """The shape of a chat completion's request."""
        listed = [each for each in body.get("messages") or () if isinstance(each, Mapping)]
        first = [each.get("content") for each in listed if each.get("role") in ("system", "developer")]
        tools, form = body.get("tools"), body.get("response_format")
        kind = form.get("type") if isinstance(form, Mapping) else None
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        return cls(
            (len(str(first[0])), _digest(first)) if first else None,
            len(listed) - len(first) > 1,
            (len(tools), _digest(tools)) if isinstance(tools, Sequence) and tools else None,
            (str(kind)[:20], _digest(form)) if kind in ("json_object", "json_schema") else None,
            _number(body.get("temperature")),
            _number(body.get("top_p")),
            _number(limit),
        )


class Shapes:
    """Counts of the shapes of requests; shared by threads."""

    def __init__(self) -> None:
        self._lock, self._counts, self._longest = threading.Lock(), Counter[Shape](), dict[Shape, float]()
        self._comparable = 0

    def add(self, shape: Shape, tokens: int | None, *, comparable: bool) -> None:
        """Count a request with the length of its answer (None: unknown, or cut off), and whether it is measured now."""
        with self._lock:
            if shape in self._counts or len(self._counts) < MOST_SHAPES:
                self._counts[shape] += 1
                self._comparable += comparable
                self._longest[shape] = max(self._longest.get(shape, 0), math.inf if tokens is None else tokens)

    def summary(self, plan: SamplingPlan) -> dict[str, Any]:
        """The share of each property, and the configuration, with the plan's n, that matches most requests.

        It is the plan itself unless another one matches more.
        """
        with self._lock:
            counts, longest, comparable = self._counts.copy(), self._longest.copy(), self._comparable
        shown: dict[str, Any] = {"requests": (total := counts.total())}
        if not total:
            return shown
        for name in ("system_prompt", "history", "json", "tools"):
            having = sum(number for shape, number in counts.items() if getattr(shape, name))
            shown[name] = round(having / total, 4)
        for name in ("temperature", "top_p", "max_tokens"):
            values = Counter[str]()
            for shape, number in counts.items():
                value = getattr(shape, name)
                values["absent" if value is None else f"{value:g}"] += number
            shown[name] = {value: round(number / total, 4) for value, number in values.most_common(10)}
        if matched := _matched(counts, longest):
            ((best, number),) = matched.most_common(1)
            present = f"# as it is now\nobserve:\n  plan: {plan.model_dump_json(exclude_defaults=True)}\n"
            text = _yaml(best, plan) if number > comparable else present
            shown["matching"] = {"share": round(max(number, comparable) / total, 4), "yaml": text}
        return shown


def _matched(counts: Counter[Shape], longest: Mapping[Shape, float]) -> Counter[Shape]:
    """Number of requests by the configuration, as a shape with all settings, that would measure them."""
    # A limit that requests have, or one that no answer has reached.
    sent = Counter({shape.max_tokens: number for shape, number in counts.items() if shape.max_tokens})
    most = max((int(tokens) for tokens in longest.values() if math.isfinite(tokens)), default=0)
    limits = dict.fromkeys([*(limit for limit, _ in sent.most_common(10)), max(SHORTEST, 1 << most.bit_length())])
    matched = Counter[Shape]()
    for shape, number in counts.items():
        default: Any = {name: 1.0 for name in ("temperature", "top_p") if getattr(shape, name) is None}  # OpenAI's
        sampled = shape._replace(**default)
        for limit in () if shape.history else limits:
            # An answer that ended by itself is the same under any limit that it does not reach.
            matches = shape.max_tokens == limit or longest[shape] <= limit
            matched[sampled._replace(max_tokens=limit)] += number * matches
    return matched


def _yaml(shape: Shape, plan: SamplingPlan) -> str:
    """The configuration for requests of this shape; what the client's texts must fill in is a comment."""
    temperature, top_p = shape.temperature, shape.top_p
    settings: dict[str, Any] = {
        "n": plan.n,
        "primary": "sampled" if temperature else "greedy",
        "temperature": temperature or plan.temperature,
        "top_p": top_p if temperature else plan.top_p,
        "max_tokens": shape.max_tokens,
    }
    notes = []
    if shape.json is not None and shape.json[0] == "json_object":
        settings["bindings"] = {"response_format": {"type": "json_object"}}
    elif shape.json is not None:
        notes.append("# plan.bindings.response_format: the request's response_format, as it is sent")
    if shape.tools is not None:
        notes.append(f"# plan.bindings.tools: the request's {shape.tools[0]} tools, as they are sent")
    if shape.system_prompt is not None:
        length, digest = shape.system_prompt
        notes.append(f"# prompt: {{system: the system prompt of {length} characters, SHA-256 {digest}}}")
    return "\n".join(["observe:", f"  plan: {json.dumps(settings)}", *(f"  {line}" for line in notes)]) + "\n"


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else None


def _digest(value: Any) -> str:
    text = value[0] if isinstance(value, list) and value and isinstance(value[0], str) else json.dumps(value)
    return hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).hexdigest()[:12]
