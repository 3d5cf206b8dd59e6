"""Watching protected files: what a look finds, what it can't, and where it stops."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.helper import watch, wire
from runner.helper.files import Failure
from runner.helper.watch import Watch

PATTERNS = [
    r"(?s:\A(?:/[^/]+)*/\.git\z)",
    r"(?s:\A(?:/[^/]+)*/\.git/config\z)",
    r"(?s:\A(?:/[^/]+)*/\.git/hooks(?:/.*)?\z)",
    r"(?s:\A(?:/[^/]+)*/\.envrc\z)",
    r"(?s:\A(?:/[^/]+)*/\.vscode(?:/.*)?\z)",
    r"(?s:\A/workspace/deploy/.*\z)",
]
"""As a policy makes them."""

Act = Callable[[Path], object]
Found = dict[str, str]


def watching(root: Path, *, before: Watch | None = None) -> Watch:
    return Watch(str(root), PATTERNS, before=before, called="/workspace")


def found(by: Watch) -> Found:
    """What a look reports, which is all there is."""
    report = by.look()
    assert report.complete is True
    assert report.total == len(report.touched)
    return {path.removeprefix("/workspace/"): change for path, change in report.touched}


def later(root: Path) -> None:
    """Wait until what happens next has another time than what happened."""
    probe = root.parent / "probe"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.touch()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look has time enough, however busy the machine is, and no clock is coarse.

    Where it matters that two things happen at different times, tests wait for that.
    """
    monkeypatch.setattr(watch, "SETTLED_NS", 0)
    monkeypatch.setattr(watch, "LOOK_S", 60.0)
    monkeypatch.setattr(watch, "BASELINE_S", 60.0)


