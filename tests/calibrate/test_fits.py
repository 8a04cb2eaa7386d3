"""Fits on the same labels: what counts as one, what each spends, where they are remembered, and what is said."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Sequence
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.cli.frame.next_commands import fit_flags
from calibrate.cli.frame.verdicts import print_fits
from calibrate.data.records import Record, RecordFile, exclusive, read_records, write_records
from calibrate.dataframe import Records
from calibrate.fits import Fit, Fits, FitSettings, beside, counted, selection_warning
from calibrate.pipeline import fit_artifact
from calibrate.spec_syntax import parse_rule
from calibrate.thresholds.anchored import Certified
from calibrate.thresholds.fit import request_for
from guardrail.artifact import CalibrationArtifact, Reach, Selection
from guardrail.errors import UsageError
from guardrail.specs import CorrectnessSpec
from guardrail.types import Sample, SampleSet, Uncertainty

from .scoring.test_reach import KEY, scored

ALPHA, N = 0.1, 200
OTHERS = ("imported:v", "imported:w")
FORMATS = Path(__file__).parents[1] / "golden" / "formats"
SECOND = 6 / (2 * pi) ** 2
"""Share of delta that the second fit spends."""


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
    return RecordFile(file.path, file.header.model_copy(update={"estimators": specs}), tuple(records), False)


def fitted(
    file: RecordFile,
    fits: Fits,
    key: str = KEY,
    *,
    alpha: float = ALPHA,
    rule: str = "certified",
    delta: float | None = None,
    declare: tuple[str, ...] = (),
    part: Sequence[Record] | None = None,
    strict: bool = False,
    **options: float,
) -> CalibrationArtifact:
    """Fit and count."""

    def make(selection: Selection | None) -> CalibrationArtifact:
        return fit_artifact(
            file,
            estimator=key,
            alpha=alpha,
            rule=rule,
            delta=delta,
            part=part,
            options=options,
            selection=selection,
        )

    return counted(make, fits, FitSettings(key, delta, options, declare), strict=strict)


def counts(artifact: CalibrationArtifact) -> tuple[Any, ...]:
    """Return the number of fits, delta of the certificate, and its confidence."""
    assert artifact.selection is not None
    return artifact.selection.fits, artifact.certificate.delta, artifact.confidence(artifact.certificate.delta or 0.0)


def test_the_first_fit_spends_delta_and_later_ones_less() -> None:
    file, fits = file_of(), Fits()
    first, second, third = (fitted(file, fits, key) for key in (KEY, *OTHERS))
    assert counts(first) == (1, 0.1, 0.9)
    assert counts(second) == (2, pytest.approx(0.1 * SECOND), pytest.approx(0.9 - 0.1 * SECOND))
    spent = 0.1 * (1 + SECOND + 6 / (3 * pi) ** 2)
    assert counts(third) == (3, pytest.approx(0.6 / (3 * pi) ** 2), pytest.approx(1 - spent))
    assert third.outcome.guarantee.endswith("whichever is used, the promise holds with 87.8 % confidence.")
    assert "with 87.8 % confidence" in third.promises[0]
    assert selection_warning(first) is None
    warning = selection_warning(third) or ""
    assert warning.startswith("These labels have carried 3 fits: whichever you use, the certificate holds with 87.8 %")
    assert warning.count(". ") == 2  # three sentences, and one number
    # The part that this fit spends is rounded, and said to be its own.
    assert third.outcome.guarantee.startswith("With probability at least 99.3 % over calibrations")
    assert "That is for this fit alone. One of 3 fits" in third.outcome.guarantee
    # The first one again: by now the choice is among three.
    again = fitted(file, fits)
    assert counts(again) == (3, 0.1, pytest.approx(1 - spent))
    assert again.outcome.threshold == first.outcome.threshold


def test_no_number_of_fits_spends_more_than_four_tenths_of_delta_above_it() -> None:
    assert 1 + sum(6 / (pi * number) ** 2 for number in range(2, 100_000)) < 1.4


def test_what_is_the_same_fit_and_what_is_another_one() -> None:
    file, fits = file_of(), Fits()
    fitted(file, fits)
    same = [{"alpha": 0.2}, {"rule": "acrc"}, {"rule": "acrc", "alpha": 0.3}, {"delta": 0.1}]
    for settings in same:
        assert counts(fitted(file, fits, **settings))[0] == 1, settings  # type: ignore[arg-type]
    others = [
        {"rule": "fixed_sequence"},
        {"delta": 0.05},
        {"min_accept": 40},
        {"expect": 0.5},
        {"part": file.records[:150]},
    ]
    for number, settings in enumerate(others, start=2):
        assert counts(fitted(file, fits, **settings))[0] == number, settings  # type: ignore[arg-type]
    relabelled = list(file.records)
    relabelled[0] = relabelled[0].model_copy(update={"correct": not relabelled[0].correct})
    assert counts(fitted(RecordFile(file.path, file.header, tuple(relabelled), False), fits))[0] == 7
    assert counts(fitted(file, Fits(), part=file.records[:100]))[0] == 1


def test_a_fit_without_a_threshold_counts_and_other_questions_do_not() -> None:
    file, fits = file_of(), Fits()
    failed = fitted(file, fits, alpha=0.001, part=file.records[:100])
    assert failed.threshold is None
    assert counts(fitted(file, fits, part=file.records[100:]))[0] == 1
    assert counts(fitted(file, fits))[0] == 3


def test_declared_scores_share_delta_and_may_all_be_fitted() -> None:
    file, fits = file_of(), Fits()
    names = (KEY, *OTHERS)
    artifacts = [fitted(file, fits, KEY, declare=names), *(fitted(file, fits, key) for key in OTHERS)]
    for artifact in artifacts:
        assert counts(artifact) == (1, pytest.approx(0.1 / 3), pytest.approx(0.9))
        assert "declared before the first fit" in artifact.outcome.guarantee
        assert selection_warning(artifact) is None
    # Something else is a second fit.
    assert counts(fitted(file, fits, rule="fixed_sequence")) == (
        2,
        pytest.approx(0.1 * SECOND),
        pytest.approx(0.9 - 0.1 * SECOND),
    )
    with pytest.raises(UsageError, match="Scores are declared before the first fit"):
        fitted(file, fits, declare=(KEY, OTHERS[0]))
    with pytest.raises(UsageError, match="is not among the declared scores"):
        fitted(file, Fits(), declare=OTHERS)


def test_a_declaration_pays_for_one_fit_of_each_score() -> None:
    file, fits = file_of(), Fits()
    names = (KEY, *OTHERS)
    fitted(file, fits, declare=names)
    moved = [
        record.model_copy(update={"scores": {**record.scores, KEY: Uncertainty(value=0.5, unit="nats", estimator=KEY)}})
        for record in file.records
    ]
    rescored = RecordFile(file.path, file.header, tuple(moved), False)
    with pytest.raises(UsageError, match="was fitted on these labels before, with other values"):
        fitted(rescored, fits, declare=names)
    assert counts(fitted(rescored, fits))[0] == 2


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
    return RecordFile(file.path, header, tuple(records), False)


def test_deciding_undecided_answers_is_the_same_fit() -> None:
    fits = Fits()
    thresholds = []
    for decided in (0, 10, 30):
        artifact = fitted(undecided_file(decided), fits)
        assert artifact.data.n_undecided == 30 - decided
        assert counts(artifact) == (1, 0.1, 0.9)
        thresholds.append(-1.0 if artifact.threshold is None else artifact.threshold)
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] > thresholds[0]
    # A label that rises, more answers that become right than were undecided, and another rule are other fits.
    assert counts(fitted(undecided_file(30, wrong=[3]), fits))[0] == 2
    fits = Fits()
    fitted(undecided_file(20), fits)
    more = undecided_file(30)
    records = [record.model_copy(update={"correct": True}) for record in more.records]
    assert counts(fitted(RecordFile(more.path, more.header, tuple(records), False), fits))[0] == 2
    fits = Fits()
    fitted(undecided_file(0), fits, rule="fixed_sequence")
    assert counts(fitted(undecided_file(10), fits, rule="fixed_sequence"))[0] == 2


def test_deciding_undecided_answers_of_a_copied_file_is_the_same_fit(tmp_path: Path) -> None:
    """A copy has no memory beside it: the artifact of the first file, in the folder of the new one, knows its fit."""
    fitted(undecided_file(0), Fits()).save(tmp_path / "first.json")
    assert counts(fitted(undecided_file(30), Fits([], tmp_path))) == (1, 0.1, 0.9)
    assert counts(fitted(undecided_file(30), Fits([], tmp_path), expect=0.3))[0] == 2


def test_strict_refuses_before_anything_is_remembered() -> None:
    file, fits = file_of(), Fits()
    fitted(file, fits, strict=True)
    with pytest.raises(UsageError, match=r"have carried 1 fit \(imported:u by certified on 200\)\. --strict refuses"):
        fitted(file, fits, OTHERS[0], strict=True)
    assert len(fits.read()) == 1
    fitted(file, fits, alpha=0.3, strict=True)  # the same fit


def test_fits_are_remembered_beside_the_records_and_by_artifacts(tmp_path: Path) -> None:
    file = file_of()
    path = tmp_path / "records.jsonl"
    write_records(path, file.header, file.records)
    first = fitted(read_records(path), Fits([beside(path)]))
    assert [fit.score for fit in Fits([beside(path)]).read()] == [KEY]
    assert counts(fitted(read_records(path), Fits([beside(path)]), OTHERS[0]))[0] == 2
    # Without the file, the artifact in the folder counts; of both, each fit once.
    beside(path).unlink()
    first.save(tmp_path / "a.json")
    (tmp_path / "other.json").write_text("{}")
    assert counts(fitted(read_records(path), Fits([beside(path)], tmp_path), OTHERS[0]))[0] == 2
    assert counts(fitted(read_records(path), Fits([beside(path)], tmp_path)))[0] == 2
    # An artifact that nobody counted spent its delta.
    fit_artifact(file, estimator=OTHERS[1], alpha=ALPHA, rule="fixed_sequence", delta=0.05).save(tmp_path / "b.json")
    uncounted = Fit.of(CalibrationArtifact.load(tmp_path / "b.json"))
    assert (uncounted.spent, uncounted.rule) == (0.05, "fixed_sequence")
    assert counts(fitted(file, Fits([], tmp_path)))[2] == pytest.approx(1 - 0.1 - 0.05)


def look_of(
    file: RecordFile, fits: Fits, look: int, *, declare: tuple[str, ...] = (), key: str = KEY
) -> CalibrationArtifact:
    """Fit the first labels of the file at one of three declared looks, and count."""
    n = (50, 100, 200)[look - 1]
    header = file.header.model_copy(update={"n_questions": n})
    first = RecordFile(file.path, header, tuple(file.records[:n]), False)

    def make(selection: Selection | None) -> CalibrationArtifact:
        return fit_artifact(
            first, estimator=key, alpha=ALPHA, rule="certified", look=look, looks=(50, 100, 200), selection=selection
        )

    return counted(make, fits, FitSettings(key, declare=declare))


def reordered(file: RecordFile, seed: int) -> RecordFile:
    """The same records in another order, so that a look reads others of them."""
    places = np.random.default_rng(seed).permutation(len(file.records))
    return RecordFile(file.path, file.header, tuple(file.records[int(place)] for place in places), False)


def test_declared_looks_pay_for_one_fit_at_each_of_them() -> None:
    file, fits = file_of(), Fits()
    for look in (1, 2, 3, 2):
        assert counts(look_of(file, fits, look))[::2] == (1, 0.9)
    confidence = 0.9
    for number in range(2, 5):  # the second look again, at other labels
        confidence -= 0.1 * 6 / (number * pi) ** 2
        again = look_of(reordered(file, number), fits, 2)
        assert counts(again)[::2] == (number, pytest.approx(confidence))
        assert again.certificate.guarantee.endswith(f"with {100 * confidence:.1f} % confidence.")


def test_scores_and_looks_are_declared_together() -> None:
    file, fits, names = file_of(), Fits(), (KEY, OTHERS[0])
    for key in names:
        for look in (1, 2):
            artifact = look_of(file, fits, look, key=key, declare=names if (key, look) == (KEY, 1) else ())
            assert counts(artifact)[::2] == (1, 0.9)
            assert artifact.certificate.delta == pytest.approx(0.1 * (0.075, 0.15)[look - 1] / 2)
    with pytest.raises(UsageError, match="was fitted on these labels before, with other values"):
        look_of(reordered(file, 1), fits, 2, declare=names)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"base"', b"\xff"),
        (b'"questions":"', b'"questions":"!'),
        (b'"questions":"', b'"questions":"AAAA'),
        (b'"spent":0.1', b'"spent":-3'),
        (b'"spent":0.1', b'"spent":NaN'),
        (b"}\n", b"\n"),
    ],
)
def test_a_damaged_memory_is_an_error(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "records.fits.jsonl"
    fitted(file_of(), Fits([path]))
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    with pytest.raises(UsageError, match=r"records.fits.jsonl, line 1 "):
        Fits([path]).read()


def test_a_memory_without_its_last_newline_or_with_odd_names_is_read(tmp_path: Path) -> None:
    path = tmp_path / "records.fits.jsonl"
    fits = Fits([path])
    fitted(file_of(), fits)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    fits.add(fits.read()[0].model_copy(update={"fit": "another", "score": "a\u2028b\x85c"}))
    assert [fit.score for fit in Fits([path]).read()] == [KEY, "a\u2028b\x85c"]


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("read-only")

    fits = Fits([tmp_path / "records.fits.jsonl"])
    artifact = fitted(file_of(), fits)
    print_fits(artifact, fits)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("calibrate.fits.atomic_write", refused)
    fits = Fits([tmp_path / "other.fits.jsonl"])
    assert counts(fitted(file_of(), fits))[0] == 1
    assert fits.unwritten == tmp_path / "other.fits.jsonl"
    print_fits(artifact, fits)
    assert "other.fits.jsonl cannot be written" in capsys.readouterr().out.replace("\n", " ")


def test_records_in_python_count_their_fits(tmp_path: Path) -> None:
    records = Records(file_of())
    records.fit(alpha=ALPHA, estimator=KEY)
    second = records.fit(alpha=ALPHA, estimator=OTHERS[0])
    assert counts(second)[0] == 2
    with pytest.raises(UsageError, match="--strict refuses"):
        records.fit(alpha=ALPHA, estimator=OTHERS[1], strict=True)
    part, _ = records.split(0.3)
    assert counts(part.fit(alpha=ALPHA, estimator=KEY))[0] == 3
    records.write(tmp_path / "records.jsonl")
    assert counts(Records.read(tmp_path / "records.jsonl").fit(alpha=ALPHA, estimator=OTHERS[1]))[0] == 4


def test_records_that_were_written_share_the_memory_of_their_file(tmp_path: Path) -> None:
    """A fit before or after `write`, and one of the file that is written elsewhere, counts wherever the next one is."""
    path, copy = tmp_path / "records.jsonl", tmp_path / "copy.jsonl"
    records = Records(file_of())
    records.write(path)
    records.fit(alpha=ALPHA, estimator=KEY)
    records.write(path)
    assert len(Fits([beside(path)]).read()) == len(beside(path).read_text().splitlines()) == 1
    assert counts(Records.read(path).fit(alpha=ALPHA, estimator=OTHERS[0]))[0] == 2
    assert counts(records.fit(alpha=ALPHA, estimator=OTHERS[1]))[0] == 3
    Records.read(path).write(copy)
    assert counts(Records.read(copy).fit(alpha=ALPHA, estimator=KEY, rule="fixed_sequence"))[0] == 4


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--rule", "acrc:min_accept=7"), "--rule acrc:min_accept=7 --out"),
        (("--rule", "acrc"), "--rule acrc --out"),
        (("-e", "auto", "--rule", "acrc"), "--estimator auto --alpha 0.2 --rule acrc --out"),
        (
            ("-e", "auto", "--share", "0.4", "--rule", "acrc"),
            "--estimator auto --alpha 0.2 --share 0.4 --rule acrc --out",
        ),
        (("--rule", "certified", "--expect", "0.8", "--delta", "0.2"), "--rule certified:expect=0.8 --delta 0.2 --out"),
        (("--rule", "certified", "--delta", "0.0123456789"), "--rule certified --delta 0.0123456789 --out"),
        (
            ("--rule", "certified", "--looks", "100,200", "--look", "2"),
            "--rule certified --delta 0.1 --looks 100,200 --look 2 --out",
        ),
    ],
)
def test_the_command_that_the_report_shows_makes_the_same_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = file_of()
    write_records("records.jsonl", file.header, file.records)
    called(*("fit", "records.jsonl", "-a", "0.2", "-e", OTHERS[0], "--out", "first.json"))
    called(*("fit", "records.jsonl", "-a", "0.2", *(() if "-e" in flags else ("-e", KEY)), *flags, "--out", "a.json"))
    before = CalibrationArtifact.load("a.json")
    assert before.selection is not None
    assert before.selection.fits == 2
    called(*("report", "records.jsonl", "--artifact", "a.json", "--out", "page.html", "--splits", "0"))
    commands = re.findall("calibrate (fit records.*)", html.unescape(Path("page.html").read_text(encoding="utf-8")))
    assert text in commands[0]
    called(*shlex.split(commands[0]))
    after = CalibrationArtifact.load("a.json")
    assert after == before.model_copy(update={"created": after.created})


def test_no_command_is_shown_that_would_make_another_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = file_of()
    write_records("records.jsonl", file.header, file.records)
    called(*("fit", "records.jsonl", "-a", "0.2", "-e", KEY, "--test-fraction", "0.3", "--out", "a.json"))
    called(*("report", "records.jsonl", "--artifact", "a.json", "--out", "page.html", "--splits", "0"))
    page = Path("page.html").read_text(encoding="utf-8")
    assert "calibrate report records.jsonl" in page
    assert "calibrate fit records.jsonl --estimator imported:u --alpha 0.2" not in page


@pytest.mark.parametrize("path", sorted(FORMATS.glob("artifact*.json")), ids=lambda path: path.name)
def test_stored_artifacts_have_commands_that_fit_takes(path: Path) -> None:
    artifact = CalibrationArtifact.load(path)
    words = shlex.split(fit_flags(artifact, "key", looks=True))
    parsed = parse_rule(words[words.index("--rule") + 1]) if "--rule" in words else "certified"
    name, options = (parsed, {}) if isinstance(parsed, str) else parsed
    delta = float(words[words.index("--delta") + 1]) if "--delta" in words else None
    alpha = float(words[words.index("--alpha") + 1])
    rule, request = request_for(name, alpha=alpha, delta=delta, options=options)  # refuses what no rule takes
    assert request.alpha == artifact.alpha
    assert "--rule" not in words or rule.name == artifact.outcome.rule


def called(*words: str) -> None:
    """A command that ends well."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


