"""The command that does everything: run."""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from langchain_core.language_models import BaseChatModel
from pydantic import Field, ValidationError

from guardrail.artifact import CalibrationArtifact, EstimatorChoice
from guardrail.bindings import read_bindings
from guardrail.errors import UsageError, require
from guardrail.judges import Judge, default_judge
from guardrail.judges.cache import PairCache
from guardrail.models import resolve_model
from guardrail.types import MAX_TOKENS, Bindings, Frozen, SamplingPlan
from guardrail.uncertainty import Estimator
from guardrail.uncertainty.combine import FEWEST, ranked_parts
from guardrail.uncertainty.registry import advice
from guardrail.uncertainty.scorer import load_scorer

from ..correctness import CorrectnessRule, make_rule
from ..data.formats import load_questions
from ..data.progress import bar
from ..data.questions import Question, option_labels
from ..data.records import RecordFile, read_records, rewrite_records
from ..data.split import Groups, Repeats, split
from ..evaluation.audit import audit
from ..evaluation.choice import AUTO, choose_score
from ..evaluation.label_checks import judge_to_look_at, merged_pairs
from ..fitting import Target
from ..items.rules import rule_named
from ..ledger import Ledger, counted
from ..pipeline import fit_artifact
from ..report import compare_rules, write_report
from ..report.sentences import verdict_text
from ..scoring.scores import (
    estimator_key,
    parse_estimator,
    refuse_failed,
    score_records,
    supported,
    uses_models,
    usual_estimators,
    with_cache,
)
from .frame.app import app
from .frame.collecting import CALLS_HELP, CallOptions, CollectOptions, PlanOptions, PromptOptions, ask
from .frame.files import keep_inputs, pair_cache
from .frame.forecast import asking, judging
from .frame.items import ScoreItems, fit_by_items, label_by_items, refuse_with_items, score_by_items
from .frame.labels import (
    label_file,
    print_label_checks,
    print_labels,
    print_merged,
    print_structured,
    refuse_broken,
    refuse_mixed,
    rule_from,
)
from .frame.next_commands import fresh_command, listed
from .frame.options import MODEL_HELP, WITHOUT_FAILED_HELP, declared, flag
from .frame.terminal import console, print_line
from .frame.verdicts import (
    conclude,
    print_choice,
    print_fits,
    print_labels_needed,
    print_ranked,
    print_unread,
    print_verdict,
)

__all__ = ["RunConfig", "load_config", "run"]


# -- Settings of `calibrate run`: one YAML file, or flags of the same names. This class is the schema of both ----------


