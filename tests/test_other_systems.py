"""Names that Windows lacks: no module uses one without asking for it. Source is read; nothing runs on Windows here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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
