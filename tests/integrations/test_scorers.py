"""Ready-made scorers, against the published client on the loopback and against fakes."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from pydantic_ai.models.openai_decisions import OpenAIDecisionsModel
from pydantic_ai.providers.openai import OpenAIProvider

from guardrail import Bindings, Guardrail, PromptWrapping, Scorer, bindings_for
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.judges import JudgeSpec, make_entailment
from guardrail.judges.base import Entailment, EntailmentScores
from guardrail.prompting import turns_of
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Unmeasured
from guardrail.uncertainty.selfcheck import AS_DATA
from guardrail.verdict import Verdict
from integrations.openai_chat import OpenAICompatibleChat
from integrations.scorers import (
    classified,
    decision,
    evaluated,
    grounded,
    p_true,
    pydantic_ai_decision,
    stated_confidence,
)
from tests.integrations.local.tiny_encoders import save_nli
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

MODEL = ScriptedChat(default=["Paris"])


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def verdict(
    own: Scorer,
    messages: Any = "q?",
    model: ScriptedChat = MODEL,
    prompt: PromptWrapping | None = None,
    tools: Sequence[Any] = (),
) -> Verdict:
    bindings = bindings_for(tools) if tools else None
    turns = ["human" if isinstance(messages, str) else turns_of(messages, bindings or Bindings())]
    artifact = make_artifact(model, estimator=own.estimator, prompt=prompt, turns=turns, bindings=bindings)
    return Guardrail(model=model, artifact=artifact, using={"scorer": own}, remember=0).assess(messages)


# -- decisions ---------------------------------------------------------------------------------------------------------


USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 10,
}
PAID = AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": 2}, "id": "c2", "type": "tool_call"}])


class Decisions:
    """OpenAI's decisions: notes the requests and replies with one answer."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"type": "predicate", "name": "wrong", "probability": 0.25}
        self.model, self.status = "gpt-6-luna", 200
        self.seen: list[dict[str, Any]] = []

    def reply(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(json.loads(request.content))
        return httpx.Response(self.status, json={"answers": [self.answer], "model": self.model, "usage": USAGE})

    def client(self) -> openai.OpenAI:
        http: Any = httpx.Client(transport=httpx.MockTransport(self.reply))
        return openai.OpenAI(api_key="k", max_retries=0, http_client=http)

    def async_client(self) -> openai.AsyncOpenAI:
        http: Any = httpx.AsyncClient(transport=httpx.MockTransport(self.reply))
        return openai.AsyncOpenAI(api_key="k", max_retries=0, http_client=http)


@pytest.fixture
def decisions() -> Decisions:
    return Decisions()


def of_openai(decisions: Decisions, wrong: str) -> Scorer:
    return decision(decisions.client(), "gpt-6-luna", wrong)


def of_pydantic_ai(decisions: Decisions, wrong: str) -> Scorer:
    provider = OpenAIProvider(openai_client=decisions.async_client())
    return pydantic_ai_decision(OpenAIDecisionsModel("gpt-6-luna", provider=provider), wrong)


def test_a_decision_about_an_answer(decisions: Decisions) -> None:
    judged = verdict(of_openai(decisions, "The answer is wrong."))
    assert (judged.accepted, judged.uncertainty.value, judged.cost.calls) == (True, 0.25, 2)
    assert decisions.seen == [
        {
            "model": "gpt-6-luna",
            "input": [{"role": "user", "content": "q?"}, {"role": "assistant", "content": "Paris"}],
            "questions": [{"type": "predicate", "name": "wrong", "instructions": "The answer is wrong."}],
        }
    ]


def test_a_decision_about_a_tool_call_with_the_async_client(decisions: Decisions) -> None:
    def calling(amount: int, name: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": amount}, "id": name, "type": "tool_call"}])

    messages = [HumanMessage("pay"), calling(1, "c1"), ToolMessage("no", tool_call_id="c1"), HumanMessage("again")]
    own = replace(decision(decisions.async_client(), "gpt-6-luna", "Not what the user asked for."), name="risk")
    judged = verdict(own, messages, ScriptedChat(default=[calling(2, "c2")]), tools=[pay])
    assert judged.uncertainty.estimator == "score:risk@1"
    assert judged.uncertainty.value == 0.25
    assert decisions.seen[0]["input"] == [
        {"role": "user", "content": "pay"},
        {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": '{"amount":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "no"},
        {"role": "user", "content": "again"},
        {"type": "function_call", "call_id": "candidate-0", "name": "pay", "arguments": '{"amount":2}'},
    ]


@pytest.mark.parametrize("made", [of_openai, of_pydantic_ai])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"answer": {"type": "refusal", "name": "wrong"}}, Unmeasured.JUDGE_FAILED),
        ({"answer": {"type": "predicate", "name": "wrong", "probability": None}}, Unmeasured.JUDGE_FAILED),
        ({"model": "gpt-7"}, Unmeasured.JUDGE_FAILED),
        ({"status": 500}, Unmeasured.MODEL_FAILED),
        ({"status": 401}, Unmeasured.MISCONFIGURED),
    ],
)
def test_no_decision_is_no_acceptance(
    decisions: Decisions, made: Callable[..., Scorer], changed: dict[str, Any], reason: Unmeasured
) -> None:
    vars(decisions).update(changed)
    judged = verdict(made(decisions, "The answer is wrong."))
    assert (judged.accepted, judged.uncertainty.reason) == (False, reason)


