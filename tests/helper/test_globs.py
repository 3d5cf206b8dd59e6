"""Globs for paths, matched name by name; those for names are tested with the search."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.helper import globs
from runner.helper.files import Failure
from runner.helper.globs import PathGlob


def fits(glob: str, path: str | bytes) -> bool:
    compiled = PathGlob(glob)
    states = compiled.start
    assert not compiled.accepts(states), "the directory itself matches nothing"
    for name in (path.encode() if isinstance(path, str) else path).split(b"/"):
        states = compiled.step(states, name)
    return compiled.accepts(states)


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*", "a .a a.b é", "a/b"),
        ("*.py", "a.py .py", "a.pyc d/a.py"),
        ("./a//b/", "a/b", "a b a/b/c"),
        ("**", "a a/b a/b/c .a", ""),
        ("**/*.py", "a.py d/a.py d/e/a.py", "a.pyc d/a"),
        ("src/**", "src/a src/a/b", "src srcs/a"),
        ("src/**/a", "src/a src/x/a src/x/y/a", "src/x/b a x/src/a"),
        ("**/src/**/*.c", "src/a.c x/src/a.c x/src/y/z/a.c", "a.c src.c x/a.c"),
        ("**/**/a", "a x/a x/y/a", "b"),
        ("a**b", "ab axxb", "a/b"),
        ("?", "a é", "ab a/b"),
        ("[a-c]x", "ax cx", "dx"),
        ("[!a-c]x", "dx éx", "ax"),
        ("[^a-c]x", "dx", "ax"),
        ("*.{c,h}", "a.c a.h", "a.d a.{c,h}"),
        ("{src,lib/*}/a", "src/a lib/x/a", "lib/a"),
        ("{a,b{c,d},}x", "ax bcx bdx x", "bx cx"),
        ("{a}", "a", "{a}"),
        (r"\{a,b\}", "{a,b}", "a b"),
        ("[{]a", "{a", "a"),
        ("a}", "a}", "a"),
        (r"\*", "*", "a"),
    ],
)
def test_a_glob_fits_whole_paths(glob: str, yes: str, no: str) -> None:
    assert {path for path in (yes + " " + no).split() if fits(glob, path)} == set(yes.split())


def test_names_that_are_no_utf_8_are_names_too() -> None:
    assert fits("**/*.py", b"\xff/\xfe.py")
    assert fits("?", b"\xff")
    assert not fits("?", b"\xff\xff")


@pytest.mark.parametrize(
    ("glob", "words"),
    [
        ("", "empty"),
        ("./", "empty"),
        ("/a", "no / comes first"),
        ("../a", "no .. in it"),
        ("a/../b", "no .. in it"),
        ("{a,../b}", "no .. in it"),
        ("[a", "syntax error"),
        ("a\\", "syntax error"),
        ("{a,b", "a { is not closed"),
        ("{a,b}" * 10, "more than 64 alternatives"),
        ("a/" * 1025, "more than 1024 names"),
        ("{a,b}/" * 6 + "**/c/" * 8, "more than 1024 names"),
        ("{" * 300 + "}" * 300, "more than 64 alternatives"),
        ("a" * 4097, "longer than 4096 bytes"),
    ],
)
def test_what_is_no_glob_is_refused(glob: str, words: str) -> None:
    with pytest.raises(Failure) as caught:
        PathGlob(glob)
    assert caught.value.code == "bad_glob"
    assert words in caught.value.detail


def test_as_many_alternatives_are_taken_as_are_allowed() -> None:
    glob = "{a,b}" * 6
    assert fits(glob, "ababab")
    assert not fits(glob, "ababa")
    assert globs.MAX_ALTERNATIVES == 2**6


def test_it_tells_where_nothing_below_can_match() -> None:
    glob = PathGlob("src/*/a")
    assert not glob.leads_on(glob.step(glob.start, b"lib"))
    src = glob.step(glob.start, b"src")
    assert glob.leads_on(src)
    deepest = glob.step(glob.step(src, b"x"), b"a")
    assert glob.accepts(deepest)
    assert not glob.leads_on(deepest)


def test_it_tells_names_that_it_says_from_those_that_it_only_fits() -> None:
    glob = PathGlob("**/{node_modules,b*}/x")
    assert glob.leads_on(glob.named(glob.start, b"node_modules"))
    assert not glob.named(glob.start, b"build")
    assert glob.leads_on(glob.step(glob.start, b"build"))


@given(st.text("ab*?", min_size=1, max_size=6), st.text("ab", min_size=1, max_size=6))
def test_a_single_part_fits_as_shells_have_it(glob: str, name: str) -> None:
    if glob != "**":
        assert fits(glob, name) == fnmatch.fnmatchcase(name, glob)
