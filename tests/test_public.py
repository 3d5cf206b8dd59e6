"""What the package promises to those who import it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import runner
from runner import errors
from runner.errors import EXITS, RunnerError

HEAVY = ("docker", "pydantic", "typer", "rich", "yaml", "anyio", "asyncio", "sqlite3", "structlog")


def all_errors(root: type[RunnerError] = RunnerError) -> list[type[RunnerError]]:
    return [root, *(found for child in root.__subclasses__() for found in all_errors(child))]


@pytest.mark.parametrize("name", runner.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(runner, name) is not None


def typing_imports() -> dict[str, str]:
    """Public name to module, as type checkers see it."""
    tree = ast.parse(Path(str(runner.__file__)).read_text())
    return {
        alias.name: str(node.module)
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_and_the_running_program_see_the_same_names() -> None:
    assert typing_imports() == runner._MODULES
    assert sorted(typing_imports()) == sorted(runner.__all__)
    assert dir(runner) == sorted(runner.__all__)


def test_public_names_are_in_order_and_each_once() -> None:
    assert runner.__all__ == sorted(set(runner.__all__))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        runner.no_such_name  # noqa: B018


def run_python(code: str) -> str:
    # What counts lines in processes that tests start would import this and that before them.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("import_", ["import runner", "from runner import __version__"])
def test_importing_the_package_imports_nothing_heavy(import_: str) -> None:
    loaded = run_python(f"import sys; {import_}; print(*sys.modules)").split()
    assert not set(HEAVY) & {name.split(".")[0] for name in loaded}


@pytest.mark.parametrize(
    ("import_", "absent"),
    [
        ("from runner import RunnerError, Status", ("docker", "pydantic", "sqlite3", "asyncio")),
        ("from runner import Policy", ("docker", "sqlite3")),
        ("from runner.helper import wire", ("dataclasses", "asyncio", "docker")),
        ("from runner import Settings", ("docker", "sqlite3")),
        (
            "from runner import AsyncRunner",
            ("h11", "cryptography", "mcp", "uvicorn", "starlette", "cronsim", "httpx2"),
        ),
    ],
)
def test_a_part_does_not_bring_what_it_does_not_need(import_: str, absent: tuple[str, ...]) -> None:
    loaded = run_python(f"import sys; {import_}; print(*sys.modules)").split()
    assert not set(absent) & {name.split(".")[0] for name in loaded}


def test_importing_says_and_makes_nothing(tmp_path: Path) -> None:
    code = "import runner; from runner import Runner, AsyncRunner; Runner; AsyncRunner"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PYTHONPATH": str(Path(str(runner.__file__)).parents[1])},
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    assert not list(tmp_path.iterdir())


# Errors.


def test_every_error_has_a_code_of_its_own_that_has_its_exits() -> None:
    codes = [error.code for error in all_errors()]
    assert len(codes) == len(set(codes))
    assert set(codes) == set(EXITS)


def test_every_error_says_what_it_is_and_stands_in_the_tree_of_the_docstring() -> None:
    for error in all_errors():
        assert error.__doc__
        assert error.__name__ in (errors.__doc__ or "")
        assert error.__module__ == "runner.errors"


def test_exits_are_ones_that_their_readers_know() -> None:
    for code, exit_ in EXITS.items():
        assert 1 <= exit_.status <= 125, code
        assert 400 <= exit_.http < 600, code
        assert exit_.mcp in (-32602, -32603), code


def test_errors_that_a_caller_may_meet_are_public() -> None:
    hidden = {error.__name__ for error in all_errors()} - set(runner.__all__)
    # Of the engine's and the stream's own; who meets one has a more general name for it.
    assert hidden <= {"NotFound", "Conflict", "LocalProtocolError"}
    for name in hidden:
        parents = getattr(errors, name).__mro__[1:]
        assert any(parent.__name__ in runner.__all__ for parent in parents)


def test_an_error_of_a_policy_or_an_audit_keeps_its_place() -> None:
    policy = errors.PolicyError("bad", source="p.yaml", line=3)
    assert str(policy) == "p.yaml:3: bad"
    assert str(errors.PolicyError("bad")) == "<policy>: bad"
    assert errors.AuditBroken("row 4", row=4).row == 4
