"""A leash for each session of this process, made as the settings say."""

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runner.egress.credentials import Credentials
from runner.egress.dial import Dialler, SystemResolver
from runner.egress.streams import trusting
from runner.policy.network import NetworkRules
from runner.settings import Network, Settings

if TYPE_CHECKING:
    from runner.egress.interception import Interception
    from runner.egress.leash import ConnectionRecords, Leash

BUNDLE_PATH = "/tmp/.runner-certificates.pem"  # noqa: S108 - the container's
"""Where it keeps them. Calls can change it, and would only have themselves trust less or more."""
BUNDLE_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE"),
)
"""By which programs are told where the authorities are that they are to trust."""


class Leashes:
    """The leashes of all sessions.

    Args:
        settings: Limits, credentials, and whose HTTPS is opened.
        rules: The rules of the moment.
        records: Where connections are recorded.
        dialler: Makes connections; None: as this host does.

    Raises:
        ConfigurationError: A credential, or a host whose HTTPS is to be opened, can't be used.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        rules: Callable[[], NetworkRules],
        records: "ConnectionRecords",
        dialler: Dialler | None = None,
    ):
        self._settings = settings
        self._rules = rules
        self._records = records
        self._resolver = SystemResolver()
        self._dialler = dialler or Dialler(self._resolver)
        self._credentials = Credentials(settings.credentials)
        if settings.intercept:
            _interception(settings.intercept)  # now, rather than with the first session
        self._trusted = trusting() if settings.network != "none" else None
        self._leashes: weakref.WeakKeyDictionary[Any, Leash] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakSet[Leash] = weakref.WeakSet()
        """All that have something to do yet, whoever held their sessions."""

    def of(self, holder: object, session_id: str, network: Network) -> "Leash | None":
        """The leash of a session; None where it has no network.

        Args:
            holder: Who holds the session: the leash lives as long.
            session_id: Whose it is.
            network: What its programs reach.
        """
        if network == "none":
            return None
        leash = self._leashes.get(holder)
        if leash is None:
            # What speaks HTTP is loaded for the first session that has a network: few have one.
            from runner.egress.leash import Leash, LeashLimits

            settings = self._settings
            leash = self._leashes[holder] = Leash(
                session_id,
                rules=self._rules,
                everything=network == "open",
                records=self._records,
                dialler=self._dialler,
                limits=LeashLimits(
                    max_connections=settings.max_connections,
                    max_connection_s=settings.max_connection_s,
                    max_transfer_bytes=settings.max_transfer_bytes,
                ),
                credentials=self._credentials,
                interception=_interception(settings.intercept) if settings.intercept else None,
                trusted=self._trusted,
            )
            self._made.add(leash)
        return leash

    async def close(self) -> None:
        """End all connections of all sessions."""
        for leash in list(self._made):
            await leash.close()
        self._resolver.close()


def bundle_environment() -> Mapping[str, str]:
    """Variables that have programs trust the authorities in the file at `BUNDLE_PATH`."""
    return dict.fromkeys(BUNDLE_VARIABLES, BUNDLE_PATH)


def _interception(hosts: tuple[str, ...]) -> "Interception":
    # Certificates take a large library, and few need any.
    from runner.egress.interception import Interception

    return Interception(hosts)
