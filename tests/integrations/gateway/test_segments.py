"""A threshold for each segment behind the gateway: the operator names the segment, never the client."""

from __future__ import annotations

from typing import Any

import pytest

from guardrail.artifact import CalibrationArtifact, CalibrationScores, Segments
from guardrail.errors import UsageError
from guardrail.testing import make_artifact
from tests.integrations.gateway.conftest import MODEL, UNSURE, Serve
from tests.integrations.gateway.test_gateway import key_named


def by_segment() -> CalibrationArtifact:
    """In "lax" every answer is accepted, in "strict" and in all others only certain ones."""
    strict, lax = (make_artifact(MODEL, threshold=threshold, n=4) for threshold in (0.1, 9.0))
    outcomes = {"lax": lax.outcome, "strict": strict.outcome}
    segments = Segments(outcomes=outcomes, delta=0.1, share="together", unknown="others", min_labels=1)
    scores = CalibrationScores(uncertainty=(0.1, 0.1, 0.1), error=(0, 0, 0), segment=("lax", "strict", None))
    return strict.model_copy(update={"segments": segments, "calibration": scores})


def of_messages(messages: Any) -> str:
    return "lax" if "lax" in str(messages[-1].text) else "strict"


NAMED = f"{__name__}:of_messages"


@pytest.mark.parametrize("header", [{}, {"x-guardrail-segment": "lax"}])
def test_the_key_of_a_client_names_its_segment(serve: Serve, header: dict[str, str]) -> None:
    """A client that names its segment chooses its threshold: the lax one accepts what its own holds back."""
    keys = {name: key_named(name, segment=name) for name in ("lax", "strict")}
    served = serve(artifact=by_segment(), keys=[entry for _, entry in keys.values()])
    for name, (key, _) in keys.items():
        shown = served.ask(UNSURE, {"authorization": f"Bearer {key}", **header}).json()["guardrail"]
        assert (shown["segment"], shown["accepted"]) == (name, name == "lax")


def test_without_a_segment_of_the_key_a_function_of_the_messages_names_it(serve: Serve) -> None:
    served = serve({"segment": NAMED}, artifact=by_segment())
    shown = served.ask(UNSURE, {"x-guardrail-segment": "lax"}).json()["guardrail"]
    assert (shown["segment"], shown["accepted"]) == ("strict", False)


@pytest.mark.parametrize("keys", [[], [("ann", None)], [("ann", "strict"), ("bob", None)]])
def test_a_gateway_that_knows_no_segment_of_a_client_does_not_start(serve: Serve, keys: Any) -> None:
    """Its questions would all be errors, or, worse, get the threshold of other questions."""
    entries = [key_named(name, **({"segment": segment} if segment else {}))[1] for name, segment in keys]
    with pytest.raises(UsageError, match="Give every key a segment"):
        serve(artifact=by_segment(), keys=entries)
