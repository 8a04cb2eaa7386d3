"""Questions and a model in, record file out: resumable, and honest about what failed."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from guardrail.errors import GuardrailError, UsageError
from guardrail.prompting import PromptWrapping, turns_of
from guardrail.sampling.batches import takes_batches
from guardrail.sampling.call_settings import check_settings
from guardrail.sampling.follow_ups import NO_SCORERS, Scoring
from guardrail.sampling.limits import bounded
from guardrail.sampling.native import is_native
from guardrail.sampling.probe import ProbeReport
from guardrail.sampling.prober import needs_probe
from guardrail.sampling.prober import probe as probe_endpoint
from guardrail.sampling.sampler import Sampler
from guardrail.specs import identify
from guardrail.types import SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import Scorer

from .batches import Batches
from .progress import Progress, silent
from .questions import Question, option_labels
from .records import Record, RecordHeader, open_writer

BATCH_SIZE = 16
"""Questions drawn at once by a native sampler."""
CONCURRENCY = 16
"""Calls in flight at once for every other model."""
ENDPOINT_CONCURRENCY = 64
"""Calls in flight at once for an endpoint that draws several questions together."""
PROBE = 16
"""If most of the first questions fail, the rest would too: stop after this many."""
FEW_CUT_OFF = 2
"""Answers cut off among the first `PROBE` at which `max_tokens` is called too small."""
FEW_ANSWERS = (
    "If the model can give only a few answers (multiple choice, say), equal ones are no sign of a cache: "
    "--set probe=off (probe='off' in Python, and for the guard) draws without this check. "
)


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a collection.

    Attributes:
        path: The record file.
        n_questions: Questions in the question file.
        n_resumed: Records that were there before, without those whose server failed, which were asked again.
        n_drawn: Records drawn now.
        problems: Reasons of drawings that gave no whole answer with their counts, over the whole file.
        n_failed: Questions among them that a server, a rate limit or a time-out failed; the next collection asks them
            again.
        n_cut_off: Primary answers that were cut off, over the whole file.
    """

    path: Path
    n_questions: int
    n_resumed: int
    n_drawn: int
    problems: dict[str, int]
    n_cut_off: int = 0
    n_failed: int = 0


def collect_records(
    questions: Sequence[Question],
    model: BaseChatModel,
    plan: SamplingPlan,
    path: str | Path,
    *,
    prompt: PromptWrapping | None = None,
    name: str = "questions",
    batch_size: int | None = None,
    max_concurrency: int | None = None,
    allow_identical_samples: bool = False,
    probe: Literal["auto", "off"] = "auto",
    batches: Batches | None = None,
    engine: DrawingEngine | None = None,
    scorer: Scorer | Sequence[Scorer] = (),
    progress: Progress = silent,
    notice: Callable[[str], object] = str,
) -> Collected:
    """Ask the model every question that the record file has no answer to yet.

    Where a server, a rate limit or a time-out failed before, the question is asked again; where the question itself
    may be the cause (a refusal, an empty answer), it is not, as a guard does not.

    Each answer is on disk before the next is waited for: a kill at any moment loses at most what was in flight, and the
    same call goes on where it stopped. A native sampler is asked in batches; any other model concurrently.

    Args:
        questions: The questions; `read_questions` reads a file.
        model: Any chat model.
        plan: How to draw; `guardrail.uncertainty.plan.plan_for` derives one from estimators.
        path: Record file, created or resumed.
        prompt: How questions become messages. Default: the question alone.
        name: Name of the question set, for the header.
        batch_size: Questions drawn at once by a native sampler (default 16).
        max_concurrency: Calls in flight at once (default 16; a native sampler of an endpoint has its own limit).
        allow_identical_samples: Accept that no question at all has two different samples.
        probe: "off" draws without a probe, for an endpoint that has few possible answers and is taken for a cache.
            Samples that a real cache repeats then look certain.
        batches: Draw by a batch service instead of live calls. The endpoint is probed only where this submits.
        engine: Draws in other processes, e.g. `calibrate.ray_engine.collect_on_ray`.
        scorer: The scorers that the plan names; they rate each answer at once.
        progress: Called after every answer.
        notice: Called at once, and once for each, with what a person may act on while the collection goes on: its
            time by the probe, the first failure of the server, answers that are cut off.

    Raises:
        UsageError: The file is of another collection, is being written by another process, or the questions or the
            model do not fit the plan.
        GuardrailError: A probe showed that the endpoint cannot be trusted (nothing is drawn then); or most of the
            first questions failed, or no question has two different samples (what was drawn is in the file).
    """
    prompt = prompt or PromptWrapping()
    scoring = Scoring.of([scorer] if isinstance(scorer, Scorer) else scorer, prompt)
    drawing = Drawing(questions, model, plan, prompt, scoring)
    _check(drawing, engine)
    header = RecordHeader.of(questions, model=identify(model), plan=plan, prompt=prompt, questions_name=name)
    if probe == "auto" and (batches is None or batches.submits):
        with bounded(max_concurrency):
            report = _probed(model, plan)
        header = header.model_copy(update={"probe": report})
    pace = Pace.of(model, max_concurrency, notice)
    with open_writer(path, header) as (append, existing):
        done = {record.id for record in existing.records}
        left = replace(drawing, questions=[question for question in questions if question.id not in done])
        tally = _CollectTally(len(questions), existing.records, progress, notice)
        if header.probe is not None and left.questions and batches is None:
            pace.forecast(header.probe, len(left.questions) * plan.calls)

        def save(records: Sequence[Record]) -> None:
            append(tally.admit(records))
            tally.refuse_hopeless()

        if batches is not None:
            batches.bind(header.model_dump(mode="json", include={"model", "plan", "prompt", "questions_sha256"}))
            _save_all(left.by_service(batches, tally), save)
        elif engine is not None and left.questions:
            _save_all(engine(left), save)
        elif is_native(model):
            _save_all(left.batches(batch_size or BATCH_SIZE, pace), save)
        else:
            _save_stream(left.stream(pace), save)
    if plan.n and not allow_identical_samples:
        tally.refuse_identical(Path(path))
    return Collected(
        path=Path(path),
        n_questions=len(questions),
        n_resumed=len(done),
        n_drawn=tally.drawn,
        problems=dict(tally.problems),
        n_cut_off=tally.cut_off,
        n_failed=tally.failed,
    )


