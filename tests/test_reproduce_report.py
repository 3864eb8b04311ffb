"""The tables that `reproduce` writes, of results made up here."""

import dataclasses
import json
import re
from collections.abc import Sequence

import printed

from transformer_jax.reproduce.layout import Setting
from transformer_jax.reproduce.report import table_2, table_3, table_4
from transformer_jax.reproduce.results import (
    ParsingResult,
    Results,
    TranslationResult,
)

TABLE_3 = printed.table_3()


def made_up(
    perplexity: float = 4.0, bleu_paper: float = 20.0, seed: int = 0, **changes: object
) -> TranslationResult:
    values = dict(
        seed=seed,
        split="validation",
        steps=1500,
        averaged_checkpoints=1,
        parameters=411_904,
        perplexity=perplexity,
        perplexity_per_word=2 * perplexity,
        sacrebleu=bleu_paper + 1,
        sacrebleu_signature="signature",
        bleu_paper=bleu_paper,
        training_s=60.0,
        matmul_rate=2e11,
        time_flops=1.2e13,
        model_flops=3.4e12,
        date="2026-01-03T10:00:00+00:00",
        machine="2 cores",
    )
    return TranslationResult(**{**values, **changes})  # pyright: ignore


def setting(table: str, *, num_seeds: int, scale: str = "smoke") -> Setting:
    parameters = {row: 1_000_000 * number for number, row in enumerate(TABLE_3)}
    return Setting(table, scale, num_seeds, parameters)


def results_3(**runs: Sequence[TranslationResult]) -> Results[TranslationResult]:
    return {row: list(runs.get(row, [])) for row in TABLE_3}


def tables_of(markdown: str) -> list[dict[str, dict[str, str]]]:
    """The cells of each table by the row's first cell and the column's head."""
    tables = []
    for block in re.findall(r"(?:^\|.*\|\n)+", f"{markdown}\n", re.MULTILINE):
        head, dashes, *rows = [
            [cell.strip() for cell in line.strip("|").split(" | ")]
            for line in block.splitlines()
        ]
        assert all(set(cell) == {"-"} for cell in dashes)
        assert len({len(line) for line in block.splitlines()}) == 1  # aligned
        tables.append({row[0]: dict(zip(head, row, strict=True)) for row in rows})
    return tables


def test_the_papers_figures_stand_beside_ours():
    text, _ = table_3(results_3(), setting("table3", num_seeds=1))
    scores, costs = tables_of(text)
    assert list(scores) == list(costs) == list(TABLE_3)
    for number, (row, cells) in enumerate(TABLE_3.items()):
        assert scores[row]["PPL, paper"] == f"{cells['perplexity']:.2f}"
        assert scores[row]["BLEU, paper"] == f"{cells['bleu']:.1f}"
        parameters = cells.get("parameters")
        expected = "" if parameters is None else f"{parameters:.0f}"
        assert costs[row]["parameters, paper"] == expected
        assert costs[row]["at full size"] == f"{number}.0"


def test_cells_are_the_mean_and_the_extremes_over_seeds():
    runs = [
        made_up(5.0, 20.0, 0, time_flops=1e13),
        made_up(5.5, 26.0, 1, time_flops=2e13),
        made_up(7.5, 23.0, 2, time_flops=6e13),
    ]
    text, _ = table_3(results_3(B1=runs), setting("table3", num_seeds=3))
    scores, costs = tables_of(text)
    assert scores["B1"] == {
        "row": "B1",
        "change": "d_k 16",
        "PPL, paper": "5.16",
        "PPL": "6.000 (5.000..7.500)",
        "PPL per word": "12.000 (10.000..15.000)",
        "BLEU, paper": "25.1",
        "BLEU": "23.0 (20.0..26.0)",
        "sacreBLEU": "24.0 (21.0..27.0)",
    }
    assert costs["B1"] == {
        "row": "B1",
        "parameters, paper": "58",
        "at full size": "5.0",
        "here": "0.412",
        "steps": "1,500",
        "FLOPs by time": "3.0e+13",
        "FLOPs counted": "3.4e+12",
    }
    assert "mean over seeds (least..most)" in text


def test_one_seed_is_a_plain_figure():
    text, _ = table_3(results_3(E=[made_up(4.125)]), setting("table3", num_seeds=1))
    assert tables_of(text)[0]["E"]["PPL"] == "4.125"
    assert "least..most" not in text


