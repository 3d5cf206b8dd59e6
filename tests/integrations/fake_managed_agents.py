"""Anthropic's managed agents on loopback, as far as a worker of a self-hosted environment sees.

One session with one turn: it wants tools used, takes the results, and ends its turn.
"""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .fake_models import Use, as_sse

NOW = "2026-01-01T00:00:00Z"


class FakeManagedAgents:
    """The server. A context manager."""

    def __init__(self, *uses: Use) -> None:
        self.results: dict[str, Mapping[str, Any]] = {}
        """What each use was answered."""
        self.stopped = False
        """Whether the worker gave its work item back."""
        self._uses = uses
        self._answered = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path.endswith("/events/stream"):
                    outer._stream(self)
                elif path.endswith("/events"):
                    outer._send(self, {"data": [], "next_page": None})
                else:
                    outer._send(self, SESSION)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length) or b"{}")
                outer._send(self, outer._take(self.path.partition("?")[0], body))

            def log_message(self, format: str, *args: object) -> None:
                """Tests want none of that."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def root(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _take(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if path.endswith("/heartbeat"):
            return {
                "type": "work_heartbeat",
                "last_heartbeat": NOW,
                "lease_extended": True,
                "state": "active",
                "ttl_seconds": 90,
            }
        if path.endswith("/stop"):
            self.stopped = True
            return {"type": "work", "state": "stopped"}
        for event in body["events"]:
            assert event["type"] == "user.tool_result"
            self.results[event["tool_use_id"]] = event
        if len(self.results) == len(self._uses):
            self._answered.set()
        return {"data": []}

    def _stream(self, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        asked = [
            {
                "type": "agent.tool_use",
                "id": use.id,
                "name": use.name,
                "input": use.input,
                "processed_at": NOW,
                "evaluated_permission": "allow",
            }
            for use in self._uses
        ]
        handler.wfile.write(as_sse(asked))
        handler.wfile.flush()
        self._answered.wait(30)
        idle = {
            "type": "session.status_idle",
            "id": "event_idle",
            "processed_at": NOW,
            "stop_reason": {"type": "end_turn"},
        }
        handler.wfile.write(as_sse([idle]))
        handler.close_connection = True

    def _send(self, handler: BaseHTTPRequestHandler, value: Mapping[str, Any]) -> None:
        content = json.dumps(value).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def __enter__(self) -> "FakeManagedAgents":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._answered.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


SESSION: Mapping[str, Any] = {
    "type": "session",
    "id": "session_1",
    "status": "running",
    "environment_id": "env_1",
    "agent": {"type": "agent", "id": "agent_1", "skills": [], "tools": []},
    "resources": [],
    "created_at": NOW,
    "updated_at": NOW,
}
