"""Fits on records: whole artifacts, segments, audits, counts of fits, choices among scores, cascades, data frames."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate import from_frame
from calibrate.cascade import fit_cascade, matched
from calibrate.correctness import make_rule
from calibrate.data.formats import ImportSettings, ScoreColumn, import_file, parse_map
from calibrate.data.labels import GivenLabels
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.dataframe import Records
from calibrate.evaluation.audit import audit, audit_counts, labelled_needed, prepared, refuse_shared
from calibrate.evaluation.calls import (
    calls_beside_fit,
    calls_of_part,
    compare_with_artifact,
    contradiction,
    scores_of_draws,
)
from calibrate.evaluation.choice import choose_estimator, rank_estimators
from calibrate.evaluation.grid import evaluate_grid, paper_pool, sources
from calibrate.evaluation.label_checks import judge_to_look_at, unread_answers
from calibrate.evaluation.planning import with_labels_needed
from calibrate.fits import Fits, FitSettings, beside, counted, counted_cascade, selection_warning
from calibrate.pipeline import (
    at_calibration,
    calibration_part,
    fit_artifact,
    held_out,
    narrowed_plan,
    plan_to_compare,
    refit,
    require_same,
    split,
    without,
    without_choice,
)
from calibrate.prediction_powered import artifact_with_people, group_unlike_sample, selection_p
from calibrate.scoring.reach import draw_to_label
from calibrate.scoring.scores import score_records
from calibrate.segments import BySegment, segment_rows, with_segments
from guardrail.artifact import CalibrationArtifact, Selection
from guardrail.judges import make_judge
from guardrail.specs import ModelIdentity
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator

from .story import Story, drawn, plain, spelled, write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name files as a user types them, which is without the folder of the test."""
    monkeypatch.chdir(tmp_path)


NAMES = {"imported:good": "num_sets", "imported:weak": "degree", "imported:noise": "eccentricity"}


def population(n: int, name: str = "population", first: int = 0, power: float = 3.0) -> RecordFile:
    """Records with three scores, of which one says much, one little and one nothing."""
    rows = []
    for i in range(first, first + n):
        u = i * 0.6180339887 % 1
        rows.append(
            {
                "id": f"r{i:03}",
                "question": f"q{i}?",
                "group": f"g{i % 40}",
                "correct": bool(i * 0.4142135623 % 1 > u**power),
                "good": round(u, 4),
                "weak": round(0.3 * u + i * 0.7320508 % 1, 4),
                "noise": round(i * 0.2360679 % 1, 4),
            }
        )
    columns = parse_map(["score=good", "score=weak", "score=noise"])
    file = import_file(write(f"{name}-rows.jsonl", rows), ImportSettings(columns=columns, model="m")).file
    # as if estimators had made the scores: those that came with a file have no guard
    specs = {key: make_estimator(key).spec for key in NAMES.values()}
    records = [
        record.model_copy(update={"scores": {NAMES[key]: score for key, score in record.scores.items()}})
        for record in file.records
    ]
    update = {"created": "2026-01-01T00:00:00+00:00", "packages": {}, "estimators": specs}
    write_records(f"{name}.jsonl", file.header.model_copy(update=update), records)
    return read_records(f"{name}.jsonl")


def grouped(file: RecordFile, names: str) -> RecordFile:
    """The records in other groups."""
    records = [record.model_copy(update={"group": names[i % len(names)]}) for i, record in enumerate(file.records)]
    return RecordFile(file.path, file.header, records)


def told(artifact: CalibrationArtifact) -> str:
    """An artifact without its scores, and without when and with which packages it was made."""
    text = plain(artifact.model_copy(update={"created": "", "packages": {}, "lineage": ()}))
    text.pop("packages", None)
    text["calibration"] = {name: len(values) for name, values in text["calibration"].items() if values}
    text["data"].pop("questions", None)
    return json.dumps(text, ensure_ascii=False)


def fits_of(artifact: CalibrationArtifact) -> Selection | None:
    """Which fit it is, without the fits' names, which follow from the time."""
    selection = artifact.selection
    return selection and selection.model_copy(update={"fit": "", "family": ""})


