"""The policy's table of the built-in tools' fields is that of the tools themselves."""

import json

from runner.policy.matching import canonical_json
from runner.policy.shapes import FIELDS, FORMS
from runner.tools import decode, default_registry


def test_the_table_has_the_fields_of_every_built_in_tool() -> None:
    schemas = {
        definition["name"]: definition["input_schema"]
        for definition in default_registry().definitions("anthropic")
    }
    assert FIELDS.keys() == schemas.keys()
    for name, fields in FIELDS.items():
        properties = schemas[name]["properties"]
        assert [field for field, _ in fields.required] == schemas[name]["required"]
        assert dict(fields.required + fields.optional) == {
            field: schema["type"] for field, schema in properties.items()
        }


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
