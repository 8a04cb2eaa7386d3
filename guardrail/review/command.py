"""``guardrail review``: serve the review page, or make tokens for those who use it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..errors import UsageError, require
from .accounts import Accounts, add_token

__all__ = ["add_arguments", "run"]

DATABASE, TOKENS = "reviews.db", "review-tokens.json"
ENV_DATABASE, ENV_TOKENS = "GUARDRAIL_REVIEW_DB", "GUARDRAIL_REVIEW_TOKENS"
ENV_SECRET, ENV_WEBHOOK = "GUARDRAIL_REVIEW_SECRET", "GUARDRAIL_WEBHOOK_SECRET"
LOCAL = ("127.0.0.1", "localhost", "[::1]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Environment:\n"
        f"  {ENV_DATABASE}      the database, as --db (keeps a password out of the process list)\n"
        f"  {ENV_TOKENS}  accounts as name:role:token,... instead of a tokens file\n"
        f"  {ENV_SECRET}  signs session cookies; without it a restart signs everybody out\n"
        f"  {ENV_WEBHOOK}  signs callbacks; with it this process delivers them\n\n"
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
    parser.add_argument("--https", action="store_true", help="a proxy in front speaks https: mark the cookie Secure")
    parser.add_argument("--tokens", type=Path, default=Path(TOKENS), help=f"tokens file (default: {TOKENS})")
    parser.add_argument("--lease", type=float, default=600.0, help="seconds a reviewer has for an item (default: 600)")
    parser.add_argument("--add-token", metavar="NAME", help="make a token for NAME, print it once, and end")
    parser.add_argument("--role", choices=("reviewer", "admin"), default="reviewer", help="role of the new token")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if arguments.add_token is not None:
        token = add_token(arguments.tokens, arguments.add_token, arguments.role)
        _say(f"Token for {arguments.add_token} ({arguments.role}), shown only now:", token)
        return 0
    return _serve(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    for package in ("starlette", "jinja2", "python_multipart"):
        require(package, extra="review")
    uvicorn = require("uvicorn", extra="review")
    from .outbox import Deliverer
    from .store import ReviewStore
    from .web import review_app

    accounts = _accounts(arguments.tokens)
    if not arguments.lease > 0:
        raise UsageError(f"--lease must be above 0 seconds, got {arguments.lease}.")
    secret = os.environ.get(ENV_SECRET)
    if secret is not None and len(secret) < 32:
        raise UsageError(f"{ENV_SECRET} must have at least 32 characters, got {len(secret)}.")
    with ReviewStore(arguments.db or os.environ.get(ENV_DATABASE) or DATABASE) as store:
        app = review_app(
            store,
            accounts,
            secret=None if secret is None else secret.encode(),
            hosts=(*LOCAL, arguments.host, *arguments.allowed_host),
            https=arguments.https,
            lease=arguments.lease,
        )
        webhook = os.environ.get(ENV_WEBHOOK)
        deliverer = Deliverer(store, webhook) if webhook else None
        _say(f"Review page: http://{arguments.host}:{arguments.port}  (Ctrl-C ends it)")
        if arguments.host not in LOCAL and not arguments.https:
            _say(
                "Others can reach this address, and http shows tokens to the network: put a proxy with https before it."
            )
        if deliverer is not None:
            deliverer.start()
        try:
            # No access log: tickets are in the paths. No proxy headers: anybody could send them.
            uvicorn.run(
                app,
                host=arguments.host,
                port=arguments.port,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        finally:
            if deliverer is not None:
                deliverer.stop()
    return 0


def _accounts(path: Path) -> Accounts:
    given = os.environ.get(ENV_TOKENS)
    accounts = Accounts.from_text(given) if given else Accounts(path)
    if not accounts.all():
        raise UsageError("nobody could sign in: there are no tokens. Make one with: guardrail review --add-token NAME")
    return accounts


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
