"""The ledger: which fits the same labels have carried, and the confidence of all of them together."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.cli.frame.app import app
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.dataframe import Records
from calibrate.ledger import Ledger, Line, counted, ledger_of
from calibrate.pipeline import fit_artifact
from guardrail.artifact import ALL_OTHERS, CalibrationArtifact, Spent
from guardrail.describe import confidence, promises
from guardrail.errors import UsageError
from guardrail.specs import CorrectnessSpec
from guardrail.types import Sample, SampleSet, Uncertainty
from tests.calibrate.commands import run

from .test_scope import KEY, scored

ALPHA, N = 0.1, 200
OTHERS = ("imported:v", "imported:w")


def line(procedure: str = "a", *, delta: float = 0.1, group: str = "") -> Line:
    """A fit on ten labels, the last of them wrong."""
    return Line(created="", procedure=procedure, labels="0" * 9 + "1", undecided=0, delta=delta, group=group)


def test_each_fit_spends_its_delta_and_equal_fits_are_one() -> None:
    """Somebody who fits three scores and uses the best reads the confidence of all three: .1 + .1 + .05 = .25."""
    ledger = Ledger()
    entered = [
        (line("a"), 1, 0.1),
        (line("a"), 1, 0.1),
        (line("b"), 2, 0.2),
        (line("c", delta=0.05), 3, 0.25),
        (line("acrc", delta=0.0), 4, 0.25),  # promises nothing by itself
    ]
    for new, number, together in entered:
        spent = ledger.enter([new])
        assert spent.fits == number
        assert spent.delta == pytest.approx(together)


def test_fits_of_disjoint_groups_do_not_add() -> None:
    """Two groups at .05 each, then one of them again by another score: no label carries more than .05 + .05 + .1."""
    ledger = Ledger()
    assert ledger.enter([line("0", delta=0.05, group="a"), line("1", delta=0.05, group="b")]).delta == 0.05
    assert ledger.enter([line("2", delta=0.05, group="a")]) == Spent(fits=2, delta=0.1)
    assert ledger.enter([line("3", delta=0.1)]) == Spent(fits=3, delta=0.2)


def test_a_group_that_leaves_all_others_has_carried_their_fit_too() -> None:
    """Whoever lowers ``min_labels`` until a group has a certificate has two on its labels: .1 of all others, and .1."""
    ledger = Ledger()
    others = line("0", group=ALL_OTHERS).model_copy(update={"besides": ("a",)})
    assert ledger.enter([line("1", group="a"), others]) == Spent(fits=1, delta=0.1)
    assert ledger.enter([line("1", group="a"), line("2", group="b")]) == Spent(fits=2, delta=0.2)


def test_nothing_is_refused_until_no_confidence_is_left() -> None:
    ledger = Ledger()
    for number in range(9):
        ledger.enter([line(str(number))])
    with pytest.raises(UsageError, match="10 fits on these labels spend delta 1 together"):
        ledger.enter([line("9")])
    assert len(ledger.lines) == 9  # a fit that is refused is not one


def file_of(n: int = N, seed: int = 1) -> RecordFile:
    """Records with three scores, of which every fifth answer is wrong and has a high score."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < 0.2
    spec = CorrectnessSpec(name="given", version=1, params={})
    file = scored((rng.random(n) + wrong).tolist(), [not each for each in wrong], correctness=spec)
    specs = dict(file.header.estimators)
    records = list(file.records)
    for key in OTHERS:
        specs[key] = specs[KEY].model_copy(update={"name": key})
        records = [
            record.model_copy(
                update={
                    "scores": {
                        **record.scores,
                        key: Uncertainty(value=float(rng.random() + (not record.correct)), unit="nats", estimator=key),
                    }
                }
            )
            for record in records
        ]
    return RecordFile(file.path, file.header.model_copy(update={"estimators": specs}), tuple(records))


def fitted(file: RecordFile, ledger: Ledger, key: str = KEY, **settings: Any) -> CalibrationArtifact:
    """Fit and count."""
    asked: dict[str, Any] = {"alpha": ALPHA, "rule": "certified"} | settings
    return counted(fit_artifact(file, score=key, **asked), ledger)


def fits(artifact: CalibrationArtifact) -> int:
    """Fits that its labels have carried."""
    assert artifact.spent is not None
    return artifact.spent.fits


def test_what_is_the_same_fit_and_what_is_another_one() -> None:
    file, ledger = file_of(), Ledger()
    assert [fits(fitted(file, ledger)) for _ in range(2)] == [1, 1]
    others: list[dict[str, Any]] = [
        {"alpha": 0.2},
        {"delta": 0.05},
        {"rule": "certified:share=0.5"},
        {"part": file.records[:150]},
        {"key": OTHERS[0]},
    ]
    for number, settings in enumerate(others, start=2):
        assert fits(fitted(file, ledger, **settings)) == number, settings
    third = fitted(file, ledger)
    assert confidence(third) == pytest.approx(1 - 0.55)  # five at .1 and one at .05
    assert "with 45 % confidence" in promises(third)[0]