def test_what_was_not_run_is_a_dash_and_said():
    text, _ = table_3(results_3(E=[made_up()]), setting("table3", num_seeds=1))
    scores, costs = tables_of(text)
    assert {scores["A1"][name] for name in ("PPL", "PPL per word", "BLEU")} == {"–"}
    names = ("here", "steps", "FLOPs by time", "FLOPs counted")
    assert {costs["A1"][name] for name in names} == {"–"}
    assert "– = not run." in text

    full = {row: [made_up()] for row in TABLE_3}
    text, _ = table_3(full, setting("table3", num_seeds=1))
    assert "–" not in text
    assert "not run" not in text


def test_heading_counts_runs_and_names_days_and_machines():
    runs = [made_up(), made_up(seed=1, date="2026-01-05T09:00:00+00:00", machine="TPU")]
    text, _ = table_3(results_3(base=runs), setting("table3", num_seeds=2))
    assert "- Scale `smoke`; 2 of 40 runs finished; seeds 0, 1.\n" in text
    assert "- 2026-01-03 to 2026-01-05, on 2 cores; TPU.\n" in text

    text, _ = table_3(results_3(base=runs[:1]), setting("table3", num_seeds=1))
    assert "; 1 of 20 runs finished; seed 0.\n- 2026-01-03, on 2 cores.\n" in text


def test_each_signature_is_named_once():
    runs = [made_up(sacrebleu_signature=name) for name in ("new", "old", "new")]
    text, _ = table_3(results_3(base=runs), setting("table3", num_seeds=3))
    assert "sacreBLEU's signature: new or old." in text


def ordering_of(results: Results[TranslationResult], *, num_seeds: int) -> str:
    text, _ = table_3(results, setting("table3", num_seeds=num_seeds))
    return text.partition("## The ordering beside the paper's\n")[2]


def test_the_ordering_is_told_with_the_spread():
    # The paper: base < B2 < B1 by perplexity, the reverse by BLEU.
    text = ordering_of(
        results_3(
            base=[made_up(4.0, 20, 0), made_up(4.5, 20.5, 1)],  # 4.25, 20.25
            B1=[made_up(4.125, 30, 0), made_up(4.125, 30, 1)],
            B2=[made_up(6.0, 30, 0), made_up(7.0, 30, 1)],  # 6.5
        ),
        num_seeds=2,
    )
    group_b = text.partition("### Group B\n")[2].partition("###")[0]
    assert group_b.strip().split("\n\n") == [
        "perplexity:",
        "- paper: base < B2 < B1\n"
        "- here: B1 < base < B2\n"
        "- Agrees with the paper in 1 of 3 pairs, tau -0.33. The other way round: "
        "base-B1, B2-B1. Within the spread over seeds: base-B1; of the 2 beyond it, 1 "
        "in the paper's order.",
        "BLEU:",
        "- paper: base > B2 > B1\n"
        "- here: B1 = B2 > base\n"
        "- Agrees with the paper in 0 of 3 pairs, tau -0.67. The other way round: "
        "base-B1, base-B2. Equal here: B2-B1. Within the spread over seeds: none; of "
        "the 3 beyond it, 0 in the paper's order.",
    ]


def test_an_order_within_the_spread_says_nothing():
    text = ordering_of(
        results_3(
            base=[made_up(4.0, 20, 0), made_up(5.0, 22, 1)],
            big=[made_up(4.0, 20, 0), made_up(4.5, 23, 1)],
        ),
        num_seeds=2,
    )
    big = text.partition("### Big\n")[2].partition("###")[0]
    says = "spread over seeds: big-base, which is all, so that the order here says "
    assert big.count(says) == 2
    assert "With one seed" not in text


def test_one_seed_is_said_to_tell_nothing_of_chance():
    text = ordering_of(results_3(base=[made_up()], E=[made_up()]), num_seeds=1)
    assert "With one seed of a row, nothing tells which differences are chance." in text
    assert "spread" not in text


def test_rows_that_the_paper_prints_equal_are_not_compared():
    text = ordering_of(results_3(base=[made_up(3)], E=[made_up(5)]), num_seeds=1)
    group_e = text.partition("### Group E\n")[2].partition("BLEU:")[0]
    assert "- paper: base = E\n- here: base < E\n- The paper prints the same" in group_e


