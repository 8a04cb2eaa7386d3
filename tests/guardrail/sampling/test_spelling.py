"""Tokens that are the text: end tokens, stop strings, other texts, and the ways endpoints write tokens."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from guardrail.sampling.replies.read import read_reply
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator, measure


def reply(text: str, *tokens: str | tuple[str, list[int] | None], **message: Any) -> Sample:
    """A reply whose token i has -0.1 (i + 1) nats; a pair is a token and its bytes."""
    pairs = [(token, None) if isinstance(token, str) else token for token in tokens]
    content = [
        {"token": token, "logprob": -0.1 * (place + 1)} | ({} if raw is None else {"bytes": raw})
        for place, (token, raw) in enumerate(pairs)
    ]
    return read_reply(AIMessage(content=text, response_metadata={"logprobs": {"content": content}}, **message))


def as_bytes(*pieces: bytes) -> list[tuple[str, list[int] | None]]:
    """Tokens with bytes, as OpenAI lists them."""
    return [(piece.decode(errors="replace"), list(piece)) for piece in pieces]


def test_an_end_token_is_no_part_of_the_answer() -> None:
    """One token of -0.1 nats has the mean 0.1, with any text after the answer; with the end token it is 1.05."""
    content = [{"token": "Paris", "logprob": -0.1}, {"token": "<|im_end|>", "logprob": -2.0}]
    primary = read_reply(AIMessage(content="Paris", response_metadata={"logprobs": {"content": content}}))
    assert (primary.tokens, primary.logprobs) == (("Paris",), (-0.1,))
    score = measure(
        SampleSet(question="q", primary=primary), make_estimator("perplexity"), SamplingPlan(n=0, logprobs=True)
    )
    assert score.value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "tokens", "kept"),
    [
        ("Paris", ("Paris",), 1),
        ("Paris", ("Par", "is", "<|eot_id|>", "<|end_of_text|>"), 2),
        ("Paris.", ("Paris", ".", "\n\n"), 2),  # a stop string of white space
        ("Paris.", ("Paris", ".", "\n", "Question", ":"), 2),  # a stop string of several tokens
        ("Paris\n", ("Paris", "\n", "</s>"), 2),  # white space that the text has
        (" Paris ", (" Paris", " "), 2),
        ("Paris", (" ", "Paris", " ", "</s>"), 2),  # stripped by the server
        ("in Paris", ("in", "Paris", "</s>"), 2),  # the space that begins a token was lost
        ("a <|im_end|> b", ("a", " <|im_end|>", " b", "<|im_end|>"), 3),  # an end token that is quoted
        ("Paris", ("", "Paris", ""), 2),
    ],
)
def test_what_comes_after_the_text_is_left_out(text: str, tokens: tuple[str, ...], kept: int) -> None:
    sample = reply(text, *tokens)
    assert sample.tokens == tokens[:kept]
    assert sample.logprobs == tuple(-0.1 * (place + 1) for place in range(kept))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Paris", ("London",)),
        ("Paris", ("Lo", "ndon", "<|im_end|>")),
        ("Paris", ("Par",)),  # tokens are missing
        ("Paris", ("<think>", "Rome?", "</think>", "Paris")),  # reasoning was taken out of the text
        ("Paris", ("token_id:9", "token_id:12")),
        ("1945", ("1944",)),
        ("Paris", ("�",)),
        ("é", ("e",)),
        ("Paris", ("",)),
        ("Paris", ()),
    ],
)
def test_the_tokens_of_another_text_are_not_measured(text: str, tokens: tuple[str, ...]) -> None:
    sample = reply(text, *tokens)
    assert (sample.text, sample.tokens, sample.logprobs, sample.token_bytes) == (text, None, None, None)
    unread = measure(
        SampleSet(question="q", primary=sample), make_estimator("perplexity"), SamplingPlan(n=0, logprobs=True)
    )
    assert unread.reason is Unmeasured.NO_LOGPROBS


def test_a_token_that_the_text_ends_within_is_cut_to_the_text() -> None:
    """The stop string "\\n\\nQ" began inside the last token, whose log-probability is that of all of it."""
    sample = reply("Paris.", "Paris", ".Q", ": what")
    assert (sample.tokens, sample.logprobs) == (("Paris", "."), (-0.1, -0.2))
    raw = reply("é.", *as_bytes(b"\xc3", b"\xa9", b".Q", b": what"))
    assert (raw.tokens, raw.token_bytes) == (("�", "�", "."), ("c3", "a9", "2e"))
    half = reply("aé.", *as_bytes(b"a\xc3", b"\xa9.Q"))  # the cut token began before: its bytes stay whole
    assert (half.logprobs, half.token_bytes) == ((-0.1, -0.2), ("61c3", "a92e51"))


def test_bytes_speak_for_tokens_that_are_parts_of_characters() -> None:
    sample = reply("😀", *as_bytes(b"\xf0\x9f", b"\x98\x80", b"<|im_end|>"))
    assert (sample.logprobs, sample.token_bytes) == ((-0.1, -0.2), ("f09f", "9880"))
    listed = reply("😀", ("bytes:\\xf0\\x9f", [0xF0, 0x9F]), ("bytes:\\x98\\x80", [0x98, 0x80]), ("</s>", []))
    assert listed.logprobs == (-0.1, -0.2)
    assert reply("😁", *as_bytes(b"\xf0\x9f", b"\x98\x80")).logprobs is None


def test_bytes_that_only_the_dropped_tokens_needed_are_not_kept() -> None:
    sample = reply("Paris", "Paris", ("<bytes>", [0xF0, 0x9F]))
    assert (sample.tokens, sample.token_bytes) == (("Paris",), None)


def test_an_answer_that_ends_within_a_character_keeps_the_bytes_it_has() -> None:
    cut = as_bytes(b"a ", b"\xf0", b"\x9f")
    for text in ("a �", "a�", " a �"):  # as the server shows it, and white space aside
        assert reply(text, *cut).logprobs == pytest.approx((-0.1, -0.2, -0.3))
    assert reply("a �", *cut, *as_bytes(b"</s>")).logprobs == pytest.approx((-0.1, -0.2, -0.3))
    assert reply("a", *cut).logprobs == (-0.1,)  # the server left the broken character out


@pytest.mark.parametrize(
    ("text", "tokens", "kept"),
    [
        ("😀", ("�", "�", "�", "�"), 4),
        ("a 😀 b", ("a", " �", "�", " b", "</s>"), 4),
        ("漢字", ("�", "�", "�", "<|im_end|>"), 3),
        ("漢字a", ("漢", "�", "�", "�a"), 4),
        ("“no”", ("", "“", "no", "", "”", "</s>"), 5),
    ],
)
def test_replacement_characters_stand_for_parts_of_characters(text: str, tokens: tuple[str, ...], kept: int) -> None:
    """As Ollama and vLLM list them: bytes EF BF BD, or nothing, for each token that is a part of a character."""
    for given_bytes in (False, True):
        sample = reply(text, *((token, list(token.encode())) if given_bytes else token for token in tokens))
        assert (sample.tokens, sample.token_bytes) == (tokens[:kept], None)


@pytest.mark.parametrize(
    ("text", "tokens"), [("ab", ("�", "b")), ("ab", ("a", "�", "b")), ("漢字", ("�",)), ("漢b", ("�", "c"))]
)
def test_a_replacement_character_does_not_stand_for_anything(text: str, tokens: tuple[str, ...]) -> None:
    assert reply(text, *tokens).logprobs is None


def test_an_empty_answer_has_no_tokens() -> None:
    for tokens in (("<|im_end|>",), ("<think>", "so"), ("\n",), ()):
        sample = reply("", *tokens)
        assert (sample.tokens, sample.logprobs) == ((), ())
    blank = reply(" \n", " ", "\n", "</s>")
    assert (blank.tokens, blank.logprobs) == ((), ())
    empty = measure(
        SampleSet(question="q", primary=sample), make_estimator("perplexity"), SamplingPlan(n=0, logprobs=True)
    )
    assert empty.reason is Unmeasured.EMPTY_ANSWER


def test_the_tokens_of_tool_calls_are_taken_as_they_are() -> None:
    for text in ("", "Let me see."):
        sample = reply(text, "<tool_call>", "f", "</tool_call>", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
        assert sample.tokens == ("<tool_call>", "f", "</tool_call>")


LETTERS = st.text(alphabet="ab é漢😀\n<|�", max_size=12)


@example("\ufffd ", [1], True, True)
@given(LETTERS.filter(str.strip), st.lists(st.integers(0, 40), max_size=8), st.booleans(), st.booleans())
def test_whatever_the_cuts_the_text_keeps_its_tokens_and_loses_the_rest(
    text: str, cuts: list[int], in_bytes: bool, stripped: bool
) -> None:
    """Characters or bytes, cut anywhere, then an end token; the text as the tokens spell it, or stripped.

    Only U+FFFD itself is not cut: its first byte alone is shown as U+FFFD, too, so that nobody can tell where it ends.
    """
    whole: Any = text.encode() if in_bytes else text
    within = (
        {match.start() + k for match in re.finditer("\ufffd".encode(), whole) for k in (1, 2)} if in_bytes else set()
    )
    places = [0, *sorted({min(cut, len(whole)) for cut in cuts} - within), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places) if a < b]
    tokens = as_bytes(*pieces, b"[end]") if in_bytes else [*pieces, "[end]"]
    sample = reply(text.strip() if stripped else text, *tokens)
    assert sample.logprobs is not None
    spelled = (
        "".join(sample.tokens or ())
        if sample.token_bytes is None
        else bytes.fromhex("".join(sample.token_bytes)).decode()
    )
    assert spelled.strip() == text.strip()
    if not stripped:
        assert len(sample.logprobs) == len(pieces)
    assert reply("[x]" + text, *tokens).logprobs is None


def test_empty_lists_of_bytes_are_bytes_that_were_not_told() -> None:
    """As the OpenAI Agents SDK passes on a server's ``null``."""
    sample = reply("Paris is it", ("Paris", []), (" is", []), (" it", []), ("<|im_end|>", []))
    assert (sample.tokens, sample.token_bytes) == (("Paris", " is", " it"), None)
