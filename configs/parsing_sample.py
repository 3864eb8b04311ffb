"""A parser from the free sample of the Penn Treebank, to see Section 6.3 run.

Command: python train.py --config=configs/parsing_sample.py --config.data.dir=DIR
  Words instead of their tags in the trees: --config=configs/parsing_sample.py:words
Data: DIR holds train.mrg and dev.mrg (or .gz). NLTK distributes the sample as its
corpus package `treebank`, combined/*.mrg: any files of it can be one, or be named, one
a line, in DIR/train.list and DIR/dev.list. Ours are 3,396 trees to train on and 273.
Hardware and time: 65 minutes (`words` 50) on 2 cores of an Intel Xeon with AMX that did
much other work beside it; 1.7 GB of memory.
Expected score: on dev 66.6 F1 with `evaluate.py --beam_size=21 --only_trees=true`, 63.0
with neither; `words` 77.0 and 76.5. Not comparable with Table 4: other sentences, and a
twelfth of the training trees.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    """1.8M parameters."""
    require_row("parsing_sample.py", row, ("words",))
    config: Any = base_config()

    config.model.vocab_size = 3000
    config.model.num_layers = 3
    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.attention_dropout_rate = 0.1
    config.model.max_length = 256
    # Faster on CPUs with bfloat16 instructions, slower on others: see multi30k.py.
    config.model.matmul_dtype = "bfloat16"

    config.data.corpus = "treebank"
    config.data.target_language = "tree"
    config.data.validation = "dev"
    config.data.test = "dev"
    config.data.constituents = True  # short examples first teach which word is next

    config.training.steps = 9000
    config.training.batch_tokens = 2048

    # Peak rate (128 * 400)^-0.5 = 0.0044.
    config.optimizer.warmup_steps = 400
    config.optimizer.cooldown_steps = 3000

    config.validation.every_steps = 1000
    config.validation.bleu_sentences = 64
    config.validation.metric = "f1"
    config.checkpoint.every_steps = 500
    config.decoding.length_penalty = 0.3
    config.decoding.max_extra_length = 300

    if row == "words":
        config.data.leaves = "words"
        # Which word is next shows in the words before: that is learned sooner.
        config.training.steps = 6000
        config.optimizer.cooldown_steps = 2000
    return config
