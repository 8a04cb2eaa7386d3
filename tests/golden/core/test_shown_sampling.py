"""Calls to models and what is read from their replies: settings, prompts of further questions, probes and faults."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from guardrail import Bindings, Guardrail, PromptTooLongError, PromptWrapping, Scorer, UsageError, scorer
from guardrail.bindings import bindings_for
from guardrail.errors import UnreadableReplyError
from guardrail.sampling.batches import BatchReply, BatchState, batch_requests, batch_sample_sets, takes_batches
from guardrail.sampling.callbacks import child_callbacks, drop_streaming_handlers
from guardrail.sampling.calls import quiet_copy, side_by_side
from guardrail.sampling.draws import Draw, Draws
from guardrail.sampling.effects import run
from guardrail.sampling.follow_ups import FOLLOW_UPS, FollowUp, Scoring, follow_up, register, scorer_of
from guardrail.sampling.limits import Limit, ain_flight, bounded, current_limits, in_flight
from guardrail.sampling.native import (
    NativeChat,
    call_seed,
    check_one_answer,
    check_seeds,
    is_native,
    llm_output,
    request_seed,
)
from guardrail.sampling.probe import (
    ProbeCall,
    ProbeReply,
    ProbeReport,
    conclude,
    later_call,
    longer_calls,
    probe_calls,
    repeats,
    wants_alone,
    wants_probe,
)
from guardrail.sampling.prober import (
    _reply,
    aprobe,
    known_report,
    needs_probe,
    note_refused_n,
    probe,
    refuses_n,
    takes_seeds,
)
from guardrail.sampling.replies import (
    cause_of,
    cut_off,
    failed_calls,
    is_cut,
    only_offered,
    only_readable,
    only_storable,
    read_reply,
    text_tokens,
    transport_cause,
)
from guardrail.sampling.sampler import Sampler, adraw, draw, joined
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost, OptionScores, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from guardrail.uncertainty import make_estimator, plan_for
from guardrail.uncertainty.scorer import load_scorer
from tests.golden.core.rendering import error_of, json_lines, listed
from tests.golden.core.test_shown_verdicts import StatusError
from tests.golden.shown import same


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 1.0)


# -- Replies -----------------------------------------------------------------------------------------------------------


def listed_tokens(*pairs: tuple[str, float], **more: Any) -> dict[str, Any]:
    return {"logprobs": {"content": [{"token": token, "logprob": logprob, **more} for token, logprob in pairs]}}


def with_bytes(*tokens: tuple[str, str]) -> dict[str, Any]:
    content = [{"token": token, "logprob": -0.5, "bytes": list(bytes.fromhex(raw))} for token, raw in tokens]
    return {"logprobs": {"content": content}}


def message(content: Any, **metadata: Any) -> AIMessage:
    return AIMessage(content=content, response_metadata=metadata)


def calling(args: Any, content: str = "", **more: Any) -> AIMessage:
    call = {"name": "pay", "args": args, "id": "1", "type": "tool_call"}
    return AIMessage(content=content, tool_calls=[call], **more)


REPLIES: dict[str, AIMessage] = {
    "text": message(" Paris \n", finish_reason="stop"),
    "no reason": message("Paris"),
    "tokens": message("Paris is", **listed_tokens(("Par", -0.5), ("is", 0.0), (" is", -0.25))),
    "tokens as a list": message("ab", logprobs=[{"token": "a", "logprob": -1}, {"token": "b", "logprob": -2}]),
    "an end token": message("ab", **listed_tokens(("ab", -0.5), ("<eos>", -0.1))),
    "a last token of no text": message("ab", **listed_tokens(("ab", -0.5), ("", -0.1))),
    "a rounded token": message("ab", **listed_tokens(("ab", 1e-9))),
    "a positive token": message("ab", **listed_tokens(("ab", 0.5))),
    "an infinite token": message("ab", **listed_tokens(("ab", float("-inf")))),
    "not a number": message("ab", **listed_tokens(("ab", float("nan")))),
    "tokens of another text": message("ab", **listed_tokens(("cd", -0.5))),
    "tokens of a longer text": message("ab", **listed_tokens(("abc", -0.5))),
    "tokens without numbers": message("ab", logprobs={"content": [{"token": "ab"}]}),
    "no content": message("ab", logprobs={"content": None}),
    "bytes": message("a\u00e9", **with_bytes(("a", "61"), ("\\xc3", "c3"), ("\\xa9", "a9"))),
    "bytes that say no more": message("ab", **with_bytes(("ab", "6162"))),
    "bytes of an end token": message("a", **with_bytes(("a", "61"), ("<e>", ""))),
    "wrong bytes": message("ab", **listed_tokens(("ab", -0.5), bytes=["x"])),
    "a cut answer": message("ab", finish_reason="length"),
    "cut in other words": message("ab", stop_reason="max_tokens"),
    "incomplete": message("ab", status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    "incomplete without a reason": message("ab", status="incomplete"),
    "filtered": message("ab", finish_reason="FinishReason.SAFETY"),
    "two reasons": message("ab", finish_reason="stop", stop_reason="length"),
    "a refusal": AIMessage(content="no", additional_kwargs={"refusal": "I must not"}),
    "a refusal block": message([{"type": "refusal", "refusal": "no"}]),
    "thinking": message([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Paris"}]),
    "a call": calling({"to": "bob", "n": 1.0}, "I pay."),
    "a call with tokens": calling({}, "ab", response_metadata=listed_tokens(("x", -0.5))),
    "a broken call": AIMessage(
        content="",
        invalid_tool_calls=[{"name": "pay\ud83d", "args": "{", "id": "1", "error": "", "type": "invalid_tool_call"}],
    ),
    "half a pair": message("smile \ud83d"),
    "half a pair in a call": calling({"to": "\ud83d"}),
    "not a number in a call": calling({"n": float("nan")}),
    "too deep a call": calling({"a": json.loads("[" * 120 + "]" * 120)}),
}


def test_replies() -> None:
    rows = []
    for name, reply in REPLIES.items():
        read = error_of(lambda: read_reply(reply).model_dump(exclude_defaults=True))  # noqa: B023
        rows.append(f"{name}: {read}{'; cut off' if cut_off(reply) else ''}")
    reasons = [
        "stop",
        "length",
        "MAX_TOKENS",
        "maxTokens",
        "FinishReason.LENGTH",
        "time_limit",
        "eos",
        None,
        "tool_calls",
    ]
    rows += [f"{reason}: {is_cut(reason)}" for reason in reasons]
    spelled = {
        "exact": ("ab c", ["ab", " c"], None),
        "white space": ("ab  c ", ["ab", " c", " ", "\n"], None),
        "empty": ("  ", ["a"], None),
        "cut within": ("ab", ["a", "bc"], None),
        "replaced": ("a\u00e9b", ["a", "\ufffd", "\ufffd", "b"], None),
        "another": ("ab", ["a", "c"], None),
        "too few": ("abc", ["a", "b"], None),
        "broken end": ("a\ufffd", ["a", "x"], ["61", "c3"]),
        "bytes cut": ("ab", ["a", "bc"], ["61", "6263"]),
        "space first": ("ab", [" ab"], None),
        "nothing": ("ab", [], None),
    }
    rows += [f"{name}: {text_tokens(*case)}" for name, case in spelled.items()]
    same("core/replies.txt", "\n".join(rows))


class ContentFilterFinishReasonError(Exception):
    """As OpenAI's SDK names it."""


