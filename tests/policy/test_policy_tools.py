"""The policy's table of the built-in tools' fields is that of the tools themselves."""

import json
from typing import Any

from runner.policy.matching import canonical_json
from runner.policy.shapes import EXTENDED, FIELDS, FORMS
from runner.tools import ToolSet, decode, default_registry, named_registry


def schemas(name: ToolSet) -> dict[str, dict[str, Any]]:
    return {
        definition["name"]: definition["input_schema"]
        for definition in named_registry(name).definitions("anthropic")
    }


def test_the_table_has_the_fields_of_the_five_tools_in_either_set() -> None:
    five, extended = schemas("rousseau"), schemas("extended")
    assert FIELDS.keys() == five.keys()
    for name, fields in FIELDS.items():
        assert [field for field, _ in fields.required] == extended[name]["required"]
        assert five[name]["required"] == extended[name]["required"]
        assert dict(fields.required + fields.optional) == {
            field: schema["type"] for field, schema in extended[name]["properties"].items()
        }
        assert five[name]["properties"].keys() <= extended[name]["properties"].keys()


def test_the_table_has_the_names_of_all_other_tools() -> None:
    assert schemas("extended").keys() == FIELDS.keys() | EXTENDED


def test_the_tools_and_the_policy_write_the_same_json() -> None:
    for tool in default_registry():
        decoded = decode(tool, FORMS[tool.name].example)
        assert decoded.canonical == FORMS[tool.name].example
        assert canonical_json(decoded.arguments) == decoded.canonical


def test_fields_are_in_the_order_of_the_schema_however_they_are_sent() -> None:
    for tool in default_registry():
        sent = dict(reversed(json.loads(FORMS[tool.name].example).items()))
        assert decode(tool, sent).canonical == FORMS[tool.name].example


def test_text_is_written_the_same_by_both() -> None:
    bash = default_registry().get("bash")
    assert bash is not None
    command = "".join(map(chr, range(1, 0x300))) + "\u2028\u2029€😀\x7f</script>"
    decoded = decode(bash, {"command": command})
    assert canonical_json(decoded.arguments) == decoded.canonical
