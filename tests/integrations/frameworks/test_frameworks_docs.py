"""docs/frameworks.md and examples/frameworks: every snippet and every example runs as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
NEEDED = {"agents": "openai-agents", "pydantic_ai": "pydantic-ai"}


BANKS = ("openai_agents_bank", "pydantic_ai_bank")


def missing(code: str) -> str | None:
    """A package that a program needs and that is not installed, with its extra."""
    for package, extra in NEEDED.items():
        if re.search(rf"^(from|import) {package}\b", code, flags=re.MULTILINE) and find_spec(package) is None:
            return f"{package} is not installed (extra {extra})"
    if "guardrail.review" in code and find_spec("sqlalchemy") is None:
        return "sqlalchemy is not installed (extra review)"
    return None


def skip_without(code: str) -> None:
    if lacking := missing(code):
        pytest.skip(lacking)


def run(*arguments: str, folder: Path = ROOT) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *arguments],
        cwd=folder,
        env={"OPENAI_AGENTS_DISABLE_TRACING": "1", "PATH": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Output per program: all run in one process, because imports take most of their time."""
    programs = {str(number): code for number, code in enumerate(SNIPPETS)}
    programs |= {bank: (ROOT / "examples" / "frameworks" / f"{bank}.py").read_text(encoding="utf-8") for bank in BANKS}
    runnable = {name: code for name, code in programs.items() if not missing(code)}
    each = "print(end='\\0'); exec(program, {'__name__': '__main__'})"
    code = f"import json, sys\nfor program in json.loads(sys.argv[1]): {each}"
    output = run("-c", code, json.dumps(list(runnable.values())), folder=tmp_path_factory.mktemp("frameworks"))
    return dict(zip(runnable, output.split("\0")[1:], strict=True))


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_every_snippet_prints_what_its_comment_says(number: int, printed: dict[str, str]) -> None:
    code = SNIPPETS[number]
    skip_without(code)
    output = printed[str(number)]
    promised = re.findall(r"^print\(.*# (\w+)$", code, flags=re.MULTILINE)
    assert promised == [] or output.split() == promised


@pytest.mark.parametrize("name", BANKS)
def test_the_banks_ask_a_person_about_the_vague_transfer_only(name: str, printed: dict[str, str]) -> None:
    skip_without((ROOT / "examples" / "frameworks" / f"{name}.py").read_text(encoding="utf-8"))
    lines = printed[name].splitlines()
    assert lines[0] == "sure:     50 euros sent to Ada"
    assert lines[1].endswith("waits for a person")
    assert lines[-1] == "approved: 50 euros sent to Ada"
