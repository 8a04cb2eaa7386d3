"""Every provider of docs/langchain.md, with its published package, against a scripted server on loopback.

`make test-providers` installs the packages in a separate environment; a missing package skips its tests. Each model
has settings that contradict the plan, so a setting under a wrong name would show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel

from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.doctor import examine
from guardrail.errors import UsageError
from guardrail.judges.chat import ChatJudge
from guardrail.sampling.call_settings import carried
from guardrail.sampling.models import resolve_model
from guardrail.specs import identify
from guardrail.testing import make_artifact
from guardrail.types import SamplingPlan

from .scripted import Server, serving

QUESTION = "Capital of France?"
PLAN = SamplingPlan(n=3, max_tokens=48, stop=("#",))
FIXED = PLAN.model_copy(update={"temperature": 1.0, "top_p": 1.0, "primary": "sampled"})
CLAUDE = "anthropic.claude-3-5-sonnet-20240620-v1:0"


class Provider(NamedTuple):
    """One class of a provider's package.

    Attributes:
        package: Name of its package.
        name: Name of its class.
        connection: Returns the arguments that connect it to the scripted server.
        contrary: Settings of the model that contradict the plan.
        settings: Path of each of the plan's settings in a request.
        identity: Provider and model that an artifact binds.
        seed: Path of the seed in a request, or empty if the class takes none.
        seed_argument: Argument of a call that takes the seed, or empty.
        seed_field: Field of the model that takes the seed, where a call takes none; or empty.
        logprobs: Whether its replies show log-probabilities.
    """

    package: str
    name: str
    connection: Callable[[str], dict[str, Any]]
    contrary: dict[str, Any]
    settings: dict[str, str]
    identity: tuple[str, str]
    seed: str = ""
    seed_argument: str = ""
    seed_field: str = ""
    logprobs: bool = False

    def make(self, server: Server, **changed: Any) -> BaseChatModel:
        chat_class = getattr(pytest.importorskip(self.package), self.name)
        model: BaseChatModel = chat_class(**{**self.connection(server.url), **self.contrary, **changed})
        return model


def paths(max_tokens: str, top_p: str, stop: str, inside: str = "") -> dict[str, str]:
    """Return the path of each setting in a request, below the object ``inside`` of it."""
    names = {"temperature": "temperature", "max_tokens": max_tokens, "top_p": top_p, "stop": stop}
    return {setting: inside + name for setting, name in names.items()}


USUAL = paths("max_tokens", "top_p", "stop")
PROVIDERS = {
    "openai": Provider(
        "langchain_openai", "ChatOpenAI",
        lambda url: {"model": "gpt-4o-mini", "base_url": f"{url}/v1", "api_key": "k", "max_retries": 0},
        {"temperature": 0.31, "top_p": 0.55, "max_tokens": 999},
        paths("max_completion_tokens", "top_p", "stop"), ("openai", "gpt-4o-mini"),
        seed="seed", seed_argument="seed", logprobs=True,
    ),
    "vllm": Provider(
        "langchain_openai", "ChatOpenAI",
        lambda url: {"model": "org/weights", "base_url": f"{url}/v1", "api_key": "EMPTY", "max_retries": 0},
        {"temperature": 0.31, "max_tokens": 999},
        paths("max_completion_tokens", "top_p", "stop"), ("openai", "org/weights"),
        seed="seed", seed_argument="seed", logprobs=True,
    ),
    "azure": Provider(
        "langchain_openai", "AzureChatOpenAI",
        lambda url: {
            "azure_deployment": "chat", "azure_endpoint": url, "api_version": "2024-10-21", "api_key": "k",
            "max_retries": 0,
        },
        {"temperature": 0.31, "top_p": 0.55, "max_tokens": 999},
        paths("max_completion_tokens", "top_p", "stop"), ("azure", "chat"),
        seed="seed", seed_argument="seed", logprobs=True,
    ),
    "anthropic": Provider(
        "langchain_anthropic", "ChatAnthropic",
        lambda url: {"model": "claude-haiku-4-5", "base_url": url, "api_key": "k", "max_retries": 0},
        {"temperature": 0.31, "max_tokens": 999},
        paths("max_tokens", "top_p", "stop_sequences"), ("anthropic", "claude-haiku-4-5"),
    ),
    "google": Provider(
        "langchain_google_genai", "ChatGoogleGenerativeAI",
        lambda url: {"model": "gemini-2.5-flash", "base_url": url, "api_key": "k", "max_retries": 1},
        {"temperature": 0.31, "max_tokens": 999},
        paths("maxOutputTokens", "topP", "stopSequences", inside="generationConfig."),
        ("google_genai", "gemini-2.5-flash"), seed="generationConfig.seed", seed_field="seed",
    ),
    "ollama": Provider(
        "langchain_ollama", "ChatOllama", lambda url: {"model": "llama3:8b", "base_url": url},
        {"temperature": 0.31, "num_predict": 999, "stop": ["!"]},
        paths("num_predict", "top_p", "stop", inside="options."), ("ollama", "llama3:8b"),
        seed="options.seed", seed_field="seed", logprobs=True,
    ),
    "mistral": Provider(
        "langchain_mistralai", "ChatMistralAI",
        lambda url: {"model": "mistral-small-latest", "base_url": f"{url}/v1", "api_key": "k", "max_retries": 0},
        {"temperature": 0.31, "max_tokens": 999}, USUAL, ("mistral", "mistral-small-latest"),
        seed="random_seed", seed_argument="random_seed",
    ),
    "groq": Provider(
        "langchain_groq", "ChatGroq",
        lambda url: {"model": "llama-3.3-70b-versatile", "base_url": url, "api_key": "k", "max_retries": 0},
        {"temperature": 0.31, "max_tokens": 999}, USUAL, ("groq", "llama-3.3-70b-versatile"),
        seed="seed", seed_argument="seed", logprobs=True,
    ),
    "bedrock": Provider(
        "langchain_aws", "ChatBedrockConverse", lambda url: {"model": CLAUDE, "base_url": url},
        {"temperature": 0.31, "max_tokens": 999},
        paths("maxTokens", "topP", "stopSequences", inside="inferenceConfig."), ("amazon_bedrock", CLAUDE),
    ),
    "bedrock, invoke": Provider(
        "langchain_aws", "ChatBedrock", lambda url: {"model": CLAUDE, "endpoint_url": url},
        {"temperature": 0.31, "max_tokens": 999},
        paths("max_tokens", "top_p", "stop_sequences"), ("amazon_bedrock", CLAUDE),
    ),
    "cohere": Provider(
        "langchain_cohere", "ChatCohere",
        lambda url: {"model": "command-r-08-2024", "base_url": url, "cohere_api_key": "k"},
        {"temperature": 0.31}, paths("max_tokens", "p", "stop_sequences"), ("cohere", "command-r-08-2024"),
        seed="seed", seed_argument="seed",
    ),
}  # fmt: skip


def each_of(providers: dict[str, Provider]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("provider", providers.values(), ids=providers)


each_provider = each_of(PROVIDERS)
SEEDED = {name: provider for name, provider in PROVIDERS.items() if provider.seed}
UNSEEDED = {name: provider for name, provider in PROVIDERS.items() if not provider.seed}
LIKELIHOODS = {name: provider for name, provider in PROVIDERS.items() if provider.logprobs}
TEXTS = {name: provider for name, provider in PROVIDERS.items() if not provider.logprobs}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment from redirecting requests."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "k",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def planned(model: BaseChatModel, plan: SamplingPlan = PLAN) -> CalibrationArtifact:
    return make_artifact(model, n=plan.n).model_copy(update={"plan": plan})


def value_at(body: dict[str, Any], path: str) -> Any:
    value: Any = body
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def settings_sent(server: Server, settings: dict[str, str]) -> list[dict[str, Any]]:
    """Return the plan's settings in each request for the question, without the requests of the probe."""
    bodies = [body for _, body in server.requests if QUESTION in json.dumps(body)]
    return [{name: value_at(body, path) for name, path in settings.items()} for body in bodies]


