"""Cost and benefit of scores: calls, tokens and seconds a question beside the share that a certificate answers.

`python -m benchmarks.cost DATA`, with the folder of recorded outputs. The embedded model is asked by this command; the
records of a small chat model are read from ``examples/recorded/smollm2`` where they exist.

Each split draws labelled questions at random, certifies (rule ``certified``, delta .1) and counts on the whole pool:
the share answered (0 where nothing is certified), and whether the error rate among the answered is above alpha. A
scale of two stages comes from other questions of the pool, whose labels it does not read. All scores see the same
splits.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from numpy.typing import NDArray

from calibrate.correctness import label_records, make_rule
from calibrate.data.collect import collect_records
from calibrate.data.formats import ImportSettings, import_file
from calibrate.data.questions import read_questions
from calibrate.data.records import Record, read_records
from calibrate.thresholds import fit
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.judges import Judge, make_judge
from guardrail.outcome import Feasible
from guardrail.sampling.sampler import draw
from guardrail.testing import make_artifact
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, make_estimator, measure_many
from guardrail.uncertainty.ensemble import Training
from guardrail.uncertainty.plan import plan_for
from guardrail.uncertainty.two_stage import TwoStageParams, two_stage

__all__ = ["Pool", "Row", "Score", "certified", "embedded", "main", "scores_of", "staged_scores"]

Reals = NDArray[np.float64]
ALPHAS = (0.1, 0.15, 0.2, 0.25)
DELTA = 0.1
SCALE = 300
"""Questions of a scale, if the pool has so many beside the labelled ones."""
SMALLEST = 150
"""Fewest of them; the library itself takes no fewer than 300."""
ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = ROOT / "examples" / "recorded" / "smollm2"
TIMED = 40
"""Questions whose seconds are measured, one after another."""


@dataclass(frozen=True, slots=True)
class Score:
    """One score of every question of a pool.

    Attributes:
        name: Row of the table.
        calls: Calls a question; of two stages those of the first.
        values: The score, shape (n,); NaN where it is unmeasured. Of two stages the cheap score.
        tokens: Output tokens a question, of its calls; NaN where the data do not tell.
        second: Of two stages: the disagreement in [0, 1], shape (n,).
        weight: Of two stages: w.
        more: Of two stages: further calls where the first do not decide.
        more_tokens: Of two stages: output tokens of those, a question that draws them.
        seconds: Seconds a question, where they were measured.
    """

    name: str
    calls: float
    values: Reals
    tokens: float = float("nan")
    second: Reals | None = None
    weight: float = 0.0
    more: int = 0
    more_tokens: float = float("nan")
    seconds: float = float("nan")


@dataclass(frozen=True, slots=True)
class Pool:
    """Labelled questions with their scores."""

    name: str
    error: NDArray[np.int64]
    scores: Sequence[Score]


@dataclass(frozen=True, slots=True)
class Row:
    """One score at one number of labels and one alpha, over all splits.

    Attributes:
        accepted: Mean share of the pool that the certificate answers.
        infeasible: Share of splits without a certificate.
        violated: Share of splits whose threshold is above alpha on the pool.
        calls: Mean calls a question, over the splits with a certificate; NaN without one.
    """

    accepted: float
    infeasible: float
    violated: float
    calls: float


def certified(pool: Pool, labels: int, alphas: Sequence[float], splits: int) -> dict[tuple[str, float], Row]:
    """Certify every score of a pool on the same random labels, by its name and alpha."""
    rows: dict[tuple[str, float], list[tuple[float, bool, bool, float]]] = {}
    n = pool.error.size
    for split in range(splits):
        order = np.random.default_rng(split).permutation(n)
        drawn, scale = order[:labels], order[labels : labels + SCALE]
        for score in pool.scores:
            u, place = _ordered(score, scale)
            usable = drawn[~np.isnan(u[drawn])]
            for alpha in alphas:
                out = fit(u[usable], pool.error[usable], alpha=alpha, delta=DELTA, rule="certified", diagnose="fast")
                accepted, more = np.zeros(n, dtype=np.bool_), 0.0
                if isinstance(out, Feasible):
                    accepted = u <= out.threshold
                    undecided = (place <= out.threshold) & ~(place + score.weight <= out.threshold)
                    more = score.more * float(undecided.mean()) if score.more else 0.0
                wrong = pool.error[accepted].mean() if accepted.any() else 0.0
                rows.setdefault((score.name, alpha), []).append(
                    (float(accepted.mean()), not accepted.any(), bool(wrong > alpha), score.calls + more)
                )
    return {key: _mean(values) for key, values in rows.items()}


def _ordered(score: Score, scale: NDArray[np.int64]) -> tuple[Reals, Reals]:
    """The score that is certified, and the place of the first stage on its scale."""
    if score.second is None:
        return score.values, score.values
    known = np.sort(score.values[scale][~np.isnan(score.values[scale])])
    place = np.searchsorted(known, score.values, side="right") / known.size
    place[np.isnan(score.values)] = np.nan
    # A failed sample disagrees (see `guardrail.uncertainty.two_stage`).
    return place + score.weight * np.nan_to_num(score.second, nan=1.0), place


def _mean(values: Sequence[tuple[float, bool, bool, float]]) -> Row:
    accepted, infeasible, violated, calls = (np.array(column, dtype=np.float64) for column in zip(*values, strict=True))
    spent = float(calls[infeasible == 0].mean()) if (infeasible == 0).any() else float("nan")
    return Row(float(accepted.mean()), float(infeasible.mean()), float(violated.mean()), spent)


# -- Scores of recorded draws ------------------------------------------------------------------------------------------


def _values(sets: Sequence[SampleSet], estimator: Estimator, n: int, plan: SamplingPlan, first: int = 0) -> Reals:
    """Scores of the sets with n of their samples, from the ``first`` on."""
    cut = [drawn.model_copy(update={"samples": drawn.samples[first : first + n]}) for drawn in sets]
    measured = measure_many(cut, [estimator], plan.model_copy(update={"n": n}))
    return np.array([np.nan if each.value is None else each.value for (each,) in measured])


def _tokens(samples: Sequence[Sample]) -> float:
    counts = [np.nan if sample.tokens is None else len(sample.tokens) for sample in samples]
    return float(np.mean(counts)) if counts else float("nan")


def _made(name: str, judge: Judge | None) -> Estimator:
    estimator = make_estimator(name)
    return estimator if estimator.judge is None or judge is None else replace(estimator, judge=judge)


def scores_of(records: Sequence[Record], plan: SamplingPlan, judge: Judge | None = None) -> list[Score]:
    """Every score of the comparison that these draws support, by the calls that each needs.

    Args:
        records: The questions with their draws.
        plan: The plan they were drawn by.
        judge: For answers that are numbers; votes are then compared without a graded similarity.
    """
    sets = [record.drawn for record in records if record.drawn is not None]
    answer = _tokens([drawn.primary for drawn in sets if drawn.primary is not None])
    sample = _tokens([sample for drawn in sets for sample in drawn.samples])
    disagree = "graded_disagreement" if judge is None else "primary_disagreement"

    def row(name: str, n: int) -> Score:
        return Score(name, n + 1, _values(sets, _made(name, judge), n, plan), answer + n * sample)

    scores = []
    if plan.logprobs:
        scores += [row(name, 0) for name in ("perplexity", "sequence_nll", "answer_word_nll")]
        scores += [row("semantic_entropy", 10)]
    else:
        scores += [row("discrete_semantic_entropy", 10)]
    scores += [replace(row(disagree, n), name=f"{disagree}, n = {n}") for n in (1, 2, 10)]
    return [*scores, *staged_scores(sets, plan, scores, answer, sample, _made("primary_disagreement", judge))]


def staged_scores(
    sets: Sequence[SampleSet],
    plan: SamplingPlan,
    scores: Sequence[Score],
    answer: float,
    sample: float,
    votes: Estimator,
) -> Iterator[Score]:
    """Two stages on each score of one call, and on two samples before eight more."""
    two, eight = _values(sets, votes, 2, plan), _values(sets, votes, 8, plan, first=2)
    by_name = {score.name: score for score in scores}
    for name in ("sequence_nll", "answer_word_nll"):
        if name in by_name:
            values = by_name[name].values
            yield Score(f"two stages, {name}", 1, values, answer, two, 0.2, 2, 2 * sample)
    first = next(score for name, score in by_name.items() if name.endswith("_disagreement, n = 2"))
    weight = 0.3 if first.name.startswith("graded") else 1.0
    yield Score(f"3 calls, then 8, w = {weight:g}", 3, first.values, first.tokens, eight, weight, 8, 8 * sample)


# -- Pools -------------------------------------------------------------------------------------------------------------


def _labelled(records: Sequence[Record], rule: str) -> list[Record]:
    usable = [record for record in label_records(records, make_rule(rule)) if record.drawn is not None]
    return [record for record in usable if record.correct is not None]


def _pool(name: str, records: Sequence[Record], plan: SamplingPlan, judge: Judge | None = None) -> Pool:
    error = np.array([not record.correct for record in records], dtype=np.int64)
    return Pool(name, error, scores_of(records, plan, judge))


def embedded(folder: Path, questions: int | None = None) -> tuple[list[Record], SamplingPlan]:
    """Ask the embedded model its open questions, with log-probabilities and ten samples."""
    from examples.demo.embedded import MODEL, TASKS
    from integrations.transformers_chat import TransformersChat

    task, path = TASKS[0], folder / "embedded.jsonl"
    plan = plan_for([make_estimator("semantic_entropy")], max_tokens=task.max_tokens)
    asked = read_questions(task.questions)[:questions]
    collect_records(asked, TransformersChat(model=str(MODEL)), plan, path, batch_size=64)
    return _labelled(read_records(path).records, task.correctness), plan


def _smollm2(path: Path, folder: Path) -> Pool:
    unpacked = folder / "smollm2.jsonl"
    with gzip.open(path / "records.jsonl.gz") as packed, unpacked.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    file = read_records(unpacked)
    asked = {question.id: question for question in read_questions(path / "questions.jsonl")}
    records = [
        record.model_copy(update={"references": asked[record.id].references})
        for record in file.records
        if record.id in asked
    ]
    return _pool("SmolLM2-135M-Instruct, 26 kinds of questions", _labelled(records, "contains"), file.header.plan)


def _resampled(path: Path, name: str, rule: str, judge: Judge | None = None) -> Pool:
    """Recorded samples without a greedy answer: the first one is the answer, the next ten are its samples."""
    file = import_file(path, ImportSettings()).file
    records = []
    for record in file.records:
        assert record.drawn is not None
        first, *others = record.drawn.samples
        drawn = record.drawn.model_copy(update={"primary": first, "samples": tuple(others[:10])})
        records.append(record.model_copy(update={"drawn": drawn, "correct": None}))
    return _pool(name, _labelled(records, rule), file.header.plan, judge)


def _mmlu_pro(path: Path, model: str) -> Pool:
    rows = []
    with path.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            cells = [row[f"{model}/{column}"] for column in ("error", "stated_confidence", "logit_confidence")]
            if all(cells):
                rows.append([float(cell) for cell in cells])
    error, stated, logit = np.array(rows).T
    # Ties of the stated confidence by the logit, which never outweighs it: 1e-6 is below every step of the first.
    ties = (1 - stated) + 1e-6 * (1 - logit)
    scores = [Score("logit", 1, 1 - logit), Score("stated", 1, 1 - stated), Score("stated, ties by logit", 1, ties)]
    return Pool(f"MMLU-Pro, {model.removesuffix('-2024-07-18')}", error.astype(np.int64), scores)


def _mmbench(path: Path, name: str) -> Pool:
    file = import_file(path, ImportSettings()).file
    records = [record for record in file.records if record.drawn is not None and record.correct is not None]
    if not records:
        records = _labelled(file.records, "option")
    sets = [record.drawn for record in records if record.drawn is not None]
    error = np.array([not record.correct for record in records], dtype=np.int64)
    names = ("predictive_entropy", "max_softmax")
    return Pool(
        name, error, [Score(each, 1, _values(sets, make_estimator(each), 0, file.header.plan)) for each in names]
    )


# -- Seconds -----------------------------------------------------------------------------------------------------------


def timed(pool: Pool, records: Sequence[Record], plan: SamplingPlan) -> Pool:
    """The pool with the seconds a question of the embedded model, asked one after another on this machine."""
    from examples.demo.embedded import MODEL
    from integrations.transformers_chat import TransformersChat

    model = TransformersChat(model=str(MODEL))
    asked = [record.question for record in records[:: max(1, len(records) // TIMED)]][:TIMED]
    by_samples = {}
    for n in sorted({0, *(int(score.calls) - 1 for score in pool.scores if score.second is None)}):
        by_samples[n] = _seconds(partial(_draw, model, plan.model_copy(update={"n": n, "seed": None})), asked)
    scores = [
        replace(score, seconds=by_samples[int(score.calls) - 1]) if score.second is None else score
        for score in pool.scores
    ]
    guard = Guardrail(model=model, artifact=_staged_artifact(model, pool), remember=0)
    staged = _seconds(lambda question: guard.assess(question), asked)
    scores = [replace(s, seconds=staged) if s.name == "two stages, sequence_nll" else s for s in scores]
    return replace(pool, scores=scores)


def _draw(model: BaseChatModel, plan: SamplingPlan, question: str) -> None:
    draw(model, [[HumanMessage(question)]], plan)


def _seconds(ask: Callable[[str], object], questions: Sequence[str]) -> float:
    ask(questions[0])  # the first call loads what later calls share
    started = time.perf_counter()
    for question in questions:
        ask(question)
    return (time.perf_counter() - started) / len(questions)


def _staged_artifact(model: BaseChatModel, pool: Pool) -> CalibrationArtifact:
    """Two stages at the certificate of alpha .15 with 1,000 labels (or all but the scale)."""
    score = next(each for each in pool.scores if each.name == "two stages, sequence_nll")
    order = np.random.default_rng(0).permutation(pool.error.size)
    labels = order[: min(1_000, pool.error.size - SCALE)]
    scale = order[labels.size : labels.size + SCALE]
    u, _ = _ordered(score, scale)
    out = fit(u[labels], pool.error[labels], alpha=0.15, delta=DELTA, rule="certified", diagnose="fast")
    cheap, second = make_estimator("sequence_nll"), make_estimator("primary_disagreement")
    params = TwoStageParams(
        weight=score.weight,
        scale=tuple(np.sort(score.values[scale]).tolist()),
        cheap=cheap.spec,
        second=second.spec,
        training=Training(ids=(), questions=()),
    )
    threshold = out.threshold if isinstance(out, Feasible) else 0.5
    own = plan_for([cheap, second], calls=1.4, max_tokens=16)
    artifact = make_artifact(model, threshold=threshold)
    return artifact.model_copy(update={"estimator": two_stage(params, cheap, second).spec, "plan": own})


# -- The page ----------------------------------------------------------------------------------------------------------


def print_pool(pool: Pool, sizes: Sequence[int], alphas: Sequence[float], splits: int) -> None:
    """Print the table of a pool: a line for each score and number of labels."""
    print(f"\n## {pool.name}: {pool.error.size} questions, {100 * pool.error.mean():.1f} % wrong\n")
    heads = " | ".join(f"alpha {alpha:g}" for alpha in alphas)
    print(f"| labels | score | calls | tokens | seconds | {heads} |\n|---|---|---|---|---|{'---|' * len(alphas)}")
    for labels in sizes:
        if labels + (SMALLEST if any(score.more for score in pool.scores) else 0) > pool.error.size:
            continue
        rows = certified(pool, labels, alphas, splits)
        for score in pool.scores:
            own = [rows[score.name, alpha] for alpha in alphas]
            calls = [row.calls for row in own if not np.isnan(row.calls)] or [score.calls]
            share = (float(np.mean(calls)) - score.calls) / score.more if score.more else 0.0
            tokens = score.tokens + (share * score.more_tokens if score.more else 0.0)
            cells = " | ".join(
                f"{100 * row.accepted:.1f} ({row.infeasible:.2f}, {row.violated:.2f})" if row.accepted else "0 (1, 0)"
                for row in own
            )
            print(
                f"| {labels} | {score.name} | {np.mean(calls):.2g} | {_shown(tokens, '.1f')} "
                f"| {_shown(score.seconds, '.3f')} | {cells} |",
                flush=True,
            )


def _shown(number: float, form: str) -> str:
    return "-" if np.isnan(number) else format(number, form)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one table for each pool."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="folder with the recorded outputs; without it two pools")
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--labels", default="300,1000", help="numbers of labels, separated by commas")
    parser.add_argument("--smollm2", type=Path, default=SMOLLM2, help="folder of the recorded chat model")
    parser.add_argument("--questions", type=int, help="ask the embedded model only so many; for a first look")
    parser.add_argument("--no-seconds", action="store_true", help="do not time the embedded model")
    arguments = parser.parse_args(argv)
    sizes = [int(size) for size in arguments.labels.split(",")]
    print(__doc__)
    print("Cells: certified acceptance in % (share of splits that certify nothing, share above alpha on the pool).")
    with TemporaryDirectory() as scratch:
        records, plan = embedded(Path(scratch), arguments.questions)
        own = _pool("Embedded model, open questions", records, plan)
        own = own if arguments.no_seconds else timed(own, records, plan)
        print_pool(own, sizes, ALPHAS, arguments.splits)
        if (arguments.smollm2 / "records.jsonl.gz").is_file():
            print_pool(_smollm2(arguments.smollm2, Path(scratch)), sizes, ALPHAS, arguments.splits)
    if arguments.data is None:
        return
    data: Path = arguments.data
    pools: list[Callable[[], Pool]] = [
        lambda: _resampled(data / "triviaqa-20samples.jsonl", "TriviaQA, first sample as the answer", "token_f1"),
        lambda: _resampled(
            data / "gsm8k-13variants.jsonl", "GSM8K, first prompt as the answer", "numeric", judge=make_judge("numeric")
        ),
        lambda: _mmlu_pro(data / "mmlu-pro-confidence.csv", "gpt-4.1"),
        lambda: _mmlu_pro(data / "mmlu-pro-confidence.csv", "gpt-4o-mini-2024-07-18"),
        lambda: _mmbench(data / "mmbench-llava-v1.6-34b-options.jsonl", "MMBench, LLaVA 34B"),
        lambda: _mmbench(data / "mmbench-llava-v1.5-7b-options.jsonl", "MMBench, LLaVA 7B"),
    ]
    for read in pools:
        print_pool(read(), sizes, ALPHAS, arguments.splits)


if __name__ == "__main__":
    main()
