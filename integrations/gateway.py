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
import signal
import socket
import sys
import threading
import time
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from guardrail.errors import UsageError, require, show_details
from guardrail.plain_json import visible

from ._gateway.app import Gateway
from ._gateway.config import Config, load_config, new_key
from ._gateway.health import news

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
    for name, text in (
        ("--mode", "guard (default), or observe: measure behind the answers"),
        ("--settings", "clients' other sampling settings: usual, replace, refuse"),
        ("--on-abstain", "what clients get: message (default), error, ticket"),
        ("--finish-reason", "of an abstention: content_filter (default), stop"),
    ):
        one.add_argument(name, metavar="WORD", help=text)
    one.add_argument("--scorer", metavar="NAME", help="MODULE:NAME of the scorer, for an artifact of your own score")
    one.add_argument("--reviews", metavar="STORE", help="review store: SQLite path or postgresql:// URL")
    one.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="another setting of the model in the file: probe=off, upstream.allow_http=true",
    )
    several = parser.add_argument_group("several models, keys, limits")
    several.add_argument("--config", type=Path, metavar="FILE", help="the configuration")
    several.add_argument("--new-key", metavar="NAME", help="make a key for NAME, print it once, and exit")
    server = parser.add_argument_group("the server")
    server.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    server.add_argument("--port", type=int, help="port (default: 8700)")
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
        _serve(require("uvicorn", extra="serve"), gateway)
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


ONE_MODEL = ("artifact", "mode", "settings", "on_abstain", "finish_reason", "scorer")
"""Flags that are settings of the one model of a gateway without a file."""


