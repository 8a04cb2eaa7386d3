"""The tables of call settings: what each does, and how each class of LangChain's takes it."""

from __future__ import annotations

from itertools import combinations
from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import ConfigDict, Field

from guardrail import Guardrail
from guardrail.errors import UsageError
from guardrail.sampling.call_settings import PLANNED, SHAPING, TRANSPORT, carried, check_settings
from guardrail.sampling.sampler import Sampler
from guardrail.specs import identify
from guardrail.testing import ScriptedChat, ended, make_artifact
from guardrail.types import SamplingPlan
from integrations._openai import requests as chat_completions


def test_a_setting_does_one_thing_wherever_it_is_sent() -> None:
    """A setting that shapes the answer and counts as transport somewhere would change answers unnoticed."""
    from integrations import openai_agents_guard
    from integrations._frameworks import pydantic_ai_model

    lists = (PLANNED, SHAPING, TRANSPORT, chat_completions.BOUND)
    assert all(not first & second for first, second in combinations(lists, 2))
    assert chat_completions.PLANNED <= PLANNED
    assert chat_completions.SHAPING <= SHAPING
    for passed_on in (chat_completions.TRANSPORT, openai_agents_guard.PASSED_ON, pydantic_ai_model.PASSED_ON):
        assert not passed_on & (PLANNED | SHAPING | chat_completions.BOUND)
    assert {"n", "temperature", "top_p", "max_tokens", "stop", "logprobs"} <= PLANNED & set(SamplingPlan.model_fields)


# -- stand-ins: classes named like the providers', with the fields of the real ones and what these do with the keywords
# of a call. tests/providers has the real ones.


class Client:
    """A provider's client: it knows its settings and refuses any other keyword, as a Python function does."""

    def __init__(self, *known: str) -> None:
        self.known = {"temperature", "stop", *known}
        self.asked: list[dict[str, Any]] = []

    def chat(self, **settings: Any) -> str:
        if unknown := settings.keys() - self.known:
            raise TypeError(f"Client.chat() got an unexpected keyword argument {min(unknown)!r}")
        self.asked.append({name: value for name, value in settings.items() if value is not None})
        return "Paris"


class StandIn(BaseChatModel):
    """A chat model whose own settings would spoil the plan's."""

    KNOWN: ClassVar[tuple[str, ...]]
    client: Any = None
    model: str = "m"
    temperature: float | None = 0.31
    guardrail_trusted: ClassVar[bool] = True

    def model_post_init(self, context: Any) -> None:
        self.client = Client(*self.KNOWN)

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def _settings(self, **call: Any) -> dict[str, Any]:
        own = {name: getattr(self, name, None) for name in ("temperature", *self.KNOWN)}
        return {**own, **call}

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        text = self.client.chat(**self._settings(stop=stop, **kwargs))
        return ChatResult(generations=[ChatGeneration(message=ended(AIMessage(text)))])


class FieldsOnly(StandIn):
    """Its settings are fields; the keywords of a call go to the client, which knows other words."""

    KNOWN = ("options",)
    num_predict: int | None = 999
    top_p: float | None = 0.55
    seed: int | None = None

    def _settings(self, **call: Any) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("num_predict", "temperature", "top_p", "seed")}
        return {"options": {name: value for name, value in own.items() if value is not None}, **call}


class ChatOllama(FieldsOnly):
    stop: list[str] | None = Field(default_factory=lambda: ["!"])

    def _settings(self, stop: Any = None, **call: Any) -> dict[str, Any]:
        if self.stop is not None and stop is not None:
            raise ValueError("`stop` found in both the input and default params.")
        return super()._settings(stop=stop or self.stop, **call)


class Deaf(StandIn):
    """A class that no table lists; it reads its own fields and ignores the settings of a call."""

    KNOWN = ("max_tokens", "top_p")
    max_tokens: int | None = 999
    top_p: float | None = 0.55

    def _settings(self, stop: Any = None, **call: Any) -> dict[str, Any]:
        return super()._settings(stop=stop)


class Wordy(Deaf):
    """A class that reads the keywords of a call and not its own fields."""

    def _settings(self, stop: Any = None, **call: Any) -> dict[str, Any]:
        return {"stop": stop, **call}


