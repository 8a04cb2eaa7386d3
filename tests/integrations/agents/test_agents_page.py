"""Every Python block of docs/agents.md runs, in order."""

from __future__ import annotations

import ast
import builtins
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver
from typer.testing import CliRunner

from calibrate.cli import app
from guardrail import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.outcome import Infeasible
from guardrail.prompting import PromptWrapping
from guardrail.review import Candidate, Decision
from guardrail.testing import make_artifact
from guardrail.types import ToolCall
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, balance, calls, transfer

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "agents.md"
RUNS = Path(__file__).parents[3] / "examples" / "recorded" / "tau-bench-airline.csv"


def decide(bridge: Any, agent: Any) -> None:
    """Decide as people would: 18 transfers are right, one is edited to another amount, and one is rejected."""
    for item in bridge.store.items(limit=100):
        amount = item.content.candidate.tool_calls[0].arguments["amount"]
        edited = Candidate(tool_calls=(ToolCall(name="transfer", arguments={"to": "bob", "amount": 70}),))
        decision = Decision(action="edit", candidate=edited) if amount == 7 else Decision(action="approve")
        lease = bridge.store.claim("ann", item=item.id)
        bridge.store.decide(lease, Decision(action="reject") if amount == 8 else decision)
    done = [bridge.resume(agent, {"configurable": {"thread_id": f"c{thread}"}}) for thread in range(20)]
    ran = [result["messages"][-2].text for result in done]
    assert ran[3] == "sent 3 to bob"
    assert ran[7].endswith("sent 70 to bob")
    assert "was not run" in ran[8]


def test_the_score_of_whole_runs_is_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of the page come from the recorded table by the page's commands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / RUNS.name).write_bytes(RUNS.read_bytes())
    page = PAGE.read_text(encoding="utf-8")
    for line in re.findall(r"^calibrate (.*)$", page[page.index("## Whole runs") :], flags=re.MULTILINE):
        ran = CliRunner().invoke(app, shlex.split(line))
        assert ran.exit_code == 0, ran.output
    outcome = CalibrationArtifact.load("runs.json").outcome
    assert isinstance(outcome, Infeasible)
    assert outcome.hint is not None
    assert (outcome.hint.n_accepted, outcome.hint.n_errors, outcome.diagnostics.base_error) == (18, 6, 0.58)
    assert outcome.diagnostics.auroc == pytest.approx(0.78, abs=0.005)
    rows = [line.split(",")[1:5] for line in RUNS.read_text(encoding="utf-8").splitlines()[1:]]
    unanimous = [effects[0] for effects in rows if len(set(effects)) == 1]
    assert unanimous == ["nothing"] * 10


def run_commands() -> None:
    """The commands of the page."""
    shown = re.findall(r"^\$ calibrate (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert shown
    for line in shown:
        done = CliRunner().invoke(app, shlex.split(line))
        assert done.exit_code == 0, done.output


def test_the_cold_start_has_its_imports() -> None:
    """A reader who starts at this section has these names only: the model, the tools, the prompt and the requests."""
    page = PAGE.read_text(encoding="utf-8")
    section = page[page.index("## No artifact yet") :]
    block = re.search(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    tree = ast.parse(block[1])
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    imported = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    own = {"chat", "balance", "transfer", "SYSTEM", "requests"}
    assert used - bound - imported - set(dir(builtins)) == own


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
        arguments = {"to": "bob", "amount": k}
        script[f"Send {k} to Bob", 0] = [
            calls(("transfer", arguments)),
            *(calls(("transfer", arguments)) for _ in range(2)),
        ]
        message = {"role": "user", "content": f"Send {k} to Bob"}
        rows.append(
            {"messages": [message], "references": [{"name": "transfer", "arguments": arguments}], "group": str(k)}
        )
    script["Send 7 to Bob", 0].append(calls(("transfer", {"to": "bob", "amount": 70})))
    (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    chat = AgentChat(steps=script)
    artifact = make_artifact(
        chat, prompt=PromptWrapping(system=SYSTEM), n=4, bindings=bindings_for([balance, transfer]), threshold=0.1
    )
    artifact.save("answers.json")
    artifact.save("transfers.json")
    make_artifact(chat, n=4).save("plain.json")
    names: dict[str, Any] = {"chat": chat, "balance": balance, "transfer": transfer, "SYSTEM": SYSTEM}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names["requests"] = [f"Send {k} to Bob" for k in range(20)]
    assert len(blocks) == 7
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/agents.md, block {number + 1}", "exec"), names)
        if number == 0:
            assert names["item"].content.calls_in_words() == "transfer: to alex.meyer, amount 40"
            assert names["result"] is None  # nobody has decided
            names["bridge"].store.decide(names["bridge"].store.claim("ann"), Decision(action="approve"))
            done = names["bridge"].resume(names["agent"], names["config"])
            assert done["messages"][-1].text == "Done."
        if number == 1:
            assert len(names["bridge"].store.items()) == 1
            names["bridge"].store.close()
        if number == 3:
            assert CalibrationArtifact.load("transfers.json").outcome.n == 30
        if number == 4:
            decide(names["bridge"], names["agent"])
            run_commands()
            names["bridge"].store.close()
        if number == 6:
            assert "rejected" in names["result"]["messages"][-2].text
            clear = names["agent"].invoke({"messages": "Send 3 to Bob"}, {"configurable": {"thread_id": "4"}})
            assert clear["messages"][2].text == "sent 3 to bob"
    fitted = CalibrationArtifact.load("transfers.json")
    assert (fitted.outcome.n, fitted.threshold is None, fitted.data.turns) == (20, False, ("human",))
    assert fitted.calibration.error.count(1) == 2  # 7, which a person edited, and 8, which a person rejected
    answers: Any = create_agent(
        chat, tools=[balance, transfer], system_prompt=SYSTEM, middleware=[names["gate"]], checkpointer=InMemorySaver()
    )
    sent = answers.invoke({"messages": "Send 3 to Bob"}, {"configurable": {"thread_id": "s"}})["messages"][2]
    assert sent.text == "sent 3 to bob"  # nobody was asked
    assert names["app"].invoke({"messages": ["Send 3 to Bob"]}, {"configurable": {"thread_id": "p"}})
