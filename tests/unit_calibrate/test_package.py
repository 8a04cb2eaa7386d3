"""What `calibrate` says when its extra is not installed."""

from __future__ import annotations

import subprocess
import sys


def test_missing_scipy_names_the_extra() -> None:
    code = "import sys; sys.modules['scipy'] = None; import calibrate"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "MissingDependencyError: scipy is not installed" in found.stderr
    assert "acrc-guardrail[calibrate]" in found.stderr
