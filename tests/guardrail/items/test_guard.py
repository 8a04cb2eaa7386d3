"""A guard of items: what it returns, what it holds back, and that nothing is drawn twice."""

import json
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from pydantic import BaseModel, Field, ValidationError

from guardrail import AbstainedError, CalibrationArtifact, Guardrail, Partial, Reason
from guardrail.artifact import CascadeArtifact, CascadeOutcome, StageShare
from guardrail.bindings import bindings_for
from guardrail.decision import Gate, ThresholdGate
from guardrail.errors import ArtifactMismatchError
from guardrail.guard.abstention import ABSTENTION
from guardrail.guard.observers import SafetySwitch
from guardrail.items.gate import ItemsGate, gate_of, undivided
from guardrail.items.item import ItemVerdict
from guardrail.items.json_fields import json_spec
from guardrail.items.release import release
from guardrail.items.spec import ItemScores, ItemsSpec
from guardrail.monitor import Drift
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings, Sample, SampleSet, ToolCall
from guardrail.verdict import Verdict


class Invoice(BaseModel):
    number: str
    total: float
    due: str | None = None
    tags: list[str] = []


Q = "Invoice?"
FORMAT = bindings_for(response_format=Invoice)
CALL = bindings_for([Invoice], tool_choice="Invoice")
SPEC = json_spec(FORMAT, cap=9)
SURE = {"number": "A-1", "total": 12.50, "due": "2020-01-02", "tags": ["x"]}


def answers(*changes: dict[str, Any]) -> list[str]:
    """The sure answer as primary, then four samples, each with a change."""
    return [json.dumps(SURE), *(json.dumps({**SURE, **change}) for change in (*changes, {}, {}, {})[:4])]


def guard_of(
    script: list[Any], *, spec: ItemsSpec = SPEC, bindings: Bindings | None = FORMAT, **given: Any
) -> Guardrail:
    model = ScriptedChat(script={Q: script})
    given = {"threshold": 0.2, "n": 4, **given}
    own = {name: given.pop(name) for name in ("threshold", "n")}
    return Guardrail(model=model, artifact=make_artifact(model, items=spec, bindings=bindings, **own), **given)


def as_calls(script: list[str]) -> list[AIMessage]:
    calls = [{"name": "Invoice", "args": json.loads(text), "id": "1", "type": "tool_call"} for text in script]
    return [AIMessage(content="", tool_calls=[call]) for call in calls]


def guardrail_of(message: AIMessage) -> dict[str, Any]:
    verdict: dict[str, Any] = message.response_metadata["guardrail"]
    return verdict


def taking_over(method: str, script: list[str], **given: Any) -> tuple[Guardrail, Guardrail]:
    """A guard that holds everything back, and the guard that it hands over to."""
    bindings = FORMAT if method == "json_schema" else CALL.model_copy(update={"tool_choice": None})
    scripts: list[list[Any]] = [answers(*({"number": str(i), "total": i} for i in range(4))), script]
    first, second = (texts if method == "json_schema" else as_calls(texts) for texts in scripts)
    model, other = ScriptedChat(script={Q: first}), ScriptedChat(script={Q: second}, name_of_model="other")
    items = {"items": json_spec(bindings, cap=9), **given}
    large = Guardrail(model=other, artifact=make_artifact(other, bindings=bindings, n=4, threshold=0.2, **items))
    artifact = make_artifact(model, bindings=bindings, n=4, threshold=0.2, estimator="primary_disagreement")
    return Guardrail(model=model, artifact=artifact, on_abstain=large), large


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_part_of_the_answer_of_a_guard_that_takes_over_is_not_given_out(method: str) -> None:
    """The schema's default stood in place of the field that was held back, as if the model had given it."""
    guard, large = taking_over(method, answers({"due": "2021"}, {"due": "2022"}))
    assert isinstance(large.with_structured_output(Invoice, method=method).invoke(Q), Partial)  # type: ignore[arg-type]
    chain = guard.with_structured_output(Invoice, method=method, include_raw=True)  # type: ignore[arg-type]
    for given in (chain.invoke(Q), *chain.stream(Q)):
        assert given["parsed"] is None
        assert isinstance(given["parsing_error"], AbstainedError)
    assert guard.invoke(Q).content == ABSTENTION
    whole, _ = taking_over(method, answers())
    assert whole.with_structured_output(Invoice, method=method).invoke(Q) == Invoice(**SURE)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_abstention_of_a_guard_that_takes_over_is_an_abstention(method: str) -> None:
    """It was an error about how the guard is used, or a text that cannot be parsed."""
    apart = answers(*({"number": str(i), "total": i} for i in range(4)))
    guard, _ = taking_over(method, apart, items=None, estimator="primary_disagreement")
    chain = guard.with_structured_output(Invoice, method=method)  # type: ignore[arg-type]
    with pytest.raises(AbstainedError):
        chain.invoke(Q)
    with pytest.raises(AbstainedError):
        list(chain.stream(Q))


