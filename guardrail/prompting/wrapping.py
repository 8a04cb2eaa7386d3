"""Prompt wrapping: how a question becomes messages, the same way at calibration and at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from pydantic import Field, field_validator, model_validator

from ..errors import ArtifactMismatchError, UsageError
from ..types import Frozen
from .conversation import not_text, question_text, role_of
from .template import Template

if TYPE_CHECKING:
    from langchain_core.prompts import ChatPromptTemplate

WAY_OUT = "Use `guard.prompt | guard`, or calibrate again with the prompt you want."


class PromptWrapping(Frozen):
    """Fixed text around a question: a system message and a template for the human message."""

    system: str | None = None
    """System message, or None for no system message. May hold slots."""
    template: str = "{question}"
    """Human message; ``{question}`` stands for the question (with its options, if any). May hold slots; any other text
    in braces is literal."""
    option_template: str = Field(default="{label}) {text}")
    """One line for each option of a multiple-choice question, appended to the question."""
    slots: tuple[str, ...] = ()
    """Names of what else changes from call to call, e.g. ("context",) for ``{context}`` in system message or template.
    Their place is bound, their content is not, and judges do not read it as part of the question."""
    question_slots: tuple[str, ...] = ()
    """Those of `slots` whose content makes another question, as a document or a user does; a clock does not. A prompt
    with slots must say it, () for none. A question that is asked again gets its first verdict, whatever the other slots
    hold; if a clock counted, each attempt would draw again, and select."""
    other_turns: Literal["refuse", "mark"] = "refuse"
    """The answer of a guard to a conversation whose turns were not calibrated, such as a second question to an artifact
    of single ones: "refuse" raises `TurnsMismatchError`; "mark" gives out what the gate accepts, with a verdict that is
    not accepted (`Reason.OTHER_TURNS`) and names the turns (``verdict.turns``): the promise does not cover it."""

    @field_validator("template")
    @classmethod
    def _one_question(cls, template: str) -> str:
        if template.count("{question}") != 1:
            raise ValueError(f"template must contain {{question}} exactly once, got {template!r}")
        return template

    @model_validator(mode="after")
    def _readable_slots(self) -> Self:
        for name in self.slots:
            if not name.isidentifier() or name == "question" or self.slots.count(name) > 1:
                raise ValueError(f"a slot must have a name of its own, letters and digits, got {self.slots!r}")
            if (self.system or "").count(f"{{{name}}}") + self.template.count(f"{{{name}}}") != 1:
                raise ValueError(f"the slot {{{name}}} must be in the system message or the template, exactly once")
        for each in (Template(self.system or "", self.slots), self._human):
            if "" in each.literals[1:-1]:
                raise ValueError(f"there must be text between two slots, to tell where one ends, got {each.text!r}")
        return self

    @model_validator(mode="after")
    def _declared_slots(self) -> Self:
        if self.slots and "question_slots" not in self.model_fields_set:
            listed = ", ".join(map(repr, self.slots))
            raise ValueError(
                f"the prompt has the slots {listed}: say which of them make another question, as a document or a user "
                f"does and a clock does not. All of them: question_slots=[{listed}]; none: question_slots=[]. A "
                "question that is asked again gets its first verdict, whatever the slots hold that are left out"
            )
        if unknown := sorted(set(self.question_slots) - set(self.slots)):
            raise ValueError(f"question_slots names {unknown}, but the prompt has the slots {sorted(self.slots)}")
        return self

    @property
    def _human(self) -> Template:
        return Template(self.template, ("question", *self.slots))

    def wraps_like(self, other: PromptWrapping) -> bool:
        """Whether both make the same messages: what is declared about slots and turns may differ."""
        declared = {"question_slots", "other_turns"}
        return self.model_dump(exclude=declared) == other.model_dump(exclude=declared)

    def render(
        self, question: str, options: Mapping[str, str] | None = None, slots: Mapping[str, str] | None = None
    ) -> str:
        """Text of the human message for a question, its options (label to text) and its slots (name to text)."""
        lines = [question]
        for label, text in (options or {}).items():
            lines.append(self.option_template.replace("{label}", label).replace("{text}", text))
        return self._human.filled({**self._all(slots), "question": "\n".join(lines)})

    def messages(
        self, question: str, options: Mapping[str, str] | None = None, slots: Mapping[str, str] | None = None
    ) -> list[BaseMessage]:
        """Messages for a question: the system message, if any, and the rendered human message.

        Raises:
            UsageError: A slot without a text, or a text for what is not a slot.
        """
        human = HumanMessage(self.render(question, options, slots))
        if self.system is None:
            return [human]
        return [SystemMessage(Template(self.system, self.slots).filled(self._all(slots))), human]

    def to_prompt(self) -> ChatPromptTemplate:
        """The wrapping as a LangChain prompt of the variable ``question`` and the slots: ``guard.prompt | guard``."""
        from langchain_core.prompts import ChatPromptTemplate  # slow to import, and seldom needed

        human = ("human", self._human.escaped())
        system = [] if self.system is None else [("system", Template(self.system, self.slots).escaped())]
        return ChatPromptTemplate.from_messages([*system, human])

    def check(self, messages: Sequence[BaseMessage], options: Sequence[str] | None = None) -> None:
        """Refuse messages that are not wrapped as at calibration.

        Args:
            messages: What the guard received.
            options: Labels whose lines the question must end with, for artifacts that read options.

        Raises:
            ArtifactMismatchError: The system message differs or is not the first, the last human message does not fit
                the template, or it has no line for each option.
            UsageError: No messages.
        """
        if not messages:
            raise UsageError("there are no messages to answer. Give a question: a text, or at least one message.")
        self._check_system(messages)
        text = question_text(messages)
        values = self._human.values(text)
        if values is None:
            raise ArtifactMismatchError(
                f"the human message does not fit the calibrated template {self.template!r}: received {text[:200]!r}.",
                WAY_OUT,
                public="The text around the question differs from the calibrated one.",
            )
        if options is not None and not self._has_lines_of(options, values["question"]):
            example = self.option_template.replace("{label}", options[0]).replace("{text}", "...")
            raise ArtifactMismatchError(
                f"this artifact was calibrated for questions with the options {tuple(options)}, one line each (like "
                f"{example!r}) after the question; received {text[:200]!r}.",
                "Make the messages with `guard.artifact.prompt.messages(question, {label: text, ...})`, or use an "
                "artifact for open questions.",
                public="The question does not end with one line for each calibrated option.",
            )

    def _check_system(self, messages: Sequence[BaseMessage]) -> None:
        received = [_whole_text(message) for message in messages if role_of(message) == "system"]
        calibrated = [] if self.system is None else [self.system]
        late = bool(received) and role_of(messages[0]) != "system"
        public = None
        if len(received) > len(calibrated):
            public = "An extra message of role system is not in the calibrated prompt."
        elif len(received) < len(calibrated):
            public = "The system message is missing."
        elif late:
            public = "The system message is not the first message."
        elif received and Template(calibrated[0], self.slots).values(received[0]) is None:
            public = "The system message differs from the calibrated one."
        if public is not None:
            after = " after another message" if late else ""
            raise ArtifactMismatchError(
                f"system message differs from calibration: calibrated with {calibrated!r}, received {received!r}"
                f"{after}.",
                WAY_OUT,
                public=public,
            )

    def question_of(self, messages: Sequence[BaseMessage]) -> str:
        """The question for judges: the last human message, or its text for ``{question}`` if the prompt has slots."""
        text = question_text(messages)
        values = self._human.values(text) if self.slots else None
        return text if values is None else values["question"]

    def slots_of(self, messages: Sequence[BaseMessage]) -> dict[str, str]:
        """The texts of the slots in messages that `check` admits, by name."""
        texts: dict[str, str] = {}
        if self.system is not None and messages:
            texts |= Template(self.system, self.slots).values(_whole_text(messages[0])) or {}
        texts |= self._human.values(question_text(messages)) or {}
        return {name: texts[name] for name in self.slots if name in texts}

    def _all(self, slots: Mapping[str, str] | None) -> Mapping[str, str]:
        """The text of each slot."""
        values = slots or {}
        if set(values) != set(self.slots):
            raise UsageError(
                f"the prompt has the slots {self.slots}, got texts for {tuple(values)}. Give each slot one text: "
                "prompt.messages(question, slots={name: text})."
            )
        return values

    def _has_lines_of(self, options: Sequence[str], text: str) -> bool:
        r"""Whether the text is a question followed by one line for each option, in order, as `render` writes them.

        With ``{label}) {text}`` and the options A and B, "Which?\nA) red\nB) blue" is; "Which?\nB) blue" is not.
        """
        end = len(text)  # read from the end, because the text of an option may look like an earlier option
        for label in reversed(options):
            before, _, after = self.option_template.replace("{label}", label).partition("{text}")
            if before.strip():  # "A) red": the sign begins the line
                sign = f"\n{before}"
                start = text.rfind(sign, 0, end)
                option_text = text[start + len(sign) : end]
            else:  # "red (A)": it ends the line
                start = text.rfind(after, 0, end)
                option_text = text[:start].rpartition("\n")[2]
            if start < 0 or not option_text.strip():
                return False
            end = start
        return bool(text[:end].strip())


def _whole_text(message: BaseMessage) -> str:
    """A message's text, or all of its content if that is more than text."""
    return repr(message.content) if not_text(message) else str(message.text)
