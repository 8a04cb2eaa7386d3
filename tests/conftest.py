"""Settings for all tests."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine must not fail a test
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or tests of Ctrl-C would wait for nothing
