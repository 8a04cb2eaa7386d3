"""Cost and benefit of scores: calls, tokens and seconds a question beside the share that a certificate answers.

`python -m benchmarks.cost DATA`, with the folder of recorded outputs; ``--write`` renews the tables of docs/results.md
and README.md, and docs/calls.json with every figure. The embedded model is asked by this command; the records of a
small chat model lie in ``examples/recorded/smollm2``.

Each split draws labelled questions at random, certifies (rule ``certified``, delta .1) and counts on the whole pool:
the share answered (0 where nothing is certified), and whether the error rate among the answered is above alpha. A
scale of two stages comes from other questions of the pool, whose labels it does not read. All scores see the same
splits. A last table compares the certificate with a tool that picks a threshold on one half of the labels and checks
it on the other.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from numpy.typing import NDArray

from benchmarks.calls import Score, certified_once, ordered, score_of, scores_of_draws
from benchmarks.published import import_published
from calibrate.correctness import label_records, make_rule
from calibrate.data.collect import collect_records
from calibrate.data.formats.questions import read_questions
from calibrate.data.records import Record, read_records
from calibrate.fitting import Target, fit
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.files import atomic_write
from guardrail.judges import make_judge
from guardrail.outcome import Feasible
from guardrail.sampling.sampler import Sampler
from guardrail.testing import make_artifact
from guardrail.types import Frozen, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, make_estimator, then
from guardrail.uncertainty.combine import Ranks, tie_order
from guardrail.uncertainty.plan import plan_for
from guardrail.uncertainty.training import Training

__all__ = ["Figures", "Line", "Pool", "Table", "certified", "embedded", "main", "pages", "tool_threshold"]

Reals = NDArray[np.float64]
DELTA = 0.1
SIZES = (300, 1_000)
"""Numbers of labels."""
SCALE = 300
"""Questions of a scale, if the pool has so many beside the labelled ones."""
SMALLEST = 150
"""Fewest of them; the library itself takes no fewer than 300."""
ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = ROOT / "examples" / "recorded" / "smollm2"
TIMED = 40
"""Questions whose seconds are measured, one after another."""
DRAWS = 400
"""Draws of labels in the comparison with a threshold tool."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Labelled questions with their scores.

    Attributes:
        name: Heading of the table.
        error: 0 or 1 a question.
        scores: The scores.
        alphas: Target error rates.
    """

    name: str
    error: NDArray[np.int64]
    scores: Sequence[Score]
    alphas: Sequence[float] = (0.1, 0.15, 0.2)


class Cell(Frozen):
    """One score at one number of labels and one alpha, over all splits."""

    accepted: float
    """Mean share of the pool that the certificate answers."""
    infeasible: float
    """Share of splits without a certificate."""
    violated: float
    """Share of splits whose threshold is above alpha on the pool."""


class Line(Frozen):
    """One score at one number of labels."""

    score: str
    labels: int
    calls: float
    """Mean calls a question, over the splits with a certificate."""
    tokens: float | None
    """Output tokens a question; None where the data do not tell."""
    seconds: float | None
    """Seconds a question on the machine that ran this; None where the model is not at hand."""
    cells: tuple[Cell, ...]
    """One an alpha."""


class Table(Frozen):
    """The scores of one pool."""

    name: str
    n: int
    wrong: float
    """Share of wrong answers without a gate."""
    alphas: tuple[float, ...]
    lines: tuple[Line, ...]


class Compared(Frozen):
    """A way to choose a threshold on 300 labels, at alpha .1; the truth is the rest of the pool."""

    name: str
    answered: float
    """Mean share of the rest that is answered."""
    violated: float
    """Share of draws whose error rate on the rest is above alpha."""


class Figures(Frozen):
    """Everything that the pages show."""

    format: int = 1
    splits: int
    tables: tuple[Table, ...]
    tool: dict[str, tuple[Compared, ...]]
    """Certificate and threshold tool, by pool."""


def certified(pool: Pool, labels: int, splits: int) -> list[Line]:
    """Certify every score of a pool on the same random labels."""
    targets = [Target.of("certified", alpha=alpha, delta=DELTA) for alpha in pool.alphas]
    n = pool.error.size
    lines = []
    for score in pool.scores:
        shares = np.zeros((splits, len(targets)))
        above = np.zeros((splits, len(targets)), dtype=np.bool_)
        calls = []
        for split in range(splits):
            order = np.random.default_rng(split).permutation(n)
            orders = ordered(score, score.values[order[labels : labels + SCALE]])
            for column, target in enumerate(targets):
                accepted, spent = certified_once(score, orders, pool.error, order[:labels], target)
                if accepted.any():
                    shares[split, column] = accepted.mean()
                    above[split, column] = pool.error[accepted].mean() > pool.alphas[column]
                    calls.append(spent)
        spent = float(np.mean(calls)) if calls else score.calls
        further = (spent - score.calls) / score.more if score.more else 0.0
        tokens = score.tokens + (further * score.more_tokens if score.more else 0.0)
        cells = tuple(
            Cell(
                accepted=float(shares[:, column].mean()),
                infeasible=float((shares[:, column] == 0).mean()),
                violated=float(above[:, column].mean()),
            )
            for column in range(len(targets))
        )
        lines.append(
            Line(
                score=score.name,
                labels=labels,
                calls=spent,
                tokens=None if np.isnan(tokens) else tokens,
                seconds=None if np.isnan(score.seconds) else score.seconds,
                cells=cells,
            )
        )
    return lines


def table_of(pool: Pool, sizes: Sequence[int], splits: int) -> Table:
    """Certify the scores of a pool at each number of labels that it has questions for."""
    reserve = SMALLEST if any(score.more for score in pool.scores) else 0
    lines = [
        line for labels in sizes if labels + reserve <= pool.error.size for line in certified(pool, labels, splits)
    ]
    return Table(
        name=pool.name,
        n=pool.error.size,
        wrong=float(pool.error.mean()),
        alphas=tuple(pool.alphas),
        lines=tuple(lines),
    )


# -- Pools -------------------------------------------------------------------------------------------------------------


def _labelled(records: Sequence[Record], rule: str) -> list[Record]:
    usable = [record for record in label_records(records, make_rule(rule)) if record.drawn is not None]
    return [record for record in usable if record.correct is not None]


def _pool(name: str, records: Sequence[Record], plan: SamplingPlan, votes: Estimator, alphas: Sequence[float]) -> Pool:
    """Every score that the draws support, `perplexity`, and three calls before eight more."""
    sets = [record.drawn for record in records if record.drawn is not None]
    scores = scores_of_draws(sets, plan, votes)
    if not plan.logprobs:  # entropy with the judge of the votes, not the default one
        entropy = make_estimator("discrete_semantic_entropy", judge=votes.judge)
        scores = [score_of(sets, entropy, plan.n, plan) if each.name == entropy.name else each for each in scores]
    if plan.logprobs:
        scores.append(score_of(sets, make_estimator("perplexity"), 0, plan))
    scores.append(_three_then_eight(sets, votes, plan))
    error = np.array([not record.correct for record in records], dtype=np.int64)
    return Pool(name, error, scores, alphas)


def _three_then_eight(sets: Sequence[SampleSet], votes: Estimator, plan: SamplingPlan) -> Score:
    """Two stages for endpoints without log-probabilities: two samples, and eight others where they do not decide."""
    weight = 0.3 if votes.name == "graded_disagreement" else 1.0
    rest = [drawn.model_copy(update={"samples": drawn.samples[2:]}) for drawn in sets]
    eight = score_of(rest, make_estimator("primary_disagreement", judge=votes.judge), 8, plan)
    first = score_of(sets, votes, 2, plan, f"two stages, {votes.name}, n = 2 then 8")
    per_sample = (first.tokens - score_of(sets, votes, 1, plan).tokens) if not np.isnan(first.tokens) else np.nan
    return replace(first, second=eight.values, weight=weight, more=8, more_tokens=8 * per_sample)


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
    votes = make_estimator("graded_disagreement")
    return _pool("SmolLM2-135M-Instruct", _labelled(records, "contains"), file.header.plan, votes, (0.2, 0.25, 0.3))


def _resampled(path: Path, name: str, rule: str, votes: Estimator) -> Pool:
    """Recorded samples without a greedy answer: the first one is the answer, the next ten are its samples."""
    file = import_published(path).file
    records = []
    for record in file.records:
        assert record.drawn is not None
        first, *others = record.drawn.samples
        drawn = record.drawn.model_copy(update={"primary": first, "samples": tuple(others[:10])})
        records.append(record.model_copy(update={"drawn": drawn, "correct": None}))
    plan = file.header.plan.model_copy(update={"n": 10, "primary": "sampled"})
    return _pool(name, _labelled(records, rule), plan, votes, (0.1, 0.15, 0.2))


def _mmlu_pro(path: Path, model: str) -> Pool:
    """Stated confidence and the probability of the answer's letter; a stated confidence is one more call."""
    rows = []
    with path.open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            cells = [row[f"{model}/{column}"] for column in ("error", "stated_confidence", "logit_confidence")]
            if all(cells):
                rows.append([float(cell) for cell in cells])
    error, stated, logit = np.array(rows).T
    broken = np.array([tie_order(1e-3, 1 - a, 1 - b) for a, b in zip(stated.tolist(), logit.tolist(), strict=True)])
    scores = [Score("logit", 1, 1 - logit), Score("stated", 2, 1 - stated), Score("stated, ties by logit", 2, broken)]
    return Pool(f"MMLU-Pro, {model.removesuffix('-2024-07-18')}", error.astype(np.int64), scores)


