"""A server on loopback that fakes of services are made of."""

import contextlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Handler = BaseHTTPRequestHandler


class Loopback:
    """An HTTP server. A context manager; what it answers is a subclass's."""

    def __init__(self) -> None:
        outer = self

        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.get(self, self.path.partition("?")[0])

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length) or b"{}")
                outer.post(self, self.path.partition("?")[0], body)

            def log_message(self, format: str, *args: object) -> None:
                """Tests want none of that."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def root(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def get(self, handler: Handler, path: str) -> None:
        """Answer a GET."""
        handler.send_error(404)

    def post(self, handler: Handler, path: str, body: Mapping[str, Any]) -> None:
        """Answer a POST."""
        handler.send_error(404)

    def send(
        self, handler: Handler, content: bytes, kind: str = "application/json", status: int = 200
    ) -> None:
        """Send an answer, whole; a client that is gone does not mind."""
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            handler.wfile.write(content)

    def send_json(self, handler: Handler, value: Mapping[str, Any], status: int = 200) -> None:
        """Send an answer in JSON."""
        self.send(handler, json.dumps(value).encode(), status=status)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
