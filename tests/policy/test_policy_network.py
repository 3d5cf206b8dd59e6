"""The section `network`: what is written is what holds, and nothing fits by accident."""

import ipaddress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import PolicyError
from runner.model import Verdict
from runner.policy import DENY_EVERYTHING, Policy
from runner.policy.network import (
    Asked,
    Host,
    HostPattern,
    NetworkRules,
    NotAHost,
    read_asked,
    read_host,
)


def rules(text: str) -> NetworkRules:
    return Policy.parse(f"version: 1\ndefault: deny\nnetwork: {text}").network


def asked(host: str, port: int = 443, **more: Any) -> Asked:
    return Asked(more.pop("protocol", "connect"), read_host(host), port, **more)


def request(host: str, path: str, *, method: str = "GET", port: int = 80) -> Asked:
    return asked(host, port, protocol="http", method=method, path=path, readable=True)


# Hosts.


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("pypi.org", "pypi.org"),
        ("PyPI.org.", "pypi.org"),
        ("a_b.example", "a_b.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("localhost", "localhost"),
        ("10.0.0.5", "10.0.0.5"),
        ("[2606:2800::1]", "2606:2800::1"),
        ("2606:2800:0::1", "2606:2800::1"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("10.0.0.5.example", "10.0.0.5.example"),
    ],
)
def test_a_host_has_one_reading(text: str, host: str) -> None:
    assert str(read_host(text)) == host


@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "a..b", ".a", "a b", "a\0b", "a\n", "a/b", "a@b", "a%2eb", "a:80", "[a]"),
        *(
            "127.1",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "2130706433",
            "0x7f000001",
            "1.2.3.4.5",
            "1.2.3.256",
        ),
        *("a.0x", "fe80::1%eth0", "[::1", "::1]", "bücher.example", "ﬁle.example", "a。b"),
        *("a" * 64, ".".join(["a" * 60] * 5)),
    ],
)
def test_what_is_no_host_is_none(text: str) -> None:
    with pytest.raises(NotAHost):
        read_host(text)


LABEL = st.from_regex(r"\A[a-z_][a-z0-9_-]{0,8}\Z")
NAME = st.lists(LABEL, min_size=1, max_size=4).map(".".join)


@settings(max_examples=60, deadline=None)
@given(NAME, NAME)
def test_a_star_is_for_names_below_and_for_nothing_else(name: str, other: str) -> None:
    below = HostPattern.read(f"*.{name}")

    assert below.fits(read_host(f"{other}.{name}"))
    assert not below.fits(read_host(name))
    assert not below.fits(read_host(f"{other}{name}")) or other.endswith(".")
    assert below.fits(other) == other.endswith(f".{name}")
    assert HostPattern.read(name).fits(other) == (name == other)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40) | NAME.map(str.upper))
def test_reading_a_host_twice_changes_nothing(text: str) -> None:
    try:
        host: Host = read_host(text)
    except NotAHost:
        return
    assert read_host(str(host)) == host
    assert str(host).isascii()


# Rules.


def test_without_a_section_nothing_is_allowed() -> None:
    for policy in (Policy.parse("mode: allow_all"), DENY_EVERYTHING):
        decision = policy.network.judge(asked("pypi.org"))
        assert decision.verdict is Verdict.DENY
        assert decision.reason == "no rule allows pypi.org:443; allowed are: no hosts at all"


def test_a_rule_is_for_port_443_unless_it_names_others() -> None:
    found = rules(
        "{allow: [{host: a.example}, {host: b.example, ports: [80, 8080]},"
        " {host: c.example, ports: any}]}"
    )

    assert found.judge(asked("a.example")).rule == "network.allow[0]"
    assert not found.judge(asked("a.example", 80)).allowed
    assert found.judge(asked("b.example", 8080)).allowed
    assert not found.judge(asked("b.example")).allowed
    assert found.judge(asked("c.example", 65535)).allowed


def test_deny_wins_and_tells_why() -> None:
    found = rules(
        "{allow: [{host: '*.example'}], deny: [{host: evil.example, justification: bad}]}"
    )

    assert found.judge(asked("good.example")).allowed
    denied = found.judge(asked("evil.example"))
    assert (denied.rule, denied.reason) == (
        "network.deny[0]",
        "evil.example:443 is denied by network.deny[0]: bad",
    )


def test_everything_is_all_that_no_rule_denies() -> None:
    found = rules("{deny: [{host: '*.evil.example'}]}")

    assert found.judge(asked("good.example", 22), everything=True).rule == "open"
    assert not found.judge(asked("a.evil.example"), everything=True).allowed


def test_a_deny_rule_for_any_host_is_for_addresses_too() -> None:
    found = rules("{deny: [{host: '*', ports: [25]}]}")

    assert not found.judge(asked("a.example", 25), everything=True).allowed
    assert not found.judge(asked("93.184.216.34", 25), everything=True).allowed
    assert found.judge(asked("93.184.216.34", 443), everything=True).allowed


def test_a_star_alone_allows_names_and_no_addresses() -> None:
    found = rules("{allow: [{host: '*'}]}")

    assert found.judge(asked("a.example")).allowed
    assert not found.judge(asked("93.184.216.34")).allowed


def test_an_address_that_is_listed_may_be_dialled_and_a_range_too() -> None:
    found = rules(
        "{allow: [{host: 10.0.0.5, ports: 5432}, {host: 10.1.0.0/16},"
        " {host: build.internal, addresses: [10.2.0.0/16]}]}"
    )

    assert found.judge(asked("10.0.0.5", 5432)).addresses == (ipaddress.ip_network("10.0.0.5/32"),)
    assert found.judge(asked("10.1.2.3")).allowed
    assert not found.judge(asked("10.2.2.3")).allowed
    assert found.judge(asked("build.internal")).addresses == (ipaddress.ip_network("10.2.0.0/16"),)


def test_a_denied_address_is_denied_by_whatever_name() -> None:
    found = rules("{deny: [{host: 93.184.216.0/24}]}")
    address = ipaddress.ip_address("93.184.216.34")

    assert found.refuses_address(address, 443) is not None
    assert found.refuses_address(address, 80) is None
    assert found.refuses_address(ipaddress.ip_address("93.184.217.34"), 443) is None


PATHS = "{allow: [{host: a.example, ports: [80, 443], methods: [get], paths: ['/v1/**']}]}"


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/a/b", "//v1//a", "/v1/%20", "/v1/a;b=c"])
def test_a_path_that_fits_is_allowed(path: str) -> None:
    assert rules(PATHS).judge(request("a.example", path)).allowed


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/v2",
            "/v1a",
            "/V1",
            "/v1/../v2",
            "/v1/./a",
            "/v1/%2e%2e/v2",
            "/v1%2fa",
            "/v1/..;/b",
            "/v1/..%3b/b",
            "/v1/" + "a" * 4096,
            "/v1;/b",
        ),
        *("/v1/%252e%252e/", "/v1\\..\\v2", "/v1/%5c", "/v1/%00", "v1", "*", "", "/v1/%2561"),
    ],
)
def test_a_path_that_does_not_fit_or_may_be_read_in_two_ways_is_not(path: str) -> None:
    assert not rules(PATHS).judge(request("a.example", path)).allowed


def test_a_rule_about_requests_allows_none_that_nobody_sees() -> None:
    found = rules(PATHS)

    assert not found.judge(asked("a.example")).allowed
    assert "would hide them" in found.judge(asked("a.example")).reason
    assert found.judge(asked("a.example", readable=True)).allowed
    assert not found.judge(request("a.example", "/v1", method="POST")).allowed


def test_what_nobody_sees_is_taken_to_be_what_is_denied() -> None:
    found = rules(
        "{allow: [{host: a.example, ports: any}],"
        " deny: [{host: a.example, ports: any, paths: [/admin/**]}]}"
    )

    assert not found.judge(asked("a.example")).allowed
    assert found.judge(request("a.example", "/x")).allowed
    for path in (
        *("/admin", "/ADMIN/x", "//admin", "/%61dmin", "/x/../admin", "/x%2f..%2fadmin"),
        *("/admin;v=1", "/admin;v=1/x", "/;v=1/admin", "/admin%3bv=1", "/x" + "a" * 4096),
    ):
        assert not found.judge(request("a.example", path)).allowed, path


def test_a_refusal_lists_some_rules_and_counts_the_others() -> None:
    hosts = ", ".join(f"{{host: h{number}.example}}" for number in range(30))
    reason = rules(f"{{allow: [{hosts}]}}").judge(asked("x.example")).reason

    assert "h19.example:443, and 10 more rules" in reason
    assert "h20" not in reason


def test_a_refusal_is_short_whatever_was_asked_for_and_however_long_a_rule_is() -> None:
    hosts = ", ".join(f"h{number}.example" for number in range(900))
    found = rules(f"{{allow: [{{host: [{hosts}]}}]}}")

    assert len(found.judge(request("x.example", "/" + "a" * 60_000)).reason) < 1000


