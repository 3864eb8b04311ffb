"""Which sentences share which row."""

import dataclasses

import numpy as np

# Examples packed together: more fill better and take longer.
_GROUP = 2048
_GROUPS_AT_ONCE = 64  # few enough to stay in a CPU's cache


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of example numbers, each example in one of them."""

    members: np.ndarray  # int32 [examples], row by row
    ends: np.ndarray  # int64 [rows], where each row ends in `members`

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.ends)

    def __getitem__(self, row: int) -> np.ndarray:
        """The examples of a row."""
        return self.members[self.ends[row - 1] if row else 0 : self.ends[row]]


def pack(lengths: np.ndarray, capacity: tuple[int, int], *, seed: int) -> Rows:
    """Rows of examples, so that neither side of a row overflows.

    Best fit, longest first (Johnson 1973), within random groups of examples: each goes
    to the open row that it leaves the least room in, or opens a new one. Groups keep
    the time linear, and the company that a sentence meets random. Many groups are
    packed side by side, an example of each at a time.

    Args:
      lengths: int [examples, 2], source and target positions of each example, none
        above the capacity.
      capacity: source and target positions of a row.
      seed: of the groups.

    >>> rows = pack(np.array([[3, 3], [2, 2], [2, 2], [1, 1]]), (4, 4), seed=0)
    >>> [row.tolist() for row in map(rows.__getitem__, range(len(rows)))]
    [[0, 3], [2, 1]]
    """
    order = np.random.default_rng([seed, 0]).permutation(len(lengths)).astype(np.int32)
    whole = len(order) // _GROUP * _GROUP
    groups = [order[whole:][None]] if whole < len(order) else []
    if whole:
        numbers = order[:whole].reshape(-1, _GROUP)
        parts = range(_GROUPS_AT_ONCE, len(numbers), _GROUPS_AT_ONCE)
        groups = [*np.split(numbers, parts), *groups]
    members, sizes = [], []
    for examples in groups:
        part, part_sizes = _pack_groups(examples, lengths, capacity)
        members.append(part)
        sizes.append(part_sizes)
    if not groups:
        return Rows(np.empty(0, np.int32), np.empty(0, np.int64))
    return Rows(np.concatenate(members), np.cumsum(np.concatenate(sizes)))


def _pack_groups(
    examples: np.ndarray, lengths: np.ndarray, capacity: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Members and sizes of the rows of groups [groups, examples], in their order."""
    longest_first = np.argsort(-lengths[examples].max(axis=2), axis=1, kind="stable")
    examples = np.take_along_axis(examples, longest_first, axis=1)
    needs = lengths[examples].astype(np.int32)  # [groups, examples, 2]
    num_groups, size = examples.shape
    group = np.arange(num_groups)
    # Room left on either side of each row, of each group.
    source_free = np.full((num_groups, size), capacity[0], np.int32)
    target_free = np.full((num_groups, size), capacity[1], np.int32)
    num_open = np.zeros(num_groups, np.int64)
    rows = np.empty((num_groups, size), np.int64)
    for i in range(size):
        # The one after the open rows always fits, and most loosely.
        seen = min(num_open.max() + 1, size)
        left = np.minimum(
            source_free[:, :seen] - needs[:, i, :1],
            target_free[:, :seen] - needs[:, i, 1:],
        )
        # Negative numbers, as unsigned ones, are larger than all others.
        best = left.view(np.uint32).argmin(axis=1)
        rows[:, i] = best
        source_free[group, best] -= needs[:, i, 0]
        target_free[group, best] -= needs[:, i, 1]
        num_open = np.maximum(num_open, best + 1)
    firsts = np.cumsum(num_open) - num_open  # number of each group's first row
    numbers = (rows + firsts[:, None]).ravel()
    by_row = np.argsort(numbers, kind="stable")
    return examples.ravel()[by_row], np.bincount(numbers)
