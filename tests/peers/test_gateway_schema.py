"""The gateway answers every request that OpenAI's API description allows without a server error and in its schema.

The description is in github.com/openai/openai-openapi, not here: ``make test-schema OPENAPI=openapi.json``.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.gateway.conftest import Held, Serve, endpoint, serve

__all__ = ["endpoint", "serve"]

pytestmark = pytest.mark.peers
SERVED = {"/chat/completions": "post", "/models": "get", "/models/{model}": "get"}
CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance"


def refs(value: Any) -> Iterator[str]:
    """Yield every component that a value refers to."""
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if name == "$ref" and isinstance(inner, str):
            yield inner
        elif isinstance(inner, dict | list):
            yield from refs(inner)


def trimmed(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the description that the gateway serves, with the errors that the description omits."""
    paths = {path: {method: whole["paths"][path][method]} for path, method in SERVED.items()}
    failed = {
        "description": "error",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}},
    }
    for path, method in SERVED.items():
        responses = {
            status: response for status, response in paths[path][method]["responses"].items() if status == "200"
        }
        responses["200"]["content"].pop("text/event-stream", None)  # a JSON validator cannot read events
        paths[path][method] = {
            **paths[path][method],
            "responses": {**responses, "4XX": failed, "5XX": failed},
            "security": [],
        }
    description: dict[str, Any] = {
        "openapi": whole["openapi"],
        "info": whole["info"],
        "paths": paths,
        "components": {"schemas": {}},
    }
    waiting = list(refs(paths))
    while waiting:
        _, _, kind, name = waiting.pop().split("/")
        components = description["components"].setdefault(kind, {})
        if name not in components:
            components[name] = whole["components"][kind][name]
            waiting += refs(components[name])
    for part in description["components"]["schemas"]["CreateChatCompletionRequest"]["allOf"]:
        if "model" in part.get("properties", {}):
            part["properties"]["model"] = {"type": "string", "enum": ["support"]}
    return description


@pytest.mark.parametrize("settings", ["refuse", "replace"])
def test_no_request_of_the_description_is_a_server_error(
    serve: Serve, endpoint: Held, tmp_path: Path, settings: str
) -> None:
    if "OPENAPI" not in os.environ or "SCHEMATHESIS" not in os.environ:
        pytest.skip("OPENAPI and SCHEMATHESIS are not set: run `make test-schema OPENAPI=openapi.json`")
    description = tmp_path / "openapi.json"
    description.write_text(json.dumps(trimmed(json.loads(Path(os.environ["OPENAPI"]).read_text(encoding="utf-8")))))
    url = serve({"settings": settings}).url
    command = [
        os.environ["SCHEMATHESIS"],
        "run",
        str(description),
        "--url",
        f"{url}/v1",
        "--checks",
        CHECKS,
        "--no-color",
    ]
    result = subprocess.run(
        [*command, "--seed", "1", "--max-examples", "60", "--phases", "examples,coverage,fuzzing", "--mode", "all"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=500,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
