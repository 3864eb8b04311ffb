"""Tables 2, 3 and 4 as the paper prints them (arXiv 1706.03762v7), for tests.

A dot stands for an empty cell: in Table 3 that is base's value, but for parameters.
"""

_TABLE_2 = """
ByteNet                     23.75      .        .       .
Deep-Att + PosUnk               .   39.2        .  1.0e20
GNMT + RL                    24.6  39.92   2.3e19  1.4e20
ConvS2S                     25.16  40.46   9.6e18  1.5e20
MoE                         26.03  40.56   2.0e19  1.2e20
Deep-Att + PosUnk ensemble      .   40.4        .  8.0e20
GNMT + RL ensemble          26.30  41.16   1.8e20  1.1e21
ConvS2S ensemble            26.36  41.29   7.7e19  1.2e21
Transformer (base model)     27.3   38.1   3.3e18  3.3e18
Transformer (big)            28.4   41.8   2.3e19  2.3e19
"""
_COLUMNS_3 = (
    "N d_model d_ff h d_k d_v dropout smoothing steps perplexity bleu parameters"
).split()
_TABLE_3 = """
base 6  512 2048  8  64  64 0.1 0.1 100000 4.92 25.8  65
A1   .    .    .  1 512 512   .   .      . 5.29 24.9   .
A2   .    .    .  4 128 128   .   .      . 5.00 25.5   .
A3   .    .    . 16  32  32   .   .      . 4.91 25.8   .
A4   .    .    . 32  16  16   .   .      . 5.01 25.4   .
B1   .    .    .  .  16   .   .   .      . 5.16 25.1  58
B2   .    .    .  .  32   .   .   .      . 5.01 25.4  60
C1   2    .    .  .   .   .   .   .      . 6.11 23.7  36
C2   4    .    .  .   .   .   .   .      . 5.19 25.3  50
C3   8    .    .  .   .   .   .   .      . 4.88 25.5  80
C4   .  256    .  .  32  32   .   .      . 5.75 24.5  28
C5   . 1024    .  . 128 128   .   .      . 4.66 26.0 168
C6   .    . 1024  .   .   .   .   .      . 5.12 25.4  53
C7   .    . 4096  .   .   .   .   .      . 4.75 26.2  90
D1   .    .    .  .   .   . 0.0   .      . 5.77 24.6   .
D2   .    .    .  .   .   . 0.2   .      . 4.95 25.5   .
D3   .    .    .  .   .   .   . 0.0      . 4.67 25.3   .
D4   .    .    .  .   .   .   . 0.2      . 5.47 25.7   .
E    .    .    .  .   .   .   .   .      . 4.92 25.7   .
big  6 1024 4096 16   .   . 0.3   . 300000 4.33 26.4 213
"""
_TABLE_4 = """
Vinyals & Kaiser et al. (2014)  WSJ only         88.3
Petrov et al. (2006)            WSJ only         90.4
Zhu et al. (2013)               WSJ only         90.4
Dyer et al. (2016)              WSJ only         91.7
Transformer (4 layers)          WSJ only         91.3
Zhu et al. (2013)               semi-supervised  91.3
Huang & Harper (2009)           semi-supervised  91.3
McClosky et al. (2006)          semi-supervised  92.1
Vinyals & Kaiser et al. (2014)  semi-supervised  92.1
Transformer (4 layers)          semi-supervised  92.7
Luong et al. (2015)             multi-task       93.0
Dyer et al. (2016)              generative       93.3
"""


def _number(cell: str) -> float | None:
    return None if cell == "." else float(cell)


def table_2() -> list[tuple[str | float | None, ...]]:
    """System, BLEU EN-DE and EN-FR, FLOPs EN-DE and EN-FR."""
    rows = [line.rsplit(maxsplit=4) for line in _TABLE_2.strip().splitlines()]
    return [(name, *map(_number, cells)) for name, *cells in rows]


def table_3() -> dict[str, dict[str, float]]:
    """The columns of each row, by name, without parameters where none are printed."""
    rows = [line.split() for line in _TABLE_3.strip().splitlines()]
    base = dict(zip(_COLUMNS_3[:-1], map(float, rows[0][1:-1]), strict=True))
    table = {}
    for name, *cells in rows:
        printed = {
            column: float(cell)
            for column, cell in zip(_COLUMNS_3, cells, strict=True)
            if cell != "."
        }
        table[name] = base | printed
    return table


def table_4() -> list[tuple[str, str, float]]:
    """Parser, training, F1."""
    rows = [line.split("  ") for line in _TABLE_4.strip().splitlines()]
    cells = [[cell.strip() for cell in row if cell] for row in rows]
    return [(name, training, float(f1)) for name, training, f1 in cells]
