r"""What a shell script would do, as far as that is certain before it runs.

Owns the way from a script's text to its simple commands and the files that it writes by
redirection. What programs do with their words is in `programs`; what rules say about a command
is in `commands`. Nothing here runs, reads or remembers anything.

A script is read twice, by readers that know nothing of each other: a tokenizer that follows
POSIX to the letter, and tree-sitter's grammar of bash. A command counts only if both see the
same words in it; each token has to have its place in the tree, exactly once. Where they differ,
where dash, busybox and bash would, or where a word depends on what only the running shell
knows, that part of the script is *unknown*. There are no other errors: whatever the text, the
answer is a `Script`.

Each program of the script becomes a `Command`, wherever it stands: in a pipeline, a loop, a
subshell; behind `timeout`, `xargs` or `find -exec`; in the text that `sh -c` and `eval` are
given. Wrappers are listed beside what they run, so that a rule can refuse either.
"""

import posixpath
import re
import threading
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Point

from runner.policy import programs
from runner.policy.acts import WORKSPACE
from runner.policy.matching import normalise
from runner.policy.programs import Shape, Word

MAX_CHARACTERS = 10_000
MAX_TOKENS = 2_000
"""Words and operators, those of texts in it included."""
MAX_COMMANDS = 250
MAX_DEPTH = 100
"""How deep the nodes of a tree may lie."""
MAX_NESTING = 6
"""How many wrappers, and texts given to `sh -c`, may stand in each other."""
MAX_PARSE_S = 0.008
"""The processor's time for the grammar, which is slow on some texts that are no scripts."""
_MAX_UNKNOWN = 100
_MAX_HERE_DOCUMENTS = 16


@dataclass(frozen=True, slots=True)
class Sensitive:
    """A word that an allow rule has to name: that it matches the command is not enough."""

    word: int
    """Its place in `argv`."""
    why: str


@dataclass(frozen=True, slots=True)
class Command:
    """One program with its words, as the kernel or a built-in would get them."""

    argv: tuple[str, ...]
    """Without quotes. The program is its base name if it lies in a directory of the system. A
    word that is not certain (a glob, and where the script is unknown) is as it was written."""
    start: int
    end: int
    """Offsets in the script, in characters. For a command in a text (`sh -c`), those of the word
    that holds it."""
    must_allow: bool = True
    """False for a wrapper that adds nothing of its own, such as `timeout`: a rule may refuse
    it, but it is what it runs that has to be allowed."""
    sensitive: tuple[Sensitive, ...] = ()
    open_ended: bool = False
    """It gets more words when it runs: `xargs` has them from its input."""


@dataclass(frozen=True, slots=True)
class Write:
    """A file that is written: the target of a redirection, or of `tee` and `dd`."""

    path: str
    """Absolute and normalised."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part of the script of which nobody can say beforehand what it does."""

    start: int
    end: int
    """Offsets in the script, in characters."""
    why: str
    """One clause for a person."""


