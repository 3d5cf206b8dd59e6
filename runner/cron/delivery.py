"""Where a run's result goes besides the record: a line of a file, or a webhook.

Owns the result as a document, and getting it there. The document is made of the record, so
that it can be delivered by another process than the one that ran it. A delivery that ended
without an answer is repeated: a receiver may get one twice, and can tell by the run's id.
"""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import httpx2
import tenacity

from runner.cron.job import FileTarget, WebhookTarget, target_of
from runner.errors import ConfigurationError
from runner.logs import log
from runner.model import Job, Run
from runner.store import Store
from runner.version import __version__

__all__ = ["deliver", "document"]

TEXT_CHARACTERS = 64 * 1024
"""Of one call's output, in a document."""
DOCUMENT_CHARACTERS = 1024**2
"""Of all outputs together; later ones are left out."""
ATTEMPTS = 5
ATTEMPT_S = 10.0
"""How long one attempt at a webhook may take."""
_RETRY_WAIT_S = 20.0
"""The longest wait between two attempts."""


def document(store: Store, job: Job, run: Run) -> dict[str, Any]:
    """A run's result, of JSON values: the run, and each call with what came of it."""
    calls = []
    room = DOCUMENT_CHARACTERS
    records = store.calls(session_id=run.session_id, limit=len(job.calls)) if run.session_id else []
    for _, record in records:
        output = record.output[: min(TEXT_CHARACTERS, room)]
        room -= len(output)
        calls.append(
            {
                "call_id": record.call_id,
                "tool": record.tool,
                "status": record.status,
                "exit_code": record.exit_code,
                "output": output,
                "output_cut": len(output) < len(record.output),
                "error": record.error,
                "duration_s": record.duration_s,
            }
        )
    return {
        "job": run.job,
        "run": run.id,
        "state": run.state,
        "reason": run.reason,
        "scheduled_at": run.scheduled_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "missed": run.missed,
        "session_id": run.session_id,
        "calls": calls,
    }


async def deliver(
    store: Store, job: Job, run: Run, *, transport: httpx2.AsyncBaseTransport | None = None
) -> str:
    """Deliver a run's result as its job says.

    Args:
        store: Where the record is.
        job: Whose.
        run: Which; it has ended.
        transport: What carries HTTP; None: the network.

    Returns:
        `done`, or `failed: ` and why.
    """
    text = json.dumps(document(store, job, run))
    try:
        match target_of(job):
            case FileTarget(path):
                await asyncio.to_thread(_append, path, f"{text}\n".encode())
            case WebhookTarget() as webhook:
                await _post(webhook, text.encode(), run, transport)
            case None:
                pass
    except (OSError, ConfigurationError, httpx2.HTTPError, _Unwelcome) as error:
        # An error of the network may come without words.
        return f"failed: {type(error).__name__.lstrip('_')}: {error}"
    return "done"


def _append(path: Path, line: bytes) -> None:
    """Add a line to a regular file, which is made where there is none; never through a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        written = os.write(descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes could be written to {path}")
    finally:
        os.close(descriptor)


class _Unwelcome(Exception):
    """The webhook answered, but not with a success."""

    def __init__(self, status: int):
        super().__init__(f"the webhook answered with the status {status}")
        self.passes = status in (408, 425, 429) or status >= 500
        """It may be another one a moment later."""


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, _Unwelcome):
        return error.passes
    return isinstance(error, (httpx2.TransportError, TimeoutError))


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning("cron.deliver.retry", attempt=state.attempt_number, error=repr(error))


async def _post(
    webhook: WebhookTarget, content: bytes, run: Run, transport: httpx2.AsyncBaseTransport | None
) -> None:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"rousseau-runner/{__version__}",
        "Idempotency-Key": run.id,
    }
    attempts = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=_RETRY_WAIT_S),
        retry=tenacity.retry_if_exception(_may_pass),
        before_sleep=_log_retry,
        reraise=True,
    )

    async def once() -> None:
        async with (
            asyncio.timeout(ATTEMPT_S),
            client.stream("POST", webhook.url, content=content, headers=headers) as response,
        ):
            # What it says besides is not read: it may be without end.
            if not response.is_success:
                raise _Unwelcome(response.status_code)

    # Redirects are not followed: they could lead to where https does not.
    async with httpx2.AsyncClient(
        timeout=ATTEMPT_S, transport=transport, trust_env=not webhook.is_loopback
    ) as client:
        try:
            await attempts(once)
        except TimeoutError as error:
            raise OSError(f"the webhook did not answer within {ATTEMPT_S:g} s") from error
