"""First page: the embedded model, calibrated on its own answers and gated by the real guard."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable

from calibrate.correctness import label_records, make_rule
from calibrate.data.collect import collect_records
from calibrate.data.formats.questions import read_questions
from calibrate.data.progress import bar
from calibrate.data.questions import Question, option_labels
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.data.split import split
from calibrate.fitting import fit
from calibrate.judging import GateCounts, held_out
from calibrate.pipeline import fit_artifact
from calibrate.report import compare_rules, write_report
from calibrate.scope import cut_at
from calibrate.scoring.compute import score_records
from calibrate.scoring.scores import arrays
from examples.demo.screen import CONSOLE, examples_table, labels_line, splits_line, title, verdict_panel
from guardrail import ArtifactMismatchError, CalibrationArtifact, Feasible, Guardrail, SampleSet, Verdict
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.plan import plan_for
from integrations.transformers_chat import TransformersChat

__all__ = ["MODEL", "TASKS", "Task", "certified_with", "run"]

TINY = Path(__file__).resolve().parent.parent / "tiny_model"
MODEL = TINY / "orrin-1.5m"
ALPHA = 0.1
LABELS, SCOPE = 300, 0.6
"""For the comparison of 300 labels at random with 300 on the lowest 60 % of the scores."""
THREADS = 64
"""Questions in flight at the same time; the local model answers waiting requests in one batch."""


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of question."""

    name: str
    questions: Path
    estimator: str
    correctness: str
    max_tokens: int


TASKS = (
    Task("open questions", TINY / "questions" / "open.jsonl", "semantic_entropy", "token_f1", 16),
    Task("multiple choice", TINY / "questions" / "choice.jsonl", "predictive_entropy", "option", 4),
)


def run(task: Task, model: TransformersChat, out: Path) -> list[Path]:
    """Collect, score, label, fit, gate the test questions through `Guardrail`, and write the report.

    Args:
        task: The kind of question.
        model: The embedded model.
        out: Folder for records, artifact and report.

    Returns:
        The report and its pictures.
    """
    calibration, test = split(read_questions(task.questions), test_fraction=0.5, seed=0)
    title(f"{task.name}, calibrated on {len(calibration):,} and tested on {len(test):,} others")
    out.mkdir(parents=True, exist_ok=True)
    artifact, records = _calibrate(task, calibration, model, out)
    guard = Guardrail(model=model, artifact=out / "artifact.json")
    verdicts = _gate(guard, test)
    tested = _as_records(test, verdicts, task)
    average = fit_artifact(records, score=task.estimator, alpha=ALPHA, rule="acrc")
    gated, on_average = (held_out(gate, tested, task.estimator) for gate in (artifact, average))
    verdict_panel(artifact, average, _everything(tested), gated, on_average)
    _show_examples(tested, verdicts)
    _show_chain(guard, test)
    comparison = compare_rules(artifact, records.records, task.estimator)
    splits_line(comparison)
    labels_line(
        LABELS, SCOPE, *(certified_with(LABELS, share, records.records, task.estimator) for share in (1.0, SCOPE))
    )
    return write_report(
        out / "report.html",
        artifact,
        records.records,
        estimator=task.estimator,
        test=tested,
        splits=100,
        commands=["make demo"],
    )


def certified_with(labels: int, share: float, records: Sequence[Record], estimator: str, draws: int = 30) -> float:
    """Return the share of all questions that so many labels, drawn within the scope, certify (mean of draws)."""
    scored = arrays(records, estimator)
    u, rng, total = scored.uncertainty, np.random.default_rng(0), 0.0
    within = np.flatnonzero(u <= cut_at(u, share))
    for _ in range(draws):
        drawn = rng.choice(within, labels, replace=False)
        outcome = fit(u[drawn], scored.error[drawn], alpha=ALPHA, rule="certified")
        total += float((u <= outcome.threshold).mean()) if isinstance(outcome, Feasible) else 0.0
    return total / draws


