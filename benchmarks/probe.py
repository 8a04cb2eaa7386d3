"""Probes on hidden states against scores of one call, at equal labels: `python -m benchmarks.probe CACHE`.

CACHE is a folder that the first run fills, in minutes, with ``NAME.npz`` for each pool: ``states`` (questions, layers,
width), the mean hidden state over the answer's tokens from one forward pass over prompt and recorded answer; ``error``;
and the scores of `BASELINES`, NaN where unmeasured. A probe is ridge regression on the mean of the upper two thirds of
the layers. The error probe takes its training questions from the labelled ones; the entropy probe learns from 500
questions without labels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from langchain_core.messages import HumanMessage
from numpy.typing import NDArray

from benchmarks.cost import embedded
from calibrate.correctness import label_records, make_rule
from calibrate.data.records import Record
from calibrate.fitting import fit
from calibrate.scoring.metrics import auroc
from examples.demo import smollm2
from examples.demo.embedded import MODEL
from guardrail.outcome import Feasible
from guardrail.uncertainty import make_estimator, measure_stream
from guardrail.uncertainty.plan import plan_for
from integrations.transformers_chat import TransformersChat

Reals = NDArray[np.float64]
ALPHAS = (0.15, 0.2, 0.25)
BASELINES = ("sequence_nll", "answer_word_nll", "semantic_entropy")
UNLABELLED = 500
SHARES = {300: (1 / 6, 1 / 3, 1 / 2), 1_000: (0.2, 0.35, 0.5)}
PENALTIES = np.logspace(0, 5, 11)


def states_of(chat: TransformersChat, records: Sequence[Record]) -> NDArray[np.float16]:
    """Return the mean hidden state over the tokens of each answer: shape (questions, layers, width)."""
    rows = []
    for record in records:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        text, prompt = chat._encode([HumanMessage(record.question)], ())
        tokens = torch.tensor([chat._ids(text + record.drawn.primary.text)])
        with torch.inference_mode():
            hidden = chat._local.model(input_ids=tokens, output_hidden_states=True, logits_to_keep=1).hidden_states
        rows.append(torch.cat(hidden)[:, len(prompt) :].mean(1).to(torch.float16).numpy())
    return np.stack(rows)


def fill(cache: Path, questions: int | None = None) -> None:
    """Write the pools of the recorded chat model and of the embedded model that the cache lacks."""
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / "new.npz").exists():
        file = smollm2.recorded(cache / "new.jsonl")
        _save(cache / "new.npz", smollm2.chat(), label_records(file.records, make_rule("contains"))[:questions])
    if not (cache / "embedded.npz").exists():
        _save(cache / "embedded.npz", TransformersChat(model=str(MODEL)), embedded(cache, questions)[0])


def _save(path: Path, chat: TransformersChat, records: Sequence[Record]) -> None:
    usable = [r for r in records if r.correct is not None and r.drawn and r.drawn.primary and r.drawn.primary.text]
    plan = plan_for([make_estimator("semantic_entropy")])
    measured = list(
        measure_stream([r.drawn for r in usable if r.drawn], [make_estimator(name) for name in BASELINES], plan)
    )
    values = np.array([[np.nan if each.value is None else each.value for each in row] for row in measured])
    error = np.array([not r.correct for r in usable], dtype=np.int64)
    np.savez(path, states=states_of(chat, usable), error=error, **dict(zip(BASELINES, values.T, strict=True)))


def ridge(states: Reals, target: Reals) -> Callable[[Reals], Reals]:
    """Fit ridge regression on standardised states; the penalty has the least leave-one-out error in training."""
    mean, scale, centre = states.mean(0), states.std(0), target.mean()
    scale = np.where(scale > 1e-6, scale, 1.0)
    left, size, right = np.linalg.svd((states - mean) / scale, full_matrices=False)
    along = left.T @ (target - centre)

    def missed(penalty: float) -> float:
        shrink = size**2 / (size**2 + penalty)
        leverage = (left**2) @ shrink + 1 / target.size
        rest = target - centre - left @ (shrink * along)
        return float(np.mean((rest / np.maximum(1 - leverage, 1e-3)) ** 2))

    penalty = min(PENALTIES, key=missed)
    weights = right.T @ (size / (size**2 + penalty) * along)
    return lambda other: (other - mean) / scale @ weights + centre


def measure(path: Path, splits: int) -> None:
    """Print acceptance on questions that neither training nor calibration used, for one pool."""
    pool = np.load(path)
    usable = ~np.isnan(pool["sequence_nll"])
    hidden = pool["states"][usable].astype(np.float64)
    states, error = hidden[:, round(hidden.shape[1] / 3) :].mean(1), pool["error"][usable].astype(np.int64)
    baselines = {name: pool[name][usable] for name in BASELINES}
    entropy = np.nan_to_num(baselines["semantic_entropy"], nan=np.nanmax(baselines["semantic_entropy"]))
    print(f"\n{path.stem}: {error.size} questions, {100 * error.mean():.1f} % wrong")
    for labels, shares in SHARES.items():
        cells: dict[str, list[list[float]]] = {}
        for split in range(splits):
            order = np.random.default_rng(split).permutation(error.size)
            labelled, test = order[:labels], order[labels + UNLABELLED :]
            free, nothing = order[labels : labels + UNLABELLED], order[:0]
            scores = {name: (values, labelled, nothing) for name, values in baselines.items()}
            scores["entropy probe"] = (ridge(states[free], entropy[free])(states), labelled, free)
            for share in shares:
                train, rest = np.split(labelled, [round(share * labels)])
                probe = ridge(states[train], error[train].astype(np.float64))
                scores[f"error probe, {share:.0%} of the labels"] = (probe(states), rest, train)
            for name, (u, calibration, trained) in scores.items():
                cells.setdefault(name, []).append(_cells(u, error, calibration, trained, test))
        for name, rows in cells.items():
            area, *by_alpha = np.mean(rows, axis=0).tolist()
            shown = " | ".join("{:.1f} ({:.2f}, {:.2f})".format(*by_alpha[i : i + 3]) for i in range(0, 9, 3))
            print(f"| {labels} | {name} | {area:.3f} | {shown} |", flush=True)


def _cells(
    u: Reals,
    error: NDArray[np.int64],
    calibration: NDArray[np.int64],
    trained: NDArray[np.int64],
    test: NDArray[np.int64],
) -> list[float]:
    """AUROC, then for each alpha: acceptance in %, nothing certified, error above alpha outside training."""
    known = test[~np.isnan(u[test])]
    cells = [auroc(u[known], error[known]) or 0.0]
    calibration = calibration[~np.isnan(u[calibration])]
    for alpha in ALPHAS:
        out = fit(u[calibration], error[calibration], alpha=alpha, delta=0.1, rule="certified")
        accepted = u <= out.threshold if isinstance(out, Feasible) else np.zeros(u.size, dtype=np.bool_)
        others = accepted.copy()
        others[trained] = False
        above = bool(others.any() and error[others].mean() > alpha)
        cells += [100 * float(accepted[test].mean()), not accepted.any(), above]
    return cells


def main() -> None:
    """Print a table for each pool of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--splits", type=int, default=80)
    parser.add_argument("--questions", type=int, help="only so many of each pool; for a first look")
    arguments = parser.parse_args()
    fill(arguments.cache, arguments.questions)
    print(
        f"Cells: acceptance in % (share that certifies nothing, share above alpha); alpha {ALPHAS}; third column AUROC."
    )
    for path in sorted(arguments.cache.glob("*.npz")):
        measure(path, arguments.splits)


if __name__ == "__main__":
    main()