def test_names_and_groups_of_the_same_scores_and_labels_are_the_same_fit() -> None:
    """Equal numbers are one fit: to map the column of the ids, or of groups, gives no second chance."""
    file, ledger = file_of(), Ledger()
    fitted(file, ledger)
    renamed = [
        record.model_copy(update={"id": f"n{i}", "question": f"Q{i}?", "group": f"g{i % 3}"})
        for i, record in enumerate(file.records)
    ]
    assert fits(fitted(RecordFile(file.path, file.header, tuple(renamed)), ledger)) == 1


def undecided_file(decided: int, *, wrong: Sequence[int] = ()) -> RecordFile:
    """Records of which thirty were undecided, ten times three of the most certain; the first of them are decided."""
    file = file_of()
    ranked = sorted(range(N), key=lambda i: file.records[i].scores[KEY].value or 0.0)[:30]
    records = list(file.records)
    answer = SampleSet(question="q", primary=Sample(text="an answer"))
    for number, place in enumerate(ranked):
        is_right = None if number >= decided else number not in wrong
        detail = "names nothing" if is_right is None else ""
        update = {"correct": is_right, "label_detail": detail, "drawn": answer}
        records[place] = records[place].model_copy(update=update)
    params = {"undecided": "by people"} if decided else {}
    spec = CorrectnessSpec(name="stated", version=1, params=params)
    header = file.header.model_copy(update={"correctness": spec})
    return RecordFile(file.path, header, tuple(records))


def test_deciding_undecided_answers_is_the_same_fit() -> None:
    """Labels only fall where undecided answers counted as wrong, so the walk only grows and fails no more often."""
    ledger, thresholds = Ledger(), []
    for decided in (0, 10, 30):
        artifact = fitted(undecided_file(decided), ledger)
        assert (artifact.data.n_undecided, fits(artifact)) == (30 - decided, 1)
        thresholds.append(-1.0 if artifact.threshold is None else artifact.threshold)
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] > thresholds[0]
    # Negative controls: a label that rises, and more answers that become right than were undecided.
    assert fits(fitted(undecided_file(30, wrong=[3]), ledger)) == 2
    ledger = Ledger()
    fitted(undecided_file(20), ledger)
    more = undecided_file(30)
    records = [record.model_copy(update={"correct": True}) for record in more.records]
    assert fits(fitted(RecordFile(more.path, more.header, tuple(records)), ledger)) == 2


