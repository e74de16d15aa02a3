"""Structures of arguments and outputs as text: pytrees, with the named tuples that torch's operators return among them."""

from __future__ import annotations

import enum
import functools
import json
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["call_words", "difference", "leaf_name", "structure_of", "structure_text", "words_of"]

LONGEST = 400
"""Characters of a structure in words; the rest is left out."""


def structure_text(spec: Any) -> str:
    """A pytree spec as text.

    Raises:
        NotImplementedError: it holds a type that cannot be written down.
    """
    from torch.utils import _pytree as pytree

    _name_return_types()
    return pytree.treespec_dumps(spec)


def structure_of(text: str) -> Any:
    """The inverse of `structure_text`. Imports no module that the text names, and calls nothing of one.

    Raises:
        ValueError: the text is no structure, or holds a type that this process does not know.
    """
    from torch.utils import _pytree as pytree

    _name_return_types()
    try:
        _, written = json.loads(text)
        _check_names(written)
        spec = pytree.treespec_loads(text)
        _check_nodes(spec)
        return spec
    except Exception as error:  # a registered type reads its own part of the text, and fails in its own way
        raise ValueError(f"a structure of arguments or outputs cannot be read: {type(error).__name__}: {error}") from error


def call_words(spec: Any, leaves: Sequence[str]) -> str:
    """The arguments of a call in Python's notation: "(tensor, {'a': tensor}, scale=3)".

    Args:
        spec: pytree spec of `(args, kwargs)`.
        leaves: words for each of its leaves.
    """
    words = iter(leaves)
    args, kwargs = spec.children()
    parts = [_words(child, words) for child in args.children()]
    parts += [f"{name}={_words(child, words)}" for name, child in zip(kwargs.context, kwargs.children(), strict=True)]
    text = f"({', '.join(parts)})"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(leaves)} values)"


def difference(wanted: Any, given: Any, parameters: Sequence[str]) -> str:
    """How the arguments of a call differ from those that are wanted, in words; "" where they do not.

    Args:
        wanted, given: pytree specs of `(args, kwargs)`.
        parameters: names of the positional arguments that have one.
    """
    (args, kwargs), (own_args, own_kwargs) = wanted.children(), given.children()
    takes = {_position(n, parameters): spec for n, spec in enumerate(args.children())}
    has = {_position(n, parameters): spec for n, spec in enumerate(own_args.children())}
    takes |= dict(zip(kwargs.context, kwargs.children(), strict=True))
    twice = [f"{_named(name)} is given twice" for name in own_kwargs.context if name in has]
    has |= dict(zip(own_kwargs.context, own_kwargs.children(), strict=True))
    missing = [f"{_named(name)} is missing" for name in takes if name not in has]
    found = [_difference(spec, has[name], name) for name, spec in takes.items() if name in has]
    found += [f"there is no {_named(name)}" for name in has if name not in takes]
    return " and ".join(filter(None, [*twice, *missing, *found]))


def leaf_name(spec: Any, position: int, parameters: Sequence[str]) -> str:
    """A leaf of the arguments in words: "argument 'x'", "argument pair['b'][0]"; `spec` as `wanted` for `difference`."""
    from torch.utils import _pytree as pytree

    try:
        leaves = spec.unflatten(range(spec.num_leaves))
        path = next(path for path, leaf in pytree.tree_flatten_with_path(leaves)[0] if leaf == position)
    except Exception:  # a registered type makes its objects in its own way, and may have no names for its parts
        return f"leaf {position} of the arguments"
    number = getattr(path[1], "idx", None)
    return _named(path[1].key if number is None else _position(number, parameters), pytree.keystr(path[2:]))


def _position(number: int, parameters: Sequence[str]) -> str:
    return parameters[number] if number < len(parameters) else f"args[{number}]"


def _named(name: str, path: str = "") -> str:
    return f"argument {name}{path}" if path else f"argument '{name}'"


def _difference(wanted: Any, given: Any, name: str, path: str = "") -> str:
    """Where two structures differ first."""
    if wanted == given:
        return ""
    same = (wanted.type, wanted.context) == (given.type, given.context) and wanted.num_children == given.num_children
    if not same or wanted.type not in (tuple, list, dict):
        return f"{_named(name, path)} is {words_of(given)} and not {words_of(wanted)}"
    keys = wanted.context if wanted.type is dict else range(wanted.num_children)
    pairs = zip(keys, wanted.children(), given.children(), strict=True)
    return next(filter(None, (_difference(one, other, name, f"{path}[{key!r}]") for key, one, other in pairs)))


def words_of(spec: Any) -> str:
    """A structure of tensors in Python's notation."""
    return _words(spec, iter(["tensor"] * spec.num_leaves))


def _words(spec: Any, leaves: Iterator[str]) -> str:
    """A structure in Python's notation, with words for its leaves."""
    if spec.is_leaf():
        return next(leaves)
    kind, context = spec.type, spec.context
    parts = [_words(child, leaves) for child in spec.children()]
    listed = ", ".join(parts)
    if kind is tuple:
        return f"({listed},)" if len(parts) == 1 else f"({listed})"
    if kind is list:
        return f"[{listed}]"
    if kind is deque:
        return f"deque([{listed}])"
    if kind in (dict, OrderedDict, defaultdict):
        keys = context[1] if kind is defaultdict else context
        text = "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(keys, parts, strict=True)) + "}"
        return text if kind is dict else f"{kind.__name__}({text})"
    owner = context if kind is namedtuple else kind
    names = getattr(owner, "_fields", None) or getattr(owner, "__match_args__", ())
    if len(names) == len(parts):
        listed = ", ".join(f"{name}={part}" for name, part in zip(names, parts, strict=True))
    return f"{owner.__name__}({listed})"


def _check_names(written: Any) -> None:
    """Refuse texts that would make pytree import a module, or take something of one that is no type."""
    if isinstance(written, list):
        for item in written:
            _check_names(item)
    if not isinstance(written, dict):
        return
    if "__enum__" in written:
        module, _, name = written["fqn"].partition(":")
        _known(module, name, enum.Enum)
    if "default_factory_module" in written:
        _known(written["default_factory_module"], written["default_factory_name"], object)
    for item in written.values():
        _check_names(item)
    if isinstance(context := written.get("context"), str):  # JSON in a text, or a name
        try:
            inner = json.loads(context)
        except ValueError:
            return
        _check_names(inner)


def _known(module: str, name: str, kind: type) -> None:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, kind):
        raise ValueError(f"'{module}.{name}' is no type that is known here")


def _check_nodes(spec: Any) -> None:
    """Names and values of a dictionary are as many."""
    if spec.type in (dict, OrderedDict, defaultdict):
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        if not isinstance(keys, list) or len(set(keys)) != len(keys) or len(keys) != spec.num_children:
            raise ValueError(f"{spec.num_children} values have the names {keys}")
    elif spec.type in (tuple, list) and spec.context is not None:
        raise ValueError(f"a {spec.type.__name__} has the names {spec.context}")
    for child in spec.children():
        _check_nodes(child)


@functools.cache
def _name_return_types() -> None:
    """Give torch.return_types (of `sort`, `max`, ...) names in texts. torch registers them as pytrees, but without a name."""
    from torch import return_types
    from torch.utils import _pytree as pytree

    for cls in return_types.all_return_types:
        node = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
        if node is not None and node.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
            name = f"torch.return_types.{cls.__name__}"
            pytree.SUPPORTED_SERIALIZED_TYPES[cls] = node._replace(serialized_type_name=name)
            pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = cls
