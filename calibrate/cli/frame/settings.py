"""Settings of `run` and `collect`: the common ones are flags, all of them stand in one YAML file or in `--set`."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from guardrail.bindings import read_bindings
from guardrail.errors import UsageError, require
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_estimator, items_measure
from guardrail.judges import default_judge
from guardrail.prompting import PromptWrapping
from guardrail.types import MAX_TOKENS, Bindings, Frozen, SamplingPlan
from guardrail.uncertainty import Estimator, Scorer
from guardrail.uncertainty.plan import plan_for
from guardrail.uncertainty.scorer import load_scorer

from ...data.questions import Question, option_labels, slot_names, system_of
from ...scoring.scores import parse_estimator, usual_estimators

__all__ = ["CollectSettings", "ImportedPlan", "RunSettings", "load_settings"]


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


class CollectSettings(Frozen):
    """How questions are asked. Every field is a name for `--set`; the common ones are flags as well."""

    questions_format: str | None = Field(default=None, description="Format of the questions: coqa, medmcqa, hf, ...")
    score: tuple[str, ...] = Field(default=(), description="Scores that will be computed; they decide what is drawn.")
    scorer: tuple[str, ...] = Field(default=(), description="Scores of your own: MODULE:NAME, or an installed name.")
    calls: float | None = Field(default=None, description="Calls for each question, instead of n.")
    items: bool = Field(default=False, description="Work on the items of answers (the fields of their JSON).")
    n: int = Field(default=10, description="Samples for each question.")
    temperature: float = Field(default=0.7, description="Sampling temperature, above 0.")
    top_p: float = Field(default=0.9, description="Nucleus mass.")
    max_tokens: int = Field(default=MAX_TOKENS, description="Longest answer, in tokens.")
    primary: Literal["greedy", "sampled"] = Field(default="greedy", description="How the primary answer is drawn.")
    cut_off: Literal["abstain", "measure"] = Field(
        default="abstain", description="A longer answer: abstain from it, or measure the part like an answer."
    )
    stop: tuple[str, ...] = Field(default=(), description="Strings that end an answer.")
    stop_token_ids: tuple[int, ...] = Field(default=(), description="Tokens that end an answer, for local models.")
    seed: int = Field(default=0, description="Seed of the samples, and of the split of `run`.")
    tools: Path | None = Field(default=None, description="JSON file of the tools, or of tools and answer format.")
    system: str | None = Field(default=None, description="System message.")
    template: str = Field(default="{question}", description="Human message; {question} stands for the question.")
    option_template: str = Field(default="{label}) {text}", description="One line for each option.")
    max_concurrency: int | None = Field(default=None, ge=1, description="Calls in flight at once (16, endpoints 64).")
    batch_size: int | None = Field(default=None, ge=1, description="Questions a batch, for local weights (16).")
    allow_identical_samples: bool = Field(
        default=False, description="Accept that no question has two different samples."
    )
    probe: Literal["auto", "off"] = Field(
        default="auto", description="off: no probe first, for an endpoint with few possible answers."
    )

    @field_validator("score", "scorer", "stop", "stop_token_ids", mode="before", check_fields=False)
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return _listed(value)

    def bindings(self) -> Bindings | None:
        """The tools and the answer format of the file that `tools` names."""
        return None if self.tools is None else read_bindings(self.tools)

    def scorers(self) -> list[Scorer]:
        """The scorers that are named."""
        return [load_scorer(text) for text in self.scorer]

    def plan(self, questions: Sequence[Question]) -> SamplingPlan:
        """Make the plan that the named scores and scorers need, or the default one."""
        labels, bindings = option_labels(questions), self.bindings()
        own = [*(each.estimator for each in self.scorers()), *([_items_estimator()] if self.items else [])]
        usual = usual_estimators(self.calls, options=labels is not None, bindings=bindings)
        names = self._planned_scores() or ([] if own else usual)
        return plan_for(
            [*(parse_estimator(name, judge=default_judge(bindings)) for name in names), *own],
            options=labels,
            n=self.n,
            calls=self.calls,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            cut_off=self.cut_off,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            seed=self.seed,
            bindings=bindings,
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
        return PromptWrapping(
            system=system_of(questions) if self.system is None else self.system,
            template=self.template,
            option_template=self.option_template,
            slots=slot_names(questions),
        )


class RunSettings(CollectSettings):
    """Everything `calibrate run` needs. Paths are relative to the current directory."""

    questions: Path = Field(description="Question file (.jsonl or .csv).")
    model: str = Field(description="transformers:PATH_OR_ID, python:MODULE:NAME, or a LangChain name.")
    out: Path = Field(default=Path("calibration"), description="Folder for records, artifact and report.")
    test_questions: Path | None = Field(default=None, description="Question file to test on; replaces test_fraction.")
    test_fraction: float = Field(
        default=0.3, ge=0, lt=1, description="Share of the questions kept out of the fit and tested on; 0 for none."
    )
    cap: int | None = Field(default=None, ge=1, description="With items: most items of an answer that are ever kept.")
    field_judge: tuple[str, ...] = Field(default=(), description="With items: PATH=JUDGE, e.g. /total=numeric.")
    key_field: tuple[str, ...] = Field(default=(), description="With items: PATH=FIELD, e.g. /items=sku.")
    optional_field: tuple[str, ...] = Field(
        default=(), description="With items: path of a field that an answer may leave out."
    )
    alpha: float = Field(default=0.1, description="Share of wrong answers you accept among those given.")
    rule: str = Field(default="certified", description="Threshold rule.")
    delta: float | None = Field(default=None, description="Failure probability, for rules that have one (0.1).")
    share: float | None = Field(
        default=None, description="Rule certified: share of the questions from which thresholds are tested (0.25)."
    )
    count_repeats: bool = Field(default=False, description="Use every record of a question that is asked repeatedly.")
    correctness: str | None = Field(default=None, description="The rule that labels, as for `label --rule`.")
    judge_model: str | None = Field(default=None, description="The model that labels, written like model.")
    trust_labels: bool = Field(default=False, description="Fit even where the labels look broken.")
    cluster_by_group: bool = Field(
        default=False, description="Groups are conversations, users or documents: split whole, fit on one of each."
    )
    without_failed: bool = Field(default=False, description="Fit although more than 1 % of the questions failed.")
    price: float | None = Field(default=None, ge=0, description="Price of one model call; the run says its cost first.")
    splits: int = Field(default=100, ge=0, description="Random splits for the table of rules; 0 leaves it out.")

    @field_validator("field_judge", "key_field", "optional_field", mode="before")
    @classmethod
    def _one_item_is_a_list(cls, value: Any) -> Any:
        return _listed(value)

    @field_validator("score", "scorer")
    @classmethod
    def _run_fits_one(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 1:
            raise ValueError("`run` fits one score; `score` and `fit` take several")
        return value

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


def _items_estimator() -> Estimator:
    """The estimator that says what items read."""
    # The cap does not matter here: it plays no part in what is drawn.
    return items_estimator(items_measure(json_spec(cap=1)))


def _listed(value: Any) -> Any:
    """One value as a list of one; a list as `--set` takes it, ["a", "b"], is read."""
    if isinstance(value, str) and value.startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return [value]
    return [value] if isinstance(value, str | int) else value


Settings = TypeVar("Settings", bound=Frozen)


def load_settings(
    kind: type[Settings], path: Path | None, flags: Mapping[str, Any], assigned: Sequence[str] = ()
) -> Settings:
    """Settings from a YAML file, overridden by `--set` and by flags.

    Args:
        kind: `RunSettings`, `CollectSettings` or `ImportedPlan`.
        path: YAML file with fields of `RunSettings`, or None.
        flags: Values by field name; None means not given.
        assigned: NAME=VALUE, as given to `--set`.

    Raises:
        UsageError: Not YAML, an unknown name (the nearest is suggested), or a bad value.
    """
    values = {} if path is None else _read_yaml(path)
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set must be NAME=VALUE, got {text!r}. Write for instance --set seed=1.")
        _refuse_unknown(kind, name, "--set")
        values[name] = value
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "missing":
            raise UsageError(
                f"{name} is missing. Give --{name.replace('_', '-')}, or '{name}:' in the YAML file."
            ) from error
        description = kind.model_fields[name].description
        raise UsageError(f"{name}: got {first['input']!r}; {first['msg']}. {description}") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    yaml = require("yaml", extra="calibrate")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no settings file at {path}. Write one, or give flags; `calibrate run --help`.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(settings, dict):
        kind = type(settings).__name__
        raise UsageError(f"{path} must hold settings such as 'questions: questions.jsonl', got {kind}")
    for name in settings:
        _refuse_unknown(RunSettings, str(name), str(path))
    return settings


def _refuse_unknown(kind: type[Frozen], name: str, where: str) -> None:
    known = kind.model_fields
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."
        raise UsageError(f"{where}: there is no setting {name!r}. {hint}")
