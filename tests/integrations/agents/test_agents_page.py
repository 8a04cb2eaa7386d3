"""Every Python block of docs/agents.md runs, in order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from guardrail import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, balance, calls, transfer

PAGE = Path(__file__).parents[3] / "docs" / "agents.md"


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    payees = ["alex.meyer", "alex.chen", "alex.meyer", "alex.chen", "alex.chen"]
    unsure = [calls(("transfer", {"to": payee, "amount": 40})) for payee in payees]
    script: dict[tuple[str, int], list[Any]] = {
        ("Send 40 euros to Alex", 0): unsure,
        ("Send 40 euros to Alex", 1): ["Done."],
    }
    rows = []
    for k in range(30):
        meant = {"to": "bob", "amount": k}
        script[f"Send {k} to Bob", 0] = [calls(("transfer", meant)), *(calls(("transfer", meant)) for _ in range(2))]
        message = {"role": "user", "content": f"Send {k} to Bob"}
        rows.append({"messages": [message], "references": [{"name": "transfer", "arguments": meant}], "group": str(k)})
    script["Send 7 to Bob", 0].append(calls(("transfer", {"to": "bob", "amount": 70})))
    (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    chat = AgentChat(steps=script)
    made = make_artifact(
        chat, prompt=PromptWrapping(system=SYSTEM), n=4, bindings=bindings_for([balance, transfer]), threshold=0.1
    )
    made.save("answers.json")
    made.save("transfers.json")
    make_artifact(chat, n=4).save("plain.json")
    names: dict[str, Any] = {"chat": chat, "balance": balance, "transfer": transfer, "SYSTEM": SYSTEM}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/agents.md, block {number + 1}", "exec"), names)
        if number == 0:
            assert names["waiting"]["candidate"]["tool_calls"] == [
                {"name": "transfer", "args": {"to": "alex.meyer", "amount": 40}}
            ]
            assert names["result"]["messages"][-1].text == "Done."
        if number == 1:
            assert names["held"]["message"]["tool_calls"][0]["args"] == {"to": "alex.meyer", "amount": 40}
            assert "0.5623 > 0.1 nats" in names["held"]["verdict"]["detail"]  # -3/4 ln 3/4 - 1/4 ln 1/4
        if number == 2:
            assert len(names["bridge"].store.items()) == 1
            names["bridge"].store.close()
    assert names["app"].invoke({"messages": ["Send 3 to Bob"]}, {"configurable": {"thread_id": "p"}})
    assert CalibrationArtifact.load("transfers.json").outcome.n == 30
