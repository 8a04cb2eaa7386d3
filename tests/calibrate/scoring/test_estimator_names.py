"""Names of estimators: every spec has its own key, a key is read back, and what a user wrote finds its scores."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scoring import header_of, made_records
from calibrate.correctness import Exact
from calibrate.data.records import Record, RecordFile, read_records, write_records
from calibrate.scoring.compute import score_records
from calibrate.scoring.names import estimator_key, parse_estimator, stored_key
from calibrate.spec_syntax import cut, estimator_flags, parse_name, written
from guardrail.errors import UsageError
from guardrail.judges import (
    ExactJudge,
    GuardedJaccard,
    Jaccard,
    Judge,
    JudgeSpec,
    NumericJudge,
    RougeL,
    Similarity,
    TextJudge,
    ToolCallJudge,
    from_judge,
)
from guardrail.judges.chat import ChatJudge
from guardrail.uncertainty import Estimator, EstimatorSpec
from guardrail.uncertainty import list_estimators as available
from guardrail.uncertainty import make_estimator as make
from tests.calibrate.commands import run

JUDGES: tuple[Judge, ...] = (
    ExactJudge(),
    NumericJudge(),
    TextJudge(),
    TextJudge(threshold=0.7),
    ToolCallJudge(),
    ToolCallJudge(numbers=True, decimals=2, dates=["%d.%m.%Y", "%Y, %m (%d)"]),
)
SIMILARITIES: tuple[Similarity, ...] = (Jaccard(), GuardedJaccard(), RougeL(), *map(from_judge, JUDGES))


def variants(name: str) -> list[Estimator]:
    """An estimator with every light judge and similarity that it takes."""
    plain = make(name)
    judges = JUDGES if plain.needs.judge else (None,)
    similarities = SIMILARITIES if plain.similarity is not None else (None,)
    return [make(name, judge=judge, similarity=similarity) for judge, similarity in product(judges, similarities)]


@pytest.mark.parametrize("name", available())
def test_every_spec_has_its_own_key_which_is_read_back(name: str) -> None:
    estimators = variants(name)
    keys = [estimator_key(estimator) for estimator in estimators]
    assert len(set(keys)) == len(estimators)
    assert keys.count(name) == 1  # the plain name is the one with nothing but defaults
    for key, estimator in zip(keys, estimators, strict=True):
        assert parse_estimator(key).spec == estimator.spec
        assert estimator_key(parse_estimator(key)) == key


def test_variants_are_the_ones_there_are() -> None:
    counts = {name: len(variants(name)) for name in ("perplexity", "degree", "num_sets", "graded_disagreement")}
    assert counts == {"perplexity": 1, "degree": 9, "num_sets": 6, "graded_disagreement": 54}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
parameters = st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), values, max_size=4)


@given(parameters)
def test_parameters_are_read_back_whatever_is_in_them(params: dict[str, object]) -> None:
    text = written(JudgeSpec(name="judge", version=1, params=params))
    assert parse_name(text) == ("judge", params)
    assert cut(f"graded_disagreement:{text}:rouge_l", ":") == ["graded_disagreement", text, "rouge_l"]
    assert cut(f"degree,num_sets:{text}", ",") == ["degree", f"num_sets:{text}"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model=./a b/c", {"model": "./a b/c"}),
        ("model=openai:gpt-4o", {"model": "openai:gpt-4o"}),
        (r"model=C:\models\x", {"model": r"C:\models\x"}),
        ('model="a, b)"', {"model": "a, b)"}),
        ("judge={'name': 'exact', 'params': {}}", {"judge": {"name": "exact", "params": {}}}),
        ("judge={'name: 'exact'}", {"judge": "{'name: 'exact'}"}),
    ],
)
def test_parameters_as_people_write_them(text: str, expected: dict[str, object]) -> None:
    assert parse_name(f"m({text})") == ("m", expected)


def test_a_judge_is_a_similarity_in_three_ways() -> None:
    spec = from_judge(TextJudge(threshold=0.7)).spec
    for text in (
        "from_judge(text(threshold=0.7))",
        f"from_judge(judge={json.dumps(spec.params['judge'])})",
        f"from_judge(judge={spec.params['judge']})",  # as earlier versions wrote their keys
    ):
        assert parse_estimator(f"degree:{text}").spec.similarity == spec
    assert estimator_key(make("degree", similarity=from_judge(ExactJudge()))) == "degree:from_judge(exact)"


def test_graded_disagreement_takes_a_judge_and_a_similarity() -> None:
    parsed = parse_estimator("graded_disagreement:exact:rouge_l")
    assert (parsed.spec.judge, parsed.spec.similarity) == (ExactJudge().spec, RougeL().spec)
    assert parse_estimator("graded_disagreement::rouge_l").spec == make("graded_disagreement", similarity=RougeL()).spec
    assert estimator_key(parse_estimator("graded_disagreement:exact:jaccard")) == "graded_disagreement:exact"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("token_sar:exact", r"exact is a judge.* Write from_judge\(exact\)"),
        ("graded_disagreement:rouge_l", "graded_disagreement::rouge_l"),
        ("num_sets:rouge_l", "rouge_l is a similarity, not a judge; choose one of: .*tool_call"),
        ("degree:from_judge(chat(model=openai:gpt-4o))", "as the judge of a score only"),
        ("graded_disagreement:exact:rouge_l:x", r"Write graded_disagreement:JUDGE:SIMILARITY\."),
        ("degree:jaccard:x", r"Write degree:SIMILARITY\."),
        ("perplexity:exact", "Write perplexity"),
        ("imported:own", "came with an imported file"),
        ("num_sets:text(treshold=1)", "does not take the parameters"),
    ],
)
def test_the_way_out_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_estimator(text)


# -- scores of several specs side by side


def test_two_similarities_of_one_estimator_are_two_scores(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl", header_of(30, 5), tuple(made_records(30, 5)))
    both = [make("graded_disagreement"), make("graded_disagreement", similarity=RougeL())]
    scored = score_records(file, both)
    keys = ["graded_disagreement", "graded_disagreement:text(threshold=0.6):rouge_l"]
    assert list(scored.header.estimators) == keys
    for key, estimator in zip(keys, both, strict=True):
        alone = score_records(file, [estimator])
        assert [record.scores[key] for record in scored.records] == [record.scores[key] for record in alone.records]
        assert scored.header.estimators[key] == estimator.spec


class Renewed(ExactJudge):
    """The judge `exact` in a later version."""

    spec = JudgeSpec(name="exact", version=ExactJudge.spec.version + 1, params={})


def test_two_versions_of_a_judge_are_not_scored_under_one_key(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl", header_of(2, 3), tuple(made_records(2, 3)))
    with pytest.raises(UsageError, match="two scores have the key 'num_sets:exact'"):
        score_records(file, [make("num_sets", judge=ExactJudge()), make("num_sets", judge=Renewed())])


# -- what a user wrote finds what it made


class Model(Judge):
    """A judge with a model behind it, as the ones that load weights describe themselves."""

    def __init__(self, **params: object) -> None:
        self._params = params

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="nli", version=1, params=self._params)


def specs_by_key(*estimators: Estimator) -> dict[str, EstimatorSpec]:
    return {estimator_key(estimator): estimator.spec for estimator in estimators}


PINNED = {"model": "./w", "revision": "sha256:0a", "precision": "float32"}
COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    "text",
    [
        "num_sets",
        "num_sets:nli",
        "num_sets:nli(model=./w)",
        "num_sets:nli(model=./w, device=cpu)",
        "num_sets:nli(model=./w, precision=auto, revision=main)",
        "num_sets:nli(model=./w, revision=sha256:0a)",
    ],
)
def test_what_a_text_leaves_open_is_what_the_file_has(text: str) -> None:
    specs = {key: spec for key, spec in specs_by_key(make("num_sets", judge=Model(**PINNED)), make("degree")).items()}
    assert stored_key(specs, text) == estimator_key(make("num_sets", judge=Model(**PINNED)))


@pytest.mark.parametrize(
    "text",
    [
        "num_sets:nli(model=./other)",
        "num_sets:nli(model=./w, revision=sha256:1b)",
        f"num_sets:nli(model=./w, revision={COMMIT})",
        "num_sets:nli(model=./w, precision=bfloat16)",
        "num_sets:exact",
        "num_sets:text",
        "self_consistency:nli(model=./w)",
        "imported:x",
        "nonsense",
    ],
)
def test_nothing_else_is_taken_for_it(text: str) -> None:
    specs = specs_by_key(make("num_sets", judge=Model(**PINNED)), make("num_sets", judge=TextJudge(threshold=0.7)))
    assert stored_key(specs, text) == text


def test_of_several_the_plain_one_else_all_are_named() -> None:
    first, two = make("num_sets", judge=Model(**PINNED)), make("num_sets", judge=Model(**{**PINNED, "model": "./v"}))
    specs = specs_by_key(first, make("num_sets", judge=TextJudge(threshold=0.7)))
    assert stored_key({**specs, "num_sets": make("num_sets").spec}, "num_sets:text") == "num_sets"
    with pytest.raises(UsageError) as caught:
        stored_key(specs_by_key(first, two), "num_sets:nli")
    assert all(estimator_key(each) in str(caught.value) for each in (first, two))


def test_a_chat_model_is_a_judge_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are found again without asking for the model, which another command may not reach."""
    monkeypatch.chdir(tmp_path)
    Path("own_judge.py").write_text(
        "from guardrail.testing import ScriptedChat\nmodel = ScriptedChat(default=['yes'])\n", encoding="utf-8"
    )
    text = "num_sets:chat(model=python:own_judge:model)"
    estimator = parse_estimator(text)
    assert isinstance(estimator.judge, ChatJudge)
    for typed in (text, "num_sets:chat"):
        assert stored_key(specs_by_key(estimator), typed) == estimator_key(estimator)


