"""Functions of the user's see what was judged and cannot change it: what goes out is what the gate accepted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda

from guardrail import AbstainedError, Guardrail, bindings_for, scorer
from guardrail.guard.abstention import Abstention
from guardrail.prompting import copies_of
from guardrail.sampling.effects import Steps
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.verdict import Verdict

PAID = {"to": "bob", "amount": 5}


def pay(to: str, amount: int) -> None:
    """Pay."""


TOOLS = bindings_for([pay])
MODEL = ScriptedChat(script={"pay": [AIMessage("", tool_calls=[{"name": "pay", "args": PAID, "id": "1"}])]})


def change(verdict: Verdict | None = None, messages: Sequence[BaseMessage] = ()) -> str:
    """What a careless function does to reach the form that it compares."""
    if verdict is not None and verdict.candidate is not None:
        verdict.candidate.tool_calls[0].arguments["to"] = "eve"
    for message in messages:
        message.content = "changed"
    return "no"


@scorer(version=1, higher="certain")
def careless(tool_calls: Any, messages: Any) -> float:
    tool_calls[0].arguments["to"] = "eve"
    change(messages=messages)
    return 1.0


def answered(accepts: bool, asked: HumanMessage, **options: Any) -> AIMessage:
    own = options.get("using", {}).get("scorer")
    estimator = "primary_disagreement" if own is None else own.estimator
    artifact = make_artifact(MODEL, threshold=0.5 if accepts else None, estimator=estimator, n=2, bindings=TOOLS)
    return Guardrail(model=MODEL, artifact=artifact, **options).bind_tools([pay]).invoke([asked])


@pytest.mark.parametrize(
    "option", [{"using": {"scorer": careless}}, {"on_verdict": [change, change]}], ids=["scorer", "on_verdict"]
)
def test_the_call_that_runs_is_the_one_that_was_accepted(option: dict[str, Any]) -> None:
    """The tool ran with arguments that no gate had seen."""
    answer = answered(True, asked := HumanMessage("pay"), **option)
    assert (answer.tool_calls[0]["args"], asked.content) == (PAID, "pay")


class Handler:
    """A handler of whole abstentions."""

    def __call__(self, verdict: Verdict) -> None: ...

    def steps(self, abstention: Abstention, kept: AIMessage | None = None) -> Steps[str]:
        yield from ()
        return change(abstention.verdict, abstention.messages)


@pytest.mark.parametrize(
    "path",
    [
        lambda verdict, messages: change(verdict, messages),
        Handler(),
        RunnableLambda(partial(change, None)),
    ],
    ids=["function", "handler", "runnable"],
)
def test_an_abstention_path_changes_neither_the_conversation_nor_the_verdict(path: Any) -> None:
    """The caller's own messages, which go on in an agent's state, were changed in place."""
    verdicts: list[Verdict] = []
    answered(False, asked := HumanMessage("pay"), on_abstain=path, on_verdict=lambda each, _: verdicts.append(each))
    assert asked.content == "pay"


def test_the_wording_of_an_abstention_does_not_change_its_error() -> None:
    """Applications show the candidate of `AbstainedError.verdict` to people who decide about it."""

    with pytest.raises(AbstainedError, match="no") as caught:
        answered(False, HumanMessage("pay"), on_abstain="raise", abstain_message=change)
    assert caught.value.verdict.candidate is not None
    assert caught.value.verdict.candidate.tool_calls[0].arguments == PAID


def test_a_reviewer_approves_what_was_judged(tmp_path: Path) -> None:
    """Names and metadata of an item come from the user's functions; the item must hold what the model gave."""
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")

    def about(verdict: Verdict, messages: Sequence[BaseMessage]) -> dict[str, Any]:
        change(verdict, messages)
        return {}

    with review.ReviewStore(tmp_path / "reviews.db") as store:
        hook = review.ticket(store, key=lambda *given: str(about(*given)), metadata=about)
        answered(False, HumanMessage("pay"), on_abstain=hook)
        (item,) = store.items()
    assert item.content.candidate.tool_calls[0].arguments == PAID
    assert (item.content.question, item.content.messages[0]["content"]) == ("pay", "pay")


def test_an_auditor_labels_what_was_given_out(tmp_path: Path) -> None:
    """Otherwise the estimate of the error rate is about calls that no gate accepted."""
    review = pytest.importorskip("guardrail.review", reason="the `review` extra is not installed")
    with review.ReviewStore(tmp_path / "reviews.db") as store:
        audit = review.audit_sample(store, rate=1.0, key=lambda verdict, messages: change(verdict, messages))
        answered(True, HumanMessage("pay"), on_verdict=audit)
        (item,) = store.items()
    assert item.content.candidate.tool_calls[0].arguments == PAID
    assert item.content.messages[0]["content"] == "pay"


def test_what_no_model_reads_is_not_copied() -> None:
    """An artifact of a tool may be a table of gigabytes, or a connection, which cannot be copied."""
    connection = threading.Lock()  # it cannot be copied
    (copied,) = copies_of([ToolMessage("3 rows", tool_call_id="1", artifact=connection)])
    assert isinstance(copied, ToolMessage)
    assert (copied.artifact, copied.content) == (connection, "3 rows")
