"""A session as pydantic-ai's workspace: its conformance suite for backends, and what is ours."""

from collections.abc import Callable

import pytest
from pydantic_ai.workspaces import (
    Workspace,
    WorkspaceBackend,
    WorkspaceError,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from runner import AsyncRunner, AsyncSession, Policy
from runner.integrations.pydantic_ai import SessionWorkspace

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

POLICY = Policy.parse("""
version: 1
mode: pattern
default: allow
deny:
  - {tool: bash, match: 'git push', justification: "pushing is for people"}
""")


class TestConformance(WorkspaceBackendSuite):
    @pytest.fixture
    def backend(self, session: AsyncSession) -> WorkspaceBackend:
        return SessionWorkspace(session)

    @pytest.fixture
    def attach_backend(self, session: AsyncSession) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        def attach(ref: WorkspaceRef) -> WorkspaceBackend:
            assert ref.id == session.id
            return SessionWorkspace(session)

        return attach

    # A session is opened, attached to and closed by whoever holds the runner, not by a backend.
    test_concurrent_first_use_shares_one_environment = None  # type: ignore[assignment]
    test_destroying_environment_during_command_raises_unavailable = None  # type: ignore[assignment]
    test_attaching_to_a_destroyed_environment_raises_unavailable = None  # type: ignore[assignment]
    # It has no realpath of its own: the suite's rule for those that do would be skipped.
    test_native_realpath_keeps_the_working_dir_and_missing_names = None  # type: ignore[assignment]


async def test_a_denied_command_is_an_error_with_the_policys_words(session: AsyncSession) -> None:
    with pytest.raises(WorkspaceError, match="pushing is for people"):
        await SessionWorkspace(session).run(["git", "push"])


async def test_what_a_command_wrote_until_its_time_was_over_is_kept(session: AsyncSession) -> None:
    with pytest.raises(WorkspaceTimeoutError) as caught:
        await SessionWorkspace(session).run(
            "echo out; echo err >&2; sleep 30", shell=True, timeout=0.3
        )

    assert (caught.value.stdout, caught.value.stderr) == ("out\n", "err\n")


@pytest.mark.parametrize("descriptor", [1, 2])
async def test_more_output_than_a_call_returns_is_an_error(
    session: AsyncSession, descriptor: int
) -> None:
    with pytest.raises(WorkspaceOutputLimitError):
        await SessionWorkspace(session).run(
            f"head -c 2000000 /dev/zero | tr '\\0' x >&{descriptor}", shell=True
        )


async def test_a_time_limit_must_be_one(session: AsyncSession) -> None:
    with pytest.raises(ValueError, match="timeout"):
        await SessionWorkspace(session).run(["true"], timeout=0)


async def test_a_session_that_is_over_is_unavailable(runner: AsyncRunner) -> None:
    session = await runner.open_session()
    workspace = Workspace(SessionWorkspace(session))
    await session.close()

    with pytest.raises(WorkspaceUnavailableError):
        await workspace.run(["true"])
