"""Print, or run, the tests that a change can break, by the import graph: ``python scripts/changed_tests.py [--run]``.

Changed are the files that differ from the merge base with BASE (default: main, in the environment), and untracked
ones. A changed module selects the test files that import it, directly or through at most `DISTANCE` modules, nearest
first; a changed test file selects itself. Where a change is not a module (a page, a template), the tests of the folder
of the same name run. `make test` remains the whole answer.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # `examples` and `benchmarks` are not installed
PACKAGES = ("guardrail", "integrations", "calibrate", "examples", "benchmarks")
DISTANCE = 1
"""Modules between a changed one and one that a test imports: with 2 a change of the core selects most tests."""
LIMIT = 8
"""Test files of one run; the others are named."""
ALWAYS = "tests/test_start_up.py"


def module_of(path: str) -> str:
    """Dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def changed_files(base: str) -> list[str]:
    """Files that differ from the base, and untracked files, relative to the repository."""

    def git(*words: str) -> list[str]:
        ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return ran.stdout.split("\n")[:-1] if ran.returncode == 0 else []

    fork = git("merge-base", base, "HEAD") or ["HEAD"]
    names = [*git("diff", "--name-only", fork[0]), *git("ls-files", "-o", "--exclude-standard")]
    return sorted({name for name in names if (ROOT / name).is_file()})


@cache
def imports_of(path: Path) -> set[str]:
    """Names that a test file imports, inside functions, too: modules, and what could be a module in them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@cache
def import_graph() -> grimp.ImportGraph:
    """Who imports whom in our packages."""
    return grimp.build_graph(*PACKAGES)


def nearest_tests(modules: Iterable[str], distance: int = DISTANCE) -> list[Path]:
    """Test files that import one of the modules in at most ``distance`` further steps, nearest and smallest first."""
    graph = import_graph()
    far = {module: 0 for module in modules if module in graph.modules}
    for step in range(1, distance + 1):
        for module in [module for module, steps in far.items() if steps == step - 1]:
            for importer in graph.find_modules_that_directly_import(module):
                far.setdefault(importer, step)
    ranked = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        steps = [far[module] for module in imports_of(path) & set(far)]
        if steps:
            ranked.append((min(steps), path.stat().st_size, path))
    return [path for _, _, path in sorted(ranked)]


def selection(changed: Iterable[str]) -> list[str]:
    """Test files for changed files, relative to the repository: changed tests first, then the nearest."""
    changed = list(changed)
    tests = [name for name in changed if name.startswith("tests/") and Path(name).name.startswith("test_")]
    modules = {module_of(name) for name in changed if name.endswith(".py") and name.split("/")[0] in PACKAGES}
    rest = [path.relative_to(ROOT).as_posix() for path in nearest_tests(modules)] if modules else []
    return list(dict.fromkeys([*tests, *rest, *([ALWAYS] if modules else [])]))


def main() -> int:
    """Print the selected tests; with ``--run``, run the first `LIMIT` and name the others."""
    tests = selection(changed_files(os.environ.get("BASE", "main")))
    if "--run" not in sys.argv:
        print(*tests, sep="\n")
        return 0
    run, left = tests[:LIMIT], tests[LIMIT:]
    if left:
        print(f"{len(left)} further test files import what changed and wait for `make test`: {', '.join(left)}")
    if not run:
        print("No Python file changed: no tests selected.")
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not peers and not real", *run]
    code = subprocess.run(
        [*command, "--benchmark-disable", "-n", "2", "--dist", "load"], cwd=ROOT, check=False
    ).returncode
    return 0 if code == 5 else code  # 5: all of them are marked slow


if __name__ == "__main__":
    sys.exit(main())
