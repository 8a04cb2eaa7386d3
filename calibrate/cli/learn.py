"""The command that learns from what people decided, about answers and about an agent's calls: learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import limit, nouns_of, share_of
from guardrail.errors import UsageError
from guardrail.files import sqlite_path
from guardrail.items.spec import bounds_answers
from guardrail.monitor.state import money
from guardrail.notebook import percent

from ..data.progress import bar
from ..data.records import write_records
from ..ledger import Ledger
from ..report.assessment import verdict_text
from ..reviews import Learned, Missing, ReviewPool, accepted_error, feed, given_items, read_reviews, thinned
from ..reviews import learn as learn_from
from .frame.app import command
from .frame.calls import UNDECIDED, Learning, learn_calls, print_decisions, print_waiting
from .frame.files import keep_inputs, opened_store
from .frame.flags import load_settings, with_flags
from .frame.options import refuse_options
from .frame.terminal import console, finish, print_line, table
from .frame.verdicts import print_verdict

if TYPE_CHECKING:
    from guardrail.review import ReviewStore


@command("learn", "learning.md")
@with_flags(Learning)
def learn(
    *,
    source: Annotated[
        str, typer.Argument(help="Review store: file or URL; for calls also a LangGraph checkpointer's SQLite file.")
    ],
    given: dict[str, Any],
) -> None:
    """Learn from people's decisions: how good the accepted answers are, a better threshold, a gate for a tool.

    Example: calibrate learn reviews.db --artifact artifact.json --out new.json
    Example: calibrate learn reviews.db --tool refund -a 0.1 --out refund.json

    Approve is right, edit and reject are wrong. The model is not called, except with --model.
    """
    asked = load_settings(Learning, None, {**given, "source": source})
    if asked.tool is not None and asked.artifact is None:
        of_answers = ("earlier", "test_fraction", "since", "monitor")
        refuse_options("has no effect with --tool. Leave it out.", **{name: given[name] for name in of_answers})
        learn_calls(asked, asked.tool)
    elif asked.artifact is not None and asked.tool is None:
        of_calls = ("records", "compare", "model", "tools", "system")
        refuse_options("has no effect with --artifact. Leave it out.", **{name: given[name] for name in of_calls})
        _learn_answers(asked, asked.artifact)
    else:
        raise UsageError(
            "say what to learn: --artifact, the one in force, about answers; --tool NAME about an agent's calls."
        )


def _learn_answers(asked: Learning, in_force: Path) -> None:
    """Print how good the accepted answers are; with a file to write also fit and compare a new threshold."""
    out = asked.out
    if out is not None and out.exists():
        raise UsageError(f"{out} exists. An artifact is never changed: name a new file with --out.")
    records = None if out is None else out.with_name(f"{out.stem}.records.jsonl")
    keep_inputs([in_force, *asked.earlier, sqlite_path(asked.source)], [out], derived=records)
    artifact = CalibrationArtifact.load(in_force)
    if asked.monitor is not None and not bounds_answers(artifact.outcome.rule):
        raise UsageError(
            f"a monitor tests the share of answers with a wrong item, which {artifact.outcome.rule} does not "
            "promise. Leave --monitor out and read the share of wrong items, or fit with --rule clean_shown."
        )
    judged = {in_force: artifact} | {path: CalibrationArtifact.load(path) for path in asked.earlier}
    with opened_store(asked.source) as store:
        with bar(console, "Reading reviews", "items") as progress:
            pool = read_reviews(store, list(judged.values()), since=asked.seconds, progress=progress)
        _print_pool(pool)
        for path, judging_artifact in judged.items():
            _print_accepted(
                pool.of(judging_artifact), judging_artifact, asked.missing, f" by {path.name}" if asked.earlier else ""
            )
        if asked.monitor is not None:
            _feed_monitor(store, pool, artifact, asked.monitor, asked.missing)
    if out is None or records is None:
        finish([], f"refit: calibrate learn {asked.source} --artifact {in_force} --out NEW.json")
        return
    learned = learn_from(
        pool,
        artifact,
        name=f"reviews of {in_force.name}",
        ledger=Ledger([sqlite_path(asked.source) or out.parent / "reviews.db"]),
        alpha=asked.alpha,
        rule=asked.rule,
        missing=asked.missing,
        test_fraction=asked.test_fraction,
    )
    print_waiting(thinned(pool)[0], asked.missing, "more decisions of the sample")
    _print_refit(artifact, learned)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_records(records, learned.file.header, learned.file.records)
    learned.artifact.save(out)  # last, so that it never stands alone
    following = f"use it: Guardrail(model=..., artifact={str(out)!r}), with new monitors"
    if learned.artifact.threshold is None:
        following = f"keep {in_force}, decide about more answers, and learn again"
    finish([out, records], following)


def _print_pool(pool: ReviewPool) -> None:
    held_back = [item for item in pool.items if not item.audited]
    print_decisions("Reviews", {"held back": held_back, "accepted, audited": pool.audits})
    if pool.both_ways:
        print_line(
            f"{pool.both_ways} items were called right and wrong for one answer; all of them count as wrong.", "yellow"
        )
    if pool.partial:
        print_line(
            f"{pool.partial} items about the held-back items of answers whose other items were given out are no labels "
            "of an answer and are left out; audits stand for these answers."
        )
    if pool.others:
        print_line(
            f"{pool.others} items were judged by other artifacts, or by none, and are left out. Earlier artifacts of "
            "the same model, plan, prompt and score are added with --earlier.",
            "yellow",
        )


def _print_accepted(pool: ReviewPool, artifact: CalibrationArtifact, missing: Missing, gate: str) -> None:
    """Print how good the answers are that an artifact accepted, and of a gate of items the items it gave."""
    error = accepted_error(pool, missing=missing)
    print_waiting(pool.audits, missing, "decided audits")
    nouns = nouns_of(artifact)
    if error is None:
        print_line(f"No audit can be used yet, so nothing is known about the error rate of {nouns.given}{gate}.")
        return
    promised = bounds_answers(artifact.outcome.rule)
    target = f"; promised {percent(artifact.alpha)}" if promised else ""
    interval_kind = "exact" if error.exact else "betting, over several audit rates"
    without = f", {error.undecided} of them undecided" if error.undecided else ""
    print_line(
        f"Error among {nouns.given}{gate}: {percent(error.estimate)} ({error.wrong} of {error.audited} audited "
        f"wrong{without}; 95 % interval {percent(error.low)} to {percent(error.high)}, {interval_kind}{target}). "
        f"About {percent(error.acceptance)} of the measured {nouns.asked} were {nouns.accepted}.",
        "red" if promised and error.low > artifact.alpha else None,
    )
    counts = given_items(pool, missing=missing)
    if counts is None:
        return
    wrong, n_given_out, share = counts
    about = artifact.outcome
    print_line(
        f"Wrong among the items given: {percent(share)} ({wrong} of {n_given_out} in audits"
        + (f"; promised {percent(about.alpha)})." if about.rule == "wrong_share" else ").")
        + " An answer with a wrong item is an error above."
    )


def _feed_monitor(
    store: ReviewStore, pool: ReviewPool, artifact: CalibrationArtifact, name: str, missing: Missing
) -> None:
    """Give a monitor of the store the new audits, and print its state."""
    from guardrail.review.monitors import Monitors

    monitors = Monitors(store)
    shared = monitors.known_risk(name, artifact)
    if shared is None:
        rates = [item.chance for item in pool.of(artifact).audits]
        if not rates:
            raise UsageError(
                "no answer was audited yet, so the audit rate of the new monitor is unknown. Start it when the first "
                "audits have arrived."
            )
        shared = monitors.risk(name, artifact, min_audit_rate=min(rates))
    with bar(console, "Monitoring", "audits") as progress:
        new = feed(pool, shared, missing=missing, progress=progress)
    state = shared.state
    print_line(
        f"Monitor {name}: {new} new audits, {state.n} in all; wealth {money(state.log_wealth):.3g}, alarm at "
        f"{1 / state.delta:g}."
    )
    if state.alarm is not None:
        console.print(Panel(escape(state.alarm.detail), title="Alarm", title_align="left", border_style="red"))
    if state.alarm is not None and shared.alarm is None:
        print_line(
            f"The alarm of monitor {name} was acknowledged: it never alarms again, and no switch holds answers back "
            "for it, even if audits find more errors. Start one under another name: --monitor NEW-NAME.",
            "bold red",
        )


def _print_refit(old: CalibrationArtifact, learned: Learned) -> None:
    """Print the sample of a refit, what the new artifact promises, and both artifacts on the test records."""
    undecided = sum(item.correct is None for item in learned.sample)
    without = f", and {undecided} undecided, counted as wrong" if undecided else ""
    print_line(
        f"Sample: {len(learned.sample) - undecided} decisions{without}, so that every question is in it with "
        f"probability {percent(learned.rate)}; "
        f"{len(learned.file.records)} for the fit, {len(learned.test)} for the test."
    )
    print_verdict(verdict_text(learned.artifact, found=UNDECIDED))
    _print_comparison(old, learned)


def _print_comparison(old: CalibrationArtifact, learned: Learned) -> None:
    gates = [("in force", old, learned.old), ("new", learned.artifact, learned.new)]
    rows = []
    for name, artifact, counts in gates:
        threshold = "none" if artifact.threshold is None else limit(artifact.estimator, artifact.threshold)
        wrong = interval = "-"
        if counts.error_rate is not None:
            share, low, high = counts.error_rate
            wrong = f"{counts.n_errors} of {counts.n_accepted}, {percent(share)}"
            interval = f"{percent(low)} to {percent(high)}"
        rows.append([name, threshold, percent(counts.acceptance[0]), wrong, interval])
    nouns = nouns_of(old)
    heads = ("artifact", "threshold", nouns.accepted, "wrong among them", "95 % interval")
    console.print(table(f"On {len(learned.test)} reviewed {nouns.asked} kept out of the fit", heads, rows))
    for name, _, counts in gates:
        if counts.items is not None:
            items = counts.items
            kept = share_of(items.kept, items.items)
            wrong = share_of(items.kept_wrong, items.kept)
            print_line(f"Items, {name}: {kept} kept, {wrong} of them wrong.")
