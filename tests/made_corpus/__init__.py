"""A translation dataset that tensorflow-datasets builds from pairs given in memory.

tensorflow-datasets wants the class of a dataset in a package, not in a script.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

Pair = tuple[str, str]  # English, German


class MadeTranslate(tfds.core.GeneratorBasedBuilder):
    """Named made_translate/de-en, with German first as in wmt14_translate."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar[list[Any]] = [tfds.core.BuilderConfig(name="de-en")]
    pairs: ClassVar[dict[str, list[Pair]]] = {}  # by split

    def _info(self) -> Any:
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(
            builder=self, features=features, supervised_keys=("de", "en")
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(p) for split, p in self.pairs.items()}

    def _generate_examples(self, pairs: list[Pair]) -> Iterator[tuple[int, Any]]:
        for number, (english, german) in enumerate(pairs):
            yield number, {"en": english, "de": german}


def build(data_dir: Path, pairs: dict[str, list[Pair]], *, num_shards: int = 1) -> Path:
    """Writes the dataset below `data_dir`; returns its own folder."""
    MadeTranslate.pairs = pairs
    builder = MadeTranslate(data_dir=data_dir, file_format="array_record")
    options = tfds.download.DownloadConfig(
        try_download_gcs=False, num_shards=num_shards
    )
    builder.download_and_prepare(download_config=options)
    return Path(builder.data_dir)
