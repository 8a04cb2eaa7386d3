"""`guardrail serve` on a real socket: what clients send and get."""

from __future__ import annotations

import pytest

from tests.integrations.gateway.conftest import SURE, UNSURE, Serve
from tests.integrations.openai.faulty_endpoint import Endpoint


def test_an_accepted_answer_is_a_completion(serve: Serve, endpoint: Endpoint) -> None:
    reply = serve().openai().chat.completions.create(model="support", messages=[{"role": "user", "content": SURE}])
    print(reply)