class APIConnectionError(Exception):
    """As OpenAI's SDK names it."""


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def test_causes_of_failures() -> None:
    coded, own = RuntimeError("x"), RuntimeError("x")
    coded.code, own.code = 404, 7  # type: ignore[attr-defined]
    boto = RuntimeError("x")
    boto.response = {"ResponseMetadata": {"HTTPStatusCode": 403}}  # type: ignore[attr-defined]
    errors: dict[str, Exception] = {
        **{
            f"status {status}": StatusError(status)
            for status in (200, 301, 400, 401, 402, 404, 408, 413, 422, 429, 500, 529, 700)
        },
        "too long": PromptTooLongError("x"),
        "timeout": TimeoutError("x"),
        "value": ValueError("x"),
        "unreadable": UnreadableReplyError("x"),
        "JSON": json.JSONDecodeError("x", "y", 0),
        "runtime": RuntimeError("x"),
        "a filter": ContentFilterFinishReasonError("x"),
        "refused": ConnectionRefusedError(),
        "no host": socket.gaierror(),
        "wrapped": caused(APIConnectionError("x"), ConnectionRefusedError()),
        "a connection": APIConnectionError("x"),
        "reset": ConnectionResetError(),
        "a code": coded,
        "a code of its own": own,
        "botocore": boto,
        "a wrapped value": caused(RuntimeError("x"), ValueError("y")),
        "a wrapped timeout": caused(RuntimeError("x"), TimeoutError("y")),
    }
    rows = [
        f"{name}: {cause_of(error).value} {(found := transport_cause(error)) and found.value}"
        for name, error in errors.items()
    ]
    m, c, r, u = Unmeasured.MODEL_FAILED, Unmeasured.MISCONFIGURED, Unmeasured.REJECTED, Unmeasured.MODEL_CHANGED
    answers = {
        "none": [],
        "an answer": [Sample(text="x")],
        "empty": [Sample(text="")],
        "refused": [Sample(text="x", refusal=True)],
    }
    for causes in ([m], [c], [c, c], [c, m], [m, r], [u, m], []):
        rows += [
            f"{[each.value for each in causes]}, {name}: {failed_calls(causes, own_answers).value}"
            for name, own_answers in answers.items()
        ]
    sets = {
        "readable": SampleSet(question="", primary=Sample(text="x"), samples=(Sample(text="y"),)),
        "a broken sample": SampleSet(
            question="", primary=Sample(text="x"), samples=(Sample(text="\ud83d"), Sample(text="y"))
        ),
        "a broken answer": SampleSet(
            question="", primary=Sample(text="\ud83d"), problem=Unmeasured.MODEL_FAILED, problem_detail="1 failed"
        ),
        "a large number": SampleSet(
            question="", primary=Sample(text="", tool_calls=(ToolCall(name="pay", arguments={"n": 2**70}),))
        ),
        "an unknown tool": SampleSet(
            question="",
            primary=Sample(text="", tool_calls=(ToolCall(name="sell", arguments={}),)),
            problem=Unmeasured.REFUSED,
            problem_detail="1 refused",
        ),
    }
    bound = Bindings(tools=({"type": "function", "function": {"name": "pay"}},))
    for name, drawn in sets.items():
        for check in (
            only_readable,
            only_storable,
            lambda each: only_offered(each, bound),
            lambda each: only_offered(each, None),
        ):
            left = check(drawn)
            rows.append(
                f"{name}: {left.primary is not None} {len(left.samples)} {left.problem} {left.problem_detail} "
                f"{left.not_offered is not None}"
            )
    same("core/causes.txt", "\n".join(rows))


