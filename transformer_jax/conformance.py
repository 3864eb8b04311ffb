"""What the paper says, by config key; where a config deviates, and where it is silent.

Section numbers are those of "Attention Is All You Need" (Vaswani et al. 2017).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from transformer_jax.config import ExperimentConfig, freeze
from transformer_jax.tables import TABLE_3, Variation

Model = Literal["base", "big", "parser"]
Text = Literal["EN-DE", "EN-FR", "WSJ", "semi-supervised"]


class Reference(NamedTuple):
    """One of the models that the paper trained for Tables 2 and 4."""

    model: Model
    text: Text

    def __str__(self) -> str:
        """As in "big EN-FR" or "parser WSJ"."""
        return f"{self.model} {self.text}"


class PaperValue(NamedTuple):
    """What the paper sets a config key to."""

    key: str
    section: str  # of the paper; "" = it does not say, and this was chosen here
    value: Any  # of base EN-DE, or of the parser
    # Of "big", "EN-FR", "big EN-FR" or "semi-supervised", where they differ.
    others: Mapping[str, Any] = {}
    table_3: Any = None  # in Table 3, where that is another

    def of(self, reference: Reference) -> Any:
        """The value of one of the paper's models."""
        names = str(reference), reference.model, reference.text
        return next((self.others[n] for n in names if n in self.others), self.value)


_SPACING = "Section 6.1, ten minutes of its steps"

PAPER = (
    PaperValue("model.vocab_size", "Section 5.1", 37_000, {"EN-FR": 32_000}),
    PaperValue("model.num_layers", "Section 3.1", 6),
    PaperValue("model.d_model", "Section 3.1, Table 3", 512, {"big": 1024}),
    PaperValue("model.d_ff", "Section 3.3, Table 3", 2048, {"big": 4096}),
    PaperValue("model.num_heads", "Section 3.2.2, Table 3", 8, {"big": 16}),
    PaperValue("model.d_k", "Section 3.2.2", 64),
    PaperValue("model.d_v", "Section 3.2.2", 64),
    PaperValue(
        "model.dropout_rate",
        "Sections 5.4 and 6.1, Table 3",
        0.1,
        {"big": 0.3, "big EN-FR": 0.1},
    ),
    PaperValue("model.attention_dropout_rate", "Section 5.4", 0.0),
    PaperValue("model.norm", "Section 3.1", "post"),
    PaperValue("model.positions", "Section 3.5", "sinusoidal"),
    PaperValue("model.share_embeddings", "Section 3.4", True),
    PaperValue("model.encoder_neighborhood", "Section 4", 0),
    PaperValue("model.dtype", "", "auto"),
    PaperValue("model.matmul_dtype", "", "auto"),
    PaperValue("data.corpus", "Section 5.1, WMT 2014", "tfds"),
    PaperValue("data.dataset", "Section 5.1", "wmt14_translate"),
    PaperValue("data.source_language", "Section 5.1", "en"),
    PaperValue("data.target_language", "Section 5.1", "de", {"EN-FR": "fr"}),
    PaperValue("data.train", "Section 5.1", ("train",)),
    PaperValue("data.validation", "Section 6.2, newstest2013", "validation"),
    PaperValue("data.test", "Section 6.1, newstest2014", "test"),
    PaperValue("data.max_length", "", 256),
    PaperValue("data.row_length", "", 256),
    PaperValue("tokenizer.algorithm", "Section 5.1", "bpe"),
    PaperValue("tokenizer.shared", "Section 5.1", True),
    PaperValue("training.steps", "Section 5.2", 100_000, {"big": 300_000}),
    PaperValue("training.batch_tokens", "Section 5.1", 25_000),
    PaperValue("training.label_smoothing", "Section 5.4", 0.1),
    PaperValue("training.early_stop_validations", "Section 5.2", 0),
    PaperValue("optimizer.factor", "Section 5.3", 1.0),
    PaperValue("optimizer.warmup_steps", "Section 5.3", 4000),
    PaperValue("optimizer.cooldown_steps", "Section 5.3", 0),
    PaperValue("optimizer.b1", "Section 5.3", 0.9),
    PaperValue("optimizer.b2", "Section 5.3", 0.98),
    PaperValue("optimizer.eps", "Section 5.3", 1e-9),
    PaperValue("optimizer.clip_norm", "Section 5.3", 0.0),
    PaperValue("checkpoint.every_steps", _SPACING, 1500, {"big": 600}),
    PaperValue("checkpoint.every_minutes", _SPACING, 0.0),
    PaperValue("checkpoint.average_last", "Section 6.1", 5, {"big": 20}, table_3=1),
    PaperValue("decoding.beam_size", "Section 6.1", 4),
    PaperValue("decoding.length_penalty", "Section 6.1", 0.6),
    PaperValue("decoding.length_penalty_form", "Section 6.1", "gnmt"),
    PaperValue("decoding.coverage_penalty", "Section 6.1", 0.0),
    PaperValue("decoding.early_stopping", "Section 6.1", True),
    PaperValue("decoding.min_length", "Section 6.1", 0),
    PaperValue("decoding.max_length", "Section 6.1", 0),
    PaperValue("decoding.max_length_factor", "Section 6.1", 1.0),
    PaperValue("decoding.max_extra_length", "Section 6.1", 50),
    PaperValue("decoding.no_repeat_ngram_size", "Section 6.1", 0),
    PaperValue("decoding.only_trees", "Section 6.3", False),
    PaperValue("decoding.sampling", "Section 6.1", False),
)

