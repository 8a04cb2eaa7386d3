"""Labels by a rule: the rule that options name, and printed summaries of labels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.markup import escape

from guardrail.errors import UsageError
from guardrail.notebook import percent
from guardrail.sampling.models import resolve_model

from ...correctness import ChatLabelJudge, CorrectnessRule, default_rule, make_rule
from ...correctness.advice import structured_advice
from ...data.records import GIVEN, RecordFile
from ...evaluation.label_checks import labelled_answers, missed, missed_text
from ...report.facts import describe_spec
from .terminal import console, print_line, shortened

_MEANING = {"stated": ", right if a sentence states a reference"}
"""What the default rule for open questions says, for those who did not choose it."""


def rule_from(file: RecordFile, name: str | None, judge_model: str | None) -> CorrectnessRule:
    """The correctness rule that a user names (`make_rule`), or the default for these questions and answers."""
    cache = judge_cache(file.path)
    if judge_model is not None:
        refuse_mixed(name)
        return ChatLabelJudge(resolve_model(judge_model), cache)
    if name is None:
        return default_rule(file.records, file.header.plan.bindings)
    return make_rule(name, **({"cache": cache} if name.startswith("chat_judge(") else {}))


def judge_cache(records: Path) -> Path:
    """The file with the verdicts of chat_judge on a record file."""
    return records.with_name(f"{records.stem}.judge.sqlite")


def refuse_mixed(name: str | None) -> None:
    """Refuse a judge model together with another rule."""
    if name not in (None, "chat_judge"):
        raise UsageError(f"a judge model is for rule chat_judge alone, got rule {name}. Leave one of them out.")


def print_labels(file: RecordFile) -> None:
    """Print the share of right answers, and why others have no label."""
    spec = file.header.correctness
    assert spec is not None
    labels = [record.correct for record in file.records]
    right = labels.count(True)
    n_labelled = len(labels) - labels.count(None)
    rule = f"Rule {describe_spec(spec.name, spec.params)}{_MEANING.get(spec.name, '')}"
    if n_labelled:
        print_line(f"{rule}: {right} of {n_labelled} answers are right ({percent(right / n_labelled)}).")
    else:
        print_line(f"{rule}: none of {len(labels)} answers got a label, so nothing can be fitted yet.", "yellow")
    where = f"no label in {spec.params['file']}" if "file" in spec.params else "no label yet"
    without = [record for record in file.records if record.correct is None]
    reasons = Counter(
        f"{'undecided' if record.is_undecided else 'not labelled'}: {record.label_detail or where}"
        for record in without
    )
    for reason, count in reasons.most_common(5):
        print_line(f"  {count} {reason}", "yellow")
    undecided = sum(record.is_undecided for record in without)
    if undecided:
        way_out = (
            f"a person or a judge labels them: `calibrate label {file.typed} --undecided --interactive`, or with "
            "--review-store STORE, or --judge-model MODEL, whose labels `fit --human-labels` checks."
        )
        if spec.name == GIVEN:  # a person skipped them
            way_out = "the file of labels has a label for them."
        print_line(f"{undecided} of {len(labels)} answers are undecided and count as wrong until {way_out}", "yellow")


def print_label_checks(file: RecordFile) -> None:
    """Print six labelled answers to read, and wrong answers that contain a reference."""
    spec = file.header.correctness
    assert spec is not None
    if shown := labelled_answers(file.records):
        print_line("Read these: 'wrong' will mean wrong by this rule.")
    for record in shown:
        label, style = ("right", "green") if record.correct else ("wrong", "red")
        references = " | ".join(record.references)
        console.print(
            f"  [{style}]{label}[/{style}]  {escape(shortened(record.shown_answer or ''))}  "
            f"[dim]reference {escape(shortened(references))}, {escape(record.id)}[/dim]",
            highlight=False,
            soft_wrap=True,
        )
    if (misses := missed(file.records, spec.name)) is not None:
        print_line(missed_text(misses, file.typed), "yellow")


def print_structured(file: RecordFile, estimator: str | None = None) -> None:
    """Warn where answers are JSON or tool calls, and the rule (or the estimator's judge) compares words."""
    spec = file.header.correctness
    scores = file.header.estimators.get(estimator or "")
    judge = None if scores is None or scores.judge is None else scores.judge.name
    for sentence in structured_advice(file.records, "" if spec is None else spec.name, judge):
        print_line(sentence, "yellow")
