"""May this call run? The policy's answer, and what a pure function can't know for it.

The policy decides; the gate tells it where a path leads in the container, asks a second
policy that is on trial, counts calls against rates, and has a person asked where the policy
wants one. It runs nothing.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.answers import RequestFailed
from runner.approvals import Approvals, Question
from runner.logs import log
from runner.model import Decision, Verdict
from runner.policy import Judgement, Policy, PolicySource, Rate
from runner.policy.matching import PATH
from runner.sessions import Lease
from runner.store import Store
from runner.tools import Decoded


class PathUnusable(Exception):
    """The call's path leads nowhere; `str(error)` is what the model is told."""


@dataclass(frozen=True, slots=True)
class Permit:
    """The answer to a call, and what the tool has to keep to if it may run."""

    decision: Decision
    policy: str
    """SHA-256 of the policy that answered."""
    path: str | None = None
    """Where the call's path leads, which was judged; None where no rule looks at paths."""
    hidden: tuple[str, ...] = ()
    """What a search must not look into; see `Policy.hides`."""
    watch: tuple[str, ...] = ()
    """Which files to look after while a script runs; see `Policy.watched`."""
    shadow: str = ""
    """What a policy on trial says, as JSON."""
    approval: str = ""
    """The id of the approval that it is under."""


class Gate:
    """Decides about calls."""

    def __init__(self, source: PolicySource, store: Store, approvals: Approvals):
        self._source = source
        self._store = store
        self._approvals = approvals

    async def decide(self, lease: Lease, tool: str, decoded: Decoded, *, call_id: str) -> Permit:
        """Whether a call may run. Where the policy asks, this waits for the answer.

        A yes of a person is not the last word: the policy is judged again when it comes, as it
        is then, and only where it still asks the yes may count.

        Raises:
            PathUnusable: The path that has to be judged leads nowhere.
            RunnerError: The container could not say where it leads, or the records not be read.
        """
        while True:
            policy = self._source.current
            judgement, path = await self._judge(lease, policy, tool, decoded)
            decision = judgement.decision
            permit = Permit(
                decision=decision,
                policy=policy.digest,
                path=path,
                hidden=(
                    policy.hides(tool, decoded.arguments, decoded.canonical)
                    if path is not None
                    else ()
                ),
                watch=policy.watched,
                shadow=self._shadow(policy, tool, decoded, path, decision),
            )
            if decision.verdict is Verdict.DENY:
                return permit
            if over := self._over(lease, judgement.rates):
                return replace(permit, decision=over)
            if decision.verdict is Verdict.ALLOW:
                return permit
            question = Question(
                session_id=lease.info.id,
                tool=tool,
                arguments=decoded.arguments,
                canonical=decoded.canonical,
                policy=policy.digest,
                rule=decision.rule,
                reason=decision.reason,
                resolved=path,
            )
            if approval := self._approvals.permit(question, call_id=call_id):
                allowed = replace(decision, verdict=Verdict.ALLOW, reason="")
                return replace(permit, decision=allowed, approval=approval.id)
            if refusal := await self._approvals.ask(question):
                denied = replace(decision, verdict=Verdict.DENY, reason=refusal.reason)
                return replace(permit, decision=denied, approval=refusal.approval)

    async def _judge(
        self, lease: Lease, policy: Policy, tool: str, decoded: Decoded
    ) -> tuple[Judgement, str | None]:
        """What the policy says, and where the call's path leads, if it wants to know."""
        judgement = policy.judge(tool, decoded.arguments, decoded.canonical)
        given = decoded.arguments.get(PATH)
        if (
            judgement.decision.verdict is Verdict.DENY
            or not isinstance(given, str)
            or not policy.looks_at_paths(tool)
        ):
            return judgement, None
        sandbox = await lease.sandbox()
        try:
            path = await sandbox.resolve(given)
        except RequestFailed as failure:
            raise PathUnusable(f"{tool}: open {given}: {failure.detail}") from None
        judgement = policy.judge(tool, decoded.arguments, decoded.canonical, resolved=path)
        return judgement, path

    def _shadow(
        self, policy: Policy, tool: str, decoded: Decoded, path: str | None, enforced: Decision
    ) -> str:
        if policy.shadow is None:
            return ""
        decision = policy.shadow.decide(tool, decoded.arguments, decoded.canonical, resolved=path)
        if decision.verdict is not enforced.verdict:
            log.info(
                "policy.shadow",
                tool=tool,
                enforced=f"{enforced.verdict} by {enforced.rule}",
                shadow=f"{decision.verdict} by {decision.rule}",
            )
        said = {
            "policy": policy.shadow.digest,
            "verdict": decision.verdict,
            "rule": decision.rule,
        }
        return json.dumps(said, separators=(",", ":"))

    def _over(self, lease: Lease, rates: Sequence[Rate]) -> Decision | None:
        """The refusal of a call that would be one too many."""
        for rate in rates:
            whose = (
                {"tenant": lease.info.tenant}
                if rate.per == "tenant"
                else {"session_id": lease.info.id}
            )
            since = time.time() - rate.per_s
            if self._store.count_calls(**whose, rule=rate.rule, since=since) >= rate.calls:
                return Decision(
                    Verdict.DENY,
                    f"{rate.rule or 'policy'}.rate",
                    f"more than {rate.calls} calls in {rate.per_s:g} s for this {rate.per};"
                    " wait before you try again",
                )
        return None
