"""The library in thirty seconds: a session, some calls, one that is denied.

Run it: python examples/library.py
"""

from runner import Policy, Runner

POLICY = Policy.parse("""
mode: pattern
default: allow
deny:
  - {tool: bash, match: 'git\\s+push'}
reason: "pushing is for people; leave the branch as it is"
""")


def main() -> None:
    """Run it."""
    # `workspace="."` would show the current directory at /workspace; this one is empty.
    with Runner(policy=POLICY) as runner, runner.session() as session:
        session.write("/workspace/greet.py", 'print("hello from", __file__)\n')
        result = session.bash("python3 greet.py; exit 3")
        print(result.text)  # what the model is shown: the output, then the error
        print(result.status, result.exit_code)

        # The model's own JSON will do as well.
        print(session.call("bash", '{"command": "git push origin main"}').text)

        for event in session.stream("bash", {"command": "for n in 1 2 3; do echo $n; done"}):
            print(event)  # Output(text=…) as it comes, then the ToolResult


if __name__ == "__main__":
    main()
