"""Results beside the paper's figures, as Markdown and as JSON."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.reproduce.ordering import compare_rows, in_words, mean
from transformer_jax.reproduce.runs import Result, Results
from transformer_jax.tables import (
    BIG_EN_FR_IN_TEXT,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TRANSLATORS,
    System,
    Variation,
)

_NOT_RUN = "–"
_HEAD_3 = (
    "row",
    "change",
    "PPL, paper",
    "PPL",
    "PPL per word",
    "BLEU, paper",
    "BLEU",
    "sacreBLEU",
)
_HEAD_3_COST = (
    "row",
    "parameters, paper",
    "at full size",
    "here",
    "steps",
    "FLOPs by time",
    "FLOPs counted",
)
_HEAD_2 = (
    "row",
    "BLEU, paper",
    "BLEU",
    "sacreBLEU",
    "M parameters",
    "steps",
    "averaged",
    "FLOPs, paper",
    "FLOPs by time",
    "FLOPs counted",
)
_NO_FRENCH = "The generated phrases are English and German only: EN-FR is not run."


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the whole table was made with."""

    table: str
    scale: str
    num_seeds: int
    parameters_of_paper: Mapping[str, int]  # of our models at the paper's sizes


def table_3(results: Results, setting: Setting) -> tuple[str, dict[str, Any]]:
    """Table 3 and whether its rows come in the paper's order: Markdown, JSON-able."""
    scores = [_scores(row, results.get(row.row, [])) for row in TABLE_3]
    costs = [_size_and_cost(row, results.get(row.row, []), setting) for row in TABLE_3]
    orderings = compare_rows(results)
    text = "\n".join(
        [
            *_heading("Table 3: variations of the Transformer", results, setting),
            "Newstest2013 in the paper, the validation set here; the last checkpoint, "
            "without averaging. PPL is per word piece and not smoothed, so it compares "
            "only within one vocabulary and one text: the printed figures are beside "
            "ours for their order, not their size, where the scale is not `paper`.",
            "",
            *_markdown(_HEAD_3, scores),
            "",
            "Size and training cost, parameters in millions:",
            "",
            *_markdown(_HEAD_3_COST, costs),
            "",
            *_legend(results, setting),
            "",
            "## The ordering beside the paper's",
            "",
            *in_words(orderings, results),
        ]
    )
    rows = [
        {
            "row": row.row,
            "paper": dataclasses.asdict(row),
            "parameters_at_full_size": setting.parameters_of_paper[row.row],
            **_figures(results.get(row.row, [])),
        }
        for row in TABLE_3
    ]
    ordering = {
        group: {measure: one.to_dict() for measure, one in measures.items()}
        for group, measures in orderings.items()
    }
    return text + "\n", {
        **dataclasses.asdict(setting),
        "rows": rows,
        "ordering": ordering,
    }


def table_2(results: Results, setting: Setting) -> tuple[str, dict[str, Any]]:
    """Table 2, other systems' printed rows included: Markdown, JSON-able."""
    printed = [
        [
            system.name,
            _or_blank(system.bleu_en_de),
            _bleu_en_fr(system),
            _or_blank(system.flops_en_de, ".1e"),
            _or_blank(system.flops_en_fr, ".1e"),
        ]
        for system in TABLE_2
    ]
    lines = [_translator(row, results.get(row, [])) for row in TRANSLATORS]
    text = "\n".join(
        [
            *_heading("Table 2: BLEU and training cost", results, setting),
            "Newstest2014 in the paper, the test set here; the average of the last "
            "checkpoints. The paper gives one FLOPs cell for both languages.",
            "",
            *_markdown(_HEAD_2, lines),
            "",
            *_legend(results, setting),
            *([_NO_FRENCH] if setting.scale == "smoke" else []),
            "",
            "## As printed in the paper",
            "",
            *_markdown(
                ["system", "EN-DE", "EN-FR", "FLOPs EN-DE", "FLOPs EN-FR"], printed
            ),
            "",
            "EN-FR of the big model: Table 2 says 41.8 and the text of Section 6.1 "
            f"{BIG_EN_FR_IN_TEXT}.",
        ]
    )
    rows = [{"row": row, **_figures(results.get(row, []))} for row in TRANSLATORS]
    values = dataclasses.asdict(setting)
    printed_rows = [dataclasses.asdict(system) for system in TABLE_2]
    return text + "\n", {**values, "rows": rows, "paper": printed_rows}


def table_4() -> tuple[str, dict[str, Any]]:
    """Table 4 as printed: Markdown, JSON-able."""
    ours = "not run: the parsing task is not in this version yet"
    lines = [
        [
            row.name,
            row.training,
            f"{row.f1:.1f}",
            ours if row.name.startswith("Transformer") else "",
        ]
        for row in TABLE_4
    ]
    text = "\n".join(
        [
            "# Table 4: English constituency parsing, WSJ section 23",
            "",
            *_markdown(["parser", "training", "F1, paper", "F1"], lines),
        ]
    )
    rows = [{"paper": dataclasses.asdict(row), "runs": []} for row in TABLE_4]
    return text + "\n", {"table": "table4", "rows": rows, "note": ours}