def test_a_fit_waits_for_another_process_that_counts_on_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrate.data.records._PATIENCE", 0.0)
    memory = beside(tmp_path / "records.jsonl")
    with exclusive(memory), pytest.raises(UsageError, match="is being written by another process"):
        fitted(file_of(), Fits([memory], tmp_path))
    assert not memory.exists()
    assert counts(fitted(file_of(), Fits([memory], tmp_path)))[0] == 1


def test_the_parameters_of_a_rule_of_ones_own_make_another_fit() -> None:
    class Mine(Certified):
        name = "mine"

        def __init__(self, factor: float) -> None:
            self.factor = factor

    records = Records(file_of())
    found = [counts(records.fit(alpha=ALPHA, rule=Mine(factor), estimator=KEY))[0] for factor in (1, 2, 1, 3)]
    assert found == [1, 2, 2, 3]
    assert counts(records.fit(alpha=ALPHA, rule=Certified(), estimator=KEY))[0] == 4
    assert counts(records.fit(alpha=ALPHA, rule="certified", estimator=KEY))[0] == 4


def test_the_command_says_counts_declares_and_refuses(tmp_path: Path) -> None:
    file = file_of()
    path = tmp_path / "records.jsonl"
    write_records(path, file.header, file.records)

    def run(*arguments: object, code: int = 0) -> str:
        command = ["fit", path, "-a", "0.2", "--rule", "certified", *arguments]
        result = CliRunner().invoke(app, [str(each) for each in command], env={"COLUMNS": "240"})
        assert result.exit_code == code, (result.output, result.exception)
        return " ".join(result.output.replace("\u2502", " ").split())

    names = ",".join((KEY, OTHERS[0]))
    shown = run("-e", KEY, "--declare", names, "-o", tmp_path / "a.json")
    assert "One of 2 scores declared before the first fit on these labels" in shown
    shown = run("-e", OTHERS[0], "-o", tmp_path / "b.json")
    assert "have carried" not in shown
    assert "with 90 % confidence" in shown
    shown = run("-e", OTHERS[1], "-o", tmp_path / "c.json")
    assert "These labels have carried 2 fits: whichever you use" in shown
    assert "with 88.5 % confidence" in shown
    shown = run("-e", OTHERS[1], "-o", tmp_path / "d.json", "--delta", "0.05", "--strict", code=2)
    assert "--strict refuses another one" in shown
    assert not (tmp_path / "d.json").exists()
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "c.json")], env={"COLUMNS": "240"}).output
    assert "2; this one spends 15.2 % of delta" in " ".join(shown.split())


