"""What is certain about a script: its commands, its writes, and what of it is unknown."""

import os
import random
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.policy import programs, shell
from runner.policy.commands import CommandPattern
from runner.policy.shell import Command, Script, Sensitive, Unknown, Write, analyse

DENIED = CommandPattern.compile(r"rm\s+-rf|sudo|doas|curl|wget")


def argvs(script: str) -> list[tuple[str, ...]]:
    """The words of every command."""
    return [command.argv for command in analyse(script).commands]


def is_harmless(found: Script) -> bool:
    """Whether a policy that allows whatever it need not name would let this run."""
    return not (
        found.unknown
        or found.writes
        or any(command.sensitive or DENIED.denies(command) for command in found.commands)
    )


# --- words


@pytest.mark.parametrize(
    ("script", "argv"),
    [
        ("ls", ["ls"]),
        ("  ls\t-la  ", ["ls", "-la"]),
        ("'rm' '-rf' x", ["rm", "-rf", "x"]),
        ("r'm' -\"rf\" x", ["rm", "-rf", "x"]),
        (r"\rm -r\f a\ b", ["rm", "-rf", "a b"]),
        ("cat 'it'\\''s.txt'", ["cat", "it's.txt"]),
        ("echo \"a b\"c'd e'", ["echo", "a bcd e"]),
        ('echo "\\$x \\` \\" \\\\ \\n"', ["echo", '$x ` " \\ \\n']),
        ("echo ''", ["echo", ""]),
        ('echo "" x', ["echo", "", "x"]),
        ("echo a#b c # d", ["echo", "a#b", "c"]),
        ("git diff HEAD~1 HEAD@{1} a^", ["git", "diff", "HEAD~1", "HEAD@{1}", "a^"]),
        ("find . -exec true {} +", ["find", ".", "-exec", "true", "{}", "+"]),
        ("rg 'caf\u00e9' \u00e9", ["rg", "caf\u00e9", "\u00e9"]),
        ('grep "foo$" x', ["grep", "foo$", "x"]),
        ("echo a=b --x=y", ["echo", "a=b", "--x=y"]),
        ("/usr/bin/cat /etc/passwd", ["cat", "/etc/passwd"]),
        ("/workspace/bin/cat x", ["/workspace/bin/cat", "x"]),
        ("[ -f x ]", ["[", "-f", "x", "]"]),
        ("[ a = b -o ! -f c ]", ["[", "a", "=", "b", "-o", "!", "-f", "c", "]"]),
        ("LC_ALL=C sort", ["sort"]),
        ("ls 2>&1 </dev/null >/dev/null -l", ["ls", "-l"]),
        (">/dev/null 2>&1 ls -l", ["ls", "-l"]),
        ("echo 2 > /dev/null", ["echo", "2"]),
        ("echo if then fi", ["echo", "if", "then", "fi"]),
        ("echo 'a\nb'", ["echo", "a\nb"]),
    ],
)
def test_a_command_has_the_words_that_its_program_gets(script: str, argv: list[str]) -> None:
    found = analyse(script)

    assert [list(command.argv) for command in found.commands][:1] == [argv]
    assert not found.unknown


def test_offsets_are_characters_of_the_script() -> None:
    script = "echo '\u00e9\u00e9'; ls -l \u00e9 && $X"

    found = analyse(script)

    assert [script[one.start : one.end] for one in found.commands] == [
        "echo '\u00e9\u00e9'",
        "ls -l \u00e9",
    ]
    assert [script[one.start : one.end] for one in found.unknown] == ["$X"]


# --- structure


@pytest.mark.parametrize(
    ("script", "programs_"),
    [
        ("a; b", "a b"),
        ("a;b", "a b"),
        ("a && b || c", "a b c"),
        ("a | b | c", "a b c"),
        ("a & b", "a b"),
        ("a\nb\n\n\nc", "a b c"),
        ("a # b\nc", "a c"),
        ("! a", "a"),
        ("(a; b) | c", "a b c"),
        ("( (a) )", "a"),
        ("{ a; b; }", "a b"),
        ("if a; then b; elif c; then d; else e; fi", "a b c d e"),
        ("if a\nthen b\nfi", "a b"),
        ("while a; do b; done", "a b"),
        ("until a; do b; done", "a b"),
        ("for x in 1 2; do a; b; done", "a b"),
        ("case x in a) b;; c|d) e; f;; *) g;; esac", "b e f g"),
        ("case x in (a) b;; esac", "b"),
        ("cat <<'E' | a\n$(b)\nE\nc", "cat a c"),
        ("cat <<E && a\nplain \\$x\nE\nb", "cat a b"),
        ("a <<E | b\n1\nE\nc", "a b c"),
        ("cat <<-E\n\ta\n\tE\nb", "cat b"),
        ("while a; do b; done < x | c", "a b c"),
        ("a || { b; exit 1; }", "a b exit"),
    ],
)
def test_every_simple_command_is_found(script: str, programs_: str) -> None:
    found = analyse(script)

    assert " ".join(command.argv[0] for command in found.commands) == programs_
    assert not found.unknown


@pytest.mark.parametrize("script", ["", " ", "\n", " \n\t ", "# only a comment", "#a\n#b"])
def test_a_blank_script_has_nothing(script: str) -> None:
    assert analyse(script) == Script()


# --- unknown

