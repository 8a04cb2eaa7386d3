"""What `calibrate` says when its extra is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["filelock", "scipy"])
def test_a_missing_package_names_the_extra(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import calibrate"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"MissingDependencyError: {package} is not installed" in found.stderr
    assert "acrc-guardrail[calibrate]" in found.stderr
