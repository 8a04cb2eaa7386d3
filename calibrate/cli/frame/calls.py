"""Learning from decisions about an agent's calls of a tool, or its answers: labelled records, and a gate."""

from __future__ import annotations

import shlex
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from guardrail.bindings import read_bindings
from guardrail.errors import UsageError, did_you_mean, require
from guardrail.files import sqlite_path
from guardrail.judges import ToolCallJudge
from guardrail.outcome import CERTIFIED
from guardrail.prompting import PromptWrapping
from guardrail.sampling.models import resolve_model
from guardrail.types import Frozen
from guardrail.uncertainty import Estimator, make_estimator
from guardrail.uncertainty.plan import plan_for

from ...agent_steps import ANSWER
from ...correctness import ToolCalls
from ...data.collect import collect_records
from ...data.progress import bar
from ...data.questions import Question, asked_text
from ...data.records import RecordFile, read_records, write_records
from ...ledger import Ledger, counted
from ...pipeline import fit_artifact
from ...report.assessment import Found, verdict_text
from ...reviews import Missing, Reviewed
from ...reviews.pool import usable, waiting
from ...reviews.steps import ReviewedStep, labelled, reviews_of_checkpoints, reviews_of_store
from ...scoring.names import estimator_key
from ...scoring.scores import arrays
from .files import keep_inputs, opened_store
from .flags import flag
from .options import ANSWERS, CALLS, PROMISE
from .terminal import console, finish, print_line, table
from .verdicts import print_verdict

RECORDS = Path("agent.records.jsonl")
"""Where an agent that collects records its samples by default."""
UNDECIDED = Found(undecided="--missing leave-out leaves them out, which is valid only if they are like decided ones.")
"""What a fit says beside the number of undecided reviews."""


class Learning(Frozen):
    """Settings of `learn`. Every field but the first is a flag of it."""

    source: str
    out: Path | None = flag("", "New artifact; without it nothing is fitted.", short="-o")
    missing: Missing = flag("", "Items without a decision: wait, wrong or leave-out.", "wait", metavar="HOW")
    artifact: Path | None = flag(ANSWERS, "Artifact in force; never changed.")
    earlier: tuple[Path, ...] = flag(ANSWERS, "Earlier artifact to pool.", (), metavar="FILE")
    test_fraction: float = flag(ANSWERS, "Share to test both artifacts on.", 0.3)
    since: datetime | None = flag(ANSWERS, "Leave out what came before (UTC).", metavar="TIME")
    monitor: str | None = flag(ANSWERS, "Feed the risk monitor of this name.", metavar="NAME")
    tool: str | None = flag(CALLS, "Tool to make a gate for; or answer.", metavar="NAME")
    records: tuple[Path, ...] = flag(CALLS, f"What the agent wrote ({RECORDS}).", (), metavar="FILE")
    compare: str | None = flag(CALLS, "Arguments that matter.", metavar="NAME,NAME")
    model: str | None = flag(CALLS, "Draws missing samples.", short="-m", metavar="MODEL")
    tools: Path | None = flag(CALLS, "With --model: the tools, as JSON.", metavar="FILE")
    system: str | None = flag(CALLS, "With --model: system prompt.")
    alpha: float | Literal["smallest"] | None = flag(
        PROMISE, "A share, or smallest. Default: of the artifact.", short="-a", metavar="SHARE"
    )
    rule: str | None = flag(PROMISE, "Default: of the artifact, or certified.")

    @property
    def seconds(self) -> float | None:
        """``since`` in seconds since 1970; a time without a zone is in UTC."""
        if self.since is None:
            return None
        since = self.since if self.since.tzinfo else self.since.replace(tzinfo=UTC)
        return since.timestamp()


def print_decisions(title: str, rows: Mapping[str, Sequence[Reviewed]]) -> None:
    """Print how many of the reviews have each decision, a line for each kind of them."""
    lines = []
    for name, reviews in rows.items():
        counts = [sum(review.action == action for review in reviews) for action in ("approve", "edit", "reject")]
        n_open = sum(review.open for review in reviews)
        lines.append([name, *map(str, (*counts, n_open, len(reviews) - sum(counts) - n_open, len(reviews)))])
    columns = ("", "approved", "edited", "rejected", "open", "undecided", "all")
    console.print(table(title, columns, lines))


def print_waiting(rows: Sequence[Reviewed], missing: Missing, what: str) -> None:
    """Print how many decisions wait for the oldest open review, if any do."""
    sentence = waiting(rows, missing, what)
    if sentence is not None:
        print_line(sentence, "yellow")


