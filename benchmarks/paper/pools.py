"""Pools of the tables: recorded outputs of models, and simulated ones with the paper's accuracy and AUROC."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.printed import POPULATIONS, Population
from calibrate.correctness import make_rule
from calibrate.data.questions import Question
from calibrate.evaluation.populations import gap
from guardrail.errors import UsageError
from guardrail.judges import normalise
from guardrail.judges.numbers import parse_number

__all__ = ["Pool", "pairs", "read_confidences", "read_options", "read_samples", "recorded_pools", "simulated_pools"]

Key = Callable[[str], object]
PAIRS = "options-7models-5tasks.csv.gz"
"""Seven models on five multiple-choice data sets."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Outputs of one model on one data set."""

    dataset: str
    model: str
    error: NDArray[np.int64]
    """1 where the answer is wrong, shape (N,)."""
    uncertainty: dict[str, NDArray[np.float64]]
    """Scores by name, each of shape (N,), +inf is not measured; the first is the main one."""


def pairs(folder: Path) -> list[Pool]:
    """Return the 35 pairs of data set and model, with one minus the largest option probability (MSP) as the score.

    An answer that could not be parsed is unmeasured: its score is +inf, and it is not right.

    Raises:
        UsageError: The file is missing.
    """
    names = {
        "arc": "ARC",
        "hellaswag": "HellaSwag",
        "mmlu": "MMLU",
        "truthfulqa": "TruthfulQA",
        "winogrande": "WinoGrande",
    }
    found: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    with gzip.open(_file(folder, PAIRS), "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            error, msp = found.setdefault((row["dataset"], row["model"]), ([], []))
            error.append(int(row["grade"] != "Correct"))
            msp.append(math.inf if row["grade"] == "Unparseable" else 1.0 - float(row["max_softmax"]))
    return [_pool(names[dataset], model, error, {"MSP": msp}) for (dataset, model), (error, msp) in found.items()]


def simulated_pools(
    repetitions: int, *, items: int = 4_000, seed: int = 0, populations: Sequence[Population] = POPULATIONS
) -> list[Pool]:
    """Return independent pools of every population, the paper's 4,000 items each.

    The scores of the estimators of one pool are drawn independently of each other given the errors.
    """
    children = np.random.SeedSequence(seed).spawn(repetitions * len(populations))
    return [
        _binormal_pool(population, items, np.random.default_rng(child))
        for (population, _), child in zip(product(populations, range(repetitions)), children, strict=True)
    ]


def _binormal_pool(population: Population, items: int, rng: np.random.Generator) -> Pool:
    error = (rng.random(items) >= population.accuracy).astype(np.int64)
    scores = {name: rng.normal(size=items) + gap(auroc) * error for name, auroc in population.auroc.items()}
    return Pool(population.dataset, population.model, error, scores)


def recorded_pools(folder: Path) -> list[Pool]:
    """Return the pools with two scores each.

    Raises:
        UsageError: A file is missing.
    """
    pools = [
        read_options(_file(folder, f"mmbench-llava-{name}-options.jsonl"), "MMBench", f"LLaVA-{name}")
        for name in ("v1.6-34b", "v1.5-7b")
    ]
    pools += [
        read_options(_file(folder, f"medqa-mistral-{name}-options.jsonl"), "MedQA", f"Mistral, {name}")
        for name in ("baseline", "finetuned")
    ]
    pools += read_confidences(_file(folder, "mmlu-pro-confidence.csv"), "MMLU-Pro")
    pools += [
        read_samples(_file(folder, "gsm8k-13variants.jsonl"), "GSM8K", "Codex, 13 prompts", "numeric"),
        read_samples(_file(folder, "triviaqa-20samples.jsonl"), "TriviaQA", "20 samples", "token_f1"),
    ]
    return pools


def read_options(path: Path, dataset: str, model: str) -> Pool:
    """Read multiple choice: the answer is the likeliest option.

    The scores are the entropy over the options, and one minus the largest probability.
    """
    error, entropy, msp = [], [], []
    for row in _rows(path):
        p = _probabilities(row)
        best = list(row["options"])[int(p.argmax())]
        right = bool(row["correct"]) if "correct" in row else best == row["reference"]
        error.append(int(not right))
        entropy.append(float(-(p[p > 0] * np.log(p[p > 0])).sum()))
        msp.append(float(1.0 - p.max()))
    return _pool(dataset, model, error, {"PE": entropy, "MSP": msp})


def read_samples(path: Path, dataset: str, model: str, correctness: str) -> Pool:
    """Read sampled answers: the answer is the commonest sample.

    The scores are the entropy of the distinct answers, and one minus the share of the commonest.

    Answers are the same if they are the same number (correctness "numeric") or the same normalised text.
    """
    rule = make_rule(correctness)
    key = _number_or_text if correctness == "numeric" else normalise
    error, entropy, vote = [], [], []
    for row in _rows(path):
        texts = [sample if isinstance(sample, str) else str(sample["text"]) for sample in row["samples"]]
        counts = Counter(map(key, texts))
        (common, most), n = counts.most_common(1)[0], len(texts)
        answer = next(text for text in texts if key(text) == common)
        question = Question(id=str(row["id"]), question=row.get("question", "-"), references=tuple(row["references"]))
        label = rule.label(answer, question)
        if label.correct is None:
            continue
        error.append(int(not label.correct))
        entropy.append(math.fsum(-c / n * math.log(c / n) for c in sorted(counts.values())))
        vote.append(1.0 - most / n)
    return _pool(dataset, model, error, {"entropy": entropy, "vote": vote})


def read_confidences(path: Path, dataset: str) -> list[Pool]:
    """Read a table with columns MODEL/error, MODEL/logit_confidence and MODEL/stated_confidence: one pool per model.

    Questions on which a model gave no confidence of either kind are left out of its pool.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    models = [name.removesuffix("/error") for name in rows[0] if name.endswith("/error")]
    pools = []
    for model in models:
        columns = [f"{model}/{name}" for name in ("error", "logit_confidence", "stated_confidence")]
        complete = [[float(row[c]) for c in columns] for row in rows if all(row[c] not in ("", "nan") for c in columns)]
        error, logit, stated = (list(column) for column in zip(*complete, strict=True))
        scores = {"logit": [1.0 - c for c in logit], "stated": [1.0 - c for c in stated]}
        pools.append(_pool(dataset, model, [int(e) for e in error], scores))
    return pools


def _pool(dataset: str, model: str, error: list[int], scores: dict[str, list[float]]) -> Pool:
    return Pool(dataset, model, np.array(error), {name: np.array(values) for name, values in scores.items()})


def _probabilities(row: dict[str, Any]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = np.array(list(row["options"].values()), dtype=np.float64)
    if row.get("option_scale", "logit") == "logit":
        values = np.exp(values - values.max())
    return np.asarray(values / values.sum())


def _number_or_text(text: str) -> object:
    number = parse_number(text)
    return normalise(text) if number is None else number.value


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise UsageError(f"no file {name} in {folder}. --data is the folder with the recorded outputs.")
    return path
