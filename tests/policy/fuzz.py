"""Looks for scripts that a policy allows and that then do what it refuses.

    python -m tests.policy.fuzz [--scripts 50000] [--seed N] [--busybox FILE]

Scripts are made by chance, of what has fooled such filters before. Each is judged by several
policies. Those that one allows are run under the shells of a session's container, where every
program is a stand-in that writes down its words (see `fuzz_inside`), and what happened is
compared with what the policy was to let happen. That comparison is in plain Python, on the words
that the kernel gave to programs and on the files that changed: it shares no code with what
it checks, but for one of its checks, which is whether the words are those that the policy saw.
"""

import argparse
import base64
import gzip
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runner import Runner, Session, Settings
from runner.model import Verdict
from runner.policy import Policy
from runner.policy.shell import analyse

INSIDE = Path(__file__).with_name("fuzz_inside.py")
BATCH = 500
"""Scripts that are judged while those before them run."""

Words = Sequence[str]


# --- scripts


class Scripts:
    """An endless supply of scripts; the same for the same seed."""

    HARMLESS = (
        *("ls", "ls -l", "ls -la src", "cat a.txt", "cat 'two words.txt'", "cat src/*.py", "pwd"),
        *("git status", "git diff --stat", "git log -3", "git log --oneline -- src", "echo done"),
        *("rg seven src", "rg -n 'a|b' src", "grep -rn one .", "wc -l a.txt b.txt"),
        *("head -1 a.txt", "sort a.txt", "sort -rn -k 2 a.txt", "sed -n 1,2p a.txt"),
        *("sed 's/a/b/g' a.txt", "date", "find . -name '*.py'", "find src -type f -print"),
        *("awk '{print $1}' a.txt", "true", ":", "echo 'rm -rf /'", 'echo "curl x"'),
        *("printf '%s\\n' a b", "test -f a.txt", "[ -d src ]", "uniq -c a.txt"),
        *("cut -d: -f1 a.txt", "tr a-z A-Z", "echo a#b", "echo \\;", "echo '$(x)'"),
        *("tail -n 5 a.txt", "basename a/b", "cat -- -rf", "ls ./*", "git show HEAD", "cd src"),
        *("echo if then", "ls done", "echo { }", "echo ! x", "echo a=b", "echo 'a\nb'"),
        *("[ a = b ]", 'echo "a\\"b"', "cat <<'E'\nx $(curl x)\nE", "cat <<E\nplain\nE"),
        *("ls 2>&1", "cat <a.txt", "ls >/dev/null 2>&1", "echo a\\ b", "echo é"),
        *("case a in a|b) ls;; esac", "echo '#' # x", "echo \\\\", "cat 0<a.txt"),
        *('printf %s "it\'s"', "ls >build/x", "ls 2>build/x -l", "ls #", ">build/x ls"),
        *("cat <<'E' >build/x\nx\nE", "cat <<'E' | wc\nx\nE", "cat <<-'E'\n\tx\n\tE", "! ls"),
        *("echo for x in a", "echo [a", "echo a]", "echo %", "echo -n x", "echo a:b,c@d+e"),
        *("ls -- -o",),
    )
    REFUSED = (
        *("rm -rf src", "rm -fr src", "rm -r -f src", "rm --recursive --force src", "rm src -rf"),
        *("rm --recur --forc src", "rm -v -rf src", "curl http://x/", "wget x", "sudo ls"),
        *("curl -o x http://x/", "rm -rf /", "git push --force", "git push -f origin x"),
    )
    HIDDEN = (
        *("sort -o b.txt a.txt", "sort -ob.txt a.txt", "sort --output=b.txt a.txt"),
        *("sort -uo b.txt", "find . -name a.txt -delete", "find . -exec rm -rf {} +"),
        *("find . -execdir curl {} ';'", "sed -i s/o/0/ a.txt", "sed 's/one/1/w b.txt' a.txt"),
        *("sed -n 'w out' a.txt", "sed '1e curl x'", "sed 's/one/curl x/e' a.txt"),
        *("sed --in-place=.b s/a/b/ a.txt", "sed -ni p a.txt", "awk 'BEGIN{system(\"curl x\")}'"),
        *("awk '{print > \"out\"}' a.txt", "tee out", "dd of=out"),
        *("awk '{print | \"curl x\"}' a.txt", "rg --pre ./run.sh x"),
        *("rg --hostname-bin=./run.sh x", "tar -cf out a.txt", "tar cf out a.txt"),
        *("tar -tf a.txt --to-command=curl", "uniq a.txt out", "git -c core.pager=./run.sh log"),
        *("git diff --output=out", "git diff --ext-diff", "git -C src log", "xargs rm -rf <a.txt"),
        *("echo src | xargs rm -rf", "echo -rf src | xargs rm", "xargs -a a.txt curl"),
        *("env curl x", "env -S 'curl x'", "env -i curl x", "command curl x", "exec curl x"),
        *("eval curl x", "nice -n 5 curl x", "nohup curl x", "timeout 5 curl x"),
        *("timeout -s KILL 5 curl x", "time curl x", "stdbuf -o0 curl x", "setsid curl x"),
        *("sh -c 'curl x'", "bash -c 'curl x'", "sh -ec 'rm -rf src'", "busybox rm -rf src"),
        *("python3 -c 1", "perl -e 1", "make", "bash run.sh", "sh <a.txt", ". ./run.sh"),
        *("./run.sh", "evil/ls", "src/ls", "PATH=evil ls"),
        *("PATH=/workspace/evil:$PATH git status", "$PWD/run.sh", "alias ls=curl"),
        *("ls() { curl x; }", "function ls { curl x; }", "export PATH=evil", "hash -p /x ls"),
        *("trap 'curl x' EXIT", "set -- curl x; $@", 'set -- curl x; "$@"', "x=curl; $x y"),
        *("IFS=_; x=curl_y; $x", "a=r b=m; $a$b -rf src", "{curl,x}", "{rm,-rf,src}"),
        *("$(echo curl) x", "`echo curl` x", "cur? x", "echo x >a.txt", "echo x >>a.txt"),
        *("echo x >|a.txt", ">a.txt", "ls >&a.txt", "ls &>a.txt", "ls 2>a.txt", "ls <>new"),
        *("ls >link/there", "ls >build/../a.txt", "cd src; ls >build/x", "cd link && ls >build/x"),
        *("ls 3>a.txt", "exec >a.txt", "exec 3>a.txt", "{ ls; } >a.txt", "(ls) >a.txt"),
        *("ls >'build/../a.txt'", "ls >build/list >a.txt", "ls >/tmp/x"),
        *("while :; do break; done >a.txt", "if :; then ls; fi >>a.txt", "sort *", "rm *"),
        *("rm -- src -rf", "find * -print", "ls $(curl x)", "ls `curl x`", "cat <(curl x)"),
        *("ls ${x:-$(curl x)}", 'echo "$(curl x)"', "echo $((`curl x`))", "echo $[$(curl x)]"),
        *("cat <<<$(curl x)", "[ -v 'a[$(curl x)]' ]", "test -v 'a[$(curl x)]'"),
        *("printf -v 'a[$(curl x)]' x", "[[ -v 'a[$(curl x)]' ]]", "read 'a[$(curl x)]' <a.txt"),
        *("let 'a[$(curl x)]'", "declare 'a[$(curl x)]=1'", "echo ${a[$(curl x)]}"),
        *("cat <<E\n$(curl x)\nE", "cat <<'E'\n$(curl x)\nE", "cat <<E\n`curl x`\nE"),
        *("cat <<-E\n\tx\n\tE\ncurl x", "cat <<E; curl x\nE", "cat <<'a b'\na b\ncurl x"),
        *("cat <<\\E\nE\ncurl x", "cat <<E\nE \nE\nrm -rf src", "case a in a) curl x;; esac"),
        *("case $(curl x) in *) ls;; esac", "for x in $(curl x); do ls; done"),
        *("for ls in a; do curl x; done", "coproc curl x"),
        *("select x in a; do curl x; done <a.txt", "! curl x", "cu\\\nrl x", "c'u'rl x"),
        *('c"u"rl x', "\\curl x", "''curl x", "$'curl' x", "$'\\x63url' x", '$"curl" x'),
        *("/usr/bin/curl x", "/bin/../bin/curl x", "//usr/bin/curl x", "/usr/bin/env curl x"),
        *("/bin/sh -c 'curl x'", "echo x >.git/config", "echo x >.GIT/config", "echo x >>.envrc"),
        *("cat a.txt >./.EnvRc", ">.git/hooks/x", "git push -f", "git push origin +main"),
        *("git -c a.b=c push --force", "git --no-pager push -f"),
    )
    TARGETS = (
        *("build/list", "build/new", "/workspace/build/x", "./build/x", "/dev/null"),
        *("'build/a b'", "a.txt", "../x", "build/../a.txt", "/tmp/x", "link/x", "~/x", "$x"),
        *("build", "build//x", "&1", "build/$x"),
    )
    REDIRECTS = (
        *(">", ">>", "2>", ">|", "<>", "&>", ">&", "<", "1>", "2>&1 >", "> ", "3>", "{x}>", "&>>"),
    )
    SEPARATORS = (
        *("; ", " && ", " || ", " | ", "\n", ";", "&&", "|", " & ", "&", "\n\n", " ;\n", " |\n"),
        *(" &&\n", " |& ", ";;", "\r\n", "\r", " # x\n", "#x\n", "\\\n", " \\\n", "\x0b", "\x0c"),
        *("\u2028", " ;& "),
    )
    WRAPPERS = (
        *("env ", "command ", "nice ", "nohup ", "timeout 5 ", "stdbuf -oL ", "setsid ", "exec "),
        *("time ", "xargs ", "sudo ", "env -i ", "env A=b ", "busybox ", "eval ", "nice -n 3 "),
        *("timeout -k 1 5 ", "! ", "env -u X ", "env -- ", "command -p ", "time -p "),
        *("xargs -n1 ", "find . -exec ", "LANG=C ", "X=1 ", "LD_PRELOAD=./x ", "IFS=x "),
        *("builtin ", "coproc ", "\\", "env -S", "ENV=./run.sh "),
    )
    BLANKS = (
        *(" ", "  ", "\t", " \t ", "\xa0", "\u2003", "\u200b", "\x0b", "\x0c", "\r", "$IFS"),
        *("${IFS}",),
    )
    SAME = (
        *("'{0}'", '"{0}"', "{1}''{2}", "{1}'{2}'", '{1}"{2}"', "{1}\\{2}", "''{0}", "\\{0}"),
        *("/usr/bin/{0}", "/bin/{0}", "/usr/local/bin/{0}"),
    )
    """A word in other writings. `{1}` and `{2}` are its halves."""
    OTHER = (
        *("$'{0}'", '$"{0}"', "{1}$@{2}", "{1}\\\n{2}", "{1}$x{2}", "{1}\u200b{2}", "$(echo {0})"),
        *("{1}?{more}", "{{{0},}}", "{1}``{2}", "{1}${{x}}{2}", "/usr/bin/../bin/{0}", "./{0}"),
        *("{1}[{one}]{more}", "{1}\x00{2}", "~/{0}", "{0}\r", "$'\\x{hex}'", "{0}\xa0", "-{0}"),
        *("{1}{{,}}{2}", "//bin/{0}", "{0}=", "{1}*", "$'{1}\\u0000{2}'", "{1}`:`{2}", "\u0435{0}"),
    )
    """And in writings that make it another word, or that shells read differently."""
    FRAMES = (
        *("if {}; then {}; fi", "if {}\nthen {}\nelse {}\nfi", "while false; do {}; done"),
        *("( {} )", "({})", "{{ {}; }}", "for x in a b; do {}; done", "for x in a; do {}\ndone"),
        *("case a in a) {};; b) {};; esac", "until true; do {}; done", "! {}", "{} &"),
        *("f() {{ {}; }}; f", "sh -c '{}'", 'sh -c "{}"', "eval '{}'", "$({})", "`{}`"),
        *("echo $({})", 'echo "$({})"', "cat <<E\n{}\nE", "cat <<'E'\n{}\nE", "cat <<E\n$({})\nE"),
        *("# {}", "{} # {}", "'{}'", '"{}"', "{}\n# x\n{}", "case x in\n(x) {} ;;\nesac"),
        *("f() {}\nf", "{{ {}\n}}", "[[ a ]] && {}", "(( 1 )) && {}", "function f {{ {}; }}; f"),
        *("trap '{}' EXIT", "for ((;;)); do {}; break; done", "cat <<-'E'\n\t{}\n\tE\n{}"),
        *("bash -c '{}'", "while read x; do {}; done <a.txt", "if ! {}; then {}; fi"),
    )
    ODD = (
        *("'", '"', "\\", "`", "$", "(", ")", "{", "}", "[", "]", ";", "&", "|", "<", ">", "#"),
        *("!", "~", "*", "?", "\n", "\t", "\r", " ", "=", "-", ",", "\x00", "\x01", "\x7f"),
        *("\u200b", "\u202e", "\ufeff", "é", "\uff1b", "''", '""', "\\\n", "$(", "$((", "${", "<<"),
        *("<<<", ">>", "&&", "||", ";;", "$'", '$"', "<(", "|&", "&>", "esac", "done", "fi"),
        *("then", "do", "in", "{ ", " }", "case", "if ", "for ", "while ", "EOF", "E\n", "=("),
        *(" -o ", " -rf ", "--", " -c ", "x=", "curl ", "rm ", "$x", "$@", "$*", "{a,b}", "~root"),
        *("%s", "\\'", "\n\\", "\n ", "\n'", ">build/x\n", "<<E\n", "<<'E'\n", "\\\\", " #"),
        *("\n#", "1", "a", "@(", "+(", "!(", "a=(", "[[", "]]", "((", "))", ";;&", "<&-", ">&2"),
        *("2>", "! ", "$#", "$\\"),
    )

    TOKENS = (
        *("ls", "ls", "cat", "echo", "curl", "rm -rf src", "x", "a.txt", "-l", "'a b'", '"c d"'),
        *(" ", " ", " ", " ", "\n", "\n", "; ", ";", "|", "&", "&&", "||", "\t", "\\", "\n\\"),
        *("\\\n", ">build/x", " >build/x ", "<a.txt", " 2>&1", ">", ">&", "2>", "<<E\n"),
        *("<<'E'\n", "\nE\n", " if ", "if ", " then ", "; then ", " else ", " fi", "; fi", " do "),
        *("; do ", "; done", "for x in ", "while ", "case ", " in ", ") ", ";; ", " esac", "{ "),
        *("; }", "(", ")", "! ", "#", " #", "'", '"', "=", "$", "`", "*", "[", "]", "{", "}", ","),
        *("~", "a=", "-", "--"),
    )
    """Of these in any order, most is no script. What is one may be another to a parser."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)
        self._before: list[str] = []
        self._given: set[str] = set()

    def next(self) -> str:
        """One more, which has not been there before."""
        while (script := self._any()) in self._given:
            pass
        self._given.add(script)
        return script

    def _any(self) -> str:
        chance = self._random
        if chance.random() < 0.15:
            return "".join(chance.choice(self.TOKENS) for _ in range(chance.randrange(3, 16)))
        # Most tricks of one script hide each other, since one that is seen through is enough.
        hostility = chance.choice((0, 0.02, 0.05, 0.1, 0.2, 0.4))
        script = self._list(hostility, 0)
        if chance.random() < 0.3:
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                script = self._mutated(script)
        if len(self._before) < 500:
            self._before.append(script)
        else:
            self._before[chance.randrange(500)] = script
        return script[:2000]

    def _list(self, hostility: float, depth: int) -> str:
        chance = self._random
        parts = [
            self._command(hostility, depth) for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5)))
        ]
        script = parts[0]
        for part in parts[1:]:
            script += self._pick(self.SEPARATORS, 10, hostility) + part
        return script

    def _command(self, hostility: float, depth: int) -> str:
        chance = self._random
        if depth < 3 and chance.random() < 0.15:
            frames = self.FRAMES if chance.random() < max(hostility, 0.1) else self.FRAMES[:10]
            frame = chance.choice(frames)
            inner = [self._list(hostility, depth + 1) for _ in range(frame.count("{}"))]
            return frame.format(*inner)
        command = chance.choice(self.HARMLESS)
        if chance.random() < hostility:
            command = chance.choice(self.HIDDEN)
        elif chance.random() < hostility:
            command = self._disguised(chance.choice(self.REFUSED))
        elif chance.random() < 0.2:
            command = self._disguised(command, gently=chance.random() > hostility)
        if chance.random() < 0.08:
            command = self._pick(self.WRAPPERS, 7, hostility) + command
        if chance.random() < 0.1:
            command += " " + self._pick(self.REDIRECTS, 3, hostility)
            command += self._pick(self.TARGETS, 4, hostility)
        return command

    def _pick(self, choices: Sequence[str], harmless: int, hostility: float) -> str:
        """One of the first `harmless` ones, or any."""
        hostile = self._random.random() < hostility
        return self._random.choice(choices if hostile else choices[:harmless])

    def _disguised(self, command: str, *, gently: bool = False) -> str:
        """The same command in another writing; not gently: or what looks like one."""
        words = command.split(" ")
        at = self._random.choice((0, 0, self._random.randrange(len(words))))
        word = words[at]
        if len(word) > 1 and not set(word) & set("'\"\\$`<>|&;(){}*?[]#\n"):
            middle = self._random.randrange(1, len(word))
            first, rest = word[:middle], word[middle:]
            writing = self._random.choice(self.SAME if gently else self.SAME + self.OTHER)
            words[at] = writing.format(
                *(word, first, rest),
                one=rest[0],
                more=rest[1:],
                hex=f"{ord(word[0]):02x}{word[1:]}",
            )
        blank = (
            " " if gently and self._random.random() < 0.8 else self._random.choice(self.BLANKS[:4])
        )
        if not gently and self._random.random() < 0.2:
            blank = self._random.choice(self.BLANKS)
        return blank.join(words)

    def _mutated(self, script: str) -> str:
        chance = self._random
        at = chance.randrange(len(script) + 1)
        end = min(len(script), at + chance.choice((1, 1, 2, 5, 10)))
        match chance.randrange(6):
            case 0:
                return script[:at] + chance.choice(self.ODD) + script[at:]
            case 1:
                return script[:at] + script[end:]
            case 2:
                return script[:at] + script[at:end] * 2 + script[end:]
            case 3:
                return script[:at] + chance.choice(self.ODD) + script[end:]
            case 4 if self._before:
                other = chance.choice(self._before)
                return script[:at] + other[chance.randrange(len(other) + 1) :]
            case _:
                other = chance.choice(self.HIDDEN + self.REFUSED)
                return script[:at] + other + script[at:]


# --- what policies mean, told once more


@dataclass(frozen=True, slots=True)
class Meaning:
    """A policy, and what it must not let happen, in plain Python."""

    name: str
    policy: Policy
    covers: Callable[[Words], bool]
    """Whether the program may run with these words."""
    refuses: Callable[[Words], bool]
    """Whether the policy refuses it: what `covers` leaves out by mistake, this finds."""
    writable: tuple[str, ...] = ()
    """Directories below which files may change."""
    protected: tuple[str, ...] = tuple(
        f"/workspace/{name}" for name in (".git/config", ".git/hooks", ".envrc")
    )
    """Where they may not, none the less."""


def _flags(words: Words, known: Mapping[str, str]) -> set[str]:
    """The letters of the flags among the words, and those that long flags stand for."""
    found: set[str] = set()
    for word in words[1:]:
        if word == "--":
            break
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            found |= {letter for long, letter in known.items() if name and long.startswith(name)}
        elif word.startswith("-"):
            found |= set(word[1:])
    return found


def _is_rm_rf(words: Words) -> bool:
    flags = _flags(words, {"recursive": "r", "force": "f"})
    return words[0] == "rm" and "f" in flags and bool(flags & {"r", "R"})


def _is_forced_push(words: Words) -> bool:
    if words[0] != "git" or "push" not in words:
        return False
    after = words[words.index("push") :]
    return any(w == "-f" or w.startswith(("--force", "+")) for w in after[1:])


def _refused_by_readme(words: Words) -> bool:
    return _is_rm_rf(words) or words[0] in {"sudo", "curl", "wget"}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOOK = _words(
    "ls dir tree stat file du df find pwd cd realpath readlink basename dirname which cat tac "
    "head tail nl wc less more strings od xxd hexdump zcat zgrep cksum md5sum sha1sum "
    "sha256sum sha512sum b2sum rg grep egrep fgrep diff cmp comm join sort uniq cut paste tr "
    "rev fold fmt expand column sed awk jq base64 tar echo printf true false : test [ seq "
    "exit xargs date uname hostname id whoami groups nproc uptime ps free"
)
_AROUND = _words(
    "env nice nohup timeout stdbuf setsid ionice time command exec sh bash dash busybox"
)
"""What only runs another program, which is in the log, too."""
_UNSEEN = _words("python3 python perl node make npm npx ssh docker vim kubectl go cargo gcc pip")


_ASKED = _words("curl wget ssh nc shutdown mkfs docker kubectl sudo")


def _only_looks(words: Words) -> bool:
    """Programs that look. Those that then write, or run another, are seen doing it."""
    name, rest = words[0], words[1:]
    if name in {"sh", "bash", "dash"}:
        return any(re.fullmatch(r"-[a-z]*c", word) for word in rest)
    if name == "rg":
        return not any(
            word.startswith(("--pre", "--hostname-bin", "--search-zip")) for word in rest
        )
    return name in _LOOK or name in _AROUND


def _reads_git(words: Words) -> bool:
    if words[0] != "git":
        return False
    rest = [word for word in words[1:] if word not in {"--no-pager", "-P", "--no-optional-locks"}]
    subcommand = rest[0] if rest else "--version"
    return subcommand in {"status", "diff", "log", "show", "--version"} and not any(
        word.startswith(("--output", "--ext-diff", "--textconv", "-O", "-c=")) for word in rest
    )


def _narrow(words: Words) -> bool:
    name = words[0]
    if name in {"ls", "cat", "wc", "head", "grep", "echo", "true", "sort", "sed", "find", "rg"}:
        return _only_looks(words)
    return _reads_git(words) or (name in _AROUND and _only_looks(words))


def _seen(words: Words) -> bool:
    """For a policy that allows everything by `.*`: that names no program whose code is unseen."""
    if "/" in words[0] or words[0] in _UNSEEN:
        return False
    if words[0] == "git":
        return _reads_git(words)
    return words[0] not in {"sh", "bash", "dash", "rg"} or _only_looks(words)


def _developer(words: Words) -> bool:
    """Nearly everything, but for what is asked about."""
    return words[0] not in _ASKED


def _refused_to_developers(words: Words) -> bool:
    if words[0] == "git" and "push" in words[1:2]:
        return True
    kept = any(word in {"/", "/*", "//", "src"} for word in words[1:])
    return (_is_rm_rf(words) and kept) or _is_forced_push(words) or words[0] == "sudo"


NARROW = r"""
version: 1
default: deny
allow:
  - {tool: bash, command: '^git (status|diff|log|show)\b'}
  - {tool: bash, command: '^(ls|cat|rg|wc|head|grep|echo|true|sort|sed|find)\b'}
  - {tool: bash, redirect: '/workspace/build/**'}
