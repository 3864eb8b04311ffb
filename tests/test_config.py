"""The config: its values are the paper's, and each mistake is one line."""

import dataclasses
import json
from typing import Any

import pytest

from transformer_jax.config import (
    CheckpointConfig,
    DataConfig,
    DecodingConfig,
    ExperimentConfig,
    TransformerConfig,
    ValidationConfig,
    base_config,
    freeze,
    nearest,
)
from transformer_jax.errors import UserError


def error_of(values: Any) -> str:
    """The message that freezing the values ends in, which must be one line."""
    with pytest.raises(UserError) as caught:
        freeze(values)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def test_base_model_is_table_3s() -> None:
    model = TransformerConfig.base()
    assert (model.num_layers, model.d_model, model.d_ff) == (6, 512, 2048)
    assert (model.num_heads, model.d_k, model.d_v) == (8, 64, 64)
    assert model.dropout_rate == 0.1
    assert model.attention_dropout_rate == 0.0
    assert (model.norm, model.positions, model.share_embeddings) == (
        "post",
        "sinusoidal",
        True,
    )


def test_big_model_is_table_3s() -> None:
    model = TransformerConfig.big()
    assert (model.num_layers, model.d_model, model.d_ff) == (6, 1024, 4096)
    assert (model.num_heads, model.d_k, model.d_v) == (16, 64, 64)
    assert model.dropout_rate == 0.3


def test_changes_go_on_top_of_base_and_big() -> None:
    assert TransformerConfig.base(d_model=256).d_k == 32
    big = TransformerConfig.big(dropout_rate=0.1)
    assert (big.dropout_rate, big.d_model) == (0.1, 1024)


def test_training_defaults_are_the_papers() -> None:
    config = ExperimentConfig()
    assert config.training.steps == 100_000
    assert config.training.batch_tokens == 25_000
    assert config.training.label_smoothing == 0.1
    optimizer = config.optimizer
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.98, 1e-9)
    assert optimizer.warmup_steps == 4000
    assert (config.decoding.beam_size, config.decoding.length_penalty) == (4, 0.6)
    assert config.decoding.max_extra_length == 50
    assert config.checkpoint.average_last == 5


def test_freezing_the_base_config_gives_the_defaults() -> None:
    assert freeze(base_config()) == ExperimentConfig()
    assert freeze({}) == ExperimentConfig()


def test_to_dict_survives_json_and_freezes_to_the_same_experiment() -> None:
    values = base_config()
    values.seed = 7
    values.model.d_model = 96
    values.data.train = ("first", "second")
    values.optimizer.factor = 2.5
    config = freeze(values)
    plain = json.loads(json.dumps(config.to_dict()))
    assert plain == config.to_dict()
    assert plain["data"]["train"] == ["first", "second"]
    assert freeze(plain) == config


def test_head_widths_follow_a_changed_width_and_can_be_given() -> None:
    values = base_config()
    values.model.d_model = 130
    values.model.num_heads = 13
    assert (freeze(values).model.d_k, freeze(values).model.d_v) == (10, 10)
    values.model.d_k = 3
    assert (freeze(values).model.d_k, freeze(values).model.d_v) == (3, 10)


def test_base_config_is_fresh_each_time() -> None:
    changed = base_config()
    changed.model.d_model = 2
    assert base_config().model.d_model == 512


def test_base_config_refuses_new_keys() -> None:
    values = base_config()
    with pytest.raises(AttributeError):
        values.model.d_modle = 2


def test_frozen_values_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        freeze({}).model.d_model = 2  # type: ignore[misc]


def test_text_is_a_tuple_of_one_name() -> None:
    assert freeze({"data": {"train": "news"}}).data.train == ("news",)
    assert freeze({"data": {"train": ["a", "b"]}}).data.train == ("a", "b")


def test_whole_numbers_are_fine_where_a_fraction_is_expected() -> None:
    factor = freeze({"optimizer": {"factor": 2}}).optimizer.factor
    assert factor == 2.0
    assert isinstance(factor, float)


@pytest.mark.parametrize(
    ("values", "wrong", "meant"),
    [
        ({"model": {"droput_rate": 0.1}}, "model.droput_rate", "dropout_rate"),
        ({"model": {"num_head": 4}}, "model.num_head", "num_heads"),
        ({"modle": {}}, "modle", "model"),
        ({"training": {"stepz": 1}}, "training.stepz", "steps"),
    ],
)
def test_an_unknown_key_names_the_nearest(
    values: dict[str, Any], wrong: str, meant: str
) -> None:
    message = error_of(values)
    assert f"{wrong}:" in message
    assert f"did you mean {meant}?" in message


def test_a_key_like_no_other_names_them_all() -> None:
    message = error_of({"mesh": {"zzzzzz": 1}})
    assert "mesh.zzzzzz" in message
    assert "data, fsdp, tensor" in message
    assert nearest("qqq", ["one", "two"]) == ", expected one of one, two"


