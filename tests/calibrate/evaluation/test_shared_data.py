"""Published outputs of real models (where the folder is there): rows and base accuracies as its README states them."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from benchmarks.published import import_published
from calibrate.correctness import label_records, make_rule
from calibrate.data.formats.read import Imported
from calibrate.data.questions import Question
from calibrate.pipeline import fit_artifact
from calibrate.scoring.compute import score_records
from calibrate.scoring.metrics import auroc
from calibrate.scoring.names import parse_estimator
from calibrate.scoring.scores import arrays
from guardrail.errors import UsageError
from guardrail.types import Unmeasured

FOLDER = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the folder of published outputs is not here")


@cache
def load(name: str, system: str | None = None) -> Imported:
    return import_published(FOLDER / name, system)


def accuracy(found: Imported, rule: str | None = None) -> float:
    """Share of right answers, by the file's labels or by a rule."""
    records = found.file.records
    labels = [r.correct for r in (label_records(records, make_rule(rule)) if rule else records)]
    assert None not in labels
    return labels.count(True) / len(labels)


@pytest.mark.parametrize(
    ("name", "rows", "rule", "low", "high"),
    [
        # .69 by the README's own matching; exact match of the one gold string is stricter, token-F1 >= .5 is laxer.
        ("triviaqa-20samples.jsonl", 500, "exact", 0.63, 0.69),
        ("triviaqa-20samples.jsonl", 500, "token_f1", 0.69, 0.73),
        # .83 there; how it breaks ties and reads numbers is not said.
        ("gsm8k-13variants.jsonl", 1319, "numeric", 0.815, 0.835),
        ("cruxeval-output-10samples.jsonl", 800, None, 0.345, 0.355),
        ("medqa-mistral-baseline-options.jsonl", 1273, None, 0.485, 0.495),
        ("medqa-mistral-finetuned-options.jsonl", 1273, None, 0.515, 0.525),
        ("mmbench-llava-v1.6-34b-options.jsonl", 4377, "option", 0.835, 0.845),
        ("mmbench-llava-v1.5-7b-options.jsonl", 4377, "option", 0.61, 0.84),
        ("intercode-sql-agents.jsonl", 1034, None, 0.585, 0.595),
    ],
)
def test_rows_and_base_accuracy(name: str, rows: int, rule: str | None, low: float, high: float) -> None:
    dataset = load(name)
    assert (dataset.n_rows, len(dataset.file.records), dataset.bad) == (rows, rows, ())
    assert low <= accuracy(dataset, rule) <= high


NQ, MMLU_PRO = "nq-human-labels.jsonl", "mmlu-pro-confidence.csv"
SYSTEMS = {
    NQ: ("fid", "gpt35", "chatgpt", "gpt4", "newbing"),
    MMLU_PRO: ("Meta-Llama-3.1-8B-Instruct-Turbo", "gpt-4.1"),
}
SHARES = {NQ: (3020, 0.65, 0.805), MMLU_PRO: (12032, 0.305, 0.855)}


@pytest.mark.parametrize(
    ("name", "system"),
    [
        pytest.param(name, system, marks=() if system in ("gpt35", "gpt-4.1") else pytest.mark.slow)
        for name, systems in SYSTEMS.items()
        for system in systems
    ],
)
def test_every_system_of_the_files_with_several(name: str, system: str) -> None:
    rows, low, high = SHARES[name]
    dataset = load(name, system)
    assert dataset.n_rows == len(dataset.file.records) == rows
    assert dataset.file.header.model.model == system
    assert low <= accuracy(dataset) <= high


@pytest.mark.parametrize(
    ("name", "estimator", "rule", "stated"),
    [
        ("medqa-mistral-baseline-options.jsonl", "predictive_entropy", None, 0.68),
        ("medqa-mistral-finetuned-options.jsonl", "predictive_entropy", None, 0.71),
        ("gsm8k-13variants.jsonl", "self_consistency:exact", "numeric", 0.85),
    ],
)
def test_scores_rank_errors_as_stated(name: str, estimator: str, rule: str | None, stated: float) -> None:
    file = score_records(load(name).file, [parse_estimator(estimator)])
    records = label_records(file.records, make_rule(rule)) if rule else file.records
    scored = arrays(records, estimator)
    assert auroc(scored.uncertainty, scored.error) == pytest.approx(stated, abs=0.02)


def test_observations_of_agents_are_what_is_compared() -> None:
    """Share of runs whose first query returned something else than the primary run's: AUROC .90 by the README."""
    records = [record for record in load("intercode-sql-agents.jsonl").file.records if record.answer is not None]
    assert len(records) == 1034 - 40
    disagreement, error = [], []
    for record in records:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        assert record.drawn.primary.tool_calls[0].name == "execute_sql"
        samples = record.drawn.samples
        disagreement.append(sum(sample.text != record.answer for sample in samples) / len(samples))
        error.append(int(not record.correct))
    assert auroc(disagreement, error) == pytest.approx(0.90, abs=0.01)


def test_missing_confidences_are_unmeasured_not_certain() -> None:
    records = load("mmlu-pro-confidence.csv", "Meta-Llama-3.1-8B-Instruct-Turbo").file.records
    missing = [r for r in records if r.scores["imported:stated_confidence"].value is None]
    assert len(missing) == 607
    assert {r.scores["imported:stated_confidence"].reason for r in missing} == {Unmeasured.NOT_RECORDED}