UNKNOWN = {
    "expansions": [
        "ls $(a)",
        "ls `a`",
        'ls "$(a)"',
        'ls "`a`"',
        "ls ${x:-$(a)}",
        "ls $x",
        'ls "$x"',
        "ls ${x}",
        "ls $1 $@ $?",
        "ls $((1))",
        "ls $[1]",
        "ls a$x",
        "$x",
        '"$x" a',
        "$'ls'",
        'ls $"a"',
        "c$@url x",
        "rm${IFS}-rf",
        "cat ${x='$(a)'}${x@P}",
        "ls ~/x",
        "ls ~",
        "~/x",
        "ls a=~/x",
        "ls PATH=/x:~/y",
        "{rm,-rf}",
        "ls {a,b}",
        "ls a{1..3}",
        "cat <<E\n$(a)\nE",
        "cat <<E\n`a`\nE",
        "cat <<E\n$x\nE",
        "cat <<E\n${x}\nE",
        "for x in $(a); do ls; done",
        "for x in a; do ls $x; done",
        "for x in a; do $x; done",
        "case $(a) in b) ls;; esac",
        "case a in $(b)) ls;; esac",
    ],
    "globs where they can be anything": [
        "/b?n/rm x",
        "c?rl x",
        "./*",
        "git *",
        "rg *",
        "rm *",
        "find . -name *",
        "sort [a-z]*",
        "rm -- *",
        "sed */x",
        "test *",
        "[ * ]",
        "sed s/* x",
        "awk src/* x",
        "sh -c src/*",
        "eval src/*",
        "ls > *.txt",
        "cat < *",
        "timeout src/* ls",
    ],
    "what only bash reads so": [
        "a |& b",
        "a &> b",
        "a &>> b",
        "a >& b",
        "a <<< b",
        "a <(b)",
        "a >(b)",
        "((a))",
        "[[ a ]]",
        "[[ 'a[$(b)]' -eq 0 ]]",
        "function f { a; }",
        "coproc a",
        "select x in a; do b; done",
        "for ((;;)); do a; done",
        "a[0]=b",
        "a[0]=b c",
        "a+=b c",
        "a=(b c)",
        "{fd}>x a",
        "a 10>b",
        "case a in b) c ;& d) e;; esac",
        "case a in b) c ;;& d) e;; esac",
        "cat </dev/tcp/a/80",
        "a >/dev/udp/a/80",
        "a <> b",
    ],
    "what changes the shell": [
        "f() { a; }",
        "f () ( a )",
        "f(){ a; }; f",
        "export A=b",
        "set -e",
        "alias ls=a",
        "unset PATH",
        "trap 'a' EXIT",
        "enable -f x.so ls",
        "source a",
        ". ./a",
        "read a",
        "readarray -C a",
        "declare a",
        "local a",
        "readonly a",
        "typeset a",
        "let 'a[$(b)]'",
        "hash -p /x ls",
        "umask 0",
        "shopt -s a",
        "getopts a b",
        "builtin a",
        "jobs -x a",
        "fc a",
        "exec >/dev/null",
        "exec 3</dev/null",
        "printf -v a b",
        "printf -va b",
        "printf '%n' PATH",
        "printf -- '%-5ln' PATH",
        "test -v 'a[$(b)]'",
        "[ -v 'a[$(b)]' ]",
        "test ! -R a",
        "for PATH in /x; do ls; done",
        "for IFS in x; do ls; done",
    ],
    "assignments": [
        "A=b",
        "PATH=. ls",
        "LD_PRELOAD=x ls",
        "GIT_EXTERNAL_DIFF=x git diff",
        "PAGER=x git log",
        "BASH_ENV=x sh -c ls",
        "A=b B=c",
        "env PATH=. ls",
        "env A=b",
        "LANG=$x ls",
        "LANG=$(a) ls",
        "time A=b ls",
        "'A=b' ls",
        "\u00e9=b ls",
    ],
    "programs by a longer way": [
        "/bin/../workspace/ls",
        "/bin//ls",
        "//bin/ls",
        "cat/../evil.sh",
        "./scripts/../x",
        "./../x",
        "a../../x",
        "./x/./y",
        "../x/../y",
        "/bin/",
        "''",
    ],
    "no script": [
        "ls &&",
        "| ls",
        "ls ;; ls",
        "ls 'a",
        'ls "a',
        "ls \\",
        "ls )",
        "( ls",
        "{ ls",
        "{ ls }",
        "{ ls; } a",
        "if ls; then a",
        "if ls then a; fi",
        "fi",
        "}",
        "then ls",
        "ls; done",
        "ls >",
        "ls > ;",
        "cat <<E\na",
        "cat <<E",
        "a (b)",
        "if a; fi",
        "for x in a; ls; done",
    ],
    "texts that are read differently": [
        "ls\\\n-la",
        "cu\\\nrl x",
        "echo 'a\\\nb'",
        "ls\ra",
        "ls\x00a",
        "ls\x0ba",
        "ls\x1b[0m",
        "ls\x7f",
        "cu\u200brl x",
        "ls\u202e",
        "ls\u00a0a",
        "ls\u3000a",
        "ls\u2028a",
        "ls\ufeff",
        "ls\u3164",
        "ls\U000e0041",
        "ls a\ufe0f",
        "ls \ud800",
        "ls \ue000",
    ],
    "git where another repository decides": [
        "cd x && git status",
        "cd x; ls; git log",
        "(cd x); git log",
        "cd .git && git status",
        "cd /workspace/x && git log",
        "sh -c 'cd x; git log'",
        "find . -execdir git status ';'",
        "cd /workspace && cd x && git log",
        "cd && git log",
        "cd -P /workspace; git log",
    ],
    "writes to nobody knows where": [
        "cd x && ls > a",
        "cd x; ls | tee a",
        "cd x; dd of=a",
        "ls > $x",
        "ls > ~/x",
        "ls > ''",
        "ls > a/../b",
        "ls > a/b/../../../etc/x",
        "ls | tee $x",
        "ls | tee a*",
    ],
    "wrappers that can't be read": [
        "env -S 'a b'",
        "env -Sa",
        "env --split-string=a",
        "env - a",
        "env -C x a",
        "env --chdir=x a",
        "exec -a x b",
        "exec -c a",
        "nice --adj=5 a",
        "nice -x a",
        "timeout $x ls",
        "timeout 5 $x",
        "timeout -z 5 ls",
        "time -v ls",
        "time -o x ls",
        "stdbuf -x a",
        "setsid -x a",
        "sudo -i",
        "sudo -s a",
        "xargs -i a",
        "xargs -l a",
        "xargs -I{} {} a",
        "xargs -I{} sh -c {}",
        "xargs -I{} sh -c 'a {}'",
        "xargs -I{} sed {}",
        "xargs -I{} git {}",
        "xargs -aI env",
        "xargs env LANG=C",
        "xargs timeout 5",
        "xargs nice env",
        "xargs git log",
        "xargs find",
        "xargs find . -name",
        "xargs sed -n p",
        "xargs rg x",
        "xargs rg -e --",
        "xargs eval ls",
        "find . -exec xargs tar ';'",
        "find . -exec {} ';'",
        "find . -exec sh -c 'a {}' ';'",
        "find . -exec sh -c {} ';'",
        "find . -exec sed {} ';'",
        "find . -exec ls",
        "find . -exec ';'",
        "sh -c $x",
        'sh -c "ls $x"',
        "sh -c 'ls $x'",
        "sh -c 'ls \"$1\"' a b",
        "sh -c 'ls; f() { a; }'",
        "eval $x",
        "eval 'ls $x'",
        "eval 'ls $' '(a)'",
        "time time $x",
        "time if",
        "busybox sh -c '$x'",
    ],
}


