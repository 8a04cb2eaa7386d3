"""LiteLLM: the guardrail hook of the proxy, called without a proxy.

Offline: the model is a function. A proxy calls the same hook; docs/frameworks.md shows its two configuration files.

    python -m examples.frameworks.litellm_hook          (needs litellm, in a separate environment)
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from guardrail.errors import MissingDependencyError
from guardrail.testing import make_artifact

try:
    from integrations.litellm_proxy import CalibratedGuardrail, LiteLLMChat
except MissingDependencyError as error:
    raise SystemExit(f"This example needs litellm, in a separate environment: {error}") from error

cities = itertools.cycle(["Oslo", "Bern", "Riga", "Lima"])


async def scripted(**request: Any) -> dict[str, Any]:
    """Answer as a model that knows France only."""
    is_known = "France" in request["messages"][-1]["content"]
    text = "Paris" if is_known else next(cities)
    return {"model": request["model"], "choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


async def main() -> list[str]:
    """Send two requests through the hook."""
    guard = CalibratedGuardrail(
        guardrail_name="calibrated",
        event_hook="pre_call",
        default_on=True,
        artifact=make_artifact(LiteLLMChat(name_of_model="small")),
        complete=scripted,
        guard_options={"probe": "off"},
    )
    lines = []
    for question in ("Capital of France?", "Capital of Atlantis?"):
        data = {"model": "small", "messages": [{"role": "user", "content": question}]}
        rewritten = await guard.async_pre_call_hook(None, None, data, "acompletion")
        lines.append(f"{question} {rewritten['mock_response'].choices[0].message.content}")
    return lines


if __name__ == "__main__":
    print("\n".join(asyncio.run(main())))
