"""The command that makes records: collect."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from guardrail.errors import UsageError
from guardrail.sampling.models import resolve_model

from ..data.batches import Batches
from ..data.collect import DrawingEngine
from ..data.formats.field_map import parse_map
from ..data.formats.questions import read_questions
from ..ray_engine import collect_on_ray
from ..scope import POOL_FACTOR
from .frame.app import command
from .frame.collecting import ask
from .frame.files import keep_inputs
from .frame.flags import load_settings, with_flags
from .frame.next_commands import listed
from .frame.options import FILES, MODEL_HELP, SetOption, flags_under
from .frame.settings import CollectSettings
from .frame.terminal import finish, print_line

files_flag = flags_under(FILES)
Engine = Literal["live", "ray", "batch", "export"]


@command("collect", "calibrating.md#collect")
@with_flags(CollectSettings)
def collect(
    *,
    questions: Annotated[
        Path, typer.Argument(help="Questions: .jsonl or .csv with question[, references, options, group].")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP, metavar="MODEL")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Record file; resumed if it exists.")] = Path(
        "records.jsonl"
    ),
    assigned: SetOption = None,
    map: Annotated[list[str] | None, files_flag("--map", help="FIELD=COLUMN of questions.")] = None,
    engine: Annotated[
        Engine,
        files_flag(
            help="live: calls now; ray: from the processes of a cluster; batch: the endpoint's batch service; export: "
            "write its request files and stop.",
            metavar="ENGINE",
        ),
    ] = "live",
    results: Annotated[list[Path] | None, files_flag(help="Results of exported requests.")] = None,
    given: dict[str, Any],
) -> None:
    """Ask the model every question: one primary answer and n samples each.

    Example: calibrate collect questions.jsonl --model transformers:./weights
    Example: calibrate collect q.jsonl -m openai:gpt-4o-mini -s semantic_entropy

    Every answer is on disk before the next is waited for: the same command continues a collection that was stopped.
    """
    settings = load_settings(CollectSettings, None, given, assigned or ())
    keep_inputs([questions, settings.tools, *(results or ())], [out])
    if engine in ("live", "ray") and results:
        raise UsageError("--results belong to --engine batch. Add that, too.")
    columns = parse_map(map) if map else None
    loaded = read_questions(questions, settings.questions_format, columns=columns, require_references=False)
    batches = None
    if engine in ("batch", "export"):
        batches = Batches(out, submit=engine == "batch" and not results, results=results or ())
    collected = ask(
        loaded,
        resolve_model(model),
        out,
        settings,
        name=questions.name,
        batches=batches,
        engine=_on_ray(model, settings) if engine == "ray" else None,
    )
    if batches is not None and collected.n_resumed + collected.n_drawn < collected.n_questions:
        print_line(
            f"The requests without replies are in {batches.folder} (NNNN.requests.jsonl). Run those that have no "
            "NNNN.results.jsonl beside them, e.g. with `vllm run-batch -i IN -o OUT --model NAME`, and give each OUT "
            "with --results to the same command."
        )
        return
    unknown = sum(not question.references for question in loaded)
    if unknown:
        without = f"{unknown} of {len(loaded)} questions have no reference. People can label their answers"
        if settings.items:
            print_line(f"{without} item by item: score them, then `calibrate label --items --interactive`.")
        else:
            print_line(
                f"{without}: score them, and let `calibrate sample` draw which. To label 300 from the lower half of "
                f"the scores takes {POOL_FACTOR * 300 * 2} questions."
            )
    by_items = " --items" if settings.items else ""
    finish([out], f"calibrate score {listed([out])}{by_items}")


def _on_ray(model: str, settings: CollectSettings) -> DrawingEngine:
    """What draws in the processes of a cluster; each of them loads the model, which cannot be sent to another one."""
    return partial(
        collect_on_ray,
        model=partial(resolve_model, model),
        address=os.environ.get("RAY_ADDRESS", "auto"),
        calls=settings.max_concurrency or 0,
        size=settings.batch_size or 0,
    )
