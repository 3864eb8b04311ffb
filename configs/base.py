"""The paper's base model on WMT 2014 (Table 3, row "base"; Section 5).

Command: python train.py --config=configs/base.py
  English-French: --config=configs/base.py:en-fr
Data: WMT 2014, prepared once by `python -m transformer_jax prepare-tfds`. For files of
your own, add --config.data.corpus=files --config.data.dir=DIR for DIR's train,
validation and test, each as .en and .de (or .tsv, or .gz).
Hardware and time: the paper's 8 P100 GPUs took 12 hours; not run here.
Expected score: the paper's 27.3 BLEU on newstest2014 EN-DE and 38.1 EN-FR (Table 2),
by its own script, with `evaluate.py --checkpoint=average`, which averages the last 5
checkpoints; not run here.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    """The paper's base model: the package's defaults, none changed but for French."""
    require_row("base.py", row, ("en-fr",))
    config: Any = base_config()
    if row == "en-fr":
        config.data.target_language = "fr"
        config.model.vocab_size = 32_000  # Section 5.1
    return config
