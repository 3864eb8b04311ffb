"""Exported models: what is written is what is read, and damage is one line."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import trained_model
from transformer_jax.config import DecodingConfig, MeshConfig, TransformerConfig
from transformer_jax.data.tokenizer import Vocabularies, train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.models import Transformer
from transformer_jax.sharding import make_mesh
from transformer_jax.trained_model import TrainedModel
from transformer_jax.translation import Translator

ENGLISH = ["the cat sat on the mat", "a dog and a cat", "the dog sat"]
GERMAN = ["die katze sitzt auf der matte", "ein hund und eine katze", "der hund"]
PARAMETERS, CONFIG = "model.safetensors", "config.json"


def trained_with(vocabularies: Vocabularies) -> TrainedModel:
    config = TransformerConfig(
        vocab_size=300,
        num_layers=1,
        d_model=16,
        d_ff=24,
        num_heads=2,
        share_embeddings=False,
        max_length=40,
        dropout_rate=0.25,
    )
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)
    generator = np.random.default_rng(5)
    params = jax.tree.map(
        lambda leaf: generator.normal(0, 0.5, leaf.shape).astype(np.float32),
        shapes["params"],
    )
    return TrainedModel(
        config=config,
        params=params,
        vocabularies=vocabularies,
        decoding=DecodingConfig(
            beam_size=3, n_best=2, batch_tokens=64, max_extra_length=5, min_length=1
        ),
        source_language="en",
        target_language="pt-BR",
        max_length=24,
        steps=(10, 20),
    )


@pytest.fixture(scope="module")
def shared() -> TrainedModel:
    tokenizer = train_tokenizer(ENGLISH + GERMAN, vocab_size=300)
    return trained_with(Vocabularies(tokenizer, tokenizer))


@pytest.fixture(scope="module")
def separate() -> TrainedModel:
    return trained_with(
        Vocabularies(
            train_tokenizer(ENGLISH, vocab_size=300, algorithm="bpe"),
            train_tokenizer(GERMAN, vocab_size=300, algorithm="bpe"),
        )
    )


@pytest.fixture
def exported(shared, tmp_path):
    folder = tmp_path / "exported"
    shared.export(folder)
    return folder


def error_of_loading(folder, **options) -> str:
    """The message that loading ends in, which must be one line."""
    with pytest.raises(UserError) as caught:
        TrainedModel.load(folder, **options)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def leaves_of(params):
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_what_is_exported_is_what_is_loaded(kind, request, tmp_path):
    trained = request.getfixturevalue(kind)
    folder = tmp_path / "new" / "folder"
    trained.export(folder)
    loaded = TrainedModel.load(folder)
    for field in dataclasses.fields(TrainedModel):
        if field.name not in ("params", "vocabularies"):
            expected = getattr(trained, field.name)
            assert getattr(loaded, field.name) == expected, field.name
    expected = leaves_of(trained.params)
    got = leaves_of(loaded.params)
    assert got.keys() == expected.keys()
    for path, leaf in expected.items():
        assert got[path].dtype == leaf.dtype
        assert got[path].shape == leaf.shape
        assert got[path].tobytes() == leaf.tobytes(), path
    vocabularies = loaded.vocabularies
    assert vocabularies.source.model == trained.vocabularies.source.model
    assert vocabularies.target.model == trained.vocabularies.target.model
    assert (vocabularies.source is vocabularies.target) == (kind == "shared")


def test_the_folder_holds_the_vocabularies_that_there_are(shared, separate, tmp_path):
    shared.export(tmp_path / "shared")
    separate.export(tmp_path / "separate")
    assert {path.name for path in (tmp_path / "shared").iterdir()} == {
        PARAMETERS,
        CONFIG,
        "vocabulary.model",
    }
    assert {path.name for path in (tmp_path / "separate").iterdir()} == {
        PARAMETERS,
        CONFIG,
        "vocabulary.source.model",
        "vocabulary.target.model",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"shared", "separate"}


def test_an_exported_model_translates_as_before(separate, tmp_path):
    separate.export(tmp_path / "exported")
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    sentences = [*ENGLISH, "", "cat", "dog mat"]
    before = Translator.of(separate, mesh=mesh).translations(sentences)
    loaded = TrainedModel.load(tmp_path / "exported")
    assert Translator.of(loaded, mesh=mesh).translations(sentences) == before
    assert len({translation.text for translation in before}) > 2


def test_two_exports_of_a_model_are_the_same_bytes(shared, exported, tmp_path):
    shared.export(tmp_path / "again")
    for path in exported.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_cut_parameters_are_one_line(kept, exported):
    path = exported / PARAMETERS
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert str(exported) in error_of_loading(exported)


def test_parameters_that_are_something_else_are_one_line(exported):
    (exported / PARAMETERS).write_bytes(b"PK\x03\x04" * 100)
    assert str(exported) in error_of_loading(exported)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"text"', "{}", b"\xff\xfe"])
def test_a_config_that_is_none_is_one_line(text, exported):
    content = text.encode() if isinstance(text, str) else text
    (exported / CONFIG).write_bytes(content)
    assert str(exported) in error_of_loading(exported)


def change(folder, **values) -> None:
    path = folder / CONFIG
    content = json.loads(path.read_text())
    for name, value in values.items():
        if value is None:
            del content[name]
        else:
            content[name] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["transformer_jax model 2", "", 1])
def test_another_format_is_refused_by_name(name, exported):
    change(exported, format=name)
    assert "transformer_jax model 1" in error_of_loading(exported)


@pytest.mark.parametrize(
    "name",
    [
        "format",
        "model",
        "decoding",
        "shared_vocabulary",
        "source_language",
        "max_length",
        "steps",
    ],
)
def test_a_config_without_one_of_its_values_is_one_line(name, exported):
    change(exported, **{name: None})
    message = error_of_loading(exported)
    assert name in message
    assert str(exported) in message


def test_a_misspelt_key_is_named(exported):
    content = json.loads((exported / CONFIG).read_text())
    decoding = dict(content["decoding"])
    decoding["beam_sise"] = decoding.pop("beam_size")
    change(exported, decoding=decoding)
    message = error_of_loading(exported)
    assert "decoding.beam_sise" in message
    assert "beam_size" in message


def test_an_unknown_key_is_named(exported):
    change(exported, colour="red")
    assert "colour" in error_of_loading(exported)


def test_a_value_out_of_range_is_named(exported):
    content = json.loads((exported / CONFIG).read_text())
    change(exported, model={**content["model"], "num_layers": 0})
    assert "model.num_layers is 0" in error_of_loading(exported)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_length", "long"), ("steps", 3), ("source_language", 5), ("model", [1])],
)
def test_a_value_of_the_wrong_type_is_one_line(name, value, exported):
    change(exported, **{name: value})
    assert str(exported) in error_of_loading(exported)


def test_parameters_of_another_model_are_one_line(exported):
    content = json.loads((exported / CONFIG).read_text())
    change(exported, model={**content["model"], "num_layers": 2})
    assert str(exported) in error_of_loading(exported)


@pytest.mark.parametrize("name", [CONFIG, "vocabulary.model"])
def test_a_missing_file_is_named(name, exported):
    (exported / name).unlink()
    assert name in error_of_loading(exported)


def test_a_damaged_vocabulary_is_named(exported):
    (exported / "vocabulary.model").write_bytes(b"no vocabulary")
    assert "vocabulary.model" in error_of_loading(exported)


def test_a_folder_of_neither_kind_is_one_line(tmp_path):
    assert str(tmp_path) in error_of_loading(tmp_path)
    assert "absent" in error_of_loading(tmp_path / "absent")


@pytest.mark.parametrize("checkpoint", ["latest", "best", "average", "10"])
def test_an_exported_model_has_no_checkpoint_to_choose(checkpoint, exported):
    message = error_of_loading(exported, checkpoint=checkpoint)
    assert f"--checkpoint={checkpoint}" in message


def test_a_folder_with_something_in_it_is_left_alone(shared, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "note").write_text("keep me")
    with pytest.raises(UserError, match="exists already"):
        shared.export(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in folder.iterdir()] == ["note"]
    assert (folder / "note").read_text() == "keep me"


def test_a_file_in_the_place_of_the_folder_is_left_alone(shared, tmp_path):
    path = tmp_path / "file"
    path.write_text("keep me")
    with pytest.raises(UserError, match="exists already"):
        shared.export(path)
    assert path.read_text() == "keep me"


def test_an_empty_folder_is_taken(shared, tmp_path):
    shared.export(tmp_path)
    assert TrainedModel.load(tmp_path).config == shared.config


def test_what_a_crash_left_behind_does_not_stay(shared, tmp_path):
    partial = tmp_path / "exported.partial"
    partial.mkdir()
    (partial / "old").write_text("left by a crash")
    shared.export(tmp_path / "exported")
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]
    assert not (tmp_path / "exported" / "old").exists()


@pytest.mark.parametrize("number", [1, 2])
def test_nothing_is_left_when_writing_fails(number, shared, tmp_path, monkeypatch):
    calls = []
    write = trained_model.write_whole

    def failing(path, content):
        calls.append(path)
        if len(calls) == number:
            raise OSError("no space left on device")
        write(path, content)

    monkeypatch.setattr(trained_model, "write_whole", failing)
    with pytest.raises(OSError, match="no space left"):
        shared.export(tmp_path / "exported")
    assert len(calls) == number
    assert list(tmp_path.iterdir()) == []
