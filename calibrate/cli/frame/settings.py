"""Settings of `run`, `collect` and `import`: the common ones are flags, rare ones stand in a YAML file or `--set`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic_core import PydanticUndefined

from guardrail.bindings import read_bindings
from guardrail.errors import UsageError
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_estimator, items_measure
from guardrail.prompting import PromptWrapping
from guardrail.types import MAX_TOKENS, Bindings, Frozen, Probing, SamplingPlan
from guardrail.uncertainty import Estimator, Scorer
from guardrail.uncertainty.plan import plan_for
from guardrail.uncertainty.scorer import load_scorer

from ...data.questions import Question, option_labels, slot_names, system_of
from ...scoring.names import parse_estimator, usual_estimator
from .flags import Texts, flag, listed
from .options import ASKING, MODEL_HELP, PROMISE, SCORES, WHAT

OTHER_TURNS = "Conversations with turns that were not calibrated: refuse, or mark answers as without the promise."


class ImportedPlan(Frozen):
    """How imported answers were drawn, for `import --set`."""

    temperature: float | None = Field(default=None, description="Temperature of the samples.")
    top_p: float = Field(default=0.9, description="Nucleus mass of the samples.")
    max_tokens: int = Field(default=MAX_TOKENS, description="Longest answer, in tokens.")
    cut_off: Literal["abstain", "measure"] = Field(
        default="abstain", description="An answer that was cut off: abstain from it, or measure it like any other."
    )
    system: str | None = Field(default=None, description="System message that the model was given.")
    template: str = Field(default="{question}", description="Human message; {question} stands for the question.")
    other_turns: Literal["refuse", "mark"] = Field(default="refuse", description=OTHER_TURNS)


class CollectSettings(Frozen):
    """Settings of a collection. Every field is a name for `--set`; the common ones are flags as well (`flag`)."""

    questions_format: str | None = Field(default=None, description="Format of the questions: coqa, medmcqa, ...")
    score: Texts = flag(SCORES, "What will be computed; decides what is drawn.", (), "-s", "NAME")
    scorer: Texts = flag(SCORES, "A score of your own, MODULE:NAME.", (), metavar="NAME")
    calls: float | None = flag(ASKING, "Calls for each question: 1, 1.4, 3, 11.")
    items: bool = flag(SCORES, "Keep or hold back each item (field of JSON).", False)
    n: int = flag(ASKING, "Samples for each question.", 10)
    temperature: float = flag(ASKING, "Of the samples, above 0.", 0.7)
    top_p: float = Field(default=0.9, description="Nucleus mass.")
    max_tokens: int = flag(ASKING, "Longest answer, in tokens.", MAX_TOKENS)
    primary: Literal["greedy", "sampled"] = flag(ASKING, "The answer given, or sampled too.", "greedy", "", "HOW")
    cut_off: Literal["abstain", "measure"] = Field(
        default="abstain", description="A longer answer: abstain from it, or measure the part like an answer."
    )
    stop: Texts = Field(default=(), description="Strings that end an answer.")
    stop_token_ids: Annotated[tuple[int, ...], BeforeValidator(listed)] = Field(
        default=(), description="Tokens that end an answer, for local models."
    )
    seed: int = Field(default=0, description="Seed of the samples, and of the split of `run`.")
    tools: Path | None = flag(ASKING, "JSON: tools, or tools and format.", metavar="FILE")
    system: str | None = flag(ASKING, "System message, or @FILE.")
    template: str = Field(default="{question}", description="Human message; {question} stands for the question.")
    option_template: str = Field(default="{label}) {text}", description="One line for each option.")
    question_slots: Texts | None = Field(
        default=None, description="Slots of the prompt that make another question: documents, users; a clock does not."
    )
    other_turns: Literal["refuse", "mark"] = Field(default="refuse", description=OTHER_TURNS)
    max_concurrency: int | None = Field(default=None, ge=1, description="Calls in flight at once (16, endpoints 64).")
    batch_size: int | None = Field(default=None, ge=1, description="Questions a batch, for local weights (16).")
    allow_identical_samples: bool = Field(
        default=False, description="Accept that no question has two different samples."
    )
    probe: Probing = Field(
        default="auto", description="off: no probe first, for an endpoint with few possible answers."
    )

    def bindings(self) -> Bindings | None:
        """The tools and the answer format of the file that `tools` names."""
        return None if self.tools is None else read_bindings(self.tools)

    def scorers(self) -> list[Scorer]:
        """The scorers that are named."""
        return [load_scorer(text) for text in self.scorer]

    def estimators(self, questions: Sequence[Question]) -> list[Estimator]:
        """The scores and scorers that are named, or the usual score."""
        bindings = self.bindings()
        unnamed = [scorer.estimator for scorer in self.scorers()]
        if self.items:  # the cap plays no part in what is drawn
            unnamed.append(items_estimator(items_measure(json_spec(cap=1))))
        names = self._planned_scores()
        if not names and not unnamed:
            names = [usual_estimator(self.calls, options=option_labels(questions) is not None, bindings=bindings)]
        return [*(parse_estimator(name, bindings=bindings) for name in names), *unnamed]

    def plan(self, questions: Sequence[Question]) -> SamplingPlan:
        """Make the plan that the scores need."""
        return plan_for(
            self.estimators(questions),
            options=option_labels(questions),
            n=self.n,
            calls=self.calls,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            cut_off=self.cut_off,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            seed=self.seed,
            bindings=self.bindings(),
            primary=self.primary,
        )

    def _planned_scores(self) -> Sequence[str]:
        return self.score

    @field_validator("system")
    @classmethod
    def _text_of_file(cls, system: str | None) -> str | None:
        """The system message, or the text of the file after an "@" without its last line end."""
        if system is None or not system.startswith("@"):
            return system
        try:
            return Path(system[1:]).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{system}: the file of the system message cannot be read ({error})") from error

    def prompt(self, questions: Sequence[Question]) -> PromptWrapping:
        """Make the prompt, with a slot for each further field of the questions."""
        declared = {} if self.question_slots is None else {"question_slots": self.question_slots}
        try:
            return PromptWrapping(
                system=system_of(questions) if self.system is None else self.system,
                template=self.template,
                option_template=self.option_template,
                slots=slot_names(questions),
                other_turns=self.other_turns,
                **declared,
            )
        except ValidationError as error:
            raise UsageError(f"{error.errors()[0]['msg'].removeprefix('Value error, ')}.") from error


class RunSettings(CollectSettings):
    """Everything `calibrate run` needs. Paths are relative to the current directory."""

    score: Texts = flag(SCORES, "A score; auto: the best one.", (), "-s", "NAME")
    questions: Path = flag(WHAT, "Question file, .jsonl or .csv.", PydanticUndefined)
    model: str = flag(WHAT, MODEL_HELP, PydanticUndefined, "-m", "MODEL")
    out: Path = flag(WHAT, "Folder.", Path("calibration"), "-o")
    test_questions: Path | None = Field(default=None, description="Question file to test on; replaces test_fraction.")
    test_fraction: float = flag(WHAT, "Share of the questions to test on.", 0.3, ge=0, lt=1)
    cap: int | None = Field(default=None, ge=1, description="With items: most items of an answer that are ever kept.")
    field_judge: Texts = Field(default=(), description="With items: PATH=JUDGE, e.g. /total=numeric.")
    key_field: Texts = Field(default=(), description="With items: PATH=FIELD, e.g. /items=sku.")
    optional_field: Texts = Field(default=(), description="With items: path of a field that an answer may leave out.")
    alpha: float = flag(PROMISE, "Share of wrong answers accepted.", 0.1, "-a")
    rule: str | None = flag(PROMISE, "Rule, as `fit --rule` (certified).")
    count_repeats: bool = Field(default=False, description="Use every record of a question that is asked repeatedly.")
    correctness: str | None = flag(SCORES, "Rule that labels, as `label --rule`.")
    judge_model: str | None = flag(SCORES, "Model that labels, instead of a rule.")
    trust_labels: bool = flag(PROMISE, "Fit on labels that look broken.", False)
    cluster_by_group: bool = flag(PROMISE, "Use one question of each group.", False)
    without_failed: bool = flag(PROMISE, "Fit without questions that failed.", False)
    price: float | None = Field(default=None, ge=0, description="Price of one model call; the run says its cost first.")
    splits: int = Field(default=100, ge=0, description="Random splits for the table of rules; 0 leaves it out.")

    @field_validator("score", "scorer")
    @classmethod
    def _run_fits_one(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 1:
            raise ValueError("`run` fits one score; `score` and `fit` take several")
        return value

    @property
    def records_path(self) -> Path:
        """The records of the fit."""
        return self.out / "records.jsonl"

    @property
    def test_path(self) -> Path:
        """The records of the test."""
        return self.out / "test-records.jsonl"

    @property
    def score_name(self) -> str | None:
        """The score that is named; "auto" for a choice among all."""
        return self.score[0] if self.score else None

    def _planned_scores(self) -> Sequence[str]:
        return [name for name in self.score if name != "auto"]

    def as_flags(self, flags: Collection[str], left_out: Collection[str]) -> str:
        """The settings that are not their defaults, as `run` takes them on the command line."""
        words = []
        fields = type(self).model_fields
        for name in sorted(fields, key=CollectSettings.model_fields.__contains__):  # questions and model first
            value = getattr(self, name)
            if value == fields[name].default or name in left_out:
                continue
            if name not in flags:
                text = json.dumps(list(value)) if isinstance(value, tuple) else str(value)
                words.append(f"--set {shlex.quote(f'{name}={text}')}")
                continue
            flag = "--" + name.replace("_", "-")
            for item in value if isinstance(value, tuple) else (value,):
                words.append(flag if item is True else f"{flag} {shlex.quote(str(item))}")
        return " ".join(words)