# -- text


def test_a_complete_answer_is_given_unchanged() -> None:
    message = guard_of(answers()).invoke(Q)
    assert message.content == json.dumps(SURE)
    verdict = guardrail_of(message)
    assert (verdict["accepted"], verdict["reason"], verdict["held_back"]) == (True, "within_threshold", [])


def test_doubtful_fields_are_left_out_and_nothing_stands_in_their_place() -> None:
    message = guard_of(answers({"total": 13}, {"total": 14}, {"tags": ["y"]}, {"tags": []})).invoke(Q)
    assert json.loads(message.text) == {"number": "A-1", "due": "2020-01-02"}
    verdict = guardrail_of(message)
    assert (verdict["accepted"], verdict["reason"]) == (True, "partly_held_back")
    assert verdict["held_back"] == ["/total", "/tags/0"]
    assert "12.5" not in json.dumps(message.model_dump(mode="json")), "no words of an item that is held back"
    shown = {item["path"]: (item["kept"], item["text"], item["uncertainty"]) for item in verdict["items"]}
    assert shown["/total"] == (False, "", 0.5)
    assert shown["/number"] == (True, '"A-1"', 0.0)


def test_numbers_stay_as_the_model_wrote_them() -> None:
    text = '{"a": 1.10, "b": 123456789012345678901234567890, "c": 1e400, "d": "x"}'
    other = text.replace('"x"', '"y"')
    message = guard_of([text, other], spec=json_spec(cap=9), bindings=None, n=1).invoke(Q)
    assert message.content == '{"a": 1.10, "b": 123456789012345678901234567890, "c": 1E+400}'


def test_words_around_the_object_are_not_given_out() -> None:
    text = 'The CEO is Bob.\n```json\n{"a": 1}\n```'
    message = guard_of([text, text], spec=json_spec(cap=9), bindings=None, n=1).invoke(Q)
    assert message.content == '{"a": 1}'


@pytest.mark.parametrize("text", ['{see 12-34} ```json\n{"a": 5}```', "It was 12-34. ```json\n5```"])
def test_words_before_a_fence_were_not_measured_and_are_not_given_out(text: str) -> None:
    message = guard_of([text] * 5, spec=json_spec(cap=2), bindings=None).invoke(Q)
    assert guardrail_of(message)["reason"] == "within_threshold"
    assert "12-34" not in str(message)
    assert "5" in message.text


def test_the_tokens_of_an_argument_that_is_held_back_are_not_given_out() -> None:
    call = ToolCall(name="f", arguments={"a": "secret", "b": 1})
    answer = Sample(text="", tool_calls=(call,), tokens=("{", "secret"), logprobs=(-0.1, -0.1))
    items = [ItemVerdict(path=path, text="", uncertainty=0.5, kept=path == "/b") for path in ("/a", "/b")]
    assert "secret" not in str(release(answer, items))


def test_if_nothing_is_kept_the_answer_is_held_back() -> None:
    other = {"number": "B", "total": 1, "due": "x", "tags": ["z"]}
    guard = guard_of(answers(other, other))
    verdict = guard.assess(Q)
    assert (verdict.accepted, verdict.reason) == (False, Reason.ABOVE_THRESHOLD)
    assert [item.kept for item in verdict.items] == [False] * 4
    assert guard.invoke(Q).text.startswith(ABSTENTION)


