"""Accounts that may sign in or use the API: names, roles and token hashes; and the sessions of those who signed in.

A token has 256 random bits, so a plain SHA-256 hides it.

The file is JSON: ``{"format": 1, "accounts": {"ann": {"role": "reviewer", "sha256": "..."}}}``;
`guardrail review --add-token ann` writes it.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from pathlib import Path
from typing import Literal

from pydantic import ValidationError, field_validator

from ...errors import UsageError
from ...files import atomic_write, check_version, problem_of
from ...plain_json import sha256_hex
from ...types import Frozen
from ..keys import ExpiringKeys

__all__ = ["LIFETIME", "Account", "Accounts", "Role", "Sessions", "add_token"]

Role = Literal["reviewer", "admin", "system"]
"""A reviewer decides; an admin also sees the audit trail, takes items back and acknowledges alarms. A system (e.g. for
tickets) reads and decides items through the API and cannot sign in."""
_log = logging.getLogger(__name__)
FORMAT = 1
"""Version of the tokens file."""
LIFETIME = 12 * 3600.0
"""Seconds after which a session ends."""


class Account(Frozen):
    """One person, or one system."""

    name: str
    """Name in the audit trail: 1 to 64 printable characters."""
    role: Role
    """reviewer, admin or system."""
    sha256: str
    """Hash of the token, in hex."""

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if not 0 < len(name) <= 64 or not name.isprintable():
            raise ValueError("a name has 1 to 64 printable characters")
        return name


class Accounts:
    """The people and systems of a tokens file, which is read each time: a token that is deleted is withdrawn at once.

    Args:
        path: The file; it may be missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self) -> tuple[Account, ...]:
        """All accounts.

        Raises:
            UsageError: The file is malformed.
        """
        return _load(self._path) if self._path.exists() else ()

    def by_token(self, token: str) -> Account | None:
        """The account with this token."""
        return self.by_hash(_hash(token))

    def by_hash(self, sha256: str) -> Account | None:
        """The account whose token has this hash; None, with an error in the log, while the file is malformed.

        Compares with every hash, each in constant time.
        """
        try:
            matches = [account for account in self.all() if hmac.compare_digest(account.sha256, sha256)]
        except UsageError as error:
            _log.error("Nobody can sign in: %s", error)
            return None
        return matches[0] if matches else None


class Sessions:
    """Sessions of people who signed in: random cookies, whose hashes lie in the database with the account.

    All processes of a database share its sessions, which survive a restart; after a sign-out, a copy of the cookie is
    worth nothing.

    Args:
        keys: Keep the sessions.
        accounts: Who may sign in.
    """

    def __init__(self, keys: ExpiringKeys, accounts: Accounts) -> None:
        self._keys, self._accounts = keys, accounts

    def begin(self, account: Account) -> str:
        """Begin a session, independent of any earlier one; returns its cookie."""
        cookie = secrets.token_hex(32)
        self._keys.add(_session(cookie), account.sha256, LIFETIME)
        return cookie

    def account(self, cookie: str) -> Account | None:
        """The account that signed in; None if it has signed out since, or if its token was withdrawn."""
        session = self._keys.get(_session(cookie)) if cookie else None
        return None if session is None else self._accounts.by_hash(session)

    def end(self, cookie: str) -> None:
        """End a session, if the cookie has one, in all processes."""
        session = self._keys.get(_session(cookie))
        if session is not None:
            self._keys.remove(_session(cookie), session)


def add_token(path: Path, name: str, role: str) -> str:
    """Create a token (a new one if the name exists) and store its hash. Returns the token, which is stored nowhere.

    Raises:
        UsageError: An invalid name or role, or a malformed file.
    """
    token = secrets.token_urlsafe(32)
    accounts = {account.name: account for account in _load(path)} if path.exists() else {}
    try:
        accounts[name] = Account.model_validate({"name": name, "role": role, "sha256": _hash(token)})
    except ValidationError as error:
        raise UsageError(f"account {name!r}: {problem_of(error)}.") from None
    stored = {name: account.model_dump(exclude={"name"}) for name, account in accounts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, json.dumps({"format": FORMAT, "accounts": stored}, indent=1), mode=0o600)
    return token


def _load(path: Path) -> tuple[Account, ...]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        check_version(content.get("format"), FORMAT, str(path), "make a new file with `guardrail review --add-token`")
        return tuple(Account.model_validate({**row, "name": name}) for name, row in content["accounts"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        why = problem_of(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path} is not a tokens file ({why}). Create one with: guardrail review --add-token NAME"
        ) from error


def _session(cookie: str) -> str:
    return f"session:{_hash(cookie)}"


def _hash(token: str) -> str:
    return sha256_hex(token.encode("utf-8", "surrogatepass"))
