"""Adam with the paper's learning-rate schedule (Section 5.3)."""

from typing import cast

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from transformer_jax.config import OptimizerConfig


def learning_rate(
    step: Int[Array, ""] | int,
    *,
    d_model: int,
    warmup_steps: int = 4000,
    factor: float = 1.0,
    total_steps: int = 0,
    cooldown_steps: int = 0,
) -> Float[Array, ""]:
    """The learning rate of an update (equation 3).

    factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)

    Args:
      step: the update about to be made, from 1.
      d_model: width of the model.
      warmup_steps: updates of linear growth; the peak is at their end.
      factor: 1 in the paper.
      total_steps: of the run; only read with a cooldown.
      cooldown_steps: the last so many updates, at most all, fall linearly to zero (not
        in the paper).

    >>> round(float(learning_rate(4000, d_model=512)), 7)
    0.0006988
    """
    step = jnp.maximum(jnp.asarray(step, jnp.float32), 1.0)
    rate = factor * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup_steps**-1.5)
    cooldown_steps = min(cooldown_steps, total_steps)
    if cooldown_steps:
        left = (total_steps - step + 1) / (cooldown_steps + 1)
        rate = rate * jnp.clip(left, 0.0, 1.0)
    return rate


def peak_learning_rate(config: OptimizerConfig, d_model: int) -> float:
    """The schedule's value at the end of the warm-up."""
    return config.factor * (d_model * config.warmup_steps) ** -0.5


def make_optimizer(
    config: OptimizerConfig, *, d_model: int, total_steps: int
) -> optax.GradientTransformation:
    """Adam (0.9, 0.98, 1e-9 in the paper) at the scheduled rate.

    With `clip_norm`, a gradient of a larger norm is first scaled down to it.
    """

    def schedule(count: Int[Array, ""]) -> Float[Array, ""]:
        # optax counts updates already made; the paper counts from 1.
        return learning_rate(
            count + 1,
            d_model=d_model,
            warmup_steps=config.warmup_steps,
            factor=config.factor,
            total_steps=total_steps,
            cooldown_steps=config.cooldown_steps,
        )

    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    return optax.chain(
        *clip,
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps),
        optax.scale_by_learning_rate(cast(optax.Schedule, schedule)),
    )
