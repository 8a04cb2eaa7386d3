"""A threshold for each group behind the gateway: the operator names the group, never the client."""

from __future__ import annotations

from typing import Any

import pytest

from guardrail.artifact import ALL_OTHERS, RouterArtifact
from guardrail.errors import UsageError
from guardrail.testing import make_artifact
from tests.integrations.gateway.conftest import MODEL, UNSURE, Serve
from tests.integrations.gateway.test_gateway import key_named


def by_group() -> RouterArtifact:
    """In "lax" every answer is accepted, in "strict" and in all others only certain ones."""
    strict, lax = (make_artifact(MODEL, threshold=threshold, n=4) for threshold in (0.1, 9.0))
    return RouterArtifact(artifacts={"lax": lax, "strict": strict, ALL_OTHERS: strict})


def of_messages(messages: Any) -> str:
    return "lax" if "lax" in str(messages[-1].text) else "strict"


NAMED = f"{__name__}:of_messages"


@pytest.mark.parametrize("header", [{}, {"x-guardrail-route": "lax"}])
def test_the_key_of_a_client_names_its_group(serve: Serve, header: dict[str, str]) -> None:
    """A client that names its group chooses its threshold: the lax one accepts what its own holds back."""
    keys = {name: key_named(name, route=name) for name in ("lax", "strict")}
    served = serve({"route": NAMED}, artifact=by_group(), keys=[entry for _, entry in keys.values()])
    for name, (key, _) in keys.items():
        shown = served.ask(UNSURE, {"authorization": f"Bearer {key}", **header}).json()["guardrail"]
        assert (shown["route"], shown["accepted"]) == (name, name == "lax")


def test_without_a_route_of_the_key_a_function_of_the_messages_names_it(serve: Serve) -> None:
    served = serve({"route": NAMED}, artifact=by_group())
    shown = served.ask(UNSURE, {"x-guardrail-route": "lax"}).json()["guardrail"]
    assert (shown["route"], shown["accepted"]) == ("strict", False)


@pytest.mark.parametrize("keys", [[], [("ann", None)], [("ann", "strict"), ("bob", None)]])
def test_a_gateway_that_knows_no_group_of_a_client_does_not_start(serve: Serve, keys: Any) -> None:
    """Its questions would all be errors, or, worse, get the threshold of other questions."""
    entries = [key_named(name, **({"route": route} if route else {}))[1] for name, route in keys]
    with pytest.raises(UsageError, match="Give every key a route"):
        serve(artifact=by_group(), keys=entries)


def test_a_router_is_refused_where_one_artifact_is_needed(serve: Serve) -> None:
    with pytest.raises(UsageError, match="mode: observe measures behind one artifact"):
        serve({"mode": "observe", "route": NAMED}, artifact=by_group())
