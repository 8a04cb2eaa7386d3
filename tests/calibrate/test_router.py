"""Certificates by group: they hold in every group at once where one threshold for all fails in the hard one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.evaluation.audit import audit_router
from calibrate.evaluation.promise_test import RateTest
from calibrate.fitting import fit
from calibrate.judging import accepted_of
from calibrate.ledger import Ledger, counted
from calibrate.pipeline import fit_artifact, part_header
from calibrate.router import ByGroup, by_route, fit_router
from calibrate.scope import draw_to_label
from guardrail.artifact import ALL_OTHERS, RouterArtifact
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, InfeasibleReason
from tests.calibrate.commands import run

KEY = "discrete_semantic_entropy"
ALPHA, DELTA, RUNS = 0.2, 0.1, 300
# P(wrong | u) = slope * u, u uniform on (0, 1): the error rate at or below t is slope * t / 2.
SLOPES = {"easy": 0.4, "middle": 0.8, "hard": 1.0}
SIZES = {"easy": 600, "middle": 300, "hard": 300}


def fails(outcome: Any, name: str) -> bool:
    """Whether the true error rate of the group lies above alpha at this threshold."""
    return isinstance(outcome, Feasible) and SLOPES[name] * outcome.threshold / 2 > ALPHA


def test_all_certificates_hold_at_once_where_one_threshold_fails_in_the_hard_group() -> None:
    together = each = undivided = accepted = 0
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        u = {name: rng.random(n) for name, n in SIZES.items()}
        wrong = {name: (rng.random(n) < SLOPES[name] * u[name]).astype(int) for name, n in SIZES.items()}
        divided = {name: fit(u[name], wrong[name], alpha=ALPHA, delta=DELTA / 3) for name in SLOPES}
        alone = {name: fit(u[name], wrong[name], alpha=ALPHA, delta=DELTA) for name in SLOPES}
        one = fit(np.concatenate(list(u.values())), np.concatenate(list(wrong.values())), alpha=ALPHA, delta=DELTA)
        together += any(fails(outcome, name) for name, outcome in divided.items())
        each += sum(fails(outcome, name) for name, outcome in alone.items())
        undivided += any(fails(one, name) for name in SLOPES)
        accepted += all(isinstance(outcome, Feasible) for outcome in divided.values())
    # More than these refute the promise; the chance of a false alarm is one in ten thousand.
    assert together <= stats.binom.ppf(1 - 1e-4, RUNS, DELTA)
    assert each <= stats.binom.ppf(1 - 1e-4, len(SLOPES) * RUNS, DELTA)
    assert accepted > RUNS / 5  # the promise is not kept by accepting nothing
    assert undivided > 0.9 * RUNS  # the negative control: one threshold for all


def fitted(file: RecordFile, **settings: Any) -> RouterArtifact:
    return fit_router(file, score=KEY, alpha=0.3, **settings)


def few_of_one(labelled: RecordFile) -> RecordFile:
    """Most questions of "herbs" lose their group, so that it is too small for a certificate."""
    records = [
        record.model_copy(update={"group": None}) if record.group == "herbs" and index % 9 else record
        for index, record in enumerate(labelled.records)
    ]
    return RecordFile(labelled.path, labelled.header, tuple(records))


@pytest.fixture(scope="module")
def router(labelled: RecordFile) -> RouterArtifact:
    return fitted(few_of_one(labelled))


def test_delta_is_divided_among_the_thresholds_that_are_fitted(labelled: RecordFile) -> None:
    """Three groups at delta each would all hold with 70 % only."""

    def deltas(**given: Any) -> dict[str, float | None]:
        artifacts = fitted(labelled, by=ByGroup(**given)).artifacts
        return {name: artifact.outcome.delta for name, artifact in artifacts.items() if artifact.calibration.error}

    # No question is left over, so nothing is spent on the others.
    assert deltas(min_labels=80) == dict.fromkeys(("herbs", "shrubs", "trees"), 0.1 / 3)
    assert deltas(share="each") == dict.fromkeys(("herbs", "shrubs", "trees"), 0.1)
    with pytest.raises(UsageError, match="no group has 81 labelled questions: the largest"):
        deltas(min_labels=81)


def test_small_groups_and_questions_without_one_are_all_others(labelled: RecordFile, router: RouterArtifact) -> None:
    assert list(router.artifacts) == ["shrubs", "trees", ALL_OTHERS]
    assert len(router.artifacts[ALL_OTHERS].calibration.error) == 80
    trees = [record for record in labelled.records if record.group == "trees"]
    scores = [record.scores[KEY].value or 0.0 for record in trees]
    wrong = [int(not record.correct) for record in trees]
    assert router.artifacts["trees"].outcome == fit(scores, wrong, alpha=0.3, delta=0.1 / 3)
    abstaining = fitted(few_of_one(labelled), by=ByGroup(others="abstain")).artifacts
    assert abstaining["trees"].outcome.delta == 0.05  # nothing is spent on the others
    assert getattr(abstaining[ALL_OTHERS].outcome, "reason", None) is InfeasibleReason.UNKNOWN_GROUP


def test_a_group_named_as_the_rest_is_part_of_the_rest(labelled: RecordFile) -> None:
    """Its questions would get the certificate of the rest, which was fitted without them."""
    names = {"trees": ALL_OTHERS, "shrubs": None}
    records = [
        record.model_copy(update={"group": names.get(str(record.group), record.group)}) for record in labelled.records
    ]
    artifacts = fitted(RecordFile(labelled.path, labelled.header, tuple(records))).artifacts
    assert {name: len(part.calibration.error) for name, part in artifacts.items()} == {"herbs": 80, ALL_OTHERS: 160}


def test_a_group_is_fitted_as_its_records_alone_would_be(labelled: RecordFile, router: RouterArtifact) -> None:
    trees = [record for record in labelled.records if record.group == "trees"]
    alone = fit_artifact(few_of_one(labelled), score=KEY, alpha=0.3, delta=0.1 / 3, part=trees)
    assert router.artifacts["trees"].model_copy(update={"made": alone.made}) == alone


def test_records_go_where_the_router_sends_their_questions(labelled: RecordFile, router: RouterArtifact) -> None:
    routes = by_route(router, few_of_one(labelled).records)
    assert {name: len(table) for name, table in routes.items()} == {"shrubs": 80, "trees": 80, ALL_OTHERS: 80}
    assert {record.group for record in routes[ALL_OTHERS]} <= {"herbs", None}


def test_a_group_with_control_characters_in_its_name_reaches_no_terminal(records_path: Path, tmp_path: Path) -> None:
    """Names come from other people's files, and a terminal obeys what is in them."""
    hostile = "trees\x1b]0;x\x07"
    file = read_records(records_path)
    router = fit_router(file, score=KEY, alpha=0.6, part=file.records[::2], by=ByGroup(min_labels=20))
    parts = {hostile: router.artifacts["trees"], ALL_OTHERS: router.artifacts["herbs"]}
    path = router.model_copy(update={"artifacts": parts}).save(tmp_path / "router.json")
    records = [record.model_copy(update={"group": hostile}) for record in file.records[1::2]]
    fresh = tmp_path / "fresh.jsonl"
    write_records(fresh, part_header(file.header, records), records)
    for more in ((), ("--json",)):
        shown = CliRunner().invoke(app, ["audit", "--records", str(fresh), "--artifact", str(path), *more]).output
        assert "trees" in shown, shown
        assert "\x1b]0;x" not in shown


