"""``python -m calibrate`` and the ``calibrate`` command."""

from __future__ import annotations

import sys

from guardrail.errors import MissingDependencyError, require

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    try:
        for package in ("filelock", "rich", "scipy", "typer", "yaml"):
            require(package, extra="calibrate")
    except MissingDependencyError as error:
        sys.exit(str(error))
    from .cli import app

    app(prog_name="calibrate")


if __name__ == "__main__":
    main()
