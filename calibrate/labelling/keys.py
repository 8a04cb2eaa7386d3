"""Single keys from a terminal; first letters of lines where there is no terminal."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["NextKey", "key_reader"]

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O.|.)?|[\r\n]")
"""What arrow and function keys send, and Return: no keys here."""

NextKey = Callable[[], str | None]
"""Waits for a key; None at the end of the input."""


@contextmanager
def key_reader(stream: TextIO) -> Iterator[NextKey]:
    """Read keys as they are pressed, without Return. Piped input is read by lines: the first letter of each counts.

    The terminal is set back on the way out. Ctrl-C interrupts as always.
    """
    if not stream.isatty():
        yield lambda: _line_key(stream)
    elif sys.platform == "win32":
        import msvcrt

        yield msvcrt.getwch
    else:
        import termios
        import tty

        descriptor = stream.fileno()
        before = termios.tcgetattr(descriptor)
        try:
            tty.setcbreak(descriptor)
            yield _Pressed(descriptor).next
        finally:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _line_key(stream: TextIO) -> str | None:
    for line in stream:
        if line.strip():
            return line.strip()[0]
    return None


class _Pressed:
    """Keys of a terminal in cbreak mode; several may arrive at once, and an arrow key arrives as a sequence."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[str] = deque()

    def next(self) -> str | None:
        """The next key; Ctrl-D and a closed terminal end the input."""
        while not self._waiting:
            try:
                data = os.read(self._descriptor, 64)
            except OSError:  # the terminal is gone
                return None
            if not data:
                return None
            self._waiting.extend(_ESCAPE.sub("", data.decode("utf-8", errors="replace")))
        key = self._waiting.popleft()
        return None if key == "\x04" else key
