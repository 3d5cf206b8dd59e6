"""Settings from arguments, variables and a file; what can't be used is said, and nothing secret."""

from pathlib import Path

import pytest

from runner import Settings
from runner.errors import ConfigurationError


def test_arguments_win_over_variables_and_those_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("timeout_s = 1\nttl_s = 2\nidle_timeout_s = 3\n")
    monkeypatch.setenv("RUNNER_CONFIG", str(file))
    monkeypatch.setenv("RUNNER_TTL_S", "4")
    monkeypatch.setenv("RUNNER_IDLE_TIMEOUT_S", "5")

    read = Settings.read(idle_timeout_s=6, timeout_s=None)

    assert (read.timeout_s, read.ttl_s, read.idle_timeout_s) == (1, 4, 6)


def test_tables_and_lists_can_stand_in_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = "RUNNER_CREDENTIALS__EXAMPLE__"
    monkeypatch.setenv(f"{prefix}HOST", "api.example.com")
    monkeypatch.setenv(f"{prefix}VALUE", "Bearer 5f2c9e")
    monkeypatch.setenv(f"{prefix}METHODS", '["GET"]')
    monkeypatch.setenv("RUNNER_INTERCEPT", '["api.example.com"]')

    read = Settings.read()

    assert read.intercept == ("api.example.com",)
    credential = read.credentials["example"]
    assert (credential.host, credential.methods) == ("api.example.com", ("GET",))
    assert credential.value.get_secret_value() == "Bearer 5f2c9e"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RUNNER_NETWORK", "some", "settings: network: Input should be 'none', 'allowlist' or"),
        ("RUNNER_LIMITS__MEMORY", "1", "settings: limits.memory: there is no such setting"),
        ("RUNNER_INTERCEPT", "a.example", "has lists and tables as JSON"),
        ("RUNNER_MCP_TOKEN", "too-short", "settings: mcp_token: 9 characters are too few: 16 at"),
        ("RUNNER_CONFIG", "missing.toml", "RUNNER_CONFIG names no file: missing.toml"),
    ],
)
def test_a_variable_that_can_not_be_used_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(ConfigurationError) as caught:
        Settings.read()

    assert said in str(caught.value)
    assert "too-short" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timeout = 5\n", "settings: timeout: there is no such setting"),
        ("timeout_s = \n", "mine.toml: Invalid value (at line 1"),
    ],
)
def test_a_file_that_can_not_be_used_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "mine.toml"))

    with pytest.raises(ConfigurationError) as caught:
        Settings.read()

    assert said in str(caught.value)
