"""When a rule's pattern means a command, and when it only seems to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model import Verdict
from runner.policy import Policy
from runner.policy.commands import CommandPattern
from runner.policy.matching import PatternError
from runner.policy.shell import Command, analyse


def commands(script: str) -> tuple[Command, ...]:
    found = analyse(script)
    assert not found.unknown, found.unknown
    return found.commands


def only(script: str) -> Command:
    """The command of a script that has one."""
    (command,) = commands(script)
    return command


def denies(pattern: str, script: str) -> bool:
    compiled = CommandPattern.compile(pattern)
    return any(compiled.denies(command) for command in commands(script))


SAME = {
    r"rm\s+-rf": [
        "rm -rf x",
        "rm  -rf x",
        "rm\t-rf x",
        "'rm' \"-rf\" x",
        "r\\m -r'f' x",
        "/bin/rm -rf x",
        "rm -fr x",
        "rm -Rf x",
        "rm -fR x",
        "rm -r -f x",
        "rm -f -r x",
        "rm --recursive --force x",
        "rm --force --recursive x",
        "rm --recur --forc x",
        "rm --rec -f x",
        "rm -r --force x",
        "rm -v -rf x",
        "rm -rvf x",
        "rm -vrf x",
        "rm -rfv x",
        "rm -r -v -f x",
        "rm x -rf",
        "rm -r x -f",
        "rm x y --force -r z",
        "rm -r -i -d -v -I --one-file-system -f x",
        "rm -r -- -f x -f -rf; rm -rf x",
        "nice rm -fr x",
        "find . -exec rm -fr {} +",
        "xargs rm -f -r",
        "sh -c 'rm -fr x'",
    ],
    r"^rm -r": ["rm -rf x", "rm -R x", "rm -f -r x", "rm --recursive x"],
    r"rm --recursive --force": ["rm -rf x", "rm --force -r x", "rm -fR x"],
    r"rm -[rf]{2}\b": ["rm -rf x", "rm -f -r x", "rm -vfr x"],
    r"rm .*-(rf|fr)": ["rm -rf x", "rm -r -f x", "rm x -f -r"],
    r"rm\s+-r\s+-f": ["rm -rf x", "rm -f -r x", "rm --force --recursive x"],
    r"rm\s+-rf\s+/$": ["rm -rf /", "rm / -fr", "rm -rf -v /", "rm -r --force --no-preserve-root /"],
    r"chmod\s+-R\s+777": ["chmod -R 777 x", "chmod 777 -R x", "chmod --recursive 777 x"],
    r"curl\s+-o": [
        "curl -o x y",
        "curl y -o x",
        "curl -sox y",
        "curl --output x y",
        "curl -s --output=x y",
    ],
    r"curl --output": ["curl -o x y", "curl -sSo x y", "curl --output=x y"],
    r"curl .*http://evil": [
        "curl http://evil/",
        "curl -s 'http://evil/?a=1&b=2'",
        "curl 'http://evil/ x'",
    ],
    r"wget -O": ["wget -O x y", "wget -qO x y", "wget --output-document=x y"],
    r"git push": [
        "git push",
        "git --no-pager push",
        "git -C x push",
        "git -c a=b --git-dir=x push -f",
    ],
    r"git push --force": [
        "git push --force",
        "git push -f",
        "git push origin main -f",
        "git push --forc",
        "git push -uf origin main",
        "git --no-pager push origin --force",
    ],
    r"git push.* -f\b": ["git push -f", "git push --force origin", "git push origin -f"],
    r"git commit .*--no-verify": [
        "git commit --no-verify -m x",
        "git commit -n -m x",
        "git commit -nm x",
        "git commit -m 'a\nb' --no-verify",
        "git commit --no-ver -m x",
    ],
    r"git clean -fdx": [
        "git clean -fdx",
        "git clean -xdf",
        "git clean -x -d -f",
        "git clean -d --force -x",
    ],
    r"git branch -D": ["git branch -D x", "git branch x -D", "git branch -vD x"],
    r"tar -x": ["tar xf a", "tar -xf a", "tar -vxf a", "tar --extract -f a", "tar f a --get"],
    r"sed -i": [
        "sed -i s/a/b/ x",
        "sed -n -i p x",
        "sed -ni p x",
        "sed --in-place p x",
        "sed p -i x",
    ],
    r"kill -9 1": ["kill -9 1"],
    r"docker run": ["docker run x", "docker run --rm -v /:/x y"],
    r"sudo": ["sudo ls", "/usr/bin/sudo -n ls", "nice sudo ls"],
    r"(?i)CURL": ["curl x"],
    r".*evil": ["ls evil", "cat x/evil/y"],
    r"npm install": ["npm install x", "npm install -g x"],
    r"find -delete": ["find . -name x -delete", "find -delete"],
    r"foo --bar": ["foo --bar", "foo x --bar", "foo -v --bar x"],
    r"foo -b": ["foo -b", "foo -ab", "foo x -cb"],
}
"""A pattern that refuses, and ways to write the same."""


@pytest.mark.parametrize(
    ("pattern", "script"),
    [(pattern, script) for pattern, scripts in SAME.items() for script in scripts],
)
def test_the_same_command_is_refused_however_it_is_written(pattern: str, script: str) -> None:
    assert denies(pattern, script)


OTHER = {
    r"rm\s+-rf": [
        "rm -r x",
        "rm -f x",
        "rm x",
        "rm -i x",
        "rm -- -rf",
        "rm -r -- -f",
        "ls rm -rf",
        "echo 'rm -rf x'",
        "rg -n 'rm -rf' .",
        "rmdir -rf x",
        "git log --grep='rm -rf'",
        "grep -rf rm",
    ],
    r"curl": ["curlew x", "curl-config", "cat curl", "ls curl/x", "echo curl", "which curl"],
    r"cur": ["curl x"],
    r"rm -rf|sudo|curl|wget": ["cat docs/curl/wget.txt", "echo sudo", "ls rm -rf", "sudoedit"],
    r"git push": ["git log push", "git stash push", "git log --grep push", "git -C push log"],
    r"git push --force": ["git push", "git push -u origin main", "git push -d x", "git log -f"],
    r"git commit .*--no-verify": ["git commit -m x", "git push -n"],
    r"chmod\s+-R": ["chmod 777 x", "chmod -v 777 x"],
    r"curl\s+-o": ["curl x", "curl -s x", "curl -d -o x"],
    r"tar -x": ["tar tf a", "tar -tvf x"],
    r"sed -i": ["sed -n p x", "sed -e -i x"],
    r"find -delete": ["find . -type l -d", "find . -name -delete.txt"],
    r"docker run": ["docker ps", "docker-compose run x"],
}
"""A pattern that refuses, and what only looks like it."""


@pytest.mark.parametrize(
    ("pattern", "script"),
    [(pattern, script) for pattern, scripts in OTHER.items() for script in scripts],
)
def test_what_only_looks_like_it_is_not_refused(pattern: str, script: str) -> None:
    assert not denies(pattern, script)


@pytest.mark.parametrize(
    ("pattern", "script"),
    [
        (r"^(git (status|diff|log)|ls|cat|rg)\b", "git log --oneline"),
        (r"^(git (status|diff|log)|ls|cat|rg)\b", "git --no-pager log"),
        (r"^(git (status|diff|log)|ls|cat|rg)\b", "git -P --no-optional-locks status"),
        (r"^(git (status|diff|log)|ls|cat|rg)\b", "/bin/ls -l"),
        (r"^(git (status|diff|log)|ls|cat|rg)\b", "ls"),
        (r"^ls$", "ls"),
        (r"ls", "ls x y"),
        (r"ls \S+", "ls x y"),
        (r"^cat [^ ]+$", "cat x"),
        (r"^cat 'a b'$", "cat a\\ b"),
        (r"^echo .*", "echo 'a' \"b c\""),
        (r"^grep a\|b x$", "grep 'a|b' x"),
        (r"^echo ''$", "echo ''"),
        (r"git (log|log -p)", "git log -p"),
        (r".*", "ls 'a\nb'"),
    ],
)
def test_an_allow_fits_from_the_start_to_the_end_of_a_word(pattern: str, script: str) -> None:
    assert CommandPattern.compile(pattern).matches(only(script))


@pytest.mark.parametrize(
    ("pattern", "script"),
    [
        (r"^rg\b", "rg-evil x"),
        (r"^cat\b", "cat/evil.sh"),
        (r"^cat\b", "cat.sh"),
        (r"^cat ", "cat x"),
        (r"^cat\b", "cat:x"),
        (r"^ca", "cat"),
        (r"cat", "bat x"),
        (r"cat", "ls cat"),
        (r"^ls$", "ls x"),
        (r"^git log$", "git log x"),
        (r"^git log\b", "git log-evil"),
        (r"^cat x y$", "cat 'x y'"),
        (r"^cat x y\b", "cat 'x y'"),
        (r"^git log\b", "'git log'"),
        (r"^ls$", "'ls\n'"),
        (r"^echo$", "echo ''"),
        (r"^ls\b", "./ls"),
        (r"^ls\b", "/workspace/ls"),
        (r"^ls\b", "ls\u00e9"),
        (r"^curl\b", "\u0441url x"),
        (r"^git status\b", "git -C x status"),
        (r"^(a|a)*$", "a" * 9000 + "!"),
    ],
)
def test_an_allow_does_not_fit_what_only_begins_like_it(pattern: str, script: str) -> None:
    assert not CommandPattern.compile(pattern).matches(only(script))


@pytest.mark.parametrize(
    ("pattern", "script"),
    [
        (r"^python3 -m pytest", "python3 -m pytest -q"),
        (r"^python3?", "python3 x.py"),
        (r"^(ls|make) ?", "make test"),
        (r"^sed -i", "sed -i s/a/b/ x"),
        (r"^sort -o \S+", "sort -o x y"),
        (r"^git push\b", "git push origin main"),
        (r"^git (status|push|commit)\b", "git commit -m x"),
        (r"^\./run\.sh$", "./run.sh"),
        (r"^\./scripts/\S+", "./scripts/x.sh"),
        (r"^npm (test|run lint)\b", "npm run lint"),
        (r"^find \S+ -name \S+ -delete$", "find . -name x -delete"),
        (r"^rm\b", "rm x"),
        (r".*", "ls -l"),
    ],
)
def test_an_allow_names_what_it_spells_out(pattern: str, script: str) -> None:
    assert CommandPattern.compile(pattern).names(only(script))


@pytest.mark.parametrize(
    ("pattern", "script"),
    [
        (r".*", "python3 x.py"),
        (r"^\w+ -m pytest", "python3 -m pytest"),
        (r"^\S+", "python3"),
        (r"^[a-z0-9]+", "python3 x"),
        (r"^python", "python3 x"),
        (r"^[^ ]+ x", "./y x"),
        (r"^(ls|.+)", "make"),
        (r"^git\b", "git push"),
        (r"^git .*", "git push"),
        (r"^git \w+", "git push"),
        (r"^git (-\S+ )*status", "git -p status"),
        (r"^git .*status", "git -C x status"),
        (r"^sed\b", "sed -i p x"),
        (r"^sed .*", "sed -n -i p x"),
        (r"^sed -\w+", "sed -i p x"),
        (r"^sort( -\S+)*", "sort -n -o x y"),
        (r"^sort( --?[a-z-]+(=\S+)?)*", "sort --output=x"),
        (r"^find .*", "find . -delete"),
        (r"^awk '.*'", "awk '{print > \"x\"}'"),
        (r"^(/\S+|ls)", "/workspace/x"),
    ],
)
def test_an_allow_for_anything_names_nothing(pattern: str, script: str) -> None:
    assert not CommandPattern.compile(pattern).names(only(script))


def test_each_sensitive_word_has_to_be_named() -> None:
    pattern = CommandPattern.compile(r"^git \S+ push\b")

    assert not pattern.names(only("git -p push"))
    assert CommandPattern.compile(r"^git -p push\b").names(only("git -p push"))


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"\C", "a{1001}", "[", r"(a)\1"])
def test_what_re2_refuses_is_an_error(pattern: str) -> None:
    with pytest.raises(PatternError):
        CommandPattern.compile(pattern)


def test_a_pattern_cannot_leave_its_brackets() -> None:
    with pytest.raises(PatternError):
        CommandPattern.compile("a)|(?:.*")


def test_patterns_are_equal_by_their_text() -> None:
    assert CommandPattern.compile("a") == CommandPattern.compile("a") != CommandPattern.compile("b")


def test_many_flags_are_tried_within_a_bound() -> None:
    letters = "abcdefghijklmnopqstuvwxyz"
    script = "rm " + " ".join(f"-{letter}" for letter in letters) + " -r x"

    assert denies(r"rm\s+-rf", script)
    assert not denies(r"rm\s+-rf", script.replace("-f ", ""))


# How a pattern begins: only a shortcut, so it must never change an answer.

HEADS = [
    "rm", "git", "l", "s", " ", "-", "a", "z", r"\b", r"\s+", ".*", ".", "|", "(", ")", "(?:", "?",
    "*", "+", "{2}", "[ab]", "[^|]", r"[a\]|]", "^", "$", r"\.", r"\/", "/", "(a|b)", "(?i)", r"\w",
    "(rm|git) ", "(ba|da)?sh", "( |$)", "[[:alpha:]|]", "é",
]  # fmt: skip
LINES = ["rm -r x", "git log", "ls", "a", "aa b", "z", "s", ". x", "bash -c", "dash", "é", "./a"]


@given(st.lists(st.sampled_from(HEADS), max_size=6).map("".join), st.sampled_from(LINES))
def test_what_a_pattern_can_not_mean_it_does_not_match(text: str, line: str) -> None:
    try:
        pattern = CommandPattern.compile(text)
    except PatternError:
        return
    argv = tuple(line.split())
    if not pattern.could_mean(argv[0]):
        written = line.encode()
        found = pattern._to_refuse.match(written)
        assert found is None or found.end() < len(argv[0].encode())
        assert pattern._to_allow.match(written) is None


@pytest.mark.parametrize(
    ("text", "means", "means_not"),
    [
        (r"rm\s+-rf|sudo|curl", ["rm", "sudo"], ["ls", "r", "cur"]),
        (r"^(git (status|log)|ls)\b", ["git", "ls"], ["gi", "rg"]),
        (r"^(npm|yarn) (.* )?publish", ["npm"], ["pnpm"]),
        (r"^\./scripts/\S+", ["./scripts/a"], ["scripts/a", "./x"]),
        (r"^python3? -m x", ["python", "python3"], ["perl"]),
        (r"rm|", ["ls"], []),
        (r"(?i)rm", ["RM"], []),
        (r"(ba|da)?sh", ["sh", "zsh"], []),
    ],
)
def test_a_pattern_is_not_tried_on_programs_that_it_can_not_mean(
    text: str, means: list[str], means_not: list[str]
) -> None:
    pattern = CommandPattern.compile(text)
    assert [pattern.could_mean(program) for program in means] == [True] * len(means)
    assert [pattern.could_mean(program) for program in means_not] == [False] * len(means_not)


def test_a_script_that_takes_too_long_to_judge_is_unknown_from_there_on() -> None:
    lines = [f"rm -a -b -c -d -e x{number}" for number in range(240)]
    policy = Policy.parse("default: allow\ndeny: [{tool: bash, command: 'rm -[abcdef]{6} y'}]\n")
    judgement = policy.judge("bash", {"command": "\n".join(lines)})
    assert judgement.decision.verdict is Verdict.DENY
    assert judgement.decision.rule == "unknown"
    assert "takes too long" in judgement.decision.reason
    assert policy.decide("bash", {"command": lines[0]}).verdict is Verdict.ALLOW
    assert policy.decide("bash", {"command": "\n".join(lines[:1] * 200)}).verdict is Verdict.ALLOW
