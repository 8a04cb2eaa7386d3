"""Audits: exact numbers by hand, false alarms by enumeration, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.cli.audit import _print_drift
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.data.split import split
from calibrate.evaluation.audit import audit, prepared, shift_of
from calibrate.evaluation.promise_test import RateTest, labelled_needed
from calibrate.pipeline import fit_artifact, part_header
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import CALLS
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Scope
from guardrail.specs import CorrectnessSpec

KEY = "semantic_entropy"
HOSTILE = "a\x9b2J\u202eb\x7f\x1b"


def test_verdicts_by_hand() -> None:
    # P(Bin(20, .1) >= 5) = .0432 (tables); .9^29 = .0471 and .9^28 = .0523.
    bad, good, few = (RateTest.of(errors, n, 0.1, 0.05) for errors, n in ((5, 20), (0, 29), (0, 28)))
    assert [bad.p_refute, good.p_support] == pytest.approx([0.0432, 0.9**29], abs=5e-5)
    assert [good.p_refute, few.p_support] == pytest.approx([1.0, 0.9**28])
    assert [(each.verdict, each.needed) for each in (bad, few)] == [("refuted", None), ("undecided", 1)]
    assert good.verdict == "supported"
    assert RateTest.of(0, 0, 0.1, 0.05).verdict == "undecided"


def test_how_many_more_labels() -> None:
    assert labelled_needed(0, 10, 0.1, 0.05) == 19  # 29 error-free ones
    assert labelled_needed(1, 10, 0.1, 0.05) is None  # exactly on the target: never decided
    assert labelled_needed(0, 0, 0.1, 0.05) is None
    more = labelled_needed(10, 200, 0.1, 0.05)  # half the target
    assert more is None or stats.binom.cdf(np.ceil(0.05 * (200 + more)), 200 + more, 0.1) <= 0.05
    above = labelled_needed(3, 20, 0.1, 0.05)  # 15 %: towards refuting
    assert above is not None
    size = 20 + above
    assert stats.binom.sf(np.floor(0.15 * size) - 1, size, 0.1) <= 0.05
    assert stats.binom.sf(np.floor(0.15 * (size - 1)) - 1, size - 1, 0.1) > 0.05


@pytest.mark.parametrize("n", [1, 20, 73, 400])
def test_false_alarms_are_at_most_the_level(n: int) -> None:
    def probability(verdict: str, rate: float) -> float:
        return sum(
            float(stats.binom.pmf(e, n, rate)) for e in range(n + 1) if RateTest.of(e, n, 0.1, 0.05).verdict == verdict
        )

    assert probability("refuted", 0.1) <= 0.05 + 1e-12
    assert probability("supported", 0.1) <= 0.05 + 1e-12
    # Negative control: refuting whenever the observed rate is above the target is no test.
    assert sum(float(stats.binom.pmf(e, n, 0.1)) for e in range(n + 1) if e > 0.1 * n) > 0.05
    if n == 400:  # and it is not idle
        assert probability("refuted", 0.2) > 0.99
        assert probability("supported", 0.05) > 0.9


@pytest.fixture
def parts(labelled: RecordFile) -> tuple[RecordFile, RecordFile]:
    """Calibration records and fresh ones."""
    calibration, rest = split(labelled.records, test_fraction=0.5, seed=3)

    def file(records: Any, name: str) -> RecordFile:
        return RecordFile(Path(name), part_header(labelled.header, records), tuple(records))

    return file(calibration, "old.jsonl"), file(rest, "fresh.jsonl")


def flipped(file: RecordFile) -> RecordFile:
    """Every label wrong."""
    return RecordFile(file.path, file.header, tuple(r.model_copy(update={"correct": False}) for r in file.records))


def test_counts_are_those_of_the_gate(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.15, rule="acrc")
    outcome = artifact.outcome
    assert isinstance(outcome, Feasible)
    accepted = [r for r in fresh.records if (r.scores[KEY].value or 0.0) <= outcome.threshold]
    result = audit(artifact, fresh.records, KEY)
    assert (result.n, result.n_errors) == (len(accepted), sum(not r.correct for r in accepted))
    assert result.held_out.n == len(fresh.records)
    assert result.shift is not None
    assert result.shift.calibration == outcome.acceptance
    assert result.shift.fresh == pytest.approx(len(accepted) / len(fresh.records))
    assert result.shift.ks_p > 0.01
    assert result.verdict != "refuted"
    half = [r if i % 2 else r.model_copy(update={"correct": None}) for i, r in enumerate(fresh.records)]
    partly = audit(artifact, half, KEY)
    assert partly.n + partly.n_unlabelled == result.n
    assert partly.shift == result.shift
    assert any("have no label" in line for line in partly.remarks)
    bad = audit(artifact, flipped(fresh).records, KEY)
    assert (bad.verdict, bad.n_errors) == ("refuted", bad.n)
    assert "certifies nothing" in bad.findings[1]
    # A user of Python reads what the command prints, not the fields of a class.
    assert str(bad).splitlines() == [f"Refuted: {bad.findings[0]}", bad.findings[1], *bad.remarks]
    assert bad.remarks[0].startswith("Accepted: ")


def test_a_joint_promise_is_tested_as_a_share_of_all(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    result = audit(fit_artifact(old, score=KEY, alpha=0.15, rule="crc_joint"), fresh.records, KEY)
    assert (result.population, result.n) == ("all", len(fresh.records))
    assert "labelled questions" in result.findings[0]


def test_an_artifact_that_abstains_cannot_be_refuted(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    result = audit(fit_artifact(old, score=KEY, alpha=0.005, rule="acrc"), flipped(fresh).records, KEY)
    assert (result.verdict, result.n, result.upper) == ("undecided", 0, None)
    assert "nothing can be said" in result.findings[0]
    assert result.shift is not None
    assert result.shift.acceptance_p is None


def test_other_questions_are_noticed(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.15, rule="acrc")
    hard = sorted(fresh.records, key=lambda r: r.scores[KEY].value or 0.0)[40:]
    result = audit(artifact, hard, KEY)
    assert any("look different" in line for line in result.remarks)
    assert not any("look different" in line for line in audit(artifact, fresh.records, KEY).remarks)


def test_calibration_questions_are_left_out_under_any_id(parts: tuple[RecordFile, RecordFile]) -> None:
    """A threshold chosen on a question fits it: an audit that counts it promises too much."""
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.15, rule="acrc")
    renamed = [record.model_copy(update={"id": f"new-{record.id}"}) for record in old.records]
    with pytest.raises(UsageError, match="only questions that the artifact was fitted on"):
        prepared(RecordFile(old.path, old.header, tuple(renamed)), artifact)
    mixed = RecordFile(fresh.path, fresh.header, (*renamed[:70], *fresh.records))
    assert list(prepared(mixed, artifact)[0].records) == list(fresh.records)
    with pytest.raises(UsageError, match="70 of 190 test records are questions"):
        audit(artifact, mixed.records, KEY)


def test_missing_scores_and_labels_are_made_as_the_artifact_says(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.15, rule="acrc")
    bare = RecordFile(
        fresh.path,
        fresh.header.model_copy(update={"estimators": {}, "correctness": None}),
        tuple(r.model_copy(update={"scores": {}, "correct": None}) for r in fresh.records),
    )
    file, key = prepared(bare, artifact)
    assert audit(artifact, file.records, key) == audit(artifact, fresh.records, KEY)
    people = artifact.model_copy(update={"correctness": CorrectnessSpec(name="given", version=1, params={"file": "a"})})
    with pytest.raises(UsageError, match="by 'given', which cannot be made here"):
        prepared(bare, people)
    header = fresh.header.model_copy(
        update={"correctness": CorrectnessSpec(name="given", version=1, params={"file": "b"})}
    )
    prepared(RecordFile(fresh.path, header, fresh.records), people)  # other answers have other labels


def test_misuse(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.15, rule="acrc")
    with pytest.raises(UsageError, match=r"below 0\.5"):
        audit(artifact, fresh.records, KEY, level=0.6)
    bare = [r.model_copy(update={"correct": None}) for r in fresh.records]
    with pytest.raises(UsageError, match="no fresh record has a label"):
        audit(artifact, bare, KEY)


def test_command_and_its_exit_codes(
    parts: tuple[RecordFile, RecordFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    old, fresh = parts
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("old", "fresh", "bad", "other")}
    write_records(paths["old"], old.header, old.records)
    write_records(paths["fresh"], fresh.header, fresh.records)
    write_records(paths["bad"], fresh.header, flipped(fresh).records)
    model = fresh.header.model.model_copy(update={"model": "another"})
    write_records(paths["other"], fresh.header.model_copy(update={"model": model}), fresh.records)
    artifact = tmp_path / "a.json"
    fit_artifact(old, score=KEY, alpha=0.15, rule="acrc").save(artifact)

    def run(name: str, *more: object, code: int = 0) -> str:
        arguments = ["audit", "--records", str(paths[name]), "--artifact", str(artifact), *map(str, more)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    assert "Refuted" not in run("fresh")
    assert "Refuted" in run("bad", code=1)
    report = json.loads(run("bad", "--json", code=1))
    assert (report["verdict"], report["artifact"]) == ("refuted", CalibrationArtifact.load(artifact).digest)
    # A program reads standard output: what is said to people stands beside it.
    both = ["--records", str(paths["old"]), "--records", str(paths["fresh"]), "--artifact", str(artifact), "--json"]
    printed = CliRunner().invoke(app, ["audit", *both])
    assert json.loads(printed.stdout)["verdict"] in ("supported", "undecided")
    assert "are left out: the artifact was fitted on them" in " ".join(printed.stderr.split())
    assert "fitted on" in run("old", code=2)
    shown = run("other", code=2)
    assert "another" in shown
    assert old.header.model.model in shown
    # Exit code 1 is kept for "refuted": files that cannot be read end with 2.
    run("fresh", "--artifact", tmp_path / "missing.json", code=2)
    paths["other"].write_text("no json\n", encoding="utf-8")
    run("other", code=2)
    assert read_records(paths["bad"]).header == fresh.header  # nothing is written


def test_the_cause_of_a_refutation(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.3, rule="acrc")
    labels = audit(artifact, flipped(fresh).records, KEY)
    assert labels.cause == "labels"
    assert "the labels, or harder questions" in labels.findings[1]
    assert "Compare the labels" in labels.remedies()[0]
    hard = sorted(fresh.records, key=lambda r: r.scores[KEY].value or 0.0)[60:]
    moved = audit(artifact, [r.model_copy(update={"correct": False}) for r in hard], KEY)
    assert (moved.verdict, moved.cause) == ("refuted", "questions")
    assert "look different from the calibration questions" in moved.findings[1]
    for result in (labels, moved):
        assert result.contradicts_calibration
        steps = " ".join(result.remedies("calibrate fit old.jsonl new.jsonl"))
        assert "calibrate fit old.jsonl new.jsonl" in steps
        assert "--rule certified" not in steps  # it would not have helped


@pytest.mark.parametrize(
    "command",
    [
        ["audit", "--records", "fresh ones.jsonl", "--artifact", "a.json"],
        ["fit", "--rule", "acrc", "old.jsonl", "--test", "fresh ones.jsonl", "--alpha", "0.15", "--out", "a.json"],
        ["report", "old.jsonl", "--test", "fresh ones.jsonl", "--artifact", "a.json", "--splits", "0"],
    ],
    ids=["audit", "fit", "report"],
)
def test_a_refutation_prints_a_command_on_the_fresh_questions_alone_that_works(
    parts: tuple[RecordFile, RecordFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    # A threshold for old and new questions together broke its promise on the new ones in 66 to 80 % of calibrations.
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.chdir(tmp_path)
    old, fresh = parts[0], flipped(parts[1])
    # Other references, or a fit would find that answers labelled wrong contain theirs.
    others = [record.model_copy(update={"references": ("another plant",)}) for record in fresh.records]
    write_records("old.jsonl", old.header, old.records)
    write_records("fresh ones.jsonl", part_header(fresh.header, others), others)
    fit_artifact(old, score=KEY, alpha=0.15, rule="acrc").save("a.json")
    shown = CliRunner().invoke(app, [*command, *(["--score", KEY] if command[0] == "fit" else [])])
    assert shown.exit_code == 1
    line = next(line for line in reversed(shown.output.splitlines()) if "calibrate fit 'fresh" in line)
    pasted = shlex.split(line[line.index("calibrate fit") :])[1:]
    assert pasted[:3] == ["fit", "fresh ones.jsonl", "--score"]
    assert CliRunner().invoke(app, pasted).exit_code == 0
    assert CalibrationArtifact.load("a-new.json").data.n_used == len(fresh.records)


def test_files_of_different_questions_are_pointed_out_where_they_are_fitted_together(
    labelled: RecordFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    ranked = sorted(labelled.records, key=lambda record: record.scores[KEY].value or 0.0)
    for name, records in {"even": ranked[::2], "odd": ranked[1::2], "sure": ranked[:120], "rest": ranked[120:]}.items():
        write_records(f"{name}.jsonl", part_header(labelled.header, records), records)

    def warned(*names: str, how: tuple[str, ...] = ("--rule", "acrc")) -> bool:
        flags = ["-s", KEY, "--alpha", "0.3"]
        shown = CliRunner().invoke(app, ["fit", *names, *flags, *how, "--out", f"{names[0]}.json"])
        assert shown.exit_code == 0, shown.output
        evaluated = CliRunner().invoke(app, ["evaluate", *names, *flags, "--rule", "acrc", "--splits", "3"])
        assert evaluated.exit_code == 0, evaluated.output
        # An evaluation ends with the command that fits these files together.
        assert ("looks different" in shown.output) == ("looks different" in evaluated.output)
        return "looks different from the other files" in shown.output

    # The scores are alike, and one file has half of the right answers: a fit on both promises nothing for either kind.
    hard = [each.model_copy(update={"correct": each.correct and i % 2 == 0}) for i, each in enumerate(ranked[1::2])]
    write_records("hard.jsonl", part_header(labelled.header, hard), hard)
    assert warned("sure.jsonl", "rest.jsonl")
    assert warned("even.jsonl", "hard.jsonl")
    assert warned("even.jsonl", "hard.jsonl", how=("--by", "group:min_labels=1"))
    assert not warned("even.jsonl", "odd.jsonl")


def test_what_was_made_in_memory_is_written_by_commands_that_work(
    parts: tuple[RecordFile, RecordFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.chdir(tmp_path)
    old, fresh = parts
    write_records("old.jsonl", old.header, old.records)
    wrong = [r.model_copy(update={"correct": None, "scores": {}, "references": ("no",)}) for r in fresh.records]
    write_records("new.jsonl", fresh.header.model_copy(update={"correctness": None, "estimators": {}}), wrong)
    fit_artifact(old, score=KEY, alpha=0.15, rule="acrc").save(tmp_path / "a.json")
    shown = CliRunner().invoke(app, ["audit", "--records", "new.jsonl", "--artifact", "a.json"])
    assert shown.exit_code == 1
    printed = [line.split("calibrate ")[1] for line in shown.output.splitlines() if "calibrate " in line]
    merge, *before = [shlex.split(line) for line in printed if line.split()[0] in ("fit", "score", "label")]
    assert [command[0] for command in before] == ["score", "label"]
    for command in (*before, merge):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (command, result.output)


def test_drift_of_a_file(parts: tuple[RecordFile, RecordFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.chdir(tmp_path)
    old, fresh = parts
    bare = fresh.header.model_copy(update={"correctness": None, "estimators": {}})
    unlabelled = [r.model_copy(update={"correct": None, "scores": {}}) for r in fresh.records]
    hard = sorted(fresh.records, key=lambda r: -(r.scores[KEY].value or 0.0))[:60]
    write_records("old.jsonl", old.header, old.records)
    write_records("fresh.jsonl", bare, unlabelled)
    write_records("hard.jsonl", fresh.header, hard)
    fit_artifact(old, score=KEY, alpha=0.15, rule="acrc").save(tmp_path / "a.json")

    def run(*names: str, code: int, more: tuple[str, ...] = ()) -> str:
        files = [word for name in names for word in ("--records", name)]
        result = CliRunner().invoke(app, ["audit", *files, "--artifact", "a.json", "--unlabelled", *more])
        assert result.exit_code == code, (result.output, result.exception)
        return " ".join(result.output.split())

    assert "120 scores do not refute" in run("fresh.jsonl", code=0)
    for name, part in (("part a.jsonl", unlabelled[:60]), ("part b.jsonl", unlabelled[60:])):
        write_records(name, part_header(bare, part), part)
    following = "calibrate audit --records 'part a.jsonl' --records 'part b.jsonl' --artifact a.json"
    assert following in run("part a.jsonl", "part b.jsonl", code=0)
    shown = run("hard.jsonl", code=1)
    assert "less certainly than at calibration" in shown
    report = json.loads(run("hard.jsonl", more=("--json",), code=1))
    assert (report["alarm"]["monitor"], report["n"], report["left_out"]) == ("drift", 60, 0)
    assert "fitted on" in run("old.jsonl", code=2)
    assert "in (0, 1)" in run("hard.jsonl", more=("--level", "5"), code=2)


def test_drift_of_an_agents_calls_is_about_calls(capsys: pytest.CaptureFixture[str]) -> None:
    _print_drift(None, 7, 0, CALLS)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "7 scores do not refute that these calls are like the calibration calls." in shown


def test_acceptance_within_a_scope_says_so(parts: tuple[RecordFile, RecordFile]) -> None:
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.15, rule="acrc")
    cut = float(np.median([record.scores[KEY].value or 0.0 for record in old.records]))
    covering = artifact.model_copy(update={"outcome": artifact.outcome.model_copy(update={"scope": Scope(cut=cut)})})
    shift = shift_of(covering, np.array([cut, cut + 1, cut + 2, cut - 0.1]), 2)
    assert (shift.within, shift.fresh) == (0.5, 1.0)
    lines = audit(artifact, fresh.records, KEY).model_copy(update={"shift": shift}).remarks
    assert lines[0].startswith("Accepted: 100 % of the questions within the scope (50 % of these), ")


def test_equal_questions_and_clusters_are_one_draw(parts: tuple[RecordFile, RecordFile]) -> None:
    """Ten errors of one question are no ten errors."""
    old, fresh = parts
    artifact = fit_artifact(old, score=KEY, alpha=0.15, rule="acrc")
    several = [record.model_copy(update={"id": f"{record.id}.{time}"}) for record in fresh.records for time in range(5)]
    once = audit(artifact, fresh.records, KEY)
    again = audit(artifact, several, KEY)
    assert (again.n, again.n_errors, again.n_repeated) == (once.n, once.n_errors, 4 * len(fresh.records))
    assert any("4 records are not read" in line.replace(str(again.n_repeated), "4") for line in again.remarks)
    assert audit(artifact, several, KEY, repeats="all").n == 5 * once.n
    own = [record.model_copy(update={"group": f"g{place}"}) for place, record in enumerate(old.records)]
    clustered = fit_artifact(
        RecordFile(old.path, old.header, tuple(own)), score=KEY, alpha=0.15, rule="acrc", groups="cluster"
    )
    pairs = [record.model_copy(update={"group": f"h{place // 2}"}) for place, record in enumerate(fresh.records)]
    assert audit(clustered, pairs, KEY).n_repeated == len(pairs) // 2
