"""An agent of OpenAI's Agents SDK, sandboxed: its shell and its patches run in a locked container.

pip install "rousseau-runner[openai-agents]"
export OPENAI_API_KEY=…        # and OPENAI_BASE_URL for another endpoint
python examples/openai_agents_agent.py "Fix the bug in greet.py, and show that it is gone."
"""

import asyncio
import os
import sys

from agents import RunConfig
from agents import Runner as Agents
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.snapshot import NoopSnapshotSpec

from runner import AsyncRunner, Policy
from runner.integrations.openai_agents import RousseauSandboxClient

POLICY = Policy.parse("""
version: 1
mode: pattern
default: deny
reason: "this agent works with files and its shell"
allow:
  - {tool: [bash, read, write]}  # a rule for bash is for process_start and the like, too
deny:
  - {tool: bash, match: 'git push', justification: "pushing is for people"}
""")

BUG = b'def greet(name):\n    return "hello, {name}"\n\nprint(greet("world"))\n'


async def main(task: str) -> None:
    """Run a sandboxed agent; its sandbox is a session, which ends with the run."""
    async with AsyncRunner(POLICY, tools="extended") as runner:
        agent = SandboxAgent(
            "worker",
            model=os.environ.get("OPENAI_MODEL", "gpt-5.5"),
            instructions="You work on the files in /workspace.",
            default_manifest=Manifest(entries={"greet.py": File(content=BUG)}),
            capabilities=[Shell(), Filesystem()],
        )
        sandbox = SandboxRunConfig(
            client=RousseauSandboxClient(runner), snapshot=NoopSnapshotSpec()
        )
        config = RunConfig(sandbox=sandbox, tracing_disabled=True)
        answer = await Agents.run(agent, task, run_config=config)
        print(answer.final_output)


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "Fix greet.py."))
