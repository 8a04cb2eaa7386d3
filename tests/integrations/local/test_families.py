"""Every type of transformers' causal-LM mapping: exact where it is served, refused where it is not."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from langchain_core.messages import BaseMessage, HumanMessage

from guardrail.doctor import examine
from guardrail.errors import PromptTooLongError, UsageError
from guardrail.testing import make_artifact
from guardrail.types import SamplingPlan
from integrations._local.decoding import Decoder, Row, plain, uniforms
from integrations._local.engine import DecodingRequest, Engine
from integrations._local.self_check import Support, self_check
from integrations.transformers_chat import TransformersChat
from tests.integrations.conftest import FAMILIES, byte_tokenizer, tiny_model
from tests.integrations.local.test_draw_samples import texts
from tests.integrations.local.test_parity import forced_logprobs, generated
from tests.integrations.local.tiny_families import (
    IDS,
    MARKS,
    OUTCOMES,
    PAGE,
    TYPES,
    VOCABULARY,
    documented,
    outcome,
    table,
    tiny_family,
)

NEW = 8
SERVED = ("exact", "one request at a time", "one answer at a time")


def prompt_of(length: int) -> list[int]:
    return [(31 * length + 7 * place * place) % (VOCABULARY - 20) + 10 for place in range(length)]


def request_of(length: int, options: Sequence[tuple[int, ...]] = (), new: int = NEW) -> DecodingRequest:
    """A greedy answer, two samples, and options."""
    sampled = (Row(new, 1.0, 0.9, draws) for draws in uniforms(length, 2, new))
    given = (Row(len(ids), given=ids) for ids in options)
    return DecodingRequest(tuple(prompt_of(length)), (Row(new), *sampled, *given))


def answers(model: Any, requests: Sequence[DecodingRequest], support: Support | None = None) -> list[list[list[int]]]:
    """Tokens of each row of each request."""
    engine = Engine(model, None, frozenset(), support=support)  # type: ignore[arg-type]
    return [[row.ids for row in response.continuations] for response in engine.submit(requests)]


def check_exact(model: Any, support: Support, lengths: Sequence[int]) -> None:
    """Together with options: greedy answers are those of ``generate``, numbers those of whole forward passes."""
    requests = [request_of(length, [(20, 21, 22), (30,), (25, 40)]) for length in lengths]
    engine = Engine(model, None, frozenset(), support=support)  # type: ignore[arg-type]
    responses = engine.submit(requests)
    for request, response in zip(requests, responses, strict=True):
        prompt = list(request.prompt)
        assert response.continuations[0].ids == generated(model, prompt, NEW)
        for row in response.continuations:
            assert row.logprobs == pytest.approx(forced_logprobs(model, prompt, row.ids), abs=2e-4)
        alone = engine.submit([request])[0]
        assert [row.ids for row in response.continuations] == [row.ids for row in alone.continuations]


@pytest.mark.parametrize(
    "model_type",
    ["bart", "bert", "deepseek_v3", "falcon_h1", "gemma4_text", "lfm2", "mamba", "mixtral", "recurrent_gemma", "zamba"],
)
def test_ten_types(model_type: str) -> None:
    check_type(model_type, (5, 40))


@pytest.mark.parametrize("family", FAMILIES)
def test_seven_families_beyond_their_windows(family: str) -> None:
    """Otherwise an answer would depend on who else asks, and a score on a wrong cache."""
    check_exact(tiny_model(family), Support(), (3, 12, 23))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_all_types(model_type: str) -> None:
    """Also beyond sliding windows, chunks and compressed blocks of 16 tokens."""
    check_type(model_type, (5, 70, 300))


def check_type(model_type: str, lengths: Sequence[int]) -> None:
    """The documented outcome is the measured one, and a type that is served is exact."""
    expected = documented()[model_type]
    assert outcome(model_type) == expected
    if expected in SERVED:
        model = tiny_family(model_type)
        check_exact(model, self_check(model, IDS), lengths)


@pytest.mark.skipif(
    f"transformers {'.'.join(transformers.__version__.split('.')[:2])}:" not in PAGE.read_text(encoding="utf-8"),
    reason="the page lists the types of another version",
)
def test_the_page_names_every_type_once_with_its_outcome() -> None:
    assert sorted(documented()) == sorted(TYPES)
    assert set(documented().values()) <= set(OUTCOMES)
    page = PAGE.read_text(encoding="utf-8").split(MARKS[0])[1].split(MARKS[1])[0]
    assert page == table({name: documented()[name] for name in TYPES})


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("bert", "not causal"),
        ("openai-gpt", "takes no cache"),
        ("prophetnet", "log-probabilities differ from those of whole forward passes"),
        ("rwkv", "takes no cache"),
        ("xlm", "not causal"),
        ("xlstm", "has wrong shape"),
    ],
)
def test_a_type_that_cannot_be_exact_is_refused_with_type_and_reason(model_type: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"models of type '{model_type}'.* cannot be served here: .*{reason}"):
        TransformersChat.from_model(tiny_family(model_type), byte_tokenizer())


@pytest.mark.parametrize("model_type", ["mpt", "whisper"])
def test_every_name_of_the_context_window_is_known(model_type: str) -> None:
    """A prompt beyond it would fail in the model, with all others of its batch."""
    chat = TransformersChat.from_model(tiny_family(model_type), byte_tokenizer())
    with pytest.raises(PromptTooLongError, match="context window of 512"):
        chat.draw_samples([[HumanMessage("x" * 600)]], SamplingPlan(n=2, temperature=1.0, max_tokens=4), seeds=[1])


def test_bert_as_a_decoder_is_served() -> None:
    model = tiny_family("bert", is_decoder=True)
    check_exact(model, self_check(model, IDS), (5, 40))


# -- the check itself: each fault in a model that has no other ---------------------------------------------------------


def forgets(forward: Callable[..., Any], input_ids: Any, **_: Any) -> Any:
    return forward(input_ids=input_ids)


def ignores_padding(forward: Callable[..., Any], input_ids: Any, **arguments: Any) -> Any:
    return forward(input_ids=input_ids, **{**arguments, "attention_mask": None, "position_ids": None})


def mixes_rows(forward: Callable[..., Any], input_ids: Any, **arguments: Any) -> Any:
    output = forward(input_ids=input_ids, **arguments)
    if input_ids.shape[1] == 1:
        output.logits = output.logits + 0.1 * output.logits.sum(dim=0, keepdim=True) * (len(input_ids) > 1)
    return output


def looks_ahead(forward: Callable[..., Any], input_ids: Any, **arguments: Any) -> Any:
    output = forward(input_ids=input_ids, **arguments)
    output.logits = output.logits + 1e-3 * input_ids[:, -1:, None] * output.logits.roll(1, dims=-1)
    return output


def is_broken(forward: Callable[..., Any], input_ids: Any, **arguments: Any) -> Any:
    output = forward(input_ids=input_ids, **arguments)
    output.logits = output.logits * float("nan")
    return output


def faulty(fault: Callable[..., Any]) -> Any:
    """A tiny Llama with a fault."""
    model = copy.deepcopy(tiny_model())
    kind = type(model)

    def forward(self: Any, input_ids: Any = None, **arguments: Any) -> Any:
        return fault(functools.partial(kind.forward, self), input_ids, **arguments)

    vars(forward)["__signature__"] = inspect.signature(kind.forward)
    model.__class__ = type("Faulty", (kind,), {"forward": forward})
    return model


@pytest.mark.parametrize(
    ("fault", "reason"), [(forgets, "differ"), (looks_ahead, "not causal"), (is_broken, "are not finite")]
)
def test_a_fault_is_refused(fault: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UsageError, match=rf"'llama' \(Faulty\).*{reason}.*choose another model"):
        self_check(faulty(fault), IDS)


@pytest.mark.parametrize(
    ("fault", "answers", "limit"),
    [(ignores_padding, True, "one request at a time"), (mixes_rows, False, "one answer at a time")],
)
def test_a_fault_limits_what_shares_a_batch(fault: Callable[..., Any], answers: bool, limit: str) -> None:
    """Served like this the numbers are exact; together they would belong to other prompts."""
    model = faulty(fault)
    support = self_check(model, IDS)
    assert (support.batches, support.answers) == (False, answers)
    assert str(support).startswith(f"{limit}: log-probabilities differ")
    check_exact(model, support, (5, 40))
    assert self_check(tiny_model(), IDS) == Support()


@pytest.mark.parametrize("hidden", [-1e4, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("fault", [forgets, looks_ahead])
def test_a_fault_is_found_in_a_model_that_hides_tokens(fault: Callable[..., Any], hidden: float) -> None:
    def hides(forward: Callable[..., Any], input_ids: Any, **arguments: Any) -> Any:
        output = forward(input_ids=input_ids, **arguments)
        output.logits[..., 200:240] = hidden
        return output

    def both(forward: Callable[..., Any], input_ids: Any, **arguments: Any) -> Any:
        return hides(functools.partial(fault, forward), input_ids, **arguments)

    assert self_check(faulty(hides), IDS) == Support()
    with pytest.raises(UsageError, match="cannot be served here"):
        self_check(faulty(both), IDS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_is_no_fault(dtype: Any) -> None:
    """Mixtures of experts included: rounding sends single tokens to other experts."""
    assert self_check(tiny_family("exaone_moe").to(dtype), IDS) == Support()


def test_the_limits_of_a_model_are_logged_once_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    prompts: list[list[BaseMessage]] = [[HumanMessage("x" * length)] for length in (3, 40)]
    plan = SamplingPlan(n=2, temperature=1.0, max_tokens=4)
    with caplog.at_level(logging.WARNING):
        chat = TransformersChat.from_model(tiny_family("bart"), byte_tokenizer(), name="mine")
        together = chat.draw_samples(prompts, plan, seeds=[1, 2])
    assert [record.message.split(":")[0] for record in caplog.records] == ["model 'mine' is served with limits"]
    assert not chat.support.batches
    assert str(chat.support).startswith("one request at a time: ")
    alone = [chat.draw_samples([prompt], plan, seeds=[seed])[0] for prompt, seed in zip(prompts, (1, 2), strict=True)]
    assert [texts(sample_set) for sample_set in together] == [texts(sample_set) for sample_set in alone]


@pytest.mark.parametrize(("model_type", "status"), [("bart", "warn"), ("llama", "ok")])
def test_doctor_says_what_a_model_supports(tmp_path: Path, model_type: str, status: str) -> None:
    chat = TransformersChat.from_model(tiny_family(model_type), byte_tokenizer())
    path = make_artifact(chat).save(tmp_path / "artifact.json")
    shown = next(finding for finding in examine(str(path), chat) if finding.check == "local model")
    assert (shown.status, shown.detail) == (status, str(chat.support))


def test_a_stream_of_a_model_that_draws_one_answer_at_a_time_comes_in_one_piece() -> None:
    """Its state is in its layers: a call between two tokens would change the rest of the answer."""
    chat = TransformersChat.from_model(tiny_family("recurrent_gemma"), byte_tokenizer(), max_tokens=8)
    chunks = []
    for chunk in chat.stream("hello"):
        chat.invoke("something else")
        chunks.append(chunk.text)
    assert "".join(chunks) == chat.invoke("hello").text
    plan = SamplingPlan(n=2, temperature=1.0, max_tokens=4, options=("A", "hello"))
    drawn = chat.draw_samples([[HumanMessage("A or hello?")]], plan, seeds=[1])[0]
    assert len(drawn.samples) == 2
    assert drawn.options is not None


# -- rope that changes with the length ---------------------------------------------------------------------------------


def long_rope(model_type: str) -> Any:
    """A window of 32 tokens, with factors that differ much on both sides of it."""
    half = 8  # of a head's 16 numbers
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * half, "long_factor": [9.0] * half}
    rope |= {"original_max_position_embeddings": 32, "short_mscale": 1.0, "long_mscale": 1.3}
    window = {} if model_type == "llama" else {"original_max_position_embeddings": 32}
    return tiny_family(model_type, rope_parameters=rope, initializer_range=0.2, **window)


@pytest.mark.parametrize("model_type", ["llama", "phi3", "phimoe"])
def test_requests_on_both_sides_of_a_rope_window_never_share_a_batch(model_type: str) -> None:
    model = long_rope(model_type)
    requests = [request_of(length) for length in (20, 60, 10, 22)]
    assert answers(model, requests) == [answers(model, [request])[0] for request in requests]
    prompts = [request.prompt for request in requests]
    mixed = Decoder(plain(model), prompts, [Row(1)] * 4, range(4)).logits
    alone = Decoder(plain(model), prompts[:1], [Row(1)], [0]).logits
    assert (mixed[0] - alone[0]).abs().max() > 1e-2, "control: a mixed batch gives the short prompt other numbers"


@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_an_answer_that_crosses_the_rope_window_is_that_of_generate(model_type: str) -> None:
    model = long_rope(model_type)
    for length in (28, 32, 33):
        request = request_of(length, new=12)
        assert answers(model, [request])[0][0] == generated(model, list(request.prompt), 12)


def test_an_option_that_crosses_the_rope_window_is_read_token_by_token() -> None:
    """As the model would have written it: each token after a whole pass over what is before it."""
    model = long_rope("phi3")
    request = request_of(30, [(20, 21, 22, 23, 24)])
    engine = Engine(model, None, frozenset())  # type: ignore[arg-type]
    option = engine.submit([request])[0].continuations[-1]
    text = [*request.prompt, *option.ids]
    with torch.inference_mode():
        passes = [model(torch.tensor([text[:end]]), use_cache=False).logits[0, -1] for end in range(30, 35)]
    expected = [float(logits.log_softmax(-1)[text[30 + place]]) for place, logits in enumerate(passes)]
    assert option.logprobs == pytest.approx(expected, abs=2e-4)


def test_dynamic_rope_ends_at_its_window() -> None:
    """Beyond it the frequencies would depend on the requests before."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    model = tiny_family("llama", rope_parameters=rope, max_position_embeddings=64)
    check_exact(model, self_check(model, IDS), (5, 56))
    chat = TransformersChat.from_model(model, byte_tokenizer(), max_tokens=8)
    with pytest.raises(PromptTooLongError):
        chat.invoke("x" * 60)


