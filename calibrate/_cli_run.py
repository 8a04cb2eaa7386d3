"""The command that does everything: run."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from langchain_core.language_models import BaseChatModel

from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import read_bindings
from guardrail.errors import UsageError
from guardrail.judges import default_judge
from guardrail.prompting import PromptWrapping
from guardrail.types import Bindings
from guardrail.uncertainty import Estimator

from . import words
from ._cli_app import app, console, finish, keep_inputs, say
from ._cli_collect import plan_from, tell_collected
from ._cli_fit import tell_verdict
from ._cli_label import label_file, refuse_mixed, rule_from, tell_labels, tell_structured
from ._cli_models import MODEL_HELP, resolve_model
from .collect import collect_records
from .correctness import CorrectnessRule, make_rule
from .datasets import Question, option_labels
from .importing import load_questions
from .pipeline import Groups, fit_artifact, held_out, split
from .progress import bar
from .records import RecordFile, rewrite_records
from .report import compare_rules, write_report
from .run_config import RunConfig, load_config
from .scoring import default_estimator, estimator_key, parse_estimator, score_records
from .thresholds.fit import request_for

__all__ = ["run"]


def run(config: Path | None = None, **flags: Any) -> None:
    """Do everything: collect, score, label, fit, test on questions kept out, report.

    Settings come from a YAML file, from flags of the same names, or both (flags win). Interrupted runs go on where they
    stopped: the same command, the same folder.

    Example: [cyan]calibrate run --questions q.jsonl --model transformers:./weights --alpha 0.1 --out results[/cyan]

    Example: [cyan]calibrate run settings.yaml --alpha 0.05[/cyan]
    """
    settings = load_config(config, flags)
    names = ("records.jsonl", "test-records.jsonl", "artifact.json", "report.html")
    read = (config, settings.questions, settings.test_questions, settings.tools, settings.estimator)
    keep_inputs(read, [settings.out / name for name in names])
    groups: Groups = "cluster" if settings.cluster_by_group else "category"
    questions, test_questions = _parts(settings, groups)
    key = _checked(settings, questions)  # before the model, which may take minutes to load
    model = resolve_model(settings.model)
    records = _records(settings, model, questions, settings.out / "records.jsonl", settings.questions.name)
    tell_structured(records, key)
    test = None
    if test_questions:
        name = (settings.test_questions or settings.questions).name
        test = _records(settings, model, test_questions, settings.out / "test-records.jsonl", name)
    artifact = fit_artifact(
        records, estimator=key, alpha=settings.alpha, rule=settings.rule, delta=settings.delta, groups=groups
    )
    artifact_path = artifact.save(settings.out / "artifact.json")
    tell_verdict(artifact)
    if test is not None:
        say(words.held_out(artifact, held_out(artifact, test.records, key)))
    pages = _report(settings, artifact, key, records, test, _commands(config, settings))
    kept = [file.path for file in (records, test) if file is not None]
    finish([*kept, artifact_path, *pages], f"open {pages[0]} in a browser; calibrate inspect {artifact_path}")


def _parts(settings: RunConfig, groups: Groups) -> tuple[list[Question], list[Question]]:
    questions = _questions(settings.questions, settings.questions_format)
    if settings.test_questions is not None:
        test = _questions(settings.test_questions, settings.questions_format)
        shared = {question.id for question in questions} & {question.id for question in test}
        if shared:
            raise UsageError(
                f"{len(shared)} questions are in both {settings.questions} and {settings.test_questions}, e.g. "
                f"{min(shared)!r}. A test on questions that were fitted on proves nothing: remove them from one file."
            )
        return questions, test
    if not settings.test_fraction:
        return questions, []
    return split(questions, test_fraction=settings.test_fraction, seed=settings.seed, groups=groups)


def _questions(path: Path, format: str | None) -> list[Question]:
    loaded = load_questions(path, format)
    for note in loaded.notes:
        say(note, "yellow")
    return loaded.questions


def _checked(settings: RunConfig, questions: Sequence[Question]) -> str:
    """Key of the estimator, after refusing what would fail only when the model has been asked everything."""
    bindings = None if settings.tools is None else read_bindings(settings.tools)
    estimator = _estimator(settings, bindings, options=option_labels(questions) is not None)
    support = estimator.spec.support
    request_for(settings.rule, alpha=settings.alpha, delta=settings.delta, support=support, options={})
    if settings.judge_model is not None:
        refuse_mixed(settings.correctness, threshold=settings.threshold, tolerance=settings.tolerance)
    elif settings.correctness is not None:
        make_rule(settings.correctness)
    return estimator_key(estimator)


def _estimator(settings: RunConfig, bindings: Bindings | None, *, options: bool) -> Estimator:
    name = settings.estimator or default_estimator(options=options)
    return parse_estimator(name, judge=default_judge(bindings))


def _records(
    settings: RunConfig, model: BaseChatModel, questions: Sequence[Question], path: Path, name: str
) -> RecordFile:
    """Collect, score and label one part; the file on disk is complete afterwards."""
    plan = plan_from(
        questions,
        [settings.estimator] if settings.estimator else (),
        n=settings.n,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        seed=settings.seed,
        tools=settings.tools,
    )
    prompt = PromptWrapping(
        system=settings.system, template=settings.template, option_template=settings.option_template
    )
    with bar(console, f"asking ({path.stem})") as progress:
        done = collect_records(
            questions,
            model,
            plan,
            path,
            prompt=prompt,
            name=name,
            batch_size=settings.batch_size,
            max_concurrency=settings.max_concurrency,
            retry_failed=settings.retry_failed,
            allow_identical_samples=settings.allow_identical_samples,
            progress=progress,
        )
    tell_collected(done)
    estimator = _estimator(settings, plan.bindings, options=plan.options is not None)
    with bar(console, f"scoring ({path.stem})", "records") as progress:

        def change(file: RecordFile) -> RecordFile:
            scored = score_records(file, [estimator], progress=progress)
            rule = _rule(settings, file)
            return label_file(scored, rule)

        file = rewrite_records(path, change)
    tell_labels(file)
    return file


def _rule(settings: RunConfig, file: RecordFile) -> CorrectnessRule:
    return rule_from(
        file,
        settings.correctness,
        threshold=settings.threshold,
        tolerance=settings.tolerance,
        judge_model=settings.judge_model,
        cache=file.path.with_name(f"{file.path.stem}.judge.jsonl"),
    )


def _report(
    settings: RunConfig,
    artifact: CalibrationArtifact,
    key: str,
    records: RecordFile,
    test: RecordFile | None,
    commands: Sequence[str],
) -> list[Path]:
    tested = test.records if test is not None else ()
    evaluation = None
    if settings.splits:
        with bar(console, "comparing rules", "splits") as progress:
            pool = [*records.records, *tested]
            evaluation = compare_rules(artifact, pool, key, splits=settings.splits, progress=progress)
    return write_report(
        settings.out / "report.html",
        artifact,
        records.records,
        estimator=key,
        test=tested,
        evaluation=evaluation,
        commands=commands,
    )


def _commands(config: Path | None, settings: RunConfig) -> list[str]:
    """What to type for the same run: every setting that is not its default, as a flag."""
    flags = []
    for name, field in RunConfig.model_fields.items():
        value = getattr(settings, name)
        if value == field.default or name in ("retry_failed", "max_concurrency", "batch_size"):
            continue
        flag = "--" + name.replace("_", "-")
        for item in value if isinstance(value, tuple) else (value,):
            flags.append(flag if item is True else f"{flag} {shlex.quote(str(item))}")
    same = [] if config is None else [f"# or, as it was run, with settings from {config}"]
    return ["calibrate run " + " ".join(flags), *same]


def _with_flags() -> None:
    """Give `run` one flag for each field of `RunConfig`, so that YAML and flags cannot drift apart."""
    argument = Annotated[
        Path | None, typer.Argument(help="YAML file with settings; see docs/cli.md.", show_default=False)
    ]
    parameters = [
        inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=argument)
    ]
    for name, field in RunConfig.model_fields.items():
        kind: Any = list[str] if name == "stop" else field.annotation
        help_text = MODEL_HELP if name == "model" else _help(name)
        option = Annotated[kind | None, typer.Option(help=help_text, show_default=False)]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}


def _help(name: str) -> str:
    field = RunConfig.model_fields[name]
    text = field.description or ""
    if field.is_required():
        return f"{text} Required, here or in the YAML."
    default = field.default
    return text if default is None or default in (False, ()) else f"{text} [dim]Default: {default}.[/dim]"


_with_flags()
app.command()(run)
