"""The vote of imported samples is the vote of a guard that draws the same samples, with any judge."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from calibrate.data.formats.read import import_rows
from calibrate.data.row import RawRow
from calibrate.scoring.compute import score_records
from guardrail import Bindings, Guardrail
from guardrail.judges import make_judge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import make_estimator

QUESTION = "What is the capital of Eritrea?"
WORDS = [
    "Asmara",
    "asmara.",
    " Asmara ",
    "Oslo",
    "",
    "  ",
    QUESTION,
    "The capital of Eritrea is Eritrea.",
    "Not Asmara",
]
NUMBERS = ["18", "18.0", "1,800", "1800", "007", "7", "0.3", "9007199254740993", "9007199254740992", "1e400", "1e500"]
TOOLS = Bindings(tools=({"type": "function", "function": {"name": "pay", "parameters": {}}},))
CALLS = st.builds(
    lambda to, amount, text: {"text": text, "tool_calls": [{"name": "pay", "arguments": {"to": to, "amount": amount}}]},
    st.sampled_from(["al", "bob"]),
    st.sampled_from([1, 1.0, 10**17, 10**17 + 1]),
    st.sampled_from(["", "ok", "Asmara"]),
)
Drawn = str | dict[str, Any]


def reply(drawn: Drawn) -> str | AIMessage:
    """A sample as a model gives it."""
    if isinstance(drawn, str):
        return drawn
    calls = [{"name": call["name"], "args": call["arguments"], "id": "c"} for call in drawn["tool_calls"]]
    return AIMessage(drawn["text"], tool_calls=calls, response_metadata={"finish_reason": "tool_calls"})


@settings(max_examples=80)
@given(
    st.lists(st.sampled_from(WORDS + NUMBERS) | CALLS, min_size=2, max_size=7),
    st.sampled_from(["exact", "text", "numeric", "tool_call"]),
)
def test_a_guard_gives_out_the_vote_that_was_imported(samples: list[Drawn], judge: str) -> None:
    estimator = make_estimator("discrete_semantic_entropy", judge=make_judge(judge))
    imported = import_rows([RawRow("row", {"question": QUESTION, "samples": samples})]).file
    (record,) = score_records(imported, [estimator]).records
    model = ScriptedChat(script={QUESTION: ["the greedy answer", *map(reply, samples)]})
    plan = imported.header.plan.model_copy(update={"bindings": TOOLS})
    artifact = make_artifact(model, estimator=estimator, threshold=99.0, bindings=TOOLS)
    guard = Guardrail(model=model, artifact=artifact.model_copy(update={"plan": plan}))
    verdict = guard.assess(QUESTION)
    assert record.drawn is not None
    assert record.drawn.primary is not None
    (score,) = record.scores.values()
    assert (verdict.uncertainty.value, verdict.uncertainty.reason) == (score.value, score.reason)
    if verdict.uncertainty.value is not None:
        assert verdict.candidate is not None
        assert verdict.candidate.comparable == record.drawn.primary.comparable