# -- Calls -------------------------------------------------------------------------------------------------------------


class Recording(ScriptedChat):
    """A scripted model that keeps what each call sends."""

    sent: ClassVar[list[str]] = []
    seed: int | None = None

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        index = (run_manager.metadata if run_manager else {}).get("guardrail_sample", "-")
        own = {name: "..." if name in ("seed", "tools") else value for name, value in sorted(kwargs.items())}
        type(self).sent.append(
            f"{index} {own} stop {stop} fields {self.seed is not None} {[str(each.text) for each in messages]}"
        )
        return super()._generate(messages, stop, run_manager, **kwargs)


ASK: list[list[BaseMessage]] = [[HumanMessage("q1")], [HumanMessage("q2")]]


def test_what_calls_send() -> None:
    def pay(to: str) -> str:
        """Pay somebody."""
        return "paid"

    plans = {
        "default": SamplingPlan(n=2),
        "all": SamplingPlan(n=1, logprobs=True, stop=("\n", "."), max_tokens=7, temperature=0.5, top_p=1.0, seed=None),
        "sampled": SamplingPlan(n=1, primary="sampled", temperature=1, top_p=1),
        "majority": SamplingPlan(n=2, primary="majority"),
        "tools": SamplingPlan(
            n=1, bindings=bindings_for([pay], tool_choice="any", response_format={"type": "json_object"})
        ),
        "follow-ups": SamplingPlan(n=1, follow_ups=("verbalised",)),
    }
    blocks = []
    for name, plan in plans.items():
        Recording.sent.clear()
        drawn = draw(Recording(script={}), ASK[:1], plan, max_concurrency=1)
        blocks.append(
            "\n".join(
                [
                    f"== {name}",
                    *Recording.sent,
                    f"cost {drawn[0].cost} {drawn[0].primary is not None} {len(drawn[0].samples)}",
                ]
            )
        )
    Recording.sent.clear()
    further = draw(Recording(script={}), ASK, SamplingPlan(n=2), max_concurrency=1, primary=False)
    blocks.append(
        "\n".join(["== further samples of two prompts", *Recording.sent, repr([each.question for each in further])])
    )
    Recording.sent.clear()
    sampler = Sampler(
        Recording(), SamplingPlan(n=2), max_concurrency=1, first=1, transport={"user": "bob"}, question="why?"
    )
    blocks.append("\n".join(["== the last sample only", repr(sampler.draw(ASK[:1])[0].question), *Recording.sent]))
    behind = run(sampler.draw_behind_steps(ASK[0], Sample(text="served")))
    blocks.append(f"== behind an answer: {behind.primary} {len(behind.samples)} {behind.question}")
    wrong: dict[str, Callable[[], object]] = {
        "options": lambda: draw(Recording(), ASK, SamplingPlan(options=("A", "B"))),
        "stop tokens": lambda: draw(Recording(), ASK, SamplingPlan(stop_token_ids=(1,))),
        "an unknown follow-up": lambda: error_of(
            lambda: draw(Recording(), ASK, SamplingPlan(follow_ups=("why",)))
        ).partition(";")[0],
        "a scorer that is missing": lambda: draw(Recording(), ASK, SamplingPlan(follow_ups=("score:mine@1",))),
        "no prompts": lambda: draw(Recording(), [], SamplingPlan()),
        "later": lambda: len(asyncio.run(adraw(Recording(), ASK, SamplingPlan(n=1)))),
        "behind a vote": lambda: run(
            Sampler(Recording(), SamplingPlan(primary="majority")).draw_behind_steps(ASK[0], Sample(text=""))
        ),
    }
    failing = {
        "half": ["x", "y", StatusError(500)],
        "refused": ["x", AIMessage("no", response_metadata={"finish_reason": "refusal"})],
        "a filter": [StatusError(400)],
        "key": [StatusError(401)],
    }
    model = ScriptedChat(script=failing)
    for name in failing:
        (drawn_set,) = draw(model, [[HumanMessage(name)]], SamplingPlan(n=4))
        blocks.append(
            f"{name}: {drawn_set.problem} {drawn_set.problem_detail} {len(drawn_set.samples)} {drawn_set.cost}"
        )
    one, two = SampleSet(question="q", primary=None, problem=Unmeasured.MODEL_FAILED, problem_detail="a"), drawn_set
    for left, right in (
        (one, two),
        (two, one),
        (one, one.model_copy(update={"problem": Unmeasured.REFUSED, "problem_detail": "b"})),
    ):
        both = joined(left, right)
        blocks.append(f"joined: {both.problem} {both.problem_detail} {len(both.samples)} {both.cost.calls}")
    blocks.append(listed((name, error_of(call)) for name, call in wrong.items()))
    seeds = [
        request_seed(SamplingPlan(), ASK[0]),
        request_seed(SamplingPlan(seed=1), ASK[0]),
        request_seed(SamplingPlan(seed=None), ASK[0]),
        request_seed(SamplingPlan(), ASK[0], 1),
        call_seed(5, 1),
        call_seed(5, 2),
    ]
    blocks.append(f"seeds {seeds}")
    quiet = quiet_copy(Recording(cache=True))
    blocks.append(
        f"quiet {quiet.cache} {quiet.disable_streaming} {side_by_side(lambda n: n * 2, [1, 2, 3], 2)} "
        f"{side_by_side(len, [], 1)}"
    )
    same("core/calls.txt", "\n\n".join(blocks))