def test_a_question_that_is_kept_out_several_times_is_tested_once(tmp_path: Path) -> None:
    file = file_of(60)
    several = [record.model_copy(update={"id": f"{record.id}.{time}"}) for record in file.records for time in range(3)]
    path = tmp_path / "records.jsonl"
    write_records(path, file.header, several)
    for flags, n in (((), 18), (("--count-repeats",), 54)):
        out = tmp_path / f"{n}.json"
        command = ["fit", path, "-a", "0.2", "-e", KEY, "--test-fraction", "0.3", *flags, "-o", out]
        shown = CliRunner().invoke(app, [str(each) for each in command], env={"COLUMNS": "240"}).output
        assert f"On {n} questions kept out of the fit" in " ".join(shown.replace("\u2502", " ").split())
        assert len(read_records(tmp_path / f"{n}.test.jsonl").records) == n


def test_a_refit_with_another_certificate_counts() -> None:
    artifact = fitted(file_of(), Fits(), rule="acrc")
    for same in (artifact.at(alpha=0.2), artifact.at(rule="certified"), artifact.at(rule="empirical")):
        assert counts(same) == (1, 0.1, 0.9)
    second = artifact.at(rule="certified", delta=0.05)
    assert second.selection is not None
    assert second.selection.fits == 2
    assert second.selection.others == pytest.approx(0.1)
    assert second.outcome.delta == 0.05
    assert second.outcome.guarantee.endswith("whichever is used, the promise holds with 85 % confidence.")
    third = second.at(rule="fixed_sequence")
    assert third.selection is not None
    assert third.selection.fits == 3
    assert third.selection.others == pytest.approx(0.15)
    assert "have carried 3 fits" in (selection_warning(third) or "")
    # Neither a fit that nobody counted nor a refit of it is free.
    silent = fit_artifact(file_of(), estimator=KEY, alpha=ALPHA, rule="certified")
    assert silent.at(alpha=0.2).selection is None
    assert counts(silent.at(rule="fixed_sequence", delta=0.05))[0] == 2


