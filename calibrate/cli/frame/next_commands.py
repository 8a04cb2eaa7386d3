"""The next command to type, as text that a shell takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from guardrail.artifact import CalibrationArtifact
from guardrail.items.spec import ITEMS
from guardrail.outcome import Feasible, Infeasible
from guardrail.sampling.follow_ups import SCORE

from ...data.records import RecordHeader
from ...evaluation.choice import AUTO
from ...fitting import DEFAULT_DELTA, Target
from ...rules import RULES
from ...scoring.names import usual_key
from ...spec_syntax import estimator_flags, rule_text


def listed(paths: Iterable[Path | str]) -> str:
    """Quote file names for a shell."""
    return shlex.join(map(str, paths))


def next_step(header: RecordHeader, path: Path, estimator: str | None = None) -> str:
    """The next command for a record file: score, label, or fit, on the scores of an estimator or the usual ones."""
    name = shlex.quote(str(path))
    if not header.estimators:
        return f"calibrate score {name}"
    if header.correctness is None:
        return f"calibrate label {name}"
    return f"calibrate fit {name}{_score_flags(header, estimator)} --alpha 0.1"


def _score_flags(header: RecordHeader, estimator: str | None) -> str:
    """The options of `fit` that name the score, after a space; "" where `fit` takes it by itself."""
    keys = sorted(header.estimators)
    if header.scope.is_drawn:  # the draw fixed the score
        return f" {estimator_flags(header.scope.score)}"
    if estimator is None:
        if usual_key(header.plan) in keys or len(keys) == 1:
            return ""
        # The usual score is not in the file. This one needs nothing but samples, so that most files have it.
        estimator = "discrete_semantic_entropy" if "discrete_semantic_entropy" in keys else keys[0]
    if estimator.startswith(SCORE):  # `fit` reads scores by their key; only `score` needs the scorer again
        return f" --score {shlex.quote(estimator)}"
    return f" {estimator_flags(estimator)}"


def fresh_command(artifact: CalibrationArtifact, key: str, fresh: Sequence[Path], out: Path, columns: str = "") -> str:
    """The command that calibrates on fresh files alone; ``columns`` are the options that read those that are tables.

    Questions that refuted an artifact are of another population than those it was fitted on: a threshold for both
    together keeps its promise for neither.
    """
    target = shlex.quote(str(out.with_name(f"{out.stem}-new.json")))
    return f"calibrate fit {listed(fresh)}{columns} {fit_flags(artifact, key)} --out {target}"


def fit_flags(artifact: CalibrationArtifact, key: str) -> str:
    """The options of `fit` that repeat an artifact's fit, of a custom rule those that are not the rule's."""
    outcome = artifact.outcome
    target = outcome.options.get("alpha", artifact.alpha)  # "smallest" where that was asked for
    # To fit the chosen score on all questions would use those of the choice again.
    score = f"--score {shlex.quote(key if artifact.data.choice is None else AUTO)}"
    flags = [f"{estimator_flags(key) if key == ITEMS else score} --alpha {target}"]
    if outcome.rule in RULES:
        flags.append(f"--rule {shlex.quote(_rule_text(outcome))}")
    if artifact.calibration.group is not None:
        flags.append("--cluster-by-group")
    return " ".join(flags)


def _rule_text(outcome: Feasible | Infeasible) -> str:
    """A rule with the options that its defaults do not give."""
    options = outcome.options
    required = {"cap": options["cap"]} if "cap" in options else {}  # rules for items have no default
    defaults = Target.of(outcome.rule, alpha=outcome.alpha, settings=required).resolved(outcome.n)
    chosen = {name: options[name] for name in defaults if name in options and options[name] != defaults[name]}
    delta = {} if outcome.delta in (None, DEFAULT_DELTA) else {"delta": f"{outcome.delta:.12g}"}
    return rule_text(outcome.rule, {**required, **chosen, **delta})