deny:
  - {tool: bash, command: 'rm\s+-rf|sudo|curl|wget'}
"""
BROAD = r"""
version: 1
default: deny
allow:
  - {tool: bash, command: '.*'}
  - {tool: bash, redirect: '/workspace/build/**'}
deny:
  - {tool: bash, command: 'rm\s+-rf|sudo|curl|wget'}
  - {tool: bash, command: '^(kill|pkill)'}
"""


def meanings() -> tuple[Meaning, ...]:
    """The policies that scripts are judged by."""
    build = ("/workspace/build",)
    return (
        Meaning("narrow", Policy.parse(NARROW), _narrow, _refused_by_readme, build),
        Meaning("broad", Policy.parse(BROAD), _seen, _refused_by_readme, build),
        Meaning("auditor", Policy.named("auditor"), _only_looks, _refused_by_readme),
        Meaning(
            "developer",
            Policy.named("developer"),
            _developer,
            _refused_to_developers,
            ("/workspace", "/tmp"),
        ),
    )


# --- the oracle


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a policy allowed, and must not have."""

    policy: str
    shell: str
    script: str
    what: str

    def __str__(self) -> str:
        return f"{self.policy}, {self.shell}: {self.what}\n    {self.script!r}"


@dataclass(slots=True)
class Report:
    """What a run came to."""

    generated: int = 0
    allowed: Counter[str] = field(default_factory=Counter)
    """By policy."""
    some: int = 0
    """Scripts that at least one policy allowed."""
    runs: Counter[str] = field(default_factory=Counter)
    """By shell."""
    programs: int = 0
    """Programs that were started."""
    ended: int = 0
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        allowed = ", ".join(f"{name} {count:,}" for name, count in self.allowed.items())
        runs = ", ".join(f"{shell} {count:,}" for shell, count in self.runs.items())
        share = self.some / self.generated if self.generated else 0.0
        return (
            f"{self.generated:,} scripts; allowed by one policy or more: {self.some:,} "
            f"({share:.0%}): {allowed}; runs: {runs}, which started {self.programs:,} programs; "
            f"{self.ended} had to be ended; findings: {len(self.findings)}"
        )