def test_a_question_that_people_labelled_both_ways_stops_the_fit() -> None:
    """One question of the file has two golds, and GPT-4's one answer is right by one and wrong by the other."""
    file = load("nq-human-labels.jsonl", "gpt4").file
    scored = score_records(file, [parse_estimator("self_consistency:exact")])
    with pytest.raises(
        UsageError, match=r"records 'nq-2705' and 'nq-2671' have the same question .*remove one of the two"
    ):
        fit_artifact(scored, score="self_consistency:exact", alpha=0.2, rule="acrc")


@cache  # five answers to a question are compared with the same references
def squad_words(text: str) -> list[str]:
    """Words of SQuAD's evaluation script: lower case, without ASCII punctuation and then without articles."""
    bare = text.lower().translate(dict.fromkeys(map(ord, string.punctuation)))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def f1(a: list[str], b: list[str]) -> float:
    common = sum((Counter(a) & Counter(b)).values())
    return float(a == b) if not a or not b else 2 * common / (len(a) + len(b))


def squad_f1(answer: str, reference: str) -> float:
    return f1(squad_words(answer), squad_words(reference))


OTHERWISE = {
    ("nq-221", "fid"): "2001-2002 and 2001\u20132002: the script keeps a dash that is not ASCII",
    ("nq-1100", "fid"): "36 is 36.0",
    ("nq-1986", "fid"): "the script takes an empty answer for the reference *",
    ("nq-2086", "fid"): "the script takes the initial in Stephen A. Douglas for an article",
    ("nq-2341", "fid"): "-quartz has a sign",
    ("nq-2615", "fid"): "the script takes the letter in adenine (A) for an article",
    ("nq-3190", "fid"): "back-flow is two words",
    ("nq-3463", "gpt35"): "B.J. is B. J.",
    ("nq-3463", "chatgpt"): "B.J. is B. J.",
}
"""All answers on which the rule `exact` and the script's exact match differ, each read and given its reason."""

CHANGES = {"or", "all", "most", "late", "over", "after", "under", "before", "third", "not"}
FILLERS = {"i", "and", "is", "was", "of", "in", "on", "at", "to", "by", "for", "it", "its", "s"}
SIGN = re.compile(r"^[^\w(\[]|/|[^\w\s.,:;!?)\]]$|['\"][,:;.]$|^\W+$")
IN_QUOTES = re.compile(r"""(["']).*\1[.,:;]?""")


def plain_words(text: str) -> list[str]:
    """Words between all that is neither a letter nor a digit, without case, accents and articles."""
    bare = "".join(mark for mark in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(mark))
    return [word for word in re.findall(r"[^\W_]+", bare) if word not in ("a", "an", "the")]


def why_wrong(question: str, answer: str, reference: str) -> str | None:
    """What the rule `token_f1` demands beside the F1 of all words, checked on plain words; None if all of it holds."""
    ours, theirs = plain_words(answer), plain_words(reference)
    numbers = [sorted(word for word in words if any(map(str.isdigit, word))) for words in (ours, theirs)]
    asked = FILLERS | set(plain_words(question))
    new = [[word for word in words if word not in asked] for words in (ours, theirs)]
    signs = [[chunk for chunk in text.split() if SIGN.search(chunk) and not IN_QUOTES.fullmatch(chunk)]
             for text in (answer, reference)]  # fmt: skip
    if f1(ours, theirs) < 0.5:
        return "the parts of Scooby-Doo are words"
    if all(numbers) and numbers[0] != numbers[1]:
        return "other numbers"
    if all(new) and f1(*new) < 0.5:
        return "alike in the words of the question only"
    if signs[0] != signs[1]:
        return "other signs"
    return "a word that changes others" if CHANGES & set(ours) != CHANGES & set(theirs) else None


def test_exact_and_token_f1_are_the_published_metrics() -> None:
    """The rules differ from SQuAD's script for a documented reason only: labels of users are those of the literature.

    3,020 questions of NQ-open with five answers each.
    """
    exact, token_f1 = make_rule("exact"), make_rule("token_f1")
    n, differ, unexplained = 0, set[tuple[str, str]](), set[tuple[str, str]]()
    with (FOLDER / "nq-human-labels.jsonl").open() as stream:
        for row in map(json.loads, stream):
            references = tuple(row["references"])
            question = Question(id=row["id"], question=row["question"], references=references)
            for system, answer in ((name, each.get("text") or "") for name, each in row["answers"].items()):
                n += 1
                if exact.label(answer, question).correct is not any(
                    squad_words(answer) == squad_words(each) for each in references
                ):
                    differ.add((row["id"], system))
                alike = [each for each in references if squad_f1(answer, each) >= 0.5]
                if token_f1.label(answer, question).correct is not bool(alike):
                    reasons = [why_wrong(row["question"], answer, each) for each in alike or references]
                    if (None in reasons) is bool(alike):
                        unexplained.add((row["id"], system))
    assert (n, differ) == (15_100, set(OTHERWISE))
    # 36 is 36.0; the capital in "A Walk to Remember" and in "A.K. Mathur" is not an article; the last
    # answer ends with a quotation.
    assert unexplained == {
        ("nq-1100", "fid"), ("nq-1690", "gpt35"), ("nq-1993", "chatgpt"), ("nq-2233", "gpt4"),
    }  # fmt: skip
