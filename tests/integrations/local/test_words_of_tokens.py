"""Words of real tokenizers' answers: characters that are split over tokens, stop strings, cut-off characters.

A likelihood that is laid on another word, or lost, would change the score of every answer with an emoji in it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

import examples.tiny_model
from guardrail.types import Missing, Sample
from guardrail.uncertainty.alignment import spans, without, words
from integrations._local.decoding import Continuation
from integrations._local.tokens import Detokenizer
from tests.integrations.conftest import byte_tokenizer

EMBEDDED = AutoTokenizer.from_pretrained(str(Path(examples.tiny_model.__file__).parent / "orrin-1.5m"))
TOKENIZERS: dict[str, Any] = {"byte-level": byte_tokenizer(), "embedded": EMBEDDED}
TEXTS = st.text(alphabet=st.sampled_from("the yesno\n A😀é漢字ツ12.,'-"), max_size=24)
both = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def answer(tokenizer: Any, ids: list[int], stops: tuple[str, ...] = ()) -> Sample:
    """The answer of a model that writes these tokens; token i costs i + 1 nats."""
    logprobs = [-1.0 - i for i in range(len(ids))]
    detokenizer = Detokenizer(tokenizer, frozenset(tokenizer.all_special_ids))
    decoded = detokenizer.answer(Continuation(ids, logprobs, ended=True), stops=stops, pieces=True)
    return decoded.model_copy(update={"text": decoded.text.strip()})


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


@both
@given(text=TEXTS)
@settings(max_examples=60)
def test_any_text_aligns_and_keeps_every_nat(tokenizer: Any, text: str) -> None:
    drawn = answer(tokenizer, ids_of(tokenizer, text))
    if not drawn.text:
        with pytest.raises(Missing):
            words(drawn)
        return
    by_word, by_token = words(drawn), spans(drawn)
    assert [drawn.text[span.start : span.end] for span in by_word] == drawn.text.split()
    assert "".join(drawn.text[span.start : span.end] for span in by_token) == drawn.text
    total = -math.fsum(drawn.logprobs or ())
    assert math.fsum(span.nll for span in by_word) == total
    assert math.fsum(span.nll for span in by_token) == total


@both
def test_an_emoji_between_words_belongs_to_its_own_word(tokenizer: Any) -> None:
    drawn = answer(tokenizer, ids_of(tokenizer, "yes 😀 no"))
    assert [drawn.text[span.start : span.end] for span in words(drawn)] == ["yes", "😀", "no"]
    rests = {without(drawn.text, span, "token") for span in spans(drawn)}
    assert {"yes no", "yes  no"} & rests, "all its tokens go at once"


def test_words_by_hand() -> None:
    # a | space | four tokens of the emoji | space | the: the emoji costs 2 (its space) + 3 + 4 + 5 + 6 nats
    drawn = answer(byte_tokenizer(), ids_of(byte_tokenizer(), "a 😀 the"))
    assert drawn.tokens == ("a", " ", "", "", "", "😀", " ", "the")
    assert [span.nll for span in words(drawn)] == [1.0, 20.0, 7.0 + 8.0]


def test_an_answer_cut_off_inside_a_character_is_measured() -> None:
    drawn = answer(byte_tokenizer(), ids_of(byte_tokenizer(), "a 😀")[:4])
    assert drawn.text == "a \ufffd"
    assert [span.nll for span in words(drawn)] == [1.0, 2.0 + 3.0 + 4.0]


def test_broken_bytes_before_a_stop_string_align_by_their_pieces() -> None:
    ids = ids_of(byte_tokenizer(), "😀")[:2] + ids_of(byte_tokenizer(), "the.no")
    drawn = answer(byte_tokenizer(), ids, stops=(".",))
    assert drawn.text == "\ufffdthe"
    assert [span.nll for span in words(drawn)] == [1.0 + 2.0 + 3.0]


@both
@pytest.mark.parametrize(
    ("text", "stop", "shortened"),
    [("no 😀 yes.the", ".", "no 😀 yes"), ("é yes 😀 no", "😀", "é yes"), ("漢字.", ".", "漢字")],
)
def test_a_stop_string_cuts_text_and_tokens_alike(tokenizer: Any, text: str, stop: str, shortened: str) -> None:
    drawn = answer(tokenizer, ids_of(tokenizer, text), stops=(stop,))
    assert (drawn.text, "".join(drawn.tokens or ()).strip()) == (shortened, shortened)
    assert len(words(drawn)) == len(shortened.split())
