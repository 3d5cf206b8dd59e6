"""An evaluation of Inspect whose samples run in sessions of the runner.

Run it: python examples/inspect_eval.py

The model is a script here, so that it runs without a key. In a task file of your own,
`inspect eval task.py --model … --sandbox rousseau` does the same with a real one.
"""

import tempfile
from collections.abc import Iterator
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.approval import ApprovalPolicy
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python, text_editor
from inspect_ai.util import SandboxEnvironmentSpec

from runner.integrations.inspect import RousseauConfig, rousseau

MODEL = "mockllm/model"


def task() -> Task:
    """Two tools' worth of work, and one command that nobody approves."""
    return Task(
        dataset=[
            Sample(
                input="What is in the file, twice?",
                target="42",
                files={"number.txt": "21\n"},
                setup="chmod 400 number.txt",
            )
        ],
        solver=[use_tools(bash(timeout=30), python(timeout=30), text_editor()), generate()],
        scorer=includes(),
        sandbox=SandboxEnvironmentSpec("rousseau", RousseauConfig(network="none")),
        # What the model asks for is judged by a policy; what Inspect itself does is not.
        approval=[ApprovalPolicy(rousseau("developer"), "*")],
    )


def script() -> Iterator[ModelOutput]:
    """What a model might do."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("bash", {"command": "cat number.txt"}),
        (
            "text_editor",
            {"command": "create", "path": "/workspace/twice.py", "file_text": "print(2 * 21)"},
        ),
        ("bash", {"command": "python3 twice.py"}),
        ("bash", {"command": "sudo reboot"}),
    ]
    outputs = [ModelOutput.for_tool_call(MODEL, name, arguments) for name, arguments in calls]
    outputs.append(ModelOutput.from_content(MODEL, "The number, twice, is 42."))
    for output in outputs:
        output.usage = ModelUsage()  # or else the tokens would be counted, with files from the net
        yield output


def main() -> None:
    """Run it."""
    model = get_model(MODEL, custom_outputs=script())
    with tempfile.TemporaryDirectory() as logs:
        (log,) = eval(task(), model=model, log_dir=logs, display="none")
        assert log.samples, log.error
        (sample,) = log.samples
    for message in sample.messages:
        if message.role == "tool":
            said = message.error.message if message.error else message.text
            print(f"> {message.function}: {said.strip()}")
    print(log.status, *(score.value for score in (sample.scores or {}).values()))


if __name__ == "__main__":
    main()