@pytest.mark.parametrize(
    "script", [pytest.param(one, id=one[:30]) for table in UNKNOWN.values() for one in table]
)
def test_what_is_not_certain_is_unknown(script: str) -> None:
    found = analyse(script)

    assert found.unknown
    assert all(0 <= one.start < one.end <= len(script) and one.why for one in found.unknown)


BOUNDS = {
    "characters": "a" * (shell.MAX_CHARACTERS + 1),
    "words": "a " * (shell.MAX_TOKENS + 1),
    "commands": "a\n" * (shell.MAX_COMMANDS + 1),
    "depth": "{ " * shell.MAX_DEPTH + "a" + "; }" * shell.MAX_DEPTH,
    "parentheses": "( " * shell.MAX_DEPTH + "a" + " )" * shell.MAX_DEPTH,
    "wrappers": "nice " * 20 + "a",
    "here-documents": "cat <<E\nE\n" * 30,
    "what the grammar is slow with": "x=(" * 600,
    "no pipeline": "a|" * 900,
}


@pytest.mark.parametrize("what", BOUNDS)
def test_beyond_a_bound_it_is_unknown(what: str) -> None:
    assert analyse(BOUNDS[what]).unknown


def test_texts_within_texts_have_a_bound() -> None:
    script = "ls"
    for _ in range(20):
        script = f"eval {script!r}" if "'" not in script else "eval " + script.replace("'", "\\'")

    assert analyse(script).unknown


def test_what_is_found_beside_the_unknown_can_still_be_refused() -> None:
    for script in ("rm -rf a; ls $(b)", "ls $x; rm -rf a", "rm -rf $x", 'rm -rf "${x}"; ls'):
        found = analyse(script)
        assert found.unknown
        assert any(DENIED.denies(command) for command in found.commands), script


def test_an_unknown_part_is_pointed_at() -> None:
    assert analyse('ls; echo "a $HOME b"').unknown == (
        Unknown(9, 20, "a variable: its value is not known before it runs"),
    )


# --- wrappers


