"""The command that makes records: collect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from guardrail.bindings import read_bindings
from guardrail.errors import UsageError
from guardrail.judges import default_judge
from guardrail.prompting import PromptWrapping
from guardrail.types import MAX_TOKENS, SamplingPlan
from guardrail.uncertainty.plan import plan_for

from ..data.batches import Batches
from ..data.collect import Collected, collect_records
from ..data.formats import QUESTION_FORMATS, load_questions
from ..data.progress import bar
from ..data.questions import Question, option_labels, slot_names
from ..data.records import RecordFile, read_records, rewrite_records, write_records
from ..ray_engine import RayCollector
from ..scoring.scores import default_estimator, parse_estimator
from .frame import (
    MODEL_HELP,
    AddressOption,
    app,
    check_engine,
    console,
    finish,
    keep_inputs,
    listed,
    print_line,
    resolve_model,
    say_stalled,
)

__all__ = ["changed_file", "collect", "plan_from", "print_collected"]

CutOff = Literal["abstain", "measure"]


@app.command()
def collect(
    questions: Annotated[
        Path,
        typer.Argument(
            help="Questions: .jsonl or .csv with question[, references, options, group]; or a published data set."
        ),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Record file; resumed if it exists.")] = Path(
        "records.jsonl"
    ),
    estimator: Annotated[
        list[str] | None,
        typer.Option("--estimator", "-e", help="What will be computed; decides what is drawn. May be repeated."),
    ] = None,
    n: Annotated[int, typer.Option(help="Samples for each question.")] = 10,
    temperature: Annotated[float, typer.Option(help="Sampling temperature, above 0.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus mass.")] = 0.9,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = MAX_TOKENS,
    primary: Annotated[
        Literal["greedy", "sampled"],
        typer.Option(help="How the primary answer is drawn; sampled with temperature 1 for models that take no other."),
    ] = "greedy",
    cut_off: Annotated[
        CutOff, typer.Option(help="A longer answer: abstain from it, or measure the part like an answer.")
    ] = "abstain",
    stop: Annotated[list[str] | None, typer.Option(help="String that ends an answer. May be repeated.")] = None,
    stop_token_ids: Annotated[
        list[int] | None, typer.Option(help="Token that ends an answer, by its id, for local models. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Base seed of the samples.")] = 0,
    questions_format: Annotated[
        str | None, typer.Option(help=f"{', '.join(QUESTION_FORMATS)}. Default: recognised.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    template: Annotated[str, typer.Option(help="Human message; {question} stands for the question.")] = "{question}",
    option_template: Annotated[
        str, typer.Option(help="One line for each option: {label}, {text}.")
    ] = "{label}) {text}",
    tools: Annotated[
        Path | None, typer.Option(help="JSON: OpenAI-style tools, or {tools, tool_choice, response_format}.")
    ] = None,
    max_concurrency: Annotated[int | None, typer.Option(help="Calls in flight at once (default 16).", min=1)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Questions a batch, for local weights (default 16).", min=1)
    ] = None,
    engine: Annotated[
        Literal["live", "ray", "batch"],
        typer.Option(
            help="live: calls now; ray: calls now, from several processes, here or on a cluster; batch: the endpoint's "
            "batch service, within 24 hours at a lower price."
        ),
    ] = "live",
    address: AddressOption = None,
    export_only: Annotated[
        bool, typer.Option("--export-only", help="With --engine batch: write the request files and stop.")
    ] = False,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="With --engine batch: results of exported files, e.g. of vllm run-batch. May be repeated."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Ask again where the model failed.")] = False,
    no_references: Annotated[
        bool, typer.Option("--no-references", help="No longer needed: questions without references are asked, too.")
    ] = False,
    allow_identical_samples: Annotated[
        bool, typer.Option("--allow-identical-samples", help="Accept that no question has two different samples.")
    ] = False,
) -> None:
    """Ask the model every question: one primary answer and n samples each.

    Every answer is on disk before the next is waited for. It can be stopped or killed at any time: the same command
    goes on where it stopped, without loss or duplicate.

    Example: [cyan]calibrate collect questions.jsonl --model transformers:./weights --out records.jsonl[/cyan]
    """
    keep_inputs([questions, tools, *(results or ())], [out])
    if engine != "batch" and (export_only or results):
        raise UsageError("--export-only and --results belong to --engine batch; live calls export nothing.")
    check_engine(engine, address)
    batches = None if engine != "batch" else Batches(out, submit=not (export_only or results), results=results or ())
    loaded = load_questions(questions, questions_format, require_references=False)
    for note in loaded.notes:
        print_line(note, "yellow")
    asked = loaded.questions
    plan = plan_from(
        asked,
        estimator or (),
        n=n,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        cut_off=cut_off,
        stop=stop or (),
        stop_token_ids=stop_token_ids or (),
        seed=seed,
        tools=tools,
        primary=primary,
    )
    prompt = PromptWrapping(system=system, template=template, option_template=option_template, slots=slot_names(asked))
    with bar(console, "asking") as progress:
        done = collect_records(
            asked,
            resolve_model(model),
            plan,
            out,
            prompt=prompt,
            name=questions.name,
            batch_size=batch_size,
            max_concurrency=max_concurrency,
            retry_failed=retry_failed,
            allow_identical_samples=allow_identical_samples,
            batches=batches,
            engine=None
            if engine != "ray"
            else RayCollector(
                partial(resolve_model, model), address=address, max_concurrency=max_concurrency, say=say_stalled
            ),
            progress=progress,
        )
    print_collected(done)
    if batches is not None and done.n_resumed + done.n_drawn < done.n_questions:
        print_line(
            f"The requests without replies are in {batches.folder} (NNNN-N.requests.jsonl). Run those that have no "
            "NNNN-N.results.jsonl beside them, e.g. with `vllm run-batch -i IN -o OUT --model NAME`, and give each OUT "
            "with --results to the same command."
        )
        return
    unknown = sum(not question.references for question in asked)
    if unknown and not no_references:
        print_line(
            f"{unknown} of {len(asked)} questions have no reference. People can label their answers: score them, and "
            "let `calibrate sample` draw which."
        )
    finish([out], f"calibrate score {listed([out])}")


def plan_from(
    questions: Sequence[Question],
    estimators: Sequence[str],
    *,
    n: int,
    temperature: float,
    top_p: float,
    max_tokens: int,
    stop: Sequence[str],
    seed: int | None,
    tools: Path | None = None,
    stop_token_ids: Sequence[int] = (),
    cut_off: CutOff = "abstain",
    primary: Literal["greedy", "sampled"] = "greedy",
) -> SamplingPlan:
    """The plan that gives the named estimators (or the default one) what they need."""
    labels = option_labels(questions)
    names = list(estimators) or [default_estimator(options=labels is not None)]
    bindings = None if tools is None else read_bindings(tools)
    return plan_for(
        [parse_estimator(name, judge=default_judge(bindings)) for name in names],
        options=labels,
        n=n,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        cut_off=cut_off,
        stop=stop,
        stop_token_ids=stop_token_ids,
        seed=seed,
        bindings=bindings,
        primary=primary,
    )


def changed_file(source: Path, target: Path, change: Callable[[RecordFile], RecordFile]) -> RecordFile:
    """Change a record file in place, under its lock, or into another file."""
    if source.resolve() == target.resolve():
        return rewrite_records(source, change)
    changed = change(read_records(source))
    write_records(target, changed.header, changed.records)
    return changed


def print_collected(done: Collected) -> None:
    """How a collection ended."""
    resumed = f" ({done.n_resumed} were there already)" if done.n_resumed else ""
    print_line(f"{done.n_resumed + done.n_drawn} of {done.n_questions} questions are on file{resumed}.")
    if done.n_failed:
        print_line(f"{done.n_failed} failed and will abstain. Try them again with --retry-failed.", "yellow")
        for problem, count in sorted(done.problems.items(), key=lambda item: -item[1])[:5]:
            print_line(f"  {count} x {problem}", "yellow")
    if done.n_cut_off:
        print_line(
            f"{done.n_cut_off} primary answers were cut off at the plan's max_tokens. A guard holds such answers back, "
            "unless you collect with --cut-off measure. Collect into a new file with a larger --max-tokens.",
            "yellow",
        )
