"""Rules for paths: globs, what is protected, and a path that leads elsewhere."""

import pytest

from runner.model import Verdict
from runner.policy import Policy
from runner.policy.matching import PatternError, normalise
from runner.policy.paths import DEFAULT_GROUPS, GROUPS, Glob, Protected


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/workspace/a", "/workspace/a"),
        ("//workspace//a/", "/workspace/a"),
        ("/workspace/./a/../b", "/workspace/b"),
        ("/workspace/../../..", "/"),
        ("/", "/"),
        ("/workspace/..a/...", "/workspace/..a/..."),
        ("/workspace/%2e%2e/a", "/workspace/%2e%2e/a"),
    ],
)
def test_a_path_is_normalised(path: str, normal: str) -> None:
    assert normalise(path) == normal


@pytest.mark.parametrize(
    ("glob", "fits", "fits_not"),
    [
        ("/workspace/*.md", ["/workspace/a.md", "/workspace/.md"], ["/workspace/d/a.md", "/a.md"]),
        ("/workspace/docs/**", ["/workspace/docs", "/workspace/docs/a/b"], ["/workspace/docsx"]),
        ("/workspace/**/x", ["/workspace/x", "/workspace/a/b/x"], ["/workspace/ax", "/x"]),
        ("**/.env", ["/.env", "/workspace/a/.env"], ["/workspace/a.env", "/workspace/.env/a"]),
        ("/a/?", ["/a/b", "/a/é"], ["/a/", "/a/bc", "/a//"]),
        ("/[a-c]", ["/a", "/c"], ["/d", "/A", "/ab"]),
        ("/[!a-c]x", ["/dx"], ["/ax", "//x"]),
        ("/[]a]", ["/]", "/a"], ["/b"]),
        ("/\\*", ["/*"], ["/a"]),
        ("/a.b+(c)", ["/a.b+(c)"], ["/aXb+(c)", "/a.bb(c)"]),
        ("/**", ["/", "/a/b", "/a\nb"], []),
    ],
)
def test_a_glob_fits_whole_paths(glob: str, fits: list[str], fits_not: list[str]) -> None:
    compiled = Glob.compile(glob)
    assert [path for path in fits if not compiled.found_in(path.encode())] == []
    assert [path for path in fits_not if compiled.found_in(path.encode())] == []


DEFAULT = Protected.named(["default"])


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/.git/hooks/post-checkout",
        "/workspace/.git/config",
        "/workspace/.GIT/config",
        "/workspace/.g\u200cit/config",
        "/workspace/.git./config",
        "/workspace/.git /config",
        "/workspace/.git::$INDEX_ALLOCATION/config",
        "/workspace/GIT~1/config",
        "/workspace/.git",
        "/workspace/vendor/dep/.git/hooks/pre-push",
        "/workspace/.git/modules/sub/config",
        "/workspace/.gitmodules",
        "/workspace/sub/.Envrc",
        "/workspace/.vscode/tasks.json",
        "/workspace/.idea/workspace.xml",
        "/workspace/.claude/settings.json",
        "/workspace/.mcp.json",
        "/workspace/.bashrc",
        "/workspace/.pre-commit-config.yaml",
        "/workspace/.npmrc",
    ],
)
def test_what_runs_code_later_is_protected(path: str) -> None:
    assert DEFAULT.covers(path)


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/.gitignore",
        "/workspace/.gitattributes",
        "/workspace/git/config",
        "/workspace/src/hooks/x.py",
        "/workspace/config",
        "/workspace/.github/workflows/ci.yml",
        "/workspace/docs/.vscode.md",
        "/workspace/src/ a.py",
    ],
)
def test_what_does_not_is_not(path: str) -> None:
    assert not DEFAULT.covers(path)


def test_every_glob_of_every_group_is_one_and_folded() -> None:
    for group in GROUPS.values():
        for glob in group:
            assert glob == glob.casefold()
            Glob.compile(glob)
    assert set(DEFAULT_GROUPS) < set(GROUPS)


