"""Scores of records: every estimator on a small set, names as people write them, and scores that are made of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.data.collect import collect_records
from calibrate.data.formats import ImportSettings, import_file, parse_map
from calibrate.data.questions import Question
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.scoring.ensemble import (
    cut_for_training,
    ensemble_key,
    fit_ensemble,
    fit_members,
    load_ensemble,
    read_ensemble,
    refuse_overlap,
    training_of,
)
from calibrate.scoring.metrics import acceptance, excess_aurc, power, risk_coverage_curve, scer
from calibrate.scoring.names import parse_estimator, stored_key
from calibrate.scoring.reach import (
    at_look,
    check_labelled_part,
    cut_at,
    draw_to_label,
    refuse_reach_after_labels,
    spending_parts,
)
from calibrate.scoring.scores import (
    adaptive,
    arrays,
    default_estimator,
    estimator_key,
    key_of,
    lacking,
    score_file,
    score_records,
    supported,
    uses_models,
    usual_estimators,
    usual_key,
    with_cache,
)
from calibrate.scoring.two_stage import cut_for_scale, make_two_stage
from calibrate.spec_syntax import cut, estimator_flags, parse_name, parse_rule, rule_text, written
from guardrail import scorer
from guardrail.judges import EntailmentScores, JudgeSpec, make_judge
from guardrail.testing import ScriptedChat
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import list_estimators, make_estimator
from guardrail.uncertainty.plan import plan_for

from .story import Story, six_digits, spelled, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name files as a user types them, which is without the folder of the test."""
    monkeypatch.chdir(tmp_path)


def spoken(text: str, *numbers: float) -> dict[str, Any]:
    """An answer with a log-probability for each word."""
    words = text.split(" ")
    tokens = [word if not i else f" {word}" for i, word in enumerate(words)]
    return {"text": text, "tokens": tokens, "logprobs": [numbers[i % len(numbers)] for i in range(len(words))]}


TEXTS: list[dict[str, Any]] = [
    {
        "id": "sure",
        "question": "Capital of France?",
        "references": ["Paris"],
        "answer": spoken("Paris", -0.01),
        "samples": [
            spoken("Paris", -0.02),
            spoken("paris", -0.1),
            spoken("Paris", -0.02),
            spoken("It is Paris", -0.3, -0.1),
        ],
    },
    {
        "id": "split",
        "question": "Capital of Australia?",
        "references": ["Canberra"],
        "answer": spoken("Sydney", -0.9),
        "samples": [
            spoken("Sydney", -0.9),
            spoken("Canberra", -0.7),
            spoken("Melbourne", -1.5),
            spoken("Sydney", -0.9),
        ],
    },
    {
        "id": "sentences",
        "question": "Who was she?",
        "references": ["A physicist"],
        "answer": spoken("She was a physicist. She won two Nobel Prizes.", -0.2, -0.05, -1.0),
        "samples": [
            spoken("She was a physicist. She won a prize.", -0.2),
            spoken("A chemist and physicist.", -0.4),
            spoken("I do not know.", -1.2),
            spoken("She was a painter.", -0.6, -2.0),
        ],
    },
    {"id": "bare", "question": "How many?", "references": ["7"], "answer": "7", "samples": ["7", "8", "seven", "9"]},
    {
        "id": "empty",
        "question": "What?",
        "references": ["x"],
        "answer": spoken("x", -0.5),
        "samples": [spoken("", -0.5), spoken("x", -0.5), spoken("", -0.1), spoken("y", -0.5)],
    },
    {
        "id": "short",
        "question": "Which?",
        "references": ["x"],
        "answer": spoken("x", -0.5),
        "samples": [spoken("x", -0.5)],
    },
    {
        "id": "failed",
        "question": "Why?",
        "references": ["x"],
        "answer": None,
        "samples": [spoken("x", -0.5), spoken("y", -0.5), spoken("x", -0.5), spoken("x", -0.5)],
    },
]
OPTIONS: list[dict[str, Any]] = [
    {
        "id": "sure",
        "question": "Which?",
        "references": ["A"],
        "options": {"A": "red", "B": "blue", "C": "green"},
        "option_scores": {"A": -0.1, "B": -3, "C": -4},
    },
    {
        "id": "even",
        "question": "Which one?",
        "references": ["B"],
        "options": {"A": "red", "B": "blue", "C": "green"},
        "option_scores": {"A": -1.1, "B": -1.1, "C": -1.1},
    },
]


