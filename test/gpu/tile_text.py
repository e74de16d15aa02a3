"""Pieces of tile programs as text: what the cases in `cases.py` are put together from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

ROW = "affine_map<(d0, d1) -> (d0)>"
COLUMN = "affine_map<(d0, d1) -> (d1)>"
BOTH = "affine_map<(d0, d1) -> (d0, d1)>"


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, its inputs as (shape, dtype, how they are filled), and what it computes.

    Fillings: "normal", "positive" (0.1 to 2.1), "index N" (integers below N), "signed N" (from -N on), "bool",
    "small" (integers from -9 to 9).
    """

    name: str
    text: str
    inputs: tuple[tuple[tuple[int, ...], str, str], ...]
    results: tuple[tuple[tuple[int, ...], str], ...]
    reference: Callable[..., Sequence[Any]]
    tolerance: float = 1e-5


def memref(shape: Sequence[int], dtype: str) -> str:
    return f"memref<{'x'.join(map(str, (*shape, dtype)))}>"


def tensor(shape: Sequence[int], dtype: str) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, dtype)))}>"


def program(name: str, inputs, results, body: str, arena: int = 256) -> str:
    """The function: arguments %x0, %x1, ... and %y0, %y1, ... and %arena."""
    declared = [f"%x{n}: {memref(shape, dtype)}" for n, (shape, dtype, _) in enumerate(inputs)]
    declared += [f"%y{n}: {memref(shape, dtype)}" for n, (shape, dtype) in enumerate(results)]
    return f"""
func.func @{name}({", ".join(declared)}, %arena: memref<{arena}xi8>)
    attributes {{kitsune.program, kitsune.arguments = {len(inputs)} : i64, kitsune.results = {len(results)} : i64}} {{
{body}
  return
}}
"""


def task(name: str, grid: Sequence[int], body: str, engine: str = "generic") -> str:
    """A task; its coordinates are %i, %j, %k."""
    arguments = ", ".join(f"%{c}: index" for c in "ijk"[: len(grid)])
    return f"""
  "kitsune.task"() ({{
  ^bb0({arguments}):
{body}
    "kitsune.yield"() : () -> ()
  }}) {{sym_name = "{name}", grid = array<i64: {", ".join(map(str, grid))}>, engine = "{engine}"}} : () -> ()
"""


def whole(name: str, source: str, shape, dtype: str) -> str:
    """Load a whole buffer."""
    return f"    %{name} = bufferization.to_tensor %{source} restrict : {memref(shape, dtype)} to {tensor(shape, dtype)}\n"


def _row_view(source: str, shape, tile: int, dtype: str, offset: str) -> tuple[str, str]:
    """The type of a window of rows, and the operation that makes it."""
    view = f"memref<{tile}x{shape[1]}x{dtype}, strided<[{shape[1]}, 1], offset: ?>>"
    window = f"[%{offset}, 0] [{tile}, {shape[1]}] [1, 1]"
    return view, f"memref.subview %{source}{window} : {memref(shape, dtype)} to {view}"


def rows(name: str, source: str, shape, tile: int, dtype: str, offset: str = "off") -> str:
    """Load rows [%offset, %offset + tile) of a matrix."""
    view, subview = _row_view(source, shape, tile, dtype, offset)
    return f"""    %{name}_v = {subview}
    %{name} = bufferization.to_tensor %{name}_v restrict : {view} to {tensor((tile, shape[1]), dtype)}
"""


def store(value: str, target: str, shape, dtype: str) -> str:
    """Store a whole buffer."""
    return (
        f"    bufferization.materialize_in_destination %{value} in restrict writable %{target} : "
        f"({tensor(shape, dtype)}, {memref(shape, dtype)}) -> ()\n"
    )


def store_rows(value: str, target: str, shape, tile: int, dtype: str, offset: str = "off") -> str:
    """Store rows [%offset, %offset + tile) of a matrix."""
    view, subview = _row_view(target, shape, tile, dtype, offset)
    return f"""    %{value}_{target} = {subview}
    bufferization.materialize_in_destination %{value} in restrict writable %{value}_{target} :
      ({tensor((tile, shape[1]), dtype)}, {view}) -> ()
"""


