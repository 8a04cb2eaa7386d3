"""docs/frameworks.md and examples/frameworks: every snippet and every example runs as it stands."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
NEEDED = {"agents": "openai-agents", "pydantic_ai": "pydantic-ai", "litellm": "litellm"}


def skip_without(code: str) -> None:
    for package, extra in NEEDED.items():
        if re.search(rf"^(from|import) {package}\b", code, flags=re.MULTILINE) and find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra {extra})")
    if "guardrail.review" in code:
        pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed (extra review)")


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


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_every_snippet_prints_what_its_comment_says(number: int, tmp_path: Path) -> None:
    code = SNIPPETS[number]
    skip_without(code)
    said = run("-c", code, folder=tmp_path)
    promised = re.findall(r"^print\(.*# (\w+)$", code, flags=re.MULTILINE)
    assert promised == [] or said.split() == promised


def test_the_snippets_are_short() -> None:
    assert len(SNIPPETS) == 5
    assert max(len(code.splitlines()) for code in SNIPPETS) < 20


@pytest.mark.parametrize("name", ["openai_agents_bank", "pydantic_ai_bank"])
def test_the_banks_ask_a_person_about_the_vague_transfer_only(name: str) -> None:
    skip_without((ROOT / "examples" / "frameworks" / f"{name}.py").read_text(encoding="utf-8"))
    said = run("-m", f"examples.frameworks.{name}").splitlines()
    assert said[0] == "sure:     50 euros sent to Ada"
    assert said[1].endswith("waits for a person")
    assert said[-1] == "approved: 50 euros sent to Ada"


def test_the_hook_example() -> None:
    if find_spec("litellm") is None:
        pytest.skip("litellm is not installed (extra litellm); `make test-litellm` runs the proxy's tests")
    assert run("-m", "examples.frameworks.litellm_hook").splitlines()[-2] == "Capital of France? Paris"


def test_the_hook_example_says_what_it_needs() -> None:
    without = "import runpy, sys; sys.modules['litellm'] = None; "
    code = without + "runpy.run_module('examples.frameworks.litellm_hook', run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("This example needs litellm")
    assert "acrc-guardrail[litellm]" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_the_proxys_configuration_names_settings_that_exist() -> None:
    if find_spec("litellm") is None:
        pytest.skip("litellm is not installed (extra litellm); `make test-litellm` runs the proxy's tests")
    from integrations.litellm_proxy import CalibratedGuardrail

    found = re.search(r'^```yaml title="config.yaml"\n(.*?)^```', PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    given = yaml.safe_load(found[1])["guardrails"][0]["litellm_params"]
    assert set(given) - {"guardrail", "mode", "default_on"} <= set(inspect.signature(CalibratedGuardrail).parameters)
