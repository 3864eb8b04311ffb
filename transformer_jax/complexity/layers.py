"""The layers of Table 1: what the paper says of each, its graph, and its function.

The two kinds of self-attention are the model's own functions. The recurrent and the
convolutional layer are here only to be measured beside them.

Axes: n positions of one sequence, d its width, heads of 64 as in base and big.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.complexity import graphs
from transformer_jax.models.attention import (
    MultiHeadAttention,
    restricted_attention,
    scaled_dot_product_attention,
)
from transformer_jax.models.neighborhoods import neighborhoods

KERNEL_WIDTH = 3  # k
NEIGHBORHOOD = 32  # r
_HEAD_WIDTH = 64


@dataclasses.dataclass(frozen=True)
class PathLength:
    """A layer's maximum path length: Table 1's formula and the graph to count it in."""

    formula: str
    of_length: Callable[[int], float]  # the formula, without its O
    readers: graphs.Readers
    note: str = ""
    is_causal: bool = False  # nothing reads what comes after it


@dataclasses.dataclass(frozen=True)
class Layer:
    """A row of Table 1."""

    name: str
    complexity: str  # per layer
    operations: Callable[[int, int], float]  # the same, of (n, d), without its O
    sequential: str
    paths: tuple[PathLength, ...]
    # (n, d) -> a function of arrays, and the arrays
    build: Callable[[int, int], tuple[Callable[..., Array], tuple[Any, ...]]]


def recurrent(
    x: Float[Array, "n d"], w_input: Float[Array, "d d"], w_state: Float[Array, "d d"]
) -> Float[Array, "n d"]:
    """h_t = tanh(x_t W + h_(t-1) U), from h_0 = 0 (Elman 1990).

    The products of the inputs are one; those of the states follow one another.
    """

    def cell(state: Array, projected: Array) -> tuple[Array, Array]:
        state = jnp.tanh(projected + state @ w_state)
        return state, state

    return jax.lax.scan(cell, jnp.zeros(x.shape[1], x.dtype), x @ w_input)[1]


def convolution(
    x: Float[Array, "n d"], w: Float[Array, "k d d"]
) -> Float[Array, "n d"]:
    """y_t = x_(t-1) W_1 + x_t W_2 + x_(t+1) W_3 of a kernel of width 3; 0 outside."""
    return jax.lax.conv_general_dilated(
        x[None], w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )[0]


def _normal(*shape: int, scale: float = 1.0) -> Array:
    key = jax.random.fold_in(jax.random.key(0), math.prod(shape))
    return scale * jax.random.normal(key, shape)


def _build_recurrent(n: int, d: int) -> Any:
    scale = d**-0.5
    return recurrent, (
        _normal(n, d),
        _normal(d, d, scale=scale),
        _normal(d, d, scale=scale),
    )


def _build_convolution(n: int, d: int) -> Any:
    kernel = _normal(KERNEL_WIDTH, d, d, scale=(KERNEL_WIDTH * d) ** -0.5)
    return convolution, (_normal(n, d), kernel)


def _build_attention(n: int, d: int) -> Any:
    x = _normal(1, n, d // _HEAD_WIDTH, _HEAD_WIDTH)
    return lambda *x: scaled_dot_product_attention(*x)[0], (x, x, x)


def _build_restricted(n: int, d: int) -> Any:
    x = _normal(1, n, d // _HEAD_WIDTH, _HEAD_WIDTH)

    def function(query: Array, key: Array, value: Array) -> Array:
        mask = neighborhoods(jnp.ones((1, n), jnp.int32), NEIGHBORHOOD)
        return restricted_attention(query, key, value, mask)[0]

    return function, (x, x, x)


def _build_multi_head(n: int, d: int) -> Any:
    module = MultiHeadAttention(d // _HEAD_WIDTH, d, _HEAD_WIDTH, _HEAD_WIDTH)
    x = _normal(1, n, d)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x, x)
    variables = jax.tree.map(lambda x: _normal(*x.shape, scale=d**-0.5), shapes)
    return lambda variables, x: module.apply(variables, x, x), (variables, x)


_ATTENTION_PATH = PathLength("1", lambda n: 1, graphs.attention_readers)

LAYERS = (
    Layer(
        "self-attention",
        "n²·d",
        lambda n, d: n**2 * d,
        "1",
        (_ATTENTION_PATH,),
        _build_attention,
    ),
    Layer(
        "recurrent",
        "n·d²",
        lambda n, d: n * d**2,
        "n",
        (PathLength("n", lambda n: n, graphs.recurrent_readers, is_causal=True),),
        _build_recurrent,
    ),
    Layer(
        "convolution",
        "k·n·d²",
        lambda n, d: KERNEL_WIDTH * n * d**2,
        "1",
        (
            # As in ByteNet's decoder, the paper's example: back only.
            PathLength(
                "log_k(n)",
                lambda n: math.log(n, KERNEL_WIDTH),
                functools.partial(
                    graphs.window_readers,
                    before=KERNEL_WIDTH - 1,
                    after=0,
                    dilation=KERNEL_WIDTH,
                ),
                "dilated and causal",
                is_causal=True,
            ),
            PathLength(
                "n/k",
                lambda n: n / KERNEL_WIDTH,
                functools.partial(
                    graphs.window_readers,
                    before=KERNEL_WIDTH // 2,
                    after=(KERNEL_WIDTH - 1) // 2,
                ),
                "contiguous",
            ),
        ),
        _build_convolution,
    ),
    Layer(
        "restricted self-attention",
        "r·n·d",
        lambda n, d: NEIGHBORHOOD * n * d,
        "1",
        (
            PathLength(
                "n/r",
                lambda n: n / NEIGHBORHOOD,
                functools.partial(
                    graphs.window_readers,
                    before=NEIGHBORHOOD // 2,
                    after=(NEIGHBORHOOD - 1) // 2,
                ),
            ),
        ),
        _build_restricted,
    ),
    # Table 1 leaves out what multi-head attention multiplies before and after: n·d·d
    # four times, beside two products of n·n·d.
    Layer(
        "multi-head, with projections",
        "n²·d + 2n·d²",
        lambda n, d: n**2 * d + 2 * n * d**2,
        "1",
        (_ATTENTION_PATH,),
        _build_multi_head,
    ),
)
