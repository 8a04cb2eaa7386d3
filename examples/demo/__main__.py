"""Run the demo: `make demo`, or `python -m examples.demo`; without torch `python -m examples.demo --quick`."""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bar for loading weights
os.environ.setdefault("OMP_NUM_THREADS", "1")  # with models this small a second thread costs more than it saves
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its advice on dtypes of GGUF files stands in local-models.md

from rich.padding import Padding
from rich.text import Text

from examples.demo import llm, recorded, smollm2
from examples.demo.screen import CONSOLE, title

DRAWING, PAGES = 105, 130
"""Seconds after which the model answers no more, and no other page begins: for three minutes on slow machines, too."""
WELCOME = """[bold]acrc-guardrail[/]: a language model that answers only where its error rate is under control"""


def main() -> None:
    """Show the main job end to end and print where the reports are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="output folder")
    parser.add_argument("--full", action="store_true", help="draw all recorded answers again (resumable)")
    parser.add_argument("--quick", action="store_true", help="from the records only; needs no torch")
    args = parser.parse_args()
    out: Path = args.out
    started = time.monotonic()
    CONSOLE.print(WELCOME)
    until = math.inf if args.full else started + DRAWING
    written = [llm.run(out / "llm", full=args.full, live=not args.quick, until=until)]
    if not args.quick and smollm2.unavailable() is not None:
        written += _embedded(out)
    if args.quick or args.full or time.monotonic() - started < PAGES:
        written.append(recorded.run(out / "recorded"))
    else:
        CONSOLE.print("\nRecorded large models: left out, because the demo has three minutes. Try: make demo-quick")
    if args.full or (not args.quick and time.monotonic() - started < PAGES):
        _fields(out / "extraction")
    elif not args.quick:
        CONSOLE.print("\nExtracted fields: left out likewise. Try: .venv/bin/python -m examples.extraction")
    title(f"done in {time.monotonic() - started:.0f} s; the reports (HTML) and their pictures (PNG)")
    for report, *pictures in written:
        CONSOLE.print(f"  {report}", soft_wrap=True)
        names = ", ".join(picture.name for picture in pictures)
        CONSOLE.print(Padding(Text(names, "dim"), (0, 0, 0, 4)))
    folder = ".venv-quick" if args.quick else ".venv"
    CONSOLE.print(f"\nNext: [bold]{folder}/bin/calibrate report {out}/llm/artifact.json[/]", soft_wrap=True)


def _embedded(out: Path) -> list[list[Path]]:
    """Run the embedded model live, where the recorded one cannot run."""
    from examples.demo import embedded  # needs torch
    from integrations.transformers_chat import TransformersChat

    CONSOLE.print("\nLive instead: a model of 1.5 M parameters, trained by a script in this repository.")
    model = TransformersChat(model=str(embedded.MODEL))
    return [embedded.run(task, model, out / task.name.replace(" ", "-")) for task in embedded.TASKS]


def _fields(out: Path) -> None:
    """Extract fields of invoices, each kept or held back by itself."""
    from examples.extraction import __main__ as extraction  # needs the clients of an endpoint, and the queue

    title("extract fields", "invoices as JSON: each field is kept or held back by itself (examples/extraction)")
    extraction.show(extraction.run(out))


if __name__ == "__main__":
    main()
