"""How label rules agree with people: `python -m benchmarks.label_rules --data FOLDER`.

Each answer of `nq-human-labels.jsonl` (NQ-open, five systems) is labelled by each rule and compared with the label that
people gave. A cell is agreement on the answers that the rule decides / answers that it calls right and people wrong /
answers that it calls wrong and people right, both of all answers; behind `stated` stands the share it leaves undecided.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from calibrate.correctness import CorrectnessRule, make_rule
from calibrate.data.questions import Question

FILE = "nq-human-labels.jsonl"
SYSTEMS = ("fid", "gpt35", "chatgpt", "gpt4", "newbing")
RULES = ("exact", "token_f1", "contains", "stated")


def outcomes(path: Path, system: str, rule: CorrectnessRule) -> Counter[tuple[bool | None, bool]]:
    """Number of answers of a system by the rule's label and the people's."""
    counts: Counter[tuple[bool | None, bool]] = Counter()
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        answer = row["answers"][system]
        if answer["text"] and answer["correct"] is not None:
            question = Question(id=row["id"], question=row["question"], references=tuple(row["references"]))
            counts[rule.label(answer["text"], question).correct, answer["correct"]] += 1
    return counts


def cell(counts: Counter[tuple[bool | None, bool]]) -> str:
    """Agreement, false right and false wrong, and the undecided share if there are any."""
    n, undecided = counts.total(), counts[None, True] + counts[None, False]
    agreement = (counts[True, True] + counts[False, False]) / (n - undecided)
    text = f"{agreement:.3f}/{counts[True, False] / n:.3f}/{counts[False, True] / n:.3f}"
    return f"{text}, {undecided / n:.3f}" if undecided else text


def table(path: Path) -> str:
    """One Markdown table, a row for each system."""
    lines = [f"|NQ-open|{'|'.join(RULES)}|", f"|{'---|' * (len(RULES) + 1)}"]
    rules = [make_rule(name) for name in RULES]
    lines += [f"|{system}|{'|'.join(cell(outcomes(path, system, rule)) for rule in rules)}|" for system in SYSTEMS]
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_rules", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with the recorded outputs")
    path = parser.parse_args().data / FILE
    print(table(path) if path.is_file() else f"{path} is not there: nothing to measure.")


if __name__ == "__main__":
    main()
