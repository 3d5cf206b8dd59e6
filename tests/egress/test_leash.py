"""A leash beside its protocols: its buckets, and one for each session that has a network."""

import asyncio
import gc
from pathlib import Path

import pytest

from runner.egress.leash import Bucket
from runner.egress.leashes import BUNDLE_PATH, Leashes, bundle_environment
from runner.errors import ConfigurationError
from runner.policy import Policy
from tests.conftest import make_settings
from tests.egress.fakes import Pipe, Records

pytestmark = pytest.mark.anyio


def test_a_bucket_has_so_many_at_once_and_then_so_many_a_second() -> None:
    now = 0.0
    bucket = Bucket(3, 2.0, lambda: now)

    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now = 0.5
    assert [bucket.take() for _ in range(2)] == [True, False]
    now = 100.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


async def test_who_waits_for_a_bucket_waits_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    bucket = Bucket(1, 2.0, lambda: 0.0)
    for _ in range(3):
        await bucket.wait()

    assert slept == [0.5, 1.0]


class Holder:
    """Somebody who holds a session."""


RULES = Policy.parse("version: 1\ndefault: deny\nnetwork: {allow: [{host: a.example}]}").network


async def test_a_session_has_one_leash_as_long_as_it_is_held_and_none_without_a_network(
    tmp_path: Path,
) -> None:
    records = Records()
    leashes = Leashes(make_settings(tmp_path), rules=lambda: RULES, records=records)
    holder = Holder()

    leash = leashes.of(holder, "s-1", "allowlist")
    assert leash is not None
    assert leashes.of(holder, "s-1", "allowlist") is leash
    assert leashes.of(Holder(), "s-2", "none") is None
    assert leash.interception is None
    ours, theirs = Pipe.pair()
    leash.take(theirs)
    await ours.send(b"CONNECT b.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n")
    assert b"403" in await ours.rest()
    del holder, leash
    gc.collect()
    await leashes.close()
    assert records.last.session_id == "s-1"


async def test_closing_all_records_what_was_counted_though_nobody_holds_the_session(
    tmp_path: Path,
) -> None:
    records = Records()
    leashes = Leashes(make_settings(tmp_path), rules=lambda: RULES, records=records)
    leash = leashes.of(Holder(), "s-1", "allowlist")
    assert leash is not None
    for _ in range(60):
        leash.note_refusal("connect", "no")
    del leash
    gc.collect()
    await leashes.close()

    assert records.last.reason.startswith("10 more connections")


async def test_what_can_not_be_used_is_known_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="intercept"):
        Leashes(make_settings(tmp_path, intercept=("*",)), rules=lambda: RULES, records=Records())


def test_the_variables_lead_to_the_bundle() -> None:
    assert set(bundle_environment().values()) == {BUNDLE_PATH}
