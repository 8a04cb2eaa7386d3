"""Build one wheel and one sdist, install them into empty environments, and use what was installed.

``python scripts/release_check.py [EXTRA ... | all]``: the core from both files, then extras one by one from the wheel.
Default: the extras that do not bring PyTorch. If ``uv`` is on the path, it installs (in seconds); otherwise pip does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = (
    "from guardrail import Guardrail\n"
    "from guardrail.testing import ScriptedChat, make_artifact\n"
    "model = ScriptedChat()\n"
    "answer = Guardrail(model=model, artifact=make_artifact(model)).invoke('x')\n"
    "assert answer.response_metadata['guardrail']['accepted']\n"
)
CALLS = {
    "openai": "from integrations.openai_chat import from_text; from_text('m@http://127.0.0.1:9/v1')",
    "local": "import integrations.transformers_chat",
    "minilm": "import integrations.transformers_judges",
    "calibrate": "from calibrate import fit; fit([0.1, 0.9] * 50, [0, 1] * 50, alpha=0.1)",
    "data": "import msgspec, pyarrow; assert msgspec.json.decode(b'[1]') == pyarrow.array([1]).to_pylist()",
    "ray": "import calibrate.ray_engine",
    "agents": (
        "from langchain.agents import create_agent\n"
        "from integrations.langchain_agents import GuardrailMiddleware\n"
        "create_agent(model, middleware=[GuardrailMiddleware(make_artifact(model))])"
    ),
    "openai-agents": "from integrations.openai_agents_guard import VerdictStore; VerdictStore('verdicts.db').close()",
    "pydantic-ai": (
        "from pydantic_ai import Agent\n"
        "from pydantic_ai.models.test import TestModel\n"
        "from integrations.pydantic_ai_guard import GuardCapability\n"
        "Agent(TestModel(), capabilities=[GuardCapability(make_artifact(model), on_abstain='message')])"
    ),
    "review": "import guardrail.review.web; from guardrail.review import ReviewStore; ReviewStore('reviews.db')",
    "serve": "import integrations.gateway",
    "postgres": "import psycopg; from guardrail.review import ReviewStore; ReviewStore('reviews.db')",
    "otel": (
        "from integrations.telemetry import Telemetry\n"
        "guard = Guardrail(model=model, artifact=make_artifact(model), on_verdict=Telemetry('m'))\n"
        "assert guard.invoke('x').content"
    ),
}
"""One call for each extra that users install; `all`, `dev` and `docs` are sums of others, or for this repository."""
WITH_TORCH = {"local", "minilm"}
HELP = {"calibrate": ("calibrate", "--help"), "serve": ("guardrail", "serve", "--help"), "ray": ("calibrate", "--help")}


def run(*command: object, folder: Path) -> None:
    """Run a command in a folder, without this checkout on the path.

    Raises:
        SystemExit: The command failed; its output is shown.
    """
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    ran = subprocess.run(words, cwd=folder, env=alone, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")


def check_metadata(wheel: Path, sdist: Path) -> None:
    """Compare the metadata of the wheel with pyproject.toml, and look for the files that a release must carry.

    Raises:
        SystemExit: A field or a file is missing.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
        licences = [name for name in archive.namelist() if "/licenses/" in name]
    for field in (
        "Name",
        "Version",
        "Summary",
        "License-Expression",
        "Requires-Python",
        "Classifier",
        "Keywords",
        "Project-URL",
    ):
        if not metadata[field]:
            raise SystemExit(f"{wheel.name} has no {field}.")
    expected = [path for pattern in project["license-files"] for path in ROOT.glob(pattern)]
    if (metadata["Version"], len(licences)) != (project["version"], len(expected)):
        raise SystemExit(f"{wheel.name} has version {metadata['Version']} and the licence files {licences}.")
    placeholders = [name for name, url in project["urls"].items() if ".example" in url]
    if placeholders:
        print(f"  Before an upload replace the placeholders in [project.urls]: {', '.join(placeholders)}")
    with tarfile.open(sdist) as source:
        inside = {member.partition("/")[2] for member in source.getnames()}
    missing = {"LICENSE", "README.md", "pyproject.toml", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"} - inside
    if missing:
        raise SystemExit(f"{sdist.name} lacks {sorted(missing)}; MANIFEST.in names what it holds.")


def install(requirement: str, place: Path, *, folder: Path) -> Path:
    """Install a requirement into a new environment. Return the folder of its programs."""
    programs = place / ("Scripts" if sys.platform == "win32" else "bin")
    uv = shutil.which("uv")
    if uv:
        run(uv, "venv", "-q", "--python", sys.executable, place, folder=folder)
        run(uv, "pip", "install", "-q", "--python", programs / "python", requirement, folder=folder)
    else:
        venv.create(place, with_pip=True)
        run(programs / "python", "-m", "pip", "install", "-q", requirement, folder=folder)
    return programs


def try_out(file: Path, extra: str, folder: Path) -> None:
    """Install a file, with an extra or without, into an empty environment, use it, and remove the environment."""
    started = time.monotonic()
    label = f"{file}[{extra}]" if extra else str(file)
    place = folder / (extra or file.suffix.strip("."))
    programs = install(label, place, folder=folder)
    installed = time.monotonic()
    run(programs / "guardrail", "--version", folder=folder)
    run(programs / "guardrail", "--help", folder=folder)
    run(programs / "python", "-c", CORE + CALLS.get(extra, ""), folder=folder)
    if extra in HELP:
        run(programs / HELP[extra][0], *HELP[extra][1:], folder=folder)
    used = time.monotonic() - installed
    print(f"  {Path(label).name} works ({installed - started:.0f} s to install, {used:.0f} s to use)", flush=True)
    shutil.rmtree(place)


def main() -> None:
    """Build, check and try out."""
    extras = sys.argv[1:] or sorted(CALLS.keys() - WITH_TORCH)
    extras = sorted(CALLS) if extras == ["all"] else [extra for extra in extras if extra != "core"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT, folder=folder)
        (wheel,), (sdist,) = folder.glob("dist/*.whl"), folder.glob("dist/*.tar.gz")
        check_metadata(wheel, sdist)
        for file in (wheel, sdist):
            try_out(file, "", folder)
        for extra in extras:
            try_out(wheel, extra, folder)


if __name__ == "__main__":
    main()
