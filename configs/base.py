"""The paper's base model (Table 3, row "base"), on aligned text files.

python train.py --config=configs/base.py --config.data.dir=DIR

Paper: 100,000 steps, 12 hours on 8 P100, BLEU 27.3 on newstest2014 EN-DE. Not run here.
63,045,632 parameters with 37,000 vocabulary rows.
"""

from ml_collections import ConfigDict

from transformer_jax.config import base_config


def get_config() -> ConfigDict:
    """The config."""
    return base_config()
