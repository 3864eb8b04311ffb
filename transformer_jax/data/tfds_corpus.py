"""Sentence pairs that tensorflow-datasets prepared, read without TensorFlow.

The paper's WMT 2014 (Section 5.1) is its `wmt14_translate`: validation is newstest2013,
test is newstest2014 with all 3,003 sentences. Prepared once, by
`transformer_jax.data.tfds_preparation`, a dataset lies in a folder such as
`DIR/wmt14_translate/de-en/1.0.0`: what it is in two JSON files, and the pairs in files
of records, one for each shard of a split. A record is a `tf.train.Example` with a text
of each language. Nothing here reaches the network.
"""

import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.pairs import Pair, Pairs
from transformer_jax.errors import UserError

FILE_FORMAT = "array_record"  # of tensorflow-datasets' formats, read without TensorFlow

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_RECORDS_AT_ONCE = 1024  # some 400 KB of text
_STRIP = " \t\r"  # around a text, as around a line of a file


@dataclasses.dataclass(frozen=True)
class TfdsPairs(Pairs):
    """A split: its pairs, as often as they are iterated over, from disk each time."""

    languages: tuple[str, str]  # source, target
    files: tuple[Path, ...]  # of records, in the dataset's order
    lengths: tuple[int, ...]  # pairs in each file

    @classmethod
    def open(cls, config: DataConfig, split: str) -> "TfdsPairs":
        """The split "train", "validation" or "test" of the configured dataset.

        Source and target are the languages that the config names, never the dataset's
        own order: that of `wmt14_translate` is German or French to English.

        Raises:
          UserError: not prepared for these languages or as another kind of files, a
            folder that is incomplete or damaged, or no such split.
        """
        folder = find_prepared(config)
        if folder is None:
            raise _not_prepared(config)
        languages = config.source_language, config.target_language
        info = _read_info(folder, config)
        if missing := set(languages) - set(_texts(info.features)):
            raise UserError(
                f"{folder} has no text in {' or '.join(sorted(missing))}, but in "
                f"{', '.join(_texts(info.features)) or 'no language'}: set "
                "data.source_language and data.target_language to those"
            )
        if split not in info.splits:
            raise UserError(
                f"{folder} has no split {split!r}, expected one of "
                f"{', '.join(info.splits)}"
            )
        files = tuple(map(Path, info.splits[split].filepaths))
        pairs = cls(languages, files, tuple(info.splits[split].shard_lengths))
        for path, length in zip(pairs.files, pairs.lengths, strict=True):
            try:
                reader = _reader(path)
                num_records = reader.num_records()
                reader.close()  # raises if the file is missing or cut short
            except RuntimeError as error:
                raise _damaged(folder, config, f"{path.name}: {error}") from error
            if num_records != length:
                reason = f"{path.name} has {num_records} pairs, expected {length}"
                raise _damaged(folder, config, reason)
        return pairs

    def __len__(self) -> int:
        return sum(self.lengths)

    def __iter__(self) -> Iterator[Pair]:
        """Yields (source text, target text), without blanks around them.

        Raises:
          UserError: a damaged file; each record has a checksum.
        """
        from tensorflow_datasets.proto import tf_example_pb2

        parse = tf_example_pb2.Example.FromString  # pyright: ignore
        source, target = self.languages
        for path, length in zip(self.files, self.lengths, strict=True):
            reader = _reader(path)
            for first in range(0, length, _RECORDS_AT_ONCE):
                try:
                    records = reader.read(first, min(first + _RECORDS_AT_ONCE, length))
                except (RuntimeError, IndexError) as error:
                    raise UserError(
                        f"{path} is damaged ({str(error).partition(' (')[0]}): delete "
                        "its folder and prepare it again"
                    ) from error
                for record in records:
                    texts = parse(record).features.feature
                    yield (
                        texts[source].bytes_list.value[0].decode().strip(_STRIP),
                        texts[target].bytes_list.value[0].decode().strip(_STRIP),
                    )
            reader.close()

    @functools.cached_property
    def digest(self) -> str:
        """A name for the pairs of these files in this direction, wherever they lie.

        It is a SHA-256 over the languages and that of each file. The files are read
        whole, some 1.7 GB/s on each core: their sizes are padded and tell little. Files
        that tensorflow-datasets writes anew have the same pairs in the same order, but
        the two languages of a record in either, and so another digest.
        """

        def digest_of(path: Path) -> str:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            digests = list(threads.map(digest_of, self.files))
        content = json.dumps([self.languages, digests])
        return hashlib.sha256(content.encode()).hexdigest()


