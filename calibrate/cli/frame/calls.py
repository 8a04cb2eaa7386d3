"""Learning from decisions about an agent's calls of a tool, or its answers: labelled records, and a gate."""

from __future__ import annotations

import shlex
import sqlite3
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import read_bindings
from guardrail.errors import UsageError, did_you_mean, require
from guardrail.files import sqlite_path
from guardrail.judges import ToolCallJudge
from guardrail.outcome import CERTIFIED
from guardrail.prompting import PromptWrapping
from guardrail.sampling.models import resolve_model
from guardrail.types import Bindings
from guardrail.uncertainty import Estimator, make_estimator
from guardrail.uncertainty.plan import plan_for

from ...agent_steps import ANSWER
from ...correctness import ToolCalls
from ...data.collect import collect_records
from ...data.progress import bar
from ...data.questions import Question
from ...data.records import RecordFile, read_records
from ...ledger import Ledger, counted
from ...pipeline import fit_artifact
from ...report.assessment import Found, verdict_text
from ...reviews import Missing, Respond
from ...reviews.pool import UNDECIDED, settled
from ...reviews.steps import (
    ReviewedStep,
    labelled_answers,
    labelled_records,
    labelled_steps,
    reviews_of_checkpoints,
    reviews_of_store,
    undecided_ids,
    write_part,
)
from ...scoring.names import estimator_key
from ...scoring.scores import Scored, arrays
from .files import keep_inputs, opened_store
from .terminal import console, finish, print_line, table
from .verdicts import print_verdict

__all__ = ["RECORDS", "Drawing", "Fitting", "learn_calls"]

RECORDS = Path("agent.records.jsonl")
"""Where an agent that collects records its samples by default."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How samples are drawn for decisions without recorded samples: the model, and the agent's tools and prompt."""

    model: str
    tools: Path | None
    system: str | None
    n: int


@dataclass(frozen=True, slots=True)
class Fitting:
    """What is fitted and written; None stands for what the artifact in force, or rule certified, says."""

    alpha: float | Literal["smallest"] | None
    out: Path | None
    rule: str | None
    delta: float | None


def learn_calls(
    source: str,
    tool: str,
    *,
    records: Sequence[Path],
    compare: str | None,
    respond: Respond,
    missing: Missing,
    drawing: Drawing | None,
    fitting: Fitting,
) -> None:
    """Label the recorded calls of a tool, or the answers (tool "answer"), by people's decisions, and fit a gate.

    Raises:
        UsageError: No decision can be used, samples are missing, or an option has no use here.
    """
    _refuse_options(tool, records, compare, drawing, fitting)
    out = fitting.out or Path(f"{tool}.json")
    labelled_file, drawn_file = out.with_name(f"{out.stem}.records.jsonl"), out.with_name(f"{tool}.drawn.jsonl")
    read = [*records] or ([RECORDS] if drawing is None and RECORDS.is_file() else [])
    inputs = [*read, None if drawing is None else drawing.tools, sqlite_path(source)]
    keep_inputs(inputs, [fitting.out], derived=labelled_file)
    file = read_records(*read) if read else None
    everything = _reviewed(source, file, read, respond)
    _print_decisions(everything)
    items = _of_tool(tool, everything, file, source, read)
    _say_what_waits(items, missing, source, tool)
    _say_what_ended(items, missing)
    _refuse_others_labels(labelled_file, items)
    arguments = None if compare is None else {tool: [name.strip() for name in compare.split(",")]}
    if tool == ANSWER:
        assert file is not None, "reviews of answers need the records"
        measured = make_estimator("graded_disagreement")
        labelled = labelled_answers(file, items, measured, missing)
    else:
        measured = make_estimator("primary_disagreement", judge=ToolCallJudge(arguments=arguments))
        steps, rule = (
            labelled_steps(items, missing),
            ToolCalls() if arguments is None else ToolCalls(arguments=arguments),
        )
        file = _drawn(steps, drawing, measured, drawn_file) if file is None else file
        labelled = labelled_records(file, steps, rule, measured, undecided_ids(items))
    _print_unmeasured(arrays(labelled.records, estimator_key(measured)))
    labelled_file.parent.mkdir(parents=True, exist_ok=True)
    write_part(labelled, tool, labelled_file)
    if arguments is None and tool != ANSWER:
        _ask_which_arguments_matter(labelled)
    if fitting.alpha is None or fitting.out is None:
        again = shlex.join(["calibrate", "learn", source, "--tool", tool])
        finish([labelled_file], f"{again} --alpha ALPHA --out {shlex.quote(f'{tool}.json')}")
        return
    decided = sqlite_path(source) or read[0]  # a store on a server is read with records
    ledger = Ledger([decided.with_name(f"{decided.stem}.{tool}.jsonl"), labelled_file])
    fitted = _fitted(labelled_file, estimator_key(measured), fitting, ledger)
    fitted.save(fitting.out)
    following = _use(fitted, tool, fitting.out, items, {name for item in everything for name in item.gated}, drawing)
    if fitted.threshold is None:
        following = _ways_to_a_threshold(fitted, tool, labelled_file)
    finish([fitting.out, labelled_file], *following)


