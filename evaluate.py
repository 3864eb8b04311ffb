"""Scores a trained Transformer on a split of its corpus.

python evaluate.py --workdir=DIR [--split=test] [--checkpoint=latest|best|average|STEP]
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

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

    from transformer_jax.commands.score_table import score_table
    from transformer_jax.data.sources import load_split
    from transformer_jax.evaluation import evaluate
    from transformer_jax.trained_model import load_config
    from transformer_jax.translation import Translator

    workdir = Path(flags.workdir)
    config = load_config(workdir)
    output = Path(flags.output or workdir / "metrics.json")
    require_writable(output)
    if flags.data_dir:
        data = dataclasses.replace(config.data, dir=flags.data_dir)
        config = dataclasses.replace(config, data=data)
    pairs = load_split(config.data, flags.split)
    checkpoint = flags.checkpoint or "latest"
    translator = Translator.from_workdir(workdir, checkpoint)
    translator = translator.with_decoding(**decoding_changes(flags))
    with tqdm(
        total=len(pairs), unit="sentence", disable=not sys.stderr.isatty()
    ) as bar:
        scores, report, hypotheses = evaluate(
            translator, pairs, config, progress=bar.update
        )
    metrics = {
        **dataclasses.asdict(scores),
        "perplexity": report.perplexity,
        "perplexity_per_word": report.perplexity_per_word,
        "num_words": report.num_words,
        "num_word_pieces": report.num_tokens,
        "loss": report.loss,
        "split": flags.split,
        "checkpoint": checkpoint,
        "checkpoint_step": translator.steps[-1],
        "averaged_steps": translator.steps,
        "beam_size": translator.decoding.beam_size,
        "length_penalty": translator.decoding.length_penalty,
    }
    write_whole(output, f"{json.dumps(metrics, indent=2)}\n".encode())
    translations = output.with_name(f"{output.stem}.{flags.split}.txt")
    write_whole(translations, "".join(f"{h}\n" for h in hypotheses).encode())
    print(score_table([scores]))
    of_scores = {field.name for field in dataclasses.fields(scores)}
    rest = {
        name: value
        for name, value in metrics.items()
        if name.startswith("num_") or name not in of_scores
    }
    width = max(map(len, rest))
    for name, value in rest.items():
        shown = f"{value:.2f}" if isinstance(value, float) else value
        print(f"{name:{width}}  {shown}")
    print(f"written to {output} and {translations}", file=sys.stderr)


if __name__ == "__main__":
    use_huge_pages()
    prepare_to_translate()
    run(main)
