"""The extended set: the five with more optional inputs, and tools beside them.

Names of the five stay the names of what does the same, so that policies written for them go
on governing. A tool without its additional inputs does what the one of the five does.
"""

from runner.tools.base import Tool
from runner.tools.extended.bash import BashTool
from runner.tools.extended.edit import EditTool
from runner.tools.extended.glob import GlobTool
from runner.tools.extended.list import ListTool
from runner.tools.extended.multi_edit import MultiEditTool
from runner.tools.extended.processes import (
    ProcessKillTool,
    ProcessListTool,
    ProcessPollTool,
    ProcessStartTool,
    ProcessWriteTool,
)
from runner.tools.extended.read import ReadTool
from runner.tools.extended.shell import ShellTool
from runner.tools.extended.write import WriteTool
from runner.tools.grep import GrepTool
from runner.tools.http_get import HttpGetTool

__all__ = [
    "BashTool",
    "EditTool",
    "GlobTool",
    "ListTool",
    "MultiEditTool",
    "ProcessKillTool",
    "ProcessListTool",
    "ProcessPollTool",
    "ProcessStartTool",
    "ProcessWriteTool",
    "ReadTool",
    "ShellTool",
    "WriteTool",
    "extended_tools",
]


def extended_tools() -> tuple[Tool, ...]:
    """All of them, in the order in which they are shown."""
    return (
        ReadTool(),
        WriteTool(),
        EditTool(),
        MultiEditTool(),
        GrepTool(),
        GlobTool(),
        ListTool(),
        BashTool(),
        ShellTool(),
        ProcessStartTool(),
        ProcessPollTool(),
        ProcessWriteTool(),
        ProcessKillTool(),
        ProcessListTool(),
        HttpGetTool(),
    )
