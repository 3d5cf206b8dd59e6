"""From what a model wrote to arguments that can be trusted to fit the schema.

Strict, because whoever decides about a call must see what will run, and nothing else: one
reading of the text, no coercion, no property that nobody asked for. Policy and audit see the
decoded value and its canonical JSON, never the text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from runner.tools.base import Tool, go_quote

MAX_INPUT_BYTES = 2_000_000
"""The longest input, as UTF-8 JSON. Room for a 1.5 MiB command with its escapes; the wire
format, the command lines that the kernel takes and the audit have more, so that what is valid
here is not refused further down."""
PATH = "path"
"""The property that says where a tool acts."""
MAX_DEPTH = 64
"""Arrays and objects inside each other; Python's decoder gives up at about a thousand."""
MAX_NUMBER_CHARACTERS = 1000
"""Longer integers take quadratic time to read, and Python refuses them from 4,300 digits."""


class InvalidInput(Exception):
    """An input that does not fit its tool's schema; the message starts with the tool's name."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A valid input."""

    arguments: dict[str, Any]
    """What was given, in the schema's order. Nothing is added but the default of `path`: rules
    for paths, the record and people have to see where a call acts."""
    canonical: str
    """The same as JSON: compact, characters unescaped."""
    input: BaseModel
    """The same as the tool takes it."""


def decode(tool: Tool, raw: str | bytes | Mapping[str, Any]) -> Decoded:
    """Check an input against a tool's schema.

    Args:
        tool: Whose input it is.
        raw: The model's JSON, or a mapping of JSON values, which goes through the same checks.

    Raises:
        InvalidInput: It is too large, no JSON object, or does not fit the model.
    """
    try:
        plain = _plain(raw)
        text = _text(raw if plain is None else _write(plain))
        value = _parse(text) if plain is None else plain
        _refuse_unknown(value, tool.input, "")
        try:
            # As JSON, so that a model's dates and enumerations are read from their strings.
            parsed = tool.input.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise InvalidInput(_explain(error, value)) from error
        arguments = _in_order(_with_path(value, parsed), parsed, "")
    except InvalidInput as error:
        raise InvalidInput(f"{tool.name}: {error}") from error.__cause__
    done = plain is not None and list(plain) == list(arguments)
    return Decoded(arguments, text if done else _canonical(arguments), parsed)


def _plain(raw: Any) -> dict[str, Any] | None:
    """A mapping that is what reading its JSON would give, so that this can be spared.

    A megabyte takes a millisecond to read and another to write.
    """
    if isinstance(raw, Mapping) and all(
        type(name) is str and type(value) in (str, bool, int, type(None))
        for name, value in raw.items()
    ):
        return dict(raw)
    return None


def _write(plain: dict[str, Any]) -> str:
    """What `_canonical` gives for it, in a third of the time."""
    try:
        return to_json(plain).decode()
    except PydanticSerializationError as error:
        raise InvalidInput("invalid JSON: half of a surrogate pair") from error


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(raw: Any) -> str:
    """The input as JSON text of a bearable size."""
    if isinstance(raw, Mapping):
        try:
            text = json.dumps(dict(raw), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"invalid JSON: {error}") from error
    elif isinstance(raw, bytes):
        if len(raw) > MAX_INPUT_BYTES:
            raise InvalidInput(_too_large(len(raw)))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"invalid JSON: not UTF-8: {error.reason}") from error
    elif isinstance(raw, str):
        text = raw
    else:
        raise InvalidInput("input must be an object")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput("invalid JSON: half of a surrogate pair") from error
    if size > MAX_INPUT_BYTES:
        raise InvalidInput(_too_large(size))
    return text


def _too_large(size: int) -> str:
    return f"input too large: {size} bytes, the limit is {MAX_INPUT_BYTES}"