def test_artifacts() -> None:
    story = Story("artifacts.txt")
    file = population(240)
    chosen: dict[str, dict[str, Any]] = {
        "acrc": {"estimator": "num_sets"},
        "certified": {"estimator": "num_sets", "rule": "certified", "delta": 0.2},
        "certified, weak": {"estimator": "degree", "rule": "certified"},
        "clusters": {"estimator": "num_sets", "rule": "certified", "groups": "cluster", "alpha": 0.3},
        "all of clusters": {"estimator": "num_sets", "rule": "group_mean", "groups": "cluster", "alpha": 0.3},
        "options": {"estimator": "num_sets", "rule": "certified", "options": {"expect": 0.5}},
        "a part": {"estimator": "num_sets", "part": file.records[:100]},
        "a second fit": {
            "estimator": "num_sets",
            "rule": "certified",
            "selection": Selection(fits=2, others=0.1, part=0.5, fit="a", family="b"),
        },
    }
    for title, settings in chosen.items():
        artifact = fit_artifact(file, **{"alpha": 0.15, **settings})
        story.head(title)
        story.say(told(artifact))
        story.show("at calibration", at_calibration(artifact))
        ours, others = calibration_part(artifact, file.records, str(settings["estimator"]))
        story.show("parts", [len(ours), len(others)])
    twice = RecordFile(
        file.path, file.header, [*file.records, *(r.model_copy(update={"id": f"{r.id}b"}) for r in file.records[:9])]
    )
    for repeats in ("once", "all"):
        artifact = fit_artifact(twice, estimator="num_sets", alpha=0.15, repeats=repeats)
        story.show(f"equal questions, {repeats}", [artifact.data.n_questions, artifact.data.n_used])
    story.head("other targets and rules of one artifact")
    artifact = fit_artifact(file, estimator="num_sets", alpha=0.15, rule="certified", delta=0.2)
    for changes in ({"alpha": 0.3}, {"delta": 0.05}, {"rule": "acrc"}, {"rule": "sgr", "delta": 0.1}):
        again = refit(artifact, **changes)
        story.show(spelled(changes), {"outcome": again.outcome, "selection": fits_of(again), "price": again.price})
    story.show("twice", fits_of(refit(refit(artifact, delta=0.05), rule="sgr")))
    story.head("looks")
    bare = RecordFile(
        file.path,
        file.header.model_copy(update={"correctness": None}),
        [r.model_copy(update={"correct": None}) for r in file.records],
    )
    drawn = draw_to_label(bare, "num_sets", share=0.9, n=120, looks=(60, 120), fixed_beforehand=True)
    labels = {record.id: record.correct for record in file.records}
    looked = RecordFile(
        drawn.path,
        drawn.header.model_copy(update={"correctness": file.header.correctness}),
        [r.model_copy(update={"correct": labels[r.id]}) for r in drawn.records],
    )
    for look in (1, 2):
        artifact = fit_artifact(looked, estimator="num_sets", alpha=0.2, rule="certified", look=look)
        story.show(f"look {look}", told(artifact))
        story.show("  refitted", refit(artifact, alpha=0.3).outcome.delta)
    story.head("labels that would do")
    weak = fit_artifact(population(60, "small"), estimator="degree", alpha=0.15)
    story.show("price", with_labels_needed(weak, repetitions=5).price)
    story.head("held out")
    train, test = split(file.records, test_fraction=0.3)
    artifact = fit_artifact(file, estimator="num_sets", alpha=0.15, part=train)
    story.show("counts", held_out(artifact, test, "num_sets"))
    story.head("plans for one estimator")
    plan = SamplingPlan(n=5, logprobs=True, follow_ups=("p_true", "verbalised"))
    for name in ("num_sets", "perplexity", "verbalised", "semantic_entropy"):
        story.show(name, narrowed_plan(plan, make_estimator(name).spec))
    story.show("imported", narrowed_plan(plan, make_estimator("degree").spec.model_copy(update={"name": "imported:x"})))
    story.head("refused")
    other = RecordFile(
        Path("other.jsonl"), file.header.model_copy(update={"plan": SamplingPlan(n=3, temperature=0.1)}), file.records
    )
    no_scores = RecordFile(file.path, file.header.model_copy(update={"estimators": {}}), file.records)
    refusals: dict[str, Callable[[], object]] = {
        "no labels": lambda: fit_artifact(bare, estimator="num_sets", alpha=0.1),
        "no such score": lambda: fit_artifact(file, estimator="perplexity", alpha=0.1),
        "no description of the score": lambda: fit_artifact(no_scores, estimator="num_sets", alpha=0.1),
        "looks without a number": lambda: fit_artifact(file, estimator="num_sets", alpha=0.1, looks=(10, 20)),
        "a look of a part": lambda: fit_artifact(looked, estimator="num_sets", alpha=0.1, look=1, part=file.records),
        "a look that is not named": lambda: fit_artifact(looked, estimator="num_sets", alpha=0.1),
        "another plan and score": lambda: require_same(artifact, other, "degree"),
        "no labels to test on": lambda: held_out(artifact, bare.records, "num_sets"),
        "a test on the fit": lambda: held_out(artifact, file.records, "num_sets"),
        "nothing fitted by this file": lambda: fit_artifact("none.jsonl", estimator="num_sets", alpha=0.1),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def outcomes_of(artifact: CalibrationArtifact) -> list[Any]:
    """The outcomes of an artifact's segments."""
    assert artifact.segments is not None
    return list(artifact.segments.outcomes.values())


def test_segments() -> None:
    story = Story("segments.txt")
    file = grouped(population(240), "aaabbc")
    artifact = fit_artifact(file, estimator="num_sets", alpha=0.2, rule="certified", delta=0.2)
    names = file.records.groups
    for by in (BySegment(), BySegment(share="each", min_labels=100), BySegment(unknown="abstain", min_labels=30)):
        made = with_segments(artifact, names, by)
        story.head(spelled(by))
        story.say(told(made))
        for row in segment_rows(made):
            story.show(row.name, row)
        story.show("at calibration", at_calibration(made))
        story.show(
            "at .3",
            [outcome.acceptance for outcome in outcomes_of(refit(made, alpha=0.3))],
        )
    story.show("rows of one threshold", segment_rows(artifact))
    story.head("refused")
    average = fit_artifact(file, estimator="num_sets", alpha=0.2)
    clusters = fit_artifact(file, estimator="num_sets", alpha=0.3, rule="certified", groups="cluster")
    refusals: dict[str, Callable[[], object]] = {
        "a rule without a certificate": lambda: with_segments(average, names, BySegment()),
        "clusters": lambda: with_segments(clusters, names, BySegment()),
        "no labels at least": lambda: with_segments(artifact, names, BySegment(min_labels=0)),
        "small groups": lambda: with_segments(artifact, names, BySegment(min_labels=500)),
        "no groups": lambda: with_segments(artifact, [None] * 240, BySegment()),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_audits() -> None:
    story = Story("audits.txt")
    file = population(240)
    fresh = population(150, "fresh", 1000)
    worse = population(150, "worse", 2000, power=1.0)
    for rule in ("acrc", "certified", "crc_joint"):
        artifact = fit_artifact(file, estimator="num_sets", alpha=0.2, rule=rule)
        for title, records, settings in (
            ("alike", fresh, {}),
            ("worse", worse, {}),
            ("a target of .4", fresh, {"target": 0.4}),
            ("at any time", worse, {"anytime": True, "level": 0.1}),
        ):
            result = audit(artifact, records.records, "num_sets", **settings)  # type: ignore[arg-type]
            story.head(f"{rule}, {title}")
            story.say(spelled(result.model_copy(update={"artifact": ""})))
            story.show("reading", [result.cause, result.contradicts_calibration, result.shift.scores_differ])
    by = with_segments(
        fit_artifact(grouped(file, "ab"), estimator="num_sets", alpha=0.2, rule="certified"),
        grouped(file, "ab").records.groups,
        BySegment(),
    )
    for title, records in (("alike", fresh), ("worse", worse)):
        result = audit(by, grouped(records, "ab").records, "num_sets")
        story.head(f"segments, {title}")
        story.say(spelled(result.model_copy(update={"segments": {}, "artifact": ""})))
        for name, each in result.segments.items():
            story.show(name, each.model_copy(update={"artifact": ""}))
        story.show("worst", result.worst.n)
    story.head("counts")
    for errors, n, target in ((0, 0, 0.1), (0, 10, 0.1), (0, 40, 0.1), (5, 20, 0.1), (1, 10, 0.1), (2, 10, 0.1)):
        story.show(
            f"{errors} of {n} at {target:g}",
            [audit_counts(errors, n, target, 0.05), audit_counts(errors, n, target, 0.05, anytime=True)],
        )
        story.show(
            "  needed",
            [labelled_needed(errors, n, target, 0.05), labelled_needed(errors, n, target, 0.05, anytime=True)],
        )
    story.head("made ready")
    ready, key = prepared(fresh, artifact, calibration=file)
    story.show("key", [key, len(ready.records)])
    story.head("refused")
    bare = RecordFile(fresh.path, fresh.header, [r.model_copy(update={"correct": None}) for r in fresh.records])
    unlabelled = RecordFile(bare.path, fresh.header.model_copy(update={"correctness": None}), bare.records)
    model = RecordFile(
        fresh.path,
        fresh.header.model_copy(update={"model": fresh.header.model.model_copy(update={"model": "x"})}),
        fresh.records,
    )
    renamed = RecordFile(
        fresh.path,
        fresh.header,
        [r.model_copy(update={"id": f"n{r.id}", "question": f"new {r.question}"}) for r in file.records],
    )
    some = RecordFile(fresh.path, fresh.header, [*renamed.records[::-1], *fresh.records])
    refusals: dict[str, Callable[[], object]] = {
        "a level of .5": lambda: audit(artifact, fresh.records, "num_sets", level=0.5),
        "a level of 5": lambda: audit(artifact, fresh.records, "num_sets", level=5),
        "a target of 20": lambda: audit(artifact, fresh.records, "num_sets", target=20),
        "no labels": lambda: audit(artifact, bare.records, "num_sets"),
        "no scores": lambda: audit(artifact, fresh.records, "perplexity"),
        "the questions of the fit": lambda: audit(artifact, file.records, "num_sets"),
        "the file of the fit": lambda: prepared(file, artifact),
        "the questions of the fit under other names": lambda: prepared(renamed, artifact),
        "scores of the fit": lambda: prepared(some, artifact),
        "labels that cannot be made": lambda: prepared(unlabelled, artifact),
        "another model": lambda: prepared(model, artifact),
        "shared questions": lambda: refuse_shared(RecordFile(file.path, file.header, file.records[:3]), file),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_the_count_of_fits() -> None:
    story = Story("fits.txt")
    file = population(160)

    def fitted(
        key: str, fits: Fits, *, strict: bool = False, declare: tuple[str, ...] = (), **settings: Any
    ) -> CalibrationArtifact:
        def make(selection: Selection | None) -> CalibrationArtifact:
            return fit_artifact(file, estimator=key, alpha=0.2, rule="certified", selection=selection, **settings)

        return counted(make, fits, FitSettings(key, settings.get("delta"), {}, declare), strict=strict)

    memory = Fits([beside(file.path)])
    story.show("beside", str(beside(Path("a/records.jsonl"))))
    for key in ("num_sets", "num_sets", "degree", "eccentricity"):
        artifact = fitted(key, memory)
        story.head(key)
        story.show("selection", artifact.selection)
        story.show("guarantee", artifact.outcome.guarantee)
        story.show("certificate", artifact.certificate.guarantee)
        story.show("warning", selection_warning(artifact))
    story.head("another delta")
    story.show("selection", fitted("num_sets", memory, delta=0.05).selection)
    story.head("lines")
    for line in Path("population.fits.jsonl").read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        story.say(spelled({name: value for name, value in values.items() if name not in ("created", "questions")}))
    story.head("declared")
    declared = Fits()
    for key in ("num_sets", "degree"):
        artifact = fitted(key, declared, declare=("degree", "num_sets"))
        story.show(key, [artifact.selection, artifact.outcome.delta, selection_warning(artifact)])
    story.head("refused")
    write("torn.jsonl", "{\n")
    write("later.jsonl", '{"format": 2}\n')
    write("other.jsonl", '{"format": 1}\n')
    refusals: dict[str, Callable[[], object]] = {
        "another one": lambda: fitted("num_sets", memory, strict=True, delta=0.3),
        "a declaration without the score": lambda: fitted("num_sets", Fits(), declare=("degree",)),
        "a declaration that comes late": lambda: fitted("num_sets", memory, declare=("degree", "num_sets")),
        "a damaged memory": lambda: Fits([Path("torn.jsonl")]).read(),
        "a memory of a later version": lambda: Fits([Path("later.jsonl")]).read(),
        "a line without fields": lambda: Fits([Path("other.jsonl")]).read(),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_choices_among_scores() -> None:
    story = Story("choices.txt")
    file = population(240)
    for ranked in rank_estimators(file.records, list(NAMES.values()), alpha=0.2):
        story.show(ranked.estimator, ranked)
    for ranked in rank_estimators(
        file.records, ["degree", "num_sets", "none"], alpha=0.2, rule="certified", groups="cluster"
    ):
        story.show(f"clusters, {ranked.estimator}", ranked)
    chosen = choose_estimator(file, alpha=0.2)
    story.show("chosen", [chosen.estimator, len(chosen.rest), chosen.choice.model_copy(update={"questions": ()})])
    story.show("ranking", chosen.ranking)
    fewer = choose_estimator(file, alpha=0.2, share=0.2, seed=1, groups="cluster")
    story.show("by clusters", [fewer.estimator, len(fewer.rest), fewer.choice.n, fewer.choice.share])
    story.head("a grid")
    grid = evaluate_grid(sources([file], apart=True), None, rules=["acrc", "certified"], alphas=[0.2], splits=4)
    story.show("repr", repr(grid))
    story.say(str(grid), grid._repr_html_())
    story.say(*(spelled(row) for row in grid.table()))
    sized = evaluate_grid(
        sources([file], apart=False),
        ["degree"],
        rules=["lec"],
        alphas=[0.2],
        sizes=[50, 100],
        splits=2,
        cluster_by_group=True,
    )
    story.say(*(spelled(row) for row in sized.table()))
    pool = paper_pool(sources([file], apart=True)[0], ["num_sets", "degree"])
    story.show("pool", [pool.dataset, pool.model, list(pool.uncertainty), pool.groups])
    story.head("calls")
    table = calls_beside_fit(file, alphas=[0.1, 0.3])
    story.show("of a small part", table is None)
    calls = calls_of_part(file.records[:120], file.records[120:], file.header, alphas=[0.1, 0.3], n_fit=100)
    story.say(calls.title, str(calls), f"advice: {calls.advice}", spelled(calls))
    artifact = fit_artifact(file, estimator="num_sets", alpha=0.2, part=file.records[:120])
    beside_it = compare_with_artifact(artifact, ["population.jsonl"])
    story.say(beside_it.title, str(beside_it))
    story.head("refused")
    none = RecordFile(file.path, file.header.model_copy(update={"estimators": {}}), file.records)
    right = RecordFile(file.path, file.header, [r.model_copy(update={"correct": True}) for r in file.records])
    write_records(
        "model.jsonl",
        file.header.model_copy(update={"model": file.header.model.model_copy(update={"model": "x"})}),
        file.records,
    )
    write_records("plan.jsonl", file.header.model_copy(update={"plan": SamplingPlan(n=3)}), file.records)
    ungrouped = RecordFile(file.path, file.header, [r.model_copy(update={"group": None}) for r in file.records])
    refusals: dict[str, Callable[[], object]] = {
        "a share of 20": lambda: choose_estimator(file, alpha=0.2, share=20),
        "no scores": lambda: choose_estimator(none, alpha=0.2),
        "few labels": lambda: choose_estimator(file, alpha=0.2, share=0.05),
        "no error": lambda: choose_estimator(right, alpha=0.2),
        "a grid without scores": lambda: evaluate_grid(sources([none], apart=True), None, rules=["lec"], alphas=[0.2]),
        "a grid of another score": lambda: evaluate_grid(
            sources([file], apart=True), ["num_set"], rules=["lec"], alphas=[0.2]
        ),
        "a grid without groups": lambda: evaluate_grid(
            sources([ungrouped], apart=True), None, rules=["lec"], alphas=[0.2], cluster_by_group=True
        ),
        "a table of few": lambda: calls_of_part(file.records[:50], [], file.header, alphas=[0.1], n_fit=20),
        "records of another model": lambda: compare_with_artifact(artifact, ["model.jsonl"]),
        "records of another plan": lambda: compare_with_artifact(artifact, ["plan.jsonl"]),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_people_beside_a_judge() -> None:
    story = Story("people.txt")
    file = population(240)
    ids = [record.id for i, record in enumerate(file.records) if i % 3 == 0]
    labels = GivenLabels(
        Path("people.csv"), {record.id: bool(record.correct) for record in file.records if record.id in ids}, "0" * 64
    )
    artifact, sample = artifact_with_people(file, labels, estimator="num_sets", alpha=0.3)
    story.say(told(artifact))
    story.show("sample", len(sample.records))
    of_ids = np.array([record.id in ids for record in file.records])
    halves = ["ab"[place % 2] for place in range(240)]
    story.show(
        "group unlike the sample",
        [group_unlike_sample(halves, of_ids), group_unlike_sample(halves, np.arange(240) % 2 == 0)],
    )
    story.show(
        "p of a selection", [selection_p(of_ids, np.arange(240) < 90), selection_p(of_ids, np.arange(240) % 5 == 0)]
    )
    story.head("refused")
    wrong = {r.id: bool(r.correct) for i, r in enumerate(file.records) if not r.correct or i % 9 == 0}
    low = {r.id: bool(r.correct) for r in file.records if (r.scores["num_sets"].value or 0) < 0.4}
    bare = RecordFile(file.path, file.header.model_copy(update={"correctness": None}), file.records)
    refusals: dict[str, Callable[[], object]] = {
        "no judge": lambda: artifact_with_people(bare, labels, estimator="num_sets", alpha=0.3),
        "unknown records": lambda: artifact_with_people(
            file, GivenLabels(Path("people.csv"), {"x": True}, ""), estimator="num_sets", alpha=0.3
        ),
        "labels on wrong answers": lambda: artifact_with_people(
            file, GivenLabels(Path("people.csv"), wrong, ""), estimator="num_sets", alpha=0.3
        ),
        "labels on a group": lambda: artifact_with_people(
            grouped(file, "abc"), labels, estimator="num_sets", alpha=0.3
        ),
        "labels on low scores": lambda: artifact_with_people(
            file, GivenLabels(Path("people.csv"), low, ""), estimator="num_sets", alpha=0.3
        ),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def test_cascades() -> None:
    story = Story("cascades.txt")
    small = population(200, "small")
    large = population(200, "large", power=6.0)
    large = RecordFile(
        large.path,
        large.header.model_copy(
            update={"model": large.header.model.model_copy(update={"model": "large"}), "prompt": small.header.prompt}
        ),
        large.records,
    )
    for rule, settings in (("lec_joint", {}), ("certified", {"delta": 0.2, "price": 0.1})):
        made = fit_cascade([small, large], alpha=0.15, estimators=["num_sets", "num_sets"], rule=rule, **settings)  # type: ignore[arg-type]
        story.head(rule)
        story.show("outcome", made.outcome)
        story.show("certificate", made.certificate)
        for stage in made.stages:
            story.show(stage.model.model, told(stage))
        counted_one = counted_cascade(made, Fits(), ["num_sets", "num_sets"])
        story.show("selection", counted_one.selection)
        story.show("promise", counted_one.outcome.guarantee)
    pool = matched([small, large], ["num_sets", "degree"], part=["r001", "r005"])
    story.show("matched", pool)
    story.head("refused")
    others = RecordFile(large.path, large.header, large.records[10:])
    asked = RecordFile(
        large.path, large.header, [large.records[0].model_copy(update={"question": "x?"}), *large.records[1:]]
    )
    labelled = RecordFile(large.path, large.header.model_copy(update={"correctness": None}), large.records)
    sampled = draw_to_label(
        RecordFile(
            small.path,
            small.header.model_copy(update={"correctness": None}),
            [r.model_copy(update={"correct": None}) for r in small.records],
        ),
        "num_sets",
        share=0.5,
        n=20,
    )
    sampled = RecordFile(
        sampled.path, sampled.header.model_copy(update={"correctness": small.header.correctness}), sampled.records
    )
    bare = RecordFile(large.path, large.header, [r.model_copy(update={"correct": None}) for r in large.records])
    answered = {"scores": {}, "drawn": SampleSet(question="q?", primary=Sample(text="x"))}
    unscored = RecordFile(small.path, small.header, [r.model_copy(update=answered) for r in small.records])
    refusals: dict[str, Callable[[], object]] = {
        "one stage": lambda: matched([small], ["num_sets"]),
        "too few estimators": lambda: matched([small, large], ["num_sets"]),
        "other questions": lambda: matched([small, others], ["num_sets", "num_sets"]),
        "another text": lambda: matched([small, asked], ["num_sets", "num_sets"]),
        "other labels": lambda: matched([small, labelled], ["num_sets", "num_sets"]),
        "no labels": lambda: matched([small, bare], ["num_sets", "num_sets"]),
        "a second cascade": lambda: strict(made),
        "a sample of low scores": lambda: matched([sampled, sampled], ["num_sets", "num_sets"]),
        "no such score": lambda: matched([unscored, large], ["num_sets", "num_sets"]),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.head("questions that a stage did not measure")
    for reason in (Unmeasured.EMPTY_ANSWER, Unmeasured.REFUSED, Unmeasured.MISCONFIGURED):
        first = small.records[0]
        score = first.scores["num_sets"].model_copy(update={"value": None, "reason": reason, "detail": "so"})
        unmeasured = RecordFile(
            small.path, small.header, [first.model_copy(update={"scores": {"num_sets": score}}), *small.records[1:]]
        )
        story.show(
            f"first {reason}",
            matched([unmeasured, large], ["num_sets", "num_sets"], part=[first.id, small.records[1].id]),
        )
    for problem in (Unmeasured.SAMPLING_SHORTFALL, Unmeasured.MODEL_FAILED):
        failed = first.model_copy(
            update={"scores": {}, "drawn": SampleSet(question="q?", primary=None, problem=problem)}
        )
        unmeasured = RecordFile(small.path, small.header, [failed, *small.records[1:]])
        story.show(
            f"first, not drawn: {problem}",
            matched([unmeasured, large], ["num_sets", "num_sets"], part=[first.id, small.records[1].id]),
        )
    story.refused("nothing measured", lambda: matched([unmeasured] * 2, ["num_sets"] * 2, part=[first.id]))
    story.compare()


def strict(made: Any) -> None:
    memory = Fits()
    counted_cascade(made, memory, ["a", "b"])
    again = made.model_copy(update={"outcome": made.outcome.model_copy(update={"options": {"price": 3}})})
    counted_cascade(again, memory, ["a", "b"], strict=True)


FRAME = [
    {
        "q": f"capital {i}?",
        "gold": "Paris",
        "a": "Paris" if i % 4 else "Rome",
        "b": "Paris",
        "c": ("Paris", "Rome", "Oslo")[i % 3],
        "m": "gpt",
    }
    for i in range(60)
]


def test_data_frames(caplog: pytest.LogCaptureFixture) -> None:
    story = Story("frames.txt")
    caplog.set_level(logging.WARNING, logger="guardrail")
    records = from_frame(FRAME, question="q", references="gold", samples=["a", "b", "c"], model="m")
    story.show("repr", repr(records))
    story.show("notes", records.notes)
    story.show("model", records.file.header.model)
    story.show("first", records.file.records[0])
    records.score("num_sets", "graded_disagreement", "semantic_entropy:exact").label("exact")
    story.show("scored", repr(records))
    for settings in (
        {"alpha": 0.2, "estimator": "graded_disagreement"},
        {"alpha": 0.2, "estimator": "num_sets", "rule": "certified"},
    ):
        artifact = records.fit(**settings)  # type: ignore[arg-type]
        story.show(spelled(settings), [artifact.outcome, artifact.selection, artifact.price])
    story.say(*(f"logged: {record.getMessage()}" for record in caplog.records))
    caplog.clear()
    story.say(
        str(records.compare(alpha=0.2, splits=3, estimators=["num_sets"])),
        str(records.evaluate(splits=3, rules=["lec"])),
    )
    story.say(str(records.evaluate(alphas=[0.2], splits=2)))
    story.show("scores that were fitted", records.artifact is not None and records.artifact.estimator.name)
    one, two = records.split(0.25)
    story.show("split", [len(one), len(two)])
    records.label("stated")
    story.say(*(f"logged: {record.getMessage()}" for record in caplog.records))
    records.write("frame.jsonl")
    story.show("read", repr(Records.read("frame.jsonl")))
    story.head("columns")
    rows = [
        {"id": i, "question": f"q{i}?", "answer": "x", "u": i / 10, "c": 1 - i / 10, "ok": i < 5, "logit": -i}
        for i in range(8)
    ]
    own = from_frame(rows, correct="ok", score=["u", ScoreColumn("l", "logit", certain=True)], confidence="c")
    story.show("scores", own.file.records[3].scores)
    story.show("labels", [record.correct for record in own.file.records])
    listed = from_frame(
        [{"question": cell, "samples": cell} for cell in ("['x', 'y']", '["x", "z"]')], samples="samples"
    )
    story.show("lists as pandas writes them", [record.drawn for record in listed.file.records])
    bad = [*rows, {"id": 3}, {"id": 9, "answer": float("nan")}]
    left = from_frame(bad, settings=ImportSettings(skip_bad=True))
    story.show("left out", left.notes)
    story.head("refused")
    unscored = from_frame(FRAME, question="q", references="gold", samples=["a", "b", "c"])
    unlabelled = from_frame(FRAME, question="q", references="gold", samples=["a", "b", "c"]).score("num_sets")
    broken = (
        from_frame(
            [row | {"a": "It is Paris.", "b": "It is Paris.", "c": f"It is Paris {i}."} for i, row in enumerate(FRAME)],
            question="q",
            references="gold",
            samples=["a", "b", "c"],
        )
        .score("num_sets")
        .label("exact")
    )
    refusals: dict[str, Callable[[], object]] = {
        "no scores": lambda: unscored.fit(alpha=0.1),
        "no labels": lambda: unlabelled.fit(alpha=0.1),
        "broken labels": lambda: broken.fit(alpha=0.1),
        "nothing fitted": lambda: unscored.report("x.html"),
        "no targets": lambda: unlabelled.evaluate(),
        "parameters of a rule that is not named": lambda: unscored.label(None, threshold=0.5),
        "no such column": lambda: from_frame(FRAME, question="question", samples=["a", "b"]),
        "no samples": lambda: from_frame(FRAME, question="q", references="gold"),
        "one sample": lambda: from_frame(FRAME, question="q", samples="a"),
        "no model": lambda: from_frame(FRAME, question="q", samples=["a", "b"], model="gpt-4"),
        "two models": lambda: from_frame(
            [*FRAME[:3], FRAME[3] | {"m": "llama"}], question="q", samples=["a", "b"], model="m"
        ),
        "a list of texts": lambda: from_frame(["a"]),
        "a number": lambda: from_frame(3),
        "semicolons": lambda: from_frame([{"q;a": "x;y"}]),
        "parts of texts": lambda: from_frame(FRAME, parts="text"),  # type: ignore[arg-type]
        "a label that is a word": lambda: from_frame([{"question": "q?", "answer": "x", "ok": "maybe"}], correct="ok"),
        "options without a scale": lambda: from_frame([{"question": "q?", "option_scores": {"A": 1, "B": 2}}]),
        "a confidence of 90": lambda: from_frame([{"id": 1, "c": 90}], confidence="c"),
        "a question twice": lambda: from_frame([FRAME[0], FRAME[0]], question="q", samples=["a", "b"]),
        "one log-probability": lambda: from_frame([{"question": "q?", "samples": ["x", "y"], "logprobs": [1]}]),
        "no rows": lambda: from_frame([]),
    }
    for title, call in refusals.items():
        story.refused(title, call)
    story.compare()


def answered(i: int) -> Record:
    """Wrong answers have twice the negative log-likelihood, and samples that contradict them."""
    wrong = i % 3 == 0

    def answer(text: str) -> Sample:
        return Sample(text=text, tokens=(text,), logprobs=(-(1.0 + wrong + (i % 7) / 100),), finish_reason="stop")

    samples = tuple(answer("Rome" if wrong and j < 2 else "Oslo") for j in range(3))
    drawn_set = SampleSet(question=f"{i}?", primary=answer("Oslo"), samples=samples)
    return Record(
        id=f"id{i}", question=f"{i}?", references=("Oslo",), drawn=drawn_set, correct=not wrong, turns="human"
    )


def with_draws(n: int, first: int = 0) -> RecordFile:
    header = population(3, "header").header
    plan = SamplingPlan(n=3, logprobs=True)
    update = {"plan": plan, "estimators": {}, "correctness": make_rule("exact").spec}
    return RecordFile(
        Path("drawn.jsonl"), header.model_copy(update=update), [answered(i) for i in range(first, first + n)]
    )


def test_scores_of_draws_beside_calls() -> None:
    story = Story("calls.txt")
    file = with_draws(420)
    table = calls_of_part(file.records[:110], file.records[110:], file.header, alphas=[0.1, 0.2], n_fit=200)
    story.say(table.title, str(table), f"advice: {table.advice}", spelled(table))
    votes = make_estimator("graded_disagreement")
    sets = [record.drawn for record in file.records[:60] if record.drawn is not None]
    for plan in (
        file.header.plan,
        SamplingPlan(n=3),
        SamplingPlan(n=3, primary="majority"),
        SamplingPlan(n=0, logprobs=True),
    ):
        story.head(spelled(plan))
        for score in scores_of_draws(sets, plan, votes):
            values = score.values[:4]
            story.show(score.name, [score.calls, values, score.tokens, score.weight, score.more, score.more_tokens])
    place, error = np.linspace(0, 1, 40), np.arange(40) % 3 == 0
    for title, second in (("tells", error * 1.0), ("says nothing", np.zeros(40)), ("unmeasured", np.full(40, np.nan))):
        story.show(f"contradiction, {title}", contradiction(place, second, error.astype(np.int64)))
    story.head("answers that no sample supports")
    for name in ("semantic_entropy", "primary_disagreement", "perplexity"):
        scored = score_records(file, [make_estimator(name)])
        story.show(name, unread_answers(scored, name, 100))
    story.show("judges", [judge_to_look_at(None), type(judge_to_look_at(make_judge("exact").spec)).__name__])
    unknown = make_judge("exact").spec.model_copy(update={"name": "chat"})
    story.show("a judge that is a model", judge_to_look_at(unknown))
    story.head("audits of records that are not scored or labelled")
    scored = score_records(file, [make_estimator("primary_disagreement")])
    artifact = fit_artifact(scored, estimator="primary_disagreement", alpha=0.2)
    fresh = with_draws(60, 1000)
    bare = RecordFile(
        fresh.path,
        fresh.header.model_copy(update={"correctness": None}),
        [r.model_copy(update={"correct": None}) for r in fresh.records],
    )
    ready, key = prepared(bare, artifact)
    story.show("made", [key, ready.header.correctness, [record.correct for record in ready.records[:4]]])
    shifted = [
        r.model_copy(update={"scores": {k: v.model_copy(update={"value": 0.9}) for k, v in r.scores.items()}})
        for r in ready.records
    ]
    result = audit(artifact, shifted, key)
    story.show("other questions", [result.verdict, result.cause, result.shift])
    wrong = [r.model_copy(update={"correct": False}) for r in ready.records]
    result = audit(artifact, wrong, key)
    story.show("other labels", [result.verdict, result.cause, result.contradicts_calibration])
    half = [
        record.model_copy(update={"correct": record.correct if i % 2 else None})
        for i, record in enumerate(ready.records)
    ]
    story.show("half of the labels", audit(artifact, half, key).n_unlabelled)
    story.compare()


def test_more_of_fits() -> None:
    story = Story("fits_more.txt")
    file = population(160)
    story.head("undecided answers that are decided")
    doubtful = [
        r.model_copy(update={"correct": None, "label_detail": "in doubt"}) if i % 20 == 0 else r
        for i, r in enumerate(with_draws(160).records)
    ]
    drawn_file = score_records(RecordFile(file.path, with_draws(1).header, doubtful), [make_estimator("num_sets")])
    decided = RecordFile(
        file.path,
        drawn_file.header,
        [
            r.model_copy(update={"correct": True, "label_detail": ""}) if r.correct is None else r
            for r in drawn_file.records
        ],
    )
    memory = Fits()
    for title, labelled in (("undecided", drawn_file), ("decided", decided)):

        def make(selection: Selection | None, labelled: RecordFile = labelled) -> CalibrationArtifact:
            return fit_artifact(labelled, estimator="num_sets", alpha=0.3, rule="certified", selection=selection)

        artifact = counted(make, memory, FitSettings("num_sets"))
        story.show(title, [artifact.selection, artifact.data.n_undecided, artifact.outcome.diagnostics.base_error])
    story.show("lines", [[fit.undecided, fit.wrong, fit.spent] for fit in memory.entries])
    story.head("artifacts in the folder")
    Path("folder").mkdir()
    write("folder/other.json", "{}")
    write("folder/torn.json", '{\n "digest"')
    fit_artifact(file, estimator="degree", alpha=0.2, rule="certified", delta=0.3).save("folder/one.json")
    beside_it = Fits(folder=Path("folder"))
    artifact = counted(
        lambda selection: fit_artifact(file, estimator="num_sets", alpha=0.2, rule="certified", selection=selection),
        beside_it,
        FitSettings("num_sets"),
    )
    story.show("selection", artifact.selection)
    story.show("fits", sorted([fit.score, fit.rule, fit.spent, fit.n] for fit in beside_it.read()))
    story.head("segments and other settings")
    by = fit_artifact(
        grouped(file, "ab"),
        estimator="num_sets",
        alpha=0.2,
        rule="certified",
        by=BySegment(),
        selection=Selection(fits=3, others=0.2, part=0.5, fit="a", family="b"),
    )
    story.show(
        "promises", {name: outcome.guarantee for name, outcome in (by.segments.outcomes if by.segments else {}).items()}
    )
    story.show("warning", selection_warning(by))
    records = Records(file)
    artifact = records.fit(alpha=0.2, estimator="auto")
    story.show("auto", [artifact.estimator.name, artifact.data.n_used, artifact.choice.n if artifact.choice else None])
    rest = without_choice(artifact, file.records)
    story.show(
        "left by the choice", [len(rest), len(without(file.records, file.records[:9])), len(without(file.records, []))]
    )
    story.refused(
        "a test on the choice",
        lambda: held_out(artifact, [r for r in file.records if r.id not in set(rest.ids)], "num_sets"),
    )
    older = artifact.model_copy(update={"data": artifact.data.model_copy(update={"questions": None}), "choice": None})
    story.refused("an artifact of an older version", lambda: calibration_part(older, file.records, "num_sets"))
    story.show(
        "one that used all",
        [len(part) for part in calibration_part(older, file.records[: older.data.n_used], "num_sets")],
    )
    imported = plan_to_compare(SamplingPlan(n=0, cut_off="abstain"), artifact)
    story.show("plans", [imported, plan_to_compare(SamplingPlan(n=0), artifact)])
    story.head("figures and pages of records")
    story.show("figure", drawn(records.plot("num_sets")))
    story.show("page", len(records._repr_html_()) > len(file._repr_html_()))
    grid = records.compare(alpha=0.2, splits=2, rules=["lec"], estimators=["num_sets", "degree"])
    story.show("grid", drawn(grid.plot()))
    story.head("models")
    own = from_frame(FRAME, question="q", references="gold", samples=["a", "b", "c"], model=ScriptedChat())
    story.show("model", own.file.header.model)
    named = from_frame(
        FRAME, question="q", references="gold", samples=["a", "b", "c"], model=ModelIdentity(provider="p", model="m")
    )
    story.show("identity", named.file.header.model)
    story.compare()
