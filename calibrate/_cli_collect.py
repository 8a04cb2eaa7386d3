"""Commands that make records: collect, score, label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from guardrail.errors import UsageError
from guardrail.prompting import PromptWrapping
from guardrail.sampling import plan_for
from guardrail.types import SamplingPlan

from ._cli_app import app, console, finish, say, table
from ._cli_models import MODEL_HELP, resolve_model
from .collect import Collected, collect_records
from .correctness import CorrectnessRule, available_rules, default_rule, label_records, make_rule
from .datasets import Question, option_labels, read_questions
from .labels import apply_labels, read_labels
from .progress import bar
from .records import RecordFile, read_records, rewrite_records, write_records
from .scoring import default_estimator, parse_estimator, score_records, supported
from .words import percent, spec_words

__all__ = [
    "changed_file",
    "collect",
    "label",
    "plan_from",
    "rule_from",
    "score",
    "tell_collected",
    "tell_labels",
    "tell_scores",
]

RecordsArgument = Annotated[Path, typer.Argument(help="Record file that `collect` wrote.")]


@app.command()
def collect(
    questions: Annotated[
        Path, typer.Argument(help="Questions: .jsonl or .csv with question, references[, options, group].")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Record file; resumed if it exists.")] = Path(
        "records.jsonl"
    ),
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", "-e", help="What will be computed; decides what is drawn. May be repeated."),
    ] = None,
    n: Annotated[int, typer.Option(help="Samples for each question.")] = 10,
    temperature: Annotated[float, typer.Option(help="Sampling temperature, above 0.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus mass.")] = 0.9,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 64,
    stop: Annotated[list[str] | None, typer.Option(help="String that ends an answer. May be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Base seed of the samples.")] = 0,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    template: Annotated[str, typer.Option(help="Human message; {question} stands for the question.")] = "{question}",
    option_template: Annotated[
        str, typer.Option(help="One line for each option: {label}, {text}.")
    ] = "{label}) {text}",
    max_concurrency: Annotated[int | None, typer.Option(help="Calls in flight at once (default 16).", min=1)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Questions a batch, for local weights (default 16).", min=1)
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask again where the model failed.")] = False,
    no_references: Annotated[bool, typer.Option("--no-references", help="Allow questions without references.")] = False,
    allow_identical_samples: Annotated[
        bool, typer.Option("--allow-identical-samples", help="Accept that no question has two different samples.")
    ] = False,
) -> None:
    """Ask the model every question: one greedy answer and n samples each.

    Every answer is on disk before the next is waited for. Stop it (or kill it) whenever you like: the same command goes
    on where it stopped, without loss or duplicate.

    Example: [cyan]calibrate collect questions.jsonl --model transformers:./weights --out records.jsonl[/cyan]
    """
    asked = read_questions(questions, require_references=not no_references)
    plan = plan_from(
        asked,
        estimator or (),
        n=n,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=stop or (),
        seed=seed,
    )
    prompt = PromptWrapping(system=system, template=template, option_template=option_template)
    with bar(console, "asking") as progress:
        done = collect_records(
            asked,
            resolve_model(model),
            plan,
            out,
            prompt=prompt,
            name=questions.name,
            batch_size=batch_size,
            max_concurrency=max_concurrency,
            retry_failed=retry_failed,
            allow_identical_samples=allow_identical_samples,
            progress=progress,
        )
    tell_collected(done)
    finish([out], f"calibrate score {out}")


@app.command()
def score(
    records: RecordsArgument,
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", "-e", help="NAME, NAME:JUDGE or NAME:JUDGE:greedy. May be repeated. Default: all."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: the record file itself.")] = None,
) -> None:
    """Compute uncertainties from what was drawn. The model is not called.

    Example: [cyan]calibrate score records.jsonl -e semantic_entropy -e semantic_entropy:exact[/cyan]
    """
    named = [parse_estimator(name) for name in estimator or ()]
    target = out or records
    with bar(console, "scoring", "records") as progress:
        scored = changed_file(
            records, target, lambda file: score_records(file, named or supported(file.header.plan), progress=progress)
        )
    tell_scores(scored)
    finish([target], f"calibrate label {target}")


@app.command()
def label(
    records: RecordsArgument,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(available_rules())}. Default: option if the questions have options, else token_f1."
        ),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="token_f1: smallest F1 that counts as right (0.5).")] = None,
    tolerance: Annotated[float | None, typer.Option(help="numeric: relative tolerance (1e-6).")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels people gave, instead of a rule: .jsonl or .csv with id and correct.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: the record file itself.")] = None,
) -> None:
    """Decide which primary answers are right, by a rule that is stored with the threshold.

    Read some of the labels: "at most 10 % wrong" will mean wrong [italic]by this rule[/italic].

    Example: [cyan]calibrate label records.jsonl --rule token_f1 --threshold 0.5[/cyan]
    """
    target = out or records
    if labels is not None and (rule, threshold, tolerance) != (None, None, None):
        raise UsageError("--labels and a rule exclude each other: give the labels, or how to make them")
    given = read_labels(labels) if labels is not None else None

    def change(file: RecordFile) -> RecordFile:
        if given is not None:
            header = file.header.model_copy(update={"correctness": given.spec})
            return RecordFile(file.path, header, tuple(apply_labels(file.records, given)), file.torn)
        return label_file(file, rule_from(file, rule, threshold=threshold, tolerance=tolerance))

    labelled = changed_file(records, target, change)
    tell_labels(labelled)
    finish([target], f"calibrate fit {target} --alpha 0.1")


def plan_from(
    questions: Sequence[Question],
    estimators: Sequence[str],
    *,
    n: int,
    temperature: float,
    top_p: float,
    max_tokens: int,
    stop: Sequence[str],
    seed: int | None,
) -> SamplingPlan:
    """The plan that gives the named estimators (or the default one) what they need."""
    labels = option_labels(questions)
    names = list(estimators) or [default_estimator(options=labels is not None)]
    return plan_for(
        [parse_estimator(name) for name in names],
        options=labels,
        n=n,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=stop,
        seed=seed,
    )


def rule_from(
    file: RecordFile, name: str | None, *, threshold: float | None = None, tolerance: float | None = None
) -> CorrectnessRule:
    """The correctness rule a user named, or the default for these questions."""
    params = {key: value for key, value in (("threshold", threshold), ("tolerance", tolerance)) if value is not None}
    return make_rule(name or default_rule(file.records).spec.name, **params)


def label_file(file: RecordFile, rule: CorrectnessRule) -> RecordFile:
    """The file with labels, in memory."""
    header = file.header.model_copy(update={"correctness": rule.spec})
    return RecordFile(file.path, header, tuple(label_records(file.records, rule)), file.torn)


def changed_file(source: Path, target: Path, change: Callable[[RecordFile], RecordFile]) -> RecordFile:
    """Change a record file in place, under its lock, or into another file."""
    if source == target:
        return rewrite_records(source, change)
    changed = change(read_records(source))
    write_records(target, changed.header, changed.records)
    return changed


def tell_collected(done: Collected) -> None:
    """How a collection ended."""
    resumed = f" ({done.n_resumed} were there already)" if done.n_resumed else ""
    say(f"{done.n_resumed + done.n_drawn} of {done.n_questions} questions are on file{resumed}.")
    if done.n_failed:
        say(f"{done.n_failed} failed and will abstain. Try them again with --retry-failed.", "yellow")
        for problem, count in sorted(done.problems.items(), key=lambda item: -item[1])[:5]:
            say(f"  {count} x {problem}", "yellow")


def tell_scores(file: RecordFile) -> None:
    """Range of each estimator, and what could not be measured."""
    rows = []
    for key in sorted(file.header.estimators):
        found = [record.scores[key] for record in file.records if key in record.scores]
        values = sorted(score.value for score in found if score.value is not None)
        reasons = Counter(score.reason.value for score in found if score.reason is not None)
        missing = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "0"
        spread = [f"{values[int(q * (len(values) - 1))]:.3g}" for q in (0, 0.5, 1)] if values else ["-", "-", "-"]
        rows.append([key, str(len(values)), *spread, str(len(set(values))), missing])
    columns = ("uncertainty", "n", "lowest", "median", "highest", "values", "not measured")
    console.print(table("Scores (higher is less certain)", columns, rows))


def tell_labels(file: RecordFile) -> None:
    """Share of right answers, and what could not be labelled."""
    spec = file.header.correctness
    assert spec is not None
    labels = [record.correct for record in file.records]
    right, told = labels.count(True), len(labels) - labels.count(None)
    share = percent(right / told if told else 0.0)
    say(f"Rule {spec_words(spec.name, spec.params)}: {right} of {told} answers are right ({share}).")
    reasons = Counter(record.label_detail for record in file.records if record.correct is None)
    for reason, count in reasons.most_common(5):
        say(f"  {count} not labelled: {reason}", "yellow")
