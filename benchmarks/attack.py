"""Attacks on a guard and on `guardrail serve`: client settings, redraws, malformed replies, items, cancellations.

    python -m benchmarks.attack              # some minutes; prints the attempts, what came of them, and every finding
    python -m benchmarks.attack redraws --share 0.1

A finding is a promise that broke: an answer drawn otherwise than calibrated, a second draw of a question that was held
back, an answer given out that no reply of the model holds, an error of the gateway's own, or work that is left over.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import json
import random
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from guardrail import Guardrail
from guardrail.items.json_fields import json_spec
from guardrail.items.spec import ItemsSpec
from guardrail.testing import make_artifact
from integrations._gateway.config import Config
from integrations.gateway import Gateway
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

__all__ = ["ATTACKS", "Attempts"]

N = 4
"""Samples of a question."""
SURE, UNSURE = "What is the capital of Peru?", "Who was the first to arrive?"
CAPITALS = ["Lima", "Oslo", "Bern", "Riga", "Rome", "Kiel"]
NAMES = ["".join(letters) for letters in itertools.product("bdfgk", "aeiou", "lmnrs", "aeiou")]
PATHS = ("chat/completions", "responses", "messages")


@dataclass
class Attempts:
    """What came of the attempts of one attack."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def add(self, outcome: str, attempt: object, finding: str = "") -> None:
        """Count an attempt, and note what it broke."""
        self.outcomes[outcome] += 1
        if finding:
            self.findings.append(f"{finding}: {attempt!r}"[:400])


