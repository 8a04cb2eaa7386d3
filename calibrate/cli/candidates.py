"""The command that fits how many answers a reviewer is shown: candidates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError, require
from guardrail.models import resolve_model
from guardrail.notebook import percent
from guardrail.specs import CorrectnessSpec

from ..correctness import ChatLabelJudge, CorrectnessRule, available_rules, make_rule
from ..data.records import RecordFile, read_records
from ..evaluation.audit import prepared, refuse_shared
from ..pipeline import require_same
from ..rules.certificate import tail
from ..thresholds.fitting import check_open_unit
from .frame.app import app
from .frame.files import keep_inputs
from .frame.options import RecordsArgument
from .frame.terminal import errors, finish, print_line

__all__ = ["candidates"]

if TYPE_CHECKING:
    from guardrail.review import CandidateRule

    from ..candidate_sets import Coverage


MOST_NEEDED = 1_000_000
"""Largest number of questions that is named as needed."""


@app.command()
def candidates(
    records: RecordsArgument,
    artifact: Annotated[Path, typer.Option("--artifact", help="The guard's artifact; the list is bound to it.")],
    epsilon: Annotated[float, typer.Option(help="Largest share of lists without an acceptable answer.")] = 0.2,
    delta: Annotated[float, typer.Option(help="Probability, over calibrations, with which that may fail.")] = 0.1,
    out: Annotated[Path, typer.Option("--out", "-o", help="Rule to write.")] = Path("candidates.json"),
    population: Annotated[
        Literal["held-back", "all"],
        typer.Option(help="The questions that are promised about: those a reviewer sees, or all."),
    ] = "held-back",
    calibration: Annotated[
        list[Path] | None,
        typer.Option(help="Record file of the fit; a question it shares with the records is refused. May be repeated."),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(help="If the artifact's labels are chat_judge's: the same model, as for `label`.")
    ] = None,
) -> None:
    """Fit how many of the model's answers a reviewer is shown.

    The list is as short as it can be while it misses every acceptable answer
    in at most the share epsilon of questions, with confidence 1 - delta. Give
    records that did not fit the threshold; exit code 1 says that no list can
    promise so much.

    Example: calibrate candidates artifact.test.jsonl --artifact artifact.json --epsilon 0.2
    """
    require("sqlalchemy", extra="review")
    from ..candidate_sets import evaluate_candidates, fit_candidates, judge_candidates

    keep_inputs([*records, artifact, *(calibration or ())], [out])
    if not 0 < epsilon < 1:
        raise UsageError(f"--epsilon must be in (0, 1), got {epsilon}. Write 0.2 for 20 %.")
    check_open_unit("--delta", delta)
    loaded = CalibrationArtifact.load(artifact)
    rule = _rule(loaded, judge_model, records[0])
    file = _fitting(read_records(*records), loaded, held_back=population == "held-back")
    if calibration:
        refuse_shared(file, read_records(*calibration))
    judged, left_out = judge_candidates(file.records, loaded, rule)
    if left_out:
        left = f"{left_out} of {len(file.records)} questions are left out"
        print_line(f"{left}: no answer could be shown, or not all could be labelled.", "yellow")
    fitted = fit_candidates(
        judged,
        loaded,
        epsilon=epsilon,
        delta=delta,
        population="held_back" if population == "held-back" else "all",
    )
    if fitted.quantile is None:
        errors.print(
            Panel(escape(_way_out(fitted, delta)), title="Not attainable", title_align="left", border_style="red")
        )
        raise typer.Exit(1)
    _print_result(fitted, evaluate_candidates(judged, fitted), delta)
    out.parent.mkdir(parents=True, exist_ok=True)
    fitted.save(out)
    finish([out], f"show it: ask_reviewer(store, wait=300, candidates=CandidateRule.load({str(out)!r}))")


def _rule(artifact: CalibrationArtifact, judge_model: str | None, records: Path) -> CorrectnessRule:
    """Return the artifact's correctness rule, which must label every answer, not only the primary one."""
    spec = artifact.correctness
    if spec.name not in available_rules() or "undecided" in spec.params:
        raise UsageError(
            f"the artifact's labels are {_given(spec)}, which cannot label the other answers of a list. A list needs "
            f"an artifact whose labels are by a rule ({', '.join(available_rules())}): collect questions with "
            "reference answers, `calibrate label --rule`, `calibrate fit`, and make the list with that artifact. The "
            "guard has to use the same artifact, since a list is shown only for the one it was made with."
        )
    if spec.name == "chat_judge" and judge_model is not None:
        return ChatLabelJudge(resolve_model(judge_model), records.with_name(f"{records.stem}.judge.jsonl"))
    if judge_model is not None:
        raise UsageError(f"--judge-model is for chat_judge, but the artifact's rule is {spec.name}. Leave it out.")
    return make_rule(spec.name, **({} if spec.name == "chat_judge" else spec.params))


