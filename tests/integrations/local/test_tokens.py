"""Pieces, stop strings and streams on byte-level tokens, where a character may take several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import examples.tiny_model
from guardrail.types import Sample
from integrations._local.decoding import Continuation
from integrations._local.loading import special_ids, wrap
from integrations._local.tokens import Detokenizer, TextStream
from tests.integrations.conftest import byte_tokenizer

HIDDEN = frozenset(byte_tokenizer().all_special_ids)
TEXTS = st.text(alphabet=st.sampled_from("the yesno\n A😀é漢STOP<>"), max_size=24)


def detokenizer() -> Detokenizer:
    return Detokenizer(byte_tokenizer(), HIDDEN)


def ids_of(text: str) -> list[int]:
    ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False)
    return ids


def test_a_split_character_belongs_to_its_last_token() -> None:
    assert detokenizer().pieces(ids_of("a😀b")) == ["a", "", "", "", "😀", "b"]
    assert detokenizer().pieces(ids_of("😀")[:2]) == ["", "\ufffd"], "an unfinished character is shown as it decodes"


class Strange:
    """A decoder that looks back: it drops a space at the very beginning and merges "n" + "o" with what precedes."""

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(" abn"[token] for token in ids).replace("abn", "*").lstrip()


def test_pieces_of_a_decoder_that_looks_back_still_add_up() -> None:
    pieces = Detokenizer(Strange(), frozenset()).pieces([0, 1, 2, 3, 1])
    assert pieces == ["", "", "", "*", "a"]


@given(TEXTS, st.sampled_from([("STOP",), ("\n",), ("e", "the"), ("😀",), ("ST", "STOP")]))
@settings(max_examples=80)
def test_streamed_text_is_the_stripped_text_before_the_stop(text: str, stops: tuple[str, ...]) -> None:
    """And at no moment does the reader hold more than a beginning of it."""
    starts = [text.find(stop) for stop in stops if stop in text]
    expected = text[: min(starts, default=None)].strip()
    stream, shown = TextStream(detokenizer(), stops), ""
    for token in ids_of(text):
        shown += stream.push(token)
        assert expected.startswith(shown)
    assert shown + stream.close() == expected


def test_a_beginning_of_a_stop_string_is_held_back_and_then_shown() -> None:
    stream = TextStream(detokenizer(), ("STOP",))
    assert [stream.push(token) for token in ids_of("aSTAR")] == ["a", "", "", "STA", "R"]
    stream = TextStream(detokenizer(), ("STOP",))
    assert [stream.push(token) for token in ids_of("aSTOPb")] == ["a", "", "", "", "", ""]
    assert stream.close() == ""


def test_a_token_that_reaches_into_the_stop_keeps_its_part_before_it() -> None:
    """ " the" ... "e" begins inside the token "the": it stays as "th", with its log-probability."""
    ids = ids_of("yes the")
    values = [-float(place) for place in range(len(ids))]
    answer = detokenizer().answer(Continuation(ids, values, ended=True), stops=("e t", "he"), pieces=True)
    assert detokenizer().pieces(ids) == ["yes", " ", "the"]
    assert answer.text == "yes t"
    assert answer.tokens == ("yes", " ", "t")
    assert answer.logprobs == (0.0, -1.0, -2.0)


def test_an_end_token_that_is_an_ordinary_token_is_no_text() -> None:
    """Models end answers with tokens that their tokenizers do not call special."""
    ids = ids_of("yes no")
    assert Detokenizer(byte_tokenizer(), frozenset({ids[-1]})).decode(ids) == "yes "


@pytest.mark.parametrize("ended", [True, False])
def test_without_tokens_the_answer_is_empty(ended: bool) -> None:
    answer = detokenizer().answer(Continuation([], [], ended=ended), stops=("x",), pieces=True)
    assert (answer.text, answer.tokens, answer.logprobs) == ("", (), ())
    assert answer.finish_reason == ("stop" if ended else "length")


# -- streams equal answers, whatever tokens a model writes ------------------------------------------------------------


def fallback_tokenizer() -> Any:
    """Words with a space in front, and 256 byte tokens, decoded as those of Llama 2."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁a",
        "b",
        "▁the",
        "▁▁",
        ".",
        "\ufffd",
    ]
    tokenizer = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


EMBEDDED = AutoTokenizer.from_pretrained(str(Path(examples.tiny_model.__file__).parent / "orrin-1.5m"))
TOKENIZERS: dict[str, Any] = {"bytes": byte_tokenizer(), "embedded": EMBEDDED, "fallback": fallback_tokenizer()}


def written(tokenizer: Any, ids: Sequence[int], stops: tuple[str, ...]) -> tuple[Sample, str]:
    """The answer of a model that writes these tokens, and what a reader of its stream has seen in the end."""
    text = Detokenizer(tokenizer, special_ids(tokenizer))
    stream, tokens, shown = TextStream(text, stops), list[int](), ""
    for token in ids:
        tokens.append(token)
        shown += stream.push(token)
        if any(stop in text.decode(tokens) for stop in stops):
            break
    answer = text.answer(Continuation(tokens, [-1.0] * len(tokens), ended=True), stops=stops, pieces=True)
    return answer, shown + stream.close()


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(data=st.data())
@settings(max_examples=150)
def test_a_stream_shows_the_answer(tokenizer: Any, data: st.DataObject) -> None:
    """Tokens at random: special ones, bytes of no character, spaces at either end, beginnings of stop strings."""
    common = [token for token in (0, 2, 4, 6, *tokenizer.encode(" a A) the.😀", add_special_tokens=False))]
    tokens = st.sampled_from(common) | st.integers(0, len(tokenizer) - 1)
    ids = data.draw(st.lists(tokens, max_size=14))
    stops = data.draw(st.sampled_from([(), (".",), (" a", "the."), (" ", "A")]))
    answer, shown = written(tokenizer, ids, stops)
    assert shown == answer.text.strip()
    assert answer.tokens is not None
    assert "".join(answer.tokens) == answer.text


def test_special_tokens_without_a_role_are_hidden() -> None:
    """Ids 0 and 1 of the shipped tokenizer have a role, 2 to 6 mark turns: none is part of an answer."""
    assert special_ids(EMBEDDED) == frozenset(range(7))
    assert set(EMBEDDED.all_special_ids) < special_ids(EMBEDDED), "otherwise this test says nothing"
    the = EMBEDDED.encode(" the", add_special_tokens=False)
    answer, shown = written(EMBEDDED, [*the, 4, *the, 6, 2], ())
    assert answer.tokens is not None
    assert all(answer.tokens)
    assert len(answer.logprobs or ()) == 2 * len(the)
    assert shown == answer.text.strip() == "the the"


def test_tokens_that_the_tokenizer_lacks_are_hidden() -> None:
    """Vocabularies are often rounded up. A stream lost the space after such a token."""
    tokenizer = fallback_tokenizer()
    size = len(tokenizer)
    model = LlamaForCausalLM(
        LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=size + 9)
    )
    hidden = wrap(model, tokenizer, name="wide", chat_template="x").hidden_ids
    assert hidden == special_ids(tokenizer) | set(range(size, size + 9))
    text, the = Detokenizer(tokenizer, hidden), tokenizer.convert_tokens_to_ids("▁the")
    stream = TextStream(text, ())
    ids = [the, size, the]
    assert "".join([*map(stream.push, ids), stream.close()]) == text.decode(ids).strip() == "the the"
