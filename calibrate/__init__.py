"""Offline half: labelled questions in, calibration artifact and report out.

    questions -> `collect_records` -> `score_records` -> `label_records` -> `fit_artifact` -> artifact, `write_report`
    an agent's steps -> `collect_records` -> `score_records`, `label_records` -> `split_by_action` -> `fit_action`
    a data frame of logged generations -> `from_frame` -> the same steps as methods (docs/python.md)

The same as commands: ``calibrate run``, or step by step (docs/calibrating.md). Threshold rules alone, on arrays: `fit`
and `evaluate`. Importing this loads neither a model framework nor plotting nor the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from guardrail import loading
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
        split_by_action,
        steps_of,
    )
    from .correctness import label_records, make_rule
    from .data.collect import collect_records
    from .data.formats.field_map import ImportSettings
    from .data.formats.questions import read_questions
    from .data.questions import Question
    from .data.records import Record, RecordFile, RecordHeader, read_records, write_records
    from .data.split import split
    from .dataframe import Records, from_frame
    from .evaluation.audit import audit
    from .evaluation.evaluate import evaluate
    from .evaluation.planning import Plan, plan
    from .fitting import fit
    from .judging import held_out
    from .pipeline import fit_artifact
    from .report import write_report
    from .router import ByGroup, fit_router
    from .rules import Rule
    from .scoring.compute import score_records

__all__ = [
    "ByGroup",
    "ImportSettings",
    "Plan",
    "Question",
    "Record",
    "RecordFile",
    "RecordHeader",
    "Records",
    "Rule",
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
    "score_records",
    "split",
    "split_by_action",
    "steps_of",
    "write_records",
    "write_report",
]

_MODULES = {
    "agent_steps": "fit_action split_by_action steps_of",
    "correctness": "label_records make_rule",
    "data.collect": "collect_records",
    "data.formats.field_map": "ImportSettings",
    "data.formats.questions": "read_questions",
    "data.questions": "Question",
    "data.records": "Record RecordFile RecordHeader read_records write_records",
    "data.split": "split",
    "dataframe": "Records from_frame",
    "evaluation.audit": "audit",
    "evaluation.evaluate": "evaluate",
    "evaluation.planning": "Plan plan",
    "fitting": "fit",
    "judging": "held_out",
    "pipeline": "fit_artifact",
    "report": "write_report",
    "router": "ByGroup fit_router",
    "rules": "Rule",
    "scoring.compute": "score_records",
}
"""Public names by the module that defines them, which is loaded when a name is first used."""

__getattr__, __dir__ = loading(__name__, _MODULES)
