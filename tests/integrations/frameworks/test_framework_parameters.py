"""Parameters mean the same in every adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from agents import Model, ModelSettings
from pydantic import ValidationError

from guardrail import CalibrationArtifact
from guardrail.errors import GuardrailError, UsageError
from guardrail.judges import ExactJudge, JudgeSpec
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import make_estimator as make
from integrations import openai_agents_guard, pydantic_ai_guard


class NamedJudge(ExactJudge):
    """A judge that no registry knows."""

    spec = JudgeSpec(name="ours", version=1, params={})


class Agents(Model):
    """A model of the Agents SDK that is never asked."""

    async def get_response(self, *args: Any, **named: Any) -> Any:
        raise AssertionError("nothing is asked here")

    def stream_response(self, *args: Any, **named: Any) -> Any:
        raise AssertionError("nothing is asked here")


def judged(model: Any) -> CalibrationArtifact:
    spec = make("discrete_semantic_entropy", judge=NamedJudge()).spec
    return make_artifact(model).model_copy(update={"estimator": spec})


def test_unknown_names_are_refused() -> None:
    model, settings, chat = Agents(), ModelSettings(), ScriptedChat(default=["Paris"])
    artifact = make_artifact(chat)
    unknown: dict[str, Any] = {"inner": model, "settings": settings}
    for kind in (openai_agents_guard.AgentsModelChat, pydantic_ai_guard.PydanticAIChat):
        for name, value in unknown.items():
            with pytest.raises(ValidationError, match=name):
                kind(**{"model": model, name: value})
    with pytest.raises(UsageError, match="settings"):
        openai_agents_guard.GuardedModel(chat, artifact, **cast("Any", {"settings": settings}))
    for name in ("settings", "options"):
        with pytest.raises(UsageError, match=name):
            pydantic_ai_guard.GuardCapability(artifact, **cast("Any", {name: {}}))
    with pytest.raises(ValueError, match="on_abstain"):
        openai_agents_guard.GuardedModel(chat, artifact, on_abstain="hold")  # type: ignore[arg-type]


def test_judges_are_given_one_or_several_by_name(tmp_path: Path) -> None:
    model, judge = ScriptedChat(default=["Paris"]), NamedJudge()
    calibrated = judged(model)
    calibrated.save(tmp_path / "artifact.json")
    for judges in (judge, {"ours": judge, "another": ExactJudge()}):
        for artifact in (calibrated, tmp_path / "artifact.json"):
            guarded = openai_agents_guard.GuardedModel(model, artifact, using={"judge": judges})
            (gate,) = guarded._gate.gate.gates.values()
            assert gate.estimator.judge is judge
    with pytest.raises(GuardrailError, match="judge"):
        openai_agents_guard.GuardedModel(model, calibrated, using={"judge": {"another": judge}})