# The file.


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("network: [a]", 3, "`network` must be a mapping"),
        ("network: {hosts: []}", 3, "unknown key `hosts`"),
        ("network: {allow: a}", 3, "`network.allow` must be a list"),
        ("network:\n  allow:\n    - pypi.org", 5, r"a rule such as \{host: pypi.org\}"),
        ("network: {allow: [{ports: 80}]}", 3, "needs `host`"),
        ("network: {allow: [{host: []}]}", 3, "`host` is empty"),
        ("network: {allow: [{host: bücher.example}]}", 3, "xn--"),
        ("network: {allow: [{host: 'a.*.example'}]}", 3, "only in front"),
        ("network: {allow: [{host: '*.10.0.0.1'}]}", 3, "this is an address"),
        ("network: {allow: [{host: 10.0.0.1/8}]}", 3, "no range of addresses"),
        ("network: {deny: [{host: '::ffff:10.0.0.0/104'}]}", 3, "range of IPv4"),
        ("network: {allow: [{host: '127.1'}]}", 3, "in disguise"),
        ("network: {allow: [{host: a, ports: 0}]}", 3, "above 0"),
        ("network: {allow: [{host: a, ports: [65536]}]}", 3, "no port"),
        ("network: {allow: [{host: a, ports: [1.5]}]}", 3, "no port"),
        ("network: {allow: [{host: a, ports: []}]}", 3, "write any"),
        ("network: {allow: [{host: a, methods: ['G T']}]}", 3, "no HTTP method"),
        ("network: {allow: [{host: a, paths: [v1]}]}", 3, "whole absolute paths"),
        ("network: {allow: [{host: a, addresses: [x]}]}", 3, "addresses"),
        ("network: {deny: [{host: a, addresses: [10.0.0.0/8]}]}", 3, "name them as `host`"),
        ("network: {allow: [{host: a, path: /}]}", 3, "did you mean `paths`"),
        ("network: {allow: [{host: }]}", 3, "no value"),
        ("network: {examples: [{is: allow}]}", 3, "needs `connect`"),
        ("network: {examples: [{connect: a, is: allow}]}", 3, "needs a port"),
        ("network: {examples: [{connect: 'a:1', is: ask}]}", 3, "one of allow, deny"),
    ],
)
def test_a_section_that_can_not_be_meant_is_an_error_with_its_line(
    text: str, line: int, words: str
) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        Policy.parse(f"version: 1\ndefault: deny\n{text}")
    assert caught.value.line == line


def test_rules_of_included_files_count_and_carry_their_name(tmp_path: Any) -> None:
    (tmp_path / "team.yaml").write_text("default: deny\nnetwork: {allow: [{host: a.example}]}")
    (tmp_path / "mine.yaml").write_text(
        "default: deny\ninclude: [team.yaml]\nnetwork: {allow: [{host: b.example}]}"
    )
    found = Policy.load(tmp_path / "mine.yaml").network

    assert found.judge(asked("a.example")).rule == "team:network.allow[0]"
    assert found.judge(asked("b.example")).rule == "network.allow[0]"


def test_the_section_holds_in_every_mode() -> None:
    for mode in ("allow_all", "deny_all", "pattern"):
        policy = Policy.parse(f"mode: {mode}\nnetwork: {{allow: [{{host: a.example}}]}}")
        assert policy.network.judge(asked("a.example")).allowed


def test_a_rule_about_requests_on_a_port_that_hides_them_draws_a_warning() -> None:
    policy = Policy.parse(
        "version: 1\ndefault: deny\nnetwork:\n  allow:\n"
        "    - {host: a.example, paths: [/v1]}\n"
        "    - {host: a.example, ports: 80, paths: [/v1]}\n"
        "  deny:\n"
        "    - {host: a.example, methods: POST}\n"
    )

    told = [(warning.line, warning.rule) for warning in policy.warnings]
    assert told == [(5, "network.allow[0]"), (8, "network.deny[0]")]
    assert "allows nothing" in policy.warnings[0].message
    assert "refuses every connection" in policy.warnings[1].message


# Connections as people write them.


@pytest.mark.parametrize(
    ("where", "method", "shown"),
    [
        ("pypi.org:443", "", "pypi.org:443"),
        ("https://PyPI.org", "", "pypi.org:443"),
        ("https://pypi.org/x", "post", "POST pypi.org:443/x"),
        ("[::1]:80", "", "[::1]:80"),
        ("http://a.example", "", "GET a.example:80/"),
        ("http://a.example:8080/x?y", "put", "PUT a.example:8080/x"),
    ],
)
def test_a_connection_is_written_as_host_and_port_or_as_a_url(
    where: str, method: str, shown: str
) -> None:
    assert str(read_asked(where, method)) == shown


@pytest.mark.parametrize(
    "where",
    ["pypi.org", "ftp://a.example/", "127.1:80", "a:b", "a:99999", "", "http://u@a.example"],
)
def test_what_is_neither_is_an_error(where: str) -> None:
    with pytest.raises(NotAHost):
        read_asked(where)


EXAMPLES = """
version: 1
default: deny
network:
  allow:
    - {host: pypi.org}
    - {host: web.example, ports: 80, paths: [/v1/**]}
  examples:
    - {connect: 'pypi.org:443', is: allow}
    - {connect: 'http://web.example/v1/a', is: allow}
    - {connect: 'http://web.example/v2', method: POST, is: %s}
"""


def test_examples_are_proved_when_the_policy_is_loaded() -> None:
    Policy.parse(EXAMPLES % "deny")
    words = r"network.examples\[2\]: POST web.example:80/v2 is to be allowed, but default says deny"
    with pytest.raises(PolicyError, match=words) as caught:
        Policy.parse(EXAMPLES % "allow")
    assert caught.value.line == 11