def data_dir(config: DataConfig) -> Path:
    """tensorflow-datasets' folder: the config's, else TFDS_DATA_DIR, else its default.

    >>> data_dir(DataConfig(dir="/data"))
    PosixPath('/data')
    """
    default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(config.dir or default).expanduser()


def pair_names(config: DataConfig) -> tuple[str, str]:
    """The names that a dataset may have the two languages under.

    >>> pair_names(DataConfig(source_language="en", target_language="fr"))
    ('en-fr', 'fr-en')
    """
    source, target = config.source_language, config.target_language
    return f"{source}-{target}", f"{target}-{source}"


def prepare_command(config: DataConfig) -> str:
    """What to type to prepare the configured dataset."""
    flags = [f"--{side}_language" for side in ("source", "target")]
    languages = config.source_language, config.target_language
    words = [f"{flag}={name}" for flag, name in zip(flags, languages, strict=True)]
    if config.dataset != DataConfig.dataset:
        words.append(f"--dataset={config.dataset}")
    if config.dir:
        words.append(f"--data_dir={config.dir}")
    return f"python -m transformer_jax prepare-tfds {shlex.join(words)}"


def find_prepared(config: DataConfig) -> Path | None:
    """The folder of the dataset's newest version on disk, of either order of languages.

    Only the name is looked at: what is in it may be damaged.
    """
    dataset = data_dir(config) / config.dataset
    for name in pair_names(config):
        if versions := _versions(dataset / name):
            return versions[-1]
    return None


def _versions(folder: Path) -> list[Path]:
    """The folders of versions, oldest first."""
    versions = [path for path in folder.glob("*") if _VERSION.fullmatch(path.name)]
    return sorted(versions, key=lambda path: [int(n) for n in path.name.split(".")])


def _not_prepared(config: DataConfig) -> UserError:
    dataset = data_dir(config) / config.dataset
    names = pair_names(config)
    others = sorted(path.name for path in dataset.glob("*-*") if _versions(path))
    unfinished = [
        path for name in names for path in dataset.glob(f"{name}/incomplete*")
    ]
    if unfinished:
        found = (
            f"{unfinished[0]} is not finished: preparing goes on, or was interrupted"
        )
    elif others:
        found = f"{dataset} has no {' or '.join(names)}, only {', '.join(others)}"
    else:
        found = f"no {config.dataset} of {' or '.join(names)} in {data_dir(config)}"
    return UserError(
        f"{found}; prepare it once with `{prepare_command(config)}` (which needs pip "
        "install tensorflow-cpu), or use your own text files: "
        "--config.data.corpus=files --config.data.dir=DIR"
    )


def _damaged(folder: Path, config: DataConfig, reason: str) -> UserError:
    return UserError(
        f"{folder} is damaged ({reason}): delete it and prepare it again with "
        f"`{prepare_command(config)}`, which uses the downloads that are there"
    )


def _read_info(folder: Path, config: DataConfig) -> Any:
    """What tensorflow-datasets' files say of the dataset, with its paths set."""
    import tensorflow_datasets as tfds
    from google.protobuf import json_format

    for name in ("dataset_info.json", "features.json"):
        if not (folder / name).is_file():
            raise _damaged(folder, config, f"no {name}")
    try:
        info = tfds.builder_from_directory(folder).info
    except (ValueError, OSError, json_format.Error) as error:
        reason = f"its JSON files: {str(error).splitlines()[0]}"
        raise _damaged(folder, config, reason) from error
    formats = {file_format.value for file_format in info.available_file_formats()}
    if FILE_FORMAT not in formats:
        raise UserError(
            f"{folder} is prepared as {' and '.join(formats) or 'unknown files'}, "
            f"expected {FILE_FORMAT}, which is read without TensorFlow: delete it (the "
            f"downloads stay) and prepare it with `{prepare_command(config)}`"
        )
    info.set_file_format(FILE_FORMAT, override=True, override_if_initialized=True)
    return info


def _texts(features: Any) -> list[str]:
    """The names of the features that are texts: the languages."""
    import tensorflow_datasets as tfds

    if not isinstance(features, tfds.features.FeaturesDict):
        return []
    return [
        name
        for name, feature in features.items()
        if isinstance(feature, tfds.features.Text)
    ]


def _reader(path: Path) -> Any:
    """Of a file's records."""
    from array_record.python.array_record_module import ArrayRecordReader

    return ArrayRecordReader(str(path))
