"""Results beside the paper's figures, as Markdown and as JSON."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from transformer_jax.reproduce.ordering import Ordering, compare, mean, ranking
from transformer_jax.reproduce.runs import Result, Results
from transformer_jax.reproduce.tables import (
    BIG_EN_FR_IN_TEXT,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TRANSLATORS,
    System,
    Variation,
)

_NOT_RUN = "not run"
_HEAD_3 = (
    "row",
    "change",
    "PPL, paper",
    "PPL",
    "PPL per word",
    "BLEU, paper",
    "BLEU",
    "sacreBLEU",
    "M parameters, paper",
    "at full size",
    "here",
    "steps",
    "FLOPs by time",
    "FLOPs counted",
)
_HEAD_2 = (
    "row",
    "system",
    "languages",
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
# What is compared with the paper: our figure, the paper's, and which is better.
_MEASURES = {
    "perplexity": ("perplexity", "perplexity", True),
    "BLEU": ("bleu_paper", "bleu", False),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the whole table was made with."""

    table: str
    scale: str
    num_seeds: int
    rows: tuple[str, ...]  # asked for
    parameters_of_paper: Mapping[str, int]  # of our models at the paper's sizes


def table_3(results: Results, setting: Setting) -> tuple[str, dict[str, Any]]:
    """Table 3 and whether its rows come in the paper's order: Markdown, JSON-able."""
    lines = [_variation(row, results.get(row.row, []), setting) for row in TABLE_3]
    orderings = _orderings(results)
    text = "\n".join(
        [
            *_heading("Table 3: variations of the Transformer", results, setting),
            "Newstest2013 in the paper, the validation set here; the last checkpoint, "
            "without averaging. PPL is per word piece and not smoothed, so it compares "
            "only within one vocabulary and one text: the printed figures are beside "
            "ours for their order, not their size, where the scale is not `paper`.",
            "",
            *_markdown(_HEAD_3, lines),
            "",
            *_legend(results, setting),
            "",
            "## The ordering beside the paper's",
            "",
            *_ordering_text(orderings, results, setting),
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
            "checkpoints.",
            "",
            *_markdown(_HEAD_2, lines),
            "",
            *_legend(results, setting),
            *_no_french(setting),
            "",
            "## As printed in the paper",
            "",
            *_markdown(
                ["system", "EN-DE", "EN-FR", "FLOPs EN-DE", "FLOPs EN-FR"], printed
            ),
            "",
            "EN-FR of the big model: Table 2 says 41.8 and the text of Section 6.1 "
            f"{BIG_EN_FR_IN_TEXT}. The paper gives one FLOPs cell for both languages.",
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
    num_wanted = len(setting.rows) * setting.num_seeds
    seeds = ", ".join(map(str, range(setting.num_seeds)))
    lines = [
        f"# {title}",
        "",
        f"- Scale `{setting.scale}`; {len(runs)} of {num_wanted} runs finished; seeds "
        f"{seeds}.",
    ]
    if runs:
        period = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        lines.append(f"- {period}, on {'; '.join(machines)}.")
    return [*lines, ""]


def _variation(row: Variation, runs: Sequence[Result], setting: Setting) -> list[str]:
    parameters = setting.parameters_of_paper[row.row]
    return [
        row.row,
        row.change,
        f"{row.perplexity:.2f}",
        _cell(runs, lambda run: run.perplexity, ".3f"),
        _cell(runs, lambda run: run.perplexity_per_word, ".3f"),
        f"{row.bleu:.1f}",
        _cell(runs, lambda run: run.bleu_paper, ".1f"),
        _cell(runs, lambda run: run.sacrebleu, ".1f"),
        "" if row.parameters is None else f"{row.parameters}",
        f"{parameters / 1e6:.1f}",
        *_sizes(runs),
        *_costs(runs),
    ]


def _translator(row: str, runs: Sequence[Result]) -> list[str]:
    _, name, languages = TRANSLATORS[row]
    system = next(system for system in TABLE_2 if system.name == name)
    is_french = languages == "EN-FR"
    return [
        row,
        name,
        languages,
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
    signatures = {run.sacrebleu_signature for row in results.values() for run in row}
    lines = [
        "BLEU is tokenised, sacreBLEU is "
        f"{' or '.join(sorted(signatures)) or _NOT_RUN}. FLOPs by time is the paper's "
        "method, training time times devices times a sustained rate, here the rate at "
        "which the machine multiplies matrices and the median time of a step; "
        "FLOPs counted are the products of forward and backward pass."
    ]
    if setting.num_seeds > 1:
        lines.append(
            "A cell is the mean over seeds (least..most). All seeds share text and "
            "vocabulary; initial values, order of batches and dropout differ."
        )
    return lines


def _no_french(setting: Setting) -> list[str]:
    if setting.scale != "smoke":
        return []
    return ["The generated phrases are English and German only: EN-FR is not run."]


def _groups() -> dict[str, list[Variation]]:
    """Rows by the table's letter, each group with base, which it varies."""
    base = TABLE_3[0]
    letters = dict.fromkeys(row.group for row in TABLE_3 if row.group)
    return {
        letter: [base, *(row for row in TABLE_3 if row.group == letter)]
        for letter in letters
    }


def _orderings(results: Results) -> dict[str, dict[str, Ordering]]:
    orderings = {}
    for group, rows in {**_groups(), "all": list(TABLE_3)}.items():
        orderings[group] = {
            measure: compare(
                {row.row: getattr(row, theirs) for row in rows},
                {
                    row.row: [getattr(run, ours) for run in results.get(row.row, [])]
                    for row in rows
                },
                lower_is_better=is_lower,
            )
            for measure, (ours, theirs, is_lower) in _MEASURES.items()
        }
    return orderings


def _ordering_text(
    orderings: Mapping[str, Mapping[str, Ordering]],
    results: Results,
    setting: Setting,
) -> list[str]:
    lines = [
        "Best first; each group with base. A pair of rows counts where the paper's "
        "figures differ; Kendall's tau is 1 where all come in the paper's order, -1 "
        "where none does. A difference is within the spread where the means are less "
        "far apart than the least and the most over seeds of one of the two rows."
    ]
    groups = _groups()
    for group, measures in orderings.items():
        title = "All rows" if group == "all" else f"Group {group}"
        lines += ["", f"### {title}"]
        for measure, ordering in measures.items():
            lines += ["", f"{measure}:"]
            if group != "all":
                lines += ["", *_rankings(groups[group], measure, results)]
            lines.append(f"- {_verdict(ordering, setting)}")
    return lines


def _rankings(rows: Iterable[Variation], measure: str, results: Results) -> list[str]:
    ours, theirs, is_lower = _MEASURES[measure]
    run = [row for row in rows if results.get(row.row)]
    if not run:
        return []
    printed = {row.row: getattr(row, theirs) for row in run}
    means = {
        row.row: mean([getattr(one, ours) for one in results[row.row]]) for row in run
    }
    return [
        f"- paper: {ranking(printed, lower_is_better=is_lower)}",
        f"- here: {ranking(means, lower_is_better=is_lower)}",
    ]


def _verdict(ordering: Ordering, setting: Setting) -> str:
    """What the pairs say, in words."""
    if not ordering.num_pairs:
        return "Nothing to compare: fewer than two rows that the paper orders were run."
    same, pairs = len(ordering.same), ordering.num_pairs
    verdict = "agrees" if same == pairs else "does not agree"
    text = (
        f"The order {verdict} with the paper's: {same} of {pairs} pairs are in its "
        f"order, tau {ordering.tau:.2f}."
    )
    if ordering.reversed and len(ordering.reversed) <= 10:
        text += f" The other way round: {_pairs(ordering.reversed)}."
    clear = ordering.clear()
    if clear is None:
        return f"{text} One seed does not say which differences are chance."
    if not ordering.within_spread:
        return f"{text} No difference is within the spread over seeds."
    text += f" Within the spread over seeds: {len(ordering.within_spread)} pairs"
    if len(ordering.within_spread) <= 10:
        text += f" ({_pairs(ordering.within_spread)})"
    if not clear.num_pairs:
        return f"{text}; no difference is beyond it, so the order here says nothing."
    return (
        f"{text}; of the {clear.num_pairs} beyond it, {len(clear.same)} are in the "
        "paper's order."
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{better}-{worse}" for better, worse in pairs)


def _bleu_en_fr(system: System) -> str:
    if system.name == "Transformer (big)":
        return f"{system.bleu_en_fr} (text: {BIG_EN_FR_IN_TEXT})"
    return _or_blank(system.bleu_en_fr)


def _or_blank(value: float | None, shown: str = "") -> str:
    return "" if value is None else f"{value:{shown}}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
