"""A policy file that changes while it is in use."""

import os
from pathlib import Path

import pytest

from runner.errors import PolicyError
from runner.model import Verdict
from runner.policy import FixedPolicy, Policy, PolicyFile
from runner.policy.source import LOOK_EVERY_S

READ = {"path": "/a"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def later(self) -> None:
        self.now += LOOK_EVERY_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "p.yaml"
    file.write_text("default: deny\n")
    return file


def verdict(source: PolicyFile) -> Verdict:
    return source.current.decide("read", READ).verdict


def test_a_changed_file_is_read_anew(file: Path, clock: Clock) -> None:
    source = PolicyFile(file, clock=clock)
    file.write_text("default: allow\n")
    assert verdict(source) is Verdict.DENY, "it looks now and then, not at every call"
    clock.later()
    assert verdict(source) is Verdict.ALLOW


def test_a_broken_file_changes_nothing_and_is_told_of(
    file: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    source = PolicyFile(file, clock=clock)
    file.write_text("default: alow\n")
    clock.later()
    assert verdict(source) is Verdict.DENY
    assert source.trouble is not None
    assert "p.yaml:1" in str(source.trouble)
    assert [r.levelname for r in caplog.records if "policy.reload_failed" in r.message] == ["ERROR"]
    file.write_text("default: allow # better\n")
    clock.later()
    assert verdict(source) is Verdict.ALLOW
    assert source.trouble is None


def test_a_file_that_is_gone_changes_nothing_until_it_is_back(file: Path, clock: Clock) -> None:
    source = PolicyFile(file, clock=clock)
    file.unlink()
    clock.later()
    assert verdict(source) is Verdict.DENY
    assert source.trouble is not None
    file.write_text("default: allow\n")
    clock.later()
    assert verdict(source) is Verdict.ALLOW


def test_a_file_that_was_replaced_with_its_times_kept_is_seen(file: Path, clock: Clock) -> None:
    source = PolicyFile(file, clock=clock)
    old = file.stat()
    other = file.with_name("other")
    other.write_text("mode: allow\n \n")
    assert other.stat().st_size == old.st_size
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.rename(file)
    clock.later()
    assert verdict(source) is Verdict.ALLOW


def test_an_included_file_and_a_shadow_are_watched_too(file: Path, clock: Clock) -> None:
    team = file.with_name("team.yaml")
    trial = file.with_name("trial.yml")
    team.write_text("default: deny\n")
    trial.write_text("default: deny\n")
    file.write_text("default: allow\ninclude: [team.yaml]\nshadow: trial.yml\n")
    source = PolicyFile(file, clock=clock)
    assert set(source.files) == {str(file), str(team), str(trial)}
    assert verdict(source) is Verdict.ALLOW
    before = source.current.digest
    team.write_text("default: deny\ndeny: [{tool: read}]\n")
    clock.later()
    assert verdict(source) is Verdict.DENY
    assert source.current.digest != before
    trial.write_text("default: allow\n")
    clock.later()
    assert source.current.shadow is not None
    assert source.current.shadow.decide("read", READ).verdict is Verdict.ALLOW


def test_a_file_that_can_t_be_loaded_at_first_is_an_error(file: Path) -> None:
    file.write_text("default: alow")
    with pytest.raises(PolicyError, match=r"p\.yaml:1"):
        PolicyFile(file)


def test_a_fixed_policy_stays_what_it_is(file: Path) -> None:
    source = FixedPolicy(Policy.load(file))
    file.write_text("default: allow")
    assert source.current.decide("read", READ).verdict is Verdict.DENY
    assert source.files == (str(file),)
