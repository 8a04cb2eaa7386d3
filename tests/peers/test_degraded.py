"""The degraded peer, transformers serve: it silently ignores n, temperature and logprobs. Nothing is accepted on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from calibrate import collect_records
from guardrail import AbstainedError, Guardrail, GuardrailError, Reason
from guardrail.doctor import examine
from guardrail.sampling.prober import probe
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import SamplingPlan, Unmeasured
from tests.peers.conftest import questions
from tests.peers.servers import Peer

QUESTION = "Who rules Riadrin?"
ACCEPT_ALL = 99.0
MENDED = {"extra_body": {"generation_config": json.dumps({"do_sample": True, "top_k": 0})}}
"""Settings in transformers' own format, with which this server does sample."""


def _asked() -> list[str]:
    return [question.question for question in questions("open")[:20]]


def test_the_probe_sees_what_is_ignored(degraded: Peer) -> None:
    report, _ = probe(degraded.chat(), SamplingPlan(n=5, logprobs=True))
    assert report is not None
    assert not report.failed
    assert report.degenerate
    assert (report.n, report.temperature, report.logprobs) == (False, False, False)
    problem = report.problem(SamplingPlan(n=5))
    assert problem is not None
    assert problem[0] is Unmeasured.DEGENERATE_SAMPLES


@pytest.mark.parametrize("name", ["discrete_semantic_entropy", "semantic_entropy"])
def test_every_verdict_abstains_and_says_why(degraded: Peer, name: str) -> None:
    chat = degraded.chat()
    guard = Guardrail(model=chat, artifact=make_artifact(chat, estimator=name, threshold=ACCEPT_ALL))
    for question in _asked():
        verdict = guard.assess(question)
        assert not verdict.accepted
        assert verdict.reason is Reason.UNMEASURED
        assert verdict.uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES
        assert "ignores the temperature" in verdict.detail


def test_without_the_probe_it_would_accept_everything(degraded: Peer) -> None:
    """Negative control of the tests above: equal samples of an ignored temperature look like certainty."""
    chat = degraded.chat()
    artifact = make_artifact(chat, threshold=0.0)
    trusting = Guardrail(model=chat, artifact=artifact, probe="off")
    assert all(trusting.assess(question).accepted for question in _asked()[:5])
    assert not any(Guardrail(model=chat, artifact=artifact).assess(question).accepted for question in _asked()[:5])


def test_each_abstention_path_is_taken(degraded: Peer) -> None:
    chat = degraded.chat()
    artifact = make_artifact(chat, threshold=ACCEPT_ALL)
    other = ScriptedChat(default=["from the other model"])
    assert Guardrail(model=chat, artifact=artifact, on_abstain=other).invoke(QUESTION).text == "from the other model"
    with pytest.raises(AbstainedError, match="ignores the temperature"):
        Guardrail(model=chat, artifact=artifact, on_abstain="raise").invoke(QUESTION)
    guard = Guardrail(model=chat, artifact=artifact)
    answer, candidate = guard.invoke(QUESTION).text, chat.invoke(QUESTION).text
    assert answer == guard.abstain_message
    assert candidate not in answer


async def test_async_verdicts_abstain_as_well(degraded: Peer) -> None:
    chat = degraded.chat()
    guard = Guardrail(model=chat, artifact=make_artifact(chat, threshold=ACCEPT_ALL))
    assert (await guard.aassess(QUESTION)).uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("discrete_semantic_entropy", {"several_per_call": True}, Unmeasured.SAMPLING_SHORTFALL),
        ("semantic_entropy", {}, Unmeasured.NO_LOGPROBS),
    ],
)
def test_a_missing_measurement_abstains_even_without_the_probe(
    degraded: Peer, name: str, settings: dict[str, Any], reason: Unmeasured
) -> None:
    chat = degraded.chat(**settings)
    guard = Guardrail(model=chat, artifact=make_artifact(chat, estimator=name, threshold=ACCEPT_ALL), probe="off")
    assert guard.assess(QUESTION).uncertainty.reason is reason


def test_options_that_cannot_be_read_abstain(degraded: Peer) -> None:
    plan = SamplingPlan(n=0, max_tokens=4, options=("A", "B", "C", "D"))
    (drawn,) = degraded.chat().draw_samples([[HumanMessage(QUESTION)]], plan, seeds=[1])
    assert drawn.problem is Unmeasured.NO_OPTIONS


def test_collecting_is_refused_before_anything_is_drawn(degraded: Peer, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with pytest.raises(GuardrailError, match="ignores the temperature"):
        collect_records(questions("open")[:20], degraded.chat(), SamplingPlan(n=5), path)
    assert not path.exists()


def test_the_doctor_says_so(degraded: Peer, tmp_path: Path) -> None:
    chat = degraded.chat()
    make_artifact(chat, threshold=0.5).save(tmp_path / "artifact.json")
    failed = [finding for finding in examine(str(tmp_path / "artifact.json"), chat) if finding.status == "fail"]
    assert any("ignores the temperature" in finding.detail for finding in failed)


def test_langchains_own_class_is_seen_through_as_well(degraded: Peer) -> None:
    chat_openai: Any = pytest.importorskip("langchain_openai").ChatOpenAI
    model = chat_openai(model=degraded.model, base_url=degraded.url, api_key="none")
    verdict = Guardrail(model=model, artifact=make_artifact(model, threshold=ACCEPT_ALL)).assess(QUESTION)
    assert verdict.uncertainty.reason is Unmeasured.DEGENERATE_SAMPLES


def test_once_it_samples_one_call_a_sample_replaces_the_missing_n(degraded: Peer) -> None:
    chat = degraded.chat(**MENDED)
    report, _ = probe(chat, SamplingPlan(n=5))
    assert report is not None
    assert report.problem(SamplingPlan(n=5)) is None
    assert report.n is False
    guard = Guardrail(model=chat, artifact=make_artifact(chat, threshold=ACCEPT_ALL))
    verdicts = [guard.assess(question) for question in _asked()[:8]]
    assert all(verdict.accepted and len(verdict.samples) == 10 for verdict in verdicts)
    assert verdicts[0].cost.calls == 11
    assert any(len(set(verdict.samples)) > 1 for verdict in verdicts)
