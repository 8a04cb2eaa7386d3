"""One calibration item, and the header that all items of a record file have in common."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from guardrail.items.item import Item
from guardrail.items.spec import ITEMS
from guardrail.outcome import EVERY_QUESTION, Scope
from guardrail.prompting import PromptWrapping
from guardrail.sampling.probe import ProbeReport
from guardrail.sampling.replies.ends import is_cut
from guardrail.specs import CorrectnessSpec, ModelIdentity
from guardrail.types import Frozen, SampleSet, SamplingPlan, Uncertainty
from guardrail.uncertainty import EstimatorSpec

from .questions import Question, fingerprint

NO_REFERENCE = "there is no reference"
"""Label detail of an answer that no rule was asked about, because its question has no reference."""


def was_looked_at(label_detail: str) -> bool:
    """Whether the detail of a missing label says that a rule or a person read the answer and could not decide."""
    return label_detail not in ("", NO_REFERENCE)


def refuse_other_lengths(record: Any) -> None:
    """Refuse labels of items that are not as many as the items.

    Args:
        record: A record, or what `calibrate.data.columns` decodes of its line, which has the same fields.

    Raises:
        ValueError: The numbers are named.
    """
    items = record.items
    labels = record.item_labels
    if items is not None and labels is not None and len(items) != len(labels.right):
        raise ValueError(f"{len(labels.right)} labels for {len(items)} items; label each item once")


class ItemLabels(Frozen):
    """Labels of the items of an answer."""

    right: tuple[bool | None, ...]
    """Whether each item is right; None where that cannot be decided, which a fit counts as wrong."""
    n_reference: int | None = Field(default=None, ge=0, exclude_if=lambda count: count is None)
    """Fields of the reference; None where a person labelled."""


class RecordHeader(Frozen):
    """First line of a record file: everything the records have in common."""

    format: Literal[1] = 1
    """Version of this layout."""
    created: str
    """When the file was begun, ISO 8601 in UTC. Not compared on resume."""
    model: ModelIdentity
    """The model that was asked."""
    plan: SamplingPlan
    """How answers were drawn."""
    prompt: PromptWrapping
    """How questions were wrapped into messages."""
    questions_name: str
    """Name of the question file. Not compared on resume."""
    questions_sha256: str
    """Fingerprint of the questions; see `calibrate.data.questions.fingerprint`."""
    n_questions: int
    """Questions in the file."""
    correctness: CorrectnessSpec | None = None
    """The rule that set ``correct``; None before `label`."""
    estimators: dict[str, EstimatorSpec] = Field(default_factory=dict)
    """Every estimator whose scores are stored, by the key used in ``scores``."""
    item_correctness: CorrectnessSpec | None = Field(default=None, exclude_if=lambda spec: spec is None)
    """The rule that labelled items; None before `label`."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Versions that made the file. Not compared on resume."""
    scope: Scope = Field(default=EVERY_QUESTION, exclude_if=lambda scope: not scope.is_drawn)
    """How these records were drawn from a larger scored file to be labelled; without values: all questions."""
    probe: ProbeReport | None = None
    """What a probe of the endpoint showed before it was asked; None for local models. Not compared on resume."""

    @classmethod
    def of(cls, questions: Sequence[Question], **fields: Any) -> RecordHeader:
        """The header of records of these questions that are made now; ``fields`` are the others."""
        return cls(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            questions_sha256=fingerprint(questions),
            n_questions=len(questions),
            packages=package_versions(),
            **fields,
        )

    @property
    def whole_answer_keys(self) -> list[str]:
        """Keys of the scores of whole answers, sorted. Items have a score as well, that of the most certain item."""
        return sorted(set(self.estimators) - {ITEMS})

    def label_rule(self, key: str) -> CorrectnessSpec | None:
        """The rule of the labels that belong to the scores of a key: of whole answers, or of their items."""
        return self.item_correctness if key == ITEMS else self.correctness


class Record(Question):
    """One calibration item: a question with what was drawn for it, its scores and its labels."""

    slots: dict[str, str] | None = None
    """Texts of the prompt's slots beside the question, by name."""
    turns: str | None = None
    """Who speaks in the prompt (`guardrail.prompting.turns_of`); None where that is not known."""
    drawn: SampleSet | None = None
    """What the model answered; None for records imported with scores only."""
    scores: dict[str, Uncertainty] = Field(default_factory=dict)
    """Uncertainty by estimator key."""
    items: tuple[Item, ...] | None = Field(default=None, exclude_if=lambda items: items is None, min_length=1)
    """Items of the primary answer with their uncertainties; None before `score --items`, or if it has none."""
    item_labels: ItemLabels | None = Field(default=None, exclude_if=lambda labels: labels is None)
    """Labels of these items."""
    correct: bool | None = None
    """Whether the primary answer is right; None before `label`, or when it cannot be decided."""
    label_detail: str = ""
    """Why ``correct`` cannot be decided, in words."""

    @model_validator(mode="after")
    def _a_label_for_each_part(self) -> Self:
        refuse_other_lengths(self)
        return self

    @property
    def is_undecided(self) -> bool:
        """Return whether the answer was looked at and could not be called right or wrong; a fit counts it as wrong."""
        return self.correct is None and was_looked_at(self.label_detail) and self.answer is not None

    @property
    def answer(self) -> str | None:
        """Text of the primary answer; None without an answer."""
        return self.drawn.primary.text if self.drawn is not None and self.drawn.primary is not None else None

    @property
    def shown_answer(self) -> str | None:
        """The primary answer for people to read: its text and, as JSON, its tool calls; None without an answer."""
        primary = self.drawn.primary if self.drawn is not None else None
        if primary is None or not primary.tool_calls:
            return None if primary is None else primary.text
        return " ".join(filter(None, (primary.text, primary.judged_part.comparable)))

    @property
    def failed(self) -> bool:
        """Return whether drawing failed."""
        return self.drawn is not None and self.drawn.problem is not None

    @property
    def cut_off(self) -> bool:
        """Return whether the primary answer was cut off, most often at ``max_tokens``: it is not whole."""
        primary = None if self.drawn is None else self.drawn.primary
        return primary is not None and is_cut(primary.finish_reason)

    @property
    def may_be_drawn_again(self) -> bool:
        """Whether drawing failed for a cause that does not depend on the question: a further collection asks it again.

        A guard never draws the others again, so calibration must not either.
        """
        problem = None if self.drawn is None else self.drawn.problem
        return problem is not None and not problem.depends_on_question

    @classmethod
    def of(cls, question: Question, drawn: SampleSet, *, turns: str | None = None) -> Record:
        """A fresh record of a question and what was drawn for it."""
        return cls(**question.model_dump(), drawn=drawn, turns=turns)

    def to_question(self) -> Question:
        """The question alone, as its file has it."""
        return Question(**{name: getattr(self, name) for name in Question.model_fields})


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that can move a number."""
    names = ("acrc-guardrail", "langchain-core", "numpy", "scipy", "torch", "transformers", "openai")
    return {name: installed for name in names if (installed := _version(name)) is not None}


@cache
def _version(package: str) -> str | None:
    """The installed version; looking it up parses the package's metadata."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
