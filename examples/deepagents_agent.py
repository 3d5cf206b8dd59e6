"""An agent of LangChain's Deep Agents whose files and commands are those of a session.

Run it: python examples/deepagents_agent.py

The model is a script here, so that it runs without a key. Give `create_deep_agent` the name of
a real one, such as "anthropic:claude-sonnet-5-5", and leave the rest as it is.
"""

from collections.abc import Iterator
from typing import Any, Self

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall

from runner import Policy, Runner
from runner.integrations.deepagents import RousseauSandbox

POLICY = Policy.parse("""
mode: pattern
default: allow
deny:
  - {tool: bash, match: 'git\\s+push'}
reason: "pushing is for people; leave the branch as it is"
""")


class ScriptedModel(GenericFakeChatModel):
    """Says what it was told to say, whatever it is asked."""

    def bind_tools(self, tools: Any, **options: Any) -> Self:
        """It knows which tools it will call."""
        return self


def script() -> Iterator[AIMessage]:
    """What a model might do."""
    steps: list[tuple[str, dict[str, Any]]] = [
        (
            "write_file",
            {"file_path": "/workspace/greet.py", "content": 'print("hello from the sandbox")\n'},
        ),
        ("execute", {"command": "python3 greet.py"}),
        (
            "edit_file",
            {"file_path": "/workspace/greet.py", "old_string": "hello", "new_string": "goodbye"},
        ),
        ("grep", {"pattern": "goodbye", "path": "/workspace", "output_mode": "content"}),
        ("glob", {"pattern": "*.py", "path": "/workspace"}),
        ("read_file", {"file_path": "/workspace/greet.py"}),
        ("execute", {"command": "git push origin main"}),
    ]
    for number, (name, arguments) in enumerate(steps):
        call = ToolCall(name=name, args=arguments, id=f"call_{number}")
        yield AIMessage(content="", tool_calls=[call])
    yield AIMessage(content="It greets; pushing is left to you.")


def main() -> None:
    """Run it."""
    with Runner(POLICY, tools="extended") as runner, runner.session() as session:
        agent = create_deep_agent(
            model=ScriptedModel(messages=script()), backend=RousseauSandbox(session)
        )
        state = agent.invoke({"messages": [{"role": "user", "content": "Write a greeting."}]})
        for message in state["messages"][1:]:
            for call in getattr(message, "tool_calls", ()):
                print(f"> {call['name']} {call['args']}")
            if message.content:
                print(message.content)


if __name__ == "__main__":
    main()
