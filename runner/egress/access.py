"""What tools of the host see of a session's network: pages that they may fetch, and refusals."""

from dataclasses import dataclass
from typing import Protocol


class Refused(Exception):
    """The rules say no; the text is for whoever asked."""


class NotReached(Exception):
    """There is no connection; the text says why, for whoever asked for it."""


class NotAllowed(NotReached):
    """The name leads where nothing may be dialled."""

    def __init__(self, reason: str, rule: str | None = None):
        super().__init__(reason)
        self.rule = rule
        """The rule that refuses the address; None for what is built in."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came back for a URL."""

    url: str
    """Of the page itself, after redirects."""
    status: int
    reason: str
    """The status in the server's words; may be empty."""
    content_type: str
    body: bytes
    """As much of it as was wanted."""
    complete: bool
    """Whether that is all of it."""


class NetworkAccess(Protocol):
    """A session's network, as calls see it."""

    @property
    def refusals(self) -> int:
        """How many connections of the session's programs were refused so far."""

    def refused_since(self, refusals: int) -> tuple[str, ...]:
        """Why the last of these were refused: a few reasons, each once.

        Args:
            refusals: What `refusals` was at the start.
        """
        ...

    async def fetch(self, url: str, *, most_bytes: int, timeout_s: float) -> Fetched:
        """Fetch a page, under the rules that the session's programs are under.

        Args:
            url: An `https` URL.
            most_bytes: Of the body, what comes back.
            timeout_s: For all of it, redirects included.

        Raises:
            Refused: The rules say no, or it is no URL of that kind.
            NotReached: There is no connection, or no answer in time, or too many redirects.
        """
        ...
