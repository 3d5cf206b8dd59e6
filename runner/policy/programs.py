"""What programs do with their words: tables, and readers for the few with a grammar of their own.

Owns which program a name means, what runs other programs, which flags only read, and which
programs run code that stands somewhere else. It knows single commands; scripts are taken apart
in `shell`.

The tables of flags are lists of what is *permitted*. Anything else, an abbreviation of a long
flag included, makes a word sensitive: an allow rule then has to name it. So a flag that a
newer version of a program gets is refused until it is listed here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

SYSTEM_DIRECTORIES = frozenset(
    ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]
)
"""A program in one of these counts by its base name."""


class Shape(IntEnum):
    """How certain a word is before the script runs."""

    STATIC = 0
    """It is what it says."""
    FILLED = 1
    """Names of files, none of which can begin with a dash: `src/*.py`, find's `{}`."""
    WILD = 2
    """Names of files, which may look like flags: `*`."""
    DYNAMIC = 3
    """Nothing is known about it."""


def names(*lines: str) -> frozenset[str]:
    """The words of these lines."""
    return frozenset(" ".join(lines).split())


class Word(NamedTuple):
    """A word of a command, and where it stands in the script."""

    text: str
    start: int
    end: int
    shape: Shape = Shape.STATIC
    why: str = ""
    """Why it is not certain."""


@dataclass(frozen=True, slots=True)
class Inner:
    """What a wrapper runs."""

    words: Sequence[Word]
    """Empty where it runs nothing."""
    assignments: Sequence[Word] = ()
    open_ended: bool = False
    """It gets more words when it runs."""


@dataclass(slots=True)
class Finding:
    """What is known about one command."""

    name: str
    """The program: its base name, if it lies in a directory of the system."""
    is_transparent: bool = False
    """It only runs what is in `runs` or `script`."""
    moves: bool = False
    """It changes the directory of what comes after."""
    sensitive: list[tuple[int, str]] = field(default_factory=list)
    """Words by their place, and why an allow rule has to name them."""
    doubts: list[tuple[int, int, str]] = field(default_factory=list)
    """Parts of the script, and why they are unknown."""
    writes: list[Word] = field(default_factory=list)
    """Names of files that it writes."""
    runs: list[Inner] = field(default_factory=list)
    script: Word | None = None
    """A shell's code."""

    def doubt(self, word: Word, why: str) -> None:
        """Say that this word is unknown."""
        self.doubts.append((word.start, word.end, why))


def look(words: Sequence[Word], *, open_ended: bool = False, moved: bool = False) -> Finding:
    """What is known about a command.

    Args:
        words: The program, which is static, and the rest.
        open_ended: More words come when it runs.
        moved: A `cd` stands before it.
    """
    name = base_name(words[0].text)
    finding = Finding(name)
    if "/" in name or not name:
        finding.sensitive.append((0, "a program from outside the directories of the system"))
        if _is_roundabout(name):
            finding.doubt(
                words[0], "a program's path with `..`, `.` or `//` in it: write it plainly"
            )
    elif name in WRAPPERS:
        _look_through(WRAPPERS[name], words, finding, open_ended=open_ended)
    elif name in READERS:
        READERS[name](words, finding)
    elif name in _SETS_SOMETHING:
        finding.doubt(words[0], f"`{name}` changes what the shell does next")
    elif name in OPTIONS:
        _check_options(OPTIONS[name], words, finding, 1)
    elif _RUNS_CODE.fullmatch(name):
        finding.sensitive.append((0, f"`{name}` runs code that no rule can see"))
    if name == "git" and moved:
        finding.doubt(words[0], "git after `cd`: another repository decides what it runs")
    if name not in HARMLESS or name in _TESTS:
        for word in words[1:]:
            if word.shape is Shape.WILD:
                why = "names of files, one of which may look like a flag; begin it with `./`"
                finding.doubt(word, why)
    if open_ended:
        _look_at_open_end(words, finding)
    return finding


def _look_at_open_end(words: Sequence[Word], finding: Finding) -> None:
    """What more words may do to a command."""
    name = finding.name
    if name in WRAPPERS:
        if not any(inner.words for inner in finding.runs):
            finding.doubt(words[0], f"what `{name}` runs comes from its input")
    elif name in OPTIONS and name not in READERS:
        if not _read(OPTIONS[name], words, 1).is_ended:
            why = f"words from the input, which `{name}` may take for flags; put `--` before them"
            finding.doubt(words[0], why)
    elif name in READERS and name not in _TESTS:
        if name not in _SHELLS or finding.script is None:
            finding.doubt(words[0], f"words from the input, which may be flags of `{name}`")
    elif name not in HARMLESS:
        finding.sensitive.append((0, f"`{name}` gets words from its input, which may be flags"))


_LEADING = re.compile(r"/|\./|(?:\.\./)+")


def _is_roundabout(path: str) -> bool:
    """Whether a path is longer than it has to be, or goes up again from a directory."""
    rest = _LEADING.sub("", path, count=1) if _LEADING.match(path) else path
    return bool({"", ".", ".."} & set(rest.split("/")))


def base_name(program: str) -> str:
    """The program's name by which rules know it: without a directory of the system."""
    directory, slash, name = program.rpartition("/")
    return name if slash and name and directory in SYSTEM_DIRECTORIES else program


# --- variables

_HARMLESS_VARIABLES = names(
    "LANG LANGUAGE TZ TERM COLUMNS LINES NO_COLOR CLICOLOR FORCE_COLOR CLICOLOR_FORCE",
    "GIT_OPTIONAL_LOCKS GIT_TERMINAL_PROMPT POSIXLY_CORRECT",
)
_PAGERS = frozenset(["PAGER", "GIT_PAGER", "MANPAGER"])


def is_harmless_variable(name: str, value: str) -> bool:
    """Whether programs do the same with this variable, but for how they show it."""
    if name in _PAGERS:
        return value in {"", "cat"}
    if value.startswith((":", "/")) or ".." in value or ("/" in value and name != "TZ"):
        return False  # some are looked up as parts of paths: `LANGUAGE=../../workspace/x`
    return name in _HARMLESS_VARIABLES or (name.startswith("LC_") and name.isidentifier())


# --- sets of programs

