"""`OpenAICompatibleChat` against a scripted endpoint: what is sent and read, what it costs, what stays secret."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, SecretStr

from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from guardrail import CalibrationArtifact, Guardrail, Reason, SamplingPlan, Unmeasured, UsageError
from guardrail.errors import BrokenOffReplyError, GuardrailError
from guardrail.sampling.models import resolve_model
from guardrail.sampling.native import NativeSampler
from guardrail.sampling.prober import known_report, probe, seeded, takes_seeds
from guardrail.sampling.replies.read import read_reply
from guardrail.sampling.sampler import Sampler
from guardrail.specs import identify
from guardrail.testing import ScriptedChat, make_artifact
from integrations._openai.endpoint import _retry_after
from integrations._openai.replies import message_of
from integrations._openai.sampling import option_scores
from integrations._openai.streams import chunks_of
from integrations.openai_chat import OpenAICompatibleChat, Pin
from tests.integrations.openai.faulty_endpoint import Endpoint, eventually

KEY = "sk-very-secret-0123456789"
QUESTION = [HumanMessage("unsure?")]
PLAN = SamplingPlan(n=4, max_tokens=5, stop=("\n",))


def chat(endpoint: Endpoint, **settings: Any) -> OpenAICompatibleChat:
    return OpenAICompatibleChat(**{"model": "m", "base_url": endpoint.url, "api_key": KEY, "timeout": 10, **settings})


# -- sampling


def test_it_is_a_native_sampler_that_falls_back_to_single_calls(endpoint: Endpoint) -> None:
    model = chat(endpoint)
    assert isinstance(model, NativeSampler)
    (drawn,) = Sampler(model, PLAN).draw([QUESTION])
    assert drawn.problem is None
    assert drawn.primary is not None
    assert drawn.primary.text == "Rome"
    assert len(drawn.samples) == 4
    assert (drawn.cost.calls, drawn.cost.input_tokens, drawn.cost.output_tokens) == (5, 35, 5)
    assert endpoint.requests == 5
    primary, *samples = sorted(endpoint.bodies, key=lambda body: body["temperature"])
    assert (primary["temperature"], primary["max_tokens"], primary["stop"]) == (0.0, 5, ["\n"])
    assert [(body["temperature"], body["top_p"]) for body in samples] == [(0.7, 0.9)] * 4
    endpoint.bodies.clear()
    Sampler(model, PLAN.model_copy(update={"primary": "sampled"})).draw([QUESTION])
    assert [(body["temperature"], body["top_p"]) for body in endpoint.bodies] == [(0.7, 0.9)] * 5
    assert len({body["seed"] for body in endpoint.bodies}) == 5
    assert len({body["seed"] for body in endpoint.bodies}) == 5
    assert all(0 <= body["seed"] < 2**31 for body in endpoint.bodies)
    assert not any("n" in body or "max_completion_tokens" in body for body in endpoint.bodies)


def test_one_call_for_all_samples_where_a_probe_has_shown_that_it_works(endpoint: Endpoint) -> None:
    model = chat(endpoint)
    probe(model, PLAN)
    report = known_report(model)
    assert report is not None
    assert (report.n, report.seed, report.fingerprint) == (True, True, "fp_1")
    assert report.cost.calls == endpoint.requests == 5
    (drawn,) = Sampler(model, PLAN).draw([QUESTION])
    assert drawn.cost.calls == 2
    assert endpoint.requests == 7
    assert [body.get("n") for body in endpoint.bodies[5:]].count(4) == 1
    assert len({sample.text for sample in drawn.samples}) > 1


def test_the_same_question_draws_the_same_samples_again(endpoint: Endpoint) -> None:
    model = chat(endpoint, several_per_call=True)
    first, again = (Sampler(model, PLAN).draw([QUESTION])[0] for _ in range(2))
    assert [s.text for s in first.samples] == [s.text for s in again.samples]


@pytest.mark.parametrize("together", [False, True])
def test_without_a_seed_of_the_plan_every_request_has_a_fresh_one(endpoint: Endpoint, together: bool) -> None:
    model = chat(endpoint, several_per_call=together)
    for _ in range(2):
        Sampler(model, PLAN.model_copy(update={"seed": None})).draw([QUESTION])
    seeds = [body["seed"] for body in endpoint.bodies]
    assert len(set(seeds)) == len(seeds) == (4 if together else 10)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_server_that_refuses_seeds_is_asked_without(endpoint: Endpoint) -> None:
    model = chat(endpoint, send_seed=False)
    report, _ = probe(model, PLAN)
    (drawn,) = Sampler(model, PLAN).draw([QUESTION])
    assert report is not None
    assert (report.failed, drawn.problem) == ("", None)
    assert model.invoke("hello", seed=5).content
    assert not [body for body in endpoint.bodies if "seed" in body]


def test_a_later_probe_asks_what_no_cache_has_seen(endpoint: Endpoint) -> None:
    model = chat(endpoint)
    for _ in range(2):
        probe(model, PLAN, again=True)
    seeds = [{body["seed"] for body in endpoint.bodies[k : k + 5]} for k in (0, 5)]
    assert [len(used) for used in seeds] == [3, 3]
    assert not seeds[0] & seeds[1]


@pytest.mark.parametrize("seed", [0, None])
def test_samples_do_not_look_certain_because_a_cache_answers_equal_requests(
    endpoint: Endpoint, seed: int | None
) -> None:
    endpoint.answers = {"who?": [f"name{i}" for i in range(1000)]}  # four equal ones: once in 10^9
    endpoint.mode = "cached"  # and n is ignored
    model = chat(endpoint)
    artifact = make_artifact(model, n=4)
    plan = artifact.plan.model_copy(update={"seed": seed})
    verdict = Guardrail(model=model, artifact=artifact.model_copy(update={"plan": plan})).assess("who?")
    assert (verdict.accepted, verdict.reason) == (False, Reason.ABOVE_THRESHOLD)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_cache_that_does_not_look_at_seeds_is_found_out(endpoint: Endpoint, asynchronous: bool) -> None:
    endpoint.mode = "cached_but_seed"  # it tells requests apart by n, which it ignores
    model = chat(endpoint)
    guard = Guardrail(model=model, artifact=make_artifact(model, n=4))
    verdict = asyncio.run(guard.aassess("sure?")) if asynchronous else guard.assess("sure?")
    assert verdict.uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES
    assert verdict.cost.calls == endpoint.requests == 5 + 1  # the probe, one of its calls without n, and the candidate


def test_async_draws_the_same_in_two_event_loops_and_leaves_no_socket(endpoint: Endpoint) -> None:
    model = chat(endpoint)
    expected = Sampler(model, PLAN).draw([QUESTION])[0]
    before = endpoint.open
    for _ in range(2):
        drawn = asyncio.run(Sampler(model, PLAN).adraw([QUESTION]))[0]
        assert (drawn.primary, drawn.samples) == (expected.primary, expected.samples)
        assert eventually(lambda: endpoint.open == before)  # the loop is closed, and its connections with it


def test_several_prompts_at_once_keep_their_own_answers(endpoint: Endpoint) -> None:
    prompts = [[HumanMessage("sure?")], QUESTION, [HumanMessage("sure?")]]
    drawn = Sampler(chat(endpoint), PLAN).draw(prompts)
    assert [sample_set.question for sample_set in drawn] == ["sure?", "unsure?", "sure?"]
    assert {sample.text for sample in drawn[2].samples} == {"Paris"}
    assert [sample_set.cost.calls for sample_set in drawn] == [5, 5, 5]


def test_log_probabilities_and_end_tokens(endpoint: Endpoint) -> None:
    plan = SamplingPlan(n=2, logprobs=True)
    primary = Sampler(chat(endpoint), plan).draw([[HumanMessage("sure?")]])[0].primary
    assert primary is not None
    assert (primary.tokens, primary.logprobs, primary.token_bytes) == (("Paris",), (-1.5,), None)


def test_collecting_where_there_are_no_log_probabilities_names_the_way_out(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.mode = "no_logprobs"
    questions, plan = [Question(id="q", question="q?")], SamplingPlan(n=2, logprobs=True)
    with pytest.raises(GuardrailError, match=r"\(no_logprobs\).*--score graded_disagreement"):
        collect_records(questions, chat(endpoint), plan, tmp_path / "r.jsonl")


# -- options


@pytest.mark.parametrize("place", ["choice", "reply"])
async def test_an_answer_beside_an_error_may_be_a_part_of_one(place: str) -> None:
    """Proxies put the error of an upstream that broke off beside the text that had arrived, with the end "stop"."""
    error: dict[str, Any] = {"error": {"code": 502, "message": "Upstream broke off"}}
    of_choice, of_reply = (error, {}) if place == "choice" else ({}, error)
    choice = {"index": 0, "message": {"content": "Lim"}, "finish_reason": "stop", **of_choice}
    with pytest.raises(BrokenOffReplyError):
        read_reply(message_of(choice, of_reply, None))

    async def events() -> AsyncIterator[Any]:
        yield {"choices": [{**choice, "delta": {"content": "Lim"}}], **of_reply}

    (chunk,) = [chunk async for chunk in chunks_of(events())]
    assert chunk.message.response_metadata["finish_reason"] == "error"


def listed(**tokens: float) -> dict[str, Any]:
    tops = [{"token": token.replace("_", " "), "logprob": value} for token, value in tokens.items()]
    return {"logprobs": {"content": [{"token": "x", "logprob": -1.0, "top_logprobs": tops}]}}


def test_options_sum_over_the_tokens_of_a_label() -> None:
    scores = option_scores(listed(A=math.log(0.2), _A=math.log(0.3), B=math.log(0.1), x=-9.0), ("A", "B"))
    assert not isinstance(scores, str)
    assert scores.labels == ("A", "B")
    assert scores.loglikelihoods == pytest.approx((math.log(0.5), math.log(0.1)))
    assert scores.probabilities == pytest.approx((5 / 6, 1 / 6))


@pytest.mark.parametrize(
    ("choice", "labels", "why"),
    [
        (listed(A=-0.1), ("A", "B"), "'B' is not among the 1 first tokens"),
        (listed(A=-0.1, B=-math.inf), ("A", "B"), "'B' is not among"),
        (listed(A=-0.1, B=-9999.0), ("A", "B"), "'B' is not among"),  # OpenAI and vLLM: not among the likeliest
        (listed(A=-0.1, b=-3.0), ("A", "B"), "'B' is not among"),  # another token, perhaps of another word
        (listed(A=-0.1, B=math.nan), ("A", "B"), "not log-probabilities"),
        (listed(A=-0.1, B=0.5), ("A", "B"), "not log-probabilities"),
        (listed(A=0.0, B=0.0), ("A", "B"), "not log-probabilities"),  # two tokens cannot both be certain
        (listed(A=0.0, B=-3.0), ("A", "B"), "not log-probabilities"),
        (listed(A=False, B=-20.0), ("A", "B"), "not log-probabilities"),
        (listed(A=-0.1, AB=-1.0), ("A", "AB"), "'A' begins option 'AB'"),
        ({"logprobs": None}, ("A", "B"), "no top_logprobs"),
        ({"logprobs": {"content": []}}, ("A", "B"), "no top_logprobs"),
        ({"logprobs": {"content": [{"token": "A"}]}}, ("A", "B"), "no top_logprobs"),
    ],
)
def test_options_that_cannot_be_read_are_unmeasured_never_zero(choice: Any, labels: Any, why: str) -> None:
    scores = option_scores(choice, labels)
    assert isinstance(scores, str)
    assert why in scores


def test_options_end_to_end(endpoint: Endpoint) -> None:
    endpoint.options = {"B": math.log(0.6), " A": math.log(0.3)}
    (drawn,) = Sampler(chat(endpoint), SamplingPlan(n=0, options=("A", "B"))).draw([QUESTION])
    assert drawn.primary is not None
    assert drawn.primary.text == "B"
    assert drawn.options is not None
    assert drawn.options.probabilities == pytest.approx((1 / 3, 2 / 3))
    (body,) = endpoint.bodies
    assert (body["temperature"], body["top_p"], body["max_tokens"], body["top_logprobs"]) == (1.0, 1.0, 1, 20)
    (missing,) = Sampler(chat(endpoint), SamplingPlan(n=0, options=("A", "B", "C"))).draw([QUESTION])
    assert (missing.primary, missing.problem) == (None, Unmeasured.NO_OPTIONS)
    (both,) = Sampler(chat(endpoint), SamplingPlan(n=2, options=("A", "B"))).draw([QUESTION])
    assert both.primary is not None
    assert (both.primary.text, both.cost.calls, both.problem) == ("Rome", 4, None)


# -- requests


def test_messages_and_names_of_the_limit(endpoint: Endpoint) -> None:
    call = {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    conversation: list[Any] = [SystemMessage("s"), HumanMessage("h"), AIMessage("", tool_calls=[call])]
    messages = [*conversation, ToolMessage("2", tool_call_id="c1")]
    chat(endpoint, max_tokens=9, extra_body={"top_k": 3}).invoke(messages)
    body = endpoint.bodies[-1]
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert json.loads(body["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert (body["max_tokens"], body["top_k"]) == (9, 3)
    newer = chat(endpoint, token_limit="max_completion_tokens")
    newer.invoke("h", max_tokens=3)
    assert (endpoint.bodies[-1]["max_completion_tokens"], "max_tokens" in endpoint.bodies[-1]) == (3, False)
    chat(endpoint, max_tokens=9).invoke("h", max_completion_tokens=4)
    assert endpoint.bodies[-1]["max_tokens"] == 4
    with pytest.raises(UsageError, match="does not know top_k"):
        newer.invoke("h", top_k=3)


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "seed", "stop", "tools", "messages"]
)
def test_extra_fields_cannot_replace_what_a_plan_or_a_call_asks_for(endpoint: Endpoint, name: str) -> None:
    with pytest.raises(UsageError, match=rf"extra_body names {name}, .*calibrate with another plan"):
        chat(endpoint, extra_body={"top_k": 3, name: 1})
    smuggled = chat(endpoint).model_copy(update={"extra_body": {name: 1}})
    for ask in (lambda: smuggled.invoke("sure?"), lambda: Sampler(smuggled, PLAN).draw([QUESTION])):
        with pytest.raises(UsageError, match=f"extra_body names {name}"):
            ask()
    assert endpoint.requests == 0


def test_plain_calls_and_several_answers(endpoint: Endpoint) -> None:
    model = chat(endpoint, temperature=0.0, seed=5, stop=["."])
    message = model.invoke("sure?", logprobs=True)
    assert message.content == "Paris"
    assert message.usage_metadata == {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8}
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["logprobs"]["content"][0]["logprob"] == -1.5
    assert (endpoint.bodies[-1]["seed"], endpoint.bodies[-1]["stop"]) == (5, ["."])
    result = model.generate([[HumanMessage("sure?")]], n=3)
    assert [generation.text for generation in result.generations[0]] == ["Paris"] * 3
    usages = [generation.message.usage_metadata for generation in result.generations[0]]  # type: ignore[union-attr]
    assert usages[0] is not None
    assert (usages[0]["output_tokens"], usages[1:]) == (3, [None, None])
    assert asyncio.run(model.ainvoke("sure?")).content == "Paris"


def test_a_stream_has_one_answer_piece_by_piece(endpoint: Endpoint) -> None:
    endpoint.answers = {"q": ["one two three"]}
    model = chat(endpoint, temperature=0.0)
    assert [chunk.content for chunk in model.stream("q") if chunk.content] == ["one", " two", " three"]
    with pytest.raises(UsageError, match="a stream has one answer"):
        list(model.stream("q", n=2))


# -- tools and structured output


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class City(BaseModel):
    """A city."""

    name: str


def test_tools(endpoint: Endpoint) -> None:
    endpoint.mode = "tool"
    bound = chat(endpoint).bind_tools([add], tool_choice="any", parallel_tool_calls=False)
    message = bound.invoke("sure?")
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("add", {"a": 1, "b": 2})]
    body = endpoint.bodies[-1]
    assert (body["tools"][0]["function"]["name"], body["tool_choice"]) == ("add", "required")
    assert body["parallel_tool_calls"] is False
    chunks = list(bound.stream("sure?"))
    assert [call["args"] for chunk in chunks for call in chunk.tool_calls] == [{"a": 1, "b": 2}]
    with pytest.raises(UsageError, match="is not an offered tool"):
        chat(endpoint).bind_tools([add], tool_choice="subtract")
    (drawn,) = chat(endpoint).draw_samples([QUESTION], PLAN, seeds=[0], tools=[add], tool_choice="required")
    assert [call.arguments for call in drawn.samples[0].tool_calls] == [{"a": 1, "b": 2}]
    assert endpoint.bodies[-1]["tool_choice"] == "required"


def test_structured_output(endpoint: Endpoint) -> None:
    endpoint.answers = {"q": ['{"name": "Oslo"}'], "bad": ["Oslo"]}
    model = chat(endpoint)
    assert model.with_structured_output(City).invoke("q") == City(name="Oslo")
    response_format = endpoint.bodies[-1]["response_format"]
    assert response_format["json_schema"]["schema"]["required"] == ["name"]
    assert model.with_structured_output(City.model_json_schema(), method="json_mode").invoke("q") == {"name": "Oslo"}
    raw = model.with_structured_output(City, include_raw=True)
    assert raw.invoke("q")["parsed"] == City(name="Oslo")
    bad = raw.invoke("bad")
    assert (bad["parsed"], bad["raw"].content) == (None, "Oslo")
    assert bad["parsing_error"] is not None
    endpoint.mode = "tool"
    chosen = model.with_structured_output(add.args_schema, method="function_calling")  # type: ignore[arg-type]
    assert chosen.invoke("q").model_dump() == {"a": 1, "b": 2}
    with pytest.raises(UsageError, match="choose one of function_calling"):
        model.with_structured_output(City, method="magic")  # type: ignore[arg-type]


# -- retries


def test_retries_heed_retry_after_and_every_request_is_counted(endpoint: Endpoint) -> None:
    endpoint.mode, endpoint.faults = "429", 2
    (drawn,) = Sampler(chat(endpoint), PLAN).draw([QUESTION])
    assert drawn.problem is None
    assert drawn.cost.calls == endpoint.requests == 7


def test_a_retry_after_past_the_deadline_is_not_waited_for(endpoint: Endpoint) -> None:
    endpoint.mode, endpoint.retry_after = "429", "3600"
    started = time.monotonic()
    (drawn,) = Sampler(chat(endpoint, timeout=60), PLAN).draw([QUESTION])
    assert time.monotonic() - started < 60
    assert (drawn.problem, drawn.cost.calls) == (Unmeasured.MODEL_FAILED, 5)


def test_retry_after_forms() -> None:
    assert _retry_after({"retry-after": "3"}) == 3.0
    assert _retry_after({"retry-after-ms": "20", "retry-after": "3"}) == 0.02
    assert _retry_after({"retry-after": "soon"}) is None
    assert _retry_after({"retry-after": "-1"}) is None
    assert _retry_after({"retry-after": "nan"}) is None
    assert _retry_after({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}) is None
    later = _retry_after({"retry-after": "Fri, 31 Dec 2999 23:59:59 GMT"})
    assert later is not None
    assert later > 1e9


def test_a_rejected_request_is_not_repeated_and_names_no_key(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.mode = "400"
    caplog.set_level(logging.DEBUG, "guardrail")
    with pytest.raises(GuardrailError, match="HTTP status 400; in full in the log") as caught:
        chat(endpoint).invoke("sure?")
    assert "bad request" not in str(caught.value), "a server may quote the model or the prompt"
    shown = [record for record in caplog.records if "bad request" in record.getMessage()]
    assert {record.levelname for record in shown} == {"DEBUG"}
    assert all("***" in record.getMessage() and KEY not in record.getMessage() for record in shown)
    assert endpoint.requests == 1
    assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value)


# -- secrets and identity


def test_keys_stay_secret(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    model = chat(endpoint, default_headers={"X-Token": "header-secret"})
    guard = Guardrail(model=model, artifact=make_artifact(model))
    message = guard.invoke("sure?")
    endpoint.mode = "400"
    failed = guard.invoke("sure?")
    shown = [repr(model), str(model), repr(guard), str(message), str(failed), guard.artifact.model_dump_json()]
    shown += [str(model._identifying_params), str(model._get_ls_params()), str(guard.assess("sure?")), caplog.text]
    shown += [str(identify(model)), str(known_report(model))]
    for text in shown:
        assert not any(secret in text for secret in (KEY, "header-secret"))
    assert endpoint.headers[0]["x-token"] == "header-secret"


def test_credentials_in_an_address_are_refused_unnamed(endpoint: Endpoint) -> None:
    with pytest.raises(UsageError, match="holds a user name or password") as caught:
        chat(endpoint, base_url="http://user:hunter2@localhost/v1")
    assert "hunter2" not in str(caught.value)


def test_settings_by_argument_over_environment(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="no API key"):
        OpenAICompatibleChat(model="m")
    OpenAICompatibleChat(model="m", base_url=endpoint.url).invoke("sure?")  # endpoints of one's own may want none
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    OpenAICompatibleChat(model="m").invoke("sure?")
    assert endpoint.headers[-1]["authorization"] == "Bearer from-env"
    OpenAICompatibleChat(model="m", api_key=SecretStr("given")).invoke("sure?")
    assert endpoint.headers[-1]["authorization"] == "Bearer given"


def test_identity_is_the_name_and_the_pinned_fingerprint(endpoint: Endpoint) -> None:
    assert identify(chat(endpoint)) == identify(chat(endpoint, base_url="http://elsewhere.invalid/v1"))
    pinned = chat(endpoint, system_fingerprint="fp_1")
    assert identify(pinned).revision == "fp_1"
    assert Sampler(pinned, PLAN).draw([QUESTION])[0].problem is None
    (moved,) = Sampler(chat(endpoint, system_fingerprint="fp_0"), PLAN).draw([QUESTION])
    assert moved.problem is Unmeasured.MODEL_CHANGED
    assert "system_fingerprint is 'fp_1', but 'fp_0' is pinned" in moved.problem_detail


def test_a_pin_holds_back_or_warns_once_for_each_value(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.identity = lambda number: {"model": "m-2" if number > 5 else "m-1", "system_fingerprint": None}
    held, warned = (chat(endpoint, pin=Pin(model="m-1", on_change=on_change)) for on_change in ("abstain", "warn"))
    assert identify(held) == identify(chat(endpoint))  # the artifact does not depend on a pin
    assert Sampler(held, PLAN).draw([QUESTION])[0].problem is None  # control
    assert caplog.messages == []
    endpoint.identity = lambda number: {"model": "m-2"}
    for model in (held, warned):
        first, second = (Sampler(model, PLAN).draw([QUESTION])[0] for _ in range(2))
        assert first.problem == second.problem == (Unmeasured.MODEL_CHANGED if model is held else None)
        assert caplog.messages == ["guardrail: model 'm': the reply's model is 'm-2', but 'm-1' is pinned"]
        caplog.clear()
    endpoint.identity = lambda number: {"system_fingerprint": None}
    (unnamed,) = Sampler(chat(endpoint, pin=Pin(system_fingerprint="fp_1")), PLAN).draw([QUESTION])
    assert unnamed.problem is Unmeasured.MODEL_CHANGED
    assert "system_fingerprint is None" in unnamed.problem_detail
    with pytest.raises(ValueError, match="a pin needs model, system_fingerprint or both"):
        Pin()


def test_a_model_by_text(endpoint: Endpoint, tmp_path: Any) -> None:
    model = resolve_model(f"openai-compatible:org/m:v1@{endpoint.url}")
    assert isinstance(model, OpenAICompatibleChat)
    assert (model.model, model.base_url) == ("org/m:v1", endpoint.url)
    path = make_artifact(model).save(tmp_path / "artifact.json")
    guard = Guardrail(model=f"openai-compatible:org/m:v1@{endpoint.url}", artifact=path)
    assert guard.artifact == CalibrationArtifact.load(path)
    assert guard.invoke("sure?").content == "Paris"


# -- LangChain's own ChatOpenAI: seeds, and caches in front of it


def chat_openai(endpoint: Endpoint, **settings: Any) -> Any:
    kind: Any = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed").ChatOpenAI
    return kind(model="m", base_url=endpoint.url, api_key="none", max_retries=0, **settings)


def guarded_openai(endpoint: Endpoint, **settings: Any) -> Guardrail:
    model = chat_openai(endpoint, **settings)
    return Guardrail(model=model, artifact=make_artifact(model, n=6), remember=0)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_every_sample_of_chat_openai_has_a_seed_of_its_own(endpoint: Endpoint, way: str) -> None:
    guard = guarded_openai(endpoint, seed=7)  # the same for every call, where nothing else is sent

    async def ask() -> list[Any]:
        return [await guard.aassess("unsure?") for _ in range(2)]

    first, again = [guard.assess("unsure?") for _ in range(2)] if way == "sync" else asyncio.run(ask())
    assert len(set(first.samples)) > 1
    sampled = [body["seed"] for body in endpoint.bodies if body["temperature"] == 0.7]
    assert len(set(sampled)) == 6
    assert all(0 <= seed < 2**31 for seed in sampled)
    assert len({body["seed"] for body in endpoint.bodies[:5] if body["temperature"] == 1.0}) == 3
    assert again.samples == first.samples  # the question's seeds, as for native samplers


@pytest.mark.parametrize(("mode", "outcome"), [("cached", False), ("cached_but_seed", True), ("cached_late", True)])
def test_a_cache_before_chat_openai_is_defeated_or_found(endpoint: Endpoint, mode: str, outcome: bool) -> None:
    endpoint.mode = mode
    verdict = guarded_openai(endpoint).assess("unsure?")
    assert (verdict.uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES) == outcome
    assert outcome or len(set(verdict.samples)) > 1


def test_a_server_that_refuses_seeds_is_sent_none(endpoint: Endpoint) -> None:
    endpoint.mode = "no_seed"
    guard = guarded_openai(endpoint)
    assert guard.assess("unsure?").uncertainty.measured
    assert not takes_seeds(guard.model)
    endpoint.bodies.clear()
    guard.assess("unsure?")
    assert not any("seed" in body for body in endpoint.bodies)


def test_seeds_are_sent_where_the_interface_has_them_and_a_probe_was_made(endpoint: Endpoint) -> None:
    model = chat_openai(endpoint)
    assert takes_seeds(model)
    assert not seeded(model)  # no probe yet: nothing is known of the server
    assert not takes_seeds(chat_openai(endpoint, use_responses_api=True))
    assert not takes_seeds(ScriptedChat())
    off = Guardrail(model=model, artifact=make_artifact(model, n=6), probe="off")
    off.assess("unsure?")
    assert not any("seed" in body for body in endpoint.bodies)


@pytest.mark.parametrize("several", [None, False])
def test_a_late_cache_before_the_native_sampler_is_found(endpoint: Endpoint, several: bool | None) -> None:
    endpoint.mode = "cached_late"
    model = chat(endpoint, several_per_call=several)
    verdict = Guardrail(model=model, artifact=make_artifact(model, n=6)).assess("unsure?")
    assert verdict.uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES
