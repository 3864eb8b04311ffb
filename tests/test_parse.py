"""The parser and its command: sentences in, trees over exactly their words out."""

import gzip
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor

from transformer_jax import __main__ as package_main
from transformer_jax.commands import lines, models
from transformer_jax.commands.parse import parse
from transformer_jax.config import DataConfig, DecodingConfig, TransformerConfig
from transformer_jax.data.tokenizer import Vocabularies, train_tokenizer
from transformer_jax.data.treebank import Treebank
from transformer_jax.models import Transformer
from transformer_jax.parsing.linear import brackets_of
from transformer_jax.parsing.trees import read_trees, words_of
from transformer_jax.trained_model import TrainedModel
from transformer_jax.translation import Hypothesis, Translation

PAIRS = [
    ("The dog barked .", "(S (NP (DT) (NN) )NP (VP (VBD) )VP (.) )S"),
    ("A cat sees the dog", "(S (NP (DT) (NN) )NP (VP (VBZ) (NP (DT) (NN) )NP )VP )S"),
    (
        "the old man , who slept",
        "(NP (NP (DT) (JJ) (NN) )NP (,) (SBAR (WP) (VBD) )SBAR )NP",
    ),
    (
        "Dogs bark at the moon",
        "(S (NP (NNS) )NP (VP (VBP) (PP (IN) (NP (DT) (NN) )NP )PP )VP )S",
    ),
]
# Sentences, and what their words are called in a tree.
SENTENCES = {
    "The dog barked .": "The dog barked .",
    "": "",
    "f(x) [ y ] { z }": "f-LRB-x-RRB- -LSB- y -RSB- -LCB- z -RCB-",
    "\t ": "",
    "🦆 ï i\u0308 北京 \u200b e\u0301": "🦆 ï i\u0308 北京 \u200b e\u0301",
    "▁ a▁b </s> <0x41> (NP )S": "▁ a▁b </s> <0x41> -LRB-NP -RRB-S",
    # White space of any kind separates words.
    "1\u00a0000\u2028men \x0c sat\u3000.": "1 000 men sat .",
    "the cat " * 40 + ".": "the cat " * 40 + ".",
    f"a {'long' * 90} word": f"a {'long' * 90} word",
    ") (": "-RRB- -LRB-",
}