# -- Native samplers and batches ---------------------------------------------------------------------------------------


class Native(ScriptedChat):
    """A model that draws whole sample sets: options, several samples, and failures by question."""

    asked: ClassVar[list[str]] = []

    def draw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        primary: bool = True,
    ) -> list[SampleSet]:
        questions = [str(prompt[-1].text) for prompt in prompts]
        type(self).asked.append(
            f"{[q[:20] for q in questions]} n {plan.n} options {plan.options} primary {primary} max {plan.max_tokens} "
            f"seeds {list(seeds)}"
        )
        if "bad" in questions:
            raise ValueError("quotes an answer")
        scores = (
            None
            if plan.options is None
            else OptionScores(
                labels=plan.options, loglikelihoods=tuple(-float(place) for place in range(len(plan.options)))
            )
        )
        return [
            SampleSet(
                question=question,
                primary=Sample(text="A" if scores else f"answer to {question}") if primary else None,
                samples=tuple(Sample(text=f"sample {place}") for place in range(plan.n)),
                options=scores,
                cost=Cost(calls=1, input_tokens=2, output_tokens=plan.n),
            )
            for question in questions
        ]

    async def adraw_samples(self, prompts: Any, plan: Any, *, seeds: Any, primary: bool = True) -> list[SampleSet]:
        return self.draw_samples(prompts, plan, seeds=seeds, primary=primary)


class Batched(Native):
    """A model with a batch service."""

    def batch_requests(self, prompts: Any, plan: Any, *, seeds: Any) -> list[dict[str, dict[str, Any]]]:
        return [{"0": {"seeds": len(seeds)}} for _ in prompts]

    def batch_sample_sets(self, prompts: Any, plan: Any, *, seeds: Any, replies: Any) -> list[SampleSet]:
        return [SampleSet(question="q", primary=Sample(text=text)) for text in ("x", "\ud83d")]

    def submit_batch(self, path: Path, label: str, *, again: bool) -> str:
        raise NotImplementedError

    def batch_state(self, batch: str) -> BatchState:
        raise NotImplementedError

    def batch_file(self, file: str) -> bytes:
        raise NotImplementedError