def names_in(body: Any) -> Iterator[str]:
    """Yield every name at any depth of a request."""
    if isinstance(body, dict):
        for name, value in body.items():
            yield name
            yield from names_in(value)


@each_provider
def test_a_guarded_question_is_asked_by_the_plan(provider: Provider, server: Server) -> None:
    model = provider.make(server)
    before = model.model_dump()
    guard = Guardrail(model=model, artifact=planned(model), max_concurrency=1)
    verdict = guard.assess(QUESTION)
    assert verdict.accepted, verdict.detail
    assert guard.invoke(QUESTION).text == "Paris"

    primary, *samples = settings_sent(server, provider.settings)
    common = {"max_tokens": 48, "stop": ["#"]}
    assert {name: primary[name] for name in ("temperature", *common)} == {"temperature": 0, **common}
    assert samples[:3] == [{"temperature": 0.7, "top_p": 0.9, **common}] * 3
    # No request repeats a setting under another name, which a server might read instead.
    lengths = {"max_tokens", "max_completion_tokens", "num_predict", "maxTokens", "maxOutputTokens"}
    expected = {path.rpartition(".")[2] for path in provider.settings.values()}
    others = (lengths | {"top_p", "topP", "p"}) - expected
    assert not [others & set(names_in(body)) for _, body in server.requests if others & set(names_in(body))]
    assert model.model_dump() == before


