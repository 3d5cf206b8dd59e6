"""An agent of pydantic-ai whose tools run in a locked container, and ask before they write.

pip install "rousseau-runner[pydantic-ai]" openai
export OPENAI_API_KEY=…        # and OPENAI_BASE_URL for another endpoint
python examples/pydantic_ai_agent.py "Write a haiku to /workspace/haiku.txt."
"""

import asyncio
import os
import sys

from pydantic_ai import Agent

from runner import Answer, ApprovalRequest, Approve, AsyncRunner, Deny, Policy
from runner.integrations.pydantic_ai import SessionToolset

POLICY = Policy.parse("""
version: 1
mode: pattern
default: deny
reason: "this agent has no such tool"
allow:
  - {tool: [bash, read, grep, glob, list]}
ask:
  - {tool: [write, edit], justification: "a person looks at every change"}
""")


def ask(request: ApprovalRequest) -> Answer:
    """Whoever sits at the terminal decides. The call, and the agent's run, wait."""
    print(f"? {request.tool} {request.canonical!a}\n  run it? [y/N] ", end="", flush=True)
    return Approve() if sys.stdin.readline().strip() == "y" else Deny("the person said no")


async def main(task: str) -> None:
    """Give an agent the session's tools, and a task."""
    async with (
        AsyncRunner(POLICY, approver=ask, tools="extended") as runner,
        runner.session() as session,
    ):
        agent = Agent(
            f"openai-chat:{os.environ.get('OPENAI_MODEL', 'gpt-5.5')}",
            instructions="You work on the files in /workspace.",
            toolsets=[SessionToolset(session)],
        )
        answer = await agent.run(task)
        print(answer.output)


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "What is in /workspace?"))
