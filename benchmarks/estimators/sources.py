"""The recorded outputs behind the table: each file as records that estimators can measure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.published import import_published
from calibrate.correctness import label_records, make_rule
from calibrate.data.records import Record, RecordFile, read_records
from guardrail.errors import UsageError
from guardrail.judges import normalise
from guardrail.judges.numbers import parse_number
from guardrail.types import Sample, SampleSet, SamplingPlan

__all__ = ["FILES", "Baseline", "Source", "recorded", "sources"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A simple score to beat.

    Attributes:
        name: How it is computed.
        published: Its AUROC according to the publishers of the data.
        values: The score of every record, computed here without any estimator; None if a record has nothing to count.
    """

    name: str
    published: float
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """One pool of the table.

    Attributes:
        name: Name for `--files`.
        title: Heading of its table.
        path: The file.
        records: Labelled records.
        plan: The plan that the samples were drawn with.
        judges: Judges other than the default one, for estimators that cluster.
        similarities: Similarities other than the defaults, for estimators over a graph.
        clustered: Whether groups are clusters of dependent items: resampled and halved whole.
        notes: Remarks on the file, and on missing inputs.
        baseline: A simple score to beat.
    """

    name: str
    title: str
    path: Path
    records: Sequence[Record]
    plan: SamplingPlan
    judges: tuple[str, ...] = ()
    similarities: tuple[str, ...] = ()
    clustered: bool = False
    notes: tuple[str, ...] = ()
    baseline: Baseline | None = None


def sources(folder: Path, names: Sequence[str] | None = None) -> list[Callable[[], Source]]:
    """Return one reader for each named file (default: all), in the order of the table; calling it reads the file.

    Raises:
        UsageError: An unknown name, or a file that is missing.
    """
    chosen = list(names or FILES)
    unknown = [name for name in chosen if name not in FILES]
    if unknown:
        raise UsageError(f"no file named {unknown[0]!r}; choose of {', '.join(FILES)}")
    missing = [FILES[name][0] for name in chosen if not (folder / FILES[name][0]).is_file()]
    if missing:
        raise UsageError(f"no file {missing[0]} in {folder}. --data is the folder with the recorded outputs.")
    return [_reader(folder / FILES[name][0], name) for name in chosen]


def recorded(path: Path) -> Source:
    """Return the source of a labelled record file (`calibrate collect`, `calibrate label`)."""
    file = read_records(path)
    if file.header.correctness is None:
        raise UsageError(f"{path} has no labels. Run: calibrate label {path}")
    title = f"{file.header.model.model}, {file.header.questions_name}"
    rule = file.header.correctness
    logprobs = "with" if file.header.plan.logprobs else "without"
    note = (
        f"{len(file.records)} questions, n = {file.header.plan.n} samples, {logprobs} log-probabilities; right by "
        f"`{rule.name}` {rule.params or ''}".rstrip()
        + "."
    )
    judges = ("exact",) if file.header.plan.n else ()
    return Source(
        path.stem if path.stem != "records" else path.parent.name,
        title,
        path,
        file.records,
        file.header.plan,
        judges=judges,
        similarities=("rouge_l",) if judges else (),
        notes=(note,),
    )


def _reader(path: Path, name: str) -> Callable[[], Source]:
    return lambda: FILES[name][1](path, name)


def _imported(path: Path, rule: str | None = None) -> RecordFile:
    file = import_published(path).file
    if rule is None:
        return file
    return RecordFile(path, file.header, tuple(label_records(file.records, make_rule(rule))))


def _triviaqa(path: Path, name: str) -> Source:
    file = _imported(path, "token_f1")
    return Source(
        name,
        "TriviaQA, open questions, 20 samples",
        path,
        file.records,
        file.header.plan,
        judges=("exact", "numeric", "embedding"),
        similarities=("jaccard", "rouge_l", "embedding"),
        notes=(
            "The answer is the commonest sample; right when its token-F1 with the one gold string is at least .5. "
            "There are no aliases.",
        ),
        baseline=_vote(file, normalise, "1 - share of the commonest string", 0.853),
    )


def _gsm8k(path: Path, name: str) -> Source:
    file = _imported(path, "numeric")
    return Source(
        name,
        "GSM8K, arithmetic, 13 prompts at temperature 0",
        path,
        file.records,
        file.header.plan,
        judges=("exact", "numeric"),
        similarities=("from_judge(numeric)",),
        notes=(
            "The samples are not random draws but the answers to 13 different prompts. The answer is the commonest; "
            "right when it is the reference number.",
        ),
        baseline=_vote(file, _number, "1 - share of the commonest number", 0.848),
    )


def _cruxeval(path: Path, name: str) -> Source:
    file = _imported(path)
    return Source(
        name,
        "CRUXEval, output of code, 10 samples at temperature .2",
        path,
        file.records,
        file.header.plan,
        judges=("exact",),
        similarities=("rouge_l",),
        notes=(
            "The answer is the commonest sample, graded by execution. Answers are literals such as `[(4, 1)]`: "
            "compared as written.",
        ),
    )


