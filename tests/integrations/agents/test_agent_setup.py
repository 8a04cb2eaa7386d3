"""Mistakes in the set-up of a guarded agent: each is refused, with the names that exist, before a model is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from guardrail.bindings import bindings_for
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.judges import ToolCallJudge
from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from integrations.langchain_agents import GuardrailMiddleware, agent_bindings
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of, balance, calls, close, transfer
from tests.integrations.agents.guarded_agents import CONFIG

MODEL = AgentChat(steps={("pay bob", 0): [calls(("transfer", {"to": "bob", "amount": 5}))], ("pay bob", 1): ["Done."]})


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ask(middleware: Any, tools: Sequence[Any] = TOOLS, *, saver: Any = None, system: str = SYSTEM) -> Any:
    agent: Any = create_agent(MODEL, tools, system_prompt=system, middleware=[middleware], checkpointer=saver)
    before = MODEL.made
    try:
        return agent.invoke({"messages": "pay bob"}, CONFIG)
    except Exception:
        assert MODEL.made == before
        raise


@pytest.mark.parametrize("gate", ["collect", artifact_of(MODEL)], ids=["collect", "artifact"])
def test_a_misspelt_name_of_a_tool_is_refused_at_the_first_step(gate: Any) -> None:
    """The tool that was meant would run unguarded."""
    message = (
        "the keys of tools= name 'transfers', which is not a tool of this agent. Did you mean 'transfer'? There are: "
        "*, balance, close, transfer."
    )
    for tools in ({"transfers": gate}, {"transfers": gate, "transfer": gate, "*": gate}):
        with pytest.raises(UsageError) as refused:
            ask(GuardrailMiddleware(tools=tools, exempt=["balance"]), saver=InMemorySaver())
        assert str(refused.value) == message
    with pytest.raises(UsageError, match=r"exempt= name 'balanse', .* Did you mean 'balance'\?"):
        ask(GuardrailMiddleware(tools={"*": gate}, exempt=["balanse"]), saver=InMemorySaver())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": {"*": "collect"}, "prob": "off"}, "name 'prob', which is not a setting. Did you mean 'probe'"),
        ({"tools": ["transfer"]}, r"tools= must be a mapping by tool name, such as .*, got \['transfer'\]"),
        ({"tools": {len: "collect"}}, "tools= must be a mapping by tool name"),
        ({"tools": {"transfer": "collect"}, "exempt": "balance"}, "exempt= must be a list of tool names"),
        ({"tools": {"transfer": "collect"}, "exempt": [len]}, "exempt= must be a list of tool names"),
        ({"tools": {"transfer": "colect"}}, r"no artifact at colect. Did you mean 'collect'\?"),
        ({"exempt": ["balance"]}, "nothing would be gated"),
        ({"tools": {"balance": "collect"}, "exempt": ["balance"]}, r"gated .* and exempt"),
        ({"artifact": artifact_of(MODEL), "on_abstain": "shrug"}, "on_abstain"),
    ],
)
def test_misuse_is_refused_when_the_gate_is_made(options: dict[str, Any], message: str) -> None:
    """The first customer's question would find it."""
    with pytest.raises(UsageError, match=message):
        GuardrailMiddleware(**options)


def test_artifacts_that_were_not_drawn_together_are_refused() -> None:
    """One draw cannot be what both were calibrated on."""
    with pytest.raises(ArtifactMismatchError, match="another n"):
        GuardrailMiddleware(artifact_of(MODEL), tools={"*": artifact_of(MODEL, n=6)})


@pytest.mark.parametrize("gate", ["collect", artifact_of(MODEL)], ids=["collect", "artifact"])
async def test_a_review_without_a_checkpointer_is_refused_at_the_first_step(gate: Any) -> None:
    """What is held would be lost at the pause."""
    guard = GuardrailMiddleware(tools={"*": gate})
    with pytest.raises(UsageError, match=r"no checkpointer to keep them\. Give it one: create_agent"):
        ask(guard)
    agent: Any = create_agent(MODEL, TOOLS, system_prompt=SYSTEM, middleware=[guard])
    with pytest.raises(UsageError, match="no checkpointer"):
        await agent.ainvoke({"messages": "pay bob"})
    if gate != "collect":  # nobody is asked
        assert ask(GuardrailMiddleware(tools={"*": gate}, on_abstain="message"))["messages"][-1].text == "Done."
    assert ask(guard, saver=InMemorySaver())


def test_a_sub_agent_has_the_checkpointer_of_the_graph_around_it() -> None:
    """It would be refused although its pauses are kept."""
    from langgraph.graph import START, MessagesState, StateGraph

    guard = GuardrailMiddleware(tools={"*": artifact_of(MODEL)})
    inner = create_agent(MODEL, TOOLS, system_prompt=SYSTEM, middleware=[guard])
    outer = StateGraph(MessagesState)
    outer.add_node("agent", inner)
    outer.add_edge(START, "agent")
    whole: Any = outer.compile(checkpointer=InMemorySaver())
    assert whole.invoke({"messages": "pay bob"}, CONFIG)["messages"][-1].text == "Done."


