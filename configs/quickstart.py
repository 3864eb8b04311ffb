"""A small model of generated phrases: dates, clock times, numbers, prices, EN-DE.

Command: python train.py --config=configs/quickstart.py
Data: none to fetch; the `phrases` corpus is generated.
Hardware and time: 3 minutes on 2 CPU cores.
Expected score: 99.5 sacreBLEU on its held-out test (seen: 99.53).
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    """A Transformer small enough for a laptop."""
    require_row("quickstart.py", row)
    config: Any = base_config()

    # With d = d_model and f = d_ff, an encoder layer has 4 d^2 (attention) + 2 d f + d
    # + f (feed-forward) + 4 d (two norms) = 131,968 parameters, a decoder layer 4 d^2 +
    # 2 d more = 197,760. 3 of each and 2000 d of embeddings: 1,245,184.
    config.model.vocab_size = 2000
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.d_ff = 256
    config.model.num_heads = 4
    config.model.dropout_rate = 0.1
    config.model.max_length = 64

    config.data.corpus = "phrases"
    config.data.num_phrases = 40_000
    config.data.max_length = 64
    config.data.row_length = 64

    config.training.steps = 800
    config.training.batch_tokens = 2048
    config.training.log_every_steps = 100

    # Peak rate (128 * 300)^-0.5 = 0.0051.
    config.optimizer.factor = 1.0
    config.optimizer.warmup_steps = 300
    config.optimizer.cooldown_steps = 400

    config.validation.every_steps = 200
    config.checkpoint.every_steps = 100
    return config