def test_groups_without_two_rows_are_named_once():
    text = ordering_of(results_3(base=[made_up()], A4=[made_up()]), num_seeds=1)
    assert re.findall("### (.*)", text) == ["Group A", "All rows"]
    assert "for fewer than two rows were run: B, C, D, E, big.\n" in text
    text = ordering_of(results_3(), num_seeds=1)
    assert "###" not in text
    assert "for fewer than two rows were run: A, B, C, D, E, big, all.\n" in text


def test_many_pairs_are_counted_not_named():
    backwards = sorted(TABLE_3, key=lambda row: -TABLE_3[row]["perplexity"])
    runs = {row: [made_up(number)] for number, row in enumerate(backwards, start=1)}
    text = ordering_of(results_3(**runs), num_seeds=1)
    every = text.partition("### All rows\n")[2]
    # 190 pairs of 20 rows; equal in the paper: 4.92 (base, E) and 5.01 (A4, B2).
    assert "in 0 of 188 pairs, tau -1.00. The other way round: 188 pairs." in every


def test_json_holds_every_run_and_the_ordering():
    runs = [made_up(5.0, 20.0, 0), made_up(7.0, 26.0, 1)]
    results = results_3(base=runs, A1=[made_up(9.0, 10.0, 0), made_up(9.0, 10.0, 1)])
    _, values = table_3(results, setting("table3", num_seeds=2))
    values = json.loads(json.dumps(values, allow_nan=False))
    assert (values["table"], values["scale"], values["num_seeds"]) == (
        "table3",
        "smoke",
        2,
    )
    rows = {row["row"]: row for row in values["rows"]}
    assert list(rows) == list(TABLE_3)
    assert [TranslationResult(**run) for run in rows["base"]["runs"]] == runs
    assert rows["base"]["summary"]["perplexity"] == {"mean": 6.0, "min": 5, "max": 7}
    assert rows["base"]["summary"]["bleu_paper"] == {"mean": 23.0, "min": 20, "max": 26}
    assert rows["base"]["paper"]["parameters"] == 65
    assert rows["A2"] == {
        "row": "A2",
        "paper": rows["A2"]["paper"],
        "parameters_at_full_size": 2_000_000,
        "summary": {},
        "runs": [],
    }
    assert values["ordering"]["A"]["perplexity"] == {
        "same": [["base", "A1"]],
        "reversed": [],
        "equal": [],
        "within_spread": [],
        "pairs": 1,
        "tau": 1.0,
    }
    assert values["ordering"]["B"]["BLEU"]["tau"] is None


def test_table_2_has_both_languages_beside_the_printed_rows():
    run = made_up(4.0, 26.5, split="test", averaged_checkpoints=5)
    results: Results[TranslationResult] = {"base-en-de": [run], "big-en-de": []}
    text, values = table_2(results, setting("table2", num_seeds=1))
    ours, theirs = tables_of(text)
    assert ours["base-en-de"] == {
        "row": "base-en-de",
        "BLEU, paper": "27.3",
        "BLEU": "26.5",
        "sacreBLEU": "27.5",
        "M parameters": "0.412",
        "steps": "1,500",
        "averaged": "5",
        "FLOPs, paper": "3.3e+18",
        "FLOPs by time": "1.2e+13",
        "FLOPs counted": "3.4e+12",
    }
    assert ours["base-en-fr"]["BLEU, paper"] == "38.1"
    assert ours["big-en-de"]["BLEU, paper"] == "28.4"
    # The table, and the text of Section 6.1.
    assert ours["big-en-fr"]["BLEU, paper"] == "41.8 (text: 41.0)"
    assert ours["big-en-fr"]["BLEU"] == "–"
    assert "1 of 2 runs finished" in text
    assert "EN-FR is not run" in text

    numbers = {
        name: [float(cell.split(" (")[0]) if cell else None for cell in cells]
        for name, *cells in (row.values() for row in theirs.values())
    }
    assert numbers == {name: list(cells) for name, *cells in printed.table_2()}

    values = json.loads(json.dumps(values, allow_nan=False))
    rows = {row["row"]: row["runs"] for row in values["rows"]}
    assert rows["base-en-de"] == [dataclasses.asdict(run)]
    assert rows["big-en-fr"] == []
    assert [tuple(row.values()) for row in values["paper"]] == printed.table_2()


