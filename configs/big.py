"""The paper's big model on WMT 2014 (Table 3, row "big"; Section 5).

Command: python train.py --config=configs/big.py --config.data.dir=DIR
  EN-FR: add --config.data.target_language=fr --config.model.dropout_rate=0.1
  --config.model.vocab_size=32000 (Sections 5.1 and 6.1).
Data: DIR holds train, validation and test, each as .en and .de (or .tsv, or .gz).
Hardware and time: the paper's 8 P100 GPUs took 3.5 days; here not run.
Expected score: the paper's 28.4 BLEU on newstest2014 EN-DE, tokenised, with
`evaluate.py --checkpoint=average`; here not run.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config
from transformer_jax.errors import UserError


def get_config(row: str = "") -> ConfigDict:
    """The paper's big model: 214M parameters with 37,000 word pieces."""
    if row:
        raise UserError(f"configs/big.py has no row {row!r}: it has none, leave it out")
    config: Any = base_config()

    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout_rate = 0.3

    config.training.steps = 300_000
    config.optimizer.warmup_steps = 4000

    # Every ten minutes of the paper's training, at 1.0 s a step.
    config.checkpoint.every_steps = 600
    config.checkpoint.keep_last = 20
    config.checkpoint.average_last = 20
    config.validation.every_steps = 3000  # a multiple, so that it saves none between
    return config