def test_an_alias_is_told_its_snapshot_and_the_snapshot_is_served(decisions: Decisions) -> None:
    decisions.model = "gpt-6-luna-2026-10-01"
    client = decisions.client()
    alias = verdict(decision(client, "gpt-6-luna", "The answer is wrong."))
    assert "Name 'gpt-6-luna-2026-10-01' and calibrate with it" in alias.uncertainty.detail
    assert verdict(decision(client, "gpt-6-luna-2026-10-01", "The answer is wrong.")).uncertainty.value == 0.25


def test_a_decision_of_pydantic_ai_about_an_answer_and_about_a_tool_call(decisions: Decisions) -> None:
    own = of_pydantic_ai(decisions, "Not what the user asked for.")
    assert own.params["client"] == "pydantic-ai openai-decisions"
    judged = verdict(own)
    assert (judged.accepted, judged.uncertainty.value, judged.cost.calls) == (True, 0.25, 2)
    verdict(own, model=ScriptedChat(default=[PAID]), tools=[pay])
    shown = [json.loads(request["input"]) for request in decisions.seen]
    assert shown[0] == [{"role": "user", "content": "q?"}, {"role": "assistant", "content": "Paris"}]
    assert shown[1][1] == {
        "type": "function_call",
        "call_id": "candidate-0",
        "name": "pay",
        "arguments": '{"amount":2}',
    }
    (question,) = decisions.seen[0]["questions"]
    assert (question["type"], question["instructions"]) == ("predicate", "Not what the user asked for.")


# -- P(True) in one call -----------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(Endpoint()) as served:
        yield served


def test_p_true_asks_one_question_about_the_answer_alone(endpoint: Endpoint) -> None:
    endpoint.options = {"A": math.log(0.6), " B": math.log(0.2)}
    own = p_true(OpenAICompatibleChat(model="judge", base_url=endpoint.url, api_key="k", max_retries=0))
    judged = verdict(own)
    assert judged.uncertainty.value == pytest.approx(0.25)  # 1 - .6 / (.6 + .2)
    assert judged.cost.calls == 2
    (body,) = endpoint.bodies
    assert body["messages"] == [
        {
            "role": "user",
            "content": f'{AS_DATA}\nQuestion: "q?"\nPossible answer: "Paris"\n'
            "Is the possible answer:\n(A) True\n(B) False\n"
            "Reply with the letter only. The possible answer is:",
        }
    ]
    assert own.params["model"]["model"] == "judge"


