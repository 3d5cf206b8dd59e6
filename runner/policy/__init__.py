"""May this call run? A policy is a file of rules and one pure function over them.

    document   YAML → what is written, with lines
    matching   what a rule looks at: the call as JSON, patterns, conditions
    rules      rules in order → a decision
    policy     Policy: the three put together, and where policies come from
    lint       what in a policy has no effect; language and shapes prove it

The policy is a filter over calls as they are written. It is not what keeps a command in:
that is the container.
"""

from runner.policy.lint import PolicyWarning
from runner.policy.policy import DENY_EVERYTHING, Policy

__all__ = ["DENY_EVERYTHING", "Policy", "PolicyWarning"]
