"""Collecting: complete, resumable after a kill at any call, and honest about failures."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage

from calibrate.data.collect import PROBE, Pace, collect_records
from calibrate.data.formats.questions import read_questions
from calibrate.data.questions import Question
from calibrate.data.records import read_records
from guardrail.errors import GuardrailError, UsageError
from guardrail.prompting import PromptWrapping, question_text
from guardrail.sampling.probe import ProbeReport
from guardrail.testing import ScriptedChat
from guardrail.types import Cost, OptionScores, Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.plan import plan_for
from tests.calibrate import fakes

PLAN = plan_for([make("semantic_entropy")], n=3)
ROOT = Path(__file__).parents[3]


def questions(size: int) -> list[Question]:
    return [Question(**row) for row in fakes.rows(size)]


def contents(path: Path) -> dict[str, object]:
    """Records by id, without what depends on timing."""
    stored = {}
    for record in read_records(path).records:
        assert record.drawn is not None
        stored[record.id] = record.model_copy(update={"drawn": record.drawn.model_copy(update={"cost": Cost()})})
    return dict(sorted(stored.items()))


def test_asks_every_question_once(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    path = tmp_path / "r.jsonl"
    done = collect_records(
        questions(30), fakes.model(), PLAN, path, progress=lambda done, total, note="": reports.append((done, total))
    )
    assert (done.n_questions, done.n_resumed, done.n_drawn, done.n_failed) == (30, 0, 30, 0)
    stored = {record.id: record for record in read_records(path).records}
    assert set(stored) == {f"p{i}" for i in range(30)}
    for i in range(30):
        script = fakes.script()[f"plant {i}?"]
        drawn = stored[f"p{i}"].drawn
        assert drawn is not None
        assert drawn.primary is not None
        assert drawn.primary.text == script[0]
        assert [sample.text for sample in drawn.samples] == script[1:4]
    assert reports[0] == (0, 30)
    assert reports[-1] == (30, 30)


def test_resume_asks_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    collect_records(questions(20), fakes.model(), PLAN, path)
    before = path.read_bytes()
    lines = before.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]))
    broken = ScriptedChat(
        script={f"plant {i}?": [ValueError("asked again")] for i in range(20)}, name_of_model="scripted"
    )
    again = collect_records(questions(20), fakes.model(), PLAN, path)
    assert (again.n_resumed, again.n_drawn) == (5, 15)
    assert len(contents(path)) == 20
    done = collect_records(questions(20), broken, PLAN, path)
    assert (done.n_resumed, done.n_drawn, done.n_failed) == (20, 0, 0)


@pytest.mark.parametrize(
    "kill_after", [pytest.param(0, marks=pytest.mark.slow), 37, pytest.param(70, marks=pytest.mark.slow)]
)
def test_kill_minus_nine_loses_and_repeats_nothing(tmp_path: Path, kill_after: int) -> None:
    """The model kills its process with SIGKILL in the middle of a call; the same command then goes on."""
    asked_questions = fakes.write_questions(tmp_path / "q.jsonl", size=24)
    path = tmp_path / "r.jsonl"
    command = [
        *(sys.executable, "-m", "calibrate", "collect", str(asked_questions), "--n", "3", "--set", "max_concurrency=5"),
        *("--model", "python:tests.calibrate.fakes:model", "--out", str(path)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(
        command, cwd=ROOT, env={**environment, fakes.KILL_AFTER: str(kill_after)}, capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    left = len(read_records(path).records)
    assert left < 24
    if kill_after == 70:  # 96 calls in all: most records are there
        assert left > 10
    with path.open("ab") as stream:  # what a kill in the middle of a write leaves
        stream.write(b'{"id":"p23","question":"pl')
    resumed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert f"({left} were there already)" in resumed.stdout or left == 0

    whole = tmp_path / "whole.jsonl"
    collect_records(read_questions(asked_questions), fakes.model(), PLAN, whole)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 25
    assert all(line.endswith(b"\n") for line in lines)
    assert contents(path) == contents(whole)


def failing(*bad: int, size: int = 40) -> ScriptedChat:
    script = {
        f"plant {i}?": [ConnectionError("refused")] if i in bad else list(answers)
        for i, answers in enumerate(fakes.script(size).values())
    }
    return fakes.scripted(script)


def test_a_failure_is_recorded_counted_and_retried(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    first = collect_records(questions(40), failing(3, 30), PLAN, path)
    assert first.n_failed == 2
    assert all("refused" in problem for problem in first.problems)
    assert {record.id for record in read_records(path).records if record.failed} == {"p3", "p30"}
    retried = collect_records(questions(40), failing(), PLAN, path)
    assert (retried.n_resumed, retried.n_drawn, retried.n_failed) == (38, 2, 0)
    assert len(contents(path)) == 40


def test_the_first_failure_is_named_at_once_and_each_halves_the_calls_in_flight(tmp_path: Path) -> None:
    """A server with few slots fails the more questions, the more are asked at once: a fit would then be refused."""
    heard: list[str] = []
    collect_records(questions(40), failing(3, 30), PLAN, tmp_path / "r.jsonl", notice=heard.append)
    (line,) = heard
    assert line.startswith(
        "1 question failed: 4 of 4 calls failed, the first with ConnectionError: refused. If the server is too slow "
        "for 16 calls at once: --set max_concurrency=1. Now 8 at once"
    )
    assert line.endswith("The same command asks failed questions again.")

    pace, records = Pace(64, None, heard.append), read_records(tmp_path / "r.jsonl").records
    good, bad = (next(record for record in records if record.failed is failed) for failed in (False, True))
    pace.note([good])
    assert (pace.calls, pace.limit) == (64, None)  # a native sampler keeps its own limit
    seen = []
    for _ in range(7):
        pace.note([bad])
        seen.append(pace.limit)
    assert seen == [32, 16, 8, 4, 2, 1, 1]
    assert len(heard) == 2  # once for each collection
    assert "--set max_concurrency=4. Now 32 at once" in heard[1]


def test_the_time_left_follows_from_the_seconds_of_the_probe() -> None:
    """A server that answers 64 at once as fast as five, or no more than five: 924 calls x 12 s / 64 or / 5."""
    heard: list[str] = []
    report = ProbeReport(cost=Cost(calls=5, seconds=60.0))
    Pace(64, None, heard.append).forecast(report, 924)
    assert heard.pop() == (
        "The probe's 5 short calls took 12.0 s each: 924 calls take about 3 min if the server answers 64 at once, 37 "
        "min if only 5."
    )
    Pace(4, 4, heard.append).forecast(report, 924)  # four at once, in the probe as well: 924 x 12 s / 4 = 46.2 min
    assert heard.pop() == "The probe's 5 short calls took 12.0 s each: 924 calls take about 47 min."
    Pace(4, 4, heard.append).forecast(ProbeReport(), 924)
    assert not heard


def test_answers_that_are_cut_off_are_named_early(tmp_path: Path) -> None:
    """After the second of the first sixteen, while most calls are unpaid; later ones stand in the result alone."""
    short = AIMessage("oa", response_metadata={"finish_reason": "length"})
    script = {f"plant {i}?": list(answers) for i, answers in enumerate(fakes.script(40).values())}
    heard: list[tuple[str, int]] = []
    on_file = 0

    def progress(done: int, total: int, note: str = "") -> None:
        nonlocal on_file
        on_file = done

    def collect(*cut: int) -> int:
        answers: dict[str, Any] = {**script, **{f"plant {i}?": [short] for i in cut}}
        model, path = fakes.scripted(answers), tmp_path / f"{cut[0]}.jsonl"
        found = collect_records(
            questions(40),
            model,
            PLAN,
            path,
            max_concurrency=1,
            progress=progress,
            notice=lambda t: heard.append((t, on_file)),
        )
        return found.n_cut_off

    assert collect(1, 20, 21, 22) == 4
    assert not heard
    assert collect(2, 4, 5, 6) == 4
    ((line, at),) = heard
    assert line.startswith("2 of the first 5 answers are cut off at the plan's max_tokens")
    assert "larger --max-tokens" in line
    assert at == 4


class FilterError(Exception):
    status_code = 400


@pytest.mark.parametrize(
    "said",
    [
        AIMessage("no", additional_kwargs={"refusal": "no"}),
        AIMessage("\ud83d"),
        FilterError("content filter"),
        KeyError("candidates"),
    ],
)
def test_what_depends_on_the_question_is_not_drawn_again(tmp_path: Path, said: Any) -> None:
    """Otherwise calibration would see answers to questions that a guard holds back."""
    path = tmp_path / "r.jsonl"
    script: dict[str, Any] = {f"question {i}?": ["a", "b", "c"] for i in range(4)}
    first = fakes.scripted({**script, "question 2?": ["a", "a", said]})
    asked_questions = [Question(id=f"p{i}", question=f"question {i}?", references=("a",)) for i in range(4)]
    assert collect_records(asked_questions, first, PLAN, path).n_failed == 0
    again = collect_records(asked_questions, fakes.scripted(script), PLAN, path)
    assert (again.n_resumed, again.n_drawn, again.n_failed, sum(again.problems.values())) == (4, 0, 0, 1)


def test_stops_early_when_most_of_the_first_questions_fail(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    model = failing(*range(1, 40))
    with pytest.raises(GuardrailError, match="refused") as caught:
        collect_records(questions(40), model, PLAN, path, max_concurrency=1)
    assert f"{PROBE - 1} of the first {PROBE} questions failed" in str(caught.value)
    assert [record.id for record in read_records(path).records] == ["p0"]
    done = collect_records(questions(40), failing(), PLAN, path)
    assert (done.n_resumed, done.n_drawn, done.n_failed) == (1, 39, 0)


def test_samples_that_never_differ_are_refused_but_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    model = fakes.scripted({f"plant {i}?": ["oak"] for i in range(6)})
    with pytest.raises(GuardrailError, match="none of 6 questions has two different samples"):
        collect_records(questions(6), model, PLAN, path)
    assert len(contents(path)) == 6
    assert collect_records(questions(6), model, PLAN, path, allow_identical_samples=True).n_drawn == 0


def test_a_single_sample_has_to_differ_from_the_answer_somewhere(tmp_path: Path) -> None:
    plan = plan_for([make("primary_disagreement")], n=1)
    same = fakes.scripted({f"plant {i}?": ["oak", "oak"] for i in range(6)})
    with pytest.raises(GuardrailError, match="none of 6 questions has two different samples"):
        collect_records(questions(6), same, plan, tmp_path / "same.jsonl")
    once = fakes.scripted({f"plant {i}?": ["oak", "elm" if i == 5 else "oak"] for i in range(6)})
    assert collect_records(questions(6), once, plan, tmp_path / "once.jsonl").n_drawn == 6


class NativeChat(ScriptedChat):
    """A native sampler that remembers its batches."""

    batches: list[int] = []  # noqa: RUF012  (a pydantic field: copied for each instance)

    def draw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        self.batches.append(len(prompts))
        options = None if plan.options is None else OptionScores(labels=plan.options, loglikelihoods=(-0.1, -2.0))
        answers = tuple(Sample(text=text) for text in ("x", "y", "z"))[: plan.n]
        answer = Sample(text="A", finish_reason="stop")
        return [
            SampleSet(question=question_text(messages), primary=answer, samples=answers, options=options)
            for messages in prompts
        ]

    async def adraw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        return self.draw_samples(prompts, plan, seeds=seeds)


def test_a_native_sampler_is_asked_in_batches(tmp_path: Path) -> None:
    model = NativeChat()
    collect_records(questions(23), model, PLAN, tmp_path / "r.jsonl", batch_size=10)
    assert model.batches == [10, 10, 3]
    assert len(contents(tmp_path / "r.jsonl")) == 23


class Bound(ScriptedChat):
    """Asynchronous clients, such as those of ChatOpenAI, fail on every event loop but their first."""

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if LOOPS.setdefault("first", asyncio.get_running_loop()) is not asyncio.get_running_loop():
            raise RuntimeError("Event loop is closed")
        return self._generate(messages, stop, run_manager, **kwargs)


LOOPS: dict[str, asyncio.AbstractEventLoop] = {}


def test_two_collections_share_an_event_loop_and_a_thread_has_its_own(tmp_path: Path) -> None:
    model, draw = Bound(script=fakes.script(), probability=0.5), partial(collect_records, questions(20))
    for part in ("calibration", "test"):
        assert draw(model, PLAN, tmp_path / part, probe="off").n_failed == 0
    LOOPS.clear()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(draw, model, PLAN, tmp_path / "other", probe="off").result().n_failed == 0


def test_a_forked_process_collects_on_an_event_loop_of_its_own() -> None:
    code = (
        "import os\n"
        "from calibrate.data.collect import runner\n"
        "loop = runner().get_loop()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(runner().get_loop() is loop)\n"
        "assert os.waitpid(child, 0)[1] == 0, 'the child has the loop of its parent'\n"
        "assert runner().get_loop() is loop\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_options_are_rendered_and_checked(tmp_path: Path) -> None:
    asked_questions = [Question(id="a", question="Sea?", references=("A",), options={"A": "yes", "B": "no"})]
    plan = plan_for([make("predictive_entropy")], options=("A", "B"))
    path = tmp_path / "r.jsonl"
    collect_records(asked_questions, NativeChat(), plan, path, prompt=PromptWrapping(template="Q: {question}"))
    (record,) = read_records(path).records
    assert record.drawn is not None
    assert record.drawn.question == "Q: Sea?\nA) yes\nB) no"
    assert record.drawn.options is not None
    with pytest.raises(UsageError, match=r"reads options \('A', 'B'\), but the questions have None"):
        collect_records(questions(2), NativeChat(), plan, tmp_path / "other.jsonl")
    with pytest.raises(UsageError, match="no question to ask"):
        collect_records([], NativeChat(), plan, tmp_path / "other.jsonl")
