"""First page: a real chat model on real questions, calibrated, certified and gated."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import HumanMessage
from rich.table import Table
from rich.text import Text

from calibrate.correctness import label_records, make_rule
from calibrate.data.collect import collect_records
from calibrate.data.progress import bar
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.data.split import split
from calibrate.judging import GateCounts, held_out
from calibrate.pipeline import fit_artifact
from calibrate.report import write_report
from calibrate.scoring.compute import score_records
from calibrate.scoring.scores import arrays
from examples.demo import smollm2
from examples.demo.screen import CONSOLE, share, title
from guardrail import CalibrationArtifact, Feasible, Guardrail, Verdict
from guardrail.decision import ThresholdGate
from guardrail.describe import guarantee, why_infeasible
from guardrail.plain_json import visible
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make_estimator

if TYPE_CHECKING:
    from integrations.transformers_chat import TransformersChat

__all__ = ["ALPHA", "CORRECTNESS", "DELTA", "ESTIMATOR", "LIVE", "ONE_CALL", "halves", "run", "scored"]

ESTIMATOR, ONE_CALL = "semantic_entropy", "sequence_nll"
CORRECTNESS = "contains"
"""It decides every answer, so that the demo needs no person; the usual rule `stated` leaves some undecided."""
ALPHA, DELTA = 0.25, 0.1
"""Fixed before the questions were asked, by earlier questions: of this model's surest tenth a ninth is wrong."""
LIVE = 24
"""Drawing them takes most of the time of the demo: about 1.6 seconds of one core each."""
BATCH = 16
SIDE_BY_SIDE = 8
"""Questions in a batch of the gate: 16 take a third less time each, but what is unfinished at the end is lost."""
BINS, BAR = 8, 44
MISTAKES = 3


def scored(file: RecordFile) -> RecordFile:
    """Return a record file with both scores and with labels."""
    rule = make_rule(CORRECTNESS)
    file = score_records(file, [make_estimator(ESTIMATOR), make_estimator(ONE_CALL)])
    header = file.header.model_copy(update={"correctness": rule.spec})
    return RecordFile(file.path, header, tuple(label_records(file.records, rule)))


def halves(file: RecordFile) -> tuple[Sequence[Record], Sequence[Record]]:
    """Return the calibration half and the test half, by seed 0."""
    return split(file.records, test_fraction=0.5, seed=0)


def run(out: Path, *, full: bool = False, live: bool = True, until: float = math.inf) -> list[Path]:
    """Show the model without a gate, calibrate, gate questions that calibration never saw, and count.

    Args:
        out: Folder for records, artifact and report.
        full: Draw the recorded answers again, with progress; the same command continues where it stopped.
        live: Whether the model may be run; otherwise everything is from the records.
        until: The time (`time.monotonic`) after which the model answers no more; recorded answers then take its place.

    Returns:
        The report and its pictures.
    """
    out.mkdir(parents=True, exist_ok=True)
    file = smollm2.recorded(out / "records.jsonl")
    title("SmolLM2-135M-Instruct, a chat model of 135 million parameters, on short facts")
    model = _load(file) if live else None
    if model is not None and full:
        file = _drawn_again(model, file, out / "drawn.jsonl")
    elif full:
        CONSOLE.print("FULL=1 needs the model; the records are shown instead.", style="yellow")
    file = scored(file)
    write_records(file.path, file.header, file.records)  # for `calibrate evaluate` and the other commands
    calibration, test = halves(file)
    _say_where_from(file, calibration, test, model, full=full)
    _ask(test[:10], test, file.header.plan, model if time.monotonic() < until else None)
    artifact = _calibrate(file, calibration, out)
    guard = None if model is None else Guardrail(model=model, artifact=out / "artifact.json")
    verdicts = _gate(artifact, test[:LIVE], guard, until)
    _bill(artifact, file, calibration, test, verdicts)
    _mistakes(artifact, test, verdicts)
    _own_model()
    return write_report(
        out / "report.html", artifact, calibration, estimator=ESTIMATOR, test=test, commands=["make demo"]
    )


def _load(file: RecordFile) -> TransformersChat | None:
    """Load the model of the records, or say in a line why it is not."""
    reason = smollm2.unavailable()
    if reason is not None:
        CONSOLE.print(f"[yellow]From the records only:[/] {reason}.", soft_wrap=True)
        return None
    CONSOLE.print("Loading the model: about 20 seconds ...", style="dim")
    started = time.monotonic()
    model = smollm2.chat()
    # The guard would refuse it at the gate. Before the first answer is the place to say so.
    differences = file.header.model.differences(model.guardrail_identity())
    if differences:
        CONSOLE.print(f"[yellow]From the records only:[/] {differences[0]}.", soft_wrap=True)
        return None
    CONSOLE.print(f"Loaded in {time.monotonic() - started:.0f} s. Its checksum is that of the records.")
    return model


