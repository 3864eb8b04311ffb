"""Treebanks as a corpus: which files a name means, pairs, and mixtures."""

import gzip
import itertools
from pathlib import Path

import pytest

from transformer_jax.config import DataConfig, ExperimentConfig, freeze
from transformer_jax.data.pairs import ListedPairs, Pair
from transformer_jax.data.prepared import prepare
from transformer_jax.data.sources import (
    load_corpus,
    load_split,
    load_trees,
    validation_trees,
)
from transformer_jax.data.treebank import Mixture, Treebank
from transformer_jax.errors import UserError
from transformer_jax.parsing.trees import one_line

TREE = "( (S (NP-SBJ-1 (NN {})) (VP (VBZ is) (ADJP (-NONE- *)) (-LRB- -LRB-)) (. .)) )"


def write(path: Path, *words: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "\n".join(TREE.format(word) for word in words).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def config(folder: Path, **values: object) -> DataConfig:
    names = {"train": ("train",), "validation": "dev", "test": "dev"}
    return DataConfig(**{"corpus": "treebank", "dir": str(folder), **names, **values})  # type: ignore[arg-type]


def words(folder: Path, *names: str) -> str:
    """The first word of each tree that the names mean."""
    pairs = Treebank.find(config(folder), names)
    return " ".join(source.split()[0] for source, _ in pairs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A treebank with sections, a folder, a list and plain files."""
    write(tmp_path / "02" / "wsj_0201.mrg", "b1", "b2")
    write(tmp_path / "02" / "deep" / "wsj_0200.MRG", "b0")
    write(tmp_path / "03" / "wsj_0300.mrg.gz", "c")
    write(tmp_path / "04" / "wsj_0400.mrg", "d")
    write(tmp_path / "train.mrg.gz", "t1", "t2", "t3")
    write(tmp_path / "dev.mrg", "v")
    write(tmp_path / "parsed" / "x.mrg", "p1", "p2")
    (tmp_path / "02" / "readme").write_text("not a tree")
    (tmp_path / "some.list").write_text("dev\n\n04/wsj_0400.mrg\n")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("train",), "t1 t2 t3"),
        (("train.mrg.gz",), "t1 t2 t3"),
        (("dev.mrg", "train"), "v t1 t2 t3"),
        (("02",), "b0 b1 b2"),
        (("02-04",), "b0 b1 b2 c d"),
        (("03", "02"), "c b0 b1 b2"),
        (("parsed",), "p1 p2"),
        (("some",), "v d"),
        (("some.list",), "v d"),
    ],
)
def test_names_mean_files_folders_sections_and_lists(
    folder: Path, names: tuple[str, ...], expected: str
) -> None:
    assert words(folder, *names) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "no file .*nowhere, nowhere.mrg, nowhere.mrg.gz or nowhere.list"),
        ("04-02", "04-02 means no file in"),
        ("02-05", "no .mrg file in .*05"),
        ("empty", "no .mrg file in .*empty"),
        ("text.mrg", "text.mrg line 2: 'plain' stands outside of all brackets"),
        ("blank.mrg", "blank.mrg has blank lines only"),
        ("open.mrg", "open.mrg line 1: the bracket that is opened there is never"),
        ("latin.mrg", "latin.mrg line 1 is not UTF-8"),
    ],
)
def test_what_is_no_treebank_is_named(folder: Path, name: str, message: str) -> None:
    (folder / "empty").mkdir()
    (folder / "text.mrg").write_text("\nplain text")
    (folder / "blank.mrg").write_text("\n\n")
    (folder / "open.mrg").write_text("(S (NN a)\n")
    (folder / "latin.mrg").write_bytes(b"(S (NN \xe9))")
    with pytest.raises(UserError, match=message):
        list(Treebank.find(config(folder), (name,)))


def test_a_folder_and_the_splits_must_be_named() -> None:
    with pytest.raises(UserError, match=r"data\.dir is not set"):
        load_corpus(config(Path()).__class__(corpus="treebank"))
    with pytest.raises(UserError, match="of a treebank nothing is held out"):
        DataConfig(corpus="treebank", validation="")


@pytest.mark.parametrize(
    ("leaves", "closing", "target"),
    [
        ("tags", "labelled", "(S (NP (NN) )NP (VP (VBZ) (-LRB-) )VP (.) )S"),
        ("words", "plain", "(S (NP v ) (VP is -LRB- ) . )"),
    ],
)
def test_pairs_are_sentence_and_tokens(
    folder: Path, leaves: str, closing: str, target: str
) -> None:
    data = config(folder, leaves=leaves, closing=closing)
    assert load_split(data, "validation") == [("v is -LRB- .", target)]


def test_trees_go_with_the_pairs(folder: Path) -> None:
    data = config(folder)
    (tree,) = load_trees(data, "test")
    assert one_line(tree) == ("(TOP (S (NP (NN v)) (VP (VBZ is) (-LRB- -LRB-)) (. .)))")
    assert validation_trees(data) == [tree]
    assert validation_trees(DataConfig()) == []
    assert len(load_trees(data, "train")) == len(list(load_corpus(data).train)) == 3
    with pytest.raises(UserError, match="no split 'dev' of a treebank"):
        load_trees(data, "dev")


def test_trees_without_a_word_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "dev.mrg").write_text("( (S (-NONE- *)) )\n( (S (NN a)) )")
    assert [pair[0] for pair in Treebank.find(config(tmp_path), ("dev",))] == ["a"]


@pytest.mark.parametrize("extra", ["", "traces"])
def test_trees_of_traces_alone_are_no_corpus(folder: Path, extra: str) -> None:
    (folder / "traces.mrg").write_text("( (S (-NONE- *)) )")
    train = ("train",) if extra else ("traces",)
    corpus = load_corpus(config(folder, train=train, extra=extra))
    with pytest.raises(UserError, match=r"no tree in .*traces\.mrg holds a word"):
        list(corpus.train)


def test_a_list_names_its_line(folder: Path) -> None:
    (folder / "bad.list").write_text("dev\n\ngone\n")
    with pytest.raises(UserError, match=r"bad\.list line 3: no file .*gone"):
        Treebank.find(config(folder), ("bad",))


def test_the_digest_is_of_content_and_form(folder: Path) -> None:
    digests = {
        Treebank.find(data, names).digest
        for data, names in (
            (config(folder), ("train",)),
            (config(folder), ("dev",)),
            (config(folder, leaves="words"), ("train",)),
            (config(folder, closing="plain"), ("train",)),
        )
    }
    assert len(digests) == 4
    same = Treebank.find(config(folder), ("train.mrg.gz",)).digest
    assert same in digests


def pairs(prefix: str, number: int) -> ListedPairs:
    return ListedPairs([(f"{prefix}{i}", "x") for i in range(number)])


def shown(mixture: Mixture) -> str:
    return " ".join(pair[0] for pair in mixture)


@pytest.mark.parametrize(
    ("first", "second", "ratio", "expected"),
    [
        (2, 4, 2.0, "a0 b0 b1 a1 b2 b3"),
        (2, 2, 1.0, "a0 b0 a1 b1"),
        # The smaller begins again until the other is done.
        (1, 4, 2.0, "a0 b0 b1 a0 b2 b3"),
        (4, 1, 0.5, "a0 a1 b0 a2 a3 b0"),
        (1, 3, 1.5, "a0 b0 a0 b1 b2"),
    ],
)
def test_a_mixture_keeps_its_ratio(
    first: int, second: int, ratio: float, expected: str
) -> None:
    assert shown(Mixture(pairs("a", first), pairs("b", second), ratio)) == expected


def test_a_mixture_can_be_read_again_and_has_a_digest() -> None:
    mixture = Mixture(pairs("a", 2), pairs("b", 3), 1.0)
    assert shown(mixture) == shown(mixture)
    others = [
        Mixture(pairs("a", 2), pairs("b", 3), 2.0),
        Mixture(pairs("a", 3), pairs("b", 3), 1.0),
        Mixture(pairs("a", 2), pairs("c", 3), 1.0),
    ]
    assert len({mixture.digest, *(other.digest for other in others)}) == 4


def test_constituents_are_examples_once_for_each_span(folder: Path) -> None:
    (folder / "one.mrg").write_text(
        "( (S (NP (NP (NN a)) (PP (IN of) (NP (NP (NN b) (NN c))))) (VP (VB d)) (. .)))"
    )
    data = config(folder, train=("one",), constituents=True)
    corpus = load_corpus(data)
    # VP and the first NP are a word each; NP over b c is twice there.
    assert sorted(source for source, _ in corpus.train) == sorted(
        ["a of b c d .", "a of b c", "of b c", "b c"]
    )
    assert dict(corpus.train)["b c"] == "(NP (NP (NN) (NN) )NP )NP"
    assert len(load_split(data, "train")) == 1
    plain = load_corpus(config(folder, train=("one",))).train
    assert corpus.train.digest != plain.digest


def test_parsed_text_is_mixed_in_and_the_split_is_without_it(folder: Path) -> None:
    data = config(folder, extra="parsed", extra_ratio=2.0)
    found = [source.split()[0] for source, _ in load_corpus(data).train]
    assert found == "t1 p1 p2 t2 p1 p2 t3 p1 p2".split()
    assert len(load_split(data, "train")) == len(load_trees(data, "train")) == 3


@pytest.fixture
def experiment(folder: Path, tmp_path: Path) -> ExperimentConfig:
    letters = ["".join(x) for x in itertools.product("abcdefgh", repeat=3)]
    write(folder / "many.mrg", *letters)
    return freeze(
        {
            "model": {"vocab_size": 300},
            "validation": {"metric": "f1"},
            "data": {
                "corpus": "treebank",
                "dir": str(folder),
                "train": ("many",),
                "validation": "dev",
                "test": "dev",
                "cache_dir": str(tmp_path / "cache"),
            },
        }
    )


def test_each_bracket_is_a_piece_and_words_are_not(
    experiment: ExperimentConfig,
) -> None:
    train = load_corpus(experiment.data).train
    vocabularies, store = prepare(experiment, train, lambda _: None)
    tokenizer = vocabularies.target
    assert tokenizer.brackets == sorted(
        "(S (NP (VP (NN) (VBZ) (-LRB-) (.) )S )NP )VP".split()
    )
    first: Pair = next(iter(train))
    ids = tokenizer.encode(first[1])
    assert len(ids) == len(first[1].split())
    assert tokenizer.decode(ids) == first[1]
    # The same letters within a word of the source are no tag.
    source = tokenizer.encode("NNS VBZ .")
    assert not set(source) & set(ids)
    assert store.counts.kept == 8**3
    assert vocabularies.source is tokenizer


def test_metrics_must_fit_the_corpus() -> None:
    with pytest.raises(
        UserError, match=r"validation\.metric is bleu with data\.corpus"
    ):
        freeze({"data": {"corpus": "treebank"}})
    with pytest.raises(UserError, match=r"validation\.metric is f1 with data\.corpus"):
        freeze({"validation": {"metric": "f1"}})
    with pytest.raises(
        UserError, match=r"tokenizer\.shared is False with data\.corpus"
    ):
        freeze({"data": {"corpus": "treebank"}, "tokenizer": {"shared": False}})