@pytest.mark.parametrize("broken", ["no JSON", '{"number": "A-1", "number": "B"}', '{"number": "\\ud800"}'])
def test_an_answer_that_cannot_be_split_abstains(broken: str) -> None:
    verdict = guard_of([broken, *answers()[1:]]).assess(Q)
    assert (verdict.accepted, verdict.reason, verdict.items) == (False, Reason.UNMEASURED, ())


def test_an_infeasible_artifact_keeps_nothing() -> None:
    verdict = guard_of(answers(), threshold=None).assess(Q)
    assert (verdict.accepted, verdict.reason) == (False, Reason.INFEASIBLE)
    assert not any(item.kept for item in verdict.items)


def test_beyond_the_cap_items_are_held_back() -> None:
    verdict = guard_of(answers(), spec=json_spec(FORMAT, cap=2)).assess(Q)
    assert [item.kept for item in verdict.items] == [True, True, False, False]


def test_failed_transport_is_an_abstention_without_items() -> None:
    verdict = guard_of([json.dumps(SURE), TimeoutError("5 s")]).assess(Q)
    assert (verdict.accepted, verdict.reason, verdict.items) == (False, Reason.UNMEASURED, ())


# -- structured output


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_a_partial_object(method: str) -> None:
    script: list[Any] = answers({"due": "2021"}, {"due": None})
    calls = method == "function_calling"
    guard = guard_of(as_calls(script) if calls else script, bindings=CALL if calls else FORMAT)
    partial = guard.with_structured_output(Invoice).invoke(Q)
    assert isinstance(partial, Partial)
    assert partial.kept == {"number": "A-1", "total": 12.5, "tags": ["x"]}
    assert partial.held_back == ("/due",)
    # The schema does not require it, so there is an object; its default says nothing.
    assert partial.model == Invoice(number="A-1", total=12.5, tags=["x"])
    assert [item.kept for item in partial.items] == [True, True, False, True]


def test_without_a_required_field_there_is_no_object() -> None:
    partial = guard_of(answers({"total": 1}, {"total": 2})).with_structured_output(Invoice).invoke(Q)
    assert partial.model is None
    assert partial.kept.keys() == {"number", "due", "tags"}


def test_without_an_item_of_a_list_there_is_no_object() -> None:
    # With the default [] for the tags, the object would say that there are none.
    partial = guard_of(answers({"tags": ["y"]}, {"tags": ["z"]})).with_structured_output(Invoice).invoke(Q)
    assert partial.held_back == ("/tags/0",)
    assert partial.model is None
    assert "tags" not in partial.kept


@pytest.mark.parametrize(
    ("sure", "doubtful", "why"),
    [
        ('{"number": "A", "total": 1e400, "due": "x"}', '"y"', "1e400|1E.400"),
        ('{"number": "A", "total": 1' + "0" * 5000 + ', "due": "x"}', '"y"', "4300"),
        ('["a", "x"]', '"y"', "not an object"),
    ],
)
def test_a_value_that_the_caller_cannot_read_as_written_is_no_partial_object(
    sure: str, doubtful: str, why: str
) -> None:
    others = [sure.replace('"x"', doubtful)] * 4
    with pytest.raises(OutputParserException, match=why):
        guard_of([sure, *others]).with_structured_output(Invoice, method="json_schema").invoke(Q)


def test_a_call_with_an_integer_of_too_many_digits_abstains() -> None:
    call = {"name": "Invoice", "args": {**SURE, "total": 10**5000}, "id": "1", "type": "tool_call"}
    verdict = guard_of([AIMessage(content="", tool_calls=[call])] * 5, bindings=CALL).assess(Q)
    assert (verdict.accepted, verdict.reason) == (False, Reason.UNMEASURED)
    assert "more digits" in verdict.detail


def test_a_name_with_a_slash_is_escaped_in_the_path_that_is_held_back() -> None:
    sure = json.dumps({**SURE, "a/b~": 1})
    script = [sure, *[sure.replace("1}", "2}")] * 4]
    named = json_spec(FORMAT, cap=9, optional=["/due", "/tags", "/a~1b~0"])
    partial = guard_of(script, spec=named).with_structured_output(Invoice).invoke(Q)
    assert partial.held_back == ("/a~1b~0",)


