"""Delay and false alarms of monitors on recorded scores: `python -m benchmarks.monitoring FOLDER`.

`python -m benchmarks.monitoring --speed` measures their cost instead, on a private PostgreSQL.

Recorded scores and errors of real models. A monitor starts on 1,000 questions of some topics, watches 300 more of the
same topics, and then questions of other topics. Everything is repeated over random splits; a delay is the number of
questions asked after the change. The second table is simulated: streams in which nothing ever changes.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from calibrate.fitting import fit
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.monitor import Drift, RiskState, jump
from guardrail.monitor.drift import SLOPES
from guardrail.monitor.state import STAKES
from guardrail.outcome import Feasible, accepts
from guardrail.review import Monitors, ReviewStore
from guardrail.testing import ScriptedChat, make_artifact

CALIBRATION, QUIET, LONGEST = 1_000, 300, 2_000
DELTA = 0.05
THREADS, ROUNDS, LATENCY = 16, 7, 0.2
AUDITS = (1.0, 0.3, 0.1)
REASONING = {  # the published hierarchy of MMBench: reasoning, as against perception
    "physical_property_reasoning", "function_reasoning", "identity_reasoning", "social_relation", "nature_relation",
    "physical_relation", "future_prediction", "structuralized_imagetext_understanding",
}  # fmt: skip
STEM = {"math", "physics", "chemistry", "engineering", "computer science"}
SWAPPED = "another model"
HARNESS = make_artifact(ScriptedChat())


@dataclass(frozen=True, slots=True)
class Data:
    """Scores, errors and topics of one model, by question."""

    name: str
    ids: NDArray[np.str_]
    u: NDArray[np.float64]
    error: NDArray[np.int64]
    topic: NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Change:
    """The change after the quiet time: other topics, another model's answers, or (neither is set) none."""

    data: Data
    name: str
    alpha: float
    after: frozenset[str] = frozenset()
    swap: Data | None = None

    @property
    def any(self) -> bool:
        """True if something changes."""
        return bool(self.after) or self.swap is not None