def offset(tile: int, limit: int | None = None) -> str:
    """%off = %i * tile, shifted back to `limit` where given (ragged sizes)."""
    text = f"    %tile = arith.constant {tile} : index\n    %raw = arith.muli %i, %tile : index\n"
    if limit is None:
        return text + "    %zero_ix = arith.constant 0 : index\n    %off = arith.addi %raw, %zero_ix : index\n"
    return text + f"    %limit = arith.constant {limit} : index\n    %off = arith.minsi %raw, %limit : index\n"


def wait(sem: str, lo: str, hi: str, count: int = 1) -> str:
    return f'    "kitsune.wait"(%{sem}, %{lo}, %{hi}) {{count = {count} : i64}} : (!kitsune.semaphore, index, index) -> ()\n'


def wait_one(sem: str, slot: str = "i") -> str:
    """Wait for one slot."""
    return f"    %one_{sem} = arith.constant 1 : index\n    %next_{sem} = arith.addi %{slot}, %one_{sem} : index\n" + wait(
        sem, slot, f"next_{sem}"
    )


def wait_all(sem: str, slots: int, count: int = 1) -> str:
    """Wait for every slot."""
    return f"    %lo_{sem} = arith.constant 0 : index\n    %hi_{sem} = arith.constant {slots} : index\n" + wait(
        sem, f"lo_{sem}", f"hi_{sem}", count
    )


def post(sem: str, slot: str = "i") -> str:
    return f'    "kitsune.post"(%{sem}, %{slot}) : (!kitsune.semaphore, index) -> ()\n'


def semaphore(name: str, slots: int) -> str:
    return f'  %{name} = "kitsune.make_semaphore"() {{slots = {slots} : i64}} : () -> !kitsune.semaphore\n'


def buffer(name: str, offset: int, shape, dtype: str, arena: int) -> str:
    return (
        f"  %{name}_at = arith.constant {offset} : index\n"
        f"  %{name} = memref.view %arena[%{name}_at][] : memref<{arena}xi8> to {memref(shape, dtype)}\n"
    )


def generic(name: str, ins, out, body: str, kinds: Sequence[str] = ("parallel", "parallel"), init: str | None = None) -> str:
    """A linalg.generic: `ins` are (value, map, shape, dtype), `out` is (map, shape, dtype); the body sees %a0, %a1, ..., %o.

    `init` is the tensor that results start from; an empty one without it.
    """
    out_map, out_shape, out_type = out
    text = "" if init else f"    %{name}_e = tensor.empty() : {tensor(out_shape, out_type)}\n"
    operands = f"ins({', '.join('%' + v for v, *_ in ins)} : {', '.join(tensor(s, t) for _, _, s, t in ins)}) " if ins else ""
    maps = ", ".join([m for _, m, _, _ in ins] + [out_map])
    arguments = ", ".join([f"%a{n}: {t}" for n, (_, _, _, t) in enumerate(ins)] + [f"%o: {out_type}"])
    types = ", ".join(f'"{kind}"' for kind in kinds)
    return (
        text
        + f"""    %{name} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{types}]}}
      {operands}outs(%{init or name + "_e"} : {tensor(out_shape, out_type)}) {{
    ^bb0({arguments}):
{body}
    }} -> {tensor(out_shape, out_type)}
"""
    )


def fill(name: str, value: str, shape, dtype: str) -> str:
    constant = value if dtype == "i1" else f"{value} : {dtype}"
    return f"""    %{name}_c = arith.constant {constant}
    %{name}_e = tensor.empty() : {tensor(shape, dtype)}
    %{name} = linalg.fill ins(%{name}_c : {dtype}) outs(%{name}_e : {tensor(shape, dtype)}) -> {tensor(shape, dtype)}
"""


def yielding(*lines: str, dtype: str = "f32") -> str:
    """The lines of a linalg body that end by yielding %r."""
    return "\n".join(f"      {line}" for line in (*lines, f"linalg.yield %r : {dtype}"))
