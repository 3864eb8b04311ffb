"""python -m transformer_jax prepare-tfds."""

from collections.abc import Sequence

from transformer_jax.command_line import Parser
from transformer_jax.config import DataConfig

# Sizes: of the archives in tensorflow-datasets' list of checksums; of the text on the
# card of the same corpus on Hugging Face (1.36 and 14.75 GB). While preparing there are
# the archives, what they hold (about three times as much), and the text twice.
_DISK = (
    "At its peak this takes about 10 GB of disk for English-German (1.7 GB of "
    "downloads, 1.4 GB prepared) and 60 GB for English-French (6.7 GB of downloads, "
    "15 GB prepared); the folder downloads may be deleted afterwards."
)


def prepare_tfds(arguments: Sequence[str]) -> None:
    """Prepares a dataset unless it is there, and prints its folder and splits."""
    parser = Parser(
        prog="python -m transformer_jax prepare-tfds",
        description="Downloads a WMT corpus and prepares it for --config.data.corpus="
        "tfds, by tensorflow-datasets. Needed once, with TensorFlow (pip install "
        '"transformer_jax[wmt]"); training reads the result without it. Run again, it '
        "goes on with the archives that are there.",
        epilog=_DISK,
    )
    parser.add_argument("--source_language", required=True, help="such as en")
    parser.add_argument("--target_language", required=True, help="such as de")
    parser.add_argument(
        "--dataset",
        default=DataConfig.dataset,
        help="a WMT corpus of tensorflow-datasets (default: %(default)s)",
    )
    parser.add_argument(
        "--data_dir",
        default="",
        help="where datasets lie (default: TFDS_DATA_DIR or ~/tensorflow_datasets)",
    )
    flags, _ = parser.parse(arguments)
    config = DataConfig(
        dir=flags.data_dir,
        dataset=flags.dataset,
        source_language=flags.source_language,
        target_language=flags.target_language,
    )

    from transformer_jax.data.tfds_corpus import TfdsPairs
    from transformer_jax.data.tfds_preparation import prepare

    print(prepare(config))
    for split in ("train", "validation", "test"):
        print(f"{split:10}  {len(TfdsPairs.open(config, split)):,} pairs")