def test_native_samplers() -> None:
    Native.asked.clear()
    rows = []
    for name, plan, prompts in (
        ("samples", SamplingPlan(n=3), ["q"]),
        ("options", SamplingPlan(n=0, options=("A", "B")), ["q"]),
        ("options with samples", SamplingPlan(n=2, options=("A", "B")), ["q"]),
        ("one bad prompt", SamplingPlan(n=1), ["q", "bad"]),
        ("follow-ups", SamplingPlan(n=2, follow_ups=("p_true", "selfcheck_prompt")), ["q"]),
    ):
        sets = draw(Native(), [[HumanMessage(text)] for text in prompts], plan)
        rows += [
            f"{name}: {each.question} {each.primary and each.primary.text} {len(each.samples)} {each.options} "
            f"{each.problem} {each.problem_detail} {each.cost} {sorted(each.follow_ups)}"
            for each in sets
        ]
        rows += [f"  asked {text}" for text in Native.asked]
        Native.asked.clear()
    guard = Guardrail(
        model=Native(), artifact=make_artifact(Native(), threshold=0.5, estimator="max_softmax", options=("A", "B"))
    )
    question = guard.artifact.prompt.messages("Which?", {"A": "x", "B": "y"})
    verdict = guard.assess(question)
    rows += [verdict.explain().split("Artifact")[0], error_of(lambda: guard.assess("Which?"))]
    memory = Draw(Draws(100.0, clock=lambda: 1.0), "key")
    for n in (2, 4):
        (part,) = Sampler(Native(), SamplingPlan(n=n), memory=memory).draw([[HumanMessage("q")]])
        rows.append(f"remembered up to {n}: {len(part.samples)} {part.cost} {Native.asked[-1:]}")
    Native.asked.clear()
    (again,) = Sampler(Native(), SamplingPlan(n=4), memory=memory).draw([[HumanMessage("q")]])
    rows.append(f"again: {len(again.samples)} {again.cost} {Native.asked}")
    (late,) = draw(Native(), [[HumanMessage("q")]], SamplingPlan(n=2), primary=False)
    rows.append(f"without the answer: {late.primary} {Native.asked[-1:]}")
    calls: dict[str, Callable[[], object]] = {
        "several in a stream": lambda: check_one_answer(2),
        "one in a stream": lambda: check_one_answer(1),
        "seeds": lambda: check_seeds([1], [1, 2]),
        "native": lambda: [is_native(Native()), is_native(ScriptedChat())],
        "output": lambda: llm_output({"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}, "m"),
        "batches": lambda: [takes_batches(Batched()), takes_batches(Native())],
        "requests": lambda: batch_requests(Batched(), ASK, SamplingPlan()),
        "follow-ups in a batch": lambda: batch_requests(Batched(), ASK, SamplingPlan(follow_ups=("p_true",))),
        "no seed in a batch": lambda: batch_requests(Batched(), ASK, SamplingPlan(seed=None)),
        "sets": lambda: [each.problem_detail for each in batch_sample_sets(Batched(), ASK, SamplingPlan(), [])],
        "may pass": lambda: [
            (status, BatchReply(status).may_pass) for status in (0, 200, 400, 408, 409, 429, 499, 500)
        ],
    }
    rows += [f"{name}: {error_of(call)}" for name, call in calls.items()]
    same("core/native.txt", "\n".join(rows))


# -- Further questions and scorers -------------------------------------------------------------------------------------


def test_further_questions() -> None:
    drawn = SampleSet(
        question="Capital?",
        primary=Sample(text="Paris. It is large."),
        samples=tuple(Sample(text=text) for text in ("Paris.", "Lyon.", "Paris.")),
    )
    blocks = []
    for name in ("p_true", "verbalised", "selfcheck_prompt", "supported_sentences", "claims"):
        asked = follow_up(name)
        prompts = asked.ask([HumanMessage("Capital?")], drawn)
        texts = ["\n".join(f"[{each.type}] {each.text}" for each in prompt) for prompt in prompts[:2]]
        plan = asked.plan(SamplingPlan(seed=5))
        sampled = asked.plan(SamplingPlan(primary="sampled", temperature=1, top_p=1))
        blocks.append(
            f"== {name}: {len(prompts)} prompts, reads {asked.reads}, names {sorted(asked.names)}\n"
            f"{plan.model_dump(exclude_defaults=True)}\n{sampled.model_dump(exclude_defaults=True)}\n"
            + "\n--\n".join(texts)
        )
    replies = {
        "one": (SampleSet(question="", primary=Sample(text="A")),),
        "failed": (SampleSet(question="", primary=None, problem=Unmeasured.MODEL_FAILED, problem_detail="down"),),
        "two": (SampleSet(question="", primary=None),) * 2,
    }
    own = FollowUp("mine", lambda prompt, drawn: [])
    blocks += [
        f"{name}: {own.reply(drawn.model_copy(update={'follow_ups': {'mine': reply}}))}"
        for name, reply in replies.items()
    ]
    blocks.append(
        f"{own.reply(drawn)} {error_of(lambda: follow_up('nobody')).partition(';')[0]} "
        f"{scorer_of(SamplingPlan(follow_ups=('a', 'score:b@1')))}"
    )
    estimator = plan_for([make_estimator("verbalised")])
    model = ScriptedChat(script={}, default=["Paris"])
    (answered,) = draw(model, [[HumanMessage("q")]], estimator)
    blocks.append(json_lines(answered.follow_ups))
    same("core/further_questions.txt", "\n\n".join(blocks))


def test_scores_of_scorers() -> None:
    unset = threading.Event()
    replies: dict[str, tuple[Any, dict[str, Any]]] = {
        "a number": (0.75, {}),
        "a whole number": (1, {}),
        "none": (None, {}),
        "a text": ("0.5", {}),
        "true": (True, {}),
        "not a number": (float("nan"), {}),
        "infinite": (float("inf"), {}),
        "huge": (10**400, {"unit": "nats"}),
        "above 1": (1.5, {}),
        "nats": (3.5, {"unit": "nats"}),
        "an error": (RuntimeError("quotes"), {}),
        "an outage": (ConnectionError("down"), {}),
        "an HTTP error": (StatusError(503), {}),
        "a refused request": (StatusError(400), {}),
        "a failure of ours": (UsageError("no key"), {}),
        "too slow": (unset, {"timeout": 0.05}),
        "own timeout": (TimeoutError("client"), {}),
    }

    def rated(reply: Any, later: bool, **settings: Any) -> Scorer:
        def value() -> Any:
            if isinstance(reply, Exception):
                raise reply
            if reply is unset:
                unset.wait(0.5)
                return 0.5
            return reply

        async def slow(answer: str) -> Any:
            if reply is unset:
                await asyncio.sleep(0.5)
            return value() if reply is not unset else 0.5

        def quick(answer: str) -> Any:
            return value()

        return scorer(version=1, higher="certain", name="rate", **settings)(slow if later else quick)

    rows = []
    for name, (reply, settings) in replies.items():
        for later in (False, True):
            own = rated(reply, later, **settings)
            model = ScriptedChat(script={"q": ["Paris"]})
            guard = Guardrail(
                model=model, artifact=make_artifact(model, estimator=own.estimator, threshold=0.5), scorer=own
            )
            verdict = asyncio.run(guard.aassess("q")) if later else guard.assess("q")
            rows.append(f"{name}, {'async' if later else 'sync'}: {verdict.uncertainty.value} {verdict.detail}")

    seen: list[str] = []

    @scorer(version=2, higher="uncertain", calls=0)
    def reading(
        question: str, answer: str, messages: Any, slots: Any, tool_calls: Any, logprobs: Any, samples: Any
    ) -> float:
        seen.append(f"{question} | {answer} | {len(messages)} | {slots} | {tool_calls} | {logprobs} | {samples}")
        return 0.25

    prompt = PromptWrapping(template="{context}: {question}", slots=("context",))
    model = ScriptedChat(default=["Paris", "Lyon"], probability=1.0)
    artifact = make_artifact(model, estimator=reading.estimator, threshold=0.5, n=2, prompt=prompt)
    guard = Guardrail(model=model, artifact=artifact, scorer=reading, remember=0)
    verdict = guard.assess(prompt.messages("Capital?", slots={"context": "Map"}))
    rows += [
        *seen,
        verdict.detail,
        repr(verdict.cost),
        repr(reading("q", "a", [], {}, (), (), ())),
        str(reading.is_async),
    ]
    silent = ScriptedChat(default=["Paris"])
    plain = make_artifact(silent, estimator=reading.estimator, threshold=0.5, n=2)
    rows.append(Guardrail(model=silent, artifact=plain, scorer=reading).assess("Capital?").detail)
    rows += [
        error_of(lambda: Guardrail(model=silent, artifact=plain)),
        error_of(lambda: load_scorer("nobody")).partition(" (")[0],
        error_of(lambda: load_scorer("json:loads")),
        error_of(lambda: load_scorer("json:nothing")),
        repr(Scoring.of([], prompt))[:40],
    ]
    certain = rated(0.75, False)
    scoring = Scoring(
        {certain.follow_up: certain}, concerns=lambda answer: {certain.follow_up} & {f"score:{answer.text}@1"}
    )
    named = [SampleSet(question="", primary=Sample(text=text)) for text in ("rate", "other")]
    named += [SampleSet(question="", primary=None), SampleSet(question="", primary=Sample(text=""))]
    asked = run(scoring.ask(ASK * 2, named, SamplingPlan(n=0, follow_ups=(certain.follow_up,)), 1))
    rows.append(f"asked about some answers: {[sorted(each.follow_ups) for each in asked]} {asked[0].cost.calls}")
    same("core/scores_of_scorers.txt", "\n".join(rows))


# -- Probes ------------------------------------------------------------------------------------------------------------


def reply(*texts: str, **more: Any) -> ProbeReply:
    return ProbeReply(texts=texts, **more)


def test_probes() -> None:
    calls = probe_calls(logprobs=False)
    scored = probe_calls(logprobs=True, seed=7)
    varied = [reply("a", "b"), reply("c"), reply("c"), reply("g", argmax=True)]
    lp: dict[str, Any] = {
        "logprobs": (-0.5, -0.25),
        "token": "x",
        "first": (("x", -0.5), ("y", -1.0)),
        "with_bytes": True,
        "argmax": True,
    }
    certain: dict[str, Any] = {**lp, "logprobs": (0.0,) * 8, "first": (("x", 0.0),)}
    cases: dict[str, tuple[Sequence[ProbeCall], list[ProbeReply], list[ProbeReply], bool]] = {
        "honest": (calls, varied, [reply("d")], True),
        "without seeds": (calls, varied, [], False),
        "a repeat by chance": (calls, varied, [reply("a"), reply("z")], True),
        "a cache": (calls, varied, [reply("a"), reply("a")], True),
        "equal": (calls, [reply("a", "a"), reply("a"), reply("a"), reply("a")], [], True),
        "one at a time": (calls, [reply("a"), reply("b"), reply("c"), reply("g")], [reply("d")], True),
        "greedy is not the likeliest": (calls, [*varied[:3], reply("g", argmax=False)], [reply("d")], True),
        "failed": (calls, [reply("a", "b"), reply(error="down"), reply("c"), reply("g")], [], True),
        "silent": (calls, [reply("", unfinished=True), *varied[1:]], [], True),
        "raw": (scored, [ProbeReply(texts=(text,), fingerprint="fp", **lp) for text in "abcd"], [reply("e")], True),
        "scaled": (
            scored,
            [ProbeReply(texts=(text,), **lp) for text in "abc"]
            + [ProbeReply(texts=("d",), **{**lp, "logprobs": (-0.01,)})],
            [],
            True,
        ),
        "certain": (scored, [ProbeReply(texts=(text,), **certain) for text in "abcd"], [], True),
        "short and certain": (
            scored,
            [ProbeReply(texts=(text,), **{**certain, "logprobs": (0.0,)}) for text in "abcd"],
            [],
            True,
        ),
        "no token": (scored, [ProbeReply(texts=(text,), **{**lp, "token": None}) for text in "abcd"], [], True),
        "no log-probabilities": (scored, [*varied], [reply("d")], True),
    }
    plans = {"samples": SamplingPlan(n=3), "logprobs": SamplingPlan(n=0, logprobs=True), "neither": SamplingPlan(n=0)}
    blocks = []
    for name, (asked, replies, later, seeded) in cases.items():
        report = conclude(asked, replies, later, seeded=seeded)
        problems = [
            f"{title}: {found and f'{found[0].value}: {found[1]}'}"
            for title, plan in plans.items()
            for found in [report.problem(plan)]
        ]
        facts = report.model_dump(exclude_defaults=True, exclude={"cost"})
        blocks.append(
            "\n".join(
                [
                    f"== {name}",
                    repr(facts),
                    f"cost {report.cost.calls}, degenerate {report.degenerate}",
                    *report.lines(),
                    *problems,
                ]
            )
        )
    rows = [repr(call) for call in (*scored, later_call(scored), later_call(scored, 1))]
    rows += [f"{title}: probed {wants_probe(plan)}" for title, plan in plans.items()]
    rows.append(repr([repeats(varied, each) for each in (reply("a"), reply("g"), reply("z"), reply())]))
    rows.append(
        repr(
            [
                wants_alone(calls[0], each)
                for each in (
                    reply("a", "b"),
                    reply("a"),
                    reply("a", "a"),
                    reply(error="x"),
                    reply(error="x", rejected=True),
                    reply(unfinished=True),
                )
            ]
        )
    )
    rows.append(
        repr(
            [
                len(longer_calls(calls, each, SamplingPlan(max_tokens=n)))
                for each in (varied, [reply(unfinished=True)])
                for n in (24, 99)
            ]
        )
    )
    messages = {
        "text": message("a b", finish_reason="stop"),
        "empty and cut": message("", finish_reason="length"),
        "tokens": AIMessage(
            "ab",
            response_metadata={
                "system_fingerprint": "fp",
                "logprobs": {
                    "content": [
                        {
                            "token": "a",
                            "logprob": -0.5,
                            "top_logprobs": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.4}],
                        },
                        {"token": "b", "logprob": -0.2, "top_logprobs": [{"token": "b", "logprob": -0.2}]},
                    ]
                },
            },
        ),
        "usage": AIMessage("a", usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}),
        "half a pair": message("\ud83d"),
    }
    rows += [f"{name}: {error_of(lambda: probed(read))}" for name, read in messages.items()]  # noqa: B023
    same("core/probes.txt", "\n\n".join([*blocks, "\n".join(rows)]))


