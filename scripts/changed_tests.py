"""Print, or run, the tests that a change can break, nearest first: ``python scripts/changed_tests.py [--run]``.

Changed are the files that differ from the merge base with BASE (default: main, in the environment), and untracked
ones. The nearest tests of a module are, in this order,

1. the test file of its name, and the test files that import it or call its command,
2. the test files of the folder that mirrors the module's,
3. the test files that import a module that imports it.

A changed test file selects itself; a page or a template selects the test files that name it, and its folder's. The run
takes the first `FILES` files, and begins no test after `SECONDS`. It names the files and counts the tests it leaves.
`make test` remains the whole answer.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("guardrail", "integrations", "calibrate", "examples", "benchmarks")
DISTANCE = 1
"""Modules between a changed one and one that a test imports: with 2 a change of the core selects most tests."""
FILES = 12
"""Test files of one run."""
SECONDS = 15
"""CPU time that a process spends on tests, with its children's; tests begun by then end.

CPU time, so that a busy machine tests no less.
"""
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
def table(path: str, name: str) -> dict[str, Any]:
    """A table of a module, read without importing the module, which may be the one that is broken."""
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            value: dict[str, Any] = ast.literal_eval(node.value)
            return value
    raise LookupError(f"{path} has no table {name}")


@cache
def imports_of(path: Path) -> set[str]:
    """Names that a test file imports, inside functions, too: modules, and what could be a module in them.

    A public name counts as the module that defines it, and the name of a command as the command's module.
    """
    names: set[str] = set()
    words: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
    for package in ("guardrail", "calibrate"):
        public = table(f"{package}/__init__.py", "_MODULES")
        used = {module for module, listed in public.items() for name in listed.split() if f"{package}.{name}" in names}
        names |= {f"{package}.{module}" for module in used}
    if any(name.startswith("calibrate.cli") for name in names):
        commands = table("calibrate/cli/frame/app.py", "COMMANDS")
        names |= {f"calibrate.cli.{module}" for name, module in commands.items() if name in words}
    return names


@cache
def import_graph() -> grimp.ImportGraph:
    """Who imports whom in our packages."""
    import grimp

    sys.path.insert(0, str(ROOT))  # `examples` and `benchmarks` are not installed
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)


def importers(modules: Iterable[str], distance: int) -> dict[str, int]:
    """The modules, and those that import them in at most ``distance`` steps, with the number of steps."""
    far = dict.fromkeys(modules, 0)
    graph = import_graph() if distance else None
    for step in range(1, distance + 1):
        for module in [module for module, steps in far.items() if steps == step - 1]:
            assert graph is not None
            for importer in graph.find_modules_that_directly_import(module) if module in graph.modules else ():
                far.setdefault(importer, step)
    return far


def mirror_of(name: str) -> Path:
    """Folder of the tests of a file: ``tests/integrations/gateway`` for ``integrations/_gateway/app.py``."""
    folder = ROOT / "tests" / "/".join(part.lstrip("_") for part in name.split("/")[:-1])
    return next(parent for parent in [folder, *folder.parents] if parent.is_dir())


def nearest_tests(modules: Iterable[str], distance: int = DISTANCE, *, others: Iterable[str] = ()) -> list[Path]:
    """Test files for modules and for ``others``, which are files of another kind: nearest first, then smallest."""
    names = [module.replace(".", "/") for module in modules]
    far = importers({name.replace("/", ".") for name in names}, distance)
    endings = tuple("_" + name.rpartition("/")[2].strip("_") for name in names)
    files = {name.rpartition("/")[2] for name in others}
    mirrors = {mirror_of(name) for name in [*names, *others] if name.split("/")[0] in PACKAGES}
    ranked = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name == "peers":  # they need servers
            continue
        steps = min((far[module] for module in imports_of(path) & far.keys()), default=99)
        in_mirror = path.parent in mirrors
        if in_mirror and path.stem.endswith(endings):
            rank = 0
        elif steps == 0 or (files and any(file in path.read_text(encoding="utf-8") for file in files)):
            rank = 1
        elif in_mirror:
            rank = 2
        else:
            rank = 2 + steps
        if rank <= 2 + distance:
            ranked.append((rank, not in_mirror, path.stat().st_size, path))
    return [path for *_, path in sorted(ranked)]


def selection(changed: Iterable[str]) -> list[str]:
    """Test files for changed files, relative to the repository: changed tests first, then the nearest."""
    changed = list(changed)
    tests = [name for name in changed if name.startswith("tests/") and Path(name).name.startswith("test_")]
    modules = [module_of(name) for name in changed if name.endswith(".py") and name not in tests]
    others = [name for name in changed if not name.endswith(".py")]
    rest = [path.relative_to(ROOT).as_posix() for path in nearest_tests(modules, others=others)]
    return list(dict.fromkeys([*tests, *rest, *([ALWAYS] if modules else [])]))


@cache
def began() -> float:
    """CPU time of this process and its children when the first test began."""
    return sum(os.times()[:4])


def pytest_runtest_setup() -> None:
    """Leave the tests for which no time is left."""
    if sum(os.times()[:4]) - began() > SECONDS:
        pytest.skip(f"{SECONDS} s of CPU are spent: `make test` runs it")


def main() -> int:
    """Print the selected tests; with ``--run``, run them within the limits, and name the files left."""
    tests = selection(changed_files(os.environ.get("BASE", "main")))
    if "--run" not in sys.argv:
        print(*tests, sep="\n")
        return 0
    if not tests:
        print("No tests are near what changed.")
        return 0
    if tests[FILES:]:
        print(f"{len(tests[FILES:])} further test files are near what changed; `make test` runs them:")
        print(*tests[FILES:], sep=", ")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.changed_tests", "--benchmark-disable", "-n", "2"]
    command += ["--dist", "load", "-m", "not slow and not peers and not real", *tests[:FILES]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return 0 if code == 5 else code  # 5: all of them are marked slow


if __name__ == "__main__":
    sys.exit(main())
