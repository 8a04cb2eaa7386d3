"""A collection with a progress bar, and its printed result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from langchain_core.language_models import BaseChatModel

from ...data.batches import Batches
from ...data.collect import Collected, DrawingEngine, collect_records
from ...data.progress import bar
from ...data.questions import Question
from .settings import CollectSettings
from .terminal import console, print_line


def ask(
    questions: Sequence[Question],
    model: BaseChatModel,
    out: Path,
    settings: CollectSettings,
    *,
    name: str,
    title: str = "asking",
    batches: Batches | None = None,
    engine: DrawingEngine | None = None,
) -> Collected:
    """Ask every question that is not in the record file yet, with a progress bar, and print the result."""
    with bar(console, title) as progress:
        collected = collect_records(
            questions,
            model,
            settings.plan(questions),
            out,
            prompt=settings.prompt(questions),
            name=name,
            batch_size=settings.batch_size,
            max_concurrency=settings.max_concurrency,
            allow_identical_samples=settings.allow_identical_samples,
            probe=settings.probe,
            batches=batches,
            engine=engine,
            scorer=settings.scorers(),
            progress=progress,
            notice=print_line,
        )
    _print_collected(collected)
    return collected


def _print_collected(collected: Collected) -> None:
    """Print how many questions are on file, and what failed or was cut off."""
    resumed = f" ({collected.n_resumed} were there already)" if collected.n_resumed else ""
    on_file = collected.n_resumed + collected.n_drawn - collected.n_failed
    print_line(f"{on_file} of {collected.n_questions} questions are on file{resumed}.")
    if collected.n_failed:
        print_line(
            f"{collected.n_failed} failed at the server, a rate limit or a time-out. The same command asks only these "
            "again.",
            "yellow",
        )
    if (held := sum(collected.problems.values()) - collected.n_failed) > 0:
        print_line(f"{held} have no whole answer (a refusal, an empty or rejected one) and will abstain.", "yellow")
    if collected.problems:
        for problem, count in sorted(collected.problems.items(), key=lambda item: -item[1])[:5]:
            print_line(f"  {count} x {problem}", "yellow")
    if collected.n_cut_off:
        print_line(
            f"{collected.n_cut_off} primary answers were cut off at the plan's max_tokens. A guard holds such answers "
            "back, unless you collect with --set cut_off=measure. Collect into a new file with a larger --max-tokens.",
            "yellow",
        )
