"""Scores a trained Transformer on a split of its corpus.

python evaluate.py --workdir=DIR [--split=test] [--checkpoint=latest|best|average|STEP]
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from transformer_jax.command_line import (
    Parser,
    decoding_changes,
    prepare_to_translate,
    require_writable,
    run,
    use_huge_pages,
)
from transformer_jax.files import write_whole


def main(arguments: Sequence[str]) -> None:
    """Parses the flags, evaluates, prints a table and writes the files."""
    parser = Parser(description="Scores a trained Transformer on a split.")
    parser.add_translator_flags()
    parser.add_argument(
        "--split",
        default="test",
        help="train, validation, test, or test_filtered: sacreBLEU's wmt14",
    )
    parser.add_argument("--data_dir", help="folder of the text, if it has moved")
    parser.add_argument("--output", help="default: WORKDIR/metrics.json")
    flags, _ = parser.parse(arguments)

    from transformer_jax.commands.score_table import parse_table, score_table
    from transformer_jax.data.sources import load_split, load_trees
    from transformer_jax.evaluation import evaluate, evaluate_parser
    from transformer_jax.trained_model import load_config
    from transformer_jax.translation import Translator

    workdir = Path(flags.workdir)
    config = load_config(workdir)
    output = Path(flags.output or workdir / "metrics.json")
    require_writable(output)
    if flags.data_dir:
        data = dataclasses.replace(config.data, dir=flags.data_dir)
        config = dataclasses.replace(config, data=data)
    is_parser = config.data.corpus == "treebank"
    examples: Any = (load_trees if is_parser else load_split)(config.data, flags.split)
    checkpoint = flags.checkpoint or "latest"
    translator = Translator.from_workdir(workdir, checkpoint)
    translator = translator.with_decoding(**decoding_changes(flags))
    scores: dict[str, Any]
    with tqdm(
        total=len(examples), unit="sentence", disable=not sys.stderr.isatty()
    ) as bar:
        if is_parser:
            found, loss, outputs = evaluate_parser(
                translator, examples, config, flags.split, progress=bar.update
            )
            scores, table, suffix = found.to_dict(), parse_table(found), "mrg"
        else:
            found, loss, outputs = evaluate(
                translator, examples, config, progress=bar.update
            )
            scores, table = dataclasses.asdict(found), score_table([found])
            suffix = "txt"
    details = {
        "perplexity": loss.perplexity,
        "perplexity_per_word": loss.perplexity_per_word,
        "num_words": loss.num_words,
        "num_word_pieces": loss.num_tokens,
        "loss": loss.loss,
        "split": flags.split,
        "checkpoint": checkpoint,
        "checkpoint_step": translator.steps[-1],
        "averaged_steps": translator.steps,
        "beam_size": translator.decoding.beam_size,
        "length_penalty": translator.decoding.length_penalty,
    }
    metrics = {**scores, **details}
    write_whole(output, f"{json.dumps(metrics, indent=2)}\n".encode())
    text = output.with_name(f"{output.stem}.{flags.split}.{suffix}")
    write_whole(text, "".join(f"{line}\n" for line in outputs).encode())
    print(table)
    rest = {
        name: value
        for name, value in metrics.items()
        if name.startswith("num_") or name in details
    }
    width = max(map(len, rest))
    for name, value in rest.items():
        shown = f"{value:.2f}" if isinstance(value, float) else value
        print(f"{name:{width}}  {shown}")
    print(f"written to {output} and {text}", file=sys.stderr)


if __name__ == "__main__":
    use_huge_pages()
    prepare_to_translate()
    run(main)
