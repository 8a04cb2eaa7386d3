"""Artifacts of items: what they hold, what they refuse, and that run time keeps what calibration kept."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from calibrate.data.record import ItemLabels
from calibrate.data.records import RecordFile
from calibrate.items.answers import label_items, measure_records, packed_answers
from calibrate.items.audit import check_on, check_promise
from calibrate.items.evaluate import compared_rules, evaluate_items, simulate_items
from calibrate.items.figures import item_figures, kept_of, path_rows
from calibrate.items.fit import ItemsRule, fit_items_artifact, held_out_items, thresholds_of
from calibrate.items.page import write_items_report
from calibrate.items.promises import figures_lines, promise_line
from calibrate.items.rules import RULES, AnswerItems, reading_order
from calibrate.pipeline import fit_artifact
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.gate import kept
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_measure
from guardrail.outcome import Feasible, Infeasible
from guardrail.specs import CorrectnessSpec
from tests.calibrate.items.cards import invoices, record_file

KEY = "items_json"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    made = record_file(tmp_path_factory.mktemp("items") / "records.jsonl", invoices(300))
    return label_items(measure_records(made, items_measure(json_spec(made.header.plan.bindings))), KEY)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    made = record_file(tmp_path_factory.mktemp("fresh") / "fresh.jsonl", invoices(300, seed=4, prefix="fresh"))
    return label_items(measure_records(made, items_measure(json_spec(made.header.plan.bindings))), KEY)


@pytest.mark.parametrize("rule", RULES)
def test_an_artifact_reads_back_and_keeps_what_calibration_kept(file: RecordFile, tmp_path: Path, rule: str) -> None:
    artifact = fit_items_artifact(file, alpha=0.15, rule=rule)
    again = CalibrationArtifact.load(artifact.save(tmp_path / "artifact.json"))
    assert again == artifact
    gate, data = again.items, packed_answers(file, KEY)
    assert gate is not None
    assert isinstance(artifact.outcome, Feasible)
    assert artifact.threshold == gate.threshold is not None
    ours = kept_of(data.items, gate.threshold)
    theirs = [kept(u, gate.threshold, gate.spec.cap) for u, _ in gate.scores.answers]
    assert np.array_equal(ours, np.concatenate(theirs))
    assert gate.figures is not None
    assert gate.figures.kept == ours.sum()
    assert artifact.n_accepted == gate.figures.shown
    assert artifact.n_errors == gate.figures.broken


def test_defaults_by_kind(file: RecordFile) -> None:
    gate = fit_items_artifact(file, alpha=0.1).items
    assert gate is not None
    assert (gate.rule, gate.per, gate.delta, gate.spec.cap) == ("wrong_share", "item", 0.1, 4)
    assert gate.options["start_from"] == "calibration"
    assert ItemsRule().resolved("sentences").per == "answer"


def test_the_start_is_read_off_unlabelled_answers_where_there_are_enough(file: RecordFile) -> None:
    records = [r.model_copy(update={"item_labels": {}}) if i % 4 == 0 else r for i, r in enumerate(file.records)]
    gate = fit_items_artifact(RecordFile(file.path, file.header, tuple(records)), alpha=0.1).items
    assert gate is not None
    assert gate.options["start_from"] == "unlabelled"


def test_a_question_that_is_in_the_file_several_times_counts_once(file: RecordFile) -> None:
    again = [record.model_copy(update={"id": f"{record.id}-again"}) for record in file.records]
    twice = RecordFile(file.path, file.header, (*file.records, *again))
    once, gate = fit_items_artifact(file, alpha=0.1), fit_items_artifact(twice, alpha=0.1)
    assert gate.outcome.n == once.outcome.n


@pytest.mark.parametrize("rule", ["clean_answers", "clean_shown", "both"])
def test_rules_of_independent_answers_refuse_whole_groups(file: RecordFile, rule: str) -> None:
    grouped = [record.model_copy(update={"group": f"g{i // 3}"}) for i, record in enumerate(file.records)]
    clustered = RecordFile(file.path, file.header, tuple(grouped))
    whole = ItemsRule(name=rule, largest_group=12)
    with pytest.raises(UsageError, match="counts answers as independent"):
        fit_items_artifact(clustered, alpha=0.1, rule=whole, groups="cluster")
    with pytest.raises(UsageError, match="largest_group is for groups"):
        fit_items_artifact(clustered, alpha=0.1, rule=ItemsRule(largest_group=12))
    assert fit_items_artifact(clustered, alpha=0.2, rule=rule, groups="cluster").outcome.n <= 100


def test_infeasible_is_a_result(file: RecordFile, tmp_path: Path) -> None:
    artifact = fit_items_artifact(file, alpha=0.1, part=list(file.records[:15]))
    again = CalibrationArtifact.load(artifact.save(tmp_path / "artifact.json"))
    assert isinstance(again.outcome, Infeasible)
    assert again.outcome.reason.value == "too_few_items"
    assert again.items is not None
    assert again.items.threshold is None
    assert "Every item is held back" in promise_line(again.items)


def test_clean_answers_never_stands_without_shown_and_broken(file: RecordFile) -> None:
    artifact = fit_items_artifact(file, alpha=0.1, rule="clean_answers")
    gate = artifact.items
    assert gate is not None
    assert gate.figures is not None
    lines = " ".join(figures_lines(gate, gate.figures, gate.cut))
    assert "show something" in lines
    assert "of those shown" in lines
    assert "counts as clean" in gate.promise


@pytest.mark.parametrize(
    ("allowed", "words"),
    [(0, "keep a wrong item"), (1, "keep more than 1 wrong item"), (2, "keep more than 2 wrong items")],
)
def test_wrong_items_that_are_tolerated_are_said_in_words(file: RecordFile, allowed: int, words: str) -> None:
    artifact = fit_items_artifact(file, alpha=0.3, rule=ItemsRule("clean_answers", allowed=allowed))
    assert artifact.items is not None
    assert artifact.items.figures is not None
    lines = [promise_line(artifact.items), *figures_lines(artifact.items, artifact.items.figures, None)]
    for text in (*artifact.promises, lines[0], " ".join(lines[1:])):
        assert re.search(rf"{words}(?!s)\b", text)


def test_bands_have_their_own_thresholds_and_divide_delta(file: RecordFile) -> None:
    rule = ItemsRule(bands=(3,), band_delta="together")
    artifact = fit_items_artifact(file, alpha=0.15, rule=rule)
    gate = artifact.items
    assert gate is not None
    assert gate.band_thresholds[0] is None  # no answer has up to three items
    assert gate.threshold_for(3) is None
    assert gate.threshold_for(4) == gate.threshold == artifact.threshold
    differ = 0
    for alpha in (0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3):
        banded = fit_items_artifact(file, alpha=alpha, rule=ItemsRule("clean_answers", bands=(3,)))
        half, whole = (fit_items_artifact(file, alpha=alpha, rule="clean_answers", delta=d) for d in (0.05, 0.1))
        assert banded.threshold == half.threshold
        differ += half.threshold != whole.threshold
    assert differ
    data = packed_answers(file, KEY)
    assert set(thresholds_of(gate, data.items)) == {gate.threshold}
    with pytest.raises(UsageError, match="bands are increasing"):
        fit_items_artifact(file, alpha=0.15, rule=ItemsRule(bands=(4, 2)))


def test_looks_follow_the_reading_order_and_cost_nothing(file: RecordFile) -> None:
    names = [record.id for record in file.records if KEY in record.items]
    order = [names[place] for place in reading_order(names)]

    def look(n: int, skipped: int = 0) -> CalibrationArtifact:
        labelled = {*order[skipped:n]}
        records = [r if r.id in labelled else r.model_copy(update={"item_labels": {}}) for r in file.records]
        item = RecordFile(file.path, file.header, tuple(records))
        return fit_items_artifact(item, alpha=0.15, rule=ItemsRule("wrong_share", "item", planned=len(names)))

    last, early = look(len(names)).items, look(120).items
    assert last is not None
    assert early is not None
    assert early.delta == last.delta == 0.1
    assert early.options["planned"] == len(names)
    assert early.options["start"] == last.options["start"]
    whole = fit_items_artifact(file, alpha=0.15).items
    assert whole is not None
    assert last.threshold == whole.threshold
    with pytest.raises(UsageError, match=f"{order[0]!r} has none although later answers have"):
        look(120, skipped=1)
    with pytest.raises(UsageError, match="cannot be looked at several times"):
        fit_items_artifact(file, alpha=0.15, rule=ItemsRule("clean_shown", planned=400))


def test_test_answers_must_be_others(file: RecordFile, fresh: RecordFile) -> None:
    artifact = fit_items_artifact(file, alpha=0.1)
    with pytest.raises(UsageError, match="was fitted on"):
        held_out_items(artifact, file)
    figures, data = held_out_items(artifact, fresh)
    assert figures.answers == data.items.n == 293
    assert figures.reference == 4 * 293
    other = measure_records(fresh, items_measure(json_spec(fresh.header.plan.bindings, judges={"/total": "numeric"})))
    with pytest.raises(UsageError, match="support: artifact"):
        held_out_items(artifact, label_items(other, KEY))


def test_a_wrong_share_far_above_alpha_is_refuted_and_one_below_supported() -> None:
    u = [[0.0, 0.1]] * 200
    gate = _gate([[0, 0]] * 200)
    for wrong, verdict in (([[1, 0]] * 200, "refuted"), ([[0, 0]] * 200, "supported")):
        items = AnswerItems.of(u, wrong, cap=2, ids=[f"t{i}" for i in range(200)])
        assert check_promise(gate, items, [0.1] * 200).verdict == verdict
    mixed = [[1, 0] if i % 5 == 0 else [0, 0] for i in range(200)]  # 10 %, the target
    items = AnswerItems.of(u, mixed, cap=2, ids=[f"t{i}" for i in range(200)])
    assert check_promise(gate, items, [0.1] * 200).verdict == "undecided"


@pytest.mark.parametrize("rule", ["clean_shown", "clean_answers"])
@pytest.mark.parametrize("broken", [0, 5, 30, 60])
def test_rules_over_answers_are_audited_by_exact_binomial_tails(file: RecordFile, rule: str, broken: int) -> None:
    """200 answers of two items, of which 50 show nothing; one wrong item makes an answer broken."""
    gate = fit_items_artifact(file, alpha=0.15, rule=rule).items
    assert gate is not None
    u = [[0.1, 0.1]] * 150 + [[0.9, 0.9]] * 50
    wrong = [[int(place < broken), 0] for place in range(200)]
    items = AnswerItems.of(u, wrong, cap=2, ids=[f"t{place}" for place in range(200)])
    n = 150 if rule == "clean_shown" else 200
    tested = check_promise(gate, items, [0.2] * 200)
    assert tested.p_refuted == pytest.approx(stats.binom.sf(broken - 1, n, 0.15))
    assert tested.p_supported == pytest.approx(stats.binom.cdf(broken, n, 0.15))
    assert tested.verdict == {0: "supported", 5: "supported", 60: "refuted"}.get(broken, "undecided")


def test_answers_of_a_cluster_count_once_in_the_test_of_the_promise(file: RecordFile, fresh: RecordFile) -> None:
    """A fifth of 40 clusters is wrong throughout: eight answers of a cluster say no more than one."""
    some = [record for record in fresh.records if KEY in record.items][:40]
    records = []
    for g, record in enumerate(some):
        wrong = ItemLabels(right=(g % 5 > 0,) * 4)
        own = tuple(item.model_copy(update={"uncertainty": 0.0}) for item in record.items[KEY])
        update = {"group": f"g{g}", "items": {KEY: own}, "item_labels": {KEY: wrong}}
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
    assert repeated.p_refuted > each.p_refuted / 4  # by other ids in another order, and not by twice as many answers


def _gate(wrong: list[list[int]]):  # type: ignore[no-untyped-def]
    from guardrail.items.spec import ItemScores, ItemsThreshold

    return ItemsThreshold(
        spec=json_spec(cap=2),
        rule="wrong_share",
        promise="p",
        alpha=0.1,
        delta=0.1,
        threshold=0.1,
        per="item",
        scores=ItemScores(sizes=(), uncertainty=(), wrong=()),
    )


def test_figures_by_hand() -> None:
    items = AnswerItems.of([[0.0, 0.5], [0.2, 0.9], [0.9]], [[0, 1], [1, 0], [0]], cap=2)
    figures = item_figures(items, 0.5)
    assert (figures.answers, figures.shown, figures.complete, figures.broken) == (3, 2, 1, 2)
    assert (figures.items, figures.wrong, figures.kept, figures.kept_wrong) == (5, 2, 3, 2)
    assert figures.wrong_per_answer == pytest.approx((0.5 + 1) / 2)
    assert item_figures(items, None).shown == 0
    assert item_figures(items, [0.0, None, 0.9]).kept == 2


def test_paths(file: RecordFile) -> None:
    data = packed_answers(file, KEY)
    rows = path_rows(data.items, 0.2, data.columns)
    assert [row.path for row in rows] == ["/number", "/total", "/buyer", "/due"]
    assert sum(row.items for row in rows) == data.items.size.sum()
    assert rows[0].wrong < rows[3].wrong


def test_rules_over_splits_and_simulated(file: RecordFile) -> None:
    data = packed_answers(file, KEY)
    rows = evaluate_items(data.items, rules=compared_rules("json"), alphas=[0.15], splits=5)
    names = [row.rule.partition(":")[0] for row in rows]
    assert names == ["wrong_share", "wrong_share", "clean_shown", "clean_answers", "both"]
    assert all(row.infeasible == 0 for row in rows)
    share, _, _, clean, both = rows
    assert (share.right_kept or 0) >= (clean.right_kept or 0) >= (both.right_kept or 0) > 0
    few = simulate_items(data.items, rules=[ItemsRule("wrong_share", "item")], alphas=[0.15], n=10, calibrations=4)[0]
    assert (few.infeasible, few.kept, few.wrong) == (1.0, 0.0, None)


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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("certified", {}, "no rule for items named 'certified'"),
        ("wrong_share", {"expect": 1}, "no option 'expect'"),
        ("wrong_share", {"start_share": 2}, "start_share must be in"),
        ("clean_shown", {"per": "answer"}, "rule 'clean_shown' takes no option 'per'. Its option: allowed"),
        ("clean_answers", {"start_share": 0.5}, "takes no option 'start_share'"),
        (None, {"clean_alpha": 0.2}, "rule 'wrong_share' takes no option 'clean_alpha'"),
    ],
)
def test_unknown_rules_are_refused(name: str | None, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ItemsRule.of(name, options)


def test_items_are_not_fitted_as_a_score_of_whole_answers(file: RecordFile) -> None:
    """The score beside the items is that of the most certain one; a threshold on it would let whole answers through."""
    records = tuple(record.model_copy(update={"correct": True}) for record in file.records)
    header = file.header.model_copy(update={"correctness": CorrectnessSpec(name="given", version=1)})
    with pytest.raises(UsageError, match="--items json"):
        fit_artifact(RecordFile(file.path, header, records), estimator=KEY, alpha=0.1, rule="acrc")
