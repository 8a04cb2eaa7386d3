"""Fitting an ensemble: an independent solver, no training question in a calibration, and the command."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import Record, RecordFile, read_records
from calibrate.pipeline import fit_artifact, held_out
from calibrate.scoring.ensemble import (
    PENALTIES,
    cut_for_training,
    ensemble_key,
    fit_ensemble,
    fit_members,
    load_ensemble,
    read_ensemble,
    refuse_overlap,
    training_of,
)
from calibrate.scoring.scores import estimator_key, parse_estimator, score_records
from guardrail.errors import UsageError
from guardrail.types import Uncertainty, Unmeasured
from guardrail.uncertainty import EstimatorSpec, from_spec
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.ensemble import EnsembleParams

SPECS = {name: make(name).spec for name in ("degree", "num_sets")}


def record(i: int, values: tuple[float | None, ...], correct: bool | None, **fields: object) -> Record:
    scores = {
        name: Uncertainty(
            value=value, unit=spec.unit, estimator=name, reason=None if value is not None else Unmeasured.NOT_FINITE
        )
        for (name, spec), value in zip(SPECS.items(), values, strict=True)
    }
    base = {"id": f"r{i}", "question": f"question {i}", "scores": scores, "correct": correct}
    return Record.model_validate({**base, **fields})


def made_up(n: int = 400, seed: int = 0, noise: float = 1.0) -> list[Record]:
    """Errors depend on both members; the second is twice as spread."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), 2 * rng.normal(size=n)
    wrong = rng.random(n) < 1 / (1 + np.exp(-(-0.5 + 1.5 * a + noise * 0.5 * b)))
    return [record(i, (float(a[i]), float(b[i])), not wrong[i]) for i in range(n)]


def test_weights_solve_the_penalised_regression() -> None:
    """Against projected gradient descent in plain numpy, on the same objective."""
    records = made_up()
    fitted = fit_ensemble(records, SPECS)
    params = EnsembleParams.model_validate(fitted.spec.params)
    raw = np.array([[each.scores[name].value for name in SPECS] for each in records], dtype=float)
    z, y = (raw - raw.mean(0)) / raw.std(0), np.array([0.0 if each.correct else 1.0 for each in records])
    w, b = np.zeros(2), 0.0
    for _ in range(20_000):
        residual = 1 / (1 + np.exp(-(b + z @ w))) - y
        b -= 0.3 * residual.mean()
        w = np.maximum(w - 0.3 * (z.T @ residual / len(y) + 2 * fitted.fit.penalty * w), 0)
    assert [member.weight for member in params.members] == pytest.approx(w, abs=1e-4)
    assert params.intercept == pytest.approx(b, abs=1e-4)
    assert [member.mean for member in params.members] == pytest.approx(raw.mean(0))
    assert [member.scale for member in params.members] == pytest.approx(raw.std(0))


def test_it_beats_both_members_where_both_know_something() -> None:
    fit = fit_ensemble(made_up(1_000), SPECS).fit
    assert fit.ensemble_auroc > max(fit.single_auroc.values()) + 0.02
    assert fit.cross_validated[f"{fit.penalty:g}"] == min(fit.cross_validated.values())
    assert len(fit.cross_validated) == len(PENALTIES)


def test_a_member_that_points_the_wrong_way_is_left_out_not_turned_round() -> None:
    rng = np.random.default_rng(3)
    records = []
    for i, each in enumerate(made_up(600)):
        own = each.scores["degree"].value
        assert own is not None
        records.append(record(i, (own, -own + float(rng.normal())), each.correct))
    fitted = fit_ensemble(records, SPECS)
    assert fitted.fit.dropped == ("num_sets",)
    assert [member.spec.name for member in EnsembleParams.model_validate(fitted.spec.params).members] == ["degree"]


def test_only_the_training_part_is_looked_at_and_nothing_depends_on_order() -> None:
    records = made_up()
    fitted = fit_ensemble(records, SPECS)
    assert fit_ensemble(records[::-1], SPECS).spec.params["members"][0]["weight"] == pytest.approx(
        fitted.spec.params["members"][0]["weight"], rel=1e-6
    )
    assert fit_ensemble(records, SPECS) == fitted
    train, rest = cut_for_training(records, train_fraction=0.3)
    again_train, again_rest = cut_for_training(records[::-1], train_fraction=0.3)
    assert {r.id for r in train} == {r.id for r in again_train}
    assert {r.id for r in rest} == {r.id for r in again_rest}
    assert len(train) == 120


def test_unlabelled_and_unmeasured_records_are_counted_out() -> None:
    records = [*made_up(200), record(900, (0.1, None), True), record(901, (0.1, 0.2), None)]
    fitted = fit_ensemble(records, SPECS)
    assert (fitted.fit.n, fitted.fit.n_left_out) == (200, 2)
    assert len(EnsembleParams.model_validate(fitted.spec.params).training.ids) == 202  # asked, hence known


