"""The arrays of one global batch."""

from typing import Any, NamedTuple

Ids = Any  # a numpy array in the pipeline, a jax.Array inside a step


class Batch(NamedTuple):
    """Packed rows: several sentences share one, told apart by segments.

    A row of two pairs, with start token 1 and end token 2:

        source           7  8  2  9  2  0      target_input     1  5  6  1  4  0
        source_segments  1  1  1  2  2  0      target_output    5  6  2  4  2  0
                                               target_segments  1  1  1  2  2  0
    """

    source: Ids  # int32 [rows, source], ids, each sentence ended by the end id
    source_segments: Ids  # int32 [rows, source], 0 = padding, 1, 2, … = sentence
    target_input: Ids  # int32 [rows, target], start id, then the ids
    target_output: Ids  # int32 [rows, target], the ids, then the end id
    target_segments: Ids  # int32 [rows, target], as source_segments
