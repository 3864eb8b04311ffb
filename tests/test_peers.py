"""The peers of the decoding benchmark have our model: they find what it finds.

Outputs have a forced length: then nothing can end, which is where searches differ.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers import Job, Run, run_ctranslate2, run_hugging_face, run_marian
from transformer_jax.data.tokenizer import END_ID, START_ID
from transformer_jax.models import Transformer, TransformerConfig, transformer

BATCH, SOURCE, TARGET, VOCAB, D_MODEL = 13, 7, 17, 101, 46


def random_job(beam_size: int) -> Job:
    config = TransformerConfig(
        VOCAB, num_layers=2, d_model=D_MODEL, d_ff=43, num_heads=2
    )
    tokens = jnp.ones((1, 1), jnp.int32)
    params = Transformer(config).init(jax.random.key(0), tokens, tokens)["params"]
    rng = np.random.default_rng(0)

    def unlike_initial(path, x):
        """Nothing is left out, and outputs are not one token over and over."""
        name = jax.tree_util.keystr(path)
        if x.ndim == 1:
            scale = 1.0 if "gain" in name else 0.1
            x = x * ("gain" not in name) + scale * rng.standard_normal(x.shape)
        return np.asarray(3 * x if "w_query" in name else x, np.float32)

    return Job(
        params=jax.tree_util.tree_map_with_path(unlike_initial, params),
        config=config,
        sources=rng.integers(4, VOCAB, (BATCH, SOURCE)).tolist(),
        beam_size=beam_size,
        length_penalty=0.0,
        output_length=TARGET,
        num_threads=2,
    )


def our_outputs(job: Job) -> list[list[int]]:
    """Plain beam search with the whole model at each step, in float32."""
    source = jnp.array([[*ids, END_ID] for ids in job.sources])
    forward = jax.jit(
        lambda source, target: Transformer(job.config).apply(
            {"params": jax.tree.map(jnp.asarray, job.params)}, source, target
        )
    )
    # All hypotheses of a sentence begin the same: but one, they are out of the race.
    beams = job.beam_size
    fed = np.full((BATCH, beams, TARGET + 1), START_ID)
    scores = np.where(np.arange(beams) == 0, 0.0, -np.inf)[None].repeat(BATCH, axis=0)
    for position in range(TARGET):
        target = fed[:, :, :TARGET].reshape(BATCH * beams, TARGET)
        logits = forward(source.repeat(beams, axis=0), target)[:, position]
        logits = logits.at[:, END_ID].set(-jnp.inf)
        log_probs = np.asarray(jax.nn.log_softmax(logits)).reshape(BATCH, beams, VOCAB)
        totals = (scores[:, :, None] + log_probs).reshape(BATCH, -1)
        best = np.argsort(-totals, axis=1)[:, :beams]
        scores = np.take_along_axis(totals, best, axis=1)
        fed = np.take_along_axis(fed, best[:, :, None] // VOCAB, axis=1)
        fed[:, :, position + 1] = best % VOCAB
    return fed[:, 0, 1:].tolist()


def require_different(outputs: list[list[int]]) -> None:
    assert len({tuple(ids) for ids in outputs}) > BATCH // 2
    assert np.mean([len(set(ids)) for ids in outputs]) > 2


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(
    ("package", "run"),
    [("ctranslate2", run_ctranslate2), ("transformers", run_hugging_face)],
)
def test_a_peer_finds_what_a_plain_search_finds_with_our_model(
    package: str, run: Callable[[Job], list[Run]], beam_size: int
):
    pytest.importorskip(package)
    job = random_job(beam_size)
    expected = our_outputs(job)
    require_different(expected)
    for result in run(job):
        assert result.outputs == expected
        assert result.num_tokens == BATCH * TARGET


def test_marian_finds_what_greedy_search_finds_with_its_positions(monkeypatch):
    pytest.importorskip("pymarian")

    def positions_of_marian(num_positions, d_model):
        wave = np.arange(d_model // 2) / (d_model // 2 - 1)
        angle = np.arange(num_positions)[:, None] / 10_000.0 ** wave[None]
        pairs = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
        return pairs.reshape(num_positions, d_model).astype(np.float32)

    monkeypatch.setattr(transformer, "sinusoidal_positions", positions_of_marian)
    job = random_job(beam_size=1)
    expected = our_outputs(job)
    require_different(expected)
    assert run_marian(job)[0].outputs == expected