class RunConfig(Frozen):
    """Everything `calibrate run` needs. Paths are relative to the current directory."""

    questions: Path = Field(description="Question file (.jsonl or .csv).")
    model: str = Field(description="transformers:PATH_OR_ID, python:MODULE:NAME, or a LangChain name.")
    out: Path = Field(default=Path("calibration"), description="Folder for records, artifact and report.")
    questions_format: str | None = Field(
        default=None, description="Format of the questions, e.g. coqa, medmcqa, hf. Recognised."
    )
    test_questions: Path | None = Field(default=None, description="Question file to test on; replaces test_fraction.")
    test_fraction: float = Field(
        default=0.3, ge=0, lt=1, description="Share of the questions kept out of the fit and tested on; 0 for none."
    )
    score: str | None = Field(
        default=None,
        description="NAME, NAME:JUDGE or NAME:JUDGE:greedy; auto compares all on 20 % of the questions, which the fit "
        f"does not use. Default: by kind of question. {' '.join(advice())}",
    )
    scorer: str | None = Field(
        default=None,
        description="A score of your own: MODULE:NAME of a @scorer, or an installed name.",
    )
    items: bool = Field(
        default=False,
        description="Keep or hold back each item of an answer: the fields of its JSON, labelled by the references. "
        "Options of whole answers are then refused.",
    )
    cap: int | None = Field(default=None, ge=1, description="With items: most items of an answer that are ever kept.")
    field_judge: tuple[str, ...] = Field(default=(), description="With items: PATH=JUDGE, e.g. /total=numeric.")
    key_field: tuple[str, ...] = Field(default=(), description="With items: PATH=FIELD, e.g. /items=sku.")
    optional_field: tuple[str, ...] = Field(
        default=(), description="With items: path of a field that an answer may leave out."
    )
    alpha: float = Field(default=0.1, description="Share of wrong answers you accept among those given.")
    rule: str = Field(
        default="certified", description="Threshold rule: certified (proved), acrc (the paper's: on average), ..."
    )
    delta: float | None = Field(default=None, description="Failure probability, for rules that have one (0.1).")
    share: float | None = Field(
        default=None,
        description="Rule certified: share of the questions from which thresholds are tested (0.25), declared before "
        "you see labels: about half of what you expect to be answered.",
    )
    count_repeats: bool = Field(
        default=False, description="Use every record of a question that is asked several times; default: one of each."
    )
    correctness: str | None = Field(
        default=None,
        description="contains, exact, json, numeric, option, stated, token_f1, tool_call, chat_judge, "
        "python:MODULE:NAME (your function); with parameters as 'token_f1(threshold=0.6)'. Default: option with "
        "options, json for answers in a format, tool_call with tools and references that are calls, else stated.",
    )
    judge_model: str | None = Field(default=None, description="chat_judge: the model that judges, written like model.")
    threshold: float | None = Field(default=None, description="token_f1: smallest F1 that counts as right (0.5).")
    tolerance: float | None = Field(default=None, description="numeric: relative tolerance (1e-6).")
    trust_labels: bool = Field(default=False, description="Fit even where the labels look broken.")
    cluster_by_group: bool = Field(
        default=False,
        description="Groups are conversations, users or documents: split whole, fit on one question each.",
    )
    calls: float | None = Field(default=None, description=CALLS_HELP)
    n: int = Field(default=10, description="Samples for each question.")
    temperature: float = Field(default=0.7, description="Sampling temperature, above 0.")
    top_p: float = Field(default=0.9, description="Nucleus mass.")
    max_tokens: int = Field(default=MAX_TOKENS, description="Longest answer, in tokens.")
    primary: Literal["greedy", "sampled"] = Field(
        default="greedy",
        description="How the primary answer is drawn; sampled with temperature 1 for models that take no other.",
    )
    cut_off: Literal["abstain", "measure"] = Field(
        default="abstain", description="A longer answer: abstain from it, or measure the part like an answer."
    )
    stop: tuple[str, ...] = Field(default=(), description="Strings that end an answer.")
    stop_token_ids: tuple[int, ...] = Field(
        default=(), description="Tokens that end an answer, by their ids, for local models."
    )
    tools: Path | None = Field(
        default=None, description="JSON: OpenAI-style tools, or {tools, tool_choice, response_format}."
    )
    seed: int = Field(default=0, description="Seed of the samples and of the split.")
    system: str | None = Field(default=None, description="System message.")
    template: str = Field(default="{question}", description="Human message; {question} stands for the question.")
    option_template: str = Field(default="{label}) {text}", description="One line for each option.")
    max_concurrency: int | None = Field(default=None, ge=1, description="Calls in flight at once (16, endpoints 64).")
    batch_size: int | None = Field(default=None, ge=1, description="Questions a batch, for local weights (16).")
    without_failed: bool = Field(default=False, description=WITHOUT_FAILED_HELP)
    allow_identical_samples: bool = Field(
        default=False, description="Accept that no question has two different samples."
    )
    probe: Literal["auto", "off"] = Field(
        default="auto",
        description="off: do not probe the endpoint first. For one with few possible answers, taken for a cache.",
    )
    price: float | None = Field(
        default=None, ge=0, description="Price of one model call, in any currency; the run says what it costs first."
    )
    splits: int = Field(default=100, ge=0, description="Random splits for the table of rules; 0 leaves it out.")

    def collect_options(self) -> CollectOptions:
        """The settings of the collection."""
        drawing = PlanOptions(
            estimator=None if self.score in (None, AUTO) else [self.score],
            calls=self.calls,
            scorer=None if self.scorer is None else [self.scorer],
            items=self.items,
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            primary=self.primary,
            cut_off=self.cut_off,
            stop=list(self.stop),
            stop_token_ids=list(self.stop_token_ids),
            seed=self.seed,
            tools=self.tools,
        )
        prompt = PromptOptions(self.system, self.template, self.option_template)
        calls = CallOptions(self.max_concurrency, self.batch_size, self.allow_identical_samples, self.probe)
        return CollectOptions(drawing, prompt, calls)


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
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no settings file at {path}. Write one, or give flags; `calibrate run --help`.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(settings, dict):
        kind = type(settings).__name__
        raise UsageError(f"{path} must hold settings such as 'questions: questions.jsonl', got {kind}")
    for name in settings:
        if name not in RunConfig.model_fields:
            near = difflib.get_close_matches(str(name), RunConfig.model_fields, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(RunConfig.model_fields))}."
            raise UsageError(f"{path}: there is no setting {name!r}. {hint}")
    return settings