@each_provider
async def test_so_it_is_on_the_event_loop(provider: Provider, server: Server) -> None:
    model = provider.make(server)
    guard = Guardrail(model=model, artifact=planned(model), max_concurrency=1)
    verdict = await guard.aassess(QUESTION)
    assert verdict.accepted, verdict.detail
    sent = settings_sent(server, provider.settings)
    assert sorted(request["temperature"] for request in sent) == [0, 0.7, 0.7, 0.7]
    assert {request["max_tokens"] for request in sent} == {48}


@each_provider
def test_answers_that_differ_are_held_back(provider: Provider, server: Server) -> None:
    model = provider.make(server)
    verdict = Guardrail(model=model, artifact=planned(model)).assess("Name a random word.")
    assert (verdict.accepted, verdict.uncertainty.measured) == (False, True), verdict.detail


@each_provider
def test_what_an_artifact_binds(provider: Provider, server: Server) -> None:
    """An artifact must not load for another model."""
    identified = identify(provider.make(server))
    assert (identified.provider, identified.model) == provider.identity


@each_provider
def test_the_seed_goes_where_the_class_takes_it(provider: Provider, server: Server) -> None:
    """A class that gets it elsewhere ignores it or raises, so users get no answer."""
    settings = carried(provider.make(server), {"seed": 7})
    assert settings.call == {name: 7 for name in [provider.seed_argument] if name}
    assert settings.fields == {name: 7 for name in [provider.seed_field] if name}


@each_of(SEEDED)
def test_each_sample_has_a_seed_of_its_own(provider: Provider, server: Server) -> None:
    """Samples of equal seeds are equal, so every question would look certain."""
    model = provider.make(server)
    assert Guardrail(model=model, artifact=planned(model)).assess(QUESTION).accepted
    sent = settings_sent(server, {"temperature": provider.settings["temperature"], "seed": provider.seed})
    seeds = [request["seed"] for request in sent if request["temperature"] == PLAN.temperature]
    assert [type(seed) for seed in seeds] == [int] * PLAN.n
    assert len(set(seeds)) == PLAN.n


@each_of(UNSEEDED)
def test_no_seed_is_sent_where_the_class_takes_none(provider: Provider, server: Server) -> None:
    """The server would refuse the request for its unknown field."""
    model = provider.make(server)
    assert Guardrail(model=model, artifact=planned(model)).assess(QUESTION).accepted
    assert not [body for _, body in server.requests if {"seed", "random_seed"} & set(names_in(body))]


