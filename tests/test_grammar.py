"""A translator that may only find trees, with a model that knows nothing of them."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import DecodingConfig, MeshConfig, TransformerConfig
from transformer_jax.data.tokenizer import Tokenizer, Vocabularies, train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.grammar import TreePieces
from transformer_jax.models import Transformer
from transformer_jax.parser import TreeParser
from transformer_jax.sharding import make_mesh
from transformer_jax.trained_model import TrainedModel
from transformer_jax.translation import Translator

# Words unseen, of bytes, of two words' pieces; and one that looks like a label.
SENTENCES = [
    "the dog barked .",
    "The dog 's NP barked at -LRB- the -RRB- dog",
    "dog",
    "thedog ünseen 犬 barkedbarked",
    " the  the dogs   bark ",
    ". . . . . . . . . . .",
    "do",
]
BRACKETS = ["(S", "(NP", ")S", ")NP", "(DT)", "(.)", "(-LRB-)"]


def tokenizer_of(brackets: list[str]) -> Tokenizer:
    lines = ["the dog barked at the dogs .", "the bark"]
    return train_tokenizer(lines, vocab_size=293, words=brackets)


def trained(brackets: list[str]) -> TrainedModel:
    """A random model that prefers none of its tokens."""
    tokenizer = tokenizer_of(brackets)
    config = TransformerConfig(
        vocab_size=293, num_layers=1, d_model=8, d_ff=12, num_heads=2
    )
    tokens = jnp.ones((1, 1), jnp.int32)
    model = Transformer(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    generator = np.random.default_rng(0)
    return TrainedModel(
        config=config,
        params=jax.tree.map(
            lambda leaf: generator.normal(0, 0.5, leaf.shape).astype(np.float32), shapes
        ),
        vocabularies=Vocabularies(tokenizer, tokenizer),
        decoding=DecodingConfig(
            batch_tokens=96, max_extra_length=9, beam_size=4, n_best=3
        ),
        source_language="words",
        target_language="trees",
        max_length=64,
        steps=(1,),
    )


def leaves_of(text: str) -> list[str]:
    """The leaves of a tree, which may have one root and no empty constituent."""
    tokens = text.split(" ")
    leaves: list[str] = []
    open_: list[tuple[str, int]] = []  # label, and leaves before it
    for i, token in enumerate(tokens):
        assert open_ or i == 0, "more than one root"
        if re.fullmatch(r"\([^()]+", token):
            open_.append((token[1:], len(leaves)))
        elif token.startswith(")"):
            label, before = open_.pop()
            assert token[1:] in ("", label)
            assert len(leaves) > before
        else:
            leaves.append(token)
    assert not open_
    assert len(tokens) > len(leaves)
    return leaves


@pytest.fixture(scope="module")
def of_tags() -> Translator:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    return Translator.of(trained(BRACKETS), mesh=mesh)


@pytest.fixture(scope="module")
def of_words(of_tags) -> Translator:
    """The same model with another vocabulary: what is compiled serves both."""
    tokenizer = tokenizer_of(["(S", "(NP", ")"])
    return Translator(
        of_tags.searcher,
        Vocabularies(tokenizer, tokenizer),
        of_tags.decoding,
        languages=of_tags.languages,
        max_length=of_tags.max_length,
    )


# Each is a program of its own, which takes seconds to compile.
SEARCHES = {
    "greedy": {"beam_size": 1, "n_best": 1},
    "beam": {"beam_size": 4, "n_best": 3},
    "sampling": {"beam_size": 1, "n_best": 3, "sampling": True},
}


def parsed(translator: Translator, search: str) -> list[list[list[str]]]:
    """The leaves of each hypothesis of each sentence, each being a tree."""
    options = SEARCHES[search]
    constrained = translator.with_decoding(only_trees=True, **options)
    found = constrained.translations(SENTENCES)
    for translation in found:
        assert len(translation.hypotheses) == options["n_best"]
        assert all(hypothesis.stop == "end" for hypothesis in translation.hypotheses)
    return [[leaves_of(hypothesis.text) for hypothesis in t.hypotheses] for t in found]


@pytest.mark.parametrize(
    "search", ["beam", pytest.param("sampling", marks=pytest.mark.slow)]
)
def test_every_hypothesis_is_a_tree_of_tags_one_for_each_word(search, of_tags):
    for sentence, trees in zip(SENTENCES, parsed(of_tags, search), strict=True):
        for leaves in trees:
            assert len(leaves) == len(sentence.split())
            assert set(leaves) <= {"(DT)", "(.)", "(-LRB-)"}


@pytest.mark.parametrize(
    "search", ["beam", pytest.param("greedy", marks=pytest.mark.slow)]
)
def test_every_hypothesis_is_a_tree_over_the_words(search, of_words):
    for sentence, trees in zip(SENTENCES, parsed(of_words, search), strict=True):
        assert all(leaves == sentence.split() for leaves in trees)


def test_a_parser_has_nothing_to_repair(of_words):
    sentences = [sentence.split() for sentence in SENTENCES]
    parser = TreeParser(of_words.with_decoding(only_trees=True))
    assert all(parse.is_whole for parse in parser.parse(sentences))


def test_a_source_in_two_parts_has_a_tree_for_each(of_words):
    parts = dataclasses.replace(of_words.decoding, only_trees=True)
    cut = Translator(
        of_words.searcher,
        of_words.vocabularies,
        parts,
        languages=of_words.languages,
        max_length=5,
    )
    (translation,) = cut.translations(["the dog the dog the dog barked"])
    assert translation.num_pieces == 2
    words = [w for w in translation.text.split(" ") if w[0] not in "()"]
    assert words == translation.source.split()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prefixes": ["(S"]}, "a prefix with decoding.only_trees"),
        ({"suppress": ["dog"]}, "a suppressed phrase with decoding.only_trees"),
        ({"first_number": 7}, r"sentence 8 holds '\)'.*-LRB- or -RRB-"),
    ],
)
def test_what_contradicts_a_tree_is_refused(arguments, says, of_tags):
    sentences = ["the dog", "f) x" if "first_number" in arguments else "x"]
    with pytest.raises(UserError, match=says):
        of_tags.with_decoding(only_trees=True).translations(sentences, **arguments)


@pytest.mark.parametrize(
    "pieces",
    [
        ["▁the", "(S", "▁S)", "▁("],
        ["▁(S", "▁)NP", "▁(NN)"],  # no constituent can be closed
        ["▁)S", "▁)"],
    ],
)
def test_a_vocabulary_without_brackets_is_refused(pieces):
    with pytest.raises(UserError, match="vocabulary without brackets"):
        TreePieces.of_pieces(pieces)


def test_two_vocabularies_are_refused(of_tags, of_words):
    two = Vocabularies(of_words.vocabularies.source, of_tags.vocabularies.source)
    with pytest.raises(UserError, match=r"two vocabularies.*tokenizer\.shared=true"):
        TreePieces.of(two)
