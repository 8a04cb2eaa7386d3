"""Random trees of guards, gates of items, cascades and routers: what leaves them, what they draw, and what they cost.

A tree is plain data. `made` builds it from real guards around scripted models, `expected` says by hand what it has to
do: its text, and how often each model answers. Whoever nests guards would otherwise learn in production that a
composition gives out what nobody judged, asks twice until a gate accepts, or bills half of its calls.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr, ValidationError

import guardrail.decision
from guardrail import Cascade, Guardrail, Router
from guardrail.artifact import ALL_OTHERS, CalibrationArtifact, CascadeArtifact, CascadeOutcome, StageShare
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.guard.abstention import ABSTENTION
from guardrail.guard.base import GuardedChatModel
from guardrail.items.json_fields import json_spec
from guardrail.outcome import InfeasibleReason
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost

N = 3
QUESTIONS = ("left", "right")
"""The key function of every router takes the question for the name of the group; "right" goes to all others."""
MODELS = 3


# -- Trees -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A model behind a threshold.

    Attributes:
        model: Number of the model; equal numbers are one model.
        sure: Whether its samples agree with its answer; of an answer in JSON, for each of two fields. None: it is down.
        open: Whether its gate has a threshold.
    """

    model: int
    sure: tuple[bool, ...] | None
    open: bool

    @property
    def name(self) -> str:
        return f"m{self.model}.{'down' if self.sure is None else ''.join('ny'[each] for each in self.sure)}"

    @property
    def answers(self) -> int:
        """Answers that a question takes: the primary one alone where no threshold can accept any."""
        return 0 if self.sure is None else 1 + N if self.open else 1

    def said(self, question: str) -> dict[str, str]:
        """What the model says, by field; one field where the answer is a text."""
        return {field: f"{self.name} says {field} to {question}" for field in "ab"[: len(self.sure or (True,))]}

    def kept(self, question: str) -> dict[str, str]:
        """What its gate keeps of that."""
        flags = self.sure if self.open and self.sure is not None else (False, False)
        return {name: text for (name, text), sure in zip(self.said(question).items(), flags, strict=False) if sure}


@dataclass(frozen=True)
class Guard:
    """A guard of one stage, and what follows an abstention (None: the text)."""

    stage: Stage
    after: Tree | None = None


@dataclass(frozen=True)
class Chain:
    """A cascade of two stages, and what follows an abstention."""

    stages: tuple[Stage, Stage]
    after: Tree | None = None


@dataclass(frozen=True)
class Fork:
    """A router with a guard for "left" and one for all others."""

    left: Tree
    others: Tree


Tree = Guard | Chain | Fork

flags = st.booleans()
whole = st.builds(Stage, st.integers(0, MODELS - 1), st.one_of(st.tuples(flags), st.tuples(flags), st.none()), flags)
fields = st.builds(Stage, st.integers(0, MODELS - 1), st.tuples(flags, flags), flags)
trees: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(st.builds(Guard, whole), st.builds(Guard, fields), st.builds(Chain, st.tuples(whole, whole))),
    lambda inner: st.one_of(
        st.builds(Guard, st.one_of(whole, fields), inner),
        st.builds(Chain, st.tuples(whole, whole), inner),
        st.builds(Fork, inner, inner),
    ),
    max_leaves=6,
)


# -- Real guards -------------------------------------------------------------------------------------------------------


class Answering(ScriptedChat):
    """Counts its answers."""

    _answers: Counter[str] = PrivateAttr(default_factory=Counter)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages, stop, run_manager, **kwargs)
        self._answers[str(messages[-1].text)] += 1
        return result