def file_of(name: str, rows: list[Any], *maps: str, **settings: Any) -> RecordFile:
    """A record file of rows of another tool, always begun at the same time and by the same packages."""
    chosen = ImportSettings(columns=parse_map(maps), model="m", **settings)
    result = import_file(write(f"{name}-rows.jsonl", rows), chosen)
    header = result.file.header.model_copy(update={"created": "2026-01-01T00:00:00+00:00", "packages": {}})
    write_records(f"{name}.jsonl", header, result.file.records)
    return read_records(f"{name}.jsonl")


def scored(story: Story, file: RecordFile, title: str) -> RecordFile:
    """Score a file with all that its plan supports, and tell every value or reason."""
    estimators = supported(file.header.plan)
    result = score_records(file, estimators)
    story.head(title)
    story.show("plan", file.header.plan)
    for estimator in estimators:
        key = estimator_key(estimator)
        story.show(key, result.header.estimators[key])
        for record in result.records:
            score = record.scores[key]
            reason = "" if score.reason is None else f"{score.reason.value}: {score.detail}"
            story.show(f"  {record.id}", f"{spelled(score.value)} {score.unit} {reason}")
    lacked = {name: lacking(make_estimator(name), file.header.plan) for name in list_estimators()}
    story.show("lacking", {name: what for name, what in lacked.items() if what is not None})
    return result


