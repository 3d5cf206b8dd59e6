"""Imports point down, and each foreign thing has one door. Read from the sources."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1] / "runner"

ROWS: tuple[tuple[str, ...], ...] = (
    ("helper", "errors", "model", "version", "logs", "lock", "answers"),
    ("settings", "process", "assets", "audit", "carrier", "workspace", "tunnels"),
    ("engine", "conversation", "store", "policy"),
    ("docker_engine", "ingredients", "files", "approvals", "egress"),
    ("images", "sandbox"),
    ("containers", "testing", "background"),
    ("sessions", "tools"),
    ("gate",),
    ("controller",),
    ("app",),
    ("client",),
    ("sync", "doctor", "queries", "cron"),
    ("mcp_server", "integrations"),
    ("cli",),
    ("__main__",),
)
"""From the bottom up. A part imports those of rows below its own, and none of its own row."""

DOORS: dict[str, tuple[str, ...]] = {
    "docker": ("docker_engine",),
    "urllib3": ("docker_engine",),
    "requests": ("docker_engine",),
    "tenacity": ("docker_engine", "cron"),
    "sqlite3": ("store",),
    "structlog": ("logs",),
    "pydantic_settings": ("settings",),
    "typer": ("cli",),
    "click": ("cli",),
    "rich": ("cli",),
    "re2": ("helper", "policy"),
    "yaml": ("policy",),
    "tree_sitter": ("policy",),
    "tree_sitter_bash": ("policy",),
    "subprocess": ("ingredients",),
    "h11": ("egress",),
    "cryptography": ("egress",),
    "httpx2": ("cron",),
    "cronsim": ("cron",),
    "mcp": ("mcp_server",),
    "mcp_types": ("mcp_server",),
    "uvicorn": ("mcp_server",),
    "starlette": ("mcp_server",),
    "inspect_ai": ("integrations",),
    "deepagents": ("integrations",),
    "agents": ("integrations",),
    "anthropic": ("integrations",),
    "pydantic_ai": ("integrations",),
}
"""What may import it: a library that is everywhere can't be replaced anywhere."""

READS_ENVIRONMENT = {
    "settings.py",
    "helper/jobs.py",  # the container's own, which calls inherit
    "cli/__init__.py",  # whether to show a traceback, asked where settings could not be read
}
PRINTS = {"__main__.py"}  # the rest of the output goes through the command line's terminal


class Import(NamedTuple):
    """One imported module, by whom."""

    file: str
    part: str
    module: str
    line: int
    typing_only: bool


def part_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def imports() -> Iterator[Import]:
    for path, tree in sources():
        typing_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}:{node.lineno}: a relative import"
                base = node.module or ""
                # `from runner import x` and `from runner.helper import x` import modules, too.
                modules = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            for module in modules:
                name = str(path.relative_to(ROOT))
                yield Import(name, part_of(path), module, node.lineno, id(node) in typing_only)


IMPORTS = list(imports())


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path, _ in sources()} - {"__init__"}
    placed = [name for row in ROWS for name in row]
    assert len(placed) == len(set(placed))
    assert parts == set(placed)


def test_imports_point_down() -> None:
    rank = {name: number for number, row in enumerate(ROWS) for name in row}
    wrong = []
    for found in IMPORTS:
        if not found.module.startswith("runner.") or found.part == "__init__":
            continue
        target = found.module.split(".")[1]
        if target != found.part and rank[target] >= rank[found.part]:
            wrong.append(f"{found.file}:{found.line} imports runner.{target}")
    assert not wrong


def test_the_package_itself_imports_nothing_until_a_name_is_used() -> None:
    own = [found for found in IMPORTS if found.file == "__init__.py"]
    assert {found.module for found in own if not found.typing_only} == {
        "importlib.import_module",
        "typing.TYPE_CHECKING",
        "typing.Any",
    }


@pytest.mark.parametrize("library", DOORS)
def test_a_library_has_one_door(library: str) -> None:
    users = {found.part for found in IMPORTS if found.module.split(".")[0] == library}
    assert users <= set(DOORS[library])


def test_every_door_is_in_use() -> None:
    used = {found.module.split(".")[0] for found in IMPORTS}
    assert used >= set(DOORS) - {"click"}


def test_the_helper_imports_only_itself_the_standard_library_and_re2() -> None:
    foreign = {
        found.module
        for found in IMPORTS
        if found.part == "helper"
        and not found.module.startswith("runner.helper.")
        and found.module.split(".")[0] not in {*sys.stdlib_module_names, "re2"}
    }
    assert not foreign


def test_what_would_make_an_idle_helper_large_is_not_imported_by_it() -> None:
    heavy = {"dataclasses", "enum", "pathlib", "logging", "asyncio", "inspect", "contextlib"}
    assert not {
        f"{found.file}:{found.line}"
        for found in IMPORTS
        if found.part == "helper" and found.module.split(".")[0] in heavy
    }


def attributes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def test_the_environment_is_read_in_few_places() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for path, tree in sources()
        if {"os.environ", "os.environb", "os.getenv"} & set(attributes(tree))
    }
    assert readers == READS_ENVIRONMENT


def test_nothing_prints_but_the_command_line() -> None:
    printers = {
        str(path.relative_to(ROOT))
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    assert printers <= PRINTS


def test_sql_is_in_the_store_alone() -> None:
    words = ("SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "CREATE TABLE")
    parts = {
        part_of(path)
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.lstrip().startswith(words)
    }
    assert parts == {"store"}
