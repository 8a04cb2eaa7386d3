"""The command that does everything: run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from langchain_core.language_models import BaseChatModel

from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS
from guardrail.judges.cache import PairCache
from guardrail.sampling.models import resolve_model
from guardrail.uncertainty import Estimator
from guardrail.uncertainty.combine import FEWEST, ranked_parts

from ..correctness import label_file, make_rule
from ..data.formats.questions import read_questions
from ..data.progress import bar
from ..data.questions import Question
from ..data.records import RecordFile, read_records, rewrite_records
from ..data.split import Groups, split
from ..evaluation.choice import AUTO
from ..evaluation.label_checks import judge_to_look_at, merged, merged_text, refuse_broken
from ..fitting import target_of
from ..items.answers import stored_spec
from ..report import Report
from ..scoring.compute import score_records, supported, uses_models, with_cache
from ..scoring.names import estimator_key
from ..scoring.scores import refuse_failed
from .frame.app import command
from .frame.collecting import ask, asking, judging
from .frame.files import keep_inputs, pair_cache
from .frame.fitting import FitJob, Fitted, fit_by_rule
from .frame.flags import load_settings, with_flags
from .frame.items import ScoreItems, label_by_items, score_by_items
from .frame.labels import judge_cache, print_label_checks, print_labels, refuse_mixed, rule_from
from .frame.next_commands import listed
from .frame.options import SetOption, refuse_with_items
from .frame.settings import RunSettings
from .frame.terminal import console, print_line
from .frame.verdicts import conclude, print_more


@command("run", "calibrating.md#all-at-once")
@with_flags(RunSettings)
def run(
    *,
    config: Annotated[
        Path | None, typer.Argument(help="YAML file of settings, with _ for -; flags win.", show_default=False)
    ] = None,
    assigned: SetOption = None,
    given: dict[str, Any],
) -> None:
    """Do it all: collect, score, label, fit, test on questions kept out, report.

    Example: calibrate run --questions q.jsonl --model transformers:./weights
    Example: calibrate run settings.yaml --alpha 0.05

    The same command continues a run. Exit code 1 if its test refutes the promise.
    """
    _run(config, load_settings(RunSettings, config, given, assigned or ()))


def _run(config: Path | None, settings: RunSettings) -> None:
    names = ("records.jsonl", "test-records.jsonl", "artifact.json", "report.html")
    read = (config, settings.questions, settings.test_questions, settings.tools)
    keep_inputs(read, [settings.out / name for name in names])
    groups: Groups = "cluster" if settings.cluster_by_group else "category"
    questions, test_questions = _splits(settings, groups)
    _refuse_settings(settings, questions)  # before the model, which may take minutes to load
    score = _score_to_fit(settings, questions)
    for line in _forecast(settings, questions, test_questions):
        print_line(line)
    model = resolve_model(settings.model)
    total = len(questions) + len(test_questions)
    records = _records(
        settings, model, _Part("to calibrate", questions, total, settings.questions, settings.records_path)
    )
    if not settings.items:
        print_label_checks(records)
        if not settings.trust_labels:
            refuse_broken(records)
    test = None
    if test_questions:
        source = settings.test_questions or settings.questions
        part = _Part("to test", test_questions, total, source, settings.test_path, like=settings.records_path)
        test = _records(settings, model, part)
    fitted = fit_by_rule(
        FitJob(
            records=(settings.records_path,),
            out=settings.out / "artifact.json",
            alpha=settings.alpha,
            score=(score,),
            rule=settings.rule,
            test=() if test is None else (test.path,),
            cluster_by_group=settings.cluster_by_group,
            count_repeats=settings.count_repeats,
            without_failed=settings.without_failed,
            few=True,
            trust_labels=True,  # they were looked at before the test questions were asked
        )
    )
    if (merges := merged(fitted.opened.part, judge_to_look_at(fitted.artifact.estimator.judge))) is not None:
        print_line(merged_text(merges), "yellow")
    pages = _report(config, settings, fitted)
    print_more(fitted.text)
    record_files = [file.path for file in (records, test) if file is not None]
    usual = f"open {pages[0]} in a browser; calibrate report {listed(fitted.written)}"
    conclude([*record_files, *fitted.written, *pages], fitted.text, usual)


def _report(config: Path | None, settings: RunSettings, fitted: Fitted) -> list[Path]:
    """Write the page about the run, and return its files."""
    opened = fitted.opened
    flags = settings.as_flags(signature(run).parameters.keys(), ("max_concurrency", "batch_size", "price"))
    commands = [f"calibrate run {flags}"]
    if config is not None:
        commands.append(f"# or, as it was run, with settings from {config}")
    test = () if opened.test is None else opened.test.records
    page = Report.of(fitted.artifact, opened.part, opened.key, test, told=(fitted.audited, fitted.text))
    with bar(console, "writing the report", "splits") as progress:
        return page.write(settings.out / "report.html", splits=settings.splits, commands=commands, progress=progress)


_WHOLE_ANSWERS = ("score", "scorer", "correctness", "judge_model", "trust_labels", "calls")
"""Settings that items do not have."""


def _forecast(settings: RunSettings, questions: Sequence[Question], test_questions: Sequence[Question]) -> list[str]:
    """Lines about the calls, the time and the price of each part; answers on file cost nothing again."""
    plan = settings.plan(questions)
    parts = [(questions, settings.records_path), (test_questions, settings.test_path)]
    local = settings.model.startswith("transformers:")
    lines = asking(parts, plan, settings.scorers(), settings, local=local, price=settings.price)
    if not settings.items:  # their scores and labels take no calls
        judged = settings.judge_model is not None or (settings.correctness or "").startswith("chat_judge")
        replies = [judge_cache(path) for _, path in parts] if judged else None
        lines.append(judging(len(questions) + len(test_questions), plan, _estimators(settings, questions), replies))
    return lines


def _splits(settings: RunSettings, groups: Groups) -> tuple[Sequence[Question], Sequence[Question]]:
    """The questions to calibrate on, and those to test on."""
    questions = read_questions(settings.questions, settings.questions_format, require_references=True)
    if settings.test_questions is None:
        if not settings.test_fraction:
            return questions, []
        return split(questions, test_fraction=settings.test_fraction, seed=settings.seed, groups=groups)
    test = read_questions(settings.test_questions, settings.questions_format, require_references=True)
    known = {question.id for question in questions} | {question.asked for question in questions}
    shared = [question.id for question in test if known & {question.id, question.asked}]
    if shared:
        raise UsageError(
            f"{len(shared)} questions are in both {settings.questions} and {settings.test_questions}, e.g. "
            f"{shared[0]!r}. A test on questions that were fitted on proves nothing: remove them from one file."
        )
    return questions, test


def _refuse_settings(settings: RunSettings, questions: Sequence[Question]) -> None:
    """Refuse settings that would otherwise fail only after all calls are paid."""
    settings.plan(questions)
    settings.prompt(questions)
    if settings.items:
        refuse_with_items(**{name: getattr(settings, name) for name in _WHOLE_ANSWERS})
        target_of("item", settings.rule, alpha=settings.alpha, cap=settings.cap or 1)
        return
    target_of("answer", settings.rule, alpha=settings.alpha)
    if settings.judge_model is not None:
        refuse_mixed(settings.correctness)
    elif settings.correctness is not None:
        make_rule(settings.correctness)
    if settings.scorer and (settings.score or settings.calls is not None):
        raise UsageError("--scorer is the score of the run. Leave --score and --calls out.")


def _score_to_fit(settings: RunSettings, questions: Sequence[Question]) -> str:
    """What `fit` takes as its score: the key of one, "auto" for the best one, or "items".

    Raises:
        UsageError: The score ranks questions, and these are too few for the ranks and a fit.
    """
    if settings.items:
        return ITEMS
    if settings.score_name == AUTO:
        return AUTO
    (chosen,) = settings.estimators(questions)
    if ranked_parts(chosen) and len(questions) < 2 * FEWEST:
        raise UsageError(
            f"{estimator_key(chosen)} takes {round(1.1 * FEWEST)} questions for its ranks, which the fit does not use, "
            f"and there are {len(questions)} (of at least {2 * FEWEST}). Ask more questions, or give --calls 1."
        )
    return estimator_key(chosen)


@dataclass(frozen=True, slots=True)
class _Part:
    """The questions of the fit, or of the test."""

    purpose: str  # "to calibrate" or "to test"
    questions: Sequence[Question]
    total: int  # questions of both parts
    source: Path  # the file they are from
    path: Path  # the record file to write
    like: Path | None = None  # for the test: the records of the fit, whose ranks and cap of items hold for it as well


def _records(settings: RunSettings, model: BaseChatModel, part: _Part) -> RecordFile:
    """Collect, score and label the questions of a part; the file on disk is complete afterwards."""
    path = part.path
    title = f"asking {len(part.questions)} of {part.total}, {part.purpose}"
    ask(part.questions, model, path, settings, name=part.source.name, title=title)
    refuse_failed(read_records(path).records, allowed=settings.without_failed)  # before a judge is paid
    if settings.items:
        spec = None if part.like is None else stored_spec(read_records(part.like))
        options = ScoreItems(settings.cap, settings.field_judge, settings.key_field, settings.optional_field)
        score_by_items(path, path, options, spec)
        label_by_items(path, path, None)
        return read_records(path)
    estimators = _estimators(settings, part.questions)
    if uses_models(estimators):  # their verdicts are kept next to the records
        cache = PairCache(pair_cache(path))
        estimators = [with_cache(estimator, cache) for estimator in estimators]
    with bar(console, f"scoring ({path.stem})", "records") as progress:

        def scored_and_labelled(file: RecordFile) -> RecordFile:
            scored = score_records(file, estimators, ranks=part.like, progress=progress)
            rule = rule_from(file, settings.correctness, settings.judge_model)
            return label_file(scored, rule)

        file = rewrite_records(path, path, scored_and_labelled)
    print_labels(file)
    return file


def _estimators(settings: RunSettings, questions: Sequence[Question]) -> Sequence[Estimator]:
    """The estimators to score with: the one of the fit, or all among which it is chosen."""
    return supported(settings.plan(questions)) if settings.score_name == AUTO else settings.estimators(questions)
