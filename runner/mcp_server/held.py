"""The sessions that a server holds for its clients: which one a call runs in, and how many.

A client that has a connection, or a session of the protocol, has one of ours, which is opened
by its first call. Where calls name their session, clients open and close them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from runner.client import AsyncRunner, AsyncSession
from runner.errors import RunnerError, SessionEnded, SessionError, SessionNotFound
from runner.logs import log
from runner.model import SessionState

__all__ = ["Held", "over"]


class Held:
    """The sessions of one server.

    Args:
        runner: Opens them.
        options: What they are opened with; see `AsyncRunner.session`.
        limit: How many may be open at once.
    """

    def __init__(self, runner: AsyncRunner, options: Mapping[str, Any], *, limit: int):
        self._runner = runner
        self._options = dict(options)
        self._limit = limit
        self._sessions: dict[str, AsyncSession] = {}
        self._opening = 0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, client: str, *, title: str) -> AsyncSession:
        """The session of a client, opened now if it has none.

        Raises:
            SessionError: Too many are open.
            RunnerError: It can't be opened; see `AsyncRunner.session`.
        """
        async with self._locks[client]:
            if (found := self._sessions.get(client)) is None:
                found = self._sessions[client] = await self._open(title)
            return found

    async def open(self, *, title: str) -> AsyncSession:
        """Open a session that calls name by its id.

        Raises:
            SessionError, RunnerError: As for `of`.
        """
        session = await self._open(title)
        self._sessions[session.id] = session
        return session

    def named(self, session_id: str) -> AsyncSession:
        """A session that was opened here.

        Raises:
            SessionNotFound: There is none of this id, or it is over.
        """
        found = self._sessions.get(session_id)
        if found is None or found.id != session_id:
            raise SessionNotFound(f"there is no open session {session_id!r}; open one first")
        return found

    def forget(self, session: AsyncSession) -> None:
        """A session is over: its client gets a new one."""
        for key, held in list(self._sessions.items()):
            if held is session:
                del self._sessions[key]

    async def end(self, key: str) -> None:
        """Close the session of a client, or one by its id, if there is one.

        Raises:
            EngineError, WorkspaceError: Something of it could not be removed; it will be swept.
        """
        async with self._locks[key]:
            session = self._sessions.pop(key, None)
        self._locks.pop(key, None)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """Close all of them."""
        for key in list(self._sessions):
            try:
                await self.end(key)
            except RunnerError as error:  # the others must go all the same
                log.error("session.close.failed", error=str(error))

    async def _open(self, title: str) -> AsyncSession:
        if len(self._sessions) + self._opening >= self._limit:
            self._forget_ended()
        if len(self._sessions) + self._opening >= self._limit:
            raise SessionError(
                f"{self._limit} sessions are open, and there may be no more; close one, or set"
                " RUNNER_MCP_MAX_SESSIONS"
            )
        self._opening += 1
        try:
            return await self._runner.open_session(title=title, **self._options)
        finally:
            self._opening -= 1

    def _forget_ended(self) -> None:
        """Those whose time ran out were closed by the runner itself."""
        store = self._runner.controller.store
        for session in list(self._sessions.values()):
            known = store.session(session.id)
            if known is None or known.state is not SessionState.OPEN:
                self.forget(session)


def over(session: AsyncSession) -> SessionEnded:
    """What a client is told whose session ended without its doing."""
    files = "its workspace went with it" if session.info.managed else "its workspace is still there"
    return SessionEnded(
        f"session {session.id} is over: it was not used for long, or its time ran out; {files}."
        " Call again for a new one"
    )
