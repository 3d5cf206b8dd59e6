"""When: the times of a schedule, and what is to be done about those that have come.

Pure: no clock, no store. Cron expressions and daylight saving time are `cronsim`'s, which
does as Debian's cron does.

- Clocks go forward: a job at a time of day that does not exist runs at the first one that
  does. One whose hour or minute is `*` follows the clock, and the hour is simply missing.
- Clocks go back: a job at a time of day that comes twice runs the first time. One whose hour
  or minute is `*` runs in both.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from runner.errors import ConfigurationError

__all__ = ["Planned", "check_schedule", "next_time", "plan", "times"]

LATE_AFTER_S = 60.0
"""A time that is longer ago than this was missed."""
LOOK_BACK_S = 7 * 86400.0
"""How far back missed times are looked for."""
RUN_ALL_LIMIT = 24
"""How many missed times are made up for, one by one; the latest."""
_EXPRESSION_CHARACTERS = 200

Missed = Literal["skip", "run_once", "run_all"]


def check_schedule(schedule: str, zone: str) -> None:
    """See that a schedule can be used.

    Raises:
        ConfigurationError: It is not a cron expression of five fields, never comes, or the
            time zone is unknown on this machine.
    """
    if len(schedule) > _EXPRESSION_CHARACTERS or len(schedule.split()) != 5:
        raise ConfigurationError(
            f"{schedule[:_EXPRESSION_CHARACTERS]!r} is not a schedule: write five fields, minute,"
            " hour, day of month, month, and day of week, such as '30 3 * * MON-FRI'"
        )
    if next(times(schedule, zone, after=0.0), None) is None:
        raise ConfigurationError(f"{schedule!r} is a schedule without a time that ever comes")


def times(schedule: str, zone: str, *, after: float) -> Iterator[float]:
    """The times of a schedule after a moment, in order, each once: seconds since the epoch.

    Raises:
        ConfigurationError: The expression or the zone can't be used.
    """
    try:
        start = datetime.fromtimestamp(after, UTC).astimezone(ZoneInfo(zone))
    except (ValueError, OSError, KeyError) as error:  # KeyError: no such zone
        raise ConfigurationError(
            f"there is no time zone {zone!r} here: write an IANA name, such as Europe/Berlin or"
            " UTC; where all are missing, install the system's tzdata"
        ) from error
    try:
        moments = CronSim(schedule, start)
    except (CronSimError, ValueError) as error:
        raise ConfigurationError(f"{schedule!r} is not a schedule: {error}") from error
    return _rising(moments, after)


def _rising(moments: Iterator[datetime], after: float) -> Iterator[float]:
    for moment in moments:
        at = moment.timestamp()
        # In an hour that comes twice, it begins with the first one of a moment in the second.
        if at > after:
            after = at
            yield at


def next_time(schedule: str, zone: str, *, after: float) -> float | None:
    """The first time of a schedule after a moment; None where there is none.

    Raises:
        ConfigurationError: The expression or the zone can't be used.
    """
    return next(times(schedule, zone, after=after), None)


class Planned(NamedTuple):
    """What is to be done about a time."""

    at: float
    run: bool
    """Run, or note that it was skipped."""
    missed: int
    """How many earlier times it stands for besides."""


def plan(schedule: str, zone: str, *, seen_to: float, now: float, missed: Missed) -> list[Planned]:
    """What is to be done about the times that have come.

    Args:
        schedule: The cron expression.
        zone: Its time zone.
        seen_to: Times up to this one have been dealt with.
        now: The present.
        missed: What to do about times that are longer ago than `LATE_AFTER_S`: note that
            they were skipped, run once for all of them, or run for each of the last
            `RUN_ALL_LIMIT`. Times before `LOOK_BACK_S` are forgotten.

    Raises:
        ConfigurationError: The expression or the zone can't be used.
    """
    late: list[float] = []
    fresh: list[float] = []
    for at in times(schedule, zone, after=max(seen_to, now - LOOK_BACK_S)):
        if at > now:
            break
        (fresh if now - at <= LATE_AFTER_S else late).append(at)
    planned = [Planned(at, run=True, missed=0) for at in fresh]
    if not late:
        return planned
    match missed:
        case "skip":
            return [Planned(late[-1], run=False, missed=len(late) - 1), *planned]
        case "run_once" if planned:
            # The one that is on time is the one run.
            return [planned[0]._replace(missed=len(late)), *planned[1:]]
        case "run_once":
            return [Planned(late[-1], run=True, missed=len(late) - 1)]
        case "run_all":
            made_up = [Planned(at, run=True, missed=0) for at in late[-RUN_ALL_LIMIT:]]
            made_up[0] = made_up[0]._replace(missed=len(late) - len(made_up))
            return made_up + planned
