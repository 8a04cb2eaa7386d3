"""Words and characters of real tokenizers' answers: byte-level pieces, emoji, CJK, stop strings, cut-off characters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from transformers import AutoTokenizer

import examples.tiny_model
from guardrail.sampling.replies import read_reply
from guardrail.types import Missing, Sample
from guardrail.uncertainty.alignment import pieces, spans, words
from integrations._local.decoding import Continuation
from integrations._local.outputs import openai_logprobs
from integrations._local.tokens import DecodedText, Detokenizer
from tests.integrations.conftest import byte_tokenizer

EMBEDDED = AutoTokenizer.from_pretrained(str(Path(examples.tiny_model.__file__).parent / "orrin-1.5m"))
TOKENIZERS: dict[str, Any] = {"byte-level": byte_tokenizer(), "embedded": EMBEDDED}
TEXTS = st.text(alphabet=st.sampled_from("the yesno\n A😀é漢字ツ12.,'-"), max_size=24)
both = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def answer(tokenizer: Any, text: str, *, stops: tuple[str, ...] = (), keep: int | None = None) -> DecodedText:
    """The answer a model gives that generates ``text``; token i costs i + 1 nats."""
    ids = tokenizer.encode(text, add_special_tokens=False)[:keep]
    detokenizer = Detokenizer(tokenizer, frozenset(tokenizer.all_special_ids))
    return detokenizer.answer(
        Continuation(ids, [-1.0 - i for i in range(len(ids))], ended=True), stops=stops, pieces=True
    )


def sample(decoded: DecodedText) -> Sample:
    return Sample(
        text=decoded.text.strip(), tokens=decoded.tokens, logprobs=decoded.logprobs, token_bytes=decoded.token_bytes
    )


@both
@given(text=TEXTS)
@settings(max_examples=60)
def test_any_text_aligns_and_keeps_every_nat(tokenizer: Any, text: str) -> None:
    drawn = sample(answer(tokenizer, text))
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
@given(text=TEXTS)
@settings(max_examples=60)
def test_token_bytes_spell_the_text_and_are_there_only_where_needed(tokenizer: Any, text: str) -> None:
    decoded = answer(tokenizer, text)
    assert decoded.tokens is not None
    if decoded.token_bytes is None:
        assert "".join(decoded.tokens) == decoded.text
        assert all(decoded.tokens) or not decoded.text
    else:
        assert not all(decoded.tokens), "every token is whole characters, so their bytes say nothing new"
        assert len(decoded.token_bytes) == len(decoded.tokens)
        assert bytes.fromhex("".join(decoded.token_bytes)).decode() == decoded.text


@both
def test_an_emoji_between_words_belongs_to_its_own_word(tokenizer: Any) -> None:
    drawn = sample(answer(tokenizer, "yes 😀 no"))
    aligned = words(drawn)
    assert drawn.token_bytes is not None
    assert [drawn.text[span.start : span.end] for span in aligned] == ["yes", "😀", "no"]
    parts = pieces(drawn, "token")
    assert "yes  no" in [piece.without.replace("yes no", "yes  no") for piece in parts], "all bytes go at once"


def test_words_and_bytes_by_hand() -> None:
    # a | space | f0 | 9f | 98 | 80 | space | the: the emoji costs 2 (its space) + 3 + 4 + 5 + 6 nats
    decoded = answer(byte_tokenizer(), "a 😀 the")
    assert decoded.tokens == ("a", " ", "", "", "", "😀", " ", "the")
    assert decoded.token_bytes == ("61", "20", "f0", "9f", "98", "80", "20", "746865")
    by_word = words(sample(decoded))
    assert [span.nll for span in by_word] == [1.0, 20.0, 7.0 + 8.0]


def test_an_answer_cut_off_inside_a_character_is_measured() -> None:
    decoded = answer(byte_tokenizer(), "a 😀", keep=4)
    assert decoded.text == "a \ufffd"
    assert decoded.token_bytes == ("61", "20", "f0", "9f")
    by_word = words(sample(decoded))
    assert [span.nll for span in by_word] == [1.0, 2.0 + 3.0 + 4.0]


def test_broken_bytes_before_a_stop_string_align_by_their_pieces() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("😀", add_special_tokens=False)[:2] + tokenizer.encode("the.no", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, frozenset(tokenizer.all_special_ids))
    decoded = detokenizer.answer(
        Continuation(ids, [-1.0 - i for i in range(len(ids))], ended=True), stops=(".",), pieces=True
    )
    assert decoded.text == "\ufffdthe"
    assert decoded.token_bytes is None, "three bytes of a replacement character stand for two of the tokens"
    by_word = words(sample(decoded))
    assert [span.nll for span in by_word] == [1.0 + 2.0 + 3.0]


@both
def test_a_stop_string_cuts_bytes_and_tokens_alike(tokenizer: Any) -> None:
    for text, stop, shortened in (
        ("no 😀 yes.the", ".", "no 😀 yes"),
        ("é yes 😀 no", "😀", "é yes "),
        ("漢字.", ".", "漢字"),
    ):
        decoded = answer(tokenizer, text, stops=(stop,))
        assert decoded.text == shortened
        assert decoded.token_bytes is not None
        assert bytes.fromhex("".join(decoded.token_bytes)).decode() == shortened
        assert not isinstance(words(sample(decoded)), Missing)


def test_a_vocabulary_of_another_kind_has_no_bytes_and_still_aligns() -> None:
    class Strange:
        """Three tokens for two characters, by no rule anybody knows."""

        def decode(self, ids: Any, **_: Any) -> str:
            return {(): "", (0,): "\ufffd", (0, 1): "\ufffd", (0, 1, 2): "漢字"}.get(tuple(ids), "漢字")

        def convert_ids_to_tokens(self, token: int) -> str:
            return f"⟨{token}⟩"

    decoded = Detokenizer(Strange(), frozenset()).answer(
        Continuation([0, 1, 2], [-1.0, -2.0, -4.0], ended=True), stops=(), pieces=True
    )
    assert (decoded.tokens, decoded.token_bytes) == (("", "", "漢字"), None)
    by_word = words(sample(decoded))
    assert [span.nll for span in by_word] == [7.0], "tokens without a character count for what follows"


@both
@given(text=TEXTS.filter(str.strip))
@settings(max_examples=30)
def test_bytes_survive_the_way_through_an_openai_reply(tokenizer: Any, text: str) -> None:
    decoded = answer(tokenizer, text)
    read = read_reply(AIMessage(content=decoded.text, response_metadata={"logprobs": openai_logprobs(decoded)}))
    assert words(read) == words(sample(decoded))
    assert spans(read) == spans(sample(decoded))
