"""A small model for one's own aligned text; a start, to be tuned on the validation set.

python train.py --config=configs/files.py --config.data.dir=DIR

DIR holds train.en and train.de (or the languages given), plain or .gz, or train.tsv.
"""

from ml_collections import ConfigDict

from transformer_jax.config import base_config


def get_config() -> ConfigDict:
    """The config."""
    config = base_config()
    config.model.vocab_size = 8000
    config.model.num_layers = 3
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.data.validation = config.data.test = ""  # held out of the training text
    config.data.max_length = config.data.row_length = 128
    config.training.steps = 10_000
    config.training.batch_tokens = 4096
    config.optimizer.warmup_steps = 1000
    config.optimizer.factor = 0.5
    config.checkpoint.every_steps = 500
    return config
