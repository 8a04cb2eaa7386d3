"""Sessions of people who signed in, in the database, and tokens against forged requests.

The cookie is random and means nothing by itself. All processes of a database share its sessions, which survive a
restart; after a sign-out, a copy of the cookie is worth nothing.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets

from ...plain_json import sha256_hex
from ..keys import ExpiringKeys
from .accounts import Account, Accounts

__all__ = ["LIFETIME", "Sessions", "form_token", "is_cookie", "is_form_token", "new_cookie"]

LIFETIME = 12 * 3600.0
"""Seconds after which a session ends."""
_COOKIE = re.compile("[0-9a-f]{64}")


class Sessions:
    """The sessions of a review page.

    Args:
        keys: Keep the sessions: the hash of a cookie, with the account and the hash of its token.
        accounts: Who may sign in.
    """

    def __init__(self, keys: ExpiringKeys, accounts: Accounts) -> None:
        self._keys, self._accounts = keys, accounts

    def begin(self, account: Account) -> str:
        """Begin a session, independent of any earlier one; returns its cookie."""
        cookie = new_cookie()
        self._keys.add(_name(cookie), json.dumps([account.name, account.sha256]), LIFETIME)
        return cookie

    def account(self, cookie: str) -> Account | None:
        """The account that signed in; None if it has signed out since, or if its token was withdrawn."""
        session = self._keys.get(_name(cookie))
        return None if session is None else self._accounts.by_name(*json.loads(session))

    def end(self, cookie: str) -> None:
        """End a session in all processes."""
        session = self._keys.get(_name(cookie))
        if session is not None:
            self._keys.remove(_name(cookie), session)


def new_cookie() -> str:
    """A cookie of nobody, for the page to sign in."""
    return secrets.token_hex(32)


def is_cookie(text: str) -> bool:
    """Whether a text can be a cookie."""
    return _COOKIE.fullmatch(text) is not None


def form_token(cookie: str) -> str:
    """The token in every form that is sent with this cookie; another site cannot know it."""
    return sha256_hex(f"form:{cookie}")


def is_form_token(text: str, cookie: str) -> bool:
    """Whether a form was sent by one of our pages, to the browser with this cookie."""
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), form_token(cookie).encode())


def _name(cookie: str) -> str:
    return f"session:{sha256_hex(cookie)}"