def _mmbench(path: Path, name: str) -> Pool:
    file = import_published(path).file
    records = [record for record in file.records if record.drawn is not None and record.correct is not None]
    if not records:
        records = _labelled(file.records, "option")
    sets = [record.drawn for record in records if record.drawn is not None]
    error = np.array([not record.correct for record in records], dtype=np.int64)
    names = ("max_softmax", "predictive_entropy")
    return Pool(name, error, [score_of(sets, make_estimator(each), 0, file.header.plan) for each in names])


# -- The certificate beside a threshold tool ---------------------------------------------------------------------------


def tool_threshold(
    u: Reals, error: NDArray[np.int64], alpha: float, rng: np.random.Generator, *, conservative: bool
) -> float | None:
    """The threshold of jevcal (github.com/abhixhek/jevcal, commit 2be0810), or None where it reports a failure.

    On a random half it takes the threshold that accepts most of those with at least 30 accepted and an accuracy of
    1 - alpha; in its conservative mode the one-sided 95 % lower Wilson bound of the accuracy must reach that. The
    other half must show at least 1 - alpha - .02.
    """
    held = rng.random(u.size) < 0.5
    fitted = np.flatnonzero(~held)
    order = fitted[np.argsort(u[fitted], kind="stable")]
    k = np.arange(1, order.size + 1)
    accuracy = 1 - np.cumsum(error[order]) / k
    reached = _wilson_lower(accuracy, k) if conservative else accuracy
    last = np.append(u[order][1:] != u[order][:-1], [True])  # ties are accepted together
    able = np.flatnonzero(last & (k >= 30) & (reached >= 1 - alpha))
    if not able.size:
        return None
    threshold = float(u[order][able[-1]])
    checked = error[held & (u <= threshold)]
    return None if checked.size and 1 - checked.mean() < 1 - alpha - 0.02 else threshold