def _drawn_again(model: TransformersChat, file: RecordFile, path: Path) -> RecordFile:
    with bar(CONSOLE, "asking all questions") as progress:
        collect_records(
            smollm2.questions(),
            model,
            file.header.plan,
            path,
            name=file.header.questions_name,
            batch_size=BATCH,
            progress=progress,
        )
    return read_records(path)


def _say_where_from(
    file: RecordFile,
    calibration: Sequence[Record],
    test: Sequence[Record],
    model: TransformersChat | None,
    *,
    full: bool,
) -> None:
    weights = smollm2.checksums()["weights"][:12]
    plan = file.header.plan
    CONSOLE.print(
        f"{len(file.records):,} questions, each answered once at temperature 0 and {plan.n} times at "
        f"{plan.temperature:g}: {len(calibration):,} calibrate, the other {len(test):,} test."
    )
    if model is not None and full:
        CONSOLE.print("[bold]All answers were drawn on this machine.[/]")
        return
    now = f"The answers to the first {LIVE} test questions are drawn now. " if model is not None else ""
    CONSOLE.print(
        f"[bold]The answers are recordings[/] of this model (sha256 {weights}..., {file.header.created[:10]}, "
        f"bfloat16). {now}`make demo FULL=1` draws all of them again on your machine, in about half an hour."
    )


def _ask(records: Sequence[Record], test: Sequence[Record], plan: SamplingPlan, model: TransformersChat | None) -> None:
    """Show answers without a gate."""
    title("1  Ask it", "drawn now" if model is not None else "recorded")
    answers = [record.answer or "" for record in records]
    if model is not None:
        prompts: list[LanguageModelInput] = [[HumanMessage(record.question)] for record in records]
        answers = [
            str(message.text) for message in model.batch(prompts, stop=list(plan.stop), max_tokens=plan.max_tokens)
        ]
    rule = make_rule(CORRECTNESS)
    for record, answer in zip(records, answers, strict=True):
        right = bool(rule.label(answer, record.to_question()).correct)
        CONSOLE.print(_line(_mark(right), record.question, answer, ""))
    wrong = sum(record.correct is False for record in test) / len(test)
    CONSOLE.print(f"\n{wrong:.0%} of its answers to the {len(test):,} test questions are wrong, all in the same tone.")


def _calibrate(file: RecordFile, calibration: Sequence[Record], out: Path) -> CalibrationArtifact:
    title(
        "2  Calibrate",
        f"from {len(calibration):,} answers, labelled by rule {CORRECTNESS}: at most {ALPHA:.0%} of what it answers "
        "may be wrong",
    )
    artifact = fit_artifact(file, score=ESTIMATOR, alpha=ALPHA, rule="certified", delta=DELTA, part=calibration)
    artifact.save(out / "artifact.json")
    _histogram(calibration, artifact)
    outcome = artifact.outcome
    if isinstance(outcome, Feasible):
        CONSOLE.print(f"\nanswer if {ESTIMATOR} <= {outcome.threshold:.3f}")
        CONSOLE.print(f"promise: {guarantee(outcome)}", style="bold")
    else:
        CONSOLE.print(f"\ninfeasible ({outcome.reason.value}): {why_infeasible(outcome)}", style="bold red")
    CONSOLE.print(
        f"A model of this size supports {ALPHA:.0%}: of the tenth of its answers that it is surest of, "
        f"{_surest_tenth(calibration):.0%} are wrong.",
        style="dim",
    )
    return artifact


