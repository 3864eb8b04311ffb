"""How far a corpus score can be trusted: resampling of its sentences.

A corpus score is a function of the sums, over sentences, of a few counts. So each
sentence is counted once, and a random corpus costs one sum:

* `bootstrap_sums` draws sentences with replacement (Koehn 2004,
  https://aclanthology.org/W04-3250): the spread of the scores is a confidence interval.
* `shuffled_sums` exchanges the outputs of two systems at random (Riezler and Maxwell
  2005, https://aclanthology.org/W05-0908): how often chance alone makes a difference
  as large as theirs is the p-value of that difference.

Draws, seed and numbers are sacreBLEU's by default, so that its intervals and tests come
out alike; its environment variable SACREBLEU_SEED has no part here.
"""

from collections.abc import Iterator

import numpy as np

NUM_RESAMPLES = 1000  # of the bootstrap
NUM_SHUFFLES = 10_000  # of the paired test
_SEED = 12_345
_OUTSIDE = 40  # of so many scores, one is below the interval and one above: 95% within
# NumPy draws booleans as bits of 32-bit words, so that by multiples of 32 rows
# they come out as if all were drawn at once, in less memory.
_SHUFFLES_AT_ONCE = 320


def bootstrap_sums(statistics: np.ndarray) -> np.ndarray:
    """The summed statistics of corpora drawn from the sentences of one.

    Args:
      statistics: float64 [sentences, columns].

    Returns:
      float64 [NUM_RESAMPLES, columns]; the same draws for each column.
    """
    generator = np.random.default_rng(_SEED)
    num_sentences = len(statistics)
    sums = np.empty((NUM_RESAMPLES, statistics.shape[1]))
    for resample in sums:
        drawn = generator.choice(num_sentences, size=num_sentences)
        resample[:] = np.bincount(drawn, minlength=num_sentences) @ statistics
    return sums


def confidence_interval(scores: np.ndarray) -> tuple[float, float]:
    """What 95% of the scores of resampled corpora lie between.

    >>> confidence_interval(np.arange(80.0))
    (2.0, 77.0)
    """
    ordered = np.sort(scores)
    outside = len(ordered) // _OUTSIDE
    return float(ordered[outside]), float(ordered[-1 - outside])


def shuffled_sums(
    first: np.ndarray, second: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sums of two outputs whose sentences changed places at random, in parts.

    Args:
      first: float64 [sentences, columns], the statistics of one system.
      second: those of another on the same sentences.

    Yields:
      Two arrays [shuffles, columns], NUM_SHUFFLES in all: what one heap of a sentence
      each of the two systems sums to, and what the rest does.
    """
    generator = np.random.default_rng(_SEED)
    total_second, exchanged = second.sum(axis=0), first - second
    total = total_second + first.sum(axis=0)
    for done in range(0, NUM_SHUFFLES, _SHUFFLES_AT_ONCE):
        shape = min(_SHUFFLES_AT_ONCE, NUM_SHUFFLES - done), len(first)
        is_first = generator.integers(2, size=shape, dtype=bool)
        heap = total_second + is_first.astype(np.float64) @ exchanged
        yield heap, total - heap


def p_value(shuffled_differences: np.ndarray, difference: float) -> float:
    """How probable a difference as large, either way, is where systems are alike.

    The share of shuffled differences at least as large, the real one among them. Unlike
    sacreBLEU, which counts larger ones only, two equal outputs have p = 1.

    >>> p_value(np.array([0.5, -2.0, 1.0]), difference=-1.0)
    0.75
    """
    as_large = np.abs(shuffled_differences) >= abs(difference)
    return float((as_large.sum() + 1) / (len(shuffled_differences) + 1))
