"""Start-up: a command, or a name of a package, loads what it needs and no more. Modules are counted, never seconds."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from calibrate.cli import app
from calibrate.cli.frame.app import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"langsmith", "langchain_core.runnables.base", "langchain_core.language_models.chat_models", "matplotlib"}
HEAVY |= {"guardrail.guard", "guardrail.artifact", "calibrate.pipeline", "calibrate.cli.run", "sqlalchemy", "starlette"}
LIBRARIES = {"torch", "transformers", "openai", "typer", "rich", "jinja2", "uvicorn"}


def heavy_modules(code: str, names: set[str] = HEAVY) -> set[str]:
    probe = (
        f"import atexit, sys\natexit.register(lambda: print(*{names!r} & set(sys.modules), file=sys.stderr))\n{code}"
    )
    ran = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(ran.stderr.split())


@pytest.mark.parametrize("package", ["guardrail", "calibrate"])
@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_version_and_help_load_nothing_heavy(package: str, arguments: list[str]) -> None:
    run = f"import runpy; runpy.run_module({package!r}, run_name='__main__', alter_sys=True)"
    code = f"sys.argv[1:] = {arguments!r}; {run}"
    assert heavy_modules(code) == set()


@pytest.mark.parametrize("package", ["guardrail", "calibrate", "integrations"])
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    assert heavy_modules(f"import {package}", HEAVY | LIBRARIES) == set()


def test_using_a_name_loads_its_module() -> None:
    assert heavy_modules("import guardrail; guardrail.Guardrail") >= {"langsmith", "guardrail.guard"}
    assert heavy_modules("import guardrail; guardrail.guard") >= {"guardrail.guard"}
    assert heavy_modules("import calibrate; calibrate.pipeline") >= {"calibrate.pipeline"}


def test_a_command_loads_its_own_module_only() -> None:
    assert "calibrate.cli.run" not in heavy_modules("from calibrate.cli import app; import calibrate.cli.plan")


def test_a_fit_loads_no_chat_model() -> None:
    """Fits and reports read files: half of a second of imports at each of them would serve nothing."""
    models = {"langsmith", "langchain_core.runnables.base", "langchain_core.language_models.chat_models"}
    assert not heavy_modules("import calibrate.cli.fit; import calibrate.pipeline") & models


def test_every_command_is_listed_with_its_module() -> None:
    group: Any = typer.main.get_command(app)
    for name, module in COMMANDS.items():
        assert group.get_command(None, name).callback.__module__ == f"calibrate.cli.{module}"
    assert set(COMMANDS.values()) == {path.stem for path in (ROOT / "calibrate" / "cli").glob("*.py")} - {"__init__"}
    assert len(app.registered_commands) == len(COMMANDS)


@pytest.mark.parametrize("package", ["guardrail", "calibrate"])
def test_names_for_type_checkers_are_those_that_load(package: str) -> None:
    module = import_module(package)
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    for_checkers = {node.module: sorted(alias.name for alias in node.names) for node in imports}
    loaded = {path: sorted(names.split()) for path, names in module._MODULES.items()}
    assert for_checkers == loaded
    assert sorted(name for names in loaded.values() for name in names) == module.__all__
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing
