"""The command that learns from what people decided, about answers and about an agent's calls: learn."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import nouns_of, share_of
from guardrail.errors import UsageError
from guardrail.files import sqlite_path
from guardrail.items.spec import bounds_answers
from guardrail.monitor.state import money
from guardrail.notebook import percent

from ..data.progress import bar
from ..data.records import write_records
from ..ledger import Ledger
from ..pipeline import GateCounts
from ..report.sentences import verdict_text
from ..reviews import (
    AcceptedError,
    Learned,
    Missing,
    Respond,
    ReviewPool,
    Waiting,
    accepted_error,
    feed,
    given_items,
    read_reviews,
    refuse_open_as_wrong,
    waiting,
)
from ..reviews import learn as learn_from
from .frame.app import command
from .frame.calls import RECORDS, Drawing, Fitting, learn_calls
from .frame.files import keep_inputs, opened_store
from .frame.options import MissingOption, RespondOption, flags_under, share_or_smallest
from .frame.terminal import console, finish, print_line, table
from .frame.verdicts import print_verdict

__all__ = ["learn"]

if TYPE_CHECKING:
    from guardrail.review import ReviewStore
answers_flag, calls_flag = flags_under("About answers (--artifact)"), flags_under("About calls (--tool)")
fit_flag = flags_under("The fit")


@command("learn", "learning.md")
def learn(
    source: Annotated[
        str, typer.Argument(help="Review store: file or URL; for calls also a LangGraph checkpointer's SQLite file.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="New artifact; without it nothing is fitted.")] = None,
    respond: RespondOption = "wrong",
    missing: MissingOption = "wait",
    artifact: Annotated[Path | None, answers_flag(help="Artifact in force; never changed.")] = None,
    earlier: Annotated[list[Path] | None, answers_flag(help="Earlier artifact to pool.")] = None,
    test_fraction: Annotated[float, answers_flag(help="Share to test both artifacts on.")] = 0.3,
    since: Annotated[datetime | None, answers_flag(help="Leave out what came before (UTC).", metavar="TIME")] = None,
    ignore_others: Annotated[bool, answers_flag("--ignore-others", help="Leave other artifacts out.")] = False,
    monitor: Annotated[str | None, answers_flag(help="Feed the risk monitor of this name.", metavar="NAME")] = None,
    tool: Annotated[str | None, calls_flag(help="Tool to make a gate for; or answer.", metavar="NAME")] = None,
    records: Annotated[list[Path] | None, calls_flag(help=f"What the agent wrote ({RECORDS}).")] = None,
    compare: Annotated[str | None, calls_flag(help="Arguments that matter.", metavar="NAME,NAME")] = None,
    model: Annotated[str | None, calls_flag("--model", "-m", help="Draws missing samples.", metavar="MODEL")] = None,
    tools: Annotated[Path | None, calls_flag(help="With --model: the tools, as JSON.", metavar="FILE")] = None,
    system: Annotated[str | None, calls_flag(help="With --model: system prompt.")] = None,
    n: Annotated[int, calls_flag(help="With --model: samples.")] = 10,
    alpha: Annotated[
        Any,
        fit_flag(
            "--alpha",
            "-a",
            help="A share, or smallest. Default: of the artifact.",
            metavar="SHARE",
            parser=share_or_smallest,
        ),
    ] = None,
    rule: Annotated[str | None, fit_flag(help="Default: of the artifact.")] = None,
    delta: Annotated[float | None, fit_flag(help="Failure probability.")] = None,
) -> None:
    """Learn from people's decisions: how good the accepted answers are, a better threshold, a gate for a tool.

    Example: calibrate learn reviews.db --artifact artifact.json --out new.json
    Example: calibrate learn reviews.db --tool refund -a 0.1 --out refund.json

    Approve is right, edit and reject are wrong. The model is not called, except with --model.
    """
    if (artifact is None) == (tool is None):
        raise UsageError(
            "say what to learn: --artifact, the one in force, about answers; --tool NAME about an agent's calls."
        )
    fitting = Fitting(alpha, out, rule, delta)
    if tool is not None:
        learn_calls(
            source,
            tool,
            records=records or (),
            compare=compare,
            respond=respond,
            missing=missing,
            drawing=None if model is None else Drawing(model, tools, system, n),
            fitting=fitting,
        )
        return
    assert artifact is not None, "one of both is given"
    _learn_answers(
        source,
        artifact,
        fitting,
        respond=respond,
        missing=missing,
        monitor=monitor,
        earlier=earlier or (),
        since=since,
        ignore_others=ignore_others,
        test_fraction=test_fraction,
    )


def _learn_answers(
    store: str,
    artifact: Path,
    fitting: Fitting,
    *,
    respond: Respond,
    missing: Missing,
    monitor: str | None,
    earlier: Sequence[Path],
    since: datetime | None,
    ignore_others: bool,
    test_fraction: float,
) -> None:
    """Print how good the accepted answers are; with a file to write also fit and compare a new threshold."""
    out = fitting.out
    if out is not None and out.exists():
        raise UsageError(f"{out} exists. An artifact is never changed: name a new file with --out.")
    if monitor is not None:
        refuse_open_as_wrong(missing)
    records = None if out is None else out.with_name(f"{out.stem}.records.jsonl")
    keep_inputs([artifact, *earlier, sqlite_path(store)], [out], derived=records)
    loaded = CalibrationArtifact.load(artifact)
    if monitor is not None and not bounds_answers(loaded.outcome.rule):
        raise UsageError(
            f"a monitor tests the share of answers with a wrong item, which {loaded.outcome.rule} does not promise. "
            "Leave --monitor out and read the share of wrong items, or fit with --rule clean_shown."
        )
    before = [CalibrationArtifact.load(path) for path in earlier]
    with opened_store(store) as opened:
        pool = _read(opened, [loaded, *before], respond, since)
        _refuse_others(pool, ignore_others)
        _print_pool(pool)
        for path, judged in zip([artifact, *earlier], [loaded, *before], strict=True):
            own = pool.of(judged)
            waits = waiting([item for item in own.items if item.audited], missing)
            gate = f" by {path.name}" if before else ""
            _print_accepted(accepted_error(own, missing=missing), waits, judged, gate)
            _print_given_items(given_items(own, missing=missing), judged)
        if monitor is not None:
            _feed_monitor(opened, pool, loaded, monitor, missing)
    if out is None or records is None:
        finish([], f"refit: calibrate learn {store} --artifact {artifact} --out NEW.json")
        return
    database = sqlite_path(store)
    ledger = Ledger([out.parent / "reviews.db" if database is None else database])
    learned = learn_from(
        pool,
        loaded,
        name=f"reviews of {artifact.name}",
        ledger=ledger,
        alpha=fitting.alpha,
        rule=fitting.rule,
        delta=fitting.delta,
        missing=missing,
        respond=respond,
        test_fraction=test_fraction,
    )
    _print_sample(learned)
    print_verdict(verdict_text(learned.artifact))
    _print_comparison(loaded, learned)
    guard = f"Guardrail(model=..., artifact={str(out)!r})"
    following = f"use it: {guard}, with new monitors"
    if learned.artifact.threshold is None:
        following = f"keep {artifact}, decide about more answers, and learn again"
    finish(_write(learned, out, records), following)


def _read(
    store: ReviewStore, artifacts: Sequence[CalibrationArtifact], respond: Respond, since: datetime | None
) -> ReviewPool:
    seconds = None if since is None else since.replace(tzinfo=UTC).timestamp()
    with bar(console, "Reading reviews", "items") as progress:
        return read_reviews(store, artifacts, respond=respond, since=seconds, progress=progress)


def _write(learned: Learned, out: Path, records: Path) -> list[Path]:
    """Write the records and the artifact; return the files. The artifact comes last, so that it never stands alone."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_records(records, learned.file.header, learned.file.records)
    learned.artifact.save(out)
    return [out, records]


