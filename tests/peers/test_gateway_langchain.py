"""LangChain's standard integration tests with ChatOpenAI, whose address is a gateway's."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel

pytest.importorskip("langchain_tests")

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from tests.integrations.gateway.conftest import MODEL, Serve, endpoint, serve

__all__ = ["TestChatOpenAI", "endpoint", "serve"]

pytestmark = pytest.mark.peers


class TestChatOpenAI(ChatModelIntegrationTests):
    """A guard refuses tools and formats that were not calibrated, so the class declares none."""

    url: ClassVar[str]

    has_tool_calling = False
    has_structured_output = False
    supports_json_mode = False
    supports_image_inputs = False
    returns_usage_metadata = True

    @pytest.fixture(autouse=True)
    def _through_a_gateway(self, serve: Serve, request: pytest.FixtureRequest) -> None:
        # Two system messages are not the calibrated prompt, so a guard refuses that conversation.
        mode = "observe" if request.node.name == "test_double_messages_conversation" else "guard"
        artifact = make_artifact(MODEL, threshold=0.1, n=4, prompt=PromptWrapping(other_turns="mark"))
        type(self).url = serve({"settings": "replace", "mode": mode}, artifact).url

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "support", "base_url": f"{self.url}/v1", "api_key": "any", "stream_usage": True}
