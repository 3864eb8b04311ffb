"""A corpus made ready to train on: its vocabulary, and all its pairs as token ids.

Text is read to digest it, to hold pairs out of it where the config says so, to sample
it for the vocabulary, and to turn it into ids, part by part. The results stay in the
cache (`data.cache_dir`) under names that are digests of text and settings, so the next
run on the same text, of whatever model, opens them at once. An interrupted preparation
goes on where it was.
"""

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import sentencepiece

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.cache import cache_folder, cached, digest_of, making
from transformer_jax.data.pairs import Pair, Pairs
from transformer_jax.data.progress import Say, counted
from transformer_jax.data.store import TokenStore, TokenWriter
from transformer_jax.data.tokenizer import (
    Tokenizer,
    Vocabularies,
    train_tokenizer,
)
from transformer_jax.errors import UserError
from transformer_jax.parsing.linear import brackets_of

# Pairs that a vocabulary is learned from; more do not change it noticeably.
_SAMPLED_PAIRS = 500_000
_PART = 1 << 15  # pairs encoded, and written, at a time


def prepare(
    config: ExperimentConfig,
    train: Pairs,
    say: Say,
    *,
    vocabularies: Vocabularies | None = None,
) -> tuple[Vocabularies, TokenStore]:
    """The vocabularies of a run and its training pairs as ids.

    Args:
      config: whose `data`, `tokenizer` and `model.vocab_size` count.
      train: the training text.
      say: takes lines for the user.
      vocabularies: of a run that has some; else they are learned.

    Raises:
      UserError: text that cannot be read, or too little of it.
    """
    if vocabularies is None:
        vocabularies = learned_vocabularies(config, train, say)
    store = encoded(config, train, vocabularies, say)
    require_examples("training", store, config, say)
    return vocabularies, store


def require_examples(
    name: str, store: TokenStore, config: ExperimentConfig, say: Say
) -> None:
    """Says how many pairs were left out and why.

    Raises:
      UserError: none is left.
    """
    counts = store.counts
    shown = (
        f"{counts.kept:,} kept, {counts.empty:,} with an empty side, "
        f"{counts.too_long:,} of more than {config.data.max_length} tokens"
    )
    say(f"{name} pairs: {shown}")
    if not counts.kept:
        raise UserError(
            f"no {name} pairs are left: {shown}: bring other text, or raise "
            "data.max_length"
        )


def learned_vocabularies(
    config: ExperimentConfig, train: Pairs, say: Say
) -> Vocabularies:
    """The vocabularies of a training text, learned the first time.

    They are learned from all pairs, or from a random sample of half a million.

    Raises:
      UserError: text that cannot be read, or too little of it.
    """
    tokenizer = config.tokenizer
    is_treebank = config.data.corpus == "treebank"
    key = digest_of(
        train.digest,
        config.model.vocab_size,
        tokenizer.algorithm,
        tokenizer.shared,
        _SAMPLED_PAIRS,
        sentencepiece.__version__,
    )

    @functools.cache
    def sampled() -> list[Pair]:
        return _sample(counted(train, "reading", say), seed=config.data.seed)

    def learned(name: str, *sides: int) -> Tokenizer:
        size = config.model.vocab_size

        def learn() -> bytes:
            pairs = sampled()
            say(f"learning a vocabulary of {size:,} from {len(pairs):,} pairs")
            return train_tokenizer(
                (pair[side] for side in sides for pair in pairs),
                vocab_size=size,
                algorithm=tokenizer.algorithm,
                words=brackets_of(x[1] for x in pairs) if is_treebank else (),
            ).model

        path = cache_folder(config.data) / f"vocabulary-{key}{name}"
        return Tokenizer(cached(path, learn, say))

    if tokenizer.shared:
        both = learned("", 0, 1)
        return Vocabularies(both, both)
    return Vocabularies(learned("-source", 0), learned("-target", 1))


def _sample(pairs: Iterator[Pair], *, seed: int) -> list[Pair]:
    """At most `_SAMPLED_PAIRS`, each as likely, in their order (Vitter 1985, R)."""
    kept = list(itertools.islice(enumerate(pairs), _SAMPLED_PAIRS))
    generator = np.random.default_rng([seed, 3])
    first = len(kept)
    while part := list(itertools.islice(pairs, _PART)):
        # The i-th of all takes a random place among i, if that is one of those kept.
        places = generator.integers(np.arange(first, first + len(part)) + 1)
        for i in np.flatnonzero(places < _SAMPLED_PAIRS).tolist():
            kept[places[i]] = first + i, part[i]
        first += len(part)
    return [pair for _, pair in sorted(kept)]


def encoded(
    config: ExperimentConfig, train: Pairs, vocabularies: Vocabularies, say: Say
) -> TokenStore:
    """All pairs of a training text that can be trained on, as ids.

    Raises:
      UserError: text that cannot be read.
    """
    max_length = config.data.max_length
    key = digest_of(train.digest, vocabularies.digest, max_length)
    folder = cache_folder(config.data) / f"tokens-{key}"
    store = TokenStore.open(folder)
    if store is not None:
        return store
    with making(folder, say):
        store = TokenStore.open(folder)  # another process may have been faster
        if store is not None:
            return store
        writer = TokenWriter(
            folder,
            vocab_size=max(
                vocabularies.source.vocab_size, vocabularies.target.vocab_size
            ),
            max_length=max_length,
        )
        if writer.pairs_read:
            say(f"preparing goes on after pair {writer.pairs_read:,}")
        pairs = itertools.islice(train, writer.pairs_read, None)
        pairs = counted(pairs, "encoding", say, writer.pairs_read)
        try:
            while part := list(itertools.islice(pairs, _PART)):
                writer.append(vocabularies.encode(part))
        finally:
            writer.close()
        return writer.finish()