def _refuse_options(
    tool: str, records: Sequence[Path], compare: str | None, drawing: Drawing | None, fitting: Fitting
) -> None:
    """Refuse options that exclude each other, or that miss one."""
    if records and drawing is not None:
        raise UsageError("--records has the samples, and --model would draw others. Give one of them.")
    if drawing is not None and drawing.tools is None:
        raise UsageError("--model draws with the agent's tools. Name their file: --tools tools.json")
    if (fitting.alpha is None) != (fitting.out is None):
        raise UsageError("a gate for a tool takes both --alpha and --out; without them the calls are only labelled.")
    if tool == ANSWER and (compare is not None or drawing is not None):
        raise UsageError("--compare and --model are about calls. Answers are learned from what the agent recorded.")


def _of_tool(
    tool: str, items: Sequence[ReviewedStep], file: RecordFile | None, source: str, read: Sequence[Path]
) -> list[ReviewedStep]:
    """The decisions about a tool.

    Raises:
        UsageError: People were asked about other tools only, or the agent has a tool named "answer", whose calls would
            be mixed with its answers.
    """
    offered = () if file is None or file.header.plan.bindings is None else file.header.plan.bindings.tool_names
    if tool == ANSWER and ANSWER in {*offered, *(call.name for item in items for call in item.proposed)}:
        raise UsageError(
            f"the agent has a tool named {ANSWER!r}, which stands for its final answers here. Give the tool another "
            "name and collect again."
        )
    known = {name for item in items for name in item.gated}
    if known and tool not in known:
        there = f"It has: {', '.join(sorted(known))}."
        elsewhere = f" Calls whose samples are in other records than {_listed(read)} need --records." if read else ""
        raise UsageError(f"{source} has no call of {tool!r}. {did_you_mean(tool, known)}{there}{elsewhere}")
    return [item for item in items if tool in item.gated]


def _fitted(labelled: Path, key: str, fitting: Fitting, ledger: Ledger) -> CalibrationArtifact:
    """Fit a gate on labelled records, count the fit, and print what it promises."""
    assert fitting.alpha is not None, "without alpha nothing is fitted"
    artifact = fit_artifact(
        labelled,
        score=key,
        alpha=fitting.alpha,
        rule=fitting.rule or CERTIFIED,
        delta=fitting.delta,
        groups="cluster",
    )
    artifact = counted(artifact, ledger)
    ledger.copy_to(labelled)
    print_verdict(verdict_text(artifact, found=Found(undecided="")))
    return artifact


def _use(
    fitted: CalibrationArtifact,
    tool: str,
    out: Path,
    items: Sequence[ReviewedStep],
    gated: Collection[str],
    drawing: Drawing | None,
) -> list[str]:
    """The use of a gate, in the guard of the framework that the decisions come from."""
    framework = fitted.model.provider.partition(":")[0]
    given = _settings(fitted, tool, out, items, gated)
    if framework == "pydantic-ai":
        return [f"use it: GuardCapability({given}"]
    # The Agents SDK takes LangChain models as well.
    if framework == "openai-agents" or not all(item.in_thread for item in items):
        return [f"use it: GuardedModel(model, {given}"]
    approvals = [f"or in LangChain's own approvals: {{'when': unsure({str(out)!r}, model)}}"] if drawing else []
    return [f"use it: GuardrailMiddleware({given}", *approvals]


def _settings(
    fitted: CalibrationArtifact, tool: str, out: Path, items: Sequence[ReviewedStep], gated: Collection[str]
) -> str:
    """The settings of a guard that name every tool of the agent, up to the closing parenthesis and a comment.

    A guard refuses a tool that it was not told about. Tools that were called and that nobody was asked about are
    exempt, as they were; of the others nobody knows whether they only read, so people go on to decide.
    """
    others = [name for name in (fitted.plan.bindings or Bindings()).tool_names if name != tool]
    calls = [call for item in items for message in item.messages for call in message.get("tool_calls") or ()]
    passed = {call["function"]["name"] for call in calls} - set(gated)
    exempt = [name for name in others if name in passed]
    tools = {} if tool == ANSWER else {tool: str(out)}
    tools |= {name: "collect" for name in others if name not in passed}
    settings = [f"artifact={str(out)!r}"] if tool == ANSWER else []
    settings += [f"tools={tools}"] if tools else []
    settings += [f"exempt={exempt}"] if exempt else []
    return f"{', '.join(settings)}){'  # exempt=[...]: tools that only read' if others else ''}"