def _refuse_others(pool: ReviewPool, ignore: bool) -> None:
    if pool.others and not ignore:
        listed = "\n  ".join(f"{digest}: {count} items" for digest, count in sorted(pool.others.items()))
        raise UsageError(
            f"the store holds items that were judged by something else:\n  {listed}\nScores of another model, plan, "
            "prompt or score cannot be pooled. Name earlier artifacts of the same procedure with --earlier; leave "
            "the rest out with --ignore-others."
        )


def _print_pool(pool: ReviewPool) -> None:
    rows = []
    for title, items in (
        ("held back", [item for item in pool.items if not item.audited]),
        ("accepted, audited", [item for item in pool.items if item.audited]),
    ):
        decided = [item for item in items if item.correct is not None]
        rows.append(
            [
                title,
                str(len(items)),
                str(len(decided)),
                str(sum(bool(item.correct) for item in decided)),
                str(sum(item.open for item in items)),
                str(sum(item.correct is None and not item.open for item in items)),
            ]
        )
    console.print(table("Reviews", ("", "items", "decided", "right", "open", "without"), rows))
    if pool.both_ways:
        print_line(
            f"{pool.both_ways} items were called right and wrong for one answer; all of them count as wrong.", "yellow"
        )
    if pool.partial:
        print_line(
            f"{pool.partial} items about the held-back items of answers whose other items were given out are no labels "
            "of an answer and are left out; audits stand for these answers."
        )
    left_out = sum(pool.others.values())
    if left_out:
        print_line(f"{left_out} items of other artifacts are left out.")


