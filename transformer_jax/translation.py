"""The Translator: text in, text out, for scripts, the command line and notebooks alike.

A sentence's translation depends on the sentence alone. It is padded to a length that is
a function of its own, in batches whose number of rows on a device is a function of that
length, so the compiled program and the row's arithmetic are the same whatever its
neighbours are, and however many devices there are.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from transformer_jax.checkpointing import load_checkpoint
from transformer_jax.config import (
    DecodingConfig,
    ExperimentConfig,
    MeshConfig,
    TransformerConfig,
    freeze,
)
from transformer_jax.data.tokenizer import END_ID, PAD_ID, START_ID, Tokenizer
from transformer_jax.decoding.beam_search import Hypotheses, beam_search
from transformer_jax.errors import UserError
from transformer_jax.models import Transformer
from transformer_jax.sharding import (
    every_device,
    make_mesh,
    platform_of,
    replicated,
    to_global,
)

# Padded lengths of source sentences with the end token; longer ones go on doubling.
_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    """The tokenizers of both languages: the same one where they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def load(cls, workdir: Path, *, shared: bool) -> "Vocabularies":
        """Reads the vocabulary files of a run."""
        if shared:
            tokenizer = Tokenizer.load(workdir / "vocabulary.model")
            return cls(tokenizer, tokenizer)
        return cls(
            Tokenizer.load(workdir / "vocabulary.source.model"),
            Tokenizer.load(workdir / "vocabulary.target.model"),
        )

    def save(self, workdir: Path) -> None:
        """Writes the vocabulary files of a run."""
        if self.source is self.target:
            self.source.save(workdir / "vocabulary.model")
        else:
            self.source.save(workdir / "vocabulary.source.model")
            self.target.save(workdir / "vocabulary.target.model")

    @property
    def digest(self) -> str:
        """Says whether two runs have the same vocabulary."""
        return f"{self.source.digest}-{self.target.digest}"