def _wilson_lower(share: Reals, k: NDArray[np.int64], z: float = 1.645) -> Reals:
    lower: Reals = (share + z**2 / (2 * k) - z * np.sqrt(share * (1 - share) / k + (z / (2 * k)) ** 2)) / (1 + z**2 / k)
    return lower


def compared(pool: Pool, *, draws: int = DRAWS, labels: int = 300, alpha: float = 0.1) -> tuple[Compared, ...]:
    """The first score of a pool under the certificate and under both modes of the tool."""
    u, error = pool.scores[0].values, pool.error
    target = Target.of("certified", alpha=alpha, delta=DELTA)
    names = ("rule certified", "threshold tool, conservative mode", "threshold tool, ordinary mode")
    answered: dict[str, list[tuple[float, bool]]] = {name: [] for name in names}
    for number in range(draws):
        order = np.random.default_rng(number).permutation(error.size)
        drawn, rest = order[:labels], order[labels:]
        accepted, _ = certified_once(pool.scores[0], (u, u), error, drawn, target)
        chosen = [accepted[rest]]
        for conservative in (True, False):
            rng = np.random.default_rng([number, 1])  # the tool's own split, the same for both modes
            threshold = tool_threshold(u[drawn], error[drawn], alpha, rng, conservative=conservative)
            chosen.append(np.zeros(rest.size, dtype=np.bool_) if threshold is None else u[rest] <= threshold)
        for name, own in zip(names, chosen, strict=True):
            answered[name].append((float(own.mean()), bool(own.any() and error[rest][own].mean() > alpha)))
    return tuple(
        Compared(
            name=name, answered=float(np.mean([a for a, _ in rows])), violated=float(np.mean([v for _, v in rows]))
        )
        for name, rows in answered.items()
    )


# -- Seconds -----------------------------------------------------------------------------------------------------------


