"""The command that computes uncertainties: score."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from guardrail.errors import UsageError
from guardrail.judges.cache import PairCache
from guardrail.types import SamplingPlan, Unmeasured
from guardrail.uncertainty import Estimator, Scorer, list_estimators, make_estimator
from guardrail.uncertainty.scorer import load_scorer

from ..data.progress import bar
from ..data.records import RecordHeader, RecordReader
from ..ray_engine import score_on_ray
from ..scoring.compute import ScoreSummary, lacking, score_file, supported, uses_models, with_cache
from ..scoring.names import parse_estimator, stored_key
from .frame.app import command
from .frame.files import keep_inputs, one_file, pair_cache
from .frame.items import ScoreItems, score_by_items
from .frame.next_commands import listed, next_step
from .frame.options import (
    ItemsOption,
    RecordsArgument,
    RewriteOption,
    flags_under,
    refuse_with_items,
    refuse_without_items,
)
from .frame.terminal import console, finish, print_line, table

models_flag, items_flag = flags_under("Comparing answers"), flags_under("With --items")


@command("score", "calibrating.md#score")
def score(
    records: RecordsArgument,
    estimator: Annotated[
        list[str] | None,
        typer.Option("--score", "-s", help="NAME, NAME:JUDGE, then(CHEAP, DEAR), ..., or all (default)."),
    ] = None,
    scorer: Annotated[list[str] | None, typer.Option(help="A score of your own, MODULE:NAME.")] = None,
    out: RewriteOption = None,
    verdicts: Annotated[Path | None, models_flag("--pair-cache", help="Where a model's verdicts are kept.")] = None,
    ranks_from: Annotated[Path | None, models_flag(help="Records that then(...) ranks by.")] = None,
    engine: Annotated[
        Literal["local", "ray"], models_flag(help="ray: the processes of a cluster.", metavar="ENGINE")
    ] = "local",
    items: ItemsOption = False,
    cap: Annotated[int | None, items_flag(help="Most items of an answer that are ever kept.")] = None,
    field_judge: Annotated[
        list[str] | None, items_flag(help="PATH=JUDGE of a field: /total=numeric.", metavar="PATH=JUDGE")
    ] = None,
    key_field: Annotated[
        list[str] | None, items_flag(help="Matches a list's objects: /items=sku.", metavar="PATH=FIELD")
    ] = None,
    optional_field: Annotated[
        list[str] | None, items_flag(help="A field that may be left out.", metavar="PATH")
    ] = None,
) -> None:
    """Compute uncertainties from what was drawn. The model is not called; a scorer may call one.

    Example: calibrate score records.jsonl
    Example: calibrate score records.jsonl -s semantic_entropy:exact

    A judge that is a model is asked about each pair once: its verdicts are kept next to the records.
    """
    by_items = ScoreItems(cap, field_judge or (), key_field or (), optional_field or ())
    if items:
        models = {"pair_cache": verdicts, "ranks_from": ranks_from, "engine": engine == "ray"}
        refuse_with_items(score=estimator, scorer=scorer, **models)
        source, target = one_file(records, out)
        score_by_items(source, target, by_items)
        finish([target], f"calibrate label {listed([target])} --items")
        return
    refuse_without_items(cap=cap, field_judge=field_judge, key_field=key_field, optional_field=optional_field)
    chosen = estimator or ([] if scorer else ["all"])
    names = [name for name in chosen if name != "all"]
    source, target = one_file(records, out)
    cache = verdicts or pair_cache(source)
    keep_inputs([cache], [target])
    keep_inputs([source], [cache])
    everything = len(names) < len(chosen)
    # SQLite corrupts files on a network disk, so on a cluster the user names a file on a disk of each node.
    kept_verdicts = cache if engine == "local" else verdicts
    opened: list[Path] = []
    choice = partial(
        _estimators, names=names, scorers=scorer or (), cache=kept_verdicts, opened=opened, everything=everything
    )
    with bar(console, "scoring", "records") as progress:
        ray = None if engine == "local" else partial(score_on_ray, address=os.environ.get("RAY_ADDRESS", "auto"))
        header, summary = score_file(source, target, choice, engine=ray, ranks=ranks_from, progress=progress)
    print_scores(header, summary)
    if everything:
        computed = {spec.name for spec in header.estimators.values()}
        others = [make_estimator(name) for name in list_estimators() if name not in computed]
        missing = [(other.name, lacking(other, header.plan) or "") for other in others]
        if missing:
            console.print(table("Not computed", ("uncertainty", "what is missing"), missing, texts=2))
    named = None if everything else (names or [load_scorer(text).follow_up for text in scorer or ()])[0]
    finish([target, *opened], _following(target, header, summary, named))


_REMEDIES = {
    Unmeasured.CUT_OFF: "collect again with a larger --max-tokens, or import with --set cut_off=measure",
    Unmeasured.UNREADABLE: "import whole answers; where their end is not known, with --map finish_reason=-",
    Unmeasured.NO_LOGPROBS: "take a score that reads samples, or collect with log-probabilities",
    Unmeasured.SAMPLING_SHORTFALL: "collect again, or import all samples of each question",
}
"""What to do where a reason left nothing to measure; of others the cause has to go."""


def _following(path: Path, header: RecordHeader, summary: ScoreSummary, named: str | None) -> str:
    """The next command; where the score measured nothing, that is printed with the reason, and no fit on it follows."""
    measured = [key for key in sorted(header.estimators) if summary.of(key)[0]]
    key = None if named is None else stored_key(header.estimators, named, header.plan.bindings)
    if key in measured or (key is None and measured) or not summary.n_records:
        return next_step(header, path, named)
    key = key or min(header.estimators)
    with path.open("rb") as stream:
        record = next(iter(RecordReader(path, stream)))
    score = record.scores.get(key)  # none where a question was never drawn, as in a table of scores
    problem = record.drawn.problem_detail if record.drawn else "the file has no answer to it"
    detail = (score.detail if score else "") or problem or (score.reason if score else "nothing to measure is on file")
    print_line(f"{key} measured none of the {summary.n_records} answers; of {record.id!r}: {detail}.", "yellow")
    if measured:
        return next_step(header, path, measured[0])
    remedy = _REMEDIES.get(score.reason) if score and score.reason else None
    return remedy or "remove the cause, and collect or import again"


def _estimators(
    plan: SamplingPlan,
    names: Sequence[str],
    scorers: Sequence[str],
    cache: Path | None,
    opened: list[Path],
    *,
    everything: bool,
) -> list[Estimator]:
    """The scores that the command line names, or all that a plan supports; called in every process that scores.

    Models keep their verdicts in ``cache``, which is then added to ``opened``.
    """
    loaded: list[Scorer] = [load_scorer(text) for text in scorers]
    estimators = [parse_estimator(name, bindings=plan.bindings, scorers=loaded) for name in names]
    estimators += [scorer.estimator for scorer in loaded]
    if everything:
        estimators += supported(plan)
    if not uses_models(estimators):
        return estimators
    if cache is None:
        raise UsageError(
            "a cluster needs a --pair-cache for a judge that is a model: a path on the disk of each node, for "
            "instance /var/tmp/pairs.sqlite, and never one on a network disk."
        )
    opened.append(cache)
    verdicts = PairCache(cache)
    return [with_cache(estimator, verdicts) for estimator in estimators]


def print_scores(header: RecordHeader, summary: ScoreSummary) -> None:
    """Print the range of each estimator, and the number of records that it could not measure.

    If most records could not be measured, that and the reasons come first.
    """
    if header.estimators and all(2 * len(summary.of(key)[0]) < summary.n_records for key in header.estimators):
        reasons: Counter[str] = max((summary.of(key)[1] for key in header.estimators), key=Counter.total)
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        console.print(
            f"Most of the {summary.n_records} answers could not be measured ({counts}), so a threshold would be about "
            "the others only. Remove the cause and collect again; a gateway names it on /guardrail/v1/observed."
        )
    rows = []
    for key in sorted(header.estimators):
        values, reasons = summary.of(key)
        missing = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "0"
        spread = [f"{values[int(q * (len(values) - 1))]:.3g}" for q in (0, 0.5, 1)] if values else ["-", "-", "-"]
        rows.append([key, str(len(values)), *spread, str(len(set(values))), missing])
    columns = ("uncertainty", "n", "lowest", "median", "highest", "values", "not measured")
    console.print(table("Scores (higher is less certain)", columns, rows))
