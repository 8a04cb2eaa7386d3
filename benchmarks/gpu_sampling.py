"""Ten samples of one prompt on a GPU: random-weight Llama-3.1-8B and Qwen2.5-7B in bfloat16 against their memory bound.

    python -m benchmarks.gpu_sampling            # needs a GPU with about 24 GB
    python -m benchmarks.gpu_sampling --tiny     # the same code on small models, on any machine

A decoding step must at least read every weight once and the cache of every row: bytes / bandwidth is its lower bound.
The bandwidth is measured on the device itself by copying a large tensor. The share reported is bound / measured, which
is also measured tokens/s as a share of the bound's. Weights are random: they cost the same to read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from benchmarks.sampling import Setup, generated, ours

GOAL = 0.70
"""Share of the memory-bandwidth bound to reach at n = 10."""


def configs(*, tiny: bool) -> dict[str, Any]:
    """Configurations of the two models, or small ones of the same kinds."""
    if tiny:
        small: dict[str, Any] = {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
        return {"tiny-llama": LlamaConfig(**small), "tiny-qwen2": Qwen2Config(**small)}
    llama = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        tie_word_embeddings=False,
    )
    qwen = Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
    )
    return {"Llama-3.1-8B": llama, "Qwen2.5-7B": qwen}


def build(config: Any, device: str) -> Any:
    """Return the model with random bfloat16 weights, created on the device."""
    config.eos_token_id, config.pad_token_id = None, 0
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], object], device: str, rounds: int) -> float:
    """Median wall-clock seconds after one run to warm up."""
    times: list[float] = []
    for _ in range(rounds + 1):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def bandwidth(device: str, size: int) -> float:
    """Bytes a second that a copy of ``size`` bytes reads and writes."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(seconds(lambda: target.copy_(source), device, 5) for _ in range(3))


def step_bytes(model: Any, rows: int, context: float) -> float:
    """Return the bytes that a decoding step must read: the cache and the weights.

    An untied embedding does not count: a step looks up only a few of its rows.
    """
    config = model.config
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    embedding = model.get_input_embeddings().weight
    if model.get_output_embeddings().weight is not embedding:
        weights -= embedding.numel() * embedding.element_size()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * head * model.dtype.itemsize
    return float(weights + rows * context * cache)


def measure(name: str, config: Any, device: str, setup: Setup, rounds: int, copy_rate: float) -> dict[str, Any]:
    """Return all figures of one model."""
    model = build(config, device)
    ids = torch.randint(10, config.vocab_size, (setup.prompt,)).tolist()
    own = seconds(lambda: ours(model, ids, setup), device, rounds)
    first = seconds(lambda: ours(model, ids, Setup(setup.prompt, 1, setup.n)), device, rounds)
    step = (own - first) / (setup.new - 1)
    bound = step_bytes(model, setup.n, setup.prompt + setup.new / 2) / copy_rate
    return {
        "model": name,
        "prompt": setup.prompt,
        "new": setup.new,
        "n": setup.n,
        "seconds": own,
        "prefill_seconds": first,
        "step_ms": step * 1e3,
        "bound_ms": bound * 1e3,
        "tokens_per_second": setup.n / step,
        "share_of_bound": bound / step,
        "vs_ten_generate": seconds(lambda: generated(model, ids, setup, at_once=1), device, rounds) / own,
        "vs_num_return_sequences": seconds(lambda: generated(model, ids, setup, at_once=setup.n), device, rounds) / own,
    }


def run(*, tiny: bool, device: str, rounds: int) -> list[dict[str, Any]]:
    """Measure every model and print the figures as JSON lines."""
    setup = Setup(prompt=24, new=6) if tiny else Setup(new=128)
    copy_rate = bandwidth(device, 1 << 20 if tiny else 4 << 30)
    print(json.dumps({"device": device, "copy_bandwidth_GB_s": round(copy_rate / 1e9, 1), "goal": GOAL}))
    figures: list[dict[str, Any]] = []
    for name, config in configs(tiny=tiny).items():
        figures.append(measure(name, config, device, setup, rounds, copy_rate))
        print(json.dumps(figures[-1]))
        if device == "cuda":
            torch.cuda.empty_cache()
    return figures


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU: checks the script, not the speed")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.tiny and not torch.cuda.is_available():
        parser.error("no GPU here; --tiny checks the script on the CPU")
    run(tiny=arguments.tiny, device="cpu" if arguments.tiny else "cuda", rounds=arguments.rounds)


if __name__ == "__main__":
    main()