HARMLESS = names(
    "ls dir vdir cat head tail wc echo stat du df md5sum pwd sha1sum sha224sum sha256sum",
    "sha384sum sha512sum b2sum cksum sum basename dirname nl od hexdump strings cut paste tr",
    "rev tac fold fmt expand unexpand column grep egrep fgrep zcat diff cmp comm join",
    "readlink realpath true false test [ seq sleep whoami id groups uname nproc arch printenv",
    "which base64 base32 jq ps uptime free tty logname factor tsort exit :",
)
"""Whatever words these get, they write no file and run no program."""
_TESTS = frozenset(["test", "["])
_SHELLS = frozenset(["sh", "bash", "dash", "ash"])

_SETS_SOMETHING = names(
    "export set alias unalias unset trap enable source . read readarray mapfile declare",
    "typeset local readonly let hash umask shopt bind complete compgen compopt getopts",
    "builtin wait jobs fg bg ulimit pushd popd dirs history fc caller suspend logout disown",
    "function coproc select setvar chdir bindkey",
)
"""Built-ins whose effect outlasts them, or which evaluate their words."""

_RUNS_CODE = re.compile(
    # Languages.
    r"python[\d.]*(?:-config)?|pypy[\d.]*|perl[\d.]*|ruby[\d.]*|irb|node|nodejs|deno|bun|php[\d.]*"
    r"|lua[\d.]*|luajit|tclsh[\d.]*|wish|expect|guile[\d.]*|sbcl|clisp|ecl|racket|scheme|ocaml"
    r"|octave|R|Rscript|julia|elixir|iex|erl|escript|ghc|ghci|runghc|runhaskell|swift|groovy"
    r"|scala|kotlin|kotlinc|java|javac|jshell|dotnet|csi|mono|ts-node|tsx|gjs|qjs|m4|dc|gforth"
    # Shells, and what gives one.
    r"|zsh|ksh[\d.]*|mksh|fish|csh|tcsh|rbash|rksh|yash|pwsh|nu|xonsh|elvish|su|runuser|login|newgrp"
    r"|sg|script|scriptreplay|screen|tmux|byobu|dtach|nsenter|unshare|chroot|bwrap|firejail"
    r"|systemd-run|systemd-nspawn|setpriv|capsh|pkexec|run0|machinectl|fakeroot|fakechroot|proot"
    # Builders, runners of tasks and tests, package managers.
    r"|g?make|cmake|ctest|cpack|ninja|meson|scons|bazel|bazelisk|buck2?|waf|rake|just|task|invoke"
    r"|inv|fab|doit|nox|tox|pytest|py\.test|coverage|mypy|pylint|flake8|pre-commit|hatch|poetry"
    r"|pdm|uv|uvx|pipenv|pipx|pip[\d.]*|conda|mamba|npm|npx|yarn|pnpm|pnpx|corepack|lerna|nx|turbo"
    r"|eslint|prettier|jest|vitest|mocha|ava|karma|cypress|playwright|webpack|rollup|vite|gulp"
    r"|grunt|parcel|cargo|rustc|rustup|go|gofmt|gradle|gradlew|mvn|mvnw|ant|sbt|lein|clj|mix|rebar3"
    r"|stack|cabal|bundle|bundler|gem|composer|phpunit|zig|nim|nimble|dub|opam|dune|nix|nix-shell"
    r"|nix-build|guix|apt|apt-get|aptitude|dpkg|dnf|yum|rpm|apk|pacman|brew|snap|flatpak"
    r"|(?:[\w.-]+-)?(?:gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|ld|as|ar|gdb|lldb)(?:-[\d.]+)?|tcc"
    # Other machines and containers.
    r"|ssh|scp|sftp|rsync|mosh|autossh|sshpass|telnet|nc|ncat|netcat|socat|docker|docker-compose"
    r"|podman|nerdctl|buildah|skopeo|kubectl|oc|helm|terraform|tofu|ansible[\w-]*|vagrant|packer"
    r"|gh|glab|aws|gcloud|az|hg|svn|bzr|cvs|fossil|jj"
    # What runs a program that stands among its words or in a file.
    r"|coreutils|hyperfine|faketime|datefudge|eatmydata|dumb-init|tini|gosu|su-exec|daemonize|nq"
    r"|tsp|retry|reptyr|aa-exec|torsocks|torify|proxychains[\d.]*|primusrun|optirun"
    r"|parallel|sem|watch|strace|ltrace|perf|valgrind|gdbserver|rr|flock|at|batch|crontab|run-parts"
    r"|start-stop-daemon|prlimit|taskset|numactl|choom|cgexec|cset|entr|rlwrap|chronic|ifne|pee"
    r"|vipe|unbuffer|dbus-run-session|dbus-launch|xvfb-run|ssh-agent|gpg-agent|tcpdump|linux(?:32|64)"
    r"|setarch|i386|x86_64|uname26|softlimit|chpst|setuidgid|envdir|s6-[\w-]+|catchsegv|trickle"
    r"|torsocks|proxychains4?|ld(?:-linux[\w-]*)?\.so[\d.]*|ld-musl[\w-]*\.so[\d.]*|fd|fdfind|ag|ack"
    r"|bat|batcat|split|csplit|cpio|zip|openssl|gpg|systemctl|service|ip|git-[\w-]+|gitk|tig|lazygit"
    # Editors, pagers and databases with a way to a shell.
    r"|vi|vim(?:diff)?|view|rvim|rview|ex|nvim|ed|red|emacs(?:client)?|nano|pico|joe|mcedit|mc"
    r"|micro|most|info|sqlite3?|psql|mysql|mariadb|mongo(?:sh)?|redis-cli|ftp|lftp|tnftp|patch"
    r"|hexedit|lynx|w3m|links|elinks|troff|groff|nroff|pandoc|(?:pdf|xe|lua)?(?:la)?tex|latexmk|gs"
    r"|convert|magick|ffmpeg|gnuplot|sed-[\w-]+"
)
"""Programs that run code which stands in a file, in their input, or in a language of its own."""


