"""Small record files for golden transcripts: questions about plants, answered with words by a model of known ease."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from calibrate.correctness import Exact, label_records, labelled_by
from calibrate.data.questions import Question, fingerprint
from calibrate.data.records import Record, RecordFile, RecordHeader, write_records
from calibrate.scoring.scores import score_records
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator

WORDS = ("amber", "birch", "cedar", "dahlia", "elm", "fern", "ginkgo", "hazel")
KINDS = ("trees", "shrubs", "herbs")
N_SAMPLES = 5
SCORES = ("discrete_semantic_entropy", "semantic_entropy", "graded_disagreement", "perplexity", "primary_disagreement")


def questions(n: int, prefix: str = "p") -> list[Question]:
    """Questions with one right word each, in three groups."""
    return [
        Question(
            id=f"{prefix}{i}",
            question=f"plant {prefix}{i}?",
            references=(WORDS[i % len(WORDS)],),
            group=KINDS[i % len(KINDS)],
        )
        for i in range(n)
    ]


def write_questions(path: str, n: int, prefix: str = "p") -> None:
    """Write questions as JSON lines."""
    rows = [question.model_dump(include={"id", "question", "references", "group"}) for question in questions(n, prefix)]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def answers(n: int, prefix: str = "p", *, hard: float = 0.3) -> Iterator[tuple[Question, list[str], list[float]]]:
    """The primary answer and the samples of each question, with probabilities; a share of the questions is hard."""
    dice = random.Random(f"{prefix} {hard}")
    for question in questions(n, prefix):
        ease = 0.3 + 0.5 * dice.random() if dice.random() < hard else 0.98
        texts = [
            question.references[0] if dice.random() < ease else WORDS[dice.randrange(len(WORDS))]
            for _ in range(1 + N_SAMPLES)
        ]
        yield question, texts, [round(ease * (0.7 + 0.3 * dice.random()), 2) for _ in texts]


def model(n: int = 100, prefix: str = "p") -> ScriptedChat:
    """The model that gives these answers: ``python:tests.golden.commands.plants:model``."""
    return ScriptedChat(
        script={question.question: texts for question, texts, _ in answers(n, prefix)},
        probability=0.5,
        name_of_model="small",
    )


@cache
def population(n: int, prefix: str = "p", *, hard: float = 0.3, name: str = "small") -> RecordFile:
    """Scored and labelled records."""
    records = []
    for question, texts, probabilities in answers(n, prefix, hard=hard):
        samples = [
            Sample(text=text, tokens=(text,), logprobs=(math.log(probability),), finish_reason="stop")
            for text, probability in zip(texts, probabilities, strict=True)
        ]
        drawn = SampleSet(question=question.question, primary=samples[0], samples=tuple(samples[1:]))
        records.append(Record.of(question, drawn, turns="human"))
    header = RecordHeader(
        created="2026-01-01T00:00:00+00:00",
        model=ModelIdentity(provider="scripted", model=name),
        plan=SamplingPlan(n=N_SAMPLES, logprobs=True, cut_off="abstain"),
        prompt=PromptWrapping(),
        questions_name="plants.jsonl",
        questions_sha256=fingerprint(questions(n, prefix)),
        n_questions=n,
    )
    file = score_records(RecordFile(Path("plants.jsonl"), header, records), [make_estimator(score) for score in SCORES])
    return RecordFile(file.path, labelled_by(file.header, Exact()), tuple(label_records(file.records, Exact())))


def write(path: str, records: Sequence[Record], header: RecordHeader) -> None:
    """Write a record file whose header fits these records."""
    ours = {"n_questions": len(records), "questions_sha256": fingerprint(record.to_question() for record in records)}
    write_records(Path(path), header.model_copy(update=ours), records)


def labelled(path: str, n: int, prefix: str = "p", *, hard: float = 0.3, name: str = "small") -> None:
    """Write scored and labelled records."""
    file = population(n, prefix, hard=hard, name=name)
    write(path, file.records, file.header)


def unlabelled(path: str, n: int, prefix: str = "p", *, references: bool = True) -> None:
    """Write scored records without labels, and perhaps without references."""
    file = population(n, prefix)
    changes = {"correct": None, "label_detail": ""} | ({} if references else {"references": ()})
    records = [record.model_copy(update=changes) for record in file.records]
    write(path, records, file.header.model_copy(update={"correctness": None}))


def unscored(path: str, n: int, prefix: str = "p") -> None:
    """Write records as they are collected, three of them without an answer that can be measured."""
    file = population(n, prefix)
    records = [record.model_copy(update={"scores": {}, "correct": None, "label_detail": ""}) for record in file.records]
    failed = SampleSet(
        question=records[3].question, primary=None, problem=Unmeasured.MODEL_FAILED, problem_detail="HTTP 500"
    )
    records[3] = records[3].model_copy(update={"drawn": failed})
    for place, finish in ((5, "length"), (8, "content_filter")):
        drawn = records[place].drawn
        assert drawn is not None
        assert drawn.primary is not None
        primary = drawn.primary.model_copy(update={"finish_reason": finish})
        records[place] = records[place].model_copy(update={"drawn": drawn.model_copy(update={"primary": primary})})
    write(path, records, file.header.model_copy(update={"correctness": None, "estimators": {}}))
