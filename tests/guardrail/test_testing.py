"""The public fakes."""

from __future__ import annotations

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from guardrail.testing import ScriptedChat

PAY = AIMessage("", tool_calls=[{"name": "pay", "args": {"euros": 5}, "id": "call", "type": "tool_call"}])


def after(result: str) -> list[HumanMessage | AIMessage | ToolMessage]:
    return [HumanMessage("Pay 5"), PAY, ToolMessage(result, tool_call_id="call")]


def test_a_script_that_calls_a_tool_ends_an_agents_loop() -> None:
    model = ScriptedChat(script={"Pay 5": [PAY], "paid 5": ["Done."]})
    first = model.invoke("Pay 5")
    assert isinstance(first, AIMessage)
    assert first.tool_calls
    assert model.invoke(after("paid 5")).content == "Done."  # the script names the result
    said = model.invoke(after("refused"))  # it does not: the same call again would never end
    assert isinstance(said, AIMessage)
    assert (said.content, said.tool_calls) == ("refused", [])


def test_a_text_stays_the_answer_after_a_tool_result() -> None:
    assert ScriptedChat(script={"Pay 5": ["No."]}).invoke(after("paid 5")).content == "No."
