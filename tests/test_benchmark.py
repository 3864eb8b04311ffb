"""Tests of the benchmark: its FLOP count, and that it measures."""

import dataclasses

import pytest

from transformer_jax import benchmark
from transformer_jax.config import ExperimentConfig, TransformerConfig

TINY = TransformerConfig(
    vocab_size=11, num_layers=2, d_model=4, d_ff=6, num_heads=2, d_k=3, d_v=5
)


def test_model_flops_is_three_times_the_forward_products_counted_by_hand():
    # S=5, T=7; Q and K are 6 wide over the heads, V 10.
    encoder = [
        2 * 5 * 4 * 6,  # W^Q
        2 * 5 * 4 * 6,  # W^K
        2 * 5 * 4 * 10,  # W^V
        2 * 5 * 10 * 4,  # W^O
        2 * 5 * 5 * 6,  # Q K^T
        2 * 5 * 5 * 10,  # weights V
        2 * 5 * 4 * 6 + 2 * 5 * 6 * 4,  # feed-forward
    ]
    decoder_self = [
        2 * 7 * 4 * 6,
        2 * 7 * 4 * 6,
        2 * 7 * 4 * 10,
        2 * 7 * 10 * 4,
        2 * 7 * 7 * 6,
        2 * 7 * 7 * 10,
    ]
    decoder_cross = [
        2 * 7 * 4 * 6,  # W^Q, of the target
        2 * 5 * 4 * 6,  # W^K, of the source
        2 * 5 * 4 * 10,  # W^V, of the source
        2 * 7 * 10 * 4,  # W^O, of the target
        2 * 7 * 5 * 6,
        2 * 7 * 5 * 10,
    ]
    decoder_feed_forward = 2 * 7 * 4 * 6 + 2 * 7 * 6 * 4
    layers = sum(encoder + decoder_self + decoder_cross) + decoder_feed_forward
    output = 2 * 7 * 4 * 11
    flops = benchmark.model_flops(TINY, rows=3, source_length=5, target_length=7)
    assert flops == 3 * 3 * (2 * layers + output)


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
    assert report.model_flops == benchmark.model_flops(
        TINY, rows=3, source_length=5, target_length=5
    )
    assert report.target_tokens_per_s == pytest.approx(15 / report.step_time_s)
    assert report.share_of_float32_rate == pytest.approx(
        report.model_flops / report.step_time_s / 3e9
    )
    assert "share of float32 rate" in report.lines()
