"""Functions of a call's tensors with a line of code for each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from kitsune_mlir.runtime.results import ALIGNMENT

__all__ = ["unrolled"]


@functools.cache
def unrolled(
    inputs: int, results: int, strided: Sequence[tuple[int, int, int, int]]
) -> Callable[..., Callable[[Sequence[Any]], Any]]:
    """Makes, of the weights' pointers, what allocates, and what each result is, a function from so many tensors to pointers and
    new results (None where a tensor is not aligned, or memory that is read beside it is not there). A line for each of them:
    loops take as long again as what they call.

    Args:
        strided: of inputs that lie in dense tensors, the number, what lies before the first element, in elements and bytes, and
            bytes of the dense tensor up to the last one that is read.
    """
    tensors, outputs = [f"x{n}" for n in range(inputs)], [f"r{n}" for n in range(results)]
    addresses = [f"p{n}" for n in range(inputs)]
    lines = ["def make(weights, empty, sizes):"]
    lines += [f"    shape{n}, stride{n}, dtype{n} = sizes[{n}]" for n in range(results)]
    lines += ["    def bind(args):", f"        [{', '.join(tensors)}] = args"]
    before = {n: size for n, _, size, _ in strided}
    lines += [f"        p{n} = x{n}.data_ptr(){f' - {before[n]}' if before.get(n) else ''}" for n in range(inputs)]
    for n, elements, size, reach in strided:
        lines.append(f"        offset = x{n}.storage_offset()")
        lines.append(f"        end = offset * x{n}.element_size() + {reach - size}")
        lines.append(f"        if offset < {elements} or end > x{n}.untyped_storage().nbytes(): return None")
    lines += [f"        if ({' | '.join(addresses) or 0}) % {ALIGNMENT}: return None"]
    lines += [f"        r{n} = empty(shape{n}, stride{n}, dtype{n})" for n in range(results)]
    pointers = ["*weights", *addresses, *(f"{name}.data_ptr()" for name in outputs)]
    lines += [f"        return ({', '.join(pointers)},), [{', '.join(outputs)}]", "    return bind"]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    return made["make"]