def test_another_prompt_or_a_missing_tool_names_what_an_agent_can_change() -> None:
    """The way out of a plain guard does not exist in an agent."""
    guard = GuardrailMiddleware(tools={"*": artifact_of(MODEL)})
    with pytest.raises(
        ArtifactMismatchError, match=r"received \['Another.'\].*create_agent\(\.\.\., system_prompt="
    ) as refused:
        ask(guard, saver=InMemorySaver(), system="Another.")
    assert "guard.prompt | guard" not in str(refused.value)
    with pytest.raises(ArtifactMismatchError, match=r"Missing: balance. Bind those of the calibration, or"):
        ask(guard, [transfer, close], saver=InMemorySaver())
    with pytest.raises(ArtifactMismatchError, match=r"does not offer \['balance', 'close', 'transfer'\]"):
        ask(guard, [], saver=InMemorySaver())


def test_the_arguments_to_compare_are_checked_and_merged_while_collecting() -> None:
    """Samples that differ in what does not matter are one call on the page."""
    notes = [calls(("transfer", {"to": to, "amount": 5})) for to in ("bob", "bob b.", "bobby")]
    model = AgentChat(steps={("pay bob", 0): notes})

    def shown(**options: Any) -> list[Any]:
        guard = GuardrailMiddleware(tools={"transfer": "collect"}, exempt=["balance", "close"], **options)
        agent: Any = create_agent(model, [balance, transfer, close], middleware=[guard], checkpointer=InMemorySaver())
        value = agent.invoke({"messages": "pay bob"}, CONFIG)["__interrupt__"][0].value
        return [json.loads(answer["text"])[0]["arguments"]["to"] for answer in value["alternatives"]]

    assert sorted(shown()) == ["bob b.", "bobby"]
    assert shown(using={"judge": ToolCallJudge(arguments={"transfer": ["amount"]})}, records="merged.jsonl") == ["bob"]
    with pytest.raises(
        UsageError, match=r"name 'amonut', which is not an argument of transfer. Did you mean 'amount'\?"
    ):
        shown(using={"judge": ToolCallJudge(arguments={"transfer": ["amonut"]})}, records="refused.jsonl")


class Weather(BaseModel):
    """The weather."""

    degrees: int


@pytest.mark.parametrize("schema", [Weather, ToolStrategy(Weather), ProviderStrategy(Weather), None])
def test_bindings_of_an_agent_are_what_its_model_is_offered(schema: Any) -> None:
    """An artifact of other tools, or of another form of the answer, refuses every request of the agent."""
    model = AgentChat(default=[calls(("Weather", {"degrees": 5})) if schema is not None else "Fine."])
    bindings = agent_bindings(model, TOOLS, response_format=schema)
    native = isinstance(schema, ProviderStrategy)
    assert (bindings.response_format is not None) is native
    assert ("Weather" in bindings.tool_names) is (schema is not None and not native)
    assert model.made == 0
    if native:  # this model answers by a call, which is not the provider's format
        return
    artifact = make_artifact(model, prompt=PromptWrapping(system=SYSTEM), n=4, bindings=bindings)
    gate = GuardrailMiddleware(artifact, exempt=["balance", "transfer", "close"], on_abstain="message")
    agent: Any = create_agent(model, TOOLS, system_prompt=SYSTEM, middleware=[gate], response_format=schema)
    result = agent.invoke({"messages": "?"})
    assert result.get("structured_response") == (None if schema is None else Weather(degrees=5))


class Insisting(AgentMiddleware[Any, Any]):
    """Middleware that lets the model answer by the structured answer's tool alone."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tool_choice="Weather"))


def test_a_structured_answer_may_be_the_models_only_choice() -> None:
    """Its tool is not among those of the request, which was refused."""
    model = AgentChat(default=[calls(("Weather", {"degrees": 5}))])
    bindings = agent_bindings(model, TOOLS, response_format=ToolStrategy(Weather), middleware=[Insisting()])
    artifact = make_artifact(model, prompt=PromptWrapping(system=SYSTEM), n=4, bindings=bindings)
    gate = GuardrailMiddleware(artifact, exempt=["balance", "transfer", "close"], on_abstain="message")
    settings: Any = {"middleware": [Insisting(), gate], "response_format": ToolStrategy(Weather)}
    agent: Any = create_agent(model, TOOLS, system_prompt=SYSTEM, **settings)
    assert agent.invoke({"messages": "?"})["structured_response"] == Weather(degrees=5)


@pytest.mark.parametrize("strategy", [ToolStrategy(Weather), ProviderStrategy(Weather)])
def test_a_strategy_of_an_agent_is_refused_where_the_model_does_not_decide(strategy: Any) -> None:
    """Calibration would bind a format that the agent never asks for."""
    with pytest.raises(UsageError, match=r"agent_bindings\(model, tools, response_format=\.\.\.\)"):
        bindings_for(TOOLS, response_format=strategy)