def test_scores_of_every_estimator() -> None:
    story = Story("scores.txt")
    texts = file_of("texts", TEXTS)
    scored(story, texts, "texts with log-probabilities")
    scored(
        story, file_of("plain", [row | {"answer": "x", "samples": ["x", "y z", "x"]} for row in TEXTS]), "texts alone"
    )
    majority = [{name: value for name, value in row.items() if name != "answer"} for row in TEXTS[:2]]
    scored(story, file_of("majority", majority), "the majority is the answer")
    scored(story, file_of("options", OPTIONS, option_scale="logprob"), "options")
    calls = [{"tool_calls": [{"name": "f", "args": {"x": x}}]} for x in (1, 1, 2)]
    scored(story, file_of("calls", [{"id": "c", "question": "q?", "samples": calls, "answer": calls[0]}]), "tool calls")
    story.head("an adaptive plan")
    by_rule = score_records(adaptive(texts, 2), [make_estimator("discrete_semantic_entropy")])
    story.say(*(spelled({record.id: record.scores}) for record in by_rule.records))
    story.show("unchanged", adaptive(texts, None) is texts)
    for bad in (1, 4):
        story.refused(f"unanimous at {bad}", lambda: adaptive(texts, bad))  # noqa: B023
    story.head("from file to file")
    seen: list[tuple[int, int]] = []
    names = ("discrete_semantic_entropy", "num_sets", "degree:rouge_l", "semantic_entropy:exact:greedy")
    header, summary = score_file(
        "texts.jsonl",
        "scored.jsonl",
        lambda plan: [parse_estimator(name) for name in names],
        unanimous_at=0,
        progress=lambda done, total, note="": seen.append((done, total)),
    )
    story.say(*six_digits(Path("scored.jsonl").read_text(encoding="utf-8")).splitlines()[:3])
    story.show("progress", seen)
    for key in (*header.estimators, "none"):
        story.show(key, [*summary.of(key), summary.n_records, summary.fragments])
    story.head("arrays")
    file = read_records("scored.jsonl")
    labelled = [
        record.model_copy(update={"correct": i % 2 == 0, "group": "g"}) for i, record in enumerate(file.records)
    ]
    labelled[3] = labelled[3].model_copy(update={"correct": None, "label_detail": "in doubt"})
    for records in (labelled, [*labelled, file.records[0].model_copy(update={"id": "z"})]):
        story.show("num_sets", arrays(records, "num_sets"))
    failed = [record for record in labelled if record.failed]
    lacking_logprobs = score_records(file_of("plain", TEXTS[3:4]), [make_estimator("perplexity")]).records
    refusals: dict[str, Callable[[], object]] = {
        "no such score": lambda: arrays(labelled, "degree"),
        "a score by a file": lambda: arrays(labelled, "ensemble:12345678"),
        "a score with a scorer": lambda: arrays(labelled, "score:rank@1"),
        "no labels": lambda: arrays(file.records, "num_sets"),
        "no record": lambda: arrays([], "num_sets"),
        "failed answers": lambda: arrays(failed, "num_sets"),
        "no log-probabilities": lambda: arrays(lacking_logprobs, "perplexity"),
        "no estimator": lambda: score_records(file, []),
        "two estimators of one key": lambda: score_records(file, [make_estimator("degree"), remade()]),
        "no file": lambda: score_file("none.jsonl", "x.jsonl", supported),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def remade() -> Any:
    """An estimator with the key of another, and other parameters."""
    from dataclasses import replace

    return replace(make_estimator("degree"), version=99)


def test_names_of_estimators() -> None:
    story = Story("estimator_names.txt")
    story.head("read and written")
    for text in (
        *list_estimators(),
        "semantic_entropy:exact",
        "semantic_entropy:token_f1(threshold=0.7):greedy",
        "degree:jaccard",
        "degree:from_judge(exact)",
        "graded_disagreement:exact:rouge_l",
        "graded_disagreement::rouge_l",
        "num_sets::greedy",
        " semantic_entropy : numeric ",
    ):
        try:
            estimator = parse_estimator(text)
        except Exception:  # some take a model, which a name alone does not make
            story.refused(text, lambda: parse_estimator(text))  # noqa: B023
            continue
        key = estimator_key(estimator)
        story.show(text, f"{key} {spelled(estimator.spec)}")
        assert estimator_key(parse_estimator(key)) == key
        story.show("  models", [uses_models([estimator]), estimator.reads_answer, estimator.needs])
    story.head("refused")
    for text in (
        "semantic_entropyy",
        "semantic_entropy:exakt",
        "semantic_entropy:exact:rouge_l",
        "degree:exact",
        "degree:greedy",
        "semantic_entropy:jaccard",
        "graded_disagreement:jaccard",
        "perplexity:exact",
        "perplexity:greedy",
        "ensemble:1234",
        "two_stage:1234",
        "tie_break:1",
        "imported:u",
        "semantic_entropy:chat(model=x)",
        "degree:from_judge(chat)",
        "none.json",
        "semantic_entropy:token_f1(threshold=2)",
        "semantic_entropy:token_f1(limit=2)",
        "degree:rouge_l(x)",
    ):
        story.refused(text, lambda: parse_estimator(text))  # noqa: B023
    story.compare()


def test_scores_that_are_meant() -> None:
    story = Story("scores_meant.txt")
    story.head("by a text")
    specs = {
        key: parse_estimator(key).spec
        for key in (
            "semantic_entropy",
            "semantic_entropy:exact",
            "semantic_entropy:exact:greedy",
            "degree:rouge_l",
            "graded_disagreement:token_f1(threshold=0.7)",
            "graded_disagreement:token_f1(threshold=0.6)",
        )
    }
    for text in (
        "semantic_entropy",
        "semantic_entropy:exact",
        "degree",
        "degree:jaccard",
        "num_sets",
        "own",
        "graded_disagreement:token_f1(threshold=0.6)",
    ):
        story.show(text, stored_key(specs, text))
    story.refused("graded_disagreement", lambda: stored_key(specs, "graded_disagreement"))
    story.head("scores when none is named")
    for options in (True, False):
        story.show(f"options {options}", default_estimator(options=options))
    for calls in (None, 1, 1.4, 3, 11):
        story.show(f"{calls} calls", usual_estimators(calls, options=False))
    story.show("JSON", usual_estimators(1, options=False, bindings=Bindings(tools=())))
    story.refused("calls for options", lambda: usual_estimators(3, options=True))
    story.refused("2 calls", lambda: usual_estimators(2, options=False))
    plans = (
        SamplingPlan(n=3),
        SamplingPlan(n=3, logprobs=True),
        SamplingPlan(n=3, primary="majority"),
        SamplingPlan(n=0, options=("A", "B")),
    )
    for plan in plans:
        story.show(spelled(plan), usual_key(plan))
    file = file_of("texts", TEXTS[:2])
    story.show("of a file without scores", key_of(file))
    one, two = (
        score_records(file, [make_estimator(name) for name in names]) for names in (["degree"], ["degree", "num_sets"])
    )
    story.show("of a file with one score", key_of(one))
    story.show("named", key_of(two, "num_sets"))
    story.refused("of a file with two", lambda: key_of(two))
    story.compare()


def test_texts_of_names() -> None:
    story = Story("names.txt")
    story.head("names, rules and judges")
    for text in (
        "exact",
        "nli(model=./weights, revision=main)",
        "f(a=1, b=true, c=None, d='x', e=\"y, z\", g=[1, 2], h={'a': 1})",
    ):
        story.show(text, parse_name(text))
    for text in ("acrc", "acrc:min_accept=1,monotone=false", "fixed_sequence:start=0.2,delta=.1", "x:a=none,b=Text"):
        parsed = parse_rule(text)
        story.show(text, parsed)
        story.show("  written", parsed if isinstance(parsed, str) else rule_text(*parsed))
    story.show("cut", cut('a(b:c):"d:\\":e":[f:g]:', ":"))
    for estimator in ("token_f1(threshold=0.7)", "rouge_l"):
        made = parse_estimator(f"graded_disagreement:{estimator}" if "f1" in estimator else f"degree:{estimator}")
        story.show("judge", written(made.judge.spec if made.judge is not None else made.similarity.spec))  # type: ignore[union-attr]
    for key in (
        "degree:from_judge(exact)",
        "ensemble:1",
        "tie_break:1",
        "score:rank@1",
        "semantic_entropy:chat(model=x)",
        "num_sets",
    ):
        story.show(key, estimator_flags(key))
    for text in ("acrc:min_accept", "acrc:=1", "acrc:a=1,a=2", "acrc:"):
        story.refused(text, lambda: parse_rule(text))  # noqa: B023
    for text in ("a b c", "f(", "f(x)", "f(1=2)"):
        story.refused(text, lambda: parse_name(text))  # noqa: B023
    story.compare()


def population(n: int, **changes: Any) -> RecordFile:
    """Records with three scores, of which one says much, one little and one nothing."""
    rows = []
    for i in range(n):
        u = i * 0.6180339887 % 1
        rows.append({
            "id": f"r{i:03}", "question": f"q{i}?", "group": f"g{i % 40}", "correct": bool(i * 0.4142135623 % 1 > u**2),
            "good": round(u, 4), "weak": round(0.3 * u + i * 0.7320508 % 1, 4), "noise": round(i * 0.2360679 % 1, 4),
        })  # fmt: skip
    file = file_of("population", rows, "score=good", "score=weak", "score=noise")
    # as if estimators had made them: scores that came with a file have no estimator to combine
    names = {"imported:good": "num_sets", "imported:weak": "degree", "imported:noise": "eccentricity"}
    specs = {name: make_estimator(name).spec for name in names.values()}
    records = [
        record.model_copy(update={"scores": {names[key]: score for key, score in record.scores.items()}} | changes)
        for record in file.records
    ]
    return RecordFile(Path("population.jsonl"), file.header.model_copy(update={"estimators": specs}), records)


def test_ensembles_and_two_stages() -> None:
    story = Story("ensembles.txt")
    file = population(160)
    for groups in ("category", "cluster"):
        train, rest = cut_for_training(file.records, train_fraction=0.5, groups=groups)
        story.head(f"an ensemble, groups are {groups}")
        story.show("part", {"train": len(train), "rest": len(rest), "first": [record.id for record in train[:5]]})
        made = fit_ensemble(train, fit_members(file, ["num_sets", "degree", "eccentricity"]), groups=groups)
        params = dict(made.spec.params)
        training = params.pop("training")
        story.show("params", rounded(params))
        story.show("training", {name: len(hashes) for name, hashes in training.items()})
        story.show("fit", rounded(made.fit.model_dump()))
        story.show("best", made.fit.best_single)
        story.refused("calibration on the same", lambda: refuse_overlap(made.spec, file.records, groups=groups))  # noqa: B023
        story.refused("a test on one", lambda: refuse_overlap(made.spec, train[:1], what="test"))  # noqa: B023
        refuse_overlap(made.spec, rest, groups=groups)
    write("ensemble.json", made.model_dump_json())
    story.show("read", read_ensemble("ensemble.json") == made)
    story.show("loaded", load_ensemble("ensemble.json").spec == made.spec)
    story.show("key", ensemble_key(make_estimator("degree").spec))
    some = training_of(file.records[:2])
    story.show("hashes", some)
    story.head("refused")
    specs = file.header.estimators
    flat = population(60, scores={})
    one_value = [
        record.model_copy(
            update={"scores": {**record.scores, "degree": record.scores["degree"].model_copy(update={"value": 1.0})}}
        )
        for record in file.records
    ]
    upside = [record.model_copy(update={"correct": not record.correct}) for record in file.records]
    imported = file_of("imported", [{"id": "a", "u": 1.0, "v": 2.0}], "score=u", "score=v")
    nested = file.header.model_copy(update={"estimators": {**specs, "ensemble:1": made.spec}})
    refusals: dict[str, Callable[[], object]] = {
        "one member": lambda: fit_ensemble(file.records, {"degree": specs["degree"]}),
        "few records": lambda: fit_ensemble(file.records[:20], dict(specs)),
        "no scores": lambda: fit_ensemble(flat.records, dict(specs)),
        "one value": lambda: fit_ensemble(one_value, dict(specs)),
        "upside down": lambda: fit_ensemble(upside, {name: specs[name] for name in ("num_sets", "degree")}),
        "imported scores": lambda: fit_members(imported, ["imported:u", "v"]),
        "scores that are not there": lambda: fit_members(file, ["degree", "semantic_entropy:exact", "num_set"]),
        "a member twice": lambda: fit_members(file, ["degree", "degree"]),
        "an ensemble": lambda: fit_members(RecordFile(file.path, nested, file.records), ["degree", "ensemble:1"]),
        "a fraction of 3": lambda: cut_for_training(file.records, train_fraction=3),
        "an empty part": lambda: cut_for_training(file.records[:2], train_fraction=0.1),
        "no groups": lambda: cut_for_training(imported.records, train_fraction=0.5, groups="cluster"),
        "no file": lambda: read_ensemble("none.json"),
        "no JSON": lambda: read_ensemble(write("x.json", "{")),
        "another file": lambda: read_ensemble(write("x.json", {"spec": 1})),
        "a list": lambda: load_ensemble(write("x.json", [])),
        "a later format": lambda: read_ensemble(write("x.json", {"format": 2})),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.head("two stages")
    records = [answered(i, correct=True if i < 200 else None) for i in range(640)]
    scaled, rest = cut_for_scale(records)
    story.show("cut", {"scale": len(scaled), "rest": len(rest), "first": [record.id for record in scaled[:4]]})
    fewer, rest = cut_for_scale([answered(i, correct=True) for i in range(400)], seed=3)
    story.show("labelled", {"scale": len(fewer), "rest": len(rest), "first": [record.id for record in fewer[:4]]})
    clusters, rest = cut_for_scale(
        [record.model_copy(update={"group": f"g{i % 50}"}) for i, record in enumerate(records)], groups="cluster"
    )
    story.show("clusters", {"scale": len(clusters), "rest": len(rest)})
    plan = SamplingPlan(n=2, logprobs=True, cut_off="abstain")
    cheap, second = make_estimator("sequence_nll"), make_estimator("primary_disagreement")
    staged = make_two_stage(scaled, plan, cheap, second)
    story.show(
        "spec",
        staged.spec.model_copy(
            update={
                "params": {
                    name: value for name, value in staged.spec.params.items() if name not in ("scale", "training")
                }
            }
        ),
    )
    story.show(
        "scale", rounded([min(staged.params["scale"]), max(staged.params["scale"]), len(staged.params["scale"])])
    )
    story.refused("a small file", lambda: cut_for_scale(records[:300]))
    story.refused("a scale of few", lambda: make_two_stage(scaled[:200], plan, cheap, second))
    story.refused("a weight of 0", lambda: make_two_stage(scaled, plan, cheap, second, weight=0))
    story.refused("calibration on the scale", lambda: refuse_overlap(staged.spec, records))
    story.compare()


def rounded(value: Any) -> Any:
    """Numbers that a minimiser found, to three digits: the last ones differ from machine to machine."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def answered(number: int, *, correct: bool | None) -> Record:
    """A record with an answer whose log-probability falls with its number, and two other samples."""
    answer = Sample(text=f"a{number}", tokens=(f"a{number}",), logprobs=(-number / 100,))
    drawn = SampleSet(question=f"q{number}?", primary=answer, samples=(Sample(text="b"),) * 2)
    return Record(id=f"r{number}", question=f"q{number}?", drawn=drawn, correct=correct)


def test_scorers_and_follow_ups() -> None:
    story = Story("scorers.txt")
    calls: list[str] = []

    @scorer(version=2, higher="certain", params={"of": 10})
    def length(answer: str, question: str) -> float:
        """Length of the answer."""
        calls.append(f"{question} {answer}")
        if answer == "crash":
            raise ValueError("too short")
        return len(answer) / 10

    file = file_of(
        "texts",
        [
            {"id": "a", "question": "q?", "answer": "x"},
            {"id": "b", "question": "r?", "answer": "crash"},
            {"id": "c", "question": "s?", "answer": "long answer"},
        ],
    )
    result = score_records(file, [length.estimator])
    story.show("plan", result.header.plan)
    story.show("specs", result.header.estimators)
    story.show("calls", sorted(calls))  # several threads ask
    for record in result.records:
        story.show(record.id, record.scores)
    again = score_records(result, [length.estimator])
    story.show("calls, again", len(calls))
    story.show("unchanged", again.records == result.records)
    story.show(
        "failed",
        [record.drawn.follow_ups["score:length@2"][0].problem for record in result.records if record.drawn is not None],
    )
    story.head("follow-ups")
    plan = plan_for([make_estimator(name) for name in ("verbalised", "p_true", "selfcheck_prompt")], n=2)
    story.show("plan", plan)
    model = ScriptedChat(
        script={"q?": ["x", "x", "y"], "r?": ["one. two.", "z", "w"]}, default=("70",), probability=0.5
    )
    questions = [Question(id=name, question=name, references=("x",)) for name in ("q?", "r?")]
    collect_records(questions, model, plan, "followed.jsonl", probe="off", max_concurrency=1)
    followed = read_records("followed.jsonl")
    for record in sorted(followed.records, key=lambda record: record.id):
        assert record.drawn is not None
        story.say(
            spelled({name: [reply.primary for reply in replies] for name, replies in record.drawn.follow_ups.items()})
        )
    for name in ("verbalised", "p_true", "selfcheck_prompt"):
        for record in sorted(score_records(followed, [make_estimator(name)]).records, key=lambda record: record.id):
            story.show(f"{name} of {record.id}", record.scores[name])
    story.compare()


def test_what_to_label() -> None:
    story = Story("reach.txt")
    whole = population(120)
    bare = RecordFile(
        Path("bare.jsonl"),
        whole.header.model_copy(update={"correctness": None}),
        [record.model_copy(update={"correct": None}) for record in whole.records],
    )
    for title, settings in {
        "half": {"share": 0.5, "n": 15},
        "all": {"share": 1.0, "n": 30, "seed": 1},
        "looks": {"share": 0.5, "n": 40, "looks": (10, 20, 40), "fixed_beforehand": True},
    }.items():
        drawn = draw_to_label(bare, "num_sets", **settings)  # type: ignore[arg-type]
        story.head(title)
        story.show("reach", drawn.header.reach)
        story.show("header", [drawn.header.n_questions, drawn.header.questions_sha256])
        story.show("ids", drawn.records.ids)
    for counts in ((100,), (100, 200, 400), (10, 20, 30, 40, 50)):
        story.show(f"parts of {counts}", spending_parts(counts))
    values = np.array([1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    story.show("cuts", [cut_at(values, share) for share in (0.2, 0.3, 0.99, 1)])
    labels = {record.id: record.correct for record in whole.records}
    part = RecordFile(
        drawn.path,
        drawn.header,
        [
            record.model_copy(update={"correct": labels[record.id] if i < 20 else None})
            for i, record in enumerate(drawn.records)
        ],
    )
    for look in (1, 2):
        looks, records = at_look(part, look)
        story.show(f"look {look}", {"looks": looks, "ids": records.ids})
    declared, _ = at_look(RecordFile(whole.path, whole.header, whole.records[:20]), 1, (20, 40))
    story.show("declared later", declared)
    story.show("checked", check_labelled_part(part, part.records, "num_sets"))
    story.head("refused")
    low = [
        record if (record.scores["num_sets"].value or 0.0) < 0.5 else record.model_copy(update={"correct": None})
        for record in whole.records
    ]
    drawn_header = part.header
    looked = RecordFile(part.path, drawn_header, part.records)
    refusals: dict[str, Callable[[], object]] = {
        "a reach of 2": lambda: draw_to_label(bare, "num_sets", share=2, n=5),
        "nothing to draw": lambda: draw_to_label(bare, "num_sets", share=0.5, n=0),
        "looks that fall": lambda: draw_to_label(bare, "num_sets", share=0.5, n=10, looks=(5, 3, 10)),
        "looks that end early": lambda: draw_to_label(bare, "num_sets", share=0.5, n=10, looks=(5,)),
        "labels": lambda: draw_to_label(whole, "num_sets", share=0.5, n=5),
        "a sample": lambda: draw_to_label(drawn, "num_sets", share=0.5, n=5),
        "no scores": lambda: draw_to_label(bare, "other", share=0.5, n=5),
        "more than there are": lambda: draw_to_label(bare, "num_sets", share=0.5, n=100),
        "a small pool": lambda: draw_to_label(bare, "num_sets", share=0.5, n=30),
        "a cut in a tie": lambda: cut_at(np.array([1.0, 1.0, 2.0]), 0.5),
        "another reach after labels": lambda: refuse_reach_after_labels(bare, 0.7, [part]),
        "another score": lambda: check_labelled_part(part, part.records, "degree"),
        "a question left out": lambda: check_labelled_part(
            RecordFile(part.path, drawn_header, part.records[1:]), part.records, "num_sets"
        ),
        "another order": lambda: check_labelled_part(
            RecordFile(part.path, drawn_header, part.records[::-1]), part.records, "num_sets"
        ),
        "a score above the cut": lambda: check_labelled_part(part, [higher(part.records[0])], "num_sets"),
        "labels on low scores": lambda: check_labelled_part(whole, low, "num_sets"),
        "no looks": lambda: at_look(whole, 1),
        "other looks": lambda: at_look(looked, 1, (5, 40)),
        "look 4 of 3": lambda: at_look(looked, 4),
        "look 0": lambda: at_look(looked, 0),
        "missing labels": lambda: at_look(looked, 3),
        "too many labels": lambda: at_look(whole, 1, (20, 40)),
        "looks that are not numbers in order": lambda: at_look(whole, 1, (40, 20)),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    refuse_reach_after_labels(bare, 0.5, [part])
    story.head("metrics")
    error, accepted = [0, 1, 0, 1, 0], [True, True, True, False, False]
    story.show(
        "shares",
        [
            scer(error, accepted),
            acceptance(accepted),
            power(error, accepted),
            scer(error, [False] * 5),
            acceptance([]),
            power([1], [True]),
        ],
    )
    story.show("curve", risk_coverage_curve([1, 2, 2, 3, 4], error))
    story.show("excess", [excess_aurc([1, 2, 2, 3, 4], error), excess_aurc([1, 4, 2, 5, 3], error)])
    story.refused("other shapes", lambda: scer(error, [True]))
    story.compare()


def higher(record: Record) -> Record:
    score = record.scores["num_sets"].model_copy(update={"value": 2.0})
    return record.model_copy(update={"scores": {**record.scores, "num_sets": score}})


class Toy:
    """An entailment model without a model."""

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="toy", version=1, params={"least": 0.5})

    def entailment_batch(self, items: Sequence[tuple[str, str, str]]) -> list[EntailmentScores | None]:
        return [EntailmentScores(0.9, 0.05, 0.05) if said in premise else None for _, premise, said in items]


def test_scores_of_models_by_their_names() -> None:
    story = Story("names_of_models.txt")
    entropy, degree = make_estimator("semantic_entropy").spec, make_estimator("degree").spec
    chat = JudgeSpec(name="chat", version=3, params={"provider": "openai", "model": "gpt-4o", "prompt": 1})
    commit = "0123456789abcdef0123456789abcdef01234567"
    nli = JudgeSpec(name="nli", version=6, params={"model": "org/nli", "revision": commit, "threshold": 0.5})
    as_judge = JudgeSpec(name="from_judge", version=1, params={"judge": make_judge("exact").spec.model_dump()})
    specs = {
        "semantic_entropy:chat(gpt)": entropy.model_copy(update={"judge": chat}),
        "semantic_entropy:nli(x)": entropy.model_copy(update={"judge": nli}),
        "degree:from_judge(exact)": degree.model_copy(update={"similarity": as_judge}),
        "degree:nli": degree.model_copy(update={"similarity": nli}),
        "selfcheck_nli": make_estimator("selfcheck_nli").spec.model_copy(update={"entailment": nli}),
    }
    for text in (
        "semantic_entropy:chat",
        "semantic_entropy:chat(model=openai:gpt-4o)",
        "semantic_entropy:chat(model=openai:gpt-4)",
        "semantic_entropy:chat(model=openai-compatible:gpt-4o@http://x/v1)",
        "semantic_entropy:chat(prompt=2)",
        "semantic_entropy:nli",
        "semantic_entropy:nli(model=org/nli, revision=main)",
        "semantic_entropy:nli(model=other)",
        f"semantic_entropy:nli(revision={commit})",
        f"semantic_entropy:nli(revision={commit[::-1]})",
        "semantic_entropy:nli(revision=sha256:abc)",
        "semantic_entropy:nli(threshold=0.6)",
        "semantic_entropy:nli(threshold=auto)",
        "degree:from_judge(exact)",
        "degree:from_judge(numeric)",
        "degree:nli(model=org/nli)",
        "degree:jaccard",
        "selfcheck_nli",
        "selfcheck_nli:nli(model=org/nli)",
        "selfcheck_nli:nli(model=x)",
        "semantic_entropy:numeric",
    ):
        story.show(
            text, "nothing" if stored_key(specs, text) == text and text not in specs else stored_key(specs, text)
        )
    story.refused("degree", lambda: stored_key(specs, "degree"))
    toy = make_estimator("selfcheck_nli", entailment=Toy())
    story.show("key", estimator_key(toy))
    story.show("models", [uses_models([toy]), uses_models([make_estimator("degree")])])
    story.show("cached", with_cache(toy, None) is toy)
    file = file_of("texts", TEXTS[:3])
    for record in score_records(file, [toy]).records:
        story.show(record.id, record.scores[estimator_key(toy)])
    story.compare()