# --- flags


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of a program that an allow rule need not name."""

    flags: frozenset[str] = frozenset()
    """Without a value. A long one may have one after `=`."""
    valued: frozenset[str] = frozenset()
    """With a value, attached or in the next word."""
    attached: frozenset[str] = frozenset()
    """Short ones with a value that is attached, or missing."""
    numbers: bool = False
    """`-20` is one, too."""
    plus: bool = False
    """A word that begins with `+` is an operand. Where not, it is a flag that is not listed."""
    permutes: bool = True
    """Flags count wherever they stand; else before the first operand only."""


def _options(
    flags: str,
    valued: str = "",
    attached: str = "",
    *,
    numbers: bool = False,
    plus: bool = True,
    permutes: bool = True,
) -> Options:
    """`flags` and the rest as they are written, with short ones of one kind in a cluster."""
    return Options(_spread(flags), _spread(valued), _spread(attached), numbers, plus, permutes)


def _spread(text: str) -> frozenset[str]:
    return frozenset(
        flag
        for word in text.split()
        for flag in ([word] if word.startswith("--") else [f"-{letter}" for letter in word[1:]])
    )


@dataclass(slots=True)
class _Reading:
    """The words of a command, told apart."""

    unlisted: list[int] = field(default_factory=list)
    operands: list[int] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    is_ended: bool = False
    """There is a `--`, after which nothing is a flag."""
    values: list[tuple[str, int, int]] = field(default_factory=list)
    """Flags with a value: the flag, the value's word, and where in it the value begins."""

    def of(self, *flags: str) -> list[tuple[int, int]]:
        """Where the values of these flags are."""
        return [(place, start) for flag, place, start in self.values if flag in flags]


def _read(options: Options, words: Sequence[Word], at: int) -> _Reading:
    found = _Reading()
    while at < len(words):
        text = words[at].text
        if text == "--":
            found.is_ended = True
            found.operands.extend(range(at + 1, len(words)))
            break
        if words[at].shape in (Shape.WILD, Shape.FILLED) or not text.startswith("-") or text == "-":
            if text.startswith("+") and not options.plus:
                found.unlisted.append(at)
            elif options.permutes:
                found.operands.append(at)
            else:
                found.operands.extend(range(at, len(words)))
                break
            at += 1
            continue
        takes_next = False
        if text.startswith("--"):
            name, has_value, _ = text.partition("=")
            if name in options.valued:
                takes_next = not has_value
                place, start = (at + 1, 0) if takes_next else (at, len(name) + 1)
                found.values.append((name, place, start))
            elif name not in options.flags:
                found.unlisted.append(at)
            found.seen.add(name)
        elif not (options.numbers and text[1:].isdecimal()):
            takes_next = _read_cluster(options, text, at, found)
        at += 2 if takes_next else 1
    return found


def _read_cluster(options: Options, text: str, at: int, found: _Reading) -> bool:
    """Take `-abc`; whether its value is the next word."""
    for place, letter in enumerate(text[1:], 1):
        flag = f"-{letter}"
        found.seen.add(flag)
        if flag in options.valued:
            takes_next = place == len(text) - 1
            found.values.append((flag, at + 1, 0) if takes_next else (flag, at, place + 1))
            return takes_next
        if flag in options.attached:
            return False
        if flag not in options.flags:
            found.unlisted.append(at)
            return False
    return False


def _check_options(options: Options, words: Sequence[Word], finding: Finding, at: int) -> _Reading:
    """Make every flag sensitive that is not listed."""
    read = _read(options, words, at)
    for place in read.unlisted:
        why = f"`{words[place].text}` is none of the flags of `{finding.name}` that only read"
        finding.sensitive.append((place, why))
    return read


OPTIONS: Mapping[str, Options] = {
    "rg": _options(
        "-inlcvwxosSFPUNHI0pqauLVh --ignore-case --line-number --files-with-matches --count "
        "--invert-match --word-regexp --line-regexp --only-matching --case-sensitive --smart-case "
        "--fixed-strings --pcre2 --multiline --multiline-dotall --no-line-number --with-filename "
        "--no-filename --null --pretty --quiet --text --unrestricted --follow --hidden --files "
        "--no-ignore --no-ignore-vcs --no-heading --heading --column --json --stats --trim "
        "--count-matches --files-without-match --no-config --no-messages --vimgrep --type-list "
        "--passthru --one-file-system --crlf --null-data --no-hidden --no-follow --version --help "
        "--include-zero --max-columns-preview --no-ignore-parent --no-unicode --line-buffered "
        "--glob-case-insensitive --no-column --no-stats --no-pcre2 --no-multiline --debug --binary",
        "-egtTABCmMrjdEf --regexp --glob --iglob --type --type-not --after-context --file "
        "--before-context --context --max-count --max-columns --replace --threads --max-depth "
        "--encoding --sort --sortr --color --colors --context-separator --max-filesize "
        "--ignore-file --path-separator --field-match-separator --field-context-separator "
        "--type-add --type-clear --regex-size-limit --dfa-size-limit --engine",
    ),
    "sort": _options(
        "-bdfgiMhnRrVcCmsuz --reverse --numeric-sort --unique --ignore-case --human-numeric-sort "
        "--version-sort --stable --check --zero-terminated --general-numeric-sort --month-sort "
        "--random-sort --merge --ignore-leading-blanks --dictionary-order --ignore-nonprinting "
        "--debug --help --version",
        "-ktS --key --field-separator --buffer-size --parallel --sort --batch-size",
    ),
    "tree": _options(
        "-adfhsiCnpugDFqNQrtUvcxlJXS --dirsfirst --noreport --gitignore --prune --du --sort "
        "--filesfirst --ignore-case --matchdirs --inodes --device --si --help --version",
        "-LIP --filelimit --charset --timefmt",
    ),
    "file": _options(
        "-bihLNnrs0vkE --brief --mime --mime-type --mime-encoding --dereference --no-dereference "
        "--no-pad --raw --keep-going --extension --print0 --version --help",
        "-FPef --separator --exclude --parameter --files-from",
    ),
    "less": _options("-NSRFXinEeMmQqrs", plus=False),
    "more": _options("-dlfpcsu", numbers=True, plus=False),
    "man": _options("-kfwaWc7 --whatis --apropos --where --path --all", "-sSe --sections"),
    "uniq": _options(
        "-cdDiuz --count --repeated --all-repeated --ignore-case --unique --zero-terminated "
        "--group --help --version",
        "-fsw --skip-fields --skip-chars --check-chars",
        numbers=True,
    ),
    "date": _options(
        "-uR --utc --universal --rfc-email --rfc-3339 --iso-8601 --debug --help --version",
        "-dr --date --reference",
        "-I",
    ),
    "hostname": _options("-sfdiIA --short --fqdn --domain --ip-address --all-ip-addresses"),
    "shuf": _options(
        "-erz --echo --repeat --zero-terminated", "-in --input-range --head-count --random-source"
    ),
    "yq": _options("-rjMCPecN --raw-output --tojson --colors --no-colors", "-op --output-format"),
    "xxd": _options("-abCeEipurh", "-cglos"),
}
"""Programs that only read, unless a flag says otherwise."""