def test_chat_judges_are_found_by_name_and_model() -> None:
    class Chat(Model):
        @property
        def spec(self) -> JudgeSpec:
            return JudgeSpec(name="chat", version=1, params={"provider": "openai", "model": "gpt-4o", "reply": "text"})

    key = "semantic_entropy:chat(model=gpt-4o, provider=openai, reply=text)"
    specs = specs_by_key(make("semantic_entropy", judge=Chat()))
    assert set(specs) == {key}
    for text in ("semantic_entropy", "semantic_entropy:chat", "semantic_entropy:chat(model=openai:gpt-4o)"):
        assert stored_key(specs, text) == key
    other = "semantic_entropy:chat(model=openai:gpt-4o-mini)"
    assert stored_key(specs, other) == other
    assert estimator_flags(key) == "--score 'semantic_entropy:chat(model=PROVIDER:MODEL)'"


@pytest.mark.parametrize(
    ("key", "flags"),
    [
        ("num_sets:exact", "--score num_sets:exact"),
        ("num_sets:text(threshold=0.7)", "--score 'num_sets:text(threshold=0.7)'"),
        ("ties(num_sets, degree, r=0.001)", "--score 'ties(num_sets, degree, r=0.001)'"),
    ],
)
def test_flags_can_be_pasted(key: str, flags: str) -> None:
    assert estimator_flags(key) == flags


