"""Protected files in gVisor, whose kernel keeps times of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import Runner, Session
from runner.tools import Registry
from tests.conftest import make_settings
from tests.gvisor.conftest import RUNTIME
from tests.host import wait_until
from tests.test_protected import WatchingBash, touched


@pytest.fixture(scope="module")
def here(gvisor: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    tools = Registry()
    tools.register(WatchingBash())
    settings = make_settings(tmp_path_factory.mktemp("gvisor"), runtime=RUNTIME)
    with Runner("default", tools=tools, settings=settings) as runner, runner.session() as session:
        yield session


def test_what_became_of_protected_files_is_told(here: Session) -> None:
    made = here.bash("mkdir -p .git/hooks src; echo x > .git/config")
    assert touched(made) == {"/workspace/.git/config": "created"}
    assert here.bash("echo hi; echo x > src/main.py").details == {}
    assert touched(here.bash("echo y > .git/config; echo x > .git/hooks/update; mkdir a")) == {
        "/workspace/.git/config": "changed",
        "/workspace/.git/hooks/update": "created",
    }
    assert touched(here.bash("mv .git/hooks/update a; ln -s a src/.envrc")) == {
        "/workspace/.git/hooks/update": "removed",
        "/workspace/src/.envrc": "created",
    }
    here.bash("(until [ -e go ]; do sleep 0.01; done; echo z > .git/config; mv go gone) &")
    told = touched(here.bash("touch go"))  # which may end before that or after it
    wait_until((Path(here.info.workspace) / "gone").exists)
    told |= touched(here.bash("true"))
    assert told == {"/workspace/.git/config": "changed"}
