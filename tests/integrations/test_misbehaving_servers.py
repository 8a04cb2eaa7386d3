"""What servers are known to do wrong, through every door: measured, held back with the cause, or refused at once.

The faults are those of public reports about OpenAI-compatible servers. An acceptance would be an unmeasured answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from calibrate.data.records import read_records
from guardrail import Guardrail, GuardrailError, SamplingPlan, Unmeasured
from guardrail.doctor import examine
from guardrail.testing import make_artifact
from integrations._gateway.config import Config
from integrations.gateway import Gateway
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

ANSWERS = {"Capital?": ["Lima"]}
U = Unmeasured
HELD: dict[str, Unmeasured] = {
    "finish_null": U.UNREADABLE,
    "finish_missing": U.UNREADABLE,
    "finish_empty": U.UNREADABLE,
    "finish_error": U.MODEL_FAILED,
    "finish_abort": U.MODEL_FAILED,
    "finish_resource": U.MODEL_FAILED,
    "finish_unknown": U.UNREADABLE,
    "called_nothing": U.UNREADABLE,
    "unknown_part": U.UNREADABLE,
    "call_of_no_function": U.UNREADABLE,
    "older_call": U.UNREADABLE,
    "thought_without_end": U.EMPTY_ANSWER,
    "200_with_error": U.MODEL_FAILED,
    "200_with_error_uncoded": U.MODEL_FAILED,
    "529": U.MODEL_FAILED,
    "500": U.MODEL_FAILED,
    "429": U.MODEL_FAILED,
    "400": U.REJECTED,
    "empty": U.UNREADABLE,
    "html": U.MODEL_FAILED,
    "truncated": U.UNREADABLE,
    "refusal": U.REFUSED,
}
"""Why no answer of these servers is measured. An outage is asked again, a refusal of the question is not."""
MEASURED = ("ok", "thought_in_parts", "thought_in_text", "logprobs_with_top_only", "n_ignored")
"""Servers whose replies are strange and complete."""
SPOKEN = {
    "529": "overloaded",
    "200_with_error": "overloaded",
    "500": "broken",
    "429": "slow down",
    "400": "bad request",
}
"""What a server says, which is what a person needs to know."""


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("integrations._openai.endpoint.FIRST_WAIT", 0.01)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(Endpoint(answers=ANSWERS)) as served:
        yield served


def chat(endpoint: Endpoint) -> OpenAICompatibleChat:
    return OpenAICompatibleChat(model="m", base_url=endpoint.url, api_key="sk-1", max_retries=1)


def verdict_of(endpoint: Endpoint, mode: str, estimator: str = "discrete_semantic_entropy") -> Any:
    """The verdict of a guard whose server begins to misbehave after the probe."""
    model = chat(endpoint)
    artifact = make_artifact(model, estimator=estimator, n=4)
    guard = Guardrail(model=model, artifact=artifact, remember=0, probe="off")
    endpoint.mode = mode
    return guard.assess("Capital?")


@pytest.mark.parametrize("mode", HELD)
def test_a_guard_holds_it_back_with_the_cause(endpoint: Endpoint, mode: str) -> None:
    """Users would otherwise get half an answer, or an error text as an answer."""
    verdict = verdict_of(endpoint, mode)
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, HELD[mode]), verdict.detail
    assert verdict.cost.calls == endpoint.requests


@pytest.mark.parametrize("mode", MEASURED)
def test_a_strange_and_complete_reply_is_measured(endpoint: Endpoint, mode: str) -> None:
    """Thoughts are no part of the answer, and a server that needs another form of the request is asked in that form."""
    likelihood = mode == "logprobs_with_top_only"
    verdict = verdict_of(endpoint, mode, "semantic_entropy" if likelihood else "discrete_semantic_entropy")
    assert verdict.uncertainty.measured, verdict.detail
    assert (verdict.candidate.text, verdict.accepted) == ("Lima", True)


@pytest.mark.parametrize("mode", ["logprobs_400", "no_logprobs", "nan"])
def test_a_score_is_never_made_of_the_calls_that_had_log_probabilities(endpoint: Endpoint, mode: str) -> None:
    """One routed provider of several refuses them: its refusal is an outage, which another attempt may not meet."""
    if mode == "logprobs_400":
        endpoint.faults = 1  # the next provider has them, so the retry is measured
        assert verdict_of(endpoint, mode, "semantic_entropy").accepted
    endpoint.faults = math.inf if mode == "logprobs_400" else 2
    verdict = verdict_of(endpoint, mode, "semantic_entropy")
    assert not verdict.uncertainty.measured
    assert verdict.uncertainty.reason is (U.MODEL_FAILED if mode == "logprobs_400" else U.NO_LOGPROBS)
    assert verdict.is_result == (mode != "logprobs_400")


@pytest.mark.parametrize("mode", [*HELD, "logprobs_400"])
def test_a_collection_stops_at_the_start_or_leaves_it_unmeasured(endpoint: Endpoint, mode: str, tmp_path: Path) -> None:
    """A thousand paid calls must not end in a file that nothing can be fitted on, and no row may look certain."""
    path, endpoint.mode = tmp_path / "records.jsonl", mode
    questions = [Question(id=str(number), question="Capital?", references=("Lima",)) for number in range(40)]
    plan = SamplingPlan(n=2, logprobs=mode == "logprobs_400")
    with pytest.raises(GuardrailError) as refused:
        collect_records(questions, chat(endpoint), plan, path)
    assert SPOKEN.get(mode, "") in str(refused.value)
    assert "sk-1" not in str(refused.value)
    assert endpoint.requests <= 5 + 40, "a probe, and at most half of the questions with two requests each"
    assert all(record.failed for record in (read_records(path).records if path.exists() else ()))


@pytest.mark.parametrize("mode", [*HELD, "logprobs_400"])
def test_doctor_fails_and_says_what_the_server_said(endpoint: Endpoint, mode: str, tmp_path: Path) -> None:
    model, endpoint.mode = chat(endpoint), mode
    estimator = "semantic_entropy" if mode == "logprobs_400" else "discrete_semantic_entropy"
    path = make_artifact(model, estimator=estimator, n=2).save(tmp_path / "artifact.json")
    findings = [*examine(str(path), model)]
    failed = [finding for finding in findings if finding.status == "fail"]
    assert failed
    text = " ".join(f"{finding.detail} {finding.fix}" for finding in failed)
    assert SPOKEN.get(mode, "") in text
    assert "sk-1" not in text
    if mode == "logprobs_400":
        assert "require_parameters" in text, "the setting of the router"


@pytest.mark.parametrize(
    ("mode", "faults", "shown"), [("no_logprobs", 1, "1 of 6"), ("logprobs_sometimes", math.inf, "1 of 12")]
)
@pytest.mark.parametrize("bound", [True, False])
def test_doctor_finds_a_provider_without_log_probabilities(
    endpoint: Endpoint, mode: str, faults: float, shown: str, bound: bool, tmp_path: Path
) -> None:
    """A router that sends some questions to it would have these held back, and nobody would know why."""
    model, endpoint.mode, endpoint.faults = chat(endpoint), mode, faults
    path = make_artifact(model, estimator="semantic_entropy", n=2).save(tmp_path / "artifact.json")
    found = [each for each in examine(str(path) if bound else None, model) if "inconsistent" in each.detail]
    (detail,) = [each.detail for each in found]
    assert detail.startswith(f"inconsistent: {shown} answers came without log-probabilities; a router")
    assert found[0].status == ("fail" if bound else "warn")
    assert "'provider': {'require_parameters': True}" in found[0].fix


@pytest.mark.parametrize("mode", HELD)
async def test_the_gateway_gives_out_no_answer(endpoint: Endpoint, mode: str, tmp_path: Path) -> None:
    """Clients must be able to tell it: an abstention, or an error; never an invented end of an answer."""
    path = make_artifact(chat(endpoint), threshold=0.5, n=2).save(tmp_path / "artifact.json")
    upstream = {"url": endpoint.url, "model": "m", "key": "sk-1", "max_retries": 0}
    models = {"m": {"upstream": upstream, "artifact": path, "probe": "off"}}
    gateway, endpoint.mode = Gateway(Config.checked({"version": 1, "models": models}, "test")), mode
    transport = httpx.ASGITransport(gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Capital?"}]}
        reply = await client.post("/v1/chat/completions", json=body)
    await gateway.aclose()
    if reply.status_code == 200:
        (choice,) = reply.json()["choices"]
        assert choice["finish_reason"] == "content_filter"
        assert reply.json()["guardrail"]["abstained"]
    assert "Lima" not in reply.text
    assert not any(spoken in reply.text for spoken in SPOKEN.values()), "a server may quote a held-back answer"


def test_a_plain_call_joins_the_parts_of_an_answer_and_leaves_thoughts_out(endpoint: Endpoint) -> None:
    """The model of an application must not answer with an empty text where the server sends a list of parts."""
    endpoint.mode = "thought_in_parts"
    assert chat(endpoint).invoke("Capital?", temperature=0).content == "Lima"
