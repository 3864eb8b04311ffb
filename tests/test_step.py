"""One training step: what it computes, and what its dropout depends on."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import OptimizerConfig, TransformerConfig
from transformer_jax.data.batch import Batch
from transformer_jax.models import Transformer
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.step import evaluation_step, init_state, train_step

CONFIG = TransformerConfig(
    vocab_size=13, num_layers=1, d_model=10, d_ff=11, num_heads=3, d_k=5, d_v=7
)
MODEL: Any = Transformer(CONFIG)
OPTIMIZER = make_optimizer(OptimizerConfig(warmup_steps=11), d_model=10, total_steps=40)
STEP = jax.jit(
    functools.partial(train_step, model=MODEL, optimizer=OPTIMIZER, label_smoothing=0.1)
)
EVALUATE = jax.jit(functools.partial(evaluation_step, model=MODEL, label_smoothing=0.1))
# The example of the class Batch and a second row.
BATCH = Batch(
    source=np.array([[7, 8, 2, 9, 2, 0, 0], [9, 3, 4, 5, 2, 0, 0]]),
    source_segments=np.array([[1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 1, 0, 0]]),
    target_input=np.array([[1, 5, 6, 1, 4], [1, 7, 8, 0, 0]]),
    target_output=np.array([[5, 6, 2, 4, 2], [7, 8, 2, 0, 0]]),
    target_segments=np.array([[1, 1, 1, 2, 2], [1, 1, 1, 0, 0]]),
)
BATCH = Batch(*(x.astype(np.int32) for x in BATCH))
PART = Batch(*(x[None] for x in BATCH))  # a batch of one part


@pytest.fixture(scope="module")
def state():
    return init_state(MODEL, OPTIMIZER, jax.random.key(0))


def test_training_on_one_batch_lowers_its_loss(state):
    before = EVALUATE(state.params, BATCH)
    key = jax.random.key(1)
    for _ in range(40):
        state, metrics = STEP(state, PART, key)
    after = EVALUATE(state.params, BATCH)
    assert state.step == 40
    assert after.loss < 0.7 * before.loss
    assert metrics["num_tokens"] == 8
    assert metrics["negative_log_likelihood"] < metrics["loss"]
    assert metrics["gradient_norm"] > 0


def test_dropout_is_a_function_of_key_and_step(state):
    def loss(key: int, step: int) -> float:
        later = dataclasses.replace(state, step=jnp.int32(step))
        return float(STEP(later, PART, jax.random.key(key))[1]["loss"])

    assert loss(1, 0) == loss(1, 0)
    assert len({loss(1, 0), loss(1, 1), loss(2, 0), loss(2, 1)}) == 4


def test_a_step_returns_the_same_update_twice(state):
    first, _ = STEP(state, PART, jax.random.key(1))
    second, _ = STEP(state, PART, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), first, state)
    assert any(jax.tree.leaves(changed.params))


def test_evaluation_sums_the_losses_of_the_models_logits_without_dropout(state):
    sums = EVALUATE(state.params, BATCH)
    logits = MODEL.apply(
        {"params": state.params},
        *map(
            jnp.asarray,
            (
                BATCH.source,
                BATCH.target_input,
                BATCH.source_segments,
                BATCH.target_segments,
            ),
        ),
    )
    scores = np.exp(np.asarray(logits, np.float64))
    log_probs = np.log(scores / scores.sum(axis=-1, keepdims=True))
    likelihood = loss = 0.0
    for b, t in zip(*np.nonzero(BATCH.target_segments), strict=True):
        gold = log_probs[b, t, BATCH.target_output[b, t]]
        likelihood -= gold
        loss -= 0.9 * gold + 0.1 / 12 * (log_probs[b, t].sum() - gold)
    np.testing.assert_allclose(sums.negative_log_likelihood, likelihood, rtol=1e-4)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-4)
    assert sums.num_tokens == 8


def test_a_batch_of_padding_leaves_a_finite_state(state):
    empty = Batch(*(np.zeros_like(x) for x in PART))
    after, metrics = STEP(state, empty, jax.random.key(1))
    assert metrics["loss"] == metrics["num_tokens"] == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.slow
def test_bfloat16_products_compile_for_a_batch_of_any_size(rows):
    # XLA's CPU backend lacks some forms of bfloat16 products; which ones it makes
    # depends on the shapes.
    model = Transformer(dataclasses.replace(CONFIG, matmul_dtype="bfloat16"))
    batch = Batch(*(np.resize(x, (1, rows, x.shape[1])) for x in BATCH))
    initial = init_state(model, OPTIMIZER, jax.random.key(0))
    losses = []
    for one in (MODEL, model):
        step = functools.partial(
            train_step, model=one, optimizer=OPTIMIZER, label_smoothing=0.1
        )
        _, metrics = jax.jit(step)(initial, batch, jax.random.key(1))
        losses.append(float(metrics["loss"]))
    assert losses[1] == pytest.approx(losses[0], rel=2**-6)
    assert losses[1] != losses[0]
