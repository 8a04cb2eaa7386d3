"""Recorded sample sets of real models, for benchmarks that draw from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.correctness import label_records, make_rule
from calibrate.data.formats import ImportSettings, import_file
from guardrail.judges import Judge
from guardrail.judges import make_judge as make
from guardrail.types import SampleSet

__all__ = ["FILES", "Recorded", "load"]

FILES = {
    "triviaqa-20samples": ("text", "exact"),
    "gsm8k-13variants": ("numeric", "numeric"),
    "cruxeval-output-10samples": ("exact", None),
    "nq-human-labels": ("text", None),
    "intercode-sql-agents": ("exact", None),
}
"""File: the judge that suits its answers, and the rule that labels them (None: the file has labels)."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One file.

    Attributes:
        name: Name of the file.
        sets: One sample set per question, all of the same size.
        error: 1 where the primary answer is wrong, shape (questions,).
        judge: The judge.
        n: Samples per question.
    """

    name: str
    sets: tuple[SampleSet, ...]
    error: NDArray[np.int64]
    judge: Judge
    n: int


def load(folder: Path, name: str, *, most: int = 10, judge: str | None = None) -> Recorded:
    """Read one file as `calibrate import` does: the primary answer is the file's own, or the majority's.

    Args:
        folder: Folder of the files.
        name: One of `FILES`.
        most: Largest number of samples per question; questions with fewer samples than the others are left out.
        judge: Name of a judge to use instead of the usual judge.
    """
    usual, rule = FILES[name]
    system = "gpt4" if name.startswith("nq") else None
    records = import_file(folder / f"{name}.jsonl", ImportSettings(system=system)).file.records
    labelled = label_records(records, make_rule(rule)) if rule else records
    sizes = [len(record.drawn.samples) for record in labelled if record.drawn is not None]
    n = max(set(sizes), key=sizes.count)
    sets, errors = [], []
    for record in labelled:
        drawn = record.drawn
        if drawn is None or drawn.primary is None or record.correct is None or len(drawn.samples) < n:
            continue
        if all(sample.text for sample in drawn.samples):
            # An agent's query is judged by what it returned, which is the sample's text.
            samples = tuple(sample.model_copy(update={"tool_calls": ()}) for sample in drawn.samples)
            sets.append(drawn.model_copy(update={"samples": samples}))
            errors.append(int(not record.correct))
    return Recorded(name, tuple(sets), np.array(errors, dtype=np.int64), make(judge or usual), min(n, most))
