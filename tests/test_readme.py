"""The README's commands and code run as they stand, on the embedded model and a few of its questions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("langchain.agents")

from guardrail.bindings import bindings_for
from guardrail.guard.abstention import ABSTENTION
from guardrail.prompting import PromptWrapping
from guardrail.sampling.models import resolve_model
from guardrail.testing import make_artifact
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, balance, calls, transfer
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

NAMED = "openai:gpt-4o-mini"
ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "tiny_model" / "orrin-1.5m"
# One thread: with so small a model a second one costs more than it brings, above all on a busy machine.
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}
QUESTIONS = ROOT / "examples" / "tiny_model" / "questions" / "open.jsonl"


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README assumes it, with `questions.jsonl` and `path/to/model`, calibrated by its command."""
    path = tmp_path_factory.mktemp("readme")
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()[:400]
    (path / "questions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (path / "path" / "to").mkdir(parents=True)
    (path / "path" / "to" / "model").symlink_to(MODEL)
    command = next(line for block in blocks("sh") for line in block.splitlines() if line.startswith("calibrate run"))
    arguments = command.split()[1:]
    ran = subprocess.run(
        [sys.executable, "-m", "calibrate", *arguments],
        cwd=path,
        env=QUIET,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return path


def test_the_command_writes_artifact_and_report(folder: Path) -> None:
    assert (folder / "calibration" / "artifact.json").is_file()
    assert (folder / "calibration" / "report.html").is_file()


def test_the_ten_lines_answer_and_hold_back(folder: Path) -> None:
    code = blocks("python")[0] + (
        "asked = [line['question'] for line in map(__import__('json').loads, open('questions.jsonl'))][:24]\n"
        "answers = chain.batch([{'question': text} for text in asked])\n"
        f"held_back = sum({ABSTENTION!r} in answer for answer in answers)\n"
        "print(held_back, len(answers))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=QUIET, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    held_back, total = map(int, ran.stdout.split())
    assert 0 < held_back < total


def test_an_endpoint_and_a_model_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second and third block, against an honest endpoint on the loopback that always says the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (tmp_path / "calibration").mkdir()
    with serving(Endpoint(answers={"Who wrote Faust?": ["Goethe"]})) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        local = blocks("python")[1].replace("http://localhost:8000/v1", endpoint.url)
        assert local != blocks("python")[1]
        for block, model in ((local, f"openai-compatible:qwen@{endpoint.url}"), (blocks("python")[2], NAMED)):
            make_artifact(resolve_model(model)).save("calibration/artifact.json")
            names: dict[str, Any] = {}
            with redirect_stdout(StringIO()) as printed:
                exec(compile(block, "README.md", "exec"), names)
            assert printed.getvalue().strip() == "Goethe"


def test_the_agent_holds_the_unclear_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    payees = ["alex.meyer", "alex.chen", "alex.meyer", "alex.chen", "alex.chen"]
    unsure = [calls(("transfer", {"to": payee, "amount": 40})) for payee in payees]
    question = "Send 40 euros to Alex"
    chat = AgentChat(steps={(question, 0): unsure, (question, 1): ["Done."]})
    bound = bindings_for([balance, transfer])
    agent_artifact = make_artifact(chat, prompt=PromptWrapping(system=SYSTEM), n=4, bindings=bound, threshold=0.1)
    for name in ("answers.json", "transfers.json"):
        agent_artifact.save(name)
    names: dict[str, Any] = {"chat": chat, "balance": balance, "transfer": transfer, "SYSTEM": SYSTEM}
    exec(compile(blocks("python")[4], "README.md", "exec"), names)
    with names["bridge"].store as store:
        (item,) = store.items()
        assert item.content.calls_in_words() == "transfer: to alex.meyer, amount 40"


def test_every_model_of_the_readme_has_its_install_line() -> None:
    """`openai:gpt-4o-mini` is resolved by LangChain, which no extra of the quick start brings."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    before = page[: page.index(f'model="{NAMED}"')].rsplit("```", 2)[-2]
    assert "pip install langchain langchain-openai" in before


def test_every_missing_extra_names_a_command_that_works_from_a_clone() -> None:
    for folder in ("guardrail", "calibrate", "integrations"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for place in (match.start() for match in re.finditer(r"pip install '?(acrc-guardrail\[|\{extra\})", text)):
                assert "in a clone: pip install" in text[place : place + 160], path