def _calibrate(
    task: Task, questions: Sequence[Question], model: TransformersChat, out: Path
) -> tuple[CalibrationArtifact, RecordFile]:
    estimator = make_estimator(task.estimator)
    plan = plan_for([estimator], options=option_labels(questions), max_tokens=task.max_tokens)
    path = out / "records.jsonl"
    path.unlink(missing_ok=True)  # a demo starts afresh; `calibrate collect` would continue where it stopped
    with bar(CONSOLE, "asking the calibration questions") as progress:
        collect_records(questions, model, plan, path, name=task.questions.name, batch_size=64, progress=progress)
    rule = make_rule(task.correctness)
    file = score_records(read_records(path), [estimator])
    header = file.header.model_copy(update={"correctness": rule.spec})
    file = RecordFile(path, header, tuple(label_records(file.records, rule)))
    write_records(path, file.header, file.records)
    artifact = fit_artifact(file, score=task.estimator, alpha=ALPHA)
    artifact.save(out / "artifact.json")
    return artifact, file


def _gate(guard: Guardrail, questions: Sequence[Question]) -> list[Verdict]:
    """Return the verdict on every question. `assess` is `invoke` without acting on the verdict."""

    def assess(question: Question) -> Verdict:
        return guard.assess(guard.artifact.prompt.messages(question.question, question.options))

    verdicts = []
    with bar(CONSOLE, "gating the test questions   ") as progress, ThreadPoolExecutor(THREADS) as pool:
        for verdict in pool.map(assess, questions):
            verdicts.append(verdict)
            progress(len(verdicts), len(questions))
    return verdicts


def _as_records(questions: Sequence[Question], verdicts: Sequence[Verdict], task: Task) -> list[Record]:
    records = []
    for question, verdict in zip(questions, verdicts, strict=True):
        drawn = SampleSet(question=question.question, primary=verdict.candidate)
        record = Record.of(question, drawn)
        records.append(record.model_copy(update={"scores": {task.estimator: verdict.uncertainty}}))
    return label_records(records, make_rule(task.correctness))


def _everything(records: Sequence[Record]) -> GateCounts:
    """Count the answers as if no gate held any back."""
    correct = [bool(record.correct) for record in records if record.correct is not None]
    n, right = len(correct), sum(correct)
    return GateCounts(n=n, n_asked=n, n_accepted=n, n_errors=n - right, n_correct=right)


def _show_examples(records: Sequence[Record], verdicts: Sequence[Verdict]) -> None:
    """Show three accepted and three held back, evenly spread over the file, so that nobody picked them."""
    pairs = list(zip(records, verdicts, strict=True))
    for accepted, heading in ((True, "accepted"), (False, "held back")):
        chosen = [pair for pair in pairs if pair[1].accepted is accepted]
        rows = [_row(record, verdict) for record, verdict in chosen[:: max(1, len(chosen) // 3)][:3]]
        examples_table(heading, rows, ["question", "candidate", "truth", "the model's own answers", "reason"])
    held_back = next((verdict for verdict in verdicts if not verdict.accepted), None)
    if held_back is not None:
        CONSOLE.print(f"verdict.detail of the first one held back: {held_back.detail}", style="dim", markup=False)


def _row(record: Record, verdict: Verdict) -> list[str]:
    shown = ", ".join(f"{text} {part:.0%}" for text, part in verdict.alternatives[:3])
    mark = "right" if record.correct else "wrong"
    sign = "<=" if verdict.accepted else ">"
    reason = f"{verdict.reason.value}: {verdict.uncertainty.value:.3f} {sign} {verdict.threshold:.3f}"
    return [record.question, f"{record.answer} ({mark})", record.references[0], shown, reason]


def _show_chain(guard: Guardrail, questions: Sequence[Question]) -> None:
    chain = guard.prompt | guard | StrOutputParser()
    texts = [guard.artifact.prompt.render(question.question, question.options) for question in questions[:4]]
    prompts = texts
    if guard.artifact.plan.options is None:
        prompts = [*texts, "Who are you, and what is the meaning of life?"]
    CONSOLE.print("\n[bold]chain = guard.prompt | guard | StrOutputParser()[/]   # a drop-in chat model")
    for text, answer in zip(prompts, chain.batch([{"question": text} for text in prompts]), strict=True):
        CONSOLE.print(f"  {text.splitlines()[0]!r}\n    -> {answer!r}", markup=False)
    if guard.artifact.plan.options is not None:
        _show_refusal(chain, "Who are you, and what is the meaning of life?")


def _show_refusal(chain: Runnable[dict[str, str], str], question: str) -> None:
    """Ask a guard that was calibrated for multiple choice a question without option lines."""
    try:
        chain.invoke({"question": question})
    except ArtifactMismatchError as error:
        CONSOLE.print(f"  {question!r}\n    -> refused: {error}", markup=False)