def test_structured_output_is_the_object_itself_if_all_is_kept() -> None:
    assert guard_of(answers()).with_structured_output(Invoice).invoke(Q) == Invoice(**SURE)


def test_structured_output_abstains_if_nothing_is_kept() -> None:
    other = {"number": "B", "total": 1, "due": "x", "tags": ["z"]}
    asking = guard_of(answers(other, other)).with_structured_output(Invoice)
    with pytest.raises(AbstainedError):
        asking.invoke(Q)


async def test_structured_output_with_the_raw_message() -> None:
    asking = guard_of(answers({"due": "2021"}, {"due": None})).with_structured_output(Invoice, include_raw=True)
    for both in (asking.invoke(Q), await asking.ainvoke(Q)):
        assert isinstance(both["parsed"], Partial)
        assert both["parsing_error"] is None
        assert guardrail_of(both["raw"])["held_back"] == ["/due"]


# -- tool calls


def test_a_call_without_an_argument_does_not_run() -> None:
    guard = guard_of(as_calls(answers({"total": 13}, {"total": 14})), bindings=bindings_for([Invoice]))
    verdict = guard.assess(Q)
    assert (verdict.accepted, verdict.reason, verdict.is_result) == (False, Reason.PARTLY_HELD_BACK, True)
    assert [item.path for item in verdict.held_back] == ["/total"]
    message = guard.invoke(Q)
    assert message.tool_calls == []
    assert "12.5" not in json.dumps(message.model_dump(mode="json"))
    handled: list[Any] = []
    asked = guard.model_copy(update={"on_abstain": lambda verdict: handled.append(verdict.candidate)})
    asked.invoke(Q)
    assert handled[0].tool_calls[0].arguments["total"] == 12.5, "a person sees the whole call"


def test_a_call_with_all_arguments_runs() -> None:
    guard = guard_of(as_calls(answers()), bindings=bindings_for([Invoice]))
    assert guard.invoke(Q).tool_calls[0]["args"] == SURE


def test_a_caller_that_needs_the_whole_object_gets_an_abstention() -> None:
    partly = guard_of(answers({"total": 13}, {"total": 14})).assess(Q)
    whole = undivided(partly)
    assert (whole.accepted, whole.reason, whole.is_result) == (False, Reason.PARTLY_HELD_BACK, True)
    assert whole.candidate is not None
    assert json.loads(whole.candidate.text) == SURE, "a person decides about all of it"
    complete = guard_of(answers()).assess(Q)
    assert undivided(complete) == complete


class Off(SafetySwitch):
    def objection(self) -> str | None:
        return "alarm"


def as_object(**given: Any) -> Runnable[Any, Any]:
    script: list[Any] = [*as_calls(answers({"due": "x"}, {"due": "y"}))]
    guard = guard_of(script, bindings=CALL, spec=json_spec(CALL, cap=9), **given)
    return guard.with_structured_output(Invoice, method="function_calling")


def test_observers_see_the_call_that_is_given_out_as_an_object() -> None:
    seen: list[Verdict] = []
    reader = as_object(on_verdict=lambda verdict, _: seen.append(verdict))
    for times in (1, 2):
        assert isinstance(reader.invoke(Q), Partial)
        assert [(verdict.accepted, verdict.reason) for verdict in seen] == [(True, Reason.PARTLY_HELD_BACK)] * times


def test_an_alarm_holds_back_a_call_that_is_read_as_an_object() -> None:
    with pytest.raises(AbstainedError) as caught:
        as_object(on_verdict=Off()).invoke(Q)
    assert caught.value.verdict.reason is Reason.SUSPENDED


def test_a_call_that_cannot_be_recorded_is_not_read_as_an_object() -> None:
    def fails(verdict: Verdict, _: Any) -> None:
        raise OSError("no space left")

    reader = as_object(on_verdict=fails)
    for _ in range(2):
        with pytest.raises(AbstainedError, match="could not be recorded"):
            reader.invoke(Q)


def test_a_switch_holds_all_items_back() -> None:
    verdict = guard_of(answers({"total": 13}, {"total": 14}), on_verdict=Off()).assess(Q)
    assert (verdict.accepted, verdict.reason) == (False, Reason.SUSPENDED)
    assert not any(item.kept for item in verdict.items)
    assert verdict.candidate is not None
    assert json.loads(verdict.candidate.text) == SURE


