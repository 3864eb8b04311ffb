"""The whole model: counts, causality, padding, packing and the cached decoder."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models import Transformer, TransformerConfig, num_parameters

BATCH, BEAM, SOURCE, TARGET, VOCAB = 2, 3, 7, 5, 23
KINDS = list(itertools.product(("post", "pre"), ("sinusoidal", "learned")))
all_kinds = pytest.mark.parametrize(("norm", "positions"), KINDS)


def make_config(**changes) -> TransformerConfig:
    values = dict(vocab_size=VOCAB, num_layers=2, d_model=10, d_ff=11, num_heads=3)
    return TransformerConfig(
        **{**values, "d_k": 5, "d_v": 7, "max_length": 13, **changes}
    )


@functools.cache
def make_model(**changes: Any) -> Any:
    """A model and variables in which no bias is 0 and no gain 1."""
    model = Transformer(make_config(**changes))
    tokens = jnp.ones((1, 1), jnp.int32)
    variables = model.init(jax.random.key(0), tokens, tokens)
    leaves, structure = jax.tree.flatten(variables)
    rng = np.random.default_rng(0)
    noisy = [
        leaf + jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype)
        for leaf in leaves
    ]
    return model, jax.tree.unflatten(structure, noisy)


def tokens(seed: int, *shape: int) -> jax.Array:
    ids = np.random.default_rng(seed).integers(3, VOCAB, size=shape)
    return jnp.asarray(ids, jnp.int32)


def segments(*rows: list[int]) -> jax.Array:
    return jnp.asarray(rows, jnp.int32)


def count_by_hand(
    rows, layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64
) -> int:
    attention = heads * d_model * (d_k + d_k + d_v + d_v)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return layers * (encoder + decoder) + rows * d_model


# Changes to base, the same by hand, and Table 3's figure in millions where it has one.
TABLE_3 = {
    "base": ({}, {}, 65),
    "A h1": ({"num_heads": 1}, {"heads": 1, "d_k": 512, "d_v": 512}, None),
    "A h4": ({"num_heads": 4}, {"heads": 4, "d_k": 128, "d_v": 128}, None),
    "A h16": ({"num_heads": 16}, {"heads": 16, "d_k": 32, "d_v": 32}, None),
    "A h32": ({"num_heads": 32}, {"heads": 32, "d_k": 16, "d_v": 16}, None),
    "B dk16": ({"d_k": 16}, {"d_k": 16}, 58),
    "B dk32": ({"d_k": 32}, {"d_k": 32}, 60),
    "C N2": ({"num_layers": 2}, {"layers": 2}, 36),
    "C N4": ({"num_layers": 4}, {"layers": 4}, 50),
    "C N8": ({"num_layers": 8}, {"layers": 8}, 80),
    "C d256": ({"d_model": 256}, {"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    "C d1024": ({"d_model": 1024}, {"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    "C ff1024": ({"d_ff": 1024}, {"d_ff": 1024}, 53),
    "C ff4096": ({"d_ff": 4096}, {"d_ff": 4096}, 90),
    "D": ({"dropout_rate": 0.0}, {}, None),
}


@pytest.mark.parametrize("row", TABLE_3)
def test_parameters_are_as_many_as_table_3_has_with_41000_rows(row):
    changes, by_hand, millions = TABLE_3[row]
    count = num_parameters(TransformerConfig.base(vocab_size=41_000, **changes))
    assert count == count_by_hand(41_000, **by_hand)
    if millions is not None:  # half a million of rounding; ff1024 is 52.498
        assert abs(count / 1e6 - millions) < 0.51


def test_parameters_of_base_and_big_with_37000_rows():
    base = num_parameters(TransformerConfig.base(vocab_size=37_000))
    assert base == count_by_hand(37_000)
    assert round(base / 1e6, 1) == 63.0
    big = num_parameters(TransformerConfig.big(vocab_size=37_000))
    assert big == count_by_hand(37_000, d_model=1024, d_ff=4096, heads=16)
    assert round(big / 1e6, 1) == 214.2


def test_learned_positions_add_a_table_for_each_side():
    fixed = num_parameters(make_config())
    assert num_parameters(make_config(positions="learned")) == fixed + 2 * 13 * 10


def test_pre_norm_adds_a_norm_after_each_stack():
    assert num_parameters(make_config(norm="pre")) == (
        num_parameters(make_config()) + 2 * 2 * 10
    )


def test_unshared_embeddings_are_three_matrices():
    shared, unshared = make_model()[1], make_model(share_embeddings=False)[1]
    sizes = [
        [x.shape for x in jax.tree.leaves(v)].count((VOCAB, 10))
        for v in (shared, unshared)
    ]
    assert sizes == [1, 3]
    assert {"source_embedding", "target_embedding", "output_embedding"} < set(
        unshared["params"]
    )


def test_each_unshared_matrix_has_its_own_place():
    model, variables = make_model(share_embeddings=False)
    params = variables["params"]
    source, target = tokens(0, BATCH, SOURCE), tokens(1, BATCH, TARGET)
    plain = np.asarray(model.apply(variables, source, target))
    # A row of the output matrix is one token's score; a row of the others is read
    # only where its token stands.
    doubled = params["output_embedding"].at[3].multiply(2.0)
    scaled = {"params": {**params, "output_embedding": doubled}}
    changed = np.asarray(model.apply(scaled, source, target))
    np.testing.assert_allclose(changed[..., 3], 2 * plain[..., 3], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(changed[..., 4:], plain[..., 4:], rtol=1e-4, atol=1e-4)
    for side, ids in (("source", source), ("target", target)):
        name = f"{side}_embedding"
        for token, is_read in ((0, False), (int(ids[0, 0]), True)):
            moved = {**params, name: params[name].at[token].add(jnp.arange(10.0))}
            result = np.asarray(model.apply({"params": moved}, source, target))
            assert (np.abs(result[0] - plain[0]).max() > 1e-3) == is_read


@all_kinds
def test_a_token_does_not_change_the_logits_before_it(norm, positions):
    model, variables = make_model(norm=norm, positions=positions)
    source, target = tokens(0, BATCH, SOURCE), tokens(1, BATCH, TARGET)
    plain = np.asarray(model.apply(variables, source, target))
    for position in range(1, TARGET):
        other = target.at[:, position].set((target[:, position] + 1) % VOCAB)
        changed = np.asarray(model.apply(variables, source, other))
        np.testing.assert_allclose(
            changed[:, :position], plain[:, :position], rtol=1e-4, atol=1e-4
        )
        assert np.abs(changed[:, position] - plain[:, position]).max() > 1e-3


@all_kinds
def test_padding_does_not_change_logits(norm, positions):
    model, variables = make_model(norm=norm, positions=positions)
    source, target = tokens(0, BATCH, SOURCE), tokens(1, BATCH, TARGET)
    alone = model.apply(variables, source, target)
    padded = model.apply(
        variables,
        jnp.concatenate([source, tokens(2, BATCH, 4)], axis=1),
        jnp.concatenate([target, tokens(3, BATCH, 6)], axis=1),
        segments(*[[1] * SOURCE + [0] * 4] * BATCH),
        segments(*[[1] * TARGET + [0] * 6] * BATCH),
    )
    assert np.isfinite(padded).all()
    np.testing.assert_allclose(padded[:, :TARGET], alone, rtol=1e-4, atol=1e-4)


@all_kinds
def test_sentences_packed_in_one_row_are_as_each_alone(norm, positions):
    model, variables = make_model(norm=norm, positions=positions)
    sources = [tokens(0, 1, 4), tokens(1, 1, 3)]
    targets = [tokens(2, 1, 5), tokens(3, 1, 2)]
    packed = model.apply(
        variables,
        jnp.concatenate([*sources, tokens(4, 1, 2)], axis=1),
        jnp.concatenate([*targets, tokens(5, 1, 1)], axis=1),
        segments([1, 1, 1, 1, 2, 2, 2, 0, 0]),
        segments([1, 1, 1, 1, 1, 2, 2, 0]),
    )
    for part, source, target in zip(
        (packed[:, :5], packed[:, 5:7]), sources, targets, strict=True
    ):
        alone = model.apply(variables, source, target)
        np.testing.assert_allclose(part, alone, rtol=1e-4, atol=1e-4)


@all_kinds
def test_cached_steps_give_the_logits_of_the_whole_target(norm, positions):
    model, variables = make_model(norm=norm, positions=positions)
    source, target = tokens(0, BATCH, SOURCE), tokens(1, BATCH, BEAM, TARGET)
    source_segments = segments([1] * SOURCE, [1, 1, 1, 1, 0, 0, 0])
    encoded = model.apply(variables, source, source_segments, method="encode")
    memory, cache = model.apply(
        variables,
        encoded,
        source_segments,
        beam_size=BEAM,
        max_length=11,  # longer than what is decoded: the rest must not be seen
        method="start_decoding",
    )

    @jax.jit
    def step(tokens, positions, cache):
        ancestors = jnp.broadcast_to(jnp.arange(BEAM)[None, :, None], (BATCH, BEAM, 11))
        return model.apply(
            variables, tokens, positions, ancestors, cache, memory, method="decode_step"
        )

    stepwise = []
    for position in range(TARGET):
        positions = jnp.full(BATCH, position)
        logits, cache = step(target[:, :, position], positions, cache)
        stepwise.append(logits)
    for beam in range(BEAM):
        whole = model.apply(variables, source, target[:, beam], source_segments)
        cached = jnp.stack([logits[:, beam] for logits in stepwise], axis=1)
        np.testing.assert_allclose(cached, whole, rtol=1e-4, atol=1e-4)


def test_beyond_the_learned_positions_the_last_is_used():
    short, variables = make_model(positions="learned", max_length=5)
    long: Any = Transformer(make_config(positions="learned", max_length=11))
    params = dict(variables["params"])
    for name in ("source_positions", "target_positions"):
        params[name] = jnp.concatenate([params[name], *[params[name][-1:]] * 6])
    source, target = tokens(0, BATCH, 7), tokens(1, BATCH, 11)
    np.testing.assert_allclose(
        short.apply(variables, source, target),
        long.apply({"params": params}, source, target),
        rtol=1e-4,
        atol=1e-4,
    )


def test_attention_weights_of_every_layer_sum_to_one_when_asked_for():
    model, variables = make_model()
    assert set(variables) == {"params"}
    source, target = tokens(0, BATCH, SOURCE), tokens(1, BATCH, TARGET)
    plain = model.apply(variables, source, target)
    assert isinstance(plain, jax.Array)
    logits, kept = model.apply(variables, source, target, mutable=["intermediates"])
    np.testing.assert_allclose(logits, plain, rtol=1e-4, atol=1e-4)
    weights = jax.tree.leaves(kept)
    # Two layers of an encoder's, a decoder's own and a cross attention.
    shapes = sorted(x.shape for x in weights)
    expected = [(TARGET, TARGET), (TARGET, SOURCE), (SOURCE, SOURCE)]
    assert shapes == sorted(2 * [(BATCH, 3, *axes) for axes in expected])
    for x in weights:
        np.testing.assert_allclose(x.sum(axis=-1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "matmul_dtype"), [("float32", "bfloat16"), ("bfloat16", "bfloat16")]
)
def test_bfloat16_changes_logits_by_its_rounding_and_returns_float32(
    dtype, matmul_dtype
):
    exact, variables = make_model()
    rounded, _ = make_model(dtype=dtype, matmul_dtype=matmul_dtype)
    source, target = tokens(0, BATCH, SOURCE), tokens(1, BATCH, TARGET)
    expected = np.asarray(exact.apply(variables, source, target))
    logits = rounded.apply(variables, source, target)
    assert logits.dtype == jnp.float32
    # About 2^-8 for each of some ten roundings in a row.
    error = np.linalg.norm(np.asarray(logits) - expected)
    assert 0 < error < 0.05 * np.linalg.norm(expected)


def test_dropout_of_the_model_is_a_function_of_its_key():
    model, variables = make_model()
    source, target = tokens(0, BATCH, SOURCE), tokens(1, BATCH, TARGET)

    def logits(key: int) -> np.ndarray:
        rngs = {"dropout": jax.random.key(key)}
        return np.asarray(
            model.apply(variables, source, target, deterministic=False, rngs=rngs)
        )

    np.testing.assert_array_equal(logits(0), logits(0))
    assert np.abs(logits(0) - logits(1)).max() > 1e-3
