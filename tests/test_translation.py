"""Translation and evaluation shared by devices: the same output as on one."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.config import DecodingConfig, MeshConfig, TransformerConfig
from transformer_jax.data.phrases import phrase_pairs
from transformer_jax.data.pipeline import keep_trainable
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.evaluation import LossEvaluator, encode_pairs
from transformer_jax.models import Transformer
from transformer_jax.sharding import make_mesh
from transformer_jax.trained_model import TrainedModel, Vocabularies
from transformer_jax.translation import Translator

PAIRS = phrase_pairs("train", num_pairs=200, seed=0)
MESHES = [MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)]


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    tokenizer = train_tokenizer(
        [side for pair in PAIRS for side in pair], vocab_size=400
    )
    model = Transformer(
        TransformerConfig(
            vocab_size=400, num_layers=1, d_model=16, d_ff=24, num_heads=2
        )
    )
    tokens = jnp.ones((1, 1), jnp.int32)
    params = model.init(jax.random.key(3), tokens, tokens)["params"]
    trained = TrainedModel(
        config=model.config,
        params=jax.device_get(params),
        vocabularies=Vocabularies(tokenizer, tokenizer),
        decoding=DecodingConfig(batch_tokens=256, max_extra_length=9, beam_size=3),
        source_language="en",
        target_language="de",
        max_length=64,
        steps=(1,),
    )
    return trained


@pytest.fixture(scope="module")
def on_one_device(trained) -> Translator:
    return Translator.of(trained, mesh=make_mesh(MeshConfig(), jax.devices()[:1]))


@pytest.mark.parametrize("mesh", MESHES, ids=["data 8", "data 2 fsdp 2 tensor 2"])
def test_a_translation_does_not_depend_on_the_devices(mesh, trained, on_one_device):
    sentences = [source for source, _ in PAIRS[:37]]
    one = on_one_device
    shared = Translator.of(trained, mesh=make_mesh(mesh))
    expected = one.translate(sentences)
    assert len(set(expected)) > 10
    assert shared.translate(sentences) == expected
    assert shared.translate(sentences[::-1]) == expected[::-1]


def test_a_loss_does_not_depend_on_the_devices(trained, on_one_device):
    model = on_one_device.searcher.models[0]
    examples, _ = keep_trainable(encode_pairs(PAIRS, trained.vocabularies), 64)
    reports = [
        LossEvaluator(model, examples, label_smoothing=0.1, mesh=mesh)(trained.params)
        for mesh in (on_one_device.searcher.mesh, *map(make_mesh, MESHES))
    ]
    for report in reports[1:]:
        assert report.num_tokens == reports[0].num_tokens > 1000
        assert dataclasses.astuple(report) == pytest.approx(
            dataclasses.astuple(reports[0]), rel=1e-6
        )