@dataclass(frozen=True, slots=True)
class Script:
    """What is certain about a script, and what is not."""

    commands: tuple[Command, ...] = ()
    """In the order of the text, a wrapper before what it runs. Where something is unknown, this
    is the rest, and may be less than all of it."""
    writes: tuple[Write, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Where a script starts, as its call says beside it."""

    directory: str | None = None
    """Its working directory; None: the workspace."""
    user: str | None = None
    """Whose rights it has; None: the session's own user's."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set for it."""
    used: bool = False
    """Its shell has run other scripts before, which may have left it in another directory."""


PLAIN_START = Start()


def analyse(script: str, start: Start = PLAIN_START) -> Script:
    """Take a script apart.

    Args:
        script: As it is given to `/bin/sh -c`, which may be dash, busybox or bash.
        start: Where it starts. A directory counts as a `cd` that stands before the script, a
            variable as an assignment. These parts have no place in the text: they start and end
            at 0.

    Returns:
        Never an error: what is too long, too deep, not a script, or not the same script to
        every shell has an `Unknown`.
    """
    found = _Findings(moved=start.used)
    _Reading(script, found, None, 0).begin(start)
    _Reading(script, found, None, 0).read()
    return Script(tuple(found.commands), tuple(found.writes), tuple(found.unknown))


@dataclass(slots=True)
class _Findings:
    """What has been found so far, in a script and in the texts within it."""

    commands: list[Command] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    moved: bool = False
    """A `cd` stands somewhere before: relative paths may be below another directory."""
    tokens: int = 0
    parse_s: float = MAX_PARSE_S
    """What is left of the time for the grammar."""

    def doubt(self, start: int, end: int, why: str) -> None:
        """Say that a part is unknown; one reason for a place is enough."""
        last = self.unknown[-1] if self.unknown else None
        if last is not None and last.start <= start and end <= last.end:
            return
        if len(self.unknown) < _MAX_UNKNOWN:
            self.unknown.append(Unknown(start, end, why))


# --- characters

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_CONTINUED = re.compile(r"\\\n")
_BLANK_LOOKING = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that Unicode calls letters, marks or symbols, and that show nothing."""
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


def _forbidden(script: str) -> tuple[int, str] | None:
    """The first character that must not be in a script, and why."""
    found = _UNSEEN.search(script)
    if found is not None:
        what = "a carriage return" if found[0] == "\r" else "a control character"
        return found.start(), f"{what}: programs and people read it differently"
    found = _CONTINUED.search(script)
    if found is not None:
        return found.start(), "a backslash at the end of a line: write it as one line"
    if script.isascii():
        return None
    for found in _BEYOND_ASCII.finditer(script):
        if _is_invisible(found[0]):
            code = f"U+{ord(found[0]):04X}"
            return found.start(), f"the character {code}, which nobody can see"
    return None


def _is_invisible(character: str) -> bool:
    return (
        unicodedata.category(character) in {"Cc", "Cf", "Zs", "Zl", "Zp", "Co", "Cs", "Cn"}
        or "\ufe00" <= character <= "\ufe0f"
        or "\U000e0100" <= character <= "\U000e01ef"
        or "\u180b" <= character <= "\u180f"
        or character in _BLANK_LOOKING
    )


# --- tokens


class _Kind(IntEnum):
    WORD = 0
    CONTROL = 1
    """What ends a command: an operator or the end of a line."""
    REDIRECT = 2
    DESCRIPTOR = 3
    """A digit right before a redirection."""


@dataclass(slots=True)
class _Token:
    kind: _Kind
    start: int
    end: int
    text: str
    """The operator; of a word, its value without quotes."""
    quoted: bool = False
    shape: Shape = Shape.STATIC
    why: str = ""
    """Why the value of a word is not certain."""


class _Unreadable(Exception):
    """The text is no script, or one that shells read differently."""

    def __init__(self, start: int, end: int, why: str):
        super().__init__(why)
        self.start = start
        self.end = end
        self.why = why


_NOTHING = re.compile(r"[ \t]+|#[^\n]*")
"""Blanks, or a comment."""
_OPERATOR = re.compile(
    r"\|&|&>>?|<<<|;;&|;&|<\(|>\(|\(\(|&&|\|\||;;|<<-|<<|>>|>\||>&|<&|<>|[;&|()<>\n]"
)
_CONTROLS = frozenset(["&&", "||", ";;", ";", "&", "|", "(", ")", "\n"])
_REDIRECTS = frozenset(["<<-", "<<", ">>", ">|", ">&", "<&", "<>", "<", ">"])
_IN_BASH_ONLY = "`{}` means something in bash only"
_PLAIN = re.compile(r"[^ \t\n\\'\"`$|&;<>()*?\[\]{}~]+")
_USUAL_WORD = re.compile(r"[ \t]*([^ \t\n\\'\"`$|&;<>()*?\[\]{}~#]+)(?=[ \t\n;|&)]|\Z)")
"""A word that is plain from its start to its end: most of them."""
_PLAIN_QUOTED = re.compile(r"[^\\\"`$]+")
_EXPANDS = re.compile(r"\$[A-Za-z0-9_{(@*#?$!\-'\"\[]")
_EXPANDS_QUOTED = re.compile(r"\$[A-Za-z0-9_{(@*#?$!\-\[]")
_NAMED = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")
_EXPANDS_IN_BODY = re.compile(r"\\.|`|\$[A-Za-z0-9_{(@*#?$!\-\[]", re.DOTALL)
_HOME = re.compile(r"(?:^|[=:])~")

_VARIABLE = "a variable: its value is not known before it runs"
_SUBSTITUTION = "a substitution: what it gives is not known before it runs"
_BACKTICK = "a backtick: what it gives is not known before it runs"
_ARITHMETIC = "an arithmetic expansion, which can run code"
_BASH_QUOTES = "a quote with `$` before it, which shells read differently"
_BRACES = "braces, which bash expands and other shells do not"
_TILDE = "a `~`: the home directory is not known before it runs"


def _expansion(after: str) -> str:
    """What begins with `$` and these two characters, in words."""
    match after[:1]:
        case "(":
            return _ARITHMETIC if after == "((" else _SUBSTITUTION
        case "[":
            return _ARITHMETIC
        case "'" | '"':
            return _BASH_QUOTES
    return _VARIABLE


class _Tokenizer:
    """A script into tokens, as chapter 2.3 of POSIX's shell language has it."""

    def __init__(self, script: str, limit: int):
        self.script = script
        self.limit = limit
        self.tokens: list[_Token] = []
        self._opened: _Token | None = None
        """The operator of a here-document, whose delimiter comes next."""
        self._here_documents = 0
        self._waiting: list[tuple[bool, _Token]] = []
        """Here-documents whose bodies follow the line: whether tabs go, and the delimiter."""
        self.doubts: list[tuple[int, int, str]] = []
        """What is uncertain in bodies of here-documents."""

    def run(self) -> None:
        """Fill `tokens` and `doubts`.

        Raises:
            _Unreadable: A quote is open, or there is an operator that shells read differently.
        """
        script, end, at = self.script, len(self.script), 0
        tokens = self.tokens
        while at < end:
            if len(tokens) >= self.limit:
                raise _Unreadable(0, end, f"the script has more than {MAX_TOKENS} words")
            if (found := _USUAL_WORD.match(script, at)) is not None:
                tokens.append(_Token(_Kind.WORD, *found.span(1), found[1]))
                at = found.end()
            elif (found := _NOTHING.match(script, at)) is not None:
                at = found.end()
                continue
            elif (found := _OPERATOR.match(script, at)) is not None:
                at = self._operator(found)
                continue
            else:
                at = self._word(at)
            if self._opened is not None:
                self._delimiter(self._opened, tokens[-1])
        if self._waiting:
            token = self._waiting[0][1]
            raise _Unreadable(token.start, token.end, "a here-document that has no end")

    def _operator(self, found: re.Match[str]) -> int:
        text = found[0]
        if text in _REDIRECTS:
            kind = _Kind.REDIRECT
        elif text in _CONTROLS:
            kind = _Kind.CONTROL
        else:
            raise _Unreadable(found.start(), found.end(), _IN_BASH_ONLY.format(text))
        token = _Token(kind, found.start(), found.end(), text)
        self.tokens.append(token)
        self._opened = token if text in {"<<", "<<-"} else None
        return self._bodies(found.end()) if text == "\n" and self._waiting else found.end()

    def _delimiter(self, operator: _Token, word: _Token) -> None:
        """Note that a here-document begins at the next line."""
        self._opened = None
        self._here_documents += 1
        if self._here_documents > _MAX_HERE_DOCUMENTS:
            raise _Unreadable(0, len(self.script), "too many here-documents")
        if word.shape is not Shape.STATIC or not word.text or "\n" in word.text:
            why = "a here-document whose end shells look for differently"
            raise _Unreadable(operator.start, word.end, why)
        self._waiting.append((operator.text == "<<-", word))

    def _bodies(self, at: int) -> int:
        """Skip the here-documents that begin here."""
        for without_tabs, word in self._waiting:
            start = at
            while True:
                if at >= len(self.script):
                    raise _Unreadable(word.start, word.end, "a here-document that has no end")
                line_end = self.script.find("\n", at)
                line_end = len(self.script) if line_end < 0 else line_end
                line = self.script[at:line_end]
                if (line.lstrip("\t") if without_tabs else line) == word.text:
                    break
                at = line_end + 1
            if not word.quoted:
                self._doubt_body(start, at)
            at = min(line_end + 1, len(self.script))
        self._waiting.clear()
        return at

    def _doubt_body(self, start: int, end: int) -> None:
        for found in _EXPANDS_IN_BODY.finditer(self.script, start, end):
            if not found[0].startswith("\\"):
                after = self.script[found.start() + 1 : found.start() + 3]
                why = _BACKTICK if found[0] == "`" else _expansion(after)
                self.doubts.append((*found.span(), f"{why}; quote the here-document's end"))
                return

    def _word(self, at: int) -> int:
        """Take the word that begins here, and return where it ends."""
        script, start = self.script, at
        parts: list[str] = []
        skeleton: list[str] = []
        """The word with `_` for all that is quoted: what is left of it is syntax."""
        why = ""
        while at < len(script):
            plain = _PLAIN.match(script, at)
            if plain is not None:
                parts.append(plain[0])
                skeleton.append(plain[0])
                at = plain.end()
                continue
            character = script[at]
            match character:
                case " " | "\t" | "\n" | "|" | "&" | ";" | "<" | ">" | "(" | ")":
                    break
                case "'":
                    end = script.find("'", at + 1)
                    if end < 0:
                        raise _Unreadable(at, len(script), "a quote that has no end")
                    parts.append(script[at + 1 : end])
                    skeleton.append("_")
                    at = end + 1
                case '"':
                    at, why = self._quoted(at, parts, why)
                    skeleton.append("_")
                case "\\":
                    if at + 1 == len(script):
                        raise _Unreadable(at, at + 1, "a backslash at the end of the script")
                    parts.append(script[at + 1])
                    skeleton.append("_")
                    at += 2
                case "`":
                    end = script.find("`", at + 1)
                    end = len(script) if end < 0 else end + 1
                    raise _Unreadable(at, end, _BACKTICK)
                case "$" if _EXPANDS.match(script, at):
                    after = script[at + 1 : at + 3]
                    end = self._variable(at, after)
                    why = why or _VARIABLE
                    parts.append(script[at:end])
                    skeleton.append("_")
                    at = end
                case _:
                    parts.append(character)
                    skeleton.append(character)
                    at += 1
        if self._waiting and "\n" in script[start:at]:
            why = "a word that goes on where a here-document may begin"
            raise _Unreadable(start, at, why)
        token = _Token(_Kind.WORD, start, at, "".join(parts))
        bare = "".join(skeleton)
        token.quoted = bare != script[start:at]
        token.shape, token.why = _shape(bare, why)
        if not token.quoted and at < len(script) and script[at] in "<>":
            if bare.isdecimal():
                if len(bare) > 1:
                    why = "a redirection with a number above 9, which shells read differently"
                    raise _Unreadable(start, at, why)
                token.kind = _Kind.DESCRIPTOR
            elif bare.startswith("{"):
                raise _Unreadable(start, at, _IN_BASH_ONLY.format(bare))
        if token.shape is not Shape.STATIC:
            token.text = script[start:at]
        self.tokens.append(token)
        return at

    def _variable(self, at: int, after: str) -> int:
        """Where the variable ends that begins here.

        Raises:
            _Unreadable: It is something else, whose end is a matter of its own grammar.
        """
        name = _NAMED.match(self.script, at)
        if name is not None:
            return name.end()
        if after[0] in "({['\"":
            raise _Unreadable(at, len(self.script), _expansion(after))
        return at + 2

    def _quoted(self, at: int, parts: list[str], why: str) -> tuple[int, str]:
        """Take what is in double quotes, from the first of them on."""
        script, start = self.script, at
        at += 1
        while at < len(script):
            plain = _PLAIN_QUOTED.match(script, at)
            if plain is not None:
                parts.append(plain[0])
                at = plain.end()
                continue
            match script[at]:
                case '"':
                    return at + 1, why
                case "\\":
                    escaped = script[at + 1 : at + 2]
                    parts.append(escaped if escaped in '$`"\\' else "\\" + escaped)
                    at += 2
                case "`":
                    raise _Unreadable(at, at + 1, _BACKTICK)
                case _ if _EXPANDS_QUOTED.match(script, at):
                    after = script[at + 1 : at + 3]
                    end = self._variable(at, after)
                    why = why or _VARIABLE
                    parts.append(script[at:end])
                    at = end
                case dollar:
                    parts.append(dollar)
                    at += 1
        raise _Unreadable(start, len(script), "a quote that has no end")


def _shape(bare: str, why: str) -> tuple[Shape, str]:
    """How certain a word is, from what of it is not quoted."""
    if why:
        return Shape.DYNAMIC, why
    if "~" in bare and _HOME.search(bare):
        return Shape.DYNAMIC, _TILDE
    brace = bare.find("{")
    if brace >= 0 and ("," in bare[brace:] or ".." in bare[brace:]):
        return Shape.DYNAMIC, _BRACES
    bracket = bare.find("[")
    if "*" in bare or "?" in bare or (bracket >= 0 and "]" in bare[bracket:]):
        return (Shape.WILD if bare[0] in "*?[-_" else Shape.FILLED), "names of files"
    return Shape.STATIC, ""


# --- the tree

_LANGUAGE = Language(tree_sitter_bash.language())
_here = threading.local()


def _parse(script: str, deadline_s: float) -> Node | None:
    """The root of the grammar's tree, or None where that takes longer.

    What is not ASCII is shown to it as a letter, so that its offsets count characters.
    """
    parser: Parser | None = getattr(_here, "parser", None)
    if parser is None:
        parser = _here.parser = Parser(_LANGUAGE)
    text = _BEYOND_ASCII.sub("x", script).encode("ascii")

    def read(offset: int, _: Point) -> bytes:
        return text[offset:]

    def is_late(_offset: int, _has_error: bool) -> bool:
        return time.thread_time() > deadline_s

    try:
        return parser.parse(read, progress_callback=is_late).root_node
    except ValueError:  # "Parsing failed": it was stopped, and would go on with the next text
        parser.reset()
        return None


_GROUPS: Mapping[str, frozenset[str]] = {
    kind: frozenset([";", "&", "\n", *leaves.split()])
    for kind, leaves in {
        "program": "",
        "list": "&& ||",
        "pipeline": "|",
        "subshell": "( )",
        "compound_statement": "{ }",
        "negated_command": "!",
        "redirected_statement": "",
        "heredoc_redirect": "<< <<- && || |",
        "if_statement": "if then fi",
        "elif_clause": "elif then",
        "else_clause": "else",
        "while_statement": "while until",
        "for_statement": "for in",
        "do_group": "do done",
        "case_statement": "case in esac",
        "case_item": "( ) | ;;",
    }.items()
}
"""Nodes that are as certain as what is in them, with the operators and keywords they may have."""
_SEEN_BY_TOKENIZER = frozenset(["comment", "heredoc_body", "heredoc_end"])
"""Nodes of which the tokenizer has found the extent, and no token is a part."""
_WORDS = programs.names(
    "word number string raw_string concatenation command_name variable_assignment",
    "variable_name heredoc_start extglob_pattern",
)
_UNKNOWN_NODES = {
    "variable_assignment": "an assignment",
    "variable_assignments": "an assignment",
    "declaration_command": "a built-in that sets variables",
    "unset_command": "a built-in that unsets variables",
    "function_definition": "a function: its name hides a program",
    "c_style_for_statement": "a loop of bash only, which can run code",
    "herestring_redirect": _IN_BASH_ONLY.format("<<<"),
    "test_command": _IN_BASH_ONLY.format("[["),
    "ERROR": "this is no complete script",
}

_RESERVED = programs.names(
    "if then else elif fi do done case esac while until for in { } ! [[ ]]",
    "function select coproc",
)
_ENDS_COMMAND = frozenset([";", "&", "&&", "||", "|", ")", ";;", "\n"])
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_LOOP_VARIABLE = re.compile(r"[a-z][a-z0-9_]*\Z")
_TAKEN, _BEHIND_COMMAND = 1, 2
_TWO_READINGS = "shells may read this in different ways"


class _Reading:
    """One text that a shell is given, and where it stands."""

    def __init__(self, script: str, found: _Findings, place: tuple[int, int] | None, nesting: int):
        self.script = script
        self.found = found
        self.place = place
        """The part of the outer script that holds this text; None: this is the script."""
        self.nesting = nesting
        self.tokens: list[_Token] = []
        self.at: dict[int, int] = {}
        """Where a token starts → its number."""
        self.used = bytearray()
        """Of each token, whether it has been met in the tree."""

    def doubt(self, start: int, end: int, why: str) -> None:
        if self.place is not None:
            start, end = self.place
        elif start == end:  # what is missing has no place of its own
            start, end = max(start - 1, 0), max(end, 1)
        self.found.doubt(start, end, why)

    def begin(self, start: Start) -> None:
        """Add what is done before the text is read."""
        self.place = (0, 0)
        if start.user is not None:
            self.doubt(0, 0, f"it runs as the user {start.user[:64]!r}")
        for name, value in start.variables.items():
            if not programs.is_harmless_variable(name, value):
                why = f"an assignment to {name[:64]}, which can change what programs do"
                self.doubt(0, 0, why)
        if start.directory is None or (
            normalise(start.directory) == WORKSPACE and ".." not in start.directory.split("/")
        ):
            return  # behind a link, `..` is somewhere else
        if (forbidden := _forbidden(start.directory)) is not None:
            self.doubt(0, 0, f"its working directory has {forbidden[1]}")
            return
        self._run([Word("cd", 0, 0), Word(start.directory, 0, 0)], 0)

    def read(self) -> None:
        """Add what is in the text to the findings."""
        script = self.script
        if len(script) > MAX_CHARACTERS:
            self.doubt(0, len(script), f"the script is longer than {MAX_CHARACTERS} characters")
            return
        forbidden = _forbidden(script)
        if forbidden is not None:
            self.doubt(forbidden[0], forbidden[0] + 1, forbidden[1])
            return
        tokenizer = _Tokenizer(script, MAX_TOKENS - self.found.tokens)
        try:
            tokenizer.run()
        except _Unreadable as error:
            self.doubt(error.start, error.end, error.why)
            self._salvage(tokenizer.tokens)
            return
        finally:
            self.found.tokens += len(tokenizer.tokens)
        self.tokens = tokenizer.tokens
        for doubt in tokenizer.doubts:
            self.doubt(*doubt)
        started_s = time.thread_time()
        root = _parse(script, started_s + self.found.parse_s)
        self.found.parse_s -= time.thread_time() - started_s
        if root is None:
            self.doubt(0, len(script), "it takes too long to see what this is")
            return
        self.at = {token.start: number for number, token in enumerate(self.tokens)}
        self.used = bytearray(len(self.tokens))
        self._visit(root, 0)
        for number, token in enumerate(self.tokens):
            if not self.used[number] and token.text != "\n":
                self.doubt(token.start, token.end, _TWO_READINGS)

    def _salvage(self, tokens: Sequence[_Token]) -> None:
        """Show rules that refuse what stands in front of the part that can't be read."""
        words: list[_Token] = []
        for token in tokens:
            if token.kind is _Kind.WORD:
                words.append(token)
            elif token.kind is _Kind.CONTROL:
                self._simple(words)
                words = []
        self._simple(words)

    # Nodes

    def _visit(self, node: Node, depth: int) -> None:
        kind = node.type
        if depth > MAX_DEPTH:
            self.doubt(node.start_byte, node.end_byte, "this is nested too deeply")
            return
        if node.is_missing:
            self.doubt(node.start_byte, node.end_byte, "something is missing here")
            return
        if kind in _GROUPS:
            children = node.children
            if kind == "for_statement":
                self._check_loop(children)
            for child in children:
                self._child(child, kind, depth)
            return
        is_test = kind == "test_command" and node.children[0].type == "["
        if is_test or kind == "command" or kind == "variable_assignment":
            self._command(node)
        elif kind == "file_redirect" and not node.has_error:
            self._redirections(node.start_byte, node.end_byte)
        else:
            why = _UNKNOWN_NODES.get(kind, _TWO_READINGS)
            self.doubt(node.start_byte, node.end_byte, why)
            if kind == "ERROR":  # what is in it may be refused all the same
                for child in node.children:
                    if child.type in _GROUPS or child.type == "command":
                        self._visit(child, depth + 1)

    def _child(self, node: Node, parent: str, depth: int) -> None:
        kind = node.type
        if kind in _SEEN_BY_TOKENIZER:
            return
        if kind in _GROUPS[parent] and not node.is_named and not node.is_missing:
            self._leaf(node)
        elif kind in _WORDS and parent in {"for_statement", "case_statement", "case_item"}:
            self._word(node, parent)
        elif kind in _WORDS and parent == "heredoc_redirect":
            self._redirections(node.start_byte, node.end_byte)
        else:
            self._visit(node, depth + 1)

    def _number(self, node: Node) -> int | None:
        """The token that is exactly this node."""
        number = self.at.get(node.start_byte)
        return number if number is None or self.tokens[number].end == node.end_byte else None

    def _leaf(self, node: Node) -> None:
        """An operator, or a keyword where the shell would look for one."""
        number = self._number(node)
        if number is not None:
            token = self.tokens[number]
            is_word = token.kind is _Kind.WORD
            if not is_word or (not token.quoted and self._may_be_keyword(number)):
                self._take(number)
                return
        if node.type != "\n":  # of these the grammar makes one of several
            self.doubt(node.start_byte, node.end_byte, _TWO_READINGS)

    def _take(self, number: int) -> None:
        """A token has one place in the tree, or two if it belongs to a redirection.

        The grammar has redirections behind their commands. What stands there is taken with the
        command, and met once more.
        """
        if self.used[number] == _TAKEN:
            token = self.tokens[number]
            self.doubt(token.start, token.end, _TWO_READINGS)
        self.used[number] = _TAKEN

    def _may_be_keyword(self, number: int) -> bool:
        """Whether a command could begin here, or this is the `in` of `for` and `case`."""
        if number == 0:
            return True
        before = self.tokens[number - 1]
        if before.kind is _Kind.CONTROL:
            return True
        if self.tokens[number].text == "in":
            return number >= 2 and self.tokens[number - 2].text in {"for", "case"}
        return before.kind is _Kind.WORD and not before.quoted and before.text in _RESERVED

    def _check_loop(self, children: Sequence[Node]) -> None:
        if children[0].type != "for":
            self.doubt(children[0].start_byte, children[0].end_byte, _IN_BASH_ONLY.format("select"))
        for child in children:
            if child.type == "variable_name":
                name = self.script[child.start_byte : child.end_byte]
                if not _LOOP_VARIABLE.match(name):
                    why = "a loop over a variable that programs may look at"
                    self.doubt(child.start_byte, child.end_byte, why)

    def _word(self, node: Node, parent: str) -> None:
        """A word that is no part of a command: what a loop runs over, or what `case` compares."""
        number = self._number(node)
        if number is None:
            self.doubt(node.start_byte, node.end_byte, _TWO_READINGS)
            return
        token = self.tokens[number]
        self._take(number)
        if token.shape is Shape.DYNAMIC:
            self.doubt(token.start, token.end, token.why)
        elif parent == "case_item" and not token.quoted and token.text in _RESERVED:
            self.doubt(token.start, token.end, _TWO_READINGS)

    def _within(self, start: int, end: int) -> list[int]:
        """All tokens in this range."""
        numbers = []
        number = self.at.get(start)
        if number is None:
            return []
        while number < len(self.tokens) and self.tokens[number].end <= end:
            numbers.append(number)
            number += 1
        return numbers

    def _command(self, node: Node) -> None:
        numbers = self._within(node.start_byte, node.end_byte)
        for number in numbers:
            self._take(number)
        if not numbers or self.tokens[numbers[-1]].end != node.end_byte:
            self.doubt(node.start_byte, node.end_byte, _TWO_READINGS)
            return
        first, last = numbers[0], numbers[-1]
        if not self._agree(node, self.tokens[first : last + 1]):
            self.doubt(node.start_byte, node.end_byte, _TWO_READINGS)
        end = self._end_of_command(last + 1)
        if not self._begins_command(first) or end is None:
            self.doubt(node.start_byte, node.end_byte, _TWO_READINGS)
            end = last + 1
        for number in range(last + 1, end):
            self.used[number] = _BEHIND_COMMAND
        words = self._without_redirections(self.tokens[first:end])
        if words is not None:
            self._simple(words)

    def _begins_command(self, first: int) -> bool:
        """Whether the shell would look for a command here."""
        if first == 0 or self._is_target(first - 1):
            return True
        before = self.tokens[first - 1]
        if before.kind is _Kind.WORD:
            return not before.quoted and before.text in _RESERVED
        return before.kind is _Kind.CONTROL

    def _end_of_command(self, number: int) -> int | None:
        """Where the command ends whose words are followed by this token; None: not in any shell.

        Whatever stands before the next operator belongs to it: redirections, and words behind.
        """
        start = number
        while number < len(self.tokens) and self.tokens[number].kind is not _Kind.CONTROL:
            number += 1
        if number < len(self.tokens) and self.tokens[number].text not in _ENDS_COMMAND:
            return None
        if start < number and self.tokens[start].kind is _Kind.WORD:
            return None  # the grammar had all words up to the first redirection
        return number

    def _is_target(self, number: int) -> bool:
        return number > 0 and self.tokens[number - 1].kind is _Kind.REDIRECT

    def _agree(self, node: Node, tokens: Sequence[_Token]) -> bool:
        """Whether the grammar sees the words that the tokenizer sees."""
        if any(token.kind is _Kind.CONTROL for token in tokens) or node.has_error:
            return False
        if node.type != "command":
            return True
        ends = {token.start: token.end for token in tokens}
        is_unknown = any(token.shape is Shape.DYNAMIC for token in tokens)
        words = sum(token.kind is _Kind.WORD for token in tokens)
        for child in node.children:
            words -= 1
            if is_unknown or child.type == "file_redirect":
                continue
            if child.type not in _WORDS or ends.get(child.start_byte) != child.end_byte:
                return False
        return words == 0 or is_unknown

    # Redirections

    def _redirections(self, start: int, end: int) -> None:
        """Redirections of a command, which were judged with it, or of a group.

        The grammar takes a line feed for a blank here, and the next command for more of the
        same. So either all of it stands behind one command, or it is redirections alone.
        """
        numbers = self._within(start, end)
        are_behind = {self.used[number] == _BEHIND_COMMAND for number in numbers}
        for number in numbers:
            self._take(number)
        tokens = [self.tokens[number] for number in numbers]
        is_whole = bool(tokens) and tokens[-1].end == end
        is_alone = are_behind == {False} and self._without_redirections(tokens) == []
        if not is_whole or not (are_behind == {True} or is_alone):
            self.doubt(start, end, _TWO_READINGS)

    def _without_redirections(self, tokens: Sequence[_Token]) -> list[_Token] | None:
        """The words that are left when redirections have been judged; None: can't be told."""
        words: list[_Token] = []
        rest = iter(tokens)
        for token in rest:
            if token.kind is _Kind.WORD:
                words.append(token)
            elif token.kind is _Kind.REDIRECT:
                target = next(rest, None)
                if target is None or target.kind is not _Kind.WORD:
                    self.doubt(token.start, token.end, "a redirection without a target")
                    return None
                self._redirection(token, target)
            elif token.kind is _Kind.CONTROL:
                return None
        return words

    def _redirection(self, operator: _Token, target: _Token) -> None:
        match operator.text:
            case "<<" | "<<-":
                return
            case ">&" | "<&":
                if not re.fullmatch(r"\d|-", target.text) or target.quoted:
                    why = "a redirection that shells read differently; name the file after `>`"
                    self.doubt(operator.start, target.end, why)
                return
        if target.shape is not Shape.STATIC:
            self.doubt(target.start, target.end, f"a file's name that is not certain: {target.why}")
        elif target.text.startswith(("/dev/tcp/", "/dev/udp/")):
            self.doubt(target.start, target.end, "a connection to the network in bash only")
        elif operator.text != "<":
            self._write(target.text, target.start, target.end)

    def _write(self, path: str, start: int, end: int) -> None:
        if path in _FREE_TARGETS:
            return
        why = _uncertain_path(path, self.found.moved)
        if why:
            self.doubt(start, end, why)
            return
        place = self.place or (start, end)
        self.found.writes.append(Write(normalise(posixpath.join(WORKSPACE, path)), *place))

    # Commands

    def _simple(self, tokens: Sequence[_Token]) -> None:
        """A simple command: assignments, then the program and its words."""
        words = list(tokens)
        while words and _ASSIGNMENT.match(self._raw(words[0])):
            self._assignment(words.pop(0))
        if not words:
            return
        raw = self._raw(words[0])
        if not words[0].quoted and raw in _RESERVED:
            self.doubt(words[0].start, words[0].end, _TWO_READINGS)
            return
        self._run([Word(t.text, t.start, t.end, t.shape, t.why) for t in words], 0)

    def _raw(self, token: _Token) -> str:
        return self.script[token.start : token.end]

    def _assignment(self, token: _Token) -> None:
        name, _, value = token.text.partition("=")
        if not programs.is_harmless_variable(name, value):
            why = f"an assignment to {name}, which can change what programs do"
            self.doubt(token.start, token.end, why)
        elif token.shape is Shape.DYNAMIC:
            self.doubt(token.start, token.end, token.why)

    def _run(self, words: Sequence[Word], wrappers: int, *, open_ended: bool = False) -> None:
        """A program with its words, wherever they come from."""
        program = words[0]
        start, end = program.start, words[-1].end
        if program.shape is not Shape.STATIC:
            why = program.why or "which program this is"
            self.doubt(program.start, program.end, f"the program is not certain: {why}")
            return
        if program.text.startswith("-"):
            self.doubt(program.start, program.end, "a flag where a program should be")
            return
        if "=" in program.text:
            self.doubt(program.start, program.end, "shells may read this as an assignment")
            return
        if len(self.found.commands) >= MAX_COMMANDS or wrappers > MAX_NESTING:
            self.doubt(start, end, "there are too many commands in this")
            return
        for word in words:
            if word.shape is Shape.DYNAMIC:
                self.doubt(word.start, word.end, word.why)
        finding = programs.look(words, open_ended=open_ended, moved=self.found.moved)
        self.found.commands.append(
            Command(
                argv=(finding.name, *(word.text for word in words[1:])),
                start=self.place[0] if self.place else start,
                end=self.place[1] if self.place else end,
                must_allow=not finding.is_transparent,
                sensitive=tuple(Sensitive(*item) for item in finding.sensitive),
                open_ended=open_ended,
            )
        )
        for doubt in finding.doubts:
            self.doubt(*doubt)
        self.found.moved = self.found.moved or finding.moves
        for path in finding.writes:
            self._write(path.text, path.start, path.end)
        if wrappers and program.text in _RESERVED:
            self.doubt(program.start, program.end, _TWO_READINGS)
        for inner in finding.runs:
            for word in inner.assignments:
                name, _, value = word.text.partition("=")
                if not programs.is_harmless_variable(name, value):
                    why = f"an assignment to {name}, which can change what programs do"
                    self.doubt(word.start, word.end, why)
            if inner.words:
                self._run(inner.words, wrappers + 1, open_ended=inner.open_ended)
        if finding.script is not None:
            self._script(finding.script)

    def _script(self, word: Word) -> None:
        """The text that `sh -c` or `eval` is given."""
        if self.nesting >= MAX_NESTING:
            self.doubt(word.start, word.end, "this is nested too deeply")
            return
        place = self.place or (word.start, word.end)
        _Reading(word.text, self.found, place, self.nesting + 1).read()


_FREE_TARGETS = frozenset(["/dev/null", "/dev/stdout", "/dev/stderr"])


def _uncertain_path(path: str, moved: bool) -> str:
    """Why nobody can say which file this is; empty: one can."""
    if not path:
        return "a file without a name"
    if not path.startswith("/") and moved:
        return "a relative path after `cd`: write the whole path"
    if _goes_up_again(path):
        return "`..` after a directory, which may be a link: write the path without it"
    return ""


def _goes_up_again(path: str) -> bool:
    below = False
    for part in path.split("/"):
        if part == ".." and below:
            return True
        below = below or part not in {"", ".", ".."}
    return False
