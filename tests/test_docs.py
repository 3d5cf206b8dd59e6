"""What the documentation says in tables is what the code does, and its links lead somewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import runner
from runner import tools
from runner.cli.exits import MEANINGS
from runner.errors import EXITS
from runner.helper import wire
from runner.settings import Limits, Settings
from runner.tools.extended import extended_tools

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda page: page.as_posix()
)

Rows = list[tuple[str, ...]]


def page(name: str) -> str:
    """A page's text."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no heading {heading!r}"
    return found[1]


def table(text: str) -> Rows:
    """The rows of the first table in a text, without its headings; none where there is none."""
    found = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)*)", text, re.MULTILINE)
    lines = found[1].splitlines() if found else []
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


def names(rows: Rows) -> list[str]:
    """The first cells of rows, without what makes them code."""
    return [row[0].strip("`") for row in rows]


# The protocol.

KINDS = {name: number for name, number in vars(wire.Kind).items() if name.isupper()}


def test_the_protocol_lists_every_kind_of_frame_with_its_number() -> None:
    headings = re.findall(r"^### ([A-Z]+) (\d+)$", page("docs/protocol.md"), re.MULTILINE)

    assert {name: int(number) for name, number in headings} == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_protocol_lists_the_fields_of_each_kind(kind: str) -> None:
    described = section(page("docs/protocol.md"), f"{kind} {KINDS[kind]}")

    assert names(table(described)) == list(wire.SCHEMA[KINDS[kind]])


@pytest.mark.parametrize("kind", KINDS)
def test_the_protocol_says_who_sends_a_kind(kind: str) -> None:
    described = section(page("docs/protocol.md"), f"{kind} {KINDS[kind]}")
    number = KINDS[kind]

    if number in wire.FROM_HOST and number in wire.FROM_HELPER:
        assert "Both ways" in described
    else:
        assert ("From the host" in described) == (number in wire.FROM_HOST)
        assert ("From the helper" in described) == (number in wire.FROM_HELPER)


def test_the_protocol_lists_every_reason_of_a_failure() -> None:
    described = section(page("docs/protocol.md"), f"FAILED {wire.Kind.FAILED}")
    listed = described.split("\n\n")[-2]

    assert set(re.findall(r"`(\w+)`", listed)) == wire.FAILURES


# Errors and exit statuses.


def test_the_readme_lists_the_exit_statuses_as_the_command_explains_them() -> None:
    rows = table(section(page("README.md"), "Exit statuses"))

    assert [(status.strip("`"), meaning) for status, meaning in rows] == [
        tuple(meaning) for meaning in MEANINGS
    ]


def test_the_architecture_lists_every_error_with_its_exits() -> None:
    rows = table(section(page("docs/architecture.md"), "Errors"))

    assert [(code.strip("`"), *map(int, exits)) for code, *exits in rows] == [
        (code, *exits) for code, exits in EXITS.items()
    ]


def test_the_architecture_names_every_module() -> None:
    text = page("docs/architecture.md")
    package = Path(runner.__file__).parent
    modules = [*package.glob("*.py"), *(package / "helper").glob("*.py"), *package.glob("*/")]
    named = {module.stem for module in modules if not module.stem.startswith("__")} - {"version"}

    assert [name for name in sorted(named) if not re.search(rf"`(helper/)?{name}[`/]", text)] == []


# Settings.


def documented(fields: dict[str, FieldInfo], prefix: str) -> Iterator[tuple[str, ...]]:
    for name, field in fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from documented(field.annotation.model_fields, f"{name}.")
            continue
        default = "" if field.default_factory or field.default in (None, "") else field.default
        meaning = " ".join((field.description or "").split())
        yield f"`{prefix}{name}`", f"`{default}`" if default != "" else "", meaning


def test_the_settings_page_lists_every_setting_with_its_default_and_meaning() -> None:
    rows = table(section(page("docs/settings.md"), "All settings"))

    assert rows == list(documented(Settings.model_fields, ""))