# -- adapters ----------------------------------------------------------------------------------------------------------


class Adapter:
    """The shape of ``peft.PeftModelForCausalLM``: its own signature names little and passes everything on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.forward(*args, **options)

    def get_base_model(self) -> Any:
        return self.inner

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, inputs_embeds: Any = None, **options: Any
    ) -> Any:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **options)


class PromptTuned(Adapter):
    """Puts virtual tokens in front of every call, as prompt tuning does."""

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, inputs_embeds: Any = None, **options: Any
    ) -> Any:
        options.pop("position_ids", None)
        embedded = self.inner.get_input_embeddings()(input_ids)
        virtual = torch.ones(len(input_ids), 3, embedded.shape[-1])
        if attention_mask is not None:
            attention_mask = torch.cat([attention_mask.new_ones(len(input_ids), 3), attention_mask], dim=1)
        return self.inner(inputs_embeds=torch.cat([virtual, embedded], dim=1), attention_mask=attention_mask, **options)


def test_an_adapter_on_absolute_positions_is_exact_under_padding() -> None:
    model = Adapter(tiny_family("gpt2"))
    support = self_check(model, IDS)
    assert support == Support()
    check_exact(model, support, (5, 40))


def test_prompt_tuning_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'gpt2' \(PromptTuned\).*differ"):
        self_check(PromptTuned(tiny_family("gpt2")), IDS)
