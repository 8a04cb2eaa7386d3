"""Settings for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine must not fail a test
settings.load_profile("untimed")
