"""A scripted agent model, its tools and its artifacts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import Field, PrivateAttr

from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.prompting import PromptWrapping, question_text
from guardrail.sampling.calls import SAMPLE_INDEX
from guardrail.testing import ScriptedChat, ended, make_artifact

SYSTEM = "You are the bank's assistant."


@tool
def balance(account: str) -> str:
    """Read the balance of an account."""
    return f"{account} has 100"


@tool
def transfer(to: str, amount: int) -> str:
    """Send money."""
    return f"sent {amount} to {to}"


@tool
def close(account: str) -> str:
    """Close an account."""
    return f"closed {account}"


TOOLS = [balance, transfer, close]


def calls(*requested: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    """A message that calls tools."""
    listed: Any = [
        {"name": name, "args": args, "id": f"m{i}", "type": "tool_call"} for i, (name, args) in enumerate(requested)
    ]
    return AIMessage(content=text, tool_calls=listed)


def sending(amount: int, to: str = "bob") -> AIMessage:
    return calls(("transfer", {"to": to, "amount": amount}))


class AgentChat(ScriptedChat):
    """Like `ScriptedChat`, keyed by the question and the number of tool results since; counts its calls."""

    steps: Mapping[tuple[str, int], Sequence[Any]] = Field(default_factory=dict, repr=False)  # LangChain reprs a model
    _made: Any = PrivateAttr(default_factory=itertools.count)
    _seen: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @property
    def made(self) -> int:
        """Calls so far."""
        return len(self._seen)

    @property
    def seen(self) -> list[dict[str, Any]]:
        """Arguments of the calls so far."""
        return self._seen

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with self._lock:
            self._seen.append(kwargs)
        last_human = max(i for i, message in enumerate(messages) if message.type == "human")
        done = sum(isinstance(message, ToolMessage) for message in messages[last_human:])
        replies = self.steps.get((question_text(messages), done), self.default)
        index = (run_manager.metadata if run_manager else {}).get(SAMPLE_INDEX, -1)
        rest = replies[1:] or replies
        reply = replies[0] if index < 0 else rest[index % len(rest)]
        if isinstance(reply, Exception):
            raise reply
        message = reply.model_copy() if isinstance(reply, AIMessage) else AIMessage(content=reply)
        return ChatResult(generations=[ChatGeneration(message=ended(message))])


class Counter(AgentChat):
    """Never says the same twice: "ans0", "ans1", ..."""

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with self._lock:
            self._seen.append(kwargs)
            number = next(self._made)
        return ChatResult(generations=[ChatGeneration(message=ended(AIMessage(content=f"ans{number}")))])


def artifact_of(
    model: AgentChat,
    *,
    threshold: float | None = 0.5,
    tools: Sequence[Callable[..., Any] | Any] = TOOLS,
    n: int = 4,
    turns: Sequence[str] = ("human", "human,human", "human,ai,human", "human,human,human"),
) -> CalibrationArtifact:
    """An artifact of an agent with these tools; it accepts when nearly all samples agree."""
    prompt = PromptWrapping(system=SYSTEM)
    bindings = bindings_for(tools) if tools else None
    return make_artifact(model, threshold=threshold, prompt=prompt, n=n, bindings=bindings, turns=turns)


UNSURE = AgentChat(steps={("pay bob", 0): [sending(5), *(sending(k) for k in range(4))], ("pay bob", 1): ["Done."]})
SURE = AgentChat(steps={("pay bob", 0): [sending(5)], ("pay bob", 1): ["Done."]})


def fresh(model: AgentChat) -> AgentChat:
    """A model with the same script that nobody has asked yet."""
    return AgentChat(steps=model.steps, name_of_model=model.name_of_model)
