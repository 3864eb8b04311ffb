"""The paper's big model on WMT 2014 (Table 3, row "big"; Section 5).

Command: python train.py --config=configs/big.py
  English-French: --config=configs/big.py:en-fr
Data: WMT 2014, prepared once by `python -m transformer_jax prepare-tfds`. For files of
your own, add --config.data.corpus=files --config.data.dir=DIR for DIR's train,
validation and test, each as .en and .de (or .tsv, or .gz).
Hardware and time: the paper's 8 P100 GPUs took 3.5 days; not run here.
Expected score: the paper's 28.4 BLEU on newstest2014 EN-DE (Table 2) and, EN-FR, 41.8
(Table 2) or 41.0 (Section 6.1), by its own script, with `evaluate.py
--checkpoint=average`, which averages the last 20 checkpoints; not run here.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    """The paper's big model: 214M parameters with 37,000 word pieces."""
    require_row("big.py", row, ("en-fr",))
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

    if row == "en-fr":
        config.data.target_language = "fr"
        config.model.vocab_size = 32_000  # Section 5.1
        config.model.dropout_rate = 0.1  # Section 6.1
    return config