def renamed(records: Sequence[Record]) -> list[Record]:
    """The same records as of other questions."""
    return [record.model_copy(update={"question": f"new {record.question}"}) for record in records]


def test_each_groups_promise_is_tested_on_its_own_questions(labelled: RecordFile, router: RouterArtifact) -> None:
    """One group breaks its promise, and all answers together keep it: the pool would hide it."""
    accepted: Counter[str | None] = Counter()
    fresh = []
    for route, table in by_route(router, renamed(few_of_one(labelled).records)).items():
        for record in table:
            right = True
            if accepted_of(router.artifacts[route], [record], KEY)[0]:
                accepted[route] += 1
                right = route != "shrubs" or accepted["shrubs"] % 5 > 2  # 3 of 5 wrong, in one group
            fresh.append(record.model_copy(update={"correct": right}))
    audits = audit_router(router, fresh, KEY)
    assert {name for name, result in audits.items() if result.verdict == "refuted"} == {"shrubs"}
    assert {result.level for result in audits.values()} == {0.05 / len(audits)}
    errors, n = sum(result.n_errors for result in audits.values()), sum(result.n for result in audits.values())
    assert RateTest.of(errors, n, 0.3, 0.05).verdict != "refuted"
    assert set(audit_router(router, [record for record in fresh if record.group == "trees"], KEY)) == {"trees"}


