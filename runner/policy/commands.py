"""What a rule says about a command: a regular expression over its words.

Owns how a command is written for a pattern, and when a pattern counts as a match. An allow has
one writing, and has to fit it to the end of a word. A refusal has many: the same command with
its flags in another order, in clusters, or by their long names is the same command.

**The writing.** The words of the command with one blank between each, the program first. A word
that is empty, or holds a blank or a single quote, is in single quotes, as a shell would need it;
any other stands as it is. So a blank outside of quotes always parts two words. A new line or a
tab in a word is written as a blank. Of git, flags that change nothing (`git --no-pager log`) are
left out.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import re2

from runner.policy import language, programs
from runner.policy.language import Beyond, Budget
from runner.policy.matching import MAX_PATTERN_MEMORY_BYTES, Pattern, PatternError
from runner.policy.shell import Command

_MAX_RENDERINGS = 200
"""How many writings of a command a refusal looks at."""
_FEW_FLAGS = 4
"""Up to so many flags are tried in every order; more, in those that the pattern writes."""
_MAX_HEADS = 200
"""Steps for each character of a pattern, to find how it begins."""
_MAX_MEANINGS = 1000
"""Programs for which a pattern remembers whether it could mean them."""
WORK = 8_000
"""Writings that may be tried for one call, all rules and commands together: some 10 ms."""
_MADE_UP = (
    *("zqxjkv", "ZQXJ7", "zqx jkv", "z.q:x,j", "=", "7"),
    *("-Z", "-zqxjkv", "--zqxjkv", "--zqxjkv=1", "--z-q=x y"),
    *("/zqx/jkv", "zqx/jkv"),
)
"""Words that no rule means, of every sort that a class could be for."""


class TooMuchWork(Exception):
    """A script has so many commands with so many flags that it is not worth the time."""


class Work:
    """How many more writings may be tried."""

    __slots__ = ("left",)

    def __init__(self, left: int = WORK):
        self.left = left

    def spend(self) -> None:
        """One more.

        Raises:
            TooMuchWork: There was none left.
        """
        self.left -= 1
        if self.left < 0:
            raise TooMuchWork


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A regular expression in RE2's syntax, over commands. Safe to use from many threads."""

    text: str
    _to_refuse: Any = field(compare=False, repr=False)
    _to_allow: Any = field(compare=False, repr=False)
    _wanted: "_Wanted" = field(compare=False, repr=False)
    _heads: tuple[str, ...] | None = field(compare=False, repr=False)
    _meanings: dict[str, bool] = field(compare=False, repr=False, default_factory=dict)

    @classmethod
    def compile(cls, text: str, *, memory_bytes: int = MAX_PATTERN_MEMORY_BYTES) -> Self:
        """Compile `text`, to take no more than `memory_bytes` now and while it searches.

        Raises:
            PatternError: RE2 refuses it, or it uses what Go's regexp does not have.
        """
        Pattern.compile(text, memory_bytes=memory_bytes // 3)
        return cls(
            text,
            _compile(f"(?:{text})", memory_bytes // 3),
            _compile(rf"(?:{text})(?: |\z)", memory_bytes // 3),
            _Wanted.by(text),
            _heads(text),
        )

    def could_mean(self, program: str) -> bool:
        """Whether any command of this program can match. A cheap no; a yes proves nothing."""
        if self._heads is None:
            return True
        known = self._meanings.get(program)
        if known is None:
            if len(self._meanings) >= _MAX_MEANINGS:
                self._meanings.clear()
            known = _begins(program, self._heads)
            self._meanings[program] = known
        return known

    def denies(self, command: Command, work: Work | None = None) -> bool:
        """Whether a rule that refuses, or asks, means this command.

        It does where it matches from the start and at least the whole program, in any of the
        ways to write the same command: `rm -fr x`, `rm x --recursive -f` and `rm -v -rf x` all
        are `rm -rf x`.

        Raises:
            TooMuchWork: `work` was given, and there is none left.
        """
        argv = command.argv
        if not self.could_mean(argv[0]):
            return False
        length = len(argv[0].encode())
        for text in _plain_renderings(argv):
            found = self._to_refuse.match(text)
            if found is not None and found.end() >= length:
                return True
        has_flags = argv[0] in _OLD_STYLE or any(word[:1] == "-" for word in argv)
        if not has_flags or not self._wanted.reaches_words:
            return False
        for text in _renderings(argv, self._wanted):
            if work is not None:
                work.spend()
            found = self._to_refuse.match(text)
            if found is not None and found.end() >= length:
                return True
        return False

    def matches(self, command: Command) -> bool:
        r"""Whether a rule that allows means this command, sensitive words left aside.

        It does where it matches from the start, and to the end of a word: `^rg\b` is neither
        `rg-evil` nor `rg/x`. A pattern that ends in a blank ends after that, and fits nothing.
        """
        return self.could_mean(command.argv[0]) and self._allows(command.argv)

    def names(self, command: Command) -> bool:
        """Whether a rule that allows means this command and names its sensitive words.

        A word is named where another in its place would not match: `^python3 -m pytest` names
        `python3`; `.*` names nothing.
        """
        if not self._allows(command.argv):
            return False
        return not any(
            self._allows((*command.argv[: item.word], made_up, *command.argv[item.word + 1 :]))
            for item in command.sensitive
            for made_up in _MADE_UP
        )

    def _allows(self, argv: tuple[str, ...]) -> bool:
        return self._to_allow.match(_written(_without_neutral(argv))) is not None


def _compile(text: str, memory_bytes: int) -> Any:
    options = re2.Options()
    options.max_mem = memory_bytes
    options.log_errors = False
    options.never_capture = True
    options.longest_match = True
    try:
        return re2.compile(text, options=options)
    except re2.error:  # the text alone was fine; so it is open at its end
        raise PatternError("the quotation that begins with \\Q has no end: add \\E") from None


# --- how a pattern begins


def _begins(program: str, heads: Iterable[str]) -> bool:
    if "'" in program or _BLANK.search(program) or not program:
        return True  # it is written in quotes
    text = program + " "
    return any(text.startswith(head) or head.startswith(text) for head in heads)


def _heads(text: str) -> tuple[str, ...] | None:
    """Texts with one of which every match starts; None where that can't be told."""
    try:
        heads = language.beginnings(text, Budget(_MAX_HEADS * len(text)))
    except Beyond:
        return None
    return None if "" in heads else heads


# --- the writing

_BLANK = re.compile(r"\s")


def _written(argv: Sequence[str]) -> bytes:
    text = " ".join(argv)
    if "'" in text or "" in argv or len(_BLANK.findall(text)) >= len(argv):
        text = " ".join([_word(word) for word in argv])
    return text.encode(errors="replace")


def _word(word: str) -> str:
    if word and "'" not in word and not _BLANK.search(word):
        return word
    return "'" + _BLANK.sub(" ", word).replace("'", "'\"'\"'") + "'"


def _bare(argv: Iterable[str]) -> bytes:
    """The words without any quotes: a pattern that refuses need not know about them."""
    return _BLANK.sub(" ", " ".join(argv)).encode(errors="replace")


def _without_neutral(argv: tuple[str, ...]) -> tuple[str, ...]:
    if argv[0] != "git" or len(argv) == 1 or argv[1] not in programs.GIT_NEUTRAL:
        return argv
    at = 1
    while at < len(argv) and argv[at] in programs.GIT_NEUTRAL:
        at += 1
    return (argv[0], *argv[at:])


@lru_cache(maxsize=256)
def _plain_renderings(argv: tuple[str, ...]) -> tuple[bytes, ...]:
    """A command as it stands; for git, also without what stands before its subcommand."""
    texts = [_written(argv), _bare(argv)]
    if argv[0] == "git" and len(argv) > 1 and argv[1].startswith("-"):
        rest = ("git", *argv[programs.git_subcommand(argv) :])
        texts += [_written(rest), _bare(rest)]
    return tuple(dict.fromkeys(texts))


# --- flags as sets

_CLUSTER = re.compile(r"(?:^|[^\w-])-([A-Za-z0-9]{1,8})(?![\w-])")
_LONG = re.compile(r"(?:^|[^\w-])--([A-Za-z0-9][\w-]*)")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The flags that a pattern writes."""

    reaches_words: bool
    """Whether it can match more than a program."""
    clusters: tuple[str, ...] = ()
    longs: tuple[str, ...] = ()
    letters: frozenset[str] = frozenset()
    """All that could stand for a short flag in it, in a class such as `[rf]` too."""

    @classmethod
    def by(cls, text: str) -> "_Wanted":
        """The flags that this pattern writes."""
        plain = _SPACE_CLASS.sub(" ", text)
        return cls(
            reaches_words=bool(_REACHES_WORDS.search(text)),
            clusters=tuple(dict.fromkeys(_CLUSTER.findall(plain)))[:8],
            longs=tuple(dict.fromkeys(_LONG.findall(plain)))[:8],
            letters=frozenset(_letters_after_dashes(plain)),
        )


_SPACE_CLASS = re.compile(r"\\[sSbB][*+]?")
_REACHES_WORDS = re.compile(r"[ .\[-]|\\[sSWDx]")


def _letters_after_dashes(text: str) -> Iterator[str]:
    """Letters and digits from each dash to the end of its word, alternatives in it included."""
    depth = 0
    inside = False
    for character in text:
        if character == "-":
            inside, depth = True, 0
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == " " or (character == "|" and depth <= 0):
            inside = False
        elif inside and character.isalnum():
            yield character


@dataclass(frozen=True, slots=True)
class _Spelling:
    """The flags of a program that have two names, or a value."""

    longs: Mapping[str, str] = field(default_factory=dict)
    """Long name → letter."""
    valued: frozenset[str] = frozenset()
    """Letters and long names that take a value."""
    same: Mapping[str, str] = field(default_factory=dict)
    """A letter → one that means the same."""
    subcommand: bool = False
    """Its first operand stands before the flags."""


def _spelling(
    longs: str = "", valued: str = "", same: str = "", *, subcommand: bool = False
) -> _Spelling:
    """`longs` as `r=recursive f=force`, `same` as `R=r`."""
    pairs = [pair.partition("=") for pair in longs.split()]
    return _Spelling(
        {long: short for short, _, long in pairs},
        frozenset(valued.split()),
        {one: other for one, _, other in (pair.partition("=") for pair in same.split())},
        subcommand,
    )


_OWNERSHIP = _spelling(
    "R=recursive f=silent f=quiet v=verbose c=changes h=no-dereference", "reference"
)
_SPELLINGS: Mapping[str, _Spelling] = {
    "rm": _spelling("r=recursive f=force v=verbose d=dir i=interactive I=interactive", same="R=r"),
    "cp": _spelling(
        "r=recursive f=force v=verbose a=archive i=interactive n=no-clobber u=update l=link "
        "s=symbolic-link L=dereference P=no-dereference T=no-target-directory x=one-file-system "
        "t=target-directory S=suffix b=backup",
        "t target-directory S suffix",
        same="R=r",
    ),
    "mv": _spelling(
        "f=force v=verbose i=interactive n=no-clobber u=update T=no-target-directory "
        "t=target-directory S=suffix b=backup",
        "t target-directory S suffix",
    ),
    "ln": _spelling(
        "s=symbolic f=force v=verbose n=no-dereference r=relative i=interactive L=logical "
        "P=physical T=no-target-directory t=target-directory",
        "t target-directory S suffix",
    ),
    "chmod": _OWNERSHIP,
    "chown": _OWNERSHIP,
    "chgrp": _OWNERSHIP,
    "mkdir": _spelling("p=parents v=verbose m=mode", "m mode"),
    "rmdir": _spelling("p=parents v=verbose"),
    "touch": _spelling(
        "a=a c=no-create d=date r=reference h=no-dereference", "d date r reference t"
    ),
    "curl": _spelling(
        "o=output O=remote-name X=request d=data F=form H=header k=insecure L=location "
        "T=upload-file x=proxy u=user K=config s=silent S=show-error f=fail A=user-agent "
        "b=cookie c=cookie-jar I=head i=include v=verbose G=get e=referer m=max-time E=cert "
        "U=proxy-user",
        "o output X request d data F form H header T upload-file x proxy u user K config "
        "A user-agent b cookie c cookie-jar e referer m max-time E cert U proxy-user data-binary "
        "data-raw data-urlencode connect-timeout cacert capath key url w write-out r range",
    ),
    "wget": _spelling(
        "O=output-document P=directory-prefix q=quiet r=recursive c=continue i=input-file "
        "o=output-file a=append-output e=execute N=timestamping b=background T=timeout t=tries "
        "U=user-agent m=mirror np=no-parent l=level v=verbose",
        "O output-document P directory-prefix i input-file o output-file a append-output e execute "
        "T timeout t tries U user-agent l level post-data post-file header use-askpass",
    ),
    "grep": _spelling(
        "r=recursive R=dereference-recursive i=ignore-case v=invert-match n=line-number "
        "l=files-with-matches c=count o=only-matching w=word-regexp E=extended-regexp "
        "F=fixed-strings P=perl-regexp q=quiet e=regexp f=file m=max-count A=after-context "
        "B=before-context C=context",
        "e regexp f file m max-count A after-context B before-context C context include exclude "
        "exclude-dir color",
    ),
    "sed": _spelling(
        "i=in-place n=quiet n=silent E=regexp-extended e=expression f=file s=separate z=null-data",
        "e expression f file",
        same="r=E",
    ),
    "sort": _spelling(
        "o=output r=reverse n=numeric-sort u=unique k=key t=field-separator T=temporary-directory",
        "o output k key t field-separator T temporary-directory S buffer-size compress-program",
    ),
    "tar": _spelling(
        "c=create x=extract x=get t=list f=file v=verbose z=gzip j=bzip2 J=xz C=directory "
        "r=append u=update p=preserve-permissions P=absolute-names O=to-stdout "
        "I=use-compress-program k=keep-old-files",
        "f file C directory I use-compress-program T files-from X exclude-from exclude to-command "
        "checkpoint-action transform strip-components",
        same="u=u",
    ),
    "git": _spelling("f=force v=verbose q=quiet", subcommand=True),
    "git push": _spelling(
        "f=force d=delete n=dry-run u=set-upstream v=verbose q=quiet o=push-option",
        "o push-option repo receive-pack exec",
        subcommand=True,
    ),
    "git commit": _spelling(
        "n=no-verify a=all m=message s=signoff S=gpg-sign F=file C=reuse-message q=quiet",
        "m message F file C author date",
        subcommand=True,
    ),
    "git clean": _spelling(
        "f=force n=dry-run i=interactive q=quiet e=exclude", "e exclude", subcommand=True
    ),
    "git branch": _spelling(
        "d=delete f=force m=move c=copy a=all r=remotes u=set-upstream-to", subcommand=True
    ),
    "git checkout": _spelling("f=force q=quiet d=detach t=track", "b B", subcommand=True),
    "git tag": _spelling(
        "d=delete f=force l=list a=annotate m=message", "m message", subcommand=True
    ),
    "docker": _spelling(
        "v=volume e=env p=publish u=user w=workdir i=interactive t=tty d=detach f=force a=all",
        "v volume e env p publish u user w workdir name network entrypoint mount cap-add device",
        subcommand=True,
    ),
    "kubectl": _spelling(
        "n=namespace f=filename l=selector o=output A=all-namespaces",
        "n namespace f filename l selector o output context kubeconfig",
        subcommand=True,
    ),
    "npm": _spelling("g=global f=force D=save-dev S=save", subcommand=True),
    "pip": _spelling(
        "r=requirement U=upgrade e=editable i=index-url",
        "r requirement i index-url",
        subcommand=True,
    ),
    "apt-get": _spelling("y=yes y=assume-yes q=quiet", subcommand=True),
    "apt": _spelling("y=yes y=assume-yes q=quiet", subcommand=True),
    "kill": _spelling("s=signal l=list", "s signal"),
    "pkill": _spelling("f=full s=signal u=euid", "signal u euid"),
    "ssh": _spelling("", "p l i o F J L R D"),
    "rsync": _spelling(
        "a=archive v=verbose r=recursive n=dry-run e=rsh z=compress", "e rsh exclude include"
    ),
    "zip": _spelling("r=recurse-paths m=move T=test"),
    "truncate": _spelling("s=size c=no-create r=reference", "s size r reference"),
    "shred": _spelling("u=remove f=force n=iterations z=zero v=verbose", "n iterations s size"),
    "tee": _spelling("a=append i=ignore-interrupts"),
    "install": _spelling(
        "m=mode o=owner g=group d=directory t=target-directory", "m mode o owner g group"
    ),
    "xargs": _spelling(
        "0=null r=no-run-if-empty n=max-args P=max-procs I=replace d=delimiter a=arg-file",
        "n max-args P max-procs I d delimiter a arg-file L s E",
    ),
    "sudo": _spelling(
        "u=user i=login s=shell E=preserve-env g=group n=non-interactive", "u user g group"
    ),
}
_ANY = _spelling()
_ONE_DASH = frozenset(["find", "java", "ffmpeg", "terraform", "openssl", "xset", "convert"])
"""Programs whose long flags have one dash, and which know no clusters."""
_OLD_STYLE = frozenset(["tar", "gtar", "bsdtar"])
"""Programs whose first word is a cluster of flags without its dash."""


@dataclass(frozen=True, slots=True)
class _Flag:
    letter: str
    """Empty where there is none. For a program that knows no clusters, the whole flag."""
    long: str
    value: str | None


@dataclass(frozen=True, slots=True)
class _Parsed:
    spelling: _Spelling
    head: tuple[str, ...]
    """The program, and its subcommand."""
    flags: tuple[_Flag, ...]
    operands: tuple[str, ...]
    letters: Mapping[str, str | None]
    """The short flags, those with a long name only included, and their values."""


def _spelling_of(argv: Sequence[str]) -> _Spelling:
    """How the flags of this command may be written."""
    spelling = _SPELLINGS.get(argv[0], _ANY)
    if argv[0] == "git":
        at = programs.git_subcommand(argv)
        return _SPELLINGS.get(f"git {argv[at]}" if at < len(argv) else "git", spelling)
    return spelling


@lru_cache(maxsize=256)
def _parsed(argv: tuple[str, ...]) -> _Parsed:
    spelling = _spelling_of(argv)
    words = list(argv[1:])
    if argv[0] == "git":
        words = words[programs.git_subcommand(argv) - 1 :]
    elif argv[0] in _OLD_STYLE and words and not words[0].startswith("-"):
        words[0] = "-" + words[0]
    flags: list[_Flag] = []
    operands: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            literal = list(rest)
            # Without it, what follows would read as flags.
            operands += ["--", *literal] if any(one[:1] == "-" for one in literal) else literal
        elif word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            long = _full_name(name, spelling)
            takes = long in spelling.valued and not has_value
            text = next(rest, "") if takes else value if has_value else None
            flags.append(_Flag(spelling.longs.get(long, ""), long, text))
        elif word.startswith("-") and len(word) > 1:
            if argv[0] in _ONE_DASH:
                flags.append(_Flag(word[1:], "", None))
            else:
                flags.extend(_cluster(word, spelling, rest))
        else:
            operands.append(word)
    head = [argv[0]]
    if spelling.subcommand and operands:
        head.append(operands.pop(0))
    letters = {flag.letter: flag.value for flag in flags if flag.letter}
    return _Parsed(spelling, tuple(head), tuple(flags), tuple(operands), letters)


def _full_name(name: str, spelling: _Spelling) -> str:
    """A long flag's whole name, where this is the start of one that is known."""
    if name in spelling.longs or name in spelling.valued:
        return name
    whole = [long for long in (*spelling.longs, *spelling.valued) if long.startswith(name)]
    letters = {spelling.longs.get(long, long) for long in whole}
    return whole[0] if len(letters) == 1 else name


def _cluster(word: str, spelling: _Spelling, rest: Iterator[str]) -> Iterator[_Flag]:
    for place, letter in enumerate(word[1:], 1):
        known = spelling.same.get(letter, letter)
        if letter in spelling.valued:
            yield _Flag(known, "", word[place + 1 :] or next(rest, ""))
            return
        yield _Flag(known, "", None)


def _renderings(argv: tuple[str, ...], wanted: _Wanted) -> Iterator[bytes]:
    """The command with its flags in the orders and by the names that the pattern may mean.

    Flags that the pattern does not speak of are left out.
    """
    parsed = _parsed(argv)
    texts = dict.fromkeys(
        written((*parsed.head, *flags, *parsed.operands))
        for flags in itertools.islice(_choices(parsed, wanted), _MAX_RENDERINGS)
        for written in (_written, _bare)
    )
    return iter(texts)


def _choices(parsed: _Parsed, wanted: _Wanted) -> Iterator[tuple[str, ...]]:
    """Lists of flags to write."""
    yield ()
    asked = list(_asked(parsed, wanted))
    if asked:
        yield _joined(asked)
    if len(asked) <= _FEW_FLAGS:
        for size in range(1, len(asked) + 1):
            for order in itertools.permutations(asked, size):
                yield _joined(order)
    letters = sorted(parsed.letters.keys() & wanted.letters)
    if len(letters) > _FEW_FLAGS:
        yield _as_cluster(letters, parsed)
        letters = letters[:_FEW_FLAGS]
    for size in range(1, len(letters) + 1):
        for chosen in itertools.permutations(letters, size):
            yield _as_cluster(chosen, parsed)
            if size > 1:
                yield _joined(_as_cluster(letter, parsed) for letter in chosen)


def _joined(flags: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(flags))


def _as_cluster(letters: Iterable[str], parsed: _Parsed) -> tuple[str, ...]:
    """Short flags in one word, then their values."""
    letters = list(letters)
    values = [value for letter in letters if (value := parsed.letters[letter]) is not None]
    return (f"-{''.join(letters)}", *values)


def _asked(parsed: _Parsed, wanted: _Wanted) -> Iterator[tuple[str, ...]]:
    """What of the pattern's own flags the command has, as the pattern writes it."""
    same = parsed.spelling.same
    for cluster in wanted.clusters:
        is_one = parsed.head[0] in _ONE_DASH
        meant = [cluster] if is_one else [same.get(letter, letter) for letter in cluster]
        if all(letter in parsed.letters for letter in meant):
            _, *values = _as_cluster(meant, parsed)
            yield (f"-{cluster}", *values)
    for long in wanted.longs:
        letter = parsed.spelling.longs.get(long, "")
        for flag in parsed.flags:
            is_start = bool(flag.long) and long.startswith(flag.long)
            if is_start or (letter and flag.letter == letter):
                yield (f"--{long}", flag.value) if flag.value else (f"--{long}",)
                if flag.value:
                    yield (f"--{long}={flag.value}",)
                break