def _parse(text: str) -> dict[str, Any]:
    """The object that a JSON text is, under rules that Python's decoder leaves open."""
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_float,
        )
        if "\\u" in text:
            _canonical(value).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("invalid JSON: half of a surrogate pair") from error
    except RecursionError as error:
        raise InvalidInput(f"invalid JSON: more than {MAX_DEPTH} levels") from error
    except ValueError as error:
        if text.lstrip(" \t\r\n")[:1] not in ("{", "\ufeff"):
            raise InvalidInput(f"input must be an object, in JSON: {error}") from error
        raise InvalidInput(f"invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput("input must be an object")
    _refuse_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"duplicate property {go_quote(name)}")
            seen.add(name)
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ValueError(f"a number of {len(text)} characters")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number beyond the range of a double")
    return value


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise InvalidInput(f"invalid JSON: more than {MAX_DEPTH} levels")


def properties(model: type[BaseModel]) -> dict[str, str]:
    """The names that a model's input may have, in order, and the attributes they become."""
    names = {}
    for attribute, field in model.model_fields.items():
        alias = field.validation_alias
        names[alias if isinstance(alias, str) else attribute] = attribute
    return names


def _refuse_unknown(value: dict[str, Any], model: type[BaseModel], place: str) -> None:
    if model.model_config.get("extra") == "allow":
        return
    accepted = properties(model)
    for name in value:
        if name not in accepted:
            names = ", ".join(accepted) or "none"
            unknown = go_quote(_below(place, name))
            raise InvalidInput(f"unknown property {unknown}; accepted: {names}")


def _with_path(value: dict[str, Any], parsed: BaseModel) -> dict[str, Any]:
    """An input with the path that its tool takes where none is given, if it takes one."""
    attribute = None if PATH in value else properties(type(parsed)).get(PATH)
    default = None if attribute is None else getattr(parsed, attribute)
    return {**value, PATH: default} if isinstance(default, str) else value


def _in_order(value: Any, parsed: Any, place: str) -> Any:
    """A value with each object's properties in the order of the model that took it.

    Raises:
        InvalidInput: A model inside the input would have passed over a property.
    """
    if isinstance(parsed, BaseModel) and isinstance(value, dict):
        _refuse_unknown(value, type(parsed), place)
        known = {
            name: _in_order(value[name], getattr(parsed, attribute), _below(place, name))
            for name, attribute in properties(type(parsed)).items()
            if name in value
        }
        return known | {name: item for name, item in value.items() if name not in known}
    if isinstance(parsed, dict) and isinstance(value, dict):
        return {
            name: _in_order(item, parsed.get(name), _below(place, name))
            for name, item in value.items()
        }
    if isinstance(parsed, list | tuple) and isinstance(value, list) and len(parsed) == len(value):
        return [
            _in_order(item, parsed[index], f"{place}[{index}]") for index, item in enumerate(value)
        ]
    return value


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


_MUST_BE = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "list_type": "an array",
    "tuple_type": "an array",
    "set_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "none_required": "null",
}
"""pydantic's types of errors, in the words of JSON."""


def _explain(error: ValidationError, value: Any) -> str:
    """What is wrong with the first property that has something wrong, on one line."""
    details = error.errors(include_url=False)
    place = _place(details[0], value)
    # A property that may be one of several types has an error for each of them.
    here = [detail for detail in details if _place(detail, value) == place]
    kinds = [_MUST_BE[detail["type"]] for detail in here if detail["type"] in _MUST_BE]
    if len(kinds) == len(here):
        return f"{place or 'input'} must be {' or '.join(dict.fromkeys(kinds))}"
    detail = here[0]
    match detail["type"]:
        case "missing":
            return f"{place} is required"
        case "extra_forbidden":
            return f"unknown property {go_quote(place)}"
        case "tool_input":
            return f"{place} {detail['msg']}".lstrip()
        case "value_error" | "assertion_error":
            message = str(detail["ctx"]["error"])
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
    message = " ".join(message.split())
    return f"{place}: {message}" if place else message


def _place(detail: ErrorDetails, value: Any) -> str:
    """Where an error is: `a.b[0]`. What pydantic adds for branches of unions is left out."""
    place = ""
    last = len(detail["loc"]) - 1
    for index, part in enumerate(detail["loc"]):
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            place, value = f"{place}[{part}]", value[part]
        elif isinstance(value, dict) and (
            part in value or (detail["type"] == "missing" and index == last)
        ):
            place = _below(place, str(part))
            value = value.get(part)
    return place
