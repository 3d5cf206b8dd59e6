"""Commands of a sandbox that outlive the call that started them: `process_*` for the SDK's PTYs.

There is no terminal. A command that is started with `tty` has an input that can be written to;
Ctrl-C and Ctrl-D in what is written become an interrupt and the end of the input. Any other has
no input, as the SDK's own backends have it.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.integrations.common import Call, missing
from runner.integrations.openai_agents.tools import NOT_RUN
from runner.model import Verdict
from runner.policy import Policy

try:
    from agents.sandbox.errors import PtySessionNotFoundError
    from agents.sandbox.session.pty_types import (
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        resolve_pty_write_yield_time_ms,
        truncate_text_by_tokens,
    )
except ImportError as error:
    raise missing("openai-agents", error) from error

TOOLS = ("process_start", "process_poll", "process_write", "process_kill")
"""Ours, that this uses."""
YIELD_S = 10.0
"""How long a start waits for output or the end, unless the model says otherwise."""
_NEEDED: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("process_poll", {"id": "p-1", "wait_s": 1.0}),
    ("process_write", {"id": "p-1", "text": "", "end": True}),
    ("process_kill", {"id": "p-1"}),
)
"""Calls without which a started command could be neither watched nor ended."""


def allowed(policy: Policy) -> bool:
    """Whether a policy lets commands be started that have to be looked after."""
    return all(
        policy.decide(tool, arguments).verdict is Verdict.ALLOW for tool, arguments in _NEEDED
    )


@dataclass(frozen=True, slots=True)
class _Running:
    """A started command."""

    id: str
    """As `process_start` names it."""
    has_input: bool


class Processes:
    """The started commands of one sandbox, by the numbers that the SDK has for them.

    Args:
        call: Makes a call of the session.
    """

    def __init__(self, call: Call):
        self._call = call
        self._running: dict[int, _Running] = {}

    async def start(
        self, script: str, *, has_input: bool, wait_s: float | None, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Start a command, and say what it wrote by its end or until `wait_s` are over."""
        started = await self._call("process_start", {"command": script})
        if started.is_error:
            return PtyExecUpdate(None, started.text.encode(), NOT_RUN, None)
        number = allocate_pty_process_id(set(self._running))
        running = self._running[number] = _Running(started.details["id"], has_input)
        if not has_input:
            await self._call("process_write", {"id": running.id, "text": "", "end": True})
        wait_ms = clamp_pty_yield_time_ms(int((YIELD_S if wait_s is None else wait_s) * 1000))
        return await self._update(number, running, wait_ms / 1000, max_tokens)

    async def write(
        self, number: int, text: str, *, wait_s: float | None, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Write to a command, which may be nothing, and say what it wrote since.

        Raises:
            PtySessionNotFoundError: There is no such command, or its end was told already.
            RuntimeError: It was started without an input.
        """
        running = self._running.get(number)
        if running is None:
            raise PtySessionNotFoundError(session_id=number)
        if text and not running.has_input:
            raise RuntimeError("stdin is not available for this process")  # the SDK's own words
        for piece in filter(None, re.split("([\x03\x04])", text)):
            match piece:
                case "\x03":
                    said = await self._call("process_kill", {"id": running.id, "signal": "INT"})
                case "\x04":
                    arguments = {"id": running.id, "text": "", "end": True}
                    said = await self._call("process_write", arguments)
                case _:
                    said = await self._call("process_write", {"id": running.id, "text": piece})
            if said.is_error:
                return PtyExecUpdate(number, said.text.encode(), None, None)
        wait_ms = resolve_pty_write_yield_time_ms(
            yield_time_ms=250 if wait_s is None else int(wait_s * 1000), input_empty=not text
        )
        return await self._update(number, running, wait_ms / 1000, max_tokens)

    async def end_all(self) -> None:
        """Kill what still runs."""
        running, self._running = self._running, {}
        await asyncio.gather(
            *(self._call("process_kill", {"id": one.id}) for one in running.values())
        )

    async def _update(
        self, number: int, running: _Running, wait_s: float, max_tokens: int | None
    ) -> PtyExecUpdate:
        pieces: list[str] = []
        exit_code: int | None = None
        until = time.monotonic() + wait_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            polled = await self._call("process_poll", {"id": running.id, "wait_s": left_s})
            if polled.is_error:
                pieces.append(polled.text)
                exit_code = NOT_RUN
                break
            # Its last line says how the process is, which we know from the details.
            pieces.append(polled.output[: polled.output.rfind("[")])
            if not polled.details["running"]:
                # A process that was killed at the end of something else has no status of its own.
                exit_code = polled.details.get("exit_code")
                exit_code = 137 if exit_code is None else exit_code
                break
            if not left_s:
                break
        if exit_code is not None:
            self._running.pop(number, None)
        text, original_tokens = truncate_text_by_tokens("".join(pieces), max_tokens)
        number_if_running = None if exit_code is not None else number
        return PtyExecUpdate(number_if_running, text.encode(), exit_code, original_tokens)
