"""The paper's base model on WMT 2014 (Table 3, row "base"; Section 5).

Command: python train.py --config=configs/base.py --config.data.dir=DIR
Data: DIR holds train, validation and test, each as .en and .de (or .tsv, or .gz).
Hardware and time: the paper's 8 P100 GPUs took 12 hours; here not run.
Expected score: the paper's 27.3 BLEU on newstest2014 EN-DE, tokenised, with
`evaluate.py --checkpoint=average`; here not run.
"""

from ml_collections import ConfigDict

from transformer_jax.config import base_config
from transformer_jax.errors import UserError


def get_config(row: str = "") -> ConfigDict:
    """The paper's base model: the package's defaults, none changed."""
    if row:
        raise UserError(
            f"configs/base.py has no row {row!r}: it has none, leave it out"
        )
    return base_config()
