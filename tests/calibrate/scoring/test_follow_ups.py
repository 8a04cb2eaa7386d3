"""Follow-ups on the way through calibration: collected once, stored in the records, narrowed to what is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from langchain_core.outputs import ChatResult

from calibrate.correctness import Exact, label_records
from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from calibrate.data.records import read_records, write_records
from calibrate.pipeline import fit_artifact
from calibrate.scoring.compute import score_records, supported
from guardrail.prompting import question_text
from guardrail.testing import ScriptedChat
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.plan import plan_for
from tests.calibrate import fakes

SIZE = 40
PLAN = plan_for([make("discrete_semantic_entropy"), make("verbalised")], n=3)


class Confident(ScriptedChat):
    """States a confidence when asked for one: the length of its answer."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if "from 0" in (asked := question_text(messages)):
            answer = json.loads(asked.partition("Answer: ")[2].splitlines()[0])
            return ScriptedChat(default=[str(10 * len(answer))])._generate(messages)
        return super()._generate(messages, stop, run_manager, **kwargs)


def collected(path: Path) -> Path:
    questions = [Question(**row) for row in fakes.rows(SIZE)]
    collect_records(questions, Confident(script=fakes.script(SIZE)), PLAN, path)
    return path


def test_replies_are_part_of_the_records_and_scored_later_without_the_model(tmp_path: Path) -> None:
    file = read_records(collected(tmp_path / "r.jsonl"))
    assert file.header.plan.follow_ups == ("verbalised",)
    estimators = supported(file.header.plan)
    names = [estimator.name for estimator in estimators]
    assert "verbalised" in names
    assert not {"p_true", "selfcheck_prompt", "selfcheck_nli"} & set(names), "these were not asked, or lack a model"
    scored = score_records(file, [make("verbalised")])
    for record in scored.records:
        assert record.answer is not None
        assert record.scores["verbalised"].value == 1 - 10 * len(record.answer) / 100


def test_choice_questions_without_samples_support_a_stated_confidence() -> None:
    plan = SamplingPlan(n=0, options=("A", "B"), follow_ups=("verbalised",))
    assert {"verbalised", "predictive_entropy"} <= {estimator.name for estimator in supported(plan)}


def test_an_artifact_asks_only_what_its_own_estimator_reads(tmp_path: Path) -> None:
    path = collected(tmp_path / "r.jsonl")
    scored = score_records(read_records(path), [make("verbalised"), make("discrete_semantic_entropy")])
    header = scored.header.model_copy(update={"correctness": Exact().spec})
    write_records(path, header, label_records(scored.records, Exact()))
    labelled = read_records(path)
    stated = fit_artifact(labelled, score="verbalised", alpha=0.5, rule="acrc")
    assert (stated.plan.follow_ups, stated.plan.n) == (("verbalised",), 0)
    clusters = fit_artifact(labelled, score="discrete_semantic_entropy", alpha=0.5, rule="acrc")
    assert (clusters.plan.follow_ups, clusters.plan.n) == ((), 3)


def test_collecting_again_asks_nothing_twice(tmp_path: Path) -> None:
    path = collected(tmp_path / "r.jsonl")
    before = path.read_bytes()
    collected(path)
    assert path.read_bytes() == before
