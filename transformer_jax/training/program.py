"""What is compiled of a training run on a mesh: the initial state and the step."""

import functools
from collections.abc import Callable

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Key

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batch import Batch
from transformer_jax.models import Transformer
from transformer_jax.sharding import (
    gather,
    num_row_shards,
    platform_of,
    replicated,
    state_shardings,
)
from transformer_jax.training.loss import Chunking
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.step import TrainState, init_state, train_step


class TrainingProgram:
    """A model, its optimiser, and the two compiled functions that train it.

    The mesh may be of devices that are not there, to compile for them only.
    """

    mesh: Mesh
    model: Transformer  # computing as is best on the devices of the mesh
    state: TrainState  # shapes and shardings
    init: Callable[[Key[Array, ""]], TrainState]  # the state is born sharded
    # (state, batch, key) -> state, metrics; the state given is consumed.
    step: Callable[
        [TrainState, Batch, Key[Array, ""]], tuple[TrainState, dict[str, Array]]
    ]

    def __init__(self, config: ExperimentConfig, mesh: Mesh) -> None:
        self.mesh = mesh
        self.model = Transformer(config.model.on_platform(platform_of(mesh)))
        optimizer = make_optimizer(
            config.optimizer,
            d_model=config.model.d_model,
            total_steps=config.training.steps,
        )
        init = functools.partial(init_state, self.model, optimizer)
        shapes = jax.eval_shape(init, jax.random.key(0))
        shardings = state_shardings(shapes, mesh)
        self.state = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            shapes,
            shardings,
        )
        self.init = jax.jit(init, out_shardings=shardings)
        self.step = jax.jit(
            functools.partial(
                train_step,
                model=self.model,
                optimizer=optimizer,
                label_smoothing=config.training.label_smoothing,
                chunking=chunking_on(mesh),
                gather=functools.partial(gather, mesh=mesh),
            ),
            donate_argnums=0,
            out_shardings=(shardings, replicated(mesh)),
        )


def chunking_on(mesh: Mesh) -> Chunking:
    """The loss's chunks for the devices of a mesh."""
    is_cpu = platform_of(mesh) == "cpu"
    return Chunking(num_row_shards(mesh), positions=512 if is_cpu else 4096)