def test_a_drift_monitor_compares_the_mean_of_an_answers_items() -> None:
    artifact = guard_of(answers()).artifact
    assert artifact.calibration.of_answers == (0.2,)
    verdict = guard_of(answers({"total": 13}, {"total": 14})).assess(Q)
    assert Drift(artifact).score(verdict) == 0.5 / 4
    unmeasured = [item.model_copy(update={"uncertainty": None}) for item in verdict.items]
    one = verdict.model_copy(update={"items": (unmeasured[0], *verdict.items[1:])})
    assert Drift(artifact).score(one) == (1 + 0.5) / 4
    assert Drift(artifact).score(verdict.model_copy(update={"items": tuple(unmeasured)})) is None


def test_a_cascade_refuses_a_stage_of_items() -> None:
    artifact = guard_of(answers()).artifact
    outcome = CascadeOutcome(
        rule="none",
        alpha=0.1,
        delta=None,
        n=2,
        stages=(StageShare(threshold=0.2, n_accepted=1, n_errors=0),) * 2,
        interval=None,
        reason=None,
    )
    with pytest.raises(ValidationError, match="stage 1 gates items"):
        CascadeArtifact(stages=(artifact, artifact), outcome=outcome)


# -- measured once


class Redrawn(ScriptedChat):
    """Each draw of samples agrees with the answer by chance; counts its calls."""

    calls: list[int] = Field(default_factory=list)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(1)
        return super()._generate(*args, **kwargs)


def test_asking_again_draws_nothing_and_keeps_the_same_items() -> None:
    model = Redrawn(script={Q: answers({"total": 13}, {"total": 14})}, calls=[])
    guard = Guardrail(model=model, artifact=make_artifact(model, items=SPEC, bindings=FORMAT, threshold=0.2, n=4))
    first = guard.assess(Q)
    n_calls = len(model.calls)
    model.script[Q][1:] = answers()[1:]  # type: ignore[index]  # another draw would keep everything
    again = guard.assess(Q)
    assert len(model.calls) == n_calls
    assert again.items == first.items
    assert again.candidate == first.candidate
    # A guard with another threshold decides about the same draw.
    outcome = guard.artifact.outcome.model_copy(update={"threshold": 0.5})
    looser = guard.model_copy(update={"artifact": guard.artifact.model_copy(update={"outcome": outcome})})
    assert [item.uncertainty for item in looser.assess(Q).items] == [item.uncertainty for item in first.items]


# -- the gate


def test_of_each_artifact_there_is_a_gate_that_decides_without_a_model() -> None:
    """Guards, agents and servers know `Gate.decide` alone: nobody else asks what an artifact gates."""
    drawn = SampleSet(
        question=Q, primary=Sample(text='{"a": 1, "b": 2}'), samples=(Sample(text='{"a": 1, "b": 3}'),) * 4
    )
    model = ScriptedChat()
    for made, kind, text in (
        (make_artifact(model, n=4), ThresholdGate, '{"a": 1, "b": 2}'),
        (make_artifact(model, items=json_spec(cap=2), n=4), ItemsGate, '{"a": 1}'),
    ):
        gate = gate_of(made)
        assert isinstance(gate, kind)
        assert isinstance(gate, Gate)
        verdict = gate.decide(drawn)
        assert verdict.given is not None
        assert (verdict.accepted, verdict.given.text, verdict.artifact) == (True, text, made.digest)


@pytest.mark.parametrize(("samples", "kept"), [(["yes"] * 4, True), (["yes", "no"] * 2, False)])
def test_a_whole_answer_is_one_item(samples: list[str], kept: bool) -> None:
    """A program that reads what is given out and what is held back needs to know no kind of gate."""
    model = ScriptedChat(script={Q: ["yes", *samples]})
    guard = Guardrail(model=model, artifact=make_artifact(model, n=4, threshold=0.5))
    verdict = guard.assess(Q)
    metadata = guard.invoke(Q).response_metadata["guardrail"]
    (item,) = verdict.items
    assert (item.path, item.uncertainty, item.kept) == ("", verdict.uncertainty.value, kept)
    assert metadata["items"] == [{"path": "", "text": "", "uncertainty": verdict.uncertainty.value, "kept": kept}]
    assert metadata["held_back"] == ([] if kept else [""])
    assert (verdict.given == verdict.candidate) == kept
    assert Verdict.from_stored(verdict.shown()) == verdict