def _print_accepted(
    error: AcceptedError | None, waits: Waiting | None, artifact: CalibrationArtifact, gate: str
) -> None:
    if waits is not None:
        print_line(waits.describe("decided audits"), "yellow")
    nouns = nouns_of(artifact)
    if error is None:
        why = f"No audited {nouns.one} has been decided" if waits is None else "The oldest audit is still open"
        print_line(f"{why}, so nothing is known about the error rate of {nouns.given}{gate}.")
        return
    promised = bounds_answers(artifact.outcome.rule)
    target = f"; promised {percent(artifact.alpha)}" if promised else ""
    how = "exact" if error.exact else "betting, over several audit rates"
    without = f", {error.undecided} of them undecided" if error.undecided else ""
    print_line(
        f"Error among {nouns.given}{gate}: {percent(error.estimate)} ({error.wrong} of {error.audited} audited "
        f"wrong{without}; 95 % interval {percent(error.low)} to {percent(error.high)}, {how}{target}). "
        f"About {percent(error.acceptance)} of the measured {nouns.asked} were {nouns.accepted}.",
        "red" if promised and error.low > artifact.alpha else None,
    )


def _print_given_items(counts: tuple[int, int, float] | None, artifact: CalibrationArtifact) -> None:
    if counts is None:
        return
    wrong, given, share = counts
    about = artifact.outcome
    print_line(
        f"Wrong among the items given: {percent(share)} ({wrong} of {given} in audits"
        + (f"; promised {percent(about.alpha)})." if about.rule == "wrong_share" else ").")
        + " An answer with a wrong item is an error above."
    )


def _feed_monitor(
    store: ReviewStore,
    pool: ReviewPool,
    artifact: CalibrationArtifact,
    name: str,
    missing: Missing,
) -> None:
    from guardrail.review.monitors import Monitors

    monitors = Monitors(store)
    own = pool.of(artifact)
    smallest = min((item.chance for item in own.items if item.audited), default=None)
    shared = monitors.known_risk(name, artifact)
    if shared is None:
        if smallest is None:
            raise UsageError(
                "no answer was audited yet, so the audit rate of the new monitor is unknown. Start it when the first "
                "audits have arrived."
            )
        shared = monitors.risk(name, artifact, min_audit_rate=smallest)
    with bar(console, "Monitoring", "audits") as progress:
        new = feed(own, shared, missing=missing, progress=progress)
    state = shared.state
    waits = waiting([item for item in own.items if item.audited], missing)
    more = "" if waits is None else f"; {waits.decided} decided ones wait behind item {waits.item}"
    print_line(
        f"Monitor {name}: {new} new audits, {state.n} in all{more}; wealth {money(state.log_wealth):.3g}, alarm at "
        f"{1 / state.delta:g}."
    )
    view = next(view for view in monitors.all() if view.name == name)
    if view.state.alarm is not None:
        console.print(Panel(escape(view.state.alarm.detail), title="Alarm", title_align="left", border_style="red"))
    if view.acknowledged:
        print_line(
            f"The alarm of monitor {name} was acknowledged: it never alarms again, and no switch holds answers back "
            "for it, even if audits find more errors. Start one under another name: --monitor NEW-NAME.",
            "bold red",
        )


def _print_sample(learned: Learned) -> None:
    without = f", and {learned.undecided} undecided, counted as wrong" if learned.undecided else ""
    print_line(
        f"Sample: {learned.used} of {learned.decided} decisions{without}, so that every question is in it with "
        f"probability {percent(learned.rate)}; "
        f"{len(learned.file.records)} for the fit, {len(learned.test)} for the test."
    )
    if learned.waits is not None:
        print_line(learned.waits.describe("more decisions of the sample"), "yellow")


def _print_comparison(old: CalibrationArtifact, learned: Learned) -> None:
    gates = [("in force", old, learned.old), ("new", learned.artifact, learned.new)]
    nouns = nouns_of(old)
    heads = ("artifact", "threshold", nouns.accepted, "wrong among them", "95 % interval")
    title = f"On {len(learned.test)} reviewed {nouns.asked} kept out of the fit"
    console.print(table(title, heads, [_line(*gate) for gate in gates]))
    for name, _, counts in gates:
        if counts.items is not None:
            items = counts.items
            kept, wrong = share_of(items.kept, items.items), share_of(items.kept_wrong, items.kept)
            print_line(f"Items, {name}: {kept} kept, {wrong} of them wrong.")


def _line(name: str, artifact: CalibrationArtifact, counts: GateCounts) -> list[str]:
    threshold = "none" if artifact.threshold is None else artifact.estimator.limit(artifact.threshold)
    if counts.error_rate is None:
        return [name, threshold, percent(counts.acceptance[0]), "-", "-"]
    share, low, high = counts.error_rate
    wrong = f"{counts.n_errors} of {counts.n_accepted}, {percent(share)}"
    return [name, threshold, percent(counts.acceptance[0]), wrong, f"{percent(low)} to {percent(high)}"]
