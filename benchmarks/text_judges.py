"""How light judges rank real answers, and which pairs they confuse: `python -m benchmarks.text_judges --data FOLDER`.

AUROC is the probability that a wrong answer scores above a right one, for the score `primary_disagreement`. Pairs are
answers made to mislead: a false merge makes a model look sure, a false split costs an answer at most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.estimators.sources import FILES
from calibrate.correctness import label_records, make_rule
from calibrate.data.records import Record, read_records
from calibrate.scoring.metrics import auroc
from examples.demo import recorded, smollm2
from guardrail.judges import Judge, make_judge
from guardrail.types import SamplingPlan
from guardrail.uncertainty import cluster, make_estimator, measure_stream

__all__ = ["merges", "ranking", "records_of", "table"]

JUDGES = ("exact", "text", "numeric")
BUNDLED = ("smollm2", "TriviaQA", "GSM8K")
PAIRS = ("answer-pairs.jsonl", "answer-pairs-2.jsonl")


def records_of(name: str) -> Sequence[Record]:
    """Labelled records of a bundled set, by rule `contains` (GSM8K by `numeric`); one of `BUNDLED`."""
    if name == "smollm2":
        with TemporaryDirectory() as folder:
            records: Sequence[Record] = smollm2.recorded(Path(folder) / "records.jsonl").records
    else:
        records = recorded.load(next(each for each in recorded.DATASETS if each.name == name)).records
    return label_records(records, make_rule("numeric" if name == "GSM8K" else "contains"))


def ranking(records: Sequence[Record], judge: Judge) -> float | None:
    """AUROC of `primary_disagreement` by a judge; None if all answers are right, or all are wrong."""
    labelled = [record for record in records if record.correct is not None and record.drawn is not None]
    estimator = make_estimator("primary_disagreement", judge=judge)
    drawn = [record.drawn for record in labelled if record.drawn is not None]
    scores = list(measure_stream(drawn, [estimator], SamplingPlan(n=max(len(each.samples) for each in drawn))))
    measured = [
        (score.value, not record.correct)
        for (score,), record in zip(scores, labelled, strict=True)
        if score.value is not None
    ]
    return auroc(*map(np.array, zip(*measured, strict=True)))


def merges(path: Path, judge: Judge) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The pairs of a file that a judge takes for the same although they differ, and the other way round."""
    wrong: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        clusters = cluster("", [row["a"], row["b"]], judge)
        same = clusters is not None and len(clusters.sizes) == 1
        if same is not row["same"]:
            wrong[row["same"]].append((row["a"], row["b"]))
    return wrong


def table(data: Path, files: Sequence[Path] = ()) -> str:
    """One Markdown table: a row for each judge, a column for each set and for each file of pairs."""
    sets = {name: records_of(name) for name in BUNDLED}
    for path in files:
        sets[path.name] = label_records(read_records(path).records, make_rule("contains"))
    sets |= {name: FILES[name][1](data / FILES[name][0], name).records for name in ("cruxeval",) if data.is_dir()}
    pairs = [data / name for name in PAIRS if (data / name).is_file()]
    heads = [f"{name} ({len(records):,})" for name, records in sets.items()] + [
        f"{path.stem}: merged, split" for path in pairs
    ]
    lines = [f"|judge|{'|'.join(heads)}|", f"|{'---|' * (len(heads) + 1)}"]
    for judge in map(make_judge, JUDGES):
        cells = [f"{ranking(records, judge):.3f}" for records in sets.values()]
        cells += [", ".join(str(len(each)) for each in merges(path, judge)) for path in pairs]
        lines.append(f"|`{judge.spec.name}`|{'|'.join(cells)}|")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.text_judges", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="recorded outputs and pairs")
    parser.add_argument("--records", type=Path, action="append", default=[], help="a record file more; repeatable")
    arguments = parser.parse_args()
    print(table(arguments.data, arguments.records))


if __name__ == "__main__":
    main()
