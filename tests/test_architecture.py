"""The house: who may import whom, what loads at import, and what the public names are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"guardrail", "integrations", "calibrate", "examples", "tests", "benchmarks"}
MAY_IMPORT = {
    "guardrail": {"guardrail"},
    "integrations": {"guardrail", "integrations"},
    "calibrate": {"guardrail", "calibrate"},
}
LIGHT = {"langchain_core", "numpy", "pydantic", "typing_extensions"}
HEAVY = {"torch", "transformers", "openai", "scipy", "matplotlib", "typer", "rich", "yaml", "jinja2"}
HEAVY |= {"sqlalchemy", "starlette", "uvicorn"}
# The review queue and its page are part of `guardrail`, but nothing imports them unless asked; the `review` extra.
REVIEW = {"sqlalchemy", "httpx", "starlette", "uvicorn", "jinja2", "markupsafe"}
# Composition root: the one place of `calibrate` that may know the integrations.
COMMAND_LINE = "calibrate/_cli_models.py"


def modules(package: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level names of absolute imports anywhere in a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_import_direction(package: str) -> None:
    for path in modules(package):
        allowed = MAY_IMPORT[package] | ({"integrations"} if str(path) == COMMAND_LINE else set())
        wrong = (imported(path) & OURS) - allowed
        assert not wrong, f"{path} imports {wrong}, against the import direction"


def test_guardrail_needs_only_its_three_dependencies() -> None:
    for path in modules("guardrail"):
        extra = REVIEW if path.parts[:2] == ("guardrail", "review") else set()
        outside = imported(path) - OURS - set(sys.stdlib_module_names) - LIGHT - extra
        assert not outside, f"{path} imports {outside}"


@pytest.mark.parametrize("package", ["guardrail", "calibrate", "integrations"])
def test_importing_loads_nothing_heavy(package: str) -> None:
    code = f"import sys, {package}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    found = set(loaded.stdout.split())
    # langchain_core's prompts load PyYAML, and Jinja2 where it is installed; calibrate computes with scipy.
    allowed = {"yaml", "jinja2"} | ({"scipy"} if package == "calibrate" else set())
    assert not found - allowed


@pytest.mark.parametrize(
    "package", ["guardrail", "guardrail.judges", "guardrail.monitor", "guardrail.uncertainty", "calibrate"]
)
def test_public_names_are_sorted_and_exist(package: str) -> None:
    module = __import__(package, fromlist=["__all__"])
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_module_can_be_imported_first() -> None:
    """Import cycles show only in one order of imports, so each module is loaded first in a process of its own.

    Python loads the package before any module of it. So that is done once, and the processes are forked after it.
    """
    names = [str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__") for path in modules("guardrail")]
    code = (
        "import importlib, os, sys\n"
        "import guardrail\n"
        "try: import sqlalchemy, starlette.applications\n"
        "except ImportError: pass\n"
        "for name in sys.argv[1:]:\n"
        "    if name in sys.modules: continue\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        importlib.import_module(name)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        print(name)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def test_the_list_of_packages_is_complete() -> None:
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    found = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for package in MAY_IMPORT
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(listed) == found
