"""The labelled population of calibrate's tests."""

from __future__ import annotations

from tests.calibrate.conftest import labelled, plan, records_path

__all__ = ["labelled", "plan", "records_path"]
