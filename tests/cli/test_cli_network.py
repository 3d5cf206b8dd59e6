"""`runner connections` and `runner policy connect`: what went out, and what would be let out."""

import json
from typing import Any

import pytest

from runner.app import DATABASE
from runner.model import Connection, Verdict
from runner.store import Store
from tests.cli.conftest import Cli, a_session

POLICY = """\
version: 1
network:
  allow:
    - {host: pypi.org}
    - {host: web.example, ports: 80, paths: [/v1/**], addresses: [10.0.0.0/8]}
default: deny
"""


def a_connection(connection_id: str, **changes: Any) -> Connection:
    given: dict[str, Any] = {
        "id": connection_id,
        "session_id": "s-1",
        "protocol": "http",
        "host": "web.example",
        "port": 80,
        "method": "GET",
        "path": "/v1/\x1b[31m",
        "address": "10.0.0.1",
        "verdict": Verdict.ALLOW,
        "rule": "network.allow[1]",
        "reason": "",
        "credential": "",
        "started_at": 1_700_000_000.0,
    }
    return Connection(**{**given, **changes})


def test_connections_are_listed_oldest_first_and_safe_to_look_at(cli: Cli) -> None:
    with Store.open(cli.data_dir / DATABASE) as store:
        for session_id in ("s-1", "s-2"):
            store.add_session(a_session(session_id))
        store.add_connection(a_connection("n-1"))
        store.end_connection("n-1", ended_at=1_700_000_001.0, sent_bytes=12, received_bytes=345)
        store.add_connection(a_connection("n-2", session_id="s-2", host="pypi.org", port=443))
    cli.environment["COLUMNS"] = "300"

    listed = cli("connections")
    only = cli("connections", "--session", "s-2", "--json")
    unknown = cli("connections", "--session", "s-3")

    rows = listed.stdout.splitlines()
    assert rows[1].split()[2:8] == ["s-1", "http", "GET", "web.example:80/v1/\\x1b[31m", "allow",
                                    "network.allow[1]"]  # fmt: skip
    assert rows[1].split()[8:] == ["12", "345"]
    assert "pypi.org:443" in rows[2]
    assert [row["id"] for row in json.loads(only.stdout)] == ["n-2"]
    assert unknown.returncode != 0


def test_a_policy_says_what_it_makes_of_a_connection(cli: Cli) -> None:
    (cli.directory / "mine.yaml").write_text(POLICY)

    allowed = cli("policy", "connect", "mine.yaml", "http://web.example/v1/a?b=c")
    refused = cli("policy", "connect", "mine.yaml", "https://evil.example/", "--json")

    assert allowed.stdout == "allow by network.allow[1]\n"
    assert "10.0.0.0/8" in allowed.stderr
    assert json.loads(refused.stdout) == {
        "verdict": "deny",
        "rule": "default",
        "reason": "no rule allows evil.example:443; allowed are: pypi.org:443,"
        " web.example:80 (/v1/**)",
        "addresses": [],
    }
    assert (allowed.returncode, refused.returncode) == (0, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["169.254.169.254:80", "--open"], "deny by what may be dialled: 169.254.169.254 is not"),
        (["10.1.2.3:22"], "allow by network.allow[2]\n"),
        (["8.8.8.8:443", "--open"], "allow by open\n"),
    ],
)
def test_of_an_address_it_says_whether_it_would_be_dialled(
    cli: Cli, words: list[str], said: str
) -> None:
    rule = "    - {host: 10.0.0.0/8, ports: 22}\n"
    (cli.directory / "mine.yaml").write_text(POLICY.replace("default:", f"{rule}default:"))

    assert cli("policy", "connect", "mine.yaml", *words).stdout.startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pypi.org"], "needs a port"),
        (["pypi.org:https"], "neither HOST:PORT nor a URL"),
        (["pypi.org:443/simple"], "neither HOST:PORT nor a URL"),
        (["https://me:secret@pypi.org/"], "without a user"),
        (["127.1:80"], "disguise"),
        (["ftp://pypi.org/"], "no URL of http or https"),
        (["pypi.org:443", "--method", "GET"], "with a URL"),
        (["http://pypi.org/", "--method", "GET /"], "a method of HTTP"),
    ],
)
def test_what_is_no_connection_is_an_error(cli: Cli, words: list[str], said: str) -> None:
    done = cli("policy", "connect", "default", *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_an_allowlist_without_hosts_is_warned_of(cli: Cli) -> None:
    cli.environment["DOCKER_HOST"] = "unix:///nowhere"

    assert "has no `network` rules" in cli("run", "--network", "allowlist", "true").stderr
    assert "has no `network` rules" not in cli("run", "true").stderr
