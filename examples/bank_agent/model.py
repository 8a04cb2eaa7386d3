"""A stand-in for a language model, so that the example runs anywhere: it reads requests by rules, and guesses.

It behaves like a real model in the ways that matter here: if a request is clear, all samples are the same call; if it
is not, they differ; and sometimes it is certain and wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool

from examples.bank_agent.bank import CONTACTS
from guardrail.prompting import question_text
from guardrail.sampling.calls import SAMPLE_INDEX
from guardrail.testing import ended

__all__ = ["USUAL", "Teller", "payees", "readings"]

USUAL = (12, 15, 20)
"""Amounts that "the usual" may mean."""
MEMOS = ("as you asked", "by request", "your transfer", "sent for you")
HELP = "I can tell you the balance, and send money to your contacts."


def payees(text: str) -> list[str]:
    """Return the contacts a request may mean: by full name, by first name, or by their relation to the customer."""
    if "landlord" in text:
        return ["dana.fox"]
    full = [name for name, shown in CONTACTS.items() if shown.lower() in text]
    return full or [name for name in CONTACTS if re.search(rf"\b{name.split('.')[0]}\b", text)]


def readings(request: str) -> list[dict[str, Any]]:
    """Return the ways to read a request for a transfer; none if the request is about something else."""
    text = request.lower()
    number = re.search(r"\b\d+\b", text)
    amounts = [int(number[0])] if number else list(USUAL) if "usual" in text else []
    return [{"to": payee, "amount": amount} for payee in payees(text) for amount in amounts]


class Teller(BaseChatModel):
    """The stand-in."""

    guardrail_trusted: ClassVar[bool] = True
    """The model is not an endpoint, so a guard does not probe it."""

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        index = (run_manager.metadata if run_manager else {}).get(SAMPLE_INDEX, -1)
        return ChatResult(generations=[ChatGeneration(message=ended(self._reply(messages, index)))])

    def _reply(self, messages: Sequence[BaseMessage], index: int) -> AIMessage:
        last, request = messages[-1], question_text(messages)
        if isinstance(last, ToolMessage):
            result = str(last.text)
            return AIMessage("All right, nothing was sent." if last.status == "error" else result.splitlines()[-1])
        if re.search(r"balance|how much", request.lower()):
            return _call("balance", {})
        ways = readings(request)
        if not ways:
            return AIMessage(HELP)
        chance = random.Random(f"{request}/{index}")
        chosen = ways[0] if index < 0 else chance.choice(ways)
        return _call("transfer", {**chosen, "memo": chance.choice(MEMOS)})

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Pass the tools along; the rules decide which is called."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_provider": "example", "ls_model_name": "teller", "ls_model_type": "chat"}

    @property
    def _llm_type(self) -> str:
        return "teller"


def _call(name: str, args: dict[str, Any]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": "call", "type": "tool_call"}])
