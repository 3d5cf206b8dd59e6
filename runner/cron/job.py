"""A job from words: what its values may be. Loads no policy and starts nothing."""

import ipaddress
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from runner.cron.schedule import check_schedule
from runner.errors import ConfigurationError
from runner.model import Job
from runner.tools import InvalidInput, ToolSet, decode, named_registry

__all__ = ["FileTarget", "Target", "WebhookTarget", "make_job", "target_of"]

MAX_CALLS = 100
MAX_CALLS_BYTES = 1024**2
"""Of all calls of a job, as JSON."""
MAX_RUN_S = 24 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_URL_CHARACTERS = 2000
_CHOICES = {
    name: get_args(hint)
    for name, hint in get_type_hints(Job).items()
    if get_origin(hint) is Literal
}
"""What may be chosen for those fields of a job that are a choice."""


class FileTarget(NamedTuple):
    """A file on the host that gets a line for each run."""

    path: Path


class WebhookTarget(NamedTuple):
    """A URL that each run's result is sent to."""

    url: str
    is_loopback: bool
    """It is a service of this machine."""


Target = FileTarget | WebhookTarget | None


def make_job(
    name: str,
    schedule: str,
    calls: Sequence[Mapping[str, Any]] | str,
    *,
    policy: str,
    now: float,
    zone: str = "UTC",
    **options: Any,
) -> Job:
    """A job, checked, for `Store.add_job`.

    Args:
        name: Letters, digits, `.`, `_` and `-`.
        schedule: A cron expression of five fields.
        calls: A command for `bash`; or calls, each with `tool` and `arguments`.
        policy: A shipped policy's name, or a file. It is loaded when the job runs.
        now: Seconds since the epoch: times up to here are nobody's.
        zone: The time zone of the schedule, by its IANA name.
        **options: The other fields of `Job`.

    Raises:
        ConfigurationError: A value can't be used.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:80]!r} is no name for a job: use up to 64 letters, digits, '.', '_' and '-'"
        )
    check_schedule(schedule, zone)
    if isinstance(calls, str):
        calls = [{"tool": "bash", "arguments": {"command": calls}}]
    for option, choices in _CHOICES.items():
        if option in options and options[option] not in choices:
            raise ConfigurationError(
                f"{option} of a job is one of {', '.join(filter(None, choices))},"
                f" not {options[option]!r}"
            )
    job = Job(
        id=f"j-{secrets.token_hex(6)}",
        name=name,
        schedule=" ".join(schedule.split()),
        zone=zone,
        calls=_checked_calls(calls, options.get("tools", "rousseau")),
        policy=policy,
        created_at=now,
        seen_to=now,
        **options,
    )
    if not policy:
        raise ConfigurationError("a job needs a policy: a shipped one's name, or a file")
    for what, limit in (("timeout_s", job.timeout_s), ("run_timeout_s", job.run_timeout_s)):
        if limit is not None and not 0 < limit <= MAX_RUN_S:
            raise ConfigurationError(f"{what} of a job is more than 0 and at most {MAX_RUN_S:g} s")
    target_of(job)
    return job


def _checked_calls(
    calls: Sequence[Mapping[str, Any]], tools: ToolSet
) -> tuple[Mapping[str, Any], ...]:
    if not 0 < len(calls) <= MAX_CALLS:
        raise ConfigurationError(f"a job has between 1 and {MAX_CALLS} calls, not {len(calls)}")
    checked: list[dict[str, Any]] = []
    for number, call in enumerate(calls, 1):
        if (
            not isinstance(call, Mapping)
            or set(call) != {"tool", "arguments"}
            or not isinstance(call["tool"], str)
            or not isinstance(call["arguments"], Mapping)
        ):
            raise ConfigurationError(
                f"call {number} of the job is not an object with `tool`, a name, and `arguments`,"
                " an object"
            )
        checked.append({"tool": call["tool"], "arguments": dict(call["arguments"])})
    try:
        size = len(json.dumps(checked, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the calls of the job are not JSON: {error}") from error
    if size > MAX_CALLS_BYTES:
        raise ConfigurationError(f"the calls of the job are longer than {MAX_CALLS_BYTES} bytes")
    # Said now, by who adds it, and not at three in the morning.
    registry = named_registry(tools)
    for number, call in enumerate(checked, 1):
        tool = registry.get(call["tool"])
        if tool is None:
            raise ConfigurationError(
                f"call {number} of the job: there is no tool {call['tool'][:80]!r}; there are"
                f" {', '.join(registry.names())}"
            )
        try:
            decode(tool, call["arguments"])
        except InvalidInput as error:
            raise ConfigurationError(f"call {number} of the job: {error}") from error
    return tuple(checked)


def target_of(job: Job) -> Target:
    """Where a job's results go besides the record: what its `deliver` says.

    Raises:
        ConfigurationError: It says nothing of the kind, or what is not safe: a file in the
            job's workspace, or a URL that is not HTTPS and not this machine's.
    """
    if job.deliver == "record":
        return None
    kind, _, rest = job.deliver.partition(":")
    if kind == "file" and rest:
        return _file(Path(rest), job)
    if kind == "webhook" and rest:
        return _webhook(rest)
    raise ConfigurationError(
        f"results go to `record`, `file:PATH` or `webhook:URL`, not {job.deliver[:200]!r}"
    )


def _file(path: Path, job: Job) -> FileTarget:
    if not path.is_absolute() or "\0" in str(path):
        raise ConfigurationError(
            f"the file {str(path)!r} needs an absolute path: a daemon may be started anywhere"
        )
    # What lies there is the calls' to write: they could have us write through a link.
    if job.workspace and path.resolve().is_relative_to(Path(job.workspace).resolve()):
        raise ConfigurationError(
            f"the file {path} lies in the job's workspace {job.workspace}, where its calls write:"
            " choose one elsewhere"
        )
    return FileTarget(path)


def _webhook(url: str) -> WebhookTarget:
    problem = f"the webhook {url[:_URL_CHARACTERS]!r} can't be used: "
    if len(url) > _URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigurationError(f"{problem}it is longer than a URL is, or holds odd characters")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a port that is none is an error when it is read
    except ValueError as error:
        raise ConfigurationError(f"{problem}{error}") from error
    if not host or parts.username is not None or parts.fragment:
        raise ConfigurationError(f"{problem}write https://HOST/PATH, without a user or a fragment")
    is_loopback = _is_loopback(host)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback):
        raise ConfigurationError(f"{problem}results leave this machine by https only")
    return WebhookTarget(url, is_loopback)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
