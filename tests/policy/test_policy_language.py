"""The proofs behind the warnings: what is said to be impossible never happens.

RE2 is the judge: no pattern that it finds in a call's JSON may be called impossible.
"""

import json
import os
from contextlib import suppress
from typing import Any

import pytest
import re2
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runner.policy.language import Beyond, Budget, Edge, Shape, alternatives
from runner.policy.matching import Pattern, PatternError, canonical_json
from runner.policy.shapes import ANY_FORM, FORMS, Form

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text(
    st.sampled_from(list('ab"\\\n\t/ K\u212a\u017fs€é.$^{}:,')), max_size=8
)

EXAMPLES = int(os.environ.get("POLICY_EXAMPLES", "300"))
"""Of each property; a run that looks for something new takes more."""


def fields(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Texts for these fields, in this order."""
    return st.tuples(*[TEXT] * len(names)).map(lambda texts: dict(zip(names, texts, strict=True)))


CALLS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "read": fields("path"),
    "write": fields("path", "content"),
    "edit": fields("path", "old_string", "new_string"),
    "grep": st.builds(
        lambda always, maybe: {**always, **maybe},
        fields("pattern", "path"),
        st.fixed_dictionaries({}, optional={"ignore_case": st.booleans(), "include": TEXT}),
    ),
    "bash": fields("command"),
    "other": st.dictionaries(TEXT, TEXT | st.integers() | st.none() | st.lists(TEXT)),
}


def form(tool: str) -> Form:
    return FORMS.get(tool, ANY_FORM)


def possible(pattern: str, shape: Shape) -> bool:
    budget = Budget(1_000_000)
    return any(shape.can_hold(part.node, budget) for part in alternatives(pattern, budget))


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str]:
    tool = draw(st.sampled_from(list(CALLS)))
    return tool, canonical_json(draw(CALLS[tool]))


# --- patterns made from a text, so that most of them are found in it


def one(character: str) -> st.SearchStrategy[str]:
    """Ways to write one character, and some things that it is not."""
    quoted, code = re2.escape(character), ord(character)
    ways = [
        quoted, ".", ".?", ".*", "(?s:.)", f"\\x{{{code:x}}}", f"[{quoted}]", f"(?:{quoted}|zz)",
        f"{quoted}+", f"{quoted}{{1,3}}", f"\\Q{character}\\E", f"(?P<n>{quoted})?", f"x*?{quoted}",
        f"(?i:{re2.escape(character.swapcase())})", f"(?i:[{quoted}])", "(?i)s", "(?i:[^k])",
        "[^a]", "[^Z]", "[^0]", "[^é]", "[^\u017f]", "(?i:[^\u212a])", "[a-z]", "[]a-]",
        r"\w", r"\W", r"\s", r"\D", r"[\s\S]", r"\pL", r"\PL", "[[:^digit:]]", r"[[:alpha:]\d]",
        "(?-s:.)", r"\x7b", r"\173", "{", r"\{", "a{,2}", "(?:)", ".{20}?",
    ]  # fmt: skip
    return st.sampled_from(ways)


AROUND = st.sampled_from(
    ["", "", "", "^", r"\A", "$", r"\z", r"\b", r"\B", "(?m)^", "^*", ".*", "|"]
)


@st.composite
def patterns_for(draw: st.DrawFn, text: str) -> str:
    start = draw(st.integers(0, len(text)) | st.just(0))
    end = draw(st.integers(start, min(len(text), start + 12)) | st.just(len(text)))
    assume(end - start < 40)
    parts = [draw(one(character)) for character in text[start:end]]
    flags = draw(st.sampled_from(["", "", "(?i)", "(?s)", "(?im)"]))
    return flags + draw(AROUND) + "".join(parts) + draw(AROUND)


def compiled(pattern: str) -> Pattern:
    try:
        return Pattern.compile(pattern)
    except PatternError:
        assume(False)
        raise


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data(), calls())
def test_what_re2_finds_is_never_called_impossible(
    data: st.DataObject, call: tuple[str, str]
) -> None:
    tool, text = call
    pattern = data.draw(patterns_for(text))
    if compiled(pattern).found_in(text.encode()):
        with suppress(Beyond):
            assert possible(pattern, form(tool).shape)
            assert possible(pattern, ANY_FORM.shape)


SYNTAX = st.sampled_from([
    "a", "k", "s", ".", "^", "$", "(", "(?:", "(?i)", "(?i:", ")", "|", "*", "+", "?", "{2}",
    "{2,}", "{0,3}", "[", "[^", "]", "-", "\\d", "\\W", "\\pL", "\\b", "\\A", "\\z", "\\Q", "\\E",
    "{", "}", '"', "command", ":", "\\", "\\n", "[:alpha:]", "[:^word:]", "é",
    "\\x{e9}", "\\x41", "\\101",
    ",", '{"command":"', '"}', "\u017f", "\u212a", "/", "\\\\", "(?P<n>", "(?s)", "(?U)", "{3,1}",
    "{01}",
])  # fmt: skip


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(st.lists(SYNTAX, max_size=10).map("".join), calls())
def test_no_syntax_of_re2_is_misread(pattern: str, call: tuple[str, str]) -> None:
    tool, text = call
    if compiled(pattern).found_in(text.encode()):
        with suppress(Beyond):
            assert possible(pattern, form(tool).shape)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(SYNTAX, max_size=8).map("".join), calls())
def test_a_match_that_is_called_open_ended_survives_what_follows(
    pattern: str, call: tuple[str, str]
) -> None:
    tool, text = call
    found = compiled(pattern)
    try:
        parts = alternatives(pattern, Budget(10_000))
    except Beyond:
        return
    if all(part.open_ended for part in parts) and found.found_in(form(tool).opening.encode()):
        assert found.found_in(text.encode())


# --- the shapes


@settings(deadline=None)
@given(calls())
def test_every_call_has_the_shape_of_its_tool(call: tuple[str, str]) -> None:
    tool, text = call
    budget = Budget(1_000_000)
    (whole,) = alternatives(f"^{re2.escape(text)}$", budget)
    assert form(tool).shape.can_hold(whole.node, budget)
    assert ANY_FORM.shape.can_hold(whole.node, budget)
    assert text.startswith(form(tool).opening)


@pytest.mark.parametrize("tool", list(FORMS))
def test_the_example_has_the_shape_it_is_an_example_of(tool: str) -> None:
    shape, example = FORMS[tool].shape, FORMS[tool].example
    assert possible(f"^{re2.escape(example)}$", shape)
    assert canonical_json(json.loads(example)) == example


# --- exact answers


@pytest.mark.parametrize(
    ("pattern", "tool", "expected"),
    [
        ("git", "bash", True),
        ("^git", "bash", False),
        ("^{", "bash", True),
        (r"^\{", "read", True),
        (r'^\{"command":"', "bash", True),
        (r'^\{"command":"', "read", False),
        (r'^\{"path":"/etc', "read", True),
        ("ls$", "bash", False),
        (r"\}$", "bash", True),
        (r'ls"\}$', "bash", True),
        (r'^\{"command":"ls"\}$', "bash", True),
        (r'^\{"command":"ls"$', "bash", False),
        ('"command": "', "bash", False),
        (r'"command":\s*"', "bash", True),
        (r'"command":\s+"', "bash", False),
        (r'\\"command\\": ', "bash", True),
        ("\n", "bash", False),
        (r"\n", "bash", False),
        (r"\\n", "bash", True),
        (r"a\x00b", "bash", False),
        (r'^\{"path":"', "bash", False),
        (r'\\"path\\":\\"', "bash", True),
        (r'"content":"[^"]*","path"', "write", False),
        (r'"content":".*"path"', "write", True),  # the content may be \"path
        (r'"path":".*"content":', "write", True),
        (r'"include":"\*\.py"', "grep", True),
        (r'"ignore_case":true', "grep", True),
        (r'"ignore_case":1', "grep", False),
        ("x{3}", "bash", True),
        ("(x{30}){30}", "bash", True),
        ("^.{2,5}git", "bash", False),
        ("^.{12}git", "bash", True),
        ("é", "bash", True),
        (r"\pL+", "bash", True),
        ("(?i)COMMAND", "bash", True),
        ('^."COMMAND"', "bash", False),
        ('(?i)^."COMMAND"', "bash", True),
        ("^$", "other", False),
        (r"^\{\}$", "other", True),
        (r"^\{\}$", "bash", False),
        ("^https", "other", False),
        (r"\]$", "other", False),
        (r"[^\x00-\x{10ffff}]", "other", True),  # as far as this can tell
    ],
)
def test_what_a_call_can_hold(pattern: str, tool: str, expected: bool) -> None:
    assert possible(pattern, form(tool).shape) is expected


def test_an_edge_can_be_ignored_to_see_whether_it_is_why() -> None:
    budget = Budget(10_000)
    (part,) = alternatives("^ls$", budget)
    shape = FORMS["bash"].shape
    assert not shape.can_hold(part.node, budget)
    assert not shape.can_hold(part.node, budget, ignoring=[Edge.START])
    assert not shape.can_hold(part.node, budget, ignoring=[Edge.END])
    assert shape.can_hold(part.node, budget, ignoring=[Edge.START, Edge.END])


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("a|b", ["a", "b"]),
        ("a(b|c)|[|]|\\|", ["a(b|c)", "[|]", "\\|"]),
        ("a\\Q|\\E|b", ["a\\Q|\\E", "b"]),
        ("", [""]),
        ("|", ["", ""]),
    ],
)
def test_alternatives_are_split_at_the_top_only(pattern: str, texts: list[str]) -> None:
    assert [part.text for part in alternatives(pattern, Budget(100))] == texts


def test_a_flag_reaches_the_alternatives_that_follow() -> None:
    assert possible('zz|^."COMMAND"', FORMS["bash"].shape) is True
    parts = alternatives('(?i)zz|^."COMMAND"', Budget(100))
    assert FORMS["bash"].shape.can_hold(parts[1].node, Budget(10_000))


UNREADABLE = [
    "(" * 50 + ")" * 50, "((a{16}){16}){16}", "a{01}", "\\y", "(?=a)", "(", "[", ")", "[[:x:]]",
    "*", "\\Q\\E", "\\p{", "[a", "[a-", "\\", "^(?i){2}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_what_can_not_be_read_is_not_judged(pattern: str) -> None:
    with pytest.raises(Beyond):
        possible(pattern, ANY_FORM.shape)


def test_a_question_ends_with_its_budget() -> None:
    (part,) = alternatives("^(a*b*c*)*x", Budget(100))
    with pytest.raises(Beyond, match="out of steps"):
        ANY_FORM.shape.can_hold(part.node, Budget(20))


CLASSES = [
    "[[:alnum:]]", "[[:alpha:]]", "[[:ascii:]]", "[[:blank:]]", "[[:cntrl:]]", "[[:digit:]]",
    "[[:graph:]]", "[[:lower:]]", "[[:print:]]", "[[:punct:]]", "[[:space:]]", "[[:upper:]]",
    "[[:word:]]", "[[:xdigit:]]", "[[:^alnum:]]", "[[:^cntrl:]]", "[[:^punct:]]", "[^[:^space:]]",
    r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", "(?s).", r"\a", r"\f\z", r"\v", r"\x41", r"\101",
    r"\0", r"\07", r"[\]\-x]", "[]x]", "[^]x]", "[a-f-]", "[+--]", r"[^\d\s]", r"[\x20-\x{e9}]",
    "(?i)k", "(?i)[^k]", r"(?i)\W", r"(?i)[\D]", "(?i)[a-c]", "(?i)[^[:^upper:]]",
    "(?i)[[:^lower:]]",
]  # fmt: skip


@pytest.mark.parametrize("written", CLASSES)
def test_classes_are_those_of_re2(written: str) -> None:
    """Every ASCII character is in the class as read here exactly if RE2 has it there."""
    pattern = Pattern.compile(f"^(?:{written})")
    budget = Budget(1_000_000)
    (part,) = alternatives(f"^x(?:{written})", budget)
    for character in map(chr, range(128)):
        shape = Shape(f"x\\x{{{ord(character):x}}}")
        assert shape.can_hold(part.node, budget) is pattern.found_in(character.encode()), character
