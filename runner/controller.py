"""The spine: what happens to a call, from its raw input to its record.

    validate → decide → execute → record

`Controller.call` is the only way to run a tool, whoever asks. It decides nothing itself: the
tool's schema says what is valid, the gate what is allowed, the sandbox what happened.
"""

import asyncio
import contextlib
import posixpath
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.answers import RequestFailed
from runner.approvals import Approvals
from runner.audit import AuditEvent, sha256
from runner.conversation import GRACE_S
from runner.egress.access import NetworkAccess
from runner.errors import ConfigurationError, RunnerError, TransferError
from runner.gate import Gate, PathUnusable, Permit
from runner.logs import log
from runner.model import Call, Outcome, Record, Status, ToolResult, Verdict
from runner.policy import PolicySource
from runner.process import process_identity
from runner.sandbox import WORKSPACE
from runner.sessions import Lease, Sessions
from runner.store import Store
from runner.tools import (
    InvalidInput,
    Registry,
    Tool,
    ToolContext,
    ToolLimits,
    decode,
    keeps_time,
)
from runner.tools.base import seconds

OnOutput = Callable[[bytes], Awaitable[None]]
RawInput = str | bytes | Mapping[str, object]

INVALID_INPUT_KEPT = 4096
"""Characters of an input that could not be decoded, for the record."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the controller enforces: fixed for its lifetime."""

    policy: PolicySource
    limits: ToolLimits
    max_timeout_s: float


