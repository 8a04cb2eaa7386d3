"""A guard for each group of questions at run time: the call names the group, or a function of the messages does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from pydantic import BaseModel

from guardrail import Guardrail, Router, RouterArtifact, UsageError, load_artifact
from guardrail.artifact import ALL_OTHERS, CalibrationArtifact, Spent
from guardrail.bindings import bindings_for
from guardrail.describe import together
from guardrail.doctor import examine
from guardrail.errors import ArtifactFormatError, ArtifactMismatchError
from guardrail.review import Monitors, ReviewStore
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.verdict import AbstainedError
from integrations._agents.artifact_set import load

HALF = "Is it open?"  # two meanings, equally often: ln 2 = .69
MODEL = ScriptedChat(script={HALF: ["yes"] + ["yes", "no"] * 5})


def artifacts(model: ScriptedChat = MODEL) -> dict[str, CalibrationArtifact]:
    """ "easy" accepts two meanings, "hard" and all others do not, in "closed" nothing is accepted."""
    thresholds = {"easy": 1.0, "hard": 0.1, "closed": None, ALL_OTHERS: 0.2}
    return {name: make_artifact(model, threshold=threshold, n=10) for name, threshold in thresholds.items()}


def router_artifact(model: ScriptedChat = MODEL) -> RouterArtifact:
    return RouterArtifact(artifacts=artifacts(model))


ARTIFACT = router_artifact()


def named(route: Any) -> RunnableConfig:
    return {"configurable": {"guardrail_route": route}}


def decided(message: BaseMessage) -> tuple[str, float | None, bool]:
    verdict = message.response_metadata["guardrail"]
    return verdict["route"], verdict["threshold"], verdict["accepted"]


EASY, HARD, CLOSED, OTHERS = (
    ("easy", 1.0, True),
    ("hard", 0.1, False),
    ("closed", None, False),
    (ALL_OTHERS, 0.2, False),
)
WAYS: dict[str, Callable[[Any, RunnableConfig | None], AIMessage]] = {
    "invoke": lambda router, config: router.invoke(HALF, config),
    "ainvoke": lambda router, config: asyncio.run(router.ainvoke(HALF, config)),
    "stream": lambda router, config: next(iter(router.stream(HALF, config))),
    "batch": lambda router, config: router.batch([HALF], config)[0],
    "abatch": lambda router, config: asyncio.run(router.abatch([HALF], config))[0],
    "chain": lambda router, config: (RunnableLambda(lambda text: text) | router).invoke(HALF, config),
    "with_config": lambda router, config: router.with_config(config or {}).invoke(HALF),
    "bind_tools": lambda router, config: router.bind_tools([]).invoke(HALF, config),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_configuration_of_a_call_names_the_route(way: str) -> None:
    """An application that knows the tenant of a call would otherwise get another tenant's threshold."""
    router = Router.of(MODEL, ARTIFACT, remember=0)
    assert decided(WAYS[way](router, named("easy"))) == EASY
    assert decided(WAYS[way](router, named("hard"))) == HARD
    assert decided(WAYS[way](router, named("closed"))) == CLOSED
    assert decided(WAYS[way](router, named("never seen"))) == OTHERS


@pytest.mark.parametrize("way", WAYS)
def test_a_key_function_names_the_route_and_no_call_overrules_it(way: str) -> None:
    """A caller that could overrule the operator's function would choose its threshold."""

    def topic(messages: Sequence[BaseMessage]) -> str:
        return "hard" if "open" in str(messages[-1].content) else "easy"

    assert decided(WAYS[way](Router.of(MODEL, ARTIFACT, key=topic), named("easy"))) == HARD
    assert decided(WAYS[way](Router.of(MODEL, ARTIFACT, key=lambda messages: None), None)) == OTHERS


def test_each_call_of_a_batch_has_its_own_route() -> None:
    router = Router.of(MODEL, ARTIFACT, remember=0)
    configs = [named("easy"), named("hard"), named("closed")]
    assert [decided(message) for message in router.batch([HALF] * 3, configs)] == [EASY, HARD, CLOSED]
    assert [decided(message) for message in asyncio.run(router.abatch([HALF] * 3, configs))] == [EASY, HARD, CLOSED]


def test_a_call_that_names_no_route_is_refused_and_draws_nothing() -> None:
    model = ScriptedChat(script={HALF: ["yes"] * 11})
    router = Router.of(model, router_artifact(model))
    configs: list[RunnableConfig | None] = [None, {}, {"configurable": {"thread_id": "1"}}, named(None)]
    for config in configs:
        with pytest.raises(ArtifactMismatchError, match="guardrail_route"):
            router.invoke(HALF, config)
    assert router.assess(HALF, named("easy")).cost.calls == 11