def _description(name: str) -> str:
    field = RunConfig.model_fields.get(name)
    return field.description or "" if field is not None else ""


def run(config: Path | None = None, **flags: Any) -> None:
    """Do everything: collect, score, label, fit, test on questions kept out, report.

    Settings come from a YAML file, from flags of the same names, or both (flags win). Interrupted runs go on where they
    stopped: the same command, the same folder. Exit code 1 if the questions kept out refute the promise.

    Example: calibrate run --questions q.jsonl --model transformers:./weights --alpha 0.1 --out results

    Example: calibrate run settings.yaml --alpha 0.05
    """
    settings = load_config(config, flags)
    names = ("records.jsonl", "test-records.jsonl", "artifact.json", "report.html")
    read = (config, settings.questions, settings.test_questions, settings.tools, settings.score)
    keep_inputs(read, [settings.out / name for name in names])
    groups: Groups = "cluster" if settings.cluster_by_group else "category"
    if settings.items:
        _run_by_items(settings, groups)
        return
    questions, test_questions = _parts(settings, groups)
    key = _checked(settings, questions)  # before the model, which may take minutes to load; "auto" for auto
    for line in _forecast(settings, questions, test_questions):
        print_line(line)
    model = resolve_model(settings.model)
    path = _records_path(settings)
    records = _records(settings, model, questions, path, settings.questions.name)
    print_structured(records, key)
    print_label_checks(records)
    if not settings.trust_labels:
        refuse_broken(records)
    choice = None
    if key == AUTO:
        chosen = choose_score(records, groups=groups)
        print_choice(chosen)
        key, choice = chosen.estimator, chosen.choice
        records = RecordFile(records.path, records.header, chosen.rest, records.torn)
    judge = judge_to_look_at(records.header.estimators[key].judge, pair_cache(records.path))
    print_merged(None if judge is None else merged_pairs(records.records, judge))
    test = None
    if test_questions:
        name = (settings.test_questions or settings.questions).name
        test = _records(settings, model, test_questions, _test_path(settings), name)
    artifact = _fitted(settings, records, key, groups, choice)
    artifact_path = artifact.save(settings.out / "artifact.json")
    repeats: Repeats = "all" if settings.count_repeats else "once"
    audited = None if test is None else audit(artifact, test.records, key, repeats=repeats)
    tested = [] if test is None else [test.path]
    alone = fresh_command(artifact, key, tested, artifact_path)
    text = verdict_text(artifact, audited, alone, listed([records.path]))
    print_unread(records, key)
    print_ranked(artifact.estimator)
    print_verdict(text)
    print_labels_needed(artifact)
    pages = _report(settings, artifact, key, records, test, _commands(config, settings), alone, judge)
    record_files = [file.path for file in (records, test) if file is not None]
    usual = f"open {pages[0]} in a browser; calibrate report {listed([artifact_path])}"
    conclude([*record_files, artifact_path, *pages], text, usual)


_WHOLE_ANSWERS = (
    *("score", "scorer", "share", "count_repeats", "correctness", "judge_model", "threshold"),
    *("tolerance", "trust_labels", "calls", "splits"),
)
"""Settings that items do not have."""


def _run_by_items(settings: RunConfig, groups: Groups) -> None:
    """The run for items of answers."""
    refuse_with_items(**{name: name in settings.model_fields_set for name in _WHOLE_ANSWERS})
    rule = rule_named(settings.rule if "rule" in settings.model_fields_set else None)  # before all calls are paid
    how = ScoreItems(
        cap=settings.cap,
        field_judge=list(settings.field_judge),
        key_field=list(settings.key_field),
        optional_field=list(settings.optional_field) or None,
    )
    questions, test_questions = _parts(settings, groups)
    options = settings.collect_options()
    both = [(questions, _records_path(settings)), (test_questions, _test_path(settings))]
    plan, local = options.drawing.plan(questions), settings.model.startswith("transformers:")
    for line in asking(both, plan, [], options.calls, local=local, price=settings.price):
        print_line(line)
    model = resolve_model(settings.model)
    files = [path for some, path in both if some]
    spec = None
    for some, path in both[: len(files)]:
        ask(some, model, path, options, name=settings.questions.name, title=f"asking ({path.stem})")
        refuse_failed(read_records(path).records, allowed=settings.without_failed)
        # The spec of the first file holds for the test as well: a cap must not follow from other answers.
        spec = score_by_items(path, path, how, spec)
        label_by_items(path, path, None)
    fit_by_items(
        files[:1],
        settings.out / "artifact.json",
        alpha=settings.alpha,
        delta=settings.delta,
        rule=rule,
        groups=groups,
        test_fraction=0.0,
        test=files[1:],
        seed=settings.seed,
        without_failed=settings.without_failed,
        report=settings.out / "report.html",
    )


