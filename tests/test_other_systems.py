"""Windows, by reading and by emulation; nothing here runs on Windows.

No module uses a name that Windows lacks without asking for it, starts processes by `fork`, or lets the system choose an
encoding. Emulated: a file that cannot be replaced while it is open, and the lack of POSIX modules.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrail import files

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}
NAMES = {"fork", "register_at_fork", "mkfifo", "posix_fadvise", "fchmod", "fchown", "geteuid", "getuid", "O_NOFOLLOW"}
NAMES |= {"O_DIRECTORY", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "killpg", "setsid", "getpgid"}


def posix_only(source: str) -> list[str]:
    """Imports of POSIX modules outside functions; attributes of `os` and `signal` that no `hasattr` guards."""
    tree = ast.parse(source)
    inside = {child for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for child in ast.walk(node)}
    used = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in inside:
            used += [alias.name for alias in node.names if alias.name in MODULES]
        if isinstance(node, ast.ImportFrom) and node not in inside and node.module in MODULES:
            used.append(node.module)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("os", "signal"):
            asked = f'hasattr({node.value.id}, "{node.attr}")' in source
            used += [node.attr] * (node.attr in NAMES and not asked)
    return used


@pytest.mark.parametrize("package", ["calibrate", "guardrail", "integrations"])
def test_no_module_needs_a_posix_system_to_be_imported(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert posix_only(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.parametrize("source", ["import fcntl", "from resource import getrusage", "os.fork()", "signal.SIGHUP"])
def test_a_posix_name_is_noticed(source: str) -> None:
    assert posix_only(source)


# -- files that are open -----------------------------------------------------------------------------------------------


def refusing(monkeypatch: pytest.MonkeyPatch, times: int, system: str) -> list[int]:
    """Make the first renames fail as on Windows, under the name of a system. Return the list of attempts."""
    attempts: list[int] = []
    clock = iter(range(10_000))

    def replace(source: Path, target: Path) -> None:
        attempts.append(len(attempts))
        if len(attempts) <= times:
            raise PermissionError(13, "Access is denied", str(source))
        os.replace(source, target)

    emulated: Any = SimpleNamespace(**{name: getattr(os, name) for name in dir(os)})
    emulated.name, emulated.replace = system, replace
    monkeypatch.setattr(files, "os", emulated)
    # Each look at the clock is a tenth of a second later, and nothing sleeps.
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock) / 10, sleep=lambda _: None))
    return attempts


def test_a_file_that_a_reader_has_open_is_replaced_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attempts = refusing(monkeypatch, 2, "nt")
    path = tmp_path / "a.json"
    path.write_text("old", encoding="utf-8")
    files.atomic_write(path, "new\n")
    assert (path.read_bytes(), len(attempts)) == (b"new\n", 3)  # no "\r\n"
    assert [left.name for left in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(("system", "expected"), [("nt", 11), ("posix", 1)])
def test_a_file_that_stays_open_is_an_error_and_stays_what_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, expected: int
) -> None:
    attempts = refusing(monkeypatch, 1000, system)
    path = tmp_path / "a.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(PermissionError):
        files.atomic_write(path, "new\n")
    assert (path.read_text(encoding="utf-8"), len(attempts)) == ("old", expected)
    assert [left.name for left in tmp_path.iterdir()] == ["a.json"]


# -- without POSIX modules ---------------------------------------------------------------------------------------------


RECORDS = """
import sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None  # an import raises ImportError
import os
del os.fork
import warnings
warnings.simplefilter("ignore")  # filelock says that it uses soft locks
from pathlib import Path
from calibrate import fit
from calibrate.data.records import open_writer, read_records
from guardrail.artifact import CalibrationArtifact
golden, copy = Path(sys.argv[1]), Path(sys.argv[2])
stored = read_records(golden / "records.jsonl")
with open_writer(copy, stored.header) as (append, _):
    append(stored.records)
assert read_records(copy).records == stored.records
CalibrationArtifact.load(golden / "artifact.json").save(copy.with_suffix(".json"))
fit([0.1, 0.9] * 50, [0, 1] * 50, alpha=0.1)
print("works")
"""


def test_records_artifacts_and_fits_work_without_posix_modules(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RECORDS, str(ROOT / "tests" / "golden" / "formats"), str(tmp_path / "records.jsonl")]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("works\n", "")


# -- processes and encodings -------------------------------------------------------------------------------------------


def left_to_the_system(source: str) -> list[str]:
    """Calls that start processes by the system's method, or read and write text in the system's encoding."""
    used = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg for keyword in node.keywords}
        of_a_context = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call)  # see get_context
        if name in ("ProcessPoolExecutor", "Pool", "Process") and not (given & {"mp_context", None} or of_a_context):
            used.append(name)
        method = [getattr(argument, "value", None) for argument in node.args]
        if name == "get_context" and method not in (["spawn"], ["forkserver"]):  # the second fails where it is missing
            used.append(name)
        if name in ("read_text", "write_text") and isinstance(node.func, ast.Attribute) and "encoding" not in given:
            if getattr(node.func.value, "id", "") == "formatter":  # click's, which writes to a help text and to no file
                continue
            used += [name] * (len(node.args) < 1 + (name == "write_text"))
    return used


@pytest.mark.parametrize("package", ["calibrate", "guardrail", "integrations"])
def test_no_module_leaves_processes_or_encodings_to_the_system(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert left_to_the_system(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.parametrize(
    "source", ["ProcessPoolExecutor(2)", 'get_context("fork")', "get_context()", "path.read_text()", "p.write_text(a)"]
)
def test_what_is_left_to_the_system_is_noticed(source: str) -> None:
    assert left_to_the_system(source)
