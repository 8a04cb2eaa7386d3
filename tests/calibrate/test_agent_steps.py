"""From recorded conversations to artifacts for an agent's decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from calibrate import collect_records, make_rule, read_questions, read_records
from calibrate.agent_steps import fit_action, split_by_action, steps_of
from calibrate.correctness import ToolCalls, label_records
from calibrate.data.questions import Question
from calibrate.data.records import Record
from guardrail.bindings import bindings_for
from guardrail.errors import RecordError, UsageError
from guardrail.judges import ToolCallJudge
from guardrail.prompting import PromptWrapping
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, ToolCall
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.plan import plan_for

SYSTEM = "You are the bank's assistant."


def transfer(to: str, amount: int) -> str:
    """Send money."""
    return ""


def balance() -> str:
    """Read the balance."""
    return ""


def calling(name: str, **args: Any) -> AIMessage:
    return AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": "c1", "type": "tool_call"}])


CONVERSATION: list[BaseMessage] = [
    SystemMessage(SYSTEM),
    HumanMessage("how much is there?"),
    calling("balance"),
    ToolMessage("100", tool_call_id="c1"),
    AIMessage("100"),
    HumanMessage("send bob 5"),
    calling("transfer", to="bob", amount=5),
]


def test_a_conversation_becomes_one_step_for_each_decision() -> None:
    steps = steps_of(CONVERSATION, group="c")
    assert [step.references for step in steps] == [
        ('[{"arguments":{},"name":"balance"}]',),
        ("100",),
        ('[{"arguments":{"amount":5,"to":"bob"},"name":"transfer"}]',),
    ]
    assert [len(step.messages or ()) for step in steps] == [1, 3, 5]
    assert [message.type for message in steps[1].messages_in(PromptWrapping(system=SYSTEM))] == [
        "system",
        "human",
        "ai",
        "tool",
    ]
    assert steps[0].question == "how much is there?"
    assert steps[2].question.splitlines()[1:] == [
        'ai: [{"arguments":{},"name":"balance"}]',
        "tool: 100",
        "ai: 100",
        "human: send bob 5",
    ]


@pytest.mark.parametrize(("amount", "correct"), [(5, False), (6, None)])
def test_of_a_call_that_was_not_rejected_nobody_said_whether_it_is_right(amount: int, correct: bool | None) -> None:
    asked = Question(id="q", question="pay bob", rejected=('{"name": "transfer", "arguments": {"amount": 5}}',))
    sample = Sample(text="", tool_calls=(ToolCall(name="transfer", arguments={"amount": amount}),))
    record = Record.of(asked, SampleSet(question="pay bob", primary=sample))
    assert [labelled.correct for labelled in label_records([record], ToolCalls())] == [correct]


ASKED = [{"role": "user", "content": "send bob 5"}]
CALLED = {"id": "c1", "type": "function", "function": {"name": "balance", "arguments": "{}"}}
READ = {"role": "tool", "tool_call_id": "c1", "content": "100"}


def in_file(folder: Path, **row: Any) -> list[Question]:
    path = folder / "steps.jsonl"
    path.write_text(json.dumps({"references": ["x"], **row}), encoding="utf-8")
    return read_questions(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [{"role": "nobody", "content": "x"}]}, "'messages'"),
        ({"messages": [*ASKED, {**READ, "tool_call_id": None}]}, "'messages'"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [CALLED]}]}, "cut a log before the answer"),
        ({"messages": ASKED, "references": [{"name": "transfer"}, 5]}, "'references'"),
    ],
)
def test_a_malformed_step_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"jsonl:1: .*{message}"):
        in_file(tmp_path, **row)


def test_a_step_in_a_question_file_is_that_of_the_conversation(tmp_path: Path) -> None:
    """Otherwise what was collected from one would be asked again from the other."""
    called = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
    asked = {"role": "user", "content": "how much is there?"}
    (step,) = in_file(tmp_path, messages=[asked, called, READ], references="100", group="c")
    assert step == steps_of(CONVERSATION, group="c")[1]


def test_a_list_of_calls_is_one_reference(tmp_path: Path) -> None:
    two = [{"name": "balance", "arguments": {}}, {"name": "transfer", "arguments": {"to": "bob", "amount": 5.0}}]
    canonical = '[{"arguments":{},"name":"balance"},{"arguments":{"amount":5,"to":"bob"},"name":"transfer"}]'
    assert in_file(tmp_path, messages=ASKED, references=two)[0].references == (canonical,)
    balance_alone = '[{"arguments":{},"name":"balance"}]'
    assert in_file(tmp_path, messages=ASKED, references=[two, two[0]])[0].references == (canonical, balance_alone)


def test_steps_become_an_artifact_for_each_action(tmp_path: Path) -> None:
    script: dict[str, list[Any]] = {}
    steps = []
    for k in range(40):
        messages = [HumanMessage(f"send bob {k}")]
        right = k % 4 != 0
        sent = calling("transfer", to="bob", amount=k if right else k + 100)
        script[f"send bob {k}"] = [sent, sent, sent if right else calling("transfer", to="bob", amount=k)]
        steps += steps_of([*messages, calling("transfer", to="bob", amount=k)], group=str(k))
    script["how much?"] = [calling("balance")]
    script["hello"] = ["Hi.", "Hi.", "Hello."]
    steps += steps_of([HumanMessage("how much?"), calling("balance")], group="b")
    steps += steps_of([HumanMessage("hello"), AIMessage("Hi!")], group="h")
    model = ScriptedChat(script=script)
    plan = plan_for([make("self_consistency")], n=4, bindings=bindings_for([transfer, balance]))
    path = tmp_path / "steps.records.jsonl"
    collected = collect_records(steps, model, plan, path, prompt=PromptWrapping(system=SYSTEM))
    assert (collected.n_drawn, collected.n_failed) == (42, 0)
    assert collect_records(steps, model, plan, path, prompt=PromptWrapping(system=SYSTEM)).n_drawn == 0  # resumed
    parts = split_by_action(path, exempt=["balance"])
    assert {name: len(read_records(part).records) for name, part in parts.items()} == {"answer": 1, "transfer": 40}
    assert read_records(parts["transfer"]).header.n_questions == 40
    estimator = make("self_consistency", judge=ToolCallJudge())
    artifact = fit_action(parts["transfer"], estimator, alpha=0.1, rule="acrc")
    assert sum(record.correct is False for record in read_records(parts["transfer"]).records) == 10
    assert artifact.threshold == 0.0  # all agree; the wrong ones are those that do not
    assert artifact.plan.bindings == bindings_for([transfer, balance])
    assert artifact.prompt.system == SYSTEM
    # Another fit on the labels of the part is counted; the same scores under another name are the same fit.
    same = fit_action(parts["transfer"], make("primary_disagreement", judge=ToolCallJudge()), alpha=0.1, rule="acrc")
    assert same.spent == artifact.spent
    second = fit_action(parts["transfer"], estimator, alpha=0.2, rule="acrc")
    assert second.spent is not None
    assert (second.spent.fits, second.spent.delta) == (2, 0.0)  # rule acrc certifies nothing


def test_calls_of_a_tool_named_answer_are_not_mixed_with_final_answers(tmp_path: Path) -> None:
    """One threshold would be fitted on both, and promise for each what holds for the mixture."""
    model = ScriptedChat(script={"say": [calling("answer", text="x")] * 2, "hello": ["Hi.", "Hi.", "Hello."]})
    steps = [
        *steps_of([HumanMessage("say"), calling("answer", text="x")], group="a"),
        *steps_of([HumanMessage("hello"), AIMessage("Hi.")], group="b"),
    ]
    tool = {"type": "function", "function": {"name": "answer", "parameters": {}}}
    plan = plan_for([make("self_consistency")], n=2, bindings=bindings_for([tool]))
    collect_records(steps, model, plan, tmp_path / "steps.jsonl", prompt=PromptWrapping(system=SYSTEM))
    with pytest.raises(UsageError, match="calls a tool named 'answer'"):
        split_by_action(tmp_path / "steps.jsonl")
    assert list(split_by_action(tmp_path / "steps.jsonl", exempt=["answer"])) == ["answer"]


def test_steps_of_one_conversation_are_not_taken_for_independent_ones(tmp_path: Path) -> None:
    """Unless the caller says otherwise, the fit sees one step of each conversation and the artifact names it."""
    right = {f"send bob {k}": calling("transfer", to="bob", amount=k) for k in range(12)}
    script = {question: [call, call, calling("transfer", to="eve", amount=1)] for question, call in right.items()}
    steps = [
        step
        for k, (question, call) in enumerate(right.items())
        for step in steps_of([HumanMessage(question), call], group=f"conversation {k % 4}")
    ]
    estimator = make("self_consistency", judge=ToolCallJudge())
    plan = plan_for([estimator], n=2, bindings=bindings_for([transfer]))
    path = tmp_path / "steps.records.jsonl"
    collect_records(steps, ScriptedChat(script=script), plan, path)
    artifact = fit_action(path, estimator, alpha=0.4, rule="acrc")
    conversations = tuple(f"conversation {k}" for k in range(4))
    assert tuple(sorted(artifact.calibration.group or ())) == conversations
    assert (artifact.data.n_used, artifact.outcome.n) == (4, 4)
    assert (
        fit_action(path, estimator, alpha=0.4, rule="acrc", groups="category").outcome.n == 12
    )  # only when it is asked for


def test_two_steps_with_one_id_are_refused(tmp_path: Path) -> None:
    step = steps_of(CONVERSATION, group="c")[0]
    with pytest.raises(UsageError, match="distinct id"):
        collect_records([step, step], ScriptedChat(), plan_for([make("self_consistency")]), tmp_path / "r")


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ('[{"arguments":{"a":"1"},"name":"f"}]', '{"name": "f", "arguments": {"a": 1.0}}', True),
        ('[{"arguments":{"a":"1"},"name":"f"}]', "f(1)", False),
        ("f", '{"name": "f", "arguments": {}}', False),
        ("The Answer.", "answer", True),
    ],
)
def test_the_rule_compares_calls_with_calls_and_texts_with_texts(answer: str, reference: str, right: bool) -> None:
    rule = make_rule("tool_call", numbers=True)
    assert rule.label(answer, Question(id="q", question="q", references=(reference,))).correct is right
    assert rule.spec.params == {"numbers": True}
