"""What the paper says of its own model, section by section, held against ours."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import hlo
from transformer_jax.cost import paper_flops
from transformer_jax.models import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    scaled_dot_product_attention,
    sinusoidal_positions,
)
from transformer_jax.training.optimizer import learning_rate

SOURCE, TARGET, VOCAB, D_MODEL = 7, 5, 23, 22


def normal(seed: int, *shape: int) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def model_and_variables(**changes: Any) -> Any:
    config = TransformerConfig(
        VOCAB, num_layers=2, d_model=D_MODEL, d_ff=13, num_heads=2, **changes
    )
    model = Transformer(config)
    tokens = jnp.ones((1, 1), jnp.int32)
    return model, jax.jit(model.init)(jax.random.key(0), tokens, tokens)


# Section 3.1: "masking [...] ensures that the predictions for position i can depend
# only on the known outputs at positions less than i". The decoder reads the outputs
# shifted by one: its position i reads up to its own.
def test_logits_have_no_gradient_at_all_by_later_target_embeddings():
    model, variables = model_and_variables(share_embeddings=False)
    params = variables["params"]
    source = jnp.array([[3, 9, 4, 17, 5, 11, 2]])
    target = jnp.array([[1, 8, 20, 6, 13]])  # no token twice: each has its own row
    direction = normal(0, VOCAB)

    def outputs(embedding: jax.Array) -> jax.Array:
        changed = {"params": {**params, "target_embedding": embedding}}
        return model.apply(changed, source, target)[0] @ direction

    jacobian = jax.jit(jax.jacobian(outputs))
    gradients = jacobian(params["target_embedding"])[:, target[0]]
    is_used = np.abs(np.asarray(gradients)).max(axis=-1) > 0
    np.testing.assert_array_equal(is_used, np.tril(np.ones((TARGET, TARGET), bool)))


# Section 3.2.1, footnote 4: "assume that the components of q and k are independent
# random variables with mean 0 and variance 1. Then their dot product [...] has mean 0
# and variance d_k".
@pytest.mark.parametrize("d_k", [3, 17, 67, 257])
def test_products_have_variance_d_k_and_scaled_ones_1(d_k: int):
    number = 20_011
    query, key = normal(1, number, 1, 1, d_k), normal(2, number, 1, 1, d_k)
    products = np.sum(np.asarray(query) * np.asarray(key), axis=-1)
    # A key of zeros beside each: what log(w / w0) adds to its score is q . k, scaled.
    keys = jnp.concatenate([key, jnp.zeros_like(key)], axis=1)
    _, weights = scaled_dot_product_attention(query, keys, keys)
    scaled = np.log(weights[..., 0] / weights[..., 1])
    # The kurtosis of such a product is 3 + 6 / d_k: five standard deviations.
    tolerance = 5 * np.sqrt((2 + 6 / d_k) / number)
    np.testing.assert_allclose(products.var() / d_k, 1.0, atol=tolerance)
    np.testing.assert_allclose(scaled.var(), 1.0, atol=tolerance)
    assert abs(scaled.mean()) < 5 / np.sqrt(number)


# Section 3.2.1: "for large values of d_k, the dot products grow large in magnitude,
# pushing the softmax function into regions where it has extremely small gradients. To
# counteract this effect, we scale the dot products by 1 / sqrt(d_k)".
def test_without_the_scaling_the_gradients_of_the_softmax_vanish_as_d_k_grows():
    def gradient(d_k: int, factor: float) -> float:
        query, key = normal(3, 401, 1, 1, d_k), normal(4, 401, 11, 1, d_k)
        _, weights = scaled_dot_product_attention(factor * query, key, key)
        # Of weights w by scores: diag(w) - w w^T.
        w = np.asarray(weights)[:, 0, 0]
        jacobians = np.eye(11) * w[:, None] - w[:, :, None] * w[:, None]
        return float(np.linalg.norm(jacobians, axis=(1, 2)).mean())

    widths = (4, 64, 1024)
    scaled = [gradient(d_k, 1.0) for d_k in widths]
    unscaled = [gradient(d_k, d_k**0.5) for d_k in widths]
    np.testing.assert_allclose(scaled, scaled[0], rtol=0.1)
    # Each time scores lie four times as far apart, and fewer of the largest two close.
    for wider, narrower in zip(unscaled[1:], unscaled[:-1], strict=True):
        assert wider < narrower / 2
    assert unscaled[-1] < 0.15 * scaled[-1]


# Section 3.2.2: "Due to the reduced dimension of each head, the total computational
# cost is similar to that of single-head attention with full dimensionality."
def test_eight_heads_cost_as_much_as_one_of_full_width():
    def cost(num_heads: int) -> tuple[int, float]:
        width = 56 // num_heads
        module: Any = MultiHeadAttention(num_heads, d_model=56, d_k=width, d_v=width)
        x = jnp.ones((3, 13, 56))
        variables = module.init(jax.random.key(0), x, x)
        compiled = jax.jit(module.apply).lower(variables, x, x).compile()
        products = hlo.product_flops(hlo.parse(compiled.as_text() or ""))
        return sum(leaf.size for leaf in jax.tree.leaves(variables)), products

    # Four projections of 39 positions, Q K^T and weights V of 13 pairs each.
    by_hand = 4 * 56 * 56, 2.0 * 39 * (4 * 56 * 56 + 2 * 13 * 56)
    assert cost(8) == cost(1) == by_hand


# Section 3.4: "we share the same weight matrix between the two embedding layers and the
# pre-softmax linear transformation [...]. In the embedding layers, we multiply those
# weights by sqrt(d_model)." Section 3.5: positions "can be summed" with them.
def test_one_matrix_embeds_both_sides_times_sqrt_d_model_and_scores_the_output():
    model, variables = model_and_variables()
    source = jnp.array([[3, 9, 4, 17, 5, 11, 2], [6, 6, 1, 0, 22, 7, 7]])
    target = jnp.array([[1, 8, 20, 6, 13], [1, 9, 9, 4, 2]])

    def is_sum(module: Any, method: str) -> bool:
        return module.name == "embedding_dropout"

    @jax.jit
    def run(variables: Any) -> Any:
        kept = {"capture_intermediates": is_sum, "mutable": ["intermediates"]}
        return model.apply(variables, source, target, **kept)

    logits, kept = run(variables)
    embedding = np.asarray(variables["params"]["embedding"])
    position = np.arange(SOURCE)[:, None]
    angles = position / 10_000 ** (2 * np.arange(D_MODEL // 2) / D_MODEL)
    encoding = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    encoding = encoding.reshape(SOURCE, D_MODEL)
    sums = kept["intermediates"]["embedding_dropout"]["__call__"]
    for tokens, embedded in zip((source, target), sums, strict=True):
        expected = embedding[tokens] * np.sqrt(D_MODEL) + encoding[: tokens.shape[1]]
        np.testing.assert_allclose(embedded, expected, atol=1e-5)

    def hidden(variables: Any) -> jax.Array:
        encoded = model.apply(variables, source, method="encode")
        return model.apply(variables, target, encoded, method="decode")

    expected = np.asarray(jax.jit(hidden)(variables)) @ embedding.T
    np.testing.assert_allclose(logits, expected, atol=1e-4)


# Section 3.5: "The wavelengths form a geometric progression from 2 pi to
# 10000 * 2 pi."
def test_wavelengths_are_a_geometric_progression_from_2_pi_to_10000_times_that():
    sine, cosine = sinusoidal_positions(2, 512)[1].reshape(256, 2).T
    wavelengths = 2 * np.pi / np.arctan2(sine, cosine)  # a step of less than half
    ratios = wavelengths[1:] / wavelengths[:-1]
    np.testing.assert_allclose(ratios, 10_000 ** (2 / 512), rtol=1e-5)
    np.testing.assert_allclose(wavelengths[0], 2 * np.pi, rtol=1e-5)
    # The end is where the next one would be.
    np.testing.assert_allclose(
        wavelengths[-1] * ratios[0], 10_000 * 2 * np.pi, rtol=1e-5
    )


# Section 3.5: "for any fixed offset k, PE_{pos+k} can be represented as a linear
# function of PE_pos".
@pytest.mark.parametrize("offset", [1, 11, 503])
def test_a_fixed_linear_map_takes_each_position_to_the_one_k_further(offset: int):
    # Far enough for the longest wavelength, 2 pi * 2683 positions, to be told.
    table = sinusoidal_positions(40_009, 14).astype(np.float64)
    here, further = table[:-offset], table[offset:]
    solved, *_ = np.linalg.lstsq(here[::7], further[::7], rcond=None)
    np.testing.assert_allclose(here @ solved, further, atol=1e-5)  # at all positions
    # Each pair (sin, cos) turns by its own angle.
    rotation = np.zeros((14, 14))
    for i in range(7):
        angle = offset / 10_000 ** (2 * i / 14)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [np.cos(angle), -np.sin(angle)],
            [np.sin(angle), np.cos(angle)],
        ]
    np.testing.assert_allclose(solved, rotation, atol=1e-5)


# Section 5.3, equation 3, with d_model^-0.5 = 0.0441942 and 0.03125 and
# 4000^-1.5 = 3.95285e-6.
@pytest.mark.parametrize(
    ("d_model", "step", "expected"),
    [
        (512, 1, 1.74693e-7),
        (512, 2000, 3.49386e-4),
        (512, 4000, 6.98771e-4),
        (512, 100_000, 1.39754e-4),
        (1024, 1, 1.23526e-7),
        (1024, 4000, 4.94106e-4),
        (1024, 300_000, 5.70544e-5),
    ],
)
def test_the_learning_rate_is_the_one_by_hand(d_model, step, expected):
    assert float(learning_rate(step, d_model=d_model)) == pytest.approx(
        expected, rel=2e-5
    )


# Table 2's training cost, by footnote 5: time, times 8 P100s, times 9.5 TFLOPS.
@pytest.mark.parametrize(("hours", "printed"), [(12, "3.3e+18"), (3.5 * 24, "2.3e+19")])
def test_the_papers_method_gives_the_flops_that_table_2_prints(hours, printed):
    assert f"{paper_flops(hours, num_chips=8, tflops=9.5):.1e}" == printed
