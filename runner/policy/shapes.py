"""What rules look at looks like: the JSON of a call for each built-in tool, paths, commands.

The policy does not import the tools, so their fields are listed here once more; a test
holds this table against the tools' own schemas. It serves the warnings only: no verdict
depends on it.
"""

from dataclasses import dataclass, field

from runner.policy.language import Shape

_TEXT = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"'
_TEXT_UNESCAPED = r'"(?:[^"\\]|\\["\\/bfnrtu])*"'
"""What a text would be if JSON took control characters as they are."""


@dataclass(frozen=True, slots=True)
class Form:
    """The JSON of a tool's calls, as the rules see it."""

    opening: str
    """What it always starts with."""
    example: str
    shape: Shape = field(compare=False, repr=False)
    unescaped: Shape = field(compare=False, repr=False)
    """The same if control characters stood in it as they are. They never do."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A tool's fields in their order, with their JSON types; then those that may be missing."""

    required: tuple[tuple[str, str], ...]
    optional: tuple[tuple[str, str], ...] = ()

    def form(self, example: str) -> Form:
        """The JSON that these fields make."""
        return Form(
            opening=f'{{"{self.required[0][0]}":"',
            example=example,
            shape=self._shape(_TEXT),
            unescaped=self._shape(_TEXT_UNESCAPED),
        )

    def _shape(self, text: str) -> Shape:
        kinds = {
            "string": text,
            "boolean": "(?:true|false)",
            "integer": r"-?[0-9]+",
            "number": r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?",
            # As it is, and as rules see variables; see `acts`.
            "object": rf"(?:\{{(?:{text}:{text}(?:,{text}:{text})*)?\}}|\[{text}(?:,{text})*\])",
        }
        always = ",".join(f'"{name}":{kinds[kind]}' for name, kind in self.required)
        maybe = "|".join(f',"{name}":{kinds[kind]}' for name, kind in self.optional)
        return Shape(rf"\{{{always}(?:{maybe})*\}}")


FIELDS = {
    "read": Fields(
        (("path", "string"),),
        (("offset", "integer"), ("limit", "integer"), ("encoding", "string")),
    ),
    "write": Fields((("path", "string"), ("content", "string")), (("encoding", "string"),)),
    "edit": Fields(
        (("path", "string"), ("old_string", "string"), ("new_string", "string")),
        (("replace_all", "boolean"),),
    ),
    "grep": Fields(
        (("pattern", "string"), ("path", "string")),
        (("ignore_case", "boolean"), ("include", "string")),
    ),
    "bash": Fields(
        (("command", "string"),),
        (
            ("cwd", "string"),
            ("env", "object"),
            ("timeout_s", "number"),
            ("stdin", "string"),
            ("stdin_encoding", "string"),
            ("separate_stderr", "boolean"),
            ("user", "string"),
        ),
    ),
}
"""Of the five tools, as the extended set has them: what may be missing always is in the other."""

EXTENDED = frozenset(
    {
        "multi_edit",
        "glob",
        "list",
        "shell",
        "process_start",
        "process_poll",
        "process_write",
        "process_kill",
        "process_list",
        "http_get",
    }
)
"""Further tools of the extended set; their calls may be any JSON object for all that is said."""

ANY_FORM = Form(
    opening="{",
    example='{"name":"value"}',
    shape=Shape(r'\{(?:"[^\x00-\x1f]*)?\}'),
    unescaped=Shape(r'\{(?:"(?s:.*))?\}'),
)
"""Any JSON object: what a tool of the user's own may be called with."""

FORMS = {
    "read": FIELDS["read"].form('{"path":"/workspace/a"}'),
    "write": FIELDS["write"].form('{"path":"/workspace/a","content":"b"}'),
    "edit": FIELDS["edit"].form('{"path":"/workspace/a","old_string":"b","new_string":"c"}'),
    "grep": FIELDS["grep"].form('{"pattern":"b","path":"/workspace"}'),
    "bash": FIELDS["bash"].form('{"command":"ls -l"}'),
}


# --- what else patterns are searched in

_NAME = r"(?:[^/.][^/]*|\.[^/.][^/]*|\.\.[^/]+)"
PATHS = Shape(rf"/(?:{_NAME}(?:/{_NAME})*)?")
"""An absolute path that is normalised."""

GIVEN_PATH = Shape(r"/(?s:.*)")
"""The argument `path` of a built-in tool as a model gives it."""

_WORD = r"""(?:[^\x00-\x20']+|'(?:[^\x00-\x1f']|'"'"')*')"""
ALLOWED_COMMAND = Shape(rf"{_WORD}(?: {_WORD})*")
"""The writing of a command that allow rules see; see `commands`."""

REFUSED_COMMAND = Shape(r"[^\x00-\x1f]+")
"""All writings of commands that other rules see, and more."""