def test_a_single_cluster_cannot_be_cross_validated() -> None:
    records = [each.model_copy(update={"group": "one"}) for each in made_up(200)]
    with pytest.raises(UsageError, match="the training part is a single cluster"):
        fit_ensemble(records, SPECS, groups="cluster")


def test_equal_questions_and_clusters_are_never_cut() -> None:
    twins = [record(i, (0.0, 0.0), True, question=f"Which  tree is no. {i // 2}?".upper() if i % 2 else
                    f"which tree is no. {i // 2}?") for i in range(100)]  # fmt: skip
    for seed in range(20):
        train, rest = cut_for_training(twins, train_fraction=0.5, seed=seed)
        assert not {int(r.id[1:]) // 2 for r in train} & {int(r.id[1:]) // 2 for r in rest}
    clusters = [record(i, (0.0, 0.0), True, group=f"g{i % 7}") for i in range(70)]
    for seed in range(20):
        train, rest = cut_for_training(clusters, train_fraction=0.5, seed=seed, groups="cluster")
        assert not {r.group for r in train} & {r.group for r in rest}
    mixed = cut_for_training(clusters, train_fraction=0.5, groups="category")
    assert {r.group for r in mixed[0]} & {r.group for r in mixed[1]}  # topics may be cut
    other_options = [record(i, (0.0, 0.0), True, question="which?", options={"A": f"{i}", "B": "no"}) for i in range(9)]
    assert all(cut_for_training(other_options, train_fraction=0.5))  # the same words, other options: other questions


@pytest.mark.parametrize(
    ("changed", "groups", "refused"),
    [
        ({"id": "other", "question": "another"}, "category", False),
        ({"id": "other", "question": " QUESTION  5"}, "category", True),
        ({"question": "another"}, "category", True),
        ({"id": "other", "question": "another", "group": "g5"}, "category", False),
        ({"id": "other", "question": "another", "group": "g5"}, "cluster", True),
    ],
)
def test_overlap_is_refused_by_id_question_and_cluster(changed: dict[str, object], groups: str, refused: bool) -> None:
    train = [each.model_copy(update={"group": f"g{i}"}) for i, each in enumerate(made_up(100))]
    spec = fit_ensemble(train, SPECS).spec
    fresh = [train[5].model_copy(update=changed), record(990, (0.0, 0.0), True, group="own")]
    if not refused:
        refuse_overlap(spec, fresh, groups=groups)  # type: ignore[arg-type]
        return
    with pytest.raises(UsageError, match=r"1 of 2 calibration records are among the 100 questions.*file of the rest"):
        refuse_overlap(spec, fresh, groups=groups)  # type: ignore[arg-type]


def test_the_refusal_names_the_first_ids() -> None:
    train = made_up(100)
    with pytest.raises(UsageError, match=r"100 of 100 .*: r0, r1, r2, \.\.\."):
        refuse_overlap(fit_ensemble(train, SPECS).spec, train)
    refuse_overlap(make("degree").spec, train)  # other estimators were trained on nothing


def test_training_questions_are_kept_as_hashes() -> None:
    stored = training_of(made_up(60)).model_dump_json()
    assert "question" not in stored.replace('"questions"', "")
    assert len(training_of(made_up(60)).ids[0]) == 16


def test_misuse_says_the_way_out() -> None:
    records = made_up()
    with pytest.raises(UsageError, match="at least two members, got degree"):
        fit_ensemble(records, {"degree": SPECS["degree"]})
    with pytest.raises(UsageError, match=r"30 of 30 training records .*at least 50.*Raise --train-fraction"):
        fit_ensemble(records[:30], SPECS)
    with pytest.raises(UsageError, match="0 of them wrong"):
        fit_ensemble([each.model_copy(update={"correct": True}) for each in records], SPECS)
    with pytest.raises(UsageError, match="num_sets has one value"):
        fit_ensemble([record(i, (i / 9, 1.0), i % 3 > 0) for i in range(99)], SPECS)
    with pytest.raises(UsageError, match=r"must be in \(0, 1\), got 30"):
        cut_for_training(records, train_fraction=30)
    falling = [1 - i % 2 + 0.001 * i for i in range(200)]  # odd ones are wrong, and score lowest
    with pytest.raises(UsageError, match="no member"):
        fit_ensemble([record(i, (value, value), i % 2 == 0) for i, value in enumerate(falling)], SPECS)


# -- through record files and the command


def scored(labelled: RecordFile) -> RecordFile:
    return score_records(labelled, [make("degree"), make("num_sets"), make("lexical_similarity")])


def test_the_command_then_score_then_fit(records_path: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    out = tmp_path / "made" / "ensemble.json"
    shown = runner.invoke(
        app,
        ["ensemble", str(records_path), "-m", "degree, self_consistency", "--train-fraction", "0.4", "-o", str(out)],
    )
    assert shown.exit_code == 0, shown.output
    rest = out.with_suffix(".rest.jsonl")
    assert f"calibrate score {rest} --estimator {out}" in shown.output.replace("\n", " ")
    assert len(read_records(rest).records) == 144
    assert read_records(rest).header.n_questions == 144
    assert runner.invoke(app, ["score", str(rest), "-e", str(out)]).exit_code == 0
    key = ensemble_key(read_ensemble(out).spec)
    assert all(key in each.scores for each in read_records(rest).records)
    fitted = runner.invoke(
        app,
        ["fit", "--rule", "acrc", str(rest), "-e", str(out), "--alpha", "0.3", "-o", str(tmp_path / "artifact.json")],
    )
    assert fitted.exit_code == 0, fitted.output

    # the whole file holds the training questions: scoring it is harmless, calibrating on it is refused
    assert runner.invoke(app, ["score", str(records_path), "-e", str(out)]).exit_code == 0
    refused = runner.invoke(app, ["fit", "--rule", "acrc", str(records_path), "-e", str(out), "--alpha", "0.3"])
    assert refused.exit_code == 2
    assert "96 of 240 calibration records" in " ".join(refused.output.replace("│", " ").split())
    refused = runner.invoke(app, ["evaluate", str(records_path), "-e", key, "--alpha", "0.3"])
    assert refused.exit_code == 2
    assert "the ensemble was trained on" in " ".join(refused.output.replace("│", " ").split())


def test_an_artifact_needs_no_other_file(labelled: RecordFile, tmp_path: Path) -> None:
    file = scored(labelled)
    train, rest = cut_for_training(file.records, train_fraction=0.4)
    specs = fit_members(file, ["degree", "num_sets", "lexical_similarity"])
    path = tmp_path / "e.json"
    path.write_text(fit_ensemble(train, specs).model_dump_json())
    estimator = load_ensemble(path)
    assert estimator_key(parse_estimator(str(path))) == estimator_key(estimator)
    whole = score_records(RecordFile(file.path, file.header, tuple(rest)), [estimator])
    artifact = fit_artifact(whole, estimator=estimator_key(estimator), alpha=0.3, rule="acrc")
    path.unlink()
    loaded = type(artifact).load(artifact.save(tmp_path / "artifact.json"))
    again = from_spec(loaded.estimator)
    first = rest[0].drawn
    assert first is not None
    rescored = score_records(RecordFile(file.path, file.header, (rest[0],)), [again]).records[0]
    assert rescored.scores[estimator_key(again)] == whole.records[0].scores[estimator_key(estimator)]
    with pytest.raises(UsageError, match="test records are among"):
        held_out(artifact, train, estimator_key(estimator))


def test_scores_are_the_log_odds_of_the_members(labelled: RecordFile) -> None:
    file = scored(labelled)
    train, rest = cut_for_training(file.records, train_fraction=0.4)
    fitted = fit_ensemble(train, fit_members(file, ["degree", "num_sets"]))
    params = EnsembleParams.model_validate(fitted.spec.params)
    estimator = from_spec(fitted.spec)
    after = score_records(RecordFile(file.path, file.header, tuple(rest)), [estimator])
    for each in after.records:
        expected = params.intercept + math.fsum(
            member.weight * (float(each.scores[member.spec.name].value or 0) - member.mean) / member.scale
            for member in params.members
        )
        assert each.scores[estimator_key(estimator)].value == pytest.approx(expected)


def test_members_must_be_scored(labelled: RecordFile) -> None:
    with pytest.raises(UsageError, match=r"no scores by p_magic .*calibrate score .* --estimator p_magic"):
        fit_members(labelled, ["degree", "p_magic"])
    with pytest.raises(UsageError, match="twice"):
        fit_members(labelled, ["degree", "degree"])
    header = labelled.header.model_copy(
        update={"estimators": {"ensemble:1": EstimatorSpec(name="ensemble", version=1, unit="nats")}}
    )
    with pytest.raises(UsageError, match="is an ensemble itself"):
        fit_members(RecordFile(labelled.path, header, ()), ["ensemble:1"])


@pytest.mark.parametrize("name", ["imported:mine", "mine"])
def test_imported_scores_are_refused_before_anything_is_fitted(labelled: RecordFile, name: str) -> None:
    """The next command would be to score the other questions with the ensemble, which nothing can compute."""
    specs = {**labelled.header.estimators, "imported:mine": EstimatorSpec(name="imported:mine", version=1, unit="nats")}
    header = labelled.header.model_copy(update={"estimators": specs})
    file = RecordFile(labelled.path, header, labelled.records)
    with pytest.raises(UsageError, match=r"came with an imported file and cannot be computed.*scorer"):
        fit_members(file, [name, next(iter(labelled.header.estimators))])


def test_a_file_that_is_no_ensemble_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match=r"x\.json"):
        load_ensemble(tmp_path / "x.json")
    with pytest.raises(UsageError, match=r"cannot be read.*calibrate ensemble"):
        parse_estimator(str(tmp_path / "absent.json"))
