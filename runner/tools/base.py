"""What a tool is, and what it may touch while it runs.

Owns the shape of tools, of what they are given, and the words they share with the reference
implementation. It does not decode input (`decoding`), keep tools (`registry`), or know any of
the five.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from runner.background import Programs
from runner.egress.access import NetworkAccess
from runner.model import Call, Outcome, Status
from runner.sandbox import Sandbox

QUOTE_LIMIT = 1000
"""Characters of somebody's text that an error repeats."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """How much a tool takes and returns."""

    read_limit_bytes: int = 16 * 1024**2
    """The largest file that `read` returns and `edit` edits: it is held in the host's memory."""
    output_limit_bytes: int = 1024**2
    """Of a command's output, this much comes back; the rest stays in the container."""
    grep_max_matches: int = 200
    grep_max_file_bytes: int = 4 * 1024**2
    """Larger files are not searched."""
    list_max_entries: int = 1000
    """What `list` and `glob` return at most."""
    background: Literal["keep", "kill"] = "keep"
    """What becomes of processes that a command leaves running."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool is given beside its input."""

    sandbox: Sandbox
    """The session's container: run programs there, read, write and search its files."""
    call: Call
    deadline_s: float
    """Seconds that the tool has, from its start. When they are over it is cancelled."""
    on_output: Callable[[bytes], Awaitable[None]] | None = None
    """Somebody who wants output as it comes; a tool that has any awaits this with each piece."""
    limits: ToolLimits = ToolLimits()
    environment: Mapping[str, str] = field(default_factory=dict)
    """The session's variables for programs, on top of the container's own."""
    judged: str | None = None
    """Where the argument `path` leads, as the policy judged it. A tool that touches that file
    hands this to the sandbox, which then acts there and follows no link. None: no rule looks
    at paths."""
    hidden: tuple[str, ...] = ()
    """RE2 over resolved paths of files: those that a search passes over, whatever its root."""
    watch: tuple[str, ...] = ()
    """RE2 over whole paths in lower case: the files that are protected. A tool that runs a
    program hands this to the sandbox, and tells in `Outcome.details` what became of them."""
    programs: Programs = field(default_factory=Programs)
    """The programs of this session that go on between calls, and its shell."""
    network: NetworkAccess | None = None
    """The session's network, for a tool that fetches something on the host; None: it has none."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What a tool may do, as hints for whoever shows its calls to people; nothing relies on them.

    What is not known is taken for the worse, as the Model Context Protocol does.
    """

    read_only: bool = False
    """It changes nothing."""
    destructive: bool = True
    """It may change or remove what is there, rather than only add."""
    idempotent: bool = False
    """A second call with the same input changes nothing more."""
    open_world: bool | None = True
    """It may reach what is outside of the session. None: where the session has a network."""


class Tool(Protocol):
    """A tool. Any class will do that has these; to derive from this one gives the defaults.

    An instance serves calls of many sessions at once, so it keeps nothing of a call. What a
    tool reads from `input` is valid: it went through the model. An exception that `execute`
    raises becomes the error of that call.
    """

    @property
    def name(self) -> str:
        """What the model calls it: letters, digits, `_` and `-`."""

    @property
    def description(self) -> str:
        """What it does, for the model."""

    @property
    def input(self) -> type[BaseModel]:
        """Its input; the schema is this model's. Derive it from `ToolInput`."""

    async def execute(self, context: ToolContext, input: Any, /) -> Outcome:
        """Do it, with an instance of the model."""
        ...


def effects(tool: Tool) -> Effects:
    """What a tool may do: its attribute `effects`, or the worst where it has none."""
    found = getattr(tool, "effects", None)
    return found if isinstance(found, Effects) else Effects()


def keeps_time(tool: Tool) -> bool:
    """Whether a tool ends at `context.deadline_s` by itself and returns what it has.

    Such a tool says `keeps_time = True`; others are cancelled at their deadline.
    """
    return bool(getattr(tool, "keeps_time", False))


class ToolInput(BaseModel):
    """A base for input models: strict and closed; docstrings of fields are descriptions."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


def _required(value: str) -> str:
    if not value:
        raise PydanticCustomError("tool_input", "is required")
    return value


def _without_nul(value: str) -> str:
    if "\0" in value:
        # The operating system takes it for the end.
        raise PydanticCustomError("tool_input", "contains a NUL byte")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        quoted = go_quote(value)
        raise PydanticCustomError("tool_input", "must be absolute, got {path}", {"path": quoted})
    return value


RequiredText = Annotated[str, AfterValidator(_required)]
"""A string that must not be empty. The schema doesn't say so, as the reference's doesn't."""
SystemText = Annotated[RequiredText, AfterValidator(_without_nul)]
"""One that is handed to the operating system."""
AbsolutePath = Annotated[SystemText, AfterValidator(_absolute)]
"""A path that starts with `/`."""


def failed(error: str, failure: str = "", **facts: Any) -> Outcome:
    """The outcome of a tool that could not do what it was asked.

    Args:
        error: The words for it.
        failure: The cause as one word, for programs, as `details["failure"]`: one of
            `runner.helper.wire.FAILURES`, or the tool's own; empty: there is no word for it.
        **facts: What else `details` says.
    """
    details = {"failure": failure, **facts} if failure else facts
    return Outcome(error=error, status=Status.FAILED, details=details)


def decode_text(content: bytes) -> tuple[str, int]:
    """Bytes as text, and how many of them were no UTF-8 and are U+FFFD now."""
    try:
        return content.decode(), 0
    except UnicodeDecodeError:
        valid = content.decode(errors="ignore").encode()
        return content.decode(errors="replace"), len(content) - len(valid)


def seconds(value: float) -> str:
    """A time limit as errors say it: `60s`, `0.6s`."""
    return f"{round(value, 3):.12g}s"


_GO_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def go_quote(text: str) -> str:
    """A text as Go's `%q` shows it; the first `QUOTE_LIMIT` characters of it."""
    quoted = "".join(map(_go_escape, text[:QUOTE_LIMIT]))
    return f'"{quoted}"' if len(text) <= QUOTE_LIMIT else f'"{quoted}"...'


def _go_escape(character: str) -> str:
    if (escape := _GO_ESCAPES.get(character)) is not None:
        return escape
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
