"""Claims as parts: listed by the model in one call, supported like sentences, given out as a list."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

from calibrate.parts.answers import key_of_parts, measure_records, spec_of_answers
from calibrate.pipeline import narrowed_plan
from guardrail import Guardrail, Reason
from guardrail.errors import UsageError
from guardrail.parts.claims import CLAIMS, SUPPORTED_CLAIMS, claim_spec, claims_of, question
from guardrail.parts.measure import parts_estimator, parts_measure
from guardrail.parts.part import Part, PartVerdict
from guardrail.parts.release import release
from guardrail.parts.sentences import support_question
from guardrail.parts.spec import PartsSpec
from guardrail.review.queue.item import Candidate, Content, PartDecision, by_parts
from guardrail.sampling.sampler import draw
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Missing, Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import plan_for, unmet_needs
from tests.calibrate.parts.cards import record_file, sentences
from tests.guardrail.parts.test_guard import guardrail_of
from tests.guardrail.parts.test_sentences import Contains

Q = "Bob?"
TEXT = "Bob was born in Rome in 1850. He painted."
PIECES = ("Bob was born in Rome in 1850.", "He painted.")
CLAIM_TEXTS = ["Bob was born in Rome.", "Bob was born in 1850.", "Bob painted."]
SPLIT = json.dumps([{"claim": text, "sentence": 1 + (text == "Bob painted.")} for text in CLAIM_TEXTS])
SAMPLES = ["s0", "s1", "s2", "s3"]


def script(split: str = SPLIT, *, unreadable: str = "") -> dict[str, list[Any]]:
    """The answer, its samples, the list of its claims; two samples of four do not support the year."""
    answers: dict[str, list[Any]] = {Q: [TEXT, *SAMPLES], question(Q, PIECES): [split]}
    for i, sample in enumerate(SAMPLES):
        reply = f"1. Yes\n2. {'No' if i < 2 else 'Yes'}\n3. Yes"
        asked = support_question(Q, CLAIM_TEXTS, sample, "claim")
        answers[asked] = ["1. Perhaps" if sample == unreadable else reply]
    return answers


class Splitter(ScriptedChat):
    """Lists the claims only the first time that it is asked for them."""

    _lists: list[str] = PrivateAttr(default_factory=lambda: [SPLIT])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if messages[-1].text == question(Q, PIECES):
            text = self._lists.pop() if self._lists else "none"
            return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])
        return super()._generate(messages, stop, run_manager, **kwargs)


def guard_of(answers: dict[str, list[Any]], spec: PartsSpec | None = None) -> Guardrail:
    model = ScriptedChat(script=answers)
    return Guardrail(model=model, artifact=make_artifact(model, parts=spec or claim_spec(5), threshold=0.2, n=4))


def drawn_by(plan: SamplingPlan) -> SampleSet:
    (result,) = draw(ScriptedChat(script=script()), [[HumanMessage(Q)]], plan)
    return result


def drawn(split: str | None) -> SampleSet:
    replies = () if split is None else (SampleSet(question="split", primary=Sample(text=split)),)
    return SampleSet(question=Q, primary=Sample(text=TEXT), samples=(Sample(text="s"),), follow_ups={"claims": replies})


def test_the_kept_claims_are_a_list_in_the_words_of_the_split() -> None:
    message = guard_of(script()).invoke(Q)
    assert message.content == "- Bob was born in Rome.\n- Bob painted."
    parts = guardrail_of(message)["parts"]
    assert [(part["span"], part["claim"], part["kept"]) for part in parts] == [
        ([0, 29], 1, True), ([0, 29], 2, False), ([30, 41], 3, True),
    ]  # fmt: skip
    assert [part["uncertainty"] for part in parts] == [0, 0.5, 0]
    assert "1850" not in json.dumps(message.model_dump(mode="json"))


def test_all_claims_are_a_list_as_well_because_the_text_may_say_more() -> None:
    verdict = guard_of(script(), claim_spec(5)).assess(Q)
    assert verdict.reason is Reason.PARTLY_HELD_BACK
    whole = [part.model_copy(update={"kept": True}) for part in verdict.parts]
    assert release(Sample(text=TEXT), whole).text.splitlines() == [f"- {text}" for text in CLAIM_TEXTS]


def test_the_cap_keeps_the_first_of_equal_claims() -> None:
    assert guard_of(script(), claim_spec(1)).invoke(Q).content == "- Bob was born in Rome."


def test_a_list_that_cannot_be_read_is_an_abstention() -> None:
    verdict = guard_of(script("Bob was born in Rome.")).assess(Q)
    assert (verdict.accepted, verdict.reason) == (False, Reason.UNMEASURED)
    assert "list of claims cannot be read" in verdict.detail


def test_a_verdict_that_cannot_be_read_leaves_the_claims_unmeasured() -> None:
    verdict = guard_of(script(unreadable="s3")).assess(Q)
    assert (verdict.accepted, verdict.reason) == (False, Reason.UNMEASURED)


@pytest.mark.parametrize(
    "split",
    [
        "",
        "[]",
        "{}",
        "null",
        '["Bob painted."]',
        "1. Bob painted.\n2. Bob sang.",
        "- Bob painted. (1)\n- Bob sang. (2)",
        '[{"claim": "a"}]',
        '[{"claim": "a", "sentence": 0}]',
        '[{"claim": "a", "sentence": 3}]',
        '[{"claim": "a", "sentence": 1.5}]',
        '[{"claim": "a", "sentence": "1"}]',
        '[{"claim": "a", "sentence": true}]',
        '[{"claim": "a", "sentence": 1e999}]',
        '[{"claim": " ", "sentence": 1}]',
        '[{"claim": 7, "sentence": 1}]',
        '[{"claim": "a", "sentence": 1, "sure": true}]',
        '[{"claim": "a", "sentence": 1}, {"claim": "a ", "sentence": 2}]',
        '[{"claim": "a", "sentence": 1}',
    ],
)
def test_a_reply_is_read_whole_or_not_at_all(split: str) -> None:
    claims = claims_of(drawn(split))
    assert isinstance(claims, Missing)
    assert claims.reason is Unmeasured.UNREADABLE
    assert SUPPORTED_CLAIMS.ask([], drawn(split)) == [], "no question about claims that are unknown"


def test_claims_stand_in_the_order_of_their_sentences_on_one_line_each() -> None:
    split = '```json\n[{"claim": "late\\n claim", "sentence": 2}, {"claim": "early", "sentence": 1}]\n```'
    claims = claims_of(drawn(split))
    assert not isinstance(claims, Missing)
    assert [(claim.text, claim.sentence) for claim in claims] == [("early", 0), ("late claim", 1)]


def test_a_split_that_was_not_asked_or_failed_leaves_the_answer_unmeasured() -> None:
    assert isinstance(parts_measure(claim_spec(5)).parts(drawn(None)), Missing)
    failed = SampleSet(question="", primary=None, problem=Unmeasured.MODEL_FAILED, problem_detail="down")
    missing = parts_measure(claim_spec(5)).parts(drawn(None).model_copy(update={"follow_ups": {"claims": (failed,)}}))
    assert isinstance(missing, Missing)
    assert missing.reason is Unmeasured.MODEL_FAILED


def test_support_by_an_entailment_model_needs_the_list_alone() -> None:
    measure = parts_measure(claim_spec(5, entailment=Contains()), entailment=Contains())
    parts = measure.parts(drawn('[{"claim": "s", "sentence": 1}, {"claim": "t", "sentence": 2}]'))
    assert isinstance(parts, tuple)
    assert [part.uncertainty for part in parts] == [0, 1]
    assert plan_for([parts_estimator(measure)], n=4).follow_ups == ("claims",)


def test_the_plan_asks_for_the_list_and_for_support() -> None:
    estimator = parts_estimator(parts_measure(claim_spec(5)))
    plan = plan_for([estimator], n=4)
    assert plan.follow_ups == ("claims", "supported_claims")
    assert unmet_needs(estimator, plan) == []
    assert unmet_needs(estimator, plan.model_copy(update={"follow_ups": ("supported_claims",)})) != []
    wide = plan.model_copy(update={"follow_ups": ("claims", "p_true", "supported_claims")})
    assert narrowed_plan(wide, estimator.spec).follow_ups == plan.follow_ups


def test_a_follow_up_is_asked_after_the_one_that_it_reads() -> None:
    """Also where the plan names it first."""
    plan = SamplingPlan(n=4, follow_ups=("supported_claims", "claims"))
    result = drawn_by(plan)
    assert len(result.follow_ups[CLAIMS.name]) == 1
    assert len(result.follow_ups[SUPPORTED_CLAIMS.name]) == 4
    assert result.cost.calls == 1 + 4 + 1 + 4
    with pytest.raises(UsageError, match="reads the reply to 'claims'"):
        drawn_by(SamplingPlan(n=4, follow_ups=("supported_claims",)))


@pytest.mark.parametrize(("remember", "same"), [(300, True), (0, False)])
def test_the_list_is_drawn_once(remember: float, same: bool) -> None:
    """Another list would hold back other claims. Negative control: a guard without a memory draws again."""
    model = Splitter(script=script())
    artifact = make_artifact(model, parts=claim_spec(5), threshold=0.2, n=4)
    guard = Guardrail(model=model, artifact=artifact, remember=remember)
    first, second = guard.assess(Q), guard.assess(Q)
    assert first.accepted
    assert second.accepted is same
    assert (second.candidate == first.candidate) is same


def test_a_person_decides_about_two_claims_of_one_sentence() -> None:
    parts = tuple(
        PartVerdict(span=(0, 29), claim=number, text=text, uncertainty=1, kept=number == 1)
        for number, text in enumerate(CLAIM_TEXTS, start=1)
    )
    content = Content(question=Q, candidate=Candidate(text=TEXT), parts=parts)

    def released(*actions: Literal["approve", "reject"]) -> str:
        places = ("0-29#2", "0-29#3")
        decisions = [PartDecision(place=place, action=action) for place, action in zip(places, actions, strict=True)]
        outcome = by_parts(content, decisions).outcome(content)
        assert outcome is not None
        return outcome.text

    assert released("reject", "approve") == "- Bob was born in Rome.\n- Bob painted."
    assert released("approve", "approve").splitlines() == [f"- {text}" for text in CLAIM_TEXTS], "not the whole text"
    with pytest.raises(ValueError, match="span of its sentence"):
        Part(path="/a", claim=1, text="x", uncertainty=0)


def test_records_are_scored_and_fail_without_the_replies(tmp_path: Path) -> None:
    file = record_file(tmp_path / "records.jsonl", sentences(4), schema=False)
    with pytest.raises(UsageError, match="calibrate collect --parts claims"):
        measure_records(file, parts_measure(claim_spec(3)))
    plan = plan_for([parts_estimator(parts_measure(claim_spec(1)))], n=4)
    records = [record.model_copy(update={"question": Q, "drawn": drawn_by(plan)}) for record in file.records]
    file = type(file)(file.path, file.header.model_copy(update={"plan": plan}), records)
    spec = spec_of_answers(lambda cap: claim_spec(cap or _refuse()), records)
    assert spec.cap == 3
    measured = measure_records(file, parts_measure(spec))
    key = key_of_parts(measured, "claims")
    assert [part.uncertainty for part in measured.records[0].parts[key]] == [0, 0.5, 0]


def _refuse() -> int:
    raise UsageError("no cap")
