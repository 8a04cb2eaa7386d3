"""Ten samples of one prompt: read once, against plain calls of ``generate``, on a random 47M Llama on the CPU.

    python -m benchmarks.sampling

Rounds are interleaved, so that a busy machine slows all contestants alike; ratios are taken within a round, and the
table shows their medians. The model has random weights: the arithmetic is the same, and no token ends an answer early.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from integrations._local.decoding import Decoder, Row, plain, uniforms

TEMPERATURE = 0.7
TOP_P = 0.9


@dataclass(frozen=True)
class Setup:
    """Size of the task."""

    prompt: int = 500
    """Tokens of the prompt."""
    new: int = 32
    """New tokens of each sample."""
    n: int = 10
    """Samples."""


def model_47m() -> Any:
    """A Llama with 47 million random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=9,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=2048,
        eos_token_id=None,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def ours(model: Any, ids: list[int], setup: Setup, *, primary: bool = False) -> list[list[int]]:
    """Return samples after reading the prompt once; `primary` adds the greedy answer as another row."""
    rows = [Row(setup.new, TEMPERATURE, TOP_P, draws) for draws in uniforms(0, setup.n, setup.new)]
    rows += [Row(setup.new)] * primary
    return [result.ids for result in Decoder(plain(model), [ids], rows, [0] * len(rows)).run()]


def generated(model: Any, ids: list[int], setup: Setup, *, at_once: int) -> list[list[int]]:
    """Return samples by ``generate``, ``at_once`` in each call."""
    tokens = torch.tensor([ids])
    samples: list[list[int]] = []
    for _ in range(setup.n // at_once):
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            top_k=0,
            max_new_tokens=setup.new,
            min_new_tokens=setup.new,
            num_return_sequences=at_once,
            pad_token_id=0,
        )
        samples += output[:, len(ids) :].tolist()
    return samples


def read_options(model: Any, ids: list[int]) -> list[float]:
    """Return the log-likelihoods of four one-token options from one forward pass."""
    options = [Row(1, given=(option,)) for option in (1, 2, 3, 4)]
    return [result.logprobs[0] for result in Decoder(plain(model), [ids], options, [0] * 4).run()]


def option_forwards(model: Any, ids: list[int]) -> list[float]:
    """Return the same log-likelihoods by one forward pass for each option."""
    loglikelihoods: list[float] = []
    for option in (1, 2, 3, 4):
        with torch.inference_mode():
            logits = model(torch.tensor([[*ids, option]]), use_cache=False).logits
            loglikelihoods.append(float(torch.log_softmax(logits[0, -2].float(), dim=-1)[option]))
    return loglikelihoods


def measure(contestants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; every round runs all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant()
    for _ in range(rounds):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def run(rounds: int, setup: Setup) -> dict[str, float]:
    """Measure, print the table, and return the ratios."""
    model = model_47m()
    ids = torch.randint(10, 32000, (setup.prompt,)).tolist()
    separate_calls, many, one_pass, four = (
        "ten generate calls",
        "num_return_sequences",
        "options: one forward",
        "options: 4 forwards",
    )
    own, with_primary = "ours", "ours + greedy primary"
    seconds = measure(
        {
            separate_calls: lambda: generated(model, ids, setup, at_once=1),
            many: lambda: generated(model, ids, setup, at_once=setup.n),
            own: lambda: ours(model, ids, setup),
            with_primary: lambda: ours(model, ids, setup, primary=True),
            four: lambda: option_forwards(model, ids),
            one_pass: lambda: read_options(model, ids),
        },
        rounds,
    )
    reference = {separate_calls: own, many: own, with_primary: own, four: one_pass}
    ratios = {name: ratio(seconds[name], seconds[fast]) for name, fast in reference.items()}
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{weights / 1e6:.0f}M random Llama, float32, {torch.get_num_threads()} threads, {rounds} rounds: {setup}")
    for name, values in seconds.items():
        against = f"{ratios[name]:5.2f} x {reference[name]}" if name in ratios else ""
        print(f"{name:24} {statistics.median(values):7.3f} s (best {min(values):7.3f})  {against}")
    return ratios


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run(arguments.rounds, Setup())


if __name__ == "__main__":
    main()
