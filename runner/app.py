"""The one place that wires: settings in, a controller out."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.answers import RequestFailed
from runner.approvals import Approvals, Approver
from runner.containers import PROXY_PORT, network_of
from runner.controller import Controller, Rules
from runner.docker_engine import DockerEngine
from runner.egress.leashes import BUNDLE_PATH, Leashes, bundle_environment
from runner.engine import Engine
from runner.errors import EngineError
from runner.images import remove_outdated
from runner.logs import log
from runner.policy import DENY_EVERYTHING, FixedPolicy, Policy, PolicyFile, PolicySource
from runner.process import process_alive
from runner.sandbox import Sandbox
from runner.sessions import Lease, Sessions, Swept
from runner.settings import Settings
from runner.store import Store
from runner.tools import Registry, ToolLimits, default_registry

if TYPE_CHECKING:
    from runner.egress.leash import Leash

DATABASE = "runner.sqlite3"


def as_policy(policy: Policy | str | Path | None) -> Policy:
    """The policy that is meant: itself, a shipped one's name, a file, or none: deny everything.

    Raises:
        PolicyError: There is no such file, or it can't be loaded.
    """
    if policy is None:
        return DENY_EVERYTHING
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str) and policy in Policy.shipped():
        return Policy.named(policy)
    return Policy.load(Path(policy))


def as_source(policy: Policy | str | Path | None) -> PolicySource:
    """As `as_policy`; a file is read anew when it changes.

    Raises:
        PolicyError: There is no such file, or it can't be loaded.
    """
    if isinstance(policy, Path) or (isinstance(policy, str) and policy not in Policy.shipped()):
        return PolicyFile(policy)
    return FixedPolicy(as_policy(policy))


def open_store(settings: Settings) -> Store:
    """The records of a data directory.

    Raises:
        StoreError: They can't be opened.
    """
    return Store.open(settings.data_dir / DATABASE)


async def sweep(settings: Settings, *, engine: Engine | None = None) -> Swept:
    """Put right what dead processes left, as every start does, and say what that was.

    Images and toolboxes that this version would not make are removed too.

    Raises:
        StoreError: The records can't be opened.
        EngineUnavailable, EngineError: Docker can't be reached, or refused.
    """
    async with _opened(settings, engine) as (store, engine, lost):
        swept = await Sessions(engine, store, settings).sweep()
        outdated = await remove_outdated(engine)
    return replace(swept, lost_calls=lost, outdated=tuple(outdated))


@asynccontextmanager
async def _opened(
    settings: Settings, engine: Engine | None
) -> AsyncIterator[tuple[Store, Engine, tuple[str, ...]]]:
    """The records, an engine, and the calls of dead processes, which are closed as lost.

    An engine that is given stays open; one that is made here is closed.
    """
    with open_store(settings) as store:
        lost = tuple(store.close_lost(process_alive))
        if engine is not None:
            yield store, engine, lost
            return
        made = DockerEngine(settings.docker_host)
        try:
            yield store, made, lost
        finally:
            await made.close()


@asynccontextmanager
async def build(
    settings: Settings,
    *,
    policy: PolicySource,
    approver: Approver = None,
    tools: Registry | None = None,
    engine: Engine | None = None,
    on_line: Callable[[str], None] | None = None,
) -> AsyncIterator[Controller]:
    """A controller and all below it, for as long as the context lasts.

    On the way in, what dead processes left is put right: their open calls become `lost`,
    their sessions are swept.

    Args:
        settings: The settings.
        policy: What decides.
        approver: Who answers where the policy asks; None: nobody, so that to ask is to deny.
        tools: The tools; None: the five.
        engine: The container engine; None: Docker, as the settings and the environment say.
        on_line: Gets the progress of image builds; None: the log.

    Raises:
        StoreError: The records can't be opened.
    """
    async with _opened(settings, engine) as (store, engine, lost):
        for call_id in lost:
            log.warning("tool.error", call=call_id, error="lost: its process ended")
        leashes = Leashes(settings, rules=lambda: policy.current.network, records=store)

        def leash_of(lease: Lease) -> "Leash | None":
            return leashes.of(lease, lease.info.id, network_of(lease.info))

        async def attach(lease: Lease, sandbox: Sandbox) -> None:
            if (leash := leash_of(lease)) is None:
                return
            if leash.interception is not None:
                lease.added_environment.update(bundle_environment())
                bundle = leash.interception.bundle()
                try:
                    await sandbox.write(BUNDLE_PATH, bundle, judged=BUNDLE_PATH)  # through no link
                except RequestFailed as error:
                    # Calls may have put something in its place, which must keep nobody from
                    # taking the session over. What can't read it trusts nobody.
                    log.warning("network.bundle", session=lease.info.id, error=str(error))
            await sandbox.listen(PROXY_PORT, leash.take)

        sessions = Sessions(
            engine,
            store,
            settings,
            on_sandbox=attach,
            **({"on_line": on_line} if on_line else {}),
        )
        rules = Rules(
            policy=policy,
            limits=ToolLimits(
                read_limit_bytes=settings.read_limit_bytes,
                output_limit_bytes=settings.output_limit_bytes,
                grep_max_matches=settings.grep_max_matches,
                background=settings.background,
            ),
            max_timeout_s=settings.max_timeout_s,
        )
        approvals = Approvals(store, approver, timeout_s=settings.approval_timeout_s)
        try:
            store.expire_approvals()
            if store.sessions():
                try:
                    await sessions.sweep()
                except EngineError as error:
                    # Whoever opens a session will be told; what needs no Docker must still work.
                    log.warning("sweep.failed", error=str(error))
            yield Controller(
                tools=tools if tools is not None else default_registry(),
                rules=rules,
                sessions=sessions,
                store=store,
                approvals=approvals,
                network=leash_of,
            )
        finally:
            await leashes.close()
            await sessions.close()
            await approvals.close()
