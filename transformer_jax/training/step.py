"""One pure training step, and one pure evaluation step."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Key

from transformer_jax.data.batch import Batch
from transformer_jax.models import Precision, Transformer
from transformer_jax.training.loss import LossSums, smoothed_cross_entropy

Params = Any  # a tree of float32 arrays


@struct.dataclass
class TrainState:
    """All that training changes."""

    step: Array  # int32 [], updates made
    params: Params
    optimizer_state: optax.OptState


def init_state(
    model: Transformer, optimizer: optax.GradientTransformation, key: Key[Array, ""]
) -> TrainState:
    """A fresh state; jit it with output shardings to have it born sharded."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = model.init(key, tokens, tokens)["params"]
    return TrainState(jnp.int32(0), params, optimizer.init(params))


def batch_loss(
    model: Transformer,
    params: Params,
    batch: Batch,
    *,
    label_smoothing: float,
    dropout_key: Key[Array, ""] | None = None,
) -> LossSums:
    """The summed losses of a batch, with dropout where a key is given."""

    def forward(model: Transformer) -> tuple[Array, Array]:
        deterministic = dropout_key is None
        encoded = model.encode(
            batch.source, batch.source_segments, deterministic=deterministic
        )
        hidden = model.decode(
            batch.target_input,
            encoded,
            batch.target_segments,
            batch.source_segments,
            deterministic=deterministic,
        )
        return hidden, model.output_matrix()

    hidden, output_matrix = cast(
        tuple[Array, Array],
        model.apply(
            {"params": params},
            method=forward,
            rngs={} if dropout_key is None else {"dropout": dropout_key},
        ),
    )
    return smoothed_cross_entropy(
        hidden,
        output_matrix,
        batch.target_output,
        batch.target_segments > 0,
        label_smoothing=label_smoothing,
        precision=Precision(model.config.dtype, model.config.matmul_dtype),
    )


def train_step(
    state: TrainState,
    batch: Batch,
    key: Key[Array, ""],
    *,
    model: Transformer,
    optimizer: optax.GradientTransformation,
    label_smoothing: float,
) -> tuple[TrainState, dict[str, Array]]:
    """The state after one update, and what to log of it.

    The dropout of a step is a function of (key, step) alone, so that a resumed run
    repeats it.

    Returns:
      The new state; `loss` (smoothed, nats a target token), `negative_log_likelihood`
      (unsmoothed, the same unit), `num_tokens` (real target tokens) and
      `gradient_norm`.
    """
    dropout_key = jax.random.fold_in(key, state.step)

    def mean_loss(params: Params) -> tuple[Array, LossSums]:
        sums = batch_loss(
            model,
            params,
            batch,
            label_smoothing=label_smoothing,
            dropout_key=dropout_key,
        )
        return sums.loss / jnp.maximum(sums.num_tokens, 1.0), sums

    (loss, sums), gradients = jax.value_and_grad(mean_loss, has_aux=True)(state.params)
    updates, optimizer_state = optimizer.update(gradients, state.optimizer_state)
    params = optax.apply_updates(state.params, updates)
    metrics = {
        "loss": loss,
        "negative_log_likelihood": sums.negative_log_likelihood
        / jnp.maximum(sums.num_tokens, 1.0),
        "num_tokens": sums.num_tokens,
        "gradient_norm": optax.tree.norm(gradients),
    }
    return TrainState(state.step + 1, params, optimizer_state), metrics


def evaluation_step(
    params: Params, batch: Batch, *, model: Transformer, label_smoothing: float
) -> LossSums:
    """The summed losses of a batch, without dropout."""
    return batch_loss(model, params, batch, label_smoothing=label_smoothing)