def probed(read: AIMessage) -> object:
    return _reply(read, probe_calls(logprobs=True)[3])


class Endpoint(ScriptedChat):
    """A model that is probed, answers in turn, and may refuse seeds."""

    guardrail_trusted: ClassVar[bool] = False
    refuses: bool = False
    seed: int | None = None
    count: ClassVar[Any] = itertools.count()

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.refuses and self.seed is not None:
            raise StatusError(400)
        return ChatResult(
            generations=[ChatGeneration(message=message(f"answer {next(type(self).count)}", finish_reason="stop"))]
        )


def test_probing() -> None:
    rows = []
    for name, model in {"takes seeds": Endpoint(), "refuses seeds": Endpoint(refuses=True)}.items():
        before = known_report(model)
        report, cost = probe(model, SamplingPlan())
        again, free = probe(model, SamplingPlan())
        rows.append(
            f"{name}: {before} {report and report.lines()} {cost.calls} {again is not None} {free.calls} "
            f"{takes_seeds(model)} {known_report(model) is not None} {known_report(model, logprobs=True) is not None}"
        )
        note_refused_n(model, 4)
        note_refused_n(model, 8)
        rows.append(f"  refuses {[n for n in range(1, 9) if refuses_n(model, n)]}")
    rows.append(
        f"needs {[needs_probe(each) for each in (Endpoint(), ScriptedChat(), Native())]} {refuses_n(Endpoint(), 2)}"
    )
    rows.append(f"no samples: {probe(Endpoint(), SamplingPlan(n=0))} a fake: {probe(ScriptedChat(), SamplingPlan())}")
    sampled, _ = probe(Endpoint(), SamplingPlan(primary="sampled", temperature=1, top_p=1))
    rows.append(f"sampled: {sampled and sampled.lines()}")
    asked = asyncio.run(_probed_later())
    rows.append(f"later: {asked}")
    rows.append(
        f"failed: {ProbeReport(failed='down').lines()} {ProbeReport(silent_at=24).lines()} "
        f"{ProbeReport(samples=1, distinct=1).degenerate}"
    )
    same("core/probing.txt", "\n".join(rows))


