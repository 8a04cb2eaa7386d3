"""Prompt wrapping: how a question becomes messages, the same way at calibration and at run time.

The wrapping is part of the artifact. The guard never rewrites what it is given; it checks that the messages it
receives look like the wrapping says and refuses them otherwise, naming both sides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from pydantic import Field, field_validator

from .errors import ArtifactMismatchError, UsageError
from .types import Frozen

__all__ = ["PromptWrapping", "question_text"]


def question_text(messages: Sequence[BaseMessage]) -> str:
    """Text of the last human message, or of the last message when there is none: what judges read as the question."""
    human = [message for message in messages if isinstance(message, HumanMessage)]
    chosen = human[-1] if human else messages[-1]
    return str(chosen.text)


class PromptWrapping(Frozen):
    """Fixed text around a question: a system message and a template for the human message."""

    system: str | None = None
    """System message, or None for no system message."""
    template: str = "{question}"
    """Human message; ``{question}`` stands for the question (with its options, if any). No other placeholder."""
    option_template: str = Field(default="{label}) {text}")
    """One line for each option of a multiple-choice question, appended to the question."""

    @field_validator("template")
    @classmethod
    def _one_question(cls, template: str) -> str:
        if template.count("{question}") != 1:
            raise ValueError(f"template must contain {{question}} exactly once, got {template!r}")
        return template

    def render(self, question: str, options: Mapping[str, str] | None = None) -> str:
        """Text of the human message for a question and its options (label to text)."""
        lines = [question]
        for label, text in (options or {}).items():
            lines.append(self.option_template.replace("{label}", label).replace("{text}", text))
        return self.template.replace("{question}", "\n".join(lines))

    def messages(self, question: str, options: Mapping[str, str] | None = None) -> list[BaseMessage]:
        """Messages for a question: the system message, if any, and the rendered human message."""
        human = HumanMessage(self.render(question, options))
        return [human] if self.system is None else [SystemMessage(self.system), human]

    def to_prompt(self) -> ChatPromptTemplate:
        """The same wrapping as a LangChain prompt with one variable, ``question``: ``guard.prompt | guard``."""

        def escaped(text: str) -> str:
            return text.replace("{", "{{").replace("}", "}}")

        before, after = self.template.split("{question}")
        human = ("human", escaped(before) + "{question}" + escaped(after))
        system = [] if self.system is None else [("system", escaped(self.system))]
        return ChatPromptTemplate.from_messages([*system, human])

    def check(self, messages: Sequence[BaseMessage], options: Sequence[str] | None = None) -> None:
        """Refuse messages that are not wrapped as at calibration.

        Args:
            messages: What the guard received.
            options: Labels whose lines the question must end with, for artifacts that read options.

        Raises:
            ArtifactMismatchError: The system message differs, the last human message does not fit the template, or it
                has no line for each option.
            UsageError: No messages.
        """
        if not messages:
            raise UsageError("there are no messages to answer. Give a question: a text, or at least one message.")
        systems = [str(message.text) for message in messages if isinstance(message, SystemMessage)]
        expected = [] if self.system is None else [self.system]
        if systems != expected:
            raise ArtifactMismatchError(
                f"system message differs from calibration: calibrated with {expected!r}, received {systems!r}. "
                "Use `guard.prompt | guard`, or calibrate again with the prompt you want."
            )
        before, after = self.template.split("{question}")
        text = question_text(messages)
        found = re.fullmatch(re.escape(before) + r"(.*)" + re.escape(after), text, flags=re.DOTALL)
        if found is None:
            raise ArtifactMismatchError(
                f"the human message does not fit the calibrated template {self.template!r}: received {text[:200]!r}. "
                "Use `guard.prompt | guard`, or calibrate again with the prompt you want."
            )
        if options is not None and not self._has_lines_of(options, found[1]):
            example = self.option_template.replace("{label}", options[0]).replace("{text}", "...")
            raise ArtifactMismatchError(
                f"this artifact was calibrated for questions with the options {tuple(options)}, one line each (like "
                f"{example!r}) after the question; received {text[:200]!r}. Make the messages with "
                "`guard.artifact.prompt.messages(question, {label: text, ...})`, or use an artifact for open questions."
            )

    def _has_lines_of(self, options: Sequence[str], text: str) -> bool:
        """Whether the text is a question followed by one line for each option, in order, as `render` writes them."""
        end = len(text)
        for label in reversed(options):
            before, _, after = self.option_template.replace("{label}", label).partition("{text}")
            mark = f"\n{before}" if before.strip() else after
            place = text.rfind(mark, 0, end)
            own_text = text[place + len(mark) : end] if before.strip() else text[:place].rpartition("\n")[2]
            if place < 0 or not own_text.strip():
                return False
            end = place
        return bool(text[:end].strip())
