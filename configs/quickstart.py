"""English -> German dates, times, numbers and prices: the whole path in minutes.

python train.py --config=configs/quickstart.py

Needs no data: the corpus `phrases` is generated.
"""

from ml_collections import ConfigDict

from transformer_jax.config import base_config


def get_config() -> ConfigDict:
    """The config."""
    config = base_config()
    model, data, training = config.model, config.data, config.training
    # 1500 * 128 embedding + 2 * 196,736 + 2 * 262,528 in the layers = 1,110,528.
    model.vocab_size = 1500
    model.num_layers = 2
    model.d_model = 128
    model.d_ff = 512
    model.num_heads = 4
    model.dropout_rate = 0.1
    model.max_length = 128
    data.corpus = "phrases"
    data.num_phrases = 40_000
    data.max_length = 64
    data.row_length = 64
    training.steps = 2500
    training.batch_tokens = 2048
    config.optimizer.warmup_steps = 400
    config.optimizer.factor = 0.5
    config.optimizer.cooldown_steps = 1000
    config.validation.every_steps = 500
    config.checkpoint.every_steps = 500
    return config