def test_p_true_without_the_letters_or_the_endpoint_is_unmeasured(endpoint: Endpoint) -> None:
    endpoint.options = {"A": -0.1}
    model = OpenAICompatibleChat(model="judge", base_url=endpoint.url, api_key="k", max_retries=0)
    assert verdict(p_true(model)).uncertainty.reason is Unmeasured.NO_OPTIONS
    closed = model.model_copy(update={"base_url": "http://127.0.0.1:9/v1"})
    judged = verdict(p_true(closed))
    assert (judged.accepted, judged.is_result) == (False, False)  # an outage: asked again next time


def test_p_true_refuses_a_model_that_cannot_read_options() -> None:
    with pytest.raises(UsageError, match="ScriptedChat cannot read the likelihood of options"):
        p_true(MODEL)


# -- stated confidence -------------------------------------------------------------------------------------------------


class Confident(ScriptedChat):
    """A chat model whose structured output is scripted."""

    reply: Any = None

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        async def answer(messages: Sequence[Any]) -> Any:
            assert json.loads(messages[-1].content) == {"question": "q?", "answer": "Paris"}
            return self.reply

        return RunnableLambda(answer)


@pytest.mark.parametrize(
    ("reply", "value"),
    [({"percent": 90}, 0.1), ({"percent": 0.0}, 1.0), ({"percent": 101}, None), ({}, None), (None, None)],
)
def test_stated_confidence(reply: Any, value: float | None) -> None:
    own = stated_confidence(Confident(reply=reply))
    judged = verdict(own)
    assert judged.uncertainty.value == (None if value is None else pytest.approx(value))
    assert own.params["model"]["model"] == "scripted"


# -- entailment --------------------------------------------------------------------------------------------------------


class Words(Entailment):
    """A premise entails a hypothesis by the share of its words that it has; no score for an empty premise."""

    spec = JudgeSpec(name="words", version=1, params={})

    def compare(self, items: Sequence[tuple[str, str, str]]) -> list[EntailmentScores | None]:
        shares = []
        for question, premise, hypothesis in items:
            assert question == ""
            words = hypothesis.strip(".").split()
            shares.append(EntailmentScores(sum(word in premise for word in words) / len(words)) if premise else None)
        return shares


PROMPT = PromptWrapping(template="{context}\n--\n{question}", slots=("context",), question_slots=("context",))


def test_the_weakest_sentence_decides_whether_an_answer_is_grounded() -> None:
    model = ScriptedChat(default=["Ann came. Bob left."])
    own = grounded(Words())
    messages = PROMPT.messages("q?", slots={"context": "Ann came. Bob slept."})
    assert verdict(own, messages, model, PROMPT).uncertainty.value == 0.5  # "Bob left": one of two words
    assert own.params == {"slot": "context", "entailment": {"name": "words", "version": 1, "params": {}}}


def test_nothing_to_compare_with_is_unmeasured() -> None:
    empty = PROMPT.messages("q?", slots={"context": ""})
    for own, messages, prompt in ((grounded(Words()), empty, PROMPT), (grounded(Words()), "q?", None)):
        assert verdict(own, messages, MODEL, prompt).uncertainty.reason is Unmeasured.JUDGE_FAILED


def test_an_entailment_model_of_transformers_reads_the_slot(tmp_path: Path) -> None:
    folder = str(save_nli(tmp_path / "nli"))
    entailment = make_entailment("nli", model=folder)
    messages = PROMPT.messages("q?", slots={"context": "the war"})
    judged = verdict(grounded(entailment), messages, ScriptedChat(default=["the fox. war."]), PROMPT)
    pairs = [("", "the war", "the fox."), ("", "the war", "war.")]
    scores = [score.entailment for score in entailment.compare(pairs) if score is not None]
    assert judged.uncertainty.value == pytest.approx(1 - min(scores))
    assert len(scores) == 2


