"""Passes over a vocabulary against `lax.top_k` and a sum in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from transformer_jax.decoding import vocabulary

BLOCKS, ALL_AT_ONCE = 2, 1  # how often `top_k` sorts


def rounded_rows(n: int) -> np.ndarray:
    """Rows with many ties, among them -inf, and one whose values are all the same."""
    rng = np.random.default_rng(n)
    rows = np.round(rng.normal(size=(6, n))).astype(np.float32) + 0.0  # no -0
    rows[1] = -np.inf
    rows[2, rng.permutation(n)[3:]] = -np.inf  # only three are left
    rows[3] = 1.0
    rows[4, -1] = 9.0
    rows[5] = np.sort(rows[5])
    return rows


@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize(
    ("n", "num_sorts"),
    [(6000, BLOCKS), (37 * 50, BLOCKS), (1009, ALL_AT_ONCE), (12, ALL_AT_ONCE)],
)
def test_the_largest_are_those_of_lax_with_ties_in_the_same_order(n, num_sorts, k):
    rows = jnp.asarray(rounded_rows(n))
    program = jax.make_jaxpr(lambda x: vocabulary.top_k(x, k))(rows)
    assert str(program).count("= top_k[") == num_sorts

    values, indices = vocabulary.top_k(rows, k)
    expected_values, expected_indices = lax.top_k(rows, k)
    np.testing.assert_array_equal(values, expected_values)
    np.testing.assert_array_equal(indices, expected_indices)


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("n", [640, 37 * 64])
def test_logsumexp_is_the_sum_in_float64(n, in_parts, monkeypatch):
    rng = np.random.default_rng(n)
    rows = (5 * rng.normal(size=(5, n))).astype(np.float32)
    rows[1] = -np.inf
    rows[2, 1:] = -np.inf
    rows[3] += 1000  # overflows unless the highest is taken out
    rows[4] -= 1000
    if in_parts:
        monkeypatch.setattr(vocabulary, "_SMALL", 0)
        monkeypatch.setattr(vocabulary, "_PART", 5 * 64)
    program = jax.make_jaxpr(lambda x: vocabulary.logsumexp(x))(jnp.asarray(rows))
    assert ("dynamic_slice" in str(program)) == in_parts

    found = vocabulary.logsumexp(jnp.asarray(rows))
    wide = rows.astype(np.float64)
    highest = np.where(np.isfinite(wide.max(axis=1)), wide.max(axis=1), 0.0)
    with np.errstate(divide="ignore"):
        expected = np.log(np.exp(wide - highest[:, None]).sum(axis=1)) + highest
    assert expected[1] == -np.inf
    np.testing.assert_allclose(found, expected, rtol=1e-6)
