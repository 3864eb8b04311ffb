"""Multi30k, 29,000 image captions, English to German.

Command: python train.py --config=configs/multi30k.py --config.data.dir=DIR
  The literature's Transformer-Tiny: --config=configs/multi30k.py:tiny
  French: add --config.data.target_language=fr
  A CPU without bfloat16 instructions: add --config.model.matmul_dtype=float32
Data: DIR holds train, val and test_2016_flickr, each as .en and .de (or .gz), as in
data/task1/raw of https://github.com/multi30k/dataset.
Hardware and time: 89 minutes on 2 cores of an Intel Xeon with AMX that did other work
beside it; 2.0 GB of memory.
Expected score: on test_2016_flickr with `evaluate.py --checkpoint=average` 40.80
sacreBLEU, and 41.23 BLEU lower-cased and tokenised. The published figure for the latter
is 41.02, by the tiny model (README-baseline.md of
https://github.com/LividWo/Revisit-MMT). Here the row tiny was not run.
"""

import math
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    """6.0M parameters, or 2.6M in the row `tiny`."""
    require_row("multi30k.py", row, ("tiny",))
    config: Any = base_config()

    config.model.vocab_size = 8000
    config.model.num_layers = 3
    config.model.d_model = 256
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.dropout_rate = 0.3
    config.model.max_length = 64
    # About 5 times faster on CPUs with bfloat16 instructions (avx512_bf16 or AMX, see
    # lscpu). Without them it is slower: add --config.model.matmul_dtype=float32.
    config.model.matmul_dtype = "bfloat16"

    config.data.corpus = "files"
    config.data.train = ("train",)
    config.data.validation = "val"
    config.data.test = "test_2016_flickr"
    config.data.max_length = 64
    config.data.row_length = 64

    config.training.steps = 7000
    config.training.batch_tokens = 4096

    config.optimizer.warmup_steps = 1000
    config.optimizer.factor = _factor(0.0015, d_model=256, warmup_steps=1000)  # 0.759
    config.optimizer.cooldown_steps = 3000

    config.validation.every_steps = 500
    config.checkpoint.every_steps = 250
    config.checkpoint.keep_last = 10
    config.checkpoint.average_last = 10

    if row == "tiny":
        config.model.vocab_size = 10_000
        config.model.num_layers = 4
        config.model.d_model = 128
        config.model.d_ff = 256
        config.training.steps = 8000
        config.training.batch_tokens = 8192
        config.optimizer.warmup_steps = 2000
        config.optimizer.factor = _factor(0.005, d_model=128, warmup_steps=2000)  # 2.53
        config.optimizer.cooldown_steps = 0
    return config


def _factor(peak_rate: float, *, d_model: int, warmup_steps: int) -> float:
    """The factor of equation 3 with which the rate peaks at `peak_rate`."""
    return peak_rate * math.sqrt(d_model * warmup_steps)
