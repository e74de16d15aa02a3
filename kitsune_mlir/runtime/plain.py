"""Plain data, as JSON gives it, to dataclasses: every value is checked against the type of its field.

JSON has no tuples and no whole numbers as keys: a list becomes the tuple that a field asks for, and "3" the key 3. Nothing else
is converted: `true` is no number, and 1.0 no whole one.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any

__all__ = ["record", "shown"]

_SIMPLE = (int, str, bool, float)

SHOWN = 60  # characters of a value in a message


def record(cls: type, data: Any, where: str) -> Any:
    """A `cls`, a dataclass, from a mapping with a value for each of its fields; those with a default may be missing.

    Args:
        where: what it is, for messages: "the signature".

    Raises:
        ValueError: the data is no such thing; the message says which value, and what was expected.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {shown(data)}, not a mapping")
    fields = _fields(cls)
    for name in data:
        if name not in fields:
            raise ValueError(f"{where} has an unknown entry {shown(name)}")
    for name, (_, needed) in fields.items():
        if needed and name not in data:
            raise ValueError(f"{where} has no '{name}'")
    return cls(**{name: _field(value, fields[name][0], name, where) for name, value in data.items()})


def _field(value: Any, hint: Any, name: str, where: str) -> Any:
    if type(value) is hint:  # most are
        return value
    return _typed(value, hint, f"'{name}' of {where}")


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@functools.cache
def _fields(cls: type) -> dict[str, tuple[Any, bool]]:
    """Type of each field, and whether it has no default."""
    hints, missing = typing.get_type_hints(cls), dataclasses.MISSING
    return {f.name: (hints[f.name], f.default is missing and f.default_factory is missing) for f in dataclasses.fields(cls)}


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The value as the type wants it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):  # of a type and None only
        return None if value is None else _typed(value, next(i for i in inner if i is not types.NoneType), where)
    if dataclasses.is_dataclass(hint):
        return record(typing.cast(type, hint), value, where)
    if origin is tuple and isinstance(value, list | tuple):
        if inner[1:] == (...,):
            if inner[0] in _SIMPLE and all(type(item) is inner[0] for item in value):
                return tuple(value)
            return tuple(_typed(item, inner[0], f"number {n} in {where}") for n, item in enumerate(value))
        if len(value) == len(inner):
            return tuple(_typed(item, inner[n], f"number {n} in {where}") for n, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {_key(key, inner[0], where): _typed(item, inner[1], f"entry {key} in {where}") for key, item in value.items()}
    if origin is None and type(value) is hint:
        return value
    raise ValueError(f"{where} is {shown(value)}, where {_named(hint)} was expected")


def _key(key: Any, hint: Any, where: str) -> Any:
    if hint is not int:
        return key
    if not key.isdecimal() or not key.isascii() or str(int(key)) != key:
        raise ValueError(f"{where} has the entry {shown(key)}, where a number was expected")
    return int(key)


def _named(hint: Any) -> str:
    names = {int: "a whole number", str: "a text", bool: "true or false", float: "a number"}
    origin = typing.get_origin(hint)
    return names.get(hint) or ("a mapping" if origin is dict else "a list" if origin is tuple else str(hint))