def a_model(words: Sequence[str]) -> TrainedModel:
    """A random model, whose vocabulary has the words as pieces of their own."""
    tokenizer = train_tokenizer(
        [side for pair in PAIRS for side in pair], vocab_size=331, words=words
    )
    model = Transformer(
        TransformerConfig(
            vocab_size=331, num_layers=1, d_model=16, d_ff=24, num_heads=2
        )
    )
    tokens = jnp.ones((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(3), tokens, tokens)["params"]
    generator = np.random.default_rng(5)
    params = jax.tree.map(
        lambda leaf: generator.normal(0, 0.5, leaf.shape).astype(np.float32), shapes
    )
    return TrainedModel(
        config=model.config,
        params=params,
        vocabularies=Vocabularies(tokenizer, tokenizer),
        decoding=DecodingConfig(
            batch_tokens=1024, max_extra_length=7, beam_size=2, length_penalty=0.6
        ),
        source_language="en",
        target_language="tree",
        max_length=32,
        steps=(1,),
    )


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "parser"
    a_model(brackets_of(target for _, target in PAIRS)).export(folder)
    return folder


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt.gz"
    path.write_bytes(gzip.compress("".join(f"{s}\n" for s in SENTENCES).encode()))
    return path


def words_in(line: str) -> str:
    """The words of a tree in brackets, which must be balanced around them all."""
    depths = np.cumsum([(sign == "(") - (sign == ")") for sign in line])
    assert line.startswith("(TOP (")
    assert min(depths[:-1]) >= 1
    assert depths[-1] == 0
    assert re.sub(r"\([^\s()]+ (?=\()|\([^\s()]+ [^\s()]+\)|\)| ", "", line) == ""
    return " ".join(re.findall(r"\([^\s()]+ ([^\s()]+)\)", line))


# The command


def test_each_line_becomes_a_tree_over_its_words(
    workdir: Path,
    sentences: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., Any],
) -> None:
    monkeypatch.setattr(lines, "_MOST_LINES", 4)
    output = tmp_path / "auto.mrg"
    status, out, err = command(
        package_main.main,
        *("parse", f"--workdir={workdir}"),
        *(f"--input={sentences}", f"--output={output}"),
    )
    assert (status, out) == (0, "")
    text = output.read_text(encoding="utf-8")
    written = text.removesuffix("\n").split("\n")
    assert text.splitlines() == written  # no tree has another kind of line's end
    words = [line and words_in(line) for line in written]
    assert words == list(SENTENCES.values())
    warnings = err.splitlines()
    encode = SentencePieceProcessor(model_file=str(workdir / "vocabulary.model")).encode
    sizes = [len(encode(line.replace("▁", "_"))) for line in SENTENCES.values()]
    num_cut = sum(size > 31 for size in sizes)  # one position is the end token's
    assert 2 <= num_cut <= 6
    assert warnings[0].startswith(f"warning: {num_cut} of 10 lines are longer than")
    assert re.match(r"warning: [1-8] of 10 lines have a repaired tree", warnings[1])

    trees = list(read_trees(written, "auto.mrg"))
    read = [" ".join(word.text for word in words_of(tree)) for tree in trees]
    assert read == [words for words in SENTENCES.values() if words]
    bank = Treebank.find(DataConfig(corpus="treebank", dir=str(tmp_path)), ["auto"])
    expected = [line.replace("▁", "_") for line in read]
    assert [sentence for sentence, _ in bank] == expected


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--workdir=OTHER"], ["no parser", "configs/parsing_sample.py"]),
        (["--workdir=NONE"], ["NONE", "expected the folder of a run"]),
        ([], ["--workdir"]),
        (["--workdir=PARSER", "--checkpoint=best"], ["drop --checkpoint=best"]),
        (["--workdir=PARSER", "--wrokdir=x"], ["no flag --wrokdir", "--workdir?"]),
        (["--workdir=PARSER", "--input=NONE"], ["cannot read", "NONE"]),
        (["--workdir=PARSER", "--input=EMPTY"], ["EMPTY is empty"]),
        (["--workdir=PARSER", "--input=BAD"], ["BAD line 2 is not UTF-8"]),
        (["--workdir=PARSER", "--output=INPUT"], ["is the --input file"]),
        (["--workdir=PARSER", "--output=NONE/out"], ["no folder", "NONE"]),
        (["--workdir=PARSER", "--format=tsv"], ["--format is tsv", "text, jsonl"]),
        (["--workdir=PARSER", "--format=text", "--draw"], ["drop one"]),
        (["--workdir=PARSER", "--n_best=2"], ["--n_best is 2, expected 1"]),
        (["--workdir=PARSER", "--beam_size=0"], ["beam_size is 0"]),
    ],
)
def test_what_cannot_be_parsed_is_refused_in_one_line(
    flags: list[str],
    words: list[str],
    workdir: Path,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    if "--workdir=OTHER" in flags:
        a_model([]).export(tmp_path / "OTHER")
    (tmp_path / "EMPTY").touch()
    (tmp_path / "BAD").write_bytes(b"a dog\n\xe4\n")
    (tmp_path / "INPUT").write_text("a dog\n")
    if not any(flag.startswith("--input") for flag in flags):
        flags = [*flags, "--input=INPUT"]
    places = {name: tmp_path / name for name in "OTHER NONE EMPTY BAD INPUT".split()}
    places["PARSER"] = workdir
    for name, place in places.items():
        flags = [flag.replace(f"={name}", f"={place}") for flag in flags]
    error = refusal(package_main.main, "parse", *flags)
    for word in words:
        assert word in error
    assert (tmp_path / "INPUT").read_text() == "a dog\n"


# What is written, of outputs that are known


def translation(source: str, *outputs: str, stop: Any = "end") -> Translation:
    """What became of a line, a word piece for each word; of none without an output."""
    pieces = [f"▁{word}" for word in source.split()]
    return Translation(
        source=source,
        source_tokens=(*pieces, "</s>") if pieces else (),
        hypotheses=tuple(
            Hypothesis(output, -0.5, -1.25, (), stop, parts=(output,))
            for output in outputs
        ),
        num_pieces=len(outputs),
        was_cut=False,
    )


class Known:
    """A translator of known sentences."""

    def __init__(self, *translations: Translation) -> None:
        self.known = {each.source: each for each in translations}
        brackets = [*brackets_of(target for _, target in PAIRS), "(-LRB-)"]
        self.vocabularies = SimpleNamespace(target=SimpleNamespace(brackets=brackets))

    def translations(
        self,
        sentences: Sequence[str],
        *,
        progress: Callable[[int], object],
    ) -> list[Translation]:
        progress(len(sentences))
        return [self.known[sentence] for sentence in sentences]


WHOLE = "(S (NP (DT) (NN) )NP (VP (VBD) )VP (.) )S"
TREE = "(TOP (S (NP (DT The) (NN dog)) (VP (VBD ran)) (. .)))"
KNOWN = Known(
    translation("The dog ran .", WHOLE),
    translation("The dog ran."),
    translation(""),
    translation("Dogs", "(S (NP (NNS) )S", stop="limit"),
    translation("a -LRB-", "(NP (DT) (-LRB-) )NP"),
    translation("a"),
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """The flags of a command that parses known lines."""
    monkeypatch.setattr(models, "load_translator", lambda _: KNOWN)

    def flags(*sentences: str) -> list[str]:
        path = tmp_path / "known"
        path.write_text("".join(f"{line}\n" for line in sentences))
        return ["parse", "--workdir=x", f"--input={path}"]

    return flags


PICTURE = """\
      TOP
       │
       S
   ┌───┴─┬──┐
   NP    VP │
 ┌─┴─┐   │  │
 DT  NN VBD .
The dog ran .
"""
SMALL_PICTURE = """\
TOP
 │
 S
 │
 NP
 │
NNS
Dogs
"""
NARROW = """\
TOP
+- S
   +- NP
   |  +- (DT The)
   |  +- (NN dog)
   +- VP
   |  +- (VBD ran)
   +- (. .)
"""


def test_trees_are_written_in_brackets_or_drawn(
    known: Callable[..., list[str]],
    output_of: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = known("The dog ran .", "", "Dogs", "a", "a (")
    dogs = "(TOP (S (NP (NNS Dogs))))"
    rest = ["(TOP (S (XX a)))", "(TOP (NP (DT a) (-LRB- -LRB-)))"]
    assert output_of(*flags) == [TREE, "", dogs, *rest]
    assert output_of(*flags, "--format=text") == [TREE, "", dogs, *rest]
    drawn = "\n".join(output_of(*flags, "--draw"))
    assert drawn.startswith(f"{PICTURE}\n\n{SMALL_PICTURE}\n")
    assert drawn.count("TOP") == 4

    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setenv("COLUMNS", "12")
    parse([*known("The dog ran .")[1:], "--draw"])
    assert shown.getvalue().decode() == f"{NARROW}\n"


def test_objects_hold_all_that_is_known(
    known: Callable[..., list[str]], output_of: Callable[..., list[str]]
) -> None:
    flags = known("", "a (", "Dogs", "a")
    first, second, third, fourth = map(json.loads, output_of(*flags, "--format=jsonl"))
    assert first == {
        "line": 1,
        "words": [],
        "tree": None,
        "tokens": [],
        "is_whole": True,
        "score": None,
        "log_prob": None,
        "stop": None,
        "was_cut": False,
    }
    assert second == {
        "line": 2,
        "words": ["a", "("],
        "tree": "(TOP (NP (DT a) (-LRB- -LRB-)))",
        "tokens": ["(NP", "(DT)", "(-LRB-)", ")NP"],
        "is_whole": True,
        "score": -0.5,
        "log_prob": -1.25,
        "stop": "end",
        "was_cut": False,
    }
    assert third["tokens"] == ["(S", "(NP", "(NNS)", ")S"]
    assert (third["is_whole"], third["stop"]) == (False, "limit")
    assert (fourth["tree"], fourth["is_whole"]) == ("(TOP (S (XX a)))", False)
    assert fourth["score"] is None


def test_what_went_wrong_is_told_at_the_end(
    known: Callable[..., list[str]], command: Callable[..., Any]
) -> None:
    def warnings(*sentences: str) -> list[str]:
        status, _, err = command(package_main.main, *known(*sentences))
        assert status == 0
        return err.splitlines()

    assert warnings("The dog ran .", "", "a (") == []
    repaired, limit = warnings("Dogs", "The dog ran .", "The dog ran.", "a (")
    assert repaired.startswith("warning: 2 of 4 lines have a repaired tree")
    assert limit.startswith("warning: 1 of 4 lines have tokens cut off")
    (repaired, glued) = warnings("The dog ran.", "The dog ran.", "a (")
    assert repaired.startswith("warning: 2 of 3 lines have a repaired tree")
    assert glued.startswith("warning: most lines end in a sign glued to a word")


def test_a_conversation_draws_each_sentence(
    known: Callable[..., list[str]],
    refusal: Callable[..., str],
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = known()[:-1]
    keyboard, terminal = os.openpty()
    with (
        os.fdopen(terminal, encoding="utf-8") as stdin,
        os.fdopen(keyboard, "wb", buffering=0) as keys,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert "--output does not go" in refusal(
            package_main.main, *flags, "--output=out"
        )
        keys.write(b"The dog ran .\n\nDogs\n\x04")
        status, out, err = command(package_main.main, *flags)
        keys.write(b"The dog ran .\n\x04")
        text = command(package_main.main, *flags, "--format=text")
    assert status == 0
    assert out.startswith(f"{PICTURE}\n\nTOP\n")
    assert "> > > warning: 1 of 1 lines have a repaired tree" in err
    assert text[:2] == (0, f"{TREE}\n")