# What the parser has of its own. "All other parameters remained the same as the
# English-to-German base translation model."
PARSER = (
    PaperValue("model.vocab_size", "Section 6.3", 16_000, {"semi-supervised": 32_000}),
    PaperValue("model.num_layers", "Section 6.3", 4),
    PaperValue("model.d_model", "Section 6.3", 1024),
    PaperValue("model.d_k", "", 128),
    PaperValue("model.d_v", "", 128),
    PaperValue("model.dropout_rate", "", 0.2),
    PaperValue("model.attention_dropout_rate", "", 0.2),
    PaperValue("data.corpus", "Section 6.3, Penn Treebank", "treebank"),
    PaperValue("data.target_language", "Section 6.3", "tree"),
    PaperValue("data.train", "Section 6.3, about 40K sentences", ("02-21",)),
    PaperValue("data.validation", "Section 6.3", "22"),
    PaperValue("data.test", "Section 6.3, Table 4", "23"),
    PaperValue("data.extra", "Section 6.3", "", {"semi-supervised": "parsed"}),
    PaperValue("data.extra_ratio", "", 1.0, {"semi-supervised": 425.0}),
    PaperValue("data.constituents", "Section 6.3, about 40K sentences", False),
    PaperValue("data.leaves", "", "tags"),
    PaperValue("data.closing", "", "labelled"),
    PaperValue("data.max_length", "", 512),
    PaperValue("data.row_length", "", 512),
    PaperValue("optimizer.factor", "", 0.5),
    PaperValue("optimizer.warmup_steps", "", 16_000),
    PaperValue("decoding.beam_size", "Section 6.3", 21),
    PaperValue("decoding.length_penalty", "Section 6.3", 0.3),
    PaperValue("decoding.max_extra_length", "Section 6.3", 300),
)

# Keys that change neither the model that is trained nor what it translates: where data
# lies, what is shown, kept or measured on the way, how the work is spread. A test asks
# that each key of the config is here or above.
IMMATERIAL = frozenset(
    """
    seed model.max_length model.remat data.dir data.cache_dir data.held_out_pairs
    data.seed data.num_phrases training.max_tokens_per_device
    training.max_skipped_updates training.log_every_steps validation.every_steps
    validation.bleu_sentences
    validation.num_samples validation.metric checkpoint.keep_last
    checkpoint.keep_every_steps decoding.n_best decoding.sampling_topk
    decoding.sampling_topp decoding.sampling_temperature decoding.batch_tokens
    mesh.data mesh.fsdp mesh.tensor
    """.split()
)


