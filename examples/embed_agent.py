"""An agent of your own: a model, a loop, and tools that run in a locked container.

Any endpoint that speaks OpenAI's chat completions will do:

    export OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_API_KEY=… OPENAI_MODEL=…
    python examples/embed_agent.py --workspace . "Which tests are slow, and why?"

It writes and edits files only after asking here, on the terminal.
"""

import argparse
import json
import os
import sys
from typing import Any

import httpx2

from runner import Answer, ApprovalRequest, Approve, Deny, Policy, Runner, Session

POLICY = Policy.parse("""
version: 1
mode: pattern
default: deny
reason: "this agent has no such tool"
allow:
  - {tool: read}
  - {tool: grep}
  - {tool: bash}
ask:
  - {tool: write, justification: "changes to files are shown to a person first"}
  - {tool: edit, justification: "changes to files are shown to a person first"}
deny:
  - {tool: bash, match: 'git push', justification: "pushing is for people"}
""")

SYSTEM = "You work on the files in /workspace with the tools you have. Say what you found, briefly."
MAX_STEPS = 30


def ask(request: ApprovalRequest) -> Answer:
    """Show a call to the person at the terminal: in ASCII, so that nothing in it can hide."""
    print(f"? {request.tool} {json.dumps(request.arguments)}\n  run it? [y/N] ", end="", flush=True)
    said = sys.stdin.readline().strip().lower()
    return Approve() if said in ("y", "yes") else Deny("the person at the terminal said no")


def work(model: httpx2.Client, name: str, runner: Runner, session: Session, task: str) -> str:
    """Let the model use tools until it has something to say."""
    tools = runner.tools.definitions("openai")
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    for _ in range(MAX_STEPS):
        body = {"model": name, "messages": messages, "tools": tools}
        answer = model.post("chat/completions", json=body).raise_for_status().json()
        reply = answer["choices"][0]["message"]
        messages.append(reply)
        if not reply.get("tool_calls"):
            return str(reply["content"])
        for call in reply["tool_calls"]:
            function = call["function"]
            # The model's own JSON, as it is: what does not fit the schema comes back as an error.
            result = session.call(function["name"], function["arguments"])
            print(f"> {function['name']} {function['arguments']!a} [{result.status}]")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.text})
    return f"no answer after {MAX_STEPS} steps"


def main() -> None:
    """Read the arguments, open a session, work."""
    environment = os.environ.get
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    parser.add_argument("--workspace", help="the directory to work on; without, an empty one")
    parser.add_argument("--model", default=environment("OPENAI_MODEL", "gpt-5.5"))
    parser.add_argument(
        "--base-url", default=environment("OPENAI_BASE_URL", "https://api.openai.com/v1")
    )
    options = parser.parse_args()
    key = {"Authorization": f"Bearer {environment('OPENAI_API_KEY', '')}"}
    with (
        httpx2.Client(base_url=options.base_url, headers=key, timeout=600) as model,
        Runner(policy=POLICY, approver=ask) as runner,
        runner.session(workspace=options.workspace) as session,
    ):
        print(work(model, options.model, runner, session, options.task))


if __name__ == "__main__":
    main()