class _CollectTally:
    """Counts while records are drawn, and stops a collection that cannot succeed."""

    def __init__(
        self, total: int, existing: Sequence[Record], progress: Progress, notice: Callable[[str], object] = str
    ) -> None:
        self.total = total
        self.drawn = 0
        self.problems: Counter[str] = Counter()
        self.cut_off = self.failed = 0
        self.comparable = 0
        self.varied = 0
        self._done = len(existing)
        self._progress = progress
        self._notice = notice
        self._early_cut_off: int | None = 0  # None after the notice
        # Failures among the first answers are held back until it is clear that the model works at all.
        works = any(not record.failed for record in existing)
        self._probe = 0 if works else min(PROBE, total - len(existing))
        self._held: list[Record] = []
        for record in existing:
            self._count(record)
        self.report()

    def admit(self, records: Sequence[Record]) -> list[Record]:
        """Count new records and return those to write now."""
        for record in records:
            self._count(record)
            self._note_cut_off(record)
            self.drawn += 1
        self._done += len(records)
        self.report()
        if not self._probe:
            return list(records)
        self._held += [record for record in records if record.failed]
        good = [record for record in records if not record.failed]
        if self.drawn < self._probe or self.hopeless:
            return good
        self._probe = 0
        return [*self._held, *good]

    def _note_cut_off(self, record: Record) -> None:
        """Say once, while there is time to stop, that the first answers are cut off."""
        if self._early_cut_off is None or self.drawn >= PROBE or not record.cut_off:
            return
        self._early_cut_off += 1
        if self._early_cut_off >= FEW_CUT_OFF:
            self._notice(
                f"{self._early_cut_off} of the first {self.drawn + 1} answers are cut off at the plan's max_tokens. A "
                "guard holds such answers back. To lose no more calls stop here, and collect into a new file with a "
                "larger --max-tokens."
            )
            self._early_cut_off = None

    @property
    def hopeless(self) -> bool:
        """Return whether most of the first questions failed."""
        return 0 < self._probe <= self.drawn and 2 * len(self._held) > self.drawn

    def refuse_hopeless(self) -> None:
        """Stop a collection of which most of the first questions failed."""
        if not self.hopeless:
            return
        failed = len(self._held)
        reason, count = self.problems.most_common(1)[0]
        raise GuardrailError(
            f"{failed} of the first {self.drawn} questions failed, {count} of them with: {reason}\n"
            f"The rest would fail alike, so collecting stopped; the {self.drawn - failed} good answers are kept. Fix "
            "the cause and run the same command again; `calibrate -v collect ...` shows what the server said."
        )

    def refuse_identical(self, path: Path) -> None:
        """Stop where no question at all has two different samples."""
        if self.comparable and not self.varied:
            raise GuardrailError(
                f"none of {self.comparable} questions has two different samples. The model or its server probably "
                "ignores the temperature, or a cache answers: every question would look certain, and a threshold would "
                f"accept everything. The records are in {path}. Fix the sampling and collect into another file; or, if "
                "the model really is that sure, pass --set allow_identical_samples=true."
            )

    def report(self) -> None:
        """Update the progress bar."""
        failed = sum(self.problems.values())
        self._progress(self._done, self.total, f"{failed} failed" if failed else "")

    def report_requests(self, done: int, total: int, note: str = "") -> None:
        """Update the progress bar while a service works."""
        self._progress(self._done, self.total, f"{note}: {done} of {total} requests")

    def _count(self, record: Record) -> None:
        if record.drawn is None:
            return
        self.cut_off += record.cut_off
        self.failed += record.may_be_drawn_again
        if record.drawn.problem is not None:
            self.problems[f"{record.drawn.problem.value}: {record.drawn.problem_detail}"[:200]] += 1
            return
        answers = record.drawn.samples
        # A single sample is compared with the primary answer, as its estimators do.
        if len(answers) == 1 and record.drawn.primary is not None:
            answers = (record.drawn.primary, *answers)
        if len(answers) >= 2:
            self.comparable += 1
            first = answers[0]
            self.varied += any((s.text, s.tool_calls) != (first.text, first.tool_calls) for s in answers)


