"""Artifacts of items: what they hold, what they refuse, that run time keeps what calibration kept, and their audit."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibrate.data.record import ItemLabels
from calibrate.data.records import Record, RecordFile
from calibrate.data.table import table_of
from calibrate.evaluation.audit import _by_betting, audit, prepared
from calibrate.evaluation.evaluate import evaluate
from calibrate.evaluation.planning import plan
from calibrate.evaluation.populations import Population
from calibrate.evaluation.promise_test import Audit
from calibrate.items.answers import label_items, measure_records, stored_spec
from calibrate.items.figures import by_path, item_figures
from calibrate.judging import Judged, held_out
from calibrate.pipeline import fit_artifact
from calibrate.report import write_report
from calibrate.rules import RULES, compared_rules
from calibrate.rules.items import AnswerItems
from calibrate.scoring.items import ScoredItems
from calibrate.scoring.scores import units_of
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import figures_lines, guarantee, promises, summary
from guardrail.errors import UsageError
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemScores, ItemsSpec, kept
from guardrail.outcome import Feasible, Infeasible
from tests.calibrate.items.cards import invoices, record_file

ITEM_RULES = compared_rules("item")


def labelled(folder: Path, records: list[Record]) -> RecordFile:
    made = record_file(folder / "records.jsonl", records)
    return label_items(measure_records(made, items_measure(json_spec(made.header.plan.bindings))))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    return labelled(tmp_path_factory.mktemp("items"), invoices(300))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    return labelled(tmp_path_factory.mktemp("fresh"), invoices(300, seed=4, prefix="fresh"))


def fitted(file: RecordFile, alpha: float = 0.1, **options: Any) -> CalibrationArtifact:
    return fit_artifact(file, score=ITEMS, alpha=alpha, **options)


def items_of(file: RecordFile) -> AnswerItems:
    return ScoredItems.of(table_of(file.records), stored_spec(file)).items


@pytest.mark.parametrize("rule", ITEM_RULES)
def test_an_artifact_reads_back_and_keeps_what_calibration_kept(file: RecordFile, tmp_path: Path, rule: str) -> None:
    artifact = fitted(file, 0.15, rule=rule)
    again = CalibrationArtifact.load(artifact.save(tmp_path / "artifact.json"))
    assert again == artifact
    scores, cap = again.calibration, ItemsSpec.of(again.estimator).cap
    assert isinstance(artifact.outcome, Feasible)
    assert isinstance(scores, ItemScores)
    K, _ = items_of(file).counts(again.threshold)
    assert K.tolist() == [sum(kept(u, again.threshold, cap)) for u, _ in scores.answers]
    assert again.items is not None
    assert again.items.kept == K.sum()
    assert (again.outcome.n_accepted, again.outcome.n_errors) == (again.items.shown, again.items.broken)


def test_the_default_is_the_share_of_wrong_items_with_the_cap_of_the_file(file: RecordFile) -> None:
    artifact = fitted(file)
    assert (artifact.outcome.rule, artifact.outcome.delta, artifact.outcome.options) == ("wrong_share", 0.1, {"cap": 4})
    assert guarantee(artifact.outcome).startswith(
        "With probability at least 90 % over calibrations, at most 10 % of the items kept are"
    )
    two = fitted(file, rule="wrong_share:cap=2")
    assert (two.outcome.options, ItemsSpec.of(two.estimator).cap) == ({"cap": 2}, 2)


def test_questions_and_clusters_count_once_and_unmeasured_answers_are_among_n(file: RecordFile) -> None:
    again = [record.model_copy(update={"id": f"{record.id}-again"}) for record in file.records]
    twice = RecordFile(file.path, file.header, (*file.records, *again))
    assert fitted(twice).outcome.n == fitted(file).outcome.n == 300
    grouped = [record.model_copy(update={"group": f"g{i // 3}"}) for i, record in enumerate(file.records)]
    artifact = fitted(RecordFile(file.path, file.header, tuple(grouped)), 0.2, groups="cluster")
    names = artifact.calibration.group
    assert names is not None
    assert len(names) == len(set(names)) <= artifact.outcome.n == 100


def test_infeasible_is_a_result_that_says_how_many_answers_it_takes(file: RecordFile, tmp_path: Path) -> None:
    artifact = fitted(file, part=list(file.records[:15]))
    again = CalibrationArtifact.load(artifact.save(tmp_path / "artifact.json"))
    assert isinstance(again.outcome, Infeasible)
    assert again.outcome.reason.value == "too_few_items"
    lines = " ".join(summary(again))
    assert "keep nothing: no threshold was found" in lines
    assert "15 answers are too few" in lines
    assert "it takes about 25, even without a single wrong item" in lines  # every field is measured, so k = 1


@pytest.mark.parametrize("rule", ITEM_RULES)
def test_a_promise_never_stands_without_shown_and_broken(file: RecordFile, rule: str) -> None:
    """Of a promise about all answers, silence alone would keep it."""
    artifact = fitted(file, 0.3, rule=rule)
    lines = " ".join(figures_lines(artifact.items, rule))
    for words in ("show something", "of those shown", "keep a wrong item"):
        assert words in lines
    (promise,) = promises(artifact)
    for words in ("with 90 % confidence", "shows something of", "kept a wrong item"):
        assert words in promise
    assert ("counts as clean" in guarantee(artifact.outcome)) == (rule == "clean_answers")


def test_test_answers_must_be_others_and_made_alike(file: RecordFile, fresh: RecordFile) -> None:
    artifact = fitted(file)
    with pytest.raises(UsageError, match="was fitted on"):
        held_out(artifact, file.records, ITEMS)
    counts = held_out(artifact, fresh.records, ITEMS)
    figures = counts.items
    assert figures is not None
    assert (figures.answers, counts.n, counts.n_asked) == (293, 293, 300)
    assert (counts.n_accepted, counts.n_errors) == (figures.shown, figures.broken)
    assert figures.reference == 4 * 293
    other = measure_records(fresh, items_measure(json_spec(fresh.header.plan.bindings, judges={"/total": "numeric"})))
    measured, _ = prepared(label_items(other), artifact)
    assert measured.header.estimators[ITEMS] == artifact.estimator  # measured anew, with the artifact's judges


def test_items_refuse_what_only_whole_answers_have(file: RecordFile) -> None:
    """A threshold on the score of the most certain item would let whole answers through."""
    with pytest.raises(UsageError, match=r"'acrc' is about whole answers, .* Choose one of: wrong_share"):
        fitted(file, rule="acrc")
    with pytest.raises(UsageError, match="is of rule 'certified'"):
        fit_artifact(file, score=ITEMS, alpha="smallest")
    with pytest.raises(UsageError, match="takes no option 'share'"):
        fitted(file, rule="wrong_share:share=0.4")


# -- The audit ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "refuted", "supported"), [(1, True, False), (10**6, False, True), (5, False, False)])
@pytest.mark.parametrize("rule", ["wrong_share", "wrong_share_per_answer"])
def test_a_wrong_share_far_above_alpha_is_refuted_and_one_below_supported(
    file: RecordFile, rule: str, every: int, refuted: bool, supported: bool
) -> None:
    """200 answers that keep two items each. Half of the items is wrong; none; 10 %, which is the target."""
    wrong = np.array([int(i % every == 0 and every < 10**6) for i in range(200)])
    some = file.records.take(np.arange(200))
    judged = Judged(np.full(200, 2), wrong, wrong == 0, some, 200, None)
    against, supports = _by_betting(RULES[rule], judged, 2, 0.1, 0.05)
    assert (against <= 0.05, supports <= 0.05) == (refuted, supported)


@pytest.mark.parametrize("rule", ["clean_shown", "clean_answers"])
def test_rules_over_answers_are_audited_by_exact_binomial_tails(file: RecordFile, fresh: RecordFile, rule: str) -> None:
    result = audit(fitted(file, 0.3, rule=rule), fresh.records, ITEMS)
    figures = result.held_out.items
    assert figures is not None
    n = figures.shown if rule == "clean_shown" else figures.answers
    assert (result.n, result.n_errors) == (n, figures.broken)
    assert result.p_refute == pytest.approx(stats.binom.sf(figures.broken - 1, n, 0.3))
    assert result.p_support == pytest.approx(stats.binom.cdf(figures.broken, n, 0.3))


def test_an_audit_of_a_share_of_items_says_what_it_counted(file: RecordFile, fresh: RecordFile) -> None:
    artifact = fitted(file)
    result = audit(artifact, fresh.records, ITEMS)
    figures = result.held_out.items
    assert figures is not None
    assert (result.population, result.n, result.n_errors) == ("items", figures.kept, figures.kept_wrong)
    assert f"{figures.kept_wrong} of {figures.kept} labelled items that are kept were wrong" in result.findings[0]
    assert result.shift is not None
    assert not result.shift.scores_differ
    with pytest.raises(UsageError, match="is tested once on a file: leave --anytime out"):
        audit(artifact, fresh.records, ITEMS, anytime=True)


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
    clusters = [record.model_copy(update={"group": f"own {i}"}) for i, record in enumerate(file.records)]
    clustered = RecordFile(file.path, file.header, tuple(clusters))

    def tested(gate: CalibrationArtifact, some: list[Record]) -> Audit:
        return audit(gate, some, ITEMS)

    each = tested(fitted(file, 0.15), records)
    once = tested(fitted(clustered, 0.15, groups="cluster"), records)
    assert (each.verdict, each.held_out.n, each.n_repeated) == ("refuted", 320, 0)
    assert (once.verdict, once.held_out.n, once.n_repeated) == ("undecided", 40, 280)
    again = [record.model_copy(update={"id": f"{record.id} again"}) for record in records]
    assert tested(fitted(file, 0.15), [*records, *again]).n_repeated == 320


# -- Figures, evaluation, report ---------------------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    items = AnswerItems.of([[0.0, 0.5], [0.2, 0.9], [0.9]], [[0, 1], [1, 0], [0]], cap=2)
    figures = item_figures(items, 0.5)
    assert (figures.answers, figures.shown, figures.complete, figures.broken) == (3, 2, 1, 2)
    assert (figures.items, figures.wrong, figures.kept, figures.kept_wrong) == (5, 2, 3, 2)
    assert figures.wrong_per_answer == pytest.approx((0.5 + 1) / 2)
    assert item_figures(items, None).shown == 0


def test_paths(file: RecordFile) -> None:
    data = ScoredItems.of(table_of(file.records), stored_spec(file))
    artifact = fitted(file, 0.2)
    rows = by_path(artifact, data.items, data.columns)[0].rows
    assert [path for path, *_ in rows] == ["/number", "/total", "/buyer", "/due"]
    assert sum(int(n) for _, n, *_ in rows) == data.items.size.sum()
    kept = data.items.counts(artifact.threshold)[0].sum()
    assert sum(int(cell.split("(")[1].split()[0]) for *_, cell, _ in rows) == kept  # "50 % (3 of 6)"


def test_rules_over_splits_count_items_and_answers(file: RecordFile) -> None:
    units = units_of(file.records, ITEMS, spec=file.header.estimators[ITEMS])
    common: dict[str, Any] = {"alphas": [0.15], "splits": 5, "groups": units.group, "cap": units.cap}
    found = evaluate(units.u, units.wrong, rules=ITEM_RULES, n_calibration=150, **common)
    assert (found.n, [row.rule for row in found.rows]) == (300, list(ITEM_RULES))
    share, _, _, clean = found.rows
    assert share.power is not None
    assert clean.power is not None
    assert share.power.value >= clean.power.value > 0
    grouped = [record.model_copy(update={"group": f"g{i // 3}"}) for i, record in enumerate(file.records)]
    assert units_of(grouped, ITEMS, groups=True, spec=file.header.estimators[ITEMS]).n == 100  # one of each cluster
    with pytest.raises(UsageError, match="'certified' is about whole answers"):
        evaluate(units.u, units.wrong, rules=["certified"], n_calibration=150, **common)


@pytest.mark.parametrize("rule", ITEM_RULES)
def test_of_answers_that_are_all_alike_every_split_finds_the_same(rule: str) -> None:
    """Eighty answers with a right item at 0 and a wrong one at .5: at 0 every figure is known."""
    u, wrong, answers = [0.0, 0.5] * 80, [0, 1] * 80, [i // 2 for i in range(160)]
    settings: dict[str, Any] = {"n_calibration": 60, "splits": 3, "groups": answers, "cap": 2}
    (row,) = evaluate(u, wrong, rules=[rule], alphas=[0.2], **settings).rows
    assert row.scer is not None
    assert row.power is not None
    assert row.shown is not None
    assert row.complete is not None
    assert row.broken is not None
    assert (row.acceptance.value, row.power.value, row.scer.value) == (0.5, 1.0, 0.0)
    assert (row.shown.value, row.complete.value, row.broken.value) == (1.0, 0.0, 0.0)
    assert (row.violation_rate.value, row.pool_violation_rate.value) == (0.0, 0.0)
    pilot = Population.of_items(AnswerItems.of([[0.0, 0.5]] * 60, [[0, 1]] * 60, cap=2))
    found = plan(0.2, pilot=pilot, rules=[rule], sizes=[5, 60], repetitions=3)
    assert (found.oracle_acceptance, found.accuracy, found.auroc) == (0.5, 0.5, 1.0)
    few, many = found.rows
    assert (few.acceptance.value, many.acceptance.value, many.violation_rate.value) == (0.0, 0.5, 0.0)
    assert found.words[0] == "At an error rate of 0.2 no rule can keep more than 50% of the items of such answers."


def test_report(file: RecordFile, fresh: RecordFile, tmp_path: Path) -> None:
    artifact = fitted(file)
    hostile = [
        record.model_copy(update={"question": f"<script>alert({number})</script>"})
        for number, record in enumerate(fresh.records)
    ]
    written = write_report(
        tmp_path / "report.html", artifact, file.records, estimator=ITEMS, test=hostile, commands=("fit",)
    )
    assert [path.name for path in written] == ["report.html", "report-risk-coverage.png", "report-scores.png"]
    assert stat.S_IMODE(written[0].stat().st_mode) == 0o600  # it shows questions and answers
    page = written[0].read_text().replace("\u00a0", " ")
    for words in ("/due", "held back", "Items, test", "an estimate, not certified", "labelled items that are kept"):
        assert words in page
    assert "&lt;script&gt;alert(" in page
    assert "<script>" not in page
    with pytest.raises(UsageError, match="of the 1172 scores in the artifact are not among these records"):
        write_report(tmp_path / "r.html", artifact, hostile[:1], estimator=ITEMS)
