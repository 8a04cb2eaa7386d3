"""Early stopping in agents: the verdicts of all samples, from fewer calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.guard import early_stopping as stopping
from guardrail.judges import ExactJudge, JudgeSpec
from guardrail.types import SampleSet, SamplingPlan, Uncertainty
from guardrail.uncertainty import Estimator, measure
from guardrail.uncertainty import make_estimator as make
from guardrail.verdict import Verdict
from integrations.langchain_agents import GuardrailMiddleware
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of, calls, sending

N = 10
SPREAD, EQUAL, LATE = "spread?", "equal?", "late?"
ANSWERS: dict[str, Sequence[str]] = {
    SPREAD: ["x", "one", "two", "three", "four"],
    EQUAL: ["x", "same"],
    LATE: ["x", *["one"] * 4, "two", "three", "four", "five", "six", "seven"],
}
NUMBERS = {SPREAD: [1, 1, 2, 3, 4], EQUAL: [1, 1], LATE: [1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7]}
THRESHOLDS = [0.325, 1.3]
Case = tuple[str, str, float]
CASES: list[Case] = [(kind, question, cut) for kind in ("answer", "tool") for question in ANSWERS for cut in THRESHOLDS]


def exact(model: AgentChat, *, threshold: float) -> CalibrationArtifact:
    """An artifact whose judge compares strings."""
    spec = make("discrete_semantic_entropy", judge=ExactJudge()).spec
    return artifact_of(model, threshold=threshold, n=N).model_copy(update={"estimator": spec})


def chat(kind: str) -> AgentChat:
    replies_to: Mapping[str, Sequence[Any]] = ANSWERS
    if kind == "tool":
        replies_to = {question: [sending(amount) for amount in amounts] for question, amounts in NUMBERS.items()}
    steps: dict[tuple[str, int], Sequence[Any]] = {(question, 0): replies for question, replies in replies_to.items()}
    return AgentChat(steps=steps | {(question, 1): ["done"] for question in replies_to})


def ask(model: AgentChat, question: str, guard: GuardrailMiddleware, *, asynchronous: bool = False) -> dict[str, Any]:
    agent = create_agent(model, TOOLS, system_prompt=SYSTEM, middleware=[guard], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    request: Any = {"messages": question}
    return asyncio.run(agent.ainvoke(request, config)) if asynchronous else agent.invoke(request, config)


def verdict_of(case: Case, early_stopping: Any, *, asynchronous: bool = False) -> tuple[Verdict, int]:
    """The first verdict of a run, and the calls it took."""
    kind, question, threshold = case
    model, verdicts = chat(kind), []
    artifact = exact(model, threshold=threshold)
    passing = {"exempt": ["balance", "transfer", "close"]}
    gated: dict[str, Any] = passing if kind == "answer" else {"tools": {"*": artifact}}
    guard = GuardrailMiddleware(
        artifact if kind == "answer" else None,
        **gated,
        on_abstain="message",
        early_stopping=early_stopping,
        on_verdict=lambda verdict, messages: verdicts.append(verdict),
    )
    ask(model, question, guard, asynchronous=asynchronous)
    return verdicts[0], verdicts[0].cost.calls


def differing(cases: Sequence[Case]) -> list[Case]:
    """Cases whose verdict is another with early stopping than without."""
    differences = []
    for case in cases:
        (early, _), (full, _) = verdict_of(case, "auto"), verdict_of(case, "off")
        if (early.accepted, early.reason, early.candidate) != (full.accepted, full.reason, full.candidate):
            differences.append(case)
    return differences


def test_the_verdicts_are_those_of_all_samples() -> None:
    assert differing(CASES) == []


def test_a_rule_that_stops_too_soon_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(drawn: SampleSet, estimator: Estimator, n: int, threshold: float) -> Uncertainty:
        return measure(drawn, estimator, SamplingPlan(n=len(drawn.samples)))  # as if there were no others

    monkeypatch.setattr(stopping, "decide_early", hasty)
    late: list[Case] = [("answer", LATE, 0.325), ("tool", LATE, 0.325)]
    assert differing(late) == late


@pytest.mark.parametrize("kind", ["answer", "tool"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_calls_are_saved_and_counted(kind: str, asynchronous: bool) -> None:
    early, drawn = verdict_of((kind, SPREAD, 0.5), "auto", asynchronous=asynchronous)
    assert (drawn, early.cost.saved, len(early.samples)) == (4, 7, 3)  # three meanings: at least .639 nats
    assert "settled by 3 of 10 samples" in early.detail
    full, all_drawn = verdict_of((kind, SPREAD, 0.5), "off", asynchronous=asynchronous)
    assert (all_drawn, full.cost.saved) == (1 + N, 0)
    open_until_the_end, drawn = verdict_of((kind, EQUAL, 0.5), "auto", asynchronous=asynchronous)
    assert (drawn, open_until_the_end.cost.saved) == (1 + N, 0)


def test_a_judge_about_which_nothing_is_known_stops_nothing_under_auto() -> None:
    class Odd:
        def __init__(self) -> None:
            self.spec = JudgeSpec(name="odd", version=1, params={})

        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return [left == right for left, right in pairs]

    judge = Odd()
    spec = make("discrete_semantic_entropy", judge=judge).spec
    for setting, drawn in (("auto", 1 + N), ("on", 4)):
        model = chat("answer")
        artifact = exact(model, threshold=2.0).model_copy(update={"estimator": spec})
        guard = GuardrailMiddleware(
            artifact,
            exempt=["balance", "transfer", "close"],
            on_abstain="message",
            judge=judge,
            early_stopping=setting,  # type: ignore[arg-type]
        )
        ask(model, EQUAL, guard)
        assert model.made == drawn


def two_calls(*numbers: int) -> list[Any]:
    return [calls(("transfer", {"to": "bob", "amount": n}), ("close", {"account": str(n)})) for n in numbers]


@pytest.mark.parametrize(("second", "samples"), [(0.5, 3), (1.3, 7)])
def test_with_several_gates_the_last_one_decides_when_to_stop(second: float, samples: int) -> None:
    model = AgentChat(steps={("q", 0): two_calls(1, 1, 2, 3, 4, 5)})
    # Three meanings read .639 nats at least ({8, 1, 1} of 10), {2, 2, 1, 1, 1} of 7 at least 1.36 ({5, 2, 1, 1, 1}).
    tools = {"transfer": exact(model, threshold=0.5), "close": exact(model, threshold=second)}
    guard = GuardrailMiddleware(tools=tools, exempt=["balance"], on_abstain="message")
    ask(model, "q", guard)
    assert model.made == 1 + samples


def test_a_message_that_no_gate_judges_needs_no_samples() -> None:
    model = AgentChat(steps={("q", 0): [calls(("balance", {"account": "a"}))], ("q", 1): ["done"]})
    guard = GuardrailMiddleware(tools={"*": exact(model, threshold=0.5)}, exempt=["balance"], on_abstain="message")
    ask(model, "q", guard)
    assert model.made == 2


@pytest.mark.parametrize(("early_stopping", "samples"), [("auto", N), ("off", N), ("on", 3)])
def test_a_person_sees_what_all_samples_say_unless_told_otherwise(early_stopping: Any, samples: int) -> None:
    model = chat("answer")
    artifact = exact(model, threshold=0.5)
    everything = ["balance", "transfer", "close"]
    guard = GuardrailMiddleware(artifact, exempt=everything, on_abstain="review", early_stopping=early_stopping)
    (interrupt,) = ask(model, SPREAD, guard)["__interrupt__"]
    assert model.made == 1 + samples
    assert len(interrupt.value["alternatives"]) == (4 if samples == N else 3)
    assert bool(interrupt.value["meanings"]) == (samples == N)
    model = chat("answer")
    guard = GuardrailMiddleware(
        exact(model, threshold=2.0), exempt=everything, on_abstain="review", early_stopping=early_stopping
    )
    assert ask(model, EQUAL, guard)["messages"][-1].text == "x"
    assert model.made == (1 + N if early_stopping == "off" else 4)  # an acceptance needs nobody to look


class Comparing:
    """An observer that compares scores."""

    needs_scores = True

    def __call__(self, verdict: Verdict, messages: Any) -> None:
        assert verdict.cost.saved == 0


def with_candidates() -> Callable[[Verdict], Any]:
    def handler(verdict: Verdict) -> None:
        return None

    handler.candidates = type("Candidates", (), {"needs_samples": True})()  # type: ignore[attr-defined]
    return handler


@pytest.mark.parametrize(
    ("conflict", "reason"),
    [
        ({"on_verdict": Comparing(), "on_abstain": "message"}, "compares scores"),
        ({"on_abstain": with_candidates()}, "calibrated list of answers"),
    ],
)
def test_what_needs_all_samples_gets_them_and_cannot_be_combined_with_on(conflict: Any, reason: str) -> None:
    model = chat("answer")
    settings: dict[str, Any] = {"artifact": exact(model, threshold=0.5), "exempt": ["balance", "transfer", "close"]}
    ask(model, SPREAD, GuardrailMiddleware(**settings, **conflict))
    assert model.made == 1 + N
    with pytest.raises(UsageError, match=f'{reason}.*early_stopping="off"'):
        GuardrailMiddleware(**settings, **conflict, early_stopping="on")


def test_an_adaptive_plan_stops_in_agents_too() -> None:
    for question, drawn in ((EQUAL, 4), (SPREAD, 1 + N)):
        model = chat("answer")
        artifact = exact(model, threshold=0.0)
        plan = artifact.plan.model_copy(update={"unanimous_at": 3})
        guard = GuardrailMiddleware(
            artifact.model_copy(update={"plan": plan}),
            exempt=["balance", "transfer", "close"],
            on_abstain="message",
            early_stopping="off",
        )
        ask(model, question, guard)
        assert model.made == drawn


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match='early_stopping must be "auto", "on" or "off"'):
        GuardrailMiddleware(exact(chat("answer"), threshold=0.5), early_stopping="yes")  # type: ignore[arg-type]


def test_judges_are_given_alone_or_by_name() -> None:
    class Own:
        def __init__(self) -> None:
            self.spec = JudgeSpec(name="own", version=1, params={})

        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return [True for _ in pairs]

    judge = Own()
    artifact = exact(chat("answer"), threshold=0.5).model_copy(
        update={"estimator": make("discrete_semantic_entropy", judge=judge).spec}
    )
    forms: list[Any] = [judge, {"own": judge}]
    for form in forms:
        assert GuardrailMiddleware(artifact, judge=form)
    former: dict[str, Any] = {"judges": [judge], "settings": {}}
    for name, value in former.items():
        with pytest.raises(TypeError, match=name):
            GuardrailMiddleware(artifact, **{name: value})
    interrupt: Any = "interrupt"
    with pytest.raises(UsageError, match='on_abstain must be "review"'):
        GuardrailMiddleware(artifact, judge=judge, on_abstain=interrupt)


@pytest.mark.parametrize(("n_unmeasured", "stops"), [(0, True), (5, True), (6, False)])
@pytest.mark.parametrize("setting", ["auto", "on"])
def test_an_agent_stops_early_by_itself_only_where_calibration_could_measure_nearly_all(
    setting: Any, n_unmeasured: int, stops: bool
) -> None:
    model, verdicts = chat("answer"), []
    artifact = exact(model, threshold=0.325)
    data = artifact.data.model_copy(update={"n_questions": 1000, "n_unmeasured": n_unmeasured})
    guard = GuardrailMiddleware(
        artifact.model_copy(update={"data": data}),
        exempt=["balance", "transfer", "close"],
        on_abstain="message",
        early_stopping=setting,
        on_verdict=lambda verdict, messages: verdicts.append(verdict),
    )
    ask(model, SPREAD, guard)
    assert (verdicts[0].cost.saved > 0) == (stops or setting == "on")
