"""`runner image`, `tools` and `doctor`: what calls run on."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli import interrupts
from runner.cli.exits import NO, OK
from runner.cli.interrupts import Interrupts
from runner.cli.options import (
    DefinitionFormat,
    Json,
    Quiet,
    Runtime,
    Tools,
    ToolSetName,
    Verbose,
    terminal_of,
)
from runner.cli.terminal import Progress, Terminal, one_line
from runner.cli.values import size

if TYPE_CHECKING:
    from runner.doctor import Check

IMAGES = ("sandbox", "toolbox")


# Images.


def build_image(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="sandbox or toolbox. Default: both.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Build even what is current, with today's packages.")
    ] = False,
    build_essential: Annotated[
        bool, typer.Option("--build-essential", help="Put a compiler and make into the sandbox.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Build the images that sessions are made of.

    Only what is missing or outdated. Sessions do so by themselves when they need to. Their
    base is Debian: from this Docker daemon, else a registry, else made of Debian's packages.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()

    async def work(interruption: Interrupts) -> int:
        from runner.docker_engine import DockerEngine
        from runner.images import build

        engine = DockerEngine(settings.docker_host)
        built = []
        try:
            with Progress(terminal) as progress:
                for one in IMAGES if name is None else (name,):
                    image = await build(
                        engine,
                        one,
                        on_line=progress.show,
                        force=force,
                        build_essential=build_essential and one == "sandbox",
                    )
                    built.append(image)
            interruption.finishing()
        finally:
            await engine.close()
        if terminal.as_json:
            terminal.print_json([asdict(image) for image in built])
            return OK
        for image in built:
            terminal.print(image.ref)
            terminal.say(f"{image.name} {'was built' if image.fresh else 'is current'}")
        return OK

    raise typer.Exit(interrupts.run(work, say=terminal.say))


def list_images(context: typer.Context, as_json: Json = False) -> None:
    """List the runner's own images.

    Those on this Docker daemon, outdated ones included. A session uses what is current.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read()

    async def work(interruption: Interrupts) -> int:
        from runner.docker_engine import DockerEngine
        from runner.images import built

        engine = DockerEngine(settings.docker_host)
        try:
            images = await built(engine)
        finally:
            await engine.close()
        if terminal.as_json:
            terminal.print_json([asdict(image) for image in images])
            return OK
        terminal.print_table(
            ("NAME", "CURRENT", "IMAGE", "SIZE", "CREATED"),
            [
                (
                    image.name,
                    "yes" if image.current else "no",
                    image.ref,
                    size(image.size_bytes),
                    image.created[:19].replace("T", " "),
                )
                for image in images
            ],
        )
        return OK

    raise typer.Exit(interrupts.run(work, say=terminal.say))


# Tools.


def tools(
    context: typer.Context,
    format_: Annotated[
        DefinitionFormat | None,
        typer.Option("--format", help="Print their definitions as JSON, as this API wants them."),
    ] = None,
    set_: Tools = ToolSetName.ROUSSEAU,
    as_json: Json = False,
) -> None:
    """List the tools, or print their definitions for a model."""
    from runner.tools import named_registry

    terminal = terminal_of(context)
    registry = named_registry(set_.value)
    if format_ is None and not terminal.as_json:
        terminal.print_table(
            ("TOOL", "WHAT IT DOES"), [(tool.name, tool.description) for tool in registry]
        )
        return
    terminal.print_json(registry.definitions((format_ or DefinitionFormat.ROUSSEAU).value))


# The doctor.

_STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}


def doctor(
    context: typer.Context,
    runtime: Runtime = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Check that sessions work here, and that limits hold.

    It starts containers and tries what an agent could try. Takes some seconds; exits with 1
    if something does not work.
    """
    from runner.settings import Settings

    terminal = terminal_of(context)
    settings = Settings.read(runtime=runtime)

    async def work(interruption: Interrupts) -> int:
        from runner.doctor import State, examine

        checks = []
        with Progress(terminal) as progress:
            async for check in examine(settings, on_line=progress.show):
                progress.pause()
                checks.append(check)
                if not terminal.as_json:
                    _print_check(terminal, check)
        interruption.finishing()
        states = [check.state for check in checks]
        failed, warned = states.count(State.FAILED), states.count(State.WARNING)
        if terminal.as_json:
            rows = [asdict(check) for check in checks]
            terminal.print_json({"ok": not failed, "checks": rows})
        terminal.say(f"{len(checks)} checks: {failed} failed, {warned} to look at")
        return NO if failed else OK

    raise typer.Exit(interrupts.run(work, say=terminal.say))


def _print_check(terminal: Terminal, check: "Check") -> None:
    state = str(check.state)
    line = one_line(f"{state:8} {check.name:18} {check.finding}")
    terminal.print_event(line, state, style=_STYLES[state])
    if check.advice:
        terminal.print(one_line(f"{'':27} → {check.advice}"))