def _surest_tenth(records: Sequence[Record]) -> float:
    values = arrays(records, ESTIMATOR)
    order = np.argsort(values.uncertainty, kind="stable")[: max(1, len(values.uncertainty) // 10)]
    return float(values.error[order].mean())


def _histogram(records: Sequence[Record], artifact: CalibrationArtifact) -> None:
    """Print right and wrong answers by score, and where the threshold lies."""
    values = arrays(records, ESTIMATOR)
    edges = np.linspace(0, max(float(values.uncertainty.max()), 1e-9), BINS + 1)
    places = np.clip(np.searchsorted(edges, values.uncertainty, side="right") - 1, 0, BINS - 1)
    wrong = np.bincount(places[values.error == 1], minlength=BINS)
    right = np.bincount(places[values.error == 0], minlength=BINS)
    scale = BAR / max(1, int((right + wrong).max()))
    CONSOLE.print("the model's own answers, score      [green]█ right[/]  [red]█ wrong[/]")
    for i in range(BINS):
        name = "all agree" if i == 0 else "all differ" if i == BINS - 1 else ""
        line = Text(f"{name:>10} {edges[i]:4.2f} to {edges[i + 1]:4.2f} ")
        line.append("█" * round(right[i] * scale), "green").append("█" * round(wrong[i] * scale), "red")
        line.append(f" {right[i]}/{wrong[i]}", "dim")
        if artifact.threshold is not None and edges[i] <= artifact.threshold < edges[i + 1]:
            line.append(f"  <- the threshold, {artifact.threshold:.3f}", "bold")
        CONSOLE.print(line)


def _gate(
    artifact: CalibrationArtifact, records: Sequence[Record], guard: Guardrail | None, until: float
) -> list[tuple[Record, Verdict]]:
    """Gate questions that calibration never saw, and print a line for each as its verdict arrives."""
    source = "drawn and judged now" if guard is not None else "recorded answers, judged now"
    title(f"3  Gate {len(records)} questions that calibration never saw", source)
    CONSOLE.print(_line(Text("         "), "question", "answer", "agree  truth"), style="dim")
    pairs = [] if guard is None else [_shown(*pair) for pair in _live(guard, records, until)]
    drawn = {record.id for record, _ in pairs}
    rest = [record for record in records if record.id not in drawn]
    if rest and guard is not None:
        CONSOLE.print(
            f"{len(pairs)} of {len(records)} drawn, then the time was over. Recorded answers to the others, judged:",
            style="yellow",
        )
    pairs += [_shown(*pair) for pair in zip(rest, _replayed(artifact, rest), strict=True)]
    counts = _counts(pairs)
    rate = counts.error_rate
    n_wrong_held = sum(not labelled.correct for labelled, verdict in pairs if not verdict.accepted)
    n_held = counts.n - counts.n_accepted
    CONSOLE.print(
        f"\nThe truth: {counts.n_errors} of the {counts.n_accepted} answers given are wrong"
        f"{'' if rate is None else f' ({rate[0]:.0%})'}, and {n_wrong_held} of the {n_held} held back."
    )
    return pairs


def _shown(record: Record, verdict: Verdict) -> tuple[Record, Verdict]:
    """Print the line of a verdict, and return it with its labelled record."""
    labelled = _labelled(record, verdict)
    head = Text("answers  ", "green") if verdict.accepted else Text("holds    ", "yellow")
    answer = "" if verdict.candidate is None else verdict.candidate.text
    truth = Text("") if labelled.correct else Text("  wrong", "red")
    CONSOLE.print(_line(head, record.question, answer, _agreement(verdict)) + truth)
    return labelled, verdict


def _live(guard: Guardrail, records: Sequence[Record], until: float) -> Iterator[tuple[Record, Verdict]]:
    """Draw and judge until the time is over, in the order of the questions; what is then under way is cancelled."""
    messages = guard.artifact.prompt.messages
    places = asyncio.Semaphore(SIDE_BY_SIDE)  # calls side by side share a batch

    async def assess(record: Record) -> Verdict | None:
        try:
            async with asyncio.timeout(until - time.monotonic()), places:
                return await guard.aassess(messages(record.question, None))
        except TimeoutError:
            return None

    async def result(task: asyncio.Task[Verdict | None]) -> Verdict | None:
        return await task

    with asyncio.Runner() as runner:
        tasks = [runner.get_loop().create_task(assess(record)) for record in records]
        for record, task in zip(records, tasks, strict=True):
            verdict = runner.run(result(task))
            if verdict is not None:
                yield record, verdict


def _replayed(artifact: CalibrationArtifact, records: Sequence[Record]) -> Iterator[Verdict]:
    estimator = make_estimator(ESTIMATOR)
    for record in records:
        assert record.drawn is not None
        yield ThresholdGate(artifact, estimator).decide(record.drawn)


def _labelled(record: Record, verdict: Verdict) -> Record:
    """Return the record with the answer of a verdict, its label and its score."""
    assert record.drawn is not None
    drawn = record.drawn.model_copy(update={"primary": verdict.candidate})
    fresh = Record.of(record.to_question(), drawn).model_copy(update={"scores": {ESTIMATOR: verdict.uncertainty}})
    return label_records([fresh], make_rule(CORRECTNESS))[0]


def _agreement(verdict: Verdict) -> str:
    if not (verdict.meanings and verdict.samples):
        return "-"
    return f"{verdict.meanings[0].size}/{len(verdict.samples)}"


def _counts(pairs: Sequence[tuple[Record, Verdict]]) -> GateCounts:
    accepted = [record for record, verdict in pairs if verdict.accepted]
    return GateCounts(
        n=len(pairs),
        n_asked=len(pairs),
        n_accepted=len(accepted),
        n_errors=sum(not record.correct for record in accepted),
        n_correct=sum(bool(record.correct) for record, _ in pairs),
    )


def _bill(
    artifact: CalibrationArtifact,
    file: RecordFile,
    calibration: Sequence[Record],
    test: Sequence[Record],
    pairs: Sequence[tuple[Record, Verdict]],
) -> None:
    title("4  The bill")
    cheap = fit_artifact(file, score=ONE_CALL, alpha=ALPHA, rule="certified", delta=DELTA, part=calibration)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "asked", "answered", "wrong among them (95 %)"):
        table.add_column(column, justify="left" if not column else "right")
    live, everything = _counts(pairs), _ungated(test)
    rows = (
        (f"the {live.n} above, no gate", _ungated([record for record, _ in pairs])),
        (f"the {live.n} above, gate", live),
        ("all test questions, no gate", everything),
        (f"gate, {artifact.plan.n + 1} calls a question", held_out(artifact, test, ESTIMATOR)),
        ("gate, 1 call a question", held_out(cheap, test, ONE_CALL)),
    )
    for name, counts in rows:
        answered = f"{counts.n_accepted} ({counts.acceptance[0]:.0%})"
        wrong = f"{counts.n_errors}: {share(counts.error_rate)}" if counts.n_accepted else "no threshold keeps it"
        table.add_row(name, f"{counts.n}", answered, wrong)
    CONSOLE.print(table)
    CONSOLE.print(
        f"{artifact.plan.n + 1} calls: {ESTIMATOR}, the model's disagreement with itself. 1 call: {ONE_CALL}, its "
        "token probabilities.",
        style="dim",
    )


def _ungated(records: Sequence[Record]) -> GateCounts:
    n, right = len(records), sum(bool(record.correct) for record in records)
    return GateCounts(n=n, n_asked=n, n_accepted=n, n_errors=n - right, n_correct=right)


def _mistakes(artifact: CalibrationArtifact, test: Sequence[Record], pairs: Sequence[tuple[Record, Verdict]]) -> None:
    """Show the surest mistakes that were let through: of the questions above, then of the other test questions."""
    title("5  What it cannot do", "mistakes that were let through, the surest first")
    others = list(zip(test[len(pairs) :], _replayed(artifact, test[len(pairs) :]), strict=True))
    for source, pool in (("of those above", pairs), ("of the other test questions", others)):
        passed = [(record, verdict) for record, verdict in pool if verdict.accepted and not record.correct]
        passed.sort(key=lambda pair: pair[1].uncertainty.value or 0.0)
        CONSOLE.print(f"{source}: {len(passed)}")
        for record, verdict in passed[:MISTAKES]:
            answer = "" if verdict.candidate is None else verdict.candidate.text
            CONSOLE.print(_line(_mark(False), record.question, answer, _agreement(verdict)))
            CONSOLE.print(Text(f"         right: {record.references[0]}", "dim"))
    CONSOLE.print(
        "\nAgreement is not truth: where the model is wrong every time in the same way, no disagreement shows it. The "
        "promise is a rate, not a verdict on one answer."
    )


def _own_model() -> None:
    title("6  Your model")
    CONSOLE.print(
        "  calibrate run --questions questions.jsonl --model transformers:PATH_OR_ID \\\n"
        f"      --rule certified --alpha {ALPHA:g} --max-tokens 24 --set stop=$'\\n' --out results\n"
        "The questions are yours, with their references; README.md shows other models.",
        markup=False,
    )


def _mark(right: bool) -> Text:
    return Text("right    ", "green") if right else Text("wrong    ", "red")


def _line(head: Text, question: str, answer: str, agreement: str) -> Text:
    """Return one line of 73 columns. Of a long text the end stays, because most of these begin alike."""
    return head + Text(f"{_cut(question, 8)}  {_cut(answer, 0)} {agreement:>5}")


def _cut(text: str, head: int, width: int = 28) -> str:
    text = visible(text, one_line=True)
    if len(text) <= width:
        return f"{text:<{width}}"
    return f"{text[:head]}…{text[len(text) - width + head + 1 :]}"