@dataclass(frozen=True, slots=True)
class Stream:
    """Scores and errors for calibration, and those of a stream whose first `QUIET` questions are of the same kind."""

    known: tuple[NDArray[np.float64], NDArray[np.int64]]
    u: NDArray[np.float64]
    error: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one stream. ``delay`` is None without an alarm; ``early`` means an alarm before the change."""

    early: bool
    delay: int | None
    updates: int


def mmbench(folder: Path, size: str) -> Data:
    """LLaVA: 1 - largest option probability, and whether the likeliest option is wrong."""
    ids, u, error, topic = [], [], [], []
    for line in (folder / f"mmbench-llava-{size}-options.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        values = np.array(list(row["options"].values()))
        shares = np.exp(values - values.max())
        u.append(float(1 - shares.max() / shares.sum()))
        error.append(int(list(row["options"])[int(values.argmax())] != row["reference"]))
        topic.append(row["group"])
        ids.append(row["id"])
    name = f"MMBench, LLaVA {size.rpartition('-')[2].upper()}"
    return Data(name, np.array(ids), np.array(u), np.array(error), np.array(topic))


def mmlu_pro(folder: Path, model: str) -> Data:
    """1 - logit confidence; questions without one are left out."""
    ids, u, error, topic = [], [], [], []
    with (folder / "mmlu-pro-confidence.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row[f"{model}/logit_confidence"] and row[f"{model}/error"]:
                u.append(1 - float(row[f"{model}/logit_confidence"]))
                error.append(int(float(row[f"{model}/error"])))
                topic.append(row["group"])
                ids.append(row["id"])
    name = f"MMLU-Pro, {model.removesuffix('-2024-07-18')}"
    return Data(name, np.array(ids), np.array(u), np.array(error), np.array(topic))


def stream_of(change: Change, seed: int) -> Stream:
    """Return questions in random order; no question is both in the calibration part and in the stream."""
    rng, data = np.random.default_rng(seed), change.data
    new = np.isin(data.topic, sorted(change.after))
    order = rng.permutation(np.flatnonzero(~new))
    calibration, quiet, rest = np.split(order, [CALIBRATION, CALIBRATION + QUIET])
    source = change.swap or data
    if change.swap is not None:
        used = data.ids[order[: CALIBRATION + QUIET]]
        rest = rng.permutation(np.flatnonzero(~np.isin(change.swap.ids, used)))
    elif change.after:
        rest = rng.permutation(np.flatnonzero(new))
    rest = rest[:LONGEST]
    return Stream(
        (data.u[calibration], data.error[calibration]),
        np.concatenate([data.u[quiet], source.u[rest]]),
        np.concatenate([data.error[quiet], source.error[rest]]),
    )


def artifact_of(u: NDArray[np.float64]) -> CalibrationArtifact:
    """Return an artifact that holds these scores; the drift monitor reads nothing else in it."""
    scores = CalibrationScores(uncertainty=tuple(u.tolist()), error=(0,) * u.size)
    return HARNESS.model_copy(update={"calibration": scores})


def drift(change: Change, seed: int) -> tuple[Run, list[float]]:
    """Run one stream through a drift monitor; also return its log-wealth over the questions."""
    stream = stream_of(change, seed)
    test = Drift(artifact_of(stream.known[0]), delta=DELTA, seed=seed)
    state, bets = test.take(test.start, *stream.u.tolist())
    wealth = [bet.log_wealth for bet in bets]
    if state.alarm is None:
        return Run(False, None, len(wealth)), wealth
    at = state.alarm.at
    return Run(at <= QUIET, None if at <= QUIET else at - QUIET, at), wealth[:at]


def risk(change: Change, seed: int, rate: float) -> tuple[Run, list[float], tuple[int, int, int]]:
    """Run one stream through a gate and a risk monitor; also count questions, answers and errors after the change."""
    stream, rng = stream_of(change, seed), np.random.default_rng([seed, 1])
    gate = fit(*stream.known, alpha=change.alpha, rule="acrc")
    n_asked = stream.u.size - QUIET
    if not isinstance(gate, Feasible):
        return Run(False, None, 0), [], (n_asked, 0, 0)
    state = RiskState.start(HARNESS.digest, change.alpha, DELTA, rate)
    accepted = accepts(stream.u, gate.threshold)
    counts = (n_asked, int(accepted[QUIET:].sum()), int(stream.error[QUIET:][accepted[QUIET:]].sum()))
    wealth = []
    for at, (is_accepted, error) in enumerate(zip(accepted.tolist(), stream.error.tolist(), strict=True), start=1):
        if is_accepted and rng.random() < rate:
            state, _ = state.take(bool(error))
        wealth.append(state.log_wealth)
        if state.alarm is not None:
            early = at <= QUIET
            return Run(early, None if early else at - QUIET, state.n), wealth, counts
    return Run(False, None, state.n), wealth, counts


def delay_cells(runs: Sequence[Run], change: Change) -> str:
    """Return the cells: alarms before the change, alarms after it, and the median delay.

    A stream without an alarm counts as a very long delay, so that the median is not of the fast alarms alone.
    """
    n = len(runs)
    early = sum(run.early for run in runs)
    delays = sorted(LONGEST * 10 if run.delay is None else run.delay for run in runs if not run.early)
    n_found = sum(run.delay is not None for run in runs)
    middle = delays[len(delays) // 2] if delays else LONGEST * 10
    shown = f"{middle}" if middle <= LONGEST else "-"
    return f"{early} of {n} | {n_found} of {n} | {shown if change.any else '-'}"


def changes(folder: Path) -> list[Change]:
    """Return the changes of every data set, "none" included. Topics were grouped by name, not by their scores."""
    listed = []
    small = mmlu_pro(folder, "gpt-4o-mini-2024-07-18")
    for data, swap, alpha, topics, single in (
        (mmbench(folder, "v1.6-34b"), mmbench(folder, "v1.5-7b"), 0.1, REASONING, "spatial_relationship"),
        (mmlu_pro(folder, "gpt-4.1"), small, 0.15, STEM, "law"),
    ):
        several = "reasoning, after perception" if topics is REASONING else "science, after the rest"
        listed.append(Change(data, "none", alpha))
        listed.append(Change(data, several, alpha, frozenset(topics)))
        listed.append(Change(data, f"only {single.replace('_', ' ')}", alpha, frozenset({single})))
        listed.append(Change(data, f"answers of {swap.name.rpartition(', ')[2]}", alpha, swap=swap))
    return listed


def false_alarms(steps: int, count: int, seed: int) -> list[tuple[str, float, float]]:
    """Return the share of simulated unchanged streams that ever alarm, after a tenth of the steps and after all."""
    rng = np.random.default_rng(seed)
    shares = []
    for name in ("risk, error rate exactly alpha = 0.1, all audited", "risk, one in ten audited", "drift"):
        bets = np.array(SLOPES if name == "drift" else STAKES)
        capital = np.full((count, bets.size), 1 / bets.size)
        alarmed = np.zeros(count, dtype=bool)
        early = 0.0
        for step in range(steps):
            if name == "drift":
                gains = 1 + bets * (rng.random(count)[:, None] - 0.5)
            else:
                share = 0.1 if "ten" in name else 1.0
                error = (rng.random(count) < 0.1).astype(float)
                audited = rng.random(count) < share
                gains = 1 + bets * (share / 0.1) * np.where(audited, (error - 0.1) / share, 0.0)[:, None]
                gains[~audited] = 1.0
            capital[:] = jump(capital, gains)
            alarmed |= capital.sum(axis=1) >= 1 / DELTA
            if step + 1 == steps // 10:
                early = float(alarmed.mean())
        shares.append((name, early, float(alarmed.mean())))
    return shares


def draw(paths: dict[str, list[list[float]]], titles: dict[str, str], path: Path) -> None:
    """Draw the log-wealth over the questions, every stream a thin line, with the change and the alarm line."""
    figure = Figure(figsize=(10.4, 4.0), layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2, sharey=True)
    line = np.log(1 / DELTA)
    for axes, (kind, curves) in zip(panels, paths.items(), strict=True):
        for curve in curves:
            axes.plot(np.arange(1, len(curve) + 1), curve, color="#0072B2", linewidth=0.8, alpha=0.45)
            axes.plot(len(curve), curve[-1], "o", color="#D55E00", markersize=4, zorder=3)
        axes.axhline(line, color="#1c2127", linewidth=1.2, linestyle="--")
        axes.axvline(QUIET, color="#7a828c", linewidth=1.0)
        axes.annotate(f"{SWAPPED} answers", (QUIET, 4.1), xytext=(6, 0), textcoords="offset points", fontsize=9)
        axes.annotate(f"alarm at ln(1/{DELTA:g})", (4, line), xytext=(0, 5), textcoords="offset points", fontsize=9)
        axes.set(title=titles[kind], xlabel="questions watched", xlim=(0, QUIET + 700), ylim=(-2.8, 4.6))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e9ed", linewidth=0.6)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("ln(wealth)")
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})


def speed(seconds: float) -> None:
    """Print the cost of an update: in memory, in the inbox of a PostgreSQL, in folding, and for a guard."""
    from tests import postgres

    scores = np.random.default_rng(0).normal(size=101_000).tolist()
    artifact = artifact_of(np.array(scores[:1_000]))
    test, start = Drift(artifact), time.perf_counter()
    state, _ = test.take(test.start, *scores[1_000:21_000])
    print(f"updates in memory: {state.n / (time.perf_counter() - start):,.0f}/s")
    with postgres.server() as url, ReviewStore(url) as store:
        shared = Monitors(store).drift("drift", artifact)
        with ThreadPoolExecutor(THREADS) as threads:
            start = time.perf_counter()
            list(threads.map(shared.update, scores[:2_000]))
            print(f"updates in the database, {THREADS} threads: {2_000 / (time.perf_counter() - start):,.0f}/s")
        rounds = [[_guarded(store, observed, seconds) for observed in (False, True)] for _ in range(ROUNDS)]
        plain, watched = np.median(rounds, axis=0)
        ratio = np.median([round_rates[1] / round_rates[0] for round_rates in rounds])
        print(
            f"guard with {THREADS} threads, a call takes {LATENCY * 1000:g} ms, median of {ROUNDS} rounds in turns: "
            f"{plain:,.0f} questions/s unwatched, {watched:,.0f} watched ({ratio:.0%})"
        )


class SlowChat(ScriptedChat):
    """A model that answers after `LATENCY`."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(LATENCY)
        return super()._generate(*args, **kwargs)


