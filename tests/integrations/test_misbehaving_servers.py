"""What servers are known to do wrong, through every door: measured, held back with the cause, or refused at once.

The faults are those of public reports about OpenAI-compatible servers. An acceptance would be an unmeasured answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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


class Fault(NamedTuple):
    """What becomes of a server's fault."""

    reason: Unmeasured
    """Why no answer of the server is measured. An outage is asked again, a refusal of the question is not."""
    shown: str
    """What the server said or did, in words that a person who mends it needs."""


HELD = {
    "finish_null": Fault(U.UNREADABLE, "no finish_reason"),
    "finish_missing": Fault(U.UNREADABLE, "no finish_reason"),
    "finish_empty": Fault(U.UNREADABLE, "no finish_reason"),
    "finish_error": Fault(U.MODEL_FAILED, "'error'"),
    "finish_abort": Fault(U.MODEL_FAILED, "'abort'"),
    "finish_resource": Fault(U.MODEL_FAILED, "'insufficient_system_resource'"),
    "finish_unknown": Fault(U.UNREADABLE, "'eos_reached'"),
    "called_nothing": Fault(U.UNREADABLE, "no tool call"),
    "unknown_part": Fault(U.UNREADABLE, "'audio'"),
    "call_of_no_function": Fault(U.UNREADABLE, "not one of a function"),
    "older_call": Fault(U.UNREADABLE, "older form"),
    "thought_without_end": Fault(U.EMPTY_ANSWER, "were equal"),  # all answers are empty
    "200_with_error": Fault(U.MODEL_FAILED, "overloaded"),
    "200_with_error_uncoded": Fault(U.MODEL_FAILED, "provider returned error"),
    "529": Fault(U.MODEL_FAILED, "overloaded"),
    "500": Fault(U.MODEL_FAILED, "broken"),
    "429": Fault(U.MODEL_FAILED, "slow down"),
    "400": Fault(U.REJECTED, "bad request"),
    "empty": Fault(U.UNREADABLE, "no choices"),
    "html": Fault(U.MODEL_FAILED, "not JSON"),
    "truncated": Fault(U.UNREADABLE, "not JSON"),
    "refusal": Fault(U.REFUSED, "were equal"),  # all answers are the refusal
}
OUTAGES = [mode for mode, fault in HELD.items() if fault.reason is U.MODEL_FAILED]
NO_OUTAGES = [mode for mode in HELD if mode not in OUTAGES]
WRITTEN = ("overloaded", "provider returned error", "broken", "slow down", "bad request", "works!")
"""Texts of the servers."""
SAMPLED, LIKELIHOOD = "discrete_semantic_entropy", "semantic_entropy"
"""A score that needs texts alone, and one that needs log-probabilities."""
MEASURED = {
    "ok": SAMPLED,
    "thought_in_parts": SAMPLED,
    "thought_in_text": SAMPLED,
    "logprobs_with_top_only": LIKELIHOOD,
    "n_ignored": SAMPLED,
}
"""Servers whose replies are strange and complete, each with a score that it serves."""


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("integrations._openai.endpoint.FIRST_WAIT", 0.01)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(Endpoint(answers=ANSWERS)) as served:
        yield served


def chat(endpoint: Endpoint) -> OpenAICompatibleChat:
    return OpenAICompatibleChat(model="m", base_url=endpoint.url, api_key="sk-1", max_retries=1)


def verdict_of(endpoint: Endpoint, mode: str, estimator: str = SAMPLED) -> Any:
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
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, HELD[mode].reason), verdict.detail
    assert verdict.cost.calls == endpoint.requests


@pytest.mark.parametrize("mode", MEASURED)
def test_a_strange_and_complete_reply_is_measured(endpoint: Endpoint, mode: str) -> None:
    """Thoughts are no part of the answer, and a server that needs another form of the request is asked in that form."""
    verdict = verdict_of(endpoint, mode, MEASURED[mode])
    assert verdict.uncertainty.measured, verdict.detail
    assert (verdict.candidate.text, verdict.accepted) == ("Lima", True)


def test_a_provider_that_refuses_log_probabilities_once_is_asked_again(endpoint: Endpoint) -> None:
    """A router sends the retry to another of its providers; users would otherwise get no answer."""
    endpoint.faults = 1
    assert verdict_of(endpoint, "logprobs_400", LIKELIHOOD).accepted


def test_a_provider_that_always_refuses_log_probabilities_is_an_outage(endpoint: Endpoint) -> None:
    """Another attempt may meet another provider, so a client must not be told that its question has no answer."""
    verdict = verdict_of(endpoint, "logprobs_400", LIKELIHOOD)
    assert (verdict.uncertainty.reason, verdict.is_result) == (U.MODEL_FAILED, False)


@pytest.mark.parametrize("mode", ["no_logprobs", "nan"])
def test_a_score_is_never_made_of_the_calls_that_had_log_probabilities(endpoint: Endpoint, mode: str) -> None:
    """Two of five calls have none: a score of the other three was never calibrated, so its answers may be wrong."""
    endpoint.faults = 2
    verdict = verdict_of(endpoint, mode, LIKELIHOOD)
    assert (verdict.uncertainty.measured, verdict.uncertainty.reason) == (False, U.NO_LOGPROBS)
    assert verdict.is_result


def collection_refused(endpoint: Endpoint, path: Path, *, logprobs: bool) -> str:
    """The error of a collection of 40 questions, all of whose records failed."""
    questions = [Question(id=str(number), question="Capital?", references=("Lima",)) for number in range(40)]
    with pytest.raises(GuardrailError) as refused:
        collect_records(questions, chat(endpoint), SamplingPlan(n=2, logprobs=logprobs), path)
    assert endpoint.requests <= 5 + 40, "a probe, and at most half of the questions with two requests each"
    assert all(record.failed for record in (read_records(path).records if path.exists() else ()))
    assert "sk-1" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("mode", HELD)