def test_a_key_without_a_guard_is_refused_where_none_is_for_all_others() -> None:
    only = {"easy": Guardrail(model=MODEL, artifact=ARTIFACT.artifacts["easy"])}
    with pytest.raises(ArtifactMismatchError, match="'hard', and this router has guards for 'easy' only"):
        Router(only, key=lambda messages: "hard").invoke(HALF)


def test_what_names_no_route_raises() -> None:
    def broken(messages: Sequence[BaseMessage]) -> str:
        raise KeyError("intent")

    async def later(messages: Sequence[BaseMessage]) -> str:
        return "easy"

    functions: list[Any] = [broken, lambda messages: 3]
    for function in functions:
        with pytest.raises(UsageError, match=r"key\(messages\)"):
            Router.of(MODEL, ARTIFACT, key=function).invoke(HALF)
    with pytest.raises(UsageError, match="must be the name of a group or None, got int: 7"):
        Router.of(MODEL, ARTIFACT).invoke(HALF, named(7))
    with pytest.raises(ValueError, match="not async"):
        Router(Router.of(MODEL, ARTIFACT).guards, key=later)


def test_groups_share_one_draw_and_each_compares_it_with_its_own_threshold() -> None:
    """A question that comes back in another group would otherwise be drawn until one accepts."""
    router = Router.of(MODEL, ARTIFACT)
    verdicts = [router.assess(HALF, named(name)) for name in ("easy", "hard", "easy")]
    assert [verdict.accepted for verdict in verdicts] == [True, False, True]
    assert [verdict.cost.calls for verdict in verdicts] == [11, 0, 0]


def test_a_router_on_the_abstention_path_gets_the_route() -> None:
    """A stronger model that got another group would answer by the threshold of another tenant: here by none."""
    bigger = ScriptedChat(script={HALF: ["from nine to five"] * 11}, name_of_model="bigger")
    thresholds = {"easy": None, "hard": 0.1, ALL_OTHERS: None}
    parts = {name: make_artifact(bigger, threshold=threshold, n=10) for name, threshold in thresholds.items()}
    router = Router.of(MODEL, ARTIFACT, on_abstain=Router.of(bigger, RouterArtifact(artifacts=parts)))
    answered = router.invoke(HALF, named("hard"))
    assert answered.content == "from nine to five"
    assert decided(answered) == HARD  # the first model held its own answer back


def test_a_router_of_routers_answers_by_the_innermost_route() -> None:
    inner = Router({"easy": Guardrail(model=MODEL, artifact=ARTIFACT.artifacts["easy"])}, key=lambda messages: "easy")
    outer = Router({"tenant": inner}, key=lambda messages: "tenant")
    assert decided(outer.invoke(HALF)) == EASY


def test_a_path_back_to_one_of_its_guards_is_refused() -> None:
    """It would draw the same question again until the gate accepts."""
    with pytest.raises(ValueError, match="draw the same question again"):
        Guardrail(model=MODEL, artifact=ARTIFACT.artifacts["easy"], on_abstain=Router.of(MODEL, ARTIFACT))


def test_an_abstention_raises_through_a_router() -> None:
    with pytest.raises(AbstainedError):
        Router.of(MODEL, ARTIFACT, on_abstain="raise").invoke(HALF, named("hard"))


def test_each_guard_has_its_own_monitor(tmp_path: Path) -> None:
    kept = Monitors(ReviewStore(tmp_path / "reviews.db"))
    monitors = {each.digest: kept.drift(name, each) for name, each in ARTIFACT.artifacts.items()}
    router = Router.of(
        MODEL, ARTIFACT, remember=0, settings=lambda artifact: {"on_verdict": monitors[artifact.digest].watch}
    )
    for name in ("easy", "hard", "hard"):
        router.assess(HALF, named(name))
    counts = {name: monitors[artifact.digest].state.n for name, artifact in ARTIFACT.artifacts.items()}
    assert counts == {"easy": 1, "hard": 2, "closed": 0, ALL_OTHERS: 0}


class Answer(BaseModel):
    """Whether it is open."""

    open: bool


