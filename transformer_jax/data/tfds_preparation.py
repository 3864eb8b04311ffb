"""Downloading and preparing a WMT corpus by tensorflow-datasets, once.

This needs TensorFlow; reading what it leaves, by `transformer_jax.data.tfds_corpus`,
does not. Archives that were downloaded stay, so that what was interrupted, or another
pair of languages, begins with them.
"""

import contextlib
import http.client
import importlib.util
import itertools
import json
import os
import shutil
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.tfds_corpus import (
    FILE_FORMAT,
    data_dir,
    find_prepared,
    pair_names,
)
from transformer_jax.errors import UserError

_ANSWER_TIMEOUT_S = 10.0  # of a host that is asked whether it is there
_GB = 1e9


def prepare(config: DataConfig) -> Path:
    """The folder of the configured dataset, which is made if it is not there.

    Progress goes to standard error.

    Raises:
      UserError: no TensorFlow, no such dataset or pair of languages in it, a host that
        does not answer, or an archive that cannot be had or read.
    """
    folder = find_prepared(config)
    if folder is not None:
        return folder
    builder = _builder(config)
    _require_tensorflow()
    _require_archives(builder, data_dir(config))
    _build(builder)
    folder = find_prepared(config)
    assert folder is not None
    return folder


def _require_tensorflow() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            "TensorFlow is not installed, which preparing needs and reading does not: "
            "pip install tensorflow-cpu (0.3 GB to download, 1.3 GB installed), here "
            "or in an environment of its own"
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no remarks on the processor


def _builder(config: DataConfig) -> Any:
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate.wmt  # else these datasets are not registered

    try:
        kind = tfds.builder_cls(config.dataset)
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(
            f"tensorflow-datasets has no {config.dataset}, expected a WMT corpus of "
            "it, such as wmt14_translate"
        ) from error
    corpus = tensorflow_datasets.translate.wmt.WmtTranslate
    if not issubclass(kind, corpus) or kind is corpus:
        raise UserError(
            f"{config.dataset} is no WMT corpus of tensorflow-datasets, expected one "
            "such as wmt14_translate"
        )
    offered = kind.builder_configs
    names = [name for name in pair_names(config) if name in offered]
    if not names:
        raise UserError(
            f"{config.dataset} has no {' or '.join(pair_names(config))}, expected one "
            f"of {', '.join(offered)}"
        )
    return tfds.builder(
        f"{config.dataset}/{names[0]}",
        data_dir=data_dir(config),
        file_format=FILE_FORMAT,
    )


def _require_archives(builder: Any, folder: Path) -> None:
    """Says what will be downloaded, and asks the hosts whether they are there."""
    from tensorflow_datasets.core.download import checksums
    from tensorflow_datasets.translate import wmt

    language, _ = builder.builder_config.language_pair
    corpora = [
        wmt.DATASET_MAP[name] for name in itertools.chain(*builder.subsets.values())
    ]
    urls = {
        url
        for corpus in corpora
        if not corpus.get_manual_dl_files(language)
        for url in corpus.get_url(language)
    }
    known = checksums.get_all_url_infos()
    downloads = folder / "downloads"
    there = _downloaded(downloads / builder.name) | {
        url
        for url in urls & known.keys()
        if (downloads / "manual" / (known[url].filename or url)).is_file()
    }
    missing = sorted(urls - there)
    size = sum(known[url].size for url in missing if url in known)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    print(
        f"{len(missing)} of {len(urls)} archives to download, {size / _GB:.1f} GB; "
        f"{free / _GB:.0f} GB are free in {folder}",
        file=sys.stderr,
    )
    for host, reason in _silent_hosts(missing):
        raise UserError(
            f"cannot download from {host} ({reason}): connect this machine, or put "
            f"{', '.join(missing)} into {downloads / 'manual'}, or prepare on another "
            f"machine and copy its {folder / builder.name} here, or use your own text "
            "files: --config.data.corpus=files --config.data.dir=DIR"
        )


def _downloaded(folder: Path) -> set[str]:
    """The URLs whose archives are in tensorflow-datasets' folder of downloads."""
    notes = [json.loads(path.read_bytes()) for path in folder.glob("*.INFO")]
    return {url for note in notes for url in note.get("urls", ())}


def _silent_hosts(urls: Iterable[str]) -> list[tuple[str, str]]:
    """The hosts that give no answer within seconds, and why.

    tensorflow-datasets would try each of them for minutes.
    """
    reasons = {urllib.parse.urlsplit(url).netloc: "no answer" for url in urls}

    def ask(host: str, url: str) -> None:
        request = urllib.request.Request(url, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S).close()
            reasons[host] = ""
        except urllib.error.HTTPError:
            reasons[host] = ""  # an answer too
        except (OSError, http.client.HTTPException) as error:
            reasons[host] = str(getattr(error, "reason", error)) or repr(error)

    threads = [
        # Looking up a name has no time limit of its own.
        threading.Thread(target=ask, args=(host, url), daemon=True)
        for host, url in {
            urllib.parse.urlsplit(url).netloc: url for url in urls
        }.items()
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _ANSWER_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [(host, reason) for host, reason in sorted(reasons.items()) if reason]


def _build(builder: Any) -> None:
    """Downloads what is missing, extracts and writes."""
    import tensorflow_datasets as tfds
    from requests import RequestException
    from tensorflow_datasets.core.download import download_manager, extractor

    failures = (
        AssertionError,  # archives to be fetched by hand, or that do not align
        RequestException,
        tfds.download.DownloadError,
        download_manager.NonMatchingChecksumError,
        extractor.ExtractError,
    )
    try:
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(try_download_gcs=False)
            )
    except failures as error:
        raise UserError(
            f"cannot prepare {builder.info.full_name}: {' '.join(str(error).split())}; "
            "what was downloaded stays: run the command again to go on"
        ) from error
