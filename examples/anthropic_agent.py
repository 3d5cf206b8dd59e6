"""Claude with its own tools, bash and the text editor, which run in a locked container.

pip install "rousseau-runner[anthropic]"
export ANTHROPIC_API_KEY=…
python examples/anthropic_agent.py "Write a program that prints the first ten primes; run it."
"""

import asyncio
import os
import sys

from anthropic import AsyncAnthropic

from runner import AsyncRunner, Policy
from runner.integrations.anthropic import bash_tool, text_editor_tool

POLICY = Policy.parse("""
version: 1
mode: pattern
default: deny
reason: "this agent works with its shell and its editor"
allow:
  - {tool: [shell, read, list, write, edit]}
deny:
  - {tool: shell, match: 'pip install', justification: "there is no network; use what is there"}
""")


async def main(task: str) -> None:
    """Run the SDK's own loop until the model has nothing to use any more."""
    async with (
        AsyncAnthropic() as client,
        AsyncRunner(POLICY, tools="extended") as runner,
        runner.session() as session,
    ):
        turns = client.beta.messages.tool_runner(
            model=os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-5-5"),
            max_tokens=8000,
            tools=[bash_tool(session), text_editor_tool(session, max_characters=30_000)],
            messages=[{"role": "user", "content": task}],
        )
        async for message in turns:
            for block in message.content:
                if block.type == "text":
                    print(block.text)
                elif block.type == "tool_use":
                    print(f"> {block.name} {block.input!a}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "What is in /workspace?"))