async def _probed_later() -> Sequence[int]:
    model = Endpoint()
    reports = await asyncio.gather(*(aprobe(model, SamplingPlan()) for _ in range(3)))
    return sorted(cost.calls for _, cost in reports)


# -- Limits and callbacks ----------------------------------------------------------------------------------------------


class Tokens(BaseCallbackHandler):
    """A handler that must not see tokens."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.seen.append(f"token {token}")

    def on_chat_model_start(self, serialized: Mapping[str, Any], messages: Any, **kwargs: Any) -> None:
        self.seen.append(f"start {kwargs.get('name')}")

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.seen.append("end")


class Telling(ScriptedChat):
    """A model that tells its tokens while it writes."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if run_manager:
            run_manager.on_llm_new_token("leaked")
        return super()._generate(messages, stop, run_manager, **kwargs)


def test_limits_and_callbacks() -> None:
    rows = []
    limit = Limit(1)
    limit.acquire()
    limit.release()
    with bounded(3), bounded(5), bounded(2):
        rows.append(f"limits {[each.n for each in current_limits()]}")
    with bounded(1):
        own = current_limits()[0]
        draw(ScriptedChat(), [[HumanMessage("q")]], SamplingPlan(n=2))
        rows.append(f"free again {own._free}")
        with in_flight():
            rows.append(f"taken {own._free}, inside {[each.n for each in current_limits()]}")
        rows.append(f"given back {own._free} {asyncio.run(_in_flight())}")
    with bounded(None):
        rows.append(f"no limit {current_limits()}")
    model, tokens = Telling(default=["Paris"]), Tokens()
    guard = Guardrail(model=model, artifact=make_artifact(model, n=2), max_concurrency=1, early_stopping="off")
    guard.invoke("q", {"callbacks": [tokens]})
    rows.append(f"handler: {tokens.seen}")
    same("core/limits_and_callbacks.txt", "\n".join(rows))


