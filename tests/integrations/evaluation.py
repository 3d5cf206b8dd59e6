"""An evaluation that uses what Inspect has for sandboxes; run as a process of its own, with the
directory for its logs. What came of it is JSON on standard output.

Inspect leaves streams to the garbage collector, and tests count warnings as errors.
"""

import json
import sys
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash, bash_session, python
from inspect_ai.util import sandbox

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("python", {"code": "import sys; print(len(sys.argv)); 1 / 0"}),
    ("bash_session", {"action": "type_submit", "input": "cat given.txt"}),
    ("bash", {"command": "cat given.txt"}),
]


@solver
def reads() -> Solver:
    """What a task's own code does."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        here = sandbox()
        state.metadata["setup"] = await here.read_file("made.txt")
        remote = await here.exec_remote(["cat", "given.txt"], stream=False)
        state.metadata["remote"] = remote.stdout
        return state

    return solve


def main(log_dir: str) -> None:
    """Run it."""
    outputs = [ModelOutput.for_tool_call("mockllm", *call) for call in CALLS]
    outputs.append(ModelOutput.from_content("mockllm", "Done."))
    for output in outputs:
        output.usage = ModelUsage()  # or else tokens would be counted, with files from the net
    tools = use_tools(python(), bash_session(), bash())
    task = Task(
        dataset=[Sample("Work.", files={"given.txt": "abc\n"}, setup="echo $0 > made.txt")],
        solver=[reads(), tools, generate()],
        sandbox="rousseau",
    )
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = evaluate(task, model=model, log_dir=log_dir, display="none")
    said: dict[str, Any] = {"status": log.status, "error": str(log.error)}
    for sample in log.samples or ():
        said |= sample.metadata
        said |= {str(one.function): one.text for one in sample.messages if one.role == "tool"}
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
