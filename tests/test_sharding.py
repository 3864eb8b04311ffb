"""The table of parameter axes against axis sizes, and the mesh's errors."""

import itertools
import re
from typing import Any

import jax
import pytest

from transformer_jax.config import MeshConfig, OptimizerConfig, TransformerConfig
from transformer_jax.errors import UserError
from transformer_jax.models import Transformer
from transformer_jax.sharding import (
    MESH_AXES,
    PARAMETER_AXES,
    batch_sharding,
    make_mesh,
    parameter_axes,
    replicated,
    row_sharding,
    state_shardings,
)
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.step import init_state

# Each axis of a parameter has a size of its own, which tells what it is.
D_MODEL, D_K, D_V, HEADS, D_FF, VOCAB, LENGTH = 10, 3, 5, 7, 11, 13, 17
AXIS_OF_SIZE = {
    D_MODEL: "fsdp",
    HEADS: "tensor",
    D_FF: "tensor",
    VOCAB: "tensor",
    D_K: None,
    D_V: None,
    LENGTH: None,
}


def initial_state(
    norm: Any = "post", positions: Any = "sinusoidal", share_embeddings: bool = True
):
    config = TransformerConfig(
        vocab_size=VOCAB,
        num_layers=2,
        d_model=D_MODEL,
        d_ff=D_FF,
        num_heads=HEADS,
        d_k=D_K,
        d_v=D_V,
        max_length=LENGTH,
        norm=norm,
        positions=positions,
        share_embeddings=share_embeddings,
    )
    optimizer = make_optimizer(OptimizerConfig(), d_model=D_MODEL, total_steps=2)
    return jax.eval_shape(
        lambda key: init_state(Transformer(config), optimizer, key), jax.random.key(0)
    )


def leaves(params):
    for path, leaf in jax.tree.leaves_with_path(params):
        yield "/".join(str(key.key) for key in path), leaf


@pytest.mark.parametrize(
    ("norm", "positions", "share_embeddings"),
    list(itertools.product(("post", "pre"), ("sinusoidal", "learned"), (True, False))),
)
def test_each_parameter_matches_one_row_with_its_axes(
    norm, positions, share_embeddings
):
    params = initial_state(norm, positions, share_embeddings).params
    for path, leaf in leaves(params):
        matches = [
            pattern
            for pattern, _ in PARAMETER_AXES
            if re.search(rf"(^|[/_]){pattern}$", path)
        ]
        assert len(matches) == 1, path
        expected = tuple(AXIS_OF_SIZE[size] for size in leaf.shape)
        if leaf.shape == (D_MODEL,):  # biases and gains are small: on each device
            expected = (None,)
        assert tuple(parameter_axes(path)) == expected, path


def test_no_row_of_the_table_is_idle():
    paths = [
        path
        for share in (True, False)
        for path, _ in leaves(initial_state("pre", "learned", share).params)
    ]
    for pattern, _ in PARAMETER_AXES:
        assert any(re.search(rf"(^|[/_]){pattern}$", path) for path in paths), pattern


@pytest.mark.parametrize("path", ["decoder_0/attention/w_gate", "embedding/w1", ""])
def test_an_unknown_parameter_is_an_error_that_names_it(path):
    with pytest.raises(LookupError, match=re.escape(path) + "$"):
        parameter_axes(path)


def test_optimizer_state_follows_the_parameters_and_scalars_are_everywhere():
    mesh = make_mesh(MeshConfig())
    state = initial_state("pre", "learned", False)
    shardings = state_shardings(state, mesh)
    assert jax.tree.structure(shardings) == jax.tree.structure(state)
    adam = shardings.optimizer_state[0]
    assert adam.mu == adam.nu == shardings.params
    assert shardings.step == adam.count == replicated(mesh)
    for path, sharding in leaves(shardings.params):
        assert sharding.spec == parameter_axes(path)


def test_the_mesh_takes_all_devices():
    mesh = make_mesh(MeshConfig())
    assert mesh.axis_names == MESH_AXES
    assert mesh.devices.shape == (jax.device_count(), 1, 1)
    mesh = make_mesh(MeshConfig(data=1, fsdp=1, tensor=-1))
    assert mesh.devices.shape == (1, 1, jax.device_count())
    rows = ("data", "fsdp")
    assert row_sharding(mesh).spec == jax.sharding.PartitionSpec(rows)
    assert batch_sharding(mesh).spec == jax.sharding.PartitionSpec(None, rows)


def test_the_mesh_takes_the_devices_it_is_given():
    devices = jax.devices()[2:8]
    mesh = make_mesh(MeshConfig(fsdp=3), devices)
    assert mesh.devices.shape == (2, 3, 1)
    assert set(mesh.devices.flat) == set(devices)


@pytest.mark.parametrize(
    ("data", "fsdp", "tensor"),
    [(-1, -1, 1), (-1, 997, 1), (997, 1, 1), (3, -1, 1)],
)
def test_sizes_that_do_not_multiply_to_the_devices_are_the_users_error(
    data, fsdp, tensor
):
    with pytest.raises(UserError, match=rf"mesh\.data={data}, mesh\.fsdp={fsdp}"):
        make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
