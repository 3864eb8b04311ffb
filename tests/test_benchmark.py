"""Tests of the benchmark: that it measures, and what it makes of it."""

import dataclasses

import pytest

from transformer_jax import benchmark
from transformer_jax.config import ExperimentConfig, TransformerConfig
from transformer_jax.cost import model_flops

TINY = TransformerConfig(
    vocab_size=11, num_layers=2, d_model=4, d_ff=6, num_heads=2, d_k=3, d_v=5
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matmul_rate_is_positive(dtype: str):
    assert benchmark.matmul_rate(dtype, size=64) > 0


@pytest.mark.slow
def test_benchmark_reports_the_best_rates_and_the_share(
    monkeypatch: pytest.MonkeyPatch,
):
    rates = {"float32": iter([2e9, 3e9]), "bfloat16": iter([5e9, 4e9])}
    monkeypatch.setattr(benchmark, "matmul_rate", lambda dtype: next(rates[dtype]))
    report = benchmark.benchmark_training(
        ExperimentConfig(model=TINY),
        rows=3,
        length=5,
        steps=2,
    )
    assert all(value > 0 for value in dataclasses.asdict(report).values())
    assert report.float32_matmul_rate == 3e9
    assert report.bfloat16_matmul_rate == 5e9
    assert report.model_flops == model_flops(
        TINY, rows=3, source_length=5, target_length=5
    )
    assert report.target_tokens_per_s == pytest.approx(15 / report.step_time_s)
    assert report.share_of_float32_rate == pytest.approx(
        report.model_flops / report.step_time_s / 3e9
    )
    assert "share of float32 rate" in report.lines()