def paper_values(reference: Reference) -> tuple[PaperValue, ...]:
    """What the paper sets for one of its models, each key once."""
    if reference.model != "parser":
        return PAPER
    return tuple({paper.key: paper for paper in (*PAPER, *PARSER)}.values())


def paper_experiment(reference: Reference) -> ExperimentConfig:
    """The experiment that the tables above describe."""
    groups: dict[str, dict[str, Any]] = {}
    for paper in paper_values(reference):
        group, name = paper.key.split(".")
        groups.setdefault(group, {})[name] = paper.of(reference)
    checkpoint = groups["checkpoint"]
    checkpoint["keep_last"] = checkpoint["average_last"]
    groups["model"]["max_length"] = groups["data"]["max_length"]
    validation = {"every_steps": checkpoint["every_steps"], "metric": "loss"}
    return freeze({**groups, "validation": validation})


class Deviation(NamedTuple):
    """A key with another value than the paper's."""

    key: str
    value: Any
    expected: Any
    section: str  # "" = the paper does not say

    def __str__(self) -> str:
        """As in "model.norm is pre; the paper: post (Section 3.1)"."""
        value, expected = (
            ", ".join(x) if isinstance(x, tuple) else x
            for x in (self.value, self.expected)
        )
        source = f"the paper: {expected} ({self.section})"
        if not self.section:
            source = f"{expected} was chosen where the paper is silent"
        return f"{self.key} is {value}; {source}"


def value_of(config: ExperimentConfig, key: str) -> Any:
    """The value of a dotted key.

    >>> value_of(ExperimentConfig(), "model.norm")
    'post'
    """
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def deviations(config: ExperimentConfig, reference: Reference) -> list[Deviation]:
    """Every point in which the config is not the paper's model `reference`."""
    is_averaged = config.checkpoint.average_last > 1
    found = []
    for paper in paper_values(reference):
        value, expected = value_of(config, paper.key), paper.of(reference)
        if paper.section == _SPACING and not is_averaged:
            continue  # when to save makes a difference to an average alone
        if value not in (expected, paper.table_3):
            found.append(Deviation(paper.key, value, expected, paper.section))
    spacing, validation = config.checkpoint.every_steps, config.validation.every_steps
    # A validation saves too: what is averaged would not be as far apart as it should.
    if is_averaged and validation % spacing:
        multiple = f"a multiple of checkpoint.every_steps {spacing}"
        key = "validation.every_steps"
        found.append(Deviation(key, validation, multiple, _SPACING))
    return found


def nearest_reference(config: ExperimentConfig) -> Reference:
    """The paper's model that the config is like.

    A treebank means the parser. Of the translators, French among the languages means
    EN-FR, and the size is that of the nearer model, by the sum of the logarithms of the
    ratios of their numbers.
    """
    if config.data.corpus == "treebank":
        return Reference("parser", "semi-supervised" if config.data.extra else "WSJ")
    languages = config.data.source_language, config.data.target_language
    text: Text = "EN-FR" if "fr" in languages else "EN-DE"
    references = Reference("base", text), Reference("big", text)
    return min(references, key=lambda reference: _distance(config, reference))


def _distance(config: ExperimentConfig, reference: Reference) -> float:
    pairs = [
        (value_of(config, paper.key), paper.of(reference))
        for paper in PAPER
        if paper.key.startswith("model.")
    ]
    return sum(
        abs(math.log(value / expected))
        if isinstance(value, int | float) and value > 0 and expected > 0
        else float(value != expected)
        for value, expected in pairs
    )


