"""Estimators are ranked by hand-derived figures, and chosen on questions that the fit does not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from calibrate.data.records import Record, RecordFile
from calibrate.evaluation.audit import prepared
from calibrate.evaluation.choice import choose_score, rank_estimators
from calibrate.judging import calibration_part, held_out, without_choice
from calibrate.pipeline import fit_artifact
from guardrail.errors import UsageError
from guardrail.types import Uncertainty, Unmeasured


def scored(name: str, *, correct: bool | None, group: str | None = None, **scores: float | None) -> Record:
    def score(value: float | None) -> Uncertainty:
        why = {} if value is not None else {"reason": Unmeasured.EMPTY_ANSWER}
        return Uncertainty(value=value, unit="nats", estimator="x", **why)

    own = {key: score(value) for key, value in scores.items()}
    return Record(id=name, question=f"{name}?", group=group, scores=own, correct=correct)


def test_a_question_without_a_score_counts_as_the_least_certain() -> None:
    # Wrong: c, d. With "full" they lie above both right answers: AUROC 1. "holes" has no score for b (right) and c,
    # which share the place above 3: c lies above a and ties with b (1 1/2 of 2), d = 3 lies above a only (1 of 2).
    # (.75 + .5) / 2 = .625.
    records = [
        scored("a", correct=True, full=1.0, holes=1.0),
        scored("b", correct=True, full=2.0, holes=None),
        scored("c", correct=False, full=3.0, holes=None),
        scored("d", correct=False, full=4.0, holes=3.0),
        scored("e", correct=None, full=0.0, holes=9.0),  # no label: left out
    ]
    first, second = rank_estimators(records, ["holes", "full", "absent"])
    assert (first.estimator, first.auroc.value, first.n_unmeasured) == ("full", 1.0, 0)
    assert (second.estimator, second.auroc.value, second.n_unmeasured) == ("holes", 0.625, 2)
    assert rank_estimators(records[:2], ["full"]) == ()  # one class only
    twins = [
        scored(name, correct=right, b=value, a=value) for name, right, value in (("x", True, 1.0), ("y", False, 2.0))
    ]
    assert [ranked.estimator for ranked in rank_estimators(twins, ["b", "a"])] == ["a", "b"]  # ties by name


def test_the_choice_and_the_fit_share_no_question(labelled: RecordFile) -> None:
    chosen = choose_score(labelled)
    used = {record.id for record in labelled.records} - {record.id for record in chosen.rest}
    questions = {record.question for record in labelled.records if record.id in used}
    assert len(questions) == round(0.2 * len({record.question for record in labelled.records}))
    assert chosen.choice.n == len(used)
    turned = RecordFile(labelled.path, labelled.header, labelled.records[::-1])
    assert {record.id for record in choose_score(turned).rest} == {record.id for record in chosen.rest}
    assert chosen.choice.candidates == tuple(ranked.estimator for ranked in chosen.ranking)
    assert chosen.estimator == chosen.choice.candidates[0]
    assert chosen.ranking == rank_estimators(
        [record for record in labelled.records if record.id in used], sorted(labelled.header.estimators)
    )
    fitted = fit_artifact(labelled, score=chosen.estimator, alpha=0.15, rule="acrc", part=chosen.rest)
    artifact = fitted.model_copy(update={"data": fitted.data.model_copy(update={"choice": chosen.choice})})
    assert list(without_choice(artifact, labelled.records)) == list(chosen.rest)
    assert without_choice(fitted, labelled.records) == labelled.records
    others = [record for record in labelled.records if record.id in used]
    with pytest.raises(UsageError, match="test records are among those that the score was chosen on"):
        held_out(artifact, others, chosen.estimator)
    assert held_out(fitted, others, chosen.estimator).n == len(used)
    with pytest.raises(UsageError, match="fresh records are among"):
        prepared(RecordFile(labelled.path, labelled.header, tuple(others)), artifact)
    # Collected again under other ids they are the same questions, on which the chosen score looks better than it is.
    again = [record.model_copy(update={"id": f"new-{record.id}"}) for record in others]
    with pytest.raises(UsageError, match=f"{len(again)} of {len(again)} test records are among those"):
        held_out(artifact, again, chosen.estimator)


def test_the_fitted_clusters_are_whole_although_the_choice_asked_the_same(labelled: RecordFile) -> None:
    """The report of a fit on conversations would count fewer answers than the fit, if two people ask the same."""
    everyone = [record.model_copy(update={"group": record.id}) for record in labelled.records]
    twins = [record.model_copy(update={"id": f"{record.id}-b", "group": f"{record.id}-b"}) for record in everyone]
    file = RecordFile(labelled.path, labelled.header, (*everyone, *twins))
    chosen = choose_score(file, groups="cluster")
    settings: dict[str, Any] = {
        "rule": "certified_groups",
        "groups": "cluster",
        "repeats": "all",
        "choice": chosen.choice,
    }
    artifact = fit_artifact(file, score=chosen.estimator, alpha=0.5, part=chosen.rest, **settings)
    fitted, others = calibration_part(artifact, file.records)
    assert list(fitted) == list(chosen.rest)
    assert not others


def test_equal_questions_and_clusters_stay_together(labelled: RecordFile) -> None:
    twins = [record.model_copy(update={"id": f"{record.id}-again"}) for record in labelled.records]
    file = RecordFile(labelled.path, labelled.header, (*labelled.records, *twins))
    rest = {record.id for record in choose_score(file).rest}
    assert all((record.id in rest) == (f"{record.id}-again" in rest) for record in labelled.records)
    grouped = [record.model_copy(update={"group": f"g{i % 120}"}) for i, record in enumerate(labelled.records)]
    file = RecordFile(labelled.path, labelled.header, tuple(grouped))
    rest_groups = {record.group for record in choose_score(file, groups="cluster").rest}
    assert len(rest_groups) == 96  # four fifths of 120
    assert sum(record.group in rest_groups for record in grouped) == len(choose_score(file, groups="cluster").rest)


def with_records(file: RecordFile, change: Mapping[str, object], records: Sequence[Record] | None = None) -> RecordFile:
    return RecordFile(file.path, file.header.model_copy(update=dict(change)), tuple(records or file.records))


def test_it_says_why_it_cannot_choose(labelled: RecordFile) -> None:
    with pytest.raises(UsageError, match="no scores to choose from"):
        choose_score(with_records(labelled, {"estimators": {}}))
    with pytest.raises(UsageError, match=r"20% of the questions, of which \d+ have a label .* it takes 20"):
        choose_score(with_records(labelled, {}, labelled.records[:60]))
    right = [record.model_copy(update={"correct": True}) for record in labelled.records]
    with pytest.raises(UsageError, match=r"have a label \(0 of them wrong\)"):
        choose_score(with_records(labelled, {}, right))
