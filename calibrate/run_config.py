"""Settings of `calibrate run`: one YAML file, or flags of the same names. This class is the schema of both."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from guardrail.errors import UsageError, require
from guardrail.types import Frozen

__all__ = ["RunConfig", "load_config"]


class RunConfig(Frozen):
    """Everything `calibrate run` needs. Paths are relative to the current directory."""

    questions: Path = Field(description="Question file (.jsonl or .csv).")
    model: str = Field(description="transformers:PATH_OR_ID, python:MODULE:NAME, or a LangChain name.")
    out: Path = Field(default=Path("calibration"), description="Folder for records, artifact and report.")
    questions_format: str | None = Field(
        default=None, description="Format of the questions, e.g. coqa, medmcqa, triviaqa, squad, hf. Recognised."
    )
    test_questions: Path | None = Field(default=None, description="Question file to test on; replaces test_fraction.")
    test_fraction: float = Field(
        default=0.3, ge=0, lt=1, description="Share of the questions kept out of the fit and tested on; 0 for none."
    )
    estimator: str | None = Field(
        default=None, description="NAME, NAME:JUDGE or NAME:JUDGE:greedy. Default: by kind of question."
    )
    alpha: float = Field(default=0.1, description="Share of wrong answers you accept among those given.")
    rule: str = Field(default="acrc", description="Threshold rule: acrc (the paper's), certified (provable), ...")
    delta: float | None = Field(default=None, description="Failure probability, for rules that have one (0.1).")
    correctness: str | None = Field(
        default=None,
        description="exact, json, numeric, option, token_f1, tool_call, chat_judge. Default: option with options, json "
        "for answers in a format, tool_call with tools and references that are calls, else token_f1.",
    )
    judge_model: str | None = Field(default=None, description="chat_judge: the model that judges, written like model.")
    threshold: float | None = Field(default=None, description="token_f1: smallest F1 that counts as right (0.5).")
    tolerance: float | None = Field(default=None, description="numeric: relative tolerance (1e-6).")
    cluster_by_group: bool = Field(
        default=False,
        description="Groups are conversations, users or documents: split whole, fit on one question each.",
    )
    n: int = Field(default=10, description="Samples for each question.")
    temperature: float = Field(default=0.7, description="Sampling temperature, above 0.")
    top_p: float = Field(default=0.9, description="Nucleus mass.")
    max_tokens: int = Field(default=64, description="Longest answer, in tokens.")
    stop: tuple[str, ...] = Field(default=(), description="Strings that end an answer.")
    tools: Path | None = Field(
        default=None, description="JSON: OpenAI-style tools, or {tools, tool_choice, response_format}."
    )
    seed: int = Field(default=0, description="Seed of the samples and of the split.")
    system: str | None = Field(default=None, description="System message.")
    template: str = Field(default="{question}", description="Human message; {question} stands for the question.")
    option_template: str = Field(default="{label}) {text}", description="One line for each option.")
    max_concurrency: int | None = Field(default=None, ge=1, description="Calls in flight at once (16).")
    batch_size: int | None = Field(default=None, ge=1, description="Questions a batch, for local weights (16).")
    retry_failed: bool = Field(default=False, description="Ask again where the model failed.")
    allow_identical_samples: bool = Field(
        default=False, description="Accept that no question has two different samples."
    )
    splits: int = Field(default=100, ge=0, description="Random splits for the table of rules; 0 leaves it out.")


def load_config(path: str | Path | None, flags: Mapping[str, Any]) -> RunConfig:
    """Settings from a YAML file, overridden by flags.

    Args:
        path: YAML file with the fields of `RunConfig`, or None.
        flags: Values by field name; None means not given.

    Raises:
        UsageError: Not YAML, an unknown name (the nearest is suggested), or a bad value.
    """
    values = _read_yaml(Path(path)) if path is not None else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise UsageError(
                f"{name} is missing. Give --{name.replace('_', '-')}, or '{name}:' in the YAML file."
            ) from error
        raise UsageError(f"{name}: got {first['input']!r}; {first['msg']}. {_description(name)}") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    yaml = require("yaml", extra="calibrate")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no settings file at {path}. Write one, or give flags; `calibrate run --help`.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} must hold settings such as 'questions: questions.jsonl', got {type(found).__name__}")
    for name in found:
        if name not in RunConfig.model_fields:
            near = difflib.get_close_matches(str(name), RunConfig.model_fields, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(RunConfig.model_fields))}."
            raise UsageError(f"{path}: there is no setting {name!r}. {hint}")
    return found


def _description(name: str) -> str:
    field = RunConfig.model_fields.get(name)
    return field.description or "" if field is not None else ""
