"""The number formats the model computes in: one einsum for all its weight matrices."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class Precision:
    """Number formats of the model's arithmetic.

    Parameters are float32 always, and so are softmax, norms and the loss.
    """

    dtype: str = "float32"  # of activations between operations
    # What products with a weight matrix round both operands to. On a CPU with bfloat16
    # instructions, "bfloat16" here and float32 activations are the fastest pair.
    matmul_dtype: str = "float32"

    def einsum(
        self, equation: str, x: Float[Array, "*x_axes"], y: Float[Array, "*y_axes"]
    ) -> Float[Array, "*axes"]:
        """`jnp.einsum(equation, x, y)`, rounded operands, float32 accumulation.

        Each index must stand in two of the three terms, so that the gradient is again
        an einsum: its operands are rounded as well, which `jnp.einsum` of rounded
        operands would not do (its backward pass would multiply in float32).

        Returns:
          An array of `dtype`.
        """
        if self.dtype == self.matmul_dtype == "float32":
            return jnp.einsum(equation, x, y)
        return _rounded_einsum(equation, self.matmul_dtype, x, y).astype(self.dtype)


FLOAT32 = Precision()


def _product(equation: str, dtype: str, x: Array, y: Array) -> Array:
    return jnp.einsum(
        equation, x.astype(dtype), y.astype(dtype), preferred_element_type=jnp.float32
    )


_rounded_einsum: Callable[[str, str, Array, Array], Array] = jax.custom_vjp(
    _product, nondiff_argnums=(0, 1)
)


def _forward(
    equation: str, dtype: str, x: Array, y: Array
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    # Zero-size arrays remember the operands' own dtypes for the gradients.
    types = jnp.zeros(0, x.dtype), jnp.zeros(0, y.dtype)
    rounded = x.astype(dtype), y.astype(dtype)
    return _product(equation, dtype, x, y), (*rounded, *types)


def _backward(
    equation: str, dtype: str, saved: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array]:
    x, y, x_type, y_type = saved
    operands, out = equation.split("->")
    x_axes, y_axes = operands.split(",")
    x_gradient = _product(f"{out},{y_axes}->{x_axes}", dtype, gradient, y)
    y_gradient = _product(f"{x_axes},{out}->{y_axes}", dtype, x, gradient)
    return x_gradient.astype(x_type.dtype), y_gradient.astype(y_type.dtype)


cast(Any, _rounded_einsum).defvjp(_forward, _backward)