class Pace:
    """The calls in flight at once; half as many after each failure of the server, which they may have overloaded.

    Attributes:
        calls: Calls in flight at once.
        limit: The limit for a native sampler; None before a failure where nobody named one: it has its own.
    """

    def __init__(self, calls: int, limit: int | None, notice: Callable[[str], object] = str) -> None:
        self.calls = calls
        self.limit = limit
        self._notice = notice
        self._failed = False

    @classmethod
    def of(cls, model: BaseChatModel, asked: int | None, notice: Callable[[str], object] = str) -> Pace:
        """The pace at the start: as asked for, else the usual one of the model."""
        if is_native(model):  # local weights answer a whole batch at once
            return cls((asked or ENDPOINT_CONCURRENCY) if needs_probe(model) else 1, asked, notice)
        return cls(asked or CONCURRENCY, asked, notice)

    def forecast(self, report: ProbeReport, calls: int) -> None:
        """Say how long so many calls take by the time of the probe's, if the server scales, and if it queues.

        Args:
            report: The probe's report; one without a time says nothing.
            calls: The calls that are left.
        """
        made = report.cost.calls
        if not made or not report.cost.seconds:
            return
        seconds = report.cost.seconds / made
        together = min(made, self.calls)
        least, most = (max(1, math.ceil(calls * seconds / at_once / 60)) for at_once in (self.calls, together))
        scaling = ""
        if least < most:
            scaling = f" if the server answers {self.calls} at once, {most:,} min if only {together}"
        self._notice(
            f"The probe's {made} short calls took {seconds:.1f} s each: {calls:,} calls take about {least:,} "
            f"min{scaling}."
        )

    def note(self, records: Sequence[Record]) -> None:
        """Halve the calls in flight if the server failed a question, and say so the first time."""
        failed = [record for record in records if record.may_be_drawn_again]
        if not failed:
            return
        before = self.calls
        may_be_slow = before > 1 and any(
            record.drawn and record.drawn.problem is Unmeasured.MODEL_FAILED for record in failed
        )
        if may_be_slow:
            self.calls = self.limit = before // 2
        if self._failed or failed[0].drawn is None:
            return
        self._failed = True
        way = (
            f" If the server is too slow for {before} calls at once: --set max_concurrency={max(1, before // 16)}. Now "
            f"{self.calls} at once, and half as many after each failure."
            if may_be_slow
            else ""
        )
        self._notice(
            f"{len(failed)} question{'s' * (len(failed) > 1)} failed: {failed[0].drawn.problem_detail[:200]}.{way} The "
            "same command asks failed questions again."
        )


