"""The wheel builds, holds exactly our three packages, and works in a clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = {".html", ".css", ".js", ".svg"}
"""Kinds of files that the review page needs, apart from its code."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source")
    # A copy of the tracked and untracked files, so that the build leaves nothing behind in the checkout.
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listing.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "examples/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


def test_top_level_is_exactly_our_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"guardrail", "integrations", "calibrate"}
    assert {f"{package}/py.typed" for package in top} <= set(names)
    assert any(name.startswith("calibrate/report/") and name.endswith(".j2") for name in names)
    page = ROOT / "guardrail" / "review" / "web"
    files = {f"guardrail/review/web/{file.relative_to(page)}" for file in page.rglob("*") if file.suffix in SHIPPED}
    assert {Path(file).suffix for file in files} == SHIPPED
    assert files <= set(names)


def test_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are lent by path, so nothing is downloaded; our packages can only come from the wheel."""
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=False)
    python = clean / "bin" / "python"
    site = next((clean / "lib").glob("python*/site-packages"))
    # The pip of this environment installs into the clean one, which has no pip.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    code = (
        "import guardrail, calibrate, integrations\n"
        "from importlib.metadata import entry_points\n"
        "from guardrail.testing import ScriptedChat, make_artifact\n"
        "model = ScriptedChat()\n"
        "guard = guardrail.Guardrail(model=model, artifact=make_artifact(model))\n"
        "assert guard.invoke('x').response_metadata['guardrail']['accepted']\n"
        "print(guardrail.__file__, calibrate.__file__, integrations.__file__, sep='\\n')\n"
    )
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=alone, check=False)
    assert ran.returncode == 0, ran.stderr
    assert all(line.startswith(str(site)) for line in ran.stdout.split())