class Answering(Native):
    """A model that answers the calls of a probe itself; it refuses several answers at once."""

    guardrail_trusted: ClassVar[bool] = False
    honours: ClassVar[bool] = False
    words: ClassVar[Any] = itertools.count()

    def answer_probe(self, call: ProbeCall) -> ProbeReply:
        if call.n > 1 and not self.honours:
            return ProbeReply(error="n is refused", rejected=True)
        texts = tuple(f"{call.name} {next(type(self).words)}" for _ in range(call.n))
        return ProbeReply(texts=texts, logprobs=(-0.5,) if call.logprobs else None, fingerprint="fp")

    async def aanswer_probe(self, call: ProbeCall) -> ProbeReply:
        return self.answer_probe(call)


class Repeating(Endpoint):
    """A cache: later calls get an earlier answer."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        # Greedy calls apart: the calls are made side by side, and the first three of the others get three answers.
        text = "abcaa"[next(type(self).turns)] if kwargs.get("temperature") else "g"
        return ChatResult(generations=[ChatGeneration(message=message(text, finish_reason="stop"))])

    turns: ClassVar[Any] = itertools.count()


class Wrong(ScriptedChat):
    """A model whose result is no AIMessage."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=HumanMessage("x"))])


class Small(NativeChat):
    """A native chat model, for its names and counts."""

    PROVIDER: ClassVar[str] = "small"
    SETTINGS: ClassVar[tuple[str, ...]] = ("size",)
    size: int = 3

    def _name_of_model(self, call: Mapping[str, Any]) -> str:
        return str(call.get("model", "small-1"))

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("x"))])


class Refusing(Native):
    """A native model that raises an error of the caller, or answers in parts."""

    def draw_samples(self, prompts: Any, plan: Any, *, seeds: Any, primary: bool = True) -> list[SampleSet]:
        raise UsageError("give fewer samples")


def test_rare_states_of_sampling() -> None:
    rows = []
    for honours in (False, True):
        Answering.honours = honours
        report, cost = probe(Answering(), SamplingPlan(logprobs=True))
        rows.append(f"a model that answers probes, n {honours}: {report and report.lines()} {cost.calls}")
    later = asyncio.run(_probed(Answering()))
    rows.append(f"later: {later}")
    report, cost = probe(Repeating(), SamplingPlan())
    rows.append(f"a cache: {report and report.lines()[:2]} {report and report.cached} {cost.calls}")
    (drawn,) = draw(Wrong(), [[HumanMessage("q")]], SamplingPlan(n=1))
    rows.append(f"no answer: {drawn.problem} {drawn.problem_detail}")
    small = Small()
    usage = {"token_usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    rows.append(
        f"{small._llm_type} {small._identifying_params} {small._get_ls_params(model='m')} "
        f"{small._combine_llm_outputs([usage, None, usage])} {small._combine_llm_outputs([])}"
    )
    rows.append(error_of(lambda: draw(Refusing(), [[HumanMessage("q")]], SamplingPlan(n=1))))
    again = FollowUp("p_true", lambda prompt, drawn: [])
    reading = FollowUp("reading@test", lambda prompt, drawn: [], reads="nobody")
    rows.append(error_of(lambda: register(again)))
    register(reading)
    try:
        rows.append(
            error_of(
                lambda: draw(ScriptedChat(), [[HumanMessage("q")]], SamplingPlan(n=1, follow_ups=("reading@test",)))
            )
        )
    finally:
        del FOLLOW_UPS["reading@test"]
    options = draw(ScriptedChat(), [[HumanMessage("q")]], SamplingPlan(n=1, follow_ups=("p_true",)))[0].follow_ups
    rows.append(repr([(each.problem, each.problem_detail) for each in options["p_true"]]))
    failing = ScriptedChat(script={"q": [StatusError(500)]})
    rows.append(repr(draw(failing, [[HumanMessage("q")]], SamplingPlan(n=1, follow_ups=("verbalised",)))[0].follow_ups))
    handlers: list[BaseCallbackHandler] = [Tokens()]
    rows.append(
        repr([drop_streaming_handlers(None), drop_streaming_handlers(handlers) is handlers, child_callbacks(None)])
    )
    seeded = Recording(seed=7)
    probe(seeded, SamplingPlan())
    rows += [
        repr(error_of(lambda: load_scorer("tests.golden.core.test_shown_sampling:made_scorer").name)),
        error_of(lambda: load_scorer(f"{__name__}:Tokens")),
    ]
    rows.append(f"{Limit(2).n} {asyncio.run(_taken())}")
    same("core/rare_sampling.txt", _without_addresses("\n".join(rows)))


def _without_addresses(text: str) -> str:
    import re

    return re.sub(r" at 0x[0-9a-f]+", "", text)


async def _probed(model: Any) -> list[str]:
    report, _ = await aprobe(model, SamplingPlan())
    return [] if report is None else report.lines()


async def _in_flight() -> list[int]:
    own = current_limits()[0]
    async with ain_flight():
        taken = own._free
    return [taken, own._free]


async def _taken() -> list[int]:
    """Two callers of one slot, one after the other."""
    limit, order = Limit(1), list[int]()

    async def use(number: int) -> None:
        await limit.aacquire()
        order.append(number)
        await asyncio.sleep(0)
        limit.release()

    await asyncio.gather(*(use(number) for number in range(3)))
    return order


def made_scorer() -> Scorer:
    @scorer(version=1, higher="certain", name="made")
    def rate(answer: str) -> float:
        return 0.5

    return rate