class ChatGoogleGenerativeAI(StandIn):
    KNOWN = ("max_output_tokens", "top_p", "seed")
    max_output_tokens: int | None = Field(default=999, alias="max_tokens")
    top_p: float | None = 0.55
    model_config = ConfigDict(populate_by_name=True)


class ChatCohere(StandIn):
    KNOWN = ("max_tokens", "p", "seed")

    def _settings(self, **call: Any) -> dict[str, Any]:
        return dict(temperature=self.temperature, **call)  # raises where a call has the temperature, too


class ChatAnthropic(StandIn):
    KNOWN = ("max_tokens", "top_p")
    max_tokens: int | None = 999
    top_p: float | None = 0.55
    thinking: dict[str, Any] | None = None


class BaseChatOpenAI(StandIn):
    KNOWN = ("max_tokens", "top_p", "seed", "logprobs")
    max_tokens: int | None = 999
    top_p: float | None = 0.55


class ChatMistralAI(StandIn):
    KNOWN = ("max_tokens", "top_p", "random_seed")
    max_tokens: int | None = 999
    top_p: float | None = 0.55


PLAN = SamplingPlan(n=2, max_tokens=48, stop=("#",))
FIXED = PLAN.model_copy(update={"temperature": 1.0, "top_p": 1.0, "primary": "sampled"})
QUESTION = [HumanMessage("Capital of France?")]
NO_TEMPERATURE = {"temperature": False}


def requests(model: StandIn) -> list[dict[str, Any]]:
    """The requests to the client, without the model's own top_p, which temperature 0 makes irrelevant."""
    flat = [{**request.get("options", {}), **request} for request in model.client.asked]
    dropped = ({"options"}, {"options", "p", "top_p"})
    return [{k: v for k, v in request.items() if k not in dropped[request.get("temperature") == 0]} for request in flat]


@pytest.mark.parametrize(
    ("kind", "longest", "nucleus"),
    [
        (FieldsOnly, "num_predict", "top_p"),
        (Deaf, "max_tokens", "top_p"),
        (Wordy, "max_tokens", "top_p"),
        (ChatOllama, "num_predict", "top_p"),
        (ChatGoogleGenerativeAI, "max_output_tokens", "top_p"),
        (ChatCohere, "max_tokens", "p"),
        (ChatAnthropic, "max_tokens", "top_p"),
        (BaseChatOpenAI, "max_tokens", "top_p"),
        (ChatMistralAI, "max_tokens", "top_p"),
    ],
)
async def test_each_class_is_asked_in_its_own_words(kind: type[StandIn], longest: str, nucleus: str) -> None:
    model = kind()
    before = {**model.__dict__}
    (drawn,) = Sampler(model, PLAN, max_concurrency=1).draw([QUESTION])
    (again,) = await Sampler(model, PLAN, max_concurrency=1).adraw([QUESTION])
    assert (drawn.problem_detail, again.problem_detail) == ("", "")
    common = {longest: 48, "stop": ["#"]}
    expected = [{**common, "temperature": 0.0}] + [{**common, "temperature": 0.7, nucleus: 0.9}] * 2
    assert requests(model) == expected * 2
    assert model.__dict__ == before  # the caller's model keeps its own settings


def test_without_translation_the_client_refuses() -> None:
    """The control: what the stand-in answers to a call in the plan's words, as the real class does."""
    with pytest.raises(TypeError, match=r"Client.chat\(\) got an unexpected keyword argument 'max_tokens'"):
        ChatOllama().invoke("q", max_tokens=48)


def test_seeds_go_to_the_classes_that_take_them() -> None:
    seed = {"seed": 7}
    settings = {
        kind.__name__: carried(kind(), seed)
        for kind in (ChatOllama, ChatGoogleGenerativeAI, ChatCohere, ChatAnthropic, BaseChatOpenAI, ChatMistralAI)
    }
    assert settings == {
        "ChatOllama": ({"seed": 7}, {}),
        "ChatGoogleGenerativeAI": (seed, {}),
        "ChatCohere": ({}, seed),
        "ChatAnthropic": ({}, {}),
        "BaseChatOpenAI": ({}, seed),
        "ChatMistralAI": ({}, {"random_seed": 7}),
    }
    assert carried(ScriptedChat(), seed) == ({}, {})  # nothing says that it takes one


