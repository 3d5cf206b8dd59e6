"""What whoever carries bytes out may ask for.

The `Way` is the leash as the protocols see it, so that a proxy can be tried on a fake one.
"""

import ssl
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from runner.egress.access import Refused
from runner.egress.credentials import Added
from runner.egress.streams import Stream
from runner.policy.network import Asked, NetworkDecision
from runner.policy.network import Protocol as AskedBy

if TYPE_CHECKING:
    from runner.egress.interception import Interception


class Way(Protocol):
    """The way out of a session."""

    @property
    def interception(self) -> "Interception | None":
        """What opens the HTTPS of some hosts; None: of none."""

    @property
    def trusted(self) -> ssl.SSLContext:
        """What certificates of servers are checked by."""
        ...

    def judge(self, asked: Asked) -> NetworkDecision:
        """What the rules of the moment say."""
        ...

    def line(self, asked: Asked, *, credential: str = "") -> AbstractAsyncContextManager[Stream]:
        """A connection, judged and recorded. Raises `Refused`, `NotReached`, `StreamBroken`."""
        ...

    def credential(self, asked: Asked, *, secure: bool) -> Added | None:
        """What is to be added to a request."""
        ...

    def refused(self, asked: Asked, reason: str, *, rule: str | None = None) -> Refused:
        """Record a refusal; the error to raise for it."""
        ...

    def note_refusal(
        self,
        protocol: AskedBy,
        reason: str,
        *,
        asked: Asked | None = None,
        rule: str | None = None,
    ) -> None:
        """Record a refusal, of something that could not even be read where `asked` is None."""