@pytest.mark.parametrize("level", [0.05, 0.2])
def test_groups_that_keep_their_promise_are_refuted_with_probability_at_most_the_level(level: float) -> None:
    """Exact: two independent groups whose rates are exactly the target, n answers each."""
    n, target, k = 12, 0.3, 2
    pmf = stats.binom(n, target).pmf(np.arange(n + 1))

    def false_alarm(spent: float) -> float:
        return sum(
            float(pmf[first] * pmf[second])
            for first, second in product(range(n + 1), repeat=k)
            if any(RateTest.of(errors, n, target, spent).verdict == "refuted" for errors in (first, second))
        )

    assert false_alarm(level / k) <= level


def test_fits_of_disjoint_groups_do_not_add_and_a_fit_of_all_does(labelled: RecordFile, router: RouterArtifact) -> None:
    """Each label has carried the fit of its group, and that of all questions: .1 / 3 + .1."""
    ledger = Ledger()
    once = counted(router, ledger)
    assert {part.spent and part.spent.fits for part in once.artifacts.values()} == {1}
    again = counted(fitted(few_of_one(labelled), delta=0.3), ledger)
    spent = again.artifacts["trees"].spent
    assert spent is not None
    assert spent.fits == 2
    assert spent.delta == pytest.approx(0.1 / 3 + 0.1)


def test_what_groups_cannot_be_fitted_on_is_refused(labelled: RecordFile) -> None:
    with pytest.raises(UsageError, match="certifies nothing"):
        fitted(labelled, rule="acrc")
    with pytest.raises(ValidationError, match="greater than 0"):
        ByGroup(min_labels=0)
    unlabelled = [record.model_copy(update={"correct": None, "label_detail": ""}) for record in labelled.records]
    drawn = draw_to_label(RecordFile(labelled.path, labelled.header, unlabelled), KEY, share=1, n=9)
    with pytest.raises(UsageError, match="drawn by their scores"):
        fitted(drawn)


def test_the_commands_fit_audit_and_show_a_router(records_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "router.json"

    fit_by = ("fit", records_path, "--alpha", 0.3, "--by", "group", "-s", KEY, "--out", out)
    shown = run(*fit_by, "--test-fraction", 0.2)
    assert "Groups on the test questions" in shown
    assert "thresholds hold at once" in shown
    assert json.loads(out.read_text())["kind"] == "router"
    assert "thresholds hold at once" in run("report", out)
    kept_out = out.with_suffix(".test.jsonl")
    audits = json.loads(run("audit", "--records", kept_out, "--artifact", out, "--json"))
    assert set(audits) <= set(RouterArtifact.load(out).artifacts)
    assert "RouterArtifact.load(FILE).artifacts[NAME]" in run("report", records_path, "--artifact", out, code=2)
    for wrong in (["--cluster-by-group"], ["--rule", "acrc"], ["-s", "auto"]):
        run(*fit_by, *wrong, code=2)
    for by in ("topic", "group:min_label=20", "group:others=drop", "group:min_labels=few"):
        assert "Write for instance --by group:min_labels=20" in run(*fit_by, "--by", by, code=2)
    run(*fit_by, "--by", "group:min_labels=20,share=each,others=abstain")
