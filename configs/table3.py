"""Table 3 of the paper: the base model, its variations A to E, and the big model.

Command: python train.py --config=configs/table3.py:ROW, ROW one of base, A1 to A4, B1,
B2, C1 to C7, D1 to D4, E, big
  All of them, beside the printed figures: python -m transformer_jax reproduce table3
Data: WMT 2014 English-German, as for configs/base.py. The paper scores newstest2013,
the validation set, by the last checkpoint: evaluate.py --split=validation
--checkpoint=average, which averages no more than that one here. ("We used beam search
as described in the previous section, but no checkpoint averaging.")
Hardware and time: the paper's 8 P100 GPUs took 12 hours for base and 3.5 days for big;
it does not say for the others, all of 100,000 steps. Not run here at this size; small
ones are run by `reproduce table3 --scale=smoke`.
Expected score: the paper's, which stands with each row's changes in
transformer_jax/tables.py: perplexity per word piece, not smoothed, and BLEU by its own
script. Not run here.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config
from transformer_jax.errors import UserError
from transformer_jax.tables import TABLE_3

ROWS = {row.row: row.changes for row in TABLE_3}


def get_config(row: str = "base") -> ConfigDict:
    """The model of a row, which is scored without averaging."""
    if row not in ROWS:
        raise UserError(
            f"configs/table3.py has no row {row!r}, expected one of {', '.join(ROWS)}"
        )
    config: Any = base_config()
    config.checkpoint.average_last = 1
    for key, value in ROWS[row].items():
        group, name = key.split(".")
        config[group][name] = value
    return config
