"""A starting point for your own two text files, line by line each other's translation.

Command: python train.py --config=configs/files.py --config.data.dir=mydata
  Other languages: add --config.data.source_language=fi --config.data.target_language=sv
Data: mydata/train.en and mydata/train.de (or .gz, or one train.tsv). Validation and
test are held out of them; to bring your own, add --config.data.validation=NAME and
--config.data.test=NAME for mydata/NAME.en and mydata/NAME.de.
Hardware and time: made for CPUs and for about 10,000 to 300,000 pairs; not run.
Expected score: depends on the text; not run.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    """7.6M parameters; raise the sizes with the amount of text."""
    require_row("files.py", row)
    config: Any = base_config()

    config.model.vocab_size = 8000
    config.model.num_layers = 3
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.model.dropout_rate = 0.3  # less where there is more text: 0.1 for millions
    config.model.max_length = 128

    config.data.corpus = "files"
    config.data.validation = ""  # held out of the training text
    config.data.test = ""
    config.data.max_length = 128
    config.data.row_length = 128

    config.training.steps = 10_000
    config.training.batch_tokens = 4096

    # Peak rate 0.759 * (256 * 1000)^-0.5 = 0.0015.
    config.optimizer.factor = 0.759
    config.optimizer.warmup_steps = 1000
    config.optimizer.cooldown_steps = 3000

    config.validation.every_steps = 500
    config.checkpoint.every_steps = 500
    return config
