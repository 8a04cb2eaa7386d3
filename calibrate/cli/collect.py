"""The command that makes records: collect."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from guardrail.errors import UsageError
from guardrail.models import resolve_model

from ..data.batches import Batches
from ..data.collect import DrawingEngine
from ..data.formats import QUESTION_FORMATS, load_questions, parse_map
from ..ray_engine import collect_on_ray
from ..scope import POOL_FACTOR
from .frame.app import app
from .frame.collecting import CallOptions, CollectOptions, PlanOptions, PromptOptions, ask
from .frame.files import keep_inputs
from .frame.next_commands import listed
from .frame.options import MODEL_HELP, AddressOption, check_engine, with_flags
from .frame.terminal import finish, print_line

__all__ = ["collect"]


@dataclass(frozen=True, slots=True)
class _EngineOptions:
    """Options of the engine: calls from this process, from several, or by a batch service."""

    engine: Annotated[
        Literal["live", "ray", "batch"],
        typer.Option(
            help="live: calls now; ray: calls now, from the processes of a Ray cluster; batch: the endpoint's "
            "batch service, within 24 hours at a lower price."
        ),
    ] = "live"
    address: AddressOption = None
    export_only: Annotated[
        bool, typer.Option("--export-only", help="With --engine batch: write the request files and stop.")
    ] = False
    results: Annotated[
        list[Path] | None,
        typer.Option(help="With --engine batch: results of exported files, e.g. of vllm run-batch. May be repeated."),
    ] = None

    def check(self) -> None:
        """Refuse options without the engine that they belong to."""
        if self.engine != "batch" and (self.export_only or self.results):
            raise UsageError("--export-only and --results belong to --engine batch; live calls export nothing.")
        check_engine(self.engine, self.address)

    def batches(self, out: Path) -> Batches | None:
        """The batch service's files next to the record file; None for another engine."""
        if self.engine != "batch":
            return None
        return Batches(out, submit=not (self.export_only or self.results), results=self.results or ())

    def collector(self, model: str, calls: CallOptions) -> DrawingEngine | None:
        """What draws in other processes; None for another engine."""
        if self.engine != "ray":
            return None
        # Each process loads the model itself: a chat model cannot be sent to another one.
        load, most = partial(resolve_model, model), calls.max_concurrency or 0
        address = self.address or "auto"
        return partial(collect_on_ray, model=load, address=address, calls=most, size=calls.batch_size or 0)


@app.command()
@with_flags
def collect(
    questions: Annotated[
        Path,
        typer.Argument(
            help="Questions: .jsonl or .csv with question[, references, options, group]; or a published data set."
        ),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Record file; resumed if it exists.")] = Path(
        "records.jsonl"
    ),
    drawing: PlanOptions,
    questions_format: Annotated[
        str | None, typer.Option(help=f"{', '.join(QUESTION_FORMATS)}. Default: recognised.")
    ] = None,
    map: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="FIELD=COLUMN or FIELD=PATH of questions in another form: question, references, id, ..."
        ),
    ] = None,
    prompt: PromptOptions,
    calls: CallOptions,
    engine: _EngineOptions,
    no_references: Annotated[
        bool, typer.Option("--no-references", help="No longer needed: questions without references are asked, too.")
    ] = False,
) -> None:
    """Ask the model every question: one primary answer and n samples each.

    Every answer is on disk before the next is waited for. It can be stopped or killed at any time: the same command
    goes on where it stopped, without loss or duplicate.

    Example: calibrate collect questions.jsonl --model transformers:./weights --out records.jsonl
    """
    keep_inputs([questions, drawing.tools, *(engine.results or ())], [out])
    engine.check()
    columns = parse_map(map) if map else None
    loaded = load_questions(questions, questions_format, columns=columns, require_references=False)
    batches = engine.batches(out)
    collected = ask(
        loaded.questions,
        resolve_model(model),
        out,
        CollectOptions(drawing, prompt, calls),
        name=questions.name,
        batches=batches,
        engine=engine.collector(model, calls),
    )
    if batches is not None and collected.n_resumed + collected.n_drawn < collected.n_questions:
        print_line(
            f"The requests without replies are in {batches.folder} (NNNN-N.requests.jsonl). Run those that have no "
            "NNNN-N.results.jsonl beside them, e.g. with `vllm run-batch -i IN -o OUT --model NAME`, and give each OUT "
            "with --results to the same command."
        )
        return
    unknown = sum(not question.references for question in loaded.questions)
    if unknown and not no_references:
        without = f"{unknown} of {len(loaded.questions)} questions have no reference. People can label their answers"
        print_line(
            f"{without}: score them, and let `calibrate sample` draw which. To label 300 from the lower half of the "
            f"scores takes {POOL_FACTOR * 300 * 2} questions."
            if not drawing.items
            else f"{without} item by item: score them, and `calibrate label --cut` asks about the certain items only."
        )
    by_items = " --items" if drawing.items else ""
    finish([out], f"calibrate score {listed([out])}{by_items}")
