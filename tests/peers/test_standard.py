"""LangChain's standard integration tests against llama-server, with the flags that class, server and model allow.

Structured output is held to its schema by the server. The embedded model was never shown a tool, and its free JSON has
no particular keys, so tool calling and JSON mode are not claimed here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel

pytest.importorskip("langchain_tests")

from langchain_tests.integration_tests import ChatModelIntegrationTests

from guardrail import ArtifactMismatchError, Guardrail, PromptWrapping
from guardrail.testing import make_artifact
from integrations.openai_chat import OpenAICompatibleChat
from tests.peers.servers import Peer

ENDING = {"logit_bias": [['"', 15.0]]}
"""Makes the end of a string likely: the model never saw JSON, and would fill the context with the text of a schema."""


class _OnLlama(ChatModelIntegrationTests):
    """Standard tests on the server of this session."""

    peer: ClassVar[Peer]

    has_tool_calling = False
    has_tool_choice = False
    supports_json_mode = False
    supports_image_inputs = False
    returns_usage_metadata = True

    @pytest.fixture(autouse=True)
    def _on_the_server(self, llama: Peer) -> None:
        type(self).peer = llama


class TestOpenAICompatibleChat(_OnLlama):
    """The class alone."""

    has_structured_output = True

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return OpenAICompatibleChat

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.peer.model, "base_url": self.peer.url, "max_tokens": 400, "extra_body": ENDING}


class TestGuard(_OnLlama):
    """The guard on top, with a threshold that accepts everything it can measure."""

    has_structured_output = False  # the artifact was calibrated without a response format, and binds that

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return Guardrail

    @property
    def chat_model_params(self) -> dict[str, Any]:
        model = OpenAICompatibleChat(model=self.peer.model, base_url=self.peer.url)
        prompt = PromptWrapping(other_turns="mark")
        return {"model": model, "artifact": make_artifact(model, threshold=99.0, n=2, prompt=prompt)}

    @pytest.mark.xfail(
        raises=ArtifactMismatchError,
        reason="the artifact binds the system message, and two of them were not calibrated",
        strict=True,
    )
    def test_double_messages_conversation(self, model: BaseChatModel) -> None:
        """The guard refuses it."""
        super().test_double_messages_conversation(model)

    @pytest.mark.xfail(raises=ArtifactMismatchError, reason="the artifact binds the stop strings", strict=True)
    def test_stop_sequence(self, model: BaseChatModel) -> None:
        """The guard refuses it."""
        super().test_stop_sequence(model)