# -- classifiers and evaluators ----------------------------------------------------------------------------------------


def length(question: str, answer: str) -> list[float]:
    return [len(answer), len(question)]


def fitted(**settings: Any) -> Any:
    forest = pytest.importorskip("sklearn.ensemble").RandomForestClassifier(3, random_state=0, **settings)
    rows = np.random.default_rng(0).integers(1, 9, size=(60, 2))
    return forest.fit(rows, rows[:, 0] > 4)


def test_a_classifier_of_scikit_learn_is_bound_by_its_parameters(tmp_path: Path) -> None:
    classifier = fitted()
    own = classified(classifier, length, version=1, trained_on=["an id"], wrong=True)
    artifact = make_artifact(MODEL, estimator=own.estimator)
    judged = Guardrail(model=MODEL, artifact=artifact, using={"scorer": own}, remember=0).assess("q?")
    assert judged.uncertainty.value == classifier.predict_proba([[5, 2]])[0][1]
    assert (judged.cost.calls, own.reads) == (1, ("question", "answer"))
    (tmp_path / "forest").write_bytes(pickle.dumps(classifier))
    loaded = pickle.loads((tmp_path / "forest").read_bytes())
    again = classified(loaded, length, version=1, trained_on=["other"], wrong=True)
    Guardrail(model=MODEL, artifact=artifact, using={"scorer": again})
    for other in (
        classified(fitted(max_depth=1), length, version=1, trained_on=["an id"], wrong=True),
        classified(classifier, length, version=1, trained_on=["an id"], wrong=False),
        classified(classifier, lambda answer: [1, 2], version=1, trained_on=["an id"], wrong=True),
    ):
        with pytest.raises(ArtifactMismatchError, match="scorer differs"):
            Guardrail(model=MODEL, artifact=artifact, using={"scorer": other})


def test_a_classifier_without_the_class_is_refused() -> None:
    with pytest.raises(UsageError, match=r"wrong='bad' is not a class of the fitted classifier, which has \["):
        classified(fitted(), length, version=1, trained_on=["an id"], wrong="bad")
    with pytest.raises(UsageError, match=r"which has \[\]"):
        classified(object(), length, version=1, trained_on=["an id"])


class Strings:
    """An evaluator of LangChain's string convention."""

    def evaluate_strings(self, *, prediction: str, input: str) -> dict[str, Any]:
        return {"score": 0.75 if (prediction, input) == ("Paris", "q?") else 0.0}


def plain(*, inputs: str, outputs: str) -> dict[str, Any]:
    return Strings().evaluate_strings(prediction=outputs, input=inputs)


async def waiting(*, inputs: str, outputs: str) -> dict[str, Any]:
    return plain(inputs=inputs, outputs=outputs)


@pytest.mark.parametrize("evaluator", [Strings(), plain, waiting])
async def test_an_evaluator_is_a_scorer(evaluator: Any) -> None:
    own = evaluated(evaluator, params={"prompt": "abc"})
    assert verdict(own).uncertainty.value == 0.25
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL, estimator=own.estimator), using={"scorer": own})
    assert (await guard.aassess("q?")).uncertainty.value == 0.25


@pytest.mark.parametrize("result", [{"score": True}, {"score": None}, {}, [{"score": 0.9}], None])
def test_an_evaluator_without_a_number_is_no_acceptance(result: Any) -> None:
    judged = verdict(evaluated(lambda inputs, outputs: result, params={}))
    assert (judged.accepted, judged.uncertainty.reason) == (False, Unmeasured.JUDGE_FAILED)


def test_ready_made_scorers_work_on_an_event_loop() -> None:
    own = stated_confidence(Confident(reply={"percent": 80}))
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL, estimator=own.estimator), using={"scorer": own})
    assert asyncio.run(guard.aassess("q?")).accepted