@pytest.mark.parametrize(
    ("group", "key", "value", "expected"),
    [
        ("model", "num_layers", "six", "a whole number"),
        ("model", "num_layers", 6.0, "a whole number"),
        ("model", "num_layers", True, "a whole number"),
        ("model", "num_layers", None, "a whole number"),
        ("model", "dropout_rate", "0.1", "a number"),
        ("model", "dropout_rate", False, "a number"),
        ("model", "share_embeddings", 1, "true or false"),
        ("data", "dir", 3, "text"),
        ("model", "norm", "middle", "post, pre"),
        ("model", "dtype", "float16", "float32, bfloat16"),
        ("data", "train", [], "names"),
        ("data", "train", [1, 2], "names"),
        ("data", "train", [""], "names"),
        ("optimizer", "factor", float("nan"), "a number"),
        ("optimizer", "eps", float("inf"), "a number"),
        ("decoding", "length_penalty", float("inf"), "a number"),
    ],
)
def test_a_value_of_the_wrong_type_names_key_value_and_type(
    group: str, key: str, value: Any, expected: str
) -> None:
    message = error_of({group: {key: value}})
    assert f"{group}.{key}" in message
    assert repr(value) in message
    assert expected in message


def test_stems_that_are_no_list_are_a_user_error() -> None:
    assert "data.train" in error_of({"data": {"train": 3}})


def test_a_value_in_place_of_a_group_says_so() -> None:
    message = error_of({"model": 3})
    assert "config key model is 3" in message
    assert "model.KEY" in message


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("model", "vocab_size", 0),
        ("model", "num_layers", 0),
        ("model", "d_model", -2),
        ("model", "d_ff", 0),
        ("model", "num_heads", 0),
        ("model", "max_length", 0),
        ("model", "d_k", -1),
        ("model", "d_v", -1),
        ("model", "dropout_rate", 1.0),
        ("model", "dropout_rate", -0.1),
        ("model", "dropout_rate", float("nan")),
        ("model", "attention_dropout_rate", 1.5),
        ("data", "held_out_pairs", 0),
        ("data", "num_phrases", 0),
        ("data", "max_length", 0),
        ("training", "steps", 0),
        ("training", "batch_tokens", -1),
        ("training", "log_every_steps", 0),
        ("training", "label_smoothing", 1.0),
        ("optimizer", "factor", 0.0),
        ("optimizer", "warmup_steps", 0),
        ("optimizer", "eps", 0.0),
        ("validation", "every_steps", 0),
        ("checkpoint", "every_steps", 0),
        ("checkpoint", "keep_last", 0),
        ("checkpoint", "average_last", 0),
        ("decoding", "beam_size", 0),
        ("decoding", "batch_tokens", -1),
        ("decoding", "length_penalty", -0.5),
        ("decoding", "max_extra_length", -1),
        ("optimizer", "b1", 1.0),
        ("optimizer", "b2", 1.5),
        ("optimizer", "cooldown_steps", -1),
        ("training", "early_stop_validations", -1),
        ("training", "max_tokens_per_device", -1),
        ("training", "max_skipped_updates", -1),
        ("optimizer", "clip_norm", -0.5),
        ("checkpoint", "every_minutes", -1.0),
        ("checkpoint", "keep_every_steps", -1),
        ("validation", "num_samples", -1),
        ("validation", "bleu_sentences", -1),
        ("mesh", "data", 0),
        ("mesh", "fsdp", -2),
    ],
)
def test_a_value_out_of_range_names_key_and_value(
    group: str, key: str, value: float
) -> None:
    message = error_of({group: {key: value}})
    assert f"{group}.{key} is {value}" in message
    assert "expected" in message


def test_the_edges_of_ranges_are_allowed() -> None:
    assert TransformerConfig(dropout_rate=0.0).dropout_rate == 0.0
    assert DecodingConfig(length_penalty=0.0).length_penalty == 0.0
    assert CheckpointConfig(keep_last=3, average_last=3).average_last == 3
    assert DataConfig(max_length=31, row_length=31).row_length == 31


def test_a_width_that_heads_do_not_divide_names_both() -> None:
    message = error_of({"model": {"d_model": 100, "num_heads": 7}})
    assert "model.d_model is 100" in message
    assert "model.num_heads 7" in message
    given = TransformerConfig(d_model=100, num_heads=7, d_k=5, d_v=3)
    assert (given.d_k, given.d_v) == (5, 3)


def test_sinusoids_need_an_even_width_and_learned_positions_do_not() -> None:
    odd = {"d_model": 15, "num_heads": 3}
    assert "even" in error_of({"model": odd})
    assert freeze({"model": {**odd, "positions": "learned"}}).model.d_model == 15


