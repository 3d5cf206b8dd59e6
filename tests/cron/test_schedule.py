"""When jobs come: zones, changes of the clock, and times at which nobody was there."""

from datetime import datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from runner.cron.schedule import (
    LATE_AFTER_S,
    LOOK_BACK_S,
    RUN_ALL_LIMIT,
    Missed,
    Planned,
    check_schedule,
    next_time,
    plan,
    times,
)
from runner.errors import ConfigurationError

BERLIN = "Europe/Berlin"
HOUR = 3600.0


def at(text: str, zone: str = "UTC", *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def first(count: int, schedule: str, after: float, zone: str = BERLIN) -> list[str]:
    """The first times after a moment, as their zone and UTC write them."""
    found = islice(times(schedule, zone, after=after), count)
    return [
        datetime.fromtimestamp(moment, ZoneInfo(zone)).strftime("%d %H:%M%z") for moment in found
    ]


# Times.


def test_times_follow_a_moment_and_are_in_their_zone() -> None:
    noon = at("2026-06-01 12:00", BERLIN)
    assert first(3, "0 12 * * *", noon - 1) == ["01 12:00+0200", "02 12:00+0200", "03 12:00+0200"]
    assert first(1, "0 12 * * *", noon) == ["02 12:00+0200"]
    assert first(1, "0 12 * * *", noon - 0.5) == ["01 12:00+0200"]
    assert next_time("0 12 * * *", "UTC", after=noon) == at("2026-06-01 12:00")
    assert next_time("0 12 * * *", "America/New_York", after=noon) == at("2026-06-01 16:00")


def test_days_have_names_and_can_be_counted_from_the_end() -> None:
    june = at("2026-06-01", BERLIN)
    assert first(2, "0 9 * * MON-TUE", june) == ["01 09:00+0200", "02 09:00+0200"]
    assert first(2, "0 9 L * *", june) == ["30 09:00+0200", "31 09:00+0200"]
    assert first(2, "0 9 * JUN FRI#2", june) == ["12 09:00+0200", "11 09:00+0200"]


def test_an_hour_that_is_left_out_moves_a_daily_job_to_its_end() -> None:
    eve = at("2026-03-28 12:00", BERLIN)  # at 2:00 of the 29th it is 3:00
    assert first(3, "30 2 * * *", eve) == ["29 03:00+0200", "30 02:30+0200", "31 02:30+0200"]
    assert first(3, "0,30 2 * * *", eve) == ["29 03:00+0200", "30 02:00+0200", "30 02:30+0200"]


def test_a_job_of_every_hour_or_minute_follows_the_clock_forward() -> None:
    before = at("2026-03-29 00:59", BERLIN)
    assert first(3, "0 * * * *", before) == ["29 01:00+0100", "29 03:00+0200", "29 04:00+0200"]
    before = at("2026-03-29 01:58", BERLIN)
    assert first(3, "* * * * *", before) == ["29 01:59+0100", "29 03:00+0200", "29 03:01+0200"]
    assert first(2, "*/30 2 * * *", before) == ["30 02:00+0200", "30 02:30+0200"]


def test_an_hour_that_comes_twice_runs_a_daily_job_once() -> None:
    eve = at("2026-10-24 12:00", BERLIN)  # at 3:00 of the 25th it is 2:00
    assert first(2, "30 2 * * *", eve) == ["25 02:30+0200", "26 02:30+0100"]
    # Seen from within the second of the two hours, and from the end of the first.
    within = at("2026-10-25 02:15", BERLIN, fold=1)
    assert first(1, "30 2 * * *", within) == ["26 02:30+0100"]
    assert first(1, "30 2 * * *", at("2026-10-25 02:30", BERLIN)) == ["26 02:30+0100"]


def test_a_job_of_every_hour_or_minute_runs_in_both_hours() -> None:
    before = at("2026-10-25 01:30", BERLIN)
    assert first(4, "0 * * * *", before) == [
        *("25 02:00+0200", "25 02:00+0100", "25 03:00+0100", "25 04:00+0100")
    ]
    moments = list(islice(times("*/20 * * * *", BERLIN, after=before), 20))
    assert {later - earlier for earlier, later in pairwise(moments)} == {1200.0}


@pytest.mark.parametrize("schedule", ["30 2 * * *", "0 * * * *", "*/7 1-3 * * *", "5 */2 * * 0"])
def test_looking_in_steps_finds_what_one_look_finds(schedule: str) -> None:
    start, end = at("2026-10-24 20:00", BERLIN), at("2026-10-25 08:00", BERLIN)
    found = islice(times(schedule, BERLIN, after=start), 200)
    at_once = [moment for moment in found if moment <= end]
    in_steps, seen = [], start
    while seen < end:
        now = min(seen + 137.0, end)
        in_steps += [each.at for each in plan(
            schedule, BERLIN, seen_to=seen, now=now, missed="run_all")]  # fmt: skip
        seen = now
    assert in_steps == at_once


# What can't be used.


@pytest.mark.parametrize(
    "schedule",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "@daily", "x * * * *"),
        *("*/0 * * * *", "5-1 * * * *", "0 0 31 2 *", "* " * 300, "1,,2 * * * *", "-1 * * * *"),
    ],
)
def test_what_is_no_schedule_is_an_error_that_says_so(schedule: str) -> None:
    with pytest.raises(ConfigurationError, match="schedule"):
        check_schedule(schedule, "UTC")


