"""Options of passes: the fields of their dataclasses, read from text such as `max-ops=4 target=sm_90a fuse`."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from typing import Any

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.passes.base import Pass
from kitsune_mlir.passmanager.pipeline_text import PipelineError, split_options


@dataclasses.dataclass(frozen=True)
class Option:
    """One option as a user sees it: its name with dashes, its type in words, its default as it would be written."""

    name: str
    type: str
    default: str


def options_of(cls: type[Pass]) -> list[Option]:
    """The options of a pass, in the order of its fields."""
    hints = typing.get_type_hints(cls)
    return [Option(f.name.replace("_", "-"), _words(hints[f.name]), _written(_default(f))) for f in _fields(cls)]


def make_pass(cls: type[Pass], text: str = "", **inherited: Any) -> Pass:
    """The pass with the options in `text`; fields it does not name take `inherited`, then their own default.

    Names may be written with dashes or underscores; a boolean's name alone means true. PipelineError names the options there
    are when one is unknown, and the expected type when a value does not parse. `inherited` holds run-wide settings (target):
    those that are None, or no field of this pass, are left out.
    """
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in _fields(cls)}
    values: dict[str, Any] = {}
    for raw, value in split_options(text):
        name = raw.replace("-", "_")
        if name not in known:
            raise PipelineError(_unknown(cls, raw))
        if name in values:
            raise PipelineError(f"pass '{cls.name}': option '{raw}' is given twice")
        values[name] = _convert(cls, raw, hints[name], value)
    for name, value in inherited.items():
        if name in known and name not in values and value is not None:
            values[name] = _convert(cls, name, hints[name], value) if isinstance(value, str) else value
    missing = [f.name for f in known.values() if f.name not in values and _default(f) is dataclasses.MISSING]
    if missing:
        raise PipelineError(f"pass '{cls.name}' needs option '{missing[0].replace('_', '-')}'")
    try:
        return cls(**values)
    except ValueError as error:
        raise PipelineError(f"pass '{cls.name}': {error}") from error


def pass_text(pass_: Pass) -> str:
    """The pass as an element of a textual pipeline; options at their defaults are left out."""
    words = []
    for field in _fields(type(pass_)):
        value = getattr(pass_, field.name)
        if value != _default(field) and value is not None:
            words.append(f"{field.name.replace('_', '-')}={_written(value)}")
    return f"{pass_.name}{{{' '.join(words)}}}" if words else pass_.name


def _fields(cls: type[Pass]) -> list[dataclasses.Field]:
    return [f for f in dataclasses.fields(cls) if f.init]


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _unknown(cls: type[Pass], name: str) -> str:
    options = options_of(cls)
    names = [o.name for o in options]
    listed = ", ".join(f"{o.name} ({o.type})" for o in options) or "none"
    near = difflib.get_close_matches(name.replace("_", "-"), names, 1)
    rest = f"did you mean '{near[0]}'? Its options" if near else "its options"
    return f"pass '{cls.name}' has no option '{name}'; {rest}: {listed}"


def _convert(cls: type[Pass], name: str, hint: Any, text: str | None) -> Any:
    """The value of an option; `text` is None for a name without `=`."""
    hint = _without_none(hint)
    if text is None:
        if hint is bool:
            return True
        raise PipelineError(f"pass '{cls.name}': option '{name}' needs a value ({_words(hint)})")
    try:
        return _value(hint, text)
    except (ValueError, KitsuneError) as error:
        why = f": {error}" if isinstance(error, KitsuneError) else ""
        raise PipelineError(f"pass '{cls.name}': option '{name}' must be {_words(hint)}, got '{text}'{why}") from error


def _value(hint: Any, text: str) -> Any:
    """`text` as a value of type `hint`, or ValueError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is bool:
        return _BOOLS[text.lower()] if text.lower() in _BOOLS else _bad()
    if hint is int:
        return int(text, 0)
    if hint is float:
        return float(text)
    if hint is Target:
        return find_target(text)
    if origin is typing.Literal:
        return text if text in args else _bad()
    if origin in (list, tuple, frozenset):
        item = _without_none(args[0]) if args else str
        return origin(_value(item, word.strip()) for word in text.split(",") if word.strip())
    if hint in (str, typing.Any):
        return text
    raise TypeError(f"options of type {hint} cannot be written in a pipeline")


_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def _bad() -> Any:
    raise ValueError


def _without_none(hint: Any) -> Any:
    """`X | None` as `X`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _words(hint: Any) -> str:
    """A type as a user reads it: "integer", "list of integer", "one of a, b"."""
    hint = _without_none(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin in (list, tuple, frozenset):
        return f"list of {_words(args[0]) if args else 'string'}"
    names = {bool: "true or false", int: "integer", float: "number", str: "string", Target: "target"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _written(value: Any) -> str:
    """A value as it would be written in a pipeline."""
    if value is dataclasses.MISSING:
        return "(required)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple, frozenset)):
        return ",".join(_written(v) for v in value)
    if isinstance(value, Target):
        return value.name
    text = "" if value is None else str(value)
    return f"'{text}'" if any(c.isspace() for c in text) else text