def _nq(path: Path, name: str) -> Source:
    records = []
    for row in _rows(path):
        texts = {system: (answer["text"] or "").strip() for system, answer in row["answers"].items()}
        for system, text in texts.items():
            others = tuple(Sample(text=other) for key, other in texts.items() if key != system)
            drawn = SampleSet(question=row["question"], primary=Sample(text=text), samples=others)
            records.append(
                Record(
                    id=f"{row['id']}/{system}",
                    question=row["question"],
                    references=tuple(row["references"]),
                    group=row["id"],
                    drawn=drawn,
                    correct=bool(row["answers"][system]["correct"]),
                )
            )
    return Source(
        name,
        "NQ-open, five systems, human labels",
        path,
        tuple(records),
        SamplingPlan(n=4),
        judges=("exact",),
        similarities=("rouge_l",),
        clustered=True,
        notes=(
            "Each system's answer is judged with the other four systems' answers as its samples: disagreement between "
            "models, not within one. Right or wrong is what people said. The five answers to a question stay together "
            "in resamples and halves.",
            "Answers are whole paragraphs of very different length (a name from one system, five lines from another), "
            "which word overlap does not see through. The embedding judge is left out to save time.",
        ),
    )


def _options(path: Path, name: str) -> Source:
    file = _imported(path)
    records: Sequence[Record] = file.records
    if any(record.correct is None for record in records):
        records = label_records(records, make_rule("option"))
    title = {"medqa": "MedQA, four options, Mistral", "mmbench": "MMBench, six options, LLaVA"}[name.split("-")[0]]
    note = "The answer is the likeliest option. Nothing was sampled, and only the options' likelihoods are on file."
    return Source(name, f"{title} {name.split('-', 1)[1]}", path, records, file.header.plan, notes=(note,))


def _intercode(path: Path, name: str) -> Source:
    records = _imported(path).records
    return _agent(
        path,
        name,
        records,
        "InterCode SQL, tool calls compared",
        ("tool_call",),
        ("The primary run's first query and five other runs' first queries, compared as canonical JSON: two queries "
        "that return the same table differ.",),
    )  # fmt: skip


def _intercode_observed(path: Path, name: str) -> Source:
    records = tuple(
        record.model_copy(update={"drawn": _observed(record.drawn)}) if record.drawn is not None else record
        for record in _imported(path).records
    )
    return _agent(
        path,
        name,
        records,
        "InterCode SQL, observations compared",
        ("exact",),
        ("The same runs, but what is compared is the result the database returned (what the `observation` judge does "
        "at run time).",),
    )  # fmt: skip


def _agent(
    path: Path,
    name: str,
    records: Sequence[Record],
    title: str,
    judges: tuple[str, ...],
    notes: tuple[str, ...],
) -> Source:
    values: list[float | None] = []
    for row in _rows(path):
        if row["primary"] is None:
            values.append(None)
            continue
        mine = row["primary"]["observation"]
        values.append(1 - sum(sample["observation"] == mine for sample in row["samples"]) / len(row["samples"]))
    name_of = "1 - share of the runs with the primary's observation"
    few = sum(record.drawn is not None and len(record.drawn.samples) < 5 for record in records)
    return Source(
        name,
        title,
        path,
        records,
        SamplingPlan(n=5),
        judges=judges,
        notes=(*notes, f"{few} questions have four other runs instead of five and are unmeasured."),
        baseline=Baseline(name_of, 0.896, tuple(values)),
    )


def _observed(drawn: SampleSet) -> SampleSet:
    """Drop the tool calls; the text of a sample is its observation."""

    def bare(sample: Sample) -> Sample:
        return sample.model_copy(update={"tool_calls": ()})

    primary = None if drawn.primary is None else bare(drawn.primary)
    return drawn.model_copy(update={"primary": primary, "samples": tuple(map(bare, drawn.samples))})


def _vote(file: RecordFile, key: Callable[[str], object], name: str, published: float) -> Baseline:
    values = []
    for record in file.records:
        texts = [sample.text for sample in record.drawn.samples] if record.drawn is not None else []
        values.append(1 - max(Counter(map(key, texts)).values()) / len(texts))
    return Baseline(name, published, tuple(values))


def _number(text: str) -> object:
    number = parse_number(text)
    return normalise(text) if number is None else number.value


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


FILES: dict[str, tuple[str, Callable[[Path, str], Source]]] = {
    "triviaqa": ("triviaqa-20samples.jsonl", _triviaqa),
    "gsm8k": ("gsm8k-13variants.jsonl", _gsm8k),
    "cruxeval": ("cruxeval-output-10samples.jsonl", _cruxeval),
    "nq": ("nq-human-labels.jsonl", _nq),
    "intercode": ("intercode-sql-agents.jsonl", _intercode),
    "intercode-observation": ("intercode-sql-agents.jsonl", _intercode_observed),
    "medqa-baseline": ("medqa-mistral-baseline-options.jsonl", _options),
    "medqa-finetuned": ("medqa-mistral-finetuned-options.jsonl", _options),
    "mmbench-v1.6-34b": ("mmbench-llava-v1.6-34b-options.jsonl", _options),
    "mmbench-v1.5-7b": ("mmbench-llava-v1.5-7b-options.jsonl", _options),
}
"""Files by the name that `--files` takes."""