def _fitted(
    settings: RunConfig, records: RecordFile, key: str, groups: Groups, choice: EstimatorChoice | None
) -> CalibrationArtifact:
    """Fit, and count the fits on these labels."""
    options = {} if settings.share is None else {"share": settings.share}

    artifact = fit_artifact(
        records,
        estimator=key,
        alpha=settings.alpha,
        rule=settings.rule,
        delta=settings.delta,
        groups=groups,
        choice=choice,
        options=options,
        repeats="all" if settings.count_repeats else "once",
        without_failed=settings.without_failed,
    )
    ledger = Ledger([_records_path(settings)])
    artifact = counted(artifact, ledger, key)
    print_fits(artifact, ledger)
    return artifact


def _forecast(settings: RunConfig, questions: Sequence[Question], test_questions: Sequence[Question]) -> list[str]:
    """Lines about the calls, the time and the price of each part; answers on file cost nothing again."""
    options = settings.collect_options()
    plan, path, test_path = options.drawing.plan(questions), _records_path(settings), _test_path(settings)
    parts = [(questions, path), (test_questions, test_path)]
    local = settings.model.startswith("transformers:")
    judged = settings.judge_model is not None or (settings.correctness or "").startswith("chat_judge")
    replies = [_judge_cache(path), _judge_cache(test_path)] if judged else None
    scorers = options.drawing.scorers()
    return [
        *asking(parts, plan, scorers, options.calls, local=local, price=settings.price),
        judging(len(questions) + len(test_questions), plan, _uncached(settings, plan), replies),
    ]


def _parts(settings: RunConfig, groups: Groups) -> tuple[Sequence[Question], Sequence[Question]]:
    questions = _questions(settings.questions, settings)
    if settings.test_questions is not None:
        test = _questions(settings.test_questions, settings)
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


def _questions(path: Path, settings: RunConfig) -> list[Question]:
    loaded = load_questions(path, settings.questions_format, require_references=True)
    return loaded.questions


def _checked(settings: RunConfig, questions: Sequence[Question]) -> str:
    """Return the key of the estimator; refuse settings that would otherwise fail only after all calls are paid."""
    settings.collect_options().drawing.plan(questions)
    bindings = None if settings.tools is None else read_bindings(settings.tools)
    options = {} if settings.share is None else {"share": settings.share}
    Target.of(settings.rule, alpha=settings.alpha, delta=settings.delta, settings=options)
    if settings.judge_model is not None:
        refuse_mixed(settings.correctness, threshold=settings.threshold, tolerance=settings.tolerance)
    elif settings.correctness is not None:
        make_rule(settings.correctness)
    if settings.scorer is not None and (settings.score is not None or settings.calls is not None):
        raise UsageError("--scorer is the score of the run. Leave --score and --calls out.")
    if settings.score == AUTO:
        return AUTO
    chosen = _estimator(settings, bindings, options=option_labels(questions) is not None)
    if ranked_parts(chosen):
        _refuse_few(chosen, questions)
    return estimator_key(chosen)


def _estimator(settings: RunConfig, bindings: Bindings | None, *, options: bool) -> Estimator:
    if settings.scorer is not None:
        return load_scorer(settings.scorer).estimator
    name = settings.score or usual_estimators(settings.calls, options=options, bindings=bindings)[0]
    return parse_estimator(name, judge=default_judge(bindings))


def _refuse_few(chosen: Estimator, questions: Sequence[Question]) -> None:
    """Refuse a score that ranks questions where these are too few for the ranks and a fit."""
    if len(questions) < 2 * FEWEST:
        raise UsageError(
            f"{estimator_key(chosen)} takes {round(1.1 * FEWEST)} questions for its ranks, which the fit does not use, "
            f"and there are {len(questions)} (of at least {2 * FEWEST}). Ask more questions, or give --calls 1."
        )