def test_log_probabilities_that_a_class_cannot_give_are_refused() -> None:
    with pytest.raises(UsageError, match="ChatAnthropic does not take logprobs, which the plan asks for"):
        Sampler(ChatAnthropic(), SamplingPlan(n=2, logprobs=True)).draw([QUESTION])
    assert carried(BaseChatOpenAI(), {"logprobs": True}) == ({}, {"logprobs": True})


class Responses(BaseChatOpenAI):
    """A model that talks to OpenAI's Responses API."""

    def _use_responses_api(self, payload: dict[str, Any]) -> bool:
        return True


def test_stop_strings_that_langchain_drops_are_refused() -> None:
    with pytest.raises(UsageError, match="does not take stop"):
        Sampler(Responses(), PLAN).draw([QUESTION])
    assert carried(Responses(), {"seed": 1, "max_tokens": 5}) == ({}, {"max_completion_tokens": 5})


@pytest.mark.parametrize(
    "model",
    [
        BaseChatOpenAI(profile=NO_TEMPERATURE),
        ChatOllama(profile=NO_TEMPERATURE),
        ChatAnthropic(thinking={"type": "enabled", "budget_tokens": 9}),
    ],
    ids=["profile", "fields", "thinking"],
)
def test_a_model_that_takes_only_temperature_1(model: StandIn) -> None:
    artifact = make_artifact(model, n=2)
    with pytest.raises(
        ValueError, match=r"no temperature other than 1, got 0\.7\. Plan with temperature=1, top_p=1, prim"
    ):
        Guardrail(model=model, artifact=artifact)
    with pytest.raises(UsageError, match=r"no top_p other than 1, got 0\.9"):
        check_settings(model, FIXED.model_copy(update={"top_p": 0.9}))
    with pytest.raises(UsageError, match="no temperature other than 1, got 0"):
        check_settings(model, FIXED.model_copy(update={"primary": "greedy"}))

    guard = Guardrail(model=model, artifact=artifact.model_copy(update={"plan": FIXED}))
    assert guard.assess("Capital of France?").accepted
    sent = requests(model)
    assert len(sent) == 3  # the primary answer is asked for like the samples, and nothing names a temperature
    assert sent[0] == sent[1] == sent[2]
    assert not {"temperature", "top_p"} & sent[0].keys()


def test_a_top_p_that_truncates_nothing_is_not_sent_beside_a_temperature() -> None:
    model = ChatAnthropic()
    Sampler(model, PLAN.model_copy(update={"top_p": 1.0}), max_concurrency=1).draw([QUESTION])
    assert [request.get("top_p") for request in model.client.asked[1:]] == [None, None]  # also not the model's own
    assert carried(BaseChatOpenAI(), {"top_p": 1.0}).call == {"top_p": 1.0}


def test_a_plan_says_how_its_primary_answer_is_drawn() -> None:
    assert SamplingPlan.from_stored(PLAN.model_dump_json()) == PLAN
    assert SamplingPlan.from_stored(FIXED.model_dump_json()).primary == "sampled"
    with pytest.raises(ValueError, match="sampled"):
        SamplingPlan(n=0, temperature=0, primary="sampled")


class ChatCloud(StandIn):
    KNOWN = ()
    model: Any = None
    deployment_name: str | None = None


def test_a_class_without_a_name_of_its_model_is_bound_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Unnamed(FakeListChatModel):
        """Keeps the name of its model where nobody looks for it."""

    for _ in range(2):
        assert identify(Unnamed(responses=[])).model == "Unnamed"
    (warning,) = caplog.messages  # once for each class
    assert "an artifact is bound to the class alone" in warning
    assert "ls_model_name" in warning
    assert "guardrail_identity()" in warning

    class Named(FakeListChatModel):
        model_name: str = "support-v1"

    assert identify(Named(responses=[])).model == "support-v1"
    assert len(caplog.messages) == 1


def test_a_model_that_names_nothing_cannot_be_bound() -> None:
    assert identify(ChatCloud(deployment_name="chat")).model == "chat"
    with pytest.raises(UsageError, match=r"this ChatCloud names no model \(model, deployment_name are empty\)"):
        identify(ChatCloud())
    assert identify(FakeListChatModel(responses=[])).model == "FakeListChatModel"  # a class without a name, as before
