"""A server of files on this machine, in the place of the hosts of corpora."""

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The address, and the requests so far, such as "GET /a.tgz"."""
    requests: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *arguments: object) -> None:
            requests.append(f"{self.command} {self.path}")

        def log_message(self, *arguments: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
