"""Second page: recorded outputs of real large models, to show that this works beyond toy models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from calibrate.correctness import label_records, make_rule
from calibrate.data.progress import bar
from calibrate.data.questions import Question
from calibrate.data.records import Record, RecordFile, RecordHeader
from calibrate.evaluation.evaluate import evaluate
from calibrate.evaluation.results import Evaluation, EvaluationRow
from calibrate.pipeline import fit_artifact
from calibrate.report import write_report
from calibrate.scoring.compute import score_records
from calibrate.scoring.names import parse_estimator
from calibrate.scoring.scores import arrays
from examples.demo.screen import CONSOLE, outcome_line, title
from guardrail import PromptWrapping
from guardrail.judges import normalise
from guardrail.specs import ModelIdentity
from guardrail.types import OptionScores, Sample, SampleSet
from guardrail.uncertainty.plan import plan_for

__all__ = ["DATASETS", "Dataset", "load", "run"]

FOLDER = Path(__file__).resolve().parent.parent / "recorded"
ALPHA = 0.1
RULES = ("acrc", "certified")


@dataclass(frozen=True, slots=True)
class Dataset:
    """One bundled file and how to read it."""

    name: str
    model: str
    file: str
    estimator: str
    correctness: str
    read: Callable[[dict[str, Any]], Record]


def _sampled(row: dict[str, Any]) -> Record:
    """Read a row that has samples only: the answer is the most frequent text, the earliest one on a tie."""
    texts = [str(text) for text in row["samples"]]
    majority = Counter(normalise(text) for text in texts).most_common(1)[0][0]
    answer = next(text for text in texts if normalise(text) == majority)
    question = row.get("question", f"(question {row['id']})")
    drawn = SampleSet(question=question, primary=Sample(text=answer), samples=tuple(Sample(text=t) for t in texts))
    return Record.of(Question(id=row["id"], question=question, references=tuple(row["references"])), drawn)


def _options(row: dict[str, Any]) -> Record:
    """Read a row of option logits: the answer is the likeliest option."""
    scores = OptionScores(labels=tuple(row["options"]), loglikelihoods=tuple(row["options"].values()))
    options = {label: label for label in row["options"]}
    question = f"(image question {row['id']}, {row['group']})"
    drawn = SampleSet(question=question, primary=Sample(text=scores.best), options=scores)
    question_row = Question(
        id=row["id"], question=question, references=(row["reference"],), options=options, group=row["group"]
    )
    return Record.of(question_row, drawn)


DATASETS = (
    Dataset("MMBench", "LLaVA-v1.6-34B", "mmbench-llava-34b-2000.jsonl", "predictive_entropy", "option", _options),
    Dataset("GSM8K", "Codex, 13 prompts", "gsm8k-1319.jsonl", "discrete_semantic_entropy:exact", "numeric", _sampled),
    Dataset("TriviaQA", "20 samples", "triviaqa-500.jsonl", "discrete_semantic_entropy:exact", "token_f1", _sampled),
)


def load(dataset: Dataset) -> RecordFile:
    """Return the records of a bundled file, scored and labelled."""
    path = FOLDER / dataset.file
    records = [dataset.read(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    estimator, rule = parse_estimator(dataset.estimator), make_rule(dataset.correctness)
    first = records[0].drawn
    assert first is not None
    labels = None if first.options is None else first.options.labels
    header = RecordHeader.of(
        [record.to_question() for record in records],
        model=ModelIdentity(provider="recorded", model=dataset.model),
        plan=plan_for([estimator], options=labels, n=len(first.samples) or 10),
        prompt=PromptWrapping(),
        questions_name=dataset.file,
        correctness=rule.spec,
    )
    return score_records(RecordFile(path, header, tuple(label_records(records, rule))), [estimator])


def run(out: Path) -> list[Path]:
    """Evaluate both rules on every file over 100 random splits; fit an artifact on the first file and report on it.

    Args:
        out: Folder for the artifact and the report.

    Returns:
        The report and its pictures.
    """
    title(
        "recorded outputs of real large models",
        f"Half of each file calibrates, the other half tests, 100 times over; alpha = {ALPHA:g}.",
    )
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("data, model", "rule"):
        table.add_column(column, no_wrap=True)
    for column in ("n", "no gate", "AUROC", "wrong (sd)", "answered", "over"):
        table.add_column(column, justify="right", no_wrap=True)
    files = {dataset.name: load(dataset) for dataset in DATASETS}
    for dataset in DATASETS:
        file = files[dataset.name]
        result = _evaluate(dataset, file)
        for cells in _rows(dataset, result):
            table.add_row(*cells)
    CONSOLE.print(table)
    CONSOLE.print(
        "no gate: share of wrong answers; wrong: among answered, mean (sd) over splits; over: share of splits whose "
        "test error exceeds alpha. acrc "
        "aims at alpha on average, so about half of its splits end above. The certificate allows one calibration in "
        "ten to fail; the noise of a finite test half comes on top.",
        style="dim",
    )
    return _report(DATASETS[0], files[DATASETS[0].name], out)


def _report(dataset: Dataset, file: RecordFile, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    artifact = fit_artifact(file, score=dataset.estimator, alpha=ALPHA)
    artifact.save(out / "artifact.json")
    CONSOLE.print(f"\n{dataset.name}, all {len(file.records):,} questions: {outcome_line(artifact.outcome)}")
    return write_report(
        out / "report.html",
        artifact,
        file.records,
        estimator=dataset.estimator,
        splits=100,
        commands=["make demo"],
    )


def _evaluate(dataset: Dataset, file: RecordFile) -> Evaluation:
    scored = arrays(file.records, dataset.estimator)
    with bar(CONSOLE, f"{dataset.name}: 100 splits", unit="splits") as progress:
        return evaluate(
            scored.uncertainty,
            scored.error,
            rules=RULES,
            alphas=[ALPHA],
            n_calibration=len(scored.ids) // 2,
            progress=progress,
        )


def _rows(dataset: Dataset, result: Evaluation) -> Iterator[list[str]]:
    auroc = "none" if result.auroc is None else f"{result.auroc:.3f}"
    name, figures = dataset.name, [f"{result.n:,}", f"{result.base_error:.1%}", auroc]
    for row in result.rows:
        yield [name, row.rule, *figures, *_figures(row)]
        name, figures = dataset.model, ["", "", ""]  # there is a row for each of the two rules


def _figures(row: EvaluationRow) -> list[str]:
    error = "nothing accepted" if row.scer is None else f"{row.scer.value:.1%} ({row.scer_sd or 0:.1%})"
    return [error, f"{row.acceptance.value:.1%}", f"{row.violation_rate.value:.0%}"]