@asynccontextmanager
async def gateway(
    endpoint: Endpoint, threshold: float, items: ItemsSpec | None = None, **alias: Any
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway in front of the endpoint, with a client."""
    model = OpenAICompatibleChat(model="m", base_url=endpoint.url, api_key="none")
    upstream = {"url": endpoint.url, "model": "m", "key": "none", "max_retries": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = make_artifact(model, threshold=threshold, n=N, items=items).save(Path(folder) / "artifact.json")
        fields = {"upstream": upstream, "artifact": path, "probe": "off", **alias}
        served = Gateway(Config.checked({"version": 1, "models": {"m": fields}, "max_lag": 60}, "attack"))
        transport = httpx.ASGITransport(served)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/v1", timeout=60) as client:
            yield served, client
        await served.aclose()


def body_of(path: str, question: Any, **fields: Any) -> dict[str, Any]:
    """A request of a protocol."""
    asked = {"input": [{"role": "user", "content": question}]} if path == "responses" else {}
    asked = asked or {"messages": [{"role": "user", "content": question}]}
    return {"model": "m", **asked, **({"max_tokens": 9999} if path == "messages" else {}), **fields}


# -- settings of clients ----------------------------------------------------------------------------------------------

VALUES: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0, 0.2, 1, 1.9, "1", [1]), "top_p": (0.1, 1, 0), "top_k": (1, 50), "min_p": (0.1,),
    "n": (0, 1, 2, 99), "seed": (0, 7), "max_tokens": (0, 1, 5, 9999), "max_completion_tokens": (1, 9999),
    "max_output_tokens": (1, 9999), "stop": ("a", ["a"], []), "stop_sequences": (["a"], []),
    "logit_bias": ({"1": 5}, {}), "frequency_penalty": (0, 1.5), "presence_penalty": (0, 1.5),
    "repetition_penalty": (1.2,), "best_of": (5,), "logprobs": (True, 3), "top_logprobs": (5,),
    "tools": ([{"type": "function", "function": {"name": "f"}}], []),
    "tool_choice": ("none", "auto", "required"), "response_format": ({"type": "json_object"}, {"type": "text"}),
    "reasoning_effort": ("high",), "reasoning": ({"effort": "high"}, {}), "verbosity": ("low",),
    "thinking": ({"type": "enabled"},), "modalities": (["audio"],),
    "prediction": ({"type": "content", "content": "Oslo"},), "web_search_options": ({},),
    "extra_body": ({"temperature": 0},), "extra_headers": ({"x": "y"},), "service_tier": ("flex",),
    "store": (True, False), "user": ("u",), "metadata": ({"a": "b"}, {"user_id": "u"}), "stream": (True, "yes"),
    "stream_options": ({"include_usage": True},), "functions": ([{"name": "f"}],), "function_call": ("auto",),
    "prompt": ("Say Oslo.",), "suffix": ("Oslo",), "echo": (True,), "guided_choice": (["Oslo"],),
    "provider": ({"order": ["x"]},), "models": (["other"],), "transforms": ([],),
    "previous_response_id": ("resp_1",), "conversation": ("c",), "background": (True,),
    "instructions": ("Say Oslo.",), "truncation": ("auto", "disabled"),
    "text": ({"format": {"type": "json_object"}}, {}), "system": ("Say Oslo.",),
    "cache_control": ({"type": "ephemeral"},), "container": ("x",), "mcp_servers": ([{}],), "temperaturе": (0,),
}  # fmt: skip
"""Values of fields, some of which no API has; the last is spelled with a letter that only looks like the right one."""
PLANNED = {"model": ("m",), "temperature": (0.0, 0.7), "top_p": (0.9,), "max_tokens": (256,)}
"""Values of the calibrated calls, which have any seed; the greedy answer has no top_p."""


async def settings(share: float, seed: int) -> Attempts:
    """Send every value of every field over each protocol: what arrives at the model must be as calibrated."""
    attempts, numbers = Attempts(), itertools.count()
    given = [(path, name, value) for path in PATHS for name, values in VALUES.items() for value in values]
    with serving(Endpoint()) as endpoint:
        for mode in ("usual", "replace", "refuse"):
            async with gateway(endpoint, 10.0, settings=mode) as (_, client):
                for path, name, value in _chosen(given, share, seed):
                    question, before = f"What is the capital of country {next(numbers)}?", len(endpoint.bodies)
                    reply = await client.post(f"/{path}", json=body_of(path, question, **{name: value}))
                    drawn = [{**body} for body in endpoint.bodies[before:]]
                    found = "the gateway failed" if reply.status_code >= 500 else ""
                    for sent in drawn:
                        if sent.pop("messages") != [{"role": "user", "content": question}]:
                            found = "another prompt was sent"
                        sent.pop("seed", None)
                        wrong = {each: sent[each] for each in sent if sent[each] not in PLANNED.get(each, ())}
                        found = f"drawn with {wrong}" if wrong else found
                    attempts.add(f"{mode} {reply.status_code}", (path, name, value), found)
    return attempts


# -- redraws ----------------------------------------------------------------------------------------------------------

UNSEEN = [
    "\u00ad",
    "\u034f",
    "\u061c",
    "\u180e",
    "\u200b",
    "\u200d",
    "\u202e",
    "\u2060",
    "\ufe0f",
    "\ufeff",
    "\U000e0041",
]
KNOBS: tuple[dict[str, Any], ...] = (
    {}, {"stream": True}, {"user": "u2"}, {"metadata": {"user_id": "u3"}}, {"temperature": 0.3}, {"seed": 3},
    {"store": False}, {"service_tier": "default"}, {"top_p": 0.5}, {"prompt_cache_key": "k"},
    {"safety_identifier": "s"}, {"stream_options": {"include_usage": True}}, {"max_tokens": 4096},
    {"max_output_tokens": 4096}, {"n": 1},
)  # fmt: skip
FIELDS: tuple[dict[str, Any], ...] = (
    {}, {"name": "n"}, {"id": "1"}, {"tool_calls": []}, {"tool_calls": [{"name": "f", "args": {}}]},
    {"tool_calls": "none"}, {"function_call": {"name": "f"}}, {"refusal": "no"}, {"tool_call_id": "1"}, {"extra": 1},
)  # fmt: skip
"""Fields of the message beside its content, which no model sees."""
HEADERS: tuple[dict[str, str], ...] = (
    {}, {"idempotency-key": "a"}, {"x-request-id": "b"}, {"user-agent": "c"}, {"x-guardrail-items": "all"},
    {"x-forwarded-for": "10.0.0.9", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
)  # fmt: skip


def spellings(question: str) -> Iterator[str]:
    """Texts that look like a question."""
    yield from (
        question,
        f"{question} ",
        f"\n{question}\n\n",
        question.replace(" ", "  "),
        question.replace(" ", "\u00a0"),
    )
    for sign in UNSEEN:
        yield from (question + sign, sign + question, f"{question[:5]}{sign}{question[5:]}")


async def redraws(share: float, seed: int) -> Attempts:
    """Ask a question that was held back again, with everything that a client may vary: nothing may be drawn again."""
    attempts, random_ = Attempts(), random.Random(seed)
    knobs = [*itertools.product(PATHS, spellings(UNSURE), KNOBS, FIELDS, HEADERS, (False, True))]
    random_.shuffle(knobs)
    with serving(Endpoint(answers={UNSURE: CAPITALS})) as endpoint:
        async with gateway(endpoint, 0.0, settings="usual") as (_, client):
            first = await client.post(f"/{PATHS[0]}", json=body_of(PATHS[0], UNSURE))
            assert first.json()["guardrail"]["abstained"], "the question must be unclear"
            drawn = endpoint.requests
            for path, text, fields, beside, headers, listed in _chosen(knobs[:4000], share, seed):
                kind = "input_text" if path == "responses" else "text"
                part = {
                    "type": kind,
                    "text": text,
                    **({"cache_control": {"type": "ephemeral"}} if path == "messages" else {}),
                }
                body = body_of(path, [part] if listed else text, **fields)
                body["input" if path == "responses" else "messages"][0] |= beside
                reply = await client.post(f"/{path}", json=body, headers=headers)
                found = "the gateway failed" if reply.status_code >= 500 else ""
                found = "drawn again" if endpoint.requests > drawn else found
                found = found or ("given out" if any(answer in reply.text for answer in CAPITALS) else "")
                drawn = endpoint.requests
                attempts.add(str(reply.status_code), (path, text, fields, beside, headers, listed), found)
    return attempts


# -- malformed replies ------------------------------------------------------------------------------------------------

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1e308, "", " ", "Oslo", "stop", "length", "tool_calls", "error", [], {}, [None],
    [[]], {"a": {}}, {"message": "no"}, "\ud800", "\u200b", [{"type": "text", "text": "Oslo"}],
    [{"type": "audio"}], "<think>Oslo", 2**70,
)  # fmt: skip


def mutated(reply: Any, chance: random.Random) -> Any:
    """A reply of which one to three places were replaced, left out or doubled."""
    reply = copy.deepcopy(reply)
    for _ in range(chance.choice((1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []

        def walk(value: Any, places: list[tuple[Any, Any]] = places) -> None:
            for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
                places.append((value, key))
                walk(value[key])

        walk(reply)
        if not places:
            return reply
        owner, key = chance.choice(places)
        if isinstance(owner, dict) and chance.random() < 0.2:
            del owner[key]
        elif isinstance(owner, dict) and chance.random() < 0.2:
            owner[chance.choice(("error", "tool_calls", "refusal", "function_call", "status", "finish_reason"))] = (
                chance.choice(JUNK)
            )
        elif isinstance(owner, list) and chance.random() < 0.3:
            owner.append(owner[key])
        else:
            owner[key] = copy.deepcopy(chance.choice(JUNK))
    return reply


@dataclass
class Mutating(Endpoint):
    """An endpoint that mutates its replies, and notes the texts that they hold."""

    chance: random.Random = field(default_factory=random.Random)
    rate: float = 0.3
    replies: list[tuple[Any, bool]] = field(default_factory=list)
    """Replies, and whether each is the primary answer."""

    def completion(self, body: Mapping[str, Any], mode: str) -> dict[str, Any]:
        whole = super().completion(body, mode)
        reply = mutated(whole, self.chance) if self.chance.random() < self.rate else whole
        self.replies.append((reply, not body["temperature"]))
        return reply


def is_answer(reply: Any, *, primary: bool) -> bool:
    """Whether a reply holds one answer, read strictly. Only the primary answer must say that it is whole."""
    if not isinstance(reply, dict) or reply.get("error") or not isinstance(reply.get("choices"), list):
        return False
    choices = reply["choices"]
    return len(choices) == 1 and all(
        isinstance(each, dict)
        and str(each.get("finish_reason") or "stop").strip() in ("stop", "length", "")
        and (each.get("finish_reason") == "stop" or not primary)
        and isinstance(message := each.get("message"), dict)
        and isinstance(message.get("content"), str | list)
        and not any(message.get(name) for name in ("refusal", "tool_calls", "function_call"))
        for each in choices
    )


async def replies(share: float, seed: int) -> Attempts:
    """Have the model send malformed replies: an answer passes only if every reply behind it is one."""
    attempts, endpoint = Attempts(), Mutating(chance=random.Random(seed))
    with serving(endpoint):
        async with gateway(endpoint, 10.0) as (served, client):
            guard = served.aliases["m"].guard(None)
            for number in range(int(1500 * share)):
                question = f"What is the capital of country {number}?"
                endpoint.answers, endpoint.replies = {question: ["Lima"]}, []
                if number % 5 == 0:
                    verdict = await guard.aassess(question)
                    given, accepted, status = verdict.candidate and verdict.candidate.text, verdict.accepted, "guard"
                else:
                    path = PATHS[number % 3]
                    reply = await client.post(f"/{path}", json=body_of(path, question, stream=number % 7 == 0))
                    accepted, given = reply.headers.get("x-guardrail-accepted") == "true", reply.text
                    status = str(reply.status_code)
                wrong = [each for each, primary in endpoint.replies if not is_answer(each, primary=primary)]
                whole = len(endpoint.replies) == N + 1 and not wrong
                found = "accepted without whole answers" if accepted and not whole else ""
                found = "the gateway failed" if status == "500" else found
                if not accepted and status != "guard" and "Lima" in str(given):
                    found = "held back and shown"
                attempts.add(f"{status} {'accepted' if accepted else 'held back'}", wrong, found)
    return attempts


# -- items ------------------------------------------------------------------------------------------------------------

FIELDS_OF_ITEMS = ("a", "b", "city", "x y")


def secret() -> Iterator[str]:
    """Words of the model, each of which occurs once; also as keys."""
    return (f"Z{number}z" for number in itertools.count())


def tree(words: Iterator[str], chance: random.Random, depth: int = 0) -> Any:
    """A JSON value of words."""
    kind = chance.random()
    if depth > 2 or kind < 0.5:
        return next(words)
    if kind < 0.75:
        keys = [chance.choice((*FIELDS_OF_ITEMS, next(words))) for _ in range(chance.randrange(1, 4))]
        return {key: tree(words, chance, depth + 1) for key in keys}
    return [tree(words, chance, depth + 1) for _ in range(chance.randrange(1, 4))]


def varied(value: Any, words: Iterator[str], chance: random.Random, rate: float) -> Any:
    """The value with some of its keys, entries and words changed or left out."""
    if isinstance(value, dict):
        pairs = [(key, inner) for key, inner in value.items() if chance.random() > 0.3 * rate]
        return {
            next(words) if chance.random() < 0.5 * rate else key: varied(inner, words, chance, rate)
            for key, inner in pairs
        }
    if isinstance(value, list):
        return [varied(inner, words, chance, rate) for inner in value if chance.random() > 0.3 * rate]
    return next(words) if chance.random() < rate else value


@dataclass
class Scripted(Endpoint):
    """An endpoint that gives one answer at temperature 0, and then others in turn."""

    first: str = ""
    others: list[str] = field(default_factory=list)

    def _text(self, question: str, temperature: float, seed: int | None, index: int) -> str:
        return self.others.pop() if temperature and self.others else self.first


async def items(share: float, seed: int) -> Attempts:
    """Have fields of answers held back: no word of theirs, nor of a sample, may stand anywhere in the reply."""
    attempts, chance, words, endpoint = Attempts(), random.Random(seed), secret(), Scripted()
    spec = json_spec(cap=6, optional=[f"/{name}" for name in FIELDS_OF_ITEMS])
    with serving(endpoint):
        async with gateway(endpoint, 0.3, spec) as (_, client):
            for number in range(int(1500 * share)):
                keys = chance.sample([*FIELDS_OF_ITEMS, next(words)], chance.randrange(1, 4))
                answer = {key: tree(words, chance, 1) for key in keys}
                rate = chance.choice((0.0, 0.1, 0.4))
                endpoint.first = json.dumps(answer)
                endpoint.others = [json.dumps(varied(answer, words, chance, rate)) for _ in range(N)]
                path, headers = PATHS[number % 3], {"x-guardrail-items": "all"} if number % 5 == 0 else {}
                reply = await client.post(f"/{path}", json=body_of(path, f"question {number}"), headers=headers)
                given = set(SECRET.findall(_content(path, reply.json())))
                leaked = set(SECRET.findall(f"{reply.text} {reply.headers}")) - given
                found = f"leaked {sorted(leaked)}" if leaked else ""
                found = "given and not of the answer" if given - set(SECRET.findall(endpoint.first)) else found
                found = "the gateway failed" if reply.status_code >= 500 else found
                attempts.add(f"{reply.status_code} {reply.headers.get('x-guardrail-reason')}", endpoint.first, found)
    return attempts


SECRET = re.compile(r"Z\d+z")


def _content(path: str, reply: Any) -> str:
    """The text of an answer."""
    if path == "chat/completions":
        return str(reply["choices"][0]["message"]["content"])
    parts = reply["content"] if path == "messages" else [part for each in reply["output"] for part in each["content"]]
    return "".join(part["text"] for part in parts)


# -- cancellations ----------------------------------------------------------------------------------------------------


class Slow(BaseChatModel):
    """A model whose answers take some turns of the event loop, and differ each time."""

    calls: int = 0
    under_way: int = 0
    most: int = 0
    guardrail_trusted: Any = True

    @property
    def _llm_type(self) -> str:
        return "slow"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_provider": "slow", "ls_model_name": "slow", "ls_model_type": "chat"}

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.calls, self.under_way = self.calls + 1, self.under_way + 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            message = AIMessage(f"answer {self.calls}", response_metadata={"finish_reason": "stop"})
            return ChatResult(generations=[ChatGeneration(message=message)])
        finally:
            self.under_way -= 1


async def cancellations(share: float, seed: int) -> Attempts:
    """Cancel a question again and again, then ask it: it has one verdict, no slot is lost and nothing goes on."""
    attempts, chance = Attempts(), random.Random(seed)
    model = Slow()
    guard = Guardrail(model=model, artifact=make_artifact(model, threshold=0.0, n=N), max_concurrency=2)
    for number in range(int(1000 * share)):
        question, model.calls, model.most = f"question {number}", 0, 0
        for _ in range(tries := chance.randrange(1, 9)):
            task = asyncio.create_task(guard.ainvoke(question))
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            task.cancel()
            done = (await asyncio.gather(task, return_exceptions=True))[0]
            attempts.add("in time" if isinstance(done, asyncio.CancelledError) else "too late", question)
        verdict = (await guard.ainvoke(question)).response_metadata["guardrail"]
        drawn, more = model.calls, (await guard.ainvoke(question)).response_metadata["guardrail"]
        found = "drawn again" if model.calls > drawn else ""
        found = "more calls than attempts need" if drawn > (tries + 1) * (N + 1) else found
        found = "another verdict" if verdict["uncertainty"] != more["uncertainty"] else found
        found = "more at once than allowed" if model.most > 2 or model.under_way else found
        found = f"{len(asyncio.all_tasks()) - 1} tasks go on" if len(asyncio.all_tasks()) > 1 else found
        if found:
            attempts.findings.append(f"{found}: {question}, {tries} cancellations")
    await _leaving(attempts, share, chance)
    return attempts


async def _leaving(attempts: Attempts, share: float, chance: random.Random) -> None:
    """Clients of a gateway leave, and come back with the same question."""
    with serving(Endpoint()) as endpoint:
        async with gateway(endpoint, 0.0) as (served, client):
            for number in range(int(300 * share)):
                question, before = f"question {number}", endpoint.requests
                endpoint.answers = {question: NAMES}
                for _ in range(tries := chance.randrange(1, 4)):
                    await _left(served, body_of(PATHS[0], question), chance.random() * 0.02)
                    attempts.add("left", question)
                reply = await client.post(f"/{PATHS[0]}", json=body_of(PATHS[0], question))
                drawn = endpoint.requests - before
                found = "" if reply.json().get("guardrail", {}).get("abstained") else f"answered {reply.text}"
                found = "drawn again" if drawn > N + 1 else found
                found = "still counted" if served.room.busy.total() or served._repeats.current else found
                if found:
                    attempts.findings.append(f"{found}: {question}, {drawn} requests after {tries} that left")


async def _left(served: Gateway, body: Mapping[str, Any], after: float) -> None:
    """One request over ASGI whose client leaves."""
    content, left = json.dumps(body).encode(), asyncio.Event()
    messages = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Any:
        if (first := next(messages, None)) is not None:
            return first
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
    ]
    scope = {"type": "http", "method": "POST", "path": f"/v1/{PATHS[0]}", "query_string": b"", "headers": headers}
    asyncio.get_running_loop().call_later(after, left.set)
    await served(scope, receive, send)


# -- the command ------------------------------------------------------------------------------------------------------

ATTACKS: Mapping[str, Callable[[float, int], Any]] = {
    "settings": settings, "redraws": redraws, "replies": replies, "items": items, "cancellations": cancellations,
}  # fmt: skip


def _chosen(listed: list[Any], share: float, seed: int) -> list[Any]:
    return random.Random(seed).sample(listed, max(1, int(share * len(listed))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", nargs="*", choices=[[], *ATTACKS], default=[])
    parser.add_argument("--share", type=float, default=1.0, help="share of the attempts (default: 1)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    found = 0
    for name in arguments.attack or ATTACKS:
        attempts: Attempts = asyncio.run(ATTACKS[name](arguments.share, arguments.seed))
        listed = ", ".join(f"{number} {outcome}" for outcome, number in sorted(attempts.outcomes.items()))
        print(f"{name}: {attempts.outcomes.total()} attempts ({listed}), {len(attempts.findings)} findings", flush=True)
        for finding in attempts.findings[:20]:
            print(f"  {finding}")
        found += len(attempts.findings)
    return int(found > 0)


if __name__ == "__main__":
    raise SystemExit(main())
