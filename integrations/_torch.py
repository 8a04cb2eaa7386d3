"""The one import of torch and transformers; without them the error names the extra that brings them."""

from __future__ import annotations

from typing import Any, TypeAlias

from guardrail.errors import require

__all__ = ["Tensor", "torch", "transformers"]

torch: Any = require("torch", extra="local")
transformers: Any = require("transformers", extra="local")

Tensor: TypeAlias = Any
"""A ``torch.Tensor``; torch is optional and therefore untyped here."""
