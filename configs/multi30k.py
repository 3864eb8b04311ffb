"""Multi30k EN->DE or EN->FR, sized for an hour and a half on two CPU cores.

python train.py --config=configs/multi30k.py --config.data.dir=DIR

DIR holds train, val and test_2016_flickr, each with .en.gz and .de.gz (or .fr.gz), from
github.com/multi30k/dataset, data/task1/raw. For French add
--config.data.target_language=fr. Row `:tiny` is the Transformer-Tiny of the literature
(2.6M parameters; published 41.02 lower-cased tokenised BLEU); not run here.

`model.matmul_dtype` is "bfloat16": on CPUs with bfloat16 instructions (AMX,
avx512_bf16) products are several times as fast. On others add
--config.model.matmul_dtype=float32.
"""

from ml_collections import ConfigDict

from transformer_jax.config import base_config, nearest
from transformer_jax.errors import UserError

_ROWS = ("tiny",)


def get_config(row: str = "") -> ConfigDict:
    """The config, or its row "tiny"."""
    if row and row not in _ROWS:
        raise UserError(f"no row {row!r} in this config{nearest(row, _ROWS)}")
    config = base_config()
    model, data, training = config.model, config.data, config.training
    model.vocab_size = 8000
    model.num_layers = 3
    model.d_model = 256
    model.d_ff = 1024
    model.num_heads = 4
    model.dropout_rate = 0.2
    model.matmul_dtype = "bfloat16"
    model.max_length = 128
    data.validation = "val"
    data.test = "test_2016_flickr"
    data.max_length = 64  # no training sentence is longer
    data.row_length = 64
    training.steps = 8000  # of about 230 an epoch: 35 epochs
    training.batch_tokens = 2048
    config.optimizer.warmup_steps = 1000
    config.optimizer.factor = _factor(0.001, d_model=256, warmup_steps=1000)
    config.optimizer.cooldown_steps = 3000
    config.validation.every_steps = 1000
    config.checkpoint.every_steps = 250
    config.checkpoint.keep_last = config.checkpoint.average_last = 5
    if row == "tiny":
        model.vocab_size = 10_000
        model.num_layers = 4
        model.d_model = 128
        model.d_ff = 256
        model.dropout_rate = 0.3
        training.batch_tokens = 8192  # 4096 on each of two devices
        config.optimizer.warmup_steps = 2000
        config.optimizer.factor = _factor(0.005, d_model=128, warmup_steps=2000)
        config.optimizer.cooldown_steps = 0
        config.checkpoint.keep_last = config.checkpoint.average_last = 10
    return config


def _factor(peak: float, *, d_model: int, warmup_steps: int) -> float:
    """The factor of equation 3 that gives this peak learning rate."""
    return peak * (d_model * warmup_steps) ** 0.5