def learn_calls(asked: Learning, tool: str) -> None:
    """Label the recorded calls of a tool, or the answers (tool "answer"), by people's decisions, and fit a gate."""
    _refuse_options(asked, tool)
    out = asked.out or Path(f"{tool}.json")
    labelled_file = out.with_name(f"{out.stem}.records.jsonl")
    drawn_file = out.with_name(f"{tool}.drawn.jsonl")
    read = [*asked.records] or ([RECORDS] if asked.model is None and RECORDS.is_file() else [])
    keep_inputs([*read, asked.tools, sqlite_path(asked.source)], [asked.out], derived=labelled_file)
    file = read_records(*read) if read else None
    everything = _reviewed(asked.source, file)
    gated = {name for step in everything for name in step.gated}
    print_decisions("Decisions", {name: [s for s in everything if name in s.gated] for name in sorted(gated)})
    _refuse_tool(asked.source, tool, gated, everything, file)
    steps = [step for step in everything if tool in step.gated]
    used = usable(steps, asked.missing, f"decisions about {tool!r}")
    print_waiting(steps, asked.missing, "decisions")
    _refuse_others_labels(labelled_file, steps)
    measured, rule = _measure(tool, asked.compare)
    file = _drawn(used, asked, measured, drawn_file) if file is None else file
    part, n_both_ways = labelled(file, used, tool, measured, rule)
    if n_both_ways:
        print_line(f"{n_both_ways} approved messages count as wrong: equal ones were rejected or edited.", "yellow")
    key = estimator_key(measured)
    if unmeasured := arrays(part.records, key).n_unmeasured:
        print_line(
            f"{unmeasured} of {len(part.records)} messages could not be measured, so nothing is learned from their "
            "decisions. The verdict that held each of them says why.",
            "yellow",
        )
    labelled_file.parent.mkdir(parents=True, exist_ok=True)
    write_records(labelled_file, part.header, part.records)
    if rule is not None and asked.compare is None:
        _ask_which_arguments_matter(part, tool)
    if asked.alpha is None or asked.out is None:
        again = shlex.join(["calibrate", "learn", asked.source, "--tool", tool, *_given(asked)])
        finish([labelled_file], f"{again} --alpha ALPHA --out {shlex.quote(f'{tool}.json')}")
        return
    decided = sqlite_path(asked.source) or read[0]  # a store on a server is read with records
    ledger = Ledger([decided.with_name(f"{decided.stem}.{tool}.jsonl"), labelled_file])
    rule_name = asked.rule or CERTIFIED
    fitted = fit_artifact(labelled_file, score=key, alpha=asked.alpha, rule=rule_name, groups="cluster")
    fitted = counted(fitted, ledger)
    ledger.copy_to(labelled_file)
    print_verdict(verdict_text(fitted, found=UNDECIDED))
    fitted.save(asked.out)
    following = f"decide about more {'answers' if tool == ANSWER else 'calls'}, and run the same command again"
    if fitted.threshold is not None:
        following = _use(asked, tool, asked.out)
    finish([asked.out, labelled_file], following)


def _given(asked: Learning) -> list[str]:
    """The flags by which the same decisions get the same samples, labels and scores again."""
    words = [word for path in asked.records for word in ("--records", str(path))]
    for name in ("missing", "compare", "model", "tools", "system", "rule"):
        if name in asked.model_fields_set:
            words += [f"--{name}", str(getattr(asked, name))]
    return words


def _measure(tool: str, compare: str | None) -> tuple[Estimator, ToolCalls | None]:
    """The score of a tool's calls, or of answers, and the rule that compares calls with what people said."""
    if tool == ANSWER:
        return make_estimator("graded_disagreement"), None
    arguments = None if compare is None else {tool: [name.strip() for name in compare.split(",")]}
    score = make_estimator("primary_disagreement", judge=ToolCallJudge(arguments=arguments))
    return score, ToolCalls(arguments=arguments)


def _refuse_options(asked: Learning, tool: str) -> None:
    """Refuse options that exclude each other, or that miss one."""
    if asked.records and asked.model is not None:
        raise UsageError("--records has the samples, and --model would draw others. Give one of them.")
    if (asked.alpha is None) != (asked.out is None):
        raise UsageError("a gate for a tool takes both --alpha and --out; without them the calls are only labelled.")
    if tool == ANSWER and (asked.compare is not None or asked.model is not None):
        raise UsageError("--compare and --model are about calls. Answers are learned from what the agent recorded.")