def _ways_to_a_threshold(fitted: CalibrationArtifact, tool: str, labelled: Path) -> list[str]:
    more = f"decide about more {'answers' if tool == ANSWER else 'calls'}, and run the same command again"
    if undecided := fitted.data.n_undecided:
        return [more, f"or leave out the {undecided} that nobody decided: --missing leave-out"]
    return [more, f"or try another score: calibrate score {shlex.quote(str(labelled))} --score NAME"]


def _listed(read: Sequence[Path]) -> str:
    return ", ".join(map(str, read))


def _refuse_others_labels(path: Path, items: Sequence[ReviewedStep]) -> None:
    """Refuse to overwrite the labelled records of another store, and to go on with the ledger beside them."""
    if path.is_file() and not {item.id for item in items} & {record.id for record in read_records(path).records}:
        raise UsageError(
            f"{path} holds none of these decisions: it comes from another store, and writing would replace it. "
            "Name another file with --out, or move it away."
        )


def _say_what_ended(items: Sequence[ReviewedStep], missing: Missing) -> None:
    """Print how many messages ended without a decision, and how they are used."""
    ended = sum(item.correct is None and item.action is None and not item.open for item in items)
    if not ended:
        return
    used = "They are left out"
    if missing != "leave-out":
        used = "They count as wrong, which keeps the promise whatever they were. --missing leave-out leaves them out"
    print_line(
        f"{ended} messages ended without a decision (expired, or the user wrote again). {used}, which is valid only if "
        "they are like the decided ones.",
        "yellow",
    )


def _say_what_waits(items: Sequence[ReviewedStep], missing: Missing, source: str, tool: str) -> None:
    """Print how many decisions wait for an open item.

    Raises:
        UsageError: All of them do.
    """
    used = {item.id for item in settled(items, missing)}
    if not used:
        raise UsageError(
            f"{source} holds no decision about {tool!r} that can be used yet.{_oldest_open(items)} Decide about what "
            f"waits; with --missing wait nothing after the oldest open one counts. {UNDECIDED}"
        )
    if left := sum(item.correct is not None and item.id not in used for item in items):
        print_line(
            f"{left} decisions wait for the oldest open one, which counts as wrong until then.{_oldest_open(items)} "
            f"{UNDECIDED}",
            "yellow",
        )


def _drawn(steps: Sequence[Question], drawing: Drawing | None, measured: Estimator, path: Path) -> RecordFile:
    """The samples of steps that nobody recorded, drawn now; a file that was begun is resumed."""
    if drawing is None or drawing.tools is None:
        raise UsageError(
            "these decisions have no samples. Name the record file that the agent wrote (--records), or draw them now: "
            "--model MODEL --tools tools.json --system PROMPT"
        )
    plan = plan_for([measured], n=drawing.n, bindings=read_bindings(drawing.tools))
    with bar(console, "asking") as progress:
        prompt = PromptWrapping(system=drawing.system)
        model = resolve_model(drawing.model)
        collect_records(steps, model, plan, path, prompt=prompt, name=path.name, progress=progress)
    return read_records(path)


def _reviewed(source: str, file: RecordFile | None, read: Sequence[Path], respond: Respond) -> list[ReviewedStep]:
    """Read people's decisions from a checkpointer's file or a review store.

    Raises:
        UsageError: There are none, no records where they are needed, or none of the decisions is about the records.
    """
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
    if others and not mine:
        raise UsageError(
            f"none of the {others} reviews in {source} belongs to a record of {_listed(read)}, the file that was read. "
            "Name the one that the agent wrote its samples to: --records FILE"
        )
    if others:
        print_line(f"{others} reviews belong to none of the records and are left out.", "yellow")
    if file is not None and (unseen := len(file.records) - len(mine)):
        print_line(f"{unseen} recorded messages have no review in {source} and are left out.", "yellow")
    return mine


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
            f"difference counts as another call. Name those that matter: --compare ARGUMENT,ARGUMENT",
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


def _print_decisions(items: Sequence[ReviewedStep]) -> None:
    """Print the number of decisions by tool."""
    rows = []
    for name in sorted({tool for item in items for tool in item.gated}):
        own = [item for item in items if name in item.gated]
        counts = [sum(item.action == action for item in own) for action in ("approve", "edit", "reject", "respond")]
        n_open = sum(item.open for item in own)
        ended = len(undecided_ids(own)) - n_open
        rows.append([name, *map(str, (*counts, n_open, ended, len(own)))])
    columns = ("tool", "approved", "edited", "rejected", "responded", "open", "undecided", "messages")
    console.print(table("Decisions", columns, rows))
