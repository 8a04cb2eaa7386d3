"""LangChain's standard tests, with the flags each class honestly claims (docs/langchain.md names the refusals)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel

pytest.importorskip("langchain_tests")

from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import ValidationError

from guardrail import ArtifactMismatchError, Guardrail, UsageError
from guardrail.prompting import PromptWrapping
from guardrail.testing import ScriptedChat, make_artifact

WEIGHTS = Path(__file__).resolve().parents[3] / "examples" / "tiny_model" / "orrin-1.5m"
SCRIPTED = ScriptedChat(default=["Hello there"])
MARKING = PromptWrapping(other_turns="mark")


class Claims:
    """The claims: text in, text out, with the tokens that were used. Nothing needs the network."""

    has_tool_calling = False
    has_tool_choice = False
    has_structured_output = False
    supports_image_inputs = False
    supports_image_urls = False
    supports_json_mode = False
    returns_usage_metadata = True


class _Guard(Claims):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return Guardrail

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": SCRIPTED, "artifact": make_artifact(SCRIPTED, prompt=MARKING), "on_abstain": "raise"}


class TestGuardrailUnit(_Guard, ChatModelUnitTests):
    """The guard as a class."""

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        """None: temperature, stop and the like are the artifact's, and the guard refuses them as settings."""
        return {}

    @pytest.mark.xfail(
        raises=ValidationError,
        reason="max_tokens, stop and the like are the artifact's; given as settings they would be ignored",
        strict=True,
    )
    def test_standard_params(self, model: BaseChatModel) -> None:
        """Refused."""
        super().test_standard_params(model)


class _Refusals(ChatModelIntegrationTests):
    """The requests that a guard refuses because it was not calibrated with them."""

    @pytest.mark.xfail(
        raises=ArtifactMismatchError,
        reason="the artifact binds the system message, and two of them were not calibrated",
        strict=True,
    )
    def test_double_messages_conversation(self, model: BaseChatModel) -> None:
        """Refused."""
        super().test_double_messages_conversation(model)

    @pytest.mark.xfail(raises=ArtifactMismatchError, reason="the artifact binds the stop strings", strict=True)
    def test_stop_sequence(self, model: BaseChatModel) -> None:
        """Refused."""
        super().test_stop_sequence(model)


class TestGuardrailIntegration(_Guard, _Refusals):
    """The guard over a scripted model that is always sure."""


class _Local(Claims):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return pytest.importorskip("integrations.transformers_chat").TransformersChat  # type: ignore[no-any-return]

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": str(WEIGHTS), "device": "cpu"}


class TestTransformersChatUnit(_Local, ChatModelUnitTests):
    """The embedded model as a class."""

    @pytest.mark.xfail(
        raises=AssertionError,
        reason="the model cannot be changed by a call (model=... is refused), so no trace can misname it",
        strict=True,
    )
    def test_standard_params_model_override(self, model: BaseChatModel) -> None:
        """The name in traces stays that of the one model there is."""
        super().test_standard_params_model_override(model)

    def test_a_call_cannot_change_the_model(self, model: BaseChatModel) -> None:
        """The expected failure above rests on this refusal."""
        with pytest.raises(UsageError, match="model: Extra inputs"):
            model.invoke("?", model="another")


class TestTransformersChatIntegration(_Local, ChatModelIntegrationTests):
    """The embedded model, really asked."""


class TestGuardedTransformersChatIntegration(Claims, _Refusals):
    """The guard over the embedded model, with a threshold that accepts everything it can measure."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return Guardrail

    @property
    def chat_model_params(self) -> dict[str, Any]:
        model = pytest.importorskip("integrations.transformers_chat").TransformersChat(model=str(WEIGHTS), device="cpu")
        return {"model": model, "artifact": make_artifact(model, threshold=99.0, n=2, prompt=MARKING)}


class TestOpenAICompatibleChatUnit(ChatModelUnitTests):
    """The endpoint class; its integration tests run against real servers elsewhere."""

    supports_json_mode = True

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return pytest.importorskip("integrations.openai_chat").OpenAICompatibleChat  # type: ignore[no-any-return]

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "any", "base_url": "http://127.0.0.1:9/v1", "api_key": "k"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"OPENAI_API_KEY": "key"}, {"model": "any"}, {"model": "any"}
