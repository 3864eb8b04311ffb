"""The paper's big model (Table 3, row "big"), on aligned text files.

python train.py --config=configs/big.py --config.data.dir=DIR

Paper: 300,000 steps, 3.5 days on 8 P100, BLEU 28.4 on newstest2014 EN-DE. Not run here.
214,171,648 parameters with 37,000 vocabulary rows.
"""

from ml_collections import ConfigDict

from transformer_jax.config import base_config


def get_config() -> ConfigDict:
    """The config."""
    config = base_config()
    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout_rate = 0.3  # 0.1 for EN-FR
    config.training.steps = 300_000
    config.checkpoint.every_steps = 600  # about ten minutes of the paper's training
    config.checkpoint.keep_last = config.checkpoint.average_last = 20
    return config
