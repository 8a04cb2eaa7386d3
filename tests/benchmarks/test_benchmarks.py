"""The benchmarks run: tests check their arithmetic, not their speed."""

from __future__ import annotations

import sys

import pytest
import torch

from benchmarks import gpu_sampling, sampling
from tests.integrations.conftest import tiny_model


def test_the_gpu_benchmark_runs_on_small_models(capsys: pytest.CaptureFixture[str]) -> None:
    figures = gpu_sampling.run(tiny=True, device="cpu", rounds=1)
    assert [row["model"] for row in figures] == ["tiny-llama", "tiny-qwen2"]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_figures_of_fixed_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tokens of ten samples in .7 s, the first in .2 s: .1 s a step, where reading 4 MB takes .04 s."""
    timings = iter([0.7, 0.2, 1.4, 0.35])  # ours, ours for one token, ten calls of generate, one call of generate
    monkeypatch.setattr(gpu_sampling, "seconds", lambda work, device, rounds: next(timings))
    monkeypatch.setattr(gpu_sampling, "step_bytes", lambda model, rows, context: 4e6)
    name, config = next(iter(gpu_sampling.configs(tiny=True).items()))
    setup = sampling.Setup(prompt=24, new=6, n=10)
    row = gpu_sampling.measure(name, config, "cpu", setup, rounds=1, copy_rate=1e8)
    figures = ("step_ms", "bound_ms", "tokens_per_second", "share_of_bound", "vs_ten_generate")
    assert [row[figure] for figure in figures] == pytest.approx([100, 40, 100, 0.4, 2])
    assert row["vs_num_return_sequences"] == pytest.approx(0.5)


def test_the_command_line_of_the_gpu_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(gpu_sampling, "run", lambda **settings: calls.append(settings))
    monkeypatch.setattr(sys, "argv", ["gpu_sampling", "--tiny", "--rounds", "1"])
    gpu_sampling.main()
    assert calls == [{"tiny": True, "device": "cpu", "rounds": 1}]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_sampling"])
    with pytest.raises(SystemExit):
        gpu_sampling.main()
    assert len(calls) == 1


def test_the_full_configurations_have_their_published_size() -> None:
    """8.03 and 7.62 billion parameters, counted without allocating them."""
    sizes = []
    for config in gpu_sampling.configs(tiny=False).values():
        model = gpu_sampling.build(config, "meta")
        sizes.append(sum(parameter.numel() for parameter in model.parameters()) / 1e9)
    assert sizes == pytest.approx([8.03, 7.62], abs=0.01)


def test_bytes_of_a_step() -> None:
    """Weights in float32 without the untied input embedding, and 2 layers x 2 x 2 heads x 16 x 4 bytes a position."""
    model = tiny_model()
    parameters = sum(parameter.numel() for parameter in model.parameters()) - 271 * 64
    assert gpu_sampling.step_bytes(model, rows=3, context=10) == 4 * parameters + 3 * 10 * 512


def test_contestants_draw_as_much_as_each_other() -> None:
    model, setup = tiny_model(), sampling.Setup(prompt=6, new=4, n=3)
    ids = [1, 2, 3, 4, 5, 6]
    contestants = (
        sampling.ours(model, ids, setup),
        sampling.generated(model, ids, setup, at_once=1),
        sampling.generated(model, ids, setup, at_once=3),
    )
    for answers in contestants:
        assert [len(answer) for answer in answers] == [4, 4, 4]
    with_primary = sampling.ours(model, ids, setup, primary=True)
    assert with_primary[:3] == sampling.ours(model, ids, setup)
    assert sampling.read_options(model, ids) == pytest.approx(sampling.option_forwards(model, ids), abs=1e-4)


def test_the_cpu_model_has_47_million_weights() -> None:
    with torch.device("meta"):
        model = sampling.model_47m()
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(47, abs=0.5)
