"""The bank: accounts in a SQLite file, and the two tools an agent has."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated, Any

from langchain_core.tools import BaseTool, InjectedToolCallId, tool

__all__ = ["CONTACTS", "Bank", "tools_of"]

CONTACTS = {
    "alex.meyer": "Alex Meyer",
    "alex.chen": "Alex Chen",
    "bob.stone": "Bob Stone",
    "carla.diaz": "Carla Diaz",
    "dana.fox": "Dana Fox",
    "sam.oak": "Sam Oak",
    "sam.reed": "Sam Reed",
    "yuki.tan": "Yuki Tan",
}
"""Payees by id."""


class Bank:
    """One customer's account."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS sent (call TEXT PRIMARY KEY, payee TEXT, euros INTEGER)")

    def balance(self) -> int:
        """Return the euros in the account."""
        with self._open() as database:
            (sent,) = database.execute("SELECT coalesce(sum(euros), 0) FROM sent").fetchone()
        return 1200 - int(sent)

    def send(self, call: str, payee: str, euros: int) -> str:
        """Send money once: a step that runs again sends the same call id, which the table already holds."""
        if payee not in CONTACTS:
            return f"Refused: there is no payee {payee!r}."
        if not 0 < euros <= self.balance():
            return f"Refused: {euros} euros cannot be sent."
        with self._open() as database:
            database.execute("INSERT OR IGNORE INTO sent VALUES (?, ?, ?)", (call, payee, euros))
        return f"Sent {euros} euros to {CONTACTS[payee]}."

    def _open(self) -> Any:
        return _closing(sqlite3.connect(self._path))


class _closing:  # noqa: N801 - reads like contextlib.closing
    """A connection that commits and closes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._connection.commit()
        self._connection.close()


def tools_of(bank: Bank) -> list[BaseTool]:
    """Return the agent's tools."""

    @tool
    def balance() -> str:
        """How much money is in the account."""
        return f"The balance is {bank.balance()} euros."

    @tool
    def transfer(to: str, amount: int, memo: str, call: Annotated[str, InjectedToolCallId]) -> str:
        """Send money to a payee."""
        return bank.send(call, to, amount)

    return [balance, transfer]
