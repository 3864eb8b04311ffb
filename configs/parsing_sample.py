from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    require_row("parsing_sample.py", row, ("words",))
    config: Any = base_config()

    config.model.vocab_size = 3000
    config.model.num_layers = 3
    config.model.d_model = 256
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.dropout_rate = 0.2
    config.model.attention_dropout_rate = 0.1
    config.model.max_length = 512
    config.model.matmul_dtype = "bfloat16"

    config.data.corpus = "treebank"
    config.data.constituents = True
    config.data.target_language = "tree"
    config.data.validation = "dev"
    config.data.test = "dev"
    config.data.max_length = 256
    config.data.row_length = 256

    config.training.steps = 4000
    config.training.batch_tokens = 4096

    # Peak rate 0.759 * (256 * 1000)^-0.5 = 0.0015.
    config.optimizer.factor = 0.759
    config.optimizer.warmup_steps = 1000
    config.optimizer.cooldown_steps = 1500

    config.validation.every_steps = 500
    config.validation.bleu_sentences = 64
    config.validation.metric = "f1"
    config.checkpoint.every_steps = 250
    config.checkpoint.keep_last = 10
    config.checkpoint.average_last = 10
    config.decoding.max_extra_length = 300
    return config
