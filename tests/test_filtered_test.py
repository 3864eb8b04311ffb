"""The filtered newstest2014 of sacreBLEU: cached, from a server, or a clear error."""

import hashlib
import http.server
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import serving
from sacrebleu import dataset, utils
from sacrebleu.dataset import base
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from transformer_jax.data.filtered_test import filtered_test
from transformer_jax.errors import UserError

PAIRS = [("One & two.", "Eins & zwei."), ("Third – “x”", "Drittens – „x“ 🙂")]
FIELDS = ("src", "ref", "docid", "genre", "origlang")


def sgm(kind: str, language: str, texts: list[str]) -> str:
    segments = "".join(f'<seg id="{i}">{t}</seg>\n' for i, t in enumerate(texts, 1))
    return (
        f'<{kind} setid="newstest2014" srclang="any" trglang="{language}">\n'
        '<doc sysid="ref" docid="1-bbc" genre="news" origlang="en">\n<p>\n'
        f"{segments}</p>\n</doc>\n</{kind}>\n"
    )


def archive() -> bytes:
    """test-filtered.tgz in the real layout, of one pair of languages."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        for side, (kind, language) in enumerate((("src", "en"), ("ref", "de"))):
            texts = [pair[side] for pair in PAIRS]
            content = sgm(f"{kind}set", language, texts).encode()
            name = f"test/newstest2014-deen-{kind}.{language}.sgm"
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of sacreBLEU, empty, with its `wmt14` to be had from nowhere."""
    for module in (base, utils):
        monkeypatch.setattr(module, "SACREBLEU_DIR", str(tmp_path / "cache"))
    serve_from(monkeypatch, "http://corpus.invalid", md5="")
    return tmp_path / "cache" / "wmt14"


def serve_from(monkeypatch: pytest.MonkeyPatch, address: str, *, md5: str) -> None:
    names = [f"test/newstest2014-deen-{end}.sgm" for end in ("src.en", "ref.de")]
    wmt14 = FakeSGMLDataset(
        "wmt14",
        data=[f"{address}/wmt14/test-filtered.tgz"],
        md5=[md5],
        langpairs={"en-de": names},  # pyright: ignore[reportArgumentType]
    )
    monkeypatch.setitem(dataset.DATASETS, "wmt14", wmt14)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Address of a server of the archive on this machine."""
    path = tmp_path / "served" / "wmt14" / "test-filtered.tgz"
    path.parent.mkdir(parents=True)
    path.write_bytes(archive())
    with serving(tmp_path / "served") as (address, _):
        yield address


def error_of(source: str = "en", target: str = "de") -> str:
    with pytest.raises(UserError) as caught:
        filtered_test(source, target)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_pairs_come_from_sacrebleus_cache(cache: Path) -> None:
    cache.mkdir(parents=True)
    texts = dict(
        zip(FIELDS, [*zip(*PAIRS, strict=True), *[("x", "y")] * 3], strict=True)
    )
    for field, lines in texts.items():
        content = "".join(f"{line}\n" for line in lines)
        (cache / f"wmt14.en-de.{field}").write_bytes(content.encode())
    assert filtered_test("en", "de") == PAIRS
    (cache / "wmt14.en-de.ref").write_bytes(b"Eins & zwei.\n")
    assert f"{cache} is damaged: delete it" in error_of()
    for field in ("src", "ref"):
        (cache / f"wmt14.en-de.{field}").write_bytes(b"")
    assert f"{cache} is damaged: delete it" in error_of()


def test_pairs_are_downloaded_once(
    cache: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_from(monkeypatch, server, md5=hashlib.md5(archive()).hexdigest())
    assert filtered_test("en", "de") == PAIRS
    serve_from(monkeypatch, "http://corpus.invalid", md5="")
    assert filtered_test("en", "de") == PAIRS
    assert (cache / "wmt14.en-de.src").is_file()


def test_another_archive_than_sacrebleus_is_refused(
    cache: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_from(monkeypatch, server, md5="0" * 32)
    assert f"{cache} is damaged: delete it" in error_of()
    # sacreBLEU would not look at its archive again, nor extract it.
    assert f"{cache} is damaged: delete it" in error_of()


def test_without_a_network_the_error_says_what_to_do(cache: Path) -> None:
    message = error_of()
    assert message.startswith("cannot download sacreBLEU's wmt14 (")
    assert f"copy {cache} from one that has run" in message
    assert "--split=test" in message


def test_a_server_that_does_not_answer_is_not_waited_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_jax.data.filtered_test._TIMEOUT_S", 0.1)
    with http.server.HTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as (silent):  # it listens, and nobody handles what is asked
        serve_from(monkeypatch, f"http://127.0.0.1:{silent.server_port}", md5="")
        assert "timed out" in error_of()


def test_other_languages_name_those_of_the_set() -> None:
    message = error_of("en", "ja")
    assert "wmt14 has no en-ja, expected one of cs-en, en-cs, de-en, en-de," in message
