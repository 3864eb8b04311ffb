"""Products in bfloat16 against float32, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.precision import Precision

EQUATIONS = [
    ("bqm,mhd->bqhd", (2, 3, 5), (5, 7, 11)),
    ("bqhv,hvm->bqm", (2, 3, 5, 7), (5, 7, 11)),
    ("blm,mf->blf", (2, 3, 5), (5, 7)),
    ("btm,wm->btw", (2, 3, 5), (7, 5)),
]
FORMATS = [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]


def operands(x_shape, y_shape) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=x_shape), rng.normal(size=y_shape)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def assert_within_bfloat16(actual, expected, size) -> None:
    """Each of two operands and the result is off by 2^-9 of itself at most."""
    error = np.abs(np.asarray(actual, np.float32) - np.asarray(expected))
    assert (error <= 2**-7 * np.asarray(size)).all()


@pytest.mark.parametrize(("dtype", "matmul_dtype"), FORMATS)
@pytest.mark.parametrize(("equation", "x_shape", "y_shape"), EQUATIONS)
def test_einsum_and_its_gradient_are_float32s_to_within_the_rounding(
    equation, x_shape, y_shape, dtype, matmul_dtype
):
    x, y = operands(x_shape, y_shape)
    precision = Precision(dtype, matmul_dtype)
    output, pull = jax.vjp(lambda x, y: precision.einsum(equation, x, y), x, y)
    expected, pull_expected = jax.vjp(lambda x, y: jnp.einsum(equation, x, y), x, y)
    size, pull_size = jax.vjp(
        lambda x, y: jnp.einsum(equation, x, y), jnp.abs(x), jnp.abs(y)
    )
    assert output.dtype == dtype
    assert_within_bfloat16(output, expected, size)

    noise = np.random.default_rng(1).normal(size=expected.shape)
    gradient = jnp.asarray(noise, jnp.float32)
    gradients = pull(gradient.astype(dtype))
    expected_gradients = pull_expected(gradient)
    for actual, wanted, bound in zip(
        gradients, expected_gradients, pull_size(jnp.abs(gradient)), strict=True
    ):
        assert actual.dtype == jnp.float32  # the operands' own
        assert_within_bfloat16(actual, wanted, bound)


def test_bfloat16_products_round_both_operands_and_sum_in_float32():
    x, y = operands((2, 3, 5), (5, 7))
    output = Precision(matmul_dtype="bfloat16").einsum("blm,mf->blf", x, y)
    rounded = [np.asarray(z.astype(jnp.bfloat16), np.float64) for z in (x, y)]
    np.testing.assert_allclose(output, rounded[0] @ rounded[1], atol=1e-5)


def test_float32_is_the_plain_einsum():
    x, y = operands((2, 3, 5), (5, 7))
    output = Precision().einsum("blm,mf->blf", x, y)
    np.testing.assert_allclose(output, np.asarray(x) @ np.asarray(y), atol=1e-5)
    assert output.dtype == jnp.float32
