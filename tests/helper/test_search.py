"""Searching: which files, which lines, in which words, and within which bounds."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.helper import files, search, wire
from runner.helper.files import Failure
from runner.helper.globs import NameGlob

MiB = 1024**2


class Found:
    """What a search found, its rows relative to the root."""

    def __init__(self, root: Path, fields: dict[str, Any], rows: bytes):
        self.fields = fields
        self.rows = rows
        prefix = os.fsencode(root)
        self.lines = [row.removeprefix(prefix) for row in rows.split(b"\n")[:-1]]


def grep(
    root: Path,
    pattern: str,
    *,
    path: str = "",
    ignore_case: bool = False,
    include: str = "",
    max_matches: int = 200,
    max_file_bytes: int = 4 * MiB,
    judged: str | None = None,
    hidden: Sequence[str] = (),
) -> Found:
    fields, rows = search.search(
        f"{root}{path}",
        pattern,
        ignore_case,
        include,
        max_matches,
        max_file_bytes,
        lambda: False,
        judged=judged,
        hides=search.hider(hidden),
    )
    wire.encode(wire.Kind.FOUND, 1, fields, rows)  # the helper sends it like this
    return Found(root, fields, rows)


def failing(root: Path, pattern: str = "x", **options: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        grep(root, pattern, **options)
    assert caught.value.code in wire.FAILURES
    return caught.value


def each(table: str) -> list[str]:
    """The words of a table."""
    return table.split()


def fill(root: Path, *names: str, text: str = "x\n") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class TestWhichFiles:
    def test_come_in_the_byte_order_of_names(self, tmp_path: Path) -> None:
        fill(tmp_path, "b.txt", "a.txt", "B.txt", "a/z.txt", "a.d/z.txt", "10", "9", "é", "~")
        order = b"/10 /9 /B.txt /a/z.txt /a.d/z.txt /a.txt /b.txt /~ /\xc3\xa9"
        assert grep(tmp_path, "x").lines == [name + b":1: x" for name in order.split()]

    def test_skips_directories_by_name_but_not_files(self, tmp_path: Path) -> None:
        skipped = [name.decode() for name in search.SKIPPED_DIRECTORIES]
        fill(tmp_path, *(f"{name}/f" for name in skipped), "src/vendor/f", "Build/f", "ok/dist")
        assert grep(tmp_path, "x").lines == [b"/Build/f:1: x", b"/ok/dist:1: x"]

    def test_a_root_with_a_skipped_name_holds_nothing(self, tmp_path: Path) -> None:
        fill(tmp_path, "build/f", "dist")
        assert grep(tmp_path, "x", path="/build").lines == []
        assert grep(tmp_path, "x", path="/build/").lines == []
        assert grep(tmp_path, "x", path="/dist").lines == [b"/dist:1: x"]

    @pytest.mark.parametrize("path", ["/d", "/d/", "/d/.", "//d", "/e/../d", "/./d//"])
    def test_reports_clean_paths(self, tmp_path: Path, path: str) -> None:
        fill(tmp_path, "d/sub/f", "e/f")
        assert grep(tmp_path, "x", path=path).lines == [b"/d/sub/f:1: x"]

    def test_two_slashes_in_front_are_one(self, tmp_path: Path) -> None:
        fill(tmp_path, "f")
        _, rows = search.search(f"/{tmp_path}", "x", False, "", 200, MiB, lambda: False)
        assert rows == b"%b/f:1: x\n" % os.fsencode(tmp_path)

    def test_a_file_can_be_the_root_and_keeps_its_name(self, tmp_path: Path) -> None:
        fill(tmp_path, "f")
        assert grep(tmp_path, "x", path="//f").lines == [b"//f:1: x"]
        assert grep(tmp_path, "x", path="/f", include="*.py").lines == []

    def test_follows_links_to_files_inside_the_root_only(self, tmp_path: Path) -> None:
        fill(tmp_path, "root/d/t", "outside/secret")
        fill(tmp_path, "rootlike/secret")
        root = tmp_path / "root"
        (root / "inside").symlink_to("d/t")
        (root / "absolute").symlink_to(root / "d/t")
        (root / "out").symlink_to("../outside/secret")
        (root / "like").symlink_to("../rootlike/secret")
        (root / "through").symlink_to("away/secret")
        (root / "away").symlink_to("../outside")
        found = grep(root, "x")
        assert found.lines == [b"/absolute:1: x", b"/d/t:1: x", b"/inside:1: x"]
        assert found.fields["skipped_special"] == 3

    def test_measures_links_in_the_real_root(self, tmp_path: Path) -> None:
        fill(tmp_path, "real/f", "outside")
        (tmp_path / "real/link").symlink_to("f")
        (tmp_path / "real/out").symlink_to("../outside")
        (tmp_path / "root").symlink_to("real")
        found = grep(tmp_path, "x", path="/root/")
        assert found.lines == [b"/root/f:1: x", b"/root/link:1: x"]

    def test_does_not_follow_links_to_directories(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/t")
        (tmp_path / "a/loop").symlink_to("../a")
        (tmp_path / "link").symlink_to("a")
        found = grep(tmp_path, "x")
        assert found.lines == [b"/a/t:1: x"]
        assert found.fields["skipped_special"] == 0
        assert grep(tmp_path, "x", path="/link").lines == []
        assert grep(tmp_path, "x", path="/link").fields["skipped_special"] == 1
        assert grep(tmp_path, "x", path="/link/").lines == [b"/link/t:1: x"]

    def test_passes_over_links_to_nothing(self, tmp_path: Path) -> None:
        fill(tmp_path, "t")
        (tmp_path / "dangling").symlink_to("none")
        (tmp_path / "self").symlink_to("self")
        assert grep(tmp_path, "x").lines == [b"/t:1: x"]

    @pytest.mark.timeout(10)
    def test_never_opens_what_is_no_file(self, tmp_path: Path) -> None:
        fill(tmp_path, "t")
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link").symlink_to("fifo")
        (tmp_path / "device").symlink_to("/dev/zero")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            found = grep(tmp_path, "x")
        assert found.lines == [b"/t:1: x"]
        assert found.fields["skipped_special"] == 4
        assert failing(tmp_path, path="/fifo").code == "not_regular"

    @pytest.mark.timeout(10)
    def test_passes_over_large_files_without_reading_them(self, tmp_path: Path) -> None:
        fill(tmp_path, "t")
        (tmp_path / "sparse").touch()
        os.truncate(tmp_path / "sparse", 1024**4)
        (tmp_path / "link").symlink_to("sparse")
        fill(tmp_path, "over", text="x" * 101)
        fill(tmp_path, "at", text="x" * 100)
        found = grep(tmp_path, "^x", max_file_bytes=100)
        assert found.lines == [b"/at:1: " + b"x" * 100, b"/t:1: x"]
        assert found.fields["skipped_large"] == 3
        assert found.fields["files"] == 2

    def test_counts_what_it_may_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(tmp_path, "d/f", "closed", "t")
        real_open, real_scandir = os.open, os.scandir

        def forbidding_open(name: bytes, flags: int) -> int:
            if name.endswith(b"closed"):
                raise PermissionError(13, "Permission denied")
            return real_open(name, flags)

        def forbidding_scandir(name: bytes) -> Any:
            if name.endswith(b"/d/"):
                raise PermissionError(13, "Permission denied")
            return real_scandir(name)

        monkeypatch.setattr(os, "open", forbidding_open)
        monkeypatch.setattr(os, "scandir", forbidding_scandir)
        found = grep(tmp_path, "x")
        assert found.lines == [b"/t:1: x"]
        assert found.fields["skipped_unreadable"] == 2
        assert failing(tmp_path, path="/d").code == "permission_denied"

    def test_says_what_is_wrong_with_the_root(self, tmp_path: Path) -> None:
        fill(tmp_path, "f")
        assert failing(tmp_path, path="/none").code == "not_found"
        assert failing(tmp_path, path="/f/x").code == "not_directory"
        assert failing(tmp_path, path="/\0").code == "io"
        assert failing(tmp_path, path="/" + "x" * 256).code == "name_too_long"

    def test_takes_names_as_they_are(self, tmp_path: Path) -> None:
        fill(tmp_path, "a\nb", "x" * 255, "a:1:b", "a b")
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).write_text("x\n")
        rows = grep(tmp_path, "x").rows
        for name in (b"a\nb", b"x" * 255, b"a:1:b", b"a b", b"\xff"):
            assert b"/%b:1: x\n" % name in rows

    def test_goes_as_deep_as_paths_can(self, tmp_path: Path) -> None:
        deep = os.fsencode(tmp_path)
        for _ in range(1100):  # Python's stack ends at 1000
            deep += b"/d"
            os.mkdir(deep)
        Path(os.fsdecode(deep), "f").write_text("x\n")
        try:
            assert grep(tmp_path, "x").lines == [b"/d" * 1100 + b"/f:1: x"]
        finally:
            subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)

    def test_survives_a_tree_deeper_than_paths_can_be(self, tmp_path: Path) -> None:
        fill(tmp_path, "t")
        script = "import os\nfor _ in range(60): os.mkdir('d' * 200); os.chdir('d' * 200)"
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
        try:
            found = grep(tmp_path, "x")
        finally:
            subprocess.run(["rm", "-rf", tmp_path / ("d" * 200)], check=True)
        assert found.lines == [b"/t:1: x"]
        assert found.fields["skipped_unreadable"] == 1


class TestJudged:
    def test_finds_the_same_and_says_it_in_the_same_words(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        fill(root, "f", "a/b/c/f", "a/b/d/f", "a/z", "e/f", ".git/f", "\n", "out/t", "large")
        fill(tmp_path, "outside")
        (root / "large").write_text("x" * 1000)
        (root / os.fsdecode(b"\xff")).write_text("x\n")
        (root / "a/b/to-z").symlink_to("../z")
        (root / "a/out").symlink_to("../../outside")
        (root / "a/directory").symlink_to("b")
        (tmp_path / "link").symlink_to("root")
        os.mkfifo(root / "fifo")
        for path in ("/root", "/root/", "//root/./a/..", "/link/", "/link", "/root/f", "/link/f"):
            judged = files.resolve(f"{tmp_path}{path}")
            usual = grep(tmp_path, "x", path=path, max_file_bytes=100)
            found = grep(tmp_path, "x", path=path, max_file_bytes=100, judged=judged)
            assert (found.lines, found.fields) == (usual.lines, usual.fields)
            assert found.lines or path == "/link"

    def test_is_where_is_searched(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/f", "b/g")
        found = grep(tmp_path, "x", path="/a", judged=f"{tmp_path}/b")
        assert found.lines == [b"/a/g:1: x"]

    def test_finds_the_root_of_all(self, tmp_path: Path) -> None:
        fields, rows = search.search(
            "/", "nobody", False, "passwd", 1, MiB, lambda: False, judged="/"
        )
        assert rows.startswith(b"/etc/passwd:")
        assert fields["truncated"]

    @pytest.mark.parametrize("path", ["/a/", "/a/b/", "/a/b/f"])
    def test_follows_no_link_to_its_root(self, tmp_path: Path, path: str) -> None:
        fill(tmp_path, "real/b/f")
        (tmp_path / "a").symlink_to("real")
        assert grep(tmp_path, "x", path=path).fields["matches"] == 1
        failed = failing(tmp_path, path=path, judged=f"{tmp_path}{path.rstrip('/')}")
        assert failed.code == "moved"

    @pytest.mark.parametrize("judged", [False, True])
    @pytest.mark.parametrize("moment", ["scandir", "open"])
    def test_a_directory_that_becomes_a_link_leads_nowhere(
        self, tmp_path: Path, judged: bool, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unless nothing was judged: then this is how somebody gets out."""
        root = tmp_path / "root"
        fill(root, "a/b/f", "a/g")
        fill(tmp_path, "outside/b/f", text="x outside\n")
        real = getattr(os, moment)
        listed: list[object] = []

        def swap_first(name: Any, *arguments: Any, **options: Any) -> Any:
            listed.append(name)
            if len(listed) == 3 if moment == "scandir" else os.path.basename(name) == b"f":
                monkeypatch.undo()
                (root / "a").rename(root / "was-a")
                (root / "a").symlink_to("../outside")
            return real(name, *arguments, **options)

        monkeypatch.setattr(os, moment, swap_first)
        found = grep(root, "x", judged=str(root) if judged else None)
        assert listed
        assert (root / "a").is_symlink()
        assert (b"outside" in found.rows) != judged

    def test_leaves_no_descriptor_open(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/b/f", "c/d")
        (tmp_path / "a/closed").symlink_to("none")
        before = os.listdir("/proc/self/fd")
        grep(tmp_path, "x", judged=str(tmp_path))
        failing(tmp_path, path="/a/b", judged=f"{tmp_path}/a/closed")
        failing(tmp_path, "(", judged=str(tmp_path))
        assert os.listdir("/proc/self/fd") == before


class TestHidden:
    def test_files_are_passed_over_and_counted(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/secret", "a/f", "b/secret/f", "b/g")
        found = grep(tmp_path, "x", judged=str(tmp_path), hidden=[r"/secret(/|\z)", r"\A/b"])
        assert found.lines == [b"/a/f:1: x", b"/b/g:1: x"]
        assert found.fields["skipped_hidden"] == 2
        assert found.fields["files"] == 2

    def test_are_so_by_where_they_are_and_not_by_a_link(self, tmp_path: Path) -> None:
        fill(tmp_path, "real/secret", "real/open")
        (tmp_path / "real/a").symlink_to("secret")
        (tmp_path / "real/secretive").symlink_to("open")
        (tmp_path / "link").symlink_to("real")
        hidden = [f"\\A{tmp_path}/real/secret.*"]
        for judged in (f"{tmp_path}/real", None):
            found = grep(tmp_path, "x", path="/link/", judged=judged, hidden=hidden)
            assert found.lines == [b"/link/open:1: x", b"/link/secretive:1: x"]
            assert found.fields["skipped_hidden"] == 2

    def test_holds_for_a_root_that_is_a_file(self, tmp_path: Path) -> None:
        fill(tmp_path, "secret")
        (tmp_path / "link").symlink_to("secret")
        for path in ("/secret", "/link"):
            found = grep(tmp_path, "x", path=path, hidden=["secret$"])
            assert (found.lines, found.fields["skipped_hidden"]) == ([], 1)

    def test_counts_only_what_would_have_been_searched(self, tmp_path: Path) -> None:
        fill(tmp_path, "a.py", "a.txt", "node_modules/a.py")
        found = grep(tmp_path, "x", include="*.py", hidden=["."])
        assert (found.lines, found.fields["skipped_hidden"]) == ([], 1)

    @pytest.mark.parametrize("name", [b"\xff", b"\xe2\x82", b"a\nb", "\N{EURO SIGN}".encode()])
    def test_no_name_gets_round_a_pattern(self, tmp_path: Path, name: bytes) -> None:
        directory = tmp_path / "secret"
        directory.mkdir()
        (directory / os.fsdecode(name)).write_text("x\n")
        found = grep(tmp_path, "x", hidden=[r"(?s:\A(?:/[^/]+)*/secret(?:/.*)?\z)"])
        assert (found.lines, found.fields["skipped_hidden"]) == ([], 1)

    def test_by_a_bad_pattern_is_refused(self, tmp_path: Path) -> None:
        assert failing(tmp_path, hidden=["a", "("]).code == "bad_pattern"


class TestWhichLines:
    @pytest.mark.parametrize(
        ("content", "pattern", "lines"),
        [
            (b"a\r\nb\r\nc\r\n", "b$", [b"2: b"]),
            (b"a\r\nb\r", "b$", [b"2: b"]),
            (b"a\r\r\n", "a\\r$", [b"1: a\r"]),
            (b"a\nb", "^b$", [b"2: b"]),
            (b"\n", "^", [b"1: "]),
            (b"", "^", []),
            (b"a\n", "^$", []),
            (b"a\n\n", "^$", [b"2: "]),
            (b"a\n\r", "^$", [b"2: "]),
            (b"a\nb\n", "a\\nb", []),
            (b"a\nb\n", "(?s)a.b", []),
            (b"a\nb\n", "[^x]{2}", []),
            (b"ab\nb\n", "\\Ab", [b"2: b"]),
            (b"ab\na\n", "a\\z", [b"2: a"]),
            (b"ab\nb\n", "(?-m:^b)", [b"2: b"]),
            (b"\\Ab\nb\n", "\\Q\\Ab", [b"1: \\Ab"]),
            (b"caf\xe9\n", "caf.$", [b"1: caf\xe9"]),
            (b"caf\xe9\n", "caf\ufffd", [b"1: caf\xe9"]),
            (b"\xf0\x9f\x98\n", "^...$", [b"1: \xf0\x9f\x98"]),
            (b"\xed\xa0\x80\n", "^.{3}$", [b"1: \xed\xa0\x80"]),
            (b"a\xff\nb\n", "b", [b"2: b"]),
            ("é\n".encode(), "^.$", ["1: é".encode()]),
            (b"k\n", "(?i)\u212a", [b"1: k"]),
        ],
    )
    def test_are_cut_and_matched_as_in_go(
        self, tmp_path: Path, content: bytes, pattern: str, lines: list[bytes]
    ) -> None:
        (tmp_path / "f").write_bytes(content)
        assert grep(tmp_path, pattern).lines == [b"/f:" + line for line in lines]

    def test_end_at_the_first_with_a_nul(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(b"x1\nx2\n\0x3\nx4\n")
        (tmp_path / "g").write_bytes(b"x\0\n")
        found = grep(tmp_path, "x")
        assert found.lines == [b"/f:1: x1", b"/f:2: x2"]
        assert found.fields["skipped_binary"] == 2

    def test_may_be_long(self, tmp_path: Path) -> None:
        long = b"a" * 3_000_000
        (tmp_path / "f").write_bytes(b"needle first\n" + long + b"needle\nneedle last\n")
        rows = grep(tmp_path, "needle").rows
        assert b"/f:1: needle first\n" in rows
        assert b"/f:2: " + long + b"needle\n" in rows
        assert rows.endswith(b"/f:3: needle last\n")

    def test_without_regard_to_case(self, tmp_path: Path) -> None:
        fill(tmp_path, "f", text="Todo\nTODO\nÉ\ndo\n")
        assert grep(tmp_path, "todo", ignore_case=True).lines == [b"/f:1: Todo", b"/f:2: TODO"]
        assert grep(tmp_path, "é", ignore_case=True).lines == ["/f:3: É".encode()]
        assert grep(tmp_path, "(?-i)todo", ignore_case=True).lines == []

    def test_numbers_go_on_across_stretches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(search, "_STRETCH_BYTES", 10)
        fill(tmp_path, "f", text="".join(f"line {number}\n" for number in range(1, 1001)))
        found = grep(tmp_path, "7$", max_matches=1000)
        expected = [n for n in range(1, 1001) if n % 10 == 7]
        assert found.lines == [b"/f:%d: line %d" % (n, n) for n in expected]


FRAGMENTS = [
    *each(r"""
        a b B é - . ^ $ | * + ? ( ) () (?: {2} {0,2} \A \z \b \B \s \S \W \n \r \x0a \PL \E
        \\A [^a] [^\n] [a\n] [\s\S] [[:space:]] [(?-m:] (?s) (?s:.) (?m) (?-m) (?i) (?U)
        (?-m:^a)
    """),
    *["\n", "\r", "\\Qa\n", "\N{REPLACEMENT CHARACTER}"],
]
PIECES = [b"a", b"b", b"B", b"\n", b"\n\n", b"\r\n", b"\r", b" "]
PIECES += [
    "é".encode(),
    "\N{REPLACEMENT CHARACTER}".encode(),
    b"\xff",
    b"\xe2\x82",
    b"\xed\xa0\x80",
]


@settings(max_examples=500, deadline=None)
@given(
    pattern=st.lists(st.sampled_from(FRAGMENTS), max_size=7).map("".join),
    ignore_case=st.booleans(),
    content=st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join),
    stretch=st.sampled_from([1, 3, 64]),
)
def test_finds_what_a_match_of_each_line_would_find(
    pattern: str, ignore_case: bool, content: bytes, stretch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_STRETCH_BYTES", stretch)
        try:
            matcher = search._Matcher(pattern, ignore_case)
        except Failure:
            return
        found = list(matcher.lines(content, lambda: None))
    assert found == list(lines_one_by_one(pattern, ignore_case, content))


def lines_one_by_one(pattern: str, ignore_case: bool, content: bytes) -> list[tuple[int, bytes]]:
    """The reference's loop, as plainly as it can be written."""
    options = re2.Options()
    options.log_errors = False
    regex = re2.compile(("(?i)" if ignore_case else "") + pattern, options)
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    lines = [line.removesuffix(b"\r") for line in lines]
    return [(n, line) for n, line in enumerate(lines, 1) if regex.search(as_go_sees(line))]


def as_go_sees(line: bytes) -> bytes:
    text = ""
    while line:
        for width in range(1, 5):
            try:
                text += line[:width].decode()
            except UnicodeDecodeError:
                continue
            break
        else:
            text, width = text + "\ufffd", 1
        line = line[width:]
    return text.encode()


class TestPatterns:
    @pytest.mark.parametrize(
        "pattern",
        each(r"""
            ( ) [ *a a** a++ ? a(? (?=x) (?!x) (?<=x) (?<!x) (?>a) (?P=n) (?P<é>a) (?P<>a) \\\C
            a{1001} a{2}{3} a{2,1} [b-a] (a)\1 \Z \k<a> \G \h \8 \x{110000} \Q\E* [\Q] \ \p{Foo}
            [[:foo:]] \C a\C [\C] \Qa\E\C (?:[a-z]{4}){0,251} (((a{1,1000}){1,1000}){1,1000})
            \pL{900}
        """),
    )
    def test_that_go_refuses_or_that_are_too_large_are_bad(
        self, tmp_path: Path, pattern: str
    ) -> None:
        fill(tmp_path, "f")
        assert failing(tmp_path, pattern).code == "bad_pattern"

    def test_of_a_megabyte_are_too_large(self, tmp_path: Path) -> None:
        failure = failing(tmp_path, "a" * MiB)
        assert failure.code == "bad_pattern"
        assert "too large" in failure.detail

    @pytest.mark.parametrize(
        "pattern",
        each(r"""
            \\C \Q\C\E \Q\C (?<n>x) (?P<n>x) (?P<n>x)(?P<n>x) x{1000} (?:[a-z]{4}){0,250} []a]
            [a-] (?) (|a)* x{,2} \pN \110
        """),
    )
    def test_that_go_takes_are_good(self, tmp_path: Path, pattern: str) -> None:
        fill(tmp_path, "f", text="nothing of this\n")
        grep(tmp_path, pattern)

    def test_say_what_is_wrong(self, tmp_path: Path) -> None:
        assert failing(tmp_path, "(").detail == "error parsing regexp: missing ): ("
        assert "invalid escape sequence: \\C" in failing(tmp_path, "\\C").detail

    def test_are_looked_at_before_the_glob_and_the_root(self, tmp_path: Path) -> None:
        assert failing(tmp_path, "(", include="[", path="/none").code == "bad_pattern"
        assert failing(tmp_path, "x", include="[", path="/none").code == "bad_glob"

    @pytest.mark.timeout(10)
    def test_take_linear_time(self, tmp_path: Path) -> None:
        fill(tmp_path, "f", text="a" * 100_000 + "b\n")
        assert grep(tmp_path, "^(a+)+$").lines == []

    def test_are_not_kept(self, tmp_path: Path) -> None:
        fill(tmp_path, "f")
        grep(tmp_path, "x")
        assert re2._Regexp._make.cache_info().currsize == 0


class TestBounds:
    def test_stops_at_so_many_matches(self, tmp_path: Path) -> None:
        fill(tmp_path, "a", "b", text="x\n" * 10)
        found = grep(tmp_path, "x", max_matches=15)
        assert len(found.lines) == found.fields["matches"] == 15
        assert found.fields["truncated"]
        assert not grep(tmp_path, "x", max_matches=21).fields["truncated"]
        assert grep(tmp_path, "x", max_matches=20).fields["truncated"]

    def test_stops_at_so_many_bytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(search, "MAX_ROWS_BYTES", 1000)
        fill(tmp_path, "f", text=f"{'x' * 400}\n" * 10)
        found = grep(tmp_path, "x")
        assert len(found.rows) == 1000
        assert found.fields["truncated"]
        assert found.fields["matches"] < 4

    def test_a_match_longer_than_a_frame_can_still_be_sent(self, tmp_path: Path) -> None:
        fill(tmp_path, "f", text="x" * (20 * MiB))
        found = grep(tmp_path, "x", max_file_bytes=64 * MiB)
        assert len(found.rows) == search.MAX_ROWS_BYTES < wire.MAX_PAYLOAD_BYTES
        assert found.fields["truncated"]
        assert found.fields["matches"] == 1

    @pytest.mark.parametrize("pattern", ["x", "(?-m)x"])
    def test_ends_soon_after_it_was_cancelled(self, tmp_path: Path, pattern: str) -> None:
        fill(tmp_path, "f", text="a\n" * 100_000)
        asked = 0

        def cancelled() -> bool:
            nonlocal asked
            asked += 1
            return asked == 3

        with pytest.raises(Failure) as caught:
            search.search(str(tmp_path), pattern, False, "", 200, 4 * MiB, cancelled)
        assert caught.value.code == "cancelled"


class TestGlobs:
    # The table of Go's own test of filepath.Match, without slashes.
    @pytest.mark.parametrize(
        ("glob", "name", "matches"),
        [
            ("abc", "abc", True),
            ("*", "abc", True),
            ("*c", "abc", True),
            ("a*", "a", True),
            ("a*", "abc", True),
            ("a*b*c*d*e*", "axbxcxdxe", True),
            ("a*b*c*d*e*", "axbxcxdxexxx", True),
            ("a*b?c*x", "abxbbxdbxebxczzx", True),
            ("a*b?c*x", "abxbbxdbxebxczzy", False),
            ("ab[c]", "abc", True),
            ("ab[b-d]", "abc", True),
            ("ab[e-g]", "abc", False),
            ("ab[^c]", "abc", False),
            ("ab[^b-d]", "abc", False),
            ("ab[^e-g]", "abc", True),
            ("a\\*b", "a*b", True),
            ("a\\*b", "ab", False),
            ("a?b", "a☺b", True),
            ("a[^a]b", "a☺b", True),
            ("a???b", "a☺b", False),
            ("a[^a][^a][^a]b", "a☺b", False),
            ("[a-ζ]*", "β", True),
            ("*[a-ζ]", "A", False),
            ("[\\]a]", "]", True),
            ("[\\-]", "-", True),
            ("[x\\-]", "x", True),
            ("[x\\-]", "-", True),
            ("[x\\-]", "z", False),
            ("[\\-x]", "x", True),
            ("[\\-x]", "-", True),
            ("[\\-x]", "a", False),
            ("*x", "xxx", True),
            ("[!a]*", "!b", True),
            ("[!a]*", "ab", True),
            ("[!a]*", "b", False),
            ("a]", "a]", True),
            ("**", "abc", True),
            ("**c", "abc", True),
            ("?", "", False),
            ("*", "", True),
            ("*.go", "a.go.txt", False),
            ("{a,b}", "a", False),
            ("{a,b}", "{a,b}", True),
        ],
    )
    def test_match_as_in_go(self, glob: str, name: str, matches: bool) -> None:
        assert NameGlob(glob).matches(name.encode()) is matches

    def test_take_a_byte_of_a_name_that_is_not_utf_8(self) -> None:
        assert NameGlob("a?b").matches(b"a\xffb")
        assert NameGlob("a[\ufffd]b").matches(b"a\xffb")
        assert not NameGlob("a?b").matches(b"a\xff\xffb")

    def test_of_a_class_after_a_star_start_at_any_byte(self) -> None:
        assert NameGlob("*[^é]").matches("é".encode())  # its second byte is not é

    @pytest.mark.parametrize(
        "glob",
        each(r"[ [^ [^bc a[ [] []a] [-] [x-] [-x] \ [a-b-c] a\ [\ [a [a- [a-] *[ x*[a"),
    )
    def test_that_are_malformed_are_bad_whatever_the_names(self, tmp_path: Path, glob: str) -> None:
        failure = failing(tmp_path, include=glob)
        assert (failure.code, failure.detail) == ("bad_glob", "syntax error in pattern")

    def test_apply_to_base_names(self, tmp_path: Path) -> None:
        fill(tmp_path, "a.py", "d/b.py", "d/c.go", "d.py/x")
        assert grep(tmp_path, "x", include="*.py").lines == [b"/a.py:1: x", b"/d/b.py:1: x"]
        assert grep(tmp_path, "x", include="../../*").lines == []


def test_does_not_load_the_engine_before_it_is_needed() -> None:
    script = "import sys, runner.helper.search; print('re2' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ran.stdout == b"False\n"