@dataclass(frozen=True, slots=True)
class Drawing:
    """The questions that are left, and how to ask them."""

    questions: Sequence[Question]
    model: BaseChatModel
    plan: SamplingPlan
    prompt: PromptWrapping
    scoring: Scoring = NO_SCORERS

    def asked(self, question: Question) -> Sequence[BaseMessage]:
        """The messages of a question."""
        return question.messages_in(self.prompt)

    def record(self, question: Question, drawn: SampleSet) -> Record:
        """The record of a question and what was drawn for it."""
        messages = self.asked(question)
        if self.prompt.slots:
            drawn = drawn.model_copy(update={"question": self.prompt.question_of(messages)})
        return Record.of(question, drawn, turns=turns_of(messages, self.plan.bindings))

    def batches(self, size: int, pace: Pace) -> Generator[list[Record], None, None]:
        """Batches, one after the other, with as many calls in flight as the pace allows."""
        for start in range(0, len(self.questions), size):
            batch = self.questions[start : start + size]
            messages = [self.asked(question) for question in batch]
            drawn = Sampler(self.model, self.plan, max_concurrency=pace.limit, scoring=self.scoring).draw(messages)
            records = [self.record(question, samples) for question, samples in zip(batch, drawn, strict=True)]
            pace.note(records)
            yield records

    def by_service(self, batches: Batches, tally: _CollectTally) -> Generator[list[Record], None, None]:
        """Records as the batches of a service are done.

        Raises:
            UsageError: The model has no batch service.
        """
        if not takes_batches(self.model):
            raise UsageError(
                f"{type(self.model).__name__} has no batch service. Name an endpoint with one "
                "(openai-compatible:MODEL@BASE_URL), or collect live."
            )
        by_id = {question.id: question for question in self.questions}
        prompts = {name: self.asked(question) for name, question in by_id.items()}
        for drawn in batches.sample_sets(prompts, self.model, self.plan, progress=tally.report_requests):
            yield [self.record(by_id[name], samples) for name, samples in drawn]

    async def stream(self, pace: Pace) -> AsyncIterator[Record]:
        """Records as they complete, with as many calls in flight as the pace allows; none waits for the slowest."""
        left = iter(self.questions)
        running: set[asyncio.Task[Record]] = set()
        try:
            while True:
                calls_each = min(self.plan.n + 1, pace.calls)
                free = max(1, pace.calls // calls_each) - len(running)
                for question in islice(left, max(0, free)):
                    running.add(asyncio.create_task(self.one(question, calls_each)))
                if not running:
                    return
                finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                # Good answers first. Every error is read: asyncio prints those that nobody reads.
                for task in sorted(finished, key=lambda task: task.exception() is not None):
                    pace.note([task.result()])
                    yield task.result()
        finally:
            for task in running:
                task.cancel()

    async def one(self, question: Question, calls: int) -> Record:
        """The record of one question, with at most ``calls`` calls in flight."""
        sampler = Sampler(self.model, self.plan, max_concurrency=calls, scoring=self.scoring)
        return self.record(question, (await sampler.adraw([self.asked(question)]))[0])


DrawingEngine = Callable[[Drawing], Generator[list[Record], None, None]]
"""Draws in other processes: the records of questions, some at a time, as they are done."""


@cache
def runner() -> asyncio.Runner:
    """The event loop of all collections of this process: async clients have to stay on the one they first ran on."""
    made = asyncio.Runner()
    atexit.register(made.close)
    return made


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=runner.cache_clear)


def _save_all(batches: Generator[list[Record], None, None], save: Callable[[Sequence[Record]], None]) -> None:
    with closing(batches):
        for records in batches:
            save(records)


def _save_stream(stream: AsyncIterator[Record], save: Callable[[Sequence[Record]], None]) -> None:
    async def saved() -> None:
        async for record in stream:
            save([record])

    in_main = threading.current_thread() is threading.main_thread()
    run = runner().run if in_main else asyncio.run  # a runner serves one thread
    run(saved())


def _probed(model: BaseChatModel, plan: SamplingPlan) -> ProbeReport | None:
    """Probe the endpoint; refuse it if it cannot be trusted, since its answers are useless."""
    report, _ = probe_endpoint(model, plan)
    problem = None if report is None else report.problem(plan)
    if problem is not None:
        bare = problem[0] is Unmeasured.NO_LOGPROBS
        way_out = "Use a score without them (--score graded_disagreement). " if bare else ""
        if report is not None and (report.cached or report.degenerate):
            way_out = FEW_ANSWERS
        reply = f" The server says: {report.said}." if report is not None and report.said else ""
        raise GuardrailError(
            f"this endpoint cannot be calibrated ({problem[0].value}): {problem[1]}.{reply} Nothing was "
            f"collected. {way_out}`guardrail doctor --model MODEL` shows what it honours."
        )
    return report


def _check(drawing: Drawing, engine: DrawingEngine | None) -> None:
    """Refuse questions, settings and prompts that do not fit each other, before the model is called."""
    if engine is not None and drawing.scoring.scorers:
        raise UsageError("an engine cannot ask scorers. Collect without, and ask them later: calibrate score --scorer.")
    questions, plan, prompt = drawing.questions, drawing.plan, drawing.prompt
    if not questions:
        raise UsageError("no question to ask. Give at least one.")
    repeated = next((name for name, count in Counter(question.id for question in questions).items() if count > 1), None)
    if repeated is not None:
        raise UsageError(f"two questions have the id {repeated!r}. Give each a distinct id.")
    labels = option_labels(questions)
    if plan.options is not None and labels != plan.options:
        raise UsageError(
            f"the plan reads options {plan.options}, but the questions have {labels}. "
            "Make the plan with the labels of the questions, or use a score for open answers."
        )
    with_tools = next((question.id for question in questions if question.tools is not None), None)
    if with_tools is not None:
        raise UsageError(
            f"question {with_tools!r} has its own tools, and all are asked with the plan's. Leave them out."
        )
    check_settings(drawing.model, plan)
    drawing.scoring.check(plan)
    for question in questions:
        if prompt.slots or question.messages:
            prompt.check(drawing.asked(question))