def _given(spec: CorrectnessSpec) -> str:
    if spec.params.get("source") == "reviews":
        return "people's decisions (learn) about the model's own answer"
    return f"by {spec.name!r}"


def _fitting(file: RecordFile, artifact: CalibrationArtifact, *, held_back: bool) -> RecordFile:
    """Return the records; refuse another model, plan or prompt and, if ``held_back``, questions of the fit."""
    if file.header.scope.leaves_out:
        raise UsageError(
            f"the questions of {file.path} are those with the lowest scores, and reviewers see the others, too. Label "
            "questions from all scores: calibrate sample --scope 1."
        )
    if held_back:
        return prepared(file, artifact)[0]
    # With all questions the threshold plays no part, so questions of its fit do no harm; labels are made anew.
    header = file.header.model_copy(
        update={"correctness": artifact.correctness, "estimators": {"artifact": artifact.estimator}}
    )
    require_same(artifact, RecordFile(file.path, header, file.records, file.torn), "artifact")
    return file


def _print_result(rule: CandidateRule, coverage: Coverage, delta: float) -> None:
    print_line(
        f"Promised: for at least {percent(1 - rule.epsilon)} of {_whom(rule)} an acceptable answer is in the list, "
        f"with {percent(1 - delta)} confidence over the draw of {rule.n} questions like these. At best "
        f"{percent(1 - rule.attainable)} could be promised."
    )
    print_line(
        f"On these {coverage.n} questions the list holds {coverage.mean_size:.1f} of {coverage.mean_all:.1f} answers "
        f"on average, and an acceptable one for {percent(coverage.covered)}."
    )


def _way_out(rule: CandidateRule, delta: float) -> str:
    """Say why nothing can be promised, and what helps."""
    lines = [
        f"epsilon {rule.epsilon:g} cannot be promised for {_whom(rule)}: the smallest that can be is "
        f"{rule.attainable:.3f}. Of {rule.n} questions {rule.n_without} have no acceptable answer among the model's."
    ]
    missing = rule.n_without / rule.n
    if missing < rule.epsilon:
        needed = rule.n
        while needed < MOST_NEEDED and tail(round(missing * needed), needed, rule.epsilon) > delta:
            needed += 1 + needed // 50
        if needed < MOST_NEEDED:
            lines.append(f"There are too few questions: at this share about {needed} would do.")
    else:
        lines.append(
            "More questions will not help: the model does not have the answers. More samples for each question, or a "
            "better model, may."
        )
    if _up(rule.attainable) < 1:
        lines.append(
            f"--epsilon {_up(rule.attainable):g} can be fitted now; chosen after looking at these questions, it is an "
            "estimate rather than a promise."
        )
    lines.append("Nothing was written. Without a list the page shows every answer, and people can write their own.")
    return "\n\n".join(lines)


def _whom(rule: CandidateRule) -> str:
    return "the questions that are held back" if rule.population == "held_back" else "all questions"


def _up(epsilon: float) -> float:
    """Round up, so that the number shown can be typed."""
    return math.ceil(epsilon * 1000 - 1e-9) / 1000
