"""Results beside the paper's figures, as Markdown and as JSON."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from transformer_jax.reproduce.layout import (
    NOT_RUN,
    Setting,
    cell,
    costs,
    figures,
    heading,
    legend,
    markdown,
    or_blank,
    sizes,
)
from transformer_jax.reproduce.ordering import compare_rows, in_words
from transformer_jax.reproduce.results import (
    ParsingResult,
    Result,
    Results,
    TranslationResult,
)
from transformer_jax.tables import (
    BIG_EN_FR_IN_TEXT,
    PARSERS,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TRANSLATORS,
    System,
    Variation,
)

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
_MEASURES_4 = ("f1", "precision", "recall", "exact_match", "whole_outputs")
_HEAD_4 = (
    "parser",
    "training",
    "F1, paper",
    *("F1", "precision", "recall", "exact match", "whole outputs"),  # here
)
_HEAD_4_COST = (
    "training",
    "at full size",
    "here",
    "steps",
    "FLOPs by time",
    "FLOPs counted",
)
_NO_FRENCH = "The generated phrases are English and German only: EN-FR is not run."
_NO_PARSED_TEXT = "There is no text parsed by others: semi-supervised is not run."
_STAND_IN = (
    "**F1 here is not comparable with the printed F1.** At this scale free trees stand "
    "in for the WSJ: not section 23, and with NLTK's sample a twelfth of the training "
    "trees."
)
_BLEU = "BLEU is by the paper's measure, of tokenised text."
_F1 = (
    "F1 is of labelled constituents by the rules of EVALB (COLLINS.prm), sentences of "
    "all lengths, with the treebank's tags on the words. Whole outputs are those that "
    "were a tree over the words before any repair. All are percentages."
)


def table_3(
    results: Results[TranslationResult], setting: Setting
) -> tuple[str, dict[str, Any]]:
    """Table 3 and whether its rows come in the paper's order: Markdown, JSON-able."""
    scores = [_scores(row, results.get(row.row, [])) for row in TABLE_3]
    spent = [_size_and_cost(row, results.get(row.row, []), setting) for row in TABLE_3]
    orderings = compare_rows(results)
    text = "\n".join(
        [
            *heading("Table 3: variations of the Transformer", results, setting),
            "Newstest2013 in the paper, the validation set here; the last checkpoint, "
            "without averaging. PPL is per word piece and not smoothed, so it compares "
            "only within one vocabulary and one text: the printed figures are beside "
            "ours for their order, not their size, where the scale is not `paper`.",
            "",
            *markdown(_HEAD_3, scores),
            "",
            "Size and training cost, parameters in millions:",
            "",
            *markdown(_HEAD_3_COST, spent),
            "",
            *legend([_BLEU, *_signatures(results)], results, setting),
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
            **figures(results.get(row.row, [])),
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


def table_2(
    results: Results[TranslationResult], setting: Setting
) -> tuple[str, dict[str, Any]]:
    """Table 2, other systems' printed rows included: Markdown, JSON-able."""
    printed = [
        [
            system.name,
            or_blank(system.bleu_en_de),
            _bleu_en_fr(system),
            or_blank(system.flops_en_de, ".1e"),
            or_blank(system.flops_en_fr, ".1e"),
        ]
        for system in TABLE_2
    ]
    lines = [_translator(row, results.get(row, [])) for row in TRANSLATORS]
    text = "\n".join(
        [
            *heading("Table 2: BLEU and training cost", results, setting),
            "Newstest2014 in the paper, the test set here; the average of the last "
            "checkpoints. The paper gives one FLOPs cell for both languages.",
            "",
            *markdown(_HEAD_2, lines),
            "",
            *legend([_BLEU, *_signatures(results)], results, setting),
            *([_NO_FRENCH] if setting.scale == "smoke" else []),
            "",
            "## As printed in the paper",
            "",
            *markdown(
                ["system", "EN-DE", "EN-FR", "FLOPs EN-DE", "FLOPs EN-FR"], printed
            ),
            "",
            "EN-FR of the big model: Table 2 says 41.8 and the text of Section 6.1 "
            f"{BIG_EN_FR_IN_TEXT}.",
        ]
    )
    rows = [{"row": row, **figures(results.get(row, []))} for row in TRANSLATORS]
    values = dataclasses.asdict(setting)
    printed_rows = [dataclasses.asdict(system) for system in TABLE_2]
    return text + "\n", {**values, "rows": rows, "paper": printed_rows}


def table_4(
    results: Results[ParsingResult], setting: Setting
) -> tuple[str, dict[str, Any]]:
    """Table 4, other parsers' printed rows included: Markdown, JSON-able."""
    ours = {training: row for row, (_, training) in PARSERS.items()}
    rows = [
        ours[parser.training] if parser.name.startswith("Transformer") else ""
        for parser in TABLE_4
    ]
    runs = [run for row in results.values() for run in row]
    scores = [
        [parser.name, parser.training, f"{parser.f1:.1f}", *_parser(row, results)]
        for parser, row in zip(TABLE_4, rows, strict=True)
    ]
    baselines = {name: f1 for run in runs for name, f1 in run.baselines.items()}
    for name, f1 in baselines.items():
        scores.append([name, "none", "", f"{f1:.1f}", *[""] * (len(_HEAD_4) - 4)])
    spent = [
        [
            training,
            f"{setting.parameters_of_paper[row] / 1e6:.1f}",
            *sizes(results.get(row, [])),
            *costs(results.get(row, [])),
        ]
        for training, row in ours.items()
    ]
    is_stand_in = setting.scale != "paper"
    text = "\n".join(
        [
            *heading("Table 4: English constituency parsing", results, setting),
            "Section 23 of the WSJ in the paper, the test trees here; the average of "
            "the last checkpoints.",
            *([_STAND_IN] if is_stand_in else []),
            *sorted({f"F1 here compares with {run.comparable_with}." for run in runs}),
            "",
            *markdown(_HEAD_4, scores),
            "",
            "Size and training cost, parameters in millions:",
            "",
            *markdown(_HEAD_4_COST, spent),
            "",
            *legend([_F1], results, setting),
            *([_NO_PARSED_TEXT] if is_stand_in else []),
        ]
    )
    values = [
        {
            "row": row,
            "paper": dataclasses.asdict(parser),
            **figures(results.get(row, [])),
        }
        for parser, row in zip(TABLE_4, rows, strict=True)
    ]
    return text + "\n", {**dataclasses.asdict(setting), "rows": values}


def _scores(row: Variation, runs: Sequence[TranslationResult]) -> list[str]:
    return [
        row.row,
        row.change,
        f"{row.perplexity:.2f}",
        cell(runs, lambda run: run.perplexity, ".3f"),
        cell(runs, lambda run: run.perplexity_per_word, ".3f"),
        f"{row.bleu:.1f}",
        cell(runs, lambda run: run.bleu_paper, ".1f"),
        cell(runs, lambda run: run.sacrebleu, ".1f"),
    ]


def _size_and_cost(
    row: Variation, runs: Sequence[Result], setting: Setting
) -> list[str]:
    return [
        row.row,
        or_blank(row.parameters),
        f"{setting.parameters_of_paper[row.row] / 1e6:.1f}",
        *sizes(runs),
        *costs(runs),
    ]


def _translator(row: str, runs: Sequence[TranslationResult]) -> list[str]:
    _, name, languages = TRANSLATORS[row]
    system = next(system for system in TABLE_2 if system.name == name)
    is_french = languages == "EN-FR"
    return [
        row,
        _bleu_en_fr(system) if is_french else or_blank(system.bleu_en_de),
        cell(runs, lambda run: run.bleu_paper, ".1f"),
        cell(runs, lambda run: run.sacrebleu, ".1f"),
        *sizes(runs),
        str(runs[0].averaged_checkpoints) if runs else NOT_RUN,
        or_blank(system.flops_en_fr if is_french else system.flops_en_de, ".1e"),
        *costs(runs),
    ]


def _parser(row: str, results: Results[ParsingResult]) -> list[str]:
    """The cells of our scores; blank where another's parser is, row ""."""
    if not row:
        return [""] * len(_MEASURES_4)
    runs = results.get(row, [])
    return [
        cell(runs, lambda run, name=name: getattr(run, name), ".1f")
        for name in _MEASURES_4
    ]


def _signatures(results: Results[TranslationResult]) -> list[str]:
    signatures = {run.sacrebleu_signature for row in results.values() for run in row}
    if not signatures:
        return []
    return [f"sacreBLEU's signature: {' or '.join(sorted(signatures))}."]


def _bleu_en_fr(system: System) -> str:
    if system.name == "Transformer (big)":
        return f"{system.bleu_en_fr} (text: {BIG_EN_FR_IN_TEXT})"
    return or_blank(system.bleu_en_fr)
