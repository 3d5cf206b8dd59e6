"""The `http_get` tool: the one that runs on the host, because a container has no network.

It is the worked example of a tool of one's own, and part of the extended set. What may be
fetched is not its matter: `context.network` is under the rules that the session's programs
are under, and private addresses are refused there whatever a policy says of the URL.
"""

from runner.egress.access import NotReached, Refused
from runner.model import Outcome, Status
from runner.tools.base import (
    Effects,
    SystemText,
    Tool,
    ToolContext,
    ToolInput,
    decode_text,
)

MAX_BODY_BYTES = 1024**2
TIMEOUT_S = 30.0
"""For all of it, redirects included, unless the call has less."""


class HttpGetInput(ToolInput):
    """The input of `http_get`."""

    url: SystemText
    """The https:// URL to fetch."""


class HttpGetTool(Tool):
    """Fetches a page."""

    name = "http_get"
    description = (
        "Fetch an https:// URL with GET, following redirects. Returns the HTTP status, then the "
        "body."
    )
    input = HttpGetInput
    effects = Effects(read_only=True, destructive=False, idempotent=True, open_world=True)

    async def execute(self, context: ToolContext, input: HttpGetInput, /) -> Outcome:
        """Fetch it.

        `details`: `url` of the page after redirects, `status`, `content_type`, and, where they
        apply, `truncated` and `undecodable_bytes` of the body that are U+FFFD now. An answer of
        the server is never an error of the tool, whatever its status.
        """
        if context.network is None:
            return Outcome(
                error="http_get: this session has no network: whoever opened it gave it none",
                status=Status.DENIED,
            )
        limit_s = min(TIMEOUT_S, context.deadline_s)
        try:
            got = await context.network.fetch(
                input.url, most_bytes=MAX_BODY_BYTES, timeout_s=limit_s
            )
        except Refused as refused:
            return Outcome(error=f"http_get: refused: {refused}", status=Status.DENIED)
        except NotReached as error:
            return Outcome(error=f"http_get: {error}", status=Status.FAILED)
        body, undecodable = decode_text(got.body)
        lines = [f"HTTP {got.status} {got.reason}".rstrip(), body]
        details = {"url": got.url, "status": got.status, "content_type": got.content_type}
        if not got.complete:
            lines.append(f"(truncated at {MAX_BODY_BYTES} bytes)")
            details["truncated"] = True
        if undecodable:
            details["undecodable_bytes"] = undecodable
        return Outcome(output="\n".join(lines), details=details)