# -- on the command line


def agree(record: Record) -> bool:
    """Whether at most two different answers were drawn."""
    assert record.drawn is not None
    return len({sample.text for sample in record.drawn.samples}) <= 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    records_path = tmp_path / "records.jsonl"
    labelled = [
        each.model_copy(update={"correct": agree(each) != (i % 4 == 0), "question": f"{each.question} {i}"})
        for i, each in enumerate(made_records(90, 4))
    ]
    write_records(records_path, header_of(90, 4).model_copy(update={"correctness": Exact().spec}), labelled)
    return records_path


def test_score_then_fit_with_the_same_words(path: Path, tmp_path: Path) -> None:
    texts = ["token_sar:rouge_l", "graded_disagreement:exact:rouge_l", "degree:from_judge(numeric)"]
    run("score", path, *(part for text in texts for part in ("-s", text)))
    assert set(read_records(path).header.estimators) == set(texts)
    for text in texts:
        run("fit", "--rule", "acrc", path, "-s", text, "-a", "0.4", "-o", tmp_path / "artifact.json")
    output = run("fit", "--rule", "acrc", path, "-s", "token_sar", "-a", "0.4", "-o", tmp_path / "artifact.json")
    assert "--score token_sar: the scores of token_sar:rouge_l." in output
    run("score", path, "-s", "token_sar:jaccard")
    output = run("fit", "--rule", "acrc", path, "-s", "token_sar", "-a", "0.4", code=2)
    assert "'token_sar' may be any of: token_sar:jaccard; token_sar:rouge_l" in output
    output = run("fit", "--rule", "acrc", path, "-s", "token_sar:from_judge(text(threshold=0.7))", "-a", "0.4", code=2)
    assert "--score 'token_sar:from_judge(text(threshold=0.7))'" in output