Judge = Callable[[Meaning, str], bool]


def by_policy(meaning: Meaning, script: str) -> bool:
    """Whether the policy allows the script: what is under test."""
    return meaning.policy.decide("bash", {"command": script}).verdict is Verdict.ALLOW


_SYSTEM = re.compile(r"(?<![\w.~/-])/(?:usr/(?:local/)?)?s?bin/(?=[\w\[])")
_BIN = "/tmp/fuzz/bin/"
_SHORT = "/bin/"


class _Allowed(NamedTuple):
    script: str
    shell: str
    by: list[Meaning]


class Oracle:
    """Runs scripts in one session, and says what of it should not have happened."""

    def __init__(self, session: Session, *, busybox: Path | None = None):
        self._session = session
        _done(session.write("/tmp/fuzz_inside.py", INSIDE.read_text(encoding="utf-8")))
        if busybox is not None:
            text = base64.b64encode(gzip.compress(busybox.read_bytes())).decode("ascii")
            _done(session.write("/tmp/fuzz.b64", text))
            _done(session.bash("base64 -d /tmp/fuzz.b64 | gzip -d >/tmp/fuzz-busybox"))
            _done(session.bash("chmod 755 /tmp/fuzz-busybox"))
        look = "for x in /tmp/fuzz-busybox /bin/bash; do [ ! -x $x ] || echo $x; done"
        found = _done(session.bash(look))
        self.shells = ["sh"]
        self._aside = ThreadPoolExecutor(1)
        self._waiting: tuple[list[_Allowed], Judge, Future[list[dict[str, Any]]]] | None = None
        self.shells += [name for name in ("bash", "busybox") if f"{name}\n" in found.output]

    def check(
        self, scripts: Sequence[str], policies: Sequence[Meaning], judge: Judge, report: Report
    ) -> None:
        """Judge scripts, run those that are allowed, and add what happened to the report."""
        for at in range(0, len(scripts), BATCH):
            # While the container runs some, the next are judged.
            runs = self._judged(scripts[at : at + BATCH], policies, judge, report)
            self._take(report)
            texts = [(run.script, run.shell) for run in runs]
            self._waiting = (runs, judge, self._aside.submit(self._run, texts))
        self._take(report)

    def _judged(
        self, scripts: Sequence[str], policies: Sequence[Meaning], judge: Judge, report: Report
    ) -> list["_Allowed"]:
        runs: list[_Allowed] = []
        for script in scripts:
            by = [meaning for meaning in policies if judge(meaning, script)]
            report.generated += 1
            report.allowed.update(meaning.name for meaning in by)
            report.some += bool(by)
            runs += [_Allowed(script, shell, by) for shell in self.shells if by]
        return runs

    def _take(self, report: Report) -> None:
        """Wait for what is being run, and look at what happened."""
        if self._waiting is None:
            return
        runs, judge, results = self._waiting
        self._waiting = None
        for run, happened in zip(runs, results.result(), strict=True):
            report.runs[run.shell] += 1
            report.programs += len(happened["ran"])
            report.ended += happened["ended"]
            ran = [_known(words) for words in happened["ran"]]
            wrong = [
                (meaning.name, what)
                for meaning in run.by
                for what in _wrong(meaning, ran, happened["changed"])
            ]
            if judge is by_policy:
                wrong += [("any", what) for what in _unforeseen(run.script, ran)]
            report.findings += [Finding(name, run.shell, run.script, what) for name, what in wrong]

    def _run(self, batch: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        # A program of the system is one of the stand-ins, by whichever directory it is called.
        texts = [(_SYSTEM.sub(_BIN, script), shell) for script, shell in batch]
        _done(self._session.write("/tmp/fuzz.in", json.dumps(texts)))
        command = "python3 /tmp/fuzz_inside.py /tmp/fuzz.in /tmp/fuzz.out"
        _done(self._session.bash(command, timeout_s=600))
        results = _done(self._session.bash("cat /tmp/fuzz.out")).output
        return json.loads(results)  # type: ignore[no-any-return]


def _done(result: Any) -> Any:
    if result.status != "ok" or result.exit_code:
        raise RuntimeError(f"the fuzzer's own call failed: {result.error} {result.output[-2000:]}")
    if result.truncated:
        raise RuntimeError("the fuzzer's own call gave more than comes back; make BATCH smaller")
    return result


def _known(words: Words) -> list[str]:
    """The words with programs as a policy calls them."""
    texts = [_SYSTEM.sub(_SHORT, word.replace(_BIN, _SHORT)) for word in words]
    return [texts[0].removeprefix(_SHORT), *texts[1:]]


def _wrong(meaning: Meaning, ran: Sequence[Words], changed: Sequence[str]) -> Iterator[str]:
    for words in ran:
        if meaning.refuses(words):
            yield f"ran what is refused: {words}"
        elif not meaning.covers(words):
            yield f"ran what is not allowed: {words}"
    for path in changed:
        if _is_below(path.casefold(), meaning.protected) or not _is_below(path, meaning.writable):
            yield f"changed {path}"


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _unforeseen(script: str, ran: Sequence[Words]) -> Iterator[str]:
    """Programs whose words are not those that the policy looked at."""
    seen: list[tuple[Words, bool]] = []
    for command in analyse(script).commands:
        argv = [_SYSTEM.sub(_SHORT, word) for word in command.argv]
        seen.append((argv, command.open_ended))
        if argv[0] in {"sh", "bash", "dash"}:  # a file that a rule names; it is a stand-in, too
            seen.append((argv[1:], False))
        if argv[0] == "xargs":  # what it runs where it is not told
            seen.append((["echo"], True))
    for words in ran:
        if not any(_fits(argv, words, open_ended=open_ended) for argv, open_ended in seen):
            yield f"the policy saw no such words: {words}"


def _fits(argv: Words, words: Words, *, open_ended: bool) -> bool:
    """Whether what ran is what was seen, where a word may stand for names of files."""
    if not argv:
        return open_ended or not words
    first, rest = argv[0], argv[1:]
    if any(character in first for character in "*?[{"):
        if words and words[0] == first and _fits(rest, words[1:], open_ended=open_ended):
            return True
        counts = range(len(words) + 1)
        return any(_fits(rest, words[count:], open_ended=open_ended) for count in counts)
    return bool(words) and words[0] == first and _fits(rest, words[1:], open_ended=open_ended)


# --- controls: filters that are known to be wrong, which the oracle has to find wrong

_NAIVE_REFUSED = re.compile(r"rm\s+-rf|sudo|curl|wget")
_NAIVE_FIRST = re.compile(
    r"\s*(git (status|diff|log|show)|ls|cat|rg|wc|head|grep|echo|true|sort|sed|find)\b"
)


def by_text(meaning: Meaning, script: str) -> bool:
    """A filter as it is often written: it looks for bad words in the text of the script."""
    return not _NAIVE_REFUSED.search(script)


def by_first_word(meaning: Meaning, script: str) -> bool:
    """Another: it looks at what the script starts with."""
    return bool(_NAIVE_FIRST.match(script)) and not _NAIVE_REFUSED.search(script)


def by_split(meaning: Meaning, script: str) -> bool:
    """Another: it splits the script at operators, whatever is quoted."""
    parts = re.split(r"[;|&\n]+", script)
    return all(_NAIVE_FIRST.match(part) for part in parts if part.strip()) and not (
        _NAIVE_REFUSED.search(script)
    )


CONTROLS: Mapping[str, Judge] = {
    "by_text": by_text,
    "by_first_word": by_first_word,
    "by_split": by_split,
}

BYPASSES: tuple[tuple[str, Judge], ...] = (
    ("c'u'rl x", by_text),
    ("\\c\\url x", by_text),
    ("rm -fr src", by_text),
    ("rm -r -f src", by_text),
    ("rm --recursive --force src", by_text),
    ("rm --recur --forc src", by_text),
    ("a=cu; ${a}rl x", by_text),
    ("echo c'u'rl x | sh", by_text),
    ("$(echo cu)rl x", by_text),
    ("eval \"cu\"'rl x'", by_text),
    ("ls; python3 x", by_first_word),
    ("ls\npython3 x", by_first_word),
    ("ls $(python3 x)", by_split),
    ("ls `python3 x`", by_split),
    ('echo "$(python3 x)"', by_split),
    ("cat <<E\n$(python3 x)\nE", by_first_word),
    ("find . -exec python3 {} +", by_split),
    ("find . -name a.txt -delete", by_split),
    ("sort -o b.txt a.txt", by_split),
    ("sort --outp=b.txt a.txt", by_split),
    ("sed -i s/o/0/ a.txt", by_split),
    ("sed 's/one/1/w out' a.txt", by_split),
    ("sed '1e python3 x' a.txt", by_split),
    ("echo x > a.txt", by_split),
    ("ls > build/../a.txt", by_split),
    ("cat a.txt > link/there", by_split),
    ("ls >/tmp/new", by_split),
    ("rg --pre ./run.sh one", by_split),
    ("git diff --output=x", by_split),
    ("git log --ext-diff", by_split),
)
"""Scripts with a filter that lets them through. The oracle has to see what each of them does."""


FOUND = (
    "ls >build/x\n\\curl x",
    "{ ls >build/x\n\\rm -rf src\n}",
    "for x in a; do ls >build/x\n\\curl x\ndone",
    "if ls >build/x\n\\rm -rf src\nthen ls; fi",
    "tr a b >build/x >build/y\n\\rm -v -rf src",
    "ls >'build/a b'\n\\curl x",
)
"""Scripts with which it got past a policy once."""


# --- the program


def run(
    session: Session,
    count: int,
    seed: int,
    *,
    busybox: Path | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Judge `count` scripts, run the allowed ones, and say what happened."""
    oracle = Oracle(session, busybox=busybox)
    policies = meanings()
    scripts = Scripts(seed)
    report = Report()
    while report.generated < count:
        batch = [scripts.next() for _ in range(min(2000, count - report.generated))]
        oracle.check(batch, policies, by_policy, report)
        if progress is not None:
            progress(report)
    return report


def main() -> int:
    """Fuzz, print, and exit with 1 if something was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scripts", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=None, help="for the same scripts once more")
    parser.add_argument(
        "--busybox", type=Path, help="a static busybox, to run scripts under its shell as well"
    )
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        settings = Settings.read(data_dir=Path(directory))
        # The session's own policy is not the one under test, and is to say nothing meanwhile.
        anything = Policy.parse("mode: allow_all")
        with Runner(anything, settings=settings) as runner, runner.session() as session:
            report = run(
                session,
                arguments.scripts,
                seed,
                busybox=arguments.busybox,
                progress=_Printer().show,
            )
    print(f"{report}; {time.monotonic() - started:.0f} s")
    return 1 if report.findings else 0


class _Printer:
    """Shows how far a run is, and each finding once."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, report: Report) -> None:
        for finding in report.findings[self._shown :]:
            print(finding)
        self._shown = len(report.findings)
        print(f"  {report}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
