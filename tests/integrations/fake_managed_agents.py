"""Anthropic's managed agents on loopback, as far as a worker of a self-hosted environment sees.

One session with one turn: it wants tools used, takes the results, and ends its turn.
"""

import threading
from collections.abc import Mapping
from typing import Any

from .fake_models import Use, as_sse
from .loopback import Handler, Loopback

NOW = "2026-01-01T00:00:00Z"


class FakeManagedAgents(Loopback):
    """The server."""

    def __init__(self, *uses: Use) -> None:
        super().__init__()
        self.results: dict[str, Mapping[str, Any]] = {}
        """What each use was answered."""
        self.stopped = False
        """Whether the worker gave its work item back."""
        self._uses = uses
        self._answered = threading.Event()

    def get(self, handler: Handler, path: str) -> None:
        """Tell of the session, or stream what happens in it."""
        if path.endswith("/events/stream"):
            self._stream(handler)
        elif path.endswith("/events"):
            self.send_json(handler, {"data": [], "next_page": None})
        else:
            self.send_json(handler, SESSION)

    def post(self, handler: Handler, path: str, body: Mapping[str, Any]) -> None:
        """Take what the worker says."""
        self.send_json(handler, self._take(path, body))

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

    def _stream(self, handler: Handler) -> None:
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

    def __exit__(self, *exception: object) -> None:
        self._answered.set()
        super().__exit__(*exception)


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