@pytest.mark.parametrize("zone", ["", "Berlin", "../etc/passwd", "Europe/Nowhere", "UTC+2", "a\0"])
def test_what_is_no_zone_is_an_error_that_says_so(zone: str) -> None:
    with pytest.raises(ConfigurationError, match="no time zone"):
        check_schedule("* * * * *", zone)


def test_a_time_that_never_comes_is_no_schedule() -> None:
    check_schedule("0 0 29 2 *", "UTC")
    with pytest.raises(ConfigurationError, match="schedule"):
        check_schedule("0 0 30 2 *", "UTC")


# What is to be done.

NOW = at("2026-06-01 12:00")


def planned(missed: Missed, *, away_s: float, schedule: str = "0 * * * *") -> list[Planned]:
    return plan(schedule, "UTC", seen_to=NOW - away_s, now=NOW, missed=missed)


@pytest.mark.parametrize("missed", ["skip", "run_once", "run_all"])
def test_a_time_that_has_just_come_is_run(missed: Missed) -> None:
    assert planned(missed, away_s=3) == [Planned(NOW, run=True, missed=0)]
    assert planned(missed, away_s=0) == []
    late = plan("0 * * * *", "UTC", seen_to=NOW - 3, now=NOW + LATE_AFTER_S, missed=missed)
    assert late == [Planned(NOW, run=True, missed=0)]


def test_missed_times_are_skipped_with_one_note() -> None:
    assert planned("skip", away_s=3 * HOUR + 1) == [
        Planned(NOW - HOUR, run=False, missed=2),
        Planned(NOW, run=True, missed=0),
    ]


def test_missed_times_are_run_once() -> None:
    assert planned("run_once", away_s=3 * HOUR + 1) == [Planned(NOW, run=True, missed=3)]
    assert plan(
        "0 * * * *", "UTC", seen_to=NOW - 3 * HOUR - 1, now=NOW + 120, missed="run_once"
    ) == [Planned(NOW, run=True, missed=3)]


def test_missed_times_are_all_run_up_to_a_limit() -> None:
    assert planned("run_all", away_s=2 * HOUR + 1) == [
        Planned(NOW - 2 * HOUR, run=True, missed=0),
        Planned(NOW - HOUR, run=True, missed=0),
        Planned(NOW, run=True, missed=0),
    ]
    many = planned("run_all", away_s=100 * HOUR + 1)
    assert len(many) == RUN_ALL_LIMIT + 1
    assert many[0] == Planned(NOW - RUN_ALL_LIMIT * HOUR, run=True, missed=100 - RUN_ALL_LIMIT)
    assert many[-1] == Planned(NOW, run=True, missed=0)


def test_times_of_long_ago_are_forgotten() -> None:
    year = planned("run_once", away_s=365 * 86400, schedule="*/10 * * * *")
    assert year == [Planned(NOW, run=True, missed=int(LOOK_BACK_S / 600) - 1)]
