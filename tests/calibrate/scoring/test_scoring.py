"""Scores: keys, what a plan supports, and which items a fit may use."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.data.records import Record, RecordFile
from calibrate.scoring.compute import score_records, supported
from calibrate.scoring.names import estimator_key, parse_estimator, usual_estimator, usual_key
from calibrate.scoring.scores import arrays
from guardrail.bindings import bindings_for
from guardrail.errors import UsageError
from guardrail.types import Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from guardrail.uncertainty import measure


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("perplexity", "perplexity"),
        ("semantic_entropy", "semantic_entropy"),
        ("semantic_entropy:text", "semantic_entropy"),
        ("semantic_entropy:exact", "semantic_entropy:exact"),
        ("eigenvalue:guarded_jaccard", "eigenvalue"),
        ("eigenvalue:rouge_l", "eigenvalue:rouge_l"),
        ("num_sets:numeric", "num_sets:numeric"),
        ("lexical_similarity", "lexical_similarity"),
    ],
)
def test_key_names_what_is_not_the_default(text: str, key: str) -> None:
    assert estimator_key(parse_estimator(text)) == key


def test_supported_by_plan() -> None:
    def names(plan: SamplingPlan) -> set[str]:
        return {estimator.name for estimator in supported(plan)}

    clustered = {"discrete_semantic_entropy", "self_consistency"}
    assert clustered <= names(SamplingPlan())
    assert not {"semantic_entropy", "perplexity", "max_softmax"} & names(SamplingPlan())
    assert clustered | {"semantic_entropy", "perplexity"} <= names(SamplingPlan(logprobs=True))
    assert names(SamplingPlan(n=0, options=("A", "B"))) == {"max_softmax", "predictive_entropy"}
    assert usual_estimator(None, options=True) in names(SamplingPlan(n=0, options=("A", "B")))
    assert usual_estimator(None, options=False) in names(SamplingPlan(logprobs=True))


def test_the_default_score_reads_the_answer_that_is_given_out() -> None:
    """Of a majority the samples decide; any other answer may agree with none of them."""
    documents = bindings_for(response_format={"type": "json_object"})
    assert usual_key(SamplingPlan()) == usual_key(SamplingPlan(primary="sampled")) == "graded_disagreement"
    assert usual_key(SamplingPlan(bindings=documents)) == "graded_disagreement:json"
    assert usual_key(SamplingPlan(primary="majority")) == "discrete_semantic_entropy"
    assert usual_key(SamplingPlan(logprobs=True)) == "semantic_entropy"
    assert usual_key(SamplingPlan(n=0, options=("A", "B"))) == "predictive_entropy"


def test_estimators_say_whether_they_read_the_answer() -> None:
    """Against the scores: another answer than all samples moves a score that reads it, and no other."""
    samples = tuple(Sample(text=text) for text in ("It opened in 1724.", "1724", "in 1725"))
    asked = [SampleSet(question="q", primary=Sample(text=text), samples=samples) for text in ("1724", "oak")]
    for estimator in supported(SamplingPlan(n=3)):
        values = [measure(drawn, estimator, SamplingPlan(n=3)).value for drawn in asked]
        assert (values[0] != values[1]) == estimator.reads_answer, estimator.name


def test_scores_are_kept_and_added(labelled: RecordFile) -> None:
    added = score_records(labelled, [parse_estimator("self_consistency:exact")])
    assert set(added.header.estimators) == set(labelled.header.estimators) | {"self_consistency:exact"}
    # 11 answers are drawn from eight words; by hand for the first record: 1 - (share of the most frequent sample).
    first = added.records[0]
    assert first.drawn is not None
    texts = [sample.text for sample in first.drawn.samples]
    expected = 1 - max(texts.count(text) for text in texts) / 10
    assert first.scores["self_consistency:exact"].value == pytest.approx(expected)
    with pytest.raises(UsageError, match="nothing to score with"):
        score_records(labelled, [])


def scored_record(i: int, value: float | None, correct: bool | None, group: str | None = "g") -> Record:
    reason = Unmeasured.MODEL_FAILED if value is None else None
    score = Uncertainty(value=value, unit="nats", estimator="e", reason=reason)
    drawn = SampleSet(question="?", primary=Sample(text="x"))
    return Record(id=str(i), question="?", group=group, drawn=drawn, scores={"e": score}, correct=correct)


def test_arrays_leave_out_what_has_no_score_or_label() -> None:
    records = [
        scored_record(0, 0.5, True),
        scored_record(1, None, True),
        scored_record(2, 0.1, None),
        scored_record(3, 0.7, False),
        scored_record(4, None, None),
    ]
    usable = arrays(records, "e")
    assert list(usable.ids) == ["0", "3"]
    np.testing.assert_array_equal(usable.uncertainty, [0.5, 0.7])
    np.testing.assert_array_equal(usable.error, [0, 1])
    assert (usable.n_unmeasured, usable.n_unlabelled) == (2, 1)
    assert list(usable.group or ()) == ["g", "g"]
    assert arrays([*records, scored_record(5, 1.0, True, group=None)], "e").group is None


@pytest.mark.parametrize(
    ("records", "key", "fragment"),
    [
        ([scored_record(0, 0.5, True)], "other", "calibrate score RECORDS --score other"),
        ([scored_record(0, 0.5, None)], "e", "calibrate label RECORDS"),
        ([scored_record(0, None, True)], "e", "model_failed"),
        ([], "e", "no record"),
    ],
)
def test_unusable_records_name_the_missing_step(records: list[Record], key: str, fragment: str) -> None:
    with pytest.raises(UsageError) as caught:
        arrays(records, key)
    assert fragment in str(caught.value)