@pytest.mark.parametrize(
    ("entries", "covered", "free"),
    [
        (["default", "-editor"], "/workspace/.envrc", "/workspace/.vscode/x"),
        (["default", "ci"], "/workspace/.github/workflows/x.yml", "/workspace/a"),
        (["git"], "/workspace/.git/config", "/workspace/.envrc"),
        (["/workspace/deploy/**"], "/workspace/Deploy/a", "/workspace/.git/config"),
        (["default", "-**/.envrc"], "/workspace/.git/config", "/workspace/.envrc"),
        (["-default", "git"], "/workspace/.git/config", "/workspace/.envrc"),
    ],
)
def test_the_list_can_be_added_to_and_taken_from(
    entries: list[str], covered: str, free: str
) -> None:
    protected = Protected.named(entries)
    assert protected.covers(covered)
    assert not protected.covers(free)


def test_nothing_is_protected_by_an_empty_list() -> None:
    assert not Protected.named([]).covers("/workspace/.git/config")
    assert Protected.named(["git", "-git"]).patterns == ()


def test_a_name_that_is_no_group_is_an_error() -> None:
    with pytest.raises(PatternError, match="there are default, git"):
        Protected.named(["gits"])


INSIDE = """
default: deny
allow:
  - {tool: [read, grep, write], path: '^/workspace(/|$)'}
deny:
  - {tool: '*', path: '(^|/)secret(/|$)'}
  - {tool: '*', glob: '/workspace/*.key'}
"""


@pytest.mark.parametrize(
    ("path", "resolved", "verdict"),
    [
        ("/workspace/a", None, "allow"),
        ("/workspace/a", "/workspace/b", "allow"),
        ("/workspace/../etc/passwd", None, "deny"),
        ("/etc/passwd", "/workspace/a", "deny"),
        ("/workspace/leak", "/etc/passwd", "deny"),
        ("/workspace/leak", "/workspace/secret/a", "deny"),
        ("/workspace/secret/../a", None, "allow"),
        ("/workspace/a", "/workspace/x.key", "deny"),
        ("/workspace/x.key", "/workspace/a", "deny"),
    ],
)
def test_an_allow_needs_both_paths_and_a_deny_one(
    path: str, resolved: str | None, verdict: str
) -> None:
    policy = Policy.parse(INSIDE)
    assert policy.decide("read", {"path": path}, resolved=resolved).verdict == verdict


def test_a_rule_for_paths_is_not_for_a_call_without_one() -> None:
    policy = Policy.parse("default: allow\ndeny: [{path: ''}]")
    assert policy.decide("bash", {"command": "ls"}).verdict is Verdict.ALLOW
    assert policy.decide("odd", {"path": 3}).verdict is Verdict.ALLOW
    assert policy.decide("read", {"path": "/a"}).verdict is Verdict.DENY


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/%2e%2e/etc/passwd",
        "/workspace/%2E%2E%2Fetc",
        "/workspace/%252e%252e/x",
        "/workspace/..%c0%af../x",
        "/workspace/%C0%AE/x",
        "/workspace/a%5c..%5cb",
    ],
)
def test_a_path_that_reads_like_another_is_refused_where_paths_are_judged(path: str) -> None:
    policy = Policy.parse("default: deny\nallow: [{tool: read, path: '^/workspace/'}]")
    decision = policy.decide("read", {"path": path})
    assert (decision.verdict, decision.rule) == (Verdict.DENY, "input")
    assert policy.decide("read", {"path": "/workspace/100%25.txt"}).verdict is Verdict.ALLOW
    assert Policy.parse("default: allow").decide("read", {"path": path}).verdict is Verdict.ALLOW


@pytest.mark.parametrize("path", ["/workspace/Secret/a", "/workspace/SECRET./a"])
def test_a_refusal_is_meant_for_names_that_lax_file_systems_take_for_the_same(path: str) -> None:
    policy = Policy.parse(
        "default: deny\nallow: [{tool: read, path: Secret|SECRET}]\ndeny: [{path: /secret/}]"
    )
    assert policy.decide("read", {"path": path}).rule == "deny[0]"
    assert policy.decide("read", {"path": "/workspace/aSecret"}).rule == "allow[0]"


