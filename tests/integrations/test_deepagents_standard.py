"""The standard tests that LangChain has for sandboxes, as they come, on a real session."""

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from runner import Runner
from runner.integrations.deepagents import RousseauSandbox
from tests.conftest import make_settings

from .policies import EVERYTHING

pytestmark = [
    pytest.mark.docker,
    # Their asynchronous tests have no mark of their own.
    pytest.mark.anyio,
    # Their fixtures are methods of instances, and shared by a class.
    pytest.mark.filterwarnings("ignore:Class-scoped fixture"),
]


class TestRousseauSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(
        cls, docker_daemon: None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[RousseauSandbox]:
        settings = make_settings(tmp_path_factory.mktemp("data"))
        with (
            Runner(EVERYTHING, tools="extended", settings=settings) as runner,
            runner.session() as session,
        ):
            yield RousseauSandbox(session, dialect="langchain-tests")
