"""Offline half: labelled questions in, calibration artifact and report out.

    questions -> `collect_records` -> `score_records` -> `label_records` -> `fit_artifact` -> artifact, `write_report`
    an agent's steps -> `collect_steps` -> `score_records`, `label_records` -> `split_by_action` -> `fit_action`
    a data frame of logged generations -> `from_frame` -> the same steps as methods (docs/python.md)

The same as commands: ``calibrate run``, or step by step (docs/calibrating.md). Threshold rules alone, on arrays: `fit`
and `evaluate`. Importing this loads neither a model framework nor plotting nor the command line.
"""

from __future__ import annotations

from guardrail.errors import require

for _package in ("filelock", "scipy"):
    require(_package, extra="calibrate")

from .agent_steps import (  # noqa: E402
    Step,
    collect_steps,
    fit_action,
    read_steps,
    split_by_action,
    steps_of,
    write_steps,
)
from .correctness import label_records, make_rule  # noqa: E402
from .data.collect import collect_records  # noqa: E402
from .data.questions import Question, read_questions  # noqa: E402
from .data.records import Record, RecordFile, RecordHeader, read_records, write_records  # noqa: E402
from .data.split import split  # noqa: E402
from .dataframe import Records, from_frame  # noqa: E402
from .evaluation.audit import audit  # noqa: E402
from .evaluation.evaluate import evaluate  # noqa: E402
from .evaluation.planning import Plan, plan  # noqa: E402
from .pipeline import fit_artifact, held_out, refit  # noqa: E402
from .report import write_report  # noqa: E402
from .scoring.scores import score_records  # noqa: E402
from .thresholds import Rule, conformal_selection, fit, rules  # noqa: E402

__all__ = [
    "Plan",
    "Question",
    "Record",
    "RecordFile",
    "RecordHeader",
    "Records",
    "Rule",
    "Step",
    "audit",
    "collect_records",
    "collect_steps",
    "conformal_selection",
    "evaluate",
    "fit",
    "fit_action",
    "fit_artifact",
    "from_frame",
    "held_out",
    "label_records",
    "make_rule",
    "plan",
    "read_questions",
    "read_records",
    "read_steps",
    "refit",
    "rules",
    "score_records",
    "split",
    "split_by_action",
    "steps_of",
    "write_records",
    "write_report",
    "write_steps",
]
