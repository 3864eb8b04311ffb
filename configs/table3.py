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
Expected score: the paper's, in the comment of each row: perplexity per word piece, not
smoothed, and BLEU by its own script. Not run here.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config
from transformer_jax.errors import UserError

_BIG = {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "model.dropout_rate": 0.3,
    "training.steps": 300_000,
}
# In the table's order: what a row changes of base, and the paper's perplexity and BLEU.
# A key, a value or a head is d_model / num_heads wide where a row does not say.
ROWS: dict[str, dict[str, int | float | str]] = {
    "base": {},  # 4.92  25.8
    "A1": {"model.num_heads": 1},  # d_k = d_v = 512: 5.29  24.9
    "A2": {"model.num_heads": 4},  # 128: 5.00  25.5
    "A3": {"model.num_heads": 16},  # 32: 4.91  25.8
    "A4": {"model.num_heads": 32},  # 16: 5.01  25.4
    "B1": {"model.d_k": 16},  # 5.16  25.1
    "B2": {"model.d_k": 32},  # 5.01  25.4
    "C1": {"model.num_layers": 2},  # 6.11  23.7
    "C2": {"model.num_layers": 4},  # 5.19  25.3
    "C3": {"model.num_layers": 8},  # 4.88  25.5
    "C4": {"model.d_model": 256},  # d_k = d_v = 32: 5.75  24.5
    "C5": {"model.d_model": 1024},  # 128: 4.66  26.0
    "C6": {"model.d_ff": 1024},  # 5.12  25.4
    "C7": {"model.d_ff": 4096},  # 4.75  26.2
    "D1": {"model.dropout_rate": 0.0},  # 5.77  24.6
    "D2": {"model.dropout_rate": 0.2},  # 4.95  25.5
    "D3": {"training.label_smoothing": 0.0},  # 4.67  25.3
    "D4": {"training.label_smoothing": 0.2},  # 5.47  25.7
    "E": {"model.positions": "learned"},  # 4.92  25.7
    "big": _BIG,  # 4.33  26.4
}


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
