"""Option log-likelihoods against brute-force forward passes, and which tokens an option is made of."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

from guardrail.types import SamplingPlan, Unmeasured
from integrations._local.prompts import UnreadableOptionError, option_ids
from tests.integrations.conftest import byte_tokenizer, tiny_chat, tiny_model
from tests.integrations.local.test_parity import forced_logprobs

PROMPTS: list[list[BaseMessage]] = [[HumanMessage("A or B?")], [HumanMessage("is it yes, or is it rather no? think!")]]


def brute_force(family: str, messages: list[BaseMessage], label: str) -> list[float]:
    """One whole forward pass over prompt and label, no cache."""
    tokenizer = byte_tokenizer()
    prompt = tokenizer.encode(f"<|user|>{messages[0].text}<|end|><|assistant|>", add_special_tokens=False)
    answer = tokenizer.encode(label, add_special_tokens=False)
    return forced_logprobs(tiny_model(family), prompt, answer)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3"])
@pytest.mark.parametrize("n", [0, 3])
def test_loglikelihoods_equal_brute_force(family: str, n: int) -> None:
    """One, two and five tokens, two prompts of different lengths in one batch; divided by the number of tokens."""
    labels = ("A", "the A", "hello", "yes")
    plan = SamplingPlan(n=n, temperature=1.0, max_tokens=5, options=labels, logprobs=True)
    drawn = tiny_chat(family).draw_samples(PROMPTS, plan, seeds=[1, 2])
    for messages, sample_set in zip(PROMPTS, drawn, strict=True):
        assert sample_set.options is not None
        assert sample_set.options.labels == labels
        values = [brute_force(family, messages, label) for label in labels]
        assert [len(value) for value in values] == [1, 2, 5, 1]
        expected = [sum(value) / len(value) for value in values]
        assert sample_set.options.loglikelihoods == pytest.approx(expected, abs=2e-4)
        assert len(sample_set.samples) == n


def test_reading_options_leaves_the_samples_as_they_were() -> None:
    """Options branch off the prompt's cache; generation must not see them."""
    plan = SamplingPlan(n=3, temperature=1.0, max_tokens=8)
    plain = tiny_chat().draw_samples(PROMPTS, plan, seeds=[1, 2])
    read = tiny_chat().draw_samples(PROMPTS, plan.model_copy(update={"options": ("hello there", "yes")}), seeds=[1, 2])
    assert [[s.text for s in drawn.samples] for drawn in plain] == [[s.text for s in drawn.samples] for drawn in read]


@pytest.mark.parametrize("logprobs", [True, False])
def test_without_samples_the_likeliest_option_is_the_answer(logprobs: bool) -> None:
    plan = SamplingPlan(n=0, max_tokens=5, options=("hello", "yes", "B"), logprobs=logprobs)
    drawn = tiny_chat().draw_samples(PROMPTS, plan, seeds=[None, None])
    for messages, sample_set in zip(PROMPTS, drawn, strict=True):
        assert sample_set.primary is not None
        assert sample_set.options is not None
        assert sample_set.primary.text == sample_set.options.best
        assert sample_set.samples == ()
        assert sample_set.cost.calls == 1
        assert sample_set.cost.output_tokens == 0
        if logprobs:
            assert "".join(sample_set.primary.tokens or ()) == sample_set.primary.text
            expected = brute_force("llama", messages, sample_set.primary.text)
            assert sample_set.primary.logprobs == pytest.approx(expected, abs=2e-4)
        else:
            assert sample_set.primary.tokens is None


def byte_ids(prompt: str, labels: list[str]) -> tuple[tuple[int, ...], ...]:
    tokenizer = byte_tokenizer()
    return option_ids(
        prompt,
        labels,
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        decode=lambda ids: str(tokenizer.decode(list(ids))),
    )


def test_the_tokenizer_decides_between_a_and_space_a() -> None:
    """ "ĠA" is one token of this tokenizer; whether the option is "A" or " A" follows from the prompt's end."""
    tokenizer = byte_tokenizer()
    plain, spaced = tokenizer.convert_tokens_to_ids(["A", "ĠA"])
    assert byte_ids("<|assistant|>", ["A", "B"])[0] == (plain,)
    # The prompt ends in a space, with which "A" would merge: " A" cannot be appended without a second space, so the
    # plain letter is what continues these very prompt tokens.
    assert byte_ids("Answer: ", ["A", "B"])[0] == (plain,)
    assert spaced not in {ids[0] for ids in byte_ids("Answer:", ["A", "B"])}
    assert byte_ids("Answer:", [" A", " B"])[0] == (spaced,)


def prefix_space_tokenizer() -> Any:
    """A tokenizer that puts a space before every segment, as the embedded demonstration model's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {"Ġ": 0, "A": 1, "B": 2, "ĠA": 3, "ĠB": 4, "?": 5, "x": 6}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[("Ġ", "A"), ("Ġ", "B")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|a|>"])
    return tokenizer


def test_a_tokenizer_that_adds_a_space_is_asked_in_context() -> None:
    """Alone, both letters get a space; after "x?" they continue without one, after a special token with one."""
    tokenizer = prefix_space_tokenizer()

    def read(prompt: str) -> tuple[tuple[int, ...], ...]:
        return option_ids(
            prompt,
            ["A", "B"],
            encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
            decode=lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)),
        )

    assert tokenizer.encode("A").ids == [3]
    assert read("x?<|a|>") == ((3,), (4,))
    assert read("x?") == ((1,), (2,))


def test_options_without_tokens_of_their_own_are_refused() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"<unk>": 0, "A": 1, "q": 2, ":": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()

    def read(labels: list[str]) -> object:
        return option_ids(
            "q :",
            labels,
            encode=lambda text: list(words.encode(text).ids),
            decode=lambda ids: str(words.decode(list(ids))),
            unknown=0,
        )

    with pytest.raises(UnreadableOptionError, match="option 'B'"):
        read(["A", "B"])
    with pytest.raises(UnreadableOptionError, match="'A' and ' A' have the same tokens"):
        read(["A", " A"])


def test_unreadable_options_are_a_problem_of_that_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = tiny_chat()
    plan = SamplingPlan(n=2, temperature=1.0, max_tokens=3, options=("A", "B"))
    monkeypatch.setattr(type(chat), "_unknown", property(lambda self: byte_tokenizer().convert_tokens_to_ids("B")))
    drawn = chat.draw_samples(PROMPTS[:1], plan, seeds=[0])[0]
    assert drawn.problem is Unmeasured.NO_OPTIONS
    assert "'B'" in drawn.problem_detail
    assert drawn.primary is None
    assert drawn.cost.calls == 0


def test_options_need_room_in_the_context_window_only_for_themselves() -> None:
    """Nothing is generated when n is 0: max_tokens does not count."""
    plan = SamplingPlan(n=0, max_tokens=200, options=("A", "B"))
    assert tiny_chat().draw_samples([[HumanMessage("x" * 240)]], plan, seeds=[0])[0].options is not None
