"""A private PostgreSQL server for tests: in a temporary folder, on the loopback, deleted afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["missing", "restart", "server", "stopped"]

FOLDERS = ("/usr/local/bin", *sorted((str(p) for p in Path("/usr/lib/postgresql").glob("*/bin")), reverse=True))


def _binary(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(FOLDERS))


def _user() -> str | None:
    """Return the user to run the server as, since it refuses root; None if the current user can, "" if nobody can."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    return ""


def missing() -> str | None:
    """Return why a server cannot run here, or None."""
    lacking = [name for name in ("initdb", "pg_ctl", "postgres") if _binary(name) is None]
    if lacking:
        return f"PostgreSQL is not installed: no {', '.join(lacking)}"
    if _user() == "" or (_user() and shutil.which("setpriv") is None):
        return "PostgreSQL refuses to run as root, and there is no other user (or no setpriv)"
    return None


@contextmanager
def server() -> Iterator[str]:
    """Start a server; yield the URL of its database ``postgres``.

    Durability keeps its default, so that a test that kills the server is realistic.
    """
    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="guardrail-postgres-"))
    prefix: list[str] = []
    if user:
        owner = pwd.getpwnam(user)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        prefix = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"

    def run(name: str, *arguments: str) -> None:
        command = [*prefix, str(_binary(name)), *arguments]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            log = folder / "log"
            raise RuntimeError(f"{name}: {done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}")

    try:
        run("initdb", "-D", str(data), "-U", "guardrail", "--auth=trust", "--encoding=UTF8", "--locale=C", "-N")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='' -c max_connections=60"
        # pg_ctl waits for its standard output to be closed by the server, hence the log file.
        run("pg_ctl", "-D", str(data), "-w", "-t", "60", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://guardrail@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restart(url: str) -> None:
    """Kill the server as a crash would, and start it again on the same port."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    user, prefix = _user(), list[str]()
    if user:
        owner = pwd.getpwnam(user)
        prefix = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    log = str(Path(data).parent / "log")
    command = [*prefix, str(_binary("pg_ctl")), "-D", data, "-w", "-t", "60", "-m", "immediate", "-l", log, "restart"]
    subprocess.run(command, cwd=Path(data).parent, check=True, capture_output=True, stdin=subprocess.DEVNULL)


@contextmanager
def stopped(url: str) -> Iterator[None]:
    """Stop all processes of the server (SIGSTOP), so that it keeps its sockets open and answers nothing."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        backend = connection.info.backend_pid
        main = _parent(backend)
    processes = [main, *(pid for pid in _pids() if _parent(pid) == main)]
    for pid in processes:
        _signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(processes):
            _signal(pid, signal.SIGCONT)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # the process has ended
        return -1


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
