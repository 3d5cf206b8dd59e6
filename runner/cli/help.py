"""`runner help`: what the help texts of single commands have no room for."""

import textwrap
from enum import StrEnum
from typing import Annotated

import typer

from runner.cli.exits import MEANINGS, NOTE
from runner.cli.options import Json, terminal_of

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings and rows."""


class Topic(StrEnum):
    """What there is help about."""

    EXIT_CODES = "exit-codes"
    SETTINGS = "settings"


def help_(
    context: typer.Context,
    topic: Annotated[
        Topic | None, typer.Argument(metavar="[TOPIC]", help="exit-codes or settings.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain exit codes or settings. For one command: `runner COMMAND --help`."""
    terminal = terminal_of(context)
    if topic is None:
        root = context.find_root()
        typer.echo(root.get_help())
        return
    columns, rows = _settings() if topic is Topic.SETTINGS else _exit_codes()
    if terminal.as_json:
        names = [column.lower() for column in columns]
        terminal.print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    terminal.print_table(columns, rows)
    if topic is Topic.EXIT_CODES:
        terminal.print("\n" + textwrap.fill(NOTE, 80))


def _exit_codes() -> Table:
    return ("STATUS", "MEANING"), [tuple(row) for row in MEANINGS]


def _settings() -> Table:
    from runner.settings import Limits, Settings

    rows: list[tuple[str, ...]] = []
    for prefix, model in (("RUNNER_", Settings), ("RUNNER_LIMITS__", Limits)):
        for name, field in model.model_fields.items():
            if name == "limits":
                continue
            default = "" if field.default_factory is not None else field.default
            rows.append(
                (
                    f"{prefix}{name.upper()}",
                    "" if default is None else str(default),
                    " ".join((field.description or "").split()),
                )
            )
    return ("VARIABLE", "DEFAULT", "MEANING"), rows
