"""The whole experiment as frozen, validated dataclasses; its defaults are the paper's.

Files under `configs/` return the mutable twin of `ExperimentConfig`, an
`ml_collections.ConfigDict` made by `base_config()`, changed where they differ from the
paper's base model. `freeze` turns the final values into the dataclasses that the rest
of the package reads. Section numbers are those of "Attention Is All You Need"
(Vaswani et al. 2017).
"""

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ml_collections import ConfigDict

from transformer_jax.errors import UserError

Group = typing.TypeVar("Group")


def _require_positive(config: Any, *names: str) -> None:
    for name in names:
        if not 0 < getattr(config, name) < math.inf:
            raise UserError(
                f"{_group(config)}.{name} is {getattr(config, name)}, expected more "
                "than 0"
            )


def _require_not_negative(config: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) < math.inf:
            raise UserError(
                f"{_group(config)}.{name} is {getattr(config, name)}, expected 0 or "
                "more"
            )


def _require_rate(config: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise UserError(
                f"{_group(config)}.{name} is {getattr(config, name)}, expected at "
                "least 0 and less than 1"
            )


def _group(config: Any) -> str:
    name = type(config).__name__.removesuffix("Config").lower()
    return "model" if name == "transformer" else name


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """What the model is (Section 3, Table 3)."""

    vocab_size: int = 37_000  # rows of each embedding matrix, special ids included
    num_layers: int = 6  # N, of the encoder and of the decoder each
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8  # h
    d_k: int = 0  # width of a head's queries and keys; 0 = d_model / num_heads
    d_v: int = 0  # width of a head's values; 0 = d_model / num_heads
    dropout_rate: float = 0.1  # sub-layer outputs and embedding sums (Section 5.4)
    attention_dropout_rate: float = 0.0  # attention weights; not in the paper
    norm: Literal["post", "pre"] = "post"  # LayerNorm(x + f(x)), or x + f(LayerNorm(x))
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"  # Section 3.5, row E
    max_length: int = 256  # longest sequence in tokens; rows of learned positions
    share_embeddings: bool = True  # one matrix for both embeddings and the softmax
    # Of activations; "auto" = float32 on a CPU, else bfloat16: see `on_platform`.
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    # What products with a weight matrix round their operands to; the sums are float32.
    matmul_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    # Activations of a layer are computed again in the backward pass, not kept: a third
    # more work for a fraction of the memory.
    remat: bool = False
    # r of Table 1: encoder self-attention sees the r positions around its own, see
    # `transformer_jax.models.neighborhoods`; 0 = all.
    encoder_neighborhood: int = 0

    def __post_init__(self) -> None:
        _require_positive(self, "vocab_size", "num_layers", "d_model", "d_ff")
        _require_positive(self, "num_heads", "max_length")
        _require_rate(self, "dropout_rate", "attention_dropout_rate")
        _require_not_negative(self, "d_k", "d_v", "encoder_neighborhood")
        for name in ("d_k", "d_v"):
            if getattr(self, name) == 0:
                if self.d_model % self.num_heads:
                    raise UserError(
                        f"model.d_model is {self.d_model}, not divisible by "
                        f"model.num_heads {self.num_heads}: change one of them or give "
                        f"model.{name}"
                    )
                object.__setattr__(self, name, self.d_model // self.num_heads)
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(
                f"model.d_model is {self.d_model}, expected an even number for "
                "sinusoidal positions: change it or set model.positions=learned"
            )

    def on_platform(self, platform: str) -> "TransformerConfig":
        """The same with each "auto" replaced by what is best on "cpu", "gpu" or "tpu".

        >>> TransformerConfig(matmul_dtype="float32").on_platform("tpu").dtype
        'bfloat16'
        """
        best = "float32" if platform == "cpu" else "bfloat16"
        names = ("dtype", "matmul_dtype")
        automatic = {name: best for name in names if getattr(self, name) == "auto"}
        return dataclasses.replace(self, **automatic)

    @classmethod
    def base(cls, **changes: Any) -> "TransformerConfig":
        """Table 3, row "base": N=6, d_model=512, d_ff=2048, h=8."""
        return cls(**changes)

    @classmethod
    def big(cls, **changes: Any) -> "TransformerConfig":
        """Table 3, row "big": d_model=1024, d_ff=4096, h=16, dropout 0.3."""
        values = dict(d_model=1024, d_ff=4096, num_heads=16, dropout_rate=0.3)
        return cls(**{**values, **changes})


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which sentence pairs to learn from (Section 5.1).

    `tfds` reads a translation dataset that tensorflow-datasets prepared, by default the
    paper's WMT 2014. `files` reads, for each stem such as "train", either
    `DIR/train.en` and `DIR/train.de` (named by the two languages; `.gz` too) or one
    `DIR/train.tsv`. `phrases` is generated: see `transformer_jax.data.phrases`.
    `treebank` reads .mrg files, for each name a file, a folder, or sections such as
    "02-21": see `transformer_jax.data.treebank`.
    """

    corpus: Literal["tfds", "files", "phrases", "treebank"] = "tfds"
    dir: str = ""  # of the files, or tensorflow-datasets' own; "" = its default
    dataset: str = "wmt14_translate"  # name of a tensorflow-datasets builder
    cache_dir: str = ""  # of word pieces prepared; "" = the user's cache folder
    source_language: str = "en"
    target_language: str = "de"
    train: tuple[str, ...] = ("train",)  # stems, concatenated
    validation: str = "validation"  # a stem; "" = held out of the training text
    test: str = "test"  # a stem; "" = held out of the training text
    held_out_pairs: int = 1000  # of each of the two; at most 5% of the text
    seed: int = 0  # of what is held out, and of the phrases
    num_phrases: int = 40_000  # training pairs of the `phrases` corpus
    # What stands for the words in a tree's tokens, and how a bracket is closed.
    leaves: Literal["tags", "words"] = "tags"
    closing: Literal["labelled", "plain"] = "labelled"  # ")NP", or ")"
    constituents: bool = False  # those of training trees are training trees as well
    extra: str = ""  # a name of parsed text that is added to the treebank; "" = none
    extra_ratio: float = 1.0  # of its trees for each one of the treebank
    max_length: int = 256  # longest training sentence in tokens; longer are left out
    row_length: int = 256  # positions of one row, into which sentences are packed

    def __post_init__(self) -> None:
        _require_positive(self, "held_out_pairs", "num_phrases", "max_length")
        _require_positive(self, "extra_ratio")
        if self.corpus == "treebank" and not (self.validation and self.test):
            raise UserError(
                "data.validation or data.test is empty, expected names: of a treebank "
                "nothing is held out"
            )
        _require_not_negative(self, "seed")
        if self.max_length >= 1 << 16:
            raise UserError(
                f"data.max_length is {self.max_length}, expected less than 65536"
            )
        if self.source_language == self.target_language:
            raise UserError(
                f"data.source_language and data.target_language are both "
                f"{self.source_language!r}, expected two languages"
            )
        if self.row_length < self.max_length:
            raise UserError(
                f"data.row_length is {self.row_length}, expected at least "
                f"data.max_length {self.max_length}: raise it or lower the other"
            )


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes word pieces; the number of pieces is `model.vocab_size`."""

    algorithm: Literal["bpe", "unigram"] = "bpe"
    shared: bool = True  # one vocabulary of both languages, or one each


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How long and on how much (Section 5.1, 5.2, 5.4)."""

    steps: int = 100_000
    batch_tokens: int = 25_000  # source and target positions of a global batch, each
    label_smoothing: float = 0.1
    # Of a device, at once: a batch of more is computed in parts whose gradients add up,
    # which changes its memory and not its update. 0 = no limit.
    max_tokens_per_device: int = 0
    # Updates with an infinite loss or gradient, or not a number, that may be left out
    # before training stops.
    max_skipped_updates: int = 0
    log_every_steps: int = 100
    early_stop_validations: int = 0  # stop after so many without a better one; 0 = off

    def __post_init__(self) -> None:
        _require_positive(self, "steps", "batch_tokens", "log_every_steps")
        _require_not_negative(self, "max_tokens_per_device", "max_skipped_updates")
        _require_not_negative(self, "early_stop_validations")
        _require_rate(self, "label_smoothing")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam and the learning rate of equation 3.

    lr = factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5); with
    `cooldown_steps` the last so many steps fall linearly to zero from there (not in the
    paper).
    """

    factor: float = 1.0
    warmup_steps: int = 4000
    cooldown_steps: int = 0
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    clip_norm: float = 0.0  # a longer gradient is scaled down to it; 0 = off, the paper

    def __post_init__(self) -> None:
        _require_positive(self, "factor", "warmup_steps", "eps")
        _require_not_negative(self, "cooldown_steps", "clip_norm")
        _require_rate(self, "b1", "b2")


@dataclasses.dataclass(frozen=True)
class ValidationConfig:
    """What is measured on the validation set while training."""

    # As a validation saves too, a multiple of checkpoint.every_steps leaves checkpoints
    # at equal distances to be averaged.
    every_steps: int = 1500
    # Translated greedily for valid/bleu, or parsed so for valid/f1; 0 = none.
    bleu_sentences: int = 200
    num_samples: int = 3  # of them, shown in the log
    metric: Literal["bleu", "f1", "loss"] = "bleu"  # what "best" means

    def __post_init__(self) -> None:
        _require_positive(self, "every_steps")
        _require_not_negative(self, "bleu_sentences", "num_samples")
        if self.metric != "loss" and self.bleu_sentences <= 0:
            raise UserError(
                f"validation.bleu_sentences is {self.bleu_sentences}, expected 1 or "
                "more: raise it or set validation.metric=loss"
            )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When to save, and what is kept: the newest, the best, and milestones.

    Averaging is over the newest `average_last` (Section 6.1).
    """

    every_steps: int = 1500  # about ten minutes of the paper's base training
    every_minutes: float = 0.0  # also so long after the last one; 0 = off
    keep_last: int = 5
    keep_every_steps: int = 0  # those at multiples of it stay for good; 0 = off
    average_last: int = 5

    def __post_init__(self) -> None:
        _require_positive(self, "every_steps", "keep_last", "average_last")
        _require_not_negative(self, "every_minutes", "keep_every_steps")
        if self.average_last > self.keep_last:
            raise UserError(
                f"checkpoint.average_last is {self.average_last}, more than the "
                f"checkpoint.keep_last {self.keep_last} that are kept: raise the latter"
            )


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How translations are searched for: Section 6.1, and options beyond the paper.

    What each does is told by `transformer_jax.decoding.beam_search.Search`.
    """

    beam_size: int = 4  # 1 = greedy
    n_best: int = 1  # hypotheses of each sentence; of a beam, at most beam_size
    length_penalty: float = 0.6  # alpha; 0 = none
    # ((5 + length) / 6)^alpha, as the paper, or length^alpha
    length_penalty_form: Literal["gnmt", "length"] = "gnmt"
    coverage_penalty: float = 0.0  # beta of Wu et al. 2016; 0 = none
    early_stopping: bool = True  # as soon as nothing better can come; no loss
    min_length: int = 0  # output tokens before the end token is allowed
    # The output has at most factor * input + extra tokens, end tokens counted, and at
    # most max_length (0 = no further limit).
    max_length: int = 0
    max_length_factor: float = 1.0
    max_extra_length: int = 50
    no_repeat_ngram_size: int = 0  # no so many tokens in a row occur twice; 0 = off
    only_trees: bool = False  # of a parser: trees over exactly the input's words
    sampling: bool = False  # draw n_best outputs at random instead of a beam search
    sampling_topk: int = 0  # from so many most probable tokens; 0 = all
    sampling_topp: float = 1.0  # from the most probable ones that sum to this; 1 = all
    sampling_temperature: float = 1.0
    batch_tokens: int = 0  # source positions of a device at once; 0 = by the device

    def __post_init__(self) -> None:
        _require_positive(self, "beam_size", "n_best")
        _require_not_negative(self, "length_penalty", "coverage_penalty")
        _require_not_negative(self, "min_length", "max_length", "max_length_factor")
        _require_not_negative(self, "max_extra_length", "no_repeat_ngram_size")
        _require_not_negative(self, "sampling_topk", "batch_tokens")
        _require_positive(self, "sampling_topp", "sampling_temperature")
        if self.sampling_topp > 1:
            raise UserError(
                f"decoding.sampling_topp is {self.sampling_topp}, expected at most 1"
            )
        if self.max_length and self.min_length >= self.max_length:
            raise UserError(
                f"decoding.min_length is {self.min_length}, expected less than "
                f"decoding.max_length {self.max_length}, which counts the end token too"
            )
        for name in ("min_length", "no_repeat_ngram_size"):
            if self.only_trees and getattr(self, name):
                raise UserError(
                    f"decoding.{name} is {getattr(self, name)} with "
                    "decoding.only_trees, which may leave no tree: drop one of them"
                )
        if not self.sampling:
            self._require_beam()
        elif self.coverage_penalty:
            raise UserError(
                f"decoding.coverage_penalty is {self.coverage_penalty} with "
                "decoding.sampling, which does not search: drop one of them"
            )

    def greedy(self) -> "DecodingConfig":
        """The same limits with the cheapest search."""
        names = ("sampling", "sampling_topk", "sampling_topp", "sampling_temperature")
        defaults = {name: getattr(DecodingConfig, name) for name in names}
        return dataclasses.replace(
            self, beam_size=1, n_best=1, coverage_penalty=0.0, **defaults
        )

    def _require_beam(self) -> None:
        if self.n_best > self.beam_size:
            raise UserError(
                f"decoding.n_best is {self.n_best}, expected at most "
                f"decoding.beam_size {self.beam_size}: lower it or widen the beam"
            )
        for name in ("sampling_topk", "sampling_topp", "sampling_temperature"):
            if getattr(self, name) != getattr(DecodingConfig, name):
                raise UserError(
                    f"decoding.{name} is {getattr(self, name)} without "
                    "decoding.sampling: set that too, or drop this"
                )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; -1 = all that are left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name, size in dataclasses.asdict(self).items():
            if size < 1 and size != -1:
                raise UserError(f"mesh.{name} is {size}, expected -1, 1 or more")


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """Everything a run depends on."""

    seed: int = 0
    model: TransformerConfig = TransformerConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    training: TrainingConfig = TrainingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    decoding: DecodingConfig = DecodingConfig()
    mesh: MeshConfig = MeshConfig()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}, expected 0 or more")
        if self.data.max_length > self.model.max_length:
            raise UserError(
                f"data.max_length is {self.data.max_length}, more than "
                f"model.max_length {self.model.max_length}: raise the latter or lower "
                "the former"
            )
        if self.data.corpus == "treebank" and not self.tokenizer.shared:
            raise UserError(
                "tokenizer.shared is False with data.corpus treebank, expected True: "
                "one vocabulary of words and trees"
            )
        unfit = "bleu" if self.data.corpus == "treebank" else "f1"
        if self.validation.metric == unfit:
            raise UserError(
                f"validation.metric is {unfit} with data.corpus {self.data.corpus}, "
                "expected f1 of a treebank, bleu of other text, or loss"
            )

    def to_dict(self) -> dict[str, Any]:
        """The values as plain, JSON-able types (tuples become lists)."""
        return {
            name: {k: list(v) if isinstance(v, tuple) else v for k, v in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in dataclasses.asdict(self).items()
        }


def base_config() -> ConfigDict:
    """The paper's base model as a locked ConfigDict, for files under `configs/`.

    >>> config = base_config()
    >>> config.model.d_model = 256
    >>> freeze(config).model.d_k
    32
    """
    values = ExperimentConfig().to_dict()
    # Left to be derived from d_model and num_heads, which a config file may change.
    values["model"].update(d_k=0, d_v=0)
    values["data"]["train"] = tuple(values["data"]["train"])
    return ConfigDict(values).lock()


def freeze(values: ConfigDict | Mapping[str, Any]) -> ExperimentConfig:
    """The validated experiment with these values; what is left out is the paper's.

    Raises:
      UserError: a key that does not exist, a value of the wrong type or range.
    """
    if isinstance(values, ConfigDict):
        values = values.to_dict()
    return _build(ExperimentConfig, values, prefix="")


def freeze_group(kind: type[Group], values: Mapping[str, Any], name: str) -> Group:
    """One validated group, such as `TransformerConfig`, by its name in a config.

    Raises:
      UserError: as `freeze`.
    """
    return _build(kind, values, prefix=f"{name}.")


def _build(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    fields = typing.get_type_hints(cls)
    arguments = {}
    for name, value in values.items():
        if name not in fields:
            raise UserError(f"no config key {prefix}{name}{nearest(name, fields)}")
        if dataclasses.is_dataclass(fields[name]):
            if not isinstance(value, Mapping):
                raise UserError(
                    f"config key {prefix}{name} is {value!r}, expected a group of "
                    f"keys: set {prefix}{name}.KEY"
                )
            arguments[name] = _build(
                typing.cast(type, fields[name]), value, f"{prefix}{name}."
            )
        else:
            arguments[name] = _checked(value, fields[name], f"{prefix}{name}")
    return cls(**arguments)


_NOUNS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def _checked(value: Any, kind: Any, name: str) -> Any:
    """The value as a `kind`, or a UserError that names the key."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value not in choices:
            raise UserError(
                f"config key {name} is {value!r}, expected one of "
                f"{', '.join(map(str, choices))}"
            )
        return value
    if origin is tuple:
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not values or not all(isinstance(item, str) and item for item in values):
            raise UserError(f"config key {name} is {value!r}, expected names, like a,b")
        return values
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and type(value) is int and abs(value) >= 2**31:
        raise UserError(f"config key {name} is {value}, expected less than 2^31")
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise UserError(f"config key {name} is {value!r}, expected {_NOUNS[kind]}")
    return value


def require_row(config: str, row: str, rows: Sequence[str] = ()) -> None:
    """Refuses a row that a config file does not have; "" is its experiment without one.

    Raises:
      UserError: naming the rows.
    """
    if row and row not in rows:
        expected = f", expected {', '.join(rows)} or none"
        raise UserError(
            f"configs/{config} has no row {row!r}"
            f"{expected if rows else ': it has none, leave it out'}"
        )


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """A phrase that names the likeliest meant of the `known` names, or all of them.

    >>> nearest("droput_rate", ["dropout_rate", "norm"])
    ': did you mean dropout_rate?'
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f": did you mean {close[0]}?"
    return f", expected one of {', '.join(known)}"
