"""python -m transformer_jax prepare-tfds."""

from collections.abc import Sequence

from transformer_jax.command_line import Parser
from transformer_jax.config import DataConfig

# The archives' sizes are in tensorflow-datasets' list of checksums, the texts' in the
# dataset_infos.json of the same corpus in Hugging Face's datasets (1.36 and 14.75 GB).
# At the peak there are the archives, what they hold (taken as three times as much) and
# the text twice. Memory: measured 1.0 KB for a pair of the largest archive, which
# tensorflow-datasets holds whole (2.4 million pairs, or 22.5 million of Giga-FrEn).
_NEEDS = (
    "Needs about 10 GB of disk for English-German (1.7 GB of downloads, 1.4 GB "
    "prepared) with 3 GB of memory, and 60 GB for English-French (6.7 GB of downloads, "
    "15 GB prepared) with 23 GB of memory. Afterwards the folder downloads may go."
)


def prepare_tfds(arguments: Sequence[str]) -> None:
    """Prepares a dataset unless it is there, and prints its folder and splits."""
    parser = Parser(
        prog="python -m transformer_jax prepare-tfds",
        description="Downloads a WMT corpus and prepares it for --config.data.corpus="
        "tfds, by tensorflow-datasets. Needed once, with TensorFlow (pip install "
        "tensorflow-cpu); training reads the result without it. Run again, it "
        "goes on with the archives that are there.",
        epilog=_NEEDS,
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
