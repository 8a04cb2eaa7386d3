"""`guardrail serve`: an OpenAI-compatible server in front of a model that answers only when the gate accepts.

    guardrail serve --upstream https://HOST/v1 --model NAME --artifact artifact.json
    guardrail serve --config guardrail.yaml

An application changes one URL, its client's ``base_url``; see docs/gateway.md. `Gateway` is the same as an ASGI
application.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from guardrail.errors import UsageError, require
from guardrail.foreign_errors import show_details
from guardrail.plain_json import visible

from ._gateway.app import Gateway
from ._gateway.config import Config, load_config, new_key
from ._gateway.health import news

_uvicorn = require("uvicorn", extra="serve")

__all__ = ["Gateway", "add_arguments", "load_config", "run"]

WORKER = "GUARDRAIL_WORKER"
"""Variable of the environment: the number of a process under ``--workers``, from 1."""
LAST = 5
"""Seconds after the grace time in which the server still sends replies."""
log = logging.getLogger("guardrail")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = (
        "guardrail serve --upstream URL --model NAME --artifact FILE [options]\n       guardrail serve --config FILE"
    )
    parser.epilog = (
        "The form of the configuration is in docs/gateway.md.\n"
        "SIGHUP reads it and the artifacts again.\n"
        "The key of the upstream comes from OPENAI_API_KEY, or from the configuration."
    )
    one = parser.add_argument_group("one model, without a file")
    one.add_argument("--upstream", metavar="URL", help="root of the model's API")
    one.add_argument("--model", metavar="NAME", help="name of the model there, and here")
    one.add_argument("--artifact", metavar="FILE", help="the calibration artifact")
    one.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the model in the file: mode=observe, upstream.allow_http=true",
    )
    several = parser.add_argument_group("several models, keys, limits")
    several.add_argument("--config", type=Path, metavar="FILE", help="the configuration")
    several.add_argument("--new-key", metavar="NAME", help="make a key for NAME, print it once, and exit")
    server = parser.add_argument_group("the server")
    server.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, help="port (default: 8700)")
    server.add_argument("--reviews", metavar="STORE", help="review store: for tickets, monitors and several processes")
    server.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that share the port; guards need a store"
    )
    server.add_argument("--check", action="store_true", help="check configuration and artifacts, and exit")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if arguments.new_key is not None:
        key, line = new_key(arguments.new_key)
        _print(f"Key for {arguments.new_key}, shown only this once: {key}", "Add to the configuration:", "keys:", line)
        return 0
    if arguments.workers != 1:
        os.environ[WORKER] = "1"
        _refuse_workers(arguments, _configured(arguments))
    gateway = _gateway(arguments)
    if arguments.check:
        shown = gateway.config.model_dump_json(indent=1, exclude_defaults=True)
        _print(shown, *_promises(gateway), "The configuration and its artifacts are valid.")
    elif arguments.workers == 1:
        _serve(gateway)
    else:
        _supervise(arguments, gateway)
    return 0


def _gateway(arguments: argparse.Namespace) -> Gateway:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for shown in (news, logging.getLogger("guardrail.probe")):  # rare lines, for which an operator would otherwise wait
        shown.setLevel(logging.INFO)
    config = _configured(arguments)
    gateway = Gateway(config if arguments.config is None else arguments.config)
    gateway.config = config  # with the flags
    return gateway


def _configured(arguments: argparse.Namespace) -> Config:
    """The configuration of the file or of the flags; ``--host``, ``--port`` and ``--reviews`` override the file."""
    values = {name: value for name, value in vars(arguments).items() if value}
    of_server = ("host", "port", "reviews")
    shared = {name: value for name, value in vars(arguments).items() if name in of_server and value is not None}
    if arguments.config is not None:
        misplaced = [f"--{name}" for name in ("upstream", "model", "artifact", "set") if name in values]
        if misplaced:
            raise UsageError(
                f"{', '.join(misplaced)}: for a gateway without --config. Leave them out, and set them in the file."
            )
        content = load_config(arguments.config).model_dump(exclude_unset=True)
        return Config.checked({**content, **shared}, str(arguments.config))
    if not {"upstream", "model"} <= values.keys():
        raise UsageError("give --config FILE, or --upstream URL and --model NAME (and --artifact FILE to guard).")
    model = arguments.model
    alias: dict[str, Any] = {}
    places: dict[tuple[str | int, ...], str] = {(name,): f"--{name}" for name in shared}
    flags = (("upstream.url", "upstream"), ("upstream.model", "model"), ("artifact", "artifact"))
    settings = [(setting, values[name], f"--{name}") for setting, name in flags if name in values]
    for setting, value, flag in (*settings, *map(_setting, arguments.set)):
        first, *rest = setting.split(".")
        section = alias.setdefault(first, {}) if rest else alias
        if not isinstance(section, dict):
            raise UsageError(f"{flag}: {first} has no settings of its own.")
        section[rest[0] if rest else first] = value
        places.setdefault(("models", model, first), flag)
    return Config.checked({"version": 1, "models": {model: alias}, **shared}, "arguments", places)


def _setting(text: str) -> tuple[str, Any, str]:
    """The name and the value of ``--set NAME=VALUE``, read as YAML, and the flag in messages.

    Raises:
        UsageError: It is not of this form.
    """
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"\s*[^.]+(\.[^.]+)?", name):
        raise UsageError(f"--set needs NAME=VALUE or upstream.NAME=VALUE, got {text!r}.")
    yaml = require("yaml", extra="serve")
    try:
        return name.strip(), yaml.safe_load(value), f"--set {name}"
    except yaml.YAMLError as error:
        raise UsageError(f"--set {name}: {value!r} cannot be read as YAML. Quote it.") from error


class Server(_uvicorn.Server):  # type: ignore[misc,name-defined]
    """Stops questions before their connections.

    ``sockets`` are those of a worker, which ends with its supervisor; without them, the server opens its own.
    """

    def __init__(self, gateway: Gateway, sockets: list[socket.socket] | None) -> None:
        config = gateway.config
        # No access log: it would hold addresses and paths, which name tickets. No proxy headers: clients forge them.
        settings = _uvicorn.Config(
            gateway,
            limit_concurrency=config.max_connections,
            host=config.host,
            port=config.port,
            log_config=None,  # its lines have the form of ours
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=75,  # longer than a proxy in front keeps a connection
            timeout_graceful_shutdown=math.ceil(config.drain) + LAST,
        )
        super().__init__(settings)
        self._gateway = gateway
        self._supervisor = None if sockets is None else multiprocessing.parent_process()

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop the questions while the connections are closed."""
        stopping = asyncio.create_task(self._gateway.stop())
        await super().shutdown(sockets)
        del stopping  # a task without a reference may be collected

    async def on_tick(self, counter: int) -> bool:
        """Stop when the supervisor has ended."""
        if self._supervisor is not None and not self._supervisor.is_alive():
            self.should_exit = True
        return bool(await super().on_tick(counter))

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and announce the address."""
        config = self._gateway.config
        try:
            await super().startup(sockets)
        except SystemExit as stopped:
            if not isinstance(error := stopped.__context__, OSError):
                raise
            why = f"{config.host}:{config.port} cannot be listened on: {error.strerror}. Give a free one by --port."
            raise UsageError(why) from None
        if sockets is None:
            _announce(self._gateway, self.servers[0].sockets[0].getsockname()[1])


def _serve(gateway: Gateway, sockets: list[socket.socket] | None = None) -> None:
    # uvicorn logs this for each reply that broke off upstream, which the gateway has logged already, and a port in use.
    unfinished = "ASGI callable returned without completing response."
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: record.msg != unfinished and not isinstance(record.msg, OSError)
    )
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda *_: gateway.reload())
    Server(gateway, sockets).run(sockets)


# -- several processes -------------------------------------------------------------------------------------------------


def _refuse_workers(arguments: argparse.Namespace, config: Config) -> None:
    """Refuse several processes that would draw a question twice or write one file."""
    if arguments.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {arguments.workers}.")
    if not hasattr(os, "setpgrp"):  # Windows
        raise UsageError("--workers needs a system that forks processes. Start one process on each port instead.")
    if config.reviews is None and any(alias.mode == "guard" for alias in config.models.values()):
        raise UsageError(
            "--workers needs --reviews STORE, or `reviews` in the configuration: without a shared store each process "
            "remembers its own draws, and a question that is asked again would be drawn again, which selects."
        )
    os.environ[WORKER] = "2"
    if shared := _record_files(config) & _record_files(_configured(arguments)):
        raise UsageError(
            f"{min(map(str, shared))}: with --workers each process needs its own record file. Put ${{{WORKER}}}, its "
            "number, into the path."
        )


def _record_files(config: Config) -> set[Path]:
    return {alias.observe.records.path for alias in config.models.values() if alias.observe.records is not None}


def _supervise(arguments: argparse.Namespace, gateway: Gateway) -> None:
    """Run the processes on one port, each also on a second port; a process that ends is started again."""
    config, count = gateway.config, arguments.workers
    stops: list[int] = []
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    ports = [config.port and config.port + number for number in range(count + 1)]
    try:
        shared, *of_workers = [socket.create_server((config.host, port), family=family, backlog=2048) for port in ports]
    except OSError as error:
        raise UsageError(f"--workers {count} needs the ports {ports[0]} to {ports[-1]}: {error}.") from error

    # It forks a process that has only imported this module, so that a worker that ended is soon back.
    multiprocessing.set_forkserver_preload([__name__])

    def start(number: int) -> Any:
        sockets = [of_workers[number - 1], shared]
        worker = multiprocessing.get_context("forkserver").Process(
            target=_work, args=(arguments, number, sockets), name=f"worker {number}"
        )
        worker.start()
        return worker

    def forward(sig: int, _: Any) -> None:
        if sig != signal.SIGHUP:
            stops.append(sig)
        for worker in workers.values():
            if worker.is_alive():
                os.kill(worker.pid, sig)

    workers = {number: start(number) for number in range(1, count + 1)}
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, forward)
    port, *others = (str(each.getsockname()[1]) for each in (shared, *of_workers))
    _announce(gateway, port, f"{count} processes, each also on its own port: {', '.join(others)}")
    while any(worker.is_alive() for worker in workers.values()) or not stops:
        wait([worker.sentinel for worker in workers.values() if worker.is_alive()], timeout=1)
        for number, worker in workers.items():
            if not worker.is_alive() and not stops:
                log.error("guardrail serve: %s ended (exit code %s) and is started again", worker.name, worker.exitcode)
                time.sleep(1)
                workers[number] = start(number)
                if stops:  # the signal came after the end of the former one
                    workers[number].terminate()


def _work(arguments: argparse.Namespace, number: int, sockets: list[socket.socket]) -> None:
    """One of several processes."""
    os.setpgrp()  # Ctrl-C reaches the supervisor, which passes it on
    os.environ[WORKER] = str(number)
    if arguments.verbose:
        show_details()
    _serve(_gateway(arguments), sockets)


# -- what is printed ---------------------------------------------------------------------------------------------------


def _announce(gateway: Gateway, port: object, *more: str) -> None:
    address = f"http://{gateway.config.host}:{port}/v1"
    _print(f"Serving {', '.join(gateway.aliases)} at {address}  (Ctrl-C stops it)", *more, *_promises(gateway))


def _promises(gateway: Gateway) -> list[str]:
    """The two promises of each alias that guards, a line each, after a warning about a gate that stops nothing."""
    return [f"{name}: {line}" for name, alias in gateway.aliases.items() for line in alias.promises]


def _print(*lines: str) -> None:
    sys.stdout.write(visible("\n".join(lines)) + "\n")
    sys.stdout.flush()
