"""Offline half: labelled questions in, calibration artifact and report out.

    questions -> `collect_records` -> `score_records` -> `label_records` -> `fit_artifact` -> artifact, `write_report`
    an agent's steps -> `collect_steps` -> `score_records`, `label_records` -> `split_by_action` -> `fit_action`
    a data frame of logged generations -> `from_frame` -> the same steps as methods (docs/python.md)

The same as commands: ``calibrate run``, or step by step (docs/calibrating.md). Threshold rules alone, on arrays: `fit`
and `evaluate`. Importing this loads neither a model framework nor plotting nor the command line.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guardrail.errors import MissingDependencyError, require

try:
    for _package in ("filelock", "scipy"):
        require(_package, extra="calibrate")
except MissingDependencyError as _error:
    if Path(sys.argv[0]).stem == "calibrate":  # the command imports this before its own code can catch anything
        sys.exit(str(_error))
    raise

if TYPE_CHECKING:
    from .agent_steps import (
        fit_action,
        read_steps,
        split_by_action,
        steps_of,
        write_steps,
    )
    from .correctness import label_records, make_rule
    from .data.collect import collect_records
    from .data.formats import ImportSettings, ScoreColumn
    from .data.questions import Question, read_questions
    from .data.records import Record, RecordFile, RecordHeader, read_records, write_records
    from .data.split import split
    from .dataframe import Records, from_frame
    from .evaluation.audit import audit
    from .evaluation.evaluate import evaluate
    from .evaluation.planning import Plan, plan
    from .fitting import fit
    from .pipeline import FitSettings, fit_artifact, held_out
    from .report import write_report
    from .router import ByGroup, fit_router
    from .rules import Rule
    from .scoring.compute import score_records

__all__ = [
    "ByGroup",
    "FitSettings",
    "ImportSettings",
    "Plan",
    "Question",
    "Record",
    "RecordFile",
    "RecordHeader",
    "Records",
    "Rule",
    "ScoreColumn",
    "audit",
    "collect_records",
    "evaluate",
    "fit",
    "fit_action",
    "fit_artifact",
    "fit_router",
    "from_frame",
    "held_out",
    "label_records",
    "make_rule",
    "plan",
    "read_questions",
    "read_records",
    "read_steps",
    "score_records",
    "split",
    "split_by_action",
    "steps_of",
    "write_records",
    "write_report",
    "write_steps",
]

_MODULES = {
    "ByGroup": "router",
    "FitSettings": "pipeline",
    "ImportSettings": "data.formats",
    "Plan": "evaluation.planning",
    "Question": "data.questions",
    "Record": "data.records",
    "RecordFile": "data.records",
    "RecordHeader": "data.records",
    "Records": "dataframe",
    "Rule": "rules",
    "ScoreColumn": "data.formats",
    "audit": "evaluation.audit",
    "collect_records": "data.collect",
    "evaluate": "evaluation.evaluate",
    "fit": "fitting",
    "fit_action": "agent_steps",
    "fit_artifact": "pipeline",
    "fit_router": "router",
    "from_frame": "dataframe",
    "held_out": "pipeline",
    "label_records": "correctness",
    "make_rule": "correctness",
    "plan": "evaluation.planning",
    "read_questions": "data.questions",
    "read_records": "data.records",
    "read_steps": "agent_steps",
    "score_records": "scoring.compute",
    "split": "data.split",
    "split_by_action": "agent_steps",
    "steps_of": "agent_steps",
    "write_records": "data.records",
    "write_report": "report",
    "write_steps": "agent_steps",
}
"""Public names and the modules that define them, loaded when a name is first used."""
_PARTS = {module.partition(".")[0] for module in _MODULES.values()}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when the name is first used (PEP 562)."""
    module = _MODULES.get(name, name if name in _PARTS else None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = import_module(f".{module}", __name__)
    if name not in _MODULES:
        return loaded
    value = globals()[name] = getattr(loaded, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
