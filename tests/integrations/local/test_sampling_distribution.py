"""Sampled frequencies against the softmax: exactly on a fine grid of uniforms, and by bounds on real draws."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from integrations._local import decoding
from integrations._local.decoding import Decoder, Row, choose_tokens, plain, uniforms
from tests.integrations.conftest import COMMON

LOGITS = [0.3, -1.2, 2.0, 0.0, 1.1]


@pytest.fixture(params=[1, 10**9], ids=["all sorted", "likeliest"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of finding the nucleus: among the likeliest tokens, and among all if these do not reach its mass."""
    monkeypatch.setattr(decoding, "LIKELIEST", request.param)


def truncated(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Weights in the nucleus; 0 for the others."""
    return weights * decoding._nucleus(weights, top_p)


both_ways = pytest.mark.usefixtures("way")


def reference(logits: list[float], temperature: float, top_p: float) -> list[float]:
    """Tempered nucleus distribution in plain Python: the likeliest tokens until their mass reaches top_p."""
    weights = [math.exp(value / temperature) for value in logits]
    total = sum(weights)
    probabilities = [weight / total for weight in weights]
    nucleus: set[int] = set()
    mass = 0.0
    for token in sorted(range(len(logits)), key=lambda token: -probabilities[token]):
        nucleus.add(token)
        mass += probabilities[token]
        if mass >= top_p:
            break
    return [value / mass if token in nucleus else 0.0 for token, value in enumerate(probabilities)]


def on_grid(logits: list[float], temperature: float, top_p: float, points: int) -> list[float]:
    """Share of each token when the uniforms are the midpoints of a grid."""
    draws = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    tokens = choose_tokens(
        torch.tensor([logits]).expand(points, -1),
        torch.full((points,), temperature),
        torch.full((points,), top_p, dtype=torch.float64),
        draws,
    )
    counts = torch.bincount(tokens, minlength=len(logits))
    return [count / points for count in counts.tolist()]


@pytest.mark.parametrize("temperature", [0.2, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.9, 0.5, 0.01])
def test_grid_of_uniforms_reproduces_the_distribution(temperature: float, top_p: float) -> None:
    """Deterministic: each token owns an interval of length p, which holds p * points midpoints, give or take one."""
    points = 4_000
    shares = on_grid(LOGITS, temperature, top_p, points)
    expected = reference(LOGITS, temperature, top_p)
    assert shares == pytest.approx(expected, abs=1.01 / points)
    for share, value in zip(shares, expected, strict=True):
        assert (share > 0) == (value > 0) or value < 1 / points


@both_ways
def test_top_p_keeps_the_token_that_reaches_it() -> None:
    """p = (.5, .25, .125, ...): mass .75 is reached by two tokens exactly, .76 needs the third."""
    logits = [math.log(0.5 ** (token + 1)) for token in range(8)]
    assert [share > 0 for share in on_grid(logits, 1.0, 0.74, 1000)[:4]] == [True, True, False, False]
    assert [share > 0 for share in on_grid(logits, 1.0, 0.76, 1000)[:4]] == [True, True, True, False]
    assert on_grid(logits, 1.0, 1e-9, 10)[0] == 1.0


@both_ways
@pytest.mark.parametrize("draw", [0.0, 0.5, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(draw: float) -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    for top_p in (torch.tensor([mass], dtype=torch.float64) for mass in (1.0, 0.999)):
        token = choose_tokens(logits, torch.ones(1), top_p, torch.tensor([draw], dtype=torch.float64))
        assert token.item() in {1, 3}


NOISE = torch.randn(600, generator=torch.Generator().manual_seed(3))
SHAPES = {
    "one token": torch.zeros(1),
    "all alike": torch.zeros(512),
    "ties between others": torch.arange(600).mul(7).remainder(3) * 0.001,
    "one possible": torch.full((50,), -math.inf).index_fill(0, torch.tensor([7]), 3.0),
    "one certain": torch.zeros(50).index_fill(0, torch.tensor([49]), 200.0),
    "half": (NOISE * 4).half(),
    "bfloat16": (NOISE * 4).bfloat16(),
    "subnormal": torch.linspace(-104, 0, 600),
}
EDGES = [5e-324, 1e-30, 0.25, 0.5, 0.9, 1 - 1e-7, math.nextafter(1, 0)]


@both_ways
@pytest.mark.parametrize("shape", SHAPES)
def test_the_nucleus_is_the_one_of_exact_arithmetic(shape: str) -> None:
    """The likeliest tokens, of equal ones the first, while the exact mass before a token is below top_p."""
    weights = torch.softmax(SHAPES[shape].float(), dim=-1)
    order = sorted(range(len(weights)), key=lambda token: (-weights[token].item(), token))
    # Where no sum of them rounds: what so many tokens reach exactly.
    reached = (
        [weights[order[:n]].double().sum().item() for n in (97, 331)] if weights.max() < 2**20 * weights.min() else []
    )
    for top_p in (*EDGES, *(mass for mass in reached if mass < 1)):
        expected, mass = torch.zeros_like(weights), Fraction(0)
        for place in order:
            if mass < Fraction(top_p):
                expected[place] = weights[place]
            mass += Fraction(weights[place].item())
        rows = torch.stack([weights, weights.flip(0), weights])
        nucleus = truncated(rows, torch.tensor([top_p, 0.3, top_p], dtype=torch.float64))
        assert torch.equal(nucleus[0], expected), top_p
        assert torch.equal(nucleus[2], expected), top_p


@both_ways
def test_all_is_kept_where_rounding_leaves_less_than_top_p() -> None:
    weights = torch.full((1, 64), 0.9 / 64)
    assert torch.equal(truncated(weights, torch.tensor([0.95], dtype=torch.float64)), weights)


@both_ways
def test_nan_stays_in_its_row() -> None:
    chosen = []
    for middle in (0.0, math.nan):
        logits = torch.zeros((3, 50)).index_fill(0, torch.tensor([1]), middle)
        draws = torch.full((3,), 0.5, dtype=torch.float64)
        chosen.append(choose_tokens(logits, torch.ones(3), torch.full((3,), 0.9, dtype=torch.float64), draws).tolist())
    assert (chosen[0][0], chosen[0][2]) == (chosen[1][0], chosen[1][2])


def decoded(model: Any, rows: list[Row]) -> list[Any]:
    return Decoder(plain(model), [[1, 2, 3]], rows, [0] * len(rows)).run()


def constant_model() -> Any:
    """A model of five tokens whose next-token logits never change."""
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, "vocab_size": 5, "num_hidden_layers": 1})).eval()
    vars(model.lm_head)["forward"] = lambda hidden: torch.tensor(LOGITS).expand(*hidden.shape[:2], -1)
    return model


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9)])
def test_drawn_frequencies_are_within_binomial_bounds(temperature: float, top_p: float) -> None:
    """Counts of 40 000 draws through the whole loop lie in a Hoeffding band around n p.

    P(|count/n - p| >= t) <= 2 exp(-2 n t^2); with n = 40000 and t = .0145 that is 9.9e-8 for each token, 5e-7 for the
    five of a case: the false-alarm rate. The seeds are fixed, so the outcome does not change between runs.
    """
    rows, length, band = 400, 100, 0.0145
    results = decoded(constant_model(), [Row(length, temperature, top_p, draw) for draw in uniforms(11, rows, length)])
    tokens = [token for result in results for token in result.ids]
    assert len(tokens) == rows * length
    for token, expected in enumerate(reference(LOGITS, temperature, top_p)):
        share = tokens.count(token) / len(tokens)
        assert abs(share - expected) < band
        assert (share == 0) == (expected == 0)
    # Negative control: the untempered distribution must fail the same check when T = 0.7.
    if temperature != 1.0:
        wrong = reference(LOGITS, 1.0, 1.0)
        assert any(abs(tokens.count(token) / len(tokens) - value) >= band for token, value in enumerate(wrong))


def test_uniforms_of_a_sample_do_not_depend_on_how_many_there_are() -> None:
    assert torch.equal(uniforms(5, 2, 8), uniforms(5, 10, 8)[:2])
    assert not torch.equal(uniforms(5, 2, 8), uniforms(6, 2, 8))
    assert not torch.equal(uniforms(None, 2, 8), uniforms(None, 2, 8))
    assert uniforms(2**63 - 1, 1, 3).shape == (1, 3)