def test_a_renamed_file_is_counted_by_the_artifacts_of_the_folder(tmp_path: Path) -> None:
    file = file_of()
    first, second = tmp_path / "records.jsonl", tmp_path / "renamed.jsonl"
    write_records(first, file.header, file.records)
    write_records(second, file.header, file.records)

    def run(path: Path, key: str, out: str) -> int:
        arguments = ["fit", path, "-a", "0.2", "--rule", "certified", "-e", key, "-o", tmp_path / out]
        result = CliRunner().invoke(app, [str(each) for each in arguments])
        assert result.exit_code == 0, result.output
        return counts(CalibrationArtifact.load(tmp_path / out))[0]  # type: ignore[no-any-return]

    assert run(first, KEY, "a.json") == 1
    assert run(second, OTHERS[0], "b.json") == 2
    assert run(second, OTHERS[0], "c.json") == 2
    beside(first).unlink()
    beside(second).unlink()
    assert run(second, OTHERS[1], "d.json") == 3


def test_a_fit_that_is_killed_before_its_artifact_is_written_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = file_of(), tmp_path / "records.jsonl"
    write_records(path, file.header, file.records)

    def run(key: str, out: str) -> Any:
        arguments = ["fit", path, "-a", "0.2", "--rule", "certified", "-e", key, "-o", tmp_path / out]
        return CliRunner().invoke(app, [str(each) for each in arguments])

    with monkeypatch.context() as patched:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(CalibrationArtifact, "save", killed)
        assert run(KEY, "a.json").exit_code != 0
    assert not (tmp_path / "a.json").exists()
    assert [fit.score for fit in Fits([beside(path)]).read()] == [KEY]
    assert run(OTHERS[0], "b.json").exit_code == 0
    assert counts(CalibrationArtifact.load(tmp_path / "b.json"))[0] == 2
    # The killed one again is the same fit: it is not charged a second time.
    assert run(KEY, "a.json").exit_code == 0
    again = CalibrationArtifact.load(tmp_path / "a.json")
    assert (counts(again)[0], again.certificate.delta) == (2, 0.1)


def test_another_reach_on_the_same_questions_is_another_fit() -> None:
    file, fits = file_of(), Fits()

    def reached(cut: float) -> CalibrationArtifact:
        def make(selection: Selection | None) -> CalibrationArtifact:
            artifact = fit_artifact(file, estimator=KEY, alpha=ALPHA, rule="certified", selection=selection)
            reach = Reach(
                estimator=KEY,
                share=0.5,
                cut=cut,
                n_pool=3 * N,
                n_within=N,
                n=N,
                seed=0,
                fixed_beforehand=True,
                drawn_sha256="",
            )
            return artifact.model_copy(update={"reach": reach})

        return counted(make, fits, FitSettings(KEY))

    assert [counts(reached(cut))[0] for cut in (2.0, 2.0, 1.5, 2.5)] == [1, 1, 2, 3]
