"""The learning rate by its formula, and Adam by hand in numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import OptimizerConfig
from transformer_jax.training.optimizer import (
    learning_rate,
    make_optimizer,
    peak_learning_rate,
)


def test_the_rate_grows_linearly_and_falls_with_the_square_root():
    peak = (512 * 4000) ** -0.5

    def rate(step: int) -> float:
        return float(learning_rate(step, d_model=512))

    np.testing.assert_allclose(rate(1), peak / 4000, rtol=1e-5)
    np.testing.assert_allclose(rate(1000), peak / 4, rtol=1e-5)
    np.testing.assert_allclose(rate(4000), peak, rtol=1e-5)
    np.testing.assert_allclose(rate(16_000), peak / 2, rtol=1e-5)
    np.testing.assert_allclose(
        peak_learning_rate(OptimizerConfig(), 512), peak, rtol=1e-5
    )


def test_the_factor_scales_rate_and_peak():
    config = OptimizerConfig(factor=2.0, warmup_steps=100)
    rate = learning_rate(100, d_model=64, warmup_steps=100, factor=2.0)
    np.testing.assert_allclose(rate, 2.0 / 80.0, rtol=1e-5)
    np.testing.assert_allclose(peak_learning_rate(config, 64), 2.0 / 80.0, rtol=1e-5)


def test_a_cooldown_falls_linearly_to_about_zero_in_the_last_steps():
    def ratio(step: int) -> float:
        cooled = learning_rate(
            step, d_model=64, warmup_steps=10, total_steps=100, cooldown_steps=20
        )
        return float(cooled / learning_rate(step, d_model=64, warmup_steps=10))

    assert ratio(50) == ratio(80) == 1.0
    np.testing.assert_allclose(ratio(81), 20 / 21, rtol=1e-5)
    np.testing.assert_allclose(ratio(90), 11 / 21, rtol=1e-5)
    np.testing.assert_allclose(ratio(100), 1 / 21, rtol=1e-5)
    assert ratio(101) == ratio(1000) == 0.0


@pytest.mark.parametrize("cooldown_steps", [0, 2])
def test_three_updates_are_adams_by_hand(cooldown_steps):
    config = OptimizerConfig(
        factor=0.5, warmup_steps=2, cooldown_steps=cooldown_steps, eps=1e-3
    )
    optimizer: Any = make_optimizer(config, d_model=16, total_steps=3)
    gradients = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    params = {"w": jnp.zeros((5, 7))}
    state = optimizer.init(params)
    first = second = np.zeros((5, 7))
    for step, gradient in enumerate(gradients, start=1):
        updates, state = optimizer.update({"w": jnp.asarray(gradient)}, state)
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient.astype(np.float64) ** 2
        rate = 0.5 / 4 * min(step**-0.5, step * 2**-1.5)
        if cooldown_steps:
            rate *= (1.0, 2 / 3, 1 / 3)[step - 1]
        step_size = first / (1 - 0.9**step)
        root = np.sqrt(second / (1 - 0.98**step))
        expected = -rate * step_size / (root + 1e-3)
        np.testing.assert_allclose(updates["w"], expected, rtol=1e-4, atol=1e-7)


def test_the_first_update_of_the_paper_is_the_sign_times_the_rate():
    optimizer: Any = make_optimizer(OptimizerConfig(), d_model=512, total_steps=100_000)
    gradient = {"w": jnp.array([3.0, -0.5, 0.01])}
    state = optimizer.init(jax.tree.map(jnp.zeros_like, gradient))
    updates, _ = optimizer.update(gradient, state)
    rate = 512**-0.5 * 4000**-1.5
    np.testing.assert_allclose(updates["w"], [-rate, rate, -rate], rtol=1e-4)