# -- the artifact


def test_the_scores_are_of_the_kind_of_the_gate() -> None:
    """Read as a threshold on whole answers, the score of the most certain item would let all of them through."""
    artifact = guard_of(answers()).artifact
    with pytest.raises(ValidationError, match="the kind is 'threshold', and the calibration scores are of 'items'"):
        CalibrationArtifact.from_stored({**artifact.content, "kind": "threshold"})


def test_another_estimator_of_items_is_refused() -> None:
    artifact = guard_of(answers()).artifact
    older = artifact.model_copy(update={"estimator": artifact.estimator.model_copy(update={"version": 0})})
    with pytest.raises(ArtifactMismatchError, match="score differs"):
        Guardrail(model=ScriptedChat(), artifact=older)


def test_scores_of_many_items_are_packed() -> None:
    n = 60_000
    few = ItemScores(sizes=(2, 1), uncertainty=(0.1, None, 1.0), error=(0, 1, 0))
    assert few.answers == [((0.1, None), (0, 1)), ((1.0,), (0,))]
    many = ItemScores(sizes=(n,), uncertainty=(*(i / n for i in range(n - 1)), None), error=(0, 1) * (n // 2))
    for scores in (few, many):
        assert ItemScores.from_stored(scores.model_dump_json()) == scores
    assert len(many.model_dump_json()) < 500_000 < len(str(many.uncertainty))
    with pytest.raises(ValidationError, match="sizes must be positive and add up"):
        ItemScores(sizes=(2,), uncertainty=(0.1,), error=(0,))


SECRET = "lung cancer stage IV"


@pytest.mark.parametrize("beside", [{}, {"city": "Rome"}])
def test_a_key_that_no_schema_names_leaves_only_with_its_value(beside: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A key may be the answer: {"lung cancer stage IV": true} is held back, and its path must not say it."""
    script = [json.dumps({**beside, SECRET: True}), *(json.dumps({**beside, f"word {i}": True}) for i in range(4))]
    guard = guard_of(script, spec=json_spec(cap=9), bindings=None)
    with caplog.at_level("INFO"):
        message = guard.invoke(Q)
    verdict = guard.assess(Q)
    assert verdict.accepted == bool(beside)
    assert [item.path for item in verdict.held_back] == [f"/{SECRET}"]  # for the page of a reviewer
    assert message.response_metadata["guardrail"]["held_back"] == ["/*"]
    assert SECRET not in json.dumps([message.content, message.response_metadata, verdict.detail, caplog.text])


@pytest.mark.parametrize("place", [0, 1], ids=["answer", "samples"])
@pytest.mark.parametrize(
    "call",
    [
        {"tool_calls": [{"name": SECRET, "args": {}, "id": "1"}]},
        {"tool_calls": [{"name": SECRET, "args": {SECRET: float("nan")}, "id": "1"}]},
        {"invalid_tool_calls": [{"name": SECRET, "args": "{", "id": "1", "error": SECRET}]},
    ],
    ids=["not offered", "not JSON", "not readable"],
)
def test_the_name_of_a_tool_that_was_not_offered_does_not_leave(call: Any, place: int) -> None:
    """A model may say in a name what is held back."""
    script = as_calls(answers())
    script[place] = AIMessage("", **call)
    guard = guard_of(script, bindings=CALL, spec=json_spec(CALL, cap=9))
    assert SECRET not in json.dumps(guard.assess(Q).to_metadata())


def test_a_key_that_is_kept_is_shown() -> None:
    """It is an item of the answer that the caller gets."""
    guard = guard_of([json.dumps({SECRET: True})] * 5, spec=json_spec(cap=9), bindings=None)
    (item,) = guard.invoke(Q).response_metadata["guardrail"]["items"]
    assert (item["path"], item["kept"]) == (f"/{SECRET}", True)
