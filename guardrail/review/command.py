"""``guardrail review``: serve the review page, create tokens for its users, or delete old items."""

from __future__ import annotations

import argparse
import getpass
import math
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import cast, get_args

from ..errors import UsageError, require
from ..files import sqlite_path
from ..plain_json import visible
from .delivery import Deliverer
from .destinations import Destination, Format
from .store import ReviewStore
from .web.accounts import Accounts, Role, add_token

__all__ = ["add_arguments", "existing_store", "run"]

DAY = 86_400.0
DATABASE, TOKENS = "reviews.db", "review-tokens.json"
ENV_DATABASE = "GUARDRAIL_REVIEW_DB"
ENV_WEBHOOK, ENV_NOTIFY = "GUARDRAIL_WEBHOOK_SECRET", "GUARDRAIL_NOTIFY"
LOCAL = ("127.0.0.1", "localhost", "[::1]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Environment:\n"
        f"  {ENV_DATABASE}       the database, like --db, but not in the process list\n"
        f"  {ENV_WEBHOOK}  signs callbacks; if set, this process delivers them\n"
        f"  {ENV_NOTIFY}          where to say that something waits:\n"
        "                            slack=URL teams=URL json=URL\n\n"
        "First time:\n"
        "  guardrail review --add-token ann\n"
        "  guardrail review"
    )
    parser.add_argument("--db", help=f"SQLite path or postgresql:// URL (default: {DATABASE})")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=8765, help="port (default: 8765)")
    parser.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME", help="host name browsers use; repeatable"
    )
    parser.add_argument(
        "--https",
        action="store_true",
        help="the page is behind an https proxy: the cookie is Secure, and forms come from https pages only",
    )
    parser.add_argument(
        "--callback-host",
        action="append",
        default=[],
        metavar="HOST",
        help="host that callbacks may go to, e.g. hooks.example.com or *.example.com; repeatable (default: none)",
    )
    parser.add_argument("--tokens", type=Path, default=Path(TOKENS), help=f"tokens file (default: {TOKENS})")
    parser.add_argument("--lease", type=float, default=600.0, help="seconds a reviewer has for an item (default: 600)")
    parser.add_argument("--add-token", metavar="NAME", help="create a token for NAME, print it once, and exit")
    parser.add_argument("--role", choices=get_args(Role), default="reviewer", help="role of the new token")
    parser.add_argument(
        "--purge",
        type=float,
        metavar="DAYS",
        help="delete decided and expired items that arrived more than DAYS days ago, with their callbacks, and exit; "
        "all later items stay, so that they remain a fair sample of the questions asked",
    )
    parser.add_argument("--dry-run", action="store_true", help="with --purge: only print how much would be deleted")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if arguments.add_token is not None:
        token = add_token(arguments.tokens, arguments.add_token, arguments.role)
        _print(f"Token for {arguments.add_token} ({arguments.role}), shown only this once:", token)
        return 0
    if arguments.purge is not None:
        return _purge(arguments)
    if arguments.dry_run:
        raise UsageError("--dry-run goes with --purge DAYS.")
    return _serve(arguments)


def _database(arguments: argparse.Namespace) -> str:
    return arguments.db or os.environ.get(ENV_DATABASE) or DATABASE


def existing_store(arguments: argparse.Namespace) -> ReviewStore:
    """The store that the arguments name.

    Raises:
        UsageError: There is none.
    """
    path = sqlite_path(_database(arguments))
    if path is not None and not path.exists():
        raise UsageError(f"there is no review store '{path}'. Give its path with --db.")
    return ReviewStore(_database(arguments))


def _purge(arguments: argparse.Namespace) -> int:
    with existing_store(arguments) as store:
        purged = store.purge(arguments.purge * DAY, who=_user(), dry_run=arguments.dry_run)
    verb = "Would delete" if arguments.dry_run else "Deleted"
    older = f"that arrived more than {arguments.purge:g} days ago"
    _print(f"{verb} {purged.items} decided or expired items {older}, and {purged.callbacks} of their callbacks.")
    if purged.steps:
        _print(f"{verb} {purged.steps} steps of monitors that are as old; what the monitors found stays.")
    if purged.kept:
        _print(f"{purged.kept} older items stay: their callers may not have received the decision yet.")
    if purged.open:
        _print(f"{purged.open} older items stay: they are not decided yet.")
    if purged.kept or purged.open:
        since = datetime.fromtimestamp(math.ceil(purged.since), UTC)
        since_then = f"--since {since:%Y-%m-%dT%H:%M:%S}"
        _print(f"These are not a fair sample. To learn without them: calibrate learn {since_then}")
    if purged.in_log:
        _print("The database is in use, so the deleted texts may still be in its -wal file. Purge again later.")
    return 0


def _user() -> str:
    try:
        return f"{getpass.getuser()} (command line)"[:256]
    except (KeyError, OSError):  # the user has no name, as in some containers
        return "command line"


def _serve(arguments: argparse.Namespace) -> int:
    for package in ("starlette", "jinja2", "python_multipart", "uvicorn"):
        require(package, extra="review")
    from .web.app import review_app, server_of

    accounts = Accounts(arguments.tokens)
    if not accounts.all():
        raise UsageError("nobody can sign in: there are no tokens. Create one with: guardrail review --add-token NAME")
    webhook = os.environ.get(ENV_WEBHOOK)
    if _destinations(None) and not webhook:
        raise UsageError(f"{ENV_NOTIFY} needs {ENV_WEBHOOK}, too: only a process that delivers sends messages.")
    with _listener(arguments.host, arguments.port) as listener, ReviewStore(_database(arguments)) as store:
        app = review_app(
            store,
            accounts,
            hosts=(*LOCAL, arguments.host, *arguments.allowed_host),
            https=arguments.https,
            lease=arguments.lease,
        )
        server = server_of(app)
        name = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        address = f"http://{name}:{listener.getsockname()[1]}"
        page = f"https://{arguments.allowed_host[0]}" if arguments.https and arguments.allowed_host else address
        deliverer = None
        if webhook:
            hosts = tuple(arguments.callback_host)
            deliverer = Deliverer(store, webhook, destinations=_destinations(page), hosts=hosts)
        _print(f"Review page: {address}  (Ctrl-C stops it)")
        if arguments.host not in LOCAL and not arguments.https:
            _print(
                "Other machines can reach this address, and http sends tokens unencrypted: put an https proxy in front."
            )
        if deliverer is not None:
            deliverer.start()
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            if deliverer is not None:
                deliverer.stop()
    return 0


def _destinations(page: str | None) -> tuple[Destination, ...]:
    entries = [entry.partition("=") for entry in os.environ.get(ENV_NOTIFY, "").split()]
    try:
        return tuple(Destination(url, cast(Format, name), page) for name, _, url in entries)
    except UsageError as error:
        raise UsageError(f"{ENV_NOTIFY} is a list like slack=URL teams=URL json=URL, and {error}") from None


def _listener(host: str, port: int) -> socket.socket:
    """A socket on that address, bound before anything else, so that a problem is reported in plain words."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"--port must be from 0 to 65535 (0: any free port), got {port}. Use 8765.")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        way_out = "Use another --port, or --host 127.0.0.1 (0.0.0.0 for all addresses of this machine)"
        raise UsageError(
            f"cannot listen on {host} port {port}: {f'{error}'.partition(' (while')[0]}. {way_out}."
        ) from error


def _print(*lines: str) -> None:
    sys.stdout.write(visible("\n".join(lines)) + "\n")
    sys.stdout.flush()
