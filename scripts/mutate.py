"""Break random lines of product code, one at a time, and count how many the tests catch: ``python scripts/mutate.py``.

Each line is broken in a copy of the tree, never in the working tree. The tests nearest by the import graph run first,
then mypy, then a wider circle. Whatever fails must pass on the unbroken code, or it does not count. A run of tests that
exceeds its time limit is caught if the unbroken code needs at most half of the limit. A run that a signal ends is not
judged. Docstrings, error messages, log calls, annotations and names for type checkers are left alone. The same seed
breaks the same lines of the same code.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from changed_tests import ROOT, module_of, nearest_tests  # type: ignore[import-not-found, unused-ignore]

PRODUCT = ("guardrail", "integrations", "calibrate")
STAGES = ((1, 5, 120), (1, 0, 240), (1, 15, 400), (2, 40, 400))
"""Distance in the import graph, test files (0: mypy), seconds."""
GOLDEN = "tests/golden/test_formats.py"
"""Tests of stored formats, which concern modules that they do not import."""
RESULTS = ("caught", "survived", "not judged")
FLIPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
}  # fmt: skip
TEXT = re.compile(
    r"(^|\.)(log|logger|_log|LOG|LOGGER|logging|warnings|typer|console)\b|^(print|say|echo|Literal|TypeVar|cast)$"
)


class Mutation(NamedTuple):
    """One change of one file: the bytes `before`, from `start` on, become `text`."""

    path: str
    line: int
    start: int
    before: bytes
    text: str


def breaks(node: ast.AST) -> Iterator[str]:
    """Source that can replace a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.unparse(ast.Compare(node.left, [FLIPS[type(node.ops[0])]()], node.comparators))  # type: ignore[list-item]
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in FLIPS:
        fields = dict(ast.iter_fields(node)) | {"op": FLIPS[type(node.op)]()}
        yield ast.unparse(type(node)(**fields))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield repr(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield repr(node.value + "_")
    elif isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield "return None"
    elif isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break) or (
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await))
        or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name))
    ):
        yield "pass"
    if isinstance(node, ast.expr) and node is getattr(getattr(node, "parent", None), "test", None):
        yield f"not ({ast.unparse(node)})"


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what it holds, without text and types."""
    yield node
    skipped: set[str] = {"annotation", "returns", "decorator_list", "exc", "cause", "bases", "msg"}
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in skipped or isinstance(child, ast.JoinedStr):
                continue
            test = ast.unparse(child.test) if isinstance(child, ast.If) else ""
            inner = child.value if isinstance(child, ast.Expr) else child
            caller = (
                inner.func if isinstance(inner, ast.Call) else inner.value if isinstance(inner, ast.Subscript) else None
            )
            targets = [ast.unparse(target) for target in child.targets] if isinstance(child, ast.Assign) else []
            if "TYPE_CHECKING" in test or "__name__" in test or "__all__" in targets:
                continue
            if caller is not None and TEXT.search(ast.unparse(caller)):
                continue
            child.parent = node  # type: ignore[attr-defined]
            yield from parts(child)


def mutations(path: Path) -> Iterator[Mutation]:
    """All mutations of a file."""
    source = path.read_bytes()
    begins = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]
    for node in parts(ast.parse(source)):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        start = begins[node.lineno - 1] + node.col_offset
        stop = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for text in breaks(node):
            text = f"({text})" if isinstance(node, ast.expr) and not isinstance(node, ast.Constant) else text
            yield Mutation(path.relative_to(ROOT).as_posix(), node.lineno, start, source[start:stop], text)


def choose(count: int, seed: int, under: str) -> list[Mutation]:
    """``count`` lines drawn evenly from all that can be broken, and one mutation of each."""
    by_line: dict[tuple[str, int], list[Mutation]] = {}
    for path in sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py")):
        if path.relative_to(ROOT).as_posix().startswith(under):
            for mutation in mutations(path):
                by_line.setdefault((mutation.path, mutation.line), []).append(mutation)
    draw = random.Random(seed)
    return [draw.choice(by_line[line]) for line in draw.sample(sorted(by_line), min(count, len(by_line)))]


class Copy:
    """A copy of the tree in which one file at a time is broken."""

    def __init__(self, folder: Path, tests: list[str]) -> None:
        self.folder, self.tests, self.times = folder, tests, itertools.count(1_000_000_000)
        listed = ["git", "ls-files", "-coz", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        if not tests:
            self.run([], 900)  # fills mypy's cache

    def write(self, name: str, content: bytes) -> None:
        """Write a file with a time that no other version has, so that Python compiles it again."""
        (self.folder / name).write_bytes(content)
        os.utime(self.folder / name, (now := next(self.times), now))

    def run(self, tests: list[str], seconds: float) -> tuple[int | None, str]:
        """Exit code (None if the time is over) and output of the tests, or of mypy if there are none."""
        pytest = ["pytest", "-xq", "-p", "no:cacheprovider", "-p", "no:xdist", "--benchmark-disable"]
        words = [*pytest, "-m", "not slow and not peers and not real", *tests] if tests else ["mypy"]
        environment = os.environ | {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as run:
            try:
                output = run.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                return None, ""
        return run.returncode, output

    def stages(self, path: str) -> Iterator[tuple[list[str], int]]:
        """Test files that may catch a broken line of a module, and seconds for them; no files: mypy."""
        home, stem, seen = f"tests/{Path(path).parent.as_posix()}", Path(path).stem.strip("_"), set[str]()
        folder = [found.relative_to(ROOT).as_posix() for found in sorted((ROOT / home).glob("**/test_*.py"))]
        for distance, count, seconds in STAGES:
            near = [found.relative_to(ROOT).as_posix() for found in nearest_tests({module_of(path)}, distance)]
            near = sorted({**dict.fromkeys(near), **dict.fromkeys(folder)},
                          key=lambda name: (stem not in name, not name.startswith(home)))  # fmt: skip
            tests = [name for name in near if name not in seen][:count]
            if count > 5 and GOLDEN not in {*tests, *seen}:
                tests = [GOLDEN, *tests]
            seen |= set(tests)
            if tests or not count:
                yield tests, seconds

    def judge(self, mutation: Mutation) -> str:
        """A result of `RESULTS`, with the test or the reason."""
        original = (self.folder / mutation.path).read_bytes()
        broken = original[: mutation.start] + mutation.text.encode() + original[mutation.start + len(mutation.before) :]
        doubts = ""
        for tests, seconds in [(self.tests, STAGES[-1][2])] if self.tests else self.stages(mutation.path):
            self.write(mutation.path, broken)
            try:
                code, output = self.run(tests, seconds)
            finally:
                self.write(mutation.path, original)
            if code in (0, 5):  # 5: no test is selected
                continue
            failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", output, re.MULTILINE) if tests else None
            began = time.monotonic()
            again, _ = self.run([failed[1]] if failed else tests, seconds)
            took = time.monotonic() - began
            if code is None and tests and again == 0 and took <= seconds / 2:
                return f"caught by its time: over {seconds} s, unbroken {took:.0f} s ({', '.join(tests)})"
            if code is not None and code > 0 and again == 0:
                return f"caught by {failed[1] if failed else f'pytest, exit code {code}' if tests else 'mypy'}"
            doubts = f"not judged: exit code {code}, unbroken {again} in {took:.0f} s ({' '.join(tests) or 'mypy'})"
        return doubts or "survived"


def main() -> int:
    """Break the chosen lines and print what became of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, default=100, help="lines to break")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="", help="only files whose path begins so, such as guardrail/judges")
    parser.add_argument("--tests", nargs="+", default=[], help="only these test files or folders, and no mypy")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen, counts = choose(options.n, options.seed, options.under), dict.fromkeys(RESULTS, 0)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        if (ROOT.parent / "shared").is_dir():  # data that some tests look for beside the checkout
            (Path(folder) / "shared").symlink_to(ROOT.parent / "shared")
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for job in range(options.jobs):
            copies.put(Copy(Path(folder) / str(job), options.tests))

        def judge(mutation: Mutation) -> str:
            copy = copies.get()
            try:
                return copy.judge(mutation)
            finally:
                copies.put(copy)

        for number, (mutation, result) in enumerate(zip(chosen, pool.map(judge, chosen), strict=True), 1):
            counts[next(name for name in counts if result.startswith(name))] += 1
            print(
                f"{number}. {mutation.path}:{mutation.line} {result}\n"
                f"  - {mutation.before.decode()}\n  + {mutation.text}",
                flush=True,
            )
    print(", ".join(f"{count} {name}" for name, count in counts.items()), f"(seed {options.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
