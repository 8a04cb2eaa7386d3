"""Benchmarks: ``python -m benchmarks.sampling`` and ``python -m benchmarks.gpu_sampling``."""
