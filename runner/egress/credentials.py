"""Secrets that the host adds to requests: which request gets which, decided without I/O.

A value is in the request that goes out and nowhere else: it is in no record, log or error. What
a server answers goes to the container as it is; a server that repeats it gives it away.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.errors import ConfigurationError
from runner.policy.matching import PatternError
from runner.policy.network import Asked, Host, NotAHost, fits_paths, read_host
from runner.policy.paths import Glob
from runner.settings import Credential

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\Z")
_ECHOES = frozenset({"CONNECT", "TRACE", "TRACK"})
"""Methods whose answer is the request, or that hide what follows."""
_NEVER = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"}
)


@dataclass(frozen=True, slots=True)
class Added:
    """A header to set."""

    credential: str
    """The name that its settings give it."""
    header: bytes
    """In lower case."""
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Compiled:
    host: Host
    ports: tuple[int, ...]
    methods: frozenset[str]
    paths: tuple[Glob, ...]
    plain_http: bool
    added: Added


class Credentials:
    """The credentials of the settings.

    Args:
        given: By name.

    Raises:
        ConfigurationError: One can't be used. The error does not show its value.
    """

    def __init__(self, given: Mapping[str, Credential]):
        self._all = tuple(_compile(name, one) for name, one in given.items())

    def for_request(self, asked: Asked, *, secure: bool) -> Added | None:
        """The one that a request gets, the first that is for it; None for none.

        Args:
            asked: The request, with its method and path.
            secure: It goes out in TLS.
        """
        if not asked.method or asked.method.upper() in _ECHOES:
            return None
        for one in self._all:
            if (
                one.host == asked.host
                and asked.port in one.ports
                and (secure or one.plain_http)
                and (not one.methods or asked.method in one.methods)
                and (not one.paths or fits_paths(one.paths, asked.path))
            ):
                return one.added
        return None


def _compile(name: str, given: Credential) -> _Compiled:
    what = f"credentials.{name}"
    try:
        host = read_host(given.host)
    except NotAHost as error:
        raise ConfigurationError(f"{what}.host: {error}") from None
    value = given.value.get_secret_value()
    if not _TOKEN.match(given.header) or given.header.lower() in _NEVER:
        raise ConfigurationError(f"{what}.header: no header that can be set")
    if not _VALUE.match(value):
        raise ConfigurationError(
            f"{what}.value: a header's value is printable ASCII without blanks around it"
        )
    try:
        paths = tuple(Glob.compile(path) for path in given.paths)
    except PatternError as error:
        raise ConfigurationError(f"{what}.paths: {error}") from None
    return _Compiled(
        host=host,
        ports=given.ports,
        methods=frozenset(method.upper() for method in given.methods),
        paths=paths,
        plain_http=given.plain_http,
        added=Added(name, given.header.lower().encode(), value.encode()),
    )
