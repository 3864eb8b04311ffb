"""What a run costs: FLOPs by hand, memory beside XLA's own analysis, hours."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    TrainingConfig,
    TransformerConfig,
)
from transformer_jax.cost import (
    model_flops,
    predicted_hours,
    run_flops,
    spent_cost,
    step_flops,
    training_memory,
)
from transformer_jax.data.batch import Batch
from transformer_jax.sharding import make_mesh
from transformer_jax.training.program import TrainingProgram

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
    flops = model_flops(TINY, rows=3, source_length=5, target_length=7)
    assert flops == 3 * 3 * (2 * layers + output)


def test_a_neighborhood_leaves_the_pairs_outside_of_it_out_of_the_encoder():
    restricted = dataclasses.replace(TINY, encoder_neighborhood=3)
    wide = dataclasses.replace(TINY, encoder_neighborhood=23)
    lengths = dict(rows=13, source_length=17, target_length=7)
    whole = model_flops(TINY, **lengths)
    # Two layers, 17 queries, 14 keys fewer, Q K^T and weights V 6 and 10 wide.
    saved = 3 * 13 * 2 * 17 * 14 * 2 * (6 + 10)
    assert model_flops(restricted, **lengths) == whole - saved
    assert model_flops(wide, **lengths) == whole


def test_a_step_has_whole_rows_and_a_run_all_steps():
    config = ExperimentConfig(
        model=TINY,
        data=DataConfig(max_length=7, row_length=7),
        training=TrainingConfig(steps=19, batch_tokens=60),
    )
    # 60 / 7 = 8.6 rows, made up to 16.
    step = model_flops(TINY, rows=16, source_length=7, target_length=7)
    assert step_flops(config) == step
    assert run_flops(config) == 19 * step


def test_hours_are_flops_over_the_rate_that_is_reached():
    # 10^16 FLOP/s of which a quarter is reached: 2.5e15 * 3600 an hour.
    assert predicted_hours(
        27e18, rate=1e15, num_chips=10, utilisation=0.25
    ) == pytest.approx(3.0)


def test_what_was_spent_is_told_with_its_rate():
    step = model_flops(TINY, rows=3, source_length=5, target_length=7)
    cost = spent_cost(TINY, rows=3, row_lengths=(5, 7), steps=11, seconds=90.0)
    assert cost.flops == 11 * step
    assert cost.line() == (
        f"{11 * step:.3g} model FLOPs in 1.5 min, {11 * step / 90 / 1e12:.3g} TFLOP/s"
    )


def test_memory_counts_each_part_by_hand():
    memory = training_memory(TINY, rows=3, source_length=5, target_length=7)
    # Attention 4 * (6 + 6 + 10 + 10), feed-forward 4 * 6 + 6 + 6 * 4 + 4, norms 8.
    layer = 4 * 32, 24 + 6 + 24 + 4, 8
    count = 2 * (layer[0] + layer[1] + 2 * layer[2])
    count += 2 * (2 * layer[0] + layer[1] + 3 * layer[2]) + 11 * 4
    assert memory.parameters == memory.gradients == 4 * count
    assert memory.moments == 8 * count
    # A position: a sub-layer 4 * (12 + 8 + 1), heads 16 * 4, feed-forward 6 * 9; a pair
    # 2 * 13.
    encoder = 15 * (2 * 84 + 2 * 64 + 54) + 3 * 5 * 5 * 26
    decoder = 21 * (3 * 84 + 2 * 64 + 54 + 64) + 15 * 64 + 3 * 7 * (7 + 5) * 26
    assert memory.activations == 2 * (encoder + decoder)
    assert memory.total == 16 * count + 2 * (encoder + decoder)
    remat = dataclasses.replace(TINY, remat=True)
    kept = training_memory(remat, rows=3, source_length=5, target_length=7)
    assert kept.activations == 2 * (15 + 21) * 4 * 4 + decoder


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "length"), [(31, 61), (13, 127)])
def test_memory_is_about_what_xla_reports_on_a_cpu(rows: int, length: int):
    model = TransformerConfig(
        vocab_size=503, num_layers=2, d_model=128, d_ff=256, num_heads=4
    )
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    program = TrainingProgram(ExperimentConfig(model=model), mesh)
    ids = jax.ShapeDtypeStruct((1, rows, length), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    lowered = program.step.lower(program.state, Batch(ids, ids, ids, ids, ids), key)
    analysis = lowered.compile().memory_analysis()
    assert analysis is not None
    needed = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes
    memory = training_memory(
        model, rows=rows, source_length=length, target_length=length
    )
    assert needed == pytest.approx(memory.total, rel=0.1)