@pytest.mark.parametrize(
    ("script", "inner"),
    [
        ("env ls -l", "ls -l"),
        ("env -i ls -l", "ls -l"),
        ("env -u X --unset=Y LANG=C ls -l", "ls -l"),
        ("command ls -l", "ls -l"),
        ("command -p -- ls -l", "ls -l"),
        ("exec ls -l", "ls -l"),
        ("nice ls -l", "ls -l"),
        ("nice -n 5 ls -l", "ls -l"),
        ("nice -n5 ls -l", "ls -l"),
        ("nice -5 ls -l", "ls -l"),
        ("nice --adjustment=5 ls -l", "ls -l"),
        ("nohup ls -l", "ls -l"),
        ("timeout 5 ls -l", "ls -l"),
        ("timeout -k 1 -s KILL --foreground 5s ls -l", "ls -l"),
        ("timeout --signal=KILL 5 ls -l", "ls -l"),
        ("time ls -l", "ls -l"),
        ("time -p ls -l", "ls -l"),
        ("stdbuf -oL -e 0 ls -l", "ls -l"),
        ("setsid -w ls -l", "ls -l"),
        ("ionice -c 2 -n0 ls -l", "ls -l"),
        ("chrt -f 10 ls -l", "ls -l"),
        ("busybox ls -l", "ls -l"),
        ("toybox ls -l", "ls -l"),
        ("/usr/bin/env ls -l", "ls -l"),
        ("nice nohup timeout 5 env ls -l", "ls -l"),
        ("sh -c 'ls -l'", "ls -l"),
        ("bash -ec 'ls -l'", "ls -l"),
        ("dash -c -- 'ls -l'", "ls -l"),
        ("bash -c 'sh -c \"ls -l\"'", "ls -l"),
        ("eval ls -l", "ls -l"),
        ("eval 'ls' '-l'", "ls -l"),
    ],
)
def test_a_transparent_wrapper_is_seen_through(script: str, inner: str) -> None:
    found = analyse(script)

    *outer, last = found.commands
    assert " ".join(last.argv) == inner
    assert last.must_allow
    assert outer
    assert not any(command.must_allow for command in outer)
    assert is_harmless(found)


@pytest.mark.parametrize(
    ("script", "inner"),
    [
        ("xargs ls -l", "ls -l"),
        ("xargs -0 -r -n 1 -P4 ls -l", "ls -l"),
        ("xargs -I{} ls {}", "ls {}"),
        ("xargs -a list -d, ls -l", "ls -l"),
        ("find . -exec ls -l {} +", "ls -l {}"),
        ("find . -name x -execdir ls {} ';'", "ls {}"),
        ("find . -ok ls ';'", "ls"),
        ("sudo ls", "ls"),
        ("sudo -n -u root ls", "ls"),
        ("doas ls", "ls"),
    ],
)
def test_a_wrapper_that_adds_something_has_to_be_allowed_too(script: str, inner: str) -> None:
    found = analyse(script)

    outer, last = found.commands
    assert " ".join(last.argv).rstrip(" +;") == inner
    assert outer.must_allow
    assert last.must_allow
    assert not found.unknown


def test_each_command_of_find_is_seen() -> None:
    script = "find . -exec ls {} ';' -o -name x -exec curl {} + -print"

    assert [argv[0] for argv in argvs(script)] == ["find", "ls", "curl"]


def test_what_xargs_runs_gets_more_words() -> None:
    (_, ended), (_, filled) = (
        analyse(script).commands for script in ("xargs ls", "xargs -I{} ls {}")
    )

    assert ended.open_ended
    assert not filled.open_ended


@pytest.mark.parametrize("script", ["xargs rm", "xargs cp -t x", "xargs timeout 5 rm -v"])
def test_more_words_may_be_flags(script: str) -> None:
    *_, inner = analyse(script).commands

    assert 0 in [item.word for item in inner.sensitive]


@pytest.mark.parametrize("script", ["env", "command -v git", "time", "nice", "xargs"])
def test_a_wrapper_alone_is_a_command(script: str) -> None:
    (command,) = analyse(script).commands

    assert command.must_allow


# --- writes


@pytest.mark.parametrize(
    ("script", "paths"),
    [
        ("ls > a", ["/workspace/a"]),
        ("ls >> /tmp/a", ["/tmp/a"]),
        ("ls >| a", ["/workspace/a"]),
        ("ls 2> a > b", ["/workspace/a", "/workspace/b"]),
        ("> a", ["/workspace/a"]),
        ("> a ls", ["/workspace/a"]),
        ("ls > ./a//b/.", ["/workspace/a/b"]),
        ("ls > ../etc/x", ["/etc/x"]),
        ("ls > //etc/x", ["/etc/x"]),
        ("ls > 'a b'", ["/workspace/a b"]),
        ("{ a; b; } > c", ["/workspace/c"]),
        ("(a) > c", ["/workspace/c"]),
        ("while a; do b > c; done > d", ["/workspace/c", "/workspace/d"]),
        ("if a; then b; fi > c", ["/workspace/c"]),
        ("cat <<'E' > a\n$x\nE", ["/workspace/a"]),
        ("cat > a <<'E'\nx\nE", ["/workspace/a"]),
        ("sh -c 'ls > a'", ["/workspace/a"]),
        ("ls | tee a -a b", ["/workspace/a", "/workspace/b"]),
        ("dd if=a of=b", ["/workspace/b"]),
        ("cd /workspace && ls > a", ["/workspace/a"]),
        ("cd x; ls > /tmp/a", ["/tmp/a"]),
        ("ls > .git/hooks/post-checkout", ["/workspace/.git/hooks/post-checkout"]),
    ],
)
def test_a_write_has_the_file_that_it_writes(script: str, paths: list[str]) -> None:
    found = analyse(script)

    assert sorted(write.path for write in found.writes) == sorted(paths)
    assert not found.unknown


@pytest.mark.parametrize(
    "script",
    [
        "ls 2>&1",
        "ls >&2",
        "ls 2>&-",
        "ls >/dev/null",
        "ls 2>/dev/stderr",
        "ls < a",
        "ls 3<&0",
        "cd x; ls < a",
        "ls | tee /dev/null",
        "ls | tee -",
    ],
)
def test_reading_and_joining_outputs_is_free(script: str) -> None:
    found = analyse(script)

    assert (found.writes, found.unknown) == ((), ())