def test_structured_output_is_that_of_the_groups_guard() -> None:
    call = '{"open": true}'
    model = ScriptedChat(script={HALF: [call] * 11})
    bindings = bindings_for(response_format={"type": "json_object"})
    plain = make_artifact(model, threshold=1.0)
    part = plain.model_copy(update={"plan": plain.plan.model_copy(update={"bindings": bindings})})
    router = Router({"easy": Guardrail(model=model, artifact=part)})
    asking = router.with_structured_output(Answer, method="json_mode")
    assert asking.invoke(HALF, named("easy")) == Answer(open=True)
    with pytest.raises(ArtifactMismatchError, match="guardrail_route"):
        asking.invoke(HALF)


def test_a_router_survives_a_file_and_other_places_say_what_it_is(tmp_path: Path) -> None:
    path = ARTIFACT.save(tmp_path / "router.json")
    read = RouterArtifact.load(path)
    assert (read, read.digest, load_artifact(path)) == (ARTIFACT, ARTIFACT.digest, ARTIFACT)
    with pytest.raises(ArtifactFormatError, match=r"is a router of several artifacts \(Router.of"):
        load(path)  # agents, and guards of agent frameworks
    with pytest.raises(ArtifactFormatError, match="here goes the artifact of one model"):
        Guardrail(model=MODEL, artifact=path)
    single = ARTIFACT.artifacts["easy"].save(tmp_path / "easy.json")
    assert isinstance(load_artifact(single), CalibrationArtifact)
    with pytest.raises(ArtifactFormatError, match="is the artifact of one model; here goes a router"):
        RouterArtifact.load(single)


def test_groups_of_different_procedures_are_no_router() -> None:
    """One model answers all groups, and the doctor probes it once."""
    other = ScriptedChat(script={HALF: ["yes"]}, name_of_model="other")
    mixed = {"easy": ARTIFACT.artifacts["easy"], "hard": make_artifact(other)}
    with pytest.raises(ValueError, match="group 'hard' has another model than the others"):
        RouterArtifact(artifacts=mixed)


def test_all_groups_together_hold_with_one_minus_the_sum_of_what_they_spend() -> None:
    """By the union bound .95 for two groups at .02 and .03; a group without a threshold promises nothing."""

    def spending(**deltas: float) -> RouterArtifact:
        """Certificates by the name of their group, each with what the fits on its labels spend."""
        certificate = {"rule": "certified", "certifies": True, "delta": 0.01}
        parts = {}
        for name, delta in deltas.items():
            part = ARTIFACT.artifacts[name]
            outcome = part.outcome.model_copy(update=certificate)
            parts[name] = part.model_copy(update={"outcome": outcome, "spent": Spent(fits=1, delta=delta)})
        return RouterArtifact(artifacts=parts)

    assert together(spending(easy=0.02, hard=0.03, closed=0.5)) == (
        "All 2 thresholds hold at once, and so for any mix of the groups, with 95 % confidence; each by itself with "
        "97 %."
    )
    # Each at .6 (share=each): the bound for both together is empty, and says nothing as "0 %".
    assert together(spending(easy=0.6, hard=0.6)) == (
        "Each of the 2 thresholds holds with 40 % confidence. Nothing is promised about all of them at once, nor about "
        "a mix of the groups."
    )


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).parents[3] / "docs" / "langchain.md").read_text(encoding="utf-8")
    chat = ScriptedChat(script={"When is invoice 7 due?": ["yes"] + ["yes", "no"] * 5})
    parts = {"billing": make_artifact(chat, threshold=1.0), "shipping": make_artifact(chat, threshold=0.1)}
    names: dict[str, Any] = {"chat": chat, "by_intent": RouterArtifact(artifacts=parts)}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        refused = pytest.raises(ArtifactMismatchError, match="human,ai,human")
        with refused if "And of Spain?" in block else nullcontext():
            exec(block, names)
    assert names["rag"].question_of(names["messages"]) == "Capital of France?"
    assert sorted(names["rag"].to_prompt().input_variables) == ["context", "question"]
    assert decided(names["answer"]) == ("billing", 1.0, True)
    assert decided(names["other"]) == ("shipping", 0.1, False)


def test_the_doctor_names_the_groups_without_a_threshold(tmp_path: Path) -> None:
    findings = {finding.check: finding.status for finding in examine(str(ARTIFACT.save(tmp_path / "router.json")))}
    thresholds = {check: status for check, status in findings.items() if check.startswith("threshold of ")}
    assert thresholds == {
        "threshold of easy": "ok",
        "threshold of hard": "ok",
        "threshold of closed": "fail",
        "threshold of all others": "ok",
    }