def _heading(title: str, results: Results, setting: Setting) -> list[str]:
    runs = [result for row in results.values() for result in row]
    days = sorted(result.date[:10] for result in runs)
    machines = sorted({result.machine for result in runs})
    seeds = ", ".join(map(str, range(setting.num_seeds)))
    lines = [
        f"# {title}",
        "",
        f"- Scale `{setting.scale}`; {len(runs)} of {len(results) * setting.num_seeds} "
        f"runs finished; {'seeds' if setting.num_seeds > 1 else 'seed'} {seeds}.",
    ]
    if runs:
        period = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        lines.append(f"- {period}, on {'; '.join(machines)}.")
    return [*lines, ""]


def _scores(row: Variation, runs: Sequence[Result]) -> list[str]:
    return [
        row.row,
        row.change,
        f"{row.perplexity:.2f}",
        _cell(runs, lambda run: run.perplexity, ".3f"),
        _cell(runs, lambda run: run.perplexity_per_word, ".3f"),
        f"{row.bleu:.1f}",
        _cell(runs, lambda run: run.bleu_paper, ".1f"),
        _cell(runs, lambda run: run.sacrebleu, ".1f"),
    ]


def _size_and_cost(
    row: Variation, runs: Sequence[Result], setting: Setting
) -> list[str]:
    return [
        row.row,
        _or_blank(row.parameters),
        f"{setting.parameters_of_paper[row.row] / 1e6:.1f}",
        *_sizes(runs),
        *_costs(runs),
    ]


def _translator(row: str, runs: Sequence[Result]) -> list[str]:
    _, name, languages = TRANSLATORS[row]
    system = next(system for system in TABLE_2 if system.name == name)
    is_french = languages == "EN-FR"
    return [
        row,
        _bleu_en_fr(system) if is_french else _or_blank(system.bleu_en_de),
        _cell(runs, lambda run: run.bleu_paper, ".1f"),
        _cell(runs, lambda run: run.sacrebleu, ".1f"),
        *_sizes(runs),
        str(runs[0].averaged_checkpoints) if runs else _NOT_RUN,
        _or_blank(system.flops_en_fr if is_french else system.flops_en_de, ".1e"),
        *_costs(runs),
    ]


def _sizes(runs: Sequence[Result]) -> list[str]:
    if not runs:
        return [_NOT_RUN] * 2
    return [f"{runs[0].parameters / 1e6:.3f}", f"{runs[0].steps:,}"]


def _costs(runs: Sequence[Result]) -> list[str]:
    if not runs:
        return [_NOT_RUN] * 2
    by_time = mean([run.time_flops for run in runs])
    return [f"{by_time:.1e}", f"{runs[0].model_flops:.1e}"]


def _cell(runs: Sequence[Result], figure: Callable[[Result], float], shown: str) -> str:
    """The mean over seeds, and the least and the most of them."""
    values = [figure(run) for run in runs]
    if not values:
        return _NOT_RUN
    if len(values) == 1:
        return f"{values[0]:{shown}}"
    least, most = min(values), max(values)
    return f"{mean(values):{shown}} ({least:{shown}}..{most:{shown}})"


def _figures(runs: Sequence[Result]) -> dict[str, Any]:
    names = ("perplexity", "perplexity_per_word", "bleu_paper", "sacrebleu")
    summary = {}
    for name in names if runs else ():
        values = [getattr(run, name) for run in runs]
        summary[name] = {"mean": mean(values), "min": min(values), "max": max(values)}
    return {"summary": summary, "runs": [dataclasses.asdict(run) for run in runs]}


def _legend(results: Results, setting: Setting) -> list[str]:
    runs = [run for row in results.values() for run in row]
    lines = [
        "BLEU is by the paper's measure, of tokenised text. FLOPs by time is the "
        "paper's method, training time times devices times a sustained rate: here the "
        "median time of a step times steps, and the rate at which the machine "
        "multiplies matrices. FLOPs counted are those of the products in the forward "
        "and the backward pass."
    ]
    if runs:
        signatures = sorted({run.sacrebleu_signature for run in runs})
        lines.append(f"sacreBLEU's signature: {' or '.join(signatures)}.")
    if setting.num_seeds > 1:
        lines.append(
            "A cell is the mean over seeds (least..most). All seeds share text and "
            "vocabulary; initial values, order of batches and dropout differ."
        )
    if len(runs) < len(results) * setting.num_seeds:
        lines.append(f"{_NOT_RUN} = not run.")
    return lines


def _bleu_en_fr(system: System) -> str:
    if system.name == "Transformer (big)":
        return f"{system.bleu_en_fr} (text: {BIG_EN_FR_IN_TEXT})"
    return _or_blank(system.bleu_en_fr)


def _or_blank(value: float | None, shown: str = "") -> str:
    return "" if value is None else f"{value:{shown}}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns are aligned in the source too."""
    columns = zip(head, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    dashes = ["-" * width for width in widths]
    return [
        f"| {' | '.join(map(str.ljust, row, widths))} |"
        for row in (head, dashes, *rows)
    ]