def test_a_write_says_where_it_stands() -> None:
    script = "ls > a; sh -c 'ls > b'"

    first, second = analyse(script).writes

    assert first == Write("/workspace/a", 5, 6)
    assert script[second.start : second.end] == "'ls > b'"


# --- programs

SENSITIVE = {
    "languages and shells": [
        "python3",
        "python3.11 -c x",
        "/usr/bin/python3 x.py",
        "perl -e x",
        "ruby x",
        "node x",
        "sh",
        "sh x",
        "bash -s",
        "bash < x",
        "bash <<'E'\ncurl x\nE",
        "ls | sh",
        "bash -lc ls",
        "bash -ic ls",
        "bash --rcfile x -c ls",
        "bash -o errexit -c ls",
        "sh -c -x ls",
        "zsh -c ls",
        "su -c ls",
    ],
    "runners": [
        "make",
        "npm test",
        "npx x",
        "cargo build",
        "go run x",
        "docker ps",
        "ssh a ls",
        "parallel ls",
        "watch ls",
        "strace ls",
        "flock x ls",
        "chroot / ls",
        "script -c ls",
        "vim x",
        "ed x",
        "pytest",
        "pip list",
        "ld.so ls",
        "ld-linux-x86-64.so.2 ls",
        "gcc x.c",
        "x86_64-linux-gnu-gcc-12 x.c",
    ],
    "programs from elsewhere": [
        "./x",
        "../x",
        "x/y",
        "/workspace/bin/ls",
        "/lib64/ld-linux-x86-64.so.2 /bin/rm",
        "/proc/self/root/bin/ls",
        "./a.b/..c/d",
        "../../x",
    ],
    "git": [
        "git -c a=b status",
        "git -C x status",
        "git --exec-path=x status",
        "git --git-dir x log",
        "git --work-tree=x log",
        "git --no-pager -c a=b log",
        "git -p log",
        "git diff --output=x",
        "git diff --output x",
        "git diff --outpu=x",
        "git diff --ext-diff",
        "git diff --ext-d",
        "git diff --no-index a b",
        "git diff -O x",
        "git log -p --textconv",
        "git grep -O x",
        "git grep -nOx y",
        "git grep --open-files-in-pager=x y",
        "git grep --no-index x",
        "git branch new",
        "git branch -D x",
        "git branch -m a b",
        "git tag v1",
        "git tag -d v1",
        "git remote add a b",
        "git remote update",
        "git stash",
        "git stash pop",
        "git worktree add x",
        "git config a b",
        "git config --edit",
        "git config -f x --list",
        "git reflog expire --all",
        "git bisect run x",
        "git push",
        "git fetch",
        "git clone x",
        "git commit -m x",
        "git checkout -- .",
        "git archive HEAD",
        "git difftool",
        "git help log",
        "git log --help",
        "git x",
        "git cat-file --filters HEAD:x",
    ],
    "rg": [
        "rg --pre x y",
        "rg --pre=x y",
        "rg --hostname-bin x y",
        "rg -z x",
        "rg -nz x",
        "rg --search-zip x",
        "rg --search-z x",
        "rg x --pre y",
    ],
    "find": [
        "find . -delete",
        "find . -name x -delete",
        "find . -fprintf x y",
        "find . -fprint x",
        "find . -fls x",
        "find -files0-from x",
    ],
    "sort, uniq, date, tree, man, less": [
        "sort -o x",
        "sort -ox y",
        "sort y -o x",
        "sort -nuo x",
        "sort --output=x",
        "sort --out x",
        "sort --compress-program=x",
        "sort --compress-prog x",
        "sort -T x",
        "uniq a b",
        "uniq -c a b",
        "xxd a b",
        "xxd -r a b",
        "date -s x",
        "date --set=x",
        "date --se x",
        "date 010100002030",
        "tree -o x",
        "tree -R",
        "man -P x ls",
        "man --html=x ls",
        "man ./x",
        "man -l x",
        "less +!x a",
        "less -o x a",
        "file -C -m x",
        "shuf -o x",
        "hostname x",
    ],
    "sed": [
        "sed -i s/a/b/ x",
        "sed -i.bak s/a/b/ x",
        "sed -ni p x",
        "sed -n -i p x",
        "sed --in-place p x",
        "sed --in-pl p x",
        "sed p x -i",
        "sed -f x y",
        "sed --file=x y",
        "sed s/a/b/e x",
        "sed 's/a/b/w x' y",
        "sed s/a/b/gw\\ x y",
        "sed 's/a/b/;e id' x",
        "sed '1e id' x",
        "sed '1,2{e id\n}' x",
        "sed '/a/w x' y",
        "sed '$!e id' x",
        "sed '0~3e id' x",
        "sed 'W x' y",
        "sed '\\,a,e id' x",
        "sed -e p -e 'w x' y",
        "sed -ew\\ x y",
        "sed -ne 'w x' y",
        "sed --expression='w x' y",
        "sed --expression 'w x' y",
        "sed 's/[/]/x/e' y",
        "sed 's,a,b,e' y",
        "sed 'y/a/b/;w x' y",
    ],
    "awk": [
        "awk 'BEGIN{system(\"a\")}'",
        "awk 'BEGIN{\"a\"|getline}'",
        "awk '\"a\" | getline'",
        "awk '{print > \"x\"}'",
        "awk '{print >> \"x\"}'",
        "awk '{print | \"a\"}'",
        "awk '{print |& \"a\"}'",
        'awk \'{printf("x") > "y"}\'',
        'awk \'$1=="{" {print > "x"}\'',
        'awk \'/{"/ {print > "x"}\'',
        'awk \'{print "(" > "x"}\'',
        "awk '{if (/(/) print > \"x\"}'",
        "awk -f x",
        "awk -fx",
        "awk -i inplace '{print}'",
        "awk '@load \"x\"'",
        "awk -l x '{print}'",
        "gawk -e '{print}'",
    ],
    "tar": [
        "tar xf a",
        "tar -xf a",
        "tar czf a .",
        "tar -f a --extract",
        "tar tf a --to-command=x",
        "tar -tf a -I x",
        "tar tfI a x",
        "tar -tf a --use-c=x",
        "tar cf /dev/null a --checkpoint=1 --checkpoint-action=exec=x",
        "tar -tf a --checkpoint-action=exec=x",
        "tar tf host:x",
        "tar -tfhost:x",
        "tar --file=host:x -t",
        "tar -tF x -f a",
    ],
}