def test_the_ledger_lies_beside_the_records_and_follows_a_copy(tmp_path: Path) -> None:
    file, path, copy = file_of(), tmp_path / "records.jsonl", tmp_path / "copy.jsonl"
    write_records(path, file.header, file.records)
    for number, key in enumerate((KEY, *OTHERS), start=1):
        assert fits(Records.read(path).fit(alpha=ALPHA, rule="certified", score=key)) == number
    assert len((tmp_path / "records.ledger.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    Records.read(path).write(copy)
    assert fits(Records.read(copy).fit(alpha=0.2, rule="certified", score=KEY)) == 4
    assert fits(Records(file).fit(alpha=ALPHA, rule="certified", score=KEY)) == 1  # without a file: in memory


@pytest.mark.parametrize(
    ("old", "new"), [(b'"format":1', b'"format":2'), (b'"undecided":', b'"x":'), (b"{", b"["), (b'"delta"', b"delta")]
)
def test_a_damaged_ledger_is_an_error(tmp_path: Path, old: bytes, new: bytes) -> None:
    """A ledger that cannot be read would count too few fits, and state too much confidence."""
    records = tmp_path / "records.jsonl"
    Ledger([records]).enter([line()])
    path = ledger_of(records)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(UsageError, match=r"records\.ledger\.jsonl, line 1"):
        Ledger([records]).enter([line("b")])


def test_a_ledger_of_a_later_version_is_not_called_damaged(tmp_path: Path) -> None:
    """Restoring a backup would not help: its fields are those of another release, which an upgrade reads."""
    records = tmp_path / "records.jsonl"
    Ledger([records]).enter([line()])
    path = ledger_of(records)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2,"field_of_version_2":7'))
    with pytest.raises(UsageError, match=r"line 1 has format version '2'.*Upgrade acrc-guardrail"):
        Ledger([records]).enter([line("b")])


@pytest.mark.parametrize("lock", [False, True])
def test_a_folder_that_cannot_be_written_is_said(
    lock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Records of others may be fitted; the folder refuses the lock, too."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("calibrate.ledger.atomic_write", refuse)
    if lock:
        monkeypatch.setattr("calibrate.ledger.exclusive", refuse)
    ledger = Ledger([tmp_path / "records.jsonl"])
    assert ledger.enter([line()]).fits == 1
    assert "records.ledger.jsonl cannot be written, so later fits will not count this one." in caplog.text


def test_a_fit_that_is_killed_before_its_artifact_is_written_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = file_of(), tmp_path / "records.jsonl"
    write_records(path, file.header, file.records)
    fit = ("fit", path, "-a", "0.2", "--rule", "certified", "-s")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CalibrationArtifact, "save", killed)
        CliRunner().invoke(app, [str(word) for word in (*fit, KEY, "-o", tmp_path / "a.json")])
    assert not (tmp_path / "a.json").exists()
    several = "2 fits have used these labels; whichever of them you use, its promise holds with 80 % confidence."
    assert several in run(*fit, OTHERS[0], "-o", tmp_path / "b.json")
    assert several in run(*fit, KEY, "-o", tmp_path / "a.json")  # the killed one again is the same fit


def test_scores_written_to_another_file_do_not_begin_to_count_anew(tmp_path: Path) -> None:
    """Who tries each score in a file of its own would read the confidence of one fit; of three it is 70 %."""
    for name, seed in (("a.jsonl", 1), ("b.jsonl", 2)):
        file = file_of(seed=seed)
        own = [{"id": f"{name} {record.id}", "question": f"{name} {record.question}"} for record in file.records]
        records = [record.model_copy(update=new) for record, new in zip(file.records, own, strict=True)]
        write_records(tmp_path / name, file.header, records)
    a, b, other, both = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "other.jsonl", "both.jsonl"))
    fit = ("-a", "0.2", "-o", tmp_path / "artifact.json", "-s")
    for path, key in ((a, KEY), (a, OTHERS[0]), (b, KEY)):
        run("fit", path, *fit, key)
    run("score", a, "-s", "primary_disagreement", "-o", other)
    assert "3 fits have used these labels" in run("fit", other, *fit, OTHERS[1])
    run("score", a, b, "-s", "primary_disagreement", "-o", both)
    assert "3 fits have used these labels" in run("fit", both, *fit, OTHERS[1])  # two on those of a, and this one


@pytest.mark.parametrize(
    "flags",
    [
        ("--rule", "acrc:k_min=7"),
        ("-s", "auto", "--rule", "acrc"),
        ("--rule", "certified:share=0.4,delta=0.2"),
        ("--rule", "certified:delta=0.0123456789"),
    ],
)
def test_the_command_that_the_report_shows_makes_the_same_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = file_of()
    write_records("records.jsonl", file.header, file.records)
    run("fit", "records.jsonl", "-a", "0.2", *(() if "-s" in flags else ("-s", KEY)), *flags, "--out", "a.json")
    before = CalibrationArtifact.load("a.json")
    run(*("report", "records.jsonl", "--artifact", "a.json", "--out", "page.html", "--splits", "0"))
    commands = re.findall("calibrate (fit records.*)", html.unescape(Path("page.html").read_text(encoding="utf-8")))
    run(*shlex.split(commands[0]))
    after = CalibrationArtifact.load("a.json")
    assert after == before.model_copy(update={"made": after.made})


def test_no_command_is_shown_that_would_make_another_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = file_of()
    write_records("records.jsonl", file.header, file.records)
    run("fit", "records.jsonl", "-a", "0.2", "-s", KEY, "--test-fraction", "0.3", "--out", "a.json")
    run("report", "records.jsonl", "--artifact", "a.json", "--out", "page.html", "--splits", "0")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "calibrate report records.jsonl" in page
    assert "calibrate fit records.jsonl --score imported:u --alpha 0.2" not in page


def test_a_question_that_is_kept_out_several_times_is_tested_once(tmp_path: Path) -> None:
    file = file_of(60)
    several = [record.model_copy(update={"id": f"{record.id}.{time}"}) for record in file.records for time in range(3)]
    path = tmp_path / "records.jsonl"
    write_records(path, file.header, several)
    for flags, n in (((), 18), (("--count-repeats",), 54)):
        out = tmp_path / f"{n}.json"
        command = ["fit", path, "-a", "0.2", "-s", KEY, "--test-fraction", "0.3", *flags, "-o", out]
        shown = CliRunner().invoke(app, [str(each) for each in command], env={"COLUMNS": "240"}).output
        assert f"On {n} questions kept out of the fit" in " ".join(shown.replace("\u2502", " ").split())
        assert len(read_records(tmp_path / f"{n}.test.jsonl").records) == n
