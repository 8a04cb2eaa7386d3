"""The documented import path of `Cascade` before it moved: ``from guardrail import Cascade`` is the shorter one."""

from __future__ import annotations

from .guard.cascade import GOES_ON, Cascade, CascadeVerdict

__all__ = ["GOES_ON", "Cascade", "CascadeVerdict"]