@pytest.mark.parametrize(
    "script", [pytest.param(one, id=one[:40]) for table in SENSITIVE.values() for one in table]
)
def test_a_word_that_may_do_more_than_read_has_to_be_named(script: str) -> None:
    found = analyse(script)

    sensitive = [item for command in found.commands for item in command.sensitive]
    assert sensitive
    assert all(item.why for item in sensitive)
    assert not found.unknown


def test_the_word_to_name_is_the_one_that_is_to_blame() -> None:
    def blamed(script: str) -> list[str]:
        (command,) = analyse(script).commands
        return [command.argv[item.word] for item in command.sensitive]

    assert blamed("sort -n x -o y") == ["-o"]
    assert blamed("git -C x push") == ["-C", "push"] or blamed("git -C x push") == [
        "-C",
        "x",
        "push",
    ]
    assert blamed("sed -n -i p x") == ["-i"]
    assert blamed("python3 -m pytest") == ["python3"]


HARMLESS = r"""
git log --oneline -20
git log -p --follow -- src/a.py
git log --graph --all --decorate --oneline
git log --since="2 weeks ago" --author=bob --pretty=format:'%h %an %s'
git log -S'def foo' -p
git log -S'eval(' --oneline
git log -L 10,20:src/a.py
git log --grep='sudo; curl'
git --no-pager log -3
git --no-pager diff HEAD~1 -- src
git diff --cached --name-only
git diff -U10 main...feature
git diff --diff-filter=ACM --name-only HEAD
git diff -- ':!package-lock.json'
git show HEAD:README.md
git show HEAD~3 --name-status
git blame -L 1,20 src/a.py
git blame -w -C -C file
git status -sb
git status --porcelain=v2 --branch
git status -uno
git branch -a
git branch -vv
git branch --list 'feat/*'
git branch --show-current
git remote -v
git remote get-url origin
git stash list
git tag
git tag -l 'v1.*'
git describe --tags --always
git rev-parse --abbrev-ref HEAD
git ls-files '*.py' | wc -l
git grep -n TODO -- '*.py'
git shortlog -sn
git config --get user.name
git config --list
git reflog -5
git worktree list
git cat-file -p HEAD
git rev-list --count HEAD
git --version
GIT_PAGER=cat git log -1
rg -n "def main" src --type py
rg -i foo -g '*.py' -A3 -B3
rg --files | head
rg -l 'import os' -tpy | sort | uniq -c | sort -rn | head -20
rg -e '--pre' src
rg -- --pre src
rg -n --hidden --glob '!.git' foo
rg 'curl|wget' src
rg '`' src
grep -rn "TODO" src/ --include='*.py'
grep -v '^#' /etc/passwd | cut -d: -f1 | sort -u
grep -R 'sudo' src | wc -l
find . -name '*.py' -not -path './.git/*' | xargs wc -l
find . -executable
find . -type f -name "*.md" -exec wc -l {} +
find . -type f -exec grep -l foo {} \;
find . -maxdepth 2 -type d -print0 | xargs -0 ls -ld
find src \( -name a -o -name b \) -mtime -7 -printf '%p\n'
find . -newermt 2024-01-01 -size +1M
find . -path ./node_modules -prune -o -name '*.ts' -print
find / -name foo 2>/dev/null
sort -t, -k2,2n data.csv
sort -k2 -n data.txt
sed -n '1,20p' x
sed -n '10p;20p' x
sed -n '/start/,/end/p' x
sed -n '$=' x
sed -n '5{p;q}' x
sed -n '/foo/{n;p}' x
sed -n 's/.*: \(.*\)/\1/p' x
sed -n '2~3p' x
sed s/foo/bar/g x
sed -E 's#a/b#c#' x
sed -e 's/a/b/' -e 's/c/d/' x
sed 's/a\/b/c/g' x
sed 's|/usr|/opt|' x
sed '/a/!d' x
sed '1d;3q' x
sed 'y/abc/xyz/' x
sed ':a;N;$!ba;s/\n/ /g' x
sed 's/^[ \t]*//' x
awk '{print $1}' x
awk -F: '{print $1, $3}' /etc/passwd
awk 'NR>5 && NR<10' x
awk '$3 > 100 {sum += $3} END {print sum}' x
awk '{ if ($3 > 100) print $1 }' x
awk '/foo|bar/ {print}' x
awk -v n=5 'NR==n' x
awk '{s+=$1} END {printf "%.2f\n", s/NR}' x
tar -tzf a.tar.gz
tar tf a.tar
tar -tvf a.tar | head
tree -L 2 -I node_modules
date +%Y-%m-%d
date -u
date -d '1 day ago' +%s
uniq -c x
man ls
file a.bin
ls -la src/*.py
ls *.py
wc -l ./*
cat -n src/main.py | sed -n '10,30p'
diff -u a b
stat -c '%s' x
du -ah --max-depth=1 | sort -h | tail -20
head -5 a; echo '---'; tail -n +5 a
echo "=== a ===" && cat a && echo
echo 'a;b&&c|d'
echo "sudo"
printf '%s\n' 'rm -rf /'
ls rm -rf
ls nofile >/dev/null 2>&1 || echo none
if [ -f a ]; then echo yes; else echo no; fi
for f in a b c; do echo hi; done
cd src && ls -la
cd /workspace && git status
LC_ALL=C sort x
NO_COLOR=1 ls
command -v git
jq -r '.a[] | .b' x.json
timeout 10 git status
find . -name '*.log' | xargs grep -l error
xargs -n1 echo < x
xargs rg -n foo --
xargs sh -c 'ls'
xargs -I{} grep -n {} x
echo 'it'"'"'s' "a \"quoted\" word" a\;b
"""


