"""What a session's programs may connect to: rules over hosts, ports, methods and paths. Pure.

A name is judged as it is asked for, before anybody looks it up: a name that is refused is never
resolved, because the question alone would carry data out. Which addresses may be dialled for a
name that is allowed is `egress.addresses`' matter; a rule says which private ones it means.

Names are compared in ASCII and lower case, as certificates have them. What looks like an
address in disguise (`0x7f.1`, `2130706433`, `127.1`) is neither a name nor an address here.
"""

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from runner.errors import PolicyError
from runner.model import Verdict
from runner.policy.matching import PatternError, looks_encoded, normalise
from runner.policy.network_text import NetworkExampleText, NetworkRuleText, NetworkText
from runner.policy.paths import Glob

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressRange = ipaddress.IPv4Network | ipaddress.IPv6Network
Host = str | ipaddress.IPv4Address | ipaddress.IPv6Address
"""A name in lower case without a dot at its end, or an address."""
Protocol = Literal["connect", "socks5", "http", "tool"]

MAX_NAME_CHARACTERS = 253
"""Of a host name, as the domain name system has it."""
MAX_PATH_CHARACTERS = 4096
"""Of a path that rules look at: each of them takes its time over it."""
SHOWN_RULES = 20
"""How many of the rules a refusal lists."""
SHOWN_CHARACTERS = 200
"""Of a path in a refusal, and of a rule."""
DEFAULT_PORTS = (443,)
PATH_MEMORY_BYTES = 1024**2
"""What one pattern for paths may take, its caches included."""

_METHOD = re.compile(r"[A-Za-z][A-Za-z-]*\Z")
_LABEL = re.compile(r"[a-z0-9_-]{1,63}\Z")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
"""IPv4 addresses as IPv6 has them. None is ever seen here so: `read_host` takes them for what
they are."""
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")


class NotAHost(ValueError):
    """A text that names no host; it says why, in words for whoever wrote it."""