def load_config(workdir: Path) -> ExperimentConfig:
    """The config that a run was started with."""
    path = workdir / "config.json"
    try:
        return freeze(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(
            f"no {path}: expected the folder of a run; train with --workdir={workdir} "
            "first"
        ) from None
    except ValueError as error:  # UserError, or not JSON, or not UTF-8
        raise UserError(f"{path} is not the config of a run ({error})") from None


class Translator:
    """A trained model and its vocabularies.

    >>> translator = Translator.from_workdir("runs/quickstart")  # doctest: +SKIP
    >>> translator.translate(["the third of May"])  # doctest: +SKIP
    ['der dritte Mai']
    """

    def __init__(
        self,
        model: Transformer,
        params: Any,
        vocabularies: Vocabularies,
        *,
        decoding: DecodingConfig,
        max_length: int,
        mesh: Mesh | None = None,
        steps: Sequence[int] = (),
    ) -> None:
        """Puts together what `from_workdir` reads.

        Args:
          model: its config says how it computes.
          params: its parameters.
          vocabularies: source and target.
          decoding: the search; see `translate` for changing it.
          max_length: longest source, in tokens with the end, that is translated in one
            piece; see `translate`.
          mesh: of the devices that share the sentences; by default all there are.
          steps: of the checkpoints that the parameters are the average of.
        """
        if decoding.beam_size > model.config.vocab_size:
            raise UserError(
                f"decoding.beam_size is {decoding.beam_size}, expected at most "
                f"model.vocab_size {model.config.vocab_size}: lower it"
            )
        self.model = model
        self.params = params
        self.vocabularies = vocabularies
        self.decoding = decoding
        self.max_length = max_length
        self.mesh = make_mesh(MeshConfig()) if mesh is None else mesh
        self.steps = list(steps)
        self._search = jax.jit(
            functools.partial(search_on, self.mesh),
            static_argnames=("model", "beam_size", "alpha", "max_length"),
            out_shardings=replicated(self.mesh),
        )

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
        workdir = Path(workdir)
        config = load_config(workdir)
        params, steps = load_checkpoint(
            workdir, checkpoint, average_last=config.checkpoint.average_last
        )
        mesh = make_mesh(MeshConfig())
        return cls(
            Transformer(config.model.on_platform(platform_of(mesh))),
            to_global(params, replicated(mesh)),
            Vocabularies.load(workdir, shared=config.tokenizer.shared),
            decoding=config.decoding,
            max_length=config.data.max_length,
            mesh=mesh,
            steps=steps,
        )

    def with_decoding(self, **changes: Any) -> "Translator":
        """The same translator with another search, for example `beam_size=1`."""
        changed = dataclasses.replace(self.decoding, **changes)
        if changed == self.decoding:
            return self
        return Translator(
            self.model,
            self.params,
            self.vocabularies,
            decoding=changed,
            max_length=self.max_length,
            mesh=self.mesh,
            steps=self.steps,
        )

    def translate(
        self,
        sentences: Sequence[str],
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> list[str]:
        """The best translation of each sentence, in order.

        An empty sentence gives an empty one. A sentence of more than `max_length`
        tokens is cut before the last word that fits, as often as needed; the pieces are
        translated by themselves and joined by spaces, and a warning counts such
        sentences.

        Args:
          sentences: raw text, one sentence each.
          progress: called with the number of sentences each time some are done.

        Raises:
          TypeError: not a list of strings.
        """
        if isinstance(sentences, str):
            raise TypeError("got one str, expected a list of them: [sentence]")
        for sentence in sentences:
            if not isinstance(sentence, str):
                raise TypeError(
                    f"got a sentence of type {type(sentence).__name__}, expected str"
                )
        pieces: list[list[int]] = []
        owners: list[int] = []  # the sentence that each piece belongs to
        num_cut = 0
        encoded = self.vocabularies.source.encode_batch([s.strip() for s in sentences])
        for number, ids in enumerate(encoded):
            cut = self._cut(ids)
            num_cut += len(cut) > 1
            pieces.extend(cut)
            owners.extend([number] * len(cut))
        if num_cut:
            logging.warning(
                "%d of %d sentences are longer than %d tokens: cut into pieces that "
                "were translated by themselves",
                num_cut,
                len(sentences),
                self.max_length - 1,
            )
        left = [0] * len(sentences)  # pieces of each sentence not yet translated
        for owner in owners:
            left[owner] += 1
        progress(left.count(0))
        outputs = [""] * len(pieces)
        for numbers, batch in self._batches(pieces):
            hypotheses = self._decode(batch)
            for row, number in enumerate(numbers):
                length = int(hypotheses.lengths[row, 0])
                ids = hypotheses.tokens[row, 0, :length]
                outputs[number] = self.vocabularies.target.decode(ids)
                left[owners[number]] -= 1
                progress(left[owners[number]] == 0)
        parts: list[list[str]] = [[] for _ in sentences]
        for output, owner in zip(outputs, owners, strict=True):
            parts[owner].append(output)
        return [" ".join(part) for part in parts]

    def _cut(self, ids: list[int]) -> list[list[int]]:
        """The ids in pieces that fit, each but the first beginning with a word."""
        most = self.max_length - 1  # one position is the end token's
        pieces = []
        while len(ids) > most:
            starts_word = self.vocabularies.source.starts_word
            ends = [i for i in range(1, most + 1) if starts_word(ids[i])]
            end = ends[-1] if ends else most
            pieces.append(ids[:end])
            ids = ids[end:]
        return [*pieces, ids] if ids else pieces

    def _batches(
        self, pieces: Sequence[list[int]]
    ) -> list[tuple[list[int], np.ndarray]]:
        """Numbers of pieces, and their padded ids [rows, length]; longest last."""
        by_length: dict[int, list[int]] = {}
        for number, ids in enumerate(pieces):
            by_length.setdefault(_padded_length(len(ids) + 1), []).append(number)
        batches = []
        for length, numbers in sorted(by_length.items()):
            rows, _ = search_shape(self.model.config, self.decoding, length)
            rows *= self.mesh.size
            for first in range(0, len(numbers), rows):
                members = numbers[first : first + rows]
                # Always as many rows, so that the same program runs: see the top.
                batch = np.full((rows, length), PAD_ID, np.int32)
                for row, number in enumerate(members):
                    ids = pieces[number]
                    batch[row, : len(ids)] = ids
                    batch[row, len(ids)] = END_ID
                batches.append((members, batch))
        return batches

    def _decode(self, batch: np.ndarray) -> Hypotheses:
        lengths = (batch != PAD_ID).sum(axis=1)
        extra = self.decoding.max_extra_length
        limits = np.where(lengths > 0, lengths + extra, 0)
        config = self.model.config
        _, max_length = search_shape(config, self.decoding, batch.shape[1])
        rows = every_device(self.mesh)
        return jax.device_get(
            self._search(
                self.params,
                *to_global((batch, np.minimum(limits, max_length)), rows),
                model=self.model,
                beam_size=self.decoding.beam_size,
                alpha=self.decoding.length_penalty,
                max_length=max_length,
            )
        )


def _padded_length(length: int) -> int:
    for padded in _LENGTHS:
        if length <= padded:
            return padded
    return _LENGTHS[-1] * 2 ** int(np.ceil(np.log2(length / _LENGTHS[-1])))


def search_shape(
    config: TransformerConfig, decoding: DecodingConfig, length: int
) -> tuple[int, int]:
    """Rows on a device, and most output tokens, of sources padded to `length`."""
    max_length = length + decoding.max_extra_length
    if config.positions == "learned":
        max_length = min(max_length, config.max_length)
    return max(decoding.batch_tokens // length, 1), max_length


def search_on(
    mesh: Mesh, params: Any, source: jax.Array, max_lengths: jax.Array, **options: Any
) -> Hypotheses:
    """`_search` on each device for its own rows: no device waits for another.

    Each runs the program that it would run if it were alone, so a translation does not
    depend on the number of devices.
    """
    rows = every_device(mesh).spec
    search = jax.shard_map(
        functools.partial(_search, **options),
        mesh=mesh,
        in_specs=(P(), rows, rows),
        out_specs=rows,
        check_vma=False,  # of the loop's carry, which begins the same on all devices
    )
    return search(params, source, max_lengths)


def _search(
    params: Any,
    source: jax.Array,
    max_lengths: jax.Array,
    *,
    model: Transformer,
    beam_size: int,
    alpha: float,
    max_length: int,
) -> Hypotheses:
    """Encodes the rows of `source` and searches for their translations."""
    variables = {"params": params}
    segments = (source != PAD_ID).astype(jnp.int32)
    encoded = model.apply(variables, source, segments, method="encode")
    memory, cache = model.apply(
        variables,
        encoded,
        segments,
        beam_size=beam_size,
        max_length=max_length,
        method="start_decoding",
    )
    step = functools.partial(model.apply, variables, method="decode_step")
    return beam_search(
        lambda tokens, position, cache: step(tokens, position, cache, memory),
        cache,
        start_id=START_ID,
        end_id=END_ID,
        pad_id=PAD_ID,
        beam_size=beam_size,
        max_lengths=max_lengths,
        max_length=max_length,
        length_penalty=alpha,
    )
