"""Packing: best fit, longest first, as a plain loop does it one example at a time."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from transformer_jax.data.packing import pack

GROUP = 2048  # of examples that are packed together


def by_hand(lengths: Any, capacity: tuple[int, int], seed: int) -> list:
    """Rows of one group after another, each example where it leaves the least room."""
    rows: list[list[int]] = []
    lengths = lengths.tolist()
    order = np.random.default_rng([seed, 0]).permutation(len(lengths)).tolist()
    for first in range(0, len(order), GROUP):
        group = order[first : first + GROUP]
        group.sort(key=lambda i: -max(lengths[i]))
        opened: list[tuple[list[int], list[int]]] = []  # room on each side, members
        for i in group:
            rooms = [
                min(room[side] - lengths[i][side] for side in (0, 1))
                for room, _ in opened
            ]
            fitting = [room for room in rooms if room >= 0]
            if fitting:
                room, members = opened[rooms.index(min(fitting))]
            else:
                room, members = list(capacity), []
                opened.append((room, members))
            members.append(i)
            for side in (0, 1):
                room[side] -= lengths[i][side]
        rows += [members for _, members in opened]
    return rows


@pytest.mark.parametrize("num_examples", [0, 1, 2, 2500])
def test_rows_are_those_of_a_plain_loop(num_examples: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 24, (num_examples, 2))
    rows = pack(lengths, (29, 31), seed=3)
    members = [rows[row].tolist() for row in range(len(rows))]
    assert members == by_hand(lengths, (29, 31), seed=3)
    assert Counter(i for row in members for i in row) == Counter(range(num_examples))
    for row in members:
        source, target = lengths[row].sum(axis=0)
        assert source <= 29
        assert target <= 31


def test_examples_as_long_as_a_row_have_one_each() -> None:
    lengths = np.array([[5, 7], [5, 1], [1, 7]])
    rows = pack(lengths, (5, 7), seed=1)
    assert sorted(rows[row].tolist() for row in range(3)) == [[0], [1], [2]]


def test_another_seed_packs_otherwise() -> None:
    lengths = np.random.default_rng(0).integers(1, 24, (3 * GROUP, 2))
    one, other = (pack(lengths, (29, 31), seed=seed) for seed in (0, 1))
    assert one.members.tolist() != other.members.tolist()
