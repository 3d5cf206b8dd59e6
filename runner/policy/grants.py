"""A single rule that a person allows for the rest of a session, where the policy asks.

Owns how such a rule is read, kept and judged. It is written like a rule of a policy's `allow`
list and means what it would mean there: a policy of this rule and nothing else allows exactly
the calls that it covers. Where it may be applied is not decided here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import yaml

from runner.errors import PolicyError
from runner.model import Verdict
from runner.policy.matching import exactly
from runner.policy.nodes import flow
from runner.policy.policy import Policy

SOURCE = "the pattern"
"""What it is called in errors."""
MAX_TEXT = 100_000
"""Characters. A real one has a hundred."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A rule such as `{tool: bash, command: '^git push'}`. Build one with `of` or `parse`."""

    text: str
    """The rule as JSON of printable ASCII, which is YAML too: `parse` reads it."""
    policy: Policy = field(repr=False, compare=False)
    """The policy of this rule alone."""

    @classmethod
    def of(cls, rule: Mapping[str, Any]) -> Self:
        """The grant of a rule that is at hand as a mapping.

        Raises:
            PolicyError: It is not a rule that an `allow` list could hold, or has a `rate`,
                which is a policy's to give.
        """
        if "rate" in rule:
            raise PolicyError("a pattern has no `rate`; leave it out", source=SOURCE)
        try:
            text = flow(dict(rule))
        except (TypeError, ValueError, RecursionError) as error:
            raise PolicyError(
                f"it holds what is no text, list or mapping: {error}", source=SOURCE
            ) from None
        document = f'{{"version": 1, "mode": "pattern", "default": "deny", "allow": [{text}]}}'
        return cls(text, Policy.parse(document, SOURCE))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The grant of a rule that is written in YAML or JSON.

        Raises:
            PolicyError: It is neither, or as for `of`.
        """
        if len(text) > MAX_TEXT:
            raise PolicyError(f"it is longer than {MAX_TEXT} characters", source=SOURCE)
        try:
            rule = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
            problem = " ".join(str(error).split())
            raise PolicyError(f"not YAML: {problem}", source=SOURCE) from None
        if not isinstance(rule, dict):
            raise PolicyError(
                "it must be a rule such as {tool: bash, command: '^git push'}", source=SOURCE
            )
        return cls.of(rule)

    def covers(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        canonical: str | None = None,
        *,
        resolved: str | None = None,
    ) -> bool:
        """Whether a call is one of those that it is for; the arguments are `Policy.decide`'s."""
        decision = self.policy.decide(tool, arguments, canonical, resolved=resolved)
        return decision.verdict is Verdict.ALLOW


def exact_rule(tool: str, canonical: str) -> dict[str, str]:
    """The rule for one call and no other.

    Args:
        tool: The tool's name.
        canonical: Its arguments as canonical JSON.
    """
    return {"tool": tool, "match": exactly(canonical)}
