"""Artifacts of items: what they hold, what they refuse, and that run time keeps what calibration kept."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from calibrate.data.record import ItemLabels
from calibrate.data.records import RecordFile
from calibrate.items.answers import label_items, labelled_items, measure_records
from calibrate.items.audit import check_on, check_promise
from calibrate.items.evaluate import evaluate_items, plan_items
from calibrate.items.figures import item_figures, path_rows
from calibrate.items.fit import answers_needed, fit_items_artifact
from calibrate.items.rules import RULES, AnswerItems
from calibrate.items.words import figures_lines, promise_line
from calibrate.pipeline import fit_artifact, held_out
from calibrate.report.items import write_items_report
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import guarantee
from guardrail.errors import UsageError
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemScores, ItemsSpec, kept
from guardrail.outcome import Feasible, Infeasible
from tests.calibrate.items.cards import invoices, record_file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    made = record_file(tmp_path_factory.mktemp("items") / "records.jsonl", invoices(300))
    return label_items(measure_records(made, items_measure(json_spec(made.header.plan.bindings))))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    made = record_file(tmp_path_factory.mktemp("fresh") / "fresh.jsonl", invoices(300, seed=4, prefix="fresh"))
    return label_items(measure_records(made, items_measure(json_spec(made.header.plan.bindings))))


@pytest.mark.parametrize("rule", RULES)
def test_an_artifact_reads_back_and_keeps_what_calibration_kept(file: RecordFile, tmp_path: Path, rule: str) -> None:
    artifact = fit_items_artifact(file, alpha=0.15, rule=rule)
    again = CalibrationArtifact.load(artifact.save(tmp_path / "artifact.json"))
    assert again == artifact
    scores, cap = again.calibration, ItemsSpec.of(again.estimator).cap
    assert isinstance(artifact.outcome, Feasible)
    assert isinstance(scores, ItemScores)
    K, _ = labelled_items(file).items.counts(again.threshold)
    assert K.tolist() == [kept(u, again.threshold, cap).sum() for u, _ in scores.answers]
    assert again.items is not None
    assert again.items.kept == K.sum()
    assert (again.outcome.n_accepted, again.outcome.n_errors) == (again.items.shown, again.items.broken)


def test_the_default_is_the_share_of_wrong_items(file: RecordFile) -> None:
    artifact = fit_items_artifact(file, alpha=0.1)
    assert (artifact.outcome.rule, artifact.outcome.delta) == ("wrong_share", 0.1)
    assert ItemsSpec.of(artifact.estimator).cap == artifact.outcome.options["cap"] == 4
    assert guarantee(artifact.outcome).startswith(
        "With probability at least 90 % over calibrations, at most 10 % of the items kept are"
    )


def test_a_question_that_is_in_the_file_several_times_counts_once(file: RecordFile) -> None:
    again = [record.model_copy(update={"id": f"{record.id}-again"}) for record in file.records]
    twice = RecordFile(file.path, file.header, (*file.records, *again))
    once, gate = fit_items_artifact(file, alpha=0.1), fit_items_artifact(twice, alpha=0.1)
    assert gate.outcome.n == once.outcome.n


def test_of_a_cluster_one_answer_is_used(file: RecordFile) -> None:
    grouped = [record.model_copy(update={"group": f"g{i // 3}"}) for i, record in enumerate(file.records)]
    clustered = RecordFile(file.path, file.header, tuple(grouped))
    artifact = fit_items_artifact(clustered, alpha=0.2, groups="cluster")
    names = artifact.calibration.group
    assert names is not None
    assert len(names) == len(set(names)) <= artifact.outcome.n == 100  # answers without a score are among the n


def test_infeasible_is_a_result_that_says_how_many_answers_it_takes(file: RecordFile, tmp_path: Path) -> None:
    artifact = fit_items_artifact(file, alpha=0.1, part=list(file.records[:15]))
    again = CalibrationArtifact.load(artifact.save(tmp_path / "artifact.json"))
    assert isinstance(again.outcome, Infeasible)
    assert again.outcome.reason.value == "too_few_items"
    assert again.threshold is None
    line = promise_line(again)
    assert "Every item is held back" in line
    assert "15 answers are too few" in line
    assert "it takes about 25, even without a single wrong item" in line  # every field is measured, so k = 1


@pytest.mark.parametrize(
    ("rule", "kept_share", "needed"),
    [
        ("wrong_share", 0.5, 48),
        ("wrong_share_per_answer", 0.5, 25),
        ("clean_shown", 1.0, 22),
        ("clean_answers", 1.0, 22),
    ],
)
def test_answers_needed_without_an_error(rule: Any, kept_share: float, needed: int) -> None:
    assert answers_needed(rule, 0.1, 0.1, kept_share) == needed


@pytest.mark.parametrize("rule", RULES)
def test_a_promise_never_stands_without_shown_and_broken(file: RecordFile, rule: str) -> None:
    """Of a promise about all answers, silence alone would keep it."""
    artifact = fit_items_artifact(file, alpha=0.3, rule=rule)
    lines = " ".join(figures_lines(artifact))
    for words in ("show something", "of those shown", "keep a wrong item"):
        assert words in lines
    assert ("counts as clean" in guarantee(artifact.outcome)) == (rule == "clean_answers")
    assert promise_line(artifact).endswith("with 90 % confidence.")


def test_test_answers_must_be_others(file: RecordFile, fresh: RecordFile) -> None:
    artifact = fit_items_artifact(file, alpha=0.1)
    with pytest.raises(UsageError, match="was fitted on"):
        held_out(artifact, file.records, ITEMS)
    counts = held_out(artifact, fresh.records, ITEMS)
    figures = counts.items
    assert figures is not None
    assert (figures.answers, counts.n, counts.n_asked) == (293, 293, 300)
    assert (counts.n_accepted, counts.n_errors) == (figures.shown, figures.broken)
    assert figures.reference == 4 * 293
    other = measure_records(fresh, items_measure(json_spec(fresh.header.plan.bindings, judges={"/total": "numeric"})))
    with pytest.raises(UsageError, match="judges: artifact"):
        check_on(artifact, label_items(other))


# -- The audit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "refuted", "supported"), [(1, True, False), (10**6, False, True), (5, False, False)])
def test_a_wrong_share_far_above_alpha_is_refuted_and_one_below_supported(
    every: int, refuted: bool, supported: bool
) -> None:
    """Half of the items is wrong; none; 10 %, which is the target."""
    wrong = [[int(i % every == 0 and every < 10**6), 0] for i in range(200)]
    items = AnswerItems.of([[0.0, 0.1]] * 200, wrong, cap=2, ids=[f"t{i}" for i in range(200)])
    against, supports, _ = check_promise("wrong_share", 0.2, items, alpha=0.1)
    assert (against <= 0.05, supports <= 0.05) == (refuted, supported)


@pytest.mark.parametrize("rule", ["clean_shown", "clean_answers"])
@pytest.mark.parametrize("broken", [0, 5, 30, 60])
def test_rules_over_answers_are_audited_by_exact_binomial_tails(rule: str, broken: int) -> None:
    """200 answers of two items, of which 50 show nothing; one wrong item makes an answer broken."""
    u = [[0.1, 0.1]] * 150 + [[0.9, 0.9]] * 50
    wrong = [[int(place < broken), 0] for place in range(200)]
    items = AnswerItems.of(u, wrong, cap=2, ids=[f"t{place}" for place in range(200)])
    n = 150 if rule == "clean_shown" else 200
    against, supports, _ = check_promise(rule, 0.2, items, alpha=0.15)
    assert against == pytest.approx(stats.binom.sf(broken - 1, n, 0.15))
    assert supports == pytest.approx(stats.binom.cdf(broken, n, 0.15))


def test_answers_of_a_cluster_count_once_in_the_test_of_the_promise(file: RecordFile, fresh: RecordFile) -> None:
    """A quarter of 40 clusters is wrong throughout: eight answers of a cluster say no more than one."""
    some = [record for record in fresh.records if record.items][:40]
    records = []
    for g, record in enumerate(some):
        own = tuple(item.model_copy(update={"uncertainty": 0.0}) for item in record.items or ())
        update = {"group": f"g{g}", "items": own, "item_labels": ItemLabels(right=(g % 4 > 0,) * 4)}
        records += [
            record.model_copy(update={**update, "id": f"{record.id}-{k}", "question": f"{record.question} {k}"})
            for k in range(8)
        ]
    test = RecordFile(fresh.path, fresh.header, tuple(records))
    clusters = [record.model_copy(update={"group": f"own {i}"}) for i, record in enumerate(file.records)]
    clustered = RecordFile(file.path, file.header, tuple(clusters))
    each = check_on(fit_items_artifact(file, alpha=0.15), test)
    once = check_on(fit_items_artifact(clustered, alpha=0.15, groups="cluster"), test)
    assert (each.verdict, once.verdict) == ("refuted", "undecided")
    assert once.figures == each.figures
    assert once.sentence.endswith("Tested on 40 of these answers, one of each cluster.")
    again = [record.model_copy(update={"id": f"{record.id} again"}) for record in test.records]
    repeated = check_on(
        fit_items_artifact(file, alpha=0.15), RecordFile(fresh.path, fresh.header, (*test.records, *again))
    )
    assert repeated.sentence.endswith("Tested on 320 of these answers, one of equal questions.")


# -- Figures, evaluation, report ---------------------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    items = AnswerItems.of([[0.0, 0.5], [0.2, 0.9], [0.9]], [[0, 1], [1, 0], [0]], cap=2)
    figures = item_figures(items, 0.5)
    assert (figures.answers, figures.shown, figures.complete, figures.broken) == (3, 2, 1, 2)
    assert (figures.items, figures.wrong, figures.kept, figures.kept_wrong) == (5, 2, 3, 2)
    assert figures.wrong_per_answer == pytest.approx((0.5 + 1) / 2)
    assert item_figures(items, None).shown == 0


def test_paths(file: RecordFile) -> None:
    data = labelled_items(file)
    rows = path_rows(data.items, 0.2, data.columns)
    assert [row.path for row in rows] == ["/number", "/total", "/buyer", "/due"]
    assert sum(row.items for row in rows) == data.items.size.sum()
    assert sum(row.kept for row in rows) == data.items.counts(0.2)[0].sum()
    assert rows[0].wrong < rows[3].wrong


def test_rules_over_splits_and_simulated(file: RecordFile) -> None:
    items = labelled_items(file).items
    rows = evaluate_items(items, alphas=[0.15], splits=5)
    assert [row.rule for row in rows] == list(RULES)
    assert all(row.infeasible == 0 for row in rows)
    share, _, _, clean = rows
    assert share.right_kept >= clean.right_kept > 0
    few, many = plan_items(items, alpha=0.15, sizes=[10, 200], repetitions=4)
    assert (few.infeasible, few.kept, few.wrong) == (1.0, 0.0, None)
    assert many.infeasible == 0
    # All answers are alike: the risk of a threshold is that of the pool, which every fit meets.
    alike = AnswerItems.of([[0.0, 0.5]] * 60, [[0, 1]] * 60, cap=2)
    (row,) = plan_items(alike, alpha=0.2, sizes=[60], repetitions=3)
    assert (row.kept, row.right_kept, row.wrong, row.complete, row.violated) == (0.5, 1.0, 0.0, 0.0, 0.0)


def test_report(file: RecordFile, fresh: RecordFile, tmp_path: Path) -> None:
    artifact = fit_items_artifact(file, alpha=0.1)
    hostile = [
        record.model_copy(update={"question": f"<script>alert({number})</script>"})
        for number, record in enumerate(fresh.records)
    ]
    test = RecordFile(fresh.path, fresh.header, tuple(hostile))
    written, result = write_items_report(tmp_path / "report.html", artifact, file, test=test, commands=("fit",))
    assert [path.name for path in written] == ["report.html", "report-items.png"]
    assert stat.S_IMODE(written[0].stat().st_mode) == 0o600  # it shows questions and answers
    page = written[0].read_text()
    assert result is not None
    for words in ("/due", "held back", "Answers kept out of the fit", "an estimate, not certified", result.sentence):
        assert words in page
    assert "&lt;script&gt;alert(" in page
    assert "<script>" not in page
    other = RecordFile(file.path, file.header, tuple(hostile[:1]))
    with pytest.raises(UsageError, match="none of the records"):
        write_items_report(tmp_path / "r.html", artifact, other)


def test_the_score_of_items_is_fitted_as_a_gate_of_items_and_refuses_what_only_whole_answers_have(
    file: RecordFile,
) -> None:
    """The score beside the items is that of the most certain one; a threshold on it would let whole answers through."""
    assert fit_artifact(file, score=ITEMS, alpha=0.1) == fit_items_artifact(file, alpha=0.1).model_copy(
        update={"made": fit_artifact(file, score=ITEMS, alpha=0.1).made}
    )
    with pytest.raises(UsageError, match="no rule for items named 'acrc'"):
        fit_artifact(file, score=ITEMS, alpha=0.1, rule="acrc")
    for given in ({"alpha": "smallest"}, {"alpha": 0.1, "share": 0.4}):
        with pytest.raises(UsageError, match="a gate of items takes alpha as a number"):
            fit_artifact(file, score=ITEMS, **given)
