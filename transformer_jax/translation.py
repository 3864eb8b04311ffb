"""The Translator: text in, text out, for scripts, the command line and notebooks alike.

A sentence's translation depends on the sentence alone: see `transformer_jax.inference`.
"""

import collections
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from absl import logging
from jax.sharding import Mesh

from transformer_jax.config import DecodingConfig, MeshConfig, freeze_group
from transformer_jax.data.sentences import split_sentences
from transformer_jax.data.tokenizer import END_ID, Tokenizer, Vocabularies
from transformer_jax.errors import UserError
from transformer_jax.grammar import TreePieces
from transformer_jax.inference import Found, Searcher
from transformer_jax.models import Transformer
from transformer_jax.plans import Ensemble, Job
from transformer_jax.sharding import make_mesh, platform_of, replicated, to_global
from transformer_jax.trained_model import TrainedModel

_WITHOUT_SPACES = {"zh", "ja", "th", "lo", "km", "my"}  # languages, between sentences


@dataclasses.dataclass(frozen=True)
class Attention:
    """Which weights of the decoder over the source are wanted."""

    layer: int = -1  # of the decoder, from 0; -1 = the last
    heads: tuple[int, ...] = ()  # whose mean is taken; () = all


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence."""

    text: str
    score: float  # what hypotheses are ranked by: log_prob over the length penalty, …
    log_prob: float  # natural logarithm, the end token included
    tokens: tuple[str, ...]  # word pieces; "</s>" where it ended
    stop: Literal["end", "limit"]  # ended by the end token, or cut off by the limit
    token_log_probs: tuple[float, ...] | None = None  # one for each token
    # [tokens, source_tokens]: each row sums to 1
    attention: np.ndarray | None = None
    parts: tuple[str, ...] = ()  # the text of each piece that the line was cut into


@dataclasses.dataclass(frozen=True)
class Translation:
    """What became of one line."""

    source: str
    source_tokens: tuple[str, ...]  # word pieces; "</s>" after each part
    hypotheses: tuple[Hypothesis, ...]  # best first; none for a blank line
    num_pieces: int  # the line was translated in so many; 0 for a blank one
    was_cut: bool  # a sentence was longer than the model's training length

    @property
    def text(self) -> str:
        """The best translation; empty if there is none."""
        return self.hypotheses[0].text if self.hypotheses else ""


@dataclasses.dataclass(frozen=True)
class Score:
    """How probable a given translation is."""

    log_prob: float  # natural logarithm, the end token included
    score: float  # over the length penalty
    tokens: tuple[str, ...]  # word pieces of the translation, and "</s>"
    token_log_probs: tuple[float, ...]  # one for each token


_PROBLEMS = {
    "cut": "have a sentence longer than the model was trained on: cut into pieces that "
    "were translated by themselves (try --split_sentences)",
    "none": "have no translation, since all that was possible is forbidden: relax what "
    "is suppressed",
    "empty": "have an empty translation (--min_length=1 forbids it)",
    "limit": "have a translation cut off at its length limit, often a loop "
    "(--no_repeat_ngram_size=3 prevents loops; --max_extra_length raises the limit)",
}


class Problems:
    """Counts what may be wrong with translations, to be told at the end."""

    def __init__(self, told: Mapping[str, str] = _PROBLEMS) -> None:
        """Nothing seen yet.

        Args:
          told: what is said of so many lines, by kind; of other kinds nothing is.
        """
        self.num_lines = 0
        self._told = told
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, translation: Translation, **more: bool) -> None:
        """Counts one more line, and its further problems by kind."""
        self.num_lines += 1
        best = translation.hypotheses[:1]
        self.counts["cut"] += translation.was_cut
        self.counts["none"] += translation.num_pieces > 0 and not best
        self.counts["empty"] += any(not hypothesis.text for hypothesis in best)
        self.counts["limit"] += any(hypothesis.stop == "limit" for hypothesis in best)
        self.counts.update(more)

    def lines(self) -> list[str]:
        """A line for each kind of problem that was seen."""
        return [
            f"{self.counts[kind]} of {self.num_lines} lines {told}"
            for kind, told in self._told.items()
            if self.counts[kind]
        ]


class Translator:
    """A trained model, or several, that translates and scores.

    Any number of threads may use one at once.

    >>> translator = Translator.from_workdir("runs/quickstart")  # doctest: +SKIP
    >>> translator.translate(["the third of May"])  # doctest: +SKIP
    ['der dritte Mai']
    """

    def __init__(
        self,
        searcher: Searcher,
        vocabularies: Vocabularies,
        decoding: DecodingConfig,
        *,
        languages: tuple[str, str],
        max_length: int,
        steps: Sequence[int] = (),
    ) -> None:
        """Puts together what `from_workdir` and `from_directory` read.

        Args:
          searcher: the models, on their devices.
          vocabularies: source and target.
          decoding: the search; see `with_decoding` for changing it.
          languages: source and target.
          max_length: longest source, in tokens with the end, that is translated in one
            piece; see `translations`.
          steps: of the checkpoints that the parameters are the average of.
        """
        vocab_size = searcher.models[0].config.vocab_size
        if decoding.beam_size > vocab_size:
            raise UserError(
                f"decoding.beam_size is {decoding.beam_size}, expected at most "
                f"model.vocab_size {vocab_size}: lower it"
            )
        self._trees = TreePieces.of(vocabularies) if decoding.only_trees else None
        self.searcher = searcher
        self.vocabularies = vocabularies
        self.decoding = decoding
        self.languages = languages
        self.max_length = max_length
        self.steps = list(steps)

    @classmethod
    def from_workdir(
        cls, workdir: str | Path, checkpoint: str = "latest"
    ) -> "Translator":
        """The translator that a run has trained.

        Args:
          workdir: folder of the run.
          checkpoint: "latest", "best", "average" or a step.

        Raises:
          UserError: the folder holds no run, or not that checkpoint.
        """
        return cls.of(TrainedModel.load(workdir, checkpoint))

    @classmethod
    def from_directory(cls, folder: str | Path) -> "Translator":
        """The translator of an exported model, or the newest of a run.

        Raises:
          UserError: the folder holds neither.
        """
        return cls.of(TrainedModel.load(folder))

    @classmethod
    def of(
        cls,
        trained: TrainedModel,
        *more: TrainedModel,
        ensemble: Ensemble = "probabilities",
        mesh: Mesh | None = None,
    ) -> "Translator":
        """The translator of one model, or of an ensemble.

        Args:
          trained: the first model; its search, languages and limits hold.
          more: further models with the same vocabularies.
          ensemble: what is averaged at each token.
          mesh: of the devices that share the sentences; by default all there are.

        Raises:
          UserError: the vocabularies differ.
        """
        mesh = make_mesh(MeshConfig()) if mesh is None else mesh
        for other in more:
            if other.vocabularies.digest != trained.vocabularies.digest:
                raise UserError(
                    "the models of the ensemble have different vocabularies, expected "
                    "the same: train them on the same text, or with the first one's "
                    "vocabulary"
                )
        models = [trained, *more]
        searcher = Searcher(
            [Transformer(m.config.on_platform(platform_of(mesh))) for m in models],
            [to_global(m.params, replicated(mesh)) for m in models],
            mesh,
            ensemble=ensemble,
        )
        return cls(
            searcher,
            trained.vocabularies,
            trained.decoding,
            languages=(trained.source_language, trained.target_language),
            max_length=min(m.max_length for m in models),
            steps=trained.steps,
        )

    def with_decoding(self, **changes: Any) -> "Translator":
        """The same translator with another search, for example `beam_size=1`.

        Raises:
          UserError: no such option, or a value is out of range or contradicts another.
        """
        options = {**dataclasses.asdict(self.decoding), **changes}
        return Translator(
            self.searcher,
            self.vocabularies,
            freeze_group(DecodingConfig, options, "decoding"),
            languages=self.languages,
            max_length=self.max_length,
            steps=self.steps,
        )

    def translate(
        self,
        sentences: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[str]:
        """The best translation of each sentence, in order; problems are logged.

        Arguments and errors are those of `translations`.
        """
        problems = Problems()
        texts = []
        for translation in self.translations(sentences, progress=progress):
            problems.add(translation)
            texts.append(translation.text)
        for line in problems.lines():
            logging.warning("%s", line)
        return texts

    def translations(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] = (),
        suppress: Sequence[str] = (),
        split: bool = False,
        token_log_probs: bool = False,
        attention: Attention | None = None,
        seed: int = 0,
        first_number: int = 1,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[Translation]:
        """All that is asked about each sentence, in order.

        A blank sentence has no translation. A sentence of more than `max_length` tokens
        is cut before the last word that fits, as often as needed; the pieces are
        translated by themselves and joined. Of a line in several pieces, hypothesis k
        is made of the k-th of each: texts are joined, log-probabilities and scores
        added.

        Args:
          sentences: raw text, one sentence each.
          prefixes: what each translation must begin with, "" for nothing: of as many
            sentences, or one for all. It is taken in the word pieces that the
            vocabulary gives it.
          suppress: phrases that no translation may contain, in the word pieces that the
            vocabulary gives them as whole words.
          split: split each into its sentences first, by the rules of its language.
          token_log_probs: whether hypotheses carry them.
          attention: which weights hypotheses carry; absent = none.
          seed: for sampling. A sentence's sample is a function of the seed and the
            sentence: the same sentence gives the same sample.
          first_number: of the first sentence, for errors.
          progress: called with the number of sentences each time some are done.

        Raises:
          TypeError: not a list of strings.
          UserError: prefixes that do not fit, phrases without any word piece; with
            `only_trees`, either, or a bracket in a sentence.
        """
        _require_texts(sentences)
        if self._trees:
            self._trees.require_words(sentences, first_number)
        suppressed = self._suppressed(suppress)
        self._require_there(attention)
        lines = self._lines(sentences, split=split)
        jobs, owners = [], []
        prefix_ids = self._prefixes(prefixes, len(sentences))
        for number, line in enumerate(lines):
            for i, ids in enumerate(line.pieces):
                prefix = prefix_ids[number] if i == 0 else []
                self._require_room(prefix, ids, first_number + number)
                leaves = self._trees.leaves(ids) if self._trees else ()
                jobs.append(Job(ids, prefix, _seed(seed, ids), leaves))
                owners.append(number)
        left = collections.Counter(owners)
        progress(len(lines) - len(left))
        found: list[Any] = [None] * len(jobs)
        for number, result in self.searcher.search(
            jobs,
            self.decoding,
            suppressed=suppressed,
            grammar=self._trees and self._trees.grammar,
        ):
            found[number] = self._hypotheses(result)
            left[owners[number]] -= 1
            progress(left[owners[number]] == 0)
        if token_log_probs or attention:
            self._add_details(jobs, found, token_log_probs, attention)
        by_line: list[list[Any]] = [[] for _ in lines]
        for owner, hypotheses in zip(owners, found, strict=True):
            by_line[owner].append(hypotheses)
        return [
            self._translation(line, pieces)
            for line, pieces in zip(lines, by_line, strict=True)
        ]

    def require_valid(
        self, suppress: Sequence[str], attention: Attention | None
    ) -> None:
        """Refuses, before long work, arguments that `translations` would refuse.

        Raises:
          UserError: a blank phrase, or a layer or head that is not there.
        """
        self._suppressed(suppress)
        self._require_there(attention)

    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[Score | None]:
        """How probable the second text of each pair is as translation of the first.

        The log-probability is that of the word pieces which the vocabulary gives the
        text, and of the end token. It is what a search finds for the same pieces.

        Args:
          pairs: source and target, raw text.
          progress: called with the number of pairs each time some are done.

        Returns:
          The scores in order; none for a pair with a side of more than 1,024 tokens, or
          more than the model has positions for.

        Raises:
          TypeError: not a list of pairs of strings.
        """
        sides = [list(side) for side in zip(*pairs, strict=True)] or [[], []]
        for side in sides:
            _require_texts(side)
        source = self.vocabularies.source.encode_batch([s.strip() for s in sides[0]])
        target = self.vocabularies.target.encode_batch([s.strip() for s in sides[1]])
        most = self.searcher.most_scored - 1  # one position is the end token's
        encoded = list(zip(source, target, strict=True))
        short = [i for i, pair in enumerate(encoded) if max(map(len, pair)) <= most]
        progress(len(pairs) - len(short))
        scores: list[Score | None] = [None] * len(pairs)
        penalty = self.searcher.penalty(self.decoding)
        for i, log_probs, _ in self.searcher.score(
            [encoded[i] for i in short], self.decoding
        ):
            log_prob = float(np.sum(log_probs, dtype=np.float64))
            number = short[i]
            ids = encoded[number][1]
            scores[number] = Score(
                log_prob=log_prob,
                score=log_prob / penalty(len(log_probs)),
                tokens=_pieces(self.vocabularies.target, [*ids, END_ID]),
                token_log_probs=tuple(log_probs.tolist()),
            )
            progress(1)
        return scores

    def _lines(self, sentences: Sequence[str], *, split: bool) -> list["_Line"]:
        """The lines in pieces that fit."""
        language = self.languages[0]
        texts = [
            split_sentences(text, language) if split else [text.strip()]
            for text in sentences
        ]
        flat = [part for parts in texts for part in parts]
        encoded = iter(self.vocabularies.source.encode_batch(flat))
        lines = []
        for text, parts in zip(sentences, texts, strict=True):
            cut = [self._cut(next(encoded)) for _ in parts]
            pieces = [piece for part in cut for piece in part]
            lines.append(_Line(text, pieces, any(len(part) > 1 for part in cut)))
        return lines

    def _cut(self, ids: list[int]) -> list[list[int]]:
        """The ids in pieces that fit, each but the first beginning with a word."""
        most = self.max_length - 1  # one position is the end token's
        starts_word = self.vocabularies.source.starts_word
        pieces, first = [], 0
        while len(ids) - first > most:
            ends = range(first + most, first, -1)
            end = next((i for i in ends if starts_word(ids[i])), first + most)
            pieces.append(ids[first:end])
            first = end
        return [*pieces, ids[first:]] if first < len(ids) else pieces

    def _prefixes(self, prefixes: Sequence[str], num_lines: int) -> list[list[int]]:
        if isinstance(prefixes, str):
            raise TypeError("got one str, expected a list of them: [prefix]")
        _require_texts(prefixes)
        if self._trees and any(prefixes):
            raise UserError("a prefix with decoding.only_trees: drop one of them")
        if len(prefixes) not in (0, 1, num_lines):
            raise UserError(
                f"{len(prefixes)} prefixes for {num_lines} sentences, expected as "
                "many, or one for all"
            )
        encoded = self.vocabularies.target.encode_batch([p.strip() for p in prefixes])
        return (encoded or [[]]) * (num_lines if len(encoded) < 2 else 1)

    def _require_room(self, prefix: list[int], ids: list[int], number: int) -> None:
        most = self.searcher.most_tokens(self.decoding, len(ids) + 1)
        if len(prefix) >= most:
            raise UserError(
                f"the prefix of sentence {number} has {len(prefix)} tokens, "
                f"expected fewer than the {most} of its translation's limit: shorten "
                "it, or raise max_length or max_extra_length"
            )

    def _require_there(self, attention: Attention | None) -> None:
        if attention is not None:
            self.searcher.require_attention(attention.layer, attention.heads)

    def _suppressed(self, phrases: Sequence[str]) -> list[list[int]]:
        if isinstance(phrases, str):
            raise TypeError("got one str, expected a list of them: [phrase]")
        _require_texts(phrases)
        if self._trees and phrases:
            raise UserError(
                "a suppressed phrase with decoding.only_trees, which may leave no "
                "tree: drop one of them"
            )
        encoded = self.vocabularies.target.encode_batch([p.strip() for p in phrases])
        for phrase, ids in zip(phrases, encoded, strict=True):
            if not ids:
                raise UserError(
                    f"suppressed phrase {phrase!r} is blank, expected words: drop it"
                )
        return encoded

    def _hypotheses(self, found: Found) -> list["_Draft"]:
        return [
            _Draft(ids, log_prob, score, done, self.vocabularies.target.decode(ids))
            for ids, log_prob, score, done in zip(*found, strict=True)
        ]

    def _add_details(
        self,
        jobs: Sequence[Job],
        found: Sequence[list["_Draft"]],
        token_log_probs: bool,
        attention: Attention | None,
    ) -> None:
        """Scores the hypotheses as given translations: that is what details cost."""
        drafts = [
            (job, draft)
            for job, drafts in zip(jobs, found, strict=True)
            for draft in drafts
        ]
        choice = None
        if attention is not None:
            choice = attention.layer, attention.heads
        for i, log_probs, weights in self.searcher.score(
            [(job.source, draft.ids) for job, draft in drafts],
            self.decoding,
            attention=choice,
        ):
            draft = drafts[i][1]
            length = len(draft.ids) + draft.is_finished
            if token_log_probs:
                draft.token_log_probs = log_probs[:length].tolist()
            if attention is not None:
                draft.attention = weights[:length]

    def _translation(
        self, line: "_Line", pieces: Sequence[list["_Draft"]]
    ) -> Translation:
        source = [
            _pieces(self.vocabularies.source, [*ids, END_ID]) for ids in line.pieces
        ]
        space = "" if self.languages[1] in _WITHOUT_SPACES else " "
        ranks = zip(*pieces, strict=False) if pieces else ()  # as many as all have
        return Translation(
            source=line.text,
            source_tokens=tuple(token for part in source for token in part),
            hypotheses=tuple(self._joined(parts, space) for parts in ranks),
            num_pieces=len(pieces),
            was_cut=line.was_cut,
        )

    def _joined(self, parts: Sequence["_Draft"], space: str) -> Hypothesis:
        ids = [[*p.ids, END_ID] if p.is_finished else p.ids for p in parts]
        log_probs = [p.token_log_probs for p in parts]
        weights = [p.attention for p in parts]
        return Hypothesis(
            text=space.join(p.text for p in parts if p.text),
            score=math.fsum(p.score for p in parts),
            log_prob=math.fsum(p.log_prob for p in parts),
            tokens=_pieces(self.vocabularies.target, itertools.chain(*ids)),
            stop="end" if all(p.is_finished for p in parts) else "limit",
            token_log_probs=None
            if None in log_probs
            else tuple(itertools.chain(*log_probs)),
            attention=_block_diagonal([w for w in weights if w is not None]),
            parts=tuple(p.text for p in parts),
        )


@dataclasses.dataclass(frozen=True)
class _Line:
    text: str
    pieces: list[list[int]]  # ids of each, without end
    was_cut: bool


@dataclasses.dataclass
class _Draft:
    """A hypothesis of one piece of a line."""

    ids: list[int]  # without the end token
    log_prob: float
    score: float
    is_finished: bool
    text: str
    token_log_probs: Any = None
    attention: np.ndarray | None = None


def _require_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError("got one str, expected a list of them: [sentence]")
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TypeError(
                f"got a sentence of type {type(text).__name__}, expected str"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"sentence {number} holds half of a surrogate pair, "
                f"U+{ord(text[error.start]):04X}, expected Unicode text: decode its "
                "bytes with errors='replace'"
            ) from None


def _seed(seed: int, ids: Sequence[int]) -> int:
    """64 bits of the seed and the sentence."""
    content = repr((seed, list(ids))).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> tuple[str, ...]:
    return tuple(tokenizer.pieces(ids))


def _block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray | None:
    if not blocks:
        return None
    whole = np.zeros(np.sum([block.shape for block in blocks], axis=0), np.float32)
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole
