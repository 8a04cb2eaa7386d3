"""Messages of `calibrate` and an adapter when their extra is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.__main__ import main
from guardrail.errors import MissingDependencyError, require

NEEDED = (
    ("filelock", "calibrate", "calibrate"),
    ("scipy", "calibrate", "calibrate"),
    ("langgraph", "integrations.langchain_agents", "agents"),
)


def test_a_missing_package_names_the_extra() -> None:
    """All in one process, because `guardrail` itself takes longest to import."""
    code = (
        "import importlib, sys\n"
        "from guardrail.errors import MissingDependencyError\n"
        f"for package, module, _ in {NEEDED!r}:\n"
        "    sys.modules[package] = None\n"
        "    try: importlib.import_module(module)\n"
        "    except MissingDependencyError as error: print(error)\n"
        "    else: print('imported', module)\n"
        "    del sys.modules[package]\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = process.stdout.splitlines()
    assert len(lines) == len(NEEDED)
    for line, (package, _, extra) in zip(lines, NEEDED, strict=True):
        assert line.startswith(package)
        assert f"pip install 'acrc-guardrail[{extra}]', or in a clone: pip install '.[{extra}]'" in line


def test_the_command_line_names_the_extra_without_a_traceback() -> None:
    """As the console script does it: the package is imported before its command can catch an error."""
    code = (
        "import sys; sys.modules['scipy'] = None; sys.argv[0] = '/bin/calibrate'; from calibrate.__main__ import main"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.startswith("scipy is not installed. Install it with: pip install 'acrc-guardrail[calibrate]'")
    assert "Traceback" not in process.stderr


def test_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit, match=r"pip install 'acrc-guardrail\[calibrate\]'"):
        main()


def test_an_installed_package_that_cannot_be_imported_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_one.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"broken_one cannot be imported \(No module named 'not_there"):
        require("broken_one", extra="local")
