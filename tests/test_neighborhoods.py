"""Restricted self-attention against attention over all pairs, masked by hand."""

import collections
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import hlo
from transformer_jax.config import MeshConfig
from transformer_jax.models import (
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    attention,
    restricted_attention,
    scaled_dot_product_attention,
    self_attention_mask,
)
from transformer_jax.models.neighborhoods import (
    Neighborhoods,
    neighborhood_mask,
    neighborhoods,
)
from transformer_jax.sharding import make_mesh, row_sharding, state_shardings

BATCH, HEADS, D_K, D_V, D_MODEL, VOCAB = 2, 3, 5, 7, 11, 23


def normal(seed: int, *shape: int) -> jax.Array:
    values = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values.astype(np.float32))


def packed_segments(length: int) -> np.ndarray:
    """A full row of one sentence, and one of several of any lengths with padding."""
    rng = np.random.default_rng(length)
    ends = np.sort(rng.choice(np.arange(1, length + 1), min(3, length), replace=False))
    several = [
        np.searchsorted(ends, place, side="right") + 1 for place in range(length)
    ]
    several = np.where(np.array(several) > len(ends), 0, several)
    several[-(length // 7) :] = 0
    return np.stack([np.ones(length, int), several]).astype(np.int32)


def mask_by_hand(segments: np.ndarray, r: int) -> np.ndarray:
    """The rule of the module, pair by pair."""
    batch, length = segments.shape
    mask = np.zeros((batch, 1, length, length), bool)
    for b in range(batch):
        for i in range(length):
            for j in range(max(i - r // 2, 0), min(i + (r - 1) // 2 + 1, length)):
                mask[b, 0, i, j] = segments[b, i] == segments[b, j]
    return mask


def test_a_neighborhood_has_r_positions_centred_on_its_own():
    seen = {1: [3], 2: [2, 3], 3: [2, 3, 4], 4: [1, 2, 3, 4], 5: [1, 2, 3, 4, 5]}
    for r, positions in seen.items():
        assert np.flatnonzero(neighborhood_mask(7, r)[0, 0, 3]).tolist() == positions


@pytest.mark.parametrize(
    ("length", "r"),
    [(67, 1), (67, 4), (64, 5), (67, 33), (131, 32), (31, 79)],
)
def test_blocks_give_what_all_pairs_masked_give(length, r):
    arrays = (
        normal(0, BATCH, length, HEADS, D_K),
        normal(1, BATCH, length, HEADS, D_K),
        normal(2, BATCH, length, HEADS, D_V),
    )
    segments = packed_segments(length)
    in_blocks = neighborhoods(jnp.asarray(segments), r)
    assert in_blocks.size == r
    masks = jnp.asarray(mask_by_hand(segments, r)), in_blocks
    direction = normal(3, BATCH, length, HEADS, D_V)
    results = []
    for attend, mask in zip(
        (scaled_dot_product_attention, restricted_attention), masks, strict=True
    ):

        def product(arrays: Any, attend: Any = attend, mask: Any = mask) -> Any:
            output = attend(*arrays, mask)[0]
            return jnp.sum(output * direction), output

        results.append(jax.jit(jax.grad(product, has_aux=True))(arrays))
    for restricted, full in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(restricted, full, atol=1e-5)


@functools.cache
def make_model(**changes: Any) -> tuple[Any, Any]:
    values: dict[str, Any] = dict(vocab_size=VOCAB, num_layers=1, d_model=12, d_ff=13)
    values |= dict(num_heads=HEADS, d_k=D_K, d_v=D_V)
    model = Transformer(TransformerConfig(**{**values, **changes}))
    tokens = jnp.ones((1, 1), jnp.int32)
    return model, jax.jit(model.init)(jax.random.key(0), tokens, tokens)


def source(rows: int, length: int) -> jax.Array:
    ids = np.random.default_rng(length).integers(3, VOCAB, size=(rows, length))
    return jnp.asarray(ids, jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def encode(model: Any, params: Any, *arrays: jax.Array) -> jax.Array:
    return model.apply(params, *arrays, method="encode")


@pytest.mark.slow
def test_the_encoder_in_blocks_gives_what_it_gives_masked(monkeypatch):
    model, params = make_model(encoder_neighborhood=5, remat=True)
    ids, segments = source(BATCH, 101), jnp.asarray(packed_segments(101))
    mask = self_attention_mask(segments, 5)
    assert isinstance(mask, Neighborhoods)
    direction = normal(4, BATCH, 101, 12)

    def gradient() -> Any:
        def product(params: Any) -> Any:
            encoded = model.apply(params, ids, segments, method="encode")
            return jnp.sum(encoded * direction), encoded

        return jax.jit(jax.grad(product, has_aux=True))(params)

    in_blocks = gradient()
    masked = jnp.asarray(mask_by_hand(np.asarray(segments), 5))
    monkeypatch.setattr(
        "transformer_jax.models.transformer.self_attention_mask", lambda *_: masked
    )
    leaves = map(jax.tree.leaves, (in_blocks, gradient()))
    for restricted, full in zip(*leaves, strict=True):
        np.testing.assert_allclose(restricted, full, rtol=1e-4, atol=1e-4)


def test_short_rows_and_no_neighborhood_are_masked_over_all_pairs():
    segments = packed_segments(31)
    for r in (1, 5, 8, 31, 79):
        mask = self_attention_mask(jnp.asarray(segments), r)
        np.testing.assert_array_equal(mask, mask_by_hand(segments, r))
    everything = self_attention_mask(jnp.asarray(segments))
    np.testing.assert_array_equal(everything, mask_by_hand(segments, 63))


def test_a_token_changes_what_has_it_in_its_neighborhood_and_no_more():
    model, params = make_model(encoder_neighborhood=4)
    ids = source(1, 101)
    changed = ids.at[0, 50].set(ids[0, 50] % 20 + 3)
    first, second = (encode(model, params, x) for x in (ids, changed))
    differs = np.flatnonzero(np.abs(first - second)[0].max(axis=-1))
    assert differs.tolist() == [49, 50, 51, 52]  # 2 back and 1 ahead are seen


def test_sentences_of_a_row_are_encoded_as_each_alone():
    model, params = make_model(encoder_neighborhood=4)
    ids = source(1, 101)
    ends = [0, 3, 52, 101]  # in blocks of 32
    segments = jnp.asarray(np.repeat(np.arange(3), np.diff(ends))[None] + 1)
    together = encode(model, params, ids, segments)
    for start, end in itertools.pairwise(ends):
        alone = encode(model, params, ids[:, start:end])
        np.testing.assert_allclose(together[:, start:end], alone, rtol=1e-4, atol=1e-4)


def compiled_gradient(r: int, length: int) -> Any:
    """The encoder's gradient by its parameters, of one row."""
    model, params = make_model(encoder_neighborhood=r)

    def loss(params: Any, ids: jax.Array) -> jax.Array:
        return jnp.sum(model.apply(params, ids, method="encode"))

    return jax.jit(jax.grad(loss)).lower(params, source(1, length)).compile()


def largest_array(compiled: Any) -> int:
    """Elements of the largest array anywhere in a program, in fusions too."""
    computations = hlo.parse(compiled.as_text()).computations.values()
    shapes = [x.shapes for instructions in computations for x in instructions.values()]
    return max(int(np.prod(shape.dims)) for many in shapes for shape in many)


def test_nothing_in_the_program_grows_with_the_square_of_the_length():
    length = 1021
    full, restricted = compiled_gradient(0, length), compiled_gradient(5, length)
    assert largest_array(full) >= length**2
    assert largest_array(restricted) < length * 40 * HEADS  # 32 + 4 keys each


def test_weights_are_given_over_all_pairs_when_asked_for():
    module = MultiHeadAttention(HEADS, D_MODEL, D_K, D_V)
    length, r = 101, 6
    x, segments = normal(5, BATCH, length, D_MODEL), packed_segments(length)
    variables = jax.jit(module.init)(jax.random.key(0), x, x)
    mask = neighborhoods(jnp.asarray(segments), r)
    apply: Any = jax.jit(module.apply, static_argnames="mutable")
    output, kept = apply(variables, x, x, mask, mutable=("intermediates",))
    (weights,) = kept["intermediates"]["attention_weights"]
    query, key = (
        np.einsum("blm,mhd->bhld", x, variables["params"][name])
        for name in ("w_query", "w_key")
    )
    scores = np.exp(np.einsum("bhqd,bhkd->bhqk", query, key) / np.sqrt(D_K))
    scores = np.where(mask_by_hand(segments, r), scores, 0.0)
    expected = scores / scores.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    np.testing.assert_allclose(apply(variables, x, x, mask), output, atol=1e-5)


def test_dropout_of_a_row_is_a_function_of_key_and_row_alone():
    length, rows = 67, 4
    arrays = [normal(i, 1, length, HEADS, D_K) for i in range(2)]
    # The same sentence in each row, and values that show which weights were dropped.
    query, key = (jnp.repeat(x, rows, axis=0) for x in arrays)
    value = jnp.broadcast_to(
        jnp.eye(length)[None, :, None], (rows, length, HEADS, length)
    )
    mask = neighborhoods(jnp.ones((rows, length), jnp.int32), 6)

    @jax.jit
    def attend(numbers: jax.Array, rng: jax.Array) -> jax.Array:
        part = slice(0, len(numbers))
        output, _ = restricted_attention(
            query[part],
            key[part],
            value[part],
            Neighborhoods(mask.allowed[part]),
            dropout_rate=0.5,
            rng=rng,
            dropout_rows=numbers,
        )
        return output

    def dropped(*numbers: int, seed: int = 0) -> np.ndarray:
        return np.asarray(attend(jnp.array(numbers), jax.random.key(seed)))

    whole = dropped(0, 1, 2, 3)
    joined = np.concatenate([dropped(0, 1), dropped(2, 3)])
    np.testing.assert_array_equal(whole, joined)
    is_seen = mask_by_hand(np.ones((1, length), int), 6)[0, 0]
    zeros = (whole == 0)[:, is_seen.nonzero()[0], :, is_seen.nonzero()[1]]
    assert zeros.mean() == pytest.approx(0.5, abs=0.03)  # of 4,728
    assert (whole[0] != whole[1]).any()
    assert (dropped(1, 0, seed=1)[0] != whole[1]).any()
    # Nor do the blocks of a row share what they drop.
    first, second = (whole[0, start : start + 32] == 0 for start in (0, 32))
    assert (first[3:29, :, 0:32] != second[3:29, :, 32:64]).any()


@pytest.mark.slow
def test_blocks_need_no_more_messages_between_devices_than_all_pairs():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    ids = source(8, 101)
    outputs, messages = [], []
    for r in (0, 5):
        model, params = make_model(
            encoder_neighborhood=r, vocab_size=24, num_heads=4, d_ff=14
        )
        split = jax.device_put(params, state_shardings(params, mesh))
        rows = jax.device_put(ids, row_sharding(mesh))
        compiled: Any = encode.lower(model, split, rows).compile()
        found = hlo.collectives(hlo.parse(compiled.as_text()))
        messages.append(collections.Counter(x.kind for x in found))
        outputs.append((compiled(split, rows), encode(model, params, ids)))
    assert messages[0] == messages[1]
    assert messages[0].total() > 0
    np.testing.assert_allclose(*outputs[1], rtol=1e-4, atol=1e-4)


def test_the_encoder_keeps_its_mask_in_blocks_where_they_are_less_work():
    # n = 72 is the shortest row for r = 5: 2 (32 + 4) pairs a query.
    assert [attention.are_worthwhile(n, 5) for n in (71, 72)] == [False, True]
    assert [attention.are_worthwhile(n, 128) for n in (509, 510)] == [False, True]
