"""The command that computes uncertainties: score."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from guardrail.errors import UsageError
from guardrail.judges import Judge, default_judge, make_judge
from guardrail.judges.cache import PairCache
from guardrail.judges.chat import ChatJudge
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator, list_estimators

from ..data.progress import bar
from ..data.records import RecordFile, RecordHeader
from ..ray_engine import PART_MIB, score_on_ray
from ..scoring.names import named_entailment, named_similarity
from ..scoring.scores import (
    ScoreSummary,
    key_of,
    lacking,
    parse_estimator,
    score_file,
    uses_models,
    usual_key,
    with_cache,
)
from ..spec_syntax import estimator_flags, parse_name
from .frame import (
    AddressOption,
    RecordsArgument,
    app,
    check_engine,
    console,
    finish,
    keep_inputs,
    one_file,
    print_line,
    resolve_model,
    say_stalled,
    table,
)

__all__ = ["EstimatorOption", "chosen_estimator", "next_step", "pair_cache", "print_scores", "score"]

EstimatorOption = Annotated[
    str | None,
    typer.Option("--estimator", "-e", help="Default: semantic_entropy, or predictive_entropy with options."),
]


@app.command()
def score(
    records: RecordsArgument,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "--estimators",
            "-e",
            help="NAME, NAME:JUDGE, NAME:JUDGE:greedy, NAME:SIMILARITY, graded_disagreement:JUDGE:SIMILARITY, an "
            "ensemble's file, or all. May be repeated. Default: every estimator the records support (the rest are "
            "listed with what they need).",
        ),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(help="Judge for estimators that cluster: exact, nli(model=PATH), chat(model=openai:gpt-4o), ..."),
    ] = None,
    similarity: Annotated[
        str | None,
        typer.Option(help="Similarity for estimators that take one: rouge_l, nli(model=PATH), from_judge(exact), ..."),
    ] = None,
    entailment: Annotated[str | None, typer.Option(help="Entailment model for selfcheck_nli: nli(model=PATH).")] = None,
    verdicts: Annotated[
        Path | None,
        typer.Option(
            "--pair-cache",
            help="Where verdicts of models are kept. Default: next to the records. Unused by light judges.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: the record file itself.")] = None,
    unanimous_at: Annotated[
        int | None,
        typer.Option(help="Adaptive plan: stop at so many samples if they all mean the same. 0: always draw all."),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="local: this process; ray: many, here or on a cluster (docs: Millions of records)."),
    ] = "local",
    address: AddressOption = None,
    part_mib: Annotated[
        int, typer.Option(help="With --engine ray: MiB of records that one task scores.", min=1)
    ] = PART_MIB,
) -> None:
    """Compute uncertainties from what was drawn. The model is not called.

    Memory does not grow with the number of records, and a judge that is a model is asked about each pair once: its
    verdicts are kept next to the records.

    Example: [cyan]calibrate score records.jsonl -e semantic_entropy -e semantic_entropy:exact[/cyan]

    Example: [cyan]calibrate score records.jsonl --estimators all --judge "nli(model=./weights)"[/cyan]
    """
    names = [name for name in estimator or ["all"] if name != "all"]
    source, target = one_file(records, out)
    cache = verdicts or pair_cache(source)
    keep_inputs([*names, cache], [target])
    keep_inputs([source], [cache])
    check_engine(engine, address)
    everything = len(names) < len(estimator or ["all"])
    # On a network disk SQLite corrupts the file: on a cluster the user names one that each node has for itself.
    choice = _Choice(names, everything, judge, similarity, entailment, cache if address is None else verdicts)
    with bar(console, "scoring", "records") as progress:
        if engine == "local":
            header, summary = score_file(source, target, choice, unanimous_at=unanimous_at, progress=progress)
        else:
            header, summary = score_on_ray(
                source,
                target,
                choice,
                address=address,
                unanimous_at=unanimous_at,
                part_bytes=part_mib << 20,
                progress=progress,
                say=say_stalled,
            )
    print_scores(header, summary)
    if choice.refused:
        missing = sorted(choice.refused.items())
        console.print(table("Not computed", ("uncertainty", "what is missing"), missing, texts=2))
    named = None if everything else names[0]
    finish([target, *(cache.path for cache in choice.opened)], next_step(header, target, named))


@dataclass(slots=True)
class _Choice:
    """From a plan to what to compute; called in every process that computes it.

    Attributes:
        names: Estimators, as on the command line.
        everything: Whether all that the plan supports are computed as well.
        judge: Judge of those that name none, as on the command line; so are the next two.
        similarity: Similarity.
        entailment: Entailment model.
        cache: Where verdicts of models are kept.
        refused: What is not computed, and why; known after the first call.
        opened: The cache, if it is used; known after the first call.
    """

    names: Sequence[str]
    everything: bool
    judge: str | None
    similarity: str | None
    entailment: str | None
    cache: Path | None
    refused: dict[str, str] = field(default_factory=dict)
    opened: list[PairCache] = field(default_factory=list)

    def __call__(self, plan: SamplingPlan) -> Sequence[Estimator]:
        """The estimators."""
        comparing: dict[str, Any] = {
            "judge": _judge(self.judge) or default_judge(plan.bindings),
            "similarity": None if self.similarity is None else named_similarity(self.similarity),
            "entailment": None if self.entailment is None else named_entailment(self.entailment),
        }
        named = [parse_estimator(name, **comparing) for name in self.names]
        found = list(named)
        for each in (parse_estimator(name, **comparing) for name in list_estimators()) if self.everything else ():
            missing = lacking(each, plan)
            if missing is None:
                found.append(each)
            elif each.name not in {one.name for one in named}:
                self.refused[each.name] = missing
        if not uses_models(found):
            return found
        if self.cache is None:
            raise UsageError(
                "a cluster needs a --pair-cache for a judge that is a model: a path on the disk of each node, for "
                "instance /var/tmp/pairs.sqlite, and never one on a network disk."
            )
        self.opened[:] = [PairCache(self.cache)]
        return [with_cache(each, self.opened[0]) for each in found]


def next_step(header: RecordHeader, path: Path, estimator: str | None = None) -> str:
    """The next command for a record file: score, label, or fit with the estimator it needs.

    Args:
        header: Of the file.
        path: The file.
        estimator: Scores to fit on; default: those that `fit` takes by itself, else the first that need no likelihoods.
    """
    name = shlex.quote(str(path))
    if not header.estimators:
        return f"calibrate score {name}"
    if header.correctness is None:
        return f"calibrate label {name}"
    known = sorted(header.estimators)
    if estimator is None and (usual_key(header.plan) in known or len(known) == 1):
        return f"calibrate fit {name} --alpha 0.1"
    fallback = "discrete_semantic_entropy" if "discrete_semantic_entropy" in known else known[0]
    return f"calibrate fit {name} {estimator_flags(estimator or fallback)} --alpha 0.1"


def pair_cache(records: Path) -> Path:
    """Where verdicts of models about the answers of a record file are kept."""
    return records.with_name(f"{records.stem}.pairs.sqlite")


def _judge(text: str | None) -> Judge | None:
    if text is None:
        return None
    name, params = parse_name(text)
    if name == "chat" and isinstance(params.get("model"), str):
        params["model"] = resolve_model(params["model"])
        return ChatJudge(**params)
    return make_judge(name, **params)


def chosen_estimator(file: RecordFile, name: str | None) -> str:
    """The estimator a user named, or the default for this kind of question and answer."""
    key = key_of(file, name)
    if name is not None and key != name and not name.endswith(".json"):
        print_line(f"--estimator {name}: the scores of {key}.")
    return key


def print_scores(header: RecordHeader, summary: ScoreSummary) -> None:
    """Range of each estimator, and what could not be measured."""
    rows = []
    for key in sorted(header.estimators):
        values, reasons = summary.of(key)
        missing = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "0"
        spread = [f"{values[int(q * (len(values) - 1))]:.3g}" for q in (0, 0.5, 1)] if values else ["-", "-", "-"]
        rows.append([key, str(len(values)), *spread, str(len(set(values))), missing])
    columns = ("uncertainty", "n", "lowest", "median", "highest", "values", "not measured")
    console.print(table("Scores (higher is less certain)", columns, rows))
