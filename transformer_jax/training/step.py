"""One pure training step, and one pure evaluation step."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Int, Key

from transformer_jax.data.batch import Batch
from transformer_jax.models import Transformer, precision_of
from transformer_jax.training.loss import (
    ONE_CPU,
    Chunking,
    LossSums,
    smoothed_cross_entropy,
)

Params = Any  # a tree of float32 arrays


@struct.dataclass
class TrainState:
    """All that training changes."""

    step: Array  # int32 [], batches seen
    skipped_updates: Array  # int32 [], batches that changed nothing: not finite
    params: Params
    optimizer_state: optax.OptState


def init_state(
    model: Transformer, optimizer: optax.GradientTransformation, key: Key[Array, ""]
) -> TrainState:
    """A fresh state; jit it with output shardings to have it born sharded."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = model.init(key, tokens, tokens)["params"]
    return TrainState(jnp.int32(0), jnp.int32(0), params, optimizer.init(params))


def batch_loss(
    model: Transformer,
    params: Params,
    batch: Batch,
    *,
    label_smoothing: float,
    chunking: Chunking = ONE_CPU,
    dropout_key: Key[Array, ""] | None = None,
    first_row: Int[Array, ""] | int = 0,
) -> LossSums:
    """The summed losses of rows of a batch, with dropout where a key is given.

    `first_row` is the number of the first of them in the global batch.
    """

    def forward(model: Transformer) -> tuple[Array, Array]:
        dropout: Any = {"deterministic": dropout_key is None, "first_row": first_row}
        encoded = model.encode(batch.source, batch.source_segments, **dropout)
        hidden = model.decode(
            batch.target_input,
            encoded,
            batch.target_segments,
            batch.source_segments,
            **dropout,
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
        precision=precision_of(model.config),
        chunking=chunking,
    )


def train_step(
    state: TrainState,
    batch: Batch,
    key: Key[Array, ""],
    *,
    model: Transformer,
    optimizer: optax.GradientTransformation,
    label_smoothing: float,
    chunking: Chunking = ONE_CPU,
    gather: Callable[[Params], Params] = lambda params: params,
) -> tuple[TrainState, dict[str, Array]]:
    """The state after one update, and what to log of it.

    The batch comes in parts, arrays [parts, rows, length], whose gradients are computed
    one after another and added: the update is that of one batch [parts * rows, length].
    The dropout of a row is a function of (key, step, row) alone, so that a resumed run
    repeats it, on any number of devices and parts.

    Where the loss or the gradient is infinite or not a number, parameters and optimiser
    stay as they were, and the update counts as skipped.

    Args:
      state: consumed where it is donated.
      batch: of this step.
      key: of the run's dropout.
      model: what to train.
      optimizer: as the state's.
      label_smoothing: epsilon of the loss.
      chunking: of the loss.
      gather: brings parameters that are split over devices together, for a part.

    Returns:
      The new state; `loss` (smoothed, nats a target token), `negative_log_likelihood`
      (unsmoothed, the same unit), `num_tokens` (real target tokens), `gradient_norm`
      and `skipped_updates` (of the run so far).
    """
    dropout_key = jax.random.fold_in(key, state.step)
    num_parts, num_rows = batch.source.shape[:2]
    num_tokens = jnp.maximum(jnp.sum(batch.target_segments > 0), 1).astype(jnp.float32)

    def loss_of_part(
        params: Params, part: Batch, number: Array
    ) -> tuple[Array, LossSums]:
        sums = batch_loss(
            model,
            gather(params),
            part,
            label_smoothing=label_smoothing,
            chunking=chunking,
            dropout_key=dropout_key,
            first_row=number * num_rows,
        )
        return sums.loss / num_tokens, sums

    def add_part(
        total: tuple[Params, LossSums], x: tuple[Batch, Array]
    ) -> tuple[tuple[Params, LossSums], None]:
        gradients, sums = jax.grad(loss_of_part, has_aux=True)(state.params, *x)
        return jax.tree.map(jnp.add, total, (gradients, sums)), None

    zeros = jax.tree.map(jnp.zeros_like, state.params), LossSums(*[jnp.float32(0)] * 3)
    (gradients, sums), _ = jax.lax.scan(add_part, zeros, (batch, jnp.arange(num_parts)))
    loss, gradient_norm = sums.loss / num_tokens, optax.tree.norm(gradients)
    is_finite = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    updates, optimizer_state = optimizer.update(
        gradients, state.optimizer_state, state.params
    )
    changed = optax.apply_updates(state.params, updates), optimizer_state
    params, optimizer_state = jax.tree.map(
        lambda new, old: jnp.where(is_finite, new, old),
        changed,
        (state.params, state.optimizer_state),
    )
    skipped_updates = state.skipped_updates + ~is_finite
    metrics = {
        "loss": loss,
        "negative_log_likelihood": sums.negative_log_likelihood / num_tokens,
        "num_tokens": sums.num_tokens,
        "gradient_norm": gradient_norm,
        "skipped_updates": skipped_updates,
    }
    state = TrainState(state.step + 1, skipped_updates, params, optimizer_state)
    return state, metrics


def evaluation_step(
    params: Params,
    batch: Batch,
    *,
    model: Transformer,
    label_smoothing: float,
    chunking: Chunking = ONE_CPU,
) -> LossSums:
    """The summed losses of a batch [rows, length], without dropout."""
    return batch_loss(
        model, params, batch, label_smoothing=label_smoothing, chunking=chunking
    )