VERSIONED = "version: 1\ndefault: allow\n"


@pytest.mark.parametrize("tool", ["write", "edit", "Write"])
@pytest.mark.parametrize("resolved", [None, "/workspace/.git/config"])
def test_protected_files_are_refused_to_the_tools_that_change_files(
    tool: str, resolved: str | None
) -> None:
    path = "/workspace/.git/config" if resolved is None else "/workspace/innocent"
    decision = Policy.parse(VERSIONED).decide(tool, {"path": path}, resolved=resolved)
    assert decision.verdict is Verdict.DENY
    assert decision.rule == "protect"
    assert "/workspace/.git/config runs code later" in decision.reason


@pytest.mark.parametrize(
    "text",
    [
        "default: allow\nask: []",
        "default: allow\nallow: [{tool: [write]}, {tool: write, path: a}]",
        "default: allow\nallow: [{tool: [write, edit]}]",
        "default: allow\nallow: [{tool: write, justification: x}]",
        "default: allow\nallow: [{tool: write, rate: {calls: 9, per_s: 1}}]",
        "default: allow\non_unknown: deny",
    ],
)
def test_a_policy_with_anything_of_ours_in_it_protects_them(text: str) -> None:
    decision = Policy.parse(text).decide("write", {"path": "/workspace/.git/config"})
    assert decision.rule == "protect"


def test_they_may_be_read() -> None:
    path = {"path": "/workspace/.git/config"}
    assert Policy.parse(VERSIONED).decide("read", path).verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    "text",
    [
        "default: allow",  # rousseau-agent's, which protects nothing
        "mode: pattern\ndefault: allow\nreason: x\nallow: [{tool: write, match: a}]\ndeny: []",
        "mode: allow_all",
        "version: 1\nmode: allow_all",
        "version: 1\ndefault: allow\nprotect: []",
        "version: 1\ndefault: allow\nprotect: [default, -git]",
    ],
)
def test_who_does_not_want_protection_has_none(text: str) -> None:
    policy = Policy.parse(text)
    assert policy.decide("write", {"path": "/workspace/.git/config"}).verdict is Verdict.ALLOW


def test_what_protects_is_watched_too() -> None:
    assert Policy.parse(VERSIONED).watched == DEFAULT.patterns
    assert Policy.parse("default: allow").watched == ()
    assert Policy.parse("mode: allow_all").watched == ()


@pytest.mark.parametrize(
    ("text", "tool", "looks"),
    [
        (INSIDE, "read", True),
        (INSIDE, "bash", True),  # '*' is for it, too
        ("default: deny\nallow: [{tool: read, glob: '/a'}]", "grep", False),
        ("default: deny\nallow: [{tool: read, match: '/a'}]", "write", False),
        ("default: deny\nallow: [{tool: read, glob: '/a'}]", "READ", True),
        (VERSIONED, "write", True),
        (VERSIONED, "read", False),
        ("mode: allow_all", "write", False),
    ],
)
def test_whether_it_matters_where_a_path_leads(text: str, tool: str, looks: bool) -> None:
    assert Policy.parse(text).looks_at_paths(tool) is looks


def test_a_search_does_not_see_what_could_not_be_read() -> None:
    policy = Policy.parse(
        "default: allow\n"
        "ask: [{tool: grep, path: 'private'}]\n"
        "deny:\n"
        "  - {tool: grep, glob: '**/*.key'}\n"
        "  - {tool: read, path: 'read-only'}\n"
        "  - {tool: grep, path: 'late', field: {pattern: password}}\n"
    )
    arguments = {"pattern": "x", "path": "/workspace"}
    hidden = policy.hides("grep", arguments)
    assert hidden == (Glob.compile("**/*.key").regex, "private")
    assert "late" in policy.hides("grep", arguments | {"pattern": "password"})
    assert policy.hides("grep", {"pattern": float("nan"), "path": "/"}) == ()