def put(path: Path, content: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def replace(path: Path) -> None:
    put(path.parent / "new", "new")
    (path.parent / "new").rename(path)


def come_and_go(path: Path) -> None:
    put(path)
    path.unlink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with some protected files, and others."""
    root = tmp_path / "root"
    for name in (
        ".git/config",
        ".git/hooks/pre-push",
        ".git/HEAD",
        "src/deep/main.py",
        "src/.envrc",
        ".vscode/tasks.json",
        "envrc",
    ):
        put(root / name)
    later(root)
    return root


# What is found.


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda root: put(root / ".envrc"), {".envrc": "created"}),
        (lambda root: put(root / "src/deep/.envrc"), {"src/deep/.envrc": "created"}),
        (
            lambda root: put(root / "a/b/c/.git/hooks/post-checkout"),
            {"a/b/c/.git/hooks/post-checkout": "created"},
        ),
        (lambda root: put(root / "deploy/prod.yml"), {"deploy/prod.yml": "created"}),
        (lambda root: put(root / ".vscode/more/x.json"), {".vscode/more/x.json": "created"}),
        (lambda root: put(root / ".git/config", "y"), {".git/config": "changed"}),
        (lambda root: put(root / ".git/config"), {".git/config": "changed"}),
        (lambda root: replace(root / ".git/config"), {".git/config": "changed"}),
        (
            lambda root: (root / ".git/hooks/pre-push").chmod(0o755),
            {".git/hooks/pre-push": "changed"},
        ),
        (lambda root: os.utime(root / "src/.envrc", (0, 0)), {"src/.envrc": "changed"}),
        (lambda root: (root / "src/.envrc").unlink(), {"src/.envrc": "removed"}),
        (
            lambda root: (root / "src").rename(root / "lib"),
            {"src/.envrc": "removed", "lib/.envrc": "created"},
        ),
        (
            lambda root: (root / "src/.envrc").rename(root / "src/envrc"),
            {"src/.envrc": "removed"},
        ),
        (lambda root: (root / "envrc").rename(root / ".envrc"), {".envrc": "created"}),
        (lambda root: (root / ".envrc").symlink_to("nowhere"), {".envrc": "created"}),
        (lambda root: (root / ".envrc").symlink_to("src"), {".envrc": "created"}),
        (lambda root: (root / ".envrc").hardlink_to(root / "envrc"), {".envrc": "created"}),
        (lambda root: os.mkfifo(root / ".envrc"), {".envrc": "created"}),
        (lambda root: put(root / ".ENVRC"), {".ENVRC": "created"}),
        (lambda root: put(root / "x/.Git/HOOKS/Update"), {"x/.Git/HOOKS/Update": "created"}),
        (lambda root: put(root / ".g\u200cit/config"), {".g\u200cit/config": "created"}),
        (lambda root: put(root / ".git/config::$DATA"), {".git/config::$DATA": "created"}),
        (lambda root: put(root / ".envrc. "), {".envrc. ": "created"}),
        (lambda root: put(root / ".vscode/a\nb"), {".vscode/a\nb": "created"}),
        (lambda root: put(root / "a\nb/.envrc"), {"a\nb/.envrc": "created"}),
        (
            lambda root: put(Path(os.fsdecode(os.fsencode(root) + b"/\xff/.vscode/\xfe"))),
            {"\ufffd/.vscode/\ufffd": "created"},
        ),
    ],
)  # fmt: skip
def test_a_look_tells_what_became_of_protected_files(root: Path, act: Act, expected: Found) -> None:
    watch = watching(root)
    assert found(watch) == {}

    act(root)

    assert found(watch) == expected
    assert found(watch) == {}


@pytest.mark.parametrize(
    "act",
    [
        lambda root: None,
        lambda root: put(root / "src/deep/main.py", "y"),
        lambda root: put(root / ".git/HEAD", "y"),
        lambda root: put(root / "xenvrc"),
        lambda root: put(root / "git/config"),
        lambda root: (root / ".envrc").mkdir(),
        lambda root: (root / ".git/hooks/deep").mkdir(),
        lambda root: (root / ".git/hooks").chmod(0o700),
        lambda root: (root / ".git/config").read_text(),
        lambda root: come_and_go(root / ".envrc"),
        lambda root: (root / "elsewhere").symlink_to(root / "src"),
    ],
)
def test_nothing_else_is_news(root: Path, act: Act) -> None:
    watch = watching(root)
    act(root)
    assert found(watch) == {}


def test_a_file_that_is_written_through_a_hard_link_has_changed(root: Path) -> None:
    (root / "innocent").hardlink_to(root / ".git/config")
    later(root)
    watch = watching(root)
    (root / "innocent").write_text("[core]")
    assert found(watch) == {".git/config": "changed"}


def test_what_a_link_leads_to_is_not_looked_at(root: Path, tmp_path: Path) -> None:
    put(tmp_path / "outside/.envrc")
    watch = watching(root)
    (root / "link").symlink_to(tmp_path / "outside")
    put(tmp_path / "outside/.envrc", "y")
    assert found(watch) == {}


def test_a_directory_that_a_link_took_the_place_of_is_gone(root: Path) -> None:
    put(root / "src/deep/.envrc")
    watch = watching(root)
    (root / "src").rename(root / ".git/src")
    (root / "src").symlink_to(".git/src")
    assert found(watch) == {
        "src/.envrc": "removed",
        "src/deep/.envrc": "removed",
        ".git/src/.envrc": "created",
        ".git/src/deep/.envrc": "created",
    }


def test_directories_that_change_places_are_told_apart(root: Path) -> None:
    put(root / "a/sub/.envrc")
    (root / "b/sub").mkdir(parents=True)
    watch = watching(root)
    (root / "a").rename(root / "c")
    (root / "b").rename(root / "a")
    (root / "c").rename(root / "b")
    for name in ("a/sub", "b/sub"):  # they may have been made in the same tick of the clock
        known = watch._directories[str(root / name)]
        known.ctime = (root / name).stat().st_ctime_ns
    assert found(watch) == {"a/sub/.envrc": "removed", "b/sub/.envrc": "created"}


@pytest.mark.parametrize("is_last", [False, True])
def test_a_directory_that_came_back_between_looks_that_were_cut_short_is_looked_at(
    root: Path, is_last: bool
) -> None:
    put(root / "src/deep/.envrc")
    later(root)
    watch = watching(root)
    src, deep = str(root / "src"), str(root / "src/deep")
    watch._forget(src, watch._directories[src])  # and no more: what was in it is still known
    if is_last:
        left = watch._directories.pop(deep)
        watch._meet(src, watch._directories[str(root)])
        watch._directories[deep] = left
    else:
        watch._directories[str(root)].ctime = 0
    seen = found(watch)
    assert set(seen) == {"src/.envrc", "src/deep/.envrc"}
    later(root)
    put(root / "src/deep/.envrc")
    assert found(watch) == {"src/deep/.envrc": "changed"}


def test_a_file_and_a_directory_may_take_each_others_place(root: Path) -> None:
    watch = watching(root)
    (root / ".git").rename(root / "git")
    put(root / ".git", "gitdir: git")
    assert found(watch) == {
        ".git/config": "removed",
        ".git/hooks/pre-push": "removed",
        ".git": "created",
    }
    (root / ".git").unlink()
    (root / "git").rename(root / ".git")
    assert found(watch) == {
        ".git": "removed",
        ".git/config": "created",
        ".git/hooks/pre-push": "created",
    }


def test_what_follows_a_look_at_once_is_found_by_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SETTLED_NS", 3600 * 10**9)
    by = watching(root)
    for number in range(300):
        put(root / f".vscode/{number}")  # the clock of the kernel may not have moved
        # If it has not, the directory looks as it did.
        known = by._directories[str(root / ".vscode")]
        known.ctime = known.ctime and (root / ".vscode").stat().st_ctime_ns
        assert found(by) == {f".vscode/{number}": "created"}


def test_a_root_that_is_not_there_yet_is_looked_at_once_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    watch = watching(root)
    assert watch.look() == ([], 0, False)
    put(root / ".envrc")
    assert found(watch) == {".envrc": "created"}


def test_patterns_that_are_none_are_refused(root: Path) -> None:
    with pytest.raises(Failure) as caught:
        Watch(str(root), ["/ok", "/(bad"])
    assert caught.value.code == "bad_pattern"
    assert "missing )" in caught.value.detail


def test_no_pattern_means_that_nothing_is_protected(root: Path) -> None:
    watch = Watch(str(root), [])
    put(root / ".envrc")
    assert found(watch) == {}


# From one watch to the next.


def test_a_watch_that_takes_the_place_of_another_reports_what_that_one_did_not(root: Path) -> None:
    first = watching(root)
    put(root / ".envrc")
    second = watching(root, before=first)
    assert found(second) == {".envrc": "created"}


@pytest.mark.parametrize(
    ("between", "after", "expected"),
    [
        (lambda file: put(file), lambda file: put(file, "y"), "created"),
        (lambda file: put(file), lambda file: file.unlink(), "removed"),
    ],
)
def test_two_things_that_happened_come_to_one(
    root: Path, between: Act, after: Act, expected: str
) -> None:
    watch = watching(root)
    between(root / ".envrc")
    watch._go_round(60.0)
    later(root)
    after(root / ".envrc")
    assert found(watch) == {".envrc": expected}


def test_a_file_that_came_back_has_changed(root: Path) -> None:
    watch = watching(root)
    (root / "src/.envrc").unlink()
    watch._go_round(60.0)
    put(root / "src/.envrc")
    assert found(watch) == {"src/.envrc": "changed"}


# Bounds.


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time at all: a look sees one directory."""
    monkeypatch.setattr(watch, "AT_LEAST", 1)
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    monkeypatch.setattr(watch, "BASELINE_S", 0.0)


def looks_until_complete(by: Watch, most: int) -> Found:
    """What is found by the time that a look has seen everything."""
    seen: Found = {}
    for _ in range(most):
        report = by.look()
        seen |= {path.removeprefix("/workspace/"): change for path, change in report.touched}
        if report.complete:
            return seen
    raise AssertionError(f"not complete after {most} looks")


def test_a_look_without_time_is_gone_on_with_by_the_next(
    root: Path, one_at_a_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    by = watching(root)
    assert not by.complete
    count = sum(1 for _ in os.walk(root))
    seen: Found = {}
    for _ in range(3 * count):  # those that are there before are no news, however late they come
        seen |= dict(by.look().touched)
    assert seen == {}
    put(root / ".git/hooks/post-merge")
    for _ in range(3 * count):
        report = by.look()
        assert report.complete is False
        seen |= dict(report.touched)
    assert seen == {"/workspace/.git/hooks/post-merge": "created"}
    monkeypatch.setattr(watch, "LOOK_S", 60.0)
    assert found(by) == {}


def test_what_came_before_the_baseline_got_there_is_news(root: Path, one_at_a_time: None) -> None:
    by = watching(root)
    put(root / ".git/hooks/post-merge")
    seen: Found = {}
    for _ in range(30):
        seen |= dict(by.look().touched)
    assert seen == {"/workspace/.git/hooks/post-merge": "created"}


def test_the_topmost_directories_come_first_in_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "TOPMOST", 3)
    root = tmp_path / "root"
    for number in range(20):
        (root / f"d{number:02}").mkdir(parents=True)
    by = watching(root)
    known = [path for path, _ in by._in_order()]
    by._goes_on_at = known[10]
    assert [path for path, _ in by._in_order()] == known[:3] + known[10:] + known[3:10]
    # One that was no further than these leaves its turn to the others.
    by._was_rushed = True
    assert [path for path, _ in by._in_order()] == known[10:] + known[:10]


def test_a_large_directory_is_read_in_turns_and_others_have_theirs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ENTRIES_AT_ONCE", 3)
    for number in range(50):
        put(root / f"large/{number}")
    by = watching(root)
    put(root / "large/.envrc")
    put(root / "large/deep/deeper/.envrc")
    (root / "src/.envrc").unlink()
    assert found(by) == {
        "large/.envrc": "created",
        "large/deep/deeper/.envrc": "created",
        "src/.envrc": "removed",
    }
    monkeypatch.setattr(watch, "AT_LEAST", 1)
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    (root / "large/.envrc").unlink()
    seen: Found = {}
    for _ in range(2000):
        seen |= dict(by.look().touched)
    assert seen == {"/workspace/large/.envrc": "removed"}
    by.close()


def test_so_many_directories_are_read_in_turns_and_no_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr(watch, "UNFINISHED", 2)
    for number in range(8):
        for file in range(5):
            put(root / f"{number}/{file}")
    descriptors = len(os.listdir("/proc/self/fd"))
    by = watching(root)
    for _ in range(20):
        by.look()
    for number in range(8):
        put(root / f"{number}/.envrc")
    assert len(looks_until_complete(by, 50)) == 8
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_look_that_left_a_directory_half_read_is_not_complete(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by = watching(root)
    monkeypatch.setattr(watch, "ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr(watch, "UNFINISHED", 2)
    for number in range(6):
        put(root / f"{number}/.envrc")
        put(root / f"{number}/other")
        put(root / f"{number}/another")
    later(root)
    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    monkeypatch.setattr(watch, "AT_LEAST", by.directories + 6)
    seen: Found = {}
    for _ in range(30):
        report = by.look()
        half_read = len(os.listdir("/proc/self/fd")) - descriptors
        assert half_read <= 2
        assert not (report.complete and half_read)
        seen |= dict(report.touched)
    assert report.complete is True
    assert seen == {f"/workspace/{number}/.envrc": "created" for number in range(6)}


def test_what_was_left_out_is_no_news_when_there_is_room(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        put(root / f"many/{number}/.envrc")
    later(root)
    monkeypatch.setattr(watch, "KNOWN", 12)
    by = watching(root)
    assert by.look() == ([], 0, False)
    assert by.directories <= 12
    monkeypatch.setattr(watch, "KNOWN", 1000)
    assert looks_until_complete(by, 3) == {}
    later(root)
    put(root / "many/8/.envrc")
    put(root / "many/9/.envrc")
    assert found(by) == {"many/8/.envrc": "changed", "many/9/.envrc": "created"}


def test_what_is_gone_takes_no_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by = watching(root)
    monkeypatch.setattr(watch, "KNOWN", by.directories + by._files + 3)
    for _ in range(9):
        put(root / "x/.envrc")
        assert found(by) == {"x/.envrc": "created"}
        (root / "x/.envrc").unlink()
        (root / "x").rmdir()
        assert found(by) == {"x/.envrc": "removed"}


def test_no_more_than_so_much_is_kept_in_mind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = sum(1 for _ in os.walk(root)) + 4
    monkeypatch.setattr(watch, "KNOWN", count + 1)
    by = watching(root)
    assert found(by) == {}
    put(root / "one/two/.envrc")  # two directories, and room for one
    report = by.look()
    assert (report.touched, report.complete) == ([], False)
    assert by.directories <= watch.KNOWN
    (root / ".git").rename(root.parent / "gone")
    seen = looks_until_complete(by, 5)
    assert seen.pop("one/two/.envrc") == "created"
    assert set(seen.values()) == {"removed"}


def test_protected_files_beyond_that_are_told_of_once_found_but_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by = watching(root)
    monkeypatch.setattr(watch, "KNOWN", by.directories + by._files + 10)
    for number in range(40):
        put(root / f".vscode/{number}")
    report = by.look()
    assert (report.total, report.complete) == (40, False)
    assert by.directories + by._files == watch.KNOWN


def test_more_than_a_frame_holds_is_counted(root: Path) -> None:
    by = watching(root)
    for number in range(wire.MAX_TOUCHED + 7):
        put(root / f".vscode/{number}")
    report = by.look()
    assert (len(report.touched), report.total) == (wire.MAX_TOUCHED, wire.MAX_TOUCHED + 7)


def test_names_of_any_length_fit_into_a_frame_and_into_a_record(root: Path) -> None:
    by = watching(root)
    deep = root / ".vscode"
    while len(str(deep)) < 3500:
        deep /= "\x01" * 250
    for number in range(10):
        put(deep / str(number))
    report = by.look()
    assert (report.total, report.complete) == (10, True)
    assert 0 < len(report.touched) < 10
    assert len(json.dumps(report.touched)) <= wire.MAX_TOUCHED_BYTES
    fields = {"touched": report.touched, "touched_count": 10, "touched_complete": True}
    ran = {"exit_code": 0, "signal": None, "ended": "exited", "background": 0, "oom_killed": False}
    wire.encode(
        wire.Kind.RAN,
        1,
        {
            **ran,
            "output_bytes": 0,
            "errors_bytes": 0,
            "spill_path": None,
            "spill_bytes": 0,
            **fields,
        },
    )


def test_what_is_deeper_than_a_path_can_be_is_not_complete(root: Path) -> None:
    by = watching(root)
    path = [os.open(root, os.O_RDONLY)]
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=path[-1])
        path.append(os.open("d" * 250, os.O_RDONLY, dir_fd=path[-1]))
    put(root / ".envrc")
    report = by.look()
    while len(path) > 1:  # or nobody could remove what the test has made
        os.close(path.pop())
        os.rmdir("d" * 250, dir_fd=path[-1])
    os.close(path.pop())
    assert report.touched == [["/workspace/.envrc", "created"]]
    assert report.complete is False


# Names.


@pytest.mark.parametrize(
    ("path", "folded"),
    [
        ("/workspace/.GIT/Config", "/workspace/.git/config"),
        ("/workspace/.git./config. .", "/workspace/.git/config"),
        ("/workspace/.git::$INDEX_ALLOCATION/x:y", "/workspace/.git/x"),
        ("/workspace/.g\u200cit", "/workspace/.git"),
        ("/a/./..", "/a/./.."),
        ("/STRASSE/STRAßE", "/strasse/strasse"),
        ("/\u212a", "/k"),
        ("/e\u0301", "/\u00e9"),
        ("", ""),
        ("/.../ /:x", "/.../ /:x"),
    ],
)
def test_names_are_folded_as_lax_file_systems_do(path: str, folded: str) -> None:
    assert watch.fold(path) == folded