def _guarded(store: ReviewStore, observed: bool, seconds: float) -> float:
    """Return the questions a second of a guard that many threads ask."""
    model = SlowChat(default=["Paris"])
    artifact = make_artifact(model)
    drift = Monitors(store).drift("guard", artifact)
    guard = Guardrail(model=model, artifact=artifact, on_verdict=[drift.watch] if observed else [])
    done, end = [0] * THREADS, time.perf_counter() + seconds

    def ask(number: int) -> None:
        while time.perf_counter() < end:
            if not guard.assess(f"question {number} {done[number]}").accepted:
                raise RuntimeError("the guard holds answers back")
            done[number] += 1

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(ask, range(THREADS)))
    return sum(done) / seconds


def main() -> None:
    """Print the tables and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder with the recorded scores")
    parser.add_argument("--speed", type=float, nargs="?", const=10.0, metavar="SECONDS", help="measure their cost")
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--png", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.speed is not None:
        speed(arguments.speed)
        return
    if arguments.folder is None:
        parser.error("give the folder with the recorded scores, or --speed")
    paths: dict[str, list[list[float]]] = {"drift": [], "risk": []}
    titles = {}
    print("| data | change | monitor | answered, wrong after it | alarm before | alarm after | median delay |")
    print("|---|---|---|---|---|---|---|")
    for change in changes(arguments.folder):
        start = f"| {change.data.name} | {change.name} |"
        watched = [drift(change, seed) for seed in range(arguments.splits)]
        print(f"{start} drift | | {delay_cells([run for run, _ in watched], change)} |", flush=True)
        for rate in AUDITS:
            checked = [risk(change, seed, rate) for seed in range(arguments.splits)]
            n_asked, n_accepted, wrong = np.sum([counts for _, _, counts in checked], axis=0)
            answered, error = 100 * n_accepted / n_asked, 100 * wrong / max(1, n_accepted)
            after = f"{answered:.0f} %, {error:.1f} % (alpha {100 * change.alpha:g} %)"
            cells = delay_cells([run for run, _, _ in checked], change)
            print(f"{start} risk, audits {100 * rate:g} % | {after} | {cells} |", flush=True)
            if rate == AUDITS[0] and change.swap is not None:
                paths["risk"] = [wealth for _, wealth, _ in checked[:20]]
                titles["risk"] = f"Risk, all answers audited: {change.data.name}"
        if change.swap is not None:
            paths["drift"] = [wealth for _, wealth in watched[:20]]
            titles["drift"] = f"Drift, no labels: {change.data.name}"
    print("\n| unchanged stream (simulated) | ever alarmed after 1,000 | ever alarmed after 10,000 |")
    print("|---|---|---|")
    for name, early, late in false_alarms(10_000, 3_000, seed=1):
        print(f"| {name} | {100 * early:.1f} % | {100 * late:.1f} % |", flush=True)
    if arguments.png is not None:
        draw(paths, titles, arguments.png)


if __name__ == "__main__":
    main()
