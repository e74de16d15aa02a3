"""Recursion without Python's stack: what follows operands may go as deep as a network has layers, or a body has scalars."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from typing import Any, TypeVar

__all__ = ["Steps", "evaluate", "postorder"]

T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""A computation of a `T` that yields the computations which it needs, one or a list, and is sent their results."""


def postorder(
    roots: Iterable[T], below: Callable[[T], Iterable[T]], key: Callable[[T], Hashable] = lambda node: node
) -> Iterator[T]:
    """What can be reached from `roots` by `below`, each node once and after all that is below it.

    Args:
        below: asked once for each node, before what is below it. In a cycle a node that was begun is not begun again.
        key: what tells nodes apart.
    """
    seen: set[Hashable] = set()
    stack: list[tuple[list[T], Iterator[T]]] = [([], iter(roots))]
    while stack:
        above, rest = stack[-1]
        for node in rest:
            if (name := key(node)) not in seen:
                seen.add(name)
                stack.append(([node], iter(below(node))))
                break
        else:
            stack.pop()
            yield from above


def evaluate(steps: Steps[T]) -> T:
    """The result of a computation, with those that wait for others on a list.

    An exception goes through the computations that wait, innermost first, as it goes through functions.
    """
    stack: list[Steps[Any]] = [steps]
    result: Any = None
    error: BaseException | None = None
    while stack:
        try:
            needed = stack[-1].send(result) if error is None else stack[-1].throw(error)
        except StopIteration as stop:
            stack.pop()
            result, error = stop.value, None
        except BaseException as raised:
            stack.pop()
            result, error = None, raised
        else:
            stack.append(_each(needed) if isinstance(needed, list) else needed)
            result = error = None
    if error is not None:
        raise error
    return result


def _each(needed: list[Steps[Any]]) -> Steps[list[Any]]:
    results = []
    for steps in needed:
        results.append((yield steps))
    return results
