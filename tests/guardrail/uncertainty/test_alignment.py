"""Tokens against the text they spell: words and characters get what their tokens cost, and a mismatch gets nothing."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from guardrail.sampling.replies.read import read_reply
from guardrail.types import Missing, Sample, Unmeasured
from guardrail.uncertainty.alignment import characters, spans, words


def sample(text: str, *tokens: str, raw: tuple[str, ...] | None = None) -> Sample:
    """Token i costs 2^i nats, so that every sum says which tokens are in it."""
    names = tokens if raw is None else ("?",) * len(raw)
    return Sample(text=text, tokens=names, logprobs=tuple(-(2.0**i) for i in range(len(names))), token_bytes=raw)


def by_word(given: Sample) -> list[tuple[str, float]]:
    word_spans = words(given)
    return [(given.text[span.start : span.end], span.nll) for span in word_spans]


def by_token(given: Sample) -> list[tuple[str, float]]:
    token_spans = spans(given)
    return [(given.text[span.start : span.end], span.nll) for span in token_spans]


def test_words_sum_their_tokens() -> None:
    assert by_word(sample("New York City", "New", " Yo", "rk", " City")) == [("New", 1.0), ("York", 6.0), ("City", 8.0)]


def test_a_token_over_two_words_counts_for_the_first() -> None:
    # " Yo" | "rk C" | "ity": the middle token's first byte outside white space lies in York
    assert by_word(sample("Yo rk City", " Yo", " rk C", "ity")) == [("Yo", 1.0), ("rk", 2.0), ("City", 4.0)]


def test_white_space_tokens_count_for_what_follows_or_the_last() -> None:
    answer = sample("a b", "\n", "a", " ", "b", "\n", " ")
    assert by_word(answer) == [("a", 1.0 + 2.0), ("b", 4.0 + 8.0 + 16.0 + 32.0)]
    assert by_token(answer) == [("a", 3.0), (" ", 4.0), ("b", 8.0 + 16.0 + 32.0)]


def test_text_without_spaces_is_one_word() -> None:
    assert by_word(sample("東京都 です", "東", "京都", " です")) == [("東京都", 3.0), ("です", 4.0)]


def test_tokens_that_split_a_character_are_one_piece() -> None:
    # "a 😀!" as the bytes 61 | 20 f0 | 9f 98 | 80 21: the last three share the emoji
    answer = sample("a 😀!", raw=("61", "20f0", "9f98", "8021"))
    assert by_word(answer) == [("a", 1.0), ("😀!", 2.0 + 4.0 + 8.0)]
    assert by_token(answer) == [("a", 1.0), (" 😀!", 2.0 + 4.0 + 8.0)]


def test_a_token_that_begins_with_the_end_of_a_character_belongs_to_its_word() -> None:
    # "é b": c3 | a9 20 62. The second token's first byte lies in "é", though it also spells " b"
    assert by_word(sample("é b", raw=("c3", "a92062"))) == [("é", 3.0), ("b", 0.0)]


def test_a_character_cut_off_by_the_token_limit_is_the_replacement_character() -> None:
    answer = sample("x \ufffd", raw=("78", "20", "f09f"))
    assert by_word(answer) == [("x", 1.0), ("\ufffd", 6.0)]
    broken = sample("\ufffdA", raw=("f09f", "41"))
    assert by_token(broken) == [("\ufffd", 1.0), ("A", 2.0)]


@pytest.mark.parametrize(
    "given",
    [
        sample("Paris", "Paris", "<|end|>"),  # an end token among the tokens
        sample("Paris", "Par"),  # a token is missing
        sample("Paris", "paris"),  # not the same letters
        sample("a b", "a", "b"),  # white space inside is not free
        sample("", "t"),  # a tool call was cut out of the text
        sample("é", raw=("c3", "a8")),
        sample("é", raw=("c3", "xy")),
    ],
)
def test_a_mismatch_is_unmeasured_not_zero(given: Sample) -> None:
    for read in (words, spans, characters):
        with pytest.raises(Missing) as caught:
            read(given)
        assert caught.value.reason in (Unmeasured.NO_LOGPROBS, Unmeasured.EMPTY_ANSWER)


def test_without_logprobs_or_tokens_there_is_nothing_to_say() -> None:
    with pytest.raises(Missing, match="token log-probabilities are missing"):
        words(Sample(text="x"))
    with pytest.raises(Missing, match="the answer has no tokens"):
        spans(Sample(text="x", tokens=(), logprobs=()))


TEXT = st.text(alphabet="ab é漢😀\n\u00a0\ufffd", max_size=12)


@given(TEXT, st.lists(st.integers(0, 40), max_size=8))
def test_any_cut_of_the_bytes_keeps_every_nat_and_every_character(text: str, cuts: list[int]) -> None:
    """Words sum to the answer and spans tile the text, for every cut of the bytes."""
    whole = text.encode()
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    raw = tuple(whole[a:b].hex() for a, b in pairwise(places))
    answer = sample(text.strip(), raw=raw)
    if not text.strip():
        for read in (words, spans):
            with pytest.raises(Missing):
                read(answer)
        return
    word_spans, pieces = words(answer), spans(answer)
    total = -math.fsum(answer.logprobs or ())
    assert math.fsum(span.nll for span in word_spans) == total
    assert math.fsum(span.nll for span in pieces) == total
    assert [answer.text[span.start : span.end] for span in word_spans] == text.split()
    assert "".join(answer.text[span.start : span.end] for span in pieces) == answer.text


@given(TEXT.filter(str.strip), st.lists(st.integers(0, 12), max_size=6))
def test_whole_character_tokens_and_their_bytes_say_the_same(text: str, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    tokens = tuple(text[a:b] for a, b in pairwise(places))
    plain = sample(text.strip(), *tokens)
    spelled = sample(text.strip(), raw=tuple(token.encode().hex() for token in tokens))
    assert words(plain) == words(spelled)
    assert spans(plain) == spans(spelled)


def reply(text: str, content: list[dict[str, object]]) -> Sample:
    return read_reply(AIMessage(content=text, response_metadata={"logprobs": {"content": content}}))


def test_bytes_of_an_openai_reply_are_kept_where_tokens_are_parts_of_characters() -> None:
    content: list[dict[str, object]] = [
        {"token": "a", "bytes": [97], "logprob": -1.0},
        {"token": "bytes:\\xf0\\x9f", "bytes": [0xF0, 0x9F], "logprob": -2.0},
        {"token": "bytes:\\x98\\x80", "bytes": [0x98, 0x80], "logprob": -4.0},
    ]
    parsed = reply("a😀", content)
    assert parsed.token_bytes == ("61", "f09f", "9880")
    assert by_token(parsed) == [("a", 1.0), ("😀", 6.0)]


def test_bytes_that_say_nothing_new_are_not_kept() -> None:
    whole: list[dict[str, object]] = [
        {"token": "é", "bytes": [0xC3, 0xA9], "logprob": -1.0},
        {"token": "!", "bytes": None, "logprob": -1.0},
        {"token": "?", "logprob": -1.0},
    ]
    assert reply("é!?", whole).token_bytes is None


@pytest.mark.parametrize("bad", [7, "ab", [300], [None], {"x": 1}])
def test_malformed_bytes_leave_the_tokens_to_speak(bad: object) -> None:
    parsed = reply("é", [{"token": "é", "bytes": bad, "logprob": -1.0}])
    assert parsed.tokens == ("é",)
    assert parsed.token_bytes is None
