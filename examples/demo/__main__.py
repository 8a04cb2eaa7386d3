"""Run both pages of the demo: `make demo`, or `python -m examples.demo`."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bar for loading 3 MB
os.environ.setdefault("OMP_NUM_THREADS", "1")  # with 1.5 M parameters a second thread costs more than it saves

from examples.demo import embedded, recorded
from examples.demo.screen import CONSOLE, title
from integrations.transformers_chat import TransformersChat

WELCOME = """[bold]acrc-guardrail[/]: a language model that answers only where its error rate is under control
[dim]A real, small language model (1.5 M parameters, trained by a script in this repository) is asked, calibrated on its
own answers, and gated. Nothing is downloaded and nothing is hard-coded.[/]"""


def main() -> None:
    """Show the main job end to end and print where the reports are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="output folder")
    out: Path = parser.parse_args().out
    started = time.monotonic()
    CONSOLE.print(WELCOME)
    model = TransformersChat(model=str(embedded.MODEL))
    written = [embedded.run(task, model, out / task.name.replace(" ", "-")) for task in embedded.TASKS]
    written.append(recorded.run(out / "recorded"))
    title(f"done in {time.monotonic() - started:.0f} s; the reports (HTML) and their pictures (PNG)")
    for report, *pictures in written:
        CONSOLE.print(f"  {report}", soft_wrap=True)
        CONSOLE.print(f"    [dim]{', '.join(picture.name for picture in pictures)}[/]", soft_wrap=True)
    CONSOLE.print(f"\nNext: [bold].venv/bin/calibrate inspect {out}/open-questions/artifact.json[/]", soft_wrap=True)


if __name__ == "__main__":
    main()
