"""Adaptive plans at calibration: the rule is applied to recorded sets, and the guard that is fitted follows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.scoring import header_of, made_records
from calibrate.cli import app
from calibrate.data.records import RecordFile, read_records
from calibrate.pipeline import fit_artifact
from calibrate.scoring.scores import adaptive, score_records
from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import UsageError
from guardrail.guard.decide import adaptive_subset
from guardrail.judges import Item, JudgeSpec, NumericJudge
from guardrail.judges.similarity import jaccard
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, measure, measure_stream
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.ensemble import EnsembleParams, Member, Training, ensemble
from tests.calibrate import fakes

NAME = "discrete_semantic_entropy"


def test_score_applies_the_rule_and_drops_scores_of_another(records_path: Path) -> None:
    before = read_records(records_path)
    after = score_records(adaptive(before, 3), [make(NAME)])
    assert set(after.header.estimators) == {NAME}
    changed = 0
    for old, new in zip(before.records, after.records, strict=True):
        assert old.drawn is not None
        first = [sample.text for sample in old.drawn.samples[:3]]
        if len(set(first)) == 1:  # the fakes' answers are single words: equal or different
            assert new.scores[NAME].value == 0
            changed += old.scores[NAME].value != 0
        else:
            assert new.scores[NAME] == old.scores[NAME]
    assert changed > 5
    back = score_records(adaptive(after, None), [make(NAME)])
    assert [r.scores[NAME] for r in back.records] == [r.scores[NAME] for r in before.records]


def test_a_fitted_guard_draws_by_the_rule_and_scores_as_recorded(records_path: Path) -> None:
    file = score_records(adaptive(read_records(records_path), 3), [make(NAME)])
    artifact = fit_artifact(file, estimator=NAME, alpha=0.2, rule="acrc")
    assert artifact.plan.unanimous_at == 3
    guard = Guardrail(model=fakes.model(), artifact=artifact, early_stopping="off")
    saved = 0
    for record in file.records[:40]:
        verdict = guard.assess(record.question)
        assert verdict.uncertainty == record.scores[NAME]
        saved += verdict.cost.saved
    assert saved > 0


def test_on_the_command_line(records_path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["score", str(records_path), "-e", NAME, "--unanimous-at", "4"])
    assert result.exit_code == 0, result.output
    out = tmp_path / "artifact.json"
    result = CliRunner().invoke(
        app, ["fit", "--rule", "acrc", str(records_path), "-e", NAME, "-a", "0.2", "-o", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert CalibrationArtifact.load(out).plan.unanimous_at == 4


def test_a_rule_without_room_is_refused(records_path: Path) -> None:
    with pytest.raises(UsageError, match="from 2 to 9 for records with 10 samples, got 10"):
        adaptive(read_records(records_path), 10)


# -- one pass for all records and estimators


class Counted:
    """A judge and similarity by word overlap that remembers what it was asked, and fails on some texts."""

    def __init__(self, fails: Callable[[str], object] = lambda text: None) -> None:
        self.fails = fails
        self.batches: list[list[Item]] = []

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="counted", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return self.equivalent_batch([(question, a, b) for a, b in pairs])

    def equivalent_batch(self, items: Sequence[Item]) -> list[bool | None]:
        return [None if value is None else value >= 0.5 for value in self.similarity_batch(items)]

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        return self.similarity_batch([(question, a, b) for a, b in pairs])

    def similarity_batch(self, items: Sequence[Item]) -> list[float | None]:
        self.batches.append(list(items))
        values: list[float | None] = []
        for _, a, b in items:
            trouble = self.fails(a) or self.fails(b)
            if isinstance(trouble, Exception):
                raise trouble
            values.append(None if trouble else jaccard(a, b))
        return values

    @property
    def asked(self) -> int:
        return sum(map(len, self.batches))


WEIGHTS = ensemble(
    EnsembleParams(
        intercept=0.1,
        members=tuple(Member(spec=make(name).spec, mean=0.5, scale=2.0, weight=1.5) for name in ("num_sets", "degree")),
        training=Training(ids=(), questions=()),
    ),
    [make("num_sets"), make("degree")],
)
"""Has no judge of its own: equal strings decide when it stops, whatever its members would say."""


def of_all_kinds(judge: Counted) -> list[Estimator]:
    similar: Any = judge
    return [
        make("num_sets"),
        make("semantic_entropy", clustering="greedy"),
        make("self_consistency", judge=NumericJudge()),
        make("degree"),
        make("perplexity"),
        make("selfcheck_ngram"),
        make("selfcheck_nli"),
        make("word_sequence_entropy"),
        WEIGHTS,
        make("num_sets", judge=judge),
        make("graded_disagreement", judge=judge, similarity=similar),
        make("token_sar", similarity=similar),
    ]


def sample(text: str) -> Sample:
    words = text.split()
    tokens = tuple(word if i == 0 else f" {word}" for i, word in enumerate(words))
    return Sample(text=text, tokens=tokens, logprobs=tuple(-0.1 * len(word) for word in words))


TEXTS = st.sampled_from(
    ["Paris", "paris.", "in Paris", "Rome", "the old Rome", "50%", "50", "7 ships", "I don't know", "", "broken"]
)
SETS = st.lists(st.tuples(st.sampled_from(["q1", "q2"]), TEXTS, st.lists(TEXTS, min_size=1, max_size=5)), max_size=6)


@given(
    SETS,
    st.integers(2, 4),
    st.sampled_from([None, "no verdict", RuntimeError("down")]),
)
@settings(deadline=None, max_examples=60)
def test_one_pass_gives_what_each_record_gives_alone(
    sets: list[tuple[str, str, list[str]]], k: int, trouble: object
) -> None:
    judge = Counted(lambda text: trouble if "broken" in text else None)
    estimators, plan = of_all_kinds(judge), SamplingPlan(n=5, logprobs=True, unanimous_at=k)
    drawns = [
        SampleSet(question=question, primary=sample(primary), samples=tuple(map(sample, texts)))
        for question, primary, texts in sets
    ]
    together = list(measure_stream(drawns, estimators, plan, adaptive=True))
    for drawn, values in zip(drawns, together, strict=True):
        for estimator, score in zip(estimators, values, strict=True):
            part, own = adaptive_subset(drawn, estimator, plan)
            alone = measure(part, estimator, own)
            assert (score.value, score.reason) == (alone.value, alone.reason), (estimator.name, drawn)


def test_an_adaptive_plan_asks_for_less_in_at_most_twice_the_batches(tmp_path: Path) -> None:
    def judge_used(unanimous_at: int | None) -> Counted:
        judge = Counted()
        names = ("num_sets", "discrete_semantic_entropy", "self_consistency")
        score_records(adaptive(file, unanimous_at), [make(name, judge=judge) for name in names])
        return judge

    file = RecordFile(tmp_path / "records.jsonl", header_of(100, 10), tuple(made_records(100, 10)))
    without, ruled = judge_used(None), judge_used(3)
    assert len(without.batches) == 2  # 64 questions, then 36
    assert len(ruled.batches) == 4  # the first three samples of each, then the rest
    assert 0 < ruled.asked < without.asked
    once = [item for batch in ruled.batches for item in batch]
    assert len(once) == len(set(once))


def test_what_failed_beside_a_bad_text_is_asked_again_where_the_rest_needs_it() -> None:
    judge = Counted(lambda text: RuntimeError("down") if text == "broken" else None)
    drawns = [
        SampleSet(question="q", primary=sample("Rome"), samples=tuple(map(sample, texts)))
        for texts in (["broken", "Rome", "Paris", "Rome"], ["Oslo", "Rome", "Bern", "Paris"])
    ]
    plan = SamplingPlan(n=4, unanimous_at=3)
    values = list(measure_stream(drawns, [make("num_sets", judge=judge)], plan, adaptive=True))
    # Rome and Paris were asked about in the first round, with the first question's other samples.
    assert [row[0].value for row in values] == [None, 4]
