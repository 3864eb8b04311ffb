"""How far a long reading of text has come: a bar on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

Say = Callable[[str], object]  # takes a line for the user
Item = TypeVar("Item")

_SAY_EVERY_S = 30.0
_UPDATE_EVERY = 10_000


def counted(
    pairs: Iterable[Item], doing: str, say: Say, first: int = 0
) -> Iterator[Item]:
    """The pairs, and on the way what is being done and how fast.

    Args:
      pairs: read once.
      doing: such as "encoding".
      say: takes a line now and then, where standard error is not a terminal.
      first: pairs that were done before.
    """
    is_terminal = sys.stderr.isatty()
    start = said = time.monotonic()
    shown: Any = {"unit": " pairs", "unit_scale": True, "disable": not is_terminal}
    with tqdm(desc=doing, initial=first, **shown) as bar:
        for number, pair in enumerate(pairs, start=1):
            yield pair
            if number % _UPDATE_EVERY == 0:
                bar.update(_UPDATE_EVERY)
                now = time.monotonic()
                if not is_terminal and now - said > _SAY_EVERY_S:
                    said = now
                    rate = number / (now - start)
                    say(f"{doing}: {first + number:,} pairs, {rate:,.0f} /s")