def test_a_collection_stops_at_the_start_or_leaves_it_unmeasured(endpoint: Endpoint, mode: str, tmp_path: Path) -> None:
    """A thousand paid calls must not end in a file that nothing can be fitted on, and no row may look certain."""
    endpoint.mode = mode
    assert HELD[mode].shown in collection_refused(endpoint, tmp_path / "records.jsonl", logprobs=False)


def test_a_collection_names_the_provider_that_refuses_log_probabilities(endpoint: Endpoint, tmp_path: Path) -> None:
    """A person must know which of a router's providers to leave out."""
    endpoint.mode = "logprobs_400"
    assert "the provider Example" in collection_refused(endpoint, tmp_path / "records.jsonl", logprobs=True)


def doctor_fails(endpoint: Endpoint, estimator: str, path: Path) -> str:
    """What doctor says of the checks that failed."""
    model = chat(endpoint)
    artifact = make_artifact(model, estimator=estimator, n=2).save(path)
    failed = [finding for finding in examine(str(artifact), model) if finding.status == "fail"]
    text = " ".join(f"{finding.detail} {finding.fix}" for finding in failed)
    assert "sk-1" not in text
    return text


@pytest.mark.parametrize("mode", HELD)
def test_doctor_fails_and_says_what_the_server_said(endpoint: Endpoint, mode: str, tmp_path: Path) -> None:
    """An operator must see the cause before users see abstentions."""
    endpoint.mode = mode
    assert HELD[mode].shown in doctor_fails(endpoint, SAMPLED, tmp_path / "artifact.json")


def test_doctor_names_the_setting_of_a_router_without_log_probabilities(endpoint: Endpoint, tmp_path: Path) -> None:
    """The refusal alone does not tell an operator that the router has other providers."""
    endpoint.mode = "logprobs_400"
    text = doctor_fails(endpoint, LIKELIHOOD, tmp_path / "artifact.json")
    assert "the provider Example" in text
    assert "require_parameters" in text


@pytest.mark.parametrize(
    ("mode", "faults", "shown"), [("no_logprobs", 1, "1 of 6"), ("logprobs_sometimes", math.inf, "1 of 12")]
)
@pytest.mark.parametrize(("artifact", "status"), [(True, "fail"), (False, "warn")])
def test_doctor_finds_a_provider_without_log_probabilities(
    endpoint: Endpoint, mode: str, faults: float, shown: str, artifact: bool, status: str, tmp_path: Path
) -> None:
    """A router that sends some questions to it would have these held back, and nobody would know why."""
    model, endpoint.mode, endpoint.faults = chat(endpoint), mode, faults
    path = make_artifact(model, estimator="semantic_entropy", n=2).save(tmp_path / "artifact.json")
    findings = examine(str(path) if artifact else None, model)
    (finding,) = [finding for finding in findings if "inconsistent" in finding.detail]
    assert finding.detail.startswith(f"inconsistent: {shown} answers came without log-probabilities; a router")
    assert finding.status == status
    assert "'provider': {'require_parameters': True}" in finding.fix


async def asked_through_the_gateway(endpoint: Endpoint, mode: str, folder: Path) -> httpx.Response:
    """The gateway's reply to a question whose upstream misbehaves; it quotes no upstream."""
    path = make_artifact(chat(endpoint), threshold=0.5, n=2).save(folder / "artifact.json")
    upstream = {"url": endpoint.url, "model": "m", "key": "sk-1", "max_retries": 0}
    models = {"m": {"upstream": upstream, "artifact": path, "probe": "off"}}
    gateway = Gateway(Config.checked({"version": 1, "models": models}, "test"))
    endpoint.mode = mode
    transport = httpx.ASGITransport(gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "Capital?"}]}
        reply = await client.post("/v1/chat/completions", json=body)
    await gateway.aclose()
    assert endpoint.requests > 0
    assert "Lima" not in reply.text
    assert not any(text in reply.text for text in WRITTEN), "a server may quote a held-back answer"
    return reply


@pytest.mark.parametrize("mode", OUTAGES)
async def test_the_gateway_asks_clients_to_try_an_outage_again(endpoint: Endpoint, mode: str, tmp_path: Path) -> None:
    """Their users would otherwise read that the question has no certain answer."""
    reply = await asked_through_the_gateway(endpoint, mode, tmp_path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "model_failed")
    assert int(reply.headers["retry-after"]) > 0


@pytest.mark.parametrize("mode", NO_OUTAGES)
async def test_the_gateway_abstains_where_no_attempt_helps(endpoint: Endpoint, mode: str, tmp_path: Path) -> None:
    """Clients must be able to tell it from an answer: never an invented end of one."""
    reply = await asked_through_the_gateway(endpoint, mode, tmp_path)
    assert reply.status_code == 200
    (choice,) = reply.json()["choices"]
    assert choice["finish_reason"] == "content_filter"
    assert reply.json()["guardrail"]["abstained"]
    assert reply.json()["guardrail"]["unmeasured"] == HELD[mode].reason


def test_a_plain_call_joins_the_parts_of_an_answer_and_leaves_thoughts_out(endpoint: Endpoint) -> None:
    """The model of an application must not answer with an empty text where the server sends a list of parts."""
    endpoint.mode = "thought_in_parts"
    assert chat(endpoint).invoke("Capital?", temperature=0).content == "Lima"