def read_host(text: str) -> Host:
    """The host that a text names: the only reading of it that there is here.

    Raises:
        NotAHost: It is neither a name in ASCII nor an address as it is usually written.
    """
    if len(text) > MAX_NAME_CHARACTERS + 2:  # brackets, or a dot at the end
        raise NotAHost("the name is too long")
    if "://" in text:
        raise NotAHost(f"{text!r} is a URL: write its host alone")
    if not text.isascii():
        raise NotAHost(f"{text!r} is not ASCII; such a name is written with xn--")
    if text.startswith("[") and text.endswith("]"):
        return _address_v6(text[1:-1])
    if ":" in text:
        return _address_v6(text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.match(labels[-1]):
        try:
            return ipaddress.IPv4Address(name)
        except ValueError:
            raise NotAHost(
                f"{text!r} is an address in disguise; write it as four decimal numbers"
            ) from None
    if len(name) > MAX_NAME_CHARACTERS or not all(map(_LABEL.match, labels)):
        raise NotAHost(f"{text!r} is no host name")
    return name


def _address_v6(text: str) -> Address:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise NotAHost(f"{text!r} is no IPv6 address") from None
    if address.scope_id is not None:
        raise NotAHost(f"{text!r} has a zone, which means nothing on another machine")
    return address.ipv4_mapped or address


def read_range(text: str) -> AddressRange:
    """The range of addresses that a text names; one address is one, too.

    Raises:
        NotAHost: It is none.
    """
    try:
        found = ipaddress.ip_network(text)
    except ValueError as error:
        raise NotAHost(f"{text!r} is no range of addresses: {error}") from None
    if isinstance(found, ipaddress.IPv6Network) and found.subnet_of(_MAPPED):
        raise NotAHost(f"{text!r} is a range of IPv4 addresses; write it as one")
    return found


@dataclass(frozen=True, slots=True)
class HostPattern:
    """Which hosts a rule is for: a name, all names below one, addresses, or any."""

    text: str
    name: str = ""
    below: str = ""
    """All names that end with a dot and this; the name itself is none of them."""
    range: AddressRange | None = None

    @classmethod
    def read(cls, text: str) -> "HostPattern":
        """What `name`, `*.name`, `10.0.0.5`, `10.0.0.0/8` or `*` means.

        Raises:
            NotAHost: It is none of these.
        """
        if text == "*":
            return cls(text)
        if text.startswith("*."):
            below = read_host(text[2:])
            if not isinstance(below, str):
                raise NotAHost(f"{text!r}: a * stands for names, and this is an address")
            return cls(f"*.{below}", below=below)
        if "*" in text:
            raise NotAHost(f"{text!r}: a * stands only in front, as in *.example.com")
        if "/" in text and "://" not in text:
            return cls(text, range=read_range(text))
        host = read_host(text)
        if isinstance(host, str):
            return cls(host, name=host)
        return cls(str(host), range=ipaddress.ip_network(host))

    @property
    def is_any(self) -> bool:
        """Whether it is `*`."""
        return not self.name and not self.below and self.range is None

    def fits(self, host: Host) -> bool:
        """Whether it is for this host; `*` is for every name, and for no address."""
        if not isinstance(host, str):
            return self.holds(host)
        if self.name:
            return host == self.name
        if self.below:
            return host.endswith(f".{self.below}")
        return self.is_any

    def holds(self, address: Address) -> bool:
        """Whether this address is one that the pattern lists."""
        return self.range is not None and address in self.range


@dataclass(frozen=True, slots=True)
class Asked:
    """A connection that is asked for."""

    protocol: Protocol
    host: Host
    port: int
    method: str = ""
    """Of a request that can be read; empty where there is none, or none yet."""
    path: str = ""
    """Of such a request, as it was sent, without its query."""
    readable: bool = False
    """Requests on this connection will be judged one by one."""

    @property
    def where(self) -> str:
        """Host and port, as one writes them."""
        host = f"[{self.host}]" if isinstance(self.host, ipaddress.IPv6Address) else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        if not self.method:
            return self.where
        path = self.path[:SHOWN_CHARACTERS] + ("…" if len(self.path) > SHOWN_CHARACTERS else "")
        return f"{self.method} {self.where}{path}"


def read_asked(text: str, method: str = "") -> Asked:
    """The connection that is written as `HOST:PORT` or as a URL, or the request.

    Args:
        text: Of an http:// URL, it is the request that is meant.
        method: Its method; with an https:// URL, the request is meant that can be read where
            the runner opens the connection. Empty: `GET` for http://, else the connection.

    Raises:
        NotAHost: It is neither.
    """
    scheme, separator, _ = text.partition("://")
    try:
        parts = urllib.parse.urlsplit(text if separator else f"//{text}")
        port = parts.port or {"http": 80, "https": 443}.get(scheme, 0)
        named = parts.netloc.removesuffix(f":{parts.port}")
    except ValueError as error:
        raise NotAHost(f"{text!r} is neither HOST:PORT nor a URL: {error}") from None
    if separator and scheme not in ("http", "https"):
        raise NotAHost(f"{text!r} is no URL of http or https")
    if "@" in parts.netloc or (not separator and (parts.path or parts.query or parts.fragment)):
        raise NotAHost(f"{text!r} is neither HOST:PORT nor a URL without a user")
    host = read_host(named)
    if not port:
        raise NotAHost(f"{text!r} needs a port, as in {text}:443")
    if not separator or (scheme == "https" and not method):
        return Asked("connect", host, port)
    method = method.upper() or "GET"
    return Asked("http", host, port, method=method, path=parts.path or "/", readable=True)


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """A rule of the section `network`."""

    name: str
    """Its list and place in it, such as `network.allow[0]`."""
    line: int
    hosts: tuple[HostPattern, ...]
    ports: tuple[int, ...] = DEFAULT_PORTS
    """Empty for any."""
    methods: tuple[str, ...] = ()
    """In upper case; empty for any."""
    paths: tuple[Glob, ...] = ()
    """Empty for any."""
    addresses: tuple[AddressRange, ...] = ()
    """Where a name may lead, beside public addresses."""
    justification: str = ""

    @property
    def reads(self) -> bool:
        """Whether it looks at requests, not at connections alone."""
        return bool(self.methods or self.paths)

    def is_for(self, host: Host, port: int) -> bool:
        """Whether host and port are its own."""
        return self._has_port(port) and any(pattern.fits(host) for pattern in self.hosts)

    def lists(self, address: Address, port: int) -> bool:
        """Whether this very address is named in it, and the port is its own."""
        return self._has_port(port) and any(pattern.holds(address) for pattern in self.hosts)

    def _has_port(self, port: int) -> bool:
        return not self.ports or port in self.ports

    def may_read(self, asked: Asked) -> bool:
        """Whether what it wants of a request holds, or is still to be seen. For allowing."""
        if not self.reads:
            return True
        if not asked.method:
            return asked.readable
        if self.methods and asked.method not in self.methods:
            return False
        return not self.paths or fits_paths(self.paths, asked.path)

    def might_read(self, asked: Asked) -> bool:
        """Whether what it wants of a request could hold. For refusing, so errs to yes."""
        if not self.reads:
            return True
        if not asked.method:
            # What nobody can look into is taken to be what is refused.
            return not asked.readable
        if self.methods and asked.method.upper() not in self.methods:
            return False
        if not self.paths:
            return True
        guises = _guises(asked.path)
        return guises is None or any(
            glob.found_in(guise.encode())
            for path in guises
            for guise in (path, path.lower())
            for glob in self.paths
        )

    def __str__(self) -> str:
        ports = ",".join(map(str, self.ports)) or "*"
        shown = ", ".join(f"{pattern.text}:{ports}" for pattern in self.hosts)
        if not self.reads:
            return shown
        words = [" ".join(self.methods), " ".join(glob.text for glob in self.paths)]
        return f"{shown} ({' '.join(word for word in words if word)})"

    @property
    def shown(self) -> str:
        """It for a list of rules: cut where it is long."""
        text = str(self)
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def fits_paths(globs: tuple[Glob, ...], path: str) -> bool:
    """Whether a request's path is surely one of these, however the server reads it."""
    guises = _guises(path)
    return guises is not None and any(
        all(glob.found_in(guise.encode()) for guise in guises) for glob in globs
    )


def _guises(path: str) -> tuple[str, ...] | None:
    """A path as it is written, decoded, and without parameters (`;v=1`), each normalised.

    None where servers may differ about more than that, and for one that is too long.
    """
    if len(path) > MAX_PATH_CHARACTERS:
        return None
    decoded = urllib.parse.unquote(path, errors="surrogateescape")
    if (
        not path.startswith("/")
        or looks_encoded(path.encode())
        or "\\" in path
        or "\0" in decoded
        or re.search(r"%[0-9a-fA-F]{2}", decoded)  # encoded twice
        or any(segment.split(";")[0] in (".", "..") for segment in decoded.split("/"))
        or any("\ud800" <= character <= "\udfff" for character in decoded)
    ):
        return None
    return normalise(path), normalise(decoded), normalise(re.sub(r";[^/]*", "", decoded))


@dataclass(frozen=True, slots=True)
class NetworkDecision:
    """What the rules say about a connection."""

    verdict: Verdict
    rule: str | None
    """The rule that decided: `network.allow[0]`, `default`, or `open`."""
    reason: str = ""
    """Why it is refused, with what is allowed instead; empty where it is not."""
    addresses: tuple[AddressRange, ...] = ()
    """Addresses that may be dialled though they are not public."""

    @property
    def allowed(self) -> bool:
        """Whether it may be made."""
        return self.verdict is Verdict.ALLOW


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """The section `network` of a policy."""

    allow: tuple[NetworkRule, ...] = ()
    deny: tuple[NetworkRule, ...] = ()

    def judge(self, asked: Asked, *, everything: bool = False) -> NetworkDecision:
        """What holds for a connection, or for a request on one.

        Args:
            asked: What is asked for.
            everything: What no rule is for is allowed rather than refused.
        """
        for rule in self.deny:
            if (
                rule.is_for(asked.host, asked.port)
                or (not isinstance(asked.host, str) and _is_any(rule, asked.port))
            ) and rule.might_read(asked):
                return self._refused(asked, rule)
        for rule in self.allow:
            if rule.is_for(asked.host, asked.port) and rule.may_read(asked):
                listed = tuple(pattern.range for pattern in rule.hosts if pattern.range is not None)
                return NetworkDecision(
                    Verdict.ALLOW,
                    rule.name,
                    addresses=rule.addresses if isinstance(asked.host, str) else listed,
                )
        if everything:
            return NetworkDecision(Verdict.ALLOW, "open")
        return self._refused(asked, None)

    def refuses_address(self, address: Address, port: int) -> NetworkDecision | None:
        """What a deny rule says that lists an address to which a name led; None for nothing."""
        for rule in self.deny:
            if not rule.reads and rule.lists(address, port):
                return NetworkDecision(
                    Verdict.DENY, rule.name, f"{address} is denied by {_told(rule)}"
                )
        return None

    def _refused(self, asked: Asked, rule: NetworkRule | None) -> NetworkDecision:
        if rule is not None:
            reason = f"{asked} is denied by {_told(rule)}"
            return NetworkDecision(Verdict.DENY, rule.name, reason)
        opaque = next((r for r in self.allow if r.is_for(asked.host, asked.port)), None)
        if opaque is not None and not asked.method:
            reason = (
                f"{asked} is allowed for single requests only ({opaque.shown}), and this connection"
                " would hide them"
            )
        else:
            reason = f"no rule allows {asked}; allowed are: {self.summary()}"
        return NetworkDecision(Verdict.DENY, "default", reason)

    def summary(self) -> str:
        """What is allowed, in a few words, for whoever was refused something."""
        shown = [rule.shown for rule in self.allow[:SHOWN_RULES]]
        if len(self.allow) > SHOWN_RULES:
            shown.append(f"and {len(self.allow) - SHOWN_RULES} more rules")
        return ", ".join(shown) or "no hosts at all"


def _is_any(rule: NetworkRule, port: int) -> bool:
    """Whether a rule is for every host: what refuses any name refuses addresses, too."""
    return (not rule.ports or port in rule.ports) and any(p.is_any for p in rule.hosts)


def _told(rule: NetworkRule) -> str:
    return f"{rule.name}: {rule.justification}" if rule.justification else rule.name


# --- from what is written


def network_rules(parts: Iterable[tuple[str, str, NetworkText]]) -> NetworkRules:
    """The rules that are written in the files of a policy, its own first.

    Args:
        parts: Of each file, what its rules' names start with, what to call it in errors, and its
            section.

    Raises:
        PolicyError: A host, a method, a path or an address can't be used, or an example of the
            first file is not decided as it says.
    """
    allow: list[NetworkRule] = []
    deny: list[NetworkRule] = []
    examples: list[tuple[str, NetworkExampleText]] = []
    for prefix, source, section in parts:
        for text in section.rules:
            try:
                rule = _rule(text, prefix)
            except _RuleError as error:
                problem = f"{text.name}: {error}"
                raise PolicyError(problem, source=source, line=error.line) from None
            (allow if text.verdict is Verdict.ALLOW else deny).append(rule)
        if not prefix:
            examples += [(source, example) for example in section.examples]
    rules = NetworkRules(tuple(allow), tuple(deny))
    for source, example in examples:
        _prove(rules, example, source)
    return rules


def _prove(rules: NetworkRules, example: NetworkExampleText, source: str) -> None:
    try:
        asked = read_asked(example.connect, example.method)
    except NotAHost as error:
        problem = f"{example.name}: {error}"
        raise PolicyError(problem, source=source, line=example.line) from None
    decision = rules.judge(asked)
    if decision.verdict is not example.verdict:
        wanted = "allowed" if example.verdict is Verdict.ALLOW else "denied"
        raise PolicyError(
            f"{example.name}: {asked} is to be {wanted}, but {decision.rule} says"
            f" {decision.verdict}",
            source=source,
            line=example.line,
        )


class _RuleError(ValueError):
    """A rule that can't be used; it says why."""

    def __init__(self, problem: str, line: int):
        super().__init__(problem)
        self.line = line


def _rule(text: NetworkRuleText, prefix: str) -> NetworkRule:
    hosts, addresses, paths = [], [], []
    for written in text.hosts:
        try:
            hosts.append(HostPattern.read(written.text))
        except NotAHost as error:
            raise _RuleError(f"`host`: {error}", written.line) from None
    for written in text.addresses:
        try:
            addresses.append(read_range(written.text))
        except NotAHost as error:
            raise _RuleError(f"`addresses`: {error}", written.line) from None
    if addresses and text.verdict is Verdict.DENY:
        raise _RuleError(
            "`addresses` says where an allowed name may lead; to deny addresses, name them"
            " as `host`",
            text.line,
        )
    for written in text.paths:
        try:
            paths.append(Glob.compile(written.text, memory_bytes=PATH_MEMORY_BYTES))
        except PatternError as error:
            raise _RuleError(f"`paths`: {error}", written.line) from None
    for written in text.methods:
        if not _METHOD.match(written.text):
            raise _RuleError(f"`methods`: {written.text!r} is no HTTP method", written.line)
    return NetworkRule(
        name=f"{prefix}{text.name}",
        line=text.line,
        hosts=tuple(hosts),
        ports=DEFAULT_PORTS if text.ports is None else text.ports,
        methods=tuple(written.text.upper() for written in text.methods),
        paths=tuple(paths),
        addresses=tuple(addresses),
        justification=text.justification,
    )