def _configured(arguments: argparse.Namespace) -> Config:
    """The configuration of the file or of the flags; ``--host`` and ``--port`` override the file."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    address: dict[str, Any] = {name: given[name] for name in ("host", "port") if name in given}
    own = [name for name in ("upstream", "model", *ONE_MODEL, "reviews", "set") if name in given]
    if arguments.config is not None:
        if own:
            flags = ", ".join(map(_flag, own))
            raise UsageError(f"{flags}: for a gateway without --config. Leave them out, and set them in the file.")
        content = load_config(arguments.config).model_dump(exclude_unset=True)
        return Config.checked({**content, **address}, str(arguments.config))
    if not {"upstream", "model"} <= given.keys():
        raise UsageError("give --config FILE, or --upstream URL and --model NAME (and --artifact FILE to guard).")
    model = arguments.model
    alias = {name: given[name] for name in ONE_MODEL if name in given}
    alias["upstream"] = {"url": arguments.upstream, "model": model}
    places: dict[tuple[str | int, ...], str] = {
        ("models", model, name): _flag(name) for name in (*ONE_MODEL, "upstream")
    }
    places |= {(name,): _flag(name) for name in (*address, "reviews")}
    for each in given.get("set", ()):
        path, value = _setting(each)
        section = alias if len(path) == 1 else alias.setdefault(path[0], {})
        if not isinstance(section, dict):
            raise UsageError(f"--set {each}: {path[0]} has no settings of its own.")
        section[path[-1]] = value
        places["models", model, *path] = f"--set {each.partition('=')[0]}"
    reviews = {"reviews": given["reviews"]} if "reviews" in given else {}
    return Config.checked({"version": 1, "models": {model: alias}, **reviews, **address}, "arguments", places)


def _setting(text: str) -> tuple[tuple[str, ...], Any]:
    """The place and the value of ``--set NAME=VALUE``; the value is read as YAML.

    Raises:
        UsageError: It is not of this form.
    """
    name, equals, value = text.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path) or len(path) > 2:
        raise UsageError(f"--set needs NAME=VALUE or upstream.NAME=VALUE, got {text!r}.")
    yaml = require("yaml", extra="serve")
    try:
        return path, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {name}: {value!r} cannot be read as YAML. Quote it.") from error


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse_workers(arguments: argparse.Namespace, config: Config) -> None:
    """Refuse several processes that would draw a question twice or write one file."""
    if arguments.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {arguments.workers}.")
    if not hasattr(os, "setpgrp"):  # Windows
        raise UsageError("--workers needs a system that forks processes. Start one process on each port instead.")
    if config.reviews is None and any(alias.mode == "guard" for alias in config.models.values()):
        raise UsageError(
            "--workers needs `reviews` in the configuration: without a shared store each process remembers its own "
            "draws, and a question that is asked again would be drawn again, which selects."
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
    config, stops, count = gateway.config, list[int](), arguments.workers
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    ports = [config.port and config.port + place for place in range(count + 1)]
    try:
        shared, *own = [socket.create_server((config.host, port), family=family, backlog=2048) for port in ports]
    except OSError as error:
        raise UsageError(f"--workers {count} needs the ports {ports[0]} to {ports[-1]}: {error}.") from error

    # It forks a process that has only imported this module, so that a worker that ended is soon back.
    multiprocessing.set_forkserver_preload([__name__])

    def start(number: int) -> Any:
        sockets = [own[number - 1], shared]
        worker = multiprocessing.get_context("forkserver").Process(
            target=_work, args=(arguments, number, sockets), name=f"worker {number}"
        )
        worker.start()
        return worker

    def forward(sig: int, _: Any) -> None:
        stops.extend({sig} - {signal.SIGHUP})
        for worker in workers.values():
            if worker.is_alive():
                os.kill(worker.pid, sig)

    workers = {number: start(number) for number in range(1, count + 1)}
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, forward)
    port, *others = (str(each.getsockname()[1]) for each in (shared, *own))
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
    _serve(require("uvicorn", extra="serve"), _gateway(arguments), sockets)


def _serve(uvicorn: Any, gateway: Gateway, sockets: list[socket.socket] | None = None) -> None:
    config, supervisor = gateway.config, multiprocessing.parent_process()

    class Server(uvicorn.Server):  # type: ignore[misc]
        """Reports that it is no longer ready before it stops, and stops questions before their connections."""

        loop: asyncio.AbstractEventLoop | None = None

        def handle_exit(self, sig: int, frame: Any) -> None:
            leave = partial(super().handle_exit, sig, frame)
            again = gateway.draining
            gateway.drain()
            if again or self.loop is None or not config.drain_delay:
                leave()
            else:  # a handler of a signal interrupts the loop anywhere
                self.loop.call_soon_threadsafe(self.loop.call_later, config.drain_delay, leave)

        async def shutdown(self, sockets: Any = None) -> None:
            stopping = asyncio.create_task(gateway.stop())
            await super().shutdown(sockets)
            del stopping  # a task without a reference may be collected

        async def on_tick(self, counter: int) -> bool:
            if sockets is not None and supervisor is not None and not supervisor.is_alive():
                self.should_exit = True
            return bool(await super().on_tick(counter))

        async def startup(self, sockets: Any = None) -> None:
            self.loop = asyncio.get_running_loop()
            try:
                await super().startup(sockets)
            except SystemExit as stopped:
                if not isinstance(error := stopped.__context__, OSError):
                    raise
                why = f"{config.host}:{config.port} cannot be listened on: {error.strerror}. Give a free one by --port."
                raise UsageError(why) from None
            if sockets is None:
                _announce(gateway, self.servers[0].sockets[0].getsockname()[1])

    # No access log: it would hold addresses and paths, which name tickets. No proxy headers: any client can forge them.
    server = Server(
        uvicorn.Config(
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
    )
    # uvicorn logs this for each reply that broke off upstream, which the gateway has logged already, and a port in use.
    unfinished = "ASGI callable returned without completing response."
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: record.msg != unfinished and not isinstance(record.msg, OSError)
    )
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda *_: gateway.reload())
    server.run(sockets)


def _announce(gateway: Gateway, port: object, *more: str) -> None:
    address = f"http://{gateway.config.host}:{port}/v1"
    _print(f"Serving {', '.join(gateway.aliases)} at {address}  (Ctrl-C stops it)", *more, *_promises(gateway))


def _promises(gateway: Gateway) -> list[str]:
    """The two promises of each alias that guards, a line each, after a warning about a gate that stops nothing."""
    return [f"{name}: {line}" for name, alias in gateway.aliases.items() for line in alias.promises]


def _print(*lines: str) -> None:
    sys.stdout.write(visible("\n".join(lines)) + "\n")
    sys.stdout.flush()
