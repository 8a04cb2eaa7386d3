"""The house: who may import whom, what loads at import, and what the public names are."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("calibrate", "guardrail", "integrations")
LIGHT = {"langchain_core", "numpy", "pydantic", "typing_extensions"}
# The review queue and its page are part of `guardrail`, but nothing imports them unless asked; the `review` extra.
REVIEW = {"sqlalchemy", "httpx", "starlette", "uvicorn", "jinja2", "markupsafe", "psycopg", "standardwebhooks"}


def modules(package: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py"))


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Every import anywhere in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> set[str]:
    """Top-level names of absolute imports anywhere in a file."""
    names: set[str] = set()
    for node in imports(path):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_import_contracts_hold() -> None:
    """Layers and directions are import-linter contracts in pyproject.toml, which `make lint` runs, too."""
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_imports_a_private_module_of_another_package(package: str) -> None:
    for path in modules(package):
        for node in imports(path):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                continue
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
            if parts[0] in PACKAGES and parts[0] != package:
                private = [part for part in parts if part.startswith("_")]
                assert not private, f"{path}:{node.lineno} imports {private} of {parts[0]}"


FOR_TYPES = {"guardrail.explain": {"guardrail.verdict"}}
"""The words of a verdict are typed with the class whose methods call them, and import nothing of it at run time."""


def cycles() -> list[set[str]]:
    """Groups of modules that import each other, imports for types (but `FOR_TYPES`) and inside functions included."""
    names = {
        str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__"): path
        for package in PACKAGES
        for path in modules(package)
    }
    graph = {
        name: direct_imports(name, path, names) - {name} - FOR_TYPES.get(name, set()) for name, path in names.items()
    }
    reached = {name: closure(name, graph) for name in graph}
    circles = [{other for other in reached[name] if name in reached[other]} for name in sorted(graph)]
    return [group for place, group in enumerate(circles) if group and group not in circles[:place]]


def direct_imports(name: str, path: Path, names: dict[str, Path]) -> set[str]:
    imported = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in imports(path):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        else:
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                submodule = f"{module}.{alias.name}"
                imported.add(submodule if submodule in names else module)
    return imported & names.keys()


def closure(name: str, graph: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[name])
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += graph[module]
    return reached


def test_there_is_no_import_cycle() -> None:
    assert cycles() == []


def test_folders_stay_small_enough_to_read() -> None:
    """At most about sixteen modules a folder; what is private in `integrations` lies behind a public module."""
    for package in PACKAGES:
        folders = {path.parent for path in modules(package)}
        for folder in folders:
            shown = [path for path in modules(package) if path.parent == folder and path.name != "__init__.py"]
            assert len(shown) <= 16, f"{folder} has {len(shown)} modules"
    private = [path.name for path in modules("integrations") if path.parent.name == "integrations"]
    assert [name for name in private if name.startswith("_") and name != "__init__.py"] == []


def test_guardrail_needs_only_its_three_dependencies() -> None:
    for path in modules("guardrail"):
        extra = REVIEW if path.parts[:2] == ("guardrail", "review") else set()
        outside = imported(path) - {"guardrail"} - set(sys.stdlib_module_names) - LIGHT - extra
        assert not outside, f"{path} imports {outside}"


@pytest.mark.parametrize(
    "package", ["guardrail", "guardrail.judges", "guardrail.monitor", "guardrail.uncertainty", "calibrate"]
)
def test_public_names_are_sorted_and_exist(package: str) -> None:
    module = __import__(package, fromlist=["__all__"])
    assert list(module.__all__) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_list_of_packages_is_complete() -> None:
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    packages = {
        str(path.parent.relative_to(ROOT)).replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert set(listed) == packages
