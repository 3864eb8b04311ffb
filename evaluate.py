"""Scores a trained Transformer on a split of its corpus.

python evaluate.py --workdir=DIR [--split=test] [--checkpoint=latest|best|average|STEP]
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from transformer_jax.config import ExperimentConfig
    from transformer_jax.data.pairs import Pair
    from transformer_jax.evaluation import LossReport
    from transformer_jax.translation import Translator


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

    from transformer_jax.data.sources import load_split
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
    is_parser = config.data.corpus == "treebank"
    with tqdm(
        total=len(pairs), unit="sentence", disable=not sys.stderr.isatty()
    ) as bar:
        evaluated = _parsed if is_parser else _translated
        scored = evaluated(translator, pairs, config, flags.split, bar.update)
    details = {
        "perplexity": scored.loss.perplexity,
        "perplexity_per_word": scored.loss.perplexity_per_word,
        "num_words": scored.loss.num_words,
        "num_word_pieces": scored.loss.num_tokens,
        "loss": scored.loss.loss,
        "split": flags.split,
        "checkpoint": checkpoint,
        "checkpoint_step": translator.steps[-1],
        "averaged_steps": translator.steps,
        "beam_size": translator.decoding.beam_size,
        "length_penalty": translator.decoding.length_penalty,
    }
    metrics = {**scored.scores, **details}
    write_whole(output, f"{json.dumps(metrics, indent=2)}\n".encode())
    outputs = output.with_name(f"{output.stem}.{flags.split}.{scored.suffix}")
    write_whole(outputs, "".join(f"{line}\n" for line in scored.outputs).encode())
    print(scored.table)
    rest = {
        name: value
        for name, value in metrics.items()
        if name.startswith("num_") or name in details
    }
    width = max(map(len, rest))
    for name, value in rest.items():
        shown = f"{value:.2f}" if isinstance(value, float) else value
        print(f"{name:{width}}  {shown}")
    print(f"written to {output} and {outputs}", file=sys.stderr)


class _Scored(NamedTuple):
    scores: dict[str, Any]  # JSON-able
    table: str
    loss: "LossReport"
    outputs: list[str]  # a line each
    suffix: str  # of the file of these


def _translated(
    translator: "Translator",
    pairs: "list[Pair]",
    config: "ExperimentConfig",
    split: str,
    progress: Callable[[int], object],
) -> _Scored:
    from transformer_jax.commands.score_table import score_table
    from transformer_jax.evaluation import evaluate

    scores, loss, outputs = evaluate(translator, pairs, config, progress=progress)
    return _Scored(
        dataclasses.asdict(scores), score_table([scores]), loss, outputs, "txt"
    )


def _parsed(
    translator: "Translator",
    pairs: "list[Pair]",
    config: "ExperimentConfig",
    split: str,
    progress: Callable[[int], object],
) -> _Scored:
    from transformer_jax.commands.score_table import parse_table
    from transformer_jax.data.sources import load_trees
    from transformer_jax.evaluation import (
        baseline_scores,
        comparable_parsers,
        loss_of,
        parse_and_score,
    )
    from transformer_jax.parser import TreeParser
    from transformer_jax.parsing.trees import one_line

    trees = load_trees(config.data, split)
    parses, report = parse_and_score(
        TreeParser(translator), trees, with_interval=True, progress=progress
    )
    baselines = baseline_scores(trees)
    comparable_with = comparable_parsers(config.data, split, len(trees))
    return _Scored(
        scores={
            **dataclasses.asdict(report.scores),
            "tagging_accuracy": report.tagging_accuracy,
            "whole_outputs": report.whole_outputs,
            "baselines": {name: of_it.f1 for name, of_it in baselines.items()},
            "comparable_with": comparable_with,
        },
        table=parse_table(report, baselines, comparable_with),
        loss=loss_of(translator, pairs, config),
        outputs=[one_line(parse.tree) for parse in parses if parse.tree is not None],
        suffix="mrg",
    )


if __name__ == "__main__":
    use_huge_pages()
    prepare_to_translate()
    run(main)
