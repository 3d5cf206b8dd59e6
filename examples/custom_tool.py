"""A tool that is not one of the five: a class, and one call of `register`.

Run it: python examples/custom_tool.py
"""

import json

from runner import Outcome, Policy, Runner, Status, Tool, ToolContext
from runner.answers import RequestFailed
from runner.tools import AbsolutePath, ToolInput

POLICY = Policy.parse("{mode: pattern, allow: [{tool: outline}, {tool: write}]}")

OUTLINE = """
import ast, sys
for node in ast.walk(ast.parse(sys.stdin.buffer.read())):
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        print(node.lineno, type(node).__name__, node.name)
"""

SAMPLE = """\
class Greeter:
    def greet(self, name):
        return f"hello, {name}"
"""


class OutlineInput(ToolInput):
    """What the model may say. The docstring of a field is its description in the schema."""

    path: AbsolutePath
    """Absolute path to a Python file."""


class OutlineTool(Tool):
    """Lists the classes and functions of a Python file."""

    name = "outline"
    description = "List the classes and functions of a Python file, with their lines."
    input = OutlineInput

    async def execute(self, context: ToolContext, input: OutlineInput, /) -> Outcome:
        """Read the file and take it apart, both in the container: its content is hostile."""
        try:
            source = await context.sandbox.read(
                input.path, limit_bytes=context.limits.read_limit_bytes
            )
        except RequestFailed as failure:
            return Outcome(error=f"outline: {failure.detail}", status=Status.FAILED)
        result = await context.sandbox.run(
            ["python3", "-c", OUTLINE], deadline_s=context.deadline_s, stdin=source
        )
        text = result.output.decode(errors="replace")
        if result.exit_code != 0:
            return Outcome(output=text, error="outline: not Python", status=Status.FAILED)
        return Outcome(output=text)


def main() -> None:
    """Register the tool, show what a model is told of it, and call it."""
    with Runner(policy=POLICY) as runner:
        runner.tools.register(OutlineTool())
        print(json.dumps(runner.tools.definitions("anthropic")[-1], indent=2))
        with runner.session() as session:
            session.write("/workspace/greeter.py", SAMPLE)
            print(session.call("outline", {"path": "/workspace/greeter.py"}).text)
            print(session.call("outline", {"path": "/workspace/missing.py"}).text)
            # Schema and policy hold for it as they do for the others.
            print(session.call("outline", {"path": "greeter.py"}).text)
            print(session.bash("python3 greeter.py").text)


if __name__ == "__main__":
    main()
