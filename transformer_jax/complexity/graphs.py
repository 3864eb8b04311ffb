"""Which position of a layer reads which: path lengths and depth, counted (Section 4).

A node is (layer, position); layer 0 holds the inputs, layer 1 and up the outputs of
layers stacked on each other. An edge leads from what is read to what reads it, one
operation. A layer type is a function that gives the readers of a node, of n positions.
"""

import collections
import functools
from collections.abc import Callable

Node = tuple[int, int]
Readers = Callable[[Node, int], list[Node]]


def attention_readers(node: Node, n: int) -> list[Node]:
    """Each position reads all of the layer below.

    >>> attention_readers((0, 1), 3)
    [(1, 0), (1, 1), (1, 2)]
    """
    return [(node[0] + 1, position) for position in range(n)]


def window_readers(
    node: Node, n: int, *, before: int, after: int, dilation: int = 1
) -> list[Node]:
    """Position i reads i - before to i + after of the layer below.

    With a dilation of k the places are k^0 apart in the first layer, k^1 in the second,
    and so on.

    >>> window_readers((1, 3), 9, before=1, after=1, dilation=3)
    [(2, 0), (2, 3), (2, 6)]
    """
    layer, position = node
    step = dilation**layer
    first, last = position - after * step, position + before * step
    return [(layer + 1, i) for i in range(first, last + 1, step) if 0 <= i < n]


def recurrent_readers(node: Node, n: int) -> list[Node]:
    """A state reads its input and the state before it.

    >>> recurrent_readers((1, 0), 3)
    [(2, 0), (1, 1)]
    """
    layer, position = node
    following = [(layer, position + 1)] if layer > 0 and position + 1 < n else []
    return [(layer + 1, position), *following]


def sequential_operations(readers: Readers, n: int) -> int:
    """The depth of one layer: operations that can only be done one after another."""

    @functools.cache
    def depth(node: Node) -> int:
        return 1 + max((depth(x) for x in readers(node, n) if x[0] <= 1), default=-1)

    # From the last position on, so that nothing recurses deeply.
    return max(depth((layer, i)) for layer in (1, 0) for i in reversed(range(n)))


def maximum_path_length(readers: Readers, n: int, *, is_causal: bool = False) -> int:
    """The longest of the shortest paths from each input to each output position.

    Layers are stacked until every pair is connected.

    Args:
      readers: of the layer type.
      n: positions.
      is_causal: no position reads what comes after it: such pairs are left out.

    Raises:
      ValueError: n layers do not connect all pairs.
    """
    return max(
        _longest(readers, n, start, range(start if is_causal else 0, n))
        for start in range(n)
    )


def _longest(readers: Readers, n: int, start: int, ends: range) -> int:
    """Steps from input `start` to the furthest of the `ends`, breadth first."""
    steps = {(0, start): 0}
    missing = set(ends)
    waiting = collections.deque(steps)
    while waiting:
        node = waiting.popleft()
        for reader in readers(node, n):
            if reader in steps or reader[0] > n:
                continue
            steps[reader] = steps[node] + 1
            missing.discard(reader[1])
            if not missing:  # the last one found is the furthest
                return steps[reader]
            waiting.append(reader)
    raise ValueError(
        f"no path from position {start} to {sorted(missing)} in {n} layers, expected "
        "one to each"
    )