def _refuse_tool(
    source: str, tool: str, gated: Collection[str], steps: Sequence[ReviewedStep], file: RecordFile | None
) -> None:
    """Refuse a tool that nobody was asked about, and one named "answer", whose calls would be mixed with answers."""
    offered = () if file is None or file.header.plan.bindings is None else file.header.plan.bindings.tool_names
    if tool == ANSWER and ANSWER in {*offered, *(call.name for step in steps for call in step.proposed)}:
        raise UsageError(
            f"the agent has a tool named {ANSWER!r}, which stands for its final answers here. Give the tool another "
            "name and collect again."
        )
    if gated and tool not in gated:
        there = f"It has: {', '.join(sorted(gated))}."
        read = "" if file is None else f" Calls whose samples are in other records than {file.path} need --records."
        raise UsageError(f"{source} has no call of {tool!r}. {did_you_mean(tool, gated)}{there}{read}")


def _use(asked: Learning, tool: str, out: Path) -> str:
    """Where a gate goes: into the guard that collected the calls, or into the approvals, which recorded no samples."""
    if asked.model is not None:
        return f"use it in LangChain's approvals of {tool}: {{'when': unsure({str(out)!r}, model)}}"
    if tool == ANSWER:
        return f"use it in your guard: artifact={str(out)!r} in place of 'collect'"
    return f"use it in your guard: tools={{{tool!r}: {str(out)!r}, ...}} in place of 'collect'"


def _refuse_others_labels(path: Path, items: Sequence[ReviewedStep]) -> None:
    """Refuse to overwrite the labelled records of another store, and to go on with the ledger beside them."""
    if path.is_file() and not {item.id for item in items} & {record.id for record in read_records(path).records}:
        raise UsageError(
            f"{path} holds none of these decisions: it comes from another store, and writing would replace it. "
            "Name another file with --out, or move it away."
        )


def _drawn(steps: Sequence[ReviewedStep], asked: Learning, measured: Estimator, path: Path) -> RecordFile:
    """The samples of steps that nobody recorded, drawn now; a file that was begun is resumed."""
    if asked.model is None or asked.tools is None:
        raise UsageError(
            "these decisions have no samples. Name the record file that the agent wrote (--records), or draw them now: "
            "--model MODEL --tools tools.json --system PROMPT"
        )
    plan = plan_for([measured], n=10, bindings=read_bindings(asked.tools))
    questions = [
        Question(id=step.id, question=asked_text(step.messages), group=step.group, messages=step.messages)
        for step in steps
        if step.messages
    ]
    with bar(console, "asking") as progress:
        prompt = PromptWrapping(system=asked.system)
        model = resolve_model(asked.model)
        collect_records(questions, model, plan, path, prompt=prompt, name=path.name, progress=progress)
    return read_records(path)


def _reviewed(source: str, file: RecordFile | None) -> list[ReviewedStep]:
    """Read people's decisions from a checkpointer's file or a review store."""
    path = sqlite_path(source)
    drawn = None if file is None else {record.id: record for record in file.records}
    if path is not None and path.is_file() and _has_checkpoints(path):
        require("langgraph.checkpoint.sqlite", extra="agents")
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(path)) as saver:
            reviewed = reviews_of_checkpoints(saver)
        mine = [step for step in reviewed if drawn is None or step.id in drawn]
        others = len(reviewed) - len(mine)
    elif drawn is None:
        raise UsageError(
            "a review store has the calls without their conversations. Give --records, the file that the agent wrote."
        )
    else:
        with opened_store(source) as store:
            mine, others = reviews_of_store(store, drawn)
    if file is not None and others and not mine:
        raise UsageError(
            f"none of the {others} reviews in {source} belongs to a record of {file.path}, the file that was read. "
            "Name the one that the agent wrote its samples to: --records FILE"
        )
    if others:
        print_line(f"{others} reviews belong to none of the records and are left out.", "yellow")
    if drawn is not None and (unseen := len(drawn) - len(mine)):
        print_line(f"{unseen} recorded messages have no review in {source} and are left out.", "yellow")
    return mine


def _ask_which_arguments_matter(file: RecordFile, tool: str) -> None:
    """Print in how many messages calls of a tool differ between the primary answer and the samples, by argument."""
    differing: Counter[str] = Counter()
    for record in file.records:
        assert record.drawn is not None, "its answer calls the tool"
        assert record.drawn.primary is not None, "its answer calls the tool"
        answers = (record.drawn.primary, *record.drawn.samples)
        primary, *samples = [[call.arguments for call in answer.tool_calls if call.name == tool] for answer in answers]
        # The n-th call of a sample with the n-th of the primary answer: parallel calls of one answer may well differ.
        pairs = [pair for sample in samples for pair in zip(primary, sample, strict=False)]
        differing.update({name for a, b in pairs for name in a.keys() | b.keys() if a.get(name) != b.get(name)})
    if differing:
        counts = ", ".join(f"{name} ({n})" for name, n in differing.most_common())
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
