"""May this call run? A policy is a file of rules and one pure function over them.

    nodes      YAML → values that are checked one by one
    document   YAML → what is written, with lines
    matching   what a rule looks at: the call as JSON, its texts, its path
    paths      globs, and the files that are protected
    shell      a script → its simple commands, what it writes, what nobody can tell
    programs   what is known of programs: wrappers, harmless flags, what runs unseen code
    commands   patterns over simple commands
    rules      rules in order → a judgement
    network    what a session's programs may connect to
    policy     Policy: all of it put together, and where policies come from
    source     the policy of the moment, read anew when its file changes
    lint       what in a policy has no effect or gives much away; language and shapes prove it
    explain    how a verdict came about
    trial      a policy tried on cases and on recorded calls
    starting   a first policy, made of recorded calls

The policy is a filter over calls as they are written. It is not what keeps a command in:
that is the container.
"""

from runner.policy.lint import PolicyWarning
from runner.policy.policy import DENY_EVERYTHING, Policy
from runner.policy.rules import Item, Judgement, Rate
from runner.policy.source import FixedPolicy, PolicyFile, PolicySource

__all__ = [
    "DENY_EVERYTHING",
    "FixedPolicy",
    "Item",
    "Judgement",
    "Policy",
    "PolicyFile",
    "PolicySource",
    "PolicyWarning",
    "Rate",
]