class TokenListener(BaseCallbackHandler):
    """A callback that keeps the streamed tokens."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: Any, **details: Any) -> None:
        self.tokens.append(token)


def test_a_class_that_always_streams_shows_no_token(server: Server) -> None:
    of_call = TokenListener()
    of_model = TokenListener()
    model = PROVIDERS["ollama"].make(server, callbacks=[of_model])
    guard = Guardrail(model=model, artifact=planned(model))
    assert guard.invoke(QUESTION, {"callbacks": [of_call]}).text == "Paris"
    assert (of_call.tokens, of_model.tokens) == ([], [])
    model.invoke(QUESTION, {"callbacks": [of_call]})
    assert "Paris" in "".join(of_call.tokens)  # the control
    assert "Paris" in "".join(of_model.tokens)


@each_provider
def test_a_judge_is_asked_at_temperature_0(provider: Provider, server: Server) -> None:
    judge = ChatJudge(provider.make(server))
    server.answer = lambda body: "yes"
    judge.equivalent(QUESTION, [("a", "b")])
    (sent,) = settings_sent(server, provider.settings)
    assert sent["temperature"] == 0
    assert sent["max_tokens"] == 16


@each_of(LIKELIHOODS)
def test_log_probabilities_are_measured(provider: Provider, server: Server) -> None:
    model = provider.make(server)
    guard = Guardrail(model=model, artifact=make_artifact(model, n=3, estimator="semantic_entropy"))
    verdict = guard.assess(QUESTION)
    assert verdict.accepted, verdict.detail


@each_of(TEXTS)
def test_a_score_of_log_probabilities_is_refused_where_there_are_none(provider: Provider, server: Server) -> None:
    """Otherwise the operator would find out from abstentions on every question."""
    model = provider.make(server)
    with pytest.raises(ValueError, match="does not take logprobs, which the plan asks for"):
        Guardrail(model=model, artifact=make_artifact(model, n=3, estimator="semantic_entropy"))


@each_provider
def test_a_model_that_takes_only_temperature_1(provider: Provider, server: Server) -> None:
    model = provider.make(server, profile={"temperature": False})
    with pytest.raises(ValueError, match="calibrate collect --temperature 1 --set top_p=1"):
        Guardrail(model=model, artifact=planned(model))
    guard = Guardrail(model=model, artifact=planned(model, FIXED))
    assert guard.assess(QUESTION).accepted
    sent = settings_sent(server, provider.settings)
    assert len(sent) == 4
    assert {(request["temperature"], request["top_p"]) for request in sent} == {(None, None)}  # top-p 1 cuts nothing


@each_provider
def test_doctor_finds_nothing_wrong(provider: Provider, server: Server, tmp_path: Path) -> None:
    model = provider.make(server)
    path = str(planned(model).save(tmp_path / "artifact.json"))
    findings = {finding.check: finding for finding in examine(path, model)}
    assert {finding.status for finding in findings.values()} <= {"ok", "warn"}, findings
    assert findings["requests"].status == "ok", findings["requests"]


@each_provider
def test_doctor_names_a_temperature_that_is_refused(provider: Provider, server: Server, tmp_path: Path) -> None:
    text = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."
    path_of_temperature = provider.settings["temperature"]
    server.answer = lambda body: (400, text) if value_at(body, path_of_temperature) == 0 else f"word {body['place']}"
    model = provider.make(server)
    path = str(planned(model).save(tmp_path / "artifact.json"))
    findings = [finding for finding in examine(path, model) if finding.status == "fail"]
    assert findings
    assert any(finding.fix.startswith("this model only takes temperature 1") for finding in findings), findings


def test_the_responses_api(server: Server) -> None:
    model = PROVIDERS["openai"].make(server, use_responses_api=True)
    with pytest.raises(ValueError, match="does not take stop"):
        Guardrail(model=model, artifact=planned(model))
    plan = PLAN.model_copy(update={"stop": ()})
    guard = Guardrail(model=model, artifact=planned(model, plan), max_concurrency=1)
    verdict = guard.assess(QUESTION)
    assert verdict.accepted, verdict.detail
    primary, *samples = settings_sent(server, {name: name for name in ("temperature", "max_output_tokens", "seed")})
    assert primary == {"temperature": 0, "max_output_tokens": 48, "seed": None}
    assert samples == [{"temperature": 0.7, "max_output_tokens": 48, "seed": None}] * 3


def test_models_whose_profile_knows_it() -> None:
    """Reasoning models are known without a call if the package has a profile of them."""
    openai = pytest.importorskip("langchain_openai")
    anthropic = pytest.importorskip("langchain_anthropic")
    takes = import_module("guardrail.sampling.call_settings").takes_temperature
    assert takes(openai.ChatOpenAI(model="gpt-4o-mini", api_key="k"))
    assert not takes(openai.ChatOpenAI(model="o3", api_key="k"))
    assert not takes(openai.ChatOpenAI(model="gpt-5-mini", api_key="k"))
    claude = {"model": "claude-sonnet-4-5", "api_key": "k", "max_tokens": 4096}
    assert takes(anthropic.ChatAnthropic(**claude))
    assert not takes(anthropic.ChatAnthropic(**claude, thinking={"type": "enabled", "budget_tokens": 1024}))
    assert not takes(anthropic.ChatAnthropic(model="claude-opus-4-7", api_key="k"))


def test_a_deployment_without_a_name_is_refused() -> None:
    azure = pytest.importorskip("langchain_openai").AzureChatOpenAI
    connection = {"azure_endpoint": "http://127.0.0.1", "api_version": "2024-10-21", "api_key": "k"}
    assert identify(azure(**connection, model="gpt-4o", azure_deployment="chat")).model == "gpt-4o"
    with pytest.raises(UsageError, match="names no model"):
        identify(azure(**connection))


def test_a_class_warns_of_what_it_drops_and_doctor_says_so(server: Server, tmp_path: Path) -> None:
    model = PROVIDERS["google"].make(server, model="gemini-3.6-flash")
    path = str(planned(model).save(tmp_path / "artifact.json"))
    with pytest.warns(UserWarning, match="uses fixed sampling defaults"):
        findings = {finding.check: finding for finding in examine(path, model)}
    assert findings["requests"].status == "warn"
    assert "temperature" in findings["requests"].detail
    assert findings["requests"].fix.startswith("this model only takes temperature 1")


@pytest.mark.parametrize(
    ("text", "package", "identity"),
    [
        ("openai:gpt-4o-mini", "langchain_openai", ("openai", "gpt-4o-mini")),
        ("azure_openai:gpt-4o", "langchain_openai", ("azure", "gpt-4o")),
        ("anthropic:claude-sonnet-4-5", "langchain_anthropic", ("anthropic", "claude-sonnet-4-5")),
        ("google_genai:gemini-2.5-flash", "langchain_google_genai", ("google_genai", "gemini-2.5-flash")),
        ("ollama:llama3:8b", "langchain_ollama", ("ollama", "llama3:8b")),
        ("mistralai:mistral-small-latest", "langchain_mistralai", ("mistral", "mistral-small-latest")),
        ("groq:llama-3.3-70b-versatile", "langchain_groq", ("groq", "llama-3.3-70b-versatile")),
        (f"bedrock_converse:{CLAUDE}", "langchain_aws", ("amazon_bedrock", CLAUDE)),
        ("cohere:command-r-08-2024", "langchain_cohere", ("cohere", "command-r-08-2024")),
    ],
)
def test_models_by_name(text: str, package: str, identity: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain.chat_models")
    pytest.importorskip(package)
    for name in ("OPENAI", "AZURE_OPENAI", "ANTHROPIC", "GOOGLE", "MISTRAL", "GROQ", "COHERE", "CO"):
        monkeypatch.setenv(f"{name}_API_KEY", "k")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "http://127.0.0.1")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    identified = identify(resolve_model(text))
    assert (identified.provider, identified.model) == identity