# --- wrappers


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A program that runs the program among its words."""

    options: Options = Options()
    operands: int = 0
    """Words of its own before the program, such as the duration for `timeout`."""
    assignments: bool = False
    """`NAME=value` may stand before the program."""
    is_transparent: bool = True
    """It changes nothing about what runs that a rule would want to know."""
    open_ended: bool = False
    """It adds words from its input."""
    filled_by: frozenset[str] = frozenset()
    """Flags whose value is a text that it replaces by a word of its input."""


def _before(
    flags: str = "", valued: str = "", attached: str = "", *, numbers: bool = False
) -> Options:
    return _options(flags, valued, attached, numbers=numbers, permutes=False)


WRAPPERS: Mapping[str, Wrapper] = {
    "env": Wrapper(_before("-i0 --ignore-environment --null", "-u --unset"), assignments=True),
    "command": Wrapper(_before("-p")),
    "exec": Wrapper(_before()),
    "nice": Wrapper(_before("", "-n --adjustment", numbers=True)),
    "nohup": Wrapper(_before()),
    "time": Wrapper(_before("-p")),
    "timeout": Wrapper(
        _before("-vf --foreground --preserve-status --verbose", "-ks --kill-after --signal"),
        operands=1,
    ),
    "stdbuf": Wrapper(_before("", "-ioe --input --output --error")),
    "setsid": Wrapper(_before("-cfw --ctty --fork --wait")),
    "ionice": Wrapper(_before("-t --ignore", "-cn --class --classdata")),
    "chrt": Wrapper(_before("-bfior --batch --fifo --idle --other --rr"), operands=1),
    "sudo": Wrapper(
        _before(
            "-EHnSbk --preserve-env --set-home --non-interactive --stdin", "-ug --user --group"
        ),
        assignments=True,
        is_transparent=False,
    ),
    "doas": Wrapper(_before("-n", "-u"), is_transparent=False),
    "busybox": Wrapper(_before()),
    "toybox": Wrapper(_before()),
    "xargs": Wrapper(
        _before(
            "-0rtx --null --no-run-if-empty --verbose --exit",
            "-nPLsdaIE --max-args --max-procs --max-lines --max-chars --delimiter --arg-file",
        ),
        is_transparent=False,
        open_ended=True,
        filled_by=frozenset(["-I"]),
    ),
}


def _look_through(
    wrapper: Wrapper, words: Sequence[Word], finding: Finding, *, open_ended: bool
) -> None:
    """Find what a wrapper runs. Where its own words are not plain, say so."""
    if finding.name == "command" and len(words) > 1 and words[1].text in {"-v", "-V"}:
        return  # it only says where a program is
    finding.is_transparent = wrapper.is_transparent
    read = _check_options(wrapper.options, words, finding, 1)
    if finding.sensitive:
        finding.is_transparent = False
        finding.doubt(words[read.unlisted[0]], f"a flag after which `{finding.name}` can't be read")
        return
    first = read.operands[0] if read.operands else len(words)
    head = words[1:first]
    for word in [*head, *words[first : first + wrapper.operands]]:
        if word.shape is not Shape.STATIC:
            finding.doubt(word, word.why or "a word that is not certain before the program")
    first += wrapper.operands
    assignments: list[Word] = []
    while wrapper.assignments and first < len(words) and "=" in words[first].text:
        assignments.append(words[first])
        first += 1
    inner = list(words[first:])
    if not inner:
        _look_at_lone(finding, words, assignments)
        return
    fillers = read.of(*wrapper.filled_by)
    filler = words[fillers[-1][0]].text[fillers[-1][1] :] if fillers else ""
    if filler:
        inner = [_filled(word, filler) for word in inner]
    finding.runs.append(
        Inner(inner, assignments, open_ended or (wrapper.open_ended and not filler))
    )


def _look_at_lone(finding: Finding, words: Sequence[Word], assignments: Sequence[Word]) -> None:
    """A wrapper without a program."""
    finding.is_transparent = False
    if assignments:
        finding.runs.append(Inner((), assignments))
    if finding.name == "exec":
        finding.doubt(words[0], "`exec` without a program redirects the shell itself")


def _filled(word: Word, filler: str) -> Word:
    """The word, into which something else is put when it runs."""
    if word.shape is not Shape.STATIC or filler not in word.text:
        return word
    at = word.text.find(filler)
    shape = Shape.WILD if at == 0 or word.text[0] == "-" else Shape.FILLED
    return Word(word.text, word.start, word.end, shape, "it is filled in when the command runs")


# --- programs with a grammar of their own


def _unless_static(word: Word, finding: Finding, what: str) -> bool:
    if word.shape is Shape.STATIC:
        return True
    finding.doubt(word, word.why or f"{what} that is not certain")
    return False


def _shell(words: Sequence[Word], finding: Finding) -> None:
    """`sh -c TEXT` is seen through. A file, or the input, is not."""
    at = 1
    while at < len(words) and re.fullmatch(r"-[euxfn]+", words[at].text):
        at += 1
    if at + 1 < len(words) and re.fullmatch(r"-[euxfn]*c", words[at].text):
        at += 1
        if words[at].text == "--" and at + 1 < len(words):
            at += 1
        if words[at].text.startswith(("-", "+")):
            finding.sensitive.append((at, f"`{finding.name}` reads this as a flag"))
            return
        if _unless_static(words[at], finding, "a script"):
            finding.script = words[at]
            finding.is_transparent = True
        return
    finding.sensitive.append((0, f"`{finding.name}` runs a script that no rule can see"))


def _eval(words: Sequence[Word], finding: Finding) -> None:
    rest = words[1:]
    if rest and rest[0].text == "--":
        rest = rest[1:]
    are_static = [_unless_static(word, finding, "a script") for word in rest]
    if rest and all(are_static):
        text = " ".join(word.text for word in rest)
        finding.script = Word(text, rest[0].start, rest[-1].end)
        finding.is_transparent = True


def _cd(words: Sequence[Word], finding: Finding) -> None:
    finding.moves = [word.text.rstrip("/") for word in words[1:]] != ["/workspace"]


def _printf(words: Sequence[Word], finding: Finding) -> None:
    """In bash, `-v` and `%n` set variables."""
    rest = list(words[1:])
    if rest and rest[0].text == "--":
        rest = rest[1:]
    elif rest and rest[0].text.startswith("-"):
        finding.doubt(rest[0], "a flag of `printf`, which in bash sets a variable")
        return
    if not rest:
        return
    if _unless_static(rest[0], finding, "a format") and re.search(
        r"%[^%a-zA-Z]*[hlLjtzq]*n", rest[0].text
    ):
        finding.doubt(rest[0], "`%n`, which in bash sets a variable")


def _test(words: Sequence[Word], finding: Finding) -> None:
    for word in words[1:]:
        if word.text in {"-v", "-R"}:
            finding.doubt(word, f"`{word.text}`, which in bash can run code")


def _find(words: Sequence[Word], finding: Finding) -> None:
    at = 1
    while at < len(words):
        word = words[at]
        text = word.text
        if text in _FIND_RUNS:
            end = at + 1
            while end < len(words) and not (
                words[end].text == ";" or (words[end].text == "+" and words[end - 1].text == "{}")
            ):
                end += 1
            inner = [_place_taken(inner) for inner in words[at + 1 : end]]
            if end == len(words) or not inner:
                finding.doubt(word, f"`{text}` without an end")
                return
            finding.runs.append(Inner(inner))
            finding.moves = finding.moves or text in {"-execdir", "-okdir"}
            at = end + 1
            continue
        if text in _FIND_VALUED or re.fullmatch(r"-newer[aBcm][aBcmt]", text):
            if at + 1 < len(words) and words[at + 1].shape is Shape.FILLED:
                finding.doubt(words[at + 1], "names of files where `find` takes one word; quote it")
            at += 2
            continue
        if text.startswith("-") and text not in _FIND_FLAGS and not re.fullmatch(r"-O\d", text):
            why = f"`{text}` is none of the expressions of `find` that only read"
            finding.sensitive.append((at, why))
        at += 1


def _place_taken(word: Word) -> Word:
    """A word in which find puts the name of a file: it begins as its starting point does."""
    if word.shape is not Shape.STATIC or "{}" not in word.text:
        return word
    shape = Shape.WILD if word.text[0] == "-" else Shape.FILLED
    return Word(word.text, word.start, word.end, shape, "it is filled in when the command runs")


_FIND_RUNS = frozenset(["-exec", "-execdir", "-ok", "-okdir"])
_FIND_FLAGS = names(
    "-empty -executable -readable -writable -true -false -nouser -nogroup -print -print0",
    "-prune -quit -ls -depth -d -mount -xdev -follow -daystart -noleaf -ignore_readdir_race",
    "-noignore_readdir_race -warn -a -nowarn -not -o -and -or -H -L -P -help -version",
)
_FIND_VALUED = names(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type",
    "-xtype -size -mtime -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer -user -group",
    "-uid -gid -perm -links -inum -samefile -maxdepth -mindepth -printf -regextype -fstype",
    "-used -context -D",
)


def _sed(words: Sequence[Word], finding: Finding) -> None:
    read = _check_options(_SED, words, finding, 1)
    scripts = read.of("-e", "--expression") or [(place, 0) for place in read.operands[:1]]
    for place, start in scripts:
        if place == len(words) or not _unless_static(words[place], finding, "a script of sed"):
            continue
        if not is_plain_sed(words[place].text[start:]):
            why = "a script of sed that may run a program, write a file, or is not understood"
            finding.sensitive.append((place, why))


_SED = _options(
    "-nErsuz --quiet --silent --regexp-extended --separate --unbuffered --null-data --posix "
    "--debug --help --version --sandbox",
    "-el --expression --line-length",
)
_SED_ADDRESS = re.compile(r"\d+(?:~\d+)?|\$")
_SED_AFTER_COMMA = re.compile(r"[+~]?\d+|\$")
_SED_SPACE = re.compile(r"[\s;{}]*")


def is_plain_sed(script: str) -> bool:
    """Whether a script of sed only reads its input and prints. What is not understood is not."""
    at = 0
    while True:
        at = _SED_SPACE.match(script, at).end()  # type: ignore[union-attr] # it matches nothing
        if at >= len(script):
            return True
        end = _sed_command(script, at)
        if end is None:
            return False
        at = end


def _sed_command(script: str, at: int) -> int | None:
    """Where the command that begins here ends; None: it is none of the plain ones."""
    if script[at] == "#":
        return _line_end(script, at)
    after = _sed_addresses(script, at)
    if after is None or after >= len(script):
        return None
    at, command = after, script[after]
    if command in "{}":
        return at + 1
    if command in "dDgGhHnNpPxzF=":
        return at + 1
    if command in "qQlL":
        return re.compile(r"[ ]*\d*").match(script, at + 1).end()  # type: ignore[union-attr]
    if command in "sy" and at + 1 < len(script):
        delimiter = script[at + 1]
        if delimiter in "\\\n":
            return None
        middle = _sed_part(script, at + 2, delimiter, is_pattern=command == "s")
        end = None if middle is None else _sed_part(script, middle, delimiter, is_pattern=False)
        if end is None:
            return None
        if command == "s":
            end = re.compile(r"[gpiIMm0-9]*").match(script, end).end()  # type: ignore[union-attr]
        return end if end == len(script) or script[end] in " \t\n;}#" else None
    if command in "btT:":
        end = re.compile(r"[ ]*[A-Za-z0-9_]*").match(script, at + 1).end()  # type: ignore[union-attr]
        return end if end == len(script) or script[end] in " \t\n;}" else None
    if command in "aicr":
        return _line_end(script, at)
    return None


def _sed_addresses(script: str, at: int) -> int | None:
    """Where the addresses that may begin here end, with `!`; None: they are not understood."""
    first = _sed_address(script, at, _SED_ADDRESS)
    if first is None:
        return None
    if first > at and script[first : first + 1] == ",":
        second = _sed_address(script, first + 1, _SED_AFTER_COMMA)
        if second is None or second == first + 1:
            return None
        first = second
    return re.compile(r"[ ]*!?[ ]*").match(script, first).end()  # type: ignore[union-attr]


def _sed_address(script: str, at: int, plain: re.Pattern[str]) -> int | None:
    if script[at : at + 1] == "/":
        end = _sed_part(script, at + 1, "/", is_pattern=True)
        if end is None:
            return None
        return re.compile(r"[IM]*").match(script, end).end()  # type: ignore[union-attr]
    found = plain.match(script, at)
    return at if found is None else found.end()


def _sed_part(script: str, at: int, delimiter: str, *, is_pattern: bool) -> int | None:
    """Where the part ends that begins here, its delimiter included; None: it is not understood.

    A delimiter in brackets ends it for some versions of sed only.
    """
    in_brackets = False
    while at < len(script):
        character = script[at]
        if character == "\n":
            return None
        if character == delimiter:
            return None if in_brackets else at + 1
        if character == "\\":
            at += 2
            continue
        if is_pattern and character == "[":
            in_brackets = True
        elif character == "]":
            in_brackets = False
        at += 1
    return None


def _line_end(script: str, at: int) -> int:
    end = script.find("\n", at)
    return len(script) if end < 0 else end


def _awk(words: Sequence[Word], finding: Finding) -> None:
    read = _check_options(_AWK, words, finding, 1)
    if not read.operands:
        return
    place = read.operands[0]
    if _unless_static(words[place], finding, "a program of awk") and not is_plain_awk(
        words[place].text
    ):
        why = "a program of awk that may run another, read or write a file"
        finding.sensitive.append((place, why))


_AWK = _options("", "-Fv --field-separator --assign", permutes=False)


def is_plain_awk(program: str) -> bool:
    """Whether a program of awk only reads its input and prints.

    In a pattern, and in parentheses, `>` compares; elsewhere it may write. Where a text or a
    regular expression could hide which it is, the answer is no.
    """
    if re.search(r"system|getline|@|close|fflush", program):
        return False
    start = program.find("{")
    if start < 0:
        return True
    pattern, rules = program[:start], program[start:]
    if "|" in rules.replace("||", ""):
        return False
    if ">" not in rules:
        return True
    if '"' in pattern or "/" in program or "#" in program:
        return False
    depth = 0
    for character in _AWK_TEXT.sub("", rules):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == '"' or (character == ">" and depth <= 0):
            return False
    return True


_AWK_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def _tar(words: Sequence[Word], finding: Finding) -> None:
    """Its list of contents only."""
    at = 1
    old = len(words) > 1 and not words[1].text.startswith("-")
    if old:
        at = 2
        if not _unless_static(words[1], finding, "flags"):
            return
        if not re.fullmatch(r"[tvfzjJaC]*t[tvfzjJaC]*", words[1].text):
            finding.sensitive.append((1, "`tar` does more than list an archive"))
    read = _check_options(_TAR, words, finding, at)
    if not old and not {"-t", "--list"} & read.seen and words[1:]:
        finding.sensitive.append((0, "`tar` does more than list an archive"))
    for place in range(at, len(words)):
        if re.search(r"(?:^|=|f)[^/=]*:", words[place].text):
            finding.sensitive.append((place, "`tar` may take this for another machine"))


_TAR = _options(
    "-tvzjJaR --list --verbose --gzip --bzip2 --xz --zstd --wildcards --numeric-owner "
    "--full-time --utc --force-local",
    "-fCT --file --directory --strip-components --exclude",
)


def _date(words: Sequence[Word], finding: Finding) -> None:
    read = _check_options(OPTIONS["date"], words, finding, 1)
    for place in read.operands:
        if not words[place].text.startswith("+"):
            finding.sensitive.append((place, "`date` sets the clock to this"))


def _reads_first(words: Sequence[Word], finding: Finding) -> None:
    """The second operand is a file that is written."""
    read = _check_options(OPTIONS[finding.name], words, finding, 1)
    for place in read.operands[1:]:
        finding.sensitive.append((place, f"`{finding.name}` writes to this file"))


def _hostname(words: Sequence[Word], finding: Finding) -> None:
    for place in _check_options(OPTIONS["hostname"], words, finding, 1).operands:
        finding.sensitive.append((place, "`hostname` sets the host's name to this"))


def _man(words: Sequence[Word], finding: Finding) -> None:
    read = _check_options(OPTIONS["man"], words, finding, 1)
    for place in read.operands:
        if "/" in words[place].text:
            finding.sensitive.append((place, "`man` formats this file, which may hold code"))


def _tee(words: Sequence[Word], finding: Finding) -> None:
    read = _check_options(_options("-aip --append --ignore-interrupts"), words, finding, 1)
    for place in read.operands:
        if words[place].text != "-" and _unless_static(words[place], finding, "a file's name"):
            finding.writes.append(words[place])


def _dd(words: Sequence[Word], finding: Finding) -> None:
    for word in words[1:]:
        if word.text.startswith("of="):
            if _unless_static(word, finding, "a file's name"):
                finding.writes.append(Word(word.text[3:], word.start, word.end))
        elif word.shape is Shape.FILLED:
            finding.doubt(word, "names of files where `dd` takes settings")


# --- git


@dataclass(frozen=True, slots=True)
class _Subcommand:
    """A part of git that only reads."""

    options: Options
    operands_need: frozenset[str] | None = None
    """Operands make something unless one of these flags is there; None: they never do."""
    first: frozenset[str] | None = None
    """What the first operand may be, and there must be one; None: anything or nothing."""
    may_lack_first: bool = False


def _git_options(flags: str = "", valued: str = "", attached: str = "", **more: bool) -> Options:
    return _options(
        flags + " --color --no-color",
        valued,
        attached,
        numbers=more.get("numbers", False),
    )


_DIFF = (
    "-puszabwRWrt --patch --no-patch --stat --numstat --shortstat --dirstat --summary "
    "--name-only --name-status --raw --cached --staged --merge-base --minimal --patience "
    "--histogram --indent-heuristic --word-diff --color-words --color-moved --no-renames "
    "--find-renames --find-copies --find-copies-harder --check --full-index --binary --abbrev "
    "--no-abbrev --ignore-all-space --ignore-space-change --ignore-space-at-eol "
    "--ignore-blank-lines --ignore-cr-at-eol --function-context --unified --inter-hunk-context "
    "--exit-code --quiet --no-ext-diff --no-textconv --text --compact-summary --relative "
    "--no-relative --no-prefix --patch-with-stat --pickaxe-all --pickaxe-regex --submodule "
    "--ignore-submodules --cumulative --patch-with-raw --cc --combined-all-paths "
    "--no-indent-heuristic --default-prefix --irreversible-delete"
)
_DIFF_VALUED = (
    "-SGlI --diff-filter --diff-algorithm --word-diff-regex --stat-width --src-prefix "
    "--dst-prefix --ignore-matching-lines --find-object --ws-error-highlight --anchored"
)
_DIFF_ATTACHED = "-UMCDBX"
_LOG = (
    "-gimcqE --oneline --graph --decorate --no-decorate --all --branches --tags --remotes "
    "--merges --no-merges --first-parent --follow --reverse --date-order --topo-order "
    "--author-date-order --abbrev-commit --no-abbrev-commit --pretty --format --left-right "
    "--cherry-pick --cherry --cherry-mark --parents --children --full-history --simplify-merges "
    "--simplify-by-decoration --ancestry-path --dense --sparse --show-notes "
    "--no-notes --notes --source --walk-reflogs --boundary --left-only --right-only --not "
    "--no-walk --do-walk --relative-date --all-match --invert-grep --regexp-ignore-case "
    "--extended-regexp --fixed-strings --perl-regexp --no-mailmap --use-mailmap --mailmap "
    "--log-size --full-diff --remove-empty --count --objects --show-pulls --clear-decorations "
    "--expand-tabs --no-expand-tabs --no-min-parents --no-max-parents --ignore-missing "
    "--timestamp --reflog --stdin --no-expand-tabs --diff-merges --no-diff-merges --glob "
    "--exclude"
)
_LOG_VALUED = (
    "-nL --max-count --skip --since --until --after --before --author --committer --grep --date "
    "--encoding --min-parents --max-parents --decorate-refs --decorate-refs-exclude "
    "--since-as-filter"
)
_LISTING = "-l --list --contains --no-contains --merged --no-merged --points-at"

_GIT: Mapping[str, _Subcommand] = {
    "status": _Subcommand(
        _git_options(
            "-sbvz --short --branch --show-stash --porcelain --long --verbose --untracked-files "
            "--ignore-submodules --ignored --column --no-column --ahead-behind --no-ahead-behind "
            "--renames --no-renames --find-renames",
            "",
            "-u",
        )
    ),
    "diff": _Subcommand(_git_options(_DIFF, _DIFF_VALUED, _DIFF_ATTACHED)),
    "log": _Subcommand(
        _git_options(
            f"{_DIFF} {_LOG}", f"{_DIFF_VALUED} {_LOG_VALUED}", _DIFF_ATTACHED, numbers=True
        )
    ),
    "blame": _Subcommand(
        _git_options(
            "-sewltpfncbk --show-email --show-name --show-number --porcelain --line-porcelain "
            "--root --incremental --show-stats --score-debug --progress --no-progress --abbrev "
            "--reverse --first-parent --color-lines --color-by-age",
            "-LS --since --date --ignore-rev --ignore-revs-file --encoding",
            "-MC",
        )
    ),
    "ls-files": _Subcommand(
        _git_options(
            "-cdmoisutvzkf --cached --deleted --modified --others --ignored --stage --unmerged "
            "--killed --directory --no-empty-directory --exclude-standard --full-name "
            "--error-unmatch --abbrev --eol --deduplicate --recurse-submodules",
            "-xX --exclude --exclude-from --exclude-per-directory --with-tree --format",
        )
    ),
    "ls-tree": _Subcommand(
        _git_options(
            "-drtlz --long --name-only --name-status --object-only --full-name --full-tree "
            "--abbrev",
            "--format",
        )
    ),
    "rev-parse": _Subcommand(
        _git_options(
            "-q --abbrev-ref --short --verify --quiet --show-toplevel --show-prefix --show-cdup "
            "--git-common-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository "
            "--is-shallow-repository --symbolic --symbolic-full-name --all --branches --tags "
            "--remotes --revs-only --no-revs --flags --no-flags --absolute-git-dir "
            "--show-ref-format --show-object-format --not --git-dir "
            "--show-superproject-working-tree",
            "--default --since --until --after --before --git-path",
        )
    ),
    "rev-list": _Subcommand(
        _git_options(f"{_LOG} --objects-edge --header --bisect", _LOG_VALUED, numbers=True)
    ),
    "branch": _Subcommand(
        _git_options(
            f"{_LISTING} -arviq --all --remotes --verbose --show-current --ignore-case --column "
            "--no-column --abbrev --no-abbrev --omit-empty",
            "--sort --format",
        ),
        operands_need=_spread(_LISTING),
    ),
    "tag": _Subcommand(
        _git_options(
            f"{_LISTING} -i --ignore-case --column --no-column --omit-empty",
            "--sort --format",
            "-n",
        ),
        operands_need=_spread(_LISTING) | {"-n"},
    ),
    "shortlog": _Subcommand(
        _git_options(
            f"-sne --numbered --summary --email --group {_LOG}".replace(" -gimcqE", ""),
            _LOG_VALUED.replace("-nL", "-L"),
            "-w",
        )
    ),
    "describe": _Subcommand(
        _git_options(
            "--all --tags --long --always --dirty --broken --first-parent --exact-match --contains "
            "--abbrev --debug",
            "--match --exclude --candidates",
        )
    ),
    "grep": _Subcommand(
        _git_options(
            "-iInlLcvwEFGPpqWzaorh --ignore-case --line-number --files-with-matches --name-only "
            "--files-without-match --count --invert-match --word-regexp --extended-regexp "
            "--column --basic-regexp --fixed-strings --perl-regexp --show-function "
            "--function-context --quiet --heading --break --cached --untracked "
            "--exclude-standard --no-exclude-standard --text --and --or --not --all-match "
            "--only-matching --recursive --no-recursive --full-name --null --recurse-submodules "
            "--no-textconv -H",
            "-eABCm --after-context --before-context --context --max-depth --threads --max-count",
            numbers=True,
        )
    ),
    "cat-file": _Subcommand(_git_options("-tsep --allow-unknown-type --use-mailmap")),
    "merge-base": _Subcommand(
        _git_options("-a --all --octopus --independent --is-ancestor --fork-point")
    ),
    "name-rev": _Subcommand(
        _git_options("--tags --all --always --name-only --no-undefined", "--refs --exclude")
    ),
    "for-each-ref": _Subcommand(
        _git_options(
            "--contains --no-contains --merged --no-merged --points-at --ignore-case --omit-empty",
            "--sort --format --count --exclude",
        )
    ),
    "show-ref": _Subcommand(
        _git_options(
            "-dsq --head --heads --branches --tags --dereference --hash --verify --quiet --abbrev"
        )
    ),
    "show-branch": _Subcommand(_git_options("-ar --all --remotes --current --list", "-n --more")),
    "cherry": _Subcommand(_git_options("-v --abbrev")),
    "range-diff": _Subcommand(_git_options(_DIFF, "--creation-factor", "-UMC")),
    "diff-tree": _Subcommand(
        _git_options(
            f"{_DIFF} -mc --root --no-commit-id --always --pretty", _DIFF_VALUED, _DIFF_ATTACHED
        )
    ),
    "diff-index": _Subcommand(_git_options(f"{_DIFF} -m", _DIFF_VALUED, _DIFF_ATTACHED)),
    "diff-files": _Subcommand(_git_options(f"{_DIFF} -q", _DIFF_VALUED, _DIFF_ATTACHED)),
    "count-objects": _Subcommand(_git_options("-vH --verbose --human-readable")),
    "check-ignore": _Subcommand(_git_options("-qvnz --quiet --verbose --non-matching --no-index")),
    "check-attr": _Subcommand(_git_options("-az --all --cached")),
    "version": _Subcommand(_git_options("--build-options")),
    "config": _Subcommand(
        _git_options(
            "-lz --list --get --get-all --get-regexp --get-urlmatch --null --name-only "
            "--show-origin --show-scope --bool --int --path --local --global --system --worktree "
            "--includes",
            "--type --default",
        ),
        operands_need=frozenset(["--get", "--get-all", "--get-regexp", "--get-urlmatch"]),
    ),
    "remote": _Subcommand(
        _git_options("-v --verbose --all --push"), first=frozenset(["get-url"]), may_lack_first=True
    ),
    "stash": _Subcommand(
        _git_options(
            f"{_DIFF} {_LOG} --include-untracked --only-untracked",
            f"{_DIFF_VALUED} {_LOG_VALUED}",
            _DIFF_ATTACHED,
        ),
        first=frozenset(["list", "show"]),
    ),
    "worktree": _Subcommand(_git_options("-vz --verbose --porcelain"), first=frozenset(["list"])),
    "reflog": _Subcommand(
        _git_options(
            f"{_DIFF} {_LOG}", f"{_DIFF_VALUED} {_LOG_VALUED}", _DIFF_ATTACHED, numbers=True
        ),
        first=frozenset(["show", "exists"]),
        may_lack_first=True,
    ),
    "bisect": _Subcommand(_git_options(), first=frozenset(["log"])),
}
_GIT_ALIKE = {"show": "log", "whatchanged": "log", "annotate": "blame"}

GIT_NEUTRAL = names(
    "--no-pager -P --no-optional-locks --literal-pathspecs --no-replace-objects",
    "--glob-pathspecs --noglob-pathspecs --icase-pathspecs --no-advice",
)
"""Flags before git's subcommand that change nothing about what it does."""
GIT_GLOBAL_VALUED = names(
    "-c -C --git-dir --work-tree --namespace --exec-path --config-env --super-prefix",
    "--attr-source --list-cmds",
)
"""Flags before git's subcommand whose value may be the next word."""


