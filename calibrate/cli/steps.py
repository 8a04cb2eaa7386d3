"""The command that makes labelled steps of what people decided about an agent's calls: steps."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from guardrail.bindings import read_bindings
from guardrail.errors import UsageError, require
from guardrail.files import sqlite_path
from guardrail.judges import ToolCallJudge
from guardrail.models import resolve_model
from guardrail.uncertainty.plan import plan_for

from ..agent_steps import collect_steps, write_steps
from ..correctness import make_rule
from ..data.progress import bar
from ..data.records import RecordFile, read_records
from ..reviews import Respond
from ..reviews.pool import UNDECIDED
from ..reviews.steps import (
    ReviewedStep,
    labelled_records,
    labelled_steps,
    reviews_of_checkpoints,
    reviews_of_store,
    write_parts,
)
from ..scoring.names import estimator_key
from ..scoring.scores import Scored, arrays, parse_estimator
from .frame.app import app
from .frame.files import keep_inputs, opened_store
from .frame.next_commands import listed, next_step
from .frame.options import MODEL_HELP, MissingOption, RespondOption
from .frame.terminal import console, finish, print_line, table

__all__ = ["steps"]


@app.command()
def steps(
    source: Annotated[
        str,
        typer.Argument(
            help="Review store (its file or URL), or the SQLite file of a LangGraph checkpointer: interrupts of "
            "GuardrailMiddleware and of LangChain's HumanInTheLoopMiddleware."
        ),
    ],
    records: Annotated[
        list[Path] | None,
        typer.Option(help='Record file that tools="collect" wrote. May be repeated. The model is not called then.'),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Step file to write.")] = Path("steps.jsonl"),
    estimator: Annotated[
        str, typer.Option("--estimator", "-e", help="What the steps are scored with.")
    ] = "primary_disagreement",
    rule: Annotated[
        str, typer.Option(help='When a call is the reference, e.g. "tool_call(numbers=true)".')
    ] = "tool_call",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            help="Arguments that matter, TOOL=ARGUMENT,ARGUMENT; calls that differ in others are the same call. May be "
            "repeated. Default: all arguments."
        ),
    ] = None,
    respond: RespondOption = "wrong",
    missing: MissingOption = "wait",
    model: Annotated[
        str | None, typer.Option("--model", "-m", help=f"Without --records: draw the samples from it. {MODEL_HELP}")
    ] = None,
    tools: Annotated[Path | None, typer.Option(help="With --model: the agent's tools as JSON, see `collect`.")] = None,
    system: Annotated[str | None, typer.Option(help="With --model: the agent's system prompt.")] = None,
    n: Annotated[int, typer.Option(help="With --model: samples for each step.")] = 10,
) -> None:
    """Make labelled steps of what people decided about an agent's tool calls.

    Approved: the call was right. Edited: the edit was. Rejected: the call was wrong. The step file serves any later
    collection. With the samples that a collecting agent recorded (--records), or drawn now (--model), there is also a
    scored and labelled record file for each tool, ready for `fit`.

    Example: calibrate steps reviews.db --records agent.records.jsonl --out steps.jsonl

    Example: calibrate steps checkpoints.sqlite --model python:mybank:chat --tools tools.json
    """
    if records and model is not None:
        raise UsageError("--records has the samples, and --model would draw others. Give one of them.")
    if model is not None and tools is None:
        raise UsageError("--model draws with the agent's tools. Name their file: --tools tools.json")
    drawn_file = out.with_name(f"{out.name.split('.')[0]}.records.jsonl")
    keep_inputs([*(records or ()), tools, sqlite_path(source)], [out, *([] if model is None else [drawn_file])])
    arguments = _arguments(compare or ())
    measured = parse_estimator(estimator, judge=ToolCallJudge(arguments=arguments))
    compared = make_rule(rule) if arguments is None else make_rule(rule, arguments=arguments)
    file = read_records(*records) if records else None
    items = _reviewed(source, file, respond)
    labelled_items = labelled_steps(items, missing)
    _print_decisions(items)
    if not labelled_items:
        raise UsageError(
            f"{source} holds no decision that can be used yet.{_oldest_open(items)} Decide about the calls that wait; "
            f"with --missing wait nothing after the oldest open one counts. {UNDECIDED}"
        )
    used = {step.id for step in labelled_items}
    if left := sum(item.correct is not None and item.id not in used for item in items):
        print_line(
            f"{left} decisions wait for the oldest open one, which counts as wrong until then.{_oldest_open(items)} "
            f"{UNDECIDED}",
            "yellow",
        )
    labelled = None
    if file is not None:  # first, so that a refusal leaves no file
        labelled = labelled_records(file, labelled_items, compared, measured)
        _print_unmeasured(arrays(labelled.records, estimator_key(measured)))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_steps(out, labelled_items)
    if model is not None and tools is not None:
        plan = plan_for([measured], n=n, bindings=read_bindings(tools))
        with bar(console, "asking") as progress:
            collect_steps(
                labelled_items, resolve_model(model), plan, drawn_file, system=system, name=out.name, progress=progress
            )
        labelled = labelled_records(read_records(drawn_file), labelled_items, compared, measured)
    if labelled is None:
        finish(
            [out],
            f"calibrate steps {listed([source])} --model MODEL --tools tools.json --system PROMPT "
            f"--out {listed([out])}",
        )
        return
    parts = write_parts(labelled, {name for item in items for name in item.gated}, out)
    first = next(iter(parts.values()), None)
    if first is None:
        raise UsageError(f"no message of {labelled.path} calls a tool that people decided about.")
    if arguments is None:
        _ask_which_arguments_matter(labelled)
    header = read_records(first).header
    finish([out, *parts.values()], f"{next_step(header, first)} --rule certified --cluster-by-group")


def _reviewed(source: str, file: RecordFile | None, respond: Respond) -> list[ReviewedStep]:
    """Read people's decisions from a checkpointer's file or a review store."""
    path = sqlite_path(source)
    if path is not None and path.is_file() and _has_checkpoints(path):
        require("langgraph.checkpoint.sqlite", extra="agents")
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(path)) as saver:
            reviewed = reviews_of_checkpoints(saver, respond=respond)
        recorded = None if file is None else {record.id for record in file.records}
        mine = [item for item in reviewed if recorded is None or item.id in recorded]
        others = len(reviewed) - len(mine)
    elif file is None:
        raise UsageError(
            "a review store has the calls without their conversations. Give --records, the file that the agent wrote."
        )
    else:
        with opened_store(source) as store:
            mine, others = reviews_of_store(store, {record.id: record for record in file.records}, respond=respond)
    if others:
        print_line(f"{others} reviews belong to none of the records and are left out.", "yellow")
    if file is not None and (unseen := len(file.records) - len(mine)):
        print_line(f"{unseen} recorded messages have no review in {source} and are left out.", "yellow")
    return mine


def _arguments(compare: Sequence[str]) -> dict[str, list[str]] | None:
    """Arguments by tool as the user wrote them; None for all of them."""
    arguments = {}
    for text in compare:
        tool, _, names = text.partition("=")
        if not tool or not names:
            raise UsageError(f"--compare must be TOOL=ARGUMENT,ARGUMENT, got {text!r}.")
        arguments[tool] = [name.strip() for name in names.split(",")]
    return arguments or None


def _ask_which_arguments_matter(file: RecordFile) -> None:
    """Print in how many messages the samples of a tool differ from the primary, by argument."""
    differing: Counter[tuple[str, str]] = Counter()
    for record in file.records:
        if record.drawn is None or record.drawn.primary is None:
            continue
        primary = {call.name: call.arguments for call in record.drawn.primary.tool_calls}
        calls = [call for sample in record.drawn.samples for call in sample.tool_calls if call.name in primary]
        differing.update(
            {
                (call.name, name)
                for call in calls
                for name in call.arguments.keys() | primary[call.name].keys()
                if call.arguments.get(name) != primary[call.name].get(name)
            }
        )
    for tool in sorted({tool for tool, _ in differing}):
        counts = ", ".join(f"{name} ({n})" for (other, name), n in differing.most_common() if other == tool)
        print_line(
            f"Which arguments of {tool} matter? Samples differ in {counts} of {len(file.records)} messages, and every "
            f"difference counts as another call. Name those that matter: --compare {tool}=ARGUMENT,ARGUMENT",
            "yellow",
        )


def _has_checkpoints(path: Path) -> bool:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
        try:
            rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        except sqlite3.DatabaseError as error:
            raise UsageError(f"{path} is neither a review store nor a checkpointer's file ({error}).") from error
    return {"checkpoints", "writes"} <= {row[0] for row in rows}


def _oldest_open(items: Sequence[ReviewedStep]) -> str:
    """A sentence that names the oldest open item and its holder, with a space before it; empty if none is open."""
    name = next((item.name for item in items if item.open), "")
    return f" The oldest open one is {name}." if name else ""


def _print_unmeasured(scored: Scored) -> None:
    if scored.n_unmeasured:
        print_line(
            f"{scored.n_unmeasured} of {scored.n_records} messages could not be measured, so nothing is learned from "
            "their decisions. The verdict that held each of them says why.",
            "yellow",
        )


def _print_decisions(items: list[ReviewedStep]) -> None:
    """Print the number of decisions by tool."""
    rows = []
    for name in sorted({tool for item in items for tool in item.gated}):
        own = [item for item in items if name in item.gated]
        counts = [sum(item.action == action for item in own) for action in ("approve", "edit", "reject", "respond")]
        rows.append([name, *map(str, counts), str(sum(item.open for item in own)), str(len(own))])
    columns = ("tool", "approved", "edited", "rejected", "responded", "open", "messages")
    console.print(table("Decisions", columns, rows))