def test_lengths_that_contradict_each_other_are_named() -> None:
    message = error_of({"data": {"max_length": 64, "row_length": 63}})
    assert "data.row_length is 63" in message
    assert "data.max_length 64" in message
    message = error_of({"model": {"max_length": 100}})
    assert "data.max_length is 256" in message
    assert "model.max_length 100" in message


def test_one_language_is_not_a_pair() -> None:
    message = error_of({"data": {"source_language": "de"}})
    assert "'de'" in message


def test_more_checkpoints_cannot_be_averaged_than_are_kept() -> None:
    message = error_of({"checkpoint": {"keep_last": 2, "average_last": 3}})
    assert "checkpoint.average_last is 3" in message
    assert "checkpoint.keep_last 2" in message


def test_best_by_bleu_needs_sentences_to_score() -> None:
    assert "bleu_sentences" in error_of({"validation": {"bleu_sentences": 0}})
    by_loss = ValidationConfig(bleu_sentences=0, metric="loss")
    assert by_loss.bleu_sentences == 0


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"beam_size": 3, "n_best": 4}, ["n_best is 4", "beam_size 3"]),
        ({"n_best": 5}, ["n_best is 5", "beam_size 4"]),
        ({"sampling_topk": 5}, ["sampling_topk is 5", "decoding.sampling"]),
        ({"sampling_topp": 0.9}, ["sampling_topp is 0.9", "decoding.sampling"]),
        (
            {"sampling_temperature": 0.5},
            ["sampling_temperature is 0.5", "decoding.sampling"],
        ),
        ({"sampling": True, "sampling_topp": 1.5}, ["sampling_topp is 1.5"]),
        ({"sampling": True, "sampling_topp": 0.0}, ["sampling_topp is 0.0"]),
        ({"sampling": True, "sampling_topk": -1}, ["sampling_topk is -1"]),
        (
            {"sampling": True, "sampling_temperature": 0.0},
            ["sampling_temperature is 0.0"],
        ),
        (
            {"sampling": True, "coverage_penalty": 0.2},
            ["coverage_penalty is 0.2", "decoding.sampling"],
        ),
        ({"coverage_penalty": -0.2}, ["coverage_penalty is -0.2"]),
        ({"min_length": 7, "max_length": 7}, ["min_length is 7", "max_length 7"]),
        ({"min_length": 9, "max_length": 7}, ["min_length is 9", "max_length 7"]),
        ({"min_length": -1}, ["min_length is -1"]),
        ({"max_length": -1}, ["max_length is -1"]),
        ({"max_length_factor": -0.5}, ["max_length_factor is -0.5"]),
        ({"no_repeat_ngram_size": -1}, ["no_repeat_ngram_size is -1"]),
        ({"n_best": 0}, ["n_best is 0"]),
        ({"only_trees": True, "min_length": 3}, ["min_length is 3", "only_trees"]),
        (
            {"only_trees": True, "no_repeat_ngram_size": 2},
            ["no_repeat_ngram_size is 2", "only_trees"],
        ),
    ],
)
def test_a_search_that_contradicts_itself_is_one_line(values, names) -> None:
    message = error_of({"decoding": values})
    assert all(name in message for name in names)
    with pytest.raises(UserError) as caught:
        DecodingConfig(**values)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "values",
    [
        {"beam_size": 4, "n_best": 4},
        {"sampling": True, "beam_size": 1, "n_best": 9},
        {"sampling": True, "sampling_topk": 5, "sampling_topp": 1.0},
        {"sampling": True, "sampling_topp": 0.5, "sampling_temperature": 2.0},
        {"coverage_penalty": 0.2},
        {"min_length": 6, "max_length": 7},
        {"min_length": 500},  # without a maximum: it is raised
        {"max_length_factor": 0.0, "max_extra_length": 1},
        {"only_trees": True, "sampling": True, "beam_size": 1, "n_best": 3},
    ],
)
def test_a_search_at_the_edge_of_what_is_allowed_is_built(values) -> None:
    built = freeze({"decoding": values}).decoding
    assert built == DecodingConfig(**values)
    for name, value in values.items():
        assert getattr(built, name) == value


def test_the_greedy_search_keeps_limits_and_leaves_out_all_else() -> None:
    limits = {
        "min_length": 2,
        "max_length": 30,
        "max_length_factor": 1.5,
        "max_extra_length": 7,
        "no_repeat_ngram_size": 3,
        "length_penalty": 0.9,
        "batch_tokens": 64,
    }
    greedy = DecodingConfig(beam_size=1, **limits)
    beam = DecodingConfig(beam_size=8, n_best=5, coverage_penalty=0.2, **limits)
    assert beam.greedy() == greedy
    sampled = DecodingConfig(
        sampling=True,
        n_best=9,
        sampling_topk=5,
        sampling_topp=0.5,
        sampling_temperature=2.0,
        **limits,
    )
    assert sampled.greedy() == greedy
    assert greedy.greedy() == greedy