def git_subcommand(argv: Sequence[str]) -> int:
    """The place of git's subcommand in its words, or their number where there is none."""
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in GIT_GLOBAL_VALUED and argv[at] != "--exec-path" else 1
    return min(at, len(argv))


def _git(words: Sequence[Word], finding: Finding) -> None:
    texts = [word.text for word in words]
    at = git_subcommand(texts)
    for place in range(1, at):
        if texts[place] not in GIT_NEUTRAL and texts[1:] != ["--version"]:
            why = f"`{texts[place]}` before a subcommand can make git run another program"
            finding.sensitive.append((place, why))
    if at == len(words):
        return
    if not _unless_static(words[at], finding, "a subcommand"):
        return
    subcommand = _GIT.get(_GIT_ALIKE.get(texts[at], texts[at]))
    if subcommand is None:
        finding.sensitive.append((at, f"`git {texts[at]}` does more than read"))
        return
    read = _check_options(subcommand.options, words, finding, at + 1)
    need = subcommand.operands_need
    if need is not None and not need & read.seen:
        for place in read.operands:
            finding.sensitive.append((place, f"`git {texts[at]}` sets or makes something of this"))
    if subcommand.first is not None:
        if not read.operands:
            if not subcommand.may_lack_first:
                finding.sensitive.append((at, f"`git {texts[at]}` alone does more than read"))
        elif texts[read.operands[0]] not in subcommand.first:
            place = read.operands[0]
            finding.sensitive.append(
                (place, f"`git {texts[at]} {texts[place]}` may do more than read")
            )


READERS: Mapping[str, Callable[[Sequence[Word], Finding], None]] = {
    **dict.fromkeys(_SHELLS, _shell),
    "eval": _eval,
    "cd": _cd,
    "printf": _printf,
    **dict.fromkeys(_TESTS, _test),
    "find": _find,
    "sed": _sed,
    "gsed": _sed,
    "awk": _awk,
    "gawk": _awk,
    "mawk": _awk,
    "nawk": _awk,
    "tar": _tar,
    "gtar": _tar,
    "bsdtar": _tar,
    "date": _date,
    "hostname": _hostname,
    "uniq": _reads_first,
    "xxd": _reads_first,
    "man": _man,
    "tee": _tee,
    "dd": _dd,
    "git": _git,
}
"""Programs whose words have a grammar of their own."""
