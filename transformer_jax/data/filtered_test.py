"""newstest2014 as sacreBLEU's `wmt14` has it: filtered, 2,737 sentences of EN-DE.

Scores on it are not comparable with those on the whole set of 3,003 sentences, which
the paper and `wmt14_translate` use.
"""

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.errors import UserError

_TEST_SET = "wmt14"
_TIMEOUT_S = 20.0  # of connecting, and of each wait for more


def filtered_test(source_language: str, target_language: str) -> list[tuple[str, str]]:
    """The pairs (source text, target text), in the order of the documents.

    sacreBLEU downloads them at first use, to ~/.sacrebleu or the folder that the
    environment variable SACREBLEU names.

    Args:
      source_language: code as "en".
      target_language: code as "de"; one of the two is "en".

    Raises:
      UserError: languages that the set does not have, no network, or damaged files.
    """
    from sacrebleu import utils

    pair = f"{source_language}-{target_language}"
    offered = utils.get_langpairs_for_testset(_TEST_SET)
    if pair not in offered:
        raise UserError(
            f"sacreBLEU's {_TEST_SET} has no {pair}, expected one of "
            f"{', '.join(offered)}"
        )
    folder = Path(utils.SACREBLEU_DIR) / _TEST_SET
    damaged = UserError(
        f"{folder} is damaged: delete it, and it will be downloaded again"
    )
    try:
        with _impatient():
            source_path = utils.get_source_file(_TEST_SET, pair)
            (target_path,) = utils.get_reference_files(_TEST_SET, pair)
    except (FileNotFoundError, SystemExit) as error:  # the latter: a wrong checksum
        raise damaged from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"cannot download sacreBLEU's {_TEST_SET} ({reason}): connect this "
            f"machine, copy {folder} from one that has run `sacrebleu -t {_TEST_SET} "
            f"-l {pair} --echo src`, or use the whole set: --split=test"
        ) from error
    source, target = _lines(source_path), _lines(target_path)
    if len(source) != len(target) or not source:
        raise damaged
    return list(zip(source, target, strict=True))


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Connections that are opened meanwhile fail rather than wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").split("\n")[:-1]  # each ends a line
