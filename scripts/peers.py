"""Get the real servers that ``tests/peers`` talks to, into .peers/. Standard library only; safe to run again.

``llama-server`` is built from llama.cpp's source, which the package ``llama-cpp-python`` carries (about 20 minutes on
two cores, once); ``--server PATH`` or LLAMA_SERVER=PATH uses an existing build. The embedded model is
converted to GGUF, and the packages that ``transformers serve`` needs beyond .venv go into a separate folder, so that
.venv stays unchanged.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

from to_gguf import write_gguf

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"
MODEL = ROOT / "examples" / "tiny_model" / "orrin-1.5m"
GGUF = PEERS / "orrin-1.5m.gguf"
SERVER = PEERS / "llama.cpp" / "bin" / "llama-server"
SERVING = PEERS / "serving"
SOURCE = "llama-cpp-python==0.3.36"
SERVING_NEEDS = ("fastapi==0.165.0", "accelerate==1.15.0", "psutil==7.2.2")
"""Packages that ``transformers serve`` imports and .venv lacks."""
CMAKE_SETTINGS = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF")
SHOW_EVERY = 10.0
"""Seconds between two lines of progress."""


def say(text: str) -> None:
    """Print at once, also when output is piped."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(command: Sequence[object], title: str, log: Path) -> None:
    """Run a command, keep its output in a log, and show its progress from time to time.

    Raises:
        SystemExit: The command failed; the end of its output is shown.
    """
    say(f"  {title}")
    started = shown = time.monotonic()
    tail: list[str] = []
    with (
        log.open("a", encoding="utf-8") as log_file,
        subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            log_file.write(line)
            tail = [*tail[-15:], line]
            if time.monotonic() - shown >= SHOW_EVERY:
                shown = time.monotonic()
                say(f"    {shown - started:5.0f} s  {line.strip()[:100]}")
    if process.returncode:
        say("".join(tail))
        raise SystemExit(f"this failed: {title}; the whole log is in {log}")


def works(server: Path) -> bool:
    """Return whether the file is a llama-server that starts."""
    if not server.is_file():
        return False
    result = subprocess.run([server, "--version"], env=beside(server), capture_output=True, check=False)
    return result.returncode == 0


def beside(server: Path) -> dict[str, str]:
    """Return the environment in which a server finds the libraries in its folder."""
    path = [str(server.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, path))}


def take_over(binary: Path) -> None:
    """Copy an existing build of the server, with the libraries in its folder.

    Raises:
        SystemExit: The build does not exist or does not start.
    """
    if not works(binary):
        raise SystemExit(
            f"{binary} is not a llama-server that starts. Leave --server and LLAMA_SERVER out to build one."
        )
    if binary.resolve() == SERVER.resolve():
        return
    SERVER.parent.mkdir(parents=True, exist_ok=True)
    for file in (*binary.parent.glob("*.so*"), *binary.parent.glob("*.dylib")):
        (SERVER.parent / file.name).unlink(missing_ok=True)
        shutil.copy2(file, SERVER.parent / file.name, follow_symlinks=False)
    part = SERVER.with_name("llama-server.part")
    shutil.copy2(binary, part)
    part.replace(SERVER)  # last, so that an existing server has its libraries


def build(jobs: int) -> Path:
    """Download llama.cpp's source and build its server; continues where it stopped.

    Raises:
        SystemExit: A tool is missing, or a step failed.
    """
    missing = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"{' and '.join(missing)} missing. On Debian: apt-get install cmake g++ make")
    work, log = PEERS / "source", PEERS / "build.log"
    work.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--dest", work, SOURCE]
    if not list(work.glob("llama_cpp_python-*.tar.gz")):
        run(pip, f"downloading {SOURCE}, about 80 MB", log)
    (archive,) = work.glob("llama_cpp_python-*.tar.gz")
    folder = work / archive.name.removesuffix(".tar.gz")
    if not folder.exists():
        say("  unpacking")
        fresh = work / "unpacked"
        shutil.rmtree(fresh, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(fresh, filter="data")
        (fresh / folder.name).replace(folder)
    source = folder / "vendor" / "llama.cpp"
    run(["cmake", "-S", source, "-B", source / "build", *CMAKE_SETTINGS], "configuring llama.cpp", log)
    command = ["cmake", "--build", source / "build", "--target", "llama-server", "--parallel", str(jobs)]
    run(command, f"building llama-server, {jobs} jobs; about 20 minutes on two cores", log)
    return source / "build" / "bin" / "llama-server"


def get_server(binary: Path | None, jobs: int) -> None:
    """Install llama-server, the full peer."""
    if binary is not None:
        take_over(binary)
    elif not works(SERVER):
        take_over(build(jobs))
    say(f"llama-server: {SERVER.relative_to(ROOT)}")


def get_model() -> None:
    """Convert the embedded model for llama-server."""
    causes = [*MODEL.iterdir(), Path(__file__).with_name("to_gguf.py")]
    if not GGUF.exists() or GGUF.stat().st_mtime < max(cause.stat().st_mtime for cause in causes):
        write_gguf(MODEL, GGUF)
    say(f"its model:    {GGUF.relative_to(ROOT)}")


def get_serving() -> None:
    """Install the packages that the degraded peer, ``transformers serve``, needs."""
    done = SERVING / ".done"
    requirements = "\n".join(SERVING_NEEDS)
    if not done.exists() or done.read_text("utf-8") != requirements:
        shutil.rmtree(SERVING, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", SERVING, *SERVING_NEEDS]
        run(pip, "installing what transformers serve needs", PEERS / "build.log")
        done.write_text(requirements, "utf-8")
    say(f"transformers serve: with {SERVING.relative_to(ROOT)} on its path")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Get the real servers that tests/peers talks to, into .peers/.")
    preset = os.environ.get("LLAMA_SERVER")
    parser.add_argument(
        "--server", type=Path, default=Path(preset) if preset else None, help="an existing build of llama-server"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of parallel compilers")
    chosen = parser.parse_args()
    PEERS.mkdir(exist_ok=True)
    get_server(chosen.server, chosen.jobs)
    get_model()
    get_serving()


if __name__ == "__main__":
    main()