def table_3_row(config: ExperimentConfig) -> Variation | None:
    """The row of Table 3 whose model and smoothing the config has, if there is one.

    The vocabulary is left out: the paper does not say which its rows had.
    """
    found = _model_deviations(config)
    return next((x for x in TABLE_3 if _model_deviations(_changed(x)) == found), None)


def _changed(row: Variation) -> ExperimentConfig:
    groups: dict[str, dict[str, Any]] = {}
    for key, value in row.changes.items():
        group, name = key.split(".")
        groups.setdefault(group, {})[name] = value
    return freeze(groups)


def _model_deviations(config: ExperimentConfig) -> dict[str, Any]:
    """What the model and its smoothing are unlike the base model, by config key."""
    return {
        deviation.key: deviation.value
        for deviation in deviations(config, Reference("base", "EN-DE"))
        if deviation.section
        and deviation.key != "model.vocab_size"
        and deviation.key.startswith(("model.", "training.label_smoothing"))
    }


@dataclasses.dataclass(frozen=True)
class Choice:
    """A point that the paper leaves open, and what is done here."""

    name: str  # as in the README's "Where this differs from the paper"
    text: str


# In every config.
CHOICES = (
    Choice(
        "Label smoothing",
        "the paper gives epsilon = 0.1 alone. The gold token has 1 - epsilon, each "
        "other one epsilon / (V - 1); perplexity is without smoothing.",
    ),
    Choice(
        "Initial values",
        "none are given. Weight matrices are Xavier uniform, embeddings normal with "
        "deviation d_model^-0.5, biases zero; attention projects without biases.",
    ),
    Choice(
        "Packing",
        "the paper batches sentences of similar length. Several share a row of "
        "data.row_length positions here, kept apart by masks; pairs with a side of "
        "more than data.max_length tokens, of which it says nothing, are left out.",
    ),
    Choice(
        "Word pieces",
        "the paper has BPE for EN-DE and word pieces for EN-FR, and names no program. "
        "Both are SentencePiece BPE of the raw text, with byte fallback.",
    ),
    Choice(
        "Number formats",
        "none are given. Parameters, softmax, norms and loss are float32, activations "
        "and products float32 on a CPU and bfloat16 elsewhere.",
    ),
    Choice(
        "Checkpoints",
        "the paper saves every ten minutes. Here that is a number of steps, by its "
        "step times: 1,500 for base and 600 for big.",
    ),
    Choice(
        "Parameters",
        "the vocabularies of Table 3 are not given. With 41,100 pieces all printed "
        "figures but big's come out, with 37,000 base has 63.0M and big 214.2M.",
    ),
)
# In every parser.
PARSER_CHOICES = (
    Choice(
        "Trees as tokens",
        "the paper does not say how. As in Vinyals et al. 2015, which it cites: depth "
        "first, POS tags for the words (data.leaves), closing tokens that name their "
        "label (data.closing); no TOP, function tags or traces. Each token with a "
        "bracket is one of the vocabulary, the rest are word pieces of the text.",
    ),
    Choice(
        "A parser's size and training",
        "as base but for what is printed, by the letter: h 8 (so d_k 128), d_ff 2048, "
        "100,000 steps. Dropout and learning rates, chosen and not printed, are those "
        "of tensor2tensor's transformer_parsing_base: 0.2, of attention too; 16,000 "
        "steps of warm-up and half the rate of equation 3.",
    ),
    Choice(
        "Parsed text",
        "the paper does not say how its 17M sentences are mixed with the treebank's "
        "40,000. All are read equally often (data.extra_ratio 425).",
    ),
    Choice(
        "Scores of trees",
        "Table 4 says F1 and no more. It is of labelled constituents by the rules of "
        "EVALB (COLLINS.prm), all lengths. Outputs that are no tree are repaired into "
        "one over the sentence's words, and scored like the others.",
    ),
)