@dataclass
class Made:
    """The models of a tree by name."""

    models: dict[str, Answering] = field(default_factory=dict)

    def model(self, stage: Stage) -> Answering:
        if stage.name not in self.models:
            script = {question: replies(stage, question) for question in QUESTIONS}
            self.models[stage.name] = Answering(name_of_model=stage.name, script=script)
        return self.models[stage.name]

    def artifact(self, stage: Stage) -> CalibrationArtifact:
        spec = json_spec(cap=2) if len(stage.sure or ()) == 2 else None
        return make_artifact(self.model(stage), threshold=0.5 if stage.open else None, n=N, items=spec)

    def guard(self, tree: Tree) -> GuardedChatModel:
        if isinstance(tree, Fork):
            return Router({"left": self.guard(tree.left), ALL_OTHERS: self.guard(tree.others)}, key=group)
        after: Any = "message" if tree.after is None else self.guard(tree.after)
        if isinstance(tree, Guard):
            return Guardrail(model=self.model(tree.stage), artifact=self.artifact(tree.stage), on_abstain=after)
        models = [self.model(stage) for stage in tree.stages]
        return Cascade(models, artifact=system(*map(self.artifact, tree.stages)), on_abstain=after)

    @property
    def answers(self) -> Counter[tuple[str, str]]:
        """Answers so far by model and question."""
        return Counter(
            {(name, question): n for name, model in self.models.items() for question, n in model._answers.items() if n}
        )


def replies(stage: Stage, question: str) -> list[Any]:
    if stage.sure is None:
        return [ConnectionError("down")]
    said = stage.said(question)

    def sample(number: int) -> str:
        sure = dict(zip(said, stage.sure or (), strict=True))
        return written({name: text if sure[name] else f"{text}, or {number}" for name, text in said.items()})

    return [written(said), *map(sample, range(N))]


def written(said: dict[str, str]) -> str:
    return json.dumps(said) if len(said) == 2 else next(iter(said.values()))


def group(messages: Any) -> str:
    return str(messages[-1].text)


def system(*stages: CalibrationArtifact) -> CascadeArtifact:
    shares = tuple(StageShare(threshold=stage.threshold, n_accepted=1, n_errors=0) for stage in stages)
    none = all(stage.threshold is None for stage in stages)
    reason = InfeasibleReason.TOO_FEW_ITEMS if none else None
    outcome = CascadeOutcome(rule="none", alpha=0.1, delta=None, n=2, stages=shares, interval=None, reason=reason)
    return CascadeArtifact(stages=stages, outcome=outcome)


# -- What they have to do ----------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """What a tree gives out, how often each model answers, and whether a model that is down was asked.

    A part of an answer goes out from the guard that was asked; one that takes over gives a whole answer or none.
    """

    text: str
    answers: Counter[tuple[str, str]]
    down: bool
    is_part: bool = False


def expected(tree: Tree | None, question: str) -> Expected:
    if tree is None:
        return Expected(ABSTENTION, Counter(), False)
    if isinstance(tree, Fork):
        return expected(tree.left if question == "left" else tree.others, question)
    stages = (tree.stage,) if isinstance(tree, Guard) else tree.stages
    asked = [stage for stage in stages if stage.open] or [stages[-1]]
    answers: Counter[tuple[str, str]] = Counter()
    for stage in asked:
        answers[stage.name, question] += stage.answers
        kept = stage.kept(question)
        if kept:
            whole_answer = len(kept) == len(stage.sure or ())
            text = written(kept) if whole_answer else json.dumps(kept)
            return Expected(text, +answers, False, is_part=not whole_answer)
        if stage.sure is None:
            break  # the next stage would get questions that it was not calibrated for
    rest = expected(tree.after, question)
    text = ABSTENTION if rest.is_part else rest.text
    return Expected(text, +(answers + rest.answers), rest.down or stage.sure is None)


def gates(tree: Tree | None) -> Iterator[tuple[object, ...]]:
    """What tells the gates of a tree apart: model, threshold and kind of answer."""
    if isinstance(tree, Fork):
        yield from (*gates(tree.left), *gates(tree.others))
    elif tree is not None:
        yield from own_gates(tree)
        yield from gates(tree.after)


def own_gates(tree: Guard | Chain) -> list[tuple[object, ...]]:
    stages = (tree.stage,) if isinstance(tree, Guard) else tree.stages
    return [(stage.name, stage.open, len(stage.sure or ())) for stage in stages]


def asks_again(tree: Tree | None) -> bool:
    """Whether an abstention somewhere leads to the gate that abstained, which would draw the same question again."""
    if tree is None:
        return False
    if isinstance(tree, Fork):
        return asks_again(tree.left) or asks_again(tree.others)
    return bool(set(own_gates(tree)) & set(gates(tree.after))) or asks_again(tree.after)


# -- The property ------------------------------------------------------------------------------------------------------


def check(tree: Tree) -> None:
    """Nothing unjudged leaves, a question is drawn once for each stage, and the usage is that of all answers."""
    made = Made()
    guard = made.guard(tree)
    for question in QUESTIONS:
        wanted, before = expected(tree, question), made.answers
        message = guard.invoke(question)
        drawn = made.answers - before
        assert message.text == wanted.text
        shown = message.model_dump_json()
        for stage in stages_of(tree):
            for text in stage.said(question).values():
                assert text not in shown or text in wanted.text, f"{text!r} was held back, and is in {shown}"
        assert drawn == wanted.answers
        assert used(message) == drawn.total()
        if not wanted.down:  # after a failure of the transport only the missing answers are drawn
            again = guard.invoke(question)
            assert again.text == wanted.text
            assert (made.answers - before, used(again)) == (drawn, 0)


def stages_of(tree: Tree | None) -> Iterator[Stage]:
    if isinstance(tree, Fork):
        yield from (*stages_of(tree.left), *stages_of(tree.others))
    elif tree is not None:
        yield from (tree.stage,) if isinstance(tree, Guard) else tree.stages
        yield from stages_of(tree.after)


def used(message: AIMessage) -> int:
    """Answers that the usage states: each has one input token."""
    return message.usage_metadata["input_tokens"] if message.usage_metadata else 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees)
def test_any_composition_gives_out_what_a_gate_accepted_and_draws_each_question_once(tree: Tree) -> None:
    if asks_again(tree):
        with pytest.raises(ValidationError, match="would draw the same question again"):
            Made().guard(tree)
    else:
        check(tree)


# -- Negative controls: a fault that the property must notice ----------------------------------------------------------

UNSURE = Stage(0, (False,), open=True)
HIDDEN = Fork(Guard(Stage(1, (False,), open=True)), Guard(Stage(2, (False,), open=True), Guard(UNSURE)))
"""Behind one of a router's guards waits the guard that `UNSURE` has."""
CONTROL = Fork(Guard(UNSURE, Guard(Stage(1, (True, True), open=True))), Chain((Stage(2, (False,), open=True), UNSURE)))