def timed(pool: Pool, records: Sequence[Record], plan: SamplingPlan) -> Pool:
    """The pool with the seconds a question of the embedded model, asked one after another on this machine."""
    from examples.demo.embedded import MODEL
    from integrations.transformers_chat import TransformersChat

    model = TransformersChat(model=str(MODEL))
    asked = [record.question for record in records[:: max(1, len(records) // TIMED)]][:TIMED]
    calls = sorted({int(score.calls) for score in pool.scores if score.second is None})
    by_calls = {
        each: _seconds(partial(_draw, model, plan.model_copy(update={"n": each - 1, "seed": None})), asked)
        for each in calls
    }
    guard = Guardrail(model=model, artifact=_staged_artifact(model, pool), remember=0)
    staged = _seconds(lambda question: guard.assess(question), asked)
    scores = []
    for score in pool.scores:
        if score.second is None:
            scores.append(replace(score, seconds=by_calls[int(score.calls)]))
        else:
            scores.append(replace(score, seconds=staged if score.more == 2 else score.seconds))
    return replace(pool, scores=scores)


def _draw(model: BaseChatModel, plan: SamplingPlan, question: str) -> None:
    Sampler(model, plan).draw([[HumanMessage(question)]])


def _seconds(ask: Callable[[str], object], questions: Sequence[str]) -> float:
    ask(questions[0])  # the first call loads what later calls share
    started = time.perf_counter()
    for question in questions:
        ask(question)
    return (time.perf_counter() - started) / len(questions)


def _staged_artifact(model: BaseChatModel, pool: Pool) -> CalibrationArtifact:
    """Two stages at the certificate of alpha .15 with 1,000 labels (or all but the scale)."""
    score = next(each for each in pool.scores if each.more == 2)
    order = np.random.default_rng(0).permutation(pool.error.size)
    labels = order[: min(1_000, pool.error.size - SCALE)]
    scale = score.values[order[labels.size : labels.size + SCALE]]
    u, _ = ordered(score, scale)
    out = fit(u[labels], pool.error[labels], alpha=0.15, delta=DELTA, rule="certified")
    cheap, second = make_estimator("answer_word_nll"), make_estimator("primary_disagreement")
    ranks = Ranks(scores=(tuple(np.sort(scale).tolist()),), questions=Training(ids=(), questions=()))
    staged = then(cheap, second, w=score.weight, ranks=ranks)
    threshold = out.threshold if isinstance(out, Feasible) else 0.5
    own = plan_for([cheap, second], calls=1.4, max_tokens=16)
    artifact = make_artifact(model, threshold=threshold)
    return artifact.model_copy(update={"estimator": staged.spec, "plan": own})


# -- The pages ---------------------------------------------------------------------------------------------------------

README_ROWS: Sequence[tuple[str, str, str]] = (
    ("semantic_entropy", "log-probabilities", "embedded model"),
    ("two stages, answer_word_nll", "log-probabilities", "embedded model"),
    ("sequence_nll", "log-probabilities", "embedded model"),
    ("graded_disagreement, n = 10", "any chat model", "TriviaQA"),
    ("primary_disagreement, n = 10", "any chat model, answers that are numbers", "GSM8K"),
    ("stated, ties by logit", "a confidence stated in words", "MMLU-Pro, gpt-4.1"),
    ("max_softmax", "likelihoods of options", "MMBench, LLaVA 34B"),
)
"""Rows of README: score, needs, and the pool's name."""


def calls_page(figures: Figures) -> str:
    """The table of docs/results.md: the share answered at each alpha, by pool, score and number of labels."""
    rows = ["|questions, wrong without a gate; alphas|score|calls|300 labels|1,000 labels|", "|---|---|--:|--:|--:|"]
    for table in figures.tables:
        alphas = "/".join(f"{alpha:g}" for alpha in table.alphas)
        about = f"{table.name}: {table.n:,}, {100 * table.wrong:.0f} %; {alphas}"
        for score in dict.fromkeys(line.score for line in table.lines):
            lines = {line.labels: line for line in table.lines if line.score == score}
            shares = "|".join(_shares(lines[labels]) if labels in lines else "" for labels in (300, 1_000))
            rows.append(f"|{about}|{_code(score)}|{_calls([line.calls for line in lines.values()])}|{shares}|")
            about = ""
    worst = max(cell.violated for table in figures.tables for line in table.lines for cell in line.cells)
    rows.append(f"\nIn no cell is the threshold above alpha in more than {100 * worst:.0f} % of the draws.")
    return "\n".join(rows)


def tool_page(figures: Figures) -> str:
    """The comparison with a threshold tool, for docs/results.md."""
    names = list(figures.tool)
    lines = [f"|300 labels, alpha .1|{'|'.join(names)}|", f"|---|{'--:|' * len(names)}"]
    for row in range(3):
        own = [figures.tool[name][row] for name in names]
        cells = "|".join(f"{100 * each.answered:.1f} ({100 * each.violated:.0f})" for each in own)
        lines.append(f"|{own[0].name}|{cells}|")
    return "\n".join(lines)


def readme_page(figures: Figures) -> str:
    """The table of README: the share answered with 300 labels."""
    lines = [
        "|score|calls per question|needs|measured on|answered at 10 / 15 / 20 %|",
        "|---|--:|---|---|--:|",
    ]
    tables = {table.name.lower(): table for table in figures.tables}
    for score, needs, pool in README_ROWS:
        table = next(table for name, table in tables.items() if name.startswith(pool.lower()))
        line = next(line for line in table.lines if (line.score, line.labels) == (score, 300))
        shares = " / ".join(f"{100 * cell.accepted:.0f}" for cell in line.cells)
        lines.append(f"|{_code(score)}|{_calls([line.calls])}|{needs}|{pool}|{shares}|")
    return "\n".join(lines)


def pages(figures: Figures) -> dict[Path, dict[str, str]]:
    """The tables by page and by the name between the marks that they stand between."""
    return {
        ROOT / "docs" / "results.md": {"calls": calls_page(figures), "tool": tool_page(figures)},
        ROOT / "README.md": {"calls": readme_page(figures)},
    }


def filled(text: str, tables: dict[str, str]) -> str:
    """A page with its tables between ``<!-- table: NAME -->`` and ``<!-- end -->`` replaced."""
    for name, table in tables.items():
        marked = re.search(rf"<!-- table: {name} -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
        assert marked is not None, name
        start, end = marked.span(1)
        text = f"{text[:start]}\n{table.strip()}\n\n{text[end:]}"
    return text


def _shares(line: Line) -> str:
    return "/".join(f"{100 * cell.accepted:.1f}" if cell.accepted else "-" for cell in line.cells)


def _calls(calls: Sequence[float]) -> str:
    low, high = (f"{each:.2g}" for each in (min(calls), max(calls)))
    return low if low == high else f"{low} to {high}"


def _code(score: str) -> str:
    """Names of estimators as code."""
    return re.sub(r"\b(?:[a-z]+(?:_[a-z]+)+|perplexity)\b", lambda match: f"`{match[0]}`", score)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="folder with the recorded outputs; without it two pools")
    parser.add_argument("--splits", type=int, default=80)
    parser.add_argument("--questions", type=int, help="ask the embedded model only so many; for a first look")
    parser.add_argument("--no-seconds", action="store_true", help="do not time the embedded model")
    parser.add_argument("--write", action="store_true", help="renew docs/calls.json, docs/results.md and README.md")
    arguments = parser.parse_args(argv)
    if arguments.write and arguments.data is None:
        parser.error("--write needs the folder of recorded outputs: the pages show all pools")
    tables: list[Table] = []

    def add(pool: Pool) -> None:
        tables.append(table_of(pool, SIZES, arguments.splits))
        print(calls_page(Figures(splits=arguments.splits, tables=(tables[-1],), tool={})), flush=True)

    graded = make_estimator("graded_disagreement")
    with TemporaryDirectory() as scratch:
        records, plan = embedded(Path(scratch), arguments.questions)
        own = _pool("Embedded model", records, plan, graded, (0.1, 0.15, 0.2))
        add(own if arguments.no_seconds else timed(own, records, plan))
        add(_smollm2(SMOLLM2, Path(scratch)))
    if arguments.data is None:
        return
    data: Path = arguments.data
    numbers = make_estimator("primary_disagreement", judge=make_judge("numeric"))
    add(_resampled(data / "triviaqa-20samples.jsonl", "TriviaQA, no log-probabilities", "token_f1", graded))
    add(_resampled(data / "gsm8k-13variants.jsonl", "GSM8K, no log-probabilities", "numeric", numbers))
    add(_mmlu_pro(data / "mmlu-pro-confidence.csv", "gpt-4.1"))
    add(_mmlu_pro(data / "mmlu-pro-confidence.csv", "gpt-4o-mini-2024-07-18"))
    options = [
        _mmbench(data / "mmbench-llava-v1.6-34b-options.jsonl", "MMBench, LLaVA 34B"),
        _mmbench(data / "mmbench-llava-v1.5-7b-options.jsonl", "MMBench, LLaVA 7B"),
    ]
    for pool in options:
        add(pool)
    tool = {pool.name: compared(pool) for pool in options}
    figures = Figures(splits=arguments.splits, tables=tuple(tables), tool=tool)
    print(tool_page(figures))
    if arguments.write:
        atomic_write(ROOT / "docs" / "calls.json", figures.model_dump_json(indent=1) + "\n")
        for path, own_tables in pages(figures).items():
            atomic_write(path, filled(path.read_text(encoding="utf-8"), own_tables))


if __name__ == "__main__":
    main()
