"""Collections: the options that say how questions are asked, and the printed result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from langchain_core.language_models import BaseChatModel

from guardrail.bindings import read_bindings
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_estimator, items_measure
from guardrail.judges import default_judge
from guardrail.prompting import PromptWrapping
from guardrail.types import MAX_TOKENS, SamplingPlan
from guardrail.uncertainty import Estimator, Scorer
from guardrail.uncertainty.plan import plan_for
from guardrail.uncertainty.registry import advice
from guardrail.uncertainty.scorer import load_scorer

from ...data.batches import Batches
from ...data.collect import Collected, DrawingEngine, collect_records
from ...data.progress import bar
from ...data.questions import Question, option_labels, slot_names
from ...scoring.scores import parse_estimator, usual_estimators
from .options import ItemsOption
from .terminal import console, print_line

__all__ = ["CALLS_HELP", "CallOptions", "CollectOptions", "PlanOptions", "PromptOptions", "ask"]


CALLS_HELP = (
    "Calls for each question, instead of --n: 1 (answer_word_nll), 1.4 (two stages), 3 (graded_disagreement) or 11 "
    "(semantic_entropy)."
)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of the sampling plan. Each field is a flag of `collect`."""

    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--score",
            "-s",
            help=f"What will be computed; decides what is drawn. May be repeated. {' '.join(advice())}",
        ),
    ] = None
    calls: Annotated[float | None, typer.Option(help=CALLS_HELP)] = None
    scorer: Annotated[
        list[str] | None,
        typer.Option(
            help="Your own score: MODULE:NAME of a @scorer, or an installed name. It rates each answer as it is drawn; "
            "without --score nothing else is drawn. May be repeated."
        ),
    ] = None
    n: Annotated[int, typer.Option(help="Samples for each question.")] = 10
    temperature: Annotated[float, typer.Option(help="Sampling temperature, above 0.")] = 0.7
    top_p: Annotated[float, typer.Option(help="Nucleus mass.")] = 0.9
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = MAX_TOKENS
    primary: Annotated[
        Literal["greedy", "sampled"],
        typer.Option(help="How the primary answer is drawn; sampled with temperature 1 for models that take no other."),
    ] = "greedy"
    cut_off: Annotated[
        Literal["abstain", "measure"],
        typer.Option(help="A longer answer: abstain from it, or measure the part like an answer."),
    ] = "abstain"
    stop: Annotated[list[str] | None, typer.Option(help="String that ends an answer. May be repeated.")] = None
    stop_token_ids: Annotated[
        list[int] | None, typer.Option(help="Token that ends an answer, by its id, for local models. May be repeated.")
    ] = None
    seed: Annotated[int, typer.Option(help="Base seed of the samples.")] = 0
    items: ItemsOption = False
    tools: Annotated[
        Path | None, typer.Option(help="JSON: OpenAI-style tools, or {tools, tool_choice, response_format}.")
    ] = None

    def scorers(self) -> list[Scorer]:
        """The scorers that are named."""
        return [load_scorer(text) for text in self.scorer or ()]

    def plan(self, questions: Sequence[Question]) -> SamplingPlan:
        """Make the plan that the named estimators and scorers need, or the default one."""
        labels, scorers = option_labels(questions), self.scorers()
        bindings = None if self.tools is None else read_bindings(self.tools)
        usual = usual_estimators(self.calls, options=labels is not None, bindings=bindings)
        by_items = [_items_estimator()] if self.items else []
        names = self.estimator or ([] if scorers or by_items else usual)
        return plan_for(
            [
                *(parse_estimator(name, judge=default_judge(bindings)) for name in names),
                *(scorer.estimator for scorer in scorers),
                *by_items,
            ],
            options=labels,
            n=self.n,
            calls=self.calls,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            cut_off=self.cut_off,
            stop=self.stop or (),
            stop_token_ids=self.stop_token_ids or (),
            seed=self.seed,
            bindings=bindings,
            primary=self.primary,
        )


def _items_estimator() -> Estimator:
    """The estimator that says what items read."""
    # The cap does not matter here: it plays no part in what is drawn.
    return items_estimator(items_measure(json_spec(cap=1)))


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Options of the prompt. Each field is a flag of `collect`."""

    system: Annotated[str | None, typer.Option(help="System message.")] = None
    template: Annotated[str, typer.Option(help="Human message; {question} stands for the question.")] = "{question}"
    option_template: Annotated[str, typer.Option(help="One line for each option: {label}, {text}.")] = "{label}) {text}"

    def prompt(self, questions: Sequence[Question]) -> PromptWrapping:
        """Make the prompt, with a slot for each further field of the questions."""
        return PromptWrapping(
            system=self.system,
            template=self.template,
            option_template=self.option_template,
            slots=slot_names(questions),
        )


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of the calls and of their results. Each field is a flag of `collect`."""

    max_concurrency: Annotated[
        int | None, typer.Option(help="Calls in flight at once (default 16, 64 to an endpoint).", min=1)
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(help="Questions a batch, for local weights (default 16).", min=1)
    ] = None
    allow_identical_samples: Annotated[
        bool, typer.Option("--allow-identical-samples", help="Accept that no question has two different samples.")
    ] = False
    probe: Annotated[
        Literal["auto", "off"],
        typer.Option(help="off: no probe first, for an endpoint with few possible answers that is taken for a cache."),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """All options of a collection."""

    drawing: PlanOptions
    prompt: PromptOptions
    calls: CallOptions


def ask(
    questions: Sequence[Question],
    model: BaseChatModel,
    out: Path,
    options: CollectOptions,
    *,
    name: str,
    title: str = "asking",
    batches: Batches | None = None,
    engine: DrawingEngine | None = None,
) -> Collected:
    """Ask every question that is not in the record file yet, with a progress bar, and print the result."""
    plan, prompt = options.drawing.plan(questions), options.prompt.prompt(questions)
    with bar(console, title) as progress:
        collected = collect_records(
            questions,
            model,
            plan,
            out,
            prompt=prompt,
            name=name,
            batch_size=options.calls.batch_size,
            max_concurrency=options.calls.max_concurrency,
            allow_identical_samples=options.calls.allow_identical_samples,
            probe=options.calls.probe,
            batches=batches,
            engine=engine,
            scorer=options.drawing.scorers(),
            progress=progress,
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
            "back, unless you collect with --cut-off measure. Collect into a new file with a larger --max-tokens.",
            "yellow",
        )
