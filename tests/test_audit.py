"""The chain as values: whoever has the lines can check them, with nothing of ours."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import audit
from runner.audit import START, AuditEvent, Head, Link, Verifier, canonical, digest, link
from runner.errors import AuditBroken, ConfigurationError


@dataclass
class Call:
    """A record of a call, as far as the verifier asks."""

    is_open: bool
    values: tuple[object, ...]

    def digest(self) -> str:
        return digest(self.values)


def chain(*bodies: dict[str, Any], event: AuditEvent = AuditEvent.SESSION_SWEPT) -> list[Link]:
    head, rows = START, []
    for number, body in enumerate(bodies):
        row = link(head, at_us=number, event=event, session_id="s", call_id="", body=body)
        rows.append(row)
        head = Head(row.seq, row.hash)
    return rows


def verify(rows: list[Link], *, head: Head | None = None, expected: Head | None = None) -> int:
    verifier = Verifier(expected)
    for row in rows:
        verifier.feed(row, None)
    return verifier.close(head or Head(rows[-1].seq, rows[-1].hash), calls=0)


def test_the_form_of_a_row_does_not_change() -> None:
    row = link(
        Head(6, "ab" * 32),
        at_us=1_700_000_000_123_456,
        event=AuditEvent.TOOL_DENIED,
        session_id="s1",
        call_id="c1",
        body={"tool": "bash", "reason": "né\x7f\n", "exit_code": None, "duration_s": 0.25},
    )
    content = (
        '{"seq":7,"at_us":1700000000123456,"event":"tool.denied","session_id":"s1",'
        '"call_id":"c1","body":{"tool":"bash","reason":"n\\u00e9\\u007f\\n","exit_code":null,'
        f'"duration_s":0.25}},"previous":"{"ab" * 32}"}}'
    )
    digest_of_content = hashlib.sha256(content.encode("ascii")).hexdigest()
    assert row.hash == digest_of_content
    assert row.read().line == f'{content[:-1]},"hash":"{digest_of_content}"}}'
    assert row.read().at == 1_700_000_000.123456


def test_the_digest_of_a_record_does_not_change() -> None:
    text = '["c1",null,0.5,"\\u00e9"]'
    assert digest(["c1", None, 0.5, "é"]) == hashlib.sha256(text.encode()).hexdigest()


def test_exported_lines_can_be_checked_without_the_runner() -> None:
    previous = "0" * 64
    for row in chain({"a": 1}, {"b": 'x","hash":"y"}'}, {"c": "\u2028"}):
        line = row.read().line
        content, _, tail = line.rpartition(',"hash":"')
        assert hashlib.sha256(f"{content}}}".encode()).hexdigest() == tail[:-2]
        fields = json.loads(line)
        assert fields["previous"] == previous
        previous = fields["hash"]


def test_the_check_in_the_documentation_finds_a_changed_line() -> None:
    page = (Path(__file__).parents[1] / "docs" / "audit.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lines = [row.read().line for row in chain({"a": 1}, {"b": '","hash":"'}, {"c": "é"})]
    changed = [lines[0], lines[1].replace('"b"', '"x"'), lines[2]]
    for text, status in (
        (lines, 0),
        (changed, 1),
        (lines[1:], 1),
        ([lines[0], lines[2]], 1),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input="".join(f"{line}\n" for line in text),
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == status, done.stderr


def test_a_chain_verifies_whole_and_empty() -> None:
    assert verify(chain({}, {}, {})) == 3
    assert Verifier().close(START, calls=0) == 0
    assert Verifier(START).close(START, calls=0) == 0


def test_text_that_moves_between_columns_is_found() -> None:
    first, second = chain({}, {"a": 1})
    moved = second._replace(call_id='","body":{}', body='{"a":1}')
    with pytest.raises(AuditBroken, match="row 2 was changed"):
        verify([first, moved])
    typed = second._replace(at_us='1,"event":"x"')  # type: ignore[arg-type]
    with pytest.raises(AuditBroken, match="row 2 holds a value of another type"):
        verify([first, typed])


def test_rows_in_another_order_are_found() -> None:
    first, second, third = chain({"n": 1}, {"n": 2}, {"n": 3})
    with pytest.raises(AuditBroken) as caught:
        verify([first, third, second])
    assert caught.value.row == 2
    with pytest.raises(AuditBroken, match="no place") as caught:
        verify([first, second, second, third])
    assert caught.value.row == 2


def test_an_expected_head_is_found_anywhere_in_the_chain() -> None:
    rows = chain({"n": 1}, {"n": 2}, {"n": 3})
    for row in rows:
        assert verify(rows, expected=Head(row.seq, row.hash)) == 3
    with pytest.raises(AuditBroken, match="row 2 is not the one that was expected") as caught:
        verify(rows, expected=Head(2, rows[0].hash))
    assert caught.value.row == 2
    with pytest.raises(AuditBroken, match="row 4 is missing: there were 5"):
        verify(rows, expected=Head(5, rows[0].hash))
    with pytest.raises(AuditBroken):
        Verifier(Head(0, rows[0].hash))


def call_row(head: Head, event: AuditEvent, body: dict[str, Any]) -> Link:
    return link(head, at_us=0, event=event, session_id="s", call_id="c", body=body)


def test_a_call_is_compared_with_its_last_row_only() -> None:
    opened, done = Call(True, ("open",)), Call(False, ("done",))
    start = call_row(
        START,
        AuditEvent.TOOL_EXECUTE,
        {"arguments_sha256": "", "record": digest(("open",))},
    )
    head = Head(1, start.hash)
    end = call_row(head, AuditEvent.TOOL_RESULT, {"record": digest(("done",))})

    verifier = Verifier()
    verifier.feed(start, opened)
    assert verifier.close(head, calls=1) == 1

    verifier = Verifier()
    verifier.feed(start, done)
    verifier.feed(end, done)
    assert verifier.close(Head(2, end.hash), calls=1) == 2

    verifier = Verifier()
    verifier.feed(start, done)
    with pytest.raises(AuditBroken, match="row 2 disagrees with the record of the call 'c'"):
        verifier.feed(end, Call(False, ("other",)))
    with pytest.raises(AuditBroken, match="row 1 disagrees"):
        Verifier().feed(start, Call(True, ("other",)))
    with pytest.raises(AuditBroken, match="row 1 tells of the call 'c', whose record is missing"):
        Verifier().feed(start, None)


@pytest.mark.parametrize("body", ["{}", "[]", "3", "not json", '{"record":1'])
def test_a_row_of_a_call_that_nobody_here_writes_is_found(body: str) -> None:
    text = f'{{"seq":1,"at_us":0,"event":"tool.result","session_id":"s","call_id":"c","body":{body}'
    text += f',"previous":"{START.hash}"}}'
    hash_ = hashlib.sha256(text.encode()).hexdigest()
    row = Link(1, 0, "tool.result", "s", "c", body, START.hash, hash_)
    with pytest.raises(AuditBroken, match="row 1 is not what the runner writes"):
        Verifier().feed(row, Call(False, ()))


def test_calls_without_a_row_are_found() -> None:
    with pytest.raises(AuditBroken, match="records of 1 calls, of which the audit knows 0"):
        Verifier().close(START, calls=1)


def test_a_head_survives_being_written_down() -> None:
    head = Head(12, "0123456789abcdef" * 4)
    assert Head.parse(f" {head}\n") == head
    assert Head.parse(str(head).upper()) == head


@pytest.mark.parametrize(
    "text", ["", "12", "12:", f"x:{'a' * 64}", f"-1:{'a' * 64}", f"²:{'a' * 64}", f"1:{'g' * 64}"]
)
def test_what_is_not_a_head_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SEQ:HASH"):
        Head.parse(text)


def test_canonical_json_refuses_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"a": float("nan")})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(JSON)
def test_canonical_json_is_what_the_documented_encoder_makes(value: Any) -> None:
    documented = json.dumps(value, separators=(",", ":"))
    assert canonical(value) == documented.replace("\x7f", "\\u007f")
    assert digest([value]) == hashlib.sha256(f"[{documented}]".encode()).hexdigest()


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(),
        SimpleNamespace(c_make_encoder=None),
        SimpleNamespace(c_make_encoder=lambda: None),
    ],
    ids=["absent", "none", "changed"],
)
def test_a_python_without_the_inner_encoder_makes_the_same_json(
    module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "encoder", module)
    encode = audit._encoder(allow_nan=False, default=audit._refuse)
    value = {"a": [1, 0.1, None, True, "é\n"], "b": {}}
    assert encode(value) == canonical(value)
    with pytest.raises(TypeError, match="object is not JSON"):
        encode([object()])