def test_the_readme_says_the_limits_that_sessions_have() -> None:
    rows = {row[0]: row[1] for row in table(section(page("README.md"), "Limits"))}
    limits, settings = Limits(), Settings.model_fields

    assert rows["memory, without swap"] == f"{limits.memory_bytes // 1024**2} MiB"
    assert rows["processors"] == f"{limits.cpus:g}"
    assert rows["processes and threads"] == f"{limits.pids}"
    assert rows["open files of a process"] == f"{limits.nofile}"
    assert rows["largest file that is written"] == f"{limits.file_size_bytes // 1024**3} GiB"
    assert rows["`/tmp`, in memory"] == f"{limits.tmp_bytes // 1024**2} MiB"
    assert rows["home directory, in memory"] == f"{limits.home_bytes // 1024**2} MiB"
    assert rows["a call"] == f"{settings['timeout_s'].default:g} s"
    assert rows["a call's output"] == f"{settings['output_limit_bytes'].default // 1024**2} MiB"
    assert rows["a file that is read"] == f"{settings['read_limit_bytes'].default // 1024**2} MiB"
    assert rows["a call's input"] == f"{tools.MAX_INPUT_BYTES:,} bytes"
    assert rows["a session that nobody uses"] == (
        f"{settings['idle_timeout_s'].default / 60:g} minutes"
    )
    assert rows["a session"] == f"{settings['ttl_s'].default / 3600:g} hours"


# Tools.


DESCRIBED = [
    *((tool, tool.name) for tool in tools.builtin_tools()),
    *(
        (
            tool,
            {
                "read": "read with ranges, images and bytes",
                "write": "write with bytes",
                "edit": "edit with replace_all",
                "bash": "bash with more",
            }.get(tool.name, tool.name),
        )
        for tool in extended_tools()
    ),
]
"""Tools, and the headings on the tools page that they are under."""


@pytest.mark.parametrize(("tool", "heading"), DESCRIBED, ids=[heading for _, heading in DESCRIBED])
def test_the_tools_page_lists_the_properties_of_each_tool(tool: tools.Tool, heading: str) -> None:
    rows = table(section(page("docs/tools.md"), heading))
    schema = tool.input.model_json_schema()

    assert names(rows) == list(schema["properties"])
    for name, type_, _ in rows:
        property_ = name.strip("`")
        assert type_.split(",")[0] == schema["properties"][property_]["type"]
        assert ("required" in type_) == (property_ in schema.get("required", []))


# Code and links.


def code_blocks(name: str) -> list[str]:
    """The Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_python_in_a_page_is_python_and_imports_what_there_is(name: str) -> None:
    for block in code_blocks(name):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module in ("runner", "runner.tools"):
                there = runner.__all__ if node.module == "runner" else tools.__all__
                assert {alias.name for alias in node.names} <= set(there)


@pytest.mark.docker
def test_the_readmes_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(ROOT)
    (block,) = code_blocks("README.md")
    shown: list[object] = []

    exec(compile(block, "README.md", "exec"), {"print": lambda *values: shown.extend(values)})

    assert "hello" in str(shown[0])
    assert "denied" in map(str, shown)


def anchor(heading: str) -> str:
    """What a link to a heading ends with, as GitHub makes it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
    return kept.replace(" ", "-")


def without_code(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page(name))):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, fragment = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        assert file.exists(), f"{name} links to {target}"
        if fragment:
            headings = re.findall(
                r"^#+ (.+)$", without_code(file.read_text(encoding="utf-8")), re.MULTILINE
            )
            assert fragment in map(anchor, headings), f"{name} links to {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        file = waiting.pop()
        if file in reached:
            continue
        reached.add(file)
        for target in re.findall(r"\]\(([^)\s#]+)", without_code(file.read_text(encoding="utf-8"))):
            if target.endswith(".md") and "://" not in target:
                waiting.append((file.parent / target).resolve())

    assert reached == set(PAGES)


def test_the_changelog_has_a_section_for_this_version() -> None:
    assert re.search(rf"^## {re.escape(runner.__version__)}\b", page("CHANGELOG.md"), re.MULTILINE)


def test_the_makefiles_help_lists_the_targets_that_the_contributors_page_lists() -> None:
    targets = re.findall(r"^([a-z]+):.*## ", page("Makefile"), re.MULTILINE)

    assert names(table(section(page("CONTRIBUTING.md"), "Set-up"))) == [
        f"make {target}" for target in targets if target != "help"
    ]