def test_french_is_run_at_other_scales():
    results: Results[TranslationResult] = {"base-en-fr": []}
    text, _ = table_2(results, setting("table2", num_seeds=1, scale="small"))
    assert "EN-FR is not run" not in text


def made_up_parser(f1: float, seed: int = 0, **changes: object) -> ParsingResult:
    values = dict(
        seed=seed,
        split="test",
        steps=400,
        averaged_checkpoints=5,
        parameters=4_712_448,
        perplexity=1.5,
        f1=f1,
        precision=f1 + 1,
        recall=f1 - 1,
        exact_match=20.0,
        tagging_accuracy=90.0,
        whole_outputs=f1 + 20,
        num_sentences=273,
        comparable_with="none of Table 4: 273 trees of dev",
        baselines={"flat S": 15.25, "right-branching": 20.5},
        training_s=60.0,
        matmul_rate=2e11,
        time_flops=1.2e13,
        model_flops=3.4e12,
        date="2026-01-03T10:00:00+00:00",
        machine="2 cores",
    )
    return ParsingResult(**{**values, **changes})  # pyright: ignore


def setting_4(scale: str, *, num_seeds: int = 1) -> Setting:
    # As of configs/parsing.py, by tests/test_configs.py.
    parameters = {"wsj": 100_335_616, "semi": 116_719_616}
    return Setting("table4", scale, num_seeds, parameters)


def lines_of(markdown: str, head: str) -> list[list[str]]:
    """The cells of the table whose first line starts so, without its head."""
    table = markdown.partition(f"\n| {head} ")[2].partition("\n\n")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in table.splitlines()[2:]
    ]


def test_table_4_has_our_parsers_in_their_rows():
    results = {"wsj": [made_up_parser(60.0), made_up_parser(63.0, seed=1)]}
    text, values = table_4(results, setting_4("small", num_seeds=2))
    lines = lines_of(text, "parser")
    printed_rows = [
        (name, training, float(f1)) for name, training, f1, *_ in lines[:12]
    ]
    assert printed_rows == printed.table_4()
    ours = {
        (name, training): cells for name, training, _, *cells in lines if any(cells)
    }
    assert ours == {
        ("Transformer (4 layers)", "WSJ only"): [
            "61.5 (60.0..63.0)",
            "62.5 (61.0..64.0)",
            "60.5 (59.0..62.0)",
            "20.0 (20.0..20.0)",
            "81.5 (80.0..83.0)",
        ],
        ("Transformer (4 layers)", "semi-supervised"): ["–"] * 5,
        ("flat S", "none"): ["15.2", "", "", "", ""],
        ("right-branching", "none"): ["20.5", "", "", "", ""],
    }
    assert lines_of(text, "training") == [
        ["WSJ only", "100.3", "4.712", "400", "1.2e+13", "3.4e+12"],
        ["semi-supervised", "116.7", "–", "–", "–", "–"],
    ]
    assert "- Scale `small`; 2 of 2 runs finished; seeds 0, 1.\n" in text
    assert "mean over seeds (least..most)" in text

    values = json.loads(json.dumps(values, allow_nan=False))
    assert [tuple(row["paper"].values()) for row in values["rows"]] == printed.table_4()
    rows = {row["row"]: row for row in values["rows"]}
    assert [ParsingResult(**run) for run in rows["wsj"]["runs"]] == results["wsj"]
    assert rows["wsj"]["summary"]["f1"] == {"mean": 61.5, "min": 60.0, "max": 63.0}
    assert rows["semi"]["runs"] == rows[""]["runs"] == []


def test_only_the_wsj_is_set_beside_the_papers_f1_without_a_warning():
    warning = "F1 here is not comparable with the printed F1"
    for scale in ("small", "smoke"):
        text, _ = table_4({"wsj": [made_up_parser(60.0)]}, setting_4(scale))
        assert f"**{warning}.**" in text
        assert "not section 23" in text
        assert "F1 here compares with none of Table 4: 273 trees of dev.\n" in text
        assert "semi-supervised is not run" in text
    run = made_up_parser(91.0, comparable_with="Table 4: WSJ section 23")
    text, _ = table_4({"wsj": [run], "semi": []}, setting_4("paper"))
    assert warning not in text
    assert "F1 here compares with Table 4: WSJ section 23.\n" in text
    assert "1 of 2 runs finished" in text