def _records(
    settings: RunConfig,
    model: BaseChatModel,
    questions: Sequence[Question],
    path: Path,
    name: str,
) -> RecordFile:
    """Collect, score and label one part; the file on disk is complete afterwards."""
    options = settings.collect_options()
    ask(questions, model, path, options, name=name, title=f"asking ({path.stem})")
    refuse_failed(read_records(path).records, allowed=settings.without_failed)  # before a judge is paid
    estimators = _estimators(settings, options.drawing.plan(questions), path)
    # Test questions are ranked like those of the fit.
    ranks = None if path == _records_path(settings) else _records_path(settings)
    with bar(console, f"scoring ({path.stem})", "records") as progress:

        def scored_and_labelled(file: RecordFile) -> RecordFile:
            scored = score_records(file, estimators, ranks=ranks, progress=progress)
            return label_file(scored, _rule(settings, file))

        file = rewrite_records(path, scored_and_labelled)
    print_labels(file)
    return file


def _estimators(settings: RunConfig, plan: SamplingPlan, records: Path) -> Sequence[Estimator]:
    """The estimators to score with; those that ask a model keep its verdicts next to the records."""
    estimators = _uncached(settings, plan)
    if not uses_models(estimators):
        return estimators
    cache = PairCache(pair_cache(records))
    return [with_cache(estimator, cache) for estimator in estimators]


def _uncached(settings: RunConfig, plan: SamplingPlan) -> Sequence[Estimator]:
    if settings.score == AUTO:
        return supported(plan)
    return [_estimator(settings, plan.bindings, options=plan.options is not None)]


def _records_path(settings: RunConfig) -> Path:
    return settings.out / "records.jsonl"


def _test_path(settings: RunConfig) -> Path:
    return settings.out / "test-records.jsonl"


def _judge_cache(records: Path) -> Path:
    return records.with_name(f"{records.stem}.judge.jsonl")


def _rule(settings: RunConfig, file: RecordFile) -> CorrectnessRule:
    return rule_from(
        file,
        settings.correctness,
        threshold=settings.threshold,
        tolerance=settings.tolerance,
        judge_model=settings.judge_model,
        cache=_judge_cache(file.path),
    )


def _report(
    settings: RunConfig,
    artifact: CalibrationArtifact,
    key: str,
    records: RecordFile,
    test: RecordFile | None,
    commands: Sequence[str],
    alone: str,
    judge: Judge | None,
) -> list[Path]:
    tested = test.records if test is not None else ()
    evaluation = None
    if settings.splits:
        with bar(console, "comparing rules", "splits") as progress:
            evaluation = compare_rules(artifact, records.records, key, splits=settings.splits, progress=progress)
    return write_report(
        settings.out / "report.html",
        artifact,
        records.records,
        estimator=key,
        test=tested,
        evaluation=evaluation,
        commands=commands,
        alone=alone,
        judge=judge,
    )


def _commands(config: Path | None, settings: RunConfig) -> list[str]:
    """The commands that repeat the run: every setting that is not its default, as a flag."""
    flags = []
    for name, field in RunConfig.model_fields.items():
        value = getattr(settings, name)
        if value == field.default or name in ("max_concurrency", "batch_size", "price"):
            continue
        flag = "--" + name.replace("_", "-")
        for item in value if isinstance(value, tuple) else (value,):
            flags.append(flag if item is True else f"{flag} {shlex.quote(str(item))}")
    same = [] if config is None else [f"# or, as it was run, with settings from {config}"]
    return ["calibrate run " + " ".join(flags), *same]


_MANY = ("stop", "field_judge", "key_field", "optional_field")
"""Settings that are lists of texts, and flags that may be repeated."""


def _with_flags() -> None:
    """Give `run` one flag for each field of `RunConfig`, so that YAML and flags cannot drift apart."""
    argument = Annotated[
        Path | None, typer.Argument(help="YAML file with the same settings, with _ for -.", show_default=False)
    ]
    flags = [inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=argument)]
    for name, field in RunConfig.model_fields.items():
        many = {"stop_token_ids": list[int], **dict.fromkeys(_MANY, list[str])}
        kind: Any = many.get(name, field.annotation)
        help_text = MODEL_HELP if name == "model" else _help(name)
        flags.append(flag(name, Annotated[kind | None, typer.Option(help=help_text, show_default=False)]))
    declared(run, flags)


def _help(name: str) -> str:
    field = RunConfig.model_fields[name]
    text = field.description or ""
    if field.is_required():
        return f"{text} Required, here or in the YAML."
    default = field.default
    return text if default is None or default in (False, ()) else f"{text} Default: {default}."


_with_flags()
app.command()(run)
