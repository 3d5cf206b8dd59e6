"""Globs over paths, and the files that are protected.

A protected file is one that makes somebody's program run code later and elsewhere: a hook of
a repository, an editor's tasks, an agent's settings. Whoever opens the workspace on the host
next month runs what was written there today, outside of any container.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runner.helper.watch import fold
from runner.policy.matching import Pattern, PatternError


def glob_pattern(glob: str) -> str:
    r"""A glob as a regular expression in RE2's syntax that fits whole paths.

    `*` and `?` stand for characters but never for a slash, `[a-z]` and `[!a-z]` for one
    character, `**` between slashes for any directories, and `/**` at the end for a directory
    and all below it. A backslash takes the next character as it is.

    Raises:
        PatternError: It is no glob for an absolute path; the text says what to write.
    """
    if not glob.startswith(("/", "**/")):
        raise PatternError(
            f"a glob is matched against whole absolute paths; write /{glob} or **/{glob}"
        )
    parts = glob.removeprefix("/").split("/")
    written = r"\A"
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            # A slash stands before whatever follows, so the directories bring none at their end.
            written += "(?:/.*)?" if last else "(?:/[^/]+)*"
        elif "**" in part:
            raise PatternError(f"** stands alone between slashes, not as in {part}")
        elif part in ("", ".", ".."):
            raise PatternError(
                "paths are normalised before they are matched, so no // and no . or .. is left"
            )
        else:
            written += "/" + _part(part)
    return f"(?s:{written}\\z)"


def _part(part: str) -> str:
    written = ""
    at = 0
    while at < len(part):
        character = part[at]
        at += 1
        if character == "*":
            written += "[^/]*"
        elif character == "?":
            written += "[^/]"
        elif character == "[":
            end = part.find("]", at + 1 + (part[at : at + 1] in ("!", "^")))
            if end < 0:
                raise PatternError("a [ is not closed; for the character itself write \\[")
            written += _class(part[at:end])
            at = end + 1
        elif character in "{}":
            raise PatternError("globs have no {a,b}; write a rule for each")
        elif character == "\\":
            if at == len(part):
                raise PatternError("a backslash at the end takes no character")
            written += re.escape(part[at])
            at += 1
        else:
            written += re.escape(character)
    return written


def _class(inside: str) -> str:
    negated = inside[:1] in ("!", "^")
    body = inside[1:] if negated else inside
    escaped = "".join(f"\\{c}" if c in "\\[]^" else c for c in body)
    if negated:
        return f"[^/{escaped}]"
    if Pattern.compile(f"[{escaped}]").found_in(b"/"):
        raise PatternError(f"[{inside}] would match a slash, which nothing but ** does")
    return f"[{escaped}]"


@dataclass(frozen=True, slots=True)
class Glob:
    """A compiled glob."""

    text: str
    pattern: Pattern = field(repr=False)

    @classmethod
    def compile(cls, text: str, *, memory_bytes: int | None = None) -> "Glob":
        """Compile it.

        Raises:
            PatternError: It is no glob for an absolute path.
        """
        options = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
        return cls(text, Pattern.compile(glob_pattern(text), **options))

    @property
    def regex(self) -> str:
        """The same as a regular expression."""
        return self.pattern.text

    def found_in(self, path: bytes) -> bool:
        """Whether it fits the whole path, which is UTF-8."""
        return self.pattern.found_in(path)


# --- protected files

GROUPS: Mapping[str, tuple[str, ...]] = {
    "git": (
        "**/.git",
        "**/.git/hooks/**",
        "**/.git/config",
        "**/.git/config.worktree",
        "**/.git/info/attributes",
        "**/.git/modules/**/config",
        "**/.git/modules/**/hooks/**",
        "**/.git/worktrees/*/config.worktree",
        "**/git~1/**",  # the short name of .git where Windows makes such
        "**/.gitmodules",
        "**/.gitconfig",
        "**/.config/git/**",
    ),
    "hooks": (
        "**/.pre-commit-config.yaml",
        "**/.pre-commit-config.yml",
        "**/.husky/**",
        "**/lefthook.yml",
        "**/lefthook.yaml",
        "**/.lefthook/**",
        "**/.overcommit.yml",
    ),
    "shell": (
        "**/.bashrc",
        "**/.bash_profile",
        "**/.bash_login",
        "**/.bash_logout",
        "**/.bash_aliases",
        "**/.profile",
        "**/.zshrc",
        "**/.zshenv",
        "**/.zprofile",
        "**/.zlogin",
        "**/.zlogout",
        "**/.kshrc",
        "**/.cshrc",
        "**/.tcshrc",
        "**/.inputrc",
        "**/.config/fish/**",
        "**/.ssh/**",
    ),
    "direnv": ("**/.envrc", "**/.autoenv", "**/.autoenv.zsh", "**/mise.toml", "**/.mise.toml"),
    "editor": (
        "**/.vscode/**",
        "**/*.code-workspace",
        "**/.idea/**",
        "**/.vs/**",
        "**/.fleet/**",
        "**/.zed/**",
        "**/.devcontainer/**",
        "**/.devcontainer.json",
        "**/.exrc",
        "**/.vimrc",
        "**/.gvimrc",
        "**/.nvimrc",
        "**/.nvim.lua",
        "**/.emacs",
        "**/.emacs.d/**",
        "**/.dir-locals.el",
        "**/*.sublime-project",
    ),
    "agent": (
        "**/.claude/**",
        "**/.claude.json",
        "**/.mcp.json",
        "**/.cursor/**",
        "**/.cursorrules",
        "**/.codex/**",
        "**/.gemini/**",
        "**/.windsurf/**",
        "**/.clinerules/**",
        "**/.continue/**",
        "**/.roo/**",
        "**/.opencode/**",
        "**/opencode.json",
        "**/.aider.conf.yml",
        "**/.rousseau/**",
    ),
    "packages": (
        "**/.npmrc",
        "**/.yarnrc",
        "**/.yarnrc.yml",
        "**/.pnpmfile.cjs",
        "**/.cargo/config",
        "**/.cargo/config.toml",
        "**/sitecustomize.py",
        "**/usercustomize.py",
    ),
    "ci": (
        "**/.github/workflows/**",
        "**/.github/actions/**",
        "**/.gitlab-ci.yml",
        "**/.circleci/**",
        "**/.buildkite/**",
        "**/.drone.yml",
        "**/.travis.yml",
        "**/azure-pipelines.yml",
        "**/bitbucket-pipelines.yml",
        "**/jenkinsfile",
    ),
}
"""Files that run code later, by who runs them. All in lower case: case does not matter."""

DEFAULT_GROUPS = tuple(name for name in GROUPS if name != "ci")
"""What `protect: [default]` means. Pipelines are edited too often to be refused unasked."""


@dataclass(frozen=True, slots=True)
class Protected:
    """The files that `write` and `edit` are refused, and that are watched under `bash`."""

    globs: tuple[str, ...] = ()
    """Over folded paths."""
    patterns: tuple[str, ...] = field(default=(), repr=False)
    """The same as regular expressions in RE2's syntax."""
    _any: Pattern | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, globs: Iterable[str]) -> "Protected":
        """These globs, in any letter case.

        Raises:
            PatternError: One of them is none.
        """
        unique = tuple(dict.fromkeys(glob.casefold() for glob in globs))
        return _compiled(unique) if unique else NOTHING_PROTECTED

    @classmethod
    def named(cls, entries: Sequence[str]) -> "Protected":
        """What the entries of a policy's `protect` add up to, in their order.

        Args:
            entries: `default`, the name of a group, `-` and either of these to take it out
                again, or a glob.

        Raises:
            PatternError: An entry is none of these.
        """
        chosen: dict[str, None] = {}
        for entry in entries:
            name = entry.removeprefix("-")
            if name == "default":
                globs = tuple(glob for group in DEFAULT_GROUPS for glob in GROUPS[group])
            elif name in GROUPS:
                globs = GROUPS[name]
            elif name.startswith(("/", "**/")):
                glob_pattern(name)
                globs = (name.casefold(),)
            else:
                raise PatternError(
                    f"there is no group {name!r}; there are default, {', '.join(GROUPS)}, and "
                    "globs such as /workspace/deploy/** or **/deploy.sh"
                )
            for glob in globs:
                if entry == name:
                    chosen[glob] = None
                else:
                    chosen.pop(glob, None)
        return cls.of(chosen)

    def covers(self, path: str) -> bool:
        """Whether a normalised path is one of them, as lax file systems compare names."""
        if self._any is None:
            return False
        return self._any.found_in(fold(path).encode(errors="surrogatepass"))


NOTHING_PROTECTED = Protected()


@functools.lru_cache(maxsize=64)
def _compiled(globs: tuple[str, ...]) -> Protected:
    patterns = tuple(glob_pattern(glob) for glob in globs)
    return Protected(globs, patterns, Pattern.compile("|".join(patterns)))