def test_a_gate_that_accepts_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check(CONTROL)
    monkeypatch.setattr(guardrail.decision, "accepts", lambda uncertainty, threshold: True)
    with pytest.raises(AssertionError):
        check(CONTROL)


def test_a_guard_that_forgets_what_it_drew_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardrail.sampling.draws.Draws, "get", lambda *args, **given: None)
    with pytest.raises(AssertionError):
        check(CONTROL)


def test_a_cascade_that_states_the_cost_of_one_stage_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cost, "__add__", lambda self, other: other)
    with pytest.raises(AssertionError):
        check(CONTROL)


def test_metadata_that_quote_what_was_held_back_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardrail.verdict, "_ANSWERS", set())
    with pytest.raises(AssertionError, match="was held back, and is in"):
        check(CONTROL)


# -- What does not compose is refused when it is made ------------------------------------------------------------------


def test_what_does_not_compose_is_refused_in_one_sentence_when_it_is_made() -> None:
    """The first question would otherwise show it, or nothing would."""
    made, plain, items = Made(), Stage(0, (True,), open=True), Stage(1, (True, True), open=True)
    guard = made.guard(Guard(plain))
    model: Any = made.model(plain)
    two = system(made.artifact(plain), made.artifact(plain))
    for refused, words in (
        (
            lambda: system(made.artifact(plain), made.artifact(items)),
            "a stage of a cascade gives a whole answer or none",
        ),
        (lambda: made.guard(Guard(UNSURE, HIDDEN)), "would draw the same question again"),
        (lambda: Router({}), "at least 1 item"),
        (lambda: Router({"left": model}), "GuardedChatModel"),
        (lambda: Router({"left": guard}, key="left"), "key must be a function of messages"),
        (lambda: Guardrail(model=guard, artifact=made.artifact(plain)), "judges its answers itself"),
        (lambda: Cascade([guard, model], artifact=two), "judges its answers itself"),
        (lambda: Cascade([model], artifact=two), "Give one model a stage"),
    ):
        with pytest.raises((ValidationError, UsageError, ArtifactMismatchError), match=words):
            refused()