@pytest.mark.parametrize("script", HARMLESS.strip().splitlines())
def test_everyday_reading_needs_no_naming(script: str) -> None:
    found = analyse(script)

    assert found.unknown == ()
    assert [item for command in found.commands for item in command.sensitive] == []
    assert is_harmless(found)


def test_tables_name_flags_and_programs_once() -> None:
    groups = [set(programs.WRAPPERS), set(programs.READERS), set(programs.HARMLESS)]

    assert not groups[0] & groups[1]
    assert not groups[0] & groups[2]
    for name, options in programs.OPTIONS.items():
        assert not options.flags & options.valued, name


# --- against real shells

PIECES = (
    *("a", "-b", "'c d'", '"e f"', r"g\ h", "i'j'k", '"l"m', "n#o", "''", '""', "a=b", "--x='y z'"),
    *(r"\$p", r'"\$q \` \\ \" \z"', "'$r `s`'", r"\'", r"\"", "'\"'", '"\'"', "t~u", "v{w}", "{}"),
    *(
        "@",
        "%",
        "^",
        "+",
        ",",
        ":",
        "=",
        "a]",
        "-",
        "--",
        "/x",
        "x/y",
        "caf\u00e9",
        "'\u00e9 \u00e9'",
    ),
    *(
        "1",
        "22",
        "if",
        "then",
        "done",
        "in",
        "}",
        "!",
        r"\;",
        r"\&",
        r"\|",
        r"\(",
        r"\<",
        r"\#",
        "'#'",
    ),
    *(
        "$",
        "a$",
        '"b$"',
        r"\*",
        "'*'",
        '"?"',
        r"\~",
        "'~'",
        r"\{a,b}",
        "'{a,b}'",
        "'a\nb'",
        '"c\nd"',
    ),
)
JOINS = (" ; ", ";", " && ", " || ", " | ", "\n", "\n\n", " &\n", " # c'o$m\n", "; # x\n")
FRAMES = (
    *("{}", "{}", "{}", "( {} )", "{{ {}; }}", "if true; then {}; fi", "! {}", "{}\n"),
    *("for v in x; do {}; done", "case x in x) {};; esac", "if false; then true; else {}; fi"),
    *("while {}; do break; done", "until {}; do break; done", "cat <<'E'\n$(x) `y` '\nE\n{}"),
    *("{} <<E\n'x' \\$y\nE\n", "eval {!r}", "sh -c {!r}"),
)
HAND_WRITTEN = (
    *(
        "p1 a>/dev/null b",
        ">/dev/null p1 a",
        "p1 2>&1 a 2>/dev/null",
        "p1 2 >/dev/null",
        "p1 a2>&1",
    ),
    *(
        "LC_ALL=C p1 a",
        "timeout 5 p1 a 'b c'",
        "nice -n 1 p1 -n 1",
        "env LANG=C p1 LANG=D",
        "env -- p1 --",
    ),
    *("command p1 a", "nohup p1 a", "stdbuf -oL p1 a", "setsid -w p1 a", "time p1 a", "exec p1 a"),
    *("eval p1 a 'b c'", "eval 'p1 a' \"'b c'\"", "sh -c 'p1 \"a b\"' x y", "sh -ec 'p1 a; p2 b'"),
    *(
        "find . -maxdepth 0 -exec p1 a ';' -exec p2 b ';'",
        "find . -maxdepth 0 -exec p1 x ';' -print",
    ),
    *("cat <<-E\n\ta\n\tE\np1 b", "cat <<A <<'B'\n1\nA\n$2\nB\np1", "p1 <<\\E a\n$x\nE"),
    *("p1 a#b #c\np2", "p1 'a\n#b'\n#c\np2", "p1;p2&&p1||p2", "(p1;(p2;p1))", "{ p1;};p2"),
    *("p1 \"a'b\"'c\"d'", 'p1 a\\\\b \'a\\b\' "a\\b" "a\\\\b"', "p1 \\a\\b\\c", "p1 '\\' x"),
    *(
        "if p1; then p2; elif p1 x; then p2 y; else p1 z; fi",
        "p1 ' ; p2 x'",
        'p1 "; p2"',
        "p1 $ a$",
    ),
    *(
        "case a in b) p2;; (a) p1 a; p2;; esac",
        "case a in a|b) p1 'x;;' ;; esac",
        "p1 [ ]",
        "p1 a[b",
    ),
)
STUB = r"""#!/bin/dash
exec printf '%s\0' "${0##*/}" "$@" 'end of words' >> "$SAW"
"""


