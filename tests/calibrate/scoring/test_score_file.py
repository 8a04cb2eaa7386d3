"""Scoring from file to file: the same scores, memory that does not grow, and what the command line tells."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.scoring import header_of, made_records
from calibrate.cli import app
from calibrate.data.records import read_records, read_spans, write_records
from calibrate.scoring.compute import lacking, score_file, score_records, supported
from calibrate.scoring.names import parse_estimator
from calibrate.spec_syntax import parse_name
from guardrail.errors import RecordError, UsageError
from guardrail.guard.record_lines import RecordLines
from guardrail.judges import Judge, JudgeSpec
from guardrail.judges.registry import JUDGES
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty import unmet_needs
from tests.calibrate.commands import run


def written(path: Path, n: int, samples: int = 10) -> Path:
    write_records(path, header_of(n, samples), made_records(n, samples))
    return path


def test_a_stream_gives_the_scores_of_the_file_in_memory(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 70)  # more than one pass
    before = read_records(path)
    header, summary = score_file(path, tmp_path / "scored.jsonl", supported)
    scored = read_records(tmp_path / "scored.jsonl")
    expected = score_records(before, supported(before.header.plan))
    assert (scored.header, scored.records) == (expected.header, expected.records)
    assert scored.header == header
    assert read_records(path) == before  # the source is as it was
    values, reasons = summary.of("semantic_entropy")
    assert values == sorted(record.scores["semantic_entropy"].value or 0.0 for record in scored.records)
    assert not reasons


def test_records_without_samples_are_kept_in_place(tmp_path: Path) -> None:
    records = [
        record.model_copy(update={"drawn": None}) if i in (0, 2, 3, 5) else record
        for i, record in enumerate(made_records(6, 3))
    ]
    path = tmp_path / "records.jsonl"
    write_records(path, header_of(6, 3), records)
    score_file(path, path, supported)
    scored = read_records(path).records
    assert [record.id for record in scored] == [record.id for record in records]
    assert [bool(record.scores) for record in scored] == [False, True, False, False, True, False]


def test_a_malformed_line_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 3, 3)
    with path.open("a") as stream:
        stream.write('{"id": 7}\n')
    before = path.read_bytes()
    with pytest.raises(RecordError, match=":5: field 'id'"):
        score_file(path, path, supported)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 3, 3)
    path.write_bytes(path.read_bytes()[:-40])
    _, summary = score_file(path, path, supported)
    assert summary.n_records == len(read_records(path).records) == 2
    with pytest.raises(UsageError, match="no record file"):
        score_file(tmp_path / "none.jsonl", path, supported)


def observed(path: Path, *, problem: Unmeasured | None = None) -> Path:
    """A record file of a gateway with three answers."""
    plan = SamplingPlan(n=2)
    model = ModelIdentity(provider="p", model="m")
    lines = RecordLines(path, name="observed: m", model=model, plan=plan, prompt=PromptWrapping())
    for number in range(3):
        answer = Sample(text="yes", finish_reason="stop")
        drawn = SampleSet(question="q", primary=answer, samples=() if problem else (answer, answer), problem=problem)
        lines.append(f"r{number}", f"q{number}?", drawn, {})
    return path


def test_only_torn_lines_of_a_gateway_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = observed(tmp_path / "observed.jsonl")
    header, first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + first[:40] + second + third)  # the second record is lost with the torn first
    _, summary = score_file(path, tmp_path / "scored.jsonl", supported)
    assert summary.n_records == 1
    assert "1 torn lines were left out" in caplog.text
    assert [record.id for record in read_records(tmp_path / "scored.jsonl").records] == ["r2"]
    assert [record.id for record in read_records(path).records] == ["r2"]
    start = len(header)
    spans = [(start, path.stat().st_size)]
    assert [record.id for record in read_spans(path, spans)] == ["r2"]
    for fault in (first.replace(b'"question"', b'"quest"'), b"no record\n"):  # written whole, or not by a gateway
        path.write_bytes(header + fault + third)
        with pytest.raises(RecordError, match=":2: "):
            score_file(path, tmp_path / "scored.jsonl", supported)
    path.write_bytes(header.replace(b"observed: m", b"questions") + first[:40] + second + third)
    with pytest.raises(RecordError, match=":2: not JSON"):
        score_file(path, tmp_path / "scored.jsonl", supported)
    with pytest.raises(RecordError, match=":2: not JSON"):
        list(read_spans(path, [(path.read_bytes().index(b"\n") + 1, path.stat().st_size)]))


def test_a_file_without_measurements_says_so_first(tmp_path: Path) -> None:
    path = observed(tmp_path / "observed.jsonl", problem=Unmeasured.DEGENERATE_SAMPLES)
    shown = CliRunner().invoke(app, ["score", str(path)], env={"COLUMNS": "300"}).output
    assert shown.index("Most of the 3 answers could not be measured (3 degenerate_samples)") < shown.index("Scores (")
    well = CliRunner().invoke(app, ["score", str(observed(tmp_path / "well.jsonl"))]).output
    assert "Most of the" not in well


def test_a_score_that_measured_nothing_is_not_the_next_fit(tmp_path: Path) -> None:
    """Nothing can be fitted on it: the reason stands there, with what removes it."""
    source, path = tmp_path / "a.jsonl", tmp_path / "r.jsonl"
    row = {"answer": "a", "samples": ["a", "b"], "correct": True, "finish_reason": "length"}
    source.write_text("".join(json.dumps({**row, "question": f"q{i}"}) + "\n" for i in range(3)))

    def called(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    called("import", source, "--out", path)
    shown = called("score", path, "--score", "graded_disagreement")
    assert "graded_disagreement measured none of the 3 answers; of 'q-" in shown
    assert "Next: collect again with a larger --max-tokens, or import with --set cut_off=measure" in shown
    called("import", source, "--out", path, "--replace", "--set", "cut_off=measure")
    assert f"Next: calibrate fit {path}" in called("score", path, "--score", "graded_disagreement")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    names = ("num_sets", "lexical_similarity", "perplexity", "semantic_entropy")

    def stream(path: Path) -> None:
        score_file(path, path, lambda plan: [make(name) for name in names])

    def peak(n: int, work: Callable[[Path], object]) -> int:
        path = written(tmp_path / f"{n}.jsonl", n, 5)
        tracemalloc.start()
        work(path)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1000, stream)  # fills the caches of 4,096 normalised answers
    bytes_a_record = (-peak(2000, stream) + peak(4000, stream)) / 2000
    in_memory = (-peak(500, read_records) + peak(1000, read_records)) / 500
    # What is kept of a record is its id, its line number and 8 bytes a score.
    assert bytes_a_record < 1000
    assert in_memory > 4 * 1000  # the same measure sees a file that is held in memory


# -- names


@pytest.mark.parametrize("text", ["", "a(", "token_f1(0.6)", "token_f1(=1)", "a b"])
def test_names_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match=r"cannot read|does not take"):
        parse_estimator(f"num_sets:{text}") if text else parse_name(text)


def test_what_is_lacking_is_said() -> None:
    bare, options = SamplingPlan(), SamplingPlan(n=0, options=("A", "B"))
    assert lacking(make("num_sets"), bare) is None
    output = {
        name: lacking(make(name), bare)
        for name in ("perplexity", "max_softmax", "selfcheck_nli", "p_true", "sar", "selfcheck_ngram")
    }
    assert "log-probabilities" in (output["perplexity"] or "")
    assert "option" in (output["max_softmax"] or "")
    assert "entailment model" in (output["selfcheck_nli"] or "")
    assert "further question" in (output["p_true"] or "")
    assert "log-probabilities" in (output["sar"] or "")
    assert output["selfcheck_ngram"] is None
    assert "samples" in (lacking(make("num_sets"), options) or "")
    assert [need for need, _ in unmet_needs(make("semantic_entropy"), options)] == [
        "samples",
        "token log-probabilities",
        "an answer in words",
    ]


# -- models and their verdicts


class Heavy(Judge):
    """A judge that is not among the light ones."""

    spec = JudgeSpec(name="heavy", version=1, params={})
    asked = 0

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        Heavy.asked += len(pairs)
        return [False] * len(pairs)


def test_all_estimators_and_what_the_others_lack(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 4, 3)
    output = run("score", str(path), "--score", "all")
    assert set(read_records(path).header.estimators) == {
        each.name for each in supported(read_records(path).header.plan)
    }
    assert "Not computed" in output
    assert "max_softmax option log-likelihoods" in output
    assert "selfcheck_nli an entailment model" in output
    assert not list(tmp_path.glob("*.sqlite"))  # light judges need no cache


def test_the_verdicts_of_a_model_are_kept_beside_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(JUDGES, "heavy", Heavy)
    path = written(tmp_path / "records.jsonl", 4, 3)
    run("score", str(path), "-s", "num_sets:heavy", "-s", "self_consistency:exact")
    assert set(read_records(path).header.estimators) == {"num_sets:heavy", "self_consistency:exact"}
    n_before = Heavy.asked
    assert (tmp_path / "records.pairs.sqlite").is_file()
    assert n_before > 0
    run("score", str(path), "-s", "num_sets:heavy")
    assert Heavy.asked == n_before
    run("score", str(path), "-s", "num_sets:heavy", "--pair-cache", str(tmp_path / "mine.sqlite"))
    assert Heavy.asked == 2 * n_before


@pytest.mark.parametrize("place", ["folder", "records.jsonl", "records.jsonl/pairs.sqlite"])
def test_a_cache_that_cannot_be_is_named_before_anything_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setitem(JUDGES, "heavy", Heavy)
    path = written(tmp_path / "records.jsonl", 4, 3)
    (tmp_path / "folder").mkdir()
    before, n_before = path.read_bytes(), Heavy.asked
    arguments = ["score", str(path), "-s", "num_sets:heavy", "--pair-cache", str(tmp_path / place)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "2000"})
    assert result.exit_code == 2
    assert str(tmp_path / place) in result.output
    assert "ame a" in result.output  # the way out
    assert "Traceback" not in result.output
    assert (path.read_bytes(), Heavy.asked) == (before, n_before)
