"""An alias that only observes: bytes pass unchanged, and served answers are measured afterwards."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial, reduce
from operator import add
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, convert_to_openai_messages, message_chunk_to_message

from guardrail import Guardrail
from guardrail.errors import GuardrailError, UsageError
from guardrail.guard.comparability import unlike_served
from guardrail.guard.observe_queue import ObserveQueue, fate_of
from guardrail.guard.observers import chosen
from guardrail.guard.record_lines import RecordLines
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.prompting import role_of, turns_of
from guardrail.sampling.effects import run
from guardrail.sampling.prober import fault_steps, with_fault
from guardrail.sampling.replies.ends import end_of
from guardrail.sampling.replies.read import read_reply
from guardrail.sampling.sampler import Sampler, refuse_majority
from guardrail.specs import identify
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan, Unmeasured

from .._openai.lru import LRU
from .._openai.replies import MalformedReplyError, choices_of, message_of, parsed, usage_of
from .._openai.streams import chunks_of
from .aliases import CREDENTIALS, ServedAlias
from .errors import ApiError
from .health import Health
from .protocols.dialect import Dialect
from .requests import DRAWING, Question, bindings_of, drawing_fields, messages_of

LARGEST = 4 * 2**20
"""Bytes of an answer that is measured."""
REASONS = DRAWING | {*Unmeasured, "history", "messages", "n", "prompt", "response_format", "suspended", "tools"}
"""Names that may stand for a reason why an answer is not measured."""
MOST_REASONS = 100
"""Different reasons that are counted."""
MOST_PLANS, MOST_SHOWN = 1000, 10
"""Different plans that are counted, and that are shown."""


class Observing:
    """Passes requests of one alias through, and measures the answers that a hash chose.

    Raises:
        UsageError: The record file belongs to another collection.
    """

    def __init__(self, alias: ServedAlias, health: Health) -> None:
        self.alias, self._health, self._lock = alias, health, threading.Lock()
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._plans: Counter[str] = Counter()
        """The plans, as JSON, that would have measured the requests."""
        if alias.plan is not None:
            refuse_majority(alias.plan, f"observe the answers of models.{alias.name}")
        limits = self._settings = alias.config.observe
        self._prompt = limits.prompt if alias.single is None else alias.single.prompt
        self.queue = ObserveQueue(
            most=limits.queue,
            at_once=limits.max_concurrency,
            report=lambda name, label: alias.metrics.count(name, alias.name, label),
        )
        self._records: RecordLines | None = None
        self._collectors: LRU[Sampler] = LRU(CREDENTIALS)
        if limits.records is not None:
            assert alias.plan is not None, "checked in the configuration"
            if slots := self._prompt.slots:
                raise UsageError(f"models.{alias.name}: records cannot be kept of a prompt with slots {slots}.")
            name, model = f"observed: {alias.name}", identify(alias.chat(alias.upstream, None))
            self._records = RecordLines(
                limits.records.path, name=name, model=model, plan=alias.plan, prompt=self._prompt
            )

    def summary(self) -> dict[str, Any]:
        """Counts of this alias, the reasons of what was not measured, and plans for the most frequent requests."""
        row = self.queue.observed
        fates: dict[str, dict[str, int]] = {}
        with self._lock:
            for (fate, reason), number in self._reasons.items():
                fates.setdefault(fate, {})[reason] = number
            plans, total = self._plans.most_common(MOST_SHOWN), self._plans.total()
        shown = [{"share": round(number / total, 4), "plan": json.loads(plan)} for plan, number in plans]
        warnings = self._health.lines(self.alias.name)
        return {**asdict(row), "acceptance": row.acceptance, "reasons": fates, "plans": shown, "warnings": warnings}

    # -- passing through -----------------------------------------------------------------------------------------------

    async def respond(self, passed: Question, content: bytes) -> Any:
        """The upstream's reply to a question, whose body has these bytes; see `Forwarding.respond`."""
        if passed.body["model"] != self.alias.upstream.model:
            content = self.alias.forwarding.renamed(passed.body)
        path, watched = passed.dialect.path, partial(self._watched, passed)
        return await self.alias.forwarding.respond("POST", path, content, passed.headers, passed.credential, watched)

    def _watched(self, passed: Question, status: int, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Count a reply, and decide whether it is measured, before anything of it is known."""
        measured = self.alias.plan is not None and _chosen(passed, self._settings.rate, "observe")
        fates = ("served", "chosen") if measured else ("served",)
        self.queue.count(*fates)
        return self._copied(passed, status, parts) if measured else parts

    async def _copied(self, passed: Question, status: int, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The parts of a reply, which are copied within the bytes of the queue, and measured when all have passed."""
        copy = bytearray()
        room = True
        whole = False
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

    async def _offer(self, passed: Question, content: bytes) -> None:
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

    def measure(self, passed: Question, message: AIMessage, answer: Sample) -> str:
        """Measure one served answer; returns the field of `Observed` that it counts under, "" if it is lost."""
        alias, plan = self.alias, self.alias.plan
        assert plan is not None, "only aliases with a plan choose answers"
        body = passed.body
        messages: tuple[BaseMessage, ...] = ()
        fate = "not_comparable"
        drawn = None
        try:
            body = passed.dialect.read(passed.body, plan)  # refuses what continues a stored response
            messages = messages_of(body)
            causes: Sequence[str] = self._unlike(body, message, plan)
            if not causes:
                fate, causes, drawn = self._measured(passed, messages, message, answer, plan)
        except ApiError as error:  # tools or a format other than the calibrated ones
            causes = [error.param or error.code or ""]
        except GuardrailError:  # a prompt or turns other than the calibrated ones
            causes = ["history" if sum(role_of(message) != "system" for message in messages) > 1 else "prompt"]
        if causes:
            self._missed(fate, causes)
        matching = canonical_json(plan_for(body, plan.n))
        with self._lock:
            if matching in self._plans or len(self._plans) < MOST_PLANS:
                self._plans[matching] += 1
        records = self._settings.records
        if drawn is not None and self._records and records and _chosen(passed, records.rate, "label"):
            before, _, after = self._prompt.template.partition("{question}")
            question = drawn.question.removeprefix(before).removesuffix(after)
            try:
                self._records.append(passed.number, question, drawn, _talk(messages, question, plan.bindings))
            except OSError as error:
                text = f"records cannot be written to {records.path} ({error.strerror}), so answers are lost for it"
                self._health.warn(alias.name, "unwritten", text)
                self.queue.drop("unwritten")
                return ""
        return fate

    def _measured(
        self,
        passed: Question,
        messages: Sequence[BaseMessage],
        message: AIMessage,
        answer: Sample,
        plan: SamplingPlan,
    ) -> tuple[str, Sequence[str], SampleSet | None]:
        """The fate of an answer that can be compared, the causes if it is not measured, and the samples behind it."""
        alias, served = self.alias, message.response_metadata
        reply = {"model": served.get("model_name"), "system_fingerprint": served.get("system_fingerprint")}
        if passed.dialect.observed is None and alias.check_served(reply):  # other protocols name no fingerprint
            return "unmeasured", [Unmeasured.MODEL_CHANGED], None
        if alias.artifact is None:
            self._prompt.check(messages, plan.options)
            if not _is_talk(messages, plan.bindings):
                raise UsageError("records hold one question, or a conversation of texts that ends with one")
            drawn = self._collected(messages, answer, passed.credential, plan)
            return ("collected", [], drawn) if drawn.problem is None else ("unmeasured", [drawn.problem], drawn)
        guard = alias.guard(passed.credential)
        assert isinstance(guard, Guardrail), "a cascade cannot observe"
        assessed = run(guard.served_steps(messages, answer))
        assert assessed.verdict is not None, "the one gate judges every candidate"
        fate, cause = fate_of(assessed.verdict), assessed.verdict.uncertainty.reason or "suspended"
        return fate, [cause] if fate == "unmeasured" else [], assessed.drawn

    def _collected(
        self, messages: Sequence[BaseMessage], answer: Sample, credential: str | None, plan: SamplingPlan
    ) -> SampleSet:
        """Samples behind an answer, without an artifact; only the answer if a probe refuses the endpoint."""
        sampler = self._collectors.get(
            credential, lambda: Sampler(self.alias.chat(self.alias.upstream, credential), plan)
        )
        fault = run(fault_steps(sampler.model, plan))[0] if self.alias.config.probe == "auto" else None
        if fault is not None:
            sampler = replace(sampler, plan=plan.primary_only())
        return with_fault(run(sampler.draw_behind_steps(messages, answer)), fault)

    def _missed(self, fate: str, causes: Sequence[str]) -> None:
        """Count and report an answer that is not measured."""
        # Names of fields come from clients: only known ones become labels.
        reason = "+".join(sorted({cause if cause in REASONS else "other_field" for cause in causes}))
        with self._lock:
            reason = reason if (fate, reason) in self._reasons or len(self._reasons) < MOST_REASONS else "other"
            self._reasons[fate, reason] += 1
        self.alias.metrics.count("observations_missed", self.alias.name, fate, reason)
        if fate == "unmeasured":
            text = f"answers could not be measured ({reason}), so nothing is learned from them"
        else:
            text = f"answers are not measured, because their requests differ from the plan in {reason}"
        more = "GET /guardrail/v1/observed shows the plans that match the requests"
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


def _chosen(passed: Question, rate: float, salt: str) -> bool:
    """Whether a hash chooses a question. It does not depend on the content, and repetitions of a client share it."""
    return chosen(passed.headers.get("idempotency-key") or passed.number, rate, salt=salt)


def _is_talk(messages: Sequence[BaseMessage], bindings: Bindings | None) -> bool:
    """Whether only a person and the model speak, in texts, the person last; steps of the plan's tools do not count."""
    speakers = turns_of(messages, bindings).split(",")
    return set(speakers) <= {"human", "ai"} and speakers[-1] == "human"


def _talk(messages: Sequence[BaseMessage], question: str, bindings: Bindings | None) -> dict[str, Any]:
    """The fields of a record that say in which conversation its question was asked.

    Its turns depend on each other. Every request repeats how it began, so that names the group.
    """
    spoken = [message for message in messages if role_of(message) != "system"]
    fields: dict[str, Any] = {"turns": turns_of(messages, bindings), "group": sha256_hex(str(spoken[0].text), 16)}
    if len(spoken) > 1 and _is_talk(messages, bindings):
        talk: Any = convert_to_openai_messages(spoken)
        if role_of(spoken[-1]) == "human":
            talk[-1] = {"role": "user", "content": question}
        fields["messages"] = talk
    return fields


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


def plan_for(body: Mapping[str, Any], n: int) -> dict[str, Any]:
    """The ``observe.plan`` whose primary answer is drawn as a request asks; what it leaves out has OpenAI's default."""

    def number(*names: str) -> Any:
        return next((body[name] for name in names if isinstance(body.get(name), int | float)), None)

    temperature = number("temperature")
    top_p = number("top_p")
    form = body.get("response_format")
    plan: dict[str, Any] = {"n": n, "primary": "greedy" if temperature == 0 else "sampled"}
    plan |= {"temperature": temperature or 1.0, "top_p": 1.0 if top_p is None else top_p}
    limit = number("max_completion_tokens", "max_tokens")
    if limit is not None:
        plan["max_tokens"] = limit
    if isinstance(form, Mapping) and form.get("type") == "json_object":
        plan["bindings"] = {"response_format": {"type": "json_object"}}
    return plan