def generated(count: int) -> Iterator[str]:
    """Scripts of static words, the same ones in each run."""
    chance = random.Random(20)
    for _ in range(count):
        commands = []
        for _ in range(chance.randint(1, 3)):
            words = chance.choices(PIECES, k=chance.randint(0, 4))
            commands.append(" ".join([chance.choice(("p1", "p2", "'p1'", r"\p2")), *words]))
        body = commands[0]
        for command in commands[1:]:
            body += chance.choice(JOINS) + command
        yield chance.choice(FRAMES).format(body)


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A directory with programs that write down what they were given."""
    for name in ("p1", "p2"):
        path = tmp_path / name
        path.write_text(STUB)
        path.chmod(0o755)
    return tmp_path


def what_ran(script: str, interpreter: list[str], stubs: Path) -> list[tuple[str, ...]]:
    """The words that programs got when a real shell ran the script."""
    saw = stubs / f"saw-{uuid.uuid4()}"  # a program in the background may write late
    saw.touch()
    environment = {"PATH": f"{stubs}:{os.environ['PATH']}", "SAW": str(saw), "LC_ALL": "C.UTF-8"}
    subprocess.run(
        [*interpreter, "-c", script + "\nwait"],
        env=environment,
        cwd=stubs,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=10,
        check=False,
    )
    records = saw.read_bytes().decode().split("end of words\0")
    return [tuple(record.split("\0")[:-1]) for record in records if record]


SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"]}


@pytest.mark.parametrize("interpreter", SHELLS)
def test_programs_get_the_words_that_were_found(interpreter: str, stubs: Path) -> None:
    """An independent oracle: what a shell really runs is among what was found."""
    known = 0
    for script in (*HAND_WRITTEN, *generated(250)):
        found = analyse(script)
        if found.unknown:
            continue
        known += 1
        expected = {command.argv for command in found.commands}
        ran = what_ran(script, SHELLS[interpreter], stubs)
        assert set(ran) <= expected, script
    assert known > 200, "most of them are certain"


# --- use


def test_it_may_be_used_by_many_threads() -> None:
    script = "ls | cat; if true; then git log -1; fi; x=(" + "a " * 50
    expected = analyse(script)
    results: list[Script] = []

    def work() -> None:
        results.extend(analyse(script) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [expected] * 400


def test_whatever_the_text_there_is_an_answer() -> None:
    chance = random.Random(7)
    alphabet = "ab1 \t\n'\"\\$`|&;<>(){}[]*?~#!=-/\u00e9\u200b"
    tokens = [
        *alphabet,
        "if",
        "then",
        "fi",
        "case",
        "esac",
        "<<E",
        "\nE\n",
        "$(",
        ";;",
        "for x in ",
    ]
    for _ in range(1500):
        script = "".join(chance.choices(tokens, k=chance.randint(1, 40)))
        found = analyse(script)
        parts: list[Command | Write | Unknown] = [
            *found.commands,
            *found.writes,
            *found.unknown,
        ]
        assert all(0 <= part.start <= part.end <= len(script) for part in parts), script


def test_findings_are_plain_values() -> None:
    assert analyse("sort -o x y") == Script(
        commands=(
            Command(
                ("sort", "-o", "x", "y"),
                0,
                11,
                sensitive=(Sensitive(1, "`-o` is none of the flags of `sort` that only read"),),
            ),
        )
    )


@pytest.mark.parametrize(
    "script",
    [
        "ls >build/x\n\\curl x",
        "{ ls >build/x\n\\curl x\n}",
        "tr a b >./b >./build/x\n\\curl -v",
        "if ls >build/x\n\\curl x\nthen ls; fi",
        "for x in a; do ls >build/x\n\\curl x\ndone",
        "ls <a\n\\curl x",
        "ls 2>&1\n\\curl x",
        "! ls >x\n\\curl y",
        "(ls) >a\n\\curl x",
        ">a\n\\curl y",
        "cat <<EOF >a\nx\nEOF\n\\curl x",
        "cat <<A <<B x\na\nA\nb\nB\n\\curl",
        "<<EOF curl x\nEOF",
    ],
)
def test_a_command_behind_a_redirection_and_a_line_feed_is_seen_or_not_certain(script: str) -> None:
    found = analyse(script)
    assert found.unknown or "curl" in {command.argv[0] for command in found.commands}


@pytest.mark.parametrize("program", ["coreutils", "hyperfine", "faketime", "gosu", "torsocks"])
def test_what_runs_its_arguments_has_to_be_named(program: str) -> None:
    (command,) = analyse(f"{program} x curl").commands
    assert [item.word for item in command.sensitive] == [0]
