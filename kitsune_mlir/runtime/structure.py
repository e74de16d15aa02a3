"""Structures of arguments and outputs as text: pytrees, with the named tuples that torch's operators return among them."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["structure_of", "structure_text"]


def structure_text(spec: Any) -> str:
    """A pytree spec as text.

    Raises:
        NotImplementedError: it holds a type that cannot be written down.
    """
    from torch.utils import _pytree as pytree

    _name_return_types()
    return pytree.treespec_dumps(spec)


def structure_of(text: str) -> Any:
    """The inverse of `structure_text`."""
    from torch.utils import _pytree as pytree

    _name_return_types()
    return pytree.treespec_loads(text)


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