class Controller:
    """Runs calls: the same schema, policy and record for every interface."""

    def __init__(
        self,
        *,
        tools: Registry,
        rules: Rules,
        sessions: Sessions,
        store: Store,
        approvals: Approvals,
        network: Callable[[Lease], NetworkAccess | None] = lambda lease: None,
    ):
        self.tools = tools
        self.rules = rules
        self.sessions = sessions
        self.store = store
        self._network = network
        self._owner = process_identity()
        self.approvals = approvals
        self._gate = Gate(rules.policy, store, approvals)

    async def call(
        self,
        lease: Lease,
        tool_name: str,
        raw: RawInput,
        *,
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Validate, decide, execute and record one call.

        Args:
            lease: The session it belongs to.
            tool_name: Which tool.
            raw: Its input: the model's JSON, or a mapping.
            timeout_s: Its time limit; None: the session's.
            on_output: Awaited with each piece of output, where the tool has any as it runs.
            call_id: Its id in the record; None: a new one.

        Returns:
            What came of it. An invalid, denied, failed or timed-out call is a result.

        Raises:
            ConfigurationError: The time limit is not above 0, or above the longest allowed.
            SandboxLost: The container was lost under the call. The next call gets a new one.
            RunnerError: The runner could not do its part: no container, no record.
        """
        limit_s = self._timeout(lease, timeout_s)
        started = time.time()
        refused = ToolResult(
            call_id=call_id or f"c-{uuid.uuid4().hex}",
            tool=tool_name,
            status=Status.INVALID,
            timeout_s=limit_s,
        )
        tool = self.tools.get(tool_name)
        if tool is None:
            known = ", ".join(self.tools.names())
            error = f"unknown tool {tool_name!r}; there are: {known}"
            return self._refuse(lease, started, _raw_text(raw), replace(refused, error=error))
        try:
            decoded = decode(tool, raw)
        except InvalidInput as invalid:
            refused = replace(refused, error=str(invalid))
            return self._refuse(lease, started, _raw_text(raw), refused)
        try:
            permit = await self._gate.decide(lease, tool.name, decoded, call_id=refused.call_id)
        except PathUnusable as unusable:
            refused = replace(refused, status=Status.FAILED, error=str(unusable))
            return self._refuse(lease, started, decoded.canonical, refused)
        except RunnerError as trouble:
            refused = replace(refused, status=Status.LOST, error=f"{tool.name}: {trouble}")
            self._refuse(lease, started, decoded.canonical, refused)
            raise
        if permit.decision.verdict is not Verdict.ALLOW:
            error = f"{tool.name}: {permit.decision.reason}"
            refused = replace(refused, status=Status.DENIED, error=error, decision=permit.decision)
            return self._refuse(lease, started, decoded.canonical, refused, permit)
        call = Call(
            id=refused.call_id,
            session_id=lease.info.id,
            tool=tool.name,
            arguments=decoded.arguments,
            canonical=decoded.canonical,
            timeout_s=limit_s,
        )
        # It begins now, however long a person was asked about it before.
        with self._recorded(lease, call, time.time(), permit) as finish:
            outcome = await self._execute(lease, tool, call, permit, decoded.input, on_output)
            return finish(outcome)

    async def upload(self, lease: Lease, path: str, content: bytes) -> int:
        """Put a file into a session's container. The host's own doing: no policy is asked.

        Args:
            lease: The session.
            path: Where to; what is not absolute is below the workspace. Directories that are
                missing are made.
            content: Of any size. Up to 16 MiB it takes the place of an old file in one step;
                more is written piece by piece, and after an error a part of it is there.

        Returns:
            The bytes written.

        Raises:
            TransferError: It can't be written; `failure` says why.
            SandboxLost: The container was lost meanwhile.
            RunnerError: There is no container, or no record.
        """
        place = posixpath.join(WORKSPACE, path)
        body = {"path": place, "bytes": len(content), "sha256": sha256(content)}
        with self._transferring(lease, place):
            sandbox = await lease.sandbox()
            try:
                count = await sandbox.store(place, content)
            except BaseException as error:
                # A part of it may be there.
                why = error.code if isinstance(error, RequestFailed | RunnerError) else "cancelled"
                self._note_file(lease, AuditEvent.FILE_UPLOADED, {**body, "error": why})
                raise
            self._note_file(lease, AuditEvent.FILE_UPLOADED, body)
        return count

    async def download(self, lease: Lease, path: str, *, limit_bytes: int) -> bytes:
        """Take a file out of a session's container. The host's own doing: no policy is asked.

        Args:
            lease: The session.
            path: Which file; what is not absolute is below the workspace.
            limit_bytes: The largest that is taken.

        Raises:
            TransferError: It can't be read, or is larger; `failure` says why.
            SandboxLost: The container was lost meanwhile.
            RunnerError: There is no container, or no record.
        """
        place = posixpath.join(WORKSPACE, path)
        with self._transferring(lease, place):
            sandbox = await lease.sandbox()
            content = await sandbox.fetch(place, limit_bytes=limit_bytes)
            body = {"path": place, "bytes": len(content), "sha256": sha256(content)}
            self._note_file(lease, AuditEvent.FILE_DOWNLOADED, body)
        return content

    @contextlib.contextmanager
    def _transferring(self, lease: Lease, path: str) -> Iterator[None]:
        lease.busy += 1
        try:
            yield
        except RequestFailed as failure:
            raise TransferError(
                f"{path}: {failure.detail}", path=path, failure=failure.code
            ) from failure
        finally:
            lease.busy -= 1

    def _note_file(self, lease: Lease, event: AuditEvent, body: Mapping[str, Any]) -> None:
        self.store.audit(event, session_id=lease.info.id, body=body)
        log.info(event.value, session=lease.info.id, **body)

    def _timeout(self, lease: Lease, asked_s: float | None) -> float:
        limit_s = lease.timeout_s if asked_s is None else asked_s
        if not 0 < limit_s <= self.rules.max_timeout_s:
            raise ConfigurationError(
                f"a time limit of {limit_s:g} s is not between 0"
                f" and the longest allowed, {self.rules.max_timeout_s:g} s"
            )
        return limit_s

    async def _execute(
        self,
        lease: Lease,
        tool: Tool,
        call: Call,
        permit: Permit,
        input: object,
        on_output: OnOutput | None,
    ) -> Outcome:
        sandbox = await lease.sandbox()
        network = self._network(lease)
        refusals = network.refusals if network is not None else 0
        context = ToolContext(
            sandbox=sandbox,
            call=call,
            deadline_s=call.timeout_s,
            on_output=on_output,
            limits=self.rules.limits,
            environment=lease.environment,
            judged=permit.path,
            hidden=permit.hidden,
            watch=permit.watch,
            programs=lease.programs,
            network=network,
        )
        # A tool that keeps the time itself returns what it has; it gets a while to do so.
        limit_s = call.timeout_s + (2 * GRACE_S if keeps_time(tool) else 0.0)
        try:
            async with asyncio.timeout(limit_s):
                outcome = await tool.execute(context, input)
                return _with_refusals(outcome, network, refusals)
        except TimeoutError:
            if sandbox.lost is not None:  # its helper did not even end the call
                raise sandbox.lost from None
            return Outcome(
                error=f"{tool.name}: timed out after {seconds(call.timeout_s)}",
                status=Status.TIMED_OUT,
            )
        except RunnerError:
            raise
        except Exception as error:  # a tool's own mistake is the call's result, not our end
            log.exception("tool.error", tool=tool.name, call=call.id, session=call.session_id)
            return Outcome(
                error=f"{tool.name}: {type(error).__name__}: {error}", status=Status.FAILED
            )

    # Records.

    def _refuse(
        self,
        lease: Lease,
        started: float,
        arguments: str,
        result: ToolResult,
        permit: Permit | None = None,
    ) -> ToolResult:
        """Record a call that does not run."""
        result = replace(result, duration_s=time.time() - started)
        record = Record(
            call_id=result.call_id,
            session_id=lease.info.id,
            tool=result.tool,
            arguments=arguments,
            verdict=result.decision.verdict if result.decision else None,
            rule=result.decision.rule if result.decision else None,
            reason=result.decision.reason if result.decision else "",
            policy=permit.policy if permit else self.rules.policy.current.digest,
            status=result.status,
            exit_code=None,
            output="",
            error=result.error,
            started_at=started,
            duration_s=result.duration_s,
            timeout_s=result.timeout_s,
            shadow=permit.shadow if permit else "",
            approval=permit.approval if permit else "",
        )
        self.store.begin_call(record, owner=self._owner)
        event = "tool.denied" if result.status is Status.DENIED else "tool.error"
        log.info(
            event,
            tool=result.tool,
            session=lease.info.id,
            call=result.call_id,
            status=str(result.status),
            reason=result.error,
        )
        return result

    def _note_protected(self, call: Call, details: Mapping[str, Any]) -> None:
        """Record what a call did to protected files; before its end, so that neither is lost."""
        if "protected" not in details:
            return
        facts = {name: details[name] for name in PROTECTED_FACTS if name in details}
        self.store.audit(
            AuditEvent.TOOL_PROTECTED,
            session_id=call.session_id,
            body={"call": call.id, "tool": call.tool, **facts},
        )
        log.warning(
            "tool.protected", tool=call.tool, session=call.session_id, call=call.id, **facts
        )

    @contextlib.contextmanager
    def _recorded(
        self, lease: Lease, call: Call, started: float, permit: Permit
    ) -> Iterator[Callable[[Outcome], ToolResult]]:
        """Record a call before it runs, and what came of it whatever happens."""
        decision = permit.decision
        record = Record(
            call_id=call.id,
            session_id=call.session_id,
            tool=call.tool,
            arguments=call.canonical,
            verdict=decision.verdict,
            rule=decision.rule,
            reason=decision.reason,
            policy=permit.policy,
            status=None,
            exit_code=None,
            output="",
            error=None,
            started_at=started,
            duration_s=None,
            timeout_s=call.timeout_s,
            shadow=permit.shadow,
            approval=permit.approval,
        )
        self.store.begin_call(record, owner=self._owner)
        clock = time.perf_counter()
        lease.busy += 1

        def finish(outcome: Outcome) -> ToolResult:
            done = ToolResult(
                call_id=call.id,
                tool=call.tool,
                status=outcome.status,
                output=outcome.output,
                error=outcome.error,
                exit_code=outcome.exit_code,
                duration_s=time.perf_counter() - clock,
                timeout_s=call.timeout_s,
                truncated=outcome.truncated,
                background=outcome.background,
                decision=decision,
                details=outcome.details,
                blocks=outcome.blocks,
            )
            if permit.watch:
                self._note_protected(call, outcome.details)
            self.store.finish_call(done)
            log.info(
                "tool.execute",
                tool=done.tool,
                session=lease.info.id,
                call=done.call_id,
                status=str(done.status),
                exit_code=done.exit_code,
                duration_s=round(done.duration_s, 6),
            )
            return done

        try:
            yield finish
        except asyncio.CancelledError:
            finish(Outcome(error=f"{call.tool}: cancelled", status=Status.CANCELLED))
            raise
        except RunnerError as error:
            # What it did to protected files went with the container that could have told.
            details = {"protected_incomplete": True} if permit.watch else {}
            finish(Outcome(error=f"{call.tool}: {error}", status=Status.LOST, details=details))
            log.warning("tool.error", tool=call.tool, call=call.id, error=str(error))
            raise
        finally:
            lease.busy -= 1


def _with_refusals(outcome: Outcome, network: NetworkAccess | None, before: int) -> Outcome:
    """An outcome with why connections were refused meanwhile, which few programs say.

    Where several calls of a session run at once, each of them is told of all refusals.
    """
    reasons = network.refused_since(before) if network is not None else ()
    if not reasons:
        return outcome
    details = {**outcome.details, "network_refused": list(reasons)}
    error = outcome.error
    if error is not None:
        error = "\n".join([error, *(f"network: {reason}" for reason in reasons)])
    return replace(outcome, details=details, error=error)


PROTECTED_FACTS = ("protected", "protected_count", "protected_incomplete")
"""What the details of an outcome say about protected files."""


def _raw_text(raw: RawInput) -> str:
    """What was given as input, for the record of a call whose input is no good."""
    if isinstance(raw, bytes):
        raw = raw.decode(errors="backslashreplace")
    text = raw if isinstance(raw, str) else repr(dict(raw))
    return text[:INVALID_INPUT_KEPT].encode(errors="backslashreplace").decode()
