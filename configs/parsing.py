"""The paper's parser: English constituency parsing on the WSJ (Section 6.3).

Command: python train.py --config=configs/parsing.py --config.data.dir=DIR
  Semi-supervised: --config=configs/parsing.py:semi
  Both, beside the printed figures: python -m transformer_jax reproduce table4
Data: DIR is the WSJ part of the Penn Treebank (https://catalog.ldc.upenn.edu/LDC99T42,
not free), with its sections 02 to 23 as folders of .mrg files. The row `semi` also
takes trees that other parsers made, DIR/parsed, a folder or a file of .mrg; the paper's
17M sentences of them are not public. For free trees see configs/parsing_sample.py.
Hardware and time: the paper does not say; not run.
Expected score: the paper's 91.3 F1 on section 23, and 92.7 semi-supervised (Table 4);
not run.

Section 6.3 gives 4 layers, d_model 1024, both vocabularies, beam 21, alpha 0.3 and
outputs of at most input + 300. "All other parameters remained the same as the
English-to-German base translation model": by the letter h is 8, so that d_k is 128,
d_ff 2048, and training 100,000 steps of 25,000 tokens. "The dropout, both attention and
residual" and the learning rates were chosen on section 22 and are not printed; those
here are tensor2tensor's. How a tree becomes a sequence is not said either: see
transformer_jax/parsing/linear.py.
"""

from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import base_config, require_row


def get_config(row: str = "") -> ConfigDict:
    """100M parameters, or in the row `semi` 117M."""
    require_row("parsing.py", row, ("semi",))
    config: Any = base_config()

    config.model.vocab_size = 16_000
    config.model.num_layers = 4
    config.model.d_model = 1024
    config.model.max_length = 512

    config.data.corpus = "treebank"
    config.data.target_language = "tree"
    config.data.train = ("02-21",)
    config.data.validation = "22"
    config.data.test = "23"
    # Two of the 3,396 training trees of the free sample have more than 256 tokens: 258
    # and, the longest, 573.
    config.data.max_length = 512
    config.data.row_length = 512

    # tensor2tensor's transformer_parsing_base: attention_dropout and
    # layer_prepostprocess_dropout 0.2, learning_rate_warmup_steps 16000, learning_rate
    # 0.05 where 0.1 is equation 3. The rate peaks at 0.5 * (1024 * 16000)^-0.5 =
    # 0.00012. (https://github.com/tensorflow/tensor2tensor, models/transformer.py)
    config.model.dropout_rate = 0.2
    config.model.attention_dropout_rate = 0.2
    config.optimizer.factor = 0.5
    config.optimizer.warmup_steps = 16_000

    config.validation.metric = "f1"

    config.decoding.beam_size = 21
    config.decoding.length_penalty = 0.3
    config.decoding.max_extra_length = 300

    if row == "semi":
        config.model.vocab_size = 32_000
        config.data.extra = "parsed"
        # 17M sentences for 40,000: all trees are read equally often.
        config.data.extra_ratio = 425.0
    return config
